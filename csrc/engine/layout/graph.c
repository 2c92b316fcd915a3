#include "engine/layout/graph.h"

#include <string.h>

#include "engine/owner/signals.h"
#include "engine/discipline.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"

/* If senders have one slot (HPC_ONE_SLOT), the discipline's own has_read says when a push is read. */
int hpc_graph_open(hpc_scheme *sc, const hpc_graph *graph, const char *op) {
    const size_t size = (size_t)sc->context->group.size, n = (size_t)graph->n_phases * size * size;
    hpc_phases *g = sc->graph = hpc_scheme_take(sc, 1, sizeof *g, op);
    if (g == NULL) return HPC_ERR_MEMORY;
    g->n = graph->n_phases;
    g->weights = hpc_scheme_take(sc, n, sizeof *g->weights, op);
    g->keys = hpc_scheme_take(sc, (size_t)sc->plan->n_keys, sizeof *g->keys, op);
    if (g->weights == NULL || g->keys == NULL) return HPC_ERR_MEMORY;
    memcpy(g->weights, graph->weights, n * sizeof *g->weights);
    sc->turns = g->n > 1;
    if (sc->has_read == NULL && !(sc->discipline->traits & HPC_ONE_SLOT)) sc->has_read = hpc_graph_has_read;
    return HPC_OK;
}

/* ---- the worker ---- */

int hpc_graph_goes_to(const hpc_scheme *sc, const hpc_share *share) {
    return hpc_sends(sc, share->key, sc->keys[share->key].pushes + 1, share->owner, sc->context->group.rank) &&
           hpc_closed_signal(sc, share->owner) == 0;
}

/* Returns whether push n, one of the last depth pushes, was sent to rank to. After a checkpoint was restored, the phase
 * of an earlier push no longer follows from its number; k->phases has it. */
static int was_sent(const hpc_scheme *sc, int key, uint64_t n, int to) {
    const hpc_graph_key *k = &sc->graph->keys[key];
    const int phase = n <= k->noted ? k->phases[(n - 1) % (uint64_t)sc->layout.depth] : hpc_phase(sc, key, n);
    return hpc_phase_weight(sc, phase, to, sc->context->group.rank) != 0;
}

/* Returns whether the owner has closed, and all puts to that rank have left this rank's memory. */
static int has_let_go(const hpc_scheme *sc, const hpc_share *share) {
    if (hpc_closed_signal(sc, share->owner) == 0) return 0;
    return hpc_is_mapped(sc, share->owner) ||
           hpc_lane_try_flush(hpc_push_lane(sc, share), share->owner) != HPC_IN_PROGRESS;
}

int hpc_graph_has_read(const hpc_scheme *sc, int s, uint64_t ticket) {
    const hpc_share *share = &sc->layout.shares[s];
    const int me = sc->context->group.rank;
    if (share->owner == me) return hpc_share_has_answered(sc, s, ticket);
    if (ticket == 0 || !hpc_feeds_share(sc, share, me)) return 1;
    return !was_sent(sc, share->key, ticket / 2, share->owner) || hpc_share_has_answered(sc, s, ticket) ||
           has_let_go(sc, share);
}

void hpc_graph_restored(hpc_scheme *sc, const hpc_work *w, uint64_t step) {
    const uint64_t pushes = sc->keys[w->row->key].pushes, depth = (uint64_t)sc->layout.depth;
    hpc_graph_key *k = &sc->graph->keys[w->row->key];
    for (uint64_t n = pushes; n > k->noted && n + depth > pushes; n--)
        k->phases[(n - 1) % depth] = hpc_phase(sc, w->row->key, n);
    k->noted = pushes;
    hpc_graph_set_step(sc, w->row->key, w->share->version, step);
}
