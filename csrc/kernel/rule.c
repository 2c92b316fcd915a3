#include "kernel/rule.h"
#include "kernel/fold.h"
#include "base/isa.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

static const struct hpc_rule_kernels *kernels_of(int isa) {
    switch (hpc_isa_resolve(isa)) {
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return &hpc_rule_avx2;
    case HPC_ISA_AVX512:
        return &hpc_rule_avx512;
#endif
    default:
        return &hpc_rule_generic;
    }
}

int hpc_rule_find(const char *name, int isa, hpc_rule *rule) {
    const char *op = "rule_find";
    if (name == NULL || rule == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %s is NULL", op, name == NULL ? "name" : "rule");
    int status = hpc_isa_check(isa, op);
    if (status != HPC_OK) return status;

    const struct hpc_rule_kernels *kernels = kernels_of(isa);
    const hpc_rule rules[] = {
        {"average", kernels->average, NULL, 0, 0, {0}},
        {"sgd", kernels->sgd, NULL, 0, 0, {0, 0.01, 0}},
        {"momentum", kernels->momentum, NULL, 1, 0, {0, 0.01, 0, 0.9}},
        {"nesterov", kernels->nesterov, NULL, 1, 0, {0, 0.01, 0, 0.9}},
        {"adam", kernels->adam, NULL, 2, 0, {0, 0.01, 0, 0.9, 0.999, 1e-8}},
        {"adamw", kernels->adamw, NULL, 2, 0, {0, 0.01, 0.01, 0.9, 0.999, 1e-8}},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (strcmp(name, rules[i].name) != 0) continue;
        *rule = rules[i];
        return HPC_OK;
    }
    return hpc_fail(HPC_ERR_INVALID, op,
                    "%s: no rule is called '%s'; there are average, sgd, momentum, nesterov, adam, adamw", op, name);
}

hpc_pass_fn *hpc_rule_pass(const hpc_rule *rule) {
    if (rule->fold != NULL) return NULL;
    for (int isa = HPC_ISA_GENERIC; isa <= HPC_ISA_AVX512; isa++) {
        if (!hpc_isa_available(isa)) continue;
        const struct hpc_rule_kernels *kernels = kernels_of(isa);
        if (rule->apply == kernels->sgd) return kernels->sgd_pass;
        if (rule->apply == kernels->momentum) return kernels->momentum_pass;
        if (rule->apply == kernels->nesterov) return kernels->nesterov_pass;
        if (rule->apply == kernels->adam) return kernels->adam_pass;
        if (rule->apply == kernels->adamw) return kernels->adamw_pass;
    }
    return NULL;
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
    return hpc_rule_check_args(rule->name, rule->args, op);
}
