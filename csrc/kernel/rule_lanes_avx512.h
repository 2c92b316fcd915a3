/* Vectors of AVX-512F, and what rules do with them. */
#ifndef HPC_RULE_LANES_AVX512_H
#define HPC_RULE_LANES_AVX512_H

#include <immintrin.h>

#define VECTOR_BYTES 64

typedef float reals __attribute__((vector_size(VECTOR_BYTES)));

static inline reals root(reals x) {
    return (reals)_mm512_sqrt_ps((__m512)x);
}

static inline void stream_reals(float *to, reals x) {
    _mm512_stream_ps(to, (__m512)x);
}

/* gcc 12 at -O2 forgets vzeroupper here, and the caller's SSE code then runs at half speed. */
static inline void rule_end(void) {
    _mm256_zeroupper();
}

#endif
