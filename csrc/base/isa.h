/* The instruction sets of the kernels (hpc_isa), which all give the same bits, and the sizes of dtypes. */
#ifndef HPC_ISA_H
#define HPC_ISA_H

#include "hpcomm/hpcomm.h"

int hpc_isa_available(int isa); /* returns 1 or 0 */

/* Returns HPC_ERR_INVALID if isa is not a value of hpc_isa, HPC_ERR_UNSUPPORTED if this CPU lacks it, else HPC_OK. op
 * is the caller's name. */
int hpc_isa_check(int isa, const char *op);

/* Returns isa; for HPC_ISA_BEST the best instruction set of this CPU. */
int hpc_isa_resolve(int isa);

/* Initializes an array that has one value for each instruction set, indexed by hpc_isa. */
#if defined(__x86_64__)
#define HPC_BY_ISA(generic, avx2, avx512)                                                                              \
    { [HPC_ISA_GENERIC] = generic, [HPC_ISA_AVX2] = avx2, [HPC_ISA_AVX512] = avx512 }
#else
#define HPC_BY_ISA(generic, avx2, avx512)                                                                              \
    { [HPC_ISA_GENERIC] = generic }
#endif

/* Returns the bytes of an element; 0 if dtype is not an hpc_dtype. */
static inline size_t hpc_dtype_bytes(int dtype) {
    switch (dtype) {
    case HPC_F32:
        return 4;
    case HPC_F64:
        return 8;
    case HPC_F16:
    case HPC_BF16:
        return 2;
    default:
        return 0;
    }
}

#endif
