/* Processes that share a connection. The argument is the mode. */
#include "pair.h"
#include <spawn.h>

extern char **environ;

/* Echoes all bytes until the peer ends the stream. */
static void echo(int fd) {
    char text[4096];
    ssize_t count;
    while ((count = read(fd, text, sizeof text)) > 0) write_all(fd, text, count);
    CHECK(count == 0);
}

static void say(int fd, const char *text) {
    char answer[64] = "";
    write_all(fd, text, strlen(text));
    read_all(fd, answer, strlen(text));
    printf("%s\n", answer);
}

static void wait_child(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("child ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(count == 2);
    const char *mode = words[1];
    int is_client, fd;
    if (strcmp(mode, "serve") == 0) {
        /* A child serves a connection that the parent has accepted. */
        fd = connected(&is_client);
        if (!is_client) {
            pid_t child = fork();
            if (child == 0) {
                settle(fd, 0);
                echo(fd);
                exit(0);
            }
            close(fd);
            wait_child(child);
            return over(0);
        }
        settle(fd, 1);
        say(fd, "served by a child");
        say(fd, "and again");
        close(fd);
        return 0;
    }
    fd = settled(&is_client);
    if (is_client) {
        echo(fd);
        close(fd);
        return 0;
    }
    say(fd, "before");
    if (strcmp(mode, "snapshot") == 0) {
        /* A child inherits the connection and does not use it. */
        pid_t child = fork();
        if (child == 0) {
            usleep(100000);
            _exit(0);
        }
        for (int i = 0; i < 20; i++) say(fd, "meanwhile");
        wait_child(child);
    } else if (strcmp(mode, "child") == 0) {
        /* First a child uses the connection, and then the parent. */
        pid_t child = fork();
        if (child == 0) {
            say(fd, "from the child");
            exit(0);
        }
        wait_child(child);
        say(fd, "from the parent");
    } else if (strcmp(mode, "exec") == 0 || strcmp(mode, "vfork") == 0) {
        char *shell[] = {"sh", "-c", "echo from a shell", NULL};
        fflush(stdout);
        pid_t child = strcmp(mode, "exec") == 0 ? fork() : vfork();
        if (child == 0) {
            dup2(fd, 1);
            execve("/bin/sh", shell, environ);
            _exit(1);
        }
        wait_child(child);
        char text[64] = "";
        read_all(fd, text, 13);
        printf("%s", text);
        say(fd, "after");
    } else if (strcmp(mode, "spawn") == 0) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
        char *shell[] = {"sh", "-c", "echo from a shell", NULL};
        pid_t child;
        CHECK(posix_spawn(&child, "/bin/sh", &actions, NULL, shell, environ) == 0);
        wait_child(child);
        char text[64] = "";
        read_all(fd, text, 13);
        printf("%s", text);
    } else if (strcmp(mode, "pass") == 0) {
        int ends[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        pid_t child = fork();
        union {
            struct cmsghdr header;
            char room[CMSG_SPACE(sizeof(int))];
        } control;
        char byte = 'x';
        struct iovec piece = {&byte, 1};
        struct msghdr message = {
            .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        if (child == 0) {
            close(fd);
            CHECK(recvmsg(ends[1], &message, 0) == 1);
            int passed;
            memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof passed);
            say(passed, "by another process");
            exit(0);
        }
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
        CHECK(sendmsg(ends[0], &message, 0) == 1);
        wait_child(child);
        say(fd, "by this one");
    } else if (strcmp(mode, "stdio") == 0) {
        FILE *stream = fdopen(fd, "r+");
        CHECK(stream != NULL);
        setvbuf(stream, NULL, _IONBF, 0);
        fprintf(stream, "a line\n");
        char line[64] = "";
        CHECK(fgets(line, sizeof line, stream) != NULL);
        printf("stream: %s", line);
        CHECK(fclose(stream) == 0);
        CHECK(write(fd, "x", 1) == -1);
        printf("closed: %s\n", strerror(errno));
        return over(0);
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    char byte;
    printf("end %zd\n", read(fd, &byte, 1));
    close(fd);
    return over(0);
}
