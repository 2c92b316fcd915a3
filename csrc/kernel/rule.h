/* Rules and proxes: the built-in ones, their tables, and the checks of any rule. */
#ifndef HPC_RULE_H
#define HPC_RULE_H

#include "hpcomm/hpcomm.h"

/* One pass that folds a block of float32 inputs, applies the rule, and writes the new parameters to param and to n_out
 * other places, with the bits of separate steps. No two arrays overlap. stream: writes the other places, which are then
 * aligned to 64 bytes, past the caches; the code that tells others of these writes fences first. */
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

/* One built-in rule, compiled for one instruction set. apply and pass take arrays that do not overlap, of any alignment
 * of a float; of a negative n they do nothing. */
typedef struct hpc_builtin_rule {
    hpc_rule rule;     /* as hpc_rule_find gives it */
    hpc_pass_fn *pass; /* fold, rule and write in one pass; NULL: the engine does them separately */
    int averages;      /* the fold itself becomes the parameters, so workers push models */
} hpc_builtin_rule;

/* All of them, NULL behind the last, in rules.h. */
extern const hpc_builtin_rule *const *const hpc_rules_generic;
extern const hpc_builtin_rule *const *const hpc_rules_avx2;   /* built on x86-64; the CPU must have AVX2 */
extern const hpc_builtin_rule *const *const hpc_rules_avx512; /* and AVX-512F */

const char *hpc_rule_name(int i); /* of rule i, from 0; NULL past the end */

/* The rules of instruction set isa, which this CPU has, or of the best one. */
const hpc_builtin_rule *const *hpc_rules_of(int isa);

/* Whether it is a built-in rule that averages, with no user's fold. */
int hpc_rule_averages(const hpc_rule *rule);

/* The pass of the built-in rule whose apply this is; NULL: it has none, or the rule or its fold is a user's own, or
 * hpc_rule_proxes. */
hpc_pass_fn *hpc_rule_pass(const hpc_rule *rule);

/* Whether apply is that of sgd, and so changes only where the fold is not 0, if there is no decay. With dual, of Z. */
int hpc_rule_is_sgd(const hpc_rule *rule);

/* Whether parameters are not just the result of apply: they have a prox, or are made of Z. */
static inline int hpc_rule_proxes(const hpc_rule *rule) {
    return rule->prox != NULL || rule->dual;
}

/* HPC_ERR_INVALID unless the rule is whole: name and apply not NULL, slots and fold_wires in range, every arg finite.
 * op names the caller. */
int hpc_rule_check(const hpc_rule *rule, const char *op);

/* The same for args alone, from args[1] on; name is the rule's. */
int hpc_rule_check_args(const char *name, const double *args, const char *op);

enum { HPC_ARG_NAME_BYTES = 64 }; /* enough for a name that text below gets */
/* text gets the name of args[i], the i-th word of names (arg_names of a rule), or "argument i" where it has no name.
 * Returns text. */
const char *hpc_rule_arg_name(const char *names, int i, char *text, size_t size);

/* ---- proxes: the proximal operators of SFB, section 2.1, and gradients of conjugates for SDCA ---- */

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
