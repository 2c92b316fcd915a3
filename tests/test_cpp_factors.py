"""Matrices as pairs of vectors from C++: three ranks, threads of one program, train with them through servers and from
peer to peer."""

from pathlib import Path

import mpi
from test_cpp import STRICT, info, run, tool

PROGRAM = r"""
#undef NDEBUG
#include <hpcomm/hpcomm.hpp>
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using hpcomm::CodecConfig;

enum { RANKS = 3, STEPS = 5, ROWS = 20, COLUMNS = 12, PAIRS = 4 };
static const double SECONDS = 30;

// Whole numbers, so that all sums are exact.
static float value_of(int rank, int step, int k, int i) {
    return static_cast<float>((i * 7 + step * 13 + rank * 5 + k * 3) % 5 - 2);
}

static void write(int rank, int step, int count, float *u, float *v) {
    for (int k = 0; k < count; k++) {
        for (int j = 0; j < ROWS; j++) u[k * ROWS + j] = value_of(rank, step, k, j);
        for (int d = 0; d < COLUMNS; d++) v[k * COLUMNS + d] = value_of(rank, step, k, d + 1);
    }
}

static std::vector<float> total() {
    std::vector<float> sum(ROWS * COLUMNS), u(PAIRS * ROWS), v(PAIRS * COLUMNS);
    for (int rank = 0; rank < RANKS; rank++)
        for (int step = 0; step < STEPS; step++) {
            write(rank, step, PAIRS, u.data(), v.data());
            for (int k = 0; k < step; k++)
                for (int i = 0; i < ROWS * COLUMNS; i++)
                    sum[static_cast<std::size_t>(i)] += u[static_cast<std::size_t>(k * ROWS + i / COLUMNS)] *
                                                        v[static_cast<std::size_t>(k * COLUMNS + i % COLUMNS)];
        }
    return sum;
}

static hpcomm::ExchangeConfig with(const CodecConfig &codec) {
    hpcomm::ExchangeConfig config;
    config.progress = HPC_PROGRESS_INLINE;
    config.codecs = {codec};
    return config;
}

// Step t has t pairs, so the first has none.
template <class Config> static void train(hpcomm::Context &context, Config config, std::uint64_t blocks) {
    const CodecConfig codec = CodecConfig::factors(ROWS, COLUMNS, PAIRS, blocks);
    config.keys = {{"fc", ROWS * COLUMNS, codec.unit}};
    config.wire = codec;
    config.sum = true;
    config.chunk = 64;
    const hpcomm::Plan plan(context, config);
    const std::vector<float> zeros(ROWS * COLUMNS);
    const float *values[] = {zeros.data()};
    hpcomm::Exchange exchange(context, plan, hpcomm::Rule("sgd", {1.0}), values, with(codec), SECONDS);
    std::vector<float> u(PAIRS * ROWS), v(PAIRS * COLUMNS);
    for (int step = 0; step < STEPS; step++) {
        hpcomm::Ticket ticket;
        if (step % 2 == 0) {
            write(context.rank(), step, step, u.data(), v.data());
            ticket = exchange.push_factors(0, step, u.data(), v.data(), HPC_PUSH | HPC_PULL, SECONDS);
        } else {
            const hpc_factors in_place = exchange.factors(0, SECONDS);
            assert(in_place.pairs == PAIRS && in_place.rows == ROWS && in_place.columns == COLUMNS);
            write(context.rank(), step, step, in_place.u, in_place.v);
            *in_place.count = step;
            ticket = exchange.start(0, HPC_PUSH | HPC_PULL, nullptr, SECONDS);
        }
        exchange.wait(ticket, SECONDS);
    }
    const std::vector<float> sum = total();
    for (std::size_t i = 0; i < sum.size(); i++) assert(exchange.params(0)[i] == -sum[i]);
    std::error_code code;
    exchange.push_factors(0, PAIRS + 1, u.data(), v.data(), HPC_PUSH, SECONDS, code);
    assert(code == hpcomm::make_error_code(HPC_ERR_INVALID));
    assert(std::strstr(hpc_last_error()->message, "key fc: count is 5; 0 to 4 pairs") != nullptr);
    exchange.push_factors(0, 1, u.data(), nullptr, HPC_PUSH, SECONDS, code);
    assert(std::strstr(hpc_last_error()->message, "v is NULL with count 1") != nullptr);
    context.barrier(SECONDS);
    exchange.close(SECONDS);
}

static void refuses(hpcomm::Context &context, const CodecConfig &codec, const char *sentence) {
    hpcomm::HubConfig hub;
    hub.keys = {{"fc", ROWS * COLUMNS, ROWS * COLUMNS}};
    hub.wire = HPC_FACTORS;
    const std::vector<float> zeros(ROWS * COLUMNS);
    const float *values[] = {zeros.data()};
    const hpcomm::Plan plan(context, hub);
    std::error_code code;
    const hpcomm::Exchange none(context, plan, hpcomm::Rule("sgd"), values, with(codec), SECONDS, code);
    assert(!none && code);
    if (std::strstr(hpc_last_error()->message, sentence) == nullptr) std::puts(hpc_last_error()->message);
    assert(std::strstr(hpc_last_error()->message, sentence) != nullptr);
}

static void refusals(hpcomm::Context &context) {
    refuses(context, CodecConfig::factors(ROWS, COLUMNS + 1, 2), "key fc has 240 elements, and its codec, factors, is");
    refuses(context, CodecConfig::factors(ROWS, COLUMNS, 0), "the codec of key fc, factors: pairs must be 1 or more");
    refuses(context, CodecConfig::factors(ROWS, COLUMNS, 2 + (context.rank() == 1)),
            "the codec of key fc has pairs 3 on rank 1 and 2 on rank 0");
    hpcomm::HubConfig hub;
    hub.keys = {{"bias", 100}};
    const std::vector<float> zeros(100);
    const float *values[] = {zeros.data()};
    const hpcomm::Plan plan(context, hub);
    hpcomm::Exchange exchange(context, plan, hpcomm::Rule("sgd"), values, {}, SECONDS);
    std::error_code code;
    exchange.factors(0, SECONDS, code);
    assert(std::strstr(hpc_last_error()->message, "goes as float32, not as factors") != nullptr);
    context.barrier(SECONDS);
    exchange.close(SECONDS);
}

int main(int, char **argv) {
    const CodecConfig parts = CodecConfig::factors(ROWS, COLUMNS, PAIRS, 3);
    assert(parts.unit % 16 == 0 && parts.unit == 8 * COLUMNS && hpcomm::Wire(parts) == HPC_FACTORS);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < RANKS; rank++)
        ranks.emplace_back([=] {
            hpcomm::Rendezvous meeting(rank, RANKS, "127.0.0.1", std::stoi(argv[1]), {}, SECONDS);
            hpcomm::Context context(meeting);
            train(context, hpcomm::HubConfig(), 1);
            train(context, hpcomm::PeerToPeerConfig(), 1);
            train(context, hpcomm::PeerToPeerConfig(), 3);
            hpcomm::PeerToPeerConfig hosts; // ranks 0 and 2 are on one, and rank 2 applies for both
            hosts.hosts = {0, 1, 0};
            hosts.leads = {0, 1, 1};
            train(context, hosts, 1);
            refusals(context);
            context.barrier(SECONDS);
        });
    for (std::thread &rank : ranks) rank.join();
    return 0;
}
"""


def test_three_ranks_train_with_factors(tmp_path: Path) -> None:
    source, program = tmp_path / "factors.cpp", tmp_path / "factors"
    source.write_text(PROGRAM)
    library = info("--cmake-dir").parents[1] / "libhpcomm.so.0"
    flags = ["-std=c++17", "-g", "-pthread", *STRICT, "-I", str(info("--include-dir"))]
    run(tool("c++", "g++", "clang++"), *flags, source, library, f"-Wl,-rpath,{library.parent}", "-o", program)
    run(program, str(mpi.free_port()), seconds=120)
