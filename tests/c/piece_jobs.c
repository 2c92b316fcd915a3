#include "piece_jobs.h"

#include <math.h>

#include "codec/compress.h"

static const double RATE = 0.5;

/* ---- codecs ---- */

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

/* ---- plans ---- */

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
    hpc_peer_to_peer peers;
    if (p->s->plan == GRAPH) {
        graph_job_init(&p->g, r);
        graph_job_shape(&p->g, (shape)p->s->shape);
        hpc_graph *g = &p->g.graph;
        g->keys = j->keys, g->n_keys = j->n_keys, g->cores = 2, g->chunk = 1024, g->depth = j->depth;
        g->weights = p->g.weights, g->wires = p->c.wires, g->n_wires = j->n_keys;
        CHECK_OK(hpc_plan_make("graph", g, &p->plan));
        p->config.graph = g;
    } else if (p->s->plan == HOSTS || p->s->plan == RACKS) {
        for (int who = 0; who < r->size; who++)
            groups[who] = who / p->s->per_host, groups[r->size + who] = who / p->s->per_host / 2;
        hpc_plan_args_init("hosts", &hosts, sizeof hosts);
        hosts.keys = j->keys, hosts.n_keys = j->n_keys, hosts.workers = j->workers, hosts.n_workers = j->n_workers;
        hosts.groups = groups, hosts.n_levels = p->s->plan == RACKS ? 2 : 1, hosts.cores = 2, hosts.chunk = 1024;
        hosts.depth = j->depth, hosts.sum = 1, hosts.wires = p->c.wires, hosts.n_wires = j->n_keys;
        hosts.apart = p->s->consistency != HPC_BSP || p->s->quorum > 0;
        CHECK_OK(hpc_plan_make("hosts", &hosts, &p->plan));
    } else if (p->s->plan == BY_HAND) {
        make_by_hand(p);
    } else if (p->s->plan == PEERS) {
        hpc_plan_args_init("peer_to_peer", &peers, sizeof peers);
        peers.keys = j->keys, peers.n_keys = j->n_keys, peers.workers = j->workers, peers.n_workers = j->n_workers;
        peers.cores = 2, peers.chunk = 1024, peers.sum = 1, peers.depth = j->depth;
        peers.wires = p->c.wires, peers.n_wires = j->n_keys;
        CHECK_OK(hpc_plan_make("peer_to_peer", &peers, &p->plan));
    } else {
        hpc_plan_args_init("hub", &hub, sizeof hub);
        hub.keys = j->keys, hub.n_keys = j->n_keys, hub.workers = j->workers, hub.n_workers = j->n_workers;
        hub.servers = j->servers, hub.n_servers = j->n_servers, hub.cores = 2, hub.chunk = 1024, hub.sum = 1;
        hub.depth = j->depth, hub.wires = p->c.wires, hub.n_wires = j->n_keys;
        hub.each = p->s->consistency == HPC_ASYNC;
        if (p->s->plan == RECEIVERS) hub.apply_at = HPC_AT_RECEIVERS;
        CHECK_OK(hpc_plan_make("hub", &hub, &p->plan));
    }
    j->plan = p->plan;
}

play *play_new(const rank *r, const setup *s) {
    play *p = calloc(1, sizeof *p);
    CHECK(p);
    p->s = s;
    p->unit = 1;
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
    p->config.progress = s->progress, p->config.codecs = p->c.list;
    p->config.split = s->split, p->config.check_finite = s->finite;
    make_plan(p, r);
    CHECK_OK(job_create_with(r, &p->j, &p->config, -1, &p->e));
    return p;
}

void play_free(play *p) {
    hpc_exchange_free(p->e);
    if (p->plan != &p->by_hand) hpc_plan_free(p->plan);
    free(p);
}

/* Works for this rank's rows until all workers are there; others serve. */
void play_meet(rank *r, const play *p, int word) {
    rank_set(r, word + r->rank, 1);
    for (int w = 0; w < p->j.n_workers; w++) progress_until(r, p->e, word + p->j.workers[w], 1);
}

float play_gradient(const play *p, const rank *r, int step, int key, uint64_t i) {
    return (p->s->scale > 0 ? (float)p->s->scale : 1) * job_gradient(&p->j, r->rank, step, key, i);
}

/* Starts a push of a step; zero: of nothing. Adds it to computed. */
uint64_t play_start(const play *p, const rank *r, int step, int key, int flags, bool zero, double *computed) {
    const uint64_t count = p->j.keys[key].count;
    uint64_t ticket;
    float *src = malloc(count * sizeof *src);
    void *to = NULL;
    for (uint64_t i = 0; i < count; i++) src[i] = zero ? 0 : play_gradient(p, r, step, key, i);
    for (uint64_t i = 0; i < count; i++) {
        const double u = (double)src[i]; /* without memory it is known at once what is sent */
        src[i] *= (float)p->unit;
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

/* Adds factor times the residuals of this rank's encoders. */
void play_add_residuals(const play *p, const rank *r, double factor, double *to) {
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
void play_add_applied(const play *p, const rank *r, double factor, double *to) {
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

void play_check_none(const play *p, const double *sum) {
    for (int key = 0; key < p->j.n_keys; key++)
        for (uint64_t i = 0; i < p->j.keys[key].count; i++) {
            const double left = sum[p->first[key] + i], allowed = p->c.kinds[key] == BITS ? 1e-2 : 0;
            if (fabs(left) <= allowed || (p->s->quorum > 0 && p->c.kinds[key] == DENSE)) continue;
            fprintf(stderr, "key %d, element %llu: %g is lost\n", key, (unsigned long long)i, left);
            check_fail_red("an update is lost, or counts twice");
        }
}

void play_check_servers(const play *p, const rank *r, double *sum) {
    double *all = malloc((size_t)r->size * p->all * sizeof *all);
    if (p->s->plan != PEERS || r->rank == 0) play_add_applied(p, r, -1, sum); /* each has a copy of all */
    CHECK_OK(hpc_allgather(r->context, sum, all, p->all * sizeof *all, -1));
    for (int who = 0; who < r->size; who++)
        for (size_t i = 0; i < p->all; i++) sum[i] = (who == 0 ? 0 : sum[i]) + all[(size_t)who * p->all + i];
    play_check_none(p, sum);
    free(all);
}

float *play_residual(const play *p, int key, uint64_t *made) {
    float *values = malloc(MOST_VALUES * sizeof *values);
    CHECK_OK(hpc_exchange_get_encoder(p->e, key, -1, made, values));
    return values;
}
