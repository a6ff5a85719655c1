/* A program arms completion queues that already contain completions. Programs that sleep on the
   descriptor of a completion queue do this. */
#include "pair.h"
#include <poll.h>

/* Returns whether an event of the channel arrives within the time limit. */
static int take_event(struct ibv_comp_channel *channel, int timeout_ms)
{
	struct pollfd wanted = {.fd = channel->fd, .events = POLLIN};
	if (poll(&wanted, 1, timeout_ms) < 1)
		return 0;
	struct ibv_cq *cq;
	void *context;
	CHECK(ibv_get_cq_event(channel, &cq, &context) == 0);
	ibv_ack_cq_events(cq, 1);
	return 1;
}

int main(void)
{
	enum { ROUNDS = 2000 };
	struct device device = open_device();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device.context);
	CHECK(channel);
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	struct name name[2];
	static char bytes[8192];
	struct ibv_mr *mr =
		ibv_reg_mr(device.domain, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	for (int i = 0; i < 2; i++) {
		CHECK((cq[i] = ibv_create_cq(device.context, 64, NULL, channel, 0)));
		qp[i] = make_queue_pair(&device, cq[i], 8);
		name[i] = name_of(&device, qp[i], mr);
	}
	for (int i = 0; i < 2; i++)
		connect_queue_pair(qp[i], &name[i], &name[1 - i]);

	/* Arms the queue after the completion has arrived in the queue. */
	CHECK(post_receive(qp[1], mr, 64, 64, 2) == 0);
	CHECK(post_send(qp[0], mr, 0, 16, 1) == 0);
	CHECK(next_completion(cq[1]).status == IBV_WC_SUCCESS);
	CHECK(post_write(qp[1], mr, 16, &name[0], 3) == 0);
	CHECK(next_completion(cq[1]).status == IBV_WC_SUCCESS);
	/* The write arrived after the acknowledgement of the send, so the completion of the send is
	   already in the queue. */
	CHECK(ibv_req_notify_cq(cq[0], 0) == 0);
	CHECK(take_event(channel, 60000));
	CHECK(next_completion(cq[0]).status == IBV_WC_SUCCESS);
	CHECK(!take_event(channel, 0));

	/* Arms two completion queues of one channel. */
	for (int i = 0; i < 2; i++)
		CHECK(ibv_req_notify_cq(cq[i], 0) == 0);
	CHECK(post_receive(qp[1], mr, 64, 64, 2) == 0);
	CHECK(post_send(qp[0], mr, 0, 16, 1) == 0);
	CHECK(take_event(channel, 60000));
	CHECK(take_event(channel, 60000));
	for (int i = 0; i < 2; i++)
		CHECK(next_completion(cq[i]).status == IBV_WC_SUCCESS);

	/* Arms alternately before and after the completion arrives. */
	for (int round = 0; round < ROUNDS; round++) {
		if (round % 2)
			CHECK(ibv_req_notify_cq(cq[0], 0) == 0);
		CHECK(post_write(qp[0], mr, 16, &name[1], 4) == 0);
		if (round % 2 == 0)
			CHECK(ibv_req_notify_cq(cq[0], 0) == 0);
		CHECK(take_event(channel, 60000));
		CHECK(next_completion(cq[0]).status == IBV_WC_SUCCESS);
		CHECK(!take_event(channel, 0));
	}
	printf("done: %d rounds\n", ROUNDS);
	return 0;
}
