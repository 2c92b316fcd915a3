/* Folds that lie in a row's accumulator: inputs are added one after the other, and the sum is applied when all are
 * there.
 */
#include "engine/sum.h"

#include <string.h>

#include "engine/block.h"
#include "engine/prox.h"

int hpc_blocks_add(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, int begins) {
    static const double ones[2] = {1, 1};
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        size_t n = hpc_block_count(w, from);
        const float *block = hpc_block_fold(core, w, inputs, core->acc, 0, args, from, n);
        if (block == NULL) return -1;
        const void *sum[2] = {w->acc + from, block};
        if (begins)
            memcpy(w->acc + from, block, n * sizeof(float));
        else
            core->scheme->kernels->f32(w->acc + from, sum, ones, 2, n, 0);
    }
    return 0;
}

int hpc_blocks_apply_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        size_t n = hpc_block_count(w, from);
        if (hpc_block_apply(core, w, w->acc + from, inputs->n_updates, args, from, n) != 0 ||
            hpc_block_finish(core, w, inputs->to, args, from, n) != 0)
            return -1;
    }
    return 0;
}
