#include "discipline/whole.h"

#include "engine/args.h"

/* The weights of its rows in the plan are of all phases. */
int hpc_whole_turns(const hpc_engine *en) {
    return en->graph != NULL && hpc_phases_of(en)->n > 1;
}

int hpc_whole_open(hpc_engine *en, const char *op) {
    return en->graph == NULL ? HPC_OK : hpc_share_open_counts(en, 1, op);
}

/* ---- answers ---- */

/* All rows of the share are folded: its inputs have been read, its outputs are written. On a graph of several phases a
 * rank that has sent nothing this time is not answered, unless all ranks take part in all shares. */
static void answer_all(hpc_core *core, hpc_share *share) {
    hpc_engine *en = core->engine;
    int signal = hpc_signal_applied(en, (int)(share - en->layout.shares));
    int all = !hpc_whole_turns(en) || hpc_involves_all(en);
    share->version++;
    share->left = share->n_rows;
    share->args_came = 0;
    if (en->graph != NULL) hpc_graph_count_neighbours(core, share);
    for (int i = 0; i < share->n_parts; i++)
        if (all || hpc_sends(en, share->key, share->version, share->owner, share->parts[i]))
            hpc_share_answer(core, share->parts[i], signal, share->version);
}

/* Nonzero when a user's kernel has failed: then nothing is answered, so that no rank takes an update for applied. */
static int work_off(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    if (w->share->args_came && !hpc_args_agree(core, w, (int)inputs->slot, -1, w->share->version + 1)) return -1;
    int failed = hpc_row_work(core, w, inputs);
    if (failed) return failed;
    if (core->engine->graph == NULL) hpc_row_count_received(core, w, -1);
    if (--w->share->left == 0) answer_all(core, w->share);
    return 0;
}

/* ---- turns ---- */

/* On a graph that changes, the inputs of each rank are counted apart: a rank that sends nothing in this step may
 * already have sent its input of a later one. Inputs of one rank come in order, so each belongs to the next step in
 * which the rank sends. */
static int has_inputs(const hpc_engine *en, const hpc_work *w, uint64_t n) {
    for (int e = 0; e < w->row->n_in; e++)
        if (hpc_sends(en, w->row->key, n, w->row->owner, w->inputs[e].rank) &&
            atomic_load_explicit(&w->came[e], memory_order_relaxed) == 0)
            return 0;
    return 1;
}

/* Takes the inputs that the graph of step n has. */
static hpc_inputs take_inputs(hpc_core *core, const hpc_work *w, uint64_t n) {
    const hpc_engine *en = core->engine;
    int slot = (int)((n - 1) % (uint64_t)en->layout.depth), found = 0;
    hpc_inputs inputs = hpc_row_inputs(core, w, slot, -1);
    for (int e = 0; e < w->row->n_in; e++) {
        double weight = hpc_edge_weight(en, w->row->key, n, w->row->owner, w->inputs[e].rank);
        if (weight == 0) continue;
        atomic_store_explicit(&w->came[e], (char)(w->came[e] - 1), memory_order_relaxed);
        core->bases[found] = core->bases[e];
        core->base_inputs[found] = core->base_inputs[e];
        core->base_weights[found++] = weight;
    }
    inputs.n = inputs.n_updates = found;
    return inputs;
}

/* Works off the rows of a share whose inputs are there, one step after the other. */
static void work_in_turn(hpc_core *core, hpc_share *share) {
    hpc_engine *en = core->engine;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        uint64_t n = share->version + 1;
        if (atomic_load_explicit(&w->folded, memory_order_relaxed) == n || !has_inputs(en, w, n)) continue;
        const hpc_inputs inputs = take_inputs(core, w, n);
        if (work_off(core, w, &inputs) != 0) return;
        if (share->version == n) i = -1; /* all rows again, for the step after it */
    }
}

/* ---- events ---- */

/* After a failure nothing is answered any more: no rank may take an update for applied that is not. */
static void input_came(hpc_core *core, hpc_work *w, int slot, int input) {
    hpc_engine *en = core->engine;
    if (atomic_load_explicit(&en->fault.failed, memory_order_relaxed) != HPC_OK) return;
    if (hpc_whole_turns(en)) { /* see has_inputs */
        _Atomic char *came = &w->came[input];
        if (!hpc_row_has_too_many(core, w, came, en->layout.depth, w->inputs[input].rank))
            atomic_store_explicit(came, (char)(*came + 1), memory_order_relaxed);
    } else if (hpc_row_count(core, w, slot, input)) {
        const hpc_inputs inputs = hpc_row_inputs(core, w, slot, -1);
        work_off(core, w, &inputs);
        hpc_row_took(w, slot);
    }
}

int hpc_whole_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    const hpc_engine *en = core->engine;
    const hpc_edge *edges = NULL;
    int input = -1, all = !share->some_empty || hpc_reads_in_place(en, share->owner, rank); /* else what has no bytes */
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        if (w->row->in != edges) input = hpc_row_input_of(w, rank, 0); /* rows of a hub share their edges */
        edges = w->row->in;
        if (input >= 0 && (all || w->inputs[input].empty)) input_came(core, w, slot, input);
    }
    if (hpc_whole_turns(en)) work_in_turn(core, share);
    return 1;
}

int hpc_whole_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    input_came(core, w, slot, input);
    if (hpc_whole_turns(core->engine)) work_in_turn(core, w->share);
    return 1;
}

/* ---- the ranks that a wait waits for ---- */

int hpc_whole_missing(const hpc_engine *en, const hpc_share *share, int slot, uint64_t fold, int *ranks, int n) {
    for (int i = 0; i < share->n_rows && n < en->context->group.size; i++) {
        const hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        if (atomic_load_explicit(&w->folded, memory_order_relaxed) >= fold) continue;
        const _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
        for (int e = 0; e < w->row->n_in; e++)
            if (!atomic_load_explicit(&came[e], memory_order_relaxed)) n = hpc_add_rank(ranks, n, w->inputs[e].rank);
    }
    return n;
}

int hpc_whole_missing_neighbours(const hpc_engine *en, int s, uint64_t awaited, int *ranks, int found) {
    const hpc_share *share = &en->layout.shares[s];
    uint64_t n = hpc_share_next_fold(en, s); /* a fold that is awaited waits for those before it */
    (void)awaited;
    int slot = hpc_whole_turns(en) ? 0 : (int)((n - 1) % (uint64_t)en->layout.depth);
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        const _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
        for (int e = 0; e < w->row->n_in; e++)
            if (w->inputs[e].rank != share->owner && hpc_sends(en, share->key, n, share->owner, w->inputs[e].rank) &&
                !atomic_load_explicit(&came[e], memory_order_relaxed))
                found = hpc_add_rank(ranks, found, w->inputs[e].rank);
    }
    return found;
}

int hpc_whole_slot(const hpc_engine *en, uint64_t ticket) {
    return (int)((ticket / 2 + (uint64_t)en->layout.depth - 1) % (uint64_t)en->layout.depth);
}

int hpc_whole_missing_in_stages(const hpc_engine *en, int key, uint64_t ticket, hpc_whole_matters *matters,
                                int *ranks) {
    int n = 0, slot = hpc_whole_slot(en, ticket);
    for (int s = 0; s < en->layout.n_shares && en->layout.stages.many; s++) {
        const hpc_share *share = &en->layout.shares[s];
        if (share->key != key || share->owner != en->context->group.rank) continue;
        if (en->plan->rows[share->rows[0]].action != HPC_FORWARD || hpc_share_has_answered(en, s, ticket)) continue;
        if (matters != NULL && !matters(en, share)) continue;
        n = hpc_whole_missing(en, share, slot, hpc_share_next_fold(en, s), ranks, n);
    }
    return n;
}

/* The workers that have not pushed. Where that cannot be seen: workers whose inputs are missing here, other owners that
 * have not answered, and workers that left without a word. */
int hpc_whole_awaited(const hpc_engine *en, int key, uint64_t ticket, int *ranks) {
    const hpc_pushed *k = &en->keys[key];
    int n = 0, size = en->context->group.size, me = en->context->group.rank;
    int slot = hpc_whole_slot(en, ticket);
    for (int r = 0; r < size; r++)
        if (hpc_pushes_key(en, r, key) && hpc_pushes_of(en, r, key) < ticket / 2) n = hpc_add_rank(ranks, n, r);
    if (n > 0) return n;
    n = hpc_whole_missing_in_stages(en, key, ticket, NULL, ranks);
    if (n > 0) return n;
    for (int i = 0; i < k->n_awaited; i++) {
        const hpc_share *share = &en->layout.shares[k->awaited[i]];
        if (hpc_share_has_answered(en, k->awaited[i], ticket)) continue;
        if (share->owner == me)
            n = hpc_whole_missing(en, share, slot, hpc_share_next_fold(en, k->awaited[i]), ranks, n);
        else
            n = hpc_add_rank(ranks, n, share->owner);
    }
    for (int r = 0; r < size; r++)
        if (hpc_pushes_key(en, r, key) && hpc_pushes_of(en, r, key) == UINT64_MAX && hpc_closed_signal(en, r) == 0 &&
            atomic_load_explicit(&en->context->group.states[r], memory_order_acquire) == HPC_PEER_LEFT)
            n = hpc_add_rank(ranks, n, r);
    return n > 0 ? n : hpc_add_rank(ranks, n, me); /* its own core is at it */
}
