/* A row kind implements the work of one sort of rows: fold, apply, send. It is one const struct, in one file of this
 * folder and in the array of kind.c. A row gets its kind when the exchange is made; later code only calls its
 * functions.
 *
 *   kind_pass.c         fold, rule and write of float32 in one pass
 *   kind_blocks.c       the same steps one after the other, block by block
 *   kind_pieces.c       rows that take pieces or send them; some sum them a part at a time
 *   kind_forward.c      rows whose fold goes to another row, as an array
 *   kind_passthrough.c  rows that send on a fold, or parameters, without decoding them
 *
 * They use block.c (the steps of one block), mean.c (the steps of a fold in the accumulator) and write.c (sending
 * parameters to workers). */
#ifndef HPC_ROW_KIND_H
#define HPC_ROW_KIND_H

#include "engine/owner/inputs.h"
#include "engine/scheme.h"

/* Bytes of a row's own memory. */
typedef struct hpc_row_room {
    size_t state; /* of the rule's state */
    size_t acc;   /* bytes of a fold that is kept after the row's work */
    size_t sum; /* bytes of a fold that is not kept: it reuses the memory of the last row's fold, which is still in the
                   caches */
    size_t encoded;   /* of outputs as they are sent */
    size_t residual;  /* of the state of an encoder of pieces */
    int sends_pieces; /* the row has an encoder */
} hpc_row_room;

struct hpc_row_kind {
    const char *name;
    /* Returns whether a row of this rank is of this kind. The first kind in the array that returns 1 is taken. */
    int (*suits)(const hpc_scheme *sc, const hpc_row *row);
    hpc_row_room (*room)(const hpc_scheme *sc, const hpc_row *row);

    /* Folds inputs, applies the rule with args, and sends the result. Returns nonzero when the exchange has failed. */
    int (*work)(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args);
    /* Adds inputs to the row's accumulator; if begins is set, first clears the accumulator. NULL: inputs are never
     * added before the work. */
    int (*add)(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, int begins);
    int relays; /* set if the row is a relay: its parameters came from another row */

    /* Fold and apply as two calls (mean.c). fold makes the mean w->mean, and adds its sum of squares to *squares unless
     * squares is NULL. apply does the row's work with the mean as the only input. NULL: the row has no parameters, or
     * never has fold and apply as two calls. */
    int (*fold)(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double *squares);
    int (*apply)(hpc_core *core, hpc_work *w, const hpc_inputs *mean, const double *args);
    /* Fold and apply as two calls, where a row keeps its inputs (mean.c). scaled does the row's work on scale times the
     * fold of the inputs. read writes the fold to the array to, and adds its sum of squares to *squares; either may be
     * NULL. */
    int (*scaled)(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale);
    int (*read)(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to, double *squares);

    /* Writes the parameters in a slot into the memory of all workers in the set to whose memory is mapped on this rank.
     * NULL: the row has no parameters. */
    void (*write)(hpc_core *core, const hpc_work *w, hpc_receivers to, int slot);
    /* Returns the address of the bytes that are put to other rows, and to workers whose memory is not mapped. */
    const void *(*leaving)(const hpc_work *w, int slot);
};

extern const hpc_row_kind hpc_kind_pass, hpc_kind_average, hpc_kind_blocks;
extern const hpc_row_kind hpc_kind_pieces, hpc_kind_pieces_in_place, hpc_kind_pieces_all, hpc_kind_pieces_parts;
extern const hpc_row_kind hpc_kind_forward, hpc_kind_forward_opened, hpc_kind_forward_filtered, hpc_kind_forward_pieces;
extern const hpc_row_kind hpc_kind_sum, hpc_kind_sum_opened, hpc_kind_sum_pieces;
extern const hpc_row_kind hpc_kind_passthrough, hpc_kind_relay;

/* The kind of a row of this rank. */
const hpc_row_kind *hpc_row_kind_of(const hpc_scheme *sc, const hpc_row *row);

#endif
