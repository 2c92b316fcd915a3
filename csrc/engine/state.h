/* The state of a scheme, which a trainer reads and sets for checkpoints and after a rank is lost, while it has no call
 * pending. These functions pause the cores, because under ASYNC another rank's push may change a row at any time. */
#ifndef HPC_STATE_H
#define HPC_STATE_H

#include "engine/layout/layout.h"

/* Returns the facts of a key. The field scheme is not set. */
hpc_key_facts hpc_facts_of_key(const hpc_scheme *sc, int key);

/* Copy the state of a row that this rank owns to the caller (save) or from the caller (load). Arguments that are NULL
 * are skipped. */
void hpc_row_save(hpc_scheme *sc, int row, uint64_t *step, float *params, float *state);
void hpc_row_restore(hpc_scheme *sc, int row, uint64_t step, const float *params, const float *state);

/* The encoder of a row or, if row is -1, of the pushes of a key. hpc_encoder_values returns how many values its state
 * has, 0 if there is no encoder. hpc_encoder_copy copies the state to the caller if out is set, otherwise from the
 * caller. */
int64_t hpc_encoder_values(const hpc_scheme *sc, int key, int row);
int hpc_encoder_copy(hpc_scheme *sc, int key, int row, uint64_t *made, float *values, int out, const char *op);

/* The arguments of a key's rule. hpc_args_check_new returns HPC_OK if args may be set, hpc_args_take_new sets them, and
 * hpc_args_get returns the arguments of the next fold. */
int hpc_args_check_new(hpc_scheme *sc, int key, const double *args, const char *op);
void hpc_args_take_new(hpc_scheme *sc, int key, const double *args);
void hpc_args_get(const hpc_scheme *sc, int key, double *args);

/* Writes into heard[row] the version of this rank's copy of the row's parameters, as the owners' answers gave it. */
void hpc_copies_heard(const hpc_scheme *sc, uint64_t *heard);
/* Decode into values the pieces of a key's last push, or of the last fold that a row forwarded; values may be NULL.
 * *pushes or *folds gets the number of pushes or folds so far. */
int hpc_sent_pieces(hpc_scheme *sc, int key, uint64_t *pushes, float *values, const char *op);
int hpc_forwarded_pieces(hpc_scheme *sc, int row, uint64_t *folds, float *values, const char *op);

#endif
