/* The built-in rules: one table for each instruction set, all of them made of rule_kernel.h, chosen in rule.c. */
#ifndef HPC_RULE_H
#define HPC_RULE_H

#include "hpcomm/hpcomm.h"

/* A block of float32 inputs folded, the rule applied, and the new parameters written to param and to n_out other
 * places, in one pass and with the bits of doing one after the other. No two arrays overlap. stream: the other places,
 * which are then aligned to 64 bytes, are written past the caches; whoever says that they are written fences first. */
enum { HPC_PASS_INPUTS = 16 };

typedef struct hpc_pass {
    float *param;
    const float *const *in;
    const double *weights;
    int n_in; /* 1 to HPC_PASS_INPUTS */
    float *const *out;
    int n_out;
    float *state;
    const double *args;
    int64_t n;
    int stream;
} hpc_pass;

typedef int hpc_pass_fn(const hpc_pass *pass);

/* param, acc and state may not overlap and may have any alignment of a float. A negative n is none. */
struct hpc_rule_kernels {
    hpc_apply_fn average, sgd, momentum, nesterov, adam, adamw;
    hpc_pass_fn *sgd_pass, *momentum_pass, *nesterov_pass, *adam_pass, *adamw_pass;
};

extern const struct hpc_rule_kernels hpc_rule_generic;
extern const struct hpc_rule_kernels hpc_rule_avx2;   /* built on x86-64; the CPU must have AVX2 */
extern const struct hpc_rule_kernels hpc_rule_avx512; /* and AVX-512F */

/* The same rule in one pass with fold and write; NULL for average, whose fold is all, and for a user's own. */
hpc_pass_fn *hpc_rule_pass(const hpc_rule *rule);

/* HPC_ERR_INVALID unless the rule is whole: name and apply not NULL, slots and fold_wires in range, every arg finite.
 * op names the caller. */
int hpc_rule_check(const hpc_rule *rule, const char *op);

/* The same for args alone, from args[1] on; name is the rule's. */
int hpc_rule_check_args(const char *name, const double *args, const char *op);

#endif
