/* Folds that a row keeps: sums in its accumulator, to which inputs are added one by one; and, with fold and apply as
 * two calls, the mean, or the inputs themselves, until it is applied or skipped. */
#include "engine/owner/mean.h"

#include <stdlib.h>
#include <string.h>

#include "engine/owner/signals.h"
#include "engine/owner/block.h"
#include "engine/bytes.h"
#include "engine/owner/kind.h"
#include "engine/layout/layout.h"
#include "engine/owner/prox.h"
#include "engine/layout/stages.h"
#include "engine/owner/write.h"

/* ---- sums ---- */

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

/* ---- means ---- */

int hpc_row_fold(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares) {
    double args[HPC_RULE_ARGS];
    HPC_SPAN_OF_ROW(core->scheme->context->group.timeline, core->scheme->plan->keys[w->row->key].name,
                    w->row->count * sizeof(float));
    hpc_tally_add(&core->tally.works, 1);
    hpc_row_next_args(w, inputs, args);
    w->n_updates = inputs->n_updates;
    return w->kind->fold(core, w, inputs, args, squares);
}

/* A single input of weight 1 is itself the mean and stays where it is, if its slot is kept until the apply. */
int hpc_blocks_mean(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double *squares) {
    const hpc_scheme *sc = core->scheme;
    int in_place = inputs->n == 1 && inputs->weights[0] == 1 && inputs->codec->plain && w->rule->rule.fold == NULL &&
                   !(sc->discipline->traits & HPC_KEEPS_MEANS);
    w->mean = in_place ? (const float *)(const void *)inputs->bases[0] : w->acc;
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        size_t n = hpc_block_count(w, from);
        const float *block = hpc_block_fold(core, w, inputs, core->acc, 0, args, from, n);
        if (block == NULL) return -1;
        if (squares != NULL) *squares += sc->kernels->squares(block, n);
        if (!in_place) sc->kernels->copy(w->acc + from, block, n * sizeof(float), sc->stream);
    }
    hpc_tally_add(&core->tally.bytes_folded, hpc_input_bytes(sc, w->row) * (size_t)inputs->n);
    return 0;
}

/* Sums block by block as a fold does, so the result has the same bits. */
double hpc_row_squares(const hpc_core *core, const hpc_work *w) {
    double sum = 0;
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK)
        sum += core->scheme->kernels->squares(w->mean + from, hpc_block_count(w, from));
    return sum;
}

/* The mean's factor is its weight as an input: a pass, or a fold of the mean alone, multiplies the mean by it while
 * reading. */
int hpc_row_apply(hpc_core *core, hpc_work *w, hpc_receivers to, const double *given) {
    const char *base = (const char *)w->mean;
    const hpc_inputs mean = {.bases = &base,
                             .weights = given,
                             .n = 1,
                             .codec = hpc_codec_of(HPC_F32),
                             .args = given,
                             .to = to,
                             .n_updates = w->n_updates};
    double args[HPC_RULE_ARGS];
    HPC_SPAN_OF_ROW(core->scheme->context->group.timeline, core->scheme->plan->keys[w->row->key].name,
                    w->row->count * sizeof(float));
    hpc_tally_add(&core->tally.works, 1);
    hpc_row_next_args(w, &mean, args);
    return w->kind->apply(core, w, &mean, args);
}

/* If the fold function is the user's, the mean is multiplied in place, because it must not be an input of that
 * function. */
int hpc_blocks_apply_mean(hpc_core *core, hpc_work *w, const hpc_inputs *mean, const double *args) {
    const hpc_scheme *sc = core->scheme;
    const void *sum = w->acc;
    hpc_row_begin_step(sc, w, mean->slot);
    if (w->rule->rule.fold != NULL) {
        if (mean->weights[0] != 1) sc->kernels->f32(w->acc, &sum, mean->weights, 1, (size_t)w->row->count, 0);
        if (hpc_blocks_apply_sum(core, w, mean, args) != 0) return -1;
    } else {
        for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
            size_t n = hpc_block_count(w, from);
            const float *block = hpc_block_fold(core, w, mean, core->acc, 0, args, from, n);
            if (hpc_block_apply(core, w, block, mean->n_updates, args, from, n) != 0 ||
                hpc_block_finish(core, w, mean->to, args, from, n) != 0)
                return -1;
        }
    }
    hpc_row_leave(core, w, mean->to, (int)mean->slot);
    hpc_row_count_fold(core, w, 0);
    return 0;
}

/* Returns the memory that the puts of a mean read: a copy, if other ranks may go on before the puts are done. */
static const void *leaving_to(const hpc_work *w, int sender, size_t nbytes) {
    for (int o = 0; o < w->n_outputs; o++)
        if (w->outputs[o].lowest == sender && w->outputs[o].copy != NULL)
            return memcpy(w->outputs[o].copy, w->mean, nbytes);
    return w->mean;
}

void hpc_row_gather(hpc_core *core, hpc_work *w, int sender, int zero) {
    hpc_scheme *sc = core->scheme;
    size_t nbytes = (size_t)w->row->count * sizeof(float);
    const void *from = NULL;
    if (zero) w->mean = memset(w->acc, 0, nbytes);
    for (int r = 0; r < sc->context->group.size; r++) {
        if (sender != HPC_EVERYBODY && hpc_sender_of(sc, w->row->key, r) != sender) continue;
        if (!hpc_row_gives_mean(sc, w->index, r)) continue;
        size_t at = hpc_gathered_at(sc, r, w->row->key) + (size_t)w->row->offset * sizeof(float);
        char *here = hpc_is_mapped(sc, r) ? (char *)hpc_window_peer_view(sc->window, r) + at : NULL;
        if (here == NULL && from == NULL) from = leaving_to(w, sender, nbytes);
        if (here == NULL)
            hpc_core_put(core, r, from, nbytes, at);
        else if (here != (const char *)w->mean)
            sc->kernels->copy(here, w->mean, nbytes, sc->stream);
        hpc_tally_add(&core->tally.bytes_written, nbytes);
        hpc_core_count_sent(core, w->row->key, r, HPC_TRAFFIC_PARAMETERS, nbytes);
    }
}

/* ---- sums that forwards send (HPC_SUMS) ---- */

int hpc_sum_open(hpc_scheme *sc, hpc_work *w, const char *op) {
    w->leaving_stride = (hpc_output_bytes(sc, w->row) + 63) / 64 * 64;
    w->leaving = hpc_scheme_take(sc, (size_t)sc->layout.depth, w->leaving_stride, op);
    w->taken = hpc_scheme_take(sc, (size_t)w->row->n_in, sizeof *w->taken, op);
    w->acc = (float *)(void *)w->leaving;
    if (!w->out_codec->plain) {
        w->encoded = w->leaving;
        w->acc = hpc_scheme_take(sc, (size_t)w->row->count, sizeof *w->acc, op);
    }
    return w->leaving != NULL && w->acc != NULL && w->taken != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

void hpc_sum_begin(hpc_work *w, uint64_t slot) {
    if (w->encoded == NULL) w->acc = (float *)(void *)(w->leaving + slot * w->leaving_stride);
}

int hpc_sum_send(hpc_core *core, hpc_work *w, uint64_t slot, int n_updates, const double *args) {
    hpc_inputs inputs = hpc_row_none(core, w, args, slot);
    inputs.n = inputs.n_updates = n_updates;
    inputs.from = NULL;
    if (n_updates == 0) memset(w->acc, 0, (size_t)w->row->count * sizeof *w->acc);
    if (w->encoded != NULL) w->encoded = w->leaving + slot * w->leaving_stride;
    return hpc_row_work(core, w, &inputs);
}

void hpc_sum_count(hpc_core *core, hpc_work *w, int input, int how) {
    hpc_tally_add(&w->taken[input], 1);
    if (how == HPC_CAME) hpc_row_count_received(core, w, input);
}

/* ---- fold and apply as two calls, where a row keeps its inputs: each call folds them again ---- */

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
