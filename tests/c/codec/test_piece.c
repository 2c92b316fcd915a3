/* Pieces: what an encoder sends and keeps back, the form it chooses, and what a decoder makes of right and of wrong
 * ones. */
#include "check.h"

#include <math.h>

#include "codec/piece.h"
#include "kernel/half.h"
#include "base/isa.h"

enum { HEAD = sizeof(hpc_piece_head), MOST = 70000 };

static uint64_t random_state = 1;

static uint32_t random_word(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static const int formats[] = {HPC_F32, HPC_F16, HPC_BF16};
static const int isas[] = {HPC_ISA_GENERIC, HPC_ISA_AVX2, HPC_ISA_AVX512};
static float x[MOST], residual[MOST], before[MOST], acc[MOST];

/* Whole numbers: each is 0 but about one in every, which is larger than 8. */
static void fill(size_t n, uint32_t every) {
    for (size_t i = 0; i < n; i++) {
        int large = every > 0 && random_word() % every == 0;
        before[i] = residual[i] = (float)(random_word() % 9) - 4;
        x[i] = large ? (float)(random_word() % 200) + 20 : (float)(random_word() % 9) - 4;
        if (random_word() % 2) x[i] = -x[i];
    }
}

/* Memory of its own, so that ASan sees every byte that is touched behind it. */
static void *room_of(size_t nbytes) {
    void *room = malloc(nbytes > 0 ? nbytes : 1);
    CHECK(room != NULL);
    return room;
}

static void *copy_of(const void *piece, size_t nbytes) {
    return memcpy(room_of(nbytes), piece, nbytes);
}

/* ---- what is sent and kept -----------------------------------------------------------------------------------------
 */

/* The fewest bytes behind the head, by definition. */
static size_t fewest(const float *sent, size_t n, size_t item, int paper) {
    size_t kept = 0, next = 0, gaps[2] = {0, 0}, best = n * item;
    for (size_t i = 0; i < n; i++) {
        if (sent[i] == 0) continue;
        gaps[0] += 1 + (i - next) / 255;
        gaps[1] += 2 * (1 + (i - next) / 65535);
        next = i + 1;
        kept++;
    }
    size_t indices = kept * item + (gaps[0] < gaps[1] ? gaps[0] : gaps[1]);
    if (paper) return 5 * kept < n ? indices : best;
    if (kept * item + (n + 7) / 8 < best) best = kept * item + (n + 7) / 8;
    return indices < best ? indices : best;
}

static void check_piece(size_t n, int values, float delta, int paper, int isa) {
    size_t cap = hpc_piece_max_bytes(n, values), item = hpc_dtype_bytes(values);
    char *out = room_of(cap);
    hpc_piece_filter how = {.delta = delta, .values = values, .paper = paper, .isa = isa};
    hpc_piece_head head;
    int64_t kept = -1, nbytes = hpc_piece_encode(&how, x, (int64_t)n, residual, out, (int64_t)cap, &kept);
    CHECK(nbytes >= HEAD && (size_t)nbytes <= cap);
    CHECK_OK(hpc_piece_read(&head, out, nbytes, (int64_t)n));
    char *piece = copy_of(out, (size_t)nbytes);
    memset(acc, 0, n * sizeof *acc);
    CHECK_OK(hpc_piece_add(acc, (int64_t)n, piece, nbytes, 1, isa));
    size_t sent = 0;
    for (size_t i = 0; i < n; i++) {
        float u = x[i] + before[i];
        CHECK(acc[i] + residual[i] == u); /* exactly: whole numbers */
        CHECK(fabsf(residual[i]) <= delta || (acc[i] != 0 && values != HPC_F32));
        if (values == HPC_F32) CHECK(fabsf(u) > delta ? residual[i] == 0 : acc[i] == 0);
        sent += acc[i] != 0;
    }
    CHECK_EQ(kept, sent);
    size_t least = fewest(acc, n, item, paper);
    if (n <= 65536)
        CHECK_EQ(nbytes, HEAD + least);
    else /* of a large one, what is all but dense is dense */
        CHECK((size_t)nbytes - HEAD <= least + 1024 * item);
    CHECK(head.form == HPC_PIECE_DENSE || !paper || head.form >= HPC_PIECE_GAPS8);
    free(piece);
    free(out);
}

static void test_forms(int isa) {
    static const uint32_t every[] = {0, 1, 2, 3, 5, 8, 9, 30, 200, 250, 300, 400, 1000, 20000};
    static const size_t counts[] = {0, 1, 2, 7, 8, 9, 33, 64, 100, 1000, 4099, 65536, 65537, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t e = 0; e < sizeof every / sizeof *every; e++)
            for (int f = 0; f < 3; f++)
                for (int paper = 0; paper < 2; paper++) {
                    if (counts[c] > 5000 && (e + f) % 3 != 0 && isa != HPC_ISA_BEST) continue;
                    fill(counts[c], every[e]);
                    check_piece(counts[c], formats[f], 8, paper, isa);
                }
}

/* All forms are met, each where it takes the fewest bytes. */
static void test_each_form(void) {
    static const struct {
        uint32_t every;
        int form;
    } cases[] = {{1, HPC_PIECE_DENSE}, {3, HPC_PIECE_BITS}, {30, HPC_PIECE_GAPS8}, {1000, HPC_PIECE_GAPS16}};
    static char out[HEAD + 4 * MOST];
    for (size_t c = 0; c < 4; c++) {
        hpc_piece_filter how = {.delta = 8, .values = HPC_F32};
        hpc_piece_head head;
        fill(MOST, cases[c].every);
        int64_t nbytes = hpc_piece_encode(&how, x, MOST, residual, out, sizeof out, NULL);
        CHECK_OK(hpc_piece_read(&head, out, nbytes, MOST));
        CHECK_EQ(head.form, cases[c].form);
    }
}

/* Gaps of a byte take one byte less than those of two, which were tried after them. */
static void test_gaps_that_are_tried_twice(void) {
    static char out[HEAD + 4 * MOST];
    enum { HALF = 128, GAP = 65535 };
    for (int i = 0; i < MOST; i++) {
        x[i] = i < HALF || (i >= HALF + GAP && i < 2 * HALF + GAP) ? (float)i + 1 : 0;
        acc[i] = residual[i] = 0;
    }
    hpc_piece_filter how = {.delta = 0, .values = HPC_F32};
    CHECK_EQ(hpc_piece_encode(&how, x, MOST, residual, out, sizeof out, NULL), HEAD + 2 * HALF * 5 + GAP / 255);
    CHECK_EQ(out[offsetof(hpc_piece_head, form)], HPC_PIECE_GAPS8);
    CHECK_OK(hpc_piece_decode_add(NULL, acc, MOST, out, HEAD + 2 * HALF * 5 + GAP / 255, 1));
    CHECK(memcmp(acc, x, sizeof acc) == 0);
}

/* A piece that is sparse first and turns out dense near its end, where its bits already lie in the way. */
static void test_late_dense(void) {
    static char out[HEAD + 4 * MOST];
    for (size_t zeros = 0; zeros < 8192; zeros += 509) {
        hpc_piece_filter how = {.delta = 0.5f, .values = HPC_F32};
        for (size_t i = 0; i < MOST; i++) {
            x[i] = i < zeros ? 0 : (float)(i + 1);
            residual[i] = 0;
        }
        int64_t kept, nbytes = hpc_piece_encode(&how, x, MOST, residual, out, sizeof out, &kept);
        CHECK_EQ(kept, MOST - zeros);
        memset(acc, 0, sizeof acc);
        CHECK_OK(hpc_piece_decode_add(NULL, acc, MOST, out, nbytes, 1));
        CHECK(memcmp(acc, x, sizeof acc) == 0);
        for (size_t i = 0; i < MOST; i++) CHECK(residual[i] == 0);
    }
}

static void test_same_bytes(void) {
    static char out[2][HEAD + 4 * MOST];
    static float rest[MOST];
    for (size_t n = 100; n <= MOST; n += 23300)
        for (uint32_t every = 1; every < 3000; every *= 3)
            for (int f = 0; f < 3; f++)
                for (int i = 1; i < 3; i++) {
                    hpc_piece_filter how = {.delta = 8, .values = formats[f], .isa = HPC_ISA_GENERIC};
                    if (!hpc_isa_available(isas[i])) continue;
                    fill(n, every);
                    int64_t nbytes = hpc_piece_encode(&how, x, (int64_t)n, residual, out[0], sizeof out[0], NULL);
                    memcpy(rest, before, sizeof rest);
                    how.isa = isas[i];
                    CHECK_EQ(hpc_piece_encode(&how, x, (int64_t)n, rest, out[1], sizeof out[1], NULL), nbytes);
                    CHECK(memcmp(out[0], out[1], (size_t)nbytes) == 0);
                    CHECK(memcmp(rest, residual, n * sizeof *rest) == 0);
                }
}

/* Weights, and an accumulator that has something: the same bits as adding a dense array. */
static void test_weights(void) {
    static char out[HEAD + 4 * MOST];
    static float dense[MOST], expected[MOST];
    for (uint32_t every = 1; every < 3000; every *= 5)
        for (int f = 0; f < 3; f++)
            for (size_t i = 0; i < 3; i++) {
                hpc_piece_filter how = {.delta = 0.5f, .values = formats[f]};
                size_t n = 5000;
                if (!hpc_isa_available(isas[i])) continue;
                for (size_t j = 0; j < n; j++) {
                    x[j] = random_word() % every ? 0 : (float)random_word() / 1e9f;
                    residual[j] = dense[j] = 0;
                    acc[j] = expected[j] = (float)(int32_t)random_word() / 1e9f;
                }
                int64_t nbytes = hpc_piece_encode(&how, x, (int64_t)n, residual, out, sizeof out, NULL);
                CHECK_OK(hpc_piece_add(dense, (int64_t)n, out, nbytes, 1, HPC_ISA_GENERIC));
                for (size_t j = 0; j < n; j++) {
                    volatile float product = (float)(1.0 / 3) * dense[j];
                    expected[j] = expected[j] + product;
                }
                CHECK_OK(hpc_piece_add(acc, (int64_t)n, out, nbytes, 1.0 / 3, isas[i]));
                CHECK(memcmp(acc, expected, n * sizeof *acc) == 0);
            }
}

static void test_not_finite(void) {
    static char out[HEAD + 4 * 100];
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    for (size_t w = 0; w < 3; w++)
        for (int f = 0; f < 3; f++) {
            hpc_piece_filter how = {.delta = 3e38f, .values = formats[f]};
            for (size_t i = 0; i < 100; i++) x[i] = 1, residual[i] = 0.5f, acc[i] = 0;
            x[70] = wrong[w];
            int64_t kept, nbytes = hpc_piece_encode(&how, x, 100, residual, out, sizeof out, &kept);
            CHECK_EQ(kept, 1);
            CHECK_OK(hpc_piece_decode_add(NULL, acc, 100, out, nbytes, 1));
            for (size_t i = 0; i < 100; i++) CHECK(residual[i] == (i == 70 ? 0 : 1.5f));
            CHECK(isnan(wrong[w]) ? isnan(acc[70]) : acc[70] == wrong[w]);
        }
}

/* ---- codecs --------------------------------------------------------------------------------------------------------
 */

static hpc_codec_config config;

/* Encodes x as an encoder does it. */
static int64_t encode(const hpc_codec *codec, hpc_encoding *encoding, size_t n, float *state, void *out) {
    int64_t kept = 0;
    encoding->config = &config;
    encoding->asked = config.delta;
    encoding->made++;
    CHECK(hpc_codec_check(codec, &config) == NULL);
    if (codec->begin != NULL) codec->begin(encoding, &(hpc_codec_source){x, 0}, state, (int64_t)n);
    int64_t nbytes = codec->encode(encoding, &(hpc_codec_source){x, 0}, (int64_t)n, state, out,
                                   (int64_t)codec->max_bytes(&config, n), &kept);
    if (codec->end != NULL) codec->end(encoding, (int64_t)n, kept);
    return nbytes;
}

static void check_refused(const hpc_codec *codec, const char *names) {
    const char *why = hpc_codec_check(codec, &config);
    CHECK(why != NULL && strstr(why, names) != NULL);
}

static void test_threshold(void) {
    static char out[HEAD + 4 * 1000];
    const hpc_codec *codec = &hpc_codec_threshold;
    hpc_encoding encoding = {0};
    hpc_codec_config_init(&config);
    config.delta = 6;
    for (int step = 1; step < 50; step++) {
        fill(1000, 10);
        config.decays = step % 2;
        double delta = step % 2 ? 6 / sqrt(step) : 6;
        memset(acc, 0, 1000 * sizeof *acc);
        int64_t nbytes = encode(codec, &encoding, 1000, residual, out);
        CHECK_OK(codec->decode_add(&config, acc, 1000, out, nbytes, 1));
        double back = 0;
        for (size_t i = 0; i < 1000; i++) {
            double u = (double)(x[i] + before[i]);
            CHECK((acc[i] != 0) == (fabs(u) > delta));
            back += (double)residual[i] * (double)residual[i];
        }
        CHECK(sqrt(back) <= delta * sqrt(1000));
    }
    config.delta = config.decays = 0; /* keeps all but 0 */
    fill(1000, 10);
    encode(codec, &encoding, 1000, residual, out);
    for (size_t i = 0; i < 1000; i++) CHECK(residual[i] == 0);
    config.delta = 0.1; /* less than the float32 next to it, which is larger than delta, and sent */
    x[0] = 0.1f, residual[0] = 0;
    CHECK_EQ(encode(codec, &encoding, 1, residual, out), HEAD + 4);
    CHECK(residual[0] == 0);
    config.delta = 1e300; /* keeps nothing, but says so */
    fill(1000, 10);
    CHECK_EQ(encode(codec, &encoding, 1000, residual, out), HEAD);
    config.no_feedback = 1; /* what is left out is lost */
    CHECK_EQ(encode(codec, &encoding, 1000, residual, out), HEAD);
    for (size_t i = 0; i < 1000; i++) CHECK(residual[i] == 0);
    static const double wrong[] = {-1e-9, NAN, INFINITY};
    for (size_t w = 0; w < 3; w++) {
        config.delta = wrong[w];
        check_refused(codec, "delta must be");
    }
    config.delta = 1;
    fill(1000, 10);
    CHECK_EQ(codec->encode(&encoding, &(hpc_codec_source){x, 0}, 1000, residual, out, sizeof out - 1, NULL),
             HPC_PIECE_NO_ROOM);
    CHECK(memcmp(residual, before, 1000 * sizeof *residual) == 0); /* what is refused changes nothing */
    static const int formats_none_has[] = {HPC_F64, -1, 4};
    for (size_t w = 0; w < 3; w++) {
        config.values = formats_none_has[w];
        check_refused(codec, "values must be");
    }
    config.values = HPC_F32, config.compress = 5;
    check_refused(codec, "compress must be");
    config.compress = 0, config.size--;
    check_refused(codec, "size");
}

static float normal(void) {
    double u = ((double)random_word() + 1) / 4294967297.0, v = (double)random_word() / 4294967296.0;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* The density comes near what is asked and stays there, for updates of any size and shape. */
static void test_topk(void) {
    enum { N = 40000, STEPS = 20, LAST = 6 };
    static char out[HEAD + 4 * N];
    static float state[N];
    static const double fractions[] = {0.001, 0.01, 0.1, 0.3};
    for (int f = 0; f < 4; f++)
        for (int heavy = 0; heavy < 2; heavy++) {
            hpc_encoding encoding = {0};
            hpc_codec_config_init(&config);
            config.fraction = fractions[f];
            memset(state, 0, sizeof state);
            for (int turn = 0; turn < 2; turn++) {
                double sum = 0;
                for (int step = 0; step < STEPS; step++) {
                    hpc_piece_head head;
                    for (size_t i = 0; i < N; i++) {
                        float u = normal();
                        x[i] = (turn == 0 ? 1e-3f : 1e3f) * (heavy ? u * u * u : u);
                    }
                    int64_t nbytes = encode(&hpc_codec_topk, &encoding, N, state, out);
                    CHECK_OK(hpc_piece_read(&head, out, nbytes, N));
                    if (step >= STEPS - LAST) sum += (double)head.entries / N / LAST;
                }
                if (sum > fractions[f] / 2 && sum < fractions[f] * 2) continue;
                fprintf(stderr, "heavy %d, turn %d: asked for %g, kept %g\n", heavy, turn, fractions[f], sum);
                check_fail("density");
            }
        }
}

/* However small or even a piece is, its elements are sent at last. */
static void test_topk_of_few(void) {
    static char out[HEAD + 4 * 64];
    for (size_t n = 1; n < 20; n++) {
        float state[20] = {0}, sum[20] = {0};
        hpc_encoding encoding = {0};
        hpc_codec_config_init(&config);
        config.fraction = 0.01;
        for (int step = 0; step < 60; step++) {
            for (size_t i = 0; i < n; i++) x[i] = n % 2 ? 1 : (float)(i % 3);
            int64_t nbytes = encode(&hpc_codec_topk, &encoding, n, state, out);
            CHECK_OK(hpc_piece_decode_add(NULL, sum, (int64_t)n, out, nbytes, 1));
        }
        for (size_t i = 0; i < n; i++) {
            float all = 60 * (n % 2 ? 1 : (float)(i % 3));
            CHECK(sum[i] + state[i] == all);
            CHECK(sum[i] >= all / 3);
        }
    }
}

static void test_onebit(void) {
    static char out[HEAD + 4 * 1000];
    for (size_t unit = 1; unit < 1100; unit += 1 + unit / 7) {
        hpc_encoding encoding = {0};
        hpc_codec_config_init(&config);
        config.unit = unit;
        fill(1000, 0);
        memset(acc, 0, 1000 * sizeof *acc);
        int64_t nbytes = encode(&hpc_codec_onebit, &encoding, 1000, residual, out);
        CHECK(nbytes >= HEAD);
        char *piece = copy_of(out, (size_t)nbytes);
        CHECK_OK(hpc_piece_decode_add(NULL, acc, 1000, piece, nbytes, 1));
        free(piece);
        if (unit > 32) CHECK(nbytes < 1000);
        for (size_t from = 0; from < 1000; from += unit) {
            double sums[2] = {0, 0};
            int counts[2] = {0, 0};
            size_t to = from + unit < 1000 ? from + unit : 1000;
            for (size_t i = from; i < to; i++) {
                float u = x[i] + before[i];
                sums[u < 0] += (double)u;
                counts[u < 0]++;
            }
            if (nbytes == (int64_t)sizeof out) continue; /* dense */
            for (size_t i = from; i < to; i++) {
                int down = x[i] + before[i] < 0;
                CHECK(acc[i] == (float)(sums[down] / counts[down]));
                CHECK(residual[i] == x[i] + before[i] - acc[i]);
            }
        }
    }
    config.unit = 0;
    check_refused(&hpc_codec_onebit, "unit must be");
    config.fraction = 1.5;
    check_refused(&hpc_codec_topk, "fraction must be");
}

/* ---- wrong pieces --------------------------------------------------------------------------------------------------
 */

/* Decoded from memory of its size into an accumulator of n elements, on every instruction set: refused, with nothing
 * written, or added. */
static int decode_any(const void *bytes, size_t nbytes, size_t n) {
    int first = 1;
    for (size_t i = 0; i < 3; i++) {
        if (!hpc_isa_available(isas[i])) continue;
        void *piece = copy_of(bytes, nbytes);
        float *sum = calloc(n + 1, sizeof *sum);
        CHECK(sum != NULL);
        int status = hpc_piece_add(sum, (int64_t)n, piece, (int64_t)nbytes, 1, isas[i]);
        CHECK(status <= 0);
        CHECK(first == 1 || status == first);
        CHECK(strlen(hpc_piece_text(status)) > 5);
        if (status != 0)
            for (size_t j = 0; j < n; j++) CHECK(sum[j] == 0);
        CHECK(sum[n] == 0);
        first = status;
        free(sum);
        free(piece);
    }
    return first;
}

static void check_corrupted(const char *piece, size_t nbytes, size_t n) {
    char *wrong = copy_of(piece, nbytes);
    for (size_t bit = 0; bit < 8 * nbytes; bit++) {
        wrong[bit / 8] ^= (char)(1 << bit % 8);
        int status = decode_any(wrong, nbytes, n);
        if (bit / 8 < HEAD && bit / 8 != offsetof(hpc_piece_head, form) && bit / 8 != offsetof(hpc_piece_head, values))
            CHECK(status != 0 || (bit / 8 >= 12 && (piece[4] == HPC_PIECE_SIGNS || piece[4] == HPC_PIECE_FLOAT4)));
        wrong[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (size_t less = 0; less < nbytes; less++) {
        CHECK(decode_any(piece, less, n) != 0);
        wrong[0] = (char)less; /* and as if it had been written so */
        wrong[1] = (char)(less >> 8);
        decode_any(wrong, less, n);
    }
    free(wrong);
    CHECK(decode_any(piece, nbytes, n + 1) != 0);
    CHECK(n == 0 || decode_any(piece, nbytes, n - 1) != 0);
}

static void test_corrupted(void) {
    static char out[HEAD + 4 * 300];
    for (size_t n = 1; n < 300; n = 2 * n + 7)
        for (uint32_t every = 1; every < 300; every *= 3)
            for (int f = 0; f < 3; f++)
                for (int paper = 0; paper < 2; paper++) {
                    hpc_piece_filter how = {.delta = 8, .values = formats[f], .paper = paper};
                    fill(n, every);
                    int64_t nbytes = hpc_piece_encode(&how, x, (int64_t)n, residual, out, sizeof out, NULL);
                    check_corrupted(out, (size_t)nbytes, n);
                }
    hpc_encoding encoding = {0};
    hpc_codec_config_init(&config);
    config.unit = 50;
    fill(237, 3);
    check_corrupted(out, (size_t)encode(&hpc_codec_onebit, &encoding, 237, residual, out), 237);
    config.unit = 51;
    check_corrupted(out, (size_t)encode(&hpc_codec_float4, &encoding, 237, residual, out), 237);
}

/* Wrong at their very end: the parts before it have not been added when that is seen. */
static void test_wrong_at_the_end(void) {
    enum { N = 6000, KEPT = 3000 };
    static char piece[HEAD + 4 * N];
    char *rest = piece + HEAD + 4 * KEPT;
    for (int i = 0; i < KEPT; i++) memcpy(piece + HEAD + 4 * i, &(float){1}, 4);
    memset(rest, 1, KEPT);
    int64_t nbytes = hpc_piece_finish(piece, HPC_PIECE_GAPS8, HPC_F32, N, KEPT, 5 * KEPT);
    CHECK_EQ(decode_any(piece, (size_t)nbytes, N), 0);
    rest[KEPT - 1] = 2;
    CHECK_EQ(decode_any(piece, (size_t)nbytes, N), HPC_PIECE_BAD_INDEX);
    rest[KEPT - 1] = (char)HPC_GAP_SKIP8;
    CHECK_EQ(decode_any(piece, (size_t)nbytes, N), HPC_PIECE_BAD_COUNT);
    memset(rest, 0x55, N / 8);
    nbytes = hpc_piece_finish(piece, HPC_PIECE_BITS, HPC_F32, N, KEPT, 4 * KEPT + N / 8);
    CHECK_EQ(decode_any(piece, (size_t)nbytes, N), 0);
    rest[N / 8 - 1] = 0x57;
    CHECK_EQ(decode_any(piece, (size_t)nbytes, N), HPC_PIECE_BAD_COUNT);
    rest[N / 8 - 1] = 0x54;
    CHECK_EQ(decode_any(piece, (size_t)nbytes, N), HPC_PIECE_BAD_COUNT);
}

static int decode_made(int form, uint32_t n, uint32_t entries, const void *rest, size_t nbytes) {
    char piece[256] = {0};
    float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    memcpy(piece + HEAD, ones, entries * sizeof(float));
    memcpy(piece + HEAD + entries * sizeof(float), rest, nbytes);
    int64_t all = hpc_piece_finish(piece, form, HPC_F32, n, entries, entries * sizeof(float) + nbytes);
    return decode_any(piece, (size_t)all, n);
}

static int decode_float4(uint32_t n, uint32_t unit, const char *rest, size_t nbytes) {
    char piece[HEAD + 16];
    memcpy(piece + HEAD, rest, nbytes);
    return decode_any(piece, (size_t)hpc_piece_finish(piece, HPC_PIECE_FLOAT4, HPC_F32, n, unit, nbytes), n);
}

static void test_refusals(void) {
    static const char codes[12] = {0, 0, (char)0x80, 0x3f, 0x17, 0x05},
                      late_codes[12] = {0, 0, 0, 0, 0x17, 0x15, 0, 0, 0, 0x10};
    static const uint8_t right[] = {0, 3, 4}, far[] = {0, 3, 5}, skips[] = {0, 255}, ends[] = {1, 2, 255};
    static const uint16_t wide[] = {9, 0}, wide_far[] = {9, 1};
    static const uint8_t bits[] = {0x03, 0x02}, late[] = {0x03, 0x04};
    CHECK_EQ(decode_made(HPC_PIECE_GAPS8, 10, 3, right, 3), 0);
    CHECK_EQ(decode_made(HPC_PIECE_GAPS8, 10, 3, far, 3), HPC_PIECE_BAD_INDEX);
    CHECK_EQ(decode_made(HPC_PIECE_GAPS8, 10, 2, right, 3), HPC_PIECE_BAD_COUNT);
    CHECK_EQ(decode_made(HPC_PIECE_GAPS8, 10, 4, right, 3), HPC_PIECE_BAD_LENGTH);
    CHECK_EQ(decode_made(HPC_PIECE_GAPS8, 300, 2, skips, 2), HPC_PIECE_BAD_COUNT);
    CHECK_EQ(decode_made(HPC_PIECE_GAPS8, 10, 2, ends, 3), HPC_PIECE_BAD_INDEX);
    CHECK_EQ(decode_made(HPC_PIECE_GAPS16, 11, 2, wide, 4), 0);
    CHECK_EQ(decode_made(HPC_PIECE_GAPS16, 11, 2, wide_far, 4), HPC_PIECE_BAD_INDEX);
    CHECK_EQ(decode_made(HPC_PIECE_GAPS16, 11, 1, wide, 3), HPC_PIECE_BAD_LENGTH);
    CHECK_EQ(decode_made(HPC_PIECE_BITS, 10, 3, bits, 2), 0);
    CHECK_EQ(decode_made(HPC_PIECE_BITS, 10, 2, bits, 2), HPC_PIECE_BAD_COUNT);
    CHECK_EQ(decode_made(HPC_PIECE_BITS, 10, 3, late, 2), HPC_PIECE_BAD_INDEX);
    CHECK_EQ(decode_made(HPC_PIECE_BITS, 10, 3, bits, 1), HPC_PIECE_BAD_LENGTH);
    CHECK_EQ(decode_made(HPC_PIECE_BITS, 2, 3, bits, 1), HPC_PIECE_BAD_COUNT);
    CHECK_EQ(decode_made(HPC_PIECE_DENSE, 3, 2, right, 0), HPC_PIECE_BAD_COUNT);
    CHECK_EQ(decode_made(HPC_PIECE_DENSE, 3, 3, right, 1), HPC_PIECE_BAD_LENGTH);
    CHECK_EQ(decode_made(HPC_PIECE_FORMS, 3, 3, right, 0), HPC_PIECE_BAD_HEAD);
    CHECK_EQ(decode_made(HPC_PIECE_SIGNS, 3, 0, right, 0), HPC_PIECE_BAD_HEAD);
    CHECK_EQ(decode_made(HPC_PIECE_FLOAT4, 3, 0, right, 0), HPC_PIECE_BAD_HEAD);
    for (size_t rest = 0; rest < 12; rest++) /* a scale and three codes, the last one's other half being 0 */
        CHECK_EQ(decode_float4(3, 16, codes, rest), rest == 6 ? 0 : HPC_PIECE_BAD_LENGTH);
    CHECK_EQ(decode_float4(3, 16, late_codes, 6), HPC_PIECE_BAD_INDEX);
    CHECK_EQ(decode_float4(4, 16, late_codes, 6), 0);
    CHECK_EQ(decode_float4(4, 3, late_codes, 11), HPC_PIECE_BAD_INDEX); /* of the first unit */
    CHECK_EQ(hpc_piece_decode_add(NULL, acc, -1, right, 3, 1), HPC_PIECE_BAD_LENGTH);
}

/* A filter of a user's own: it keeps every third element, whatever it is. */
static int64_t every_third(const float *from, float *rest, int64_t n, float delta, void *values, uint8_t *bits) {
    int64_t kept = 0;
    memset(bits, 0, (size_t)(n + 7) / 8);
    for (int64_t i = 0; i < n; i++) {
        float u = from[i] + rest[i];
        if (u == 777) return delta > 1 ? -5 : n + 1;
        rest[i] = i % 3 == 0 ? 0 : u;
        if (i % 3 != 0) continue;
        ((float *)values)[kept++] = u;
        bits[i / 8] |= (uint8_t)(1u << i % 8);
    }
    return kept;
}

/* Keeps 2 of 998 elements. For other numbers of elements it returns 2 as well, but sets another bit, or one behind the
 * last element. */
static int64_t one_bit_too_many(const float *from, float *rest, int64_t n, float delta, void *values, uint8_t *bits) {
    (void)from, (void)rest, (void)delta;
    memset(bits, 0, (size_t)(n + 7) / 8);
    ((float *)values)[0] = ((float *)values)[1] = 1;
    bits[0] = 1;
    bits[124] = n == 998 ? 2 : n < 998 ? 0x20 : 0x03;
    return 2;
}

static void test_own_filter(void) {
    static char out[HEAD + 4 * 1000];
    hpc_piece_filter how = {.filter = every_third, .values = HPC_F32};
    for (int paper = 0; paper < 2; paper++) { /* as bits, and dense */
        how.paper = paper;
        fill(1000, 2);
        memset(acc, 0, 1000 * sizeof *acc);
        int64_t nbytes = hpc_piece_encode(&how, x, 1000, residual, out, sizeof out, NULL);
        CHECK_OK(hpc_piece_decode_add(NULL, acc, 1000, out, nbytes, 1));
        for (size_t i = 0; i < 1000; i++) CHECK(acc[i] + residual[i] == x[i] + before[i]);
    }
    x[500] = 777 - residual[500];
    CHECK_EQ(hpc_piece_encode(&how, x, 1000, residual, out, sizeof out, NULL), HPC_PIECE_FAILED);
    how.delta = 2;
    CHECK_EQ(hpc_piece_encode(&how, x, 1000, residual, out, sizeof out, NULL), HPC_PIECE_FAILED);

    how.filter = one_bit_too_many;
    fill(1000, 2);
    for (int64_t n = 996; n <= 1000; n++)
        CHECK_EQ(hpc_piece_encode(&how, x, n, residual, out, sizeof out, NULL),
                 n == 998 ? HEAD + 8 + 4 : HPC_PIECE_FAILED);
}

int main(void) {
    for (size_t i = 0; i < 3; i++)
        if (hpc_isa_available(isas[i])) test_forms(isas[i]);
    test_forms(HPC_ISA_BEST);
    test_each_form();
    test_gaps_that_are_tried_twice();
    test_late_dense();
    test_same_bytes();
    test_weights();
    test_not_finite();
    test_threshold();
    test_topk();
    test_topk_of_few();
    test_onebit();
    test_corrupted();
    test_wrong_at_the_end();
    test_refusals();
    test_own_filter();
    return 0;
}
