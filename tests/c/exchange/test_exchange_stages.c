/* Plans of several stages, and of very many: what is sent between two ranks is counted to the byte, and who feeds a row
 * is found once, however many paths there are and however long they get. */
#include "exchange_plans.h"

enum { STEPS = 3 };

/* The last rank only serves: it is asked of every row whether it feeds it, and no path says yes. */
static void one_key(job *j, const rank *r, uint64_t count) {
    job_init(j, r);
    j->n_keys = 1;
    j->keys[0].count = count;
    j->n_workers = r->size - 1;
}

static void train(const rank *r, const job *j, int steps) {
    reference ref;
    hpc_exchange *e = job_open(r, j);
    reference_init(&ref, j);
    if (!job_works(j, r->rank)) CHECK_OK(hpc_exchange_serve(e, -1));
    for (int step = 0; step < steps && job_works(j, r->rank); step++) {
        job_push_pull(r, j, e, 0, step);
        reference_step(&ref, 0);
        reference_check(&ref, r, e, 0);
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* ---- traffic ---- */

/* Bytes are counted by the rank and thread that sends them: a push to the rows that it feeds itself, a forward by the
 * core that forwards. arg: progress + 8 times the plan. */
static void traffic(rank *r) {
    enum { RACKS, RELAY, RING };
    static const uint64_t of_racks[4][4] = {{0, 0, 0, 4004}, {2002, 0, 0, 0}, {0, 0, 0, 4004}, {0, 0, 2002, 0}};
    job j;
    hand_plan *h = malloc(sizeof *h);
    CHECK(h);
    job_init(&j, r);
    j.progress = r->arg % 8, j.n_keys = 1;
    if (r->arg / 8 == RACKS) {
        hand_racks(h, &j, r->size, j.wire = HPC_F16, 256);
        for (int who = 0; who < r->size; who++) CHECK_EQ(rows_traffic(&h->plan, r->rank, who), of_racks[r->rank][who]);
    } else if (r->arg / 8 == RELAY) {
        hand_relay(h, &j, r->size, 256);
    } else {
        hand_ring(h, &j, r->size, HPC_F32, 256);
    }
    j.plan = &h->plan;
    hpc_exchange *e = job_open(r, &j);
    for (int step = 0; step < STEPS; step++) job_push_pull(r, &j, e, 0, step);
    CHECK_OK(hpc_exchange_close(e, -1)); /* until then other ranks' shares may pass here */
    check_traffic(r, e, &h->plan, STEPS, 0);
    hpc_exchange_free(e);
    free(h);
}

/* The same of a hub; under ASYNC each push is folded by itself. arg: each. */
static void traffic_of_hub(rank *r) {
    job j;
    job_init(&j, r);
    j.servers[0] = 1, j.n_servers = 1, j.each = r->arg;
    hpc_exchange *e = job_open(r, &j);
    for (int step = 0; step < STEPS; step++)
        for (int key = 0; key < j.n_keys; key++) job_push_pull(r, &j, e, key, step);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_peer peer;
    for (int who = 0; who < r->size; who++) {
        uint64_t bytes = (1001 + 33 + 4097) * 4 * STEPS;
        CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
        CHECK_EQ(peer.bytes_sent, who == 1 && r->rank != 1 ? bytes : 0);
        CHECK_EQ(peer.bytes_received, who != 1 && r->rank == 1 ? bytes : 0);
    }
    const uint64_t bytes = (1001 + 33 + 4097) * 4 * STEPS; /* of the parameters as well: they come with each pull */
    hpc_traffic traffic[RANKS_MAX];
    CHECK_EQ(hpc_exchange_get_traffic(e, traffic, RANKS_MAX), r->rank == 1 ? r->size - 1 : 1);
    for (int i = 0; i < (r->rank == 1 ? r->size - 1 : 1); i++) {
        CHECK_EQ(traffic[i].rank, r->rank == 1 ? 2 * i : 1);
        CHECK_EQ(traffic[i].stage, r->rank == 1 ? HPC_TRAFFIC_PARAMETERS : HPC_TRAFFIC_PUSH);
        CHECK_EQ(traffic[i].bytes, bytes);
        CHECK(strcmp(traffic[i].wire, r->mode->transports) == 0);
    }
    const uint64_t counts[] = {1001, 33, 4097};
    for (int key = 0; key < j.n_keys; key++) {
        hpc_key_stats its;
        CHECK_OK(hpc_exchange_get_key_stats(e, key, &its));
        CHECK_EQ(its.sent, counts[key] * 4 * STEPS * (r->rank == 1 ? (uint64_t)r->size - 1 : 1));
        CHECK_STATUS(hpc_exchange_get_key_stats(e, key, NULL), HPC_ERR_INVALID);
    }
    CHECK_EQ(hpc_exchange_get_traffic(e, NULL, 0), r->rank == 1 ? r->size - 1 : 1);
    CHECK_STATUS(hpc_exchange_get_traffic(e, NULL, 1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_get_traffic(NULL, traffic, 1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_get_traffic(e, traffic, -1), HPC_ERR_INVALID);
    hpc_exchange_free(e);
}

/* ---- long plans ---- */

/* Each row of a layer is fed by all of the one before it: as many paths as rows of a layer to the power of layers. */
static void layers(rank *r) {
    job j;
    hand_plan *h = malloc(sizeof *h);
    CHECK(h);
    one_key(&j, r, 33);
    hand_layers(h, &j, r->size, r->arg);
    j.plan = &h->plan;
    train(r, &j, STEPS);
    free(h);
}

/* Each row is fed by the one before it, all of rank 0: a path as long as there are rows. */
static void chain(rank *r) {
    enum { LENGTH = 200000 };
    job j;
    hpc_row *rows = calloc(LENGTH, sizeof *rows);
    hpc_edge *edges = calloc(2 * LENGTH, sizeof *edges), pushes[RANKS_MAX], pulls[RANKS_MAX];
    CHECK(rows && edges);
    one_key(&j, r, 16);
    for (int who = 0; who < j.n_workers; who++) pushes[who] = pulls[who] = (hpc_edge){who, -1, 1};
    for (int i = 0; i < LENGTH; i++) {
        rows[i] = (hpc_row){.action = HPC_FORWARD, .count = 16, .depth = 1, .quorum = 1, .n_in = 1, .n_out = 1};
        rows[i].in = &edges[2 * i], rows[i].out = &edges[2 * i + 1];
        edges[2 * i] = (hpc_edge){0, i - 1, 1}, edges[2 * i + 1] = (hpc_edge){0, i + 1, 1};
    }
    rows[0].in = pushes, rows[0].n_in = rows[0].quorum = j.n_workers;
    rows[LENGTH - 1].action = HPC_APPLY, rows[LENGTH - 1].out = pulls, rows[LENGTH - 1].n_out = j.n_workers;
    const hpc_plan plan = {.n_keys = 1, .n_rows = LENGTH, .keys = j.keys, .rows = rows};
    j.plan = &plan;
    train(r, &j, 1);
    free(rows);
    free(edges);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "two_layers", .size = 2, .run = layers, .arg = 2},
        {.name = "many_layers", .size = 4, .run = layers, .arg = 40},
        {.name = "racks_traffic", .size = 4, .run = traffic, .arg = HPC_PROGRESS_INLINE},
        {.name = "racks_traffic_thread", .size = 4, .run = traffic, .arg = HPC_PROGRESS_THREAD},
        {.name = "relay_traffic", .size = 3, .run = traffic, .arg = HPC_PROGRESS_INLINE + 8},
        {.name = "ring_traffic", .size = 3, .run = traffic, .arg = HPC_PROGRESS_INLINE + 16},
        {.name = "hub_traffic", .size = 3, .run = traffic_of_hub},
        {.name = "hub_traffic_async", .size = 3, .run = traffic_of_hub, .arg = 1},
        {.name = "chain", .size = 2, .run = chain, .where = RANKS_UNSEEDED},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
