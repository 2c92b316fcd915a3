/* The state of one rank's end of a queue; the protocol is in queue.c. */
#ifndef HPC_QUEUE_H
#define HPC_QUEUE_H

#include "context/window.h"

/* A stamp lies before and behind every update: equal versions mean a whole one. */
typedef struct hpc_stamp {
    _Alignas(64) _Atomic uint64_t version;
    uint64_t stamp; /* in a slot whose update is read in place: the version of the buffer it is in */
    int32_t buffer; /* the number of that buffer; -1 when the update is in the slot */
} hpc_stamp;

typedef struct in_edge {
    int rank, in_place, ack_signal;
    _Atomic uint64_t *notify;
    uint64_t received, acked;
    size_t slots_offset, slot_stride; /* in this rank's part */
    const char *peer_buffers;         /* the sender's, mapped here */
    const hpc_stamp *header, *footer; /* of the update that was received last */
    const void *update;
} in_edge;

typedef struct out_edge {
    int rank, in_place, notify_signal;
    _Atomic uint64_t *ack;
    uint64_t sent;
    const void *flushing;             /* the source of update sent, while it may still be read; NULL: of none */
    size_t slots_offset, slot_stride; /* in the peer's part */
    hpc_stamp *stamps;                /* header and footer of each slot, as sent */
    uint64_t *sent_from;              /* by buffer: the version it was last sent as */
} out_edge;

struct hpc_queue {
    hpc_context *context;
    hpc_window *window;
    size_t nbytes, buffers_offset, buffer_stride;
    int depth, buffers, n_in, n_out;
    in_edge *in;
    out_edge *out;
    uint64_t stamp; /* the newest version of any buffer */
    char *sent;     /* by buffer: sent since it was acquired */
    const void **inputs;
    double *weights;
    hpc_queue_stats stats;
};

#endif
