/* Memory that other processes can map: a memfd, allocated in full, mapped until its last reference goes. */
#ifndef HPC_MEMORY_H
#define HPC_MEMORY_H

#include "status.h"

struct hpc_memory {
    void *data;
    size_t nbytes; /* of the mapping, whole pages */
    int fd;        /* the owner's memfd, else -1 */
    _Atomic int references;
};

/* Allocates nbytes (more than 0) of zeroed memory: huge pages where the system gives them to shared memory, every page
 * present on return, so that no later touch can fail. HPC_ERR_MEMORY if there is too little. */
int hpc_memory_create(size_t nbytes, const char *op, hpc_memory **memory);

/* Maps another process's memory; takes fd over, also on failure. */
int hpc_memory_attach(int fd, size_t nbytes, const char *op, hpc_memory **memory);

hpc_memory *hpc_memory_retain(hpc_memory *memory);

#endif
