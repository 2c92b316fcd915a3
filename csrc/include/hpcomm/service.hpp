// service.hpp - a job at hubs, which serve the parameters of many jobs (service.h).
#ifndef HPCOMM_SERVICE_HPP
#define HPCOMM_SERVICE_HPP

#include "context.hpp"

#include <string>
#include <utility>
#include <vector>

namespace hpcomm {

// Creates a job at a hub, "HOST:PORT", or at several, a comma list; returns the job's handle. An empty token means the
// contents of the file that HPCOMM_SECRET_FILE names; without a name for the job the hub chooses one.
inline std::string create_service(const std::string &hubs, const std::string &space, const std::string &token = {},
                                  const std::string &job = {}, double timeout = default_timeout, Report report = {}) {
    std::string handle(HPC_HANDLE_BYTES + hubs.size(), 0);
    const void *secret = token.empty() ? nullptr : token.data();
    const bool made = report(hpc_service_create(hubs.c_str(), space.c_str(), job.empty() ? nullptr : job.c_str(),
                                                secret, token.size(), timeout, &handle[0], handle.size()));
    handle.resize(made ? handle.find('\0') : 0);
    return handle;
}

// A worker's membership in a job at hubs. Exchange(service, ...) makes an exchange whose servers are the hubs.
class Service : public Handle<hpc_service, hpc_service_free> {
  public:
    Service() noexcept = default;

    // Joins the job, and waits for the other workers and the hubs. An empty handle means that of HPCOMM_SERVICE, an
    // empty token the contents of the file that HPCOMM_SECRET_FILE names.
    Service(const std::string &handle, const std::string &token, int rank, int size, const Config &config = {},
            Report report = {})
        : Handle(report,
                 [&](hpc_service **out) {
                     return hpc_service_connect(handle.empty() ? nullptr : handle.c_str(),
                                                token.empty() ? nullptr : token.data(), token.size(), rank, size,
                                                &config, out);
                 }),
          context_(hpc_service_context(get())) {}

    Service(Service &&) noexcept = default;
    Service &operator=(Service &&other) noexcept {
        context_.release(); // it is the old service's
        context_ = std::move(other.context_);
        Handle::operator=(std::move(other));
        return *this;
    }
    ~Service() {
        context_.release();
    }

    // Returns the context of the workers, which lives as long as the service.
    Context &context() noexcept {
        return context_;
    }
    // Returns how many cores each hub has.
    int cores() const noexcept {
        return hpc_service_cores(get());
    }
    // Returns the sentences that the hubs have told this job so far.
    std::vector<std::string> notices() {
        std::vector<std::string> notices;
        for (int i = 0; hpc_service_notice(get(), i) != nullptr; i++)
            notices.emplace_back(hpc_service_notice(get(), i));
        return notices;
    }

    // Leaves the job. Close the exchanges first.
    void close(Report report = {}) {
        report(hpc_service_close(get()));
    }
    void abort(const std::string &why, Report report = {}) {
        report(hpc_service_abort(get(), why.c_str()));
    }
    void reset() noexcept {
        context_.release();
        Handle::reset();
    }

  private:
    Context context_;
};

} // namespace hpcomm

#endif
