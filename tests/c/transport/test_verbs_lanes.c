/* Lanes over verbs: many threads at once, both ends freed in any order, and several NICs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "verbs_ranks.h"

#if defined(HPC_HAVE_VERBS)

static const double SILENCE = 30; /* an emulated machine is slow */

static void bring_up(rank *r) {
    r->config.silence = SILENCE;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
}

/* No call of hpcomm: what comes is taken by the service thread. */
static void await_word(const hpc_window *w, int signal, uint64_t value, double seconds) {
    double end = ranks_now() + ranks_patience(seconds);
    while (atomic_load(hpc_own_signal(w, signal)) < value) {
        CHECK(ranks_now() < end);
        sched_yield();
    }
}

static size_t between(uint64_t *seed, size_t least, size_t most) {
    return least + (size_t)(ranks_random(seed) % (most - least + 1));
}

/* ---- lanes ---- */

enum { THREADS = 4 };

typedef struct talker {
    rank *r;
    hpc_lane *lane;
    hpc_window *window;
    int index;
} talker;

/* Both ways at once, by all kinds of puts; events of a lane are this thread's. */
static void *talk(void *arg) {
    enum { BYTES = 2000, SHOTS = 8 };
    const talker *t = arg;
    char src[SHOTS][BYTES];
    int rounds = ranks_rounds(300), peer = 1 - t->r->rank;
    size_t base = (size_t)t->index * SHOTS * BYTES;
    const char *data = (char *)hpc_window_data(t->window) + base;
    uint64_t seed = (uint64_t)t->index;
    hpc_event e;
    for (uint64_t k = 1; k <= (uint64_t)rounds; k++) {
        for (int i = 0; i < SHOTS; i++) {
            size_t nbytes = between(&seed, 1, BYTES), at = (size_t)i * BYTES;
            ranks_fill(src[i], BYTES, k * 100 + (uint64_t)(t->index * SHOTS + i));
            if (i % 2)
                CHECK_OK(hpc_put_notify(t->lane, t->window, peer, src[i], nbytes, base + at, (uint32_t)nbytes, -1));
            else
                CHECK_OK(hpc_put_signal(t->lane, t->window, peer, src[i], nbytes, base + at, 2 * t->index, 2 * k));
        }
        for (int i = 1; i < SHOTS; i += 2) {
            CHECK_OK(hpc_wait_event(t->r->context, t->lane, &e, -1));
            CHECK(e.peer == peer && e.imm == e.nbytes);
            size_t wrong = ranks_first_wrong(data + i * BYTES, e.nbytes, k * 100 + (uint64_t)(t->index * SHOTS + i));
            CHECK_EQ(wrong, e.nbytes);
        }
        CHECK_OK(hpc_put_signal(t->lane, t->window, peer, NULL, 0, 0, 2 * t->index + 1, k));
        CHECK_OK(hpc_wait_signal(t->window, 2 * t->index + 1, k, peer, -1, NULL));
        CHECK_OK(hpc_flush(t->lane, t->window, peer, -1));
    }
    return NULL;
}

static void threads(rank *r) {
    pthread_t running[THREADS];
    talker all[THREADS];
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, THREADS * 8 * 2000, 2 * THREADS, NULL, -1, &w));
    for (int i = 0; i < THREADS; i++) {
        all[i] = (talker){r, NULL, w, i};
        CHECK_OK(hpc_lane_create(r->context, -1, &all[i].lane));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_create(&running[i], NULL, talk, &all[i]), 0);
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(running[i], NULL), 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < THREADS; i++) hpc_lane_free(all[(i + r->rank) % THREADS].lane);
    hpc_window_free(w);
}

static int ifaces(rank *r) {
    hpc_verbs *v = r->context->verbs;
    pthread_mutex_lock(&v->lock);
    int n = v->n_ifaces;
    pthread_mutex_unlock(&v->lock);
    return n;
}

static void await_ifaces(rank *r, int n) {
    double end = ranks_now() + ranks_patience(5);
    while (ifaces(r) != n && ranks_now() < end) sched_yield();
    CHECK_EQ(ifaces(r), n);
}

/* Each side frees them in an order of its own; when both have, their queues go. */
static void lanes_in_turn(rank *r) {
    enum { LANES = 6 };
    hpc_lane *lanes[LANES];
    hpc_window *w;
    int rounds = ranks_rounds(60), peer = 1 - r->rank;
    CHECK_OK(hpc_window_create(r->context, 8 * LANES, LANES, NULL, -1, &w));
    int before = ifaces(r);
    for (uint64_t k = 1; k <= (uint64_t)rounds; k++) {
        for (int i = 0; i < LANES; i++) CHECK_OK(hpc_lane_create(r->context, -1, &lanes[i]));
        for (int i = 0; i < LANES; i++) CHECK_OK(hpc_put_signal(lanes[i], w, peer, &k, 8, (size_t)i * 8, i, k));
        for (int i = 0; i < LANES; i++) hpc_lane_free(lanes[r->rank ? LANES - 1 - i : (i + (int)k) % LANES]);
        for (int i = 0; i < LANES; i++) CHECK_OK(hpc_wait_signal(w, i, k, peer, -1, NULL));
        for (int i = 0; i < LANES; i++) CHECK_EQ(((uint64_t *)hpc_window_data(w))[i], k);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    await_ifaces(r, before);
    CHECK_OK(hpc_barrier(r->context, -1)); /* nobody was taken for dead meanwhile */
    hpc_window_free(w);
}

/* A lane that one side has freed still takes all that the other one puts by it, and more than there are credits. */
static void lane_freed_first(rank *r) {
    enum { BYTES = 2 << 20 };
    hpc_window *w;
    hpc_lane *lane;
    char *src = malloc(BYTES);
    CHECK(src);
    ranks_fill(src, BYTES, 5);
    CHECK_OK(hpc_window_create(r->context, BYTES, 1, NULL, -1, &w));
    int before = ifaces(r);
    for (uint64_t round = 1; round <= 4; round++) {
        uint64_t n = 3 * VERBS_CREDITS, first = (round - 1) * n;
        int freer = (int)round % 2;
        CHECK_OK(hpc_lane_create(r->context, -1, &lane));
        if (r->rank == freer) {
            CHECK_OK(hpc_put(lane, w, 1 - freer, src, BYTES, 0));
            hpc_lane_free(lane);
            CHECK_OK(hpc_barrier(r->context, -1));
            CHECK_OK(hpc_wait_signal(w, 0, first + n, 1 - freer, -1, NULL));
        } else {
            CHECK_OK(hpc_barrier(r->context, -1));
            for (uint64_t k = 1; k <= n; k++) CHECK_OK(hpc_put_signal(lane, w, freer, src, 8, 0, 0, first + k));
            CHECK_OK(hpc_put_signal(lane, w, freer, src, BYTES, 0, 0, first + n));
            CHECK_OK(hpc_flush(lane, w, freer, -1));
            hpc_lane_free(lane);
        }
        CHECK_OK(hpc_barrier(r->context, -1));
        CHECK_EQ(ranks_first_wrong(hpc_window_data(w), BYTES, 5), BYTES);
        memset(hpc_window_data(w), 0, BYTES);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    await_ifaces(r, before);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    free(src);
}

/* ---- NICs ---- */

/* Packets that the device of this NIC has sent; 0 if it does not count them. */
static uint64_t packets(const verbs_nic *n) {
    char path[200];
    unsigned long long count = 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s/ports/%d/hw_counters/sent_pkts", (int)strcspn(n->name, ":"),
             n->name, n->port);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    CHECK_EQ(fscanf(f, "%llu", &count), 1);
    fclose(f);
    return count;
}

/* Lanes take the NICs in turn, and data goes by the lane's. */
static void rails(rank *r) {
    enum { LANES = 4, SHOTS = 200 };
    hpc_window *w;
    hpc_lane *lanes[LANES];
    int n = r->context->nics->n, peer = 1 - r->rank;
    if (n < 2) ranks_skip("there is one RDMA port, and this needs two");
    CHECK_OK(hpc_window_create(r->context, 8 * LANES, LANES, NULL, -1, &w));
    for (int i = 0; i < LANES; i++) CHECK_OK(hpc_lane_create(r->context, -1, &lanes[i]));
    for (int i = 0; i < LANES; i++) {
        int nic = link_to(r, lanes[i], peer)->iface->nic;
        for (int k = 0; k < i; k++) CHECK_EQ(nic == link_to(r, lanes[k], peer)->iface->nic, (i - k) % n == 0);
    }
    for (int i = 0; i < LANES; i++) {
        const verbs_nic *nics = r->context->nics->nics;
        uint64_t before[HPC_RAILS];
        CHECK_OK(hpc_barrier(r->context, -1));
        for (int k = 0; k < n; k++) before[k] = packets(&nics[k]);
        rank_meet(r);
        for (uint64_t k = 1; k <= SHOTS; k++) CHECK_OK(hpc_put_signal(lanes[i], w, peer, &k, 8, (size_t)i * 8, i, k));
        CHECK_OK(hpc_flush(lanes[i], w, peer, -1));
        await_word(w, i, SHOTS, 10);
        CHECK_EQ(((uint64_t *)hpc_window_data(w))[i], SHOTS);
        rank_meet(r);
        int own = link_to(r, lanes[i], peer)->iface->nic;
        double end = ranks_now() + ranks_patience(5);
        while (before[own] > 0 && packets(&nics[own]) - before[own] < SHOTS) { /* they are counted now and then */
            CHECK(ranks_now() < end);
            sched_yield();
        }
        for (int k = 0; k < n && before[own] > 0; k++) CHECK(k == own || packets(&nics[k]) - before[k] < SHOTS);
        rank_meet(r);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < LANES; i++) hpc_lane_free(lanes[i]);
    hpc_window_free(w);
}

/* The one that config.devices names is the only one. */
static void one_of_them(rank *r) {
    char name[80];
    hpc_window *w;
    hpc_lane *lane;
    bring_up(r);
    if (r->context->nics->n < 2) ranks_skip("there is one RDMA port, and this needs two");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(r->context->nics->nics[1].name, ":"),
             r->context->nics->nics[1].name);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_context_free(r->context);
    r->config.devices = name;
    bring_up(r);
    CHECK_EQ(r->context->nics->n, 1);
    CHECK(strncmp(r->context->nics->nics[0].name, name, strlen(name)) == 0);
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    for (uint64_t k = 1; k <= 3; k++) {
        CHECK_OK(hpc_lane_create(r->context, -1, &lane));
        CHECK_OK(hpc_put_signal(lane, w, 1 - r->rank, &k, 8, 0, 0, k));
        CHECK_OK(hpc_wait_signal(w, 0, k, 1 - r->rank, -1, NULL));
        CHECK_OK(hpc_flush(lane, w, -1, -1));
        CHECK_OK(hpc_barrier(r->context, -1));
        hpc_lane_free(lane);
    }
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "threads", .size = 2, .run = threads, .where = RANKS_VERBS},
        {.name = "threads_sleepy", .size = 2, .run = threads, .where = RANKS_VERBS, .sleepy = true},
        {.name = "lanes_in_turn", .size = 2, .run = lanes_in_turn, .where = RANKS_VERBS},
        {.name = "lane_freed_first", .size = 2, .run = lane_freed_first, .where = RANKS_VERBS},
        {.name = "rails", .size = 2, .run = rails, .where = RANKS_VERBS},
        {.name = "one_of_them", .size = 2, .run = one_of_them, .where = RANKS_VERBS, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}

#endif
