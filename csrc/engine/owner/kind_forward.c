/* Rows that send their fold to another row, as an array: the row of a rack in a hierarchy, or a row whose sum receivers
 * apply. With HPC_SUMS the discipline keeps the sums and the bytes that are sent, by slot. */
#include "engine/owner/kind_forward.h"

#include <string.h>

#include "engine/owner/block.h"
#include "engine/bytes.h"
#include "engine/owner/kind.h"
#include "engine/owner/mean.h"
#include "engine/owner/write.h"

hpc_row_room hpc_forward_room(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc;
    hpc_row_room room = {0};
    if (hpc_codec_of(row->codec_out)->plain)
        room.acc = hpc_row_floats(row, 1);
    else
        room.encoded = (hpc_output_bytes(sc, row) + 63) / 64 * 64;
    return room;
}

/* ---- a fold ---- */

static int suits(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc;
    return row->action == HPC_FORWARD;
}

static int work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        size_t n = hpc_block_count(w, from);
        const float *block = hpc_block_fold(core, w, inputs, core->acc, 0, args, from, n);
        if (block == NULL) return -1;
        if (w->encoded != NULL)
            hpc_block_encode(w, block, from, n);
        else
            memcpy(w->acc + from, block, n * sizeof(float));
    }
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, inputs->n);
    return 0;
}

const void *hpc_fold_leaving(const hpc_work *w, int slot) {
    (void)slot;
    return w->encoded != NULL ? (const void *)w->encoded : w->acc;
}

const hpc_row_kind hpc_kind_forward = {
    .name = "forward",
    .suits = suits,
    .room = hpc_forward_room,
    .work = work,
    .leaving = hpc_fold_leaving,
};

/* ---- a sum of the discipline's ---- */

static int is_summed(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_row_is_summed(sc, row);
}

static hpc_row_room no_room(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc, (void)row;
    return (hpc_row_room){0};
}

static int work_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    (void)args;
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    for (size_t from = 0; w->encoded != NULL && from < w->row->count; from += HPC_BLOCK)
        hpc_block_encode(w, w->acc + from, from, hpc_block_count(w, from));
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, inputs->n);
    return 0;
}

const void *hpc_sum_leaving(const hpc_work *w, int slot) {
    return w->leaving + (size_t)slot * w->leaving_stride;
}

const hpc_row_kind hpc_kind_sum = {
    .name = "sum",
    .suits = is_summed,
    .room = no_room,
    .work = work_sum,
    .add = hpc_blocks_add,
    .leaving = hpc_sum_leaving,
};
