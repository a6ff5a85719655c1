/* Limits that a device grants to a program that has requested low limits. A strict device must grant the
   same limits as an adapter, and a lenient device must grant higher limits. Usage: strict strict|lenient */
#include "pair.h"

static enum ibv_event_type next_event(struct ibv_context *context, struct ibv_async_event *event)
{
	alarm(60);
	CHECK(ibv_get_async_event(context, event) == 0);
	alarm(0);
	return event->event_type;
}

int main(int argc, char **argv)
{
	enum { DEPTH = 8, ENTRIES = 4 };
	int strict = argc > 1 && strcmp(argv[1], "strict") == 0;
	struct device device = open_device();
	static char bytes[8192];
	struct ibv_mr *mr =
		ibv_reg_mr(device.domain, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	struct ibv_cq *cq[2] = {ibv_create_cq(device.context, ENTRIES, NULL, NULL, 0),
				ibv_create_cq(device.context, 64, NULL, NULL, 0)};
	CHECK(cq[0] && cq[1] && cq[0]->cqe == ENTRIES);
	struct ibv_qp *qp[2];
	struct name name[2];
	for (int i = 0; i < 2; i++) {
		qp[i] = make_queue_pair(&device, cq[i], DEPTH);
		name[i] = name_of(&device, qp[i], mr);
	}
	for (int i = 0; i < 2; i++)
		connect_queue_pair(qp[i], &name[i], &name[1 - i]);

	/* The program requested no inline bytes. */
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp[0], &attributes, IBV_QP_CAP, &init) == 0);
	CHECK(init.cap.max_send_wr == DEPTH && init.cap.max_recv_wr == DEPTH);
	CHECK(strict ? init.cap.max_inline_data == 0 : init.cap.max_inline_data > 0);
	struct ibv_sge piece = {.addr = (uintptr_t)bytes, .length = 8};
	struct ibv_send_wr request = {
		.sg_list = &piece,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = name[1].address + 4096, .rkey = name[1].key},
	};
	struct ibv_send_wr *bad;
	CHECK(ibv_post_send(qp[0], &request, &bad) == (strict ? EINVAL : 0));
	if (!strict)
		CHECK(next_completion(cq[0]).status == IBV_WC_SUCCESS);

	/* Posts more signalled work than the completion queue holds. */
	for (int i = 0; i < DEPTH; i++)
		CHECK(post_write(qp[0], mr, 16, &name[1], i) == 0);
	CHECK(post_write(qp[0], mr, 16, &name[1], DEPTH) == ENOMEM);
	struct ibv_wc wc;
	if (!strict) {
		for (int i = 0; i < DEPTH; i++) {
			wc = next_completion(cq[0]);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i);
		}
		printf("done\n");
		return 0;
	}
	struct ibv_async_event event;
	CHECK(next_event(device.context, &event) == IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == cq[0]);
	ibv_ack_async_event(&event);
	CHECK(next_event(device.context, &event) == IBV_EVENT_QP_FATAL);
	CHECK(event.element.qp == qp[0]);
	ibv_ack_async_event(&event);
	CHECK(ibv_query_qp(qp[0], &attributes, IBV_QP_STATE, &init) == 0);
	CHECK(attributes.qp_state == IBV_QPS_ERR);
	/* A poll must return the completions from before the overflow, and no further completions. */
	for (int i = 0; i < ENTRIES; i++) {
		wc = next_completion(cq[0]);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i);
	}
	CHECK(ibv_poll_cq(cq[0], 1, &wc) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(qp[i]) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_cq(cq[i]) == 0);
	printf("done\n");
	return 0;
}
