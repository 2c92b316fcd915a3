/* Peers whose hosts have several workers. One worker of each host owns a row of a chunk: all workers push to it, so an
 * update crosses once to each host, and it sends the parameters to the workers of its host. The chunks are dealt to the
 * leaders of a host as a hub deals them to its servers. */
#include "plan/peer_hosts.h"

#include <stdlib.h>

#include "base/status.h"

static const char op_plan[] = "plan";

/* The workers of each host lie together in `of`, its leaders first; host h's begin at first[h]. */
typedef struct grouped {
    int n, *of, *first, *leaders; /* leaders: the number of each host's */
} grouped;

static int leads(const hpc_peer_to_peer *p, int worker) {
    return p->leads == NULL || p->leads[worker] != 0;
}

/* Adds the workers, from `from` on, of its host that lead, or that do not lead. Returns their number. */
static int add_workers(const hpc_peer_to_peer *p, int from, int leading, int *to) {
    int n = 0;
    for (int w = from; w < p->n_workers; w++)
        if (p->hosts[w] == p->hosts[from] && leads(p, w) == leading) to[n++] = w;
    return n;
}

/* Hosts are numbered in the order of their first workers. */
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

/* All pushes, which come to every row, then the workers of each host, which get what its rows send. */
static void fill_edges(const hpc_peer_to_peer *p, const grouped *hosts, hpc_edge *edges) {
    const double weight = p->sum ? 1.0 : 1.0 / p->n_workers;
    for (int w = 0; w < p->n_workers; w++) {
        edges[w] = (hpc_edge){p->workers[w], -1, weight};
        edges[p->n_workers + w] = (hpc_edge){p->workers[hosts->of[w]], -1, 1.0};
    }
}

/* The rows of host h, every hosts->n-th. chunks: n of them; bin_of: room for as many numbers. */
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

static int make(const hpc_peer_to_peer *p, const grouped *hosts, hpc_plan **plan) {
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

int hpc_plan_peer_hosts(const hpc_peer_to_peer *p, hpc_plan **plan) {
    const size_t n = (size_t)p->n_workers;
    int *room = malloc((3 * n + 1) * sizeof *room);
    if (room == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for the hosts of %d workers", p->n_workers);
    grouped hosts = {.of = room, .leaders = room + n, .first = room + 2 * n};
    int status = group(p, &hosts);
    if (status == HPC_OK) status = make(p, &hosts, plan);
    free(room);
    return status;
}
