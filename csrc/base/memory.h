/* Memory that other processes can map: a memfd whose pages are all allocated at once, mapped until its last reference
 * is released. This file also has private memory of this process, which a single core uses. Both kinds may be placed on
 * NUMA nodes. */
#ifndef HPC_MEMORY_H
#define HPC_MEMORY_H

#include "base/status.h"

struct hpc_memory {
    void *data;
    size_t nbytes; /* bytes of the mapping, whole pages */
    int fd;        /* the owner's memfd; -1 once its descriptor is closed */
    int unplaced;  /* errno of the first placement that the kernel refused; 0 if none was refused */
    _Atomic int references;
};

/* Allocates nbytes (more than 0) of zeroed memory, with huge pages if the system gives them to shared memory. Every
 * page is present on return, so no later access can fail. Returns HPC_ERR_MEMORY if there is too little memory. */
int hpc_memory_create(size_t nbytes, const char *op, hpc_memory **memory);

/* The NUMA node on which a range of a block should lie; -1: any node. */
typedef struct hpc_placement {
    size_t offset, nbytes;
    int node;
} hpc_placement;

/* Does the same, and places each page on the node of its range; a page in two ranges lies on the node of the later
 * range. Ranges must be in ascending order, and are cut at the end of the block. If a node is full, other nodes are
 * used. A placement that the kernel refuses (no such node, a container's system call filter) is no error:
 * memory->unplaced says so. */
int hpc_memory_create_placed(size_t nbytes, const hpc_placement *places, int n, const char *op, hpc_memory **memory);

/* Maps another process's memory. The call takes over fd, also if it fails. Its pages exist; the page tables of this
 * process fill as it touches them. */
int hpc_memory_attach(int fd, size_t nbytes, const char *op, hpc_memory **memory);

hpc_memory *hpc_memory_retain(hpc_memory *memory);

/* Closes the descriptor, once every process that maps the memory has received it, so that memory in use needs no
 * descriptor. */
void hpc_memory_close_descriptor(hpc_memory *memory);

/* Allocates zeroed memory of this process, from a page boundary on, with every page present. The memory lies on the
 * given node if that node has room (-1: on any node), and has huge pages if it is large. Returns NULL, without
 * recording an error, if there is too little memory. */
void *hpc_private_alloc(size_t nbytes, int node);

/* Frees p, of nbytes as allocated; p may be NULL. */
void hpc_private_free(void *p, size_t nbytes);

/* ---- an arena: memory of this process that is taken in many places and freed all at once ---- */

/* An arena must be zeroed at first; hpc_arena_free leaves it so. One thread at a time may use it. */
typedef struct hpc_arena {
    struct hpc_arena_block *last;
} hpc_arena;

/* Returns n times size zero bytes, aligned to 64; NULL without memory. */
void *hpc_arena_take(hpc_arena *arena, size_t n, size_t size);
void hpc_arena_free(hpc_arena *arena);

/* Returns a page whose first byte is 1, and 0 in a forked child; NULL without memory. */
const char *hpc_owner_page(void);
void hpc_owner_page_free(const char *page); /* NULL is allowed */

#endif
