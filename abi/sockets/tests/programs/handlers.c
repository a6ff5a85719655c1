/* Signal handlers do all that POSIX allows: they end the process, write, close, and jump out of
 * calls that wait. */
#include "pair.h"
#include <setjmp.h>
#include <sys/time.h>

static int connection, spare;
static volatile sig_atomic_t handled;
static sigjmp_buf out;

static void every(int microseconds) {
    struct itimerval time = {{0, microseconds}, {0, microseconds}};
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

static void end(int number) {
    (void)number;
    _exit(7);
}

static void write_one(int number) {
    (void)number;
    int before = errno;
    if (write(connection, "h", 1) == 1) handled++;
    errno = before;
}

static void close_spare(int number) {
    (void)number;
    int before = errno;
    if (spare >= 0) {
        close(spare);
        spare = -1;
        handled++;
    }
    errno = before;
}

static void jump(int number) {
    (void)number;
    siglongjmp(out, 1);
}

/* Answers the peer until the peer closes the connection. */
static void serve(int fd) {
    char text[4096];
    ssize_t count;
    size_t handlers = 0, all = 0;
    while ((count = read(fd, text, sizeof text)) > 0) {
        for (ssize_t i = 0; i < count; i++) {
            handlers += text[i] == 'h';
            all++;
            if (text[i] == 'q') write_all(fd, "a", 1);
            if (text[i] == 'n') {
                size_t counts[] = {handlers, all};
                write_all(fd, (char *)counts, sizeof counts);
            }
        }
    }
}

static void end_in(int fd, const char *what) {
    char text[2000] = "";
    struct sigaction action = {.sa_handler = end};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    every(3000 + getpid() * 37 % 2000);
    for (;;) {
        if (!strcmp(what, "dup")) close(dup(fd));
        else if (!strcmp(what, "write")) write_all(fd, text, sizeof text);
        else if (!strcmp(what, "wait")) { struct pollfd entry = {fd, POLLIN, 0}; poll(&entry, 1, -1); }
        else recv(fd, text, 1, MSG_DONTWAIT);
    }
}

static void counted(int fd) {
    every(0);
    write_all(fd, "n", 1);
    size_t counts[2];
    read_all(fd, (char *)counts, sizeof counts);
    printf("all came %d\n", counts[0] == (size_t)handled);
}

int main(int count, char **words) {
    CHECK(count == 2);
    const char *how = words[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_client, fd = settled(&is_client);
    if (!is_client) {
        serve(fd);
        CHECK(close(fd) == 0);
        int status;
        CHECK(waitpid(peer, &status, 0) == peer);
        printf("peer ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
        return 0;
    }
    connection = fd;
    spare = -1;
    if (!strcmp(how, "writes")) {
        CHECK(signal(SIGALRM, write_one) == SIG_DFL);
        every(1000);
        char answer;
        while (handled < 100) {
            write_all(fd, "q", 1);
            read_all(fd, &answer, 1);
        }
        counted(fd);
        struct sigaction action;
        CHECK(sigaction(SIGALRM, NULL, &action) == 0);
        printf("is known %d %d\n", action.sa_handler == write_one, (action.sa_flags & SA_RESTART) != 0);
        CHECK(signal(SIGALRM, SIG_IGN) == write_one);
    } else if (!strcmp(how, "closes")) {
        struct sigaction action = {.sa_handler = close_spare, .sa_flags = SA_RESTART};
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        every(1000);
        char answer;
        while (handled < 50) {
            int copy = dup(fd);
            if (spare < 0) spare = copy;
            else close(copy);
            write_all(fd, "q", 1);
            read_all(fd, &answer, 1);
        }
        every(0);
        printf("closed\n");
    } else if (!strcmp(how, "jumps")) {
        struct sigaction action = {.sa_handler = jump};
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        char answer;
        for (volatile int round = 0; round < 30; round++) {
            if (sigsetjmp(out, 1) == 0) {
                every(1000 + 97 * round);
                if (round % 2) recv(fd, &answer, 1, 0);
                else { struct pollfd entry = {fd, POLLIN, 0}; poll(&entry, 1, -1); }
                CHECK(!"nothing comes");
            }
            every(0);
            write_all(fd, "q", 1);
            read_all(fd, &answer, 1);
        }
        printf("30 rounds\n");
    } else {
        end_in(fd, how);
    }
    CHECK(close(fd) == 0);
    return 0;
}
