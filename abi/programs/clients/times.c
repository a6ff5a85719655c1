/* Timestamps of completions, by the device's clock and by the wall clock. */
#include "pair.h"

static uint64_t raw_clock(struct ibv_context *context)
{
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	CHECK(ibv_query_rt_values_ex(context, &values) == 0);
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_sec == 0);
	return (uint64_t)values.raw_clock.tv_nsec;
}

static uint64_t wall_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_REALTIME, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int main(void)
{
	enum { ROUNDS = 100 };
	struct device device = open_device();
	struct ibv_device_attr_ex known;
	CHECK(ibv_query_device_ex(device.context, NULL, &known) == 0);
	CHECK(known.completion_timestamp_mask == UINT64_MAX && known.hca_core_clock == 1000000);
	struct ibv_cq_init_attr_ex init = {
		.cqe = 64,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(device.context, &init);
	CHECK(cq);
	static char bytes[8192];
	struct ibv_mr *mr =
		ibv_reg_mr(device.domain, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	struct ibv_qp *qp[2];
	struct name name[2];
	struct ibv_cq *plain = ibv_create_cq(device.context, 64, NULL, NULL, 0);
	CHECK(plain);
	for (int i = 0; i < 2; i++) {
		qp[i] = make_queue_pair(&device, i == 0 ? ibv_cq_ex_to_cq(cq) : plain, 8);
		name[i] = name_of(&device, qp[i], mr);
	}
	for (int i = 0; i < 2; i++)
		connect_queue_pair(qp[i], &name[i], &name[1 - i]);

	uint64_t last = raw_clock(device.context);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t wall = wall_ns();
		CHECK(post_write(qp[0], mr, 16, &name[1], round) == 0);
		struct ibv_poll_cq_attr attributes = {};
		uint64_t until = now_ns() + 60000000000u;
		int found;
		while ((found = ibv_start_poll(cq, &attributes)) == ENOENT)
			CHECK(now_ns() < until);
		CHECK(found == 0 && cq->status == IBV_WC_SUCCESS);
		uint64_t time = ibv_wc_read_completion_ts(cq);
		CHECK(time >= last && time <= raw_clock(device.context));
		/* Permits a difference of an hour, because the host may adjust its wall clock during the test. */
		uint64_t at = ibv_wc_read_completion_wallclock_ns(cq);
		CHECK(at + 3600000000000u > wall && at < wall_ns() + 3600000000000u);
		last = time;
		ibv_end_poll(cq);
	}
	/* A queue that was created without timestamps has no functions that read them. If a program requests
	   fields that the device does not have, the creation fails. */
	init.wc_flags = IBV_WC_STANDARD_FLAGS;
	struct ibv_cq_ex *without = ibv_create_cq_ex(device.context, &init);
	CHECK(without && !without->read_completion_ts && !without->read_completion_wallclock_ns);
	init.wc_flags = IBV_WC_EX_WITH_CVLAN;
	CHECK(!ibv_create_cq_ex(device.context, &init));
	printf("done: %d rounds\n", ROUNDS);
	return 0;
}
