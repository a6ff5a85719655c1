/* Tries to execute programs that do not exist, and continues to use its connection. Then executes
 * a program that exists. */
#include "pair.h"
#include <sys/stat.h>

static char *words[] = {"none", NULL}, *set[] = {NULL};

int main(int count, char **arguments) {
    CHECK(count == 2);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_client, fd = settled(&is_client);
    char text[200];
    if (is_client) {
        size_t done = 0;
        ssize_t got;
        while ((got = read(fd, text + done, sizeof text - done)) > 0) done += got;
        printf("client: %zd, %.*s\n", got, (int)done, text);
        CHECK(close(fd) == 0);
        return 0;
    }
    char lost[] = "/tmp/tries-XXXXXX";
    int file = mkstemp(lost);
    write_all(file, "#!/there/is/none\n", 17);
    CHECK(fchmod(file, 0700) == 0);
    CHECK(close(file) == 0);
    const char *paths[] = {"/there/is/none", "/tmp", "/etc/passwd", lost};
    for (int i = 0; i < 4; i++) {
        CHECK(execve(paths[i], words, set) == -1);
        CHECK(execv(paths[i], words) == -1);
        CHECK(execl(paths[i], "one", "two", "three", "four", "five", "six", "seven", NULL) == -1);
        CHECK(execle(paths[i], "one", NULL, set) == -1);
        CHECK(execlp(paths[i], "one", NULL) == -1);
        CHECK(execvp(paths[i], words) == -1);
        write_all(fd, "still ", 6);
    }
    CHECK(execvp("no such program", words) == -1);
    CHECK(unlink(lost) == 0);
    write_all(fd, "here", 4);
    if (strcmp(arguments[1], "stays")) {
        CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
        execl("/bin/sh", "sh", "-c", "echo server: $1 $2 $3 $4 $5 $6 $7", "sh", "1", "2", "3", "4", "5", "6", "7", NULL);
        CHECK(!"there is a shell");
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    printf("server: end %zd\n", read(fd, text, 1));
    CHECK(close(fd) == 0);
    return over(is_client);
}
