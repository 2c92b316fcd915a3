/* bench.h - shared by all C benchmarks: the clock, the predictable bytes, the count of wrong bytes, options, ranks.
 *
 * Each benchmark is one file: its measured loops, and a main that runs them over forked ranks without Python. The
 * Python benchmarks load the same loops as one shared library, compiled with -DBENCH_LIBRARY, which leaves out the
 * mains. */
#ifndef BENCH_H
#define BENCH_H

#include <hpcomm/hpcomm.h>

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define BENCH_API __attribute__((visibility("default")))

enum { BENCH_LINE = 64 };

/* A word alone on a pair of cache lines: a processor fetches the neighbouring line too. */
typedef struct bench_line {
    _Atomic uint64_t word;
    char unused[2 * BENCH_LINE - sizeof(uint64_t)];
} bench_line;

static inline double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Reads a counter that is cheaper than the clock. It measures short times; the clock gives its rate. */
static inline uint64_t bench_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return (uint64_t)(1e9 * bench_now());
#endif
}

/* Converts the ticks of m round trips, which took `seconds` in all, into seconds of one way. */
static inline void bench_trips(double *trips, int m, double seconds) {
    double sum = 0;
    for (int i = 0; i < m; i++) sum += trips[i];
    for (int i = 0; i < m; i++) trips[i] *= sum > 0 ? seconds / (2 * sum) : 0;
}

/* Returns word j of the predictable bytes (splitmix64). */
static inline uint64_t bench_word(uint64_t j) {
    uint64_t z = (j + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void bench_fill_words(uint64_t *to, size_t count) {
    for (size_t j = 0; j < count; j++) to[j] = bench_word(j);
}

static inline uint64_t bench_wrong_words(const uint64_t *got, const uint64_t *expected, size_t count) {
    uint64_t wrong = 0;
    if (memcmp(got, expected, count * sizeof *got) == 0) return 0;
    for (size_t j = 0; j < count; j++) wrong += got[j] != expected[j];
    return wrong;
}

/* Returns where a sample's source starts in the predictable bytes, in units of the caller's choice. The place
 * differs between the two ranks of a pair and between 256 successive samples, so an earlier sample's data are always
 * wrong. */
enum { BENCH_SHIFTS = 512, BENCH_LINE_WORDS = 8, BENCH_PAGE_WORDS = 512 };
static inline size_t bench_shift(uint64_t sample, int rank) {
    return (size_t)((2 * sample + (uint64_t)(rank & 1)) % BENCH_SHIFTS);
}

#endif
