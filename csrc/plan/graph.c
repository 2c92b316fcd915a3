/* The plan of a node communication graph (ASAP, section 3): every rank owns a row of every chunk; the row's inputs come
 * from that rank and its in-neighbours. */
#include "plan/planner.h"

static void init(void *args) {
    *(hpc_graph *)args = (hpc_graph){
        .size = sizeof(hpc_graph), .n_phases = 1, .cores = 1, .chunk = 256 << 10, .depth = 1, .wire = HPC_F32};
}

/* Returns whether rank from sends to rank to in any phase. */
static int has_edge(const hpc_graph *g, int to, int from) {
    for (int p = 0; p < g->n_phases; p++)
        if (hpc_graph_weight(g, p, to, from) != 0) return 1;
    return 0;
}

/* Writes the in-edges of a rank, in rising order of ranks, with the first phase's weights. */
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
