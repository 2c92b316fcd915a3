/* The memory of an exchange whose updates go as pieces: what a codec needs, and no more. Every number is counted from
 * the codecs' wire forms (codec/piece.h), and held against what the exchange has taken. */
#include "codec/piece.h"
#include "engine/bytes.h"
#include "engine/pieces.h"
#include "inside.h"
#include "piece_jobs.h"

enum { HEAD = sizeof(hpc_piece_head), UNIT = 16 };

static size_t line(size_t nbytes) {
    return (nbytes + 63) / 64 * 64;
}

/* The longest piece of n elements: dense values, or two means and the bits of each unit. */
static size_t longest(codec_kind kind, size_t n) {
    const size_t units = (n + UNIT - 1) / UNIT;
    return HEAD + (kind == BITS ? units * 8 + n / UNIT * (UNIT / 8) + (n % UNIT + 7) / 8 : n * (kind == HALF ? 2 : 4));
}

/* Receive slots, and the slot of a push, have room for the longest piece of the codec as it is configured. */
static void slots(rank *r) {
    static const setup s = {.name = "slots", .plan = HUB, .kinds = {BITS, HALF, LARGE}};
    play *p = play_new(r, &s);
    const hpc_exchange *e = p->e;
    size_t all = 0;
    for (int i = 0; i < inside(e)->plan->n_rows; i++) {
        const hpc_row *row = &inside(e)->plan->rows[i];
        const size_t due = line(longest(s.kinds[row->key], row->count));
        CHECK_EQ(hpc_slot_stride(inside(e), row),
                 due + (inside(e)->discipline->traits & HPC_MARGINS ? HPC_MARGIN_BYTES : 0));
        all += due;
    }
    CHECK_EQ(inside(e)->layout.gradient_bytes, all);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    play_free(p);
}

/* ---- residual, gradient and sum ------------------------------------------------------------------------------------
 */

enum { COUNT = 3 * HPC_BLOCK + 100 };

/* A codec that sends all, and so keeps nothing back. */
static int64_t encode_all(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap) {
    const size_t nbytes = (size_t)n * sizeof *x;
    (void)state, (void)args;
    CHECK(cap >= (int64_t)nbytes);
    memcpy(out, x, nbytes);
    return (int64_t)nbytes;
}

static int add_all(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    (void)args;
    return hpc_codec_add_array(acc, n, in, nbytes, weight, HPC_F32);
}

/* One key of one row, which rank 0 owns and the last rank pushes. */
static hpc_exchange *open_one(const rank *r, job *j, int codec, const hpc_codec_config *config) {
    const hpc_codec_config *list[1] = {config};
    hpc_exchange_config asked;
    hpc_exchange *e = NULL;
    job_init(j, r);
    j->n_keys = 1, j->keys[0].count = COUNT, j->chunk = 1 << 20, j->wire = codec;
    j->workers[0] = r->size - 1, j->n_workers = j->n_servers = 1;
    j->rule = "sgd";
    hpc_exchange_config_init(&asked);
    asked.codecs = list, asked.progress = HPC_PROGRESS_INLINE;
    CHECK_OK(job_create_with(r, j, &asked, -1, &e));
    CHECK_EQ(inside(e)->plan->n_rows, 1);
    return e;
}

/* A push of i % 7 - 3, by hand or from x. Then param is what sgd makes of it. */
static void step(const rank *r, const job *j, hpc_exchange *e, float *param, double decay, float *in_place) {
    float x[COUNT];
    if (!job_works(j, r->rank)) return;
    for (int i = 0; i < COUNT; i++) {
        float *to = in_place != NULL ? in_place : x;
        to[i] = (float)(i % 7 - 3);
        param[i] -= 0.5f * (to[i] + (float)decay * param[i]);
    }
    CHECK_OK(hpc_exchange_push_pull(e, 0, in_place != NULL ? NULL : x, -1));
    for (int i = 0; i < COUNT; i++) CHECK(hpc_exchange_params(e, 0)[i] == param[i]);
}

static void start(const job *j, float *param) {
    for (int i = 0; i < COUNT; i++) param[i] = job_initial(j, 0, (uint64_t)i);
}

static void end(rank *r, const job *j, hpc_exchange *e) {
    CHECK_OK(hpc_exchange_close(e, -1));
    (void)r, (void)j;
    hpc_exchange_free(e);
}

/* No residual, and no place for gradients until the worker asks for one. */
static void nothing_kept(rank *r) {
    float param[COUNT]; /* ranks may be threads */
    job j;
    void *place = NULL;
    hpc_codec_config config;
    hpc_codec_config_init(&config);
    config.name = "all", config.encode = encode_all, config.decode_add = add_all, config.no_feedback = 1;
    hpc_exchange *e = open_one(r, &j, HPC_OWN_CODEC, &config);
    const hpc_key_pieces *its = &inside(e)->pieces[0];
    start(&j, param);
    for (int i = 0; i < 3; i++) step(r, &j, e, param, 0, NULL);
    CHECK_EQ(inside(e)->encoders_bytes, 0);
    CHECK(its->source == NULL && inside(e)->layout.dense_bytes == 0);
    if (job_works(&j, r->rank)) {
        CHECK_EQ(hpc_exchange_encoder_values(e, 0, -1), HPC_ENCODER_VALUES);
        CHECK_OK(hpc_exchange_gradient(e, 0, -1, &place));
        CHECK(its->source != NULL && place == hpc_memory_data(its->source));
        step(r, &j, e, param, 0, place);
        hpc_memory *kept = hpc_exchange_memory(e, 0, place);
        end(r, &j, e);
        CHECK(((float *)place)[COUNT - 1] == (float)((COUNT - 1) % 7 - 3)); /* it outlives the exchange */
        hpc_memory_release(kept);
        return;
    }
    end(r, &j, e);
}

/* A piece that sgd takes in place needs no sum, until the rule has a decay. */
static void no_sum(rank *r) {
    float param[COUNT]; /* ranks may be threads */
    job j;
    double args[HPC_RULE_ARGS] = {0};
    hpc_codec_config config;
    hpc_codec_config_init(&config);
    hpc_exchange *e = open_one(r, &j, HPC_THRESHOLD, &config);
    start(&j, param);
    step(r, &j, e, param, 0, NULL);
    for (int c = 0; c < inside(e)->n_own_cores; c++) {
        CHECK_EQ(inside(e)->cores[c].memory_bytes, HPC_BLOCK * sizeof(float));
        CHECK(inside(e)->cores[c].sum == NULL);
    }
    CHECK_EQ(inside(e)->encoders_bytes, job_works(&j, r->rank) ? line(COUNT * sizeof(float)) : 0);
    args[1] = 0.5, args[2] = 0.25;
    if (job_works(&j, r->rank)) CHECK_OK(hpc_exchange_set_args(e, 0, args));
    step(r, &j, e, param, 0.25, NULL);
    hpc_exchange *kept = e;
    CHECK_OK(hpc_exchange_close(e, -1));
    for (int c = 0; c < inside(e)->n_own_cores; c++)
        CHECK_EQ(inside(e)->cores[c].sum_bytes, line(COUNT * sizeof(float)));
    hpc_exchange_free(kept);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "slots", .size = 3, .run = slots},
        {.name = "nothing_kept", .size = 2, .run = nothing_kept},
        {.name = "no_sum", .size = 2, .run = no_sum},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
