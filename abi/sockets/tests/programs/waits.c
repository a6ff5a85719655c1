/* Uses all functions that wait. The argument is the mode. */
#include "pair.h"

static int epoll, epoll_events;

/* Waits until a descriptor is readable. Returns 1, or 0 after a timeout. */
static int wait_for(const char *mode, int fd, int limit) {
    if (strcmp(mode, "poll") == 0) {
        struct pollfd entry = {fd, POLLIN, 0};
        int found = poll(&entry, 1, limit);
        return found == 1 ? entry.revents & POLLIN : found;
    }
    if (strcmp(mode, "ppoll") == 0) {
        struct pollfd entry = {fd, POLLIN, 0};
        struct timespec time = {limit / 1000, limit % 1000 * 1000000L};
        sigset_t mask;
        sigemptyset(&mask);
        return ppoll(&entry, 1, &time, &mask);
    }
    if (strcmp(mode, "select") == 0) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        struct timeval time = {limit / 1000, limit % 1000 * 1000};
        int found = select(fd + 1, &set, NULL, NULL, &time);
        return found == 1 ? FD_ISSET(fd, &set) : found;
    }
    struct epoll_event event = {.events = epoll_events, .data.u64 = 7777};
    if (epoll == 0) {
        epoll = epoll_create1(EPOLL_CLOEXEC);
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    } else if (epoll_events & EPOLLONESHOT) {
        CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0);
    }
    int found = epoll_pwait(epoll, &event, 1, limit, NULL);
    CHECK(found < 1 || event.data.u64 == 7777);
    return found == 1 ? (event.events & EPOLLIN) != 0 : found;
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(count == 2);
    const char *mode = words[1];
    epoll_events = EPOLLIN | EPOLLRDHUP;
    if (strcmp(mode, "edge") == 0) epoll_events |= EPOLLET;
    if (strcmp(mode, "oneshot") == 0) epoll_events |= EPOLLONESHOT;
    int is_client, fd = connected(&is_client);
    char text[1000];
    if (is_client) {
        /* Exchange bytes, starting before the move and continuing long after it. */
        for (int i = 0; i < 60; i++) {
            write_all(fd, "question", 8);
            read_all(fd, text, 6);
            if (i < 30) usleep(5000);
        }
        usleep(100000);
        write_all(fd, "late", 4);
        read_all(fd, text, 1);
        write_all(fd, "two parts", 9);
        CHECK(shutdown(fd, SHUT_WR) == 0);
        CHECK(read(fd, text, 1) == 0);
    } else {
        CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
        for (int i = 0; i < 60; i++) {
            for (size_t got = 0; got < 8;) {
                CHECK(wait_for(mode, fd, 60000) == 1);
                ssize_t received;
                while ((received = read(fd, text, 8)) > 0) got += received;
                CHECK(received == -1 && errno == EAGAIN);
            }
            write_all(fd, "answer", 6);
        }
        printf("sixty answers\n");
        int found = wait_for(mode, fd, 10);
        printf("nothing there: %d\n", found);
        CHECK(wait_for(mode, fd, 60000) == 1);
        ssize_t received = read(fd, text, sizeof text);
        printf("%.4s %zd\n", text, received);
        printf("drained: %d\n", wait_for(mode, fd, 0));
        write_all(fd, "x", 1);
        CHECK(wait_for(mode, fd, 60000) == 1);
        usleep(50000);
        CHECK(read(fd, text, 3) == 3);
        if (!(epoll_events & EPOLLET)) printf("still readable: %d\n", wait_for(mode, fd, 0));
        received = read(fd, text, sizeof text);
        printf("rest %zd\n", received);
        if (!(epoll_events & EPOLLET)) printf("end is readable: %d\n", wait_for(mode, fd, 1000));
        printf("end %zd\n", read(fd, text, 1));
    }
    CHECK(close(fd) == 0);
    return over(is_client);
}
