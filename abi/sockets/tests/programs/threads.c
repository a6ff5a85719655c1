/* Threads that share connections: over IPv6, and over IPv4 with an IPv6 socket. */
#include "pair.h"
#include <pthread.h>

#define COUNT 4
#define ROUNDS 2000

static void *writes(void *place) {
    char line[32];
    for (int i = 0; i < ROUNDS; i++) {
        memset(line, 'a' + i % 26, sizeof line);
        write_all(*(int *)place, line, sizeof line);
    }
    return NULL;
}

static void *reads(void *place) {
    char line[32];
    for (int i = 0; i < ROUNDS; i++) {
        read_all(*(int *)place, line, sizeof line);
        for (size_t at = 0; at < sizeof line; at++) CHECK(line[at] == 'a' + i % 26);
    }
    return NULL;
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET6, SOCK_STREAM, 0), off = 0;
    CHECK(setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0);
    CHECK(listen(listener, COUNT) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    peer = fork();
    int is_client = peer == 0, fds[COUNT];
    for (int i = 0; i < COUNT; i++) {
        if (is_client && i % 2 == 0) {
            struct sockaddr_in four = {
                .sin_family = AF_INET, .sin_port = address.sin6_port, .sin_addr = {htonl(INADDR_LOOPBACK)}};
            fds[i] = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(connect(fds[i], (struct sockaddr *)&four, sizeof four) == 0);
        } else if (is_client) {
            address.sin6_addr = in6addr_loopback;
            fds[i] = socket(AF_INET6, SOCK_STREAM, 0);
            CHECK(connect(fds[i], (struct sockaddr *)&address, sizeof address) == 0);
        } else {
            fds[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            CHECK(fds[i] >= 0);
        }
    }
    pthread_t threads[2 * COUNT];
    for (int i = 0; i < 2 * COUNT; i++)
        CHECK(pthread_create(&threads[i], NULL, i % 2 ? reads : writes, &fds[i / 2]) == 0);
    for (int i = 0; i < 2 * COUNT; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < COUNT; i++) {
        settle(fds[i], is_client);
        struct sockaddr_storage name;
        length = sizeof name;
        CHECK(getpeername(fds[i], (struct sockaddr *)&name, &length) == 0);
        printf("%d: family %d of %d bytes\n", is_client, name.ss_family, (int)length);
    }
    for (int i = 0; i < COUNT; i++) CHECK(shutdown(fds[i], SHUT_WR) == 0);
    char byte;
    for (int i = 0; i < COUNT; i++) CHECK(read(fds[i], &byte, 1) == 0);
    for (int i = 0; i < COUNT; i++) CHECK(close(fds[i]) == 0);
    return over(is_client);
}
