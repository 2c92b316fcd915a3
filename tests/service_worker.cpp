// service_worker.cpp - a worker of a job at a hub, which tests/test_service_cpp.py starts:
//     service_worker MODE RANK SIZE TRANSPORT
// The job is that of HPCOMM_SERVICE, the token that of HPCOMM_SECRET_FILE. WORKER_USER is a user as whom it runs. It
// prints the bits of its parameters, or the class and the sentence of the error that ends it.
#include <hpcomm/hpcomm.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

enum { W = 300 * 70, B = 70, BIG = 150000, STEPS = 3, CHUNK = 4096 };

const std::vector<hpcomm::Key> all = {{"w", W}, {"b", B}, {"big", BIG}};

std::vector<float> numbers(std::size_t count, int salt) {
    std::vector<float> found(count);
    for (std::size_t i = 0; i < count; i++)
        found[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(salt)) % 17) - 8;
    return found;
}

// Prints a checksum of the bits, which depends on their places.
void print_bits(const float *values, std::size_t count) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; i++) {
        std::uint32_t bits;
        std::memcpy(&bits, &values[i], sizeof bits);
        sum += bits * (2 * static_cast<std::uint64_t>(i) + 1);
    }
    std::cout << sum << '\n';
}

// The arguments of an exchange with keys w, b and big.
struct Case {
    std::vector<hpcomm::HubConfig> hubs;
    std::vector<hpcomm::ExchangeConfig> configs;
    std::vector<hpcomm::Rule> rules; // of the configurations
};

hpcomm::HubConfig hub_of(std::vector<hpcomm::Key> keys) {
    hpcomm::HubConfig hub;
    hub.keys = std::move(keys);
    hub.chunk = CHUNK;
    hub.cores = 0;
    hub.interfaces = 0;
    return hub;
}

Case plain() {
    return {{hub_of(all)}, std::vector<hpcomm::ExchangeConfig>(1), {hpcomm::Rule("nesterov", {0.5, 0.0, 0.9})}};
}

Case rounded() {
    Case found = plain();
    found.hubs[0].wire = HPC_F16;
    found.hubs[0].codec_out = HPC_BF16;
    found.rules = {hpcomm::Rule("adam", {0.125})};
    return found;
}

Case pieces() {
    Case found = plain();
    hpcomm::HubConfig &hub = found.hubs[0];
    hub.keys = {{"w", W}, {"b", B}, {"big", BIG, 4096}};
    hub.wires = {HPC_TOPK, HPC_F32, HPC_ONEBIT};
    hub.apply_at = HPC_AT_RECEIVERS;
    hub.depth = 2;
    found.configs[0].codecs = {hpcomm::CodecConfig::topk(0.1), hpcomm::CodecConfig(),
                               hpcomm::CodecConfig::onebit(4096)};
    found.rules = {hpcomm::Rule("momentum", {0.25, 0.0, 0.9})};
    return found;
}

Case groups() {
    Case found;
    found.hubs = {hub_of({{"w", W}}), hub_of({{"b", B}, {"big", BIG}})};
    found.configs.resize(2);
    for (hpcomm::ExchangeConfig &config : found.configs) config.quorum = 2, config.grace = INFINITY;
    found.rules = {hpcomm::Rule("sgd", {0.5}), hpcomm::Rule("adamw", {0.125, 0.5})};
    return found;
}

hpcomm::Exchange exchange_of(hpcomm::Service &service, Case &its) {
    const std::vector<float> w = numbers(W, 1), b = numbers(B, 2), big = numbers(BIG, 3);
    const std::vector<const float *> values = {w.data(), b.data(), big.data()};
    std::size_t first = 0;
    for (std::size_t i = 0; i < its.configs.size(); i++) {
        its.configs[i].rule = &its.rules[i];
        its.configs[i].values = values.data() + first;
        first += its.hubs[i].keys.size();
    }
    if (its.configs.size() > 1) return hpcomm::Exchange(service, its.hubs, its.configs);
    return hpcomm::Exchange(service, its.hubs[0], its.rules[0], values.data(), its.configs[0]);
}

void train_at(hpcomm::Service &service, hpcomm::Exchange &exchange) {
    const int rank = service.context().rank();
    for (int step = 0; step < STEPS; step++) {
        std::vector<hpcomm::Ticket> tickets;
        for (int key = 0; key < 3; key++) {
            const std::vector<float> update =
                numbers(all[static_cast<std::size_t>(key)].count, 13 * rank + 5 * step + 3 * key);
            tickets.push_back(exchange.start(key, HPC_PUSH | HPC_PULL, update.data()));
        }
        for (const hpcomm::Ticket &ticket : tickets) exchange.wait(ticket);
    }
    for (int key = 0; key < 3; key++) print_bits(exchange.params(key), all[static_cast<std::size_t>(key)].count);
    exchange.close();
}

void train(hpcomm::Service &service, Case its) {
    hpcomm::Exchange exchange = exchange_of(service, its);
    train_at(service, exchange);
}

hpcomm::Exchange at_racks(hpcomm::Service &service, hpcomm::HostsConfig racks) {
    const std::vector<float> w = numbers(W, 1), b = numbers(B, 2), big = numbers(BIG, 3);
    const float *values[] = {w.data(), b.data(), big.data()};
    return hpcomm::Exchange(service, racks, hpcomm::Rule("nesterov", {0.5, 0.0, 0.9}), values);
}

// Trains at hubs of racks, by which the hubs fold and in a ring; before that, prints the refusal of a rank in no rack.
void train_in_racks(hpcomm::Service &service) {
    hpcomm::HostsConfig racks;
    racks.keys = all;
    racks.chunk = CHUNK;
    racks.cores = 0;
    racks.groups = hpcomm::rack_groups(service.context(), {{0, 2}, {1}});
    try {
        at_racks(service, racks);
    } catch (const hpcomm::InvalidArgument &wrong) {
        std::cout << wrong.what() << '\n';
    }
    racks.groups = hpcomm::rack_groups(service.context(), {{0, 2}, {1, 3}});
    for (const hpc_top top : {HPC_TOP_SHARDED, HPC_TOP_RING}) {
        racks.top = top;
        hpcomm::Exchange exchange = at_racks(service, racks);
        train_at(service, exchange);
    }
}

void hold(hpcomm::Service &service) {
    Case its = plain();
    hpcomm::Exchange exchange = exchange_of(service, its);
    std::cout << "holds" << std::endl;
    std::string line;
    std::getline(std::cin, line);
    const std::vector<float> update = numbers(W, service.context().rank());
    exchange.push_pull(0, update.data());
    print_bits(exchange.params(0), W);
    exchange.close();
}

void step_once(hpcomm::Exchange &exchange, int rank, int step) {
    for (int key = 0; key < 3; key++) {
        const std::size_t count = all[static_cast<std::size_t>(key)].count;
        exchange.push_pull(key, numbers(count, 13 * rank + 5 * step + 3 * key).data());
    }
}

// Trains from where the exchange is up to step 4, and lets the hub save it before and after the last step. Prints where
// it began, what was saved and the bits.
void save(hpcomm::Service &service, Case its) {
    hpcomm::Exchange exchange = exchange_of(service, its);
    const std::uint64_t begins = exchange.steps(service);
    std::cout << begins << '\n';
    for (int key = 0; key < 3; key++) print_bits(exchange.params(key), all[static_cast<std::size_t>(key)].count);
    try {
        if (service.context().rank() == 0) exchange.start(1, HPC_PUSH, numbers(B, 0).data());
        exchange.save(service);
    } catch (const hpcomm::Error &wrong) {
        std::cout << wrong.what() << '\n';
    }
    if (service.context().rank() != 0) exchange.start(1, HPC_PUSH, numbers(B, 0).data());
    exchange.wait(exchange.pull(1));
    std::cout << exchange.save(service) << '\n';
    step_once(exchange, service.context().rank(), static_cast<int>(begins));
    std::cout << exchange.save(service) << '\n';
    for (int key = 0; key < 3; key++) print_bits(exchange.params(key), all[static_cast<std::size_t>(key)].count);
    exchange.close();
}

int apply_own(float *, const float *, std::int64_t, float *, const double *, std::int64_t) {
    return 0;
}

void use_own_code(hpcomm::Service &service) {
    Case its = plain();
    its.rules = {hpcomm::Rule("mine", apply_own)};
    exchange_of(service, its);
}

void ask_too_much(hpcomm::Service &service) {
    Case its = plain();
    its.hubs[0].cores = 2;
    exchange_of(service, its);
}

// Prints the refusals of several exchanges; then makes an exchange that is not refused.
void be_refused(hpcomm::Service &service) {
    for (void (*make)(hpcomm::Service &) : {use_own_code, ask_too_much}) {
        try {
            make(service);
        } catch (const hpcomm::InvalidArgument &wrong) {
            std::cout << wrong.what() << '\n';
        }
    }
    train(service, plain());
}

void wait_for_notice(hpcomm::Service &service) {
    Case its = plain();
    hpcomm::Exchange exchange = exchange_of(service, its);
    std::cout << "holds" << std::endl;
    std::string line;
    std::getline(std::cin, line);
    try {
        exchange.push_pull(0, numbers(W, 0).data());
        exchange.push_pull(0, numbers(W, 0).data());
    } catch (const hpcomm::PeerFailed &failed) {
        std::cout << "rank " << failed.ranks().at(0) << '\n';
    }
    for (const std::string &notice : service.notices()) std::cout << notice << '\n';
}

// Forks a child that uses and frees the service, which is its parent's.
void fork_a_child(hpcomm::Service &service) {
    std::cout.flush();
    const pid_t child = fork();
    if (child == 0) {
        std::error_code code;
        Case its = plain();
        const std::vector<float> values(BIG);
        const float *by_key[] = {values.data(), values.data(), values.data()};
        const hpcomm::Exchange none(service, its.hubs[0], its.rules[0], by_key, {}, 1.0, code);
        const bool refused = !none && code == hpcomm::make_error_code(HPC_ERR_INVALID) && service.notices().empty();
        service.close(code);
        service.reset();
        _exit(refused && !code ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::cout << "the child ended with " << WEXITSTATUS(status) << '\n';
}

int run(const std::string &mode, int rank, int size, const std::string &transport) {
    hpcomm::Config config;
    if (!transport.empty()) config.transports = transport.c_str();
    config.timeout = 15;
    if (mode == "alone") config.init_timeout = 0.5;
    std::string token; // read by root
    if (const char *user = std::getenv("WORKER_USER")) {
        std::getline(std::ifstream(std::getenv("HPCOMM_SECRET_FILE")), token);
        if (setuid(static_cast<uid_t>(std::atoi(user))) != 0) return 3;
    }
    hpcomm::Service service({}, token, rank, size, config);
    if (mode == "train")
        for (Case (*its)() : {plain, rounded, pieces, groups}) train(service, its());
    if (mode == "racks") train_in_racks(service);
    if (mode == "save") save(service, rounded());
    if (mode == "hold") hold(service);
    if (mode == "refused") be_refused(service);
    if (mode == "notice") wait_for_notice(service);
    if (mode == "fork") fork_a_child(service);
    if (mode == "workers" || mode == "fork")
        for (int told : service.context().allgather(rank)) std::cout << "rank " << told << " of " << size << '\n';
    service.close();
    service.close();
    return EXIT_SUCCESS;
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    const std::string mode = argv[1];
    try {
        if (mode != "create") return run(mode, std::atoi(argv[2]), std::atoi(argv[3]), argv[4]);
        std::cout << hpcomm::create_service(argv[2], argv[3], argc > 5 ? argv[5] : "", argv[4]) << '\n';
        return EXIT_SUCCESS;
    } catch (const hpcomm::Error &error) {
        static const char *const names[] = {
            "",           "InvalidArgument", "ConfigError", "NotSupported", "TransportError",
            "PeerFailed", "Timeout",         "AuthError",   "OutOfMemory"};
        std::cout << names[-error.code().value()] << '\n' << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
