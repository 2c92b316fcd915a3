/* The kernels of sparse codecs: what they promise, on every instruction set, with the same bits and nothing written
 * outside of the room that is given. */
#include "check.h"

#include <math.h>

#include "kernel/half.h"
#include "kernel/sparse.h"
#include "base/isa.h"

enum { MOST = 1200, GUARD = 64, PAINT = 0x5a };

static uint64_t random_state = 1;

static uint32_t random_word(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static const int isas[] = {HPC_ISA_GENERIC, HPC_ISA_AVX2, HPC_ISA_AVX512};
static const int formats[] = {HPC_F32, HPC_F16, HPC_BF16};

static hpc_filter_fn *filter_of(const struct hpc_sparse_kernels *kernels, int values) {
    return values == HPC_F32 ? kernels->filter_f32 : values == HPC_F16 ? kernels->filter_f16 : kernels->filter_bf16;
}

/* Arrays with guards on both sides. */
typedef struct guarded {
    unsigned char bytes[GUARD + 4 * (MOST + 32) + GUARD];
    size_t used;
} guarded;

static void *open_guarded(guarded *g, size_t nbytes, size_t shift) {
    memset(g->bytes, PAINT, sizeof g->bytes);
    g->used = GUARD + shift + nbytes;
    return g->bytes + GUARD + shift;
}

static void check_guards(const guarded *g, size_t shift) {
    for (size_t i = 0; i < GUARD + shift; i++)
        if (g->bytes[i] != PAINT) check_fail_red("wrote before its room");
    for (size_t i = g->used; i < sizeof g->bytes; i++)
        if (g->bytes[i] != PAINT) check_fail_red("wrote behind its room");
}

/* ---- filter --------------------------------------------------------------------------------------------------------
 */

static float random_value(int special) {
    static const float some[] = {NAN,    INFINITY, -INFINITY, 0.0f,     -0.0f, 1e-42f,    3.4e38f,
                                 -3e38f, 65504,    65520,     70000.5f, 1e-8f, -2.98e-8f, 1.0f};
    uint32_t word = random_word();
    if (special && word % 16 == 0) return some[word / 16 % (sizeof some / sizeof *some)];
    float u = ldexpf((float)(int32_t)random_word() / 0x1p31f, (int)(word >> 8 & 7) - 4);
    return u;
}

/* The value that is sent, by its definition. */
static float sent_for(float u, int values) {
    if (values == HPC_F32 || !(fabsf(u) < INFINITY))
        return values == HPC_F16 ? hpc_from_f16(hpc_to_f16(u)) : values == HPC_BF16 ? hpc_from_bf16(hpc_to_bf16(u)) : u;
    float most = values == HPC_F16 ? 65504 : 0x1.fep127f;
    float within = fabsf(u) > most ? copysignf(most, u) : u;
    return values == HPC_F16 ? hpc_from_f16(hpc_to_f16(within)) : hpc_from_bf16(hpc_to_bf16(within));
}

static int same(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static float value_at(const void *values, size_t k, int format) {
    uint16_t half;
    float value;
    if (format == HPC_F32) {
        memcpy(&value, (const char *)values + 4 * k, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)values + 2 * k, sizeof half);
    return format == HPC_F16 ? hpc_from_f16(half) : hpc_from_bf16(half);
}

static void check_filter(int isa, int format, size_t n, size_t shift, float delta, int special) {
    static guarded x_room, residual_room, values_room, bits_room;
    static float before[MOST];
    size_t item = hpc_dtype_bytes(format), nbits = (n + 7) / 8, k = 0;
    float *x = open_guarded(&x_room, 4 * n, 4 * shift), *residual = open_guarded(&residual_room, 4 * n, 4 * shift);
    char *values = open_guarded(&values_room, item * n, item * shift);
    uint8_t *bits = open_guarded(&bits_room, nbits, shift);
    for (size_t i = 0; i < n; i++) {
        x[i] = random_value(special);
        before[i] = residual[i] = special ? 0 : random_value(0);
    }
    int64_t kept = filter_of(hpc_sparse_kernels_of(isa), format)(x, residual, (int64_t)n, delta, values, bits);
    for (size_t i = 0; i < n; i++) {
        float u = x[i] + before[i], sent = sent_for(u, format);
        int keeps = !(fabsf(u) <= delta) && sent != 0;
        CHECK_EQ(bits[i / 8] >> i % 8 & 1, keeps);
        if (keeps) {
            CHECK(same(value_at(values, k++, format), sent));
            CHECK(same(residual[i], fabsf(u) < INFINITY ? u - sent : 0));
        } else {
            CHECK(same(residual[i], u));
        }
        CHECK(isfinite(residual[i]));
    }
    CHECK_EQ(kept, k);
    CHECK_EQ(hpc_sparse_kernels_of(isa)->count(bits, n), k);
    if (n % 8 != 0) CHECK_EQ(bits[nbits - 1] >> n % 8, 0);
    check_guards(&x_room, 4 * shift);
    check_guards(&residual_room, 4 * shift);
    check_guards(&values_room, item * shift);
    check_guards(&bits_room, shift);

    hpc_sparse_return(residual, n, bits, values, format);
    for (size_t i = 0; i < n; i++) {
        float u = x[i] + before[i];
        if (format == HPC_F32 || fabsf(u) < 65504) CHECK(same(residual[i], u));
    }
}

static void test_filter(int isa) {
    static const float deltas[] = {0, 0.05f, 0.4f, 3, 100};
    for (int f = 0; f < 3; f++) {
        for (size_t n = 0; n < 200; n++) check_filter(isa, formats[f], n, n % 5, deltas[n % 5], n % 2);
        for (size_t d = 0; d < 5; d++)
            for (int special = 0; special < 2; special++) {
                check_filter(isa, formats[f], MOST, 1, deltas[d], special);
                check_filter(isa, formats[f], MOST - 37, 0, deltas[d], special);
            }
    }
}

/* ---- gaps and positions --------------------------------------------------------------------------------------------
 */

enum { LONG = 1 << 18 };
static uint8_t long_bits[LONG / 8];
static uint32_t expected[LONG], found[LONG + HPC_POSITIONS_SLACK];
static unsigned char codes[2 * LONG + GUARD];

/* One in about every elements, and one of the last ones; how many. */
static size_t fill_bits(size_t n, uint32_t every) {
    size_t count = 0;
    memset(long_bits, 0, sizeof long_bits);
    for (size_t i = 0; i < n; i++) {
        if (random_word() % every != 0) continue;
        long_bits[i / 8] |= (uint8_t)(1u << i % 8);
        expected[count++] = (uint32_t)i;
    }
    return count;
}

static void check_gaps(int isa, size_t n, uint32_t every, int wide) {
    const struct hpc_sparse_kernels *kernels = hpc_sparse_kernels_of(isa);
    hpc_gaps_fn *gaps = wide ? kernels->gaps16 : kernels->gaps8;
    size_t count = fill_bits(n, every), width = wide ? 2 : 1, skip = wide ? 0xffff : 0xff, needed = 0;
    for (size_t k = 0; k < count; k++) needed += 1 + (expected[k] - (k > 0 ? expected[k - 1] + 1 : 0)) / skip;

    memset(codes, PAINT, sizeof codes);
    if (needed > 0) CHECK(gaps(long_bits, n, codes, needed - 1) == HPC_GAPS_DO_NOT_FIT);
    for (size_t i = needed > 0 ? (needed - 1) * width : 0; i < sizeof codes; i++)
        if (codes[i] != PAINT) check_fail_red("wrote behind cap");
    CHECK_EQ(gaps(long_bits, n, codes, needed), needed);
    for (size_t i = needed * width; i < sizeof codes; i++)
        if (codes[i] != PAINT) check_fail_red("wrote behind the codes");

    uint64_t span = 0, last = count > 0 ? expected[count - 1] + 1 : 0;
    CHECK_EQ((wide ? kernels->codes16 : kernels->codes8)(codes, needed, &span), count);
    CHECK_EQ(span, last);
    uint32_t next = 0;
    size_t k = 0, step = 1 + random_word() % 300;
    for (size_t from = 0; from < needed; from += step) {
        size_t some = needed - from < step ? needed - from : step;
        k += (wide ? kernels->positions16 : kernels->positions8)(codes + from * width, some, found + k, &next);
    }
    CHECK_EQ(k, count);
    CHECK_EQ(next, last);
    CHECK(memcmp(found, expected, count * sizeof *found) == 0);
}

static void test_gaps(int isa) {
    static const uint32_t every[] = {1, 2, 5, 10, 30, 100, 255, 1000, 5000, 70000, 200000};
    for (size_t e = 0; e < sizeof every / sizeof *every; e++)
        for (int wide = 0; wide < 2; wide++) {
            check_gaps(isa, LONG, every[e], wide);
            for (size_t n = 0; n < 300; n += 1 + n / 20) check_gaps(isa, n, every[e], wide);
        }
}

/* ---- adding by bits ------------------------------------------------------------------------------------------------
 */

static void test_add_bits(int isa) {
    static guarded acc_room;
    for (size_t n = 0; n < 300; n++) {
        size_t count = fill_bits(n, 1 + n % 7), shift = n % 4;
        float *values = malloc((count + 1) * sizeof *values), *acc = open_guarded(&acc_room, 4 * n, 4 * shift);
        CHECK(values != NULL);
        for (size_t k = 0; k < count; k++) values[k] = (float)(k + 1);
        for (size_t i = 0; i < n; i++) acc[i] = -0.0f;
        hpc_sparse_kernels_of(isa)->add_bits(acc, n, long_bits, values);
        for (size_t i = 0, k = 0; i < n; i++) {
            int has = k < count && expected[k] == i;
            CHECK(same(acc[i], has ? values[k] : -0.0f)); /* others are not touched: their zero has its sign */
            k += (size_t)has;
        }
        check_guards(&acc_room, 4 * shift);
        free(values);
    }
}

/* ---- signs ---------------------------------------------------------------------------------------------------------
 */

static void check_signs(int isa, size_t n, int special) {
    static float x[MOST], residual[MOST], other[MOST], acc[MOST];
    static uint8_t bits[MOST / 8 + 1], other_bits[MOST / 8 + 1];
    const struct hpc_sparse_kernels *kernels = hpc_sparse_kernels_of(isa), *generic = &hpc_sparse_generic;
    double sums[2], other_sums[2];
    size_t up = 0;
    memset(bits, PAINT, sizeof bits);
    for (size_t i = 0; i < n; i++) {
        x[i] = random_value(special);
        residual[i] = other[i] = random_value(0);
        acc[i] = (float)i;
    }
    CHECK_EQ(kernels->signs(x, residual, n, bits, sums), generic->signs(x, other, n, other_bits, other_sums));
    for (size_t i = 0; i < n; i++) {
        CHECK(same(residual[i], other[i]));
        CHECK_EQ(bits[i / 8] >> i % 8 & 1, other[i] >= 0);
        up += other[i] >= 0;
    }
    CHECK_EQ(hpc_sparse_kernels_of(isa)->count(bits, n), up);
    CHECK_EQ(bits[(n + 7) / 8], PAINT);
    for (int s = 0; s < 2; s++)
        CHECK(memcmp(&sums[s], &other_sums[s], sizeof *sums) == 0 || (isnan(sums[s]) && isnan(other_sums[s])));
    kernels->take_signs(residual, n, bits, 0.75f, -0.5f);
    kernels->add_signs(acc, n, bits, 0.75f, -0.5f);
    for (size_t i = 0; i < n; i++) {
        float value = other[i] >= 0 ? 0.75f : -0.5f, rest = other[i] - value;
        CHECK(same(residual[i], isfinite(rest) ? rest : 0));
        CHECK(same(acc[i], (float)i + value));
    }
}

static void test_signs(int isa) {
    for (size_t n = 0; n < 150; n++) check_signs(isa, n, n % 2);
    check_signs(isa, MOST, 0);
}

int main(void) {
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!hpc_isa_available(isas[i])) continue;
        test_filter(isas[i]);
        test_gaps(isas[i]);
        test_add_bits(isas[i]);
        test_signs(isas[i]);
    }
    return 0;
}
