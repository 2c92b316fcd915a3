/* Links that are made at their first use, and what travels along the tree: deaths, leavings, revokes, and what a rank
 * says to all. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>

#include "base/host.h"
#include "base/wait.h"
#include "node.h"

enum { SIZE = 24, SEEN = 8, PID = 1, AWAKE, DONE };

static int state_of(const node *n, int who) {
    return atomic_load_explicit(&n->group.states[who], memory_order_acquire);
}

static void await_state(const node *n, int who, int state) {
    const double until = ranks_now() + ranks_patience(20);
    while (state_of(n, who) != state) {
        if (ranks_now() > until)
            fprintf(stderr, "rank %d: rank %d has state %d\n", n->group.rank, who, state_of(n, who));
        CHECK(ranks_now() <= until);
        poll(NULL, 0, 1);
    }
}

static int count_links(const node *n) {
    int links = 0;
    for (int i = 0; i < n->group.size; i++) links += hpc_control_is_linked(n->control, i);
    return links;
}

/* A rank has links with its neighbours, also after collectives. Then it tells one rank a word. */
static void few(rank *r) {
    node *n = node_join(r, r->arg, 10);
    int children[HPC_TREE_CHILDREN];
    const int neighbours = hpc_rank_tree_children(&n->control->tree, r->rank, children) + (r->rank > 0);
    CHECK_OK(node_meet(n, 20));
    CHECK_EQ(count_links(n), neighbours);
    rank_meet(r);
    if (r->rank == r->size - 1) {
        while (hpc_control_tell(n->control, r->size - 2, 3, 5) == HPC_ERR_TIMEOUT) sched_yield();
        CHECK_EQ(count_links(n), neighbours + 1);
    }
    while (r->rank == r->size - 2 && hpc_control_told(n->control, r->size - 1, 3) != 5) sched_yield();
    rank_meet(r);
    node_leave(n, NULL);
}

/* ---- deaths ---- */

/* Ranks that go one after the other, each once all others know of the last one. On one host rank 0 is above 1 to 7,
 * rank 1 above 8 to 14, and rank 2 above 15 to 21. */
static const int going[] = {1, 0, 2, 15, 3, 23};

enum { GOING = sizeof going / sizeof *going };

typedef enum manner { DIE, LEAVE, STOP } manner;

static void go(node *n, manner how) {
    if (how == DIE) raise(SIGKILL);
    if (how == STOP) raise(SIGSTOP);
    node_leave(n, NULL);
}

static void await_departure(const node *n, int who) {
    const double until = ranks_now() + ranks_patience(20);
    while (!hpc_group_has_departed(&n->group, who)) {
        CHECK(ranks_now() <= until);
        poll(NULL, 0, 1);
    }
}

static void one_by_one(rank *r, node *n, const manner *how) {
    bool has_left = false;
    for (int k = 0; k < GOING; k++) {
        if (k > 0) rank_await(r, SEEN + k - 1, (uint64_t)(r->size - k));
        if (r->rank == going[k]) {
            go(n, how[k]);
            return;
        }
        /* Once some rank has left, one that had no neighbour any more may have left too. */
        if (how[k] == DIE && has_left)
            await_departure(n, going[k]);
        else
            await_state(n, going[k], how[k] == LEAVE ? HPC_PEER_LEFT : HPC_PEER_FAILED);
        has_left |= how[k] == LEAVE;
        if (how[k] == STOP) CHECK(strstr(n->group.reasons[going[k]], "nothing was heard from it for"));
        atomic_fetch_add(&r->board[SEEN + k], 1);
    }
    for (int i = 0; i < r->size; i++) {
        int goes = 0;
        for (int k = 0; k < GOING; k++) goes |= going[k] == i;
        CHECK_EQ(hpc_group_has_departed(&n->group, i), goes);
    }
    rank_await(r, SEEN + GOING - 1, (uint64_t)(r->size - GOING));
    node_leave(n, NULL);
}

static void deaths(rank *r) {
    static const manner how[GOING] = {DIE, DIE, DIE, DIE, DIE, DIE};
    one_by_one(r, node_join(r, r->arg, 10), how);
}

static void leavings(rank *r) {
    static const manner how[GOING] = {LEAVE, LEAVE, DIE, LEAVE, DIE, DIE};
    one_by_one(r, node_join(r, r->arg, 10), how);
}

static void stops(rank *r) {
    static const manner how[GOING] = {STOP, STOP, DIE, STOP, LEAVE, DIE};
    one_by_one(r, node_join(r, r->arg, 1), how);
}

/* Several at once, neighbours of each other too. */
static void together(rank *r) {
    node *n = node_join(r, r->arg, 10);
    rank_meet(r);
    for (int k = 0; k < GOING; k++)
        if (r->rank == going[k]) raise(SIGKILL);
    for (int k = 0; k < GOING; k++) await_state(n, going[k], HPC_PEER_FAILED);
    atomic_fetch_add(&r->board[SEEN], 1);
    rank_await(r, SEEN, (uint64_t)(r->size - GOING));
    for (int i = 0; i < r->size; i++) CHECK(!hpc_group_has_departed(&n->group, i) || n->group.reasons[i][0] != 0);
    node_leave(n, NULL);
}

/* Frozen for longer than the silence: the others go on without it, and it hears of that. Rank 1 has children, who have
 * another neighbour then. */
static void thawed(rank *r) {
    node *n = node_join(r, r->arg, 1);
    rank_meet(r);
    if (r->rank == 1) {
        rank_set(r, PID, (uint64_t)getpid());
        raise(SIGSTOP);
        rank_set(r, AWAKE, 1);
        await_state(n, 0, HPC_PEER_FAILED);
        rank_set(r, AWAKE, 2);
        node_leave(n, NULL);
        return;
    }
    await_state(n, 1, HPC_PEER_FAILED);
    atomic_fetch_add(&r->board[SEEN], 1);
    rank_await(r, SEEN, (uint64_t)r->size - 1);
    while (r->rank == 0 && atomic_load(&r->board[AWAKE]) == 0) {
        CHECK_EQ(kill((pid_t)rank_await(r, PID, 1), SIGCONT), 0);
        poll(NULL, 0, 10);
    }
    rank_await(r, AWAKE, 2);
    for (int i = 0; i < r->size; i++)
        if (i != 1) CHECK_EQ(state_of(n, i), HPC_PEER_ALIVE); /* it could not make anyone believe that others failed */
    atomic_fetch_add(&r->board[DONE], 1);
    rank_await(r, DONE, (uint64_t)r->size - 1);
    node_leave(n, NULL);
}

static int is_sought(const node *n, int who) {
    return atomic_load(&n->control->links[who].sought) != 0;
}

/* Rank 0 calls a rank that is frozen, as the parent of that has died, and leaves before there is an answer. */
static void leaves_in_a_call(rank *r) {
    enum { PARENT = 1, FROZEN = 8 };
    node *n = node_join(r, ALL_UNIX, 10);
    rank_meet(r);
    if (r->rank == FROZEN) {
        rank_set(r, PID, (uint64_t)getpid());
        raise(SIGSTOP);
    }
    const pid_t frozen = (pid_t)rank_await(r, PID, 1);
    while (r->rank != FROZEN && atomic_load(&r->board[AWAKE]) == 0 && !hpc_host_is_stopped("", frozen)) sched_yield();
    if (r->rank == PARENT) raise(SIGKILL);
    if (r->rank == 0) {
        while (!is_sought(n, FROZEN)) poll(NULL, 0, 1);
        while (hpc_control_tell(n->control, r->size - 1, 0, 1) == HPC_ERR_TIMEOUT) poll(NULL, 0, 1); /* later */
        node_leave(n, NULL);
        CHECK_EQ(kill(frozen, SIGCONT), 0);
        rank_set(r, AWAKE, 1);
        rank_await(r, DONE, (uint64_t)r->size - 2);
        return;
    }
    await_state(n, PARENT, HPC_PEER_FAILED);
    await_departure(n, 0);
    CHECK_EQ(state_of(n, 0), HPC_PEER_LEFT);
    atomic_fetch_add(&r->board[DONE], 1);
    rank_await(r, DONE, (uint64_t)r->size - 2);
    node_leave(n, NULL);
}

static void revoked(rank *r) {
    node *n = node_join(r, r->arg, 10);
    rank_meet(r);
    if (r->rank == r->size - 1) {
        hpc_group_revoke(&n->group);
        hpc_control_revoke(n->control);
    }
    const double until = ranks_now() + ranks_patience(20);
    while (!atomic_load(&n->group.revoked)) {
        CHECK(ranks_now() <= until);
        poll(NULL, 0, 1);
    }
    rank_meet(r);
    node_leave(n, NULL);
}

/* ---- what a rank says ---- */

enum { WORDS = 20, LONG = 12345 };

typedef struct heard {
    size_t size, bytes[RANKS_MOST];
    uint64_t last[RANKS_MOST];
    _Atomic uint64_t all;
    int wrong;
} heard;

static void hear(void *arg, int from, uint64_t number, const void *data, size_t nbytes, uint64_t offset,
                 uint64_t value) {
    heard *h = arg;
    if (h->bytes[from] != offset || number != 77) h->wrong = 1;
    for (size_t i = 0; i < nbytes; i++)
        if (((const unsigned char *)data)[i] != (unsigned char)((offset + i) * 7 + (size_t)from)) h->wrong = 1;
    h->bytes[from] += nbytes;
    if (value == 0) return;
    if (value != h->last[from] + 1 || h->bytes[from] != (value % 5 == 0 ? LONG : value)) h->wrong = 1;
    h->last[from] = value;
    h->bytes[from] = 0;
    atomic_fetch_add(&h->all, 1);
}

/* All ranks say words to all but some, of some lengths. Each is heard once, whole and in order. */
static void words(rank *r) {
    static const hpc_giver giver = {.hear = hear};
    heard h = {.size = (size_t)r->size};
    unsigned char data[LONG];
    char told[RANKS_MOST];
    node *n = node_open(r, r->size, 10, NULL);
    hpc_control_on_want(n->control, &giver, &h);
    CHECK_OK(node_connect(n, r->arg, 20));
    const int me = r->rank, size = r->size;
    for (size_t i = 0; i < LONG; i++) data[i] = (unsigned char)(i * 7 + (size_t)me);
    for (int i = 0; i < size; i++) told[i] = i == me || (i + me) % 3 == 0;
    for (uint64_t k = 1; k <= WORDS; k++)
        CHECK_OK(hpc_control_say(n->control, 77, told, data, k % 5 == 0 ? LONG : (size_t)k, k));
    uint64_t due = 0;
    for (int i = 0; i < size; i++) due += i != me && (i + me) % 3 != 0 ? WORDS : 0;
    const double until = ranks_now() + ranks_patience(20);
    while (atomic_load(&h.all) < due) {
        CHECK(ranks_now() <= until);
        poll(NULL, 0, 1);
    }
    rank_meet(r);
    CHECK_EQ(atomic_load(&h.all), due);
    CHECK_EQ(h.wrong, 0);
    node_leave(n, NULL);
}

/* ---- links that one side refuses ---- */

/* As a firewall does that lets no call pass. */
static void deafen(node *n) {
    hpc_control *c = n->control;
    pthread_mutex_lock(&c->lock);
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, c->tcp_fd, NULL);
    hpc_close(&c->tcp_fd);
    pthread_mutex_unlock(&c->lock);
}

/* The rank of the argument takes no calls, so it calls: the lower rank of a pair too. */
static void one_way(rank *r) {
    enum { OTHER = 10 };
    node *n = node_join(r, ALL_TCP, 10);
    if (r->rank == r->arg) deafen(n);
    rank_meet(r);
    if (r->rank == OTHER)
        while (hpc_control_tell(n->control, r->arg, 0, 9) == HPC_ERR_TIMEOUT) poll(NULL, 0, 1);
    while (r->rank == r->arg && hpc_control_told(n->control, OTHER, 0) != 9) poll(NULL, 0, 1);
    rank_meet(r);
    for (int i = 0; i < r->size; i++) CHECK_EQ(state_of(n, i), HPC_PEER_ALIVE);
    rank_meet(r);
    node_leave(n, NULL);
}

typedef struct refusal {
    _Atomic int status;
    char why[512];
} refusal;

static void take_refusal(void *arg, int from, uint64_t number, int status, const char *why, hpc_blob *blob) {
    refusal *f = arg;
    (void)from, (void)number, (void)blob;
    snprintf(f->why, sizeof f->why, "%s", why);
    atomic_store(&f->status, status);
}

/* Neither takes calls: the question fails, with the reason, and no rank counts as failed. */
static void no_way(rank *r) {
    static const hpc_giver giver = {.take = take_refusal};
    refusal f = {.status = HPC_OK};
    node *n = node_open(r, r->size, 10, NULL);
    hpc_control_on_want(n->control, &giver, &f);
    CHECK_OK(node_connect(n, ALL_TCP, 20));
    deafen(n);
    rank_meet(r);
    if (r->rank == 10) {
        CHECK_OK(hpc_control_want(n->control, 20, 5));
        const double until = ranks_now() + ranks_patience(15);
        while (atomic_load(&f.status) == HPC_OK) {
            CHECK(ranks_now() <= until);
            poll(NULL, 0, 1);
        }
        CHECK_EQ(atomic_load(&f.status), HPC_ERR_TRANSPORT);
        CHECK(strstr(f.why, "the connection to rank 20 was refused"));
    }
    rank_meet(r);
    for (int i = 0; i < r->size; i++) CHECK_EQ(state_of(n, i), HPC_PEER_ALIVE);
    rank_meet(r);
    node_leave(n, NULL);
}

int main(int argc, char **argv) {
    enum { ALONE = RANKS_SHM | RANKS_PROCESSES, GO = 1 << 1 | 1 << 0 | 1 << 2 | 1 << 15 | 1 << 3 | 1 << 23 };
    static const ranks_case cases[] = {
        {.name = "few-unix", .size = 40, .run = few, .arg = ALL_UNIX, .where = RANKS_SHM, .bare = true},
        {.name = "few-tcp", .size = 40, .run = few, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "deaths-unix",
         .size = SIZE,
         .run = deaths,
         .arg = ALL_UNIX,
         .where = ALONE,
         .victims = GO,
         .bare = true},
        {.name = "deaths-tcp",
         .size = SIZE,
         .run = deaths,
         .arg = ALL_TCP,
         .where = ALONE,
         .victims = GO,
         .bare = true},
        {.name = "deaths-mixed",
         .size = SIZE,
         .run = deaths,
         .arg = MIXED,
         .where = ALONE,
         .victims = GO,
         .bare = true},
        {.name = "leavings-unix",
         .size = SIZE,
         .run = leavings,
         .arg = ALL_UNIX,
         .where = ALONE,
         .victims = GO,
         .bare = true},
        {.name = "leavings-mixed",
         .size = SIZE,
         .run = leavings,
         .arg = MIXED,
         .where = ALONE,
         .victims = GO,
         .bare = true},
        {.name = "stops-tcp", .size = SIZE, .run = stops, .arg = ALL_TCP, .where = ALONE, .victims = GO, .bare = true},
        {.name = "together-unix",
         .size = SIZE,
         .run = together,
         .arg = ALL_UNIX,
         .where = ALONE,
         .victims = GO,
         .bare = true},
        {.name = "together-tcp",
         .size = SIZE,
         .run = together,
         .arg = ALL_TCP,
         .where = ALONE,
         .victims = GO,
         .bare = true},
        {.name = "thawed", .size = SIZE, .run = thawed, .arg = ALL_TCP, .where = ALONE, .bare = true},
        {.name = "leaves-in-a-call",
         .size = SIZE,
         .run = leaves_in_a_call,
         .where = ALONE,
         .victims = 1 << 1,
         .bare = true},
        {.name = "revoked", .size = SIZE, .run = revoked, .arg = MIXED, .where = RANKS_SHM, .bare = true},
        {.name = "words-unix", .size = SIZE, .run = words, .arg = ALL_UNIX, .where = RANKS_SHM, .bare = true},
        {.name = "words-mixed", .size = SIZE, .run = words, .arg = MIXED, .where = RANKS_SHM, .bare = true},
        {.name = "one-way-up", .size = SIZE, .run = one_way, .arg = 20, .where = RANKS_SHM, .bare = true},
        {.name = "one-way-down", .size = SIZE, .run = one_way, .arg = 4, .where = RANKS_SHM, .bare = true},
        {.name = "no-way", .size = SIZE, .run = no_way, .where = RANKS_SHM, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
