/* Rows in one pass: one kernel folds and applies float32 and writes it to every worker. It reads and writes memory
 * once. This is the default, and the fastest kind. */
#include "engine/owner/block.h"
#include "engine/owner/kind.h"
#include "engine/owner/mean.h"
#include "engine/owner/write.h"

static int suits(const hpc_scheme *sc, const hpc_row *row) {
    if (sc->rules[row->key].pass == NULL || row->action != HPC_APPLY || !hpc_folds_whole(sc)) return 0;
    if (!hpc_codec_of(row->codec_in)->plain || !hpc_codec_of(row->codec_out)->plain || row->n_in > HPC_PASS_INPUTS)
        return 0;
    for (int e = 0; e < row->n_out; e++) {
        const int r = row->out[e].rank;
        if (row->out[e].row < 0 && sc->layout.holders[r] == r && !hpc_is_mapped(sc, r)) return 0;
    }
    return 1;
}

static int pass(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, int n_arrays) {
    const hpc_scheme *sc = core->scheme;
    const hpc_receivers to = inputs->to;
    hpc_row_begin_step(sc, w, inputs->slot);
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) { /* the state lies block by block */
        for (int i = 0; i < inputs->n; i++) core->folding[i] = inputs->bases[i] + from * sizeof(float);
        int n_out = 0;
        for (int o = 0; o < w->n_outputs; o++)
            if (w->outputs[o].row < 0 && hpc_goes_to(to, &w->outputs[o]))
                core->writing[n_out++] = w->outputs[o].params + from;
        const hpc_pass block = {
            .param = w->param + from,
            .in = (const float *const *)core->folding,
            .weights = inputs->weights,
            .n_in = inputs->n,
            .out = core->writing,
            .n_out = n_out,
            .state = w->state + from * (size_t)w->rule->rule.slots,
            .args = args,
            .n = (int64_t)hpc_block_count(w, from),
            .stream = sc->stream,
        };
        int returned = w->rule->pass(&block);
        if (returned == 0) continue;
        hpc_row_fail_kernel(core, w, "apply", returned);
        return returned;
    }
#if defined(__x86_64__)
    if (sc->stream) __builtin_ia32_sfence(); /* orders the streamed stores before the answer */
#endif
    hpc_row_leave_mapped(core, w, to, (int)inputs->slot);
    hpc_row_count_fold(core, w, n_arrays);
    return 0;
}

static int work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    return pass(core, w, inputs, args, inputs->n);
}

/* The pass multiplies the mean by its factor as it reads it. */
static int apply(hpc_core *core, hpc_work *w, const hpc_inputs *mean, const double *args) {
    return pass(core, w, mean, args, 0);
}

const hpc_row_kind hpc_kind_pass = {
    .name = "one pass",
    .suits = suits,
    .room = hpc_blocks_room,
    .work = work,
    .fold = hpc_blocks_mean,
    .apply = apply,
    .scaled = hpc_blocks_scaled,
    .read = hpc_blocks_read,
    .write = hpc_blocks_write,
    .leaving = hpc_params_leaving,
};
