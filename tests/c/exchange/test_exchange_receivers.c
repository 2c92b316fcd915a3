/* Plans by which receivers apply the rule: the fold goes on to them, and each has parameters and state of its own. They
 * have the values of a hub whose owners apply, bit for bit, as all numbers here are exact. */
#include "exchange_plans.h"

enum { STEPS = 6 };

/* Flags of a case, in its arg. */
enum {
    BOTH = 1,
    THREADS = 2,
    HALF_IN = 4,
    HALF_OUT = 8,
    DEEP = 16,
    SERVER = 32,
    RING = 64,
    RACKS = 128,
    CHAIN = 256,
    TREE = 512,
    HOSTS_OF = 1024
};

static const char *rule_of(int arg) {
    return arg & HALF_OUT ? "sgd" : "momentum";
}

/* The plan of a hub, or of hosts of HOSTS_OF ranks each, and racks of two hosts. */
static hpc_plan *receiving(job *j, const rank *r, int arg) {
    hpc_plan *plan = NULL;
    job_init(j, r);
    j->rule = rule_of(arg), j->args[3] = 0.5;
    j->progress = arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    if (arg & HALF_IN) j->wire = HPC_F16;
    if (arg & HALF_OUT) j->codec_out = HPC_F16;
    if (arg & SERVER) { /* the last rank only serves */
        j->n_workers--;
        j->servers[0] = r->size - 1, j->n_servers = 1;
    }
    const int per_host = arg / HOSTS_OF, apply_at = arg & BOTH ? HPC_AT_BOTH : HPC_AT_RECEIVERS;
    if (per_host == 0) {
        hpc_hub hub;
        int parents[RANKS_MAX * RANKS_MAX];
        hpc_plan_args_init("hub", &hub, sizeof hub);
        hub.keys = j->keys, hub.n_keys = j->n_keys, hub.workers = j->workers, hub.n_workers = j->n_workers;
        hub.servers = j->servers, hub.n_servers = j->n_servers, hub.cores = 2, hub.chunk = 2048, hub.sum = 1;
        hub.wire = j->wire, hub.codec_out = j->codec_out, hub.depth = arg & DEEP ? 2 : 1, hub.apply_at = apply_at;
        if (arg & (CHAIN | TREE)) {
            job_trees(j, arg & TREE ? 2 : 1, parents);
            hub.parents = parents, hub.n_parents = hub.n_servers * hub.n_workers;
        }
        CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    } else {
        int groups[2 * RANKS_MAX];
        hpc_hosts hosts;
        hpc_plan_args_init("hosts", &hosts, sizeof hosts);
        for (int who = 0; who < r->size; who++) {
            groups[who] = who / per_host;
            groups[r->size + who] = who / per_host / 2;
        }
        hosts.keys = j->keys, hosts.n_keys = j->n_keys, hosts.workers = j->workers, hosts.n_workers = j->n_workers;
        hosts.groups = groups, hosts.n_levels = arg & RACKS ? 2 : 1, hosts.cores = 2, hosts.chunk = 2048, hosts.sum = 1;
        hosts.top = arg & RING ? HPC_TOP_RING : HPC_TOP_SHARDED;
        hosts.wire = j->wire, hosts.codec_out = j->codec_out, hosts.depth = arg & DEEP ? 2 : 1;
        hosts.apply_at = apply_at;
        CHECK_OK(hpc_plan_make("hosts", &hosts, &plan));
    }
    CHECK_OK(hpc_plan_check(plan, r->size));
    j->plan = plan;
    return plan;
}

static void train(const rank *r, const job *j, hpc_exchange *e, reference *ref, int steps) {
    for (int step = 0; step < steps; step++) {
        uint64_t tickets[JOB_KEYS];
        int now = ref->step[0];
        for (int key = 0; key < j->n_keys; key++)
            tickets[key] = job_start(r, j, e, key, now, HPC_PUSH | HPC_PULL, (step + r->rank) % 2);
        for (int key = j->n_keys; key-- > 0;) {
            CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
            reference_step(ref, key);
            reference_check(ref, r, e, key);
        }
    }
}

/* Every row that applies has the reference's master, state and step, whoever owns it. */
static void check_masters(const rank *r, const job *j, hpc_exchange *e, const reference *ref) {
    for (int i = 0; i < j->plan->n_rows; i++) {
        const hpc_row *row = &j->plan->rows[i];
        if (row->owner != r->rank || row->action != HPC_APPLY) continue;
        uint64_t step;
        float *params = calloc(row->count, sizeof *params), *state = calloc(row->count, sizeof *state);
        CHECK_OK(hpc_exchange_get_row(e, i, &step, params, state));
        CHECK_EQ(step, ref->step[row->key]);
        CHECK(same_floats(params, ref->params[row->key] + row->offset, row->count, "a master", r->rank, row->key));
        CHECK(strcmp(j->rule, "momentum") != 0 ||
              same_floats(state, ref->state[row->key] + row->offset, row->count, "a state", r->rank, row->key));
        free(params);
        free(state);
    }
}

static void trains(rank *r) {
    job j;
    reference ref;
    hpc_plan *plan = receiving(&j, r, r->arg);
    hpc_exchange *e = job_open(r, &j);
    const int steps = ranks_rounds(STEPS);
    reference_init(&ref, &j);
    if (job_works(&j, r->rank)) {
        train(r, &j, e, &ref, steps);
    } else {
        CHECK_OK(hpc_exchange_serve(e, -1));
        for (int step = 0; step < steps; step++)
            for (int key = 0; key < j.n_keys; key++) reference_step(&ref, key);
    }
    if (!(r->arg & HALF_OUT)) check_masters(r, &j, e, &ref); /* masters are not rounded */
    CHECK_OK(hpc_exchange_close(e, -1));
    check_traffic(r, e, plan, (uint64_t)steps, 0);
    job_close(e, &ref, NULL);
    hpc_plan_free(plan);
}

/* All copies of a row are set, and published. */
static void published(rank *r) {
    job j;
    reference ref;
    hpc_plan *plan = receiving(&j, r, r->arg);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    train(r, &j, e, &ref, 2);
    CHECK_OK(hpc_barrier(r->context, -1)); /* puts of the last step may still read what is set now */
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->owner != r->rank || row->action != HPC_APPLY) continue;
        float *values = malloc(row->count * sizeof *values), *state = calloc(row->count, sizeof *state);
        for (uint64_t k = 0; k < row->count; k++) values[k] = (float)((row->offset + k) % 61);
        CHECK_OK(hpc_exchange_set_row(e, i, 2, values, state));
        free(values);
        free(state);
    }
    CHECK_OK(hpc_exchange_publish(e, -1));
    for (int key = 0; key < j.n_keys; key++)
        for (uint64_t k = 0; k < j.keys[key].count; k++) {
            CHECK(hpc_exchange_params(e, key)[k] == (float)(k % 61));
            ref.params[key][k] = (float)(k % 61), ref.state[key][k] = 0;
        }
    CHECK_OK(hpc_barrier(r->context, -1));
    train(r, &j, e, &ref, 2);
    check_masters(r, &j, e, &ref);
    job_close(e, &ref, NULL);
    hpc_plan_free(plan);
}

/* A new rate comes to all receivers before the step that it is for. */
static void new_rates(rank *r) {
    job j;
    reference ref;
    hpc_plan *plan = receiving(&j, r, r->arg);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < STEPS; step++) {
        j.args[1] = step % 2 ? 0.25 : 0.5;
        for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_set_args(e, key, j.args));
        train(r, &j, e, &ref, 1);
    }
    job_close(e, &ref, NULL);
    hpc_plan_free(plan);
}

/* A rank that does not push is named by all that wait. */
static void names_missing(rank *r) {
    enum { MISSING = 3 };
    job j;
    hpc_plan *plan = receiving(&j, r, r->arg);
    hpc_exchange *e = job_open(r, &j);
    if (r->rank != MISSING) {
        uint64_t ticket = job_start(r, &j, e, 0, 0, HPC_PUSH | HPC_PULL, false);
        CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, 0.3), HPC_ERR_TIMEOUT);
        const hpc_error *error = hpc_last_error();
        CHECK_EQ(error->n_culprits, 1);
        CHECK_EQ(error->culprits[0].rank, MISSING);
        atomic_fetch_add(&r->board[0], 1);
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
    } else {
        while (atomic_load(&r->board[0]) < (uint64_t)r->size - 1) CHECK_OK(hpc_exchange_progress(e));
        job_push_pull(r, &j, e, 0, 0);
    }
    job_close(e, NULL, NULL);
    hpc_plan_free(plan);
}

static int apply_nothing(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)param, (void)acc, (void)count, (void)state, (void)args, (void)n;
    return 0;
}

static int fold_nothing(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    (void)acc, (void)n, (void)in, (void)nbytes, (void)weight, (void)args;
    return 0;
}

/* A user's fold would be made of the fold once more, by each receiver. */
static void refuses_own_folds(rank *r) {
    job j;
    hpc_exchange_config config;
    job_config with;
    hpc_plan *plan = receiving(&j, r, r->arg);
    const hpc_rule own = {.name = "own", .apply = apply_nothing, .fold = fold_nothing};
    job_settings(&config, &j);
    job_config_init(&with, r, &j, &config);
    with.config.rule = &own;
    hpc_exchange *e = NULL;
    CHECK_STATUS(hpc_exchange_create(r->context, &with.config, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rule own has a fold of its own, by which row");
    job_config_free(&with);
    hpc_plan_free(plan);
}

/* A plan by hand of one slot: the arguments of the next step would lie where a receiver still reads those of this one.
 */
static void needs_two_slots(rank *r) {
    job j;
    hand_plan *h = hand_new();
    job_init(&j, r);
    hand_relay(h, &j, r->size, 1024);
    j.plan = &h->plan;
    for (int depth = 1; depth <= 2; depth++) {
        for (int i = 0; i < h->plan.n_rows; i++) h->rows[i].depth = depth;
        hpc_exchange *e = job_open(r, &j);
        CHECK_STATUS(hpc_exchange_set_args(e, 0, j.args), depth == 1 ? HPC_ERR_UNSUPPORTED : HPC_OK);
        if (depth == 1) CHECK_MESSAGE("need a plan of depth 2; this one has 1");
        for (int key = 0; key < j.n_keys; key++) job_push_pull(r, &j, e, key, 0);
        job_close(e, NULL, NULL);
    }
    free(h);
}

static void refused(rank *r) {
    job j;
    hpc_exchange *e = NULL;
    hpc_plan *plan = receiving(&j, r, 0);
    j.quorum = 1;
    CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_UNSUPPORTED);
    CHECK_MESSAGE("apply the same elements; with a quorum they have one owner");
    j.quorum = 0, j.each = 1;
    CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("the plan has depth 2; ASYNC where receivers apply the rule needs 3 or more");
    j.each = 0, j.shared_params = 1;
    if (strcmp(r->mode->transports, "shm") == 0) {
        CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_CONFIG);
        CHECK_MESSAGE("a copy has one writer, which sends to all workers of its host");
    }
    hpc_plan_free(plan);
}

#define HOSTS(n, what) ((n)*HOSTS_OF + (what))

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "alone", .size = 1, .run = trains},
        {.name = "hub", .size = 3, .run = trains},
        {.name = "hub_threads", .size = 4, .run = trains, .arg = THREADS | DEEP},
        {.name = "hub_half", .size = 3, .run = trains, .arg = HALF_IN | HALF_OUT | BOTH},
        {.name = "server", .size = 4, .run = trains, .arg = SERVER},
        {.name = "server_keeps", .size = 4, .run = trains, .arg = SERVER | BOTH},
        {.name = "server_keeps_threads", .size = 3, .run = trains, .arg = SERVER | BOTH | THREADS},
        {.name = "chain", .size = 4, .run = trains, .arg = CHAIN | THREADS},
        {.name = "chain_server_keeps", .size = 4, .run = trains, .arg = CHAIN | SERVER | BOTH | HALF_OUT},
        {.name = "tree", .size = 7, .run = trains, .arg = TREE | HALF_IN | DEEP, .sleepy = true},
        {.name = "2_hosts_of_2", .size = 4, .run = trains, .arg = HOSTS(2, 0)},
        {.name = "3_hosts_of_2_uneven", .size = 5, .run = trains, .arg = HOSTS(2, HALF_IN | THREADS)},
        {.name = "1_host", .size = 3, .run = trains, .arg = HOSTS(3, 0)},
        {.name = "racks", .size = 7, .run = trains, .arg = HOSTS(2, RACKS), .sleepy = true},
        {.name = "racks_threads", .size = 8, .run = trains, .arg = HOSTS(2, RACKS | THREADS | HALF_OUT)},
        {.name = "ring", .size = 7, .run = trains, .arg = HOSTS(2, RING | DEEP)},
        {.name = "ring_of_racks", .size = 8, .run = trains, .arg = HOSTS(1, RING | RACKS | HALF_IN)},
        {.name = "published", .size = 4, .run = published, .arg = HOSTS(2, THREADS)},
        {.name = "published_hub", .size = 3, .run = published},
        {.name = "new_rates", .size = 3, .run = new_rates, .arg = THREADS},
        {.name = "published_tree", .size = 5, .run = published, .arg = TREE},
        {.name = "new_rates_racks", .size = 5, .run = new_rates, .arg = HOSTS(1, RACKS)},
        {.name = "names_missing", .size = 4, .run = names_missing, .where = RANKS_UNSEEDED},
        {.name = "names_missing_chain", .size = 4, .run = names_missing, .arg = CHAIN, .where = RANKS_UNSEEDED},
        {.name = "names_missing_hosts",
         .size = 5,
         .run = names_missing,
         .arg = HOSTS(2, THREADS),
         .where = RANKS_UNSEEDED},
        {.name = "needs_two_slots", .size = 3, .run = needs_two_slots},
        {.name = "refuses_own_folds", .size = 3, .run = refuses_own_folds},
        {.name = "refuses_own_folds_hosts", .size = 4, .run = refuses_own_folds, .arg = 2 * HOSTS_OF},
        {.name = "refused", .size = 2, .run = refused},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
