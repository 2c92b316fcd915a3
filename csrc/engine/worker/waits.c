/* Waits of pushes and pulls: when they end, which ranks they wait for, and how long they usually take.
 *
 * A ticket is the number of a wait: of a push of a key or, with HPC_PULLS, of a pull. A ticket is done when all shares
 * in hpc_pushed.awaited have answered it. Every look at a ticket also works for this rank's own rows. */
#include "engine/worker/waits.h"

#include "engine/owner/signals.h"
#include "engine/discipline.h"
#include "engine/params.h"

static int fail_again(const hpc_scheme *sc, int failed, const char *op) {
    const int *rank = &sc->fault.waited_for;
    return hpc_fail_ranks(failed, op, NULL, 0, rank, *rank >= 0, "%s: %s", op, sc->fault.failure);
}

/* Another scheme's failure has closed the context of all schemes; this function makes the scheme report the same
 * failure. */
static int fail_as_others(const hpc_scheme *own, int status, const char *op) {
    for (const hpc_scheme *sc = own->next; sc != own; sc = sc->next) {
        int failed = atomic_load_explicit(&sc->fault.failed, memory_order_acquire);
        if (failed != HPC_OK) return fail_again(sc, failed, op);
    }
    return status;
}

int hpc_scheme_tell(hpc_scheme *sc, const char *op) {
    int failed = atomic_load_explicit(&sc->fault.failed, memory_order_acquire);
    if (failed != HPC_OK) {
        hpc_context_abort(sc->context, sc->fault.failure);
        return fail_again(sc, failed, op);
    }
    hpc_group *g = &sc->context->group;
    int status = hpc_group_usable(g, op);
    if (status != HPC_OK) return fail_as_others(sc, status, op);
    for (int r = 0; r < g->size && status == HPC_OK && atomic_load_explicit(&g->revoked, memory_order_acquire); r++)
        status = hpc_group_peer_present(g, r, op);
    return status;
}

int hpc_worker_check_call(hpc_scheme *sc, int key, const char *op) {
    if (sc->life.closed) return hpc_fail(HPC_ERR_INVALID, op, "%s: the exchange is closed", op);
    if (!hpc_scheme_works(sc))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d only serves; push and pull are for workers", op,
                        sc->context->group.rank);
    if (sc->keys[key].n_shares == 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: by its plan rank %d takes no part in key %s", op,
                        sc->context->group.rank, sc->plan->keys[key].name);
    return hpc_scheme_check(sc, op);
}

int hpc_pushes_key(const hpc_scheme *sc, int rank, int key) {
    return sc->layout.pushers[(size_t)key * (size_t)sc->context->group.size + (size_t)rank];
}

double hpc_learned_timeout(const hpc_scheme *sc, double usual) {
    static const double least = 1;
    const double most = sc->context->group.timeout, learned = sc->asked.patience * usual;
    if (!(learned > 0)) return most;
    const double longer = learned > least ? learned : least;
    return longer < most ? longer : most;
}

static double timeout_of(const hpc_scheme *sc, double timeout) {
    return timeout >= 0 ? timeout : hpc_learned_timeout(sc, hpc_usual_limit(&sc->usual));
}

double hpc_limit_left(const hpc_scheme *sc, hpc_limit *l) {
    if (l->deadline == 0) l->deadline = hpc_deadline(&sc->context->group, timeout_of(sc, l->timeout));
    return hpc_left(l->deadline);
}

/* ---- tickets ---- */

typedef struct look {
    hpc_scheme *sc;
    int key;
    uint64_t ticket;
    int closed; /* a rank that closed and will not make the push, or was freed and will not answer; -1: no such rank */
    int freed;
    int for_slot; /* the wait is for the slot of push number ticket / 2 to be free */
    unsigned looks;
    double measured; /* the time, in seconds, up to which waiting was charged to the awaited ranks; 0: nothing charged
                        yet */
} look;

static int signal_of(const hpc_scheme *sc, int share, uint64_t ticket) {
    return ticket & HPC_PULL_TICKET ? hpc_signal_second(sc, share) : hpc_signal_applied(sc, share);
}

int hpc_share_has_answered(const hpc_scheme *sc, int share, uint64_t ticket) {
    return atomic_load_explicit(hpc_own_signal(sc->window, signal_of(sc, share, ticket)), memory_order_acquire) >=
           ticket / 2;
}

int hpc_ticket_is_done(const hpc_scheme *sc, int key, uint64_t ticket) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < k->n_awaited; i++)
        if (!hpc_share_has_answered(sc, k->awaited[i], ticket)) return 0;
    return 1;
}

int hpc_ticket_is_free(const hpc_scheme *sc, int key, uint64_t ticket) {
    const hpc_pushed *k = &sc->keys[key];
    if (sc->has_read == NULL) return hpc_ticket_is_done(sc, key, ticket);
    for (int i = 0; i < k->n_shares; i++)
        if (!sc->has_read(sc, k->shares[i], ticket)) return 0;
    return 1;
}

uint64_t hpc_closing_count(const hpc_scheme *sc, int rank, int key) {
    size_t at = ((size_t)rank * (size_t)sc->plan->n_keys + (size_t)key) * sizeof(uint64_t);
    return *(const uint64_t *)(const void *)(hpc_own_part(sc) + sc->layout.places[sc->context->group.rank].closed + at);
}

uint64_t hpc_share_next_fold(const hpc_scheme *sc, int s) {
    return atomic_load_explicit(hpc_own_signal(sc->window, hpc_signal_applied(sc, s)), memory_order_acquire) + 1;
}

uint64_t hpc_push_of(const hpc_scheme *sc, int key, uint64_t ticket) {
    return ticket & HPC_PULL_TICKET ? sc->keys[key].pushes : ticket / 2;
}

/* Returns a worker that closed before it made the push that a ticket waits for, or -1. */
static int closed_without(const hpc_scheme *sc, int key, uint64_t ticket) {
    for (int r = 0; r < sc->context->group.size && sc->pace->is_late != NULL; r++)
        if (r != sc->context->group.rank && hpc_pushes_key(sc, r, key) && hpc_closed_signal(sc, r) != 0 &&
            sc->pace->is_late(sc, r, key, 2 * hpc_push_of(sc, key, ticket), hpc_closing_count(sc, r, key)))
            return r;
    return -1;
}

int hpc_ticket_freed(const hpc_scheme *sc, int key, uint64_t ticket) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < k->n_awaited; i++) {
        int owner = sc->layout.shares[k->awaited[i]].owner;
        if (hpc_closed_signal(sc, owner) == HPC_FREED && !hpc_share_has_answered(sc, k->awaited[i], ticket))
            return owner;
    }
    return -1;
}

static int holds(const look *l) {
    return l->for_slot ? hpc_ticket_is_free(l->sc, l->key, l->ticket) : hpc_ticket_is_done(l->sc, l->key, l->ticket);
}

/* ---- the ranks that a ticket waits for ---- */

/* Writes the ranks whose pushes are late. */
static int late_pushers(const hpc_scheme *sc, int key, uint64_t ticket, int *ranks) {
    int n = 0;
    for (int r = 0; r < sc->context->group.size && sc->pace->is_late != NULL; r++)
        if (r != sc->context->group.rank && hpc_pushes_key(sc, r, key) &&
            sc->pace->is_late(sc, r, key, ticket, hpc_pushes_of(sc, r, key)))
            n = hpc_add_rank(ranks, n, r);
    return n;
}

static int is_own(const hpc_scheme *sc, int s) {
    return sc->layout.shares[s].owner == sc->context->group.rank;
}

/* Adds the ranks whose inputs share s still needs before it answers; if this rank cannot see them, adds the share's
 * owner. */
static int missing_in(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int n) {
    const int seen = sc->gate->missing != NULL && (is_own(sc, s) || sc->group_of != NULL);
    return seen ? sc->gate->missing(sc, s, ticket, ranks, n) : hpc_add_rank(ranks, n, sc->layout.shares[s].owner);
}

/* With several stages: adds the ranks that this rank's own forwards wait for, as its push or pull depends on them. */
static int missing_in_forwards(const hpc_scheme *sc, int key, uint64_t ticket, int *ranks) {
    int n = 0;
    for (int s = 0; s < sc->layout.n_shares && sc->layout.stages.many; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->key == key && is_own(sc, s) && !hpc_share_has_answered(sc, s, ticket) &&
            sc->plan->rows[share->rows[0]].action == HPC_FORWARD)
            n = missing_in(sc, s, ticket, ranks, n);
    }
    return n;
}

int hpc_add_left(const hpc_scheme *sc, int key, uint64_t ticket, int *ranks, int n) {
    const int some = atomic_load_explicit(&sc->context->group.departures, memory_order_acquire) > 0;
    for (int r = 0; r < sc->context->group.size && some && sc->pace->is_late != NULL; r++)
        if (hpc_pushes_key(sc, r, key) && hpc_pushes_of(sc, r, key) == UINT64_MAX && hpc_closed_signal(sc, r) == 0 &&
            hpc_has_left(sc, r) && sc->pace->is_late(sc, r, key, ticket, 0))
            n = hpc_add_rank(ranks, n, r);
    return n;
}

/* Writes the ranks that a ticket waits for: the late ranks or, if no rank is late, the ranks whose inputs the
 * unanswered shares lack. */
static int awaited(void *arg, int *ranks) {
    const look *l = arg;
    const hpc_scheme *sc = l->sc;
    const hpc_pushed *k = &sc->keys[l->key];
    int n = l->for_slot ? 0 : late_pushers(sc, l->key, l->ticket, ranks), others = 0;
    if (n == 0) n = missing_in_forwards(sc, l->key, l->ticket, ranks);
    if (n > 0) return n;
    for (int i = 0; i < (l->for_slot ? k->n_shares : k->n_awaited); i++) {
        const int s = l->for_slot ? k->shares[i] : k->awaited[i];
        if (l->for_slot ? sc->has_read(sc, s, l->ticket) : hpc_share_has_answered(sc, s, l->ticket)) continue;
        others |= !is_own(sc, s) && sc->group_of == NULL;
        n = missing_in(sc, s, l->ticket, ranks, n);
    }
    if (others && !l->for_slot) n = hpc_add_left(sc, l->key, l->ticket, ranks, n);
    return n > 0 ? n : hpc_add_rank(ranks, n, sc->context->group.rank); /* only its own core is left to work */
}

/* Adds the time since the last look to the waiting times of the ranks that the wait waited for at that look. */
static void charge(look *l, double now) {
    hpc_scheme *sc = l->sc;
    for (int i = 0; i < sc->peers.n_awaited && l->measured > 0; i++)
        if (sc->peers.awaited[i] != sc->context->group.rank) sc->peers.wait[sc->peers.awaited[i]] += now - l->measured;
    l->measured = now;
}

static void measure(look *l) {
    static const double often = 1e-4; /* seconds: finding the awaited ranks takes a microsecond */
    if (l->looks++ % 8 != 0) return;  /* reading the clock costs time too */
    double now = hpc_now();
    if (l->measured > 0 && now - l->measured < often) return;
    charge(l, now);
    l->sc->peers.n_awaited = awaited(l, l->sc->peers.awaited);
}

void hpc_worker_progress(hpc_scheme *own) {
    hpc_scheme *sc = own;
    do {
        const int status = hpc_note(sc, -1, HPC_ON_LOOK, NULL, "exchange");
        if (status == HPC_ERR_PEER) { /* the wait itself reports a lost rank by name */
            hpc_blame_settle(&sc->context->group.blame, NULL, 0);
        } else if (status != HPC_OK) {
            hpc_scheme_fail_as_told(sc, status);
            hpc_scheme_check(sc, "exchange");
        }
        sc = sc->next;
    } while (sc != own);
}

void hpc_worker_uncork(hpc_scheme *own) {
    hpc_scheme *sc = own;
    do {
        for (int i = 0; sc->corked && i < sc->n_lanes; i++) hpc_lane_uncork(sc->in_lanes[i]);
        sc->corked = 0;
        sc = sc->next;
    } while (sc != own);
}

static int looks_done(void *arg) {
    look *l = arg;
    hpc_scheme *sc = l->sc;
    hpc_worker_progress(sc);
    if (holds(l)) return 1;
    if (sc->inline_progress && !(hpc_scheme_work(sc) & HPC_LEFT) && holds(l)) return 1;
    if (hpc_scheme_has_failed(sc)) return 1;
    measure(l);
    l->closed = l->for_slot && hpc_ticket_is_done(sc, l->key, l->ticket) ? -1 : closed_without(sc, l->key, l->ticket);
    if (l->closed >= 0) return 1;
    if (l->for_slot) return 0;
    l->closed = hpc_ticket_freed(sc, l->key, l->ticket);
    if (l->closed < 0) return 0;
    /* The owner sent its answers before its closed signal, but by other lanes, so the answers may have come and not be
     * polled yet. */
    if (hpc_group_progress(&sc->context->group) & HPC_LEFT) {
        l->closed = -1;
        return 0;
    }
    l->closed = hpc_ticket_freed(sc, l->key, l->ticket);
    l->freed = l->closed >= 0;
    return l->freed || hpc_ticket_is_done(sc, l->key, l->ticket);
}

uint64_t hpc_pushes_of(const hpc_scheme *sc, int rank, int key) {
    const char *part = hpc_sees(sc, rank) ? hpc_window_peer_view(sc->window, rank) : NULL;
    if (part == NULL) return UINT64_MAX;
    const _Atomic uint64_t *counts = (const _Atomic uint64_t *)(const void *)(part + sc->layout.places[rank].pushed);
    return atomic_load_explicit(&counts[key], memory_order_relaxed);
}

int hpc_add_rank(int *ranks, int n, int rank) {
    for (int i = 0; i < n; i++)
        if (ranks[i] == rank) return n;
    ranks[n] = rank;
    return n + 1;
}

int hpc_fail_freed(const hpc_scheme *sc, int rank, int key, const char *op) {
    return hpc_group_fail_closed(&sc->context->group, op, &rank, 1,
                                 "rank %d has freed the exchange, which owns a part of key %s", rank,
                                 sc->plan->keys[key].name);
}

static int wait_look(look *l, double timeout, const char *op) {
    hpc_scheme *sc = l->sc;
    hpc_worker_uncork(sc);
    if (holds(l)) { /* perhaps this call follows one that timed out */
        hpc_group_settle(&sc->context->group, op);
        return HPC_OK;
    }
    const hpc_wait wait = {op, looks_done, awaited, l, 0, .attend = hpc_scheme_attend, .attended = sc};
    double start = hpc_now();
    int status = hpc_wait_for(&sc->context->group, &wait, timeout_of(sc, timeout));
    double now = hpc_now();
    charge(l, now);
    sc->stats.wait += now - start;
    if (status == HPC_ERR_INVALID) return hpc_scheme_check(sc, op); /* reports why the context is closed */
    if (status != HPC_OK || holds(l)) return status;
    status = hpc_scheme_check(sc, op);
    if (status != HPC_OK || l->closed < 0) return status;
    if (l->freed) return hpc_fail_freed(sc, l->closed, l->key, op);
    return hpc_group_fail_closed(&sc->context->group, op, &l->closed, 1,
                                 "rank %d has closed the exchange after %llu pushes of key %s; push %llu is waited for",
                                 l->closed, (unsigned long long)hpc_closing_count(sc, l->closed, l->key),
                                 sc->plan->keys[l->key].name, (unsigned long long)hpc_push_of(sc, l->key, l->ticket));
}

int hpc_fail_cut_short(const hpc_scheme *sc, int key, const char *op) {
    return hpc_fail_detail(op, HPC_DETAIL_UNFINISHED,
                           "%s: the last call on key %s of rank %d was cut short; make it again first", op,
                           sc->plan->keys[key].name, sc->context->group.rank);
}

int hpc_fail_no_fold(const hpc_scheme *sc, int key, const char *op) {
    return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s has no fold on rank %d: fold it first", op,
                    sc->plan->keys[key].name, sc->context->group.rank);
}

int hpc_fail_scale(const hpc_scheme *sc, int key, double scale, const char *op) {
    return hpc_fail(HPC_ERR_INVALID, op,
                    "%s: scale of key %s is %g; it must be finite, or NaN for a mean of NaNs: skip leaves a step out",
                    op, sc->plan->keys[key].name, scale);
}

int hpc_ticket_wait(hpc_scheme *sc, int key, uint64_t ticket, double timeout, const char *op) {
    return wait_look(&(look){.sc = sc, .key = key, .ticket = ticket, .closed = -1}, timeout, op);
}

int hpc_ticket_wait_slot(hpc_scheme *sc, int key, uint64_t ticket, double timeout, const char *op) {
    const int for_slot = sc->has_read != NULL;
    return wait_look(&(look){.sc = sc, .key = key, .ticket = ticket, .closed = -1, .for_slot = for_slot}, timeout, op);
}

int hpc_ticket_end(hpc_scheme *sc, int key, uint64_t ticket, const char *op) {
    hpc_pushed *k = &sc->keys[key];
    if (k->encoded.n_rows > 0) hpc_params_came(sc, key, ticket);
    if (ticket != 2 * k->pushes) return HPC_OK;
    if (k->since != 0) hpc_usual_learn(&sc->usual, hpc_now() - k->since);
    k->since = 0;
    return hpc_note(sc, key, HPC_ON_END, NULL, op);
}

int hpc_ticket_test(hpc_scheme *sc, int key, uint64_t ticket, const char *op) {
    look l = {.sc = sc, .key = key, .ticket = ticket, .closed = -1};
    hpc_worker_uncork(sc);
    hpc_group_progress(&sc->context->group);
    if (hpc_ticket_is_done(sc, key, ticket)) return hpc_ticket_end(sc, key, ticket, op);
    if (!looks_done(&l) && atomic_load_explicit(&sc->context->group.departures, memory_order_relaxed) == 0)
        return HPC_IN_PROGRESS;
    int status = hpc_ticket_wait(sc, key, ticket, 0, op); /* returns at once, with the reason */
    if (status == HPC_OK) return hpc_ticket_end(sc, key, ticket, op);
    return status == HPC_ERR_TIMEOUT ? HPC_IN_PROGRESS : status;
}

/* ---- updates that are lacking ---- */

typedef struct supply {
    hpc_scheme *sc;
    int key;
    hpc_lacking *lacking;
} supply;

static int has_all(void *arg) {
    const supply *its = arg;
    hpc_worker_progress(its->sc);
    hpc_scheme_work(its->sc);
    return hpc_scheme_has_failed(its->sc) || its->lacking(its->sc, its->key, NULL) == 0;
}

static int whose_are_lacking(void *arg, int *ranks) {
    const supply *its = arg;
    const int n = its->lacking(its->sc, its->key, ranks);
    return n > 0 ? n : hpc_add_rank(ranks, n, its->sc->context->group.rank); /* only its own core is left to work */
}

int hpc_wait_lacking(hpc_scheme *sc, int key, hpc_lacking *lacking, hpc_limit *l, const char *op) {
    supply its = {sc, key, lacking};
    const hpc_wait wait = {op, has_all, whose_are_lacking, &its, 0, .attend = hpc_scheme_attend, .attended = sc};
    const int status = has_all(&its) ? HPC_OK : hpc_wait_for(&sc->context->group, &wait, hpc_limit_left(sc, l));
    return status == HPC_OK ? hpc_scheme_check(sc, op) : status;
}
