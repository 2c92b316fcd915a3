/* One thread's ordered channel to every peer. */
#ifndef HPC_LANE_H
#define HPC_LANE_H

#include "context/context.h"

/* Remote completion of all that the lane has put, to every peer that is still here. */
int hpc_lane_flush(hpc_lane *lane, double timeout);

/* The next event, or HPC_IN_PROGRESS; moves nothing that a transport holds back. One thread may poll a lane while
 * another puts on it. */
int hpc_lane_poll(hpc_lane *lane, hpc_event *event);
/* The same, but of no rank r with but[r]. */
int hpc_lane_poll_but(hpc_lane *lane, const char *but, hpc_event *event);

/* One look at whether everything put to peer is in place: HPC_OK, HPC_IN_PROGRESS or a failure. */
int hpc_lane_try_flush(hpc_lane *lane, int peer);

/* hpc_put_notify without its wait: HPC_IN_PROGRESS, with nothing done, while the peer's ring is full. */
int hpc_lane_try_notify(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                        uint32_t imm);

/* Between the two calls puts of the lane may be kept back, in their order, to be sent together. By the lane's thread,
 * which waits for nothing in between. */
static inline void hpc_lane_cork(hpc_lane *lane) {
    lane->corked = lane->keeps;
}
void hpc_lane_send_kept(hpc_lane *lane);
static inline void hpc_lane_uncork(hpc_lane *lane) {
    if (lane->corked) hpc_lane_send_kept(lane);
}

/* Until the next call puts of the lane have this turn: they may reach their peer before earlier puts with a later
 * (greater) turn, which a transport does while those still wait for room in a socket. Puts of one turn keep their
 * order, and nothing overtakes puts of turn 0. */
static inline void hpc_lane_take_turn(hpc_lane *lane, uint32_t turn) {
    lane->turn = turn;
}

/* rail: as in hpc_lane. */
int hpc_lane_open(hpc_context *context, int own, int rail, double deadline, hpc_lane **lane);

#endif
