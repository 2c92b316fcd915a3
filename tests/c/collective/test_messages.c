/* Messages between two ranks: every length, in and out of order, from any rank, in both directions at once, beside
 * collectives; what does not fit; sends and recvs that are given up; ranks that die, stop or leave in the middle.
 * Started calls go on in other waits. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/host.h"
#include "collective/calls.h"
#include "exchange_plans.h"

enum { VICTIM = 1, PID = 8, ENDED, LONG = 300000, MOST = 1 << 20, READY = 12 };

/* 0, one element, short, the last short one, the first long one, lent ones. */
static const uint64_t lengths[] = {0, 1, 100, 65535, 65536, 65537, 70000, LONG, MOST};

enum { LENGTHS = sizeof lengths / sizeof *lengths };

static uint64_t seed_of(int from, int to, int number) {
    return (uint64_t)from << 40 | (uint64_t)to << 20 | (uint64_t)number;
}

static char *buffer(size_t n) {
    char *at = malloc(n + 1);
    CHECK(at != NULL);
    return at;
}

static void check_bytes(const rank *r, const char *at, size_t n, uint64_t seed) {
    const size_t wrong = ranks_first_wrong(at, n, seed);
    if (wrong == n) return;
    fprintf(stderr, "rank %d: byte %zu of %zu is wrong\n", r->rank, wrong, n);
    check_fail_red("wrong bytes");
}

/* Returns how many calls are not over. */
static int going(const rank *r) {
    return atomic_load(&r->context->calls->going);
}

static void send_to(rank *r, int to, int tag, const char *at, size_t n) {
    CHECK_OK(hpc_send(r->context, to, tag, at, n, HPC_U8, -1));
}

static void recv_from(rank *r, int from, int tag, char *at, size_t n, uint64_t seed) {
    hpc_received got;
    memset(at, 0, n);
    CHECK_OK(hpc_recv(r->context, from, tag, at, n, HPC_U8, &got, -1));
    check_bytes(r, at, n, seed);
    CHECK_EQ(got.count, n);
    if (from != HPC_ANY) CHECK_EQ(got.rank, from);
    if (tag != HPC_ANY) CHECK_EQ(got.tag, tag);
}

/* Each rank sends to the next one, and all lengths twice: the second time the reader has offered to read. */
static void ring(rank *r) {
    char *out = buffer(MOST), *in = buffer(MOST);
    const int next = (r->rank + 1) % r->size, last = (r->rank + r->size - 1) % r->size;
    for (int i = 0; i < 2 * LENGTHS; i++) {
        const size_t n = lengths[i % LENGTHS];
        hpc_request *sent;
        ranks_fill(out, n, seed_of(r->rank, next, i));
        CHECK_OK(hpc_send_start(r->context, next, i, out, n, HPC_U8, &sent));
        recv_from(r, last, i, in, n, seed_of(last, r->rank, i));
        CHECK_OK(hpc_request_wait(sent, -1));
        hpc_request_free(sent);
    }
    free(out), free(in);
}

/* Rank 0 asks for the messages of all others in another order than they were sent in, while the others send on. */
static void out_of_order(rank *r) {
    enum { N = 12 };
    char *at[N];
    hpc_request *sent[N];
    for (int i = 0; i < N; i++) at[i] = buffer(LONG);
    for (int i = 0; i < N && r->rank != 0; i++) {
        const size_t n = i % 3 ? (size_t)(100 * i) : LONG;
        ranks_fill(at[i], n, seed_of(r->rank, 0, i));
        CHECK_OK(hpc_send_start(r->context, 0, i, at[i], n, HPC_U8, &sent[i]));
    }
    for (int i = N - 1; i >= 0 && r->rank == 0; i--)
        for (int p = 1; p < r->size; p++) recv_from(r, p, i, at[0], i % 3 ? (size_t)(100 * i) : LONG, seed_of(p, 0, i));
    for (int i = 0; i < N; i++) {
        if (r->rank != 0) {
            CHECK_OK(hpc_request_wait(sent[i], -1));
            hpc_request_free(sent[i]);
        }
        free(at[i]);
    }
}

/* Messages of one tag keep their order, short behind long. Recvs that were started first get the first ones. */
static void in_order(rank *r) {
    enum { N = 8 };
    char *at[N];
    hpc_request *requests[N];
    for (int i = 0; i < N; i++) {
        const size_t n = i % 2 ? 10 : LONG;
        at[i] = buffer(n);
        if (r->rank == 0) ranks_fill(at[i], n, seed_of(0, 1, i));
        if (r->rank == 0)
            CHECK_OK(hpc_send_start(r->context, 1, 7, at[i], n, HPC_U8, &requests[i]));
        else
            CHECK_OK(
                hpc_recv_start(r->context, i % 3 ? 0 : HPC_ANY, i % 2 ? 7 : HPC_ANY, at[i], n, HPC_U8, &requests[i]));
    }
    for (int i = N - 1; i >= 0; i--) {
        while (i == 2 && hpc_request_test(requests[i]) == HPC_IN_PROGRESS) sched_yield();
        CHECK_OK(hpc_request_wait(requests[i], -1));
        hpc_received got;
        if (r->rank == 1) {
            check_bytes(r, at[i], i % 2 ? 10 : LONG, seed_of(0, 1, i));
            CHECK_OK(hpc_request_received(requests[i], &got));
            CHECK_EQ(got.rank, 0);
            CHECK_EQ(got.tag, 7);
        }
        hpc_request_free(requests[i]);
        free(at[i]);
    }
}

/* Rank 0 takes whatever comes, and answers its sender. */
static void from_any(rank *r) {
    const int rounds = ranks_rounds(200);
    char *at = buffer(LONG);
    for (int i = 0; i < rounds * (r->rank == 0 ? r->size - 1 : 1); i++) {
        hpc_received got;
        uint64_t word[2] = {(uint64_t)r->rank, (uint64_t)i};
        const size_t n = i % 50 == 0 ? LONG : 64;
        if (r->rank == 0) {
            CHECK_OK(hpc_recv(r->context, HPC_ANY, 1, word, 2, HPC_U64, &got, -1));
            CHECK_EQ(got.rank, (int)word[0]);
            const size_t asked = word[1] % 50 == 0 ? LONG : 64;
            ranks_fill(at, asked, seed_of(0, got.rank, (int)word[1]));
            send_to(r, got.rank, 2, at, asked);
        } else {
            CHECK_OK(hpc_send(r->context, 0, 1, word, 2, HPC_U64, -1));
            recv_from(r, 0, HPC_ANY, at, n, seed_of(0, r->rank, i));
        }
    }
    free(at);
}

static void to_itself(rank *r) {
    char *out = buffer(MOST), *in = buffer(MOST);
    hpc_request *got;
    ranks_fill(out, MOST, seed_of(r->rank, r->rank, 0));
    send_to(r, r->rank, 0, out, 1000);
    recv_from(r, r->rank, 0, in, 1000, seed_of(r->rank, r->rank, 0));
    CHECK_OK(hpc_recv_start(r->context, r->rank, 3, in, MOST, HPC_U8, &got));
    send_to(r, r->rank, 3, out, MOST);
    CHECK_OK(hpc_request_wait(got, -1));
    check_bytes(r, in, MOST, seed_of(r->rank, r->rank, 0));
    hpc_request_free(got);
    free(in), free(out);
}

/* A long message and more short ones than there are slots stay open over collectives, which do not wait for them. */
static void beside_collectives(rank *r) {
    enum { N = 10, COUNT = 50000 };
    static int64_t sums[RANKS_MAX][COUNT];
    int64_t *x = sums[r->rank];
    char *at[N];
    hpc_request *requests[N];
    const int peer = r->rank ^ 1;
    for (int i = 0; i < N; i++) {
        const size_t n = i == 0 ? LONG : 2000;
        at[i] = buffer(n);
        if (r->rank % 2 == 0) ranks_fill(at[i], n, seed_of(r->rank, peer, i));
        if (r->rank % 2 == 0) CHECK_OK(hpc_send_start(r->context, peer, i, at[i], n, HPC_U8, &requests[i]));
    }
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < COUNT; i++) x[i] = r->rank + i;
        hpc_collective_call c = call_of(HPC_ALLREDUCE, x, x, COUNT);
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        for (int i = 0; i < COUNT; i++) CHECK_EQ(x[i], (int64_t)r->size * i + r->size * (r->size - 1) / 2);
    }
    for (int i = 0; i < N; i++) {
        if (r->rank % 2 == 0) {
            CHECK_OK(hpc_request_wait(requests[i], -1));
            hpc_request_free(requests[i]);
        } else {
            recv_from(r, peer, i, at[i], i == 0 ? LONG : 2000, seed_of(peer, r->rank, i));
        }
        free(at[i]);
    }
}

/* Started calls end while this rank waits for a signal, in no call of theirs. */
static void goes_on_elsewhere(rank *r) {
    enum { COUNT = 200000 };
    hpc_window *window;
    hpc_request *sum, *message;
    int64_t *x = malloc(COUNT * sizeof *x);
    char *at = buffer(LONG);
    CHECK(x != NULL);
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &window));
    for (int i = 0; i < COUNT; i++) x[i] = r->rank + i;
    ranks_fill(at, LONG, seed_of(0, 1, 0));
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x, x, COUNT);
    if (r->rank == 0) {
        CHECK_OK(hpc_collective_start(r->context, &c, &sum));
        CHECK_OK(hpc_send_start(r->context, 1, 0, at, LONG, HPC_U8, &message));
        CHECK_OK(hpc_wait_signal(window, 0, 1, 1, -1, NULL));
        CHECK_OK(hpc_request_test(sum)); /* they ended during the wait */
        CHECK_OK(hpc_request_test(message));
        hpc_request_free(sum), hpc_request_free(message);
    } else {
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        recv_from(r, 0, 0, at, LONG, seed_of(0, 1, 0));
        CHECK_OK(hpc_put_signal(NULL, window, 0, NULL, 0, 0, 0, 1));
    }
    for (int i = 0; i < COUNT; i++) CHECK_EQ(x[i], 2 * (int64_t)i + 1);
    rank_meet(r);
    hpc_window_free(window);
    free(x), free(at);
}

/* The threads of an exchange go on with started calls while the trainer computes, in no call of hpcomm. */
static void goes_on_in_cores(rank *r) {
    enum { COUNT = 200000 };
    hpc_exchange *e;
    hpc_request *sum;
    int64_t *x = malloc(COUNT * sizeof *x);
    job j;
    CHECK(x != NULL);
    job_init(&j, r);
    j.progress = HPC_PROGRESS_THREAD;
    e = job_open(r, &j);
    for (int i = 0; i < COUNT; i++) x[i] = r->rank + i;
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x, x, COUNT);
    if (r->rank == 0) {
        CHECK_OK(hpc_collective_start(r->context, &c, &sum));
        rank_await(r, ENDED, 1);
        CHECK_OK(hpc_request_wait(sum, -1));
        hpc_request_free(sum);
    } else {
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        rank_set(r, ENDED, 1);
    }
    for (int i = 0; i < COUNT; i++) CHECK_EQ(x[i], 2 * (int64_t)i + 1);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    free(x);
}

/* Short messages that no recv asks for yet hold up neither collectives nor other waits, with more ranks than are looked
 * at first. */
static void short_ones_first(rank *r) {
    enum { N = 6 };
    char at[N][50];
    int64_t x[4] = {0};
    hpc_window *window;
    const int last = r->size - 1;
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &window));
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x, x, 4);
    if (r->rank == 0) {
        hpc_request *other;
        CHECK_OK(hpc_recv_start(r->context, last, 99, at[0], 50, HPC_U8, &other));
        CHECK_OK(hpc_wait_signal(window, 0, 1, 1, -1, NULL));
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        for (int i = N - 1; i >= 0; i--) recv_from(r, 1, i, at[1], 50, seed_of(1, 0, i));
        CHECK_OK(hpc_request_wait(other, -1));
        hpc_request_free(other);
    } else {
        for (int i = 0; i < N && r->rank == 1; i++) {
            ranks_fill(at[i], 50, seed_of(1, 0, i));
            send_to(r, 0, i, at[i], 50);
        }
        if (r->rank == 1) CHECK_OK(hpc_put_signal(NULL, window, 0, NULL, 0, 0, 0, 1));
        CHECK_OK(hpc_collective_run(r->context, &c, -1));
        if (r->rank == last) send_to(r, 0, 99, at[0], 50);
    }
    rank_meet(r);
    hpc_window_free(window);
}

/* ---- what does not fit ---- */

/* arg: the length of the sent message. The error names both, and the context goes on. */
static void misfit(rank *r) {
    const uint64_t n = (uint64_t)r->arg;
    char *at = buffer(n * 4);
    memset(at, 0, n * 4);
    for (int i = 0; i < 3; i++) {
        const int type = i == 1 ? HPC_F32 : HPC_U8;
        const uint64_t count = i == 0 ? n - 1 : n;
        if (r->rank == 0) {
            const int status = hpc_send(r->context, 1, 4, at, n, HPC_U8, -1);
            CHECK(status == (i == 2 || n <= 65536 ? HPC_OK : HPC_ERR_CONFIG) || (n == 65536 && i < 2));
            if (status != HPC_OK) CHECK_MESSAGE("expects");
        } else {
            CHECK_STATUS(hpc_recv(r->context, 0, 4, at, count, type, NULL, -1), i == 2 ? HPC_OK : HPC_ERR_CONFIG);
            if (i < 2) CHECK_MESSAGE("rank 0 sends");
            if (i < 2) CHECK_MESSAGE("uint8 to rank 1 (tag 4), which expects");
        }
    }
    CHECK_STATUS(hpc_send(r->context, r->size, 0, at, 1, HPC_U8, -1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_send(r->context, HPC_ANY, 0, at, 1, HPC_U8, -1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_send(r->context, 0, -1, at, 1, HPC_U8, -1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_recv(r->context, 0, -2, at, 1, HPC_U8, NULL, -1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_recv(r->context, 0, 0, NULL, 1, HPC_U8, NULL, -1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_recv(r->context, 0, 0, at, 1, 99, NULL, -1), HPC_ERR_INVALID);
    free(at);
}

static void overlapping(rank *r) {
    char at[64] = {0};
    hpc_request *first, *second, *third;
    CHECK_OK(hpc_recv_start(r->context, r->rank, 0, at, 32, HPC_U8, &first));
    CHECK_STATUS(hpc_recv_start(r->context, r->rank, 1, at + 31, 8, HPC_U8, &second), HPC_ERR_INVALID);
    CHECK_MESSAGE("its memory overlaps that of a started recv");
    CHECK_STATUS(hpc_send(r->context, r->rank, 1, at, 1, HPC_U8, -1), HPC_ERR_INVALID);
    CHECK_OK(hpc_send_start(r->context, r->rank, 0, at + 32, 32, HPC_U8, &second));
    CHECK_OK(hpc_send_start(r->context, r->rank, 5, at + 40, 8, HPC_U8, &third)); /* both only read */
    CHECK_OK(hpc_request_wait(first, -1));
    CHECK_OK(hpc_request_wait(second, -1));
    hpc_request_free(first), hpc_request_free(second), hpc_request_free(third);
    CHECK_OK(hpc_recv_start(r->context, r->rank, 9, at, 32, HPC_U8, &first));
    CHECK_OK(hpc_send(r->context, r->rank, 8, at + 5, 0, HPC_U8, -1)); /* nothing lies there */
    hpc_request_free(first);
}

/* ---- given up ---- */

/* Sends and recvs are over when they end, fail or are given up, in whatever order. */
static void counted(rank *r) {
    enum { N = 6 };
    char at[N][64] = {{0}};
    hpc_request *requests[N], *other;
    send_to(r, r->rank, 0, at[0], 8);
    CHECK_EQ(going(r), 0);
    for (int i = 0; i < N; i++) {
        CHECK_OK(hpc_recv_start(r->context, i % 2 ? HPC_ANY : 1, 5 + i, at[i], 64, HPC_U8, &requests[i]));
        CHECK_STATUS(hpc_recv_start(r->context, 1, 1, at[i], 8, HPC_U8, &other), HPC_ERR_INVALID);
        CHECK_EQ(going(r), i + 1);
    }
    CHECK_OK(hpc_send(r->context, r->rank, 5 + 3, at[0], 0, HPC_U8, -1));
    CHECK_STATUS(hpc_request_wait(requests[3], -1), HPC_ERR_CONFIG);
    CHECK_EQ(going(r), N - 1);
    hpc_request_free(requests[3]);
    CHECK_EQ(going(r), N - 1);
    hpc_request_free(requests[5]);
    hpc_request_free(requests[2]);
    CHECK_EQ(going(r), N - 3);
    hpc_request_free(requests[0]);
    hpc_request_free(requests[1]);
    hpc_request_free(requests[4]);
    CHECK_EQ(going(r), 0);
}

/* A send and a recv that time out and are given up harm no later message. arg: the length. */
static void given_up(rank *r) {
    const size_t n = (size_t)r->arg;
    char *at = buffer(n);
    hpc_request *request;
    ranks_fill(at, n, 1);
    send_to(r, r->rank ^ 1, 0, at, 10);
    recv_from(r, r->rank ^ 1, 0, at, 10, 1);
    CHECK_STATUS(hpc_recv(r->context, r->rank ^ 1, 9, at, n, HPC_U8, NULL, ranks_patience(0.05)), HPC_ERR_TIMEOUT);
    CHECK(ranks_error_waits_for(r->rank ^ 1));
    if (r->rank == 0) {
        CHECK_OK(hpc_send_start(r->context, 1, 1, at, n, HPC_U8, &request));
        rank_meet(r);
        hpc_request_free(request);
        memset(at, 9, n);
    } else {
        rank_meet(r);
    }
    rank_meet(r);
    if (r->rank == 1) {
        CHECK_STATUS(hpc_recv(r->context, 0, 1, at, n, HPC_U8, NULL, ranks_patience(10)), HPC_ERR_CONFIG);
        CHECK_MESSAGE("rank 0 has given up its send (tag 1)");
    }
    ranks_fill(at, n, 2);
    if (r->rank == 0) CHECK_OK(hpc_send_start(r->context, 1, 1, at, n, HPC_U8, &request));
    if (r->rank == 1) recv_from(r, 0, 1, at, n, 2);
    if (r->rank == 0) CHECK_OK(hpc_request_wait(request, -1));
    if (r->rank == 0) hpc_request_free(request);
    free(at);
}

/* A send that is given up answers its receiver although its rank makes no further call of messages. */
static void given_up_silently(rank *r) {
    char *at = buffer(LONG);
    hpc_window *window;
    hpc_request *request;
    ranks_fill(at, LONG, 1);
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &window));
    send_to(r, r->rank ^ 1, 0, at, 10); /* so the offer goes out at once */
    recv_from(r, r->rank ^ 1, 0, at, 10, 1);
    if (r->rank == 0) {
        CHECK_OK(hpc_send_start(r->context, 1, 1, at, LONG, HPC_U8, &request));
        hpc_request_free(request);
        rank_meet(r);
        CHECK_OK(hpc_wait_signal(window, 0, 1, 1, -1, NULL));
    } else {
        rank_meet(r);
        CHECK_STATUS(hpc_recv(r->context, 0, 1, at, LONG, HPC_U8, NULL, ranks_patience(10)), HPC_ERR_CONFIG);
        CHECK_MESSAGE("rank 0 has given up its send (tag 1)");
        CHECK_OK(hpc_put_signal(NULL, window, 0, NULL, 0, 0, 0, 1));
    }
    rank_meet(r);
    hpc_window_free(window);
    free(at);
}

/* A collective that is given up while its array is lent: a rank that reads later gets no torn bytes. */
static void lender_gives_up(rank *r) {
    enum { COUNT = 100000 };
    int64_t *x = malloc(COUNT * sizeof *x);
    CHECK(x != NULL);
    hpc_collective_call c = call_of(HPC_ALLREDUCE, x, x, 1);
    c.what = HPC_BROADCAST;
    for (int i = 0; i < 2; i++) CHECK_OK(hpc_collective_run(r->context, &c, -1));
    rank_meet(r);
    c.count = COUNT;
    for (int i = 0; i < COUNT; i++) x[i] = 7;
    if (r->rank == 0) {
        const int status = hpc_collective_run(r->context, &c, ranks_patience(0.05));
        memset(x, 0, COUNT * sizeof *x);
        CHECK(status == HPC_OK || status == HPC_ERR_TIMEOUT);
        rank_set(r, ENDED, status == HPC_OK ? 1 : 2);
    } else {
        const uint64_t ended = rank_await(r, ENDED, 1);
        const int status = hpc_collective_run(r->context, &c, ranks_patience(3));
        CHECK(ended == 1 ? status == HPC_OK : status == HPC_ERR_CONFIG || status == HPC_ERR_TIMEOUT);
        for (int i = 0; i < COUNT && status == HPC_OK; i++) CHECK_EQ(x[i], 7);
    }
    rank_meet(r);
    free(x);
}

/* ---- leavings ---- */

/* arg: what the living do when the victim dies. */
static void dies(rank *r) {
    enum { SENDS_LONG, SENDS_MANY, RECEIVES, RECEIVES_ANY };
    char *at = buffer(MOST);
    ranks_fill(at, MOST, 1);
    if (r->rank == VICTIM) {
        hpc_request *request = NULL;
        recv_from(r, 0, 0, at, 10, 1);
        if (r->arg == RECEIVES) { /* dies while its message is offered */
            CHECK_OK(hpc_send_start(r->context, 0, 1, at, MOST, HPC_U8, &request));
        }
        rank_set(r, READY, 1);
        rank_die(r);
        hpc_request_free(request);
        free(at);
        return;
    }
    int status = HPC_OK;
    if (r->rank == 0) send_to(r, VICTIM, 0, at, 10);
    rank_await(r, READY, 1);
    if (r->arg == SENDS_LONG) status = hpc_send(r->context, VICTIM, 1, at, MOST, HPC_U8, -1);
    for (int i = 0; i < 100000 && r->arg == SENDS_MANY && status == HPC_OK; i++)
        status = hpc_send(r->context, VICTIM, 1, at, 10, HPC_U8, -1);
    /* Bytes that were read before the death are a message. */
    while (r->arg == RECEIVES && status == HPC_OK) status = hpc_recv(r->context, VICTIM, 1, at, MOST, HPC_U8, NULL, -1);
    if (r->arg == RECEIVES_ANY) status = hpc_recv(r->context, HPC_ANY, 1, at, MOST, HPC_U8, NULL, -1);
    CHECK_STATUS(status, HPC_ERR_PEER);
    CHECK(ranks_error_names(VICTIM));
    free(at);
}

static void stops(rank *r) {
    char *at = buffer(MOST);
    ranks_fill(at, MOST, 1);
    if (r->rank == VICTIM) {
        recv_from(r, 0, 0, at, 10, 1);
        rank_set(r, PID, (uint64_t)getpid());
        raise(SIGSTOP);
        return;
    }
    send_to(r, VICTIM, 0, at, 10);
    const pid_t victim = (pid_t)rank_await(r, PID, 1);
    while (!hpc_host_is_stopped("", victim)) sched_yield();
    for (int i = 0; i < 3; i++) {
        const int status = i == 0   ? hpc_send(r->context, VICTIM, 1, at, MOST, HPC_U8, ranks_patience(0.5))
                           : i == 1 ? hpc_recv(r->context, VICTIM, 1, at, MOST, HPC_U8, NULL, ranks_patience(0.5))
                                    : hpc_recv(r->context, HPC_ANY, 1, at, MOST, HPC_U8, NULL, ranks_patience(0.5));
        CHECK_STATUS(status, HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(VICTIM));
    }
    CHECK_EQ(kill(victim, SIGKILL), 0);
    free(at);
}

/* A rank leaves after its messages: the last of them are received. */
static void leaves(rank *r) {
    char *at = buffer(MOST);
    ranks_fill(at, MOST, 1);
    if (r->rank == VICTIM) {
        for (int i = 0; i < 2; i++) send_to(r, 0, i, at, 1000);
        send_to(r, 0, 2, at, MOST);
        send_to(r, 0, 3, at, 500);
        CHECK_OK(hpc_context_close(r->context));
        rank_set(r, ENDED, 1);
    } else {
        recv_from(r, VICTIM, 2, at, MOST, 1);
        rank_await(r, ENDED, 1);
        for (int i = 0; i < 2; i++) recv_from(r, VICTIM, i, at, 1000, 1);
        recv_from(r, HPC_ANY, 3, at, 500, 1);
        hpc_request *request;
        int status = HPC_IN_PROGRESS;
        CHECK_OK(hpc_recv_start(r->context, HPC_ANY, 3, at, 500, HPC_U8, &request));
        while (status == HPC_IN_PROGRESS) status = hpc_request_test(request);
        CHECK_STATUS(status, HPC_ERR_PEER);
        hpc_request_free(request);
        CHECK_STATUS(hpc_recv(r->context, HPC_ANY, 3, at, 500, HPC_U8, NULL, -1), HPC_ERR_PEER);
        hpc_context_abort(r->context, "the test says so");
    }
    free(at);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "ring_2", .size = 2, .run = ring},
        {.name = "ring_3", .size = 3, .run = ring},
        {.name = "ring_4_hosts", .size = 4, .run = ring, .where = RANKS_SHM, .per_host = 2},
        {.name = "out_of_order", .size = 4, .run = out_of_order},
        {.name = "in_order", .size = 2, .run = in_order},
        {.name = "from_any", .size = 4, .run = from_any},
        {.name = "to_itself", .size = 2, .run = to_itself},
        {.name = "to_itself_alone", .size = 1, .run = to_itself},
        {.name = "beside_collectives", .size = 4, .run = beside_collectives},
        {.name = "goes_on_elsewhere", .size = 2, .run = goes_on_elsewhere},
        {.name = "goes_on_in_cores", .size = 2, .run = goes_on_in_cores},
        {.name = "short_ones_first_3", .size = 3, .run = short_ones_first},
        {.name = "short_ones_first_16", .size = 16, .run = short_ones_first},
        {.name = "misfit_short", .size = 2, .run = misfit, .arg = 1000},
        {.name = "misfit_long", .size = 2, .run = misfit, .arg = LONG},
        {.name = "overlapping", .size = 2, .run = overlapping},
        {.name = "counted", .size = 2, .run = counted},
        {.name = "given_up_long", .size = 2, .run = given_up, .arg = LONG},
        {.name = "given_up_silently", .size = 2, .run = given_up_silently},
        {.name = "lender_gives_up", .size = 2, .run = lender_gives_up, .apart = true},
        {.name = "dies_sends_long", .size = 3, .run = dies, .arg = 0, .victims = 1 << VICTIM, .apart = true},
        {.name = "dies_sends_many", .size = 2, .run = dies, .arg = 1, .victims = 1 << VICTIM, .apart = true},
        {.name = "dies_receives", .size = 2, .run = dies, .arg = 2, .victims = 1 << VICTIM, .apart = true},
        {.name = "dies_receives_any", .size = 3, .run = dies, .arg = 3, .victims = 1 << VICTIM, .apart = true},
        {.name = "stops", .size = 2, .run = stops, .where = RANKS_PROCESSES, .victims = 1 << VICTIM, .apart = true},
        {.name = "leaves", .size = 2, .run = leaves, .apart = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
