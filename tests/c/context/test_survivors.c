/* Ranks die, leave, stop or are taken for dead, at every step of a shrink: those that are left always come out with one
 * context, of themselves alone, and all with the same one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "context/context.h"
#include "control/channel.h"
#include "ranks.h"

enum { PID = 100, STOPPED, DONE, TURN };
enum { SECONDS = 30 };

/* ---- what must hold ---- */

/* The members know each other, by their ranks in the first context; nobody else is among them. */
static void check_members(const rank *r, hpc_context *c, unsigned members) {
    int n = 0, mine = hpc_context_rank(c);
    uint64_t all[RANKS_MAX], own = (uint64_t)r->rank | (uint64_t)mine << 8;
    CHECK_EQ(hpc_context_size(c), __builtin_popcount(members));
    CHECK_OK(hpc_allgather(c, &own, all, sizeof own, SECONDS));
    for (int i = 0; i < r->size; i++) {
        if (!(members >> i & 1)) continue;
        CHECK_EQ(hpc_context_first_rank(c, n), i);
        CHECK_EQ(all[n], (uint64_t)i | (uint64_t)n << 8);
        n++;
    }
    CHECK_EQ(hpc_context_first_rank(c, mine), r->rank);
    CHECK_STATUS(hpc_context_first_rank(c, n), HPC_ERR_INVALID);
}

/* Bytes can be moved in it, by every transport. */
static void use(hpc_context *c) {
    int rank = hpc_context_rank(c), size = hpc_context_size(c), next = (rank + 1) % size;
    hpc_window *w = NULL;
    uint64_t value = 0;
    unsigned char sent[3000];
    CHECK_OK(hpc_window_create(c, sizeof sent, 1, NULL, SECONDS, &w));
    ranks_fill(sent, sizeof sent, (uint64_t)rank + 1);
    CHECK_OK(hpc_put_signal(NULL, w, next, sent, sizeof sent, 0, 0, 1));
    CHECK_OK(hpc_wait_signal(w, 0, 1, (rank + size - 1) % size, SECONDS, &value));
    CHECK_EQ(ranks_first_wrong(hpc_window_data(w), sizeof sent, (uint64_t)((rank + size - 1) % size) + 1), sizeof sent);
    CHECK_OK(hpc_flush(NULL, w, -1, SECONDS));
    CHECK_OK(hpc_barrier(c, SECONDS));
    hpc_window_free(w);
}

static unsigned everybody(const rank *r) {
    return (1u << r->size) - 1;
}

static hpc_context *shrink(const rank *r, hpc_context *old) {
    hpc_context *fresh = NULL;
    CHECK_OK(hpc_context_shrink(old, &r->config, SECONDS, &fresh));
    return fresh;
}

/* A rank may have passed a shrink that another one has to make again. */
static hpc_context *shrink_until(const rank *r, hpc_context *old, unsigned members) {
    hpc_context *c = shrink(r, old);
    while (hpc_context_size(c) > __builtin_popcount(members) || hpc_barrier(c, SECONDS) != HPC_OK) {
        hpc_context *next = shrink(r, c);
        hpc_context_free(c);
        c = next;
    }
    return c;
}

static void await_departure(const hpc_context *c, int rank) {
    hpc_peer peer = {.state = HPC_PEER_ALIVE};
    while (peer.state == HPC_PEER_ALIVE) CHECK_OK(hpc_context_peer(c, rank, &peer));
}

/* ---- nobody died ---- */

static void duplicate(rank *r) {
    hpc_context *first = shrink(r, r->context), *second = shrink(r, r->context), *third = shrink(r, first);
    check_members(r, first, everybody(r));
    check_members(r, third, everybody(r));
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_barrier(first, -1));
    hpc_context_free(first);
    use(second);
    CHECK_OK(hpc_barrier(third, SECONDS));
    hpc_context_free(second);
    use(third);
    hpc_context_free(third);
}

/* Whoever is the last to go holds what the others need: every order of closing, on different ranks different ones. */
static void close_in_any_order(rank *r) {
    for (int order = 0; order < 6; order++) {
        static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        hpc_context *all[3] = {NULL};
        CHECK_OK(hpc_init(&r->oob, &r->config, &all[0]));
        all[1] = shrink(r, all[0]);
        all[2] = shrink(r, all[1]);
        use(all[2]);
        for (int i = 0; i < 3; i++) {
            hpc_context *c = all[orders[(order + r->rank) % 6][i]];
            if (r->rank & 1) CHECK_OK(hpc_context_close(c));
            hpc_context_free(c);
        }
        rank_meet(r);
    }
}

/* A rank that closes the new context has left it, and is left out of the next one, though its first one is open. */
static void leaver(rank *r) {
    hpc_context *first = shrink(r, r->context), *second;
    CHECK_OK(hpc_barrier(first, SECONDS));
    if (r->rank == 2) {
        CHECK_OK(hpc_context_close(first));
        CHECK_STATUS(hpc_context_shrink(first, &r->config, 1, &second), HPC_ERR_INVALID);
        CHECK_MESSAGE("closed");
        hpc_context_free(first);
        rank_await(r, DONE, (uint64_t)r->size - 1);
        return;
    }
    while (hpc_barrier(first, SECONDS) == HPC_OK) {
    }
    CHECK(ranks_error_names(2));
    second = shrink(r, first);
    check_members(r, second, everybody(r) & ~4u);
    use(second);
    atomic_fetch_add(&r->board[DONE], 1);
    hpc_context_free(second);
    hpc_context_free(first);
}

/* A rank leaves, and only rank 0 waits for it. When that one goes on without it the others' waits for rank 0 end too,
 * though nobody has failed. */
static void revoked(rank *r) {
    int leaver = r->size - 1;
    hpc_window *w = NULL;
    CHECK_STATUS(hpc_context_revoke(NULL), HPC_ERR_INVALID);
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, SECONDS, &w));
    rank_meet(r); /* a revoke ends the create too of whoever still is in it */
    if (r->rank == leaver) {
        hpc_window_free(w);
        CHECK_OK(hpc_context_close(r->context));
        CHECK_STATUS(hpc_context_revoke(r->context), HPC_ERR_INVALID);
        return;
    }
    CHECK_STATUS(hpc_wait_signal(w, 0, 1, r->rank == 0 ? leaver : 0, SECONDS, NULL), HPC_ERR_PEER);
    CHECK(ranks_error_names(leaver));
    CHECK(ranks_error_waits_for(r->rank == 0 ? leaver : 0));
    CHECK_OK(hpc_context_revoke(r->context));
    hpc_context *c = shrink(r, r->context);
    hpc_window_free(w);
    check_members(r, c, everybody(r) & ~(1u << leaver));
    use(c);
    hpc_context_free(c);
}

/* An abort of one context is this rank's end in all of its family: those who wait in any other one are told why. */
static void aborts_one(rank *r) {
    hpc_context *one = shrink(r, r->context), *other = shrink(r, r->context), *third = shrink(r, one);
    use(other);
    CHECK_OK(hpc_barrier(third, SECONDS));
    hpc_context *all[] = {other, r->context, third, one};
    if (r->rank == 1) {
        atomic_fetch_add(&r->board[DONE], 1);
        rank_await(r, DONE, (uint64_t)r->size);
        CHECK_OK(hpc_context_abort(one, "the test says so"));
    } else {
        atomic_fetch_add(&r->board[DONE], 1);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_STATUS(hpc_barrier(all[i], SECONDS), r->rank == 1 ? HPC_ERR_INVALID : HPC_ERR_PEER);
        CHECK_MESSAGE(r->rank == 1 ? "closed" : "the test says so");
        if (r->rank != 1) CHECK(ranks_error_names(1));
    }
    for (int i = 0; i < 4; i++)
        if (all[i] != r->context) hpc_context_free(all[i]);
}

static void *free_it(void *arg) {
    hpc_context_free(arg);
    return NULL;
}

static void *free_when_closed(void *arg) {
    hpc_context *c = arg;
    while (!atomic_load(&c->group.closed)) sched_yield();
    return free_it(c);
}

/* A thread aborts a context while others free the rest of its family, each one's own, the first context among them:
 * without a word, or as soon as it finds that one closed. */
static void aborts_and_frees(rank *r) {
    enum { FAMILY = 4 };
    for (int round = 0; round < 8; round++) {
        hpc_context *all[FAMILY] = {NULL};
        pthread_t threads[FAMILY];
        CHECK_OK(hpc_init(&r->oob, &r->config, &all[0]));
        for (int i = 1; i < FAMILY; i++) all[i] = shrink(r, all[i / 2]);
        int mine = round / 2 % FAMILY;
        for (int i = 0; i < FAMILY; i++)
            if (i != mine)
                CHECK_EQ(pthread_create(&threads[i], NULL, round & 1 ? free_it : free_when_closed, all[i]), 0);
        CHECK_OK(hpc_context_abort(all[mine], "the test says so"));
        hpc_context_free(all[mine]);
        for (int i = 0; i < FAMILY; i++)
            if (i != mine) CHECK_EQ(pthread_join(threads[i], NULL), 0);
        rank_meet(r);
    }
}

static void invalid(rank *r) {
    hpc_context *fresh = r->context;
    hpc_config wrong = r->config;
    CHECK_STATUS(hpc_context_shrink(NULL, NULL, 1, &fresh), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_context_shrink(r->context, NULL, 1, NULL), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_context_first_rank(r->context, r->size), HPC_ERR_INVALID);
    CHECK_EQ(hpc_context_first_rank(r->context, 1), 1);
    /* Every rank is told why one of them cannot shrink. */
    if (r->rank == 1) wrong.timeout = -1;
    CHECK_STATUS(hpc_context_shrink(r->context, &wrong, SECONDS, &fresh), HPC_ERR_CONFIG);
    CHECK(fresh == NULL);
    CHECK_MESSAGE("rank 1 cannot make a new context");
    fresh = shrink(r, r->context);
    check_members(r, fresh, everybody(r));
    hpc_context_free(fresh);
}

/* ---- deaths ---- */

/* arg: who dies; the others learn it in the shrink itself, or (32) by a failed collective before it. */
static void dies_before(rank *r) {
    int victim = r->arg & 31;
    rank_meet(r); /* nobody dies while another one is still in init */
    if (r->rank == victim) {
        rank_die(r);
        return;
    }
    if (r->arg & 32) CHECK_STATUS(hpc_barrier(r->context, SECONDS), HPC_ERR_PEER);
    hpc_context *c = shrink_until(r, r->context, everybody(r) & ~(1u << victim));
    check_members(r, c, everybody(r) & ~(1u << victim));
    use(c);
    hpc_context_free(c);
}

/* Its ballot reaches rank 0 and nobody else. */
static void tells_one(rank *r) {
    enum { VICTIM = 2 };
    rank_meet(r);
    if (r->rank == VICTIM) {
        unsigned char ballot[8 + RANKS_MAX] = {0};
        uint32_t head[2] = {1, (uint32_t)r->size};
        memcpy(ballot, head, sizeof head);
        CHECK_OK(hpc_link_send(r->context->control, 0, HPC_MESH_BALLOT, 1, "shrink", ballot, 8 + (size_t)r->size, -1,
                               hpc_now() + SECONDS));
        rank_die(r);
        return;
    }
    hpc_context *c = shrink_until(r, r->context, everybody(r) & ~(1u << VICTIM));
    check_members(r, c, everybody(r) & ~(1u << VICTIM));
    use(c);
    hpc_context_free(c);
}

static int is_connecting(hpc_control *c) {
    pthread_mutex_lock(&c->lock);
    int connecting = c->heir != NULL;
    pthread_mutex_unlock(&c->lock);
    return connecting;
}

static int has_connected_to(hpc_control *c, int rank) {
    pthread_mutex_lock(&c->lock);
    int connected = c->heir != NULL && atomic_load(&c->heir->states[rank]) == HPC_PEER_ALIVE;
    pthread_mutex_unlock(&c->lock);
    return connected;
}

static void *tell_connecting(void *arg) {
    rank *r = arg;
    while (!r->arg && !is_connecting(r->context->control)) sched_yield();
    while (r->arg && r->rank == 1 && !has_connected_to(r->context->control, 0)) sched_yield();
    if (r->arg && r->rank == 0) rank_await(r, DONE, 1); /* rank 1 has given the connecting up for all */
    if (r->arg) hpc_control_lose(r->context->control, 2, "its connection broke");
    atomic_fetch_add(&r->board[DONE], 1);
    return NULL;
}

typedef struct shrinking {
    hpc_context *old, *fresh;
    const hpc_config *config;
    _Atomic int over;
} shrinking;

static void *shrink_beside(void *arg) {
    shrinking *s = arg;
    if (hpc_context_shrink(s->old, s->config, SECONDS, &s->fresh) != HPC_OK) {
        CHECK_STATUS(hpc_last_error()->status, HPC_ERR_INVALID);
        CHECK_MESSAGE("shrink: the context is closed");
    }
    atomic_store(&s->over, 1);
    return NULL;
}

/* A rank aborts the first context while its other thread shrinks an heir, and has connected: no open context comes of
 * that. The others go on without it. */
static void aborts_what_shrinks(rank *r) {
    enum { ODD = 2 };
    hpc_context *heir = shrink(r, r->context);
    CHECK_OK(hpc_barrier(heir, SECONDS));
    if (r->rank == ODD) {
        shrinking s = {.old = heir, .config = &r->config};
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, shrink_beside, &s), 0);
        for (int i = 0; i < ODD; i++)
            while (!has_connected_to(r->context->control, i) && !atomic_load(&s.over)) sched_yield();
        CHECK_OK(hpc_context_abort(r->context, "the test says so"));
        CHECK_EQ(pthread_join(thread, NULL), 0);
        if (s.fresh != NULL) CHECK_STATUS(hpc_barrier(s.fresh, SECONDS), HPC_ERR_INVALID);
        hpc_context_free(s.fresh);
        hpc_context_free(heir);
        return;
    }
    hpc_context *c = shrink_until(r, heir, everybody(r) & ~(1u << ODD));
    hpc_context_free(heir);
    check_members(r, c, everybody(r) & ~(1u << ODD));
    use(c);
    hpc_context_free(c);
}

/* The message of a rank to the others, as shrink.c writes it. */
typedef struct letter {
    int32_t status;
    char why[256];
    hpc_address address;
} letter;

/* The highest rank has told its address, so all take it for a member, and dies before it calls anybody: the others, who
 * wait for its call, hear of it by the first context. arg: it lives on, but a transport finds its connection broken. */
static void never_calls(rank *r) {
    enum { VICTIM = 2 };
    hpc_context *c = NULL;
    rank_meet(r);
    if (r->rank == VICTIM) {
        char gone[VICTIM + 1] = {0};
        hpc_reply replies[VICTIM + 1];
        hpc_survivors s = {&r->context->group, NULL, gone, hpc_now() + SECONDS};
        letter mine = {0};
        CHECK_OK(hpc_control_vote(r->context->control, &s));
        CHECK_OK(hpc_context_create(VICTIM, VICTIM + 1, &r->config, &c));
        mine.address = c->self;
        CHECK_OK(hpc_control_give(r->context->control, &s, &mine, sizeof mine, replies));
        hpc_control_free_replies(r->context->control, replies);
        rank_await(r, DONE, 2); /* they connect, or are about to */
        if (!r->arg) rank_die(r);
        rank_await(r, TURN, r->arg ? 2 : 0);
        hpc_context_free(c);
        return;
    }
    double begin = ranks_now();
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, tell_connecting, r), 0);
    c = shrink_until(r, r->context, everybody(r) & ~(1u << VICTIM));
    CHECK(ranks_now() - begin < SECONDS / 4); /* not by a deadline */
    CHECK_EQ(pthread_join(thread, NULL), 0);
    check_members(r, c, everybody(r) & ~(1u << VICTIM));
    use(c);
    atomic_fetch_add(&r->board[TURN], 1);
    hpc_context_free(c);
}

/* The others cannot prove to rank 0 that they are of the job, as if another process had its port by now. It dies, which
 * they find out by voting again. */
static void proves_nothing(rank *r) {
    enum { SIZE = 3 };
    rank_meet(r);
    if (r->rank == 0) {
        hpc_context *c = NULL;
        char gone[SIZE] = {0};
        hpc_reply replies[SIZE];
        hpc_address all[SIZE];
        hpc_survivors s = {&r->context->group, NULL, gone, hpc_now() + SECONDS};
        letter mine = {0};
        CHECK_OK(hpc_control_vote(r->context->control, &s));
        CHECK_OK(hpc_context_create(0, SIZE, &r->config, &c));
        mine.address = c->self;
        mine.address.control.secret[0] ^= 1;
        CHECK_OK(hpc_control_give(r->context->control, &s, &mine, sizeof mine, replies));
        for (int i = 0; i < SIZE; i++) all[i] = i == 0 ? c->self : ((const letter *)replies[i].data)->address;
        hpc_control_free_replies(r->context->control, replies);
        CHECK_STATUS(hpc_context_connect(c, all, 0.5), HPC_ERR_TIMEOUT);
        rank_die(r);
        hpc_context_free(c);
        return;
    }
    hpc_context *c = shrink_until(r, r->context, everybody(r) & ~1u);
    check_members(r, c, everybody(r) & ~1u);
    use(c);
    hpc_context_free(c);
}

static void send_gather(hpc_context *c, int to, const char *called) {
    CHECK_OK(hpc_link_send(c->control, to, HPC_MESH_GATHER, c->control->sequence + 1, called, NULL, 0, -1,
                           hpc_now() + SECONDS));
}

/* In the shrink of an heir the highest rank gives rank 0 another word than the other, so that this one goes on in the
 * new context and closes the heir, while rank 0 fails. Its second shrink counts it as present. Only so few ranks hear
 * each other's words themselves. */
static void goes_ahead(rank *r) {
    enum { ODD = 2 };
    hpc_context *heir = shrink(r, r->context), *c = NULL;
    rank_meet(r);
    if (r->rank == ODD) {
        char gone[ODD + 1] = {0};
        hpc_reply replies[ODD + 1];
        hpc_address all[ODD + 1];
        hpc_survivors s = {&heir->group, NULL, gone, hpc_now() + SECONDS};
        letter mine = {0};
        CHECK_OK(hpc_control_vote(r->context->control, &s));
        CHECK_OK(hpc_context_create(ODD, ODD + 1, &r->config, &c));
        mine.address = c->self;
        CHECK_OK(hpc_control_give(r->context->control, &s, &mine, sizeof mine, replies));
        for (int i = 0; i <= ODD; i++) all[i] = ((const letter *)replies[i].data)->address;
        hpc_control_free_replies(r->context->control, replies);
        CHECK_OK(hpc_context_connect(c, all, SECONDS));
        for (int i = 1; i < ODD; i++) send_gather(c, i, "barrier");
        rank_await(r, DONE, ODD - 1);
        send_gather(c, 0, "oddity");
        rank_await(r, TURN, 1);
        rank_die(r);
        hpc_context_free(c);
        hpc_context_free(heir);
        return;
    }
    if (r->rank == 0) {
        CHECK_STATUS(hpc_context_shrink(heir, &r->config, SECONDS, &c), HPC_ERR_CONFIG);
        CHECK_MESSAGE("rank 0: shrink: ranks 0, 1 and 2 are left and cannot connect; as ranks 0 to 2 of the new "
                      "context: rank 0 calls barrier while rank 2 calls oddity");
        rank_set(r, TURN, 1);
        for (int i = 1; i < ODD; i++) await_departure(heir, i);
        c = heir;
    } else {
        c = shrink(r, heir);
        atomic_fetch_add(&r->board[DONE], 1);
        hpc_context_free(heir);
    }
    hpc_context *next = shrink_until(r, c, everybody(r) & ~(1u << ODD));
    hpc_context_free(c);
    check_members(r, next, everybody(r) & ~(1u << ODD));
    use(next);
    hpc_context_free(next);
}

/* Kills its process some time after the shrink has begun, or after it has begun to connect. */
typedef struct killer {
    hpc_control *control;
    uint64_t spins;
    int connects;
} killer;

static void *kill_later(void *arg) {
    const killer *k = arg;
    while (k->connects && !is_connecting(k->control)) sched_yield();
    for (_Atomic uint64_t i = 0; atomic_load(&i) < k->spins; atomic_fetch_add(&i, 1)) continue;
    raise(SIGKILL);
    return NULL;
}

enum { MANY = 6 };

/* One of members that is to die, and how. */
static int choose(unsigned members, uint64_t *seed, killer *k) {
    int victim = (int)(ranks_random(seed) % MANY);
    while (!(members >> victim & 1)) victim = (victim + 1) % MANY;
    k->connects = (int)(ranks_random(seed) % 2);
    k->spins = ranks_random(seed) % 1000000;
    k->spins >>= ranks_random(seed) % 20;
    return victim;
}

static unsigned victims_of(int arg) {
    uint64_t seed = (uint64_t)arg;
    unsigned victims = 0;
    for (int turn = 0; turn < MANY / 2; turn++) victims |= 1u << choose(~victims, &seed, &(killer){0});
    return victims;
}

/* Half of the ranks die, one in each shrink, at points that arg chooses. */
static void dies_within(rank *r) {
    uint64_t seed = (uint64_t)r->arg, started = 0;
    hpc_context *c = r->context;
    unsigned members = everybody(r);
    for (int turn = 0; turn < MANY / 2; turn++) {
        killer k = {.control = r->context->control};
        int victim = choose(members, &seed, &k);
        atomic_fetch_add(&r->board[TURN], 1); /* nobody dies while another one still checks the last turn */
        rank_await(r, TURN, started += (uint64_t)__builtin_popcount(members));
        members &= ~(1u << victim);
        if (r->rank == victim) {
            pthread_t thread;
            CHECK_EQ(pthread_create(&thread, NULL, kill_later, &k), 0);
            while (hpc_context_shrink(c, &r->config, SECONDS, &c) == HPC_OK) continue;
            CHECK_EQ(pthread_join(thread, NULL), 0);
        }
        hpc_context *next = shrink_until(r, c, members);
        if (c != r->context) hpc_context_free(c);
        c = next;
        check_members(r, c, members);
    }
    use(c);
    if (c != r->context) hpc_context_free(c);
}

/* One dies in the context that the death of another one made; the first one is closed by then, or is not. */
static void two_in_a_row(rank *r) {
    rank_meet(r);
    if (r->rank == 0) {
        rank_die(r);
        return;
    }
    hpc_context *first = shrink_until(r, r->context, everybody(r) & ~1u), *second;
    if (r->rank & 1) CHECK_OK(hpc_context_close(r->context));
    use(first);
    atomic_fetch_add(&r->board[TURN], 1);
    if (r->rank == 3) {
        rank_await(r, TURN, (uint64_t)r->size - 1); /* nobody is in use any more */
        if (!r->mode->threads) raise(SIGKILL);
        CHECK_OK(hpc_context_abort(first, "the test says so")); /* its end in the first one too */
        CHECK_STATUS(hpc_barrier(r->context, 1), HPC_ERR_INVALID);
        hpc_context_free(first);
        return;
    }
    while (hpc_barrier(first, SECONDS) == HPC_OK) {
    }
    CHECK(ranks_error_names(2)); /* what the dead rank is called there */
    second = shrink_until(r, first, everybody(r) & ~9u);
    hpc_context_free(first);
    check_members(r, second, everybody(r) & ~9u);
    use(second);
    hpc_context_free(second);
}

/* ---- a rank that does not run ---- */

static void stop(rank *r) {
    rank_set(r, PID, (uint64_t)getpid());
    raise(SIGSTOP);
}

/* A stopped rank is not gone: the shrink says who does not come, and the next one goes on where it ended. arg: it wakes
 * up, or it is killed. */
static void frozen(rank *r) {
    enum { VICTIM = 1 };
    hpc_context *c = NULL;
    unsigned members = everybody(r);
    if (r->rank == VICTIM) {
        stop(r);
    } else {
        int pid = (int)rank_await(r, PID, 1);
        CHECK_STATUS(hpc_context_shrink(r->context, &r->config, 1, &c), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(VICTIM));
        CHECK_EQ(hpc_last_error()->n_waiting, 1);
        CHECK_MESSAGE("nothing came from rank 1");
        CHECK(strcmp(hpc_last_error()->op, "shrink") == 0);
        atomic_fetch_add(&r->board[STOPPED], 1);
        rank_await(r, STOPPED, (uint64_t)r->size - 1);
        if (r->rank == 0) kill(pid, r->arg ? SIGKILL : SIGCONT);
        if (r->arg) members &= ~(1u << VICTIM);
    }
    c = shrink_until(r, r->context, members);
    check_members(r, c, members);
    use(c);
    hpc_context_free(c);
}

/* A rank that looks again and again floods nobody: it stays in one round until the last one comes. */
static void impatient(rank *r) {
    hpc_context *c = NULL;
    if (r->rank == 1) rank_await(r, DONE, 1);
    for (int i = 0; i < 100 && r->rank == 0; i++) {
        CHECK_STATUS(hpc_context_shrink(r->context, &r->config, 0, &c), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(1));
    }
    if (r->rank == 0) rank_set(r, DONE, 1);
    c = shrink(r, r->context);
    check_members(r, c, everybody(r));
    hpc_context_free(c);
}

/* Taken for dead while it was stopped: it hears so, and does not go on by itself. */
static void taken_for_dead(rank *r) {
    enum { VICTIM = 1 };
    hpc_context *c = NULL;
    r->config.silence = 1;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    if (r->rank == VICTIM) {
        stop(r);
        CHECK_STATUS(hpc_context_shrink(r->context, &r->config, SECONDS, &c), HPC_ERR_TRANSPORT);
        CHECK_MESSAGE("counts this rank as failed");
        CHECK(hpc_last_error()->peer == 0 || hpc_last_error()->peer == 2);
        return;
    }
    int pid = (int)rank_await(r, PID, 1);
    c = shrink_until(r, r->context, everybody(r) & ~(1u << VICTIM));
    check_members(r, c, everybody(r) & ~(1u << VICTIM));
    atomic_fetch_add(&r->board[DONE], 1);
    rank_await(r, DONE, (uint64_t)r->size - 1);
    if (r->rank == 0) kill(pid, SIGCONT);
    use(c);
    hpc_context_free(c);
}

/* The highest rank alone gives up rank 0, which hears of it: where others are left rank 0 goes on with them, and is
 * still none of those who were dropped when they have gone. One against one, it ends. */
static void dropped_by_one(rank *r) {
    hpc_context *c = NULL, *alone;
    int odd = r->size - 1;
    rank_meet(r); /* nobody is given up while still in init */
    if (r->rank == odd) {
        hpc_link_drop(r->context->control, 0);
        atomic_store(&r->context->control->links[0].doubted, HPC_DOUBT_SILENT); /* as after silence */
        hpc_group_depart(&r->context->group, 0, HPC_PEER_FAILED, "the test says so");
    }
    if (r->rank == 0) await_departure(r->context, odd);
    if (r->rank == (r->size > 2 ? odd : 0)) {
        CHECK_STATUS(hpc_context_shrink(r->context, &r->config, SECONDS, &c), HPC_ERR_TRANSPORT);
        CHECK_MESSAGE("counts this rank as failed");
        CHECK(r->size > 2 || hpc_last_error()->peer == odd);
        return;
    }
    unsigned members = r->size > 2 ? everybody(r) & ~(1u << odd) : 1u << odd;
    c = shrink_until(r, r->context, members);
    check_members(r, c, members);
    use(c);
    if (r->rank == 0) {
        CHECK_OK(hpc_context_close(r->context));
        for (int other = 1; other < odd; other++) await_departure(c, other);
        alone = shrink_until(r, c, 1);
        check_members(r, alone, 1);
        hpc_context_free(alone);
    }
    hpc_context_free(c);
}

/* ---- votes ---- */

/* The first words of each of three ranks, by rank, and the ranks that are out then. In the last case two ranks accuse
 * each other. */
static const struct {
    unsigned said[3], out;
} ballots[] = {
    {{0, 0, 0}, 0}, {{2, 0, 0}, 2}, {{0, 0, 2}, 2}, {{4, 4, 0}, 4}, {{4, 0, 0}, 4}, {{0, 1, 0}, 1}, {{2, 1, 0}, 2},
};

static void votes(rank *r) {
    char gone[3];
    hpc_survivors s = {&r->context->group, NULL, gone, hpc_now() + SECONDS};
    for (int i = 0; i < 3; i++) gone[i] = (char)(ballots[r->arg].said[r->rank] >> i & 1);
    int status = hpc_control_vote(r->context->control, &s);
    if (ballots[r->arg].out >> r->rank & 1) {
        CHECK_STATUS(status, HPC_ERR_TRANSPORT);
    } else {
        CHECK_OK(status);
        for (int i = 0; i < 3; i++) CHECK_EQ(gone[i], ballots[r->arg].out >> i & 1);
        /* Every rank that is left gives something. */
        hpc_reply replies[3];
        int mine = 10 + r->rank;
        CHECK_OK(hpc_control_give(r->context->control, &s, &mine, sizeof mine, replies));
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(replies[i].data == NULL, gone[i]);
            if (!gone[i]) CHECK_EQ(*(int *)replies[i].data, 10 + i);
        }
        hpc_control_free_replies(r->context->control, replies);
    }
    rank_meet(r);
}

/* Rank 2 stands still, its socket is full, and the others count it as gone: they vote without waiting for it. */
static void gone_and_deaf(rank *r) {
    enum { DEAF = 2 };
    char gone[DEAF + 1] = {[DEAF] = 1}, filler[20000] = {0};
    double begin = ranks_now();
    hpc_survivors s = {&r->context->group, NULL, gone, hpc_now() + SECONDS};
    if (r->rank == DEAF) stop(r);
    int pid = (int)rank_await(r, PID, 1), sent = HPC_OK;
    while (r->rank == 0 && sent == HPC_OK)
        sent = hpc_link_send(r->context->control, DEAF, HPC_MESH_BALLOT, 0, "shrink", filler, sizeof filler, -1, 0);
    CHECK_STATUS(sent, r->rank == 0 ? HPC_ERR_TIMEOUT : HPC_OK);
    CHECK_OK(hpc_control_vote(r->context->control, &s));
    CHECK(ranks_now() - begin < SECONDS / 4);
    if (atomic_fetch_add(&r->board[DONE], 1) == 1) kill(pid, SIGKILL);
}

int main(int argc, char **argv) {
    static const ranks_case fixed[] = {
        {.name = "duplicate", .size = 3, .run = duplicate},
        {.name = "duplicate-alone", .size = 1, .run = duplicate},
        {.name = "close-in-any-order", .size = 3, .run = close_in_any_order, .where = RANKS_UNSEEDED, .bare = true},
        {.name = "leaver", .size = 4, .run = leaver, .apart = true},
        {.name = "revoked", .size = 4, .run = revoked, .apart = true},
        {.name = "aborts-one", .size = 3, .run = aborts_one, .apart = true},
        {.name = "aborts-and-frees", .size = 3, .run = aborts_and_frees, .where = RANKS_UNSEEDED, .bare = true},
        {.name = "aborts-what-shrinks", .size = 3, .run = aborts_what_shrinks, .apart = true},
        {.name = "invalid", .size = 3, .run = invalid},
        {.name = "dies-0", .size = 4, .run = dies_before, .arg = 0, .victims = 1},
        {.name = "dies-1", .size = 4, .run = dies_before, .arg = 1, .victims = 2},
        {.name = "dies-3-of-4", .size = 4, .run = dies_before, .arg = 3, .victims = 8},
        {.name = "dies-1-of-2", .size = 2, .run = dies_before, .arg = 1, .victims = 2},
        {.name = "died-0", .size = 4, .run = dies_before, .arg = 32, .victims = 1},
        {.name = "died-2", .size = 4, .run = dies_before, .arg = 34, .victims = 4},
        {.name = "tells-one", .size = 4, .run = tells_one, .victims = 4},
        {.name = "never-calls", .size = 3, .run = never_calls, .victims = 4},
        {.name = "loses-its-connection", .size = 3, .run = never_calls, .arg = 1, .victims = 4, .apart = true},
        {.name = "proves-nothing", .size = 3, .run = proves_nothing, .where = RANKS_TCP, .victims = 1},
        {.name = "goes-ahead", .size = 3, .run = goes_ahead, .victims = 4},
        {.name = "two-in-a-row", .size = 5, .run = two_in_a_row, .victims = 9},
        {.name = "frozen-wakes", .size = 3, .run = frozen, .where = RANKS_SHM | RANKS_PROCESSES},
        {.name = "frozen-dies", .size = 3, .run = frozen, .arg = 1, .where = RANKS_SHM | RANKS_PROCESSES, .victims = 2},
        {.name = "gone-and-deaf",
         .size = 3,
         .run = gone_and_deaf,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 4,
         .apart = true},
        {.name = "impatient", .size = 3, .run = impatient},
        {.name = "taken-for-dead",
         .size = 3,
         .run = taken_for_dead,
         .where = RANKS_TCP | RANKS_PROCESSES,
         .apart = true,
         .bare = true},
        {.name = "dropped-by-1-of-4", .size = 4, .run = dropped_by_one, .where = RANKS_TCP, .apart = true},
        {.name = "dropped-by-1-of-2", .size = 2, .run = dropped_by_one, .where = RANKS_TCP, .apart = true},
    };
    enum { FIXED = sizeof fixed / sizeof *fixed, VOTES = sizeof ballots / sizeof *ballots, SEEDS = 12 };
    static ranks_case cases[FIXED + VOTES + SEEDS + 1];
    static char names[VOTES + SEEDS][24];
    int n = 0;
    for (; n < FIXED; n++) cases[n] = fixed[n];
    for (int i = 0; i < VOTES + SEEDS; i++, n++) {
        snprintf(names[i], sizeof names[i], i < VOTES ? "votes-%d" : "dies-within-%d", i < VOTES ? i : i - VOTES);
        cases[n] = i < VOTES
                       ? (ranks_case){.name = names[i], .size = 3, .run = votes, .arg = i, .where = RANKS_UNSEEDED}
                       : (ranks_case){.name = names[i],
                                      .size = MANY,
                                      .run = dies_within,
                                      .arg = i - VOTES,
                                      .where = RANKS_PROCESSES,
                                      .victims = victims_of(i - VOTES)};
    }
    return ranks_main(argc, argv, cases);
}
