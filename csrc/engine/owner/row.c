/* A row counts its inputs as they come. As soon as the discipline decides, the row's kind does the work, while other
 * rows' inputs still arrive (PHub's tall aggregation, section 3.2.2). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/owner/signals.h"
#include "engine/layout/graph.h"
#include "engine/owner/kind.h"
#include "engine/owner/row.h"

/* ---- inputs ---- */

int hpc_row_input_of(const hpc_work *w, int rank, int forwarded) {
    for (int i = 0; i < w->row->n_in; i++)
        if (w->inputs[i].rank == rank && (w->inputs[i].forwarded >= 0) == forwarded) return i;
    return -1;
}

int hpc_row_has_too_many(hpc_core *core, const hpc_work *w, int slot, int input) {
    const hpc_scheme *sc = core->scheme;
    if (hpc_row_mark_of(w, slot, input) == 0) return 0;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d pushed key %s over an update that is not folded yet",
             sc->context->group.rank, w->inputs[input].rank, sc->plan->keys[w->row->key].name);
    hpc_scheme_fail(core->scheme, HPC_ERR_TRANSPORT, why);
    return 1;
}

/* Returns the weight of an input in a step: on a graph of several phases, the weight in that step's phase; otherwise
 * the plan's weight, which counts for all pushes in the input. */
static double weight_of(const hpc_scheme *sc, const hpc_work *w, const hpc_input *in, uint64_t step) {
    return sc->turns ? hpc_edge_weight(sc, w->row->key, step, w->row->owner, in->rank) : in->mass;
}

hpc_inputs hpc_row_take(hpc_core *core, const hpc_work *w, hpc_taking *taking, uint64_t step, hpc_scaling scaling) {
    const hpc_scheme *sc = core->scheme;
    double all = 0, present = 0;
    const double *args = w->args[w->share->version % (uint64_t)sc->layout.depth];
    hpc_inputs inputs = hpc_row_none(core, w, args, w->share->version);
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        const hpc_taken taken = taking(core, w, in);
        all += weight_of(sc, w, in, step);
        for (int i = 0; i < taken.n; i++) {
            const int slot = (int)((taken.first + (uint64_t)i) % (uint64_t)sc->layout.depth);
            const double weight = weight_of(sc, w, in, taken.step + (uint64_t)i);
            if (i == 0) present += weight;
            if ((sc->turns && weight == 0) || hpc_row_mark_of(w, slot, e) == HPC_CAME_EMPTY) continue;
            hpc_row_put_in(core, w, &inputs, e, (uint64_t)slot);
            if (sc->turns) core->base_weights[inputs.n - 1] = weight;
        }
    }
    int scales = scaling == HPC_SCALE_ALL || (scaling == HPC_SCALE_MEANS && fabs(all - 1) < 1e-9);
    for (int i = 0; i < inputs.n && scales && present != all; i++) core->base_weights[i] *= all / present;
    return inputs;
}

hpc_inputs hpc_row_inputs(hpc_core *core, const hpc_work *w, int slot, int only) {
    const int first = only < 0 ? 0 : only, last = only < 0 ? w->row->n_in : only + 1;
    hpc_inputs inputs = hpc_row_none(core, w, only < 0 ? w->args[slot] : w->inputs[only].args[slot], (uint64_t)slot);
    for (int i = first; i < last; i++)
        if (!w->inputs[i].empty) hpc_row_put_in(core, w, &inputs, i, (uint64_t)slot);
    return inputs;
}

hpc_inputs hpc_row_take_step(hpc_core *core, hpc_work *w, uint64_t n) {
    const hpc_scheme *sc = core->scheme;
    const int slot = (int)((n - 1) % (uint64_t)sc->layout.depth);
    hpc_inputs inputs = hpc_row_none(core, w, w->args[slot], (uint64_t)slot);
    for (int e = 0; e < w->row->n_in; e++) {
        const double weight = hpc_edge_weight(sc, w->row->key, n, w->row->owner, w->inputs[e].rank);
        if (weight == 0) continue;
        const int brings = hpc_row_brings(w, slot, e);
        hpc_row_mark(w, slot, e, 0);
        if (!brings) continue;
        hpc_row_put_in(core, w, &inputs, e, (uint64_t)slot);
        core->base_weights[inputs.n - 1] = weight;
    }
    return inputs;
}

hpc_inputs hpc_row_present(hpc_core *core, const hpc_work *w, int slot) {
    hpc_inputs inputs = hpc_row_none(core, w, w->args[slot], (uint64_t)slot);
    for (int i = 0; i < w->row->n_in; i++)
        if (!w->inputs[i].empty && hpc_row_brings(w, slot, i)) hpc_row_put_in(core, w, &inputs, i, (uint64_t)slot);
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
    if (hpc_row_has_too_many(core, w, slot, input)) return 0;
    hpc_row_mark(w, slot, input, how);
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
