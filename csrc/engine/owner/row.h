/* A row at work: its inputs are counted and chosen, and its kind works them off. The thread that works for the row's
 * core calls these functions; none of them waits. */
#ifndef HPC_ENGINE_ROW_H
#define HPC_ENGINE_ROW_H

#include <string.h>

#include "engine/owner/inputs.h"
#include "engine/scheme.h"

/* The update of an input in a slot. */
static inline const char *hpc_input_at(const hpc_input *in, uint64_t slot) {
    return in->slots + (size_t)slot * in->stride;
}

/* No inputs yet; and one more of them, with the plan's weight. */
static inline hpc_inputs hpc_row_none(hpc_core *core, const hpc_work *w, const double *args, uint64_t slot) {
    return (hpc_inputs){.bases = core->bases,
                        .weights = core->base_weights,
                        .from = core->base_inputs,
                        .codec = w->in_codec,
                        .args = args,
                        .slot = slot};
}
static inline void hpc_row_put_in(hpc_core *core, const hpc_work *w, hpc_inputs *inputs, int input, uint64_t slot) {
    core->bases[inputs->n] = hpc_input_at(&w->inputs[input], slot);
    core->base_inputs[inputs->n] = &w->inputs[input];
    core->base_weights[inputs->n++] = w->weights[input];
    inputs->n_updates += w->inputs[input].updates;
}
/* On a graph of several phases: the inputs that step n has. They are taken out of their slot. */
hpc_inputs hpc_row_take_step(hpc_core *core, hpc_work *w, uint64_t n);

/* All inputs of a row in a slot, or one of them (only; -1: all), with the plan's weights. */
hpc_inputs hpc_row_inputs(hpc_core *core, const hpc_work *w, int slot, int only);

/* Whether a row averages models; and whether each counts again until a newer one is there: the graph does not change.
 */
static inline int hpc_row_averages(const hpc_work *w) {
    return w->rule->averages;
}
static inline int hpc_row_repeats(const hpc_scheme *sc, const hpc_work *w) {
    return w->rule->averages && !sc->turns;
}

/* How an input has come to a slot, as hpc_work.came has it. Empty: it brings no bytes, and its part is zero. */
enum { HPC_CAME = 1, HPC_CAME_EMPTY = 2 };
static inline int hpc_row_mark_of(const hpc_work *w, int slot, int input) {
    return atomic_load_explicit(&w->came[(size_t)slot * (size_t)w->row->n_in + (size_t)input], memory_order_relaxed);
}
static inline int hpc_row_brings(const hpc_work *w, int slot, int input) {
    return hpc_row_mark_of(w, slot, input) == HPC_CAME;
}
static inline void hpc_row_mark(const hpc_work *w, int slot, int input, int how) {
    atomic_store_explicit(&w->came[(size_t)slot * (size_t)w->row->n_in + (size_t)input], (char)how,
                          memory_order_relaxed);
}
/* The inputs that have come to a slot with bytes; the weights of the others are left out. They are counted as received.
 */
hpc_inputs hpc_row_present(hpc_core *core, const hpc_work *w, int slot);
void hpc_row_count_present(const hpc_core *core, const hpc_work *w, int slot);

/* The inputs that a discipline chooses, one by one: of an input the updates in n slots, from push or slot number first
 * on, except slots that are marked as empty. Where the graph changes an update has the weight of the step that it was
 * pushed in, which is step for the first. With HPC_SCALE_ALL the weights of the chosen inputs grow until they add up to
 * the weight of all inputs; with HPC_SCALE_MEANS only if all weights add up to 1. Scaling is for at most one slot of an
 * input. step: of the fold. */
typedef struct hpc_taken {
    int n;
    uint64_t first, step;
} hpc_taken;
typedef hpc_taken hpc_taking(const hpc_core *core, const hpc_work *w, const hpc_input *in);
typedef enum hpc_scaling { HPC_SCALE_NONE, HPC_SCALE_MEANS, HPC_SCALE_ALL } hpc_scaling;
hpc_inputs hpc_row_take(hpc_core *core, const hpc_work *w, hpc_taking *taking, uint64_t step, hpc_scaling scaling);

/* The number of the input that rank pushes, or (forwarded) that a row of rank forwards; -1: none. */
int hpc_row_input_of(const hpc_work *w, int rank, int forwarded);

/* Counts an input that has come in a slot, with bytes or as how has it. Returns 1 when all inputs are there; the
 * count then begins again at 0, and hpc_row_took marks the inputs as missing again. Returns 0 when some are missing, or
 * when the exchange has failed. */
int hpc_row_count(hpc_core *core, hpc_work *w, int slot, int input);
int hpc_row_count_as(hpc_core *core, hpc_work *w, int slot, int input, int how);
void hpc_row_took(hpc_work *w, int slot);
/* Adds an input to the row's accumulator, or begins it with that. Nonzero when the exchange has failed. */
int hpc_row_add(hpc_core *core, hpc_work *w, int slot, int input, int begins);
/* Whether an input has come to a slot already, and is not folded; then its rank has sent too many, and the exchange
 * fails. */
int hpc_row_has_too_many(hpc_core *core, const hpc_work *w, int slot, int input);

/* Does the row's work on inputs, as its kind has it. Nonzero when a user's kernel has failed, or an input is refused.
 */
int hpc_row_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);
/* The same of a relay, on its input in a slot. */
int hpc_row_pass_on(hpc_core *core, hpc_work *w, int slot);

/* The arguments of the rule, with the number of the next step. */
static inline void hpc_row_next_args(const hpc_work *w, const hpc_inputs *inputs, double *args) {
    memcpy(args, inputs->args, HPC_ARGS_BYTES);
    args[0] = (double)(w->step + 1);
}

/* Counts the bytes of the row's inputs (or of one, only) as received. */
void hpc_row_count_received(const hpc_core *core, const hpc_work *w, int only);

#endif
