/* Factors: pieces of pairs of vectors, and what is made of them. All instruction sets have the bits of plain loops, for
 * dense and sparse vectors, in one pass or a part at a time, and what is no piece is refused. */
#include <math.h>

#include "check.h"
#include "codec/factors.h"
#include "codec/factors_read.h"
#include "kernel/half.h"
#include "base/isa.h"

enum { HEAD = sizeof(hpc_piece_head), INPUTS = 5 };

static uint64_t random_state = 1;

static uint32_t random_word(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static const int formats[] = {HPC_F32, HPC_F16, HPC_BF16};
static const int isas[] = {HPC_ISA_GENERIC, HPC_ISA_AVX2, HPC_ISA_AVX512};

/* Memory of its own, so that ASan sees every byte that is touched behind it. */
static void *room_of(size_t nbytes) {
    void *room = calloc(1, nbytes > 0 ? nbytes : 1);
    CHECK(room != NULL);
    return room;
}

static void *copy_of(const void *from, size_t nbytes) {
    return memcpy(room_of(nbytes), from, nbytes);
}

/* ---- plain loops ---------------------------------------------------------------------------------------------------
 */

static float through(float x, int values) {
    return values == HPC_F32 ? x : values == HPC_F16 ? hpc_from_f16(hpc_to_f16(x)) : hpc_from_bf16(hpc_to_bf16(x));
}

static void add_plainly(const hpc_codec_config *c, const hpc_factors *f, int values, uint64_t row, uint64_t rows,
                        double weight, float *sum) {
    for (int k = 0; k < *f->count; k++)
        for (uint64_t j = 0; j < rows; j++) {
            const float u = through(f->u[(uint64_t)k * c->rows + row + j], values), wu = (float)(weight * (double)u);
            for (uint64_t d = 0; d < c->columns; d++) {
                float *to = &sum[j * c->columns + d];
                *to = fmaf(wu, through(f->v[(uint64_t)k * c->columns + d], values), *to);
            }
        }
}

/* What a piece of an update adds, with all that is rounded on its way. */
static void add_sent(const hpc_codec_config *c, const hpc_factors *f, int form, uint64_t row, uint64_t rows,
                     double weight, float *sum) {
    const uint64_t n = rows * c->columns;
    if (form != HPC_PIECE_DENSE) {
        add_plainly(c, f, c->values, row, rows, weight, sum);
        return;
    }
    float *dense = room_of(n * sizeof *dense);
    add_plainly(c, f, HPC_F32, row, rows, 1, dense);
    for (uint64_t i = 0; i < n; i++) {
        const float product = (float)weight * through(dense[i], c->values);
        sum[i] += product;
    }
    free(dense);
}

/* ---- updates -------------------------------------------------------------------------------------------------------
 */

static hpc_codec_config config_of(uint64_t rows, uint64_t columns, int pairs, int values) {
    hpc_codec_config c;
    hpc_codec_config_init(&c);
    c.rows = rows, c.columns = columns, c.unit = rows * columns, c.pairs = pairs, c.values = values;
    CHECK(hpc_codec_check(&hpc_codec_factors, &c) == NULL);
    return c;
}

static void fill(float *vector, uint64_t n, uint32_t one_in) {
    for (uint64_t i = 0; i < n; i++) vector[i] = 0;
    if (one_in <= 1)
        for (uint64_t i = 0; i < n; i++) vector[i] = (float)(int)(random_word() % 2000) / 64 - 15;
    else
        for (uint64_t i = random_word() % one_in; i < n; i += 1 + random_word() % (2 * one_in - 1))
            vector[i] = (float)(int)(random_word() % 2000) / 64 + 1;
}

/* Of how many elements of a sparse vector one is a value: few have many, as behind rectified units. */
static uint32_t sparse_at_random(int thick) {
    return (thick ? 2 : 7) + random_word() % (thick ? 3 : 40);
}

/* ways: 0 dense; 1, 2: sparse u, v; 3: both; 4: any; and 4 more: half full, a third, a quarter */
static hpc_factors update_of(const hpc_codec_config *c, int count, int way) {
    hpc_factors f = hpc_factors_at(c, room_of(hpc_factors_bytes(c)));
    *f.count = count;
    for (int k = 0; k < count; k++) {
        const int any = way % 4 == 0 && way > 0, its = any ? (int)(random_word() % 4) : way % 4;
        fill(f.u + (uint64_t)k * c->rows, c->rows, its & 1 ? sparse_at_random(way > 4) : 1);
        fill(f.v + (uint64_t)k * c->columns, c->columns, its & 2 ? sparse_at_random(way > 4) : 1);
    }
    return f;
}

/* The fewest bytes behind the head, by definition. */
static uint64_t fewest(const hpc_codec_config *c, const hpc_factors *f, uint64_t row, uint64_t rows) {
    const uint64_t item = hpc_dtype_bytes(c->values), count = (uint64_t)*f->count;
    uint64_t sparse = 8 * count, dense = count * (rows + c->columns) * item, all = rows * c->columns * item;
    for (uint64_t k = 0; k < count; k++)
        for (int which = 0; which < 2; which++) {
            const float *vector = which ? f->v + k * c->columns : f->u + k * c->rows + row;
            const uint64_t length = which ? c->columns : rows, index = length > 65536 ? 4 : 2;
            uint64_t some = 0;
            for (uint64_t i = 0; i < length; i++) some += vector[i] != 0;
            const uint64_t by_index = (some * index + 3) / 4 * 4 + (some * item + 3) / 4 * 4;
            const uint64_t by_all = (length * item + 3) / 4 * 4;
            sparse += by_index < by_all ? by_index : by_all;
        }
    const uint64_t pairs = sparse < dense ? sparse : dense;
    return pairs < all ? pairs : all;
}

/* The piece of some rows, in memory of its very length. */
static hpc_codec_input piece_of(const hpc_codec_config *c, const hpc_factors *f, uint64_t row, uint64_t rows,
                                double weight, int isa) {
    const uint64_t n = rows * c->columns;
    const size_t cap = hpc_codec_factors.max_bytes(c, n), item = hpc_dtype_bytes(c->values);
    const uint64_t pairs = (uint64_t)c->pairs * (rows + c->columns);
    CHECK_EQ(cap, HEAD + (pairs < n ? pairs : n) * item);
    char *out = room_of(cap);
    int64_t kept = -1;
    const hpc_codec_source source = {f->count, row * c->columns};
    const int64_t nbytes = hpc_factors_encode(c, &source, (int64_t)n, out, (int64_t)cap, &kept, isa);
    CHECK(nbytes >= HEAD && (size_t)nbytes <= cap);
    CHECK_EQ(nbytes, HEAD + fewest(c, f, row, rows));
    CHECK_EQ(kept, n);
    CHECK_EQ(hpc_codec_factors.length(c, out, n), nbytes);
    CHECK(hpc_factors_encode(c, &source, (int64_t)n, out, (int64_t)cap - 1, &kept, isa) < 0);
    void *piece = copy_of(out, (size_t)nbytes);
    free(out);
    return (hpc_codec_input){piece, nbytes, weight};
}

static int form_of(const hpc_codec_input *in) {
    return ((const hpc_piece_head *)in->piece)->form;
}

static void free_input(const hpc_codec_input *in) {
    free((void *)(uintptr_t)in->piece);
}

static int same(const float *a, const float *b, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
            fprintf(stderr, "element %llu: %a, not %a\n", (unsigned long long)i, (double)a[i], (double)b[i]);
            return 0;
        }
    return 1;
}

/* ---- the same bits -------------------------------------------------------------------------------------------------
 */

typedef struct shape {
    uint64_t rows, columns;
    int pairs, n; /* n: inputs */
} shape;

static const double weights[INPUTS] = {1, 0.3, 1. / 7, 2.5, -1};

static void check_shape(const shape *s, int way, int values, int isa) {
    const hpc_codec_config c = config_of(s->rows, s->columns, s->pairs, values);
    const uint64_t n = s->rows * s->columns;
    const double rate = 0.37;
    float *expected = room_of(n * 4), *sum = room_of(n * 4), *param = room_of(n * 4), *by_rule = room_of(n * 4);
    hpc_codec_input inputs[INPUTS];
    hpc_rule rule;
    int wrong = -1;
    for (int i = 0; i < s->n; i++) {
        const hpc_factors f = update_of(&c, i == 3 ? 0 : s->pairs - i % 2, way);
        inputs[i] = piece_of(&c, &f, 0, s->rows, weights[i], isa);
        if (hpc_codec_factors.is_finite != NULL)
            CHECK(hpc_codec_factors.is_finite(&c, &(hpc_codec_source){f.count, 0}, n));
        add_sent(&c, &f, form_of(&inputs[i]), 0, s->rows, weights[i], expected);
        CHECK_EQ(hpc_factors_add(&c, sum, (int64_t)n, inputs[i].piece, inputs[i].nbytes, weights[i], isa), 0);
        CHECK(same(sum, expected, n));
        free(f.count);
    }
    for (uint64_t i = 0; i < n; i++) param[i] = by_rule[i] = (float)(int)(random_word() % 1000) / 128 - 3;
    if (n > 2) param[0] = by_rule[0] = 0, param[1] = by_rule[1] = -0.0f;
    CHECK_OK(hpc_rule_find("sgd", HPC_ISA_GENERIC, &rule));
    rule.args[1] = rate;
    CHECK_EQ(rule.apply(by_rule, expected, 1, NULL, rule.args, (int64_t)n), 0);
    CHECK_EQ(hpc_factors_add_all(&c, param, (int64_t)n, inputs, s->n, rate, &wrong, isa), 0);
    CHECK(same(param, by_rule, n));

    memset(sum, 0, n * 4);
    CHECK_EQ(hpc_codec_factors.check_all(&c, (int64_t)n, inputs, s->n, &wrong), 0);
    for (uint64_t from = 0, some; from < n; from += some) {
        some = 1 + random_word() % n;
        if (some > n - from) some = n - from;
        float *part = room_of(some * 4);
        hpc_factors_add_range(&c, (int64_t)n, inputs, s->n, from, some, part, isa);
        memcpy(sum + from, part, some * 4);
        free(part);
    }
    CHECK(same(sum, expected, n));

    double squares = 0, told = -1;
    int some_array = 0;
    for (uint64_t i = 0; i < n; i++) squares += (double)expected[i] * (double)expected[i];
    for (int i = 0; i < s->n; i++) some_array |= form_of(&inputs[i]) == HPC_PIECE_DENSE;
    CHECK_EQ(hpc_codec_factors.squares(&c, (int64_t)n, inputs, s->n, &told), !some_array);
    if (!some_array) CHECK(fabs(told - squares) <= 1e-4 * squares + 1e-9);

    for (int i = 0; i < s->n; i++) free_input(&inputs[i]);
    free(expected), free(sum), free(param), free(by_rule);
}

/* One case of so many: sanitized loops take many times as long. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ONE_OF = 4 };
#else
enum { ONE_OF = 1 };
#endif

static void test_bits(int isa) {
    static const shape shapes[] = {
        {1, 1, 1, 1},     {1, 100, 3, 2},    {100, 1, 3, 2},   {5, 7, 2, 3},      {6, 16, 4, 5},   {13, 33, 4, 5},
        {97, 130, 9, 5},  {64, 64, 16, 4},   {200, 50, 11, 3}, {7, 1100, 5, 3},   {1100, 7, 5, 3}, {33, 257, 40, 5},
        {150, 90, 27, 2}, {101, 190, 60, 5}, {40, 600, 2, 1},  {65, 150, 130, 4}, {65, 70, 70, 2}, {3, 9000, 2, 3}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int way = 0; way <= 8; way++) {
            const int values = formats[(s + (size_t)way) % 3];
            if ((s + (size_t)way) % ONE_OF != 0) continue;
            if (shapes[s].rows * shapes[s].columns > 20000 && (s + (size_t)way) % 2 && isa != HPC_ISA_AVX2) continue;
            check_shape(&shapes[s], way, HPC_F32, isa);
            if (values != HPC_F32) check_shape(&shapes[s], way, values, isa);
        }
}

/* Vectors that need indices of four bytes. */
static void test_long(int isa) {
    static const shape tall = {70000, 3, 2, 2}, wide = {3, 70000, 2, 2};
    for (int way = 1; way <= 3; way += ONE_OF) {
        check_shape(&tall, way, HPC_F16, isa);
        check_shape(&wide, way, HPC_F32, isa);
    }
}

/* ---- parts ---------------------------------------------------------------------------------------------------------
 */

/* The pieces of some rows add up to the piece of all. */
static void test_units(void) {
    hpc_codec_config c = config_of(12, 19, 3, HPC_F32);
    c.unit = 4 * 19;
    for (int way = 0; way <= 8; way++) {
        const hpc_factors f = update_of(&c, 3, way);
        float *expected = room_of(12 * 19 * 4), *sum = room_of(12 * 19 * 4);
        for (uint64_t row = 0, rows = 4; row < 12; row += rows, rows = 8) {
            const hpc_codec_input in = piece_of(&c, &f, row, rows, 0.5, HPC_ISA_BEST);
            add_sent(&c, &f, form_of(&in), row, rows, 0.5, expected + row * 19);
            CHECK_EQ(hpc_codec_factors.decode_add(&c, sum + row * 19, (int64_t)rows * 19, in.piece, in.nbytes, 0.5), 0);
            free_input(&in);
        }
        CHECK(same(sum, expected, 12 * 19));
        free(expected), free(sum), free(f.count);
    }
}

/* Each form is met, and an empty update is a head. */
static void test_forms(void) {
    static const int expected[] = {HPC_PIECE_FACTORS, HPC_PIECE_SPARSE, HPC_PIECE_SPARSE, HPC_PIECE_SPARSE};
    const hpc_codec_config c = config_of(100, 90, 4, HPC_F32), full = config_of(5, 6, 40, HPC_F32);
    for (int way = 0; way < 4; way++) {
        const hpc_factors f = update_of(&c, 4, way);
        const hpc_codec_input in = piece_of(&c, &f, 0, 100, 1, HPC_ISA_BEST);
        CHECK_EQ(form_of(&in), expected[way]);
        free_input(&in), free(f.count);
    }
    hpc_factors f = update_of(&full, 40, 0);
    hpc_codec_input in = piece_of(&full, &f, 0, 5, 1, HPC_ISA_BEST);
    CHECK_EQ(form_of(&in), HPC_PIECE_DENSE);
    free_input(&in);
    *f.count = 0;
    in = piece_of(&full, &f, 0, 5, 1, HPC_ISA_BEST);
    CHECK_EQ(in.nbytes, HEAD);
    float sum[30] = {3};
    CHECK_EQ(hpc_codec_factors.decode_add(&full, sum, 30, in.piece, in.nbytes, 1), 0);
    CHECK(sum[0] == 3 && sum[29] == 0);
    char nothing[HEAD];
    hpc_codec_factors.encode_nothing(&full, 30, nothing);
    CHECK(memcmp(nothing, in.piece, HEAD) == 0);
    free_input(&in), free(f.count);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------
 */

static const hpc_codec_config *refusing;
static int64_t refusing_n;

/* A piece is refused by all that read it, with the same answer (status; ANY), and nothing is written. */
enum { ANY = 1 };

static void refused(const void *piece, int64_t nbytes, int status) {
    void *copy = copy_of(piece, (size_t)nbytes);
    float *acc = room_of((size_t)refusing_n * 4);
    const hpc_codec_input in = {copy, nbytes, 1};
    int wrong = -1;
    const int answer = hpc_codec_factors.decode_add(refusing, acc, refusing_n, copy, nbytes, 1);
    CHECK(answer < 0);
    if (status == ANY) status = answer;
    CHECK_EQ(answer, status);
    CHECK_EQ(hpc_codec_factors.add_all(refusing, acc, refusing_n, &in, 1, 1, &wrong), status);
    CHECK_EQ(wrong, 0);
    CHECK_EQ(hpc_codec_factors.check_all(refusing, refusing_n, &in, 1, &wrong), status);
    CHECK(strlen(hpc_codec_factors.text(status)) > 10);
    for (int64_t i = 0; i < refusing_n; i++) CHECK(acc[i] == 0);
    free(acc), free(copy);
}

static void refused_with(const hpc_codec_input *in, size_t at, uint32_t value, size_t width, int status) {
    char *copy = copy_of(in->piece, (size_t)in->nbytes);
    memcpy(copy + at, &value, width);
    refused(copy, in->nbytes, status);
    free(copy);
}

static void test_refusals(void) {
    const hpc_codec_config c = config_of(100, 90, 3, HPC_F32);
    refusing = &c, refusing_n = 9000;
    for (int way = 0; way < 4; way++) {
        const hpc_factors f = update_of(&c, 3, way);
        if (way == 3) f.v[5] = f.v[50] = 1; /* two entries at least */
        const hpc_codec_input in = piece_of(&c, &f, 0, 100, 1, HPC_ISA_BEST);
        const uint32_t nbytes = (uint32_t)in.nbytes;
        CHECK(hpc_codec_factors.decode_add(&c, NULL, 8999, in.piece, in.nbytes, 1) != 0);
        CHECK(hpc_codec_factors.decode_add(&c, NULL, -90, in.piece, in.nbytes, 1) != 0);
        CHECK(hpc_piece_decode_add(NULL, NULL, 9000, in.piece, in.nbytes, 1) == HPC_PIECE_BAD_HEAD);
        for (int64_t cut = 0; cut < in.nbytes; cut += cut < 64 ? 1 : 97) refused(in.piece, cut, HPC_PIECE_BAD_LENGTH);
        refused_with(&in, 0, nbytes - 4, 4, HPC_PIECE_BAD_LENGTH);
        refused_with(&in, 4, HPC_PIECE_BITS, 1, ANY);
        refused_with(&in, 4, HPC_PIECE_FORMS, 1, HPC_PIECE_BAD_HEAD);
        refused_with(&in, 5, HPC_BF16, 1, HPC_PIECE_BAD_HEAD);
        refused_with(&in, 6, 1, 2, HPC_PIECE_BAD_HEAD);
        refused_with(&in, 8, 9090, 4, HPC_PIECE_BAD_HEAD);
        refused_with(&in, 12, 4, 4, HPC_PIECE_BAD_COUNT);
        refused_with(&in, 12, UINT32_MAX, 4, HPC_PIECE_BAD_COUNT);
        if (way != 1) refused_with(&in, 12, 2, 4, ANY); /* there the rest may be a piece of two */
        if (way > 0) {
            const size_t table = HEAD;
            for (size_t k = 0; k < 6; k++) {
                refused_with(&in, table + 4 * k, 101, 4, HPC_PIECE_BAD_COUNT);
                refused_with(&in, table + 4 * k, UINT32_MAX - 1, 4, HPC_PIECE_BAD_COUNT);
                uint32_t entries;
                memcpy(&entries, (const char *)in.piece + table + 4 * k, 4);
                if (entries == HPC_FACTOR_DENSE || entries < 2) continue;
                char *copy = copy_of(in.piece, nbytes);
                entries -= 2;
                memcpy(copy + table + 4 * k, &entries, 4);
                refused(copy, in.nbytes, ANY);
                free(copy);
            }
        }
        if (way == 3) { /* the indices of the first v come first */
            uint16_t first;
            memcpy(&first, (const char *)in.piece + HEAD + 24 + 2, sizeof first);
            refused_with(&in, HEAD + 24, first, 2, HPC_PIECE_BAD_INDEX); /* twice */
            refused_with(&in, HEAD + 24, 90, 2, HPC_PIECE_BAD_INDEX);
            refused_with(&in, HEAD + 24, 65535, 2, HPC_PIECE_BAD_INDEX);
        }
        free_input(&in), free(f.count);
    }
    /* A sum where the pairs take less. */
    char *dense = room_of(HEAD + 36000);
    CHECK_EQ(hpc_piece_finish(dense, HPC_PIECE_DENSE, HPC_F32, 9000, 9000, 36000), HEAD + 36000);
    refused(dense, HEAD + 36000, HPC_PIECE_BAD_LENGTH);
    free(dense);
}

static void test_wrong_updates(void) {
    const hpc_codec_config c = config_of(6, 5, 3, HPC_F32);
    const hpc_factors f = update_of(&c, 3, 0);
    char out[1000];
    int64_t kept;
    hpc_codec_source source = {f.count, 0};
    CHECK(hpc_codec_factors.is_finite(&c, &source, 30));
    f.u[17] = NAN;
    CHECK(!hpc_codec_factors.is_finite(&c, &source, 30));
    f.u[17] = 1, f.v[14] = INFINITY;
    CHECK(!hpc_codec_factors.is_finite(&c, &source, 30));
    *f.count = 2; /* of which it is none */
    CHECK(hpc_codec_factors.is_finite(&c, &source, 30));
    *f.count = 4;
    CHECK_EQ(hpc_factors_encode(&c, &source, 30, out, sizeof out, &kept, 0), HPC_PIECE_BAD_ARGS);
    *f.count = -1;
    CHECK_EQ(hpc_factors_encode(&c, &source, 30, out, sizeof out, &kept, 0), HPC_PIECE_BAD_ARGS);
    *f.count = 1;
    CHECK_EQ(hpc_factors_encode(&c, &source, 29, out, sizeof out, &kept, 0), HPC_PIECE_BAD_ARGS);
    source.from = 4;
    CHECK_EQ(hpc_factors_encode(&c, &source, 5, out, sizeof out, &kept, 0), HPC_PIECE_BAD_ARGS);
    source.from = 5;
    CHECK_EQ(hpc_factors_encode(&c, &source, 30, out, sizeof out, &kept, 0), HPC_PIECE_BAD_ARGS);
    free(f.count);
}

static void test_checks(void) {
    static const struct {
        size_t at;
        uint64_t value;
        const char *says;
    } cases[] = {{offsetof(hpc_codec_config, rows), 0, "rows"},
                 {offsetof(hpc_codec_config, columns), (uint64_t)1 << 30, "2^29"},
                 {offsetof(hpc_codec_config, unit), 7, "unit"},
                 {offsetof(hpc_codec_config, unit), 0, "unit"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hpc_codec_config c = config_of(6, 5, 3, HPC_F32);
        memcpy((char *)&c + cases[i].at, &cases[i].value, sizeof cases[i].value);
        CHECK(strstr(hpc_codec_check(&hpc_codec_factors, &c), cases[i].says) != NULL);
    }
    hpc_codec_config c = config_of(6, 5, 3, HPC_F32);
    c.pairs = 0;
    CHECK(strstr(hpc_codec_check(&hpc_codec_factors, &c), "pairs") != NULL);
    c.pairs = 1, c.values = HPC_F64;
    CHECK(strstr(hpc_codec_check(&hpc_codec_factors, &c), "values") != NULL);
}

int main(void) {
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!hpc_isa_available(isas[i])) continue;
        test_bits(isas[i]);
        test_long(isas[i]);
    }
    test_units();
    test_forms();
    test_refusals();
    test_wrong_updates();
    test_checks();
    return 0;
}
