/* BSP on a graph: a row is folded when the updates of all in-neighbours are there, and all ranks meet: a pull waits for
 * the folds of every rank. */
#include "discipline/discipline.h"
#include "discipline/graph_whole.h"

static int suits(const hpc_exchange_config *f) {
    return hpc_config_is_bsp(f) && f->graph != NULL && !f->split;
}

const hpc_discipline hpc_discipline_graph_bsp = {
    .name = "BSP",
    .suits = suits,
    .whole = 1,
    .turns = hpc_graph_turns,
    .involves_all = 1,
    .opening = &(const hpc_opening){.prepare = hpc_graph_prepare, .open = hpc_graph_whole_open},
    .share_came = hpc_graph_whole_share_came,
    .row_came = hpc_graph_whole_row_came,
    .begin_push = hpc_graph_begin_push,
    .send_share = hpc_graph_send_share,
    .is_free = hpc_graph_is_free,
    .needs = hpc_whole_needs,
    .awaited = hpc_graph_whole_awaited,
    .leaving = &(const hpc_leaving){.finish = hpc_graph_finish},
    .facts = &(const hpc_facts){.restored = hpc_graph_restored},
};
