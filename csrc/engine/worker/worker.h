/* The trainer's side: sends a gradient, and waits for parameters. */
#ifndef HPC_WORKER_H
#define HPC_WORKER_H

#include "engine/discipline.h"
#include "engine/layout/layout.h"

/* They implement hpc_exchange_gradient, hpc_exchange_ready and hpc_exchange_params. */
int hpc_worker_gradient(hpc_scheme *sc, int key, double timeout, void **gradient, const char *op);
int hpc_worker_ready(hpc_scheme *sc, int key, const char *op);
float *hpc_worker_params(const hpc_scheme *sc, int key);

/* Implements hpc_exchange_start. what: HPC_PUSH_EMPTY, HPC_PUSH_HELD, or 0. */
int hpc_worker_start(hpc_scheme *sc, int key, int flags, int what, const void *src, hpc_limit *l, uint64_t *ticket,
                     const char *op);
/* The first steps of a start. hpc_worker_take_slot waits until a push may begin and its slot may be written.
 * hpc_worker_fill_slot encodes src into the slot; if src is NULL the slot already has the update. If checks is set, it
 * returns HPC_ERR_INVALID if the update has a NaN or an Inf. */
int hpc_worker_take_slot(hpc_scheme *sc, int key, const uint64_t *ticket, hpc_limit *l, const char *op);
int hpc_worker_fill_slot(hpc_scheme *sc, int key, const void *src, int checks, const char *op);
int hpc_worker_refuse_infinite(const hpc_scheme *sc, int key, const char *why, const char *op);
/* hpc_worker_under_way returns a key with a pending push or pull of this rank, or -1. hpc_worker_check_idle returns
 * HPC_ERR_INVALID if a push or pull is pending. */
int hpc_worker_under_way(const hpc_scheme *sc);
int hpc_worker_check_idle(const hpc_scheme *sc, const char *op);
/* hpc_worker_finish sends the rest of calls that were sent in part, and waits until all pushes are done and read.
 * hpc_worker_settle waits until this rank has applied the pushes of all ranks (HPC_ON_SETTLE). */
int hpc_worker_finish(hpc_scheme *sc, const char *op, double deadline);
int hpc_worker_settle(hpc_scheme *sc, double deadline, const char *op);

/* Applies the update of the last push, still in its slot, to this rank's copy, if the rule is sgd without state. */
void hpc_worker_add_own(hpc_scheme *sc, int key, const double *args);

#endif
