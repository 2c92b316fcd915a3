/* Features of tcp alone: stripes and fences, credits, who reads for a rank that makes no call, and how one wakes. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/calls.h"
#include "context/context.h"
#include "ranks.h"
#include "transport/tcp/parts.h"

static void bring_up(rank *r, int streams) {
    r->config.tcp_streams = streams;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
}

static tcp_link *link_to(rank *r, hpc_lane *lane, int peer) {
    lane = hpc_context_lane(r->context, lane);
    CHECK_OK(hpc_reach(r->context, &lane->object, peer, "lane"));
    return lane->peers[peer].out;
}

static size_t between(uint64_t *seed, size_t least, size_t most) {
    return least + (size_t)(ranks_random(seed) % (most - least + 1));
}

/* No call of hpcomm: what comes is read by the service thread. */
static void await_word(const _Atomic uint64_t *word, uint64_t value, double seconds) {
    double end = ranks_now() + seconds;
    while (atomic_load(word) < value) {
        CHECK(ranks_now() < end);
        sched_yield();
    }
}

/* ---- congestion control ---- */

/* The one that is asked for, and never bbr where none is. arg: asks for reno, which every kernel has. */
static void congestion(rank *r) {
    char name[HPC_CONGESTION_BYTES] = "";
    socklen_t nbytes = sizeof name - 1;
    if (r->arg) r->config.tcp_congestion = "reno";
    bring_up(r, 2);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int k = 0; k < 2; k++) {
        int fd = tcp_stream_fd(&link_to(r, NULL, 1 - r->rank)->streams[k]);
        CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &nbytes), 0);
        CHECK(r->arg ? strcmp(name, "reno") == 0 : strncmp(name, "bbr", 3) != 0);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* ---- order ---- */

enum { MOST = 4 << 20, STEPS = 12 };

typedef enum step_kind { PUT, PUT_SIGNAL, PUT_NOTIFY } step_kind;

typedef struct step {
    step_kind kind;
    size_t from, nbytes;
} step;

/* Both sides know the steps of a round: chunks of the window from its start on, of which the last brings a signal. */
static size_t plan_steps(step steps[STEPS], uint64_t seed) {
    size_t at = 0;
    for (int i = 0; i < STEPS; i++) {
        size_t most = ranks_random(&seed) % 4 == 0 ? MOST : (size_t)1 << between(&seed, 0, 20);
        steps[i] = (step){(step_kind)(ranks_random(&seed) % 3), at, ranks_random(&seed) % (most + 1)};
        at += steps[i].nbytes;
    }
    steps[STEPS - 1].kind = PUT_SIGNAL;
    return at;
}

static void do_steps(rank *r, hpc_window *w, const step *steps, const char *src, uint64_t round) {
    int peer = 1 - r->rank;
    for (int i = 0; i < STEPS; i++) {
        const step *s = &steps[i];
        const char *from = src + s->from;
        if (s->kind == PUT) CHECK_OK(hpc_put(NULL, w, peer, from, s->nbytes, s->from));
        if (s->kind == PUT_SIGNAL)
            CHECK_OK(hpc_put_signal(NULL, w, peer, from, s->nbytes, s->from, 0, round * STEPS + (uint64_t)i));
        if (s->kind == PUT_NOTIFY) CHECK_OK(hpc_put_notify(NULL, w, peer, from, s->nbytes, s->from, (uint32_t)i, -1));
    }
}

/* After each signal and event: every byte of what was put before it is there. */
static void check_steps(rank *r, hpc_window *w, const step *steps, const char *expected, uint64_t round) {
    const char *data = hpc_window_data(w);
    hpc_event e;
    size_t checked = 0;
    for (int i = 0; i < STEPS; i++) {
        size_t to = steps[i].from + steps[i].nbytes;
        if (steps[i].kind == PUT) continue;
        if (steps[i].kind == PUT_SIGNAL) {
            CHECK_OK(hpc_wait_signal(w, 0, round * STEPS + (uint64_t)i, 1 - r->rank, -1, NULL));
        } else {
            CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
            CHECK(e.peer == 1 - r->rank && e.imm == (uint32_t)i && e.nbytes == steps[i].nbytes);
        }
        CHECK_EQ(memcmp(data + checked, expected + checked, to - checked), 0);
        checked = to;
    }
}

/* arg: streams. */
static void stripes(rank *r) {
    enum { ALL = STEPS * MOST };
    bring_up(r, r->arg);
    hpc_window *w;
    char *src = malloc(ALL), *expected = malloc(ALL);
    step mine[STEPS], theirs[STEPS];
    int rounds = ranks_rounds(10), peer = 1 - r->rank;
    CHECK(src && expected);
    CHECK_OK(hpc_window_create(r->context, ALL, 2, NULL, -1, &w));
    for (uint64_t round = 1; round <= (uint64_t)rounds; round++) {
        ranks_fill(src, plan_steps(mine, 2 * round + (uint64_t)r->rank), 2 * round + (uint64_t)r->rank);
        ranks_fill(expected, plan_steps(theirs, 2 * round + (uint64_t)peer), 2 * round + (uint64_t)peer);
        do_steps(r, w, mine, src, round);
        check_steps(r, w, theirs, expected, round);
        CHECK_OK(hpc_put_signal(NULL, w, peer, NULL, 0, 0, 1, round));
        CHECK_OK(hpc_wait_signal(w, 1, round, peer, -1, NULL)); /* the peer has checked: its window may change */
        CHECK_OK(hpc_flush(NULL, w, peer, -1));
    }
    for (int k = 1; k < r->arg; k++) CHECK(link_to(r, NULL, peer)->streams[k].pieces > 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    free(src);
    free(expected);
}

static void pass(double seconds) {
    double end = ranks_now() + seconds;
    while (ranks_now() < end) sched_yield();
}

/* A piece for one window comes between a signal's data for another one and the signal. */
static void two_windows(rank *r) {
    static const char data[8] = "data";
    bring_up(r, 2);
    hpc_window *w, *other;
    CHECK_OK(hpc_window_create(r->context, 8192, 1, NULL, -1, &w));
    CHECK_OK(hpc_window_create(r->context, 65536, 1, NULL, -1, &other));
    if (r->rank == 0) {
        const hpc_frame first = {.magic = HPC_FRAME_MAGIC,
                                 .type = HPC_FRAME_PUT,
                                 .flags = HPC_FRAME_SIGNAL,
                                 .window = (uint32_t)w->object.number,
                                 .nbytes = 8,
                                 .value = 1};
        const hpc_frame between = {
            .magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_PUT, .window = (uint32_t)other->object.number, .nbytes = 8};
        tcp_link *l = link_to(r, NULL, 1);
        CHECK_EQ(write(l->streams[0].fd, &first, sizeof first), sizeof first);
        CHECK_EQ(write(l->streams[0].fd, data, 4), 4);
        pass(0.03);
        CHECK_EQ(write(l->streams[1].fd, &between, sizeof between), sizeof between);
        CHECK_EQ(write(l->streams[1].fd, data, 8), 8);
        pass(0.03);
        CHECK_EQ(write(l->streams[0].fd, data + 4, 4), 4);
    } else {
        CHECK_OK(hpc_wait_signal(w, 0, 1, 0, 5, NULL));
        CHECK_EQ(memcmp(hpc_window_data(w), data, 8), 0);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    hpc_window_free(other);
}

/* Bytes behind a fence fill the socket for longer than silence, because another stream is slow: nobody died. */
static void held_by_fence(rank *r) {
    enum { BYTES = 48 << 20 };
    hpc_window *w;
    r->config.silence = 2;
    bring_up(r, 2);
    CHECK_OK(hpc_window_create(r->context, BYTES, 1, NULL, -1, &w));
    if (r->rank == 0) {
        tcp_link *l = link_to(r, NULL, 1);
        char *src = malloc(BYTES);
        CHECK(src);
        ranks_fill(src, BYTES, 7);
        int fd = atomic_exchange(&l->streams[1].fd, -1); /* its pieces wait */
        CHECK_OK(hpc_put(NULL, w, 1, src, BYTES / 16, 0));
        CHECK_STATUS(hpc_flush(NULL, w, 1, 0.05), HPC_ERR_TIMEOUT);
        CHECK_OK(hpc_put_signal(NULL, w, 1, src, BYTES / 2, 0, 0, 1));
        CHECK_OK(hpc_put(NULL, w, 1, src + BYTES / 2, BYTES / 2, BYTES / 2));
        CHECK_STATUS(hpc_flush(NULL, w, 1, 2.6), HPC_ERR_TIMEOUT);
        CHECK(!atomic_load(&l->silent));
        atomic_store(&l->streams[1].fd, fd);
        tcp_link_visit(l, 1, EPOLLOUT, 0);
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
        free(src);
    } else {
        CHECK_OK(hpc_wait_signal(w, 0, 1, 0, -1, NULL));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 1) CHECK_EQ(ranks_first_wrong(hpc_window_data(w), BYTES, 7), BYTES);
    hpc_window_free(w);
}

/* ---- a rank that computes ---- */

/* It receives and answers all the same, also right after a wait, when the service thread keeps out of the way. */
static void computes(rank *r) {
    enum { ROUNDS = 100, BYTES = 1 << 20 };
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, BYTES, 2, NULL, -1, &w));
    uint64_t *src = calloc(1, BYTES);
    const uint64_t *data = hpc_window_data(w), last = BYTES / sizeof *data - 1;
    int slow = 0, slow_after_wait = 0;
    CHECK(src);
    for (uint64_t k = 1; k <= ROUNDS; k++) {
        if (r->rank == 0) {
            double sent = ranks_now();
            src[0] = src[last] = k;
            CHECK_OK(hpc_put_signal(NULL, w, 1, src, k % 2 ? 8 : BYTES, 0, 0, k));
            rank_await(r, 0, k); /* it lands though neither side calls */
            CHECK_OK(hpc_flush(NULL, w, 1, -1));
            double took = ranks_now() - sent;
            CHECK(took < 5);
            slow += took > 0.5;
            slow_after_wait += took > 0.5 && k % 10 == 1 && k > 1;
            rank_set(r, 1, k);
            if (k % 10 == 0) CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 1, k));
        } else {
            await_word(hpc_own_signal(w, 0), k, 20);
            CHECK(data[0] == k && (k % 2 || data[last] == k));
            rank_set(r, 0, k);
            rank_await(r, 1, k);
            if (k % 10 == 0) CHECK_OK(hpc_wait_signal(w, 1, k, 0, -1, NULL));
        }
    }
    CHECK(slow < ROUNDS / 4 && slow_after_wait < 5);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    free(src);
}

/* ---- waiting ---- */

static uint64_t looks(void) {
    uint64_t counts[HPC_CALLS];
    hpc_calls_read(counts);
    return counts[HPC_CALL_POLL] + counts[HPC_CALL_RECEIVE] + counts[HPC_CALL_YIELD];
}

/* A thread spins for a message as it was told, unless its last wait took long: then it sleeps, and hardly looks. */
static void long_waits_sleep(rank *r) {
    static const double SPIN = 0.02, LONG = 0.06;
    enum { FEW = 200 }; /* a spin of so long makes a hundred thousand */
    r->config.spin = r->config.yield = SPIN;
    bring_up(r, 1);
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    CHECK_STATUS(hpc_wait_signal(w, 0, 1, 1 - r->rank, LONG, NULL), HPC_ERR_TIMEOUT);
    const uint64_t before = looks();
    CHECK_STATUS(hpc_wait_signal(w, 0, 1, 1 - r->rank, LONG, NULL), HPC_ERR_TIMEOUT);
    CHECK(looks() - before < FEW);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

/* ---- credits ---- */

static int notify(hpc_window *w, int peer, uint32_t imm, double timeout) {
    return hpc_put_notify(NULL, w, peer, NULL, 0, 0, imm, timeout);
}

/* The ring's depth without a poll; then exactly one for each poll, one half of the ring at once, and all of it. */
static void credits(rank *r) {
    hpc_window *w;
    hpc_event e;
    const int depth = HPC_NOTIFY_DEPTH;
    const int polls[] = {1, 1, 2, depth / 2, depth / 2 + 1, depth - 1, depth, 1};
    uint32_t sent = 0, seen = 0;
    CHECK_OK(hpc_window_create(r->context, 8, 0, NULL, -1, &w));
    if (r->rank == 0) {
        for (int k = 0; k < depth; k++) CHECK_OK(notify(w, 1, sent++, k == 0 ? -1 : 0));
    }
    for (size_t i = 0; i < sizeof polls / sizeof *polls; i++) {
        if (r->rank == 0) CHECK_STATUS(notify(w, 1, sent, i % 2 ? 0 : 0.02), HPC_ERR_TIMEOUT);
        CHECK_OK(hpc_barrier(r->context, -1));
        for (int k = 0; k < polls[i]; k++) {
            if (r->rank == 0) {
                CHECK_OK(notify(w, 1, sent++, -1));
            } else {
                CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
                CHECK_EQ(e.imm, seen++);
            }
        }
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    hpc_window_free(w);
}

/* Thousands each way at once; who takes them is slow, and sends its own in between. */
static void both_ways(rank *r) {
    hpc_window *w;
    hpc_event e;
    int n = ranks_rounds(6000), sent = 0, seen = 0, peer = 1 - r->rank;
    uint64_t seed = (uint64_t)r->rank;
    CHECK_OK(hpc_window_create(r->context, 8, 0, NULL, -1, &w));
    double end = ranks_now() + 30;
    while (sent < n || seen < n) {
        size_t burst = ranks_random(&seed) % 400;
        for (size_t k = 0; k < burst && sent < n; k++) {
            int status = notify(w, peer, (uint32_t)sent, 0);
            if (status == HPC_ERR_TIMEOUT) break;
            CHECK_OK(status);
            sent++;
        }
        burst = ranks_random(&seed) % 100 + (sent == n);
        for (size_t k = 0; k < burst && seen < n; k++) {
            int status = hpc_wait_event(r->context, NULL, &e, ranks_random(&seed) % 8 ? 0 : 0.001);
            if (status == HPC_ERR_TIMEOUT) break;
            CHECK_OK(status);
            CHECK_EQ(e.imm, seen);
            seen++;
        }
        CHECK(ranks_now() < end);
    }
    CHECK_STATUS(hpc_poll(r->context, NULL, &e), HPC_IN_PROGRESS);
    hpc_window_free(w);
}

/* ---- what goes while the peer still uses it ---- */

static int links_held(rank *r) {
    hpc_tcp *t = r->context->tcp;
    int n = 0;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->n_links; i++) n += t->links[i] != NULL;
    pthread_mutex_unlock(&t->lock);
    return n;
}

/* A lane that one side has freed still takes what the other one puts, and what it has put itself is there, whatever
 * becomes of its source; when both have freed it, its connections go. */
static void lane_freed_first(rank *r) {
    enum { BYTES = 8 << 20, HALF = BYTES / 2 };
    bring_up(r, r->arg);
    hpc_window *w;
    int before = links_held(r), rounds = ranks_rounds(16);
    char *src = malloc(BYTES);
    CHECK(src);
    CHECK_OK(hpc_window_create(r->context, BYTES, 2, NULL, -1, &w));
    for (uint64_t round = 1; round <= (uint64_t)rounds; round++) {
        hpc_lane *lane;
        int first = round & 1, peer = 1 - r->rank; /* first: who frees it first */
        CHECK_OK(hpc_lane_create(r->context, -1, &lane));
        ranks_fill(src, BYTES, round);
        if (r->rank == first) {
            CHECK_OK(hpc_put(lane, w, peer, src, BYTES - 8, 0));
            CHECK_OK(hpc_put_signal(lane, w, peer, src + BYTES - 8, 8, BYTES - 8, 1, round));
            hpc_lane_free(lane);
            memset(src, 0xcc, BYTES);
            if (round % 3) CHECK_OK(hpc_barrier(r->context, -1)); /* it is gone for sure, or it goes just now */
            CHECK_OK(hpc_wait_signal(w, 0, round, peer, -1, NULL));
            CHECK_EQ(ranks_first_wrong(hpc_window_data(w), HALF, round), HALF);
        } else {
            if (round % 3) CHECK_OK(hpc_barrier(r->context, -1));
            CHECK_OK(hpc_put(lane, w, first, src, HALF - 8, 0));
            CHECK_OK(hpc_put_signal(lane, w, first, src + HALF - 8, 8, HALF - 8, 0, round));
            CHECK_OK(hpc_flush(lane, w, first, -1));
            hpc_lane_free(lane);
            CHECK_OK(hpc_wait_signal(w, 1, round, peer, -1, NULL));
            CHECK_EQ(ranks_first_wrong(hpc_window_data(w), BYTES, round), BYTES);
        }
        memset(hpc_window_data(w), 0, BYTES);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    double end = ranks_now() + 5;
    while (links_held(r) != before && ranks_now() < end) sched_yield();
    CHECK_EQ(links_held(r), before);
    CHECK_OK(hpc_barrier(r->context, -1)); /* nobody was taken for dead meanwhile */
    hpc_window_free(w);
    free(src);
}

/* A window freed at the target with puts on their way: they are dropped, and other windows go on. */
static void window_freed(rank *r) {
    enum { BYTES = 2 << 20 };
    bring_up(r, r->arg);
    hpc_window *kept, *gone;
    char *src = malloc(BYTES);
    int rounds = ranks_rounds(30);
    CHECK(src);
    ranks_fill(src, BYTES, 5);
    CHECK_OK(hpc_window_create(r->context, BYTES, 1, NULL, -1, &kept));
    for (uint64_t round = 1; round <= (uint64_t)rounds; round++) {
        CHECK_OK(hpc_window_create(r->context, BYTES, 1, NULL, -1, &gone));
        if (r->rank == 0) {
            for (uint64_t k = 1; k <= 8; k++) {
                CHECK_OK(hpc_put_signal(NULL, gone, 1, src, BYTES, 0, 0, k));
                CHECK_OK(hpc_put_notify(NULL, gone, 1, src, 100, 0, (uint32_t)k, -1));
            }
            CHECK_OK(hpc_put_signal(NULL, kept, 1, src, BYTES, 0, 0, round));
            CHECK_OK(hpc_flush(NULL, kept, 1, -1));
        } else {
            hpc_event e;
            if (round % 4) CHECK_OK(hpc_wait_signal(gone, 0, round % 4, 0, -1, NULL));
            hpc_window_free(gone);
            for (uint32_t k = 1; k <= 8; k++) { /* events are of the lane */
                CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
                CHECK_EQ(e.imm, k);
            }
            CHECK_OK(hpc_wait_signal(kept, 0, round, 0, -1, NULL));
            CHECK_EQ(ranks_first_wrong(hpc_window_data(kept), BYTES, 5), BYTES);
            memset(hpc_window_data(kept), 0, BYTES);
        }
        CHECK_OK(hpc_barrier(r->context, -1));
        if (r->rank == 0) hpc_window_free(gone);
    }
    hpc_window_free(kept);
    free(src);
}

/* ---- sleep ---- */

enum { SLEEPERS = 4 };

typedef struct sleeper {
    rank *r;
    hpc_lane *lane;
    hpc_window *window;
    pthread_barrier_t *together;
    int index;
    double slowest;
} sleeper;

/* Two wait for a signal, two for an event; all have to wake before any goes on, so that one that does not is seen. */
static void *wake_each_other(void *arg) {
    sleeper *s = arg;
    int rounds = ranks_rounds(2500), peer = 1 - s->r->rank, first = (s->index ^ s->r->rank) & 1;
    hpc_event e;
    for (uint64_t k = 1; k <= (uint64_t)rounds; k++) {
        double start = ranks_now(), took;
        for (int half = 0; half < 2; half++) {
            if ((half ^ first) && s->index < 2)
                CHECK_OK(hpc_put_signal(s->lane, s->window, peer, NULL, 0, 0, s->index, k));
            else if (half ^ first)
                CHECK_OK(hpc_put_notify(s->lane, s->window, peer, NULL, 0, 0, (uint32_t)k, -1));
            else if (s->index < 2)
                CHECK_OK(hpc_wait_signal(s->window, s->index, k, peer, -1, NULL));
            else
                CHECK_OK(hpc_wait_event(s->r->context, s->lane, &e, -1));
        }
        took = ranks_now() - start;
        s->slowest = took > s->slowest ? took : s->slowest;
        pthread_barrier_wait(s->together);
    }
    return NULL;
}

static void sleepers(rank *r) {
    pthread_barrier_t together;
    pthread_t threads[SLEEPERS];
    sleeper all[SLEEPERS];
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 8, SLEEPERS, NULL, -1, &w));
    CHECK_EQ(pthread_barrier_init(&together, NULL, SLEEPERS), 0);
    for (int i = 0; i < SLEEPERS; i++) {
        all[i] = (sleeper){.r = r, .window = w, .together = &together, .index = i};
        CHECK_OK(hpc_lane_create(r->context, -1, &all[i].lane));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < SLEEPERS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, wake_each_other, &all[i]), 0);
    for (int i = 0; i < SLEEPERS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
        CHECK(all[i].slowest < 2); /* a wake-up that is lost costs the whole timeout */
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < SLEEPERS; i++) hpc_lane_free(all[i].lane);
    pthread_barrier_destroy(&together);
    hpc_window_free(w);
}

enum { AWAITED = 8, TO_BED, UP, SEEN, WHEN };

static void *sleep_beside(void *arg) {
    rank *r = ((void **)arg)[0];
    for (uint64_t k = 1; k <= AWAITED; k++) {
        rank_await(r, TO_BED, k);
        while (!hpc_reactor_has_sleeper(r->context->reactor) && atomic_load(&r->board[UP]) < k) sched_yield();
        CHECK_OK(hpc_wait_signal(((void **)arg)[1], 1, k, 0, -1, NULL));
        rank_set(r, WHEN, (uint64_t)(ranks_now() * 1e9));
        rank_set(r, SEEN, k);
    }
    return NULL;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The thread that slept in the set goes to work while another one still sleeps: somebody reads for it at once, though
 * the service thread had lain down for long. */
static void left_asleep(rank *r) {
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 8, 3, NULL, -1, &w));
    if (r->rank == 0) {
        double late[AWAITED];
        for (uint64_t k = 1; k <= AWAITED; k++) {
            rank_await(r, TO_BED, k);
            pass(0.005);
            CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 2, k)); /* news for neither: all wake, and lie down again */
            pass(0.035);
            CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 0, k));
            rank_await(r, UP, k);
            double sent = ranks_now();
            CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 1, k));
            rank_await(r, SEEN, k);
            late[k - 1] = 1e-9 * (double)rank_await(r, WHEN, 1) - sent;
        }
        qsort(late, AWAITED, sizeof *late, by_size);
        CHECK(late[AWAITED / 2] < (RANKS_TSAN || RANKS_ASAN ? 0.1 : 0.005));
    } else {
        pthread_t thread;
        void *arg[] = {r, w};
        CHECK_EQ(pthread_create(&thread, NULL, sleep_beside, arg), 0);
        for (uint64_t k = 1; k <= AWAITED; k++) {
            rank_set(r, TO_BED, k);
            CHECK_OK(hpc_wait_signal(w, 0, k, 0, -1, NULL));
            rank_set(r, UP, k);
            rank_await(r, SEEN, k);
        }
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    hpc_window_free(w);
}

static const char *leave_more(hpc_task *task) {
    task->due = 0;
    return NULL;
}

/* One rank has left, and another one puts without rest: a wait ends all the same when it is over, or its time is. A
 * task of rank 1 bridges the pauses that the sender makes on a busy machine: something is left at every look. */
static void flooded(rank *r) {
    hpc_task more = {.run = leave_more};
    hpc_window *w;
    static char src[2048];
    CHECK_OK(hpc_window_create(r->context, sizeof src, 2, NULL, -1, &w));
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        for (uint64_t k = 1; atomic_load(&r->board[0]) == 0; k++) {
            CHECK_OK(hpc_put_signal(NULL, w, 1, src, sizeof src, 0, 0, k));
            if (k % 256 == 0) CHECK_OK(hpc_flush(NULL, w, 1, -1));
        }
        rank_set(r, 1, 1);
    } else if (r->rank == 1) {
        hpc_peer p;
        double least = 1e9;
        do CHECK_OK(hpc_context_peer(r->context, 2, &p));
        while (p.state != HPC_PEER_LEFT);
        CHECK(hpc_context_add_task(r->context, &more));
        for (int i = 0; i < 5; i++) {
            double start = ranks_now();
            CHECK_STATUS(hpc_wait_signal(w, 1, 1, 0, 0.05, NULL), HPC_ERR_TIMEOUT);
            least = ranks_now() - start < least ? ranks_now() - start : least;
        }
        CHECK(least < 0.5);
        hpc_task_remove(&more);
        rank_set(r, 0, 1);
        rank_await(r, 1, 1);
    }
    hpc_window_free(w);
}

/* ---- many ranks, and children ---- */

static long resident_pages(void) {
    long size, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%ld %ld", &size, &resident) == 2);
    fclose(f);
    return resident;
}

static void sixteen(rank *r) {
    enum { ROUNDS = 20 };
    hpc_window *w;
    long before = resident_pages();
    bring_up(r, r->arg);
    CHECK_OK(hpc_window_create(r->context, 4096, r->size, NULL, -1, &w));
    for (uint64_t k = 1; k <= ROUNDS; k++) { /* in two places by turns: a peer may begin the next round first */
        const size_t place = k % 2 * (size_t)r->size;
        for (int to = 0; to < r->size; to++)
            CHECK_OK(hpc_put_signal(NULL, w, to, &k, 8, (place + (size_t)r->rank) * 8, r->rank, k));
        for (int from = 0; from < r->size; from++) {
            CHECK_OK(hpc_wait_signal(w, from, k, from, -1, NULL));
            CHECK_EQ(((uint64_t *)hpc_window_data(w))[place + (size_t)from], k);
        }
        CHECK_OK(hpc_flush(NULL, w, -1, -1));
    }
    if (!r->mode->threads && !RANKS_ASAN)
        CHECK((resident_pages() - before) * sysconf(_SC_PAGESIZE) < 3 << 19); /* 64 peers take four times as much */
    hpc_window_free(w);
}

/* A child of rank 1 holds its connections and outlives it, however that ends: nobody waits for the child. */
static void child_outlives(rank *r) {
    r->config.silence = 1;
    bring_up(r, 1);
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    if (r->rank == 1) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (;;) pause();
        }
        CHECK_OK(hpc_barrier(r->context, -1));
        if (r->arg) raise(SIGKILL);
    } else {
        CHECK_OK(hpc_barrier(r->context, -1));
        double start = ranks_now();
        hpc_peer p;
        CHECK_STATUS(hpc_wait_signal(w, 0, 1, 1, -1, NULL), HPC_ERR_PEER);
        CHECK(ranks_error_names(1));
        CHECK(ranks_now() - start < 4);
        CHECK_OK(hpc_context_peer(r->context, 1, &p));
        CHECK_EQ(p.state, r->arg ? HPC_PEER_FAILED : HPC_PEER_LEFT);
    }
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "stripes_1", .size = 2, .run = stripes, .arg = 1, .where = RANKS_TCP, .bare = true},
        {.name = "stripes_2", .size = 2, .run = stripes, .arg = 2, .where = RANKS_TCP, .bare = true},
        {.name = "stripes_3", .size = 2, .run = stripes, .arg = 3, .where = RANKS_TCP, .bare = true},
        {.name = "stripes_8", .size = 2, .run = stripes, .arg = 8, .where = RANKS_TCP, .bare = true},
        {.name = "two_windows", .size = 2, .run = two_windows, .where = RANKS_TCP, .bare = true},
        {.name = "congestion", .size = 2, .run = congestion, .where = RANKS_TCP, .bare = true},
        {.name = "congestion_reno", .size = 2, .run = congestion, .arg = 1, .where = RANKS_TCP, .bare = true},
        {.name = "held_by_fence", .size = 2, .run = held_by_fence, .where = RANKS_TCP, .bare = true},
        {.name = "computes", .size = 2, .run = computes, .where = RANKS_TCP},
        {.name = "computes_sleepy", .size = 2, .run = computes, .where = RANKS_TCP, .sleepy = true},
        {.name = "long_waits_sleep",
         .size = 2,
         .run = long_waits_sleep,
         .where = RANKS_TCP | RANKS_PROCESSES,
         .bare = true},
        {.name = "credits", .size = 2, .run = credits, .where = RANKS_TCP},
        {.name = "both_ways", .size = 2, .run = both_ways, .where = RANKS_TCP},
        {.name = "lane_freed_first_1", .size = 2, .run = lane_freed_first, .arg = 1, .where = RANKS_TCP, .bare = true},
        {.name = "lane_freed_first_3", .size = 2, .run = lane_freed_first, .arg = 3, .where = RANKS_TCP, .bare = true},
        {.name = "window_freed_1", .size = 2, .run = window_freed, .arg = 1, .where = RANKS_TCP, .bare = true},
        {.name = "window_freed_4", .size = 2, .run = window_freed, .arg = 4, .where = RANKS_TCP, .bare = true},
        {.name = "sleepers", .size = 2, .run = sleepers, .where = RANKS_TCP, .sleepy = true},
        {.name = "left_asleep", .size = 2, .run = left_asleep, .where = RANKS_TCP, .sleepy = true},
        {.name = "flooded", .size = 3, .run = flooded, .where = RANKS_TCP, .apart = true},
        {.name = "sixteen", .size = 16, .run = sixteen, .arg = 1, .where = RANKS_TCP, .bare = true},
        {.name = "child_outlives_clean",
         .size = 2,
         .run = child_outlives,
         .where = RANKS_TCP | RANKS_PROCESSES,
         .apart = true,
         .bare = true},
        {.name = "child_outlives_killed",
         .size = 2,
         .run = child_outlives,
         .arg = 1,
         .where = RANKS_TCP | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
