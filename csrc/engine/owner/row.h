/* A row (the work on one chunk of a key) counts and chooses its inputs, and has its kind fold and apply them. The
 * thread that works for the row's core calls these functions; none of them waits. */
#ifndef HPC_ENGINE_ROW_H
#define HPC_ENGINE_ROW_H

#include <string.h>

#include "engine/owner/inputs.h"
#include "engine/scheme.h"

/* Returns the address of an input's update in a slot. */
static inline const char *hpc_input_at(const hpc_input *in, uint64_t slot) {
    return in->slots + (size_t)slot * in->stride;
}

/* hpc_row_none returns an empty list of inputs. hpc_row_put_in appends an input, with the plan's weight. */
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
/* On a graph of several phases: returns the inputs of step n, and resets their marks to "not come". */
hpc_inputs hpc_row_take_step(hpc_core *core, hpc_work *w, uint64_t n);

/* Returns the inputs of a row in a slot, with the plan's weights: all inputs if only is -1, otherwise the input with
 * the number only. */
hpc_inputs hpc_row_inputs(hpc_core *core, const hpc_work *w, int slot, int only);

/* hpc_row_averages returns whether a row averages models. hpc_row_repeats returns whether each model is also folded
 * again until a newer one comes, which is so if the graph has one phase. */
static inline int hpc_row_averages(const hpc_work *w) {
    return w->rule->averages;
}
static inline int hpc_row_repeats(const hpc_scheme *sc, const hpc_work *w) {
    return w->rule->averages && !sc->turns;
}

/* The values of hpc_work.came: how an input has come to a slot. An empty input has no bytes, and adds zero. */
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
/* hpc_row_present returns the inputs that have come to a slot with bytes; weights are not scaled up for the missing
 * inputs. hpc_row_count_present counts these inputs as received. */
hpc_inputs hpc_row_present(hpc_core *core, const hpc_work *w, int slot);
void hpc_row_count_present(const hpc_core *core, const hpc_work *w, int slot);

/* hpc_row_take returns the inputs that a discipline chooses. It calls taking for each input. The result of taking names
 * n slots, from push or slot number first on, whose updates are taken, except slots marked as empty. On a graph of
 * several phases an update has the weight of the step in which it was pushed; the field step is the step of the first
 * update. Weights may be scaled up if taking takes at most one slot of each input: HPC_SCALE_ALL makes the chosen
 * weights sum to the weight of all inputs; HPC_SCALE_MEANS does so only if the weights of all inputs sum to 1. The
 * argument step of hpc_row_take is the step of the fold. */
typedef struct hpc_taken {
    int n;
    uint64_t first, step;
} hpc_taken;
typedef hpc_taken hpc_taking(const hpc_core *core, const hpc_work *w, const hpc_input *in);
typedef enum hpc_scaling { HPC_SCALE_NONE, HPC_SCALE_MEANS, HPC_SCALE_ALL } hpc_scaling;
hpc_inputs hpc_row_take(hpc_core *core, const hpc_work *w, hpc_taking *taking, uint64_t step, hpc_scaling scaling);

/* Returns the number of the input that rank pushes or, if forwarded is set, that a row of rank forwards; -1 if the row
 * has no such input. */
int hpc_row_input_of(const hpc_work *w, int rank, int forwarded);

/* hpc_row_count counts an input that has come in a slot with bytes; hpc_row_count_as counts one that came as how says
 * (HPC_CAME or HPC_CAME_EMPTY). They return 1 when all inputs have come, and then the count starts again at 0;
 * hpc_row_took then marks the inputs as not come. They return 0 if inputs are missing, or if the exchange has
 * failed. */
int hpc_row_count(hpc_core *core, hpc_work *w, int slot, int input);
int hpc_row_count_as(hpc_core *core, hpc_work *w, int slot, int input, int how);
void hpc_row_took(hpc_work *w, int slot);
/* Adds an input to the row's accumulator; if begins is set, first clears the accumulator. Returns nonzero when the
 * exchange has failed. */
int hpc_row_add(hpc_core *core, hpc_work *w, int slot, int input, int begins);
/* Returns whether a slot still has an update of an input that is not folded. If so, the input's rank has pushed too
 * often, and the exchange fails. */
int hpc_row_has_too_many(hpc_core *core, const hpc_work *w, int slot, int input);

/* Does the work of the row's kind on inputs. Returns nonzero if a user's kernel has failed or an input is refused. */
int hpc_row_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);
/* Does the work of a relay on its input in a slot. */
int hpc_row_pass_on(hpc_core *core, hpc_work *w, int slot);

/* Copies the rule's arguments of inputs into args, with the number of the next step as args[0]. */
static inline void hpc_row_next_args(const hpc_work *w, const hpc_inputs *inputs, double *args) {
    memcpy(args, inputs->args, HPC_ARGS_BYTES);
    args[0] = (double)(w->step + 1);
}

/* Counts the bytes of the row's inputs as received: of all inputs if only is -1, otherwise of the input with the number
 * only. */
void hpc_row_count_received(const hpc_core *core, const hpc_work *w, int only);

#endif
