/* A registered block that every peer may write into, with its signal words behind the data. */
#ifndef HPC_WINDOW_H
#define HPC_WINDOW_H

#include "context.h"

enum {
    HPC_SIGNAL_STRIDE = 64,
    HPC_MOST_SIGNALS = 1 << 24
}; /* a signal has a cache line of its own: one writer, one reader, nobody else's traffic */

/* How one rank's part is laid out. */
typedef struct hpc_part {
    size_t nbytes;         /* of data */
    size_t signals_offset; /* of signal 0, from the data's start */
    int signals;
    hpc_memory *memory; /* mapped here, or NULL */
    uint32_t number;    /* tcp: what its rank calls it */
    void *remote;       /* verbs: where it is */
} hpc_part;

struct hpc_window {
    hpc_context *context;
    hpc_memory *memory; /* this rank's part */
    hpc_part *parts;    /* by rank, one's own included */
    uint32_t number;    /* tcp: what this rank calls its part; 0: nothing yet */
    void *registered;   /* verbs: this rank's part */
};

/* hpc_window_create with parts that may differ between ranks, and ranges of one's own part on given NUMA nodes (offsets
 * from the data's start): window->memory->unplaced says if the kernel refused. */
int hpc_window_create_parts(hpc_context *context, const char *op, size_t nbytes, int signals,
                            const hpc_placement *places, int n_places, double deadline, hpc_window **window);

/* The NUMA node where a window lies of which nothing else is said: that of the context's NICs where they carry what
 * peers write into it, so that it goes no further than it must (PHub, section 3.2.1); -1: anywhere. */
int hpc_window_node(const hpc_context *context);

static inline _Atomic uint64_t *hpc_signal_at(const hpc_part *part, int signal) {
    return (_Atomic uint64_t *)(void *)((char *)hpc_memory_data(part->memory) + part->signals_offset +
                                        (size_t)signal * HPC_SIGNAL_STRIDE);
}

/* Stores a value that has come, unless a greater one is there: one that its writer put later by another lane may have
 * overtaken it. release: the data put before it is visible to whoever sees it. */
static inline void hpc_raise_signal(_Atomic uint64_t *word, uint64_t value) {
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed);
    while (value > now &&
           !atomic_compare_exchange_weak_explicit(word, &now, value, memory_order_release, memory_order_relaxed)) {
    }
}

static inline _Atomic uint64_t *hpc_own_signal(const hpc_window *window, int signal) {
    return hpc_signal_at(&window->parts[window->context->group.rank], signal);
}

#endif
