#include "engine/graph.h"

#include <string.h>

#include "engine/clocks.h"
#include "engine/send.h"
#include "engine/stages.h"

/* A discipline whose senders have one slot says itself when a push is read. */
int hpc_graph_open(hpc_engine *en, const hpc_graph *graph, const char *op) {
    const size_t size = (size_t)en->context->group.size, n = (size_t)graph->n_phases * size * size;
    hpc_phases *g = en->graph = hpc_engine_take(en, 1, sizeof *g, op);
    if (g == NULL) return HPC_ERR_MEMORY;
    g->n = graph->n_phases;
    g->weights = hpc_engine_take(en, n, sizeof *g->weights, op);
    g->keys = hpc_engine_take(en, (size_t)en->plan->n_keys, sizeof *g->keys, op);
    if (g->weights == NULL || g->keys == NULL) return HPC_ERR_MEMORY;
    memcpy(g->weights, graph->weights, n * sizeof *g->weights);
    en->turns = g->n > 1;
    if (en->has_read == NULL && !(en->discipline->traits & HPC_ONE_SLOT)) en->has_read = hpc_graph_has_read;
    return HPC_OK;
}

/* ---- the worker ---- */

int hpc_graph_goes_to(const hpc_engine *en, const hpc_share *share) {
    return hpc_sends(en, share->key, en->keys[share->key].pushes + 1, share->owner, en->context->group.rank) &&
           hpc_closed_signal(en, share->owner) == 0;
}

/* Whether push n, one of the last depth ones, was sent to rank to. Its phase does not follow from its number if a
 * checkpoint has been restored since. */
static int was_sent(const hpc_engine *en, int key, uint64_t n, int to) {
    const hpc_graph_key *k = &en->graph->keys[key];
    const int phase = n <= k->noted ? k->phases[(n - 1) % (uint64_t)en->layout.depth] : hpc_phase(en, key, n);
    return hpc_phase_weight(en, phase, to, en->context->group.rank) != 0;
}

/* Whether the owner has closed, and everything on its way there has left this rank's memory. */
static int has_let_go(const hpc_engine *en, const hpc_share *share) {
    if (hpc_closed_signal(en, share->owner) == 0) return 0;
    return hpc_is_mapped(en, share->owner) ||
           hpc_lane_try_flush(en->in_lanes[share->core], share->owner) != HPC_IN_PROGRESS;
}

int hpc_graph_has_read(const hpc_engine *en, int s, uint64_t ticket) {
    const hpc_share *share = &en->layout.shares[s];
    const int me = en->context->group.rank;
    if (share->owner == me) return hpc_share_has_answered(en, s, ticket);
    if (ticket == 0 || !hpc_feeds_share(en, share, me)) return 1;
    return !was_sent(en, share->key, ticket / 2, share->owner) || hpc_share_has_answered(en, s, ticket) ||
           has_let_go(en, share);
}

void hpc_graph_restored(hpc_engine *en, const hpc_work *w, uint64_t step) {
    const uint64_t pushes = en->keys[w->row->key].pushes, depth = (uint64_t)en->layout.depth;
    hpc_graph_key *k = &en->graph->keys[w->row->key];
    for (uint64_t n = pushes; n > k->noted && n + depth > pushes; n--)
        k->phases[(n - 1) % depth] = hpc_phase(en, w->row->key, n);
    k->noted = pushes;
    k->ahead = (int64_t)(step - w->share->version);
}
