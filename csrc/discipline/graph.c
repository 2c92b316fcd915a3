#include "discipline/graph.h"

#include <string.h>

#include "engine/answer.h"
#include "engine/stages.h"

/* ---- open ---- */

const char *hpc_consistency_name(int consistency) {
    static const char *const names[] = {"BSP", "ASYNC", "NOTIFY_ACK", "SSP", "BARRIER"};
    return consistency >= HPC_BSP && consistency <= HPC_BARRIER ? names[consistency] : "unknown";
}

int hpc_graph_is_given(const hpc_exchange_config *f, const char *op) {
    if (f->graph != NULL) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: consistency %s needs a graph; servers know BSP, ASYNC and SSP", op,
                    hpc_consistency_name(f->consistency));
}

int hpc_graph_check_partial(const hpc_exchange_config *f, const char *by, const char *op) {
    const hpc_graph *g = f->graph;
    size_t n = (size_t)g->n_phases * (size_t)g->ranks * (size_t)g->ranks;
    if (hpc_config_own_fold(f) != NULL)
        return hpc_fail(
            HPC_ERR_UNSUPPORTED, op,
            "%s: rule %s has a fold of its own; under %s some inputs may be missing from it: use NOTIFY_ACK "
            "or BSP without a quorum",
            op, hpc_config_own_fold(f)->name, by);
    for (size_t i = 0; i < n; i++)
        if (g->weights[i] < 0)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: the graph has a weight of %g; %s scales the weights of what is there, so none may be "
                            "negative",
                            op, g->weights[i], by);
    return HPC_OK;
}

int hpc_graph_check_constant(const hpc_exchange_config *f, const char *by, const char *op) {
    if (f->graph->n_phases <= 1) return HPC_OK;
    return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: %s needs a graph of one phase; this one has %d", op, by,
                    f->graph->n_phases);
}

int hpc_graph_prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    if (f->graph == NULL) return HPC_OK;
    size_t size = (size_t)en->context->group.size, n = (size_t)f->graph->n_phases * size * size;
    hpc_phases *g = en->graph = hpc_engine_take(en, 1, sizeof *g, op);
    if (g == NULL) return HPC_ERR_MEMORY;
    g->n = f->graph->n_phases;
    g->weights = hpc_engine_take(en, n, sizeof *g->weights, op);
    g->keys = hpc_engine_take(en, (size_t)en->plan->n_keys, sizeof *g->keys, op);
    if (g->weights == NULL || g->keys == NULL) return HPC_ERR_MEMORY;
    memcpy(g->weights, f->graph->weights, n * sizeof *g->weights);
    en->turns = f->graph->n_phases > 1;
    en->own_args = 1;
    en->owners_leave = 1;
    return HPC_OK;
}

/* ---- the owner ---- */

void hpc_graph_count_neighbours(hpc_core *core, const hpc_share *share) {
    hpc_engine *en = core->engine;
    const hpc_row *row = &en->plan->rows[share->rows[0]];
    int n = 0;
    for (int e = 0; e < row->n_in; e++) {
        int rank = row->in[e].rank;
        if (rank == row->owner || !hpc_sends(en, share->key, share->version, row->owner, rank)) continue;
        hpc_share_count_received(en, share, rank);
        n++;
    }
    hpc_share_count_fold(core, n);
}

/* Finds the shares of the key and core of share, of all ranks. */
static int find_siblings(hpc_engine *en, hpc_share *share, const char *op) {
    const int size = en->context->group.size;
    int *siblings = share->own = hpc_engine_take(en, (size_t)size, sizeof *siblings, op);
    if (siblings == NULL) return HPC_ERR_MEMORY;
    for (int r = 0; r < size; r++) siblings[r] = -1;
    for (int s = 0; s < en->layout.n_shares; s++)
        if (en->layout.shares[s].key == share->key && en->layout.shares[s].core == share->core)
            siblings[en->layout.shares[s].owner] = s;
    for (int r = 0; r < size; r++)
        if (siblings[r] < 0)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: rank %d owns key %s by other cores: make the plan by hpc_plan_graph", op, r,
                            en->plan->keys[share->key].name);
    return HPC_OK;
}

int hpc_graph_open_clocks(hpc_engine *en, const char *op) {
    int status = hpc_clocks_open(en, op);
    for (int c = 0; c < en->n_own_cores && status == HPC_OK; c++)
        for (int i = 0; i < en->cores[c].n_clocked && status == HPC_OK; i++)
            status = find_siblings(en, en->cores[c].clocked[i], op);
    return status == HPC_OK ? hpc_share_open_counts(en, 1, op) : status;
}

int hpc_graph_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    hpc_clock *from = &share->clocks[rank];
    const uint64_t came = hpc_clock_came(from), gone = rank == share->owner ? share->version : from->answered;
    (void)slot;
    if (came - gone >= (uint64_t)core->engine->layout.depth) return 0; /* more than there are slots */
    hpc_tally_add(&from->came, 1);
    return 1;
}

int hpc_graph_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    const int rank = w->inputs[input].rank;
    return !hpc_clock_row(&w->share->clocks[rank], w->share) || hpc_graph_share_came(core, w->share, rank, slot);
}

int hpc_graph_work(hpc_core *core, const hpc_graph_fold *its) {
    int n = 0;
    for (int i = 0; i < core->n_clocked; i++)
        for (; its->is_time(core->engine, core->clocked[i]); n++)
            if (its->fold(core, core->clocked[i]) != 0) return n;
    return n;
}

/* ---- the worker ---- */

int hpc_graph_makes_params(const hpc_engine *en, const hpc_share *share) {
    return share->owner == en->context->group.rank;
}

void hpc_graph_begin_push(hpc_engine *en, int key) {
    uint64_t pushes = en->keys[key].pushes;
    hpc_phases *g = en->graph;
    g->keys[key].phases[pushes % (uint64_t)en->layout.depth] = hpc_phase(en, key, pushes + 1);
}

int hpc_graph_goes_to(const hpc_engine *en, const hpc_share *share) {
    return hpc_sends(en, share->key, en->keys[share->key].pushes + 1, share->owner, en->context->group.rank) &&
           hpc_closed_signal(en, share->owner) == 0;
}

int hpc_graph_send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    return hpc_graph_goes_to(en, &en->layout.shares[s]) ? hpc_push_share(en, s, slot, l) : HPC_OK;
}

/* Whether push n, one of the last depth ones, was sent to rank to. Its phase does not follow from its number if a
 * checkpoint has been restored since. */
static int was_sent(const hpc_engine *en, int key, uint64_t n, int to) {
    int phase = hpc_phases_of(en)->keys[key].phases[(n - 1) % (uint64_t)en->layout.depth];
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
    int me = en->context->group.rank;
    if (share->owner == me) return hpc_share_has_answered(en, s, ticket);
    if (ticket == 0 || !hpc_feeds_share(en, share, me)) return 1;
    return !was_sent(en, share->key, ticket / 2, share->owner) || hpc_share_has_answered(en, s, ticket) ||
           has_let_go(en, share);
}

/* Waits for each push by itself: on a graph that changes, the last push and the one before may have other readers. */
int hpc_graph_finish(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    uint64_t pushes = en->keys[key].pushes, depth = (uint64_t)en->layout.depth;
    int status = HPC_OK;
    for (uint64_t n = pushes < depth ? 1 : pushes - depth + 1; n <= pushes && status == HPC_OK; n++)
        status = hpc_ticket_wait_slot(en, key, 2 * n, hpc_limit_left(en, l), op);
    return status;
}

int hpc_graph_finish_unread(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    (void)op;
    return hpc_flush_key(en, key, l);
}

/* A graph that changes goes on with the phase at which the checkpoint was made. */
void hpc_graph_restored(hpc_engine *en, const hpc_work *w, uint64_t step) {
    hpc_phases *g = en->graph;
    g->keys[w->row->key].ahead = (int64_t)(step - w->share->version);
}
