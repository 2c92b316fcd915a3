/* The plan of peers (SFB, section 3): every worker owns a row of every chunk, which applies the pushes that come to it
 * to parameters of its own. */
#include <stdlib.h>

#include "plan/planner.h"
#include "base/status.h"

static const char op_plan[] = "plan";

void hpc_peer_to_peer_init(hpc_peer_to_peer *peers) {
    *peers = (hpc_peer_to_peer){.size = sizeof *peers, .cores = 1, .chunk = 256 << 10, .depth = 2, .wire = HPC_F32};
}

/* Whether the pushes of one worker go to another; both are numbers of workers. */
static int sends(const hpc_peer_to_peer *p, int from, int to) {
    return from == to || p->sends == NULL || p->sends[(size_t)from * (size_t)p->n_workers + (size_t)to] != 0;
}

static int parent_of(const hpc_peer_to_peer *p, int from, int to) {
    return p->parents == NULL || from == to ? from : p->parents[(size_t)from * (size_t)p->n_workers + (size_t)to];
}

/* hpc_edge.row of an input. */
static int source(const hpc_peer_to_peer *p, int from, int to) {
    const int parent = parent_of(p, from, to);
    return parent == from ? -1 : -2 - p->workers[parent];
}

/* From every worker the way up ends at the one whose pushes go down the tree. */
static int check_parents(const hpc_peer_to_peer *p) {
    const int n = p->n_workers;
    for (int from = 0; from < n && p->parents != NULL; from++)
        for (int to = 0; to < n; to++) {
            int at = to, steps = 0;
            while (at >= 0 && at < n && at != from && steps++ < n) at = parent_of(p, from, at);
            if (at == from) continue;
            return hpc_fail(HPC_ERR_INVALID, op_plan,
                            "plan: the pushes of worker %d do not come to worker %d: parents lead to %d, and not to "
                            "worker %d",
                            from, to, at, from);
        }
    if (p->parents == NULL || p->sends == NULL) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op_plan,
                    "plan: sends and parents are given; where pushes are passed on they go to all: leave sends out");
}

static int check(const hpc_peer_to_peer *p) {
    int status = hpc_plan_check_keys(p->keys, p->n_keys);
    if (status == HPC_OK) status = hpc_plan_check_ranks(p->workers, p->n_workers, "worker", "group of peers");
    if (status == HPC_OK) status = hpc_plan_check_cut(p->cores, p->chunk, p->depth);
    if (status == HPC_OK)
        status = hpc_plan_check_codecs(p->keys, p->n_keys, "wire", p->wire, "wires", p->wires, p->n_wires);
    return status == HPC_OK ? check_parents(p) : status;
}

/* In-edges of every worker, in the order of workers, then the one edge that goes out. first: in-edges of the workers
 * before. */
static void fill_edges(const hpc_peer_to_peer *p, const int *first, hpc_edge *edges) {
    const double weight = p->sum ? 1.0 : 1.0 / p->n_workers;
    for (int to = 0; to < p->n_workers; to++) {
        hpc_edge *edge = edges + first[to] + to;
        for (int from = 0; from < p->n_workers; from++)
            if (sends(p, from, to)) *edge++ = (hpc_edge){p->workers[from], source(p, from, to), weight};
        *edge = (hpc_edge){p->workers[to], -1, 1.0};
    }
}

static int plan_peer_to_peer(const void *args, hpc_plan **plan) {
    const hpc_peer_to_peer *p = args;
    const hpc_cutting how = {.chunk = p->chunk};
    int status = check(p), n = 0;
    if (status != HPC_OK) return status;
    status = hpc_plan_chunks(p->keys, p->n_keys, &how, HPC_PLAN_NUMBERS / p->n_workers, op_plan, &n);
    if (status != HPC_OK) return status;

    hpc_plan_block b = {NULL, NULL, NULL};
    hpc_row *chunks = calloc((size_t)n, sizeof *chunks);
    int *core_of = malloc((size_t)n * sizeof *core_of);
    int *first = malloc(((size_t)p->n_workers + 1) * sizeof *first);
    if (chunks == NULL || core_of == NULL || first == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d chunks", n);
        goto err;
    }
    first[0] = 0;
    for (int to = 0; to < p->n_workers; to++) {
        first[to + 1] = first[to];
        for (int from = 0; from < p->n_workers; from++) first[to + 1] += sends(p, from, to);
    }
    hpc_plan_cut(p->keys, p->n_keys, &how, 1, chunks);
    status = hpc_plan_deal(chunks, n, 1, p->cores, 1, core_of);
    if (status != HPC_OK) goto err;
    status = hpc_plan_block_make(p->keys, p->n_keys, n * p->n_workers,
                                 (size_t)first[p->n_workers] + (size_t)p->n_workers, op_plan, &b);
    if (status != HPC_OK) goto err;
    fill_edges(p, first, b.edges);
    hpc_plan_cut(p->keys, p->n_keys, &how, p->n_workers, b.rows);
    for (int r = 0; r < n * p->n_workers; r++) {
        hpc_row *row = &b.rows[r];
        const int worker = r % p->n_workers;
        row->owner = p->workers[worker];
        row->core = core_of[r / p->n_workers];
        row->action = HPC_APPLY;
        row->depth = p->depth;
        row->codec_in = p->wires != NULL ? p->wires[row->key] : p->wire;
        row->codec_out = HPC_F32;
        row->n_in = row->quorum = first[worker + 1] - first[worker];
        row->in = b.edges + first[worker] + worker;
        row->n_out = 1;
        row->out = row->in + row->n_in;
    }
    *plan = b.plan;
    b.plan = NULL;
err:
    free(b.plan);
    free(first);
    free(core_of);
    free(chunks);
    return status;
}

static void init(void *args) {
    hpc_peer_to_peer_init(args);
}

const hpc_planner hpc_planner_peer_to_peer = {
    .name = "peer_to_peer", .size = sizeof(hpc_peer_to_peer), .init = init, .plan = plan_peer_to_peer};

int hpc_plan_peer_to_peer(const hpc_peer_to_peer *peers, hpc_plan **plan) {
    return hpc_planner_run(&hpc_planner_peer_to_peer, peers, plan);
}
