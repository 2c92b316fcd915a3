/* The plan of peers (SFB, section 3): every worker owns a row of every chunk, which applies its inputs to its own
 * parameters. If hosts are given, one worker of each host owns the row for all its workers (peer_hosts.c). */
#include "plan/peer_hosts.h"
#include "plan/planner.h"
#include "base/status.h"

static const char op_plan[] = "plan";

static void init(void *args) {
    *(hpc_peer_to_peer *)args = (hpc_peer_to_peer){
        .size = sizeof(hpc_peer_to_peer), .cores = 1, .chunk = 256 << 10, .depth = 2, .wire = HPC_F32};
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

/* The way up from every worker must end at the worker whose pushes go down the tree. */
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

/* In-edges of a worker, in the order of workers. */
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

static int plan_peer_to_peer(const void *args, hpc_plan **plan) {
    const hpc_peer_to_peer *p = args;
    const int status = check(p);
    if (status != HPC_OK) return status;
    if (p->hosts != NULL) return hpc_plan_peer_hosts(p, plan);
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
