/* The array of all disciplines (see engine/discipline.h for what one is). */
#ifndef HPC_DISCIPLINES_H
#define HPC_DISCIPLINES_H

#include "engine/discipline.h"

extern const hpc_discipline hpc_discipline_bsp, hpc_discipline_graph_bsp, hpc_discipline_async, hpc_discipline_ssp,
    hpc_discipline_server_ssp, hpc_discipline_notify_ack, hpc_discipline_quorum, hpc_discipline_graph_quorum,
    hpc_discipline_unflushed, hpc_discipline_split, hpc_discipline_groups, hpc_discipline_groups_quorum,
    hpc_discipline_updates_ssp, hpc_discipline_peers, hpc_discipline_peers_ssp, hpc_discipline_split_peers,
    hpc_discipline_split_graph;

/* Whether a configuration asks for BSP. With servers SSP(0) is that; on a graph it is NOTIFY_ACK. */
static inline int hpc_config_is_bsp(const hpc_exchange_config *config) {
    return config->consistency == HPC_BSP ||
           (config->consistency == HPC_SSP && config->staleness == 0 && config->graph == NULL);
}

/* The first member of the array whose suits accepts a configuration; NULL: none does. */
const hpc_discipline *hpc_discipline_of(const hpc_exchange_config *config);

#endif
