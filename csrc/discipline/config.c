#include "discipline/config.h"

#include "discipline/servers_groups.h"

/* A quorum of all inputs is the same as no quorum. On a graph only in-neighbours' updates count towards the quorum, not
 * the rank's own. */
int hpc_config_misses_some(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows && f->quorum != 0; i++)
        if (f->plan->rows[i].action != HPC_FORWARD && f->quorum < f->plan->rows[i].n_in - (f->graph != NULL)) return 1;
    return 0;
}

static int serves_others(const hpc_plan *plan) {
    for (int i = 0; i < plan->n_rows; i++)
        if (plan->rows[i].n_out > 1) return 1;
    return 0;
}

hpc_edges hpc_edges_of(const hpc_exchange_config *f) {
    int other;
    if (f->graph != NULL) return f->graph->n_phases > 1 ? HPC_PHASES : HPC_GRAPH;
    const int stages = hpc_plan_has_stages(f->plan), copies = hpc_plan_find_copy(f->plan, &other) >= 0;
    if (!copies) return stages ? HPC_STAGES : HPC_SERVERS;
    if (stages) return HPC_RECEIVERS;
    return serves_others(f->plan) ? HPC_ALIKE : HPC_PEERS;
}

/* Returns whether a row of a plan of peers gets no updates from some worker. Rows with the same elements are adjacent
 * in the plan. */
static int lacks_some(const hpc_plan *plan) {
    for (int first = 0, i = 0; i < plan->n_rows; first = i) {
        const hpc_row *row = &plan->rows[first];
        while (i < plan->n_rows && plan->rows[i].key == row->key && plan->rows[i].offset == row->offset) i++;
        for (int r = first; r < i; r++)
            if (plan->rows[r].n_in < i - first) return 1;
    }
    return 0;
}

hpc_key_facts hpc_config_facts(const hpc_exchange_config *f) {
    int other;
    const int graph = f->graph != NULL, bsp = hpc_config_is_bsp(f), peers = hpc_edges_of(f) == HPC_PEERS;
    const int own = graph || (peers && lacks_some(f->plan)), copied = peers && !own && bsp;
    return (hpc_key_facts){
        .graph = graph,
        .peers = peers,
        .own = own,
        .copied = copied,
        .may_differ = !own && !copied && hpc_plan_find_copy(f->plan, &other) >= 0,
        .counts_folds = bsp && !f->split,
        .counts_updates = !graph && !bsp,
        .counts_versions = bsp && f->quorum != 0,
        .jumps = f->quorum != 0 || f->consistency == HPC_ASYNC,
        .in_step = f->quorum == 0 && (bsp || f->consistency == HPC_NOTIFY_ACK),
        .settles = !graph && !bsp && f->consistency == HPC_SSP,
    };
}
