/* Converts one 16-bit float to float32 and back, by the same operations as the vector kernels apply to each
 * element. In 16 bits a NaN keeps its sign and the upper bits of its payload, and becomes quiet. */
#ifndef HPC_HALF_H
#define HPC_HALF_H

#include <stdint.h>
#include <string.h>

static inline float hpc_float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t hpc_bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* binary16: 1 sign, 5 exponent (bias 15) and 10 mantissa bits. */
static inline float hpc_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude < 0x0400) { /* a multiple of 2^-24 */
        uint32_t bits = hpc_bits_of_float((float)magnitude * 0x1p-24f);
        return hpc_float_of_bits(sign | bits);
    }
    uint32_t special = magnitude > 0x7bff ? 112u << 23 : 0; /* Inf and NaN */
    return hpc_float_of_bits(sign | ((magnitude << 13) + (112u << 23) + special));
}

static inline uint16_t hpc_to_f16(float x) {
    uint32_t bits = hpc_bits_of_float(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x03ff));
    if (magnitude < 113u << 23) { /* below 2^-14: near 0.5 floats have steps of 2^-24, so adding 0.5 rounds to them */
        float sum = hpc_float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (hpc_bits_of_float(sum) - (126u << 23)));
    }
    if (magnitude >= 143u << 23) return (uint16_t)(sign | 0x7c00);
    /* Adds half of the last bit that stays, minus one if that bit is 0; a carry goes on into the exponent. */
    return (uint16_t)(sign | (magnitude - (112u << 23) + 0x0fff + (magnitude >> 13 & 1)) >> 13);
}

/* bfloat16: the upper half of a float32. */
static inline float hpc_from_bf16(uint16_t half) {
    return hpc_float_of_bits((uint32_t)half << 16);
}

static inline uint16_t hpc_to_bf16(float x) {
    uint32_t bits = hpc_bits_of_float(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x0040);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
