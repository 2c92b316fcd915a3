/* The plan of peers (SFB, section 3): every worker owns a row of every chunk, which applies its inputs to its own
 * parameters. If hosts are given, one worker of each host owns the row for all workers of the host. */
#include <stdlib.h>

#include "plan/planner.h"
#include "base/status.h"

static const char op_plan[] = "plan";

static void init(void *args) {
    *(hpc_peer_to_peer *)args = (hpc_peer_to_peer){
        .size = sizeof(hpc_peer_to_peer), .cores = 1, .chunk = 256 << 10, .depth = 2, .wire = HPC_F32};
}

/* Returns whether worker number from pushes to worker number to. */
static int sends(const hpc_peer_to_peer *p, int from, int to) {
    return from == to || p->sends == NULL || p->sends[(size_t)from * (size_t)p->n_workers + (size_t)to] != 0;
}

static int parent_of(const hpc_peer_to_peer *p, int from, int to) {
    return p->parents == NULL || from == to ? from : p->parents[(size_t)from * (size_t)p->n_workers + (size_t)to];
}

/* Returns hpc_edge.row of an input. */
static int source(const hpc_peer_to_peer *p, int from, int to) {
    const int parent = parent_of(p, from, to);
    return parent == from ? -1 : -2 - p->workers[parent];
}

/* Checks that in each tree the path of parents from every worker ends at the worker whose pushes go down that tree. */
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
    if (p->hosts != NULL && (p->parents != NULL || p->sends != NULL))
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: hosts and %s are given; where a worker applies the pushes for its host, all come to it "
                        "straight: leave one of the two out",
                        p->sends != NULL ? "sends" : "parents");
    if (p->hosts == NULL && p->leads != NULL)
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: leads is given, and hosts is not; without hosts every worker has its own rows: leave "
                        "leads out, or give hosts");
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

/* Writes the in-edges of a worker, in the order of workers. */
static int feed(const void *args, int to, hpc_edge *in) {
    const hpc_peer_to_peer *p = args;
    const double weight = p->sum ? 1.0 : 1.0 / p->n_workers;
    int n = 0;
    for (int from = 0; from < p->n_workers; from++) {
        if (!sends(p, from, to)) continue;
        if (in != NULL) in[n] = (hpc_edge){p->workers[from], source(p, from, to), weight};
        n++;
    }
    return n;
}

/* ---- hosts with several workers ---- */

/* With hosts: one worker of each host owns the host's row of a chunk. All workers push to this owner, so an update
 * crosses the network once for each host. The owner sends the parameters to the workers of its host. Chunks are dealt
 * to the leaders of a host as a hub deals them to its servers. */

/* Workers grouped by host: in the array `of` the workers of a host are adjacent, leaders first; host h's workers begin
 * at first[h]. */
typedef struct grouped {
    int n, *of, *first, *leaders; /* leaders: by host, how many lead */
} grouped;

static int leads(const hpc_peer_to_peer *p, int worker) {
    return p->leads == NULL || p->leads[worker] != 0;
}

/* Adds the workers of worker `from`'s host whose number is at least `from`: leaders if leading is 1, the others if it
 * is 0. Returns how many were added. */
static int add_workers(const hpc_peer_to_peer *p, int from, int leading, int *to) {
    int n = 0;
    for (int w = from; w < p->n_workers; w++)
        if (p->hosts[w] == p->hosts[from] && leads(p, w) == leading) to[n++] = w;
    return n;
}

/* Groups the workers by host; hosts are numbered in the order of their first workers. */
static int group(const hpc_peer_to_peer *p, grouped *hosts) {
    int at = 0;
    for (int w = 0; w < p->n_workers; w++) {
        int before = 0;
        while (p->hosts[before] != p->hosts[w]) before++;
        if (before < w) continue;
        hosts->first[hosts->n] = at;
        at += hosts->leaders[hosts->n] = add_workers(p, w, 1, hosts->of + at);
        if (hosts->leaders[hosts->n] == 0)
            return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: the host of rank %d has no rank that leads; name one",
                            p->workers[w]);
        at += add_workers(p, w, 0, hosts->of + at);
        hosts->n++;
    }
    hosts->first[hosts->n] = at;
    return HPC_OK;
}

/* Writes the edges: first the pushes of all workers, which every row takes; then, for each host, the edges to its
 * workers. */
static void fill_edges(const hpc_peer_to_peer *p, const grouped *hosts, hpc_edge *edges) {
    const double weight = p->sum ? 1.0 : 1.0 / p->n_workers;
    for (int w = 0; w < p->n_workers; w++) {
        edges[w] = (hpc_edge){p->workers[w], -1, weight};
        edges[p->n_workers + w] = (hpc_edge){p->workers[hosts->of[w]], -1, 1.0};
    }
}

/* Fills in the rows of host h, which are every hosts->n-th row of rows. chunks has n rows; bin_of is scratch memory for
 * n numbers. */
static int fill_rows(const hpc_peer_to_peer *p, const grouped *hosts, int h, const hpc_row *chunks, int n, int *bin_of,
                     const hpc_edge *edges, hpc_row *rows) {
    const int first = hosts->first[h], its = hosts->first[h + 1] - first;
    const int status = hpc_plan_deal(chunks, n, hosts->leaders[h], p->cores, 1, bin_of);
    for (int i = 0; i < n && status == HPC_OK; i++) {
        hpc_row *row = &rows[(size_t)i * (size_t)hosts->n + (size_t)h];
        row->owner = p->workers[hosts->of[first + bin_of[i] / p->cores]];
        row->core = bin_of[i] % p->cores;
        row->action = HPC_APPLY;
        row->depth = p->depth;
        row->codec_in = p->wires != NULL ? p->wires[row->key] : p->wire;
        row->codec_out = HPC_F32;
        row->n_in = row->quorum = p->n_workers;
        row->in = edges;
        row->n_out = its;
        row->out = edges + p->n_workers + first;
    }
    return status;
}

static int make_hosts(const hpc_peer_to_peer *p, const grouped *hosts, hpc_plan **plan) {
    const hpc_cutting how = {.chunk = p->chunk};
    int n = 0, status = hpc_plan_chunks(p->keys, p->n_keys, &how, HPC_PLAN_NUMBERS / hosts->n, op_plan, &n);
    if (status != HPC_OK) return status;
    hpc_plan_block b = {NULL, NULL, NULL};
    hpc_row *chunks = calloc((size_t)n, sizeof *chunks);
    int *bin_of = malloc((size_t)n * sizeof *bin_of);
    if (chunks == NULL || bin_of == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d chunks", n);
    if (status == HPC_OK)
        status = hpc_plan_block_make(p->keys, p->n_keys, n * hosts->n, 2 * (size_t)p->n_workers, op_plan, &b);
    if (status == HPC_OK) {
        fill_edges(p, hosts, b.edges);
        hpc_plan_cut(p->keys, p->n_keys, &how, 1, chunks);
        hpc_plan_cut(p->keys, p->n_keys, &how, hosts->n, b.rows);
    }
    for (int h = 0; h < hosts->n && status == HPC_OK; h++)
        status = fill_rows(p, hosts, h, chunks, n, bin_of, b.edges, b.rows);
    if (status == HPC_OK)
        *plan = b.plan;
    else
        free(b.plan);
    free(bin_of);
    free(chunks);
    return status;
}

/* Makes the plan of peers with hosts, which was checked. */
static int plan_hosts(const hpc_peer_to_peer *p, hpc_plan **plan) {
    const size_t n = (size_t)p->n_workers;
    int *room = malloc((3 * n + 1) * sizeof *room);
    if (room == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for the hosts of %d workers", p->n_workers);
    grouped hosts = {.of = room, .leaders = room + n, .first = room + 2 * n};
    int status = group(p, &hosts);
    if (status == HPC_OK) status = make_hosts(p, &hosts, plan);
    free(room);
    return status;
}

/* ---- the planner ---- */

static int plan_peer_to_peer(const void *args, hpc_plan **plan) {
    const hpc_peer_to_peer *p = args;
    const int status = check(p);
    if (status != HPC_OK) return status;
    if (p->hosts != NULL) return plan_hosts(p, plan);
    const hpc_copies copies = {.keys = p->keys,
                               .n_keys = p->n_keys,
                               .owners = p->workers,
                               .n_owners = p->n_workers,
                               .cores = p->cores,
                               .depth = p->depth,
                               .chunk = p->chunk,
                               .wire = p->wire,
                               .wires = p->wires,
                               .feed = feed,
                               .args = p};
    return hpc_plan_copies(&copies, plan);
}

const hpc_planner hpc_planner_peer_to_peer = {
    .name = "peer_to_peer", .size = sizeof(hpc_peer_to_peer), .init = init, .plan = plan_peer_to_peer};
