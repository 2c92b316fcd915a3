/* Updates that go as pieces: the encoders of a worker and of an owner's forwards, and the decoding of pieces.
 *
 * A worker has an encoder for each key that it pushes as pieces. It writes dense float32, or the codec's other input
 * format, into a separate place, or hands it in; a start encodes each part of it that some row takes, once, into the
 * slot of the push. So all rows of the same elements read one piece, and the residual is updated once a push. An owner
 * has an encoder for each row that forwards its fold as a piece. */
#ifndef HPC_PIECES_H
#define HPC_PIECES_H

#include "engine/discipline.h"
#include "engine/owner/row.h"

/* Copies the codecs of all keys, when an exchange is created and before its layout is made. */
int hpc_pieces_open(hpc_scheme *sc, const hpc_exchange_config *config, const char *op);

/* For the layout: finds the ranges of a key's update that are encoded apart; an error if two of them overlap.
 * first: of the key's rows. */
int hpc_pieces_find(hpc_scheme *sc, int key, int first, const char *op);
void hpc_pieces_free(hpc_scheme *sc);
/* The number of the codec of variable length by which a row takes or sends updates; -1: its updates are arrays. */
int hpc_row_variable_codec(const hpc_row *row);
/* For hpc_discipline.check: HPC_OK if all updates are arrays; else an error that says why a discipline, called by name,
 * cannot fold pieces of variable length. */
int hpc_pieces_refuse(const hpc_exchange_config *config, const char *name, const char *why);

/* rows.c, when the rows are known: makes the worker's encoders. And one of a row; memory has room for
 * hpc_pieces_state_bytes. */
int hpc_pieces_open_worker(hpc_scheme *sc, const char *op);
int hpc_pieces_open_row(hpc_scheme *sc, hpc_work *w, void *memory, const char *op);
size_t hpc_pieces_state_bytes(const hpc_scheme *sc, const hpc_row *row);

/* ---- the worker ---- */

/* Bytes of a key's update as the worker writes it: float32, or the codec's other input format. */
size_t hpc_pieces_source_bytes(const hpc_scheme *sc, int key);
/* The place where the worker writes a key's next update. The memory is taken when it is first asked for: a worker that
 * hands its updates in needs none. */
int hpc_pieces_source(hpc_scheme *sc, int key, const char *op, void **at);
/* Whether all values of an update are finite. */
int hpc_pieces_are_finite(const hpc_scheme *sc, int key, const void *update);
/* Encodes an update into the slot of the next push. Nonzero when the exchange has failed. */
int hpc_pieces_encode(hpc_scheme *sc, int key, const void *update, char *slot);
/* Adds the piece of a row in the slot of a push back to the residual, as its owner has left it out. */
void hpc_pieces_return(hpc_scheme *sc, const hpc_row *row, const char *slot);
/* Notes that the last piece that a row of this rank has forwarded was left out. It goes back into the residual before
 * the row writes another piece, or its encoder is looked at. The owner has answered, so the row does nothing before
 * this rank's next push. */
void hpc_pieces_leave_out(hpc_work *w);
/* split: tells this rank's encoders the outcome of a key's last fold. They forget a fold that was skipped. Where a fold
 * was applied, residuals from before it are multiplied by the present unit of updates over the earlier one. Encoders of
 * rows do both before they encode again or are looked at. */
void hpc_pieces_end_fold(hpc_scheme *sc, int key, int applied);
/* Adds a piece of nbytes, which may be packed, to n elements; a piece of 0 bytes is refused. */
int hpc_pieces_decode(const hpc_key_pieces *its, float *acc, uint64_t n, const char *piece, size_t nbytes,
                      double weight, const hpc_packing *packing);
/* Bytes of the pieces of a share, in a slot of the update. */
size_t hpc_pieces_pushed(const hpc_scheme *sc, const hpc_share *share, const char *slot);

/* The codec of all inputs of a row, if they are pieces that are not packed; else NULL. */
const hpc_codec *hpc_row_pieces(const hpc_scheme *sc, const hpc_row *row);

/* ---- the core ---- */

/* Adds an input of a row to as many elements. Nonzero when it is no piece of the row: then the exchange has failed, and
 * nothing is written. */
int hpc_pieces_add(hpc_core *core, hpc_work *w, const hpc_input *in, const char *piece, double weight, float *to);
/* Adds a piece that was added already to one more place, and does not count it again. */
int hpc_pieces_add_again(hpc_core *core, hpc_work *w, const hpc_input *in, const char *piece, double weight, float *to);
/* Takes rate times the weighted sum of all inputs from param, in one pass (hpc_codec.add_all). Nonzero as above. */
int hpc_pieces_add_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double rate, float *param);
/* For codecs with add_range. check_all: nonzero when an input is no piece of the row, and then the exchange has failed.
 * counts: the inputs are counted as received and folded. After that, sum_range: elements from to from + n of their
 * weighted sum into sum, as often as is needed; squares: whether their codec knows the sum of squares of all elements
 * without it. */
int hpc_pieces_check_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, int counts);
void hpc_pieces_sum_range(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, size_t from, size_t n, float *sum);
int hpc_pieces_squares(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares);
/* Brings the encoder of a row up to date, once: its last piece may have been left out, and its last fold may be over.
 * The caller is the row's core, or has paused it; packing is the caller's. */
void hpc_pieces_settle(hpc_scheme *sc, hpc_work *w, const hpc_packing *packing);
/* Encodes the fold of a row, which lies in acc, into w->encoded. Nonzero when the exchange has failed. */
int hpc_pieces_encode_row(hpc_core *core, hpc_work *w);
/* A fold of no updates, which receivers do not apply: a piece of nothing, and the residual stays as it is. */
int hpc_pieces_encode_nothing(const hpc_work *w);

#endif
