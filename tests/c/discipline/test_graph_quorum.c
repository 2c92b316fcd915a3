/* Exchanges on graphs whose folds go on without stragglers: what a fold is made of, who is told what was left out, and
 * how a straggler comes back.
 *
 * An update says whose it is and which of its pushes: the first elements tell the numbers one by one, and all others
 * must be of the same. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <unistd.h>

#include "engine/scheme.h"
#include "inside.h"
#include "graph_jobs.h"

enum { SLOW = 2, ROUNDS = 5, COUNT = 5000, MOST = 9001 };

static const double GRACE = 0.1; /* seconds */

/* All of all, a quorum of one. Halves and quarters, so that without the slow one's half all others' double exactly. */
static void init(graph_job *g, const rank *r) {
    graph_job_init(g, r);
    graph_job_shape(g, COMPLETE);
    for (int to = 0; to < r->size; to++)
        for (int from = 0; from < r->size; from++) graph_job_edge(g, 0, to, from, from == SLOW ? 0.5 : 0.25);
    g->j.n_keys = 1;
    g->j.keys[0].count = COUNT;
    g->quorum = 1;
    g->grace = ranks_patience(GRACE);
}

/* Elements that one core owns: a key with one core, else a chunk. What other cores fold may be of other pushes. */
static uint64_t unit(const graph_job *g) {
    return g->j.cores == 1 ? g->j.keys[0].count : g->j.chunk / sizeof(float);
}

static float element(const graph_job *g, int who, int number, uint64_t i) {
    i %= unit(g);
    if (i < (uint64_t)g->graph.ranks) return i == (uint64_t)who ? (float)number : 0;
    return (float)(number * (1 + (int)(i + (uint64_t)who) % 3));
}

static _Thread_local float before[MOST]; /* the parameters, where a fold is added to them */

static int push(const rank *r, const graph_job *g, hpc_exchange *e, int key, int number, double timeout) {
    float *src = malloc(g->j.keys[key].count * sizeof *src);
    if (strcmp(g->j.rule, "sgd") == 0) memcpy(before, hpc_exchange_params(e, key), g->j.keys[key].count * sizeof *src);
    for (uint64_t i = 0; i < g->j.keys[key].count; i++) src[i] = element(g, r->rank, number, i);
    int status = hpc_exchange_push_pull(e, key, src, timeout);
    free(src);
    return status;
}

/* Finds the push of each rank that is in the parameters from that element on, 0 for none. All elements of the unit must
 * have these pushes, by the scaled weights. */
static void decode(const rank *r, const graph_job *g, hpc_exchange *e, int key, uint64_t from, int *numbers) {
    float params[MOST];
    for (uint64_t i = 0; i < unit(g); i++) params[i] = hpc_exchange_params(e, key)[from + i] - before[from + i];
    double all = 0, present = 0, weights[RANKS_MAX];
    for (int who = 0; who < r->size; who++) {
        all += graph_job_weight(g, 0, r->rank, who);
        present += params[who] != 0 ? graph_job_weight(g, 0, r->rank, who) : 0;
    }
    for (int who = 0; who < r->size; who++) {
        weights[who] = graph_job_weight(g, 0, r->rank, who) * all / present;
        numbers[who] = params[who] != 0 ? (int)lround((double)params[who] / weights[who]) : 0;
    }
    for (uint64_t i = 0; i < unit(g); i++) {
        double sum = 0;
        for (int who = 0; who < r->size; who++)
            if (numbers[who] != 0) sum += weights[who] * (double)element(g, who, numbers[who], i);
        if (fabs((double)params[i] - sum) <= 1e-6 * (sum + fabs((double)before[from + i]))) continue;
        fprintf(stderr, "rank %d, key %d: element %llu is %.9g, not %.9g\n", r->rank, key,
                (unsigned long long)(from + i), (double)params[i], sum);
        check_fail_red("wrong bytes");
    }
}

static void check_numbers(const rank *r, const graph_job *g, hpc_exchange *e, int a, int b, int c) {
    int numbers[RANKS_MAX];
    decode(r, g, e, 0, 0, numbers);
    if (numbers[0] != a || numbers[1] != b || numbers[SLOW] != c)
        fprintf(stderr, "rank %d: of %d %d %d, not %d %d %d\n", r->rank, numbers[0], numbers[1], numbers[SLOW], a, b,
                c);
    CHECK(numbers[0] == a && numbers[1] == b && numbers[SLOW] == c);
}

static hpc_exchange_stats stats_of(const hpc_exchange *e) {
    hpc_exchange_stats stats;
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    return stats;
}

static hpc_exchange_peer peer_of(const hpc_exchange *e, int who) {
    hpc_exchange_peer peer;
    CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
    return peer;
}

static int first_row(const rank *r) {
    return r->rank; /* rows of a chunk lie by owner */
}

static uint64_t clock_of(const rank *r, hpc_exchange *e) {
    uint64_t step = 0;
    CHECK_OK(hpc_exchange_get_row(e, first_row(r), &step, NULL, NULL));
    return step;
}

static uint64_t rank_at(const rank *r, int word) {
    return rank_await(r, word, 0);
}

/* All of these ranks have come so far; meanwhile this one works. */
static void in_step(rank *r, hpc_exchange *e, int ranks, uint64_t round) {
    rank_set(r, r->rank, round);
    for (int who = 0; who < ranks; who++) progress_until(r, e, who, round);
}

/* Rank 2 is held back while the other two make their rounds, in step. Then it pushes, too late, is told so at once, and
 * comes back. arg: progress + 4 * wire + 16 with gradients. */
static void straggler(rank *r) {
    graph_job g;
    init(&g, r);
    g.j.progress = r->arg % 4;
    g.j.wire = r->arg / 4 % 4;
    if (r->arg / 16) g.j.rule = "sgd", g.j.args[1] = -1;
    hpc_exchange *e = graph_open(r, &g);
    uint64_t update = COUNT * (g.j.wire == HPC_F32 ? 4 : 2);
    if (r->rank != SLOW) {
        for (int n = 1; n <= ROUNDS; n++) {
            CHECK_OK(push(r, &g, e, 0, n, -1));
            check_numbers(r, &g, e, n, n, 0);
            in_step(r, e, 2, (uint64_t)n);
        }
        CHECK_EQ(stats_of(e).missing, ROUNDS);
        CHECK_EQ(stats_of(e).whole, ROUNDS);
        CHECK_EQ(peer_of(e, SLOW).late, 0);
        /* The first lies in its slot and the last may still go there. */
        CHECK_EQ(peer_of(e, SLOW).dropped, ROUNDS - 2);
        CHECK_EQ(peer_of(e, SLOW).bytes_sent, update);
        CHECK_EQ(stats_of(e).dropped, ROUNDS - 2);
        rank_set(r, 4 + r->rank, 1);
    } else {
        rank_await(r, 4, 1);
        rank_await(r, 5, 1);
        CHECK_OK(push(r, &g, e, 0, 1, -1));
        if (!r->mode->seed) check_numbers(r, &g, e, 1, 1, 1); /* else they may be on their way for long */
        while (stats_of(e).dropped < 2) CHECK_OK(hpc_exchange_progress(e));
        CHECK_EQ(stats_of(e).dropped, 2);
        CHECK_EQ(stats_of(e).dropped_at, ROUNDS);
        CHECK_EQ(clock_of(r, e), 1);
    }
    in_step(r, e, 3, ROUNDS + 1);
    if (r->rank != SLOW) {
        CHECK_EQ(peer_of(e, SLOW).late, 1);
        CHECK_EQ(peer_of(e, SLOW).bytes_received, 0);
    }
    int together = 0, numbers[RANKS_MAX];
    for (int n = 1; rank_at(r, 8) == 0 || rank_at(r, 9) == 0; n++) {
        int mine = r->rank == SLOW ? 1 + n : ROUNDS + n;
        if (mine > 80) mine = 80; /* three times that is exact in every wire */
        CHECK_OK(push(r, &g, e, 0, mine, -1));
        decode(r, &g, e, 0, 0, numbers);
        CHECK_EQ(numbers[r->rank], mine);
        together = numbers[0] == numbers[1] && numbers[SLOW] > 1 ? together + 1 : 0;
        if (together == 3) rank_set(r, 8 + r->rank, 1);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
}

/* Rank 2 takes nothing while the other two push more keys than its ring holds events. They do not wait for it, and what
 * found no room is sent when there is some. */
static void full_ring(rank *r) {
    enum { KEYS = 300, ELEMENTS = 16 };
    graph_job g;
    float src[ELEMENTS] = {0};
    uint64_t ticket;
    init(&g, r);
    g.grace = 0;
    g.j.n_keys = KEYS;
    for (int i = 0; i < KEYS; i++) g.j.keys[i] = (hpc_key){job_key_name(i), ELEMENTS, 0};
    hpc_exchange *e = graph_open(r, &g);
    if (r->rank == SLOW) rank_await(r, 4, 1), rank_await(r, 5, 1);
    for (int i = 0; i < KEYS; i++) CHECK_OK(hpc_exchange_start(e, i, HPC_PUSH, src, -1, &ticket));
    if (r->rank != SLOW) {
        CHECK(peer_of(e, SLOW).bytes_sent < KEYS * sizeof src);
        rank_set(r, 4 + r->rank, 1);
        while (peer_of(e, SLOW).bytes_sent < KEYS * sizeof src) CHECK_OK(hpc_exchange_progress(e));
        CHECK_EQ(peer_of(e, SLOW).bytes_sent, KEYS * sizeof src);
    }
    in_step(r, e, 3, 1);
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
}

/* ---- what becomes of every push --------------------------------------------------------------------------------- */

/* arg: progress + 4 when the straggler has folded the others' first updates, which lie in its slots otherwise. A state
 * is loaded in an exchange that goes on: all start from one step, and nobody folds anything of before. */
static void loaded(rank *r) {
    enum { STEP = 100, NEW = 40, MOST_NUMBER = 80 };
    graph_job g;
    int numbers[RANKS_MAX], together = 0;
    float values[COUNT];
    init(&g, r);
    g.j.progress = r->arg % 4, g.j.rule = "sgd", g.j.args[1] = -1;
    hpc_exchange *e = graph_open(r, &g);
    for (int n = 1; n <= ROUNDS && r->rank != SLOW; n++) {
        CHECK_OK(push(r, &g, e, 0, n, -1));
        in_step(r, e, 2, (uint64_t)n);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == SLOW && r->arg / 4) CHECK_OK(push(r, &g, e, 0, 1, -1));
    CHECK_EQ(hpc_exchange_version(e, -1), r->rank == SLOW ? r->arg / 4 : ROUNDS);
    for (int i = 0; i < COUNT; i++) values[i] = (float)(r->rank + i % 7);
    for (int i = 0; i < inside(e)->plan->n_rows; i++)
        if (inside(e)->plan->rows[i].owner == r->rank)
            CHECK_OK(hpc_exchange_set_row(e, i, STEP, values + inside(e)->plan->rows[i].offset, NULL));
    CHECK_OK(hpc_exchange_publish(e, -1));
    CHECK_EQ(hpc_exchange_version(e, -1), ROUNDS);
    CHECK_EQ(clock_of(r, e), STEP);
    CHECK(same_floats(hpc_exchange_params(e, 0), values, COUNT, "loaded", r->rank, 0));
    if (r->rank != SLOW) {
        uint64_t dropped = peer_of(e, SLOW).dropped; /* the straggler may have folded one of them only */
        CHECK(dropped == ROUNDS || (r->arg / 4 && dropped == ROUNDS - 1));
        CHECK_EQ(hpc_exchange_late(e, 0), 1);
    }
    for (int n = 0; rank_at(r, 8) == 0 || rank_at(r, 9) == 0 || rank_at(r, 10) == 0; n++) {
        int mine = NEW + n < MOST_NUMBER ? NEW + n : MOST_NUMBER;
        CHECK_OK(push(r, &g, e, 0, mine, -1));
        if (n == 0) CHECK_EQ(clock_of(r, e), STEP + 1); /* nobody is further, as all meet then */
        decode(r, &g, e, 0, 0, numbers);
        CHECK_EQ(numbers[r->rank], mine);
        for (int who = 0; who < r->size; who++) CHECK(numbers[who] == 0 || numbers[who] >= NEW);
        together = numbers[0] != 0 && numbers[1] != 0 && numbers[SLOW] != 0 ? together + 1 : 0;
        if (together == 3) rank_set(r, 8 + r->rank, 1);
        if (n == 0) in_step(r, e, 3, ROUNDS + 1);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
}

/* ---- who is gone ------------------------------------------------------------------------------------------------- */

/* Rank 2 is stopped wherever it is: the others, who know how long it usually takes, go on at once. When it goes on, it
 * counts again. */
static void frozen(rank *r) {
    enum { BEFORE = 12, MEANWHILE = 20 };
    graph_job g;
    int numbers[RANKS_MAX], again = 0, step = 0;
    init(&g, r);
    g.grace = -1;
    hpc_exchange *e = graph_open(r, &g);
    rank_set(r, 16 + r->rank, (uint64_t)getpid());
    for (; step < BEFORE; step++) CHECK_OK(push(r, &g, e, 0, step + 1, -1));
    rank_set(r, 32 + r->rank, 1); /* no collective: it would be stopped in the midst of one */
    for (int who = 0; who < r->size; who++) progress_until(r, e, 32 + who, 1);
    if (r->rank == 0) CHECK(kill((pid_t)rank_await(r, 16 + SLOW, 1), SIGSTOP) == 0);
    if (r->rank != SLOW) in_step(r, e, 2, 1);
    for (int i = 0; i < MEANWHILE && r->rank != SLOW; i++) CHECK_OK(push(r, &g, e, 0, ++step, -1));
    if (r->rank != SLOW) {
        in_step(r, e, 2, 2);
        CHECK(peer_of(e, SLOW).dropped > 0);
        CHECK(stats_of(e).missing >= MEANWHILE - 2); /* it may have pushed before it was stopped */
    }
    if (r->rank == 0) CHECK(kill((pid_t)rank_await(r, 16 + SLOW, 1), SIGCONT) == 0);
    uint64_t received = peer_of(e, SLOW).bytes_received;
    while (rank_at(r, 8) == 0 || rank_at(r, 9) == 0) {
        CHECK_OK(push(r, &g, e, 0, ++step, -1));
        decode(r, &g, e, 0, 0, numbers);
        again += r->rank != SLOW && numbers[SLOW] != 0;
        if (again == 3) rank_set(r, 8 + r->rank, 1);
    }
    if (r->rank != SLOW) CHECK(peer_of(e, SLOW).bytes_received >= received + 3 * COUNT * sizeof(float));
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    enum { INLINE = 16 * HPC_PROGRESS_INLINE, THREAD = 16 * HPC_PROGRESS_THREAD, MANY_SHARES = 64 };
    static const ranks_case cases[] = {
        {.name = "straggler", .size = 3, .run = straggler, .arg = HPC_PROGRESS_INLINE},
        {.name = "straggler_bf16_thread",
         .size = 3,
         .run = straggler,
         .arg = HPC_PROGRESS_THREAD + 4 * HPC_BF16,
         .where = RANKS_UNSEEDED},
        {.name = "straggler_gradients",
         .size = 3,
         .run = straggler,
         .arg = HPC_PROGRESS_INLINE + 4 * HPC_F16 + 16,
         .where = RANKS_UNSEEDED},
        {.name = "loaded", .size = 3, .run = loaded, .arg = HPC_PROGRESS_INLINE},
        {.name = "loaded_thread", .size = 3, .run = loaded, .arg = HPC_PROGRESS_THREAD},
        {.name = "loaded_after_one", .size = 3, .run = loaded, .arg = HPC_PROGRESS_INLINE + 4, .where = RANKS_UNSEEDED},
        {.name = "full ring", .size = 3, .run = full_ring},
        {.name = "frozen", .size = 3, .run = frozen, .where = RANKS_PROCESSES},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
