/* The public calls: each starts a request, and may wait for it. */
#include "base/wait.h"
#include "collective/call.h"
#include "collective/message.h"
#include "collective/request.h"

/* A request that no wait would go on with is none. */
static int go_on(hpc_request **work) {
    const int status = hpc_request_go_on(*work);
    if (status == HPC_OK) return HPC_OK;
    hpc_request_free(*work);
    *work = NULL;
    return status;
}

/* ---- collectives ---- */

static int start_collective(hpc_context *c, const hpc_collective_call *call, hpc_request **request) {
    hpc_calls *calls;
    hpc_moving *w;
    int status = hpc_call_check(c, call);
    if (status != HPC_OK) return status;
    const char *op = hpc_call_name(call->what);
    status = hpc_calls_of(c, op, &calls);
    if (status != HPC_OK) return status;
    hpc_calls_enter(calls);
    if (calls->broken[0] != 0)
        status = hpc_fail(HPC_ERR_CONFIG, op, "rank %d: %s: no further collectives are possible: %s", c->group.rank, op,
                          calls->broken);
    if (status == HPC_OK) status = hpc_moving_make(calls, call, &w);
    if (status == HPC_OK) {
        *calls->last = w;
        calls->last = &w->next;
        *request = &w->request;
    }
    hpc_calls_leave(calls);
    return status;
}

int hpc_collective_start(hpc_context *c, const hpc_collective_call *call, hpc_request **work) {
    static const char op[] = "collective";
    if (work == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: work is NULL", op);
    *work = NULL;
    int status = hpc_context_ready(c, op);
    if (status == HPC_OK) status = start_collective(c, call, work);
    return status == HPC_OK ? go_on(work) : status;
}

int hpc_collective_run(hpc_context *c, const hpc_collective_call *call, double timeout) {
    hpc_request *r = NULL;
    int status = hpc_context_ready(c, "collective");
    if (status != HPC_OK) return status;
    const double deadline = hpc_deadline(&c->group, timeout);
    status = start_collective(c, call, &r);
    if (status == HPC_OK) status = hpc_request_wait(r, hpc_left(deadline));
    hpc_request_free(r);
    return status;
}

/* ---- messages ---- */

static int start_message(hpc_context *c, const char *op, int peer, int tag, const void *data, uint64_t count, int type,
                         hpc_request **request) {
    hpc_calls *calls;
    int status = hpc_context_ready(c, op);
    if (status == HPC_OK) status = hpc_message_check(c, op, peer, tag, data, count, type);
    if (status == HPC_OK) status = hpc_calls_of(c, op, &calls);
    if (status != HPC_OK) return status;
    status = hpc_calls_add_task(calls, op);
    if (status == HPC_OK && op == hpc_send_op) status = hpc_group_peer_present(&c->group, peer, op);
    if (status != HPC_OK) return status;
    hpc_calls_enter(calls);
    status = hpc_message_make(calls, op, peer, tag, data, count, type, request);
    hpc_calls_leave(calls);
    return status;
}

static int start_and_go_on(hpc_context *c, const char *op, int peer, int tag, const void *data, uint64_t count,
                           int type, hpc_request **work) {
    if (work == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: work is NULL", op);
    *work = NULL;
    const int status = start_message(c, op, peer, tag, data, count, type, work);
    return status == HPC_OK ? go_on(work) : status;
}

int hpc_send_start(hpc_context *c, int to, int tag, const void *data, uint64_t count, int type, hpc_request **work) {
    return start_and_go_on(c, hpc_send_op, to, tag, data, count, type, work);
}

int hpc_recv_start(hpc_context *c, int from, int tag, void *data, uint64_t count, int type, hpc_request **work) {
    return start_and_go_on(c, hpc_recv_op, from, tag, data, count, type, work);
}

int hpc_send(hpc_context *c, int to, int tag, const void *data, uint64_t count, int type, double timeout) {
    hpc_request *r = NULL;
    int status = start_message(c, hpc_send_op, to, tag, data, count, type, &r);
    if (status == HPC_OK) status = hpc_request_wait(r, timeout);
    hpc_request_free(r);
    return status;
}

int hpc_recv(hpc_context *c, int from, int tag, void *data, uint64_t count, int type, hpc_received *received,
             double timeout) {
    hpc_request *r = NULL;
    int status = start_message(c, hpc_recv_op, from, tag, data, count, type, &r);
    if (status == HPC_OK) status = hpc_request_wait(r, timeout);
    if (status == HPC_OK && received != NULL) status = hpc_request_received(r, received);
    hpc_request_free(r);
    return status;
}
