/* What a push or a pull waits for, whom that is, and how long it usually takes.
 *
 * A ticket is the number of a push of its key (or of a pull, under ASYNC), and done when every share of the key that
 * this rank takes part in has answered that number. Every look at a ticket works for this rank's own rows too.
 *
 * On a graph this rank's own shares make its parameters, so a pull waits for those alone (under BSP for all ranks', who
 * have met then). Those of its out-neighbours answer that they have read its update, which is NOTIFY-ACK's ACK: a push
 * waits until its slot is free again. */
#include "engine/engine.h"

int hpc_exchange_check(hpc_exchange *ex, const char *op) {
    int failed = atomic_load_explicit(&ex->failed, memory_order_acquire);
    if (failed != HPC_OK) {
        hpc_context_abort(ex->context, ex->failure);
        return hpc_fail(failed, op, "%s: %s", op, ex->failure);
    }
    hpc_group *g = &ex->context->group;
    int status = hpc_group_usable(g, op);
    for (int r = 0; r < g->size && status == HPC_OK && atomic_load_explicit(&g->revoked, memory_order_acquire); r++)
        status = hpc_group_peer_present(g, r, op);
    return status;
}

int hpc_worker_check_call(hpc_exchange *ex, int key, const char *op) {
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    if (ex->closed) return hpc_fail(HPC_ERR_INVALID, op, "%s: the exchange is closed", op);
    if (key < 0 || key >= ex->plan->n_keys)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: key %d is out of range; the exchange has %d", op, key,
                        ex->plan->n_keys);
    if (!ex->places[ex->context->group.rank].worker)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d only serves; push and pull are for workers", op,
                        ex->context->group.rank);
    if (ex->keys[key].n_shares == 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: by its plan rank %d takes no part in key %s", op,
                        ex->context->group.rank, ex->plan->keys[key].name);
    return hpc_exchange_check(ex, op);
}

/* Whether rank pushes key, and others therefore wait for it. */
static int pushes(const hpc_exchange *ex, int rank, int key) {
    return ex->pushers[(size_t)key * (size_t)ex->context->group.size + (size_t)rank];
}

const char *hpc_key_name(const hpc_exchange *ex, int key) {
    return ex == NULL || key < 0 || key >= ex->plan->n_keys ? NULL : ex->plan->keys[key].name;
}

/* ---- tickets ---- */

typedef struct look {
    hpc_exchange *ex;
    int key;
    uint64_t ticket;
    int closed; /* a rank that closed and will never push what is waited for, or freed and will never answer; -1 */
    int freed;
    int for_slot; /* on a graph: for the slot of push number ticket / 2, not for what became of it */
    unsigned looks;
    double measured; /* when the wait was last charged to whom it is for; 0: not yet */
} look;

static int signal_of(const hpc_exchange *ex, int share, uint64_t ticket) {
    return ticket & HPC_PULL_TICKET ? hpc_signal_pulled(ex, share) : hpc_signal_applied(ex, share);
}

/* acquire: what the owners read and wrote before they answered is behind us. */
static int is_answered(const hpc_exchange *ex, int share, uint64_t ticket) {
    return atomic_load_explicit(hpc_own_signal(ex->window, signal_of(ex, share, ticket)), memory_order_acquire) >=
           ticket / 2;
}

/* Whether a pull waits for the answer of this share. */
static int makes_params(const hpc_exchange *ex, const hpc_share *share) {
    return ex->n_phases == 0 || share->owner == ex->context->group.rank || ex->consistency == HPC_BSP;
}

int hpc_ticket_is_done(const hpc_exchange *ex, int key, uint64_t ticket) {
    const hpc_pushed *k = &ex->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (makes_params(ex, &ex->shares[k->shares[i]]) && !is_answered(ex, k->shares[i], ticket)) return 0;
    return 1;
}

static const uint64_t *closing_counts(const hpc_exchange *ex, int rank) {
    size_t n = (size_t)ex->plan->n_keys;
    return (const uint64_t *)(const void *)(hpc_own_part(ex) + ex->places[ex->context->group.rank].closed) +
           (size_t)rank * n;
}

uint64_t hpc_closed_signal(const hpc_exchange *ex, int rank) {
    return atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_closed(rank)), memory_order_acquire);
}

int hpc_feeds_share(const hpc_exchange *ex, const hpc_share *share, int rank) {
    return hpc_row_is_fed_by(ex, share->rows[0], rank);
}

/* Of a share of this rank's own: the first fold that is still to come. */
static uint64_t next_fold(const hpc_exchange *ex, int s) {
    return atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_applied(ex, s)), memory_order_acquire) + 1;
}

/* How far rank must have pushed for this rank's push number n of a graph to be folded; 0: it does not matter. */
static uint64_t needed_of(const hpc_exchange *ex, int rank, int key, uint64_t n) {
    const hpc_pushed *k = &ex->keys[key];
    int me = ex->context->group.rank;
    if (ex->consistency == HPC_BSP || ex->consistency == HPC_BARRIER) return n;
    if (ex->consistency == HPC_ASYNC || hpc_leaves_out(ex) || rank == me) return 0;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &ex->shares[k->shares[i]];
        if (share->owner != me || !hpc_feeds_share(ex, share, rank)) continue;
        if (ex->consistency == HPC_SSP) return n > (uint64_t)ex->staleness ? n - (uint64_t)ex->staleness : 0;
        for (uint64_t v = n, first = next_fold(ex, k->shares[i]); v >= first; v--) /* n waits for those before it */
            if (hpc_sends(ex, key, v, me, rank)) return v;
    }
    return 0;
}

/* A worker that closed before it pushed what a ticket waits for; else -1. */
static int closed_without(const hpc_exchange *ex, int key, uint64_t ticket) {
    int graph = ex->n_phases > 0;
    if (hpc_has_quorum(ex)) return -1; /* the owners know, and tell */
    for (int r = 0; r < ex->context->group.size && (graph || ex->consistency == HPC_BSP); r++)
        if (pushes(ex, r, key) && r != ex->context->group.rank && hpc_closed_signal(ex, r) != 0 &&
            closing_counts(ex, r)[key] < (graph ? needed_of(ex, r, key, ticket / 2) : ticket / 2))
            return r;
    return -1;
}

/* An owner that was freed before it answered; else -1. */
int hpc_ticket_freed(const hpc_exchange *ex, int key, uint64_t ticket) {
    const hpc_pushed *k = &ex->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (makes_params(ex, &ex->shares[k->shares[i]]) &&
            hpc_closed_signal(ex, ex->shares[k->shares[i]].owner) == HPC_FREED &&
            !is_answered(ex, k->shares[i], ticket))
            return ex->shares[k->shares[i]].owner;
    return -1;
}

/* Of one of the last depth pushes. Its phase is not what its number says where a checkpoint has been restored since. */
static int was_sent(const hpc_exchange *ex, int key, uint64_t n, int to) {
    int phase = ex->keys[key].phases[(n - 1) % (uint64_t)ex->depth];
    return hpc_phase_weight(ex, phase, to, ex->context->group.rank) != 0;
}

/* Whether the owner has closed, and what was on its way there has left this rank's memory. */
static int has_let_go(const hpc_exchange *ex, const hpc_share *share) {
    if (hpc_closed_signal(ex, share->owner) == 0) return 0;
    return hpc_is_mapped(ex, share->owner) ||
           hpc_lane_try_flush(ex->in_lanes[share->core], share->owner) != HPC_IN_PROGRESS;
}

/* Whether nobody reads this rank's push number ticket / 2 any more: its neighbours have answered it, or closed, after
 * which they fold nothing; or they were not sent it. */
static int has_read(const hpc_exchange *ex, int s, uint64_t ticket) {
    const hpc_share *share = &ex->shares[s];
    int me = ex->context->group.rank;
    if (share->owner == me) return is_answered(ex, s, ticket);
    if (share->outlet != NULL) return share->outlet->decided >= ticket / 2 || hpc_closed_signal(ex, share->owner) != 0;
    if (hpc_is_stamped(ex) || ticket == 0 || !hpc_feeds_share(ex, share, me)) return 1;
    return !was_sent(ex, share->key, ticket / 2, share->owner) || is_answered(ex, s, ticket) || has_let_go(ex, share);
}

int hpc_ticket_is_free(const hpc_exchange *ex, int key, uint64_t ticket) {
    const hpc_pushed *k = &ex->keys[key];
    if (ex->n_phases == 0) return hpc_ticket_is_done(ex, key, ticket);
    for (int i = 0; i < k->n_shares; i++)
        if (!has_read(ex, k->shares[i], ticket)) return 0;
    return 1;
}

static int holds(const look *l) {
    return l->for_slot ? hpc_ticket_is_free(l->ex, l->key, l->ticket) : hpc_ticket_is_done(l->ex, l->key, l->ticket);
}

static int awaited(void *arg, int *ranks);

/* The time since the last look goes to whom the wait was for then. */
static void charge(look *l, double now) {
    hpc_exchange *ex = l->ex;
    for (int i = 0; i < ex->n_awaited && l->measured > 0; i++)
        if (ex->awaited[i] != ex->context->group.rank) ex->peer_wait[ex->awaited[i]] += now - l->measured;
    l->measured = now;
}

static void measure(look *l) {
    static const double often = 1e-4; /* seconds: a look at everybody takes a microsecond */
    if (l->looks++ % 8 != 0) return;  /* and one at the clock is not free */
    double now = hpc_now();
    if (l->measured > 0 && now - l->measured < often) return;
    charge(l, now);
    l->ex->n_awaited = awaited(l, l->ex->awaited);
}

/* A failure ends the exchange, and with it the wait. */
static void send_pending(hpc_exchange *ex) {
    int status = hpc_graph_send(ex);
    if (status != HPC_OK) hpc_exchange_fail(ex, status, hpc_last_error()->message);
}

static int looks_done(void *arg) {
    look *l = arg;
    hpc_exchange *ex = l->ex;
    if (hpc_leaves_out(ex)) send_pending(ex);
    if (holds(l)) return 1;
    if (ex->inline_progress && !(hpc_context_work(ex->context) & HPC_LEFT) && holds(l)) return 1;
    if (atomic_load_explicit(&ex->failed, memory_order_relaxed) != HPC_OK) return 1;
    measure(l);
    l->closed = l->for_slot && hpc_ticket_is_done(ex, l->key, l->ticket) ? -1 : closed_without(ex, l->key, l->ticket);
    if (l->closed >= 0) return 1;
    if (l->for_slot) return 0;
    l->closed = hpc_ticket_freed(ex, l->key, l->ticket);
    if (l->closed < 0) return 0;
    /* Its answers went before, by other lanes: they have come, but nobody may have taken them yet. */
    if (hpc_group_progress(&ex->context->group) & HPC_LEFT) {
        l->closed = -1;
        return 0;
    }
    l->closed = hpc_ticket_freed(ex, l->key, l->ticket);
    l->freed = l->closed >= 0;
    return l->freed || hpc_ticket_is_done(ex, l->key, l->ticket);
}

/* How often rank has pushed key, where its memory can be read here; else UINT64_MAX. */
static uint64_t pushes_of(const hpc_exchange *ex, int rank, int key) {
    const char *part = hpc_window_peer_view(ex->window, rank);
    if (part == NULL) return UINT64_MAX;
    const _Atomic uint64_t *counts = (const _Atomic uint64_t *)(const void *)(part + ex->places[rank].pushed);
    return atomic_load_explicit(&counts[key], memory_order_relaxed);
}

static int add_rank(int *ranks, int n, int rank) {
    for (int i = 0; i < n; i++)
        if (ranks[i] == rank) return n;
    ranks[n] = rank;
    return n + 1;
}

/* Of a share of this rank's own: the ranks whose inputs are missing. */
static int missing_inputs(const hpc_exchange *ex, const hpc_share *share, int slot, int *ranks, int n) {
    for (int i = 0; i < share->n_rows && n < ex->context->group.size; i++) {
        const hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        const _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
        for (int e = 0; e < w->row->n_in; e++)
            if (!atomic_load_explicit(&came[e], memory_order_relaxed)) n = add_rank(ranks, n, w->inputs[e].rank);
    }
    return n;
}

/* Of a share of this rank's own: the neighbours whose inputs to fold number n, the next one, are missing. */
static int missing_neighbours(const hpc_exchange *ex, const hpc_share *share, uint64_t n, int *ranks, int found) {
    int slot = ex->n_phases > 1 ? 0 : (int)((n - 1) % (uint64_t)ex->depth); /* see work_in_turn */
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        const _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
        for (int e = 0; e < w->row->n_in; e++)
            if (w->inputs[e].rank != share->owner && hpc_sends(ex, share->key, n, share->owner, w->inputs[e].rank) &&
                !atomic_load_explicit(&came[e], memory_order_relaxed))
                found = add_rank(ranks, found, w->inputs[e].rank);
    }
    return found;
}

/* Of a share of this rank's own that folds what is there: those who are too far behind. */
static int late_neighbours(const hpc_exchange *ex, const hpc_share *share, uint64_t n, int *ranks, int found) {
    for (int r = 0; r < ex->context->group.size; r++) {
        if (hpc_leaves_out(ex)) {
            if (r != share->owner && hpc_feeds_share(ex, share, r) && hpc_closed_signal(ex, r) == 0 &&
                !hpc_graph_has(ex, share, r))
                found = add_rank(ranks, found, r);
            continue;
        }
        uint64_t needed = needed_of(ex, r, share->key, n), came;
        if (r == share->owner || needed == 0) continue;
        if (ex->consistency == HPC_BARRIER)
            came = atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_applied(ex, share->siblings[r])),
                                        memory_order_relaxed);
        else
            came = atomic_load_explicit(&share->clock[r], memory_order_relaxed);
        if (came < needed) found = add_rank(ranks, found, r);
    }
    return found;
}

/* On a graph: those who have not pushed what this rank's fold waits for, or not read what its slot holds. */
static int awaited_neighbours(const look *l, int *ranks) {
    const hpc_exchange *ex = l->ex;
    const hpc_pushed *k = &ex->keys[l->key];
    int n = 0, me = ex->context->group.rank;
    uint64_t number = l->ticket / 2;
    for (int r = 0; r < ex->context->group.size && !l->for_slot; r++)
        if (r != me && pushes_of(ex, r, l->key) < needed_of(ex, r, l->key, number)) n = add_rank(ranks, n, r);
    if (n > 0) return n;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &ex->shares[k->shares[i]];
        if (l->for_slot ? has_read(ex, k->shares[i], l->ticket)
                        : !makes_params(ex, share) || is_answered(ex, k->shares[i], l->ticket))
            continue;
        if (share->owner != me)
            n = add_rank(ranks, n, share->owner);
        else if (hpc_takes_what_is_there(ex))
            n = late_neighbours(ex, share, number, ranks, n);
        else
            n = missing_neighbours(ex, share, next_fold(ex, k->shares[i]), ranks, n);
    }
    return n > 0 ? n : add_rank(ranks, n, me);
}

/* With a quorum: of this rank's own shares those of whom nothing waits there, of others their owners. */
static int awaited_of_quorum(const look *l, int *ranks) {
    const hpc_exchange *ex = l->ex;
    const hpc_pushed *k = &ex->keys[l->key];
    int n = 0, me = ex->context->group.rank;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &ex->shares[k->shares[i]];
        if (is_answered(ex, k->shares[i], l->ticket)) continue;
        if (share->owner != me) n = add_rank(ranks, n, share->owner);
        for (int p = 0; p < share->n_parts && share->owner == me; p++)
            if (atomic_load_explicit(&share->arrivals->number[share->parts[p]], memory_order_relaxed) == 0 &&
                hpc_closed_signal(ex, share->parts[p]) == 0)
                n = add_rank(ranks, n, share->parts[p]);
    }
    return n > 0 ? n : add_rank(ranks, n, me);
}

/* Those who have not pushed. Where that cannot be seen: whose inputs miss here, the other owners who have not answered,
 * and workers that left without a word. */
static int awaited(void *arg, int *ranks) {
    const look *l = arg;
    const hpc_exchange *ex = l->ex;
    if (ex->n_phases > 0) return awaited_neighbours(l, ranks);
    if (hpc_has_quorum(ex)) return awaited_of_quorum(l, ranks);
    const hpc_pushed *k = &ex->keys[l->key];
    int n = 0, size = ex->context->group.size, me = ex->context->group.rank, bsp = ex->consistency == HPC_BSP;
    int slot = (int)((l->ticket / 2 + (uint64_t)ex->depth - 1) % (uint64_t)ex->depth);
    for (int r = 0; r < size && bsp; r++)
        if (pushes(ex, r, l->key) && pushes_of(ex, r, l->key) < l->ticket / 2) n = add_rank(ranks, n, r);
    if (n > 0) return n;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &ex->shares[k->shares[i]];
        if (is_answered(ex, k->shares[i], l->ticket)) continue;
        if (bsp && share->owner == me)
            n = missing_inputs(ex, share, slot, ranks, n);
        else
            n = add_rank(ranks, n, share->owner);
    }
    for (int r = 0; r < size && bsp; r++)
        if (pushes(ex, r, l->key) && pushes_of(ex, r, l->key) == UINT64_MAX && hpc_closed_signal(ex, r) == 0 &&
            atomic_load_explicit(&ex->context->group.states[r], memory_order_acquire) == HPC_PEER_LEFT)
            n = add_rank(ranks, n, r);
    return n > 0 ? n : add_rank(ranks, n, me); /* its own core is at it */
}

int hpc_fail_freed(const hpc_exchange *ex, int rank, int key, const char *op) {
    return hpc_group_fail_closed(&ex->context->group, op, &rank, 1,
                                 "rank %d has freed the exchange, which owns a part of key %s", rank,
                                 ex->plan->keys[key].name);
}

static int wait_look(look *l, double timeout, const char *op) {
    hpc_exchange *ex = l->ex;
    if (holds(l)) return HPC_OK;
    const hpc_wait wait = {op, looks_done, awaited, l};
    double start = hpc_now();
    int status = hpc_wait_for(&ex->context->group, &wait, timeout);
    double now = hpc_now();
    charge(l, now);
    ex->stats.wait += now - start;
    if (status != HPC_OK || holds(l)) return status;
    status = hpc_exchange_check(ex, op);
    if (status != HPC_OK || l->closed < 0) return status;
    if (l->freed) return hpc_fail_freed(ex, l->closed, l->key, op);
    return hpc_group_fail_closed(&ex->context->group, op, &l->closed, 1,
                                 "rank %d has closed the exchange after %llu pushes of key %s; push %llu is waited for",
                                 l->closed, (unsigned long long)closing_counts(ex, l->closed)[l->key],
                                 ex->plan->keys[l->key].name, (unsigned long long)(l->ticket / 2));
}

int hpc_ticket_wait(hpc_exchange *ex, int key, uint64_t ticket, double timeout, const char *op) {
    return wait_look(&(look){.ex = ex, .key = key, .ticket = ticket, .closed = -1}, timeout, op);
}

int hpc_ticket_wait_slot(hpc_exchange *ex, int key, uint64_t ticket, double timeout, const char *op) {
    return wait_look(&(look){.ex = ex, .key = key, .ticket = ticket, .closed = -1, .for_slot = ex->n_phases > 0},
                     timeout, op);
}

int hpc_ticket_end(hpc_exchange *ex, int key, uint64_t ticket, const char *op) {
    hpc_pushed *k = &ex->keys[key];
    if (ticket != 2 * k->pushes) return HPC_OK;
    if (k->since != 0) hpc_usual_learn(&ex->usual, hpc_now() - k->since);
    k->since = 0;
    return hpc_has_quorum(ex) ? hpc_quorum_check(ex, key, op) : HPC_OK;
}

int hpc_exchange_test(hpc_exchange *ex, int key, uint64_t ticket) {
    static const char op[] = "test";
    int status = hpc_worker_check_call(ex, key, op);
    if (status != HPC_OK) return status;
    look l = {.ex = ex, .key = key, .ticket = ticket, .closed = -1};
    hpc_group_progress(&ex->context->group);
    if (hpc_ticket_is_done(ex, key, ticket)) return hpc_ticket_end(ex, key, ticket, op);
    if (!looks_done(&l) && atomic_load_explicit(&ex->context->group.departures, memory_order_relaxed) == 0)
        return HPC_IN_PROGRESS;
    status = hpc_ticket_wait(ex, key, ticket, 0, op); /* finds out what has happened */
    if (status == HPC_OK) return hpc_ticket_end(ex, key, ticket, op);
    return status == HPC_ERR_TIMEOUT ? HPC_IN_PROGRESS : status;
}

int hpc_exchange_wait(hpc_exchange *ex, int key, uint64_t ticket, double timeout) {
    static const char op[] = "wait";
    HPC_IN_CALL(ex, key, op);
    int status = hpc_worker_check_call(ex, key, op);
    if (status == HPC_OK) status = hpc_ticket_wait(ex, key, ticket, timeout, op);
    return status == HPC_OK ? hpc_ticket_end(ex, key, ticket, op) : status;
}
