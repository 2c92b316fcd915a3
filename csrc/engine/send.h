/* How an update gets from this rank's memory to the owners of its rows. */
#ifndef HPC_SEND_H
#define HPC_SEND_H

#include "engine/layout.h"

/* Where the next push of key goes; and an earlier one, push n, while it has a slot. */
char *hpc_push_slot(const hpc_exchange *ex, int key);
char *hpc_slot_of_push(const hpc_exchange *ex, int key, uint64_t n);
/* The ticket whose end frees the slot of the next push, or where models rotate the one that its fold writes; 0 when it
 * has not been used. */
uint64_t hpc_slot_ticket(const hpc_exchange *ex, int key);

/* HPC_OK if the ticket last is done, else HPC_IN_PROGRESS, after a look at what has come; with op an error. */
int hpc_push_after(hpc_exchange *ex, int key, uint64_t last, const char *op);
/* Waits until what the next push writes, or its fold, may be written. */
int hpc_push_wait_slot(hpc_exchange *ex, int key, hpc_limit *l, const char *op);
/* Waits until the last push is folded. */
int hpc_push_wait_done(hpc_exchange *ex, int key, hpc_limit *l, const char *op);

/* To an owner that reads the update where it is, one event; to another one, every row with its data. Goes on from
 * at_row of the key, where a full ring stopped it. */
int hpc_push_share(hpc_exchange *ex, int s, int slot, hpc_limit *l);
/* Bytes of a push of a share count as sent. */
void hpc_count_sent(hpc_exchange *ex, const hpc_share *share);
int hpc_row_has_input(const hpc_row *row, int rank);

/* hpc_put_notify by the lane of a core, which waits while the owner's ring is full; where owners leave, not for one
 * that has. */
int hpc_send_event(hpc_exchange *ex, int core, int owner, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                   hpc_limit *l);

/* HPC_ERR_PEER from a neighbour that has left is HPC_OK: it folds nothing any more. */
int hpc_unless_left(const hpc_exchange *ex, int rank, int status);

/* Waits until all that went to the other owners of key has left. */
int hpc_flush_key(hpc_exchange *ex, int key, hpc_limit *l);

/* Stores past the caches are ordered before what follows: a trainer's own kernels may have written the gradient so. */
static inline void hpc_end_gradient(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    atomic_thread_fence(memory_order_release);
#endif
}

#endif
