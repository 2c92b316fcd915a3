// fold.hpp - weighted sums of arrays.
#ifndef HPCOMM_FOLD_HPP
#define HPCOMM_FOLD_HPP

#include "error.hpp"

#include <cstddef>
#include <type_traits>

namespace hpcomm {

template <class T> struct dtype_of;
template <> struct dtype_of<float> : std::integral_constant<hpc_dtype, HPC_F32> {};
template <> struct dtype_of<double> : std::integral_constant<hpc_dtype, HPC_F64> {};

// Computes out[j] = weights[0]*in[0][j] + ... + weights[n_in-1]*in[n_in-1][j], in arrays of T.
template <class T>
void fold(T *out, const void *const *in, const double *weights, int n_in, std::size_t count, hpc_isa isa = HPC_ISA_BEST,
          Report report = {}) {
    report(hpc_fold(out, in, weights, n_in, count, dtype_of<T>::value, isa));
}

} // namespace hpcomm

#endif
