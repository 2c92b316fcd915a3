/* Hubs whose folds go down trees. */
#ifndef HPC_HUB_TREES_H
#define HPC_HUB_TREES_H

#include "plan/plan.h"

/* Refuses parents by which some worker gets nothing. */
int hpc_hub_check_trees(const hpc_hub *hub);

/* A row of the server that owns a chunk, but for its edges. bin: hpc_plan_deal's. */
void hpc_hub_set_row(const hpc_hub *hub, int bin, hpc_row *row);

/* The plan of a hub with parents; all else is checked. */
int hpc_plan_hub_trees(const hpc_hub *hub, hpc_plan **plan);

#endif
