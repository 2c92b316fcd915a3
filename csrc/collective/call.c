#include "collective/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    [HPC_ALLREDUCE] = "allreduce", [HPC_REDUCE] = "reduce",       [HPC_REDUCE_SCATTER] = "reduce_scatter",
    [HPC_BROADCAST] = "broadcast", [HPC_ALLGATHER] = "allgather", [HPC_GATHER] = "gather",
    [HPC_SCATTER] = "scatter",     [HPC_ALLTOALL] = "alltoall",
};
enum { CALLS = sizeof names / sizeof *names };

/* In an allreduce of so many bytes, times the ranks, each rank folds all. */
static const uint64_t FEW_BYTES = 64 << 10;

const char *hpc_call_name(int what) {
    return what >= 0 && what < CALLS ? names[what] : NULL;
}

static int reduces(int what) {
    return what == HPC_ALLREDUCE || what == HPC_REDUCE || what == HPC_REDUCE_SCATTER;
}

static int has_root(int what) {
    return what == HPC_REDUCE || what == HPC_BROADCAST || what == HPC_GATHER || what == HPC_SCATTER;
}

const char *hpc_call_text(const hpc_described *d, char *text, size_t nbytes) {
    char count[32] = "uneven blocks", root[32] = "", op[32] = "";
    const char *name = hpc_call_name(d->what), *type = hpc_type_name(d->type);
    if (d->count != HPC_UNEVEN) snprintf(count, sizeof count, "%llu", (unsigned long long)d->count);
    if (has_root(d->what)) snprintf(root, sizeof root, ", root %d", d->root);
    if (reduces(d->what) && hpc_op_name(d->op) != NULL) snprintf(op, sizeof op, " (%s)", hpc_op_name(d->op));
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
static const uint64_t *sent_lengths(const hpc_collective_call *c) {
    return c->what == HPC_SCATTER || c->what == HPC_ALLTOALL ? c->send_counts : c->recv_counts;
}

static const uint64_t *received_lengths(const hpc_collective_call *c) {
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
    const uint64_t before = all_of(received_lengths(c), rank, c->count) * element;
    if (c->what == HPC_ALLREDUCE || c->what == HPC_REDUCE) return send == recv;
    if (c->what == HPC_ALLGATHER || c->what == HPC_GATHER) return send == recv + before;
    if (c->what == HPC_REDUCE_SCATTER || c->what == HPC_SCATTER) return recv == send + before;
    return 0;
}

static int fail(const hpc_context *x, const char *op, const char *what) {
    return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: %s", x->group.rank, op, what);
}

static int check_arrays(const hpc_context *x, const hpc_collective_call *c, const char *op) {
    const int rank = x->group.rank, size = x->group.size;
    const size_t element = hpc_element_size(c->type);
    uint64_t sends = count_of(sent_lengths(c), c->count, send_is_blocks(c, rank), rank, size) * element;
    uint64_t recvs = count_of(received_lengths(c), c->count, recv_is_blocks(c, rank), rank, size) * element;
    if (!uses_send(c, rank)) sends = 0;
    if (!uses_recv(c, rank)) recvs = 0;
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
    if (reduces(c->what) && hpc_op_name(c->op) == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: op is %d, which is no hpc_op", x->group.rank, op, c->op);
    if (reduces(c->what) && hpc_combine_of(c->op, c->type, HPC_ISA_BEST) == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: %s takes no %s", x->group.rank, op, hpc_op_name(c->op),
                        hpc_type_name(c->type));
    if (has_root(c->what) && (c->root < 0 || c->root >= size))
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

/* ---- streams ---- */

static uint64_t bytes_of(const uint64_t *at, int r) {
    return at[r + 1] - at[r];
}

static void open_stream(hpc_stream *s, const char *at, uint64_t nbytes, int folds) {
    *s = (hpc_stream){.at = (char *)(uintptr_t)at, .nbytes = nbytes, .open = 1, .folds = folds};
}

static void copy_own(char *to, const char *from, uint64_t nbytes) {
    if (nbytes > 0 && to != from) memmove(to, from, nbytes);
}

/* Every rank folds block r of each rank, or all of it (whole), into out. */
static int open_fold(hpc_moving *w, const hpc_collective_call *c, const uint64_t *at, int whole, char *out) {
    const int me = w->request.calls->mail->context->group.rank, size = w->request.calls->mail->context->group.size;
    const char *send = c->send;
    for (int p = 0; p < size; p++) {
        if (p == me) continue;
        open_stream(&w->out[HPC_FIRST][p], whole ? send : send + at[p], whole ? at[size] : bytes_of(at, p), 0);
        open_stream(&w->in[HPC_FIRST][p], NULL, whole ? at[size] : bytes_of(at, me), 1);
    }
    w->fold = (hpc_fold_part){.mine = whole ? send : send + at[me],
                              .out = out,
                              .nbytes = whole ? at[size] : bytes_of(at, me),
                              .after_sends = whole && send == out,
                              .combine = hpc_combine_of(c->op, c->type, HPC_ISA_BEST)};
    if (out != NULL || w->fold.nbytes == 0) return HPC_OK;
    w->fold.out = w->fold.scratch = malloc(w->fold.nbytes);
    if (w->fold.out == NULL) return hpc_fail(HPC_ERR_MEMORY, w->request.op, "%s: no memory for a block", w->request.op);
    return HPC_OK;
}

static int open_allreduce(hpc_moving *w, const hpc_collective_call *c) {
    const int me = w->request.calls->mail->context->group.rank, size = w->request.calls->mail->context->group.size;
    const uint64_t *at = w->at[0];
    char *recv = c->recv;
    const int whole = at[size] * (unsigned)size <= FEW_BYTES;
    if (whole) return open_fold(w, c, at, 1, recv);
    for (int p = 0; p < size; p++) {
        if (p == me) continue;
        open_stream(&w->out[HPC_SECOND][p], recv + at[me], bytes_of(at, me), 0);
        open_stream(&w->in[HPC_SECOND][p], recv + at[p], bytes_of(at, p), 0);
    }
    return open_fold(w, c, at, 0, recv + at[me]);
}

static int open_reduce(hpc_moving *w, const hpc_collective_call *c) {
    const int me = w->request.calls->mail->context->group.rank, size = w->request.calls->mail->context->group.size;
    const uint64_t *at = w->at[0];
    char *recv = c->recv;
    if (me != c->root) {
        const int status = open_fold(w, c, at, 0, NULL);
        open_stream(&w->out[HPC_SECOND][c->root], w->fold.out, bytes_of(at, me), 0);
        return status;
    }
    for (int p = 0; p < size; p++)
        if (p != me) open_stream(&w->in[HPC_SECOND][p], recv + at[p], bytes_of(at, p), 0);
    return open_fold(w, c, at, 0, recv + at[me]);
}

/* Calls that only move bytes. */
static void open_moves(hpc_moving *w, const hpc_collective_call *c) {
    const int me = w->request.calls->mail->context->group.rank, size = w->request.calls->mail->context->group.size;
    const uint64_t *from = w->at[0], *to = w->at[1];
    const char *send = c->send;
    char *recv = c->recv;
    for (int p = 0; p < size; p++) {
        hpc_stream *out = &w->out[HPC_FIRST][p], *in = &w->in[HPC_FIRST][p];
        if (p == me) continue;
        switch (c->what) {
        case HPC_BROADCAST:
            if (me == c->root) open_stream(out, recv, to[size], 0);
            if (p == c->root) open_stream(in, recv, to[size], 0);
            break;
        case HPC_ALLGATHER:
            open_stream(out, send, bytes_of(to, me), 0);
            open_stream(in, recv + to[p], bytes_of(to, p), 0);
            break;
        case HPC_GATHER:
            if (p == c->root) open_stream(out, send, bytes_of(to, me), 0);
            if (me == c->root) open_stream(in, recv + to[p], bytes_of(to, p), 0);
            break;
        case HPC_SCATTER:
            if (me == c->root) open_stream(out, send + from[p], bytes_of(from, p), 0);
            if (p == c->root) open_stream(in, recv, bytes_of(from, me), 0);
            break;
        default:
            open_stream(out, send + from[p], bytes_of(from, p), 0);
            open_stream(in, recv + to[p], bytes_of(to, p), 0);
        }
    }
    if (c->what == HPC_ALLGATHER || (c->what == HPC_GATHER && me == c->root))
        copy_own(recv + to[me], send, bytes_of(to, me));
    if (c->what == HPC_SCATTER && me == c->root) copy_own(recv, send + from[me], bytes_of(from, me));
    if (c->what == HPC_ALLTOALL) copy_own(recv + to[me], send + from[me], bytes_of(to, me));
}

/* Writes the places where blocks begin. The blocks have equal or given lengths, or are nearly equal parts of an array.
 */
static void lay(uint64_t *at, int size, const uint64_t *counts, uint64_t count, int parts, size_t element) {
    const uint64_t each = count / (unsigned)size, more = count % (unsigned)size;
    at[0] = 0;
    for (int r = 0; r < size; r++) {
        const uint64_t n = parts ? each + ((unsigned)r < more) : counts == NULL ? count : counts[r];
        at[r + 1] = at[r] + n * element;
    }
}

static void describe(hpc_moving *w, const hpc_collective_call *c) {
    const int uneven = c->send_counts != NULL || c->recv_counts != NULL;
    w->request.call = (hpc_described){.number = w->request.calls->made + 1,
                                      .count = uneven ? HPC_UNEVEN : c->count,
                                      .root = has_root(c->what) ? c->root : -1,
                                      .what = (uint8_t)c->what,
                                      .type = (uint8_t)c->type,
                                      .op = reduces(c->what) ? (uint8_t)c->op : 0};
}

static void drop(hpc_request *r) {
    hpc_moving *w = (hpc_moving *)(void *)r;
    free(w->fold.scratch);
    free(w->fold.pieces);
    free(w);
}

/* The first collective holds up the others. If letters have come that it can take, it waits for itself, and for no rank
 * that has left meanwhile. */
static int waits_for(hpc_request *r, int *ranks) {
    const hpc_moving *w = r->calls->first;
    hpc_box *box = &r->calls->mail->boxes[HPC_BOX_CALLS];
    const int me = r->calls->mail->context->group.rank;
    int n = 0;
    if (w == NULL) return 0;
    for (int p = 0; p < r->calls->mail->context->group.size; p++) {
        const hpc_stream *first = &w->out[HPC_FIRST][p], *second = &w->out[HPC_SECOND][p];
        const uint64_t letters = first->letters > second->letters ? first->letters : second->letters;
        const int sends = first->open || (second->open && w->fold.combine == NULL);
        const int comes = (w->in[HPC_FIRST][p].open || w->in[HPC_SECOND][p].open) && hpc_box_next(box, p) == NULL;
        const int reads = !first->open && !second->open && !hpc_box_has_taken(box, p, letters);
        const int left = p == w->request.deserter;
        if (p != me && (left || comes || reads || (sends && !hpc_box_has_room(box, p)))) ranks[n++] = p;
    }
    if (n == 0) ranks[n++] = me;
    return n;
}

static const hpc_request_kind work_kind = {waits_for, drop, 1};

/* Allocates a work with its lists, all zero. */
static hpc_moving *allocate(int size) {
    const size_t streams = (size_t)size * sizeof(hpc_stream), places = ((size_t)size + 1) * sizeof(uint64_t);
    char *at = calloc(1, sizeof(hpc_moving) + 2 * HPC_PARTS * streams + HPC_PARTS * places);
    hpc_moving *w = (void *)at;
    if (at == NULL) return NULL;
    at += sizeof *w;
    for (int i = 0; i < HPC_PARTS; i++, at += 2 * streams + places) {
        w->out[i] = (void *)at;
        w->in[i] = (void *)(at + streams);
        w->at[i] = (void *)(at + 2 * streams);
    }
    return w;
}

/* Notes which memory the call uses. */
static void use(hpc_moving *w, const hpc_collective_call *c, int rank, int size) {
    const uint64_t sends = count_of(sent_lengths(c), c->count, send_is_blocks(c, rank), rank, size),
                   recvs = count_of(received_lengths(c), c->count, recv_is_blocks(c, rank), rank, size);
    const char *send = c->send, *recv = c->recv;
    const int reads_only = c->what == HPC_BROADCAST && c->root == rank;
    if (uses_send(c, rank)) w->request.uses[0] = (hpc_extent){send, send + sends * w->request.element, 0};
    if (uses_recv(c, rank)) w->request.uses[1] = (hpc_extent){recv, recv + recvs * w->request.element, !reads_only};
}

int hpc_work_make(hpc_calls *calls, const hpc_collective_call *c, hpc_moving **work) {
    const hpc_group *g = &calls->mail->context->group;
    const char *op = hpc_call_name(c->what);
    hpc_moving *w = allocate(g->size);
    int status = HPC_OK;
    if (w == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, g->size);
    w->request.kind = &work_kind;
    w->request.calls = calls;
    w->request.op = op;
    w->request.element = hpc_element_size(c->type);
    atomic_init(&w->request.status, HPC_IN_PROGRESS);
    describe(w, c);
    use(w, c, g->rank, g->size);
    const int parts = c->what == HPC_ALLREDUCE || c->what == HPC_REDUCE || c->what == HPC_BROADCAST;
    lay(w->at[0], g->size, sent_lengths(c), c->count, parts, w->request.element);
    lay(w->at[1], g->size, received_lengths(c), c->count, parts, w->request.element);
    status = hpc_request_add(calls, &w->request);
    if (status == HPC_OK && c->what == HPC_ALLREDUCE)
        status = open_allreduce(w, c);
    else if (status == HPC_OK && c->what == HPC_REDUCE)
        status = open_reduce(w, c);
    else if (status == HPC_OK && c->what == HPC_REDUCE_SCATTER)
        status = open_fold(w, c, w->at[0], 0, c->recv);
    else if (status == HPC_OK)
        open_moves(w, c);
    if (status != HPC_OK) {
        if (calls->requests == &w->request) calls->requests = w->request.next;
        drop(&w->request);
        return status;
    }
    calls->made++;
    *work = w;
    return HPC_OK;
}
