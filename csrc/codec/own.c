/* A user's codec. The user's functions write the bytes after the head of a piece. This file keeps the residual: the
 * update minus its decoded encoding. */
#include <math.h>
#include <string.h>

#include "codec/piece.h"

/* Without feedback, values that a piece leaves out are lost. */
static int keeps(const hpc_codec_config *config) {
    return !config->no_feedback;
}

static int64_t encode(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state, void *out,
                      int64_t cap, int64_t *kept) {
    const hpc_codec_config *config = encoding->config;
    double args[HPC_CODEC_ARGS];
    int status = hpc_piece_check(n, HPC_F32, cap);
    if (status != 0) return status;
    memcpy(args, config->args, sizeof args);
    args[0] = (double)encoding->made;
    char *body = (char *)out + sizeof(hpc_piece_head);
    const int64_t room = n * (int64_t)sizeof(float);
    const float *x = hpc_source_values(source);
    float *residual = keeps(config) ? state : NULL, *own = keeps(config) ? state + n : state;
    for (int64_t i = 0; i < n && residual != NULL; i++) residual[i] += x[i];
    int64_t nbytes = config->encode(residual != NULL ? residual : x, n, own, args, body, room);
    if (nbytes < 0 || nbytes > room) return HPC_PIECE_FAILED;
    args[0] = 0;
    if (residual != NULL) {
        if (config->decode_add(residual, n, body, nbytes, -1, args) != 0) return HPC_PIECE_FAILED;
        hpc_codec_drop_wild(residual, n); /* a NaN or Inf was sent, and must not stay in the residual */
    }
    *kept = n;
    return hpc_piece_finish(out, HPC_PIECE_OWN, HPC_F32, n, 0, (size_t)nbytes);
}

static int decode_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                      double weight) {
    hpc_piece_head head;
    double args[HPC_CODEC_ARGS];
    int status = hpc_piece_read(&head, in, nbytes, n);
    if (status == 0 && head.form != HPC_PIECE_OWN) status = HPC_PIECE_BAD_HEAD;
    if (status != 0) return status;
    memcpy(args, config->args, sizeof args);
    args[0] = 0;
    const char *body = (const char *)in + sizeof head;
    return config->decode_add(acc, n, body, nbytes - (int64_t)sizeof head, weight, args) == 0 ? 0 : HPC_PIECE_REFUSED;
}

static const char *check(const hpc_codec_config *config) {
    if (config->encode == NULL || config->decode_add == NULL) return "encode and decode_add must not be NULL";
    if (config->state_slots < 0 || config->state_slots > HPC_OWN_CODEC_SLOTS) return "state_slots must be 0 to 8";
    for (int a = 1; a < HPC_CODEC_ARGS; a++)
        if (!isfinite(config->args[a])) return "args must be finite";
    return NULL;
}

static int check_form(const hpc_piece_head *head, uint64_t body) {
    (void)body;
    return head->values == HPC_F32 && head->entries == 0 ? 0 : HPC_PIECE_BAD_HEAD;
}

static const hpc_piece_form form = {check_form, NULL};

const hpc_codec hpc_codec_own = {
    .name = "own",
    .number = HPC_OWN_CODEC,
    .max_bytes = hpc_piece_most,
    .length = hpc_piece_length_dense,
    .encode = encode,
    .decode_add = decode_add,
    .form = &form,
    .check = check,
    .keeps = keeps,
    .encode_nothing = hpc_piece_encode_nothing,
    .text = hpc_piece_text,
    .scratch = hpc_piece_scratch,
    .pack = hpc_piece_pack_by,
    .unpack = hpc_piece_unpack_by,
};
