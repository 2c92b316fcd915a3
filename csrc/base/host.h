/* Facts of this host, as the kernel tells them. root is put before /proc and /sys: "" for the real ones, a folder in
 * tests. */
#ifndef HPC_HOST_H
#define HPC_HOST_H

#include "hpcomm/hpcomm.h"

/* Seconds of CLOCK_MONOTONIC, which is the same for all processes of a host: the clock of deadlines and timelines. */
double hpc_now(void);

/* Whole cores that the CPU quotas of this process's cgroup and of the cgroups above it leave, at least 1; 0 for no
 * quota. *of: a number of the cgroup whose quota is the least, the highest one of several, the same number in every
 * namespace; 0 if it is not known. */
int hpc_host_quota(const char *root, uint64_t *of);

/* Bytes that can be allocated without swapping or running into a memory limit of the cgroups. */
uint64_t hpc_host_memory(const char *root);

/* Bytes of the last cache, 32 MiB where the kernel does not tell. */
size_t hpc_host_cache(const char *root);

/* The CPUs that the calling thread may run on, in rising order, whatever its quota. Returns how many there are; cpus
 * gets the first cap of them. */
int hpc_host_cpus(int *cpus, int cap);

/* The NUMA node of a CPU; 0 if the kernel does not tell. */
int hpc_host_node(const char *root, int cpu);

/* Whether a process of this PID namespace is stopped, by a signal or a debugger. */
int hpc_host_is_stopped(const char *root, int64_t pid);

/* How long the calling thread has run, and how long it has waited for a CPU while it could run, in nanoseconds. Returns
 * 0 if the kernel does not count. */
int hpc_host_waited(const char *root, uint64_t *ran, uint64_t *waited);

/* Lets this process open `needed` files at once, as far as its hard limit goes: raises the soft limit, never lowers it.
 * Returns how many it may open; needed 0 asks alone. */
uint64_t hpc_host_files(uint64_t needed);

enum { HPC_FILES_HINT = 96 };

/* The sentence's end for an error that has too many open files as its cause: the limit, and how to raise it. "" for
 * another error. */
const char *hpc_files_hint(int error, char text[HPC_FILES_HINT]);

/* Lets the calling thread run on these CPUs alone. 0 or -errno; no error is recorded. */
int hpc_host_allow(const int *cpus, int n);
int hpc_host_pin(int cpu);

#endif
