/* Collectives over the tree: what comes, how many messages it takes, and who is named when ranks do not come, disagree,
 * leave or die. The control channel by itself, on random hosts. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "node.h"

enum { SENT = 1, DONE, GONE, PID, MET };

/* All ranks but one are here. */
static void meet_but_one(rank *r) {
    atomic_fetch_add(&r->board[MET], 1);
    rank_await(r, MET, (uint64_t)(r->size - 1));
}

/* A job of the first size ranks, which lie on random hosts; NULL for the others. */
static node *join_random(rank *r, int size, uint64_t seed) {
    int lowest[RANKS_MOST], hosts = 1 + (int)(ranks_random(&seed) % (uint64_t)size);
    hpc_control_address none[RANKS_MOST], self = {0};
    if (r->rank >= size) {
        node_share(r, &self, none, sizeof self);
        return NULL;
    }
    node *n = node_open(r, size, 30, NULL);
    memset(lowest, -1, sizeof lowest);
    for (int i = 0; i < size; i++) {
        const int host = (int)(ranks_random(&seed) % (uint64_t)hosts);
        if (lowest[host] < 0) lowest[host] = i;
        n->hosts[i] = lowest[host];
        n->links[i] = HPC_LINK_UNIX | HPC_LINK_TCP;
        n->same_host[i] = 1;
    }
    CHECK_OK(node_call(n, 60));
    return n;
}

static uint64_t moved(node *n) {
    return hpc_watch_moved(&n->group.watch);
}

static void check_replies(node *n, size_t most, uint64_t seed, int own) {
    for (int i = 0; i < n->group.size; i++) {
        uint64_t random = seed + (uint64_t)i;
        const size_t nbytes = own ? ranks_random(&random) % (most + 1) : most;
        CHECK_EQ(n->replies[i].nbytes, nbytes);
        CHECK_EQ(ranks_first_wrong(n->replies[i].data, nbytes, seed + (uint64_t)i), nbytes);
        CHECK_EQ((uintptr_t)n->replies[i].data % 16, 0);
    }
    hpc_control_free_replies(n->control, n->replies);
}

/* own: each rank has another number of bytes, at most `most`. */
static void gather(node *n, size_t most, uint64_t seed, int own) {
    uint64_t random = seed + (uint64_t)n->r->rank;
    const size_t nbytes = own ? ranks_random(&random) % (most + 1) : most;
    char *data = malloc(nbytes + 1);
    CHECK(data);
    ranks_fill(data, nbytes, seed + (uint64_t)n->r->rank);
    CHECK_OK(node_gather(n, "gather", data, nbytes, own ? HPC_OWN_SIZES : HPC_EQUAL_SIZES, 60));
    check_replies(n, most, seed, own);
    free(data);
}

/* One rank is odd: every rank says so in the same words, and the next collective goes well. */
static void disagree(node *n, int odd) {
    char text[100], data[16] = {0};
    const int rank = n->r->rank;
    CHECK_STATUS(node_gather(n, rank == odd ? "red" : "green", NULL, 0, HPC_EQUAL_SIZES, 60), HPC_ERR_CONFIG);
    snprintf(text, sizeof text, "rank 0 calls %s while rank %d calls %s", odd == 0 ? "red" : "green",
             odd == 0 ? 1 : odd, odd == 0 ? "green" : "red");
    CHECK_MESSAGE(text);
    CHECK_STATUS(node_gather(n, "gather", data, rank == odd ? 16 : 8, HPC_EQUAL_SIZES, 60), HPC_ERR_CONFIG);
    snprintf(text, sizeof text, "rank %d gives %d bytes and rank 0 gives %d", odd == 0 ? 1 : odd, odd == 0 ? 8 : 16,
             odd == 0 ? 16 : 8);
    CHECK_MESSAGE(text);
    CHECK_OK(node_meet(n, 60));
}

/* Small messages go out in one send each, which `moved` counts. */
static void count_messages(node *n) {
    rank *r = n->r;
    const int size = n->group.size;
    const uint64_t before = moved(n);
    CHECK_OK(node_meet(n, 60));
    const uint64_t sent = moved(n) - before;
    if (r->rank == 0) CHECK(sent <= 14);
    atomic_fetch_add(&r->board[SENT], sent);
    CHECK_OK(node_meet(n, 60));
    if (r->rank == 0) CHECK_EQ(atomic_load(&r->board[SENT]), 2 * (size - 1)); /* one up and one down on each edge */
    CHECK_OK(node_meet(n, 60));
    if (r->rank == 0) rank_set(r, SENT, 0);
}

static void random_jobs(rank *r) {
    uint64_t seed = 11 + r->mode->seed;
    for (int i = 0; i < ranks_rounds(8); i++) {
        const int size = 1 + (int)(ranks_random(&seed) % (uint64_t)r->size);
        node *n = join_random(r, i == 0 ? r->size : size, ranks_random(&seed));
        const uint64_t of = ranks_random(&seed);
        if (n != NULL) {
            gather(n, 0, of, 0);
            gather(n, 1 + of % 999, of + 7, 0);
            gather(n, 4000, of + 8, 1);
            if (n->group.size > 3) count_messages(n);
            if (n->group.size > 1) disagree(n, (int)(of % (uint64_t)n->group.size));
            for (int k = 0; k < 20; k++) CHECK_OK(node_meet(n, 60));
            node_leave(n, NULL);
        }
        rank_meet(r);
    }
}

static void large(rank *r) {
    node *n = node_join(r, r->arg, 30);
    gather(n, 8 << 20, 5, 0);
    gather(n, 3 << 20, 6, 1);
    node_leave(n, NULL);
}

/* ---- ranks that do not come ---- */

static void check_waits_for(int who) {
    const hpc_error *e = hpc_last_error();
    if (e->n_waiting != 1 || e->waiting_for[0] != who) {
        fprintf(stderr, "waits for %d ranks, the first is %d: %s\n", e->n_waiting, e->waiting_for[0], e->message);
        CHECK(!"exactly the rank that did not come");
    }
}

/* One rank comes after the deadlines of all others, which name it alone. It gets the data of all, since each rank
 * passes on what comes late. */
static void late(rank *r) {
    static const int who[] = {0, 1, 8, 19};
    for (int i = 0; i < 4; i++) {
        node *n = i < 2 ? node_join(r, ALL_UNIX, 30) : join_random(r, r->size, 40 + (uint64_t)i);
        CHECK_OK(node_meet(n, 60));
        if (r->rank != who[i]) {
            CHECK_STATUS(node_meet(n, r->rank % 2 == 0 ? 0.8 : 1.2), HPC_ERR_TIMEOUT);
            check_waits_for(who[i]);
            CHECK_STATUS(node_meet(n, 60), HPC_ERR_CONFIG);
            atomic_fetch_add(&r->board[DONE], 1);
        } else {
            rank_await(r, DONE, (uint64_t)(r->size - 1));
            CHECK_OK(node_meet(n, 60));
            rank_set(r, DONE, 0);
        }
        rank_meet(r);
        node_leave(n, NULL);
    }
}

/* Returns once the wait of n's rank is shown to be for one rank alone. */
static void *await_shown(void *arg) {
    node *n = arg;
    hpc_watched waits[HPC_WATCHED];
    double ended;
    do sched_yield();
    while (hpc_watch_read(&n->group.watch, ranks_now(), waits, &ended) != 1 || waits[0].n_ranks != 1 ||
           waits[0].ranks[0] != n->r->arg);
    atomic_fetch_add(&n->r->board[DONE], 1);
    return NULL;
}

/* hpcomm status shows the same rank, while the others still wait. */
static void shown(rank *r) {
    node *n = node_join(r, ALL_UNIX, 30);
    pthread_t thread;
    CHECK_OK(node_meet(n, 60));
    if (r->rank == r->arg) {
        rank_await(r, DONE, (uint64_t)(r->size - 1));
        CHECK_OK(node_meet(n, 60));
    } else {
        CHECK_EQ(pthread_create(&thread, NULL, await_shown, n), 0);
        CHECK_OK(node_meet(n, 60));
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    node_leave(n, NULL);
}

/* A rank with a short deadline gives up; the others have time, and the late rank comes. A rank below which there is
 * none may even leave. */
static void impatient(rank *r) {
    const int who = r->arg & 31, leaves = r->arg & 32;
    node *n = node_join(r, ALL_UNIX, 30);
    if (r->rank == who) {
        char data[3000];
        ranks_fill(data, sizeof data, 9 + (uint64_t)r->rank);
        CHECK_STATUS(node_gather(n, "gather", data, sizeof data, HPC_EQUAL_SIZES, 0), HPC_ERR_TIMEOUT);
        if (leaves) node_leave(n, NULL);
        rank_set(r, DONE, 1);
    } else {
        if (r->rank == r->size - 1) rank_await(r, DONE, 1);
        if (r->rank == r->size - 1 && leaves) node_idle(0.3); /* the others could miss the one that left */
        gather(n, 3000, 9, 0);
    }
    rank_meet(r);
    if (r->rank != who || !leaves) node_leave(n, NULL);
}

/* A stopped rank passes nothing on; still the others name it alone. */
static void stopped(rank *r) {
    node *n = node_join(r, ALL_UNIX, 30);
    CHECK_OK(node_meet(n, 60));
    if (r->rank == r->arg) {
        rank_set(r, PID, (uint64_t)getpid());
        raise(SIGSTOP);
    } else {
        rank_await(r, PID, 1);
        CHECK_STATUS(node_meet(n, 1.5), HPC_ERR_TIMEOUT);
        check_waits_for(r->arg);
        atomic_fetch_add(&r->board[DONE], 1);
        if (r->rank == (r->arg + 1) % r->size) {
            rank_await(r, DONE, (uint64_t)(r->size - 1));
            rank_set(r, GONE, 1);
        }
        while (atomic_load(&r->board[GONE]) == 0) poll(NULL, 0, 5);
        kill((pid_t)atomic_load(&r->board[PID]), SIGCONT);
    }
    node_leave(n, NULL);
}

/* ---- ranks that leave and die ---- */

/* The rank that the others miss is the only one, and they learn it soon. */
static void expect_gone(node *n, int who, const char *text) {
    const double start = ranks_now();
    CHECK_STATUS(node_meet(n, 60), HPC_ERR_PEER);
    CHECK(ranks_now() - start < 3);
    CHECK(ranks_error_names(who));
    CHECK_MESSAGE(text);
    check_waits_for(who);
    meet_but_one(n->r); /* nobody leaves before all know */
}

/* A rank that has met leaves at once, perhaps before others know that all have met. Nobody takes that for an absence.
 */
static void hasty(rank *r) {
    for (int i = 0; i < ranks_rounds(30); i++) {
        node *n = node_join(r, ALL_UNIX, 30);
        CHECK_OK(node_meet(n, 60));
        node_leave(n, NULL);
        rank_meet(r);
    }
}

/* Likewise a rank that dies once it has met: the others have met too, and miss it in the next collective. */
static void met_and_dead(rank *r) {
    node *n = node_join(r, ALL_UNIX, 30);
    for (int i = 0; i < 5; i++) CHECK_OK(node_meet(n, 60));
    if (r->rank == r->arg) raise(SIGKILL);
    expect_gone(n, r->arg, "its process died");
    node_leave(n, NULL);
}

static void absent(rank *r) {
    node *n = node_join(r, ALL_UNIX, 30);
    CHECK_OK(node_meet(n, 60));
    if (r->rank == r->arg) {
        node_leave(n, NULL);
        return;
    }
    expect_gone(n, r->arg, "has ended");
    node_leave(n, NULL);
}

/* It dies at any time; the others end in the same error, whatever they had come to. */
static void dead_in_the_middle(rank *r) {
    node *n = node_join(r, r->arg % 2 ? ALL_UNIX : MIXED, 30);
    int status = HPC_OK;
    char data[5000] = {0};
    for (int i = 0; status == HPC_OK; i++) {
        if (r->rank == r->arg && i == 100) {
            alarm(0);
            kill(getpid(), SIGKILL);
        }
        status = node_gather(n, "gather", data, sizeof data, HPC_EQUAL_SIZES, 60);
        if (status == HPC_OK) hpc_control_free_replies(n->control, n->replies);
    }
    CHECK_EQ(status, HPC_ERR_PEER);
    CHECK(ranks_error_names(r->arg));
    node_leave(n, NULL);
}

/* ---- bytes that are no batch ---- */

static void garbled(rank *r) {
    for (int i = 0; i < 3; i++) {
        const int bad = i == 2 ? 0 : r->size - 1 - i; /* a leaf, or rank 0, which garbles what its children get */
        node *n = node_join(r, ALL_TCP, 30);
        CHECK_OK(node_meet(n, 60));
        if (r->rank == bad) {
            char bytes[200];
            ranks_fill(bytes, sizeof bytes, 3);
            for (int to = 0; to < r->size; to++)
                if (to != r->rank)
                    hpc_link_send(n->control, to, HPC_MESH_BATCH, hpc_control_collectives(n->control) + 1, "meet",
                                  bytes, i == 0 ? 0 : sizeof bytes, -1, hpc_now() + 20);
        } else {
            CHECK_STATUS(node_meet(n, 60), HPC_ERR_PEER);
            if (n->control->tree.parent[bad] == r->rank || n->control->tree.parent[r->rank] == bad) {
                CHECK(ranks_error_names(bad));
                CHECK_MESSAGE("it sent bytes that are not a message of hpcomm");
            }
            node_leave(n, "the test ends");
        }
        if (r->rank == bad) {
            rank_await(r, DONE, (uint64_t)(i + 1) * (uint64_t)(r->size - 1));
            node_leave(n, NULL);
        } else {
            atomic_fetch_add(&r->board[DONE], 1);
        }
        rank_meet(r);
    }
}

int main(int argc, char **argv) {
    enum { ALONE = RANKS_SHM | RANKS_PROCESSES };
    static const ranks_case cases[] = {
        {.name = "random-jobs", .size = 64, .run = random_jobs, .where = RANKS_SHM | RANKS_NOT_TSAN, .bare = true},
        {.name = "random-jobs-sixteen", .size = 16, .run = random_jobs, .where = RANKS_SHM, .bare = true},
        {.name = "large-unix",
         .size = 6,
         .run = large,
         .arg = ALL_UNIX,
         .where = RANKS_SHM | RANKS_NOT_TSAN,
         .bare = true},
        {.name = "large-tcp", .size = 4, .run = large, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "late", .size = 20, .run = late, .where = RANKS_SHM, .bare = true},
        {.name = "shown", .size = 12, .run = shown, .arg = 9, .where = RANKS_SHM, .bare = true},
        {.name = "impatient-first", .size = 20, .run = impatient, .arg = 0, .where = RANKS_SHM, .bare = true},
        {.name = "impatient-inner", .size = 20, .run = impatient, .arg = 2, .where = RANKS_SHM, .bare = true},
        {.name = "impatient-leaf", .size = 20, .run = impatient, .arg = 15, .where = RANKS_SHM, .bare = true},
        {.name = "impatient-leaves", .size = 20, .run = impatient, .arg = 15 | 32, .where = RANKS_SHM, .bare = true},
        {.name = "stopped-first", .size = 20, .run = stopped, .arg = 0, .where = ALONE, .bare = true},
        {.name = "stopped-inner", .size = 20, .run = stopped, .arg = 1, .where = ALONE, .bare = true},
        {.name = "hasty", .size = 20, .run = hasty, .where = RANKS_SHM, .bare = true},
        {.name = "met-and-dead-first", .size = 20, .run = met_and_dead, .where = ALONE, .victims = 1, .bare = true},
        {.name = "met-and-dead-inner",
         .size = 20,
         .run = met_and_dead,
         .arg = 2,
         .where = ALONE,
         .victims = 4,
         .bare = true},
        {.name = "met-and-dead-leaf",
         .size = 20,
         .run = met_and_dead,
         .arg = 17,
         .where = ALONE,
         .victims = 1 << 17,
         .bare = true},
        {.name = "absent-first", .size = 20, .run = absent, .where = RANKS_SHM, .bare = true},
        {.name = "absent-inner", .size = 20, .run = absent, .arg = 2, .where = RANKS_SHM, .bare = true},
        {.name = "dead-in-the-middle-first",
         .size = 20,
         .run = dead_in_the_middle,
         .where = ALONE,
         .victims = 1,
         .bare = true},
        {.name = "dead-in-the-middle-inner",
         .size = 20,
         .run = dead_in_the_middle,
         .arg = 1,
         .where = ALONE,
         .victims = 2,
         .bare = true},
        {.name = "garbled", .size = 12, .run = garbled, .where = RANKS_SHM, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
