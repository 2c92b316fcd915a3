/* Memory that other processes can map: a memfd, allocated in full, mapped until its last reference goes. And memory of
 * this process alone, for what only one core works on. Either may be asked onto NUMA nodes. */
#ifndef HPC_MEMORY_H
#define HPC_MEMORY_H

#include "base/status.h"

struct hpc_memory {
    void *data;
    size_t nbytes; /* of the mapping, whole pages */
    int fd;        /* the owner's memfd until its descriptor is closed, else -1 */
    int unplaced;  /* errno of the first placement that the kernel refused; 0 for none */
    _Atomic int references;
};

/* Allocates nbytes (more than 0) of zeroed memory: huge pages where the system gives them to shared memory, every page
 * present on return, so that no later touch can fail. HPC_ERR_MEMORY if there is too little. */
int hpc_memory_create(size_t nbytes, const char *op, hpc_memory **memory);

/* The node that a range of a block is to lie on; -1 for wherever. */
typedef struct hpc_placement {
    size_t offset, nbytes;
    int node;
} hpc_placement;

/* The same with each page on the node of its range; a page that two ranges share goes with the later of them.
 * Ranges are given in rising order and cut at the end of the block. A node that is full gives way
 * to others. A refusal (no such node, a container's system call filter) is no error: memory->unplaced says it. */
int hpc_memory_create_placed(size_t nbytes, const hpc_placement *places, int n, const char *op, hpc_memory **memory);

/* Maps another process's memory; takes fd over, also on failure. */
int hpc_memory_attach(int fd, size_t nbytes, const char *op, hpc_memory **memory);

hpc_memory *hpc_memory_retain(hpc_memory *memory);

/* Every process that maps the memory has got its descriptor: closes this one, so that memory in use costs none. */
void hpc_memory_close_descriptor(hpc_memory *memory);

/* Zeroed memory of this process, from a page's start on, every page present: on the node where it can be had there, by
 * huge pages if it is large; node -1: wherever. NULL, with no error recorded, if there is too little. */
void *hpc_private_alloc(size_t nbytes, int node);

/* nbytes as allocated; p may be NULL. */
void hpc_private_free(void *p, size_t nbytes);

/* ---- memory of this process that is taken in many places and freed all at once, with its owner ---- */

/* Begins as zeroes, and again after hpc_arena_free. One thread at a time uses it. */
typedef struct hpc_arena {
    struct hpc_arena_piece *last;
} hpc_arena;

/* n times size bytes of zeroes, aligned to 64; NULL: there is no memory. */
void *hpc_arena_take(hpc_arena *arena, size_t n, size_t size);
void hpc_arena_free(hpc_arena *arena);

#endif
