// Serves files by HTTP, each connection in a thread: sockets_server.java ADDRESS PORT FOLDER
import com.sun.net.httpserver.HttpServer;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;

class Serve {
    public static void main(String[] arguments) throws Exception {
        InetSocketAddress address = new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1]));
        HttpServer server = HttpServer.create(address, 1024);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", exchange -> {
            String name = Path.of(exchange.getRequestURI().getPath()).getFileName().toString();
            byte[] body = Files.readAllBytes(Path.of(arguments[2], name));
            exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
            try (OutputStream out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.start();
    }
}
