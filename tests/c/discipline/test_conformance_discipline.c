/* What every discipline promises while all ranks train: no update is lost or there twice, none is older than it may be,
 * and whoever waits too long is told for whom. disciplines.c has the combinations. */
#include <sched.h>

#include "disciplines.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

static void train(trial *t, int steps, uint64_t *random) {
    for (int step = 0; step < steps && trial_works(t, t->r->rank); step++) {
        trial_dawdle(random);
        CHECK_OK(trial_step(t, -1));
    }
}

/* ---- nothing lost, nothing twice --------------------------------------------------------------------------------- */

static bool has_totals(const combination *c) {
    return !leaves_out(c) && (!tells_versions(c) || is_whole(c));
}

enum { ROUNDS = 2 };

/* The number of steps of a rank in a round. In the first one it is the same for all; in the others ranks of a group
 * make as many, and none is too far ahead for ever. */
static int steps_in(const combination *c, int who, int round) {
    const int ahead = c->edges == GRAPH || round == 0 ? 0 : most_ahead(c), more = ahead < 0 || ahead > 2 ? 2 : ahead;
    return 4 + group_of(c, who) % (more + 1);
}

static void count_steps(const trial *t, int rounds, uint64_t *steps) {
    memset(steps, 0, RANKS_MAX * sizeof *steps);
    for (int who = 0; who < t->r->size; who++)
        for (int round = 0; round < rounds && trial_works(t, who); round++)
            steps[who] += (uint64_t)steps_in(t->c, who, round);
}

static bool is_settled(const combination *c, int round) {
    return round == 0 || !settles_for_all(c);
}

/* The last step of a round is pushed and not waited for, where a settle brings parameters nevertheless. */
static void make_round(trial *t, int round, uint64_t *random) {
    const bool waits = t->j->split || t->c->edges == GRAPH || !is_settled(t->c, round);
    const bool pushes = trial_works(t, t->r->rank) && !waits;
    uint64_t ticket;
    train(t, steps_in(t->c, t->r->rank, round) - pushes, random);
    for (int key = 0; key < t->j->n_keys && pushes; key++) CHECK_OK(trial_start(t, key, HPC_PUSH, -1, &ticket));
    t->idle = true; /* on a graph a neighbour may fold an update some steps later than it came */
    for (int step = 0; step < t->c->staleness && t->c->edges == GRAPH; step++) CHECK_OK(trial_step(t, -1));
    t->idle = false;
}

static void check_equal(trial *t, int word) {
    rank *r = t->r;
    for (int key = 0; key < t->j->n_keys && trial_works(t, r->rank) && has_equal_parameters(t->c); key++) {
        const int of_key = word + RANKS_MAX * key;
        rank_set(r, of_key + r->rank, trial_hash(t, key));
        CHECK_EQ(rank_await(r, of_key + t->slow, 1), trial_hash(t, key));
    }
}

/* After a settle and a publish, and after a close, all updates are in once. */
static void totals(rank *r) {
    enum { HASHES = 64 };
    trial *t = trial_open(r, NULL);
    uint64_t random = 5 * (uint64_t)r->rank + r->mode->seed, steps[RANKS_MAX];
    for (int round = 0; round < ROUNDS; round++) {
        make_round(t, round, &random);
        count_steps(t, round + 1, steps);
        if (is_settled(t->c, round)) trial_settle(t);
        if (round == 0 && settles_for_all(t->c)) trial_check(t, steps);
        trial_publish(t);
        trial_check(t, steps);
        trial_check_rows(t, steps);
        check_equal(t, HASHES * (1 + round));
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    train(t, steps_in(t->c, r->rank, ROUNDS), &random);
    CHECK_OK(hpc_exchange_close(t->e, -1));
    count_steps(t, ROUNDS + 1, steps);
    if (t->c->edges != GRAPH || is_whole(t->c)) trial_check_rows(t, steps);
    if (t->c->edges == RECEIVERS || t->c->edges == PEERS) trial_check(t, steps);
    trial_free(t);
}

/* ---- the bound --------------------------------------------------------------------------------------------------- */

enum { BEGUN = 0 }; /* words of the board, by key and rank */

/* The parameters after step have what they must have of who, and nothing that was not pushed. */
static void check_seen(const trial *t, int step, int who, uint64_t least, uint64_t most, uint64_t begun) {
    const combination *c = t->c;
    const int ahead = most_ahead(c), from = ahead < 0 || leaves_out(c) || step < ahead ? 0 : step - ahead;
    const bool mate = c->quorum == 0 && group_of(c, who) == group_of(c, t->r->rank) && has_own_at_once(c);
    if (!trial_works(t, who)) return;
    if (is_whole(c) || mate) {
        CHECK_EQ(least, trial_told(t, who, (uint64_t)step));
        CHECK_EQ(most, trial_told(t, who, (uint64_t)step));
    } else {
        CHECK(least >= trial_told(t, who, (uint64_t)from));
        CHECK(most <= begun);
    }
}

/* Updates come in their order; where a fold leaves some out it has none again. */
static void check_order(const trial *t, int who, uint64_t seen, uint64_t *last) {
    if (tells_versions(t->c)) {
        CHECK(seen == 0 || seen >= *last);
        CHECK(seen == 0 || seen > *last || !leaves_out(t->c) || who == t->r->rank);
    }
    CHECK(tells_versions(t->c) || seen >= *last);
    if (seen > *last) *last = seen;
}

static void check_begun(trial *t, int key, int step, uint64_t (*last)[RANKS_MAX]) {
    uint64_t least[RANKS_MAX], most[RANKS_MAX];
    const combination *c = t->c;
    trial_look(t, key, least, most);
    for (int who = 0; who < t->r->size; who++) {
        const uint64_t begun = rank_await(t->r, BEGUN + key * RANKS_MAX + who, 0);
        const bool heard = trial_works(t, who) && trial_hears(t, t->r->rank, who, step - 1);
        int needed = step - most_ahead(c);
        while (needed > 0 && !trial_hears(t, t->r->rank, who, needed - 1)) needed--; /* it was not sent here */
        if (heard && most_ahead(c) >= 0 && needed > 0) CHECK(begun >= (uint64_t)needed);
        if (least[who] == UINT64_MAX) continue; /* elements of one row alone, and none of who */
        check_seen(t, step, who, least[who], most[who], begun);
        if (least[who] == most[who]) check_order(t, who, most[who], &last[key][who]);
    }
}

static void check_staleness(const trial *t, int steps) {
    uint64_t counts[HPC_MOST_STALENESS + 1] = {0}, all = 0;
    const int s = has_staleness(t->c) ? t->c->staleness : 0;
    CHECK_EQ(hpc_exchange_get_histogram(t->e, HPC_STEPS_BY_STALENESS, counts, HPC_MOST_STALENESS + 1), s);
    for (int d = 0; d <= s; d++) all += counts[d];
    CHECK_EQ(all, has_staleness(t->c) ? steps * t->j->n_keys : 0);
    for (int d = s + 1; d <= HPC_MOST_STALENESS; d++) CHECK_EQ(counts[d], 0);
}

static bool is_done(const trial *t, int step, int steps) {
    const bool counts_versions = t->c->quorum > 0 && t->c->edges != GRAPH;
    return counts_versions ? hpc_exchange_version(t->e, -1) >= (uint64_t)steps : step >= steps;
}

/* Steps of random length. Parameters change in pulls alone. */
static void bounded(rank *r) {
    trial *t = trial_open(r, NULL);
    const int steps = t->c->with & LARGE ? 100 : ranks_rounds(40), n = t->j->n_keys;
    uint64_t random = 77 * (uint64_t)r->rank + r->mode->seed, tickets[JOB_KEYS], last[2][RANKS_MAX] = {{0}}, hash[2];
    int step = 0;
    for (int key = 0; key < n && trial_works(t, r->rank); key++) hash[key] = trial_hash(t, key);
    while (trial_works(t, r->rank) && !is_done(t, step, steps)) {
        step++;
        trial_dawdle(&random);
        for (int key = 0; key < n; key++) {
            CHECK_EQ(trial_hash(t, key), hash[key]);
            rank_set(r, BEGUN + key * RANKS_MAX + r->rank, (uint64_t)step);
            CHECK_OK(trial_start(t, key, BOTH, -1, &tickets[key]));
        }
        for (int key = n; key-- > 0;) {
            CHECK_OK(hpc_exchange_wait(t->e, key, tickets[key], -1));
            check_begun(t, key, step, last);
            hash[key] = trial_hash(t, key);
        }
    }
    if (trial_works(t, r->rank)) check_staleness(t, step);
    trial_close(t);
}

/* Around a ring of hosts a rank that waits may name itself and others beside the one that does not push. */
static bool names_one(const combination *c) {
    return most_ahead(c) >= 0 && !(c->with & AROUND);
}

/* ---- one clock --------------------------------------------------------------------------------------------------- */

static bool has_clocks(const combination *c) {
    return c->staleness > 0 && c->edges != GRAPH;
}

/* After a publish all workers go on from one clock: those that had been ahead may be ahead once more. */
static void levels(rank *r) {
    enum { AHEAD = 0 };
    trial *t = trial_open(r, NULL);
    const int s = t->c->staleness, group = group_of(t->c, t->slow);
    const bool ahead = trial_works(t, r->rank) && group_of(t->c, r->rank) != group;
    uint64_t steps[RANKS_MAX] = {0}, others = 0;
    for (int who = 0; who < r->size; who++)
        if (trial_works(t, who) && group_of(t->c, who) != group) steps[who] = 2 * (uint64_t)s, others++;
    for (int step = 0; step < s && ahead; step++) CHECK_OK(trial_step(t, -1));
    if (!settles_for_all(t->c)) trial_settle(t);
    trial_publish(t);
    for (int step = 0; step < s && ahead; step++) CHECK_OK(trial_step(t, -1));
    if (ahead) atomic_fetch_add(&r->board[AHEAD], 1);
    trial_serve(t, AHEAD, others);
    if (!settles_for_all(t->c)) trial_settle(t);
    trial_publish(t);
    trial_check(t, steps);
    trial_close(t);
}

static bool runs_behind(const combination *c) {
    return c->edges == PEERS && c->staleness > 1;
}

/* Whether parameters have so many updates of each other worker that is heard. No more than most are there. */
static bool has_of_others(trial *t, int key, uint64_t steps, uint64_t most_steps) {
    uint64_t least[RANKS_MAX], most[RANKS_MAX];
    bool all = true;
    trial_look(t, key, least, most);
    for (int who = 0; who < t->r->size; who++) {
        if (who == t->r->rank || !trial_hears(t, t->r->rank, who, 0)) continue;
        CHECK(most[who] <= most_steps);
        all &= least[who] >= steps;
    }
    return all;
}

/* Of others that are ahead a step takes all updates that have come under ASYNC, and under SSP those up to its own. A
 * try finds them all there sooner or later. */
static void takes(rank *r) {
    enum { KEY = 1, TAKEN = 0, TRIES = 200 };
    trial *t = trial_open(r, NULL);
    const int s = t->c->staleness, tries = t->c->consistency == HPC_ASYNC ? TRIES : 3;
    const bool behind = r->rank == t->slow;
    for (int i = 0; i < tries && atomic_load(&r->board[TAKEN]) == 0; i++) {
        const uint64_t before = (uint64_t)(i * s);
        for (int step = 0; step < s && !behind; step++) CHECK_OK(trial_step(t, -1));
        trial_meet(t);
        for (int step = 0; step < s && behind; step++) {
            CHECK_OK(trial_step(t, -1));
            const uint64_t most = before + (uint64_t)(t->c->consistency == HPC_ASYNC ? s : step + 1);
            if (has_of_others(t, KEY, before + (uint64_t)s, most) && step == 0) rank_set(r, TAKEN, 1);
        }
        trial_publish(t);
    }
    CHECK_EQ(atomic_load(&r->board[TAKEN]), t->c->consistency == HPC_ASYNC);
    trial_close(t);
}

/* ---- who is named ------------------------------------------------------------------------------------------------ */

static bool names_alone(int who) {
    const hpc_error *e = hpc_last_error();
    return e->n_culprits == 1 && e->culprits[0].rank == who;
}

enum { NAMED = 0 };

/* What the waits of a rank that is not slow have told so far. Each try may take longer than the one before, on each
 * rank by another factor: ranks whose waits ran out together would find each other between two waits. */
typedef struct waiting {
    bool told;
    double patience;
} waiting;

/* A call has run into its deadline. At first another rank may not have come so far, or a look may be too short. */
static void look_whom(trial *t, waiting *w) {
    if (!w->told && !names_alone(t->slow)) {
        w->patience *= 1.5 + 0.25 * t->r->rank;
        if (w->patience > 8) fprintf(stderr, "rank %d: %s\n", t->r->rank, hpc_last_error()->message);
        CHECK(w->patience < 16);
        return;
    }
    if (!w->told) atomic_fetch_add(&t->r->board[NAMED], 1);
    w->told = true;
}

static double patience_of(const waiting *w) {
    return w->told ? -1 : w->patience;
}

static void step_and_look(trial *t, int key, waiting *w) {
    uint64_t ticket;
    int status;
    while ((status = trial_start(t, key, BOTH, patience_of(w), &ticket)) == HPC_ERR_TIMEOUT) look_whom(t, w);
    CHECK_OK(status);
    while ((status = hpc_exchange_wait(t->e, key, ticket, patience_of(w))) == HPC_ERR_TIMEOUT) look_whom(t, w);
    CHECK_OK(status);
}

/* The last worker does not push. The others go on as far as they may; then they name it, and no other rank.
 * variant: it stands still, else it serves. */
static void names(rank *r) {
    enum { KEY = 1 };
    trial *t = trial_open(r, NULL);
    const int steps = t->c->staleness + 2 * r->size + t->j->depth;
    const uint64_t others = (uint64_t)t->j->n_workers - 1;
    waiting w = {.patience = 0.05, .told = r->rank == t->slow};
    if (w.told && trial_variant(r)) rank_await(r, NAMED, others);
    if (w.told) trial_serve(t, NAMED, others);
    for (int step = 0; step < steps && trial_works(t, r->rank); step++) step_and_look(t, KEY, &w);
    CHECK(w.told || !trial_works(t, r->rank));
    trial_close(t);
}

int main(int argc, char **argv) {
    static const property properties[] = {
        {.name = "totals", .run = totals, .applies = has_totals},
        {.name = "bounded", .run = bounded},
        {.name = "levels", .run = levels, .applies = has_clocks},
        {.name = "takes", .run = takes, .applies = runs_behind, .how = {.where = RANKS_UNSEEDED}},
        {.name = "names", .run = names, .applies = names_one, .how = {.where = RANKS_UNSEEDED}},
        {.name = "names_still", .run = names, .applies = names_one, .how = {.where = RANKS_UNSEEDED}, .variant = 1},
        {0},
    };
    return disciplines_main(argc, argv, properties);
}
