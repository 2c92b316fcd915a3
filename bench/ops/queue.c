/* queue.c - NOTIFY-ACK exchange and average over a circulant graph, beside the fold alone.
 *
 * In a step a rank changes a few of its values, as training would, sends them to its out-neighbours, and averages
 * them with its in-neighbours' values. For each offset, rank r has the in-neighbour r - offset and the out-neighbour
 * r + offset, modulo size.
 *
 * All values are known exactly. Each rank starts with whole numbers that repeat every PERIOD elements, and every
 * step changes one element of each period. So a simulation of PERIOD elements of all ranks, with the same operations
 * in the same order, gives every element bit for bit. */
#define _GNU_SOURCE
#include "c_ranks.h"

enum { PERIOD = 4093, DEGREE_MAX = 16 }; /* PERIOD is a prime, so that data misplaced by a power of two are wrong */

BENCH_API int bench_period(void) {
    return PERIOD;
}

static float start_value(int rank, size_t j) {
    return (float)(bench_word((uint64_t)rank * PERIOD + j % PERIOD) % 65536);
}

static size_t touched(uint64_t step) {
    return (size_t)(step * 61 % PERIOD);
}

static float touch_by(int rank, uint64_t step) {
    return (float)(1 + bench_word(step * 64 + (uint64_t)rank) % 255);
}

BENCH_API void bench_start(float *x, size_t count, int rank) {
    for (size_t j = 0; j < count && j < PERIOD; j++) x[j] = start_value(rank, j);
    for (size_t j = PERIOD; j < count; j++) x[j] = x[j - PERIOD];
}

BENCH_API void bench_touch(float *x, size_t count, int rank, uint64_t step) {
    float by = touch_by(rank, step);
    for (size_t j = touched(step); j < count; j += PERIOD) x[j] += by;
}

/* Simulates one step of all ranks; model has PERIOD values of each rank. With sum_first it computes (own + theirs +
 * ...) * weight, like typical NumPy code, otherwise own * weight + theirs * weight + ..., like hpc_queue_reduce.
 * scratch must be as large as model. */
BENCH_API void bench_model(float *model, float *scratch, int size, const int *offsets, int degree, uint64_t step,
                           int sum_first) {
    const float weight = (float)(1.0 / (degree + 1));
    for (int r = 0; r < size; r++) model[(size_t)r * PERIOD + touched(step)] += touch_by(r, step);
    for (int r = 0; r < size; r++) {
        for (size_t j = 0; j < PERIOD; j++) {
            float own = model[(size_t)r * PERIOD + j], sum = sum_first ? own : own * weight;
            for (int k = 0; k < degree; k++) {
                float theirs = model[(size_t)((r + size - offsets[k]) % size) * PERIOD + j];
                sum += sum_first ? theirs : theirs * weight;
            }
            scratch[(size_t)r * PERIOD + j] = sum_first ? sum * weight : sum;
        }
    }
    memcpy(model, scratch, (size_t)size * PERIOD * sizeof *model);
}

BENCH_API uint64_t bench_wrong_model(const float *x, size_t count, const float *expected) {
    uint64_t wrong = 0;
    for (size_t at = 0; at < count; at += PERIOD) {
        size_t n = count - at < PERIOD ? count - at : PERIOD;
        if (memcmp(x + at, expected, n * sizeof *x) == 0) continue;
        for (size_t j = 0; j < n; j++) wrong += x[at + j] != expected[j];
    }
    return wrong;
}

/* Takes n samples of m steps. state: the steps so far, and which registered buffer (0 or 1) has this rank's values. */
BENCH_API int bench_queue(hpc_queue *queue, int rank, const int *out_peers, int degree, size_t count, int m, int n,
                          double timeout, uint64_t state[2], double *seconds) {
    double weights[DEGREE_MAX], weight = 1.0 / (degree + 1);
    for (int k = 0; k < degree; k++) weights[k] = weight;
    double before = bench_now();
    for (int b = 0; b < n; b++) {
        for (int i = 0; i < m; i++) {
            float *x = hpc_queue_buffer(queue, (int)state[1]), *next = hpc_queue_buffer(queue, 1 - (int)state[1]);
            int status = HPC_OK;
            bench_touch(x, count, rank, state[0]);
            for (int k = 0; status == HPC_OK && k < degree; k++)
                status = hpc_queue_send(queue, out_peers[k], x, count * sizeof *x, timeout);
            if (status == HPC_OK) status = hpc_queue_acquire(queue, 1 - (int)state[1], timeout);
            if (status == HPC_OK) status = hpc_queue_reduce(queue, next, x, weight, weights, HPC_F32, timeout);
            if (status != HPC_OK) return status;
            state[0]++;
            state[1] = 1 - state[1];
        }
        double now = bench_now();
        seconds[b] = (now - before) / m;
        before = now;
    }
    return HPC_OK;
}

/* Times the bound: the same fold without waits. other takes the place of the neighbours' values. */
BENCH_API int bench_fold(float *out, const float *own, const float *other, int degree, size_t count, int m, int n,
                         double *seconds) {
    const void *in[DEGREE_MAX + 1] = {own};
    double weights[DEGREE_MAX + 1];
    for (int k = 1; k <= degree; k++) in[k] = other;
    for (int k = 0; k <= degree; k++) weights[k] = 1.0 / (degree + 1);
    double before = bench_now();
    for (int b = 0; b < n; b++) {
        for (int i = 0; i < m; i++) {
            int status = hpc_fold(out, in, weights, degree + 1, count, HPC_F32, HPC_ISA_BEST);
            if (status != HPC_OK) return status;
        }
        double now = bench_now();
        seconds[b] = (now - before) / m;
        before = now;
    }
    return HPC_OK;
}

#ifndef BENCH_LIBRARY
static int run_size(bench_rank *r, size_t size) {
    const bench_options *options = &r->options;
    size_t count = size / sizeof(float), model_bytes = (size_t)r->size * PERIOD * sizeof(float);
    float *model = malloc(model_bytes), *scratch = malloc(model_bytes), *other = malloc(size);
    int in_peers[DEGREE_MAX], out_peers[DEGREE_MAX], status = HPC_ERR_MEMORY, degree = options->degree;
    hpc_queue *queue = NULL;
    hpc_queue_config config;
    uint64_t state[2] = {0, 0}, modelled = 0;
    if (model == NULL || scratch == NULL || other == NULL) goto out;
    for (int k = 0; k < degree; k++) {
        in_peers[k] = (r->rank + r->size - options->offsets[k]) % r->size;
        out_peers[k] = (r->rank + options->offsets[k]) % r->size;
    }
    hpc_queue_config_init(&config);
    config.in_peers = in_peers;
    config.out_peers = out_peers;
    config.n_in = config.n_out = degree;
    config.nbytes = size;
    config.depth = 1;
    config.buffers = 2;
    status = hpc_queue_create(r->context, &config, -1, &queue);
    if (status < 0) goto out;
    bench_start(hpc_queue_buffer(queue, 0), count, r->rank);
    bench_start(other, count, r->rank);
    for (int p = 0; p < r->size; p++) bench_start(model + (size_t)p * PERIOD, PERIOD, p);
    for (int c = -1; status >= 0 && c < options->run_cycles; c++) {
        int n = c < 0 ? options->warmup_iters : options->iters;
        float *own = hpc_queue_buffer(queue, (int)state[1]), *next = hpc_queue_buffer(queue, 1 - (int)state[1]);
        status = bench_meet(r);
        if (status >= 0) status = bench_fold(next, own, other, degree, count, options->agg_iters, n, r->seconds);
        bench_add(r, 0, "fold alone (bound)", size, c, n, 0, r->seconds);
        if (status >= 0) status = bench_meet(r);
        if (status >= 0)
            status = bench_queue(queue, r->rank, out_peers, degree, count, options->agg_iters, n, options->timeout,
                                 state, r->seconds);
        for (; modelled < state[0]; modelled++)
            bench_model(model, scratch, r->size, options->offsets, degree, modelled, 0);
        bench_add(
            r, 1, "hpcomm C", size, c, n,
            (int64_t)bench_wrong_model(hpc_queue_buffer(queue, (int)state[1]), count, model + (size_t)r->rank * PERIOD),
            r->seconds);
    }
    if (status >= 0) bench_report(r, size, 2);
out:
    hpc_queue_free(queue);
    free(model);
    free(scratch);
    free(other);
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
                              .iters = 5,
                              .warmup_iters = 2,
                              .agg_iters = 1,
                              .run_cycles = 7,
                              .ranks = 2,
                              .timeout = 30,
                              .degree = 1,
                              .offsets = {1}};
    return bench_main(argc, argv, "queue", defaults, run);
}
#endif
