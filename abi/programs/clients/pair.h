/* Shared parts of the clients: a device, queue pairs, and the data that a peer needs to connect. */
#pragma once
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__,         \
				#condition, errno, strerror(errno));                              \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

/* The data that a peer needs to connect and to write. */
struct name {
	union ibv_gid gid;
	uint32_t number;
	uint32_t psn;
	uint64_t address;
	uint32_t key;
};

struct device {
	struct ibv_context *context;
	struct ibv_pd *domain;
};

static inline uint64_t now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static inline struct device open_device(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count > 0);
	struct device device = {.context = ibv_open_device(list[0])};
	CHECK(device.context);
	ibv_free_device_list(list);
	device.domain = ibv_alloc_pd(device.context);
	CHECK(device.domain);
	return device;
}

static inline struct ibv_qp *make_queue_pair(struct device *device, struct ibv_cq *cq, int depth)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(device->domain, &init);
	CHECK(qp);
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	CHECK(ibv_modify_qp(qp, &attributes, mask) == 0);
	return qp;
}

static inline struct name name_of(struct device *device, struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct name name = {.number = qp->qp_num, .psn = qp->qp_num & 0xffffff};
	CHECK(ibv_query_gid(device->context, 1, 0, &name.gid) == 0);
	if (mr) {
		name.address = (uintptr_t)mr->addr;
		name.key = mr->rkey;
	}
	return name;
}

static inline void connect_with_patience(struct ibv_qp *qp, const struct name *own, const struct name *peer,
					 uint8_t retries, uint8_t not_ready_retries)
{
	struct ibv_qp_attr ready = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->number,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 64}},
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &ready, mask) == 0);
	struct ibv_qp_attr send = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = retries,
		.rnr_retry = not_ready_retries,
		.sq_psn = own->psn,
		.max_rd_atomic = 4,
	};
	mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	       IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(qp, &send, mask) == 0);
}

static inline void connect_queue_pair(struct ibv_qp *qp, const struct name *own, const struct name *peer)
{
	connect_with_patience(qp, own, peer, 7, 7);
}

static inline int post_send(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t offset, uint32_t length, uint64_t id)
{
	struct ibv_sge piece = {.addr = (uintptr_t)mr->addr + offset, .length = length, .lkey = mr->lkey};
	struct ibv_send_wr request = {
		.wr_id = id, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	return ibv_post_send(qp, &request, &bad);
}

static inline int post_write(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t length, const struct name *peer,
			     uint64_t id)
{
	struct ibv_sge piece = {.addr = (uintptr_t)mr->addr, .length = length, .lkey = mr->lkey};
	struct ibv_send_wr request = {
		.wr_id = id,
		.sg_list = &piece,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = peer->address, .rkey = peer->key},
	};
	struct ibv_send_wr *bad;
	return ibv_post_send(qp, &request, &bad);
}

static inline int post_receive(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t offset, uint32_t length, uint64_t id)
{
	struct ibv_sge piece = {.addr = (uintptr_t)mr->addr + offset, .length = length, .lkey = mr->lkey};
	struct ibv_recv_wr request = {.wr_id = id, .sg_list = &piece, .num_sge = 1};
	struct ibv_recv_wr *bad;
	return ibv_post_recv(qp, &request, &bad);
}

/* Returns the next completion; fails if none arrives within 60 s. */
static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	uint64_t until = now_ns() + 60000000000u;
	int found;
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(now_ns() < until);
	CHECK(found == 1);
	return wc;
}

/* Two queue pairs of this process, connected to each other; both use `cq`. */
struct both {
	struct ibv_qp *qp[2];
	struct name name[2];
	struct ibv_mr *mr;
	struct ibv_cq *cq;
};

static inline struct both make_both(struct device *device, size_t bytes)
{
	struct both both = {.cq = ibv_create_cq(device->context, 256, NULL, NULL, 0)};
	CHECK(both.cq);
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC;
	both.mr = ibv_reg_mr(device->domain, memory, bytes, access);
	CHECK(both.mr);
	for (int i = 0; i < 2; i++) {
		both.qp[i] = make_queue_pair(device, both.cq, 64);
		both.name[i] = name_of(device, both.qp[i], both.mr);
	}
	for (int i = 0; i < 2; i++)
		connect_queue_pair(both.qp[i], &both.name[i], &both.name[1 - i]);
	return both;
}

/* Sends a message from one queue pair to the other and checks that it arrived. */
static inline void send_one(struct both *both, uint8_t value)
{
	uint8_t *memory = both->mr->addr;
	memory[0] = value;
	memory[64] = (uint8_t)~value;
	CHECK(post_receive(both->qp[1], both->mr, 64, 64, 2) == 0);
	CHECK(post_send(both->qp[0], both->mr, 0, 64, 1) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_completion(both->cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
	CHECK(memory[64] == value);
}

static inline void destroy_both(struct both *both)
{
	CHECK(ibv_destroy_qp(both->qp[0]) == 0);
	CHECK(ibv_destroy_qp(both->qp[1]) == 0);
	CHECK(ibv_destroy_cq(both->cq) == 0);
	void *memory = both->mr->addr;
	size_t bytes = both->mr->length;
	CHECK(ibv_dereg_mr(both->mr) == 0);
	munmap(memory, bytes);
}
