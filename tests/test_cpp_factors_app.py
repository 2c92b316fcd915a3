"""The interface of SFB from C++ (hpcomm::SufficientFactors): three ranks, threads of one program, write pairs of
vectors, commit them and read their matrices."""

from pathlib import Path

import mpi
from test_cpp import STRICT, info, run, tool

PROGRAM = r"""
#undef NDEBUG
#include <hpcomm/hpcomm.hpp>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <thread>
#include <vector>

using hpcomm::Rule, hpcomm::SufficientFactors, hpcomm::SufficientFactorsConfig;
using Floats = std::vector<float>;

enum { RANKS = 3, STEPS = 5, ROWS = 20, COLUMNS = 12, PAIRS = 4 };
static const double SECONDS = 30;

// Whole numbers, so that all sums are exact, and most of them 0.
static Floats vector_of(int rank, int step, int pair, std::size_t n) {
    Floats vector(n);
    for (std::size_t i = 0; i < n; i++) {
        const int turn = (static_cast<int>(i) * 7 + step * 13 + rank * 5 + pair * 3) % 9;
        vector[i] = static_cast<float>(turn < 6 ? 0 : turn - 9 + pair);
    }
    return vector;
}

static int pairs_of(int rank, int step) {
    return (rank + step) % (PAIRS + 1); // none at times
}

// The sum of u v^T that ranks have written in these steps.
static Floats dense(const std::vector<int> &ranks, int steps) {
    Floats sum(ROWS * COLUMNS);
    for (int rank : ranks)
        for (int step = 0; step < steps; step++)
            for (int k = 0; k < pairs_of(rank, step); k++) {
                const Floats u = vector_of(rank, step, k, ROWS), v = vector_of(rank, step, k + 1, COLUMNS);
                for (std::size_t i = 0; i < sum.size(); i++) sum[i] += u[i / COLUMNS] * v[i % COLUMNS];
            }
    return sum;
}

static Floats copy_of(const float *w) {
    return Floats(w, w + ROWS * COLUMNS);
}

static Floats negative(Floats w) {
    for (float &value : w) value = 0 - value;
    return w;
}

// Pairs one way or another: copied, sparse, or computed where they are sent from.
static void write(SufficientFactors &app, int rank, int step, int key) {
    for (int k = pairs_of(rank, step) - 1; k >= 0; k--) {
        const Floats u = vector_of(rank, step, k, ROWS), v = vector_of(rank, step, k + 1, COLUMNS);
        std::vector<int> at;
        Floats values;
        for (int j = ROWS - 1; j >= 0; j--) // from the last to the first
            if (u[static_cast<std::size_t>(j)] != 0) at.push_back(j), values.push_back(u[static_cast<std::size_t>(j)]);
        app.write_u(k, Floats(ROWS, 9), key); // does not count
        switch (step % 3) {
        case 0:
            app.write_u(k, u, key);
            app.write_v(k, v.data(), COLUMNS, key);
            break;
        case 1:
            app.write_u(k, at.data(), values.data(), at.size(), key);
            app.write_v(k, v, key);
            break;
        default:
            std::copy(u.begin(), u.end(), app.u(k, key));
            std::copy(v.begin(), v.end(), app.v(k, key));
        }
    }
}

static SufficientFactorsConfig config_of() {
    SufficientFactorsConfig config;
    config.matrices = {{"W", ROWS, COLUMNS}};
    config.pairs = PAIRS;
    return config;
}

static hpcomm::ExchangeConfig inline_progress() {
    hpcomm::ExchangeConfig config;
    config.progress = HPC_PROGRESS_INLINE;
    return config;
}

// All copies have the dense sum after each step. The second matrix has first values, which are rank 0's.
static void bsp(hpcomm::Context &context, bool sum) {
    SufficientFactorsConfig config = config_of();
    const Floats first(ROWS * COLUMNS, static_cast<float>(5 + context.rank()));
    config.matrices.push_back({"V", ROWS, COLUMNS, first.data()});
    config.sum = sum;
    const float off = sum ? 0 : 0.001f; // a third of three products is rounded
    SufficientFactors app(context, config, Rule("sgd", {sum ? 1.0 : 3.0}), inline_progress(), SECONDS);
    for (int step = 0; step <= STEPS; step++) {
        const Floats wanted = negative(dense({0, 1, 2}, step));
        const float *const w = app.mat(0, SECONDS), *const v = app.mat(1, SECONDS);
        for (std::size_t i = 0; i < wanted.size(); i++)
            assert(std::fabs(w[i] - wanted[i]) <= off && std::fabs(v[i] - 5 - wanted[i]) <= off);
        if (step == STEPS) break;
        write(app, context.rank(), step, 0);
        write(app, context.rank(), step, 1);
        app.commit(SECONDS);
    }
    assert(app && app.commits() == STEPS && app.exchange().stats().pushes == 2 * STEPS);
    SufficientFactors moved = std::move(app);
    assert(moved && !app);
    const Floats last = copy_of(moved.mat());
    moved.commit(SECONDS);
    moved.close(SECONDS);
    assert(copy_of(moved.mat()) == last);
    context.barrier(SECONDS);
}

// Rank 0 runs s commits ahead of the others, and no further.
static void ssp(hpcomm::Context &context) {
    SufficientFactorsConfig config = config_of();
    config.staleness = 2;
    SufficientFactors app(context, config, Rule("sgd", {1.0}), inline_progress(), SECONDS);
    int step = 0;
    if (context.rank() == 0) {
        for (; step < config.staleness; step++) {
            write(app, 0, step, 0);
            app.commit(SECONDS);
            assert(copy_of(app.mat(0, SECONDS)) == negative(dense({0}, step + 1)));
        }
        write(app, 0, step++, 0);
        app.commit(SECONDS);
        std::error_code code;
        assert(app.mat(0, 0, code) == nullptr && code == hpcomm::make_error_code(HPC_ERR_TIMEOUT));
        write(app, 0, step, 0);
        app.commit(0, code); // goes on below
        assert(code == hpcomm::make_error_code(HPC_ERR_TIMEOUT) && app.commits() == 3);
    }
    context.barrier(SECONDS);
    for (; step < STEPS; step++) {
        write(app, context.rank(), step, 0);
        app.commit(SECONDS);
    }
    app.mat(0, SECONDS);
    app.exchange().settle(SECONDS);
    assert(copy_of(app.mat()) == negative(dense({0, 1, 2}, STEPS)));
    context.barrier(SECONDS);
    app.close(SECONDS);
}

// Around a ring each rank applies the updates of the rank before it and its own; relayed, all of them.
static void partial(hpcomm::Context &context, bool relay) {
    SufficientFactorsConfig config = config_of();
    if (relay)
        config.parents = {0, 0, 1, 2, 1, 1, 2, 0, 2}; // the rank before the receiver
    else
        config.sends = {0, 1, 0, 0, 0, 1, 1, 0, 0};
    SufficientFactors app(context, config, Rule("sgd", {1.0}), inline_progress(), SECONDS);
    for (int step = 0; step < STEPS; step++) {
        write(app, context.rank(), step, 0);
        app.commit(SECONDS);
    }
    const std::vector<int> of =
        relay ? std::vector<int>{0, 1, 2} : std::vector<int>{context.rank(), (context.rank() + 2) % RANKS};
    assert(copy_of(app.mat()) == negative(dense(of, STEPS)));
    context.barrier(SECONDS);
    app.close(SECONDS);
}

// The proximal operator of 2 |w|_1 moves each element by 2 towards 0 in each step.
static void prox(hpcomm::Context &context) {
    SufficientFactorsConfig config = config_of();
    const Rule lasso = Rule("proxsgd", {1.0, 0.0, 2.0}).with_prox("l1", COLUMNS);
    SufficientFactors app(context, config, lasso, inline_progress(), SECONDS);
    Floats wanted(ROWS * COLUMNS), before(ROWS * COLUMNS);
    for (int step = 0; step < STEPS; step++) {
        write(app, context.rank(), step, 0);
        app.commit(SECONDS);
        const Floats sum = dense({0, 1, 2}, step + 1);
        for (std::size_t i = 0; i < wanted.size(); i++) {
            const float w = wanted[i] - (sum[i] - before[i]);
            wanted[i] = w > 2 ? w - 2 : w < -2 ? w + 2 : 0;
        }
        before = sum;
        assert(copy_of(app.mat()) == wanted);
    }
    context.barrier(SECONDS);
    app.close(SECONDS);
}

template <class Call> static void refuses(const std::string &sentence, Call call) {
    std::string told;
    try {
        call();
    } catch (const hpcomm::InvalidArgument &error) {
        assert(error.code() == hpcomm::make_error_code(HPC_ERR_INVALID));
        told = error.what();
    }
    if (told.find(sentence) == std::string::npos) std::fprintf(stderr, "%s, not %s\n", told.c_str(), sentence.c_str());
    assert(told.find(sentence) != std::string::npos);
}

static void refusals(hpcomm::Context &context) {
    SufficientFactorsConfig config;
    config.matrices = {{"W", 3, 2}};
    config.pairs = PAIRS;
    SufficientFactors app(context, config, Rule("sgd", {1.0}), inline_progress(), SECONDS);
    const std::string mine = "rank " + std::to_string(context.rank()) + ": ", of = mine + "key 'W': ";
    const std::array<float, 3> ones = {1, 1, 1};
    const float nan = std::numeric_limits<float>::quiet_NaN(), two[] = {1, 1};
    const int index = 0;
    std::error_code code;
    const auto at = [&](const std::vector<int> &indices) { app.write_u(0, indices.data(), &ones[0], indices.size()); };
    refuses(of + "write_u: pair 4: must be 0 to 3, as pairs says", [&] { app.write_u(4, ones); });
    refuses(of + "write_v: pair -1: must be 0 to 3, as pairs says", [&] { app.v(-1); });
    refuses(of + "write_v: pair 0 has 3 values: must be 2", [&] { app.write_v(0, ones); });
    refuses(of + "write_v: pair 0 is NULL: must be 2 values", [&] { app.write_v(0, nullptr, 2); });
    refuses(of + "write_u: pair 0 has index 3: must be 0 to 2", [&] { at({1, 3}); });
    refuses(of + "write_u: pair 0 has index -1: must be 0 to 2", [&] { at({-1, 0}); });
    refuses(of + "write_u: pair 0 has index 1 twice: give each once", [&] { at({1, 0, 1}); });
    refuses(of + "write_u: pair 0 has values that are NULL", [&] { app.write_u(0, &index, nullptr, 1); });
    refuses(mine + "write_u: key 1: must be 0 to 0", [&] { app.write_u(0, ones, 1); });
    refuses(mine + "mat: key -1: must be 0 to 0", [&] { app.mat(-1); });
    assert(app.commits() == 0 && app.u(0) == app.exchange().factors(0).u && app.v(1) == app.v(0) + 2);
    app.write_v(1, two, 1, 0, code); // a refused vector takes back the pair's earlier one
    assert(code == hpcomm::make_error_code(HPC_ERR_INVALID));

    app.write_u(0, ones), app.write_v(0, two, 2), app.write_u(1, ones);
    refuses(of + "commit: pair 1 of 2 has no v: call write_v(1, ...)", [&] { app.commit(); });
    app.v(1)[0] = nan;
    refuses(of + "commit: v of pair 1 has nan at element 0: must be finite", [&] { app.commit(); });
    const float wide[] = {1, std::numeric_limits<float>::infinity()};
    app.write_v(1, wide, 2);
    refuses(of + "commit: v of pair 1 has inf at element 1: must be finite", [&] { app.commit(); });
    app.write_v(1, two, 2);
    refuses("pair 0 has 2 values", [&] { app.write_u(0, two, 2); }); // so pair 0 has no u any more
    app.commit(SECONDS, code);
    assert(code == hpcomm::make_error_code(HPC_ERR_INVALID));
    assert(app.refusal() == of + "commit: pair 0 of 2 has no u: call write_u(0, ...)" && app.commits() == 0);
    app.write_u(0, ones, 0, code);
    assert(!code);
    app.commit(SECONDS, code);
    assert(!code && app.mat(0, SECONDS)[5] == -2 * RANKS && app.commits() == 1);
    app.mat(1, SECONDS, code);
    assert(code && app.mat(0, SECONDS, code) != nullptr && !code);
    app.commit(SECONDS); // without writes: the vectors of the last commit are not sent again
    assert(app.mat(0, SECONDS)[5] == -2 * RANKS);
    context.barrier(SECONDS);
    app.close(SECONDS);
    refuses("closed", [&] { app.commit(); });

    SufficientFactors none;
    assert(!none);
    refuses("commit: there is no matrix to send", [&] { none.commit(); });
    refuses("write_u: key 0: this object has no matrix", [&] { none.write_u(0, ones); });

    // One rank's mistake is told to all.
    const auto make = [&] { SufficientFactors(context, config, Rule("sgd"), inline_progress(), SECONDS); };
    const bool one = context.rank() == 1;
    config.pairs = one ? 0 : PAIRS;
    refuses("pairs must be 1 or more", make);
    config.pairs = PAIRS;
    config.staleness = one ? -1 : 0;
    refuses("staleness is -1", make);
    config.staleness = 0;
    config.matrices[0].rows = one ? 0 : 3;
    refuses("on rank 1: plan: key 'W' has no elements", make);
    config.matrices[0].rows = std::uint64_t(1) << 45;
    refuses("the codec of key W, factors: rows and columns must be those of a matrix of 2^29", make);
}

int main(int, char **argv) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < RANKS; rank++)
        ranks.emplace_back([=] {
            hpcomm::Rendezvous meeting(rank, RANKS, "127.0.0.1", std::stoi(argv[1]), {}, SECONDS);
            hpcomm::Context context(meeting);
            bsp(context, true);
            bsp(context, false);
            ssp(context);
            partial(context, false);
            partial(context, true);
            prox(context);
            refusals(context);
            context.barrier(SECONDS);
        });
    for (std::thread &rank : ranks) rank.join();
    return 0;
}
"""


def test_three_ranks_write_pairs_and_commit_them(tmp_path: Path) -> None:
    source, program = tmp_path / "app.cpp", tmp_path / "app"
    source.write_text(PROGRAM)
    library = info("--cmake-dir").parents[1] / "libhpcomm.so.0"
    flags = ["-std=c++17", "-g", "-pthread", *STRICT, "-I", str(info("--include-dir"))]
    run(tool("c++", "g++", "clang++"), *flags, source, library, f"-Wl,-rpath,{library.parent}", "-o", program)
    run(program, str(mpi.free_port()), seconds=120)
