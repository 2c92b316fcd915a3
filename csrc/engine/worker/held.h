/* Updates that a worker holds from their fold to their apply (held.c). */
#ifndef HPC_HELD_H
#define HPC_HELD_H

#include "engine/discipline.h"

/* Calls of a scheme whose updates are held (hpc_scheme.held): a fold (empty is set if the worker has no gradient), the
 * use of the fold, and hpc_exchange_start. hpc_held_sent_nothing returns whether push number push had no update. */
int hpc_held_open(hpc_scheme *sc, const char *op);
int hpc_held_fold(hpc_scheme *sc, int key, int empty, const void *src, hpc_limit *l, uint64_t *ticket, const char *op);
int hpc_held_use(hpc_scheme *sc, int key, hpc_use use, double scale, hpc_limit *l, uint64_t *ticket, const char *op);
int hpc_held_start(hpc_scheme *sc, int key, int flags, const void *src, hpc_limit *l, uint64_t *ticket, const char *op);
double hpc_held_squares(const hpc_scheme *sc, int key);
const float *hpc_held_gathered(const hpc_scheme *sc, int key);
int hpc_held_sent_nothing(const hpc_scheme *sc, int key, uint64_t push);

#endif
