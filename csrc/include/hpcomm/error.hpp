// error.hpp - failures, as exceptions or in a std::error_code; hpcomm.hpp shows the exceptions.
#ifndef HPCOMM_ERROR_HPP
#define HPCOMM_ERROR_HPP

#include "hpcomm.h"

#include <exception>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace hpcomm {

inline const std::error_category &category() noexcept {
    struct Category final : std::error_category {
        const char *name() const noexcept override {
            return "hpcomm";
        }
        std::string message(int status) const override {
            return hpc_status_text(status);
        }
    };
    static const Category instance;
    return instance;
}

inline std::error_code make_error_code(hpc_status status) noexcept {
    return {static_cast<int>(status), category()};
}

#if defined(__cpp_exceptions)

// A copy of C's record of the calling thread's last failure.
class Error : public std::runtime_error {
  public:
    explicit Error(const hpc_error &error)
        : std::runtime_error(error.message), status_(error.status), op_(error.op), transport_(error.transport),
          peer_(error.peer), ranks_(error.ranks, error.ranks + error.n_ranks),
          waiting_for_(error.waiting_for, error.waiting_for + error.n_waiting),
          left_(error.left, error.left + error.n_left), culprits_(error.culprits, error.culprits + error.n_culprits) {}

    std::error_code code() const noexcept {
        return {status_, category()};
    }
    const std::string &op() const noexcept {
        return op_;
    }

  protected:
    int status_;
    std::string op_, transport_;
    int peer_;
    std::vector<int> ranks_, waiting_for_, left_;
    std::vector<hpc_culprit> culprits_;
};

struct InvalidArgument : Error {
    using Error::Error;
};

struct ConfigError : Error {
    using Error::Error;
};

struct NotSupported : Error {
    using Error::Error;
};

struct TransportError : Error {
    using Error::Error;
    const std::string &transport() const noexcept {
        return transport_;
    }
    int peer() const noexcept {
        return peer_;
    }
};

struct PeerFailed : Error {
    using Error::Error;
    // Returns the ranks that failed by themselves; left() returns the ranks that ended or left because of them.
    const std::vector<int> &ranks() const noexcept {
        return ranks_;
    }
    const std::vector<int> &left() const noexcept {
        return left_;
    }
    const std::vector<int> &waiting_for() const noexcept {
        return waiting_for_;
    }
};

struct Timeout : Error {
    using Error::Error;
    const std::vector<int> &waiting_for() const noexcept {
        return waiting_for_;
    }
    // Returns the ranks at the ends of the chain of waits, each with its state.
    const std::vector<hpc_culprit> &culprits() const noexcept {
        return culprits_;
    }
};

struct AuthError : Error {
    using Error::Error;
};

struct OutOfMemory : Error {
    using Error::Error;
};

[[noreturn]] inline void throw_error(const hpc_error &error) {
    switch (error.status) {
    case HPC_ERR_INVALID:
        throw InvalidArgument(error);
    case HPC_ERR_CONFIG:
        throw ConfigError(error);
    case HPC_ERR_UNSUPPORTED:
        throw NotSupported(error);
    case HPC_ERR_TRANSPORT:
        throw TransportError(error);
    case HPC_ERR_PEER:
        throw PeerFailed(error);
    case HPC_ERR_TIMEOUT:
        throw Timeout(error);
    case HPC_ERR_AUTH:
        throw AuthError(error);
    case HPC_ERR_MEMORY:
        throw OutOfMemory(error);
    default:
        throw Error(error);
    }
}

#else

[[noreturn]] inline void throw_error(const hpc_error &) {
    std::terminate();
}

#endif

// The receiver of a call's failure, made from the call's last argument: an exception or a std::error_code.
class Report {
  public:
    Report() noexcept = default;
    Report(std::error_code &code) noexcept : code_(&code) {}

    // Returns true if status is HPC_OK, false for HPC_IN_PROGRESS and for a failure that went into the error_code.
    bool operator()(int status) const {
        if (code_ != nullptr)
            code_->assign(status < 0 ? status : HPC_OK, category());
        else if (status < 0)
            throw_error(*hpc_last_error());
        return status == HPC_OK;
    }

    // Reports a failure that a C++ header found itself, so that C has no record of it. op is a string literal.
    void refuse(const char *op, const std::string &sentence) const {
        if (code_ != nullptr) {
            code_->assign(HPC_ERR_INVALID, category());
            return;
        }
        hpc_error error{};
        error.status = HPC_ERR_INVALID;
        error.message = sentence.c_str();
        error.op = op;
        error.transport = "";
        error.peer = -1;
        throw_error(error);
    }

  private:
    std::error_code *code_ = nullptr;
};

} // namespace hpcomm

#endif
