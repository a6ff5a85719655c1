/* Processes that share a connection or pass it on. */
#include "sockets.h"

enum { ANSWERS = 100 };

static long answer(int s)
{
	long count = 0;
	uint8_t part[5000];
	for (;; count++) {
		ssize_t got = recv(s, part, sizeof part, MSG_WAITALL);
		CHECK(got == 0 || got == sizeof part);
		if (got == 0)
			return count;
		write_all(s, part, sizeof part);
	}
}

static void ask_over(int s, int count)
{
	uint8_t part[5000];
	for (int i = 0; i < count; i++) {
		fill(part, sizeof part, (uint64_t)i);
		write_all(s, part, sizeof part);
		memset(part, 0, sizeof part);
		read_all(s, part, sizeof part);
		verify(part, sizeof part, (uint64_t)i);
	}
}

static void ask(struct context *context)
{
	int s = connected(context);
	ask_over(s, ANSWERS);
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect_end(s);
	close(s);
}

static void reap(pid_t child)
{
	int status;
	CHECK(child > 0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status));
	show("status", WEXITSTATUS(status));
}

/* A server that forks for each connection, and closes the connection in the parent. */
static void after_accept(struct context *context)
{
	for (int i = 0; i < 3; i++) {
		int s = accepted_cold(context);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			warm_up(context, s, true);
			_exit(answer(s) == ANSWERS ? 0 : 1);
		}
		close(s);
		reap(child);
	}
}

static void ask_three_times(struct context *context)
{
	for (int i = 0; i < 3; i++)
		ask(context);
}

/* A server that uses a connection before it forks, and closes the connection in the parent. */
static void in_mid_stream(struct context *context)
{
	int s = accepted(context);
	send_byte(s, 'g');
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(answer(s) == ANSWERS ? 0 : 1);
	close(s);
	reap(child);
}

static void ask_when_signalled(struct context *context)
{
	int s = connected(context);
	expect(s, 'g');
	ask_over(s, ANSWERS);
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect_end(s);
	close(s);
}

/* Several processes accept from one listener, like a server with a process pool. */
static void before_accept(struct context *context)
{
	enum { CHILDREN = 4 };
	pid_t children[CHILDREN];
	for (int i = 0; i < CHILDREN; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (children[i] == 0) {
			int s = accepted(context);
			_exit(answer(s) == ANSWERS ? 0 : 1);
		}
	}
	for (int i = 0; i < CHILDREN; i++)
		reap(children[i]);
}

/* Clients that are child processes of one program. */
static void ask_by_children(struct context *context)
{
	enum { CHILDREN = 4 };
	pid_t children[CHILDREN];
	for (int i = 0; i < CHILDREN; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (children[i] == 0) {
			int s = connected(context);
			ask_over(s, ANSWERS);
			_exit(0);
		}
	}
	for (int i = 0; i < CHILDREN; i++)
		reap(children[i]);
}

/* A child exits, which closes its copy of the descriptor. The parent continues to use the connection,
   because closing a copy must not end the connection. */
static void inherited(struct context *context)
{
	int s = accepted(context);
	expect(s, 'b');
	for (int i = 0; i < 3; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0)
			_exit(0);
		reap(child);
		send_byte(s, 'c');
		expect(s, 'd');
	}
	/* A copy outlives the parent's descriptor. The connection ends only when the copy is closed. */
	int ends[2];
	CHECK(pipe(ends) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(ends[1]);
		char byte;
		read(ends[0], &byte, 1);
		_exit(0);
	}
	close(ends[0]);
	close(s);
	int other = accepted_cold(context);
	expect(other, 'n');
	close(ends[1]);
	reap(child);
	close(other);
}

static void inherited_client(struct context *context)
{
	int s = connected(context);
	send_byte(s, 'b');
	for (int i = 0; i < 3; i++) {
		expect(s, 'c');
		send_byte(s, 'd');
	}
	struct pollfd wait = {.fd = s, .events = POLLIN};
	show("ends too early", poll(&wait, 1, 100));
	int other = connected_cold(context);
	send_byte(other, 'n');
	expect_end(s);
	close(s);
	expect_end(other);
}

/* Parent and child use the connection alternately. The bytes that each of them writes must arrive. */
static void in_turn(struct context *context)
{
	int s = accepted(context);
	for (int i = 0; i < 4; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			ask_over(s, 3);
			_exit(0);
		}
		reap(child);
		ask_over(s, 2);
	}
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect_end(s);
	close(s);
}

static void in_turn_client(struct context *context)
{
	int s = connected(context);
	show("answers", answer(s));
	close(s);
}

/* The connection is standard input and output of another program, as with inetd. */
static void as_standard(struct context *context, bool by_vfork)
{
	int s = accepted(context);
	send_byte(s, 'g');
	fflush(stdout);
	pid_t child = by_vfork ? vfork() : fork();
	CHECK(child >= 0);
	if (child == 0) {
		dup2(s, 0);
		dup2(s, 1);
		close(s);
		execlp("cat", "cat", NULL);
		_exit(127);
	}
	close(s);
	reap(child);
}

static void executed(struct context *context)
{
	as_standard(context, false);
}

static void executed_by_vfork(struct context *context)
{
	as_standard(context, true);
}

/* A child replaces itself by another program with exec. The program continues to use the connection. */
static void replaced(struct context *context)
{
	int s = accepted(context);
	send_byte(s, 'g');
	printf("done\n");
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(dup2(s, 0) == 0);
		CHECK(dup2(s, 1) == 1);
		close(s);
		execlp("sh", "sh", "-c", "exec cat", NULL);
	}
	close(s);
	reap(child);
}

/* A descriptor with FD_CLOEXEC is closed on exec. */
static void closed_on_exec(struct context *context)
{
	int s = accept4(context->listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(s >= 0);
	warm_up(context, s, true);
	expect(s, 'b');
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		execlp("sleep", "sleep", "20", NULL);
		_exit(127);
	}
	usleep(100000);
	close(s);
	int other = accepted_cold(context);
	expect(other, 'n');
	/* Although the other program is alive, the connection must have ended. */
	CHECK(kill(child, SIGKILL) == 0);
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	show("signal", WTERMSIG(status));
}

static void closed_on_exec_client(struct context *context)
{
	int s = connected(context);
	send_byte(s, 'b');
	expect_end(s);
	int other = connected_cold(context);
	send_byte(other, 'n');
	expect_end(other);
}

SUBJECTS({"after_accept", after_accept, ask_three_times}, {"in_mid_stream", in_mid_stream, ask_when_signalled},
		 {"before_accept", before_accept, ask_by_children}, {"inherited", inherited, inherited_client},
		 {"in_turn", in_turn, in_turn_client}, {"executed", executed, ask_when_signalled},
		 {"executed_by_vfork", executed_by_vfork, ask_when_signalled}, {"replaced", replaced, ask_when_signalled},
		 {"closed_on_exec", closed_on_exec, closed_on_exec_client});
