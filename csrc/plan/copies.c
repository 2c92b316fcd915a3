/* Plans in which several ranks apply the same elements, each to its own parameters: graphs and peers. */
#include <stdlib.h>

#include "plan/plan.h"
#include "base/status.h"

static const char op_plan[] = "plan";

/* Writes, for one owner after the other, its in-edges and then its one out-edge. first[i]: how many in-edges the owners
 * before owner i have together. */
static void fill_edges(const hpc_copies *c, const int *first, hpc_edge *edges) {
    for (int i = 0; i < c->n_owners; i++) {
        hpc_edge *in = edges + first[i] + i;
        c->feed(c->args, i, in);
        edges[first[i + 1] + i] = (hpc_edge){c->owners != NULL ? c->owners[i] : i, -1, 1.0};
    }
}

static void fill_row(const hpc_copies *c, const int *first, const hpc_edge *edges, int owner, int core, hpc_row *row) {
    row->owner = c->owners != NULL ? c->owners[owner] : owner;
    row->core = core;
    row->action = HPC_APPLY;
    row->depth = c->depth;
    row->codec_in = c->wires != NULL ? c->wires[row->key] : c->wire;
    row->codec_out = HPC_F32;
    row->n_in = row->quorum = first[owner + 1] - first[owner];
    row->in = edges + first[owner] + owner;
    row->n_out = 1;
    row->out = row->in + row->n_in;
}

int hpc_plan_copies(const hpc_copies *c, hpc_plan **plan) {
    const hpc_cutting how = {.chunk = c->chunk};
    int n = 0, status = hpc_plan_chunks(c->keys, c->n_keys, &how, HPC_PLAN_NUMBERS / c->n_owners, op_plan, &n);
    if (status != HPC_OK) return status;

    hpc_plan_block b = {NULL, NULL, NULL};
    uint64_t *sizes = malloc((size_t)n * sizeof *sizes);
    int *core_of = malloc((size_t)n * sizeof *core_of);
    int *first = calloc((size_t)c->n_owners + 1, sizeof *first);
    if (sizes == NULL || core_of == NULL || first == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d chunks", n);
        goto err;
    }
    for (int i = 0; i < c->n_owners; i++) first[i + 1] = first[i] + c->feed(c->args, i, NULL);
    status = hpc_plan_block_make(c->keys, c->n_keys, n * c->n_owners, (size_t)first[c->n_owners] + (size_t)c->n_owners,
                                 op_plan, &b);
    if (status != HPC_OK) goto err;
    fill_edges(c, first, b.edges);
    hpc_plan_cut(c->keys, c->n_keys, &how, c->n_owners, b.rows);
    for (int i = 0; i < n; i++) sizes[i] = b.rows[(size_t)i * (size_t)c->n_owners].count * sizeof(float);
    status = hpc_partition(sizes, n, c->cores, c->cores, core_of);
    if (status != HPC_OK) goto err;
    for (int r = 0; r < n * c->n_owners; r++)
        fill_row(c, first, b.edges, r % c->n_owners, core_of[r / c->n_owners], &b.rows[r]);
    *plan = b.plan;
    b.plan = NULL;
err:
    free(b.plan);
    free(first);
    free(core_of);
    free(sizes);
    return status;
}
