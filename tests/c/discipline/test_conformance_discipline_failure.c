/* What every discipline promises when ranks close early or die, and what it refuses. disciplines.c has the
 * combinations. */
#include <math.h>

#include "disciplines.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* ---- ranks that close -------------------------------------------------------------------------------------------- */

enum { PARKED = 0 };

/* With a quorum on servers all but the last group are one. */
static int steps_before_close(const combination *c, int who) {
    const int groups = group_of(c, c->size - 1) - group_of(c, who);
    if (groups == 0) return 2;
    return c->quorum > 0 && c->edges != GRAPH ? 6 : 6 + 2 * groups;
}

/* With a quorum on servers a step is a version. */
static int steps_done(const trial *t, int step) {
    return t->c->quorum > 0 && t->c->edges != GRAPH ? (int)hpc_exchange_version(t->e, -1) : step;
}

/* The first rank that waits for the group that will close says so. */
static void step_and_tell(trial *t) {
    uint64_t tickets[JOB_KEYS];
    for (int key = 0; key < t->j->n_keys; key++) CHECK_OK(trial_start(t, key, BOTH, -1, &tickets[key]));
    for (int key = 0; key < t->j->n_keys; key++) {
        if (hpc_exchange_wait(t->e, key, tickets[key], 0.02) == HPC_OK) continue;
        rank_set(t->r, PARKED, 1);
        CHECK_OK(hpc_exchange_wait(t->e, key, tickets[key], -1));
    }
}

/* Groups close one after the other, the last one first, while another one waits for it. They are waited for no more,
 * and all that they have pushed is there. */
static void closes(rank *r) {
    trial *t = trial_open(r, NULL);
    const bool first = group_of(t->c, r->rank) == group_of(t->c, t->slow), parks = most_ahead(t->c) >= 0;
    const int own = steps_before_close(t->c, r->rank);
    uint64_t steps[RANKS_MAX] = {0};
    for (int who = 0; who < r->size; who++) steps[who] = trial_works(t, who) ? steps_before_close(t->c, who) : 0;
    for (int step = 0; steps_done(t, step) < own && trial_works(t, r->rank); step++) {
        if (first && step == own - 1 && parks) trial_serve(t, PARKED, 1);
        step_and_tell(t);
    }
    CHECK_OK(hpc_exchange_close(t->e, -1));
    if (!leaves_out(t->c)) trial_check_rows(t, steps);
    if (!leaves_out(t->c) && (t->c->edges == RECEIVERS || t->c->edges == PEERS)) trial_check(t, steps);
    trial_free(t);
}

static bool stops(const combination *c) {
    return !goes_on(c);
}

static void check_names(int who) {
    if (!ranks_error_names(who)) fprintf(stderr, "rank %d is not named: %s\n", who, hpc_last_error()->message);
    CHECK(ranks_error_names(who));
}

/* Ranks that have failed leave together: a rank that frees its exchange would be named too. */
static void leave(trial *t) {
    rank *r = t->r;
    rank_set(r, r->rank, 1);
    for (int who = 0; who < r->size; who++)
        if (who != t->slow) rank_await(r, who, 1);
    trial_free(t);
}

static bool goes_on_by_hosts(const combination *c) {
    return goes_on(c) && c->edges == HOSTS;
}

/* A rank closes between two steps; its mates, which make another one, are told, and the other groups go on. */
static void mate_closes(rank *r) {
    enum { DONE = 0 };
    trial *t = trial_open(r, trial_in_time);
    const bool mate = group_of(t->c, r->rank) == group_of(t->c, t->slow) && r->rank != t->slow;
    const int steps = mate || r->rank == t->slow ? 1 : 3;
    uint64_t others = 0;
    for (int who = 0; who < r->size; who++) others += group_of(t->c, who) != group_of(t->c, t->slow);
    CHECK_OK(trial_step(t, -1));
    if (mate) {
        int status = HPC_OK;
        for (int step = 0; step < 2 && status == HPC_OK; step++) status = trial_step(t, -1);
        CHECK_STATUS(status, HPC_ERR_PEER);
        check_names(t->slow);
    }
    for (int step = 1; step < steps; step++) CHECK_OK(trial_step(t, -1));
    if (steps > 1) atomic_fetch_add(&r->board[DONE], 1);
    if (mate) trial_serve(t, DONE, others); /* it owns rows */
    const int status = hpc_exchange_close(t->e, -1);
    CHECK(status == HPC_OK || (mate && status == HPC_ERR_PEER));
    trial_free(t);
}

/* The last rank closes after two steps. No other one can make many more: each is told of it, closes in its turn, and so
 * tells those that wait for it. */
static void closes_too_early(rank *r) {
    trial *t = trial_open(r, NULL);
    const int steps = r->rank == t->slow ? 2 : 2 + 2 * r->size;
    int status = HPC_OK;
    for (int step = 0; step < steps && status == HPC_OK && trial_works(t, r->rank); step++) status = trial_step(t, -1);
    if (r->rank != t->slow && trial_works(t, r->rank)) {
        CHECK_STATUS(status, HPC_ERR_PEER);
        check_names(t->slow);
        CHECK_MESSAGE("has closed the exchange after");
    } else {
        CHECK_OK(status);
    }
    status = hpc_exchange_close(t->e, -1);
    CHECK(status == HPC_OK || (status == HPC_ERR_PEER && r->rank != t->slow));
    leave(t);
}

/* ---- ranks that die ---------------------------------------------------------------------------------------------- */

enum { BEFORE, BETWEEN, AFTER };

static void live_and_die(trial *t, int when) {
    uint64_t ticket;
    for (int key = 0; key < t->j->n_keys && when == BETWEEN; key++)
        CHECK_OK(trial_start(t, key, HPC_PUSH, -1, &ticket));
    if (when == AFTER) CHECK_OK(trial_step(t, -1));
    rank_die(t->r);
}

/* The last rank dies, after as many steps as all have made: before its push, between push and pull, or a step ahead.
 * All others are told its name. */
static void dies(rank *r) {
    enum { STEPS = 2 };
    trial *t = trial_open(r, trial_in_time);
    int status = HPC_OK;
    for (int step = 0; step < STEPS && trial_works(t, r->rank); step++) CHECK_OK(trial_step(t, -1));
    trial_meet(t);
    CHECK_OK(hpc_barrier(r->context, -1));
    rank_meet(r); /* no rank is in that barrier any more */
    if (r->rank == t->slow) {
        live_and_die(t, trial_variant(r));
        trial_free(t);
        return;
    }
    const double end = ranks_now() + ranks_patience(15);
    while (status == HPC_OK && ranks_now() < end)
        status = trial_works(t, r->rank) ? trial_step(t, -1) : hpc_exchange_serve(t->e, -1);
    CHECK_STATUS(status, HPC_ERR_PEER);
    check_names(t->slow);
    leave(t);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static bool is_last(const rank *r) {
    return r->rank == r->size - 1;
}

static bool is_ssp(const combination *c) {
    return c->consistency == HPC_SSP;
}

static bool is_stale(const combination *c) {
    return is_ssp(c) && c->staleness > 0;
}

static bool has_slots(const combination *c) {
    return is_ssp(c) && c->edges != SERVERS && c->edges != HOSTS && c->quorum == 0;
}

static bool shares_none(const combination *c) {
    return !is_whole(c) || c->edges == GRAPH || c->edges == PEERS;
}

static bool is_no_graph(const combination *c) {
    return c->edges != GRAPH;
}

static bool is_graph(const combination *c) {
    return c->edges == GRAPH;
}

static bool splits_not(const combination *c) {
    const bool shallow = c->edges == GRAPH && c->shape == RING;
    return !(c->with & SPLIT) && (shallow || (c->with & IN_PLACE) != 0);
}

static bool is_split(const combination *c) {
    return (c->with & SPLIT) != 0;
}

static bool has_quorum(const combination *c) {
    return c->quorum > 0;
}

/* On a ring one neighbour is all. */
static bool takes_no_quorum(const combination *c) {
    if (c->edges == GRAPH) return c->consistency == HPC_ASYNC || c->consistency == HPC_BARRIER;
    const bool splits = is_split(c) && c->edges != SERVERS;
    return c->quorum == 0 && (!is_whole(c) || splits) && c->edges != PEERS && c->edges != RECEIVERS;
}

/* ASYNC with servers of one stage applies each update by itself anyway. */
static bool applies_each(const combination *c) {
    return c->edges == SERVERS && c->consistency == HPC_ASYNC;
}

static bool passes_on(const combination *c) {
    return c->edges == PEERS && (c->with & TREE) != 0;
}

static bool is_other(const combination *c) {
    return !passes_on(c);
}

static bool is_no_graph_and_other(const combination *c) {
    return is_no_graph(c) && !passes_on(c);
}

static bool averages_not(const combination *c) {
    return c->edges != GRAPH && !leaves_out(c) && !is_whole(c) && !applies_each(c);
}

static void negative(const rank *r, hpc_exchange_config *f) {
    (void)r, f->staleness = -1;
}

static void too_stale(const rank *r, hpc_exchange_config *f) {
    (void)r, f->staleness = HPC_MOST_STALENESS + 1;
}

static void too_shallow(const rank *r, hpc_exchange_config *f) {
    (void)r, f->staleness = f->plan->rows[0].depth - 1;
}

static void other_staleness(const rank *r, hpc_exchange_config *f) {
    f->staleness -= is_last(r);
}

static void other_consistency(const rank *r, hpc_exchange_config *f) {
    if (is_last(r)) f->consistency = f->consistency == HPC_BSP ? HPC_NOTIFY_ACK : HPC_BSP;
}

static void no_consistency(const rank *r, hpc_exchange_config *f) {
    (void)r, f->quorum = 0, f->consistency = HPC_BARRIER + 1;
}

static void of_graphs(const rank *r, hpc_exchange_config *f) {
    (void)r, f->quorum = 0, f->split = 0, f->consistency = r->size % 2 ? HPC_BARRIER : HPC_NOTIFY_ACK;
}

static void shared(const rank *r, hpc_exchange_config *f) {
    (void)r, f->shared_params = 1;
}

static void in_place(const rank *r, hpc_exchange_config *f) {
    (void)r, f->in_place = 1;
}

static void split(const rank *r, hpc_exchange_config *f) {
    (void)r, f->split = 1;
}

static void one_splits(const rank *r, hpc_exchange_config *f) {
    if (is_last(r)) f->split = 0;
}

static void a_quorum(const rank *r, hpc_exchange_config *f) {
    (void)r, f->quorum = 1;
}

static void other_quorum(const rank *r, hpc_exchange_config *f) {
    if (is_last(r)) f->quorum = f->quorum == 1 ? 2 : 1;
}

static void other_grace(const rank *r, hpc_exchange_config *f) {
    if (is_last(r)) f->grace += 1;
}

static void no_grace(const rank *r, hpc_exchange_config *f) {
    (void)r, f->grace = NAN;
}

static void negative_quorum(const rank *r, hpc_exchange_config *f) {
    (void)r, f->quorum = -1;
}

static void average(const rank *r, hpc_exchange_config *f) {
    static _Thread_local hpc_rule rule;
    (void)r;
    CHECK_OK(hpc_rule_find("average", 0, &rule));
    f->rule = &rule;
}

typedef struct wrong {
    void (*change)(const rank *r, hpc_exchange_config *config);
    bool (*applies)(const combination *c);
    const char *text;
} wrong;

static const wrong wrongs[] = {
    {negative, is_ssp, "staleness is -1; 0 to"},
    {too_stale, is_ssp, "staleness is 65; 0 to"},
    {too_shallow, has_slots, "or more"},
    {other_staleness, is_stale, "staleness"},
    {other_consistency, is_graph, ""},
    {no_consistency, is_other, "consistency is 5, not 0 (BSP)"},
    {of_graphs, is_no_graph_and_other, "needs a graph"},
    {shared, shares_none, "shared_params"},
    {in_place, is_no_graph, "in_place needs a graph"},
    {split, splits_not, "split"},
    {one_splits, is_split, "has split 0 and rank 0 has 1"},
    {a_quorum, takes_no_quorum, "quorum"},
    {other_quorum, has_quorum, "quorum"},
    {other_grace, has_quorum, "grace"},
    {no_grace, has_quorum, "grace is NaN"},
    {negative_quorum, is_other, "quorum is -1"},
    {average, averages_not, "rule average, which needs the updates of all workers at once"},
};

static bool is_refusal(int status) {
    return status == HPC_ERR_CONFIG || status == HPC_ERR_INVALID || status == HPC_ERR_UNSUPPORTED;
}

/* Every wrong configuration is refused by every rank with one sentence, and the group goes on. */
static void refused(rank *r) {
    trial *t = trial_new(r, NULL);
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        if (wrongs[i].applies != NULL && !wrongs[i].applies(t->c)) continue;
        const int status = trial_create(t, wrongs[i].change, &t->e);
        if (!is_refusal(status)) fprintf(stderr, "rank %d: \"%s\" is not refused\n", r->rank, wrongs[i].text);
        CHECK(is_refusal(status));
        CHECK_MESSAGE(wrongs[i].text);
        CHECK(!strchr(hpc_last_error()->message, '\n'));
        CHECK(!t->e);
    }
    CHECK_OK(trial_create(t, NULL, &t->e));
    if (trial_works(t, r->rank)) CHECK_OK(trial_step(t, -1));
    trial_close(t);
}

/* The last rank has not pushed, so the pushes of others are under way. Calls that cannot be are refused, and nothing of
 * them is left. */
static void misused(rank *r) {
    enum { KEY = 1 };
    trial *t = trial_open(r, NULL);
    const bool works = trial_works(t, r->rank), pushes = works && r->rank != t->slow;
    uint64_t tickets[JOB_KEYS], other, steps[RANKS_MAX] = {0};
    CHECK_STATUS(hpc_exchange_start(t->e, t->j->n_keys, BOTH, NULL, -1, &other), HPC_ERR_INVALID);
    if (works) CHECK_STATUS(hpc_exchange_apply(t->e, KEY, 1, -1, &other), HPC_ERR_INVALID);
    for (int key = 0; key < t->j->n_keys && pushes; key++) CHECK_OK(trial_start(t, key, BOTH, -1, &tickets[key]));
    trial_meet(t);
    if (pushes && has_equal_parameters(t->c)) {
        CHECK_STATUS(hpc_exchange_start(t->e, KEY, BOTH, hpc_exchange_params(t->e, KEY), -1, &other), HPC_ERR_INVALID);
        CHECK_MESSAGE("k1");
        CHECK_EQ(hpc_exchange_ready(t->e, KEY), HPC_IN_PROGRESS);
        CHECK(hpc_exchange_under_way(t->e) >= 0);
    }
    CHECK_STATUS(hpc_exchange_publish(t->e, -1), HPC_ERR_INVALID);
    for (int key = 0; key < t->j->n_keys && works && !pushes; key++)
        CHECK_OK(trial_start(t, key, BOTH, -1, &tickets[key]));
    for (int key = 0; key < t->j->n_keys && works; key++) CHECK_OK(hpc_exchange_wait(t->e, key, tickets[key], -1));
    if (works) CHECK_OK(trial_step(t, -1));
    for (int who = 0; who < r->size; who++) steps[who] = trial_works(t, who) ? 2 : 0;
    trial_meet(t);
    CHECK_OK(hpc_exchange_publish(t->e, -1));
    trial_check(t, steps);
    trial_close(t);
}

int main(int argc, char **argv) {
    static const property properties[] = {
        {.name = "closes", .run = closes, .applies = goes_on},
        {.name = "mate_closes", .run = mate_closes, .applies = goes_on_by_hosts, .how = {.apart = true}},
        {.name = "closes_too_early", .run = closes_too_early, .applies = stops, .how = {.apart = true}},
        {.name = "dies_before", .run = dies, .how = {.victims = 1, .timeout = 30}, .variant = BEFORE},
        {.name = "dies_between", .run = dies, .how = {.victims = 1, .timeout = 30}, .variant = BETWEEN},
        {.name = "dies_after", .run = dies, .how = {.victims = 1, .timeout = 30}, .variant = AFTER},
        {.name = "refused", .run = refused},
        {.name = "misused", .run = misused, .applies = is_whole},
        {0},
    };
    return disciplines_main(argc, argv, properties);
}
