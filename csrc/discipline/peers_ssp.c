/* SSP(s) and ASYNC among peers (SFB, section 4.2, equation 4). A worker's *clock* of a key is the number of its pushes
 * since the last publish. Step c of a worker begins when its parameters have all its own updates and, of each peer that
 * sends to it, the updates up to a clock of at least c - s and at most c. The lower bound keeps copies from falling
 * behind; the upper bound makes updates of faster peers wait.
 *
 * A rank's own push is an event of the rank's share, like the push of a peer. The share applies nothing while the
 * worker computes. It waits for the worker's next push, then until every open peer has pushed c - s times. Then it
 * applies all updates that it may, in the order of clocks and, for the same clock, of ranks; updates with the same
 * arguments of the rule are one fold. Each update is applied with the arguments that its worker had set, at all ranks,
 * so all copies end with the same updates. Then the share tells each peer, and its own worker, how many of their
 * updates it has applied; the slots of these updates are free.
 *
 * Slots. d is the plan's depth, at least s + 2. A push waits until its slot is free. At its push t, a peer applies all
 * updates of clocks up to t that came before this push. So if a peer has made t pushes, a faster rank may push up to t
 * + s + 1, and only the slots of its pushes t + 1 to t + s + 1 are in use; so it never waits for a slot. A rank that
 * was slower than a peer and overtakes it within one of that peer's steps may wait for the end of that step.
 *
 * ASYNC applies all updates that have come, even of later clocks, and otherwise equals SSP(d - 2): only the slots limit
 * by how many pushes a worker may be ahead of a peer. A worker waits for a free slot at the end of a step, since its
 * own share then frees the slots of others. If it waited in its next push, two workers could wait for each other. So a
 * slow worker never waits for a fast one, not even for one that waits at a barrier.
 *
 * During settle the share applies updates up to the worker's own clock as they come, during publish and close all
 * updates; the worker does not compute then. No step waits for a peer that has closed. A peer closes when all its
 * receivers have applied its last push, and then serves until all ranks have closed, so its copy gets all updates of
 * the others.
 *
 * Writers, readers and order:
 * - parameters: written by this rank's core between the event of the worker's push and the answer, or while
 *   peer_share.runs is not 0; the worker reads them before that event and after that answer;
 * - came, applied: written by the core; a wait reads them without order (relaxed) to name ranks, settle and publish
 *   after an acquire;
 * - base, runs: written by the worker, with the core paused.
 *
 * Waits form no circle: the slowest worker does not wait, and it frees the slots of all others. */
#include <string.h>

#include "discipline/discipline.h"
#include "discipline/servers.h"
#include "discipline/graph.h"
#include "discipline/peers.h"
#include "engine/owner/signals.h"
#include "discipline/clocks.h"
#include "engine/owner/core.h"
#include "engine/owner/kind.h"
#include "engine/owner/row.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"

enum { RUNS_TO_OWN = 1, RUNS_TO_ALL = 2 };

/* A share's state, at its owner. */
typedef struct peer_share {
    _Atomic uint64_t late; /* how many clocks the slowest peer was behind the last step */
    int runs; /* 0: the share applies only when the worker has pushed; otherwise as updates come, up to the worker's
                 clock or without limit */
} peer_share;

/* The state of the scheme. */
typedef struct peering {
    uint64_t *counted; /* by key: the push whose step was counted last */
    uint64_t *last;    /* [key * size + rank], in a publish: how often each rank has pushed */
} peering;

/* ---- check ---- */

static int check(const hpc_context *c, const hpc_exchange_config *f) {
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
                        "exchange: rule %s has a fold of its own; %s among peers needs the weighted sum", own->name,
                        hpc_consistency_name(f->consistency));
    return hpc_slots_check(f, "among peers");
}

/* ---- open ---- */

static int open_all(hpc_scheme *sc, const char *op) {
    const size_t size = (size_t)sc->context->group.size, keys = (size_t)sc->plan->n_keys;
    peering *its = sc->own = hpc_scheme_take(sc, 1, sizeof *its, op);
    if (its == NULL || hpc_clocks_open(sc, op) != HPC_OK || hpc_slots_open(sc, op) != HPC_OK) return HPC_ERR_MEMORY;
    its->last = hpc_scheme_take(sc, keys * size, sizeof *its->last, op);
    its->counted = hpc_scheme_take(sc, keys, sizeof *its->counted, op);
    int enough = its->last != NULL && its->counted != NULL;
    for (int s = 0; s < sc->layout.n_shares && enough; s++) {
        hpc_share *share = &sc->layout.shares[s];
        if (share->clocks == NULL) continue;
        share->own = hpc_scheme_take(sc, 1, sizeof(peer_share), op);
        enough = share->own != NULL;
    }
    return enough ? HPC_OK : HPC_ERR_MEMORY;
}

/* ---- clocks ---- */

/* Return the rank of an input of a share, and its clock. */
static int rank_of(const hpc_scheme *sc, const hpc_share *share, int input) {
    return hpc_first_work(sc, share)->inputs[input].rank;
}

static hpc_clock *input_clock(const hpc_scheme *sc, const hpc_share *share, int input) {
    return &share->clocks[rank_of(sc, share, input)];
}

static hpc_clock *own_clock(const hpc_share *share) {
    return &share->clocks[share->owner];
}

static int n_inputs(const hpc_scheme *sc, const hpc_share *share) {
    return hpc_first_work(sc, share)->row->n_in;
}

/* Returns the smallest clock of the open peers, counting updates that have come; at most n. */
static uint64_t least_of_open(const hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    for (int e = 0; e < n_inputs(sc, share); e++) {
        const uint64_t came = hpc_clock_came(input_clock(sc, share, e));
        if (came < n && hpc_sender_is_open(sc, share->key, rank_of(sc, share, e))) n = came;
    }
    return n;
}

/* Returns whether the worker has made push n, and no open peer is too far behind it for the next step. */
static int is_time(const hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    const uint64_t enough = hpc_clock_behind(sc, n);
    return hpc_clock_came(own_clock(share)) >= n && least_of_open(sc, share, enough) >= enough;
}

/* ---- the core ---- */

static int has_equal_args(const double *a, const double *b) {
    return memcmp(a + 1, b + 1, HPC_ARGS_BYTES - sizeof *a) == 0;
}

/* Applies to a row all updates that have come and are not applied, for each sender up to the clock hpc_clock.at: in the
 * order of clocks and, for the same clock, of inputs. */
static int apply_row(hpc_core *core, hpc_work *w, uint64_t first, uint64_t last) {
    const hpc_scheme *sc = core->scheme;
    hpc_inputs inputs = hpc_row_none(core, w, NULL, w->share->version);
    for (uint64_t t = first + 1; t <= last; t++)
        for (int e = 0; e < w->row->n_in; e++) {
            const hpc_input *in = &w->inputs[e];
            const hpc_clock *from = &w->share->clocks[in->rank];
            if (t <= hpc_clock_applied(from) || t > from->at) continue;
            const uint64_t slot = (from->base + t - 1) % (uint64_t)sc->layout.depth;
            if (!hpc_row_brings(hpc_first_work(sc, w->share), (int)slot, e)) continue;
            if (inputs.n > 0 && !has_equal_args(inputs.args, in->args[slot])) {
                if (hpc_row_work(core, w, &inputs) != 0) return -1;
                inputs.n = inputs.n_updates = 0;
            }
            inputs.args = in->args[slot];
            hpc_row_put_in(core, w, &inputs, e, slot);
            hpc_row_count_received(core, w, e);
        }
    return inputs.n > 0 ? hpc_row_work(core, w, &inputs) : 0;
}

/* Applies the updates that have come, up to clock cap of the peers and clock own of this rank, and answers their ranks,
 * this rank last. Returns nonzero if the exchange has failed. */
static int apply_all(hpc_core *core, hpc_share *share, uint64_t cap, uint64_t own) {
    const hpc_scheme *sc = core->scheme;
    const peer_share *p = share->own;
    const hpc_work *first = hpc_first_work(sc, share);
    const int signal = hpc_signal_applied(sc, (int)(share - sc->layout.shares)), n = first->row->n_in;
    uint64_t least = UINT64_MAX, last = 0; /* the updates to apply are of clocks above least, up to last */
    for (int e = 0; e < n; e++) {
        hpc_clock *from = &share->clocks[first->inputs[e].rank];
        const uint64_t most = from == own_clock(share) ? own : cap, there = hpc_clock_came(from);
        from->at = there < most ? there : most;
        if (from->at <= hpc_clock_applied(from)) continue;
        if (hpc_clock_applied(from) < least) least = hpc_clock_applied(from);
        if (from->at > last) last = from->at;
    }
    if (last == 0) return 0;
    for (int i = 0; i < share->n_rows; i++)
        if (apply_row(core, hpc_work_of(sc, share->rows[i]), least, last) != 0) return -1;
    for (int i = 1; i <= n; i++) {
        const int e = (hpc_row_input_of(first, share->owner, 0) + i) % n, rank = first->inputs[e].rank;
        hpc_clock *from = &share->clocks[rank];
        if (from->at <= hpc_clock_applied(from)) continue;
        const uint64_t pushes = from->base + from->at;
        for (uint64_t t = atomic_load_explicit(&from->applied, memory_order_relaxed) + 1; t <= pushes; t++)
            hpc_peers_note_used(sc, share, e, t);
        atomic_store_explicit(&from->applied, pushes, memory_order_release);
        if (rank == share->owner) share->version = pushes;
        hpc_share_answer(core, rank, signal, pushes);
    }
    if (p->runs != 0) hpc_bell_ring(sc->context->group.bell); /* the worker may wait for these updates */
    return 0;
}

/* Applies all updates that may be applied now; returns the number of steps. */
static int go_on(hpc_core *core, hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    peer_share *p = share->own;
    int n = 0;
    for (uint64_t next = hpc_clock_applied(own_clock(share)) + 1; is_time(sc, share, next); next++, n++) {
        if (hpc_scheme_has_failed(sc)) return n;
        atomic_store_explicit(&p->late, next - least_of_open(sc, share, next), memory_order_relaxed);
        if (apply_all(core, share, sc->asked.consistency == HPC_ASYNC ? UINT64_MAX : next, next) != 0) return n;
    }
    const uint64_t own = hpc_clock_applied(own_clock(share));
    if (p->runs != 0 && !hpc_scheme_has_failed(sc))
        apply_all(core, share, p->runs == RUNS_TO_OWN ? own : UINT64_MAX, own);
    return n;
}

static int came(hpc_core *core, hpc_share *share, int input, int slot, int how) {
    if (!hpc_peers_note_came(core->scheme, share, input, slot, how)) return 0;
    go_on(core, share);
    return 1;
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    hpc_clock *from = &w->share->clocks[w->inputs[input].rank];
    return !hpc_clock_row(from, w->share) || came(core, w->share, input, slot, HPC_CAME);
}

/* All rows of a share have the same inputs, so the first row counts for all. */
static void nothing_came(hpc_core *core, hpc_work *w, int slot, int input) {
    if (w == hpc_first_work(core->scheme, w->share)) came(core, w->share, input, slot, HPC_CAME_EMPTY);
}

static int other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    return hpc_core_empty_came(core, share, event, nothing_came);
}

/* Looks at all shares again when a peer has closed, since a step may have waited for that peer. */
static int work(hpc_core *core) {
    int n = 0;
    for (int i = 0, news = hpc_core_sees_closed(core); news && i < core->clocked->n; i++)
        n += go_on(core, core->clocked->shares[i]);
    return n;
}

/* ---- the worker ---- */

/* Counts how stale the last step was. The core writes p->late before it answers, and the answer is a release. */
static void ended(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    const peering *its = sc->own;
    uint64_t most = 0;
    for (int i = 0; i < k->n_awaited; i++) {
        const peer_share *p = sc->layout.shares[k->awaited[i]].own;
        const uint64_t late = atomic_load_explicit(&p->late, memory_order_relaxed);
        if (late > most) most = late;
    }
    if (its->counted[key] != k->pushes) hpc_count_begun(sc, most);
    its->counted[key] = k->pushes;
}

/* Adds the rank for which this rank waits to get push n of an input. That is the pushing rank; if it has made the push,
 * the rank that passes the push on. If the pushing rank's memory is not mapped on this rank, its pushes cannot be
 * counted, and both ranks are added. */
static int add_holder(const hpc_scheme *sc, const hpc_share *share, int input, uint64_t n, int *ranks, int found) {
    const int rank = rank_of(sc, share, input);
    const int sender = hpc_edge_sender(&hpc_first_work(sc, share)->row->in[input]);
    const uint64_t pushes = hpc_pushes_of(sc, rank, share->key);
    if (sender == rank || pushes == UINT64_MAX || pushes < n) found = hpc_add_rank(ranks, found, rank);
    if (pushes == UINT64_MAX || pushes >= n) found = hpc_add_rank(ranks, found, sender);
    return found;
}

/* Adds the open peers that a share of this rank waits for, for the step after a push. */
static int missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    const uint64_t least = hpc_clock_behind(sc, ticket / 2 - own_clock(share)->base);
    for (int e = 0; e < n_inputs(sc, share); e++) {
        const hpc_clock *from = input_clock(sc, share, e);
        if (from != own_clock(share) && hpc_clock_came(from) < least &&
            hpc_sender_is_open(sc, share->key, rank_of(sc, share, e)))
            found = add_holder(sc, share, e, from->base + least, ranks, found);
    }
    return found;
}

/* ---- settle and publish ---- */

/* Sets peer_share.runs of a share: from now on its core applies updates as they come, up to the limit that runs names;
 * if runs is 0, only when the worker has pushed. */
static void let_run(hpc_scheme *sc, hpc_share *share, int runs) {
    hpc_core *core = &sc->cores[share->core];
    hpc_core_pause(core);
    ((peer_share *)share->own)->runs = runs;
    go_on(core, share);
    hpc_core_resume(core);
}

static void let_key_run(hpc_scheme *sc, int key, int runs) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < k->n_awaited; i++) let_run(sc, &sc->layout.shares[k->awaited[i]], runs);
}

static void let_all_run(hpc_scheme *sc, int runs) {
    for (int c = 0; c < sc->n_own_cores; c++)
        for (int i = 0; i < sc->cores[c].clocked->n; i++) let_run(sc, sc->cores[c].clocked->shares[i], runs);
}

/* Returns how many pushes of an input a share waits for: as many as this rank has made or, if all is set, all that the
 * input's rank has made. */
static uint64_t goal_of(const hpc_scheme *sc, const hpc_share *share, int input, int all) {
    const int rank = rank_of(sc, share, input);
    if (all) return ((const peering *)sc->own)->last[share->key * sc->context->group.size + rank];
    if (!hpc_sender_is_open(sc, share->key, rank)) return 0;
    return share->clocks[rank].base + sc->keys[share->key].pushes - own_clock(share)->base;
}

/* Used as hpc_lacking. */
static int lacking(const hpc_scheme *sc, int key, int *ranks) {
    int n = 0;
    for (int s = 0; s < sc->layout.n_shares; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->clocks == NULL || (key >= 0 && share->key != key)) continue;
        for (int e = 0; e < n_inputs(sc, share); e++) {
            const uint64_t goal = goal_of(sc, share, e, key < 0);
            if (atomic_load_explicit(&input_clock(sc, share, e)->applied, memory_order_acquire) >= goal) continue;
            if (ranks == NULL) return 1;
            n = add_holder(sc, share, e, goal, ranks, n);
        }
    }
    return n;
}

/* Waits until this rank has applied the updates of its peers up to its own clock. */
static int settle(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    let_key_run(sc, key, RUNS_TO_OWN);
    const int status = hpc_wait_lacking(sc, key, lacking, l, op);
    let_key_run(sc, key, 0);
    return status;
}

/* Called in a publish: waits until all updates are applied, and sets all clocks to 0. No rank has a push pending, and
 * none pushes before the publish has ended. */
static int level(hpc_scheme *sc, hpc_limit *l, const char *op) {
    int status = hpc_clocks_learn_pushes(sc, ((peering *)sc->own)->last, op, l->deadline);
    if (status != HPC_OK) return status;
    let_all_run(sc, RUNS_TO_ALL);
    status = hpc_context_agree(sc->context, op, hpc_wait_lacking(sc, -1, lacking, l, op), l->deadline);
    let_all_run(sc, 0);
    if (status == HPC_OK) hpc_clocks_level(sc);
    return status;
}

/* After HPC_ON_FINISH the rank makes no more steps, so its core applies all updates as they come. The rank serves until
 * all ranks have closed; each rank closes when all others have read its last push. */
static int note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    if (moment == HPC_ON_END) ended(sc, key);
    if (moment == HPC_ON_FINISH) let_key_run(sc, key, RUNS_TO_ALL);
    if (moment == HPC_ON_SETTLE) return settle(sc, key, l, op);
    return moment == HPC_ON_PUBLISH ? level(sc, l, op) : HPC_OK;
}

const hpc_discipline hpc_discipline_peers_ssp = {
    .name = "ASYNC or SSP among peers",
    .check = check,
    .traits = HPC_OWN_PARAMS | HPC_PASSES_ON | HPC_EACH,
    .open = open_all,
    .gate = &(const hpc_gate){.row_came = row_came, .other_came = other_came, .work = work, .missing = missing},
    .pace = &(const hpc_pace){.may_push = hpc_push_after_last,
                              .send_share = hpc_push_in_turn,
                              .moments = HPC_ON_END | HPC_ON_SETTLE | HPC_ON_PUBLISH | HPC_ON_FINISH,
                              .note = note,
                              .has_read = hpc_share_has_answered},
};
