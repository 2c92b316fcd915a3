/* Hubs of racks: checks of their arguments, and the plan that the hubs and the workers make (PHub, section 3.4). */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "service/description.h"
#include "service/names.h"

static const char op_plan[] = "exchange";

/* ---- the arguments ---- */

int hpc_hub_check_hosts(const hpc_hosts *h) {
    if (h->size != sizeof *h)
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "exchange: the arguments of a plan with racks are not of hpc_plan_args_init");
    if (h->leads != NULL || h->serves != NULL)
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "exchange: %s is given beside racks: the hubs fill it in; leave it out",
                        h->leads != NULL ? "leads" : "serves");
    if (h->n_levels == HPC_RACK_LEVELS && h->groups != NULL && h->n_workers >= 1) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op_plan,
                    "exchange: the groups of a plan with racks are %s, with %d workers and %d levels: give hosts and "
                    "racks, so %d levels, of 1 worker or more",
                    h->groups == NULL ? "NULL" : "given", h->n_workers, h->n_levels, HPC_RACK_LEVELS);
}

int hpc_hub_check_racks(const hpc_hub_racks *racks, int apply_at) {
    if (apply_at != HPC_AT_OWNERS)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "apply_at is %d and racks are given: hubs apply; leave it out",
                        apply_at);
    if (racks->top != HPC_TOP_SHARDED && racks->top != HPC_TOP_RING)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "top is %d: must be %d (sharded) or %d (ring)", racks->top,
                        HPC_TOP_SHARDED, HPC_TOP_RING);
    for (int w = 0; w < racks->n; w++) {
        const int host = racks->groups[w], rack = racks->groups[racks->n + w];
        if (host < 0)
            return hpc_fail(HPC_ERR_INVALID, op_plan, "the host of rank %d is %d: must be 0 or more", w, host);
        if (rack < 0 || rack >= HPC_MOST_HUBS)
            return hpc_fail(
                HPC_ERR_INVALID, op_plan,
                "the rack of rank %d is %d: must be the number of a hub, 0 to %d; name the rank in one rack", w, rack,
                HPC_MOST_HUBS - 1);
    }
    return HPC_OK;
}

/* Checks racks for a job: each rack has one hub, and each hub a worker. */
static int check_job(const hpc_hub_racks *racks, int workers, int hubs) {
    unsigned char has_worker[HPC_MOST_HUBS] = {0};
    if (racks->n != workers)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "racks have %d workers, and the job has %d: name each in one rack",
                        racks->n, workers);
    if (hubs > HPC_MOST_HUBS)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "exchange: a plan of %d hubs, more than %d", hubs, HPC_MOST_HUBS);
    for (int w = 0; w < workers; w++) {
        const int rack = racks->groups[workers + w];
        if (rack >= hubs)
            return hpc_fail(HPC_ERR_INVALID, op_plan,
                            "rank %d is in rack %d, and the job has %d hubs: each rack has one hub", w, rack, hubs);
        has_worker[rack] = 1;
    }
    for (int h = 0; h < hubs; h++)
        if (!has_worker[h])
            return hpc_fail(HPC_ERR_INVALID, op_plan, "no worker is in the rack of hub %d: name one, or use %d hubs", h,
                            hubs - 1);
    return HPC_OK;
}

void hpc_hub_of_hosts(const hpc_hosts *h, hpc_hub *hub, hpc_hub_racks *racks) {
    *hub = (hpc_hub){.size = sizeof *hub,
                     .keys = h->keys,
                     .n_keys = h->n_keys,
                     .cores = h->cores,
                     .chunk = h->chunk,
                     .depth = h->depth,
                     .wire = h->wire,
                     .sum = h->sum,
                     .each = h->each,
                     .codec_out = h->codec_out,
                     .wires = h->wires,
                     .codecs_out = h->codecs_out,
                     .n_wires = h->n_wires,
                     .n_codecs_out = h->n_codecs_out,
                     .apply_at = h->apply_at,
                     .least = h->least};
    *racks = (hpc_hub_racks){h->n_workers, h->groups, h->top, h->apart};
}

void hpc_hub_to_hosts(const hpc_hub *hub, const hpc_hub_racks *racks, hpc_hosts *hosts) {
    *hosts = (hpc_hosts){.size = sizeof *hosts,
                         .keys = hub->keys,
                         .n_keys = hub->n_keys,
                         .n_workers = racks->n,
                         .n_levels = HPC_RACK_LEVELS,
                         .groups = racks->groups,
                         .top = racks->top,
                         .cores = hub->cores,
                         .chunk = hub->chunk,
                         .depth = hub->depth,
                         .wire = hub->wire,
                         .sum = hub->sum,
                         .codec_out = hub->codec_out,
                         .wires = hub->wires,
                         .codecs_out = hub->codecs_out,
                         .n_wires = hub->n_wires,
                         .n_codecs_out = hub->n_codecs_out,
                         .apart = racks->apart,
                         .each = hub->each,
                         .apply_at = hub->apply_at,
                         .least = hub->least};
}

/* ---- the plan ---- */

/* Makes the plan of hubs that share all keys. ranks: of workers, then of hubs. */
static int plan_flat(const hpc_hub *given, const int *ranks, int workers, int hubs, hpc_plan **plan) {
    hpc_hub hub = *given;
    hub.workers = ranks;
    hub.n_workers = workers;
    hub.servers = ranks + workers;
    hub.n_servers = hubs;
    return hpc_plan_make("hub", &hub, plan);
}

static int plan_racks(const hpc_hub *hub, const hpc_hub_racks *racks, const int *ranks, int workers, int hubs,
                      hpc_plan **plan) {
    const size_t n = (size_t)(workers + hubs);
    hpc_hosts hosts;
    int status = check_job(racks, workers, hubs);
    if (status != HPC_OK) return status;
    int *groups = calloc(HPC_RACK_LEVELS * n, sizeof *groups); /* the planner ignores the host of a hub */
    int *serves = calloc(n, sizeof *serves);
    if (groups != NULL && serves != NULL) {
        for (int level = 0; level < HPC_RACK_LEVELS; level++)
            memcpy(groups + (size_t)level * n, racks->groups + (size_t)level * (size_t)workers,
                   (size_t)workers * sizeof *groups);
        for (int h = 0; h < hubs; h++) {
            groups[n + (size_t)(workers + h)] = h;
            serves[workers + h] = 1;
        }
        hpc_hub_to_hosts(hub, racks, &hosts);
        hosts.workers = ranks;
        hosts.n_workers = workers + hubs;
        hosts.groups = groups;
        hosts.serves = serves;
        status = hpc_plan_make("hosts", &hosts, plan);
    } else {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "exchange: no memory for a plan");
    }
    free(serves);
    free(groups);
    return status;
}

int hpc_hub_plan(const hpc_hub *hub, const hpc_hub_racks *racks, int workers, int hubs, hpc_plan **plan) {
    int *ranks = malloc((size_t)(workers + hubs) * sizeof *ranks);
    if (ranks == NULL) return hpc_fail(HPC_ERR_MEMORY, op_plan, "exchange: no memory for a plan");
    for (int r = 0; r < workers + hubs; r++) ranks[r] = r;
    int status =
        racks->n > 0 ? plan_racks(hub, racks, ranks, workers, hubs, plan) : plan_flat(hub, ranks, workers, hubs, plan);
    free(ranks);
    return status;
}
