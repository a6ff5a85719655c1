/* Functions that the programs share: they create a connection between two processes, and give it
 * time to move. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static pid_t peer;

/* Returns a socket that listens at a free port, and stores the port in `address`. */
static inline int listening(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)address, length) == 0);
    CHECK(listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)address, &length) == 0);
    return listener;
}

/* Exchanges bytes until a connection that can move has moved. */
static inline void settle(int fd, int begins) {
    char byte = 's';
    for (int i = 0; i < 40; i++) {
        if (begins) {
            CHECK(write(fd, &byte, 1) == 1);
            CHECK(read(fd, &byte, 1) == 1);
            usleep(5000);
        } else {
            CHECK(read(fd, &byte, 1) == 1);
            CHECK(write(fd, &byte, 1) == 1);
        }
    }
}

/* Listens, and forks a child that connects. Returns the connecting end in the child, and the accepted end in the parent. */
static int connected(int *is_client) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int listener = listening(&address);
    peer = fork();
    CHECK(peer >= 0);
    *is_client = peer == 0;
    int fd;
    if (*is_client) {
        close(listener);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    } else {
        fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        close(listener);
    }
    return fd;
}

/* Does the same as `connected`. Then exchanges bytes until the connection has moved. */
static inline int settled(int *is_client) {
    int fd = connected(is_client);
    settle(fd, *is_client);
    return fd;
}

/* In the parent: waits for the child and prints how the child ended. */
static inline int over(int is_client) {
    if (is_client) return 0;
    int status;
    CHECK(waitpid(peer, &status, 0) == peer);
    printf("peer ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

static inline void write_all(int fd, const char *from, size_t size) {
    while (size > 0) {
        ssize_t count = write(fd, from, size);
        CHECK(count > 0);
        from += count;
        size -= count;
    }
}

static inline void read_all(int fd, char *into, size_t size) {
    while (size > 0) {
        ssize_t count = read(fd, into, size);
        CHECK(count > 0);
        into += count;
        size -= count;
    }
}
