/* SSP(s) among peers where updates pass from peer to peer: as peers_ssp.c, by way of passing.c. */
#include "discipline/discipline.h"
#include "discipline/passing.h"
#include "discipline/stale_peers.h"
#include "engine/clocks.h"

static int suits(const hpc_exchange_config *f) {
    return f->consistency == HPC_SSP && !hpc_config_is_bsp(f) && hpc_peers_are_planned(f) && hpc_peers_pass_on(f);
}

static int open_passing(hpc_engine *en, const char *op) {
    const int status = hpc_stale_peers_open(en, op);
    if (status != HPC_OK) return status;
    hpc_ways *its = hpc_passing_open(en, op);
    hpc_stale_peers_pass(en, its);
    return its != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

static void free_passing(hpc_engine *en) {
    if (en->own != NULL) hpc_passing_free(hpc_stale_peers_passing(en));
}

static int passing_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    if (hpc_edge_via(&w->row->in[input]) >= 0) return 0;
    hpc_pass_on(core, hpc_stale_peers_passing(core->engine), w, input, slot);
    return hpc_stale_peers_row_came(core, w, input, slot);
}

static int passed(hpc_core *core, const hpc_event *event) {
    hpc_work *w;
    hpc_ways *its = hpc_stale_peers_passing(core->engine);
    const int input = hpc_passed_input(core, its, event, &w), slot = hpc_imm_slot(event->imm);
    if (input < 0) return 0;
    hpc_pass_on(core, its, w, input, slot);
    return hpc_stale_peers_row_came(core, w, input, slot);
}

static int work_passing(hpc_core *core) {
    return hpc_pass_waiting(core, hpc_stale_peers_passing(core->engine)) + hpc_stale_peers_work(core);
}

static int passing_outstanding(const hpc_engine *en, int *ranks) {
    return hpc_passing_waits(en, hpc_stale_peers_passing(en), ranks);
}

const hpc_discipline hpc_discipline_passing_peers_ssp = {
    .name = "SSP among peers that pass updates on",
    .suits = suits,
    .check = hpc_stale_peers_check,
    .puts = HPC_PASSES_ON,
    .opening = &(const hpc_opening){.open = open_passing, .free = free_passing},
    .makes_params = hpc_peers_make_params,
    .share_came = hpc_stale_peers_share_came,
    .row_came = passing_row_came,
    .other_came = passed,
    .work = work_passing,
    .may_push = hpc_peers_may_push,
    .send_share = hpc_passing_send_share,
    .is_free = hpc_peers_is_free,
    .awaited = hpc_stale_peers_awaited,
    .ended = hpc_stale_peers_ended,
    .leaving = &(const hpc_leaving){.finish = hpc_stale_peers_finish, .outstanding = passing_outstanding},
    .facts = &(const hpc_facts){.settle = hpc_stale_peers_settle,
                                .before_publish = hpc_stale_peers_level,
                                .staleness = hpc_get_begun},
};
