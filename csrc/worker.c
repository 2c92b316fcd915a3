/* The trainer's side of an exchange: a gradient goes out, parameters come back.
 *
 * A ticket is the number of a push of its key (or of a pull, under ASYNC), and done when every share of the key that
 * this rank takes part in has answered that number. Every look at a ticket works for this rank's own rows too.
 *
 * On a graph this rank's own shares make its parameters, so a pull waits for those alone (under BSP for all ranks', who
 * have met then). Those of its out-neighbours answer that they have read its update, which is NOTIFY-ACK's ACK: a push
 * waits until its slot is free again. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

enum { PULL_TICKET = 1 }; /* a ticket is 2 * number, plus this for a pull that owners answer by itself */

int hpc_exchange_check(hpc_exchange *ex, const char *op) {
    int failed = atomic_load_explicit(&ex->failed, memory_order_acquire);
    if (failed != HPC_OK) {
        hpc_context_abort(ex->context, ex->failure);
        return hpc_fail(failed, op, "%s: %s", op, ex->failure);
    }
    return hpc_group_usable(&ex->context->group, op);
}

static int check_call(hpc_exchange *ex, int key, const char *op) {
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

/* From here on the caller is in op, of a key: for the timeline. */
#define IN_CALL(ex, key, op) HPC_SPAN((ex) == NULL ? NULL : (ex)->context->group.timeline, op, key_name(ex, key))

static const char *key_name(const hpc_exchange *ex, int key) {
    return ex == NULL || key < 0 || key >= ex->plan->n_keys ? NULL : ex->plan->keys[key].name;
}

/* ---- tickets ---- */

typedef struct look {
    hpc_exchange *ex;
    int key;
    uint64_t ticket;
    int closed; /* a rank that closed and will never push what is waited for, or freed and will never answer; -1 */
    int freed;
    int for_slot;    /* on a graph: for the slot of push number ticket / 2, not for what became of it */
    double measured; /* when the wait was last charged to whom it is for; 0: not yet */
} look;

static int signal_of(const hpc_exchange *ex, int share, uint64_t ticket) {
    return ticket & PULL_TICKET ? hpc_signal_pulled(ex, share) : hpc_signal_applied(ex, share);
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

static int is_done(const hpc_exchange *ex, int key, uint64_t ticket) {
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

static uint64_t closed_signal(const hpc_exchange *ex, int rank) {
    return atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_closed(rank)), memory_order_acquire);
}

static int is_neighbour(const hpc_exchange *ex, const hpc_share *share, int rank) {
    return hpc_row_is_fed_by(ex, &ex->plan->rows[share->rows[0]], rank);
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
    if (ex->consistency == HPC_ASYNC || rank == me) return 0;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &ex->shares[k->shares[i]];
        if (share->owner != me || !is_neighbour(ex, share, rank)) continue;
        if (ex->consistency == HPC_SSP) return n > (uint64_t)ex->staleness ? n - (uint64_t)ex->staleness : 0;
        for (uint64_t v = n, first = next_fold(ex, k->shares[i]); v >= first; v--) /* n waits for those before it */
            if (hpc_sends(ex, key, v, me, rank)) return v;
    }
    return 0;
}

/* A worker that closed before it pushed what a ticket waits for; else -1. */
static int closed_without(const hpc_exchange *ex, int key, uint64_t ticket) {
    int graph = ex->n_phases > 0;
    for (int r = 0; r < ex->context->group.size && (graph || ex->consistency == HPC_BSP); r++)
        if (pushes(ex, r, key) && r != ex->context->group.rank && closed_signal(ex, r) != 0 &&
            closing_counts(ex, r)[key] < (graph ? needed_of(ex, r, key, ticket / 2) : ticket / 2))
            return r;
    return -1;
}

/* An owner that was freed before it answered; else -1. */
static int freed_without(const hpc_exchange *ex, int key, uint64_t ticket) {
    const hpc_pushed *k = &ex->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (makes_params(ex, &ex->shares[k->shares[i]]) &&
            closed_signal(ex, ex->shares[k->shares[i]].owner) == HPC_FREED && !is_answered(ex, k->shares[i], ticket))
            return ex->shares[k->shares[i]].owner;
    return -1;
}

/* Of one of the last depth pushes. Its phase is not what its number says where a checkpoint has been restored since. */
static int was_sent(const hpc_exchange *ex, int key, uint64_t n, int to) {
    int phase = ex->keys[key].phases[(n - 1) % (uint64_t)ex->depth];
    return hpc_phase_weight(ex, phase, to, ex->context->group.rank) != 0;
}

/* Whether nobody reads this rank's push number ticket / 2 any more: its neighbours have answered it, or closed, after
 * which they fold nothing; or they were not sent it. */
static int has_read(const hpc_exchange *ex, int s, uint64_t ticket) {
    const hpc_share *share = &ex->shares[s];
    int me = ex->context->group.rank;
    if (share->owner == me) return is_answered(ex, s, ticket);
    if (hpc_is_stamped(ex) || ticket == 0 || !is_neighbour(ex, share, me)) return 1;
    return !was_sent(ex, share->key, ticket / 2, share->owner) || is_answered(ex, s, ticket) ||
           closed_signal(ex, share->owner) != 0;
}

static int is_free(const hpc_exchange *ex, int key, uint64_t ticket) {
    const hpc_pushed *k = &ex->keys[key];
    if (ex->n_phases == 0) return is_done(ex, key, ticket);
    for (int i = 0; i < k->n_shares; i++)
        if (!has_read(ex, k->shares[i], ticket)) return 0;
    return 1;
}

static int holds(const look *l) {
    return l->for_slot ? is_free(l->ex, l->key, l->ticket) : is_done(l->ex, l->key, l->ticket);
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
    double now = hpc_now();
    if (l->measured > 0 && now - l->measured < often) return;
    charge(l, now);
    l->ex->n_awaited = awaited(l, l->ex->awaited);
}

static int looks_done(void *arg) {
    look *l = arg;
    hpc_exchange *ex = l->ex;
    if (holds(l)) return 1;
    if (ex->inline_progress && hpc_context_work(ex->context) == 0 && holds(l)) return 1;
    if (atomic_load_explicit(&ex->failed, memory_order_relaxed) != HPC_OK) return 1;
    measure(l);
    l->closed = l->for_slot && is_done(ex, l->key, l->ticket) ? -1 : closed_without(ex, l->key, l->ticket);
    if (l->closed >= 0) return 1;
    if (l->for_slot) return 0;
    l->closed = freed_without(ex, l->key, l->ticket);
    if (l->closed < 0) return 0;
    /* Its answers went before, by other lanes: they have come, but nobody may have taken them yet. */
    if (hpc_group_progress(&ex->context->group) & HPC_LEFT) {
        l->closed = -1;
        return 0;
    }
    l->closed = freed_without(ex, l->key, l->ticket);
    l->freed = l->closed >= 0;
    return l->freed || is_done(ex, l->key, l->ticket);
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

/* Those who have not pushed. Where that cannot be seen: whose inputs miss here, the other owners who have not answered,
 * and workers that left without a word. */
static int awaited(void *arg, int *ranks) {
    const look *l = arg;
    const hpc_exchange *ex = l->ex;
    if (ex->n_phases > 0) return awaited_neighbours(l, ranks);
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
        if (pushes(ex, r, l->key) && pushes_of(ex, r, l->key) == UINT64_MAX && closed_signal(ex, r) == 0 &&
            atomic_load_explicit(&ex->context->group.states[r], memory_order_acquire) == HPC_PEER_LEFT)
            n = add_rank(ranks, n, r);
    return n > 0 ? n : add_rank(ranks, n, me); /* its own core is at it */
}

static int freed_owner(const hpc_exchange *ex, int rank, int key, const char *op) {
    return hpc_fail_ranks(HPC_ERR_PEER, op, &rank, 1, &rank, 1,
                          "rank %d: %s: rank %d has freed the exchange, which owns a part of key %s",
                          ex->context->group.rank, op, rank, ex->plan->keys[key].name);
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
    if (l->freed) return freed_owner(ex, l->closed, l->key, op);
    return hpc_fail_ranks(HPC_ERR_PEER, op, &l->closed, 1, &l->closed, 1,
                          "rank %d: %s: rank %d has closed the exchange after %llu pushes of key %s; push %llu is "
                          "waited for",
                          ex->context->group.rank, op, l->closed,
                          (unsigned long long)closing_counts(ex, l->closed)[l->key], ex->plan->keys[l->key].name,
                          (unsigned long long)(l->ticket / 2));
}

static int wait_for(hpc_exchange *ex, int key, uint64_t ticket, double timeout, const char *op) {
    return wait_look(&(look){.ex = ex, .key = key, .ticket = ticket, .closed = -1}, timeout, op);
}

/* How long a push takes, by RFC 6298 (section 2): a mean and a mean deviation that forget. */
static void learn(hpc_exchange *ex, hpc_pushed *k, uint64_t ticket) {
    if (k->since == 0 || ticket != 2 * k->pushes) return;
    double took = hpc_now() - k->since, off = took - ex->mean;
    k->since = 0;
    if (ex->measured++ == 0) {
        ex->mean = took;
        ex->deviation = took / 2;
        return;
    }
    ex->deviation += ((off < 0 ? -off : off) - ex->deviation) / 4;
    ex->mean += off / 8;
}

int hpc_exchange_test(hpc_exchange *ex, int key, uint64_t ticket) {
    static const char op[] = "test";
    int status = check_call(ex, key, op);
    if (status != HPC_OK) return status;
    look l = {.ex = ex, .key = key, .ticket = ticket, .closed = -1};
    hpc_group_progress(&ex->context->group);
    if (is_done(ex, key, ticket)) {
        learn(ex, &ex->keys[key], ticket);
        return HPC_OK;
    }
    if (!looks_done(&l) && atomic_load_explicit(&ex->context->group.departures, memory_order_relaxed) == 0)
        return HPC_IN_PROGRESS;
    status = wait_for(ex, key, ticket, 0, op); /* finds out what has happened */
    return status == HPC_ERR_TIMEOUT ? HPC_IN_PROGRESS : status;
}

int hpc_exchange_wait(hpc_exchange *ex, int key, uint64_t ticket, double timeout) {
    static const char op[] = "wait";
    IN_CALL(ex, key, op);
    int status = check_call(ex, key, op);
    if (status == HPC_OK) status = wait_for(ex, key, ticket, timeout, op);
    if (status == HPC_OK) learn(ex, &ex->keys[key], ticket);
    return status;
}

/* ---- gradient ---- */

/* The ticket whose end frees the slot of the next push; 0 when it has not been used. */
static uint64_t slot_ticket(const hpc_exchange *ex, int key) {
    uint64_t pushes = ex->keys[key].pushes, depth = (uint64_t)ex->depth;
    return pushes < depth ? 0 : 2 * (pushes - depth + 1);
}

static char *slot_at(const hpc_exchange *ex, int key) {
    return hpc_own_part(ex) + ex->places[ex->context->group.rank].gradients + ex->keys[key].gradient +
           ex->keys[key].pushes % (uint64_t)ex->depth * ex->gradient_bytes;
}

/* A deadline that costs a look at the clock only when something has to wait. */
typedef struct limit {
    double timeout, deadline; /* deadline 0: not needed yet */
} limit;

static double time_left(const hpc_exchange *ex, limit *l) {
    if (l->deadline == 0) l->deadline = hpc_deadline(&ex->context->group, l->timeout);
    return hpc_left(l->deadline);
}

/* HPC_ERR_PEER of a neighbour that has closed is none: it folds nothing any more. */
static int unless_left(const hpc_exchange *ex, int rank, int status) {
    if (status != HPC_ERR_PEER) return status;
    int state = atomic_load_explicit(&ex->context->group.states[rank], memory_order_acquire);
    return state == HPC_PEER_LEFT ? HPC_OK : status;
}

/* What a neighbour may overwrite unread has no ACK: the last update has left when the transport says so. */
static int flush_last(hpc_exchange *ex, int key, limit *l) {
    const hpc_pushed *k = &ex->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_shares && k->pushes > 0 && status == HPC_OK; i++) {
        const hpc_share *share = &ex->shares[k->shares[i]];
        if (share->owner == ex->context->group.rank) continue;
        status = unless_left(ex, share->owner,
                             hpc_flush(ex->in_lanes[share->core], ex->window, share->owner, time_left(ex, l)));
    }
    return status;
}

/* Waits until the slot of the next push may be written. */
static int wait_slot(hpc_exchange *ex, int key, limit *l, const char *op) {
    look look = {.ex = ex, .key = key, .ticket = slot_ticket(ex, key), .closed = -1, .for_slot = ex->n_phases > 0};
    int status = holds(&look) ? HPC_OK : wait_look(&look, time_left(ex, l), op);
    return status == HPC_OK && hpc_is_stamped(ex) ? flush_last(ex, key, l) : status;
}

int hpc_exchange_gradient(hpc_exchange *ex, int key, double timeout, void **gradient) {
    static const char op[] = "gradient";
    IN_CALL(ex, key, op);
    int status = check_call(ex, key, op);
    if (status != HPC_OK) return status;
    if (gradient == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: gradient is NULL", op);
    if (ex->keys[key].sending & HPC_PUSH)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s of rank %d is sent in part; start it again first", op,
                        ex->plan->keys[key].name, ex->context->group.rank);
    limit l = {timeout, 0};
    status = wait_slot(ex, key, &l, op);
    if (status == HPC_OK) *gradient = slot_at(ex, key);
    return status;
}

float *hpc_exchange_params(const hpc_exchange *ex, int key) {
    if (ex == NULL || key < 0 || key >= ex->plan->n_keys || ex->holder < 0) return NULL;
    char *part = hpc_window_peer_view(ex->window, ex->holder);
    return (float *)(void *)(part + ex->places[ex->holder].params + ex->keys[key].params);
}

/* ---- start ---- */

/* The ticket that must end before the next push of key. */
static uint64_t blocking_ticket(const hpc_exchange *ex, int key) {
    return ex->consistency == HPC_BSP ? 2 * ex->keys[key].pushes : slot_ticket(ex, key);
}

int hpc_exchange_ready(hpc_exchange *ex, int key) {
    static const char op[] = "ready";
    int status = check_call(ex, key, op);
    if (status != HPC_OK) return status;
    if (ex->keys[key].sending != 0) return HPC_IN_PROGRESS;
    if (ex->n_phases > 0) return HPC_OK; /* start waits */
    uint64_t last = blocking_ticket(ex, key);
    if (is_done(ex, key, last)) return HPC_OK;
    hpc_group_progress(&ex->context->group);
    return is_done(ex, key, last) ? HPC_OK : HPC_IN_PROGRESS;
}

static int check_start(hpc_exchange *ex, int key, int flags, uint64_t *ticket, const char *op) {
    if (flags < HPC_PUSH || flags > (HPC_PUSH | HPC_PULL))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: flags are %d, not HPC_PUSH, HPC_PULL or both", op, flags);
    if (ticket == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: ticket is NULL", op);
    if (!(flags & HPC_PUSH) || ex->n_phases > 0) return HPC_OK;
    uint64_t last = blocking_ticket(ex, key);
    if (!is_done(ex, key, last) && (hpc_group_progress(&ex->context->group), !is_done(ex, key, last)))
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: key %s is under way since push %llu of rank %d; wait for it before the next one", op,
                        ex->plan->keys[key].name, (unsigned long long)(last / 2), ex->context->group.rank);
    return HPC_OK;
}

/* src into the slot, in the wire format. */
static void fill_slot(hpc_exchange *ex, int key, const float *src) {
    size_t count = (size_t)ex->plan->keys[key].count;
    int codec = ex->keys[key].codec;
    if (codec == HPC_F32)
        ex->kernels->copy(slot_at(ex, key), src, count * sizeof(float), 0);
    else
        ex->kernels->encode(slot_at(ex, key), src, count, codec);
}

/* As it goes out: a float32 may be too large for a narrow wire. */
static int check_finite(const hpc_exchange *ex, int key, const char *op) {
    if (ex->kernels->all_finite(slot_at(ex, key), (size_t)ex->plan->keys[key].count, ex->keys[key].codec))
        return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: the gradient of key %s on rank %d has a NaN or an Inf%s", op,
                    ex->plan->keys[key].name, ex->context->group.rank,
                    ex->keys[key].codec == HPC_F32 ? "" : ", or a value too large for its wire format");
}

static int has_input(const hpc_row *row, int rank) {
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].rank == rank && row->in[e].row < 0) return 1;
    return 0;
}

/* A trainer's own kernels may have written the gradient past the caches, outside of the order that a release makes. */
static void end_gradient(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

static int notify(hpc_exchange *ex, int core, int owner, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                  limit *l) {
    hpc_lane *lane = ex->in_lanes[core];
    int status = hpc_lane_try_notify(lane, ex->window, owner, src, nbytes, offset, imm);
    if (status != HPC_IN_PROGRESS) return status;
    /* On a graph the owner may close meanwhile, and then takes no event any more. */
    static const double often = 0.05;
    while (ex->n_phases == 0 || closed_signal(ex, owner) == 0) {
        double left = time_left(ex, l), slice = ex->n_phases > 0 && left > often ? often : left;
        status = hpc_put_notify(lane, ex->window, owner, src, nbytes, offset, imm, slice);
        if (status != HPC_ERR_TIMEOUT || slice == left) return status;
    }
    return HPC_OK;
}

static void count_sent(hpc_exchange *ex, int owner, size_t nbytes) {
    if (owner == ex->context->group.rank) return;
    atomic_fetch_add_explicit(&ex->peer_sent[owner], nbytes, memory_order_relaxed);
}

/* Into the neighbour's slots, read or not: mark, data, mark, which no transport puts in another order. */
static int overwrite_share(hpc_exchange *ex, const hpc_share *share) {
    const hpc_pushed *k = &ex->keys[share->key];
    int me = ex->context->group.rank, status = HPC_OK, owner = share->owner;
    hpc_lane *lane = ex->in_lanes[share->core];
    hpc_mark *mark = &ex->marks[share->key];
    const char *slot = slot_at(ex, share->key);
    if (atomic_load_explicit(&ex->context->group.states[owner], memory_order_acquire) == HPC_PEER_LEFT) return HPC_OK;
    for (int i = 0; i < share->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &ex->plan->rows[share->rows[i]];
        if (!has_input(row, me)) return HPC_OK;
        size_t item = hpc_codec_bytes(k->codec), at = ex->push_slot[share->rows[i]];
        size_t data = at + sizeof *mark, last = data + hpc_row_bytes(row);
        status = hpc_put(lane, ex->window, owner, &mark->version, sizeof mark->version, at);
        end_gradient(); /* a copy past the caches could overtake the mark */
        if (status == HPC_OK)
            status = hpc_put(lane, ex->window, owner, slot + row->offset * item, (size_t)row->count * item, data);
        if (status == HPC_OK) status = hpc_put(lane, ex->window, owner, &mark->version, sizeof mark->version, last);
    }
    if (status == HPC_OK) count_sent(ex, owner, share->nbytes);
    return unless_left(ex, owner, status);
}

/* BARRIER: tells every rank that this one has sent, by a lane that bulk does not keep waiting. The signals are those of
 * this rank's own shares. */
static int say_sent(hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    int me = ex->context->group.rank, size = ex->context->group.size, status = HPC_OK;
    for (int i = 0; i < k->n_shares * size && status == HPC_OK; i++) {
        int s = k->shares[i / size], r = i % size;
        if (ex->shares[s].owner != me || r == me) continue;
        status = unless_left(
            ex, r,
            hpc_put_signal(ex->context->acks, ex->window, r, NULL, 0, 0, hpc_signal_applied(ex, s), k->pushes + 1));
    }
    return status;
}

/* To an owner that reads the gradient where it is, one event; to another one, every row with its data. Goes on from
 * k->at_row, where a full ring stopped it. */
static int push_share(hpc_exchange *ex, int s, int slot, limit *l) {
    const hpc_share *share = &ex->shares[s];
    hpc_pushed *k = &ex->keys[share->key];
    size_t item = hpc_codec_bytes(k->codec);
    int me = ex->context->group.rank, status = HPC_OK;
    if (ex->n_phases > 0 && !hpc_sends(ex, share->key, k->pushes + 1, share->owner, me)) return HPC_OK;
    /* Who has closed folds nothing any more; who has freed takes no event out of its ring. */
    if (ex->n_phases > 0 && closed_signal(ex, share->owner) != 0) return HPC_OK;
    if (hpc_is_stamped(ex) && share->owner != me) return overwrite_share(ex, share);
    for (; k->at_row < share->n_rows && status == HPC_OK; k->at_row++) {
        int index = share->rows[k->at_row];
        const hpc_row *row = &ex->plan->rows[index];
        if (!has_input(row, me)) continue;
        if (hpc_reads_in_place(ex, share->owner, me)) {
            status = notify(ex, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_SHARE, slot, s), l);
            break;
        }
        status = notify(ex, share->core, share->owner, slot_at(ex, share->key) + row->offset * item,
                        (size_t)row->count * item, ex->push_slot[index] + (size_t)slot * hpc_slot_stride(ex, row),
                        hpc_imm(HPC_OP_ROW, slot, index), l);
        if (status != HPC_OK) break;
    }
    if (ex->n_phases > 0) status = unless_left(ex, share->owner, status);
    if (status == HPC_OK && is_neighbour(ex, share, me)) count_sent(ex, share->owner, share->nbytes);
    return status;
}

/* Counted before it is sent: a rank that is named as missing has really not pushed. */
static void publish_count(hpc_exchange *ex, int key) {
    _Atomic uint64_t *counts =
        (_Atomic uint64_t *)(void *)(hpc_own_part(ex) + ex->places[ex->context->group.rank].pushed);
    atomic_store_explicit(&counts[key], ex->keys[key].pushes + 1, memory_order_relaxed);
}

static int send_push(hpc_exchange *ex, int key, limit *l) {
    hpc_pushed *k = &ex->keys[key];
    int slot = (int)(k->pushes % (uint64_t)ex->depth);
    for (; k->at_share < k->n_shares; k->at_share++, k->at_row = 0) {
        int status = push_share(ex, k->shares[k->at_share], slot, l);
        if (status != HPC_OK) return status;
    }
    int status = ex->consistency == HPC_BARRIER ? say_sent(ex, key) : HPC_OK;
    if (status != HPC_OK) return status;
    k->pushes++;
    ex->stats.pushes++;
    hpc_watch_step(&ex->context->group.watch, k->pushes);
    return HPC_OK;
}

/* ASYNC with servers: elsewhere a push is answered when it is applied, and a pull waits for that. */
static int pulls_by_itself(const hpc_exchange *ex) {
    return ex->consistency == HPC_ASYNC && ex->n_phases == 0;
}

static int send_pull(hpc_exchange *ex, int key, limit *l) {
    hpc_pushed *k = &ex->keys[key];
    for (; k->at_share < k->n_shares && pulls_by_itself(ex); k->at_share++) {
        const hpc_share *share = &ex->shares[k->shares[k->at_share]];
        int status =
            notify(ex, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_PULL, 0, k->shares[k->at_share]), l);
        if (status != HPC_OK) return status;
    }
    k->pulls++;
    ex->stats.pulls++;
    return HPC_OK;
}

/* What k->sending says is left. After a timeout the next start goes on where this one stopped. A dead owner is told of
 * by every later call anyway; any other failure has left half of an update with the owners and ends the exchange. */
static int send_left(hpc_exchange *ex, int key, limit *l, const char *op) {
    hpc_pushed *k = &ex->keys[key];
    int status = HPC_OK;
    while (k->sending != 0 && status == HPC_OK) {
        int part = k->sending & HPC_PUSH ? HPC_PUSH : HPC_PULL;
        status = part == HPC_PUSH ? send_push(ex, key, l) : send_pull(ex, key, l);
        if (status != HPC_OK) break;
        k->sending &= ~part;
        k->at_share = k->at_row = 0;
    }
    if (status == HPC_ERR_TIMEOUT) {
        int freed = freed_without(ex, key, UINT64_MAX - 1);
        if (freed >= 0) return freed_owner(ex, freed, key, op);
    } else if (status != HPC_OK && status != HPC_ERR_PEER) {
        hpc_exchange_fail(ex, status, hpc_last_error()->message);
    }
    return status;
}

static int start(hpc_exchange *ex, int key, int flags, const float *src, limit *l, uint64_t *ticket, const char *op) {
    int status = check_call(ex, key, op);
    if (status != HPC_OK) return status;
    hpc_pushed *k = &ex->keys[key];
    if (k->sending == 0) {
        status = check_start(ex, key, flags, ticket, op);
        if (status != HPC_OK) return status;
        if (flags & HPC_PUSH && ex->n_phases > 0) status = wait_slot(ex, key, l, op);
        if (status != HPC_OK) return status;
        if (flags & HPC_PUSH) {
            if (src != NULL) fill_slot(ex, key, src);
            if (ex->check_finite && (status = check_finite(ex, key, op)) != HPC_OK) return status;
            publish_count(ex, key);
            if (ex->n_phases > 0) k->phases[k->pushes % (uint64_t)ex->depth] = hpc_phase(ex, key, k->pushes + 1);
            if (hpc_is_stamped(ex)) atomic_store_explicit(&ex->marks[key].version, k->pushes + 1, memory_order_relaxed);
            end_gradient();
        }
        if (flags & HPC_PUSH) k->since = hpc_now();
        k->sending = k->started = flags;
    } else if (k->started != flags || ticket == NULL) {
        return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s of rank %d is sent in part; start it again with flags %d", op,
                        ex->plan->keys[key].name, ex->context->group.rank, k->started);
    }
    status = send_left(ex, key, l, op);
    if (status == HPC_OK)
        *ticket = flags & HPC_PULL && pulls_by_itself(ex) ? 2 * k->pulls + PULL_TICKET : 2 * k->pushes;
    return status;
}

int hpc_exchange_start(hpc_exchange *ex, int key, int flags, const float *src, double timeout, uint64_t *ticket) {
    IN_CALL(ex, key, flags == HPC_PULL ? "pull" : flags == HPC_PUSH ? "push" : "push_pull");
    limit l = {timeout, 0};
    return start(ex, key, flags, src, &l, ticket, "push");
}

int hpc_exchange_push_pull(hpc_exchange *ex, int key, const float *src, double timeout) {
    static const char op[] = "push_pull";
    IN_CALL(ex, key, op);
    limit l = {timeout, 0};
    uint64_t ticket = 0;
    int status = start(ex, key, HPC_PUSH | HPC_PULL, src, &l, &ticket, op);
    if (status != HPC_OK) return status;
    if (!is_done(ex, key, ticket))
        status = wait_for(ex, key, ticket, l.deadline == 0 ? timeout : time_left(ex, &l), op);
    if (status == HPC_OK) learn(ex, &ex->keys[key], ticket);
    return status;
}

int hpc_worker_check_idle(const hpc_exchange *ex, const char *op) {
    for (int k = 0; k < ex->plan->n_keys && ex->places[ex->context->group.rank].worker; k++)
        if (ex->keys[k].sending != 0 || !is_done(ex, k, 2 * ex->keys[k].pushes))
            return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s is under way on rank %d; wait for it first", op,
                            ex->plan->keys[k].name, ex->context->group.rank);
    return HPC_OK;
}

/* On a graph, when everything is folded here: the neighbours have read what was sent, or it has at least left. Under
 * SSP they may read the last update until they close themselves. */
static int finish_sends(hpc_exchange *ex, int key, limit *l, const char *op) {
    uint64_t pushes = ex->keys[key].pushes, depth = (uint64_t)ex->depth;
    int status = HPC_OK;
    if (hpc_takes_what_is_there(ex)) return flush_last(ex, key, l);
    /* Each by itself: on a graph that changes, who read the last one may not have been sent the one before. */
    for (uint64_t n = pushes < depth ? 1 : pushes - depth + 1; n <= pushes && status == HPC_OK; n++)
        status = wait_look(&(look){.ex = ex, .key = key, .ticket = 2 * n, .closed = -1, .for_slot = 1},
                           time_left(ex, l), op);
    return status;
}

int hpc_worker_finish(hpc_exchange *ex, const char *op, double deadline) {
    int status = HPC_OK;
    for (int k = 0; k < ex->plan->n_keys && status == HPC_OK; k++) {
        limit l = {0, deadline};
        if (ex->keys[k].n_shares == 0) continue;
        status = send_left(ex, k, &l, op);
        if (status == HPC_OK) status = wait_for(ex, k, 2 * ex->keys[k].pushes, hpc_left(deadline), op);
        if (status == HPC_OK && ex->n_phases > 0) status = finish_sends(ex, k, &l, op);
    }
    return status;
}

int hpc_exchange_progress(hpc_exchange *ex) {
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, "progress", "progress: exchange is NULL");
    int status = hpc_exchange_check(ex, "progress");
    if (status == HPC_OK) hpc_group_progress(&ex->context->group);
    return status == HPC_OK ? hpc_exchange_check(ex, "progress") : status;
}

/* ---- args ---- */

static int args_answered(const hpc_exchange *ex, int rank) {
    for (int c = 0; c < ex->places[rank].cores; c++)
        if (atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_args(ex, rank, c)), memory_order_acquire) <
            ex->args_sent)
            return 0;
    return 1;
}

/* Whether this rank's own cores have what rank sends: they must answer all before this rank may go elsewhere. */
static int have_args_of(const hpc_exchange *ex, int rank) {
    for (int c = 0; c < ex->n_own_cores && ex->places[rank].worker; c++)
        if (atomic_load_explicit(&ex->cores[c].args_set[rank], memory_order_acquire) < ex->args_sent) return 0;
    return 1;
}

/* A rank that has closed while its answer or its args are still missing; else -1. */
static int closed_without_args(const hpc_exchange *ex) {
    for (int r = 0; r < ex->context->group.size; r++)
        if (!have_args_of(ex, r) ? closed_signal(ex, r) != 0
                                 : closed_signal(ex, r) == HPC_FREED && !args_answered(ex, r))
            return r;
    return -1;
}

static int all_have_args(void *arg) {
    const hpc_exchange *ex = arg;
    if (ex->inline_progress) hpc_context_work(ex->context);
    if (atomic_load_explicit(&ex->failed, memory_order_relaxed) != HPC_OK || closed_without_args(ex) >= 0) return 1;
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

/* To every core of every rank, from the one on where a full ring stopped it. */
static int send_args(hpc_exchange *ex, double deadline) {
    int rank = ex->context->group.rank, size = ex->context->group.size, n = 0;
    for (int r = 0; r < size; r++)
        for (int c = 0; c < ex->places[r].cores; c++, n++) {
            if (n < ex->args_at) continue;
            size_t at = ((size_t)c * (size_t)size + (size_t)rank) * sizeof ex->rule.args;
            int status = hpc_put_notify(ex->in_lanes[c], ex->window, r, ex->rule.args, sizeof ex->rule.args,
                                        ex->places[r].args + at, hpc_imm(HPC_OP_ARGS, 0, 0), hpc_left(deadline));
            if (status != HPC_OK) return status;
            ex->args_at = n + 1;
        }
    return HPC_OK;
}

int hpc_exchange_set_args(hpc_exchange *ex, const double *args, double timeout) {
    static const char op[] = "set_args";
    IN_CALL(ex, -1, op);
    int status = check_call(ex, 0, op);
    if (status != HPC_OK) return status;
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: args is NULL", op);
    hpc_rule rule = ex->rule;
    memcpy(rule.args + 1, args + 1, (HPC_RULE_ARGS - 1) * sizeof *args);
    status = hpc_rule_check(&rule, op);
    if (status == HPC_OK && ex->setting && memcmp(rule.args, ex->rule.args, sizeof rule.args) != 0)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: the last call timed out; call it again with the same args", op);
    if (status == HPC_OK) status = hpc_worker_check_idle(ex, op);
    if (status != HPC_OK) return status;
    double deadline = hpc_deadline(&ex->context->group, timeout);
    if (!ex->setting) { /* else the last call timed out: this one goes on with its args */
        memcpy(ex->rule.args, rule.args, sizeof rule.args); /* the cores have copies of their own */
        ex->args_sent++;
        ex->args_at = 0;
        ex->setting = 1;
    }
    status = send_args(ex, deadline);
    if (status != HPC_OK) return status;
    const hpc_wait wait = {op, all_have_args, ranks_without_args, ex};
    status = hpc_wait_for(&ex->context->group, &wait, hpc_left(deadline));
    if (status == HPC_OK) status = hpc_exchange_check(ex, op);
    if (status != HPC_OK) return status;
    int closed = closed_without_args(ex);
    if (closed >= 0)
        return hpc_fail_ranks(HPC_ERR_PEER, op, &closed, 1, &closed, 1,
                              "rank %d: %s: rank %d has closed the exchange without setting args",
                              ex->context->group.rank, op, closed);
    ex->setting = 0;
    return HPC_OK;
}

int hpc_exchange_get_args(hpc_exchange *ex, double *args) {
    static const char op[] = "get_args";
    if (ex == NULL || args == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %s is NULL", op, ex == NULL ? "exchange" : "args");
    const hpc_core *core = ex->n_own_cores > 0 ? &ex->cores[0] : NULL;
    memcpy(args, ex->rule.args, sizeof ex->rule.args);
    if (!ex->places[ex->context->group.rank].worker && core != NULL) {
        (void)atomic_load_explicit(&core->args_set[ex->lowest], memory_order_acquire);
        memcpy(args, core->args[ex->lowest], sizeof ex->rule.args);
    }
    args[0] = 0;
    return HPC_OK;
}
