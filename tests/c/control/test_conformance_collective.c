/* Barrier, allgather, and ranks that disagree: every rank is told, with both values, and the group goes on. */
#include <stdio.h>

#include "ranks.h"

static void barriers(rank *r) {
    uint64_t rounds = (uint64_t)ranks_rounds(1000);
    for (uint64_t round = 1; round <= rounds; round++) {
        atomic_fetch_add(&r->board[0], 1);
        CHECK_OK(hpc_barrier(r->context, -1));
        CHECK_EQ(atomic_load(&r->board[0]), round * (uint64_t)r->size);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
}

static void allgathers(rank *r) {
    static const size_t lengths[] = {0, 1, 8, 100, 4096, 70000, 300 * 1024, 3};
    unsigned char *send = malloc(300 * 1024), *recv = malloc(300 * 1024 * (size_t)r->size + 1);
    int rounds = ranks_rounds(80);
    for (int round = 0; round < rounds; round++) {
        size_t n = lengths[round % 8];
        ranks_fill(send, n, (uint64_t)(round * 100 + r->rank));
        recv[n * (size_t)r->size] = 0x5a;
        CHECK_OK(hpc_allgather(r->context, send, recv, n, -1));
        for (int i = 0; i < r->size; i++)
            CHECK_EQ(ranks_first_wrong(recv + (size_t)i * n, n, (uint64_t)(round * 100 + i)), n);
        CHECK_EQ(recv[n * (size_t)r->size], 0x5a);
    }
    free(send);
    free(recv);
}

static void good_window(rank *r) {
    hpc_window *w;
    int next = (r->rank + 1) % r->size, prev = (r->rank + r->size - 1) % r->size;
    CHECK_OK(hpc_window_create(r->context, 8, 1, "after", -1, &w));
    CHECK_OK(hpc_put_signal(NULL, w, next, "success", 8, 0, 0, 1));
    CHECK_OK(hpc_wait_signal(w, 0, 1, prev, -1, NULL));
    CHECK(strcmp(hpc_window_data(w), "success") == 0);
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    hpc_window_free(w);
}

/* HPC_ERR_CONFIG with both values in the sentence; then a good window, to see that the group goes on. */
static void told(rank *r, int status, const char *one, const char *other) {
    CHECK_EQ(status, HPC_ERR_CONFIG);
    CHECK_MESSAGE(one);
    CHECK_MESSAGE(other);
    good_window(r);
}

static void windows_disagree(rank *r) {
    hpc_window *w = NULL;
    bool odd = r->rank == r->arg;
    told(r, hpc_window_create(r->context, odd ? 8192 : 4096, 1, NULL, -1, &w), "8192", "4096");
    told(r, hpc_window_create(r->context, 4096, odd ? 77 : 33, NULL, -1, &w), "77", "33");
    told(r, hpc_window_create(r->context, 4096, 1, odd ? "float32 (1024,)" : "float64 (512,)", -1, &w),
         "float32 (1024,)", "float64 (512,)");
    told(r, hpc_window_create(r->context, 4096, 1, odd ? NULL : "int8 (4096,)", -1, &w), "int8 (4096,)", "");
    CHECK(w == NULL);
}

static hpc_queue_config ring(const rank *r, int *next, int *prev) {
    hpc_queue_config c;
    *next = (r->rank + 1) % r->size;
    *prev = (r->rank + r->size - 1) % r->size;
    hpc_queue_config_init(&c);
    c.in_peers = prev, c.out_peers = next;
    c.n_in = c.n_out = 1;
    c.nbytes = 4096, c.depth = 2, c.buffers = 0, c.type = "float32 (1024,)";
    return c;
}

static void queues_disagree(rank *r) {
    int next, prev;
    hpc_queue *q = NULL;
    bool odd = r->rank == r->arg;
    const hpc_queue_config good = ring(r, &next, &prev);
    hpc_queue_config c = good;
    c.nbytes = odd ? 4000 : 4096;
    told(r, hpc_queue_create(r->context, &c, -1, &q), "4000", "4096");
    c = good, c.depth = odd ? 31 : 17;
    told(r, hpc_queue_create(r->context, &c, -1, &q), "31", "17");
    c = good, c.buffers = odd ? 13 : 27;
    told(r, hpc_queue_create(r->context, &c, -1, &q), "13", "27");
    c = good, c.type = odd ? "float64 (512,)" : good.type;
    told(r, hpc_queue_create(r->context, &c, -1, &q), "float64 (512,)", "float32 (1024,)");
    CHECK(q == NULL);
}

/* One rank's edge has no other end. Both ends are named, to all. */
static void edges_disagree(rank *r) {
    int next, prev;
    hpc_queue *q = NULL;
    bool odd = r->rank == r->arg;
    char one[16], other[16];
    hpc_queue_config c = ring(r, &next, &prev);
    if (odd) c.n_in = 0; /* prev sends to odd, odd does not receive */
    snprintf(one, sizeof one, "%d", r->arg);
    snprintf(other, sizeof other, "%d", (r->arg + r->size - 1) % r->size);
    told(r, hpc_queue_create(r->context, &c, -1, &q), one, other);
    c = ring(r, &next, &prev);
    if (odd) c.n_out = 0;
    snprintf(other, sizeof other, "%d", (r->arg + 1) % r->size);
    told(r, hpc_queue_create(r->context, &c, -1, &q), one, other);
    CHECK(q == NULL);
}

/* One rank makes a window while the others make a queue, a lane, a barrier. */
static void collectives_disagree(rank *r) {
    int next, prev;
    hpc_window *w = NULL;
    hpc_queue *q = NULL;
    hpc_lane *lane = NULL;
    char bytes[4 * RANKS_MAX];
    bool odd = r->rank == r->arg;
    hpc_queue_config c = ring(r, &next, &prev);
    told(r, odd ? hpc_window_create(r->context, 64, 1, NULL, -1, &w) : hpc_queue_create(r->context, &c, -1, &q),
         "window", "queue");
    told(r, odd ? hpc_lane_create(r->context, -1, &lane) : hpc_queue_create(r->context, &c, -1, &q), "lane", "queue");
    told(r, odd ? hpc_barrier(r->context, -1) : hpc_window_create(r->context, 64, 1, NULL, -1, &w), "barrier",
         "window");
    told(r, odd ? hpc_allgather(r->context, "abc", bytes, 4, -1) : hpc_barrier(r->context, -1), "allgather", "barrier");
    told(r, hpc_allgather(r->context, "abcdefgh", bytes, odd ? 3 : 4, -1), "3", "4");
    hpc_calling_enter(hpc_calling_named(odd ? "state_dict()" : "step()", 1)); /* the names of calls above are told */
    int status = odd ? hpc_barrier(r->context, -1) : hpc_window_create(r->context, 64, 1, NULL, -1, &w);
    hpc_calling_enter(NULL);
    told(r, status, " calls state_dict()", " calls step()");
    CHECK(!w && !q && !lane);
}

/* More than there is: an error at creation, on every rank, and nothing is kept. */
static void too_much_memory(rank *r) {
    hpc_window *w = NULL;
    hpc_queue *q = NULL;
    int next, prev;
    hpc_queue_config c = ring(r, &next, &prev);
    CHECK_STATUS(hpc_window_create(r->context, (size_t)1 << 40, 1, NULL, -1, &w), HPC_ERR_MEMORY);
    CHECK_MESSAGE("1099511627776");
    good_window(r);
    c.nbytes = (size_t)1 << 40;
    CHECK_STATUS(hpc_queue_create(r->context, &c, -1, &q), HPC_ERR_MEMORY);
    good_window(r);
    CHECK(hpc_window_create(r->context, SIZE_MAX - 100, 1, NULL, -1, &w) < 0); /* rounds up past the end */
    good_window(r);
    CHECK(!w && !q);
    CHECK(hpc_memory_available() > 0 && hpc_memory_available() < (uint64_t)1 << 40);
}

/* A collective that one rank does not make: the others time out, and say who is missing. */
static void one_is_missing(rank *r) {
    rank_meet(r);
    if (r->rank != r->arg) {
        double start = ranks_now();
        CHECK_STATUS(hpc_barrier(r->context, 0.5), HPC_ERR_TIMEOUT);
        CHECK(ranks_now() - start > 0.45 && ranks_now() - start < 5);
        CHECK(ranks_error_waits_for(r->arg));
        CHECK_EQ(hpc_last_error()->n_waiting, 1);
        CHECK(strstr(hpc_last_error()->op, "barrier"));
    }
    rank_meet(r);
}

/* Memory that a library that gave up may not free: the exchange may still write there. Kept findable for the leak
 * checker. */
static struct broken {
    int fails; /* 0: never ready; else this status from test */
    int freed;
    const void *send;
    void *recv;
} broken;

static int broken_start(const void *send, void *recv, size_t n, void *arg, void **request) {
    (void)n, (void)arg;
    broken.send = send;
    broken.recv = recv;
    *request = &broken;
    return HPC_OK;
}

static int broken_test(void *request) {
    (void)request;
    return broken.fails ? broken.fails : HPC_IN_PROGRESS;
}

static int broken_free(void *request) {
    (void)request;
    broken.freed++;
    return HPC_OK;
}

/* An out-of-band exchange that fails, or never ends: then its buffers and its request stay. */
static void broken_exchange(rank *r) {
    hpc_context *c = NULL;
    hpc_oob oob = {0, 2, NULL, broken_start, broken_test, broken_free};
    broken.fails = HPC_ERR_TRANSPORT;
    CHECK_STATUS(hpc_init(&oob, &r->config, &c), HPC_ERR_TRANSPORT);
    CHECK_EQ(broken.freed, 1);
    broken.fails = broken.freed = 0;
    r->config.timeout = 0.2;
    double start = ranks_now();
    CHECK_STATUS(hpc_init(&oob, &r->config, &c), HPC_ERR_TIMEOUT);
    CHECK(ranks_now() - start < 3);
    CHECK_EQ(broken.freed, 0);
    memcpy(broken.recv, broken.send, hpc_address_size());
    memcpy((char *)broken.recv + hpc_address_size(), broken.send, hpc_address_size());
    CHECK(c == NULL);
}

/* Addresses that are none: an error, not a crash; and a peer that never connects is named. */
static void broken_addresses(rank *r) {
    size_t n = hpc_address_size();
    CHECK(n > 0);
    unsigned char *addresses = malloc(2 * n);
    for (int kind = 0; kind < 3; kind++) {
        hpc_context *c = NULL;
        CHECK_OK(hpc_context_create(0, 2, &r->config, &c));
        CHECK_OK(hpc_context_address(c, addresses));
        if (kind == 0) memset(addresses + n, 0, n);
        if (kind == 1) ranks_fill(addresses + n, n, 5);
        if (kind == 2) memcpy(addresses + n, addresses, n); /* one's own, twice */
        int status = hpc_context_connect(c, addresses, 0.5);
        CHECK(status < 0);
        CHECK(hpc_last_error()->message[0]);
        hpc_context_free(c);
    }
    free(addresses);
    hpc_context *a = NULL;
    CHECK_OK(hpc_context_create(0, 1, &r->config, &a));
    addresses = malloc(n);
    CHECK_OK(hpc_context_address(a, addresses));
    CHECK_OK(hpc_context_connect(a, addresses, 1)); /* a world of one */
    CHECK_OK(hpc_barrier(a, -1));
    hpc_context_free(a);
    free(addresses);
}

/* Settings that the ranks must have alike: each is told both values. */
static void settings_disagree(rank *r) {
    for (int round = 0; round < 3; round++) {
        hpc_config config = r->config;
        hpc_context *c = NULL;
        if (round == 0 && r->rank == 1) config.silence = 7.5;
        if (round == 1 && r->rank == 1) config.tcp_streams = 3;
        if (round == 2 && r->rank == 1) config.transports = "shm,loop,tcp";
        CHECK_STATUS(hpc_init(&r->oob, &config, &c), HPC_ERR_CONFIG);
        CHECK_MESSAGE(round == 0 ? "7.5" : round == 1 ? "3" : "shm,loop,tcp");
        CHECK_MESSAGE(round == 0 ? "4" : round == 1 ? "1" : r->config.transports);
        CHECK(c == NULL);
        rank_meet(r);
    }
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "barriers", .size = 4, .run = barriers},
        {.name = "barriers_sleepy", .size = 8, .run = barriers, .sleepy = true},
        {.name = "allgathers", .size = 3, .run = allgathers},
        {.name = "allgathers_8", .size = 8, .run = allgathers},
        {.name = "windows_disagree", .size = 3, .run = windows_disagree, .arg = 0},
        {.name = "windows_disagree_last", .size = 3, .run = windows_disagree, .arg = 2},
        {.name = "queues_disagree", .size = 4, .run = queues_disagree, .arg = 1},
        {.name = "edges_disagree", .size = 4, .run = edges_disagree, .arg = 2},
        {.name = "collectives_disagree", .size = 3, .run = collectives_disagree, .arg = 0},
        {.name = "collectives_disagree_last", .size = 3, .run = collectives_disagree, .arg = 2},
        {.name = "too_much_memory", .size = 3, .run = too_much_memory},
        {.name = "one_is_missing", .size = 3, .run = one_is_missing, .arg = 1, .apart = true},
        {.name = "settings_disagree", .size = 3, .run = settings_disagree, .bare = true},
        {.name = "broken_exchange", .size = 1, .run = broken_exchange, .bare = true},
        {.name = "broken_addresses", .size = 1, .run = broken_addresses, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
