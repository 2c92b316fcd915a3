/* The checks of a node communication graph, used by the graph's planner and by an exchange over the graph. */
#include <math.h>

#include "plan/plan.h"
#include "base/status.h"

static const char op_plan[] = "plan";

int hpc_graph_check(const hpc_graph *g) {
    if (g == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: graph is NULL");
    if (g->size != sizeof *g)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: graph->size is %zu, not %zu: call hpc_plan_args_init first",
                        g->size, sizeof *g);
    int status = hpc_plan_check_keys(g->keys, g->n_keys);
    if (status == HPC_OK) status = hpc_plan_check_cut(g->cores, g->chunk, g->depth);
    if (status == HPC_OK)
        status = hpc_plan_check_codecs(g->keys, g->n_keys, "wire", g->wire, "wires", g->wires, g->n_wires);
    if (status != HPC_OK) return status;
    if (g->ranks < 1 || g->n_phases < 1 || g->weights == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: a graph needs ranks, phases and weights; this one has %d ranks, %d phases%s", g->ranks,
                        g->n_phases, g->weights == NULL ? " and no weights" : "");
    for (int p = 0; p < g->n_phases; p++)
        for (int i = 0; i < g->ranks; i++)
            for (int j = 0; j < g->ranks; j++) {
                double weight = hpc_graph_weight(g, p, i, j);
                if (!isfinite(weight) || (i == j && weight == 0))
                    return hpc_fail(HPC_ERR_INVALID, op_plan,
                                    "plan: in phase %d of the graph rank %d takes the update of rank %d with weight "
                                    "%g; weights must be finite, and that of a rank's own update must not be 0",
                                    p, i, j, weight);
            }
    return HPC_OK;
}
