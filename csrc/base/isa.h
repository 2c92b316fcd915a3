/* The instruction sets of kernels (hpc_isa): all of them give the same bits. */
#ifndef HPC_ISA_H
#define HPC_ISA_H

#include "hpcomm/hpcomm.h"

/* HPC_ERR_INVALID if isa is not a value of hpc_isa, HPC_ERR_UNSUPPORTED if this CPU lacks it. op names the caller. */
int hpc_isa_check(int isa, const char *op);

/* isa, or for HPC_ISA_BEST the one that it stands for here. */
int hpc_isa_resolve(int isa);

#endif
