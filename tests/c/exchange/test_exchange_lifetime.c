/* Exchanges that come and go: several at once, freed in any order, with or without close, before and after windows and
 * the context itself; memory that outlives them; threads of one rank with an exchange each. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exchange_plans.h"
#include "inside.h"

enum { BOTH = HPC_PUSH | HPC_PULL, MANY = 3 };

/* ---- several at once ----------------------------------------------------------------------------------------------
 */

/* MANY jobs that differ in everything: placement, rule, wire, progress, and one of them ASYNC. */
static void several_jobs(rank *r, job *jobs, bool threads) {
    for (int i = 0; i < MANY; i++) {
        job_init(&jobs[i], r);
        jobs[i].seed = (uint64_t)i + 3;
        jobs[i].chunk = (uint64_t)256 << i;
        jobs[i].progress = threads && i ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    }
    jobs[0].servers[0] = 1, jobs[0].n_servers = 1;
    jobs[1].rule = "momentum", jobs[1].args[3] = 0.5, jobs[1].cores = 2, jobs[1].wire = HPC_BF16;
    jobs[2].each = 1, jobs[2].depth = 2;
}

static void pulled(hpc_exchange *e, int key) {
    uint64_t ticket;
    CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &ticket));
    CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
}

/* arg: threads. All under way together, and waited for in another order than they were pushed in. */
static void several(rank *r) {
    enum { STEPS = 6 };
    job jobs[MANY];
    hpc_exchange *e[MANY];
    reference refs[MANY];
    several_jobs(r, jobs, r->arg);
    for (int i = 0; i < MANY; i++) {
        e[i] = job_open(r, &jobs[i]);
        reference_init(&refs[i], &jobs[i]);
    }
    for (int step = 0; step < STEPS; step++) {
        uint64_t tickets[MANY][JOB_KEYS];
        for (int i = 0; i < MANY; i++) {
            int which = (i + r->rank + step) % MANY;
            for (int key = 0; key < jobs[which].n_keys; key++)
                tickets[which][key] = job_start(r, &jobs[which], e[which], key, step, BOTH, key % 2);
        }
        for (int i = MANY - 1; i >= 0; i--) {
            int which = (i + step) % MANY;
            for (int key = 0; key < jobs[which].n_keys; key++) {
                CHECK_OK(hpc_exchange_wait(e[which], key, tickets[which][key], -1));
                reference_step(&refs[which], key);
                if (!jobs[which].each) reference_check(&refs[which], r, e[which], key);
            }
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1)); /* all of the ASYNC one has been applied */
    for (int key = 0; key < jobs[2].n_keys; key++) {
        pulled(e[2], key);
        reference_check(&refs[2], r, e[2], key);
    }
    for (int i = 0; i < MANY; i++) reference_free(&refs[i]);
    for (int i = 0; i < MANY; i++) {
        int which = (i + r->rank) % MANY; /* in another order on every rank, some closed before */
        if (!jobs[which].each && (i + r->rank) % 2) CHECK_OK(hpc_exchange_close(e[which], -1));
        if (!jobs[which].each) hpc_exchange_free(e[which]);
    }
    CHECK_OK(hpc_exchange_close(e[2], -1)); /* serves the others until they have closed too */
    hpc_exchange_free(e[2]);
}

/* One comes while another is under way, over and over; the numbers of lanes and windows start anew each time. */
static void come_and_go(rank *r) {
    job stays, comes;
    job_init(&stays, r);
    job_init(&comes, r);
    hpc_exchange *e = job_open(r, &stays);
    reference ref;
    reference_init(&ref, &stays);
    int rounds = ranks_rounds(20);
    for (int step = 0; step < rounds; step++) {
        uint64_t ticket = job_start(r, &stays, e, 2, step, BOTH, step % 2);
        comes.seed = (uint64_t)step;
        comes.cores = 1 + step % 3;
        comes.progress = step % 4 == 3 ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
        hpc_exchange *other = job_open(r, &comes);
        reference once;
        reference_init(&once, &comes);
        for (int key = 0; key < comes.n_keys; key++) {
            job_push_pull(r, &comes, other, key, 0);
            reference_step(&once, key);
            reference_check(&once, r, other, key);
        }
        reference_free(&once);
        hpc_exchange_free(other);
        CHECK_OK(hpc_exchange_wait(e, 2, ticket, -1));
        reference_step(&ref, 2);
        reference_check(&ref, r, e, 2);
    }
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* ---- ends ---------------------------------------------------------------------------------------------------------
 */

/* Every rank frees as soon as it has its own parameters: what its peers still wait for is on its way all the same. */
static void free_at_once(rank *r) {
    int rounds = ranks_rounds(40);
    for (int round = 0; round < rounds; round++) {
        job j;
        reference ref;
        job_init(&j, r);
        j.seed = (uint64_t)round;
        j.progress = r->arg;
        hpc_exchange *e = job_open(r, &j);
        reference_init(&ref, &j);
        uint64_t tickets[JOB_KEYS];
        for (int key = 0; key < j.n_keys; key++) tickets[key] = job_start(r, &j, e, key, 0, BOTH, round % 2);
        for (int key = 0; key < j.n_keys; key++) {
            CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
        reference_free(&ref);
        hpc_exchange_free(e);
    }
}

/* arg: progress. Rank 0 owns all rows, closes with its pushes under way and is in no call from then on: what it pushed
 * is applied and its peers get all of it. */
static void close_finishes(rank *r) {
    job j;
    reference ref;
    uint64_t tickets[JOB_KEYS];
    job_init(&j, r);
    j.progress = r->arg, j.n_servers = 1;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int key = 0; key < j.n_keys; key++) tickets[key] = job_start(r, &j, e, key, 0, HPC_PUSH, key % 2);
    if (r->rank == 0)
        CHECK_OK(hpc_exchange_close(e, -1));
    else {
        for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
        rank_set(r, r->rank, 1);
    }
    for (int who = 1; who < r->size; who++) rank_await(r, who, 1);
    for (int key = 0; key < j.n_keys; key++) {
        reference_step(&ref, key);
        reference_check(&ref, r, e, key);
    }
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* Freed after its context, and before and after windows that came with it. */
static void context_first(rank *r) {
    job j;
    hpc_window *before, *after;
    uint64_t ticket;
    job_init(&j, r);
    j.progress = r->arg;
    CHECK_OK(hpc_window_create(r->context, 4096, 1, NULL, -1, &before));
    hpc_exchange *e = job_open(r, &j), *other = job_open(r, &j);
    CHECK_OK(hpc_window_create(r->context, 4096, 1, NULL, -1, &after));
    hpc_window_free(before);
    for (int key = 0; key < j.n_keys; key++) job_push_pull(r, &j, e, key, 0);
    hpc_exchange_free(other);
    for (int key = 0; key < j.n_keys; key++) job_push_pull(r, &j, e, key, 1);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_context_close(r->context));
    CHECK_STATUS(hpc_exchange_start(e, 0, BOTH, hpc_exchange_params(e, 2), -1, &ticket), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_push_pull(e, 0, hpc_exchange_params(e, 0), -1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_serve(e, -1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_publish(e, -1), HPC_ERR_INVALID);
    hpc_context_free(r->context);
    r->context = NULL;
    hpc_exchange_free(e);
    hpc_window_free(after);
    hpc_exchange_free(NULL);
}

/* A reference keeps the memory of parameters and gradients past the exchange and the context. */
static void memory_stays(rank *r) {
    job j;
    reference ref;
    void *gradient;
    job_init(&j, r);
    j.shared_params = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int key = 0; key < j.n_keys; key++) {
        job_push_pull(r, &j, e, key, 0);
        reference_step(&ref, key);
    }
    int holder = inside(e)->layout.holder;
    CHECK_EQ(holder, r->arg ? 0 : r->rank);
    hpc_memory *own = hpc_exchange_memory(e, 0, NULL);
    hpc_memory *params = hpc_exchange_memory(e, 0, hpc_exchange_params(e, 0));
    CHECK(own && params && hpc_memory_data(own) && hpc_memory_data(params));
    const float *at[JOB_KEYS];
    for (int key = 0; key < j.n_keys; key++) {
        at[key] = hpc_exchange_params(e, key);
        CHECK((const char *)at[key] >= (const char *)hpc_memory_data(params));
    }
    CHECK_OK(hpc_exchange_gradient(e, 2, -1, &gradient));
    CHECK((char *)gradient >= (char *)hpc_memory_data(own));
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
    CHECK_OK(hpc_context_close(r->context));
    hpc_context_free(r->context);
    r->context = NULL;
    for (int key = 0; key < j.n_keys; key++)
        CHECK(same_floats(at[key], ref.params[key], j.keys[key].count, "kept", r->rank, key));
    memset(gradient, 1, j.keys[2].count * sizeof(float));
    hpc_memory_release(own);
    hpc_memory_release(params);
    reference_free(&ref);
}

/* arg: 1: ASYNC. Closed: pushes are refused, closing again is nothing, and parameters stay readable until free. */
static void closed(rank *r) {
    job j;
    reference ref;
    uint64_t ticket;
    void *gradient;
    job_init(&j, r);
    j.each = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int key = 0; key < j.n_keys; key++) {
        job_push_pull(r, &j, e, key, 0);
        reference_step(&ref, key);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    if (j.each) {
        for (int key = 0; key < j.n_keys; key++) pulled(e, key);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_STATUS(hpc_exchange_start(e, 1, BOTH, ref.params[1], -1, &ticket), HPC_ERR_INVALID);
    CHECK_MESSAGE("close");
    CHECK_STATUS(hpc_exchange_push_pull(e, 1, ref.params[1], -1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_gradient(e, 1, -1, &gradient), HPC_ERR_INVALID);
    for (int key = 0; key < j.n_keys; key++) reference_check(&ref, r, e, key);
    CHECK_OK(hpc_exchange_serve(e, -1)); /* until all have closed */
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* arg: progress. A forked child (a data loader) can neither use nor tear down its parent's exchange. */
static void forked_child(rank *r) {
    job j;
    reference ref;
    uint64_t ticket;
    void *gradient;
    job_init(&j, r);
    j.progress = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    job_push_pull(r, &j, e, 2, 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_STATUS(hpc_exchange_start(e, 2, BOTH, ref.params[2], -1, &ticket), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_exchange_gradient(e, 2, -1, &gradient), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_exchange_serve(e, -1), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_exchange_publish(e, -1), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_exchange_close(e, -1), HPC_ERR_INVALID);
        hpc_exchange_free(e);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    reference_step(&ref, 2);
    for (int step = 1; step < 4; step++) {
        job_push_pull(r, &j, e, 2, step);
        reference_step(&ref, 2);
        reference_check(&ref, r, e, 2);
    }
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* ---- threads ------------------------------------------------------------------------------------------------------
 */

typedef struct trainer {
    rank *r;
    job j;
    hpc_exchange *e;
    int steps;
    pthread_t thread;
} trainer;

static void *train(void *arg) {
    trainer *t = arg;
    reference ref;
    reference_init(&ref, &t->j);
    for (int step = 0; step < t->steps; step++) {
        uint64_t tickets[JOB_KEYS];
        for (int key = 0; key < t->j.n_keys; key++)
            tickets[key] = job_start(t->r, &t->j, t->e, key, step, BOTH, step % 2);
        for (int key = t->j.n_keys - 1; key >= 0; key--) {
            CHECK_OK(hpc_exchange_wait(t->e, key, tickets[key], -1));
            reference_step(&ref, key);
            reference_check(&ref, t->r, t->e, key);
        }
    }
    reference_free(&ref);
    return NULL;
}

/* arg: progress. An exchange for each thread; the waits of one work for the others' rows as well. The rank's first
 * thread meets its peers in barriers meanwhile. */
static void trainers(rank *r) {
    trainer t[MANY];
    for (int i = 0; i < MANY; i++) {
        t[i] = (trainer){.r = r, .steps = ranks_rounds(30)};
        job_init(&t[i].j, r);
        t[i].j.seed = (uint64_t)i;
        t[i].j.progress = r->arg;
        if (i == 1) t[i].j.servers[0] = 0, t[i].j.n_servers = 1;
        t[i].e = job_open(r, &t[i].j);
    }
    for (int i = 0; i < MANY; i++) CHECK_EQ(pthread_create(&t[i].thread, NULL, train, &t[i]), 0);
    for (int i = 0; i < 20; i++) CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < MANY; i++) CHECK_EQ(pthread_join(t[i].thread, NULL), 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < MANY; i++) hpc_exchange_free(t[i].e);
}

/* One thread trains while another makes and frees exchanges. */
static void trainer_and_creator(rank *r) {
    trainer t = {.r = r, .steps = ranks_rounds(30)};
    job_init(&t.j, r);
    t.j.progress = r->arg;
    t.e = job_open(r, &t.j);
    CHECK_EQ(pthread_create(&t.thread, NULL, train, &t), 0);
    for (int i = 0; i < 6; i++) {
        job other;
        job_init(&other, r);
        other.seed = (uint64_t)i;
        hpc_exchange *e = job_open(r, &other);
        job_push_pull(r, &other, e, i % 3, 0);
        hpc_exchange_free(e);
    }
    CHECK_EQ(pthread_join(t.thread, NULL), 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(t.e);
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "several", .size = 3, .run = several},
        {.name = "several_threads", .size = 3, .run = several, .arg = 1},
        {.name = "several_sleepy", .size = 4, .run = several, .sleepy = true},
        {.name = "come_and_go", .size = 3, .run = come_and_go},
        {.name = "free_at_once", .size = 3, .run = free_at_once, .arg = INLINE},
        {.name = "free_at_once_thread", .size = 2, .run = free_at_once, .arg = THREAD},
        {.name = "free_at_once_apart", .size = 3, .run = free_at_once, .arg = INLINE, .apart = true},
        {.name = "close_finishes", .size = 3, .run = close_finishes, .arg = INLINE},
        {.name = "close_finishes_thread", .size = 3, .run = close_finishes, .arg = THREAD},
        {.name = "context_first", .size = 3, .run = context_first, .arg = INLINE},
        {.name = "context_first_thread", .size = 2, .run = context_first, .arg = THREAD},
        {.name = "memory_stays", .size = 2, .run = memory_stays},
        {.name = "memory_stays_shared", .size = 3, .run = memory_stays, .arg = 1, .where = RANKS_SHM},
        {.name = "closed", .size = 3, .run = closed},
        {.name = "closed_async", .size = 3, .run = closed, .arg = 1},
        {.name = "forked_child", .size = 2, .run = forked_child, .arg = INLINE, .where = RANKS_NOT_TSAN},
        {.name = "forked_child_thread", .size = 2, .run = forked_child, .arg = THREAD, .where = RANKS_NOT_TSAN},
        {.name = "trainers", .size = 2, .run = trainers, .arg = INLINE},
        {.name = "trainers_sleepy", .size = 3, .run = trainers, .arg = INLINE, .sleepy = true},
        {.name = "trainers_thread", .size = 2, .run = trainers, .arg = THREAD},
        {.name = "trainer_and_creator", .size = 2, .run = trainer_and_creator, .arg = INLINE},
        {.name = "trainer_and_creator_thread", .size = 2, .run = trainer_and_creator, .arg = THREAD},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
