// context.hpp - start-up of the ranks, and calls on a context.
#ifndef HPCOMM_CONTEXT_HPP
#define HPCOMM_CONTEXT_HPP

#include "handle.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hpcomm {

struct Config : hpc_config {
    Config() {
        hpc_config_init(this);
    }
};

// The threads that work for one rank's exchanges (engine.h). Contexts made with config.engine keep it alive.
class Engine : public Handle<hpc_engine, hpc_engine_free> {
  public:
    Engine() noexcept = default;

    static Engine create(Report report = {}) {
        return Engine(report);
    }

  private:
    explicit Engine(Report report) : Handle(report, [](hpc_engine **out) { return hpc_engine_create(out); }) {}
};

// Start-up of ranks without MPI: rank 0 listens at host:port, and the others connect to it. An empty secret means none,
// and is allowed only on loopback.
class Rendezvous : public Handle<hpc_rendezvous, hpc_rendezvous_free> {
  public:
    Rendezvous() noexcept = default;

    Rendezvous(int rank, int size, const std::string &host, int port, std::string secret = {},
               double timeout = default_timeout, Report report = {})
        : Handle(report,
                 [&](hpc_rendezvous **out) {
                     return hpc_rendezvous_create(rank, size, host.c_str(), port,
                                                  secret.empty() ? nullptr : secret.data(), secret.size(), timeout,
                                                  out);
                 }),
          rank_(rank), size_(size), secret_(std::move(secret)) {}

    // Every rank gives nbytes and gets size * nbytes, in rank order.
    void allgather(const void *send, void *recv, std::size_t nbytes, double timeout = default_timeout,
                   Report report = {}) {
        report(hpc_rendezvous_allgather(get(), send, recv, nbytes, timeout));
    }

    // Makes a connected context, within config's timeout for hpc_init. The context uses config's secret, or this
    // rendezvous's secret if config has none.
    int bring_up(Config config, hpc_context **context) {
        using seconds = std::chrono::duration<double>;
        const bool by_default = config.timeout == Config().timeout;
        const double limit = config.init_timeout >= 0 ? config.init_timeout : by_default ? 30 : config.timeout;
        const auto start = std::chrono::steady_clock::now();
        std::vector<unsigned char> mine(hpc_address_size()), all(mine.size() * static_cast<std::size_t>(size_));
        hpc_context *made = nullptr;
        if (config.secret == nullptr && !secret_.empty()) {
            config.secret = secret_.data();
            config.secret_bytes = secret_.size();
        }
        int status = hpc_context_create(rank_, size_, &config, &made);
        if (status == HPC_OK) status = hpc_context_address(made, mine.data());
        if (status == HPC_OK) status = hpc_rendezvous_allgather(get(), mine.data(), all.data(), mine.size(), limit);
        if (status == HPC_OK) {
            const double gone = seconds(std::chrono::steady_clock::now() - start).count();
            status = hpc_context_connect(made, all.data(), std::max(0.0, limit - gone));
        }
        if (status == HPC_OK)
            *context = made;
        else
            hpc_context_free(made);
        return status;
    }

  private:
    int rank_ = 0, size_ = 1;
    std::string secret_;
};

// How to probe the available bandwidth. Members and defaults are those in hpc_bandwidth_options.
struct BandwidthOptions : hpc_bandwidth_options {
    BandwidthOptions() {
        hpc_bandwidth_options_init(this);
    }
};
using Bandwidth = hpc_bandwidth;

class Context : public Handle<hpc_context, hpc_context_free> {
  public:
    Context() noexcept = default;

    // Creates this rank's context and waits for all others. hpcomm_mpi.h makes oob from an MPI communicator.
    explicit Context(const hpc_oob &oob, const Config &config = {}, Report report = {})
        : Handle(report, [&](hpc_context **out) { return hpc_init(&oob, &config, out); }) {}

    // The same for ranks that met in a rendezvous, which may be destroyed afterwards.
    explicit Context(Rendezvous &rendezvous, const Config &config = {}, Report report = {})
        : Handle(report, [&](hpc_context **out) { return rendezvous.bring_up(config, out); }) {}

    int rank() const {
        return hpc_context_rank(get());
    }
    int size() const {
        return hpc_context_size(get());
    }
    hpc_peer peer(int rank, Report report = {}) const {
        hpc_peer peer{};
        report(hpc_context_peer(get(), rank, &peer));
        return peer;
    }
    std::vector<std::string> notes() const {
        std::vector<std::string> notes;
        for (int i = 0; hpc_context_note(get(), i, nullptr) != nullptr; i++)
            notes.emplace_back(hpc_context_note(get(), i, nullptr));
        return notes;
    }

    // Measures the bandwidth, in bytes a second, that is left on the paths to peers on other hosts. Probes of one peer
    // are sent while probes of the others pause.
    std::vector<Bandwidth> bandwidth(const std::vector<int> &peers, const BandwidthOptions &options = {},
                                     Report report = {}) {
        std::vector<Bandwidth> found(peers.size());
        report(hpc_context_bandwidth(get(), peers.data(), static_cast<int>(peers.size()), &options, found.data()));
        return found;
    }
    Bandwidth bandwidth(int peer, const BandwidthOptions &options = {}, Report report = {}) {
        Bandwidth found{};
        report(hpc_context_bandwidth(get(), &peer, 1, &options, &found));
        return found;
    }

    void barrier(double timeout = default_timeout, Report report = {}) {
        report(hpc_barrier(get(), timeout));
    }
    void allgather(const void *send, void *recv, std::size_t nbytes, double timeout = default_timeout,
                   Report report = {}) {
        report(hpc_allgather(get(), send, recv, nbytes, timeout));
    }
    // Returns the values that all ranks gave, in rank order.
    template <class T> std::vector<T> allgather(const T &mine, double timeout = default_timeout, Report report = {}) {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>,
                      "T must be trivially copyable, and not bool");
        std::vector<T> all(static_cast<std::size_t>(size()));
        report(hpc_allgather(get(), &mine, all.data(), sizeof(T), timeout));
        return all;
    }

    // Makes ranks that have left count as failed, on every rank.
    void revoke(Report report = {}) {
        report(hpc_context_revoke(get()));
    }
    // Makes a new context of the ranks that remain after others died or left; collective over the remaining ranks. The
    // caller closes both contexts, in any order.
    Context shrink(const Config &config = {}, double timeout = default_timeout, Report report = {}) {
        return Context(report, [&](hpc_context **out) { return hpc_context_shrink(get(), &config, timeout, out); });
    }
    // Returns the number that `rank` had in the job's first context.
    int first_rank(int rank, Report report = {}) const {
        return peer(rank, report).first_rank;
    }

    void close(Report report = {}) {
        report(hpc_context_close(get()));
    }

    void set_title(const std::string &title, Report report = {}) {
        report(hpc_context_set_title(get(), title.c_str()));
    }
    void abort(const std::string &why, Report report = {}) {
        report(hpc_context_abort(get(), why.c_str()));
    }

  private:
    friend class Service; // which lends its context
    explicit Context(hpc_context *lent) noexcept : Handle(lent) {}
    template <class Create> Context(const Report &report, Create create) : Handle(report, create) {}
};

// A span of this thread in the timeline, from its declaration to the end of the block; without a timeline it does
// nothing:
//     hpcomm::Span forward(context, "forward");
class Span {
  public:
    Span(Context &context, const char *name) noexcept : context_(context.get()), name_(name), start_(now()) {}
    ~Span() {
        hpc_context_span(context_, name_, start_);
    }
    Span(const Span &) = delete;
    Span &operator=(const Span &) = delete;

  private:
    static double now() noexcept { // CLOCK_MONOTONIC
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    hpc_context *context_;
    const char *name_;
    double start_;
};

} // namespace hpcomm

#endif
