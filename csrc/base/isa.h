/* The instruction sets of kernels (hpc_isa), which all give the same bits, and the sizes of dtypes. */
#ifndef HPC_ISA_H
#define HPC_ISA_H

#include "hpcomm/hpcomm.h"

int hpc_isa_available(int isa); /* 1 or 0 */

/* HPC_ERR_INVALID if isa is not a value of hpc_isa, HPC_ERR_UNSUPPORTED if this CPU lacks it. op names the caller. */
int hpc_isa_check(int isa, const char *op);

/* isa, or for HPC_ISA_BEST the one that it stands for here. */
int hpc_isa_resolve(int isa);

/* The values of an array that has one for each instruction set, by hpc_isa. */
#if defined(__x86_64__)
#define HPC_BY_ISA(generic, avx2, avx512)                                                                              \
    { [HPC_ISA_GENERIC] = generic, [HPC_ISA_AVX2] = avx2, [HPC_ISA_AVX512] = avx512 }
#else
#define HPC_BY_ISA(generic, avx2, avx512)                                                                              \
    { [HPC_ISA_GENERIC] = generic }
#endif

/* Bytes of an element; 0 for no hpc_dtype. */
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
