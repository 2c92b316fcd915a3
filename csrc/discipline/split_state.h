/* BSP in two calls: the interface between the worker's side and the owner's side (split.c explains it). */
#ifndef HPC_SPLIT_STATE_H
#define HPC_SPLIT_STATE_H

#include <math.h>

#include "engine/discipline.h"
#include "engine/scheme.h"
#include "engine/owner/row.h"

/* The slot field of a pull's event holds its use and, in the higher bits, low bits of the number of the fold before the
 * pull. At most one fold has not come yet when the pull comes, so these bits suffice. */
enum { HPC_SPLIT_USE_BITS = 2, HPC_SPLIT_FOLDS = 8 };

#define HPC_SPLIT_UNKNOWN (-1.0) /* instead of a sum of squares */

/* A worker's next pull of a key. */
typedef struct hpc_split_ask {
    hpc_use use;
    double scale;
    int keeps;       /* set if the owners have a mean that was neither applied nor skipped */
    int ended;       /* with a quorum: 2 if the last fold was applied, 1 if not; 0 if the encoders were told */
    int gathers;     /* with a quorum: set if the last pull is a gather, which may have found no mean */
    int first, last; /* the first and the last share of the key */
} hpc_split_ask;

/* The scheme's state. */
typedef struct hpc_split {
    /* Returns the inputs of a kept fold; NULL: split_owner.c finds them. */
    hpc_inputs (*inputs)(hpc_core *core, const hpc_work *w);
    hpc_split_ask *asks; /* by key */
    size_t *squares_at;  /* by share: an offset behind hpc_place.own of a worker */
    char *counts;        /* by row: whether this rank adds the row's squares, since the row has its mean */
} hpc_split;

/* A share's state, at its owner. */
typedef struct hpc_split_means {
    const int *askers; /* the ranks that pull: all members of the share; among peers only the share's owner */
    int n_askers;
    double *squares; /* by row of the share, of the present mean; puts of the answer read them */
    int squared;     /* set after the first call of squares: from then on they are computed with each fold */
    int *ready;      /* rows of the present fold that have all inputs, as indices into the share */
    int n_ready, n_folded, n_ahead; /* n_ahead: how many rows in ready were checked for an early apply */
    int kept;                /* set if the last fold is complete and not over, so its inputs are in their slots */
    int slot;                /* the slot of the present fold */
    _Atomic uint64_t n_over; /* how many folds are over: applied, skipped, or replaced by the next one */
    _Atomic char *used;      /* by rank: its pull has come */
    int n_used, n_finished;  /* n_used: pulls that have come; n_finished: rows that have carried them out, */
    char *finished;          /* the same by row, */
    int next;                /* and the first row that may not be done */
    hpc_use use;             /* the use that the pulls ask for */
    int folds;               /* the low bits of the number of folds before the pulls */
    uint64_t answered;       /* pulls that were answered */
    int owes;                /* set if the fold is answered together with the workers' pulls */
} hpc_split_means;

/* Slots of the worker, which a quorum uses too. */
int hpc_split_check(const hpc_context *c, const hpc_exchange_config *f);
int hpc_split_plan(hpc_scheme *sc, hpc_split *its, const char *op);
/* hpc_split_plan_own allocates nbytes for the scheme's state, whose first member must be an hpc_split; if fold and
 * apply are two calls, it then calls hpc_split_plan. hpc_split_plan_alone does the same for a state that is only an
 * hpc_split. */
int hpc_split_plan_own(hpc_scheme *sc, size_t nbytes, const char *op);
int hpc_split_plan_alone(hpc_scheme *sc, const char *op);
int hpc_split_may_push(hpc_scheme *sc, int key, const char *op);
int hpc_split_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
int hpc_split_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op);
int hpc_split_ask_share(hpc_scheme *sc, int s, hpc_limit *l);
/* The hooks of disciplines in which each rank decides alone. */
enum { HPC_SPLIT_MOMENTS = HPC_ON_ENCODE | HPC_ON_SENT | HPC_ON_ASKED | HPC_ON_FINISH };
int hpc_split_ends_pull(hpc_scheme *sc, int key);
#define HPC_SPLIT_PACE                                                                                                 \
    .may_push = hpc_split_may_push, .wait_slot = hpc_split_wait_slot, .moments = HPC_SPLIT_MOMENTS,                    \
    .note = hpc_split_note, .ends = hpc_split_ends_pull, .ask = hpc_split_ask_share
void hpc_split_asked(hpc_scheme *sc, int key);
int hpc_split_set_use(hpc_scheme *sc, int key, hpc_use use, double scale, const char *op);
double hpc_split_squares(const hpc_scheme *sc, int key); /* of rows whose squares are known */

extern const hpc_mean_use hpc_split_use;

static inline hpc_split_ask *hpc_split_ask_of(const hpc_scheme *sc, int key) {
    return &((const hpc_split *)sc->own)->asks[key];
}
static inline uint64_t hpc_split_last_pull(const hpc_scheme *sc, int key) {
    return 2 * sc->keys[key].pulls + HPC_PULL_TICKET;
}

/* Returns the scale and the rule's arguments of a pull, in the memory from which they are sent. The pull's first share
 * writes them. */
const double *hpc_split_args(const hpc_scheme *sc, int key);
/* Waits for the last push and the last pull of a key. */
int hpc_split_wait_over(hpc_scheme *sc, int key, hpc_limit *l, const char *op);

/* Returns whether each rank's core serves only its own worker. */
static inline int hpc_split_among_peers(const hpc_scheme *sc) {
    return (sc->discipline->traits & (HPC_KEEPS_INPUTS | HPC_KEEPS_MEANS)) != 0;
}
static inline int hpc_split_keeps_means(const hpc_scheme *sc) {
    return (sc->discipline->traits & HPC_KEEPS_MEANS) != 0;
}

/* Returns the action of a share's rows, which all have the same. */
static inline int hpc_split_action(const hpc_scheme *sc, const hpc_share *share) {
    return sc->plan->rows[share->rows[0]].action;
}

/* ---- the owner (split_owner.c) ---- */

int hpc_split_open_owner(hpc_scheme *sc, const char *op);
void hpc_split_open_relays(const hpc_scheme *sc); /* makes folds never wait for relays */
/* Takes memory for the squares of each row of a share. */
int hpc_split_open_squares(hpc_scheme *sc, const hpc_share *share, hpc_split_means *m, const char *op);
/* Called when a row has its inputs: drops the last mean; a core with a thread computes the next mean at once. Returns
 * nonzero if a user's fold has failed. */
int hpc_split_begin_row(hpc_core *core, hpc_work *w, double *squares);
/* Carries out a pull for a row. sender: the only sender that gets the parameters or the mean, or HPC_EVERYBODY. args:
 * the scale, then the arguments of the rule. Returns nonzero if the exchange has failed. */
int hpc_split_use_row(hpc_core *core, hpc_work *w, hpc_use use, int sender, const double *args, double *squares);
/* Called when a relay's input has come: parameters that an owner sends in answer to pulls, or an event without
 * parameters (how is HPC_CAME_EMPTY). */
void hpc_split_relayed_came(hpc_core *core, hpc_work *w, int how);
/* Fail the exchange because two ranks have made different calls, or have given different scales. */
void hpc_split_fail_use(hpc_scheme *sc, const hpc_share *share, const int ranks[2], const hpc_use uses[2]);
void hpc_split_fail_scale(hpc_scheme *sc, const hpc_share *share, const int ranks[2], const double scales[2]);
/* Returns the offset in a worker's part at which the owner of share s writes the squares. */
static inline size_t hpc_split_squares_at(const hpc_scheme *sc, int rank, int s) {
    return sc->layout.places[rank].own + ((const hpc_split *)sc->own)->squares_at[s];
}
/* Returns the squares of a share as its owner has told them. */
static inline const double *hpc_split_squares_of(const hpc_scheme *sc, int s) {
    return (const double *)(const void *)(hpc_own_part(sc) + hpc_split_squares_at(sc, sc->context->group.rank, s));
}
static inline int hpc_split_scales_agree(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}
/* Called by the worker: ends the last fold of a share of this rank if it is complete and not over. */
void hpc_split_drop(hpc_scheme *sc, hpc_share *share);
/* For HPC_KEEPS_MEANS. hpc_split_open_means opens this rank's shares. hpc_split_keep_row keeps the mean of a row's
 * fold; a pull brings the rule's arguments later. hpc_split_keep is called when all rows of a share are folded, and
 * carries out a pull that came before. */
int hpc_split_open_means(hpc_scheme *sc, const char *op);
int hpc_split_keep_row(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);
void hpc_split_keep(hpc_core *core, hpc_share *share);
/* Slots of hpc_discipline. */
int hpc_split_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_split_other_came(hpc_core *core, hpc_share *share, const hpc_event *event);
int hpc_split_work(hpc_core *core);

#endif
