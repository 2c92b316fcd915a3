/* graph_jobs.h - jobs for the tests of exchanges on graphs: shapes, and the parameters that must come of them.
 *
 * Weights are powers of two and numbers small and whole, so that every order of summing gives the same bits. */
#ifndef HPC_GRAPH_JOBS_H
#define HPC_GRAPH_JOBS_H

#include "exchange_plans.h"

enum { GRAPH_PHASES = 4, GRAPH_WEIGHTS = GRAPH_PHASES * RANKS_MAX * RANKS_MAX };

typedef enum shape {
    ROOT,     /* two out-neighbours each */
    COMPLETE, /* all of all */
    RING,     /* each of the one before it */
    CHAIN,    /* the same; the first rank of nobody, and nobody of the last */
    STAR,     /* the first rank of all, all of the first rank */
    UNEQUAL,  /* like the root expander, with weights of 2, 1, 0.5 and -1 */
    ONE_PEER, /* phases: of the rank one, two, four before it */
    MATCHING, /* phases: pairs by chance, in which some ranks are alone */
    DEGREES,  /* phases: complete, ring, chain, star */
    SHAPES
} shape;

typedef struct graph_job {
    job j;
    hpc_graph graph;
    double weights[GRAPH_WEIGHTS]; /* of the graph, as it wants them */
    int wires[JOB_KEYS];           /* likewise */
    int consistency, staleness;
    int quorum;   /* 0: none */
    double grace; /* of a quorum */
    bool user;    /* a rule of the test's own: twice the weighted sum, plus how many there are, onto the parameters */
} graph_job;

/* Three keys of odd sizes, one phase of no edges, NOTIFY_ACK, the average. */
void graph_job_init(graph_job *g, const rank *r);
void graph_job_edge(graph_job *g, int phase, int to, int from, double weight);
void graph_job_shape(graph_job *g, shape shape);
double graph_job_weight(const graph_job *g, int step, int to, int from); /* steps from 0 on */
/* Models are trained where they lie; neighbours may be as many updates behind as before. */
void graph_job_in_place(graph_job *g);
/* Any shape, keys, cut, wire, rule, cores and progress, under NOTIFY_ACK or BSP; the same for the same seed. */
void graph_job_random(graph_job *g, const rank *r, uint64_t seed);

void graph_config_init(job_config *to, const rank *r, graph_job *g);
int graph_create(const rank *r, graph_job *g, double timeout, hpc_exchange **exchange);
hpc_exchange *graph_open(const rank *r, graph_job *g);
void graph_reference_step(reference *ref, const graph_job *g, int who, int key);

/* Gives others the processor, or keeps it, for a while that differs from call to call. */
void graph_dawdle(uint64_t *random);

#endif
