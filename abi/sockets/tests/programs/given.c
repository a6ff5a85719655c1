/* Uses functions of the C library that use a descriptor internally, or that start programs which
 * use the descriptor. */
#include "pair.h"
#include <aio.h>
#include <spawn.h>
#include <stdarg.h>

extern char **environ;

static int print(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int count = vdprintf(fd, format, list);
    va_end(list);
    return count;
}

static void ended(const char *call, int status) {
    printf("%s: %d\n", call, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

int main(int count, char **words) {
    CHECK(count == 2);
    const char *how = words[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_client, fd = settled(&is_client);
    char text[200], command[100];
    snprintf(command, sizeof command, "echo from a shell >&%d", fd);
    if (is_client) {
        size_t done = 0;
        ssize_t got;
        while ((got = read(fd, text + done, sizeof text - done)) > 0) done += got;
        printf("client: %zd, %.*s\n", got, (int)done, text);
        CHECK(close(fd) == 0);
        return 0;
    }
    if (!strcmp(how, "print")) {
        printf("dprintf: %d\n", dprintf(fd, "%d %s %.2f %ld %c %d %d %s\n", 1, "two", 3.25, 4L, '5', 6, 7, "eight"));
        printf("vdprintf: %d\n", print(fd, "%s %f %f %f %f %f %f %f %f %f\n", "more", 1., 2., 3., 4., 5., 6., 7., 8., 9.));
        printf("dprintf: %d\n", dprintf(1, "server: %s %d %.1f\n", "out", 2, 3.5));
    } else if (!strcmp(how, "system")) {
        ended("system", system(command));
    } else if (!strcmp(how, "popen")) {
        FILE *shell = popen("cat", "w");
        CHECK(shell && fputs("server: from cat\n", shell) >= 0);
        ended("pclose", pclose(shell));
        CHECK((shell = popen(command, "r")) != NULL);
        printf("no more: %d\n", fgetc(shell) == EOF);
        ended("pclose", pclose(shell));
    } else if (!strcmp(how, "spawn")) {
        char *arguments[] = {"sh", "-c", command, NULL};
        pid_t child;
        int status;
        CHECK(posix_spawnp(&child, "sh", NULL, NULL, arguments, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        ended("posix_spawnp", status);
    } else {
        struct aiocb control = {.aio_fildes = fd, .aio_buf = "by another thread", .aio_nbytes = 17};
        const struct aiocb *list[] = {&control};
        CHECK(aio_write(&control) == 0);
        while (aio_error(&control) == EINPROGRESS) aio_suspend(list, 1, NULL);
        printf("aio_write: %zd\n", aio_return(&control));
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    printf("server: end %zd\n", read(fd, text, 1));
    CHECK(close(fd) == 0);
    return over(is_client);
}
