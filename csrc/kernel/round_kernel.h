/* Rounding to bfloat16, for the vectors reals and words of an instruction set. */
#ifndef HPC_ROUND_KERNEL_H
#define HPC_ROUND_KERNEL_H

/* The nearest bfloat16 of each, in the lower half of its word. */
static inline words round_bf16(reals x) {
    words bits = (words)x;
    words nan = (words)(x != x);
    words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (rounded & ~nan) | ((bits >> 16 | 0x0040) & nan);
}

#endif
