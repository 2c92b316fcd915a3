"""The C++ binding, its how-to, and examples/cpp built against the installed library, beside the Python trainer."""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import mpi
import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror"]

# A world of one: everything that the binding adds to hpcomm.h.
PROGRAM = r"""
#undef NDEBUG
#include <hpcomm/hpcomm.hpp>
#include <cassert>
#include <cstring>
#include <unistd.h>

static int gather(const void *send, void *recv, size_t nbytes, void *, void **request) {
    std::memcpy(recv, send, nbytes);
    *request = recv;
    return HPC_OK;
}
static int ready(void *) { return HPC_OK; }

static void messages(hpcomm::Context &context) {
    std::error_code code;
    const double pair[] = {3, 4};
    double got[2] = {};
    hpcomm::send(context, pair, 2, 0, 5, 1.0, code);
    const hpc_received short_one = hpcomm::recv(context, got, 2, HPC_ANY, HPC_ANY, 1.0, code);
    assert(!code && got[1] == 4 && short_one.rank == 0 && short_one.tag == 5 && short_one.count == 2);

    const std::vector<std::uint16_t> halves(100000, 0x3c00);
    std::vector<std::uint16_t> copy(halves.size());
    hpcomm::Request end = hpcomm::Request::recv<std::uint16_t, HPC_BF16>(context, copy.data(), copy.size(), 0, 1, code);
    assert(end && !code && !end.test(code) && !code);
    end.received(code);
    assert(code == hpcomm::make_error_code(HPC_ERR_INVALID)); // it has not ended
    hpcomm::send<std::uint16_t, HPC_BF16>(context, halves.data(), halves.size(), 0, 1, 1.0, code);
    end.wait(1.0, code);
    assert(!code && end.received(code).tag == 1 && end.received(code).count == halves.size() && copy == halves);

    hpcomm::Request begin = hpcomm::Request::send(context, pair, 2, 0, 2, code), moved = std::move(begin);
    moved.wait(1.0, code);
    assert(moved && !begin && !code);
    float other[2];
    hpcomm::recv(context, other, 2, 0, 2, 1.0, code);
    assert(code == hpcomm::make_error_code(HPC_ERR_CONFIG)); // of another type
    assert(!hpcomm::Request::send(context, pair, 2, 1, 0, code) && code == hpcomm::make_error_code(HPC_ERR_INVALID));
}

static void codes(hpcomm::Context &context) {
    std::error_code code;
    context.barrier(1.0, code);
    assert(!code);
    const int ports = hpc_devices(nullptr, 0); // HPC_ERR_UNSUPPORTED without libibverbs
    assert(static_cast<int>(hpcomm::devices(code).size()) == (ports < 0 ? 0 : ports));
    assert(code.value() == (ports < 0 ? ports : 0));
    hpcomm::BandwidthOptions fast;
    fast.at_least = 1e6;
    assert(context.bandwidth(0, fast, code).peer == 0 && code == hpcomm::make_error_code(HPC_ERR_INVALID)); // itself
    assert(context.bandwidth(std::vector<int>{0, 1}, fast, code).size() == 2 && code);
    code.clear();
    hpcomm::Window none(context, 64, -1, nullptr, 1.0, code);
    assert(!none && code == hpcomm::make_error_code(HPC_ERR_INVALID) && code.category() == hpcomm::category());
    assert(code.message() == hpc_status_text(HPC_ERR_INVALID));
    hpcomm::Window window(context, 64, 2, "bytes", 1.0, code);
    assert(window && !code);

    const char text[] = "written";
    window.put_signal(0, text, sizeof text, 8, 1, 5, {}, code);
    assert(!code && window.wait_signal(1, 5, 0, 1.0, code) == 5 && !code);
    assert(std::strcmp(window.data<char>() + 8, text) == 0);
    assert(window.test_signal(1, 5, code) && !window.test_signal(1, 6, code) && !code);
    window.wait_signal(1, 6, 0, 0.0, code);
    assert(code == hpcomm::make_error_code(HPC_ERR_TIMEOUT));

    assert(!hpcomm::poll(context, {}, code) && !code);
    window.put_notify(0, text, 4, 0, 77, {}, 1.0, code);
    const hpc_event event = hpcomm::wait_event(context, {}, 1.0, code);
    assert(!code && event.peer == 0 && event.imm == 77 && event.nbytes == 4);

    hpcomm::Window moved = std::move(window);
    assert(moved && !window);
    hpcomm::Memory memory = moved.memory(0);
    moved.reset();
    assert(std::strcmp(memory.data<char>() + 8, text) == 0);

    const double a[] = {1, 2}, b[] = {10, 20}, weights[] = {0.5, 0.25};
    const void *in[] = {a, b};
    double out[2];
    hpcomm::fold(out, in, weights, 2, 2, HPC_ISA_BEST, code);
    assert(!code && out[0] == 3 && out[1] == 6);

    hpcomm::QueueConfig config;
    config.nbytes = sizeof out;
    config.buffers = 2;
    hpcomm::Queue queue(context, config, 1.0, code);
    assert(queue && !code && queue.buffer<double>(1) != nullptr);
    queue.acquire(1, 1.0, code);
    queue.reduce(queue.buffer<double>(1), a, 2.0, nullptr, 1.0, code);
    assert(!code && queue.buffer<double>(1)[1] == 4 && queue.stats(code).sent == 0);
    const float one[] = {1, 2};
    float sum[2] = {0, 0};
    hpcomm::allreduce(context, one, sum, 2, HPC_SUM, 1.0, code);
    assert(!code && sum[1] == 2);
    hpcomm::Request request(context, hpcomm::Call(HPC_ALLTOALL, one + 1, sum, 1), code);
    request.wait(1.0, code);
    assert(request && !code && request.test(code) && sum[0] == 2);
    hpcomm::allreduce(context, one, sum, 2, HPC_BXOR, 1.0, code);
    assert(code == hpcomm::make_error_code(HPC_ERR_INVALID));
    messages(context);

    assert(context.allgather(7, 1.0, code) == std::vector<int>{7});
    assert(context.size() == 1 && context.peer(0, code).state == HPC_PEER_ALIVE);
}

static int halve(float *param, const float *acc, int64_t count, float *, const double *args, int64_t n) {
    for (int64_t i = 0; i < n; i++) param[i] = static_cast<float>(args[0] + count) * acc[i] / 2;
    return 0;
}

static void rendezvous() {
    std::error_code code;
    hpcomm::Rendezvous none(0, 2, "0.0.0.0", 1, "sixteen or more bytes", 1.0, code);
    assert(!none && code == hpcomm::make_error_code(HPC_ERR_CONFIG));
    hpcomm::Context nobody(none, {}, code);
    assert(!nobody && code == hpcomm::make_error_code(HPC_ERR_INVALID));
    hpcomm::Rendezvous alone(0, 1, "", 0, {}, 1.0, code);
    int given = 7, got = 0;
    alone.allgather(&given, &got, sizeof given, 1.0, code);
    assert(alone && !code && got == 7);
    hpcomm::Context context(alone, {}, code);
    alone.reset();
    {
        hpcomm::Span span(context, "barrier");
        context.barrier(1.0, code);
    }
    assert(!code && context.size() == 1);
    int shown = 0;
    for (const hpcomm::ShownRank &rank : hpcomm::jobs(5.0)) shown += rank.pid == getpid() && rank.answers == 1;
    assert(shown >= 1);
}

static void engines(const hpc_oob &oob) {
    std::error_code code;
    hpcomm::Engine engine = hpcomm::Engine::create(code);
    hpcomm::Config config;
    config.engine = engine.get();
    hpcomm::Context one(oob, config, code), other(oob, config, code);
    assert(engine && one && other && !code);
    engine.reset(); // the contexts keep it
    one.barrier(1.0, code);
    other.barrier(1.0, code);
    assert(!engine && !code);
}

static void exchanges(hpcomm::Context &context) {
    std::error_code code;
    hpcomm::HubConfig hub;
    hub.keys = {{"weights", 100}, {"bias", 3}};
    hub.chunk = 128;
    const hpcomm::Plan plan(context, hub, code);
    assert(plan && !code && plan.n_keys() == 2 && plan.n_rows() == 5);
    assert(plan.key(1).count == 3 && std::strcmp(plan.key(0).name, "weights") == 0);
    assert(plan.row(0).owner == 0 && plan.row(0).count == 32 && plan.row(4).key == 1);
    hpcomm::HubConfig whole = hub;
    whole.keys = {{"weights", 100, 48}, plan.key(1)};
    const hpcomm::Plan units(context, whole, code);
    assert(!code && units.n_rows() == 4 && units.row(1).offset == 48 && units.key(0).unit == 48);
    hub.chunk = 0;
    assert(!hpcomm::Plan(context, hub, code) && code == hpcomm::make_error_code(HPC_ERR_INVALID));
    hub.chunk = 128;
    hub.sum = true;
    hub.depth = 2;
    hub.wire = HPC_BF16;
    hub.codec_out = HPC_F16;
    hub.workers = {0, 1};
    hub.servers = {1};
    const hpcomm::Plan other(context, hub, code);
    assert(!code && other.row(0).owner == 1 && other.row(0).n_in == 2 && other.row(0).in[0].weight == 1);
    assert(other.row(0).depth == 2 && other.row(0).quorum == 2 && other.row(0).codec_in == HPC_BF16);
    assert(other.row(0).codec_out == HPC_F16);
    hub.wires = {HPC_F16, HPC_F32};
    hub.codecs_out = {HPC_F32, HPC_BF16};
    const hpcomm::Plan by_key(context, hub, code);
    assert(!code && by_key.row(3).codec_in == HPC_F16 && by_key.row(4).codec_in == HPC_F32);
    assert(by_key.row(3).codec_out == HPC_F32 && by_key.row(4).codec_out == HPC_BF16);

    hpcomm::HostsConfig hosts;
    hosts.keys = {{"weights", 100}};
    hosts.chunk = 512;
    assert(hpcomm::Plan(context, hosts, code).n_rows() == 1 && !code);
    hosts.workers = {0, 1, 2, 3, 4, 5};
    hosts.groups = {7, 7, 8, 8, 9, 9, 0, 0, 0, 0, 1, 1};
    hosts.leads = {1, 0, 0, 1, 0, 1};
    hosts.cores = 2;
    hosts.depth = 2;
    hosts.sum = true;
    hosts.wire = HPC_BF16;
    hosts.codec_out = HPC_F16;
    const hpcomm::Plan tree(context, hosts, code);
    assert(!code && tree.n_rows() == 5 && tree.row(0).owner == 0 && tree.row(0).n_in == 4 && tree.row(0).depth == 2);
    assert(tree.row(1).action == HPC_FORWARD && tree.row(1).owner == 3 && tree.row(1).in[0].weight == 1);
    assert(tree.row(1).codec_in == HPC_BF16 && tree.row(2).codec_in == HPC_F16 && tree.row(2).action == HPC_RELAY);
    assert(tree.row(3).owner == 5 && tree.row(3).out[0].rank == 0);
    hosts.top = HPC_TOP_RING;
    hosts.groups.resize(6);
    hosts.wires = {HPC_F16};
    hosts.codecs_out = {HPC_BF16};
    const hpcomm::Plan around(context, hosts, code);
    assert(!code && around.row(0).n_in == 3);
    assert(around.row(0).codec_in == HPC_F16 && around.row(0).codec_out == HPC_BF16);
    hosts.groups.pop_back();
    assert(!hpcomm::Plan(context, hosts, code) && code == hpcomm::make_error_code(HPC_ERR_INVALID));
    hub.codecs_out = {HPC_F32};
    assert(!hpcomm::Plan(context, hub, code) && code == hpcomm::make_error_code(HPC_ERR_INVALID));
    hub.wires.clear();
    hub.codecs_out.clear();
    hub.each = true;
    assert(hpcomm::Plan(context, hub, code).row(0).quorum == 1 && !code);
    hub.affinity = HPC_WORKER_BY_INTERFACE;
    hub.cores = hub.interfaces = 2;
    assert(hpcomm::Plan(context, hub, code).get()->affinity == HPC_WORKER_BY_INTERFACE && !code);
    hub.interfaces = 3;
    assert(!hpcomm::Plan(context, hub, code) && code == hpcomm::make_error_code(HPC_ERR_INVALID));

    assert(hpcomm::interfaces(context, {0}) == 1);
    assert(!hpcomm::over_sockets(context, {0}));
    assert(hpcomm::spare_cores(context, {0}, {0}) >= 0);
    assert(hpcomm::spare_cores(context, {0}, {0}) < hpcomm::core_count());

    const hpcomm::Rule none("none", code);
    assert(code == hpcomm::make_error_code(HPC_ERR_INVALID));
    hpcomm::Rule momentum("momentum", {0.5, 0.0, 0.25}, code);
    assert(!code && momentum.slots == 1 && momentum.args[1] == 0.5 && momentum.args[3] == 0.25);
    const std::vector<float> weights(100, 1), bias = {1, 2, 3};
    const float *values[] = {weights.data(), bias.data()};
    hpcomm::Exchange exchange(context, plan, momentum, values, {}, 1.0, code);
    assert(exchange && !code && exchange.params(1)[2] == 3);

    float *gradient = exchange.gradient(1, 1.0, code);
    gradient[0] = gradient[1] = gradient[2] = 2;
    const hpcomm::Ticket ticket = exchange.start(1, HPC_PUSH | HPC_PULL, nullptr, 1.0, code);
    exchange.wait(ticket, 1.0, code);
    assert(!code && exchange.test(ticket, code) && exchange.params(1)[0] == 0 && exchange.params(1)[2] == 2);
    const float ones[100] = {1, 1};
    exchange.push_pull(0, ones, 1.0, code);
    assert(!code && exchange.params(0)[1] == 0.5f && exchange.params(0)[2] == 1);

    momentum.args[1] = 1;
    exchange.set_args(momentum, 1, code);
    assert(!code);
    exchange.push(1, ones, 1.0, code);
    assert(!code);
    exchange.wait(exchange.pull(1, 1.0, code), 1.0, code);
    assert(!code && exchange.params(1)[0] == -1.5f && exchange.params(1)[2] == 1.5f);

    float row[3], state[3];
    assert(exchange.get_row(4, row, state, code) == 2 && !code && row[2] == 1.5f && state[0] == 1.5f);
    row[2] = 7;
    assert(exchange.under_way() == -1 && exchange.folded(0, code) == 0 && !code);
    exchange.set_row(4, 5, row, state, code);
    exchange.publish(1.0, code);
    assert(!code && exchange.params(1)[2] == 7 && exchange.get_row(4, row, state, code) == 5);
    exchange.progress(code);
    assert(!exchange.chosen_progress(code).empty() && !code);
    const hpc_exchange_stats stats = exchange.stats(code);
    assert(!code && stats.pushes == 3 && stats.pulls == 3 && stats.applied == 6);
    assert(exchange.late() == 0 && exchange.late(1) == 0 && exchange.version() == 2);

    hpcomm::ExchangeConfig stale;
    stale.consistency = HPC_SSP;
    stale.staleness = 1;
    hpcomm::Exchange bounded(context, plan, hpcomm::Rule("sgd", {1.0}), values, stale, 1.0, code);
    bounded.push_pull(1, ones, 1.0, code);
    bounded.settle(1.0, code);
    assert(!code && bounded.under_way() == -1 && bounded.params(1)[0] == 0 && bounded.params(1)[1] == 1);
    assert(bounded.staleness(code) == (std::vector<std::uint64_t>{0, 1}) && !code);
    bounded.close(1.0, code);
    assert(exchange.staleness(code) == std::vector<std::uint64_t>{0} && !code);

    hpcomm::GraphConfig graph;
    graph.keys = hub.keys;
    graph.weights = {0.5, 0.25}; // of two phases, of a rank alone
    const hpcomm::Plan of_graph(context, graph, code);
    assert(!code && of_graph.row(0).n_in == 1 && of_graph.row(0).in[0].weight == 0.5);
    hpcomm::ExchangeConfig with_graph;
    with_graph.consistency = HPC_NOTIFY_ACK;
    hpcomm::Exchange averaging(context, of_graph, graph, hpcomm::Rule("average"), values, with_graph, 1.0, code);
    averaging.push_pull(1, bias.data(), 1.0, code);
    assert(!code && averaging.params(1)[1] == 1);
    averaging.push_pull(1, bias.data(), 1.0, code);
    assert(!code && averaging.params(1)[1] == 0.5f && averaging.stats(code).reduces == 2);
    assert(averaging.inputs(code) == std::vector<std::uint64_t>{2} && averaging.peer(0, code).bytes_sent == 0 && !code);
    assert(averaging.traffic(code).empty() && !code); // a rank alone sends nothing
    graph.depth = 2; // one for the model
    with_graph.in_place = 1;
    hpcomm::Exchange in_place(context, hpcomm::Plan(context, graph, code), graph, hpcomm::Rule("average"), values,
                              with_graph, 1.0, code);
    float *model = in_place.params(1);
    assert(!code && model[2] == bias[2] && in_place.gradient(1, 1.0, code) == model);
    model[2] = 8;
    in_place.push_pull(1, nullptr, 1.0, code);
    assert(!code && in_place.params(1) != model && in_place.params(1)[2] == 4);
    graph.wires = {HPC_F32, HPC_BF16};
    hpcomm::Exchange mixed(context, hpcomm::Plan(context, graph, code), graph, hpcomm::Rule("average"), values,
                           with_graph, 1.0, code);
    model = mixed.params(1);
    model[2] = 1.00390625f; // lies between two values of bfloat16
    mixed.push_pull(1, nullptr, 1.0, code);
    assert(!code && mixed.params(1) == model && model[2] == 0.5f);
    graph.wires.push_back(HPC_F32);
    assert(!hpcomm::Plan(context, graph, code) && code == hpcomm::make_error_code(HPC_ERR_INVALID));
    graph.wires.clear();
    graph.weights = {0.5, 0};
    assert(!hpcomm::Plan(context, graph, code) && code == hpcomm::make_error_code(HPC_ERR_INVALID));

    const hpcomm::Memory memory = exchange.memory(0, exchange.params(0));
    assert(memory && memory.data() != nullptr);
    exchange.close(1.0, code);
    assert(!code);
    exchange.start(0, HPC_PUSH, ones, 1.0, code);
    assert(code == hpcomm::make_error_code(HPC_ERR_INVALID));

    hpcomm::Rule own("halve", halve);
    hpcomm::ExchangeConfig config;
    config.progress = HPC_PROGRESS_INLINE;
    hpcomm::Exchange halving(context, plan, own, values, config, 1.0, code);
    halving.push_pull(1, ones, 1.0, code);
    assert(!code && halving.params(1)[0] == 1 && halving.params(1)[2] == 0 && !halving.stats(code).threads);
    const hpcomm::Rule lasso = hpcomm::Rule("proxsgd", {0.5, 0.0, 200.0}).with_prox("l1", 1, code);
    hpcomm::Exchange shrinking(context, plan, lasso, values, config, 1.0, code);
    shrinking.push_pull(1, ones, 1.0, code);
    assert(!code && shrinking.params(1)[0] == 0 && shrinking.params(1)[2] == 0);
    hpcomm::Exchange moved = std::move(halving);
    assert(moved && !halving);

    hpcomm::HubConfig further;
    further.keys = {{"further", 3}};
    const hpcomm::Plan of_further(context, further, code);
    std::vector<hpcomm::ExchangeConfig> both(2, config);
    const hpcomm::Rule sgd("sgd", {0.5});
    both[0].plan = plan.get(), both[0].rule = &own, both[0].values = values;
    both[1].plan = of_further.get(), both[1].rule = &sgd, both[1].values = values, both[1].split = 1;
    hpcomm::Exchange engines(context, both, 1.0, code);
    engines.push_pull(1, ones, 1.0, code);
    engines.wait(engines.push(2, ones, 1.0, code), 1.0, code);
    assert(!code && engines.params(1)[0] == 1 && engines.params(2)[0] == 1);
    engines.wait(engines.apply(2, 1, 1.0, code), 1.0, code);
    assert(!code && engines.params(2)[0] == 0.5f);
    both.clear();
    assert(!hpcomm::Exchange(context, both, 1.0, code) && code == hpcomm::make_error_code(HPC_ERR_INVALID));
    code.clear();

    config.split = 1;
    hpcomm::Exchange split(context, plan, hpcomm::Rule("sgd", {0.5}), values, config, 1.0, code);
    const float twos[] = {2, 2, 2};
    split.wait(split.push(1, twos, 1.0, code), 1.0, code);
    split.wait(split.squares(1, 1.0, code), 1.0, code);
    assert(!code && split.get_squares(1, code) == 12 && split.params(1)[0] == 1);
    split.wait(split.gather(1, 1.0, code), 1.0, code);
    assert(!code && split.gradient(1, 1.0, code)[2] == 2);
    split.wait(split.apply(1, 0.5, 1.0, code), 1.0, code);
    assert(!code && split.params(1)[0] == 0.5f);
    split.push(1, twos, 1.0, code);
    split.wait(split.skip(1, 1.0, code), 1.0, code);
    split.fold_nothing(1, 1.0, code);
    split.wait(split.apply(1, 1, 1.0, code), 1.0, code);
    assert(!code && split.params(1)[0] == 0.5f);
    config.split = 0;

    const hpc_edge twofold = {0, -1, 2.0};
    hpc_row emit = {};
    emit.action = HPC_EMIT;
    emit.count = 3;
    emit.depth = emit.quorum = emit.n_in = emit.n_out = 1;
    emit.in = emit.out = &twofold;
    const hpc_plan row_by_row = {1, 1, &hub.keys[1], &emit, HPC_KEY_BY_CORE};
    hpcomm::Exchange emitting(context, &row_by_row, own, &values[1], {}, 1.0, code);
    assert(!code);
    emitting.push_pull(0, ones, 1.0, code);
    assert(!code && emitting.params(0)[0] == 2 && emitting.params(0)[2] == 0);
}

#if defined(__cpp_exceptions)
template <class Expected, class Call> static void throws(hpc_status status, Call call) {
    try {
        call();
    } catch (const Expected &error) {
        assert(error.code() == hpcomm::make_error_code(status));
        assert(error.what() == std::string(hpc_last_error()->message));
        return;
    }
    assert(!"thrown");
}

static void exceptions(hpcomm::Context &context) {
    hpcomm::Window window(context, 64, 1);
    const float values[1] = {};
    throws<hpcomm::InvalidArgument>(HPC_ERR_INVALID, [&] { window.put(1, "x", 1, 0); });
    throws<hpcomm::InvalidArgument>(HPC_ERR_INVALID, [&] { window.put(0, "x", 1, 64); });
    throws<hpcomm::Error>(HPC_ERR_TIMEOUT, [&] { window.wait_signal(0, 1, 0, 0.0); });
    try {
        window.wait_signal(0, 1, 0, 0.0);
    } catch (const hpcomm::Timeout &error) {
        assert(error.op() == "wait_signal" && error.waiting_for() == std::vector<int>{0});
    }
    throws<hpcomm::InvalidArgument>(HPC_ERR_INVALID, [&] { hpcomm::send(context, values, 1, 1); });
    throws<hpcomm::InvalidArgument>(HPC_ERR_INVALID, [&] { hpcomm::Rule none("none"); });
    throws<hpcomm::InvalidArgument>(HPC_ERR_INVALID, [&] { hpcomm::Plan none(context, {}); });
    throws<hpcomm::OutOfMemory>(HPC_ERR_MEMORY, [&] { hpcomm::Window huge(context, std::size_t(1) << 60); });
    context.close();
    throws<hpcomm::InvalidArgument>(HPC_ERR_INVALID, [&] { context.barrier(); });
}
#else
static void exceptions(hpcomm::Context &) {}
#endif

static void shrinks(hpcomm::Context &context) {
    std::error_code code;
    hpcomm::Context fresh = context.shrink({}, 5.0, code), again = fresh.shrink({}, 5.0, code);
    assert(!code && again.rank() == 0 && again.size() == 1 && again.first_rank(0, code) == 0 && !code);
    again.first_rank(1, code);
    assert(code == hpcomm::make_error_code(HPC_ERR_INVALID));
    fresh.reset();
    again.barrier(1.0, code);
    assert(!code);
}

void ways() {
    const hpcomm::Layer layer{4096, 4096, 32, 0}, many{4096, 4096, 512, 0};
    const hpcomm::Cluster cluster{4, 4, 4}, none{0, 0, 0};
    const hpcomm::Rates rates{1.2e8, 0, 5e9, 5e-10, 4.4e10};
    const hpcomm::CodecRates half{0.5, 0, 0};
    std::error_code code;
    assert(hpcomm::best_way(many, cluster, nullptr) == HPC_WAY_FACTORS);
    assert(hpcomm::best_way(many, cluster, &rates) == HPC_WAY_PS);
    assert(hpcomm::best_way(layer, cluster, &rates) == HPC_WAY_FACTORS);
    assert(hpcomm::way_cost(HPC_WAY_PS, layer, cluster, rates).sent == 402653184);
    assert(hpcomm::way_cost(HPC_WAY_PS, layer, cluster, rates, &half).sent == 301989888);
    hpcomm::best_way(layer, none, &rates, 0, code);
    const std::string told = hpc_last_error()->message;
    assert(code && told.find("0 workers, 0 servers and 0 hosts") != std::string::npos);
}

int main() {
    const hpc_oob oob = {0, 1, nullptr, gather, ready, ready};
    ways();
    hpcomm::Context context(oob);
    assert(context && hpcomm::version() == hpc_version() && !hpcomm::transports().empty());
    codes(context);
    rendezvous();
    engines(oob);
    exchanges(context);
    shrinks(context);
    exceptions(context);
    return 0;
}
"""


def run(*command: str | Path, seconds: float = 240, **env: str) -> str:
    """What the command printed. It fails the test unless it ends with 0."""
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    done = mpi.command(*command, timeout=seconds, env={"PATH": path, **env})
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


@cache
def info(option: str) -> Path:
    return Path(run(BIN / "hpcomm", "info", option))


def tool(*names: str, beside: Path = BIN) -> str:
    """The first of the programs that is beside this Python (or mpirun), else on PATH."""
    for name in names:
        found = shutil.which(name, path=str(beside)) or shutil.which(name)
        if found is not None:
            return found
    pytest.skip(f"this machine has no {' or '.join(names)}")


@pytest.fixture(params=["g++", "clang++"])
def cxx(request: pytest.FixtureRequest) -> str:
    return tool(request.param)


@pytest.mark.some(2)
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
@pytest.mark.parametrize("more", [[], ["-fno-exceptions"]], ids=["exceptions", "no exceptions"])
def test_the_binding_compiles_by_itself(tmp_path: Path, cxx: str, standard: str, more: list[str]) -> None:
    source = tmp_path / "alone.cpp"
    source.write_text("#include <hpcomm/hpcomm.hpp>\n")
    run(cxx, f"-std={standard}", *STRICT, *more, "-I", info("--include-dir"), "-fsyntax-only", source)


@pytest.mark.some(1)
@pytest.mark.parametrize("more", [[], ["-fno-exceptions"]], ids=["exceptions", "no exceptions"])
def test_what_the_binding_adds(tmp_path: Path, more: list[str]) -> None:
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM)
    library = info("--cmake-dir").parents[1] / "libhpcomm.so.0"
    flags = ["-std=c++17", "-g", *STRICT, *more, "-I", str(info("--include-dir"))]
    run(tool("c++", "g++", "clang++"), *flags, source, library, f"-Wl,-rpath,{library.parent}", "-o", program)
    run(program)


@pytest.fixture(scope="module")
def mpi_bin() -> Path:
    """Where the mpirun in use keeps its compiler wrappers."""
    folder = Path(mpi.mpirun()[0]).parent
    if shutil.which("mpicxx", path=str(folder)) is None:
        pytest.skip(f"the MPI in {folder} has no mpicxx: its development package is missing")
    return folder


@pytest.mark.parametrize(("wrapper", "standard", "suffix"), [("mpicc", "c11", "c"), ("mpicxx", "c++17", "cpp")])
def test_the_mpi_header_is_c_and_cxx(tmp_path: Path, mpi_bin: Path, wrapper: str, standard: str, suffix: str) -> None:
    tool("cc" if suffix == "c" else "c++")
    source = tmp_path / f"alone.{suffix}"
    source.write_text(
        "#include <hpcomm/hpcomm_mpi.h>\nhpc_oob oob;\nint f(void) { return hpc_oob_from_mpi(MPI_COMM_WORLD, &oob); }\n"
    )
    run(mpi_bin / wrapper, f"-std={standard}", *STRICT, "-I", info("--include-dir"), "-c", source, "-o", tmp_path / "o")


@pytest.mark.parametrize("which", [0, 1, 2, 3, 4], ids=["ring", "collectives", "hub", "several", "pairs"])
def test_the_programs_of_the_how_to_run(tmp_path: Path, mpi_bin: Path, which: int) -> None:
    tool("c++")
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    blocks = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs" / "cpp.md").read_text(), re.DOTALL)
    source.write_text([block for block in blocks if "int main" in block][which])
    library = info("--cmake-dir").parents[1] / "libhpcomm.so.0"
    flags = ["-std=c++17", *STRICT, "-I", str(info("--include-dir"))]
    run(mpi_bin / "mpicxx", *flags, source, library, f"-Wl,-rpath,{library.parent}", "-o", program)
    run(*mpi.mpirun(), "-n", "3", program, seconds=60)


def test_the_program_of_the_how_to_that_needs_no_mpi(tmp_path: Path) -> None:
    source, program, secret = tmp_path / "program.cpp", tmp_path / "program", tmp_path / "secret"
    blocks = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs" / "cpp.md").read_text(), re.DOTALL)
    source.write_text(next(block for block in blocks if "int main" in block and "Rendezvous" in block))
    library = info("--cmake-dir").parents[1] / "libhpcomm.so.0"
    flags = ["-std=c++17", *STRICT, "-I", str(info("--include-dir"))]
    run(tool("c++", "g++", "clang++"), *flags, source, library, f"-Wl,-rpath,{library.parent}", "-o", program)
    secret.write_text("sixteen or more bytes")
    port = str(mpi.free_port())
    shared = {**os.environ, "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    shared["SECRET"] = str(secret)
    ranks = [
        subprocess.Popen([program], env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert said == [f"rank {rank} of 3 after rank {(rank + 2) % 3}\n" for rank in range(3)]


@pytest.fixture(scope="module")
def trainers(mpi_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/cpp, built against the installed library with the MPI in use."""
    tool("c++", "g++", "clang++")
    build = tmp_path_factory.mktemp("cpp")
    found = [f"-Dhpcomm_DIR={info('--cmake-dir')}", f"-DMPI_CXX_COMPILER={mpi_bin / 'mpicxx'}"]
    cmake = tool("cmake")
    found.append("-DCMAKE_BUILD_TYPE=Debug")  # compiled sooner, and it runs for seconds
    run(cmake, "-G", "Ninja", "-S", ROOT / "examples" / "cpp", "-B", build, *found)
    run(cmake, "--build", build)
    run(sys.executable, ROOT / "examples" / "train_digits.py", "--export", build / "digits.txt")
    return build


@pytest.mark.some(1)
@pytest.mark.xdist_group("group trainers")
@pytest.mark.parametrize(("ranks", "graph"), [(4, "expander"), (3, "ring")])
def test_the_cxx_trainer_ends_with_the_python_trainers_weights(
    tmp_path: Path, trainers: Path, ranks: int, graph: str
) -> None:
    mpirun = [*mpi.mpirun(), "-n", str(ranks)]
    how = ["--epochs", "10", "--graph", graph]
    said = run(*mpirun, trainers / "train_softmax", trainers / "digits.txt", *how, "--weights", tmp_path / "cxx")
    files = ["--weights", str(tmp_path / "python"), "--plot", str(tmp_path / "png")]
    ended = mpi.program(ranks, ROOT / "examples" / "train_digits.py", *how, "--dtype", "float64", *files)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cxx, twin = np.loadtxt(tmp_path / "cxx"), np.loadtxt(tmp_path / "python")
    assert cxx.shape == twin.shape == (650,)
    assert np.abs(twin).max() > 1
    np.testing.assert_allclose(cxx, twin, rtol=0, atol=1e-5)
    assert said.startswith("test accuracy 9")
    assert f"ranks: {ranks}, graph: {graph}" in said


def push_pull(trainers: Path, weights: Path, ranks: int, *options: str) -> tuple[str, Array]:
    """What train_push_pull says after 5 epochs, and the weights that it ends with."""
    mpirun: list[str | Path] = [*mpi.mpirun(), "-n", str(ranks), trainers / "train_push_pull"]
    said = run(*mpirun, trainers / "digits.txt", "--weights", weights, "--epochs", "5", *options)
    return said, np.loadtxt(weights)


@pytest.fixture(scope="module")
def weights_of_one_rank(trainers: Path) -> Array:
    return push_pull(trainers, trainers / "weights.txt", 1)[1]


@pytest.mark.some(1)
@pytest.mark.xdist_group("group trainers")
@pytest.mark.parametrize(("ranks", "servers"), [(4, 0), (3, 1), (4, 2)], ids=["colocated", "central", "dedicated"])
def test_a_hub_finds_the_weights_that_one_rank_finds_alone(
    tmp_path: Path, trainers: Path, weights_of_one_rank: Array, ranks: int, servers: int
) -> None:
    said, weights = push_pull(trainers, tmp_path / "weights", ranks, "--servers", str(servers))
    assert weights.shape == (65 * 48 + 49 * 10,)
    np.testing.assert_allclose(weights, weights_of_one_rank, rtol=0, atol=1e-4)
    least, most = re.findall(r"test accuracy (\S+) to (\S+) %", said)[0]
    assert least == most
    assert float(least) > 95
    assert f"workers: {ranks - servers}, servers: {servers or ranks}" in said
    assert f"pushed {5 * 43 * 2} layers" in said


@pytest.mark.some(2)
@pytest.mark.xdist_group("group trainers")
@pytest.mark.parametrize(
    ("codec", "servers", "saved"),
    [("threshold:0.02", 0, 40), ("topk:0.05", 0, 85), ("topk:0.05", 1, 85), ("onebit:48", 0, 85)],
)
def test_a_codec_saves_bytes_of_the_cxx_trainer(
    tmp_path: Path, trainers: Path, codec: str, servers: int, saved: float
) -> None:
    said, weights = push_pull(trainers, tmp_path / "weights", 4, "--servers", str(servers), "--codec", codec)
    assert np.isfinite(weights).all()
    least, most = re.findall(r"test accuracy (\S+) to (\S+) %", said)[0]
    assert least == most
    assert float(least) > 90
    before, after, percent = map(
        float, re.findall(rf"{codec}: (\S+) MB of updates were encoded in (\S+) MB, (\S+) % were saved", said)[0]
    )
    assert percent == pytest.approx(100 * (1 - after / before), abs=0.1)
    assert saved < percent < 99


@pytest.mark.some(1)
@pytest.mark.xdist_group("group trainers")
@pytest.mark.parametrize(
    "how", ["train_softmax --graph expander", "train_push_pull", "train_push_pull --servers 1"], ids=str
)
def test_a_cxx_trainer_finds_over_tcp_what_it_finds_over_shm(tmp_path: Path, trainers: Path, how: str) -> None:
    trainer, *options = how.split()
    mpirun = [*mpi.mpirun(), "-n", "4", str(trainers / trainer), str(trainers / "digits.txt"), "--epochs", "3"]
    for transport in ("shm", "tcp"):
        run(*mpirun, *options, "--transport", transport, "--weights", tmp_path / transport)
    assert (tmp_path / "tcp").read_bytes() == (tmp_path / "shm").read_bytes()


@pytest.mark.xdist_group("group trainers")
@pytest.mark.parametrize("trainer", ["train_softmax", "train_push_pull"])
def test_a_cxx_trainer_says_what_is_wrong(tmp_path: Path, trainers: Path, trainer: str) -> None:
    (tmp_path / "digits.txt").write_text("no numbers\n")
    ended = mpi.command(*mpi.mpirun(), "-n", "2", trainers / trainer, tmp_path / "digits.txt")
    assert ended.returncode != 0
    assert "is no data file; train_digits.py --export writes one" in ended.stderr


@pytest.mark.xdist_group("group trainers")
@pytest.mark.parametrize(
    ("codec", "sentence"),
    [
        ("topk", "--codec is topk; must be threshold:DELTA, topk:FRACTION or onebit:ELEMENTS"),
        ("topk:0,1", "--codec is topk:0,1; must be"),
        ("topk:2", "the codec of key hidden, topk: fraction must be above 0 and at most 1"),
    ],
)
def test_the_cxx_trainer_says_what_is_wrong_with_a_codec(trainers: Path, codec: str, sentence: str) -> None:
    data = trainers / "digits.txt"
    ended = mpi.command(*mpi.mpirun(), "-n", "2", trainers / "train_push_pull", data, "--codec", codec)
    assert ended.returncode != 0
    assert sentence in ended.stderr
