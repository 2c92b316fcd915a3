/* Clocks: the owner of a share (all rows of one key on one core; a row is a chunk as its owner folds it) keeps a table
 * of the senders of the share's updates. A sender is a rank; with several stages it is a group of ranks whose updates
 * are folded first, and the group's lowest rank stands for it. From the table a discipline reads how many updates of
 * each sender have come, were applied and were answered, which sender is behind, and which answers wait for updates of
 * other senders.
 *
 * A sender's *clock* is the number of its updates since the last publish (the collective step in which owners send
 * parameters to all). Only the share's core writes the table. Other threads read the atomic members: a wait, without
 * memory order, to name ranks; settle and publish, after an acquire. Publish writes base, while the core is paused. */
#ifndef HPC_CLOCKS_H
#define HPC_CLOCKS_H

#include "engine/counts.h"
#include "engine/scheme.h"

typedef struct hpc_clock {
    _Atomic uint64_t came;    /* updates that have come in all rows */
    _Atomic uint64_t applied; /* updates that all rows have applied */
    uint64_t base;            /* how many updates came before the last publish */
    uint64_t answered;        /* updates that were answered, so their slots are free */
    /* asked: pulls that have come; at: the sender's clock at its last pull, or at the parked update */
    uint64_t asked, at;
    uint64_t told; /* the value that is sent with the last answer; a put may still read it */
    int rows;      /* rows in which the present update has come, or was applied; 0 between updates */
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

/* hpc_clocked_open makes the views of this rank's cores. hpc_clocks_open does that too, and makes the table of each
 * share of this rank whose rows apply the rule. */
int hpc_clocked_open(hpc_scheme *sc, const char *op);
int hpc_clocks_open(hpc_scheme *sc, const char *op);

/* Return how many updates of a sender have come, or were applied, since the last publish. */
static inline uint64_t hpc_clock_came(const hpc_clock *clock) {
    return atomic_load_explicit(&clock->came, memory_order_relaxed) - clock->base;
}
static inline uint64_t hpc_clock_applied(const hpc_clock *clock) {
    return atomic_load_explicit(&clock->applied, memory_order_relaxed) - clock->base;
}

/* Counts a row of the sender's present update; returns whether it was the last one. */
static inline int hpc_clock_row(hpc_clock *clock, const hpc_share *share) {
    if (++clock->rows < share->n_rows) return 0;
    clock->rows = 0;
    return 1;
}

/* Returns clock minus the staleness of the configuration, but at least 0. */
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
/* For each share of this rank: raises *pushes to the number of rank's pushes that the share has begun to apply or to
 * sum, if that is more. */
void hpc_clocks_raise_begun(const hpc_scheme *sc, int rank, uint64_t *pushes);
/* Called by publish: sets all clocks to 0. No rank has a push or pull pending. */
void hpc_clocks_level(hpc_scheme *sc);

/* Called by publish on all ranks: writes how often each rank has pushed each key into last[key * size + rank]. */
int hpc_clocks_learn_pushes(hpc_scheme *sc, uint64_t *last, const char *op, double deadline);

#endif
