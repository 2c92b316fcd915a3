/* Vectors of AVX2, and what rules do with them. */
#ifndef HPC_RULE_LANES_AVX2_H
#define HPC_RULE_LANES_AVX2_H

#include <immintrin.h>

#define VECTOR_BYTES 32

typedef float reals __attribute__((vector_size(VECTOR_BYTES)));

static inline reals root(reals x) {
    return (reals)_mm256_sqrt_ps((__m256)x);
}

static inline void stream_reals(float *to, reals x) {
    _mm256_stream_ps(to, (__m256)x);
}

/* gcc 12 at -O2 forgets vzeroupper here, and the caller's SSE code then runs at half speed. */
static inline void rule_end(void) {
    _mm256_zeroupper();
}

#endif
