/* 4-bit floats: what is sent for a value, by a reference that is written here from the format's description, and what
 * an encoder keeps back. tests/c/codec/test_piece.c has wrong pieces. */
#include "check.h"

#include <float.h>
#include <math.h>

#include "codec/piece.h"
#include "kernel/float4.h"
#include "kernel/half.h"
#include "base/isa.h"

enum { HEAD = sizeof(hpc_piece_head), N = 5000, ROOM = HEAD + 4 * N };

static const int isas[] = {HPC_ISA_GENERIC, HPC_ISA_AVX2, HPC_ISA_AVX512};
static uint64_t random_state = 1;
static float x[N], residual[N], sent[N], acc[N];
static hpc_codec_config config;

static uint32_t random_word(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

/* Values of about so many binades below 2^top. */
static void fill(size_t n, int top, uint32_t binades) {
    for (size_t i = 0; i < n; i++) {
        const double size = (double)random_word() / 4294967296.0;
        x[i] = (float)ldexp(random_word() % 2 ? size : -size, top - (int)(random_word() % binades));
        if (random_word() % 16 == 0) x[i] = 0;
        if (random_word() % 16 == 0) x[i] = (float)ldexp(random_word() % 2 ? 1 : -1.5, top - (int)(random_word() % 9));
    }
}

static void configure(size_t unit, int no_feedback) {
    hpc_codec_config_init(&config);
    config.unit = unit;
    config.no_feedback = no_feedback;
    CHECK(hpc_codec_check(&hpc_codec_float4, &config) == NULL);
}

/* Encodes u into memory of its own and just its size, so that ASan sees every byte that is touched behind it. */
static int64_t encode(const float *u, size_t n, float *rest, int isa, void *out) {
    const size_t most = hpc_codec_float4.max_bytes(&config, n);
    char *room = malloc(most);
    CHECK(room != NULL && most <= HEAD + 4 * n);
    const int64_t nbytes = hpc_float4_encode(&config, u, (int64_t)n, rest, room, (int64_t)most, isa);
    CHECK_EQ(nbytes, most);
    CHECK_EQ(hpc_codec_float4.length(&config, room, n), most);
    memcpy(out, room, most);
    free(room);
    return nbytes;
}

static void decode(float *to, size_t n, const void *piece, int64_t nbytes, int isa) {
    void *copy = malloc((size_t)nbytes);
    CHECK(copy != NULL);
    memcpy(copy, piece, (size_t)nbytes);
    memset(to, 0, n * sizeof *to);
    CHECK_OK(hpc_piece_add(to, (int64_t)n, copy, nbytes, 1, isa));
    free(copy);
}

static double scale_of(const float *u, size_t n) {
    double most = HPC_FLOAT4_LEAST;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)u[i]));
    return most;
}

/* The nearest of 0 and scale * 2^-6 to scale; of two the larger. */
static float nearest(float u, double scale) {
    double size = fabs((double)u), best = 0;
    for (int e = -6; e <= 0; e++)
        if (fabs(ldexp(scale, e) - size) <= fabs(best - size)) best = ldexp(scale, e);
    return (float)(u < 0 && best > 0 ? -best : best);
}

/* Every element is sent as the nearest value of its unit, and the rest is kept back. */
static void test_values(int isa) {
    static const size_t counts[] = {0, 1, 2, 15, 16, 17, 33, 255, 256, 257, 1000, N},
                        units[] = {16, 17, 31, 48, 256, 4096};
    static const int tops[] = {0, 127, -100, -118, -122, -140};
    static char out[ROOM];
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t v = 0; v < sizeof units / sizeof *units; v++)
            for (size_t t = 0; t < sizeof tops / sizeof *tops; t++) {
                const size_t n = counts[c], unit = units[v];
                configure(unit, 0);
                fill(n, tops[t], 12);
                memset(residual, 0, sizeof residual);
                const int64_t nbytes = encode(x, n, residual, isa, out);
                decode(sent, n, out, nbytes, isa);
                for (size_t from = 0; from < n; from += unit) {
                    const size_t some = n - from < unit ? n - from : unit;
                    const double scale = scale_of(x + from, some);
                    for (size_t i = from; i < from + some; i++) {
                        CHECK(sent[i] == nearest(x[i], scale));
                        CHECK(residual[i] == x[i] - sent[i]);
                        CHECK(fabs((double)residual[i]) <= fmax(fabs((double)x[i]) / 3, scale / 128));
                    }
                }
            }
}

/* The float32 numbers next to the middle of two values go to the nearer one. */
static void test_middles(int isa) {
    static char out[ROOM];
    configure(64, 1);
    for (int turn = 0; turn < 200; turn++) {
        const float scale = 1 + (float)random_word() / 4294967296.0f;
        x[0] = -scale;
        for (int i = 1; i < 64; i++) {
            const float middle = (float)ldexp((i / 3 % 8 == 7 ? 1 : 0.75) * (double)scale, -(i / 3 % 8));
            x[i] = i % 3 == 0 ? nextafterf(middle, 0) : i % 3 == 1 ? middle : nextafterf(middle, 4);
        }
        decode(sent, 64, out, encode(x, 64, NULL, isa, out), isa);
        for (int i = 0; i < 64; i++) CHECK(sent[i] == nearest(x[i], (double)scale));
    }
}

/* The same bytes, residuals and sums by every instruction set; without a residual, the bytes that zeros as residual
 * give. */
static void test_same_bits(void) {
    static char first[ROOM], out[ROOM], fed[ROOM];
    static float rest[N], start[N], sum[N];
    for (int turn = 0; turn < 60; turn++) {
        const size_t n = 1 + random_word() % N;
        configure(16 + random_word() % 600, 0);
        fill(n, 20, 10);
        for (size_t i = 0; i < n; i++) start[i] = (float)(int32_t)random_word() / 4096;
        for (size_t i = 0; i < 3; i++) {
            if (!hpc_isa_available(isas[i])) continue;
            memcpy(residual, start, n * sizeof *start);
            const int64_t nbytes = encode(x, n, residual, isas[i], i == 0 ? first : out);
            memcpy(acc, start, n * sizeof *acc);
            CHECK_OK(hpc_piece_add(acc, (int64_t)n, i == 0 ? first : out, nbytes, 1.0 / 3, isas[i]));
            if (i == 0) memcpy(rest, residual, n * sizeof *rest), memcpy(sum, acc, n * sizeof *sum);
            if (i > 0) CHECK(memcmp(first, out, (size_t)nbytes) == 0);
            CHECK(memcmp(rest, residual, n * sizeof *rest) == 0 && memcmp(sum, acc, n * sizeof *sum) == 0);
            memset(residual, 0, n * sizeof *residual);
            encode(x, n, residual, isas[i], fed);
            encode(x, n, NULL, isas[i], out);
            CHECK(memcmp(fed, out, (size_t)nbytes) == 0);
        }
    }
}

/* A key that is cut at any units is sent as the key in one piece. */
static void test_cuts(void) {
    static char out[ROOM];
    static float whole[N];
    const size_t counts[] = {16 * 200 + 1, N, 32};
    for (size_t c = 0; c < 3; c++)
        for (int top = -130; top <= 10; top += 70) {
            const size_t n = counts[c], unit = 16;
            configure(unit, 1);
            fill(n, top, 10);
            decode(whole, n, out, encode(x, n, NULL, HPC_ISA_BEST, out), HPC_ISA_BEST);
            for (size_t from = 0, some; from < n; from += some) {
                some = unit * (1 + random_word() % 5);
                if (some > n - from) some = n - from;
                decode(acc + from, some, out, encode(x + from, some, NULL, HPC_ISA_BEST, out), HPC_ISA_BEST);
            }
            CHECK(memcmp(acc, whole, n * sizeof *acc) == 0);
        }
}

/* With a residual the sum of what was sent stays near the sum of what was to be sent. */
static void test_feedback(void) {
    static char out[ROOM];
    static double wanted[N], got[N];
    configure(256, 0);
    memset(residual, 0, sizeof residual);
    for (int step = 0; step < 30; step++) {
        for (size_t i = 0; i < N; i++) x[i] = (float)(random_word() % 1000) - 300, wanted[i] += (double)x[i];
        decode(sent, N, out, encode(x, N, residual, HPC_ISA_BEST, out), HPC_ISA_BEST);
        for (size_t i = 0; i < N; i++) got[i] += (double)sent[i];
    }
    for (size_t i = 0; i < N; i++) CHECK(fabs(wanted[i] - got[i] - (double)residual[i]) < 0.1);
    for (size_t i = 0; i < N; i++) CHECK(fabs((double)residual[i]) < 1000);
}

/* NaN and Inf are sent, and stay nowhere; of their unit nothing else is sent. */
static void test_not_finite(int isa) {
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    static char out[ROOM];
    for (int w = 0; w < 3; w++)
        for (int feeds = 0; feeds < 2; feeds++) {
            configure(64, !feeds);
            for (size_t i = 0; i < 200; i++) x[i] = (float)(i % 4) - 1, residual[i] = 0;
            x[70] = wrong[w];
            decode(acc, 200, out, encode(x, 200, feeds ? residual : NULL, isa, out), isa);
            for (size_t i = 0; i < 200; i++) {
                const int its = i >= 64 && i < 128;
                if (i == 70)
                    CHECK(isnan(wrong[w]) ? isnan(acc[i]) : acc[i] == wrong[w]);
                else
                    CHECK(acc[i] == (its ? 0 : x[i]));
                CHECK(residual[i] == (feeds && its && i != 70 ? x[i] : 0));
            }
        }
}

static void test_single(void) {
    static char out[ROOM];
    static const float values[] = {0, 3.14159f, -7e-30f, 1e38f};
    configure(256, 1);
    for (int v = 0; v < 4; v++) {
        x[0] = values[v];
        CHECK_EQ(encode(x, 1, NULL, HPC_ISA_BEST, out), HEAD + 4);
        decode(acc, 1, out, HEAD + 4, HPC_ISA_BEST);
        CHECK(acc[0] == x[0]);
    }
    CHECK_EQ(hpc_codec_float4.max_bytes(&config, 512), HEAD + 2 * 4 + 256);
    CHECK(!hpc_codec_keeps(&hpc_codec_float4, &config));
    config.no_feedback = 0;
    CHECK(hpc_codec_keeps(&hpc_codec_float4, &config));
    CHECK_EQ(hpc_float4_encode(&config, x, 512, NULL, out, HEAD + 2 * 4 + 255, HPC_ISA_BEST), HPC_PIECE_NO_ROOM);
    CHECK_EQ(hpc_float4_encode(&config, x, -1, NULL, out, sizeof out, HPC_ISA_BEST), HPC_PIECE_BAD_ARGS);
    config.unit = 15;
    CHECK(strstr(hpc_codec_check(&hpc_codec_float4, &config), "unit must be 16 to 2^29") != NULL);
    config.unit = 256, config.state_slots = 1;
    CHECK(strstr(hpc_codec_check(&hpc_codec_float4, &config), "state_slots must be 0") != NULL);
}

int main(void) {
    for (size_t i = 0; i < 3; i++) {
        if (!hpc_isa_available(isas[i])) continue;
        test_values(isas[i]);
        test_middles(isas[i]);
        test_not_finite(isas[i]);
    }
    test_same_bits();
    test_cuts();
    test_feedback();
    test_single();
    return 0;
}
