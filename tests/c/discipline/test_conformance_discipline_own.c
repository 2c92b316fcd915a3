/* Fold and apply in two calls, where each update is applied by itself: a fold keeps its worker's own update, which the
 * worker scales, skips and applies without asking others. disciplines.c has the combinations. */
#include <math.h>

#include "disciplines.h"

static bool keeps_own(const combination *c) {
    return (c->with & SPLIT) != 0 && !keeps_mean(c);
}

typedef enum action { ONCE, TWICE, SKIPPED, NOTHING, REPLACED, ACTIONS } action;

/* The last worker does nothing but skip from some step on. */
static action action_of(const trial *t, int who, int step) {
    return who == t->slow && step > 7 ? SKIPPED : (action)((who + step) % ACTIONS);
}

static uint64_t applied_by(const trial *t, int who, int steps) {
    static const uint64_t of[ACTIONS] = {[ONCE] = 1, [TWICE] = 2, [REPLACED] = 1};
    uint64_t n = 0;
    for (int step = 0; step < steps; step++) n += of[action_of(t, who, step)];
    return n;
}

static void check_own(trial *t, int key) {
    const uint64_t count = t->j->keys[key].count, n = (uint64_t)t->j->n_workers;
    const float unit = t->j->sum ? 1 : (float)n;
    double *own = calloc(count, sizeof *own), squares = 0;
    for (uint64_t i = 0; i < count; i++) {
        own[i] = t->j->workers[i % n] == t->r->rank ? (double)unit : 0;
        squares += own[i] * own[i];
    }
    trial_check_squares(t, key, squares);
    trial_check_gathered(t, key, own);
    free(own);
}

static void act(trial *t, int key, int step) {
    const action what = action_of(t, t->r->rank, step);
    uint64_t ticket;
    if (what == NOTHING)
        CHECK_OK(hpc_exchange_fold_nothing(t->e, key, -1, &ticket));
    else
        CHECK_OK(trial_start(t, key, HPC_PUSH, -1, &ticket));
    if (what == REPLACED) CHECK_OK(trial_start(t, key, HPC_PUSH, -1, &ticket));
    trial_wait(t, key, ticket);
    if (what != NOTHING && step % 3 == 0) check_own(t, key);
    if (what == SKIPPED)
        trial_skip(t, key);
    else
        trial_apply(t, key, what == TWICE ? 2 : 1);
}

static bool has_update(const trial *t, int who, int step) {
    const action what = action_of(t, who, step);
    return what != SKIPPED && what != NOTHING;
}

/* How often the rule runs in so many steps: once for what the workers of a group fold together, unless none has an
 * update. */
static uint64_t rule_runs(const trial *t, int steps) {
    uint64_t n = 0;
    for (int step = 0; step < steps; step++)
        for (int first = 0; first < t->r->size; first++) {
            bool any = false;
            for (int who = first; who < t->r->size && group_of(t->c, first) == group_of(t->c, who); who++)
                any |= trial_works(t, who) && has_update(t, who, step);
            if (first == 0 || group_of(t->c, first - 1) != group_of(t->c, first)) n += any;
        }
    return n;
}

static void check_runs(trial *t, int steps) {
    const bool known = t->c->edges == SERVERS || t->c->edges == HOSTS;
    for (int i = 0; i < t->plan->n_rows && known; i++) {
        uint64_t step;
        if (t->plan->rows[i].owner != t->r->rank || t->plan->rows[i].action != HPC_APPLY) continue;
        CHECK_OK(hpc_exchange_get_row(t->e, i, &step, NULL, NULL));
        CHECK_EQ(step, rule_runs(t, steps));
    }
}

/* Each worker applies, scales, skips and replaces its own updates, and others hear of what was applied alone. No rank
 * waits for one that skips, and no rule runs for it. */
static void own(rank *r) {
    enum { STEPS = 16 };
    trial *t = trial_open(r, trial_in_time);
    uint64_t random = 3 * (uint64_t)r->rank + r->mode->seed, steps[RANKS_MAX] = {0};
    for (int round = 1; round <= 2; round++) {
        for (int step = (round - 1) * STEPS / 2; step < round * STEPS / 2 && trial_works(t, r->rank); step++)
            for (int key = 0; key < t->j->n_keys; key++) {
                trial_dawdle(&random);
                act(t, key, step);
            }
        for (int who = 0; who < r->size; who++) steps[who] = applied_by(t, who, round * STEPS / 2);
        trial_settle(t);
        trial_publish(t);
        trial_check(t, steps);
        trial_check_rows(t, steps);
        check_runs(t, round * STEPS / 2);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    trial_close(t);
}

/* Calls that come too early, and a rank that closes with a fold. */
static void own_refuses(rank *r) {
    trial *t = trial_open(r, NULL);
    uint64_t ticket;
    float *before = hpc_exchange_params(t->e, 0);
    if (trial_works(t, r->rank)) {
        CHECK_STATUS(hpc_exchange_apply(t->e, 0, 1, -1, &ticket), HPC_ERR_INVALID);
        CHECK_MESSAGE("key k0 has no fold on rank");
        CHECK_STATUS(hpc_exchange_skip(t->e, 0, -1, &ticket), HPC_ERR_INVALID);
        CHECK_OK(trial_start(t, 0, HPC_PUSH, -1, &ticket));
        CHECK_STATUS(hpc_exchange_apply(t->e, 0, INFINITY, -1, &ticket), HPC_ERR_INVALID);
        CHECK_MESSAGE("it must be finite");
        trial_apply(t, 0, 1);
        CHECK_STATUS(hpc_exchange_squares(t->e, 0, -1, &ticket), HPC_ERR_INVALID);
        CHECK_OK(hpc_exchange_start(t->e, 0, HPC_PULL, NULL, -1, &ticket));
        trial_wait(t, 0, ticket);
        CHECK_OK(trial_start(t, 1, HPC_PUSH, -1, &ticket));
        CHECK(before == hpc_exchange_params(t->e, 0));
    }
    trial_close(t);
}

int main(int argc, char **argv) {
    static const property properties[] = {
        {.name = "own", .run = own, .applies = keeps_own},
        {.name = "own_refuses", .run = own_refuses, .applies = keeps_own},
        {0},
    };
    return disciplines_main(argc, argv, properties);
}
