/* Planners: each makes plans of one kind, from its own struct of arguments. */
#ifndef HPC_PLANNER_H
#define HPC_PLANNER_H

#include "plan/plan.h"

/* A planner is one const struct in its own file; planner.c lists them. A planner's arguments are a public struct
 * (hpcomm/plan.h) whose first field is the struct's size. A planner keeps no state and asks no other rank, so equal
 * arguments give equal plans on all ranks. */
typedef struct hpc_planner {
    const char *name;
    size_t size;              /* of the struct of arguments, in bytes */
    void (*init)(void *args); /* writes the size and the defaults */
    /* Checks the arguments, then makes a plan, which the caller frees by hpc_plan_free (see hpc_plan_block_make). The
     * caller has checked that neither pointer is NULL, and the struct's size. On an error *plan is not changed. */
    int (*plan)(const void *args, hpc_plan **plan);
} hpc_planner;

extern const hpc_planner hpc_planner_hub;
extern const hpc_planner hpc_planner_graph;
extern const hpc_planner hpc_planner_hosts;
extern const hpc_planner hpc_planner_tree;
extern const hpc_planner hpc_planner_peer_to_peer;

/* Returns all planners, with NULL after the last. */
const hpc_planner *const *hpc_planners(void);

#endif
