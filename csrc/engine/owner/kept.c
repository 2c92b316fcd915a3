/* Fold and apply as two calls, where a row keeps its inputs: each call folds them again, block by block. */
#include "engine/owner/kept.h"

#include <stdlib.h>
#include <string.h>

#include "engine/owner/signals.h"
#include "engine/owner/block.h"
#include "engine/owner/kind.h"
#include "engine/owner/prox.h"
#include "engine/owner/write.h"

int hpc_row_apply_kept(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double scale) {
    double args[HPC_RULE_ARGS];
    if (scale == 1) return hpc_row_work(core, w, inputs);
    HPC_SPAN_OF_ROW(core->scheme->context->group.timeline, core->scheme->plan->keys[w->row->key].name,
                    w->row->count * sizeof(float));
    hpc_tally_add(&core->tally.works, 1);
    hpc_row_next_args(w, inputs, args);
    return w->kind->scaled(core, w, inputs, args, scale);
}

int hpc_row_read_kept(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, float *to, double *squares) {
    double args[HPC_RULE_ARGS];
    hpc_tally_add(&core->tally.works, 1);
    hpc_row_next_args(w, inputs, args);
    if (squares != NULL) *squares = 0;
    return w->kind->read(core, w, inputs, args, to, squares);
}

int hpc_row_keeps_inputs(const hpc_work *w) {
    return w->kind->fold == NULL && w->kind->read != NULL;
}

int hpc_row_keep_mean(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    const size_t nbytes = (size_t)w->row->count * sizeof *w->gathered;
    if (w->gathered == NULL) w->gathered = malloc(nbytes);
    if (w->gathered == NULL) {
        hpc_scheme_fail(core->scheme, HPC_ERR_MEMORY, "there is no memory for the mean of a row");
        return -1;
    }
    w->mean = w->gathered;
    if (inputs->n > 0) return hpc_row_read_kept(core, w, inputs, w->gathered, NULL);
    memset(w->gathered, 0, nbytes);
    return 0;
}

int hpc_blocks_scaled(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale) {
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        const size_t n = hpc_block_count(w, from);
        const void *block = hpc_block_fold(core, w, inputs, core->acc, 0, args, from, n);
        if (block == NULL) return -1;
        core->scheme->kernels->f32(core->acc, &block, &scale, 1, n, 0);
        if (hpc_block_apply(core, w, core->acc, inputs->n_updates, args, from, n) != 0 ||
            hpc_block_finish(core, w, inputs->to, args, from, n) != 0)
            return -1;
    }
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, inputs->n);
    return 0;
}

int hpc_blocks_read(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
                    double *squares) {
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        const size_t n = hpc_block_count(w, from);
        const float *block = hpc_block_fold(core, w, inputs, core->acc, 0, args, from, n);
        if (block == NULL) return -1;
        if (squares != NULL) *squares += core->scheme->kernels->squares(block, n);
        if (to != NULL) memcpy(to + from, block, n * sizeof *to);
    }
    return 0;
}
