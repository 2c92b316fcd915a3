/* Facts that follow from a configuration alone: its kind of edges, and the facts of its keys. */
#ifndef HPC_CONFIG_H
#define HPC_CONFIG_H

#include "hpcomm/hpcomm.h"

/* Returns whether a configuration asks for BSP: BSP itself, or SSP(0) with servers. SSP(0) on a graph is NOTIFY_ACK. */
static inline int hpc_config_is_bsp(const hpc_exchange_config *config) {
    return config->consistency == HPC_BSP ||
           (config->consistency == HPC_SSP && config->staleness == 0 && config->graph == NULL);
}

/* Returns whether some fold of a configuration may be made without all of its inputs. */
int hpc_config_misses_some(const hpc_exchange_config *config);

/* Kinds of edges. The edges of a plan or graph say which rank sends updates to which. A configuration has exactly one
 * of the first seven kinds. */
typedef enum hpc_edges {
    HPC_SERVERS = 1, /* workers push to rows that apply the rule; each element has one such row */
    HPC_ALIKE =
        2, /* like HPC_SERVERS, but several rows apply the rule to the same elements, each for some of the workers */
    HPC_STAGES = 4,    /* some rows forward folds to other rows, or relay parameters: hosts and racks */
    HPC_RECEIVERS = 8, /* like HPC_STAGES, and several rows (receivers) apply the same fold to the same elements */
    HPC_PEERS = 16, /* each worker pushes to other workers, and has its own row of each chunk, for its own parameters */
    HPC_GRAPH = 32, /* the configuration has a graph of one phase */
    HPC_PHASES = 64, /* the configuration has a graph of several phases */
    HPC_GRAPHS = HPC_GRAPH | HPC_PHASES,
    HPC_OWNERS = HPC_SERVERS | HPC_ALIKE | HPC_STAGES | HPC_RECEIVERS /* one row serves several workers */
} hpc_edges;
hpc_edges hpc_edges_of(const hpc_exchange_config *config);

/* Returns the facts of the configuration's keys that follow from the configuration alone; all other facts are 0. */
hpc_key_facts hpc_config_facts(const hpc_exchange_config *config);

#endif
