/* The graph of an exchange (ASAP, sections 3 and 4). Every rank folds its own updates with its in-neighbours' updates.
 * A graph may have several phases, which take turns: one phase each step. From this file the disciplines learn which
 * ranks send to which, and which ranks have read a push. */
#ifndef HPC_ENGINE_GRAPH_H
#define HPC_ENGINE_GRAPH_H

#include "engine/scheme.h"

/* A worker's view of a key on a graph. */
typedef struct hpc_graph_key {
    int64_t ahead;  /* the restored checkpoint's step minus the number of pushes made until the restore; 0 if none was
                       restored */
    uint64_t noted; /* the number of the last push before the restore */
    int phases[HPC_PLAN_DEPTH]; /* by slot: the phases of pushes up to noted */
} hpc_graph_key;

struct hpc_phases {
    /* discipline/ reads siblings. */
    int n;
    double *weights; /* [phase][to][from], as hpc_graph has them */
    hpc_graph_key *keys;
    int *siblings; /* siblings[share * size + rank] is the number of rank's share with the same key and core number;
                      NULL: not computed */
};

int hpc_graph_open(hpc_scheme *sc, const hpc_graph *graph, const char *op);

/* ---- phases ---- */

/* hpc_step_of returns the step of push number n of a key; hpc_phase returns the step's phase. Pushes are numbered from
 * 1, steps from 0. */
static inline uint64_t hpc_step_of(const hpc_scheme *sc, int key, uint64_t n) {
    return n - 1 + (uint64_t)sc->graph->keys[key].ahead;
}
static inline int hpc_phase(const hpc_scheme *sc, int key, uint64_t n) {
    return (int)(hpc_step_of(sc, key, n) % (uint64_t)sc->graph->n);
}
/* Sets the step of a key: the push after push number n comes after this many steps. */
static inline void hpc_graph_set_step(const hpc_scheme *sc, int key, uint64_t n, uint64_t steps) {
    sc->graph->keys[key].ahead = (int64_t)(steps - n);
}

static inline double hpc_phase_weight(const hpc_scheme *sc, int phase, int to, int from) {
    size_t size = (size_t)sc->context->group.size;
    return sc->graph->weights[((size_t)phase * size + (size_t)to) * size + (size_t)from];
}

/* Returns the weight at rank to of from's push number n of a key; 0 if that step's graph has no such edge. */
static inline double hpc_edge_weight(const hpc_scheme *sc, int key, uint64_t n, int to, int from) {
    return hpc_phase_weight(sc, hpc_phase(sc, key, n), to, from);
}

/* Returns whether from, which must be a neighbour, sends its push number n of a key to rank to. */
static inline int hpc_sends(const hpc_scheme *sc, int key, uint64_t n, int to, int from) {
    return !sc->turns || hpc_edge_weight(sc, key, n, to, from) != 0;
}

/* hpc_sends_from returns the first push, from n on, in whose step from sends to rank to. hpc_sends_until returns the
 * last such push up to n, or 0 if no such push exists. */
static inline uint64_t hpc_sends_from(const hpc_scheme *sc, int key, uint64_t n, int to, int from) {
    while (!hpc_sends(sc, key, n, to, from)) n++;
    return n;
}
static inline uint64_t hpc_sends_until(const hpc_scheme *sc, int key, uint64_t n, int to, int from) {
    while (n > 0 && !hpc_sends(sc, key, n, to, from)) n--;
    return n;
}

/* ---- the worker ---- */

/* Returns whether the next push goes to a share: its step's graph has the edge, and the neighbour has not closed. A
 * neighbour that has closed folds nothing more. */
int hpc_graph_goes_to(const hpc_scheme *sc, const hpc_share *share);
/* hpc_pace.has_read: returns whether the owner of a share has read a push, or has closed, or was not sent it. */
int hpc_graph_has_read(const hpc_scheme *sc, int s, uint64_t ticket);
/* Called when a row was loaded from a checkpoint: a graph with several phases continues with the checkpoint's phase. */
void hpc_graph_restored(hpc_scheme *sc, const hpc_work *w, uint64_t step);

#endif
