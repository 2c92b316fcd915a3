/* exchange_plans.h - jobs for the tests of the exchange: keys, plans, exact gradients, and what must come of them.
 *
 * Gradients and parameters are small whole numbers and rates and weights powers of two, so that every order of summing
 * gives the same bits and the expected parameters can be computed in any way at all. */
#ifndef HPC_EXCHANGE_PLANS_H
#define HPC_EXCHANGE_PLANS_H

#include "ranks.h"

enum { JOB_KEYS = 600, HAND_ROWS = 2048, HAND_EDGES = 4 * HAND_ROWS };

typedef struct job {
    hpc_key keys[JOB_KEYS];
    int n_keys;
    int workers[RANKS_MAX], n_workers, servers[RANKS_MAX], n_servers;
    int cores, depth, wire, sum, each, affinity, interfaces;
    uint64_t chunk;
    const char *rule;
    double args[HPC_RULE_ARGS];
    int check_finite, shared_params, isa, progress;
    int codec_out; /* of the parameters on their way to workers */
    int mixed;     /* each key has a wire of its own: job_wire */
    int in_place;  /* on a graph: models are trained where they lie, so gradients are float32 on any wire */
    int split;     /* fold and apply are two calls */
    int apply_at;  /* of hpc_hub */
    int quorum;    /* which drops late updates; 0: all */
    double grace;
    const hpc_plan *plan; /* by hand; NULL: the hub of the above */
    float shift;          /* of the initial parameters */
    uint64_t seed;        /* of its numbers */
    int first;            /* the number of its first key, where the exchange has others before it */
} job;

const char *job_key_name(int key);  /* k0, k1 and so on */
void job_number(job *j, int first); /* its keys are first, first + 1 and so on, also by their names */

/* Three keys of odd sizes, all ranks both worker and server, the sum, sgd with a rate of 0.5. */
void job_init(job *j, const rank *r);
/* Anything that hpc_hub can say; the same for the same seed and size. */
void job_random(job *j, const rank *r, uint64_t seed);
void job_random_sizes(job *j, uint64_t *state, uint64_t most);

int job_wire(const job *j, int key);
void job_wires(const job *j, int *wires); /* by key, for hpc_hub and hpc_graph */
bool job_is_float32(const job *j);        /* all keys are, on their way to the owners */

bool job_works(const job *j, int who);
/* hpc_hub.parents, of so many children: the workers after a server are its children, the next ones theirs, around. */
void job_trees(const job *j, int children, int *parents);
bool job_serves(const job *j, int who);

hpc_exchange *job_open(const rank *r, const job *j);
int job_create(const rank *r, const job *j, double timeout, hpc_exchange **exchange);
/* The configuration for hpc_exchange_create, with all that it points to. config: all but plan, rule and values. */
typedef struct job_config {
    hpc_exchange_config config;
    hpc_rule rule;
    hpc_plan *plan;
    float *values[JOB_KEYS];
} job_config;

void job_config_init(job_config *to, const rank *r, const job *j, const hpc_exchange_config *config);
void job_config_free(job_config *config);
void job_settings(hpc_exchange_config *config, const job *j); /* all but plan, rule and values, as j has them */
int job_create_with(const rank *r, const job *j, const hpc_exchange_config *config, double timeout,
                    hpc_exchange **exchange); /* plan, rule and values of j, the rest of config */

float job_initial(const job *j, int key, uint64_t i);
float job_gradient(const job *j, int worker, int step, int key, uint64_t i);
void job_fill(const job *j, int worker, int step, int key, float *to);

/* Writes the gradient of that step (from 0) where the exchange wants it, or hands it over from elsewhere. */
uint64_t job_start(const rank *r, const job *j, hpc_exchange *e, int key, int step, int flags, bool in_place);
void job_push_pull(const rank *r, const job *j, hpc_exchange *e, int key, int step);

/* The parameters after as many steps of every worker. */
typedef struct reference {
    const job *j;
    float *params[JOB_KEYS], *state[JOB_KEYS];
    int step[JOB_KEYS];
} reference;

void reference_init(reference *ref, const job *j);
void reference_free(reference *ref);
void reference_step(reference *ref, int key); /* all workers' gradients of the next step */
void reference_apply(reference *ref, int key, const double *sum);
void reference_check(const reference *ref, const rank *r, hpc_exchange *e, int key);
bool same_floats(const float *at, const float *expected, uint64_t count, const char *what, int who, int key);

/* Bytes of a step from one rank to rows of another, as the plan has them. */
uint64_t rows_traffic(const hpc_plan *plan, int from, int to);
/* After close: what this rank has sent and received, by rank and stage, in so many steps and publishes. */
void check_traffic(const rank *r, const hpc_exchange *e, const hpc_plan *plan, uint64_t steps, uint64_t publishes);

/* Works for this rank's rows until the word is there. */
uint64_t progress_until(const rank *r, hpc_exchange *e, int word, uint64_t at_least);

/* Plans that no hub makes, in rows of at most so many elements (a multiple of 16), by turns on two cores. Racks: the
 * first rank of every two sums their updates and forwards the sum to the last rank of all, which applies the rule to
 * half of all sums. Ring: each rank emits half of its own and a quarter of each neighbour's update. Relay: rank 0 sums,
 * each rank hands the sum on to the next, and each applies the rule to its own copy. Layers, of whole keys: each rank
 * sums the workers' updates; each row of a further layer takes the mean of the layer before it, and so does rank 0,
 * which applies the rule. Hosts: see there. */
typedef struct hand_plan {
    hpc_plan plan;
    hpc_row rows[HAND_ROWS];
    hpc_edge edges[HAND_EDGES];
    int n_edges, core; /* of the rows that come next */
} hand_plan;

hand_plan *hand_new(void); /* to be filled, and freed by job_close or free */

/* Closes and frees an exchange, with what it was checked against and made of; both may be NULL. */
void job_close(hpc_exchange *e, reference *ref, hand_plan *h);

void hand_racks(hand_plan *h, const job *j, int size, int wire, uint64_t most);
void hand_relay(hand_plan *h, const job *j, int size, uint64_t most);
void hand_layers(hand_plan *h, const job *j, int size, int layers);
/* Hosts of so many ranks (the last may have fewer): in each a rank sums its host's updates and forwards the sum to the
 * owner, whose own host sends it theirs; parameters come back by relays, one a host. All change from piece to piece.
 * chain: sums and parameters pass from host to host, else each goes straight. */
void hand_hosts(hand_plan *h, const job *j, int size, int per_host, bool chain, uint64_t most);
/* A broadcast: rank 0 emits its own update, and each rank relays it to so many others. The others only tell rank 0 that
 * they are ready. */
void hand_tree(hand_plan *h, const job *j, int size, int arity, uint64_t most);
void hand_ring(hand_plan *h, const job *j, int size, int wire, uint64_t most);

#endif
