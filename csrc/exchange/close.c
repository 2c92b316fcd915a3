/* An engine is left: what is under way ends, the other ranks hear of it, and rows serve until all have left. */
#include "exchange/exchange.h"

#include <stdlib.h>

#include "engine/args.h"
#include "engine/pieces.h"
#include "engine/rows.h"
#include "engine/send.h"

/* Tells every rank how far the pushes from here go (those sent in part do not count), or later that no answer comes
 * from here either. A rank that is gone needs not know. By a lane of the exchange, which is flushed before the memory
 * goes. */
static int announce(hpc_engine *en, uint64_t what) {
    hpc_context *c = en->context;
    int me = c->group.rank, first_failure = HPC_OK;
    size_t n = en->layout.places[me].worker && !en->life.closed ? (size_t)en->plan->n_keys : 0;
    uint64_t *counts = n > 0 ? (uint64_t *)(void *)(hpc_own_part(en) + en->layout.places[me].pushed) : NULL;
    for (size_t k = 0; k < n; k++)
        atomic_store_explicit((_Atomic uint64_t *)&counts[k], en->keys[k].pushes, memory_order_relaxed);
    for (int r = 0; r < c->group.size; r++) {
        if (hpc_group_has_departed(&c->group, r)) continue;
        size_t at = en->layout.places[r].closed + (size_t)me * (size_t)en->plan->n_keys * sizeof *counts;
        int status =
            hpc_put_signal(en->in_lanes[0], en->window, r, counts, n * sizeof *counts, at, hpc_signal_closed(me), what);
        status = hpc_unless_left(en, r, status);
        if (status != HPC_OK && status != HPC_ERR_PEER && first_failure == HPC_OK) first_failure = status;
    }
    return first_failure;
}

static int is_open(const hpc_engine *en, int rank) {
    return en->layout.places[rank].worker &&
           atomic_load_explicit(hpc_own_signal(en->window, hpc_signal_closed(rank)), memory_order_acquire) == 0;
}

static int outstanding(const hpc_engine *en, int *ranks) {
    return en->gate->outstanding == NULL ? 0 : en->gate->outstanding(en, ranks);
}

static int open_workers(void *arg, int *ranks) {
    const hpc_engine *en = arg;
    int n = 0;
    for (int r = 0; r < en->context->group.size; r++)
        if (is_open(en, r)) ranks[n++] = r;
    return n == 0 ? outstanding(en, ranks) : n;
}

/* Whether this rank has nobody to serve any more. After a revoke the others go on without a rank that closes the
 * exchange, and do not come back to it; a rank that only serves goes on with them. */
static int all_closed(void *arg) {
    hpc_engine *en = arg;
    if (en->inline_progress) hpc_context_work(en->context);
    if (hpc_engine_has_failed(en)) return 1;
    if (en->life.closed && atomic_load(&en->context->group.revoked)) return 1;
    for (int r = 0; r < en->context->group.size; r++)
        if (is_open(en, r)) return 0;
    return outstanding(en, NULL) == 0;
}

int hpc_engine_serve(hpc_engine *en, const char *op, double timeout) {
    const hpc_wait wait = {op, all_closed, open_workers, en, .every = 1};
    int status = hpc_wait_for(&en->context->group, &wait, timeout);
    return status == HPC_OK || status == HPC_ERR_INVALID ? hpc_engine_check(en, op) : status;
}

/* Pushes that are under way are waited for: the rows of this rank may be among what others wait for. After a timeout a
 * second call goes on. */
int hpc_engine_leave(hpc_engine *en, const char *op, double deadline) {
    int status = hpc_engine_check(en, op), rank = en->context->group.rank;
    if (en->life.closed) return status;
    hpc_worker_uncork(en);
    if (status == HPC_OK && en->layout.places[rank].worker) status = hpc_worker_finish(en, op, deadline);
    if (status == HPC_OK) status = hpc_cores_send_kept(en, op, hpc_left(deadline));
    if (status == HPC_ERR_TIMEOUT) return status;
    if (status == HPC_OK) status = hpc_note(en, -1, HPC_ON_CLOSE, NULL, op);
    int muted = hpc_mute_errors(1); /* if something has failed before, that is what close tells */
    if (status == HPC_OK) hpc_mute_errors(muted);
    int announced = announce(en, HPC_CLOSED);
    hpc_mute_errors(muted);
    en->life.closed = 1;
    return status == HPC_OK ? announced : status;
}

/* Its cores have stopped. */
void hpc_engine_free(hpc_engine *en) {
    double deadline = hpc_now() + 1; /* answers come before the news that there are no more; a rank that stands still
                                        has seen neither */
    for (int i = 0; i < en->n_lanes && en->life.open; i++) hpc_lane_flush(en->out_lanes[i], hpc_left(deadline));
    if (en->life.open) announce(en, HPC_FREED);
    for (int i = 0; i < en->n_lanes; i++) { /* first: puts that are still under way read what is freed below */
        if (en->in_lanes != NULL) hpc_lane_free(en->in_lanes[i]);
        if (en->out_lanes != NULL) hpc_lane_free(en->out_lanes[i]);
    }
    hpc_arena_free(&en->taken);
    hpc_pieces_free(en);
    hpc_rows_free(en);
    hpc_args_free(en);
    free(en->in_lanes);
    free(en->out_lanes);
    hpc_window_free(en->window);
    hpc_layout_free(en);
    free(en->peers.pushed);
    free(en->peers.pushed_of_key);
    free(en->peers.received);
    free(en->peers.late);
    free(en->peers.dropped);
    free(en->peers.inputs_whole);
    free(en->peers.wait);
    free(en->peers.awaited);
    free(en->threads);
    hpc_plan_free(en->plan);
    hpc_context_release(en->context);
    free(en);
}
