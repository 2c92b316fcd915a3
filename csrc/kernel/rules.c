#include "kernel/rule.h"
#include "base/isa.h"

const hpc_builtin_rule *const *hpc_rules_of(int isa) {
    static const hpc_builtin_rule *const *const *const tables[] =
        HPC_BY_ISA(&hpc_rules_generic, &hpc_rules_avx2, &hpc_rules_avx512);
    return *tables[hpc_isa_resolve(isa)];
}
