/* SSP where receivers apply the rule (updates_ssp.c says how it works): its state, and what its core does. */
#ifndef HPC_UPDATES_H
#define HPC_UPDATES_H

#include <stdlib.h>

#include "discipline/discipline.h"
#include "engine/clocks.h"

typedef struct hpc_version_note {
    uint64_t version, n_updates;
    double args[HPC_RULE_ARGS];
} hpc_version_note;

/* A row that forwards: a sum, or (below alone is used) one that passes on what has come. */
typedef struct hpc_summing {
    int *below, n_below;      /* the rows that apply what it sends, be it by way of others */
    _Atomic uint64_t *pushes; /* by input: how many have come */
    _Atomic uint64_t version; /* the last one that was closed */
    uint64_t sent;            /* how many sums were sent */
    _Atomic uint64_t waits;   /* the open version waits until receivers tell that they have this one; 0: it does not */
    int n_open;               /* updates in the open version */
    hpc_version_note *notes;  /* by slot */
    char *leaving;            /* by slot: sums, or their encodings */
    float *sum;               /* where sums are encoded */
} hpc_summing;

/* A row that applies, or (came alone is used) passes on. */
typedef struct hpc_receiving {
    uint64_t came, applied;
    _Atomic uint64_t version; /* the last one that was applied */
    int was_set;              /* since the last publish */
} hpc_receiving;

/* A share of rows that apply; of one that forwards only exchange is used. */
typedef struct hpc_receiver {
    const hpc_engine *engine;
    uint64_t asked, answered;
    uint64_t need;            /* the version that the next answer waits for */
    int below;                /* rows that are below it */
    int runs;                 /* applies what comes at once: nobody reads the parameters */
    _Atomic uint64_t version; /* the smallest version of the share's rows */
    _Atomic uint64_t told;    /* the last one that its sources were told */
    int *sources, n_sources;  /* ranks that forward to it, be it by way of others */
} hpc_receiver;

/* The exchange's own. */
typedef struct hpc_updates {
    hpc_summing *sums;       /* by row of this rank; of the one or the other kind */
    hpc_receiving *receives; /* likewise */
    size_t *note_at;         /* by row that takes versions: in its owner's part, bytes from hpc_place.own */
    uint64_t *base;          /* [key * size + rank]: a clock is the pushes less this, by wrapping arithmetic */
    uint64_t *last;          /* likewise, in a publish: the number of the last push */
    uint64_t *goal;          /* by key, in a publish: the version that all go on from */
    uint64_t *counted;       /* by key: the push whose staleness was counted last */
    uint64_t begun[HPC_PLAN_DEPTH];
    int levels; /* a publish is under way */
} hpc_updates;

/* A core's own. */
typedef struct hpc_closings {
    int n_closed;  /* ranks that had closed at its last look */
    int n_waiting; /* rows whose open version waits for slots */
} hpc_closings;

static inline hpc_updates *hpc_updates_of(const hpc_engine *en) {
    return en->own;
}

static inline hpc_summing *hpc_sum_of(const hpc_engine *en, const hpc_work *w) {
    return &hpc_updates_of(en)->sums[w - en->work];
}

static inline hpc_receiving *hpc_received_by(const hpc_engine *en, const hpc_work *w) {
    return &hpc_updates_of(en)->receives[w - en->work];
}

static inline size_t hpc_by_rank(const hpc_engine *en, int key, int rank) {
    return (size_t)key * (size_t)en->context->group.size + (size_t)rank;
}

/* Whether a row sums pushes. */
static inline int hpc_row_sums(const hpc_row *row) {
    return row->action == HPC_FORWARD && row->in[0].row < 0;
}

/* Whether a row passes on what has come. */
static inline int hpc_row_passes_on(const hpc_row *row) {
    return row->action == HPC_FORWARD && row->in[0].row >= 0;
}

static inline int hpc_share_forwards(const hpc_engine *en, const hpc_share *share) {
    return en->plan->rows[share->rows[0]].action == HPC_FORWARD;
}

/* Whether a share of this rank applies for a worker, or keeps a master. */
static inline int hpc_share_keeps(const hpc_engine *en, const hpc_share *share) {
    return en->plan->rows[share->rows[0]].n_out == 0;
}

/* The clock of rank when it had made n pushes. */
static inline uint64_t hpc_clock_at(const hpc_engine *en, int key, int rank, uint64_t n) {
    return n - hpc_updates_of(en)->base[hpc_by_rank(en, key, rank)];
}

static inline uint64_t hpc_version_at(const _Atomic uint64_t *version) {
    return atomic_load_explicit(version, memory_order_acquire);
}

static inline uint64_t hpc_pushes_from(const hpc_summing *its, int input) {
    return atomic_load_explicit(&its->pushes[input], memory_order_relaxed);
}

/* The version that a row below this one has applied, as far as it tells. */
static inline uint64_t hpc_version_told(const hpc_engine *en, int row) {
    const int s = en->layout.share_of[row];
    const hpc_share *share = &en->layout.shares[s];
    if (share->owner == en->context->group.rank) return hpc_version_at(&((const hpc_receiver *)share->own)->version);
    return hpc_version_at(hpc_own_signal(en->window, hpc_signal_applied(en, s)));
}

/* Whether it tells, as its rank has closed or only keeps a master, and has not told a version yet. */
static inline int hpc_has_not_told(const hpc_engine *en, int row, uint64_t version) {
    const hpc_row *below = &en->plan->rows[row];
    const int tells = below->n_out == 0 || hpc_closed_signal(en, below->owner) != 0;
    return tells && hpc_version_told(en, row) < version;
}

/* updates_core.c: slots of the discipline. */
int hpc_updates_share_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_updates_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_updates_pull_came(hpc_core *core, hpc_share *share, int rank);
int hpc_updates_work(hpc_core *core);

/* With the core paused: from here on a share that applies takes versions as they come (on), or only those that its
 * worker asks for. */
void hpc_updates_run(hpc_core *core, hpc_share *share, int on);

#endif
