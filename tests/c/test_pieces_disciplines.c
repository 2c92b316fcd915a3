/* Updates that go as pieces, under every discipline that takes them. Nothing is lost: what all workers have computed is
 * what owners have applied and what encoders hold back, element by element. Numbers are small and whole, so that this
 * holds exactly. And an exchange that is made again from what it knew goes on with the same bits. */
#include <math.h>

#include "codec/compress.h"
#include "graph_jobs.h"

enum { BOTH = HPC_PUSH | HPC_PULL, MOST_VALUES = 10 * 5200 };
static const double RATE = 0.5;

/* ---- codecs ------------------------------------------------------------------------------------------------------
 */

typedef enum codec_kind {
    DENSE,
    LARGE,  /* threshold: what is larger than 5 */
    ALL,    /* threshold: all but 0 */
    DECAYS, /* threshold: less and less stays */
    PAPER,  /* threshold, in the paper's forms */
    LOSSY,  /* threshold: what is left out is lost */
    HALF,   /* threshold, float16: what rounding takes stays */
    BRAIN,  /* threshold, bfloat16 */
    TOP,    /* topk */
    BITS,   /* onebit; its means are not whole */
    OWN,    /* see below */
    LZ4,
    SNAPPY,
    ZSTD,
    ZLIB,
    CODEC_KINDS
} codec_kind;

static int wire_of(codec_kind kind) {
    return kind == DENSE  ? HPC_F32
           : kind == TOP  ? HPC_TOPK
           : kind == BITS ? HPC_ONEBIT
           : kind == OWN  ? HPC_OWN_CODEC
                          : HPC_THRESHOLD;
}

/* A codec of one's own: a byte an element, by turns of one or two units. It remembers whose turn it is. */
static int64_t own_encode(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap) {
    int8_t *to = out;
    CHECK(cap >= n && args[0] >= 1 && args[1] == 4);
    for (int64_t i = 0; i < n; i++) {
        const double unit = args[1] * (1 + (double)state[i]);
        CHECK(state[i] == 0 || state[i] == 1);
        to[i] = (int8_t)(fmin(fmax(rint((double)x[i] / unit), -60), 60) * (1 + (double)state[i]));
        state[i] = 1 - state[i];
    }
    return n;
}

static int own_decode_add(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    const int8_t *from = in;
    if (nbytes != n) return 1;
    for (int64_t i = 0; i < n; i++)
        if (from[i] == -128) return 2;
    for (int64_t i = 0; i < n; i++) acc[i] += (float)(weight * args[1] * from[i]);
    return 0;
}

/* Those of a case; ranks may be threads. */
typedef struct codecs {
    hpc_codec_config configs[JOB_KEYS];
    const hpc_codec_config *list[JOB_KEYS];
    int wires[JOB_KEYS];
    codec_kind kinds[JOB_KEYS];
} codecs;

static void set_codec(codecs *c, job *j, int key, codec_kind kind) {
    static const int compressions[] = {HPC_COMPRESS_LZ4, HPC_COMPRESS_SNAPPY, HPC_COMPRESS_ZSTD, HPC_COMPRESS_ZLIB};
    hpc_codec_config *config = &c->configs[key];
    char missing[256];
    hpc_codec_config_init(config);
    c->kinds[key] = kind;
    c->wires[key] = wire_of(kind);
    c->list[key] = kind == DENSE ? NULL : config;
    config->delta = kind == ALL ? 0 : kind == DECAYS ? 12 : 5;
    config->decays = kind == DECAYS, config->paper = kind == PAPER, config->no_feedback = kind == LOSSY;
    config->values = kind == HALF ? HPC_F16 : kind == BRAIN ? HPC_BF16 : HPC_F32;
    if (kind == TOP) config->fraction = 0.05;
    if (kind == BITS) config->unit = 16, j->keys[key].unit = 16;
    if (kind >= LZ4) config->compress = compressions[kind - LZ4];
    if (kind == OWN) {
        config->name = "bytes", config->encode = own_encode, config->decode_add = own_decode_add;
        config->state_slots = 1, config->args[1] = 4;
    }
    if (hpc_compress_check(config->compress, missing, sizeof missing) != 0) ranks_skip(missing);
}

/* ---- cases -------------------------------------------------------------------------------------------------------
 */

typedef enum made_of { HUB, SERVER, HOSTS, RACKS, GRAPH, BY_HAND, RECEIVERS } made_of;

typedef struct setup {
    const char *name;
    int size, plan, shape, consistency, staleness, quorum, depth, progress, eager, per_host;
    double grace, scale; /* of gradients; 0: 1 */
    codec_kind kinds[3];
    int unwaited; /* the last push is left to close */
    int split, finite;
    const char *rule;
} setup;

static const setup setups[] = {
    {"bsp", 3, HUB, .kinds = {LARGE, ALL, DECAYS}},
    {"bsp_forms", 3, HUB, .kinds = {PAPER, LOSSY, OWN}, .progress = HPC_PROGRESS_THREAD},
    {"bsp_rounded", 3, HUB, .kinds = {HALF, BRAIN, TOP}, .scale = 237},
    {"bsp_bits", 3, HUB, .kinds = {BITS, DENSE, BITS}, .depth = 2},
    {"eager", 4, HUB, .kinds = {LARGE, TOP, OWN}, .eager = 1, .progress = HPC_PROGRESS_THREAD},
    {"lz4", 3, HUB, .kinds = {LZ4, LZ4, LARGE}, .consistency = HPC_ASYNC},
    {"snappy", 3, HUB, .kinds = {SNAPPY, LARGE, SNAPPY}, .eager = 1},
    {"zstd", 3, SERVER, .kinds = {ZSTD, ZSTD, DENSE}, .quorum = 1},
    {"zlib", 4, HUB, .kinds = {ZLIB, ZLIB, ZLIB}, .quorum = 2},
    {"async", 3, HUB, .consistency = HPC_ASYNC, .kinds = {LARGE, TOP, OWN}},
    {"async_deep", 4, SERVER, .consistency = HPC_ASYNC, .depth = 3, .kinds = {LARGE, HALF, DENSE}, .scale = 37},
    {"async_threads", 8, HUB, .consistency = HPC_ASYNC, .depth = 2, .kinds = {BITS, LARGE, TOP},
     .progress = HPC_PROGRESS_THREAD},
    {"ssp", 3, HUB, .consistency = HPC_SSP, .staleness = 2, .depth = 3, .kinds = {LARGE, OWN, TOP}},
    {"ssp_1", 4, SERVER, .consistency = HPC_SSP, .staleness = 1, .depth = 2, .kinds = {BRAIN, LOSSY, DENSE},
     .progress = HPC_PROGRESS_THREAD},
    {"quorum_1", 3, HUB, .quorum = 1, .kinds = {LARGE, TOP, OWN}},
    {"quorum_2", 4, HUB, .quorum = 2, .kinds = {LARGE, HALF, DENSE}, .depth = 3, .scale = 37},
    {"quorum_3", 4, SERVER, .quorum = 2, .kinds = {BITS, ALL, DECAYS}, .progress = HPC_PROGRESS_THREAD},
    {"quorum_unwaited", 4, HUB, .quorum = 2, .kinds = {LARGE, TOP, OWN}, .unwaited = 1},
    {"quorum_8", 8, HUB, .quorum = 3, .grace = 1e-4, .kinds = {LARGE, OWN, PAPER}, .progress = HPC_PROGRESS_THREAD},
    {"hosts", 4, HOSTS, .per_host = 2, .kinds = {LARGE, TOP, OWN}},
    {"hosts_async", 5, HOSTS, .per_host = 2, .consistency = HPC_ASYNC, .kinds = {LARGE, OWN, DENSE}},
    {"hosts_ssp", 6, HOSTS, .per_host = 2, .consistency = HPC_SSP, .staleness = 1, .kinds = {HALF, LARGE, TOP},
     .progress = HPC_PROGRESS_THREAD, .scale = 37},
    {"racks_async", 8, RACKS, .per_host = 2, .consistency = HPC_ASYNC, .kinds = {LARGE, LARGE, BRAIN}},
    {"racks_ssp", 8, RACKS, .per_host = 2, .consistency = HPC_SSP, .staleness = 2, .kinds = {LARGE, OWN, ZLIB}},
    {"hosts_quorum", 6, HOSTS, .per_host = 2, .quorum = 2, .kinds = {LARGE, OWN, HALF}, .scale = 37},
    {"hosts_quorum_1", 5, HOSTS, .per_host = 2, .quorum = 1, .kinds = {ALL, ZLIB, TOP},
     .progress = HPC_PROGRESS_THREAD},
    {"hosts_quorum_unwaited", 6, HOSTS, .per_host = 2, .quorum = 1, .depth = 2, .kinds = {LARGE, TOP, OWN},
     .unwaited = 1},
    {"by_hand_quorum", 3, BY_HAND, .quorum = 1, .kinds = {LARGE, OWN, TOP}, .progress = HPC_PROGRESS_THREAD},
    {"racks_quorum", 8, RACKS, .per_host = 2, .quorum = 1, .kinds = {LARGE, OWN, BRAIN}, .scale = 37},
    {"graph_bsp", 4, GRAPH, .shape = ROOT, .kinds = {LARGE, DENSE, OWN}},
    {"graph_notify", 4, GRAPH, .shape = UNEQUAL, .consistency = HPC_NOTIFY_ACK, .depth = 2, .kinds = {LARGE, TOP, HALF},
     .scale = 37},
    {"graph_chain", 5, GRAPH, .shape = CHAIN, .consistency = HPC_NOTIFY_ACK, .kinds = {OWN, LARGE, ZLIB},
     .progress = HPC_PROGRESS_THREAD},
    {"graph_ssp", 4, GRAPH, .shape = ROOT, .consistency = HPC_SSP, .staleness = 2, .depth = 4,
     .kinds = {LARGE, PAPER, BRAIN}},
    {"graph_ssp_8", 8, GRAPH, .shape = COMPLETE, .consistency = HPC_SSP, .staleness = 1, .depth = 3,
     .kinds = {LARGE, LARGE, DENSE}, .progress = HPC_PROGRESS_THREAD},
};

enum { SETUPS = sizeof setups / sizeof *setups };

typedef struct play {
    const setup *s;
    job j;
    codecs c;
    graph_job g;
    hpc_plan *plan;
    hpc_exchange_config config;
    hpc_exchange *e;
    hpc_plan by_hand;
    hpc_row rows[2 * JOB_KEYS];
    hpc_edge edges[3 + 3 * JOB_KEYS];
    size_t first[JOB_KEYS], all; /* of all keys' elements */
} play;

/* Ranks 0 and 1 are a group, whose fold rank 0 encodes again; rank 2 pushes straight to the row that applies. */
static void make_by_hand(play *p) {
    hpc_edge *e = p->edges;
    for (int who = 0; who < 3; who++) e[who] = (hpc_edge){who, -1, 1};
    for (int key = 0; key < p->j.n_keys; key++) {
        hpc_edge *up = &e[3 + 3 * key];
        const int wire = p->c.wires[key];
        const uint64_t count = p->j.keys[key].count;
        up[0] = (hpc_edge){2, 2 * key + 1, 1};
        up[1] = (hpc_edge){0, 2 * key, 1};
        up[2] = e[2];
        p->rows[2 * key] = (hpc_row){.key = key,
                                     .owner = 0,
                                     .action = HPC_FORWARD,
                                     .count = count,
                                     .depth = 1,
                                     .codec_in = wire,
                                     .codec_out = wire,
                                     .in = e,
                                     .n_in = 2,
                                     .quorum = 2,
                                     .out = up,
                                     .n_out = 1};
        p->rows[2 * key + 1] = (hpc_row){.key = key,
                                         .owner = 2,
                                         .action = HPC_APPLY,
                                         .count = count,
                                         .depth = 1,
                                         .codec_in = wire,
                                         .codec_out = HPC_F32,
                                         .in = up + 1,
                                         .n_in = 2,
                                         .quorum = 2,
                                         .out = e,
                                         .n_out = 3};
    }
    p->by_hand = (hpc_plan){.n_keys = p->j.n_keys, .keys = p->j.keys, .n_rows = 2 * p->j.n_keys, .rows = p->rows};
    p->plan = &p->by_hand;
    CHECK_OK(hpc_plan_check(p->plan, 3));
}

static void make_plan(play *p, const rank *r) {
    job *j = &p->j;
    int groups[2 * RANKS_MAX];
    hpc_hub hub;
    hpc_hosts hosts;
    if (p->s->plan == GRAPH) {
        graph_job_init(&p->g, r);
        graph_job_shape(&p->g, (shape)p->s->shape);
        hpc_graph *g = &p->g.graph;
        g->keys = j->keys, g->n_keys = j->n_keys, g->cores = 2, g->chunk = 1024, g->depth = j->depth;
        g->weights = p->g.weights, g->wires = p->c.wires, g->n_wires = j->n_keys;
        CHECK_OK(hpc_plan_graph(g, &p->plan));
        p->config.graph = g;
    } else if (p->s->plan == HOSTS || p->s->plan == RACKS) {
        for (int who = 0; who < r->size; who++)
            groups[who] = who / p->s->per_host, groups[r->size + who] = who / p->s->per_host / 2;
        hpc_hosts_init(&hosts);
        hosts.keys = j->keys, hosts.n_keys = j->n_keys, hosts.workers = j->workers, hosts.n_workers = j->n_workers;
        hosts.groups = groups, hosts.n_levels = p->s->plan == RACKS ? 2 : 1, hosts.cores = 2, hosts.chunk = 1024;
        hosts.depth = j->depth, hosts.sum = 1, hosts.wires = p->c.wires, hosts.n_wires = j->n_keys;
        hosts.apart = p->s->consistency != HPC_BSP || p->s->quorum > 0;
        CHECK_OK(hpc_plan_hosts(&hosts, &p->plan));
    } else if (p->s->plan == BY_HAND) {
        make_by_hand(p);
    } else {
        hpc_hub_init(&hub);
        hub.keys = j->keys, hub.n_keys = j->n_keys, hub.workers = j->workers, hub.n_workers = j->n_workers;
        hub.servers = j->servers, hub.n_servers = j->n_servers, hub.cores = 2, hub.chunk = 1024, hub.sum = 1;
        hub.depth = j->depth, hub.wires = p->c.wires, hub.n_wires = j->n_keys;
        hub.each = p->s->consistency == HPC_ASYNC;
        if (p->s->plan == RECEIVERS) hub.apply_at = HPC_AT_RECEIVERS;
        CHECK_OK(hpc_plan_hub(&hub, &p->plan));
    }
    j->plan = p->plan;
}

static play *play_new(const rank *r, const setup *s) {
    play *p = calloc(1, sizeof *p);
    CHECK(p);
    p->s = s;
    job_init(&p->j, r);
    p->j.depth = s->depth > 0 ? s->depth : 1;
    p->j.wire = HPC_THRESHOLD; /* gradients are written as float32 */
    if (s->rule != NULL) p->j.rule = s->rule, p->j.args[3] = 0.5;
    if (s->plan == SERVER) p->j.n_workers--, p->j.servers[0] = r->size - 1, p->j.n_servers = 1;
    for (int key = 0; key < p->j.n_keys; key++) {
        set_codec(&p->c, &p->j, key, s->kinds[key]);
        p->first[key] = p->all;
        p->all += p->j.keys[key].count;
    }
    hpc_exchange_config_init(&p->config);
    p->config.consistency = s->consistency, p->config.staleness = s->staleness;
    p->config.quorum = s->quorum, p->config.grace = s->grace;
    p->config.progress = s->progress, p->config.eager = s->eager, p->config.codecs = p->c.list;
    p->config.split = s->split, p->config.check_finite = s->finite;
    make_plan(p, r);
    CHECK_OK(job_create_with(r, &p->j, &p->config, -1, &p->e));
    return p;
}

static void play_free(play *p) {
    hpc_exchange_free(p->e);
    if (p->plan != &p->by_hand) hpc_plan_free(p->plan);
    free(p);
}

/* Works for this rank's rows until all workers are there; others serve. */
static void meet(rank *r, const play *p, int word) {
    rank_set(r, word + r->rank, 1);
    for (int w = 0; w < p->j.n_workers; w++) progress_until(r, p->e, word + p->j.workers[w], 1);
}

/* ---- nothing is lost ---------------------------------------------------------------------------------------------
 */

static float gradient(const play *p, const rank *r, int step, int key, uint64_t i) {
    return (p->s->scale > 0 ? (float)p->s->scale : 1) * job_gradient(&p->j, r->rank, step, key, i);
}

/* Starts a push of a step; zero: of nothing. Adds it to computed. */
static uint64_t start(const play *p, const rank *r, int step, int key, int flags, bool zero, double *computed) {
    const uint64_t count = p->j.keys[key].count;
    uint64_t ticket;
    float *src = malloc(count * sizeof *src);
    void *to = NULL;
    for (uint64_t i = 0; i < count; i++) src[i] = zero ? 0 : gradient(p, r, step, key, i);
    for (uint64_t i = 0; i < count; i++) {
        const double u = (double)src[i]; /* without memory it is known at once what is sent */
        if (p->c.kinds[key] != LOSSY || fabs(u) > p->c.configs[key].delta) computed[p->first[key] + i] += u;
    }
    if ((step + key) % 2) {
        CHECK_OK(hpc_exchange_gradient(p->e, key, -1, &to));
        memcpy(to, src, count * sizeof *src);
    }
    CHECK_OK(hpc_exchange_start(p->e, key, flags, to == NULL ? src : NULL, -1, &ticket));
    memset(src, 0xcc, count * sizeof *src); /* free to reuse on return */
    free(src);
    return ticket;
}

/* Steps of random length; returns how often it has pushed. */
static int train(const play *p, rank *r, double *computed) {
    const int steps = ranks_rounds(16), n_keys = p->j.n_keys;
    uint64_t random = 77 * (uint64_t)r->rank + r->mode->seed, tickets[JOB_KEYS];
    int made = 0;
    for (int step = 0; p->s->quorum > 0 ? hpc_exchange_version(p->e) < (uint64_t)steps : step < steps; step++) {
        for (int key = 0; key < n_keys; key++) {
            for (int i = 0; i < (p->s->plan == BY_HAND ? step * 37 % 200 : 20); i++) graph_dawdle(&random);
            if (p->s->consistency == HPC_ASYNC && p->j.depth > 1 && hpc_exchange_ready(p->e, key) == HPC_OK)
                start(p, r, 1000 + step, key, HPC_PUSH, false, computed);
            tickets[key] = start(p, r, step, key, BOTH, false, computed);
        }
        for (int key = 0; key < n_keys; key++) CHECK_OK(hpc_exchange_wait(p->e, key, tickets[key], -1));
        made++;
    }
    for (int zero = 0; p->s->plan == GRAPH && zero <= p->s->staleness; zero++) /* folds what was not waited for */
        for (int key = 0; key < n_keys; key++)
            CHECK_OK(hpc_exchange_wait(p->e, key, start(p, r, zero, key, BOTH, true, computed), -1));
    for (int key = 0; key < n_keys && p->s->unwaited; key++) start(p, r, made, key, HPC_PUSH, false, computed);
    return made;
}

/* Adds factor times the residuals of this rank's encoders. */
static void add_residuals(const play *p, const rank *r, double factor, double *to) {
    float *values = malloc(MOST_VALUES * sizeof *values);
    uint64_t made;
    for (int key = 0; key < p->j.n_keys; key++) {
        const int64_t n = hpc_exchange_encoder_values(p->e, key, -1);
        CHECK(n >= 0 && n <= MOST_VALUES);
        CHECK_EQ(n > 0, p->c.kinds[key] != DENSE && (p->s->per_host == 0 || n > 0) && job_works(&p->j, r->rank));
        if (n > 0) CHECK_OK(hpc_exchange_get_encoder(p->e, key, -1, &made, values));
        for (uint64_t i = 0; i < p->j.keys[key].count && n > 0; i++) {
            CHECK(p->c.kinds[key] != LOSSY || values[i] == 0);
            to[p->first[key] + i] += factor * (double)values[i];
        }
    }
    for (int i = 0; i < p->plan->n_rows; i++) {
        const hpc_row *row = &p->plan->rows[i];
        if (row->owner != r->rank || hpc_exchange_encoder_values(p->e, row->key, i) <= 0) continue;
        CHECK_OK(hpc_exchange_get_encoder(p->e, row->key, i, &made, values));
        for (uint64_t k = 0; k < row->count; k++)
            to[p->first[row->key] + row->offset + k] += factor * (double)values[k];
    }
    free(values);
}

/* Adds factor times what this rank's rows have applied: the rule is sgd. */
static void add_applied(const play *p, const rank *r, double factor, double *to) {
    for (int i = 0; i < p->plan->n_rows; i++) {
        const hpc_row *row = &p->plan->rows[i];
        if (row->owner != r->rank || row->action != HPC_APPLY) continue;
        float *params = malloc(row->count * sizeof *params);
        CHECK_OK(hpc_exchange_get_row(p->e, i, NULL, params, NULL));
        for (uint64_t k = 0; k < row->count; k++)
            to[p->first[row->key] + row->offset + k] +=
                factor * ((double)job_initial(&p->j, row->key, row->offset + k) - (double)params[k]) / RATE;
        free(params);
    }
}

static void check_none(const play *p, const double *sum) {
    for (int key = 0; key < p->j.n_keys; key++)
        for (uint64_t i = 0; i < p->j.keys[key].count; i++) {
            const double left = sum[p->first[key] + i], allowed = p->c.kinds[key] == BITS ? 1e-2 : 0;
            if (fabs(left) <= allowed || (p->s->quorum > 0 && p->c.kinds[key] == DENSE)) continue;
            fprintf(stderr, "key %d, element %llu: %g is lost\n", key, (unsigned long long)i, left);
            check_fail_red("an update is lost, or counts twice");
        }
}

/* A graph: each rank has a model of its own, made of what it and its in-neighbours have sent. */
static void check_graph(const play *p, const rank *r, const double *sent) {
    double *all = malloc((size_t)r->size * p->all * sizeof *all), *own = calloc(p->all, sizeof *own);
    CHECK_OK(hpc_allgather(r->context, sent, all, p->all * sizeof *all, -1));
    add_applied(p, r, -1, own);
    for (int from = 0; from < r->size; from++)
        for (size_t i = 0; i < p->all; i++)
            own[i] += graph_job_weight(&p->g, 0, r->rank, from) * all[(size_t)from * p->all + i];
    check_none(p, own);
    free(all);
    free(own);
}

static void check_servers(const play *p, const rank *r, double *sum) {
    double *all = malloc((size_t)r->size * p->all * sizeof *all);
    add_applied(p, r, -1, sum);
    CHECK_OK(hpc_allgather(r->context, sum, all, p->all * sizeof *all, -1));
    for (int who = 0; who < r->size; who++)
        for (size_t i = 0; i < p->all; i++) sum[i] = (who == 0 ? 0 : sum[i]) + all[(size_t)who * p->all + i];
    check_none(p, sum);
    free(all);
}

/* What was left out has gone back, piece by piece, on both sides of the exchange. */
static void check_returned(const play *p, const rank *r) {
    hpc_exchange_stats stats;
    uint64_t returned = 0;
    CHECK_OK(hpc_exchange_get_stats(p->e, &stats));
    for (int key = 0; key < p->j.n_keys; key++) {
        hpc_codec_stats its;
        CHECK_OK(hpc_exchange_get_codec_stats(p->e, key, &its));
        CHECK(its.returned <= its.bytes && its.kept <= its.elements && its.bytes_before == 4 * its.elements);
        returned += its.returned;
    }
    CHECK(stats.dropped > 0 || returned == 0);
    CHECK(p->s->quorum > 0 || returned == 0);
    (void)r;
}

static void nothing_is_lost(rank *r) {
    play *p = play_new(r, &setups[r->arg]);
    double *sum = calloc(p->all, sizeof *sum);
    if (job_works(&p->j, r->rank)) {
        train(p, r, sum);
        if (!p->s->unwaited) CHECK_OK(hpc_exchange_settle(p->e, -1));
    }
    if (p->s->unwaited || !job_works(&p->j, r->rank))
        CHECK_OK(hpc_exchange_close(p->e, -1));
    else
        meet(r, p, 0);
    if (!p->s->unwaited && job_works(&p->j, r->rank)) add_residuals(p, r, 0, sum);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    add_residuals(p, r, -1, sum);
    check_returned(p, r);
    if (p->s->plan == GRAPH)
        check_graph(p, r, sum);
    else
        check_servers(p, r, sum);
    CHECK_OK(hpc_barrier(r->context, -1));
    free(sum);
    play_free(p);
}

/* ---- what a quorum leaves out ------------------------------------------------------------------------------------ */

enum { LATE = 2, WORD = 100 };

static float *residual_of(const play *p, int key, uint64_t *made) {
    float *values = malloc(MOST_VALUES * sizeof *values);
    CHECK_OK(hpc_exchange_get_encoder(p->e, key, -1, made, values));
    return values;
}

/* arg: progress. Two of three make a step, and the third one comes late with its update, which goes back whole: the
 * piece, and what it left out. It goes out with the next update, whether that one is encoded over it or not. */
static void goes_back(rank *r) {
    const setup s = {.plan = HUB, .quorum = 2, .progress = r->arg, .kinds = {LARGE, ALL, HALF}, .scale = 37};
    play *p = play_new(r, &s);
    double *computed = calloc(p->all, sizeof *computed);
    uint64_t tickets[JOB_KEYS], made;
    hpc_codec_stats stats;
    for (int step = 0; step < 3; step++) {
        /* in step 0 the last rank is late; in step 1 it is the first that pushes, and rank 1 is late */
        const int late = step == 0 ? LATE : step == 1 ? 1 : -1;
        if (r->rank == late) progress_until(r, p->e, WORD + step, 2);
        for (int key = 0; key < p->j.n_keys; key++) tickets[key] = start(p, r, step, key, BOTH, false, computed);
        for (int key = 0; key < p->j.n_keys; key++) CHECK_OK(hpc_exchange_wait(p->e, key, tickets[key], -1));
        if (r->rank != late) atomic_fetch_add(&r->board[WORD + step], 1);
        progress_until(r, p->e, WORD + step, late < 0 ? 3 : 2);
        rank_set(r, r->rank, (uint64_t)step + 1);
        for (int who = 0; who < r->size; who++) progress_until(r, p->e, who, (uint64_t)step + 1);
        for (int key = 0; key < p->j.n_keys; key++) {
            CHECK_OK(hpc_exchange_get_codec_stats(p->e, key, &stats));
            CHECK(step == 2 || (hpc_exchange_late(p->e, key) > 0) == (r->rank == late));
            if (r->rank != late || step > 0) continue;
            float *values = residual_of(p, key, &made);
            CHECK_EQ(made, 1);
            for (uint64_t i = 0; i < p->j.keys[key].count; i++)
                CHECK((double)values[i] == computed[p->first[key] + i]); /* all of it is here again */
            CHECK_OK(hpc_exchange_get_codec_stats(p->e, key, &stats));
            CHECK_EQ(stats.returned, stats.bytes);
            free(values);
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    add_residuals(p, r, -1, computed);
    check_servers(p, r, computed);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    free(computed);
    play_free(p);
}

/* A NaN that comes late is gone: it does not stay in the residual for good. */
static void wild_goes(rank *r) {
    const setup s = {.plan = HUB, .quorum = 1, .kinds = {LARGE, OWN, BITS}};
    play *p = play_new(r, &s);
    uint64_t ticket, made;
    for (int key = 0; key < p->j.n_keys; key++) {
        float *src = calloc(p->j.keys[key].count, sizeof *src);
        if (r->rank == LATE && p->c.kinds[key] != OWN) src[0] = NAN, src[1] = INFINITY;
        if (r->rank == LATE) src[2] = 7, progress_until(r, p->e, WORD + key, 2);
        CHECK_OK(hpc_exchange_start(p->e, key, BOTH, src, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
        if (r->rank != LATE) atomic_fetch_add(&r->board[WORD + key], 1);
        if (r->rank == LATE) {
            CHECK(hpc_exchange_late(p->e, key) > 0);
            float *values = residual_of(p, key, &made);
            for (uint64_t i = 0; i < p->j.keys[key].count; i++) CHECK(isfinite(values[i]));
            CHECK(p->c.kinds[key] == BITS || values[2] == 7);
            free(values);
        }
        free(src);
    }
    meet(r, p, 0);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    play_free(p);
}

/* ---- made again --------------------------------------------------------------------------------------------------
 */

/* Everything that a checkpoint has of this rank. */
typedef struct saved {
    uint64_t steps[HAND_ROWS], made[HAND_ROWS + JOB_KEYS];
    float *params[HAND_ROWS], *state[HAND_ROWS], *encoders[HAND_ROWS + JOB_KEYS]; /* those of rows, then of keys */
} saved;

static saved *save(const play *p, const rank *r) {
    saved *to = calloc(1, sizeof *to);
    CHECK(p->plan->n_rows <= HAND_ROWS);
    for (int i = 0; i < p->plan->n_rows + p->j.n_keys; i++) {
        const bool is_row = i < p->plan->n_rows;
        const hpc_row *row = &p->plan->rows[is_row ? i : 0];
        const int key = is_row ? row->key : i - p->plan->n_rows;
        if (is_row && row->owner != r->rank) continue;
        if (is_row) {
            to->params[i] = calloc(row->count, sizeof(float)), to->state[i] = calloc(row->count, sizeof(float));
            CHECK_OK(hpc_exchange_get_row(p->e, i, &to->steps[i], to->params[i], to->state[i]));
        }
        const int64_t n = hpc_exchange_encoder_values(p->e, key, is_row ? i : -1);
        if (n <= 0) continue;
        to->encoders[i] = calloc((size_t)n, sizeof(float));
        CHECK_OK(hpc_exchange_get_encoder(p->e, key, is_row ? i : -1, &to->made[i], to->encoders[i]));
    }
    return to;
}

static void load(const play *p, const rank *r, const saved *from) {
    for (int i = 0; i < p->plan->n_rows + p->j.n_keys; i++) {
        const bool is_row = i < p->plan->n_rows;
        const int key = is_row ? p->plan->rows[i].key : i - p->plan->n_rows;
        if (from->params[i < HAND_ROWS ? i : 0] != NULL && is_row)
            CHECK_OK(hpc_exchange_set_row(p->e, i, from->steps[i], from->params[i], from->state[i]));
        if (from->encoders[i] != NULL)
            CHECK_OK(hpc_exchange_set_encoder(p->e, key, is_row ? i : -1, from->made[i], from->encoders[i]));
    }
    CHECK_OK(hpc_exchange_publish(p->e, -1));
    (void)r;
}

static void check_same(const play *p, const rank *r, const saved *a, const saved *b) {
    for (int i = 0; i < p->plan->n_rows + p->j.n_keys; i++) {
        const bool is_row = i < p->plan->n_rows;
        const int key = is_row ? p->plan->rows[i].key : i - p->plan->n_rows;
        const uint64_t n = is_row ? p->plan->rows[i].count : 0;
        if (is_row && a->params[i] != NULL) {
            CHECK(same_floats(b->params[i], a->params[i], n, "a row", r->rank, key));
            CHECK(same_floats(b->state[i], a->state[i], n, "the state of a row", r->rank, key));
        }
        CHECK_EQ(a->encoders[i] != NULL, b->encoders[i] != NULL);
        if (a->encoders[i] == NULL) continue;
        CHECK_EQ(a->made[i], b->made[i]);
        CHECK(same_floats(b->encoders[i], a->encoders[i],
                          (uint64_t)hpc_exchange_encoder_values(p->e, key, is_row ? i : -1), "an encoder", r->rank,
                          key));
    }
}

static void saved_free(saved *s) {
    for (int i = 0; i < HAND_ROWS; i++) free(s->params[i]), free(s->state[i]);
    for (int i = 0; i < HAND_ROWS + JOB_KEYS; i++) free(s->encoders[i]);
    free(s);
}

/* Steps of a third of whole numbers: other orders, or other residuals, have other bits. wild: tries each key's update
 * with a NaN and an Inf in it before. */
static void make_steps(const play *p, const rank *r, int from, int to, bool wild) {
    for (int step = from; step < to; step++)
        for (int key = 0; key < p->j.n_keys; key++) {
            const uint64_t count = p->j.keys[key].count;
            uint64_t ticket;
            void *at = NULL;
            float *src = malloc(count * sizeof *src);
            for (uint64_t i = 0; i < count; i++) src[i] = gradient(p, r, step, key, i) / 3;
            for (int twice = 0; twice < 2 && wild; twice++) {
                const uint64_t where = (uint64_t)step * 7 % count;
                const float was = src[where];
                src[where] = twice ? NAN : -INFINITY;
                if (twice) CHECK_OK(hpc_exchange_gradient(p->e, key, -1, &at));
                if (twice) memcpy(at, src, count * sizeof *src);
                CHECK_STATUS(hpc_exchange_start(p->e, key, BOTH, twice ? NULL : src, -1, &ticket), HPC_ERR_INVALID);
                CHECK_MESSAGE("has a NaN or an Inf");
                src[where] = was;
            }
            CHECK_OK(hpc_exchange_push_pull(p->e, key, src, -1));
            free(src);
        }
}

static const setup twice[] = {
    {"again", 3, HUB, .kinds = {TOP, OWN, DECAYS}},
    {"again_bits", 3, HUB, .kinds = {BITS, HALF, ZLIB}, .progress = HPC_PROGRESS_THREAD, .depth = 2},
    {"again_hosts", 5, HOSTS, .per_host = 2, .kinds = {TOP, OWN, DECAYS}},
    {"again_graph", 4, GRAPH, .shape = ROOT, .consistency = HPC_NOTIFY_ACK, .depth = 2, .kinds = {OWN, TOP, BRAIN}},
    {"finite", 3, HUB, .kinds = {TOP, OWN, DECAYS}, .finite = 1},
    {"finite_graph", 4, GRAPH, .shape = ROOT, .consistency = HPC_NOTIFY_ACK, .kinds = {HALF, BITS, TOP}, .finite = 1},
};

enum { TWICE = sizeof twice / sizeof *twice };

/* Half of the steps, then an exchange that is made of what was saved; or with refused updates in between. */
static void goes_on(rank *r) {
    enum { HALF_WAY = 5, ALL_STEPS = 10 };
    setup s = twice[r->arg];
    s.rule = "momentum", s.scale = 5;
    play *p = play_new(r, &s);
    make_steps(p, r, 0, ALL_STEPS, false);
    saved *whole = save(p, r), *half = NULL;
    CHECK_OK(hpc_exchange_close(p->e, -1));
    play_free(p);
    p = play_new(r, &s);
    make_steps(p, r, 0, HALF_WAY, s.finite);
    if (!s.finite) {
        half = save(p, r);
        CHECK_OK(hpc_exchange_close(p->e, -1));
        play_free(p);
        p = play_new(r, &s);
        load(p, r, half);
        saved_free(half);
    }
    make_steps(p, r, HALF_WAY, ALL_STEPS, s.finite);
    half = save(p, r);
    check_same(p, r, whole, half);
    saved_free(whole);
    saved_free(half);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    play_free(p);
}

/* What is not refused is sent, and does not stay: after it the residuals have numbers alone. */
static void wild_is_sent(rank *r) {
    const codec_kind kinds[2][3] = {{LARGE, HALF, TOP}, {BITS, PAPER, ZLIB}};
    for (int turn = 0; turn < 2; turn++) {
        setup s = {.plan = HUB, .scale = 3};
        memcpy(s.kinds, kinds[turn], sizeof s.kinds);
        play *p = play_new(r, &s);
        make_steps(p, r, 0, 2, false);
        for (int key = 0; key < p->j.n_keys; key++) {
            float *src = calloc(p->j.keys[key].count, sizeof *src);
            uint64_t made;
            if (r->rank == 1) src[1] = NAN, src[20] = INFINITY, src[32] = -INFINITY;
            CHECK_OK(hpc_exchange_push_pull(p->e, key, src, -1));
            const float *params = hpc_exchange_params(p->e, key);
            CHECK(!isfinite(params[1]) && !isfinite(params[20]) && !isfinite(params[32]));
            float *values = residual_of(p, key, &made);
            CHECK_EQ(made, 3);
            for (uint64_t i = 0; i < p->j.keys[key].count; i++) {
                CHECK(isfinite(values[i]));
                CHECK(p->c.kinds[key] == BITS || isfinite(params[i]) == (i != 1 && i != 20 && i != 32));
            }
            free(values);
            free(src);
        }
        CHECK_OK(hpc_exchange_close(p->e, -1));
        play_free(p);
    }
}

/* ---- fold and apply in two calls ---------------------------------------------------------------------------------
 */

/* What a skip drops is dropped for good: it was sent. A fold of nothing encodes nothing. */
static void between(rank *r) {
    const setup s = {.plan = HUB, .split = 1, .kinds = {LARGE, TOP, OWN}, .progress = r->arg};
    play *p = play_new(r, &s);
    double *computed = calloc(p->all, sizeof *computed);
    uint64_t ticket, made[2], pushes[JOB_KEYS] = {0};
    for (int step = 0; step < 12; step++)
        for (int key = 0; key < p->j.n_keys; key++) {
            const uint64_t count = p->j.keys[key].count;
            double *now = calloc(p->all, sizeof *now);
            float *before = residual_of(p, key, &made[0]);
            const bool nothing = (step + r->rank) % 4 == 1;
            if (nothing)
                CHECK_OK(hpc_exchange_fold_nothing(p->e, key, -1, &ticket));
            else
                ticket = start(p, r, step, key, HPC_PUSH, false, now), pushes[key]++;
            CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
            float *after = residual_of(p, key, &made[1]);
            CHECK_EQ(made[1], pushes[key]);
            CHECK_EQ(made[1], made[0] + !nothing);
            CHECK(!nothing || memcmp(before, after, count * sizeof *after) == 0);
            if (step == 5) {
                CHECK_STATUS(hpc_exchange_gather(p->e, key, -1, &ticket), HPC_ERR_INVALID);
                CHECK_MESSAGE("only float32 can be gathered");
            }
            if (step % 3 == 2) {
                CHECK_OK(hpc_exchange_skip(p->e, key, -1, &ticket));
                for (uint64_t i = 0; i < count; i++) /* all but what was sent */
                    now[p->first[key] + i] = (double)after[i] - (double)before[i];
            } else {
                CHECK_OK(hpc_exchange_apply(p->e, key, 1, -1, &ticket));
            }
            CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
            for (uint64_t i = 0; i < count; i++) computed[p->first[key] + i] += now[p->first[key] + i];
            free(before), free(after), free(now);
        }
    CHECK_OK(hpc_exchange_close(p->e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    add_residuals(p, r, -1, computed);
    check_servers(p, r, computed);
    CHECK_OK(hpc_barrier(r->context, -1));
    free(computed);
    play_free(p);
}

/* The workers of one host push nothing: the owner there takes the fold of the other host alone, which is a piece. */
static void nothing_of_a_host(rank *r) {
    const setup s = {.plan = HOSTS, .per_host = 2, .split = 1, .kinds = {LARGE, TOP, ALL}, .progress = r->arg};
    play *p = play_new(r, &s);
    double *computed = calloc(p->all, sizeof *computed);
    uint64_t ticket;
    for (int step = 0; step < 6; step++)
        for (int key = 0; key < p->j.n_keys; key++) {
            if (step % 2 == r->rank / 2)
                CHECK_OK(hpc_exchange_fold_nothing(p->e, key, -1, &ticket));
            else
                ticket = start(p, r, step, key, HPC_PUSH, false, computed);
            CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
            CHECK_OK(hpc_exchange_apply(p->e, key, 1, -1, &ticket));
            CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
        }
    CHECK_OK(hpc_exchange_close(p->e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    add_residuals(p, r, -1, computed);
    check_servers(p, r, computed);
    CHECK_OK(hpc_barrier(r->context, -1));
    free(computed);
    play_free(p);
}

/* What receivers have applied is what all have computed and do not hold back; it is the same at all of them. */
static void check_receivers(const play *p, const rank *r, const double *computed, double *sum) {
    memcpy(sum, computed, p->all * sizeof *sum);
    add_residuals(p, r, -1, sum);
    double *all = malloc((size_t)r->size * p->all * sizeof *all);
    CHECK_OK(hpc_allgather(r->context, sum, all, p->all * sizeof *all, -1));
    memset(sum, 0, p->all * sizeof *sum);
    add_applied(p, r, -1, sum);
    for (int who = 0; who < r->size; who++)
        for (size_t i = 0; i < p->all; i++) sum[i] += all[(size_t)who * p->all + i];
    check_none(p, sum);
    free(all);
}

/* Copies what this rank keeps of a key, encoders and receivers, to values or (set) from there. */
static void copy_state(const play *p, const rank *r, int key, int set, float *values) {
    const float *end = values + 2 * MOST_VALUES;
    for (int i = -1; i < p->plan->n_rows; i++) {
        const hpc_row *row = i < 0 ? NULL : &p->plan->rows[i];
        if (i >= 0 && (row->owner != r->rank || row->key != key)) continue;
        const int64_t n = hpc_exchange_encoder_values(p->e, key, i);
        if (n > 0)
            CHECK_OK(set ? hpc_exchange_set_encoder(p->e, key, i, 3, values)
                         : hpc_exchange_get_encoder(p->e, key, i, NULL, values));
        values += n;
        if (i < 0 || row->action != HPC_APPLY) continue;
        CHECK_OK(set ? hpc_exchange_set_row(p->e, i, 3, values, NULL)
                     : hpc_exchange_get_row(p->e, i, NULL, values, NULL));
        values += row->count;
    }
    CHECK(values <= end);
}

static float *state_of(const play *p, const rank *r, int key) {
    float *values = calloc(2 * MOST_VALUES, sizeof *values);
    copy_state(p, r, key, 0, values);
    return values;
}

/* SSP where receivers apply the rule. A publish closes a version without updates, as the fast worker's are in the one
 * before: nothing of a residual may leave with it. And one that sets a state closes a version that is left out. */
static void closed_by_publish(rank *r) {
    const setup s = {.plan = RECEIVERS,
                     .consistency = HPC_SSP,
                     .staleness = 2,
                     .depth = 4,
                     .kinds = {TOP, DECAYS, OWN},
                     .progress = r->arg};
    play *p = play_new(r, &s);
    double *computed = calloc(p->all, sizeof *computed), *sum = calloc(p->all, sizeof *sum);
    float *states[JOB_KEYS];
    for (int key = 0; key < p->j.n_keys; key++)
        for (int step = 0; step < 2 && r->rank == 0; step++)
            CHECK_OK(hpc_exchange_wait(p->e, key, start(p, r, step, key, BOTH, false, computed), -1));
    meet(r, p, WORD);
    for (int key = 0; key < p->j.n_keys && r->rank > 0; key++)
        CHECK_OK(hpc_exchange_wait(p->e, key, start(p, r, 0, key, BOTH, false, computed), -1));
    meet(r, p, 2 * WORD);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_exchange_publish(p->e, -1));
    check_receivers(p, r, computed, sum);
    for (int key = 0; key < p->j.n_keys; key++) states[key] = state_of(p, r, key);
    for (int key = 0; key < p->j.n_keys && r->rank == 0; key++)
        CHECK_OK(hpc_exchange_wait(p->e, key, start(p, r, 5, key, BOTH, false, sum), -1));
    meet(r, p, 3 * WORD);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int key = 0; key < p->j.n_keys; key++) copy_state(p, r, key, 1, states[key]);
    CHECK_OK(hpc_exchange_publish(p->e, -1));
    for (int key = 0; key < p->j.n_keys; key++) {
        float *now = state_of(p, r, key);
        CHECK(memcmp(now, states[key], 2 * MOST_VALUES * sizeof *now) == 0);
        free(now);
        free(states[key]);
    }
    check_receivers(p, r, computed, sum);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    free(computed);
    free(sum);
    play_free(p);
}

int main(int argc, char **argv) {
    ranks_case cases[SETUPS + 32] = {{0}};
    int n = 0;
    for (int i = 0; i < SETUPS; i++)
        cases[n++] = (ranks_case){.name = setups[i].name, .size = setups[i].size, .run = nothing_is_lost, .arg = i};
    cases[n++] = (ranks_case){.name = "goes_back", .size = 3, .run = goes_back, .arg = HPC_PROGRESS_INLINE};
    cases[n++] = (ranks_case){.name = "goes_back_threads", .size = 3, .run = goes_back, .arg = HPC_PROGRESS_THREAD};
    cases[n++] = (ranks_case){.name = "wild_goes", .size = 3, .run = wild_goes};
    for (int i = 0; i < TWICE; i++)
        cases[n++] = (ranks_case){.name = twice[i].name, .size = twice[i].size, .run = goes_on, .arg = i};
    cases[n++] = (ranks_case){.name = "wild_is_sent", .size = 3, .run = wild_is_sent};
    cases[n++] = (ranks_case){.name = "between", .size = 4, .run = between, .arg = HPC_PROGRESS_INLINE};
    cases[n++] = (ranks_case){.name = "between_threads", .size = 4, .run = between, .arg = HPC_PROGRESS_THREAD};
    cases[n++] = (ranks_case){.name = "nothing_of_a_host", .size = 4, .run = nothing_of_a_host};
    cases[n++] = (ranks_case){.name = "closed_by_publish", .size = 3, .run = closed_by_publish};
    cases[n++] = (ranks_case){
        .name = "closed_by_publish_threads", .size = 3, .run = closed_by_publish, .arg = HPC_PROGRESS_THREAD};
    return ranks_main(argc, argv, cases);
}
