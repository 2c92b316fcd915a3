/* The combination of arrays of several ranks into one (hpc_op), by type. One table for each instruction set, made of
 * combine_kernel.h; all give the same bits. */
#ifndef HPC_COMBINE_H
#define HPC_COMBINE_H

#include "hpcomm/hpcomm.h"

/* Writes out[i] = in[0][i] op in[1][i] op ..., in this order, for n_in of 1 and more. out may be one of the inputs;
 * otherwise it overlaps none. Any alignment. n_ranks: the divisor of HPC_AVG. A sum, mean or product that is NaN is
 * always the same NaN. */
typedef void hpc_combine_fn(void *out, const void *const *in, int n_in, size_t count, int n_ranks);

enum { HPC_COMBINE_TYPES = 15, HPC_COMBINE_OPS = HPC_BXOR + 1 };

/* The functions by type, in the order of hpc_dtype and then of hpc_element, and by hpc_op. */
struct hpc_combine_kernels {
    hpc_combine_fn *of[HPC_COMBINE_TYPES][HPC_COMBINE_OPS];
};

extern const struct hpc_combine_kernels hpc_combine_generic;
extern const struct hpc_combine_kernels hpc_combine_avx2; /* built on x86-64; the CPU must have AVX2 and F16C */

/* Returns the function of an instruction set that hpc_isa_check accepts; NULL if the operator does not take the type.
 * Any op and type may be asked for. */
hpc_combine_fn *hpc_combine_of(int op, int type, int isa);

/* The names of an hpc_op and of any type, for errors, such as "sum" and "float32"; NULL if there is none. */
const char *hpc_op_name(int op);
const char *hpc_type_name(int type);

#endif
