/* The plan of a broadcast over a tree (Parameter Flow, section 3.4): the root's row takes the root's pushes, and every
 * rank with children relays each chunk to them when the chunk comes. The other ranks push with weight 0, which only
 * tells the root that they are ready. So no rank gets a chunk while it still reads the last one. */
#include <limits.h>
#include <stdlib.h>

#include "plan/planner.h"
#include "base/status.h"

static const char op_plan[] = "plan";

static void init(void *args) {
    *(hpc_tree *)args = (hpc_tree){
        .size = sizeof(hpc_tree), .cores = 1, .chunk = 128 << 10, .depth = 1, .wire = HPC_F32, .codec_out = HPC_F32};
}

/* Finds the root. Checks that from every rank the path of parents ends at the root; a longer path than the number of
 * ranks has a cycle. */
static int check_parents(const hpc_tree *t, int *root) {
    *root = -1;
    for (int r = 0; r < t->ranks; r++) {
        int parent = t->parents[r];
        if (parent < -1 || parent >= t->ranks)
            return hpc_fail(HPC_ERR_INVALID, op_plan,
                            "plan: the parent of rank %d is %d; must be a rank, 0 to %d, or -1 for the root", r, parent,
                            t->ranks - 1);
        if (parent >= 0) continue;
        if (*root >= 0)
            return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: ranks %d and %d have no parent; a tree has one root",
                            *root, r);
        *root = r;
    }
    if (*root < 0) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: every rank has a parent; a tree has a root (-1)");
    for (int r = 0; r < t->ranks; r++) {
        int steps = 0;
        for (int at = r; t->parents[at] >= 0; at = t->parents[at])
            if (++steps > t->ranks)
                return hpc_fail(HPC_ERR_INVALID, op_plan,
                                "plan: rank %d does not come from the root %d: its parents go in a circle", r, *root);
    }
    return HPC_OK;
}

static int check_tree(const hpc_tree *t, int *root) {
    int status = hpc_plan_check_keys(t->keys, t->n_keys);
    if (status == HPC_OK) status = hpc_plan_check_cut(t->cores, t->chunk, t->depth);
    if (status == HPC_OK)
        status = hpc_plan_check_both(t->keys, t->n_keys, t->wire, t->wires, t->n_wires, t->codec_out, t->codecs_out,
                                     t->n_codecs_out);
    if (status != HPC_OK) return status;
    if (t->ranks < 1 || t->parents == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: parents is empty (ranks is %d); a tree has one rank or more",
                        t->ranks);
    return check_parents(t, root);
}

/* The ranks with children, the root first. place[r] is the index of rank r among them, or -1 if r has no children. */
struct inner {
    int *ranks, *place, n;
    int *first, *children; /* children[first[r]] to children[first[r + 1] - 1] are rank r's children, in order */
};

static void find_inner(const hpc_tree *t, int root, struct inner *in) {
    for (int r = 0; r <= t->ranks; r++) in->first[r] = 0;
    for (int r = 0; r < t->ranks; r++)
        if (t->parents[r] >= 0) in->first[t->parents[r] + 1]++;
    for (int r = 0; r < t->ranks; r++) in->first[r + 1] += in->first[r];
    for (int r = 0; r < t->ranks; r++) in->place[r] = 0;
    for (int r = 0; r < t->ranks; r++)
        if (t->parents[r] >= 0) in->children[in->first[t->parents[r]] + in->place[t->parents[r]]++] = r;
    for (int r = 0; r < t->ranks; r++) in->place[r] = -1;
    in->place[root] = 0;
    in->ranks[in->n++] = root;
    for (int r = 0; r < t->ranks; r++) {
        if (r == root || in->first[r] == in->first[r + 1]) continue;
        in->place[r] = in->n;
        in->ranks[in->n++] = r;
    }
}

/* Makes the rows of one chunk. ready: the inputs of the root's row. Returns the address of the first unused edge. */
static hpc_edge *make_chunk(const hpc_tree *t, const struct inner *in, const hpc_row *chunk, int core, int base,
                            const hpc_edge *ready, hpc_row *rows, hpc_edge *edge) {
    for (int i = 0; i < in->n; i++) {
        const int rank = in->ranks[i];
        hpc_row *row = &rows[base + i];
        *row = *chunk;
        row->owner = rank;
        row->core = core;
        row->action = i == 0 ? HPC_APPLY : HPC_RELAY;
        row->depth = t->depth;
        row->codec_out = t->codecs_out != NULL ? t->codecs_out[row->key] : t->codec_out;
        row->codec_in = i > 0 ? row->codec_out : t->wires != NULL ? t->wires[row->key] : t->wire;
        row->in = i == 0 ? ready : edge;
        row->n_in = row->quorum = i == 0 ? t->ranks : 1;
        if (i > 0) *edge++ = (hpc_edge){t->parents[rank], base + in->place[t->parents[rank]], 1.0};
        row->out = edge;
        for (int c = in->first[rank]; c < in->first[rank + 1]; c++) {
            const int child = in->children[c];
            *edge++ = (hpc_edge){child, in->place[child] < 0 ? -1 : base + in->place[child], 1.0};
        }
        *edge++ = (hpc_edge){rank, -1, 1.0};
        row->n_out = (int)(edge - row->out);
    }
    return edge;
}

static int plan_tree(const void *args, hpc_plan **plan) {
    const hpc_tree *t = args;
    int root = -1, n = 0, status = check_tree(t, &root);
    if (status != HPC_OK) return status;
    const size_t ranks = (size_t)t->ranks;
    const hpc_cutting how = {.chunk = t->chunk};
    hpc_plan_block b = {NULL, NULL, NULL};
    hpc_row *chunks = NULL;
    int *core = NULL, *room = malloc((4 * ranks + 1) * sizeof *room);
    if (room == NULL) return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %zu ranks", ranks);
    struct inner in = {room, room + ranks, 0, room + 2 * ranks, room + 3 * ranks + 1};
    find_inner(t, root, &in);
    status = hpc_plan_chunks(t->keys, t->n_keys, &how, HPC_PLAN_NUMBERS / in.n, op_plan, &n);
    if (status != HPC_OK) goto err;
    chunks = calloc((size_t)n, sizeof *chunks);
    core = malloc((size_t)n * sizeof *core);
    if (chunks == NULL || core == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d chunks", n);
        goto err;
    }
    hpc_plan_cut(t->keys, t->n_keys, &how, 1, chunks);
    status = hpc_plan_deal(chunks, n, 1, t->cores, 1, core);
    if (status != HPC_OK) goto err;
    /* for each chunk: one edge to each child's row and one back, and one to each rank with children */
    const size_t edges = ranks + (size_t)n * (2 * (size_t)in.n + ranks);
    status = hpc_plan_block_make(t->keys, t->n_keys, n * in.n, edges, op_plan, &b);
    if (status != HPC_OK) goto err;
    hpc_edge *ready = b.edges, *edge = b.edges + ranks;
    for (int r = 0; r < t->ranks; r++) ready[r] = (hpc_edge){r, -1, r == root ? 1.0 : 0.0};
    for (int c = 0; c < n; c++) edge = make_chunk(t, &in, &chunks[c], core[c], c * in.n, ready, b.rows, edge);
    *plan = b.plan;
err:
    free(core);
    free(chunks);
    free(room);
    return status;
}

const hpc_planner hpc_planner_tree = {.name = "tree", .size = sizeof(hpc_tree), .init = init, .plan = plan_tree};
