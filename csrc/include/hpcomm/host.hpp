// host.hpp - the build, this host, and the contexts that run on it.
#ifndef HPCOMM_HOST_HPP
#define HPCOMM_HOST_HPP

#include "error.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hpcomm {

inline std::string version() {
    return hpc_version();
}

inline std::string build_info() {
    return hpc_build_info();
}

inline std::vector<std::string> transports() {
    std::vector<std::string> names;
    for (int i = 0; hpc_name(HPC_TRANSPORTS, i) != nullptr; i++) names.emplace_back(hpc_name(HPC_TRANSPORTS, i));
    return names;
}

inline int core_count() {
    return hpc_core_count();
}

inline std::uint64_t memory_available() {
    return hpc_memory_available();
}

using Device = hpc_device;

// Returns all ports of this host's RDMA devices, with those that hpcomm cannot use (their why is not empty).
inline std::vector<Device> devices(Report report = {}) {
    std::vector<Device> found;
    int n, room = 0;
    while ((n = hpc_devices(found.data(), room)) > room) found.resize(static_cast<std::size_t>(room = n));
    report(n < 0 ? n : HPC_OK);
    found.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return found;
}

using ShownRank = hpc_shown_rank;

// Returns the contexts of all processes of this host, and the other ranks of their jobs; see hpc_jobs.
inline std::vector<ShownRank> jobs(double timeout = 1, Report report = {}) {
    std::vector<ShownRank> found(64);
    int n, room = 64;
    while ((n = hpc_jobs(found.data(), room, timeout)) > room) found.resize(static_cast<std::size_t>(room = 2 * n));
    report(n < 0 ? n : HPC_OK);
    found.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return found;
}

} // namespace hpcomm

#endif
