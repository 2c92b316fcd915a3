/* BSP among peers: a worker applies its own update and those of its peers when all of them are there, in the order of
 * ranks. So where all send to all, all workers have the same parameters, bit for bit.
 *
 * A pull waits for this rank's own share alone. A push waits for peers to answer the update that had its slot before. A
 * worker that has ended step n has the updates of step n of those that send to it; it may be one step ahead of
 * a peer that it sends to. With two slots, and all sending to all, no push waits: when a worker begins push n + 2, all
 * peers have made push n + 1, and so have applied push n. */
#include "discipline/discipline.h"
#include "discipline/peers.h"
#include "discipline/whole.h"
#include "engine/send.h"

static int suits(const hpc_exchange_config *f) {
    return hpc_config_is_bsp(f) && !f->split && hpc_peers_are_planned(f) && !hpc_peers_pass_on(f);
}

const hpc_discipline hpc_discipline_peers = {
    .name = "BSP among peers",
    .suits = suits,
    .check = hpc_peers_check,
    .whole = 1,
    .makes_params = hpc_peers_make_params,
    .share_came = hpc_whole_share_came,
    .row_came = hpc_whole_row_came,
    .may_push = hpc_peers_may_push,
    .send_share = hpc_push_in_turn,
    .is_free = hpc_peers_is_free,
    .needs = hpc_peers_need,
    .awaited = hpc_peers_awaited,
    .leaving = &(const hpc_leaving){.finish = hpc_peers_finish},
};
