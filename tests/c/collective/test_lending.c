/* Lent bytes: their receivers read them in the sender's memory. Ranks lend in every call and message that is long
 * enough, several at once, short messages between them. Senders give up, leave, die and stop while they lend. Ranks
 * that have a core each lend less. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/host.h"
#include "collective/call.h"
#include "ranks.h"

enum {
    VICTIM = 1,
    PID = 8,
    ENDED,
    READY,
    LEAST = 128 << 10,                        /* bytes that a rank lends if it shares its core */
    ALONE = 8 << 20,                          /* if it has one */
    BLOCK = ((2 << 20) + (64 << 10)) / 8 + 1, /* elements; the last letter of a result is shorter than LEAST */
    LONG = 300001,
    PIECE = 32 << 20 /* bytes that are read in one go */
};

static hpc_request *start(const rank *r, hpc_collective_call c) {
    hpc_request *request;
    CHECK_OK(hpc_collective_start(r->context, &c, &request));
    return request;
}

static void end(hpc_request *request) {
    CHECK_OK(hpc_request_wait(request, -1));
    hpc_request_free(request);
}

static hpc_collective_call rooted(int what, const void *send, void *recv, uint64_t count, int root) {
    hpc_collective_call c = call_of(what, send, recv, count);
    c.root = root;
    return c;
}

static int reads(const rank *r, int peer) {
    return peer != r->rank && r->context->mail->reads[peer];
}

static int kernel_allows_reads(const rank *r, int peer) {
    const hpc_address *a = &r->context->addresses[peer];
    char byte;
    struct iovec here = {&byte, 1}, there = {(char *)(uintptr_t)a->name_at, 1};
    return process_vm_readv((pid_t)a->control.pid, &here, 1, &there, 1, 0) == 1;
}

/* After this each rank knows which peers can read its memory. */
static void meet_first(rank *r) {
    const int peer = r->rank == 0 ? 1 : r->rank % 2 == 0 && r->per_host == 0 ? 0 : r->rank ^ 1; /* of this host */
    int64_t x = 1;
    end(start(r, rooted(HPC_ALLREDUCE, &x, &x, 1, 0)));
    CHECK_EQ(x, r->size);
    if (!kernel_allows_reads(r, peer)) ranks_skip("the kernel does not let ranks read each other's memory");
    rank_meet(r); /* no rank has failed or died before all have looked */
    CHECK(reads(r, peer));
}

/* Checks that the streams of an ended call were lent, up to their last letters, if they are long enough. */
static void check_lent(const rank *r, const hpc_request *request) {
    const hpc_moving *w = (const hpc_moving *)(const void *)request;
    for (int p = 0; p < r->size; p++) {
        const hpc_stream *s = w->out[HPC_SECOND][p].way != NULL ? &w->out[HPC_SECOND][p] : &w->out[HPC_FIRST][p];
        if (s->way == NULL) continue;
        CHECK_EQ(s->way->see == NULL, reads(r, p) && s->nbytes >= LEAST);
        if (s->way->see == NULL) CHECK_EQ(s->letters, r->context->mail->boxes[HPC_BOX_CALLS].peers[p].sent);
    }
}

/* ---- collectives ---- */

/* Element i of what rank `from` sends to rank `to`. */
static int64_t value(int from, int to, uint64_t i) {
    return (int64_t)((i * 7 + (uint64_t)from * 13 + (uint64_t)to * 29) % 101) - 50;
}

static int64_t *blocks(const rank *r, int n, int same) {
    int64_t *at = malloc((size_t)n * BLOCK * sizeof *at);
    CHECK(at != NULL);
    for (int p = 0; p < n; p++)
        for (uint64_t i = 0; i < BLOCK; i++) at[(uint64_t)p * BLOCK + i] = value(r->rank, same ? 0 : p, i);
    return at;
}

/* from: -1: the sum of all ranks. */
static void check_block(const rank *r, const char *what, const int64_t *at, int from, int to) {
    for (uint64_t i = 0; i < BLOCK; i++) {
        int64_t due = 0;
        for (int p = from < 0 ? 0 : from; p < (from < 0 ? r->size : from + 1); p++) due += value(p, to, i);
        if (at[i] == due) continue;
        fprintf(stderr, "rank %d: %s: element %llu is %lld, not %lld\n", r->rank, what, (unsigned long long)i,
                (long long)at[i], (long long)due);
        check_fail_red("wrong bytes");
    }
}

static void run(const rank *r, hpc_collective_call c) {
    hpc_request *request = start(r, c);
    CHECK_OK(hpc_request_wait(request, -1));
    check_lent(r, request);
    hpc_request_free(request);
}

static void every(rank *r) {
    const uint64_t all = BLOCK * (unsigned)r->size;
    const int root = r->size - 1, is_root = r->rank == root;
    int64_t *many = blocks(r, r->size, 0), *got = blocks(r, r->size, 1), *one = blocks(r, 1, 1);
    meet_first(r);
    run(r, rooted(HPC_ALLTOALL, many, got, BLOCK, 0));
    for (int p = 0; p < r->size; p++) check_block(r, "alltoall", got + BLOCK * (unsigned)p, p, r->rank);
    run(r, rooted(HPC_ALLGATHER, one, got, BLOCK, 0));
    for (int p = 0; p < r->size; p++) check_block(r, "allgather", got + BLOCK * (unsigned)p, p, 0);
    run(r, rooted(HPC_ALLREDUCE, many, got, all, 0));
    for (int p = 0; p < r->size; p++) check_block(r, "allreduce", got + BLOCK * (unsigned)p, -1, p);
    memcpy(got, many, all * sizeof *got);
    run(r, rooted(HPC_ALLREDUCE, got, got, all, 0));
    for (int p = 0; p < r->size; p++) check_block(r, "allreduce", got + BLOCK * (unsigned)p, -1, p);
    run(r, rooted(HPC_REDUCE, many, is_root ? got : NULL, all, root));
    for (int p = 0; p < r->size && is_root; p++) check_block(r, "reduce", got + BLOCK * (unsigned)p, -1, p);
    run(r, rooted(HPC_GATHER, one, is_root ? got : NULL, BLOCK, root));
    for (int p = 0; p < r->size && is_root; p++) check_block(r, "gather", got + BLOCK * (unsigned)p, p, 0);
    run(r, rooted(HPC_SCATTER, is_root ? many : NULL, one, BLOCK, root));
    check_block(r, "scatter", one, root, r->rank);
    run(r, rooted(HPC_REDUCE_SCATTER, many, one, BLOCK, 0));
    check_block(r, "reduce_scatter", one, -1, r->rank);
    for (uint64_t i = 0; i < BLOCK; i++) one[i] = value(r->rank, 5, i);
    run(r, rooted(HPC_BROADCAST, NULL, one, BLOCK, 0));
    check_block(r, "broadcast", one, 0, 5);
    free(many), free(got), free(one);
}

/* Several calls lend at once to the ranks that are behind. */
static void several(rank *r) {
    enum { CALLS = 5 };
    int64_t *at[CALLS];
    hpc_request *requests[CALLS];
    meet_first(r);
    for (int i = 0; i < CALLS; i++) {
        at[i] = blocks(r, 1, 1);
        requests[i] = start(r, rooted(i % 2 ? HPC_ALLREDUCE : HPC_BROADCAST, at[i], at[i], BLOCK, i % r->size));
    }
    for (int i = CALLS - 1; i >= 0; i--) {
        CHECK_OK(hpc_request_wait(requests[i], -1));
        check_block(r, "a started call", at[i], i % 2 ? -1 : i % r->size, 0);
        if (i == CALLS - 1) check_lent(r, requests[i]);
        hpc_request_free(requests[i]);
        free(at[i]);
    }
}

/* ---- messages ---- */

static char *buffer(size_t n, uint64_t seed) {
    char *at = malloc(n + 1);
    CHECK(at != NULL);
    ranks_fill(at, n, seed);
    return at;
}

static void check_bytes(const rank *r, const char *at, size_t n, uint64_t seed) {
    const size_t wrong = ranks_first_wrong(at, n, seed);
    if (wrong == n) return;
    fprintf(stderr, "rank %d: byte %zu of %zu is wrong\n", r->rank, wrong, n);
    check_fail_red("wrong bytes");
}

static hpc_request *start_send(const rank *r, int to, int tag, const char *at, size_t n) {
    hpc_request *request;
    CHECK_OK(hpc_send_start(r->context, to, tag, at, n, HPC_U8, &request));
    return request;
}

static hpc_request *start_recv(const rank *r, int from, int tag, char *at, size_t n) {
    hpc_request *request;
    memset(at, 0, n);
    CHECK_OK(hpc_recv_start(r->context, from, tag, at, n, HPC_U8, &request));
    return request;
}

static void receive(const rank *r, int from, int tag, char *at, size_t n, uint64_t seed) {
    end(start_recv(r, from, tag, at, n));
    check_bytes(r, at, n, seed);
}

/* Each rank sends to the next one, which receives when the message is lent. */
static void ring(rank *r) {
    static const size_t lengths[] = {8, LEAST - 1, LEAST, LEAST + 1, 100, LONG, PIECE + 77, 0, LEAST};
    const int next = (r->rank + 1) % r->size, last = (r->rank + r->size - 1) % r->size;
    meet_first(r);
    for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++) {
        const size_t n = lengths[i];
        char *out = buffer(n, (uint64_t)(r->rank * 100 + i)), *in = buffer(n, 7);
        hpc_request *sent = start_send(r, next, i, out, n);
        CHECK_EQ(sent->lease != NULL, n >= LEAST);
        rank_meet(r);
        receive(r, last, i, in, n, (uint64_t)(last * 100 + i));
        end(sent);
        free(out), free(in);
        rank_meet(r); /* so the next letter has room */
    }
}

/* Messages of one tag keep their order, short ones between lent ones. */
static void in_order(rank *r) {
    enum { N = 12 };
    char *at[N];
    hpc_request *requests[N];
    meet_first(r);
    for (int i = 0; i < N; i++) {
        const size_t n = i % 2 ? 10 : LONG;
        at[i] = buffer(n, (uint64_t)i);
        requests[i] = r->rank == 0 ? start_send(r, 1, 7, at[i], n) : start_recv(r, i % 3 ? 0 : HPC_ANY, 7, at[i], n);
    }
    if (r->rank == 0) CHECK(requests[0]->lease != NULL || hpc_request_test(requests[0]) == HPC_OK);
    for (int i = N - 1; i >= 0; i--) {
        end(requests[i]);
        if (r->rank == 1) check_bytes(r, at[i], i % 2 ? 10 : LONG, (uint64_t)i);
        free(at[i]);
    }
}

/* More messages are offered than there are leases: the last ones are not lent. They are received from the last to the
 * first. */
static void many(rank *r) {
    enum { N = HPC_MAIL_LEASES + 6, DONE = 999 };
    char *at[N], byte = 0;
    hpc_request *requests[N];
    meet_first(r);
    const hpc_box *box = &r->context->mail->boxes[HPC_BOX_MESSAGES];
    if (r->rank == 0) {
        for (int i = 0; i < N; i++) {
            at[i] = buffer(LEAST, (uint64_t)i);
            requests[i] = start_send(r, 1, i, at[i], LEAST);
        }
        while (box->peers[1].sent < N) CHECK_STATUS(hpc_request_test(requests[N - 1]), HPC_IN_PROGRESS);
        for (int i = 0; i < N; i++) CHECK_EQ(requests[i]->lease != NULL, i < HPC_MAIL_LEASES);
        for (int i = 1; i < HPC_MAIL_LEASES; i++) CHECK(requests[i]->lease != requests[i - 1]->lease);
        end(start_send(r, 1, DONE, &byte, 1));
        for (int i = 0; i < N; i++) end(requests[i]), free(at[i]);
        for (int i = 0; i < HPC_MAIL_LEASES; i++) CHECK_EQ(atomic_load(&box->leases[i]), 0);
    } else {
        at[0] = buffer(LEAST, 0);
        end(start_recv(r, 0, DONE, &byte, 1));
        for (int i = N - 1; i >= 0; i--) receive(r, 0, i, at[0], LEAST, (uint64_t)i);
        free(at[0]);
    }
}

/* A recv of another length refuses a lent message, and the next one is received. */
static void misfit(rank *r) {
    char *at = buffer(LONG, 3);
    meet_first(r);
    for (int i = 0; i < 3; i++) {
        const int due = i == 2 ? HPC_OK : HPC_ERR_CONFIG;
        if (r->rank == 0) CHECK_STATUS(hpc_send(r->context, 1, 4, at, LONG, HPC_U8, -1), due);
        if (r->rank == 1) CHECK_STATUS(hpc_recv(r->context, 0, 4, at, LONG - 2 + i, HPC_U8, NULL, -1), due);
        if (i < 2) CHECK_MESSAGE("which expects");
    }
    free(at);
}

/* ---- given up ---- */

static void pause_for(double seconds) {
    nanosleep(&(struct timespec){0, (long)(1e9 * seconds)}, NULL);
}

/* A lent message is given up before its receiver asks for it. arg: its send has timed out. */
static void given_up(rank *r) {
    char *at = buffer(LONG, 1);
    meet_first(r);
    if (r->rank == 0 && r->arg) {
        CHECK_STATUS(hpc_send(r->context, 1, 1, at, LONG, HPC_U8, ranks_patience(0.05)), HPC_ERR_TIMEOUT);
    } else if (r->rank == 0) {
        hpc_request *sent = start_send(r, 1, 1, at, LONG);
        CHECK(sent->lease != NULL);
        hpc_request_free(sent);
    }
    if (r->rank == 0) memset(at, 9, LONG);
    rank_meet(r);
    if (r->rank == 1) {
        CHECK_STATUS(hpc_recv(r->context, 0, 1, at, LONG, HPC_U8, NULL, ranks_patience(10)), HPC_ERR_CONFIG);
        CHECK_MESSAGE("rank 0 has given up its send (tag 1)");
        receive(r, 0, 1, at, LONG, 2);
    } else {
        ranks_fill(at, LONG, 2);
        end(start_send(r, 1, 1, at, LONG));
    }
    free(at);
}

/* A lent message is given up while its receiver reads: what it gets is whole, or it fails. */
static void given_up_meanwhile(rank *r) {
    char *at = buffer(PIECE, 0);
    uint64_t state = 1;
    meet_first(r);
    for (uint64_t i = 0; i < 6; i++) {
        const double later = 1e-3 * (double)(ranks_random(&state) % 5);
        if (r->rank == 0) {
            ranks_fill(at, PIECE, i);
            hpc_request *sent = start_send(r, 1, 1, at, PIECE);
            CHECK(sent->lease != NULL);
            rank_meet(r);
            rank_await(r, READY, i + 1);
            pause_for(later);
            hpc_request_free(sent);
            at[PIECE - 1] ^= 1;
        } else {
            memset(at, 0, PIECE);
            rank_meet(r);
            rank_set(r, READY, i + 1);
            const int status = hpc_recv(r->context, 0, 1, at, PIECE, HPC_U8, NULL, -1);
            if (status == HPC_OK) check_bytes(r, at, PIECE, i);
            if (status != HPC_OK) CHECK_STATUS(status, HPC_ERR_CONFIG);
            if (status != HPC_OK) CHECK_MESSAGE("rank 0 has given up its send");
        }
        rank_meet(r);
    }
    free(at);
}

/* A collective is given up while its array is lent. arg: which call. */
static void call_given_up(rank *r) {
    int64_t *at = blocks(r, r->size, 0), *got = blocks(r, r->size, 0);
    meet_first(r);
    const hpc_collective_call c = rooted(r->arg, at, r->arg == HPC_BROADCAST ? at : got, BLOCK, 0);
    if (r->rank == 0) {
        hpc_request *request = start(r, c);
        CHECK(request->lease != NULL);
        hpc_request_free(request);
        memset(at, 9, BLOCK * sizeof *at);
    }
    rank_meet(r);
    if (r->rank != 0) {
        CHECK_STATUS(hpc_collective_run(r->context, &c, ranks_patience(10)), HPC_ERR_CONFIG);
        CHECK_MESSAGE("rank 0 has given up its");
        CHECK_MESSAGE("had read all of its elements");
    }
    rank_meet(r);
    free(at), free(got);
}

/* ---- leavings ---- */

/* A lender leaves before its message is read. */
static void leaves(rank *r) {
    char *at = buffer(LONG, 1);
    meet_first(r);
    if (r->rank == VICTIM) {
        hpc_request *sent = start_send(r, 0, 1, at, LONG);
        CHECK(sent->lease != NULL);
        rank_meet(r);
        hpc_context_free(r->context);
        r->context = NULL;
        memset(at, 9, LONG);
        rank_set(r, ENDED, 1);
        CHECK_STATUS(hpc_request_wait(sent, -1), HPC_ERR_INVALID);
        hpc_request_free(sent);
    } else {
        rank_meet(r);
        rank_await(r, ENDED, 1);
        CHECK_STATUS(hpc_recv(r->context, VICTIM, 1, at, LONG, HPC_U8, NULL, -1), HPC_ERR_PEER);
        CHECK(ranks_error_names(VICTIM));
        hpc_context_abort(r->context, "the test says so");
    }
    free(at);
}

/* A lender dies. arg: before its message, its block of a gather, or its part of an allreduce is read, or while the
 * message is. */
static void dies(rank *r) {
    enum { MESSAGE, GATHER, REDUCED, MEANWHILE };
    char *at = buffer(PIECE, 1), *got = buffer(PIECE, 2);
    hpc_collective_call c = rooted(r->arg == GATHER ? HPC_GATHER : HPC_ALLREDUCE, at, got, BLOCK, 0);
    const int is_message = r->arg == MESSAGE || r->arg == MEANWHILE;
    meet_first(r);
    if (r->rank == VICTIM) {
        hpc_request *request = is_message ? start_send(r, 0, 1, at, PIECE) : start(r, c);
        rank_set(r, READY, request->lease != NULL ? 2 : 1);
        rank_meet(r);
        if (r->arg == MEANWHILE) pause_for(2e-3);
        rank_die(r);
        rank_set(r, ENDED, 1);
        hpc_request_free(request); /* of a thread */
    } else {
        rank_meet(r);
        CHECK_EQ(rank_await(r, READY, 1), 2);
        if (r->arg != MEANWHILE && r->mode->threads) rank_await(r, ENDED, 1);
        if (r->arg != MEANWHILE && !r->mode->threads) pause_for(0.02);
        int status = is_message && r->rank == 0 ? hpc_recv(r->context, VICTIM, 1, got, PIECE, HPC_U8, NULL, -1)
                     : is_message               ? hpc_barrier(r->context, -1)
                                                : hpc_collective_run(r->context, &c, -1);
        if (r->arg == MEANWHILE && status == HPC_OK) { /* it was read in time */
            check_bytes(r, got, PIECE, 1);
            status = hpc_barrier(r->context, -1);
        }
        CHECK_STATUS(status, HPC_ERR_PEER);
        CHECK(ranks_error_names(VICTIM));
    }
    free(at), free(got);
}

/* A stopped lender is read. Only the next message waits for it. */
static void stops(rank *r) {
    char *at = buffer(LONG, 1);
    meet_first(r);
    if (r->rank == VICTIM) {
        hpc_request *sent = start_send(r, 0, 1, at, LONG);
        CHECK(sent->lease != NULL);
        rank_set(r, PID, (uint64_t)getpid());
        raise(SIGSTOP);
        end(sent);
        ranks_fill(at, LONG, 2);
        end(start_send(r, 0, 2, at, LONG));
    } else {
        const pid_t victim = (pid_t)rank_await(r, PID, 1);
        while (!hpc_host_is_stopped("", victim)) sched_yield();
        receive(r, VICTIM, 1, at, LONG, 1);
        CHECK_STATUS(hpc_recv(r->context, VICTIM, 2, at, LONG, HPC_U8, NULL, ranks_patience(0.3)), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(VICTIM));
        CHECK_EQ(kill(victim, SIGCONT), 0);
        receive(r, VICTIM, 2, at, LONG, 2);
    }
    free(at);
}

/* ---- ranks with a core each ---- */

/* They lend from ALONE on, and only where one of two ranks sends. */
static void cores(rank *r) {
    r->config.spin = 50e-6;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    char *at = buffer(2 * ALONE, 1), *got = buffer(2 * ALONE, 2);
    meet_first(r);
    for (int n = ALONE - 1; n <= ALONE; n++) {
        hpc_request *sent = r->rank == 0 ? start_send(r, 1, 1, at, (size_t)n) : NULL;
        if (r->rank == 0) CHECK_EQ(sent->lease != NULL, n == ALONE);
        rank_meet(r);
        if (r->rank == 1) receive(r, 0, 1, got, (size_t)n, 1);
        if (r->rank == 0) end(sent);
        rank_meet(r); /* so the next letter has room */
    }
    for (int i = 0; i < 2; i++) {
        hpc_request *request =
            start(r, rooted(i == 0 ? HPC_ALLREDUCE : HPC_GATHER, at, got, (i == 0 ? 2 : 1) * ALONE / 8, 0));
        CHECK_OK(hpc_request_wait(request, -1));
        const hpc_moving *w = (const hpc_moving *)(const void *)request;
        const hpc_stream *first = &w->out[HPC_FIRST][r->rank ^ 1];
        if (i == 0 || r->rank == 1) CHECK_EQ(first->way->see == NULL, i == 1);
        hpc_request_free(request);
    }
    free(at), free(got);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "every_2", .size = 2, .run = every, .where = RANKS_SHM, .shares_core = true},
        {.name = "every_3", .size = 3, .run = every, .where = RANKS_SHM, .shares_core = true},
        {.name = "every_4_hosts", .size = 4, .run = every, .where = RANKS_SHM, .per_host = 2, .shares_core = true},
        {.name = "several_2", .size = 2, .run = several, .where = RANKS_SHM, .shares_core = true},
        {.name = "several_3", .size = 3, .run = several, .where = RANKS_SHM, .shares_core = true},
        {.name = "ring_2", .size = 2, .run = ring, .where = RANKS_SHM, .shares_core = true},
        {.name = "ring_3", .size = 3, .run = ring, .where = RANKS_SHM, .shares_core = true},
        {.name = "in_order", .size = 2, .run = in_order, .where = RANKS_SHM, .shares_core = true},
        {.name = "many", .size = 2, .run = many, .where = RANKS_SHM, .shares_core = true},
        {.name = "misfit", .size = 2, .run = misfit, .where = RANKS_SHM, .shares_core = true},
        {.name = "given_up", .size = 2, .run = given_up, .where = RANKS_SHM, .shares_core = true},
        {.name = "timed_out", .size = 2, .run = given_up, .arg = 1, .where = RANKS_SHM, .shares_core = true},
        {.name = "given_up_meanwhile", .size = 2, .run = given_up_meanwhile, .where = RANKS_SHM, .shares_core = true},
        {.name = "broadcast_given_up",
         .size = 2,
         .run = call_given_up,
         .arg = HPC_BROADCAST,
         .where = RANKS_SHM,
         .shares_core = true},
        {.name = "reduce_scatter_given_up",
         .size = 2,
         .run = call_given_up,
         .arg = HPC_REDUCE_SCATTER,
         .where = RANKS_SHM,
         .shares_core = true},
        {.name = "leaves", .size = 2, .run = leaves, .where = RANKS_SHM, .apart = true, .shares_core = true},
        {.name = "dies_message",
         .size = 3,
         .run = dies,
         .arg = 0,
         .where = RANKS_SHM,
         .victims = 1 << VICTIM,
         .apart = true,
         .shares_core = true},
        {.name = "dies_gather",
         .size = 2,
         .run = dies,
         .arg = 1,
         .where = RANKS_SHM,
         .victims = 1 << VICTIM,
         .apart = true,
         .shares_core = true},
        {.name = "dies_allreduce",
         .size = 3,
         .run = dies,
         .arg = 2,
         .where = RANKS_SHM,
         .victims = 1 << VICTIM,
         .apart = true,
         .shares_core = true},
        {.name = "dies_meanwhile",
         .size = 2,
         .run = dies,
         .arg = 3,
         .where = RANKS_SHM,
         .victims = 1 << VICTIM,
         .apart = true,
         .shares_core = true},
        {.name = "stops", .size = 2, .run = stops, .where = RANKS_SHM | RANKS_PROCESSES, .shares_core = true},
        {.name = "cores", .size = 2, .run = cores, .where = RANKS_SHM, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
