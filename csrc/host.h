/* What the kernel says about this host. root is put before /proc and /sys: "" for the real ones, a folder in tests. */
#ifndef HPC_HOST_H
#define HPC_HOST_H

#include "hpcomm/hpcomm.h"

/* Whole cores that the CPU quotas of this process's cgroup and of those above it leave, at least 1; 0 for no quota. */
int hpc_host_quota(const char *root);

/* Bytes that can be allocated without swapping or running into a memory limit of the cgroups. */
uint64_t hpc_host_memory(const char *root);

/* Bytes of the last cache, 32 MiB where the kernel does not tell. */
size_t hpc_host_cache(const char *root);

#endif
