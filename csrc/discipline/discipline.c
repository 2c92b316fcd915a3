#include "discipline/discipline.h"

#include "discipline/config.h"

enum { ANY = -1 };             /* consistency */
enum { ALL = 1, QUORUM = 2 };  /* inputs of a fold */
enum { APPLY = 1, SPLIT = 2 }; /* a push applies; or fold and apply are two calls */
enum { EITHER = APPLY | SPLIT };

/* A row of the table: a discipline, and the configurations that choose it, as a consistency and sets of kinds of edges,
 * inputs and uses. */
typedef struct choice {
    int consistency;
    unsigned edges, inputs, use;
    const hpc_discipline *value;
} choice;

/* Each configuration matches at most one row. Some rows name a discipline only because its check refuses the
 * configuration with a good reason. */
static const choice choices[] = {
    // clang-format off
    {HPC_BSP, HPC_OWNERS, ALL, APPLY, &hpc_discipline_bsp},
    {HPC_BSP, HPC_OWNERS, ALL, SPLIT, &hpc_discipline_split},
    {HPC_BSP, HPC_PEERS, ALL, APPLY, &hpc_discipline_peers},
    {HPC_BSP, HPC_PEERS, ALL, SPLIT, &hpc_discipline_split_peers},
    {HPC_BSP, HPC_GRAPHS, ALL, APPLY, &hpc_discipline_graph_bsp},
    {HPC_BSP, HPC_GRAPH, ALL, SPLIT, &hpc_discipline_split_graph},
    {HPC_BSP, HPC_PHASES, ALL, SPLIT, &hpc_discipline_split_phases},
    {HPC_SSP, HPC_SERVERS, ALL, EITHER, &hpc_discipline_server_ssp},
    {HPC_SSP, HPC_STAGES, ALL, EITHER, &hpc_discipline_groups},
    {HPC_SSP, HPC_RECEIVERS | HPC_ALIKE, ALL, EITHER, &hpc_discipline_updates_ssp},
    {HPC_SSP, HPC_PEERS, ALL, EITHER, &hpc_discipline_peers_ssp},
    {HPC_SSP, HPC_GRAPHS, ALL, APPLY, &hpc_discipline_ssp},
    {HPC_SSP, HPC_GRAPHS, ALL, SPLIT, &hpc_discipline_split_ssp},
    {HPC_ASYNC, HPC_SERVERS, ALL, EITHER, &hpc_discipline_async},
    {HPC_ASYNC, HPC_STAGES, ALL, EITHER, &hpc_discipline_groups},
    {HPC_ASYNC, HPC_RECEIVERS | HPC_ALIKE, ALL, EITHER, &hpc_discipline_updates_ssp},
    {HPC_ASYNC, HPC_PEERS, ALL, EITHER, &hpc_discipline_peers_ssp},
    {HPC_ASYNC, HPC_GRAPHS, ALL, APPLY, &hpc_discipline_unflushed},
    {HPC_ASYNC, HPC_GRAPHS, ALL, SPLIT, &hpc_discipline_split_unflushed},
    {HPC_BARRIER, HPC_OWNERS | HPC_PEERS | HPC_GRAPHS, ALL, APPLY, &hpc_discipline_unflushed},
    {HPC_BARRIER, HPC_OWNERS | HPC_PEERS | HPC_GRAPHS, ALL, SPLIT, &hpc_discipline_split_unflushed},
    {HPC_NOTIFY_ACK, HPC_OWNERS | HPC_PEERS, ALL, EITHER, &hpc_discipline_notify_ack},
    {HPC_NOTIFY_ACK, HPC_GRAPHS, ALL, APPLY, &hpc_discipline_notify_ack},
    {HPC_NOTIFY_ACK, HPC_GRAPH, ALL, SPLIT, &hpc_discipline_split_graph},
    {HPC_NOTIFY_ACK, HPC_PHASES, ALL, SPLIT, &hpc_discipline_split_phases},
    {ANY, HPC_SERVERS | HPC_ALIKE, QUORUM, APPLY, &hpc_discipline_quorum},
    {ANY, HPC_SERVERS | HPC_ALIKE, QUORUM, SPLIT, &hpc_discipline_split_quorum},
    {ANY, HPC_PEERS, QUORUM, EITHER, &hpc_discipline_peers_quorum},
    {ANY, HPC_STAGES, QUORUM, APPLY, &hpc_discipline_groups_quorum},
    {ANY, HPC_STAGES, QUORUM, SPLIT, &hpc_discipline_split_groups_quorum},
    {ANY, HPC_RECEIVERS, QUORUM, EITHER, &hpc_discipline_groups_quorum},
    {ANY, HPC_GRAPHS, QUORUM, APPLY, &hpc_discipline_graph_quorum},
    {ANY, HPC_GRAPHS, QUORUM, SPLIT, &hpc_discipline_split_graph_quorum},
    // clang-format on
};

/* Returns whether folds take all inputs or a quorum. A row of a receiver has one input, the fold of all updates, so
 * with receivers any quorum counts as less than all inputs; the quorum's check then refuses it. */
static unsigned inputs_of(const hpc_exchange_config *f, hpc_edges edges) {
    return hpc_config_misses_some(f) || (f->quorum != 0 && edges == HPC_RECEIVERS) ? QUORUM : ALL;
}

const hpc_discipline *hpc_discipline_of(const hpc_exchange_config *f) {
    const int consistency = hpc_config_is_bsp(f) ? HPC_BSP : f->consistency;
    const hpc_edges edges = hpc_edges_of(f);
    const unsigned inputs = inputs_of(f, edges), use = f->split ? SPLIT : APPLY;
    for (const choice *c = choices; c < choices + sizeof choices / sizeof *choices; c++)
        if ((c->consistency == consistency || c->consistency == ANY) && c->edges & edges && c->inputs & inputs &&
            c->use & use)
            return c->value;
    return NULL;
}
