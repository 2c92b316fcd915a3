/* Sends an update from this rank's slot for it to the owners of its rows: by an event of each share (the rows of one
 * key on one core), or by puts. */
#ifndef HPC_SEND_H
#define HPC_SEND_H

#include "engine/scheme.h"

/* hpc_push_slot returns the slot of the next push of key. hpc_slot_of_push returns the slot of the earlier push n,
 * whose update must still be in it. */
char *hpc_push_slot(const hpc_scheme *sc, int key);
char *hpc_slot_of_push(const hpc_scheme *sc, int key, uint64_t n);
/* Returns the ticket whose end frees the slot of the next push; if models rotate, the slot that the fold of the next
 * push writes. Returns 0 if that slot was never used. */
uint64_t hpc_slot_ticket(const hpc_scheme *sc, int key);

/* Returns HPC_OK if ticket last is done. If not, returns HPC_IN_PROGRESS, or an error if op is not NULL. Works for this
 * rank's cores once at most. */
int hpc_push_after(hpc_scheme *sc, int key, uint64_t last, const char *op);
/* hpc_pace.may_push: the last push must be done. */
int hpc_push_after_last(hpc_scheme *sc, int key, const char *op);
/* Waits until the slot of the next push may be written; if models rotate, the slot that the fold of the next push
 * writes. */
int hpc_push_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
/* Returns whether the last start of key pushed no gradient. */
static inline int hpc_push_is_empty(const hpc_scheme *sc, int key) {
    return (sc->keys[key].started & HPC_PUSH_EMPTY) != 0;
}
/* Returns whether the pending push has rows of a share to send and has sent none of them yet. */
static inline int hpc_push_begins(const hpc_scheme *sc, const hpc_share *share) {
    return share->pushed > 0 && sc->keys[share->key].at_row == 0;
}
/* hpc_push_lane returns the lane of the pushes to a share. hpc_push_slot_of returns the offset, in the owner's part, of
 * slot 0 of this rank's pushes to a row. */
static inline hpc_lane *hpc_push_lane(const hpc_scheme *sc, const hpc_share *share) {
    return sc->in_lanes[share->core];
}
static inline size_t hpc_push_slot_of(const hpc_scheme *sc, int row) {
    return sc->push_slot[row];
}
/* Waits until the last push is folded. */
int hpc_push_wait_done(hpc_scheme *sc, int key, hpc_limit *l, const char *op);

/* Sends a share's part of an update. An owner that reads the update in place gets one event; any other owner gets the
 * data of every row by a put. Continues at the key's at_row, where a full ring stopped the last call. If the push has
 * no gradient, only tells the owner so. */
int hpc_push_share(hpc_scheme *sc, int s, int slot, hpc_limit *l);
/* Returns the turn of a key's sends (hpc_lane_take_turn), if updates of different keys have no order: keys are given in
 * the order in which a forward pass needs them, so the first keys go first where many wait (P3, Jayarajan et al., SysML
 * 2019). Events of hpc_send_ahead have an earlier turn. */
static inline uint32_t hpc_turn_of(int key) {
    return (uint32_t)key + 2;
}

/* Calls hpc_push_share in the turn of its key. */
int hpc_push_in_turn(hpc_scheme *sc, int s, int slot, hpc_limit *l);

/* Counts the bytes of a push of a share as sent. */
void hpc_count_sent(hpc_scheme *sc, const hpc_share *share, const char *slot);

/* Calls hpc_put_notify on the lane of a core. Waits while the owner's ring is full; on a graph it stops waiting when
 * the owner has closed. */
int hpc_send_event(hpc_scheme *sc, int core, int owner, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                   hpc_limit *l);

/* Sends an event as hpc_send_event does. The event may overtake earlier sends of any key, so it does not wait behind
 * gradients. */
int hpc_send_ahead(hpc_scheme *sc, int core, int owner, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                   hpc_limit *l);

/* Returns status, but HPC_OK instead of HPC_ERR_PEER if the neighbour rank has left, because it folds nothing more. */
int hpc_unless_left(const hpc_scheme *sc, int rank, int status);

/* Asks the other owners of key to report when all data sent to them has arrived. Does not wait. */
void hpc_ask_flushed(const hpc_scheme *sc, int key);

/* Waits until all data sent to the other owners of key has left this rank's memory. */
int hpc_flush_key(hpc_scheme *sc, int key, hpc_limit *l);

/* Orders non-temporal stores before later stores, because a trainer's own kernels may have written the gradient with
 * non-temporal stores. */
static inline void hpc_end_gradient(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    atomic_thread_fence(memory_order_release);
#endif
}

#endif
