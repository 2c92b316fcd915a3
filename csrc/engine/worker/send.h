/* The way of an update from this rank's memory to the owners of its rows. */
#ifndef HPC_SEND_H
#define HPC_SEND_H

#include "engine/scheme.h"

/* The slot of the next push of key; and of an earlier push n, while it has one. */
char *hpc_push_slot(const hpc_scheme *sc, int key);
char *hpc_slot_of_push(const hpc_scheme *sc, int key, uint64_t n);
/* The ticket whose end frees the slot of the next push (where models rotate: the slot that its fold writes); 0: the
 * slot has not been used yet. */
uint64_t hpc_slot_ticket(const hpc_scheme *sc, int key);

/* HPC_OK if the ticket last is done, else HPC_IN_PROGRESS, or an error if op is not NULL. Looks for progress once. */
int hpc_push_after(hpc_scheme *sc, int key, uint64_t last, const char *op);
/* hpc_pace.may_push: the last push must be done. */
int hpc_push_after_last(hpc_scheme *sc, int key, const char *op);
/* Waits until the slot of the next push (where models rotate: the slot that its fold writes) may be written. */
int hpc_push_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
/* Whether the last start of key pushed no gradient. */
static inline int hpc_push_is_empty(const hpc_scheme *sc, int key) {
    return (sc->keys[key].started & HPC_PUSH_EMPTY) != 0;
}
/* Whether rows of a share are sent, and none was yet. */
static inline int hpc_push_begins(const hpc_scheme *sc, const hpc_share *share) {
    return share->pushed > 0 && sc->keys[share->key].at_row == 0;
}
/* The lane of the pushes to a share; and the place of this rank's pushes to a row, in the part of the row's owner. */
static inline hpc_lane *hpc_push_lane(const hpc_scheme *sc, const hpc_share *share) {
    return sc->in_lanes[share->core];
}
static inline size_t hpc_push_slot_of(const hpc_scheme *sc, int row) {
    return sc->push_slot[row];
}
/* Waits until the last push is folded. */
int hpc_push_wait_done(hpc_scheme *sc, int key, hpc_limit *l, const char *op);

/* Sends one event to an owner that reads the update in place; to any other owner it sends every row with its data. Goes
 * on from the key's at_row, where a full ring stopped it. Of a push without a gradient it only tells. */
int hpc_push_share(hpc_scheme *sc, int s, int slot, hpc_limit *l);
/* The turn of a key's sends (hpc_lane_take_turn), where updates of different keys have no order: keys are given in the
 * order in which a forward pass needs them, so the first ones go first where many wait (P3, Jayarajan et al., SysML
 * 2019). Events that go ahead (hpc_send_ahead) have an earlier turn still. */
static inline uint32_t hpc_turn_of(int key) {
    return (uint32_t)key + 2;
}

/* hpc_push_share, in the turn of its key. */
int hpc_push_in_turn(hpc_scheme *sc, int s, int slot, hpc_limit *l);

/* Counts the bytes of a push of a share as sent. */
void hpc_count_sent(hpc_scheme *sc, const hpc_share *share, const char *slot);

/* hpc_put_notify by the lane of a core. Waits while the owner's ring is full, but not for an owner that has left, where
 * owners may. */
int hpc_send_event(hpc_scheme *sc, int core, int owner, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                   hpc_limit *l);

/* The same for an event that may overtake earlier sends of any key: it does not wait behind gradients. */
int hpc_send_ahead(hpc_scheme *sc, int core, int owner, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                   hpc_limit *l);

/* Returns HPC_OK instead of HPC_ERR_PEER if the neighbour has left: it folds nothing more. */
int hpc_unless_left(const hpc_scheme *sc, int rank, int status);

/* Asks the other owners of key to say when everything that was sent to them is there. Does not wait. */
void hpc_ask_flushed(const hpc_scheme *sc, int key);

/* Waits until everything that was sent to the other owners of key has left this rank's memory. */
int hpc_flush_key(hpc_scheme *sc, int key, hpc_limit *l);

/* Orders stores past the caches before later stores: a trainer's own kernels may have written the gradient so. */
static inline void hpc_end_gradient(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    atomic_thread_fence(memory_order_release);
#endif
}

#endif
