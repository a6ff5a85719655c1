/* Results of wrong verbs calls and of work requests that must fail. Usage: bad NAME, or bad list. */
#include "pair.h"

static struct device device;
static struct both both;

/* Polls until the completion of the work request `id` arrives, and returns its status. */
static enum ibv_wc_status status_of(uint64_t id)
{
	for (;;) {
		struct ibv_wc wc = next_completion(both.cq);
		if (wc.wr_id == id)
			return wc.status;
	}
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attributes, IBV_QP_STATE, &init) == 0);
	CHECK(attributes.qp_state == qp->state);
	return attributes.qp_state;
}

static int post(struct ibv_qp *qp, struct ibv_send_wr request)
{
	struct ibv_send_wr *bad = NULL;
	int result = ibv_post_send(qp, &request, &bad);
	CHECK(!result == !bad);
	CHECK(!bad || bad == &request);
	return result;
}

static struct ibv_sge piece(uint64_t offset, uint32_t length)
{
	return (struct ibv_sge){.addr = (uintptr_t)both.mr->addr + offset, .length = length, .lkey = both.mr->lkey};
}

static struct ibv_send_wr write_of(struct ibv_sge *sge, uint64_t id)
{
	return (struct ibv_send_wr){
		.wr_id = id,
		.sg_list = sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = both.name[1].address, .rkey = both.name[1].key},
	};
}

/* Checks that the request fails with `status`. All earlier work must succeed, all later work must
 * be flushed, and the queue pair must be in ERR. */
static void fails_with(struct ibv_send_wr request, enum ibv_wc_status status)
{
	struct ibv_sge good = piece(0, 8);
	request.wr_id = 12;
	CHECK(post(both.qp[0], write_of(&good, 11)) == 0);
	CHECK(post(both.qp[0], request) == 0);
	CHECK(post(both.qp[0], write_of(&good, 13)) == 0);
	enum ibv_wc_status found[3];
	for (unsigned i = 0; i < 3; i++)
		found[i] = status_of(11 + i);
	fprintf(stderr, "statuses %d %d %d\n", found[0], found[1], found[2]);
	CHECK(found[0] == IBV_WC_SUCCESS);
	CHECK(found[1] == status);
	CHECK(found[2] == IBV_WC_WR_FLUSH_ERR);
	CHECK(state_of(both.qp[0]) == IBV_QPS_ERR);
}

static void wrong_local_key(void)
{
	struct ibv_sge sge = piece(0, 8);
	sge.lkey ^= 0x5a5a5a;
	fails_with(write_of(&sge, 0), IBV_WC_LOC_PROT_ERR);
}

static void local_bounds(void)
{
	struct ibv_sge sge = piece(4090, 8);
	fails_with(write_of(&sge, 0), IBV_WC_LOC_PROT_ERR);
}

static void wrong_remote_key(void)
{
	struct ibv_sge sge = piece(0, 8);
	struct ibv_send_wr request = write_of(&sge, 0);
	request.wr.rdma.rkey ^= 0x5a5a5a;
	fails_with(request, IBV_WC_REM_ACCESS_ERR);
}

static void remote_bounds(void)
{
	struct ibv_sge sge = piece(0, 8);
	struct ibv_send_wr request = write_of(&sge, 0);
	request.wr.rdma.remote_addr += 4090;
	fails_with(request, IBV_WC_REM_ACCESS_ERR);
}

static void remote_rights(void)
{
	static char memory[64];
	struct ibv_mr *mr = ibv_reg_mr(device.domain, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_sge sge = piece(0, 8);
	struct ibv_send_wr request = write_of(&sge, 0);
	request.wr.rdma.remote_addr = (uintptr_t)memory;
	request.wr.rdma.rkey = mr->rkey;
	fails_with(request, IBV_WC_REM_ACCESS_ERR);
}

static void other_domain(void)
{
	struct ibv_pd *domain = ibv_alloc_pd(device.context);
	static char memory[64];
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *mr = ibv_reg_mr(domain, memory, sizeof memory, access);
	CHECK(mr);
	struct ibv_sge sge = piece(0, 8);
	struct ibv_send_wr request = write_of(&sge, 0);
	request.wr.rdma.remote_addr = (uintptr_t)memory;
	request.wr.rdma.rkey = mr->rkey;
	fails_with(request, IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(domain) == 0);
}

static void unaligned_atomic(void)
{
	struct ibv_sge sge = piece(0, 8);
	struct ibv_send_wr request = write_of(&sge, 0);
	request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	request.wr.atomic.remote_addr = both.name[1].address + 4;
	request.wr.atomic.rkey = both.name[1].key;
	request.wr.atomic.compare_add = 1;
	fails_with(request, IBV_WC_REM_INV_REQ_ERR);
}

static void message_too_long(void)
{
	CHECK(post_receive(both.qp[1], both.mr, 64, 4, 99) == 0);
	CHECK(post_send(both.qp[0], both.mr, 0, 8, 1) == 0);
	int seen = 0;
	while (seen != 3) {
		struct ibv_wc wc = next_completion(both.cq);
		if (wc.wr_id == 1) {
			CHECK(wc.status == IBV_WC_REM_INV_REQ_ERR);
			seen |= 1;
		} else {
			CHECK(wc.wr_id == 99 && wc.status == IBV_WC_LOC_LEN_ERR);
			seen |= 2;
		}
	}
}

/* The peer posts no receive, so the time to wait for a receive expires. */
static void no_receive(void)
{
	struct ibv_qp *qp[2];
	struct name name[2];
	for (int i = 0; i < 2; i++) {
		qp[i] = make_queue_pair(&device, both.cq, 8);
		name[i] = name_of(&device, qp[i], both.mr);
	}
	for (int i = 0; i < 2; i++)
		connect_with_patience(qp[i], &name[i], &name[1 - i], 7, 1);
	CHECK(post_send(qp[0], both.mr, 0, 8, 1) == 0);
	CHECK(status_of(1) == IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(ibv_destroy_qp(qp[0]) == 0 && ibv_destroy_qp(qp[1]) == 0);
}

/* If there is no peer at this address, the work fails within a time limit that the attributes
   define. */
static void leads_nowhere(struct name peer)
{
	struct ibv_qp *qp = make_queue_pair(&device, both.cq, 8);
	struct name name = name_of(&device, qp, both.mr);
	connect_with_patience(qp, &name, &peer, 3, 7);
	uint64_t begun = now_ns();
	CHECK(post_send(qp, both.mr, 0, 8, 1) == 0);
	CHECK(post_send(qp, both.mr, 0, 8, 2) == 0);
	CHECK(status_of(1) == IBV_WC_RETRY_EXC_ERR);
	CHECK(status_of(2) == IBV_WC_WR_FLUSH_ERR);
	CHECK(now_ns() - begun < 20000000000u);
	CHECK(state_of(qp) == IBV_QPS_ERR);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void number_that_leads_nowhere(void)
{
	struct name peer = both.name[1];
	peer.number ^= 0x7ff;
	leads_nowhere(peer);
}

static void process_that_is_not_there(void)
{
	struct name peer = both.name[1];
	peer.number ^= 0x123000;
	leads_nowhere(peer);
}

static void wrong_states(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = both.cq,
		.recv_cq = both.cq,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(device.domain, &init);
	CHECK(qp && state_of(qp) == IBV_QPS_RESET);
	struct ibv_sge sge = piece(0, 8);
	CHECK(post(qp, write_of(&sge, 1)) == EINVAL);
	CHECK(post_receive(qp, both.mr, 0, 8, 1) == EINVAL);
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_RTS};
	CHECK(ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == EINVAL);
	attributes.qp_state = IBV_QPS_INIT;
	CHECK(ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == EINVAL);
	CHECK(state_of(qp) == IBV_QPS_RESET);
	CHECK(ibv_destroy_qp(qp) == 0);
	qp = make_queue_pair(&device, both.cq, 4);
	CHECK(post(qp, write_of(&sge, 1)) == EINVAL);
	CHECK(post_receive(qp, both.mr, 0, 8, 77) == 0);
	/* In ERR, the queue pair accepts posted work and flushes it. */
	attributes.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == 0);
	CHECK(post(qp, write_of(&sge, 78)) == 0);
	CHECK(post_receive(qp, both.mr, 0, 8, 79) == 0);
	unsigned seen = 0;
	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc = next_completion(both.cq);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id >= 77 && wc.wr_id <= 79);
		CHECK(wc.qp_num == qp->qp_num);
		seen |= 1u << (wc.wr_id - 77);
	}
	CHECK(seen == 7);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void full_queues(void)
{
	struct ibv_sge sge = piece(0, 8);
	struct ibv_send_wr request = write_of(&sge, 1);
	int posted = 0, result;
	while ((result = post(both.qp[0], request)) == 0) {
		posted++;
		CHECK(posted <= 100000);
	}
	CHECK(result == ENOMEM);
	CHECK(posted >= 64);
	for (int i = 0; i < posted; i++)
		CHECK(next_completion(both.cq).status == IBV_WC_SUCCESS);
	CHECK(post(both.qp[0], request) == 0);
	CHECK(next_completion(both.cq).status == IBV_WC_SUCCESS);
	posted = 0;
	while ((result = post_receive(both.qp[0], both.mr, 0, 8, 1)) == 0) {
		posted++;
		CHECK(posted <= 100000);
	}
	CHECK(result == ENOMEM && posted >= 64);
}

static void too_much(void)
{
	struct ibv_sge sge[40];
	for (int i = 0; i < 40; i++)
		sge[i] = piece(0, 1);
	struct ibv_send_wr request = write_of(sge, 1);
	request.num_sge = 40;
	CHECK(post(both.qp[0], request) == EINVAL);
	request.num_sge = -1;
	CHECK(post(both.qp[0], request) == EINVAL);
	request.num_sge = 1;
	sge[0].length = 4096;
	request.send_flags |= IBV_SEND_INLINE;
	CHECK(post(both.qp[0], request) == EINVAL);
	request.send_flags = 0;
	request.opcode = (enum ibv_wr_opcode)77;
	int result = post(both.qp[0], request);
	CHECK(result == EINVAL || result == EOPNOTSUPP);
	struct ibv_qp_init_attr init = {
		.send_cq = both.cq,
		.recv_cq = both.cq,
		.cap = {.max_send_wr = 1 << 30, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	CHECK(!ibv_create_qp(device.domain, &init) && errno == EINVAL);
	init.cap.max_send_wr = 4;
	init.cap.max_inline_data = 1 << 20;
	CHECK(!ibv_create_qp(device.domain, &init) && errno == EINVAL);
	init.cap.max_inline_data = 0;
	init.cap.max_send_sge = 1000;
	CHECK(!ibv_create_qp(device.domain, &init) && errno == EINVAL);
	CHECK(!ibv_create_cq(device.context, 1 << 30, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(device.context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(device.context, 1, NULL, NULL, 1000) && errno == EINVAL);
}

static void memory(void)
{
	static char bytes[64];
	CHECK(!ibv_reg_mr(device.domain, bytes, sizeof bytes, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_mr(device.domain, bytes, sizeof bytes, IBV_ACCESS_REMOTE_ATOMIC) && errno == EINVAL);
	errno = 0;
	CHECK(!ibv_reg_mr(device.domain, (void *)0x1000, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	void *read_only = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(!ibv_reg_mr(device.domain, read_only, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	struct ibv_mr *mr = ibv_reg_mr(device.domain, read_only, 4096, 0);
	CHECK(mr);
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void in_use(void)
{
	CHECK(ibv_dealloc_pd(device.domain) == EBUSY);
	CHECK(ibv_destroy_cq(both.cq) == EBUSY);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device.context);
	CHECK(channel);
	struct ibv_cq *cq = ibv_create_cq(device.context, 1, NULL, channel, 0);
	CHECK(cq);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

static void overrun(void)
{
	struct ibv_cq *cq = ibv_create_cq(device.context, 1, NULL, NULL, 0);
	CHECK(cq);
	int places = cq->cqe;
	struct ibv_qp *qp[2];
	struct name name[2];
	for (int i = 0; i < 2; i++) {
		qp[i] = make_queue_pair(&device, i ? both.cq : cq, 8192);
		name[i] = name_of(&device, qp[i], both.mr);
	}
	for (int i = 0; i < 2; i++)
		connect_queue_pair(qp[i], &name[i], &name[1 - i]);
	for (int i = 0; i < places + 4096; i++) {
		struct ibv_sge sge = piece(0, 8);
		struct ibv_send_wr request = write_of(&sge, 1);
		request.wr.rdma.rkey = name[1].key;
		if (post(qp[0], request))
			break;
	}
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(device.context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq);
	ibv_ack_async_event(&event);
}

static const struct {
	const char *name;
	void (*run)(void);
} checks[] = {
	{"wrong-local-key", wrong_local_key},
	{"local-bounds", local_bounds},
	{"wrong-remote-key", wrong_remote_key},
	{"remote-bounds", remote_bounds},
	{"remote-rights", remote_rights},
	{"other-domain", other_domain},
	{"unaligned-atomic", unaligned_atomic},
	{"message-too-long", message_too_long},
	{"no-receive", no_receive},
	{"number-that-leads-nowhere", number_that_leads_nowhere},
	{"process-that-is-not-there", process_that_is_not_there},
	{"wrong-states", wrong_states},
	{"full-queues", full_queues},
	{"too-much", too_much},
	{"memory", memory},
	{"in-use", in_use},
	{"overrun", overrun},
};

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	unsigned count = sizeof checks / sizeof *checks;
	for (unsigned i = 0; i < count; i++) {
		if (!strcmp(argv[1], "list")) {
			puts(checks[i].name);
		} else if (!strcmp(argv[1], checks[i].name)) {
			device = open_device();
			both = make_both(&device, 4096);
			checks[i].run();
			return 0;
		}
	}
	return strcmp(argv[1], "list") ? 2 : 0;
}
