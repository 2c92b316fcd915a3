/* News of a core for other ranks and the user: the failure that has ended the exchange, answers, and counts. None of
 * these functions waits. */
#ifndef HPC_ANSWER_H
#define HPC_ANSWER_H

#include "engine/scheme.h"

/* Records the failure that ends the exchange; the first one counts. hpc_scheme_check tells the other ranks. */
void hpc_scheme_fail(hpc_scheme *sc, int status, const char *why);

/* Ends the exchange if status says that a put has failed. A worker that is gone needs no answer: ranks that wait for it
 * find out by themselves. */
void hpc_core_check_put(hpc_core *core, int status);

/* Puts bytes into rank's part by the core's lane. */
void hpc_core_put(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset);

/* Answers rank: stores value in its signal. */
void hpc_share_answer(hpc_core *core, int rank, int signal, uint64_t value);
/* The same behind bytes that are written into rank's part. */
void hpc_share_answer_with(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset, int signal,
                           uint64_t value);

/* Counts the bytes of rank's inputs to a share as received. hpc_row_count_received does it by rows instead. */
void hpc_share_count_received(const hpc_scheme *sc, const hpc_share *share, int rank);
/* Counts a fold of a share whose n inputs of others were all whole. */
void hpc_share_count_fold(hpc_core *core, int n);
/* Makes room for these counts. less: inputs of each row that do not count. */
int hpc_share_open_counts(hpc_scheme *sc, int less, const char *op);

/* ---- signals: closed by each rank, args seen by each core, then one or two a share ---- */

/* Values of a closed signal: the rank pushes nothing more; it answers nothing more either. */
enum { HPC_CLOSED = 1, HPC_FREED = 2 };

static inline int hpc_signal_closed(int rank) {
    return rank;
}
static inline int hpc_signal_applied(const hpc_scheme *sc, int share) {
    return sc->context->group.size + sc->layout.n_cores + share;
}
static inline int hpc_signal_second(const hpc_scheme *sc, int share) { /* of a pull, or HPC_DECIDES */
    return hpc_signal_applied(sc, share) + sc->layout.n_shares;
}
/* The closed signal of rank: HPC_CLOSED, HPC_FREED or 0. acquire: everything that it put before is there. */
static inline uint64_t hpc_closed_signal(const hpc_scheme *sc, int rank) {
    return atomic_load_explicit(hpc_own_signal(sc->window, hpc_signal_closed(rank)), memory_order_acquire);
}

#endif
