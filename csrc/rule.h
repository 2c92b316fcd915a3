/* The built-in rules: one table for each instruction set, all of them made of rule_kernel.h, chosen in rule.c. */
#ifndef HPC_RULE_H
#define HPC_RULE_H

#include "hpcomm/hpcomm.h"

/* param, acc and state may not overlap and may have any alignment of a float. A negative n is none. */
struct hpc_rule_kernels {
    hpc_apply_fn average, sgd, momentum, nesterov, adam;
};

extern const struct hpc_rule_kernels hpc_rule_generic;
extern const struct hpc_rule_kernels hpc_rule_avx2;   /* built on x86-64; the CPU must have AVX2 */
extern const struct hpc_rule_kernels hpc_rule_avx512; /* and AVX-512F */

/* HPC_ERR_INVALID unless the rule is whole: name and apply not NULL, slots in range, every arg finite. op names the
 * caller. */
int hpc_rule_check(const hpc_rule *rule, const char *op);

/* The same for args alone, from args[1] on; name is the rule's. */
int hpc_rule_check_args(const char *name, const double *args, const char *op);

#endif
