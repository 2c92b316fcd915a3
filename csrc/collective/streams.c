/* Opens the streams and the fold of a collective, stage by stage. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/call.h"

static uint64_t bytes_of(const uint64_t *at, int r) {
    return at[r + 1] - at[r];
}

static void open_stream(hpc_stream *s, const char *at, uint64_t nbytes, int folds) {
    *s = (hpc_stream){.at = (char *)(uintptr_t)at, .nbytes = nbytes, .open = 1, .folds = folds};
}

static void copy_own(char *to, const char *from, uint64_t nbytes) {
    if (nbytes > 0 && to != from) memmove(to, from, nbytes);
}

/* Writes the places where blocks begin. Blocks have equal or given lengths, or are nearly equal parts of an array. */
static void lay(uint64_t *at, int size, const uint64_t *counts, uint64_t count, int parts, size_t element) {
    const uint64_t each = count / (unsigned)size, more = count % (unsigned)size;
    at[0] = 0;
    for (int r = 0; r < size; r++) {
        const uint64_t n = parts ? each + ((unsigned)r < more) : counts == NULL ? count : counts[r];
        at[r + 1] = at[r] + n * element;
    }
}

/* Opens streams of blocks of an array among a team: this rank's block goes out, the others' come in. at: where blocks
 * begin. blocks: of each rank of the team, the number of its block; they are `stride` apart. */
static void open_shares(hpc_moving *w, hpc_stream_part part, const hpc_team *t, char *array, const uint64_t *at,
                        const int *blocks, int stride) {
    const int mine = blocks[t->me * stride];
    for (int i = 0; i < t->n; i++) {
        const int p = t->ranks[i], its = blocks[i * stride];
        if (i == t->me) continue;
        open_stream(&w->out[part][p], array + at[mine], bytes_of(at, mine), 0);
        open_stream(&w->in[part][p], array + at[its], bytes_of(at, its), 0);
    }
}

/* Does so where the block of each rank has the number of its place in the team. */
static void open_parts(hpc_moving *w, hpc_stream_part part, const hpc_team *t, char *array, const uint64_t *at) {
    open_shares(w, part, t, array, at, w->request.calls->all.ranks, 1);
}

/* ---- folds ----
 *
 * A team is a list of ranks that fold together: all ranks, those of one host, or those that have the same place on each
 * host. */

/* Returns the op by which the ranks of one host fold, before the hosts' results are folded. */
static int host_op(int op) {
    return op == HPC_AVG ? HPC_SUM : op;
}

/* Opens streams of each rank's blocks to their owners, who fold them. at: where the blocks begin. whole: each rank
 * folds all of it. */
static int open_fold(hpc_moving *w, const hpc_team *t, const uint64_t *at, int whole, const char *send, char *out,
                     int op) {
    const int me = t->me;
    for (int i = 0; i < t->n; i++) {
        const int p = t->ranks[i];
        if (i == me) continue;
        open_stream(&w->out[HPC_FIRST][p], whole ? send : send + at[i], whole ? at[t->n] : bytes_of(at, i), 0);
        open_stream(&w->in[HPC_FIRST][p], NULL, whole ? at[t->n] : bytes_of(at, me), 1);
    }
    w->fold.team = t;
    w->fold.mine = whole ? send : send + at[me];
    w->fold.out = out;
    w->fold.nbytes = whole ? at[t->n] : bytes_of(at, me);
    w->fold.done = 0;
    w->fold.after_sends = whole && send == out;
    w->fold.combine = hpc_combine_of(op, w->call.type, HPC_ISA_BEST);
    w->fold.combine_host =
        w->by_hosts && t == &w->request.calls->all ? hpc_combine_of(host_op(op), w->call.type, HPC_ISA_BEST) : NULL;
    if (out != NULL || w->fold.nbytes == 0) return HPC_OK;
    w->fold.out = w->fold.scratch = malloc(w->fold.nbytes);
    if (w->fold.out == NULL) return hpc_fail(HPC_ERR_MEMORY, w->request.op, "%s: no memory for a block", w->request.op);
    return HPC_OK;
}

/* Opens a fold whose results go to the whole team. */
static int open_fold_for_all(hpc_moving *w, const hpc_team *t, const uint64_t *at, const char *send, char *recv) {
    open_parts(w, HPC_SECOND, t, recv, at);
    return open_fold(w, t, at, 0, send, recv + at[t->me], w->call.op);
}

static int open_reduce(hpc_moving *w) {
    const hpc_team *all = &w->request.calls->all;
    const uint64_t *at = w->at[0];
    char *recv = w->call.recv;
    if (all->me != w->call.root) {
        const int status = open_fold(w, all, at, 0, w->call.send, NULL, w->call.op);
        open_stream(&w->out[HPC_SECOND][w->call.root], w->fold.out, bytes_of(at, all->me), 0);
        return status;
    }
    for (int p = 0; p < all->n; p++)
        if (p != all->me) open_stream(&w->in[HPC_SECOND][p], recv + at[p], bytes_of(at, p), 0);
    return open_fold(w, all, at, 0, w->call.send, recv + at[all->me], w->call.op);
}

/* ---- copies ---- */

/* Opens the streams of a call that only moves bytes. */
static void open_copies(hpc_moving *w) {
    const hpc_collective_call *c = &w->call;
    const int me = w->request.calls->all.me, size = w->request.calls->all.n;
    const uint64_t *from = w->at[0], *to = w->at[1];
    const char *send = c->send;
    char *recv = c->recv;
    for (int p = 0; p < size; p++) {
        hpc_stream *out = &w->out[HPC_FIRST][p], *in = &w->in[HPC_FIRST][p];
        if (p == me) continue;
        switch (c->what) {
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
    if (c->what == HPC_GATHER && me == c->root) copy_own(recv + to[me], send, bytes_of(to, me));
    if (c->what == HPC_SCATTER && me == c->root) copy_own(recv, send + from[me], bytes_of(from, me));
    if (c->what == HPC_ALLTOALL) copy_own(recv + to[me], send + from[me], bytes_of(to, me));
}

/* ---- stages ----
 *
 * Most calls have one stage. Where several hosts have equally many ranks, and more than one each, some go by hosts, so
 * that fewer bytes leave a host, and a rank talks to fewer ranks:
 *
 *   allreduce   1. the ranks of a host fold a part each
 *               2. the ranks of one place on each host fold their part, and share the result
 *               3. the ranks of a host share the parts
 *   few bytes   1. and 2. each rank folds all
 *   allgather   1. the ranks of one place on each host share their blocks
 *               2. the ranks of a host share these blocks, in a stage for each host
 *   broadcast   1. the root sends to the ranks of its place on the other hosts
 *               2. these ranks, and the root, send to the other ranks of their hosts
 *
 * The owners in a reduce and a reduce_scatter fold by hosts too, so all reductions give the same bits. */

/* If an allreduce has at most so many bytes, times the ranks, each rank folds all. */
static const uint64_t FEW_BYTES = 64 << 10;

/* Sums and products of 16-bit floats are rounded once, so their ranks fold all at once. */
static int goes_by_hosts(const hpc_calls *calls, const hpc_collective_call *c) {
    const int is_half = c->type == HPC_F16 || c->type == HPC_BF16;
    const int rounds = hpc_call_reduces(c->what) && (c->op == HPC_SUM || c->op == HPC_AVG || c->op == HPC_PROD);
    return calls->across.n > 1 && calls->host.n > 1 && !(is_half && rounds);
}

static int open_allreduce_by_hosts(hpc_moving *w, int whole) {
    const hpc_team *host = &w->request.calls->host, *across = &w->request.calls->across;
    const size_t element = w->request.element;
    const char *send = w->call.send;
    char *recv = w->call.recv;
    lay(w->at[0], host->n, NULL, w->call.count, 1, element);
    char *part = recv + w->at[0][host->me];
    const uint64_t nbytes = bytes_of(w->at[0], host->me);
    w->last_stage = whole ? 1 : 2;
    if (w->stage == 0) return open_fold(w, host, w->at[0], whole, send, whole ? recv : part, host_op(w->call.op));
    if (w->stage == 1) {
        lay(w->at[1], across->n, NULL, whole ? w->call.count : nbytes / element, 1, element);
        if (whole) return open_fold(w, across, w->at[1], 1, recv, recv, w->call.op);
        return open_fold_for_all(w, across, w->at[1], part, part);
    }
    open_parts(w, HPC_FIRST, host, recv, w->at[0]);
    return HPC_OK;
}

static int open_allreduce(hpc_moving *w) {
    const hpc_team *all = &w->request.calls->all;
    const int whole = w->call.count * w->request.element * (unsigned)all->n <= FEW_BYTES;
    if (w->by_hosts) return open_allreduce_by_hosts(w, whole);
    lay(w->at[0], all->n, NULL, w->call.count, 1, w->request.element);
    if (whole) return open_fold(w, all, w->at[0], 1, w->call.send, w->call.recv, w->call.op);
    return open_fold_for_all(w, all, w->at[0], w->call.send, w->call.recv);
}

/* Opens streams from one rank of the team to the others. */
static void open_from(hpc_moving *w, const hpc_team *t, int from) {
    const uint64_t nbytes = w->call.count * w->request.element;
    for (int i = 0; i < t->n; i++) {
        if (t->ranks[i] == from && i != t->me) open_stream(&w->in[HPC_FIRST][from], w->call.recv, nbytes, 0);
        if (t->ranks[t->me] == from && i != t->me)
            open_stream(&w->out[HPC_FIRST][t->ranks[i]], w->call.recv, nbytes, 0);
    }
}

static int open_broadcast(hpc_moving *w) {
    const hpc_calls *calls = w->request.calls;
    const int root = w->call.root;
    w->last_stage = w->by_hosts;
    if (!w->by_hosts) {
        open_from(w, &calls->all, root);
    } else if (w->stage == 0) {
        if (calls->place_of[root] == calls->host.me) open_from(w, &calls->across, root);
    } else {
        open_from(w, &calls->host, calls->host.ranks[calls->place_of[root]]);
    }
    return HPC_OK;
}

static int open_allgather(hpc_moving *w) {
    const hpc_calls *calls = w->request.calls;
    const int me = calls->all.me, n_hosts = calls->across.n;
    uint64_t *at = w->at[0];
    char *recv = w->call.recv;
    lay(at, calls->all.n, w->call.recv_counts, w->call.count, 0, w->request.element);
    if (w->stage == 0) copy_own(recv + at[me], w->call.send, bytes_of(at, me));
    w->last_stage = w->by_hosts ? n_hosts : 0;
    if (!w->by_hosts)
        open_parts(w, HPC_FIRST, &calls->all, recv, at);
    else if (w->stage == 0)
        open_shares(w, HPC_FIRST, &calls->across, recv, at, calls->across.ranks, 1);
    else
        open_shares(w, HPC_FIRST, &calls->host, recv, at, calls->grid + w->stage - 1, n_hosts);
    return HPC_OK;
}

int hpc_moving_open(hpc_moving *w) {
    const hpc_calls *calls = w->request.calls;
    const size_t streams = (size_t)calls->all.n * sizeof(hpc_stream);
    for (int i = 0; i < HPC_PARTS; i++) {
        memset(w->out[i], 0, streams);
        memset(w->in[i], 0, streams);
    }
    w->fold.nbytes = w->fold.done = 0;
    w->reached = 0;
    if (w->call.what == HPC_ALLREDUCE) return open_allreduce(w);
    if (w->call.what == HPC_BROADCAST) return open_broadcast(w);
    if (w->call.what == HPC_ALLGATHER) return open_allgather(w);
    const int parts = w->call.what == HPC_REDUCE;
    lay(w->at[0], calls->all.n, hpc_call_sent(&w->call), w->call.count, parts, w->request.element);
    lay(w->at[1], calls->all.n, hpc_call_received(&w->call), w->call.count, parts, w->request.element);
    if (w->call.what == HPC_REDUCE) return open_reduce(w);
    if (w->call.what == HPC_REDUCE_SCATTER)
        return open_fold(w, &calls->all, w->at[0], 0, w->call.send, w->call.recv, w->call.op);
    open_copies(w);
    return HPC_OK;
}

/* ---- the call ---- */

static void describe(hpc_moving *w, const hpc_collective_call *c) {
    const int uneven = c->send_counts != NULL || c->recv_counts != NULL;
    w->request.call = (hpc_described){.number = w->request.calls->made + 1,
                                      .count = uneven ? HPC_UNEVEN : c->count,
                                      .root = hpc_call_has_root(c->what) ? c->root : -1,
                                      .what = (uint8_t)c->what,
                                      .type = (uint8_t)c->type,
                                      .op = hpc_call_reduces(c->what) ? (uint8_t)c->op : 0};
}

static void drop(hpc_request *r) {
    hpc_moving *w = (hpc_moving *)(void *)r;
    free(w->fold.scratch);
    free(w->fold.pieces);
    free(w->fold.hosts);
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
        const int talks = first->open || second->open || w->in[HPC_FIRST][p].open || w->in[HPC_SECOND][p].open;
        const int left = p == w->request.deserter || (talks && !hpc_mail_is_near(r->calls->mail, p));
        if (p != me && (left || comes || reads || (sends && !hpc_box_has_room(box, p)))) ranks[n++] = p;
    }
    if (n == 0) ranks[n++] = me;
    return n;
}

/* Ranks no longer agree on their next collective, so this rank makes no more. */
static void give_up(hpc_request *r) {
    char *broken = r->calls->broken;
    if (broken[0] == 0) snprintf(broken, HPC_COMPLAINT_BYTES, "%s was given up before its end", r->op);
}

/* A work is in no list until it is whole. */
static void unlist(hpc_request *r) {
    hpc_moving **at = &r->calls->first;
    while (*at != NULL && &(*at)->request != r) at = &(*at)->next;
    if (*at == NULL) return;
    *at = (*at)->next;
    if (*at == NULL) r->calls->last = at;
}

static const hpc_request_kind work_kind = {waits_for, give_up, unlist, drop, 1};

/* Allocates a work with its lists. calloc takes longer than malloc: it does not use the thread's list of freed
 * memory. */
static hpc_moving *allocate(int size) {
    const size_t streams = (size_t)size * sizeof(hpc_stream), places = ((size_t)size + 1) * sizeof(uint64_t);
    char *at = malloc(sizeof(hpc_moving) + 2 * HPC_PARTS * streams + HPC_PARTS * places);
    hpc_moving *w = (void *)at;
    if (at == NULL) return NULL;
    memset(w, 0, sizeof *w);
    at += sizeof *w;
    for (int i = 0; i < HPC_PARTS; i++, at += 2 * streams + places) {
        w->out[i] = (void *)at;
        w->in[i] = (void *)(at + streams);
        w->at[i] = (void *)(at + 2 * streams);
    }
    return w;
}

int hpc_moving_make(hpc_calls *calls, const hpc_collective_call *c, hpc_moving **work) {
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
    w->call = *c;
    describe(w, c);
    hpc_call_uses(c, g->rank, g->size, w->request.uses);
    w->by_hosts = goes_by_hosts(calls, c);
    status = hpc_request_add(calls, &w->request);
    if (status != HPC_OK) {
        drop(&w->request);
        return status;
    }
    status = hpc_moving_open(w);
    if (status != HPC_OK) {
        hpc_request_remove(&w->request);
        drop(&w->request);
        return status;
    }
    calls->made++;
    *work = w;
    return HPC_OK;
}
