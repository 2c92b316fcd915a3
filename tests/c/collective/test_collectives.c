/* Collectives of arrays: every call, by size, over every transport; several at once; ranks that make other calls; and
 * ranks that die or stop in the middle. tests/test_collectives.py has the types and operators. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "collective/calls.h"
#include "ranks.h"

enum { MOST = 200000, VICTIM = 1, PID = 8, ENDED };

static const uint64_t counts[] = {0, 1, 7, 1000, 33000, 131072, MOST};

enum { COUNTS = sizeof counts / sizeof *counts };

/* Element i of what rank `from` sends to rank `to`; small, so that sums are exact in every type. */
static int64_t value(int from, int to, uint64_t i) {
    return (int64_t)((i * 7 + (uint64_t)from * 13 + (uint64_t)to * 29) % 101) - 50;
}

static int64_t sum_of(int size, int to, uint64_t i) {
    int64_t sum = 0;
    for (int r = 0; r < size; r++) sum += value(r, to, i);
    return sum;
}

static int64_t *blocks(uint64_t n, int size) {
    int64_t *at = malloc(n * (unsigned)size * sizeof *at + 8);
    CHECK(at != NULL);
    return at;
}

static void fill(int64_t *at, int from, int to, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) at[i] = value(from, to, i);
}

static void check_values(const rank *r, const char *what, const int64_t *at, int from, int to, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        const int64_t due = from < 0 ? sum_of(r->size, to, i) : value(from, to, i);
        if (at[i] == due) continue;
        fprintf(stderr, "rank %d: %s of %llu: element %llu is %lld, not %lld\n", r->rank, what, (unsigned long long)n,
                (unsigned long long)i, (long long)at[i], (long long)due);
        check_fail_red("wrong bytes");
    }
}

static void reduce_all(rank *r, uint64_t n, int in_place) {
    int64_t *send = blocks(n, 1), *recv = in_place ? send : blocks(n, 1);
    hpc_collective_call c = call_of(HPC_ALLREDUCE, send, recv, n);
    fill(send, r->rank, 0, n);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    check_values(r, "allreduce", recv, -1, 0, n);
    fill(send, r->rank, 0, n);
    c.what = HPC_REDUCE, c.root = r->size - 1;
    if (r->rank != c.root) c.recv = NULL;
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    if (r->rank == c.root) check_values(r, "reduce", recv, -1, 0, n);
    if (r->rank != c.root) check_values(r, "reduce's send", send, r->rank, 0, n);
    free(send);
    if (!in_place) free(recv);
}

static void move(rank *r, uint64_t n) {
    int64_t *many = blocks(n, r->size), *others = blocks(n, r->size), *one = blocks(n, 1);
    hpc_collective_call c = call_of(HPC_REDUCE_SCATTER, many, one, n);
    for (int p = 0; p < r->size; p++) fill(many + n * (unsigned)p, r->rank, p, n);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    check_values(r, "reduce_scatter", one, -1, r->rank, n);
    c = call_of(HPC_ALLTOALL, many, others, n);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    for (int p = 0; p < r->size; p++) check_values(r, "alltoall", others + n * (unsigned)p, p, r->rank, n);
    for (int root = 0; root < r->size; root++) {
        c = call_of(HPC_SCATTER, r->rank == root ? many : NULL, one, n);
        c.root = root;
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        check_values(r, "scatter", one, root, r->rank, n);
        fill(one, r->rank, 5, n);
        c = call_of(HPC_GATHER, one, r->rank == root ? others : NULL, n);
        c.root = root;
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        for (int p = 0; p < r->size && r->rank == root; p++)
            check_values(r, "gather", others + n * (unsigned)p, p, 5, n);
        fill(one, r->rank, 3, n);
        c = call_of(HPC_BROADCAST, NULL, one, n);
        c.root = root;
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        check_values(r, "broadcast", one, root, 3, n);
    }
    fill(one, r->rank, 4, n);
    c = call_of(HPC_ALLGATHER, one, others, n);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    for (int p = 0; p < r->size; p++) check_values(r, "allgather", others + n * (unsigned)p, p, 4, n);
    free(many), free(others), free(one);
}

static void every(rank *r) {
    for (int i = 0; i < COUNTS; i++) {
        if (counts[i] > 33000 && (r->size > 3 || ranks_rounds(100) < 100)) continue;
        reduce_all(r, counts[i], i % 2);
        move(r, counts[i]);
    }
}

/* Blocks of other lengths, of which some are empty. */
static void uneven(rank *r) {
    uint64_t lengths[RANKS_MAX], from[RANKS_MAX], all = 0, at = 0;
    for (int p = 0; p < r->size; p++) lengths[p] = (uint64_t)(p * 5000 % 12000), all += lengths[p];
    int64_t *whole = blocks(all + 1, 1), *one = blocks(12000, 1), *other = blocks(20000, r->size);
    fill(one, r->rank, 1, lengths[r->rank]);
    hpc_collective_call c = call_of(HPC_ALLGATHER, one, whole, 0);
    c.recv_counts = lengths;
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    for (int p = 0; p < r->size; at += lengths[p++]) check_values(r, "allgather", whole + at, p, 1, lengths[p]);
    at = 0;
    for (int p = 0; p < r->size; at += lengths[p++]) fill(whole + at, r->rank, p, lengths[p]);
    c = call_of(HPC_REDUCE_SCATTER, whole, one, 0);
    c.recv_counts = lengths;
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    check_values(r, "reduce_scatter", one, -1, r->rank, lengths[r->rank]);
    /* rank r sends 100 r + 10 p elements to rank p */
    for (int p = 0; p < r->size; p++)
        lengths[p] = (uint64_t)(100 * r->rank + 10 * p), from[p] = (uint64_t)(100 * p + 10 * r->rank);
    int64_t *out = blocks(20000, r->size);
    at = 0;
    for (int p = 0; p < r->size; at += lengths[p++]) fill(out + at, r->rank, p, lengths[p]);
    c = call_of(HPC_ALLTOALL, out, other, 0);
    c.send_counts = lengths, c.recv_counts = from;
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    at = 0;
    for (int p = 0; p < r->size; at += from[p++]) check_values(r, "alltoall", other + at, p, r->rank, from[p]);
    free(whole), free(one), free(other), free(out);
}

/* Several calls are started, and waited for from the last to the first. */
static void several(rank *r) {
    enum { CALLS = 6, N = 40000 };
    int64_t *at[CALLS];
    hpc_request *works[CALLS];
    for (int i = 0; i < CALLS; i++) {
        at[i] = blocks(N, 1);
        fill(at[i], r->rank, i, N);
        hpc_collective_call c = call_of(i % 2 ? HPC_ALLREDUCE : HPC_BROADCAST, at[i], at[i], N);
        c.root = i % r->size;
        CHECK_OK(hpc_collective_start(r->context, &c, &works[i]));
    }
    for (int i = CALLS - 1; i >= 0; i--) {
        while (i == 1 && hpc_request_test(works[i]) == HPC_IN_PROGRESS) sched_yield();
        CHECK_OK(hpc_request_wait(works[i], -1));
        check_values(r, "a started call", at[i], i % 2 ? -1 : i % r->size, i, N);
        hpc_request_free(works[i]);
        free(at[i]);
    }
}

/* Many small calls in a row, in which the root of a broadcast runs ahead. */
static void small(rank *r) {
    int64_t x[4];
    for (int i = 0; i < ranks_rounds(2000); i++) {
        hpc_collective_call c = call_of(i % 3 ? HPC_BROADCAST : HPC_ALLREDUCE, x, x, 4);
        c.root = i % r->size;
        fill(x, r->rank, i, 4);
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        check_values(r, "a small call", x, i % 3 ? c.root : -1, i, 4);
    }
}

/* A float's bits depend on the ranks' values alone: not on the call, the length of the array or its place there. */
static void same_bits(rank *r) {
    enum { N = 40000, FEW = 60 };
    const uint64_t n = N * (unsigned)r->size;
    float *x = malloc(n * sizeof *x), *sums = malloc(n * sizeof *x), *others = malloc(n * sizeof *x);
    uint64_t state = (uint64_t)r->rank + 1;
    CHECK(x != NULL && sums != NULL && others != NULL);
    for (uint64_t i = 0; i < n; i++) x[i] = (float)(int64_t)ranks_random(&state) * 1e-9f;
    for (int op = HPC_SUM; op <= HPC_AVG; op++) {
        hpc_collective_call c = call_of(HPC_ALLREDUCE, x, sums, n);
        c.type = HPC_F32, c.op = op;
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        c.recv = others;
        c.what = HPC_REDUCE;
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        if (r->rank == 0) CHECK(memcmp(sums, others, n * sizeof *x) == 0);
        c.what = HPC_REDUCE_SCATTER, c.count = N;
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        CHECK(memcmp(sums + N * (unsigned)r->rank, others, N * sizeof *x) == 0);
        c.what = HPC_ALLREDUCE, c.count = FEW, c.send = x + 777;
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        CHECK(memcmp(sums + 777, others, FEW * sizeof *x) == 0);
        memcpy(others, sums, n * sizeof *x);
        c = call_of(HPC_BROADCAST, NULL, others, n);
        c.type = HPC_F32;
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        CHECK(memcmp(sums, others, n * sizeof *x) == 0); /* all ranks have the bits of rank 0 */
    }
    free(x), free(sums), free(others);
}

/* Sums of 16-bit floats are rounded once, after all ranks. */
static void halves(rank *r) {
    enum { N = 3000, HALF = 0x7800 /* 32768 */ };
    uint16_t x[N];
    for (int i = 0; i < N; i++) x[i] = HALF;
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x, x, N);
    c.type = HPC_F16, c.op = HPC_AVG;
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    for (int i = 0; i < N; i++) CHECK_EQ(x[i], HALF);
}

static int calls_going(const rank *r) {
    return atomic_load(&r->context->calls->going);
}

/* A call that cannot start for lack of memory is over, and its arrays are free for the next one. */
static void no_memory(rank *r) {
    int64_t x[8], y[8];
    hpc_request *request;
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x, y, 8);
    fill(x, r->rank, 0, 8);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    for (int i = 0; i < 3 && r->rank != 0 && !RANKS_ASAN && !RANKS_TSAN; i++) { /* sanitizers end such a process */
        c = call_of(HPC_REDUCE, x, NULL, (uint64_t)1 << 50);
        CHECK_STATUS(hpc_collective_start(r->context, &c, &request), HPC_ERR_MEMORY);
        CHECK_EQ(calls_going(r), 0);
    }
    c = call_of(HPC_ALLREDUCE, x, x, 8);
    CHECK_OK(hpc_collective_start(r->context, &c, &request));
    CHECK_OK(hpc_request_wait(request, -1));
    check_values(r, "allreduce", x, -1, 0, 8);
    hpc_request_free(request);
    CHECK_EQ(calls_going(r), 0);
}

/* A call that is given up is over, wherever it stands among the others. */
static void given_up(rank *r) {
    int64_t x[4][8] = {{0}};
    hpc_request *requests[4];
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x[0], x[0], 8);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    rank_meet(r);
    for (int i = 0; i < 3 && r->rank == 0; i++) {
        c = call_of(HPC_ALLREDUCE, x[i], x[i], 8);
        CHECK_OK(hpc_collective_start(r->context, &c, &requests[i]));
        CHECK_EQ(calls_going(r), i + 1);
    }
    static const int order[] = {1, 2, 0}; /* the middle one, the last, the first */
    for (int i = 0; i < 3 && r->rank == 0; i++) {
        hpc_request_free(requests[order[i]]);
        CHECK_EQ(calls_going(r), 2 - i);
    }
    if (r->rank == 0) CHECK_STATUS(hpc_collective_start(r->context, &c, &requests[0]), HPC_ERR_CONFIG);
    if (r->rank == 0) CHECK_EQ(calls_going(r), 0);
    if (r->rank == 0) CHECK_MESSAGE("was given up before its end");
    rank_meet(r);
}

/* A call that moves is no deadlock, however long it takes beside the looks of its waits. */
static void looked_at(rank *r) {
    const uint64_t n = RANKS_ASAN ? 1000 : 50 << 20;
    hpc_context *c;
    int64_t *x = malloc(n * sizeof *x);
    CHECK(x != NULL);
    memset(x, 1, n * sizeof *x);
    r->config.look_after = ranks_patience(0.2);
    CHECK_OK(hpc_init(&r->oob, &r->config, &c));
    hpc_collective_call call = call_of(HPC_ALLREDUCE, x, x, n);
    CHECK_OK(hpc_collective_run(c, &call, -1));
    rank_meet(r);
    hpc_context_free(c);
    free(x);
}

/* ---- other calls ---- */

/* arg: how the victim's call differs. All ranks get a sentence with both calls. */
static void mismatch(rank *r) {
    enum { OTHER_CALL, OTHER_COUNT, OTHER_TYPE, OTHER_OP, OTHER_ROOT, NO_LETTERS };
    int64_t x[300] = {0}, y[300] = {0};
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x, y, 100);
    const int other = r->rank == VICTIM;
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    if (r->arg == OTHER_CALL && other) c.what = HPC_ALLTOALL, c.count = 50;
    if (r->arg == OTHER_COUNT && other) c.count = 101;
    if (r->arg == OTHER_TYPE && other) c.type = HPC_F64;
    if (r->arg == OTHER_OP && other) c.op = HPC_MAX;
    if (r->arg == OTHER_ROOT) c.what = HPC_REDUCE, c.root = other;
    /* each waits for the other, and sends nothing */
    if (r->arg == NO_LETTERS) c.what = other ? HPC_BROADCAST : HPC_GATHER, c.root = 0, c.count = 10;
    const double start = ranks_now();
    CHECK_STATUS(hpc_collective_run(r->context, &c, ranks_patience(15)), HPC_ERR_CONFIG);
    CHECK_MESSAGE("all ranks must make the same calls");
    CHECK_MESSAGE(" calls ");
    CHECK(ranks_now() - start < ranks_patience(RANKS_TSAN ? 10 : 2));
    CHECK_STATUS(hpc_collective_run(r->context, &c, -1), HPC_ERR_CONFIG);
    CHECK_MESSAGE("no further collectives are possible");
    rank_meet(r);
}

/* Calls behind one that fails fail with its sentence. */
static void failure_of_several(rank *r) {
    int64_t x[3][100] = {{0}};
    hpc_request *requests[3];
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x[0], x[0], 1);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    for (int i = 0; i < 3; i++) {
        c = call_of(HPC_ALLREDUCE, x[i], x[i], i == 1 && r->rank == VICTIM ? 7 : 8);
        const int status = hpc_collective_start(r->context, &c, &requests[i]);
        CHECK(status == HPC_OK || (i == 2 && status == HPC_ERR_CONFIG)); /* the second may have failed by then */
    }
    if (requests[2] != NULL) CHECK_STATUS(hpc_request_wait(requests[2], -1), HPC_ERR_CONFIG);
    CHECK_MESSAGE("all ranks must make the same calls");
    CHECK_OK(hpc_request_wait(requests[0], -1));
    CHECK_STATUS(hpc_request_wait(requests[1], -1), HPC_ERR_CONFIG);
    CHECK_MESSAGE("all ranks must make the same calls");
    CHECK_EQ(calls_going(r), 0);
    for (int i = 0; i < 3; i++) hpc_request_free(requests[i]);
    CHECK_EQ(calls_going(r), 0);
    rank_meet(r);
}

/* ---- leavings ---- */

/* Ranks that have done their part leave at once, while the root still takes the others'. */
static void leaves_early(rank *r) {
    const uint64_t n = (uint64_t)ranks_rounds(100) * 20000;
    int64_t *one = blocks(n, 1), *all = blocks(n, r->size);
    hpc_collective_call c = call_of(HPC_GATHER, one, r->rank == 0 ? all : NULL, n);
    fill(one, r->rank, 0, n);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    if (r->rank == 0)
        for (int p = 0; p < r->size; p++) check_values(r, "gather", all + n * (unsigned)p, p, 0, n);
    CHECK_OK(hpc_context_close(r->context));
    free(one), free(all);
}

/* A rank leaves without the call: a test finds that, as a wait does. */
static void leaves_before(rank *r) {
    int64_t x[8] = {0}, y[8];
    hpc_request *request;
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x, y, 8);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    if (r->rank == VICTIM) {
        CHECK_OK(hpc_context_close(r->context));
        return;
    }
    int status;
    CHECK_OK(hpc_collective_start(r->context, &c, &request));
    while ((status = hpc_request_test(request)) == HPC_IN_PROGRESS) sched_yield();
    CHECK_STATUS(status, HPC_ERR_PEER);
    CHECK(ranks_error_names(VICTIM));
    hpc_request_free(request);
    hpc_context_abort(r->context, "the test says so");
}

/* ---- deaths and stops ---- */

/* arg: in which call; the victim dies before it. */
static void dies(rank *r) {
    int64_t *x = blocks(MOST, r->size), *y = blocks(MOST, r->size);
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x, y, MOST);
    fill(x, r->rank, 0, MOST);
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    rank_meet(r);
    if (r->rank == VICTIM) {
        rank_die(r);
    } else {
        c.what = r->arg;
        c.count = MOST / 4;
        c.root = 0;
        CHECK_STATUS(hpc_collective_run(r->context, &c, -1), HPC_ERR_PEER);
        CHECK(ranks_error_names(VICTIM));
    }
    free(x), free(y);
}

static void stops(rank *r) {
    int64_t *x = blocks(MOST, r->size), *y = blocks(MOST, r->size);
    hpc_collective_call c = call_of(r->arg, x, y, MOST);
    fill(x, r->rank, 0, MOST);
    if (r->rank == VICTIM) {
        c.count = 1;
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        rank_set(r, PID, (uint64_t)getpid());
        raise(SIGSTOP);
        return;
    }
    c.count = 1;
    CHECK_OK(hpc_collective_run(r->context, &c, -1));
    const pid_t victim = (pid_t)rank_await(r, PID, 1);
    while (!hpc_host_is_stopped("", victim)) sched_yield();
    c.count = MOST / 4;
    CHECK_STATUS(hpc_collective_run(r->context, &c, ranks_patience(1)), HPC_ERR_TIMEOUT);
    CHECK_EQ(hpc_last_error()->n_culprits, 1);
    CHECK_EQ(hpc_last_error()->culprits[0].rank, VICTIM);
    atomic_fetch_add(&r->board[ENDED], 1);
    rank_await(r, ENDED, (uint64_t)r->size - 1);
    if (r->rank == 0) CHECK_EQ(kill(victim, SIGKILL), 0);
    free(x), free(y);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "every_1", .size = 1, .run = every},
        {.name = "every_2", .size = 2, .run = every},
        {.name = "every_3", .size = 3, .run = every},
        {.name = "every_5", .size = 5, .run = every},
        {.name = "every_4_hosts", .size = 4, .run = every, .where = RANKS_SHM, .per_host = 2},
        {.name = "every_6_hosts", .size = 6, .run = every, .where = RANKS_SHM, .per_host = 2},
        {.name = "every_5_hosts", .size = 5, .run = every, .where = RANKS_SHM, .per_host = 3},
        {.name = "same_bits_3", .size = 3, .run = same_bits},
        {.name = "same_bits_hosts", .size = 6, .run = same_bits, .where = RANKS_SHM, .per_host = 3},
        {.name = "halves_hosts", .size = 6, .run = halves, .where = RANKS_SHM, .per_host = 3},
        {.name = "no_memory", .size = 2, .run = no_memory},
        {.name = "given_up", .size = 2, .run = given_up},
        {.name = "looked_at",
         .size = 2,
         .run = looked_at,
         .where = RANKS_SHM | RANKS_PROCESSES | RANKS_NOT_TSAN,
         .bare = true},
        {.name = "uneven", .size = 4, .run = uneven},
        {.name = "uneven_hosts", .size = 4, .run = uneven, .where = RANKS_SHM, .per_host = 2},
        {.name = "several_hosts", .size = 4, .run = several, .where = RANKS_SHM, .per_host = 2},
        {.name = "mismatch_hosts", .size = 6, .run = mismatch, .arg = 1, .where = RANKS_SHM, .per_host = 2},
        {.name = "several", .size = 3, .run = several},
        {.name = "small_2", .size = 2, .run = small},
        {.name = "small_4", .size = 4, .run = small},
        {.name = "mismatch_call", .size = 3, .run = mismatch, .arg = 0},
        {.name = "mismatch_count", .size = 2, .run = mismatch, .arg = 1},
        {.name = "mismatch_type", .size = 3, .run = mismatch, .arg = 2},
        {.name = "mismatch_op", .size = 3, .run = mismatch, .arg = 3},
        {.name = "mismatch_root", .size = 3, .run = mismatch, .arg = 4},
        {.name = "mismatch_silent", .size = 2, .run = mismatch, .arg = 5},
        {.name = "failure_of_several", .size = 3, .run = failure_of_several},
        {.name = "leaves_early", .size = 4, .run = leaves_early, .apart = true},
        {.name = "leaves_before", .size = 2, .run = leaves_before, .apart = true},
        {.name = "dies_allreduce", .size = 3, .run = dies, .arg = HPC_ALLREDUCE, .victims = 1 << VICTIM, .apart = true},
        {.name = "dies_gather", .size = 2, .run = dies, .arg = HPC_GATHER, .victims = 1 << VICTIM, .apart = true},
        {.name = "dies_alltoall", .size = 4, .run = dies, .arg = HPC_ALLTOALL, .victims = 1 << VICTIM, .apart = true},
        {.name = "stops_allreduce",
         .size = 3,
         .run = stops,
         .arg = HPC_ALLREDUCE,
         .where = RANKS_PROCESSES,
         .victims = 1 << VICTIM,
         .apart = true},
        {.name = "stops_reduce_scatter",
         .size = 4,
         .run = stops,
         .arg = HPC_REDUCE_SCATTER,
         .where = RANKS_PROCESSES,
         .victims = 1 << VICTIM,
         .apart = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
