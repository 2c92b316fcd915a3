/* Encoders that keep what is larger than a delta: one that is given, and one that follows the density. */
#include <float.h>
#include <math.h>

#include "codec/piece.h"
#include "kernel/half.h"

enum { SAMPLE = 2048 };
static const double GAIN = 0.75;

/* delta as a float32 that is no larger: nothing larger than delta stays back. */
static float below(double delta) {
    float down = delta < (double)FLT_MAX ? (float)delta : FLT_MAX;
    return (double)down > delta ? nextafterf(down, 0) : down;
}

static hpc_piece_filter filter_with(const double *args, float delta) {
    return (hpc_piece_filter){.delta = delta, .values = (int)args[HPC_ARG_VALUES], .paper = args[HPC_ARG_PAPER] != 0};
}

int64_t hpc_threshold_encode(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap) {
    double delta = args[HPC_ARG_DELTA], step = args[HPC_ARG_STEP];
    if (!(delta >= 0 && delta <= DBL_MAX && step >= 1)) return HPC_PIECE_BAD_ARGS;
    if (args[HPC_ARG_DECAYS] != 0) delta /= sqrt(step);
    hpc_piece_filter how = filter_with(args, below(delta));
    return hpc_piece_encode(&how, x, n, state, out, cap, NULL);
}

/* ---- density -------------------------------------------------------------------------------------------------------
 */

/* Orders some numbers such that the one at place k is where it would be were they sorted, the largest first. */
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

/* A delta with which about fraction of the elements are kept, and at least one that is not 0. The elements looked at
 * lie all over the piece; multiples of the golden ratio meet no row or column often. */
static float sampled_delta(const float *x, const float *residual, int64_t n, double fraction) {
    uint32_t sizes[SAMPLE];
    int count = n < SAMPLE ? (int)n : SAMPLE;
    for (int i = 0; i < count; i++) {
        uint64_t turn = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u >> 32;
        size_t at = count < SAMPLE ? (size_t)i : (size_t)(turn * (uint64_t)n >> 32);
        sizes[i] = hpc_bits_of_float(x[at] + residual[at]) & 0x7fffffff;
    }
    int most = (int)(fraction * count);
    uint32_t least = select_at(sizes, count, most > 1 ? most - 1 : 0); /* of those that are kept */
    if (least == 0) return 0;
    return least > hpc_bits_of_float(FLT_MAX) ? FLT_MAX : hpc_float_of_bits(least - 1);
}

/* The next delta, or 0 to look at a sample again. If the density is exp(-(delta / b)^p), delta comes nearer by the
 * factor 1 - GAIN p at each step: 1/4 for Laplace's distribution, 1/2 for Gauss's, back and forth. */
static float next_delta(float delta, int64_t kept, int64_t n, double fraction) {
    double wanted = fraction * (double)n < 1 ? 1 / (double)n : fraction, got = (double)kept / (double)n;
    if (got < wanted / 4 || got > wanted * 4 || got >= 1 || wanted >= 1) return 0;
    double next = (double)delta * pow(log(wanted) / log(got), GAIN);
    return next <= (double)FLT_MAX ? (float)next : 0;
}

int64_t hpc_topk_encode(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap) {
    double fraction = args[HPC_ARG_FRACTION];
    hpc_piece_filter how = filter_with(args, 0);
    int status = hpc_piece_check(n, how.values, cap);
    if (status != 0) return status;
    float *delta = state + n;
    if (!(fraction > 0 && fraction <= 1) || !(*delta >= 0 && *delta <= FLT_MAX)) return HPC_PIECE_BAD_ARGS;
    if (n > 0 && fraction < 1) how.delta = *delta > 0 ? *delta : sampled_delta(x, state, n, fraction);
    int64_t kept, nbytes = hpc_piece_encode(&how, x, n, state, out, cap, &kept);
    if (nbytes > 0) *delta = n > 0 && how.delta > 0 ? next_delta(how.delta, kept, n, fraction) : 0;
    return nbytes;
}
