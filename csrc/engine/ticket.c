/* Waits of pushes and pulls: when they end, which ranks they wait for, and how long they usually take.
 *
 * A ticket is the number of a push of its key, or of a pull where pulls ask for parameters. It is done when
 * every share whose answer counts (hpc_pushed.awaited) has answered that number. Every look at a ticket works for this
 * rank's own rows too. */
#include "engine/ticket.h"

#include "engine/answer.h"
#include "engine/layout.h"
#include "engine/params.h"

/* The failure of another engine of the exchange has closed the context of all: it is what this engine tells too. */
static int fail_as_others(const hpc_engine *own, int status, const char *op) {
    for (const hpc_engine *en = own->next; en != own; en = en->next) {
        int failed = atomic_load_explicit(&en->fault.failed, memory_order_acquire);
        if (failed != HPC_OK) return hpc_fail(failed, op, "%s: %s", op, en->fault.failure);
    }
    return status;
}

int hpc_engine_check(hpc_engine *en, const char *op) {
    int failed = atomic_load_explicit(&en->fault.failed, memory_order_acquire);
    if (failed != HPC_OK) {
        hpc_context_abort(en->context, en->fault.failure);
        return hpc_fail(failed, op, "%s: %s", op, en->fault.failure);
    }
    hpc_group *g = &en->context->group;
    int status = hpc_group_usable(g, op);
    if (status != HPC_OK) return fail_as_others(en, status, op);
    for (int r = 0; r < g->size && status == HPC_OK && atomic_load_explicit(&g->revoked, memory_order_acquire); r++)
        status = hpc_group_peer_present(g, r, op);
    return status;
}

int hpc_worker_check_call(hpc_engine *en, int key, const char *op) {
    if (en->life.closed) return hpc_fail(HPC_ERR_INVALID, op, "%s: the exchange is closed", op);
    if (!en->layout.places[en->context->group.rank].worker)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d only serves; push and pull are for workers", op,
                        en->context->group.rank);
    if (en->keys[key].n_shares == 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: by its plan rank %d takes no part in key %s", op,
                        en->context->group.rank, en->plan->keys[key].name);
    return hpc_engine_check(en, op);
}

int hpc_pushes_key(const hpc_engine *en, int rank, int key) {
    return en->layout.pushers[(size_t)key * (size_t)en->context->group.size + (size_t)rank];
}

double hpc_limit_left(const hpc_engine *en, hpc_limit *l) {
    if (l->deadline == 0) l->deadline = hpc_deadline(&en->context->group, l->timeout);
    return hpc_left(l->deadline);
}

/* ---- tickets ---- */

typedef struct look {
    hpc_engine *en;
    int key;
    uint64_t ticket;
    int closed; /* a rank that closed and will never make the push, or was freed and will never answer; -1: none */
    int freed;
    int for_slot; /* waits for the slot of push number ticket / 2, not for its parameters */
    unsigned looks;
    double measured; /* when the wait was last charged to the ranks that it is for; 0: not yet */
} look;

static int signal_of(const hpc_engine *en, int share, uint64_t ticket) {
    return ticket & HPC_PULL_TICKET ? hpc_signal_second(en, share) : hpc_signal_applied(en, share);
}

int hpc_share_has_answered(const hpc_engine *en, int share, uint64_t ticket) {
    return atomic_load_explicit(hpc_own_signal(en->window, signal_of(en, share, ticket)), memory_order_acquire) >=
           ticket / 2;
}

int hpc_ticket_is_done(const hpc_engine *en, int key, uint64_t ticket) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_awaited; i++)
        if (!hpc_share_has_answered(en, k->awaited[i], ticket)) return 0;
    return 1;
}

int hpc_ticket_is_free(const hpc_engine *en, int key, uint64_t ticket) {
    const hpc_pushed *k = &en->keys[key];
    if (en->has_read == NULL) return hpc_ticket_is_done(en, key, ticket);
    for (int i = 0; i < k->n_shares; i++)
        if (!en->has_read(en, k->shares[i], ticket)) return 0;
    return 1;
}

uint64_t hpc_closing_count(const hpc_engine *en, int rank, int key) {
    size_t at = ((size_t)rank * (size_t)en->plan->n_keys + (size_t)key) * sizeof(uint64_t);
    return *(const uint64_t *)(const void *)(hpc_own_part(en) + en->layout.places[en->context->group.rank].closed + at);
}

uint64_t hpc_share_next_fold(const hpc_engine *en, int s) {
    return atomic_load_explicit(hpc_own_signal(en->window, hpc_signal_applied(en, s)), memory_order_acquire) + 1;
}

uint64_t hpc_push_of(const hpc_engine *en, int key, uint64_t ticket) {
    return ticket & HPC_PULL_TICKET ? en->keys[key].pushes : ticket / 2;
}

/* A worker that closed before it pushed what a ticket waits for; else -1. */
static int closed_without(const hpc_engine *en, int key, uint64_t ticket) {
    for (int r = 0; r < en->context->group.size && en->pace->is_late != NULL; r++)
        if (r != en->context->group.rank && hpc_pushes_key(en, r, key) && hpc_closed_signal(en, r) != 0 &&
            en->pace->is_late(en, r, key, 2 * hpc_push_of(en, key, ticket), hpc_closing_count(en, r, key)))
            return r;
    return -1;
}

/* An owner that was freed before it answered; else -1. */
int hpc_ticket_freed(const hpc_engine *en, int key, uint64_t ticket) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_awaited; i++) {
        int owner = en->layout.shares[k->awaited[i]].owner;
        if (hpc_closed_signal(en, owner) == HPC_FREED && !hpc_share_has_answered(en, k->awaited[i], ticket))
            return owner;
    }
    return -1;
}

static int holds(const look *l) {
    return l->for_slot ? hpc_ticket_is_free(l->en, l->key, l->ticket) : hpc_ticket_is_done(l->en, l->key, l->ticket);
}

/* ---- the ranks that a ticket waits for ---- */

/* The ranks whose pushes are late. */
static int late_pushers(const hpc_engine *en, int key, uint64_t ticket, int *ranks) {
    int n = 0;
    for (int r = 0; r < en->context->group.size && en->pace->is_late != NULL; r++)
        if (r != en->context->group.rank && hpc_pushes_key(en, r, key) &&
            en->pace->is_late(en, r, key, ticket, hpc_pushes_of(en, r, key)))
            n = hpc_add_rank(ranks, n, r);
    return n;
}

static int is_own(const hpc_engine *en, int s) {
    return en->layout.shares[s].owner == en->context->group.rank;
}

/* Adds what is missing in a share that has not answered; where that cannot be seen its owner. */
static int missing_in(const hpc_engine *en, int s, uint64_t ticket, int *ranks, int n) {
    const int seen = en->gate->missing != NULL && (is_own(en, s) || en->group_of != NULL);
    return seen ? en->gate->missing(en, s, ticket, ranks, n) : hpc_add_rank(ranks, n, en->layout.shares[s].owner);
}

/* With several stages: what this rank waits for itself may wait for folds that it forwards. */
static int missing_in_forwards(const hpc_engine *en, int key, uint64_t ticket, int *ranks) {
    int n = 0;
    for (int s = 0; s < en->layout.n_shares && en->layout.stages.many; s++) {
        const hpc_share *share = &en->layout.shares[s];
        if (share->key == key && is_own(en, s) && !hpc_share_has_answered(en, s, ticket) &&
            en->plan->rows[share->rows[0]].action == HPC_FORWARD)
            n = missing_in(en, s, ticket, ranks, n);
    }
    return n;
}

int hpc_add_left(const hpc_engine *en, int key, uint64_t ticket, int *ranks, int n) {
    const int some = atomic_load_explicit(&en->context->group.departures, memory_order_acquire) > 0;
    for (int r = 0; r < en->context->group.size && some && en->pace->is_late != NULL; r++)
        if (hpc_pushes_key(en, r, key) && hpc_pushes_of(en, r, key) == UINT64_MAX && hpc_closed_signal(en, r) == 0 &&
            hpc_has_left(en, r) && en->pace->is_late(en, r, key, ticket, 0))
            n = hpc_add_rank(ranks, n, r);
    return n;
}

/* The ranks that a ticket waits for: those that are late; else those that are missing in shares that have not answered.
 */
static int awaited(void *arg, int *ranks) {
    const look *l = arg;
    const hpc_engine *en = l->en;
    const hpc_pushed *k = &en->keys[l->key];
    int n = l->for_slot ? 0 : late_pushers(en, l->key, l->ticket, ranks), others = 0;
    if (n == 0) n = missing_in_forwards(en, l->key, l->ticket, ranks);
    if (n > 0) return n;
    for (int i = 0; i < (l->for_slot ? k->n_shares : k->n_awaited); i++) {
        const int s = l->for_slot ? k->shares[i] : k->awaited[i];
        if (l->for_slot ? en->has_read(en, s, l->ticket) : hpc_share_has_answered(en, s, l->ticket)) continue;
        others |= !is_own(en, s) && en->group_of == NULL;
        n = missing_in(en, s, l->ticket, ranks, n);
    }
    if (others && !l->for_slot) n = hpc_add_left(en, l->key, l->ticket, ranks, n);
    return n > 0 ? n : hpc_add_rank(ranks, n, en->context->group.rank); /* its own core is at it */
}

/* Charges the time since the last look to the ranks that the wait was for then. */
static void charge(look *l, double now) {
    hpc_engine *en = l->en;
    for (int i = 0; i < en->peers.n_awaited && l->measured > 0; i++)
        if (en->peers.awaited[i] != en->context->group.rank) en->peers.wait[en->peers.awaited[i]] += now - l->measured;
    l->measured = now;
}

static void measure(look *l) {
    static const double often = 1e-4; /* seconds: a look at everybody takes a microsecond */
    if (l->looks++ % 8 != 0) return;  /* and one at the clock is not free */
    double now = hpc_now();
    if (l->measured > 0 && now - l->measured < often) return;
    charge(l, now);
    l->en->peers.n_awaited = awaited(l, l->en->peers.awaited);
}

void hpc_worker_progress(hpc_engine *own) {
    hpc_engine *en = own;
    do {
        const int status = hpc_note(en, -1, HPC_ON_LOOK, NULL, "exchange");
        if (status == HPC_ERR_PEER) { /* the wait itself tells of a rank that is lost, and names it */
            hpc_blame_settle(&en->context->group.blame, NULL, 0);
        } else if (status != HPC_OK) {
            hpc_engine_fail(en, status, hpc_last_error()->message);
            hpc_engine_check(en, "exchange");
        }
        en = en->next;
    } while (en != own);
}

void hpc_worker_uncork(hpc_engine *own) {
    hpc_engine *en = own;
    do {
        for (int i = 0; en->corked && i < en->n_lanes; i++) hpc_lane_uncork(en->in_lanes[i]);
        en->corked = 0;
        en = en->next;
    } while (en != own);
}

static int looks_done(void *arg) {
    look *l = arg;
    hpc_engine *en = l->en;
    hpc_worker_progress(en);
    if (holds(l)) return 1;
    if (en->inline_progress && !(hpc_context_work(en->context) & HPC_LEFT) && holds(l)) return 1;
    if (hpc_engine_has_failed(en)) return 1;
    measure(l);
    l->closed = l->for_slot && hpc_ticket_is_done(en, l->key, l->ticket) ? -1 : closed_without(en, l->key, l->ticket);
    if (l->closed >= 0) return 1;
    if (l->for_slot) return 0;
    l->closed = hpc_ticket_freed(en, l->key, l->ticket);
    if (l->closed < 0) return 0;
    /* Its answers were sent before, by other lanes: they have come, but may not have been taken yet. */
    if (hpc_group_progress(&en->context->group) & HPC_LEFT) {
        l->closed = -1;
        return 0;
    }
    l->closed = hpc_ticket_freed(en, l->key, l->ticket);
    l->freed = l->closed >= 0;
    return l->freed || hpc_ticket_is_done(en, l->key, l->ticket);
}

uint64_t hpc_pushes_of(const hpc_engine *en, int rank, int key) {
    const char *part = hpc_window_peer_view(en->window, rank);
    if (part == NULL) return UINT64_MAX;
    const _Atomic uint64_t *counts = (const _Atomic uint64_t *)(const void *)(part + en->layout.places[rank].pushed);
    return atomic_load_explicit(&counts[key], memory_order_relaxed);
}

int hpc_add_rank(int *ranks, int n, int rank) {
    for (int i = 0; i < n; i++)
        if (ranks[i] == rank) return n;
    ranks[n] = rank;
    return n + 1;
}

int hpc_fail_freed(const hpc_engine *en, int rank, int key, const char *op) {
    return hpc_group_fail_closed(&en->context->group, op, &rank, 1,
                                 "rank %d has freed the exchange, which owns a part of key %s", rank,
                                 en->plan->keys[key].name);
}

static int wait_look(look *l, double timeout, const char *op) {
    hpc_engine *en = l->en;
    hpc_worker_uncork(en);
    if (holds(l)) { /* also after an earlier try that ran out of time */
        hpc_group_settle(&en->context->group, op);
        return HPC_OK;
    }
    const hpc_wait wait = {op, looks_done, awaited, l, 0};
    double start = hpc_now();
    int status = hpc_wait_for(&en->context->group, &wait, timeout);
    double now = hpc_now();
    charge(l, now);
    en->stats.wait += now - start;
    if (status == HPC_ERR_INVALID) return hpc_engine_check(en, op); /* why the context is closed */
    if (status != HPC_OK || holds(l)) return status;
    status = hpc_engine_check(en, op);
    if (status != HPC_OK || l->closed < 0) return status;
    if (l->freed) return hpc_fail_freed(en, l->closed, l->key, op);
    return hpc_group_fail_closed(&en->context->group, op, &l->closed, 1,
                                 "rank %d has closed the exchange after %llu pushes of key %s; push %llu is waited for",
                                 l->closed, (unsigned long long)hpc_closing_count(en, l->closed, l->key),
                                 en->plan->keys[l->key].name, (unsigned long long)hpc_push_of(en, l->key, l->ticket));
}

int hpc_fail_cut_short(const hpc_engine *en, int key, const char *op) {
    return hpc_fail_detail(op, HPC_DETAIL_UNFINISHED,
                           "%s: the last call on key %s of rank %d was cut short; make it again first", op,
                           en->plan->keys[key].name, en->context->group.rank);
}

int hpc_fail_no_fold(const hpc_engine *en, int key, const char *op) {
    return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s has no fold on rank %d: fold it first", op,
                    en->plan->keys[key].name, en->context->group.rank);
}

int hpc_fail_scale(const hpc_engine *en, int key, double scale, const char *op) {
    return hpc_fail(HPC_ERR_INVALID, op,
                    "%s: scale of key %s is %g; it must be finite, or NaN for a mean of NaNs: skip leaves a step out",
                    op, en->plan->keys[key].name, scale);
}

int hpc_ticket_wait(hpc_engine *en, int key, uint64_t ticket, double timeout, const char *op) {
    return wait_look(&(look){.en = en, .key = key, .ticket = ticket, .closed = -1}, timeout, op);
}

int hpc_ticket_wait_slot(hpc_engine *en, int key, uint64_t ticket, double timeout, const char *op) {
    const int for_slot = en->has_read != NULL;
    return wait_look(&(look){.en = en, .key = key, .ticket = ticket, .closed = -1, .for_slot = for_slot}, timeout, op);
}

int hpc_ticket_end(hpc_engine *en, int key, uint64_t ticket, const char *op) {
    hpc_pushed *k = &en->keys[key];
    if (k->encoded.n_rows > 0) hpc_params_came(en, key, ticket);
    if (ticket != 2 * k->pushes) return HPC_OK;
    if (k->since != 0) hpc_usual_learn(&en->usual, hpc_now() - k->since);
    k->since = 0;
    return hpc_note(en, key, HPC_ON_END, NULL, op);
}

int hpc_ticket_test(hpc_engine *en, int key, uint64_t ticket, const char *op) {
    look l = {.en = en, .key = key, .ticket = ticket, .closed = -1};
    hpc_worker_uncork(en);
    hpc_group_progress(&en->context->group);
    if (hpc_ticket_is_done(en, key, ticket)) return hpc_ticket_end(en, key, ticket, op);
    if (!looks_done(&l) && atomic_load_explicit(&en->context->group.departures, memory_order_relaxed) == 0)
        return HPC_IN_PROGRESS;
    int status = hpc_ticket_wait(en, key, ticket, 0, op); /* finds out what has happened */
    if (status == HPC_OK) return hpc_ticket_end(en, key, ticket, op);
    return status == HPC_ERR_TIMEOUT ? HPC_IN_PROGRESS : status;
}

/* ---- updates that are lacking ---- */

typedef struct supply {
    hpc_engine *en;
    int key;
    hpc_lacking *lacking;
} supply;

static int has_all(void *arg) {
    const supply *its = arg;
    hpc_worker_progress(its->en);
    if (its->en->inline_progress) hpc_context_work(its->en->context);
    return hpc_engine_has_failed(its->en) || its->lacking(its->en, its->key, NULL) == 0;
}

static int whose_are_lacking(void *arg, int *ranks) {
    const supply *its = arg;
    const int n = its->lacking(its->en, its->key, ranks);
    return n > 0 ? n : hpc_add_rank(ranks, n, its->en->context->group.rank); /* its own core is at it */
}

int hpc_wait_lacking(hpc_engine *en, int key, hpc_lacking *lacking, hpc_limit *l, const char *op) {
    supply its = {en, key, lacking};
    const hpc_wait wait = {op, has_all, whose_are_lacking, &its, 0};
    const int status = has_all(&its) ? HPC_OK : hpc_wait_for(&en->context->group, &wait, hpc_limit_left(en, l));
    return status == HPC_OK ? hpc_engine_check(en, op) : status;
}
