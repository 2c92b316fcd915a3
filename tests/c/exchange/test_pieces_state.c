/* The state of encoders of pieces: an exchange that is made again from a saved state goes on with the same bits; a
 * refused update leaves no trace; skips, folds of nothing and publishes lose nothing. */
#include <math.h>

#include "piece_jobs.h"

/* Everything that a checkpoint has of this rank. */
typedef struct saved {
    uint64_t steps[HAND_ROWS], made[HAND_ROWS + JOB_KEYS];
    float *params[HAND_ROWS], *state[HAND_ROWS], *encoders[HAND_ROWS + JOB_KEYS]; /* those of rows, then of keys */
} saved;

static saved *save(const play *p, const rank *r) {
    saved *to = calloc(1, sizeof *to);
    CHECK(p->plan->n_rows <= HAND_ROWS);
    for (int i = 0; i < p->plan->n_rows + p->j.n_keys; i++) {
        const bool is_row = i < p->plan->n_rows;
        const hpc_row *row = &p->plan->rows[is_row ? i : 0];
        const int key = is_row ? row->key : i - p->plan->n_rows;
        if (is_row && row->owner != r->rank) continue;
        if (is_row) {
            to->params[i] = calloc(row->count, sizeof(float)), to->state[i] = calloc(row->count, sizeof(float));
            CHECK_OK(hpc_exchange_get_row(p->e, i, &to->steps[i], to->params[i], to->state[i]));
        }
        const int64_t n = hpc_exchange_encoder_values(p->e, key, is_row ? i : -1);
        if (n <= 0) continue;
        to->encoders[i] = calloc((size_t)n, sizeof(float));
        CHECK_OK(hpc_exchange_get_encoder(p->e, key, is_row ? i : -1, &to->made[i], to->encoders[i]));
    }
    return to;
}

static void load(const play *p, const rank *r, const saved *from) {
    for (int i = 0; i < p->plan->n_rows + p->j.n_keys; i++) {
        const bool is_row = i < p->plan->n_rows;
        const int key = is_row ? p->plan->rows[i].key : i - p->plan->n_rows;
        if (from->params[i < HAND_ROWS ? i : 0] != NULL && is_row)
            CHECK_OK(hpc_exchange_set_row(p->e, i, from->steps[i], from->params[i], from->state[i]));
        if (from->encoders[i] != NULL)
            CHECK_OK(hpc_exchange_set_encoder(p->e, key, is_row ? i : -1, from->made[i], from->encoders[i]));
    }
    CHECK_OK(hpc_exchange_publish(p->e, -1));
    (void)r;
}

static void check_same(const play *p, const rank *r, const saved *a, const saved *b) {
    for (int i = 0; i < p->plan->n_rows + p->j.n_keys; i++) {
        const bool is_row = i < p->plan->n_rows;
        const int key = is_row ? p->plan->rows[i].key : i - p->plan->n_rows;
        const uint64_t n = is_row ? p->plan->rows[i].count : 0;
        if (is_row && a->params[i] != NULL) {
            CHECK(same_floats(b->params[i], a->params[i], n, "a row", r->rank, key));
            CHECK(same_floats(b->state[i], a->state[i], n, "the state of a row", r->rank, key));
        }
        CHECK_EQ(a->encoders[i] != NULL, b->encoders[i] != NULL);
        if (a->encoders[i] == NULL) continue;
        CHECK_EQ(a->made[i], b->made[i]);
        CHECK(same_floats(b->encoders[i], a->encoders[i],
                          (uint64_t)hpc_exchange_encoder_values(p->e, key, is_row ? i : -1), "an encoder", r->rank,
                          key));
    }
}

static void saved_free(saved *s) {
    for (int i = 0; i < HAND_ROWS; i++) free(s->params[i]), free(s->state[i]);
    for (int i = 0; i < HAND_ROWS + JOB_KEYS; i++) free(s->encoders[i]);
    free(s);
}

/* Steps of a third of whole numbers: other orders, or other residuals, have other bits. wild: tries each key's update
 * with a NaN and an Inf in it before. */
static void make_steps(const play *p, const rank *r, int from, int to, bool wild) {
    for (int step = from; step < to; step++)
        for (int key = 0; key < p->j.n_keys; key++) {
            const uint64_t count = p->j.keys[key].count;
            uint64_t ticket;
            void *at = NULL;
            float *src = malloc(count * sizeof *src);
            for (uint64_t i = 0; i < count; i++) src[i] = play_gradient(p, r, step, key, i) / 3;
            for (int twice = 0; twice < 2 && wild; twice++) {
                const uint64_t where = (uint64_t)step * 7 % count;
                const float was = src[where];
                src[where] = twice ? NAN : -INFINITY;
                if (twice) CHECK_OK(hpc_exchange_gradient(p->e, key, -1, &at));
                if (twice) memcpy(at, src, count * sizeof *src);
                CHECK_STATUS(hpc_exchange_start(p->e, key, BOTH, twice ? NULL : src, -1, &ticket), HPC_ERR_INVALID);
                CHECK_MESSAGE("has a NaN or an Inf");
                src[where] = was;
            }
            CHECK_OK(hpc_exchange_push_pull(p->e, key, src, -1));
            free(src);
        }
}

static const setup twice[] = {
    {"again", 3, HUB, .kinds = {TOP, OWN, DECAYS}},
    {"again_bits", 3, HUB, .kinds = {BITS, HALF, ZLIB}, .progress = HPC_PROGRESS_THREAD, .depth = 2},
    {"again_hosts", 5, HOSTS, .per_host = 2, .kinds = {TOP, OWN, DECAYS}},
    {"again_graph", 4, GRAPH, .shape = ROOT, .consistency = HPC_NOTIFY_ACK, .depth = 2, .kinds = {OWN, TOP, BRAIN}},
    {"finite", 3, HUB, .kinds = {TOP, OWN, DECAYS}, .finite = 1},
    {"finite_graph", 4, GRAPH, .shape = ROOT, .consistency = HPC_NOTIFY_ACK, .kinds = {HALF, BITS, TOP}, .finite = 1},
};

enum { TWICE = sizeof twice / sizeof *twice };

/* Half of the steps, then an exchange that is made of what was saved; or with refused updates in between. */
static void goes_on(rank *r) {
    enum { HALF_WAY = 5, ALL_STEPS = 10 };
    setup s = twice[r->arg];
    s.rule = "momentum", s.scale = 5;
    play *p = play_new(r, &s);
    make_steps(p, r, 0, ALL_STEPS, false);
    saved *whole = save(p, r), *half = NULL;
    CHECK_OK(hpc_exchange_close(p->e, -1));
    play_free(p);
    p = play_new(r, &s);
    make_steps(p, r, 0, HALF_WAY, s.finite);
    if (!s.finite) {
        half = save(p, r);
        CHECK_OK(hpc_exchange_close(p->e, -1));
        play_free(p);
        p = play_new(r, &s);
        load(p, r, half);
        saved_free(half);
    }
    make_steps(p, r, HALF_WAY, ALL_STEPS, s.finite);
    half = save(p, r);
    check_same(p, r, whole, half);
    saved_free(whole);
    saved_free(half);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    play_free(p);
}

/* A NaN or Inf that is not refused is sent, and does not stay: after it the residuals have numbers alone. */
static void wild_is_sent(rank *r) {
    const codec_kind kinds[2][3] = {{LARGE, HALF, TOP}, {BITS, PAPER, ZLIB}};
    for (int turn = 0; turn < 2; turn++) {
        setup s = {.plan = HUB, .scale = 3};
        memcpy(s.kinds, kinds[turn], sizeof s.kinds);
        play *p = play_new(r, &s);
        make_steps(p, r, 0, 2, false);
        for (int key = 0; key < p->j.n_keys; key++) {
            float *src = calloc(p->j.keys[key].count, sizeof *src);
            uint64_t made;
            if (r->rank == 1) src[1] = NAN, src[20] = INFINITY, src[32] = -INFINITY;
            CHECK_OK(hpc_exchange_push_pull(p->e, key, src, -1));
            const float *params = hpc_exchange_params(p->e, key);
            CHECK(!isfinite(params[1]) && !isfinite(params[20]) && !isfinite(params[32]));
            float *values = play_residual(p, key, &made);
            CHECK_EQ(made, 3);
            for (uint64_t i = 0; i < p->j.keys[key].count; i++) {
                CHECK(isfinite(values[i]));
                CHECK(p->c.kinds[key] == BITS || isfinite(params[i]) == (i != 1 && i != 20 && i != 32));
            }
            free(values);
            free(src);
        }
        CHECK_OK(hpc_exchange_close(p->e, -1));
        play_free(p);
    }
}

enum { OF_HOSTS = 16, AT_RECEIVERS = 32 }; /* in arg, beside the progress */

/* Folds NaN and Inf of rank 1. The trainer leaves this fold out. */
static void fold_wild(play *p, const rank *r, int key) {
    const uint64_t count = p->j.keys[key].count;
    uint64_t ticket;
    float *src = malloc(count * sizeof *src);
    for (uint64_t i = 0; i < count; i++) src[i] = r->rank != 1 ? 1000 : i % 2 ? NAN : INFINITY;
    CHECK_OK(hpc_exchange_start(p->e, key, HPC_PUSH, src, -1, &ticket));
    CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
    free(src);
}

/* The mean comes in float32, and has the squares that the owners tell. */
static void check_gathered(play *p, int key) {
    uint64_t ticket;
    double told = -1, found = 0;
    CHECK_OK(hpc_exchange_squares(p->e, key, -1, &ticket));
    CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
    CHECK_OK(hpc_exchange_get_squares(p->e, key, &told));
    CHECK_OK(hpc_exchange_gather(p->e, key, -1, &ticket));
    CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
    const float *mean = hpc_exchange_gathered(p->e, key);
    CHECK(mean != NULL);
    for (uint64_t i = 0; i < p->j.keys[key].count; i++) found += (double)mean[i] * mean[i];
    CHECK(told > 0 && fabs(found - told) <= 1e-6 * told);
}

/* Receivers have applied what all have computed and do not hold back; it is the same at all of them. */
static void check_receivers(const play *p, const rank *r, const double *computed, double *sum) {
    memcpy(sum, computed, p->all * sizeof *sum);
    play_add_residuals(p, r, -1, sum);
    double *all = malloc((size_t)r->size * p->all * sizeof *all);
    CHECK_OK(hpc_allgather(r->context, sum, all, p->all * sizeof *all, -1));
    memset(sum, 0, p->all * sizeof *sum);
    play_add_applied(p, r, -1, sum);
    for (int who = 0; who < r->size; who++)
        for (size_t i = 0; i < p->all; i++) sum[i] += all[(size_t)who * p->all + i];
    play_check_none(p, sum);
    free(all);
}

/* A fold that is skipped, or replaced by another one, leaves all encoders as they were, those of forwards too. Some
 * folds here have NaNs, and the units of updates change. A fold of nothing encodes nothing. */
static void between(rank *r) {
    const setup s = {.plan = r->arg & OF_HOSTS       ? HOSTS
                             : r->arg & AT_RECEIVERS ? RECEIVERS
                                                     : HUB,
                     .per_host = r->arg & OF_HOSTS ? 2 : 0,
                     .split = 1,
                     .kinds = {LARGE, TOP, OWN},
                     .progress = r->arg & ~(OF_HOSTS | AT_RECEIVERS)};
    play *p = play_new(r, &s);
    double *computed = calloc(p->all, sizeof *computed);
    uint64_t ticket, made[2] = {0}, counted[JOB_KEYS] = {0};
    for (int step = 0; step < 12; step++)
        for (int key = 0; key < p->j.n_keys; key++) {
            const bool encodes = hpc_exchange_encoder_values(p->e, key, -1) > 0, skips = step % 3 == 2,
                       nothing = (step + r->rank) % 4 == 1;
            const size_t nbytes = p->j.keys[key].count * sizeof(float);
            float *before = encodes ? play_residual(p, key, &made[0]) : NULL;
            p->unit = 1 << step % 4;
            if (skips || step % 4 == 3) fold_wild(p, r, key);
            if (!skips && nothing)
                CHECK_OK(hpc_exchange_fold_nothing(p->e, key, -1, &ticket));
            else if (!skips)
                ticket = play_start(p, r, step, key, HPC_PUSH, false, computed), counted[key]++;
            if (!skips && step % 2) CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
            if (step == 6) {
                CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
                check_gathered(p, key);
            }
            CHECK_OK(hpc_exchange_set_unit(p->e, key, p->unit));
            CHECK_OK(skips ? hpc_exchange_skip(p->e, key, -1, &ticket)
                           : hpc_exchange_apply(p->e, key, 1 / p->unit, -1, &ticket));
            CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
            if (encodes) {
                float *after = play_residual(p, key, &made[1]);
                CHECK_EQ(made[1], counted[key]);
                CHECK(!(skips || nothing) || memcmp(before, after, nbytes) == 0);
                free(after);
            }
            free(before);
        }
    CHECK_STATUS(hpc_exchange_set_unit(p->e, 0, 0), HPC_ERR_INVALID);
    CHECK_MESSAGE("unit");
    CHECK_OK(hpc_exchange_close(p->e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->arg & AT_RECEIVERS) {
        double *sum = calloc(p->all, sizeof *sum);
        check_receivers(p, r, computed, sum);
        free(sum);
    } else {
        play_add_residuals(p, r, -1, computed);
        play_check_servers(p, r, computed);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    free(computed);
    play_free(p);
}

/* The workers of one host push nothing: the owner there takes the fold of the other host alone, which is a piece. With
 * a quorum (arg) one host comes late: with an update, of one of its workers, with one that it skips, and with none. The
 * first alone goes back, and is sent on when the other host comes late. */
static void one_host(rank *r) {
    const setup s = {.plan = HOSTS, .per_host = 2, .quorum = r->arg, .split = 1, .kinds = {LARGE, TOP, ALL}};
    enum { COMES, SKIPS, NOTHING, HOWS };
    play *p = play_new(r, &s);
    double *computed = calloc(p->all, sizeof *computed), *skipped = calloc(p->all, sizeof *skipped);
    uint64_t ticket;
    for (int step = 0; step < 2 * HOWS; step++) {
        const bool it = r->rank / 2 == (s.quorum > 0 ? step < HOWS : step % 2);
        const int how = !it ? COMES : s.quorum > 0 ? step % HOWS : NOTHING;
        if (it && s.quorum > 0) progress_until(r, p->e, WORD + step, 2);
        for (int key = 0; key < p->j.n_keys; key++) {
            if (how == NOTHING || (it && (r->rank + key) % 2))
                CHECK_OK(hpc_exchange_fold_nothing(p->e, key, -1, &ticket));
            else
                ticket = play_start(p, r, step, key, HPC_PUSH, false, how == SKIPS ? skipped : computed);
            CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
            CHECK_OK(how == SKIPS ? hpc_exchange_skip(p->e, key, -1, &ticket)
                                  : hpc_exchange_apply(p->e, key, 1, -1, &ticket));
            CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
            CHECK((hpc_exchange_late(p->e, key) > 0) == (it && s.quorum > 0));
        }
        if (!it) atomic_fetch_add(&r->board[WORD + step], 1);
        if (s.quorum > 0) play_meet(r, p, (step + 2) * WORD);
    }
    CHECK_OK(hpc_exchange_close(p->e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    play_add_residuals(p, r, -1, computed);
    play_check_servers(p, r, computed);
    CHECK_OK(hpc_barrier(r->context, -1));
    free(computed);
    free(skipped);
    play_free(p);
}

/* Copies what this rank keeps of a key, encoders and receivers, to values or (set) from there. */
static void copy_state(const play *p, const rank *r, int key, int set, float *values) {
    const float *end = values + 2 * MOST_VALUES;
    for (int i = -1; i < p->plan->n_rows; i++) {
        const hpc_row *row = i < 0 ? NULL : &p->plan->rows[i];
        if (i >= 0 && (row->owner != r->rank || row->key != key)) continue;
        const int64_t n = hpc_exchange_encoder_values(p->e, key, i);
        if (n > 0)
            CHECK_OK(set ? hpc_exchange_set_encoder(p->e, key, i, 3, values)
                         : hpc_exchange_get_encoder(p->e, key, i, NULL, values));
        values += n;
        if (i < 0 || row->action != HPC_APPLY) continue;
        CHECK_OK(set ? hpc_exchange_set_row(p->e, i, 3, values, NULL)
                     : hpc_exchange_get_row(p->e, i, NULL, values, NULL));
        values += row->count;
    }
    CHECK(values <= end);
}

static float *state_of(const play *p, const rank *r, int key) {
    float *values = calloc(2 * MOST_VALUES, sizeof *values);
    copy_state(p, r, key, 0, values);
    return values;
}

/* SSP where receivers apply the rule. A publish closes a version without updates, as the fast worker's are in the one
 * before: nothing of a residual may leave with it. And one that sets a state closes a version that is left out. */
static void closed_by_publish(rank *r) {
    const setup s = {.plan = RECEIVERS,
                     .consistency = HPC_SSP,
                     .staleness = 2,
                     .depth = 4,
                     .kinds = {TOP, DECAYS, OWN},
                     .progress = r->arg};
    play *p = play_new(r, &s);
    double *computed = calloc(p->all, sizeof *computed), *sum = calloc(p->all, sizeof *sum);
    float *states[JOB_KEYS];
    for (int key = 0; key < p->j.n_keys; key++)
        for (int step = 0; step < 2 && r->rank == 0; step++)
            CHECK_OK(hpc_exchange_wait(p->e, key, play_start(p, r, step, key, BOTH, false, computed), -1));
    play_meet(r, p, WORD);
    for (int key = 0; key < p->j.n_keys && r->rank > 0; key++)
        CHECK_OK(hpc_exchange_wait(p->e, key, play_start(p, r, 0, key, BOTH, false, computed), -1));
    play_meet(r, p, 2 * WORD);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_exchange_publish(p->e, -1));
    check_receivers(p, r, computed, sum);
    for (int key = 0; key < p->j.n_keys; key++) states[key] = state_of(p, r, key);
    for (int key = 0; key < p->j.n_keys && r->rank == 0; key++)
        CHECK_OK(hpc_exchange_wait(p->e, key, play_start(p, r, 5, key, BOTH, false, sum), -1));
    play_meet(r, p, 3 * WORD);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int key = 0; key < p->j.n_keys; key++) copy_state(p, r, key, 1, states[key]);
    CHECK_OK(hpc_exchange_publish(p->e, -1));
    for (int key = 0; key < p->j.n_keys; key++) {
        float *now = state_of(p, r, key);
        CHECK(memcmp(now, states[key], 2 * MOST_VALUES * sizeof *now) == 0);
        free(now);
        free(states[key]);
    }
    check_receivers(p, r, computed, sum);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    free(computed);
    free(sum);
    play_free(p);
}

int main(int argc, char **argv) {
    ranks_case cases[TWICE + 13] = {{0}};
    int n = 0;
    for (int i = 0; i < TWICE; i++)
        cases[n++] = (ranks_case){.name = twice[i].name, .size = twice[i].size, .run = goes_on, .arg = i};
    cases[n++] = (ranks_case){.name = "wild_is_sent", .size = 3, .run = wild_is_sent};
    cases[n++] = (ranks_case){.name = "between", .size = 4, .run = between, .arg = HPC_PROGRESS_INLINE};
    cases[n++] = (ranks_case){.name = "between_threads", .size = 4, .run = between, .arg = HPC_PROGRESS_THREAD};
    cases[n++] =
        (ranks_case){.name = "between_hosts", .size = 4, .run = between, .arg = OF_HOSTS | HPC_PROGRESS_INLINE};
    cases[n++] =
        (ranks_case){.name = "between_hosts_threads", .size = 4, .run = between, .arg = OF_HOSTS | HPC_PROGRESS_THREAD};
    cases[n++] =
        (ranks_case){.name = "between_receivers", .size = 3, .run = between, .arg = AT_RECEIVERS | HPC_PROGRESS_INLINE};
    cases[n++] = (ranks_case){
        .name = "between_receivers_threads", .size = 3, .run = between, .arg = AT_RECEIVERS | HPC_PROGRESS_THREAD};
    cases[n++] = (ranks_case){.name = "nothing_of_a_host", .size = 4, .run = one_host};
    cases[n++] = (ranks_case){.name = "host_comes_late", .size = 4, .run = one_host, .arg = 1};
    cases[n++] = (ranks_case){.name = "closed_by_publish", .size = 3, .run = closed_by_publish};
    cases[n++] = (ranks_case){
        .name = "closed_by_publish_threads", .size = 3, .run = closed_by_publish, .arg = HPC_PROGRESS_THREAD};
    return ranks_main(argc, argv, cases);
}
