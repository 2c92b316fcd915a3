/* Features of verbs alone: values, numbers and sizes that no immediate can say, sends and receives that run out, and
 * windows that are registered. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "verbs_ranks.h"

#if defined(HPC_HAVE_VERBS)

static const double SILENCE = 30; /* an emulated machine is slow */

static void bring_up(rank *r) {
    r->config.silence = SILENCE;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
}

static uint64_t word(const hpc_window *w, int signal) {
    return atomic_load(hpc_own_signal(w, signal));
}

/* No call of hpcomm: what comes is taken by the service thread. */
static void await_word(const hpc_window *w, int signal, uint64_t value, double seconds) {
    double end = ranks_now() + ranks_patience(seconds);
    while (word(w, signal) < value) {
        CHECK(ranks_now() < end);
        sched_yield();
    }
}

/* Nobody polls this lane here until let_read: what comes for it stays in its queue. */
static verbs_iface *hold_reading(rank *r, hpc_lane *lane, int peer) {
    verbs_iface *f = link_to(r, lane, peer)->iface;
    while (atomic_exchange(&f->reading, 1)) sched_yield();
    return f;
}

static void let_read(verbs_iface *f) {
    atomic_store(&f->reading, 0);
    while (verbs_iface_visit(f)) sched_yield();
}

/* ---- signals ---- */

enum { STEPS = 16, MANY_SIGNALS = 9001 };

/* Near and far, over 2^32 and up to the last one there is. */
static const uint64_t values[STEPS] = {1,
                                       511,
                                       1022,
                                       1534,
                                       1535,
                                       1535 + 1024,
                                       (1ull << 32) + 5,
                                       (1ull << 32) + 6,
                                       (1ull << 32) + 517,
                                       (1ull << 32) + 1029,
                                       3ull << 40,
                                       (3ull << 40) + 1,
                                       1ull << 63,
                                       (1ull << 63) + 511,
                                       UINT64_MAX - 1,
                                       UINT64_MAX};

/* Each value arrives as it is, behind its data, whatever its number; no other word changes. */
static void jumps(rank *r) {
    static const int signals[] = {0, 1, 8191, 8192, 8193, MANY_SIGNALS - 1};
    enum { N = sizeof signals / sizeof *signals };
    static uint64_t src[N][STEPS];
    hpc_window *w;
    uint64_t value;
    CHECK_OK(hpc_window_create(r->context, sizeof src, MANY_SIGNALS, NULL, -1, &w));
    const uint64_t(*data)[STEPS] = hpc_window_data(w);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < STEPS; k++) {
            size_t at = (size_t)(i * STEPS + k) * 8;
            if (r->rank == 0) {
                src[i][k] = ~values[k];
                CHECK_OK(hpc_put_signal(NULL, w, 1, &src[i][k], 8, at, signals[i], values[k]));
                rank_await(r, 0, at + 1);
            } else {
                CHECK_OK(hpc_wait_signal(w, signals[i], values[k], 0, -1, &value));
                CHECK(value == values[k] && data[i][k] == ~values[k]);
                rank_set(r, 0, at + 1);
            }
        }
    }
    if (r->rank == 1) {
        for (int s = 0, i = 0; s < MANY_SIGNALS; s++) {
            int is_one = i < N && s == signals[i];
            CHECK(word(w, s) == (is_one ? UINT64_MAX : 0));
            i += is_one;
        }
    }
    hpc_window_free(w);
}

/* The next value, the same on both ranks: by a small step or a large one. */
static uint64_t next_value(uint64_t value, uint64_t *seed) {
    static const uint64_t most[] = {1, 511, 1023, 1024, 1025, 1ull << 33};
    return value + 1 + ranks_random(seed) % most[ranks_random(seed) % 6];
}

/* Looks at a word until it is the last one of these: it never goes back, and is no other value. */
static void watch(hpc_window *w, int signal, const uint64_t *puts, int n) {
    uint64_t last = 0, now, seed = 1;
    int k = 0;
    double end = ranks_now() + ranks_patience(30);
    while (last != puts[n - 1]) {
        if (ranks_random(&seed) % 64 == 0) hpc_test_signal(w, signal, UINT64_MAX, NULL);
        now = word(w, signal);
        CHECK(now >= last && ranks_now() < end);
        while (k < n && puts[k] < now) k++;
        CHECK(now == 0 || (k < n && puts[k] == now));
        last = now;
    }
}

enum { PUTS = 600 };

/* The same without a wait between them. */
static void jumps_at_once(rank *r) {
    hpc_window *w;
    uint64_t seed = 3, puts[PUTS], value = 0;
    CHECK_OK(hpc_window_create(r->context, 8, 2, NULL, -1, &w));
    for (int k = 0; k < PUTS; k++) value = puts[k] = next_value(value, &seed);
    if (r->rank == 0) {
        for (int k = 0; k < PUTS; k++) CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 0, puts[k]));
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
    } else {
        watch(w, 0, puts, PUTS);
        CHECK_EQ(word(w, 1), 0);
    }
    hpc_window_free(w);
}

/* Two lanes put one word in turn and flush in between: it never goes back, and tells no value that was not put. */
static void two_lanes(rank *r) {
    hpc_lane *lanes[2];
    hpc_window *w;
    uint64_t seed = 11, puts[PUTS], value = 0;
    for (int i = 0; i < 2; i++) CHECK_OK(hpc_lane_create(r->context, -1, &lanes[i]));
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    for (int k = 0; k < PUTS; k++) value = puts[k] = next_value(value, &seed);
    for (int k = 0; k < PUTS && r->rank == 0; k++) {
        hpc_lane *lane = lanes[ranks_random(&seed) % 2];
        CHECK_OK(hpc_put_signal(lane, w, 1, NULL, 0, 0, 0, puts[k]));
        CHECK_OK(hpc_flush(lane, w, 1, -1));
    }
    if (r->rank == 1) watch(w, 0, puts, PUTS);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < 2; i++) hpc_lane_free(lanes[i]);
    hpc_window_free(w);
}

/* Signals of one lane are taken long after later ones of the other lane. */
static void overtaken(rank *r) {
    static const uint64_t early[] = {100, 800, 5000, 5001}, late[] = {700, 1900, 5000 + 511, 1ull << 33};
    hpc_lane *lane;
    hpc_window *w;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, 8, 4, NULL, -1, &w));
    for (int s = 0; s < 4; s++) {
        verbs_iface *held = NULL;
        if (r->rank == 1) held = hold_reading(r, lane, 0);
        CHECK_OK(hpc_barrier(r->context, -1));
        if (r->rank == 0) {
            CHECK_OK(hpc_put_signal(lane, w, 1, NULL, 0, 0, s, early[s]));
            CHECK_OK(hpc_flush(lane, w, 1, -1));
            CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, s, late[s]));
            CHECK_OK(hpc_flush(NULL, w, 1, -1));
        } else {
            await_word(w, s, late[s], 10);
            CHECK(word(w, s) == late[s]);
            rank_await(r, 0, (uint64_t)s + 1);
            let_read(held);
            CHECK(word(w, s) == late[s]);
        }
        if (r->rank == 0) rank_set(r, 0, (uint64_t)s + 1);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    hpc_lane_free(lane);
    hpc_window_free(w);
}

/* ---- windows ---- */

enum { MANY = VERBS_IMM_WINDOWS + 16 };

static int shared_mappings(void) {
    char line[4096];
    int n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) n += strstr(line, "/memfd:") != NULL;
    fclose(maps);
    return n;
}

/* More than immediates have numbers for: each has its own data and signals; so have those made when some have gone. */
static void many_windows(rank *r) {
    hpc_window *w[MANY];
    uint64_t src[MANY];
    int peer = 1 - r->rank;
    for (int i = 0; i < MANY; i++) CHECK_OK(hpc_window_create(r->context, 64, 2, NULL, -1, &w[i]));
    for (uint64_t round = 1; round <= 4; round++) {
        uint64_t value = round * 1100; /* not near */
        for (int i = MANY - 1; i >= 0; i--) {
            src[i] = round << 32 | (uint64_t)i;
            CHECK_OK(hpc_put_signal(NULL, w[i], peer, &src[i], 8, 8 * (round - 1), 1, value + (uint64_t)i % 7));
            CHECK_OK(hpc_put_signal(NULL, w[i], peer, NULL, 0, 0, 1, value + (uint64_t)i % 7 + 1));
        }
        for (int i = 0; i < MANY; i++) {
            uint64_t now;
            CHECK_OK(hpc_wait_signal(w[i], 1, value + (uint64_t)i % 7 + 1, peer, -1, &now));
            CHECK(now == value + (uint64_t)i % 7 + 1 && word(w[i], 0) == 0);
            CHECK(((uint64_t *)hpc_window_data(w[i]))[round - 1] == src[i] || r->rank == peer);
        }
        CHECK_OK(hpc_flush(NULL, w[0], peer, -1));
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    for (int i = 0; i < MANY; i += 3) { /* numbers of both kinds come free */
        hpc_window_free(w[i]);
        CHECK_OK(hpc_window_create(r->context, 64, 2, NULL, -1, &w[i]));
    }
    for (int i = 0; i < MANY; i++) CHECK_OK(hpc_put_signal(NULL, w[i], peer, &src[i], 8, 56, 0, 9 + (uint64_t)i));
    for (int i = 0; i < MANY; i++) {
        CHECK_OK(hpc_wait_signal(w[i], 0, 9 + (uint64_t)i, peer, -1, NULL));
        CHECK(word(w[i], 0) == 9 + (uint64_t)i && word(w[i], 1) == (i % 3 ? 4401 + (uint64_t)i % 7 : 0));
    }
    CHECK_OK(hpc_flush(NULL, w[0], peer, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < MANY; i++) hpc_window_free(w[(i * 37) % MANY]);
}

/* They come and go with a writer on another lane, while others stay: nothing is mixed up, and the memory goes too. */
static void windows_in_turn(rank *r) {
    enum { KEPT = VERBS_IMM_WINDOWS - 3, SHOTS = 8 };
    hpc_window *kept[KEPT], *w, *last = NULL;
    hpc_lane *lane;
    int rounds = ranks_rounds(200);
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    for (int i = 0; i < KEPT; i++) CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &kept[i]));
    int before = shared_mappings();
    for (int k = 0; k < rounds; k++) {
        CHECK_OK(hpc_window_create(r->context, 4096, 3, NULL, -1, &w));
        for (int s = 0; s < 3; s++) CHECK_EQ(word(w, s), 0); /* nothing of the last one's */
        rank_meet(r);
        if (r->rank == 0) {
            for (uint64_t i = 1; i <= SHOTS; i++) CHECK_OK(hpc_put_signal(lane, w, 1, &i, 8, 8 * i, (int)(i % 3), i));
            CHECK_OK(hpc_flush(lane, w, 1, -1));
        } else if (k % 2) {
            CHECK_OK(hpc_wait_signal(w, SHOTS % 3, SHOTS, 0, -1, NULL));
        }
        if (last) {
            for (int s = 0; s < 3; s++) CHECK(word(last, s) <= SHOTS);
            hpc_window_free(last); /* this rank's alone: the other one may be late, or soon */
        }
        last = w;
        if (k % 32 == 31) CHECK(shared_mappings() < before + 2 * 32 * (r->mode->threads ? r->size : 1));
    }
    hpc_window_free(last);
    for (int i = 0; i < KEPT; i++) CHECK_EQ(word(kept[i], 0), 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    double end = ranks_now() + ranks_patience(5);
    while (shared_mappings() > before && ranks_now() < end) sched_yield();
    CHECK(shared_mappings() <= before);
    rank_meet(r);
    for (int i = 0; i < KEPT; i++) hpc_window_free(kept[i]);
    hpc_lane_free(lane);
}

/* A signal that nobody has looked at yet, of a window that both have freed, is not taken for one of the next window,
 * though that one needs a number and there is no other one. */
static void number_again(rank *r) {
    enum { KEPT = VERBS_IMM_WINDOWS - 2 };
    hpc_window *kept[KEPT], *w;
    hpc_lane *lane;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    for (int i = 0; i < KEPT; i++) CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &kept[i]));
    for (uint64_t k = 1; k <= 3; k++) {
        verbs_iface *held = NULL;
        CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
        if (r->rank == 1) held = hold_reading(r, lane, 0);
        CHECK_OK(hpc_barrier(r->context, -1));
        if (r->rank == 0) {
            CHECK_OK(hpc_put_signal(lane, w, 1, NULL, 0, 0, 0, 77));
            CHECK_OK(hpc_flush(lane, w, 1, -1));
        }
        CHECK_OK(hpc_barrier(r->context, -1));
        hpc_window_free(w);
        for (int i = 0; i < 20; i++) CHECK_OK(hpc_barrier(r->context, -1)); /* that it is freed has arrived */
        CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
        if (r->rank == 1) let_read(held);
        CHECK_EQ(word(w, 0), 0);
        CHECK_OK(hpc_barrier(r->context, -1));
        if (r->rank == 0) CHECK_OK(hpc_put_signal(lane, w, 1, NULL, 0, 0, 0, k));
        if (r->rank == 1) CHECK_OK(hpc_wait_signal(w, 0, k, 0, -1, NULL));
        CHECK_OK(hpc_barrier(r->context, -1));
        hpc_window_free(w);
    }
    for (int i = 0; i < KEPT; i++) {
        CHECK_EQ(word(kept[i], 0), 0);
        hpc_window_free(kept[i]);
    }
    hpc_lane_free(lane);
}

static void await_window(rank *r, uint32_t number, bool here) {
    hpc_verbs *v = r->context->verbs;
    double end = ranks_now() + ranks_patience(5);
    for (int i = 0; i < 100 || (atomic_load(&v->windows[number]) != NULL) != here; i++) {
        CHECK(ranks_now() < end);
        verbs_progress(r->context);
    }
}

/* It is registered until the last one has freed it that may still write: one has left, one goes on, one is done. */
static void freed_by_one(rank *r) {
    enum { BYTES = 100000 };
    hpc_window *w;
    hpc_peer left;
    CHECK_OK(hpc_window_create(r->context, 2 * BYTES, 1, NULL, -1, &w));
    if (r->rank == 2) {
        hpc_window_free(w);
        return;
    }
    do {
        verbs_progress(r->context);
        CHECK_OK(hpc_context_peer(r->context, 2, &left));
    } while (left.state == HPC_PEER_ALIVE);
    if (r->rank == 0) {
        uint32_t number = ((const verbs_window *)w->registered)->number;
        hpc_window_free(w);
        await_window(r, number, true);
        rank_set(r, 0, 1);
        await_window(r, number, false);
    } else {
        rank_await(r, 0, 1);
        char *data = hpc_window_data(w);
        CHECK_OK(hpc_put(NULL, w, 0, data, BYTES, BYTES));
        CHECK_OK(hpc_flush(NULL, w, 0, -1));
        hpc_window_free(w);
        rank_await(r, 0, 2);
    }
    rank_set(r, 0, 2);
}

/* A rank that frees it lets its own puts end, by any lane, also those that wait for credit: they find it there. */
static void freed_unflushed(rank *r) {
    static const char src[8];
    hpc_lane *lane;
    hpc_window *w;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    verbs_iface *held = r->rank == 1 ? hold_reading(r, lane, 0) : NULL;
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        for (uint64_t k = 1; k <= 2 * VERBS_CREDITS; k++) CHECK_OK(hpc_put_signal(lane, w, 1, src, 8, 0, 0, k));
        rank_set(r, 0, 1);
        hpc_window_free(w);
    } else {
        rank_await(r, 0, 1);
        hpc_window_free(w);
        for (int i = 0; i < 100; i++) verbs_progress(r->context);
        let_read(held);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    CHECK_OK(hpc_put_signal(lane, w, 1 - r->rank, NULL, 0, 0, 0, 1));
    CHECK_OK(hpc_wait_signal(w, 0, 1, 1 - r->rank, -1, NULL));
    CHECK(!atomic_load(&link_to(r, lane, 1 - r->rank)->silent));
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    hpc_lane_free(lane);
}

/* ---- events ---- */

/* All immediates and sizes, also those that need a message, come in order and after their data. */
static void events(rank *r) {
    static const uint32_t imms[] = {0, 7u << 29, 1, UINT32_MAX, 0xe0400401u, 6u << 29, (7u << 29) - 1, 0xffffffffu};
    static const size_t sizes[] = {0, 1, 64, 257, 5000, 70000};
    enum { IMMS = sizeof imms / sizeof *imms, SIZES = sizeof sizes / sizeof *sizes, BYTES = 80000 };
    static char src[IMMS * SIZES][BYTES];
    hpc_window *w;
    hpc_event e;
    CHECK_OK(hpc_window_create(r->context, sizeof src, 1, NULL, -1, &w));
    if (r->rank == 0) {
        for (int i = 0; i < IMMS * SIZES; i++) {
            ranks_fill(src[i], BYTES, (uint64_t)i);
            CHECK_OK(hpc_put_notify(NULL, w, 1, src[i], sizes[i % SIZES], (size_t)i * BYTES, imms[i / SIZES], -1));
        }
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
    } else {
        for (int i = 0; i < IMMS * SIZES; i++) {
            CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
            CHECK(e.peer == 0 && e.imm == imms[i / SIZES] && e.nbytes == sizes[i % SIZES]);
            const char *at = (char *)hpc_window_data(w) + (size_t)i * BYTES;
            CHECK_EQ(ranks_first_wrong(at, e.nbytes, (uint64_t)i), e.nbytes);
        }
        CHECK_STATUS(hpc_poll(r->context, NULL, &e), HPC_IN_PROGRESS);
        CHECK_EQ(word(w, 0), 0);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

/* More than one message of the port can hold, or just as much. */
static void large(rank *r) {
    hpc_window *w;
    hpc_event e;
    size_t most = verbs_link_most(link_to(r, NULL, 1 - r->rank));
    if (most > 64 << 20) ranks_skip("its messages may be larger than a test's");
    size_t nbytes = 2 * most + 100;
    char *src = malloc(nbytes);
    CHECK(src);
    ranks_fill(src, nbytes, 9);
    CHECK_OK(hpc_window_create(r->context, nbytes, 1, NULL, -1, &w));
    const char *data = hpc_window_data(w);
    const size_t sizes[] = {most, most + 1, nbytes};
    for (uint64_t k = 0; k < 3; k++) {
        if (r->rank == 0) {
            CHECK_OK(hpc_put_notify(NULL, w, 1, src, sizes[k], 0, k == 1 ? UINT32_MAX : 5, -1));
            CHECK_OK(hpc_put_notify(NULL, w, 1, src, 0, 0, 6, -1)); /* does not overtake it */
            rank_await(r, 0, k + 1);
            CHECK_OK(hpc_put_signal(NULL, w, 1, src, sizes[k], 0, 0, k + 1));
            CHECK_OK(hpc_flush(NULL, w, 1, -1));
            rank_await(r, 1, k + 1);
        } else {
            CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
            CHECK(e.imm == (k == 1 ? UINT32_MAX : 5) && e.nbytes == sizes[k]);
            CHECK_EQ(ranks_first_wrong(data, sizes[k], 9), sizes[k]);
            CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
            CHECK(e.imm == 6 && e.nbytes == 0);
            memset(hpc_window_data(w), 0, nbytes);
            rank_set(r, 0, k + 1);
            CHECK_OK(hpc_wait_signal(w, 0, k + 1, 0, -1, NULL));
            CHECK_EQ(ranks_first_wrong(data, sizes[k], 9), sizes[k]);
            memset(hpc_window_data(w), 0, nbytes);
            rank_set(r, 1, k + 1);
        }
    }
    hpc_window_free(w);
    free(src);
}

/* ---- queues that run out ---- */

/* Thousands of puts, none of them flushed, and signals beyond the credits, to a rank that makes no call. */
static void flood(rank *r) {
    enum { SLOTS = 512, BYTES = 300 };
    static char src[SLOTS][BYTES];
    hpc_window *w;
    int n = ranks_rounds(8000);
    if (n < 3 * VERBS_CREDITS) n = 3 * VERBS_CREDITS;
    CHECK_OK(hpc_window_create(r->context, sizeof src, 2, NULL, -1, &w));
    if (r->rank == 0) {
        for (int i = 0; i < SLOTS; i++) ranks_fill(src[i], BYTES, (uint64_t)i);
        for (int k = 1; k <= n; k++) { /* sizes of both kinds, inline and not */
            size_t nbytes = k % 3 ? 8 : BYTES, at = (size_t)(k % SLOTS) * BYTES;
            if (k % 2)
                CHECK_OK(hpc_put(NULL, w, 1, src[k % SLOTS], nbytes, at));
            else
                CHECK_OK(hpc_put_signal(NULL, w, 1, src[k % SLOTS], nbytes, at, k / 2 % 2, (uint64_t)k));
        }
        for (int k = n; k < n + SLOTS; k++)
            CHECK_OK(hpc_put(NULL, w, 1, src[k % SLOTS], BYTES, (size_t)(k % SLOTS) * BYTES));
        CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 0, (uint64_t)n + 1));
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
        rank_await(r, 0, 1);
    } else {
        await_word(w, 0, (uint64_t)n + 1, 40);
        rank_set(r, 0, 1);
        for (int i = 0; i < SLOTS; i++)
            CHECK_EQ(ranks_first_wrong((char *)hpc_window_data(w) + (size_t)i * BYTES, BYTES, (uint64_t)i), BYTES);
        CHECK(word(w, 1) >= (uint64_t)n - 4);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

/* Signals from every rank to every rank at once, more than there are credits, with waits that take all of the time. */
static void all_flood(rank *r) {
    hpc_window *w;
    int n = ranks_rounds(4000);
    if (n < 2 * VERBS_CREDITS) n = 2 * VERBS_CREDITS;
    CHECK_OK(hpc_window_create(r->context, 8, r->size, NULL, -1, &w));
    for (uint64_t k = 1; k <= (uint64_t)n; k++)
        for (int to = 0; to < r->size; to++) CHECK_OK(hpc_put_signal(NULL, w, to, NULL, 0, 0, r->rank, k));
    for (int from = 0; from < r->size; from++) CHECK_OK(hpc_wait_signal(w, from, (uint64_t)n, from, -1, NULL));
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

/* The receiver stands still for a second: the sender neither hangs nor fails, and nothing is lost. */
static void stopped(rank *r) {
    enum { BYTES = 100 };
    static char src[BYTES];
    hpc_window *w;
    hpc_peer p;
    hpc_event e;
    bring_up(r);
    CHECK_OK(hpc_window_create(r->context, BYTES, 2, NULL, -1, &w));
    CHECK_OK(hpc_context_peer(r->context, 1, &p));
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        uint64_t n = 3 * VERBS_CREDITS;
        uint32_t sent = 0;
        int status = HPC_OK;
        CHECK_EQ(kill((pid_t)p.pid, SIGSTOP), 0);
        double end = ranks_now() + 1;
        ranks_fill(src, BYTES, 1);
        for (uint64_t k = 1; k <= n; k++) CHECK_OK(hpc_put_signal(NULL, w, 1, src, BYTES, 0, 0, k));
        while (sent < 2 * HPC_NOTIFY_DEPTH && status == HPC_OK) {
            status = hpc_put_notify(NULL, w, 1, NULL, 0, 0, sent, 0.1);
            sent += status == HPC_OK;
        }
        CHECK_STATUS(status, HPC_ERR_TIMEOUT);
        CHECK_STATUS(hpc_flush(NULL, w, 1, 0.1), HPC_ERR_TIMEOUT);
        while (ranks_now() < end) sched_yield();
        CHECK_EQ(kill((pid_t)p.pid, SIGCONT), 0);
        rank_set(r, 1, sent);
        rank_set(r, 0, 1);
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
        CHECK_OK(hpc_wait_signal(w, 1, 1, 1, -1, NULL));
    } else {
        rank_await(r, 0, 1);
        CHECK_OK(hpc_wait_signal(w, 0, 3 * VERBS_CREDITS, 0, -1, NULL));
        CHECK_EQ(ranks_first_wrong(hpc_window_data(w), BYTES, 1), BYTES);
        for (uint32_t k = 0; k < (uint32_t)rank_await(r, 1, 0); k++) {
            CHECK_OK(hpc_wait_event(r->context, NULL, &e, -1));
            CHECK_EQ(e.imm, k);
        }
        CHECK_OK(hpc_put_signal(NULL, w, 0, NULL, 0, 0, 1, 1));
        CHECK_OK(hpc_flush(NULL, w, 0, -1));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "jumps", .size = 2, .run = jumps, .where = RANKS_VERBS},
        {.name = "jumps_at_once", .size = 2, .run = jumps_at_once, .where = RANKS_VERBS},
        {.name = "two_lanes", .size = 2, .run = two_lanes, .where = RANKS_VERBS},
        {.name = "overtaken", .size = 2, .run = overtaken, .where = RANKS_VERBS},
        {.name = "many_windows", .size = 2, .run = many_windows, .where = RANKS_VERBS},
        {.name = "windows_in_turn", .size = 2, .run = windows_in_turn, .where = RANKS_VERBS},
        {.name = "number_again", .size = 2, .run = number_again, .where = RANKS_VERBS},
        {.name = "freed_by_one", .size = 3, .run = freed_by_one, .where = RANKS_VERBS, .apart = true},
        {.name = "freed_unflushed", .size = 2, .run = freed_unflushed, .where = RANKS_VERBS},
        {.name = "events", .size = 2, .run = events, .where = RANKS_VERBS},
        {.name = "large", .size = 2, .run = large, .where = RANKS_VERBS},
        {.name = "flood", .size = 2, .run = flood, .where = RANKS_VERBS},
        {.name = "flood_sleepy", .size = 2, .run = flood, .where = RANKS_VERBS, .sleepy = true},
        {.name = "all_flood", .size = 3, .run = all_flood, .where = RANKS_VERBS},
        {.name = "all_flood_sleepy", .size = 2, .run = all_flood, .where = RANKS_VERBS, .sleepy = true},
        {.name = "stopped", .size = 2, .run = stopped, .where = RANKS_VERBS | RANKS_PROCESSES, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}

#endif
