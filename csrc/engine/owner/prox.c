#include "engine/owner/prox.h"

#include <stdio.h>
#include <string.h>

#include "engine/owner/signals.h"
#include "engine/owner/write.h"

enum {
    LINE = 16 /* elements in 64 bytes: a block that begins at a multiple of this may be written by stores that bypass
                 the caches */
};

/* Returns whether a row has a prox. A row that emits (HPC_EMIT) has none: its fold is the parameters, without the key's
 * rule. */
static int has_prox(const hpc_work *w) {
    return hpc_rule_proxes(&w->rule->rule) && w->row->action == HPC_APPLY;
}

/* ---- failures ---- */

static unsigned long long first_row(const hpc_work *w, size_t from) {
    return (unsigned long long)((w->row->offset + from) / w->rule->rule.columns);
}

static int fail_status(hpc_core *core, const hpc_work *w, int returned, const double *args, size_t from, size_t n) {
    char why[HPC_FAILURE_BYTES];
    const hpc_scheme *sc = core->scheme;
    snprintf(why, sizeof why, "rank %d: the prox of key %.99s returned %d on rows %llu to %llu at step %.0f",
             sc->context->group.rank, sc->plan->keys[w->row->key].name, returned, first_row(w, from),
             first_row(w, from + n - 1), args[0]);
    hpc_scheme_fail(core->scheme, HPC_ERR_INVALID, why);
    return -1;
}

/* Ends the exchange if a value is NaN. Infinite values are accepted. */
static int check_nan(hpc_core *core, const hpc_work *w, const double *args, size_t from, size_t n) {
    const hpc_scheme *sc = core->scheme;
    if (sc->kernels->all_finite(w->param + from, n, HPC_F32)) return 0;
    for (size_t i = from; i < from + n; i++) {
        if (w->param[i] == w->param[i]) continue;
        char why[HPC_FAILURE_BYTES];
        snprintf(why, sizeof why, "rank %d: the prox of key %.99s returned a NaN in row %llu at step %.0f",
                 sc->context->group.rank, sc->plan->keys[w->row->key].name, first_row(w, i), args[0]);
        hpc_scheme_fail(core->scheme, HPC_ERR_INVALID, why);
        return -1;
    }
    return 0;
}

/* ---- the prox of some rows of the matrix ---- */

static int prox_some(hpc_core *core, const hpc_work *w, const double *args, size_t from, size_t n) {
    const hpc_rule *rule = &w->rule->rule;
    double its[HPC_RULE_ARGS];
    if (n == 0) return 0;
    if (rule->dual) /* Z is the only state slot, so its blocks are contiguous */
        memcpy(w->param + from, w->state + from, n * sizeof(float));
    if (rule->prox == NULL) return 0;
    memcpy(its, args, sizeof its);
    if (rule->dual) its[1] = 1;
    const int returned = rule->prox(w->param + from, (int64_t)(n / rule->columns), (int64_t)rule->columns, its);
    return returned != 0 ? fail_status(core, w, returned, args, from, n) : check_nan(core, w, args, from, n);
}

/* Returns how many elements the prox may map when all elements before end are applied. */
static size_t ready(const hpc_work *w, size_t end) {
    const hpc_rule *rule = &w->rule->rule;
    if (end == w->row->count || rule->prox == NULL) return end;
    return rule->prox_whole ? 0 : end / (size_t)rule->columns * (size_t)rule->columns;
}

int hpc_prox_row(hpc_core *core, const hpc_work *w, const double *args) {
    const size_t count = w->row->count;
    if (!has_prox(w)) return 0;
    for (size_t from = 0, end = 0; end < count; from = end) {
        size_t applied = from + HPC_BLOCK;
        do { /* a row of the matrix may be longer than a block */
            end = ready(w, applied < count ? applied : count);
            applied += HPC_BLOCK;
        } while (end == from);
        if (prox_some(core, w, args, from, end - from) != 0) return -1;
    }
    return 0;
}

int hpc_block_finish(hpc_core *core, const hpc_work *w, hpc_receivers to, const double *args, size_t from, size_t n) {
    const size_t count = w->row->count;
    if (has_prox(w)) {
        const size_t begin = ready(w, from), end = ready(w, from + n);
        if (prox_some(core, w, args, begin, end - begin) != 0) return -1;
        from = begin / LINE * LINE;
        n = (end == count ? end : end / LINE * LINE) - from;
    }
    if (n > 0) hpc_block_write(core, w, to, from, n);
    return 0;
}
