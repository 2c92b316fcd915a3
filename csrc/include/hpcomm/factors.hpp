// factors.hpp - the interface of SFB (Xie et al., UAI 2016, section 3): write pairs of vectors, commit them, read W.
#ifndef HPCOMM_FACTORS_HPP
#define HPCOMM_FACTORS_HPP

#include "exchange.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace hpcomm {

// A matrix W of J rows and D columns.
struct Matrix {
    const char *name;
    std::uint64_t rows, columns;
    const float *first = nullptr; // the initial values, [J][D]; rank 0's are used; nullptr: zeros
};

struct SufficientFactorsConfig {
    std::vector<Matrix> matrices;     // the names must live until the object has been made
    int pairs = 1;                    // K, the most pairs of one commit of a matrix
    int staleness = 0;                // 0: BSP; s: SSP(s): a rank may be s commits ahead of others (equation 4)
    std::vector<unsigned char> sends; // as in PeerToPeerConfig, for a partial broadcast; empty: all to all
    std::vector<int> parents;         // as in PeerToPeerConfig, for relays; empty: each rank sends its own pairs
    int cores = 1;                    // cores of each rank
    bool sum = true; // W -= lr * the sum of all ranks' products u v^T; false: the sum divided by the number of ranks

    CodecConfig codec(const Matrix &matrix) const noexcept {
        return CodecConfig::factors(matrix.rows, matrix.columns, pairs);
    }
    int plan(const Context &context, hpc_plan **out) const {
        PeerToPeerConfig peers;
        for (const Matrix &matrix : matrices)
            peers.keys.emplace_back(matrix.name, matrix.rows * matrix.columns, codec(matrix).unit);
        peers.sends = sends;
        peers.parents = parents;
        peers.cores = cores;
        peers.depth = std::max(staleness, 0) + 2;
        peers.wire = HPC_FACTORS;
        peers.sum = sum;
        return peers.plan(context, out);
    }
    // Returns the size of the largest matrix that begins as zeros and that the exchange accepts.
    std::size_t most_zeros() const noexcept {
        std::uint64_t most = 0;
        for (const Matrix &matrix : matrices) {
            const std::uint64_t count = matrix.rows * matrix.columns;
            if (matrix.first == nullptr && count <= std::uint64_t(1) << 29) most = std::max(most, count);
        }
        return static_cast<std::size_t>(most);
    }
};

// Matrices that all ranks train by pairs of vectors. The vectors go from peer to peer, and each rank applies all of
// them to its own copy. All ranks must make the same number of commits.
//
//     app.write_u(i, u), app.write_v(i, v); // pair i, 0 to K - 1
//     app.commit();                         // sends all pairs; the rank may read its next samples meanwhile
//     const float *w = app.mat();           // waits until the consistency permits the next step
//
// The argument key is the matrix's place in config.matrices. One thread at a time may use an object.
class SufficientFactors {
    template <class Floats>
    using if_floats =
        std::enable_if_t<std::is_convertible_v<decltype(std::declval<const Floats &>().data()), const float *>>;

  public:
    SufficientFactors() noexcept = default;

    // Collective over all ranks. The rule is Rule("sgd", {lr}), Rule("proxsgd", {lr, 0, strength}).with_prox("l1", D),
    // or another one; exchange.rules may have one for each matrix. The constructor sets the plan, rule, values, codecs,
    // consistency and staleness of exchange.
    SufficientFactors(Context &context, const SufficientFactorsConfig &config, const hpc_rule &rule,
                      ExchangeConfig exchange = {}, double timeout = default_timeout, Report report = {}) {
        exchange.consistency = config.staleness == 0 ? HPC_BSP : HPC_SSP;
        exchange.staleness = config.staleness;
        exchange.codecs.clear();
        for (const Matrix &matrix : config.matrices) exchange.codecs.push_back(config.codec(matrix));
        std::string refusal; // why this rank refuses; all ranks then fail with it
        std::error_code code;
        const Plan plan(context, config, code);
        if (code) refusal = hpc_last_error()->message;
        std::vector<const float *> values;
        std::unique_ptr<float[]> zeros;
        if (!code && context.rank() == 0) {
            zeros.reset(new (std::nothrow) float[config.most_zeros()]());
            if (!zeros) refusal = "sufficient factors: there is no memory for the first values, zeros, of a matrix";
        }
        for (const Matrix &matrix : config.matrices)
            values.push_back(matrix.first != nullptr ? matrix.first : zeros.get());
        if (!refusal.empty()) exchange.refusal = refusal.c_str();
        exchange_ = Exchange(context, plan, rule, values.data(), exchange, timeout, report);
        if (!exchange_) return;
        rank_ = context.rank();
        for (const Matrix &matrix : config.matrices) keys_.emplace_back(matrix, config.pairs);
    }

    explicit operator bool() const noexcept {
        return static_cast<bool>(exchange_);
    }

    // Copies u of pair i, n = J values, to the memory from which it is sent. If a pair is written twice the last one
    // counts. Pairs must be numbered from 0 without gaps.
    void write_u(int i, const float *vec, std::size_t n, int key = 0, Report report = {}) {
        write(U, i, key, report, [=](float *to, std::size_t size) { return copy(vec, n, to, size); });
    }
    // The same for v, with n = D values.
    void write_v(int i, const float *vec, std::size_t n, int key = 0, Report report = {}) {
        write(V, i, key, report, [=](float *to, std::size_t size) { return copy(vec, n, to, size); });
    }
    // vec is a std::vector, std::array or std::span of float.
    template <class Floats, class = if_floats<Floats>>
    void write_u(int i, const Floats &vec, int key = 0, Report report = {}) {
        write_u(i, vec.data(), vec.size(), key, report);
    }
    template <class Floats, class = if_floats<Floats>>
    void write_v(int i, const Floats &vec, int key = 0, Report report = {}) {
        write_v(i, vec.data(), vec.size(), key, report);
    }
    // Writes a sparse vector from its n values and their indices, each index once and in any order; other elements are
    // 0.
    void write_u(int i, const int *indices, const float *values, std::size_t n, int key = 0, Report report = {}) {
        write(U, i, key, report, [=](float *to, std::size_t size) { return scatter(indices, values, n, to, size); });
    }
    void write_v(int i, const int *indices, const float *values, std::size_t n, int key = 0, Report report = {}) {
        write(V, i, key, report, [=](float *to, std::size_t size) { return scatter(indices, values, n, to, size); });
    }
    // Returns the memory from which u (J values) or v (D values) of pair i is sent, to compute the vector there. The
    // vector counts as written, holds values of an earlier commit, and may be changed until commit. nullptr if the call
    // failed.
    float *u(int i, int key = 0, Report report = {}) {
        return write(U, i, key, report, in_place);
    }
    float *v(int i, int key = 0, Report report = {}) {
        return write(V, i, key, report, in_place);
    }

    // Sends the pairs of every matrix that were written since the last commit; if no pair was written, an empty update.
    // The call waits for the previous commit, not for this one. It is refused, and sends nothing, if a pair has no u or
    // no v, or if a value is NaN or infinite. After a Timeout nothing is lost: the next call continues where this one
    // stopped.
    void commit(double timeout = default_timeout, Report report = {}) {
        if (keys_.empty()) {
            wrong("commit", "commit: there is no matrix to send: make this object with a context", report);
            return;
        }
        const bool begun = std::any_of(keys_.begin(), keys_.end(), [](const Key &key) { return key.unsent; });
        if (!begun && !gather(timeout, report)) return;
        for (Key &key : keys_) {
            if (!key.unsent) continue;
            if (!report(hpc_exchange_start(exchange_.get(), index(key), HPC_PUSH | HPC_PULL, nullptr, timeout,
                                           &key.ticket)))
                return;
            key.unsent = false;
            key.under_way = true;
        }
        commits_++;
    }

    // Returns this rank's copy, [J][D], after it has waited until the consistency permits the next step: under BSP
    // until the updates of all ranks are applied, under SSP(s) until none is more than s commits behind. Do not read
    // the copy between commit and the next call of mat.
    const float *mat(int key = 0, double timeout = default_timeout, Report report = {}) {
        Key *const of = find("mat", key, report);
        if (of == nullptr || !settle(*of, timeout, report)) return nullptr;
        report(HPC_OK);
        return exchange_.params(key);
    }

    // Returns how many commits this rank has made.
    std::uint64_t commits() const noexcept {
        return commits_;
    }
    // The exchange of the matrices, for set_args, settle, stats and checkpoints.
    Exchange &exchange() noexcept {
        return exchange_;
    }
    // Waits for the pending commit, and closes the exchange. The result of mat stays valid.
    void close(double timeout = default_timeout, Report report = {}) {
        if (!report(hpc_exchange_close(exchange_.get(), timeout))) return;
        for (Key &key : keys_) key.under_way = false;
    }
    // Returns the sentence of this class's last refusal, which hpc_last_error does not have.
    const std::string &refusal() const noexcept {
        return refusal_;
    }

  private:
    enum Side { U, V };

    struct Key {
        Key(const Matrix &matrix, int pairs)
            : name(matrix.name), sizes{static_cast<std::size_t>(matrix.rows), static_cast<std::size_t>(matrix.columns)},
              written{flags(pairs), flags(pairs)} {}

        static std::vector<char> flags(int pairs) {
            return std::vector<char>(static_cast<std::size_t>(pairs));
        }
        float *vectors(Side side) const noexcept {
            return side == U ? place.u : place.v;
        }

        std::string name;
        std::size_t sizes[2];         // number of values in a u, and in a v
        std::vector<char> written[2]; // by pair: 1 if written since the last commit
        hpc_factors place{};          // the memory of the next commit's pairs; count is NULL until a pair is written
        std::uint64_t ticket = 0;     // of the last commit
        bool under_way = false;       // 1: no call has waited for the last commit yet
        bool unsent = false;          // 1: the pairs of a commit that was cut short are not sent yet
    };

    // ---- writing ----

    // Calls fill(to, size), which writes a vector to its memory or returns a reason to refuse it; a refused pair counts
    // as not written. Returns the memory, or nullptr.
    template <class Fill> float *write(Side side, int i, int key, const Report &report, Fill fill) {
        Key *const of = find(op(side), key, report);
        if (of == nullptr) return nullptr;
        const std::size_t pairs = of->written[side].size(), at = static_cast<std::size_t>(i);
        std::string told;
        float *to = nullptr;
        if (i < 0 || at >= pairs) {
            told = ": must be 0 to " + std::to_string(pairs - 1) + ", as pairs says";
        } else if (!place(*of, default_timeout, report)) {
            return nullptr;
        } else {
            to = of->vectors(side) + at * of->sizes[side];
            told = fill(to, of->sizes[side]);
            of->written[side][at] = told.empty();
        }
        if (told.empty()) {
            report(HPC_OK);
            return to;
        }
        wrong(*of, op(side), std::string(op(side)) + ": pair " + std::to_string(i) + told, report);
        return nullptr;
    }

    static std::string in_place(float *, std::size_t) {
        return {};
    }

    static std::string copy(const float *vec, std::size_t n, float *to, std::size_t size) {
        if (n != size) return " has " + std::to_string(n) + " values: must be " + std::to_string(size);
        if (vec == nullptr) return " is NULL: must be " + std::to_string(size) + " values";
        std::copy_n(vec, n, to);
        return {};
    }

    static std::string scatter(const int *indices, const float *values, std::size_t n, float *to, std::size_t size) {
        if (n > 0 && (indices == nullptr || values == nullptr))
            return std::string(" has ") + (indices == nullptr ? "indices" : "values") + " that are NULL: must be " +
                   std::to_string(n);
        const int *const end = indices + n;
        const auto outside = [=](int index) { return index < 0 || static_cast<std::size_t>(index) >= size; };
        const int *const bad = std::find_if(indices, end, outside);
        if (bad != end) return " has index " + std::to_string(*bad) + ": must be 0 to " + std::to_string(size - 1);
        if (std::adjacent_find(indices, end, std::greater_equal<int>()) != end) { // they are not in ascending order
            std::vector<int> sorted(indices, end);
            std::sort(sorted.begin(), sorted.end());
            const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
            if (twice != sorted.end()) return " has index " + std::to_string(*twice) + " twice: give each once";
        }
        std::fill_n(to, size, 0.0f);
        for (std::size_t j = 0; j < n; j++) to[indices[j]] = values[j];
        return {};
    }

    // ---- committing ----

    // Makes the pairs of every matrix ready to be sent.
    bool gather(double timeout, const Report &report) {
        for (const Key &key : keys_)
            if (!check(key, report)) return false;
        for (Key &key : keys_)
            if (!settle(key, timeout, report)) return false;
        for (Key &key : keys_)
            if (!place(key, timeout, report)) return false;
        for (Key &key : keys_) {
            *key.place.count = static_cast<int>(count(key));
            key.place = hpc_factors{};
            for (std::vector<char> &written : key.written) std::fill(written.begin(), written.end(), false);
            key.unsent = true;
        }
        return true;
    }

    // Refuses pairs without u or v, and values that are not finite.
    bool check(const Key &key, const Report &report) {
        const std::size_t n = count(key);
        for (Side side : {U, V}) {
            const auto begin = key.written[side].begin(), end = begin + static_cast<std::ptrdiff_t>(n);
            const auto missing = std::find(begin, end, false);
            if (missing == end) continue;
            const std::string i = std::to_string(missing - begin);
            return wrong(key, "commit",
                         "commit: pair " + i + " of " + std::to_string(n) + " has no " + name(side) + ": call " +
                             op(side) + "(" + i + ", ...)",
                         report);
        }
        for (Side side : {U, V}) {
            const std::size_t size = key.sizes[side];
            const float *const values = key.vectors(side), *const end = values + n * size;
            const float *const bad = std::find_if(values, end, [](float value) { return !std::isfinite(value); });
            if (bad == end) continue;
            const std::size_t at = static_cast<std::size_t>(bad - values);
            const char *const told = std::isnan(*bad) ? "nan" : *bad < 0 ? "-inf" : "inf";
            return wrong(key, "commit",
                         std::string("commit: ") + name(side) + " of pair " + std::to_string(at / size) + " has " +
                             told + " at element " + std::to_string(at % size) + ": must be finite",
                         report);
        }
        return true;
    }

    // Returns how many pairs the next commit has: up to the last one with a vector.
    static std::size_t count(const Key &key) {
        std::size_t n = key.written[U].size();
        while (n > 0 && !key.written[U][n - 1] && !key.written[V][n - 1]) n--;
        return n;
    }

    bool place(Key &key, double timeout, const Report &report) {
        return key.place.count != nullptr ||
               report(hpc_exchange_factors(exchange_.get(), index(key), timeout, &key.place));
    }

    // Waits for the pending commit of a matrix.
    bool settle(Key &key, double timeout, const Report &report) {
        if (key.under_way && !report(hpc_exchange_wait(exchange_.get(), index(key), key.ticket, timeout))) return false;
        key.under_way = false;
        return true;
    }

    // ---- refusals ----

    Key *find(const char *op, int key, const Report &report) {
        if (key >= 0 && static_cast<std::size_t>(key) < keys_.size()) return &keys_[static_cast<std::size_t>(key)];
        const std::string told = keys_.empty() ? "this object has no matrix: make it with a context"
                                               : "must be 0 to " + std::to_string(keys_.size() - 1);
        wrong(op, std::string(op) + ": key " + std::to_string(key) + ": " + told, report);
        return nullptr;
    }
    bool wrong(const Key &key, const char *op, const std::string &told, const Report &report) {
        return wrong(op, "key '" + key.name + "': " + told, report);
    }
    bool wrong(const char *op, const std::string &told, const Report &report) {
        refusal_ = "rank " + std::to_string(rank_) + ": " + told;
        report.refuse(op, refusal_);
        return false;
    }
    static const char *op(Side side) noexcept {
        return side == U ? "write_u" : "write_v";
    }
    static const char *name(Side side) noexcept {
        return side == U ? "u" : "v";
    }
    int index(const Key &key) const noexcept {
        return static_cast<int>(&key - keys_.data());
    }

    Exchange exchange_;
    std::vector<Key> keys_;
    std::uint64_t commits_ = 0;
    int rank_ = 0;
    std::string refusal_;
};

} // namespace hpcomm

#endif
