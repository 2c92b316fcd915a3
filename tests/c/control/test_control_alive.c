/* Liveness on the control channel: dead, frozen, thawed and busy ranks; and what their last words are. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>

#include "node.h"

enum { PID = 1, AWAKE, DONE, LATE };

static void compute(double seconds) {
    volatile uint64_t x = 1;
    for (double end = ranks_now() + seconds; ranks_now() < end;)
        for (int i = 0; i < 1000; i++) x = x * 3 + 1;
}

/* ---- who is alive ---- */

static void dead(rank *r) {
    node *n = node_join(r, r->arg, 10);
    rank_meet(r);
    if (r->rank == 1) raise(SIGKILL);
    node_expect_gone(n, 1, "its process died", 5);
    node_leave(n, NULL);
}

static void frozen(rank *r) {
    node *n = node_join(r, r->arg, 1);
    CHECK_OK(node_meet(n, 20));
    if (r->rank == 1) raise(SIGSTOP);
    node_expect_gone(n, 1, "nothing was heard from it for 1 s", 8);
    node_leave(n, NULL);
}

/* Rank 1 stops; the others wake it, as often as it takes: it may not have stopped yet. */
static void stop(rank *r) {
    rank_set(r, PID, (uint64_t)getpid());
    raise(SIGSTOP);
    rank_set(r, AWAKE, 1);
}

static void wake(rank *r) {
    pid_t pid = (pid_t)rank_await(r, PID, 1);
    while (atomic_load(&r->board[AWAKE]) == 0) {
        CHECK_EQ(kill(pid, SIGCONT), 0);
        poll(NULL, 0, 10);
    }
}

/* Thawed before the silence is over, it is alive, and blames nobody. */
static void thawed(rank *r) {
    node *n = node_join(r, ALL_TCP, 2);
    CHECK_OK(node_meet(n, 20));
    if (r->rank == 1) {
        stop(r);
    } else if (r->rank == 0) {
        rank_await(r, PID, 1);
        node_idle(1);
        wake(r);
    }
    CHECK_OK(node_meet(n, 20));
    node_leave(n, NULL);
}

/* Frozen for longer than the silence: the others have given it up, and it finds out. */
static void given_up(rank *r) {
    node *n = node_join(r, ALL_TCP, 1);
    CHECK_OK(node_meet(n, 20));
    if (r->rank == 1) {
        stop(r);
        if (node_meet(n, 20) == HPC_OK) CHECK_STATUS(node_meet(n, 20), HPC_ERR_PEER); /* the first one's parts came */
    } else {
        node_expect_gone(n, 1, "nothing was heard from it for 1 s", 8);
        atomic_fetch_add(&r->board[DONE], 1);
        rank_await(r, DONE, (uint64_t)r->size - 1);
        wake(r);
    }
    node_leave(n, NULL);
}

static void busy(rank *r) {
    node *n = node_join(r, r->arg, 1);
    CHECK_OK(node_meet(n, 20));
    if (r->rank == 1) compute(3);
    CHECK_OK(node_meet(n, 20));
    if (r->rank == 0) node_idle(2);
    CHECK_OK(node_meet(n, 20));
    node_leave(n, NULL);
}

/* A child keeps the dead rank's sockets open: only its silence tells. */
static void orphaned(rank *r) {
    node *n = node_join(r, ALL_TCP, 1);
    CHECK_OK(node_meet(n, 20));
    if (r->rank == 1) {
        if (fork() == 0) {
            for (double end = ranks_now() + 10; ranks_now() < end && atomic_load(&r->board[DONE]) < 2;)
                poll(NULL, 0, 10);
            _exit(0);
        }
        raise(SIGKILL);
    }
    node_expect_gone(n, 1, "nothing was heard from it for 1 s", 8);
    atomic_fetch_add(&r->board[DONE], 1);
    node_leave(n, NULL);
}

/* It does not read, and the silence is longer than the deadline: a part that was sent by halves ends the link, and
 * nothing of it is taken for another message when the rank reads again. */
static void clogged(rank *r) {
    enum { BYTES = 32 << 20 };
    node *n = node_join(r, ALL_TCP, 60);
    CHECK_OK(node_meet(n, 20));
    if (r->rank == 1) {
        stop(r);
        while (node_meet(n, 20) == HPC_OK) {
        }
        CHECK(strstr(hpc_last_error()->message, "no message") == NULL);
        node_leave(n, NULL);
        return;
    }
    char *data = calloc(1, BYTES);
    CHECK(data);
    rank_await(r, PID, 1);
    double start = ranks_now();
    CHECK_STATUS(node_gather(n, "gather", data, BYTES, HPC_EQUAL_SIZES, 1), HPC_ERR_TIMEOUT);
    CHECK(ranks_error_waits_for(1));
    CHECK_STATUS(node_meet(n, 20), HPC_ERR_CONFIG);
    CHECK(ranks_now() - start < 5);
    free(data);
    atomic_fetch_add(&r->board[LATE], 1);
    rank_await(r, LATE, (uint64_t)r->size - 1);
    start = ranks_now();
    node_leave(n, NULL);
    CHECK(ranks_now() - start < 5);
    atomic_fetch_add(&r->board[DONE], 1);
    rank_await(r, DONE, (uint64_t)r->size - 1);
    wake(r);
}

/* ---- leaving ---- */

static void last_words(rank *r) {
    const char *why = r->arg ? "the disk is full" : NULL;
    for (int i = 0; i < ranks_rounds(40); i++) {
        node *n = node_join(r, i % 3, 5);
        int who = i % r->size;
        CHECK_OK(node_meet(n, 20));
        rank_meet(r);
        if (r->rank == who) {
            node_leave(n, why);
        } else {
            node_expect_gone(n, who, why ? why : "has ended", 5);
            CHECK_EQ(atomic_load(&n->group.states[who]), why ? HPC_PEER_FAILED : HPC_PEER_LEFT);
            CHECK_EQ(strcmp(n->group.reasons[who], why ? why : "it left"), 0);
            node_leave(n, NULL);
        }
        rank_meet(r);
    }
}

/* Nobody waits for the other's end until its patience is over. */
static void leave_together(rank *r) {
    int rounds = ranks_rounds(40), slow = 0;
    for (int i = 0; i < rounds; i++) {
        node *n = node_join(r, i % 3, 5);
        CHECK_OK(node_meet(n, 20));
        double start = ranks_now();
        node_leave(n, NULL);
        slow += ranks_now() - start > 0.9;
        rank_meet(r);
    }
    CHECK(slow < rounds / 3);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "dead-tcp",
         .size = 3,
         .run = dead,
         .arg = ALL_TCP,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "dead-unix",
         .size = 3,
         .run = dead,
         .arg = ALL_UNIX,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "frozen-tcp",
         .size = 3,
         .run = frozen,
         .arg = ALL_TCP,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "thawed", .size = 3, .run = thawed, .where = RANKS_SHM | RANKS_PROCESSES, .bare = true},
        {.name = "given-up", .size = 3, .run = given_up, .where = RANKS_SHM | RANKS_PROCESSES, .bare = true},
        {.name = "busy-tcp", .size = 3, .run = busy, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "busy-mixed", .size = 4, .run = busy, .arg = MIXED, .where = RANKS_SHM, .bare = true},
        {.name = "orphaned",
         .size = 3,
         .run = orphaned,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "clogged", .size = 3, .run = clogged, .where = RANKS_SHM | RANKS_PROCESSES, .bare = true},
        {.name = "last-words-bye", .size = 3, .run = last_words, .arg = 0, .where = RANKS_SHM, .bare = true},
        {.name = "last-words-abort", .size = 3, .run = last_words, .arg = 1, .where = RANKS_SHM, .bare = true},
        {.name = "leave-together", .size = 4, .run = leave_together, .where = RANKS_SHM, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
