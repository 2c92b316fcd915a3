#include "discipline/graph.h"

#include "discipline/split_state.h"
#include "engine/owner/signals.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"

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
                            "%s: the graph has a weight of %g; %s scales the weights of the inputs that have come, so "
                            "none may be negative",
                            op, g->weights[i], by);
    return HPC_OK;
}

int hpc_graph_check_split(const hpc_exchange_config *f, const char *op) {
    if (!f->split || !f->in_place) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, op,
                    "%s: split keeps the models of all steps until they are applied, and in_place trains the last one "
                    "where it lies: leave one of the two out",
                    op);
}

/* ---- the owner ---- */

void hpc_graph_count_neighbours(hpc_core *core, const hpc_share *share) {
    hpc_scheme *sc = core->scheme;
    const hpc_row *row = &sc->plan->rows[share->rows[0]];
    int n = 0;
    for (int e = 0; e < row->n_in; e++) {
        int rank = row->in[e].rank;
        if (rank == row->owner || !hpc_sends(sc, share->key, share->version, row->owner, rank)) continue;
        hpc_share_count_received(sc, share, rank);
        n++;
    }
    hpc_share_count_fold(core, n);
}

int hpc_graph_work_row(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    return (core->scheme->use == NULL ? hpc_row_work : hpc_split_keep_row)(core, w, inputs);
}

void hpc_graph_end_fold(hpc_core *core, hpc_share *share) {
    if (core->scheme->use != NULL) hpc_split_keep(core, share);
}

/* Finds, on every rank, the share that has the same key and the same core number as a share of this rank. */
static int find_siblings(hpc_scheme *sc, const hpc_share *share, const char *op) {
    const int size = sc->context->group.size;
    int *siblings = sc->graph->siblings + (size_t)(share - sc->layout.shares) * (size_t)size;
    for (int r = 0; r < size; r++) siblings[r] = -1;
    for (int s = 0; s < sc->layout.n_shares; s++)
        if (sc->layout.shares[s].key == share->key && sc->layout.shares[s].core == share->core)
            siblings[sc->layout.shares[s].owner] = s;
    for (int r = 0; r < size; r++)
        if (siblings[r] < 0)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: rank %d owns key %s by other cores: make the plan by planner \"graph\"", op, r,
                            sc->plan->keys[share->key].name);
    return HPC_OK;
}

int hpc_graph_open_clocks(hpc_scheme *sc, const char *op) {
    const size_t n = (size_t)sc->layout.n_shares * (size_t)sc->context->group.size;
    int status = hpc_clocks_open(sc, op);
    sc->graph->siblings = hpc_scheme_take(sc, n, sizeof *sc->graph->siblings, op);
    if (sc->graph->siblings == NULL) return HPC_ERR_MEMORY;
    for (int c = 0; c < sc->n_own_cores && status == HPC_OK; c++)
        for (int i = 0; i < sc->cores[c].clocked->n && status == HPC_OK; i++)
            status = find_siblings(sc, sc->cores[c].clocked->shares[i], op);
    if (status == HPC_OK && sc->use != NULL) status = hpc_split_open_means(sc, op);
    return status == HPC_OK ? hpc_share_open_counts(sc, 1, op) : status;
}

/* Counts an input: the next update that the input's rank sends to this rank. Returns 0 if the update's slot was not
 * free, because the last update in that slot is not answered yet; otherwise 1. */
static int input_came(hpc_core *core, hpc_work *w, int input, int slot, int how) {
    const hpc_scheme *sc = core->scheme;
    const hpc_share *share = w->share;
    const int rank = w->inputs[input].rank, to = share->owner;
    hpc_clock *from = &w->share->clocks[rank];
    const uint64_t gone = rank == to ? share->version : from->answered;
    hpc_row_mark(w, slot, input, how);
    if (!hpc_clock_row(from, share)) return 1;
    const uint64_t n = hpc_sends_from(sc, share->key, hpc_clock_came(from) + 1, to, rank);
    if (hpc_sends_from(sc, share->key, gone + 1, to, rank) + (uint64_t)sc->layout.depth <= n) return 0;
    atomic_store_explicit(&from->came, n, memory_order_relaxed);
    return 1;
}

int hpc_graph_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    return input_came(core, w, input, slot, HPC_CAME);
}

static void empty_came(hpc_core *core, hpc_work *w, int slot, int input) {
    input_came(core, w, input, slot, HPC_CAME_EMPTY);
}

int hpc_graph_came_besides(hpc_core *core, hpc_share *share, const hpc_event *event, hpc_nothing_came *came) {
    if (core->scheme->use == NULL) return 0;
    if (hpc_imm_operation(event->imm) == HPC_OP_USE) return hpc_split_other_came(core, share, event);
    return hpc_core_empty_came(core, share, event, came);
}

int hpc_graph_other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    return hpc_graph_came_besides(core, share, event, empty_came);
}

int hpc_graph_work(hpc_core *core, const hpc_graph_fold *its) {
    int n = 0;
    for (int i = 0; i < core->clocked->n; i++)
        for (; its->is_time(core->scheme, core->clocked->shares[i]); n++)
            if (its->fold(core, core->clocked->shares[i]) != 0) return n;
    return n;
}

/* ---- the worker ---- */

int hpc_graph_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes) {
    const hpc_pushed *k = &sc->keys[key];
    const uint64_t needed = hpc_clock_behind(sc, hpc_push_of(sc, key, ticket));
    const int me = sc->context->group.rank;
    for (int i = 0; i < k->n_shares && rank != me; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        if (share->owner == me && hpc_feeds_share(sc, share, rank))
            return pushes < hpc_sends_until(sc, key, needed, me, rank);
    }
    return 0;
}
