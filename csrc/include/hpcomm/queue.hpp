// queue.hpp - NOTIFY-ACK: a sender reuses a peer's slot only after the peer has acknowledged the update in it.
#ifndef HPCOMM_QUEUE_HPP
#define HPCOMM_QUEUE_HPP

#include "context.hpp"
#include "fold.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace hpcomm {

struct QueueConfig {
    std::vector<int> in_peers;
    std::vector<int> out_peers;
    std::size_t nbytes = 0; // bytes of one update
    int depth = 1;
    int buffers = 0;
    const char *type = nullptr;
};

class Queue : public Handle<hpc_queue, hpc_queue_free> {
  public:
    Queue() noexcept = default;

    Queue(Context &context, const QueueConfig &config, double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_queue **out) {
              hpc_queue_config c;
              hpc_queue_config_init(&c);
              c.in_peers = config.in_peers.data();
              c.n_in = static_cast<int>(config.in_peers.size());
              c.out_peers = config.out_peers.data();
              c.n_out = static_cast<int>(config.out_peers.size());
              c.nbytes = config.nbytes;
              c.depth = config.depth;
              c.buffers = config.buffers;
              c.type = config.type;
              return hpc_queue_create(context.get(), &c, timeout, out);
          }) {}

    template <class T = void> T *buffer(int i) const {
        return static_cast<T *>(hpc_queue_buffer(get(), i));
    }
    void acquire(int i, double timeout = default_timeout, Report report = {}) {
        report(hpc_queue_acquire(get(), i, timeout));
    }
    void send(int peer, const void *src, std::size_t nbytes, double timeout = default_timeout, Report report = {}) {
        report(hpc_queue_send(get(), peer, src, nbytes, timeout));
    }
    template <class T = void> const T *recv(int peer, double timeout = default_timeout, Report report = {}) {
        const void *update = nullptr;
        report(hpc_queue_recv(get(), peer, &update, timeout));
        return static_cast<const T *>(update);
    }
    void ack(int peer, Report report = {}) {
        report(hpc_queue_ack(get(), peer));
    }
    // Computes out = weight_own*own + sum of weights[i]*(update of in_peers[i]), in arrays of T.
    template <class T>
    void reduce(T *out, const T *own, double weight_own, const double *weights, double timeout = default_timeout,
                Report report = {}) {
        report(hpc_queue_reduce(get(), out, own, weight_own, weights, dtype_of<T>::value, timeout));
    }

    // Returns the versions in header and footer of the update that recv gave last; they are equal if the update is
    // whole.
    std::pair<std::uint64_t, std::uint64_t> versions(int peer, Report report = {}) const {
        std::pair<std::uint64_t, std::uint64_t> versions{};
        report(hpc_queue_versions(get(), peer, &versions.first, &versions.second));
        return versions;
    }
    hpc_queue_stats stats(Report report = {}) const {
        hpc_queue_stats stats{};
        report(hpc_queue_get_stats(get(), &stats));
        return stats;
    }
    Memory memory(int rank) const {
        return Memory(hpc_queue_memory(get(), rank));
    }
};

} // namespace hpcomm

#endif
