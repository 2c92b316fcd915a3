/* SSP(s) on servers, the worker's side: it decides whether a pull has to ask the owners.
 *
 * A worker's *clock* of a key is the number of its pushes since the last publish. A step at clock c may begin when the
 * parameters have all updates of clocks up to c - s - 1: that is, when every open worker has pushed c - s times. The
 * owner answers a pull when the smallest clock of all open workers, the owner's *minimum*, is at least c - s
 * (servers_owner.c). The answer is the share's parameters, then the minimum (8 bytes), then the number of the pull (a
 * signal).
 *
 * The worker keeps the smallest minimum of its last pull of a key. While this minimum suffices for the worker's clock
 * its copy is fresh enough: the pull ends at once and sends nothing. So one of s + 1 pulls asks, if all workers are
 * equally fast. With the rule sgd, which has no state, the worker adds its own update to its copy; with other rules it
 * gets its own update with the next pull that asks. A pull without a push before it always asks, so that a trainer can
 * get the newest parameters.
 *
 * Parameter Flow's own form (UCC-SSP, section 3.2.1) is in receivers_ssp.c. In that form every worker gets every
 * version, and all get the same parameters for a version. In this file's form an answer carries the owner's present
 * parameters, and a worker asks only when it must. The bound is the same: the minimum is the number of closed
 * versions. */
#include <string.h>

#include "discipline/servers.h"
#include "engine/bytes.h"
#include "engine/layout/layout.h"
#include "engine/params.h"
#include "engine/owner/row.h"
#include "engine/worker/send.h"
#include "engine/state.h"
#include "engine/worker/waits.h"
#include "engine/worker/worker.h"

/* A worker's view of a key. */
typedef struct view {
    uint64_t at;      /* how many pushes the worker had made at its last pull */
    int begins;       /* whether the last pull begins a step, since a push was made before it */
    uint64_t looked;  /* the number of the pull that brought minimum */
    uint64_t minimum; /* the copy has at least this many updates of each worker since the last publish */
    uint64_t handed;  /* with depth 1: how many pushes the worker had made when its trainer last got the slot */
    double args[HPC_RULE_ARGS]; /* the rule's arguments at its last push */
} view;

/* The state of the scheme. */
typedef struct worker {
    view *keys;
    uint64_t *base; /* [key * size + rank]: pushes before the last publish; for other ranks only if this rank can see
                       their counts */
} worker;

/* ---- open ---- */

static worker *worker_of(const hpc_scheme *sc) {
    return sc->own;
}

static size_t part(const hpc_scheme *sc, int rank) {
    return sc->layout.places[rank].worker ? (size_t)sc->layout.n_shares * sizeof(uint64_t) : 0;
}

int hpc_fresh_plan(hpc_scheme *sc, const char *op) {
    (void)op;
    hpc_layout_take_own(sc, part);
    return HPC_OK;
}

size_t hpc_fresh_told_at(const hpc_scheme *sc, int rank, int share) {
    return sc->layout.places[rank].own + (size_t)share * sizeof(uint64_t);
}

int hpc_fresh_open(hpc_scheme *sc, const char *op) {
    const size_t size = (size_t)sc->context->group.size, keys = (size_t)sc->plan->n_keys;
    worker *its = sc->own = hpc_scheme_take(sc, 1, sizeof *its, op);
    if (its == NULL) return HPC_ERR_MEMORY;
    its->keys = hpc_scheme_take(sc, keys, sizeof *its->keys, op);
    its->base = hpc_scheme_take(sc, keys * size, sizeof *its->base, op);
    sc->heard = hpc_scheme_take(sc, (size_t)sc->layout.n_shares, sizeof *sc->heard, op);
    if (its->keys == NULL || its->base == NULL || sc->heard == NULL) return HPC_ERR_MEMORY;
    const int status = hpc_open_begun(sc, op);
    return status == HPC_OK ? hpc_clocks_open(sc, op) : status;
}

/* Returns the minimum in the owner's last answer: this rank's copy has all workers' updates up to that clock. */
static uint64_t told_by(const hpc_scheme *sc, int s) {
    uint64_t told;
    memcpy(&told, hpc_own_part(sc) + hpc_fresh_told_at(sc, sc->context->group.rank, s), sizeof told);
    return told;
}

/* ---- clocks ---- */

static uint64_t *base_of(const hpc_scheme *sc, int key, int rank) {
    return &worker_of(sc)->base[(size_t)key * (size_t)sc->context->group.size + (size_t)rank];
}

/* Returns this rank's clock of a key after n pushes in all. */
static uint64_t own_clock(const hpc_scheme *sc, int key, uint64_t n) {
    return n - *base_of(sc, key, sc->context->group.rank);
}

static void count_begun(const hpc_scheme *sc, uint64_t clock, uint64_t minimum) {
    hpc_count_begun(sc, clock > minimum ? clock - minimum : 0);
}

/* Reads the minima that have come for the last pull so far. When the pull has ended, counts how stale its step is. */
static void hear(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    view *v = &worker_of(sc)->keys[key];
    uint64_t least = UINT64_MAX;
    int ended = 1;
    if (v->looked == k->pulls) return;
    for (int i = 0; i < k->n_awaited; i++) {
        const int s = k->awaited[i];
        if (hpc_share_has_answered(sc, s, 2 * k->pulls + HPC_PULL_TICKET))
            sc->heard[s] = told_by(sc, s);
        else
            ended = 0;
        if (sc->heard[s] < least) least = sc->heard[s];
    }
    if (!ended) return;
    v->looked = k->pulls;
    v->minimum = least;
    if (v->begins) count_begun(sc, own_clock(sc, key, v->at), v->minimum);
}

/* ---- pushes ---- */

/* Waits for a free slot. With one slot the next update overwrites the last one, so a later pull can no longer add the
 * last update to the copy. */
int hpc_fresh_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    const int status = hpc_push_wait_slot(sc, key, l, op);
    if (status == HPC_OK && sc->layout.depth == 1) worker_of(sc)->keys[key].handed = sc->keys[key].pushes;
    return status;
}

/* ---- pulls ---- */

/* Returns whether the worker's copy has all that a pull needs. If only the worker's last update is missing, adds it to
 * the copy. */
int hpc_fresh_ends_pull(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    view *v = &worker_of(sc)->keys[key];
    const uint64_t clock = own_clock(sc, key, k->pushes);
    hear(sc, key);
    const int kept = sc->layout.depth > 1 || v->handed < k->pushes; /* the last update is in its slot */
    const int pushed_once = k->pushes == v->at + 1 && kept && !hpc_key_pushes_pieces(sc, key);
    const int looked = v->looked == k->pulls;
    const int decoded = hpc_params_are_decoded(sc, key, 2 * k->pulls + HPC_PULL_TICKET);
    v->begins = k->pushes > v->at || (v->begins && !looked); /* or the pull that it replaces began one */
    v->at = k->pushes;
    if (!pushed_once || !looked || !decoded || v->minimum < hpc_clock_behind(sc, clock)) return 0;
    if (!hpc_push_is_empty(sc, key)) hpc_worker_add_own(sc, key, v->args);
    count_begun(sc, clock, v->minimum);
    return 1;
}

/* ---- the ranks that a wait waits for ---- */

/* Returns whether a worker is too far behind for a pull, as far as this rank can see, or has left without closing. */
int hpc_fresh_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes) {
    const hpc_pushed *k = &sc->keys[key];
    const uint64_t needed = hpc_clock_behind(sc, own_clock(sc, key, worker_of(sc)->keys[key].at));
    if (!(ticket & HPC_PULL_TICKET) || needed == 0 || !hpc_sender_is_open(sc, key, rank)) return 0;
    if (pushes == UINT64_MAX ? hpc_has_left(sc, rank) : pushes - *base_of(sc, key, rank) < needed) return 1;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        if (share->clocks != NULL && hpc_clock_applied(&share->clocks[rank]) < needed) return 1;
    }
    return 0;
}

/* ---- publish: all workers go on from one clock ---- */

/* No rank has a push or pull pending, and none pushes before the publish has ended. */
static void level(hpc_scheme *sc) {
    for (int k = 0; k < sc->plan->n_keys; k++) {
        view *v = &worker_of(sc)->keys[k];
        hear(sc, k);
        for (int r = 0; r < sc->context->group.size; r++)
            *base_of(sc, k, r) = hpc_pushes_key(sc, r, k) ? hpc_pushes_of(sc, r, k) : 0;
        *base_of(sc, k, sc->context->group.rank) = v->at = sc->keys[k].pushes;
        v->minimum = 0;
    }
    hpc_clocks_level(sc);
}

int hpc_fresh_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    (void)l, (void)op;
    if (moment == HPC_ON_SEND) hpc_args_get(sc, key, worker_of(sc)->keys[key].args);
    if (moment == HPC_ON_HEAR) hear(sc, key);
    if (moment == HPC_ON_PUBLISH) level(sc);
    return HPC_OK;
}
