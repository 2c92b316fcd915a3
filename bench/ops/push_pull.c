/* push_pull.c - push_pull of one key or many by the C API, beside the time of its memory traffic at the rate of a
 * fused momentum loop.
 *
 * Traffic per element: its owner reads each worker's gradient, writes each worker's parameter, and reads and writes
 * its own momentum and parameter. For two workers these are eight streams of four bytes. Under BSP an owner that is
 * also a worker keeps its parameters in its worker's memory, which saves one stream; the bound counts all eight. */
#define _GNU_SOURCE
#include "c_ranks.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { NAME_MAX_BYTES = 24, MOST_RANKS = 64, PERIOD = 4093, LOOP_STREAMS = 5 };
static const double RATE = 1.0 / 64, MOMENTUM = 0.5; /* powers of two: see training.py */

/* Makes a plan in which all ranks are workers and servers (CS). groups are as in hpc_hosts; without levels the plan
 * is flat. */
static int plan_of(hpc_context *context, const hpc_key *keys, int n_keys, const int *ranks, const int *groups,
                   int n_levels, size_t chunk, hpc_plan **plan) {
    int size = hpc_context_size(context);
    int interfaces = hpc_interfaces(context, ranks, size); /* this, and cores: the choices of Python's Exchange */
    int cores = hpc_spare_cores(context, ranks, size, ranks, size) / interfaces * interfaces;
    if (cores < interfaces) cores = interfaces;
    if (n_levels > 0) {
        hpc_hosts hosts;
        hpc_plan_args_init("hosts", &hosts, sizeof hosts);
        hosts.keys = keys;
        hosts.n_keys = n_keys;
        hosts.workers = ranks;
        hosts.n_workers = size;
        hosts.groups = groups;
        hosts.n_levels = n_levels;
        hosts.cores = cores;
        hosts.chunk = chunk;
        return hpc_plan_make("hosts", &hosts, plan);
    }
    hpc_hub hub;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = keys;
    hub.n_keys = n_keys;
    hub.workers = hub.servers = ranks;
    hub.n_workers = hub.n_servers = size;
    hub.interfaces = interfaces;
    hub.cores = cores;
    hub.chunk = chunk;
    return hpc_plan_make("hub", &hub, plan);
}

/* Makes an exchange of n_keys over all ranks, with Nesterov momentum. groups: as in plan_of. values: as in the
 * config. */
BENCH_API int bench_exchange(hpc_context *context, const uint64_t *counts, const float *const *values, int n_keys,
                             const int *groups, int n_levels, size_t chunk, double rate, double momentum,
                             hpc_exchange **exchange) {
    int size = hpc_context_size(context), status = HPC_ERR_MEMORY;
    hpc_key *keys = calloc((size_t)n_keys, sizeof *keys);
    char(*names)[NAME_MAX_BYTES] = calloc((size_t)n_keys, sizeof *names);
    int *ranks = calloc((size_t)size, sizeof *ranks);
    hpc_plan *plan = NULL;
    hpc_rule rule;
    hpc_exchange_config config;
    if (keys == NULL || names == NULL || ranks == NULL) goto out;
    for (int k = 0; k < n_keys; k++) {
        snprintf(names[k], sizeof names[k], "key%d", k);
        keys[k] = (hpc_key){names[k], counts[k], 0};
    }
    for (int r = 0; r < size; r++) ranks[r] = r;
    status = plan_of(context, keys, n_keys, ranks, groups, n_levels, chunk, &plan);
    if (status == HPC_OK) status = hpc_rule_find("nesterov", HPC_ISA_BEST, &rule);
    if (status != HPC_OK) goto out;
    rule.args[1] = rate;
    rule.args[2] = 0;
    rule.args[3] = momentum;
    hpc_exchange_config_init(&config);
    config.plan = plan;
    config.rule = &rule;
    config.values = values;
    status = hpc_exchange_create(context, &config, -1, exchange);
out:
    hpc_plan_free(plan);
    free(keys);
    free(names);
    free(ranks);
    return status;
}

/* Does a trainer's memory accesses between two steps: reads the parameters and writes the gradients. */
static int train(hpc_exchange *exchange, const float *const *gradients, const uint64_t *counts, int n_keys,
                 double timeout) {
    volatile float read = 0;
    for (int k = 0; k < n_keys; k++) {
        const float *params = hpc_exchange_params(exchange, k);
        void *place = NULL;
        int status = hpc_exchange_gradient(exchange, k, timeout, &place);
        if (status != HPC_OK) return status;
        for (uint64_t j = 0; j < counts[k]; j += BENCH_LINE / sizeof *params) read = params[j];
        memcpy(place, gradients[k], counts[k] * sizeof(float));
    }
    (void)read;
    return HPC_OK;
}

/* Times m rounds over all keys, one key after another; the first round uses the gradients that are in place.
 * *seconds is per round. A trainer asks for the place of each gradient in time that counts; it was asked for and
 * written before. */
BENCH_API int bench_push_pull(hpc_exchange *exchange, const float *const *gradients, const uint64_t *counts, int n_keys,
                              int m, double timeout, double *seconds) {
    double sum = 0;
    for (int i = 0; i < m; i++) {
        int status = i > 0 ? train(exchange, gradients, counts, n_keys, timeout) : HPC_OK;
        double start = bench_now();
        for (int k = 0; status == HPC_OK && k < n_keys; k++) {
            void *place = NULL;
            status = hpc_exchange_gradient(exchange, k, timeout, &place);
            if (status == HPC_OK) status = hpc_exchange_push_pull(exchange, k, NULL, timeout);
        }
        if (status != HPC_OK) return status;
        sum += bench_now() - start;
    }
    *seconds = sum / m;
    return HPC_OK;
}

#if defined(__x86_64__)
__attribute__((target("avx"))) static size_t momentum_avx(float *p, const float *g, float *v, size_t count) {
    const __m256 rate = _mm256_set1_ps((float)RATE), mu = _mm256_set1_ps((float)MOMENTUM);
    size_t j = 0;
    for (; j + 8 <= count; j += 8) {
        __m256 gradient = _mm256_loadu_ps(g + j);
        __m256 velocity = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(v + j), mu), gradient);
        __m256 step = _mm256_mul_ps(_mm256_add_ps(_mm256_mul_ps(velocity, mu), gradient), rate);
        _mm256_storeu_ps(v + j, velocity);
        _mm256_storeu_ps(p + j, _mm256_sub_ps(_mm256_loadu_ps(p + j), step));
    }
    return j;
}
#endif

/* Does Nesterov momentum in one pass over private arrays: three streams read, two written. Returns seconds per pass. */
BENCH_API double bench_momentum(float *p, const float *g, float *v, size_t count, int m) {
    double start = bench_now();
    for (int i = 0; i < m; i++) {
        size_t j = 0;
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx")) j = momentum_avx(p, g, v, count);
#endif
        for (; j < count; j++) {
            v[j] = v[j] * (float)MOMENTUM + g[j];
            p[j] -= (v[j] * (float)MOMENTUM + g[j]) * (float)RATE;
        }
    }
    return (bench_now() - start) / m;
}

/* Does an owner's work on count elements: the sum of n gradients and a step of momentum, block by block like the
 * engine; nothing is sent. Returns seconds per pass of m passes, or a negative number if a kernel fails. */
BENCH_API double bench_update(const float *const *gradients, int n, const double *weights, float *params, float *state,
                              size_t count, int m) {
    enum { BLOCK = 4096 };
    float sum[BLOCK];
    hpc_rule rule;
    if (n > MOST_RANKS || hpc_rule_find("nesterov", HPC_ISA_BEST, &rule) != HPC_OK) return -1;
    rule.args[0] = 1;
    rule.args[1] = RATE;
    rule.args[2] = 0;
    rule.args[3] = MOMENTUM;
    double start = bench_now();
    for (int i = 0; i < m; i++)
        for (size_t from = 0; from < count; from += BLOCK) {
            size_t length = count - from < BLOCK ? count - from : BLOCK;
            const void *in[MOST_RANKS];
            for (int k = 0; k < n; k++) in[k] = gradients[k] + from;
            if (hpc_fold(sum, in, weights, n, length, HPC_F32, HPC_ISA_BEST) != HPC_OK ||
                rule.apply(params + from, sum, n, state + from, rule.args, (int64_t)length) != 0)
                return -1;
        }
    return (bench_now() - start) / m;
}

#ifndef BENCH_LIBRARY
/* Returns a whole number that differs by rank, class and step; sums of them, and products with RATE, are exact. */
static float gradient_of(int rank, size_t j, uint64_t step) {
    return (float)(bench_word((uint64_t)rank * PERIOD + j % PERIOD) % 4096 + step % 64);
}

static void model_step(float *params, float *velocities, int size, uint64_t step) {
    for (size_t j = 0; j < PERIOD; j++) {
        float sum = 0;
        for (int r = 0; r < size; r++) sum += gradient_of(r, j, step);
        sum /= (float)size;
        velocities[j] = velocities[j] * (float)MOMENTUM + sum;
        params[j] -= (velocities[j] * (float)MOMENTUM + sum) * (float)RATE;
    }
}

static int run_size(bench_rank *r, size_t size) {
    const bench_options *options = &r->options;
    size_t count = size / sizeof(float), loop = count / (size_t)r->size + 1;
    size_t least = 4 * bench_last_cache() / (3 * sizeof(float) * (size_t)r->size);
    float *values = calloc(count, sizeof *values), *arrays[3] = {NULL, NULL, NULL}, *gradient = malloc(size);
    float params[PERIOD] = {0}, velocities[PERIOD] = {0};
    const float *const by_key[1] = {values}, *const gradients[1] = {gradient};
    const uint64_t counts[1] = {count};
    hpc_exchange *exchange = NULL;
    int status = HPC_ERR_MEMORY;
    uint64_t step = 0;
    if (loop < least) loop = least; /* the caches must not hold the three arrays of all ranks */
    for (int i = 0; i < 3; i++) arrays[i] = malloc(loop * sizeof(float));
    if (values == NULL || gradient == NULL || arrays[0] == NULL || arrays[1] == NULL || arrays[2] == NULL) goto out;
    for (size_t j = 0; j < loop; j++)
        for (int i = 0; i < 3; i++) arrays[i][j] = gradient_of(i, j, 0);
    status = bench_exchange(r->context, counts, by_key, 1, NULL, 0, (size_t)32 << 10, RATE, MOMENTUM, &exchange);
    for (int c = -1; status >= 0 && c < options->run_cycles; c++) {
        int n = c < 0 ? options->warmup_iters : options->iters;
        uint64_t wrong = 0;
        for (int b = 0; status >= 0 && b < n; b++) {
            status = bench_meet(r);
            r->seconds[b] = bench_momentum(arrays[0], arrays[1], arrays[2], loop, 1) * (2 * r->size + 4) *
                            (double)count / (LOOP_STREAMS * (double)loop * r->size);
        }
        bench_add(r, 0, "momentum traffic (bound)", size, c, n, 0, r->seconds);
        for (int b = 0; status >= 0 && b < n; b++) {
            step++;
            for (size_t j = 0; j < count && j < PERIOD; j++) gradient[j] = gradient_of(r->rank, j, step);
            for (size_t j = PERIOD; j < count; j++) gradient[j] = gradient[j - PERIOD];
            status = train(exchange, gradients, counts, 1, options->timeout);
            if (status < 0) break;
            status = bench_meet(r);
            if (status >= 0)
                status = bench_push_pull(exchange, gradients, counts, 1, options->agg_iters, options->timeout,
                                         &r->seconds[b]);
            for (int i = 0; i < options->agg_iters; i++) model_step(params, velocities, r->size, step);
        }
        const float *got = hpc_exchange_params(exchange, 0);
        for (size_t j = 0; status >= 0 && j < count; j++) wrong += got[j] != params[j % PERIOD];
        bench_add(r, 1, "hpcomm C", size, c, n, (int64_t)wrong, r->seconds);
    }
    if (status >= 0) bench_report(r, size, 2);
out:
    hpc_exchange_free(exchange);
    free(values);
    free(gradient);
    for (int i = 0; i < 3; i++) free(arrays[i]);
    return status;
}

static int run(bench_rank *r) {
    int status = HPC_OK;
    for (size_t size = r->options.minbytes; status >= 0 && size <= r->options.maxbytes;
         size *= (size_t)r->options.stepfactor)
        status = run_size(r, size);
    return status;
}

int main(int argc, char **argv) {
    bench_options defaults = {.minbytes = 32 << 20,
                              .maxbytes = 256 << 20,
                              .stepfactor = 8,
                              .iters = 3,
                              .warmup_iters = 1,
                              .agg_iters = 1,
                              .run_cycles = 7,
                              .ranks = 2,
                              .power_of_two = 1, /* for other numbers of ranks the mean rounds */
                              .timeout = 30};
    return bench_main(argc, argv, "push_pull", defaults, run);
}
#endif
