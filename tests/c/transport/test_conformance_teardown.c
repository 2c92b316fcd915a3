/* Several contexts at once, teardown in any order, and forked children. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

static hpc_queue *ring_queue(rank *r, int buffers) {
    int next = (r->rank + 1) % r->size, prev = (r->rank + r->size - 1) % r->size;
    hpc_queue_config c;
    hpc_queue *q;
    hpc_queue_config_init(&c);
    c.in_peers = &prev, c.out_peers = &next, c.n_in = c.n_out = 1;
    c.nbytes = 100, c.depth = 2, c.buffers = buffers;
    CHECK_OK(hpc_queue_create(r->context, &c, -1, &q));
    return q;
}

static void ping(hpc_context *ctx, hpc_window *w, uint64_t value) {
    int me = hpc_context_rank(ctx), size = hpc_context_size(ctx), next = (me + 1) % size, prev = (me + size - 1) % size;
    CHECK_OK(hpc_put_signal(NULL, w, next, &value, 8, 0, 0, value));
    CHECK_OK(hpc_wait_signal(w, 0, value, prev, -1, NULL));
    CHECK_EQ(*(uint64_t *)hpc_window_data(w), value);
    CHECK_OK(hpc_flush(NULL, w, next, -1));
    CHECK_OK(hpc_barrier(ctx, -1));
}

static void several_contexts(rank *r) {
    enum { N = 4 };
    hpc_context *c[N];
    hpc_window *w[N];
    for (int i = 0; i < N; i++) {
        CHECK_OK(hpc_init(&r->oob, &r->config, &c[i]));
        CHECK_EQ(hpc_context_rank(c[i]), r->rank);
        CHECK_EQ(hpc_context_size(c[i]), r->size);
        CHECK_OK(hpc_window_create(c[i], 64, 1, NULL, -1, &w[i]));
    }
    for (uint64_t round = 1; round <= 20; round++) {
        for (int i = 0; i < N; i++) ping(c[i], w[i], round * 8 + (uint64_t)i);
    }
    CHECK_STATUS(hpc_put(NULL, w[0], 99, NULL, 0, 0), HPC_ERR_INVALID);
    for (int i = 0; i < N; i += 2) { /* the others are none the worse for it */
        hpc_window_free(w[i]);
        hpc_context_free(c[i]);
    }
    for (int i = 1; i < N; i += 2) ping(c[i], w[i], 1000);
    for (int i = 1; i < N; i += 2) {
        hpc_context_free(c[i]);
        hpc_window_free(w[i]);
    }
}

/* Everything that a context can give, freed in the order that arg says; calls in between fail and do not crash. */
static void any_order(rank *r) {
    hpc_context *ctx = r->context;
    hpc_lane *lane;
    hpc_window *w;
    CHECK_OK(hpc_lane_create(ctx, -1, &lane));
    CHECK_OK(hpc_window_create(ctx, 4096, 2, NULL, -1, &w));
    hpc_queue *q = ring_queue(r, r->arg & 1);
    hpc_memory *memory = hpc_window_memory(w, r->rank);
    ping(ctx, w, 9);
    CHECK_OK(hpc_barrier(ctx, -1));
    bool context_first = r->arg & 2, by_close = r->arg & 4;
    if (by_close) {
        CHECK_OK(hpc_context_close(ctx));
        CHECK_OK(hpc_context_close(ctx));
        char byte = 0;
        const void *update;
        hpc_event e;
        hpc_window *none = NULL;
        int next = (r->rank + 1) % r->size, prev = (r->rank + r->size - 1) % r->size;
        CHECK_STATUS(hpc_put(lane, w, next, &byte, 1, 0), HPC_ERR_INVALID);
        CHECK_MESSAGE("closed");
        CHECK_STATUS(hpc_wait_signal(w, 1, 1, -1, -1, NULL), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_wait_event(ctx, NULL, &e, -1), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_barrier(ctx, -1), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_window_create(ctx, 8, 0, NULL, -1, &none), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_queue_recv(q, prev, &update, -1), HPC_ERR_INVALID);
    }
    if (context_first) hpc_context_free(ctx);
    for (int i = 0; i < 3; i++) {
        switch ((i + (r->arg >> 3)) % 3) {
        case 0:
            hpc_window_free(w);
            break;
        case 1:
            hpc_lane_free(lane);
            break;
        default:
            hpc_queue_free(q);
            break;
        }
    }
    if (!context_first) hpc_context_free(ctx);
    CHECK_EQ(*(uint64_t *)hpc_memory_data(memory), 9);
    hpc_memory_release(memory);
    r->context = NULL;
}

static void every_order(rank *r) {
    for (r->arg = 0; r->arg < 24; r->arg++) {
        if (!r->context) CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
        any_order(r);
    }
}

/* A rank that has come out of a barrier may leave at once: the others come out of it all the same. */
static void leave_after_barrier(rank *r) {
    int rounds = ranks_rounds(60);
    for (int round = 0; round < rounds; round++) {
        if (!r->context) CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
        CHECK_OK(hpc_barrier(r->context, -1));
        hpc_context_free(r->context);
        r->context = NULL;
    }
}

/* One rank frees its window while the other still writes to it. */
static void freed_under_a_writer(rank *r) {
    hpc_window *w;
    static char src[60000];
    for (int round = 0; round < 20; round++) {
        CHECK_OK(hpc_window_create(r->context, sizeof src, 1, NULL, -1, &w));
        if (r->rank == 0) {
            for (uint64_t i = 1; i <= 50; i++) CHECK_OK(hpc_put_signal(NULL, w, 1, src, sizeof src, 0, 0, i));
            CHECK_OK(hpc_flush(NULL, w, 1, -1));
        }
        hpc_window_free(w);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* Windows come and go; that nothing is left of them is seen by the harness. */
static void windows_come_and_go(rank *r) {
    int rounds = ranks_rounds(150);
    for (int i = 0; i < rounds; i++) {
        hpc_window *a, *b;
        CHECK_OK(hpc_window_create(r->context, (size_t)(i * 1000), i % 5 + 1, NULL, -1, &a));
        CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &b));
        for (size_t k = 0; k < (size_t)(i * 1000); k++) CHECK_EQ(((char *)hpc_window_data(a))[k], 0);
        CHECK_OK(hpc_barrier(r->context, -1));
        int next = (r->rank + 1) % r->size;
        if (i) CHECK_OK(hpc_put(NULL, a, next, "x", 1, (size_t)(i * 1000 - 1)));
        ping(r->context, b, (uint64_t)i + 1);
        hpc_window_free(i & 1 ? a : b);
        hpc_window_free(i & 1 ? b : a);
    }
}

typedef struct waiter {
    hpc_window *w;
    hpc_queue *q;
    hpc_context *ctx;
    int what, peer, status;
} waiter;

static void *wait_long(void *arg) {
    waiter *t = arg;
    const void *update;
    hpc_event e;
    switch (t->what) {
    case 0:
        t->status = hpc_wait_signal(t->w, 0, 1, -1, -1, NULL);
        break;
    case 1:
        t->status = hpc_wait_signal(t->w, 1, 1, t->peer, -1, NULL);
        break;
    case 2:
        t->status = hpc_wait_event(t->ctx, NULL, &e, -1);
        break;
    default:
        t->status = hpc_queue_recv(t->q, t->peer, &update, -1);
        break;
    }
    return NULL;
}

/* close ends the waits of this rank's other threads. The closing of the peer may be seen by them first. */
static void close_ends_waits(rank *r) {
    for (int round = 0; round < 20; round++) {
        if (!r->context) CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
        hpc_window *w;
        CHECK_OK(hpc_window_create(r->context, 64, 2, NULL, -1, &w));
        hpc_queue *q = ring_queue(r, 0);
        waiter t[4];
        pthread_t threads[4];
        if (r->rank == 0) {
            for (int i = 0; i < 4; i++) {
                t[i] = (waiter){w, q, r->context, i, 1, 0};
                CHECK_EQ(pthread_create(&threads[i], NULL, wait_long, &t[i]), 0);
            }
            double start = ranks_now();
            CHECK_OK(hpc_context_close(r->context));
            for (int i = 0; i < 4; i++) {
                pthread_join(threads[i], NULL);
                CHECK_EQ(t[i].status, HPC_ERR_INVALID);
            }
            CHECK(ranks_now() - start < 10);
        }
        rank_meet(r);
        hpc_window_free(w);
        hpc_context_free(r->context);
        hpc_queue_free(q);
        r->context = NULL;
    }
}

/* A forked child can do nothing with its parent's context, and no harm to it. */
static int child(hpc_context *ctx, hpc_window *w, hpc_queue *q, int peer) {
    char byte = 1;
    const void *update;
    hpc_event e;
    hpc_window *none = NULL;
    bool ok = hpc_put(NULL, w, peer, &byte, 1, 0) == HPC_ERR_INVALID && hpc_barrier(ctx, -1) == HPC_ERR_INVALID &&
              hpc_wait_signal(w, 0, 1000, peer, -1, NULL) == HPC_ERR_INVALID &&
              hpc_flush(NULL, w, -1, -1) == HPC_ERR_INVALID && hpc_wait_event(ctx, NULL, &e, -1) == HPC_ERR_INVALID &&
              hpc_window_create(ctx, 8, 0, NULL, -1, &none) == HPC_ERR_INVALID &&
              hpc_put_notify(NULL, w, peer, &byte, 1, 0, 0, -1) == HPC_ERR_INVALID &&
              hpc_queue_recv(q, peer, &update, -1) == HPC_ERR_INVALID &&
              hpc_queue_send(q, peer, &byte, 1, -1) == HPC_ERR_INVALID && strstr(hpc_last_error()->message, "fork");
    hpc_context_close(ctx);
    hpc_context_abort(ctx, "no effect");
    hpc_window_free(w);
    hpc_queue_free(q);
    hpc_context_free(ctx);
    return ok ? 0 : 9;
}

static void forked_children(rank *r) {
    int peer = 1 - r->rank;
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
    hpc_queue *q = ring_queue(r, 1);
    for (uint64_t round = 1; round <= 5; round++) {
        ping(r->context, w, round);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) _exit(child(r->context, w, q, peer));
        int status;
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), 0);
        hpc_peer p;
        CHECK_OK(hpc_barrier(r->context, -1));
        CHECK_OK(hpc_context_peer(r->context, peer, &p));
        CHECK_EQ(p.state, HPC_PEER_ALIVE);
    }
    ping(r->context, w, 99);
    hpc_window_free(w);
    hpc_queue_free(q);
}

/* A child that holds copies of all its parent's files does not hide the parent's death. */
static void child_outlives_parent(rank *r) {
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
    rank_meet(r);
    if (r->rank == 1) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        while (pid == 0) pause(); /* killed with the process group */
        raise(SIGKILL);
    }
    double start = ranks_now();
    CHECK_STATUS(hpc_wait_signal(w, 0, 1, 1, -1, NULL), HPC_ERR_PEER);
    CHECK(ranks_error_names(1));
    CHECK(ranks_now() - start < 15); /* by the silence, not by the timeout */
    hpc_window_free(w);
}

/* Each descriptor is closed once: a second close would hit whoever has got the number meanwhile. Every number that is
 * free below is taken after each thing is made; when all is freed, what was taken must still be there. */
static void closes_only_its_own(rank *r) {
    enum { STEPS = 3, TAKEN = 8 * STEPS };
    int taken[TAKEN], n = 0;
    hpc_lane *lane = NULL;
    hpc_window *w = NULL;
    for (int step = 0; step < STEPS; step++) {
        if (step == 1) CHECK_OK(hpc_lane_create(r->context, -1, &lane));
        if (step == 2) CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
        for (int i = 0; i < TAKEN / STEPS; i++) CHECK((taken[n++] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0);
    }
    hpc_lane_free(lane);
    hpc_window_free(w);
    hpc_context_free(r->context);
    r->context = NULL;
    for (int i = 0; i < TAKEN; i++) CHECK_EQ(close(taken[i]), 0);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "several_contexts", .size = 2, .run = several_contexts},
        {.name = "every_order", .size = 3, .run = every_order, .apart = true},
        {.name = "leave_after_barrier", .size = 8, .run = leave_after_barrier, .apart = true},
        {.name = "freed_under_a_writer", .size = 2, .run = freed_under_a_writer},
        {.name = "windows_come_and_go", .size = 2, .run = windows_come_and_go},
        {.name = "close_ends_waits", .size = 2, .run = close_ends_waits},
        {.name = "forked_children", .size = 2, .run = forked_children, .where = RANKS_NOT_TSAN},
        {.name = "closes_only_its_own", .size = 1, .run = closes_only_its_own},
        {.name = "child_outlives_parent",
         .size = 3,
         .run = child_outlives_parent,
         .where = RANKS_PROCESSES,
         .victims = 2},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
