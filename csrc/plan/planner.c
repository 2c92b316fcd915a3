#include "plan/planner.h"

static const hpc_planner *const planners[] = {
    // clang-format off
    &hpc_planner_hub,
    &hpc_planner_graph,
    &hpc_planner_hosts,
    &hpc_planner_tree,
    &hpc_planner_peer_to_peer,
    // clang-format on
    NULL,
};

const hpc_planner *const *hpc_planners(void) {
    return planners;
}
