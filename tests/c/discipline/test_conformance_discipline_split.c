/* What fold and apply in two calls promise, wherever they go: whatever happens in between, the parameters are those of
 * the folds that were applied; and ranks that do not agree, or stop in between, are named. disciplines.c has the
 * combinations. */
#include <math.h>

#include "disciplines.h"
#include "inside.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* Whether it is known which updates are in a mean, while no rank is late: not of models, which are not what the
 * reference has. */
static bool is_known(const combination *c) {
    return keeps_mean(c) && (is_whole(c) || (c->quorum > 0 && c->staleness == 0)) && !(c->with & MODELS);
}

/* Owners apply for all; a peer, and a rank of a graph, decide for their own parameters. */
static bool decides_alone(const combination *c) {
    return keeps_mean(c) && (c->edges == PEERS || c->edges == GRAPH);
}

static bool decides_together(const combination *c) {
    return keeps_mean(c) && !decides_alone(c);
}

/* Whether the updates of some ranks decide for all, and the others are late. */
static bool has_quorum(const combination *c) {
    return decides_together(c) && c->quorum > 0;
}

static bool waits_for_all(const combination *c) {
    return keeps_mean(c) && is_whole(c);
}

static bool is_known_and_alone(const combination *c) {
    return is_known(c) && decides_alone(c);
}

static bool decides_by_args(const combination *c) {
    return decides_together(c) && c->quorum == 0;
}

static void with_momentum(trial *t) {
    trial_in_time(t);
    t->j->rule = "momentum", t->j->args[1] = 0.5, t->j->args[3] = 0.5;
}

static bool is_empty(int who, int step, int key) {
    return step % 5 == 4 && (step % 10 == 9 || (who + key) % 2 == 0);
}

/* The fold of a step at this rank, by the graph of its push, and whether any of its workers has an update. */
static bool sum_of_push(const trial *t, int push, int step, int key, double *sum) {
    bool any = false;
    memset(sum, 0, t->j->keys[key].count * sizeof *sum);
    for (int who = 0; who < t->r->size; who++) {
        if (!trial_hears(t, t->r->rank, who, push) || is_empty(who, step, key)) continue;
        any = true;
        for (uint64_t i = 0; i < t->j->keys[key].count; i++) sum[i] += (double)job_gradient(t->j, who, step, key, i);
    }
    return any;
}

static bool sum_of(const trial *t, int step, int key, double *sum) {
    return sum_of_push(t, step, step, key, sum);
}

static void fold(trial *t, int key, int step) {
    uint64_t ticket;
    if (is_empty(t->r->rank, step, key))
        CHECK_OK(hpc_exchange_fold_nothing(t->e, key, -1, &ticket));
    else
        ticket = job_start(t->r, t->j, t->e, key, step, HPC_PUSH, false);
    trial_wait(t, key, ticket);
    t->pushed[key]++;
}

/* What a gather has given is folded again, twice of it by one rank. */
static void fold_again(trial *t, int key, const double *sum) {
    void *gradient;
    uint64_t ticket;
    CHECK_OK(hpc_exchange_gradient(t->e, key, -1, &gradient));
    CHECK(gradient == hpc_exchange_gathered(t->e, key));
    for (uint64_t i = 0; i < t->j->keys[key].count; i++)
        ((float *)gradient)[i] = t->r->rank == 0 ? (float)(2 * sum[i]) : 0;
    CHECK_OK(hpc_exchange_start(t->e, key, HPC_PUSH, NULL, -1, &ticket));
    trial_apply(t, key, 0.5);
}

/* Folds that are looked at, gathered, replaced, skipped, or applied with a scale; and workers without an update, where
 * an apply changes nothing if none has any. */
static void between(rank *r) {
    trial *t = trial_open(r, with_momentum);
    reference ref;
    reference_init(&ref, t->j);
    for (int step = 0; step < 12; step++)
        for (int key = 0; key < t->j->n_keys; key++) {
            const uint64_t count = t->j->keys[key].count;
            const double scale = step % 2 ? 0.5 : 1;
            double *sum = malloc(count * sizeof *sum), squares = 0;
            if (step % 6 == 5 && t->c->quorum == 0) fold(t, key, step + 1); /* which is replaced */
            fold(t, key, step);
            const bool any = sum_of_push(t, t->pushed[key] - 1, step, key, sum);
            for (uint64_t i = 0; i < count; i++) squares += sum[i] * sum[i];
            for (int twice = 0; twice < step % 3; twice++) trial_check_squares(t, key, squares);
            if (step % 4 == 1) trial_check_gathered(t, key, sum);
            if (has_quorum(t->c)) trial_meet(t); /* the first apply ends the mean for all */
            if (step % 4 == 3) {
                trial_skip(t, key);
            } else if (step == 5 && decides_together(t->c) && !has_quorum(t->c)) {
                fold_again(t, key, sum);
                reference_apply(&ref, key, sum);
            } else {
                for (uint64_t i = 0; i < count; i++) sum[i] *= scale;
                trial_apply(t, key, scale);
                if (any) reference_apply(&ref, key, sum);
            }
            reference_check(&ref, r, t->e, key);
            free(sum);
        }
    reference_free(&ref);
    trial_close(t);
}

/* Folds and applies of all keys are under way at once, in an order of each rank's own. The rule's arguments are those
 * of the apply. */
static void at_once(rank *r) {
    trial *t = trial_open(r, with_momentum);
    const int n = t->j->n_keys;
    uint64_t tickets[JOB_KEYS];
    reference ref;
    reference_init(&ref, t->j);
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < n; i++) {
            const int key = (i + r->rank) % n;
            tickets[key] = job_start(r, t->j, t->e, key, step, HPC_PUSH, true);
        }
        t->j->args[1] = step % 2 ? 0.25 : 1;
        CHECK_OK(hpc_exchange_set_args(t->e, -1, t->j->args));
        for (int key = 0; key < n; key++) CHECK_OK(hpc_exchange_apply(t->e, key, 1, -1, &tickets[key]));
        for (int key = n; key-- > 0;) {
            double *sum = malloc(t->j->keys[key].count * sizeof *sum);
            trial_wait(t, key, tickets[key]);
            sum_of(t, step, key, sum);
            reference_apply(&ref, key, sum);
            reference_check(&ref, r, t->e, key);
            free(sum);
        }
    }
    CHECK_STATUS(hpc_exchange_apply(t->e, 0, 1, -1, &tickets[0]), HPC_ERR_INVALID);
    CHECK_MESSAGE("has no fold on rank");
    reference_free(&ref);
    trial_close(t);
}

/* A peer skips a fold that the others apply: its copy alone lacks that update. */
static void one_skips(rank *r) {
    enum { KEY = 1 };
    trial *t = trial_open(r, with_momentum);
    reference ref;
    reference_init(&ref, t->j);
    for (int step = 0; step < 3; step++) {
        double *sum = malloc(t->j->keys[KEY].count * sizeof *sum);
        sum_of(t, step, KEY, sum);
        fold(t, KEY, step);
        if (step == 1 && r->rank == t->slow) {
            trial_skip(t, KEY);
        } else {
            trial_apply(t, KEY, 1);
            reference_apply(&ref, KEY, sum);
        }
        reference_check(&ref, r, t->e, KEY);
        free(sum);
    }
    reference_free(&ref);
    trial_close(t);
}

/* Gathers the mean, whose squares are as they are told. */
static float *seen_mean(trial *t, int key) {
    const uint64_t count = t->j->keys[key].count;
    double found = -1, squares = 0;
    float *mean = malloc(count * sizeof *mean);
    uint64_t ticket;
    CHECK_OK(hpc_exchange_gather(t->e, key, -1, &ticket));
    trial_wait(t, key, ticket);
    memcpy(mean, hpc_exchange_gathered(t->e, key), count * sizeof *mean);
    CHECK_OK(hpc_exchange_squares(t->e, key, -1, &ticket));
    trial_wait(t, key, ticket);
    CHECK_OK(hpc_exchange_get_squares(t->e, key, &found));
    for (uint64_t i = 0; i < count; i++) squares += (double)mean[i] * (double)mean[i];
    CHECK(fabs(found - squares) <= 1e-6 * squares);
    return mean;
}

/* Parameters that have come of a mean. In a share in which no rank has a model it changes none. */
static float after(const trial *t, float before, float mean, float now) {
    if (t->c->with & MODELS) return mean == 0 && now == before ? before : mean;
    return before - mean;
}

/* Under ASYNC an update is there when its sender's next push begins. So after two empty pushes of all ranks no rank
 * finds an older update. */
static void empty_slots(trial *t, int key) {
    for (int n = 0; n < 2; n++) {
        uint64_t ticket;
        CHECK_OK(hpc_exchange_fold_nothing(t->e, key, -1, &ticket));
        trial_wait(t, key, ticket);
        trial_skip(t, key);
        trial_meet(t);
    }
}

/* An apply applies the mean that its rank has looked at, times the scale, whatever its neighbours push meanwhile. */
static void applies_as_seen(rank *r) {
    trial *t = trial_open(r, NULL);
    uint64_t random = 5 * (uint64_t)r->rank + r->mode->seed, ticket;
    for (int step = 0; step < 12; step++)
        for (int key = 0; key < t->j->n_keys; key++) {
            const uint64_t count = t->j->keys[key].count;
            const float scale = step % 2 ? 0.5f : 1;
            const bool idle = t->c->consistency == HPC_ASYNC || t->c->consistency == HPC_BARRIER; /* all at once */
            const bool meets = t->c->consistency == HPC_ASYNC && step % 5 == 4;
            trial_dawdle(&random);
            if (meets) empty_slots(t, key);
            if (step % 5 == (idle ? 4 : r->rank))
                CHECK_OK(hpc_exchange_fold_nothing(t->e, key, -1, &ticket));
            else
                CHECK_OK(trial_start(t, key, HPC_PUSH, -1, &ticket));
            trial_wait(t, key, ticket);
            memcpy(t->before[key], hpc_exchange_params(t->e, key), count * sizeof(float));
            if (meets) trial_meet(t);
            float *mean = seen_mean(t, key);
            for (uint64_t i = 0; i < count && meets; i++) CHECK(mean[i] == 0);
            const float *params = hpc_exchange_params(t->e, key), *before = t->before[key];
            trial_dawdle(&random);
            if (step % 4 == 3)
                trial_skip(t, key);
            else
                trial_apply(t, key, (double)scale);
            for (uint64_t i = 0; i < count; i++)
                mean[i] = step % 4 == 3 ? before[i] : after(t, before[i], scale * mean[i], params[i]);
            CHECK(same_floats(params, mean, count, "applied", r->rank, key));
            free(mean);
        }
    trial_close(t);
}

enum { SCALE, ARGUMENTS, CALL };

/* Ends a step of which one key is done, and makes more of them until something fails. */
static int steps_until(trial *t, int done, int status) {
    uint64_t ticket;
    for (int key = 0; key < t->j->n_keys && status == HPC_OK; key++) {
        if (key == done) continue;
        status = trial_start(t, key, BOTH, -1, &ticket);
        if (status == HPC_OK) status = hpc_exchange_wait(t->e, key, ticket, -1);
    }
    while (status == HPC_OK) status = trial_step(t, -1);
    return status;
}

/* The last rank gives another scale or other arguments than the rest, or makes another call. All are told. */
static void differ(rank *r) {
    static const char *const what[] = {"gives scale ", "lr is 4 on rank", " calls "};
    enum { KEY = 1 };
    trial *t = trial_open(r, trial_in_time);
    const int which = trial_variant(r);
    const bool differs = r->rank == t->slow;
    const double args[HPC_RULE_ARGS] = {0, 4};
    uint64_t ticket;
    CHECK_OK(trial_step(t, -1));
    fold(t, KEY, 0);
    rank_meet(r); /* else a rank may be told in its fold */
    if (differs && which == ARGUMENTS) CHECK_OK(hpc_exchange_set_args(t->e, KEY, args));
    int status = differs && which == CALL
                     ? hpc_exchange_skip(t->e, KEY, -1, &ticket)
                     : hpc_exchange_apply(t->e, KEY, differs && which == SCALE ? 2 : 1, -1, &ticket);
    if (status == HPC_OK) status = hpc_exchange_wait(t->e, KEY, ticket, -1);
    if (has_quorum(t->c))
        status = steps_until(t, KEY, status); /* the first call counts, and the others are told later */
    CHECK(status == HPC_ERR_CONFIG || status == HPC_ERR_PEER);
    CHECK_MESSAGE(what[which]);
    CHECK_MESSAGE("key k1");
    CHECK_MESSAGE("the same"); /* what to do */
    rank_meet(r);              /* all are told before one leaves */
    trial_free(t);
}

static bool names_alone(int who) {
    const hpc_error *e = hpc_last_error();
    return e->n_culprits == 1 && e->culprits[0].rank == who;
}

/* The last rank stands still between fold and apply. The others wait for it, by name: among peers with their next
 * fold. */
static void stands_between(rank *r) {
    enum { KEY = 1 };
    trial *t = trial_open(r, NULL);
    const bool stands = r->rank == t->slow;
    uint64_t ticket;
    fold(t, KEY, 0);
    if (stands) rank_await(r, 0, (uint64_t)t->slow);
    if (decides_alone(t->c)) {
        trial_apply(t, KEY, 1);
        job_start(r, t->j, t->e, KEY, 1, HPC_PUSH, false);
    }
    CHECK_OK(hpc_exchange_apply(t->e, KEY, 1, -1, &ticket));
    bool named = stands;
    for (double patience = 0.1; !named && patience < 10; patience *= 2) {
        const int status = hpc_exchange_wait(t->e, KEY, ticket, patience);
        if (status == HPC_OK) break;
        CHECK_STATUS(status, HPC_ERR_TIMEOUT);
        named = names_alone(t->slow);
    }
    CHECK(named || t->c->with & PARTIAL ||
          (t->c->edges == GRAPH && t->c->shape != COMPLETE)); /* a peer that hears others alone is done */
    if (!stands) atomic_fetch_add(&r->board[0], 1);
    trial_wait(t, KEY, ticket);
    trial_close(t);
}

/* The last rank dies between fold and apply. */
static void dies_between(rank *r) {
    trial *t = trial_open(r, NULL);
    int status = HPC_OK;
    uint64_t ticket;
    for (int key = 0; key < t->j->n_keys; key++) fold(t, key, 0);
    trial_meet(t); /* its rows may have late updates to answer */
    if (r->rank == t->slow) {
        rank_die(r);
        trial_free(t);
        return;
    }
    for (int key = 0; key < t->j->n_keys && status == HPC_OK; key++) {
        status = hpc_exchange_apply(t->e, key, 1, -1, &ticket);
        if (status == HPC_OK) status = hpc_exchange_wait(t->e, key, ticket, -1);
    }
    while (status == HPC_OK) status = trial_step(t, -1);
    CHECK_STATUS(status, HPC_ERR_PEER);
    CHECK(ranks_error_names(t->slow));
    rank_set(r, r->rank, 1);
    for (int who = 0; who < t->slow; who++) rank_await(r, who, 1);
    trial_free(t);
}

/* A rank closes with a fold that no rank has applied or skipped; a peer's others may apply theirs, and with a quorum
 * those of its group too. */
static void closes_between(rank *r) {
    trial *t = trial_open(r, NULL);
    const bool applies = (decides_alone(t->c) || has_quorum(t->c)) && r->rank != t->slow;
    for (int key = 0; key < t->j->n_keys; key++) fold(t, key, 0);
    for (int key = 0; key < t->j->n_keys && applies; key++) trial_apply(t, key, 0.5);
    trial_close(t);
}

/* ---- with a quorum of all but one ------------------------------------------------------------------------------- */

static bool misses_one(const combination *c) {
    return has_quorum(c) && c->quorum == group_of(c, c->size - 1);
}

static bool misses_one_of_three(const combination *c) {
    return misses_one(c) && c->quorum > 1;
}

/* A rank stands for its group. */
static bool is_in(const trial *t, int one, int who) {
    return group_of(t->c, who) == group_of(t->c, one);
}

static bool is_own(const trial *t, int one) {
    return is_in(t, one, t->r->rank);
}

static void add(const trial *t, int one, int step, int key, double factor, double *sum) {
    for (int who = 0; who < t->r->size; who++)
        for (uint64_t i = 0; i < t->j->keys[key].count && is_in(t, one, who); i++)
            sum[i] += factor * (double)job_gradient(t->j, who, step, key, i);
}

/* The gradients of a step of all groups but one. */
static void sum_but(const trial *t, int one, int step, int key, double *sum) {
    sum_of(t, step, key, sum);
    add(t, one, step, key, -1, sum);
}

static void apply_but(reference *ref, const trial *t, int one, int step, int key, double scale) {
    const uint64_t count = t->j->keys[key].count;
    double *sum = malloc(count * sizeof *sum);
    sum_but(t, one, step, key, sum);
    for (uint64_t i = 0; i < count; i++) sum[i] *= scale;
    reference_apply(ref, key, sum);
    free(sum);
}

/* The group of rank one folds a key after all others: it is late. */
static void fold_late(trial *t, int one, int key, int step) {
    if (!is_own(t, one)) fold(t, key, step);
    trial_meet(t);
    if (is_own(t, one)) fold(t, key, step);
    CHECK_EQ(hpc_exchange_late(t->e, key) > 0, is_own(t, one));
    trial_meet(t);
}

static void without_grace(trial *t) {
    t->j->grace = 0;
}

static void check_waits(trial *t, int key, uint64_t ticket) {
    CHECK_EQ(hpc_exchange_test(t->e, key, ticket), HPC_IN_PROGRESS);
    CHECK_STATUS(hpc_exchange_wait(t->e, key, ticket, 0.05), HPC_ERR_TIMEOUT);
    CHECK(hpc_last_error()->n_culprits > 0);
    CHECK(!ranks_error_waits_for(t->slow)); /* but those that say what becomes of the mean, or the owner */
}

static uint64_t start_apply(trial *t, int key, double scale) {
    uint64_t ticket;
    CHECK_OK(hpc_exchange_apply(t->e, key, scale, -1, &ticket));
    return ticket;
}

/* What a late rank is told of a mean that is kept. */
static void check_mean(trial *t, int step, int key) {
    const uint64_t count = t->j->keys[key].count;
    double *sum = malloc(count * sizeof *sum), squares = 0;
    sum_but(t, t->slow, step, key, sum);
    for (uint64_t i = 0; i < count; i++) squares += sum[i] * sum[i];
    trial_check_squares(t, key, squares);
    trial_check_gathered(t, key, sum);
    free(sum);
}

enum { LOOKS, HURRIES, TARRIES, HOWS };

/* A late rank decides nothing, and waits for what the others say of the mean that they keep. It has looked at that mean
 * before, or has made both calls at once; or it comes when the mean is over, and then it does not wait. */
static void one_is_late(rank *r) {
    trial *t = trial_open(r, without_grace);
    const bool is_late = is_own(t, t->slow);
    reference ref;
    reference_init(&ref, t->j);
    for (int step = 0; step < HOWS; step++) {
        uint64_t tickets[JOB_KEYS] = {0};
        for (int key = 0; key < t->j->n_keys; key++) {
            if (!is_late) fold(t, key, step);
            if (!is_late && step == TARRIES) trial_apply(t, key, 0.5);
            trial_meet(t);
            if (is_late && step != HURRIES) fold(t, key, step);
            if (is_late && step == HURRIES) job_start(r, t->j, t->e, key, step, HPC_PUSH, false);
            if (is_late) reference_check(&ref, r, t->e, key);
            if (is_late && step != LOOKS) tickets[key] = start_apply(t, key, 4);
            trial_meet(t);
            if (step == LOOKS) check_mean(t, step, key);
        }
        trial_meet(t);
        if (is_late && step == HURRIES) check_waits(t, 0, tickets[0]);
        for (int key = 0; key < t->j->n_keys; key++) {
            if (is_late && step == LOOKS) tickets[key] = start_apply(t, key, 4);
            if (is_late && step == LOOKS && key == 0) check_waits(t, key, tickets[key]);
            if (is_late && step == TARRIES) trial_wait(t, key, tickets[key]);
            trial_meet(t);
            if (!is_late && step != TARRIES) trial_apply(t, key, 0.5);
            if (is_late && step != TARRIES) trial_wait(t, key, tickets[key]);
            apply_but(&ref, t, t->slow, step, key, 0.5);
            reference_check(&ref, r, t->e, key);
            CHECK_EQ(hpc_exchange_late(t->e, key) > 0, is_late);
            trial_meet(t);
        }
        CHECK_EQ(hpc_exchange_version(t->e, -1), step + 1);
    }
    reference_free(&ref);
    trial_close(t);
}

/* A rank whose update is in the mean stands still before its apply. The others go on for two steps. Then it gets the
 * newest parameters, and is in time with its next update. */
static void one_stands(rank *r) {
    enum { STEPS = 3 };
    trial *t = trial_open(r, trial_in_time);
    reference ref;
    double squares;
    uint64_t ticket;
    reference_init(&ref, t->j);
    for (int key = 0; key < t->j->n_keys; key++) fold(t, key, 0);
    inside_set_grace(t->e, 0);
    trial_meet(t);
    for (int step = 0; step < STEPS && !is_own(t, t->slow); step++)
        for (int key = 0; key < t->j->n_keys; key++) {
            if (step > 0) fold(t, key, step);
            CHECK_OK(hpc_exchange_squares(t->e, key, -1, &ticket));
            trial_wait(t, key, ticket);
            trial_apply(t, key, 1);
        }
    trial_meet(t);
    for (int key = 0; key < t->j->n_keys; key++) {
        double *sum = malloc(t->j->keys[key].count * sizeof *sum);
        sum_of(t, 0, key, sum);
        reference_apply(&ref, key, sum);
        for (int step = 1; step < STEPS; step++) apply_but(&ref, t, t->slow, step, key, 1);
        free(sum);
        if (is_own(t, t->slow)) {
            CHECK_OK(hpc_exchange_squares(t->e, key, -1, &ticket));
            trial_wait(t, key, ticket);
            CHECK_OK(hpc_exchange_get_squares(t->e, key, &squares));
            CHECK_EQ(squares, 0); /* those of its mean are not known any more */
            trial_apply(t, key, 2);
        }
        reference_check(&ref, r, t->e, key);
    }
    CHECK_EQ(hpc_exchange_version(t->e, -1), STEPS);
    for (int key = 0; key < t->j->n_keys; key++) {
        fold_late(t, 0, key, STEPS);
        trial_apply(t, key, 1);
    }
    reference_free(&ref);
    trial_close(t);
}

/* Each of two groups is late in one of two keys, and its scale counts in neither. */
static void two_doubt(rank *r) {
    trial *t = trial_open(r, without_grace);
    int other = t->slow;
    reference ref;
    reference_init(&ref, t->j);
    while (is_in(t, t->slow, other)) other--;
    for (int key = 0; key < t->j->n_keys; key++) fold_late(t, key == 1 ? other : t->slow, key, 0);
    for (int key = 0; key < t->j->n_keys; key++) {
        double *sum = malloc(t->j->keys[key].count * sizeof *sum), squares = 0;
        sum_but(t, key == 1 ? other : t->slow, 0, key, sum);
        for (uint64_t i = 0; i < t->j->keys[key].count; i++) squares += sum[i] * sum[i];
        trial_check_squares(t, key, squares);
        free(sum);
    }
    trial_meet(t);
    for (int key = 0; key < t->j->n_keys; key++) {
        uint64_t ticket = 0;
        const bool doubts = is_own(t, t->slow) || is_own(t, other);
        if (doubts) CHECK_OK(hpc_exchange_apply(t->e, key, 4, -1, &ticket));
        trial_meet(t);
        if (doubts)
            trial_wait(t, key, ticket);
        else
            trial_apply(t, key, 0.5);
        apply_but(&ref, t, key == 1 ? other : t->slow, 0, key, 0.5);
        reference_check(&ref, r, t->e, key);
        trial_meet(t);
    }
    reference_free(&ref);
    trial_close(t);
}

static bool needs_one(const combination *c) {
    return has_quorum(c) && c->quorum == 1;
}

static void apply_of(reference *ref, const trial *t, int who, int step, int key) {
    double *update = calloc(t->j->keys[key].count, sizeof *update);
    add(t, who, step, key, 1, update);
    reference_apply(ref, key, update);
    free(update);
}

/* The last rank has heard of version 2 by other keys, and pushes key 0 for version 3 while version 2 of rank 0 is still
 * kept there. Its fold waits for that, and names rank 0 where it is its own. */
static void one_overtakes(rank *r) {
    trial *t = trial_open(r, without_grace);
    const int n = t->j->n_keys;
    const bool leads = is_own(t, 0), overtakes = is_own(t, t->slow);
    reference ref;
    reference_init(&ref, t->j);
    for (int key = 0; key < n && leads; key++) fold(t, key, 0);
    for (int key = 0; key < n && leads; key++) trial_apply(t, key, 1);
    trial_meet(t);
    if (overtakes) fold(t, 0, 0);
    trial_meet(t);
    for (int key = 0; key < n && leads; key++) fold(t, key, 1);
    trial_meet(t);
    for (int key = 1; key < n && overtakes; key++) fold(t, key, 0);
    if (overtakes) trial_apply(t, 0, 1);
    trial_meet(t);
    for (int key = 1; key < n; key++)
        if (leads || overtakes) trial_apply(t, key, 1);
    const uint64_t ticket = overtakes ? job_start(r, t->j, t->e, 0, 2, HPC_PUSH, false) : 0;
    if (overtakes) check_waits(t, 0, ticket);
    trial_meet(t);
    if (leads) trial_apply(t, 0, 1);
    for (int step = 0; step < 2; step++) apply_of(&ref, t, 0, step, 0);
    if (leads) reference_check(&ref, r, t->e, 0);
    if (overtakes) trial_wait(t, 0, ticket);
    CHECK_EQ(hpc_exchange_late(t->e, 0), 0);
    if (overtakes) trial_apply(t, 0, 1);
    apply_of(&ref, t, t->slow, 2, 0);
    if (overtakes) reference_check(&ref, r, t->e, 0);
    reference_free(&ref);
    trial_close(t);
}

/* All whose updates are in the mean close, and apply nothing. The late rank does not wait for ever. */
static void all_but_one_close(rank *r) {
    trial *t = trial_open(r, without_grace);
    reference ref;
    reference_init(&ref, t->j);
    for (int key = 0; key < t->j->n_keys; key++) fold_late(t, t->slow, key, 0);
    for (int key = 0; key < t->j->n_keys && is_own(t, t->slow); key++) {
        trial_apply(t, key, 2);
        reference_check(&ref, r, t->e, key);
    }
    reference_free(&ref);
    trial_close(t);
}

/* The last group decides for all. Then the others close, so its next update finds no quorum, and is dropped. */
static void one_is_left(rank *r) {
    trial *t = trial_open(r, trial_in_time);
    uint64_t ticket;
    for (int key = 0; key < t->j->n_keys; key++) fold(t, key, 0);
    for (int key = 0; key < t->j->n_keys && is_own(t, t->slow); key++) trial_apply(t, key, 1);
    trial_meet(t);
    for (int key = 0; key < t->j->n_keys; key++) {
        if (!is_own(t, t->slow)) trial_apply(t, key, 1);
        if (!is_own(t, t->slow)) continue;
        CHECK_OK(trial_start(t, key, HPC_PUSH, -1, &ticket));
        CHECK_STATUS(hpc_exchange_wait(t->e, key, ticket, -1), HPC_ERR_PEER);
        trial_skip(t, key);
    }
    trial_close(t);
}

int main(int argc, char **argv) {
    static const property properties[] = {
        {.name = "between", .run = between, .applies = is_known},
        {.name = "at_once", .run = at_once, .applies = is_known},
        {.name = "one_skips", .run = one_skips, .applies = is_known_and_alone},
        {.name = "applies_as_seen", .run = applies_as_seen, .applies = decides_alone},
        {.name = "differ_in_scale",
         .run = differ,
         .applies = decides_together,
         .how = {.apart = true},
         .variant = SCALE},
        {.name = "differ_in_arguments",
         .run = differ,
         .applies = decides_by_args,
         .how = {.apart = true},
         .variant = ARGUMENTS},
        {.name = "differ_in_call", .run = differ, .applies = decides_together, .how = {.apart = true}, .variant = CALL},
        {.name = "stands_between", .run = stands_between, .applies = waits_for_all, .how = {.where = RANKS_UNSEEDED}},
        {.name = "dies_between", .run = dies_between, .applies = keeps_mean, .how = {.victims = 1, .timeout = 30}},
        {.name = "closes_between", .run = closes_between, .applies = keeps_mean},
        {.name = "one_is_late", .run = one_is_late, .applies = misses_one},
        {.name = "one_stands", .run = one_stands, .applies = misses_one},
        {.name = "one_overtakes", .run = one_overtakes, .applies = needs_one},
        {.name = "two_doubt", .run = two_doubt, .applies = misses_one_of_three},
        {.name = "one_is_left", .run = one_is_left, .applies = misses_one_of_three},
        {.name = "all_but_one_close", .run = all_but_one_close, .applies = misses_one},
        {0},
    };
    return disciplines_main(argc, argv, properties);
}
