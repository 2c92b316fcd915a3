#include "exchange_plans.h"

#include <pthread.h>
#include <sched.h>

/* ---- jobs --------------------------------------------------------------------------------------------------- */

static char names[JOB_KEYS][8];

static void make_names(void) {
    for (int key = 0; key < JOB_KEYS; key++) snprintf(names[key], sizeof names[key], "k%d", key);
}

const char *job_key_name(int key) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    CHECK_EQ(pthread_once(&once, make_names), 0);
    return names[key];
}

void job_number(job *j, int first) {
    j->first = first;
    for (int key = 0; key < j->n_keys; key++) j->keys[key].name = job_key_name(first + key);
}

void job_init(job *j, const rank *r) {
    *j = (job){.cores = 1, .depth = 1, .chunk = 1024, .rule = "sgd", .args = {0, 0.5}, .sum = 1, .seed = 1};
    j->n_keys = 3;
    j->keys[0] = (hpc_key){job_key_name(0), 1001, 0};
    j->keys[1] = (hpc_key){job_key_name(1), 33, 0};
    j->keys[2] = (hpc_key){job_key_name(2), 4097, 0};
    for (int i = 0; i < r->size; i++) j->workers[i] = j->servers[i] = i;
    j->n_workers = j->n_servers = r->size;
    j->progress = HPC_PROGRESS_INLINE;
}

static int below(uint64_t *state, int n) {
    return (int)(ranks_random(state) % (uint64_t)n);
}

void job_random_sizes(job *j, uint64_t *state, uint64_t most) {
    for (int i = 0; i < j->n_keys; i++) {
        uint64_t bits = ranks_random(state) % 15, count = 1 + ranks_random(state) % (2u << bits);
        j->keys[i] = (hpc_key){job_key_name(i), count < most ? count : most, 0};
    }
}

static void random_placement(job *j, uint64_t *state, int size) {
    int dedicated = below(state, 2), central = below(state, 2);
    if (size == 2) central |= dedicated;
    j->n_servers = j->n_workers = 0;
    int n_dedicated = !dedicated ? 0 : central ? 1 : 1 + below(state, size - 1), first = below(state, size);
    for (int i = 0; i < size; i++) {
        int who = (first + i) % size;
        bool serves = dedicated ? i < n_dedicated : !central || i == 0;
        if (serves) j->servers[j->n_servers++] = who;
    }
    for (int who = 0; who < size; who++) {
        bool serves = false;
        for (int i = 0; i < j->n_servers; i++) serves |= j->servers[i] == who;
        if (!dedicated || !serves) j->workers[j->n_workers++] = who;
    }
}

void job_random(job *j, const rank *r, uint64_t seed) {
    static const int wires[] = {HPC_F32, HPC_F32, HPC_F16, HPC_BF16};
    static const char *const rules[] = {"sgd", "momentum", "average"};
    uint64_t state = seed * 1000003 + (uint64_t)r->size;
    job_init(j, r);
    j->seed = seed;
    j->n_keys = 1 + below(&state, 12);
    random_placement(j, &state, r->size);
    j->cores = 1 + below(&state, 3);
    j->depth = 1 + below(&state, 2);
    j->wire = wires[below(&state, 4)];
    j->chunk = (uint64_t)64 << below(&state, 11);
    if (below(&state, 3) == 0) j->chunk += 64 * ranks_random(&state) % 4096;
    job_random_sizes(j, &state, j->chunk * 32 < 20001 ? j->chunk * 32 : 20001); /* at most 128 chunks a key */
    j->sum = (j->n_workers & (j->n_workers - 1)) || below(&state, 2);
    j->rule = rules[below(&state, 3)];
    j->args[1] = below(&state, 2) ? 0.5 : 0.25;
    j->args[3] = 0.5;
    j->check_finite = below(&state, 4) == 0;
    j->shared_params = strcmp(r->mode->transports, "shm") == 0 && below(&state, 4) == 0;
    j->affinity = below(&state, 2);
    j->interfaces = below(&state, j->cores + 1);
    j->mixed = below(&state, 2);
}

int job_wire(const job *j, int key) {
    static const int wires[] = {HPC_F32, HPC_F16, HPC_BF16};
    return j->mixed ? wires[((uint64_t)key + j->seed) % 3] : j->wire;
}

void job_wires(const job *j, int *wires) {
    for (int key = 0; key < j->n_keys; key++) wires[key] = job_wire(j, key);
}

bool job_is_float32(const job *j) {
    for (int key = 0; key < j->n_keys; key++) {
        if (job_wire(j, key) != HPC_F32) return false;
    }
    return true;
}

static bool among(const int *ranks, int n, int who) {
    for (int i = 0; i < n; i++) {
        if (ranks[i] == who) return true;
    }
    return false;
}

void job_trees(const job *j, int children, int *parents) {
    for (int s = 0; s < j->n_servers; s++) {
        int root = 0;
        while (root < j->n_workers && j->workers[root] != j->servers[s]) root++;
        const int works = root < j->n_workers, n = j->n_workers + !works; /* places; that of the server is 0 */
        for (int w = 0; w < j->n_workers; w++) {
            const int place = works ? (w - root + n) % n : w + 1, above = (place - 1) / children;
            int *parent = &parents[s * j->n_workers + w];
            if (place == 0 || above == 0)
                *parent = -1;
            else
                *parent = works ? (above + root) % n : above - 1;
        }
    }
}

bool job_works(const job *j, int who) {
    return among(j->workers, j->n_workers, who);
}

bool job_serves(const job *j, int who) {
    return among(j->servers, j->n_servers, who);
}

void job_config_init(job_config *to, const rank *r, const job *j, const hpc_exchange_config *config) {
    int wires[JOB_KEYS];
    *to = (job_config){.config = *config};
    for (int key = 0; key < j->n_keys; key++) {
        to->values[key] = malloc(j->keys[key].count * sizeof(float));
        for (uint64_t i = 0; i < j->keys[key].count; i++) to->values[key][i] = job_initial(j, key, i);
    }
    if (!j->plan) {
        hpc_hub hub;
        hpc_plan_args_init("hub", &hub, sizeof hub);
        hub.keys = j->keys, hub.n_keys = j->n_keys;
        hub.workers = j->workers, hub.n_workers = j->n_workers;
        hub.servers = j->servers, hub.n_servers = j->n_servers;
        hub.cores = j->cores, hub.chunk = j->chunk, hub.depth = j->depth, hub.wire = j->wire;
        hub.sum = j->sum, hub.each = j->each, hub.affinity = j->affinity, hub.interfaces = j->interfaces;
        hub.codec_out = j->codec_out, hub.apply_at = j->apply_at;
        if (j->mixed) hub.wires = wires, hub.n_wires = j->n_keys;
        job_wires(j, wires);
        CHECK_OK(hpc_plan_make("hub", &hub, &to->plan));
    }
    CHECK_OK(hpc_rule_find(j->rule, j->isa, &to->rule));
    memcpy(to->rule.args, j->args, sizeof to->rule.args);
    if (!to->config.rule) to->config.rule = &to->rule;
    to->config.plan = j->plan ? j->plan : to->plan;
    to->config.values = r->rank == 0 ? (const float *const *)to->values : NULL; /* rank 0's count */
}

void job_config_free(job_config *config) {
    hpc_plan_free(config->plan);
    for (int key = 0; key < JOB_KEYS; key++) free(config->values[key]);
}

int job_create_with(const rank *r, const job *j, const hpc_exchange_config *config, double timeout,
                    hpc_exchange **exchange) {
    job_config c;
    job_config_init(&c, r, j, config);
    int status = hpc_exchange_create(r->context, &c.config, timeout, exchange);
    job_config_free(&c);
    return status;
}

void job_settings(hpc_exchange_config *config, const job *j) {
    hpc_exchange_config_init(config);
    config->consistency = j->each ? HPC_ASYNC : HPC_BSP;
    config->progress = j->progress;
    config->shared_params = j->shared_params;
    config->in_place = j->in_place;
    config->check_finite = j->check_finite;
    config->isa = j->isa;
    config->split = j->split;
    config->quorum = j->quorum, config->grace = j->grace;
}

int job_create(const rank *r, const job *j, double timeout, hpc_exchange **exchange) {
    hpc_exchange_config c;
    job_settings(&c, j);
    return job_create_with(r, j, &c, timeout, exchange);
}

hpc_exchange *job_open(const rank *r, const job *j) {
    hpc_exchange *e = NULL;
    CHECK_OK(job_create(r, j, -1, &e));
    CHECK(e);
    return e;
}

/* ---- numbers ------------------------------------------------------------------------------------------------ */

static float small(uint64_t seed, uint32_t a, uint32_t b, uint32_t c, uint64_t i) {
    uint32_t h = (uint32_t)seed * 0x9e3779b1u + a * 0x85ebca6bu + b * 0xc2b2ae35u + c * 0x27d4eb2fu;
    h ^= (uint32_t)i * 0x165667b1u;
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    return (float)((int)(h >> 20 & 15) - 8);
}

float job_initial(const job *j, int key, uint64_t i) {
    return small(j->seed, 99, 77, (uint32_t)key, i) + j->shift;
}

float job_gradient(const job *j, int worker, int step, int key, uint64_t i) {
    return small(j->seed, (uint32_t)worker, (uint32_t)step, (uint32_t)key, i);
}

void job_fill(const job *j, int worker, int step, int key, float *to) {
    for (uint64_t i = 0; i < j->keys[key].count; i++) to[i] = job_gradient(j, worker, step, key, i);
}

uint64_t job_start(const rank *r, const job *j, hpc_exchange *e, int key, int step, int flags, bool in_place) {
    uint64_t ticket = 0, count = j->keys[key].count;
    float *src = malloc(count * sizeof *src);
    job_fill(j, r->rank, step, key, src);
    if (in_place) {
        void *gradient = NULL;
        CHECK_OK(hpc_exchange_gradient(e, j->first + key, -1, &gradient));
        CHECK(gradient && (uintptr_t)gradient % 64 == 0);
        if (job_wire(j, key) == HPC_F32 || job_wire(j, key) >= HPC_THRESHOLD || j->in_place)
            memcpy(gradient, src, count * sizeof *src);
        else
            CHECK_OK(hpc_encode(gradient, src, count, job_wire(j, key), HPC_ISA_GENERIC));
    }
    CHECK_OK(hpc_exchange_start(e, j->first + key, flags, in_place ? NULL : src, -1, &ticket));
    memset(src, 0xcc, count * sizeof *src); /* free to reuse on return */
    free(src);
    return ticket;
}

void job_push_pull(const rank *r, const job *j, hpc_exchange *e, int key, int step) {
    uint64_t ticket = job_start(r, j, e, key, step, HPC_PUSH | HPC_PULL, step % 2);
    CHECK_OK(hpc_exchange_wait(e, j->first + key, ticket, -1));
}

/* ---- what must come of them ----------------------------------------------------------------------------------- */

void reference_init(reference *ref, const job *j) {
    *ref = (reference){.j = j};
    for (int key = 0; key < j->n_keys; key++) {
        uint64_t count = j->keys[key].count;
        ref->params[key] = malloc(count * sizeof(float));
        ref->state[key] = calloc(count, sizeof(float));
        CHECK(ref->params[key] && ref->state[key]);
        for (uint64_t i = 0; i < count; i++) ref->params[key][i] = job_initial(j, key, i);
    }
}

void reference_free(reference *ref) {
    for (int key = 0; key < ref->j->n_keys; key++) {
        free(ref->params[key]);
        free(ref->state[key]);
    }
}

void reference_apply(reference *ref, int key, const double *sum) {
    const job *j = ref->j;
    double lr = j->args[1], decay = j->args[2], mu = j->args[3];
    bool average = strcmp(j->rule, "average") == 0, momentum = strcmp(j->rule, "momentum") == 0;
    for (uint64_t i = 0; i < j->keys[key].count; i++) {
        double param = ref->params[key][i], g = sum[i] + decay * param;
        if (momentum) ref->state[key][i] = (float)(g = mu * ref->state[key][i] + g);
        ref->params[key][i] = (float)(average ? sum[i] : param - lr * g);
    }
    ref->step[key]++;
}

void reference_step(reference *ref, int key) {
    const job *j = ref->j;
    uint64_t count = j->keys[key].count;
    double *sum = calloc(count, sizeof *sum), weight = j->sum ? 1 : 1.0 / j->n_workers;
    for (int w = 0; w < j->n_workers; w++) {
        for (uint64_t i = 0; i < count; i++) {
            sum[i] += weight * (double)job_gradient(j, j->workers[w], ref->step[key], key, i);
        }
    }
    reference_apply(ref, key, sum);
    free(sum);
}

bool same_floats(const float *at, const float *expected, uint64_t count, const char *what, int who, int key) {
    if (memcmp(at, expected, count * sizeof *at) == 0) return true;
    uint64_t wrong = 0, first = count;
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp(&at[i], &expected[i], sizeof *at) == 0) continue;
        if (!wrong++) first = i;
    }
    if (!wrong) return true;
    fprintf(stderr, "rank %d, key %d, %s: element %llu of %llu is %.9g, not %.9g; %llu are wrong\n", who, key, what,
            (unsigned long long)first, (unsigned long long)count, (double)at[first], (double)expected[first],
            (unsigned long long)wrong);
    return false;
}

void reference_check(const reference *ref, const rank *r, hpc_exchange *e, int key) {
    char what[32];
    snprintf(what, sizeof what, "after step %d", ref->step[key]);
    const float *at = hpc_exchange_params(e, ref->j->first + key);
    CHECK(same_floats(at, ref->params[key], ref->j->keys[key].count, what, r->rank, key));
}

uint64_t progress_until(const rank *r, hpc_exchange *e, int word, uint64_t at_least) {
    uint64_t value;
    while ((value = atomic_load(&r->board[word])) < at_least) {
        CHECK_OK(hpc_exchange_progress(e));
        sched_yield();
    }
    return value;
}

/* ---- plans by hand ---------------------------------------------------------------------------------------------- */

hand_plan *hand_new(void) {
    hand_plan *h = malloc(sizeof *h);
    CHECK(h);
    return h;
}

void job_close(hpc_exchange *e, reference *ref, hand_plan *h) {
    CHECK_OK(hpc_exchange_close(e, -1));
    if (ref != NULL) reference_free(ref);
    hpc_exchange_free(e);
    free(h);
}

static hpc_edge *hand_edge(hand_plan *h, hpc_edge edge) {
    CHECK(h->n_edges < HAND_EDGES);
    h->edges[h->n_edges] = edge;
    return &h->edges[h->n_edges++];
}

static hpc_row *hand_row(hand_plan *h, int key, int owner, int action, int wire, uint64_t from, uint64_t count) {
    CHECK(h->plan.n_rows < HAND_ROWS);
    hpc_row *row = &h->rows[h->plan.n_rows++];
    *row = (hpc_row){.key = key, .owner = owner, .action = action, .offset = from, .count = count, .depth = 1};
    row->core = h->core;
    row->codec_in = wire;
    row->codec_out = HPC_F32;
    return row;
}

static void hand_start(hand_plan *h, const job *j) {
    memset(h, 0, sizeof *h);
    h->plan = (hpc_plan){.n_keys = j->n_keys, .keys = j->keys, .rows = h->rows};
}

void hand_racks(hand_plan *h, const job *j, int size, int wire, uint64_t most) {
    hand_start(h, j);
    for (int key = 0; key < j->n_keys; key++) {
        for (uint64_t from = 0, count; from < j->keys[key].count; from += count) {
            count = j->keys[key].count - from < most ? j->keys[key].count - from : most;
            h->core = (int)(from / most % 2);
            int racks = (size + 1) / 2, base = h->plan.n_rows;
            for (int rack = 0; rack < racks; rack++) {
                hpc_row *row = hand_row(h, key, 2 * rack, HPC_FORWARD, wire, from, count);
                for (int who = 2 * rack; who < size && who < 2 * rack + 2; who++) {
                    hpc_edge *edge = hand_edge(h, (hpc_edge){who, -1, 1});
                    if (!row->n_in++) row->in = edge;
                }
                row->quorum = row->n_in;
                row->n_out = 1;
                row->out = hand_edge(h, (hpc_edge){size - 1, base + racks, 1});
            }
            hpc_row *row = hand_row(h, key, size - 1, HPC_APPLY, HPC_F32, from, count);
            for (int rack = 0; rack < racks; rack++) {
                hpc_edge *edge = hand_edge(h, (hpc_edge){2 * rack, base + rack, 0.5});
                if (!row->n_in++) row->in = edge;
            }
            row->quorum = row->n_in;
            for (int who = 0; who < size; who++) {
                hpc_edge *edge = hand_edge(h, (hpc_edge){who, -1, 1});
                if (!row->n_out++) row->out = edge;
            }
        }
    }
}

/* Rows of a piece: the hops, one a rank but the last, then the rules, one a rank. A hop feeds the next rank's hop and
 * rule, the first one also its own rank's rule. */
void hand_relay(hand_plan *h, const job *j, int size, uint64_t most) {
    hand_start(h, j);
    for (int key = 0; key < j->n_keys; key++) {
        for (uint64_t from = 0, count; from < j->keys[key].count; from += count) {
            count = j->keys[key].count - from < most ? j->keys[key].count - from : most;
            h->core = (int)(from / most % 2);
            int hops = h->plan.n_rows, rules = hops + size - 1;
            for (int who = 0; who < size - 1; who++) {
                hpc_row *row = hand_row(h, key, who, HPC_FORWARD, HPC_F32, from, count);
                for (int i = 0; i < (who ? 1 : size); i++) {
                    hpc_edge *edge = hand_edge(h, who ? (hpc_edge){who - 1, hops + who - 1, 1} : (hpc_edge){i, -1, 1});
                    if (!row->n_in++) row->in = edge;
                }
                row->quorum = row->n_in;
                row->out = hand_edge(h, (hpc_edge){who + 1, rules + who + 1, 1});
                if (who < size - 2) hand_edge(h, (hpc_edge){who + 1, hops + who + 1, 1});
                if (who == 0) hand_edge(h, (hpc_edge){0, rules, 1});
                row->n_out = 1 + (who < size - 2) + (who == 0);
            }
            for (int who = 0; who < size; who++) {
                int source = who ? who - 1 : 0;
                hpc_row *row = hand_row(h, key, who, HPC_APPLY, HPC_F32, from, count);
                row->in = hand_edge(h, (hpc_edge){source, hops + source, 1});
                row->out = hand_edge(h, (hpc_edge){who, -1, 1});
                row->n_in = row->n_out = row->quorum = 1;
            }
        }
    }
}

void hand_layers(hand_plan *h, const job *j, int size, int layers) {
    hand_start(h, j);
    for (int key = 0; key < j->n_keys; key++) {
        int base = h->plan.n_rows;
        for (int i = 0; i <= layers * size; i++) {
            int layer = i / size, last = layer == layers;
            int n_in = layer == 0 ? j->n_workers : size, n_out = last ? j->n_workers : layer == layers - 1 ? 1 : size;
            hpc_row *row = hand_row(h, key, i % size, last ? HPC_APPLY : HPC_FORWARD, HPC_F32, 0, j->keys[key].count);
            for (int n = 0; n < n_in; n++) {
                hpc_edge push = {j->workers[n], -1, 1}, forward = {n, base + (layer - 1) * size + n, 1.0 / size};
                hpc_edge *edge = hand_edge(h, layer == 0 ? push : forward);
                if (!row->n_in++) row->in = edge;
            }
            row->quorum = row->n_in;
            for (int n = 0; n < n_out; n++) {
                hpc_edge pull = {j->workers[n], -1, 1}, forward = {n, base + (layer + 1) * size + n, 1};
                hpc_edge *edge = hand_edge(h, last ? pull : forward);
                if (!row->n_out++) row->out = edge;
            }
        }
    }
}

void hand_ring(hand_plan *h, const job *j, int size, int wire, uint64_t most) {
    hand_start(h, j);
    for (int key = 0; key < j->n_keys; key++) {
        for (uint64_t from = 0, count; from < j->keys[key].count; from += count) {
            count = j->keys[key].count - from < most ? j->keys[key].count - from : most;
            h->core = (int)(from / most % 2);
            for (int who = 0; who < size; who++) {
                hpc_row *row = hand_row(h, key, who, HPC_EMIT, wire, from, count);
                row->in = hand_edge(h, (hpc_edge){(who + size - 1) % size, -1, 0.25});
                hand_edge(h, (hpc_edge){who, -1, 0.5});
                hand_edge(h, (hpc_edge){(who + 1) % size, -1, 0.25});
                row->n_in = row->quorum = 3;
                row->out = hand_edge(h, (hpc_edge){who, -1, 1});
                row->n_out = 1;
            }
        }
    }
}

/* ---- hosts ---- */

static void hand_ends(hand_plan *h, hpc_row *row, bool in, hpc_edge edge) {
    hpc_edge *at = hand_edge(h, edge);
    if (in && !row->n_in++) row->in = at;
    if (!in && !row->n_out++) row->out = at;
}

/* Rows of a piece: place 0 is the owner's host; the forward and the relay of place p are rows 2 p - 1 and 2 p. */
void hand_hosts(hand_plan *h, const job *j, int size, int per_host, bool chain, uint64_t most) {
    int hosts = (size + per_host - 1) / per_host, piece = 0;
    hand_start(h, j);
    for (int key = 0; key < j->n_keys; key++) {
        for (uint64_t from = 0, count; from < j->keys[key].count; from += count, piece++) {
            int base = h->plan.n_rows, leads[RANKS_MAX] = {0}, first[RANKS_MAX], last[RANKS_MAX];
            count = j->keys[key].count - from < most ? j->keys[key].count - from : most;
            h->core = piece / 2 % 2;
            for (int p = 0; p < hosts; p++) {
                int host = (piece + p) % hosts;
                first[p] = host * per_host;
                last[p] = first[p] + per_host < size ? first[p] + per_host : size;
                leads[p] = first[p] + (piece + p) / 3 % (last[p] - first[p]);
            }
            hpc_row *apply = hand_row(h, key, leads[0], HPC_APPLY, j->wire, from, count);
            for (int p = 1; p < hosts; p++) {
                hand_row(h, key, leads[p], HPC_FORWARD, j->wire, from, count)->codec_out = j->wire;
                hand_row(h, key, leads[p], HPC_RELAY, j->codec_out, from, count)->codec_out = j->codec_out;
            }
            apply->codec_out = j->codec_out;
            for (int p = 0; p < hosts; p++) {
                hpc_row *up = p ? apply + 2 * p - 1 : apply;
                for (int who = first[p]; who < last[p]; who++) hand_ends(h, up, true, (hpc_edge){who, -1, 1});
                for (int q = 1; q < hosts; q++)
                    if (chain ? q == p + 1 : p == 0) hand_ends(h, up, true, (hpc_edge){leads[q], base + 2 * q - 1, 1});
                up->quorum = up->n_in;
            }
            for (int p = 0; p < hosts; p++) {
                hpc_row *down = p ? apply + 2 * p : apply;
                int above = chain ? p - 1 : 0;
                if (p > 0) {
                    hand_ends(h, apply + 2 * p - 1, false,
                              (hpc_edge){leads[above], above ? base + 2 * above - 1 : base, 1});
                    hand_ends(h, down, true, (hpc_edge){leads[above], above ? base + 2 * above : base, 1});
                    down->quorum = 1;
                }
                for (int who = first[p]; who < last[p]; who++) hand_ends(h, down, false, (hpc_edge){who, -1, 1});
                for (int q = 1; q < hosts; q++)
                    if (chain ? q == p + 1 : p == 0) hand_ends(h, down, false, (hpc_edge){leads[q], base + 2 * q, 1});
            }
        }
    }
}

/* ---- a tree ---- */

/* Row base + who of a chunk belongs to rank who. Leaves have no rows. */
void hand_tree(hand_plan *h, const job *j, int size, int arity, uint64_t most) {
    int inner = (size - 2) / arity + 1;
    hand_start(h, j);
    for (int key = 0; key < j->n_keys; key++) {
        for (uint64_t from = 0, count; from < j->keys[key].count; from += count) {
            int base = h->plan.n_rows;
            count = j->keys[key].count - from < most ? j->keys[key].count - from : most;
            h->core = (int)(from / most % 2);
            for (int who = 0; who < inner; who++) {
                hpc_row *row =
                    hand_row(h, key, who, who ? HPC_RELAY : HPC_EMIT, who ? j->codec_out : j->wire, from, count);
                int above = (who - 1) / arity;
                row->codec_out = j->codec_out;
                if (who) hand_ends(h, row, true, (hpc_edge){above, base + above, 1});
                for (int ready = 0; ready < size && !who; ready++)
                    hand_ends(h, row, true, (hpc_edge){ready, -1, ready ? 0 : 1});
                row->quorum = row->n_in;
                hand_ends(h, row, false, (hpc_edge){who, -1, 1});
                for (int child = who * arity + 1; child <= who * arity + arity && child < size; child++)
                    hand_ends(h, row, false, (hpc_edge){child, child < inner ? base + child : -1, 1});
            }
        }
    }
}

/* ---- traffic ---- */

static uint64_t bytes_of(const hpc_row *row, int codec) {
    return row->count * (codec == HPC_F32 ? 4 : 2);
}

/* Into mapped memory parameters are written decoded. A push of weight 0 has no bytes. */
static uint64_t stage_traffic(const hpc_plan *plan, int from, int to, hpc_traffic_stage stage, bool mapped) {
    uint64_t bytes = 0;
    for (int i = 0; i < plan->n_rows && from != to; i++) {
        const hpc_row *row = &plan->rows[i];
        const hpc_traffic_stage by_rows = row->action == HPC_RELAY ? HPC_TRAFFIC_RELAY : HPC_TRAFFIC_FORWARD;
        for (int e = 0; e < row->n_in && row->owner == to; e++)
            if (row->in[e].rank == from && stage == (row->in[e].row < 0 ? HPC_TRAFFIC_PUSH : by_rows))
                bytes += row->in[e].weight == 0 ? 0 : bytes_of(row, row->codec_in);
        for (int e = 0; e < row->n_out && row->owner == from; e++)
            if (row->out[e].rank == to && row->out[e].row < 0 && stage == HPC_TRAFFIC_PARAMETERS)
                bytes += bytes_of(row, mapped ? HPC_F32 : row->codec_out);
    }
    return bytes;
}

uint64_t rows_traffic(const hpc_plan *plan, int from, int to) {
    return stage_traffic(plan, from, to, HPC_TRAFFIC_PUSH, false) +
           stage_traffic(plan, from, to, HPC_TRAFFIC_FORWARD, false) +
           stage_traffic(plan, from, to, HPC_TRAFFIC_RELAY, false);
}

void check_traffic(const rank *r, const hpc_exchange *e, const hpc_plan *plan, uint64_t steps, uint64_t publishes) {
    hpc_traffic traffic[RANKS_MAX * HPC_TRAFFIC_STAGES];
    hpc_exchange_stats stats;
    uint64_t sent = 0;
    const bool mapped = strcmp(r->mode->transports, "shm") == 0;
    const int n = hpc_exchange_get_traffic(e, traffic, RANKS_MAX * HPC_TRAFFIC_STAGES);
    int found = 0;
    uint64_t by_rank = 0, by_key = 0;
    hpc_key_stats of_key;
    for (int i = 0; i < n; i++) by_rank += traffic[i].bytes;
    for (int key = 0; key < plan->n_keys; key++) {
        CHECK_OK(hpc_exchange_get_key_stats(e, key, &of_key));
        by_key += of_key.sent;
    }
    CHECK_EQ(by_key, by_rank);
    for (int who = 0; who < r->size; who++) {
        hpc_exchange_peer peer;
        for (int stage = 0; stage < HPC_TRAFFIC_STAGES; stage++) {
            uint64_t times = stage >= HPC_TRAFFIC_RELAY ? steps + publishes : steps;
            uint64_t bytes = times * stage_traffic(plan, r->rank, who, (hpc_traffic_stage)stage, mapped);
            if (bytes == 0) continue;
            CHECK(found < n);
            CHECK_EQ(traffic[found].rank, who);
            CHECK_EQ(traffic[found].stage, stage);
            CHECK_EQ(traffic[found].bytes, bytes);
            CHECK(strcmp(traffic[found++].wire, r->mode->transports) == 0);
        }
        CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
        CHECK_EQ(peer.bytes_sent, steps * rows_traffic(plan, r->rank, who) +
                                      publishes * stage_traffic(plan, r->rank, who, HPC_TRAFFIC_RELAY, mapped));
        CHECK_EQ(peer.bytes_received, steps * rows_traffic(plan, who, r->rank) +
                                          publishes * stage_traffic(plan, who, r->rank, HPC_TRAFFIC_RELAY, mapped));
        sent += peer.bytes_sent;
    }
    CHECK_EQ(found, n);
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.bytes_sent, sent);
}
