/* A rank reaches a peer's part of a window or a lane at its first use: nothing before, the right part then, whichever
 * thread comes first, and nothing is lost when one end has freed its part. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "context/context.h"
#include "ranks.h"

static int distance(const hpc_object *o, int peer) {
    return atomic_load(&o->ways[peer].distance);
}

static bool is_eager(const rank *r, int peer) {
    return (r->context->transports[peer]->caps & HPC_CAP_EAGER) != 0;
}

/* Each rank puts to its successor alone. */
static void only_used(rank *r) {
    hpc_window *w;
    hpc_lane *lane;
    hpc_event e;
    const int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    CHECK_OK(hpc_window_create(r->context, 4096, 1, NULL, -1, &w));
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    for (int p = 0; p < r->size; p++)
        if (p != r->rank && !is_eager(r, p)) {
            CHECK_EQ(distance(&w->object, p), HPC_FAR);
            CHECK_EQ(distance(&lane->object, p), HPC_FAR);
        }
    CHECK_OK(hpc_put_notify(lane, w, next, &r->rank, sizeof r->rank, 0, 7, -1));
    CHECK_OK(hpc_wait_event(r->context, lane, &e, -1));
    CHECK_EQ(e.peer, before);
    CHECK_EQ(e.imm, 7);
    CHECK_EQ(*(int *)hpc_window_data(w), before);
    rank_meet(r);
    for (int p = 0; p < r->size; p++)
        if (p != r->rank && p != next && p != before && !is_eager(r, p)) {
            CHECK_EQ(distance(&w->object, p), HPC_FAR);
            CHECK_EQ(distance(&lane->object, p), HPC_FAR);
        }
    rank_meet(r);
    hpc_lane_free(lane);
    hpc_window_free(w);
}

/* ---- several threads come first ---- */

enum { THREADS = 6, STRIDE = 64 };

typedef struct comer {
    rank *r;
    hpc_window *w;
    hpc_lane *lane;
    pthread_barrier_t *start;
    int number;
    pthread_t thread;
} comer;

static void *come(void *arg) {
    comer *c = arg;
    rank *r = c->r;
    const size_t at = (size_t)(r->rank * THREADS + c->number);
    const uint64_t word = at + 1;
    pthread_barrier_wait(c->start);
    for (int p = 0; p < r->size; p++)
        CHECK_OK(hpc_put_signal(c->lane, c->w, p, &word, sizeof word, at * STRIDE, (int)at, word));
    CHECK_OK(hpc_flush(c->lane, c->w, -1, -1));
    return NULL;
}

static void come_at_once(rank *r) {
    for (int round = 0; round < ranks_rounds(20); round++) {
        hpc_window *w;
        comer comers[THREADS];
        pthread_barrier_t start;
        pthread_barrier_init(&start, NULL, THREADS);
        CHECK_OK(hpc_window_create(r->context, (size_t)r->size * THREADS * STRIDE, r->size * THREADS, NULL, -1, &w));
        for (int i = 0; i < THREADS; i++) {
            comers[i] = (comer){r, w, NULL, &start, i, 0};
            CHECK_OK(hpc_lane_create(r->context, -1, &comers[i].lane));
        }
        for (int i = 0; i < THREADS; i++) pthread_create(&comers[i].thread, NULL, come, &comers[i]);
        for (int i = 0; i < THREADS; i++) pthread_join(comers[i].thread, NULL);
        for (int i = 0; i < r->size * THREADS; i++) {
            CHECK_OK(hpc_wait_signal(w, i, (uint64_t)i + 1, i / THREADS, -1, NULL));
            CHECK_EQ(*(uint64_t *)(void *)((char *)hpc_window_data(w) + i * STRIDE), i + 1);
        }
        CHECK_OK(hpc_barrier(r->context, -1));
        for (int i = 0; i < THREADS; i++) hpc_lane_free(comers[i].lane);
        hpc_window_free(w);
        pthread_barrier_destroy(&start);
    }
}

/* ---- freed parts ---- */

/* A peer has freed its lane before this rank first uses its own: data and signals arrive all the same. What is put into
 * a window that its rank has freed is dropped, and the next window is right. */
static void freed_before(rank *r) {
    const int peer = 1 - r->rank, first = r->arg;
    for (uint64_t round = 1; round <= (uint64_t)ranks_rounds(10); round++) {
        hpc_window *kept, *gone;
        hpc_lane *lane;
        uint64_t word = round * 8 + (uint64_t)r->rank;
        CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &kept));
        CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &gone));
        CHECK_OK(hpc_lane_create(r->context, -1, &lane));
        if (r->rank == first) {
            hpc_lane_free(lane);
            hpc_window_free(gone);
            CHECK_OK(hpc_barrier(r->context, -1));
            CHECK_OK(hpc_wait_signal(kept, 0, round, peer, -1, NULL));
            CHECK_EQ(*(uint64_t *)hpc_window_data(kept), round * 8 + (uint64_t)peer);
        } else {
            CHECK_OK(hpc_barrier(r->context, -1));
            if (!is_eager(r, peer)) {
                CHECK_OK(hpc_put(lane, gone, peer, &word, sizeof word, 0));
                CHECK_OK(hpc_put_signal(NULL, gone, peer, &word, sizeof word, 0, 0, 1));
            }
            CHECK_OK(hpc_put(lane, kept, peer, &word, sizeof word, 0));
            CHECK_OK(hpc_put_signal(lane, kept, peer, NULL, 0, 0, 0, round));
            if (is_eager(r, peer)) CHECK_OK(hpc_flush(lane, kept, peer, -1));
            word = 0; /* the put was complete, as the lane has no other end that could take it */
            hpc_lane_free(lane);
            hpc_window_free(gone);
        }
        CHECK_OK(hpc_barrier(r->context, -1));
        hpc_window_free(kept);
    }
}

/* A question that comes twice, as one may through a socket that was full, has two answers before the first is used. */
static void asked_twice(rank *r) {
    const int peer = 1 - r->rank;
    hpc_window *w;
    hpc_lane *lane;
    hpc_event e;
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    hpc_object *const objects[] = {&w->object, &lane->object};
    for (int i = 0; i < 2 && !is_eager(r, peer); i++) {
        if (hpc_reach_try(r->context, objects[i], peer, "test") == HPC_IN_PROGRESS &&
            distance(objects[i], peer) != HPC_NEAR)
            CHECK_OK(hpc_control_want(r->context->control, peer, objects[i]->number));
    }
    for (int i = 0; i < 20; i++) CHECK_OK(hpc_barrier(r->context, -1)); /* the answers come meanwhile */
    CHECK_OK(hpc_put_notify(lane, w, peer, &r->rank, sizeof r->rank, 0, 5, -1));
    CHECK_OK(hpc_wait_event(r->context, lane, &e, -1));
    CHECK_EQ(e.imm, 5);
    CHECK_EQ(*(int *)hpc_window_data(w), peer);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_lane_free(lane);
    hpc_window_free(w);
}

/* A put into memory outside the window is refused before the peer is asked. */
static void bounds_come_first(rank *r) {
    hpc_window *w;
    const int peer = (r->rank + 1) % r->size;
    CHECK_OK(hpc_window_create(r->context, 64, 2, NULL, -1, &w));
    CHECK_STATUS(hpc_put(NULL, w, peer, "12345678", 8, 60), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_put_signal(NULL, w, peer, NULL, 0, 0, 2, 1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_put_signal(NULL, w, peer, NULL, 0, 65, 0, 1), HPC_ERR_INVALID);
    if (!is_eager(r, peer)) CHECK_EQ(distance(&w->object, peer), HPC_FAR);
    rank_meet(r);
    hpc_window_free(w);
}

/* A rank dies before it is asked, or while many ask it: each names it. */
static void dies_unasked(rank *r) {
    hpc_window *w;
    int status = HPC_OK;
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
    rank_meet(r);
    if (r->rank == 1) _exit(0);
    for (double end = ranks_now() + 10; status == HPC_OK && ranks_now() < end; sched_yield())
        status = hpc_put_notify(NULL, w, 1, NULL, 0, 0, 0, 5);
    CHECK_EQ(status, HPC_ERR_PEER);
    CHECK_EQ(hpc_last_error()->n_ranks, 1);
    CHECK_EQ(hpc_last_error()->ranks[0], 1);
    rank_set(r, r->rank, 1);
    for (int i = 0; i < r->size; i++)
        if (i != 1) rank_await(r, i, 1);
    hpc_window_free(w);
}

/* A process that may open too few files for the job's connections is told how many it needs. */
static void too_few_files(rank *r) {
    hpc_context *c = NULL;
    const struct rlimit few = {200, 200};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    CHECK_STATUS(hpc_context_create(0, 300, &r->config, &c), HPC_ERR_CONFIG);
    CHECK(c == NULL);
    CHECK(strstr(hpc_last_error()->message, "open files for 300 ranks, and its process may have 200"));
    CHECK_OK(hpc_context_create(0, 64, &r->config, &c));
    hpc_context_free(c);
}

int main(int argc, char **argv) {
    const ranks_case cases[] = {
        {.name = "only_used", .size = 6, .run = only_used},
        {.name = "only_used_by_hosts", .size = 6, .run = only_used, .per_host = 2},
        {.name = "come_at_once", .size = 4, .run = come_at_once},
        {.name = "come_at_once_sleepy", .size = 3, .run = come_at_once, .sleepy = true},
        {.name = "freed_before_0", .size = 2, .run = freed_before, .arg = 0},
        {.name = "freed_before_1", .size = 2, .run = freed_before, .arg = 1},
        {.name = "asked_twice", .size = 2, .run = asked_twice},
        {.name = "too_few_files", .size = 1, .run = too_few_files, .where = RANKS_PROCESSES, .bare = true},
        {.name = "bounds_come_first", .size = 3, .run = bounds_come_first},
        {.name = "dies_unasked",
         .size = 4,
         .run = dies_unasked,
         .victims = 1 << 1,
         .where = RANKS_PROCESSES,
         .apart = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
