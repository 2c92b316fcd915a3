/* The parts of the tcp transport. Each file calls only files below it:
 *
 *   tcp.c     the vtable: windows, lanes, puts; how the context's reactor reads links
 *   calls.c   threads that connect links
 *   link.c    one lane's connections to one peer: sending, reading
 *   table.c   the table of links, and the byte counts of their connections
 *   orders.c  frames that wait for room in a socket, and their order
 *
 * A *link* joins a lane of this rank with the peer's lane that was created by the same collective call. It has one
 * or more *streams*, each a TCP connection. It is made when either end first uses its lane: the higher rank calls the
 * lower one, by a thread of calls.c, and a lower rank that wants the link asks the higher one to call.
 *
 * Locks. The mutex `sending` guards all that is sent on a link, and the orders that wait for room in a socket: the
 * lane's thread sends puts, the reading thread sends answers (FLUSHED, CREDIT). `reading` is a flag; the thread that
 * sets it does all reading of the link. A thread that finds it set sets `again` and goes on; the reading thread
 * looks at `again` after it cleared `reading`, so no arrival is lost. A thread may take `sending` while it holds
 * `reading`, never the other way. The transport's lock guards the tables of links and windows; it is held for
 * look-ups, and while settle sends.
 *
 * A corked lane (transport.h) queues its frames on its links as orders. uncork sends them with few system calls;
 * another thread that sends on the link may send them earlier.
 *
 * Order of the data: the reading thread reads payload into the window, then stores the signal or pushes the event
 * (both release), then rings the bell. The waiter's load (acquire) sees the payload, no matter which thread read it. */
#ifndef HPC_TCP_PARTS_H
#define HPC_TCP_PARTS_H

#include <pthread.h>

#include "transport/frame.h"
#include "transport/objects.h"
#include "transport/reactor.h"
#include "transport/ring.h"

/* An order: a frame that waits for room in the socket, or for uncork. */
typedef struct tcp_order {
    struct tcp_order *next;
    const char *src;
    size_t head, total, sent; /* bytes: header and fences; these and the payload; already sent */
    uint32_t turn;            /* the lane's turn (hpc_lane.turn) when the put was made */
    unsigned char header[sizeof(hpc_frame) + (HPC_TCP_STREAMS - 1) * sizeof(uint64_t)];
} tcp_order;

typedef struct tcp_stream {
    _Atomic int fd;    /* -1: not connected yet */
    hpc_reader reader; /* the holder of reading uses it */
    int low_water;     /* bytes that must come before an event; the holder of reading sets it */
    tcp_order *first, **last;
    size_t queued;     /* unsent bytes of the orders */
    int full;          /* the socket took only a part; an event will report room */
    int keeps;         /* all orders may wait for uncork: room in the socket does not send them */
    tcp_order *answer; /* the last order that is a FLUSHED; NULL: none */
    uint64_t pieces;   /* number of stripes sent on this stream; unused on stream 0 */
} tcp_stream;

typedef struct tcp_link {
    struct hpc_tcp *tcp;
    int peer, slot;
    uint64_t lane; /* the lane's number, which a peer that connects sends */
    _Atomic int references;
    hpc_ring ring; /* for the lane's events from this peer */
    int n_streams;
    _Atomic int refused;   /* status of a call that failed; HPC_OK: none did */
    char refusal[192];     /* its reason, set before */
    int called;            /* the link was given to calls.c; guarded by the transport's lock */
    struct tcp_link *next; /* of the links to call */
    tcp_stream streams[HPC_TCP_STREAMS];

    _Atomic int reading, again;
    _Atomic int hung_up;              /* bit k: the peer has ended its side of stream k */
    uint64_t landed[HPC_TCP_STREAMS]; /* stripes in place, by stream */
    int window;                       /* the place in the table of the window of the last frame */
    size_t signals_offset;            /* in the window of the current frame, if the frame has a signal */
    uint64_t flush_asked;             /* value of the peer's last FLUSH, answered after reading */
    int answer_flush, rings, ended_streams;

    pthread_mutex_t sending;
    uint64_t events;          /* number sent */
    _Atomic uint64_t credit;  /* number of events that the peer has taken */
    int wanting;              /* this rank has sent WANT, and no CREDIT came yet */
    int corked;               /* orders may wait for uncork; only the lane's thread uses it */
    int fenced;               /* no stripe was sent since the last frame with fences */
    uint64_t issued, asked;   /* number of puts made; of puts before the last FLUSH */
    _Atomic uint64_t flushed; /* number of puts known to be in place at the peer */
    _Atomic uint64_t credited;
    _Atomic int wanted;                    /* the peer has sent WANT: it waits for credit */
    _Atomic int closed_here, closed_there; /* the lane was freed */

    _Atomic int silent, ended; /* silent: sends nothing more; ended: reads nothing more */
    double broken_at;          /* set before silent, like why */
    char why[96];
} tcp_link;

typedef struct tcp_window {
    size_t nbytes, signals_offset;
    int signals;
    uint32_t number;
    hpc_memory *memory; /* NULL: freed */
} tcp_window;

typedef struct hpc_tcp {
    hpc_context *context;
    hpc_reactor *reactor;
    int source; /* its number in the reactor */
    pthread_mutex_t lock;
    tcp_window *windows; /* in the order of their numbers */
    int n_windows;
    tcp_link **links; /* by slot; NULL: free */
    int n_links;
    tcp_link *to_call, **last_to_call;
    int callers;           /* threads of calls.c */
    int closing;           /* no thread of calls.c takes another link */
    pthread_cond_t called; /* a thread of calls.c has ended */
    _Atomic uint32_t told; /* number of times that arrivals were reported to waiters */
    _Atomic int hot;       /* 1 + the slot of the link that brought data last */
} hpc_tcp;

/* acquire: the caller sees everything that was set before a thread installed the stream. */
static inline int tcp_stream_fd(const tcp_stream *stream) {
    return atomic_load_explicit(&stream->fd, memory_order_acquire);
}

/* ---- table.c ---- */

/* Returns a link with two references, one for its slot and one for the caller; NULL if memory is short. */
tcp_link *tcp_link_create(hpc_tcp *tcp, int peer, uint64_t lane);
tcp_link *tcp_link_retain(tcp_link *link);
void tcp_link_release(tcp_link *link);
tcp_link *tcp_link_at(hpc_tcp *tcp, int slot); /* adds a reference; NULL if the slot is free */

int tcp_watch(hpc_tcp *tcp, const tcp_link *link, int stream, int fd, int again);
void tcp_drop_link(hpc_tcp *tcp, tcp_link *link); /* frees its slot and the slot's reference; may be repeated */
void tcp_carried(hpc_context *context, int to, hpc_carried *sum); /* implements hpc_transport.carried */

/* ---- orders.c: under the link's sending ---- */

enum { TCP_MOST_UNSENT = 256 << 10 }; /* most bytes that the kernel holds unsent, and about the most of one call */

/* Sends a frame on a stream, after the earlier frames that it may not pass. corked: the frame may stay queued for
 * the caller's uncork, unless many bytes are queued already. Returns 0, or the errno that broke the stream, like the
 * next function. */
int tcp_send_frame(tcp_stream *stream, const hpc_frame *frame, const uint64_t *fences, const void *src, int corked,
                   uint32_t turn);
/* Sends the orders that fit into the socket. After a partial send it stops until an event reports room. */
int tcp_send_orders(tcp_stream *stream);
void tcp_drop_orders(tcp_stream *stream);

/* ---- calls.c ---- */

/* Lets a thread connect the link's streams to its peer, once. Returns HPC_OK, or a failure without memory. */
int tcp_call(tcp_link *link);
void tcp_end_calls(hpc_tcp *tcp); /* waits for the threads; the group is closed */

/* ---- link.c ---- */

int tcp_link_install(tcp_link *link, int stream, int fd); /* takes fd over if HPC_OK */
int tcp_link_is_whole(const tcp_link *link);              /* all streams are there */

/* Puts a frame on the link; lane is the link's lane. On a corked lane the frame may wait for tcp_link_uncork, unless
 * many bytes wait already. */
int tcp_link_put(tcp_link *link, const hpc_frame *frame, const void *src, const hpc_lane *lane);
void tcp_link_uncork(tcp_link *link);
int tcp_link_may_notify(tcp_link *link); /* returns whether the ring has room; if not, asks the peer for credit */
int tcp_link_flush(tcp_link *link);
void tcp_link_give_credit(tcp_link *link);
void tcp_link_close(tcp_link *link); /* closes this end: no more puts */

/* Reads and sends as much as possible after an event; events are epoll's. Returns nonzero if more is left to read,
 * or another thread is reading. */
int tcp_link_visit(tcp_link *link, int stream, uint32_t events, size_t budget);

#endif
