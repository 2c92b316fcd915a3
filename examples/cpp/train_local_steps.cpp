// Several ranks fit a small network to a curve. Each rank has the points of one part of the curve, and exchanges
// rarely.
//
//     mpirun -n 4 train_local_steps
//     mpirun -n 4 train_local_steps --every 50 --delay 10 --mix 0.5
//
// A rank makes H (--every) steps of SGD on its local weights (DiLoCo, arXiv 2311.08105). Then it pushes its update: the
// global weights minus the local ones. The owners use the mean of all updates as a gradient, and apply Nesterov's rule
// to the global weights, from which every rank continues. Each layer is a fragment: it is exchanged at a different one
// of the H steps, and travels while the next --delay steps are computed (Streaming DiLoCo, arXiv 2501.18512, sections
// 2.2 and 2.3). MPI only connects the ranks at the start; all other communication goes through hpcomm.
#include <hpcomm/hpcomm.hpp>
#include <hpcomm/hpcomm_mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int n_units = 32, n_points = 120; // hidden units; points of all ranks together
constexpr std::size_t counts[] = {2 * n_units, n_units + 1};

struct Options {
    std::string weights;
    std::string transport; // the transport between all ranks; empty: the best one for each pair
    int steps = 4000;
    int every = 20;    // steps between two exchanges of a fragment
    int delay = 5;     // steps that are computed while a fragment travels
    double mix = 1;    // after an exchange: local = (1 - mix) * local + mix * global
    double rate = 0.1; // learning rate of the local steps
    double outer_rate = 0.7, outer_momentum = 0.9;
};

Options parse(int argc, char **argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
        const std::string value = argv[i + 1];
        if (name == "--weights")
            options.weights = value;
        else if (name == "--transport")
            options.transport = value;
        else if (name == "--steps")
            options.steps = std::stoi(value);
        else if (name == "--every")
            options.every = std::stoi(value);
        else if (name == "--delay")
            options.delay = std::stoi(value);
        else if (name == "--mix")
            options.mix = std::stod(value);
        else if (name == "--outer_rate")
            options.outer_rate = std::stod(value);
        else if (name == "--outer_momentum")
            options.outer_momentum = std::stod(value);
        else
            throw std::invalid_argument("unknown option " + name);
    }
    if (options.steps < 0 || options.every < 1)
        throw std::invalid_argument("--steps must be 0 or more, --every 1 or more");
    if (options.delay < 0 || options.delay >= options.every)
        throw std::invalid_argument("--delay is " + std::to_string(options.delay) + "; must be 0 or more, and below " +
                                    "--every, which is " + std::to_string(options.every));
    if (!(options.mix > 0 && options.mix <= 1)) throw std::invalid_argument("--mix must be above 0 and at most 1");
    return options;
}

// ---- model ----------------------------------------------------------------------------------------------------------

// Two layers. Hidden: a weight for each unit, then a bias for each. Output: a weight for each unit, then one bias.
using Weights = std::vector<std::vector<float>>;

Weights first_weights() {
    std::mt19937 random;
    std::normal_distribution<float> normal;
    Weights weights = {std::vector<float>(counts[0]), std::vector<float>(counts[1])};
    for (std::vector<float> &layer : weights)
        std::generate_n(layer.begin(), &layer == &weights[0] ? counts[0] : n_units, [&] { return normal(random); });
    for (int u = 0; u < n_units; u++) weights[1][u] *= 0.2f;
    return weights;
}

// Adds the gradient of half the mean squared error of points first to last - 1, and returns the mean squared error.
double slope(const Weights &weights, int first, int last, Weights &gradient) {
    const float *in = weights[0].data(), *out = weights[1].data();
    double sum = 0;
    for (int i = first; i < last; i++) {
        const float x = -3 + 6 * (i + 0.5f) / n_points, n = static_cast<float>(last - first);
        float units[n_units], y = out[n_units];
        for (int u = 0; u < n_units; u++) y += out[u] * (units[u] = std::tanh(in[u] * x + in[n_units + u]));
        const float error = y - std::sin(2 * x);
        sum += error * error / n;
        gradient[1][n_units] += error / n;
        for (int u = 0; u < n_units; u++) {
            const float back = error / n * out[u] * (1 - units[u] * units[u]);
            gradient[0][u] += back * x;
            gradient[0][n_units + u] += back;
            gradient[1][u] += error / n * units[u];
        }
    }
    return sum;
}

// ---- local steps ----------------------------------------------------------------------------------------------------

// The exchanges of a trainer that makes local steps. Key k of n is fragment k. It is exchanged after each step t,
// counted from 1, with t % H == (k + 1) * H / n % H.
class LocalSteps {
  public:
    LocalSteps(hpcomm::Exchange &exchange, Weights &local, const Options &options)
        : exchange_(exchange), local_(local), options_(options), under_way_(local.size()) {}

    // Begins and ends exchanges. The trainer calls it after each step.
    void step() {
        t_++;
        exchange_.progress(); // folds others' updates, if the exchange has no thread for that
        const int n = static_cast<int>(local_.size());
        for (int k = 0; k < n; k++)
            if (under_way_[k].begun > 0 && t_ - under_way_[k].begun == options_.delay) take(k, options_.mix);
        for (int k = 0; k < n; k++)
            if (t_ % options_.every == (k + 1) * options_.every / n % options_.every) begin(k);
        for (int k = 0; k < n && options_.delay == 0; k++)
            if (under_way_[k].begun > 0) take(k, options_.mix);
    }

    // Ends pending exchanges, and exchanges all fragments once more. Then the weights of all ranks are the same.
    void sync() {
        const int n = static_cast<int>(local_.size());
        for (int k = 0; k < n; k++)
            if (under_way_[k].begun > 0) take(k, options_.mix);
        for (int k = 0; k < n; k++) begin(k);
        for (int k = 0; k < n; k++) take(k, 1);
    }

  private:
    struct Turn {
        hpcomm::Ticket ticket{};
        int begun = 0; // the step in which the exchange began; 0: no exchange is pending
    };

    void begin(int k) {
        const float *global = exchange_.params(k);
        float *update = exchange_.gradient(k);
        for (std::size_t i = 0; i < local_[k].size(); i++) update[i] = global[i] - local_[k][i];
        under_way_[k] = {exchange_.start(k), t_}; // update and global must not be used until take(k)
    }

    void take(int k, double mix) {
        exchange_.wait(under_way_[k].ticket);
        under_way_[k].begun = 0;
        const float *global = exchange_.params(k), part = static_cast<float>(mix);
        for (std::size_t i = 0; i < local_[k].size(); i++) local_[k][i] = (1 - part) * local_[k][i] + part * global[i];
    }

    hpcomm::Exchange &exchange_;
    Weights &local_;
    const Options &options_;
    std::vector<Turn> under_way_; // by key
    int t_ = 0;
};

// ---- training -------------------------------------------------------------------------------------------------------

// Returns the FNV-1a hash of all weights, by which ranks compare them.
std::uint64_t digest(const Weights &weights) {
    std::uint64_t found = 14695981039346656037u;
    for (const std::vector<float> &layer : weights)
        for (float weight : layer) {
            std::uint32_t bits;
            std::memcpy(&bits, &weight, sizeof bits);
            found = (found ^ bits) * 1099511628211u;
        }
    return found;
}

void run(const Options &options) {
    hpc_oob oob;
    if (hpc_oob_from_mpi(MPI_COMM_WORLD, &oob) != HPC_OK) throw std::runtime_error("MPI does not say who is there");
    hpcomm::Config config;
    if (!options.transport.empty()) config.transports = options.transport.c_str();
    hpcomm::Context context(oob, config);
    const int rank = context.rank(), size = context.size();
    if (size > n_points)
        throw std::invalid_argument(std::to_string(size) + " ranks share " + std::to_string(n_points) + " points");

    hpcomm::HubConfig hub;
    hub.keys = {{"hidden", counts[0]}, {"output", counts[1]}};
    const hpcomm::Plan plan(context, hub);
    const hpcomm::Rule rule("nesterov", {options.outer_rate, 0.0, options.outer_momentum});
    Weights local = first_weights();
    const float *values[] = {local[0].data(), local[1].data()};
    hpcomm::Exchange exchange(context, plan, rule, values);

    LocalSteps exchanges(exchange, local, options);
    const int first = rank * n_points / size, last = (rank + 1) * n_points / size;
    Weights unused = local;
    for (int step = 1; step <= options.steps; step++) {
        Weights gradient = {std::vector<float>(counts[0]), std::vector<float>(counts[1])};
        slope(local, first, last, gradient);
        for (std::size_t k = 0; k < local.size(); k++)
            for (std::size_t i = 0; i < local[k].size(); i++)
                local[k][i] -= static_cast<float>(options.rate) * gradient[k][i];
        exchanges.step();
        if (rank == 0 && step % std::max(1, options.steps / 8) == 0)
            std::cout << "step " << std::setw(5) << step << ": loss of rank 0's weights on all points "
                      << slope(local, 0, n_points, unused) << std::endl;
    }
    exchanges.sync();

    const std::vector<std::uint64_t> all = context.allgather(digest(local));
    const hpc_exchange_stats stats = exchange.stats();
    exchange.close();
    if (std::any_of(all.begin(), all.end(), [&](std::uint64_t other) { return other != all[0]; }))
        throw std::runtime_error("ranks end with different weights");
    if (rank != 0) return;
    std::cout << "loss " << slope(local, 0, n_points, unused) << ", the same weights on all ranks (" << size << "); "
              << stats.pushes << " updates of a fragment in " << options.steps << " steps\n";
    if (options.weights.empty()) return;
    std::ofstream file(options.weights);
    file << std::setprecision(std::numeric_limits<float>::max_digits10);
    for (const std::vector<float> &layer : local)
        for (float weight : layer) file << weight << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + options.weights);
}

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    try {
        run(parse(argc, argv));
    } catch (const std::exception &error) {
        std::cerr << "train_local_steps: " << error.what() << '\n';
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return MPI_Finalize();
}
