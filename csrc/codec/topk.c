/* Keeps about the given fraction of the elements, the largest ones, by a delta that follows the density seen so far.
 * own[0] is the next encoding's delta, or 0 if the next encoding must find delta from a sample of the magnitudes;
 * own[1] is the delta's trend. */
#include <float.h>
#include <math.h>

#include "codec/piece.h"
#include "kernel/half.h"

enum { SAMPLE = 2048 };
static const double GAIN = 0.4, TREND = 0.1, MOST_TREND = 0.25;

/* Reorders numbers so that place k holds the number that a sort, the largest first, would put there; returns that
 * number. */
static uint32_t select_at(uint32_t *some, int count, int k) {
    int from = 0, to = count - 1;
    while (from < to) {
        uint32_t pivot = some[from + (to - from) / 2];
        int i = from, j = to;
        while (i <= j) {
            while (some[i] > pivot) i++;
            while (some[j] < pivot) j--;
            if (i > j) break;
            uint32_t other = some[i];
            some[i++] = some[j];
            some[j--] = other;
        }
        if (k <= j)
            to = j;
        else if (k >= i)
            from = i;
        else
            break;
    }
    return some[k];
}

/* Returns a delta that keeps about `fraction` of the elements, and at least one element that is not 0. The sampled
 * elements are spread over the piece by multiples of the golden ratio, which rarely meet the same row or column. */
static float sampled_delta(const float *x, const float *residual, int64_t n, double fraction) {
    uint32_t sizes[SAMPLE];
    int count = n < SAMPLE ? (int)n : SAMPLE;
    for (int i = 0; i < count; i++) {
        uint64_t turn = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u >> 32;
        size_t at = count < SAMPLE ? (size_t)i : (size_t)(turn * (uint64_t)n >> 32);
        sizes[i] = hpc_bits_of_float(x[at] + residual[at]) & 0x7fffffff;
    }
    int most = (int)(fraction * count);
    uint32_t least = select_at(sizes, count, most > 1 ? most - 1 : 0); /* the smallest one kept */
    if (least == 0) return 0;
    return least > hpc_bits_of_float(FLT_MAX) ? FLT_MAX : hpc_float_of_bits(least - 1);
}

/* Sets the delta of the next step, or 0 if it is to come from a sample. If the density is exp(-(delta / b)^p), each
 * step multiplies the error of delta by 1 - GAIN p. GAIN is small because residuals pile up right below delta: if all
 * elements are alike, p is more than Gauss's 2, and a larger GAIN would oscillate. At first residuals grow from step to
 * step, so a delta that fits this step is too small for the next; trend, the sum of past corrections, makes up for
 * that. */
static void follow(float state[HPC_ENCODER_VALUES], float delta, int64_t kept, int64_t n, double fraction) {
    double wanted = fraction * (double)n < 1 ? 1 / (double)n : fraction, got = (double)kept / (double)n;
    state[0] = 0;
    if (delta <= 0 || got < wanted / 4 || got > wanted * 4 || got >= 1 || wanted >= 1) return;
    double correction = GAIN * log(log(wanted) / log(got));
    double trend = fmin(fmax((double)state[1] + TREND * correction, -MOST_TREND), MOST_TREND);
    double next = (double)delta * exp(correction + trend);
    state[1] = (float)trend;
    state[0] = next <= (double)FLT_MAX ? (float)next : 0;
}

static const char *check(const hpc_codec_config *config) {
    if (!(config->fraction > 0 && config->fraction <= 1)) return "fraction must be above 0 and at most 1";
    return hpc_piece_check_filter(config);
}

static void begin(hpc_encoding *encoding, const hpc_codec_source *source, const float *residual, int64_t n) {
    double fraction = encoding->config->fraction;
    encoding->delta = 0;
    if (n == 0 || fraction == 1) return;
    encoding->delta =
        encoding->own[0] > 0 ? encoding->own[0] : sampled_delta(hpc_source_values(source), residual, n, fraction);
}

static void end(hpc_encoding *encoding, int64_t n, int64_t kept) {
    if (n > 0) follow(encoding->own, encoding->delta, kept, n, encoding->config->fraction);
}

const hpc_codec hpc_codec_topk = {
    .name = "topk",
    .number = HPC_TOPK,
    .weighs = 1,
    .max_bytes = hpc_piece_most_filtered,
    .length = hpc_piece_length_filtered,
    .encode = hpc_piece_encode_filtered,
    .decode_add = hpc_piece_decode_add,
    .check = check,
    .begin = begin,
    .end = end,
    .encode_nothing = hpc_piece_encode_nothing,
    .text = hpc_piece_text,
    .scratch = hpc_piece_scratch,
    .pack = hpc_piece_pack_by,
    .unpack = hpc_piece_unpack_by,
};
