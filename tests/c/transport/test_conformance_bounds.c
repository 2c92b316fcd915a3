/* Arguments out of range are refused with their value, and nothing is written; empty ranges are fine. */
#include <limits.h>
#include <stdio.h>

#include "ranks.h"

enum { NBYTES = 8192, SIGNALS = 3 };

/* The call is refused, and the sentence holds this number. */
#define REFUSED(call, number)                                                                                          \
    do {                                                                                                               \
        char text[32];                                                                                                 \
        snprintf(text, sizeof text, "%lld", (long long)(number));                                                      \
        CHECK_STATUS(call, HPC_ERR_INVALID);                                                                           \
        CHECK_MESSAGE(text);                                                                                           \
        CHECK_EQ(hpc_last_error()->status, HPC_ERR_INVALID);                                                           \
        CHECK(hpc_last_error()->op[0]);                                                                                \
    } while (0)

#define REFUSED_TEXT(call, text)                                                                                       \
    do {                                                                                                               \
        CHECK_STATUS(call, HPC_ERR_INVALID);                                                                           \
        CHECK_MESSAGE(text);                                                                                           \
    } while (0)

static void put_in_bounds(rank *r) {
    hpc_context *ctx = r->context;
    char src[NBYTES + 1];
    memset(src, 0xff, sizeof src);
    hpc_window *w;
    CHECK_OK(hpc_window_create(ctx, NBYTES, SIGNALS, NULL, -1, &w));
    CHECK_EQ((uintptr_t)hpc_window_data(w) % 4096, 0);
    int peer = 1 - r->rank;

    static const int bad_ranks[] = {2, 12345, -1, -77, INT_MIN, INT_MAX};
    for (int i = 0; i < 6; i++) {
        int bad = bad_ranks[i];
        REFUSED(hpc_put(NULL, w, bad, src, 8, 0), bad);
        REFUSED(hpc_put_signal(NULL, w, bad, src, 8, 0, 0, 1), bad);
        REFUSED(hpc_put_notify(NULL, w, bad, src, 8, 0, 1, -1), bad);
        if (bad != -1) REFUSED(hpc_flush(NULL, w, bad, -1), bad);
        if (bad != -1) REFUSED(hpc_wait_signal(w, 0, 1, bad, 0, NULL), bad);
        CHECK(hpc_window_peer_view(w, bad) == NULL);
        CHECK(hpc_window_memory(w, bad) == NULL);
        hpc_peer p;
        REFUSED(hpc_context_peer(ctx, bad, &p), bad);
    }

    static const struct {
        size_t n, offset, shown;
    } bad[] = {
        {1, NBYTES, NBYTES},
        {NBYTES + 1, 0, NBYTES + 1},
        {8, NBYTES - 7, NBYTES - 7},
        {2, SIZE_MAX, 0},
        {SIZE_MAX, 2, 2},
        {1, (size_t)1 << 40, (size_t)1 << 40},
        {SIZE_MAX - 3, 8, 8},
        {0, NBYTES + 1, NBYTES + 1},
        {(size_t)1 << 63, (size_t)1 << 63, 0},
        {1, 123456789, 123456789},
        {NBYTES / 2 + 1, NBYTES / 2, NBYTES / 2 + 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char shown[32];
        snprintf(shown, sizeof shown, "%zu", bad[i].shown);
        REFUSED_TEXT(hpc_put(NULL, w, peer, src, bad[i].n, bad[i].offset), bad[i].shown ? shown : "");
        REFUSED_TEXT(hpc_put_signal(NULL, w, peer, src, bad[i].n, bad[i].offset, 0, 1), bad[i].shown ? shown : "");
        REFUSED_TEXT(hpc_put_notify(NULL, w, peer, src, bad[i].n, bad[i].offset, 1, -1), bad[i].shown ? shown : "");
        REFUSED_TEXT(hpc_put(NULL, w, r->rank, src, bad[i].n, bad[i].offset), bad[i].shown ? shown : "");
    }

    static const int bad_signals[] = {SIGNALS, -1, 4711, INT_MAX, INT_MIN};
    for (int i = 0; i < 5; i++) {
        REFUSED(hpc_put_signal(NULL, w, peer, src, 8, 0, bad_signals[i], 1), bad_signals[i]);
        REFUSED(hpc_put_signal(NULL, w, peer, NULL, 0, 0, bad_signals[i], 1), bad_signals[i]);
        REFUSED(hpc_test_signal(w, bad_signals[i], 0, NULL), bad_signals[i]);
        REFUSED(hpc_wait_signal(w, bad_signals[i], 0, -1, 0, NULL), bad_signals[i]);
    }

    REFUSED(hpc_put(NULL, w, peer, NULL, 8, 0), 8);
    REFUSED(hpc_put_signal(NULL, w, peer, NULL, 8, 0, 0, 1), 8);
    REFUSED(hpc_put_notify(NULL, w, peer, NULL, 8, 0, 1, -1), 8);
    REFUSED_TEXT(hpc_put(NULL, NULL, peer, src, 8, 0), "window");
    REFUSED_TEXT(hpc_test_signal(NULL, 0, 0, NULL), "window");
    REFUSED_TEXT(hpc_poll(NULL, NULL, NULL), "");
    REFUSED_TEXT(hpc_poll(ctx, NULL, NULL), "event");

    /* None of it was seen anywhere: all that was ever put is this. */
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    CHECK_OK(hpc_barrier(ctx, -1));
    hpc_event event;
    CHECK_STATUS(hpc_poll(ctx, NULL, &event), HPC_IN_PROGRESS);
    for (size_t i = 0; i < NBYTES; i++) CHECK_EQ(((char *)hpc_window_data(w))[i], 0);
    uint64_t value;
    for (int i = 0; i < SIGNALS; i++) {
        CHECK_OK(hpc_test_signal(w, i, 0, &value));
        CHECK_EQ(value, 0);
    }

    /* The very ends are in range. */
    CHECK_OK(hpc_barrier(ctx, -1));
    CHECK_OK(hpc_put(NULL, w, peer, src, 1, NBYTES - 1));
    CHECK_OK(hpc_put_signal(NULL, w, peer, src, 1, 0, SIGNALS - 1, 1));
    CHECK_OK(hpc_wait_signal(w, SIGNALS - 1, 1, peer, -1, NULL));
    for (size_t i = 0; i < NBYTES; i++) CHECK_EQ(((char *)hpc_window_data(w))[i], i == 0 || i == NBYTES - 1 ? -1 : 0);
    CHECK_OK(hpc_flush(NULL, w, peer, -1));
    hpc_window_free(w);
}

static void empty_puts(rank *r) {
    int peer = 1 - r->rank;
    char data[16] = {1};
    hpc_window *w, *none;
    CHECK_OK(hpc_window_create(r->context, 16, 1, "", -1, &w));
    CHECK_OK(hpc_window_create(r->context, 0, 1, NULL, -1, &none));
    REFUSED(hpc_put(NULL, none, peer, data, 1, 0), 1);
    CHECK_OK(hpc_put(NULL, none, peer, NULL, 0, 0));
    CHECK_OK(hpc_put(NULL, w, peer, NULL, 0, 0));
    CHECK_OK(hpc_put(NULL, w, peer, data, 0, 16));
    CHECK_OK(hpc_put_notify(NULL, w, peer, NULL, 0, 16, 99, -1));
    CHECK_OK(hpc_put_signal(NULL, none, peer, NULL, 0, 0, 0, 1));
    CHECK_OK(hpc_put_signal(NULL, w, peer, data, 0, 3, 0, 7));
    CHECK_OK(hpc_wait_signal(w, 0, 7, peer, -1, NULL));
    CHECK_OK(hpc_wait_signal(none, 0, 1, peer, -1, NULL));
    hpc_event event;
    CHECK_OK(hpc_wait_event(r->context, NULL, &event, -1));
    CHECK_EQ(event.nbytes, 0);
    CHECK_EQ(event.imm, 99);
    for (int i = 0; i < 16; i++) CHECK_EQ(((char *)hpc_window_data(w))[i], 0);
    CHECK_OK(hpc_wait_signal(w, 0, 0, -1, 0, NULL));
    CHECK_OK(hpc_flush(NULL, w, peer, -1));
    hpc_window_free(w);
    hpc_window_free(none);
}

/* Bad arguments to a collective, the same on every rank: refused, and the next one works. */
static void creations_in_bounds(rank *r) {
    hpc_context *ctx = r->context;
    hpc_window *w = NULL;
    REFUSED(hpc_window_create(ctx, 16, -3, NULL, -1, &w), -3);
    CHECK(w == NULL);
    REFUSED_TEXT(hpc_window_create(ctx, 16, 1, NULL, -1, NULL), "");
    REFUSED_TEXT(hpc_window_create(NULL, 16, 1, NULL, -1, &w), "context");

    int peer = 1 - r->rank, far = 5, twice[] = {peer, peer};
    hpc_queue *q = NULL;
    hpc_queue_config good, c;
    hpc_queue_config_init(&good);
    CHECK_EQ(good.size, sizeof good);
    good.in_peers = good.out_peers = &peer;
    good.n_in = good.n_out = 1;
    good.nbytes = 64;
    good.depth = 2;
    c = good, c.depth = 0;
    REFUSED(hpc_queue_create(ctx, &c, -1, &q), 0);
    c = good, c.depth = -4;
    REFUSED(hpc_queue_create(ctx, &c, -1, &q), -4);
    c = good, c.buffers = 65;
    REFUSED(hpc_queue_create(ctx, &c, -1, &q), 65);
    c = good, c.buffers = -1;
    REFUSED(hpc_queue_create(ctx, &c, -1, &q), -1);
    c = good, c.n_in = -2;
    REFUSED(hpc_queue_create(ctx, &c, -1, &q), -2);
    c = good, c.in_peers = &far;
    REFUSED(hpc_queue_create(ctx, &c, -1, &q), 5);
    c = good, c.out_peers = &far;
    REFUSED(hpc_queue_create(ctx, &c, -1, &q), 5);
    c = good, c.in_peers = twice, c.n_in = 2;
    REFUSED(hpc_queue_create(ctx, &c, -1, &q), peer);
    c = good, c.out_peers = NULL;
    REFUSED_TEXT(hpc_queue_create(ctx, &c, -1, &q), "out_peers");
    c = good, c.size = 3;
    REFUSED_TEXT(hpc_queue_create(ctx, &c, -1, &q), "size");
    CHECK(q == NULL);
    CHECK_OK(hpc_window_create(ctx, 16, 1, NULL, -1, &w));
    CHECK_OK(hpc_queue_create(ctx, &good, -1, &q));
    hpc_queue_free(q);
    hpc_window_free(w);
}

static void queue_in_bounds(rank *r) {
    int next = (r->rank + 1) % 3, prev = (r->rank + 2) % 3;
    hpc_queue_config c;
    hpc_queue_config_init(&c);
    c.in_peers = &prev, c.n_in = 1;
    c.out_peers = &next, c.n_out = 1;
    c.nbytes = 64, c.depth = 1;
    hpc_queue *q, *registered;
    CHECK_OK(hpc_queue_create(r->context, &c, -1, &q));
    c.buffers = 2;
    CHECK_OK(hpc_queue_create(r->context, &c, -1, &registered));
    char data[128] = {0};
    const void *update;
    uint64_t a, b;
    REFUSED(hpc_queue_send(q, prev, data, 64, -1), prev);
    REFUSED(hpc_queue_send(q, 17, data, 64, -1), 17);
    REFUSED(hpc_queue_send(q, -1, data, 64, -1), -1);
    REFUSED(hpc_queue_send(q, next, data, 65, -1), 65);
    REFUSED(hpc_queue_send(q, next, data, 63, -1), 63); /* an update is whole */
    REFUSED_TEXT(hpc_queue_send(q, next, NULL, 64, -1), "");
    REFUSED(hpc_queue_recv(q, next, &update, -1), next);
    REFUSED(hpc_queue_recv(q, 17, &update, -1), 17);
    REFUSED_TEXT(hpc_queue_recv(q, prev, NULL, -1), "");
    REFUSED(hpc_queue_ack(q, next), next);
    REFUSED(hpc_queue_ack(q, prev), prev); /* nothing is held */
    REFUSED(hpc_queue_versions(q, next, &a, &b), next);
    REFUSED(hpc_queue_acquire(q, 0, -1), 0);
    CHECK(hpc_queue_buffer(q, 0) == NULL);
    CHECK(hpc_queue_buffer(registered, 0) && hpc_queue_buffer(registered, 1));
    CHECK(hpc_queue_buffer(registered, 2) == NULL && hpc_queue_buffer(registered, -1) == NULL);
    REFUSED(hpc_queue_acquire(registered, 2, -1), 2);
    REFUSED(hpc_queue_acquire(registered, -1, -1), -1);
    REFUSED_TEXT(hpc_queue_send(registered, next, data, 64, -1), "buffer"); /* a foreign pointer */
    REFUSED_TEXT(hpc_queue_send(registered, next, (char *)hpc_queue_buffer(registered, 0) + 8, 64, -1), "buffer");
    double one = 1;
    REFUSED(hpc_queue_reduce(q, data, data, 1, &one, 9, -1), 9);
    REFUSED_TEXT(hpc_queue_reduce(q, NULL, data, 1, &one, HPC_F32, -1), "");

    CHECK_OK(hpc_queue_send(q, next, data, 64, -1));
    CHECK_OK(hpc_queue_recv(q, prev, &update, -1));
    REFUSED(hpc_queue_recv(q, prev, &update, -1), 1); /* depth 1 is held */
    CHECK_OK(hpc_queue_ack(q, prev));
    REFUSED(hpc_queue_ack(q, prev), prev);
    hpc_queue_free(q);
    hpc_queue_free(registered);
}

static void context_in_bounds(rank *r) {
    hpc_context *c = NULL;
    hpc_config bad;
    REFUSED(hpc_context_create(3, 3, NULL, &c), 3);
    REFUSED(hpc_context_create(-1, 3, NULL, &c), -1);
    REFUSED(hpc_context_create(0, 0, NULL, &c), 0);
    REFUSED(hpc_context_create(0, -9, NULL, &c), -9);
    bad = r->config, bad.transports = "shm,pigeon";
    CHECK_STATUS(hpc_context_create(0, 1, &bad, &c), HPC_ERR_CONFIG);
    CHECK_MESSAGE("pigeon");
    bad = r->config, bad.size = 1;
    REFUSED(hpc_context_create(0, 1, &bad, &c), 1);
    bad = r->config, bad.threads = -1;
    CHECK_STATUS(hpc_context_create(0, 1, &bad, &c), HPC_ERR_CONFIG);
    CHECK_MESSAGE("threads is -1");
    CHECK(c == NULL);
    REFUSED_TEXT(hpc_init(NULL, NULL, &c), "oob");

    CHECK_OK(hpc_context_create(0, 1, &r->config, &c));
    REFUSED_TEXT(hpc_barrier(c, -1), "connect"); /* not connected yet */
    hpc_window *w = NULL;
    REFUSED_TEXT(hpc_window_create(c, 16, 0, NULL, -1, &w), "connect");
    hpc_peer p;
    CHECK_OK(hpc_context_peer(c, 0, &p));
    hpc_context_free(c);

    hpc_context_free(NULL);
    hpc_window_free(NULL);
    hpc_lane_free(NULL);
    hpc_queue_free(NULL);
    hpc_memory_release(NULL);
    CHECK(hpc_status_text(HPC_ERR_PEER)[0] && hpc_status_text(-999)[0]);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "put_in_bounds", .size = 2, .run = put_in_bounds},
        {.name = "empty_puts", .size = 2, .run = empty_puts},
        {.name = "creations_in_bounds", .size = 2, .run = creations_in_bounds},
        {.name = "queue_in_bounds", .size = 3, .run = queue_in_bounds},
        {.name = "context_in_bounds", .size = 1, .run = context_in_bounds, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
