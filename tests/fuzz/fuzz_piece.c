/* The decoder of pieces. The input: how many elements are expected, flags, then the piece. The flags say whether the
 * head's length and elements are made right, whether the piece is unpacked before it is decoded, and with what it is
 * packed and unpacked. What the decoder adds, on every instruction set, is held against a decoder that is written here
 * by the format's description; what it refuses must leave the accumulator as it was. */
#include "fuzz.h"

#include "codec/compress.h"
#include "kernel/half.h"
#include "base/isa.h"

enum { CONTROL = 3, HEAD = sizeof(hpc_piece_head), MOST = 1 << 14, RAW = HEAD + 4 * MOST, SCRATCH = 4096, FENCE = 64 };
enum { RIGHT_LENGTH = 1, RIGHT_ELEMENTS = 2, PACKED = 4, ROUND_TRIP = 8, NUMBER = 16 /* and 32: less 1 */ };

static float value_at(const uint8_t *values, uint32_t k, int format) {
    float value;
    uint16_t half;
    memcpy(&half, values + 2 * k, sizeof half);
    if (format == HPC_F16) return hpc_from_f16(half);
    if (format == HPC_BF16) return hpc_from_bf16(half);
    memcpy(&value, values + 4 * k, sizeof value);
    return value;
}

/* Of a piece of 4-bit floats: the same as below. */
static int decode_float4(float *sum, uint32_t n, uint32_t unit, const uint8_t *scales, const uint8_t *end) {
    static const float steps[] = {0, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 1};
    const uint64_t units = unit == 0 ? 0 : ((uint64_t)n + unit - 1) / unit;
    if (unit == 0 || units * 4 > (uint64_t)(end - scales)) return 0;
    const uint8_t *codes = scales + units * 4;
    for (uint64_t from = 0; from < n; from += unit) {
        const uint64_t some = n - from < unit ? n - from : unit;
        const float scale = value_at(scales, (uint32_t)(from / unit), HPC_F32);
        if ((some + 1) / 2 > (uint64_t)(end - codes)) return 0;
        for (uint64_t i = 0; i < (some + 1) / 2 * 2; i++) {
            const int code = codes[i / 2] >> i % 2 * 4 & 15;
            if (i == some && code != 0) return 0;
            if (i < some && code % 8 != 0) sum[from + i] += scale * (code < 8 ? steps[code] : -steps[code - 8]);
        }
        codes += (some + 1) / 2;
    }
    return codes == end;
}

/* 1 if it is a piece of n elements, which sum has then. */
static int decode(float *sum, uint32_t n, const uint8_t *piece, size_t nbytes) {
    hpc_piece_head head;
    if (nbytes < HEAD) return 0;
    memcpy(&head, piece, HEAD);
    if (head.nbytes != nbytes || head.n != n || head.packed != 0) return 0;
    if (head.form > HPC_PIECE_SIGNS && head.form != HPC_PIECE_FLOAT4) return 0;
    if (head.values != HPC_F32 && head.values != HPC_F16 && head.values != HPC_BF16) return 0;
    const uint8_t *values = piece + HEAD, *end = piece + nbytes;
    if (head.form == HPC_PIECE_FLOAT4)
        return head.values == HPC_F32 && decode_float4(sum, n, head.entries, values, end);
    if (head.form == HPC_PIECE_SIGNS) {
        uint64_t unit = head.entries, units, taken = 0;
        if (unit == 0 || head.values != HPC_F32) return 0;
        units = (n + unit - 1) / unit;
        if (units * 8 > nbytes - HEAD) return 0;
        const uint8_t *bits = values + units * 8;
        for (uint64_t u = 0; u < units; u++) {
            uint64_t some = n - u * unit < unit ? n - u * unit : unit;
            if (taken + (some + 7) / 8 > (uint64_t)(end - bits)) return 0;
            for (uint64_t i = 0; i < (some + 7) / 8 * 8; i++) {
                int bit = bits[taken + i / 8] >> i % 8 & 1;
                if (i >= some && bit) return 0;
                if (i < some) sum[u * unit + i] += value_at(values, (uint32_t)(2 * u) + !bit, HPC_F32);
            }
            taken += (some + 7) / 8;
        }
        return taken == (uint64_t)(end - bits);
    }
    uint64_t item = head.values == HPC_F32 ? 4 : 2, k = 0;
    if (head.entries > n || head.entries * item > nbytes - HEAD) return 0;
    const uint8_t *rest = values + head.entries * item;
    if (head.form == HPC_PIECE_DENSE) {
        for (; head.entries == n && k < n; k++) sum[k] += value_at(values, (uint32_t)k, head.values);
        return head.entries == n && rest == end;
    }
    if (head.form == HPC_PIECE_BITS) {
        if ((uint64_t)(end - rest) != (n + 7u) / 8) return 0;
        for (uint64_t i = 0; i < (n + 7u) / 8 * 8; i++) {
            if (!(rest[i / 8] >> i % 8 & 1)) continue;
            if (i >= n || k == head.entries) return 0;
            sum[i] += value_at(values, (uint32_t)k++, head.values);
        }
        return k == head.entries;
    }
    uint64_t at = 0, width = head.form == HPC_PIECE_GAPS16 ? 2 : 1, skip = width == 2 ? 0xffff : 0xff;
    if ((uint64_t)(end - rest) % width != 0) return 0;
    for (; rest < end; rest += width) {
        uint64_t code = rest[0] + (width == 2 ? 256u * rest[1] : 0);
        at += code;
        if (at > n || (code != skip && (at == n || k == head.entries))) return 0;
        if (code != skip) sum[at++] += value_at(values, (uint32_t)k++, head.values);
    }
    return k == head.entries;
}

/* A NaN of one is a NaN of the other. */
static int same(const float *a, const float *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && (a[i] == a[i] || b[i] == b[i])) return 0;
    return 1;
}

/* The raw piece of a packed one, in its place; 0 if it is refused. */
static uint32_t unpack(uint8_t **piece, uint32_t nbytes) {
    uint8_t *raw = malloc(RAW + FENCE), *scratch = malloc(nbytes + 1);
    hpc_piece_head head;
    REQUIRE(raw != NULL && scratch != NULL);
    memset(raw + RAW, 0x5a, FENCE);
    int64_t made = hpc_piece_unpack(*piece, nbytes, raw, RAW, scratch, nbytes);
    REQUIRE(made != 0 && made <= RAW);
    for (int i = 0; i < FENCE; i++) REQUIRE(raw[RAW + i] == 0x5a);
    free(scratch);
    free(*piece);
    *piece = raw;
    if (made < 0) return 0;
    memcpy(&head, raw, HEAD);
    REQUIRE(hpc_piece_read(&head, raw, made, head.n) == 0);
    return (uint32_t)made;
}

/* What is packed comes back, if its head is that of a piece. */
static void pack_and_unpack(int number, const uint8_t *piece, uint32_t nbytes) {
    static uint8_t scratch[SCRATCH];
    uint8_t *copy = malloc(nbytes + 1);
    hpc_piece_head head;
    REQUIRE(copy != NULL && hpc_compress_room(number, nbytes) <= SCRATCH);
    memcpy(copy, piece, nbytes);
    int64_t made = hpc_piece_pack(number, copy, nbytes, scratch, sizeof scratch);
    REQUIRE(made <= (int64_t)nbytes);
    if (made < 0 || !hpc_piece_is_packed(copy)) {
        REQUIRE(memcmp(copy, piece, nbytes) == 0);
        free(copy);
        return;
    }
    memcpy(&head, piece, HEAD);
    int right = hpc_piece_read(&head, piece, head.nbytes, head.n) == 0;
    uint32_t raw = unpack(&copy, (uint32_t)made);
    REQUIRE((raw > 0) == right && (!right || (raw == head.nbytes && memcmp(copy, piece, raw) == 0)));
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int isas[] = {HPC_ISA_GENERIC, HPC_ISA_AVX2, HPC_ISA_AVX512};
    if (size < CONTROL) return 0;
    uint32_t n = (data[0] + 256u * data[1]) % MOST, nbytes = (uint32_t)(size - CONTROL);
    uint8_t *piece = malloc(nbytes + 1);
    float *expected = calloc(n + 1, sizeof *expected);
    REQUIRE(piece != NULL && expected != NULL);
    memcpy(piece, data + CONTROL, nbytes);
    if (nbytes >= HEAD && data[2] & RIGHT_LENGTH) memcpy(piece + offsetof(hpc_piece_head, nbytes), &nbytes, 4);
    if (nbytes >= HEAD && data[2] & RIGHT_ELEMENTS) memcpy(piece + offsetof(hpc_piece_head, n), &n, 4);
    if (data[2] & ROUND_TRIP) pack_and_unpack(1 + data[2] / NUMBER % 4, piece, nbytes);
    if (data[2] & PACKED) nbytes = unpack(&piece, nbytes);
    int right = decode(expected, n, piece, nbytes);
    if (!right) memset(expected, 0, n * sizeof *expected);
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!hpc_isa_available(isas[i])) continue;
        float *acc = calloc(n + 1, sizeof *acc);
        void *copy = malloc(nbytes > 0 ? nbytes : 1);
        REQUIRE(acc != NULL && copy != NULL);
        memcpy(copy, piece, nbytes);
        int status = hpc_piece_add(acc, n, copy, nbytes, 1, isas[i]);
        REQUIRE((status == 0) == right);
        REQUIRE(same(acc, expected, n));
        free(copy);
        free(acc);
    }
    free(expected);
    free(piece);
    return 0;
}
