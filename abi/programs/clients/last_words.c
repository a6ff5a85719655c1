/* A process receives a message, posts several messages, and calls _exit immediately. All of them
 * must arrive, because an adapter would send them after the process has ended. */
#include "pair.h"
#include <sys/socket.h>
#include <sys/wait.h>

enum { MESSAGES = 8, ROUNDS = 40 };

static char bytes[4096];

struct end {
	struct device device;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static void make_end(struct end *end, int fd)
{
	end->cq = ibv_create_cq(end->device.context, 64, NULL, NULL, 0);
	CHECK(end->cq);
	end->qp = make_queue_pair(&end->device, end->cq, 2 * MESSAGES);
	struct name own = name_of(&end->device, end->qp, end->mr), peer;
	CHECK(write(fd, &own, sizeof own) == sizeof own);
	CHECK(read(fd, &peer, sizeof peer) == sizeof peer);
	for (int i = 0; i < MESSAGES; i++)
		CHECK(post_receive(end->qp, end->mr, 64 * i, 64, i) == 0);
	connect_queue_pair(end->qp, &own, &peer);
}

static struct end open_end(void)
{
	struct end end = {.device = open_device()};
	end.mr = ibv_reg_mr(end.device.domain, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
	CHECK(end.mr);
	return end;
}

int main(int argc, char **argv)
{
	if (argc > 2 && strcmp(argv[1], "child") == 0) {
		struct end end = open_end();
		make_end(&end, atoi(argv[2]));
		CHECK(next_completion(end.cq).status == IBV_WC_SUCCESS);
		for (int i = 0; i < MESSAGES; i++)
			CHECK(post_send(end.qp, end.mr, 0, 64, i) == 0);
		_exit(7);
	}
	struct end end = open_end();
	for (int round = 0; round < ROUNDS; round++) {
		int fd[2];
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			char number[16];
			snprintf(number, sizeof number, "%d", fd[1]);
			execl("/proc/self/exe", argv[0], "child", number, NULL);
			_exit(1);
		}
		close(fd[1]);
		make_end(&end, fd[0]);
		CHECK(post_send(end.qp, end.mr, 0, 64, 99) == 0);
		int received = 0;
		while (received < MESSAGES) {
			struct ibv_wc wc = next_completion(end.cq);
			CHECK(wc.status == IBV_WC_SUCCESS);
			received += wc.opcode == IBV_WC_RECV;
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
		CHECK(ibv_destroy_qp(end.qp) == 0 && ibv_destroy_cq(end.cq) == 0);
		close(fd[0]);
	}
	printf("done: %d rounds\n", ROUNDS);
	return 0;
}
