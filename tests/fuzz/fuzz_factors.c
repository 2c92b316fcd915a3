/* Decodes any bytes as a piece of factors, and holds the decoders to a plain one: they refuse the same pieces, add the
 * same, and read and write within memory of just the right size. What was checked may change: a piece that others
 * change after its check adds anything, but within its sum.
 *
 * Input: rows - 1, columns - 1, pairs - 1, bits (1: the piece says its true length, 2: and the true number of elements,
 * 4: and the format; from 8 on: the format), how many bytes of the piece change after its check, then the piece, and
 * what these bytes become. */
#include <math.h>

#include "codec/factors.h"
#include "codec/factors_read.h"
#include "fuzz.h"
#include "kernel/half.h"
#include "base/isa.h"

enum { HEAD = sizeof(hpc_piece_head), CONTROL = 5, RIGHT_LENGTH = 1, RIGHT_ELEMENTS = 2, RIGHT_FORMAT = 4, FORMAT = 8 };

static float value_at(const uint8_t *values, uint64_t i, int dtype) {
    float x;
    uint16_t half;
    memcpy(&half, values + 2 * i, 2);
    if (dtype == HPC_F16) return hpc_from_f16(half);
    if (dtype == HPC_BF16) return hpc_from_bf16(half);
    memcpy(&x, values + 4 * i, 4);
    return x;
}

typedef struct vectors {
    const uint8_t *at, *end;
    uint64_t item;
    int values;
} vectors;

/* The next vector of a piece, whole, into to; 0 if it is none. */
static int next_vector(vectors *in, float *to, uint64_t length, int sparse, uint32_t entries) {
    memset(to, 0, length * sizeof *to);
    if (entries == UINT32_MAX || !sparse) {
        const uint64_t nbytes = sparse ? (length * in->item + 3) / 4 * 4 : length * in->item;
        if (nbytes > (uint64_t)(in->end - in->at)) return 0;
        for (uint64_t i = 0; i < length; i++) to[i] = value_at(in->at, i, in->values);
        in->at += nbytes;
        return 1;
    }
    const uint64_t indices = ((uint64_t)entries * 2 + 3) / 4 * 4, values = (entries * in->item + 3) / 4 * 4;
    if (entries > length || indices + values > (uint64_t)(in->end - in->at)) return 0;
    for (uint32_t i = 0, next = 0; i < entries; i++) {
        uint16_t at;
        memcpy(&at, in->at + 2 * i, 2);
        if (at < next || at >= length) return 0;
        next = at + 1u;
        to[at] = value_at(in->at + indices, i, in->values);
    }
    in->at += indices + values;
    return 1;
}

/* Adds the piece to sum: 1, or 0 if it is none. */
static int decode(const hpc_codec_config *c, float *sum, const uint8_t *piece, uint64_t nbytes) {
    const uint64_t n = c->rows * c->columns;
    vectors in = {piece + HEAD, piece + nbytes, c->values == HPC_F32 ? 4 : 2, c->values};
    hpc_piece_head head;
    float u[64][64], v[64][64];
    if (nbytes < HEAD) return 0;
    memcpy(&head, piece, HEAD);
    if (head.nbytes != nbytes || head.n != n || head.values != c->values || head.packed != 0) return 0;
    const uint64_t most = (uint64_t)c->pairs * (c->rows + c->columns);
    if (nbytes > HEAD + (most < n ? most : n) * in.item) return 0;
    if (head.form == HPC_PIECE_DENSE) {
        for (uint64_t i = 0; nbytes == HEAD + n * in.item && i < n; i++) sum[i] += value_at(in.at, i, c->values);
        return head.entries == n && nbytes == HEAD + n * in.item;
    }
    const int sparse = head.form == HPC_PIECE_SPARSE;
    if ((head.form != HPC_PIECE_FACTORS && !sparse) || head.entries > (uint32_t)c->pairs) return 0;
    const uint8_t *table = in.at;
    if (sparse) in.at += 8 * (uint64_t)head.entries;
    if (in.at > in.end) return 0;
    for (uint32_t k = 0; k < 2 * head.entries; k++) {
        uint32_t entries = 0;
        if (sparse) memcpy(&entries, table + 4 * k, 4);
        const int its_v = k < head.entries;
        if (!next_vector(&in, its_v ? v[k] : u[k - head.entries], its_v ? c->columns : c->rows, sparse, entries))
            return 0;
    }
    if (in.at != in.end) return 0;
    for (uint32_t k = 0; k < head.entries; k++)
        for (uint64_t j = 0; j < c->rows; j++)
            for (uint64_t d = 0; d < c->columns; d++) {
                float *to = &sum[j * c->columns + d];
                if (u[k][j] != 0 && v[k][d] != 0) *to = fmaf(u[k][j], v[k][d], *to);
            }
    return 1;
}

/* What is no number may have become so by a product with a zero, which some skip. A zero may have another sign, where a
 * product was too small for a float. */
static int same(const float *a, const float *b, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (a[i] != b[i] && a[i] - a[i] == 0 && b[i] - b[i] == 0) return 0;
    return 1;
}

/* Adds a piece that has changed since its check. */
static void add_changed(const hpc_codec_config *c, const hpc_codec_input *in, const uint8_t *changes, size_t n,
                        int isa) {
    const uint64_t elements = c->rows * c->columns;
    const hpc_codec_input both[2] = {*in, *in};
    float *sum = calloc(elements, sizeof *sum);
    uint8_t *piece = (uint8_t *)(uintptr_t)in->piece;
    REQUIRE(sum != NULL);
    for (size_t i = 0; i < n; i++)
        piece[HEAD + 3 * i < (size_t)in->nbytes ? HEAD + 3 * i : i % (size_t)in->nbytes] = changes[i];
    hpc_factors_add_range(c, (int64_t)elements, both, 2, 0, elements, sum, isa);
    free(sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int isas[] = {HPC_ISA_GENERIC, HPC_ISA_AVX2, HPC_ISA_AVX512}, formats[] = {HPC_F32, HPC_F16, HPC_BF16};
    if (size < CONTROL) return 0;
    const uint32_t changes = data[4] % 32 < size - CONTROL ? data[4] % 32 : 0;
    const uint32_t nbytes = (uint32_t)(size - CONTROL) - changes;
    hpc_codec_config c;
    hpc_codec_config_init(&c);
    c.rows = data[0] % 64 + 1u, c.columns = data[1] % 64 + 1u, c.pairs = data[2] % 64 + 1, c.unit = c.rows * c.columns;
    c.values = formats[data[3] / FORMAT % 3];
    const uint32_t n = (uint32_t)c.unit;
    uint8_t *piece = malloc(nbytes + 1);
    float *expected = calloc(n, sizeof *expected), *taken = calloc(n, sizeof *taken);
    REQUIRE(piece != NULL && expected != NULL && taken != NULL);
    memcpy(piece, data + CONTROL, nbytes);
    if (nbytes >= HEAD && data[3] & RIGHT_LENGTH) memcpy(piece + offsetof(hpc_piece_head, nbytes), &nbytes, 4);
    if (nbytes >= HEAD && data[3] & RIGHT_ELEMENTS) memcpy(piece + offsetof(hpc_piece_head, n), &n, 4);
    if (nbytes >= HEAD && data[3] & RIGHT_FORMAT) piece[offsetof(hpc_piece_head, values)] = (uint8_t)c.values;
    const int right = decode(&c, expected, piece, nbytes);
    if (!right) memset(expected, 0, n * sizeof *expected);
    for (uint32_t i = 0; i < n; i++) taken[i] -= expected[i];
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!hpc_isa_available(isas[i])) continue;
        float *acc = calloc(n, sizeof *acc), *param = calloc(n, sizeof *param);
        void *copy = malloc(nbytes > 0 ? nbytes : 1);
        int wrong = -1;
        REQUIRE(acc != NULL && param != NULL && copy != NULL);
        memcpy(copy, piece, nbytes);
        const hpc_codec_input in = {copy, nbytes, 1};
        REQUIRE((hpc_factors_add(&c, acc, n, copy, nbytes, 1, isas[i]) == 0) == right);
        REQUIRE((hpc_factors_add_all(&c, param, n, &in, 1, 1, &wrong, isas[i]) == 0) == right);
        REQUIRE(same(acc, expected, n) && same(param, taken, n));
        if (right) add_changed(&c, &in, data + CONTROL + nbytes, changes, isas[i]);
        free(copy);
        free(acc);
        free(param);
    }
    free(taken);
    free(expected);
    free(piece);
    return 0;
}
