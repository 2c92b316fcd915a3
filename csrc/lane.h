/* One thread's ordered channel to every peer. */
#ifndef HPC_LANE_H
#define HPC_LANE_H

#include "window.h"

typedef struct hpc_lane_peer {
    void *in;           /* the transport's: events from this peer */
    void *out;          /* and to it */
    hpc_memory *memory; /* behind out, if mapped */
} hpc_lane_peer;

struct hpc_lane {
    hpc_context *context;
    int own;              /* the context's first lane: holds no reference to it */
    hpc_memory *memory;   /* the rings that peers write events into */
    hpc_lane_peer *peers; /* by rank */
    int next;             /* where poll looks first */
};

/* Remote completion of all that the lane has put, to every peer that is still here. */
int hpc_lane_flush(hpc_lane *lane, double timeout);

int hpc_lane_open(hpc_context *context, int own, double deadline, hpc_lane **lane);

#endif
