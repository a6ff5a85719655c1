/* Many processes connect to one server. The server answers each process when it has connected, and
 * once more when all processes have connected.
 *
 * Usage: sockets_peers server ADDRESS PORT
 *        sockets_peers client ADDRESS PORT PROCESSES TURNS */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
	do {                                                                                                               \
		if (!(what)) {                                                                                                 \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));                            \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

/* Number of processes that connect at a time. With more processes, the queue of the server's listener
   could overflow while the server waits for a processor. */
enum { AT_ONCE = 32 };

static void serve(struct sockaddr_in *address)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
	CHECK(bind(listener, (struct sockaddr *)address, sizeof *address) == 0 && listen(listener, 4096) == 0);
	int set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[64];
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
	for (;;) {
		int count = epoll_wait(set, events, 64, -1);
		for (int i = 0; i < count; i++) {
			int s = events[i].data.fd;
			if (s == listener) {
				CHECK((s = accept(listener, NULL, NULL)) >= 0);
				event = (struct epoll_event){.events = EPOLLIN, .data.fd = s};
				CHECK(epoll_ctl(set, EPOLL_CTL_ADD, s, &event) == 0);
				continue;
			}
			char bytes[256];
			ssize_t got = recv(s, bytes, sizeof bytes, MSG_DONTWAIT);
			if (got > 0)
				CHECK(send(s, bytes, got, MSG_NOSIGNAL) == got);
			else if (got == 0 || errno != EAGAIN)
				close(s);
		}
	}
}

static void turn(int s, char byte)
{
	char answer = 0;
	CHECK(send(s, &byte, 1, MSG_NOSIGNAL) == 1);
	CHECK(recv(s, &answer, 1, 0) == 1 && answer == byte);
}

/* Runs one client process: exchanges `turns` messages with the server and writes a byte to `ready`. When
   all processes have done this, exchanges another message. */
static void be_served(const struct sockaddr_in *address, int turns, int ready, int all)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(s, (const struct sockaddr *)address, sizeof *address) == 0);
	for (int i = 0; i < turns; i++) {
		turn(s, 'a' + i % 26);
		usleep(500);
	}
	char byte = 'r';
	CHECK(write(ready, &byte, 1) == 1);
	/* The read returns 0 when the first process closes its end. */
	CHECK(read(all, &byte, 1) == 0);
	turn(s, 'z');
	_exit(0);
}

int main(int count, char **words)
{
	CHECK(count >= 4);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[3]))};
	CHECK(inet_aton(words[2], &address.sin_addr));
	if (strcmp(words[1], "server") == 0)
		serve(&address);
	CHECK(count == 6);
	int processes = atoi(words[4]), turns = atoi(words[5]), ready[2], all[2], served = 0;
	CHECK(pipe(ready) == 0 && pipe(all) == 0);
	char byte;
	for (int i = 0; i < processes; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			close(all[1]);
			close(ready[0]);
			be_served(&address, turns, ready[1], all[0]);
		}
		if (i >= AT_ONCE)
			CHECK(read(ready[0], &byte, 1) == 1);
	}
	close(ready[1]);
	for (int i = 0; i < AT_ONCE && i < processes; i++)
		CHECK(read(ready[0], &byte, 1) == 1);
	close(all[1]);
	for (int i = 0; i < processes; i++) {
		int status;
		CHECK(wait(&status) > 0);
		served += WIFEXITED(status) && WEXITSTATUS(status) == 0;
	}
	printf("served %d of %d\n", served, processes);
	return served == processes ? 0 : 1;
}
