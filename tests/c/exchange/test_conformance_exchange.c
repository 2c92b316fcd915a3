/* The exchange against plain sums: any keys, chunks, placements, ranks, rules, wires and orders of arrival. Every rank
 * compares every bit after every step. */
#include <sched.h>

#include "exchange_plans.h"
#include "inside.h"
#include "base/host.h"
#include "base/isa.h"

enum { STEPS = 4, MIXED = 8, THREADS = 8 };

typedef struct flight {
    int started, done;
    uint64_t ticket;
} flight;

/* Before its push and after its pull the parameters of a key are the worker's own, and stay. */
static void start(rank *r, const job *j, hpc_exchange *e, const reference *ref, flight *f, int key, uint64_t *random) {
    reference_check(ref, r, e, key);
    bool in_place = ranks_random(random) % 2, apart = ranks_random(random) % 4 == 0;
    f->ticket = job_start(r, j, e, key, f->started, apart ? HPC_PUSH : HPC_PUSH | HPC_PULL, in_place);
    if (apart) CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &f->ticket));
    f->started++;
}

static void land(rank *r, hpc_exchange *e, reference *ref, flight *f, int key) {
    f->done++;
    reference_step(ref, key);
    reference_check(ref, r, e, key);
}

/* Under way, and no key of this rank is further behind. */
static bool is_last(const flight *flights, int n, int key) {
    for (int i = 0; i < n; i++) {
        if (flights[i].done < STEPS && flights[i].started < flights[key].started) return false;
    }
    return true;
}

/* Pushes keys as chance has it, one key several steps ahead of another. A rank waits only when all its keys are on the
 * way, and then for one that is furthest behind: of all ranks that wait, one can go on. */
static void work(rank *r, const job *j, hpc_exchange *e, uint64_t random) {
    reference ref;
    flight flights[JOB_KEYS] = {{0}};
    reference_init(&ref, j);
    int left = j->n_keys * STEPS, grounded = j->n_keys; /* keys that could start */
    while (left) {
        int key = (int)(ranks_random(&random) % (uint64_t)j->n_keys), status = HPC_IN_PROGRESS;
        flight *f = &flights[key];
        if (f->done == STEPS) continue;
        if (f->started == f->done) {
            start(r, j, e, &ref, f, key, &random);
            grounded--;
            continue;
        }
        switch (ranks_random(&random) % 4) {
        case 0:
            CHECK_OK(hpc_exchange_progress(e));
            break;
        case 1:
            if (grounded || !is_last(flights, j->n_keys, key)) break;
            status = HPC_OK;
            CHECK_OK(hpc_exchange_wait(e, key, f->ticket, -1));
            break;
        default:
            status = hpc_exchange_test(e, key, f->ticket);
            if (status != HPC_IN_PROGRESS) CHECK_OK(status);
        }
        if (status == HPC_IN_PROGRESS) {
            sched_yield();
            continue;
        }
        land(r, e, &ref, f, key);
        left--;
        grounded += f->done < STEPS;
    }
    reference_free(&ref);
}

static void random_job(rank *r, uint64_t seed) {
    job j;
    job_random(&j, r, seed);
    uint64_t own = seed * 64 + (uint64_t)r->rank; /* each rank its own order, instruction set and progress */
    j.progress = r->arg == MIXED ? HPC_PROGRESS_INLINE + (int)(ranks_random(&own) % 2) : r->arg;
    do j.isa = HPC_ISA_BEST + (int)(ranks_random(&own) % 4);
    while (!hpc_isa_available(j.isa));
    hpc_exchange *e = job_open(r, &j);
    bool works = job_works(&j, r->rank);
    for (int key = 0; key < j.n_keys; key++) CHECK((hpc_exchange_params(e, key) != NULL) == works);
    CHECK((inside(e)->layout.holder >= 0) == works);
    if (works)
        work(r, &j, e, own);
    else
        CHECK_OK(hpc_exchange_serve(e, -1));
    hpc_exchange_stats stats;
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.pushes, works ? j.n_keys * STEPS : 0);
    CHECK_EQ(stats.pulls, works ? j.n_keys * STEPS : 0);
    if (seed % 3 == 0 || ranks_random(&own) % 2) CHECK_OK(hpc_exchange_close(e, -1));
    if (seed % 3 == 0) CHECK_OK(hpc_barrier(r->context, -1)); /* servers come out once all have closed */
    hpc_exchange_free(e);
}

static void random_jobs(rank *r) {
    int rounds = ranks_rounds(20);
    for (int i = 0; i < rounds; i++) random_job(r, (uint64_t)(1000 * r->arg + i + 1));
}

/* ASYNC: with sgd it does not matter in which order updates are applied. When all have pulled after all have pushed,
 * everybody has every update. */
static void random_async(rank *r, uint64_t seed) {
    job j;
    reference ref;
    job_random(&j, r, seed);
    j.each = j.sum = 1, j.rule = "sgd", j.shared_params = 0;
    j.depth = 1 + (int)(seed % 3);
    uint64_t random = seed * 64 + (uint64_t)r->rank, ticket;
    j.progress = HPC_PROGRESS_INLINE + (int)(ranks_random(&random) % 2);
    hpc_exchange *e = job_open(r, &j);
    int pushed[JOB_KEYS] = {0}, left = j.n_keys * STEPS;
    while (left && job_works(&j, r->rank)) {
        int key = (int)(ranks_random(&random) % (uint64_t)j.n_keys), what = (int)(ranks_random(&random) % 4);
        if (what == 0) CHECK_OK(hpc_exchange_progress(e));
        if (what == 0 || pushed[key] == STEPS) continue;
        ticket = job_start(r, &j, e, key, pushed[key]++, what == 1 ? HPC_PUSH : HPC_PUSH | HPC_PULL, true);
        if (what == 3) CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
        left--;
    }
    for (int key = 0; key < j.n_keys && job_works(&j, r->rank); key++) {
        CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(e, key, ticket, -1)); /* and so all of this rank's updates are in */
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    reference_init(&ref, &j);
    for (int key = 0; key < j.n_keys && job_works(&j, r->rank); key++) {
        for (int i = 0; i < STEPS; i++) reference_step(&ref, key);
        CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
        reference_check(&ref, r, e, key);
    }
    reference_free(&ref);
    CHECK_OK(job_works(&j, r->rank) ? hpc_exchange_close(e, -1) : hpc_exchange_serve(e, -1));
    hpc_exchange_free(e);
}

static void random_asyncs(rank *r) {
    int rounds = ranks_rounds(20);
    for (int i = 0; i < rounds; i++) random_async(r, (uint64_t)(100 * r->size + i));
}

/* ---- plans that no hub makes ---------------------------------------------------------------------------------- */

static void staged_step(rank *r, const job *j, hpc_exchange *e, reference *ref, int step, double weight) {
    uint64_t tickets[JOB_KEYS];
    for (int i = 0; i < j->n_keys; i++) {
        int key = (i + r->rank + step) % j->n_keys;
        tickets[key] = job_start(r, j, e, key, step, HPC_PUSH | HPC_PULL, (step + key) % 2);
    }
    for (int key = 0; key < j->n_keys; key++) {
        CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
        double *sum = calloc(j->keys[key].count, sizeof *sum);
        for (int who = 0; who < r->size; who++) {
            for (uint64_t i = 0; i < j->keys[key].count; i++)
                sum[i] += weight * (double)job_gradient(j, who, step, key, i);
        }
        reference_apply(ref, key, sum);
        free(sum);
        reference_check(ref, r, e, key);
    }
}

/* arg: wire + 8 in threads. By momentum. */
static void racks(rank *r) {
    job j;
    hand_plan h;
    reference ref;
    job_init(&j, r);
    j.wire = r->arg % 8, j.rule = "momentum", j.args[3] = 0.5;
    if (r->arg / 8) j.progress = HPC_PROGRESS_THREAD;
    hand_racks(&h, &j, r->size, j.wire, 1024);
    CHECK_OK(hpc_plan_check(&h.plan, r->size));
    j.plan = &h.plan;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 6; step++) staged_step(r, &j, e, &ref, step, 0.5);
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* More rows are forwarded than the last rank's ring has room for, while it does not look: the leaders go on and send
 * the rest later. */
static void racks_full(rank *r) {
    job j;
    hand_plan h;
    reference ref;
    uint64_t ticket;
    job_init(&j, r);
    j.n_keys = 1;
    j.keys[0].count = 16 * 600 + 5;
    hand_racks(&h, &j, r->size, HPC_F32, 16);
    CHECK(h.plan.n_rows / 3 > 2 * HPC_NOTIFY_DEPTH);
    j.plan = &h.plan;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 5; step++) {
        if (r->rank == 3) {
            rank_await(r, 0, (uint64_t)step + 1);
        } else if (r->rank == 0) { /* its rack's sums are ready without the last rank */
            ticket = job_start(r, &j, e, 0, step, HPC_PUSH | HPC_PULL, true);
            CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, 0.02), HPC_ERR_TIMEOUT);
            rank_set(r, 0, (uint64_t)step + 1);
            CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
            double *sum = calloc(j.keys[0].count, sizeof *sum);
            for (int who = 0; who < r->size; who++) {
                for (uint64_t i = 0; i < j.keys[0].count; i++)
                    sum[i] += 0.5 * (double)job_gradient(&j, who, step, 0, i);
            }
            reference_apply(&ref, 0, sum);
            free(sum);
            reference_check(&ref, r, e, 0);
            continue;
        }
        staged_step(r, &j, e, &ref, step, 0.5);
    }
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* arg: progress. A hop sends to two rows of one core. */
static void relay(rank *r) {
    job j;
    hand_plan h;
    reference ref;
    job_init(&j, r);
    j.rule = "momentum", j.args[3] = 0.5, j.progress = r->arg;
    hand_relay(&h, &j, r->size, 1024);
    CHECK_OK(hpc_plan_check(&h.plan, r->size));
    j.plan = &h.plan;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 6; step++) staged_step(r, &j, e, &ref, step, 1);
    reference_free(&ref);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
}

/* arg: wire + 8 * threads. Nobody waits for all: a rank may be a step ahead of its neighbours, and two of theirs. */
static void ring(rank *r) {
    job j;
    hand_plan h;
    job_init(&j, r);
    j.wire = r->arg % 8, j.rule = "average";
    j.progress = r->arg / 8 ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    hand_ring(&h, &j, r->size, j.wire, 1024);
    CHECK_OK(hpc_plan_check(&h.plan, r->size));
    j.plan = &h.plan;
    hpc_exchange *e = job_open(r, &j);
    int rounds = ranks_rounds(60), next = (r->rank + 1) % r->size, prev = (r->rank + r->size - 1) % r->size;
    float *expected = malloc(j.keys[2].count * sizeof *expected);
    for (int step = 0; step < rounds; step++) {
        uint64_t tickets[JOB_KEYS];
        for (int key = 0; key < j.n_keys; key++)
            tickets[key] = job_start(r, &j, e, key, step, HPC_PUSH | HPC_PULL, true);
        for (int key = j.n_keys - 1; key >= 0; key--) {
            CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
            for (uint64_t i = 0; i < j.keys[key].count; i++)
                expected[i] = 0.25f * job_gradient(&j, prev, step, key, i) +
                              0.5f * job_gradient(&j, r->rank, step, key, i) +
                              0.25f * job_gradient(&j, next, step, key, i);
            CHECK(same_floats(hpc_exchange_params(e, key), expected, j.keys[key].count, "emitted", r->rank, key));
        }
    }
    free(expected);
    hpc_exchange_free(e);
}

/* More than the last cache holds: parameters are written past it. An odd number of elements, in chunks that are no
 * whole number of blocks. */
static void large(rank *r) {
    job j;
    reference ref;
    size_t cache = hpc_host_cache("");
    job_init(&j, r);
    j.n_keys = 1, j.chunk = 65536 + 64, j.rule = "momentum", j.args[3] = 0.5;
    j.keys[0].count = (cache < (64u << 20) ? cache : 64u << 20) / 12 + 13;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 3; step++) {
        job_push_pull(r, &j, e, 0, step);
        reference_step(&ref, 0);
        reference_check(&ref, r, e, 0);
    }
    reference_free(&ref);
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "random_2_inline", .size = 2, .run = random_jobs, .arg = HPC_PROGRESS_INLINE},
        {.name = "random_3_thread", .size = 3, .run = random_jobs, .arg = HPC_PROGRESS_THREAD},
        {.name = "random_4_auto", .size = 4, .run = random_jobs, .arg = HPC_PROGRESS_AUTO},
        {.name = "random_4_inline_sleepy", .size = 4, .run = random_jobs, .arg = HPC_PROGRESS_INLINE, .sleepy = true},
        {.name = "random_3_thread_sleepy", .size = 3, .run = random_jobs, .arg = HPC_PROGRESS_THREAD, .sleepy = true},
        {.name = "random_5_mixed", .size = 5, .run = random_jobs, .arg = MIXED},
        {.name = "random_8_auto_sleepy", .size = 8, .run = random_jobs, .arg = HPC_PROGRESS_AUTO, .sleepy = true},
        {.name = "random_2_async", .size = 2, .run = random_asyncs},
        {.name = "random_4_async_sleepy", .size = 4, .run = random_asyncs, .sleepy = true},
        {.name = "racks_4", .size = 4, .run = racks, .arg = HPC_F32},
        {.name = "racks_5_bf16", .size = 5, .run = racks, .arg = HPC_BF16},
        {.name = "racks_5_f16_thread", .size = 5, .run = racks, .arg = HPC_F16 + THREADS},
        {.name = "racks_4_full", .size = 4, .run = racks_full},
        {.name = "relay_3", .size = 3, .run = relay, .arg = HPC_PROGRESS_INLINE},
        {.name = "relay_5_thread", .size = 5, .run = relay, .arg = HPC_PROGRESS_THREAD},
        {.name = "ring_4", .size = 4, .run = ring, .arg = HPC_F32},
        {.name = "ring_4_bf16_thread", .size = 4, .run = ring, .arg = HPC_BF16 + THREADS},
        {.name = "ring_5_f16_sleepy", .size = 5, .run = ring, .arg = HPC_F16, .sleepy = true},
        {.name = "large", .size = 2, .run = large, .where = RANKS_UNSEEDED | RANKS_NOT_TSAN},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
