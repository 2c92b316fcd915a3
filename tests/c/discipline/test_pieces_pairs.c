/* Codecs of pieces with every discipline and topology: a pair works, or all ranks refuse it with one sentence. What
 * works loses nothing: the parameters have changed by all that was computed, less what encoders hold back.
 *
 * Each case is one discipline and one topology on one transport; codecs change from case to case, so that each pair of
 * two of the four is met. HPC_TEST_MODES=all is for every codec in every case. */
#include <math.h>
#include <stdlib.h>

#include "codec/codec.h"
#include "exchange_plans.h"

enum { STEPS = 3, KEYS = 3, UNIT = 48 };

/* ---- codecs ------------------------------------------------------------------------------------------------------ */

/* Half a float32, the upper one. */
static int64_t cut_encode(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap) {
    (void)state, (void)args;
    if (cap < 2 * n) return -1;
    for (int64_t i = 0; i < n; i++) memcpy((char *)out + 2 * i, (const char *)&x[i] + 2, 2);
    return 2 * n;
}

static int cut_decode_add(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    (void)args;
    if (nbytes != 2 * n) return -1;
    for (int64_t i = 0; i < n; i++) {
        float x = 0;
        memcpy((char *)&x + 2, (const char *)in + 2 * i, 2);
        acc[i] += (float)weight * x;
    }
    return 0;
}

enum { THRESHOLD, THRESHOLD_HALF, TOPK, ONEBIT, OWN, FLOAT4, CODECS };

static int configure(int codec, hpc_codec_config *c) {
    hpc_codec_config_init(c);
    c->delta = 5, c->fraction = 0.1, c->unit = UNIT;
    if (codec == THRESHOLD_HALF) c->values = HPC_BF16, c->compress = HPC_COMPRESS_ZLIB, c->decays = 1;
    c->name = "cut", c->encode = cut_encode, c->decode_add = cut_decode_add;
    static const int numbers[CODECS] = {HPC_THRESHOLD, HPC_THRESHOLD, HPC_TOPK, HPC_ONEBIT, HPC_OWN_CODEC, HPC_FLOAT4};
    return numbers[codec];
}

/* ---- what is exchanged how -----------------------------------------------------------------------------------------
 */

enum { HUB, RECEIVERS, BOTH, HOSTS, RACKS, RING, HOSTS_RECEIVERS, TREE, GRAPH, PEERS, TOPOLOGIES };
enum { BSP, DEEP, SPLIT, QUORUM, ASYNC, SSP, NOTIFY, BARRIER, DISCIPLINES };
#define CASE(topology, discipline) ((topology)*DISCIPLINES + (discipline))

/* One that a user would expect to work must not be refused. */
static bool has_to_work(int topology, int discipline) {
    if (topology == TREE) return false; /* models */
    if (topology == PEERS) return discipline == BSP || discipline == DEEP || discipline == SSP;
    if (topology == GRAPH) return discipline == BSP || discipline == DEEP || discipline == NOTIFY || discipline == SSP;
    if (discipline == BSP || discipline == DEEP) return true;
    if (discipline == ASYNC || discipline == SSP)
        return topology == HUB || topology == HOSTS || topology == RACKS ||
               (discipline == SSP && (topology == RECEIVERS || topology == BOTH));
    return topology == HUB && (discipline == SPLIT || discipline == QUORUM);
}

typedef struct pair {
    int topology, discipline, codec, wire;
    hpc_key keys[KEYS];
    hpc_codec_config config;
    const hpc_codec_config *configs[KEYS];
    hpc_graph graph;
    hpc_plan *plan;
} pair;

static int make_graph(pair *p, const rank *r) {
    static _Thread_local double weights[RANKS_MAX * RANKS_MAX];
    for (int i = 0; i < r->size * r->size; i++) weights[i] = 1;
    hpc_plan_args_init("graph", &p->graph, sizeof p->graph);
    p->graph.keys = p->keys, p->graph.n_keys = KEYS, p->graph.ranks = r->size, p->graph.n_phases = 1;
    p->graph.weights = weights, p->graph.cores = 2, p->graph.chunk = 1024, p->graph.wire = p->wire;
    p->graph.depth = p->discipline == SSP ? 4 : p->discipline == DEEP ? 2 : 1;
    return hpc_plan_make("graph", &p->graph, &p->plan);
}

static int make_tree(pair *p, const rank *r) {
    int parents[RANKS_MAX] = {-1};
    hpc_tree tree;
    hpc_plan_args_init("tree", &tree, sizeof tree);
    for (int i = 1; i < r->size; i++) parents[i] = (i - 1) / 2;
    tree.keys = p->keys, tree.n_keys = KEYS, tree.parents = parents, tree.ranks = r->size, tree.cores = 2;
    tree.chunk = 1024, tree.wire = p->wire;
    return hpc_plan_make("tree", &tree, &p->plan);
}

static int make_peers(pair *p, const rank *r, const int *workers) {
    hpc_peer_to_peer peers;
    hpc_plan_args_init("peer_to_peer", &peers, sizeof peers);
    peers.keys = p->keys, peers.n_keys = KEYS, peers.workers = workers, peers.n_workers = r->size;
    peers.cores = 2, peers.chunk = 1024, peers.sum = 1, peers.wire = p->wire;
    peers.depth = p->discipline == SSP ? 4 : p->discipline == DEEP ? 3 : 2;
    return hpc_plan_make("peer_to_peer", &peers, &p->plan);
}

static int make_hosts(pair *p, const rank *r, const int *workers) {
    int groups[2 * RANKS_MAX];
    hpc_hosts hosts;
    hpc_plan_args_init("hosts", &hosts, sizeof hosts);
    for (int i = 0; i < r->size; i++) groups[i] = i / 2, groups[r->size + i] = i / 4;
    hosts.keys = p->keys, hosts.n_keys = KEYS, hosts.workers = workers, hosts.n_workers = r->size;
    hosts.groups = groups, hosts.n_levels = p->topology == RACKS ? 2 : 1, hosts.cores = 2, hosts.chunk = 1024;
    hosts.sum = 1, hosts.top = p->topology == RING ? HPC_TOP_RING : HPC_TOP_SHARDED, hosts.wire = p->wire;
    hosts.each = p->discipline == ASYNC, hosts.depth = p->discipline == DEEP ? 2 : 1;
    hosts.apart = p->discipline == ASYNC || p->discipline == SSP || p->discipline == QUORUM;
    hosts.apply_at = p->topology == HOSTS_RECEIVERS ? HPC_AT_RECEIVERS : HPC_AT_OWNERS;
    return hpc_plan_make("hosts", &hosts, &p->plan);
}

static int make_hub(pair *p, const rank *r, const int *workers) {
    hpc_hub hub;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = p->keys, hub.n_keys = KEYS, hub.workers = hub.servers = workers, hub.n_workers = hub.n_servers = r->size;
    hub.cores = 2, hub.chunk = 1024, hub.sum = 1, hub.wire = p->wire, hub.each = p->discipline == ASYNC;
    hub.depth = p->discipline == SSP ? 4 : p->discipline == DEEP ? 2 : 1;
    hub.apply_at = p->topology == RECEIVERS ? HPC_AT_RECEIVERS : p->topology == BOTH ? HPC_AT_BOTH : HPC_AT_OWNERS;
    return hpc_plan_make("hub", &hub, &p->plan);
}

static int create(pair *p, const rank *r, hpc_exchange **e) {
    static const float zeros[8192];
    static const uint64_t counts[KEYS] = {UNIT * 20 + 7, 1, UNIT * 64};
    const float *values[KEYS];
    int workers[RANKS_MAX];
    hpc_exchange_config c;
    hpc_rule rule;
    p->wire = configure(p->codec, &p->config);
    for (int i = 0; i < RANKS_MAX; i++) workers[i] = i;
    for (int k = 0; k < KEYS; k++) {
        p->keys[k] = (hpc_key){.name = job_key_name(k), .count = counts[k], .unit = UNIT};
        p->configs[k] = &p->config;
        values[k] = zeros;
    }
    hpc_exchange_config_init(&c);
    CHECK_OK(hpc_rule_find(p->topology == TREE ? "average" : "sgd", HPC_ISA_BEST, &rule));
    rule.args[1] = 1;
    int status = p->topology == GRAPH   ? make_graph(p, r)
                 : p->topology == TREE  ? make_tree(p, r)
                 : p->topology == PEERS ? make_peers(p, r, workers)
                 : p->topology <= BOTH  ? make_hub(p, r, workers)
                                        : make_hosts(p, r, workers);
    if (status != HPC_OK) return status; /* the same on all ranks */
    static const int consistencies[DISCIPLINES] = {
        [ASYNC] = HPC_ASYNC, [SSP] = HPC_SSP, [NOTIFY] = HPC_NOTIFY_ACK, [BARRIER] = HPC_BARRIER};
    c.plan = p->plan, c.rule = &rule, c.values = values, c.codecs = p->configs;
    c.consistency = consistencies[p->discipline];
    c.progress = p->codec % 2 ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    c.staleness = p->discipline == SSP ? 2 : 0, c.split = p->discipline == SPLIT;
    c.quorum = p->discipline == QUORUM ? 2 : 0, c.grace = 60; /* nobody is late */
    c.graph = p->topology == GRAPH ? &p->graph : NULL;
    return hpc_exchange_create(r->context, &c, -1, e);
}

/* ---- what becomes of it --------------------------------------------------------------------------------------------
 */

/* Sums that tell elements apart, of whole numbers mostly. */
static double weigh(int key, uint64_t i) {
    return (double)(((uint64_t)key * 7 + i) % 13 + 1);
}

static double weigh_all(int key, uint64_t offset, uint64_t count, const float *values) {
    double sum = 0;
    for (uint64_t i = 0; i < count; i++) sum += weigh(key, offset + i) * (double)values[i];
    return sum;
}

/* Trains, and returns the sum of the updates that this rank has computed. */
static double train(const pair *p, const rank *r, hpc_exchange *e) {
    static _Thread_local float gradient[8192];
    uint64_t state = 77 + (uint64_t)r->rank, tickets[KEYS];
    double computed = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0; k < KEYS; k++) {
            for (uint64_t i = 0; i < p->keys[k].count; i++)
                gradient[i] = (float)((int)(ranks_random(&state) % 31) - 15);
            computed += weigh_all(k, 0, p->keys[k].count, gradient);
            CHECK_OK(hpc_exchange_start(e, k, HPC_PUSH | HPC_PULL, gradient, -1, &tickets[k]));
        }
        for (int k = 0; k < KEYS; k++) CHECK_OK(hpc_exchange_wait(e, k, tickets[k], -1));
    }
    return computed;
}

static double held_back(const pair *p, hpc_exchange *e, int key, int row) {
    static _Thread_local float values[8192 * 2];
    int64_t n = hpc_exchange_encoder_values(e, key, row);
    CHECK(n >= 0 && n <= 8192 * 2);
    if (n == 0) return 0;
    CHECK_OK(hpc_exchange_get_encoder(e, key, row, NULL, values));
    uint64_t offset = row < 0 ? 0 : p->plan->rows[row].offset;
    double sum = weigh_all(key, offset, row < 0 ? p->keys[key].count : p->plan->rows[row].count, values);
    CHECK(isfinite(sum));
    return sum;
}

/* How far the parameters of this rank's rows have moved, each element counted once in all ranks, or on a graph in each.
 */
static double moved(const pair *p, const rank *r, hpc_exchange *e) {
    static _Thread_local float params[8192];
    double sum = 0;
    for (int i = 0; i < p->plan->n_rows; i++) {
        const hpc_row *row = &p->plan->rows[i];
        bool first = row->action == HPC_APPLY;
        for (int j = i; j-- > 0 && first && p->topology != GRAPH && p->plan->rows[j].key == row->key;)
            first = p->plan->rows[j].action != HPC_APPLY || p->plan->rows[j].offset != row->offset;
        if (row->owner != r->rank || !first) continue;
        CHECK_OK(hpc_exchange_get_row(e, i, NULL, params, NULL));
        sum -= weigh_all(row->key, row->offset, row->count, params);
    }
    return sum;
}

/* The sum over all ranks. */
static double total(rank *r, double value) {
    double all = 0;
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    rank_meet(r);
    rank_set(r, 1 + r->rank, (uint64_t)bits);
    rank_meet(r);
    for (int i = 0; i < r->size; i++) {
        uint64_t word = atomic_load(&r->board[1 + i]);
        memcpy(&value, &word, sizeof value);
        all += value;
    }
    return all;
}

static void check_conserved(const pair *p, rank *r, hpc_exchange *e, double computed) {
    for (int k = 0; k < KEYS; k++) computed -= held_back(p, e, k, -1);
    for (int i = 0; i < p->plan->n_rows; i++)
        if (p->plan->rows[i].owner == r->rank) computed -= held_back(p, e, p->plan->rows[i].key, i);
    double sent = total(r, computed), change = moved(p, r, e);
    if (p->topology != GRAPH) change = total(r, change);
    if (p->topology == GRAPH && p->discipline == SSP) return; /* some updates are not folded yet */
    const double slack = p->codec == ONEBIT || p->codec == FLOAT4 ? 0.05 : 1e-6;
    if (fabs(sent - change) <= slack) return;
    fprintf(stderr, "rank %d, codec %d: %.9g was sent, and %.9g applied\n", r->rank, p->codec, sent, change);
    check_fail("something is lost");
}

static void try_pair(rank *r, int codec) {
    pair p = {.topology = r->arg / DISCIPLINES, .discipline = r->arg % DISCIPLINES, .codec = codec};
    hpc_exchange *e = NULL;
    int status = create(&p, r, &e);
    CHECK((status == HPC_OK) == (e != NULL));
    if (status != HPC_OK) {
        const char *why = hpc_last_error()->message;
        CHECK(strlen(why) > 30 && (strstr(why, "exchange: ") != NULL || strncmp(why, "plan: ", 6) == 0));
        if (has_to_work(p.topology, p.discipline)) fprintf(stderr, "refused: %s\n", why);
        CHECK(!has_to_work(p.topology, p.discipline));
    } else {
        double computed = train(&p, r, e);
        CHECK_OK(hpc_exchange_settle(e, -1));
        CHECK_OK(hpc_barrier(r->context, -1));
        check_conserved(&p, r, e, computed);
        CHECK_OK(hpc_exchange_close(e, -1));
        hpc_exchange_free(e);
    }
    hpc_plan_free(p.plan);
}

static void tries(rank *r) {
    const char *modes = getenv("HPC_TEST_MODES");
    const bool all = modes != NULL && strcmp(modes, "all") == 0;
    uint64_t turn = (uint64_t)r->arg;
    for (const char *at = r->mode->name; *at != 0; at++) turn = turn * 31 + (unsigned char)*at;
    for (int codec = 0; codec < CODECS; codec++)
        if (all || codec == (int)(turn % CODECS)) try_pair(r, codec);
}

int main(int argc, char **argv) {
    static const char *const topologies[TOPOLOGIES] = {"hub",  "receivers",       "both", "hosts", "racks",
                                                       "ring", "hosts_receivers", "tree", "graph", "peers"};
    static const char *const disciplines[DISCIPLINES] = {"bsp",   "deep", "split",  "quorum",
                                                         "async", "ssp",  "notify", "barrier"};
    static char names[TOPOLOGIES * DISCIPLINES][32];
    static ranks_case cases[TOPOLOGIES * DISCIPLINES + 1];
    for (int i = 0; i < TOPOLOGIES * DISCIPLINES; i++) {
        snprintf(names[i], sizeof names[i], "%s_%s", topologies[i / DISCIPLINES], disciplines[i % DISCIPLINES]);
        cases[i] = (ranks_case){.name = names[i], .size = 4 + i % 3, .run = tries, .arg = i};
    }
    return ranks_main(argc, argv, cases);
}
