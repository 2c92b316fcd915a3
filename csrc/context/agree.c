/* Steps that all ranks of a context take together, over its control channel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context/context.h"

int hpc_allgather(hpc_context *c, const void *send, void *recv, size_t nbytes, double timeout) {
    static const char op[] = "allgather";
    hpc_reply *replies;
    int status = hpc_context_ready(c, op);
    if (status != HPC_OK) return status;
    if (nbytes > 0 && (send == NULL || recv == NULL))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: a buffer is NULL while nbytes is %zu", op, nbytes);
    if (nbytes > (uint64_t)1 << 32)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %zu bytes; at most 4 GiB are possible", op, nbytes);
    replies = calloc((size_t)c->group.size, sizeof *replies);
    if (replies == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    status =
        hpc_control_exchange(c->control, op, send, nbytes, HPC_EQUAL_SIZES, replies, hpc_deadline(&c->group, timeout));
    if (status == HPC_OK) {
        for (int r = 0; r < c->group.size && nbytes > 0; r++)
            memcpy((char *)recv + (size_t)r * nbytes, replies[r].data, nbytes);
        hpc_control_free_replies(c->control, replies);
    }
    free(replies);
    return status;
}

int hpc_barrier(hpc_context *c, double timeout) {
    static const char op[] = "barrier";
    hpc_reply *replies;
    int status = hpc_context_ready(c, op);
    if (status != HPC_OK) return status;
    replies = calloc((size_t)c->group.size, sizeof *replies);
    if (replies == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    status = hpc_control_exchange(c->control, op, NULL, 0, HPC_EQUAL_SIZES, replies, hpc_deadline(&c->group, timeout));
    if (status == HPC_OK) hpc_control_free_replies(c->control, replies);
    free(replies);
    return status;
}

/* Gives this rank's verdict and gets the others'. A rank that has reached its deadline has no time to wait for the
 * other verdicts. If it does not get them, it keeps its first failure, which names the ranks for which it waited, and
 * why. */
static int exchange_verdicts(hpc_context *c, const char *op, int own, const void *mine, size_t nbytes,
                             hpc_reply *replies, double deadline) {
    if (own != HPC_ERR_TIMEOUT)
        return hpc_control_exchange(c->control, op, mine, nbytes, HPC_EQUAL_SIZES, replies, deadline);
    int muted = hpc_mute_errors(1);
    int exchanged = hpc_control_exchange(c->control, op, mine, nbytes, HPC_EQUAL_SIZES, replies, deadline);
    hpc_mute_errors(muted);
    if (exchanged == HPC_OK) return HPC_OK;
    int status = HPC_OK;
    for (int r = 0; r < c->group.size && status == HPC_OK; r++) status = hpc_group_peer_present(&c->group, r, op);
    return status != HPC_OK ? status : own;
}

/* A rank's result of its step. The field ranks is about its failure: first the ranks to blame, then the ranks for which
 * it waits. */
typedef struct verdict {
    int status, n_ranks, n_waiting, ranks[HPC_BLAMED], n_culprits;
    hpc_culprit culprits[HPC_SHOWN_CULPRITS];
    char message[512];
} verdict;

static verdict verdict_of(int status) {
    verdict v = {.status = status};
    if (status == HPC_OK) return v;
    const hpc_error *e = hpc_last_error();
    snprintf(v.message, sizeof v.message, "%s", e->message);
    for (int i = 0; i < e->n_ranks && i < HPC_BLAMED; i++) v.ranks[v.n_ranks++] = e->ranks[i];
    for (int i = 0; i < e->n_waiting && v.n_ranks + v.n_waiting < HPC_BLAMED; i++)
        v.ranks[v.n_ranks + v.n_waiting++] = e->waiting_for[i];
    for (int i = 0; i < e->n_culprits && i < HPC_SHOWN_CULPRITS; i++) v.culprits[v.n_culprits++] = e->culprits[i];
    return v;
}

static int fail_with(const char *op, int rank, const verdict *v) {
    const hpc_fault f = {.ranks = v->ranks,
                         .n_ranks = v->n_ranks,
                         .waiting_for = v->ranks + v->n_ranks,
                         .n_waiting = v->n_waiting,
                         .culprits = v->culprits,
                         .n_culprits = v->n_culprits};
    return hpc_fail_fault(v->status, op, &f, "on rank %d: %.*s", rank, (int)sizeof v->message - 1, v->message);
}

int hpc_context_agree(hpc_context *c, const char *op, int status, double deadline) {
    const verdict mine = verdict_of(status);
    hpc_reply *replies = calloc((size_t)c->group.size, sizeof *replies);
    if (replies == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    status = exchange_verdicts(c, op, mine.status, &mine, sizeof mine, replies, deadline);
    if (status == HPC_OK) {
        for (int r = 0; r < c->group.size && status == HPC_OK; r++) {
            const verdict *v = replies[r].data;
            if (v->status != HPC_OK) status = fail_with(op, r, v);
        }
        hpc_control_free_replies(c->control, replies);
    }
    free(replies);
    return status;
}

int hpc_context_check_memory(hpc_context *c, const char *op, size_t nbytes, size_t total, double deadline) {
    struct demand {
        uint64_t asked, available;
    } mine = {total, hpc_memory_available()};
    hpc_reply *replies = calloc((size_t)c->group.size, sizeof *replies);
    int status;
    if (replies == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    status = hpc_control_exchange(c->control, op, &mine, sizeof mine, HPC_EQUAL_SIZES, replies, deadline);
    if (status == HPC_OK) {
        for (int r = 0; r < c->group.size && status == HPC_OK; r++) {
            struct demand all = {0, UINT64_MAX};
            int ranks = 0;
            for (int other = 0; other < c->group.size; other++) {
                const struct demand *d = replies[other].data;
                if (!hpc_same_host(&c->addresses[r], &c->addresses[other])) continue;
                all.asked = d->asked > UINT64_MAX - all.asked ? UINT64_MAX : all.asked + d->asked;
                if (d->available < all.available) all.available = d->available;
                ranks++;
            }
            if (all.asked > all.available)
                status = hpc_fail(
                    HPC_ERR_MEMORY, op,
                    "%s: rank %d asks for %llu bytes, the %d rank%s on %s for %llu together, and %llu are available; "
                    "ask for less",
                    op, c->group.rank, (unsigned long long)nbytes, ranks, ranks == 1 ? "" : "s",
                    c->addresses[r].hostname, (unsigned long long)all.asked, (unsigned long long)all.available);
        }
        hpc_control_free_replies(c->control, replies);
    }
    free(replies);
    return status;
}
