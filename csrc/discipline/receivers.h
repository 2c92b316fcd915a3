/* SSP where receivers apply the rule (receivers_ssp.c explains it): its state, and the work of its core. */
#ifndef HPC_UPDATES_H
#define HPC_UPDATES_H

#include "discipline/discipline.h"
#include "discipline/clocks.h"
#include "engine/owner/signals.h"
#include "engine/owner/mean.h"
#include "engine/owner/row.h"
#include "engine/layout/stages.h"

/* A note about a version, for the rows that get the version. It is stored behind the update, in the update's slot. */
typedef struct hpc_version_note {
    uint64_t version, n_updates;
    double args[HPC_RULE_ARGS];
} hpc_version_note;

_Static_assert(sizeof(hpc_version_note) <= HPC_MARGIN_BYTES, "a slot has room for its note");

/* The work of a row: it gathers (folds one update of each rank of a host, or of a rack, for another row), sums updates
 * into versions, passes versions on, or applies them. */
typedef enum hpc_row_part { HPC_ROW_GATHERS, HPC_ROW_SUMS, HPC_ROW_PASSES_ON, HPC_ROW_APPLIES } hpc_row_part;

/* The versions of a row of this rank. For a row that gathers, read "fold" for "version". */
typedef struct hpc_versions {
    hpc_row_part part;
    uint64_t came, applied; /* came: how many versions have come, or were made and sent; applied: how many were applied
                               or passed on */
    _Atomic uint64_t version; /* the last version that was closed or applied */
    int was_set;              /* of a row that applies: set if its state was loaded since the last publish */
    int *below, n_below;      /* of a row that sums or passes on: the rows that finally apply its forwards */
    _Atomic uint64_t waits;   /* the open version waits until all receivers have this version; 0: no wait */
    int n_open;               /* how many updates are in the open version */
    hpc_version_note *notes;  /* by slot: notes of the sums that are sent */
} hpc_versions;

/* A share of this rank whose rows apply the rule. */
typedef struct hpc_receiver {
    uint64_t asked, answered;
    uint64_t need; /* the version that the next answer waits for */
    int behind;    /* how many rows have not applied that version */
    int runs;      /* set: applies versions as they come, because no worker reads the parameters now */
    _Atomic uint64_t version,
        told; /* version: the smallest version of its rows; told: the last version that was told to the sources */
} hpc_receiver;

/* The state of the scheme. */
typedef struct hpc_updates {
    hpc_versions *rows;    /* by row of this rank */
    uint64_t *base, *last; /* base and last, [key * size + rank]: a rank's clock is its pushes less base, by wrapping
                              arithmetic; last is set in a publish to the number of its last push */
    uint64_t *goal;    /* by key: the version for which settle waits; in a publish, the clock of all ranks after it */
    uint64_t *counted; /* by key: the push whose staleness was counted last */
    int levels;        /* whether a publish has begun and not ended */
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

/* Returns whether a share that applies keeps only a master, and no worker's parameters. */
static inline int hpc_share_keeps(const hpc_scheme *sc, const hpc_share *share) {
    return sc->plan->rows[share->rows[0]].n_out == 0;
}

static inline size_t hpc_by_rank(const hpc_scheme *sc, int key, int rank) {
    return (size_t)key * (size_t)sc->context->group.size + (size_t)rank;
}

/* Returns the clock of rank after n pushes. */
static inline uint64_t hpc_clock_at(const hpc_scheme *sc, int key, int rank, uint64_t n) {
    return n - hpc_updates_of(sc)->base[hpc_by_rank(sc, key, rank)];
}

static inline uint64_t hpc_version_at(const _Atomic uint64_t *version) {
    return atomic_load_explicit(version, memory_order_acquire);
}

/* Returns the clock that an input of a row that sums or gathers has reached. One clock suffices for a host, because all
 * its ranks have pushed equally often. */
static inline uint64_t hpc_input_clock(const hpc_scheme *sc, const hpc_work *w, int input) {
    return hpc_clock_at(sc, w->row->key, w->inputs[input].lowest, hpc_sum_taken(w, input));
}

/* Returns the version that the receiver `row` of a sum has applied, as its rank last told it. */
static inline uint64_t hpc_version_told(const hpc_scheme *sc, int row) {
    const int s = sc->layout.share_of[row];
    const hpc_receiver *own = sc->layout.shares[s].own; /* NULL: another rank owns it */
    return hpc_version_at(own != NULL ? &own->version : hpc_own_signal(sc->window, hpc_signal_applied(sc, s)));
}

/* ---- receivers_core.c ---- */

/* Returns the number of the last push of a sender (hpc_sender_of); UINT64_MAX while it may push more. */
uint64_t hpc_last_push(const hpc_scheme *sc, int key, int sender);
/* Returns whether the receiver `row` of a sum still has to tell that it has a version. Only two kinds of rows tell
 * versions: rows of a rank that has closed, and rows that keep only a master. */
int hpc_has_not_told(const hpc_scheme *sc, int row, uint64_t version);

/* Slots of the discipline. */
int hpc_updates_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_updates_other_came(hpc_core *core, hpc_share *share, const hpc_event *event);
int hpc_updates_work(hpc_core *core);

/* With the core paused: from now on a share applies versions as they come (on is 1), or only when its worker asks (0).
 */
void hpc_updates_run(hpc_core *core, hpc_share *share, int on);

#endif
