// handle.hpp - the base of handles, which free themselves, and references to mapped memory.
#ifndef HPCOMM_HANDLE_HPP
#define HPCOMM_HANDLE_HPP

#include "error.hpp"

#include <memory>

namespace hpcomm {

inline constexpr double default_timeout = -1.0; // means the context's timeout

template <class T, void (*Free)(T *)> class Handle {
  public:
    Handle() noexcept = default;

    T *get() const noexcept {
        return handle_.get();
    }
    explicit operator bool() const noexcept {
        return handle_ != nullptr;
    }
    void reset() noexcept {
        handle_.reset();
    }

  protected:
    explicit Handle(T *handle) noexcept : handle_(handle) {}

    // Calls create(T **) and owns the result.
    template <class Create> Handle(const Report &report, Create create) {
        T *made = nullptr;
        if (report(create(&made))) handle_.reset(made);
    }

    // Lets go of a handle that another object owns.
    void release() noexcept {
        static_cast<void>(handle_.release());
    }

  private:
    struct Deleter {
        void operator()(T *handle) const noexcept {
            Free(handle);
        }
    };
    std::unique_ptr<T, Deleter> handle_;
};

// A reference to mapped memory, which outlives the window or queue that it came from; empty if the memory cannot be
// mapped.
class Memory : public Handle<hpc_memory, hpc_memory_release> {
  public:
    Memory() noexcept = default;
    explicit Memory(hpc_memory *memory) noexcept : Handle(memory) {}

    template <class T = void> T *data() const {
        return static_cast<T *>(hpc_memory_data(get()));
    }
};

} // namespace hpcomm

#endif
