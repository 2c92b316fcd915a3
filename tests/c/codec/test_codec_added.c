/* Codecs of one's own: this program has an array with two more members, and nothing in csrc changes for them.
 * "reversed" is an array of float32 in the other order of bytes; gradients and parameters travel in it. "pairs" has
 * pieces, and its trainer writes no array, but a list of (index, value). */
#include <math.h>

#include "codec/codec.h"
#include "engine/scheme.h"
#include "inside.h"
#include "graph_jobs.h"

enum { REVERSED = 9, PAIRS = 10, STEPS = 5, EVERY = 8 /* of so many elements at most one is in a list */ };

static float reversed(const void *at) {
    unsigned char from[sizeof(float)], to[sizeof(float)];
    float x;
    memcpy(from, at, sizeof from);
    for (size_t i = 0; i < sizeof to; i++) to[i] = from[sizeof from - 1 - i];
    memcpy(&x, to, sizeof x);
    return x;
}

static size_t max_bytes(const hpc_codec_config *config, uint64_t n) {
    (void)config;
    return (size_t)n * sizeof(float);
}

static size_t length(const hpc_codec_config *config, const void *piece, uint64_t n) {
    (void)piece;
    return max_bytes(config, n);
}

static int64_t encode(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state, void *out,
                      int64_t cap, int64_t *kept) {
    (void)encoding, (void)state, (void)kept;
    if (cap < (int64_t)max_bytes(NULL, (uint64_t)n)) return -1;
    const float *x = hpc_source_values(source);
    for (int64_t i = 0; i < n; i++) {
        float y = reversed(&x[i]);
        memcpy((char *)out + (size_t)i * sizeof y, &y, sizeof y);
    }
    return n * (int64_t)sizeof(float);
}

static int decode_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                      double weight) {
    (void)config;
    if (n < 0 || nbytes != (int64_t)max_bytes(NULL, (uint64_t)n)) return -1;
    for (int64_t i = 0; i < n; i++) acc[i] += (float)weight * reversed((const char *)in + (size_t)i * sizeof *acc);
    return 0;
}

static void fold_reversed(void *to, const void *const *in, const double *weights, int n_in, size_t n, int stream) {
    float *out = to;
    (void)stream;
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < n_in; k++) sum += (float)weights[k] * reversed((const char *)in[k] + i * sizeof sum);
        out[i] = sum;
    }
}

static hpc_fold_fn *fold(const struct hpc_fold_kernels *kernels) {
    (void)kernels;
    return fold_reversed;
}

static const hpc_codec codec_reversed = {
    .name = "reversed",
    .number = REVERSED,
    .addressable = 1,
    .item = sizeof(float),
    .max_bytes = max_bytes,
    .length = length,
    .encode = encode,
    .decode_add = decode_add,
    .fold = fold,
};

/* ---- pairs ---- */

static _Atomic int adds_at_once;

typedef struct pair {
    uint32_t index;
    float value;
} pair;

typedef struct pair_list {
    uint64_t count;
    pair pairs[];
} pair_list;

static size_t pairs_bytes(const hpc_codec_config *config, uint64_t n) {
    (void)config;
    return sizeof(pair_list) + (size_t)(n / EVERY + 1) * sizeof(pair);
}

static size_t pairs_length(const hpc_codec_config *config, const void *piece, uint64_t n) {
    pair_list head;
    (void)config;
    memcpy(&head, piece, sizeof head);
    return head.count > n / EVERY + 1 ? 0 : sizeof head + (size_t)head.count * sizeof(pair);
}

static int64_t encode_pairs(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state,
                            void *out, int64_t cap, int64_t *kept) {
    const pair_list *from = source->data;
    pair_list *to = out;
    (void)encoding;
    CHECK(state == NULL && cap >= (int64_t)pairs_bytes(NULL, (uint64_t)n));
    to->count = 0;
    for (uint64_t i = 0; i < from->count; i++) {
        const uint64_t index = from->pairs[i].index;
        if (index < source->from || index >= source->from + (uint64_t)n) continue;
        to->pairs[to->count++] = (pair){(uint32_t)(index - source->from), from->pairs[i].value};
    }
    *kept = (int64_t)to->count;
    return (int64_t)(sizeof *to + to->count * sizeof(pair));
}

static int add_pairs(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                     double weight) {
    const pair_list *list = in;
    if (nbytes < (int64_t)sizeof *list || nbytes != (int64_t)pairs_length(config, in, (uint64_t)n)) return -1;
    for (uint64_t i = 0; i < list->count; i++)
        if (list->pairs[i].index >= n) return -1;
    for (uint64_t i = 0; i < list->count; i++) acc[list->pairs[i].index] += (float)weight * list->pairs[i].value;
    return 0;
}

/* In one pass: of lists whose indices rise. */
static int add_all_pairs(const hpc_codec_config *config, float *param, int64_t n, const hpc_codec_input *inputs,
                         int n_inputs, double rate, int *wrong) {
    uint64_t at[RANKS_MAX] = {0};
    for (int k = 0; k < n_inputs; k++)
        if (add_pairs(config, param, n, inputs[k].piece, inputs[k].nbytes, 0) != 0) {
            *wrong = k;
            return -1;
        }
    for (uint32_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < n_inputs; k++) {
            const pair_list *list = inputs[k].piece;
            if (at[k] < list->count && list->pairs[at[k]].index == i)
                sum += (float)inputs[k].weight * list->pairs[at[k]++].value;
        }
        param[i] -= (float)rate * sum;
    }
    adds_at_once++;
    return 0;
}

static int pairs_are_finite(const hpc_codec_config *config, const hpc_codec_source *source, uint64_t n) {
    const pair_list *list = source->data;
    (void)config, (void)n;
    for (uint64_t i = 0; i < list->count; i++)
        if (!isfinite(list->pairs[i].value)) return 0;
    return 1;
}

static const char *check_pairs(const hpc_codec_config *config) {
    (void)config;
    return NULL;
}

static int keeps_nothing(const hpc_codec_config *config) {
    (void)config;
    return 0;
}

static void encode_no_pairs(const hpc_codec_config *config, int64_t n, void *out) {
    (void)config, (void)n;
    *(pair_list *)out = (pair_list){0};
}

static const char *pairs_text(int status) {
    (void)status;
    return "it is no list of pairs";
}

static const hpc_codec codec_pairs = {
    .name = "pairs",
    .number = PAIRS,
    .weighs = 1,
    .max_bytes = pairs_bytes,
    .length = pairs_length,
    .encode = encode_pairs,
    .decode_add = add_pairs,
    .add_all = add_all_pairs,
    .check = check_pairs,
    .keeps = keeps_nothing,
    .source_bytes = pairs_bytes,
    .is_finite = pairs_are_finite,
    .encode_nothing = encode_no_pairs,
    .text = pairs_text,
};

const hpc_codec *hpc_codec_of(int number) {
    static const hpc_codec *const codecs[] = {&hpc_codec_f32, &codec_reversed, &codec_pairs};
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++)
        if (codecs[i]->number == number) return codecs[i];
    return NULL;
}

/* arg: progress + 4 when parameters travel in it too, + 8 with racks, whose forwards do. */
static void trains(rank *r) {
    job j;
    hand_plan h;
    reference ref;
    job_init(&j, r);
    j.progress = r->arg % 4, j.wire = REVERSED, j.n_servers = 1;
    j.codec_out = r->arg & 4 ? REVERSED : HPC_F32;
    if (r->arg & 8) {
        hand_racks(&h, &j, r->size, REVERSED, 512);
        for (int i = 0; i < h.plan.n_rows; i++)
            *(h.rows[i].action == HPC_FORWARD ? &h.rows[i].codec_out : &h.rows[i].codec_in) = REVERSED;
        j.plan = &h.plan;
    }
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < j.n_keys; k++) {
            double *sum = calloc(j.keys[k].count, sizeof *sum);
            for (int w = 0; w < r->size; w++)
                for (uint64_t i = 0; i < j.keys[k].count; i++)
                    sum[i] += (r->arg & 8 ? 0.5 : 1) * (double)job_gradient(&j, w, step, k, i);
            reference_apply(&ref, k, sum);
            free(sum);
            CHECK_OK(hpc_exchange_wait(e, k, job_start(r, &j, e, k, step, HPC_PUSH | HPC_PULL, false), -1));
            reference_check(&ref, r, e, k);
        }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* Each rank's list has one of each 8 elements, and lists of ranks meet. arg: progress, + 4 with a decay, which takes
 * the sum of all lists; + 8 where fold and apply are two calls; + 16 on a complete graph, with the sum. */
static void trains_by_pairs(rank *r) {
    graph_job g;
    hpc_codec_config config;
    hpc_codec_config_init(&config);
    const hpc_codec_config *list[JOB_KEYS] = {&config, &config, &config};
    job_config asked;
    hpc_exchange *e = NULL;
    reference ref;
    graph_job_init(&g, r);
    if (r->arg & 16) graph_job_shape(&g, COMPLETE);
    job *j = &g.j;
    job_init(j, r);
    j->wire = PAIRS, j->n_servers = 1, j->progress = r->arg % 4, j->split = (r->arg & 8) != 0;
    if (r->arg & 4) j->args[2] = 0.5;
    if (r->arg & 16) {
        graph_config_init(&asked, r, &g);
    } else {
        hpc_exchange_config c;
        job_settings(&c, j);
        job_config_init(&asked, r, j, &c);
    }
    asked.config.codecs = list;
    adds_at_once = 0;
    CHECK_OK(hpc_exchange_create(r->context, &asked.config, -1, &e));
    job_config_free(&asked);
    reference_init(&ref, j);
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < j->n_keys; k++) {
            const uint64_t n = j->keys[k].count;
            double *sum = calloc(n, sizeof *sum);
            void *at = NULL, *own = malloc(pairs_bytes(NULL, n));
            if (step % 2 == 0) CHECK_OK(hpc_exchange_gradient(e, k, -1, &at));
            pair_list *to = at != NULL ? at : own;
            to->count = 0;
            for (int w = 0; w < r->size; w++)
                for (uint64_t i = (uint64_t)(w + step) % 2; i < n; i += EVERY) {
                    const float value = job_gradient(j, w, step, k, i);
                    sum[i] += (r->arg & 16 ? graph_job_weight(&g, step, r->rank, w) : 1) * (double)value;
                    if (w == r->rank) to->pairs[to->count++] = (pair){(uint32_t)i, value};
                }
            reference_apply(&ref, k, sum);
            CHECK_OK(hpc_exchange_push_pull(e, k, at != NULL ? NULL : own, -1));
            reference_check(&ref, r, e, k);
            free(own);
            free(sum);
        }
    CHECK_EQ(inside(e)->encoders_bytes, 0);
    if (!r->mode->threads) CHECK_EQ(adds_at_once, r->arg & 12 ? 0 : STEPS * inside(e)->n_work);
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* A rule with a prox applies all lists at once, to the parameters or to Z, before the prox. arg: progress, + 4 with Z,
 * + 8 with a decay, which takes the sum of all lists. */
static void proxes_pairs(rank *r) {
    job j;
    hpc_codec_config config;
    hpc_codec_config_init(&config);
    const hpc_codec_config *list[JOB_KEYS] = {&config, &config, &config};
    hpc_exchange_config c;
    job_config asked;
    hpc_exchange *e = NULL;
    const int dual = (r->arg & 4) != 0;
    const float rate = 0.5f, decay = r->arg & 8 ? 0.25f : 0, lam = 2, most = dual ? lam : rate * lam;
    float *w[JOB_KEYS], *z[JOB_KEYS];
    job_init(&j, r);
    j.wire = PAIRS, j.n_servers = 1, j.progress = r->arg % 4, j.rule = dual ? "dual" : "proxsgd";
    j.args[1] = (double)rate, j.args[2] = (double)decay, j.args[3] = (double)lam;
    job_settings(&c, &j);
    job_config_init(&asked, r, &j, &c);
    asked.config.codecs = list;
    CHECK_OK(hpc_prox_find("l1", HPC_ISA_BEST, &asked.rule.prox));
    asked.rule.columns = 1;
    adds_at_once = 0;
    CHECK_OK(hpc_exchange_create(r->context, &asked.config, -1, &e));
    job_config_free(&asked);
    for (int k = 0; k < j.n_keys; k++) {
        w[k] = malloc(j.keys[k].count * sizeof *w[k]);
        z[k] = calloc(j.keys[k].count, sizeof *z[k]);
        for (uint64_t i = 0; i < j.keys[k].count; i++) w[k][i] = job_initial(&j, k, i);
    }
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < j.n_keys; k++) {
            const uint64_t n = j.keys[k].count;
            float *sum = calloc(n, sizeof *sum), *to = dual ? z[k] : w[k];
            pair_list *own = malloc(pairs_bytes(NULL, n));
            own->count = 0;
            for (int rank = 0; rank < r->size; rank++)
                for (uint64_t i = (uint64_t)(rank + step) % 2; i < n; i += EVERY) {
                    const float value = job_gradient(&j, rank, step, k, i);
                    sum[i] += value;
                    if (rank == r->rank) own->pairs[own->count++] = (pair){(uint32_t)i, value};
                }
            CHECK_OK(hpc_exchange_push_pull(e, k, own, -1));
            for (uint64_t i = 0; i < n; i++) {
                to[i] -= rate * (sum[i] + decay * to[i]);
                w[k][i] = to[i] > most ? to[i] - most : to[i] < -most ? to[i] + most : 0;
                CHECK(hpc_exchange_params(e, k)[i] == w[k][i]);
            }
            free(own);
            free(sum);
        }
    if (!r->mode->threads) CHECK_EQ(adds_at_once, r->arg & 8 ? 0 : STEPS * inside(e)->n_work);
    for (int k = 0; k < j.n_keys; k++) {
        free(w[k]);
        free(z[k]);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* A list with a NaN is refused where that is asked for, and leaves no trace; and a row whose sum would have to be
 * encoded, as it is no list. */
static void refuses_pairs(rank *r) {
    job j;
    hand_plan h;
    hpc_codec_config config;
    hpc_codec_config_init(&config);
    const hpc_codec_config *list[JOB_KEYS] = {&config, &config, &config};
    hpc_exchange_config asked;
    hpc_exchange *e = NULL;
    hpc_exchange_config_init(&asked);
    asked.codecs = list, asked.progress = HPC_PROGRESS_INLINE, asked.check_finite = 1;
    job_init(&j, r);
    j.wire = PAIRS;
    CHECK_OK(job_create_with(r, &j, &asked, -1, &e));
    struct {
        pair_list list;
        pair pairs[2];
    } own = {{2}, {{0, 1}, {7, NAN}}};
    CHECK_STATUS(hpc_exchange_push_pull(e, 0, &own, -1), HPC_ERR_INVALID);
    CHECK_MESSAGE("the gradient of key k0 on rank");
    own.pairs[1].value = 2;
    CHECK_OK(hpc_exchange_push_pull(e, 0, &own, -1));
    CHECK_EQ(hpc_exchange_params(e, 0)[7], job_initial(&j, 0, 7) - 0.5f * 2 * (float)r->size);
    job_close(e, NULL, NULL);
    hand_racks(&h, &j, r->size, PAIRS, 512);
    for (int i = 0; i < h.plan.n_rows; i++)
        *(h.rows[i].action == HPC_FORWARD ? &h.rows[i].codec_out : &h.rows[i].codec_in) = PAIRS;
    j.plan = &h.plan;
    CHECK_STATUS(job_create_with(r, &j, &asked, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("row 0 forwards a sum of key k0 as pairs, which only workers can encode: send sums as arrays");
}

/* This array has no float16, so a plan that asks for it is refused, and the error lists the codecs that there are. */
static void refuses(rank *r) {
    job j;
    hpc_plan *plan = NULL;
    hpc_hub hub;
    job_init(&j, r);
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = j.keys, hub.n_keys = j.n_keys, hub.workers = j.workers, hub.n_workers = j.n_workers;
    hub.servers = j.servers, hub.n_servers = j.n_servers, hub.wire = HPC_F16;
    CHECK_STATUS(hpc_plan_make("hub", &hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("wire is 2; must be 0 (float32), 9 (reversed), 10 (pairs)");
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "trains", .size = 3, .run = trains, .arg = INLINE},
        {.name = "trains by threads", .size = 3, .run = trains, .arg = THREAD},
        {.name = "sends parameters too", .size = 3, .run = trains, .arg = INLINE + 4},
        {.name = "forwards", .size = 4, .run = trains, .arg = INLINE + 8},
        {.name = "trains by pairs", .size = 3, .run = trains_by_pairs, .arg = INLINE},
        {.name = "trains by pairs and threads", .size = 3, .run = trains_by_pairs, .arg = THREAD},
        {.name = "trains by pairs with decay", .size = 3, .run = trains_by_pairs, .arg = INLINE + 4},
        {.name = "folds pairs, then applies", .size = 3, .run = trains_by_pairs, .arg = INLINE + 8},
        {.name = "pairs on a graph", .size = 3, .run = trains_by_pairs, .arg = INLINE + 16},
        {.name = "prox of pairs", .size = 3, .run = proxes_pairs, .arg = INLINE},
        {.name = "prox of pairs by threads", .size = 3, .run = proxes_pairs, .arg = THREAD},
        {.name = "prox of pairs with decay", .size = 3, .run = proxes_pairs, .arg = INLINE + 8},
        {.name = "dual of pairs", .size = 3, .run = proxes_pairs, .arg = INLINE + 4},
        {.name = "dual of pairs with decay", .size = 3, .run = proxes_pairs, .arg = INLINE + 12},
        {.name = "refuses pairs", .size = 4, .run = refuses_pairs},
        {.name = "refuses", .size = 2, .run = refuses, .where = RANKS_UNSEEDED},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
