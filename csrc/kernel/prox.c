#include "kernel/prox.h"
#include "base/isa.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

static const hpc_builtin_prox *proxes_of(int isa) {
    switch (hpc_isa_resolve(isa)) {
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return hpc_proxes_avx2;
    case HPC_ISA_AVX512:
        return hpc_proxes_avx512;
#endif
    default:
        return hpc_proxes_generic;
    }
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

    char names[512] = "";
    size_t used = 0;
    for (const hpc_builtin_prox *of = proxes_of(isa); of->name != NULL; of++) {
        if (strcmp(name, of->name) == 0) {
            *prox = of->run;
            return HPC_OK;
        }
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", of->name);
    }
    return hpc_fail(HPC_ERR_INVALID, op, "%s: no prox is called '%s'; there are %s", op, name, names);
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
