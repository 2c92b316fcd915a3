/* Rows that take pieces of variable length, or send them. Each piece is added as a whole to a sum that begins with
 * zeroes; then the rule goes over the sum block by block. If the rule is sgd, a piece may be added to the parameters
 * directly. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "engine/owner/signals.h"
#include "engine/owner/block.h"
#include "engine/bytes.h"
#include "engine/owner/kind.h"
#include "engine/owner/kind_forward.h"
#include "engine/owner/mean.h"
#include "engine/pieces.h"
#include "engine/owner/prox.h"
#include "engine/owner/write.h"

static int takes_pieces(const hpc_scheme *sc, const hpc_row *row) {
    for (int e = 0; e < row->n_in; e++)
        if (!hpc_edge_codec(sc->plan, row, &row->in[e])->addressable) return 1;
    return 0;
}

static int sends_pieces(const hpc_row *row) {
    return row->action == HPC_FORWARD && !hpc_codec_of(row->codec_out)->addressable;
}

/* Adds inputs to the accumulator. Some of them may be arrays. */
static int add(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, int begins) {
    (void)args;
    if (begins) memset(w->acc, 0, (size_t)w->row->count * sizeof(float));
    for (int i = 0; i < inputs->n; i++)
        if (hpc_pieces_add(core, w, inputs->from[i], inputs->bases[i], inputs->weights[i], w->acc) != 0) return -1;
    return 0;
}

/* ---- rows whose codec can sum a part of its pieces ---- */

/* These rows go part by part: they sum one part of all pieces, and the rule then goes over that sum block by block,
 * while it is in the caches. A sum of the whole row is never made. */

/* Elements of a part: a codec prepares once for each part. */
enum { PART = 128 * HPC_BLOCK };

static int suits_parts(const hpc_scheme *sc, const hpc_row *row) {
    const hpc_codec *codec = hpc_row_pieces(sc, row);
    return codec != NULL && codec->add_range != NULL && row->action == HPC_APPLY && !hpc_row_keeps_fold(sc, row);
}

static size_t part_count(const hpc_work *w, size_t part) {
    return w->row->count - part < PART ? w->row->count - part : PART;
}

static hpc_row_room parts_room(const hpc_scheme *sc, const hpc_row *row) {
    hpc_row_room room = hpc_blocks_room(sc, row);
    room.sum = hpc_row_floats(row, 1);
    if (room.sum > PART * sizeof(float)) room.sum = PART * sizeof(float);
    return room;
}

static int parts_scaled(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale) {
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

static int parts_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    return parts_scaled(core, w, inputs, args, 1);
}

/* If the caller asks only for the squares, the codec may compute them without the fold. */
static int parts_read(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
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
    .suits = suits_parts,
    .room = parts_room,
    .work = parts_work,
    .scaled = parts_scaled,
    .read = parts_read,
    .write = hpc_blocks_write,
    .leaving = hpc_params_leaving,
};

/* ---- rows that have parameters ---- */

static hpc_row_room room(const hpc_scheme *sc, const hpc_row *row) {
    hpc_row_room room = hpc_blocks_room(sc, row);
    if (room.acc == 0) room.sum = hpc_row_floats(row, 1);
    return room;
}

static int apply_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    if (hpc_blocks_apply_sum(core, w, inputs, args) != 0) return -1;
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, 0);
    return 0;
}

static int work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    return add(core, w, inputs, args, 1) != 0 ? -1 : apply_sum(core, w, inputs, args);
}

static int fold(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double *squares) {
    if (add(core, w, inputs, args, 1) != 0) return -1;
    w->mean = w->acc;
    if (squares != NULL) *squares += hpc_row_squares(core, w);
    return 0;
}

/* hpc_row_kind.scaled of rows that keep their inputs. */
static int scaled(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale) {
    const void *sum = w->acc;
    if (add(core, w, inputs, args, 1) != 0) return -1;
    core->scheme->kernels->f32(w->acc, &sum, &scale, 1, (size_t)w->row->count, 0);
    return apply_sum(core, w, inputs, args);
}

static int read_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
                    double *squares) {
    (void)args;
    memset(w->acc, 0, (size_t)w->row->count * sizeof *w->acc);
    for (int i = 0; i < inputs->n; i++)
        if (hpc_pieces_add_again(core, w, inputs->from[i], inputs->bases[i], inputs->weights[i], w->acc) != 0)
            return -1;
    w->mean = w->acc;
    if (squares != NULL) *squares += hpc_row_squares(core, w);
    if (to != NULL) memcpy(to, w->acc, (size_t)w->row->count * sizeof *to);
    return 0;
}

const hpc_row_kind hpc_kind_pieces = {
    .name = "pieces",
    .suits = takes_pieces,
    .room = room,
    .work = work,
    .fold = fold,
    .apply = hpc_blocks_apply_mean,
    .scaled = scaled,
    .read = read_sum,
    .write = hpc_blocks_write,
    .leaving = hpc_params_leaving,
};

/* ---- sgd ---- */

/* These rows change parameters, or Z, in place. They send parameters as float32, and not to relays. */
static int is_sgd(const hpc_scheme *sc, const hpc_row *row) {
    const hpc_key_rule *rule = &sc->rules[row->key];
    if (!rule->is_sgd || hpc_row_keeps_fold(sc, row)) return 0;
    if (row->action != HPC_APPLY || !hpc_codec_of(row->codec_out)->plain) return 0;
    for (int e = 0; e < row->n_out; e++)
        if (row->out[e].row >= 0) return 0;
    return 1;
}

/* A prox would also change elements that the piece lacks, so rows with a prox do not suit. */
static int suits_in_place(const hpc_scheme *sc, const hpc_row *row) {
    return !hpc_rule_proxes(&sc->rules[row->key].rule) && row->n_in == 1 &&
           hpc_edge_codec(sc->plan, row, &row->in[0])->weighs && is_sgd(sc, row);
}

/* Allocates the sum of a row that rarely needs one; called when the row needs it, and does nothing the second time. */
static int take_sum(hpc_core *core, hpc_work *w) {
    const size_t nbytes = hpc_row_floats(w->row, 1);
    if (nbytes > core->acc_bytes && nbytes > core->sum_bytes) {
        hpc_private_free(core->sum, core->sum_bytes);
        core->sum = hpc_private_alloc(nbytes, core->node);
        core->sum_bytes = core->sum != NULL ? nbytes : 0;
    }
    w->acc = nbytes > core->acc_bytes ? core->sum : core->acc;
    if (w->acc != NULL) return 0;
    hpc_scheme_fail(core->scheme, HPC_ERR_MEMORY, "there is no memory for the sum of a row's pieces");
    return -1;
}

static int work_by_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    return take_sum(core, w) != 0 ? -1 : work(core, w, inputs, args);
}

static int scaled_by_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale) {
    return take_sum(core, w) != 0 ? -1 : scaled(core, w, inputs, args, scale);
}

static int read_by_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
                       double *squares) {
    return take_sum(core, w) != 0 ? -1 : read_sum(core, w, inputs, args, to, squares);
}

/* sgd changes only elements that the piece has, so this adds the piece, times minus the rate, to the parameters. The
 * bits are the same as with a sum that begins with zeroes. A weight of the piece, or a decay of the parameters, needs
 * that sum. */
static int work_in_place(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    const double rate = args[1], decay = args[2];
    if (inputs->n != 1 || inputs->weights[0] != 1 || decay != 0) return work_by_sum(core, w, inputs, args);
    if (hpc_pieces_add(core, w, inputs->from[0], inputs->bases[0], -rate, w->param) != 0) return -1;
    for (int o = 0; o < w->n_outputs; o++)
        if (w->outputs[o].params != NULL && hpc_goes_to(inputs->to, &w->outputs[o]) &&
            hpc_pieces_add_again(core, w, inputs->from[0], inputs->bases[0], -rate, w->outputs[o].params) != 0)
            return -1;
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, 0);
    return 0;
}

const hpc_row_kind hpc_kind_pieces_in_place = {
    .name = "pieces in place",
    .suits = suits_in_place,
    .room = hpc_blocks_room,
    .work = work_in_place,
    .scaled = scaled_by_sum,
    .read = read_by_sum,
    .write = hpc_blocks_write,
    .leaving = hpc_params_leaving,
};

/* Suits rows of several inputs whose codec adds them all in one pass. */
static int suits_all(const hpc_scheme *sc, const hpc_row *row) {
    const hpc_codec *codec = hpc_row_pieces(sc, row);
    return codec != NULL && codec->add_all != NULL && is_sgd(sc, row);
}

static hpc_row_room room_all(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_row_pieces(sc, row)->add_range != NULL ? parts_room(sc, row) : hpc_blocks_room(sc, row);
}

/* A decay of the parameters needs the sum. So does a scale of NaN, which makes all parameters NaN. */
static int scaled_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale) {
    const double rate = args[1], decay = args[2];
    const int sums = decay != 0 || isnan(scale);
    if (sums && w->in_codec->add_range != NULL) return parts_scaled(core, w, inputs, args, scale);
    if (sums) return scale == 1 ? work_by_sum(core, w, inputs, args) : scaled_by_sum(core, w, inputs, args, scale);
    if (hpc_pieces_add_all(core, w, inputs, rate * scale, hpc_row_target(w)) != 0) return -1;
    if (hpc_prox_row(core, w, args) != 0) return -1;
    for (int o = 0; o < w->n_outputs; o++)
        if (w->outputs[o].params != NULL && hpc_goes_to(inputs->to, &w->outputs[o]))
            memcpy(w->outputs[o].params, w->param, (size_t)w->row->count * sizeof(float));
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, 0);
    return 0;
}

static int work_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    return scaled_all(core, w, inputs, args, 1);
}

static int read_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
                    double *squares) {
    return w->in_codec->add_range != NULL ? parts_read(core, w, inputs, args, to, squares)
                                          : read_by_sum(core, w, inputs, args, to, squares);
}

const hpc_row_kind hpc_kind_pieces_all = {
    .name = "all pieces at once",
    .suits = suits_all,
    .room = room_all,
    .work = work_all,
    .scaled = scaled_all,
    .read = read_all,
    .write = hpc_blocks_write,
    .leaving = hpc_params_leaving,
};

/* ---- forwards ---- */

/* Sends the accumulator as an array. */
static int send_array(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    for (size_t from = 0; w->encoded != NULL && from < w->row->count; from += HPC_BLOCK)
        hpc_block_encode(w, w->acc + from, from, hpc_block_count(w, from));
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, 0);
    return 0;
}

/* Sends the fold as a piece. Receivers do not apply a fold of no updates. */
static int send_piece(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, int n_arrays) {
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    const int failed = inputs->n_updates > 0 ? hpc_pieces_encode_row(core, w) : hpc_pieces_encode_nothing(w);
    if (failed) return failed;
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, n_arrays);
    return 0;
}

/* Suits rows that take pieces and send an array. */
static int is_opened(const hpc_scheme *sc, const hpc_row *row) {
    return row->action == HPC_FORWARD && takes_pieces(sc, row);
}

static hpc_row_room opened_room(const hpc_scheme *sc, const hpc_row *row) {
    hpc_row_room room = hpc_forward_room(sc, row);
    if (room.acc == 0) room.sum = hpc_row_floats(row, 1);
    return room;
}

static int work_opened(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    return add(core, w, inputs, args, 1) != 0 ? -1 : send_array(core, w, inputs);
}

const hpc_row_kind hpc_kind_forward_opened = {
    .name = "opened forward",
    .suits = is_opened,
    .room = opened_room,
    .work = work_opened,
    .leaving = hpc_fold_leaving,
};

/* Suits rows that take pieces and send a piece. */
static int is_filtered_again(const hpc_scheme *sc, const hpc_row *row) {
    return sends_pieces(row) && takes_pieces(sc, row);
}

static hpc_row_room piece_room(const hpc_scheme *sc, const hpc_row *row) {
    hpc_row_room room = hpc_forward_room(sc, row);
    room.sum = hpc_row_floats(row, 1);
    room.residual = hpc_pieces_state_bytes(sc, row);
    room.sends_pieces = 1;
    return room;
}

static int work_again(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    return add(core, w, inputs, args, 1) != 0 ? -1 : send_piece(core, w, inputs, 0);
}

const hpc_row_kind hpc_kind_forward_pieces = {
    .name = "forward of pieces",
    .suits = is_filtered_again,
    .room = piece_room,
    .work = work_again,
    .leaving = hpc_fold_leaving,
};

/* Suits rows that take arrays and send a piece. */
static int is_filtered(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc;
    return sends_pieces(row);
}

static int work_filtered(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        size_t n = hpc_block_count(w, from);
        const float *block = hpc_block_fold(core, w, inputs, w->acc + from, 0, args, from, n);
        if (block == NULL) return -1;
        if (block != w->acc + from) memcpy(w->acc + from, block, n * sizeof(float));
    }
    return send_piece(core, w, inputs, inputs->n);
}

const hpc_row_kind hpc_kind_forward_filtered = {
    .name = "filtered forward",
    .suits = is_filtered,
    .room = piece_room,
    .work = work_filtered,
    .leaving = hpc_fold_leaving,
};

/* ---- sums of the discipline's ---- */

static hpc_row_room no_room(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc, (void)row;
    return (hpc_row_room){0};
}

static int is_opened_sum(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_row_is_summed(sc, row) && takes_pieces(sc, row);
}

static int work_opened_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    (void)args;
    return send_array(core, w, inputs);
}

const hpc_row_kind hpc_kind_sum_opened = {
    .name = "opened sum",
    .suits = is_opened_sum,
    .room = no_room,
    .work = work_opened_sum,
    .add = add,
    .leaving = hpc_sum_leaving,
};

static int is_filtered_sum(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_row_is_summed(sc, row) && sends_pieces(row);
}

static hpc_row_room residual_room(const hpc_scheme *sc, const hpc_row *row) {
    return (hpc_row_room){.residual = hpc_pieces_state_bytes(sc, row), .sends_pieces = 1};
}

static int work_filtered_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    (void)args;
    return send_piece(core, w, inputs, 0);
}

const hpc_row_kind hpc_kind_sum_pieces = {
    .name = "sum as pieces",
    .suits = is_filtered_sum,
    .room = residual_room,
    .work = work_filtered_sum,
    .add = add,
    .leaving = hpc_sum_leaving,
};
