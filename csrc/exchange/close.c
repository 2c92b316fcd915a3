/* A scheme is left: pending calls end, the other ranks hear of it, and rows serve until all have left. */
#include "exchange/exchange.h"

#include <stdlib.h>

#include "engine/args.h"
#include "engine/layout.h"
#include "engine/pieces.h"
#include "engine/rows.h"
#include "engine/send.h"

/* Tells every rank how far the pushes from here go (those sent in part do not count), or later that no answer comes
 * from here either. A rank that is gone needs not know. By a lane of the exchange, which is flushed before the memory
 * goes. */
static int announce(hpc_scheme *sc, uint64_t what) {
    hpc_context *c = sc->context;
    int me = c->group.rank, first_failure = HPC_OK;
    size_t n = sc->layout.places[me].worker && !sc->life.closed ? (size_t)sc->plan->n_keys : 0;
    uint64_t *counts = n > 0 ? (uint64_t *)(void *)(hpc_own_part(sc) + sc->layout.places[me].pushed) : NULL;
    for (size_t k = 0; k < n; k++)
        atomic_store_explicit((_Atomic uint64_t *)&counts[k], sc->keys[k].pushes, memory_order_relaxed);
    for (int r = 0; r < c->group.size; r++) {
        if (hpc_group_has_departed(&c->group, r)) continue;
        size_t at = sc->layout.places[r].closed + (size_t)me * (size_t)sc->plan->n_keys * sizeof *counts;
        int status =
            hpc_put_signal(sc->in_lanes[0], sc->window, r, counts, n * sizeof *counts, at, hpc_signal_closed(me), what);
        status = hpc_unless_left(sc, r, status);
        if (status != HPC_OK && status != HPC_ERR_PEER && first_failure == HPC_OK) first_failure = status;
    }
    return first_failure;
}

static int is_open(const hpc_scheme *sc, int rank) {
    return sc->layout.places[rank].worker &&
           atomic_load_explicit(hpc_own_signal(sc->window, hpc_signal_closed(rank)), memory_order_acquire) == 0;
}

static int outstanding(const hpc_scheme *sc, int *ranks) {
    return sc->gate->outstanding == NULL ? 0 : sc->gate->outstanding(sc, ranks);
}

/* Ranks of which something is outstanding. A rank that left had sent all: the cores of this rank have it to take. */
static int outstanding_here(const hpc_scheme *sc, int *ranks) {
    const hpc_group *group = &sc->context->group;
    int found = outstanding(sc, ranks), n = 0;
    for (int i = 0; i < found; i++)
        if (atomic_load_explicit(&group->states[ranks[i]], memory_order_acquire) != HPC_PEER_LEFT)
            ranks[n++] = ranks[i];
    if (n == 0 && found > 0) ranks[n++] = group->rank;
    return n;
}

static int open_workers(void *arg, int *ranks) {
    const hpc_scheme *sc = arg;
    int n = 0;
    for (int r = 0; r < sc->context->group.size; r++)
        if (is_open(sc, r)) ranks[n++] = r;
    return n == 0 ? outstanding_here(sc, ranks) : n;
}

/* Whether no rank needs this one any more. After a revoke the others go on without a rank that closes the exchange, and
 * do not come back to it; a rank that only serves goes on with them. */
static int all_closed(void *arg) {
    hpc_scheme *sc = arg;
    if (sc->inline_progress) hpc_context_work(sc->context);
    if (hpc_scheme_has_failed(sc)) return 1;
    if (sc->life.closed && atomic_load(&sc->context->group.revoked)) return 1;
    for (int r = 0; r < sc->context->group.size; r++)
        if (is_open(sc, r)) return 0;
    return outstanding(sc, NULL) == 0;
}

int hpc_scheme_serve(hpc_scheme *sc, const char *op, double timeout) {
    const hpc_wait wait = {op, all_closed, open_workers, sc, .every = 1};
    int status = hpc_wait_for(&sc->context->group, &wait, timeout);
    return status == HPC_OK || status == HPC_ERR_INVALID ? hpc_scheme_check(sc, op) : status;
}

/* Pending pushes are waited for: others may wait for rows of this rank. After a timeout a second call goes on. */
int hpc_scheme_leave(hpc_scheme *sc, const char *op, double deadline) {
    int status = hpc_scheme_check(sc, op), rank = sc->context->group.rank;
    if (sc->life.closed) return status;
    hpc_worker_uncork(sc);
    if (status == HPC_OK && sc->layout.places[rank].worker) status = hpc_worker_finish(sc, op, deadline);
    if (status == HPC_OK) status = hpc_cores_send_kept(sc, op, hpc_left(deadline));
    if (status == HPC_ERR_TIMEOUT) return status;
    if (status == HPC_OK) status = hpc_note(sc, -1, HPC_ON_CLOSE, NULL, op);
    int muted = hpc_mute_errors(1); /* close reports an earlier failure, if there is one */
    if (status == HPC_OK) hpc_mute_errors(muted);
    int announced = announce(sc, HPC_CLOSED);
    hpc_mute_errors(muted);
    sc->life.closed = 1;
    return status == HPC_OK ? announced : status;
}

/* Its cores have stopped. */
void hpc_scheme_free(hpc_scheme *sc) {
    double deadline = hpc_now() + 1; /* answers must arrive before HPC_FREED; a rank that stands still has seen neither
                                      */
    for (int i = 0; i < sc->n_lanes && sc->life.open; i++) hpc_lane_flush(sc->out_lanes[i], hpc_left(deadline));
    if (sc->life.open) announce(sc, HPC_FREED);
    for (int i = 0; i < sc->n_lanes; i++) { /* first: pending puts read memory that is freed below */
        if (sc->in_lanes != NULL) hpc_lane_free(sc->in_lanes[i]);
        if (sc->out_lanes != NULL) hpc_lane_free(sc->out_lanes[i]);
    }
    hpc_arena_free(&sc->taken);
    hpc_pieces_free(sc);
    hpc_rows_free(sc);
    hpc_args_free(sc);
    free(sc->in_lanes);
    free(sc->out_lanes);
    hpc_window_free(sc->window);
    hpc_layout_free(sc);
    free(sc->peers.pushed);
    free(sc->peers.pushed_of_key);
    free(sc->peers.received);
    free(sc->peers.late);
    free(sc->peers.dropped);
    free(sc->peers.inputs_whole);
    free(sc->peers.wait);
    free(sc->peers.awaited);
    free(sc->threads);
    hpc_plan_free(sc->plan);
    hpc_context_release(sc->context);
    free(sc);
}
