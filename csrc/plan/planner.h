/* Planners: each makes plans of one kind, from its own struct of arguments. */
#ifndef HPC_PLANNER_H
#define HPC_PLANNER_H

#include "plan/plan.h"

/* A planner is one const struct in its own file, which planner.c lists. Its arguments are a public struct
 * (hpcomm/plan.h) that begins with its size. A planner keeps nothing and asks no other rank: equal arguments give equal
 * plans on all ranks. */
typedef struct hpc_planner {
    const char *name;
    size_t size;              /* of the arguments */
    void (*init)(void *args); /* writes the size and the defaults */
    /* Checks the arguments, then makes a plan that hpc_plan_free frees (see hpc_plan_block_make). Neither is NULL, and
     * the size is right. A status that is not HPC_OK leaves *plan as it is. */
    int (*plan)(const void *args, hpc_plan **plan);
} hpc_planner;

extern const hpc_planner hpc_planner_hub;
extern const hpc_planner hpc_planner_graph;
extern const hpc_planner hpc_planner_hosts;
extern const hpc_planner hpc_planner_tree;
extern const hpc_planner hpc_planner_peer_to_peer;

/* All planners, NULL behind the last. */
const hpc_planner *const *hpc_planners(void);

#endif
