/* Parameters that travel in 16 bits: all workers have the same bits, those of a float32 training rounded by hand, by
 * any transport and placement and in any order of push and pull, while the masters keep full float32. The learning rate
 * is so small that what one step adds is lost in 16 bits: parameters that were trained in them would stand still. */
#include <math.h>

#include "exchange_plans.h"
#include "inside.h"

enum { BOTH = HPC_PUSH | HPC_PULL, STEPS = 6 };
enum {
    TOGETHER,
    APART,
    CENTRAL
}; /* who serves: all ranks; rank 1 alone, which does nothing else; rank 0, which works */

/* arg of a case. */
#define CASE(progress, codec, placement) ((progress) + 4 * (codec) + 16 * (placement))

static void job_of(job *j, const rank *r) {
    job_init(j, r);
    j->progress = r->arg % 4, j->codec_out = r->arg / 4 % 4;
    j->args[1] = 1.0 / 512, j->shift = 3.0f / 1024;
    if (r->arg / 16 == APART) {
        j->servers[0] = 1, j->n_servers = 1, j->n_workers = r->size - 1;
        for (int i = 1; i < j->n_workers; i++) j->workers[i] = i + 1;
    } else if (r->arg / 16 == CENTRAL) {
        j->n_servers = 1, j->cores = 2, j->depth = 2, j->wire = HPC_F16, j->chunk = 16448;
    }
}

/* x to the nearest number of so few bits, of two to the even one. */
static float rounded(float x, int codec) {
    int bits = codec == HPC_F16 ? 11 : 8, least = codec == HPC_F16 ? -13 : -125, e;
    frexpf(x, &e);
    float unit = ldexpf(1, (e > least ? e : least) - bits);
    return codec == HPC_F32 ? x : nearbyintf(x / unit) * unit;
}

static void check_rounded(const reference *ref, const rank *r, hpc_exchange *e, int key, int codec) {
    uint64_t count = ref->j->keys[key].count;
    float *expected = malloc(count * sizeof *expected);
    char what[32];
    CHECK(expected);
    for (uint64_t i = 0; i < count; i++) expected[i] = rounded(ref->params[key][i], codec);
    snprintf(what, sizeof what, "after step %d", ref->step[key]);
    CHECK(same_floats(hpc_exchange_params(e, key), expected, count, what, r->rank, key));
    free(expected);
}

/* The rows of this rank: the reference itself, no bit of it rounded. */
static void check_masters(const reference *ref, const rank *r, hpc_exchange *e, const hpc_plan *plan) {
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->owner != r->rank || row->action != HPC_APPLY) continue;
        float *params = malloc(row->count * sizeof *params);
        uint64_t step = 0;
        CHECK_OK(hpc_exchange_get_row(e, i, &step, params, NULL));
        CHECK_EQ(step, ref->step[row->key]);
        CHECK(same_floats(params, ref->params[row->key] + row->offset, row->count, "master", r->rank, row->key));
        free(params);
    }
}

static hpc_plan *plan_of(const job *j) {
    hpc_plan *plan = NULL;
    hpc_hub hub;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = j->keys, hub.n_keys = j->n_keys;
    hub.workers = j->workers, hub.n_workers = j->n_workers, hub.servers = j->servers, hub.n_servers = j->n_servers;
    hub.cores = j->cores, hub.chunk = j->chunk, hub.depth = j->depth, hub.wire = j->wire;
    hub.sum = j->sum, hub.each = j->each, hub.codec_out = j->codec_out;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    return plan;
}

/* Checks the bytes that owners write in so many steps: two bytes an element to workers whose memory they do not map. */
static void check_written(const rank *r, hpc_exchange *e, const hpc_plan *plan, uint64_t steps) {
    hpc_exchange_stats stats;
    uint64_t expected = 0;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        for (int o = 0; o < row->n_out && row->owner == r->rank; o++) {
            hpc_memory *mapped = hpc_window_memory(inside(e)->window, row->out[o].rank);
            expected += steps * row->count * (mapped ? 4 : 2);
            hpc_memory_release(mapped);
        }
    }
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.bytes_written, expected);
}

/* One step of all keys: by push_pull; by a push, then a pull of each; or all at once, and looked at until they end. */
static void step_of(const rank *r, const job *j, hpc_exchange *e, int step) {
    uint64_t tickets[JOB_KEYS];
    for (int key = 0; key < j->n_keys; key++) {
        if (step % 3 == 0)
            job_push_pull(r, j, e, key, step);
        else
            tickets[key] = job_start(r, j, e, key, step, step % 3 == 1 ? HPC_PUSH : BOTH, key % 2);
    }
    for (int key = 0; key < j->n_keys && step % 3 == 1; key++) {
        CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &tickets[key]));
        CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
    }
    for (int key = 0; key < j->n_keys && step % 3 == 2; key++) {
        int status;
        while ((status = hpc_exchange_test(e, key, tickets[key])) == HPC_IN_PROGRESS) continue;
        CHECK_OK(status);
    }
}

static void bsp(rank *r) {
    job j;
    reference ref;
    job_of(&j, r);
    hpc_plan *plan = plan_of(&j);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int key = 0; key < j.n_keys && job_works(&j, r->rank); key++) check_rounded(&ref, r, e, key, j.codec_out);
    if (!job_works(&j, r->rank)) CHECK_OK(hpc_exchange_serve(e, -1));
    for (int step = 0; step < STEPS; step++) {
        if (job_works(&j, r->rank)) step_of(r, &j, e, step);
        for (int key = 0; key < j.n_keys; key++) {
            reference_step(&ref, key);
            if (job_works(&j, r->rank)) check_rounded(&ref, r, e, key, j.codec_out);
        }
    }
    check_masters(&ref, r, e, plan);
    check_written(r, e, plan, STEPS);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    reference_free(&ref);
    hpc_plan_free(plan);
}

/* Workers meet while they work for their rows. */
static void meet(const rank *r, const job *j, hpc_exchange *e, uint64_t turn) {
    rank_set((rank *)r, r->rank, turn);
    for (int i = 0; i < j->n_workers; i++) progress_until(r, e, j->workers[i], turn);
}

/* Parameters come by pulls: of two that are under way the newest brings them, whichever is waited for first. */
static void async(rank *r) {
    job j;
    reference ref;
    job_of(&j, r);
    j.each = 1;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    if (!job_works(&j, r->rank)) CHECK_OK(hpc_exchange_serve(e, -1));
    for (int step = 0; step < STEPS && job_works(&j, r->rank); step++) {
        uint64_t pushed, first, second;
        for (int key = 0; key < j.n_keys; key++) {
            pushed = job_start(r, &j, e, key, step, HPC_PUSH, step % 2);
            CHECK_OK(hpc_exchange_wait(e, key, pushed, -1));
        }
        meet(r, &j, e, 2 * (uint64_t)step + 1);
        for (int key = 0; key < j.n_keys; key++) {
            CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &first));
            CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &second));
            if (step % 2) CHECK_OK(hpc_exchange_wait(e, key, first, -1));
            CHECK_OK(hpc_exchange_wait(e, key, second, -1));
            reference_step(&ref, key);
            check_rounded(&ref, r, e, key, j.codec_out);
            CHECK_OK(hpc_exchange_wait(e, key, first, -1));
            check_rounded(&ref, r, e, key, j.codec_out);
        }
        meet(r, &j, e, 2 * (uint64_t)step + 2);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    reference_free(&ref);
}

/* Each push takes one from every element, and every rank pushes and pulls as it likes: what comes is a whole version of
 * a row, newer than the last. Sources of puts must not change before they are sent, nor may what has come be decoded
 * while more comes. Mapped parameters may change until the last pull ends. */
static void whole_versions(rank *r) {
    enum { COUNT = 4097, ROUNDS = 40 };
    job j;
    float *ones = malloc(COUNT * sizeof *ones), last = 0;
    job_of(&j, r);
    CHECK(ones);
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    j.each = 1, j.n_keys = 1, j.keys[0].count = COUNT, j.chunk = 16448, j.args[1] = 1, j.shift = 0;
    hpc_exchange *e = job_open(r, &j);
    if (!job_works(&j, r->rank)) CHECK_OK(hpc_exchange_serve(e, -1));
    float *params = hpc_exchange_params(e, 0), initial[COUNT];
    if (params) memcpy(initial, params, sizeof initial);
    for (int n = 0; n < ROUNDS && job_works(&j, r->rank); n++) {
        uint64_t first, second;
        CHECK_OK(hpc_exchange_start(e, 0, BOTH, ones, -1, &first));
        CHECK_OK(hpc_exchange_start(e, 0, HPC_PULL, NULL, -1, &second));
        CHECK_OK(hpc_exchange_wait(e, 0, first, -1));
        hpc_memory *mapped = hpc_window_memory(inside(e)->window, j.servers[0]);
        for (int i = 0; i < COUNT && !mapped; i++) CHECK(params[i] - initial[i] == params[0] - initial[0]);
        hpc_memory_release(mapped);
        CHECK_OK(hpc_exchange_wait(e, 0, second, -1));
        for (int i = 0; i < COUNT; i++) CHECK(params[i] - initial[i] == params[0] - initial[0]);
        CHECK(params[0] - initial[0] <= last - 1);
        last = params[0] - initial[0];
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    free(ones);
}

/* Parameters of a push or pull that nobody has waited for are there once the exchange has closed. arg: each. */
static void closing(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    j.codec_out = HPC_BF16, j.args[1] = 1.0 / 512, j.shift = 3.0f / 1024, j.each = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int key = 0; key < j.n_keys; key++) {
        uint64_t ticket = job_start(r, &j, e, key, 0, HPC_PUSH, false);
        reference_step(&ref, key);
        if (r->arg) CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
    }
    meet(r, &j, e, 1);
    for (int key = 0; key < j.n_keys && r->arg; key++) {
        uint64_t ticket;
        CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &ticket));
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    for (int key = 0; key < j.n_keys; key++) check_rounded(&ref, r, e, key, j.codec_out);
    hpc_exchange_free(e);
    reference_free(&ref);
}

/* Two of three make two steps. The third has what it began with, and gets what the others have once it pushes. */
static void quorum(rank *r) {
    enum { STRAGGLER = 2 };
    job j;
    reference ref, seen;
    job_of(&j, r);
    j.n_keys = 1, j.quorum = 2, j.grace = 0, j.n_workers = 2; /* whose gradients count */
    job all = j;
    all.n_workers = r->size;
    hpc_exchange *e = job_open(r, &all);
    reference_init(&ref, &j);
    reference_init(&seen, &j);
    for (int step = 0; step < 2; step++) {
        reference_step(&ref, 0);
        if (r->rank != STRAGGLER) {
            job_push_pull(r, &all, e, 0, step);
            check_rounded(&ref, r, e, 0, j.codec_out);
        }
        meet(r, &all, e, 2 * (uint64_t)step + 1);
        if (r->rank == STRAGGLER) check_rounded(&seen, r, e, 0, j.codec_out);
        meet(r, &all, e, 2 * (uint64_t)step + 2);
    }
    if (r->rank == STRAGGLER) {
        job_push_pull(r, &all, e, 0, 0);
        check_rounded(&ref, r, e, 0, j.codec_out);
        CHECK(hpc_exchange_late(e, 0) > 0);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    reference_free(&ref);
    reference_free(&seen);
}

/* ---- stages -------------------------------------------------------------------------------------------------------
 */

/* Sums of racks are forwarded in float16, in which they fit, and parameters come back in bfloat16. */
static void racks(rank *r) {
    job j, halves;
    reference ref;
    hand_plan *h = calloc(1, sizeof *h);
    hpc_exchange_peer peer;
    uint64_t elements = 0;
    CHECK(h);
    job_init(&j, r);
    j.progress = r->arg, j.args[1] = 1.0 / 512, j.shift = 3.0f / 1024;
    hand_racks(h, &j, r->size, HPC_F32, 1024);
    for (int i = 0; i < h->plan.n_rows; i++) {
        int forwards = h->rows[i].action == HPC_FORWARD;
        h->rows[i].codec_out = forwards ? HPC_F16 : HPC_BF16;
        if (!forwards) h->rows[i].codec_in = HPC_F16;
    }
    for (int key = 0; key < j.n_keys; key++) elements += j.keys[key].count;
    j.plan = &h->plan;
    halves = j, halves.args[1] /= 2; /* the last stage takes half of each sum */
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &halves);
    for (int step = 0; step < STEPS; step++) {
        step_of(r, &j, e, step);
        for (int key = 0; key < j.n_keys; key++) {
            reference_step(&ref, key);
            check_rounded(&ref, r, e, key, HPC_BF16);
        }
    }
    check_masters(&ref, r, e, &h->plan);
    check_written(r, e, &h->plan, r->rank == r->size - 1 ? STEPS : 0);
    CHECK_OK(hpc_exchange_get_peer(e, r->size - 1, &peer));
    CHECK_EQ(peer.bytes_sent, r->rank % 2 || r->rank == r->size - 1 ? 0 : STEPS * 2 * elements);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    reference_free(&ref);
    free(h);
}

static float odd(const job *j, int who, int step, int key, uint64_t i) {
    return job_gradient(j, who, step, key, i) * 1.0009765625f;
}

/* Emitted folds are rounded too, at the only rank that gets them, which owns their rows. */
static void ring(rank *r) {
    job j;
    hand_plan *h = calloc(1, sizeof *h);
    float *src = malloc(5000 * sizeof *src), *expected = malloc(5000 * sizeof *expected);
    CHECK(h && src && expected);
    job_init(&j, r);
    j.progress = HPC_PROGRESS_INLINE;
    hand_ring(h, &j, r->size, HPC_F32, 1024);
    for (int i = 0; i < h->plan.n_rows; i++) h->rows[i].codec_out = r->arg;
    j.plan = &h->plan;
    hpc_exchange *e = job_open(r, &j);
    for (int step = 0; step < 2; step++)
        for (int key = 0; key < j.n_keys; key++) {
            int before = (r->rank + r->size - 1) % r->size, after = (r->rank + 1) % r->size;
            for (uint64_t i = 0; i < j.keys[key].count; i++) {
                src[i] = odd(&j, r->rank, step, key, i);
                expected[i] =
                    rounded(src[i] / 2 + (odd(&j, before, step, key, i) + odd(&j, after, step, key, i)) / 4, r->arg);
            }
            CHECK_OK(hpc_exchange_push_pull(e, key, src, -1));
            for (uint64_t i = 0; i < j.keys[key].count; i++) CHECK(hpc_exchange_params(e, key)[i] == expected[i]);
        }
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    free(src);
    free(expected);
    free(h);
}

/* ---- checkpoints --------------------------------------------------------------------------------------------------
 */

typedef struct saved {
    uint64_t step;
    float *params, *state;
} saved;

static void train(const rank *r, const job *j, hpc_exchange *e, reference *ref, int from, int to) {
    for (int step = from; step < to; step++) {
        step_of(r, j, e, step);
        for (int key = 0; key < j->n_keys; key++) reference_step(ref, key);
    }
    for (int key = 0; key < j->n_keys; key++) check_rounded(ref, r, e, key, j->codec_out);
}

/* Rows taken out and put into another exchange: params are rounded at once, and the training goes on as if it had never
 * been cut. */
static void resumes(rank *r) {
    job j;
    reference ref;
    job_of(&j, r);
    j.rule = "momentum", j.args[3] = 0.5;
    hpc_plan *plan = plan_of(&j);
    saved *rows = calloc((size_t)plan->n_rows, sizeof *rows);
    CHECK(rows);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    train(r, &j, e, &ref, 0, 3);
    for (int i = 0; i < plan->n_rows; i++) {
        size_t nbytes = plan->rows[i].count * sizeof(float);
        if (plan->rows[i].owner != r->rank) continue;
        rows[i].params = malloc(nbytes), rows[i].state = malloc(nbytes);
        CHECK_OK(hpc_exchange_get_row(e, i, &rows[i].step, rows[i].params, rows[i].state));
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    e = job_open(r, &j);
    for (int i = 0; i < plan->n_rows; i++)
        if (rows[i].params) CHECK_OK(hpc_exchange_set_row(e, i, rows[i].step, rows[i].params, rows[i].state));
    CHECK_OK(hpc_exchange_publish(e, -1));
    for (int key = 0; key < j.n_keys; key++) check_rounded(&ref, r, e, key, j.codec_out);
    train(r, &j, e, &ref, 3, STEPS);
    check_masters(&ref, r, e, plan);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    for (int i = 0; i < plan->n_rows; i++) {
        free(rows[i].params);
        free(rows[i].state);
    }
    free(rows);
    reference_free(&ref);
    hpc_plan_free(plan);
}

/* ---- refusals -----------------------------------------------------------------------------------------------------
 */

static void refuses(rank *r) {
    job j, other;
    hpc_exchange *e = NULL;
    job_init(&j, r);
    j.codec_out = HPC_F16, j.shared_params = 1;
    CHECK_STATUS(job_create(r, &j, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("row 0 sends parameters as float16");
    CHECK_MESSAGE("with shared_params");
    j.shared_params = 0, other = j, other.codec_out = HPC_BF16;
    CHECK_STATUS(job_create(r, r->rank == 1 ? &other : &j, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rank 1 has another plan than rank 0");
    CHECK_MESSAGE("codec_out");

    const double weights[] = {0.5, 0.5, 0.5, 0.5};
    hpc_graph graph;
    hpc_plan *plan = NULL;
    hpc_plan_args_init("graph", &graph, sizeof graph);
    graph.keys = j.keys, graph.n_keys = j.n_keys, graph.ranks = 2, graph.n_phases = 1, graph.weights = weights;
    CHECK_OK(hpc_plan_make("graph", &graph, &plan));
    for (int i = 0; i < plan->n_rows; i++) ((hpc_row *)plan->rows)[i].codec_out = HPC_BF16;
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    c.consistency = HPC_NOTIFY_ACK, c.graph = &graph;
    j.plan = plan, j.rule = "average", j.args[1] = 0;
    CHECK_STATUS(job_create_with(r, &j, &c, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("row 0 sends parameters as bfloat16; on a graph they stay at their rank");
    CHECK(!e);
    hpc_plan_free(plan);
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "bfloat16", .size = 3, .run = bsp, .arg = CASE(INLINE, HPC_BF16, TOGETHER)},
        {.name = "float16_threads", .size = 3, .run = bsp, .arg = CASE(THREAD, HPC_F16, TOGETHER)},
        {.name = "servers_apart", .size = 3, .run = bsp, .arg = CASE(INLINE, HPC_F16, APART)},
        {.name = "servers_apart_threads", .size = 3, .run = bsp, .arg = CASE(THREAD, HPC_BF16, APART)},
        {.name = "both_ways", .size = 3, .run = bsp, .arg = CASE(THREAD, HPC_BF16, CENTRAL)},
        {.name = "async", .size = 3, .run = async, .arg = CASE(INLINE, HPC_BF16, TOGETHER)},
        {.name = "async_apart_threads", .size = 3, .run = async, .arg = CASE(THREAD, HPC_F16, APART)},
        {.name = "whole_versions", .size = 4, .run = whole_versions, .arg = CASE(INLINE, HPC_F16, APART)},
        {.name = "whole_versions_threads", .size = 4, .run = whole_versions, .arg = CASE(THREAD, HPC_F16, APART)},
        {.name = "closing", .size = 2, .run = closing},
        {.name = "closing_async", .size = 2, .run = closing, .arg = 1},
        {.name = "quorum", .size = 3, .run = quorum, .arg = CASE(INLINE, HPC_BF16, TOGETHER)},
        {.name = "quorum_threads", .size = 3, .run = quorum, .arg = CASE(THREAD, HPC_F16, TOGETHER)},
        {.name = "racks", .size = 4, .run = racks, .arg = INLINE},
        {.name = "racks_threads", .size = 4, .run = racks, .arg = THREAD},
        {.name = "ring", .size = 3, .run = ring, .arg = HPC_BF16},
        {.name = "resumes", .size = 2, .run = resumes, .arg = CASE(INLINE, HPC_BF16, TOGETHER)},
        {.name = "resumes_threads", .size = 2, .run = resumes, .arg = CASE(THREAD, HPC_F16, TOGETHER)},
        {.name = "refuses", .size = 2, .run = refuses},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
