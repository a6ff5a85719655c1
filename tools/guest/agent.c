/* guest-agent PORT... : process 1 of the test guest. Runs the commands that `cargo xtask guest` sends.
 *
 * Each PORT is a virtio-serial port, served by a process of its own, one command at a time:
 *
 *   host to guest   'R', 16 characters that name the request, 8 hexadecimal digits with the length of the command,
 *                   the command; later perhaps 'K': kill the command
 *   guest to host   the 16 characters again, then frames: a kind ('o' standard output, 'e' standard error, 'x' exit
 *                   status), a length of 4 bytes (little-endian), the payload; 'x' is the last frame
 *
 * The host looks for its 16 characters first, because a port can still hold the end of an earlier answer. The command
 * is killed, with its process group, when the host sends 'K' or closes the port. Neither side sends a time: the host
 * decides when a command has run for too long, because the guest's clock may count instructions.
 *
 * The serial ports are used rather than the network or the console, because tests change the network and the kernel
 * writes to the console.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_BYTES = 16, LENGTH_DIGITS = 8, COMMAND_BYTES_MAX = 1 << 20, CHUNK_BYTES = 1 << 15 };

/* Time between two looks at a port that the host has not opened. The driver reports only POLLHUP for such a port, and
 * reports it at once, so that poll cannot wait. */
enum { CLOSED_PORT_MICROSECONDS = 50 * 1000 };

/* Looks at a port that holds a request, until the port counts as closed. */
enum { OPENING_TRIES = 40 };

/* Time that a command has to end after SIGTERM, before SIGKILL. */
enum { TERMINATION_MILLISECONDS = 2000 };

struct request {
    char name[NAME_BYTES];
    char *command;
};

/* Waits until the port is ready. Returns 0 if the host has closed the port. */
static int wait_for(int port, short events) {
    struct pollfd waited = {port, events, 0};
    while (poll(&waited, 1, -1) < 0 && errno == EINTR) {
    }
    return !(waited.revents & (POLLHUP | POLLERR | POLLNVAL));
}

/* Waits until the port is open. The driver can deliver the first bytes of a connection before it reports that the host has
 * opened the port. Without this wait, the agent would take the port for closed, and drop the answer. */
static int wait_for_opening(int port) {
    for (int tries = 0; tries < OPENING_TRIES; tries++) {
        struct pollfd waited = {port, 0, 0};
        poll(&waited, 1, 0);
        if (!(waited.revents & POLLHUP)) return 1;
        usleep(CLOSED_PORT_MICROSECONDS);
    }
    return 0;
}

/* Reads exactly `length` bytes. Returns 0 if the host closes the port before. */
static int get(int port, char *bytes, size_t length) {
    while (length > 0) {
        ssize_t count = read(port, bytes, length);
        if (count > 0) {
            bytes += count;
            length -= (size_t)count;
        } else if (count == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(port, POLLIN)) {
            return 0;
        }
    }
    return 1;
}

/* Writes all bytes, or drops them if the host has closed the port. */
static void put(int port, const char *bytes, size_t length) {
    while (length > 0) {
        ssize_t count = write(port, bytes, length);
        if (count > 0) {
            bytes += count;
            length -= (size_t)count;
        } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(port, POLLOUT)) {
            return;
        }
    }
}

static void put_frame(int port, char kind, const char *payload, size_t length) {
    char header[5] = {kind, (char)length, (char)(length >> 8), (char)(length >> 16), (char)(length >> 24)};
    put(port, header, sizeof header);
    put(port, payload, length);
}

/* Reads a request. Returns 0 if the host closes the port before its end, or if the request is malformed. */
static int receive(int port, struct request *request) {
    char start = 0, digits[LENGTH_DIGITS + 1] = {0}, *end;
    while (start != 'R') { /* A late 'K' of the request before is skipped. */
        if (!get(port, &start, 1)) return 0;
    }
    if (!wait_for_opening(port)) return 0;
    if (!get(port, request->name, NAME_BYTES) || !get(port, digits, LENGTH_DIGITS)) return 0;
    unsigned long length = strtoul(digits, &end, 16);
    if (*end != 0 || length > COMMAND_BYTES_MAX) return 0;
    request->command = calloc(1, length + 1);
    if (request->command == NULL) return 0;
    if (get(port, request->command, length)) return 1;
    free(request->command);
    return 0;
}

/* Sends what the pipe holds. Returns 0 at the pipe's end. */
static int forward(int port, char kind, int pipe) {
    static char chunk[CHUNK_BYTES];
    ssize_t count;
    while ((count = read(pipe, chunk, sizeof chunk)) > 0) put_frame(port, kind, chunk, (size_t)count);
    return count < 0;
}

static pid_t start(const char *command, int output, int errors) {
    pid_t child = fork();
    if (child != 0) return child;
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static void perform(int port, const struct request *request) {
    int output[2], errors[2], status = 0, signals = 0;
    if (pipe2(output, O_CLOEXEC) || pipe2(errors, O_CLOEXEC)) return;
    pid_t child = start(request->command, output[1], errors[1]);
    if (child < 0) return;
    setpgid(child, child); /* The child does so too; the first of the two calls takes effect before any kill. */
    close(output[1]);
    close(errors[1]);
    fcntl(output[0], F_SETFL, O_NONBLOCK);
    fcntl(errors[0], F_SETFL, O_NONBLOCK);
    put(port, request->name, NAME_BYTES);

    enum { PORT, OUTPUT, ERRORS, CHILD, WAITED };
    struct pollfd waited[WAITED] = {{port, POLLIN, 0},
                                    {output[0], POLLIN, 0},
                                    {errors[0], POLLIN, 0},
                                    {pidfd_open(child, 0), POLLIN, 0}};
    while (!waited[CHILD].revents) {
        int ready = poll(waited, WAITED, signals == 1 ? TERMINATION_MILLISECONDS : -1);
        if (ready < 0) continue;
        if (waited[OUTPUT].revents && !forward(port, 'o', output[0])) waited[OUTPUT].fd = -1;
        if (waited[ERRORS].revents && !forward(port, 'e', errors[0])) waited[ERRORS].fd = -1;
        if (waited[PORT].revents || (ready == 0 && signals == 1)) {
            kill(-child, signals == 0 ? SIGTERM : SIGKILL);
            signals++;
            waited[PORT].fd = -1; /* What arrived stays in the port: it may be the next request. */
            waited[PORT].revents = 0;
        }
    }
    /* Processes that the command left behind may hold the pipes for ever, so do not wait for the pipes' end. */
    forward(port, 'o', output[0]);
    forward(port, 'e', errors[0]);
    waitpid(child, &status, 0);
    char code = (char)(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    put_frame(port, 'x', &code, 1);
    close(output[0]);
    close(errors[0]);
    close(waited[CHILD].fd);
}

static void serve(const char *path) {
    int port = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (port < 0) {
        perror(path);
        return;
    }
    for (;;) {
        struct request request;
        if (receive(port, &request)) {
            perform(port, &request);
            free(request.command);
        } else {
            usleep(CLOSED_PORT_MICROSECONDS);
        }
    }
}

int main(int count, char **paths) {
    for (int index = 1; index < count; index++) {
        if (fork() == 0) {
            signal(SIGPIPE, SIG_DFL);
            serve(paths[index]);
            _exit(1);
        }
    }
    /* As process 1, reaps every process that loses its parent. */
    for (;;) {
        if (wait(NULL) < 0) sleep(1);
    }
}
