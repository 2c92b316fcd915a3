/* Folds of a quorum: who is in them, what the late see of it and when, what is counted, and that nothing is lost. */
#include <math.h>
#include <sched.h>

#include "engine/layout.h"
#include "exchange_plans.h"
#include "inside.h"

enum { BOTH = HPC_PUSH | HPC_PULL, WORD = 100 };

static void one_key(job *j, uint64_t count) {
    j->n_keys = 1;
    j->keys[0].count = count;
}

/* The number of shares of a key: cores that have rows of it. */
static int shares_of(const job *j, int key) {
    int chunks = (int)((j->keys[key].count * sizeof(float) + j->chunk - 1) / j->chunk);
    int places = j->n_servers * j->cores;
    return chunks < places ? chunks : places;
}

/* The step that the workers of a mask make together, of their gradients number `step`. */
static void fold_of(reference *ref, int key, unsigned mask, int step) {
    const job *j = ref->j;
    uint64_t count = j->keys[key].count;
    double *sum = calloc(count, sizeof *sum);
    int n = 0;
    for (int w = 0; w < j->n_workers; w++) n += mask >> j->workers[w] & 1;
    for (int w = 0; w < j->n_workers; w++) {
        if (!(mask >> j->workers[w] & 1)) continue;
        for (uint64_t i = 0; i < count; i++)
            sum[i] += (j->sum ? 1 : 1.0 / n) * (double)job_gradient(j, j->workers[w], step, key, i);
    }
    reference_apply(ref, key, sum);
    free(sum);
}

static void meet(const rank *r, hpc_exchange *e, uint64_t turn) {
    rank_set((rank *)r, r->rank, turn);
    for (int who = 0; who < r->size; who++) progress_until(r, e, who, turn);
}

/* The ranks of mask make a step while the others look on, and see nothing of it. */
static void step_of(rank *r, const job *j, hpc_exchange *e, reference *ref, int key, unsigned mask, int step,
                    const reference *unseen) {
    static _Thread_local uint64_t turn;
    if (step == 0) turn = 0;
    fold_of(ref, key, mask, step);
    if (mask >> r->rank & 1) {
        job_push_pull(r, j, e, key, step);
        reference_check(ref, r, e, key);
        CHECK_EQ(hpc_exchange_late(e, key), 0);
        CHECK_EQ(hpc_exchange_version(e), ref->step[key]);
    }
    meet(r, e, ++turn);
    if (!(mask >> r->rank & 1)) reference_check(unseen, r, e, key);
    meet(r, e, ++turn);
}

/* arg: progress + 4 * wire. Three of four make two steps; the fourth's parameters stay as they are until it pushes; its
 * push has no effect, and brings it what the others have; then it counts again, and another one is late. */
static void three_of_four(rank *r) {
    enum { KEY = 0, STRAGGLER = 3, ALL = 15 };
    job j;
    reference ref, before;
    hpc_exchange_stats stats;
    hpc_exchange_peer peer;
    job_init(&j, r);
    j.progress = r->arg % 4, j.wire = r->arg / 4, j.cores = 2, j.depth = j.wire == HPC_F32 ? 1 : 2;
    j.quorum = 3, j.grace = 0;
    one_key(&j, 4097);
    hpc_exchange *e = job_open(r, &j);
    int shares = shares_of(&j, KEY);
    reference_init(&ref, &j);
    reference_init(&before, &j);
    for (int step = 0; step < 2; step++) step_of(r, &j, e, &ref, KEY, ALL & ~(1u << STRAGGLER), step, &before);
    if (r->rank == STRAGGLER) {
        CHECK_EQ(hpc_exchange_version(e), 0);
        job_push_pull(r, &j, e, KEY, 0);
        reference_check(&ref, r, e, KEY);
        CHECK_EQ(hpc_exchange_late(e, KEY), shares);
        CHECK_EQ(hpc_exchange_late(e, -1), shares);
        CHECK_EQ(hpc_exchange_version(e), 2);
    }
    reference_free(&before);
    reference_init(&before, &j);
    for (int step = 0; step < 2; step++) fold_of(&before, KEY, ALL & ~(1u << STRAGGLER), step);
    step_of(r, &j, e, &ref, KEY, ALL & ~1u, 2, &before); /* rank 0 is late now */
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.dropped, r->rank == STRAGGLER ? shares : 0);
    CHECK_EQ(stats.dropped_at, r->rank == STRAGGLER ? 2 : 0);
    uint64_t late = 0, folded = stats.reduces, mine = 0;
    for (int who = 0; who < r->size; who++) {
        CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
        if (who != STRAGGLER) CHECK_EQ(peer.late, 0);
        late += peer.late;
    }
    mine = late; /* as many shares as this rank owns of the key */
    CHECK_EQ(folded, 3 * mine);
    CHECK_EQ(stats.whole, 3 * folded);
    CHECK_EQ(stats.missing, folded);
    uint64_t counts[5];
    CHECK_EQ(hpc_exchange_get_inputs(e, counts, 5), 4);
    CHECK_EQ(counts[3], folded);
    atomic_fetch_add(&r->board[WORD], late);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_EQ(atomic_load(&r->board[WORD]), shares);
    reference_free(&ref);
    reference_free(&before);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* A mean is that of those who are there. The gradients are whole, and so is their mean. */
static void means(rank *r) {
    job j;
    uint64_t ticket;
    float src[33];
    job_init(&j, r);
    j.sum = 0, j.args[1] = 1, j.quorum = 3, j.grace = 0;
    one_key(&j, 33);
    hpc_exchange *e = job_open(r, &j);
    for (int i = 0; i < 33; i++) src[i] = (float)(3 * (r->rank + i));
    if (r->rank != 3) {
        CHECK_OK(hpc_exchange_start(e, 0, BOTH, src, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
        for (uint64_t i = 0; i < 33; i++)
            CHECK_EQ(hpc_exchange_params(e, 0)[i], job_initial(&j, 0, i) - (float)(3 + 3 * i));
    }
    meet(r, e, 1);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* arg: progress. A fold that has its quorum waits a grace for the rest; a rank that is behind is not waited for. */
static void grace(rank *r) {
    enum { KEY = 0, STEPS = 20 };
    const double seconds = 0.2;
    job j;
    reference ref;
    job_init(&j, r);
    j.progress = r->arg, j.n_servers = 1, j.quorum = 2, j.grace = seconds;
    one_key(&j, 33);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    double begin = ranks_now();
    for (int step = 0; step < STEPS; step++) {
        fold_of(&ref, KEY, 3, step);
        if (r->rank < 2) {
            job_push_pull(r, &j, e, KEY, step);
            reference_check(&ref, r, e, KEY);
        }
        if (step == 0 && r->rank < 2) CHECK(ranks_now() - begin >= seconds * 0.9);
        if (step == 0) inside_set_grace(e, INFINITY); /* the next folds wait for no grace: none would end */
    }
    meet(r, e, 1);
    if (r->rank == 2) {
        job_push_pull(r, &j, e, KEY, 0);
        reference_check(&ref, r, e, KEY);
        CHECK_EQ(hpc_exchange_late(e, KEY), 1);
    }
    meet(r, e, 2);
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* A rank that stands still costs one grace in all, not one for each key. */
static void one_grace(rank *r) {
    enum { KEYS = 16 };
    const double seconds = 0.1;
    job j;
    job_init(&j, r);
    j.n_servers = 1, j.quorum = 2, j.grace = seconds, j.n_keys = KEYS;
    for (int i = 0; i < KEYS; i++) j.keys[i] = (hpc_key){job_key_name(i), 33, 0};
    hpc_exchange *e = job_open(r, &j);
    for (int i = 0; i < KEYS && r->rank < 2; i++) {
        job_push_pull(r, &j, e, i, 0);
        if (i == 0) inside_set_grace(e, INFINITY); /* a second grace would not end */
    }
    meet(r, e, 1);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* While a fold waits for its rest progress says that a time is to come, for which waits doze; when it is made, and
 * nothing else waits, they may sleep again. */
static void sleeps_again(rank *r) {
    enum { KEY = 0, LAST = 2 };
    job j;
    job_init(&j, r);
    j.progress = HPC_PROGRESS_INLINE, j.n_servers = 1, j.quorum = 2, j.grace = 1e6;
    one_key(&j, 33);
    hpc_exchange *e = job_open(r, &j);
    for (int step = 0; step < 2; step++) {
        if (r->rank == LAST) rank_await(r, WORD, (uint64_t)step + 1);
        uint64_t ticket = job_start(r, &j, e, KEY, step, BOTH, false);
        while (r->rank == 0 && !(hpc_group_progress(&r->context->group) & HPC_AWAITED)) sched_yield();
        if (r->rank == 0) rank_set(r, WORD, (uint64_t)step + 1);
        CHECK_OK(hpc_exchange_wait(e, KEY, ticket, -1));
        CHECK(!(hpc_group_progress(&r->context->group) & HPC_AWAITED));
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* arg: progress. Who has closed is not waited for, however long the grace; when too few are left a push fails. */
static void closed(rank *r) {
    enum { KEY = 0 };
    job j;
    reference ref;
    job_init(&j, r);
    j.progress = r->arg, j.quorum = 2, j.grace = INFINITY, j.n_servers = 1;
    one_key(&j, 1001);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 3; step++) {
        unsigned mask = step == 0 ? 7u : 3u;
        fold_of(&ref, KEY, mask, step);
        if (!(mask >> r->rank & 1)) break;
        job_push_pull(r, &j, e, KEY, step);
        reference_check(&ref, r, e, KEY);
    }
    if (r->rank == 0) {
        uint64_t ticket = job_start(r, &j, e, KEY, 3, BOTH, false);
        CHECK_STATUS(hpc_exchange_wait(e, KEY, ticket, -1), HPC_ERR_PEER);
        CHECK_MESSAGE("no quorum of 2");
        CHECK(ranks_error_names(1) && ranks_error_names(2));
        reference_check(&ref, r, e, KEY);
        CHECK_EQ(hpc_exchange_late(e, KEY), 1);
        CHECK_EQ(hpc_exchange_version(e), 3);
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* arg: progress. What is published goes to the straggler too, as soon as the last of the others has its answer: it is
 * in no fold, and goes on from the newest version. */
static void published(rank *r) {
    enum { KEY = 0, STRAGGLER = 2 };
    job j;
    reference ref;
    job_init(&j, r);
    j.progress = r->arg, j.quorum = 2, j.grace = 0, j.n_servers = 1;
    one_key(&j, 4097);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    int steps = ranks_rounds(100);
    for (int step = 0; step < steps; step++) {
        fold_of(&ref, KEY, 3, step);
        if (r->rank != STRAGGLER) job_push_pull(r, &j, e, KEY, step);
        CHECK_OK(hpc_exchange_publish(e, -1));
        reference_check(&ref, r, e, KEY);
        CHECK_EQ(hpc_exchange_version(e), step + 1);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

static bool has_note(const rank *r, const char *text) {
    for (int i = 0; hpc_context_note(r->context, i); i++)
        if (strstr(hpc_context_note(r->context, i), text)) return true;
    return false;
}

/* arg: whether the last key is waited for. Of pushes that find no quorum any more close tells those that nobody has
 * waited for; not those that were folded, or left out. */
static void lost(rank *r) {
    enum { LAST = 0, KEYS = 3 };
    job j;
    uint64_t tickets[KEYS];
    job_init(&j, r);
    j.quorum = 2, j.grace = 0, j.n_servers = 1;
    hpc_exchange *e = job_open(r, &j);
    for (int step = 0; step < 2; step++) {
        for (int key = 0; key < KEYS; key++)
            if (step == 0 || r->rank == LAST) tickets[key] = job_start(r, &j, e, key, step, HPC_PUSH, false);
        for (int key = 0; key < KEYS && step == 0 && r->rank == LAST; key++)
            CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
    }
    if (r->rank == LAST && r->arg) CHECK_STATUS(hpc_exchange_wait(e, KEYS - 1, tickets[KEYS - 1], -1), HPC_ERR_PEER);
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_EQ(has_note(r, r->arg ? "lost the last push of 2 keys of rank 0, k0 first: version"
                                : "lost the last push of 3 keys of rank 0, k0 first: version"),
             r->rank == LAST);
    CHECK_EQ(has_note(r, "lost"), r->rank == LAST);
    hpc_exchange_free(e);
}

/* Each key is pushed once for a version. */
static void in_steps(rank *r) {
    job j;
    uint64_t tickets[3], other;
    job_init(&j, r);
    j.quorum = 1, j.grace = INFINITY;
    hpc_exchange *e = job_open(r, &j);
    job_push_pull(r, &j, e, 1, 0);
    CHECK_EQ(hpc_exchange_ready(e, 1), HPC_IN_PROGRESS);
    CHECK_STATUS(hpc_exchange_start(e, 1, BOTH, NULL, -1, &other), HPC_ERR_INVALID);
    CHECK_MESSAGE("has pushed key k1 for version 1 already, and key k0 not");
    for (int key = 0; key < 3; key += 2) tickets[key] = job_start(r, &j, e, key, 0, BOTH, false);
    for (int key = 0; key < 3; key += 2) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
    CHECK_EQ(hpc_exchange_ready(e, 1), HPC_OK);
    job_push_pull(r, &j, e, 1, 1);
    CHECK_EQ(hpc_exchange_version(e), 2);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* A quorum of all workers waits for all, like none; yet it goes with nothing that a quorum does not go with. */
static void all_is_refused_alike(rank *r) {
    job j;
    hpc_exchange *e = NULL;
    for (int quorum = 1; quorum <= r->size; quorum += r->size - 1)
        for (int what = 0; what < 2; what++) {
            hpc_exchange_config config;
            job_init(&j, r);
            hpc_exchange_config_init(&config);
            config.quorum = quorum;
            config.consistency = what == 0 ? HPC_ASYNC : HPC_BSP;
            config.eager = what == 1;
            CHECK_STATUS(job_create_with(r, &j, &config, -1, &e), HPC_ERR_UNSUPPORTED);
        }
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "three of four", .size = 4, .run = three_of_four, .arg = HPC_PROGRESS_INLINE},
        {.name = "three of four, threads", .size = 4, .run = three_of_four, .arg = HPC_PROGRESS_THREAD},
        {.name = "three of four, f16", .size = 4, .run = three_of_four, .arg = HPC_PROGRESS_INLINE + 4 * HPC_F16},
        {.name = "means", .size = 4, .run = means},
        {.name = "all is refused alike", .size = 3, .run = all_is_refused_alike, .where = RANKS_UNSEEDED},
        {.name = "grace", .size = 3, .run = grace, .arg = HPC_PROGRESS_INLINE},
        {.name = "grace, threads, sleepy", .size = 3, .run = grace, .arg = HPC_PROGRESS_THREAD, .sleepy = true},
        {.name = "one grace", .size = 3, .run = one_grace},
        {.name = "sleeps again", .size = 3, .run = sleeps_again},
        {.name = "closed", .size = 3, .run = closed, .arg = HPC_PROGRESS_INLINE},
        {.name = "closed, threads, sleepy", .size = 3, .run = closed, .arg = HPC_PROGRESS_THREAD, .sleepy = true},
        {.name = "published", .size = 3, .run = published, .arg = HPC_PROGRESS_INLINE},
        {.name = "published by threads", .size = 3, .run = published, .arg = HPC_PROGRESS_THREAD},
        {.name = "lost", .size = 3, .run = lost},
        {.name = "lost but one told", .size = 3, .run = lost, .arg = 1},
        {.name = "in steps", .size = 2, .run = in_steps},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
