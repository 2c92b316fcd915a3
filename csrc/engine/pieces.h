/* Updates that travel as pieces, the bytes of variable length that a codec makes from a part of an update: the encoders
 * of workers and of owners' forwards, and the decoding. A residual has the values that an encoder has not sent yet.
 *
 * A worker has an encoder for each key that it pushes as pieces. The trainer writes the update, as float32 or in the
 * codec's other input format, into a separate place, or hands it in. The start of the push encodes each range of
 * elements that some row takes, once, into the push's slot. So all rows of the same elements read one piece, and each
 * push updates the residual once. An owner has an encoder for each row that forwards its fold as a piece. */
#ifndef HPC_PIECES_H
#define HPC_PIECES_H

#include "engine/discipline.h"
#include "engine/owner/row.h"

/* Copies the codecs of all keys, when an exchange is created and before its layout is made. */
int hpc_pieces_open(hpc_scheme *sc, const hpc_exchange_config *config, const char *op);

/* For the layout: finds the ranges of a key's update that are encoded separately. first is the key's first row. Two
 * ranges that overlap are an error. */
int hpc_pieces_find(hpc_scheme *sc, int key, int first, const char *op);
void hpc_pieces_free(hpc_scheme *sc);
/* Returns the number of the codec with variable length by which a row takes or sends updates, or -1 if its updates are
 * arrays. */
int hpc_row_variable_codec(const hpc_row *row);
/* For hpc_discipline.check: returns HPC_OK if all updates are arrays, or an error that says why the discipline called
 * name cannot fold pieces. */
int hpc_pieces_refuse(const hpc_exchange_config *config, const char *name, const char *why);

/* Called by rows.c when the rows are known: open_worker makes the worker's encoders, open_row the encoder of one row.
 * memory has room for hpc_pieces_state_bytes. */
int hpc_pieces_open_worker(hpc_scheme *sc, const char *op);
int hpc_pieces_open_row(hpc_scheme *sc, hpc_work *w, void *memory, const char *op);
size_t hpc_pieces_state_bytes(const hpc_scheme *sc, const hpc_row *row);

/* ---- the worker ---- */

/* Returns the bytes of a key's update as the trainer writes it: float32, or the codec's other input format. */
size_t hpc_pieces_source_bytes(const hpc_scheme *sc, int key);
/* Gets the place where the trainer writes a key's next update. Its memory is allocated at the first call: a trainer
 * that hands its updates in needs none. */
int hpc_pieces_source(hpc_scheme *sc, int key, const char *op, void **at);
/* Returns whether all values of an update are finite. */
int hpc_pieces_are_finite(const hpc_scheme *sc, int key, const void *update);
/* Encodes an update into the slot of the next push. Returns nonzero when the exchange has failed. */
int hpc_pieces_encode(hpc_scheme *sc, int key, const void *update, char *slot);
/* Adds a row's piece, which its owner has left out, from the slot of a push back to the residual. */
void hpc_pieces_return(hpc_scheme *sc, const hpc_row *row, const char *slot);
/* Notes that the last piece that a row of this rank forwarded was left out. The piece goes back into the residual
 * before the row encodes again, and before its encoder is read. The owner has answered, so the row is idle until this
 * rank's next push. */
void hpc_pieces_leave_out(hpc_work *w);
/* split: tells this rank's encoders whether a key's last fold was applied or skipped. After a skip they return to the
 * state before that fold. After an apply, residuals from before the fold are multiplied by the updates' present unit
 * over the earlier unit. Encoders of rows do both only before they encode again or are read. */
void hpc_pieces_end_fold(hpc_scheme *sc, int key, int applied);
/* Adds a piece of nbytes, packed or not, to n elements of acc. Returns nonzero if the piece is refused, as with 0
 * bytes. */
int hpc_pieces_decode(const hpc_key_pieces *its, float *acc, uint64_t n, const char *piece, size_t nbytes,
                      double weight, const hpc_packing *packing);
/* Returns the bytes of the pieces of a share in a slot. */
size_t hpc_pieces_pushed(const hpc_scheme *sc, const hpc_share *share, const char *slot);

/* Returns the codec of all inputs of a row, if these are pieces that are never packed; otherwise NULL. */
const hpc_codec *hpc_row_pieces(const hpc_scheme *sc, const hpc_row *row);

/* ---- the core ---- */

/* Adds an input of a row to the row's elements at to. If the input is no piece of the row it writes nothing, ends the
 * exchange and returns nonzero. */
int hpc_pieces_add(hpc_core *core, hpc_work *w, const hpc_input *in, const char *piece, double weight, float *to);
/* Adds a piece that was added already to a second place, without counting it as received again. */
int hpc_pieces_add_again(hpc_core *core, hpc_work *w, const hpc_input *in, const char *piece, double weight, float *to);
/* Subtracts rate times the weighted sum of all inputs from param, in one pass (hpc_codec.add_all). Returns nonzero as
 * above. */
int hpc_pieces_add_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double rate, float *param);
/* For codecs with add_range. check_all comes first: it returns nonzero, and ends the exchange, if an input is no piece
 * of the row; with counts it counts the inputs as received and folded. Then sum_range writes elements from to from + n
 * of their weighted sum to sum, as often as needed. squares returns 1 and adds to *squares if the codec knows the sum
 * of squares without that sum; otherwise it returns 0. */
int hpc_pieces_check_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, int counts);
void hpc_pieces_sum_range(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, size_t from, size_t n, float *sum);
int hpc_pieces_squares(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares);
/* Updates the encoder of a row once its last fold is over: takes back a piece that was left out, and notes whether the
 * fold was applied. The caller is the row's core or has paused it; packing belongs to the caller. */
void hpc_pieces_settle(hpc_scheme *sc, hpc_work *w, const hpc_packing *packing);
/* Encodes the fold of a row from acc into w->encoded. Returns nonzero when the exchange has failed. */
int hpc_pieces_encode_row(hpc_core *core, hpc_work *w);
/* Encodes a fold of no updates, which receivers do not apply, as a piece that adds nothing. The residual stays as it
 * is. */
int hpc_pieces_encode_nothing(const hpc_work *w);

#endif
