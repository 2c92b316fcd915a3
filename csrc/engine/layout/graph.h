/* The graph of an exchange (ASAP, sections 3 and 4): every rank owns the fold of its updates and its in-neighbours'
 * updates, and the phases of the graph take turns, one a step. The graph tells, under every discipline, which ranks
 * send to which, and which have read a push. */
#ifndef HPC_ENGINE_GRAPH_H
#define HPC_ENGINE_GRAPH_H

#include "engine/scheme.h"

/* A worker's view of a key on a graph. */
typedef struct hpc_graph_key {
    int64_t ahead;              /* steps that a checkpoint was ahead of this exchange's pushes */
    uint64_t noted;             /* the last push before that */
    int phases[HPC_PLAN_DEPTH]; /* by slot: of pushes up to that one */
} hpc_graph_key;

struct hpc_phases {
    /* discipline/ reads siblings. */
    int n;
    double *weights; /* [phase][to][from], as hpc_graph has them */
    hpc_graph_key *keys;
    int *siblings; /* [share * size + rank]: rank's share of the same key and core; NULL: not known */
};

int hpc_graph_open(hpc_scheme *sc, const hpc_graph *graph, const char *op);

/* ---- phases ---- */

/* The step, counted from 0, of push number n (from 1 on) of a key; and its phase. */
static inline uint64_t hpc_step_of(const hpc_scheme *sc, int key, uint64_t n) {
    return n - 1 + (uint64_t)sc->graph->keys[key].ahead;
}
static inline int hpc_phase(const hpc_scheme *sc, int key, uint64_t n) {
    return (int)(hpc_step_of(sc, key, n) % (uint64_t)sc->graph->n);
}
/* From here on so many steps were before the push that follows push number n. */
static inline void hpc_graph_set_step(const hpc_scheme *sc, int key, uint64_t n, uint64_t steps) {
    sc->graph->keys[key].ahead = (int64_t)(steps - n);
}

static inline double hpc_phase_weight(const hpc_scheme *sc, int phase, int to, int from) {
    size_t size = (size_t)sc->context->group.size;
    return sc->graph->weights[((size_t)phase * size + (size_t)to) * size + (size_t)from];
}

/* The weight of from's push number n of a key at rank to; 0 where the graph of that step has no such edge. */
static inline double hpc_edge_weight(const hpc_scheme *sc, int key, uint64_t n, int to, int from) {
    return hpc_phase_weight(sc, hpc_phase(sc, key, n), to, from);
}

/* Whether from sends its push number n of a key to rank to, if they are neighbours at all. */
static inline int hpc_sends(const hpc_scheme *sc, int key, uint64_t n, int to, int from) {
    return !sc->turns || hpc_edge_weight(sc, key, n, to, from) != 0;
}

/* The number of the first step from n on, and of the last one up to n (0: none), whose graph has the edge. */
static inline uint64_t hpc_sends_from(const hpc_scheme *sc, int key, uint64_t n, int to, int from) {
    while (!hpc_sends(sc, key, n, to, from)) n++;
    return n;
}
static inline uint64_t hpc_sends_until(const hpc_scheme *sc, int key, uint64_t n, int to, int from) {
    while (n > 0 && !hpc_sends(sc, key, n, to, from)) n--;
    return n;
}

/* ---- the worker ---- */

/* Whether the next push goes to a share: the graph of its step has the edge, and the neighbour has not closed, as it
 * folds nothing more then. */
int hpc_graph_goes_to(const hpc_scheme *sc, const hpc_share *share);
/* hpc_pace.has_read: whether the owner of a share has read a push, or closed, or was not sent it. */
int hpc_graph_has_read(const hpc_scheme *sc, int s, uint64_t ticket);
/* A row was set: a graph that changes goes on with the phase at which the checkpoint was made. */
void hpc_graph_restored(hpc_scheme *sc, const hpc_work *w, uint64_t step);

#endif
