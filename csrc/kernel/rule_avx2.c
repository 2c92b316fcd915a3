/* Compiled with -mavx2 -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/rule.h"

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

#include "kernel/rule_kernel.h"
#include "kernel/rule_pass.h"

const struct hpc_rule_kernels hpc_rule_avx2 = {
    average, sgd, momentum, nesterov, adam, adamw, sgd_pass, momentum_pass, nesterov_pass, adam_pass, adamw_pass,
};
