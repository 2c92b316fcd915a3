/* Keeps the elements whose magnitude is larger than a given delta (Parameter Flow, 3.3). */
#include <float.h>
#include <math.h>

#include "codec/piece.h"

/* Returns delta as a float32, rounded down: so every element larger than delta is sent. */
static float below(double delta) {
    float down = delta < (double)FLT_MAX ? (float)delta : FLT_MAX;
    return (double)down > delta ? nextafterf(down, 0) : down;
}

static const char *check(const hpc_codec_config *config) {
    if (!(config->delta >= 0 && config->delta <= DBL_MAX)) return "delta must be a finite number, 0 or more";
    if (config->follow < HPC_FOLLOW_NOTHING || config->follow > HPC_FOLLOW_SMOOTHLY)
        return "follow must be 0 (nothing), 1 (by probes) or 2 (smoothly)";
    if (config->follow && !(config->up >= config->delta && config->up <= DBL_MAX))
        return "up must be a finite number, delta or more";
    if (config->follow && !(config->at_least > 0 && config->at_least <= DBL_MAX))
        return "at_least must be a finite number of bytes a second above 0";
    return hpc_piece_check_filter(config);
}

static void begin(hpc_encoding *encoding, const hpc_codec_source *source, const float *residual, int64_t n) {
    double delta = encoding->asked;
    (void)source, (void)residual, (void)n;
    if (encoding->config->decays) delta /= sqrt((double)encoding->made);
    encoding->delta = below(delta);
}

const hpc_codec hpc_codec_threshold = {
    .name = "threshold",
    .number = HPC_THRESHOLD,
    .weighs = 1,
    .max_bytes = hpc_piece_most_filtered,
    .length = hpc_piece_length_filtered,
    .encode = hpc_piece_encode_filtered,
    .decode_add = hpc_piece_decode_add,
    .check = check,
    .begin = begin,
    .encode_nothing = hpc_piece_encode_nothing,
    .text = hpc_piece_text,
    .scratch = hpc_piece_scratch,
    .pack = hpc_piece_pack_by,
    .unpack = hpc_piece_unpack_by,
};
