/* A codec of one's own: this program has an array with one more member, "reversed", whose pieces are float32 in the
 * other order of bytes. Gradients and parameters travel in it, and nothing in csrc changes for it. */
#include "codec/codec.h"
#include "exchange_plans.h"

enum { REVERSED = 9, STEPS = 5 };

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

const hpc_codec *hpc_codec_of(int number) {
    static const hpc_codec *const codecs[] = {&hpc_codec_f32, &codec_reversed};
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

/* This array has no float16, so a plan that asks for it is refused, and the error lists the codecs that there are. */
static void refuses(rank *r) {
    job j;
    hpc_plan *plan = NULL;
    hpc_hub hub;
    job_init(&j, r);
    hpc_hub_init(&hub);
    hub.keys = j.keys, hub.n_keys = j.n_keys, hub.workers = j.workers, hub.n_workers = j.n_workers;
    hub.servers = j.servers, hub.n_servers = j.n_servers, hub.wire = HPC_F16;
    CHECK_STATUS(hpc_plan_hub(&hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("wire is 2; must be 0 (float32), 9 (reversed)");
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "trains", .size = 3, .run = trains, .arg = INLINE},
        {.name = "trains by threads", .size = 3, .run = trains, .arg = THREAD},
        {.name = "sends parameters too", .size = 3, .run = trains, .arg = INLINE + 4},
        {.name = "forwards", .size = 4, .run = trains, .arg = INLINE + 8},
        {.name = "refuses", .size = 2, .run = refuses, .where = RANKS_UNSEEDED},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
