#include "collective/call.h"

#include <stdio.h>

static const char *const names[] = {
    [HPC_ALLREDUCE] = "allreduce", [HPC_REDUCE] = "reduce",       [HPC_REDUCE_SCATTER] = "reduce_scatter",
    [HPC_BROADCAST] = "broadcast", [HPC_ALLGATHER] = "allgather", [HPC_GATHER] = "gather",
    [HPC_SCATTER] = "scatter",     [HPC_ALLTOALL] = "alltoall",
};
enum { CALLS = sizeof names / sizeof *names };

const char *hpc_call_name(int what) {
    return what >= 0 && what < CALLS ? names[what] : NULL;
}

int hpc_call_reduces(int what) {
    return what == HPC_ALLREDUCE || what == HPC_REDUCE || what == HPC_REDUCE_SCATTER;
}

int hpc_call_has_root(int what) {
    return what == HPC_REDUCE || what == HPC_BROADCAST || what == HPC_GATHER || what == HPC_SCATTER;
}

const char *hpc_call_text(const hpc_described *d, char *text, size_t nbytes) {
    char count[32] = "uneven blocks", root[32] = "", op[32] = "";
    const char *name = hpc_call_name(d->what), *type = hpc_type_name(d->type);
    if (d->count != HPC_UNEVEN) snprintf(count, sizeof count, "%llu", (unsigned long long)d->count);
    if (hpc_call_has_root(d->what)) snprintf(root, sizeof root, ", root %d", d->root);
    if (hpc_call_reduces(d->what) && hpc_op_name(d->op) != NULL) snprintf(op, sizeof op, " (%s)", hpc_op_name(d->op));
    snprintf(text, nbytes, "%s of %s %s%s%s", name == NULL ? "?" : name, count, type == NULL ? "?" : type, op, root);
    return text;
}

/* ---- checks ---- */

/* These two return whether send, or recv, has a block for each rank, on this rank. */
static int send_is_blocks(const hpc_collective_call *c, int rank) {
    return c->what == HPC_REDUCE_SCATTER || c->what == HPC_ALLTOALL || (c->what == HPC_SCATTER && rank == c->root);
}

static int recv_is_blocks(const hpc_collective_call *c, int rank) {
    return c->what == HPC_ALLGATHER || c->what == HPC_ALLTOALL || (c->what == HPC_GATHER && rank == c->root);
}

static int uses_send(const hpc_collective_call *c, int rank) {
    return c->what != HPC_BROADCAST && !(c->what == HPC_SCATTER && rank != c->root);
}

static int uses_recv(const hpc_collective_call *c, int rank) {
    return !((c->what == HPC_REDUCE || c->what == HPC_GATHER) && rank != c->root);
}

/* The lengths of the blocks of send and of recv by rank; NULL: all are count. Only an alltoall has two lists. */
const uint64_t *hpc_call_sent(const hpc_collective_call *c) {
    return c->what == HPC_SCATTER || c->what == HPC_ALLTOALL ? c->send_counts : c->recv_counts;
}

const uint64_t *hpc_call_received(const hpc_collective_call *c) {
    return c->what == HPC_SCATTER ? c->send_counts : c->recv_counts;
}

static uint64_t all_of(const uint64_t *counts, int size, uint64_t count) {
    uint64_t sum = 0;
    for (int r = 0; r < size; r++) sum += counts == NULL ? count : counts[r];
    return sum;
}

/* Returns the elements of an array that has a block for each rank, or this rank's block alone. */
static uint64_t count_of(const uint64_t *counts, uint64_t count, int is_blocks, int rank, int size) {
    if (is_blocks) return all_of(counts, size, count);
    return counts == NULL ? count : counts[rank];
}

static int overlap(const char *a, uint64_t n_a, const char *b, uint64_t n_b) {
    return n_a > 0 && n_b > 0 && (uintptr_t)a < (uintptr_t)b + n_b && (uintptr_t)b < (uintptr_t)a + n_a;
}

/* Returns whether the arrays overlap where they may: as one array, or at this rank's block of the other. */
static int is_in_place(const hpc_collective_call *c, int rank, size_t element) {
    const char *send = c->send, *recv = c->recv;
    const uint64_t before = all_of(hpc_call_received(c), rank, c->count) * element;
    if (c->what == HPC_ALLREDUCE || c->what == HPC_REDUCE) return send == recv;
    if (c->what == HPC_ALLGATHER || c->what == HPC_GATHER) return send == recv + before;
    if (c->what == HPC_REDUCE_SCATTER || c->what == HPC_SCATTER) return recv == send + before;
    return 0;
}

static int fail(const hpc_context *x, const char *op, const char *what) {
    return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: %s", x->group.rank, op, what);
}

/* Writes which memory the call reads, and which it writes. */
void hpc_call_uses(const hpc_collective_call *c, int rank, int size, hpc_extent uses[2]) {
    const size_t element = hpc_element_size(c->type);
    const uint64_t sends = count_of(hpc_call_sent(c), c->count, send_is_blocks(c, rank), rank, size) * element,
                   recvs = count_of(hpc_call_received(c), c->count, recv_is_blocks(c, rank), rank, size) * element;
    const char *send = c->send, *recv = c->recv;
    const int is_written = c->what != HPC_BROADCAST || c->root != rank;
    uses[0] = (hpc_extent){send, send + (uses_send(c, rank) ? sends : 0), 0};
    uses[1] = (hpc_extent){recv, recv + (uses_recv(c, rank) ? recvs : 0), is_written};
}

static int check_arrays(const hpc_context *x, const hpc_collective_call *c, const char *op) {
    const int rank = x->group.rank, size = x->group.size;
    const size_t element = hpc_element_size(c->type);
    hpc_extent uses[2];
    hpc_call_uses(c, rank, size, uses);
    const uint64_t sends = (uint64_t)(uses[0].end - uses[0].begin), recvs = (uint64_t)(uses[1].end - uses[1].begin);
    if (sends > 0 && c->send == NULL) return fail(x, op, "send is NULL, and has elements: give an array");
    if (recvs > 0 && c->recv == NULL) return fail(x, op, "recv is NULL, and gets elements: give an array");
    if (overlap(c->send, sends, c->recv, recvs) && !is_in_place(c, rank, element))
        return fail(x, op, "send and recv overlap, and send is not where it may lie in recv");
    return HPC_OK;
}

int hpc_call_check(const hpc_context *x, const hpc_collective_call *c) {
    static const uint64_t most = UINT64_MAX / 64;
    const int size = x->group.size;
    if (c == NULL) return fail(x, "collective", "call is NULL");
    const char *op = c->size != sizeof *c ? NULL : hpc_call_name(c->what);
    if (c->size != sizeof *c)
        return hpc_fail(HPC_ERR_INVALID, "collective", "collective: call->size is %zu, not %zu", c->size, sizeof *c);
    if (op == NULL)
        return hpc_fail(HPC_ERR_INVALID, "collective", "collective: call->what is %d, not 0 to %d (hpc_collective)",
                        c->what, CALLS - 1);
    if (hpc_element_size(c->type) == 0)
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: type is %d, which is no hpc_dtype or hpc_element",
                        x->group.rank, op, c->type);
    if (hpc_call_reduces(c->what) && hpc_op_name(c->op) == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: op is %d, which is no hpc_op", x->group.rank, op, c->op);
    if (hpc_call_reduces(c->what) && hpc_combine_of(c->op, c->type, HPC_ISA_BEST) == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: %s takes no %s", x->group.rank, op, hpc_op_name(c->op),
                        hpc_type_name(c->type));
    if (hpc_call_has_root(c->what) && (c->root < 0 || c->root >= size))
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: root is %d; it must be 0 to %d", x->group.rank, op, c->root,
                        size - 1);
    const uint64_t *lists[] = {c->send_counts, c->recv_counts};
    const int takes_both = c->what == HPC_ALLTOALL;
    if (takes_both && (lists[0] == NULL) != (lists[1] == NULL))
        return fail(x, op, "send_counts and recv_counts go together");
    if ((lists[0] != NULL && !takes_both && c->what != HPC_SCATTER) ||
        (lists[1] != NULL && !takes_both && c->what != HPC_ALLGATHER && c->what != HPC_GATHER &&
         c->what != HPC_REDUCE_SCATTER))
        return fail(x, op, "it takes no counts, or other ones: see hpc_collective_call");
    if (takes_both && lists[0] != NULL && lists[0][x->group.rank] != lists[1][x->group.rank])
        return fail(x, op, "send_counts and recv_counts differ for this rank itself");
    if (lists[0] == NULL && lists[1] == NULL && c->count > most / (unsigned)size)
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: count is %llu; at most %llu are possible", x->group.rank, op,
                        (unsigned long long)c->count, (unsigned long long)(most / (unsigned)size));
    for (int i = 0; i < 2; i++)
        for (int r = 0; lists[i] != NULL && r < size; r++)
            if (lists[i][r] > most / (unsigned)size)
                return hpc_fail(HPC_ERR_INVALID, op,
                                "rank %d: %s: the count of rank %d is %llu; at most %llu are possible", x->group.rank,
                                op, r, (unsigned long long)lists[i][r], (unsigned long long)(most / (unsigned)size));
    return check_arrays(x, c, op);
}
