/* Vectors for every CPU: 16 bytes, which the compiler maps to the baseline's registers, and what rules do with them. */
#ifndef HPC_RULE_LANES_GENERIC_H
#define HPC_RULE_LANES_GENERIC_H

#define VECTOR_BYTES 16

typedef float reals __attribute__((vector_size(VECTOR_BYTES)));

#if defined(__SSE2__)

#include <emmintrin.h>

static inline reals root(reals x) {
    return (reals)_mm_sqrt_ps((__m128)x);
}

static inline void stream_reals(float *to, reals x) {
    _mm_stream_ps(to, (__m128)x);
}

#else

/* One instruction each: this file is compiled with -fno-math-errno. */
static inline reals root(reals x) {
    for (unsigned lane = 0; lane < VECTOR_BYTES / sizeof(float); lane++) x[lane] = __builtin_sqrtf(x[lane]);
    return x;
}

static inline void stream_reals(float *to, reals x) {
    *(reals *)to = x; /* aligned, as every streamed place is */
}

#endif

static inline void rule_end(void) {}

#endif
