/* Uses descriptor numbers: duplicates them, closes them in any order, and uses numbers that
 * belong to the library. */
#include "pair.h"
#include <linux/sockios.h>

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_client, fd = settled(&is_client);
    char text[16] = "";
    if (is_client) {
        int copy = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 50), chosen = dup2(fd, 60);
        CHECK(copy >= 0 && high >= 50 && chosen == 60);
        CHECK(fcntl(high, F_GETFD) == FD_CLOEXEC);
        CHECK(dup3(fd, 61, O_CLOEXEC) == 61);
        CHECK(close(fd) == 0);
        CHECK(write(fd, "x", 1) == -1);
        printf("client: closed: %s\n", strerror(errno));
        write_all(copy, "a", 1);
        CHECK(close(copy) == 0);
        write_all(high, "b", 1);
        CHECK(close(high) == 0);
        write_all(60, "c", 1);
        /* Another file takes over the number of the connection. */
        int null = open("/dev/null", O_RDWR);
        CHECK(dup2(null, 60) == 60);
        CHECK(write(60, "lost", 4) == 4);
        write_all(61, "d", 1);
        /* Close all numbers, like a daemon. The library's descriptors must stay open. */
        close(60);
        close(null);
        for (int number = 3; number < 1024; number++)
            if (number != 61) close(number);
        write_all(61, "e", 1);
        CHECK(close_range(62, ~0U, 0) == 0);
        write_all(61, "f", 1);
        read_all(61, text, 1);
        printf("client: answer %s\n", text);
        struct sockaddr_in name;
        socklen_t length = sizeof name;
        CHECK(getpeername(61, (struct sockaddr *)&name, &length) == 0);
        printf("client: peer %s\n", inet_ntoa(name.sin_addr));
        int value = -1;
        length = sizeof value;
        CHECK(getsockopt(61, SOL_SOCKET, SO_DOMAIN, &value, &length) == 0);
        printf("client: domain %d\n", value == AF_INET);
        CHECK(getsockopt(61, SOL_SOCKET, SO_ERROR, &value, &length) == 0);
        printf("client: error %d\n", value);
        CHECK(ioctl(61, SIOCATMARK, &value) == 0);
        printf("client: at mark %d %d\n", value, sockatmark(61));
        struct tcp_info info;
        length = sizeof info;
        CHECK(getsockopt(61, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
        printf("client: state %d\n", info.tcpi_state == TCP_ESTABLISHED);
        int lowest = open("/dev/null", O_RDONLY);
        printf("client: lowest %d\n", lowest);
        CHECK(close(61) == 0);
    } else {
        for (int at = 0; at < 6; at++) read_all(fd, text + at, 1);
        printf("got %s\n", text);
        write_all(fd, "y", 1);
        printf("end %zd\n", read(fd, text, 1));
        CHECK(close(fd) == 0);
        CHECK(close(fd) == -1);
        printf("twice: %s\n", strerror(errno));
    }
    return over(is_client);
}
