/* The interface of a transport: one const struct with a name, capabilities and functions.
 *
 * The core keeps one window object and one lane object for all transports. A transport stores the data by which it
 * reaches a peer in that peer's slot of the object. Unless its comment says otherwise, a function is called by the
 * thread that uses the lane, must not block, and returns HPC_OK or a negative status with the error recorded.
 *
 * Order: puts may be delayed and may overtake each other. A signal or an event must not be seen before any earlier
 * put of the same lane to the same peer. flush ends when every earlier put of the lane to that peer is in place.
 * BARRIER and ASYNC on a graph also need puts to arrive in order (discipline/graph_unflushed.c): they are refused if
 * a transport in use does not keep this order.
 *
 * Ownership: src is the caller's, and must stay unchanged until flush. The core has checked offsets and peers. */
#ifndef HPC_TRANSPORT_H
#define HPC_TRANSPORT_H

#include "base/memory.h"
#include "control/control.h"
#include "base/wait.h"
#include "transport/device.h"

enum { HPC_ORDER_BYTES = 64 };

struct hpc_address;

/* Byte counts of connections; hpc_transport.carried fills them in. */
typedef struct hpc_carried {
    uint64_t sent, received; /* by open connections */
    uint64_t waiting;        /* bytes given to the kernel that the receiver has not acknowledged yet */
    uint64_t sent_to;        /* the part of sent that went to the rank `to` */
    uint64_t waiting_to;     /* the part of waiting for the rank `to` */
} hpc_carried;

typedef struct hpc_transport {
    const char *name;
    unsigned caps;

    /* Returns whether this transport connects the two ranks, without side effects. If not, *why gets the reason. */
    int (*reaches)(const struct hpc_address *self, const struct hpc_address *peer, const char **why);

    /* Opens the transport's data in the context, at connect, if it serves a peer. NULL: nothing is to be opened. */
    int (*open)(hpc_context *context);

    /* Windows and lanes are made by collective calls, and a rank reaches a peer's part of one at its first use
     * (context/reach.c): the peer exports a blob, and this rank attaches it. With HPC_CAP_EAGER both ends do so when
     * the object is made.
     *
     * export fills the blob for peer; the control channel's thread calls it, and owns the blob's fd then. attach makes
     * the peer's part reachable; it takes the blob's fd over, also if it fails, and is called again while it returns
     * HPC_IN_PROGRESS, with fd -1. detach undoes attach and export. A window's attach NULL: the object's number is
     * enough, and nothing is exported. open is called once when the window is made, by each transport that the context
     * uses; it may be NULL. None waits for a peer. */
    int (*window_open)(hpc_window *window);
    int (*window_export)(hpc_window *window, int peer, hpc_blob *blob);
    int (*window_attach)(hpc_window *window, int peer, const hpc_blob *blob);
    void (*window_detach)(hpc_window *window, int peer);

    /* Lanes: export makes the ring that receives the peer's events (hpc_lane_peer.in), attach the way to the peer's
     * ring (out). Either may make both, if one connection serves both ways. */
    int (*lane_export)(hpc_lane *lane, int peer, hpc_blob *blob);
    int (*lane_attach)(hpc_lane *lane, int peer, const hpc_blob *blob);
    void (*lane_detach)(hpc_lane *lane, int peer);
    /* Receives a connection that a peer opened for this lane, and welcomes it (hpc_greeting_end); takes over fd if it
     * returns HPC_OK. The control channel's thread calls it. NULL: lanes have no connections. If lanes have
     * connections, control links are TCP even within a host. */
    int (*accept_lane)(hpc_lane *lane, int peer, int stream, int fd);
    /* Frees what a blob holds that this transport exported and that is not attached, but not its fd. NULL: nothing. */
    void (*discard)(const hpc_blob *blob);

    /* A put returns HPC_IN_PROGRESS, and does nothing, while the lane has not reached the peer. */
    int (*put)(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset);
    int (*put_signal)(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                      int signal, uint64_t value);
    /* Does so too while the peer's ring is full. */
    int (*put_notify)(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                      uint32_t imm);
    /* Takes the next event from a peer that has a ring here: HPC_OK, or HPC_IN_PROGRESS if none has come. */
    int (*poll)(hpc_lane *lane, int peer, hpc_event *event);
    /* Sends the puts to peer that were kept while the lane was corked (hpc_lane.corked): a transport may keep a few
     * puts, in order, to send them together. NULL: this transport sends each put at once. */
    void (*uncork)(hpc_lane *lane, int peer);
    /* Returns HPC_IN_PROGRESS until all earlier puts of the lane to peer are in place. */
    int (*flush)(hpc_lane *lane, int peer);
    /* Returns whether a peer sees the puts of a lane in the order in which they were made. If not, why gets the
     * setting that allows another order, and the change that restores the order. NULL: puts may arrive in any order. */
    int (*keeps_order)(const hpc_context *context, char why[HPC_ORDER_BYTES]);

    /* Asks the peers that are connected to complete all puts of this rank, on all lanes. Returns how much is still
     * incomplete. Any thread may call it. NULL: puts are complete when they return. */
    int (*settle)(hpc_context *context);
    /* Returns a text that describes the path of the data to peer. NULL: data takes the control channel's path. */
    const char *(*path)(const hpc_context *context, int peer);
    /* Moves data that is held back for this rank; returns hpc_left_over bits. Any thread may call it. NULL: this
     * transport holds no data back. */
    int (*progress)(hpc_context *context);
    /* Whether every arrival that progress would find is also an event in the reactor's epoll set, which wakes a
     * thread that sleeps there. */
    int wakes_beds;
    /* Adds to *sum the bytes of this rank's connections to other hosts. sent_to and waiting_to count the rank `to`.
     * Any thread may call it. NULL: the connections share no network link with bandwidth probes (probe/probe.h), or
     * their bytes are not counted. */
    void (*carried)(hpc_context *context, int to, hpc_carried *sum);
    /* Frees the data that the transport keeps in the context. NULL: it keeps none. */
    void (*release)(hpc_context *context);

    /* The context's NICs; device.h describes the functions (hpc_nics_open and so on). One transport has them, the
     * others have NULL. */
    void (*nics_open)(const char *names, hpc_nics **nics, hpc_device_address *address);
    void (*nics_close)(hpc_nics *nics);
    int (*nics_node)(const hpc_nics *nics);
} hpc_transport;

enum {
    HPC_CAP_PEER_VIEW = 1,   /* window_attach maps the peer's memory: plain loads and stores reach it */
    HPC_CAP_ONE_HOST = 2,    /* connects ranks of one host only; their control links are Unix sockets */
    HPC_CAP_ONE_PROCESS = 4, /* connects threads of one process only; used only when asked for by name */
    HPC_CAP_NICS = 8,        /* carries its data by the context's NICs */
    HPC_CAP_EAGER = 16       /* windows and lanes reach all its peers when they are made */
};

/* Only transport.c names these, in its list; other code asks for capabilities. */
extern const hpc_transport hpc_transport_shm, hpc_transport_verbs, hpc_transport_tcp, hpc_transport_loop;

/* Returns the first transport in names, a comma list, that connects the two ranks. NULL for names allows all
 * transports, best first, except those for ranks of one process. Returns NULL if none connects them; why then has
 * the reason of each. */
const hpc_transport *hpc_transport_choose(const char *names, const struct hpc_address *self,
                                          const struct hpc_address *peer, char *why, size_t cap);
/* Returns the first transport of this build that is in names, has all capabilities in `with` and none in `without`;
 * or NULL. */
const hpc_transport *hpc_transport_find(const char *names, unsigned with, unsigned without);
/* Returns the first transport of this build that is in names, connects hosts and connects these two ranks; or NULL. */
const hpc_transport *hpc_transport_across_hosts(const char *names, const struct hpc_address *self,
                                                const struct hpc_address *peer);
/* Returns the transport by which a rank reaches itself: the chosen one, or shared memory if the chosen one connects
 * hosts. */
const hpc_transport *hpc_transport_to_self(const hpc_transport *chosen);
/* Returns the name of transport i among the ones with all capabilities in `with` and none in `without`; i counts from
 * 0, the best. NULL past the end. */
const char *hpc_transport_name(int i, unsigned with, unsigned without);
/* Returns HPC_ERR_CONFIG if names contains a transport that this build lacks. */
int hpc_transport_check(const char *names);

#endif
