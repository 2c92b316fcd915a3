// window.hpp - windows, which peers write into; lanes, which order writes; signals and events, which tell of them.
#ifndef HPCOMM_WINDOW_HPP
#define HPCOMM_WINDOW_HPP

#include "context.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace hpcomm {

class Lane : public Handle<hpc_lane, hpc_lane_free> {
  public:
    Lane() noexcept = default; // means the context's first lane

    explicit Lane(Context &context, double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_lane **out) { return hpc_lane_create(context.get(), timeout, out); }) {}
};

// Returns the next event of a lane, or nullopt if there is none.
inline std::optional<hpc_event> poll(Context &context, const Lane &lane = {}, Report report = {}) {
    hpc_event event{};
    return report(hpc_poll(context.get(), lane.get(), &event)) ? std::optional(event) : std::nullopt;
}

inline hpc_event wait_event(Context &context, const Lane &lane = {}, double timeout = default_timeout,
                            Report report = {}) {
    hpc_event event{};
    report(hpc_wait_event(context.get(), lane.get(), &event, timeout));
    return event;
}

class Window : public Handle<hpc_window, hpc_window_free> {
  public:
    Window() noexcept = default;

    Window(Context &context, std::size_t nbytes, int signals = 0, const char *type = nullptr,
           double timeout = default_timeout, Report report = {})
        : Handle(report, [&](hpc_window **out) {
              return hpc_window_create(context.get(), nbytes, signals, type, timeout, out);
          }) {}

    template <class T = void> T *data() const {
        return static_cast<T *>(hpc_window_data(get()));
    }
    template <class T = void> T *peer_view(int peer) const {
        return static_cast<T *>(hpc_window_peer_view(get(), peer));
    }
    Memory memory(int rank) const {
        return Memory(hpc_window_memory(get(), rank));
    }

    void put(int peer, const void *src, std::size_t nbytes, std::size_t offset, const Lane &lane = {},
             Report report = {}) {
        report(hpc_put(lane.get(), get(), peer, src, nbytes, offset));
    }
    void put_signal(int peer, const void *src, std::size_t nbytes, std::size_t offset, int signal, std::uint64_t value,
                    const Lane &lane = {}, Report report = {}) {
        report(hpc_put_signal(lane.get(), get(), peer, src, nbytes, offset, signal, value));
    }
    void put_notify(int peer, const void *src, std::size_t nbytes, std::size_t offset, std::uint32_t imm,
                    const Lane &lane = {}, double timeout = default_timeout, Report report = {}) {
        report(hpc_put_notify(lane.get(), get(), peer, src, nbytes, offset, imm, timeout));
    }
    void flush(int peer = -1, const Lane &lane = {}, double timeout = default_timeout, Report report = {}) {
        report(hpc_flush(lane.get(), get(), peer, timeout));
    }

    bool test_signal(int signal, std::uint64_t at_least, Report report = {}) const {
        return report(hpc_test_signal(get(), signal, at_least, nullptr));
    }
    std::uint64_t wait_signal(int signal, std::uint64_t at_least, int peer = -1, double timeout = default_timeout,
                              Report report = {}) const {
        std::uint64_t value = 0;
        report(hpc_wait_signal(get(), signal, at_least, peer, timeout, &value));
        return value;
    }
};

} // namespace hpcomm

#endif
