/* Notifications: in order per peer, each after its data, none lost, none twice, and a full ring holds the sender. */
#include "ranks.h"

enum { SLOT = 96 };

static size_t length_of(int peer, uint64_t k) {
    return (k * 31 + (uint64_t)peer) % (SLOT - 16);
}

static void send_one(rank *r, hpc_window *w, hpc_lane *lane, unsigned char *src, int to, uint64_t k) {
    int slots = 2 * HPC_NOTIFY_DEPTH;
    size_t n = length_of(r->rank, k), at = k % (uint64_t)slots * SLOT;
    ranks_fill(src + at, n, k * 16 + (uint64_t)r->rank);
    CHECK_OK(hpc_put_notify(lane, w, to, src + at, n, (size_t)(r->rank * slots) * SLOT + at,
                            (uint32_t)(k * 0x9e3779b1u), -1));
}

/* Everybody sends to everybody, several times round the ring, and polls as it goes. A slot is used again 2 * depth
 * events later, which the sender cannot reach before the receiver has polled the one in between. */
static void all_to_all(rank *r) {
    int depth = HPC_NOTIFY_DEPTH, slots = 2 * depth;
    CHECK(depth >= 2);
    uint64_t total = (uint64_t)(depth * 5 + 3), sent[RANKS_MAX] = {0}, seen[RANKS_MAX] = {0};
    size_t area = (size_t)slots * SLOT;
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, area * (size_t)r->size, 0, NULL, -1, &w));
    unsigned char *src = malloc(area * (size_t)r->size), *mine = hpc_window_data(w);
    uint64_t left = 2 * total * (uint64_t)(r->size - 1), random = (uint64_t)r->rank; /* to send and to see */
    while (left) {
        int to = (int)(ranks_random(&random) % (uint64_t)r->size);
        /* Half a ring ahead of what came from there: then neither can be held by a full ring while it holds the other.
         */
        if (to != r->rank && sent[to] < total && sent[to] < seen[to] + (uint64_t)depth / 2) {
            send_one(r, w, NULL, src + (size_t)to * area, to, sent[to]);
            sent[to]++;
            left--;
        }
        hpc_event e;
        int status = hpc_poll(r->context, NULL, &e);
        if (status == HPC_IN_PROGRESS) continue;
        CHECK_OK(status);
        uint64_t k = seen[e.peer]++;
        CHECK_EQ(e.imm, (uint32_t)(k * 0x9e3779b1u));
        CHECK_EQ(e.nbytes, length_of(e.peer, k));
        CHECK_EQ(ranks_first_wrong(mine + (size_t)e.peer * area + k % (uint64_t)slots * SLOT, e.nbytes,
                                   k * 16 + (uint64_t)e.peer),
                 e.nbytes);
        left--;
    }
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    free(src);
    hpc_window_free(w);
}

/* One stream, as fast as it goes: the sender is held by a full ring again and again. */
static void stream(rank *r) {
    int slots = 2 * HPC_NOTIFY_DEPTH;
    uint64_t total = (uint64_t)ranks_rounds(30000);
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, (size_t)(slots * SLOT) * 2, 0, NULL, -1, &w));
    unsigned char *src = malloc((size_t)(slots * SLOT)), *mine = hpc_window_data(w);
    for (uint64_t k = 0; k < total; k++) {
        if (r->rank == 0) {
            send_one(r, w, NULL, src, 1, k);
            continue;
        }
        hpc_event e;
        CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
        CHECK_EQ(e.peer, 0);
        CHECK_EQ(e.imm, (uint32_t)(k * 0x9e3779b1u));
        CHECK_EQ(e.nbytes, length_of(0, k));
        CHECK_EQ(ranks_first_wrong(mine + k % (uint64_t)slots * SLOT, e.nbytes, k * 16), e.nbytes);
    }
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    free(src);
    hpc_window_free(w);
}

/* A full ring: the next one times out naming the peer, others are reached, and room comes back with polling. */
static void full_ring(rank *r) {
    uint32_t depth = (uint32_t)HPC_NOTIFY_DEPTH;
    hpc_window *w;
    hpc_event e;
    uint64_t word = 42;
    CHECK_OK(hpc_window_create(r->context, 8, 0, NULL, -1, &w));
    if (r->rank == 0) {
        for (uint32_t k = 0; k < depth; k++) CHECK_OK(hpc_put_notify(NULL, w, 1, NULL, 0, 0, k, 5));
        for (int i = 0; i < 3; i++) {
            double start = ranks_now(), timeout = i ? 0.1 : 0;
            CHECK_STATUS(hpc_put_notify(NULL, w, 1, &word, 8, 0, 1u << 31, timeout), HPC_ERR_TIMEOUT);
            CHECK(ranks_error_waits_for(1));
            CHECK_EQ(hpc_last_error()->n_waiting, 1);
            CHECK(ranks_now() - start >= timeout * 0.9 && ranks_now() - start < timeout + 2);
        }
        CHECK_OK(hpc_put_notify(NULL, w, 2, NULL, 0, 0, 7, 5));
        rank_set(r, 0, 1);
        for (uint32_t k = depth; k < 3 * depth; k++) CHECK_OK(hpc_put_notify(NULL, w, 1, &word, 8, 0, k, 10));
        CHECK_OK(hpc_flush(NULL, w, -1, -1));
    } else if (r->rank == 1) {
        rank_await(r, 0, 1);
        for (uint32_t k = 0; k < 3 * depth; k++) {
            CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
            CHECK_EQ(e.peer, 0);
            CHECK_EQ(e.imm, k); /* the refused ones are not among them */
            CHECK_EQ(e.nbytes, k < depth ? 0 : 8);
        }
        CHECK_STATUS(hpc_poll(r->context, NULL, &e), HPC_IN_PROGRESS);
        CHECK_EQ(*(uint64_t *)hpc_window_data(w), 42);
    } else {
        CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
        CHECK_EQ(e.imm, 7);
        CHECK_STATUS(hpc_wait_event(r->context, NULL, &e, 0.05), HPC_ERR_TIMEOUT);
        CHECK_STATUS(hpc_wait_event(r->context, NULL, &e, 0), HPC_ERR_TIMEOUT);
        CHECK(hpc_last_error()->n_waiting == 2 && ranks_error_waits_for(0) && ranks_error_waits_for(1));
    }
    hpc_window_free(w);
}

/* A peer whose ring is always full does not hide the others. */
static void nobody_is_hidden(rank *r) {
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 8, 0, NULL, -1, &w));
    int mine = r->rank == 1 ? HPC_NOTIFY_DEPTH : r->rank == 0 ? 0 : 1;
    for (int k = 0; k < mine; k++) CHECK_OK(hpc_put_notify(NULL, w, 0, NULL, 0, 0, 0, -1));
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        unsigned seen = 0;
        hpc_event e;
        for (int k = 0; k < r->size; k++) {
            CHECK_OK(hpc_poll(r->context, NULL, &e));
            seen |= 1u << e.peer;
        }
        CHECK_EQ(seen, (1u << r->size) - 2);
        for (int k = r->size; k < HPC_NOTIFY_DEPTH + r->size - 2; k++) CHECK_OK(hpc_poll(r->context, NULL, &e));
        CHECK_STATUS(hpc_poll(r->context, NULL, &e), HPC_IN_PROGRESS);
    }
    hpc_window_free(w);
}

/* Events come out of the lane of the same number, imm and peer as given; a rank may notify itself. */
static void lanes_apart(rank *r) {
    enum { LANES = 3 };
    const int each = HPC_NOTIFY_DEPTH < 20 ? HPC_NOTIFY_DEPTH : 20;
    hpc_lane *lanes[LANES] = {NULL};
    hpc_window *w;
    hpc_event e;
    for (int i = 1; i < LANES; i++) CHECK_OK(hpc_lane_create(r->context, -1, &lanes[i]));
    CHECK_OK(hpc_window_create(r->context, 64, 0, NULL, -1, &w));
    for (uint32_t k = 0; k < (uint32_t)each; k++) {
        for (int i = 0; i < LANES; i++) {
            for (int to = 0; to < r->size; to++)
                CHECK_OK(hpc_put_notify(lanes[i], w, to, NULL, 0, 0, UINT32_MAX - k * 8 - (uint32_t)i, -1));
        }
    }
    for (int i = LANES - 1; i >= 0; i--) {
        uint32_t seen[RANKS_MAX] = {0};
        for (int k = 0; k < each * r->size; k++) {
            CHECK_OK(hpc_wait_event(r->context, lanes[i], &e, -1));
            CHECK(e.peer >= 0 && e.peer < r->size);
            CHECK_EQ(e.imm, UINT32_MAX - seen[e.peer] * 8 - (uint32_t)i);
            seen[e.peer]++;
        }
        CHECK_STATUS(hpc_poll(r->context, lanes[i], &e), HPC_IN_PROGRESS);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 1; i < LANES; i++) hpc_lane_free(lanes[i]);
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "all_to_all", .size = 3, .run = all_to_all},
        {.name = "all_to_all_8", .size = 8, .run = all_to_all},
        {.name = "stream", .size = 2, .run = stream},
        {.name = "stream_sleepy", .size = 2, .run = stream, .sleepy = true},
        {.name = "full_ring", .size = 3, .run = full_ring},
        {.name = "nobody_is_hidden", .size = 4, .run = nobody_is_hidden},
        {.name = "lanes_apart", .size = 3, .run = lanes_apart},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
