/* A signal is never seen before the data that it follows. */
#define _GNU_SOURCE
#include <pthread.h>

#include "ranks.h"

enum { NBYTES = 1 << 21, EDGE = 16 };

static size_t random_length(uint64_t *state) {
    switch (ranks_random(state) % 8) {
    case 0:
        return ranks_random(state) % 4;
    case 1:
        return 8;
    case 2:
        return ranks_random(state) % (1 << 20);
    default:
        return ranks_random(state) % 5000;
    }
}

/* Both ranks send to each other, unaligned at both ends, and check every byte and the bytes around. */
static void data_before_signal(rank *r) {
    int peer = 1 - r->rank, rounds = ranks_rounds(r->arg);
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, NBYTES, 2, NULL, -1, &w));
    unsigned char *mine = hpc_window_data(w), *src = malloc(NBYTES), *shadow = calloc(1, NBYTES);
    uint64_t out = (uint64_t)r->rank, in = (uint64_t)peer, value;
    for (int round = 1; round <= rounds; round++) {
        size_t n = random_length(&out), skew = ranks_random(&out) % 64;
        size_t offset = ranks_random(&out) % (NBYTES - n);
        ranks_fill(src + skew, n, out);
        CHECK_OK(hpc_put_signal(NULL, w, peer, src + skew, n, offset, 0, (uint64_t)round));

        n = random_length(&in);
        (void)ranks_random(&in);
        offset = ranks_random(&in) % (NBYTES - n);
        ranks_fill(shadow + offset, n, in);
        CHECK_OK(hpc_wait_signal(w, 0, (uint64_t)round, peer, -1, &value));
        CHECK_EQ(value, round);
        size_t from = offset < EDGE ? 0 : offset - EDGE, to = offset + n + EDGE > NBYTES ? NBYTES : offset + n + EDGE;
        CHECK(memcmp(mine + from, shadow + from, to - from) == 0);

        CHECK_OK(hpc_put_signal(NULL, w, peer, NULL, 0, 0, 1, (uint64_t)round));
        CHECK_OK(hpc_wait_signal(w, 1, (uint64_t)round, peer, -1, NULL));
    }
    CHECK(memcmp(mine, shadow, NBYTES) == 0);
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    free(src);
    free(shadow);
    hpc_window_free(w);
}

/* The receiver is already waiting, and looks at the last bytes first. */
static void last_byte_first(rank *r) {
    static const size_t lengths[] = {8, 100, 1024, 4096, 60000, 1 << 18};
    int peer = 1 - r->rank, rounds = ranks_rounds(1500);
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 1 << 18, 1, NULL, -1, &w));
    unsigned char *src = malloc(1 << 18);
    const volatile unsigned char *mine = hpc_window_data(w);
    for (int round = 1; round <= rounds; round++) {
        size_t n = lengths[round % 6];
        if (r->rank == 0) {
            memset(src, round, n);
            CHECK_OK(hpc_put_signal(NULL, w, peer, src, n, 0, 0, (uint64_t)round));
            CHECK_OK(hpc_wait_signal(w, 0, (uint64_t)round, peer, -1, NULL));
        } else {
            CHECK_OK(hpc_wait_signal(w, 0, (uint64_t)round, peer, -1, NULL));
            for (size_t i = n; i-- > 0;) CHECK_EQ(mine[i], round % 256);
            CHECK_OK(hpc_put_signal(NULL, w, peer, NULL, 0, 0, 0, (uint64_t)round));
        }
    }
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    free(src);
    hpc_window_free(w);
}

/* One signal stands for every earlier put of its lane to that peer, into any window. */
static void signal_follows_earlier_puts(rank *r) {
    enum { PIECES = 24, PIECE = 40000 };
    static const size_t lengths[] = {1, 7, 64, 333, 4096, PIECE - 64};
    int peer = 1 - r->rank, rounds = ranks_rounds(400);
    hpc_window *w[2];
    for (int i = 0; i < 2; i++) CHECK_OK(hpc_window_create(r->context, PIECES * PIECE, 1, NULL, -1, &w[i]));
    unsigned char *src = malloc(2 * PIECES * PIECE);
    for (int round = 1; round <= rounds; round++) {
        if (r->rank == 0) {
            for (int i = 0; i < 2 * PIECES; i++) {
                size_t n = lengths[(i + round) % 6];
                ranks_fill(src + i * PIECE, n, (uint64_t)(round * 100 + i));
                CHECK_OK(hpc_put(NULL, w[i & 1], peer, src + i * PIECE, n, (size_t)(i / 2 * PIECE + round % 50)));
            }
            CHECK_OK(hpc_put_signal(NULL, w[0], peer, NULL, 0, 0, 0, (uint64_t)round));
            CHECK_OK(hpc_wait_signal(w[0], 0, (uint64_t)round, peer, -1, NULL));
        } else {
            CHECK_OK(hpc_wait_signal(w[0], 0, (uint64_t)round, peer, -1, NULL));
            for (int i = 0; i < 2 * PIECES; i++) {
                size_t n = lengths[(i + round) % 6];
                const char *at = (char *)hpc_window_data(w[i & 1]) + i / 2 * PIECE + round % 50;
                CHECK_EQ(ranks_first_wrong(at, n, (uint64_t)(round * 100 + i)), n);
            }
            CHECK_OK(hpc_put_signal(NULL, w[0], peer, NULL, 0, 0, 0, (uint64_t)round));
        }
    }
    CHECK_OK(hpc_flush(NULL, w[0], -1, -1));
    free(src);
    for (int i = 0; i < 2; i++) hpc_window_free(w[i]);
}

/* A word that arrives is the last or an earlier one, and never goes back. */
static void signals_never_go_back(rank *r) {
    uint64_t last = (uint64_t)ranks_rounds(20000), value = 0, seen = 0;
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 8, 2, NULL, -1, &w));
    if (r->rank == 0) {
        for (uint64_t i = 1; i <= last; i++) CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 1, i));
        CHECK_OK(hpc_wait_signal(w, 0, 1, 1, -1, NULL));
    } else {
        while (seen < last) {
            CHECK_OK(hpc_wait_signal(w, 1, seen + 1, 0, -1, &value));
            CHECK(value > seen && value <= last);
            seen = value;
            CHECK_OK(hpc_test_signal(w, 1, seen, &value));
            CHECK(value >= seen && value <= last);
            seen = value;
        }
        CHECK_STATUS(hpc_test_signal(w, 1, last + 1, &value), HPC_IN_PROGRESS);
        CHECK_EQ(value, last);
        CHECK_STATUS(hpc_test_signal(w, 0, 1, &value), HPC_IN_PROGRESS);
        CHECK_EQ(value, 0);
        CHECK_OK(hpc_put_signal(NULL, w, 0, NULL, 0, 0, 0, 1));
    }
    hpc_window_free(w);
}

/* A later value of a word by another lane may overtake one that follows much data; the word is the later one then. */
static void signal_by_two_lanes(rank *r) {
    enum { MUCH = 8 << 20 };
    int rounds = ranks_rounds(2);
    uint64_t value;
    hpc_lane *lane;
    hpc_window *w;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, MUCH, 1, NULL, -1, &w));
    unsigned char *src = malloc(MUCH);
    for (int round = 1; round <= rounds; round++) {
        uint64_t last = 2 * (uint64_t)round;
        if (r->rank == 0) {
            ranks_fill(src, MUCH, last);
            CHECK_OK(hpc_put_signal(lane, w, 1, src, MUCH, 0, 0, last - 1));
            CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 0, last));
            CHECK_OK(hpc_flush(NULL, w, 1, -1));
            CHECK_OK(hpc_flush(lane, w, 1, -1));
        }
        CHECK_OK(hpc_barrier(r->context, -1));
        if (r->rank == 1) {
            CHECK_OK(hpc_test_signal(w, 0, last, &value));
            CHECK_EQ(value, last);
            CHECK_EQ(ranks_first_wrong(hpc_window_data(w), MUCH, last), MUCH);
        }
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    free(src);
    hpc_lane_free(lane);
    hpc_window_free(w);
}

/* Signals are 64 bits wide: no value is special, up to the last one. */
static void signals_near_wrap(rank *r) {
    static const uint64_t values[] = {1,         0x7fffffff, 0x80000000,     0xffffffff, 0x100000000,
                                      INT64_MAX, 1ull << 63, UINT64_MAX - 1, UINT64_MAX};
    int peer = 1 - r->rank;
    uint64_t value;
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 0, 3, NULL, -1, &w));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        CHECK_OK(hpc_put_signal(NULL, w, peer, NULL, 0, 0, 2, values[i]));
        CHECK_OK(hpc_wait_signal(w, 2, values[i], peer, -1, &value));
        CHECK(value == values[i] || (i + 1 < sizeof values / sizeof *values && value == values[i + 1]));
    }
    hpc_window_free(w);
}

/* Every rank writes into every window, itself included: each its own region and its own signal. Regions and sources
 * alternate; a rank starts round k + 2 only when all have read round k. */
static void many_writers(rank *r) {
    enum { REGION = 3000 };
    int rounds = ranks_rounds(r->arg);
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, (size_t)(2 * r->size * REGION), r->size, NULL, -1, &w));
    unsigned char *src = malloc((size_t)(2 * r->size * REGION)), *mine = hpc_window_data(w);
    for (int round = 1; round <= rounds; round++) {
        int half = (round & 1) * r->size;
        for (int i = 0; i < r->size; i++) {
            int peer = (r->rank + i) % r->size;
            size_t n = (size_t)((round * 37 + peer * 11 + r->rank) % REGION);
            unsigned char *from = src + (half + peer) * REGION;
            ranks_fill(from, n, (uint64_t)(round * 1000 + r->rank * 16 + peer));
            CHECK_OK(
                hpc_put_signal(NULL, w, peer, from, n, (size_t)((half + r->rank) * REGION), r->rank, (uint64_t)round));
        }
        for (int peer = 0; peer < r->size; peer++) {
            size_t n = (size_t)((round * 37 + r->rank * 11 + peer) % REGION);
            CHECK_OK(hpc_wait_signal(w, peer, (uint64_t)round, peer, -1, NULL));
            CHECK_EQ(
                ranks_first_wrong(mine + (half + peer) * REGION, n, (uint64_t)(round * 1000 + peer * 16 + r->rank)), n);
        }
    }
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    free(src);
    hpc_window_free(w);
}

typedef struct worker {
    rank *r;
    hpc_lane *lane;
    hpc_window *w;
    int i;
} worker;

/* Ping-pong of one thread on its own lane, region and signal. */
static void *work(void *arg) {
    enum { REGION = 1 << 16 };
    worker *t = arg;
    int peer = 1 - t->r->rank, rounds = ranks_rounds(1500);
    unsigned char *src = malloc(REGION), *mine = hpc_window_data(t->w);
    for (int round = 1; round <= rounds; round++) {
        size_t n = (size_t)(round * 7919 % REGION), at = (size_t)t->i * REGION;
        uint64_t seed = (uint64_t)(round * 16 + t->i * 2);
        for (int turn = 0; turn < 2; turn++) {
            if (turn == t->r->rank) {
                ranks_fill(src, n, seed + (uint64_t)t->r->rank);
                CHECK_OK(hpc_put(t->lane, t->w, peer, src, n / 2, at));
                CHECK_OK(
                    hpc_put_signal(t->lane, t->w, peer, src + n / 2, n - n / 2, at + n / 2, t->i, (uint64_t)round));
                CHECK_OK(hpc_flush(t->lane, t->w, peer, -1));
            } else {
                CHECK_OK(hpc_wait_signal(t->w, t->i, (uint64_t)round, peer, -1, NULL));
                CHECK_EQ(ranks_first_wrong(mine + at, n, seed + (uint64_t)peer), n);
            }
        }
    }
    free(src);
    return NULL;
}

static void lanes_are_independent(rank *r) {
    enum { LANES = 4 };
    hpc_window *w;
    worker workers[LANES];
    pthread_t threads[LANES];
    CHECK_OK(hpc_window_create(r->context, LANES << 16, LANES, NULL, -1, &w));
    for (int i = 0; i < LANES; i++) {
        workers[i] = (worker){r, NULL, w, i};
        if (i) CHECK_OK(hpc_lane_create(r->context, -1, &workers[i].lane)); /* 0 is the context's own */
    }
    for (int i = 0; i < LANES; i++) CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < LANES; i++) pthread_join(threads[i], NULL);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 1; i < LANES; i++) hpc_lane_free(workers[i].lane);
    hpc_window_free(w);
}

static void *wait_for_it(void *arg) {
    worker *t = arg;
    uint64_t value;
    CHECK_OK(hpc_wait_signal(t->w, t->i / 2, 5, 1 - t->r->rank, -1, &value));
    CHECK(value >= 5);
    return NULL;
}

/* Several threads wait for one signal, and others for another of the same window: all wake. */
static void many_waiters(rank *r) {
    enum { WAITERS = 6 };
    int peer = 1 - r->rank, rounds = ranks_rounds(30);
    for (int round = 0; round < rounds; round++) {
        hpc_window *w;
        CHECK_OK(hpc_window_create(r->context, 0, WAITERS / 2, NULL, -1, &w));
        worker workers[WAITERS];
        pthread_t threads[WAITERS];
        for (int i = 0; i < WAITERS; i++) {
            workers[i] = (worker){r, NULL, w, i};
            CHECK_EQ(pthread_create(&threads[i], NULL, wait_for_it, &workers[i]), 0);
        }
        for (uint64_t value = 1; value <= 5; value++) {
            for (int i = WAITERS / 2 - 1; i >= 0; i--) CHECK_OK(hpc_put_signal(NULL, w, peer, NULL, 0, 0, i, value));
        }
        for (int i = 0; i < WAITERS; i++) pthread_join(threads[i], NULL);
        CHECK_OK(hpc_barrier(r->context, -1));
        hpc_window_free(w);
    }
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "data_before_signal", .size = 2, .run = data_before_signal, .arg = 1000},
        {.name = "data_before_signal_sleepy", .size = 2, .run = data_before_signal, .arg = 1000, .sleepy = true},
        {.name = "last_byte_first", .size = 2, .run = last_byte_first},
        {.name = "signal_follows_earlier_puts", .size = 2, .run = signal_follows_earlier_puts},
        {.name = "signals_never_go_back", .size = 2, .run = signals_never_go_back},
        {.name = "signals_never_go_back_sleepy", .size = 2, .run = signals_never_go_back, .sleepy = true},
        {.name = "signal_by_two_lanes", .size = 2, .run = signal_by_two_lanes},
        {.name = "signals_near_wrap", .size = 2, .run = signals_near_wrap},
        {.name = "many_writers", .size = 8, .run = many_writers, .arg = 200},
        {.name = "many_writers_sleepy", .size = 8, .run = many_writers, .arg = 100, .sleepy = true},
        {.name = "lanes_are_independent", .size = 2, .run = lanes_are_independent},
        {.name = "many_waiters", .size = 2, .run = many_waiters},
        {.name = "many_waiters_sleepy", .size = 2, .run = many_waiters, .sleepy = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
