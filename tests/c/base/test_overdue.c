/* Waits that last: a rank that computes is waited for and told of, a rank that is stopped and a deadlock end them. */
#define _GNU_SOURCE
#include "base/overdue.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "context/context.h"
#include "exchange_plans.h"
#include "ranks.h"

enum { VICTIM = 3, WARNED = 8, GO_ON = 9, ENOUGH = 3 };

/* ---- what looks make of the answers ---- */

enum { ANSWERS = 32 };

/* Findings of looks, one after the other; the last one again and again. */
typedef struct script {
    hpc_group group;
    _Atomic int states[2];
    _Atomic char departing[2];
    struct {
        int state;
        double seconds;
        uint64_t moved;
    } answers[ANSWERS];
    int n, looks, warnings, ends_after; /* looks; 0: never */
    int keeps_notes;
} script;

static void answer(void *arg, hpc_inquiry *q) {
    script *s = arg;
    const int at = s->looks < s->n ? s->looks : s->n - 1;
    CHECK_EQ(q->asks, HPC_ASK_ENDS);
    s->looks++;
    q->n_culprits = 1;
    q->culprits[0] =
        (hpc_culprit){.rank = 1, .state = s->answers[at].state, .seconds = s->answers[at].seconds, .op = "test"};
    q->moved = s->answers[at].moved;
}

static void count(void *arg, const char *sentence) {
    CHECK(strstr(sentence, "rank 0: test has waited"));
    CHECK(strstr(sentence, " s for rank 1 and keeps waiting (until 20 s): rank 1 has computed for "));
    ((script *)arg)->warnings++;
}

static int ends(void *arg) {
    const script *s = arg;
    return s->ends_after > 0 && s->looks >= s->ends_after;
}

static int for_rank_1(void *arg, int *ranks) {
    (void)arg;
    ranks[0] = 1;
    return 1;
}

/* A wait of rank 0 that looks after 6 ms, then at first soon, then each 20 ms. It warns after 60 ms. */
static int run(rank *r, script *s) {
    const hpc_wait wait = {"test", ends, for_rank_1, s, .every = 0};
    s->group.size = 2;
    s->group.timeout = 20;
    s->group.look_after = 0.06;
    s->group.states = s->states;
    s->group.departing = s->departing;
    s->group.bell = r->context->group.bell;
    s->group.owner = r->context->group.owner;
    s->group.follow = answer;
    s->group.warn = s->keeps_notes ? NULL : count;
    s->group.follow_arg = s->group.warn_arg = s;
    return hpc_wait_for(&s->group, &wait, -1);
}

static void check_held_up(int status, int state) {
    CHECK_STATUS(status, HPC_ERR_TIMEOUT);
    CHECK_EQ(hpc_last_error()->detail, HPC_DETAIL_HELD_UP);
    CHECK_EQ(hpc_last_error()->culprits[0].state, state);
    CHECK(!hpc_slice_is_over(status));
    CHECK_STATUS(hpc_follow_timeout(1), HPC_ERR_TIMEOUT); /* all is known */
    CHECK_EQ(hpc_last_error()->culprits[0].state, state);
}

/* A circle that moves something is none yet, nor is one whose waits have just begun. */
static void moving_circle(rank *r) {
    static script s;
    const double seconds[] = {1, 1, 1, 0.001, 1, 1};
    const uint64_t moved[] = {1, 2, 3, 3, 3, 3};
    for (s.n = 0; s.n < 6; s.n++) {
        s.answers[s.n].state = HPC_CULPRIT_CIRCLE;
        s.answers[s.n].seconds = seconds[s.n];
        s.answers[s.n].moved = moved[s.n];
    }
    check_held_up(run(r, &s), HPC_CULPRIT_CIRCLE);
    CHECK_EQ(s.looks, 5); /* the wait that had just begun at the fourth look has lasted since */
    CHECK_EQ(s.warnings, 0);
}

/* Only a rank that two looks find stopped ends the wait; here it runs again in between. */
static void stopped_twice(rank *r) {
    static script s;
    const int states[] = {HPC_CULPRIT_STOPPED, HPC_CULPRIT_COMPUTING, HPC_CULPRIT_STOPPED, HPC_CULPRIT_STOPPED};
    for (s.n = 0; s.n < 4; s.n++) s.answers[s.n].state = states[s.n];
    check_held_up(run(r, &s), HPC_CULPRIT_STOPPED);
    CHECK_EQ(s.looks, 4);
    hpc_blamed blamed[HPC_BLAMED];
    CHECK_EQ(hpc_blame_read(&s.group.blame, 1, blamed), 1);
}

/* Warned of: 60 ms, 120, 240 of one computation, and 60 of the next. Nobody is blamed, as the wait is over at last. */
static void doublings(rank *r) {
    static script s;
    const double seconds[] = {0.06, 0.08, 0.1, 0.12, 0.14, 0.24, 0.26, 0.01, 0.03, 0.06, 0.08, 0.08};
    for (s.n = 0; s.n < 12; s.n++) {
        s.answers[s.n].state = HPC_CULPRIT_COMPUTING;
        s.answers[s.n].seconds = seconds[s.n];
    }
    s.ends_after = 12;
    CHECK_OK(run(r, &s));
    CHECK_EQ(s.warnings, 4);
    hpc_blamed blamed[HPC_BLAMED];
    CHECK_EQ(hpc_blame_read(&s.group.blame, 1, blamed), 0);
}

/* Without a function that takes warnings they become notes. */
static void noted(rank *r) {
    static script s;
    s.answers[0].state = HPC_CULPRIT_SILENT;
    s.answers[0].seconds = 0.06;
    s.n = 1;
    s.ends_after = 2;
    s.keeps_notes = 1;
    CHECK_OK(run(r, &s));
    CHECK(hpc_group_note_at(&s.group, 0) != NULL);
    CHECK(strstr(hpc_group_note_at(&s.group, 0), "rank 1 has not answered"));
    CHECK_EQ(s.group.note_kinds[0], HPC_NOTE_HELD_UP);
    CHECK(hpc_group_note_at(&s.group, 1) == NULL);
}

/* ---- what ranks do ---- */

static _Atomic int warnings[RANKS_MAX];

static void take_warning(void *arg, const char *sentence) {
    rank *r = arg;
    int n = atomic_fetch_add(&warnings[r->rank], 1) + 1;
    CHECK(strstr(sentence, " computed for "));
    if (r->rank == 0) rank_set(r, WARNED, (uint64_t)n);
}

static hpc_window *begin(rank *r, double look_after) {
    hpc_window *w;
    r->config.timeout = 1800;
    r->config.look_after = ranks_patience(look_after);
    r->config.warn = take_warning;
    r->config.warn_arg = r;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    CHECK_OK(hpc_window_create(r->context, 64, r->size, NULL, -1, &w));
    rank_meet(r);
    return w;
}

static void finish(rank *r, hpc_window *w) {
    hpc_window_free(w);
    hpc_context_free(r->context);
    r->context = NULL;
}

/* All wait for one that computes: they go on, and the lowest of them tells of it. */
static void computes(rank *r) {
    hpc_window *w = begin(r, 0.3);
    if (r->rank != 0) rank_await(r, WARNED, r->rank == VICTIM ? ENOUGH : 1);
    for (int i = 0; i < VICTIM && r->rank == VICTIM; i++) CHECK_OK(hpc_put_signal(NULL, w, i, NULL, 0, 0, VICTIM, 1));
    if (r->rank != VICTIM) CHECK_OK(hpc_wait_signal(w, VICTIM, 1, VICTIM, -1, NULL));
    int n = atomic_load(&warnings[r->rank]);
    CHECK(r->rank == 0 ? n >= ENOUGH : n <= 1); /* one, if rank 0 was too busy to answer */
    hpc_blamed blamed[HPC_BLAMED];
    CHECK_EQ(hpc_group_blamed(&r->context->group, 1, blamed), 0);
    rank_meet(r);
    finish(r, w);
}

/* Rank 0 waits for long for one that is busy with another: these wait for each other all the time, and go on. */
static void busy(rank *r) {
    hpc_window *w = begin(r, 0.6);
    const int other = 3 - r->rank;
    uint64_t n = 0;
    for (double until = ranks_now() + ranks_patience(2); r->rank != 0 && n < UINT64_MAX;) {
        const int last = r->rank == 1 && ranks_now() >= until; /* rank 1 says when it is over */
        n = last ? UINT64_MAX : n + 1;
        if (r->rank == 1) CHECK_OK(hpc_put_signal(NULL, w, other, NULL, 0, 0, r->rank, n));
        if (!last) CHECK_OK(hpc_wait_signal(w, other, n, other, -1, &n));
        if (r->rank == 2) CHECK_OK(hpc_put_signal(NULL, w, other, NULL, 0, 0, r->rank, n));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    rank_meet(r);
    finish(r, w);
}

/* More than sockets hold: a rank that is stopped blocks those that send to it. */
static int gather_much(rank *r) {
    enum { MUCH = 4 << 20 };
    char *all = calloc((size_t)r->size + 1, MUCH);
    CHECK(all);
    const int status = hpc_allgather(r->context, all + (size_t)r->size * MUCH, all, MUCH, -1);
    free(all);
    return status;
}

static int wait_somehow(rank *r, hpc_window *w, int how) {
    int peer = (r->rank + 1) % r->size, status;
    if (how == 0) return hpc_wait_signal(w, peer, 1, peer, -1, NULL);
    if (how == 1) return hpc_barrier(r->context, -1);
    if (how == 3) return gather_much(r);
    do status = hpc_wait_signal(w, peer, 1, peer, 0.02, NULL); /* in slices */
    while (status == HPC_ERR_TIMEOUT && hpc_last_error()->detail != HPC_DETAIL_HELD_UP);
    return status;
}

/* Nobody leaves before all know: else some hear it from those that left. */
static void stopped(rank *r) {
    r->config.slice = r->arg == 2 ? 0.1 : 0;
    hpc_window *w = begin(r, 0.6);
    if (r->rank == VICTIM) raise(SIGSTOP);
    check_held_up(wait_somehow(r, w, r->arg), HPC_CULPRIT_STOPPED);
    CHECK_EQ(hpc_last_error()->culprits[0].rank, VICTIM);
    rank_set(r, r->rank, 1);
    for (int i = 0; i < VICTIM; i++) rank_await(r, i, 1);
    finish(r, w);
}

static void circle(rank *r) {
    r->config.slice = r->arg == 2 ? 0.1 : 0;
    hpc_window *w = begin(r, 0.6);
    check_held_up(wait_somehow(r, w, r->arg), HPC_CULPRIT_CIRCLE);
    CHECK_EQ(hpc_last_error()->n_culprits, r->size);
    rank_meet(r);
    finish(r, w);
}

/* Rank 0 alone looks, finds the deadlock and leaves: the others have the same error from it. Calls have their names,
 * and all are told which one is for every rank. */
static void circle_is_heard(rank *r) {
    hpc_window *w = begin(r, r->rank == 0 ? 0.6 : 1000);
    const char *own = r->rank == 0 ? "state_dict()" : "step()";
    CHECK(hpc_calling_enter(hpc_calling_named(own, r->rank == 0)) == NULL);
    check_held_up(wait_somehow(r, w, 0), HPC_CULPRIT_CIRCLE);
    CHECK_EQ(hpc_last_error()->n_culprits, r->size);
    CHECK_EQ(strcmp(hpc_last_error()->op, own), 0);
    CHECK(strstr(hpc_last_error()->message,
                 "ranks 0, 1 and 2 wait for each other: rank 0 is in state_dict(), which every rank must call; ranks 1 "
                 "and 2 are in step() (a deadlock of the program)"));
    CHECK(hpc_calling_enter(NULL) == hpc_calling_named(own, r->rank == 0)); /* the same name once */
    finish(r, w);
}

/* Rows that a rank works off count as moved: a fold that takes long is no deadlock. */
static void folds(rank *r) {
    job j;
    hpc_exchange_stats stats;
    job_init(&j, r);
    hpc_exchange *e = job_open(r, &j);
    rank_meet(r);
    for (int step = 0; step < 2; step++) {
        uint64_t moved = hpc_watch_moved(&r->context->group.watch), applied;
        CHECK_OK(hpc_exchange_get_stats(e, &stats));
        applied = stats.applied;
        for (int key = 0; key < j.n_keys; key++) job_push_pull(r, &j, e, key, step);
        rank_meet(r);
        CHECK_OK(hpc_exchange_get_stats(e, &stats));
        CHECK(stats.applied == applied || hpc_watch_moved(&r->context->group.watch) > moved);
        rank_meet(r);
    }
    hpc_exchange_free(e);
    hpc_watch_moved(&r->context->group.watch); /* its cores are gone */
}

int main(int argc, char **argv) {
    const unsigned dies = 1 << VICTIM;
    const ranks_case cases[] = {
        {.name = "moving_circle", .size = 1, .run = moving_circle},
        {.name = "stopped_twice", .size = 1, .run = stopped_twice},
        {.name = "doublings", .size = 1, .run = doublings},
        {.name = "noted", .size = 1, .run = noted},
        {.name = "computes", .size = 4, .run = computes, .bare = true},
        {.name = "busy", .size = 3, .run = busy, .bare = true},
        {.name = "stopped", .size = 4, .run = stopped, .victims = dies, .where = RANKS_PROCESSES, .bare = true},
        {.name = "stopped_in_barrier",
         .size = 4,
         .run = stopped,
         .arg = 1,
         .victims = dies,
         .where = RANKS_PROCESSES,
         .bare = true},
        {.name = "stopped_in_slices",
         .size = 4,
         .run = stopped,
         .arg = 2,
         .victims = dies,
         .where = RANKS_PROCESSES,
         .bare = true},
        {.name = "stopped_in_allgather",
         .size = 4,
         .run = stopped,
         .arg = 3,
         .victims = dies,
         .where = RANKS_PROCESSES | RANKS_SHM, /* TCP's buffers would hold it all */
         .bare = true},
        {.name = "circle", .size = 3, .run = circle, .bare = true},
        {.name = "circle_in_slices", .size = 3, .run = circle, .arg = 2, .bare = true},
        {.name = "circle_is_heard", .size = 3, .run = circle_is_heard, .bare = true},
        {.name = "folds", .size = 2, .run = folds},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
