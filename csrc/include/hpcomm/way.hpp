// way.hpp - costs of the ways to exchange a layer's updates, and the cheapest way.
#ifndef HPCOMM_WAY_HPP
#define HPCOMM_WAY_HPP

#include "error.hpp"

namespace hpcomm {

using Layer = hpc_layer;
using Cluster = hpc_cluster;
using Rates = hpc_rates;
using CodecRates = hpc_codec_rates;
using Cost = hpc_cost;
using Way = hpc_way;

// Returns the cost of one step (hpc_way_cost). codec: the rates of the codec of updates that go to servers; nullptr:
// these updates are float32.
inline Cost way_cost(Way way, const Layer &layer, const Cluster &cluster, const Rates &rates,
                     const CodecRates *codec = nullptr, Report report = {}) {
    Cost cost{};
    report(hpc_way_cost(way, &layer, &cluster, &rates, codec, &cost));
    return cost;
}

// Returns the best way (hpc_best_way). rates nullptr: chosen by algorithm 1 of Poseidon, which counts bytes alone.
// memory: the most bytes that the way may need; 0: no limit.
inline Way best_way(const Layer &layer, const Cluster &cluster, const Rates *rates, double memory = 0,
                    Report report = {}) {
    int way = HPC_WAY_PS;
    report(hpc_best_way(&layer, &cluster, rates, memory, &way));
    return static_cast<Way>(way);
}

} // namespace hpcomm

#endif
