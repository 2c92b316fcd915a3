/* Errors name the culprit: the rank that failed by itself, or the one at the end of the chain of waits. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "base/host.h"
#include "ranks.h"
#include "transport/objects.h"
#include "transport/transport.h"

enum { VICTIM = 3, GO_ON = 8 };

static void check_culprits(int n, int first, int state) {
    const hpc_error *e = hpc_last_error();
    CHECK_EQ(e->n_culprits, n);
    CHECK_EQ(e->culprits[0].rank, first);
    for (int i = 0; i < n; i++) CHECK_EQ(e->culprits[i].state, state);
}

static void check_ranks(int rank, int n_left, int left) {
    const hpc_error *e = hpc_last_error();
    CHECK_EQ(e->n_ranks, 1);
    CHECK_EQ(e->ranks[0], rank);
    CHECK_EQ(e->n_left, n_left);
    if (n_left > 0) CHECK_EQ(e->left[0], left);
}

static hpc_window *window_of_all(rank *r) {
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 64, r->size, NULL, -1, &w));
    rank_meet(r);
    return w;
}

static int wait_for(rank *r, hpc_window *w, int peer, uint64_t value, double timeout) {
    (void)r;
    return hpc_wait_signal(w, peer, value, peer, timeout, NULL);
}

static void give(rank *r, hpc_window *w, int peer, uint64_t value) {
    CHECK_OK(hpc_put_signal(NULL, w, peer, NULL, 0, 0, r->rank, value));
}

/* Waits in vain until the culprits are n, and first the first of them: on a busy machine a rank may come to its own
 * wait later than this one's deadline, and is then rightly named. */
static void wait_in_vain(rank *r, hpc_window *w, int peer, int n, int first) {
    for (int tries = 0;; tries++) {
        CHECK_STATUS(wait_for(r, w, peer, 1, 1), HPC_ERR_TIMEOUT);
        const hpc_error *e = hpc_last_error();
        if (tries == 10 || (e->n_culprits == n && e->culprits[0].rank == first)) return;
    }
}

/* 0 waits for 1, 1 for 2, 2 for 3, which computes. Afterwards nobody is to blame any more: the next error is of its own
 * kind. */
static void computes(rank *r) {
    hpc_window *w = window_of_all(r);
    if (r->rank == 0) {
        wait_in_vain(r, w, 1, 1, VICTIM);
        check_culprits(1, VICTIM, HPC_CULPRIT_COMPUTING);
        CHECK_MESSAGE("rank 1 waits for rank 2, rank 2 waits for rank 3; rank 3 has computed for ");
        CHECK_EQ(hpc_last_error()->n_waiting, 1);
        CHECK_EQ(hpc_last_error()->waiting_for[0], 1);
        rank_set(r, GO_ON, 1);
        CHECK_OK(wait_for(r, w, 1, 1, -1));
        CHECK_STATUS(wait_for(r, w, 2, 1, 0), HPC_ERR_TIMEOUT); /* a look asks nobody */
        CHECK_EQ(hpc_last_error()->n_culprits, 0);
    } else if (r->rank == VICTIM) {
        rank_await(r, GO_ON, 1);
        give(r, w, 2, 1);
    } else {
        CHECK_OK(wait_for(r, w, r->rank + 1, 1, -1));
        give(r, w, r->rank - 1, 1);
    }
    rank_meet(r);
    if (r->rank == 0) {
        CHECK_OK(hpc_context_close(r->context)); /* not because of the one that it had waited for in vain */
    } else if (r->rank == 1) {
        CHECK_STATUS(wait_for(r, w, 0, 1, -1), HPC_ERR_PEER);
        check_ranks(0, 0, -1);
    }
    rank_meet(r);
    hpc_window_free(w);
}

static void circle(rank *r) {
    hpc_window *w = window_of_all(r);
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    if (r->rank == 0) {
        wait_in_vain(r, w, next, 3, 0);
        check_culprits(3, 0, HPC_CULPRIT_CIRCLE);
        CHECK(strcmp(hpc_last_error()->culprits[2].op, "wait_signal") == 0);
        CHECK_MESSAGE("ranks 0, 1 and 2 wait for each other");
        give(r, w, before, 1);
        CHECK_OK(wait_for(r, w, next, 1, -1));
    } else {
        CHECK_OK(wait_for(r, w, next, 1, -1));
        give(r, w, before, 1);
    }
    rank_meet(r);
    hpc_window_free(w);
}

/* 0 waits for 1, 1 for 2, 2 for 3, which is stopped: all three say so, by themselves or by what others told. */
static void stopped(rank *r) {
    hpc_window *w = window_of_all(r);
    if (r->rank == VICTIM) kill(getpid(), SIGSTOP);
    int status = wait_for(r, w, r->rank + 1, 1, ranks_patience(2 + 0.1 * r->rank));
    if (status == HPC_ERR_TIMEOUT) {
        check_culprits(1, VICTIM, HPC_CULPRIT_STOPPED);
        CHECK_MESSAGE("rank 3 is stopped");
    } else {
        CHECK_STATUS(status, HPC_ERR_PEER);
        check_ranks(VICTIM, 1, r->rank + 1);
    }
    rank_set(r, r->rank, 1);
    for (int i = 0; i < VICTIM; i++) rank_await(r, i, 1);
    hpc_window_free(w);
}

/* 3 dies, 2 hears it and leaves, with a goodbye or an abort; 1 waits for 2 alone, and 0 for 1, which leaves too. */
static void because(rank *r) {
    hpc_window *w = window_of_all(r);
    if (r->rank == VICTIM) {
        rank_die(r);
        hpc_window_free(w);
        return;
    }
    CHECK_STATUS(wait_for(r, w, r->rank + 1, 1, -1), HPC_ERR_PEER);
    CHECK_EQ(hpc_last_error()->n_ranks, 1);
    CHECK_EQ(hpc_last_error()->ranks[0], VICTIM);
    CHECK(hpc_last_error()->message[0] != 0);
    if (r->rank == 2)
        CHECK_OK(r->arg ? hpc_context_abort(r->context, "it saw an error") : hpc_context_close(r->context));
    if (r->rank == 1) {
        rank_await(r, 2, 1);
        hpc_peer peer = {.state = HPC_PEER_ALIVE};
        while (peer.state == HPC_PEER_ALIVE) CHECK_OK(hpc_context_peer(r->context, 2, &peer));
        CHECK_STATUS(wait_for(r, w, 2, 2, -1), HPC_ERR_PEER);
        check_ranks(VICTIM, 1, 2);
        CHECK_MESSAGE("rank 2 left because of it");
    }
    rank_set(r, r->rank, 1);
    for (int i = 0; i < VICTIM; i++) rank_await(r, i, 1);
    hpc_window_free(w);
}

/* A rank that leaves after a wait of its own ran out names whom it waited for in vain. */
static void gives_up(rank *r) {
    hpc_window *w = window_of_all(r);
    if (r->rank == 1) {
        CHECK_STATUS(wait_for(r, w, 2, 1, 0.5), HPC_ERR_TIMEOUT);
        check_culprits(1, 2, HPC_CULPRIT_COMPUTING);
        CHECK_OK(r->arg ? hpc_context_abort(r->context, "it saw an error") : hpc_context_close(r->context));
    } else if (r->rank == 0) {
        CHECK_STATUS(wait_for(r, w, 1, 1, -1), HPC_ERR_PEER);
        check_ranks(2, 1, 1);
        CHECK_MESSAGE("rank 2 has computed for");
        rank_set(r, GO_ON, 1);
    } else {
        rank_await(r, GO_ON, 1);
    }
    rank_meet(r);
    hpc_window_free(w);
}

/* Two deaths have nothing to do with each other. (Of two aborts in one process the later one may have heard the other.)
 */
static void two_deaths(rank *r) {
    hpc_window *w = window_of_all(r);
    if (r->rank % 2 == 1) {
        rank_die(r);
        hpc_window_free(w);
        return;
    }
    hpc_peer peer;
    for (int victim = 1; victim < r->size; victim += 2) do
            CHECK_OK(hpc_context_peer(r->context, victim, &peer));
        while (peer.state == HPC_PEER_ALIVE);
    CHECK_STATUS(wait_for(r, w, 1, 1, -1), HPC_ERR_PEER);
    CHECK_EQ(hpc_last_error()->n_ranks, 2);
    CHECK(hpc_last_error()->ranks[0] == 1 && hpc_last_error()->ranks[1] == 3);
    CHECK_EQ(hpc_last_error()->n_left, 0);
    rank_set(r, r->rank, 1);
    for (int i = 0; i < r->size; i += 2) rank_await(r, i, 1);
    hpc_window_free(w);
}

/* ---- a lane whose peer is stopped ---- */

enum { CALLED = 1, CALLER = 2, CALLS = 9 };

/* Rank 2 wants to reach rank 1, which is stopped, and rank 0 waits for rank 2. Rank 2 is seen to wait too: both name
 * rank 1 alone. */
static void stopped_before_lane(rank *r) {
    hpc_lane *lane;
    r->config.init_timeout = ranks_patience(1.5);
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    hpc_window *w = window_of_all(r);
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    if (r->rank == CALLED) raise(SIGSTOP); /* the others kill it */
    while (!hpc_host_is_stopped("", r->context->addresses[CALLED].control.pid)) sched_yield();
    if (r->rank == CALLER) {
        rank_set(r, CALLS, 1);
        CHECK_STATUS(hpc_put_notify(lane, w, CALLED, NULL, 0, 0, 0, ranks_patience(1.5)), HPC_ERR_TIMEOUT);
    } else {
        rank_await(r, CALLS, 1);
        CHECK_STATUS(wait_for(r, w, 1, CALLER, ranks_patience(0.3)), HPC_ERR_TIMEOUT);
        for (int tries = 0; tries < 10 && hpc_last_error()->n_culprits != 1; tries++) /* rank 2 may begin only now */
            CHECK_STATUS(hpc_follow_timeout(0.3), HPC_ERR_TIMEOUT);
    }
    check_culprits(1, CALLED, HPC_CULPRIT_STOPPED);
    CHECK_MESSAGE("rank 1 is stopped");
    rank_set(r, r->rank, 1);
    rank_await(r, 0, 1);
    rank_await(r, CALLER, 1);
    hpc_lane_free(lane);
    hpc_window_free(w);
    if (r->rank == 0) kill((pid_t)r->context->addresses[CALLED].control.pid, SIGKILL);
    hpc_context_free(r->context);
    r->context = NULL;
}

/* Slices are not asked about, but the wait that they were is, at its end. */
static void slices(rank *r) {
    hpc_window *w = window_of_all(r);
    if (r->rank == 0) {
        for (int i = 0; i < 3; i++) {
            CHECK_STATUS(wait_for(r, w, 1, 1, 0.1), HPC_ERR_TIMEOUT);
            CHECK_EQ(hpc_last_error()->n_culprits, 0);
        }
        CHECK_STATUS(hpc_follow_timeout(0.3), HPC_ERR_TIMEOUT);
        check_culprits(1, 2, HPC_CULPRIT_COMPUTING);
        CHECK_MESSAGE("nothing came from rank 1 in 0.3 s");
        CHECK_STATUS(hpc_window_create(NULL, 1, 0, NULL, 0, &w), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_follow_timeout(0.3), HPC_ERR_INVALID); /* another failure has come since */
        rank_set(r, GO_ON, 1);
    } else if (r->rank == 1) {
        CHECK_OK(wait_for(r, w, 2, 1, -1));
    } else {
        rank_await(r, GO_ON, 1);
        give(r, w, 1, 1);
    }
    rank_meet(r);
    hpc_window_free(w);
}

static void sliced(rank *r) {
    r->config.slice = 0.1;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    slices(r);
    hpc_context_free(r->context);
    r->context = NULL;
}

int main(int argc, char **argv) {
    const ranks_case cases[] = {
        {.name = "computes", .size = 4, .run = computes, .apart = true},
        {.name = "computes_sleepy", .size = 4, .run = computes, .apart = true, .sleepy = true},
        {.name = "circle", .size = 3, .run = circle},
        {.name = "stopped", .size = 4, .run = stopped, .victims = 1 << VICTIM, .where = RANKS_PROCESSES, .apart = true},
        {.name = "stopped_before_lane",
         .size = 3,
         .run = stopped_before_lane,
         .victims = 1 << CALLED,
         .where = RANKS_PROCESSES,
         .bare = true,
         .apart = true},
        {.name = "because", .size = 4, .run = because, .victims = 1 << VICTIM, .apart = true},
        {.name = "because_abort", .size = 4, .run = because, .victims = 1 << VICTIM, .arg = 1, .apart = true},
        {.name = "gives_up", .size = 3, .run = gives_up, .apart = true},
        {.name = "gives_up_abort", .size = 3, .run = gives_up, .arg = 1, .apart = true},
        {.name = "two_deaths",
         .size = 4,
         .run = two_deaths,
         .victims = 1 << 1 | 1 << 3,
         .where = RANKS_PROCESSES,
         .apart = true},
        {.name = "sliced", .size = 3, .run = sliced, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
