/* BSP on servers: a chunk is folded when every worker's update is there, and a pull waits for that. SSP(0) is the same.
 * graph_bsp.c has BSP on a graph. */
#include "discipline/discipline.h"
#include "discipline/whole.h"
#include "engine/send.h"

static int suits(const hpc_exchange_config *f) {
    return hpc_config_is_bsp(f) && f->graph == NULL && !f->split;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (row->quorum != row->n_in)
            return hpc_fail(HPC_ERR_CONFIG, "exchange",
                            "exchange: row %d has action %d and a quorum of %d of %d inputs; BSP waits for all of them",
                            i, row->action, row->quorum, row->n_in);
    }
    return HPC_OK;
}

static int may_push(hpc_engine *en, int key, const char *op) {
    return hpc_push_after(en, key, 2 * en->keys[key].pushes, op);
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    (void)for_slot;
    return hpc_whole_awaited(en, key, ticket, ranks);
}

const hpc_discipline hpc_discipline_bsp = {
    .name = "BSP",
    .suits = suits,
    .check = check,
    .whole = 1,
    .share_came = hpc_whole_share_came,
    .row_came = hpc_whole_row_came,
    .may_push = may_push,
    .send_share = hpc_push_in_turn,
    .needs = hpc_whole_needs,
    .awaited = awaited,
};
