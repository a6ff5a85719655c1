// Fetches files over HTTP: sockets_client.java ADDRESS PORT FOLDER NAME... Fetches each file twice: by
// a blocking URL connection, and by a client with an event loop. Compares the two results.
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

class Fetch {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        for (int i = 3; i < arguments.length; i++) {
            String name = arguments[i];
            URI address = URI.create("http://" + arguments[0] + ":" + arguments[1] + "/" + name);
            HttpURLConnection connection = (HttpURLConnection) address.toURL().openConnection();
            byte[] blocking;
            try (InputStream in = connection.getInputStream()) {
                blocking = in.readAllBytes();
            }
            HttpRequest request = HttpRequest.newBuilder(address).build();
            byte[] selected = client.send(request, HttpResponse.BodyHandlers.ofByteArray()).body();
            if (!Arrays.equals(blocking, selected)) {
                throw new Exception(name + ": two answers that differ");
            }
            Files.write(Path.of(arguments[2], name), blocking);
        }
    }
}
