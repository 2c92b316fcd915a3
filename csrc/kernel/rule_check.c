#include "kernel/rule.h"
#include "base/isa.h"
#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Records an error that lists all names of that kind. */
static int fail_unknown(const char *kind, const char *name, const char *(*name_of)(int i), const char *op) {
    char names[512] = "";
    size_t used = 0;
    for (int i = 0; name_of(i) != NULL && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", name_of(i));
    return hpc_fail(HPC_ERR_INVALID, op, "%s: no %s is called '%s'; there are %s", op, kind, name, names);
}

/* ---- rules ---- */

const char *hpc_rule_name(int i) {
    const hpc_builtin_rule *const *rule = hpc_rules_of(HPC_ISA_GENERIC);
    for (; i > 0 && *rule != NULL; i--) rule++;
    return i == 0 && *rule != NULL ? (*rule)->rule.name : NULL;
}

int hpc_rule_find(const char *name, int isa, hpc_rule *rule) {
    const char *op = "rule_find";
    if (name == NULL || rule == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %s is NULL", op, name == NULL ? "name" : "rule");
    int status = hpc_isa_check(isa, op);
    if (status != HPC_OK) return status;
    for (const hpc_builtin_rule *const *of = hpc_rules_of(isa); *of != NULL; of++)
        if (strcmp(name, (*of)->rule.name) == 0) {
            *rule = (*of)->rule;
            return HPC_OK;
        }
    return fail_unknown("rule", name, hpc_rule_name, op);
}

/* Returns the built-in rule to which rule->apply belongs; NULL if rule->apply or rule->fold is a user's function. */
static const hpc_builtin_rule *built_in(const hpc_rule *rule) {
    if (rule->fold != NULL) return NULL;
    for (int isa = HPC_ISA_GENERIC; isa <= HPC_ISA_AVX512; isa++) {
        if (!hpc_isa_available(isa)) continue;
        for (const hpc_builtin_rule *const *of = hpc_rules_of(isa); *of != NULL; of++)
            if ((*of)->rule.apply == rule->apply) return *of;
    }
    return NULL;
}

hpc_pass_fn *hpc_rule_pass(const hpc_rule *rule) {
    const hpc_builtin_rule *known = hpc_rule_proxes(rule) ? NULL : built_in(rule);
    return known == NULL ? NULL : known->pass;
}

/* sgd is the only rule that has a pass and no state. */
int hpc_rule_is_sgd(const hpc_rule *rule) {
    const hpc_builtin_rule *known = built_in(rule);
    return known != NULL && known->pass != NULL && known->rule.slots == 0;
}

int hpc_rule_averages(const hpc_rule *rule) {
    const hpc_builtin_rule *known = built_in(rule);
    return known != NULL && known->averages;
}

int hpc_rule_check_args(const char *name, const double *args, const char *op) {
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: the args of rule '%s' are NULL", op, name);
    for (int i = 1; i < HPC_RULE_ARGS; i++)
        if (!isfinite(args[i]))
            return hpc_fail(HPC_ERR_INVALID, op, "%s: args[%d] of rule '%s' is %g; it must be finite", op, i, name,
                            args[i]);
    return HPC_OK;
}

int hpc_rule_check(const hpc_rule *rule, const char *op) {
    if (rule == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: the rule is NULL", op);
    if (rule->name == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: the rule's name is NULL", op);
    if (rule->apply == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: apply of rule '%s' is NULL", op, rule->name);
    if (rule->slots < 0 || rule->slots > HPC_RULE_SLOTS)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: slots of rule '%s' is %d, not 0 to %d", op, rule->name, rule->slots,
                        HPC_RULE_SLOTS);
    const unsigned wires = 1u << HPC_F32 | 1u << HPC_F16 | 1u << HPC_BF16;
    if (rule->fold_wires & ~wires)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: fold_wires of rule '%s' is %#x; only bits of %#x are wire formats",
                        op, rule->name, rule->fold_wires, wires);
    if (rule->dual && rule->slots != 1)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: slots of rule '%s' is %d; with dual it must be 1, for Z", op,
                        rule->name, rule->slots);
    if (hpc_rule_proxes(rule) && hpc_rule_averages(rule))
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: rule '%s' averages models, and has no prox: give the prox to proxsgd or dual", op,
                        rule->name);
    if (rule->prox != NULL && (rule->columns < 1 || rule->columns > INT64_MAX))
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: columns of rule '%s' is %llu; with a prox it is the length of a matrix's rows", op,
                        rule->name, (unsigned long long)rule->columns);
    return hpc_rule_check_args(rule->name, rule->args, op);
}

const char *hpc_rule_arg_name(const char *names, int i, char *text, size_t size) {
    const char *at = names == NULL ? "" : names;
    for (int before = 1; before < i && *at != 0; before++) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    const int length = (int)strcspn(at, " ");
    if (length > 0)
        snprintf(text, size, "%.*s", length, at);
    else
        snprintf(text, size, "argument %d", i);
    return text;
}

/* ---- proxes ---- */

static const hpc_builtin_prox *proxes_of(int isa) {
    static const hpc_builtin_prox *const *const tables[] =
        HPC_BY_ISA(&hpc_proxes_generic, &hpc_proxes_avx2, &hpc_proxes_avx512);
    return *tables[hpc_isa_resolve(isa)];
}

const char *hpc_prox_name(int i) {
    const hpc_builtin_prox *of = proxes_of(HPC_ISA_GENERIC);
    for (; i > 0 && of->name != NULL; i--) of++;
    return i == 0 ? of->name : NULL;
}

int hpc_prox_find(const char *name, int isa, hpc_prox_fn *prox) {
    const char *op = "prox_find";
    if (name == NULL || prox == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %s is NULL", op, name == NULL ? "name" : "prox");
    int status = hpc_isa_check(isa, op);
    if (status != HPC_OK) return status;
    for (const hpc_builtin_prox *of = proxes_of(isa); of->name != NULL; of++)
        if (strcmp(name, of->name) == 0) {
            *prox = of->run;
            return HPC_OK;
        }
    return fail_unknown("prox", name, hpc_prox_name, op);
}

const char *hpc_prox_text(hpc_prox_fn prox) {
    if (prox == NULL) return "none";
    for (int isa = HPC_ISA_GENERIC; isa <= HPC_ISA_AVX512; isa++) {
        if (!hpc_isa_available(isa)) continue;
        for (const hpc_builtin_prox *of = proxes_of(isa); of->name != NULL; of++)
            if (of->run == prox) return of->name;
    }
    return "own";
}
