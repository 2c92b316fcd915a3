/* The state of an exchange: args of the rule, rows taken out and put back bit for bit, and the same bits for any
 * chunk size, number of cores, instruction set, progress and order of arrival. */
#include <math.h>
#include <sched.h>

#include "exchange_plans.h"
#include "base/isa.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* A number of many bits: sums of these depend on their order. */
static float rough(uint64_t seed, int worker, int step, int key, uint64_t i) {
    uint64_t state = ((seed * 31 + (uint64_t)worker) * 131 + (uint64_t)step) * 1031 + (uint64_t)key * 100000 + i;
    return ldexpf((float)(int)(ranks_random(&state) & 0xffffff) - 8388608.0f, (int)(ranks_random(&state) % 12) - 30);
}

static void push_rough(rank *r, const job *j, hpc_exchange *e, int key, int step, uint64_t *ticket) {
    uint64_t count = j->keys[key].count;
    float *src = malloc(count * sizeof *src);
    for (uint64_t i = 0; i < count; i++) src[i] = rough(j->seed, r->rank, step, key, i);
    CHECK_OK(hpc_exchange_start(e, key, BOTH, src, -1, ticket));
    free(src);
}

/* All keys of a step, in an order of this rank's own. */
static void rough_step(rank *r, const job *j, hpc_exchange *e, int step, uint64_t *random) {
    uint64_t tickets[JOB_KEYS];
    int first = (int)(ranks_random(random) % (uint64_t)j->n_keys), back = (int)(ranks_random(random) % 2);
    for (int i = 0; i < j->n_keys; i++) {
        int key = (first + (back ? j->n_keys - i : i)) % j->n_keys;
        for (uint64_t n = ranks_random(random) % 50; n; n--) sched_yield();
        push_rough(r, j, e, key, step, &tickets[key]);
    }
    for (int key = 0; key < j->n_keys; key++) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
}

static void copy_params(const job *j, hpc_exchange *e, float **to) {
    for (int key = 0; key < j->n_keys; key++) {
        size_t nbytes = j->keys[key].count * sizeof(float);
        to[key] = realloc(to[key], nbytes);
        memcpy(to[key], hpc_exchange_params(e, key), nbytes);
    }
}

static void check_params(rank *r, const job *j, hpc_exchange *e, float *const *expected, const char *what) {
    for (int key = 0; key < j->n_keys; key++)
        CHECK(same_floats(hpc_exchange_params(e, key), expected[key], j->keys[key].count, what, r->rank, key));
}

static void free_params(const job *j, float **params) {
    for (int key = 0; key < j->n_keys; key++) free(params[key]);
}

/* ---- the same bits ---------------------------------------------------------------------------------------------- */

/* Computes by hand: the sum in the workers' order, then the rule. states gets slots times count values a key, slot by
 * slot. */
static void by_hand(const job *j, int steps, float **params, float **states) {
    hpc_rule rule;
    CHECK_OK(hpc_rule_find(j->rule, HPC_ISA_GENERIC, &rule));
    memcpy(rule.args, j->args, sizeof rule.args);
    for (int key = 0; key < j->n_keys; key++) {
        uint64_t count = j->keys[key].count;
        float *in[RANKS_MAX], *acc = malloc(count * sizeof *acc);
        float *state = calloc(count * (size_t)(rule.slots + 1), sizeof *state);
        double weights[RANKS_MAX];
        params[key] = malloc(count * sizeof(float));
        for (uint64_t i = 0; i < count; i++) params[key][i] = job_initial(j, key, i);
        for (int w = 0; w < j->n_workers; w++) in[w] = malloc(count * sizeof(float));
        for (int step = 0; step < steps; step++) {
            for (int w = 0; w < j->n_workers; w++) {
                weights[w] = j->sum ? 1 : 1.0 / j->n_workers;
                for (uint64_t i = 0; i < count; i++) in[w][i] = rough(j->seed, j->workers[w], step, key, i);
            }
            CHECK_OK(hpc_fold(acc, (const void *const *)in, weights, j->n_workers, count, HPC_F32, HPC_ISA_GENERIC));
            rule.args[0] = step + 1;
            CHECK_EQ(rule.apply(params[key], acc, j->n_workers, state, rule.args, (int64_t)count), 0);
        }
        for (int w = 0; w < j->n_workers; w++) free(in[w]);
        free(acc);
        if (states)
            states[key] = state;
        else
            free(state);
    }
}

static void same_bits(rank *r) {
    static const char *const rules[] = {"sgd", "momentum", "nesterov", "adam", "adamw"};
    static const uint64_t chunks[] = {64, 4096, 1024 + 64, 65536};
    enum { STEPS = 3 };
    uint64_t random = (uint64_t)r->rank * 77;
    float *expected[JOB_KEYS] = {0};
    for (int rule = 0; rule < 5; rule++) {
        job j;
        job_init(&j, r);
        j.rule = rules[rule], j.seed = (uint64_t)rule + 5, j.sum = 0;
        j.args[1] = 0.1, j.args[2] = 1e-4, j.args[3] = 0.9, j.args[4] = 0.999, j.args[5] = 1e-8;
        by_hand(&j, STEPS, expected, NULL);
        for (int i = 0; i < 6; i++) {
            char what[80];
            j.chunk = chunks[(i + rule) % 4];
            j.cores = 1 + (i + rule) % 3;
            j.isa = (i + r->rank) % 4;
            while (!hpc_isa_available(j.isa)) j.isa--;
            j.progress = (i + rule + r->arg * r->rank) % 2 ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
            j.servers[0] = 1;
            j.n_servers = i % 2 ? 1 : r->size;
            if (!(i % 2)) j.servers[0] = 0;
            snprintf(what, sizeof what, "%s in chunks of %d on %d cores", j.rule, (int)j.chunk, j.cores);
            hpc_exchange *e = job_open(r, &j);
            for (int step = 0; step < STEPS; step++) rough_step(r, &j, e, step, &random);
            check_params(r, &j, e, expected, what);
            hpc_exchange_free(e);
        }
        free_params(&j, expected);
        memset(expected, 0, sizeof expected);
    }
}

/* ---- args ------------------------------------------------------------------------------------------------------- */

/* arg: progress + 8 * dedicated + 16 * each */
static void new_args(rank *r) {
    job j;
    job_init(&j, r);
    j.rule = "momentum", j.args[3] = 0.5, j.progress = r->arg % 8, j.cores = 2, j.each = r->arg / 16;
    if (r->arg & 8) {
        j.n_servers = 1;
        j.n_workers--;
        for (int i = 0; i < j.n_workers; i++) j.workers[i] = i + 1;
    }
    hpc_exchange *e = job_open(r, &j);
    if (!job_works(&j, r->rank)) {
        CHECK_OK(hpc_exchange_serve(e, -1));
        double told[HPC_RULE_ARGS]; /* what came with the workers' last push */
        CHECK_OK(hpc_exchange_get_args(e, 0, told));
        CHECK_EQ(told[1] * 1024, rank_await(r, 1, 1));
        hpc_exchange_free(e);
        return;
    }
    /* ASYNC: the last worker alone pushes; its updates are applied with its own args, whether others have theirs or
     * not.
     */
    bool pushes = r->rank == r->size - 1, lags = j.each && r->arg & 8 && !pushes;
    reference ref;
    reference_init(&ref, &j);
    int rounds = ranks_rounds(12);
    for (int step = 0; step < rounds; step++) {
        static const double rates[] = {0.5, 1, 0.25, 2}, momenta[] = {0.5, 0, 1};
        double args[HPC_RULE_ARGS] = {12345, rates[step % 4], 0, step > 8 ? 0 : momenta[step % 3]};
        if (lags) rank_await(r, 0, (uint64_t)step + 1);
        if (step) { /* the first step goes with those of create; args[0] is not ours */
            CHECK_OK(hpc_exchange_set_args(e, -1, args));
            double told[HPC_RULE_ARGS];
            CHECK_OK(hpc_exchange_get_args(e, 0, told));
            CHECK(told[0] == 0 && memcmp(told + 1, args + 1, sizeof args - sizeof *args) == 0);
            for (int i = 1; i < HPC_RULE_ARGS; i++) j.args[i] = args[i];
        }
        for (int key = 0; key < j.n_keys && step % 3 != 2; key++) { /* else twice in a row */
            if (j.each && !pushes) break;                           /* with momentum the order of updates counts */
            job_push_pull(r, &j, e, key, step);
            double *sum = calloc(j.keys[key].count, sizeof *sum);
            for (int w = 0; w < (j.each ? 1 : j.n_workers); w++) {
                for (uint64_t i = 0; i < j.keys[key].count; i++)
                    sum[i] += (double)job_gradient(&j, j.each ? r->rank : j.workers[w], step, key, i);
            }
            reference_apply(&ref, key, sum);
            free(sum);
            reference_check(&ref, r, e, key);
        }
        if (pushes && step % 3 != 2) rank_set(r, 1, (uint64_t)(j.args[1] * 1024));
        if (pushes) rank_set(r, 0, (uint64_t)step + 1);
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1)); /* serves whoever pulls longer */
    hpc_exchange_free(e);
}

/* arg: progress. Rank 0 owns all rows and is in no call after its set_args; those of the others wait for nobody. */
static void new_args_then_away(rank *r) {
    job j;
    double args[HPC_RULE_ARGS] = {0, 0.25};
    job_init(&j, r);
    j.progress = r->arg, j.n_servers = 1;
    hpc_exchange *e = job_open(r, &j);
    int rounds = ranks_rounds(10);
    for (int round = 1; round <= rounds; round++) {
        CHECK_OK(hpc_exchange_set_args(e, -1, args));
        rank_set(r, r->rank, (uint64_t)round);
        for (int who = 0; who < r->size; who++) rank_await(r, who, (uint64_t)round);
    }
    hpc_exchange_free(e);
}

static int args_seen(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)state;
    for (int64_t i = 0; i < n; i++) param[i] = (float)(args[0] * 1000 + args[7] * 10 + (double)count) + 0 * acc[i];
    return 0;
}

/* A rule of the user's own gets the step, its args and the number of updates. */
static void own_rule(rank *r) {
    job j;
    job_init(&j, r);
    hpc_rule rule = {.name = "args_seen", .apply = args_seen, .args = {0, 1, 2, 3, 4, 5, 6, 7}};
    double args[HPC_RULE_ARGS] = {0, 1, 2, 3, 4, 5, 6, 8};
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    hpc_exchange_config_init(&c);
    c.rule = &rule, c.progress = r->arg;
    CHECK_OK(job_create_with(r, &j, &c, -1, &e));
    for (int step = 0; step < 4; step++) {
        if (step == 2) CHECK_OK(hpc_exchange_set_args(e, -1, args));
        for (int key = 0; key < j.n_keys; key++) {
            job_push_pull(r, &j, e, key, step);
            const float *params = hpc_exchange_params(e, key);
            float expected = (float)((step + 1) * 1000 + (step < 2 ? 70 : 80) + r->size);
            for (uint64_t i = 0; i < j.keys[key].count; i++) CHECK(params[i] == expected);
        }
    }
    hpc_exchange_free(e);
}

/* The fold too. */
static int fold_seen(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    const float *x = in;
    if (nbytes != 4 * n) return 1;
    for (int64_t i = 0; i < n; i++) acc[i] += (float)(weight * args[1]) * x[i] * x[i];
    return 0;
}

static void own_fold(rank *r) {
    job j;
    job_init(&j, r);
    hpc_rule rule;
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    CHECK_OK(hpc_rule_find("average", HPC_ISA_BEST, &rule));
    rule.fold = fold_seen, rule.args[1] = 2, rule.name = "sum of squares";
    hpc_exchange_config_init(&c);
    c.rule = &rule, c.progress = r->arg;
    CHECK_OK(job_create_with(r, &j, &c, -1, &e));
    for (int step = 0; step < 4; step++) {
        for (int key = 0; key < j.n_keys; key++) {
            job_push_pull(r, &j, e, key, step);
            const float *params = hpc_exchange_params(e, key);
            for (uint64_t i = 0; i < j.keys[key].count; i++) {
                float expected = 0;
                for (int who = 0; who < r->size; who++)
                    expected += 2 * job_gradient(&j, who, step, key, i) * job_gradient(&j, who, step, key, i);
                CHECK(params[i] == expected);
            }
        }
    }
    hpc_exchange_free(e);
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

typedef struct saved {
    uint64_t step;
    float *params, *state;
} saved;

static hpc_plan *plan_of(const job *j) {
    hpc_hub hub;
    hpc_plan *plan;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = j->keys, hub.n_keys = j->n_keys;
    hub.workers = j->workers, hub.n_workers = j->n_workers;
    hub.servers = j->servers, hub.n_servers = j->n_servers;
    hub.cores = j->cores, hub.chunk = j->chunk, hub.depth = j->depth, hub.wire = j->wire;
    hub.sum = j->sum, hub.each = j->each;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    return plan;
}

/* A row of the third step has the parameters and states that come of it by hand. */
static void check_rows(rank *r, const job *j, const hpc_plan *plan, const saved *rows, int slots) {
    float *params[JOB_KEYS], *states[JOB_KEYS];
    by_hand(j, 3, params, states);
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->owner != r->rank) continue;
        uint64_t count = j->keys[row->key].count;
        CHECK(same_floats(rows[i].params, params[row->key] + row->offset, row->count, "row", r->rank, row->key));
        for (int s = 0; s < slots; s++)
            CHECK(same_floats(rows[i].state + (uint64_t)s * row->count,
                              states[row->key] + (uint64_t)s * count + row->offset, row->count, "state", r->rank,
                              row->key));
    }
    free_params(j, params);
    free_params(j, states);
}

static void for_own_rows(rank *r, const hpc_plan *plan, hpc_exchange *e, saved *rows, int slots, bool set) {
    for (int i = 0; i < plan->n_rows; i++) {
        uint64_t count = plan->rows[i].count, step;
        saved *s = &rows[i];
        if (plan->rows[i].owner != r->rank) {
            CHECK_STATUS(hpc_exchange_get_row(e, i, &step, NULL, NULL), HPC_ERR_INVALID);
            continue;
        }
        if (set) {
            CHECK_OK(hpc_exchange_set_row(e, i, s->step, s->params, s->state));
            continue;
        }
        s->params = calloc(count, sizeof(float));
        s->state = calloc(count * (uint64_t)slots, sizeof(float));
        CHECK_OK(hpc_exchange_get_row(e, i, &s->step, s->params, s->state));
        CHECK_EQ(s->step, 3);
    }
}

/* arg: progress + 8 * dedicated. Three steps, rows out; two more; rows back, here and in a new exchange: the same two
 * steps give the same bits. */
static void rows_back(rank *r) {
    static const char *const rules[] = {"momentum", "adam", "sgd"};
    static const int slots[] = {1, 2, 0};
    for (int rule = 0; rule < 3; rule++) {
        job j;
        uint64_t random = (uint64_t)r->rank;
        float *third[JOB_KEYS] = {0}, *fifth[JOB_KEYS] = {0};
        job_init(&j, r);
        j.rule = rules[rule], j.cores = 2, j.progress = r->arg % 8;
        j.chunk = rule % 2 ? 65536 : 1024; /* rows of one block, and of more */
        j.keys[2].count = 9001;
        j.args[1] = 0.1, j.args[2] = 1e-4, j.args[3] = 0.9, j.args[4] = 0.999, j.args[5] = 1e-8;
        if (r->arg & 8) {
            j.n_servers = 1;
            j.n_workers--;
            for (int i = 0; i < j.n_workers; i++) j.workers[i] = i + 1;
        }
        bool works = job_works(&j, r->rank);
        hpc_plan *plan = plan_of(&j);
        saved *rows = calloc((size_t)plan->n_rows, sizeof *rows);
        hpc_exchange *e = job_open(r, &j);
        for (int step = 0; step < 3 && works; step++) rough_step(r, &j, e, step, &random);
        CHECK_OK(hpc_barrier(r->context, -1));
        if (works) copy_params(&j, e, third);
        for_own_rows(r, plan, e, rows, slots[rule], false);
        check_rows(r, &j, plan, rows, slots[rule]);
        CHECK_OK(hpc_barrier(r->context, -1));
        for (int step = 3; step < 5 && works; step++) rough_step(r, &j, e, step, &random);
        if (works) copy_params(&j, e, fifth);
        for (int again = 0; again < 2; again++) {
            CHECK_OK(hpc_barrier(r->context, -1));
            for_own_rows(r, plan, e, rows, slots[rule], true);
            CHECK_OK(hpc_exchange_publish(e, -1));
            if (works) check_params(r, &j, e, third, "published");
            for (int step = 3; step < 5 && works; step++) rough_step(r, &j, e, step, &random);
            if (works) check_params(r, &j, e, fifth, "continued");
            CHECK_OK(hpc_barrier(r->context, -1));
            if (again) break;
            hpc_exchange_free(e);
            e = job_open(r, &j); /* whose steps and states are new */
        }
        hpc_exchange_free(e);
        for (int i = 0; i < plan->n_rows; i++) {
            free(rows[i].params);
            free(rows[i].state);
        }
        free(rows);
        hpc_plan_free(plan);
        if (works) free_params(&j, third);
        if (works) free_params(&j, fifth);
    }
}

/* arg: progress. Under ASYNC rank 0 looks at a row of its own while others push: by each update its step and every
 * value of its state grow by one, and it is never seen in between. */
static void rows_whole(rank *r) {
    enum { COUNT = 30000 };
    job j;
    job_init(&j, r);
    j.rule = "momentum", j.args[1] = 0, j.args[3] = 1; /* the state is the sum of all updates */
    j.progress = r->arg, j.each = 1, j.n_servers = 1, j.chunk = COUNT * sizeof(float) / 64 * 64 + 64;
    j.n_keys = 1, j.keys[0].count = COUNT;
    j.n_workers--;
    for (int i = 0; i < j.n_workers; i++) j.workers[i] = i + 1;
    hpc_exchange *e = job_open(r, &j);
    uint64_t pushes = (uint64_t)ranks_rounds(200), step = 0, ticket;
    float *row = malloc(COUNT * sizeof *row);
    for (uint64_t i = 0; i < COUNT; i++) row[i] = 1;
    if (r->rank == 0) {
        while (step < pushes * (uint64_t)j.n_workers) {
            CHECK_OK(hpc_exchange_get_row(e, 0, &step, NULL, row));
            for (uint64_t i = 0; i < COUNT; i++) CHECK_EQ(row[i], step);
            CHECK_OK(hpc_exchange_progress(e));
        }
        for (int peer = 0; peer < r->size; peer++) {
            CHECK_OK(hpc_exchange_get_folded(e, peer, &step));
            CHECK_EQ(step, peer == 0 ? 0 : pushes);
        }
        CHECK_STATUS(hpc_exchange_get_folded(e, r->size, &step), HPC_ERR_INVALID);
        CHECK_OK(hpc_exchange_serve(e, -1));
    } else {
        for (uint64_t n = 0; n < pushes; n++) {
            CHECK_OK(hpc_exchange_start(e, 0, BOTH, row, -1, &ticket));
            CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
        }
        CHECK_OK(hpc_exchange_close(e, -1));
    }
    free(row);
    hpc_exchange_free(e);
}

/* Under ASYNC rank 0 has folded a part of an update whose sender found the ring full: it counts. */
static void folded_in_part(rank *r) {
    job j;
    job_init(&j, r);
    j.progress = HPC_PROGRESS_INLINE, j.each = 1, j.n_servers = 1, j.chunk = 64;
    j.n_keys = 1, j.keys[0].count = (uint64_t)HPC_NOTIFY_DEPTH * 2 * 16;
    j.workers[0] = 1, j.n_workers = 1;
    hpc_exchange *e = job_open(r, &j);
    uint64_t rows = j.keys[0].count / 16, folded = 1, ticket;
    if (r->rank == 0) {
        hpc_exchange_stats stats = {0};
        CHECK_OK(hpc_exchange_get_folded(e, 1, &folded));
        CHECK_EQ(folded, 0);
        rank_meet(r);
        while (stats.applied == 0) {
            CHECK_OK(hpc_exchange_progress(e));
            CHECK_OK(hpc_exchange_get_stats(e, &stats));
        }
        CHECK(stats.applied < rows || rank_await(r, 1, 1) == 2);
        CHECK_OK(hpc_exchange_get_folded(e, 1, &folded));
        CHECK_EQ(folded, 1);
        rank_set(r, 0, 1);
        CHECK_OK(hpc_exchange_serve(e, -1));
        CHECK_OK(hpc_exchange_get_folded(e, 1, &folded));
        CHECK_EQ(folded, 2);
    } else {
        int status = hpc_exchange_start(e, 0, BOTH, NULL, 0, &ticket);
        CHECK(status == HPC_ERR_TIMEOUT || (status == HPC_OK && strcmp(r->mode->transports, "tcp") != 0));
        rank_set(r, 1, status == HPC_OK ? 2 : 1);
        rank_meet(r);
        progress_until(r, e, 0, 1);
        if (status != HPC_OK) CHECK_OK(hpc_exchange_start(e, 0, BOTH, NULL, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
        CHECK_OK(hpc_exchange_push_pull(e, 0, NULL, -1));
        CHECK_OK(hpc_exchange_close(e, -1));
    }
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD, DEDICATED = 8, EACH = 16 };
    static const ranks_case cases[] = {
        {.name = "same_bits", .size = 3, .run = same_bits},
        {.name = "same_bits_mixed_progress", .size = 3, .run = same_bits, .arg = 1},
        {.name = "new_args", .size = 3, .run = new_args, .arg = INLINE},
        {.name = "new_args_thread", .size = 3, .run = new_args, .arg = THREAD},
        {.name = "new_args_dedicated", .size = 3, .run = new_args, .arg = INLINE + DEDICATED, .sleepy = true},
        {.name = "new_args_async", .size = 3, .run = new_args, .arg = INLINE + EACH},
        {.name = "new_args_async_dedicated", .size = 4, .run = new_args, .arg = INLINE + EACH + DEDICATED},
        {.name = "new_args_then_away", .size = 3, .run = new_args_then_away, .arg = INLINE},
        {.name = "own_rule", .size = 3, .run = own_rule, .arg = INLINE},
        {.name = "own_rule_thread", .size = 2, .run = own_rule, .arg = THREAD},
        {.name = "own_fold", .size = 3, .run = own_fold, .arg = INLINE},
        {.name = "own_fold_thread", .size = 2, .run = own_fold, .arg = THREAD},
        {.name = "rows_back", .size = 3, .run = rows_back, .arg = INLINE},
        {.name = "rows_back_thread", .size = 2, .run = rows_back, .arg = THREAD},
        {.name = "rows_back_dedicated", .size = 3, .run = rows_back, .arg = INLINE + DEDICATED},
        {.name = "rows_back_dedicated_thread", .size = 2, .run = rows_back, .arg = THREAD + DEDICATED},
        {.name = "rows_whole", .size = 3, .run = rows_whole, .arg = INLINE},
        {.name = "rows_whole_thread", .size = 3, .run = rows_whole, .arg = THREAD},
        {.name = "folded_in_part", .size = 2, .run = folded_in_part},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
