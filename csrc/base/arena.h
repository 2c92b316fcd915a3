/* Memory that is taken in many places and freed all at once, with its owner. */
#ifndef HPC_ARENA_H
#define HPC_ARENA_H

#include <stddef.h>

/* Begins as zeroes, and again after hpc_arena_free. One thread at a time uses it. */
typedef struct hpc_arena {
    struct hpc_arena_piece *last;
} hpc_arena;

/* n times size bytes of zeroes, aligned to 64; NULL: there is no memory. */
void *hpc_arena_take(hpc_arena *arena, size_t n, size_t size);
void hpc_arena_free(hpc_arena *arena);

#endif
