/* A row: inputs are counted as they come. When the discipline says so the row is worked off at once, by its kind, while
 * other rows' inputs still arrive (PHub's tall aggregation, section 3.2.2). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/answer.h"
#include "engine/graph.h"
#include "engine/kind.h"
#include "engine/row.h"

/* ---- inputs ---- */

int hpc_row_input_of(const hpc_work *w, int rank, int forwarded) {
    for (int i = 0; i < w->row->n_in; i++)
        if (w->inputs[i].rank == rank && (w->inputs[i].forwarded >= 0) == forwarded) return i;
    return -1;
}

int hpc_row_has_too_many(hpc_core *core, const hpc_work *w, const _Atomic char *came, int most, int from) {
    const hpc_scheme *sc = core->scheme;
    if (atomic_load_explicit(came, memory_order_relaxed) < most) return 0;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d pushed key %s over an update that is not folded yet",
             sc->context->group.rank, from, sc->plan->keys[w->row->key].name);
    hpc_scheme_fail(core->scheme, HPC_ERR_TRANSPORT, why);
    return 1;
}

/* The weight of an input's update of a step; without a graph that changes the plan's, however many ranks are in it. */
static double weight_of(const hpc_scheme *sc, const hpc_work *w, const hpc_input *in, uint64_t step) {
    return sc->turns ? hpc_edge_weight(sc, w->row->key, step, w->row->owner, in->rank) : in->mass;
}

hpc_inputs hpc_row_take(hpc_core *core, const hpc_work *w, hpc_taking *taking, uint64_t step, hpc_scaling scaling) {
    const hpc_scheme *sc = core->scheme;
    double all = 0, present = 0;
    int n = 0, n_updates = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        const hpc_taken taken = taking(core, w, in);
        all += weight_of(sc, w, in, step);
        for (int i = 0; i < taken.n; i++) {
            const int slot = (int)((taken.first + (uint64_t)i) % (uint64_t)sc->layout.depth);
            const double weight = weight_of(sc, w, in, taken.step + (uint64_t)i);
            if (i == 0) present += weight;
            if ((sc->turns && weight == 0) || hpc_row_mark_of(w, slot, e) == HPC_CAME_EMPTY) continue;
            core->bases[n] = in->slots + (size_t)slot * in->stride;
            core->base_inputs[n] = in;
            core->base_weights[n++] = sc->turns ? weight : w->weights[e];
            n_updates += in->updates;
        }
    }
    int scales = scaling == HPC_SCALE_ALL || (scaling == HPC_SCALE_MEANS && fabs(all - 1) < 1e-9);
    for (int i = 0; i < n && scales && present != all; i++) core->base_weights[i] *= all / present;
    return (hpc_inputs){.bases = core->bases,
                        .weights = core->base_weights,
                        .from = core->base_inputs,
                        .n = n,
                        .codec = w->in_codec,
                        .args = w->args[w->share->version % (uint64_t)sc->layout.depth],
                        .n_updates = n_updates,
                        .slot = w->share->version};
}

hpc_inputs hpc_row_inputs(hpc_core *core, const hpc_work *w, int slot, int only) {
    int first = only < 0 ? 0 : only, last = only < 0 ? w->row->n_in : only + 1, n = 0, n_updates = 0;
    for (int i = first; i < last; i++) {
        if (w->inputs[i].empty) continue;
        core->bases[n] = w->inputs[i].slots + (size_t)slot * w->inputs[i].stride;
        core->base_inputs[n] = &w->inputs[i];
        core->base_weights[n++] = w->weights[i];
        n_updates += w->inputs[i].updates;
    }
    return (hpc_inputs){.bases = core->bases,
                        .weights = core->base_weights,
                        .from = core->base_inputs,
                        .n = n,
                        .codec = w->in_codec,
                        .args = only < 0 ? w->args[slot] : w->inputs[only].args[slot],
                        .n_updates = n_updates,
                        .slot = (uint64_t)slot};
}

hpc_inputs hpc_row_present(hpc_core *core, const hpc_work *w, int slot) {
    hpc_inputs inputs = hpc_row_inputs(core, w, slot, -1);
    const int all = inputs.n;
    int n = 0;
    inputs.n_updates = 0;
    for (int i = 0; i < all; i++) {
        const hpc_input *in = core->base_inputs[i];
        if (!hpc_row_brings(w, slot, (int)(in - w->inputs))) continue;
        core->bases[n] = core->bases[i];
        core->base_inputs[n] = in;
        core->base_weights[n++] = core->base_weights[i];
        inputs.n_updates += in->updates;
    }
    inputs.n = n;
    return inputs;
}

/* ---- work ---- */

int hpc_row_add(hpc_core *core, hpc_work *w, int slot, int input, int begins) {
    double args[HPC_RULE_ARGS];
    const hpc_inputs alone = hpc_row_inputs(core, w, slot, input);
    hpc_tally_add(&core->tally.works, 1);
    hpc_row_next_args(w, &alone, args);
    return w->kind->add(core, w, &alone, args, begins);
}

int hpc_row_count_as(hpc_core *core, hpc_work *w, int slot, int input, int how) {
    _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
    if (hpc_row_has_too_many(core, w, &came[input], 1, w->inputs[input].rank)) return 0;
    atomic_store_explicit(&came[input], (char)how, memory_order_relaxed);
    if (++w->arrived[slot] < w->row->n_in) return 0;
    w->arrived[slot] = 0;
    return 1;
}

int hpc_row_count(hpc_core *core, hpc_work *w, int slot, int input) {
    return hpc_row_count_as(core, w, slot, input, HPC_CAME);
}

void hpc_row_took(hpc_work *w, int slot) {
    _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
    for (int i = 0; i < w->row->n_in; i++) atomic_store_explicit(&came[i], 0, memory_order_relaxed);
}

void hpc_row_count_received(const hpc_core *core, const hpc_work *w, int only) {
    int first = only < 0 ? 0 : only, last = only < 0 ? w->row->n_in : only + 1;
    for (int i = first; i < last; i++)
        if (w->inputs[i].nbytes > 0) hpc_count_received(core->scheme, w->inputs[i].rank, w->inputs[i].nbytes);
}

void hpc_row_count_present(const hpc_core *core, const hpc_work *w, int slot) {
    for (int e = 0; e < w->row->n_in; e++)
        if (hpc_row_brings(w, slot, e)) hpc_row_count_received(core, w, e);
}

int hpc_row_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    double args[HPC_RULE_ARGS];
    HPC_SPAN_OF_ROW(core->scheme->context->group.timeline, core->scheme->plan->keys[w->row->key].name,
                    w->row->count * sizeof(float));
    hpc_tally_add(&core->tally.works, 1);
    hpc_row_next_args(w, inputs, args);
    return w->kind->work(core, w, inputs, args);
}

int hpc_row_pass_on(hpc_core *core, hpc_work *w, int slot) {
    const hpc_inputs came = {.args = w->args[slot], .slot = (uint64_t)slot};
    return hpc_row_work(core, w, &came);
}
