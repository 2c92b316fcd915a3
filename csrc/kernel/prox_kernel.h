/* The built-in proxes, compiled for the instruction set of the file that includes this one after its lanes_*.h. The
 * compiler vectorizes their loops; sums are written with vectors. Every element or row sees the same operations in the
 * same order on all CPUs: there are SUMS partial sums, element i goes into number i % SUMS, and nothing is contracted
 * (-ffp-contract=off). A NaN stays NaN. args[1] is the step size t; the prox's own arguments begin at args[3]. */
#ifndef HPC_PROX_KERNEL_H
#define HPC_PROX_KERNEL_H

#include "kernel/rule.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { SUMS = 16 };

/* ---- element by element ---- */

/* Returns x - t, x + t or 0 (soft threshold). */
INLINE float soft(float x, float t) {
    float most = x > t ? t : x;
    return x - (most < -t ? -t : most);
}

INLINE int shrink(float *x, int64_t n, double by) {
    const float t = (float)by;
    if (!(by >= 0)) return HPC_ERR_INVALID;
    for (int64_t i = 0; i < n; i++) x[i] = soft(x[i], t);
    return HPC_OK;
}

INLINE int divide(float *x, int64_t n, double by) {
    const float d = (float)by;
    if (!(by > 0)) return HPC_ERR_INVALID;
    for (int64_t i = 0; i < n; i++) x[i] /= d;
    return HPC_OK;
}

INLINE int shrink_and_divide(float *x, int64_t n, double by, double divisor) {
    const float t = (float)by, d = (float)divisor;
    if (!(by >= 0 && divisor > 0)) return HPC_ERR_INVALID;
    for (int64_t i = 0; i < n; i++) x[i] = soft(x[i], t) / d;
    return HPC_OK;
}

static int l1(float *param, int64_t rows, int64_t columns, const double *args) {
    return shrink(param, rows * columns, args[1] * args[3]);
}

static int l2(float *param, int64_t rows, int64_t columns, const double *args) {
    return divide(param, rows * columns, 1 + args[1] * args[3]);
}

static int elastic_net(float *param, int64_t rows, int64_t columns, const double *args) {
    return shrink_and_divide(param, rows * columns, args[1] * args[3], 1 + args[1] * args[4]);
}

static int dual_l2(float *param, int64_t rows, int64_t columns, const double *args) {
    return divide(param, rows * columns, args[3]);
}

static int dual_elastic_net(float *param, int64_t rows, int64_t columns, const double *args) {
    return shrink_and_divide(param, rows * columns, args[3], args[4]);
}

/* ---- row by row ---- */

typedef double doubles __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t integers __attribute__((vector_size(VECTOR_BYTES)));
typedef float floats __attribute__((vector_size(VECTOR_BYTES / 2)));

enum { LANES = VECTOR_BYTES / sizeof(double), PARTS = SUMS / LANES };

/* Loads LANES elements, from i + part * LANES on. */
INLINE doubles load(const float *x, int64_t i, int part) {
    floats values;
    memcpy(&values, x + i + part * LANES, sizeof values);
    return __builtin_convertvector(values, doubles);
}

INLINE double total(double *sums) {
    for (int half = SUMS / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) sums[k] += sums[k + half];
    return sums[0];
}

INLINE double squares(const float *x, int64_t n) {
    doubles parts[PARTS] = {0};
    double sums[SUMS];
    int64_t i = 0;
    for (; n - i >= SUMS; i += SUMS)
        for (int p = 0; p < PARTS; p++) {
            const doubles some = load(x, i, p);
            parts[p] += some * some;
        }
    memcpy(sums, parts, sizeof sums);
    for (int k = 0; i + k < n; k++) sums[k] += (double)x[i + k] * (double)x[i + k];
    return total(sums);
}

/* Scales each row that lies outside the ball onto it. */
static int l2_ball(float *param, int64_t rows, int64_t columns, const double *args) {
    const double radius = args[3];
    if (!(radius >= 0)) return HPC_ERR_INVALID;
    for (float *x = param; rows > 0; rows--, x += columns) {
        const double norm = squares(x, columns);
        if (norm <= radius * radius) continue;
        const double scale = radius / sqrt(norm);
        for (int64_t i = 0; i < columns; i++) x[i] = (float)((double)x[i] * scale);
    }
    return HPC_OK;
}

INLINE float largest(const float *x, int64_t n) {
    float found[SUMS];
    for (int k = 0; k < SUMS; k++) found[k] = x[0];
    int64_t i = 0;
    for (; n - i >= SUMS; i += SUMS)
        for (int k = 0; k < SUMS; k++) found[k] = x[i + k] > found[k] ? x[i + k] : found[k];
    for (int k = 0; i + k < n; k++) found[k] = x[i + k] > found[k] ? x[i + k] : found[k];
    for (int k = 1; k < SUMS; k++) found[0] = found[k] > found[0] ? found[k] : found[0];
    return found[0];
}

/* Returns the sum of the values x[i] - top that are above theta; *number gets the number of these values. */
INLINE double sum_above(const float *x, int64_t n, double top, double theta, double *number) {
    doubles parts[PARTS] = {0};
    integers counts[PARTS] = {0};
    double sums[SUMS];
    int64_t i = 0, count = 0;
    for (; n - i >= SUMS; i += SUMS)
        for (int p = 0; p < PARTS; p++) {
            const doubles some = load(x, i, p) - top;
            const integers above = some > theta; /* -1 if above; 0 if not, or if NaN */
            parts[p] += (doubles)((integers)some & above);
            counts[p] -= above;
        }
    memcpy(sums, parts, sizeof sums);
    for (int p = 0; p < PARTS; p++)
        for (int k = 0; k < LANES; k++) count += counts[p][k];
    for (int k = 0; i + k < n; k++) {
        const double one = (double)x[i + k] - top;
        if (!(one > theta)) continue;
        sums[k] += one;
        count++;
    }
    *number = (double)count;
    return total(sums);
}

/* Projects each row onto the simplex: x becomes max(0, x - theta), with theta such that the sum is 1. Newton's method
 * finds theta, from a value that is too low: theta only rises, and the method ends when the same values are above it
 * (Michelot; Condat, section 3). The row is not copied. Values are taken relative to the largest one, so that large
 * values lose no digits. */
static int simplex(float *param, int64_t rows, int64_t columns, const double *args) {
    (void)args;
    for (float *x = param; rows > 0; rows--, x += columns) {
        const double top = largest(x, columns);
        double theta = -1, number;
        for (;;) {
            const double sum = sum_above(x, columns, top, theta, &number), next = (sum - 1) / number;
            if (!(next > theta)) break; /* NaN too */
            theta = next;
        }
        for (int64_t i = 0; i < columns; i++) {
            const double above = (double)x[i] - top - theta;
            x[i] = (float)(above < 0 ? 0 : above);
        }
    }
    return HPC_OK;
}

static const hpc_builtin_prox proxes[] = {
    // clang-format off
    {"l1", l1},
    {"l2", l2},
    {"elastic_net", elastic_net},
    {"l2_ball", l2_ball},
    {"simplex", simplex},
    {"dual_l2", dual_l2},
    {"dual_elastic_net", dual_elastic_net},
    {NULL, NULL},
    // clang-format on
};

#endif
