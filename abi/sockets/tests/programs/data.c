/* Uses all functions that send and receive. */
#include "pair.h"

#define BIG 3000000

static void client(int fd) {
    char text[64] = "";
    write_all(fd, "hello world", 11);
    struct iovec pieces[2] = {{"ab", 2}, {"cdef", 4}};
    CHECK(writev(fd, pieces, 2) == 6);
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    CHECK(sendmsg(fd, &message, 0) == 6);
    CHECK(send(fd, "12", 2, MSG_MORE) == 2);
    CHECK(sendto(fd, "34", 2, 0, NULL, 0) == 2);
    read_all(fd, text, 1);
    int file = fileno(tmpfile());
    CHECK(write(file, "0123456789", 10) == 10);
    off_t at = 3;
    CHECK(sendfile(fd, file, &at, 5) == 5);
    printf("client: offset %ld\n", (long)at);
    /* Transfer many bytes in both directions at once. */
    char *out = malloc(BIG), *in = malloc(BIG);
    for (int i = 0; i < BIG; i++) out[i] = i * 7 + i / 251;
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
    size_t sent = 0, got = 0;
    while (sent < BIG || got < BIG) {
        struct pollfd entry = {fd, (sent < BIG ? POLLOUT : 0) | (got < BIG ? POLLIN : 0), 0};
        CHECK(poll(&entry, 1, 60000) == 1);
        if (entry.revents & POLLOUT) {
            ssize_t count = write(fd, out + sent, BIG - sent);
            CHECK(count > 0 || errno == EAGAIN);
            if (count > 0) sent += count;
        }
        if (entry.revents & POLLIN) {
            ssize_t count = read(fd, in + got, BIG - got);
            CHECK(count > 0 || errno == EAGAIN);
            if (count > 0) got += count;
        }
    }
    printf("client: large %s\n", memcmp(in, out, BIG) == 0 ? "equal" : "different");
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    ssize_t count = read(fd, text, sizeof text);
    printf("client: after shutdown %zd %.4s\n", count, text);
    printf("client: end %zd\n", read(fd, text, sizeof text));
}

static void server(int fd) {
    char text[64] = "";
    CHECK(recv(fd, text, 5, MSG_PEEK | MSG_WAITALL) == 5);
    printf("peek %s\n", text);
    CHECK(recv(fd, text, 11, MSG_WAITALL) == 11);
    printf("all %s\n", text);
    memset(text, 0, sizeof text);
    struct iovec pieces[2] = {{text, 3}, {text + 10, 3}};
    size_t got = 0;
    CHECK(recv(fd, text + 20, 6, MSG_PEEK | MSG_WAITALL) == 6);
    CHECK((got = readv(fd, pieces, 2)) == 6);
    printf("pieces %s %s\n", text, text + 10);
    memset(text, 0, sizeof text);
    struct sockaddr_storage from;
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = pieces, .msg_iovlen = 2};
    CHECK(recv(fd, text + 20, 6, MSG_PEEK | MSG_WAITALL) == 6);
    CHECK(recvmsg(fd, &message, 0) == 6);
    printf("message %s %s name %d flags %d\n", text, text + 10, (int)message.msg_namelen, message.msg_flags);
    memset(text, 0, sizeof text);
    socklen_t length = sizeof from;
    CHECK(recv(fd, text + 20, 4, MSG_PEEK | MSG_WAITALL) == 4);
    int waiting = 0;
    CHECK(ioctl(fd, FIONREAD, &waiting) == 0);
    CHECK(recvfrom(fd, text, 4, 0, (struct sockaddr *)&from, &length) == 4);
    printf("from %.4s waiting %d name %d\n", text, waiting, (int)length);
    CHECK(recv(fd, text, 1, MSG_DONTWAIT) == -1);
    printf("nothing: %s\n", strerror(errno));
    struct timeval limit = {0, 20000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    CHECK(recv(fd, text, 1, 0) == -1);
    printf("in time: %s\n", strerror(errno));
    limit.tv_usec = 0;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    CHECK(pread(fd, text, 1, 0) == -1);
    printf("pread: %s\n", strerror(errno));
    write_all(fd, "x", 1);
    read_all(fd, text, 5);
    printf("file %.5s\n", text);
    char *large = malloc(BIG);
    for (size_t at = 0; at < BIG;) {
        ssize_t count = read(fd, large + at, 70000 < BIG - at ? 70000 : BIG - at);
        CHECK(count > 0);
        write_all(fd, large + at, count);
        at += count;
    }
    printf("end %zd\n", read(fd, text, 1));
    write_all(fd, "bye", 3);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_client, fd = settled(&is_client);
    if (is_client) client(fd);
    else server(fd);
    CHECK(close(fd) == 0);
    return over(is_client);
}
