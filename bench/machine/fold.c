/* fold.c - the fold of several arrays into one, beside the machine's add bandwidth: c = a + b. */
#define _GNU_SOURCE
#include "c_ranks.h"

#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { INPUTS_MAX = 16 };

/* Returns the seconds per fold of m folds of n_in arrays, each with weight 1/n_in; a negative status on failure. */
BENCH_API double bench_fold_of(float *out, const void *const *in, int n_in, size_t count, int m) {
    double weights[INPUTS_MAX], start;
    for (int k = 0; k < n_in; k++) weights[k] = 1.0 / n_in;
    start = bench_now();
    for (int i = 0; i < m; i++) {
        int status = hpc_fold(out, in, weights, n_in, count, HPC_F32, HPC_ISA_BEST);
        if (status != HPC_OK) return status;
    }
    return (bench_now() - start) / m;
}

#if defined(__x86_64__)
__attribute__((target("avx"))) static size_t add_avx(float *c, const float *a, const float *b, size_t count,
                                                     int stream) {
    size_t j = 0;
    if (stream && (uintptr_t)c % 32 == 0) {
        for (; j + 8 <= count; j += 8)
            _mm256_stream_ps(c + j, _mm256_add_ps(_mm256_loadu_ps(a + j), _mm256_loadu_ps(b + j)));
        _mm_sfence();
    }
    for (; j + 8 <= count; j += 8)
        _mm256_storeu_ps(c + j, _mm256_add_ps(_mm256_loadu_ps(a + j), _mm256_loadu_ps(b + j)));
    return j;
}
#endif

/* Returns the seconds per pass of m passes of c = a + b; with stream, stores bypass the cache. */
BENCH_API double bench_two(float *c, const float *a, const float *b, size_t count, int stream, int m) {
    double start = bench_now();
    for (int i = 0; i < m; i++) {
        size_t j = 0;
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx")) j = add_avx(c, a, b, count, stream);
#endif
        (void)stream;
        for (; j < count; j++) c[j] = a[j] + b[j];
    }
    return (bench_now() - start) / m;
}

#ifndef BENCH_LIBRARY
static int run_size(bench_rank *r, size_t size) {
    static const char *const names[] = {"add (bound)", "hpcomm C, 2 inputs", "hpcomm C, 4 inputs",
                                        "hpcomm C, 8 inputs"};
    const bench_options *options = &r->options;
    size_t count = size / sizeof(float);
    float *arrays[9] = {NULL};
    int status = HPC_ERR_MEMORY;
    for (int k = 0; k < 9; k++) {
        arrays[k] = aligned_alloc(4096, (count * sizeof(float) + 4095) / 4096 * 4096);
        if (arrays[k] == NULL) goto out;
        for (size_t j = 0; j < count; j++) arrays[k][j] = (float)(bench_word((uint64_t)k + j) % 4096);
    }
    status = HPC_OK;
    for (int c = -1; status >= 0 && c < options->run_cycles; c++) {
        int n = c < 0 ? options->warmup_iters : options->iters;
        for (int i = 0; status >= 0 && i < 4; i++) {
            int n_in = 1 << (i > 0 ? i : 1);
            uint64_t wrong = 0;
            for (int b = 0; status >= 0 && b < n; b++) {
                status = bench_meet(r);
                /* per array read or written, so that folds of different numbers of arrays compare */
                double seconds = i == 0 ? bench_two(arrays[0], arrays[1], arrays[2], count, 1, 1)
                                        : bench_fold_of(arrays[0], (const void *const *)(arrays + 1), n_in, count, 1);
                if (seconds < 0) status = (int)seconds;
                r->seconds[b] = seconds / (n_in + 1);
            }
            for (size_t j = 0; j < count; j++) {
                float sum = 0;
                for (int k = 1; k <= n_in; k++) sum += arrays[k][j];
                wrong += arrays[0][j] != (i == 0 ? sum : sum / (float)n_in);
            }
            bench_add(r, i, names[i], size, c, n, (int64_t)wrong, r->seconds);
        }
    }
    if (status >= 0) bench_report(r, size, 4);
out:
    for (int k = 0; k < 9; k++) free(arrays[k]);
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
    size_t size = 2 * bench_last_cache(); /* no cache holds one array */
    if (size < (size_t)64 << 20) size = (size_t)64 << 20;
    bench_options defaults = {.minbytes = size,
                              .maxbytes = size,
                              .stepfactor = 2,
                              .iters = 3,
                              .warmup_iters = 1,
                              .agg_iters = 1,
                              .run_cycles = 7,
                              .ranks = 2,
                              .timeout = 30};
    return bench_main(argc, argv, "fold", defaults, run);
}
#endif
