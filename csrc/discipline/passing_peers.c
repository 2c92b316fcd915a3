/* BSP among peers where updates pass from peer to peer: as peers.c, by way of passing.c. */
#include "discipline/discipline.h"
#include "discipline/passing.h"
#include "discipline/whole.h"

static int suits(const hpc_exchange_config *f) {
    return hpc_config_is_bsp(f) && !f->split && hpc_peers_are_planned(f) && hpc_peers_pass_on(f);
}

static int open_passing(hpc_engine *en, const char *op) {
    en->own = hpc_passing_open(en, op);
    return en->own != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

static void free_passing(hpc_engine *en) {
    hpc_passing_free(en->own);
    en->own = NULL;
}

static int passing_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    if (hpc_edge_via(&w->row->in[input]) >= 0) return 0;
    hpc_pass_on(core, core->engine->own, w, input, slot);
    return hpc_whole_row_came(core, w, input, slot);
}

static int passed(hpc_core *core, const hpc_event *event) {
    hpc_work *w;
    const int input = hpc_passed_input(core, core->engine->own, event, &w), slot = hpc_imm_slot(event->imm);
    if (input < 0) return 0;
    hpc_pass_on(core, core->engine->own, w, input, slot);
    return hpc_whole_row_came(core, w, input, slot);
}

static int pass_waiting(hpc_core *core) {
    return hpc_pass_waiting(core, core->engine->own);
}

static int passing_outstanding(const hpc_engine *en, int *ranks) {
    return hpc_passing_waits(en, en->own, ranks);
}

const hpc_discipline hpc_discipline_passing_peers = {
    .name = "BSP among peers that pass updates on",
    .suits = suits,
    .check = hpc_peers_check,
    .whole = 1,
    .puts = HPC_PASSES_ON,
    .opening = &(const hpc_opening){.open = open_passing, .free = free_passing},
    .makes_params = hpc_peers_make_params,
    .share_came = hpc_whole_share_came,
    .row_came = passing_row_came,
    .other_came = passed,
    .work = pass_waiting,
    .may_push = hpc_peers_may_push,
    .send_share = hpc_passing_send_share,
    .is_free = hpc_peers_is_free,
    .needs = hpc_peers_need,
    .awaited = hpc_peers_awaited,
    .leaving = &(const hpc_leaving){.finish = hpc_peers_finish, .outstanding = passing_outstanding},
};
