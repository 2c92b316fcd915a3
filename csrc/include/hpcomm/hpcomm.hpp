// hpcomm.hpp - hpcomm.h for C++17: handles that free themselves, and errors as exceptions or as std::error_code.
//
// Every call here is one call of hpcomm.h, whose comments hold; a Context from a Rendezvous is the few that it takes to
// come up. What may fail takes a last argument that says where a
// failure goes: nothing, and it is thrown as one of
//
//     Error
//     ├── InvalidArgument      a bad argument, named with its value
//     ├── ConfigError          ranks disagree, or a setting has no meaning
//     ├── NotSupported         this transport, host or build cannot do it
//     ├── TransportError       the path to a peer failed: transport(), peer()
//     ├── PeerFailed           ranks died or left: ranks(), op(), waiting_for()
//     ├── Timeout              the deadline passed: op(), waiting_for()
//     ├── AuthError            a stranger, or a peer of another job
//     └── OutOfMemory          too little memory, at creation only
//
// or a std::error_code, which is set to the hpc_status (and cleared on success); hpc_last_error() has the rest then.
// With -fno-exceptions a failure that no error_code takes ends the process, as the standard library's do.
//
// Handles move and do not copy. A moved-from one, and one whose creation failed into an error_code, is empty.
#ifndef HPCOMM_HPP
#define HPCOMM_HPP

#include "hpcomm.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace hpcomm {

inline constexpr double default_timeout = -1.0; // the context's

// ---- errors ---------------------------------------------------------------------------------------------------------

inline const std::error_category &category() noexcept {
    struct Category final : std::error_category {
        const char *name() const noexcept override {
            return "hpcomm";
        }
        std::string message(int status) const override {
            return hpc_status_text(status);
        }
    };
    static const Category instance;
    return instance;
}

inline std::error_code make_error_code(hpc_status status) noexcept {
    return {static_cast<int>(status), category()};
}

#if defined(__cpp_exceptions)

// What C recorded about the calling thread's last failure, kept.
class Error : public std::runtime_error {
  public:
    explicit Error(const hpc_error &error)
        : std::runtime_error(error.message), status_(error.status), op_(error.op), transport_(error.transport),
          peer_(error.peer), ranks_(error.ranks, error.ranks + error.n_ranks),
          waiting_for_(error.waiting_for, error.waiting_for + error.n_waiting) {}

    std::error_code code() const noexcept {
        return {status_, category()};
    }
    const std::string &op() const noexcept {
        return op_;
    }

  protected:
    int status_;
    std::string op_, transport_;
    int peer_;
    std::vector<int> ranks_, waiting_for_;
};

struct InvalidArgument : Error {
    using Error::Error;
};

struct ConfigError : Error {
    using Error::Error;
};

struct NotSupported : Error {
    using Error::Error;
};

struct TransportError : Error {
    using Error::Error;
    const std::string &transport() const noexcept {
        return transport_;
    }
    int peer() const noexcept {
        return peer_;
    }
};

struct PeerFailed : Error {
    using Error::Error;
    const std::vector<int> &ranks() const noexcept {
        return ranks_;
    }
    const std::vector<int> &waiting_for() const noexcept {
        return waiting_for_;
    }
};

struct Timeout : Error {
    using Error::Error;
    const std::vector<int> &waiting_for() const noexcept {
        return waiting_for_;
    }
};

struct AuthError : Error {
    using Error::Error;
};

struct OutOfMemory : Error {
    using Error::Error;
};

[[noreturn]] inline void throw_error(const hpc_error &error) {
    switch (error.status) {
    case HPC_ERR_INVALID:
        throw InvalidArgument(error);
    case HPC_ERR_CONFIG:
        throw ConfigError(error);
    case HPC_ERR_UNSUPPORTED:
        throw NotSupported(error);
    case HPC_ERR_TRANSPORT:
        throw TransportError(error);
    case HPC_ERR_PEER:
        throw PeerFailed(error);
    case HPC_ERR_TIMEOUT:
        throw Timeout(error);
    case HPC_ERR_AUTH:
        throw AuthError(error);
    case HPC_ERR_MEMORY:
        throw OutOfMemory(error);
    default:
        throw Error(error);
    }
}

#else

[[noreturn]] inline void throw_error(const hpc_error &) {
    std::terminate();
}

#endif

// Where a failure goes; made from what the caller gives as the last argument.
class Report {
  public:
    Report() noexcept = default;
    Report(std::error_code &code) noexcept : code_(&code) {}

    // True when status is HPC_OK; false for HPC_IN_PROGRESS and for a failure that went into the error_code.
    bool operator()(int status) const {
        if (code_ != nullptr)
            code_->assign(status < 0 ? status : HPC_OK, category());
        else if (status < 0)
            throw_error(*hpc_last_error());
        return status == HPC_OK;
    }

  private:
    std::error_code *code_ = nullptr;
};

// ---- build and host -------------------------------------------------------------------------------------------------

inline std::string version() {
    return hpc_version();
}

inline std::string build_info() {
    return hpc_build_info();
}

inline std::vector<std::string> transports() {
    std::vector<std::string> names;
    for (int i = 0; hpc_transport_name(i) != nullptr; i++) names.emplace_back(hpc_transport_name(i));
    return names;
}

inline int core_count() {
    return hpc_core_count();
}

inline std::uint64_t memory_available() {
    return hpc_memory_available();
}

using Device = hpc_device;

// All ports of this host's RDMA devices, those that hpcomm cannot use among them (why is then not empty).
inline std::vector<Device> devices(Report report = {}) {
    std::vector<Device> found;
    int n, room = 0;
    while ((n = hpc_devices(found.data(), room)) > room) found.resize(static_cast<std::size_t>(room = n));
    report(n < 0 ? n : HPC_OK);
    found.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return found;
}

using ShownRank = hpc_shown_rank;

// Every context of this host's processes, and the other ranks of their jobs, as hpc_jobs shows them.
inline std::vector<ShownRank> jobs(double timeout = 1, Report report = {}) {
    std::vector<ShownRank> found(64);
    int n, room = 64;
    while ((n = hpc_jobs(found.data(), room, timeout)) > room) found.resize(static_cast<std::size_t>(room = 2 * n));
    report(n < 0 ? n : HPC_OK);
    found.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return found;
}

// ---- handles --------------------------------------------------------------------------------------------------------

template <class T, void (*Free)(T *)> class Handle {
  public:
    Handle() noexcept = default;

    T *get() const noexcept {
        return handle_.get();
    }
    explicit operator bool() const noexcept {
        return handle_ != nullptr;
    }
    void reset() noexcept {
        handle_.reset();
    }

  protected:
    explicit Handle(T *handle) noexcept : handle_(handle) {}

    // Calls create(T **) and owns what it made.
    template <class Create> Handle(const Report &report, Create create) {
        T *made = nullptr;
        if (report(create(&made))) handle_.reset(made);
    }

  private:
    struct Deleter {
        void operator()(T *handle) const noexcept {
            Free(handle);
        }
    };
    std::unique_ptr<T, Deleter> handle_;
};

struct Config : hpc_config {
    Config() {
        hpc_config_init(this);
    }
};

// How ranks come up without MPI: rank 0 listens at host:port, the others call it. secret: empty for none, which
// loopback alone allows.
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

    // Every rank gives nbytes, every rank gets size * nbytes in rank order.
    void allgather(const void *send, void *recv, std::size_t nbytes, double timeout = default_timeout,
                   Report report = {}) {
        report(hpc_rendezvous_allgather(get(), send, recv, nbytes, timeout));
    }

    // A connected context, by config.timeout; with this secret, unless config has one.
    int bring_up(Config config, hpc_context **context) {
        using seconds = std::chrono::duration<double>;
        const auto start = std::chrono::steady_clock::now();
        std::vector<unsigned char> mine(hpc_address_size()), all(mine.size() * static_cast<std::size_t>(size_));
        hpc_context *made = nullptr;
        if (config.secret == nullptr && !secret_.empty()) {
            config.secret = secret_.data();
            config.secret_bytes = secret_.size();
        }
        int status = hpc_context_create(rank_, size_, &config, &made);
        if (status == HPC_OK) status = hpc_context_address(made, mine.data());
        if (status == HPC_OK)
            status = hpc_rendezvous_allgather(get(), mine.data(), all.data(), mine.size(), config.timeout);
        if (status == HPC_OK) {
            const double gone = seconds(std::chrono::steady_clock::now() - start).count();
            status = hpc_context_connect(made, all.data(), std::max(0.0, config.timeout - gone));
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

class Context : public Handle<hpc_context, hpc_context_free> {
  public:
    Context() noexcept = default;

    // Brings this rank up and waits for all others. hpcomm_mpi.h makes oob from an MPI communicator.
    explicit Context(const hpc_oob &oob, const Config &config = {}, Report report = {})
        : Handle(report, [&](hpc_context **out) { return hpc_init(&oob, &config, out); }) {}

    // The same where ranks have met; the rendezvous may go then.
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
        for (int i = 0; hpc_context_note(get(), i) != nullptr; i++) notes.emplace_back(hpc_context_note(get(), i));
        return notes;
    }

    void barrier(double timeout = default_timeout, Report report = {}) {
        report(hpc_barrier(get(), timeout));
    }
    void allgather(const void *send, void *recv, std::size_t nbytes, double timeout = default_timeout,
                   Report report = {}) {
        report(hpc_allgather(get(), send, recv, nbytes, timeout));
    }
    // What every rank gave, in rank order.
    template <class T> std::vector<T> allgather(const T &mine, double timeout = default_timeout, Report report = {}) {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>, "bytes are what travels");
        std::vector<T> all(static_cast<std::size_t>(size()));
        report(hpc_allgather(get(), &mine, all.data(), sizeof(T), timeout));
        return all;
    }

    // Who has left counts as failed, on every rank.
    void revoke(Report report = {}) {
        report(hpc_context_revoke(get()));
    }
    // A new context over the ranks that are left when others died or left; collective over them. This one is the
    // caller's to close, in any order.
    Context shrink(const Config &config = {}, double timeout = default_timeout, Report report = {}) {
        return Context(report, [&](hpc_context **out) { return hpc_context_shrink(get(), &config, timeout, out); });
    }
    // What rank was called in the first context.
    int first_rank(int rank, Report report = {}) const {
        const int first = hpc_context_first_rank(get(), rank);
        report(first < 0 ? first : HPC_OK);
        return first;
    }

    void close(Report report = {}) {
        report(hpc_context_close(get()));
    }
    void abort(const std::string &why, Report report = {}) {
        report(hpc_context_abort(get(), why.c_str()));
    }

  private:
    template <class Create> Context(const Report &report, Create create) : Handle(report, create) {}
};

// A part of what this thread does, shown in the timeline from here to the end of the block; nothing without a timeline:
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

class Lane : public Handle<hpc_lane, hpc_lane_free> {
  public:
    Lane() noexcept = default; // the context's own first lane, wherever a lane is asked for

    explicit Lane(Context &context, double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_lane **out) { return hpc_lane_create(context.get(), timeout, out); }) {}
};

// The next event of a lane, if one came.
inline std::optional<hpc_event> poll(Context &context, const Lane &lane = {}, Report report = {}) {
    hpc_event event{};
    return report(hpc_poll(context.get(), lane.get(), &event)) ? std::optional(event) : std::nullopt;
}

inline hpc_event wait_event(Context &context, const Lane &lane = {}, double timeout = default_timeout,
                            Report report = {}) {
    hpc_event event{};
    report(hpc_wait_event(context.get(), lane.get(), &event, timeout));
    return event;
}

// A reference to mapped memory, which outlives the window or queue that it came from. Empty where nothing can be
// mapped.
class Memory : public Handle<hpc_memory, hpc_memory_release> {
  public:
    Memory() noexcept = default;
    explicit Memory(hpc_memory *memory) noexcept : Handle(memory) {}

    template <class T = void> T *data() const {
        return static_cast<T *>(hpc_memory_data(get()));
    }
};

class Window : public Handle<hpc_window, hpc_window_free> {
  public:
    Window() noexcept = default;

    Window(Context &context, std::size_t nbytes, int signals = 0, const char *type = nullptr,
           double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_window **out) {
              return hpc_window_create(context.get(), nbytes, signals, type, timeout, out);
          }) {}

    template <class T = void> T *data() const {
        return static_cast<T *>(hpc_window_data(get()));
    }
    std::size_t nbytes() const {
        return hpc_window_nbytes(get());
    }
    int signals() const {
        return hpc_window_signals(get());
    }
    template <class T = void> T *peer_view(int peer) const {
        return static_cast<T *>(hpc_window_peer_view(get(), peer));
    }
    Memory memory(int rank) const {
        return Memory(hpc_window_memory(get(), rank));
    }

    void put(int peer, const void *src, std::size_t nbytes, std::size_t offset, const Lane &lane = {},
             Report report = {}) {
        report(hpc_put(lane.get(), get(), peer, src, nbytes, offset));
    }
    void put_signal(int peer, const void *src, std::size_t nbytes, std::size_t offset, int signal, std::uint64_t value,
                    const Lane &lane = {}, Report report = {}) {
        report(hpc_put_signal(lane.get(), get(), peer, src, nbytes, offset, signal, value));
    }
    void put_notify(int peer, const void *src, std::size_t nbytes, std::size_t offset, std::uint32_t imm,
                    const Lane &lane = {}, double timeout = default_timeout, Report report = {}) {
        report(hpc_put_notify(lane.get(), get(), peer, src, nbytes, offset, imm, timeout));
    }
    void flush(int peer = -1, const Lane &lane = {}, double timeout = default_timeout, Report report = {}) {
        report(hpc_flush(lane.get(), get(), peer, timeout));
    }

    bool test_signal(int signal, std::uint64_t at_least, Report report = {}) const {
        return report(hpc_test_signal(get(), signal, at_least, nullptr));
    }
    std::uint64_t wait_signal(int signal, std::uint64_t at_least, int peer = -1, double timeout = default_timeout,
                              Report report = {}) const {
        std::uint64_t value = 0;
        report(hpc_wait_signal(get(), signal, at_least, peer, timeout, &value));
        return value;
    }
};

// ---- fold -----------------------------------------------------------------------------------------------------------

template <class T> struct dtype_of;
template <> struct dtype_of<float> : std::integral_constant<hpc_dtype, HPC_F32> {};
template <> struct dtype_of<double> : std::integral_constant<hpc_dtype, HPC_F64> {};

// out[j] = weights[0]*in[0][j] + ... + weights[n_in-1]*in[n_in-1][j], in arrays of T.
template <class T>
void fold(T *out, const void *const *in, const double *weights, int n_in, std::size_t count, hpc_isa isa = HPC_ISA_BEST,
          Report report = {}) {
    report(hpc_fold(out, in, weights, n_in, count, dtype_of<T>::value, isa));
}

// ---- queue ----------------------------------------------------------------------------------------------------------

struct QueueConfig {
    std::vector<int> in_peers;
    std::vector<int> out_peers;
    std::size_t nbytes = 0; // of one update
    int depth = 1;
    int buffers = 0;
    const char *type = nullptr;
};

class Queue : public Handle<hpc_queue, hpc_queue_free> {
  public:
    Queue() noexcept = default;

    Queue(Context &context, const QueueConfig &config, double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_queue **out) {
              hpc_queue_config c;
              hpc_queue_config_init(&c);
              c.in_peers = config.in_peers.data();
              c.n_in = static_cast<int>(config.in_peers.size());
              c.out_peers = config.out_peers.data();
              c.n_out = static_cast<int>(config.out_peers.size());
              c.nbytes = config.nbytes;
              c.depth = config.depth;
              c.buffers = config.buffers;
              c.type = config.type;
              return hpc_queue_create(context.get(), &c, timeout, out);
          }) {}

    template <class T = void> T *buffer(int i) const {
        return static_cast<T *>(hpc_queue_buffer(get(), i));
    }
    void acquire(int i, double timeout = default_timeout, Report report = {}) {
        report(hpc_queue_acquire(get(), i, timeout));
    }
    void send(int peer, const void *src, std::size_t nbytes, double timeout = default_timeout, Report report = {}) {
        report(hpc_queue_send(get(), peer, src, nbytes, timeout));
    }
    template <class T = void> const T *recv(int peer, double timeout = default_timeout, Report report = {}) {
        const void *update = nullptr;
        report(hpc_queue_recv(get(), peer, &update, timeout));
        return static_cast<const T *>(update);
    }
    void ack(int peer, Report report = {}) {
        report(hpc_queue_ack(get(), peer));
    }
    // out = weight_own*own + sum of weights[i]*update of in_peers[i], in arrays of T.
    template <class T>
    void reduce(T *out, const T *own, double weight_own, const double *weights, double timeout = default_timeout,
                Report report = {}) {
        report(hpc_queue_reduce(get(), out, own, weight_own, weights, dtype_of<T>::value, timeout));
    }

    // Header and footer of the update that recv gave last: equal when it is whole.
    std::pair<std::uint64_t, std::uint64_t> versions(int peer, Report report = {}) const {
        std::pair<std::uint64_t, std::uint64_t> versions{};
        report(hpc_queue_versions(get(), peer, &versions.first, &versions.second));
        return versions;
    }
    hpc_queue_stats stats(Report report = {}) const {
        hpc_queue_stats stats{};
        report(hpc_queue_get_stats(get(), &stats));
        return stats;
    }
    Memory memory(int rank) const {
        return Memory(hpc_queue_memory(get(), rank));
    }
};

// ---- rule -----------------------------------------------------------------------------------------------------------

// A built-in rule by its name, or one's own by its functions. hyper are args[1] and on; those left out are the
// built-in's defaults, or 0.
struct Rule : hpc_rule {
    explicit Rule(const char *name, Report report = {}) : hpc_rule() {
        report(hpc_rule_find(name, HPC_ISA_BEST, this));
    }
    template <std::size_t N> Rule(const char *name, const double (&hyper)[N], Report report = {}) : Rule(name, report) {
        static_assert(N < HPC_RULE_ARGS, "args[0] is the step");
        std::copy_n(hyper, N, args + 1);
    }
    Rule(const char *name, hpc_apply_fn apply, int slots = 0, hpc_fold_into_fn fold = nullptr) : hpc_rule() {
        this->name = name;
        this->apply = apply;
        this->slots = slots;
        this->fold = fold;
    }
};

// ---- plan -----------------------------------------------------------------------------------------------------------

// A parameter server: hpc_hub's members and defaults.
struct HubConfig {
    std::vector<hpc_key> keys;         // {name, elements}; the names need not outlive the plan's creation
    std::vector<int> workers, servers; // ranks; empty: all of the context
    int cores = 1;                     // of each server
    std::size_t chunk = 32 * 1024;     // bytes of float32
    int depth = 1;
    hpc_dtype wire = HPC_F32;
    bool sum = false;
    bool each = false;
    hpc_affinity affinity = HPC_KEY_BY_CORE;
    int interfaces = 1; // of each server
};

// A node communication graph: hpc_graph's members and defaults.
struct GraphConfig {
    std::vector<hpc_key> keys;   // {name, elements}
    std::vector<double> weights; // [phase][rank][from]; as many phases as there are
    int cores = 1;               // of each rank
    std::size_t chunk = 256 * 1024;
    int depth = 1;
    hpc_dtype wire = HPC_F32;

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
        return graph;
    }
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
              return hpc_plan_hub(&hub, out);
          }) {}
    // A template, so that {} stays a HubConfig.
    template <class Config, class = std::enable_if_t<std::is_same<Config, GraphConfig>::value>>
    Plan(const Context &context, const Config &config, Report report = {})
        : Handle(report, [&](hpc_plan **out) {
              const hpc_graph graph = config.graph(context);
              return hpc_plan_graph(&graph, out);
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

// ---- exchange -------------------------------------------------------------------------------------------------------

// plan, rule and values are arguments of Exchange.
struct ExchangeConfig : hpc_exchange_config {
    ExchangeConfig() {
        hpc_exchange_config_init(this);
    }
};

// What start gave: for test and wait.
struct Ticket {
    int key = 0;
    std::uint64_t number = 0;
};

class Exchange : public Handle<hpc_exchange, hpc_exchange_free> {
  public:
    Exchange() noexcept = default;

    // values, by key, are the initial parameters, of which rank 0's count: nullptr on the others.
    Exchange(Context &context, const hpc_plan *plan, const hpc_rule &rule, const float *const *values,
             ExchangeConfig config = {}, double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_exchange **out) {
              config.plan = plan;
              config.rule = &rule;
              config.values = values;
              return hpc_exchange_create(context.get(), &config, timeout, out);
          }) {}
    Exchange(Context &context, const Plan &plan, const hpc_rule &rule, const float *const *values,
             const ExchangeConfig &config = {}, double timeout = default_timeout, Report report = {})
        : Exchange(context, plan.get(), rule, values, config, timeout, report) {}
    // On a graph; plan was made of it.
    Exchange(Context &context, const Plan &plan, const GraphConfig &graph, const hpc_rule &rule,
             const float *const *values, ExchangeConfig config = {}, double timeout = default_timeout,
             Report report = {})
        : Handle(report, [&](hpc_exchange **out) {
              const hpc_graph of_plan = graph.graph(context);
              config.graph = &of_plan;
              config.plan = plan.get();
              config.rule = &rule;
              config.values = values;
              return hpc_exchange_create(context.get(), &config, timeout, out);
          }) {}

    void close(double timeout = default_timeout, Report report = {}) {
        report(hpc_exchange_close(get(), timeout));
    }

    // Where the next gradient of key goes, in the plan's wire format.
    template <class T = float> T *gradient(int key, double timeout = default_timeout, Report report = {}) {
        void *gradient = nullptr;
        report(hpc_exchange_gradient(get(), key, timeout, &gradient));
        return static_cast<T *>(gradient);
    }
    float *params(int key) const {
        return hpc_exchange_params(get(), key);
    }

    // flags: HPC_PUSH, HPC_PULL or both. src: nullptr where the gradient has been written in place.
    Ticket start(int key, int flags = HPC_PUSH | HPC_PULL, const float *src = nullptr, double timeout = default_timeout,
                 Report report = {}) {
        Ticket ticket{key, 0};
        report(hpc_exchange_start(get(), key, flags, src, timeout, &ticket.number));
        return ticket;
    }
    bool test(const Ticket &ticket, Report report = {}) {
        return report(hpc_exchange_test(get(), ticket.key, ticket.number));
    }
    void wait(const Ticket &ticket, double timeout = default_timeout, Report report = {}) {
        report(hpc_exchange_wait(get(), ticket.key, ticket.number, timeout));
    }

    Ticket push(int key, const float *src = nullptr, double timeout = default_timeout, Report report = {}) {
        return start(key, HPC_PUSH, src, timeout, report);
    }
    Ticket pull(int key, double timeout = default_timeout, Report report = {}) {
        return start(key, HPC_PULL, nullptr, timeout, report);
    }
    void push_pull(int key, const float *src = nullptr, double timeout = default_timeout, Report report = {}) {
        report(hpc_exchange_push_pull(get(), key, src, timeout));
    }

    void progress(Report report = {}) {
        report(hpc_exchange_progress(get()));
    }
    // Until every worker has closed. The default is no deadline: a training takes as long as it takes.
    void serve(double timeout = 1e9, Report report = {}) {
        report(hpc_exchange_serve(get(), timeout));
    }
    void set_args(const hpc_rule &rule, double timeout = default_timeout, Report report = {}) {
        report(hpc_exchange_set_args(get(), rule.args, timeout));
    }

    // A key of which a push or a pull of this rank is under way; -1: none.
    int under_way() const {
        return hpc_exchange_under_way(get());
    }
    // The row's step.
    std::uint64_t get_row(int row, float *params, float *state, Report report = {}) const {
        std::uint64_t step = 0;
        report(hpc_exchange_get_row(get(), row, &step, params, state));
        return step;
    }
    void set_row(int row, std::uint64_t step, const float *params, const float *state, Report report = {}) {
        report(hpc_exchange_set_row(get(), row, step, params, state));
    }
    void publish(double timeout = default_timeout, Report report = {}) {
        report(hpc_exchange_publish(get(), timeout));
    }

    hpc_exchange_stats stats(Report report = {}) const {
        hpc_exchange_stats stats{};
        report(hpc_exchange_get_stats(get(), &stats));
        return stats;
    }
    // On a graph: how many reduces had 0, 1, 2, ... whole inputs of neighbours.
    std::vector<std::uint64_t> inputs(Report report = {}) const {
        std::vector<std::uint64_t> counts;
        const int most = hpc_exchange_get_inputs(get(), nullptr, 0);
        if (most >= 0) counts.resize(static_cast<std::size_t>(most) + 1);
        report(hpc_exchange_get_inputs(get(), counts.data(), static_cast<int>(counts.size())));
        return counts;
    }
    // With a quorum: shares of this rank's last push of key (-1: of all keys) that came too late and were left out.
    int late(int key = -1) const noexcept {
        return hpc_exchange_late(get(), key);
    }
    // The newest version of the parameters that any owner has answered.
    std::uint64_t version() const noexcept {
        return hpc_exchange_version(get());
    }
    hpc_exchange_peer peer(int rank, Report report = {}) const {
        hpc_exchange_peer peer{};
        report(hpc_exchange_get_peer(get(), rank, &peer));
        return peer;
    }
    Memory memory(int rank) const {
        return Memory(hpc_exchange_memory(get(), rank));
    }
    int params_rank() const {
        return hpc_exchange_params_rank(get());
    }
};

} // namespace hpcomm

#endif
