/* Processes that fork, unload the library, exit, get signals or are killed while they use queue pairs.
 * Usage: process fork|unload|exit|signals|killed */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "pair.h"

/* A child opens its own device while its parent uses one. */
static void test_fork(void)
{
	struct device device = open_device();
	struct both both = make_both(&device, 4096);
	send_one(&both, 1);
	for (int child = 0; child < 3; child++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			struct device own = open_device();
			struct both of_child = make_both(&own, 4096);
			for (uint8_t value = 0; value < 10; value++)
				send_one(&of_child, value);
			destroy_both(&of_child);
			exit(0);
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(status == 0);
		send_one(&both, (uint8_t)(2 + child));
	}
	destroy_both(&both);
}

/* A program that loads the library with dlopen may unload it, although the library's threads
   run. */
static void test_unload(void)
{
	for (int turn = 0; turn < 20; turn++) {
		void *library = dlopen("libibverbs.so.1", RTLD_NOW);
		CHECK(library);
		CHECK(dlsym(library, "ibv_get_device_list"));
		struct device device = open_device();
		struct both both = make_both(&device, 4096);
		send_one(&both, (uint8_t)turn);
		if (turn % 2)
			destroy_both(&both);
		CHECK(dlclose(library) == 0);
	}
}

struct meeting {
	pthread_barrier_t barrier;
	struct name names[2];
};

static struct meeting *meet(void)
{
	struct meeting *meeting =
		mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(meeting != MAP_FAILED);
	pthread_barrierattr_t attributes;
	CHECK(pthread_barrierattr_init(&attributes) == 0);
	CHECK(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
	CHECK(pthread_barrier_init(&meeting->barrier, &attributes, 2) == 0);
	return meeting;
}

#define BYTES (16u << 20)

static struct both join(struct meeting *meeting, struct device *device, int self)
{
	struct both both = {.cq = ibv_create_cq(device->context, 256, NULL, NULL, 0)};
	CHECK(both.cq);
	void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	both.mr = ibv_reg_mr(device->domain, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(both.mr);
	both.qp[0] = make_queue_pair(device, both.cq, 64);
	meeting->names[self] = name_of(device, both.qp[0], both.mr);
	pthread_barrier_wait(&meeting->barrier);
	connect_queue_pair(both.qp[0], &meeting->names[self], &meeting->names[1 - self]);
	return both;
}

/* Writes until the peer has ended. After that, all outstanding work must fail within two
   seconds. */
static void write_until_peer_is_gone(struct meeting *meeting, struct both *both, void (*end)(void *), void *argument)
{
	int outstanding = 0;
	uint64_t completed = 0, ended_at = 0, failed = 0;
	CHECK(post_receive(both->qp[0], both->mr, 0, 64, 1000) == 0);
	for (;;) {
		while (!failed && outstanding < 16) {
			CHECK(post_write(both->qp[0], both->mr, 1 << 20, &meeting->names[1], completed) == 0);
			outstanding++;
		}
		struct ibv_wc wc;
		int found = ibv_poll_cq(both->cq, 1, &wc);
		CHECK(found >= 0);
		if (ended_at)
			CHECK(now_ns() - ended_at < 2000000000u);
		if (!found)
			continue;
		if (wc.status == IBV_WC_SUCCESS) {
			CHECK(!failed);
			outstanding--;
			if (++completed == 32) {
				end(argument);
				ended_at = now_ns();
			}
			continue;
		}
		CHECK(ended_at);
		if (!failed++)
			CHECK(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR);
		else
			CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
		if (wc.wr_id != 1000)
			outstanding--;
		/* Sixteen writes and the receive have failed. */
		if (failed == 17)
			break;
	}
	CHECK(outstanding == 0);
	printf("all work failed %lu ms after the peer's end\n", (now_ns() - ended_at) / 1000000);
}

static void kill_peer(void *pid)
{
	CHECK(kill(*(pid_t *)pid, SIGKILL) == 0);
}

static void signal_peer(void *pid)
{
	CHECK(kill(*(pid_t *)pid, SIGUSR1) == 0);
}

static volatile sig_atomic_t is_signalled;

static void on_signal(int signal)
{
	(void)signal;
	is_signalled = 1;
}

/* The peer is killed, or calls exit() between two verbs calls. */
static void test_end(int is_killed)
{
	struct meeting *meeting = meet();
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		signal(SIGUSR1, on_signal);
		struct device device = open_device();
		struct both both = join(meeting, &device, 1);
		struct ibv_wc wc;
		while (!is_signalled)
			CHECK(ibv_poll_cq(both.cq, 1, &wc) == 0);
		exit(0);
	}
	struct device device = open_device();
	struct both both = join(meeting, &device, 0);
	write_until_peer_is_gone(meeting, &both, is_killed ? kill_peer : signal_peer, &pid);
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(is_killed || status == 0);
	CHECK(ibv_destroy_qp(both.qp[0]) == 0);
}

static pid_t main_thread;
static volatile sig_atomic_t alarms, interrupts, elsewhere;

static void count_signal(int signal)
{
	if ((pid_t)syscall(SYS_gettid) != main_thread)
		elsewhere = 1;
	if (signal == SIGALRM)
		alarms++;
	else
		interrupts++;
}

/* Signals arrive in the program's thread. Work must continue between the signals. */
static void test_signals(void)
{
	main_thread = (pid_t)syscall(SYS_gettid);
	struct sigaction action = {.sa_handler = count_signal};
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(sigaction(SIGINT, &action, NULL) == 0);
	struct device device = open_device();
	struct both both = make_both(&device, 4096);
	struct itimerval timer = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}};
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	for (unsigned turn = 0; alarms < 200; turn++) {
		send_one(&both, (uint8_t)turn);
		if (turn % 64 == 0)
			CHECK(kill(getpid(), SIGINT) == 0);
	}
	timer = (struct itimerval){0};
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	CHECK(interrupts > 0);
	CHECK(!elsewhere);
	destroy_both(&both);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	if (!strcmp(argv[1], "fork"))
		test_fork();
	else if (!strcmp(argv[1], "unload"))
		test_unload();
	else if (!strcmp(argv[1], "exit"))
		test_end(0);
	else if (!strcmp(argv[1], "killed"))
		test_end(1);
	else if (!strcmp(argv[1], "signals"))
		test_signals();
	else
		CHECK(!"a mode");
	return 0;
}
