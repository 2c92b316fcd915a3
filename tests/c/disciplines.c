#define _GNU_SOURCE
#include "disciplines.h"

#include <math.h>
#include <sched.h>
#include <time.h>

const combination combinations[] = {
    {"bsp_servers", SERVERS, 3, HPC_BSP, 0, 0, 0, 0},
    {"bsp_servers_mean", SERVERS, 4, HPC_BSP, 0, 0, MEAN | THREADS, 0},
    {"bsp_servers_rounded", SERVERS, 3, HPC_BSP, 0, 0, ROUNDED | DEEP, 0},
    {"bsp_dedicated", SERVERS, 3, HPC_BSP, 0, 0, DEDICATED, 0},
    {"split_servers", SERVERS, 3, HPC_BSP, 0, 0, SPLIT, 0},
    {"async_servers", SERVERS, 3, HPC_ASYNC, 0, 0, THREADS, 0},
    {"async_dedicated", SERVERS, 4, HPC_ASYNC, 0, 0, DEDICATED | DEEP, 0},
    {"ssp0_servers", SERVERS, 3, HPC_SSP, 0, 0, THREADS | MEAN, 0},
    {"ssp1_servers", SERVERS, 3, HPC_SSP, 1, 0, 0, 0},
    {"ssp3_servers", SERVERS, 4, HPC_SSP, 3, 0, THREADS | MEAN | DEEP, 0},
    {"ssp3_dedicated", SERVERS, 4, HPC_SSP, 3, 0, DEDICATED | SLEEPY, 0},
    {"ssp1_rounded", SERVERS, 3, HPC_SSP, 1, 0, ROUNDED, 0},
    {"split_async_servers", SERVERS, 3, HPC_ASYNC, 0, 0, SPLIT | THREADS, 0},
    {"split_ssp1_servers", SERVERS, 3, HPC_SSP, 1, 0, SPLIT | MEAN, 0},
    {"split_ssp3_dedicated", SERVERS, 4, HPC_SSP, 3, 0, SPLIT | DEDICATED | ROUNDED | DEEP, 0},
    {"quorum_servers", SERVERS, 4, HPC_BSP, 0, 3, 0, 0},
    {"quorum1_servers", SERVERS, 3, HPC_BSP, 0, 1, THREADS | ROUNDED, 0},
    {"quorum_split", SERVERS, 4, HPC_BSP, 0, 3, SPLIT, 0},
    {"quorum1_split", SERVERS, 3, HPC_BSP, 0, 1, SPLIT | THREADS, 0},
    {"quorum2_of3_split", SERVERS, 3, HPC_BSP, 0, 2, SPLIT | THREADS | DEEP, 0},
    {"quorum2_split", SERVERS, 5, HPC_BSP, 0, 2, SPLIT | DEEP | SLEEPY, 0},
    {"bsp_receivers", RECEIVERS, 3, HPC_BSP, 0, 0, 0, 0},
    {"bsp_receivers_tree", RECEIVERS, 5, HPC_BSP, 0, 0, TREE | THREADS, 0},
    {"split_receivers", RECEIVERS, 3, HPC_BSP, 0, 0, SPLIT | THREADS, 0},
    {"ssp0_receivers", RECEIVERS, 3, HPC_SSP, 0, 0, 0, 0},
    {"ssp1_receivers", RECEIVERS, 3, HPC_SSP, 1, 0, 0, 0},
    {"ssp3_receivers", RECEIVERS, 4, HPC_SSP, 3, 0, THREADS | ROUNDED | DEEP, 0},
    {"ssp2_receivers_tree", RECEIVERS, 5, HPC_SSP, 2, 0, TREE, 0},
    {"async_receivers", RECEIVERS, 4, HPC_ASYNC, 2, 0, THREADS, 0},
    {"async_receivers_tree", RECEIVERS, 5, HPC_ASYNC, 1, 0, TREE | ROUNDED, 0},
    {"ssp1_receivers_master", RECEIVERS, 4, HPC_SSP, 1, 0, DEDICATED | MASTER | THREADS, 0},
    {"split_ssp1_receivers", RECEIVERS, 4, HPC_SSP, 1, 0, SPLIT | THREADS, 0},
    {"split_async_receivers", RECEIVERS, 3, HPC_ASYNC, 2, 0, SPLIT, 0},
    {"split_ssp2_receivers_tree", RECEIVERS, 5, HPC_SSP, 2, 0, SPLIT | TREE | ROUNDED, 0},
    {"ssp2_receivers_hosts", RECEIVERS, 4, HPC_SSP, 2, 0, TWOS, 0},
    {"bsp_hosts", HOSTS, 4, HPC_BSP, 0, 0, 0, 0},
    {"bsp_hosts_ring", HOSTS, 6, HPC_BSP, 0, 0, AROUND | THREADS, 0},
    {"bsp_racks", HOSTS, 8, HPC_BSP, 0, 0, RACKS | MEAN, 0},
    {"split_hosts", HOSTS, 5, HPC_BSP, 0, 0, SPLIT, 0},
    {"async_hosts", HOSTS, 4, HPC_ASYNC, 0, 0, THREADS, 0},
    {"ssp1_hosts", HOSTS, 4, HPC_SSP, 1, 0, MEAN, 0},
    {"ssp3_hosts", HOSTS, 5, HPC_SSP, 3, 0, THREADS | ROUNDED | DEEP, 0},
    {"ssp2_racks", HOSTS, 8, HPC_SSP, 2, 0, RACKS | SLEEPY, 0},
    {"split_async_hosts", HOSTS, 5, HPC_ASYNC, 0, 0, SPLIT | DEEP, 0},
    {"split_ssp2_racks", HOSTS, 8, HPC_SSP, 2, 0, SPLIT | RACKS | THREADS, 0},
    {"quorum_hosts", HOSTS, 6, HPC_BSP, 0, 2, 0, 0},
    {"quorum_racks", HOSTS, 8, HPC_BSP, 0, 1, RACKS | THREADS | DEEP, 0},
    {"quorum_hosts_split", HOSTS, 6, HPC_BSP, 0, 2, SPLIT, 0},
    {"quorum_racks_split", HOSTS, 8, HPC_BSP, 0, 1, SPLIT | RACKS | THREADS | DEEP, 0},
    {"quorum1_hosts_split", HOSTS, 5, HPC_BSP, 0, 1, SPLIT | DEEP | SLEEPY, 0},
    {"bsp_graph", GRAPH, 4, HPC_BSP, 0, 0, 0, RING},
    {"ack_graph", GRAPH, 4, HPC_NOTIFY_ACK, 0, 0, 0, RING},
    {"ack_graph_models", GRAPH, 4, HPC_NOTIFY_ACK, 0, 0, MODELS | IN_PLACE | THREADS, ROOT},
    {"ack_graph_phases", GRAPH, 5, HPC_NOTIFY_ACK, 0, 0, DEEP | THREADS, ONE_PEER},
    {"split_graph", GRAPH, 4, HPC_NOTIFY_ACK, 0, 0, SPLIT | DEEP, RING},
    {"split_graph_bsp", GRAPH, 3, HPC_BSP, 0, 0, SPLIT | THREADS | DEEP, COMPLETE},
    {"split_phases", GRAPH, 5, HPC_NOTIFY_ACK, 0, 0, SPLIT | THREADS, ONE_PEER},
    {"split_phases_bsp", GRAPH, 4, HPC_BSP, 0, 0, SPLIT | DEEP, DEGREES},
    {"split_phases_models", GRAPH, 4, HPC_NOTIFY_ACK, 0, 0, SPLIT | DEEP | MODELS, MATCHING},
    {"ssp0_graph", GRAPH, 3, HPC_SSP, 0, 0, 0, COMPLETE},
    {"ssp1_graph", GRAPH, 4, HPC_SSP, 1, 0, THREADS, COMPLETE},
    {"ssp3_graph_models", GRAPH, 4, HPC_SSP, 3, 0, MODELS, COMPLETE},
    {"ssp2_graph_in_place", GRAPH, 4, HPC_SSP, 2, 0, MODELS | IN_PLACE, COMPLETE},
    {"ssp3_phases", GRAPH, 5, HPC_SSP, 3, 0, THREADS, ONE_PEER},
    {"ssp2_phases_models", GRAPH, 4, HPC_SSP, 2, 0, MODELS | DEEP, DEGREES},
    {"split_ssp1_graph", GRAPH, 4, HPC_SSP, 1, 0, SPLIT | THREADS, COMPLETE},
    {"split_ssp3_models", GRAPH, 3, HPC_SSP, 3, 0, SPLIT | MODELS, COMPLETE},
    {"split_ssp4_phases", GRAPH, 4, HPC_SSP, 4, 0, SPLIT | DEEP, DEGREES},
    {"split_async_graph", GRAPH, 4, HPC_ASYNC, 0, 0, SPLIT | MODELS, COMPLETE},
    {"split_barrier_phases", GRAPH, 3, HPC_BARRIER, 0, 0, SPLIT | MODELS | THREADS, DEGREES},
    {"async_graph", GRAPH, 4, HPC_ASYNC, 0, 0, MODELS, COMPLETE},
    {"async_graph_phases", GRAPH, 4, HPC_ASYNC, 0, 0, MODELS | THREADS | DEEP, DEGREES},
    {"async_graph_in_place", GRAPH, 4, HPC_ASYNC, 0, 0, MODELS | IN_PLACE, COMPLETE},
    {"barrier_graph", GRAPH, 4, HPC_BARRIER, 0, 0, MODELS | THREADS, COMPLETE},
    {"barrier_graph_phases", GRAPH, 3, HPC_BARRIER, 0, 0, MODELS, DEGREES},
    {"async_graph_large", GRAPH, 4, HPC_ASYNC, 0, 0, MODELS | LARGE, COMPLETE},
    {"barrier_graph_large", GRAPH, 3, HPC_BARRIER, 0, 0, MODELS | LARGE | THREADS, COMPLETE},
    {"quorum_graph", GRAPH, 3, HPC_NOTIFY_ACK, 0, 1, MODELS, COMPLETE},
    {"quorum_graph_gradients", GRAPH, 4, HPC_NOTIFY_ACK, 0, 2, THREADS | DEEP, COMPLETE},
    {"quorum_ssp2_graph", GRAPH, 4, HPC_SSP, 2, 2, THREADS, COMPLETE},
    {"quorum_phases", GRAPH, 5, HPC_NOTIFY_ACK, 0, 1, DEEP, ONE_PEER},
    {"quorum_split_graph", GRAPH, 4, HPC_NOTIFY_ACK, 0, 2, SPLIT | THREADS | DEEP, COMPLETE},
    {"quorum_split_phases", GRAPH, 5, HPC_NOTIFY_ACK, 0, 1, SPLIT, ONE_PEER},
    {"quorum_split_ssp1", GRAPH, 3, HPC_SSP, 1, 1, SPLIT | MODELS, COMPLETE},
    {"bsp_peers", PEERS, 3, HPC_BSP, 0, 0, 0, 0},
    {"bsp_peers_partial", PEERS, 5, HPC_BSP, 0, 0, PARTIAL | THREADS, 0},
    {"bsp_peers_leaders", PEERS, 5, HPC_BSP, 0, 0, LEADERS, 0},
    {"bsp_peers_tree", PEERS, 5, HPC_BSP, 0, 0, TREE | THREADS, 0},
    {"split_peers", PEERS, 3, HPC_BSP, 0, 0, SPLIT, 0},
    {"split_peers_tree", PEERS, 5, HPC_BSP, 0, 0, SPLIT | TREE, 0},
    {"split_peers_partial", PEERS, 5, HPC_BSP, 0, 0, SPLIT | PARTIAL | THREADS, 0},
    {"ssp1_peers", PEERS, 3, HPC_SSP, 1, 0, 0, 0},
    {"ssp3_peers", PEERS, 4, HPC_SSP, 3, 0, THREADS, 0},
    {"ssp2_peers_partial", PEERS, 5, HPC_SSP, 2, 0, PARTIAL | ROUNDED, 0},
    {"ssp2_peers_tree", PEERS, 5, HPC_SSP, 2, 0, TREE | SLEEPY, 0},
    {"async_peers", PEERS, 4, HPC_ASYNC, 3, 0, 0, 0},
    {"async_peers_partial", PEERS, 5, HPC_ASYNC, 1, 0, PARTIAL | THREADS | ROUNDED, 0},
    {"async_peers_tree", PEERS, 5, HPC_ASYNC, 2, 0, TREE, 0},
    {"quorum_peers", PEERS, 4, HPC_BSP, 0, 3, 0, 0},
    {"quorum1_peers", PEERS, 3, HPC_BSP, 0, 1, THREADS | ROUNDED, 0},
    {"quorum_peers_partial", PEERS, 5, HPC_BSP, 0, 2, PARTIAL | THREADS, 0},
    {"quorum_peers_tree", PEERS, 5, HPC_BSP, 0, 2, TREE | THREADS | DEEP, 0},
    {"quorum_split_peers", PEERS, 4, HPC_BSP, 0, 3, SPLIT | THREADS, 0},
    {"quorum_split_peers_tree", PEERS, 5, HPC_BSP, 0, 2, SPLIT | TREE, 0},
    {"quorum_split_peers_partial", PEERS, 5, HPC_BSP, 0, 2, SPLIT | PARTIAL | SLEEPY, 0},
    {"split_async_peers", PEERS, 3, HPC_ASYNC, 2, 0, SPLIT, 0},
    {"split_ssp1_peers", PEERS, 3, HPC_SSP, 1, 0, SPLIT | ROUNDED, 0},
    {"split_ssp2_peers_tree", PEERS, 5, HPC_SSP, 2, 0, SPLIT | TREE, 0},
    {"split_ssp2_peers_partial", PEERS, 5, HPC_SSP, 2, 0, SPLIT | PARTIAL | THREADS, 0},
};

int combinations_count(void) {
    return (int)(sizeof combinations / sizeof *combinations);
}

/* ---- facts ------------------------------------------------------------------------------------------------------ */

static bool has(const combination *c, unsigned what) {
    return (c->with & what) != 0;
}

bool has_phases(const combination *c) {
    return c->edges == GRAPH && c->shape >= ONE_PEER;
}

/* Where the graph changes a model counts once under SSP. */
bool leaves_out(const combination *c) {
    if (c->consistency == HPC_SSP && has(c, MODELS) && has_phases(c)) return true;
    return c->quorum > 0 || (c->edges == GRAPH && (c->consistency == HPC_ASYNC || c->consistency == HPC_BARRIER));
}

bool is_whole(const combination *c) {
    if (leaves_out(c) || c->consistency == HPC_ASYNC) return false;
    return c->consistency != HPC_SSP || (c->staleness == 0 && c->edges != GRAPH);
}

bool goes_on(const combination *c) {
    if (c->edges == GRAPH) return c->quorum > 0 || c->consistency == HPC_ASYNC;
    return !is_whole(c);
}

bool has_equal_parameters(const combination *c) {
    return c->edges != GRAPH && !has(c, PARTIAL);
}

bool settles_for_all(const combination *c) {
    return has_staleness(c) && c->edges != SERVERS;
}

bool has_own_at_once(const combination *c) {
    return c->quorum == 0 && (c->edges != RECEIVERS || is_whole(c));
}

bool keeps_mean(const combination *c) {
    return (c->with & SPLIT) != 0 && (is_whole(c) || (c->quorum > 0 && c->edges != PEERS) || c->edges == GRAPH);
}

int most_ahead(const combination *c) {
    return c->quorum > 0 || (c->consistency == HPC_ASYNC && c->staleness == 0) ? -1 : c->staleness;
}

bool tells_versions(const combination *c) {
    return has(c, MODELS) || (c->edges == GRAPH && leaves_out(c));
}

bool has_staleness(const combination *c) {
    return c->staleness > 0 && c->edges != GRAPH && c->edges != HOSTS;
}

int group_of(const combination *c, int who) {
    if (c->edges != HOSTS && !has(c, TWOS)) return who;
    return has(c, RACKS) ? who / 4 : who / 2;
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

static void plan_hub(trial *t) {
    const combination *c = t->c;
    job *j = t->j;
    hpc_hub hub;
    int parents[RANKS_MAX * RANKS_MAX];
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = j->keys, hub.n_keys = j->n_keys, hub.cores = j->cores, hub.chunk = j->chunk, hub.depth = j->depth;
    hub.workers = j->workers, hub.n_workers = j->n_workers, hub.servers = j->servers, hub.n_servers = j->n_servers;
    hub.sum = j->sum, hub.wire = j->wire, hub.codec_out = j->codec_out;
    hub.each = c->consistency == HPC_ASYNC;
    if (c->edges == RECEIVERS) hub.apply_at = has(c, MASTER) ? HPC_AT_BOTH : HPC_AT_RECEIVERS;
    if (has(c, TREE)) {
        job_trees(j, 2, parents);
        hub.parents = parents, hub.n_parents = hub.n_servers * hub.n_workers;
    }
    CHECK_OK(hpc_plan_make("hub", &hub, &t->plan));
}

static void plan_hosts(trial *t) {
    const combination *c = t->c;
    job *j = t->j;
    hpc_hosts hosts;
    int groups[2 * RANKS_MAX];
    for (int who = 0; who < c->size; who++) groups[who] = who / 2, groups[c->size + who] = who / 4;
    hpc_plan_args_init("hosts", &hosts, sizeof hosts);
    hosts.keys = j->keys, hosts.n_keys = j->n_keys, hosts.workers = j->workers, hosts.n_workers = j->n_workers;
    hosts.n_levels = has(c, RACKS) ? 2 : 1, hosts.groups = groups, hosts.top = has(c, AROUND) ? HPC_TOP_RING : 0;
    hosts.cores = j->cores, hosts.chunk = j->chunk, hosts.depth = j->depth, hosts.sum = j->sum, hosts.wire = j->wire;
    hosts.codec_out = j->codec_out, hosts.apart = !is_whole(c);
    if (c->edges == RECEIVERS) hosts.apply_at = HPC_AT_RECEIVERS;
    CHECK_OK(hpc_plan_make("hosts", &hosts, &t->plan));
}

static bool peer_sends(const combination *c, int from, int to) {
    return !has(c, PARTIAL) || (to - from + c->size) % c->size <= 2;
}

static void plan_peers(trial *t) {
    const combination *c = t->c;
    job *j = t->j;
    hpc_peer_to_peer peers;
    unsigned char sends[RANKS_MAX * RANKS_MAX];
    int parents[RANKS_MAX * RANKS_MAX], hosts[RANKS_MAX];
    const int n = c->size;
    for (int from = 0; from < n; from++) {
        hosts[from] = from / 2;
        for (int i = 0; i < n; i++) {
            parents[from * n + (from + i) % n] = (from + (i > 0 ? (i - 1) / 2 : 0)) % n;
            sends[from * n + i] = peer_sends(c, from, i);
        }
    }
    hpc_plan_args_init("peer_to_peer", &peers, sizeof peers);
    peers.keys = j->keys, peers.n_keys = j->n_keys, peers.workers = j->workers, peers.n_workers = n;
    peers.cores = j->cores, peers.chunk = j->chunk, peers.depth = j->depth, peers.sum = j->sum, peers.wire = j->wire;
    if (has(c, TREE))
        peers.parents = parents;
    else if (has(c, LEADERS))
        peers.hosts = hosts;
    else
        peers.sends = sends;
    CHECK_OK(hpc_plan_make("peer_to_peer", &peers, &t->plan));
}

/* Edges of weight 1, so that an update counts as itself. */
static void plan_graph(trial *t) {
    graph_job *g = &t->g;
    graph_job_shape(g, t->c->shape);
    for (int i = 0; i < g->graph.n_phases * t->c->size * t->c->size; i++)
        if (g->weights[i] != 0) g->weights[i] = 1;
    hpc_graph *graph = &g->graph;
    graph->keys = t->j->keys, graph->n_keys = t->j->n_keys, graph->cores = t->j->cores, graph->chunk = t->j->chunk;
    graph->depth = t->j->depth, graph->wire = t->j->wire, graph->weights = g->weights;
    CHECK_OK(hpc_plan_make("graph", graph, &t->plan));
}

static int depth_of(const combination *c) {
    const bool slots = c->edges != SERVERS && c->edges != HOSTS;
    int depth = has(c, DEEP) ? 2 : 1;
    if (slots && (c->consistency == HPC_SSP || c->staleness > 0)) depth = c->staleness + (has(c, DEEP) ? 3 : 2);
    if ((c->edges == RECEIVERS || c->edges == PEERS) && depth < 2) depth = 2;
    return has(c, IN_PLACE) ? depth + 1 : depth;
}

static void job_of(trial *t) {
    const combination *c = t->c;
    job *j = t->j;
    j->n_keys = 2;
    j->keys[0].count = 33, j->keys[1].count = 1001;
    if (has(c, LARGE)) j->keys[1].count = 40001, j->chunk = 32768;
    j->cores = 2, j->depth = depth_of(c), j->sum = !has(c, MEAN), j->args[1] = 1;
    j->rule = has(c, MODELS) ? "average" : "sgd";
    j->progress = has(c, THREADS) ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    j->split = has(c, SPLIT), j->in_place = has(c, IN_PLACE), j->quorum = c->quorum;
    if (has(c, ROUNDED)) j->wire = HPC_F16;
    if (has(c, ROUNDED) && c->edges != PEERS) j->codec_out = HPC_F16;
    if (has(c, DEDICATED)) {
        j->n_servers = 1, j->n_workers = c->size - 1;
        for (int i = 0; i < j->n_workers; i++) j->workers[i] = i + 1;
    }
}

/* ---- trials ----------------------------------------------------------------------------------------------------- */

enum { VARIANT = 256 };

int trial_variant(const rank *r) {
    return r->arg / VARIANT;
}

trial *trial_new(rank *r, void (*change)(trial *t)) {
    trial *t = calloc(1, sizeof *t);
    CHECK(t);
    t->c = &combinations[r->arg % VARIANT], t->r = r, t->j = &t->g.j;
    graph_job_init(&t->g, r);
    job_of(t);
    t->slow = r->size - 1;
    if (change != NULL) change(t);
    if (t->c->edges == GRAPH) plan_graph(t);
    if (t->c->edges == PEERS) plan_peers(t);
    const bool hosts = t->c->edges == HOSTS || has(t->c, TWOS);
    if (hosts) plan_hosts(t);
    if ((t->c->edges == SERVERS || t->c->edges == RECEIVERS) && !hosts) plan_hub(t);
    CHECK_OK(hpc_plan_check(t->plan, r->size));
    t->j->plan = t->plan;
    for (int key = 0; key < t->j->n_keys; key++) t->before[key] = calloc(t->j->keys[key].count, sizeof(float));
    return t;
}

void trial_in_time(trial *t) {
    t->j->grace = INFINITY;
}

int trial_create(trial *t, void (*change)(const rank *r, hpc_exchange_config *config), hpc_exchange **e) {
    job_config config;
    hpc_exchange_config c;
    job_settings(&c, t->j);
    c.consistency = t->c->consistency, c.staleness = t->c->staleness;
    if (t->c->edges == GRAPH) c.graph = &t->g.graph;
    job_config_init(&config, t->r, t->j, &c);
    if (change != NULL) change(t->r, &config.config);
    const int status = hpc_exchange_create(t->r->context, &config.config, -1, e);
    job_config_free(&config);
    return status;
}

trial *trial_open(rank *r, void (*change)(trial *t)) {
    trial *t = trial_new(r, change);
    CHECK_OK(trial_create(t, NULL, &t->e));
    return t;
}

void trial_free(trial *t) {
    for (int key = 0; key < t->j->n_keys; key++) free(t->before[key]);
    hpc_exchange_free(t->e);
    hpc_plan_free(t->plan);
    free(t);
}

void trial_close(trial *t) {
    CHECK_OK(hpc_exchange_close(t->e, -1));
    trial_free(t);
}

bool trial_works(const trial *t, int who) {
    return job_works(t->j, who);
}

bool trial_hears(const trial *t, int to, int from, int step) {
    if (t->c->edges == GRAPH) return graph_job_weight(&t->g, step, to, from) != 0;
    if (t->c->edges == PEERS) return peer_sends(t->c, from, to);
    return trial_works(t, from);
}

uint64_t trial_heard(const trial *t, int to, int from, int steps) {
    uint64_t n = 0;
    for (int step = 0; step < steps; step++) n += trial_hears(t, to, from, step);
    return n;
}

uint64_t trial_told(const trial *t, int from, uint64_t steps) {
    if (!tells_versions(t->c)) return trial_heard(t, t->r->rank, from, (int)steps);
    return steps > 0 && trial_hears(t, t->r->rank, from, (int)steps - 1) ? steps : 0;
}

/* ---- updates ---- */

static int counted_by(const trial *t, uint64_t i) {
    return t->j->workers[i % (uint64_t)t->j->n_workers];
}

static float update_of(const trial *t, int key) {
    if (t->idle) return 0;
    if (tells_versions(t->c)) return (float)(t->pushed[key] + 1);
    if (t->j->sum) return 1;
    return (float)(t->j->quorum > 0 ? t->j->quorum : t->j->n_workers); /* as many as are in a mean */
}

int trial_start(trial *t, int key, int flags, double timeout, uint64_t *ticket) {
    const uint64_t count = t->j->keys[key].count;
    float *params = hpc_exchange_params(t->e, key), *src = t->j->in_place ? params : malloc(count * sizeof *src);
    if (!t->j->in_place) memcpy(t->before[key], params, count * sizeof *src);
    for (uint64_t i = 0; i < count; i++) src[i] = counted_by(t, i) == t->r->rank ? update_of(t, key) : 0;
    const int status = hpc_exchange_start(t->e, key, flags, t->j->in_place ? NULL : src, timeout, ticket);
    if (!t->j->in_place) free(src);
    t->pushed[key] += status == HPC_OK;
    return status;
}

int trial_step(trial *t, double timeout) {
    uint64_t tickets[JOB_KEYS];
    int status = HPC_OK;
    for (int key = 0; key < t->j->n_keys && status == HPC_OK; key++)
        status = trial_start(t, key, HPC_PUSH | HPC_PULL, timeout, &tickets[key]);
    for (int key = t->j->n_keys; key-- > 0 && status == HPC_OK;)
        status = hpc_exchange_wait(t->e, key, tickets[key], timeout);
    return status;
}

/* ---- what parameters tell ---- */

bool trial_has(const trial *t, const hpc_row *row) {
    if (row->action != HPC_APPLY) return false;
    for (int i = 0; i < row->n_out; i++)
        if (row->out[i].rank == t->r->rank || row->out[i].row >= 0) return true;
    return row->n_out == 0 && row->owner == t->r->rank;
}

static uint64_t told_by(const trial *t, int key, uint64_t i, float param, float base, double scale) {
    if (!tells_versions(t->c)) return (uint64_t)(job_initial(t->j, key, i) - param);
    const double version = (double)(param - base) / scale;
    CHECK(fabs(version - round(version)) < 0.01);
    return (uint64_t)lround(version);
}

/* An average replaces the parameters; any other update is added to what was there. */
static float base_of(const trial *t, int key, uint64_t i) {
    return has(t->c, MODELS) ? 0 : t->before[key][i];
}

/* A fold that goes without some updates scales the others: this rank's own tells by how much. */
static double scale_of(const trial *t, const hpc_row *row, const float *values) {
    uint64_t own = 0;
    if (!tells_versions(t->c)) return 1;
    while (counted_by(t, row->offset + own) != t->r->rank) own++;
    return (double)(values[own] - base_of(t, row->key, row->offset + own)) / t->pushed[row->key];
}

/* The weights of the updates that are there add up to those of all. */
static void check_scale(const trial *t, int key, double scale, const uint64_t *seen) {
    int all = 0, present = 0;
    for (int who = 0; who < t->r->size; who++) {
        all += trial_hears(t, t->r->rank, who, t->pushed[key] - 1);
        present += seen[who] != 0 && seen[who] != UINT64_MAX;
    }
    CHECK(fabs(fabs(scale) * present - all) < 0.01);
}

/* values are those of the row's elements. */
static void look_at(trial *t, const hpc_row *row, const float *values, uint64_t *seen) {
    const double scale = scale_of(t, row, values);
    memset(seen, 255, RANKS_MAX * sizeof *seen);
    for (uint64_t k = 0; k < row->count; k++) {
        const uint64_t i = row->offset + k;
        const uint64_t told = told_by(t, row->key, i, values[k], base_of(t, row->key, i), scale);
        uint64_t *of = &seen[counted_by(t, i)];
        if (*of != UINT64_MAX && *of != told)
            fprintf(stderr, "rank %d, key %d, element %llu: %lld updates of rank %d, and others have %lld\n",
                    t->r->rank, row->key, (unsigned long long)i, (long long)told, counted_by(t, i), (long long)*of);
        CHECK(*of == UINT64_MAX || *of == told);
        *of = told;
    }
    if (tells_versions(t->c)) check_scale(t, row->key, scale, seen);
}

void trial_look_row(trial *t, int i, uint64_t *seen) {
    const hpc_row *row = &t->plan->rows[i];
    float *values = malloc(row->count * sizeof *values);
    CHECK_OK(hpc_exchange_get_row(t->e, i, NULL, values, NULL));
    look_at(t, row, values, seen);
    free(values);
}

void trial_look(trial *t, int key, uint64_t *least, uint64_t *most) {
    uint64_t seen[RANKS_MAX];
    memset(least, 255, RANKS_MAX * sizeof *least);
    memset(most, 0, RANKS_MAX * sizeof *most);
    for (int i = 0; i < t->plan->n_rows; i++) {
        const hpc_row *row = &t->plan->rows[i];
        if (row->key != key || !trial_has(t, row)) continue;
        look_at(t, row, hpc_exchange_params(t->e, key) + row->offset, seen);
        for (int who = 0; who < t->r->size; who++) {
            if (seen[who] == UINT64_MAX) continue;
            if (seen[who] < least[who]) least[who] = seen[who];
            if (seen[who] > most[who]) most[who] = seen[who];
        }
    }
}

static void check_seen(const trial *t, int key, const uint64_t *seen, const uint64_t *steps, const char *what) {
    for (int who = 0; who < t->r->size; who++) {
        if (!trial_works(t, who) || seen[who] == UINT64_MAX) continue;
        const uint64_t heard = trial_told(t, who, steps[who]);
        if (seen[who] == heard) continue;
        fprintf(stderr, "rank %d, key %d: %s have %lld of %llu updates of rank %d\n", t->r->rank, key, what,
                (long long)seen[who], (unsigned long long)heard, who);
        check_fail_red("updates are lost, or there twice");
    }
}

void trial_check(trial *t, const uint64_t *steps) {
    uint64_t least[RANKS_MAX], most[RANKS_MAX];
    for (int key = 0; key < t->j->n_keys && trial_works(t, t->r->rank); key++) {
        trial_look(t, key, least, most);
        check_seen(t, key, least, steps, "parameters");
        check_seen(t, key, most, steps, "parameters");
    }
}

void trial_check_rows(trial *t, const uint64_t *steps) {
    uint64_t seen[RANKS_MAX];
    for (int i = 0; i < t->plan->n_rows; i++) {
        const hpc_row *row = &t->plan->rows[i];
        if (row->owner != t->r->rank || row->action != HPC_APPLY) continue;
        trial_look_row(t, i, seen);
        check_seen(t, row->key, seen, steps, "rows");
    }
}

/* ---- steps of all ranks ---- */

void trial_serve(trial *t, int word, uint64_t at_least) {
    while (atomic_load(&t->r->board[word]) < at_least) {
        CHECK_OK(hpc_exchange_progress(t->e));
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
}

void trial_meet(trial *t) {
    static _Thread_local uint64_t turn;
    rank *r = t->r;
    const int base = MEETS + (int)(turn++ % 32) * RANKS_MAX;
    rank_set(r, base + r->rank, turn);
    for (int who = 0; who < r->size; who++) trial_serve(t, base + who, turn);
}

void trial_settle(trial *t) {
    CHECK_OK(hpc_exchange_settle(t->e, -1));
    CHECK_EQ(hpc_exchange_under_way(t->e), -1);
}

void trial_publish(trial *t) {
    trial_meet(t);
    CHECK_OK(hpc_barrier(t->r->context, -1)); /* a rank that publishes works for no rows before all have come */
    CHECK_OK(hpc_exchange_publish(t->e, -1));
}

void trial_dawdle(uint64_t *random) {
    if (ranks_random(random) % 4) return;
    nanosleep(&(struct timespec){0, (long)(ranks_random(random) % 2000) * 1000}, NULL);
}

uint64_t trial_hash(const trial *t, int key) {
    const unsigned char *at = (const unsigned char *)hpc_exchange_params(t->e, key);
    uint64_t hash = 1469598103934665603u;
    for (uint64_t i = 0; i < t->j->keys[key].count * sizeof(float); i++) hash = (hash ^ at[i]) * 1099511628211u;
    return hash | 1;
}

/* ---- fold and apply in two calls ------------------------------------------------------------------------------------
 */

void trial_wait(trial *t, int key, uint64_t ticket) {
    CHECK_OK(hpc_exchange_wait(t->e, key, ticket, -1));
}

void trial_apply(trial *t, int key, double scale) {
    uint64_t ticket;
    CHECK_OK(hpc_exchange_apply(t->e, key, scale, -1, &ticket));
    trial_wait(t, key, ticket);
}

void trial_skip(trial *t, int key) {
    uint64_t ticket;
    CHECK_OK(hpc_exchange_skip(t->e, key, -1, &ticket));
    trial_wait(t, key, ticket);
}

void trial_check_squares(trial *t, int key, double expected) {
    double found = -1;
    uint64_t ticket;
    CHECK_OK(hpc_exchange_squares(t->e, key, -1, &ticket));
    trial_wait(t, key, ticket);
    CHECK_OK(hpc_exchange_get_squares(t->e, key, &found));
    CHECK_EQ(found, expected);
}

void trial_check_gathered(trial *t, int key, const double *sum) {
    const uint64_t count = t->j->keys[key].count;
    float *mean = malloc(count * sizeof *mean);
    uint64_t ticket;
    for (uint64_t i = 0; i < count; i++) mean[i] = (float)sum[i];
    CHECK_OK(hpc_exchange_gather(t->e, key, -1, &ticket));
    trial_wait(t, key, ticket);
    CHECK(same_floats(hpc_exchange_gathered(t->e, key), mean, count, "gathered", t->r->rank, key));
    free(mean);
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

/* Between hosts BARRIER and ASYNC need the order of puts, which the seeded loop does not keep. */
static unsigned where_of(const combination *c) {
    const bool ordered = c->edges == GRAPH && (c->consistency == HPC_ASYNC || c->consistency == HPC_BARRIER);
    return ordered ? RANKS_UNSEEDED : RANKS_ANY;
}

static const char *name_of(const property *p, const combination *c) {
    char *name = malloc(strlen(p->name) + strlen(c->name) + 2);
    CHECK(name);
    sprintf(name, "%s/%s", p->name, c->name);
    return name;
}

int disciplines_main(int argc, char **argv, const property *properties) {
    static ranks_case cases[1024];
    int n = 0;
    for (const property *p = properties; p->name != NULL; p++)
        for (int i = 0; i < combinations_count(); i++) {
            const combination *c = &combinations[i];
            if (p->applies != NULL && !p->applies(c)) continue;
            CHECK(n < 1023);
            cases[n] = p->how;
            cases[n].name = name_of(p, c), cases[n].size = c->size, cases[n].run = p->run;
            cases[n].arg = i + VARIANT * p->variant, cases[n].where |= where_of(c), cases[n].sleepy = has(c, SLEEPY);
            cases[n].many = true;
            if (p->how.victims != 0) cases[n].victims = 1u << (c->size - 1);
            n++;
        }
    return ranks_main(argc, argv, cases);
}
