/* A thread waits for bytes of a connection. Another thread closes the descriptor number of this
 * connection, and the next connection gets the same number. The first thread may get bytes of the
 * first connection or an error, but no bytes of the next connection. */
#include "pair.h"
#include <pthread.h>

static int first;
static volatile int reads;

static void *reader(void *unused) {
    char bytes[64];
    reads = 1;
    ssize_t count = read(first, bytes, sizeof bytes);
    int is_own = count < 0 || (count == 1 && bytes[0] == 'A');
    printf("%s\n", is_own ? "its own" : "that of another");
    return unused;
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = listening(&address);
    pid_t client = fork();
    CHECK(client >= 0);
    if (client == 0) {
        int ends[2];
        for (int i = 0; i < 2; i++) {
            ends[i] = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(connect(ends[i], (struct sockaddr *)&address, length) == 0);
        }
        CHECK(write(ends[1], "secret of B", 11) == 11);
        usleep(600000);
        send(ends[0], "A", 1, MSG_NOSIGNAL);
        usleep(600000);
        _exit(0);
    }
    pthread_t thread;
    first = accept(listener, NULL, NULL);
    CHECK(first >= 0);
    CHECK(pthread_create(&thread, NULL, reader, NULL) == 0);
    while (!reads) usleep(1000);
    usleep(200000);
    CHECK(close(first) == 0);
    int second = accept(listener, NULL, NULL);
    CHECK(second == first);
    struct timeval limit = {.tv_sec = 5};
    CHECK(setsockopt(second, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    char bytes[64] = {0};
    ssize_t count = recv(second, bytes, sizeof bytes, 0);
    printf("B has %zd bytes\n", count);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(waitpid(client, NULL, 0) == client);
    return 0;
}
