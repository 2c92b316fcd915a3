/* Several contexts of one rank on one engine: the waits in one work for the others, all use the same threads, and the
 * end of one leaves the others as they are. */
#include <sched.h>
#include <stdlib.h>

#include "exchange_plans.h"
#include "inside.h"

enum { CONTEXTS = 4, TENANTS = 8, BOTH = HPC_PUSH | HPC_PULL };

/* An exchange of one of the contexts. */
typedef struct tenant {
    rank r; /* with its context */
    job j;
    hpc_exchange *e;
    reference ref;
    int context, step;
    uint64_t tickets[JOB_KEYS];
} tenant;

typedef struct house {
    hpc_engine *engine;
    hpc_context *contexts[CONTEXTS];
    tenant *tenants[TENANTS];
} house;

static house *house_new(void) {
    house *h = calloc(1, sizeof *h);
    CHECK(h);
    CHECK_OK(hpc_engine_create(&h->engine));
    return h;
}

static void open_context(house *h, rank *r, int i) {
    hpc_config config = r->config;
    config.engine = h->engine;
    CHECK_OK(hpc_init(&r->oob, &config, &h->contexts[i]));
}

static tenant *tenant_new(const house *h, const rank *r, int context) {
    tenant *t = calloc(1, sizeof *t);
    CHECK(t);
    t->r = *r;
    t->r.context = h->contexts[context];
    t->context = context;
    job_init(&t->j, &t->r);
    return t;
}

static void tenant_open(tenant *t) {
    t->e = job_open(&t->r, &t->j);
    reference_init(&t->ref, &t->j);
}

static void tenant_close(tenant **t) {
    job_close((*t)->e, &(*t)->ref, NULL);
    free(*t);
    *t = NULL;
}

static void close_house(house *h) {
    for (int i = 0; i < TENANTS; i++)
        if (h->tenants[i]) tenant_close(&h->tenants[i]);
    for (int i = 0; i < CONTEXTS; i++) hpc_context_free(h->contexts[i]);
    hpc_engine_free(h->engine);
    free(h);
}

static void start(tenant *t, int key) {
    t->tickets[key] = job_start(&t->r, &t->j, t->e, key, t->step, BOTH, (t->step + key) % 2);
}

static void finish(tenant *t, int key) {
    CHECK_OK(hpc_exchange_wait(t->e, key, t->tickets[key], -1));
    reference_step(&t->ref, key);
    reference_check(&t->ref, &t->r, t->e, key);
}

static void one_step(tenant *t) {
    for (int key = 0; key < t->j.n_keys; key++) start(t, key);
    for (int key = 0; key < t->j.n_keys; key++) finish(t, key);
    t->step++;
}

/* Rank 0, which owns all, has pushed in the second context, and waits in the first one for rank 1. Rank 1 comes there
 * only when rank 0 has worked for it in the second. */
static void waits_serve_others(rank *r) {
    house *h = house_new();
    for (int i = 0; i < 2; i++) open_context(h, r, i);
    for (int i = 0; i < 2; i++) {
        tenant *t = h->tenants[i] = tenant_new(h, r, i);
        t->j.n_servers = 1, t->j.progress = HPC_PROGRESS_INLINE;
        tenant_open(t);
    }
    for (int step = 0; step < 5; step++) {
        tenant *here = h->tenants[0], *there = h->tenants[1];
        if (r->rank == 1) one_step(there);
        for (int key = 0; r->rank == 0 && key < there->j.n_keys; key++) start(there, key);
        one_step(here);
        for (int key = 0; r->rank == 0 && key < there->j.n_keys; key++) finish(there, key);
        if (r->rank == 0) there->step++;
    }
    close_house(h);
}

static void check_threads(const house *h) {
    const hpc_core *cores = inside(h->tenants[2]->e)->cores;
    for (int i = 0; i < 3; i++)
        for (int c = 0; h->tenants[i] != NULL && c < inside(h->tenants[i]->e)->n_own_cores; c++) {
            const hpc_core *core = &inside(h->tenants[i]->e)->cores[c];
            CHECK(core->thread != NULL && core->thread == cores[c].thread);
        }
}

/* Three exchanges over two contexts, with one, two and three cores. The first to leave is the one that came first. */
static void threads_are_shared(rank *r) {
    house *h = house_new();
    for (int i = 0; i < 2; i++) open_context(h, r, i);
    for (int i = 0; i < 3; i++) {
        tenant *t = h->tenants[i] = tenant_new(h, r, i % 2);
        t->j.progress = HPC_PROGRESS_THREAD, t->j.cores = i + 1, t->j.chunk = 256;
        tenant_open(t);
    }
    for (int left = 0; left < 3; left++) {
        check_threads(h);
        for (int step = 0; step < 3; step++)
            for (int i = left; i < 3; i++) one_step(h->tenants[i]);
        if (left < 2) tenant_close(&h->tenants[left]);
    }
    close_house(h);
}

/* Makes a context of the first two ranks alone. */
static void open_pair(house *h, rank *r, int i) {
    hpc_config config = r->config;
    const size_t nbytes = hpc_address_size();
    char *all = calloc((size_t)r->size + 1, nbytes), *mine = all + (size_t)r->size * nbytes;
    config.engine = h->engine;
    CHECK(all);
    if (r->rank < 2) {
        CHECK_OK(hpc_context_create(r->rank, 2, &config, &h->contexts[i]));
        CHECK_OK(hpc_context_address(h->contexts[i], mine));
    }
    CHECK_OK(hpc_allgather(h->contexts[0], mine, all, nbytes, -1));
    if (r->rank < 2) CHECK_OK(hpc_context_connect(h->contexts[i], all, -1));
    free(all);
}

/* Rank 2 dies, in the first context. The others go on in the second one, whose threads are those of the first. arg:
 * progress. */
static void dies_apart(rank *r) {
    house *h = house_new();
    open_context(h, r, 0);
    open_pair(h, r, 1);
    for (int i = 0; i < 2; i++) {
        if (i == 1 && r->rank == 2) continue;
        rank pair = *r;
        if (i == 1) pair.size = 2;
        tenant *t = h->tenants[i] = tenant_new(h, &pair, i);
        t->j.progress = r->arg;
        tenant_open(t);
    }
    one_step(h->tenants[0]);
    if (r->rank < 2) one_step(h->tenants[1]);
    CHECK_OK(hpc_barrier(h->contexts[0], -1)); /* whose waits serve the others' last steps */
    rank_meet(r);
    if (r->rank == 2) {
        if (!r->mode->threads) rank_die(r);
        CHECK_OK(hpc_context_abort(h->contexts[0], "the test says so"));
    } else {
        int status = HPC_OK;
        for (int key = 0; key < h->tenants[1]->j.n_keys; key++) start(h->tenants[1], key);
        for (int tries = 0; tries < 3 && status == HPC_OK; tries++)
            status = hpc_exchange_push_pull(h->tenants[0]->e, 0, h->tenants[0]->ref.params[0], -1);
        CHECK_EQ(status, HPC_ERR_PEER);
        for (int key = 0; key < h->tenants[1]->j.n_keys; key++) finish(h->tenants[1], key);
        h->tenants[1]->step++;
        for (int step = 0; step < 3; step++) one_step(h->tenants[1]);
        tenant_close(&h->tenants[1]);
        CHECK_OK(hpc_context_close(h->contexts[1]));
    }
    reference_free(&h->tenants[0]->ref);
    hpc_exchange_free(h->tenants[0]->e);
    free(h->tenants[0]);
    h->tenants[0] = NULL;
    close_house(h);
}

/* An exchange of the first context fails on rank 0, which ends that context. The other one goes on. arg: progress. */
static void fails_apart(rank *r) {
    double args[HPC_RULE_ARGS] = {0, 0.25};
    house *h = house_new();
    for (int i = 0; i < 2; i++) open_context(h, r, i);
    for (int i = 0; i < 2; i++) {
        tenant *t = h->tenants[i] = tenant_new(h, r, i);
        t->j.progress = r->arg, t->j.n_servers = 1;
        tenant_open(t);
    }
    one_step(h->tenants[1]);
    if (r->rank == 1) CHECK_OK(hpc_exchange_set_args(h->tenants[0]->e, 0, args));
    CHECK_EQ(hpc_exchange_push_pull(h->tenants[0]->e, 0, h->tenants[0]->ref.params[0], -1),
             r->rank == 0 ? HPC_ERR_CONFIG : HPC_ERR_PEER);
    for (int step = 0; step < 3; step++) one_step(h->tenants[1]);
    reference_free(&h->tenants[0]->ref);
    hpc_exchange_free(h->tenants[0]->e);
    free(h->tenants[0]);
    h->tenants[0] = NULL;
    for (int step = 0; step < 3; step++) one_step(h->tenants[1]);
    close_house(h);
}

/* ---- any exchanges, over any contexts ---- */

static int below(uint64_t *random, int n) {
    return (int)(ranks_random(random) % (uint64_t)n);
}

static void shuffle(int *numbers, int n, uint64_t *random) {
    for (int i = 0; i < n; i++) numbers[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = below(random, i + 1), at = numbers[i];
        numbers[i] = numbers[k], numbers[k] = at;
    }
}

static tenant *random_tenant(const house *h, const rank *r, int context, uint64_t seed) {
    static const int progress[] = {HPC_PROGRESS_INLINE, HPC_PROGRESS_THREAD, HPC_PROGRESS_AUTO};
    tenant *t = tenant_new(h, r, context);
    job_random(&t->j, &t->r, seed);
    for (int i = 0; i < r->size; i++) t->j.workers[i] = i;
    t->j.n_workers = r->size, t->j.sum = 1, t->j.shared_params = 0;
    t->j.progress = progress[(seed + (uint64_t)r->rank) % 3];
    tenant_open(t);
    return t;
}

/* As a checkpoint does. */
static void pause_cores(const tenant *t, uint64_t *own) {
    for (int c = 0; c < inside(t->e)->n_own_cores; c++) {
        hpc_core_pause(&inside(t->e)->cores[c]);
        for (int n = below(own, 20); n > 0; n--) sched_yield();
        hpc_core_resume(&inside(t->e)->cores[c]);
    }
}

/* A step of all keys of all exchanges, in an order of chance, which differs from rank to rank. */
static void step_of_all(house *h, uint64_t *own) {
    int at[TENANTS * JOB_KEYS][2], order[TENANTS * JOB_KEYS], n = 0;
    for (int i = 0; i < TENANTS; i++)
        for (int key = 0; h->tenants[i] && key < h->tenants[i]->j.n_keys; key++, n++) at[n][0] = i, at[n][1] = key;
    shuffle(order, n, own);
    for (int i = 0; i < n; i++) start(h->tenants[at[order[i]][0]], at[order[i]][1]);
    if (n > 0) pause_cores(h->tenants[at[order[0]][0]], own);
    shuffle(order, n, own);
    for (int i = 0; i < n; i++) finish(h->tenants[at[order[i]][0]], at[order[i]][1]);
    for (int i = 0; i < TENANTS; i++)
        if (h->tenants[i]) h->tenants[i]->step++;
}

/* Frees what the job has of a context. lost: a rank has aborted it, so its exchanges cannot be closed. */
static void leave_context(house *h, int context, bool lost) {
    for (int i = 0; i < TENANTS; i++) {
        tenant *t = h->tenants[i];
        if (t == NULL || t->context != context) continue;
        if (!lost) {
            tenant_close(&h->tenants[i]);
            continue;
        }
        reference_free(&t->ref);
        hpc_exchange_free(t->e);
        free(t);
        h->tenants[i] = NULL;
    }
    if (!lost) CHECK_OK(hpc_barrier(h->contexts[context], -1));
    hpc_context_free(h->contexts[context]);
    h->contexts[context] = NULL;
}

/* One rank gives a context up. */
static void abort_context(house *h, rank *r, int context, int victim) {
    CHECK_OK(hpc_barrier(h->contexts[context], -1)); /* whose waits serve the others' last steps */
    rank_meet(r);
    if (r->rank == victim) CHECK_OK(hpc_context_abort(h->contexts[context], "the test says so"));
    leave_context(h, context, true);
}

/* Closes an exchange, or opens one; closes a context with all its exchanges; or one rank aborts it. */
static void change(house *h, rank *r, int n_contexts, uint64_t *common) {
    const int what = below(common, 4), which = below(common, TENANTS), context = below(common, n_contexts);
    const int victim = below(common, r->size);
    const uint64_t seed = ranks_random(common) % 100000;
    if (what == 0 && h->tenants[which]) tenant_close(&h->tenants[which]);
    if (!h->contexts[context]) return;
    if (what == 1 && !h->tenants[which]) h->tenants[which] = random_tenant(h, r, context, seed);
    if (what == 2) leave_context(h, context, false);
    if (what == 3) abort_context(h, r, context, victim);
}

static void random_house(rank *r, uint64_t seed) {
    uint64_t common = seed * 77 + 5, own = seed * 1009 + (uint64_t)r->rank;
    const int n_contexts = 1 + below(&common, CONTEXTS), n = 1 + below(&common, TENANTS);
    house *h = house_new();
    for (int i = 0; i < n_contexts; i++) open_context(h, r, i);
    for (int i = 0; i < n; i++)
        h->tenants[i] = random_tenant(h, r, below(&common, n_contexts), seed * 10 + (uint64_t)i);
    for (int step = 0; step < 5; step++) {
        step_of_all(h, &own);
        change(h, r, n_contexts, &common);
    }
    for (int i = 0; i < TENANTS; i++)
        if (h->tenants[i]) tenant_close(&h->tenants[i]);
    for (int i = 0; i < n_contexts; i++)
        if (h->contexts[i]) CHECK_OK(hpc_barrier(h->contexts[i], -1));
    close_house(h);
}

static void random_houses(rank *r) {
    int rounds = ranks_rounds(10);
    for (int i = 0; i < rounds; i++) random_house(r, (uint64_t)(1000 * r->arg + i + 1));
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "waits_serve_others", .size = 2, .run = waits_serve_others, .bare = true},
        {.name = "sleeping_waits_serve_others", .size = 2, .run = waits_serve_others, .bare = true, .sleepy = true},
        {.name = "threads_are_shared", .size = 2, .run = threads_are_shared, .bare = true},
        {.name = "threads_sleep", .size = 2, .run = threads_are_shared, .bare = true, .sleepy = true},
        {.name = "dies_apart_inline",
         .size = 3,
         .run = dies_apart,
         .arg = HPC_PROGRESS_INLINE,
         .bare = true,
         .victims = 4},
        {.name = "dies_apart_thread",
         .size = 3,
         .run = dies_apart,
         .arg = HPC_PROGRESS_THREAD,
         .bare = true,
         .victims = 4},
        {.name = "fails_apart_inline", .size = 2, .run = fails_apart, .arg = HPC_PROGRESS_INLINE, .bare = true},
        {.name = "fails_apart_thread", .size = 2, .run = fails_apart, .arg = HPC_PROGRESS_THREAD, .bare = true},
        {.name = "random_2", .size = 2, .run = random_houses, .arg = 1, .bare = true},
        {.name = "random_3", .size = 3, .run = random_houses, .arg = 2, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
