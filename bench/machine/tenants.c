/* tenants.c - several exchanges of one process (tenants.py): an idle one beside another, two busy ones, and small
 * updates beside large ones.
 *
 * tenants ROW PROGRESS SECONDS CPUS [options of c_ranks.h]
 *
 * ROW is idle, busy or ping; PROGRESS is inline or thread; a block lasts SECONDS. CPUS is own if the threads that call
 * hpcomm, ping or copy stay on one CPU of their rank, or any. Rank 0 prints a line of JSON for each block. A round (-N)
 * is one block of each arrangement; each round begins with the next arrangement. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "c_ranks.h"

/* ---- a ping of two processes, or threads ---- */

typedef struct futex_word {
    _Atomic int value;
    char unused[2 * BENCH_LINE - sizeof(int)];
} futex_word;

typedef struct futex_pair {
    futex_word there, back;
} futex_pair;

enum { NO_MORE = -1 /* the end of pings */ };

static void futex_wake(futex_word *w) {
    syscall(SYS_futex, &w->value, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Sleeps until a word has changed from old; returns its value. */
static int futex_wait(futex_word *w, int old) {
    int value;
    while ((value = atomic_load(&w->value)) == old) syscall(SYS_futex, &w->value, FUTEX_WAIT, old, NULL, NULL, 0);
    return value;
}

static void futex_set(futex_word *w, int value) {
    atomic_store(&w->value, value);
    futex_wake(w);
}

/* Takes at most so many samples of a round trip: rank 0 changes one word, on which rank 1 sleeps, and sleeps on the
 * other. All bytes of the pair are 0 before and after. Returns the number of samples. */
BENCH_API int bench_futex_ping(futex_pair *pair, int rank, double seconds, int most, double *samples) {
    int n = 0;
    if (rank != 0) {
        for (int i = 0, value; (value = futex_wait(&pair->there, i)) != NO_MORE; i = value)
            futex_set(&pair->back, value);
        futex_set(&pair->back, 0);
        return 0;
    }
    const double end = bench_now() + seconds;
    for (double start = bench_now(), now; start < end && n < most; start = now) {
        futex_set(&pair->there, n + 1);
        futex_wait(&pair->back, n);
        now = bench_now();
        samples[n++] = now - start;
    }
    futex_set(&pair->there, NO_MORE);
    futex_wait(&pair->back, n);
    atomic_store(&pair->there.value, 0);
    return n;
}

#ifndef BENCH_LIBRARY
enum {
    RANKS = 2,
    MOST_KEYS = 16,
    SAMPLES = 1 << 20,
    MIB = 1 << 20,
    CHUNK = 32 << 10,
    SLICE = 64 << 10,
    SLICES = 256,
};
static const double RATE = 1.0 / 64; /* with whole updates all parameters are exact */

/* Memory of both ranks. */
typedef struct common {
    bench_line last[2]; /* a tenant's last operation of the block */
    futex_pair pair;
} common;

/* An exchange, and the thread that drives it. */
typedef struct tenant {
    bench_rank *r;
    hpc_exchange *exchange;
    _Atomic uint64_t *last; /* written by rank 0 */
    int n_keys;
    uint64_t count; /* elements of a key */
    double rate, weight;
    int64_t steps[MOST_KEYS]; /* each key's steps with the positive rate, less its steps with the negative one */
    uint64_t done;            /* operations; the next one is on key done % n_keys */
} tenant;

/* A thread that works for one block. */
typedef struct block {
    tenant *t;         /* NULL: it copies memory */
    double seconds;    /* INFINITY: until stop */
    int streams;       /* it has all keys in flight */
    int batch;         /* operations of a sample */
    double *samples;   /* NULL: none are kept */
    int n;             /* samples */
    uint64_t in_time;  /* operations that ended within seconds */
    _Atomic int begun; /* it has begun to work */
    _Atomic int stop;  /* it must end soon; rank 0's ends a tenant on both ranks */
    char *copied_to, *copied_from;
    size_t nbytes;
    uint64_t moved; /* bytes that the thread has moved */
    double worked;  /* seconds of the thread */
    pthread_t thread;
    int status;
} block;

static common *shared;
static const char *row, *progress;
static double seconds;
static int pinned; /* each rank has a CPU */
static cpu_set_t allowed;

static double length(int round) {
    return round < 0 ? seconds / 5 : seconds; /* the first one warms up */
}

static int out_of_memory(const bench_rank *r) {
    fprintf(stderr, "rank %d: no memory\n", r->rank);
    return HPC_ERR_MEMORY;
}

/* ---- exchanges ---- */

/* Makes an exchange of equal keys; all ranks are workers and servers. */
static int create(hpc_context *context, const float *const *values, tenant *t) {
    static const int ranks[RANKS] = {0, 1};
    char names[MOST_KEYS][16];
    hpc_key keys[MOST_KEYS];
    hpc_exchange_config config;
    hpc_plan *plan;
    hpc_rule rule;
    hpc_hub hub;
    for (int k = 0; k < t->n_keys; k++) {
        snprintf(names[k], sizeof names[k], "key%d", k);
        keys[k] = (hpc_key){names[k], t->count, 0};
    }
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = keys;
    hub.n_keys = t->n_keys;
    hub.workers = hub.servers = ranks;
    hub.n_workers = hub.n_servers = RANKS;
    hub.interfaces = hpc_interfaces(context, ranks, RANKS); /* this, and cores: the choices of Python's Exchange */
    hub.cores = hpc_spare_cores(context, ranks, RANKS, ranks, RANKS) / hub.interfaces * hub.interfaces;
    if (hub.cores < hub.interfaces) hub.cores = hub.interfaces;
    hub.chunk = CHUNK;
    int status = hpc_plan_make("hub", &hub, &plan);
    if (status != HPC_OK) return status;
    status = hpc_rule_find("sgd", HPC_ISA_BEST, &rule);
    rule.args[1] = t->rate;
    rule.args[2] = 0;
    hpc_exchange_config_init(&config);
    config.plan = plan;
    config.rule = &rule;
    config.values = values;
    config.weight = t->weight;
    config.progress = strcmp(progress, "thread") == 0 ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    if (status == HPC_OK) status = hpc_exchange_create(context, &config, -1, &t->exchange);
    hpc_plan_free(plan);
    return status;
}

/* Opens an exchange, and writes the updates that all pushes of it send. number: of its word in `shared`. */
static int tenant_open(tenant *t, bench_rank *r, hpc_context *context, int number, int n_keys, size_t key_bytes,
                       double weight) {
    const float *values[MOST_KEYS];
    void *place = NULL;
    *t = (tenant){.r = r, .n_keys = n_keys, .count = key_bytes / sizeof(float), .rate = RATE, .weight = weight};
    t->last = &shared->last[number].word;
    if (r->rank == 0) atomic_store(t->last, 0); /* before rank 1 can drive it: create is collective */
    float *first = malloc(key_bytes);
    if (first == NULL) return out_of_memory(r);
    bench_fill_whole(first, -1, t->count);
    for (int k = 0; k < n_keys; k++) values[k] = first;
    int status = create(context, values, t);
    free(first);
    for (int k = 0; status == HPC_OK && k < n_keys; k++) {
        status = hpc_exchange_gradient(t->exchange, k, r->options.timeout, &place);
        if (status == HPC_OK) bench_fill_whole(place, r->rank, t->count);
    }
    return status;
}

static int64_t wrong_of(const tenant *t) {
    int64_t wrong = 0;
    float first[BENCH_PERIOD], sum[BENCH_PERIOD];
    for (int j = 0; j < BENCH_PERIOD; j++) {
        first[j] = bench_whole(-1, (uint64_t)j);
        sum[j] = bench_whole(0, (uint64_t)j) + bench_whole(1, (uint64_t)j);
    }
    for (int k = 0; k < t->n_keys; k++) {
        const float *got = hpc_exchange_params(t->exchange, k);
        const double by = RATE / RANKS * (double)t->steps[k];
        for (uint64_t j = 0; j < t->count; j++)
            wrong += (double)got[j] != (double)first[j % BENCH_PERIOD] - by * (double)sum[j % BENCH_PERIOD];
    }
    return wrong;
}

/* Closes an exchange. If status is HPC_OK, adds the number of wrong parameters on all ranks to *wrong. */
static int tenant_close(tenant *t, int status, int64_t *wrong) {
    int64_t own, all[RANKS];
    if (t->exchange == NULL) return status;
    if (status == HPC_OK) {
        own = wrong_of(t);
        status = hpc_allgather(t->r->context, &own, all, sizeof own, -1);
    }
    if (status == HPC_OK) {
        *wrong += all[0] + all[1];
        status = hpc_exchange_close(t->exchange, t->r->options.timeout);
    }
    hpc_exchange_free(t->exchange);
    t->exchange = NULL;
    return status;
}

static int step(tenant *t) {
    const int key = (int)(t->done++ % (uint64_t)t->n_keys);
    t->steps[key] += t->rate > 0 ? 1 : -1;
    return hpc_exchange_push_pull(t->exchange, key, NULL, t->r->options.timeout);
}

/* Changes the sign of the rate: without that the parameters would become too large to be exact. */
static int turn(tenant *t) {
    double args[HPC_RULE_ARGS];
    int status = hpc_exchange_get_args(t->exchange, 0, args);
    args[1] = t->rate = -t->rate;
    return status == HPC_OK ? hpc_exchange_set_args(t->exchange, -1, args) : status;
}

/* Drives a tenant for one block. Rank 0 writes which operation is the last before it begins it; rank 1 cannot end that
 * operation before. */
static int drive(block *b) {
    tenant *t = b->t;
    const double end = bench_now() + b->seconds;
    const uint64_t before = t->done;
    atomic_store(&b->begun, 1);
    for (int status, last = 0; !last;) {
        const double start = bench_now();
        last = t->r->rank == 0 && (start >= end || atomic_load(&b->stop) || (b->samples != NULL && b->n == SAMPLES));
        if (last) atomic_store(t->last, t->done + (uint64_t)b->batch);
        for (int i = 0; i < b->batch; i++)
            if ((status = step(t)) != HPC_OK) return status;
        if (t->r->rank != 0) last = atomic_load(t->last) == t->done;
        const double now = bench_now();
        if (now <= end) b->in_time = t->done - before;
        if (b->samples != NULL && b->n < SAMPLES) b->samples[b->n++] = (now - start) / b->batch;
    }
    return HPC_OK;
}

/* Ends the oldest operation in flight. */
static int finish(tenant *t, const uint64_t *tickets) {
    const int key = (int)(t->done++ % (uint64_t)t->n_keys);
    return hpc_exchange_wait(t->exchange, key, tickets[key], t->r->options.timeout);
}

static int start(tenant *t, uint64_t operation, uint64_t *tickets) {
    const int key = (int)(operation % (uint64_t)t->n_keys);
    t->steps[key]++;
    return hpc_exchange_start(t->exchange, key, HPC_PUSH | HPC_PULL, NULL, t->r->options.timeout, &tickets[key]);
}

/* Keeps a push_pull of each key in flight for one block. Rank 1 is at most n_keys operations ahead: so many does rank 0
 * make after it has written where the block ends. */
static int stream(block *b) {
    tenant *t = b->t;
    const double end = bench_now() + b->seconds;
    const uint64_t before = t->done, ahead = (uint64_t)t->n_keys;
    uint64_t tickets[MOST_KEYS], stop = UINT64_MAX;
    int status = HPC_OK;
    for (uint64_t next = before; next < stop; next++) {
        if (next - before >= ahead) status = finish(t, tickets);
        if (status != HPC_OK) return status;
        const int is_over = bench_now() > end;
        if (!is_over) b->in_time = t->done - before;
        if (t->r->rank == 0 && is_over && stop == UINT64_MAX) atomic_store(t->last, stop = next + ahead);
        const uint64_t last = atomic_load(t->last);
        if (t->r->rank != 0 && last > before) stop = last; /* it is not that of the block before */
        if (next < stop) status = start(t, next, tickets);
        if (status != HPC_OK) return status;
    }
    while (status == HPC_OK && t->done < stop) status = finish(t, tickets);
    return status;
}

/* ---- copies of memory ---- */

static void copy(block *b) {
    atomic_store(&b->begun, 1);
    for (; !atomic_load(&b->stop); b->moved += b->nbytes) memcpy(b->copied_to, b->copied_from, b->nbytes);
}

/* ---- threads ---- */

static void *work(void *arg) {
    block *b = arg;
    const double start = bench_now();
    if (b->t == NULL) {
        copy(b);
    } else {
        const uint64_t before = b->t->done;
        b->status = b->streams ? stream(b) : drive(b);
        b->moved = (b->t->done - before) * b->t->count * sizeof(float);
    }
    b->worked = bench_now() - start;
    if (b->status != HPC_OK) fprintf(stderr, "rank %d: %s\n", b->t->r->rank, hpc_last_error()->message);
    return NULL;
}

/* Pins this thread, and the threads that it starts, to a CPU of its rank for a block. Without that the scheduler puts
 * both ranks on one CPU in some blocks, and on two in others. */
static void pin(int rank) {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0, n = 0; cpu < CPU_SETSIZE && n <= rank; cpu++)
        if (CPU_ISSET(cpu, &allowed) && n++ == rank) CPU_SET(cpu, &one);
    if (pinned && CPU_COUNT(&one) == 1) sched_setaffinity(0, sizeof one, &one);
}

static void unpin(void) {
    if (pinned) sched_setaffinity(0, sizeof allowed, &allowed);
}

static int begin(bench_rank *r, block *b) {
    if (pthread_create(&b->thread, NULL, work, b) == 0) return HPC_OK;
    return out_of_memory(r);
}

static int end(block *b) {
    pthread_join(b->thread, NULL);
    return b->status;
}

/* ---- rows ---- */

/* Prints one block's times. size: bytes of the operation. beside: NULL, or the thread beside it. */
static void tell_times(const bench_rank *r, size_t size, const char *name, int round, block *b, const block *beside) {
    double sum = 0;
    if (r->rank != 0 || round < 0) return;
    for (int i = 0; i < b->n; i++) sum += b->samples[i];
    const double p50 = bench_percentile(b->samples, b->n, 50), p99 = bench_percentile(b->samples, b->n, 99);
    printf("{\"row\": \"%s\", \"size\": %zu, \"name\": \"%s\", \"round\": %d, \"n\": %d, \"p50\": %.10f, "
           "\"p99\": %.10f, \"mean\": %.10f, \"most\": %.10f, \"beside\": %.10f}\n",
           row, size, name, round, b->n, p50, p99, b->n > 0 ? sum / b->n : 0, bench_percentile(b->samples, b->n, 100),
           beside != NULL ? (double)beside->moved / beside->worked : 0);
    fflush(stdout);
}

static void tell_wrong(const bench_rank *r, int64_t wrong) {
    if (r->rank == 0) printf("{\"row\": \"wrong\", \"wrong\": %lld}\n", (long long)wrong);
    fflush(stdout);
}

/* Makes a second context of both ranks. */
static int second_context(bench_rank *r, hpc_context **context) {
    const size_t nbytes = hpc_address_size();
    char *all = calloc(RANKS + 1, nbytes), *own = all + RANKS * nbytes;
    hpc_config config;
    if (all == NULL) return out_of_memory(r);
    hpc_config_init(&config);
    config.transports = r->options.transport;
    int status = hpc_context_create(r->rank, RANKS, &config, context);
    if (status == HPC_OK) status = hpc_context_address(*context, own);
    if (status == HPC_OK) status = hpc_allgather(r->context, own, all, nbytes, -1);
    if (status == HPC_OK) status = hpc_context_connect(*context, all, -1);
    free(all);
    return status;
}

static int free_second(bench_rank *r, hpc_context *context, int status) {
    if (context != NULL && status == HPC_OK) status = hpc_barrier(context, r->options.timeout);
    hpc_context_free(context);
    return status;
}

/* Runs one block of an exchange. kind: 0 and 1: alone; 2: beside an idle exchange of its context; 3: of another one. */
static int idle_block(bench_rank *r, tenant *t, int kind, block *b, int64_t *wrong) {
    hpc_context *second = NULL;
    tenant idle = {0};
    int status = kind == 3 ? second_context(r, &second) : HPC_OK;
    if (status == HPC_OK && kind >= 2) status = tenant_open(&idle, r, second ? second : r->context, 1, 1, MIB, 1);
    if (status == HPC_OK && kind >= 2) status = step(&idle);
    if (status == HPC_OK) status = bench_meet(r);
    pin(r->rank);
    if (status == HPC_OK) status = drive(b);
    unpin();
    if (status == HPC_OK) status = turn(t);
    status = tenant_close(&idle, status, wrong);
    return free_second(r, second, status);
}

static int idle(bench_rank *r, double *samples) {
    static const char *const names[] = {"alone", "alone, again", "idle one in its context",
                                        "idle one in another context"};
    static const size_t sizes[] = {8, MIB};
    int64_t wrong = 0;
    int status = HPC_OK;
    for (int s = 0; status == HPC_OK && s < 2; s++) {
        tenant t;
        status = tenant_open(&t, r, r->context, 0, 1, sizes[s], 1);
        for (int round = -1; status == HPC_OK && round < r->options.run_cycles; round++)
            for (int i = 0; status == HPC_OK && i < 4; i++) {
                const int kind = (round + 1 + i) % 4;
                block b = {.t = &t, .seconds = length(round), .batch = sizes[s] > 8 ? 1 : 32, .samples = samples};
                status = idle_block(r, &t, kind, &b, &wrong);
                if (status == HPC_OK) tell_times(r, sizes[s], names[kind], round, &b, NULL);
            }
        status = tenant_close(&t, status, &wrong);
    }
    if (status == HPC_OK) tell_wrong(r, wrong);
    return status;
}

/* Drives n exchanges, each by a thread of both ranks, and prints the bytes of each. */
static int busy_block(bench_rank *r, tenant tenants[2], int n, const char *name, int round) {
    block b[2] = {{.t = &tenants[0], .seconds = length(round), .streams = 1},
                  {.t = &tenants[1], .seconds = length(round), .streams = 1}};
    int status = bench_meet(r);
    pin(r->rank);
    for (int i = 0; status == HPC_OK && i < n; i++) status = begin(r, &b[i]);
    unpin();
    if (status != HPC_OK) return status;
    for (int i = 0; i < n; i++) {
        const int ended = end(&b[i]);
        status = ended != HPC_OK ? ended : status;
    }
    if (status != HPC_OK || r->rank != 0 || round < 0) return status;
    const uint64_t nbytes = tenants[0].count * sizeof(float);
    printf("{\"row\": \"busy\", \"name\": \"%s\", \"round\": %d, \"seconds\": %g, \"bytes\": [%llu, %llu], "
           "\"weights\": [%g, %g]}\n",
           name, round, seconds, (unsigned long long)(b[0].in_time * nbytes),
           (unsigned long long)(b[1].in_time * nbytes), tenants[0].weight, tenants[1].weight);
    return fflush(stdout);
}

static int busy(bench_rank *r) {
    static const struct {
        const char *name;
        int n, apart; /* apart: the second one is in another context */
        double weights[2];
    } kinds[] = {{"one alone", 1, 0, {1, 1}},
                 {"two in one context", 2, 0, {1, 1}},
                 {"two in two contexts", 2, 1, {1, 1}},
                 {"two, weights 1 and 3", 2, 0, {1, 3}}};
    const size_t key_bytes = r->options.maxbytes / (4 * MOST_KEYS);
    hpc_context *second = NULL;
    int64_t wrong = 0;
    int status = second_context(r, &second);
    for (int round = -1; status == HPC_OK && round < r->options.run_cycles; round++)
        for (int i = 0; status == HPC_OK && i < 4; i++) {
            const int kind = (round + 1 + i) % 4, n = kinds[kind].n;
            tenant tenants[2] = {0};
            for (int k = 0; status == HPC_OK && k < n; k++)
                status = tenant_open(&tenants[k], r, kinds[kind].apart && k ? second : r->context, k, MOST_KEYS,
                                     key_bytes, kinds[kind].weights[k]);
            if (status == HPC_OK) status = busy_block(r, tenants, n, kinds[kind].name, round);
            for (int k = 0; k < n; k++) status = tenant_close(&tenants[k], status, &wrong);
        }
    if (status == HPC_OK) tell_wrong(r, wrong);
    return free_second(r, second, status);
}

/* Prints how long one thread folds the updates of both ranks and applies them, 64 KiB at a time. */
static int tell_slice(void) {
    const size_t count = SLICE / sizeof(float);
    const double weights[RANKS] = {0.5, 0.5};
    float *memory = malloc((size_t)3 * SLICES * SLICE), *sum = malloc(SLICE);
    double samples[SLICES];
    hpc_rule rule;
    int status = memory != NULL && sum != NULL ? hpc_rule_find("sgd", HPC_ISA_BEST, &rule) : HPC_ERR_MEMORY;
    if (status == HPC_OK) bench_fill_whole(memory, 0, 3 * SLICES * count);
    for (size_t i = 0; status == HPC_OK && i < SLICES; i++) {
        float *params = memory + 3 * i * count;
        const void *in[RANKS] = {params + count, params + 2 * count};
        const double start = bench_now();
        status = hpc_fold(sum, in, weights, RANKS, count, HPC_F32, HPC_ISA_BEST);
        if (status == HPC_OK && rule.apply(params, sum, RANKS, NULL, rule.args, (int64_t)count) != 0)
            status = HPC_ERR_INVALID;
        samples[i] = bench_now() - start;
    }
    if (status == HPC_OK) printf("{\"row\": \"slice\", \"seconds\": %.10f}\n", bench_percentile(samples, SLICES, 50));
    free(memory);
    free(sum);
    return status == HPC_OK ? fflush(stdout) : status;
}

/* Runs one block of this thread's operation, alone or beside another thread. */
static int ping_beside(bench_rank *r, block *b, block *beside) {
    int status = bench_meet(r);
    if (beside != NULL && status == HPC_OK) status = begin(r, beside);
    while (beside != NULL && status == HPC_OK && !atomic_load(&beside->begun)) sched_yield();
    if (status == HPC_OK) status = bench_meet(r);
    if (status == HPC_OK && b->t == NULL)
        b->n = bench_futex_ping(&shared->pair, r->rank, b->seconds, SAMPLES, b->samples);
    if (status == HPC_OK && b->t != NULL) status = drive(b);
    if (beside == NULL) return status;
    atomic_store(&beside->stop, 1);
    const int ended = end(beside);
    return status != HPC_OK ? status : ended;
}

static int ping_block(bench_rank *r, block *b, block *beside) {
    pin(r->rank);
    const int status = ping_beside(r, b, beside);
    unpin();
    return status;
}

static int pings(bench_rank *r, double *samples) {
    static const char *const names[] = {"futex ping", "futex ping beside copies", "push_pull",
                                        "push_pull beside another"};
    const size_t size = r->options.maxbytes;
    char *from = malloc(size), *to = malloc(size);
    tenant tenants[2] = {0};
    int64_t wrong = 0;
    int status = from != NULL && to != NULL ? HPC_OK : out_of_memory(r);
    if (status == HPC_OK) {
        memset(from, 1, size);
        memset(to, 1, size);
        if (r->rank == 0) status = tell_slice();
    }
    if (status == HPC_OK) status = tenant_open(&tenants[0], r, r->context, 0, 1, 8, 1);
    if (status == HPC_OK) status = tenant_open(&tenants[1], r, r->context, 1, 1, size, 1);
    if (status == HPC_OK) status = step(&tenants[1]);
    for (int round = -1; status == HPC_OK && round < r->options.run_cycles; round++)
        for (int i = 0; status == HPC_OK && i < 4; i++) {
            const int kind = (round + 1 + i) % 4;
            block b = {.t = kind >= 2 ? &tenants[0] : NULL, .seconds = length(round), .batch = 1, .samples = samples};
            block beside = {.t = kind == 3 ? &tenants[1] : NULL, .seconds = INFINITY, .batch = 1};
            beside.copied_to = to, beside.copied_from = from, beside.nbytes = size;
            status = ping_block(r, &b, kind % 2 ? &beside : NULL);
            if (status == HPC_OK) tell_times(r, 8, names[kind], round, &b, kind % 2 ? &beside : NULL);
            if (status == HPC_OK && kind >= 2) status = turn(&tenants[0]);
            if (status == HPC_OK && kind == 3) status = turn(&tenants[1]);
        }
    for (int i = 0; i < 2; i++) status = tenant_close(&tenants[i], status, &wrong);
    if (status == HPC_OK) tell_wrong(r, wrong);
    free(from);
    free(to);
    return status;
}

static int run(bench_rank *r) {
    double *samples = malloc(SAMPLES * sizeof *samples);
    int status = HPC_ERR_INVALID;
    if (samples == NULL) return out_of_memory(r);
    if (r->size != RANKS)
        fprintf(stderr, "tenants: ranks must be 2\n");
    else if (strcmp(row, "idle") == 0)
        status = idle(r, samples);
    else if (strcmp(row, "busy") == 0)
        status = busy(r);
    else if (strcmp(row, "ping") == 0)
        status = pings(r, samples);
    free(samples);
    return status;
}

int main(int argc, char **argv) {
    bench_options defaults = {.minbytes = 8,
                              .maxbytes = 256 << 20,
                              .stepfactor = 2,
                              .iters = 1,
                              .warmup_iters = 1,
                              .agg_iters = 1,
                              .run_cycles = 5,
                              .ranks = RANKS,
                              .json = 1,
                              .timeout = 60,
                              .transport = "shm"};
    if (argc < 5 || atof(argv[3]) <= 0) {
        fprintf(stderr, "usage: tenants idle|busy|ping inline|thread SECONDS own|any [-e maxbytes] [-N rounds]\n");
        return 2;
    }
    row = argv[1], progress = argv[2], seconds = atof(argv[3]), pinned = strcmp(argv[4], "own") == 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    return bench_main(argc - 4, argv + 4, "tenants", defaults, run);
}
#endif
