/* One thread queries a connection and sets its options. Another thread uses the connection, so
 * that the connection moves during the queries. */
#include "pair.h"
#include <pthread.h>

#define COUNT 40

static int asked, wrong;
static volatile int goes_on;

static void expect(int is_right, const char *what) {
    if (!is_right && wrong++ < 5) printf("%s: %s\n", what, strerror(errno));
}

static int family(int (*ask)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    return ask(asked, (struct sockaddr *)&address, &length) == 0 ? address.ss_family : -1;
}

static int option(int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    return getsockopt(asked, level, name, &value, &length) == 0 ? value : -1;
}

static void *asks(void *unused) {
    for (int turn = 0; goes_on; turn++) {
        int on = turn % 2, off = 0, unsent;
        expect(setsockopt(asked, IPPROTO_TCP, TCP_CORK, &on, sizeof on) == 0, "TCP_CORK");
        expect(setsockopt(asked, IPPROTO_TCP, TCP_CORK, &off, sizeof off) == 0, "TCP_CORK");
        expect(setsockopt(asked, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
        expect(option(IPPROTO_TCP, TCP_NODELAY) == on, "what TCP_NODELAY is");
        expect(option(SOL_SOCKET, SO_DOMAIN) == AF_INET, "SO_DOMAIN");
        expect(family(getsockname) == AF_INET, "getsockname");
        expect(family(getpeername) == AF_INET, "getpeername");
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        expect(getpeername(asked, (struct sockaddr *)&peer, &length) == 0, "getpeername");
        for (int time = 0; time < 10; time++) {
            errno = 0;
            int again = connect(asked, (struct sockaddr *)&peer, length);
            expect(again == 0 || errno == EISCONN, "connect again");
        }
        expect(ioctl(asked, TIOCOUTQ, &unsent) == 0 && unsent < 100, "TIOCOUTQ");
        int flags = on ? O_RDWR | O_NONBLOCK : O_RDWR;
        expect(fcntl(asked, F_SETFL, flags) == 0, "F_SETFL");
        expect(fcntl(asked, F_GETFL) == flags, "F_GETFL");
        expect(fcntl(asked, F_SETFD, on ? FD_CLOEXEC : 0) == 0, "F_SETFD");
        expect(fcntl(asked, F_GETFD) == (on ? FD_CLOEXEC : 0), "F_GETFD");
    }
    return unused;
}

/* Transfers one byte. The other thread may make the connection blocking or non-blocking at any
 * time. */
static void one(int writes) {
    char byte = 'x';
    for (;;) {
        ssize_t count = writes ? write(asked, &byte, 1) : read(asked, &byte, 1);
        if (count == 1) return;
        CHECK(count < 0 && errno == EAGAIN);
        usleep(100);
    }
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = listening(&address);
    peer = fork();
    CHECK(peer >= 0);
    int is_client = peer == 0;
    for (int i = 0; i < COUNT; i++) {
        if (is_client) {
            asked = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(connect(asked, (struct sockaddr *)&address, length) == 0);
        } else {
            CHECK((asked = accept(listener, NULL, NULL)) >= 0);
        }
        goes_on = 1;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, asks, NULL) == 0);
        for (int turn = 0; turn < 30; turn++) {
            one(is_client);
            one(!is_client);
            if (is_client) usleep(500);
        }
        goes_on = 0;
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(close(asked) == 0);
    }
    if (wrong > 0) printf("%d answers are wrong\n", wrong);
    printf("all was asked\n");
    return over(is_client);
}
