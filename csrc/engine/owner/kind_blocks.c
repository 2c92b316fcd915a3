/* Rows that go block by block: while a block is in the L1 or L2 cache its inputs are folded, the rule is applied, and
 * the parameters are written to every worker. Averages are folded straight into the parameters. */
#include "engine/owner/block.h"
#include "engine/discipline.h"
#include "engine/owner/kind.h"
#include "engine/owner/mean.h"
#include "engine/owner/prox.h"
#include "engine/owner/write.h"

/* ---- any rule ---- */

static int suits(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc, (void)row;
    return 1;
}

static int work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        size_t n = hpc_block_count(w, from);
        const float *block = hpc_block_fold(core, w, inputs, core->acc, 0, args, from, n);
        if (block == NULL || hpc_block_apply(core, w, block, inputs->n_updates, args, from, n) != 0 ||
            hpc_block_finish(core, w, inputs->to, args, from, n) != 0)
            return -1;
    }
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, inputs->n);
    return 0;
}

const hpc_row_kind hpc_kind_blocks = {
    .name = "blocks",
    .suits = suits,
    .room = hpc_blocks_room,
    .work = work,
    .fold = hpc_blocks_mean,
    .apply = hpc_blocks_apply_mean,
    .scaled = hpc_blocks_scaled,
    .read = hpc_blocks_read,
    .write = hpc_blocks_write,
    .leaving = hpc_params_leaving,
};

/* ---- averages ---- */

static int averages(const hpc_scheme *sc, const hpc_row *row) {
    return sc->rules[row->key].averages && row->action == HPC_APPLY && sc->use == NULL;
}

static int work_average(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    const int stream = core->scheme->stream && w->n_outputs == 0;
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        size_t n = hpc_block_count(w, from);
        const float *block = hpc_block_fold(core, w, inputs, w->param + from, stream, args, from, n);
        if (block == NULL) return -1;
        if (block != w->param + from && hpc_block_apply(core, w, block, inputs->n_updates, args, from, n) != 0)
            return -1;
        hpc_block_write(core, w, inputs->to, from, n);
    }
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, inputs->n);
    return 0;
}

const hpc_row_kind hpc_kind_average = {
    .name = "averages",
    .suits = averages,
    .room = hpc_blocks_room,
    .work = work_average,
    .write = hpc_blocks_write,
    .leaving = hpc_params_leaving,
};
