#include "discipline/each.h"

#include "engine/row.h"

int hpc_each_apply(hpc_core *core, hpc_work *w, int slot, int input, int *done) {
    const int from = w->inputs[input].rank;
    if (atomic_load_explicit(&core->exchange->fault.failed, memory_order_relaxed) != HPC_OK) return 0;
    hpc_inputs inputs = hpc_row_inputs(core, w, slot, input);
    inputs.silent = 1;
    if (hpc_row_work(core, w, &inputs) != 0) return 0;
    hpc_row_count_received(core, w, input);
    if (++done[from] < w->share->n_rows) return 0;
    done[from] = 0;
    return 1;
}

int hpc_each_share_came(hpc_core *core, hpc_share *share, int rank, int slot, hpc_each_came *came) {
    const hpc_exchange *ex = core->exchange;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
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
