/* For every CPU. Compiled with -ffp-contract=off. */
#include "kernel/float4.h"
#include "kernel/lanes_generic.h"

#define LEVELS const float *

static inline words larger(words a, words b) {
    const words is = (words)((ints)a > (ints)b);
    return (a & is) | (b & ~is);
}

static inline void put_codes(uint8_t *out, words codes) {
    for (int i = 0; i < 2; i++) out[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
}

static inline LEVELS load_levels(const float *levels) {
    return levels;
}

static inline reals levels_of(LEVELS levels, const uint8_t *in) {
    return (reals){levels[in[0] & 15], levels[in[0] >> 4], levels[in[1] & 15], levels[in[1] >> 4]};
}

#include "kernel/float4_kernel.h"

const struct hpc_float4_kernels hpc_float4_generic = {largest, put, add};
