// Several ranks learn to read digits by softmax regression, and average their weights by NOTIFY-ACK.
//
//     python examples/train_digits.py --export digits.txt
//     mpirun -n 4 train_softmax digits.txt --weights weights.txt
//
// It makes the same steps as the exchanging ranks of examples/train_digits.py with --dtype float64, so it reaches the
// same weights. MPI only connects the ranks at the start; all other communication goes through hpcomm.
#include "digits.hpp"

#include <hpcomm/hpcomm.hpp>
#include <hpcomm/hpcomm_mpi.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Options {
    std::string data, weights;
    std::string transport;          // the transport between all ranks; empty: the best one for each pair
    std::string graph = "expander"; // or ring, complete
    int epochs = 100;
    int batch = 32; // examples of one step, over all ranks
    int every = 4;  // steps between two exchanges
    double rate = 0.5;
    double decay = 1e-3;
};

Options parse(int argc, char **argv) {
    Options options;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name.rfind("--", 0) != 0 && options.data.empty()) {
            options.data = name;
            continue;
        }
        if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
        const std::string value = argv[++i];
        if (name == "--weights")
            options.weights = value;
        else if (name == "--transport")
            options.transport = value;
        else if (name == "--graph")
            options.graph = value;
        else if (name == "--epochs")
            options.epochs = std::stoi(value);
        else if (name == "--batch")
            options.batch = std::stoi(value);
        else if (name == "--every")
            options.every = std::stoi(value);
        else
            throw std::invalid_argument("unknown option " + name);
    }
    if (options.data.empty() || std::min({options.epochs, options.batch, options.every}) < 1)
        throw std::invalid_argument("usage: train_softmax DATA [--weights FILE] [--graph ring|complete|expander] "
                                    "[--epochs N] [--batch N] [--every N] [--transport shm|tcp]");
    return options;
}

// ---- data -----------------------------------------------------------------------------------------------------------

// Returns the training examples of a rank. Every fifth example is dealt out in turn; the others are sorted by digit and
// cut into one part for each rank.
std::vector<std::size_t> shard(const std::vector<int> &digits, int rank, int size) {
    std::vector<std::size_t> dealt, others;
    for (std::size_t i = 0; i < digits.size(); i++) (i % 5 == 0 ? dealt : others).push_back(i);
    std::stable_sort(others.begin(), others.end(), [&](auto a, auto b) { return digits[a] < digits[b]; });

    const auto begin = others.begin() + others.size() * rank / size;
    const auto end = others.begin() + others.size() * (rank + 1) / size;
    std::vector<std::size_t> mine(begin, end);
    for (std::size_t i = rank; i < dealt.size(); i += size) mine.push_back(dealt[i]);
    std::sort(mine.begin(), mine.end());
    return mine;
}

// ---- model ----------------------------------------------------------------------------------------------------------

// Softmax regression. It has a row of weights for each pixel, and a row for the bias.
class Softmax {
  public:
    Softmax(int n_pixels, int n_digits, double decay)
        : n_pixels_(n_pixels), n_digits_(n_digits), decay_(decay), scores_(n_digits), gradient_(n_weights()) {}

    std::size_t n_weights() const {
        return static_cast<std::size_t>(n_pixels_ + 1) * n_digits_;
    }

    // Makes one step of gradient descent on `batch` examples from number `first` on; after the last one it wraps
    // around.
    void step(double *weights, const Images &images, const std::vector<std::size_t> &examples, std::size_t first,
              int batch, double rate) {
        std::fill(gradient_.begin(), gradient_.end(), 0.0);
        for (int b = 0; b < batch; b++) {
            const std::size_t i = examples[(first + b) % examples.size()];
            const double *pixels = &images.pixels[i * n_pixels_];
            score(weights, pixels);
            const double most = *std::max_element(scores_.begin(), scores_.end());
            double sum = 0;
            for (double &s : scores_) sum += s = std::exp(s - most);
            for (double &s : scores_) s /= sum;
            scores_[images.digits[i]] -= 1;
            for (int p = 0; p <= n_pixels_; p++)
                for (int d = 0; d < n_digits_; d++)
                    gradient_[p * n_digits_ + d] += (p < n_pixels_ ? pixels[p] : 1) * scores_[d];
        }
        for (std::size_t w = 0; w < n_weights(); w++) weights[w] -= rate * (gradient_[w] / batch + decay_ * weights[w]);
    }

    double accuracy(const double *weights, const Images &images) {
        std::size_t right = 0;
        for (std::size_t i = 0; i < images.digits.size(); i++) {
            score(weights, &images.pixels[i * n_pixels_]);
            right += std::max_element(scores_.begin(), scores_.end()) - scores_.begin() == images.digits[i];
        }
        return static_cast<double>(right) / images.digits.size();
    }

  private:
    void score(const double *weights, const double *pixels) {
        const double *bias = weights + static_cast<std::size_t>(n_pixels_) * n_digits_;
        std::copy(bias, bias + n_digits_, scores_.begin());
        for (int p = 0; p < n_pixels_; p++)
            for (int d = 0; d < n_digits_; d++) scores_[d] += pixels[p] * weights[p * n_digits_ + d];
    }

    int n_pixels_, n_digits_;
    double decay_;
    std::vector<double> scores_, gradient_;
};

// ---- who sends to whom ----------------------------------------------------------------------------------------------

// A directed graph that looks the same from every rank: rank i sends to i + offset, for each offset.
struct Graph {
    int size;
    std::vector<int> offsets;

    Graph(const std::string &name, int ranks) : size(ranks) {
        std::set<int> found;
        if (name == "ring" || name == "expander") found.insert(1 % size);
        if (name == "expander") found.insert(static_cast<int>(std::lrint(std::sqrt(size))) % size);
        for (int offset = 1; name == "complete" && offset < size; offset++) found.insert(offset);
        if (name != "ring" && name != "expander" && name != "complete")
            throw std::invalid_argument("unknown graph " + name);
        found.erase(0);
        offsets.assign(found.begin(), found.end());
    }

    std::vector<int> peers(int rank, int sign) const {
        std::vector<int> peers;
        for (int offset : offsets) peers.push_back((rank + sign * offset + size) % size);
        return peers;
    }

    // Returns how many averagings reduce differences between ranks to 1e-7 of the first difference, from the second
    // largest eigenvalue of the averaging matrix.
    int consensus_rounds() const {
        const double pi = std::acos(-1.0), left = 1e-7;
        double second = left;
        for (int k = 1; k < size; k++) {
            std::complex<double> sum = 1;
            for (int offset : offsets) sum += std::polar(1.0, 2 * pi * k * offset / size);
            second = std::max(second, std::abs(sum) / (1 + offsets.size()));
        }
        return static_cast<int>(std::ceil(std::log(left) / std::log(second)));
    }
};

// ---- the exchange ---------------------------------------------------------------------------------------------------

// The weights of this rank. They are in one of the queue's two registered buffers, where out-neighbours can read them.
class Weights {
  public:
    Weights(hpcomm::Context &context, const Graph &graph, std::size_t count)
        : out_peers_(graph.peers(context.rank(), +1)), nbytes_(count * sizeof(double)),
          share_(1.0 / (1 + out_peers_.size())), shares_(out_peers_.size(), share_) {
        hpcomm::QueueConfig config;
        config.in_peers = graph.peers(context.rank(), -1);
        config.out_peers = out_peers_;
        config.nbytes = nbytes_;
        config.buffers = 2;
        queue_ = hpcomm::Queue(context, config);
        queue_.acquire(now_);
        std::fill_n(data(), count, 0.0);
    }

    double *data() const {
        return queue_.buffer<double>(now_);
    }

    // Sends the weights to the out-neighbours, and replaces them by the mean with the in-neighbours' weights.
    void average() {
        const double *own = data();
        for (int peer : out_peers_) queue_.send(peer, own, nbytes_);
        now_ = 1 - now_;
        queue_.acquire(now_);
        queue_.reduce(data(), own, share_, shares_.data());
    }

    hpc_queue_stats stats() const {
        return queue_.stats();
    }

  private:
    std::vector<int> out_peers_;
    std::size_t nbytes_;
    double share_;
    std::vector<double> shares_; // weights of the in-neighbours, which are as many as the out-neighbours
    hpcomm::Queue queue_;
    int now_ = 0;
};

void run(const Options &options) {
    hpc_oob oob;
    if (hpc_oob_from_mpi(MPI_COMM_WORLD, &oob) != HPC_OK) throw std::runtime_error("MPI does not say who is there");
    hpcomm::Config config;
    if (!options.transport.empty()) config.transports = options.transport.c_str();
    hpcomm::Context context(oob, config);

    const Data data = load(options.data);
    const std::vector<std::size_t> mine = shard(data.train.digits, context.rank(), context.size());
    const Graph graph(options.graph, context.size());
    Softmax model(data.n_pixels, data.n_digits, options.decay);
    Weights weights(context, graph, model.n_weights());

    const int batch = std::max(1, options.batch / context.size());
    const int per_exchange = options.batch * options.every;
    const int exchanges =
        options.epochs * static_cast<int>((data.train.digits.size() + per_exchange - 1) / per_exchange);
    const int steps = exchanges * options.every;
    for (int step = 0; step < steps; step++) {
        const double rate = options.rate * (1 - static_cast<double>(step) / steps);
        model.step(weights.data(), data.train, mine, static_cast<std::size_t>(step) * batch, batch, rate);
        if ((step + 1) % options.every == 0) weights.average();
    }
    for (int round = graph.consensus_rounds(); round > 0; round--) weights.average();

    const std::vector<double> accuracy = context.allgather(model.accuracy(weights.data(), data.test));
    if (context.rank() > 0) return;
    const auto [least, most] = std::minmax_element(accuracy.begin(), accuracy.end());
    const hpc_queue_stats stats = weights.stats();
    std::cout << std::fixed << std::setprecision(2) << "test accuracy " << 100 * *least << " to " << 100 * *most
              << " % (ranks: " << context.size() << ", graph: " << options.graph << "); rank 0 sent "
              << stats.bytes_sent / 1e6 << " MB and waited " << stats.wait_send + stats.wait_recv << " s\n";
    if (options.weights.empty()) return;
    std::ofstream file(options.weights);
    file << std::setprecision(std::numeric_limits<double>::max_digits10);
    for (std::size_t w = 0; w < model.n_weights(); w++) file << weights.data()[w] << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + options.weights);
}

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    try {
        run(parse(argc, argv));
    } catch (const std::exception &error) {
        std::cerr << "train_softmax: " << error.what() << '\n';
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return MPI_Finalize();
}
