/* A child continues with a connection that it inherited, and cannot request it from its parent.
 * The child must read only bytes of the peer. Mode `killed`: the parent was killed. Mode `full`:
 * the parent had no free descriptor when it forked. */
#include "pair.h"
#include <sys/resource.h>

static void child(int fd) {
    char bytes[64];
    ssize_t count = read(fd, bytes, sizeof bytes);
    if (count < 0)
        printf("the child reads: %s\n", strerrorname_np(errno));
    else
        printf("the child reads: %zd \"%.*s\"\n", count, (int)count, bytes);
    fflush(stdout);
    signal(SIGPIPE, SIG_IGN);
    count = write(fd, "answer", 6);
    printf("the child writes: %s\n", count < 0 ? strerrorname_np(errno) : "all");
    fflush(stdout);
    _exit(0);
}

/* Forks while the connection has unread bytes. */
static void server(int fd, int is_full) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    CHECK(poll(&wait, 1, 60000) == 1);
    pid_t parent = getpid();
    if (is_full) {
        struct rlimit limit = {.rlim_cur = 8192, .rlim_max = 8192};
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        while (open("/dev/null", O_RDONLY) >= 0) {}
    }
    pid_t forked = fork();
    CHECK(forked >= 0);
    if (forked == 0) {
        while (!is_full && getppid() == parent) usleep(10000);
        child(fd);
    }
    if (!is_full) kill(parent, SIGKILL);
    waitpid(forked, NULL, 0);
    _exit(0);
}

int main(int count, char **words) {
    CHECK(count == 2);
    int is_full = strcmp(words[1], "full") == 0, is_client, fd = settled(&is_client);
    /* The server is the parent of the client. It does not wait for the client. */
    if (!is_client) server(fd, is_full);
    char bytes[64];
    CHECK(write(fd, "hello", 5) == 5);
    ssize_t got = read(fd, bytes, sizeof bytes);
    if (got < 0)
        printf("the peer reads: %s\n", strerrorname_np(errno));
    else
        printf("the peer reads: %zd \"%.*s\"\n", got, (int)got, bytes);
    return 0;
}
