#include "reduce.h"
#include "host.h"
#include "status.h"

#include <stdatomic.h>

enum { MAX_INPUTS = 1 << 16, MAX_UNSTREAMED = 32 << 20 };

int hpc_isa_available(int isa) {
    switch (isa) {
    case HPC_ISA_BEST:
    case HPC_ISA_GENERIC:
        return 1;
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return __builtin_cpu_supports("avx2") != 0;
    case HPC_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") != 0;
#endif
    default:
        return 0;
    }
}

static const struct hpc_fold_kernels *kernels_of(int isa) {
    switch (isa) {
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return &hpc_fold_avx2;
    case HPC_ISA_AVX512:
        return &hpc_fold_avx512;
#endif
    default:
        return &hpc_fold_generic;
    }
}

/* Chosen at the first fold. Relaxed suffices: every thread would choose the same, and the tables are constant. */
static const struct hpc_fold_kernels *best_kernels(void) {
    static _Atomic(const struct hpc_fold_kernels *) chosen;
    const struct hpc_fold_kernels *kernels = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (kernels != NULL) return kernels;
    int isa = HPC_ISA_AVX512;
    while (!hpc_isa_available(isa)) isa--;
    kernels = kernels_of(isa);
    atomic_store_explicit(&chosen, kernels, memory_order_relaxed);
    return kernels;
}

/* The size from which an output is streamed past the caches: it saves reading the lines that will be overwritten, but
 * whoever reads the output next finds it in memory only. With two inputs, a third of the last cache is where not all
 * three fit any more. A very large cache serves more cores than ours. */
static size_t stream_from(void) {
    static _Atomic size_t chosen;
    size_t nbytes = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (nbytes != 0) return nbytes;
    nbytes = hpc_host_cache("") / 3;
    if (nbytes > MAX_UNSTREAMED) nbytes = MAX_UNSTREAMED;
    atomic_store_explicit(&chosen, nbytes, memory_order_relaxed);
    return nbytes;
}

static int overlap(const void *a, const void *b, size_t nbytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y ? y - x < nbytes : x - y < nbytes;
}

int hpc_fold(void *out, const void *const *in, const double *weights, int n_in, size_t count, int dtype, int isa) {
    if (dtype != HPC_F32 && dtype != HPC_F64)
        return hpc_fail(HPC_ERR_INVALID, "fold", "fold: dtype is %d, not 0 (f32) or 1 (f64)", dtype);
    if (isa < HPC_ISA_BEST || isa > HPC_ISA_AVX512)
        return hpc_fail(HPC_ERR_INVALID, "fold", "fold: isa is %d, not one of 0 (best) to %d", isa, HPC_ISA_AVX512);
    if (!hpc_isa_available(isa))
        return hpc_fail(HPC_ERR_UNSUPPORTED, "fold", "fold: this CPU lacks %s; use isa 0 (best)",
                        isa == HPC_ISA_AVX512 ? "AVX-512F" : "AVX2");
    if (n_in < 1 || n_in > MAX_INPUTS)
        return hpc_fail(HPC_ERR_INVALID, "fold", "fold: n_in is %d, not 1 to %d", n_in, MAX_INPUTS);
    if (count == 0) return HPC_OK;

    size_t element = dtype == HPC_F32 ? sizeof(float) : sizeof(double);
    if (count > PTRDIFF_MAX / element)
        return hpc_fail(HPC_ERR_INVALID, "fold", "fold: count is %zu, more than any array can have", count);
    size_t nbytes = count * element;
    if (out == NULL || in == NULL || weights == NULL)
        return hpc_fail(HPC_ERR_INVALID, "fold", "fold: %s is NULL with a count of %zu",
                        out == NULL  ? "out"
                        : in == NULL ? "in"
                                     : "weights",
                        count);
    if ((uintptr_t)out % element != 0)
        return hpc_fail(HPC_ERR_INVALID, "fold", "fold: out is %p, not a multiple of %zu", out, element);
    int in_place = 0;
    for (int i = 0; i < n_in; i++) {
        if (in[i] == NULL)
            return hpc_fail(HPC_ERR_INVALID, "fold", "fold: in[%d] is NULL with a count of %zu", i, count);
        if ((uintptr_t)in[i] % element != 0)
            return hpc_fail(HPC_ERR_INVALID, "fold", "fold: in[%d] is %p, not a multiple of %zu", i, in[i], element);
        if (in[i] == out)
            in_place = 1;
        else if (overlap(in[i], out, nbytes))
            return hpc_fail(HPC_ERR_INVALID, "fold",
                            "fold: in[%d] at %p overlaps out at %p within %zu bytes; they may be equal only", i, in[i],
                            out, nbytes);
    }

    const struct hpc_fold_kernels *kernels = isa == HPC_ISA_BEST ? best_kernels() : kernels_of(isa);
    int stream = !in_place && nbytes >= stream_from();
    (dtype == HPC_F32 ? kernels->f32 : kernels->f64)(out, in, weights, n_in, count, stream);
    return HPC_OK;
}
