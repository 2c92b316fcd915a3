/* Combinations of arrays: every type and operator against one element at a time, the same bits from every instruction
 * set and for every position, in place, and the names of all. */
#include "check.h"
#include "kernel/combine.h"
#include "kernel/half.h"
#include "base/isa.h"

#include <math.h>

enum { INPUTS = 9, MOST = 4099, LARGEST = 16, OFFSETS = 8, GUARD = 32, ROOM = MOST * LARGEST + OFFSETS + 2 * GUARD };
enum { RANKS = 7 }; /* the divisor of means */

static const int types[] = {HPC_F32, HPC_F64, HPC_F16, HPC_BF16, HPC_I8,   HPC_U8,  HPC_I16, HPC_U16,
                            HPC_I32, HPC_U32, HPC_I64, HPC_U64,  HPC_BOOL, HPC_C64, HPC_C128};
static const char *const names[] = {"float32", "float64", "float16", "bfloat16",  "int8",
                                    "uint8",   "int16",   "uint16",  "int32",     "uint32",
                                    "int64",   "uint64",  "bool",    "complex64", "complex128"};
static const size_t sizes[] = {4, 8, 2, 2, 1, 1, 2, 2, 4, 4, 8, 8, 1, 8, 16};
enum { TYPES = sizeof types / sizeof *types };

static uint64_t random_bits(void) {
    static uint64_t state = 1;
    uint64_t high = state = state * 6364136223846793005u + 1442695040888963407u;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (high >> 32) << 32 | state >> 32;
}

static int is_complex(int type) {
    return type == HPC_C64 || type == HPC_C128;
}

static int is_real(int type) {
    return type <= HPC_BF16;
}

static int is_signed(int type) {
    return type == HPC_I8 || type == HPC_I16 || type == HPC_I32 || type == HPC_I64;
}

static int is_taken(int op, int type) {
    if (is_complex(type)) return op == HPC_SUM || op == HPC_AVG || op == HPC_PROD;
    return is_real(type) ? op <= HPC_PROD : op != HPC_AVG;
}

/* ---- one element at a time ---- */

static double get_real(const char *at, int type) {
    float single;
    double value;
    uint16_t half;
    if (type == HPC_F64 || type == HPC_C128) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (type == HPC_F32 || type == HPC_C64) {
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
    memcpy(&half, at, sizeof half);
    return (double)(type == HPC_F16 ? hpc_from_f16(half) : hpc_from_bf16(half));
}

static void put_real(char *at, int type, double value) {
    float single = (float)value;
    if (type == HPC_F64 || type == HPC_C128) {
        memcpy(at, &value, sizeof value);
    } else if (type == HPC_F32 || type == HPC_C64) {
        memcpy(at, &single, sizeof single);
    } else {
        uint16_t half = type == HPC_F16 ? hpc_to_f16(single) : hpc_to_bf16(single);
        memcpy(at, &half, sizeof half);
    }
}

/* Rounds a result to the type in which elements are combined. A sum or product of two float32 in float64, rounded, is
 * the one in float32. */
static double narrow(double x, int type) {
    return type == HPC_F64 || type == HPC_C128 ? x : (double)(float)x;
}

static double quiet(double x) {
    return x != x ? (double)NAN : x;
}

static void expect_real(char *out, const char *const *at, int n_in, int type, int op) {
    int chosen = 0;
    volatile double x = get_real(at[0], type);
    for (int i = 1; i < n_in; i++) {
        double y = get_real(at[i], type);
        if (op == HPC_MIN || op == HPC_MAX) {
            if (!(x != x || (op == HPC_MIN ? x < y : x > y))) {
                chosen = i;
                x = y;
            }
        } else {
            x = narrow(op == HPC_PROD ? x * y : x + y, type);
        }
    }
    if ((op == HPC_MIN || op == HPC_MAX) && (type == HPC_F32 || type == HPC_F64)) { /* the bits of a NaN too */
        memmove(out, at[chosen], hpc_element_size(type));
        return;
    }
    if (op == HPC_AVG) x = narrow(x / RANKS, type);
    put_real(out, type, op == HPC_MIN || op == HPC_MAX ? x : quiet(x));
}

static void expect_complex(char *out, const char *const *at, int n_in, int type, int op) {
    size_t part = hpc_element_size(type) / 2;
    volatile double x[2] = {get_real(at[0], type), get_real(at[0] + part, type)};
    for (int i = 1; i < n_in; i++) {
        double y[2] = {get_real(at[i], type), get_real(at[i] + part, type)};
        if (op == HPC_PROD) {
            volatile double a = narrow(x[0] * y[0], type), b = narrow(x[1] * y[1], type);
            volatile double c = narrow(x[0] * y[1], type), d = narrow(x[1] * y[0], type);
            x[0] = narrow(a - b, type);
            x[1] = narrow(c + d, type);
        } else {
            for (int k = 0; k < 2; k++) x[k] = narrow(x[k] + y[k], type);
        }
    }
    for (int k = 0; k < 2; k++)
        put_real(out + k * part, type, quiet(op == HPC_AVG ? narrow(x[k] / RANKS, type) : x[k]));
}

/* Returns an integer's bits, extended by its sign. */
static uint64_t get_integer(const char *at, int type) {
    size_t size = hpc_element_size(type);
    uint64_t x = 0;
    for (size_t k = size; k-- > 0;) x = x << 8 | (uint8_t)at[k];
    uint64_t sign = (uint64_t)1 << (8 * size - 1);
    return is_signed(type) ? (x ^ sign) - sign : x;
}

static void expect_integer(char *out, const char *const *at, int n_in, int type, int op) {
    uint64_t x = get_integer(at[0], type), top = is_signed(type) ? (uint64_t)1 << 63 : 0;
    for (int i = 1; i < n_in; i++) {
        uint64_t y = get_integer(at[i], type);
        int less = (y ^ top) < (x ^ top);
        switch (op) {
        case HPC_SUM:
            x = type == HPC_BOOL ? x | y : x + y;
            break;
        case HPC_PROD:
            x *= y;
            break;
        case HPC_MIN:
            x = less ? y : x;
            break;
        case HPC_MAX:
            x = less ? x : y;
            break;
        case HPC_BAND:
            x &= y;
            break;
        case HPC_BOR:
            x |= y;
            break;
        default:
            x ^= y;
        }
    }
    for (size_t k = 0; k < hpc_element_size(type); k++) out[k] = (char)(x >> 8 * k);
}

static void expect(char *out, const void *const *in, int n_in, size_t count, int type, int op) {
    size_t size = hpc_element_size(type);
    for (size_t j = 0; j < count; j++) {
        const char *at[INPUTS];
        for (int i = 0; i < n_in; i++) at[i] = (const char *)in[i] + j * size;
        if (is_complex(type))
            expect_complex(out + j * size, at, n_in, type, op);
        else if (is_real(type))
            expect_real(out + j * size, at, n_in, type, op);
        else
            expect_integer(out + j * size, at, n_in, type, op);
    }
}

/* ---- against the kernels ---- */

/* Numbers of mixed size, and one in 16 of any bits at all, infinite, NaN or a zero; for integers any bits. */
static void fill(char *at, size_t count, int type) {
    static const double special[] = {INFINITY, -INFINITY, NAN, 0.0, -0.0, 6e-8, 1e-42, 65504};
    size_t size = hpc_element_size(type), part = is_complex(type) ? size / 2 : size;
    for (size_t j = 0; j < count * size / part; j++) {
        uint64_t bits = random_bits(), any = random_bits();
        char *to = at + j * part;
        if (type == HPC_BOOL)
            *to = (char)(bits % 2);
        else if ((!is_real(type) && !is_complex(type)) || bits % 32 == 0)
            memcpy(to, &any, part);
        else if (bits % 32 == 1)
            put_real(to, type, special[bits / 64 % 8]);
        else
            put_real(to, type, ldexp((double)(int64_t)any, (int)(bits / 64 % 8) - 66));
    }
}

static char in[INPUTS][ROOM], kept[ROOM], out[ROOM], expected[ROOM];

static void check_same(const char *a, const char *b, size_t n, const char *what, int op, int type, int isa, int n_in) {
    if (memcmp(a, b, n) == 0) return;
    size_t k = 0;
    while (a[k] == b[k]) k++;
    fprintf(stderr, "%s: %s of %s, isa %d, n_in %d: byte %zu of %zu is %#x, not %#x\n", what, hpc_op_name(op),
            hpc_type_name(type), isa, n_in, k, n, (uint8_t)a[k], (uint8_t)b[k]);
    check_fail_red("wrong bytes");
}

/* Arrays at any addresses, and out between guards; then out as each of the inputs. */
static void test_bits(int op, int type, int n_in, size_t count) {
    size_t size = hpc_element_size(type), start = GUARD + random_bits() % OFFSETS;
    const void *inputs[INPUTS];
    for (int i = 0; i < n_in; i++) {
        char *at = in[i] + random_bits() % OFFSETS;
        fill(at, count, type);
        inputs[i] = at;
    }
    memset(expected, 0x55, sizeof expected);
    expect(expected + start, inputs, n_in, count, type, op);
    for (int isa = HPC_ISA_BEST; isa <= HPC_ISA_AVX512; isa++) {
        if (!hpc_isa_available(isa)) continue;
        hpc_combine_fn *combine = hpc_combine_of(op, type, isa);
        memset(out, 0x55, sizeof out);
        combine(out + start, inputs, n_in, count, RANKS);
        check_same(out, expected, count * size + 2 * GUARD, "apart", op, type, isa, n_in);
        for (int k = 0; k < n_in; k++) {
            char *place = (char *)inputs[k];
            memcpy(kept, place, count * size);
            combine(place, inputs, n_in, count, RANKS);
            check_same(place, expected + start, count * size, "in place", op, type, isa, n_in);
            memcpy(place, kept, count * size);
        }
    }
}

static void test_refusals(void) {
    static const int no_types[] = {-1, HPC_BF16 + 1, HPC_I8 - 1, HPC_C128 + 1};
    for (int t = 0; t < TYPES; t++) {
        CHECK(strcmp(hpc_type_name(types[t]), names[t]) == 0);
        CHECK_EQ(hpc_element_size(types[t]), sizes[t]);
        for (int op = -1; op <= HPC_BXOR + 1; op++)
            CHECK_EQ(hpc_combine_of(op, types[t], HPC_ISA_BEST) != NULL,
                     op >= 0 && op <= HPC_BXOR && is_taken(op, types[t]));
    }
    for (size_t i = 0; i < sizeof no_types / sizeof *no_types; i++) {
        CHECK(hpc_combine_of(HPC_SUM, no_types[i], HPC_ISA_BEST) == NULL);
        CHECK(hpc_type_name(no_types[i]) == NULL);
        CHECK_EQ(hpc_element_size(no_types[i]), 0);
    }
    CHECK(strcmp(hpc_op_name(HPC_SUM), "sum") == 0 && strcmp(hpc_op_name(HPC_BXOR), "bxor") == 0);
    CHECK(hpc_op_name(-1) == NULL && hpc_op_name(HPC_BXOR + 1) == NULL);
}

int main(void) {
    static const int many[] = {1, 2, 3, 4, 5, 9};
    static const size_t counts[] = {0, 1, 7, 64, 4099};
    test_refusals();
    for (int t = 0; t < TYPES; t++)
        for (int op = HPC_SUM; op <= HPC_BXOR; op++)
            for (size_t n = 0; is_taken(op, types[t]) && n < sizeof many / sizeof *many; n++)
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) test_bits(op, types[t], many[n], counts[c]);
    return 0;
}
