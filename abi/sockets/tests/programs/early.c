/* A client that, like a proxy, adds its socket to an epoll set before it connects. It waits only
 * on that set. */
#include "pair.h"

static void wait_for(int set, unsigned wanted) {
    struct epoll_event event = {0};
    do CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 77);
    while (!(event.events & wanted));
}

static void ask(int fd, int set, const char *question, const char *answer) {
    char text[16] = "";
    write_all(fd, question, strlen(question));
    size_t done = 0;
    while (done < strlen(answer)) {
        ssize_t count = read(fd, text + done, sizeof text - done);
        CHECK(count > 0 || (count == -1 && errno == EAGAIN));
        if (count > 0) done += count;
        else wait_for(set, EPOLLIN);
    }
    CHECK(!strcmp(text, answer));
}

int main(int count, char **words) {
    CHECK(count == 2);
    unsigned events = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
    if (!strcmp(words[1], "edge")) events |= EPOLLET;
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = listening(&address);
    CHECK((peer = fork()) >= 0);
    if (peer) {
        int fd = accept(listener, NULL, NULL);
        char text[8];
        for (int i = 0; i < 60; i++) {
            read_all(fd, text, 8);
            write_all(fd, "answer", 6);
        }
        printf("end %zd\n", read(fd, text, 1));
        CHECK(close(fd) == 0);
        return over(0);
    }
    int set = epoll_create1(EPOLL_CLOEXEC), fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    /* If a socket was in a set and was closed, no registration of it may remain. */
    struct epoll_event event = {.events = events, .data.u64 = 66};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(close(fd) == 0);
    CHECK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0) == fd);
    event.data.u64 = 55;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    event.data.u64 = 77;
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
    CHECK(connect(fd, (struct sockaddr *)&address, length) == 0 || errno == EINPROGRESS);
    wait_for(set, EPOLLOUT);
    for (int i = 0; i < 60; i++) {
        ask(fd, set, "question", "answer");
        if (i < 30) usleep(5000);
    }
    printf("client: asked\n");
    CHECK(close(fd) == 0);
    return 0;
}
