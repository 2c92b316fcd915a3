/* The plan of a node communication graph (ASAP, section 3): every rank owns a row of every chunk, and is fed by itself
 * and by its in-neighbours. */
#include <stdlib.h>

#include "plan/planner.h"
#include "base/status.h"

static const char op_plan[] = "plan";

void hpc_graph_init(hpc_graph *graph) {
    *graph =
        (hpc_graph){.size = sizeof *graph, .n_phases = 1, .cores = 1, .chunk = 256 << 10, .depth = 1, .wire = HPC_F32};
}

/* Whether to is fed by from in any phase. */
static int has_edge(const hpc_graph *g, int to, int from) {
    for (int p = 0; p < g->n_phases; p++)
        if (hpc_graph_weight(g, p, to, from) != 0) return 1;
    return 0;
}

/* In-edges of every rank, in rising order, with the first phase's weights, then the one edge that goes out. */
static void fill_edges(const hpc_graph *g, const int *first, hpc_edge *edges) {
    for (int i = 0; i < g->ranks; i++) {
        hpc_edge *edge = edges + first[i] + i;
        for (int j = 0; j < g->ranks; j++)
            if (has_edge(g, i, j)) *edge++ = (hpc_edge){j, -1, hpc_graph_weight(g, 0, i, j)};
        *edge = (hpc_edge){i, -1, 1.0};
    }
}

static int plan_graph(const void *args, hpc_plan **plan) {
    const hpc_graph *g = args;
    const hpc_cutting how = {.chunk = g->chunk};
    int status = hpc_graph_check(g), n = 0;
    if (status != HPC_OK) return status;
    status = hpc_plan_chunks(g->keys, g->n_keys, &how, HPC_PLAN_NUMBERS / g->ranks, op_plan, &n);
    if (status != HPC_OK) return status;

    hpc_plan_block b = {NULL, NULL, NULL};
    uint64_t *sizes = malloc((size_t)n * sizeof *sizes);
    int *core_of = malloc((size_t)n * sizeof *core_of);
    int *first = malloc(((size_t)g->ranks + 1) * sizeof *first); /* in-edges of the ranks before */
    if (sizes == NULL || core_of == NULL || first == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d chunks", n);
        goto err;
    }
    first[0] = 0;
    for (int i = 0; i < g->ranks; i++) {
        first[i + 1] = first[i];
        for (int j = 0; j < g->ranks; j++) first[i + 1] += has_edge(g, i, j);
    }
    status =
        hpc_plan_block_make(g->keys, g->n_keys, n * g->ranks, (size_t)first[g->ranks] + (size_t)g->ranks, op_plan, &b);
    if (status != HPC_OK) goto err;
    fill_edges(g, first, b.edges);
    hpc_plan_cut(g->keys, g->n_keys, &how, g->ranks, b.rows);
    for (int c = 0; c < n; c++) sizes[c] = b.rows[(size_t)c * (size_t)g->ranks].count * sizeof(float);
    status = hpc_partition(sizes, n, g->cores, g->cores, core_of);
    if (status != HPC_OK) goto err;
    for (int r = 0; r < n * g->ranks; r++) {
        hpc_row *row = &b.rows[r];
        int owner = r % g->ranks;
        row->owner = owner;
        row->core = core_of[r / g->ranks];
        row->action = HPC_APPLY;
        row->depth = g->depth;
        row->codec_in = g->wires != NULL ? g->wires[row->key] : g->wire;
        row->codec_out = HPC_F32;
        row->n_in = row->quorum = first[owner + 1] - first[owner];
        row->in = b.edges + first[owner] + owner;
        row->n_out = 1;
        row->out = row->in + row->n_in;
    }
    *plan = b.plan;
    b.plan = NULL;
err:
    free(b.plan);
    free(first);
    free(core_of);
    free(sizes);
    return status;
}

static void init(void *args) {
    hpc_graph_init(args);
}

const hpc_planner hpc_planner_graph = {.name = "graph", .size = sizeof(hpc_graph), .init = init, .plan = plan_graph};

int hpc_plan_graph(const hpc_graph *graph, hpc_plan **plan) {
    return hpc_planner_run(&hpc_planner_graph, graph, plan);
}
