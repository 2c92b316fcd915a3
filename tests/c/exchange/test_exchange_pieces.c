/* Exchanges whose updates go as pieces. Each case has a model of its plan: every worker and every row that forwards
 * keeps what is no larger than delta, element by element. So the parameters are known, bit for bit, as all numbers here
 * are exact, and so is what each encoder holds back. */
#include <math.h>

#include "codec/codec.h"
#include "exchange_plans.h"

enum { STEPS = 6, DELTA = 5 };

/* Flags of a case, in its arg. */
enum {
    RECEIVERS = 1,
    THREADS = 2,
    DEEP = 4,
    MIXED = 8,
    SERVER = 32,
    RING = 64,
    RACKS = 128,
    SPLIT = 256,
    FINITE = 512,
    PACKED = 1024,
    SGD = 2048,
    LARGE = 4096, /* rows of several blocks */
    HOSTS_OF = 8192
};

static _Thread_local hpc_codec_config config; /* ranks may be threads */
static _Thread_local const hpc_codec_config *configs[JOB_KEYS];

static int wire_of(int arg, int key) {
    return arg & MIXED && key % 2 == 0 ? HPC_F16 : HPC_THRESHOLD;
}

static hpc_plan *make_plan(job *j, const rank *r, int arg) {
    static _Thread_local int wires[JOB_KEYS];
    hpc_plan *plan = NULL;
    job_init(j, r);
    hpc_codec_config_init(&config);
    config.delta = DELTA;
    if (arg & PACKED) config.compress = HPC_COMPRESS_ZLIB;
    for (int key = 0; key < j->n_keys; key++) {
        wires[key] = wire_of(arg, key);
        configs[key] = wires[key] == HPC_THRESHOLD ? &config : NULL;
    }
    j->rule = arg & SGD ? "sgd" : "momentum", j->args[3] = 0.5;
    j->progress = arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    j->split = (arg & SPLIT) != 0, j->check_finite = (arg & FINITE) != 0;
    j->wire = arg >= HOSTS_OF ? HPC_F32 : HPC_THRESHOLD; /* of gradients, for job_start */
    if (arg & SERVER) {
        j->n_workers--;
        j->servers[0] = r->size - 1, j->n_servers = 1;
    }
    const uint64_t chunk = arg & LARGE ? 64 << 10 : 2 << 10;
    const int per_host = arg / HOSTS_OF, apply_at = arg & RECEIVERS ? HPC_AT_RECEIVERS : HPC_AT_OWNERS;
    if (per_host == 0) {
        hpc_hub hub;
        hpc_plan_args_init("hub", &hub, sizeof hub);
        hub.keys = j->keys, hub.n_keys = j->n_keys, hub.workers = j->workers, hub.n_workers = j->n_workers;
        hub.servers = j->servers, hub.n_servers = j->n_servers, hub.cores = 2, hub.chunk = chunk, hub.sum = 1;
        hub.wires = wires, hub.n_wires = j->n_keys, hub.depth = arg & DEEP ? 2 : 1, hub.apply_at = apply_at;
        CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    } else {
        int groups[2 * RANKS_MAX];
        hpc_hosts hosts;
        hpc_plan_args_init("hosts", &hosts, sizeof hosts);
        for (int who = 0; who < r->size; who++) {
            groups[who] = who / per_host;
            groups[r->size + who] = who / per_host / 2;
        }
        hosts.keys = j->keys, hosts.n_keys = j->n_keys, hosts.workers = j->workers, hosts.n_workers = j->n_workers;
        hosts.groups = groups, hosts.n_levels = arg & RACKS ? 2 : 1, hosts.cores = 2, hosts.chunk = chunk,
        hosts.sum = 1;
        hosts.top = arg & RING ? HPC_TOP_RING : HPC_TOP_SHARDED;
        hosts.wires = wires, hosts.n_wires = j->n_keys, hosts.depth = arg & DEEP ? 2 : 1, hosts.apply_at = apply_at;
        CHECK_OK(hpc_plan_make("hosts", &hosts, &plan));
    }
    CHECK_OK(hpc_plan_check(plan, r->size));
    j->plan = plan;
    return plan;
}

static hpc_exchange *open_exchange(const rank *r, const job *j) {
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    hpc_exchange_config_init(&c);
    c.progress = j->progress, c.split = j->split, c.check_finite = j->check_finite;
    c.codecs = configs;
    CHECK_OK(job_create_with(r, j, &c, -1, &e));
    return e;
}

/* ---- the model -------------------------------------------------------------------------------------------------- */

typedef struct model {
    const job *j;
    float *pushed[RANKS_MAX][JOB_KEYS]; /* residuals of workers */
    float **forwarded;                  /* of rows */
    double **value;                     /* what a row has forwarded in this step */
} model;

static void model_init(model *m, const job *j) {
    *m = (model){.j = j};
    m->forwarded = calloc((size_t)j->plan->n_rows, sizeof *m->forwarded);
    m->value = calloc((size_t)j->plan->n_rows, sizeof *m->value);
    for (int key = 0; key < j->n_keys; key++)
        for (int w = 0; w < j->n_workers; w++)
            m->pushed[j->workers[w]][key] = calloc(j->keys[key].count, sizeof(float));
    for (int i = 0; i < j->plan->n_rows; i++) m->forwarded[i] = calloc(j->plan->rows[i].count, sizeof(float));
}

static void model_free(model *m) {
    for (int key = 0; key < m->j->n_keys; key++)
        for (int w = 0; w < m->j->n_workers; w++) free(m->pushed[m->j->workers[w]][key]);
    for (int i = 0; i < m->j->plan->n_rows; i++) free(m->forwarded[i]);
    free(m->forwarded);
    free(m->value);
}

static double filtered(double u, float *residual) {
    u += (double)*residual;
    int keeps = fabs(u) > DELTA;
    *residual = keeps ? 0 : (float)u;
    return keeps ? u : 0;
}

static int sends_pieces(int number) {
    return number >= HPC_THRESHOLD;
}

/* The fold of a row in this step; a forward's own filter is in it. */
static const double *row_value(model *m, int index, double *const *sent, int step) {
    const hpc_row *row = &m->j->plan->rows[index];
    if (m->value[index] != NULL) return m->value[index];
    double *sum = m->value[index] = calloc(row->count, sizeof *sum);
    for (int e = 0; e < row->n_in; e++) {
        const hpc_edge *in = &row->in[e];
        const double *from = in->row >= 0 ? row_value(m, in->row, sent, step) : NULL;
        for (uint64_t i = 0; i < row->count; i++) {
            double u = from != NULL ? from[i]
                       : sends_pieces(row->codec_in)
                           ? sent[in->rank][row->offset + i]
                           : (double)job_gradient(m->j, in->rank, step, row->key, row->offset + i);
            sum[i] += in->weight * u;
        }
    }
    const int opens = row->n_in > 1 || row->in[0].row < 0 || !sends_pieces(m->j->plan->rows[row->in[0].row].codec_out);
    for (uint64_t i = 0; i < row->count && row->action == HPC_FORWARD && sends_pieces(row->codec_out) && opens; i++)
        sum[i] = filtered(sum[i], &m->forwarded[index][i]);
    return sum;
}

static void model_step(model *m, reference *ref, int key) {
    const job *j = m->j;
    const uint64_t count = j->keys[key].count;
    double *sent[RANKS_MAX] = {NULL}, *sum = calloc(count, sizeof *sum);
    int pushes = 0;
    for (int i = 0; i < j->plan->n_rows; i++)
        pushes |=
            j->plan->rows[i].key == key && sends_pieces(j->plan->rows[i].codec_in) && j->plan->rows[i].in[0].row < 0;
    for (int w = 0; w < j->n_workers && pushes; w++) {
        int who = j->workers[w];
        sent[who] = calloc(count, sizeof **sent);
        for (uint64_t i = 0; i < count; i++)
            sent[who][i] = filtered((double)job_gradient(j, who, ref->step[key], key, i), &m->pushed[who][key][i]);
    }
    for (int i = 0; i < j->plan->n_rows; i++) {
        const hpc_row *row = &j->plan->rows[i];
        if (row->key != key || row->action != HPC_APPLY) continue;
        memcpy(sum + row->offset, row_value(m, i, sent, ref->step[key]), row->count * sizeof *sum);
    }
    reference_apply(ref, key, sum);
    for (int i = 0; i < j->plan->n_rows; i++)
        if (j->plan->rows[i].key == key) free(m->value[i]), m->value[i] = NULL;
    for (int who = 0; who < RANKS_MAX; who++) free(sent[who]);
    free(sum);
}

/* Checks the residuals of this rank's encoders. */
static void check_encoders(const rank *r, const model *m, hpc_exchange *e, uint64_t made) {
    const job *j = m->j;
    float *values = malloc(100000 * sizeof *values);
    int found = 0;
    for (int key = 0; key < j->n_keys; key++) {
        int64_t n = hpc_exchange_encoder_values(e, key, -1);
        uint64_t count = j->keys[key].count, times = 0;
        CHECK(n == 0 || n == (int64_t)count + HPC_ENCODER_VALUES);
        if (n == 0) continue;
        CHECK_OK(hpc_exchange_get_encoder(e, key, -1, &times, values));
        CHECK_EQ(times, made);
        CHECK(same_floats(values, m->pushed[r->rank][key], count, "a worker's residual", r->rank, key));
        found++;
    }
    for (int i = 0; i < j->plan->n_rows; i++) {
        const hpc_row *row = &j->plan->rows[i];
        uint64_t times = 0;
        if (row->owner != r->rank || hpc_exchange_encoder_values(e, row->key, i) == 0) continue;
        CHECK(row->action == HPC_FORWARD && sends_pieces(row->codec_out));
        CHECK_OK(hpc_exchange_get_encoder(e, row->key, i, &times, values));
        CHECK_EQ(times, made);
        CHECK(same_floats(values, m->forwarded[i], row->count, "a row's residual", r->rank, row->key));
        found++;
    }
    CHECK(found > 0 || r->size == 1 || !job_works(j, r->rank) || r->arg >= HOSTS_OF);
    free(values);
}

/* ---- cases --------------------------------------------------------------------------------------------------------
 */

static void train(const rank *r, const job *j, hpc_exchange *e, model *m, reference *ref, int steps) {
    for (int step = 0; step < steps; step++) {
        uint64_t tickets[JOB_KEYS];
        const int now = ref->step[0];
        for (int key = 0; key < j->n_keys && job_works(j, r->rank); key++) {
            tickets[key] = job_start(r, j, e, key, now, HPC_PUSH | HPC_PULL,
                                     (step + r->rank) % 2 && !(wire_of(r->arg, key) == HPC_F16));
        }
        for (int key = j->n_keys; key-- > 0;) {
            if (job_works(j, r->rank)) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
            model_step(m, ref, key);
            if (job_works(j, r->rank)) reference_check(ref, r, e, key);
        }
    }
}

/* Each rank has received as many bytes as the others have sent to it: pieces count once, however often they are added.
 */
static void check_received(const rank *r, hpc_exchange *e) {
    uint64_t own[2 * RANKS_MAX] = {0}, all[RANKS_MAX * 2 * RANKS_MAX];
    hpc_exchange_peer peer;
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int who = 0; who < r->size; who++) {
        CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
        own[who] = peer.bytes_received, own[RANKS_MAX + who] = peer.bytes_sent;
    }
    CHECK_OK(hpc_allgather(r->context, own, all, sizeof own, -1));
    for (int who = 0; who < r->size; who++)
        if (who != r->rank) CHECK_EQ(own[who], all[(size_t)who * 2 * RANKS_MAX + RANKS_MAX + (size_t)r->rank]);
}

static void trains(rank *r) {
    job j;
    reference ref;
    model m;
    hpc_plan *plan = make_plan(&j, r, r->arg);
    hpc_exchange *e = open_exchange(r, &j);
    const int steps = ranks_rounds(STEPS);
    reference_init(&ref, &j);
    model_init(&m, &j);
    train(r, &j, e, &m, &ref, steps);
    if (!job_works(&j, r->rank)) CHECK_OK(hpc_exchange_serve(e, -1));
    if (job_works(&j, r->rank)) check_encoders(r, &m, e, (uint64_t)steps);
    for (int key = 0; key < j.n_keys; key++) {
        hpc_key_stats stats;
        CHECK_OK(hpc_exchange_get_key_stats(e, key, &stats));
        if (wire_of(r->arg, key) == HPC_F16) CHECK(stats.pieces == 0 && stats.decoded == 0);
        CHECK(stats.bytes_before == 4 * stats.elements && stats.kept <= stats.elements);
        CHECK(stats.bytes <= stats.bytes_before + 16 * stats.pieces);
    }
    model_free(&m);
    if (!(r->arg & SERVER)) check_received(r, e); /* a server serves until all have closed */
    job_close(e, &ref, NULL);
    hpc_plan_free(plan);
}

/* The last rank's updates have weight 0: it tells that it is ready, encodes nothing, and gets parameters. */
static void ready_only(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    j.n_keys = 1, j.wire = HPC_THRESHOLD;
    const uint64_t count = j.keys[0].count;
    const int last = r->size - 1;
    hpc_edge in[RANKS_MAX], out[RANKS_MAX];
    for (int who = 0; who < r->size; who++) {
        in[who] = (hpc_edge){who, -1, who < last ? 1 : 0};
        out[who] = (hpc_edge){who, -1, 1};
    }
    const hpc_row row = {.action = HPC_APPLY,
                         .count = count,
                         .depth = 1,
                         .quorum = r->size,
                         .codec_in = HPC_THRESHOLD,
                         .n_in = r->size,
                         .n_out = r->size,
                         .in = in,
                         .out = out};
    const hpc_plan plan = {.n_keys = 1, .n_rows = 1, .keys = j.keys, .rows = &row};
    hpc_codec_config_init(&config); /* delta is 0: all is sent */
    configs[0] = &config;
    j.plan = &plan;
    hpc_exchange *e = open_exchange(r, &j);
    reference_init(&ref, &j);
    CHECK_EQ(hpc_exchange_encoder_values(e, 0, -1) > 0, r->rank < last);
    double *sum = malloc(count * sizeof *sum);
    for (int step = 0; step < ranks_rounds(STEPS); step++) {
        uint64_t ticket = job_start(r, &j, e, 0, step, HPC_PUSH | HPC_PULL, step % 2 && r->rank < last);
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
        for (uint64_t i = 0; i < count; i++) {
            sum[i] = 0;
            for (int who = 0; who < last; who++) sum[i] += (double)job_gradient(&j, who, step, 0, i);
        }
        reference_apply(&ref, 0, sum);
        reference_check(&ref, r, e, 0);
    }
    free(sum);
    job_close(e, &ref, NULL);
}

#define HOSTS(n, what) ((n)*HOSTS_OF + (what))

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "alone", .size = 1, .run = trains},
        {.name = "hub", .size = 3, .run = trains},
        {.name = "hub_threads", .size = 4, .run = trains, .arg = THREADS | DEEP | MIXED},
        {.name = "hub_finite", .size = 3, .run = trains, .arg = FINITE},
        {.name = "hub_packed", .size = 3, .run = trains, .arg = PACKED},
        {.name = "receivers_packed", .size = 3, .run = trains, .arg = PACKED | RECEIVERS | THREADS},
        {.name = "server", .size = 4, .run = trains, .arg = SERVER | MIXED},
        {.name = "ready_only", .size = 3, .run = ready_only},
        {.name = "split", .size = 3, .run = trains, .arg = SPLIT | MIXED},
        {.name = "receivers", .size = 3, .run = trains, .arg = RECEIVERS},
        {.name = "receivers_threads", .size = 4, .run = trains, .arg = RECEIVERS | THREADS | MIXED},
        {.name = "receivers_server", .size = 4, .run = trains, .arg = RECEIVERS | SERVER},
        {.name = "receivers_sgd", .size = 4, .run = trains, .arg = RECEIVERS | SGD | MIXED},
        {.name = "hosts_receivers_sgd", .size = 5, .run = trains, .arg = HOSTS(2, RECEIVERS | SGD | THREADS)},
        {.name = "2_hosts_of_2", .size = 4, .run = trains, .arg = HOSTS(2, 0)},
        {.name = "3_hosts_uneven", .size = 5, .run = trains, .arg = HOSTS(2, THREADS | MIXED)},
        {.name = "4_hosts_of_1", .size = 4, .run = trains, .arg = HOSTS(1, DEEP)},
        {.name = "racks", .size = 7, .run = trains, .arg = HOSTS(2, RACKS)},
        {.name = "ring", .size = 6, .run = trains, .arg = HOSTS(2, RING | MIXED)},
        {.name = "ring_of_1", .size = 4, .run = trains, .arg = HOSTS(1, RING)},
        {.name = "receivers_of_large_rows", .size = 3, .run = trains, .arg = RECEIVERS | LARGE},
        {.name = "hosts_of_large_rows", .size = 4, .run = trains, .arg = HOSTS(2, LARGE | MIXED)},
        {.name = "hosts_receivers_of_large_rows", .size = 5, .run = trains, .arg = HOSTS(2, RECEIVERS | LARGE)},
        {.name = "hosts_receivers", .size = 5, .run = trains, .arg = HOSTS(2, RECEIVERS)},
        {.name = "racks_receivers", .size = 8, .run = trains, .arg = HOSTS(2, RACKS | RECEIVERS | THREADS | MIXED)},
        {.name = "ring_receivers", .size = 6, .run = trains, .arg = HOSTS(2, RING | RECEIVERS)},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
