/* BSP: a chunk is folded when every worker's update is there, and a pull waits for that. On a graph all ranks meet: a
 * pull waits for the folds of all. With servers SSP(0) is the same. */
#include "discipline/discipline.h"
#include "discipline/whole.h"

static int suits(const hpc_exchange_config *f) {
    return hpc_config_is_bsp(f) && !f->split;
}

static int involves_all(const hpc_engine *en) {
    return en->graph != NULL;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    for (int i = 0; i < f->plan->n_rows && f->graph == NULL; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (row->quorum != row->n_in)
            return hpc_fail(HPC_ERR_CONFIG, "exchange",
                            "exchange: row %d has action %d and a quorum of %d of %d inputs; BSP waits for all of them",
                            i, row->action, row->quorum, row->n_in);
    }
    return HPC_OK;
}

static int may_push(hpc_engine *en, int key, const char *op) {
    return en->graph != NULL ? HPC_OK : hpc_push_after(en, key, 2 * en->keys[key].pushes, op);
}

static void begin_push(hpc_engine *en, int key) {
    if (en->graph != NULL) hpc_graph_begin_push(en, key);
}

static int send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    return en->graph != NULL ? hpc_graph_send_share(en, s, slot, l) : hpc_push_share(en, s, slot, l);
}

static int is_free(const hpc_engine *en, int key, uint64_t ticket) {
    return en->graph != NULL ? hpc_graph_is_free(en, key, ticket) : hpc_ticket_is_done(en, key, ticket);
}

static uint64_t needs(const hpc_engine *en, int rank, int key, uint64_t n) {
    (void)en, (void)rank, (void)key;
    return n;
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    if (en->graph != NULL)
        return hpc_graph_awaited(en, key, ticket, for_slot, ranks, hpc_graph_has_read, hpc_whole_missing_neighbours);
    return hpc_whole_awaited(en, key, ticket, ranks);
}

static int finish(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    return en->graph != NULL ? hpc_graph_finish(en, key, l, op) : HPC_OK;
}

static void restored(hpc_engine *en, const hpc_work *w, uint64_t step) {
    if (en->graph != NULL) hpc_graph_restored(en, w, step);
}

const hpc_discipline hpc_discipline_bsp = {
    .name = "BSP",
    .suits = suits,
    .check = check,
    .whole = 1,
    .turns = hpc_whole_turns,
    .involves_all = involves_all,
    .opening = &(const hpc_opening){.prepare = hpc_graph_prepare, .open = hpc_whole_open, .free = hpc_graph_free},
    .share_came = hpc_whole_share_came,
    .row_came = hpc_whole_row_came,
    .may_push = may_push,
    .begin_push = begin_push,
    .send_share = send_share,
    .is_free = is_free,
    .needs = needs,
    .awaited = awaited,
    .leaving = &(const hpc_leaving){.finish = finish},
    .facts = &(const hpc_facts){.restored = restored},
};
