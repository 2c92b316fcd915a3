/* SSP(s) on servers: how far workers may be apart, what they see, and what they wait for. */
#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL, ROUNDED = 256, STATE = 512 };

/* Rank 0 is the only server, and no worker if it is dedicated. */
static void central(job *j, bool dedicated) {
    j->n_servers = 1;
    for (int i = 1; i < j->n_workers && dedicated; i++) j->workers[i - 1] = j->workers[i];
    j->n_workers -= dedicated;
}

static int create(const rank *r, const job *j, int staleness, hpc_exchange **e) {
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    c.consistency = HPC_SSP, c.staleness = staleness, c.progress = j->progress;
    return job_create_with(r, j, &c, -1, e);
}

static hpc_exchange *ssp_open(const rank *r, const job *j, int staleness) {
    hpc_exchange *e = NULL;
    CHECK_OK(create(r, j, staleness, &e));
    return e;
}

static void end(hpc_exchange *e) {
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

static void pull(hpc_exchange *e, int key) {
    uint64_t ticket;
    CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &ticket));
    CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
}

/* ---- the bound --------------------------------------------------------------------------------------------------- */

/* ---- a fresh copy ------------------------------------------------------------------------------------------------ */

static float *ones(uint64_t count, float value) {
    float *values = malloc(count * sizeof *values);
    for (uint64_t i = 0; i < count; i++) values[i] = value;
    return values;
}

static void check_moved(const job *j, hpc_exchange *e, int key, float by) {
    const float *params = hpc_exchange_params(e, key);
    for (uint64_t i = 0; i < j->keys[key].count; i++) CHECK(job_initial(j, key, i) - params[i] == by);
}

/* arg: s, with flags. The server looks at nothing until a worker has made s steps: none of them makes a round trip. The
 * worker sees its own updates, each by the arguments of its push, where the rule has no state. */
static void fresh(rank *r) {
    enum { KEY = 2 };
    int s = r->arg % 64, own = !(r->arg & STATE);
    uint64_t ticket, counts[65];
    job j;
    job_init(&j, r);
    central(&j, true);
    j.args[1] = 1, j.depth = s + 1, j.chunk = 65536, j.rule = own ? "sgd" : "momentum";
    if (r->arg & ROUNDED) j.wire = HPC_BF16, j.codec_out = HPC_BF16;
    hpc_exchange *e = ssp_open(r, &j, s);
    if (r->rank == 0) {
        rank_await(r, 1, 1);
        CHECK_OK(hpc_exchange_serve(e, -1));
        hpc_exchange_free(e);
        return;
    }
    double args[HPC_RULE_ARGS] = {0, 100};
    float *two = ones(j.keys[KEY].count, 2), moved = 0;
    check_moved(&j, e, KEY, 0);
    for (int step = 1; step <= s; step++) {
        moved += 2;
        CHECK_OK(hpc_exchange_start(e, KEY, HPC_PUSH, two, -1, &ticket));
        if (step == s && own) CHECK_OK(hpc_exchange_set_args(e, KEY, args));
        check_moved(&j, e, KEY, own ? moved - 2 : 0);
        pull(e, KEY);
        check_moved(&j, e, KEY, own ? moved : 0);
    }
    args[1] = 1;
    if (own) CHECK_OK(hpc_exchange_set_args(e, KEY, args));
    CHECK_EQ(hpc_exchange_get_histogram(e, HPC_STEPS_BY_STALENESS, counts, 65), s);
    for (int d = 0; d < 65; d++) CHECK_EQ(counts[d], d >= 1 && d <= s);
    CHECK_EQ(hpc_exchange_under_way(e), KEY);
    CHECK_OK(hpc_exchange_start(e, KEY, BOTH, two, -1, &ticket)); /* the first that asks */
    CHECK_STATUS(hpc_exchange_wait(e, KEY, ticket, 0.05), HPC_ERR_TIMEOUT);
    CHECK(ranks_error_waits_for(0) && !ranks_error_waits_for(1));
    rank_set(r, 1, 1);
    CHECK_OK(hpc_exchange_wait(e, KEY, ticket, -1));
    if (own) check_moved(&j, e, KEY, moved + 2);
    CHECK_EQ(hpc_exchange_get_histogram(e, HPC_STEPS_BY_STALENESS, counts, 65), s);
    CHECK_EQ(counts[0], 1);
    pull(e, KEY); /* begins no step */
    CHECK_EQ(hpc_exchange_get_histogram(e, HPC_STEPS_BY_STALENESS, counts, 65), s);
    CHECK_EQ(counts[0], 1);
    free(two);
    end(e);
}

/* Two pushes and one pull: the copy lacks the first of them, so the pull asks. A pull that comes while another one is
 * parked is answered with it. */
static void asks(rank *r) {
    job j;
    job_init(&j, r);
    j.args[1] = 1, j.depth = 4;
    hpc_exchange *e = ssp_open(r, &j, 3);
    float *one = ones(j.keys[0].count, 1);
    if (r->rank == 0) {
        uint64_t ticket, first, second;
        CHECK_OK(hpc_exchange_start(e, 0, HPC_PUSH, one, -1, &ticket));
        CHECK_OK(hpc_exchange_start(e, 0, HPC_PUSH, one, -1, &ticket));
        pull(e, 0);
        check_moved(&j, e, 0, 2);
        for (int i = 0; i < 2; i++) CHECK_OK(hpc_exchange_start(e, 0, HPC_PUSH, one, -1, &ticket));
        CHECK_OK(hpc_exchange_start(e, 0, HPC_PULL, NULL, -1, &first)); /* at clock 4 */
        CHECK_OK(hpc_exchange_start(e, 0, HPC_PULL, NULL, -1, &second));
        CHECK_STATUS(hpc_exchange_wait(e, 0, first, 0.02), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(1) && !ranks_error_waits_for(0));
        CHECK_OK(hpc_exchange_start(e, 0, HPC_PUSH, one, -1, &ticket)); /* makes them wait for nothing more */
        CHECK_OK(hpc_exchange_settle(e, -1));
        rank_set(r, 0, 1);
        CHECK_OK(hpc_exchange_wait(e, 0, first, -1));
        CHECK_OK(hpc_exchange_wait(e, 0, second, -1));
        check_moved(&j, e, 0, 6);
        rank_set(r, 0, 2);
    } else {
        progress_until(r, e, 0, 1);
        CHECK_OK(hpc_exchange_push_pull(e, 0, one, -1));
        progress_until(r, e, 0, 2);
    }
    free(one);
    end(e);
}

/* ---- publish, and the rows --------------------------------------------------------------------------------------- */

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refused(rank *r, const job *j, const hpc_exchange_config *c, int status, const char *text) {
    hpc_exchange *e = NULL;
    CHECK_STATUS(job_create_with(r, j, c, -1, &e), status);
    CHECK_MESSAGE(text);
    CHECK(!strchr(hpc_last_error()->message, '\n'));
    CHECK(!e);
}

static void good(const rank *r, job *j, hpc_exchange_config *c) {
    job_init(j, r);
    hpc_exchange_config_init(c);
    c->consistency = HPC_SSP, c->staleness = 2;
}

static void refusals(rank *r) {
    job j;
    hpc_exchange_config c;
    hand_plan *ring = malloc(sizeof *ring);
    good(r, &j, &c), j.each = 1;
    refused(r, &j, &c, HPC_ERR_CONFIG, "SSP with servers needs rows of one stage");
    good(r, &j, &c);
    hand_ring(ring, &j, r->size, HPC_F32, 512), j.plan = &ring->plan;
    refused(r, &j, &c, HPC_ERR_CONFIG, "SSP with servers needs rows of one stage");
    free(ring);
    good(r, &j, &c);
    hpc_exchange *e = ssp_open(r, &j, 64); /* the group goes on */
    for (int key = 0; key < j.n_keys; key++) job_push_pull(r, &j, e, key, 0);
    uint64_t counts[2] = {0};
    CHECK_STATUS(hpc_exchange_get_histogram(NULL, HPC_STEPS_BY_STALENESS, counts, 2), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_get_histogram(e, HPC_STEPS_BY_STALENESS, NULL, 2), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_settle(NULL, -1), HPC_ERR_INVALID);
    end(e);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "fresh_1", .size = 2, .run = fresh, .arg = 1},
        {.name = "fresh_4", .size = 2, .run = fresh, .arg = 4},
        {.name = "fresh_15_rounded", .size = 2, .run = fresh, .arg = 15 + ROUNDED},
        {.name = "fresh_3_state", .size = 2, .run = fresh, .arg = 3 + STATE},
        {.name = "asks", .size = 2, .run = asks},
        {.name = "refusals", .size = 3, .run = refusals},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
