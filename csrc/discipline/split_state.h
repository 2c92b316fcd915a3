/* BSP in two calls: the interface between its worker and its owners (split.c says how it works). */
#ifndef HPC_SPLIT_STATE_H
#define HPC_SPLIT_STATE_H

#include <math.h>

#include "engine/discipline.h"
#include "engine/scheme.h"
#include "engine/owner/row.h"

/* A pull's event names its use, and, in the bits above, the fold that it comes after: at most one is missing. */
enum { HPC_SPLIT_USE_BITS = 2, HPC_SPLIT_FOLDS = 8 };

#define HPC_SPLIT_UNKNOWN (-1.0) /* a sum of squares */

/* A worker's next pull of a key. */
typedef struct hpc_split_ask {
    hpc_use use;
    double scale;
    int keeps;       /* the owners have a mean that was neither applied nor skipped */
    int ended;       /* with a quorum: 1 + whether it was applied, for the encoders; 0: they have been told */
    int gathers;     /* likewise: the last pull is a gather, which may have found no mean */
    int first, last; /* of the shares of the key */
} hpc_split_ask;

/* The scheme's own. */
typedef struct hpc_split {
    hpc_inputs (*inputs)(hpc_core *core,
                         const hpc_work *w); /* of a fold that is kept; NULL: split_owner.c knows them */
    hpc_split_ask *asks;                     /* by key */
    size_t *squares_at;                      /* by share: bytes in hpc_place.own of a worker */
    char *counts;                            /* by row: its squares count, as the mean is this rank's */
} hpc_split;

/* A share's own, at its owner. */
typedef struct hpc_split_means {
    const int *askers; /* the ranks that pull: all its members, or among peers its owner alone */
    int n_askers;
    double *squares;                /* by place, of the present mean; puts of the answer read them */
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

/* The worker's slots, which are the same with a quorum. */
int hpc_split_check(const hpc_context *c, const hpc_exchange_config *f);
int hpc_split_plan(hpc_scheme *sc, hpc_split *its, const char *op);
/* The same for a scheme's own of nbytes, of which an hpc_split is the first; it is taken too. Without two calls
 * nothing else is. hpc_split_plan_alone: an hpc_split is all. */
int hpc_split_plan_own(hpc_scheme *sc, size_t nbytes, const char *op);
int hpc_split_plan_alone(hpc_scheme *sc, const char *op);
int hpc_split_may_push(hpc_scheme *sc, int key, const char *op);
int hpc_split_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
int hpc_split_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op);
int hpc_split_ask_share(hpc_scheme *sc, int s, hpc_limit *l);
enum { HPC_SPLIT_MOMENTS = HPC_ON_ENCODE | HPC_ON_SENT | HPC_ON_ASKED | HPC_ON_FINISH }; /* where each decides alone */
int hpc_split_ends_pull(hpc_scheme *sc, int key);
void hpc_split_asked(hpc_scheme *sc, int key);
int hpc_split_set_use(hpc_scheme *sc, int key, hpc_use use, double scale, const char *op);
double hpc_split_squares(const hpc_scheme *sc, int key); /* of the rows of which they are known */

extern const hpc_mean_use hpc_split_use;

static inline hpc_split_ask *hpc_split_ask_of(const hpc_scheme *sc, int key) {
    return &((const hpc_split *)sc->own)->asks[key];
}
static inline uint64_t hpc_split_last_pull(const hpc_scheme *sc, int key) {
    return 2 * sc->keys[key].pulls + HPC_PULL_TICKET;
}

/* The scale and the arguments of a pull, where they are sent from. A pull's first share writes them. */
const double *hpc_split_args(const hpc_scheme *sc, int key);
/* Waits for the last push and the last pull of a key. */
int hpc_split_wait_over(hpc_scheme *sc, int key, hpc_limit *l, const char *op);

/* Whether each rank's own core obeys its own worker alone. */
static inline int hpc_split_among_peers(const hpc_scheme *sc) {
    return (sc->discipline->traits & (HPC_KEEPS_INPUTS | HPC_KEEPS_MEANS)) != 0;
}
static inline int hpc_split_keeps_means(const hpc_scheme *sc) {
    return (sc->discipline->traits & HPC_KEEPS_MEANS) != 0;
}

/* The action of all rows of a share, which is the same. */
static inline int hpc_split_action(const hpc_scheme *sc, const hpc_share *share) {
    return sc->plan->rows[share->rows[0]].action;
}

/* ---- the owner (split_owner.c) ---- */

int hpc_split_open_owner(hpc_scheme *sc, const char *op);
void hpc_split_open_relays(const hpc_scheme *sc); /* a fold waits for no relay */
/* Takes a place for the squares of each row of a share. */
int hpc_split_open_squares(hpc_scheme *sc, const hpc_share *share, hpc_split_means *m, const char *op);
/* A row has its inputs: forgets the last mean. A core with a thread makes the next one now. */
int hpc_split_begin_row(hpc_core *core, hpc_work *w, double *squares);
/* Carries out a use of pulls for a row. sender: the only one to which parameters, or the mean, go; or HPC_EVERYBODY.
 * args: the scale, and the arguments of the rule. Nonzero when the exchange has failed. */
int hpc_split_use_row(hpc_core *core, hpc_work *w, hpc_use use, int sender, const double *args, double *squares);
/* A relay has its input: the parameters that an owner sends in answer to pulls, or (how) an event without any. */
void hpc_split_relayed_came(hpc_core *core, hpc_work *w, int how);
/* Ends the exchange: two ranks have made different calls, or have given different scales. */
void hpc_split_fail_use(hpc_scheme *sc, const hpc_share *share, const int ranks[2], const hpc_use uses[2]);
void hpc_split_fail_scale(hpc_scheme *sc, const hpc_share *share, const int ranks[2], const double scales[2]);
/* The place in a worker's part for the squares of a share. */
static inline size_t hpc_split_squares_at(const hpc_scheme *sc, int rank, int s) {
    return sc->layout.places[rank].own + ((const hpc_split *)sc->own)->squares_at[s];
}
/* The squares of a share as its owner has told them. */
static inline const double *hpc_split_squares_of(const hpc_scheme *sc, int s) {
    return (const double *)(const void *)(hpc_own_part(sc) + hpc_split_squares_at(sc, sc->context->group.rank, s));
}
static inline int hpc_split_scales_agree(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}
/* Ends the last fold of a share of this rank, if it is complete and not over. By the worker. */
void hpc_split_drop(hpc_scheme *sc, hpc_share *share);
/* HPC_KEEPS_MEANS. open_means: for this rank's shares. keep_row: keeps the mean of a row's fold; a pull brings the
 * rule's arguments. keep: all rows of a share are folded; carries out a pull that has come before. */
int hpc_split_open_means(hpc_scheme *sc, const char *op);
int hpc_split_keep_row(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);
void hpc_split_keep(hpc_core *core, hpc_share *share);
/* hpc_discipline's slots. */
int hpc_split_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_split_other_came(hpc_core *core, hpc_share *share, const hpc_event *event);
int hpc_split_work(hpc_core *core);

#endif
