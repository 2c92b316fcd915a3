/* Built-in proxes: the proximal operators of SFB, section 2.1, and gradients of conjugates for SDCA. */
#ifndef HPC_PROX_H
#define HPC_PROX_H

#include "hpcomm/hpcomm.h"

/* One built-in prox, compiled for one instruction set. */
typedef struct hpc_builtin_prox {
    const char *name;
    hpc_prox_fn run;
} hpc_builtin_prox;

/* All of them in the same order, a NULL name behind the last (prox_kernel.h). */
extern const hpc_builtin_prox *const hpc_proxes_generic;
extern const hpc_builtin_prox *const hpc_proxes_avx2;   /* built on x86-64; the CPU must have AVX2 */
extern const hpc_builtin_prox *const hpc_proxes_avx512; /* and AVX-512F */

const char *hpc_prox_name(int i); /* of prox i, from 0; NULL past the end */

/* The name of a built-in prox; "own" of a user's, "none" of NULL. */
const char *hpc_prox_text(hpc_prox_fn prox);

#endif
