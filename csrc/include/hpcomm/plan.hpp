// plan.hpp - plans, which say which rank does which work: parameter servers, graphs, peers, hosts and trees.
#ifndef HPCOMM_PLAN_HPP
#define HPCOMM_PLAN_HPP

#include "codec.hpp"
#include "context.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace hpcomm {

// An hpc_key whose unit may be omitted: {name, elements} or {name, elements, unit}.
struct Key : hpc_key {
    Key(const char *name, std::uint64_t count, std::uint64_t unit = 0) noexcept : hpc_key{name, count, unit} {}
    Key(const hpc_key &key) noexcept : hpc_key(key) {}
};
static_assert(sizeof(Key) == sizeof(hpc_key), "an array of Key is one of hpc_key");

namespace detail {

// Sets the members that the arguments of all planners have.
template <class Args, class Config> void set_common(Args &args, const Config &config) {
    args.keys = config.keys.data();
    args.n_keys = static_cast<int>(config.keys.size());
    args.cores = config.cores;
    args.chunk = config.chunk;
    args.depth = config.depth;
    args.wire = config.wire;
    args.wires = config.wires.empty() ? nullptr : config.wires.data();
    args.n_wires = static_cast<int>(config.wires.size());
}

// Sets the codecs of parameters sent to workers.
template <class Args, class Config> void set_codecs_out(Args &args, const Config &config) {
    args.codec_out = config.codec_out;
    args.codecs_out = config.codecs_out.empty() ? nullptr : config.codecs_out.data();
    args.n_codecs_out = static_cast<int>(config.codecs_out.size());
}

inline std::vector<int> all_unless(const std::vector<int> &ranks, const Context &context) {
    if (!ranks.empty()) return ranks;
    std::vector<int> all(static_cast<std::size_t>(context.size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

inline int lowest_on_host(const Context &context, int rank) {
    hpc_peer peer{};
    return hpc_context_peer(context.get(), rank, &peer) == HPC_OK ? peer.lowest : -1;
}

} // namespace detail

// Each struct below has plan(), which makes a plan from it. Plan accepts any struct with such a function.

// A parameter server. Members and defaults are those in hpc_hub.
struct HubConfig {
    std::vector<Key> keys;             // the names must live until the plan has been made
    std::vector<int> workers, servers; // ranks; empty: all ranks of the context
    int cores = 1;                     // cores of each server
    std::size_t chunk = 32 * 1024;     // bytes of a chunk as float32
    int depth = 1;
    Wire wire = HPC_F32;
    bool sum = false;
    bool each = false;
    hpc_affinity affinity = HPC_KEY_BY_CORE;
    int interfaces = 1;            // NICs of each server
    hpc_dtype codec_out = HPC_F32; // hpc_dtype of parameters sent to workers
    std::vector<int> wires;        // the wire of each key; empty: wire for all keys
    std::vector<int> codecs_out;   // the codec_out of each key; empty: codec_out for all keys
    hpc_apply_at apply_at = HPC_AT_OWNERS;
    std::size_t least = 0;    // least bytes of a chunk; above 0 every core gets an equal part of a key (hpc_hub)
    std::vector<int> parents; // [server][worker], as in hpc_hub; empty: servers send to all workers

    // Returns the arguments for C, without the ranks. They point into this object, which must stay as it is while they
    // are used.
    hpc_hub hub() const {
        hpc_hub hub;
        hpc_plan_args_init("hub", &hub, sizeof hub);
        detail::set_common(hub, *this);
        detail::set_codecs_out(hub, *this);
        hub.sum = sum;
        hub.each = each;
        hub.affinity = affinity;
        hub.interfaces = interfaces;
        hub.apply_at = apply_at;
        hub.least = least;
        hub.parents = parents.empty() ? nullptr : parents.data();
        hub.n_parents = static_cast<int>(parents.size());
        return hub;
    }

    int plan(const Context &context, hpc_plan **out) const {
        const std::vector<int> working = detail::all_unless(workers, context);
        const std::vector<int> serving = detail::all_unless(servers, context);
        hpc_hub made = hub();
        made.workers = working.data();
        made.n_workers = static_cast<int>(working.size());
        made.servers = serving.data();
        made.n_servers = static_cast<int>(serving.size());
        return hpc_plan_make("hub", &made, out);
    }
};

// A node communication graph. Members and defaults are those in hpc_graph.
struct GraphConfig {
    std::vector<Key> keys;
    std::vector<double> weights; // [phase][rank][from], as in hpc_graph; its size gives the number of phases
    int cores = 1;               // cores of each rank
    std::size_t chunk = 256 * 1024;
    int depth = 1;
    Wire wire = HPC_F32;
    std::vector<int> wires; // the wire of each key; empty: wire for all keys

    // Returns the arguments for C. They point into this object, which must stay as it is while they are used.
    hpc_graph graph(const Context &context) const {
        const std::size_t ranks = static_cast<std::size_t>(context.size()), matrix = ranks * ranks;
        hpc_graph graph;
        hpc_plan_args_init("graph", &graph, sizeof graph);
        detail::set_common(graph, *this);
        graph.ranks = context.size();
        graph.n_phases = weights.size() % matrix == 0 ? static_cast<int>(weights.size() / matrix) : 0;
        graph.weights = weights.data();
        return graph;
    }

    int plan(const Context &context, hpc_plan **out) const {
        const hpc_graph made = graph(context);
        return hpc_plan_make("graph", &made, out);
    }
};

// Peers: each applies the updates of all others to its own parameters. Members and defaults are those in
// hpc_peer_to_peer.
struct PeerToPeerConfig {
    std::vector<Key> keys;
    std::vector<int> workers;         // ranks; empty: all ranks of the context
    std::vector<unsigned char> sends; // [p][q]: 1 if worker p sends to worker q, else 0; empty: all to all
    std::vector<int> parents;         // [p][q]: the worker that sends p's pushes to q; empty: p itself
    std::vector<int> hosts; // hosts[i]: the host of worker i, of which one worker applies for all; empty: each worker
                            // applies for itself
    std::vector<unsigned char> leads; // leads[i]: 1 if worker i may apply for its host, else 0; empty: all may
    int cores = 1;                    // cores of each worker
    std::size_t chunk = 256 * 1024;
    int depth = 2; // under SSP(s) at least s + 2
    Wire wire = HPC_F32;
    bool sum = false;
    std::vector<int> wires; // the wire of each key; empty: wire for all keys

    int plan(const Context &context, hpc_plan **out) const {
        const std::vector<int> working = detail::all_unless(workers, context);
        std::vector<unsigned char> matrix = sends;
        std::vector<int> ways = parents;
        if (!matrix.empty()) matrix.resize(working.size() * working.size(), 0);
        if (!ways.empty()) ways.resize(working.size() * working.size(), -1);
        std::vector<int> places = hosts;
        if (!places.empty()) places.resize(working.size(), -1);
        std::vector<unsigned char> leading = leads;
        if (!leading.empty()) leading.resize(working.size(), 0);
        hpc_peer_to_peer peers;
        hpc_plan_args_init("peer_to_peer", &peers, sizeof peers);
        detail::set_common(peers, *this);
        peers.workers = working.data();
        peers.n_workers = static_cast<int>(working.size());
        peers.sends = matrix.empty() ? nullptr : matrix.data();
        peers.parents = ways.empty() ? nullptr : ways.data();
        peers.hosts = places.empty() ? nullptr : places.data();
        peers.leads = leading.empty() ? nullptr : leading.data();
        peers.sum = sum;
        return hpc_plan_make("peer_to_peer", &peers, out);
    }
};

// A hierarchy of hosts. Members and defaults are those in hpc_hosts.
struct HostsConfig {
    std::vector<Key> keys;
    std::vector<int> workers; // ranks; empty: all ranks of the context
    std::vector<int> groups;  // [level][worker]: the group's number; level 0 are hosts; empty: the context's hosts
    std::vector<int> leads;   // leads[i]: 1 if worker i may fold for others, else 0; empty: all may
    std::vector<int> serves;  // serves[i]: 1 if worker i only serves (hpc_hosts); empty: all work
    hpc_top top = HPC_TOP_SHARDED;
    int cores = 1; // cores of each leading rank
    std::size_t chunk = 64 * 1024;
    int depth = 1;
    Wire wire = HPC_F32;
    bool sum = false;
    hpc_dtype codec_out = HPC_F32;
    std::vector<int> wires;      // the wire of each key; empty: wire for all keys
    std::vector<int> codecs_out; // the codec_out of each key; empty: codec_out for all keys
    bool apart = false; // each outermost group's updates are one input of an owner's row, which SSP and quorums need
    bool each = false;  // this input is the mean or the sum of the group's workers alone, which ASYNC needs
    hpc_apply_at apply_at = HPC_AT_OWNERS;
    std::size_t least = 0; // least bytes of a chunk; above 0 every core gets an equal part of a key (hpc_hosts)

    // Returns the arguments for C, without the ranks, leads and serves. They point into this object, which must stay as
    // it is while they are used. n: the number of workers; 0: half as many as groups has elements.
    hpc_hosts hosts(std::size_t n = 0) const {
        hpc_hosts hosts;
        hpc_plan_args_init("hosts", &hosts, sizeof hosts);
        if (n == 0) n = groups.size() / 2;
        detail::set_common(hosts, *this);
        detail::set_codecs_out(hosts, *this);
        hosts.n_workers = static_cast<int>(n);
        hosts.n_levels = n > 0 && groups.size() % n == 0 ? static_cast<int>(groups.size() / n) : 0;
        hosts.groups = groups.data();
        hosts.top = top;
        hosts.sum = sum;
        hosts.apart = apart || each;
        hosts.each = each;
        hosts.apply_at = apply_at;
        hosts.least = least;
        return hosts;
    }

    int plan(const Context &context, hpc_plan **out) const {
        const std::vector<int> working = detail::all_unless(workers, context);
        const std::size_t n = working.size();
        std::vector<int> grouped = groups, leading = leads, serving = serves;
        if (grouped.empty())
            for (int rank : working) grouped.push_back(detail::lowest_on_host(context, rank));
        leading.resize(n, 0);
        serving.resize(n, 0);
        hpc_hosts made = hosts(n);
        made.workers = working.data();
        made.groups = grouped.data();
        made.n_levels = grouped.size() % n == 0 ? static_cast<int>(grouped.size() / n) : 0;
        made.leads = leads.empty() ? nullptr : leading.data();
        made.serves = serves.empty() ? nullptr : serving.data();
        return hpc_plan_make("hosts", &made, out);
    }
};

// Returns HostsConfig::groups of racks that have a hub each: racks[i] are the workers of hub i. The hosts are those of
// the context; workers of one host fold together if they are in one rack. -1 for a worker that is not in one rack,
// which an exchange refuses.
inline std::vector<int> rack_groups(const Context &context, const std::vector<std::vector<int>> &racks) {
    const std::size_t n = static_cast<std::size_t>(context.size());
    std::vector<int> groups(2 * n, -1), times(n, 0);
    for (std::size_t i = 0; i < racks.size(); i++)
        for (int rank : racks[i])
            if (rank >= 0 && rank < context.size()) {
                groups[n + static_cast<std::size_t>(rank)] = static_cast<int>(i);
                times[static_cast<std::size_t>(rank)]++;
            }
    for (std::size_t r = 0; r < n; r++) {
        if (times[r] != 1) groups[n + r] = -1;
        groups[r] = static_cast<int>(r);
        const int host = detail::lowest_on_host(context, static_cast<int>(r));
        for (std::size_t first = r; first-- > 0;)
            if (detail::lowest_on_host(context, static_cast<int>(first)) == host && groups[n + first] == groups[n + r])
                groups[r] = static_cast<int>(first);
    }
    return groups;
}

// A broadcast over a tree. Members and defaults are those in hpc_tree.
struct TreeConfig {
    std::vector<Key> keys;
    std::vector<int> parents; // parents[r]: the rank that sends to rank r; -1: r is the root
    int cores = 1;            // cores of each rank with children
    std::size_t chunk = 128 * 1024;
    int depth = 1;
    Wire wire = HPC_F32;
    hpc_dtype codec_out = HPC_F32;
    std::vector<int> wires;      // the wire of each key; empty: wire for all keys
    std::vector<int> codecs_out; // the codec_out of each key; empty: codec_out for all keys

    int plan(const Context &, hpc_plan **out) const {
        hpc_tree tree;
        hpc_plan_args_init("tree", &tree, sizeof tree);
        detail::set_common(tree, *this);
        detail::set_codecs_out(tree, *this);
        tree.parents = parents.data();
        tree.ranks = static_cast<int>(parents.size());
        return hpc_plan_make("tree", &tree, out);
    }
};

// Returns how many cores each server can have for its threads beside the workers' compute threads; 0 if no CPU is free.
inline int spare_cores(const Context &context, const std::vector<int> &workers, const std::vector<int> &servers) {
    return hpc_spare_cores(context.get(), workers.data(), static_cast<int>(workers.size()), servers.data(),
                           static_cast<int>(servers.size()));
}

// Returns how many NICs each server can use, at least 1; make HubConfig::cores a multiple of it.
inline int interfaces(const Context &context, const std::vector<int> &servers) {
    return hpc_interfaces(context.get(), servers.data(), static_cast<int>(servers.size()));
}

// Returns whether two of these ranks are joined by sockets, so that larger chunks are better: see HubConfig::least.
inline bool over_sockets(const Context &context, const std::vector<int> &ranks) {
    return hpc_over_sockets(context.get(), ranks.data(), static_cast<int>(ranks.size())) != 0;
}

class Plan : public Handle<hpc_plan, hpc_plan_free> {
  public:
    Plan() noexcept = default;

    Plan(const Context &context, const HubConfig &config, Report report = {})
        : Handle(report, [&](hpc_plan **out) { return config.plan(context, out); }) {}
    // A template, so that {} still means a HubConfig.
    template <class Config, class = decltype(std::declval<const Config &>().plan(std::declval<const Context &>(),
                                                                                 std::declval<hpc_plan **>()))>
    Plan(const Context &context, const Config &config, Report report = {})
        : Handle(report, [&](hpc_plan **out) { return config.plan(context, out); }) {}

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
