/* What every quorum promises: who is in a fold and who is not, what the late see of it and when, whom a fold waits for
 * and how long, and what comes of pushes that find no quorum. disciplines.c has the combinations. */
#include <math.h>
#include <sched.h>

#include "disciplines.h"
#include "inside.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

static bool has_quorum(const combination *c) {
    return c->quorum > 0 && !(c->with & SPLIT);
}

/* A rank that stands still is waited for by all others. */
static bool has_one_phase(const combination *c) {
    return has_quorum(c) && !has_phases(c);
}

/* A push is for the version after the newest. */
static bool has_versions(const combination *c) {
    return has_quorum(c) && c->edges != GRAPH && c->consistency == HPC_BSP;
}

static bool has_copies(const combination *c) {
    return c->edges == PEERS;
}

static bool has_one_mean(const combination *c) {
    return has_versions(c) && has_equal_parameters(c);
}

static bool has_means(const combination *c) {
    return has_one_mean(c) && c->edges != HOSTS;
}

static bool has_three(const combination *c) {
    return has_versions(c) && group_of(c, c->size - 1) >= 2;
}

static int last_group(const trial *t) {
    return group_of(t->c, t->slow);
}

static int inputs_of(const trial *t) {
    return t->c->with & PARTIAL ? 3 : last_group(t) + 1;
}

static bool is_in(const trial *t, int group) {
    return group_of(t->c, t->r->rank) == group;
}

/* All groups but one are a quorum: the last one, or any other. On a graph a rank's own update does not count. */
static void without_one(trial *t) {
    t->j->quorum = inputs_of(t) - 1 - (t->c->edges == GRAPH);
    t->j->grace = 0;
}

/* A mean is that of the updates that are there. */
static void by_means(trial *t) {
    without_one(t);
    t->j->sum = 0;
}

static void patiently(trial *t) {
    without_one(t);
    t->j->grace = INFINITY;
}

static void briefly(trial *t) {
    without_one(t);
    t->j->grace = 0.1;
}

static uint64_t late_of(const trial *t, int who) {
    hpc_exchange_peer peer;
    CHECK_OK(hpc_exchange_get_peer(t->e, who, &peer));
    return peer.late;
}

static hpc_exchange_stats stats_of(const trial *t) {
    hpc_exchange_stats stats;
    CHECK_OK(hpc_exchange_get_stats(t->e, &stats));
    return stats;
}

/* ---- who is in a fold -------------------------------------------------------------------------------------------- */

/* All groups but one make a step, and the others have one more of each; that one sees nothing of it meanwhile. */
static void step_without(trial *t, int out, uint64_t *steps) {
    const bool steps_too = !is_in(t, out);
    const uint64_t before = trial_hash(t, 0), version = hpc_exchange_version(t->e, -1);
    for (int who = 0; who < t->r->size; who++) steps[who] += group_of(t->c, who) != out;
    if (steps_too) CHECK_OK(trial_step(t, -1));
    trial_meet(t);
    if (steps_too) trial_check(t, steps);
    CHECK_EQ(hpc_exchange_version(t->e, -1), version + steps_too);
    CHECK(steps_too == (trial_hash(t, 0) != before));
    trial_meet(t);
}

/* The last group is left out of two steps. Its own push is late: it has no effect, is counted at both ends, and brings
 * what the others have. Then it counts again, and another one is late. variant: by means. */
static void straggles(rank *r) {
    enum { LATE = 0 };
    trial *t = trial_open(r, trial_variant(r) ? by_means : without_one);
    uint64_t steps[RANKS_MAX] = {0}, late = 0;
    const bool slow = is_in(t, last_group(t));
    for (int step = 0; step < 2; step++) step_without(t, last_group(t), steps);
    if (slow) {
        CHECK_OK(trial_step(t, -1));
        trial_check(t, steps);
        CHECK_EQ(hpc_exchange_version(t->e, -1), 2);
        for (int key = 0; key < t->j->n_keys; key++) CHECK(hpc_exchange_late(t->e, key) > 0);
    }
    CHECK_EQ(stats_of(t).dropped, hpc_exchange_late(t->e, -1));
    CHECK_EQ(stats_of(t).dropped_at, slow ? 2 : 0);
    trial_meet(t);
    step_without(t, 0, steps);
    while (has_copies(t->c) && (late_of(t, t->slow) == 0 || stats_of(t).reduces != 3 * late_of(t, t->slow)))
        CHECK_OK(hpc_exchange_progress(t->e)); /* the copy of a rank that has not pushed may be behind */
    for (int who = 0; who < r->size; who++) {
        CHECK(late_of(t, who) == 0 || (who == t->slow || group_of(t->c, who) == last_group(t)));
        late += late_of(t, who);
    }
    CHECK_EQ(stats_of(t).reduces, 3 * late); /* as many shares as this rank owns */
    CHECK_EQ(stats_of(t).whole + stats_of(t).missing, 3 * late * (uint64_t)inputs_of(t));
    if (has_one_mean(t->c)) CHECK_EQ(stats_of(t).missing, 3 * late);
    atomic_fetch_add(&r->board[LATE], late);
    trial_meet(t);
    if (slow && t->c->edges == SERVERS) CHECK_EQ(rank_await(r, LATE, 0), stats_of(t).dropped);
    trial_close(t);
}

/* Each group may have a rate of its own: that of the lowest rank in a fold counts. */
static void rate_of_lowest(rank *r) {
    trial *t = trial_open(r, without_one);
    uint64_t moved[RANKS_MAX] = {0}, least[RANKS_MAX], most[RANKS_MAX];
    const double args[HPC_RULE_ARGS] = {0, 1 + group_of(t->c, r->rank)};
    CHECK_OK(hpc_exchange_set_args(t->e, -1, args));
    for (int step = 0; step < 4; step++) {
        const int out = step % 2 ? 0 : last_group(t);
        for (int who = 0; who < r->size; who++) moved[who] += group_of(t->c, who) == out ? 0 : out == 0 ? 2 : 1;
        if (!is_in(t, out)) CHECK_OK(trial_step(t, -1));
        trial_meet(t);
        if (is_in(t, out)) CHECK_OK(trial_step(t, -1));
        for (int key = 0; key < t->j->n_keys; key++) {
            trial_look(t, key, least, most);
            for (int who = 0; who < r->size; who++) CHECK(least[who] == moved[who] && most[who] == moved[who]);
        }
        trial_meet(t);
    }
    trial_close(t);
}

/* What is published goes to the straggler too: it is in no fold, goes on from the newest version, and is in time. */
static void published(rank *r) {
    trial *t = trial_open(r, without_one);
    uint64_t steps[RANKS_MAX] = {0};
    const int group = last_group(t), n = ranks_rounds(20);
    for (int step = 0; step < n; step++) {
        const int out = step == n - 1 ? group - 1 : group; /* at last the straggler is in it, at once */
        for (int who = 0; who < r->size; who++) steps[who] += group_of(t->c, who) != out;
        if (!is_in(t, out)) CHECK_OK(trial_step(t, -1));
        CHECK_EQ(hpc_exchange_late(t->e, -1), 0);
        if (step == n - 1) break;
        trial_publish(t);
        trial_check(t, steps);
        CHECK_EQ(hpc_exchange_version(t->e, -1), step + 1);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    if (!is_in(t, group - 1)) trial_check(t, steps);
    trial_meet(t);
    trial_close(t);
}

/* ---- whom a fold waits for, and how long ------------------------------------------------------------------------- */

/* A group that stands still costs one grace in all, not one a step or a key. */
static void one_grace(rank *r) {
    trial *t = trial_open(r, briefly);
    for (int step = 0; step < 4 && !is_in(t, last_group(t)); step++) {
        const double begin = ranks_now();
        CHECK_OK(trial_step(t, -1));
        if (step == 0) CHECK(ranks_now() - begin >= 0.09);
        rank_set(r, r->rank, (uint64_t)step + 1);
        for (int who = 0; who < r->size; who++) /* all owners have seen a grace end */
            if (group_of(t->c, who) != last_group(t)) trial_serve(t, who, (uint64_t)step + 1);
        if (step == 0) inside_set_grace(t->e, INFINITY); /* a second one would not end */
    }
    rank_set(r, RANKS_MAX + r->rank, 1);
    for (int who = 0; who < r->size; who++) trial_serve(t, RANKS_MAX + who, 1);
    trial_close(t);
}

enum { KEY = 0 };

/* A group that owns nothing of the key; on a graph each rank owns its own parameters. */
static int idle_group(const trial *t) {
    for (int i = 0; i < t->plan->n_rows && t->c->edges != GRAPH; i++) {
        const hpc_row *row = &t->plan->rows[i];
        if (row->key == KEY && row->action == HPC_APPLY && group_of(t->c, row->owner) == last_group(t)) return 0;
    }
    return last_group(t);
}

static bool waits_for(const trial *t, int group) {
    const hpc_error *e = hpc_last_error();
    bool named = e->n_culprits > 0;
    for (int i = 0; i < e->n_culprits; i++) named &= group_of(t->c, e->culprits[i].rank) == group;
    return named;
}

/* While the grace lasts those that wait name the group that stands still, and no other one. */
static void names_slow(rank *r) {
    enum { NAMED = 0 };
    trial *t = trial_open(r, patiently);
    const int idle = idle_group(t);
    const bool slow = is_in(t, idle);
    uint64_t tickets[JOB_KEYS], others = 0;
    bool named = slow;
    for (int who = 0; who < r->size; who++) others += group_of(t->c, who) != idle;
    for (int key = 0; key < t->j->n_keys && !slow; key++) CHECK_OK(trial_start(t, key, BOTH, -1, &tickets[key]));
    for (double patience = 0.05; !named && patience < 16; patience *= 1.5 + 0.25 * r->rank) {
        CHECK_STATUS(hpc_exchange_wait(t->e, KEY, tickets[KEY], patience), HPC_ERR_TIMEOUT);
        named = waits_for(t, idle); /* at first another rank may not have pushed */
    }
    if (!named) fprintf(stderr, "rank %d: %s\n", r->rank, hpc_last_error()->message);
    CHECK(named);
    if (!slow) atomic_fetch_add(&r->board[NAMED], 1);
    trial_serve(t, NAMED, others);
    inside_set_grace(t->e, 0);
    for (int key = 0; key < t->j->n_keys && !slow; key++) CHECK_OK(hpc_exchange_wait(t->e, key, tickets[key], -1));
    trial_meet(t);
    trial_close(t);
}

static bool has_stale(const combination *c) {
    return has_one_phase(c) && c->staleness > 0;
}

/* Under SSP the updates of two ranks that stand still count for some steps more. */
static void counts_older(rank *r) {
    trial *t = trial_open(r, trial_in_time);
    CHECK_OK(trial_step(t, -1));
    for (int step = 0; step < t->c->staleness && r->rank < 2; step++) CHECK_OK(trial_step(t, -1));
    trial_meet(t);
    trial_close(t);
}

static bool is_inline(const combination *c) {
    return has_versions(c) && !(c->with & THREADS);
}

/* While a fold waits for its rest progress says that a time is to come, for which waits doze; when it is made, and
 * nothing else waits, they may sleep again. */
static void sleeps_again(rank *r) {
    enum { WAITS = 0 };
    trial *t = trial_open(r, patiently);
    uint64_t tickets[JOB_KEYS];
    inside_set_grace(t->e, 1e6);
    for (int step = 0; step < 2; step++) {
        if (is_in(t, last_group(t))) rank_await(r, WAITS, (uint64_t)step + 1);
        for (int key = 0; key < t->j->n_keys; key++) CHECK_OK(trial_start(t, key, BOTH, -1, &tickets[key]));
        while (r->rank == 0 && !(hpc_group_progress(&r->context->group) & HPC_AWAITED)) sched_yield();
        if (r->rank == 0) rank_set(r, WAITS, (uint64_t)step + 1);
        for (int key = 0; key < t->j->n_keys; key++) CHECK_OK(hpc_exchange_wait(t->e, key, tickets[key], -1));
        trial_meet(t);
        CHECK(!(hpc_group_progress(&r->context->group) & HPC_AWAITED));
        rank_meet(r);
    }
    trial_close(t);
}

/* ---- no quorum --------------------------------------------------------------------------------------------------- */

static bool has_note(const rank *r, const char *text) {
    for (int i = 0; hpc_context_note(r->context, i, NULL); i++)
        if (strstr(hpc_context_note(r->context, i, NULL), text)) return true;
    return false;
}

/* Who has closed is not waited for, however long the grace. When too few are left a push fails, and of those that
 * nobody has waited for close tells how many there are. variant: whether one is waited for. */
static void too_few(rank *r) {
    trial *t = trial_open(r, patiently);
    const int group = group_of(t->c, r->rank);
    uint64_t tickets[JOB_KEYS];
    CHECK_OK(trial_step(t, -1));
    while (group < last_group(t) && hpc_exchange_version(t->e, -1) < 2)
        CHECK_OK(trial_step(t, -1)); /* without the last */
    if (group == 0) {
        for (int key = 0; key < t->j->n_keys; key++) CHECK_OK(trial_start(t, key, HPC_PUSH, -1, &tickets[key]));
        if (trial_variant(r)) {
            CHECK_STATUS(hpc_exchange_wait(t->e, 1, tickets[1], -1), HPC_ERR_PEER);
            CHECK_MESSAGE("no quorum of");
            CHECK_EQ(hpc_exchange_version(t->e, -1), 2);
            CHECK(ranks_error_names(t->slow));
        }
    }
    CHECK_OK(hpc_exchange_close(t->e, -1));
    CHECK_OK(hpc_exchange_close(t->e, -1));
    CHECK_EQ(has_note(r, trial_variant(r) ? "lost the last push of 1 key of rank" : "lost the last push of 2 keys of"),
             group == 0);
    CHECK_EQ(has_note(r, "lost"), group == 0);
    trial_free(t);
}

/* Each key is pushed once for a version. */
static void in_steps(rank *r) {
    trial *t = trial_open(r, trial_in_time);
    uint64_t tickets[2], other;
    CHECK_OK(trial_start(t, 1, BOTH, -1, &tickets[1]));
    CHECK_OK(hpc_exchange_wait(t->e, 1, tickets[1], -1));
    CHECK_EQ(hpc_exchange_ready(t->e, 1), HPC_IN_PROGRESS);
    CHECK_STATUS(hpc_exchange_start(t->e, 1, BOTH, NULL, -1, &other), HPC_ERR_INVALID);
    CHECK_MESSAGE("has pushed key k1 for version 1 already, and key k0 not");
    CHECK_OK(trial_start(t, 0, BOTH, -1, &tickets[0]));
    CHECK_OK(hpc_exchange_wait(t->e, 0, tickets[0], -1));
    CHECK_EQ(hpc_exchange_ready(t->e, 1), HPC_OK);
    CHECK_OK(trial_step(t, -1));
    CHECK_EQ(hpc_exchange_version(t->e, -1), 2);
    trial_close(t);
}

int main(int argc, char **argv) {
    static const property properties[] = {
        {.name = "straggles", .run = straggles, .applies = has_versions},
        {.name = "straggles_means", .run = straggles, .applies = has_means, .variant = 1},
        {.name = "rate_of_lowest", .run = rate_of_lowest, .applies = has_one_mean},
        {.name = "published", .run = published, .applies = has_three},
        {.name = "one_grace", .run = one_grace, .applies = has_versions},
        {.name = "sleeps_again", .run = sleeps_again, .applies = is_inline},
        {.name = "counts_older", .run = counts_older, .applies = has_stale},
        {.name = "names_slow", .run = names_slow, .applies = has_one_phase, .how = {.where = RANKS_UNSEEDED}},
        {.name = "too_few", .run = too_few, .applies = has_three},
        {.name = "too_few_waited", .run = too_few, .applies = has_three, .variant = 1},
        {.name = "in_steps", .run = in_steps, .applies = has_versions},
        {0},
    };
    return disciplines_main(argc, argv, properties);
}
