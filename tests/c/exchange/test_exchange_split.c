/* Fold and apply in two calls, with servers: what comes of them is what comes of a push, calls that are cut short go
 * on, and what is refused. */
#include <math.h>

#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* Owners apply each update by itself. */
enum { EACH = 64 };

static void split_job(job *j, const rank *r) {
    job_init(j, r);
    j->split = 1, j->each = (r->arg & EACH) != 0;
}

static void end(rank *r, const job *j, reference *ref, hpc_exchange *e) {
    if (ref != NULL) reference_free(ref);
    if (!job_works(j, r->rank)) CHECK_OK(hpc_exchange_serve(e, -1));
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

static void do_wait(hpc_exchange *e, int key, uint64_t ticket) {
    CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
}

/* Any job: folds of all keys, then applies, each waited for at once, later or together. */
static void random_job(rank *r, uint64_t seed) {
    enum { STEPS = 4 };
    static _Thread_local uint64_t folds[JOB_KEYS], applies[JOB_KEYS];
    job j;
    reference ref;
    job_random(&j, r, seed);
    j.split = 1, j.progress = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < STEPS && job_works(&j, r->rank); step++) {
        uint64_t own = seed * 31 + (uint64_t)step * 7;
        int by_two = step % 2, at_once = by_two && own % 3 == 0;
        int first = (int)((own + (at_once ? 0 : (uint64_t)r->rank)) % (uint64_t)j.n_keys); /* an order for each rank */
        for (int i = 0; i < j.n_keys; i++) {
            int key = (first + i) % j.n_keys;
            folds[key] = job_start(r, &j, e, key, step, by_two ? HPC_PUSH : BOTH, (int)own % 2);
            if (at_once) do_wait(e, key, folds[key]);
            if (by_two && own % 3 == 1) CHECK_OK(hpc_exchange_apply(e, key, 1, -1, &applies[key]));
        }
        for (int key = 0; key < j.n_keys; key++) {
            if (by_two && own % 3 != 1) CHECK_OK(hpc_exchange_apply(e, key, 1, -1, &applies[key]));
            if (!by_two) applies[key] = folds[key];
        }
        for (int key = j.n_keys - 1; key >= 0; key--) {
            do_wait(e, key, applies[key]);
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
    }
    end(r, &j, &ref, e);
}

static void random_jobs(rank *r) {
    int rounds = ranks_rounds(12);
    for (int i = 0; i < rounds; i++) random_job(r, (uint64_t)(1000 * r->arg + i + 1));
}

/* Calls that a full ring has cut short go on when they are made again, and no other call may come between. */
static void cut_short(rank *r) {
    enum { KEYS = 200, ELEMENTS = 5 };
    job j;
    uint64_t tickets[KEYS];
    float src[ELEMENTS] = {1, 2, 3, 4, 5};
    split_job(&j, r);
    j.n_keys = KEYS, j.n_servers = 1, j.workers[0] = 1, j.n_workers = 1;
    for (int k = 0; k < KEYS; k++) j.keys[k] = (hpc_key){job_key_name(k), ELEMENTS, 0};
    hpc_exchange *e = job_open(r, &j);
    if (r->rank == 0) {
        for (uint64_t round = 1; round <= 2; round++) {
            rank_await(r, 0, round);
            progress_until(r, e, 1, round);
        }
        CHECK_OK(hpc_exchange_serve(e, -1));
        hpc_exchange_free(e);
        return;
    }
    for (int round = 0; round < 2; round++) {
        int key = 0, status = HPC_OK;
        for (; status == HPC_OK; key += status == HPC_OK) {
            status = round ? hpc_exchange_start(e, key, HPC_PUSH, src, 0.05, &tickets[key])
                           : hpc_exchange_fold_nothing(e, key, 0.05, &tickets[key]);
            if (status == HPC_OK) status = hpc_exchange_apply(e, key, 0.5, 0.05, &tickets[key]);
        }
        CHECK_STATUS(status, HPC_ERR_TIMEOUT);
        CHECK(key > 0 && key < KEYS);
        CHECK_STATUS(hpc_exchange_skip(e, key, 0.05, &tickets[key]), HPC_ERR_INVALID);
        CHECK_MESSAGE("was cut short; make it again first");
        if (!round && hpc_exchange_apply(e, key, 0.5, 0.05, &tickets[key]) == HPC_ERR_INVALID) {
            CHECK_STATUS(hpc_exchange_start(e, key, HPC_PUSH, src, 0.05, &tickets[key]), HPC_ERR_INVALID);
            CHECK_MESSAGE("was cut short; make it again");
        }
        rank_set(r, 0, (uint64_t)round + 1);
        for (int k = key; k < KEYS; k++) { /* of the first either the fold or the apply is left */
            status = hpc_exchange_apply(e, k, 0.5, -1, &tickets[k]);
            if (status == HPC_OK) continue;
            CHECK_STATUS(status, HPC_ERR_INVALID);
            CHECK_OK(round ? hpc_exchange_start(e, k, HPC_PUSH, src, -1, &tickets[k])
                           : hpc_exchange_fold_nothing(e, k, -1, &tickets[k]));
            CHECK_OK(hpc_exchange_apply(e, k, 0.5, -1, &tickets[k]));
        }
        for (int k = 0; k < KEYS; k++) do_wait(e, k, tickets[k]);
        rank_set(r, 1, (uint64_t)round + 1);
    }
    for (int k = 0; k < KEYS; k++)
        for (int i = 0; i < ELEMENTS; i++)
            CHECK_EQ(job_initial(&j, k, (uint64_t)i) - hpc_exchange_params(e, k)[i], 0.25f * src[i]);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* The order in which rank 0 applies keys: rank 1 has called for them in the opposite order, and all have come. */
enum { ORDERED = 70 };
static int order[ORDERED], n_ordered;

static int note_order(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)param, (void)count, (void)state, (void)args, (void)n;
    if (n_ordered < ORDERED) order[n_ordered++] = (int)acc[0];
    return 0;
}

static void lowest_first(rank *r) {
    const hpc_rule rule = {.name = "note order", .apply = note_order};
    job j;
    uint64_t tickets[ORDERED];
    hpc_exchange *e = NULL;
    hpc_exchange_config c;
    split_job(&j, r);
    j.n_keys = ORDERED, j.n_servers = 1, j.workers[0] = 1, j.n_workers = 1;
    for (int k = 0; k < ORDERED; k++) j.keys[k] = (hpc_key){job_key_name(k), 100, 0};
    hpc_exchange_config_init(&c);
    c.rule = &rule, c.progress = HPC_PROGRESS_INLINE, c.split = 1;
    CHECK_OK(job_create_with(r, &j, &c, -1, &e));
    if (r->rank == 0) {
        n_ordered = 0;
        rank_await(r, 0, 1);
        CHECK_OK(hpc_exchange_serve(e, -1));
        CHECK_EQ(n_ordered, ORDERED);
        for (int i = 0; i < ORDERED; i++) CHECK_EQ(order[i], i);
    } else {
        for (int k = ORDERED - 1; k >= 0; k--) {
            float src[100] = {(float)k};
            CHECK_OK(hpc_exchange_start(e, k, BOTH, src, -1, &tickets[k]));
        }
        rank_set(r, 0, 1);
        for (int k = 0; k < ORDERED; k++) do_wait(e, k, tickets[k]);
        CHECK_OK(hpc_exchange_close(e, -1));
    }
    hpc_exchange_free(e);
}

/* All have called, and rank 2, which folds for rank 3 as well, computes: the owner waits for its fold. */
static void leader_computes(rank *r) {
    job j;
    hand_plan *h = malloc(sizeof *h);
    uint64_t fold, ticket;
    CHECK(h);
    split_job(&j, r);
    j.n_keys = 1;
    hand_hosts(h, &j, r->size, 2, false, 8192); /* one piece, of rank 0 */
    j.plan = &h->plan;
    hpc_exchange *e = job_open(r, &j);
    fold = job_start(r, &j, e, 0, 0, HPC_PUSH, false);
    CHECK_OK(hpc_exchange_apply(e, 0, 1, -1, &ticket));
    rank_meet(r);
    if (r->rank == 0) {
        CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, 0.2), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(2));
        CHECK_STATUS(hpc_exchange_wait(e, 0, fold, 0.1), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(2));
    }
    rank_meet(r);
    do_wait(e, 0, ticket);
    end(r, &j, NULL, e);
    free(h);
}

/* The mean of updates of 16 bits comes in float32, beside the slot of the next one. */
static void check_gathered_wide(const job *j, const rank *r, hpc_exchange *e, int key) {
    const uint64_t count = j->keys[key].count;
    float *mean = calloc(count, sizeof *mean);
    uint64_t ticket;
    for (uint64_t i = 0; i < count; i++)
        for (int who = 0; who < r->size; who++) mean[i] += job_gradient(j, who, 0, key, i);
    CHECK_OK(hpc_exchange_gather(e, key, -1, &ticket));
    do_wait(e, key, ticket);
    CHECK(same_floats(hpc_exchange_gathered(e, key), mean, count, "gathered", r->rank, key));
    free(mean);
}

static void refusals(rank *r) {
    job j;
    hand_plan h;
    hpc_exchange *e = NULL;

    void *gradient;
    uint64_t ticket;
    double sum;
    split_job(&j, r);
    hand_ring(&h, &j, r->size, HPC_F32, 512);
    j.plan = &h.plan;
    CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("split needs rows that apply, forward or relay");

    split_job(&j, r);
    j.split = 0;
    e = job_open(r, &j);
    CHECK_STATUS(hpc_exchange_apply(e, 0, 1, -1, &ticket), HPC_ERR_INVALID);
    CHECK_MESSAGE("was made without split");
    CHECK_STATUS(hpc_exchange_fold_nothing(e, 0, -1, &ticket), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_get_squares(e, 0, &sum), HPC_ERR_INVALID);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);

    split_job(&j, r);
    j.mixed = 1; /* key 1 is float16 */
    e = job_open(r, &j);
    CHECK_STATUS(hpc_exchange_apply(e, 0, 1, -1, &ticket), HPC_ERR_INVALID);
    CHECK_MESSAGE("key k0 has no fold on rank");
    CHECK_STATUS(hpc_exchange_squares(e, 0, -1, &ticket), HPC_ERR_INVALID);
    do_wait(e, 0, job_start(r, &j, e, 0, 0, HPC_PUSH, true));
    do_wait(e, 1, job_start(r, &j, e, 1, 0, HPC_PUSH, true));
    CHECK_STATUS(hpc_exchange_apply(e, 0, INFINITY, -1, &ticket), HPC_ERR_INVALID);
    CHECK_MESSAGE("it must be finite");
    CHECK_STATUS(hpc_exchange_apply(e, 0, 1, -1, NULL), HPC_ERR_INVALID);
    int f16 = job_wire(&j, 0) == HPC_F32;
    check_gathered_wide(&j, r, e, f16);
    rank_meet(r);
    if (r->rank == 0) { /* the others have not called: it is under way */
        CHECK_OK(hpc_exchange_apply(e, 0, 1, -1, &ticket));
        CHECK_STATUS(hpc_exchange_start(e, 0, HPC_PUSH, NULL, -1, &ticket), HPC_ERR_INVALID);
        CHECK_MESSAGE("is under way");
        CHECK_STATUS(hpc_exchange_gradient(e, 0, 0.05, &gradient), HPC_ERR_TIMEOUT);
        CHECK_STATUS(hpc_exchange_apply(e, 0, 1, -1, &ticket), HPC_ERR_INVALID);
    }
    rank_meet(r);
    if (r->rank != 0) CHECK_OK(hpc_exchange_apply(e, 0, 1, -1, &ticket));
    CHECK_OK(hpc_exchange_start(e, 0, HPC_PULL, NULL, -1, &ticket)); /* nothing is kept: it waits for the apply */
    do_wait(e, 0, ticket);
    CHECK_OK(hpc_exchange_apply(e, 1, NAN, -1, &ticket)); /* as torch clips a gradient with a NaN */
    do_wait(e, 1, ticket);
    for (uint64_t i = 0; i < j.keys[1].count; i++) CHECK(isnan(hpc_exchange_params(e, 1)[i]));
    end(r, &j, NULL, e);
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "random_2_inline", .size = 2, .run = random_jobs, .arg = INLINE},
        {.name = "random_3_thread", .size = 3, .run = random_jobs, .arg = THREAD},
        {.name = "random_4_sleepy", .size = 4, .run = random_jobs, .arg = INLINE, .sleepy = true},
        {.name = "leader_computes", .size = 4, .run = leader_computes, .where = RANKS_UNSEEDED},
        {.name = "cut_short", .size = 2, .run = cut_short},
        {.name = "cut_short_each", .size = 2, .run = cut_short, .arg = EACH},
        {.name = "lowest_first", .size = 2, .run = lowest_first, .where = RANKS_SHM},
        {.name = "refusals", .size = 4, .run = refusals, .where = RANKS_UNSEEDED},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
