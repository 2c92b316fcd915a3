/* BSP in two calls: what its worker and its owners share (split.c says how it works). */
#ifndef HPC_SPLIT_H
#define HPC_SPLIT_H

#include "engine/discipline.h"

/* A pull's event says what it asks for, and, in the bits above, which fold it comes after: at most one is missing. */
enum { HPC_SPLIT_USE_BITS = 2, HPC_SPLIT_FOLDS = 8 };

/* A worker's next pull of a key. */
typedef struct hpc_split_ask {
    hpc_use use;
    double scale;
    int keeps;       /* the owners have a mean that was neither applied nor skipped */
    int first, last; /* of the shares of the key */
} hpc_split_ask;

/* The engine's own. */
typedef struct hpc_split {
    hpc_split_ask *asks; /* by key */
    size_t *squares_at;  /* by share: bytes in hpc_place.own of a worker */
    char *counts; /* by row: its squares count; where several apply the same elements: the first, or this rank's */
} hpc_split;

/* A share's own, at its owner. */
typedef struct hpc_split_means {
    const int *askers; /* the ranks that pull: all its members, or among peers its owner alone */
    int n_askers;
    double *squares;                /* by place, of the present mean; what puts of the answer read */
    int squared;                    /* means are asked for their squares, so these are made with each fold */
    int *ready;                     /* places of the rows whose inputs are all there, of the present fold */
    int n_ready, n_folded, n_ahead; /* the last: rows of these that were looked at for an apply ahead */
    int kept;                       /* the last fold is complete, and not over: its inputs are in their slots */
    int slot;                       /* of the fold at hand */
    _Atomic uint64_t n_over;        /* folds that are over: applied, skipped, or replaced by the next one */
    _Atomic char *used;             /* by rank: its pull has come */
    int n_used, n_finished;         /* pulls that have come; rows that are done with them, */
    char *finished;                 /* which by place, */
    int next;                       /* and the first that may not be */
    hpc_use use;                    /* of the pulls */
    int folds;                      /* that the pulls come after, by their low bits */
    uint64_t answered;              /* pulls */
    int owes;                       /* workers hear of the fold with the answer to the pulls */
} hpc_split_means;

/* Each rank's own core uses what its own worker says. */
static inline int hpc_split_among_peers(const hpc_engine *en) {
    return (en->discipline->traits & HPC_KEEPS_INPUTS) != 0;
}

/* The action of all rows of a share, which is the same. */
static inline int hpc_split_action(const hpc_engine *en, const hpc_share *share) {
    return en->plan->rows[share->rows[0]].action;
}

/* ---- the owner (split_owner.c) ---- */

int hpc_split_open_owner(hpc_engine *en, const char *op);
/* Ends the last fold of a share of this rank, if it is complete and not over. By the worker. */
void hpc_split_drop(hpc_engine *en, hpc_share *share);
/* hpc_discipline's slots. */
int hpc_split_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_split_other_came(hpc_core *core, hpc_share *share, const hpc_event *event);
int hpc_split_work(hpc_core *core);

#endif
