/* Tickets: the waits of pushes and pulls, and the ranks that they wait for. */
#ifndef HPC_WAITS_H
#define HPC_WAITS_H

#include "engine/scheme.h"

double hpc_limit_left(const hpc_scheme *sc, hpc_limit *l);

/* Returns the timeout, in seconds, of a call on a key that was given a negative timeout. usual is how long a push
 * usually takes, in seconds (hpc_exchange_config.patience). */
double hpc_learned_timeout(const hpc_scheme *sc, double usual);

/* Both return HPC_OK or, if the exchange has failed, abort the context and return the failure. hpc_scheme_tell is the
 * slow part, for when something may be wrong. */
int hpc_scheme_tell(hpc_scheme *sc, const char *op);
static inline int hpc_scheme_check(hpc_scheme *sc, const char *op) {
    const hpc_group *g = &sc->context->group;
    const int trouble = atomic_load_explicit(&sc->fault.failed, memory_order_acquire) |
                        atomic_load_explicit(&g->closed, memory_order_relaxed) |
                        atomic_load_explicit(&g->revoked, memory_order_acquire);
    return !trouble && hpc_group_is_mine(g) ? HPC_OK : hpc_scheme_tell(sc, op);
}
/* Returns HPC_OK if the trainer may push or pull key, or the error. */
int hpc_worker_check_call(hpc_scheme *sc, int key, const char *op);

/* Called at every look of a wait: calls hpc_pace.note of each scheme of the exchange with HPC_ON_LOOK, because other
 * ranks may wait for any scheme. If a note fails, the exchange ends and the context is closed, which ends the wait. */
void hpc_worker_progress(hpc_scheme *sc);
/* Sends all events that starts of any scheme of the exchange have kept back, because other ranks wait for them. */
void hpc_worker_uncork(hpc_scheme *sc);

/* hpc_ticket_is_done returns whether the parameters of a ticket have come. hpc_ticket_is_free returns whether the slot
 * of the ticket's push may be written again. */
int hpc_ticket_is_done(const hpc_scheme *sc, int key, uint64_t ticket);
int hpc_ticket_is_free(const hpc_scheme *sc, int key, uint64_t ticket);
int hpc_ticket_wait(hpc_scheme *sc, int key, uint64_t ticket, double timeout, const char *op);
int hpc_ticket_wait_slot(hpc_scheme *sc, int key, uint64_t ticket, double timeout, const char *op);
/* Looks at a ticket once, and works for this rank's rows. Returns HPC_OK, HPC_IN_PROGRESS or a failure. */
int hpc_ticket_test(hpc_scheme *sc, int key, uint64_t ticket, const char *op);
/* Notes that a push has ended, decodes its parameters, and updates the estimate of a push's duration. Returns
 * HPC_ERR_PEER if the push will never be folded. */
int hpc_ticket_end(hpc_scheme *sc, int key, uint64_t ticket, const char *op);
/* hpc_ticket_freed returns an owner that was freed before it answered the ticket, or -1. hpc_fail_freed records such an
 * owner as a failure. */
int hpc_ticket_freed(const hpc_scheme *sc, int key, uint64_t ticket);
int hpc_fail_freed(const hpc_scheme *sc, int rank, int key, const char *op);

/* Record the error of a refused call on a fold: the last call was sent only in part; no fold is kept; a scale is
 * infinite. */
int hpc_fail_cut_short(const hpc_scheme *sc, int key, const char *op);
int hpc_fail_no_fold(const hpc_scheme *sc, int key, const char *op);
int hpc_fail_scale(const hpc_scheme *sc, int key, double scale, const char *op);

/* Writes into ranks the ranks whose updates of a key (-1: of any key) this rank lacks, and returns how many ranks these
 * are. If ranks is NULL, only returns whether updates are lacking. */
typedef int hpc_lacking(const hpc_scheme *sc, int key, int *ranks);
/* Waits until no update is lacking, and works for this rank's rows meanwhile. */
int hpc_wait_lacking(hpc_scheme *sc, int key, hpc_lacking *lacking, hpc_limit *l, const char *op);

/* ---- helpers of hpc_pace.is_late and missing ---- */

/* Returns the number of this rank's push that a ticket waits for; a pull's ticket waits for the last push. */
uint64_t hpc_push_of(const hpc_scheme *sc, int key, uint64_t ticket);

/* Returns whether a share has answered a ticket. The acquire orders its owner's reads and writes before the answer. */
int hpc_share_has_answered(const hpc_scheme *sc, int share, uint64_t ticket);
/* Returns the number of the next fold of a share that this rank owns. */
uint64_t hpc_share_next_fold(const hpc_scheme *sc, int s);
/* Returns whether rank pushes key, so that other ranks wait for it. */
int hpc_pushes_key(const hpc_scheme *sc, int rank, int key);
/* Returns how often rank has pushed key; UINT64_MAX if rank's memory is not mapped on this rank. */
uint64_t hpc_pushes_of(const hpc_scheme *sc, int rank, int key);
/* Returns how often rank had pushed key when it closed. */
uint64_t hpc_closing_count(const hpc_scheme *sc, int rank, int key);
/* Returns whether rank has left the job without telling that it closes. */
static inline int hpc_has_left(const hpc_scheme *sc, int rank) {
    return atomic_load_explicit(&sc->context->group.states[rank], memory_order_acquire) == HPC_PEER_LEFT;
}
/* Adds rank to the n ranks unless it is among them. Returns the new number of ranks. */
int hpc_add_rank(int *ranks, int n, int rank);
/* Adds the workers that left without closing and whose pushes other owners may wait for. */
int hpc_add_left(const hpc_scheme *sc, int key, uint64_t ticket, int *ranks, int n);

#endif
