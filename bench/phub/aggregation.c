/* aggregation.c - ways in which the threads of a server sum the gradients of n workers, apply Nesterov momentum and
 * write the parameters to every worker (PHub, sections 3.2.2 and 4.5). All gradients are in memory from the start.
 *
 * The engine's way is tall, with its own kernels; the others are baselines. aggregation.py links this with the
 * objects of the build. Arrays hold all keys; each key begins at a cache line and is padded to a full line. */
#define _GNU_SOURCE
#include "bench.h"
#include "base/host.h"
#include "engine/work.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LANES = BENCH_LINE / sizeof(float), AHEAD = 8 * LANES, SPINS = 2000, MOST_THREADS = 256 };
enum { WIDE = 1, COPIES_PAST = 2, ALL_PAST = 4, JOIN_EVERY_CALL = 8 }; /* flags of a way */

typedef float line __attribute__((vector_size(BENCH_LINE), may_alias));

typedef struct bench_aggregation {
    const float *const *in;          /* gradients by worker */
    float *const *out;               /* parameters by worker */
    float *param, *state;            /* the server's own */
    float *sum;                      /* wide: the sum of the gradients added so far */
    const uint64_t *starts, *counts; /* spans, in elements: tall's chunks or wide's keys */
    const uint64_t *cores;           /* tall: the thread of each chunk */
    int n, n_spans, threads, m, way;
    double rate, momentum;
} bench_aggregation;

struct team {
    const bench_aggregation *a;
    hpc_rule rule;
    hpc_pass_fn *pass;
    const struct hpc_fold_kernels *kernels;
    double weights[HPC_PASS_INPUTS];
    double seconds;
    _Atomic int gate, arrived, round;
};

struct member {
    struct team *team;
    int index;
};

/* A barrier that makes no system call if the threads arrive soon; after a while each thread yields its CPU. */
static void meet(struct team *t) {
    const int round = atomic_load(&t->round);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == t->a->threads) {
        atomic_store(&t->arrived, 0);
        atomic_fetch_add(&t->round, 1);
        return;
    }
    for (int spins = 0; atomic_load(&t->round) == round; spins++)
        if (spins > SPINS) sched_yield();
}

/* ---- past the caches ---- */

/* Stores a whole line at once: processors combine the stores of a line before they write it to memory. */
static inline void store_past(float *to, const line *x) {
#if defined(__x86_64__)
    const __m128 *from = (const __m128 *)(const void *)x;
    for (int i = 0; i < 4; i++) _mm_stream_ps(to + 4 * i, from[i]);
#else
    *(line *)to = *x;
#endif
}

/* A macro, because the ABI of a function that returns a line depends on the instruction set. */
#define LOAD_PAST(from) (__builtin_prefetch((from) + AHEAD, 0, 0), *(const line *)(from))

static inline void end_past(void) {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* Does fold, rule and copies in one pass over n elements from start, with the operations of the engine's pass. */
static void pass_past(const struct team *t, size_t start, size_t n) {
    const bench_aggregation *a = t->a;
    const float rate = (float)a->rate, momentum = (float)a->momentum, weight = (float)t->weights[0];
    for (size_t j = start; j < start + n; j += LANES) {
        line g = weight * LOAD_PAST(a->in[0] + j);
        for (int i = 1; i < a->n; i++) g += weight * LOAD_PAST(a->in[i] + j);
        const line s = momentum * LOAD_PAST(a->state + j) + g;
        const line x = LOAD_PAST(a->param + j) - rate * (g + momentum * s);
        store_past(a->state + j, &s);
        store_past(a->param + j, &x);
        for (int o = 0; o < a->n; o++) store_past(a->out[o] + j, &x);
    }
}

static void add_past(const struct team *t, int worker, size_t start, size_t n) {
    const float weight = (float)t->weights[0], *in = t->a->in[worker];
    float *sum = t->a->sum;
    for (size_t j = start; j < start + n; j += LANES) {
        line g = weight * LOAD_PAST(in + j);
        if (worker > 0) g = LOAD_PAST(sum + j) + g;
        store_past(sum + j, &g);
    }
    end_past();
}

static void apply_past(const struct team *t, size_t start, size_t n) {
    const bench_aggregation *a = t->a;
    const float rate = (float)a->rate, momentum = (float)a->momentum;
    for (size_t j = start; j < start + n; j += LANES) {
        const line g = LOAD_PAST(a->sum + j), s = momentum * LOAD_PAST(a->state + j) + g;
        const line x = LOAD_PAST(a->param + j) - rate * (g + momentum * s);
        store_past(a->state + j, &s);
        store_past(a->param + j, &x);
    }
    end_past();
}

/* ---- tall: each thread does everything for its own chunks, block by block, and meets no other thread ---- */

static int tall(const struct team *t, int me) {
    const bench_aggregation *a = t->a;
    const float *in[HPC_PASS_INPUTS];
    float *out[HPC_PASS_INPUTS];
    for (int s = 0; s < a->n_spans; s++) {
        if (a->cores[s] != (uint64_t)me) continue;
        for (uint64_t from = 0; from < a->counts[s]; from += HPC_BLOCK) {
            const size_t start = a->starts[s] + from, left = a->counts[s] - from;
            const size_t n = left < HPC_BLOCK ? left : HPC_BLOCK;
            if (a->way & ALL_PAST) {
                pass_past(t, start, n);
                continue;
            }
            for (int i = 0; i < a->n; i++) {
                in[i] = a->in[i] + start;
                out[i] = a->out[i] + start;
            }
            const hpc_pass block = {.param = a->param + start,
                                    .in = in,
                                    .weights = t->weights,
                                    .n_in = a->n,
                                    .out = out,
                                    .n_out = a->n,
                                    .state = a->state + start,
                                    .args = t->rule.args,
                                    .n = (int64_t)n,
                                    .stream = (a->way & COPIES_PAST) != 0};
            const int status = t->pass(&block);
            if (status != 0) return status;
        }
    }
    end_past();
    return 0;
}

/* ---- wide: all threads work on parts of one key, and meet after every call or every key ---- */

static void add(const struct team *t, int worker, size_t start, size_t n) {
    const bench_aggregation *a = t->a;
    const void *in[2] = {a->sum + start, a->in[worker] + start};
    const double weights[2] = {1, t->weights[0]};
    const int from = worker == 0; /* the first gradient overwrites the last step's sum */
    t->kernels->f32(a->sum + start, in + from, weights + from, 2 - from, n, 0);
}

static int wide(struct team *t, int me) {
    const bench_aggregation *a = t->a;
    const int past = (a->way & ALL_PAST) != 0, joins = (a->way & JOIN_EVERY_CALL) != 0;
    int status = 0;
    for (int k = 0; k < a->n_spans; k++) {
        const uint64_t lines = a->counts[k] / LANES, threads = (uint64_t)a->threads;
        const uint64_t first = lines * (uint64_t)me / threads, last = lines * (uint64_t)(me + 1) / threads;
        const size_t start = a->starts[k] + LANES * first, n = LANES * (last - first);
        for (int i = 0; i < a->n; i++) {
            (past ? add_past : add)(t, i, start, n);
            if (joins) meet(t);
        }
        if (past)
            apply_past(t, start, n);
        else
            status |= t->rule.apply(a->param + start, a->sum + start, a->n, a->state + start, t->rule.args, (int64_t)n);
        if (joins) meet(t);
        for (int o = 0; o < a->n; o++) t->kernels->copy(a->out[o] + start, a->param + start, n * sizeof(float), past);
        meet(t);
    }
    return status;
}

/* ---- threads ---- */

/* Gives a thread its own CPU if there are enough; otherwise the system places it. */
static void pin(int me, int threads) {
    cpu_set_t mine, one;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0 || CPU_COUNT(&mine) < threads) return;
    for (int cpu = 0, left = me; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mine) || left-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        return;
    }
}

static void *work(void *arg) {
    struct member *member = arg;
    struct team *t = member->team;
    const bench_aggregation *a = t->a;
    intptr_t status = 0;
    pin(member->index, a->threads);
    while (atomic_load(&t->gate) == 0) sched_yield();
    if (atomic_load(&t->gate) < 0) return NULL;
    meet(t);
    const double start = bench_now();
    for (int i = 0; i < a->m; i++) {
        status |= a->way & WIDE ? wide(t, member->index) : tall(t, member->index);
        meet(t); /* workers begin a step when they have all parameters */
    }
    if (member->index == 0) t->seconds = (bench_now() - start) / a->m;
    return (void *)status;
}

/* Returns the seconds per exchange of m exchanges by all threads; a negative errno for a bad argument or if a thread
 * cannot start. */
BENCH_API double bench_aggregate(const bench_aggregation *a) {
    struct team t = {.a = a, .kernels = hpc_fold_kernels_of(HPC_ISA_BEST)};
    struct member members[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    int made = 0, failed = 0;
    if (a->n < 1 || a->n > HPC_PASS_INPUTS || a->threads < 1 || a->threads > MOST_THREADS) return -EINVAL;
    if (hpc_rule_find("nesterov", HPC_ISA_BEST, &t.rule) != HPC_OK) return -EINVAL;
    t.pass = hpc_rule_pass(&t.rule);
    t.rule.args[0] = 1, t.rule.args[1] = a->rate, t.rule.args[2] = 0, t.rule.args[3] = a->momentum;
    for (int i = 0; i < a->n; i++) t.weights[i] = 1.0 / a->n;
    while (made < a->threads && failed == 0) {
        members[made] = (struct member){&t, made};
        failed = pthread_create(&threads[made], NULL, work, &members[made]);
        made += failed == 0;
    }
    atomic_store(&t.gate, failed != 0 ? -1 : 1);
    for (int i = 0; i < made; i++) {
        void *status = NULL;
        pthread_join(threads[i], &status);
        if (status != NULL) failed = EINVAL;
    }
    return failed != 0 ? -failed : t.seconds;
}

/* Returns whether this machine can store past the caches. */
BENCH_API int bench_stores_past(void) {
#if defined(__x86_64__)
    return 1;
#else
    return 0;
#endif
}

/* Returns the bytes of the last-level cache, as the engine knows it: if a step touches more, the engine writes the
 * workers' parameters past it. */
BENCH_API uint64_t bench_last_level(void) {
    return hpc_host_cache("");
}
