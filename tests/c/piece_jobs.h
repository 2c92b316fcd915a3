/* piece_jobs.h - jobs for the tests of updates that go as pieces: codecs, plans, and what must hold of every update.
 *
 * Numbers are small and whole, so that sums are exact but for codecs that send means. */
#ifndef HPC_PIECE_JOBS_H
#define HPC_PIECE_JOBS_H

#include "graph_jobs.h"

enum { BOTH = HPC_PUSH | HPC_PULL, MOST_VALUES = 10 * 5200, LATE = 2, WORD = 100 };

typedef enum codec_kind {
    DENSE,
    LARGE,  /* threshold: what is larger than 5 */
    ALL,    /* threshold: all but 0 */
    DECAYS, /* threshold: less and less stays */
    PAPER,  /* threshold, in the paper's forms */
    LOSSY,  /* threshold: what is left out is lost */
    HALF,   /* threshold, float16: what rounding takes stays */
    BRAIN,  /* threshold, bfloat16 */
    TOP,    /* topk */
    BITS,   /* onebit; its means are not whole */
    OWN,    /* see below */
    LZ4,
    SNAPPY,
    ZSTD,
    ZLIB,
    CODEC_KINDS
} codec_kind;

/* Those of a case; ranks may be threads. */
typedef struct codecs {
    hpc_codec_config configs[JOB_KEYS];
    const hpc_codec_config *list[JOB_KEYS];
    int wires[JOB_KEYS];
    codec_kind kinds[JOB_KEYS];
} codecs;

typedef enum made_of { HUB, SERVER, HOSTS, RACKS, GRAPH, BY_HAND, RECEIVERS, PEERS } made_of;

typedef struct setup {
    const char *name;
    int size, plan, shape, consistency, staleness, quorum, depth, progress, per_host;
    double grace, scale; /* of gradients; 0: 1 */
    codec_kind kinds[3];
    int unwaited; /* the last push is left to close */
    int split, finite;
    const char *rule;
} setup;

typedef struct play {
    const setup *s;
    job j;
    codecs c;
    graph_job g;
    hpc_plan *plan;
    hpc_exchange_config config;
    hpc_exchange *e;
    hpc_plan by_hand;
    hpc_row rows[2 * JOB_KEYS];
    hpc_edge edges[3 + 3 * JOB_KEYS];
    size_t first[JOB_KEYS], all; /* of all keys' elements */
    double unit;                 /* of updates: they are so many times as large */
} play;

play *play_new(const rank *r, const setup *s);
void play_free(play *p);

/* Works for this rank's rows until all workers are there; others serve. */
void play_meet(rank *r, const play *p, int word);

float play_gradient(const play *p, const rank *r, int step, int key, uint64_t i);
/* Starts a push of a step; zero: of nothing. Adds it to computed. */
uint64_t play_start(const play *p, const rank *r, int step, int key, int flags, bool zero, double *computed);

/* Adds factor times the residuals of this rank's encoders, or what its rows have applied: the rule is sgd. */
void play_add_residuals(const play *p, const rank *r, double factor, double *to);
void play_add_applied(const play *p, const rank *r, double factor, double *to);
/* The residual of a worker's encoder of a key, to be freed. */
float *play_residual(const play *p, int key, uint64_t *made);

/* Nothing is lost: sum, over all ranks, is what was computed less what encoders hold back and rows have applied. */
void play_check_none(const play *p, const double *sum);
void play_check_servers(const play *p, const rank *r, double *sum);

#endif
