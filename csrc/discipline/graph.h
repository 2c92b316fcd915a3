/* Steps that disciplines on a graph share (ASAP, sections 3 and 4): every rank owns its fold of its own updates and
 * those of its in-neighbours, and the phases of the graph take turns, one a step. */
#ifndef HPC_DISCIPLINE_GRAPH_H
#define HPC_DISCIPLINE_GRAPH_H

#include "engine/clocks.h"
#include "engine/row.h"
#include "engine/send.h"

/* A worker's view of a key on a graph. */
typedef struct hpc_graph_key {
    int64_t ahead;              /* steps that a checkpoint was ahead of this exchange's pushes */
    int phases[HPC_PLAN_DEPTH]; /* of the pushes in the slots */
} hpc_graph_key;

/* The graph of an exchange; an exchange with servers has no graph. */
typedef struct hpc_phases {
    int n;
    double *weights; /* [phase][to][from], as hpc_graph has them */
    hpc_graph_key *keys;
} hpc_phases;

static inline const hpc_phases *hpc_phases_of(const hpc_engine *en) {
    return en->graph;
}

/* ---- open ---- */

int hpc_graph_prepare(hpc_engine *en, const hpc_exchange_config *config, const char *op);
const char *hpc_consistency_name(int consistency);
/* HPC_ERR_INVALID if the configuration has no graph. */
int hpc_graph_is_given(const hpc_exchange_config *config, const char *op);
/* HPC_OK if folds may miss some inputs. Refuses a fold of one's own, and negative weights. by: the discipline, for the
 * error. */
int hpc_graph_check_partial(const hpc_exchange_config *config, const char *by, const char *op);
/* HPC_ERR_UNSUPPORTED if the graph has several phases. */
int hpc_graph_check_constant(const hpc_exchange_config *config, const char *by, const char *op);

/* ---- phases ---- */

/* The phase of push number n (from 1 on) of a key. */
static inline int hpc_phase(const hpc_engine *en, int key, uint64_t n) {
    const hpc_phases *g = hpc_phases_of(en);
    return (int)((n - 1 + (uint64_t)g->keys[key].ahead) % (uint64_t)g->n);
}

static inline double hpc_phase_weight(const hpc_engine *en, int phase, int to, int from) {
    size_t size = (size_t)en->context->group.size;
    return hpc_phases_of(en)->weights[((size_t)phase * size + (size_t)to) * size + (size_t)from];
}

/* The weight of from's push number n of a key at rank to; 0 where the graph of that step has no such edge. */
static inline double hpc_edge_weight(const hpc_engine *en, int key, uint64_t n, int to, int from) {
    return hpc_phase_weight(en, hpc_phase(en, key, n), to, from);
}

/* Whether from sends its push number n of a key to rank to. */
static inline int hpc_sends(const hpc_engine *en, int key, uint64_t n, int to, int from) {
    return hpc_phases_of(en)->n <= 1 || hpc_edge_weight(en, key, n, to, from) != 0;
}

/* ---- the owner ---- */

/* Counts the inputs of the neighbours to the step that has just been folded. */
void hpc_graph_count_neighbours(hpc_core *core, const hpc_share *share);

/* Opens the clocks of shares whose folds take the updates that are there: came counts those that are there, applied is
 * the newest that was folded, answered those whose slots are free. own: the shares of the same key and core of all
 * ranks, by rank. As hpc_opening.open. */
int hpc_graph_open_clocks(hpc_engine *en, const char *op);
/* hpc_discipline's slots: counts an input of rank to all rows of a share, or to one of them; 0 when rank has no slot
 * left to have sent it from. */
int hpc_graph_share_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_graph_row_came(hpc_core *core, hpc_work *w, int input, int slot);
/* Makes all folds for which it is time, of all shares of a core; returns their number. As hpc_discipline.work. */
typedef struct hpc_graph_fold {
    int (*is_time)(const hpc_engine *en, const hpc_share *share);
    int (*fold)(hpc_core *core, hpc_share *share); /* nonzero when the exchange has failed */
} hpc_graph_fold;
int hpc_graph_work(hpc_core *core, const hpc_graph_fold *its);

/* ---- the worker ---- */

/* A pull waits for this rank's own shares, which make its parameters. */
int hpc_graph_makes_params(const hpc_engine *en, const hpc_share *share);
void hpc_graph_begin_push(hpc_engine *en, int key);
/* hpc_push_share, if the graph of the step has the edge and the neighbour has not closed; then it folds nothing. */
int hpc_graph_send_share(hpc_engine *en, int s, int slot, hpc_limit *l);
int hpc_graph_goes_to(const hpc_engine *en, const hpc_share *share);
/* Whether the owners of a push's shares have read it, or closed, or were not sent it. */
int hpc_graph_has_read(const hpc_engine *en, int s, uint64_t ticket);
/* Waits until the neighbours have read what is in the slots. */
int hpc_graph_finish(hpc_engine *en, int key, hpc_limit *l, const char *op);
/* Waits until the last update has left this rank. Neighbours may read it later, or never. */
int hpc_graph_finish_unread(hpc_engine *en, int key, hpc_limit *l, const char *op);
void hpc_graph_restored(hpc_engine *en, const hpc_work *w, uint64_t step);

#endif
