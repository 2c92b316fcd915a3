#include "discipline/each.h"

#include <stdlib.h>

#include "discipline/graph.h"
#include "engine/answer.h"

int hpc_each_check(const hpc_exchange_config *f) {
    static const char op[] = "exchange";
    const char *name = hpc_consistency_name(f->consistency);
    if (f->staleness < 0 || f->staleness > HPC_MOST_STALENESS)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: staleness is %d; 0 to %d are possible with servers", op, f->staleness,
                        HPC_MOST_STALENESS);
    if (f->shared_params || f->eager)
        return hpc_fail(HPC_ERR_CONFIG, op, "%s: %s needs BSP: under %s %s, so leave it out", op,
                        f->shared_params ? "shared_params" : "eager", name,
                        f->shared_params ? "each worker has parameters of its own step"
                                         : "each update is applied by itself anyway");
    for (int k = 0; k < f->plan->n_keys; k++)
        if (hpc_rule_averages(hpc_config_rule(f, k)))
            return hpc_fail(
                HPC_ERR_CONFIG, op,
                "%s: key %s has rule average, which needs the updates of all workers at once; under %s with "
                "servers each is applied by itself: give another rule, or BSP",
                op, f->plan->keys[k].name, name);
    return HPC_OK;
}

int hpc_each_apply(hpc_core *core, hpc_work *w, int slot, int input, int *done) {
    const int from = w->inputs[input].lowest;
    if (hpc_engine_has_failed(core->engine)) return 0;
    hpc_inputs inputs = hpc_row_inputs(core, w, slot, input);
    inputs.to.whom = HPC_TO_NOBODY;
    if (hpc_row_work(core, w, &inputs) != 0) return 0;
    hpc_row_count_received(core, w, input);
    if (++done[from] < w->share->n_rows) return 0;
    done[from] = 0;
    return 1;
}

int hpc_each_share_came(hpc_core *core, hpc_share *share, int rank, int slot, hpc_each_came *came) {
    const hpc_engine *en = core->engine;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        int input = hpc_row_input_of(w, rank, 0);
        if (input >= 0) came(core, w, slot, input);
    }
    return 1;
}

int hpc_each_holds_up(hpc_core *core, const hpc_event *event) {
    if (hpc_imm_operation(event->imm) != HPC_OP_PULL || hpc_imm_slot(event->imm) == HPC_ANSWERED) return 0;
    int status = hpc_lane_try_flush(core->out, event->peer);
    if (status == HPC_IN_PROGRESS) return 1;
    hpc_core_check_put(core, status);
    return 0;
}

int hpc_each_work(hpc_core *core, hpc_each_wake *wake) {
    hpc_engine *en = core->engine;
    hpc_parking *its = core->own;
    int n = 0, n_closed = 0;
    if (its->n_parked == 0) return 0;
    for (int r = 0; r < en->context->group.size; r++) n_closed += hpc_closed_signal(en, r) != 0;
    if (n_closed == its->n_closed) return 0;
    its->n_closed = n_closed;
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_share *share = &en->layout.shares[s];
        if (share->owner == en->context->group.rank && share->core == core->index && share->own != NULL)
            n += wake(core, share);
    }
    return n;
}

int hpc_each_learn_pushes(hpc_engine *en, uint64_t *last, const char *op, double deadline) {
    const size_t size = (size_t)en->context->group.size, keys = (size_t)en->plan->n_keys;
    uint64_t *mine = malloc(keys * sizeof *mine), *all = malloc(keys * size * sizeof *all);
    int status = mine != NULL && all != NULL ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for pushes", op);
    status = hpc_context_agree(en->context, op, status, deadline);
    for (size_t k = 0; k < keys && status == HPC_OK; k++) mine[k] = en->keys[k].pushes;
    if (status == HPC_OK) status = hpc_allgather(en->context, mine, all, keys * sizeof *mine, hpc_left(deadline));
    for (size_t k = 0; k < keys && status == HPC_OK; k++)
        for (size_t r = 0; r < size; r++) last[k * size + r] = all[r * keys + k];
    free(mine);
    free(all);
    return status;
}
