/* The plan of a parameter server (PHub, sections 3.2.3 and 3.2.4): one row a chunk. */
#include <limits.h>
#include <stdlib.h>

#include "plan/hub_trees.h"
#include "plan/planner.h"
#include "base/status.h"

static const char op_plan[] = "plan";

static void init(void *args) {
    *(hpc_hub *)args = (hpc_hub){
        .size = sizeof(hpc_hub), .cores = 1, .chunk = 32 << 10, .depth = 1, .wire = HPC_F32, .codec_out = HPC_F32};
}

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
    return status == HPC_OK ? hpc_hub_check_trees(h) : status;
}

static int plan_hub(const void *args, hpc_plan **plan) {
    const hpc_hub *hub = args;
    int status = check_hub(hub);
    if (status != HPC_OK) return status;
    if (hub->parents != NULL) return hpc_plan_hub_trees(hub, plan);
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
        hpc_hub_set_row(hub, bin_of[r], row);
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
