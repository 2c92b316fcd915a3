/* Corked lanes over verbs: what they keep goes to the NIC by one post, in its order and whole, also where the queue is
 * full, and a link that breaks meanwhile ends as any other. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "corked_jobs.h"
#include "verbs_ranks.h"

#if defined(HPC_HAVE_VERBS)

enum { SENDER = CORKED_SENDER, TAKER = CORKED_TAKER, KEPT = 20, SMALL = CORKED_SMALL, INLINE = 40 };

typedef struct counts {
    uint64_t posts;
    int kept, waiting;
} counts;

static counts counts_of(verbs_link *l) {
    pthread_mutex_lock(&l->sending);
    counts c = {l->posts, l->n_kept, l->n_orders};
    pthread_mutex_unlock(&l->sending);
    return c;
}

/* Every other one is staged, and the others are sent inline. */
static size_t bytes_of(uint32_t k) {
    return k % 2 ? SMALL : INLINE;
}

/* ---- one post ---- */

enum { BY_UNCORK, BY_FLUSH, BY_NEXT, BY_MESSAGE, BY_FREE };

/* Few small puts wait for the end of the cork and then take one post; so they do where a put that is not corked, or a
 * message of another thread, comes behind them. A flush may post one send more. arg: which of these. */
static void kept(rank *r) {
    hpc_window *w;
    hpc_lane *lane;
    hpc_event e;
    char src[KEPT * SMALL];
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, sizeof src, 1, NULL, -1, &w));
    ranks_fill(src, sizeof src, 9);
    counts before = {0};
    if (r->rank == SENDER) {
        before = counts_of(link_to(r, lane, TAKER));
        hpc_lane_cork(lane);
        for (uint32_t k = 0; k < KEPT; k++)
            CHECK_OK(hpc_put_notify(lane, w, TAKER, src + k * SMALL, bytes_of(k), k * SMALL, k, -1));
        verbs_link_go_on(link_to(r, lane, TAKER)); /* as a completion would */
        counts now = counts_of(link_to(r, lane, TAKER));
        CHECK(now.posts == before.posts && now.kept == KEPT && now.waiting == 0);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == TAKER) CHECK(!corked_has_come(r, lane, &e));
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == SENDER && r->arg == BY_FREE) {
        hpc_lane_free(lane);
    } else if (r->rank == SENDER) {
        verbs_link *link = link_to(r, lane, TAKER);
        uint64_t most = before.posts + 1;
        if (r->arg == BY_UNCORK) hpc_lane_uncork(lane);
        if (r->arg == BY_NEXT) lane->corked = 0, CHECK_OK(hpc_put_signal(lane, w, TAKER, NULL, 0, 0, 0, 1));
        if (r->arg == BY_MESSAGE) CHECK_OK(verbs_link_say(link, &(verbs_message){.kind = VERBS_CREDIT}));
        if (r->arg == BY_FLUSH) CHECK_OK(hpc_flush(lane, w, TAKER, -1)), most++;
        counts now = counts_of(link);
        CHECK(now.posts > before.posts && now.posts <= most && now.kept == 0 && now.waiting == 0);
        hpc_lane_uncork(lane);
        CHECK_EQ(counts_of(link).posts, now.posts);
    } else {
        for (uint32_t k = 0; k < KEPT; k++) {
            CHECK_OK(hpc_wait_event(r->context, lane, &e, -1));
            CHECK(e.imm == k && e.nbytes == bytes_of(k));
            CHECK(memcmp((char *)hpc_window_data(w) + k * SMALL, src + k * SMALL, bytes_of(k)) == 0);
        }
        if (r->arg == BY_NEXT) CHECK_OK(hpc_wait_signal(w, 0, 1, SENDER, -1, NULL));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    if (r->rank != SENDER || r->arg != BY_FREE) hpc_lane_free(lane);
}

/* ---- limits ---- */

/* A lane keeps no more than a part of its queue, and no more than some bytes; a large put takes all before it along. */
static void limits(rank *r) {
    enum { SIGNALS = 60, PIECE = 10000, PIECES = 6, LARGE = 100000 };
    hpc_window *w;
    hpc_lane *lane;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, LARGE, 1, NULL, -1, &w));
    const char *src = hpc_window_data(w);
    if (r->rank == SENDER) {
        verbs_link *link = link_to(r, lane, TAKER);
        int most = link->most_kept;
        CHECK(most > KEPT && most < link->depth / 2);
        hpc_lane_cork(lane);
        counts before = counts_of(link);
        for (uint64_t k = 1; k <= SIGNALS; k++) CHECK_OK(hpc_put_signal(lane, w, TAKER, NULL, 0, 0, 0, k));
        counts now = counts_of(link);
        CHECK(now.posts - before.posts == SIGNALS / (uint64_t)most && now.kept == SIGNALS % most);
        hpc_lane_uncork(lane);
        CHECK_EQ(counts_of(link).posts, now.posts + 1);

        hpc_lane_cork(lane);
        for (int k = 0; k < PIECES; k++) CHECK_OK(hpc_put(lane, w, TAKER, src, PIECE, 0));
        CHECK_EQ(counts_of(link).kept, PIECES);
        CHECK_OK(hpc_put(lane, w, TAKER, src, PIECE, 0));
        CHECK_EQ(counts_of(link).kept, 0);
        CHECK_OK(hpc_put(lane, w, TAKER, src, PIECE, 0));
        CHECK_EQ(counts_of(link).kept, 1);
        before = counts_of(link);
        CHECK_OK(hpc_put_signal(lane, w, TAKER, src, LARGE, 0, 0, SIGNALS + 1));
        now = counts_of(link);
        CHECK(now.posts - before.posts == 1 && now.kept == 0);
        CHECK_OK(hpc_put_signal(lane, w, TAKER, src, LARGE, 0, 0, SIGNALS + 2));
        CHECK(counts_of(link).posts - now.posts == 1 && counts_of(link).kept == 0);
        hpc_lane_uncork(lane);
        CHECK_OK(hpc_flush(lane, w, TAKER, -1));
    } else {
        CHECK_OK(hpc_wait_signal(w, 0, SIGNALS + 2, SENDER, -1, NULL));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    hpc_lane_free(lane);
}

/* Nobody sees sends done while many times the queue is put: what finds no room waits, and comes in its order. */
static void full_queue(rank *r) {
    enum { PUTS = 5 * VERBS_DEPTH };
    hpc_window *w;
    hpc_lane *lane;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, 8 * PUTS, 1, NULL, -1, &w));
    if (r->rank == SENDER) {
        uint64_t words[PUTS];
        verbs_link *link = link_to(r, lane, TAKER);
        while (atomic_exchange(&link->iface->reading, 1)) sched_yield();
        hpc_lane_cork(lane);
        for (uint64_t k = 0; k < PUTS; k++) {
            words[k] = ~k;
            CHECK_OK(hpc_put_signal(lane, w, TAKER, &words[k], 8, k * 8, 0, k + 1));
        }
        counts now = counts_of(link);
        CHECK(now.kept == 0 && now.waiting == PUTS - link->depth);
        hpc_lane_uncork(lane);
        CHECK_EQ(counts_of(link).waiting, PUTS - link->depth);
        atomic_store(&link->iface->reading, 0);
        CHECK_OK(hpc_flush(lane, w, TAKER, -1));
    } else {
        const uint64_t *data = hpc_window_data(w);
        for (uint64_t k = 0; k < PUTS; k++) {
            CHECK_OK(hpc_wait_signal(w, 0, k + 1, SENDER, -1, NULL));
            CHECK_EQ(data[k], ~k);
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    hpc_lane_free(lane);
}

/* ---- any order ---- */

typedef struct shot {
    size_t nbytes;
    uint64_t step; /* of the signal */
    int is_signal, is_odd, corks, uncorks;
} shot;

/* The same on both ranks. A step of 2000, and an odd event, are more than an immediate can say. */
static shot next_shot(uint64_t *seed, size_t most) {
    shot s = {.nbytes = ranks_random(seed) % 8 ? ranks_random(seed) % 3000 : ranks_random(seed) % most};
    s.is_signal = ranks_random(seed) % 3 == 0;
    s.is_odd = ranks_random(seed) % 4 == 0;
    s.step = s.is_odd ? 2000 : 1;
    s.corks = ranks_random(seed) % 5 == 0;
    s.uncorks = ranks_random(seed) % 9 == 0;
    return s;
}

static uint32_t imm_of(const shot *s, uint32_t k) {
    return s->is_odd ? 7u << 29 | k : k;
}

/* Puts of any size, corked and uncorked at any time, with signals and events between them: each brings its own bytes,
 * and events come in their turn. */
static void any_order(rank *r) {
    enum { MOST = 100 << 10, SLOTS = 64 };
    hpc_window *w;
    hpc_lane *lane;
    hpc_event e;
    uint64_t seed = 5, signal = 0;
    const uint32_t n = (uint32_t)ranks_rounds(4000);
    char *src = malloc((size_t)SLOTS * MOST);
    CHECK(src != NULL);
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, (size_t)SLOTS * MOST, 1, NULL, -1, &w));
    for (uint32_t k = 0; k < n; k++) {
        const shot s = next_shot(&seed, MOST);
        const size_t at = (size_t)(k % SLOTS) * MOST;
        const char *data = (const char *)hpc_window_data(w) + at;
        if (k % SLOTS == 0) { /* slots are used again */
            if (r->rank == SENDER) CHECK_OK(hpc_flush(lane, w, TAKER, -1));
            CHECK_OK(hpc_barrier(r->context, -1));
        }
        signal += s.is_signal ? s.step : 0;
        if (r->rank == SENDER) {
            ranks_fill(src + at, s.nbytes, k);
            if (s.corks) hpc_lane_cork(lane);
            if (s.is_signal)
                CHECK_OK(hpc_put_signal(lane, w, TAKER, src + at, s.nbytes, at, 0, signal));
            else
                CHECK_OK(hpc_put_notify(lane, w, TAKER, src + at, s.nbytes, at, imm_of(&s, k), -1));
            if (s.uncorks || k % SLOTS == SLOTS - 1 || k + 1 == n) hpc_lane_uncork(lane);
        } else if (s.is_signal) {
            CHECK_OK(hpc_wait_signal(w, 0, signal, SENDER, -1, NULL));
            CHECK_EQ(ranks_first_wrong(data, s.nbytes, k), s.nbytes);
        } else {
            CHECK_OK(hpc_wait_event(r->context, lane, &e, -1));
            CHECK(e.imm == imm_of(&s, k) && e.nbytes == s.nbytes);
            CHECK_EQ(ranks_first_wrong(data, s.nbytes, k), s.nbytes);
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    hpc_lane_free(lane);
    free(src);
}

/* ---- ends ---- */

/* The link breaks while puts are kept, staged ones too: they are dropped, uncork does nothing, and
 * flush does not take them for delivered. */
static void breaks_keeping(rank *r) {
    enum { LARGE = 30000 };
    hpc_window *w;
    hpc_lane *lane;
    static char src[LARGE];
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, sizeof src, 0, NULL, -1, &w));
    if (r->rank == TAKER) {
        rank_await(r, 1, 1);
        rank_die(r);
        return;
    }
    verbs_link *link = link_to(r, lane, TAKER);
    hpc_lane_cork(lane);
    for (uint32_t k = 0; k < 3; k++) CHECK_OK(hpc_put_notify(lane, w, TAKER, src, k * LARGE / 2, 0, k, -1));
    counts before = counts_of(link);
    CHECK_EQ(before.kept, 3);
    verbs_link_break(link, "a test breaks it", "no advice", 0);
    CHECK(counts_of(link).kept == 0 && counts_of(link).waiting == 0);
    CHECK_OK(hpc_put(lane, w, TAKER, src, 8, 0));
    CHECK_EQ(counts_of(link).kept, 0);
    hpc_lane_uncork(lane);
    CHECK_EQ(counts_of(link).posts, before.posts);
    rank_set(r, 1, 1);
    CHECK_STATUS(hpc_flush(lane, w, TAKER, -1), HPC_ERR_PEER);
    CHECK(ranks_error_names(TAKER));
    hpc_window_free(w);
    hpc_lane_free(lane);
}

int main(int argc, char **argv) {
    const unsigned processes = RANKS_VERBS | RANKS_PROCESSES;
    const ranks_case cases[] = {
        {.name = "kept_uncork", .size = 2, .run = kept, .arg = BY_UNCORK, .where = RANKS_VERBS},
        {.name = "kept_flush", .size = 2, .run = kept, .arg = BY_FLUSH, .where = RANKS_VERBS},
        {.name = "kept_next", .size = 2, .run = kept, .arg = BY_NEXT, .where = RANKS_VERBS},
        {.name = "kept_message", .size = 2, .run = kept, .arg = BY_MESSAGE, .where = RANKS_VERBS},
        {.name = "kept_free", .size = 2, .run = kept, .arg = BY_FREE, .where = RANKS_VERBS},
        {.name = "limits", .size = 2, .run = limits, .where = RANKS_VERBS},
        {.name = "full_queue", .size = 2, .run = full_queue, .where = RANKS_VERBS},
        {.name = "any_order", .size = 2, .run = any_order, .where = RANKS_VERBS},
        {.name = "dies_keeping",
         .size = 2,
         .run = corked_dies,
         .where = processes,
         .victims = 1 << SENDER,
         .apart = true},
        {.name = "breaks_keeping",
         .size = 2,
         .run = breaks_keeping,
         .where = processes,
         .victims = 1 << TAKER,
         .apart = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}

#endif
