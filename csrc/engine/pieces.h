/* Updates that travel as pieces: the encoders of workers and of owners' forwards, and the decoding. A piece is the
 * bytes, of variable length, that a codec makes from a part of an update. A residual has the values that an encoder has
 * not sent yet.
 *
 * A worker has an encoder for each key that it pushes as pieces. The trainer writes the update, as float32 or in the
 * codec's other input format, into the memory of hpc_pieces_source, or passes its own array. The start of the push
 * encodes each range of elements that some row takes, once, into the push's slot. So all rows of the same elements read
 * the same piece, and each push changes the residual once. An owner has an encoder for each row that forwards its fold
 * as a piece. */
#ifndef HPC_PIECES_H
#define HPC_PIECES_H

#include "engine/discipline.h"
#include "engine/owner/row.h"

/* Copies the codecs of all keys, when an exchange is created and before its layout is made. */
int hpc_pieces_open(hpc_scheme *sc, const hpc_exchange_config *config, const char *op);

/* Finds, for the layout, the ranges of a key's update that are encoded separately. first is the number of the key's
 * first row. Returns an error if two different ranges overlap. */
int hpc_pieces_find(hpc_scheme *sc, int key, int first, const char *op);
void hpc_pieces_free(hpc_scheme *sc);
/* Returns the number of the codec with variable length by which a row takes or sends updates, or -1 if its updates are
 * arrays. */
int hpc_row_variable_codec(const hpc_row *row);
/* Returns HPC_OK if all updates are arrays; otherwise an error that says that the discipline called name cannot fold
 * pieces. Used by hpc_discipline.check. */
int hpc_pieces_refuse(const hpc_exchange_config *config, const char *name, const char *why);

/* Called by rows.c when the rows are known. hpc_pieces_open_worker makes the worker's encoders; hpc_pieces_open_row
 * makes the encoder of one row, whose memory has hpc_pieces_state_bytes bytes. */
int hpc_pieces_open_worker(hpc_scheme *sc, const char *op);
int hpc_pieces_open_row(hpc_scheme *sc, hpc_work *w, void *memory, const char *op);
size_t hpc_pieces_state_bytes(const hpc_scheme *sc, const hpc_row *row);

/* ---- the worker ---- */

/* Returns how many bytes a key's update has as the trainer writes it: as float32, or in the codec's other input
 * format. */
size_t hpc_pieces_source_bytes(const hpc_scheme *sc, int key);
/* Gets the memory into which the trainer writes a key's next update. It is allocated at the first call, since a trainer
 * that passes its own arrays does not need it. */
int hpc_pieces_source(hpc_scheme *sc, int key, const char *op, void **at);
/* Returns whether all values of an update are finite. */
int hpc_pieces_are_finite(const hpc_scheme *sc, int key, const void *update);
/* Encodes an update into the slot of the next push. Returns nonzero when the exchange has failed. */
int hpc_pieces_encode(hpc_scheme *sc, int key, const void *update, char *slot);
/* Adds a piece that the row's owner has left out back to the residual; the piece is read from the slot of its push. */
void hpc_pieces_return(hpc_scheme *sc, const hpc_row *row, const char *slot);
/* Notes that the last piece that a row of this rank forwarded was left out. The piece is added back to the residual
 * before the row encodes again and before its encoder is read. The piece's owner has answered, so the row is idle until
 * this rank's next push. */
void hpc_pieces_leave_out(hpc_work *w);
/* With fold and apply as two calls: tells this rank's encoders whether a key's last fold was applied or skipped. After
 * a skip an encoder returns to its state before that fold. After an apply, the part of the residual from before the
 * fold is multiplied by the updates' present unit divided by their earlier unit. Encoders of rows do this later, before
 * they encode again or are read. */
void hpc_pieces_end_fold(hpc_scheme *sc, int key, int applied);
/* Adds a piece of nbytes, packed or not, to n elements of acc. Returns nonzero if the piece is invalid, for example if
 * it has 0 bytes. */
int hpc_pieces_decode(const hpc_key_pieces *its, float *acc, uint64_t n, const char *piece, size_t nbytes,
                      double weight, const hpc_packing *packing);
/* Returns how many bytes the pieces of a share in a slot have together. */
size_t hpc_pieces_pushed(const hpc_scheme *sc, const hpc_share *share, const char *slot);

/* Returns the codec of all inputs of a row, if these are pieces that are never packed; otherwise NULL. */
const hpc_codec *hpc_row_pieces(const hpc_scheme *sc, const hpc_row *row);

/* ---- the core ---- */

/* Adds an input of a row to the row's elements, stored at the address to. If the input is no valid piece of the row,
 * writes nothing, ends the exchange and returns nonzero. */
int hpc_pieces_add(hpc_core *core, hpc_work *w, const hpc_input *in, const char *piece, double weight, float *to);
/* Adds a piece, which hpc_pieces_add has added and counted already, to a second array, without counting the piece as
 * received again. */
int hpc_pieces_add_again(hpc_core *core, hpc_work *w, const hpc_input *in, const char *piece, double weight, float *to);
/* Subtracts rate times the weighted sum of all inputs from param, in one pass (hpc_codec.add_all). Returns nonzero as
 * above. */
int hpc_pieces_add_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double rate, float *param);
/* For codecs with add_range. hpc_pieces_check_all is called first: if an input is no valid piece of the row, it ends
 * the exchange and returns nonzero; if counts is set, it counts the inputs as received and folded. Then
 * hpc_pieces_sum_range, called as often as needed, writes n elements, beginning at element from, of the inputs'
 * weighted sum to the array sum. hpc_pieces_squares adds the sum of squares to *squares and returns 1 if the codec can
 * compute it without that sum; otherwise it returns 0. */
int hpc_pieces_check_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, int counts);
void hpc_pieces_sum_range(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, size_t from, size_t n, float *sum);
int hpc_pieces_squares(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares);
/* Updates the encoder of a row after its last fold: adds a piece that was left out back to the residual, and reads
 * whether the fold was applied. The caller must be the row's core or must have paused it. packing is the caller's
 * buffer. */
void hpc_pieces_settle(hpc_scheme *sc, hpc_work *w, const hpc_packing *packing);
/* Encodes the fold of a row from acc into w->encoded. Returns nonzero when the exchange has failed. */
int hpc_pieces_encode_row(hpc_core *core, hpc_work *w);
/* Encodes a fold of no updates as a piece that adds nothing; receivers do not apply it. The residual does not
 * change. */
int hpc_pieces_encode_nothing(const hpc_work *w);

#endif
