/* SSP(s) among peers (SFB, section 4.2, equation 4). A worker's *clock* of a key is the number of its pushes since the
 * last publish. Step c of a worker begins when its parameters have all its own updates, and of each peer that sends to
 * it the updates up to some clock from c - s to c: at least those, so that no copy is far behind, and none of a later
 * clock, so that a fast peer's updates wait.
 *
 * A push of this rank is an event of its own share, like a peer's. The share applies nothing while the worker computes:
 * it waits for the next push of its worker, until every open peer has pushed c - s times, and then applies all that it
 * may: in the order of clocks, and of ranks for each clock, so that updates with the same arguments of the rule are one
 * fold. Each update has the arguments that its worker had set, as it has everywhere else: the copies of all workers
 * come to have the same updates. Then it answers each peer with the number of that peer's updates that it has applied,
 * which frees their slots, and its worker.
 *
 * Slots. d is the plan's depth, s + 2 at least. A push waits until its slot is free. A peer that has pushed t times has
 * applied all that came of clocks up to t before its last push. So where this rank is the faster one it may push up to
 * t + s + 1, and has the slots t + 1 to t + s + 1 under way: it never waits. A rank that was slower than a peer and
 * overtakes it within one of that peer's steps may wait for the end of that step.
 *
 * Settle applies what comes up to the worker's own clock, publish and close all that comes; the worker does not compute
 * meanwhile. A peer that has closed counts no more. It closes once all that it sends to have applied its last push,
 * and then serves until all have closed, so nothing of others is missing in its copy.
 *
 * Writers, readers and order:
 *   parameters        this rank's core, between the event of the worker's push and the answer, or while share.runs is
 *                     not 0; the worker reads them before that event and after that answer
 *   came, applied     the core; a wait reads them (relaxed) to name ranks, settle and publish behind an acquire
 *   base, runs        the worker, with the core paused
 *
 * Nobody waits in a circle: the slowest worker waits for no one, and it frees the slots of all others. */
#include <stdlib.h>
#include <string.h>

#include "discipline/each.h"
#include "discipline/graph.h"
#include "discipline/passing.h"
#include "discipline/stale_peers.h"
#include "engine/answer.h"
#include "engine/core.h"
#include "engine/kind.h"
#include "engine/row.h"
#include "engine/send.h"
#include "engine/stages.h"

enum { RUNS_TO_OWN = 1, RUNS_TO_ALL = 2 };

/* A share's own, at its owner; arrays are by input. */
typedef struct peer_clocks {
    const hpc_engine *engine;
    _Atomic uint64_t *came;    /* pushes that are there */
    _Atomic uint64_t *applied; /* of these */
    uint64_t *base;            /* pushes before the last publish */
    uint64_t *upto;            /* clocks up to which the present fold applies */
    int *rows_came;            /* of the present push of each input: rows that are there */
    _Atomic uint64_t late;     /* clocks by which the slowest peer was behind the last step */
    int n, own;                /* inputs; the number of this rank's */
    int runs;                  /* 0: applies when the worker has pushed; else at once: up to its clock, or all */
} peer_clocks;

/* A core's own. */
typedef struct peer_shares {
    hpc_own_shares own;
    int n_closed; /* ranks that had closed at its last look */
} peer_shares;

/* The exchange's own. */
typedef struct peering {
    uint64_t begun[HPC_PLAN_DEPTH]; /* steps, by how far the slowest peer was behind */
    peer_shares *cores;
    hpc_ways *passing; /* where updates pass from peer to peer */
    uint64_t *counted; /* by key: the push whose step was counted last */
    uint64_t *last;    /* [key * size + rank], in a publish: pushes of each rank */
} peering;

static peering *peering_of(const hpc_engine *en) {
    return en->own;
}

void hpc_stale_peers_pass(hpc_engine *en, hpc_ways *passing) {
    peering_of(en)->passing = passing;
}

hpc_ways *hpc_stale_peers_passing(const hpc_engine *en) {
    return peering_of(en)->passing;
}

/* ---- what is asked for ---- */

int hpc_stale_peers_check(const hpc_context *c, const hpc_exchange_config *f) {
    enum { MOST = HPC_PLAN_DEPTH - 2 };
    const hpc_rule *own = hpc_config_own_fold(f);
    (void)c;
    int status = hpc_each_check(f);
    if (status == HPC_OK) status = hpc_peers_check(c, f);
    if (status != HPC_OK) return status;
    if (f->staleness > MOST)
        return hpc_fail(HPC_ERR_INVALID, "exchange", "exchange: staleness is %d; 0 to %d are possible among peers",
                        f->staleness, MOST);
    if (own != NULL)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: rule %s has a fold of its own; SSP among peers needs the weighted sum", own->name);
    if (f->plan->rows[0].depth >= f->staleness + 2) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, "exchange", "exchange: the plan has depth %d; SSP(%d) among peers needs %d or more",
                    f->plan->rows[0].depth, f->staleness, f->staleness + 2);
}

/* ---- open ---- */

static int no_memory(const char *op) {
    return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the clocks of peers", op);
}

static int open_share(const hpc_engine *en, hpc_share *share, const char *op) {
    const hpc_work *w = hpc_first_work(en, share);
    const size_t n = (size_t)w->row->n_in;
    peer_clocks *c = share->own = calloc(1, sizeof *c);
    if (c == NULL) return no_memory(op);
    c->engine = en;
    c->n = w->row->n_in;
    c->own = hpc_row_input_of(w, share->owner, 0);
    c->came = calloc(n, sizeof *c->came);
    c->applied = calloc(n, sizeof *c->applied);
    c->base = calloc(n, sizeof *c->base);
    c->upto = calloc(n, sizeof *c->upto);
    c->rows_came = calloc(n, sizeof *c->rows_came);
    return c->came != NULL && c->applied != NULL && c->base != NULL && c->upto != NULL && c->rows_came != NULL
               ? HPC_OK
               : no_memory(op);
}

int hpc_stale_peers_open(hpc_engine *en, const char *op) {
    peering *its = en->own = calloc(1, sizeof *its);
    if (its == NULL) return no_memory(op);
    its->cores = calloc((size_t)en->n_own_cores + 1, sizeof *its->cores);
    its->last = calloc((size_t)en->plan->n_keys * (size_t)en->context->group.size, sizeof *its->last);
    its->counted = calloc((size_t)en->plan->n_keys, sizeof *its->counted);
    if (its->cores == NULL || its->last == NULL || its->counted == NULL) return no_memory(op);
    int status = HPC_OK;
    for (int c = 0; c < en->n_own_cores && status == HPC_OK; c++) {
        hpc_own_shares *own = &its->cores[c].own;
        en->cores[c].own = &its->cores[c];
        own->shares = hpc_own_shares_of(en, &en->cores[c], &own->n);
        if (own->shares == NULL) return no_memory(op);
        for (int i = 0; i < own->n && status == HPC_OK; i++) status = open_share(en, own->shares[i], op);
    }
    return status;
}

void hpc_stale_peers_free(hpc_engine *en) {
    peering *its = en->own;
    for (int s = 0; s < en->layout.n_shares; s++) {
        peer_clocks *c = en->layout.shares[s].own;
        if (c == NULL) continue;
        free(c->came);
        free(c->applied);
        free(c->base);
        free(c->upto);
        free(c->rows_came);
        free(c);
        en->layout.shares[s].own = NULL;
    }
    for (int c = 0; its != NULL && its->cores != NULL && c < en->n_own_cores; c++) free(its->cores[c].own.shares);
    for (int c = 0; en->cores != NULL && c < en->n_own_cores; c++) en->cores[c].own = NULL;
    if (its != NULL) {
        free(its->cores);
        free(its->last);
        free(its->counted);
    }
    free(its);
    en->own = NULL;
}

/* ---- clocks ---- */

static uint64_t came_at(const peer_clocks *c, int input) {
    return atomic_load_explicit(&c->came[input], memory_order_relaxed) - c->base[input];
}

static uint64_t applied_at(const peer_clocks *c, int input) {
    return atomic_load_explicit(&c->applied[input], memory_order_relaxed) - c->base[input];
}

static int is_open(const hpc_engine *en, int rank) {
    return hpc_closed_signal(en, rank) == 0;
}

static uint64_t behind(const hpc_engine *en, uint64_t clock) {
    const uint64_t staleness = (uint64_t)en->asked.staleness;
    return clock > staleness ? clock - staleness : 0;
}

/* Whether the worker has pushed for the step at clock n, and no open peer is too far behind it. */
static int is_time(const hpc_engine *en, const hpc_share *share, uint64_t n) {
    const peer_clocks *c = share->own;
    const hpc_work *w = hpc_first_work(en, share);
    if (came_at(c, c->own) < n) return 0;
    for (int e = 0; e < c->n; e++)
        if (came_at(c, e) < behind(en, n) && is_open(en, w->inputs[e].rank)) return 0;
    return 1;
}

/* ---- the core ---- */

static int has_equal_args(const double *a, const double *b) {
    return memcmp(a + 1, b + 1, HPC_ARGS_BYTES - sizeof *a) == 0;
}

/* Applies n inputs, which are in the core's arrays and have the same arguments. */
static int apply(hpc_core *core, hpc_work *w, int n, const double *args) {
    const hpc_inputs inputs = {.bases = core->bases,
                               .weights = core->base_weights,
                               .from = core->base_inputs,
                               .n = n,
                               .codec = w->in_codec,
                               .args = args,
                               .n_updates = n,
                               .slot = w->share->version};
    return n > 0 ? hpc_row_work(core, w, &inputs) : 0;
}

/* Applies to a row all updates that are there, and not applied yet, up to a clock: in the order of clocks, then of
 * inputs. */
static int apply_row(hpc_core *core, hpc_work *w) {
    const hpc_engine *en = core->engine;
    const peer_clocks *c = w->share->own;
    const uint64_t *upto = c->upto;
    uint64_t first = UINT64_MAX, last = 0;
    const double *args = NULL;
    int n = 0;
    for (int e = 0; e < c->n; e++) {
        if (upto[e] <= applied_at(c, e)) continue;
        if (applied_at(c, e) < first) first = applied_at(c, e);
        if (upto[e] > last) last = upto[e];
    }
    for (uint64_t t = first + 1; first != UINT64_MAX && t <= last; t++)
        for (int e = 0; e < c->n; e++) {
            if (t <= applied_at(c, e) || t > upto[e]) continue;
            const hpc_input *in = &w->inputs[e];
            const uint64_t slot = (c->base[e] + t - 1) % (uint64_t)en->layout.depth;
            if (n > 0 && !has_equal_args(args, in->args[slot])) {
                if (apply(core, w, n, args) != 0) return -1;
                n = 0;
            }
            args = in->args[slot];
            core->bases[n] = in->slots + (size_t)slot * in->stride;
            core->base_inputs[n] = in;
            core->base_weights[n++] = w->weights[e];
            if (in->nbytes > 0) hpc_count_received(en, in->rank, in->nbytes);
        }
    return apply(core, w, n, args);
}

/* Applies what is there up to a clock of the peers, and up to own of this rank, and answers those whose updates are
 * applied; this rank last. Nonzero when the exchange has failed. */
static int apply_all(hpc_core *core, hpc_share *share, uint64_t cap, uint64_t own) {
    const hpc_engine *en = core->engine;
    peer_clocks *c = share->own;
    const hpc_work *first = hpc_first_work(en, share);
    const int signal = hpc_signal_applied(en, (int)(share - en->layout.shares));
    uint64_t *upto = c->upto;
    int news = 0;
    for (int e = 0; e < c->n; e++) {
        const uint64_t most = e == c->own ? own : cap, there = came_at(c, e);
        upto[e] = there < most ? there : most;
        if (upto[e] < applied_at(c, e)) upto[e] = applied_at(c, e);
        news += upto[e] > applied_at(c, e);
    }
    if (news == 0) return 0;
    for (int i = 0; i < share->n_rows; i++)
        if (apply_row(core, &en->work[en->work_of[share->rows[i]]]) != 0) return -1;
    for (int i = 1; i <= c->n; i++) {
        const int e = (c->own + i) % c->n;
        if (upto[e] <= applied_at(c, e)) continue;
        const uint64_t pushes = c->base[e] + upto[e];
        atomic_store_explicit(&c->applied[e], pushes, memory_order_release);
        if (e == c->own) share->version = pushes;
        hpc_share_answer(core, first->inputs[e].rank, signal, pushes);
    }
    if (c->runs != 0) hpc_bell_ring(en->context->group.bell); /* the worker waits for what was applied */
    return 0;
}

/* Notes how far the slowest peer is behind the step at clock n. */
static void note_late(const hpc_engine *en, const hpc_share *share, uint64_t n) {
    peer_clocks *c = share->own;
    const hpc_work *w = hpc_first_work(en, share);
    uint64_t least = n;
    for (int e = 0; e < c->n; e++)
        if (came_at(c, e) < least && is_open(en, w->inputs[e].rank)) least = came_at(c, e);
    atomic_store_explicit(&c->late, n - least, memory_order_relaxed);
}

/* Applies what may be applied now; returns the number of times that it did so. */
static int go_on(hpc_core *core, hpc_share *share) {
    const hpc_engine *en = core->engine;
    const peer_clocks *c = share->own;
    int n = 0;
    for (uint64_t next = applied_at(c, c->own) + 1; is_time(en, share, next); next++, n++) {
        if (hpc_engine_has_failed(en)) return n;
        note_late(en, share, next);
        if (apply_all(core, share, next, next) != 0) return n;
    }
    const uint64_t own = applied_at(c, c->own);
    if (c->runs != 0 && !hpc_engine_has_failed(en))
        apply_all(core, share, c->runs == RUNS_TO_OWN ? own : UINT64_MAX, own);
    return n;
}

static int came(hpc_core *core, hpc_share *share, int input) {
    peer_clocks *c = share->own;
    if (input < 0) return 0;
    const uint64_t there = atomic_load_explicit(&c->came[input], memory_order_relaxed);
    if (there - atomic_load_explicit(&c->applied[input], memory_order_relaxed) >= (uint64_t)core->engine->layout.depth)
        return 0; /* more than there are slots */
    atomic_store_explicit(&c->came[input], there + 1, memory_order_relaxed);
    go_on(core, share);
    return 1;
}

int hpc_stale_peers_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    (void)slot;
    return came(core, share, hpc_row_input_of(hpc_first_work(core->engine, share), rank, 0));
}

int hpc_stale_peers_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    peer_clocks *c = w->share->own;
    (void)slot;
    if (++c->rows_came[input] < w->share->n_rows) return 1;
    c->rows_came[input] = 0;
    return came(core, w->share, input);
}

/* A peer that has closed may have been the one that a step waited for. */
int hpc_stale_peers_work(hpc_core *core) {
    const hpc_engine *en = core->engine;
    peer_shares *its = core->own;
    int n = 0, n_closed = 0;
    for (int r = 0; r < en->context->group.size; r++) n_closed += !is_open(en, r);
    if (n_closed == its->n_closed) return 0;
    its->n_closed = n_closed;
    for (int i = 0; i < its->own.n; i++) n += go_on(core, its->own.shares[i]);
    return n;
}

/* ---- the worker ---- */

/* The answer is a release behind which the core's note is. */
int hpc_stale_peers_ended(hpc_engine *en, int key, const char *op) {
    const hpc_pushed *k = &en->keys[key];
    uint64_t most = 0;
    (void)op;
    for (int i = 0; i < k->n_awaited; i++) {
        peer_clocks *c = en->layout.shares[k->awaited[i]].own;
        const uint64_t late = atomic_load_explicit(&c->late, memory_order_relaxed);
        if (late > most) most = late;
    }
    if (peering_of(en)->counted[key] != k->pushes && most <= (uint64_t)en->asked.staleness)
        peering_of(en)->begun[most]++;
    peering_of(en)->counted[key] = k->pushes;
    return HPC_OK;
}

/* Adds the rank that holds up push n of an input: the one whose push it is, or if that has made it the one that passes
 * it on. Of a rank whose memory is not mapped nobody knows what it has made, and both are added. */
static int add_holder(const hpc_engine *en, const hpc_share *share, int input, uint64_t n, int *ranks, int found) {
    const int rank = hpc_first_work(en, share)->inputs[input].rank;
    const int sender = hpc_edge_sender(&hpc_first_work(en, share)->row->in[input]);
    const uint64_t pushes = hpc_pushes_of(en, rank, share->key);
    if (sender == rank || pushes == UINT64_MAX || pushes < n) found = hpc_add_rank(ranks, found, rank);
    if (pushes == UINT64_MAX || pushes >= n) found = hpc_add_rank(ranks, found, sender);
    return found;
}

/* Adds the open peers that a share of this rank waits for, for the step behind push n. */
static int missing(const hpc_engine *en, int s, uint64_t n, int *ranks, int found) {
    const hpc_share *share = &en->layout.shares[s];
    const peer_clocks *c = share->own;
    const hpc_work *w = hpc_first_work(en, share);
    const uint64_t least = behind(en, n - c->base[c->own]);
    for (int e = 0; e < c->n; e++)
        if (e != c->own && came_at(c, e) < least && is_open(en, w->inputs[e].rank))
            found = add_holder(en, share, e, c->base[e] + least, ranks, found);
    return found;
}

int hpc_stale_peers_awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(en, key, ticket, for_slot, ranks, hpc_share_has_answered, missing);
}

/* ---- settle and publish ---- */

/* The core of a share applies what comes from here on, as far as runs says; with 0 only when the worker has pushed. */
static void let_run(hpc_engine *en, hpc_share *share, int runs) {
    hpc_core *core = &en->cores[share->core];
    hpc_core_pause(core);
    ((peer_clocks *)share->own)->runs = runs;
    go_on(core, share);
    hpc_core_resume(core);
}

/* A wait for the updates of peers: those of a key up to this rank's clock, or (key -1) all that were pushed. */
typedef struct catching {
    hpc_engine *en;
    int key;
} catching;

/* The number of an input's pushes that a share waits for. */
static uint64_t goal_of(const catching *c, const hpc_share *share, int input) {
    const hpc_engine *en = c->en;
    const peer_clocks *its = share->own;
    const int rank = hpc_first_work(en, share)->inputs[input].rank;
    if (c->key < 0) return peering_of(en)->last[(size_t)share->key * (size_t)en->context->group.size + (size_t)rank];
    return is_open(en, rank) ? its->base[input] + en->keys[share->key].pushes - its->base[its->own] : 0;
}

/* Adds the ranks whose updates are lacking to ranks (NULL: only counts one). */
static int lacking(const catching *c, int *ranks) {
    const hpc_engine *en = c->en;
    int n = 0;
    for (int s = 0; s < en->layout.n_shares; s++) {
        const hpc_share *share = &en->layout.shares[s];
        const peer_clocks *its = share->own;
        if (share->owner != en->context->group.rank || (c->key >= 0 && share->key != c->key)) continue;
        for (int e = 0; e < its->n; e++) {
            const uint64_t goal = goal_of(c, share, e);
            if (atomic_load_explicit(&its->applied[e], memory_order_acquire) >= goal) continue;
            if (ranks == NULL) return 1;
            n = add_holder(en, share, e, goal, ranks, n);
        }
    }
    return n;
}

static int has_caught_up(void *arg) {
    const catching *c = arg;
    hpc_worker_progress(c->en);
    if (c->en->inline_progress) hpc_context_work(c->en->context);
    return hpc_engine_has_failed(c->en) || lacking(c, NULL) == 0;
}

static int late_peers(void *arg, int *ranks) {
    const catching *c = arg;
    const int n = lacking(c, ranks);
    return n > 0 ? n : hpc_add_rank(ranks, n, c->en->context->group.rank);
}

static int catch_up(catching c, double timeout, const char *op) {
    const hpc_wait wait = {op, has_caught_up, late_peers, &c, 0};
    const int status = has_caught_up(&c) ? HPC_OK : hpc_wait_for(&c.en->context->group, &wait, timeout);
    return status == HPC_OK ? hpc_engine_check(c.en, op) : status;
}

/* Waits until this rank has applied the updates of its peers up to its own clock. */
int hpc_stale_peers_settle(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_awaited; i++) let_run(en, &en->layout.shares[k->awaited[i]], RUNS_TO_OWN);
    const int status = catch_up((catching){en, key}, hpc_limit_left(en, l), op);
    for (int i = 0; i < k->n_awaited; i++) let_run(en, &en->layout.shares[k->awaited[i]], 0);
    return status;
}

/* Nothing that comes from here on changes a step of this rank. */
int hpc_stale_peers_finish(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_awaited; i++) let_run(en, &en->layout.shares[k->awaited[i]], RUNS_TO_ALL);
    return hpc_peers_finish(en, key, l, op);
}

/* All peers go on from one clock, with all updates. Nothing is under way on any rank, and no rank pushes before the
 * publish has ended. */
int hpc_stale_peers_level(hpc_engine *en, const char *op, double deadline) {
    const size_t size = (size_t)en->context->group.size;
    int status = hpc_each_learn_pushes(en, peering_of(en)->last, op, deadline);
    if (status != HPC_OK) return status;
    for (int s = 0; s < en->layout.n_shares; s++)
        if (en->layout.shares[s].owner == en->context->group.rank) let_run(en, &en->layout.shares[s], RUNS_TO_ALL);
    status = catch_up((catching){en, -1}, hpc_left(deadline), op);
    status = hpc_context_agree(en->context, op, status, deadline);
    for (int s = 0; s < en->layout.n_shares; s++) {
        const hpc_share *share = &en->layout.shares[s];
        peer_clocks *c = share->own;
        if (share->owner != en->context->group.rank) continue;
        hpc_core_pause(&en->cores[share->core]);
        c->runs = 0;
        for (int e = 0; e < c->n && status == HPC_OK; e++)
            c->base[e] =
                peering_of(en)->last[(size_t)share->key * size + (size_t)hpc_first_work(en, share)->inputs[e].rank];
        hpc_core_resume(&en->cores[share->core]);
    }
    return status;
}

/* ---- facts ---- */

uint64_t hpc_stale_peers_folded_of(const hpc_share *share, int rank) {
    const peer_clocks *c = share->own;
    const hpc_work *w = hpc_first_work(c->engine, share);
    const int input = hpc_row_input_of(w, rank, 0);
    return input < 0 ? 0 : atomic_load_explicit(&c->applied[input], memory_order_relaxed);
}

int hpc_stale_peers_staleness(const hpc_engine *en, uint64_t *counts, int cap) {
    for (int i = 0; i < cap && i <= en->asked.staleness; i++) counts[i] = peering_of(en)->begun[i];
    return en->asked.staleness;
}
