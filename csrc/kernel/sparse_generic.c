/* For every CPU. Compiled with -ffp-contract=off. */
#include "kernel/lanes_generic.h"
#include "kernel/sparse.h"
#include "kernel/sparse_kernel.h"

static void add_bits(float *acc, size_t n, const uint8_t *bits, const float *values) {
    add_bits_from(acc, 0, n, bits, values);
}

const struct hpc_sparse_kernels hpc_sparse_generic = {
    filter_f32, filter_f16, filter_bf16, gaps8,    gaps16, positions8, positions16,
    codes8,     codes16,    count_bits,  add_bits, signs,  take_signs, add_signs,
};
