// scheme.hpp - the costs of several ways to exchange a layer, and the cheapest of them.
#ifndef HPCOMM_SCHEME_HPP
#define HPCOMM_SCHEME_HPP

#include "error.hpp"

namespace hpcomm {

using Layer = hpc_layer;
using Cluster = hpc_cluster;
using Rates = hpc_rates;
using CodecRates = hpc_codec_rates;
using Cost = hpc_cost;
using Scheme = hpc_scheme;

// See hpc_scheme_cost. codec: for updates that go to servers as arrays; null: float32.
inline Cost scheme_cost(Scheme scheme, const Layer &layer, const Cluster &cluster, const Rates &rates,
                        const CodecRates *codec = nullptr, Report report = {}) {
    Cost cost{};
    report(hpc_scheme_cost(scheme, &layer, &cluster, &rates, codec, &cost));
    return cost;
}

// See hpc_best_scheme. rates: null, by the bytes of Poseidon's algorithm 1 alone. memory: bytes; 0: any.
inline Scheme best_scheme(const Layer &layer, const Cluster &cluster, const Rates *rates, double memory = 0,
                          Report report = {}) {
    int scheme = HPC_SCHEME_PS;
    report(hpc_best_scheme(&layer, &cluster, rates, memory, &scheme));
    return static_cast<Scheme>(scheme);
}

} // namespace hpcomm

#endif
