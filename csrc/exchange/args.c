/* New arguments of the rule, which all workers set together. */
#include "exchange/exchange.h"

#include <string.h>

static int args_answered(const hpc_exchange *ex, int rank) {
    for (int c = 0; c < ex->layout.places[rank].cores; c++)
        if (atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_args(ex, rank, c)), memory_order_acquire) <
            ex->setting.sent)
            return 0;
    return 1;
}

/* Whether this rank's own cores have the args of rank. They must answer all ranks before this rank may go on. */
static int have_args_of(const hpc_exchange *ex, int rank) {
    for (int c = 0; c < ex->n_own_cores && ex->layout.places[rank].worker; c++)
        if (atomic_load_explicit(&ex->cores[c].args_set[rank], memory_order_acquire) < ex->setting.sent) return 0;
    return 1;
}

/* A rank that has closed while its answer or its args are still missing; else -1. */
static int closed_without_args(const hpc_exchange *ex) {
    for (int r = 0; r < ex->context->group.size; r++)
        if (!have_args_of(ex, r) ? hpc_closed_signal(ex, r) != 0
                                 : hpc_closed_signal(ex, r) == HPC_FREED && !args_answered(ex, r))
            return r;
    return -1;
}

static int all_have_args(void *arg) {
    const hpc_exchange *ex = arg;
    if (ex->inline_progress) hpc_context_work(ex->context);
    if (atomic_load_explicit(&ex->fault.failed, memory_order_relaxed) != HPC_OK || closed_without_args(ex) >= 0)
        return 1;
    for (int r = 0; r < ex->context->group.size; r++)
        if (!args_answered(ex, r) || !have_args_of(ex, r)) return 0;
    return 1;
}

static int ranks_without_args(void *arg, int *ranks) {
    const hpc_exchange *ex = arg;
    int n = 0;
    for (int r = 0; r < ex->context->group.size; r++)
        if (!args_answered(ex, r) || !have_args_of(ex, r)) ranks[n++] = r;
    return n;
}

/* Sends the args to every core of every rank. A call that a full ring stopped goes on at that core. */
static int send_args(hpc_exchange *ex, double deadline) {
    int rank = ex->context->group.rank, size = ex->context->group.size, n = 0;
    for (int r = 0; r < size; r++)
        for (int c = 0; c < ex->layout.places[r].cores; c++, n++) {
            if (n < ex->setting.at) continue;
            size_t at = ((size_t)c * (size_t)size + (size_t)rank) * sizeof ex->rule.args;
            int status = hpc_put_notify(ex->in_lanes[c], ex->window, r, ex->rule.args, sizeof ex->rule.args,
                                        ex->layout.places[r].args + at, hpc_imm(HPC_OP_ARGS, 0, 0), hpc_left(deadline));
            if (status != HPC_OK) return status;
            ex->setting.at = n + 1;
        }
    return HPC_OK;
}

int hpc_exchange_set_args(hpc_exchange *ex, const double *args, double timeout) {
    static const char op[] = "set_args";
    HPC_IN_CALL(ex, -1, op);
    int status = hpc_worker_check_call(ex, 0, op);
    if (status != HPC_OK) return status;
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: args is NULL", op);
    hpc_rule rule = ex->rule;
    memcpy(rule.args + 1, args + 1, (HPC_RULE_ARGS - 1) * sizeof *args);
    status = hpc_rule_check(&rule, op);
    if (status == HPC_OK && ex->setting.under_way && memcmp(rule.args, ex->rule.args, sizeof rule.args) != 0)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: the last call timed out; call it again with the same args", op);
    if (status == HPC_OK) status = hpc_worker_check_idle(ex, op);
    if (status != HPC_OK) return status;
    double deadline = hpc_deadline(&ex->context->group, timeout);
    if (!ex->setting.under_way) { /* else the last call timed out: this one goes on with its args */
        memcpy(ex->rule.args, rule.args, sizeof rule.args); /* the cores have copies of their own */
        ex->setting.sent++;
        ex->setting.at = 0;
        ex->setting.under_way = 1;
    }
    status = send_args(ex, deadline);
    if (status != HPC_OK) return status;
    const hpc_wait wait = {op, all_have_args, ranks_without_args, ex};
    status = hpc_wait_for(&ex->context->group, &wait, hpc_left(deadline));
    if (status == HPC_OK) status = hpc_exchange_check(ex, op);
    if (status != HPC_OK) return status;
    int closed = closed_without_args(ex);
    if (closed >= 0)
        return hpc_group_fail_closed(&ex->context->group, op, &closed, 1,
                                     "rank %d has closed the exchange without setting args", closed);
    ex->setting.under_way = 0;
    return HPC_OK;
}

int hpc_exchange_get_args(hpc_exchange *ex, double *args) {
    static const char op[] = "get_args";
    if (ex == NULL || args == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %s is NULL", op, ex == NULL ? "exchange" : "args");
    hpc_core *core = ex->n_own_cores > 0 ? &ex->cores[0] : NULL;
    memcpy(args, ex->rule.args, sizeof ex->rule.args);
    if (!ex->layout.places[ex->context->group.rank].worker && core != NULL) {
        hpc_core_pause(core);
        memcpy(args, core->args[ex->layout.lowest], sizeof ex->rule.args);
        hpc_core_resume(core);
    }
    args[0] = 0;
    return HPC_OK;
}
