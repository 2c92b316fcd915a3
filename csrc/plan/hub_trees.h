/* Hubs whose folds go down trees. */
#ifndef HPC_HUB_TREES_H
#define HPC_HUB_TREES_H

#include "plan/plan.h"

/* Refuses parents that leave a worker without input. */
int hpc_hub_check_trees(const hpc_hub *hub);

/* Fills in a row of the server that owns a chunk, but for its edges. bin: hpc_plan_deal's. */
static inline void hpc_hub_set_row(const hpc_hub *hub, int bin, hpc_row *row) {
    row->owner = hub->servers[bin / hub->cores];
    row->core = bin % hub->cores;
    row->action = HPC_APPLY;
    row->depth = hub->depth;
    row->quorum = hub->each && hub->apply_at == HPC_AT_OWNERS ? 1 : hub->n_workers;
    row->codec_in = hub->wires != NULL ? hub->wires[row->key] : hub->wire;
    row->codec_out = hub->codecs_out != NULL ? hub->codecs_out[row->key] : hub->codec_out;
}

/* The plan of a hub with parents; all else is checked. */
int hpc_plan_hub_trees(const hpc_hub *hub, hpc_plan **plan);

#endif
