/* Tickets: waits of a push or a pull, and the ranks that they wait for. */
#ifndef HPC_TICKET_H
#define HPC_TICKET_H

#include "engine/scheme.h"

double hpc_limit_left(const hpc_scheme *sc, hpc_limit *l);

/* A negative timeout of a call on a key, in seconds, where pushes usually take so long (hpc_exchange_config.patience).
 */
double hpc_learned_timeout(const hpc_scheme *sc, double usual);

/* HPC_OK, or the failure that has ended the exchange, after which the context is aborted. */
int hpc_scheme_check(hpc_scheme *sc, const char *op);
/* HPC_OK when the trainer may push or pull key. */
int hpc_worker_check_call(hpc_scheme *sc, int key, const char *op);

/* Does the worker's part of all schemes of the exchange (HPC_ON_LOOK), at every look of a wait of its
 * thread: other ranks may wait for any of them. A failure ends the exchange and closes the context, and so ends the
 * wait. */
void hpc_worker_progress(hpc_scheme *sc);
/* Sends the bytes that starts of any scheme of the exchange have kept back: others wait for them. */
void hpc_worker_uncork(hpc_scheme *sc);

/* Whether the parameters of a ticket's push are there; whether the slot of that push may be written again. */
int hpc_ticket_is_done(const hpc_scheme *sc, int key, uint64_t ticket);
int hpc_ticket_is_free(const hpc_scheme *sc, int key, uint64_t ticket);
int hpc_ticket_wait(hpc_scheme *sc, int key, uint64_t ticket, double timeout, const char *op);
int hpc_ticket_wait_slot(hpc_scheme *sc, int key, uint64_t ticket, double timeout, const char *op);
/* Looks at a ticket once, and works for this rank's rows too: HPC_OK, HPC_IN_PROGRESS or a failure. */
int hpc_ticket_test(hpc_scheme *sc, int key, uint64_t ticket, const char *op);
/* Notes that the push has ended, decodes parameters, and learns from the time that it took. HPC_ERR_PEER when it will
 * never be folded. */
int hpc_ticket_end(hpc_scheme *sc, int key, uint64_t ticket, const char *op);
/* An owner that was freed before it answered, else -1; the second function records that as a failure. */
int hpc_ticket_freed(const hpc_scheme *sc, int key, uint64_t ticket);
int hpc_fail_freed(const hpc_scheme *sc, int rank, int key, const char *op);

/* Refusals of calls on a fold: the last call has sent only a part; there is no fold; a scale is infinite. */
int hpc_fail_cut_short(const hpc_scheme *sc, int key, const char *op);
int hpc_fail_no_fold(const hpc_scheme *sc, int key, const char *op);
int hpc_fail_scale(const hpc_scheme *sc, int key, double scale, const char *op);

/* Writes the ranks whose updates this rank lacks of a key (-1: of all) into ranks; returns their number, 0: none is
 * lacking. With ranks NULL it only says whether some are. */
typedef int hpc_lacking(const hpc_scheme *sc, int key, int *ranks);
/* Waits until nothing is lacking, and works for this rank's rows meanwhile. */
int hpc_wait_lacking(hpc_scheme *sc, int key, hpc_lacking *lacking, hpc_limit *l, const char *op);

/* ---- helpers of hpc_pace.is_late and missing ---- */

/* The push of this rank that a ticket waits for; the ticket of a pull waits for the last push. */
uint64_t hpc_push_of(const hpc_scheme *sc, int key, uint64_t ticket);

/* Whether a share has answered a ticket. acquire: its owner's reads and writes before the answer have happened. */
int hpc_share_has_answered(const hpc_scheme *sc, int share, uint64_t ticket);
/* The number of the next fold of a share that this rank owns. */
uint64_t hpc_share_next_fold(const hpc_scheme *sc, int s);
/* Whether rank pushes key, and others therefore wait for it. */
int hpc_pushes_key(const hpc_scheme *sc, int rank, int key);
/* How often rank has pushed key, where its memory can be read here; else UINT64_MAX. */
uint64_t hpc_pushes_of(const hpc_scheme *sc, int rank, int key);
/* How often rank had pushed key when it closed. */
uint64_t hpc_closing_count(const hpc_scheme *sc, int rank, int key);
/* Whether rank has left the job without a word that it closes. */
static inline int hpc_has_left(const hpc_scheme *sc, int rank) {
    return atomic_load_explicit(&sc->context->group.states[rank], memory_order_acquire) == HPC_PEER_LEFT;
}
/* Adds rank to the n ranks, unless it is there; returns their number. */
int hpc_add_rank(int *ranks, int n, int rank);
/* Adds the workers that left without a word, and whose pushes other owners may wait for. */
int hpc_add_left(const hpc_scheme *sc, int key, uint64_t ticket, int *ranks, int n);

#endif
