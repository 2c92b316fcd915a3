/* The plan of a parameter server (PHub, sections 3.2.3 and 3.2.4): one row for each chunk. */
#include <limits.h>
#include <stdlib.h>

#include "plan/planner.h"
#include "base/status.h"

static const char op_plan[] = "plan";

static void init(void *args) {
    *(hpc_hub *)args = (hpc_hub){
        .size = sizeof(hpc_hub), .cores = 1, .chunk = 32 << 10, .depth = 1, .wire = HPC_F32, .codec_out = HPC_F32};
}

/* Fills in the row of a chunk, except its edges. bin: the chunk's bin of hpc_plan_deal, which determines server and
 * core. */
static void set_row(const hpc_hub *hub, int bin, hpc_row *row) {
    row->owner = hub->servers[bin / hub->cores];
    row->core = bin % hub->cores;
    row->action = HPC_APPLY;
    row->depth = hub->depth;
    row->quorum = hub->each && hub->apply_at == HPC_AT_OWNERS ? 1 : hub->n_workers;
    row->codec_in = hub->wires != NULL ? hub->wires[row->key] : hub->wire;
    row->codec_out = hub->codecs_out != NULL ? hub->codecs_out[row->key] : hub->codec_out;
}

/* ---- trees ---- */

/* Trees of servers (Parameter Flow, section 3.4.2): each server sends the folds of its chunks to some workers, which
 * send them on to other workers. A chunk has one row at its server, and one relay row at each worker that has children
 * in the server's tree. hpc_plan_apply_at then turns both into rows that forward, and adds rows that apply. */

/* Returns the number of the worker that sends the folds of a server on to a worker; -1 if the server itself sends
 * them. */
static int parent_of(const hpc_hub *h, int server, int worker) {
    const int parent = h->parents[(size_t)server * (size_t)h->n_workers + (size_t)worker];
    return parent >= 0 && h->workers[parent] == h->servers[server] ? -1 : parent;
}

static int is_server(const hpc_hub *h, int server, int worker) {
    return h->workers[worker] == h->servers[server];
}

/* Checks that from every worker the path of parents ends at the server. A longer path than the number of workers has a
 * cycle. */
static int check_tree(const hpc_hub *h, int server) {
    for (int w = 0; w < h->n_workers; w++) {
        const int parent = h->parents[(size_t)server * (size_t)h->n_workers + (size_t)w];
        if (parent < -1 || parent >= h->n_workers)
            return hpc_fail(HPC_ERR_INVALID, op_plan,
                            "plan: the parent of worker %d in the tree of server %d is %d; must be a number of a "
                            "worker, 0 to %d, or -1 for the server itself",
                            w, server, parent, h->n_workers - 1);
        if (is_server(h, server, w) && parent != -1)
            return hpc_fail(HPC_ERR_INVALID, op_plan,
                            "plan: the parent of worker %d in the tree of server %d is %d, but it is this server: must "
                            "be -1",
                            w, server, parent);
    }
    for (int w = 0; w < h->n_workers; w++) {
        int steps = 0;
        for (int at = w; at >= 0; at = parent_of(h, server, at))
            if (++steps > h->n_workers)
                return hpc_fail(HPC_ERR_INVALID, op_plan,
                                "plan: worker %d does not come from server %d: its parents go in a circle", w, server);
    }
    return HPC_OK;
}

static int check_trees(const hpc_hub *h) {
    if (h->parents == NULL) return HPC_OK;
    if (h->apply_at == HPC_AT_OWNERS)
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: parents is given and apply_at is %d (owners): only folds of updates go down trees; give "
                        "%d (receivers) or %d (both), or leave parents out",
                        h->apply_at, HPC_AT_RECEIVERS, HPC_AT_BOTH);
    if (h->n_parents != (int64_t)h->n_servers * h->n_workers)
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: n_parents is %d; %d servers and %d workers need one parent for each pair", h->n_parents,
                        h->n_servers, h->n_workers);
    int status = HPC_OK;
    for (int s = 0; s < h->n_servers && status == HPC_OK; s++) status = check_tree(h, s);
    return status;
}

/* The tree of a server. children[w]: how many children worker w has; the last entry is the server's. place[w]: the
 * index of worker w's row among the rows of a chunk, where the server's row has index 0; -1: w has no children. */
typedef struct branches {
    int *children, *place;
} branches;

static int find_inner(const hpc_hub *h, int server, const branches *b) {
    int n = 1;
    for (int w = 0; w <= h->n_workers; w++) b->children[w] = 0;
    for (int w = 0; w < h->n_workers; w++) {
        const int parent = is_server(h, server, w) ? -2 : parent_of(h, server, w);
        if (parent != -2) b->children[parent < 0 ? h->n_workers : parent]++;
    }
    for (int w = 0; w < h->n_workers; w++) b->place[w] = b->children[w] > 0 ? n++ : -1;
    return n;
}

/* Adds the edges to the children of a worker, or of the server if parent is -1; then the edge to the row's own rank, if
 * that rank is a worker. Returns how many. */
static int add_outputs(const hpc_hub *h, int server, int parent, const branches *b, int base, hpc_edge *out) {
    int n = 0, works = parent >= 0;
    for (int w = 0; w < h->n_workers; w++)
        if (is_server(h, server, w))
            works |= parent < 0;
        else if (parent_of(h, server, w) == parent)
            out[n++] = (hpc_edge){h->workers[w], b->place[w] < 0 ? -1 : base + b->place[w], 1.0};
    if (works) out[n++] = (hpc_edge){parent >= 0 ? h->workers[parent] : h->servers[server], -1, 1.0};
    return n;
}

/* Makes the rows of one chunk; the row numbers begin at base, with the server's row. Returns the address of the first
 * unused edge. */
static hpc_edge *make_chunk(const hpc_hub *h, int bin, const branches *b, const hpc_row *chunk, const hpc_edge *pushes,
                            hpc_row *rows, int base, hpc_edge *edge) {
    const int server = bin / h->cores;
    hpc_row *root = &rows[base];
    *root = *chunk;
    set_row(h, bin, root);
    root->in = pushes;
    root->n_in = h->n_workers;
    root->out = edge;
    edge += root->n_out = add_outputs(h, server, -1, b, base, edge);
    for (int w = 0; w < h->n_workers; w++) {
        if (b->place[w] < 0) continue;
        hpc_row *row = &rows[base + b->place[w]];
        const int parent = parent_of(h, server, w);
        *row = *root;
        row->owner = h->workers[w];
        row->action = HPC_RELAY;
        row->codec_in = row->codec_out;
        row->n_in = row->quorum = 1;
        row->in = edge;
        *edge++ = parent < 0 ? (hpc_edge){root->owner, base, 1.0}
                             : (hpc_edge){h->workers[parent], base + b->place[parent], 1.0};
        row->out = edge;
        edge += row->n_out = add_outputs(h, server, w, b, base, edge);
    }
    return edge;
}

/* Makes the rows of n chunks. bin_of: the bin of each chunk. inner: by server, the number of rows of a chunk. */
static int make_trees(const hpc_hub *h, const hpc_row *chunks, int n, const int *bin_of, const int *inner,
                      const branches *b, hpc_plan **plan) {
    hpc_plan_block block = {NULL, NULL, NULL};
    size_t rows = 0, edges = (size_t)h->n_workers;
    for (int c = 0; c < n; c++) {
        const size_t its = (size_t)inner[bin_of[c] / h->cores];
        rows += its;
        edges +=
            (size_t)h->n_workers + 2 * its; /* one edge to each worker; for each row one back and one to its own rank */
    }
    if (rows > HPC_PLAN_NUMBERS)
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: chunk is %llu bytes, which with trees makes %zu rows; a plan has at most %d: make it "
                        "larger",
                        (unsigned long long)h->chunk, rows, HPC_PLAN_NUMBERS);
    int status = hpc_plan_block_make(h->keys, h->n_keys, (int)rows, edges, op_plan, &block);
    if (status != HPC_OK) return status;
    hpc_edge *pushes = block.edges, *edge = pushes + h->n_workers;
    const double weight = h->sum || h->each ? 1.0 : 1.0 / h->n_workers;
    for (int w = 0; w < h->n_workers; w++) pushes[w] = (hpc_edge){h->workers[w], -1, weight};
    for (int c = 0, base = 0; c < n; c++) {
        const int server = bin_of[c] / h->cores;
        find_inner(h, server, b);
        edge = make_chunk(h, bin_of[c], b, &chunks[c], pushes, block.rows, base, edge);
        base += inner[server];
    }
    block.plan->affinity = h->affinity;
    *plan = block.plan;
    return hpc_plan_apply_at(plan, block.edges, edges, h->apply_at, NULL);
}

/* Makes the plan of a hub with parents, which was checked. */
static int plan_trees(const hpc_hub *h, hpc_plan **plan) {
    const hpc_cutting how = {h->chunk, h->least, h->n_servers * h->cores};
    const size_t workers = (size_t)h->n_workers;
    int n = 0, status = hpc_plan_chunks(h->keys, h->n_keys, &how, HPC_PLAN_NUMBERS, op_plan, &n);
    if (status != HPC_OK) return status;
    hpc_row *chunks = calloc((size_t)n, sizeof *chunks);
    int *room = malloc((2 * workers + 1 + (size_t)h->n_servers + (size_t)n) * sizeof *room);
    hpc_plan *made = NULL;
    if (chunks == NULL || room == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d chunks", n);
        goto err;
    }
    const branches b = {.children = room, .place = room + workers + 1};
    int *inner = room + 2 * workers + 1, *bin_of = inner + h->n_servers;
    for (int s = 0; s < h->n_servers; s++) inner[s] = find_inner(h, s, &b);
    hpc_plan_cut(h->keys, h->n_keys, &how, 1, chunks);
    status = hpc_plan_deal(chunks, n, h->n_servers, h->cores, h->interfaces, bin_of);
    if (status == HPC_OK) status = make_trees(h, chunks, n, bin_of, inner, &b, &made);
    if (status == HPC_OK)
        *plan = made;
    else
        hpc_plan_free(made);
err:
    free(room);
    free(chunks);
    return status;
}

/* ---- the planner ---- */

static int check_hub(const hpc_hub *h) {
    int status = hpc_plan_check_keys(h->keys, h->n_keys);
    if (status == HPC_OK) status = hpc_plan_check_ranks(h->workers, h->n_workers, "worker", "hub");
    if (status == HPC_OK) status = hpc_plan_check_ranks(h->servers, h->n_servers, "server", "hub");
    if (status != HPC_OK) return status;
    status = hpc_plan_check_cut(h->cores, h->chunk, h->depth);
    if (status == HPC_OK) status = hpc_plan_check_least(h->least, h->chunk);
    if (status == HPC_OK)
        status = hpc_plan_check_both(h->keys, h->n_keys, h->wire, h->wires, h->n_wires, h->codec_out, h->codecs_out,
                                     h->n_codecs_out);
    if (status != HPC_OK) return status;
    if (h->n_servers > INT_MAX / h->cores)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %d servers of %d cores are too many", h->n_servers, h->cores);
    if ((h->sum != 0 && h->sum != 1) || (h->each != 0 && h->each != 1))
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %s is %d; must be 0 or 1",
                        h->sum != 0 && h->sum != 1 ? "sum" : "each", h->sum != 0 && h->sum != 1 ? h->sum : h->each);
    if (h->interfaces < 0 || h->interfaces > h->cores)
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: interfaces is %d; 0 (one) to %d are possible, since each needs one of the %d cores",
                        h->interfaces, h->cores, h->cores);
    status = hpc_plan_check_apply_at(h->apply_at);
    if (status == HPC_OK) status = hpc_plan_check_affinity(h->affinity);
    return status == HPC_OK ? check_trees(h) : status;
}

static int plan_hub(const void *args, hpc_plan **plan) {
    const hpc_hub *hub = args;
    int status = check_hub(hub);
    if (status != HPC_OK) return status;
    if (hub->parents != NULL) return plan_trees(hub, plan);
    const hpc_cutting how = {hub->chunk, hub->least, hub->n_servers * hub->cores};
    int n = 0;
    status = hpc_plan_chunks(hub->keys, hub->n_keys, &how, HPC_PLAN_NUMBERS, op_plan, &n);
    if (status != HPC_OK) return status;

    hpc_plan_block b = {NULL, NULL, NULL};
    int *bin_of = malloc((size_t)n * sizeof *bin_of);
    if (bin_of == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", n);
        goto err;
    }
    status = hpc_plan_block_make(hub->keys, hub->n_keys, n, 2 * (size_t)hub->n_workers, op_plan, &b);
    if (status != HPC_OK) goto err;

    hpc_edge *in = b.edges, *out = in + hub->n_workers;
    const double weight = hub->sum || hub->each ? 1.0 : 1.0 / hub->n_workers;
    for (int w = 0; w < hub->n_workers; w++) {
        in[w] = (hpc_edge){hub->workers[w], -1, weight};
        out[w] = (hpc_edge){hub->workers[w], -1, 1.0};
    }
    hpc_plan_cut(hub->keys, hub->n_keys, &how, 1, b.rows);
    status = hpc_plan_deal(b.rows, n, hub->n_servers, hub->cores, hub->interfaces, bin_of);
    if (status != HPC_OK) goto err;
    for (int r = 0; r < n; r++) {
        hpc_row *row = &b.rows[r];
        set_row(hub, bin_of[r], row);
        row->n_in = row->n_out = hub->n_workers;
        row->in = in;
        row->out = out;
    }
    b.plan->affinity = hub->affinity;
    status = hpc_plan_apply_at(&b.plan, b.edges, 2 * (size_t)hub->n_workers, hub->apply_at, NULL);
    if (status != HPC_OK) goto err;
    *plan = b.plan;
    b.plan = NULL;
err:
    free(b.plan);
    free(bin_of);
    return status;
}

const hpc_planner hpc_planner_hub = {.name = "hub", .size = sizeof(hpc_hub), .init = init, .plan = plan_hub};
