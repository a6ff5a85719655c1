/* Posts that an iWARP device refuses: immediates and atomics. The queue pair is in the error state, in
   which every send that the device carries can be posted. */
#include "pair.h"

int main(void)
{
	struct device device = open_device();
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	CHECK(cq);
	static uint64_t bytes[1];
	struct ibv_mr *mr = ibv_reg_mr(device.domain, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(device.domain, &init);
	CHECK(qp);
	struct ibv_qp_attr over = {.qp_state = IBV_QPS_ERR};
	CHECK(ibv_modify_qp(qp, &over, IBV_QP_STATE) == 0);
	CHECK(post_send(qp, mr, 0, 8, 1) == 0);
	CHECK(next_completion(cq).status == IBV_WC_WR_FLUSH_ERR);

	const enum ibv_wr_opcode refused[] = {
		IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_SEND_WITH_IMM,
		IBV_WR_ATOMIC_CMP_AND_SWP,
		IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		struct ibv_sge piece = {.addr = (uintptr_t)bytes, .length = sizeof bytes, .lkey = mr->lkey};
		struct ibv_send_wr request = {.sg_list = &piece, .num_sge = 1, .opcode = refused[i]};
		struct ibv_send_wr *bad = NULL;
		CHECK(ibv_post_send(qp, &request, &bad) == EINVAL);
		CHECK(bad == &request);
	}
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	puts("done");
	return 0;
}
