/* Connects a queue pair with attributes in which only the fields of the mask are initialised. Under
 * valgrind, the library must not read the other fields. */
#include "pair.h"

/* Returns memory that valgrind considers uninitialised. */
static struct ibv_qp_attr *unset(void)
{
	struct ibv_qp_attr *attributes = malloc(sizeof(*attributes));
	CHECK(attributes);
	return attributes;
}

int main(void)
{
	struct device device = open_device();
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(device.domain, &init);
	CHECK(qp);
	struct name name = name_of(&device, qp, NULL);
	struct ibv_qp_attr *attributes = unset();
	attributes->qp_state = IBV_QPS_INIT;
	attributes->pkey_index = 0;
	attributes->port_num = 1;
	attributes->qp_access_flags = IBV_ACCESS_LOCAL_WRITE;
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	CHECK(ibv_modify_qp(qp, attributes, mask) == 0);
	free(attributes);
	attributes = unset();
	attributes->qp_state = IBV_QPS_RTR;
	attributes->path_mtu = IBV_MTU_1024;
	attributes->dest_qp_num = name.number;
	attributes->rq_psn = name.psn;
	attributes->max_dest_rd_atomic = 1;
	attributes->min_rnr_timer = 12;
	attributes->ah_attr = (struct ibv_ah_attr){
		.is_global = 1, .port_num = 1, .grh = {.dgid = name.gid, .hop_limit = 64}};
	mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, attributes, mask) == 0);
	free(attributes);
	attributes = unset();
	attributes->qp_state = IBV_QPS_RTS;
	attributes->timeout = 14;
	attributes->retry_cnt = 7;
	attributes->rnr_retry = 7;
	attributes->sq_psn = name.psn;
	attributes->max_rd_atomic = 1;
	mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	       IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(qp, attributes, mask) == 0);
	free(attributes);
	attributes = unset();
	attributes->qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, attributes, IBV_QP_STATE) == 0);
	free(attributes);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	return 0;
}
