/* The plan of a node communication graph (ASAP, section 3): every rank owns a row of every chunk, whose inputs come
 * from itself and from its in-neighbours. */
#include <math.h>

#include "plan/planner.h"
#include "base/status.h"

static const char op_plan[] = "plan";

static void init(void *args) {
    *(hpc_graph *)args = (hpc_graph){
        .size = sizeof(hpc_graph), .n_phases = 1, .cores = 1, .chunk = 256 << 10, .depth = 1, .wire = HPC_F32};
}

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

/* Whether from sends to to in any phase. */
static int has_edge(const hpc_graph *g, int to, int from) {
    for (int p = 0; p < g->n_phases; p++)
        if (hpc_graph_weight(g, p, to, from) != 0) return 1;
    return 0;
}

/* In-edges of a rank, in rising order, with the first phase's weights. */
static int feed(const void *args, int to, hpc_edge *in) {
    const hpc_graph *g = args;
    int n = 0;
    for (int from = 0; from < g->ranks; from++) {
        if (!has_edge(g, to, from)) continue;
        if (in != NULL) in[n] = (hpc_edge){from, -1, hpc_graph_weight(g, 0, to, from)};
        n++;
    }
    return n;
}

static int plan_graph(const void *args, hpc_plan **plan) {
    const hpc_graph *g = args;
    const int status = hpc_graph_check(g);
    if (status != HPC_OK) return status;
    const hpc_copies copies = {.keys = g->keys,
                               .n_keys = g->n_keys,
                               .n_owners = g->ranks,
                               .cores = g->cores,
                               .depth = g->depth,
                               .chunk = g->chunk,
                               .wire = g->wire,
                               .wires = g->wires,
                               .feed = feed,
                               .args = g};
    return hpc_plan_copies(&copies, plan);
}

const hpc_planner hpc_planner_graph = {.name = "graph", .size = sizeof(hpc_graph), .init = init, .plan = plan_graph};
