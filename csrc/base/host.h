/* Facts about this host, from the kernel. The argument root is put before /proc and /sys: "" for the real ones, a
 * folder in tests. */
#ifndef HPC_HOST_H
#define HPC_HOST_H

#include "hpcomm/hpcomm.h"

/* Returns the seconds of CLOCK_MONOTONIC, which all processes of a host share: the clock of deadlines and timelines. */
double hpc_now(void);

/* Returns how many whole CPUs the quotas of this process's cgroup and its parents allow, at least 1; 0 without a quota.
 * *of gets a number that identifies the cgroup with the smallest quota, the same number in every namespace; 0 if
 * unknown. If several cgroups have that quota, *of is for the one nearest to the root. */
int hpc_host_quota(const char *root, uint64_t *of);

/* Returns how many bytes can be allocated without swapping or reaching a memory limit of the cgroups. */
uint64_t hpc_host_memory(const char *root);

/* Returns the size of the last-level cache in bytes, 32 MiB if unknown. */
size_t hpc_host_cache(const char *root);

/* Lists the CPUs on which the calling thread may run, in ascending order, without regard to quotas: writes the first
 * cap of them into cpus. Returns how many there are. */
int hpc_host_cpus(int *cpus, int cap);

/* Returns the NUMA node of a CPU; 0 if unknown. */
int hpc_host_node(const char *root, int cpu);

/* Returns whether a process of this PID namespace is stopped, by a signal or a debugger. */
int hpc_host_is_stopped(const char *root, int64_t pid);

/* *ran gets the nanoseconds for which the calling thread has run, *waited those for which it has waited for a CPU while
 * it could run. Returns 0 if the kernel does not count them, else 1. */
int hpc_host_waited(const char *root, uint64_t *ran, uint64_t *waited);

/* Raises this process's soft limit of open files to `needed`, as far as the hard limit allows; never lowers it. Returns
 * how many files the process may have open. With needed 0 it changes nothing. */
uint64_t hpc_host_files(uint64_t needed);

enum { HPC_FILES_HINT = 96 };

/* Returns how many files this process has open; 0 if that cannot be found. */
int hpc_host_open_files(void);
/* Returns the end of an error's sentence if the errno is about too many open files: it states the limit, and how to
 * raise it. Returns "" for another errno. */
const char *hpc_files_hint(int error, char text[HPC_FILES_HINT]);

/* Restricts the calling thread to these CPUs. Returns 0 or -errno; records no error. */
int hpc_host_allow(const int *cpus, int n);
int hpc_host_pin(int cpu);

/* Starts a thread that is not joined, and that takes no signals, which are for the program's threads. Returns 0, or an
 * errno. */
int hpc_host_start_thread(void *(*run)(void *arg), void *arg);

#endif
