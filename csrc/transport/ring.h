/* A ring of the events of one lane from one sender, in the receiver's memory.
 *
 * The sender's lane is the only producer. The thread that polls the receiver's lane is the only consumer. tail
 * counts the events written, head the events taken; they are 64-bit counts that never wrap in practice. The consumer
 * owns entries head to tail - 1 and the producer owns the others. When the producer owns no entry, the ring is full. */
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

/* acquire: pairs with the release store of head in hpc_ring_pop, so the consumer has read the entry before the producer
 * overwrites it. */
static inline int hpc_ring_is_full(hpc_ring *ring, uint64_t tail) {
    return tail - atomic_load_explicit(&ring->head, memory_order_acquire) >= HPC_NOTIFY_DEPTH;
}

static inline void hpc_ring_push(hpc_ring *ring, uint64_t tail, uint32_t imm, uint64_t nbytes) {
    ring->entries[tail % HPC_NOTIFY_DEPTH].imm = imm;
    ring->entries[tail % HPC_NOTIFY_DEPTH].nbytes = nbytes;
    /* release: a consumer that sees the new tail also sees the entry and the data put before it. */
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
