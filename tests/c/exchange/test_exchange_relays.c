/* Plans by hosts: updates are summed in each host before they go to the owner, and parameters come back by relays. What
 * comes of it is what a hub makes of the same updates, bit for bit, as all numbers here are exact. */
#include <sched.h>

#include "exchange_plans.h"

enum { STEPS = 6 };

/* Flags of a case, in its arg. */
enum { CHAIN = 1, THREADS = 2, HALF_IN = 4, HALF_OUT = 8, DEEP = 16, HOSTS_OF = 32 };

static void by_hosts(job *j, hand_plan *h, const rank *r, int arg) {
    job_init(j, r);
    j->rule = "momentum", j->args[3] = 0.5;
    j->progress = arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    if (arg & HALF_IN) j->wire = HPC_F16;
    if (arg & HALF_OUT) j->codec_out = HPC_F16, j->rule = "sgd";
    hand_hosts(h, j, r->size, arg / HOSTS_OF, arg & CHAIN, 512);
    for (int i = 0; i < h->plan.n_rows && arg & DEEP; i++) h->rows[i].depth = 2;
    CHECK_OK(hpc_plan_check(&h->plan, r->size));
    j->plan = &h->plan;
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

static void trains(rank *r) {
    job j;
    hand_plan *h = hand_new();
    reference ref;
    by_hosts(&j, h, r, r->arg);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    train(r, &j, e, &ref, ranks_rounds(STEPS));
    CHECK_OK(hpc_exchange_close(e, -1)); /* until then other ranks' shares may pass here */
    check_traffic(r, e, &h->plan, (uint64_t)ranks_rounds(STEPS), 0);
    job_close(e, &ref, h);
}

/* Rows are set by their owners and published: they reach every worker by the same relays. */
static void published(rank *r) {
    job j;
    hand_plan *h = hand_new();
    reference ref;
    by_hosts(&j, h, r, r->arg);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    train(r, &j, e, &ref, 2);
    CHECK_OK(hpc_barrier(r->context, -1)); /* puts of the last step may still read what is set now */
    for (int i = 0; i < h->plan.n_rows; i++) {
        const hpc_row *row = &h->rows[i];
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
    CHECK_OK(hpc_exchange_close(e, -1));
    check_traffic(r, e, &h->plan, 4, 1);
    job_close(e, &ref, h);
}

/* A new rate comes to the owners in time, also of workers whose updates pass other rows first. */
static void new_rates(rank *r) {
    job j;
    hand_plan *h = hand_new();
    reference ref;
    by_hosts(&j, h, r, r->arg);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < STEPS; step++) {
        j.args[1] = step % 2 ? 0.25 : 0.5;
        for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_set_args(e, key, j.args));
        train(r, &j, e, &ref, 1);
    }
    job_close(e, &ref, h);
}

/* One rank does not push: whoever waits names it in the end, whatever lies between. */
static void names_missing(rank *r) {
    enum { MISSING = 3 }; /* of one piece, so its leader waits for nothing but the answer */
    job j;
    hand_plan *h = hand_new();
    by_hosts(&j, h, r, r->arg);
    j.n_keys = 1;
    hand_hosts(h, &j, r->size, r->arg / HOSTS_OF, r->arg & CHAIN, 8192);
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
        while (atomic_load(&r->board[0]) < (uint64_t)r->size - 1) {
            CHECK_OK(hpc_exchange_progress(e));
            sched_yield();
        }
        job_push_pull(r, &j, e, 0, 0);
    }
    job_close(e, NULL, h);
}

/* A rank stands still behind its push. The others wait for what it owns or folds, and not for its neighbour, whose
 * parameters have come by the same relays. */
static void names_owner(rank *r) {
    enum { STILL = 2, NEIGHBOUR = 3, KEY = 2 };
    job j;
    hand_plan *h = hand_new();
    by_hosts(&j, h, r, r->arg);
    hpc_exchange *e = job_open(r, &j);
    uint64_t ticket = job_start(r, &j, e, KEY, 0, HPC_PUSH | HPC_PULL, false);
    if (r->rank < STILL) {
        const double end = ranks_now() + ranks_patience(10);
        do {
            CHECK(ranks_now() < end);
            CHECK_STATUS(hpc_exchange_wait(e, KEY, ticket, 0.02), HPC_ERR_TIMEOUT);
        } while (ranks_error_waits_for(NEIGHBOUR));
        atomic_fetch_add(&r->board[0], 1);
    } else if (r->rank == STILL) {
        rank_await(r, 0, STILL);
    }
    CHECK_OK(hpc_exchange_wait(e, KEY, ticket, -1));
    job_close(e, NULL, h);
}

static int count_them(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)acc, (void)state, (void)args;
    for (int64_t i = 0; i < n; i++) param[i] = (float)count;
    return 0;
}

/* A rule of the user's own is told how many ranks' updates it gets, not how many rows sent them. */
static void counted(rank *r) {
    job j;
    hand_plan *h = hand_new();
    hpc_exchange *e = NULL;
    hpc_exchange_config config;
    const hpc_rule own = {.name = "counts", .apply = count_them};
    const hpc_rule *rules[] = {&own, &own, &own};
    by_hosts(&j, h, r, r->arg);
    hpc_exchange_config_init(&config);
    config.rules = rules;
    CHECK_OK(job_create_with(r, &j, &config, -1, &e));
    for (int key = 0; key < j.n_keys; key++) {
        job_push_pull(r, &j, e, key, 0);
        for (uint64_t i = 0; i < j.keys[key].count; i++) CHECK(hpc_exchange_params(e, key)[i] == (float)r->size);
    }
    job_close(e, NULL, h);
}

/* ---- trees ---- */

/* The pushes of rank 0 come to all, and no step overtakes another: a rank may be slow, and is waited for. */
static void broadcasts(rank *r) {
    job j;
    hand_plan *h = hand_new();
    uint64_t random = 77 + (uint64_t)r->rank;
    job_init(&j, r);
    j.progress = r->arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    if (r->arg & HALF_OUT) j.codec_out = HPC_F16;
    hand_tree(h, &j, r->size, r->arg / HOSTS_OF, 512);
    CHECK_OK(hpc_plan_check(&h->plan, r->size));
    j.plan = &h->plan;
    hpc_exchange *e = job_open(r, &j);
    void *gradient;
    if (r->rank != 0) {
        CHECK_STATUS(hpc_exchange_gradient(e, 0, -1, &gradient), HPC_ERR_UNSUPPORTED);
        CHECK_MESSAGE("gives no updates");
    }
    for (int step = 0; step < ranks_rounds(20); step++)
        for (int key = 0; key < j.n_keys; key++) {
            uint64_t ticket;
            float *src = malloc(j.keys[key].count * sizeof *src);
            for (int i = (int)(ranks_random(&random) % 64); i > 0; i--) sched_yield();
            job_fill(&j, 0, step, key, src);
            CHECK_OK(hpc_exchange_start(e, key, HPC_PUSH | HPC_PULL, r->rank == 0 ? src : NULL, -1, &ticket));
            CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
            CHECK(same_floats(hpc_exchange_params(e, key), src, j.keys[key].count, "a broadcast", r->rank, key));
            for (int i = (int)(ranks_random(&random) % 64); i > 0; i--) sched_yield();
            CHECK(same_floats(hpc_exchange_params(e, key), src, j.keys[key].count, "while others go on", r->rank, key));
            free(src);
        }
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_peer peer;
    for (int who = 1; who < r->size; who++) {
        CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
        CHECK_EQ(r->rank == 0 ? peer.bytes_received : 0, 0); /* that they are ready takes no bytes */
    }
    check_traffic(r, e, &h->plan, (uint64_t)ranks_rounds(20), 0);
    hpc_exchange_free(e);
    free(h);
}

/* A push without bytes belongs to BSP. */
static void empty_is_refused(rank *r) {
    job j;
    hand_plan *h = hand_new();
    hpc_exchange *e = NULL;
    job_init(&j, r);
    hand_tree(h, &j, r->size, 1, 512);
    j.plan = &h->plan;
    j.quorum = 1;
    CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("row 0 takes a push with weight 0, which only tells that its rank is ready; that needs BSP");
    j.quorum = 0;
    ((hpc_edge *)h->rows[0].in)[0].weight = 0;
    CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("inputs of row 0 have weight 0");
    free(h);
}

/* The ring of the next rank is full when the first has what it waits for itself: it closes only when all has left. */
static void closes_late(rank *r) {
    job j;
    hand_plan *h = hand_new();
    job_init(&j, r);
    j.n_keys = 1;
    j.keys[0].count = 16 * 1000;
    hand_tree(h, &j, r->size, 1, 16);
    CHECK(1000 / 2 > HPC_NOTIFY_DEPTH);
    j.plan = &h->plan;
    hpc_exchange *e = job_open(r, &j);
    float *src = malloc(j.keys[0].count * sizeof *src);
    uint64_t ticket;
    job_fill(&j, 0, 0, 0, src);
    CHECK_OK(hpc_exchange_start(e, 0, HPC_PUSH | HPC_PULL, src, -1, &ticket));
    if (r->rank == 1) rank_await(r, 0, 1);
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
    CHECK(same_floats(hpc_exchange_params(e, 0), src, j.keys[0].count, "a broadcast", r->rank, 0));
    if (r->rank == 0) rank_set(r, 0, 1);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    free(src);
    free(h);
}

/* The last rank's updates are summed by rank 1 and go on to rank 0, and it gets no parameters: what it pushes next may
 * not be read in the place of what it pushed. */
static void feeds_only(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    j.n_keys = 1;
    const uint64_t count = j.keys[0].count;
    const hpc_edge up[2] = {{1, -1, 1}, {2, -1, 1}}, sum = {0, 1, 1}, in[2] = {{0, -1, 1}, {1, 0, 1}};
    const hpc_edge out[2] = {{0, -1, 1}, {1, -1, 1}};
    hpc_row rows[2] = {
        {.owner = 1, .action = HPC_FORWARD, .count = count, .depth = 1, .quorum = 2, .n_in = 2, .n_out = 1},
        {.owner = 0, .action = HPC_APPLY, .count = count, .depth = 1, .quorum = 2, .n_in = 2, .n_out = 2}};
    rows[0].in = up, rows[0].out = &sum, rows[1].in = in, rows[1].out = out;
    const hpc_plan plan = {.n_keys = 1, .n_rows = 2, .keys = j.keys, .rows = rows};
    j.plan = &plan;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < ranks_rounds(40); step++) {
        if (r->rank == 1) sched_yield();
        job_push_pull(r, &j, e, 0, step);
        reference_step(&ref, 0);
        if (r->rank != 2) reference_check(&ref, r, e, 0);
    }
    job_close(e, &ref, NULL);
}

/* Only the last rank's update counts, and only the first gets parameters: nothing tells the forward when the slot of
 * its receiver is free. */
static void refused(rank *r) {
    job j;
    job_init(&j, r);
    j.n_keys = 1;
    const hpc_edge push = {1, -1, 1}, own = {0, -1, 1}, pull = {0, -1, 1}, up = {0, 1, 1};
    const hpc_edge in[2] = {own, {1, 0, 1}};
    hpc_row rows[2] = {
        {.owner = 1, .action = HPC_FORWARD, .count = 1001, .depth = 1, .quorum = 1, .n_in = 1, .n_out = 1},
        {.owner = 0, .action = HPC_APPLY, .count = 1001, .depth = 1, .quorum = 2, .n_in = 2, .n_out = 1}};
    rows[0].in = &push, rows[0].out = &up, rows[1].in = in, rows[1].out = &pull;
    const hpc_plan plan = {.n_keys = 1, .n_rows = 2, .keys = j.keys, .rows = rows};
    hpc_exchange *e = NULL;
    j.plan = &plan;
    CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("row 0 sends to row 1, but no rank that gets the parameters of that row pushes to row 0");
}

#define HOSTS(n, what) ((n)*HOSTS_OF + (what))

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "2_hosts_of_1", .size = 2, .run = trains, .arg = HOSTS(1, 0)},
        {.name = "2_hosts_of_2", .size = 4, .run = trains, .arg = HOSTS(2, 0)},
        {.name = "2_hosts_of_2_threads", .size = 4, .run = trains, .arg = HOSTS(2, THREADS)},
        {.name = "3_hosts_of_2_uneven", .size = 5, .run = trains, .arg = HOSTS(2, HALF_IN)},
        {.name = "3_hosts_of_3", .size = 8, .run = trains, .arg = HOSTS(3, HALF_OUT), .sleepy = true},
        {.name = "4_hosts_chain", .size = 8, .run = trains, .arg = HOSTS(2, CHAIN | HALF_IN | HALF_OUT)},
        {.name = "4_hosts_chain_threads", .size = 4, .run = trains, .arg = HOSTS(1, CHAIN | THREADS | DEEP)},
        {.name = "chain_deep", .size = 5, .run = trains, .arg = HOSTS(2, CHAIN | DEEP | HALF_OUT)},
        {.name = "published", .size = 4, .run = published, .arg = HOSTS(2, 0)},
        {.name = "published_chain", .size = 5, .run = published, .arg = HOSTS(1, CHAIN | HALF_OUT | THREADS)},
        {.name = "new_rates", .size = 4, .run = new_rates, .arg = HOSTS(2, CHAIN | THREADS)},
        {.name = "new_rates_inline", .size = 5, .run = new_rates, .arg = HOSTS(2, 0)},
        {.name = "names_missing", .size = 4, .run = names_missing, .arg = HOSTS(2, THREADS), .where = RANKS_UNSEEDED},
        {.name = "names_missing_chain",
         .size = 5,
         .run = names_missing,
         .arg = HOSTS(2, CHAIN),
         .where = RANKS_UNSEEDED},
        {.name = "names_owner", .size = 4, .run = names_owner, .arg = HOSTS(2, 0), .where = RANKS_UNSEEDED},
        {.name = "counted", .size = 5, .run = counted, .arg = HOSTS(2, CHAIN)},
        {.name = "refused", .size = 2, .run = refused},
        {.name = "broadcast_2", .size = 2, .run = broadcasts, .arg = HOSTS(1, 0)},
        {.name = "broadcast_chain", .size = 5, .run = broadcasts, .arg = HOSTS(1, HALF_OUT)},
        {.name = "broadcast_chain_threads", .size = 4, .run = broadcasts, .arg = HOSTS(1, THREADS)},
        {.name = "broadcast_binary", .size = 8, .run = broadcasts, .arg = HOSTS(2, 0), .sleepy = true},
        {.name = "broadcast_flat", .size = 5, .run = broadcasts, .arg = HOSTS(7, THREADS)},
        {.name = "closes_late", .size = 3, .run = closes_late, .where = RANKS_UNSEEDED},
        {.name = "feeds_only", .size = 3, .run = feeds_only},
        {.name = "empty_is_refused", .size = 3, .run = empty_is_refused},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
