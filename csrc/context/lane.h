/* One thread's ordered channel to every peer. */
#ifndef HPC_LANE_H
#define HPC_LANE_H

#include "window.h"

typedef struct hpc_lane_peer {
    void *in;           /* the transport's: events from this peer */
    void *out;          /* and to it */
    hpc_memory *memory; /* behind out, if mapped */
} hpc_lane_peer;

/* Each pair of ranks uses one rail in all that is by worker (PHub, section 4.5). */
enum { HPC_RAIL_BY_WORKER = -1 };

struct hpc_lane {
    hpc_context *context;
    int open;             /* every peer can be reached by it */
    int own;              /* the context's first lane: holds no reference to it */
    hpc_memory *memory;   /* the rings that peers write events into */
    hpc_lane_peer *peers; /* by rank */
    int next;             /* where poll looks first */
    int rail;             /* verbs: by which rail to a peer (mod their number), or HPC_RAIL_BY_WORKER */
    uint64_t number;      /* tcp: what this rank calls it; 0: nothing yet */
    void *verbs;          /* verbs: its queues */
};

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

/* rail: as in hpc_lane. */
int hpc_lane_open(hpc_context *context, int own, int rail, double deadline, hpc_lane **lane);

#endif
