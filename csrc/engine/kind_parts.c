/* Rows whose codec can sum a part of its pieces. The row goes part by part: it sums the part of all pieces, and the
 * rule then goes over that sum block by block, while it is in the caches. No sum of the whole row is ever made. */
#include "engine/kind_parts.h"

#include "engine/block.h"
#include "engine/layout.h"
#include "engine/pieces.h"
#include "engine/prox.h"
#include "engine/write.h"

/* Elements of a part: a codec prepares once for so many. */
enum { PART = 128 * HPC_BLOCK };

static int suits(const hpc_scheme *sc, const hpc_row *row) {
    const hpc_codec *codec = hpc_row_pieces(sc, row);
    return codec != NULL && codec->add_range != NULL && row->action == HPC_APPLY && !hpc_row_keeps_fold(sc, row);
}

static size_t part_count(const hpc_work *w, size_t part) {
    return w->row->count - part < PART ? w->row->count - part : PART;
}

hpc_row_room hpc_parts_room(const hpc_scheme *sc, const hpc_row *row) {
    hpc_row_room room = hpc_blocks_room(sc, row);
    room.sum = hpc_row_floats(row, 1);
    if (room.sum > PART * sizeof(float)) room.sum = PART * sizeof(float);
    return room;
}

int hpc_parts_scaled(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale) {
    const void *sum = w->acc;
    if (hpc_pieces_check_all(core, w, inputs, 1) != 0) return -1;
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    for (size_t part = 0; part < w->row->count; part += PART) {
        const size_t all = part_count(w, part);
        hpc_pieces_sum_range(core, w, inputs, part, all, w->acc);
        if (scale != 1) core->scheme->kernels->f32(w->acc, &sum, &scale, 1, all, 0);
        for (size_t from = part; from < part + all; from += HPC_BLOCK) {
            const size_t n = hpc_block_count(w, from);
            if (hpc_block_apply(core, w, w->acc + (from - part), inputs->n_updates, args, from, n) != 0 ||
                hpc_block_finish(core, w, inputs->to, args, from, n) != 0)
                return -1;
        }
    }
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, 0);
    return 0;
}

int hpc_parts_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    return hpc_parts_scaled(core, w, inputs, args, 1);
}

/* The squares alone may be had without the fold. */
int hpc_parts_read(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
                   double *squares) {
    (void)args;
    if (hpc_pieces_check_all(core, w, inputs, 0) != 0) return -1;
    if (to == NULL && hpc_pieces_squares(core, w, inputs, squares)) return 0;
    for (size_t part = 0; part < w->row->count; part += PART) {
        const size_t all = part_count(w, part);
        float *sum = to != NULL ? to + part : w->acc;
        hpc_pieces_sum_range(core, w, inputs, part, all, sum);
        for (size_t from = part; from < part + all && squares != NULL; from += HPC_BLOCK)
            *squares += core->scheme->kernels->squares(sum + (from - part), hpc_block_count(w, from));
    }
    return 0;
}

const hpc_row_kind hpc_kind_pieces_parts = {
    .name = "pieces part by part",
    .suits = suits,
    .room = hpc_parts_room,
    .work = hpc_parts_work,
    .scaled = hpc_parts_scaled,
    .read = hpc_parts_read,
    .write = hpc_blocks_write,
    .leaving = hpc_params_leaving,
};
