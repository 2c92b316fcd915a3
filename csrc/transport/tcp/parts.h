/* The parts of the tcp transport.
 *
 *   tcp.c     the vtable: windows, lanes, puts; how the context's reactor reads links
 *   link.c    one lane's connections to one peer: sending, reading
 *   table.c   the table of links, and the bytes of their connections
 *   orders.c  frames that wait for room in a socket, and their order
 *
 * Each calls only those below it.
 *
 * A *link* joins a lane of this rank with the peer's lane of the same making, by one or more *streams* (connections).
 *
 * Locks. `sending`, a mutex, guards everything that is sent on a link, and the orders that wait for room in a socket:
 * puts come from the lane's thread, answers (FLUSHED, CREDIT) from the thread that reads. The one thread that holds
 * `reading`, a flag, does all reading. A thread that finds the flag taken sets `again` and goes on, and the holder
 * looks once more after it let go, so no news is lost. `reading` may be held when `sending` is taken, never the other
 * way. The table of links and windows is under the transport's lock, held for look-ups, and while settle sends.
 *
 * A corked lane (transport.h) queues its frames on its links as orders, which uncork sends with few calls; another
 * thread that sends on the link may send them before.
 *
 * Order of the data: payload is read into the window by the holder of `reading`, then the signal is stored (release) or
 * the event pushed (release), then the bell is rung. The waiter's load (acquire) sees the payload, no matter which
 * thread read it.
 */
#ifndef HPC_TCP_PARTS_H
#define HPC_TCP_PARTS_H

#include <pthread.h>

#include "transport/frame.h"
#include "transport/objects.h"
#include "transport/reactor.h"
#include "transport/ring.h"

/* A frame that waits for room in the socket. */
typedef struct tcp_order {
    struct tcp_order *next;
    const char *src;
    size_t head, total, sent; /* bytes of header and fences; with the payload; gone already */
    uint32_t turn;            /* of its lane, as it was put */
    unsigned char header[sizeof(hpc_frame) + (HPC_TCP_STREAMS - 1) * sizeof(uint64_t)];
} tcp_order;

typedef struct tcp_stream {
    _Atomic int fd;    /* -1: not connected yet */
    hpc_reader reader; /* under reading */
    int low_water;     /* bytes that must have come before an event tells of them; likewise */
    tcp_order *first, **last;
    size_t queued;     /* bytes of them that have not been sent */
    int full;          /* the socket took only a part: an event will tell of room */
    tcp_order *answer; /* the last FLUSHED among them */
    uint64_t pieces;   /* stripes that were put on it; not on stream 0 */
} tcp_stream;

typedef struct tcp_link {
    struct hpc_tcp *tcp;
    int peer, slot;
    uint64_t lane; /* this rank's number of it: the peer says it when it calls */
    _Atomic int references;
    hpc_ring *ring; /* the lane's, of events from this peer */
    hpc_memory *ring_memory;
    int n_streams;
    tcp_stream streams[HPC_TCP_STREAMS];

    _Atomic int reading, again;
    _Atomic int hung_up;              /* bit k: the peer's end of stream k */
    uint64_t landed[HPC_TCP_STREAMS]; /* stripes, by stream */
    size_t signals_offset;            /* of the window of the frame at hand, if it has a signal */
    uint64_t flush_asked;             /* by the peer, to be answered after reading */
    int answer_flush, rings, ended_streams;

    pthread_mutex_t sending;
    uint64_t events;         /* sent */
    _Atomic uint64_t credit; /* events that the peer has taken */
    int wanting;             /* it was asked for credit */
    int corked;             /* may have orders that only uncork will send: set and cleared by the lane's thread alone */
    int fenced;             /* no stripe went out since the last frame with fences */
    uint64_t issued, asked; /* puts; up to which a FLUSH was sent */
    _Atomic uint64_t flushed; /* up to which they are in place */
    _Atomic uint64_t credited;
    _Atomic int wanted;                    /* the peer waits for credit */
    _Atomic int closed_here, closed_there; /* the lane was freed */

    _Atomic int silent, ended; /* nothing goes out any more; nothing comes in */
    double broken_at;          /* before silent, like why */
    char why[96];
} tcp_link;

typedef struct tcp_window {
    size_t nbytes, signals_offset;
    int signals;
    hpc_memory *memory; /* NULL: freed */
} tcp_window;

typedef struct hpc_tcp {
    hpc_context *context;
    hpc_reactor *reactor;
    int source; /* of it */
    pthread_mutex_t lock;
    tcp_window *windows; /* by number, from 1 */
    uint32_t n_windows;
    tcp_link **links; /* by slot; NULL: free */
    int n_links;
    uint64_t lanes;
    _Atomic uint32_t told; /* how often news was told */
    _Atomic int hot;       /* 1 + the slot of the link that spoke last */
} hpc_tcp;

/* acquire: the caller sees all that any thread set before it installed the stream. */
static inline int tcp_stream_fd(const tcp_stream *stream) {
    return atomic_load_explicit(&stream->fd, memory_order_acquire);
}

/* ---- table.c ---- */

/* A link with the reference of its slot and one for the caller; NULL if there is no memory. */
tcp_link *tcp_link_create(hpc_tcp *tcp, int peer, uint64_t lane, hpc_lane *of);
tcp_link *tcp_link_retain(tcp_link *link);
void tcp_link_release(tcp_link *link);
tcp_link *tcp_link_at(hpc_tcp *tcp, int slot); /* with a reference; NULL if the slot is free */

int tcp_watch(hpc_tcp *tcp, const tcp_link *link, int stream, int fd, int again);
void tcp_drop_link(hpc_tcp *tcp, tcp_link *link); /* out of its slot, with the slot's reference; again is no error */
void tcp_carried(hpc_context *context, int to, hpc_carried *sum); /* the vtable's */

/* ---- orders.c, all of it under the link's sending ---- */

enum { TCP_MOST_UNSENT = 256 << 10 }; /* bytes that the kernel may keep unsent, and about what one call is given */

/* One frame to one stream, in its turn. corked: the caller sends the orders, unless many bytes wait already. Here and
 * below: 0, or the errno that broke the stream. */
int tcp_send_frame(tcp_stream *stream, const hpc_frame *frame, const uint64_t *fences, const void *src, int corked,
                   uint32_t turn);
/* Sends what fits. A call that was cut short is the last one until there is room. */
int tcp_send_orders(tcp_stream *stream);
void tcp_drop_orders(tcp_stream *stream);

/* ---- link.c ---- */

int tcp_link_install(tcp_link *link, int stream, int fd); /* takes fd over if HPC_OK */

/* lane: of the link. Corked, the frame may wait for tcp_link_uncork, unless much waits already. */
int tcp_link_put(tcp_link *link, const hpc_frame *frame, const void *src, const hpc_lane *lane);
void tcp_link_uncork(tcp_link *link);
int tcp_link_may_notify(tcp_link *link); /* else the peer is asked for credit */
int tcp_link_flush(tcp_link *link);
void tcp_link_give_credit(tcp_link *link);
void tcp_link_close(tcp_link *link); /* this end: nothing is put any more */

/* Reads and sends what can be; events as of epoll. Nonzero if there is more to read, or another thread is at it. */
int tcp_link_visit(tcp_link *link, int stream, uint32_t events, size_t budget);

#endif
