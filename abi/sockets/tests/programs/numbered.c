/* Makes kernel calls by number: through `syscall`, like libuv, and directly, so that no library
 * sees the call. After a close, the number must name the next file that is opened there. */
#include "pair.h"
#include <sys/syscall.h>

/* Calls the kernel directly, so that no library sees the call. */
static long by_kernel(long number, long first) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first) : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long of __asm__("x8") = number, result __asm__("x0") = first;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(of) : "memory");
    return result;
#else
#error "how is the kernel called here?"
#endif
}

/* Checks that the new file got the number `fd`, which was closed last, and that a read from the
 * file returns its bytes. */
static void read_file_at(int fd, int made, const char *how) {
    char text[4] = "";
    printf("%s: same number %d\n", how, fd == made);
    CHECK(read(made, text, 3) == 3);
    printf("%s: %s\n", how, text);
    CHECK(close(made) == 0);
}

static int file(void) {
    char name[] = "/tmp/numbered-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    CHECK(unlink(name) == 0);
    CHECK(write(fd, "abc", 3) == 3);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static void everything_by_number(int fd, int is_client) {
    char text[8] = "";
    if (is_client) {
        CHECK(syscall(SYS_write, fd, "one", 3) == 3);
        struct iovec piece = {"two", 3};
        CHECK(syscall(SYS_writev, fd, &piece, 1) == 3);
        CHECK(syscall(SYS_sendto, fd, "six", 3, MSG_NOSIGNAL, NULL, 0) == 3);
        int set = syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7}, found;
        CHECK(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(syscall(SYS_epoll_pwait, set, &found, 1, -1, NULL, 8) == 1);
        printf("client: event %d\n", found.data.u32 == 7);
        CHECK(syscall(SYS_close, set) == 0);
        CHECK(syscall(SYS_recvfrom, fd, text, 3, MSG_WAITALL, NULL, NULL) == 3);
        printf("client: %s\n", text);
        int copy = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 40);
        CHECK(syscall(SYS_close, fd) == 0);
        CHECK(syscall(SYS_dup3, copy, 70, O_CLOEXEC) == 70);
        CHECK(syscall(SYS_close, copy) == 0);
        CHECK(syscall(SYS_shutdown, 70, SHUT_WR) == 0);
        CHECK(syscall(SYS_read, 70, text, 3) == 0);
        CHECK(syscall(SYS_close, 70) == 0);
        CHECK(syscall(SYS_read, 70, text, 3) == -1);
        printf("client: %s\n", strerror(errno));
    } else {
        for (int i = 0; i < 3; i++) {
            read_all(fd, text, 3);
            printf("server: %s\n", text);
        }
        CHECK(syscall(SYS_write, fd, "ten", 3) == 3);
        CHECK(syscall(SYS_read, fd, text, 3) == 0);
        CHECK(syscall(SYS_close, fd) == 0);
    }
}

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    int has_ended[2];
    CHECK(pipe(has_ended) == 0);
    int is_client, fd = settled(&is_client);
    if (!strcmp(how, "all")) {
        everything_by_number(fd, is_client);
    } else if (is_client) {
        CHECK((!strcmp(how, "number") ? syscall(SYS_close, fd) : by_kernel(SYS_close, fd)) == 0);
        if (strcmp(how, "unseen")) {
            read_file_at(fd, file(), how);
            return 0;
        }
        /* The peer has received the end of the stream. Only calls that no library sees have
         * created descriptors so far. */
        int copied = has_ended[0];
        char byte;
        CHECK(read(copied, &byte, 1) == 1);
        CHECK(write(has_ended[1], "abc", 3) == 3);
        CHECK(by_kernel(SYS_dup, copied) == fd);
        read_file_at(fd, fd, how);
    } else {
        char byte;
        printf("server: end %zd\n", read(fd, &byte, 1));
        CHECK(write(has_ended[1], "x", 1) == 1);
        CHECK(close(fd) == 0);
    }
    return over(is_client);
}
