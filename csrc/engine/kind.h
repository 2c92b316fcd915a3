/* A row kind says how the rows of one sort work. It is one const struct, in one file of this folder and in the array of
 * kind.c; a row gets its kind when the exchange is made, and nothing asks for it after that.
 *
 *   kind_pass.c      fold, rule and write of float32 in one pass
 *   kind_blocks.c    the same one step after the other, block by block
 *   kind_pieces.c    rows that take pieces, or send them
 *   kind_forward.c   the fold goes to another row, as an array
 *   kind_relay.c     parameters that have come go on
 *
 * Below them block.c has the steps of one block, sum.c those of a fold that lies in the accumulator, and write.c which
 * parameters go to which workers. */
#ifndef HPC_ROW_KIND_H
#define HPC_ROW_KIND_H

#include "engine/args.h"
#include "engine/row.h"

/* Bytes of a row's own memory. */
typedef struct hpc_row_room {
    size_t state;     /* of the rule */
    size_t acc;       /* a fold that outlasts the work on its row */
    size_t sum;       /* a fold that does not: it lies where that of the row before did, while that is in the caches */
    size_t encoded;   /* outputs as they are sent */
    size_t residual;  /* state of an encoder of pieces */
    int sends_pieces; /* it has an encoder */
} hpc_row_room;

struct hpc_row_kind {
    const char *name;
    /* Whether a row of this rank is of this kind. The first member of the array that says yes is taken. */
    int (*suits)(const hpc_engine *en, const hpc_row *row);
    hpc_row_room (*room)(const hpc_engine *en, const hpc_row *row);

    /* Folds inputs, applies the rule with args, and sends what comes of it. Nonzero when the exchange has failed. */
    int (*work)(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args);
    /* Adds inputs to the row's accumulator, or begins it with them. NULL: they are never added before the work. */
    int (*add)(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, int begins);
    int early;  /* inputs are added as they come, and work applies their sum */
    int relays; /* its parameters have come from another row */

    /* Fold and apply in two calls (mean.c). fold makes the mean: w->mean, and adds its squares to *squares unless that
     * is NULL. apply is the work on a mean, as the only input. NULL: the row has no parameters, or is never split. */
    int (*fold)(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double *squares);
    int (*apply)(hpc_core *core, hpc_work *w, const hpc_inputs *mean, const double *args);

    /* Writes the parameters that lie in a slot into the memory of workers that is mapped here. NULL: there are none. */
    void (*write)(hpc_core *core, const hpc_work *w, hpc_receivers to, int slot);
    /* The bytes that go to other rows, and to workers whose memory is not mapped. */
    const void *(*leaving)(const hpc_work *w, int slot);
};

extern const hpc_row_kind hpc_kind_pass, hpc_kind_average, hpc_kind_blocks, hpc_kind_early;
extern const hpc_row_kind hpc_kind_pieces, hpc_kind_pieces_early, hpc_kind_pieces_in_place, hpc_kind_pieces_all;
extern const hpc_row_kind hpc_kind_forward, hpc_kind_forward_opened, hpc_kind_forward_filtered, hpc_kind_forward_pieces;
extern const hpc_row_kind hpc_kind_sum, hpc_kind_sum_opened, hpc_kind_sum_pieces;
extern const hpc_row_kind hpc_kind_passthrough, hpc_kind_relay;

/* The kind of a row of this rank (kind.c). */
const hpc_row_kind *hpc_row_kind_of(const hpc_engine *en, const hpc_row *row);

/* ---- block.c: the steps of one block ---- */

/* Elements of the block that begins at element from. */
static inline size_t hpc_block_count(const hpc_work *w, size_t from) {
    return w->row->count - from < HPC_BLOCK ? w->row->count - from : HPC_BLOCK;
}

/* The folded block: out, or its only input in place. NULL when a user's fold has failed. */
const float *hpc_block_fold(hpc_core *core, const hpc_work *w, const hpc_inputs *inputs, float *out, int stream,
                            const double *args, size_t from, size_t n);
/* Applies a folded block to the parameters. Nonzero when the rule has failed. */
int hpc_block_apply(hpc_core *core, const hpc_work *w, const float *block, int n_updates, const double *args,
                    size_t from, size_t n);
/* Encodes a block of a row's outputs, as they are sent: parameters, or a fold. */
void hpc_block_encode(const hpc_work *w, const float *block, size_t from, size_t n);
/* The rule, or the fold, of a row has returned nonzero. The exchange fails. */
void hpc_row_fail_kernel(hpc_core *core, const hpc_work *w, const char *what, int returned);
/* Turns a model that rotates: the parameters are in another slot from now on. */
void hpc_row_turn(const hpc_engine *en, hpc_work *w, uint64_t slot);
/* A step begins: nothing that its inputs hold can be refused any more. */
static inline void hpc_row_begin_step(const hpc_engine *en, hpc_work *w, uint64_t slot) {
    if (en->rotates) hpc_row_turn(en, w, slot);
    w->step++;
    hpc_tally_add(&w->folded, 1);
}
/* It has been made of so many arrays. Pieces are counted as they are added. */
static inline void hpc_row_count_fold(hpc_core *core, const hpc_work *w, int n_arrays) {
    hpc_tally_add(&core->tally.applied, 1);
    hpc_tally_add(&core->tally.bytes_folded, w->in_codec->max_bytes(w->config, w->row->count) * (size_t)n_arrays);
}
/* Whether inputs are added as they come. Where each is applied by itself there is nothing to add. */
static inline int hpc_row_is_early(const hpc_engine *en) {
    return en->asked.eager && en->discipline->whole;
}
/* Whether a fold outlasts the work on its row: inputs are added as they come, or a mean is kept. */
static inline int hpc_row_keeps_fold(const hpc_engine *en) {
    return hpc_row_is_early(en) || en->discipline->split != NULL;
}
/* Whether the discipline has the sums of a forward. */
static inline int hpc_row_is_summed(const hpc_engine *en, const hpc_row *row) {
    return en->discipline->sums && row->action == HPC_FORWARD;
}
static inline size_t hpc_row_floats(const hpc_row *row, size_t of_each) {
    return ((size_t)row->count * of_each * sizeof(float) + 63) / 64 * 64;
}
/* hpc_row_kind.room of rows that have parameters. */
hpc_row_room hpc_blocks_room(const hpc_engine *en, const hpc_row *row);

/* ---- sum.c ---- */

/* Adds arrays to the accumulator, or begins it with the first: hpc_row_kind.add. */
int hpc_blocks_add(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, int begins);
/* Applies what lies in the accumulator, block by block, and writes the parameters. */
int hpc_blocks_apply_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args);

/* ---- kind_forward.c ---- */

/* hpc_row_kind.room and leaving of forwards; and leaving of those whose sums the discipline has. */
hpc_row_room hpc_forward_room(const hpc_engine *en, const hpc_row *row);
const void *hpc_fold_leaving(const hpc_work *w, int slot);
const void *hpc_sum_leaving(const hpc_work *w, int slot);

/* ---- mean.c ---- */

/* hpc_row_kind.fold of rows that take arrays. */
int hpc_blocks_mean(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double *squares);
/* hpc_row_kind.apply of rows that work block by block. */
int hpc_blocks_apply_mean(hpc_core *core, hpc_work *w, const hpc_inputs *mean, const double *args);

/* ---- write.c: what goes out ---- */

static inline int hpc_goes_to(hpc_receivers to, const hpc_output *out) {
    switch (to.whom) {
    case HPC_TO_ALL:
        return 1;
    case HPC_TO_RANK:
        return out->rank == to.rank;
    case HPC_TO_GROUP:
        return out->lowest == to.rank;
    case HPC_TO_TAKERS:
        return to.takes[out->rank];
    case HPC_TO_NOBODY:
        break;
    }
    return 0;
}
/* Writes a block of parameters to workers whose memory is mapped here. What is sent encoded is decoded into mapped
 * memory, so that all workers have the same bits. */
void hpc_block_write(hpc_core *core, const hpc_work *w, hpc_receivers to, size_t from, size_t n);
/* hpc_row_kind.write of rows that have parameters. */
void hpc_blocks_write(hpc_core *core, const hpc_work *w, hpc_receivers to, int slot);
/* hpc_row_kind.leaving of rows that have parameters, and of those whose only input goes on. */
const void *hpc_params_leaving(const hpc_work *w, int slot);
const void *hpc_input_leaving(const hpc_work *w, int slot);
/* Sends what a row has made in a slot: to other rows first, as others wait behind them, and then to the workers whose
 * memory is not mapped. */
void hpc_row_leave(hpc_core *core, hpc_work *w, hpc_receivers to, int slot);
/* The same where the memory of all workers is mapped. */
void hpc_row_leave_mapped(hpc_core *core, hpc_work *w, hpc_receivers to, int slot);

#endif
