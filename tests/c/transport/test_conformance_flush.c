/* flush, the peer's view, and memory that outlives its window. */
#include "ranks.h"

enum { NBYTES = 100000 };

/* After flush the source is the caller's again: what it writes there then is not seen by the peer. */
static void source_is_free_after_flush(rank *r) {
    int peer = 1 - r->rank, rounds = ranks_rounds(300);
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, NBYTES, 1, NULL, -1, &w));
    unsigned char *src = malloc(NBYTES);
    for (int round = 1; round <= rounds; round++) {
        size_t n = round % 5 ? (size_t)(round * 71 % 3000) : NBYTES;
        ranks_fill(src, n, (uint64_t)round);
        CHECK_OK(hpc_put(NULL, w, peer, src, n, 0));
        CHECK_OK(hpc_flush(NULL, w, round % 2 ? peer : -1, -1));
        memset(src, 0xee, n);
        CHECK_OK(hpc_barrier(r->context, -1)); /* no signal: flush alone says that the bytes are there */
        CHECK_EQ(ranks_first_wrong(hpc_window_data(w), n, (uint64_t)round), n);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    free(src);
    hpc_window_free(w);
}

/* A source that changes before flush may show: the seeded loop must make such a fault of the caller visible. */
static void seeds_are_late(rank *r) {
    if (r->mode->seed == 0) return; /* delivers at once */
    int peer = 1 - r->rank, rounds = 200, changed = 0;
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 4096, 1, NULL, -1, &w));
    unsigned char src[4096], *mine = hpc_window_data(w);
    for (int round = 1; round <= rounds; round++) {
        memset(src, 1, sizeof src);
        CHECK_OK(hpc_put(NULL, w, peer, src, sizeof src, 0));
        memset(src, 2, sizeof src);
        CHECK_OK(hpc_put_signal(NULL, w, peer, NULL, 0, 0, 0, (uint64_t)round));
        CHECK_OK(hpc_flush(NULL, w, peer, -1));
        CHECK_OK(hpc_wait_signal(w, 0, (uint64_t)round, peer, -1, NULL));
        for (size_t i = 0; i < sizeof src; i++) CHECK(mine[i] == 1 || mine[i] == 2);
        changed += memchr(mine, 2, sizeof src) != NULL;
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    CHECK(changed > 0);
    hpc_window_free(w);
}

/* A view of a peer whose memory can be mapped is that memory, in both directions and without a copy. */
static void peer_view(rank *r) {
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, NBYTES, r->size, NULL, -1, &w));
    bool shm = strcmp(r->mode->transports, "shm") == 0;
    unsigned char *mine = hpc_window_data(w);
    for (size_t i = 0; i < NBYTES; i++) CHECK_EQ(mine[i], 0);
    CHECK(hpc_window_peer_view(w, r->rank) == mine || !shm);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < r->size; i++) {
        if (i == r->rank) continue;
        hpc_peer p;
        CHECK_OK(hpc_context_peer(r->context, i, &p));
        CHECK_EQ(p.state, HPC_PEER_ALIVE);
        CHECK(strcmp(p.transport, r->mode->transports) == 0);
        CHECK(p.pid > 0 && p.host[0]);
        unsigned char *view = hpc_window_peer_view(w, i);
        CHECK((view != NULL) == shm);
        if (view) view[r->rank] = (unsigned char)(100 + r->rank);
    }
    ranks_fill(mine + 64, NBYTES - 64, (uint64_t)r->rank + 7);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < r->size; i++) {
        unsigned char *view = hpc_window_peer_view(w, i);
        if (i == r->rank || !view) continue;
        CHECK_EQ(mine[i], 100 + i);
        CHECK_EQ(ranks_first_wrong(view + 64, NBYTES - 64, (uint64_t)i + 7), NBYTES - 64);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

/* A reference keeps the memory past its window and its context. */
static void memory_outlives(rank *r) {
    int peer = 1 - r->rank;
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, NBYTES, 1, NULL, -1, &w));
    ranks_fill(hpc_window_data(w), NBYTES, (uint64_t)r->rank);
    hpc_memory *mine = hpc_window_memory(w, r->rank), *again = hpc_window_memory(w, r->rank),
               *theirs = hpc_window_memory(w, peer);
    CHECK(mine && again && hpc_memory_data(mine) == hpc_window_data(w));
    CHECK((theirs != NULL) == (hpc_window_peer_view(w, peer) != NULL));
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    hpc_memory_release(again);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_context_close(r->context));
    hpc_context_free(r->context);
    r->context = NULL;
    rank_meet(r);
    CHECK_EQ(ranks_first_wrong(hpc_memory_data(mine), NBYTES, (uint64_t)r->rank), NBYTES);
    if (theirs) CHECK_EQ(ranks_first_wrong(hpc_memory_data(theirs), NBYTES, (uint64_t)peer), NBYTES);
    rank_meet(r);
    hpc_memory_release(mine);
    hpc_memory_release(theirs);
}

/* The same of a queue, with an update that is still held when its queue goes. */
static void queue_memory_outlives(rank *r) {
    int peer = 1 - r->rank;
    hpc_queue_config c;
    hpc_queue_config_init(&c);
    c.in_peers = c.out_peers = &peer;
    c.n_in = c.n_out = 1;
    c.nbytes = NBYTES, c.depth = 1, c.buffers = r->arg;
    hpc_queue *q;
    CHECK_OK(hpc_queue_create(r->context, &c, -1, &q));
    unsigned char *src = r->arg ? hpc_queue_buffer(q, 0) : malloc(NBYTES);
    if (r->arg) CHECK_OK(hpc_queue_acquire(q, 0, -1));
    ranks_fill(src, NBYTES, (uint64_t)r->rank);
    CHECK_OK(hpc_queue_send(q, peer, src, NBYTES, -1));
    const void *update;
    CHECK_OK(hpc_queue_recv(q, peer, &update, -1));
    /* In whose memory the update lies is the transport's affair: one reference of each keeps it. */
    hpc_memory *kept[2] = {hpc_queue_memory(q, r->rank), hpc_queue_memory(q, peer)};
    CHECK(kept[0]);
    hpc_queue_free(q);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_context_close(r->context));
    hpc_context_free(r->context);
    r->context = NULL;
    rank_meet(r);
    CHECK_EQ(ranks_first_wrong(update, NBYTES, (uint64_t)peer), NBYTES);
    if (!r->arg) free(src);
    hpc_memory_release(kept[0]);
    hpc_memory_release(kept[1]);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "source_is_free_after_flush", .size = 2, .run = source_is_free_after_flush},
        {.name = "seeds_are_late", .size = 2, .run = seeds_are_late, .where = RANKS_LOOP | RANKS_NOT_TSAN},
        {.name = "peer_view", .size = 3, .run = peer_view},
        {.name = "memory_outlives", .size = 2, .run = memory_outlives},
        {.name = "queue_memory_outlives", .size = 2, .run = queue_memory_outlives, .arg = 0},
        {.name = "registered_memory_outlives", .size = 2, .run = queue_memory_outlives, .arg = 2},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
