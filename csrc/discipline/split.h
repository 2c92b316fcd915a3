/* BSP in two calls: the state of its worker and of its owner, and their slots (split.c says how it works). */
#ifndef HPC_SPLIT_H
#define HPC_SPLIT_H

#include "engine/discipline.h"

/* A pull's event says what it asks for, and, in the bits above, which fold it comes after: at most one is missing. */
enum { HPC_SPLIT_USE_BITS = 2, HPC_SPLIT_FOLDS = 8 };

/* A worker's next pull of a key. */
typedef struct hpc_split_ask {
    hpc_use use;
    double scale;
    double unit, kept_unit; /* of the updates; of what encoders have kept of them */
    int keeps;              /* the owners have a mean that was neither applied nor skipped */
    float *gathered;        /* among peers: the mean that was gathered last; NULL: none was */
    int first, last;        /* of the shares of the key */
} hpc_split_ask;

/* The engine's own. */
typedef struct hpc_split {
    hpc_split_ask *asks; /* by key */
    size_t *squares_at;  /* by share: bytes in hpc_place.own of a worker */
    char *counts;        /* by row: its squares count; where several apply the same elements, the first one's do */
} hpc_split;

/* A share's own. */
typedef struct hpc_split_means {
    double *squares;                /* by row, of the present mean; what puts of the answer read */
    int squared;                    /* means are asked for their squares, so these are made with each fold */
    char *how;                      /* by row and input: how it came to the present fold */
    int most_inputs;                /* of a row */
    hpc_work **ready;               /* the rows whose inputs are all there, of the present fold */
    int n_ready, n_folded, n_ahead; /* the last: rows of these that were looked at for an apply ahead */
    _Atomic char *used;             /* by rank: its pull has come */
    int n_used, n_finished;         /* pulls that have come; rows that are done with them, */
    char *finished;                 /* which by place, */
    int next;                       /* and the first that may not be */
    hpc_use use;                    /* of the pulls */
    int folds;                      /* that the pulls come after, by their low bits */
    uint64_t answered;              /* pulls */
    int owes;                       /* workers hear of the fold with the answer to the pulls */
} hpc_split_means;

/* The action of all rows of a share, which is the same. */
static inline int hpc_split_action(const hpc_engine *en, const hpc_share *share) {
    return en->plan->rows[share->rows[0]].action;
}

/* How an input came: hpc_work.came has one of these. Empty: its worker has no gradient. */
enum { HPC_CAME = 1, HPC_CAME_EMPTY = 2 };

/* The number of a row in its share, whose rows are in rising order. */
static inline int hpc_split_place(const hpc_share *share, int row) {
    int low = 0, high = share->n_rows - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (share->rows[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- the worker (split_worker.c) ---- */

/* hpc_opening's slots; free_worker frees what prepare and open_shares have opened. */
int hpc_split_prepare(hpc_engine *en, const hpc_exchange_config *config, const char *op);
size_t hpc_split_part(const hpc_engine *en, int rank);
int hpc_split_open_shares(hpc_engine *en, const char *op);
void hpc_split_free_worker(hpc_engine *en);
/* hpc_discipline's slots. */
int hpc_split_may_push(hpc_engine *en, int key, const char *op);
int hpc_split_wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op);
int hpc_split_send_share(hpc_engine *en, int s, int slot, hpc_limit *l);
int hpc_split_pushed(hpc_engine *en, int key);
int hpc_split_awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks);
void hpc_split_begin_fold(hpc_engine *en, int key);
/* hpc_pulling's slots. */
int hpc_split_ends_pull(hpc_engine *en, int key);
int hpc_split_ask_share(hpc_engine *en, int s, hpc_limit *l);
void hpc_split_asked(hpc_engine *en, int key);
/* hpc_splitting's slots. */
int hpc_split_set_use(hpc_engine *en, int key, hpc_use use, double scale, const char *op);
double hpc_split_squares(const hpc_engine *en, int key);
void hpc_split_set_unit(hpc_engine *en, int key, double unit);
double hpc_split_unit(const hpc_engine *en, int key);

/* ---- the owner (split_owner.c) ---- */

/* hpc_opening.open, and what frees that. */
int hpc_split_open_owner(hpc_engine *en, const char *op);
void hpc_split_free_owner(hpc_engine *en);
/* hpc_discipline's slots. */
int hpc_split_share_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_split_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_split_other_came(hpc_core *core, const hpc_event *event);
int hpc_split_work(hpc_core *core);

#endif
