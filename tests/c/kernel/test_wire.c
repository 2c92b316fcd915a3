/* Updates in 16 bits: every pattern of both formats decoded and rounded to, folds of any inputs, the same bits from
 * every instruction set; and what goes with the fold inside the library: copies, and the search for NaN and Inf. */
#include "check.h"
#include "kernel/fold.h"
#include "base/isa.h"

#include <math.h>

enum { INPUTS = 9, TAIL = 100, OFFSETS = 37, GUARD = 32, ROOM = TAIL + OFFSETS + 2 * GUARD, PATTERNS = 1 << 16 };

static const int dtypes[] = {HPC_F16, HPC_BF16};

static uint32_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static int mantissa_bits(int dtype) {
    return dtype == HPC_F16 ? 10 : 7;
}

/* The formats by their definition; a finite one is exact in double, and the pattern of Inf counts on as a number. */
static double magnitude(uint32_t pattern, int dtype) {
    int mantissa = mantissa_bits(dtype), bias = dtype == HPC_F16 ? 15 : 127;
    int exponent = (int)(pattern >> mantissa);
    double fraction = pattern & ((1u << mantissa) - 1);
    if (exponent == 0) return ldexp(fraction, 1 - bias - mantissa);
    return ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
}

static uint32_t infinity_of(int dtype) {
    return dtype == HPC_F16 ? 0x7c00 : 0x7f80;
}

static float decode(uint32_t pattern, int dtype) {
    uint32_t positive = pattern & 0x7fff, sign = (pattern & 0x8000) << 16;
    if (positive > infinity_of(dtype)) return float_of(0x7fc00000);
    if (positive == infinity_of(dtype)) return float_of(sign | 0x7f800000);
    return float_of(sign | bits_of((float)magnitude(positive, dtype)));
}

static void fold_reference(float *out, const uint16_t *const *in, const double *w, int n_in, size_t count, int dtype) {
    for (size_t j = 0; j < count; j++) {
        volatile float sum = (float)w[0] * decode(in[0][j], dtype);
        for (int i = 1; i < n_in; i++) {
            volatile float product = (float)w[i] * decode(in[i][j], dtype);
            sum = sum + product;
        }
        out[j] = sum == sum ? sum : float_of(0x7fc00000);
    }
}

static void check_bits(const float *got, const float *expected, size_t count, int dtype, int isa, const char *what) {
    for (size_t j = 0; j < count; j++) {
        if (bits_of(got[j]) == bits_of(expected[j])) continue;
        fprintf(stderr, "%s: dtype %d, isa %d, element %zu of %zu is %a (%08x), not %a (%08x)\n", what, dtype, isa, j,
                count, got[j], bits_of(got[j]), expected[j], bits_of(expected[j]));
        check_fail_red("wrong bytes");
    }
}

/* Every pattern, at once and one by one: vectors and what is left of them take different ways. */
static void test_decode(int dtype, int isa) {
    static uint16_t in[PATTERNS];
    static float out[PATTERNS], expected[PATTERNS];
    const double one = 1;
    for (uint32_t p = 0; p < PATTERNS; p++) {
        in[p] = (uint16_t)p;
        expected[p] = decode(p, dtype);
    }
    const void *all = in;
    CHECK_OK(hpc_fold(out, &all, &one, 1, PATTERNS, dtype, isa));
    check_bits(out, expected, PATTERNS, dtype, isa, "decode");
    memset(out, 0, sizeof out);
    for (uint32_t p = 0; p < PATTERNS; p++)
        CHECK_OK(hpc_fold(out + p, (const void *[]){in + p}, &one, 1, 1, dtype, isa));
    check_bits(out, expected, PATTERNS, dtype, isa, "decode one");
}

/* Any bits at all, every tail, arrays that start at any element of a cache line, between guards. */
static void test_fold(int dtype, int isa) {
    _Alignas(64) static uint16_t in[INPUTS][ROOM];
    _Alignas(64) static float out[ROOM], expected[ROOM];
    const uint16_t *inputs[INPUTS];
    double weights[INPUTS];
    for (int n_in = 1; n_in <= INPUTS; n_in++) {
        for (size_t count = 0; count <= TAIL; count++) {
            size_t start = GUARD + random_bits() % OFFSETS;
            for (int i = 0; i < n_in; i++) {
                for (size_t j = 0; j < ROOM; j++) in[i][j] = (uint16_t)random_bits();
                inputs[i] = in[i] + random_bits() % OFFSETS;
                weights[i] = ldexp((double)random_bits() - 0x1p31, -31);
            }
            for (size_t j = 0; j < ROOM; j++) expected[j] = out[j] = (float)j;
            fold_reference(expected + start, inputs, weights, n_in, count, dtype);
            CHECK_OK(hpc_fold(out + start, (const void *const *)inputs, weights, n_in, count, dtype, isa));
            check_bits(out, expected, ROOM, dtype, isa, "fold");
        }
    }
}

/* Outputs too large for the last cache take another way to memory. */
static void test_fold_large(int dtype, int isa) {
    enum { LARGE_INPUTS = 2, PERIOD = 4099 };
    const double weights[LARGE_INPUTS] = {0.3, -1.7};
    size_t count = hpc_fold_stream_from() / sizeof(float) + 5;
    uint16_t *in[LARGE_INPUTS];
    float *out = malloc((count + 1) * sizeof *out), expected[PERIOD];
    CHECK(out != NULL);
    for (int i = 0; i < LARGE_INPUTS; i++) {
        in[i] = malloc(count * sizeof *in[i]);
        CHECK(in[i] != NULL);
        for (size_t j = 0; j < count; j++) in[i][j] = j < PERIOD ? (uint16_t)random_bits() : in[i][j - PERIOD];
    }
    fold_reference(expected, (const uint16_t *const *)in, weights, LARGE_INPUTS, PERIOD, dtype);
    memset(out, 0x55, (count + 1) * sizeof *out);
    CHECK_OK(hpc_fold(out + 1, (const void *const *)in, weights, LARGE_INPUTS, count, dtype, isa));
    for (size_t j = 0; j < count; j += PERIOD)
        check_bits(out + 1 + j, expected, count - j < PERIOD ? count - j : PERIOD, dtype, isa, "large");
    for (int i = 0; i < LARGE_INPUTS; i++) free(in[i]);
    free(out);
}

static void check_encoded(const uint16_t *got, const uint16_t *expected, const float *in, size_t count, int dtype,
                          int isa) {
    for (size_t j = 0; j < count; j++) {
        if (got[j] == expected[j]) continue;
        fprintf(stderr, "encode: dtype %d, isa %d, %a (%08x) became %04x, not %04x\n", dtype, isa, in[j],
                bits_of(in[j]), got[j], expected[j]);
        check_fail_red("wrong bytes");
    }
}

static void encode_both_ways(const float *in, const uint16_t *expected, size_t count, int dtype, int isa) {
    uint16_t *out = malloc(count * sizeof *out);
    CHECK(out != NULL);
    memset(out, 0x55, count * sizeof *out);
    CHECK_OK(hpc_encode(out, in, count, dtype, isa));
    check_encoded(out, expected, in, count, dtype, isa);
    memset(out, 0x55, count * sizeof *out);
    for (size_t j = 0; j < count; j++) CHECK_OK(hpc_encode(out + j, in + j, 1, dtype, isa));
    check_encoded(out, expected, in, count, dtype, isa);
    free(out);
}

/* Each finite value becomes itself, the middle between it and the next one whichever is even, and the two floats beside
 * the middle the nearer one. */
static void test_encode(int dtype, int isa) {
    enum { CASES = 4 };
    uint32_t infinity = infinity_of(dtype), numbers = 0;
    float *in = malloc(2 * CASES * PATTERNS * sizeof *in);
    uint16_t *expected = malloc(2 * CASES * PATTERNS * sizeof *expected);
    CHECK(in != NULL && expected != NULL);
    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t p = 0; p < infinity; p++) {
            double here = magnitude(p, dtype), middle = (here + magnitude(p + 1, dtype)) / 2;
            float between = (float)middle;
            CHECK(between == middle);
            const float x[CASES] = {(float)here, nextafterf(between, 0), between, nextafterf(between, INFINITY)};
            const uint32_t becomes[CASES] = {p, p, p + (p & 1), p + 1};
            for (int c = 0; c < CASES; c++, numbers++) {
                in[numbers] = sign ? -x[c] : x[c];
                expected[numbers] = (uint16_t)(sign << 15 | becomes[c]);
            }
        }
        in[numbers] = sign ? -INFINITY : INFINITY;
        expected[numbers++] = (uint16_t)(sign << 15 | infinity);
        in[numbers] = float_of(sign << 31 | 0x7f7fffff);
        expected[numbers++] = (uint16_t)(sign << 15 | infinity);
    }
    encode_both_ways(in, expected, numbers, dtype, isa);
    free(in);
    free(expected);
}

/* Rounding by its definition: to a whole number of the steps that the format has around x. */
static uint32_t round_to(float x, int dtype) {
    int mantissa = mantissa_bits(dtype), bias = dtype == HPC_F16 ? 15 : 127, least = 1 - bias - mantissa, exponent;
    uint32_t sign = signbit(x) ? 0x8000 : 0, infinity = infinity_of(dtype);
    double a = fabs((double)x);
    if (a >= magnitude(infinity, dtype)) return sign | infinity;
    frexp(a, &exponent);
    int step = exponent - 1 - mantissa < least ? least : exponent - 1 - mantissa;
    return sign | (uint32_t)(((step - least) << mantissa) + (int)nearbyint(ldexp(a, -step)));
}

static void test_encode_any(int dtype, int isa) {
    enum { COUNT = 1 << 16 };
    static float in[COUNT];
    static uint16_t expected[COUNT];
    for (size_t j = 0; j < COUNT; j++) {
        do {
            in[j] = float_of(random_bits());
        } while (isnan(in[j]));
        expected[j] = (uint16_t)round_to(in[j], dtype);
    }
    encode_both_ways(in, expected, COUNT, dtype, isa);
}

/* A NaN keeps its sign and the upper bits of its payload and becomes quiet, also where those bits are all zero. */
static void test_encode_nan(int dtype, int isa) {
    int mantissa = mantissa_bits(dtype);
    uint32_t infinity = infinity_of(dtype), quiet = 1u << (mantissa - 1), payloads = 1u << mantissa, numbers = 0;
    static float in[4 << 10];
    static uint16_t expected[4 << 10];
    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t payload = 0; payload < payloads; payload++) {
            for (uint32_t low = payload == 0; low < 2; low++, numbers++) {
                uint32_t bits = sign << 31 | 0x7f800000 | payload << (23 - mantissa) | low;
                memcpy(&in[numbers], &bits, sizeof bits);
                expected[numbers] = (uint16_t)(sign << 15 | infinity | quiet | payload);
            }
        }
    }
    encode_both_ways(in, expected, numbers, dtype, isa);
}

/* Every tail and start, between guards. A float32 that is a value of the format must come back. */
static void test_encode_tails(int dtype, int isa) {
    _Alignas(64) float in[ROOM];
    _Alignas(64) uint16_t out[ROOM], expected[ROOM];
    for (size_t count = 0; count <= TAIL; count++) {
        size_t start = GUARD + random_bits() % OFFSETS, from = random_bits() % OFFSETS;
        for (size_t j = 0; j < ROOM; j++) out[j] = expected[j] = (uint16_t)(j * 77);
        for (size_t j = 0; j < count; j++) {
            uint32_t pattern = random_bits() & 0xffff;
            if ((pattern & 0x7fff) > infinity_of(dtype)) pattern = infinity_of(dtype);
            in[from + j] = decode(pattern, dtype);
            expected[start + j] = (uint16_t)pattern;
        }
        CHECK_OK(hpc_encode(out + start, in + from, count, dtype, isa));
        CHECK(memcmp(out, expected, sizeof out) == 0);
    }
}

static void test_copy(int isa) {
    enum { MOST = 700, LINE = 64 };
    static char in[MOST + 2 * LINE], out[MOST + 4 * LINE], expected[MOST + 4 * LINE];
    const struct hpc_fold_kernels *kernels = hpc_fold_kernels_of(isa);
    for (size_t j = 0; j < sizeof in; j++) in[j] = (char)random_bits();
    for (int stream = 0; stream < 2; stream++) {
        for (size_t nbytes = 0; nbytes <= MOST; nbytes++) {
            size_t from = random_bits() % LINE, to = LINE + random_bits() % LINE;
            memset(out, 0x55, sizeof out);
            memset(expected, 0x55, sizeof expected);
            memcpy(expected + to, in + from, nbytes);
            kernels->copy(out + to, in + from, nbytes, stream);
            CHECK(memcmp(out, expected, sizeof out) == 0);
        }
    }
}

/* One NaN or Inf at each place in turn, among the largest and the smallest finite values of both signs. */
static void test_all_finite(int dtype, int isa) {
    enum { MOST = 9000 };
    static const uint64_t largest[] = {0x7f7fffff, 0x7fefffffffffffff, 0x7bff, 0x7f7f};
    static const uint64_t infinity[] = {0x7f800000, 0x7ff0000000000000, 0x7c00, 0x7f80};
    static char room[MOST + 1];
    const struct hpc_fold_kernels *kernels = hpc_fold_kernels_of(isa);
    size_t item = hpc_dtype_bytes(dtype), most = MOST / item;
    uint64_t sign = (uint64_t)1 << (8 * item - 1);
    char *in = room + 1;
    for (size_t j = 0; j < most; j++) {
        uint64_t bits = (j % 3 == 0 ? 0 : largest[dtype]) | (j % 2 ? sign : 0);
        memcpy(in + j * item, &bits, item);
    }
    for (size_t count = 0; count <= most; count += count < 150 ? 1 : 997) {
        CHECK_EQ(kernels->all_finite(in, count, dtype), 1);
        for (size_t j = 0; j < most && j < count + 3; j++) {
            uint64_t good = 0, bad = infinity[dtype] | (j % 5 == 0 ? 1 : 0) | (j % 7 == 0 ? sign : 0);
            memcpy(&good, in + j * item, item);
            memcpy(in + j * item, &bad, item);
            CHECK_EQ(kernels->all_finite(in, count, dtype), j >= count);
            memcpy(in + j * item, &good, item);
        }
    }
}

static void test_refusals(void) {
    float a[16] = {0};
    _Alignas(4) uint16_t h[16] = {0};
    const double w[1] = {1};
    const void *in[1] = {h};

    CHECK_EQ(hpc_dtype_bytes(HPC_F32), 4);
    CHECK_EQ(hpc_dtype_bytes(HPC_F64), 8);
    CHECK_EQ(hpc_dtype_bytes(HPC_F16), 2);
    CHECK_EQ(hpc_dtype_bytes(HPC_BF16), 2);
    CHECK_EQ(hpc_dtype_bytes(-1), 0);
    CHECK_EQ(hpc_dtype_bytes(4), 0);

    /* A float32 out over its own narrow input would be written before it is read. */
    in[0] = a;
    CHECK_STATUS(hpc_fold(a, in, w, 1, 8, HPC_F16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("overlaps out");
    in[0] = a + 7;
    CHECK_STATUS(hpc_fold(a, in, w, 1, 8, HPC_BF16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("overlaps out");
    CHECK_STATUS(hpc_fold(a + 8, in, w, 1, 3, HPC_BF16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_OK(hpc_fold(a + 8, in, w, 1, 2, HPC_BF16, HPC_ISA_BEST));
    in[0] = a + 8;
    CHECK_OK(hpc_fold(a, in, w, 1, 8, HPC_BF16, HPC_ISA_BEST));
    in[0] = (char *)h + 1;
    CHECK_STATUS(hpc_fold(a, in, w, 1, 8, HPC_F16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("not a multiple of 2");
    in[0] = h;
    CHECK_STATUS(hpc_fold((char *)a + 2, in, w, 1, 8, HPC_F16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("not a multiple of 4");

    CHECK_OK(hpc_encode(NULL, NULL, 0, HPC_F16, HPC_ISA_BEST));
    CHECK_STATUS(hpc_encode(h, a, 8, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("dtype is 0");
    CHECK_STATUS(hpc_encode(h, a, 8, HPC_F16, 9), HPC_ERR_INVALID);
    CHECK_MESSAGE("isa is 9");
    CHECK_STATUS(hpc_encode(NULL, a, 8, HPC_F16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("out is NULL");
    CHECK_STATUS(hpc_encode(h, NULL, 8, HPC_F16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("in is NULL");
    CHECK_STATUS(hpc_encode((char *)h + 1, a, 4, HPC_F16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("not a multiple of 2");
    CHECK_STATUS(hpc_encode(h, (const float *)(const void *)(h + 1), 4, HPC_F16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("not a multiple of 4");
    CHECK_STATUS(hpc_encode(a, a, 8, HPC_F16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("overlaps out");
    CHECK_STATUS(hpc_encode(h, a, SIZE_MAX / 4, HPC_F16, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("more than any array");
    for (int isa = HPC_ISA_BEST; isa <= HPC_ISA_AVX512; isa++)
        CHECK_STATUS(hpc_encode(h, a, 8, HPC_F16, isa), hpc_isa_available(isa) ? HPC_OK : HPC_ERR_UNSUPPORTED);
}

int main(void) {
    test_refusals();
    for (int isa = HPC_ISA_BEST; isa <= HPC_ISA_AVX512; isa++) {
        if (!hpc_isa_available(isa)) continue;
        test_copy(isa);
        for (int dtype = HPC_F32; dtype <= HPC_BF16; dtype++) test_all_finite(dtype, isa);
        for (int d = 0; d < 2; d++) {
            test_decode(dtypes[d], isa);
            test_fold(dtypes[d], isa);
            test_fold_large(dtypes[d], isa);
            test_encode(dtypes[d], isa);
            test_encode_any(dtypes[d], isa);
            test_encode_nan(dtypes[d], isa);
            test_encode_tails(dtypes[d], isa);
        }
    }
    return 0;
}
