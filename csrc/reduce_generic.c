/* For every CPU: vectors of 16 bytes, which the compiler maps to the baseline's registers. -ffp-contract=off. */
#include "reduce.h"

#define VECTOR_BYTES 16

#if defined(__SSE2__)

#include <emmintrin.h>

static inline void stream_vector(void *to, const void *from) {
    _mm_stream_si128(to, _mm_loadu_si128(from));
}

static inline void fold_end(int stream) {
    if (stream) _mm_sfence();
}

#else

#include <string.h>

static inline void stream_vector(void *to, const void *from) {
    memcpy(to, from, VECTOR_BYTES);
}

static inline void fold_end(int stream) {
    (void)stream;
}

#endif

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

const struct hpc_fold_kernels hpc_fold_generic = {fold_f32, fold_f64};
