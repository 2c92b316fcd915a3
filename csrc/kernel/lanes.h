/* Definitions that the vectors of all instruction sets share. lanes_*.h defines VECTOR_BYTES and includes this file. */
#ifndef HPC_LANES_H
#define HPC_LANES_H

#include <stdint.h>

typedef float reals __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));

/* Returns the nearest bfloat16 of each lane, in the lower half of its word. */
static inline words round_bf16(reals x) {
    words bits = (words)x;
    words nan = (words)(x != x);
    words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (rounded & ~nan) | ((bits >> 16 | 0x0040) & nan);
}

#endif
