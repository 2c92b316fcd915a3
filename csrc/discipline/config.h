/* Facts that follow from a configuration alone: its kind of edges, and the facts of its keys. */
#ifndef HPC_CONFIG_H
#define HPC_CONFIG_H

#include "hpcomm/hpcomm.h"

/* Whether a configuration asks for BSP. With servers SSP(0) is that; on a graph it is NOTIFY_ACK. */
static inline int hpc_config_is_bsp(const hpc_exchange_config *config) {
    return config->consistency == HPC_BSP ||
           (config->consistency == HPC_SSP && config->staleness == 0 && config->graph == NULL);
}

/* Whether a configuration has a quorum of fewer than all inputs of some fold. */
int hpc_config_misses_some(const hpc_exchange_config *config);

/* Kinds of edges: the plan or the graph says who sends updates to whom. A plan has one kind. */
typedef enum hpc_edges {
    HPC_SERVERS = 1,   /* workers push to rows that apply, one for each element */
    HPC_ALIKE = 2,     /* the same, but several rows apply the same elements, each for some of the workers */
    HPC_STAGES = 4,    /* rows forward or relay to others: hosts and racks */
    HPC_RECEIVERS = 8, /* the same, and several rows apply the fold of the same elements */
    HPC_PEERS = 16,    /* each worker pushes to others, and has a row that applies the same elements for itself alone */
    HPC_GRAPH = 32,    /* the configuration has a graph of one phase */
    HPC_PHASES = 64,   /* or of several */
    HPC_GRAPHS = HPC_GRAPH | HPC_PHASES,
    HPC_OWNERS = HPC_SERVERS | HPC_ALIKE | HPC_STAGES | HPC_RECEIVERS /* a row serves several workers */
} hpc_edges;
hpc_edges hpc_edges_of(const hpc_exchange_config *config);

/* The facts of its keys that follow from it alone; the others are 0. */
hpc_key_facts hpc_config_facts(const hpc_exchange_config *config);

#endif
