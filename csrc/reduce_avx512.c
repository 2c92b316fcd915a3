/* Compiled with -mavx512f -ffp-contract=off; runs only where the CPU has it. */
#include "reduce.h"

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

#define REAL float
#define FOLD_SCALARS fold_scalars_f32
#define FOLD_BLOCKS fold_blocks_f32
#define FOLD fold_f32
#include "reduce_kernel.h"

#define REAL double
#define FOLD_SCALARS fold_scalars_f64
#define FOLD_BLOCKS fold_blocks_f64
#define FOLD fold_f64
#include "reduce_kernel.h"

const struct hpc_fold_kernels hpc_fold_avx512 = {fold_f32, fold_f64};
