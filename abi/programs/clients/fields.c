/* Fields of public structures that programs read directly, and limits that they query. */
#include "pair.h"

static void completion_events_are_counted(struct device *device)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device->context);
	CHECK(channel);
	struct ibv_cq *cq = ibv_create_cq(device->context, 16, NULL, channel, 0);
	CHECK(cq && cq->comp_events_completed == 0);
	struct both both = make_both(device, 4096);
	struct ibv_qp *qp = make_queue_pair(device, cq, 4);
	struct name name = name_of(device, qp, both.mr);
	connect_queue_pair(qp, &name, &name);
	for (uint32_t round = 1; round <= 3; round++) {
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		CHECK(post_write(qp, both.mr, 16, &name, round) == 0);
		struct ibv_cq *found;
		void *context;
		CHECK(ibv_get_cq_event(channel, &found, &context) == 0 && found == cq);
		ibv_ack_cq_events(cq, 1);
		CHECK(cq->comp_events_completed == round);
		CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
	}
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	destroy_both(&both);
}

static void asynchronous_events_are_counted(struct device *device)
{
	struct both both = make_both(device, 4096);
	struct name wrong = both.name[1];
	wrong.key ^= 0x5a5a00;
	CHECK(post_write(both.qp[0], both.mr, 16, &wrong, 1) == 0);
	CHECK(next_completion(both.cq).status == IBV_WC_REM_ACCESS_ERR);
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(device->context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == both.qp[1]);
	CHECK(both.qp[1]->events_completed == 0);
	ibv_ack_async_event(&event);
	CHECK(both.qp[1]->events_completed == 1);
	destroy_both(&both);
}

/* The device accepts a message of the maximum length that the port reports. (The message fails
   later because its memory does not exist.) */
static void the_longest_message_is_as_long_as_the_port_reports(struct device *device)
{
	struct ibv_port_attr port;
	CHECK(ibv_query_port(device->context, 1, &port) == 0);
	struct both both = make_both(device, 4096);
	CHECK(post_send(both.qp[0], both.mr, 0, port.max_msg_sz + 1, 1) != 0);
	CHECK(post_send(both.qp[0], both.mr, 0, port.max_msg_sz, 2) == 0);
	struct ibv_wc wc = next_completion(both.cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_LOC_PROT_ERR);
	destroy_both(&both);
}

int main(int count, char **words)
{
	(void)count;
	struct device device = open_device();
	if (strcmp(words[1], "completions") == 0)
		completion_events_are_counted(&device);
	else if (strcmp(words[1], "events") == 0)
		asynchronous_events_are_counted(&device);
	else
		the_longest_message_is_as_long_as_the_port_reports(&device);
	printf("done\n");
	return 0;
}
