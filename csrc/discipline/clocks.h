/* Clocks: a share's table of the senders of its updates, at its owner. A sender is a rank; with several stages it is a
 * group of ranks whose updates are folded first, and is known by its lowest rank. From the table a discipline reads how
 * many updates of each sender have come, are applied and answered, which sender is behind, and whose answer waits for
 * others.
 *
 * A sender's *clock* is the number of its updates since the last publish. The share's core alone writes the table.
 * Other threads read the atomic members: a wait without order, to name ranks, settle and publish behind an acquire.
 * base is written at publish, with the core paused. */
#ifndef HPC_CLOCKS_H
#define HPC_CLOCKS_H

#include "engine/counts.h"
#include "engine/scheme.h"

typedef struct hpc_clock {
    _Atomic uint64_t came;    /* updates that are there in all rows */
    _Atomic uint64_t applied; /* updates that all rows have applied */
    uint64_t base;            /* updates before the last publish */
    uint64_t answered;        /* updates, whose slots are free */
    uint64_t asked, at;       /* pulls that have come; the clock at the last of them, or at the update that is parked */
    uint64_t told;            /* behind the last answer, from where a put may still read it */
    int rows;                 /* rows of the present update that are there, or applied; 0 between updates */
    int slot;                 /* of the last update */
    int parked;               /* an answer waits for updates of others */
} hpc_clock;

/* A core's view of all its shares. */
typedef struct hpc_clocked {
    hpc_share **shares; /* that have a table */
    int n;
    int n_parked; /* answers, or versions, that wait, of all shares */
    int n_closed; /* ranks that had closed when the core looked last (hpc_core_sees_closed) */
} hpc_clocked;

/* Opens the views of this rank's cores; and the table of each of its shares whose rows apply. */
int hpc_clocked_open(hpc_scheme *sc, const char *op);
int hpc_clocks_open(hpc_scheme *sc, const char *op);

/* How often a sender's update has come (or is applied), since the last publish. */
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

/* A clock less the staleness that was asked for; 0 where that is more. */
static inline uint64_t hpc_clock_behind(const hpc_scheme *sc, uint64_t clock) {
    const uint64_t staleness = (uint64_t)sc->asked.staleness;
    return clock > staleness ? clock - staleness : 0;
}

/* Whether a sender may bring more: none of its ranks has closed. */
int hpc_sender_is_open(const hpc_scheme *sc, int key, int sender);
/* The smallest clock, of applied updates, of the open senders of a share; UINT64_MAX: none is open. */
uint64_t hpc_clocks_least(const hpc_scheme *sc, const hpc_share *share);
/* Whether more ranks have closed than when the core asked last. */
int hpc_core_sees_closed(hpc_core *core);
/* Raises *pushes to the most pushes of rank that a share of this rank has begun to apply, or to sum. */
void hpc_clocks_raise_begun(const hpc_scheme *sc, int rank, uint64_t *pushes);
/* Publish: all go on from one clock. No rank has a push or a pull pending. */
void hpc_clocks_level(hpc_scheme *sc);

/* Publish, collective: writes the pushes of each rank into last[key * size + rank]. */
int hpc_clocks_learn_pushes(hpc_scheme *sc, uint64_t *last, const char *op, double deadline);

#endif
