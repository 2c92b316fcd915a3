/* What a push or a pull waits for, and whom. A ticket is 2 * number, plus HPC_PULL_TICKET for a pull that owners answer
 * by itself. */
#ifndef HPC_TICKET_H
#define HPC_TICKET_H

#include "engine/engine.h"

enum { HPC_PULL_TICKET = 1 };

/* A deadline that costs a look at the clock only when something has to wait. */
typedef struct hpc_limit {
    double timeout, deadline; /* deadline 0: not needed yet */
} hpc_limit;

double hpc_limit_left(const hpc_exchange *ex, hpc_limit *l);

/* HPC_OK, or the failure that has ended the exchange, after which the context is aborted. */
int hpc_exchange_check(hpc_exchange *ex, const char *op);
/* HPC_OK when the trainer may push or pull key. */
int hpc_worker_check_call(hpc_exchange *ex, int key, const char *op);

/* Whether the parameters of that push are there; whether its slot may be written again. */
int hpc_ticket_is_done(const hpc_exchange *ex, int key, uint64_t ticket);
int hpc_ticket_is_free(const hpc_exchange *ex, int key, uint64_t ticket);
int hpc_ticket_wait(hpc_exchange *ex, int key, uint64_t ticket, double timeout, const char *op);
int hpc_ticket_wait_slot(hpc_exchange *ex, int key, uint64_t ticket, double timeout, const char *op);
/* One look at it, which works for this rank's rows too: HPC_OK, HPC_IN_PROGRESS or a failure. */
int hpc_ticket_test(hpc_exchange *ex, int key, uint64_t ticket, const char *op);
/* The push has ended: how long it took counts in what is usual. HPC_ERR_PEER when nobody will ever fold it. */
int hpc_ticket_end(hpc_exchange *ex, int key, uint64_t ticket, const char *op);
/* An owner that was freed before it answered, else -1; and the failure that says so. */
int hpc_ticket_freed(const hpc_exchange *ex, int key, uint64_t ticket);
int hpc_fail_freed(const hpc_exchange *ex, int rank, int key, const char *op);

/* ---- what disciplines tell of by hpc_discipline.awaited ---- */

/* Whether a share has answered a ticket. acquire: what its owner read and wrote before is behind us. */
int hpc_share_has_answered(const hpc_exchange *ex, int share, uint64_t ticket);
/* Of a share of this rank's own: the first fold that is still to come. */
uint64_t hpc_share_next_fold(const hpc_exchange *ex, int s);
/* Whether rank pushes key, and others therefore wait for it. */
int hpc_pushes_key(const hpc_exchange *ex, int rank, int key);
/* How often rank has pushed key, where its memory can be read here; else UINT64_MAX. */
uint64_t hpc_pushes_of(const hpc_exchange *ex, int rank, int key);
/* How often it had when it closed. */
uint64_t hpc_closing_count(const hpc_exchange *ex, int rank, int key);
/* ranks with rank, n of them before; how many now. */
int hpc_add_rank(int *ranks, int n, int rank);
/* ranks with the owners of the shares of key that have not answered a ticket. */
int hpc_silent_owners(const hpc_exchange *ex, int key, uint64_t ticket, int *ranks, int n);

#endif
