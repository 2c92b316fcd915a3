/* Events of one lane from one sender to one receiver: a ring in the receiver's memory.
 *
 * One producer (the sender's lane), one consumer (who polls the receiver's lane). tail counts events written, head
 * events taken; both only grow, in 64 bits, so wrap-around needs no thought. An entry belongs to the producer while
 * tail - head < depth, else to the consumer. */
#ifndef HPC_RING_H
#define HPC_RING_H

#include <stdatomic.h>
#include <stdint.h>

#include "transport/transport.h"

typedef struct hpc_ring {
    _Alignas(64) _Atomic uint64_t tail; /* written by the producer */
    _Alignas(64) _Atomic uint64_t head; /* written by the consumer */
    _Alignas(64) struct {
        uint64_t nbytes;
        uint32_t imm;
    } entries[HPC_NOTIFY_DEPTH];
} hpc_ring;

/* acquire: the consumer has read the entry before the producer writes it anew. */
static inline int hpc_ring_is_full(hpc_ring *ring, uint64_t tail) {
    return tail - atomic_load_explicit(&ring->head, memory_order_acquire) >= HPC_NOTIFY_DEPTH;
}

static inline void hpc_ring_push(hpc_ring *ring, uint64_t tail, uint32_t imm, uint64_t nbytes) {
    ring->entries[tail % HPC_NOTIFY_DEPTH].imm = imm;
    ring->entries[tail % HPC_NOTIFY_DEPTH].nbytes = nbytes;
    /* release: the entry, and the data put before it, are visible to whoever sees the new tail. */
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
}

static inline int hpc_ring_pop(hpc_ring *ring, hpc_event *event) {
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head == atomic_load_explicit(&ring->tail, memory_order_acquire)) return HPC_IN_PROGRESS;
    event->imm = ring->entries[head % HPC_NOTIFY_DEPTH].imm;
    event->nbytes = (size_t)ring->entries[head % HPC_NOTIFY_DEPTH].nbytes;
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return HPC_OK;
}

#endif
