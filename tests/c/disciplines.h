/* disciplines.h - the table of combinations that the conformance suite of disciplines runs on.
 *
 * A combination is one kind of edges, one consistency and what goes with them. Each property of the suite is written
 * once over a combination and asks its facts; disciplines_main runs every property on every combination to which it
 * applies.
 *
 * Every worker counts its updates in elements of its own: element i is that of worker i mod n. Rule sgd with a rate of
 * 1 takes 1 from it for each update, so the parameters tell how many updates of each worker are in them. Where a fold
 * may leave updates out, or averages models, the update is the number of its push, and the parameters tell which one it
 * was.
 */
#ifndef HPC_DISCIPLINES_H
#define HPC_DISCIPLINES_H

#include "graph_jobs.h"

typedef enum edges {
    SERVERS,   /* planner "hub" */
    RECEIVERS, /* the same, and workers apply the rule */
    HOSTS,     /* planner "hosts": two ranks a host */
    GRAPH,     /* planner "graph" */
    PEERS      /* planner "peer_to_peer" */
} edges;

/* What goes with a combination. */
enum {
    DEDICATED = 1, /* rank 0 is the only server, and no worker */
    SPLIT = 2,     /* fold and apply are two calls */
    THREADS = 4,   /* cores are threads */
    MEAN = 8,      /* of the updates, else their sum */
    ROUNDED = 16,  /* 16 bits on the wire, there and back */
    MODELS = 32,   /* the rule averages models */
    IN_PLACE = 64, /* and they are trained where they lie */
    TREE = 128,    /* receivers get folds, and peers updates, by a binary tree */
    PARTIAL = 256, /* a peer sends to the two behind it */
    LEADERS = 512, /* one peer of each two applies for both */
    RACKS = 1024,  /* two hosts make a rack */
    MASTER = 2048, /* with receivers: the server keeps parameters too */
    AROUND = 4096, /* hosts send folds around a ring */
    SLEEPY = 8192, /* waits sleep at once */
    DEEP = 16384,  /* one slot more than is needed */
    TWOS = 65536,  /* with receivers: two ranks a host, whose updates are folded first */
    LARGE = 131072 /* rows that are torn on their way */
};

typedef struct combination {
    const char *name;
    edges edges;
    int size;                   /* ranks */
    int consistency, staleness; /* ASYNC: what the slots allow; 0: any */
    int quorum;                 /* 0: all */
    unsigned with;
    shape shape; /* of a graph */
} combination;

extern const combination combinations[];
int combinations_count(void);

/* ---- facts ---- */

bool is_whole(const combination *c);   /* a fold has all updates of its step */
bool leaves_out(const combination *c); /* a fold goes without late updates */
bool goes_on(const combination *c);    /* without ranks that have closed */
bool has_phases(const combination *c); /* the graph changes from step to step */
bool keeps_mean(const combination *c); /* fold and apply are two calls, of what a fold has taken */
bool has_equal_parameters(const combination *c);
/* A settle brings the updates of all that have made as many steps, and waits for them. */
bool settles_for_all(const combination *c);
bool has_own_at_once(const combination *c); /* a pull brings this worker's own updates */
/* How many steps a rank may be ahead of the slowest that it hears; -1: any number. */
int most_ahead(const combination *c);
bool tells_versions(const combination *c);   /* parameters tell which updates, not how many */
bool has_staleness(const combination *c);    /* HPC_STEPS_BY_STALENESS counts */
int group_of(const combination *c, int who); /* with hosts: ranks of a group are in step; else the rank itself */

/* ---- one rank's part of a run ---- */

typedef struct trial {
    const combination *c;
    rank *r;
    graph_job g; /* its job is that of all combinations */
    job *j;
    hpc_plan *plan;
    hpc_exchange *e;
    int slow;                /* the last worker */
    int pushed[JOB_KEYS];    /* by this rank */
    bool idle;               /* its updates are nothing */
    float *before[JOB_KEYS]; /* the parameters before this rank's last push */
} trial;

/* change alters the job before its plan is made, and may be NULL. */
trial *trial_new(rank *r, void (*change)(trial *t));
trial *trial_open(rank *r, void (*change)(trial *t));
void trial_in_time(trial *t); /* a change: with a quorum too no update is late */
/* change alters the configuration, and may be NULL. */
int trial_create(trial *t, void (*change)(const rank *r, hpc_exchange_config *config), hpc_exchange **e);
void trial_free(trial *t);
void trial_close(trial *t);

bool trial_works(const trial *t, int who);
/* Whether the parameters of to have the update of step (from 0) of from. */
bool trial_hears(const trial *t, int to, int from, int step);
uint64_t trial_heard(const trial *t, int to, int from, int steps); /* how many of the first steps */
/* What parameters that have all of the first steps of from tell of it. */
uint64_t trial_told(const trial *t, int from, uint64_t steps);
bool trial_has(const trial *t, const hpc_row *row); /* this rank's parameters come from this row */

/* Starts this rank's next push of key, of the elements that count. */
int trial_start(trial *t, int key, int flags, double timeout, uint64_t *ticket);
int trial_step(trial *t, double timeout); /* push and pull of all keys; the first status that is not HPC_OK */
/* Reads from parameters what they have of each worker: counts, or with versions which one, 0 for none. Fails where
 * elements of one row do not agree. least and most are those of all rows. */
void trial_look(trial *t, int key, uint64_t *least, uint64_t *most);
void trial_look_row(trial *t, int i, uint64_t *seen);   /* of a row that this rank owns; UINT64_MAX: of none */
void trial_check(trial *t, const uint64_t *steps);      /* the parameters have so many steps of each worker */
void trial_check_rows(trial *t, const uint64_t *steps); /* and so have the rows that this rank owns, also after close */

/* Waits until all ranks have come here, and works for this rank's rows. Words of the board from MEETS on are its own.
 */
enum { MEETS = 3072 };
void trial_meet(trial *t);
void trial_serve(trial *t, int word, uint64_t at_least); /* until a word of the board is there */
void trial_settle(trial *t);
void trial_publish(trial *t); /* after all ranks have come */
void trial_dawdle(uint64_t *random);
uint64_t trial_hash(const trial *t, int key); /* of its parameters, never 0 */

/* ---- fold and apply in two calls ---- */

void trial_wait(trial *t, int key, uint64_t ticket);
void trial_apply(trial *t, int key, double scale);
void trial_skip(trial *t, int key);
void trial_check_squares(trial *t, int key, double expected);
void trial_check_gathered(trial *t, int key, const double *sum); /* of what a gather gives */

/* ---- cases ---- */

typedef struct property {
    const char *name;
    void (*run)(rank *r);
    bool (*applies)(const combination *c);
    ranks_case how; /* its where, apart, timeout; victims: 1 for the last rank */
    int variant;    /* trial_variant */
} property;

int trial_variant(const rank *r);
int disciplines_main(int argc, char **argv, const property *properties);

#endif
