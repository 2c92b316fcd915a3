/* Refusals of an exchange, with one clear sentence, before anything is sent: ranks that disagree, bad arguments,
 * numbers that are none, rules that fail. The ranks, or the exchange, go on afterwards. */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>

#include "context/context.h"
#include "exchange_plans.h"
#include "inside.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* A whole exchange, to see that the group goes on. */
static void good_exchange(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int key = 0; key < j.n_keys; key++) {
        job_push_pull(r, &j, e, key, 0);
        reference_step(&ref, key);
        reference_check(&ref, r, e, key);
    }
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* ---- ranks that disagree ------------------------------------------------------------------------------------------
 */

/* One rank's job is another. Every rank gets HPC_ERR_CONFIG and reads both values. */
static void told(rank *r, const job *good, const job *bad, const char *one, const char *other) {
    hpc_exchange *e = NULL;
    int status = job_create(r, r->rank == r->arg ? bad : good, -1, &e);
    CHECK_STATUS(status, HPC_ERR_CONFIG);
    CHECK_MESSAGE(one);
    CHECK_MESSAGE(other);
    CHECK(!e);
}

static void disagree(rank *r) {
    char me[16];
    snprintf(me, sizeof me, "%d", r->arg);
    job good, bad;
    job_init(&good, r);
    bad = good, bad.chunk = 4096;
    told(r, &good, &bad, "plan", me);
    bad = good, bad.keys[0] = good.keys[1], bad.keys[1] = good.keys[0]; /* in another order */
    told(r, &good, &bad, "k0", "k1");
    bad = good, bad.keys[2].count = 4098;
    told(r, &good, &bad, "4097", "4098");
    bad = good, bad.n_keys = 2;
    told(r, &good, &bad, "2", "3");
    bad = good, bad.keys[1].name = "another";
    told(r, &good, &bad, "k1", "another");
    bad = good, bad.sum = 0;
    told(r, &good, &bad, "plan", me);
    bad = good, bad.n_servers = 1;
    told(r, &good, &bad, "plan", me);
    bad = good, bad.cores = 2;
    told(r, &good, &bad, "plan", me);
    bad = good, bad.affinity = HPC_WORKER_BY_INTERFACE;
    told(r, &good, &bad, "affinity", me);
    bad = good, bad.rule = "average";
    told(r, &good, &bad, "sgd", "average");
    bad = good, bad.args[1] = 0.375;
    told(r, &good, &bad, "0.5", "0.375");
    bad = good, bad.each = 1;
    told(r, &good, &bad, "rank", me);
    hpc_exchange *e = NULL; /* another call altogether */
    CHECK_STATUS(r->rank == r->arg ? hpc_barrier(r->context, -1) : job_create(r, &good, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("barrier");
    CHECK_MESSAGE("exchange");
    CHECK(!e);
    good_exchange(r);
}

/* Rank 1's part of hpc_exchange_create up to its description, which is these bytes and has another digest than rank
 * 0's; rank 0's comes back. */
static void describe(rank *r, const void *said, size_t nbytes, hpc_reply replies[2]) {
    const struct {
        unsigned char digest[HPC_DIGEST_BYTES];
        int32_t threads;
    } outline = {{1}, 1};
    double deadline = hpc_now() + 20;
    for (int i = 0; i < 3; i++) CHECK_OK(hpc_context_agree(r->context, "exchange", HPC_OK, deadline));
    CHECK_OK(hpc_control_exchange(r->context->control, "exchange", &outline, sizeof outline, HPC_EQUAL_SIZES, replies,
                                  deadline));
    hpc_control_free_replies(r->context->control, replies);
    CHECK_OK(hpc_control_exchange(r->context->control, "exchange", said, nbytes, HPC_OWN_SIZES, replies, deadline));
}

/* Rank 1 describes its exchange too briefly; then as rank 0 does, but the name of the rule, or of the last key, does
 * not end, nor do the bytes behind it. Such a text is cut, and nothing behind it is read. */
static void endless_texts(rank *r) {
    enum { TOO_SHORT, RULE, KEY, TEXT = 64, BEHIND = 56 };
    static const char *const told[] = {"that cannot be read (1 bytes)", "rule xxx", "key 0 is xxx"};
    hpc_reply replies[2] = {{.nbytes = 0}, {.nbytes = 0}};
    hpc_exchange *e = NULL;
    char *said = calloc(1, 1);
    size_t nbytes = 1;
    job j;
    job_init(&j, r);
    j.n_keys = 1;
    for (int what = TOO_SHORT; what <= KEY; what++) {
        if (r->rank == 0) {
            CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_CONFIG);
            CHECK_MESSAGE(told[what]);
            for (const char *at = hpc_last_error()->message; *at != 0; at++) CHECK(*at >= ' ' && *at <= '~');
            continue;
        }
        describe(r, said, nbytes, replies);
        nbytes = replies[0].nbytes;
        said = realloc(said, nbytes);
        memcpy(said, replies[0].data, nbytes);
        hpc_control_free_replies(r->context->control, replies);
        char *at = what == TOO_SHORT ? memmem(said, nbytes, "sgd", 4) : memmem(said, nbytes, "k0", 3);
        CHECK(at);
        size_t behind = (size_t)(said + nbytes - at) - TEXT;
        memset(at, 'x', TEXT);
        memset(at + TEXT, 0xff, behind < BEHIND ? behind : BEHIND);
    }
    free(said);
    good_exchange(r);
}

/* More than there is: an error at creation, on every rank, and nothing is kept. */
static void too_much_memory(rank *r) {
    int ranks[RANKS_MAX];
    for (int i = 0; i < r->size; i++) ranks[i] = i;
    const hpc_key key = {"huge", (uint64_t)1 << 40, 0};
    float one = 1;
    const float *values[] = {&one};
    hpc_hub hub;
    hpc_plan *plan;
    hpc_rule rule;
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = &key, hub.n_keys = 1;
    hub.workers = hub.servers = ranks, hub.n_workers = hub.n_servers = r->size;
    hub.chunk = (uint64_t)1 << 36;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    CHECK_OK(hpc_rule_find("adam", HPC_ISA_BEST, &rule));
    hpc_exchange_config_init(&c);
    c.plan = plan, c.rule = &rule, c.values = values;
    CHECK_STATUS(hpc_exchange_create(r->context, &c, -1, &e), HPC_ERR_MEMORY);
    CHECK(!e);
    hpc_plan_free(plan);
    good_exchange(r);
}

/* ---- bad arguments of one rank, told to all -------------------------------------------------------------------------
 */

static int apply_nothing(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)param, (void)acc, (void)count, (void)state, (void)args, (void)n;
    return 0;
}

static void refused(rank *r, const hpc_exchange_config *bad, int expected, const char *text) {
    job j;
    hpc_exchange *e = NULL;
    hpc_exchange_config good;
    char who[16];
    job_init(&j, r);
    hpc_exchange_config_init(&good);
    bool odd = r->rank == r->arg;
    int status = job_create_with(r, &j, odd ? bad : &good, -1, &e);
    CHECK_STATUS(status, expected);
    CHECK_MESSAGE(text);
    snprintf(who, sizeof who, "rank %d", r->arg);
    CHECK_MESSAGE(who);
    CHECK(!e);
}

static void bad_config(rank *r) {
    hpc_exchange_config c, good;
    hpc_exchange_config_init(&good);
    CHECK_EQ(good.size, sizeof good);
    c = good, c.size = sizeof c - 8;
    refused(r, &c, HPC_ERR_INVALID, "size");
    c = good, c.consistency = 7;
    refused(r, &c, HPC_ERR_INVALID, "7");
    c = good, c.progress = 9;
    refused(r, &c, HPC_ERR_INVALID, "9");
    c = good, c.threads = HPC_MOST_THREADS + 1;
    refused(r, &c, HPC_ERR_INVALID, "65537");
    c = good, c.isa = 99;
    refused(r, &c, HPC_ERR_INVALID, "99");
    hpc_rule rule = {.name = "own", .apply = apply_nothing};
    c = good, c.rule = &rule;
    rule.slots = 5;
    refused(r, &c, HPC_ERR_INVALID, "5");
    rule.slots = 0, rule.apply = NULL;
    refused(r, &c, HPC_ERR_INVALID, "apply");
    rule.apply = apply_nothing, rule.name = NULL;
    refused(r, &c, HPC_ERR_INVALID, "name");
    rule.name = "own", rule.args[3] = NAN;
    refused(r, &c, HPC_ERR_INVALID, "args[3]");
    for (int i = 0; i < 4; i++) {
        static const double patience[] = {0.5, -3, NAN, INFINITY};
        c = good, c.patience = patience[i];
        refused(r, &c, HPC_ERR_INVALID, "must be 1 or more, or 0");
    }
    c = good, c.refusal = "this rank has run out of patience";
    refused(r, &c, HPC_ERR_INVALID, "run out of patience");
    good_exchange(r);
}

/* One rank refuses, and the others have not come to create yet. */
static void accepted(rank *r) {
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    hpc_exchange_config_init(&c);
    c.refusal = "this rank has run out of patience";
    bool odd = r->rank == r->arg;
    int status = odd ? hpc_exchange_create(r->context, &c, -1, &e) : hpc_exchange_create(r->context, NULL, -1, NULL);
    CHECK_STATUS(status, HPC_ERR_INVALID);
    CHECK_MESSAGE("run out of patience");
    CHECK_OK(hpc_exchange_create(r->context, NULL, -1, NULL));
    CHECK_STATUS(hpc_exchange_create(NULL, NULL, -1, NULL), HPC_ERR_INVALID);
    good_exchange(r);
}

/* Rules with the same name and arguments, whose proxes differ on one rank; and rows that they cannot have. */
static void other_proxes(rank *r) {
    hpc_rule rule;
    hpc_prox_fn l1, l2;
    hpc_exchange_config c;
    const bool odd = r->rank == r->arg;
    char who[16];
    job j;
    hpc_exchange *e = NULL;
    job_init(&j, r);
    snprintf(who, sizeof who, "rank %d", r->arg);
    CHECK_OK(hpc_rule_find("proxsgd", HPC_ISA_BEST, &rule));
    CHECK_OK(hpc_prox_find("l1", HPC_ISA_BEST, &l1));
    CHECK_OK(hpc_prox_find("l2", HPC_ISA_BEST, &l2));
    hpc_exchange_config_init(&c);
    c.rule = &rule, rule.columns = 1;
    rule.prox = odd ? l2 : l1;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rule proxsgd has prox l2");
    CHECK_MESSAGE(who);
    rule.prox = odd ? l1 : NULL;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("and none");
    rule.prox = l1, rule.columns = (uint64_t)1 << 40;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("give the rule the columns of the key's matrix");
    rule.columns = odd ? 0 : 1;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("columns of rule 'proxsgd' is 0");
    rule.columns = 1, rule.prox_whole = 1;
    j.chunk = 64;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("reads the whole matrix: make the plan with a unit of");
    CHECK(!e);
    good_exchange(r);
}

/* Arguments of create that are wrong, by hand, on one rank. */
static void bad_create(rank *r) {
    job j;
    hand_plan h;
    hpc_rule rule;
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    job_init(&j, r);
    hand_racks(&h, &j, r->size, HPC_F32, 512);
    CHECK_OK(hpc_rule_find("sgd", HPC_ISA_BEST, &rule));
    hpc_exchange_config_init(&c);
    bool odd = r->rank == r->arg;
    static const float zeros[5000], *values[] = {zeros, zeros, zeros};
    c.values = values;
    c.rule = &rule, c.plan = odd ? NULL : &h.plan;
    CHECK_STATUS(hpc_exchange_create(r->context, &c, -1, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("plan");
    c.plan = &h.plan, c.rule = odd ? NULL : &rule;
    CHECK_STATUS(hpc_exchange_create(r->context, &c, -1, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("rule");
    c.rule = &rule;
    CHECK_STATUS(hpc_exchange_create(r->context, odd ? NULL : &c, -1, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("config");
    CHECK(!e);
    CHECK_STATUS(hpc_exchange_create(r->context, &c, -1, odd ? NULL : &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("exchange");
    CHECK(!e);
    CHECK_STATUS(hpc_exchange_create(NULL, &c, -1, &e), HPC_ERR_INVALID);
    if (odd) h.rows[0].count--; /* a hole */
    CHECK_STATUS(hpc_exchange_create(r->context, &c, -1, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("row");
    if (odd) h.rows[0].count++;
    for (int i = 0; i < h.plan.n_rows; i++) {
        if (h.rows[i].action == HPC_APPLY) h.rows[i].quorum = 1; /* BSP waits for all */
    }
    CHECK_STATUS(hpc_exchange_create(r->context, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("quorum");
    c.consistency = HPC_ASYNC; /* which may apply one update by itself, but not forward a part of a group's */
    for (int i = 0; i < h.plan.n_rows; i++) h.rows[i].quorum = h.rows[i].action == HPC_APPLY ? h.rows[i].n_in : 1;
    CHECK_STATUS(hpc_exchange_create(r->context, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("quorum");
    CHECK(!e);
    good_exchange(r);
}

/* One copy of the parameters wants BSP, memory that every worker can map, and a plan that gives all the same. And with
 * servers what is pushed are no models. */
static void shared_refused(rank *r) {
    job j;
    hpc_exchange *e = NULL;
    job_init(&j, r);
    j.in_place = 1;
    CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("in_place needs a graph and rule average; here are servers");
    j.in_place = 0;
    j.shared_params = 1, j.each = 1;
    CHECK(job_create(r, &j, -1, &e) < 0);
    CHECK_MESSAGE("shared_params");
    j.each = 0;
    if (strcmp(r->mode->transports, "loop") == 0) {
        CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_UNSUPPORTED);
        CHECK_MESSAGE("shared_params");
    }
    hand_plan h;
    hand_ring(&h, &j, r->size, HPC_F32, 1024);
    j.plan = &h.plan;
    CHECK(job_create(r, &j, -1, &e) < 0);
    CHECK_MESSAGE("shared_params");
    CHECK(!e);
    good_exchange(r);
}

/* ---- bad calls ----------------------------------------------------------------------------------------------------
 */

static void bad_calls(rank *r) {
    job j;
    hpc_exchange_stats stats;
    uint64_t ticket = 0, step;
    void *gradient;
    float row[1024];
    double args[HPC_RULE_ARGS] = {0, 0.5};
    job_init(&j, r);
    j.n_servers = 1; /* rank 0 */
    hpc_exchange *e = job_open(r, &j);
    static const int wrong[] = {-1, 3, 1 << 30};
    for (int i = 0; i < 3; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", wrong[i]);
        CHECK_STATUS(hpc_exchange_gradient(e, wrong[i], -1, &gradient), HPC_ERR_INVALID);
        CHECK_MESSAGE(text);
        CHECK_STATUS(hpc_exchange_start(e, wrong[i], BOTH, row, -1, &ticket), HPC_ERR_INVALID);
        CHECK_MESSAGE(text);
        CHECK_STATUS(hpc_exchange_test(e, wrong[i], 0), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_exchange_wait(e, wrong[i], 0, -1), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_exchange_push_pull(e, wrong[i], row, -1), HPC_ERR_INVALID);
        CHECK(!hpc_exchange_params(e, wrong[i]));
    }
    static const int flags[] = {0, 4, 7, -1};
    for (int i = 0; i < 4; i++) CHECK_STATUS(hpc_exchange_start(e, 1, flags[i], row, -1, &ticket), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_start(e, 1, BOTH, row, -1, NULL), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_gradient(e, 1, -1, NULL), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_start(NULL, 1, BOTH, row, -1, &ticket), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_get_stats(e, NULL), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_exchange_set_args(e, -1, NULL), HPC_ERR_INVALID);
    args[2] = INFINITY;
    CHECK_STATUS(hpc_exchange_set_args(e, -1, args), HPC_ERR_INVALID);
    CHECK_MESSAGE("args[2]");
    static const int rows[] = {-1, 1000, 0};
    for (int i = 0; i < (r->rank ? 3 : 2); i++) { /* row 0 is rank 0's */
        CHECK_STATUS(hpc_exchange_get_row(e, rows[i], &step, row, NULL), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_exchange_set_row(e, rows[i], 1, row, NULL), HPC_ERR_INVALID);
    }
    CHECK_STATUS(hpc_exchange_serve(e, -1), HPC_ERR_INVALID); /* would wait for itself */
    CHECK_MESSAGE("close");
    CHECK(!hpc_exchange_memory(NULL, 0, NULL) && !hpc_exchange_memory(e, -1, NULL));
    reference ref;
    reference_init(&ref, &j);
    for (int step_ = 0; step_ < 3; step_++) { /* none of that changed anything */
        job_push_pull(r, &j, e, 1, step_);
        reference_step(&ref, 1);
        reference_check(&ref, r, e, 1);
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.pushes, 3);
    CHECK_EQ(stats.pulls, 3);
    CHECK_EQ(stats.applied, r->rank ? 0 : 3);
    CHECK_EQ(stats.bytes_folded, r->rank ? 0 : 3 * 33 * 4 * r->size);
    CHECK_EQ(stats.bytes_written, r->rank ? 0 : 3 * 33 * 4 * (r->size - 1)); /* its own are the master */
    CHECK_EQ(stats.threads, 0);
    CHECK(stats.wait >= 0 && stats.busy >= 0 && stats.wait + stats.busy < 1e4);
    hpc_exchange_free(e);
}

/* A rank that only serves has no gradients and no parameters. */
static void server_pushes(rank *r) {
    job j;
    uint64_t ticket;
    void *gradient;
    float row[1024] = {0};
    job_init(&j, r);
    j.n_servers = 1, j.n_workers = r->size - 1;
    for (int i = 0; i < j.n_workers; i++) j.workers[i] = i + 1;
    hpc_exchange *e = job_open(r, &j);
    if (r->rank == 0) {
        CHECK_STATUS(hpc_exchange_gradient(e, 1, -1, &gradient), HPC_ERR_INVALID);
        CHECK_STATUS(hpc_exchange_start(e, 1, BOTH, row, -1, &ticket), HPC_ERR_INVALID);
        CHECK_MESSAGE("worker");
        CHECK_STATUS(hpc_exchange_push_pull(e, 1, row, -1), HPC_ERR_INVALID);
        CHECK(!hpc_exchange_params(e, 1));
        CHECK_EQ(inside(e)->layout.holder, -1);
        CHECK_OK(hpc_exchange_serve(e, -1));
    } else
        job_push_pull(r, &j, e, 1, 0);
    hpc_exchange_free(e);
}

/* ---- numbers that are none ------------------------------------------------------------------------------------------
 */

/* arg: wire. The key and the rank are named and nothing is sent: the clean push that follows is the first. */
static void not_finite(rank *r) {
    const float bad[] = {NAN, INFINITY, r->arg == HPC_F16 ? 70000 : -INFINITY}; /* 70000 is Inf on that wire */
    job j;
    reference ref;
    job_init(&j, r);
    j.check_finite = 1, j.wire = r->arg, j.progress = HPC_PROGRESS_INLINE;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    char who[16];
    snprintf(who, sizeof who, "rank %d", r->rank);
    for (int step = 0; step < 9; step++) {
        for (int key = 0; key < j.n_keys; key++) {
            uint64_t count = j.keys[key].count, at = step / 3 == 0 ? 0 : step / 3 == 1 ? count - 1 : count / 2, ticket;
            float *src = malloc(count * sizeof *src);
            job_fill(&j, r->rank, step, key, src);
            src[at] = bad[step % 3];
            CHECK_STATUS(hpc_exchange_start(e, key, BOTH, src, -1, &ticket), HPC_ERR_INVALID);
            CHECK_MESSAGE(j.keys[key].name);
            CHECK_MESSAGE(who);
            CHECK_STATUS(hpc_exchange_push_pull(e, key, src, -1), HPC_ERR_INVALID);
            void *gradient;
            CHECK_OK(hpc_exchange_gradient(e, key, 0, &gradient));
            if (j.wire == HPC_F32)
                memcpy(gradient, src, count * sizeof *src);
            else
                CHECK_OK(hpc_encode(gradient, src, count, j.wire, HPC_ISA_GENERIC));
            CHECK_STATUS(hpc_exchange_start(e, key, BOTH, NULL, -1, &ticket), HPC_ERR_INVALID);
            CHECK_MESSAGE(j.keys[key].name);
            CHECK_MESSAGE(who);
            free(src);
            job_push_pull(r, &j, e, key, step);
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
    }
    hpc_exchange_stats stats;
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.pushes, 9 * j.n_keys);
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* Without check_finite they travel. */
static void not_checked(rank *r) {
    job j;
    job_init(&j, r);
    j.rule = "average";
    hpc_exchange *e = job_open(r, &j);
    float src[33] = {0};
    if (r->rank == 1) src[0] = NAN, src[32] = INFINITY;
    CHECK_OK(hpc_exchange_push_pull(e, 1, src, -1));
    CHECK(isnan(hpc_exchange_params(e, 1)[0]) && isinf(hpc_exchange_params(e, 1)[32]));
    CHECK(hpc_exchange_params(e, 1)[1] == 0);
    hpc_exchange_free(e);
}

/* ---- rules that fail ------------------------------------------------------------------------------------------------
 */

static int apply_until_2(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)param, (void)acc, (void)count, (void)state, (void)n;
    return args[0] == 2 ? 1234 : 0;
}

static int fold_nothing(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    (void)acc, (void)n, (void)in, (void)nbytes, (void)weight, (void)args;
    return 0;
}

/* A fold says which wire formats it reads; the first stage of racks takes f16 here, the second one f32. */
static void fold_misfits(rank *r) {
    enum { F32 = 1u << HPC_F32, F16 = 1u << HPC_F16, BF16 = 1u << HPC_BF16 };
    job j;
    hand_plan h;
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    hpc_rule rule = {.name = "own", .apply = apply_nothing, .fold = fold_nothing};
    job_init(&j, r);
    hand_racks(&h, &j, r->size, HPC_F16, 512);
    j.plan = &h.plan, j.wire = HPC_F16;
    hpc_exchange_config_init(&c);
    c.rule = &rule;
    rule.fold_wires = F16 | BF16;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("reads float16 bfloat16, and row 2 takes its inputs as float32");
    rule.fold_wires = F32;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("reads float32, and row 0 takes its inputs as float16");
    rule.fold_wires = 1u << HPC_F64;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("fold_wires");
    rule.fold_wires = r->rank == r->arg ? 0 : F16 | F32;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("fold_wires 0");
    CHECK(!e);
    for (rule.fold_wires = 0; rule.fold_wires <= (F16 | F32); rule.fold_wires += F16 | F32) {
        CHECK_OK(job_create_with(r, &j, &c, -1, &e));
        job_push_pull(r, &j, e, 0, 0);
        CHECK_OK(hpc_exchange_close(e, -1));
        hpc_exchange_free(e);
    }
}

static int fold_fails(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    (void)acc, (void)n, (void)in, (void)nbytes, (void)weight;
    return args[0] == 2 ? 4321 : 0;
}

/* arg: progress + 8 * in the fold. Rank 1 owns all: it reads its rule's number and the key, the others who failed. */
static void rule_fails(rank *r) {
    job j;
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    hpc_rule rule = {.name = "own", .apply = apply_until_2, .fold = r->arg & 8 ? fold_fails : NULL};
    job_init(&j, r);
    j.servers[0] = 1, j.n_servers = 1;
    hpc_exchange_config_init(&c);
    c.rule = &rule, c.progress = r->arg % 8;
    CHECK_OK(job_create_with(r, &j, &c, -1, &e));
    job_push_pull(r, &j, e, 1, 0);
    uint64_t ticket;
    float src[33] = {0};
    int status = hpc_exchange_start(e, 1, BOTH, src, -1, &ticket);
    if (status == HPC_OK) status = hpc_exchange_wait(e, 1, ticket, -1);
    if (r->rank == 1) {
        CHECK(status < 0);
        CHECK_MESSAGE("k1");
        CHECK_MESSAGE(r->arg & 8 ? "4321" : "1234");
        CHECK(hpc_exchange_push_pull(e, 2, hpc_exchange_params(e, 2), -1) < 0); /* and so it stays */
        CHECK_MESSAGE("k1");
    } else {
        CHECK_STATUS(status, HPC_ERR_PEER);
        CHECK(ranks_error_names(1));
        CHECK_MESSAGE("k1");
    }
    rank_set(r, r->rank, 1);
    for (int i = 0; i < r->size; i++) rank_await(r, i, 1);
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD, FOLD = 8 };
    static const ranks_case cases[] = {
        {.name = "disagree_first", .size = 3, .run = disagree, .arg = 0, .where = RANKS_UNSEEDED},
        {.name = "disagree_last", .size = 3, .run = disagree, .arg = 2, .where = RANKS_UNSEEDED},
        {.name = "endless_texts", .size = 2, .run = endless_texts, .where = RANKS_UNSEEDED},
        {.name = "bad_config_first", .size = 2, .run = bad_config, .arg = 0, .where = RANKS_UNSEEDED},
        {.name = "bad_config_last", .size = 3, .run = bad_config, .arg = 2, .where = RANKS_UNSEEDED},
        {.name = "accepted", .size = 3, .run = accepted, .arg = 1, .where = RANKS_UNSEEDED},
        {.name = "other_proxes", .size = 2, .run = other_proxes, .arg = 1, .where = RANKS_UNSEEDED},
        {.name = "bad_create", .size = 4, .run = bad_create, .arg = 1, .where = RANKS_UNSEEDED},
        {.name = "too_much_memory", .size = 3, .run = too_much_memory, .where = RANKS_UNSEEDED},
        {.name = "shared_refused", .size = 3, .run = shared_refused, .where = RANKS_UNSEEDED},
        {.name = "bad_calls", .size = 2, .run = bad_calls},
        {.name = "server_pushes", .size = 3, .run = server_pushes},
        {.name = "not_finite", .size = 3, .run = not_finite, .arg = HPC_F32},
        {.name = "not_finite_f16", .size = 2, .run = not_finite, .arg = HPC_F16},
        {.name = "not_finite_bf16", .size = 2, .run = not_finite, .arg = HPC_BF16},
        {.name = "not_checked", .size = 2, .run = not_checked},
        {.name = "fold_misfits", .size = 4, .run = fold_misfits, .arg = 2, .where = RANKS_UNSEEDED},
        {.name = "rule_fails", .size = 3, .run = rule_fails, .arg = INLINE, .apart = true},
        {.name = "rule_fails_thread", .size = 3, .run = rule_fails, .arg = THREAD, .apart = true},
        {.name = "fold_fails", .size = 3, .run = rule_fails, .arg = INLINE + FOLD, .apart = true},
        {.name = "fold_fails_thread", .size = 2, .run = rule_fails, .arg = THREAD + FOLD, .apart = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
