// codec.hpp - codecs of pieces: how the updates of keys are encoded.
#ifndef HPCOMM_CODEC_HPP
#define HPCOMM_CODEC_HPP

#include "hpcomm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hpcomm {

// A codec with its settings: hpc_codec_config's members and defaults, and the codec's number, which a plan takes as the
// wire of a key. CodecConfig() is for a key whose updates are sent as arrays.
struct CodecConfig : hpc_codec_config {
    int number = HPC_F32; // hpc_codec_number or hpc_dtype

    CodecConfig() noexcept : hpc_codec_config() {
        hpc_codec_config_init(this);
    }
    explicit CodecConfig(hpc_codec_number number) noexcept : CodecConfig() {
        this->number = number;
    }

    // Sends the elements with a magnitude above delta; with decays, encoding number t uses delta / sqrt(t).
    static CodecConfig threshold(double delta, bool decays = true, hpc_dtype values = HPC_F32) noexcept {
        CodecConfig config(HPC_THRESHOLD);
        config.delta = delta;
        config.decays = decays;
        config.values = values;
        return config;
    }
    // Sends about this fraction of the elements, the largest ones.
    static CodecConfig topk(double fraction, hpc_dtype values = HPC_F32) noexcept {
        CodecConfig config(HPC_TOPK);
        config.fraction = fraction;
        config.values = values;
        return config;
    }
    // Sends one bit per element, and two values per unit. The key's unit must be a multiple of this unit.
    static CodecConfig onebit(std::uint64_t unit) noexcept {
        CodecConfig config(HPC_ONEBIT);
        config.unit = unit;
        return config;
    }
    // Sends four bits per element, and a scale per unit. The key's unit must be a multiple of this unit. With feedback
    // the rounding errors are added to the next update; without it they are lost, and need no memory.
    static CodecConfig float4(std::uint64_t unit = 256, bool feedback = false) noexcept {
        CodecConfig config(HPC_FLOAT4);
        config.unit = unit;
        config.no_feedback = !feedback;
        return config;
    }
    // Sends a matrix of rows times columns elements as at most `pairs` pairs of vectors, which Exchange::factors takes.
    // The rows are cut into about `blocks` parts. The key must have rows * columns elements, and this config's unit.
    static CodecConfig factors(std::uint64_t rows, std::uint64_t columns, int pairs,
                               std::uint64_t blocks = 1) noexcept {
        CodecConfig config(HPC_FACTORS);
        std::uint64_t part = blocks > 1 ? (rows + blocks - 1) / blocks : rows;
        while (part < rows && part * columns % 16 != 0) part++; // a plan's rows may begin at multiples of 16 elements
        config.rows = rows;
        config.columns = columns;
        config.pairs = pairs;
        config.unit = part * columns;
        return config;
    }
    // Sends the bytes that encode writes. name must live until the exchange has been made, the functions as long as the
    // exchange.
    static CodecConfig own(const char *name, hpc_encode_fn encode, hpc_decode_add_fn decode_add,
                           int state_slots = 0) noexcept {
        CodecConfig config(HPC_OWN_CODEC);
        config.name = name;
        config.encode = encode;
        config.decode_add = decode_add;
        config.state_slots = state_slots;
        return config;
    }
    // values become args[1] and on.
    template <std::size_t N>
    static CodecConfig own(const char *name, hpc_encode_fn encode, hpc_decode_add_fn decode_add,
                           const double (&values)[N], int state_slots = 0) noexcept {
        static_assert(N < HPC_CODEC_ARGS, "args[0] is the number of the encoding");
        CodecConfig config = own(name, encode, decode_add, state_slots);
        std::copy_n(values, N, config.args + 1);
        return config;
    }
};

// The wire of a plan: an hpc_dtype, an hpc_codec_number, or the number of a CodecConfig.
class Wire {
  public:
    constexpr Wire(hpc_dtype dtype) noexcept : number_(dtype) {}
    constexpr Wire(hpc_codec_number codec) noexcept : number_(codec) {}
    Wire(const CodecConfig &codec) noexcept : number_(codec.number) {}

    constexpr operator int() const noexcept {
        return number_;
    }

  private:
    int number_;
};

// The codecs of an exchange by key, as the C API takes them. It points into codecs, and needs a plan that has been
// checked.
class CodecsByKey {
  public:
    CodecsByKey(const std::vector<CodecConfig> &codecs, const hpc_plan &plan)
        : CodecsByKey(codecs, plan.keys, wires_of(plan)) {}
    // The same for a plan that is not made yet. wires: the wire of each key.
    CodecsByKey(const std::vector<CodecConfig> &codecs, const hpc_key *keys, const std::vector<int> &wires) {
        if (codecs.size() == 1)
            one(codecs[0], wires);
        else
            each(codecs, wires, keys);
    }

    const hpc_codec_config *const *data() const noexcept {
        return by_key_.data();
    }
    // Returns the reason to refuse the codecs, or nullptr.
    const char *refusal() const noexcept {
        return refusal_.empty() ? nullptr : refusal_.c_str();
    }

  private:
    static std::vector<int> wires_of(const hpc_plan &plan) {
        std::vector<int> wires(static_cast<std::size_t>(plan.n_keys), HPC_F32); // F32: no codec of pieces
        for (int i = 0; i < plan.n_rows; i++) {
            const hpc_row &row = plan.rows[i];
            const int number = std::max(row.codec_in, row.codec_out);
            if (number >= HPC_THRESHOLD) wires[static_cast<std::size_t>(row.key)] = number;
        }
        return wires;
    }
    void one(const CodecConfig &codec, const std::vector<int> &wires) {
        for (int wire : wires) by_key_.push_back(wire == codec.number ? &codec : nullptr);
        if (std::find(wires.begin(), wires.end(), codec.number) == wires.end())
            refusal_ = "exchange: codecs has codec " + std::to_string(codec.number) +
                       ", and no key has it by the plan; make the plan with this codec as wire";
    }
    void each(const std::vector<CodecConfig> &codecs, const std::vector<int> &wires, const hpc_key *keys) {
        if (codecs.size() != wires.size()) {
            refusal_ = "exchange: codecs has " + std::to_string(codecs.size()) + " entries, and the plan has " +
                       std::to_string(wires.size()) + " keys; give one for each key, or one for all";
            return;
        }
        for (std::size_t key = 0; key < wires.size(); key++) {
            by_key_.push_back(&codecs[key]);
            if (codecs[key].number == wires[key]) continue;
            refusal_ = "exchange: key " + std::string(keys[key].name) + " has codec " +
                       std::to_string(codecs[key].number) + " in codecs and " + std::to_string(wires[key]) +
                       " by the plan; give both the same";
            return;
        }
    }

    std::vector<const hpc_codec_config *> by_key_;
    std::string refusal_;
};

} // namespace hpcomm

#endif
