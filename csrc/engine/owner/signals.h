/* Functions by which a core reports to other ranks and to the user: failures that end the exchange, answers, and
 * counts. None of these functions waits. */
#ifndef HPC_SIGNALS_H
#define HPC_SIGNALS_H

#include "engine/scheme.h"

/* Records the failure that ends the exchange; later failures are ignored. hpc_scheme_check tells the other ranks. */
void hpc_scheme_fail(hpc_scheme *sc, int status, const char *why);
/* The same with this thread's last error, which had this status. */
void hpc_scheme_fail_as_told(hpc_scheme *sc, int status);

/* Ends the exchange if status, which a put returned, is an error. HPC_ERR_PEER is ignored: a worker that is gone needs
 * no answer, and the waits of other ranks find that it is gone. */
void hpc_core_check_put(hpc_core *core, int status);

/* Puts bytes into rank's part by the core's lane out. */
void hpc_core_put(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset);

/* Answers rank: stores value in its signal. */
void hpc_share_answer(hpc_core *core, int rank, int signal, uint64_t value);
/* Answers rank as hpc_share_answer does, after it has put nbytes from src into rank's part. */
void hpc_share_answer_with(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset, int signal,
                           uint64_t value);

/* Counts the bytes of rank's inputs to a share as received. hpc_row_count_received does so for one row. */
void hpc_share_count_received(const hpc_scheme *sc, const hpc_share *share, int rank);
/* Counts a fold of a share that took n whole inputs of other ranks. */
void hpc_share_count_fold(hpc_core *core, int n);
/* Allocates the counts of hpc_share_count_fold. less: how many inputs of each row are not counted. */
int hpc_share_open_counts(hpc_scheme *sc, int less, const char *op);

/* ---- the numbers of signals: one signal for each rank (closed), one for each core (arguments seen), then one or two
 * for each share ---- */

/* Values of a closed signal. HPC_CLOSED: the rank pushes nothing more. HPC_FREED: it also answers nothing more. */
enum { HPC_CLOSED = 1, HPC_FREED = 2 };

static inline int hpc_signal_closed(int rank) {
    return rank;
}
static inline int hpc_signal_applied(const hpc_scheme *sc, int share) {
    return sc->context->group.size + sc->layout.n_cores + share;
}
static inline int hpc_signal_second(const hpc_scheme *sc, int share) { /* of a pull, or of HPC_DECIDES */
    return hpc_signal_applied(sc, share) + sc->layout.n_shares;
}
/* Returns the closed signal of rank: HPC_CLOSED, HPC_FREED, or 0 if rank has not closed. The acquire orders rank's puts
 * before its signal before this rank's later loads. */
static inline uint64_t hpc_closed_signal(const hpc_scheme *sc, int rank) {
    return atomic_load_explicit(hpc_own_signal(sc->window, hpc_signal_closed(rank)), memory_order_acquire);
}

#endif
