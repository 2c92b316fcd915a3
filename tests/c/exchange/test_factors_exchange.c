/* Training with factors: for whole numbers the parameters are those of the dense exchange, bit for bit, whatever the
 * rule and whether all vectors are dense, and no sum of a whole row is made. */
#include "check.h"
#include "codec/factors.h"
#include "engine/owner/kind.h"
#include "inside.h"
#include "ranks.h"

enum { STEPS = 3, KEYS = 4, BOTH = HPC_PUSH | HPC_PULL };

static const struct {
    const char *name, *rule;
    uint64_t rows, columns, blocks;
    double decay;
    int pairs, values, sparse; /* sparse: bit 0 u, bit 1 v */
} keys[KEYS] = {
    {"sgd", "sgd", 130, 70, 1, 0, 9, HPC_F32, 0},
    {"decay", "sgd", 1040, 520, 1, 0.25, 5, HPC_F16, 1},
    {"momentum", "momentum", 700, 400, 7, 0, 4, HPC_F32, 2},
    {"adam", "adam", 33, 21, 1, 0, 40, HPC_F32, 3},
};

typedef struct game {
    hpc_key keys[KEYS];
    hpc_codec_config configs[KEYS];
    const hpc_codec_config *list[KEYS];
    hpc_rule rules[KEYS];
    const hpc_rule *given[KEYS];
    float *values[KEYS];
    int wires[KEYS];
    hpc_plan *plan;
    hpc_exchange *e;
} game;

/* SPLIT, beside the rest: fold and apply are two calls. */
enum { HUB, SERVER, PEERS, SPLIT = 4 };

static void make_plan(game *g, const rank *r, int topology) {
    int ranks[RANKS_MAX];
    for (int i = 0; i < r->size; i++) ranks[i] = i;
    if (topology == PEERS) {
        hpc_peer_to_peer peers;
        hpc_plan_args_init("peer_to_peer", &peers, sizeof peers);
        peers.keys = g->keys, peers.n_keys = KEYS, peers.workers = ranks, peers.n_workers = r->size, peers.cores = 1;
        peers.sum = 1, peers.wires = g->wires, peers.n_wires = KEYS;
        CHECK_OK(hpc_plan_make("peer_to_peer", &peers, &g->plan));
        return;
    }
    hpc_hub hub;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = g->keys, hub.n_keys = KEYS, hub.workers = hub.servers = ranks, hub.n_workers = r->size;
    hub.n_servers = topology == HUB ? r->size : 1, hub.cores = 2, hub.chunk = 1 << 16, hub.sum = 1;
    hub.wires = g->wires, hub.n_wires = KEYS;
    CHECK_OK(hpc_plan_make("hub", &hub, &g->plan));
}

static void open_game(game *g, const rank *r, int arg, int factors) {
    hpc_exchange_config c;
    memset(g, 0, sizeof *g);
    for (int k = 0; k < KEYS; k++) {
        const uint64_t n = keys[k].rows * keys[k].columns;
        hpc_codec_config *config = &g->configs[k];
        hpc_codec_config_init(config);
        config->rows = keys[k].rows, config->columns = keys[k].columns, config->unit = n / keys[k].blocks;
        config->pairs = keys[k].pairs, config->values = keys[k].values;
        g->list[k] = config;
        g->keys[k] = (hpc_key){.name = keys[k].name, .count = n, .unit = factors ? config->unit : 1};
        g->wires[k] = factors ? HPC_FACTORS : HPC_F32;
        CHECK_OK(hpc_rule_find(keys[k].rule, HPC_ISA_BEST, &g->rules[k]));
        g->rules[k].args[1] = 0.375, g->rules[k].args[2] = keys[k].decay;
        if (strcmp(keys[k].rule, "adam") == 0) g->rules[k].args[2] = 0.9;
        g->given[k] = &g->rules[k];
        g->values[k] = malloc(n * sizeof(float));
        CHECK(g->values[k] != NULL);
        for (uint64_t i = 0; i < n; i++) g->values[k][i] = (float)(i % 37) - 11;
    }
    make_plan(g, r, arg & ~SPLIT);
    hpc_exchange_config_init(&c);
    c.split = (arg & SPLIT) != 0;
    c.plan = g->plan, c.rules = g->given, c.values = (const float *const *)g->values;
    if (factors) c.codecs = g->list;
    CHECK_OK(hpc_exchange_create(r->context, &c, -1, &g->e));
}

static void close_game(game *g) {
    CHECK_OK(hpc_exchange_close(g->e, -1));
    hpc_exchange_free(g->e);
    hpc_plan_free(g->plan);
    for (int k = 0; k < KEYS; k++) free(g->values[k]);
}

static float whole(uint64_t *state, int sparse) {
    const uint64_t word = ranks_random(state);
    return sparse && word % 16 != 0 ? 0 : (float)((int)(word >> 8) % 7) - 3;
}

/* Writes an update, and its sum. A step may have no pairs. */
static void write_update(const rank *r, int k, int step, const hpc_factors *f, float *sum) {
    uint64_t state = (uint64_t)(1 + r->rank + 100 * k + 10000 * step);
    *f->count = (step + r->rank) % 3 == 2 ? 0 : keys[k].pairs - step;
    memset(sum, 0, f->rows * f->columns * sizeof *sum);
    for (int p = 0; p < *f->count; p++) {
        float *u = f->u + (uint64_t)p * f->rows, *v = f->v + (uint64_t)p * f->columns;
        for (uint64_t j = 0; j < f->rows; j++) u[j] = whole(&state, keys[k].sparse & 1);
        for (uint64_t d = 0; d < f->columns; d++) v[d] = whole(&state, keys[k].sparse & 2);
        for (uint64_t j = 0; j < f->rows; j++)
            for (uint64_t d = 0; d < f->columns && u[j] != 0; d++) sum[j * f->columns + d] += u[j] * v[d];
    }
}

static void check_rows(const hpc_exchange *e) {
    const hpc_scheme *sc = inside(e);
    for (int i = 0; i < sc->n_work; i++) {
        const hpc_work *w = &sc->work[i];
        CHECK(w->kind == (strcmp(w->rule->name, "sgd") == 0 ? &hpc_kind_pieces_all : &hpc_kind_pieces_parts));
    }
    for (int c = 0; c < sc->n_own_cores; c++) CHECK(sc->cores[c].acc_bytes <= 128 * HPC_BLOCK * sizeof(float));
}

/* Waits for a step of a key. A fold has the squares and the mean of a dense one, and is applied with a scale. */
static void finish(const rank *r, hpc_exchange *e, int k, int step, uint64_t ticket, double *squares) {
    CHECK_OK(hpc_exchange_wait(e, k, ticket, -1));
    if (!(r->arg & SPLIT)) return;
    CHECK_OK(hpc_exchange_squares(e, k, -1, &ticket));
    CHECK_OK(hpc_exchange_wait(e, k, ticket, -1));
    CHECK_OK(hpc_exchange_get_squares(e, k, squares));
    if (step == 1) {
        CHECK_OK(hpc_exchange_gather(e, k, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(e, k, ticket, -1));
    }
    CHECK_OK(hpc_exchange_apply(e, k, 0.5, -1, &ticket));
    CHECK_OK(hpc_exchange_wait(e, k, ticket, -1));
}

static void trains(rank *r) {
    const int flags = r->arg & SPLIT ? HPC_PUSH : BOTH;
    game factors, dense;
    open_game(&factors, r, r->arg, 1);
    open_game(&dense, r, (r->arg & ~SPLIT) == PEERS ? r->arg - PEERS : r->arg, 0);
    check_rows(factors.e);
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < KEYS; k++) {
            const uint64_t n = keys[k].rows * keys[k].columns;
            uint64_t tickets[2];
            hpc_factors to;
            void *gradient;
            CHECK_OK(hpc_exchange_factors(factors.e, k, -1, &to));
            CHECK_OK(hpc_exchange_gradient(dense.e, k, -1, &gradient));
            write_update(r, k, step, &to, gradient);
            const int pairs = *to.count;
            double squares[2] = {0};
            CHECK_OK(hpc_exchange_start(factors.e, k, flags, NULL, -1, &tickets[0]));
            CHECK_OK(hpc_exchange_start(dense.e, k, flags, NULL, -1, &tickets[1]));
            finish(r, factors.e, k, step, tickets[0], &squares[0]);
            finish(r, dense.e, k, step, tickets[1], &squares[1]);
            CHECK_EQ(squares[0], squares[1]);
            CHECK_EQ(*to.count, pairs);
            if (r->arg & SPLIT && step == 1)
                CHECK(memcmp(hpc_exchange_gathered(factors.e, k), hpc_exchange_gathered(dense.e, k),
                             n * sizeof(float)) == 0);
            CHECK(memcmp(hpc_exchange_params(factors.e, k), hpc_exchange_params(dense.e, k), n * sizeof(float)) == 0);
        }
    close_game(&factors);
    close_game(&dense);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {{.name = "hub", .size = 3, .run = trains, .arg = HUB},
                                       {.name = "server", .size = 3, .run = trains, .arg = SERVER},
                                       {.name = "peers", .size = 3, .run = trains, .arg = PEERS},
                                       {.name = "hub_split", .size = 3, .run = trains, .arg = HUB | SPLIT},
                                       {.name = "server_split", .size = 3, .run = trains, .arg = SERVER | SPLIT},
                                       {.name = "peers_split", .size = 3, .run = trains, .arg = PEERS | SPLIT},
                                       {0}};
    return ranks_main(argc, argv, cases);
}
