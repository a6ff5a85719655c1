/* A signal handler without SA_RESTART interrupts a call that waits. A handler with SA_RESTART
 * does not. */
#include "pair.h"
#include <sys/time.h>

static volatile sig_atomic_t handled;

static void handle(int number) {
    (void)number;
    handled++;
}

static void alarm_soon(int flags) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval once = {.it_value = {0, 100000}};
    handled = 0;
    CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0);
}

static void report(const char *call, long result) {
    int error = errno;
    printf("%s: %ld %s, %d handled\n", call, result, result < 0 ? strerror(error) : "", handled);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_client, fd = settled(&is_client);
    char text[4];
    if (is_client) {
        read_all(fd, text, 1);
        usleep(300000);
        write_all(fd, "a", 1);
        read_all(fd, text, 1);
        CHECK(close(fd) == 0);
        return 0;
    }
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    alarm_soon(0);
    report("epoll_wait", epoll_wait(set, &event, 1, -1));
    struct pollfd entry = {fd, POLLIN, 0};
    alarm_soon(SA_RESTART);
    report("poll", poll(&entry, 1, -1));
    fd_set wanted;
    FD_ZERO(&wanted);
    FD_SET(fd, &wanted);
    alarm_soon(0);
    report("select", select(fd + 1, &wanted, NULL, NULL, NULL));
    alarm_soon(0);
    report("recv", recv(fd, text, 1, 0));
    alarm_soon(0);
    report("poll for a time", poll(&entry, 1, 20000));
    sigset_t alarms, none, now;
    sigemptyset(&none);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(sigprocmask(SIG_BLOCK, &alarms, NULL) == 0);
    alarm_soon(0);
    usleep(200000);
    printf("blocked: %d handled\n", handled);
    report("ppoll", ppoll(&entry, 1, NULL, &none));
    CHECK(sigprocmask(SIG_UNBLOCK, &alarms, &now) == 0);
    printf("still blocked %d\n", sigismember(&now, SIGALRM));
    alarm_soon(0);
    report("epoll_pwait", epoll_pwait(set, &event, 1, -1, &none));
    CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
    printf("blocked %d\n", sigismember(&now, SIGALRM));
    write_all(fd, "q", 1);
    alarm_soon(SA_RESTART);
    report("read", read(fd, text, 1));
    write_all(fd, "q", 1);
    CHECK(close(fd) == 0);
    return over(is_client);
}
