/* Clocks: the owner of a share (all rows of one key on one core; a row is a chunk as its owner folds it) keeps a table
 * of the senders of the share's updates. A sender is a rank; with several stages a sender is a group of ranks whose
 * updates are folded first, and has the number of the group's lowest rank. From the table a discipline reads how many
 * updates of each sender have come, were applied and were answered, which sender is behind, and which answers wait for
 * updates of other senders.
 *
 * A sender's *clock* is the number of its updates since the last publish (the collective step in which owners send
 * parameters to all). Only the share's core writes the table, except base: publish writes base while the core is
 * paused. Other threads read the atomic members. Waits read them relaxed, to name ranks; settle and publish read them
 * after an acquire. */
#ifndef HPC_CLOCKS_H
#define HPC_CLOCKS_H

#include "engine/counts.h"
#include "engine/scheme.h"

typedef struct hpc_clock {
    _Atomic uint64_t came;    /* updates that have come in all rows */
    _Atomic uint64_t applied; /* updates that all rows have applied */
    uint64_t base;            /* how many updates came before the last publish */
    uint64_t answered;        /* updates that were answered, so their slots are free */
    /* asked: how many pulls have come. at: the sender's clock at its last pull, or at the update whose answer is
     * parked */
    uint64_t asked, at;
    uint64_t told; /* the value that is sent with the last answer; a put may still read it */
    int rows;      /* in how many rows the present update has come, or was applied; 0 between updates */
    int slot;      /* the slot of the last update */
    int parked;    /* whether an answer to the sender waits for updates of other senders */
} hpc_clock;

/* A core's view of all its shares. */
typedef struct hpc_clocked {
    hpc_share **shares; /* the shares that have a table */
    int n;
    int n_parked; /* waiting answers, or waiting versions, of all shares */
    int n_closed; /* how many ranks had closed when the core looked last (hpc_core_sees_closed) */
} hpc_clocked;

/* hpc_clocked_open makes the hpc_clocked of each core of this rank. hpc_clocks_open also makes the table of each share
 * of this rank whose rows apply the rule. */
int hpc_clocked_open(hpc_scheme *sc, const char *op);
int hpc_clocks_open(hpc_scheme *sc, const char *op);

/* Return how many updates of a sender have come, or were applied, since the last publish. */
static inline uint64_t hpc_clock_came(const hpc_clock *clock) {
    return atomic_load_explicit(&clock->came, memory_order_relaxed) - clock->base;
}
static inline uint64_t hpc_clock_applied(const hpc_clock *clock) {
    return atomic_load_explicit(&clock->applied, memory_order_relaxed) - clock->base;
}

/* Counts a row of the sender's present update. Returns whether it was the update's last row. */
static inline int hpc_clock_row(hpc_clock *clock, const hpc_share *share) {
    if (++clock->rows < share->n_rows) return 0;
    clock->rows = 0;
    return 1;
}

/* Returns clock minus the configuration's staleness; 0 if that would be negative. */
static inline uint64_t hpc_clock_behind(const hpc_scheme *sc, uint64_t clock) {
    const uint64_t staleness = (uint64_t)sc->asked.staleness;
    return clock > staleness ? clock - staleness : 0;
}

/* Returns whether a sender may send more updates: none of its ranks has closed. */
int hpc_sender_is_open(const hpc_scheme *sc, int key, int sender);
/* Returns the smallest clock (of applied updates) of the open senders of a share; UINT64_MAX if no sender is open. */
uint64_t hpc_clocks_least(const hpc_scheme *sc, const hpc_share *share);
/* Returns whether more ranks have closed since the core's last call of this function. */
int hpc_core_sees_closed(hpc_core *core);
/* Raises *pushes to the largest number of rank's pushes that a share of this rank has begun to apply or to sum, if that
 * is more. */
void hpc_clocks_raise_begun(const hpc_scheme *sc, int rank, uint64_t *pushes);
/* Called by publish: sets all clocks to 0. No rank has a push or pull pending. */
void hpc_clocks_level(hpc_scheme *sc);

/* Called by publish on all ranks: writes how often each rank has pushed each key into last[key * size + rank]. */
int hpc_clocks_learn_pushes(hpc_scheme *sc, uint64_t *last, const char *op, double deadline);

#endif
