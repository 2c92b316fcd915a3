#include "discipline/graph.h"

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

int hpc_graph_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    const int rank = w->inputs[input].rank;
    hpc_clock *from = &w->share->clocks[rank];
    const uint64_t came = hpc_clock_came(from), gone = rank == w->share->owner ? w->share->version : from->answered;
    (void)slot;
    if (!hpc_clock_row(from, w->share)) return 1;
    if (came - gone >= (uint64_t)core->engine->layout.depth) return 0; /* more than there are slots */
    hpc_tally_add(&from->came, 1);
    return 1;
}

int hpc_graph_work(hpc_core *core, const hpc_graph_fold *its) {
    int n = 0;
    for (int i = 0; i < core->n_clocked; i++)
        for (; its->is_time(core->engine, core->clocked[i]); n++)
            if (its->fold(core, core->clocked[i]) != 0) return n;
    return n;
}
