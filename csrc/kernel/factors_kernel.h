/* The products of pairs, written once. */
#include "kernel/half.h"

#include <string.h>

static inline float value_at(const void *values, size_t i, int dtype) {
    if (dtype == HPC_F32) {
        float x;
        memcpy(&x, (const char *)values + i * sizeof x, sizeof x);
        return x;
    }
    uint16_t half;
    memcpy(&half, (const char *)values + i * sizeof half, sizeof half);
    return dtype == HPC_F16 ? hpc_from_f16(half) : hpc_from_bf16(half);
}

/* The place of entry i: read once, as its memory may change. */
static inline uint32_t index_at(const hpc_factor *f, size_t i, int wide) {
    if (f->indices == NULL) return (uint32_t)i;
    return wide ? ((const volatile uint32_t *)f->indices)[i] : ((const volatile uint16_t *)f->indices)[i];
}

static void add_row(const hpc_factor_part *p, float *to, float wu, const hpc_factor *v) {
    for (uint32_t k = 0; k < v->n; k++) {
        const uint32_t d = index_at(v, k, p->wide_columns) - p->column;
        if (d < p->columns) to[d] += wu * value_at(v->values, k, p->values);
    }
}

static void add(const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n) {
    for (size_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < pairs[k].u.n; i++) {
            const uint32_t j = index_at(&pairs[k].u, i, p->wide_rows) - p->row;
            if (j >= p->rows) continue;
            add_row(p, p->to + j * p->stride,
                    (float)(pairs[k].weight * (double)value_at(pairs[k].u.values, i, p->values)), &pairs[k].v);
        }
}

static void take(const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n, float rate) {
    (void)p, (void)pairs, (void)n, (void)rate;
}

static int can_take(const hpc_factor_pair *pairs, size_t n) {
    (void)pairs, (void)n;
    return 0;
}

static void take_sum(const hpc_factor_part *p, const float *sum, size_t stride, float rate) {
    for (uint32_t j = 0; j < p->rows; j++)
        for (uint32_t d = 0; d < p->columns; d++) p->to[j * p->stride + d] -= rate * sum[j * stride + d];
}

static size_t count(const float *values, size_t n) {
    size_t some = 0;
    for (size_t i = 0; i < n; i++) some += values[i] != 0;
    return some;
}

static double dot(const hpc_factor *a, const hpc_factor *b, size_t n, int values, int wide) {
    double sum = 0;
    uint32_t i = 0, j = 0;
    (void)n;
    while (i < a->n && j < b->n) {
        const uint32_t x = index_at(a, i, wide), y = index_at(b, j, wide);
        if (x == y) sum += (double)value_at(a->values, i, values) * (double)value_at(b->values, j, values);
        i += x <= y;
        j += y <= x;
    }
    return sum;
}
