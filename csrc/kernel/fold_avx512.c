/* Compiled with -mavx512f -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/fold.h"

#include <immintrin.h>

#define VECTOR_BYTES 64

static inline void stream_vector(void *to, const void *from) {
    _mm512_stream_si512(to, _mm512_loadu_si512(from));
}

/* gcc 12 at -O2 forgets vzeroupper here, and the caller's SSE code then runs at half speed. */
static inline void fold_end(int stream) {
    if (stream) _mm_sfence();
    _mm256_zeroupper();
}

typedef float reals __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));

static inline reals load_f16(const uint16_t *in) {
    return (reals)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)in));
}

static inline reals load_bf16(const uint16_t *in) {
    return (reals)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)in)), 16);
}

static inline void store_f16(uint16_t *out, reals x) {
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void store_words16(uint16_t *out, words x) {
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16((__m512i)x));
}

#include "kernel/wire_kernel.h"

#define REAL float
#define FOLD_SCALARS fold_scalars_f32
#define FOLD_BLOCKS fold_blocks_f32
#define FOLD fold_f32
#include "kernel/fold_kernel.h"

#define REAL double
#define FOLD_SCALARS fold_scalars_f64
#define FOLD_BLOCKS fold_blocks_f64
#define FOLD fold_f64
#include "kernel/fold_kernel.h"

#define REAL float
#define ITEM uint16_t
#define WIDEN hpc_from_f16
#define LOAD load_f16
#define FOLD_SCALARS fold_scalars_f16
#define FOLD_BLOCKS fold_blocks_f16
#define FOLD fold_f16
#include "kernel/fold_kernel.h"

#define REAL float
#define ITEM uint16_t
#define WIDEN hpc_from_bf16
#define LOAD load_bf16
#define FOLD_SCALARS fold_scalars_bf16
#define FOLD_BLOCKS fold_blocks_bf16
#define FOLD fold_bf16
#include "kernel/fold_kernel.h"

const struct hpc_fold_kernels hpc_fold_avx512 = {fold_f32, fold_f64, fold_f16,   fold_bf16,
                                                 encode,   copy,     all_finite, squares};
