/* Rules and proxes: the built-in ones, their tables, and the checks of any rule. */
#ifndef HPC_RULE_H
#define HPC_RULE_H

#include "hpcomm/hpcomm.h"

/* One pass folds a block of float32 inputs, applies the rule, and writes the new parameters to param and to n_out other
 * places. Separate steps give the same bits. No two arrays may overlap. With stream 1 the other places are stored past
 * the caches, and must be aligned to 64 bytes. The caller must then execute a store fence before it tells other threads
 * or ranks of these writes. */
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

/* One built-in rule, compiled for one instruction set. apply and pass take arrays that do not overlap, aligned as
 * floats are; if n is negative they do nothing. */
typedef struct hpc_builtin_rule {
    hpc_rule rule;     /* the rule that hpc_rule_find returns */
    hpc_pass_fn *pass; /* fold, rule and write in one pass; NULL: the engine takes these steps one by one */
    int averages;      /* 1: the fold itself becomes the parameters, so workers push models */
} hpc_builtin_rule;

/* All built-in rules (rules.h), with NULL after the last. */
extern const hpc_builtin_rule *const *const hpc_rules_generic;
extern const hpc_builtin_rule *const *const hpc_rules_avx2;   /* built on x86-64; the CPU must have AVX2 */
extern const hpc_builtin_rule *const *const hpc_rules_avx512; /* and AVX-512F */

const char *hpc_rule_name(int i); /* of rule i, from 0; NULL after the last */

/* Returns the rules for instruction set isa, which this CPU must have, or for the best one that it has. */
const hpc_builtin_rule *const *hpc_rules_of(int isa);

/* Returns whether rule is the built-in average, without a user's fold. */
int hpc_rule_averages(const hpc_rule *rule);

/* Returns the pass of the built-in rule that apply belongs to. Returns NULL if the built-in rule has no pass, if
 * rule->apply or rule->fold is a user's function, or if hpc_rule_proxes returns 1. */
hpc_pass_fn *hpc_rule_pass(const hpc_rule *rule);

/* Returns whether rule->apply is the function of sgd, which without decay changes only elements whose fold is not 0.
 * With dual these are elements of Z. */
int hpc_rule_is_sgd(const hpc_rule *rule);

/* Returns whether rule->apply alone does not give the parameters, because they go through a prox or are made of Z. */
static inline int hpc_rule_proxes(const hpc_rule *rule) {
    return rule->prox != NULL || rule->dual;
}

/* Returns HPC_ERR_INVALID unless the rule is complete: name and apply are not NULL, slots and fold_wires are in range,
 * and every arg is finite. op names the caller. */
int hpc_rule_check(const hpc_rule *rule, const char *op);

/* Checks only the arguments, from args[1] on. name: the rule's name, for errors. */
int hpc_rule_check_args(const char *name, const double *args, const char *op);

enum { HPC_ARG_NAME_BYTES = 64 }; /* enough for the name that hpc_rule_arg_name writes */
/* Writes the name of args[i] to text: the i-th word of names (arg_names of a rule) or "argument i" if names has fewer
 * words. Returns text. */
const char *hpc_rule_arg_name(const char *names, int i, char *text, size_t size);

/* ---- proxes: the proximal operators of SFB, section 2.1, and gradients of conjugates for SDCA ---- */

/* One built-in prox, compiled for one instruction set. */
typedef struct hpc_builtin_prox {
    const char *name;
    hpc_prox_fn run;
} hpc_builtin_prox;

/* All built-in proxes, in the same order in each table, with a NULL name after the last (prox_kernel.h). */
extern const hpc_builtin_prox *const hpc_proxes_generic;
extern const hpc_builtin_prox *const hpc_proxes_avx2;   /* built on x86-64; the CPU must have AVX2 */
extern const hpc_builtin_prox *const hpc_proxes_avx512; /* and AVX-512F */

const char *hpc_prox_name(int i); /* of prox i, from 0; NULL after the last */

/* Returns the name of a built-in prox, "own" for a user's, or "none" for NULL. */
const char *hpc_prox_text(hpc_prox_fn prox);

#endif
