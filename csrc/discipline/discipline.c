#include "discipline/discipline.h"

/* The first discipline that suits is taken, so a quorum comes before the discipline that waits for all. */
static const hpc_discipline *const disciplines[] = {
    // clang-format off
    &hpc_discipline_quorum,
    &hpc_discipline_graph_quorum,
    &hpc_discipline_groups_quorum,
    &hpc_discipline_unflushed,
    &hpc_discipline_ssp,
    &hpc_discipline_peers_ssp,
    &hpc_discipline_peers,
    &hpc_discipline_updates_ssp,
    &hpc_discipline_groups,
    &hpc_discipline_server_ssp,
    &hpc_discipline_split_graph,
    &hpc_discipline_notify_ack,
    &hpc_discipline_async,
    &hpc_discipline_split_peers,
    &hpc_discipline_split,
    &hpc_discipline_graph_bsp,
    &hpc_discipline_bsp,
    // clang-format on
};

const hpc_discipline *hpc_discipline_of(const hpc_exchange_config *config) {
    for (size_t i = 0; i < sizeof disciplines / sizeof *disciplines; i++)
        if (disciplines[i]->suits(config)) return disciplines[i];
    return NULL;
}
