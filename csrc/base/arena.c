#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 64 };

/* The bytes that were taken lie behind it, in the next cache line. */
struct hpc_arena_piece {
    struct hpc_arena_piece *before;
};

void *hpc_arena_take(hpc_arena *arena, size_t n, size_t size) {
    if (size > 0 && n > (SIZE_MAX - 2 * LINE) / size) return NULL;
    const size_t nbytes = LINE + (n * size + LINE - 1) / LINE * LINE;
    struct hpc_arena_piece *piece = aligned_alloc(LINE, nbytes);
    if (piece == NULL) return NULL;
    memset(piece, 0, nbytes);
    piece->before = arena->last;
    arena->last = piece;
    return (char *)piece + LINE;
}

void hpc_arena_free(hpc_arena *arena) {
    while (arena->last != NULL) {
        struct hpc_arena_piece *piece = arena->last;
        arena->last = piece->before;
        free(piece);
    }
}
