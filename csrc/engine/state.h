/* The state of a scheme that a trainer reads and sets, while it has no call pending: for checkpoints, and when a rank
 * is lost. Cores are paused meanwhile, as under ASYNC pushes of other ranks may change a row at any time. */
#ifndef HPC_STATE_H
#define HPC_STATE_H

#include "engine/layout/layout.h"

/* The facts of a key, without the number of its scheme. */
hpc_key_facts hpc_facts_of_key(const hpc_scheme *sc, int key);

/* A row that this rank owns: what is NULL is left as it is. */
void hpc_row_save(hpc_scheme *sc, int row, uint64_t *step, float *params, float *state);
void hpc_row_restore(hpc_scheme *sc, int row, uint64_t step, const float *params, const float *state);

/* The encoder of a row, or (-1) of the pushes of a key: its number of values, 0: there is none; and a copy of its
 * state, out to the caller or in from there. */
int64_t hpc_encoder_values(const hpc_scheme *sc, int key, int row);
int hpc_encoder_copy(hpc_scheme *sc, int key, int row, uint64_t *made, float *values, int out, const char *op);

/* The arguments of a key's rule: HPC_OK if they may be set to args; sets them; gets those of the next fold. */
int hpc_args_check_new(hpc_scheme *sc, int key, const double *args, const char *op);
void hpc_args_take_new(hpc_scheme *sc, int key, const double *args);
void hpc_args_get(const hpc_scheme *sc, int key, double *args);

/* How new this rank's copy of each row's parameters is, by its owners' answers. */
void hpc_copies_heard(const hpc_scheme *sc, uint64_t *heard);
/* The pieces of the last push of a key, or of the last fold that a row has forwarded, decoded (values NULL: not); and
 * how many there were. */
int hpc_sent_pieces(hpc_scheme *sc, int key, uint64_t *pushes, float *values, const char *op);
int hpc_forwarded_pieces(hpc_scheme *sc, int row, uint64_t *folds, float *values, const char *op);

#endif
