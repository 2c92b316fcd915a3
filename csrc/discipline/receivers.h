/* SSP where receivers apply the rule (receivers_ssp.c says how it works): its state, and the work of its core. */
#ifndef HPC_UPDATES_H
#define HPC_UPDATES_H

#include "discipline/discipline.h"
#include "discipline/clocks.h"
#include "engine/owner/answer.h"
#include "engine/owner/mean.h"
#include "engine/owner/row.h"
#include "engine/layout/stages.h"

/* The note of a version, for the rows that get it, behind the update in its slot. */
typedef struct hpc_version_note {
    uint64_t version, n_updates;
    double args[HPC_RULE_ARGS];
} hpc_version_note;

_Static_assert(sizeof(hpc_version_note) <= HPC_MARGIN_BYTES, "a slot has room for its note");

/* A row's part: it folds one update of each rank of a host (or of a rack) for another row, sums updates into versions,
 * passes versions on, or applies them. */
typedef enum hpc_row_part { HPC_ROW_GATHERS, HPC_ROW_SUMS, HPC_ROW_PASSES_ON, HPC_ROW_APPLIES } hpc_row_part;

/* The versions of a row of this rank; the folds of one that gathers. */
typedef struct hpc_versions {
    hpc_row_part part;
    uint64_t came, applied;   /* how many have come (or were made and sent), and are applied or passed on */
    _Atomic uint64_t version; /* the last one that was closed or applied */
    int was_set;              /* applies: since the last publish */
    int *below, n_below;      /* sums, passes on: the rows that apply its forwards, directly or by way of others */
    _Atomic uint64_t waits;   /* the open version waits until receivers tell that they have this one; 0: it does not */
    int n_open;               /* updates in the open version */
    hpc_version_note *notes;  /* by slot, of the sums that are sent */
} hpc_versions;

/* A share of this rank whose rows apply. */
typedef struct hpc_receiver {
    uint64_t asked, answered;
    uint64_t need;                  /* the version that the next answer waits for */
    int behind;                     /* rows that have not applied it */
    int runs;                       /* applies versions as they come: no worker reads the parameters */
    _Atomic uint64_t version, told; /* the smallest version of the rows; the last one that the sources were told */
    int *sources, n_sources;        /* ranks that forward to it, directly or by way of others */
} hpc_receiver;

/* The exchange's own. */
typedef struct hpc_updates {
    hpc_versions *rows;    /* by row of this rank */
    uint64_t *base, *last; /* [key * size + rank]: a clock is the pushes less base, by wrapping arithmetic; in a
                              publish, the number of the last push */
    uint64_t *goal;        /* by key: the version that settle waits for, or that all go on from after a publish */
    uint64_t *counted;     /* by key: the push whose staleness was counted last */
    int levels;            /* a publish has begun and not ended */
} hpc_updates;

static inline hpc_updates *hpc_updates_of(const hpc_scheme *sc) {
    return sc->own;
}

static inline hpc_versions *hpc_versions_of(const hpc_scheme *sc, const hpc_work *w) {
    return &hpc_updates_of(sc)->rows[w - sc->work];
}

static inline hpc_work *hpc_share_row(const hpc_scheme *sc, const hpc_share *share, int i) {
    return hpc_work_of(sc, share->rows[i]);
}

static inline hpc_row_part hpc_row_part_of(const hpc_plan *plan, const hpc_row *row) {
    if (row->action != HPC_FORWARD) return HPC_ROW_APPLIES;
    if (row->n_in == 1 && row->in[0].row >= 0) return HPC_ROW_PASSES_ON;
    const hpc_row *to = row->n_out == 1 && row->out[0].row >= 0 ? &plan->rows[row->out[0].row] : NULL;
    return to != NULL && to->action == HPC_FORWARD && to->n_in > 1 ? HPC_ROW_GATHERS : HPC_ROW_SUMS;
}

static inline int hpc_share_forwards(const hpc_scheme *sc, const hpc_share *share) {
    return sc->plan->rows[share->rows[0]].action == HPC_FORWARD;
}

/* Whether a share that applies keeps a master alone, and no worker's parameters. */
static inline int hpc_share_keeps(const hpc_scheme *sc, const hpc_share *share) {
    return sc->plan->rows[share->rows[0]].n_out == 0;
}

static inline size_t hpc_by_rank(const hpc_scheme *sc, int key, int rank) {
    return (size_t)key * (size_t)sc->context->group.size + (size_t)rank;
}

/* The clock of rank when it had made n pushes. */
static inline uint64_t hpc_clock_at(const hpc_scheme *sc, int key, int rank, uint64_t n) {
    return n - hpc_updates_of(sc)->base[hpc_by_rank(sc, key, rank)];
}

static inline uint64_t hpc_version_at(const _Atomic uint64_t *version) {
    return atomic_load_explicit(version, memory_order_acquire);
}

/* The clock that an input of a row that sums or gathers has reached: all ranks of a host have pushed equally often. */
static inline uint64_t hpc_input_clock(const hpc_scheme *sc, const hpc_work *w, int input) {
    return hpc_clock_at(sc, w->row->key, w->inputs[input].lowest, hpc_sum_taken(w, input));
}

/* The version that a row below a sum has applied, as far as it tells. */
static inline uint64_t hpc_version_told(const hpc_scheme *sc, int row) {
    const int s = sc->layout.share_of[row];
    const hpc_receiver *own = sc->layout.shares[s].own; /* NULL: it is another rank's */
    return hpc_version_at(own != NULL ? &own->version : hpc_own_signal(sc->window, hpc_signal_applied(sc, s)));
}

/* ---- receivers_core.c ---- */

/* The number of the last push of a sender (hpc_sender_of); UINT64_MAX while it may push more. */
uint64_t hpc_last_push(const hpc_scheme *sc, int key, int sender);
/* Whether a row below a sum tells, as its rank has closed or only keeps a master, and has not told a version yet. */
int hpc_has_not_told(const hpc_scheme *sc, int row, uint64_t version);

/* Slots of the discipline. */
int hpc_updates_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_updates_other_came(hpc_core *core, hpc_share *share, const hpc_event *event);
int hpc_updates_work(hpc_core *core);

/* With the core paused: from here on a share applies versions as they come (on), or only when its worker asks. */
void hpc_updates_run(hpc_core *core, hpc_share *share, int on);

#endif
