// exchange.hpp - push, pull, and the rule that is applied between them.
#ifndef HPCOMM_EXCHANGE_HPP
#define HPCOMM_EXCHANGE_HPP

#include "plan.hpp"
#include "service.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hpcomm {

// A built-in rule, given by its name, or a user's rule, given by its functions. The argument hyper gives args[1] and
// on; args that hyper omits have the built-in rule's defaults, or 0 in a user's rule.
struct Rule : hpc_rule {
    explicit Rule(const char *name, Report report = {}) : hpc_rule() {
        report(hpc_rule_find(name, HPC_ISA_BEST, this));
    }
    template <std::size_t N> Rule(const char *name, const double (&hyper)[N], Report report = {}) : Rule(name, report) {
        static_assert(N < HPC_RULE_ARGS, "args[0] is the step");
        std::copy_n(hyper, N, args + 1);
    }
    Rule(const char *name, hpc_apply_fn apply, int slots = 0, hpc_fold_into_fn fold = nullptr, unsigned fold_wires = 0)
        : hpc_rule() {
        this->name = name;
        this->apply = apply;
        this->slots = slots;
        this->fold = fold;
        this->fold_wires = fold_wires;
    }
    // Adds a built-in prox, by its name, for a key with rows of `columns` elements.
    Rule &with_prox(const char *name, std::uint64_t columns, Report report = {}) {
        report(hpc_prox_find(name, HPC_ISA_BEST, &prox));
        this->columns = columns;
        return *this;
    }
};

// The settings of an exchange. plan, rule and values are arguments of Exchange, unless it has several configurations.
struct ExchangeConfig : hpc_exchange_config {
    // Codecs of pieces, if the plan has such codecs: either one for each key, with CodecConfig() for keys without a
    // codec, or a single one for all keys that have it in the plan. They must live until the exchange has been made.
    std::vector<CodecConfig> codecs;

    ExchangeConfig() : hpc_exchange_config() {
        hpc_exchange_config_init(this);
    }
};

// The ticket of a start, for test and wait.
struct Ticket {
    int key = 0;
    std::uint64_t number = 0;
};

class Exchange : public Handle<hpc_exchange, hpc_exchange_free> {
  public:
    Exchange() noexcept = default;

    // values, by key: the initial parameters. Those at rank 0 are used; other ranks may give nullptr.
    Exchange(Context &context, const hpc_plan *plan, const hpc_rule &rule, const float *const *values,
             ExchangeConfig config = {}, double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_exchange **out) {
              config.plan = plan;
              config.rule = &rule;
              config.values = values;
              return create(context, &config, 1, timeout, out);
          }) {}
    Exchange(Context &context, const Plan &plan, const hpc_rule &rule, const float *const *values,
             const ExchangeConfig &config = {}, double timeout = default_timeout, Report report = {})
        : Exchange(context, plan.get(), rule, values, config, timeout, report) {}
    // An exchange on the graph from which plan was made.
    Exchange(Context &context, const Plan &plan, const GraphConfig &graph, const hpc_rule &rule,
             const float *const *values, ExchangeConfig config = {}, double timeout = default_timeout,
             Report report = {})
        : Handle(report, [&](hpc_exchange **out) {
              const hpc_graph of_plan = graph.graph(context);
              config.graph = &of_plan;
              config.plan = plan.get();
              config.rule = &rule;
              config.values = values;
              return create(context, &config, 1, timeout, out);
          }) {}

    // An exchange of several configurations; keys are numbered through all of them. Each has its own plan, rule and
    // values, and if needed a graph.
    Exchange(Context &context, const std::vector<ExchangeConfig> &configs, double timeout = default_timeout,
             Report report = {})
        : Handle(report,
                 [&](hpc_exchange **out) { return create(context, configs.data(), configs.size(), timeout, out); }) {}

    // An exchange whose only servers are the hubs of a job (hpc_service_exchange). Of hub the members workers and
    // servers are ignored; cores 0 means as many as the hubs have.
    Exchange(Service &service, const HubConfig &hub, const hpc_rule &rule, const float *const *values,
             ExchangeConfig config = {}, double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_exchange **out) {
              config.rule = &rule;
              config.values = values;
              return create(service, &hub, &config, 1, timeout, out);
          }) {}
    // The same with a hub for each rack: of racks the members workers, leads and serves are left out, and groups come
    // from rack_groups.
    Exchange(Service &service, const HostsConfig &racks, const hpc_rule &rule, const float *const *values,
             ExchangeConfig config = {}, double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_exchange **out) {
              config.rule = &rule;
              config.values = values;
              return create(service, &racks, &config, 1, timeout, out);
          }) {}
    // The same of several configurations, each with its own rule, values and arguments of a plan.
    Exchange(Service &service, const std::vector<HubConfig> &hubs, const std::vector<ExchangeConfig> &configs,
             double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_exchange **out) {
              return create(service, hubs.data(), configs.data(), std::min(hubs.size(), configs.size()), timeout, out);
          }) {}
    Exchange(Service &service, const std::vector<HostsConfig> &racks, const std::vector<ExchangeConfig> &configs,
             double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_exchange **out) {
              return create(service, racks.data(), configs.data(), std::min(racks.size(), configs.size()), timeout,
                            out);
          }) {}

    void close(double timeout = default_timeout, Report report = {}) {
        report(hpc_exchange_close(get(), timeout));
    }

    // Lets the hubs save an exchange of a service (hpc_service_save); returns how many steps they have saved.
    std::uint64_t save(Service &service, double timeout = default_timeout, Report report = {}) {
        std::uint64_t steps = 0;
        report(hpc_service_save(service.get(), get(), timeout, &steps));
        return steps;
    }
    // Returns the steps with which it began: those of its save if the job resumes.
    std::uint64_t steps(const Service &service) const noexcept {
        return hpc_service_steps(service.get(), get());
    }

    // Returns the address for the next gradient of key, in the key's wire format.
    template <class T = float> T *gradient(int key, double timeout = default_timeout, Report report = {}) {
        void *gradient = nullptr;
        report(hpc_exchange_gradient(get(), key, timeout, &gradient));
        return static_cast<T *>(gradient);
    }
    // Returns the memory for the next update of a key that goes as factors. A push without src sends it.
    hpc_factors factors(int key, double timeout = default_timeout, Report report = {}) {
        hpc_factors factors{};
        report(hpc_exchange_factors(get(), key, timeout, &factors));
        return factors;
    }
    float *params(int key) const {
        return hpc_exchange_params(get(), key);
    }
    hpc_key_facts facts(int key, Report report = {}) const {
        hpc_key_facts facts{};
        report(hpc_exchange_get_key_facts(get(), key, &facts));
        return facts;
    }

    // Starts a push (HPC_PUSH), a pull (HPC_PULL) or both. src nullptr: the caller has written the gradient to
    // gradient(key).
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
    // Pushes a copy of count pairs of vectors. u: count vectors of the matrix's rows values; v: of its columns values.
    Ticket push_factors(int key, int count, const float *u, const float *v, int flags = HPC_PUSH | HPC_PULL,
                        double timeout = default_timeout, Report report = {}) {
        Ticket ticket{key, 0};
        report(hpc_exchange_start_factors(get(), key, flags, count, u, v, timeout, &ticket.number));
        return ticket;
    }
    void push_pull(int key, const float *src = nullptr, double timeout = default_timeout, Report report = {}) {
        report(hpc_exchange_push_pull(get(), key, src, timeout));
    }

    // Calls for config.split = 1: a push is then only the fold. After it all workers may call squares and gather, and
    // must call apply or skip.
    Ticket fold_nothing(int key, double timeout = default_timeout, Report report = {}) {
        Ticket ticket{key, 0};
        report(hpc_exchange_fold_nothing(get(), key, timeout, &ticket.number));
        return ticket;
    }
    Ticket apply(int key, double scale = 1, double timeout = default_timeout, Report report = {}) {
        Ticket ticket{key, 0};
        report(hpc_exchange_apply(get(), key, scale, timeout, &ticket.number));
        return ticket;
    }
    void set_unit(int key, double unit, Report report = {}) {
        report(hpc_exchange_set_unit(get(), key, unit));
    }
    Ticket skip(int key, double timeout = default_timeout, Report report = {}) {
        Ticket ticket{key, 0};
        report(hpc_exchange_skip(get(), key, timeout, &ticket.number));
        return ticket;
    }
    Ticket gather(int key, double timeout = default_timeout, Report report = {}) {
        Ticket ticket{key, 0};
        report(hpc_exchange_gather(get(), key, timeout, &ticket.number));
        return ticket;
    }
    const float *gathered(int key) const {
        return hpc_exchange_gathered(get(), key);
    }
    Ticket squares(int key, double timeout = default_timeout, Report report = {}) {
        Ticket ticket{key, 0};
        report(hpc_exchange_squares(get(), key, timeout, &ticket.number));
        return ticket;
    }
    // Returns the result of the last call of squares that has ended.
    double get_squares(int key, Report report = {}) const {
        double sum = 0;
        report(hpc_exchange_get_squares(get(), key, &sum));
        return sum;
    }

    // Waits until the owners have applied all pushes of this rank.
    void settle(double timeout = default_timeout, Report report = {}) {
        report(hpc_exchange_settle(get(), timeout));
    }
    // With true later starts may be kept back and sent together; false, or a wait, sends all that are kept.
    void together(bool on, Report report = {}) {
        report(hpc_exchange_together(get(), on));
    }
    void progress(Report report = {}) {
        report(hpc_exchange_progress(get()));
    }
    // Works on this rank's rows until every worker has closed. The default timeout is about 30 years, because a
    // training has no time limit.
    void serve(double timeout = 1e9, Report report = {}) {
        report(hpc_exchange_serve(get(), timeout));
    }
    // Sets the args of one key's rule, or of all (-1), from the next push on.
    void set_args(const hpc_rule &rule, int key = -1, Report report = {}) {
        report(hpc_exchange_set_args(get(), key, rule.args));
    }

    // Returns a key with a pending push or pull of this rank; -1 if there is no such key.
    int under_way() const {
        return hpc_exchange_under_way(get());
    }
    // Returns the row's step.
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
    // Returns how many pushes of rank this rank's rows have folded, at least in part. For ASYNC and SSP with servers.
    std::uint64_t folded(int rank, Report report = {}) const {
        std::uint64_t pushes = 0;
        report(hpc_exchange_get_folded(get(), rank, &pushes));
        return pushes;
    }

    // Returns counters of key: bytes that this rank has sent, and pieces that it has encoded.
    hpc_key_stats key_stats(int key, Report report = {}) const {
        hpc_key_stats stats{};
        report(hpc_exchange_get_key_stats(get(), key, &stats));
        return stats;
    }
    // For checkpoints: returns how many values the encoder of a row of this rank has, or, with row -1, the encoder of
    // this worker's pushes of key; 0 if there is no encoder.
    std::size_t encoder_values(int key, int row, Report report = {}) const {
        const std::int64_t n = hpc_exchange_encoder_values(get(), key, row);
        report(n < 0 ? static_cast<int>(n) : HPC_OK);
        return n < 0 ? 0 : static_cast<std::size_t>(n);
    }
    // Returns how many encodings the encoder has made.
    std::uint64_t get_encoder(int key, int row, float *values, Report report = {}) const {
        std::uint64_t made = 0;
        report(hpc_exchange_get_encoder(get(), key, row, &made, values));
        return made;
    }
    void set_encoder(int key, int row, std::uint64_t made, const float *values, Report report = {}) {
        report(hpc_exchange_set_encoder(get(), key, row, made, values));
    }

    // Sets the delta of HPC_THRESHOLD for this rank's encodings of key (-1: of all such keys). of: HPC_DELTA_OF_PUSHES,
    // HPC_DELTA_OF_FOLDS or both.
    void set_delta(int key, double delta, int of = HPC_DELTA_OF_PUSHES | HPC_DELTA_OF_FOLDS, Report report = {}) {
        report(hpc_exchange_set_delta(get(), key, of, delta));
    }

    // Returns a text that says which threads work for this rank's cores, and why.
    std::string chosen_progress(Report report = {}) const {
        std::string text(1024, 0);
        report(hpc_exchange_get_progress(get(), &text[0], text.size()));
        text.resize(text.find('\0'));
        return text;
    }

    hpc_exchange_stats stats(Report report = {}) const {
        hpc_exchange_stats stats{};
        report(hpc_exchange_get_stats(get(), &stats));
        return stats;
    }
    // On a graph: returns how many folds had 0, 1, 2, ... whole inputs of neighbours.
    std::vector<std::uint64_t> inputs(Report report = {}) const {
        std::vector<std::uint64_t> counts;
        const int most = hpc_exchange_get_histogram(get(), HPC_FOLDS_BY_INPUTS, nullptr, 0);
        if (most >= 0) counts.resize(static_cast<std::size_t>(most) + 1);
        report(hpc_exchange_get_histogram(get(), HPC_FOLDS_BY_INPUTS, counts.data(), static_cast<int>(counts.size())));
        return counts;
    }
    // Under SSP with servers: returns how many steps began with the slowest worker 0, 1, 2, ... steps behind.
    std::vector<std::uint64_t> staleness(Report report = {}) const {
        std::vector<std::uint64_t> counts;
        const int most = hpc_exchange_get_histogram(get(), HPC_STEPS_BY_STALENESS, nullptr, 0);
        if (most >= 0) counts.resize(static_cast<std::size_t>(most) + 1);
        report(
            hpc_exchange_get_histogram(get(), HPC_STEPS_BY_STALENESS, counts.data(), static_cast<int>(counts.size())));
        return counts;
    }
    // With a quorum: returns how many shares of this rank's last push of key (-1: of all keys) were late and left out.
    int late(int key = -1) const noexcept {
        return hpc_exchange_late(get(), key);
    }
    // Returns the newest version of the parameters that any owner has answered. With a quorum all keys of a
    // configuration have one version; without a quorum a key's version is the number of its pushes.
    std::uint64_t version(int key = -1) const noexcept {
        return hpc_exchange_version(get(), key);
    }
    hpc_exchange_peer peer(int rank, Report report = {}) const {
        hpc_exchange_peer peer{};
        report(hpc_exchange_get_peer(get(), rank, &peer));
        return peer;
    }
    // Returns the bytes that this rank has sent to others so far, by rank and then by stage, without entries of 0.
    std::vector<hpc_traffic> traffic(Report report = {}) const {
        std::vector<hpc_traffic> sent;
        int n = hpc_exchange_get_traffic(get(), nullptr, 0);
        while (n > static_cast<int>(sent.size())) { // cores may count meanwhile
            sent.resize(static_cast<std::size_t>(n));
            n = hpc_exchange_get_traffic(get(), sent.data(), n);
        }
        report(n < 0 ? n : HPC_OK);
        return sent;
    }
    // Returns a reference that keeps the memory at `at` mapped, an address that params, gradient or gathered returned
    // for key.
    Memory memory(int key, const void *at) const {
        return Memory(hpc_exchange_memory(get(), key, at));
    }

  private:
    // C copies the codecs, and refuses a wrong plan with its own message.
    static int create(const Context &context, const ExchangeConfig *configs, std::size_t n, double timeout,
                      hpc_exchange **out) {
        std::vector<hpc_exchange_config> c(configs, configs + n);
        std::vector<CodecsByKey> codecs;
        codecs.reserve(n); // c points into them
        for (std::size_t i = 0; i < n; i++) {
            if (i > 0) c[i - 1].next = &c[i];
            if (configs[i].codecs.empty() || hpc_plan_check(c[i].plan, context.size()) != HPC_OK) continue;
            codecs.emplace_back(configs[i].codecs, *c[i].plan);
            c[i].codecs = codecs.back().data();
            if (c[i].refusal == nullptr) c[i].refusal = codecs.back().refusal();
        }
        return hpc_exchange_create(context.get(), c.data(), timeout, out);
    }

    static hpc_hub args_of(const HubConfig &config) {
        return config.hub();
    }
    static hpc_hosts args_of(const HostsConfig &config) {
        return config.hosts();
    }
    static const hpc_hub *const *hubs_of(const std::vector<const hpc_hub *> &given) {
        return given.data();
    }
    static const hpc_hub *const *hubs_of(const std::vector<const hpc_hosts *> &) {
        return nullptr;
    }
    static const hpc_hosts *const *racks_of(const std::vector<const hpc_hub *> &) {
        return nullptr;
    }
    static const hpc_hosts *const *racks_of(const std::vector<const hpc_hosts *> &given) {
        return given.data();
    }

    // Config: a HubConfig, or a HostsConfig of racks.
    template <class Config>
    static int create(const Service &service, const Config *hubs, const ExchangeConfig *configs, std::size_t n,
                      double timeout, hpc_exchange **out) {
        using Args = decltype(args_of(*hubs));
        std::vector<hpc_exchange_config> c(configs, configs + n);
        std::vector<Args> args(n);
        std::vector<const Args *> addresses(n);
        std::vector<CodecsByKey> codecs;
        codecs.reserve(n); // c points into them
        for (std::size_t i = 0; i < n; i++) {
            args[i] = args_of(hubs[i]);
            addresses[i] = &args[i];
            if (i > 0) c[i - 1].next = &c[i];
            if (configs[i].codecs.empty()) continue;
            const std::vector<int> all(hubs[i].keys.size(), hubs[i].wire);
            codecs.emplace_back(configs[i].codecs, hubs[i].keys.data(), hubs[i].wires.empty() ? all : hubs[i].wires);
            c[i].codecs = codecs.back().data();
            if (c[i].refusal == nullptr) c[i].refusal = codecs.back().refusal();
        }
        return hpc_service_exchange(service.get(), hubs_of(addresses), racks_of(addresses), n == 0 ? nullptr : c.data(),
                                    timeout, out);
    }
};

} // namespace hpcomm

#endif
