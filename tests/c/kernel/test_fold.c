/* The fold: exact sums on integers, the same bits from every instruction set and for every position, and its refusals.
 */
#include "check.h"
#include "ranks.h"
#include "base/isa.h"

#include <math.h>
#include <pthread.h>

enum { INPUTS = 9, TAIL = 130, OFFSETS = 17, GUARD = 32, ROOM = TAIL + OFFSETS + 2 * GUARD };

static const int dtypes[] = {HPC_F32, HPC_F64};
static const double weights[INPUTS] = {0.1, -1.0 / 3, 2.5, 0.7, -0.0, 1e-3, 3.0, -0.9, 1.0 / 7};

static uint64_t random_state = 1;

static uint64_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = random_state >> 32;
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return x << 32 | random_state >> 32;
}

static size_t size_of(int dtype) {
    return dtype == HPC_F32 ? sizeof(float) : sizeof(double);
}

static void set(void *array, size_t j, int dtype, double value) {
    if (dtype == HPC_F32)
        ((float *)array)[j] = (float)value;
    else
        ((double *)array)[j] = value;
}

static double get(const void *array, size_t j, int dtype) {
    return dtype == HPC_F32 ? (double)((const float *)array)[j] : ((const double *)array)[j];
}

/* Ordinary numbers of mixed size, and one in 32 of any bits at all: infinities, NaN, denormals, both zeros. */
static void fill(void *array, size_t count, int dtype) {
    static const double special[] = {INFINITY, -INFINITY, NAN, 0.0, -0.0, 1e-310, 1e-42, 3e38};
    for (size_t j = 0; j < count; j++) {
        uint64_t bits = random_bits();
        if (bits % 64 == 0)
            set(array, j, dtype, special[bits / 64 % 8]);
        else if (bits % 64 == 1)
            memcpy((char *)array + j * size_of(dtype), &(uint64_t){random_bits()}, size_of(dtype));
        else
            set(array, j, dtype, ldexp((double)(int64_t)random_bits(), (int)(bits / 64 % 16) - 71));
    }
}

static void fill_integers(void *array, size_t count, int dtype) {
    for (size_t j = 0; j < count; j++) set(array, j, dtype, (double)(random_bits() % 2001) - 1000);
}

/* The definition, one element at a time. volatile keeps the compiler of this file from contracting it. */
static void reference(void *out, const void *const *in, const double *w, int n_in, size_t count, int dtype) {
    for (size_t j = 0; j < count; j++) {
        if (dtype == HPC_F32) {
            volatile float sum = (float)w[0] * ((const float *)in[0])[j];
            for (int i = 1; i < n_in; i++) {
                volatile float product = (float)w[i] * ((const float *)in[i])[j];
                sum = sum + product;
            }
            ((float *)out)[j] = sum;
        } else {
            volatile double sum = w[0] * ((const double *)in[0])[j];
            for (int i = 1; i < n_in; i++) {
                volatile double product = w[i] * ((const double *)in[i])[j];
                sum = sum + product;
            }
            ((double *)out)[j] = sum;
        }
    }
}

/* The same bits, or NaN in both: a NaN's payload is not promised. */
static int same(const void *a, const void *b, size_t j, int dtype) {
    size_t element = size_of(dtype);
    if (memcmp((const char *)a + j * element, (const char *)b + j * element, element) == 0) return 1;
    return isnan(get(a, j, dtype)) && isnan(get(b, j, dtype));
}

static void check_same(const void *got, const void *expected, size_t count, int dtype, int isa, int n_in,
                       const char *what) {
    if (memcmp(got, expected, count * size_of(dtype)) == 0) return;
    for (size_t j = 0; j < count; j++) {
        if (same(got, expected, j, dtype)) continue;
        fprintf(stderr, "%s: dtype %d, isa %d, n_in %d, element %zu of %zu is %a, not %a\n", what, dtype, isa, n_in, j,
                count, get(got, j, dtype), get(expected, j, dtype));
        check_fail_red("wrong bytes");
    }
}

/* Integers small enough that every sum is exact, so that the expected value needs no order and no rounding. */
static void test_exact(int dtype, int isa) {
    static const int w[INPUTS] = {1, -2, 3, 5, -7, 1, 0, 4, -1};
    double in[INPUTS][ROOM], out[ROOM], w_double[INPUTS];
    const void *inputs[INPUTS];
    for (int i = 0; i < INPUTS; i++) {
        fill_integers(in[i], ROOM, dtype);
        inputs[i] = in[i];
        w_double[i] = w[i];
    }
    for (int n_in = 1; n_in <= INPUTS; n_in++) {
        for (size_t count = 0; count <= TAIL; count++) {
            for (size_t j = 0; j < ROOM; j++) set(out, j, dtype, 123456);
            CHECK_OK(hpc_fold(out, inputs, w_double, n_in, count, dtype, isa));
            for (size_t j = 0; j < ROOM; j++) {
                int64_t sum = 0;
                for (int i = 0; i < n_in; i++) sum += w[i] * (int64_t)get(in[i], j, dtype);
                CHECK_EQ(get(out, j, dtype), j < count ? sum : 123456);
            }
        }
    }
}

/* Every tail, with each array starting anywhere in a cache line, between guards that must stay as they were. */
static void test_bits(int dtype, int isa) {
    size_t element = size_of(dtype);
    _Alignas(64) double in[INPUTS][ROOM], out[ROOM], expected[ROOM];
    const void *inputs[INPUTS];
    for (int n_in = 1; n_in <= INPUTS; n_in++) {
        for (size_t count = 0; count <= TAIL; count++) {
            size_t start = GUARD + random_bits() % OFFSETS;
            char *at = (char *)out + start * element;
            for (int i = 0; i < n_in; i++) {
                fill(in[i], ROOM, dtype);
                inputs[i] = (char *)in[i] + random_bits() % OFFSETS * element;
            }
            fill(out, ROOM, dtype);
            memcpy(expected, out, sizeof out);
            reference((char *)expected + start * element, inputs, weights, n_in, count, dtype);
            CHECK_OK(hpc_fold(at, inputs, weights, n_in, count, dtype, isa));
            check_same(out, expected, ROOM, dtype, isa, n_in, "bits");
        }
    }
}

/* out is each of the inputs in turn, and then also the last one. */
static void test_in_place(int dtype, int isa) {
    double in[INPUTS][ROOM], expected[ROOM];
    const void *inputs[INPUTS];
    for (int n_in = 1; n_in <= INPUTS; n_in++) {
        for (int k = 0; k < n_in; k++) {
            for (int twice = 0; twice < 2; twice++) {
                for (int i = 0; i < n_in; i++) {
                    fill(in[i], ROOM, dtype);
                    inputs[i] = in[i];
                }
                if (twice) inputs[n_in - 1] = in[k];
                reference(expected, inputs, weights, n_in, ROOM, dtype);
                CHECK_OK(hpc_fold(in[k], inputs, weights, n_in, ROOM, dtype, isa));
                check_same(in[k], expected, ROOM, dtype, isa, n_in, "in place");
            }
        }
    }
}

/* Outputs too large for the last cache take another way to memory. */
static void test_large(int dtype, int isa) {
    enum { LARGE_INPUTS = 4, PERIOD = 4099 };
    size_t element = size_of(dtype), count = ((size_t)32 << 20) / element + 5;
    const void *inputs[LARGE_INPUTS], *first[LARGE_INPUTS];
    char *in[LARGE_INPUTS], *out = malloc((count + 1) * element), *expected = malloc(PERIOD * element);
    CHECK(out != NULL && expected != NULL);
    for (int i = 0; i < LARGE_INPUTS; i++) {
        in[i] = malloc(count * element);
        CHECK(in[i] != NULL);
        fill(in[i], PERIOD, dtype);
        for (size_t j = PERIOD; j < count; j += PERIOD)
            memcpy(in[i] + j * element, in[i], (count - j < PERIOD ? count - j : PERIOD) * element);
        first[i] = inputs[i] = in[i];
    }
    for (int n_in = 1; n_in <= LARGE_INPUTS; n_in++) {
        reference(expected, first, weights, n_in, PERIOD, dtype);
        for (int in_place = 0; in_place < 2; in_place++) {
            char *to = in_place ? in[0] : out + element;
            if (in_place && n_in < LARGE_INPUTS) continue;
            memset(out, 0x55, (count + 1) * element);
            CHECK_OK(hpc_fold(to, inputs, weights, n_in, count, dtype, isa));
            for (size_t j = 0; j < count; j += PERIOD) {
                size_t left = count - j < PERIOD ? count - j : PERIOD;
                check_same(to + j * element, expected, left, dtype, isa, n_in, "large");
            }
        }
    }
    for (int i = 0; i < LARGE_INPUTS; i++) free(in[i]);
    free(out);
    free(expected);
}

static void test_refusals(void) {
    float a[8] = {0}, b[8] = {0};
    const void *in[2] = {a, b}, *none[2] = {a, NULL};
    double w[2] = {1, 1};

    CHECK_OK(hpc_fold(NULL, NULL, NULL, 1, 0, HPC_F32, HPC_ISA_BEST));
    CHECK_STATUS(hpc_fold(b, in, w, 0, 8, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("n_in is 0");
    CHECK_STATUS(hpc_fold(b, in, w, -3, 0, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("n_in is -3");
    CHECK_STATUS(hpc_fold(b, in, w, 1 << 30, 8, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("n_in is 1073741824");
    CHECK_STATUS(hpc_fold(b, in, w, 2, SIZE_MAX / 2, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("count is 9223372036854775807");
    CHECK_STATUS(hpc_fold(b, in, w, 2, 8, 4, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("dtype is 4");
    CHECK_STATUS(hpc_fold(b, in, w, 2, 8, HPC_F32, 4), HPC_ERR_INVALID);
    CHECK_MESSAGE("isa is 4");
    CHECK_STATUS(hpc_fold(b, in, w, 2, 8, HPC_F32, -1), HPC_ERR_INVALID);
    CHECK_MESSAGE("isa is -1");
    CHECK_STATUS(hpc_fold(NULL, in, w, 2, 8, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("out is NULL");
    CHECK_STATUS(hpc_fold(b, NULL, w, 2, 8, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("in is NULL");
    CHECK_STATUS(hpc_fold(b, in, NULL, 2, 8, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("weights is NULL");
    CHECK_STATUS(hpc_fold(b, none, w, 2, 8, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("in[1] is NULL");

    const void *shifted[2] = {a, (char *)b + 2};
    CHECK_STATUS(hpc_fold(b, shifted, w, 2, 4, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("not a multiple of 4");
    CHECK_STATUS(hpc_fold((char *)b + 1, in, w, 1, 4, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("not a multiple of 4");

    /* Overlap on either side, by a single element; touching is none. */
    float c[12] = {0};
    const void *one[1] = {c + 4};
    CHECK_STATUS(hpc_fold(c + 1, one, w, 1, 4, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("overlaps out");
    CHECK_STATUS(hpc_fold(c + 7, one, w, 1, 4, HPC_F32, HPC_ISA_BEST), HPC_ERR_INVALID);
    CHECK_MESSAGE("overlaps out");
    CHECK_OK(hpc_fold(c, one, w, 1, 4, HPC_F32, HPC_ISA_BEST));
    CHECK_OK(hpc_fold(c + 8, one, w, 1, 4, HPC_F32, HPC_ISA_BEST));
    CHECK_OK(hpc_fold(c + 4, one, w, 1, 4, HPC_F32, HPC_ISA_BEST));
}

static void test_isa(void) {
    float a[4] = {1, 2, 3, 4};
    const void *in[1] = {a};
    double w[1] = {2};
    CHECK_EQ(hpc_isa_available(HPC_ISA_BEST), 1);
    CHECK_EQ(hpc_isa_available(HPC_ISA_GENERIC), 1);
    CHECK_EQ(hpc_isa_available(-1), 0);
    CHECK_EQ(hpc_isa_available(HPC_ISA_AVX512 + 1), 0);
    for (int isa = HPC_ISA_BEST; isa <= HPC_ISA_AVX512; isa++)
        CHECK_STATUS(hpc_fold(a, in, w, 1, 4, HPC_F32, isa), hpc_isa_available(isa) ? HPC_OK : HPC_ERR_UNSUPPORTED);
}

/* Many threads may make the first fold at once. */
static void *fold_in_thread(void *arg) {
    float a[64], b[64], out[64];
    const void *in[2] = {a, b};
    double w[2] = {0.5, 0.5};
    (void)arg;
    for (int j = 0; j < 64; j++) {
        a[j] = (float)j;
        b[j] = (float)(3 * j);
    }
    for (int round = 0; round < 1000; round++) {
        CHECK_OK(hpc_fold(out, in, w, 2, 64, HPC_F32, HPC_ISA_BEST));
        for (int j = 0; j < 64; j++) CHECK_EQ(out[j], 2 * j);
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) CHECK_EQ(pthread_create(&thread[i], NULL, fold_in_thread, NULL), 0);
    for (int i = 0; i < 4; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
}

int main(void) {
    test_threads();
    if (RANKS_TSAN) return 0; /* the rest has one thread */
    test_isa();
    test_refusals();
    for (int d = 0; d < 2; d++) {
        for (int isa = HPC_ISA_BEST; isa <= HPC_ISA_AVX512; isa++) {
            if (!hpc_isa_available(isa)) continue;
            test_exact(dtypes[d], isa);
            test_bits(dtypes[d], isa);
            test_in_place(dtypes[d], isa);
            test_large(dtypes[d], isa);
        }
    }
    return 0;
}
