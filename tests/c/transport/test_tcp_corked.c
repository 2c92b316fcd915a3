/* Corked lanes over tcp: what they keep leaves in its order and whole, and events that overtake come before it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "corked_jobs.h"
#include "transport/tcp/parts.h"

enum { SENDER = CORKED_SENDER, TAKER = CORKED_TAKER, KEPT = 20, SMALL = CORKED_SMALL };

static tcp_link *link_to(hpc_lane *lane, int peer) {
    return lane->peers[peer].out;
}

static size_t queued_at(tcp_link *link) {
    pthread_mutex_lock(&link->sending);
    size_t nbytes = link->streams[0].queued;
    pthread_mutex_unlock(&link->sending);
    return nbytes;
}

/* Few small puts wait for the end of the cork, all of them, in one call; a flush or a put that is not corked sends them
 * too. arg: which of the three. */
static void kept(rank *r) {
    hpc_window *w;
    hpc_lane *lane;
    char src[KEPT * SMALL];
    hpc_event e;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, sizeof src, 1, NULL, -1, &w));
    for (size_t i = 0; i < sizeof src; i++) src[i] = (char)(i * 7 % 127);
    if (r->rank == SENDER) {
        hpc_lane_cork(lane);
        for (uint32_t k = 0; k < KEPT; k++)
            CHECK_OK(hpc_put_notify(lane, w, TAKER, src + k * SMALL, SMALL, k * SMALL, k, -1));
        CHECK_EQ(queued_at(link_to(lane, TAKER)), KEPT * (sizeof(hpc_frame) + SMALL));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == TAKER) CHECK(!corked_has_come(r, lane, &e));
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == SENDER) {
        if (r->arg == 0) hpc_lane_uncork(lane);
        if (r->arg == 1) CHECK_OK(hpc_flush(lane, w, TAKER, -1));
        if (r->arg == 2) lane->corked = 0, CHECK_OK(hpc_put_signal(lane, w, TAKER, NULL, 0, 0, 0, 1));
        CHECK_EQ(queued_at(link_to(lane, TAKER)), 0);
        hpc_lane_uncork(lane);
    } else {
        for (uint32_t k = 0; k < KEPT; k++) {
            CHECK_OK(hpc_wait_event(r->context, lane, &e, -1));
            CHECK_EQ(e.imm, k);
            CHECK(memcmp((char *)hpc_window_data(w) + k * SMALL, src + k * SMALL, SMALL) == 0);
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    hpc_lane_free(lane);
}

/* Puts of any size, corked and uncorked at any time, with signals and events between them: each event brings its own
 * bytes, and comes in its turn. arg: streams. */
static void any_order(rank *r) {
    enum { MOST = 300 << 10, SLOTS = 64 };
    hpc_window *w;
    hpc_lane *lane;
    hpc_event e;
    r->config.tcp_streams = r->arg;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    uint64_t seed = 5;
    const uint32_t n = (uint32_t)ranks_rounds(400);
    char *src = malloc((size_t)SLOTS * MOST);
    CHECK(src != NULL);
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, (size_t)SLOTS * MOST, 1, NULL, -1, &w));
    for (uint32_t k = 0; k < n; k++) { /* the same numbers on both */
        const size_t nbytes = ranks_random(&seed) % 8 ? 1 + ranks_random(&seed) % 3000 : ranks_random(&seed) % MOST;
        const int corks = ranks_random(&seed) % 5 == 0, uncorks = ranks_random(&seed) % 9 == 0;
        const size_t at = (size_t)(k % SLOTS) * MOST;
        if (k % SLOTS == 0) { /* slots are used again */
            if (r->rank == SENDER) hpc_lane_uncork(lane);
            if (r->rank == SENDER) CHECK_OK(hpc_flush(lane, w, TAKER, -1));
            CHECK_OK(hpc_barrier(r->context, -1));
        }
        if (r->rank == SENDER) {
            memset(src + at, (int)(k % 251), nbytes);
            if (corks) hpc_lane_cork(lane);
            CHECK_OK(hpc_put_notify(lane, w, TAKER, src + at, nbytes, at, k, -1));
            if (uncorks) hpc_lane_uncork(lane);
            if (k % SLOTS == SLOTS - 1 || k + 1 == n) hpc_lane_uncork(lane);
        } else {
            CHECK_OK(hpc_wait_event(r->context, lane, &e, -1));
            CHECK_EQ(e.imm, k);
            CHECK_EQ(e.nbytes, nbytes);
            const char *data = (const char *)hpc_window_data(w) + at;
            for (size_t i = 0; i < nbytes; i++) CHECK_EQ((unsigned char)data[i], k % 251);
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    hpc_lane_free(lane);
    free(src);
}

/* Much more than sockets hold is queued, then a few events go ahead: they come in their order, with their bytes, and
 * before the end of what was queued. Nothing is lost. */
static void ahead(rank *r) {
    enum { CHUNK = 1 << 20, CHUNKS = 48, AHEAD = 5, FIRST_AHEAD = 1000 };
    hpc_window *w;
    hpc_lane *lane;
    char *src = malloc(CHUNK);
    uint64_t words[AHEAD];
    CHECK(src != NULL);
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, CHUNK + sizeof words, 0, NULL, -1, &w));
    memset(src, 3, CHUNK);
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == SENDER) {
        hpc_lane_take_turn(lane, 2);
        for (uint32_t k = 0; k < CHUNKS; k++) CHECK_OK(hpc_put_notify(lane, w, TAKER, src, CHUNK, 0, k, -1));
        const int waited = queued_at(link_to(lane, TAKER)) > CHUNK;
        hpc_lane_take_turn(lane, 1);
        for (uint32_t k = 0; k < AHEAD; k++) {
            words[k] = 77 + k;
            CHECK_OK(hpc_put_notify(lane, w, TAKER, &words[k], sizeof words[k], CHUNK + k * sizeof words[k],
                                    FIRST_AHEAD + k, -1));
        }
        hpc_lane_take_turn(lane, 0);
        rank_set(r, 0, 1 + (uint64_t)waited);
        CHECK_OK(hpc_flush(lane, w, TAKER, -1));
    } else {
        uint32_t chunks = 0, came = 0, at[AHEAD];
        hpc_event e;
        while (chunks < CHUNKS || came < AHEAD) {
            CHECK_OK(hpc_wait_event(r->context, lane, &e, -1));
            if (e.imm < CHUNKS) {
                CHECK_EQ(e.imm, chunks);
                chunks++;
                continue;
            }
            CHECK_EQ(e.imm, FIRST_AHEAD + came);
            uint64_t word;
            memcpy(&word, (char *)hpc_window_data(w) + CHUNK + came * sizeof word, sizeof word);
            CHECK_EQ(word, 77 + came);
            at[came++] = chunks;
        }
        if (rank_await(r, 0, 1) == 2) CHECK(at[AHEAD - 1] < CHUNKS);
        for (size_t i = 0; i < CHUNK; i++) CHECK_EQ(((char *)hpc_window_data(w))[i], 3);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    hpc_lane_free(lane);
    free(src);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "kept_uncork", .size = 2, .run = kept, .where = RANKS_TCP},
        {.name = "kept_flush", .size = 2, .run = kept, .arg = 1, .where = RANKS_TCP},
        {.name = "kept_next", .size = 2, .run = kept, .arg = 2, .where = RANKS_TCP},
        {.name = "any_order_1", .size = 2, .run = any_order, .arg = 1, .where = RANKS_TCP, .bare = true},
        {.name = "any_order_3", .size = 2, .run = any_order, .arg = 3, .where = RANKS_TCP, .bare = true},
        {.name = "ahead", .size = 2, .run = ahead, .where = RANKS_TCP},
        {.name = "dies_corked",
         .size = 2,
         .run = corked_dies,
         .where = RANKS_TCP | RANKS_PROCESSES,
         .victims = 1 << SENDER,
         .apart = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
