// Several ranks train a small network to read digits, and push each layer's gradient to a parameter hub.
//
//     python examples/train_digits.py --export digits.txt
//     mpirun -n 4 train_push_pull digits.txt
//     mpirun -n 5 train_push_pull digits.txt --servers 1
//     mpirun -n 4 train_push_pull digits.txt --codec topk:0.05
//
// A step takes the same examples with any number of ranks, which divide them. So every job reaches the same weights, up
// to rounding, as one rank training on all the data. With a codec only a part of each gradient is sent; the rest is
// added to the next gradient. MPI only connects the ranks at the start; all other communication goes through hpcomm.
#include "digits.hpp"

#include <hpcomm/hpcomm.hpp>
#include <hpcomm/hpcomm_mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Options {
    std::string data, weights;
    std::string transport; // the transport between all ranks; empty: the best one for each pair
    std::string codec_name;
    hpcomm::CodecConfig codec; // the codec of gradients; if codec_name is empty they travel as float32
    int servers = 0;           // the first so many ranks are only servers; 0: every rank is server and worker
    int epochs = 30;
    int batch = 32; // examples of one step, over all workers
    int hidden = 48;
    double rate = 0.05;
    double decay = 1e-3;
    double momentum = 0.9;
};

// Returns the codec that a text like topk:0.05 names; throws for other text.
hpcomm::CodecConfig codec_of(const std::string &text) {
    const std::size_t colon = text.find(':');
    const std::string name = text.substr(0, colon), value = colon < text.size() ? text.substr(colon + 1) : "";
    char *end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (!value.empty() && *end == '\0') {
        if (name == "threshold") return hpcomm::CodecConfig::threshold(number);
        if (name == "topk") return hpcomm::CodecConfig::topk(number);
        if (name == "onebit" && number >= 1 && number <= 1e9)
            return hpcomm::CodecConfig::onebit(static_cast<std::uint64_t>(number));
    }
    throw std::invalid_argument("--codec is " + text + "; must be threshold:DELTA, topk:FRACTION or onebit:ELEMENTS");
}

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
        else if (name == "--codec")
            options.codec = codec_of(options.codec_name = value);
        else if (name == "--servers")
            options.servers = std::stoi(value);
        else if (name == "--epochs")
            options.epochs = std::stoi(value);
        else if (name == "--batch")
            options.batch = std::stoi(value);
        else if (name == "--hidden")
            options.hidden = std::stoi(value);
        else
            throw std::invalid_argument("unknown option " + name);
    }
    if (options.data.empty() || options.servers < 0 || std::min({options.epochs, options.batch, options.hidden}) < 1)
        throw std::invalid_argument("usage: train_push_pull DATA [--weights FILE] [--servers N] [--epochs N] "
                                    "[--batch N] [--hidden N] [--transport shm|tcp] "
                                    "[--codec threshold:DELTA|topk:FRACTION|onebit:ELEMENTS]");
    return options;
}

// ---- model ----------------------------------------------------------------------------------------------------------

// A layer has a row of weights for each input, and a row for the bias.
struct Layer {
    const char *name;
    int inputs, outputs;

    std::size_t count() const {
        return static_cast<std::size_t>(inputs + 1) * outputs;
    }
};

// A network of ReLU layers and a softmax.
class Network {
  public:
    explicit Network(std::vector<Layer> layers) : layers_(std::move(layers)), inputs_(layers_.size()) {}

    const std::vector<Layer> &layers() const {
        return layers_;
    }

    // Returns the first weights: hidden layers small and random, the last layer 0.
    std::vector<std::vector<float>> first_weights() const {
        std::mt19937 random;
        std::vector<std::vector<float>> weights;
        for (const Layer &layer : layers_) {
            weights.emplace_back(layer.count());
            if (&layer == &layers_.back()) break;
            std::normal_distribution<float> normal(0, std::sqrt(2.0f / layer.inputs));
            std::generate_n(weights.back().begin(), layer.count() - layer.outputs, [&] { return normal(random); });
        }
        return weights;
    }

    // Returns the scores of the images, a row for each.
    const std::vector<float> &forward(const std::vector<const float *> &weights, const Images &images,
                                      const std::vector<std::size_t> &examples) {
        const int n_pixels = layers_.front().inputs;
        rows_ = examples.size();
        inputs_[0].clear();
        for (std::size_t i : examples)
            inputs_[0].insert(inputs_[0].end(), &images.pixels[i * n_pixels], &images.pixels[i * n_pixels] + n_pixels);
        for (std::size_t l = 0; l < layers_.size(); l++) {
            const bool last = l + 1 == layers_.size();
            std::vector<float> &out = last ? error_ : inputs_[l + 1];
            apply(layers_[l], weights[l], inputs_[l], out);
            if (!last)
                for (float &x : out) x = std::max(x, 0.0f);
        }
        return error_;
    }

    // Replaces the scores by the gradient of weight times the sum of the images' losses.
    void compare(const Images &images, const std::vector<std::size_t> &examples, float weight) {
        const int n_digits = layers_.back().outputs;
        for (std::size_t row = 0; row < rows_; row++) {
            float *scores = &error_[row * n_digits];
            const float most = *std::max_element(scores, scores + n_digits);
            float sum = 0;
            for (int d = 0; d < n_digits; d++) sum += scores[d] = std::exp(scores[d] - most);
            for (int d = 0; d < n_digits; d++) scores[d] /= sum;
            scores[images.digits[examples[row]]] -= 1;
            for (int d = 0; d < n_digits; d++) scores[d] *= weight;
        }
    }

    // Writes the gradient of layer l, and propagates the error to layer l - 1. Call it for the last layer first. Once
    // it returns, the layer's weights are not read any more and may change.
    void backward(std::size_t l, const float *weights, float *gradient) {
        const Layer &layer = layers_[l];
        std::fill_n(gradient, layer.count(), 0.0f);
        std::vector<float> before(rows_ * layer.inputs);
        for (std::size_t row = 0; row < rows_; row++) {
            const float *error = &error_[row * layer.outputs], *in = &inputs_[l][row * layer.inputs];
            for (int i = 0; i <= layer.inputs; i++) {
                const float x = i < layer.inputs ? in[i] : 1;
                for (int o = 0; o < layer.outputs; o++) gradient[i * layer.outputs + o] += x * error[o];
            }
            if (l == 0) continue;
            for (int i = 0; i < layer.inputs; i++)
                if (in[i] > 0)
                    for (int o = 0; o < layer.outputs; o++)
                        before[row * layer.inputs + i] += error[o] * weights[i * layer.outputs + o];
        }
        error_.swap(before);
    }

    double accuracy(const std::vector<const float *> &weights, const Images &images) {
        std::vector<std::size_t> all(images.digits.size());
        std::iota(all.begin(), all.end(), std::size_t{0});
        const int n_digits = layers_.back().outputs;
        const float *scores = forward(weights, images, all).data();
        std::size_t right = 0;
        for (int digit : images.digits) {
            right += std::max_element(scores, scores + n_digits) - scores == digit;
            scores += n_digits;
        }
        return static_cast<double>(right) / images.digits.size();
    }

  private:
    void apply(const Layer &layer, const float *weights, const std::vector<float> &in, std::vector<float> &out) const {
        const float *bias = weights + static_cast<std::size_t>(layer.inputs) * layer.outputs;
        out.clear();
        for (std::size_t row = 0; row < rows_; row++) {
            out.insert(out.end(), bias, bias + layer.outputs);
            for (int i = 0; i < layer.inputs; i++)
                for (int o = 0; o < layer.outputs; o++)
                    out[row * layer.outputs + o] += in[row * layer.inputs + i] * weights[i * layer.outputs + o];
        }
    }

    std::vector<Layer> layers_;
    std::size_t rows_ = 0;
    std::vector<std::vector<float>> inputs_; // the inputs of each layer
    std::vector<float> error_;
};

// ---- training -------------------------------------------------------------------------------------------------------

// Returns this worker's weights, which are arrays of the exchange, by key.
std::vector<const float *> weights_of(const hpcomm::Exchange &exchange, int n_layers) {
    std::vector<const float *> weights;
    for (int key = 0; key < n_layers; key++) weights.push_back(exchange.params(key));
    return weights;
}

// Trains on the examples of worker number `worker` of `workers`.
void train(const Options &options, const Data &data, Network &network, hpcomm::Rule rule, hpcomm::Exchange &exchange,
           int worker, int workers) {
    const int n_layers = static_cast<int>(network.layers().size());
    const std::vector<const float *> weights = weights_of(exchange, n_layers);
    const int steps_per_epoch = (static_cast<int>(data.train.digits.size()) + options.batch - 1) / options.batch;
    std::vector<hpcomm::Ticket> tickets(n_layers);
    const float weight =
        static_cast<float>(workers) / options.batch; // the hub takes the mean of the workers' gradients
    std::vector<std::size_t> mine;

    for (int epoch = 0; epoch < options.epochs; epoch++) {
        rule.args[1] = options.rate * (1 - static_cast<double>(epoch) / options.epochs);
        exchange.set_args(rule);
        for (int step = epoch * steps_per_epoch; step < (epoch + 1) * steps_per_epoch; step++) {
            mine.clear();
            for (int i = worker; i < options.batch; i += workers)
                mine.push_back((static_cast<std::size_t>(step) * options.batch + i) % data.train.digits.size());
            network.forward(weights, data.train, mine);
            network.compare(data.train, mine, weight);
            for (int key = n_layers - 1; key >= 0; key--) {
                network.backward(key, weights[key], exchange.gradient(key));
                tickets[key] = exchange.start(key); // travels while the gradient of the layer below is computed
            }
            for (const hpcomm::Ticket &ticket : tickets) exchange.wait(ticket);
        }
    }
}

// Returns the bytes of all updates that the ranks have encoded, before and after encoding. An update that an owner
// sends to several workers is encoded, and counted, once.
std::pair<double, double> encoded(hpcomm::Context &context, const hpcomm::Exchange &exchange, int n_keys) {
    std::pair<double, double> sum;
    for (int key = 0; key < n_keys; key++)
        for (const hpc_key_stats &stats : context.allgather(exchange.key_stats(key))) {
            sum.first += static_cast<double>(stats.bytes_before);
            sum.second += static_cast<double>(stats.bytes);
        }
    return sum;
}

void run(const Options &options) {
    hpc_oob oob;
    if (hpc_oob_from_mpi(MPI_COMM_WORLD, &oob) != HPC_OK) throw std::runtime_error("MPI does not say who is there");
    hpcomm::Config config;
    if (!options.transport.empty()) config.transports = options.transport.c_str();
    hpcomm::Context context(oob, config);

    const Data data = load(options.data);
    const int workers = context.size() - options.servers, worker = context.rank() - options.servers;
    if (workers < 1)
        throw std::invalid_argument("--servers " + std::to_string(options.servers) + " leaves no worker among " +
                                    std::to_string(context.size()) + " ranks");
    Network network({{"hidden", data.n_pixels, options.hidden}, {"output", options.hidden, data.n_digits}});

    hpcomm::HubConfig hub;
    for (const Layer &layer : network.layers()) hub.keys.push_back({layer.name, layer.count(), options.codec.unit});
    hub.wire = options.codec;
    if (!options.codec_name.empty()) {
        hub.apply_at = HPC_AT_RECEIVERS; // owners send encoded updates back, instead of parameters in float32
        hub.depth = 2;
    }
    for (int rank = 0; options.servers > 0 && rank < context.size(); rank++)
        (rank < options.servers ? hub.servers : hub.workers).push_back(rank);
    const hpcomm::Plan plan(context, hub);
    const hpcomm::Rule rule("nesterov", {options.rate, options.decay, options.momentum});
    const std::vector<std::vector<float>> first = network.first_weights();
    std::vector<const float *> values;
    for (const std::vector<float> &layer : first) values.push_back(layer.data());
    hpcomm::ExchangeConfig exchange_config;
    exchange_config.codecs = {options.codec};
    hpcomm::Exchange exchange(context, plan, rule, values.data(), exchange_config);

    double accuracy = 0;
    if (worker >= 0) {
        train(options, data, network, rule, exchange, worker, workers);
        accuracy = network.accuracy(weights_of(exchange, plan.n_keys()), data.test);
        exchange.close();
    } else {
        exchange.serve(); // until the workers have closed
    }

    const std::vector<double> all = context.allgather(accuracy);
    const std::vector<hpc_exchange_stats> stats = context.allgather(exchange.stats());
    const auto [before, after] = encoded(context, exchange, plan.n_keys());
    if (context.rank() == 0) {
        const auto [least, most] = std::minmax_element(all.begin() + options.servers, all.end());
        std::cout << std::fixed << std::setprecision(2) << "test accuracy " << 100 * *least << " to " << 100 * *most
                  << " % (workers: " << workers << ", servers: " << (options.servers > 0 ? options.servers : workers)
                  << "); the last worker pushed " << stats.back().pushes << " layers and waited " << stats.back().wait
                  << " s\n";
        if (!options.codec_name.empty())
            std::cout << options.codec_name << ": " << before / 1e6 << " MB of updates were encoded in " << after / 1e6
                      << " MB, " << 100 * (1 - after / before) << " % were saved\n";
    }
    if (context.rank() != context.size() - 1 || options.weights.empty()) return;
    std::ofstream file(options.weights);
    file << std::setprecision(std::numeric_limits<float>::max_digits10);
    for (int key = 0; key < plan.n_keys(); key++)
        for (std::uint64_t i = 0; i < plan.key(key).count; i++) file << exchange.params(key)[i] << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + options.weights);
}

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    try {
        run(parse(argc, argv));
    } catch (const std::exception &error) {
        std::cerr << "train_push_pull: " << error.what() << '\n';
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return MPI_Finalize();
}
