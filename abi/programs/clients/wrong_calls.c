/* Wrong calls. Each must fail as the manual pages describe, and must not crash the program. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define EXPECT(condition)                                                                     \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno);                  \
            failures++;                                                                       \
        }                                                                                     \
    } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[4096];

static struct ibv_qp *make(enum ibv_qp_type type, struct ibv_qp_cap cap)
{
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = type};
    return ibv_create_qp(pd, &init);
}

static void nothing_where_something_must_be(void)
{
    struct ibv_cq *event_cq;
    void *event_context;
    struct ibv_async_event event = {.event_type = IBV_EVENT_QP_FATAL};
    EXPECT(ibv_open_device(NULL) == NULL && errno == EINVAL);
    EXPECT(ibv_close_device(NULL) == EINVAL);
    EXPECT(ibv_get_device_name(NULL) == NULL);
    EXPECT(ibv_alloc_pd(NULL) == NULL && errno == EINVAL);
    EXPECT(ibv_dealloc_pd(NULL) == EINVAL);
    EXPECT((ibv_reg_mr)(NULL, memory, 10, 0) == NULL && errno == EINVAL);
    EXPECT(ibv_dereg_mr(NULL) == EINVAL);
    EXPECT(ibv_create_cq(NULL, 1, NULL, NULL, 0) == NULL && errno == EINVAL);
    EXPECT(ibv_destroy_cq(NULL) == EINVAL);
    EXPECT(ibv_create_qp(NULL, NULL) == NULL && errno == EINVAL);
    EXPECT(ibv_create_qp(pd, NULL) == NULL && errno == EINVAL);
    EXPECT(ibv_destroy_qp(NULL) == EINVAL);
    EXPECT(ibv_modify_qp(NULL, NULL, 0) == EINVAL);
    EXPECT(ibv_create_srq(pd, NULL) == NULL && errno == EINVAL);
    EXPECT(ibv_destroy_srq(NULL) == EINVAL);
    EXPECT(ibv_create_ah(pd, NULL) == NULL && errno == EINVAL);
    EXPECT(ibv_destroy_ah(NULL) == EINVAL);
    EXPECT(ibv_create_comp_channel(NULL) == NULL && errno == EINVAL);
    EXPECT(ibv_get_cq_event(NULL, &event_cq, &event_context) == -1 && errno == EINVAL);
    EXPECT(ibv_get_async_event(NULL, &event) == -1 && errno == EINVAL);
    EXPECT(ibv_query_device(context, NULL) == EINVAL);
    ibv_ack_async_event(&event);
    ibv_ack_cq_events(NULL, 1);
    EXPECT(context->ops.poll_cq(cq, 1, NULL) < 0);
    EXPECT(ibv_poll_cq(cq, 0, NULL) == 0);
}

static void numbers_out_of_range(void)
{
    union ibv_gid gid;
    __be16 key;
    struct ibv_port_attr port;
    struct ibv_device_attr device;
    struct ibv_wc wc;
    EXPECT(ibv_query_gid(context, 1, -1, &gid) == -1);
    EXPECT(ibv_query_gid(context, 1, 10000, &gid) == -1);
    EXPECT(ibv_query_gid(context, 2, 0, &gid) == -1);
    EXPECT(ibv_query_pkey(context, 1, 1, &key) == -1);
    EXPECT(ibv_query_port(context, 0, &port) == EINVAL);
    EXPECT(ibv_query_port(context, 2, &port) == EINVAL);
    EXPECT(ibv_query_device(context, &device) == 0);
    EXPECT(ibv_create_cq(context, 0, NULL, NULL, 0) == NULL && errno == EINVAL);
    EXPECT(ibv_create_cq(context, -5, NULL, NULL, 0) == NULL && errno == EINVAL);
    EXPECT(device.max_cqe >= 1 << 20);
    EXPECT(ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0) == NULL && errno == EINVAL);
    EXPECT(ibv_create_cq(context, 10, NULL, NULL, 1000) == NULL && errno == EINVAL);
    EXPECT(ibv_poll_cq(cq, -1, &wc) < 0);
    EXPECT(make(77, (struct ibv_qp_cap){1, 1, 1, 1, 0}) == NULL && errno == EOPNOTSUPP);
    EXPECT(make(IBV_QPT_RC, (struct ibv_qp_cap){device.max_qp_wr + 1, 1, 1, 1, 0}) == NULL && errno == EINVAL);
    EXPECT(make(IBV_QPT_RC, (struct ibv_qp_cap){1, 1, device.max_sge + 1, 1, 0}) == NULL && errno == EINVAL);
    EXPECT(make(IBV_QPT_RC, (struct ibv_qp_cap){1, 1, 1, 1, 1 << 20}) == NULL && errno == EINVAL);
    EXPECT(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_REMOTE_WRITE) == NULL && errno == EINVAL);
    EXPECT(ibv_reg_mr(pd, (void *)16, 4096, IBV_ACCESS_LOCAL_WRITE) == NULL && errno == EFAULT);
    EXPECT(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == -1 && errno == EINVAL);
    EXPECT(ibv_rereg_mr(mr, 1 << 10, NULL, NULL, 0, 0) == -1 && errno == EINVAL);
}

static void work_that_is_refused(void)
{
    struct ibv_qp *qp = make(IBV_QPT_RC, (struct ibv_qp_cap){4, 4, 2, 2, 64});
    struct ibv_sge pieces[40] = {{(uintptr_t)memory, 64, 0}};
    struct ibv_send_wr send = {.wr_id = 1, .sg_list = pieces, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send = NULL;
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = pieces, .num_sge = 1}, *bad_receive = NULL;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    EXPECT(qp != NULL);
    if (qp == NULL)
        return;
    EXPECT(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);
    EXPECT(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL && bad_receive == &receive);
    EXPECT(ibv_post_send(qp, &send, NULL) == EINVAL);
    EXPECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
    attr.qp_state = 99;
    EXPECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
    EXPECT(ibv_modify_qp(qp, NULL, IBV_QP_STATE) == EINVAL);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
    EXPECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == 0);
    EXPECT(qp->state == IBV_QPS_INIT);
    receive.num_sge = -1;
    EXPECT(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL);
    receive.num_sge = 40;
    EXPECT(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL);
    receive.num_sge = 1;
    receive.sg_list = NULL;
    EXPECT(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL);
    receive.num_sge = 0;
    for (int count = 0; count < 4; count++)
        EXPECT(ibv_post_recv(qp, &receive, &bad_receive) == 0);
    EXPECT(ibv_post_recv(qp, &receive, &bad_receive) == ENOMEM && bad_receive == &receive);
    attr.qp_state = IBV_QPS_ERR;
    EXPECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    send.opcode = 55;
    EXPECT(ibv_post_send(qp, &send, &bad_send) == EOPNOTSUPP);
    send.opcode = IBV_WR_SEND;
    send.send_flags = IBV_SEND_INLINE;
    pieces[0].length = 1 << 20;
    EXPECT(ibv_post_send(qp, &send, &bad_send) == EINVAL);
    pieces[0].length = 64;
    struct ibv_send_wr list[3] = {send, send, send};
    list[0].next = &list[1];
    list[1].next = &list[2];
    list[1].num_sge = 33;
    EXPECT(ibv_post_send(qp, list, &bad_send) == EINVAL && bad_send == &list[1]);
    struct ibv_wc wc[16];
    /* Five receives are flushed: the four posted before, and the first of the list. */
    int found = ibv_poll_cq(cq, 16, wc);
    EXPECT(found == 5);
    for (int index = 0; index < found; index++)
        EXPECT(wc[index].status == IBV_WC_WR_FLUSH_ERR && wc[index].wr_id == 1);
    EXPECT(ibv_qp_to_qp_ex(qp) == NULL);
    EXPECT(ibv_destroy_cq(cq) == EBUSY);
    EXPECT(ibv_dealloc_pd(pd) == EBUSY);
    EXPECT(ibv_destroy_qp(qp) == 0);
    EXPECT(ibv_destroy_qp(qp) == EINVAL);
    EXPECT(ibv_post_send(qp, &send, &bad_send) == EINVAL);
}

static void what_there_is_not(void)
{
    struct ibv_xrcd_init_attr xrcd = {0};
    struct ibv_ece ece = {0};
    struct ibv_cq_init_attr_ex strange = {.cqe = 10, .wc_flags = 1ull << 40};
    EXPECT(ibv_open_xrcd(context, &xrcd) == NULL && errno == EOPNOTSUPP);
    EXPECT(ibv_alloc_null_mr(pd) == NULL && errno == EOPNOTSUPP);
    EXPECT(ibv_import_device(context->cmd_fd) == NULL && errno == EOPNOTSUPP);
    EXPECT(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, 0) == NULL && errno == EOPNOTSUPP);
    EXPECT(ibv_query_ece(NULL, &ece) == EOPNOTSUPP);
    EXPECT(ibv_create_cq_ex(context, &strange) == NULL && errno == EOPNOTSUPP);
    EXPECT(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    if (devices == NULL || devices[0] == NULL) {
        printf("skipped: there is no device: %s\n", strerror(errno));
        return 0;
    }
    context = ibv_open_device(devices[0]);
    ibv_free_device_list(devices);
    pd = context ? ibv_alloc_pd(context) : NULL;
    cq = context ? ibv_create_cq(context, 64, NULL, NULL, 0) : NULL;
    mr = pd ? ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (mr == NULL || cq == NULL) {
        printf("the device cannot be used: %s\n", strerror(errno));
        return 1;
    }
    nothing_where_something_must_be();
    numbers_out_of_range();
    work_that_is_refused();
    what_there_is_not();
    EXPECT(ibv_dereg_mr(mr) == 0);
    EXPECT(ibv_dereg_mr(mr) == EINVAL);
    EXPECT(ibv_destroy_cq(cq) == 0);
    EXPECT(ibv_destroy_cq(cq) == EINVAL);
    EXPECT(ibv_dealloc_pd(pd) == 0);
    EXPECT(ibv_dealloc_pd(pd) == EINVAL);
    EXPECT(ibv_close_device(context) == 0);
    EXPECT(ibv_close_device(context) == EINVAL);
    return failures != 0;
}
