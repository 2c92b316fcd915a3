/* The steps of one block of a row, and helpers of rows that work block by block. */
#ifndef HPC_BLOCK_STEPS_H
#define HPC_BLOCK_STEPS_H

#include "engine/discipline.h"
#include "engine/owner/kind.h"

/* Returns the number of elements of the block that begins at element from. */
static inline size_t hpc_block_count(const hpc_work *w, size_t from) {
    return w->row->count - from < HPC_BLOCK ? w->row->count - from : HPC_BLOCK;
}

/* Folds a block. Returns the address of the result: out, or the input itself if there is only one. Returns NULL if a
 * user's fold has failed. */
const float *hpc_block_fold(hpc_core *core, const hpc_work *w, const hpc_inputs *inputs, float *out, int stream,
                            const double *args, size_t from, size_t n);
/* Applies a folded block to the parameters, or to Z if the rule has a dual. Returns nonzero if the rule has failed. */
int hpc_block_apply(hpc_core *core, const hpc_work *w, const float *block, int n_updates, const double *args,
                    size_t from, size_t n);
/* Encodes a block of a row's output (parameters or fold) for sending. */
void hpc_block_encode(const hpc_work *w, const float *block, size_t from, size_t n);
/* Ends the exchange because a row's rule or fold function has returned a nonzero number. what says in the error which
 * of them it was. */
void hpc_row_fail_kernel(hpc_core *core, const hpc_work *w, const char *what, int returned);
/* Rotates a model: from now on its parameters are in the slot that follows slot. */
void hpc_row_turn(const hpc_scheme *sc, hpc_work *w, uint64_t slot);
/* Begins a step. Called after the checks: no input of the step may be refused later. */
static inline void hpc_row_begin_step(const hpc_scheme *sc, hpc_work *w, uint64_t slot) {
    if (sc->rotates) hpc_row_turn(sc, w, slot);
    w->step++;
    hpc_tally_add(&w->folded, 1);
}
/* Counts a fold of n_arrays arrays. Pieces are counted when they are added. */
static inline void hpc_row_count_fold(hpc_core *core, const hpc_work *w, int n_arrays) {
    hpc_tally_add(&core->tally.applied, 1);
    hpc_tally_add(&core->tally.bytes_folded, w->in_codec->max_bytes(w->config, w->row->count) * (size_t)n_arrays);
    hpc_slice_count(core->task, (size_t)w->row->count * sizeof(float));
}
/* Returns whether a row keeps its fold, as a mean, after its work. Rows of peers, and rows whose codec needs no sum of
 * a whole row, keep their inputs instead (mean.c). */
int hpc_row_keeps_fold(const hpc_scheme *sc, const hpc_row *row);
/* Returns whether the discipline keeps a forward's sums. A row that only passes another row's forward on has no sum. */
static inline int hpc_row_is_summed(const hpc_scheme *sc, const hpc_row *row) {
    return (sc->discipline->traits & HPC_SUMS) && row->action == HPC_FORWARD && (row->n_in > 1 || row->in[0].row < 0);
}
/* Returns whether every fold takes all inputs of a row, with the plan's weights. */
static inline int hpc_folds_whole(const hpc_scheme *sc) {
    return (sc->discipline->traits & HPC_WHOLE) && !sc->turns;
}
static inline size_t hpc_row_floats(const hpc_row *row, size_t of_each) {
    return ((size_t)row->count * of_each * sizeof(float) + 63) / 64 * 64;
}
/* hpc_row_kind.room of rows that have parameters. */
hpc_row_room hpc_blocks_room(const hpc_scheme *sc, const hpc_row *row);

#endif
