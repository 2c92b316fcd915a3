"""Codecs of variable length from C++: three ranks, threads of one program, train with them."""

from pathlib import Path

import mpi
from test_cpp import STRICT, info, run, tool

PROGRAM = r"""
#undef NDEBUG
#include <hpcomm/hpcomm.hpp>
#include <cassert>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>

using hpcomm::CodecConfig;

enum { RANKS = 3, STEPS = 6, HALF = 3, COUNT = 700 };
static const double SECONDS = 30;

// Whole numbers, so that all sums are exact.
static float update_of(int rank, int step, int key, int i) {
    return static_cast<float>((i * 7 + step * 13 + rank * 5 + key * 3) % 23 - 11);
}

static std::vector<float> total_of(int steps, int key, std::size_t count) {
    std::vector<float> total(count);
    for (int rank = 0; rank < RANKS; rank++)
        for (int step = 0; step < steps; step++)
            for (std::size_t i = 0; i < count; i++) total[i] += update_of(rank, step, key, static_cast<int>(i));
    return total;
}

static hpcomm::HubConfig hub_of(std::vector<hpcomm::Key> keys) {
    hpcomm::HubConfig hub;
    hub.keys = std::move(keys);
    hub.chunk = 1024;
    hub.depth = 2;
    hub.sum = true;
    hub.apply_at = HPC_AT_RECEIVERS;
    return hub;
}

// A copy of a copy, and nothing else is left of the codecs.
static hpcomm::ExchangeConfig with(std::vector<CodecConfig> codecs) {
    hpcomm::ExchangeConfig config;
    config.progress = HPC_PROGRESS_INLINE;
    config.codecs = std::move(codecs);
    const hpcomm::ExchangeConfig copy = config;
    return copy;
}

static void train(hpcomm::Context &context, const hpcomm::Plan &plan, hpcomm::Exchange &exchange, int from, int to) {
    for (int step = from; step < to; step++) {
        std::vector<hpcomm::Ticket> tickets;
        for (int key = 0; key < plan.n_keys(); key++) {
            float *gradient = exchange.gradient(key, SECONDS);
            for (std::uint64_t i = 0; i < plan.key(key).count; i++)
                gradient[i] = update_of(context.rank(), step, key, static_cast<int>(i));
            tickets.push_back(exchange.start(key, HPC_PUSH | HPC_PULL, nullptr, SECONDS));
        }
        for (const hpcomm::Ticket &ticket : tickets) exchange.wait(ticket, SECONDS);
    }
    context.barrier(SECONDS); // no rank looks at encoders while others push
}

struct Encoder {
    int key, row;
    std::uint64_t made;
    std::vector<float> values;
};

static std::vector<Encoder> encoders_of(const hpcomm::Plan &plan, const hpcomm::Exchange &exchange, int rank) {
    std::vector<Encoder> encoders;
    for (int key = 0; key < plan.n_keys(); key++) encoders.push_back({key, -1, 0, {}});
    for (int row = 0; row < plan.n_rows(); row++)
        if (plan.row(row).owner == rank) encoders.push_back({plan.row(row).key, row, 0, {}});
    std::vector<Encoder> found;
    for (Encoder &one : encoders) {
        one.values.resize(exchange.encoder_values(one.key, one.row));
        if (one.values.empty()) continue;
        one.made = exchange.get_encoder(one.key, one.row, one.values.data());
        found.push_back(one);
    }
    return found;
}

static std::vector<std::vector<float>> params_of(const hpcomm::Plan &plan, const hpcomm::Exchange &exchange) {
    std::vector<std::vector<float>> params;
    for (int key = 0; key < plan.n_keys(); key++)
        params.emplace_back(exchange.params(key), exchange.params(key) + plan.key(key).count);
    return params;
}

static std::vector<const float *> pointers(const std::vector<std::vector<float>> &arrays) {
    std::vector<const float *> all;
    for (const std::vector<float> &array : arrays) all.push_back(array.data());
    return all;
}

// The updates are the parameters (their rule is w -= update) and what all encoders hold back.
static void check_sum(hpcomm::Context &context, const hpcomm::Plan &plan, const hpcomm::Exchange &exchange) {
    const std::vector<Encoder> mine = encoders_of(plan, exchange, context.rank());
    for (int key = 0; key < plan.n_keys(); key++) {
        const std::size_t count = plan.key(key).count;
        std::vector<float> held(count), all(count * RANKS);
        for (const Encoder &one : mine) {
            if (one.key != key) continue;
            assert(one.made == STEPS);
            const std::size_t offset = one.row < 0 ? 0 : plan.row(one.row).offset;
            const std::size_t n = one.row < 0 ? count : plan.row(one.row).count;
            for (std::size_t i = 0; i < n; i++) held[offset + i] += one.values[i];
        }
        context.allgather(held.data(), all.data(), count * sizeof(float), SECONDS);
        const std::vector<float> total = total_of(STEPS, key, count);
        bool holds = false, sent = false;
        for (std::size_t i = 0; i < count; i++) {
            const float back = all[i] + all[count + i] + all[2 * count + i];
            assert(back - exchange.params(key)[i] == total[i]);
            holds = holds || back != 0;
            sent = sent || exchange.params(key)[i] != 0;
        }
        assert(sent && holds == (key < 2));
    }
}

static void check_stats(const hpcomm::Plan &plan, const hpcomm::Exchange &exchange) {
    for (int key = 0; key < 2; key++) {
        const hpc_key_stats stats = exchange.key_stats(key);
        assert(stats.pieces >= STEPS && stats.elements >= STEPS * plan.key(key).count && stats.decoded > 0);
        assert(stats.kept > 0 && stats.kept < stats.elements && stats.bytes_before == 4 * stats.elements);
        assert(stats.bytes > 0 && stats.bytes < stats.bytes_before);
    }
    const hpc_key_stats none = exchange.key_stats(2);
    assert(none.pieces == 0 && none.bytes == 0 && none.decoded == 0);
    std::error_code code;
    exchange.key_stats(3, code);
    assert(code == hpcomm::make_error_code(HPC_ERR_INVALID));
    assert(exchange.encoder_values(0, plan.n_rows(), code) == 0 && code == hpcomm::make_error_code(HPC_ERR_INVALID));
    assert(exchange.encoder_values(2, -1, code) == 0 && !code);
    assert(exchange.get_encoder(2, -1, nullptr, code) == 0 && code == hpcomm::make_error_code(HPC_ERR_INVALID));
}

static void trains(hpcomm::Context &context) {
    const CodecConfig low = CodecConfig::threshold(5, false), high = CodecConfig::topk(0.1);
    hpcomm::HubConfig hub = hub_of({{"low", COUNT}, {"high", COUNT - 100}, {"bias", 3}});
    hub.wires = {low.number, HPC_TOPK, HPC_F32};
    const hpcomm::Plan plan(context, hub);
    assert(plan.row(0).codec_in == HPC_THRESHOLD && low.number == HPC_THRESHOLD && high.number == HPC_TOPK);
    const hpcomm::Rule rule("sgd", {1.0});
    const std::vector<std::vector<float>> zeros = {
        std::vector<float>(COUNT), std::vector<float>(COUNT - 100), std::vector<float>(3)};

    hpcomm::Exchange exchange(context, plan, rule, pointers(zeros).data(), with({low, high, CodecConfig()}), SECONDS);
    train(context, plan, exchange, 0, HALF);
    const std::vector<std::vector<float>> params = params_of(plan, exchange);
    const std::vector<Encoder> encoders = encoders_of(plan, exchange, context.rank());
    assert(encoders.size() > 2); // those of the pushes, and of rows that send their fold on
    context.barrier(SECONDS);
    train(context, plan, exchange, HALF, STEPS);
    check_sum(context, plan, exchange);
    check_stats(plan, exchange);
    const std::vector<std::vector<float>> last = params_of(plan, exchange);
    exchange.close(SECONDS);

    // Again from the middle.
    hpcomm::Exchange again(context, plan, rule, pointers(params).data(), with({low, high, CodecConfig()}), SECONDS);
    for (const Encoder &one : encoders) again.set_encoder(one.key, one.row, one.made, one.values.data());
    context.barrier(SECONDS);
    train(context, plan, again, HALF, STEPS);
    assert(params_of(plan, again) == last);
    again.close(SECONDS);
}

static int64_t encode(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap) {
    if (args[0] < 1 || cap != 4 * n) return -1;
    for (int64_t i = 0; i < n; i++) {
        state[i] += 1;
        static_cast<float *>(out)[i] = x[i] / static_cast<float>(args[1]);
    }
    return 4 * n;
}

static int decode_add(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    if (nbytes != 4 * n) return -1;
    for (int64_t i = 0; i < n; i++)
        acc[i] += static_cast<float>(weight * args[1] * static_cast<double>(static_cast<const float *>(in)[i]));
    return 0;
}

// One codec for all keys that have it, and the codec itself as wire.
static void own(hpcomm::Context &context) {
    const CodecConfig halves = CodecConfig::own("halves", encode, decode_add, {2.0}, 1);
    hpcomm::HubConfig hub = hub_of({{"a", 300}, {"b", 200}});
    hub.wire = halves;
    const std::vector<std::vector<float>> zeros = {std::vector<float>(300), std::vector<float>(200)};
    const hpcomm::Plan plan(context, hub);
    hpcomm::Exchange exchange(context, plan, hpcomm::Rule("sgd", {1.0}), pointers(zeros).data(), with({halves}),
                              SECONDS);
    train(context, plan, exchange, 0, 2);
    for (int key = 0; key < 2; key++) {
        const std::vector<float> total = total_of(2, key, plan.key(key).count);
        for (std::size_t i = 0; i < total.size(); i++) assert(exchange.params(key)[i] == -total[i]);
        std::vector<float> values(exchange.encoder_values(key, -1));
        assert(values.size() == 2 * total.size() + 2 && exchange.get_encoder(key, -1, values.data()) == 2);
        assert(values[0] == 0 && values[total.size()] == 2); // the residual, and state of its own
    }
    exchange.close(SECONDS);
}

static void onebit(hpcomm::Context &context) {
    const CodecConfig bits = CodecConfig::onebit(64);
    hpcomm::HubConfig hub = hub_of({{"matrix", 640, 64}, {"bias", 5}});
    hub.wires = {bits.number, HPC_F16};
    const std::vector<std::vector<float>> zeros = {std::vector<float>(640), std::vector<float>(5)};
    const hpcomm::Plan plan(context, hub);
    hpcomm::Exchange exchange(context, plan, hpcomm::Rule("sgd", {1.0}), pointers(zeros).data(), with({bits}), SECONDS);
    float *gradient = exchange.gradient(0, SECONDS);
    for (int i = 0; i < 640; i++) gradient[i] = i % 3 == 0 ? 2.0f : -1.0f; // two values, so nothing is left out
    exchange.push_pull(0, nullptr, SECONDS);
    for (int i = 0; i < 640; i++) assert(exchange.params(0)[i] == (i % 3 == 0 ? -6.0f : 3.0f));
    const hpc_key_stats stats = exchange.key_stats(0);
    assert(stats.bytes > 0 && 5 * stats.bytes < stats.bytes_before);
    context.barrier(SECONDS);
    exchange.close(SECONDS);
}

static void float4(hpcomm::Context &context) {
    const CodecConfig plain = CodecConfig::float4(64), fed = CodecConfig::float4(64, true);
    assert(plain.number == HPC_FLOAT4 && plain.no_feedback && !fed.no_feedback && CodecConfig::float4().unit == 256);
    for (const CodecConfig &four : {plain, fed}) {
        hpcomm::HubConfig hub = hub_of({{"matrix", 640, 64}, {"bias", 5}});
        hub.wires = {four.number, HPC_F16};
        const std::vector<std::vector<float>> zeros = {std::vector<float>(640), std::vector<float>(5)};
        const hpcomm::Plan plan(context, hub);
        hpcomm::Exchange exchange(context, plan, hpcomm::Rule("sgd", {1.0}), pointers(zeros).data(), with({four}),
                                  SECONDS);
        float *gradient = exchange.gradient(0, SECONDS);
        for (int i = 0; i < 640; i++) gradient[i] = i % 64 == 0 ? 8.0f : i % 3 == 0 ? -0.125f : 1.25f;
        exchange.push_pull(0, nullptr, SECONDS);
        for (int i = 0; i < 640; i++)
            assert(exchange.params(0)[i] == (i % 64 == 0 ? -24.0f : i % 3 == 0 ? 0.375f : -3.0f));
        const hpc_key_stats stats = exchange.key_stats(0);
        assert(stats.bytes > 0 && 6 * stats.bytes < stats.bytes_before);
        std::vector<float> values(exchange.encoder_values(0, -1));
        assert(values.size() == (four.no_feedback ? 2 : 642));
        if (!four.no_feedback) assert(exchange.get_encoder(0, -1, values.data()) == 1 && values[1] == 0.25f);
        context.barrier(SECONDS);
        exchange.close(SECONDS);
    }
}

static void refuses(hpcomm::Context &context, const hpcomm::HubConfig &hub, const hpcomm::ExchangeConfig &config,
                    const char *sentence) {
    const std::vector<float> zeros(100);
    const float *values[] = {zeros.data(), zeros.data()};
    const hpcomm::Plan plan(context, hub);
    std::error_code code;
    const hpcomm::Exchange none(context, plan, hpcomm::Rule("sgd"), values, config, SECONDS, code);
    assert(!none && code == hpcomm::make_error_code(HPC_ERR_INVALID));
    if (std::strstr(hpc_last_error()->message, sentence) == nullptr) std::puts(hpc_last_error()->message);
    assert(std::strstr(hpc_last_error()->message, sentence) != nullptr);
}

static void refusals(hpcomm::Context &context) {
    const CodecConfig low = CodecConfig::threshold(5), high = CodecConfig::topk(0.1, HPC_BF16);
    hpcomm::HubConfig hub = hub_of({{"a", 100}, {"b", 100}});
    refuses(context, hub, with({low}), "exchange: codecs has codec 8, and no key has it by the plan");
    hub.wires = {HPC_THRESHOLD, HPC_TOPK};
    refuses(context, hub, {}, "exchange: key a goes as threshold by the plan, but codecs has no configuration of it");
    refuses(context, hub, with({high}), "exchange: key a goes as threshold by the plan, but codecs has no config");
    refuses(context, hub, with({low, low, high}), "exchange: codecs has 3 entries, and the plan has 2 keys");
    refuses(context, hub, with({low, low}), "exchange: key b has codec 8 in codecs and 9 by the plan");
    refuses(context, hub, with({low, CodecConfig()}), "exchange: key b has codec 0 in codecs and 9 by the plan");
    refuses(context, hub, with({CodecConfig::threshold(-1), high}), "the codec of key a, threshold: delta must be");
    // One rank's mistake is told to all.
    std::vector<CodecConfig> codecs = {low, high};
    if (context.rank() == 1) codecs.pop_back(), codecs.push_back(low);
    refuses(context, hub, with(codecs), "exchange: key b has codec 8 in codecs and 9 by the plan");
    hub.wire = static_cast<hpc_codec_number>(7);
    hub.wires.clear();
    std::error_code code;
    assert(!hpcomm::Plan(context, hub, code) && code == hpcomm::make_error_code(HPC_ERR_INVALID));
}

// Code for a wire that is an hpc_dtype compiles, and takes codecs too.
static void wires() {
    hpcomm::HubConfig hub;
    const hpc_dtype dtype = HPC_BF16;
    const hpc_codec_number number = HPC_ONEBIT;
    hub.wire = dtype;
    assert(hub.wire == HPC_BF16 && hub.wire == dtype && hub.wire != HPC_F16);
    hub.wire = number;
    const int wire = hub.wire;
    assert(wire == HPC_ONEBIT && hpcomm::HostsConfig().wire == HPC_F32);
    switch (hub.wire) {
    case HPC_ONEBIT:
        break;
    default:
        assert(!"onebit");
    }
    hub.wires = {dtype, number, hub.wire};
    hub.wires.push_back(HPC_TOPK);
    hpcomm::GraphConfig graph;
    graph.wire = hub.wire;
    hpcomm::TreeConfig tree;
    tree.wire = CodecConfig::topk(1);
    assert(graph.wire == HPC_ONEBIT && tree.wire == HPC_TOPK && hpcomm::Wire(CodecConfig()) == HPC_F32);
    static_assert(!std::is_convertible<int, hpcomm::Wire>::value, "an int is no wire");
    const CodecConfig decays = CodecConfig::threshold(2), stays = CodecConfig::threshold(2, false, HPC_F16);
    assert(decays.size == sizeof(hpc_codec_config) && decays.delta == 2 && decays.decays && decays.values == HPC_F32);
    assert(!stays.decays && stays.values == HPC_F16 && CodecConfig::topk(0.5, HPC_BF16).values == HPC_BF16);
}

int main(int, char **argv) {
    wires();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < RANKS; rank++)
        ranks.emplace_back([=] {
            hpcomm::Rendezvous meeting(rank, RANKS, "127.0.0.1", std::stoi(argv[1]), {}, SECONDS);
            hpcomm::Context context(meeting);
            trains(context);
            own(context);
            onebit(context);
            float4(context);
            refusals(context);
            context.barrier(SECONDS);
        });
    for (std::thread &rank : ranks) rank.join();
    return 0;
}
"""


def test_three_ranks_train_with_codecs(tmp_path: Path) -> None:
    source, program = tmp_path / "codecs.cpp", tmp_path / "codecs"
    source.write_text(PROGRAM)
    library = info("--cmake-dir").parents[1] / "libhpcomm.so.0"
    flags = ["-std=c++17", "-g", "-pthread", *STRICT, "-I", str(info("--include-dir"))]
    run(tool("c++", "g++", "clang++"), *flags, source, library, f"-Wl,-rpath,{library.parent}", "-o", program)
    run(program, str(mpi.free_port()), seconds=120)
