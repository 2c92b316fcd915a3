/* What every discipline promises of its numbers: the bits of a fold, what was left out, states that are saved and
 * loaded, and arguments that change. disciplines.c has the combinations. */
#include <math.h>

#include "disciplines.h"
#include "inside.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* ---- bits -------------------------------------------------------------------------------------------------------- */

/* A number of many bits: sums of these depend on their order. */
static float rough(int worker, int step, int key, uint64_t i) {
    uint64_t state = (uint64_t)((worker * 131 + step) * 1031 + key * 100003) + i;
    return ldexpf((float)(int)(ranks_random(&state) & 0xffffff) - 8388608.0f, (int)(ranks_random(&state) % 12) - 30);
}

static float *rough_update(const trial *t, int worker, int step, int key) {
    float *values = malloc(t->j->keys[key].count * sizeof *values);
    CHECK(values);
    for (uint64_t i = 0; i < t->j->keys[key].count; i++) values[i] = rough(worker, step, key, i);
    return values;
}

/* A reference in plain C, of any plan: what each row that makes parameters has, with its rule's state. */
typedef struct by_hand {
    trial *t;
    hpc_rule rule;
    float **params, **state, **sums; /* by row */
    int step;
} by_hand;

static float **new_rows(const trial *t) {
    float **rows = calloc((size_t)t->plan->n_rows, sizeof *rows);
    for (int i = 0; i < t->plan->n_rows; i++) rows[i] = calloc(t->plan->rows[i].count, sizeof **rows);
    return rows;
}

static void free_rows(const trial *t, float **rows) {
    for (int i = 0; i < t->plan->n_rows; i++) free(rows[i]);
    free(rows);
}

static void by_hand_init(by_hand *h, trial *t) {
    *h = (by_hand){.t = t, .params = new_rows(t), .state = new_rows(t), .sums = new_rows(t)};
    CHECK_OK(hpc_rule_find(t->j->rule, HPC_ISA_GENERIC, &h->rule));
    memcpy(h->rule.args, t->j->args, sizeof h->rule.args);
    for (int i = 0; i < t->plan->n_rows; i++) {
        const hpc_row *row = &t->plan->rows[i];
        for (uint64_t k = 0; k < row->count; k++) h->params[i][k] = job_initial(t->j, row->key, row->offset + k);
    }
}

static void by_hand_free(by_hand *h) {
    free_rows(h->t, h->params);
    free_rows(h->t, h->state);
    free_rows(h->t, h->sums);
}

static double weight_of(const by_hand *h, const hpc_row *row, const hpc_edge *in) {
    return h->t->c->edges == GRAPH ? graph_job_weight(&h->t->g, h->step, row->owner, in->rank) : in->weight;
}

/* The weighted sum of a row's inputs in the plan's order; rows that forward to it come first. */
static int sum_of(by_hand *h, int i) {
    const hpc_row *row = &h->t->plan->rows[i];
    float *updates[RANKS_MAX] = {0};
    const void *in[RANKS_MAX] = {0};
    double weights[RANKS_MAX] = {0};
    int n = 0;
    for (int e = 0; e < row->n_in; e++) {
        const hpc_edge *edge = &row->in[e];
        weights[n] = weight_of(h, row, edge);
        if (weights[n] == 0) continue;
        if (edge->row >= 0) sum_of(h, edge->row);
        if (edge->row < 0) updates[n] = rough_update(h->t, edge->rank, h->step, row->key);
        in[n] = edge->row >= 0 ? h->sums[edge->row] : updates[n] + row->offset;
        n++;
    }
    CHECK_OK(hpc_fold(h->sums[i], in, weights, n, row->count, HPC_F32, HPC_ISA_GENERIC));
    for (int e = 0; e < n; e++) free(updates[e]);
    return n;
}

static void by_hand_step(by_hand *h) {
    h->rule.args[0] = h->step + 1;
    for (int i = 0; i < h->t->plan->n_rows; i++) {
        const hpc_row *row = &h->t->plan->rows[i];
        if (row->action != HPC_APPLY || !trial_has(h->t, row)) continue;
        const int n = sum_of(h, i);
        CHECK_EQ(h->rule.apply(h->params[i], h->sums[i], n, h->state[i], h->rule.args, (int64_t)row->count), 0);
    }
    h->step++;
}

static void by_hand_check(const by_hand *h) {
    const trial *t = h->t;
    for (int i = 0; i < t->plan->n_rows && trial_works(t, t->r->rank); i++) {
        const hpc_row *row = &t->plan->rows[i];
        if (row->action != HPC_APPLY || !trial_has(t, row)) continue;
        const float *at = hpc_exchange_params(t->e, row->key) + row->offset;
        CHECK(same_floats(at, h->params[i], row->count, "by hand", t->r->rank, row->key));
    }
}

static void step_roughly(trial *t, int step) {
    uint64_t tickets[JOB_KEYS];
    for (int key = 0; key < t->j->n_keys && trial_works(t, t->r->rank); key++) {
        float *update = rough_update(t, t->r->rank, step, key);
        if (t->j->in_place) memcpy(hpc_exchange_params(t->e, key), update, t->j->keys[key].count * sizeof *update);
        CHECK_OK(hpc_exchange_start(t->e, key, BOTH, t->j->in_place ? NULL : update, -1, &tickets[key]));
        free(update);
    }
    for (int key = 0; key < t->j->n_keys && trial_works(t, t->r->rank); key++)
        CHECK_OK(hpc_exchange_wait(t->e, key, tickets[key], -1));
}

static bool is_exact(const combination *c) {
    return is_whole(c) && !(c->with & ROUNDED);
}

/* With a quorum on servers folds are whole where no update is late. */
static bool is_exact_in_time(const combination *c) {
    return is_exact(c) || (c->quorum > 0 && c->edges != GRAPH && !(c->with & ROUNDED));
}

static void with_momentum(trial *t) {
    trial_in_time(t);
    if (strcmp(t->j->rule, "average") == 0) return;
    t->j->rule = "momentum", t->j->args[1] = 0.1, t->j->args[2] = 1e-4, t->j->args[3] = 0.9;
}

/* Where folds have all updates of a step, parameters have the bits of the plan that is computed by hand. */
static void bits(rank *r) {
    trial *t = trial_open(r, with_momentum);
    by_hand h;
    by_hand_init(&h, t);
    for (int step = 0; step < 4; step++) {
        step_roughly(t, step);
        by_hand_step(&h);
        by_hand_check(&h);
    }
    by_hand_free(&h);
    trial_close(t);
}

/* ---- versions ---------------------------------------------------------------------------------------------------- */

static bool counts_late(const combination *c) {
    return c->quorum > 0 && has_equal_parameters(c);
}

static bool has_versions(const combination *c) {
    return counts_late(c) || (c->edges == RECEIVERS && has_staleness(c) && !(c->with & ROUNDED));
}

static void one_share(trial *t) {
    t->j->n_keys = 1, t->j->cores = 1, t->j->chunk = 65536;
}

static void one_share_with_momentum(trial *t) {
    one_share(t);
    with_momentum(t);
    t->j->grace = 0;
}

/* The version of the parameters that a wait has brought: under SSP the step less what it was behind. */
static uint64_t version_of(const trial *t, uint64_t step, uint64_t *counts) {
    uint64_t now[16] = {0}, behind = 16;
    if (counts_late(t->c)) return hpc_exchange_version(t->e, -1);
    for (int d = 0; d <= hpc_exchange_get_histogram(t->e, HPC_STEPS_BY_STALENESS, now, 16); d++) {
        if (now[d] != counts[d]) behind = (uint64_t)d;
        counts[d] = now[d];
    }
    CHECK(behind <= (uint64_t)t->c->staleness);
    return step > behind ? step - behind : 0;
}

/* All workers have the same bits for each version, whatever they are behind, and whether an update of theirs was late.
 */
static void versions(rank *r) {
    enum { BITS = 64 };
    trial *t = trial_open(r, one_share_with_momentum);
    uint64_t random = 11 * (uint64_t)r->rank + r->mode->seed, counts[16] = {0};
    const uint64_t steps = (uint64_t)ranks_rounds(40);
    uint64_t version = 0;
    for (int step = 0; (counts_late(t->c) ? version : (uint64_t)step) < steps && trial_works(t, r->rank); step++) {
        uint64_t before = 0;
        trial_dawdle(&random);
        step_roughly(t, step);
        version = version_of(t, (uint64_t)step + 1, counts);
        const uint64_t hash = trial_hash(t, 0);
        if (!atomic_compare_exchange_strong(&r->board[BITS + version], &before, hash)) CHECK_EQ(before, hash);
    }
    trial_meet(t); /* two versions close at once where a rank has left */
    trial_close(t);
}

/* ---- what was left out ------------------------------------------------------------------------------------------- */

static bool is_first_of_share(const hpc_plan *plan, int i) {
    for (int k = 0; k < i; k++)
        if (plan->rows[k].key == plan->rows[i].key && plan->rows[k].core == plan->rows[i].core &&
            plan->rows[k].owner == plan->rows[i].owner && plan->rows[k].action == HPC_APPLY)
            return false;
    return true;
}

static bool is_lowest(const combination *c, int who) {
    return who == 0 || group_of(c, who - 1) != group_of(c, who);
}

/* What the rows of this rank have of each worker, and what it has counted as late, are all that was pushed. */
static void check_late(trial *t, const uint64_t *pushed, uint64_t *missed) {
    uint64_t late[RANKS_MAX] = {0};
    for (int i = 0; i < t->plan->n_rows; i++) {
        const hpc_row *row = &t->plan->rows[i];
        uint64_t seen[RANKS_MAX];
        if (row->owner != t->r->rank || row->action != HPC_APPLY) continue;
        trial_look_row(t, i, seen);
        for (int who = 0; who < t->r->size; who++) {
            if (seen[who] == UINT64_MAX) continue;
            CHECK(seen[who] <= pushed[who]);
            if (is_first_of_share(t->plan, i)) late[who] += pushed[who] - seen[who];
            missed[who] += pushed[who] - seen[who];
        }
    }
    for (int who = 0; who < t->r->size; who++) {
        hpc_exchange_peer peer;
        CHECK_OK(hpc_exchange_get_peer(t->e, who, &peer));
        CHECK_EQ(peer.late, is_lowest(t->c, who) ? late[who] : 0);
    }
}

/* A copy is as new as its newest row. */
static void check_heard(const trial *t) {
    uint64_t *heard = calloc((size_t)t->plan->n_rows, sizeof *heard), newest = 0;
    CHECK_OK(hpc_exchange_get_heard(t->e, heard, t->plan->n_rows));
    for (int i = 0; i < t->plan->n_rows; i++)
        if (heard[i] != UINT64_MAX && heard[i] > newest) newest = heard[i];
    CHECK_EQ(newest, hpc_exchange_version(t->e, -1));
    free(heard);
}

/* None, a short one, or one that is learned. */
static void some_grace(trial *t) {
    static const double graces[] = {0, 1e-4, -1};
    t->j->grace = graces[t->r->arg % 3];
}

/* With a quorum on servers every update is in the parameters, or was counted as late: here, and there. */
static void counted(rank *r) {
    enum { STEPS = 20, PUSHED = 0, MISSED = 64 };
    trial *t = trial_open(r, some_grace);
    hpc_exchange_stats stats;
    uint64_t random = 77 * (uint64_t)r->rank + r->mode->seed, pushed[RANKS_MAX], missed[RANKS_MAX] = {0};
    while (hpc_exchange_version(t->e, -1) < STEPS) {
        trial_dawdle(&random);
        CHECK_OK(trial_step(t, -1));
    }
    check_heard(t);
    CHECK_OK(hpc_exchange_get_stats(t->e, &stats));
    rank_set(r, PUSHED + r->rank, (uint64_t)t->pushed[0]);
    CHECK_OK(hpc_exchange_close(t->e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int who = 0; who < r->size; who++) pushed[who] = rank_await(r, PUSHED + who, 1);
    check_late(t, pushed, missed);
    for (int who = 0; who < r->size; who++) atomic_fetch_add(&r->board[MISSED + who], missed[who]);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_EQ(stats.dropped > 0, atomic_load(&r->board[MISSED + r->rank]) > 0);
    CHECK_OK(hpc_exchange_get_stats(t->e, &stats));
    CHECK_EQ(stats.whole + stats.missing, stats.reduces * (uint64_t)(group_of(t->c, t->slow) + 1));
    trial_free(t);
}

/* ---- what is known of copies and folds ----------------------------------------------------------------------------
 */

static bool tells_folds(const combination *c) {
    return c->edges != GRAPH && c->edges != PEERS && c->quorum == 0 && !is_whole(c);
}

/* Nothing is under way: owners know of all pushes, and pulls that ask tell that the copies have them, be there more
 * pulls than pushes. */
static void told(rank *r) {
    enum { STEPS = 3, PULLS = 4, FOLDED = 64 };
    trial *t = trial_open(r, NULL);
    uint64_t *heard = calloc((size_t)t->plan->n_rows, sizeof *heard), folded, ticket;
    const int asks = t->c->edges == SERVERS && has_staleness(t->c), works = trial_works(t, r->rank);
    for (int step = 0; step < STEPS && works; step++) CHECK_OK(trial_step(t, -1));
    trial_settle(t);
    trial_meet(t);
    for (int who = 0; who < r->size; who++) {
        CHECK_OK(hpc_exchange_get_folded(t->e, who, &folded));
        rank_set(r, FOLDED + RANKS_MAX * who + r->rank, folded);
    }
    for (int i = 0; i < PULLS * t->j->n_keys && asks && works; i++) {
        CHECK_OK(hpc_exchange_start(t->e, i % t->j->n_keys, HPC_PULL, NULL, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(t->e, i % t->j->n_keys, ticket, -1));
    }
    trial_meet(t);
    CHECK_OK(hpc_exchange_get_heard(t->e, heard, t->plan->n_rows));
    for (int i = 0; i < t->plan->n_rows && asks; i++) CHECK_EQ(heard[i], works ? STEPS : UINT64_MAX);
    for (int who = 0; who < r->size; who++) {
        uint64_t most = 0;
        for (int at = 0; at < r->size; at++) {
            folded = atomic_load(&r->board[FOLDED + RANKS_MAX * who + at]);
            if (folded > most) most = folded;
        }
        CHECK_EQ(most, trial_works(t, who) ? STEPS : 0);
    }
    free(heard);
    trial_close(t);
}

static bool counts_folds(const combination *c) {
    return c->edges == GRAPH && leaves_out(c) && (c->consistency != HPC_SSP || c->quorum > 0);
}

/* On a graph each fold counts its inputs, and a quorum tells neighbours what it has dropped: each push of theirs was
 * folded, or dropped, or is the one that lies there unread. */
static void counted_folds(rank *r) {
    enum { FOLDED = 64 };
    trial *t = trial_open(r, one_share);
    hpc_exchange_stats stats;
    hpc_exchange_peer peer;
    const int steps = ranks_rounds(60);
    uint64_t random = 17 + (uint64_t)r->rank, folded[RANKS_MAX] = {0}, whole = 0, edges = 0;
    for (int step = 0; step < steps; step++) {
        uint64_t least[RANKS_MAX], most[RANKS_MAX];
        trial_dawdle(&random);
        CHECK_OK(trial_step(t, -1));
        trial_look(t, 0, least, most);
        for (int who = 0; who < r->size; who++) {
            folded[who] += who != r->rank && most[who] > 0;
            whole += who != r->rank && most[who] > 0;
            edges += who != r->rank && trial_hears(t, r->rank, who, step);
        }
    }
    CHECK_OK(hpc_exchange_get_stats(t->e, &stats));
    CHECK_EQ(stats.reduces, steps);
    CHECK_EQ(stats.whole, whole);
    CHECK_EQ(stats.whole + stats.torn + stats.stale + stats.missing, edges);
    CHECK_OK(hpc_exchange_close(t->e, -1));
    for (int who = 0; who < r->size; who++) rank_set(r, FOLDED + RANKS_MAX * who + r->rank, folded[who]);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int who = 0; who < r->size && t->c->quorum > 0 && !has_phases(t->c); who++) {
        const uint64_t taken = atomic_load(&r->board[FOLDED + RANKS_MAX * r->rank + who]);
        CHECK_OK(hpc_exchange_get_peer(t->e, who, &peer));
        if (who == r->rank) continue;
        CHECK(taken + peer.dropped <= (uint64_t)steps && taken + peer.dropped + 1 >= (uint64_t)steps);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    trial_free(t);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

typedef struct saved {
    uint64_t step;
    float *params, *state;
} saved;

static bool is_own(const trial *t, int i) {
    return t->plan->rows[i].owner == t->r->rank && t->plan->rows[i].action == HPC_APPLY;
}

static saved *save(const trial *t) {
    saved *rows = calloc((size_t)t->plan->n_rows, sizeof *rows);
    for (int i = 0; i < t->plan->n_rows; i++) {
        if (!is_own(t, i)) continue;
        rows[i].params = calloc(t->plan->rows[i].count, sizeof(float));
        rows[i].state = calloc(t->plan->rows[i].count, sizeof(float));
        CHECK_OK(hpc_exchange_get_row(t->e, i, &rows[i].step, rows[i].params, rows[i].state));
    }
    return rows;
}

static void load(trial *t, const saved *rows) {
    CHECK_OK(hpc_barrier(t->r->context, -1));
    for (int i = 0; i < t->plan->n_rows; i++)
        if (is_own(t, i)) CHECK_OK(hpc_exchange_set_row(t->e, i, rows[i].step, rows[i].params, rows[i].state));
    CHECK_OK(hpc_exchange_publish(t->e, -1));
}

static void forget(const trial *t, saved *rows) {
    for (int i = 0; i < t->plan->n_rows; i++) free(rows[i].params), free(rows[i].state);
    free(rows);
}

/* The rows' bits as far as they do not depend on chance. */
static uint64_t hash_rows(const trial *t) {
    uint64_t hash = 1469598103934665603u;
    saved *rows = save(t);
    for (int i = 0; i < t->plan->n_rows; i++)
        for (uint64_t k = 0; is_own(t, i) && k < t->plan->rows[i].count; k++) {
            uint32_t words[2];
            memcpy(&words[0], &rows[i].params[k], sizeof words[0]);
            memcpy(&words[1], &rows[i].state[k], sizeof words[1]);
            hash = ((hash ^ words[0]) * 1099511628211u ^ words[1]) * 1099511628211u;
        }
    forget(t, rows);
    return hash;
}

/* Peers and receivers that need not wait apply what has come at once, so their steps depend on chance. */
static uint64_t steps_of_rows(const trial *t) {
    uint64_t sum = 0, step;
    if ((t->c->edges == PEERS || t->c->edges == RECEIVERS) && !is_whole(t->c)) return 0;
    for (int i = 0; i < t->plan->n_rows; i++) {
        if (!is_own(t, i)) continue;
        CHECK_OK(hpc_exchange_get_row(t->e, i, &step, NULL, NULL));
        sum += step;
    }
    return sum;
}

static bool settles_alike(const combination *c) {
    return c->edges == GRAPH ? is_whole(c) : !leaves_out(c) || c->quorum > 0;
}

static void train(trial *t, int from, int to) {
    for (int step = from; step < to && trial_works(t, t->r->rank); step++)
        if (is_exact(t->c))
            step_roughly(t, step);
        else
            CHECK_OK(trial_step(t, -1));
    trial_settle(t);
    trial_publish(t);
}

/* No update is late, and where folds are whole their order counts. */
static void in_time(trial *t) {
    trial_in_time(t);
    if (is_exact(t->c)) with_momentum(t);
}

/* With servers some ranks make a step more than others, where they may, and none waits until all of them are applied.
 */
static void open_updates(trial *t) {
    const combination *c = t->c;
    const bool unequal = c->edges != GRAPH && c->edges != PEERS && c->quorum == 0 && most_ahead(c) != 0;
    const int steps = 1 + (unequal ? group_of(c, t->r->rank) % 2 : 0);
    for (int step = 0; step < steps && trial_works(t, t->r->rank); step++) step_roughly(t, step);
    if (!unequal || !settles_for_all(c)) trial_settle(t);
    trial_meet(t);
}

/* Steps go on from a state that was saved: in the same exchange, whose later steps leave nothing, and in another one.
 * Both times the same comes of them. */
static void restored(rank *r) {
    enum { BEFORE = 3, AFTER = 3 };
    trial *t = trial_open(r, in_time), *other = trial_new(r, in_time);
    uint64_t at[JOB_KEYS] = {0}, after, steps;
    train(t, 0, BEFORE);
    saved *rows = save(t);
    trial_meet(t); /* else another rank may push before this one has read its rows */
    for (int key = 0; key < t->j->n_keys && trial_works(t, r->rank); key++) at[key] = trial_hash(t, key);
    train(t, BEFORE, BEFORE + AFTER);
    after = hash_rows(t), steps = steps_of_rows(t);
    load(t, rows);
    for (int key = 0; key < t->j->n_keys && trial_works(t, r->rank); key++) CHECK_EQ(trial_hash(t, key), at[key]);
    train(t, BEFORE, BEFORE + AFTER);
    if (settles_alike(t->c)) CHECK_EQ(hash_rows(t), after);
    CHECK_EQ(steps_of_rows(t), steps);
    trial_close(t);
    CHECK_OK(trial_create(other, NULL, &other->e));
    open_updates(other); /* of which nothing is left */
    load(other, rows);
    for (int key = 0; key < other->j->n_keys && trial_works(other, r->rank); key++)
        CHECK_EQ(trial_hash(other, key), at[key]);
    memset(other->pushed, 0, sizeof other->pushed);
    train(other, BEFORE, BEFORE + AFTER);
    if (settles_alike(other->c)) CHECK_EQ(hash_rows(other), after);
    CHECK_EQ(steps_of_rows(other), steps);
    forget(other, rows);
    trial_close(other);
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static bool has_rates(const combination *c) {
    return !leaves_out(c) && !(c->edges == GRAPH && !is_whole(c)) && !(c->with & (MODELS | ROUNDED));
}

/* Each update is applied by the rate that its worker gave with it. */
static void rates(rank *r) {
    enum { STEPS = 6 };
    trial *t = trial_open(r, NULL);
    double args[HPC_RULE_ARGS] = {0}, moved[RANKS_MAX] = {0};
    for (int step = 0; step < STEPS; step++) {
        args[1] = 1 + step % 3;
        if (trial_works(t, r->rank)) {
            CHECK_OK(hpc_exchange_set_args(t->e, -1, args));
            CHECK_OK(trial_step(t, -1));
        }
        if (settles_for_all(t->c)) trial_settle(t);
        for (int who = 0; who < r->size; who++) moved[who] += trial_hears(t, r->rank, who, step) ? args[1] : 0;
    }
    trial_settle(t);
    trial_publish(t);
    for (int key = 0; key < t->j->n_keys && trial_works(t, r->rank); key++) {
        uint64_t least[RANKS_MAX], most[RANKS_MAX];
        trial_look(t, key, least, most);
        for (int who = 0; who < r->size; who++) {
            if (least[who] == UINT64_MAX || !trial_works(t, who)) continue;
            CHECK_EQ(least[who], moved[who]);
            CHECK_EQ(most[who], moved[who]);
        }
    }
    trial_close(t);
}

/* The last rank's updates are folded with those of another. */
static bool has_one_rate(const combination *c) {
    if (c->edges == GRAPH || c->quorum > 0 || (c->edges == PEERS && c->with & SPLIT)) return false;
    return is_whole(c) || c->edges == RECEIVERS || group_of(c, c->size - 1) == group_of(c, c->size - 2);
}

/* Ranks whose updates are folded give the same arguments, or all hear which did not. */
static void rates_differ(rank *r) {
    trial *t = trial_open(r, NULL);
    const double args[HPC_RULE_ARGS] = {0, r->rank == t->slow ? 7 : 3};
    int status = HPC_OK;
    if (trial_works(t, r->rank)) CHECK_OK(hpc_exchange_set_args(t->e, -1, args));
    for (int step = 0; step < 100 && status == HPC_OK; step++)
        status = trial_works(t, r->rank) ? trial_step(t, -1) : hpc_exchange_serve(t->e, -1);
    CHECK(status == HPC_ERR_CONFIG || status == HPC_ERR_PEER);
    if (status == HPC_ERR_CONFIG) CHECK_MESSAGE("lr is ");
    if (status == HPC_ERR_CONFIG) CHECK_MESSAGE("give the same lr on every rank");
    trial_free(t);
}

int main(int argc, char **argv) {
    static const property properties[] = {
        {.name = "bits", .run = bits, .applies = is_exact_in_time},
        {.name = "versions", .run = versions, .applies = has_versions},
        {.name = "told", .run = told, .applies = tells_folds},
        {.name = "counted", .run = counted, .applies = counts_late},
        {.name = "counted_folds", .run = counted_folds, .applies = counts_folds},
        {.name = "restored", .run = restored},
        {.name = "rates", .run = rates, .applies = has_rates},
        {.name = "rates_differ", .run = rates_differ, .applies = has_one_rate, .how = {.apart = true}},
        {0},
    };
    return disciplines_main(argc, argv, properties);
}
