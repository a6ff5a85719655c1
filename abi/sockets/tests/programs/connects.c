/* A program that repeats connect() to find out whether it is connected, long after the
 * connection was established. */
#include "pair.h"

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = listening(&address);
    peer = fork();
    int is_client = peer == 0, fd;
    if (is_client) {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        int result = connect(fd, (struct sockaddr *)&address, length);
        printf("first %d %s\n", result, result == 0 ? "" : strerror(errno));
        struct pollfd entry = {fd, POLLOUT, 0};
        CHECK(poll(&entry, 1, 60000) == 1);
        /* Wait, because the accepting side begins to move the connection at once. */
        usleep(300000);
        result = connect(fd, (struct sockaddr *)&address, length);
        printf("second %d %s\n", result, result == 0 ? "" : strerror(errno));
        result = connect(fd, (struct sockaddr *)&address, length);
        printf("third %d %s\n", result, result == 0 ? "" : strerror(errno));
        CHECK(fcntl(fd, F_SETFL, 0) == 0);
    } else {
        fd = accept(listener, NULL, NULL);
        struct pollfd entry = {fd, POLLIN, 0};
        CHECK(poll(&entry, 1, 60000) == 1);
    }
    settle(fd, is_client);
    CHECK(close(fd) == 0);
    return over(is_client);
}
