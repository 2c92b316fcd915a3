/* SSP(s) among peers: stale_peers.c says how it works. */
#include "discipline/discipline.h"
#include "discipline/stale_peers.h"
#include "engine/clocks.h"

static int suits(const hpc_exchange_config *f) {
    return f->consistency == HPC_SSP && !hpc_config_is_bsp(f) && hpc_peers_are_planned(f) && !hpc_peers_pass_on(f);
}

/* A rank serves until all have closed; each has closed once all have read its last push. */
static int outstanding(const hpc_engine *en, int *ranks) {
    (void)en, (void)ranks;
    return 0;
}

const hpc_discipline hpc_discipline_peers_ssp = {
    .name = "SSP among peers",
    .suits = suits,
    .check = hpc_stale_peers_check,
    .opening = &(const hpc_opening){.open = hpc_stale_peers_open},
    .makes_params = hpc_peers_make_params,
    .share_came = hpc_stale_peers_share_came,
    .row_came = hpc_stale_peers_row_came,
    .work = hpc_stale_peers_work,
    .may_push = hpc_peers_may_push,
    .is_free = hpc_peers_is_free,
    .awaited = hpc_stale_peers_awaited,
    .ended = hpc_stale_peers_ended,
    .leaving = &(const hpc_leaving){.finish = hpc_stale_peers_finish, .outstanding = outstanding},
    .facts = &(const hpc_facts){.settle = hpc_stale_peers_settle,
                                .before_publish = hpc_stale_peers_level,
                                .staleness = hpc_get_begun},
};
