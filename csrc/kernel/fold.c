#include "kernel/fold.h"
#include "base/host.h"
#include "base/isa.h"
#include "base/status.h"

#include <stdatomic.h>

enum { MAX_INPUTS = 1 << 16, MAX_UNSTREAMED = 32 << 20 };

const struct hpc_fold_kernels *hpc_fold_kernels_of(int isa) {
    static const struct hpc_fold_kernels *const tables[] =
        HPC_BY_ISA(&hpc_fold_generic, &hpc_fold_avx2, &hpc_fold_avx512);
    return tables[hpc_isa_resolve(isa)];
}

hpc_fold_fn *hpc_fold_of(const struct hpc_fold_kernels *kernels, int dtype) {
    switch (dtype) {
    case HPC_F64:
        return kernels->f64;
    case HPC_F16:
        return kernels->f16;
    case HPC_BF16:
        return kernels->bf16;
    default:
        return kernels->f32;
    }
}

/* Returns the size from which an output is streamed past the caches. Streaming saves reading cache lines that will be
 * overwritten, but the output's next reader then finds it only in memory. A fold of two inputs has three arrays, so all
 * three fit into the last-level cache if each has at most a third of its size. A very large cache also serves cores
 * of other processes, so the result has a maximum. */
size_t hpc_fold_stream_from(void) {
    static _Atomic size_t chosen;
    size_t nbytes = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (nbytes != 0) return nbytes;
    nbytes = hpc_host_cache("") / 3;
    if (nbytes > MAX_UNSTREAMED) nbytes = MAX_UNSTREAMED;
    atomic_store_explicit(&chosen, nbytes, memory_order_relaxed);
    return nbytes;
}

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y ? y - x < a_bytes : x - y < b_bytes;
}

int hpc_fold(void *out, const void *const *in, const double *weights, int n_in, size_t count, int dtype, int isa) {
    const char *op = "fold";
    size_t item = hpc_dtype_bytes(dtype), element = item == 2 ? sizeof(float) : item;
    if (item == 0)
        return hpc_fail(HPC_ERR_INVALID, op, "fold: dtype is %d, not 0 (f32), 1 (f64), 2 (f16) or 3 (bf16)", dtype);
    int status = hpc_isa_check(isa, op);
    if (status != HPC_OK) return status;
    if (n_in < 1 || n_in > MAX_INPUTS)
        return hpc_fail(HPC_ERR_INVALID, op, "fold: n_in is %d, not 1 to %d", n_in, MAX_INPUTS);
    if (count == 0) return HPC_OK;

    if (count > PTRDIFF_MAX / element)
        return hpc_fail(HPC_ERR_INVALID, op, "fold: count is %zu, more than any array can have", count);
    size_t nbytes = count * element;
    if (out == NULL || in == NULL || weights == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "fold: %s is NULL with a count of %zu",
                        out == NULL  ? "out"
                        : in == NULL ? "in"
                                     : "weights",
                        count);
    if ((uintptr_t)out % element != 0)
        return hpc_fail(HPC_ERR_INVALID, op, "fold: out is %p, not a multiple of %zu", out, element);
    int in_place = 0;
    for (int i = 0; i < n_in; i++) {
        if (in[i] == NULL) return hpc_fail(HPC_ERR_INVALID, op, "fold: in[%d] is NULL with a count of %zu", i, count);
        if ((uintptr_t)in[i] % item != 0)
            return hpc_fail(HPC_ERR_INVALID, op, "fold: in[%d] is %p, not a multiple of %zu", i, in[i], item);
        if (in[i] == out && item == element)
            in_place = 1;
        else if (overlap(in[i], count * item, out, nbytes))
            return hpc_fail(HPC_ERR_INVALID, op, "fold: in[%d] at %p overlaps out at %p within %zu bytes; they may %s",
                            i, in[i], out, nbytes,
                            item == element ? "be equal only" : "not overlap, as their types differ");
    }

    int stream = !in_place && nbytes >= hpc_fold_stream_from();
    hpc_fold_of(hpc_fold_kernels_of(isa), dtype)(out, in, weights, n_in, count, stream);
    return HPC_OK;
}

int hpc_encode(void *out, const float *in, size_t count, int dtype, int isa) {
    const char *op = "encode";
    if (dtype != HPC_F16 && dtype != HPC_BF16)
        return hpc_fail(HPC_ERR_INVALID, op, "encode: dtype is %d, not 2 (f16) or 3 (bf16)", dtype);
    int status = hpc_isa_check(isa, op);
    if (status != HPC_OK) return status;
    if (count == 0) return HPC_OK;
    if (count > PTRDIFF_MAX / sizeof *in)
        return hpc_fail(HPC_ERR_INVALID, op, "encode: count is %zu, more than any array can have", count);
    if (out == NULL || in == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "encode: %s is NULL with a count of %zu", out == NULL ? "out" : "in",
                        count);
    size_t item = hpc_dtype_bytes(dtype);
    if ((uintptr_t)out % item != 0)
        return hpc_fail(HPC_ERR_INVALID, op, "encode: out is %p, not a multiple of %zu", out, item);
    if ((uintptr_t)in % sizeof *in != 0)
        return hpc_fail(HPC_ERR_INVALID, op, "encode: in is %p, not a multiple of %zu", (const void *)in, sizeof *in);
    if (overlap(in, count * sizeof *in, out, count * item))
        return hpc_fail(HPC_ERR_INVALID, op, "encode: in at %p overlaps out at %p; they may not", (const void *)in,
                        out);
    hpc_fold_kernels_of(isa)->encode(out, in, count, dtype);
    return HPC_OK;
}
