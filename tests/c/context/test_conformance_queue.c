/* NOTIFY-ACK: updates in order and whole, none overwritten while it is held, none lost. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>

#include "ranks.h"

enum { NBYTES = 5011, LARGE = 32 << 20 };

/* arg: depth + 16 * buffers */
static hpc_queue *queue_of(rank *r, const int *in, int n_in, const int *out, int n_out, size_t nbytes) {
    hpc_queue_config c;
    hpc_queue *q = NULL;
    hpc_queue_config_init(&c);
    c.in_peers = in, c.n_in = n_in;
    c.out_peers = out, c.n_out = n_out;
    c.nbytes = nbytes, c.depth = r->arg % 16, c.buffers = r->arg / 16;
    CHECK_OK(hpc_queue_create(r->context, &c, -1, &q));
    return q;
}

static uint64_t seed_of(int from, int to, uint64_t k) {
    return k * 256 + (uint64_t)(from * 16 + to);
}

/* The source of update k: a registered buffer in turn, or the caller's own bytes. */
static unsigned char *source(rank *r, hpc_queue *q, unsigned char *own, uint64_t k) {
    int buffers = r->arg / 16;
    if (!buffers) return own;
    CHECK_OK(hpc_queue_acquire(q, (int)(k % (uint64_t)buffers), -1));
    return hpc_queue_buffer(q, (int)(k % (uint64_t)buffers));
}

static void check_update(hpc_queue *q, const void *update, int from, uint64_t seed, size_t n) {
    uint64_t header, footer;
    CHECK_EQ(ranks_first_wrong(update, n, seed), n);
    CHECK_OK(hpc_queue_versions(q, from, &header, &footer));
    CHECK_EQ(header, footer);
}

/* Each sends to the other at the same time; slots wrap round hundreds of times. */
static void both_ways(rank *r) {
    int peer = 1 - r->rank;
    uint64_t rounds = (uint64_t)ranks_rounds(500), last = 0;
    hpc_queue *q = queue_of(r, &peer, 1, &peer, 1, NBYTES);
    unsigned char *own = malloc(NBYTES);
    for (uint64_t k = 0; k < rounds; k++) {
        unsigned char *src = source(r, q, own, k);
        ranks_fill(src, NBYTES, seed_of(r->rank, peer, k));
        CHECK_OK(hpc_queue_send(q, peer, src, NBYTES, -1));
        if (src == own) memset(own, 0xcc, NBYTES); /* free to reuse on return */
        const void *update;
        uint64_t header, footer;
        CHECK_OK(hpc_queue_recv(q, peer, &update, -1));
        check_update(q, update, peer, seed_of(peer, r->rank, k), NBYTES);
        CHECK_OK(hpc_queue_versions(q, peer, &header, &footer));
        CHECK(header > last || k == 0);
        last = header;
        CHECK_OK(hpc_queue_ack(q, peer));
    }
    hpc_queue_stats stats;
    CHECK_OK(hpc_queue_get_stats(q, &stats));
    CHECK_EQ(stats.sent, rounds);
    CHECK_EQ(stats.received, rounds);
    CHECK_EQ(stats.bytes_sent, rounds * NBYTES);
    CHECK_EQ(stats.bytes_received, rounds * NBYTES);
    CHECK(stats.wait_send >= 0 && stats.wait_recv >= 0 && stats.wait_send + stats.wait_recv < 1e4);
    free(own);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_queue_free(q);
}

/* One way, as fast as it goes. The receiver holds up to depth updates and checks each when it comes and again before
 * its ack. */
static void held_while_streaming(rank *r) {
    enum { MOST = 16 };
    int depth = r->arg % 16, one = 1, zero = 0;
    uint64_t rounds = (uint64_t)ranks_rounds(800), acked = 0;
    size_t n = 999;
    hpc_queue *q = r->rank == 0 ? queue_of(r, NULL, 0, &one, 1, n) : queue_of(r, &zero, 1, NULL, 0, n);
    unsigned char own[999];
    const void *held[MOST];
    for (uint64_t k = 0; k < rounds; k++) {
        if (r->rank == 0) {
            unsigned char *src = source(r, q, own, k);
            ranks_fill(src, n, k);
            CHECK_OK(hpc_queue_send(q, 1, src, n, -1));
            continue;
        }
        CHECK_OK(hpc_queue_recv(q, 0, &held[k % MOST], -1));
        check_update(q, held[k % MOST], 0, k, n);
        while (k + 1 - acked >= (uint64_t)depth || (k + 1 == rounds && acked < rounds)) {
            CHECK_EQ(ranks_first_wrong(held[acked % MOST], n, acked), n);
            CHECK_OK(hpc_queue_ack(q, 0));
            acked++;
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_queue_free(q);
}

/* Updates that are held stay: the sender's next update waits, names whom it waits for, and goes when the oldest is
 * acknowledged. */
static void sender_waits_for_ack(rank *r) {
    int depth = r->arg % 16, buffers = r->arg / 16, peer = 1 - r->rank;
    hpc_queue *q = queue_of(r, &peer, 1, &peer, 1, NBYTES);
    unsigned char *own = malloc(NBYTES);
    const void *update[16];
    if (r->rank == 0) {
        for (int k = 0; k < depth; k++) {
            unsigned char *src = source(r, q, own, (uint64_t)k);
            ranks_fill(src, NBYTES, (uint64_t)k);
            CHECK_OK(hpc_queue_send(q, 1, src, NBYTES, -1));
        }
        rank_await(r, 0, 1); /* all are held */
        unsigned char *src = buffers > depth ? hpc_queue_buffer(q, depth) : buffers ? hpc_queue_buffer(q, 0) : own;
        for (int i = 0; i < 2; i++) {
            if (buffers <= depth && buffers)
                CHECK_STATUS(hpc_queue_acquire(q, 0, i ? 0.1 : 0), HPC_ERR_TIMEOUT);
            else
                CHECK_STATUS(hpc_queue_send(q, 1, src, NBYTES, i ? 0.1 : 0), HPC_ERR_TIMEOUT);
            CHECK(ranks_error_waits_for(1));
            CHECK_EQ(hpc_last_error()->n_waiting, 1);
        }
        rank_set(r, 0, 2);
        if (buffers) {
            for (int i = 0; i < buffers; i++) CHECK_OK(hpc_queue_acquire(q, i, -1));
        }
        ranks_fill(src, NBYTES, 77);
        CHECK_OK(hpc_queue_send(q, 1, src, NBYTES, -1));
    } else {
        for (int k = 0; k < depth; k++) CHECK_OK(hpc_queue_recv(q, 0, &update[k], -1));
        CHECK_STATUS(hpc_queue_recv(q, 0, &update[depth], 0), HPC_ERR_INVALID); /* one more than depth */
        rank_set(r, 0, 1);
        rank_await(r, 0, 2);
        for (int k = 0; k < depth; k++) {
            check_update(q, update[k], 0, (uint64_t)k, NBYTES);
            CHECK_OK(hpc_queue_ack(q, 0));
        }
        CHECK_OK(hpc_queue_recv(q, 0, &update[0], -1));
        check_update(q, update[0], 0, 77, NBYTES);
        CHECK_OK(hpc_queue_ack(q, 0));
        double start = ranks_now();
        CHECK_STATUS(hpc_queue_recv(q, 0, &update[0], 0), HPC_ERR_TIMEOUT);
        CHECK_STATUS(hpc_queue_recv(q, 0, &update[0], 0.1), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(0) && ranks_now() - start > 0.09);
    }
    free(own);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_queue_free(q);
}

/* A registered buffer that went to several is free when the last of them has acknowledged it. */
static void one_buffer_to_many(rank *r) {
    int others[] = {1, 2, 3}, zero = 0;
    uint64_t rounds = (uint64_t)ranks_rounds(150);
    hpc_queue *q = r->rank == 0 ? queue_of(r, NULL, 0, others, 3, 4096) : queue_of(r, &zero, 1, NULL, 0, 4096);
    for (uint64_t k = 0; k < rounds; k++) {
        if (r->rank == 0) {
            unsigned char *src = source(r, q, NULL, k);
            ranks_fill(src, 4096, k);
            for (int i = 0; i < 3; i++) CHECK_OK(hpc_queue_send(q, others[i], src, 4096, -1));
            continue;
        }
        const void *update;
        CHECK_OK(hpc_queue_recv(q, 0, &update, -1));
        check_update(q, update, 0, k, 4096);
        CHECK_OK(hpc_queue_ack(q, 0));
    }
    if (r->rank == 0) { /* two acknowledge, one does not: the buffer stays taken, and only that one is waited for */
        unsigned char *src = source(r, q, NULL, 0);
        for (int i = 0; i < 3; i++) CHECK_OK(hpc_queue_send(q, others[i], src, 4096, -1));
        rank_await(r, 1, 1);
        rank_await(r, 3, 1);
        double end = ranks_now() + 10;
        do CHECK_STATUS(hpc_queue_acquire(q, 0, 0.02), HPC_ERR_TIMEOUT);
        while (hpc_last_error()->n_waiting > 1 && ranks_now() < end); /* an ack may be under way */
        CHECK_EQ(hpc_last_error()->n_waiting, 1);
        CHECK(ranks_error_waits_for(2));
        rank_set(r, 0, 1);
        CHECK_OK(hpc_queue_acquire(q, 0, -1));
    } else {
        const void *update;
        CHECK_OK(hpc_queue_recv(q, 0, &update, -1));
        if (r->rank == 2) rank_await(r, 0, 1);
        CHECK_OK(hpc_queue_ack(q, 0));
        rank_set(r, r->rank, 1);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_queue_free(q);
}

/* Several queues at once, over the same edges, do not see each other. */
static void queues_apart(rank *r) {
    int peer = 1 - r->rank;
    hpc_queue *q[3];
    for (int i = 0; i < 3; i++) q[i] = queue_of(r, &peer, 1, &peer, 1, 64 + (size_t)i);
    for (uint64_t k = 0; k < 200; k++) {
        unsigned char src[66];
        for (int i = 0; i < 3; i++) {
            ranks_fill(src, 64 + (size_t)i, k * 4 + (uint64_t)i);
            CHECK_OK(hpc_queue_send(q[i], peer, src, 64 + (size_t)i, -1));
        }
        for (int i = 2; i >= 0; i--) {
            const void *update;
            CHECK_OK(hpc_queue_recv(q[i], peer, &update, -1));
            check_update(q[i], update, peer, k * 4 + (uint64_t)i, 64 + (size_t)i);
            CHECK_OK(hpc_queue_ack(q[i], peer));
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < 3; i++) hpc_queue_free(q[i]);
}

static void await_stop(int64_t pid) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    while (state != 'T') {
        FILE *f = fopen(path, "r");
        CHECK(f);
        CHECK_EQ(fscanf(f, "%*d (%*[^)]) %c", &state), 1);
        fclose(f);
        sched_yield();
    }
}

/* A send that ends before its update has gone all the way goes on when it is made again: the update comes once. */
static void sent_again(rank *r) {
    int peer = 1 - r->rank;
    hpc_queue *q = queue_of(r, &peer, 1, &peer, 1, LARGE);
    const void *update;
    if (r->rank == 1) {
        raise(SIGSTOP);
        for (uint64_t k = 0; k < 2; k++) {
            CHECK_OK(hpc_queue_recv(q, 0, &update, -1));
            check_update(q, update, 0, k, LARGE);
            CHECK_OK(hpc_queue_ack(q, 0));
        }
        CHECK_STATUS(hpc_queue_recv(q, 0, &update, 0.05), HPC_ERR_TIMEOUT);
        rank_set(r, 0, 1);
    } else {
        unsigned char *src = malloc(LARGE), *other = malloc(LARGE);
        hpc_peer stopped;
        hpc_queue_stats stats;
        CHECK_OK(hpc_context_peer(r->context, 1, &stopped));
        await_stop(stopped.pid);
        ranks_fill(src, LARGE, 0);
        ranks_fill(other, LARGE, 1);
        int status = hpc_queue_send(q, 1, src, LARGE, 0.1);
        if (status != HPC_OK) { /* a wire is between them, and the other side does not read */
            CHECK_STATUS(status, HPC_ERR_TIMEOUT);
            CHECK(ranks_error_waits_for(1));
            CHECK_STATUS(hpc_queue_send(q, 1, src, LARGE, 0.1), HPC_ERR_TIMEOUT);
            CHECK_STATUS(hpc_queue_send(q, 1, other, LARGE, 0.1), HPC_ERR_INVALID);
        }
        CHECK_EQ(kill((pid_t)stopped.pid, SIGCONT), 0);
        if (status != HPC_OK) CHECK_OK(hpc_queue_send(q, 1, src, LARGE, -1));
        CHECK_OK(hpc_queue_send(q, 1, other, LARGE, -1));
        CHECK_OK(hpc_queue_get_stats(q, &stats));
        CHECK_EQ(stats.sent, 2);
        rank_await(r, 0, 1);
        free(src);
        free(other);
    }
    hpc_queue_free(q);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "both_ways_1", .size = 2, .run = both_ways, .arg = 1},
        {.name = "both_ways_2", .size = 2, .run = both_ways, .arg = 2},
        {.name = "both_ways_3_sleepy", .size = 2, .run = both_ways, .arg = 3, .sleepy = true},
        {.name = "both_ways_1_registered", .size = 2, .run = both_ways, .arg = 1 + 16},
        {.name = "both_ways_3_registered", .size = 2, .run = both_ways, .arg = 3 + 32},
        {.name = "held_while_streaming_1", .size = 2, .run = held_while_streaming, .arg = 1},
        {.name = "held_while_streaming_2", .size = 2, .run = held_while_streaming, .arg = 2, .sleepy = true},
        {.name = "held_while_streaming_3", .size = 2, .run = held_while_streaming, .arg = 3},
        {.name = "held_while_streaming_3_registered", .size = 2, .run = held_while_streaming, .arg = 3 + 64},
        {.name = "held_while_streaming_2_registered", .size = 2, .run = held_while_streaming, .arg = 2 + 32},
        {.name = "sender_waits_for_ack_1", .size = 2, .run = sender_waits_for_ack, .arg = 1},
        {.name = "sender_waits_for_ack_3", .size = 2, .run = sender_waits_for_ack, .arg = 3},
        {.name = "sender_waits_for_ack_1_registered", .size = 2, .run = sender_waits_for_ack, .arg = 1 + 16},
        {.name = "sender_waits_for_ack_2_registered", .size = 2, .run = sender_waits_for_ack, .arg = 2 + 48},
        {.name = "one_buffer_to_many", .size = 4, .run = one_buffer_to_many, .arg = 1 + 16},
        {.name = "one_buffer_to_many_2", .size = 4, .run = one_buffer_to_many, .arg = 2 + 32},
        {.name = "sent_again", .size = 2, .run = sent_again, .arg = 2, .where = RANKS_PROCESSES},
        {.name = "queues_apart", .size = 2, .run = queues_apart, .arg = 1},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
