// plan.hpp - who does what: parameter servers, graphs, and hierarchies of hosts.
#ifndef HPCOMM_PLAN_HPP
#define HPCOMM_PLAN_HPP

#include "codec.hpp"
#include "context.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <vector>

namespace hpcomm {

// hpc_key with a unit that may be left out: {name, elements} or {name, elements, unit}.
struct Key : hpc_key {
    Key(const char *name, std::uint64_t count, std::uint64_t unit = 0) noexcept : hpc_key{name, count, unit} {}
    Key(const hpc_key &key) noexcept : hpc_key(key) {}
};
static_assert(sizeof(Key) == sizeof(hpc_key), "an array of Key is one of hpc_key");

// A parameter server: hpc_hub's members and defaults.
struct HubConfig {
    std::vector<Key> keys;             // the names need not outlive the plan's creation
    std::vector<int> workers, servers; // ranks; empty: all of the context
    int cores = 1;                     // of each server
    std::size_t chunk = 32 * 1024;     // bytes of float32
    int depth = 1;
    Wire wire = HPC_F32;
    bool sum = false;
    bool each = false;
    hpc_affinity affinity = HPC_KEY_BY_CORE;
    int interfaces = 1;            // of each server
    hpc_dtype codec_out = HPC_F32; // of the parameters on their way to workers
    std::vector<int> wires;        // wire of each key by itself; empty: wire for all
    std::vector<int> codecs_out;   // the same of the parameters; empty: codec_out for all
    hpc_apply_at apply_at = HPC_AT_OWNERS;
};

// A node communication graph: hpc_graph's members and defaults.
struct GraphConfig {
    std::vector<Key> keys;
    std::vector<double> weights; // [phase][rank][from]; as many phases as there are
    int cores = 1;               // of each rank
    std::size_t chunk = 256 * 1024;
    int depth = 1;
    Wire wire = HPC_F32;
    std::vector<int> wires; // wire of each key by itself; empty: wire for all

    // For C, while this lives and stays as it is.
    hpc_graph graph(const Context &context) const {
        const std::size_t ranks = static_cast<std::size_t>(context.size()), matrix = ranks * ranks;
        hpc_graph graph;
        hpc_graph_init(&graph);
        graph.keys = keys.data();
        graph.n_keys = static_cast<int>(keys.size());
        graph.ranks = context.size();
        graph.n_phases = weights.size() % matrix == 0 ? static_cast<int>(weights.size() / matrix) : 0;
        graph.weights = weights.data();
        graph.cores = cores;
        graph.chunk = chunk;
        graph.depth = depth;
        graph.wire = wire;
        graph.wires = wires.empty() ? nullptr : wires.data();
        graph.n_wires = static_cast<int>(wires.size());
        return graph;
    }
};

// A hierarchy of hosts: hpc_hosts's members and defaults.
struct HostsConfig {
    std::vector<Key> keys;
    std::vector<int> workers; // ranks; empty: all of the context
    std::vector<int> groups;  // [level][worker], level 0 are the hosts; empty: the hosts of the context
    std::vector<int> leads;   // by worker: 1, it may fold for others, or 0; empty: all may
    hpc_top top = HPC_TOP_SHARDED;
    int cores = 1; // of each leading rank
    std::size_t chunk = 64 * 1024;
    int depth = 1;
    Wire wire = HPC_F32;
    bool sum = false;
    hpc_dtype codec_out = HPC_F32;
    std::vector<int> wires;      // wire of each key by itself; empty: wire for all
    std::vector<int> codecs_out; // the same of the parameters; empty: codec_out for all
    bool apart = false;          // each outermost group's updates are one input of an owner's row, for SSP and quorums
    bool each = false;           // and the mean or the sum of that group's workers alone, for ASYNC
    hpc_apply_at apply_at = HPC_AT_OWNERS;
};

// A broadcast over a tree: hpc_tree's members and defaults.
struct TreeConfig {
    std::vector<Key> keys;
    std::vector<int> parents; // by rank: the rank that sends to it, -1 for the root
    int cores = 1;            // of each rank with children
    std::size_t chunk = 128 * 1024;
    int depth = 1;
    Wire wire = HPC_F32;
    hpc_dtype codec_out = HPC_F32;
    std::vector<int> wires;      // wire of each key by itself; empty: wire for all
    std::vector<int> codecs_out; // the same of the parameters; empty: codec_out for all
};

// Cores that each of the servers can have for threads of its own; 0 when there are none to spare.
inline int spare_cores(const Context &context, const std::vector<int> &servers) {
    return hpc_spare_cores(context.get(), servers.data(), static_cast<int>(servers.size()));
}

// NICs that each of the servers can use, 1 at least; cores is best a multiple of it.
inline int interfaces(const Context &context, const std::vector<int> &servers) {
    return hpc_interfaces(context.get(), servers.data(), static_cast<int>(servers.size()));
}

class Plan : public Handle<hpc_plan, hpc_plan_free> {
  public:
    Plan() noexcept = default;

    Plan(const Context &context, const HubConfig &config, Report report = {})
        : Handle(report, [&](hpc_plan **out) {
              std::vector<int> all(static_cast<std::size_t>(context.size()));
              std::iota(all.begin(), all.end(), 0);
              const std::vector<int> &workers = config.workers.empty() ? all : config.workers;
              const std::vector<int> &servers = config.servers.empty() ? all : config.servers;
              hpc_hub hub;
              hpc_hub_init(&hub);
              hub.keys = config.keys.data();
              hub.n_keys = static_cast<int>(config.keys.size());
              hub.workers = workers.data();
              hub.n_workers = static_cast<int>(workers.size());
              hub.servers = servers.data();
              hub.n_servers = static_cast<int>(servers.size());
              hub.cores = config.cores;
              hub.chunk = config.chunk;
              hub.depth = config.depth;
              hub.wire = config.wire;
              hub.sum = config.sum;
              hub.each = config.each;
              hub.affinity = config.affinity;
              hub.interfaces = config.interfaces;
              hub.apply_at = config.apply_at;
              hub.codec_out = config.codec_out;
              hub.wires = config.wires.empty() ? nullptr : config.wires.data();
              hub.n_wires = static_cast<int>(config.wires.size());
              hub.codecs_out = config.codecs_out.empty() ? nullptr : config.codecs_out.data();
              hub.n_codecs_out = static_cast<int>(config.codecs_out.size());
              return hpc_plan_hub(&hub, out);
          }) {}
    // A template, so that {} stays a HubConfig.
    template <class Config, class = std::enable_if_t<std::is_same<Config, GraphConfig>::value>>
    Plan(const Context &context, const Config &config, Report report = {})
        : Handle(report, [&](hpc_plan **out) {
              const hpc_graph graph = config.graph(context);
              return hpc_plan_graph(&graph, out);
          }) {}

    template <class Config, class = std::enable_if_t<std::is_same<Config, HostsConfig>::value>, class = void>
    Plan(const Context &context, const Config &config, Report report = {})
        : Handle(report, [&](hpc_plan **out) {
              std::vector<int> all(static_cast<std::size_t>(context.size()));
              std::iota(all.begin(), all.end(), 0);
              const std::vector<int> &workers = config.workers.empty() ? all : config.workers;
              std::vector<int> groups = config.groups;
              if (groups.empty())
                  for (int rank : workers) groups.push_back(hpc_context_host(context.get(), rank));
              const std::size_t n = workers.size();
              hpc_hosts hosts;
              hpc_hosts_init(&hosts);
              hosts.keys = config.keys.data();
              hosts.n_keys = static_cast<int>(config.keys.size());
              hosts.workers = workers.data();
              hosts.n_workers = static_cast<int>(n);
              hosts.n_levels = groups.size() % n == 0 ? static_cast<int>(groups.size() / n) : 0;
              hosts.groups = groups.data();
              std::vector<int> leads = config.leads;
              leads.resize(n, 0);
              hosts.leads = config.leads.empty() ? nullptr : leads.data();
              hosts.top = config.top;
              hosts.apply_at = config.apply_at;
              hosts.cores = config.cores;
              hosts.chunk = config.chunk;
              hosts.depth = config.depth;
              hosts.wire = config.wire;
              hosts.sum = config.sum;
              hosts.codec_out = config.codec_out;
              hosts.wires = config.wires.empty() ? nullptr : config.wires.data();
              hosts.n_wires = static_cast<int>(config.wires.size());
              hosts.codecs_out = config.codecs_out.empty() ? nullptr : config.codecs_out.data();
              hosts.n_codecs_out = static_cast<int>(config.codecs_out.size());
              hosts.apart = config.apart || config.each;
              hosts.each = config.each;
              return hpc_plan_hosts(&hosts, out);
          }) {}

    template <class Config, class = std::enable_if_t<std::is_same<Config, TreeConfig>::value>, class = void,
              class = void>
    Plan(const Context &, const Config &config, Report report = {})
        : Handle(report, [&](hpc_plan **out) {
              hpc_tree tree;
              hpc_tree_init(&tree);
              tree.keys = config.keys.data();
              tree.n_keys = static_cast<int>(config.keys.size());
              tree.parents = config.parents.data();
              tree.ranks = static_cast<int>(config.parents.size());
              tree.cores = config.cores;
              tree.chunk = config.chunk;
              tree.depth = config.depth;
              tree.wire = config.wire;
              tree.codec_out = config.codec_out;
              tree.wires = config.wires.empty() ? nullptr : config.wires.data();
              tree.n_wires = static_cast<int>(config.wires.size());
              tree.codecs_out = config.codecs_out.empty() ? nullptr : config.codecs_out.data();
              tree.n_codecs_out = static_cast<int>(config.codecs_out.size());
              return hpc_plan_tree(&tree, out);
          }) {}

    int n_keys() const {
        return get()->n_keys;
    }
    int n_rows() const {
        return get()->n_rows;
    }
    const hpc_key &key(int i) const {
        return get()->keys[i];
    }
    const hpc_row &row(int i) const {
        return get()->rows[i];
    }
};

} // namespace hpcomm

#endif
