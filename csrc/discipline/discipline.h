/* The table of all disciplines, looked up by configuration; engine/discipline.h defines a discipline. */
#ifndef HPC_DISCIPLINES_H
#define HPC_DISCIPLINES_H

#include "engine/discipline.h"

extern const hpc_discipline hpc_discipline_bsp, hpc_discipline_graph_bsp, hpc_discipline_async, hpc_discipline_ssp,
    hpc_discipline_server_ssp, hpc_discipline_notify_ack, hpc_discipline_quorum, hpc_discipline_graph_quorum,
    hpc_discipline_unflushed, hpc_discipline_split, hpc_discipline_groups, hpc_discipline_groups_quorum,
    hpc_discipline_updates_ssp, hpc_discipline_peers, hpc_discipline_peers_ssp, hpc_discipline_peers_quorum,
    hpc_discipline_split_peers, hpc_discipline_split_graph, hpc_discipline_split_phases, hpc_discipline_split_ssp,
    hpc_discipline_split_unflushed, hpc_discipline_split_quorum, hpc_discipline_split_graph_quorum,
    hpc_discipline_split_groups_quorum;

/* Returns the discipline for a configuration; NULL if the table has none for it. */
const hpc_discipline *hpc_discipline_of(const hpc_exchange_config *config);

#endif
