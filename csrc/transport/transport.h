/* A transport is one const struct: its name, its capabilities, its functions.
 *
 * The core keeps one window and one lane object for all transports; each transport keeps, in the slot of a peer that it
 * serves, the data by which it reaches that peer's part. Unless said otherwise a function is called by the thread that
 * uses the lane, may not block, and returns HPC_OK or a negative status with the error recorded.
 *
 * Ordering: puts may be delayed and overtaken. A signal or an event may not be seen before any earlier put of the same
 * lane to the same peer. flush ends when every earlier put of the lane to that peer is in place. Only BARRIER and ASYNC
 * on a graph need more (see discipline/graph_unflushed.c), and are refused where a transport in use does not keep the
 * order of puts. Ownership: src is the caller's and must stay as it is until flush. Offsets and peers were checked by
 * the core. */
#ifndef HPC_TRANSPORT_H
#define HPC_TRANSPORT_H

#include "base/memory.h"
#include "base/wait.h"
#include "transport/device.h"

enum { HPC_BLOB_BYTES = 64, HPC_ORDER_BYTES = 64 };

/* The handle by which peers reach an object of a rank; fd goes along where one is set (not -1). */
typedef struct hpc_blob {
    unsigned char bytes[HPC_BLOB_BYTES];
    int fd;
} hpc_blob;

struct hpc_address;

/* Bytes, as of a transport's carried. */
typedef struct hpc_carried {
    uint64_t sent, received; /* by connections that are open */
    uint64_t waiting;        /* given to the kernel, and not acknowledged yet */
    uint64_t sent_to;        /* the part of sent that went to one rank */
    uint64_t waiting_to;     /* the part of waiting that goes there */
} hpc_carried;

typedef struct hpc_transport {
    const char *name;
    unsigned caps;

    /* Whether the two ranks can use it; no side effects. why gets the reason when not. */
    int (*reaches)(const struct hpc_address *self, const struct hpc_address *peer, const char **why);

    /* Windows. export fills the blob for peer (called once for each that this transport serves); attach makes the
     * peer's part reachable from its blob and takes fd over, also on failure; detach undoes attach. May block shortly;
     * not on the hot path. */
    int (*window_export)(hpc_window *window, int peer, hpc_blob *blob);
    int (*window_attach)(hpc_window *window, int peer, const hpc_blob *blob);
    void (*window_detach)(hpc_window *window, int peer);

    /* Lanes: the same, for the ring of events. */
    int (*lane_export)(hpc_lane *lane, int peer, hpc_blob *blob);
    int (*lane_attach)(hpc_lane *lane, int peer, const hpc_blob *blob, double deadline);
    void (*lane_detach)(hpc_lane *lane, int peer);
    /* A peer's connection for a lane that was exported to it; takes fd over if HPC_OK. Called by the control channel's
     * thread. NULL: lanes have no connections. If they have, the control link is TCP even on one host. */
    int (*accept_lane)(hpc_context *context, int peer, uint64_t lane, int stream, int fd);

    int (*put)(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset);
    int (*put_signal)(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                      int signal, uint64_t value);
    /* HPC_IN_PROGRESS, with nothing done, while the peer's ring is full. */
    int (*put_notify)(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                      uint32_t imm);
    /* The next event from peer: HPC_OK, or HPC_IN_PROGRESS if none has come. */
    int (*poll)(hpc_lane *lane, int peer, hpc_event *event);
    /* Sends to peer the puts kept while the lane was corked (hpc_lane.corked): a transport may keep a few back, in
     * their order, to send them together. NULL: it sends each at once. */
    void (*uncork)(hpc_lane *lane, int peer);
    /* HPC_IN_PROGRESS until remote completion. */
    int (*flush)(hpc_lane *lane, int peer);
    /* Whether the peer sees puts of a lane in the order in which they were made. why gets the setting by which it may
     * not, and what to do about it. NULL: it may not. */
    int (*keeps_order)(const hpc_context *context, char why[HPC_ORDER_BYTES]);

    /* Asks that all puts of this rank, by any lane, be in place at the peers that are here; returns how much is left.
     * NULL if they are in place anyway. Any thread. */
    int (*settle)(hpc_context *context);
    /* The path of the data to peer, in words. NULL: the control channel's path. */
    const char *(*path)(const hpc_context *context, int peer);
    /* Moves data that is held back for this rank; returns hpc_left_over. NULL if none ever is. Any thread. */
    int (*progress)(hpc_context *context);
    /* Whether everything that progress would find is an event of the reactor's set, which wakes the sleeper there. */
    int wakes_beds;
    /* Adds the bytes of this rank's connections to other hosts, if they share links with probes of bandwidth
     * (probe/probe.h). to: the rank for sent_to and waiting_to. Any thread. NULL: the connections share no link with
     * probes, or their bytes are not counted. */
    void (*carried)(hpc_context *context, int to, hpc_carried *sum);
    /* Frees the transport's data in the context. NULL if it has none. */
    void (*release)(hpc_context *context);

    /* NICs of a context, which one transport has: hpc_nics_open and its like (device.h). NULL: it has none. */
    void (*nics_open)(const char *names, hpc_nics **nics, hpc_device_address *address);
    void (*nics_close)(hpc_nics *nics);
    int (*nics_node)(const hpc_nics *nics);
} hpc_transport;

enum {
    HPC_CAP_PEER_VIEW = 1,   /* window_attach maps the peer's memory: put and load by plain instructions */
    HPC_CAP_ONE_HOST = 2,    /* for ranks of one host; their control links are Unix sockets */
    HPC_CAP_ONE_PROCESS = 4, /* for ranks of one process; taken only when asked for by name */
    HPC_CAP_NICS = 8         /* the context's NICs carry its data */
};

/* For transport.c alone, which lists them; other code asks for capabilities. */
extern const hpc_transport hpc_transport_shm, hpc_transport_verbs, hpc_transport_tcp, hpc_transport_loop;

/* The best transport of names (NULL: every one but for ranks of one process) that reaches the peer, or NULL with the
 * reasons of all in why. The first in names is the best. */
const hpc_transport *hpc_transport_choose(const char *names, const struct hpc_address *self,
                                          const struct hpc_address *peer, char *why, size_t cap);
/* The first transport of this build that is in names and has all caps of `with` and none of `without`; or NULL. */
const hpc_transport *hpc_transport_find(const char *names, unsigned with, unsigned without);
/* The first transport of this build that is in names, connects hosts and reaches the peer; or NULL. */
const hpc_transport *hpc_transport_across_hosts(const char *names, const struct hpc_address *self,
                                                const struct hpc_address *peer);
/* How a rank reaches itself: by the chosen transport, or by shared memory where that one connects hosts. */
const hpc_transport *hpc_transport_to_self(const hpc_transport *chosen);
/* The name of transport i, from 0, best first, among those with and without these caps; NULL past the end. */
const char *hpc_transport_name(int i, unsigned with, unsigned without);
/* HPC_ERR_CONFIG when names holds one that this build lacks. */
int hpc_transport_check(const char *names);

#endif
