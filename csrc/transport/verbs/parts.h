/* The parts of the verbs transport.
 *
 *   verbs.c       the vtable: lanes, windows, puts
 *   reactor.c     when queues are polled; opening and closing the transport
 *   completion.c  arrivals, and sends that are done
 *   link.c        one lane's queue pair to one peer: sending
 *   source.c      sources that are in no window
 *   window.c      registered memory: windows
 *   iface.c       a lane's completion queue and shared receive queue at one NIC
 *   device.c      libibverbs, ports
 *
 * Each calls only those below it.
 *
 * A *link* joins a lane of this rank with the peer's lane of the same making by one reliable-connected queue pair, on
 * the lane's rail. The links of a lane at one NIC share an *iface*: a completion queue and a shared receive queue.
 *
 * Messages. A put is an RDMA write. An event is an RDMA write with immediate, which is the caller's. A signal is one,
 * too: its immediate begins with 111 and says the window, the signal and the low bits of the value; the thread that
 * polls the receiver's completion queue stores the word. Anything that does not fit into an immediate (an event's
 * immediate that begins so, a value far from the last one, more than one message) goes in a verbs_message, sent behind
 * the write.
 *
 * Doorbells. Puts of a corked lane are kept, in their order, and one post gives them all to the NIC, which rings its
 * doorbell once. That is at uncork or flush, when they are VERBS_KEPT, a quarter of the queue or many bytes, or
 * together with the next message or put of the link that is not corked. Credit words do not wait: they are written at
 * once.
 *
 * Credits. A send that takes a receive at the peer needs one of its credits. The peer writes how many it has granted
 * into the link's credit words, beside how many events its lane has taken. These writes take no receive, and a NIC
 * answers them, so they always get through: no queue ever waits for the queue that it feeds.
 *
 * Locks. `sending`, a mutex, guards everything that is posted on a link, the puts that are kept, and the orders that
 * wait for room or credit. The one thread that holds `reading`, a flag, polls a completion queue; a thread that finds
 * the flag taken leaves the queue to the holder. `reading` may be held when `sending` is taken, never the other way.
 * The tables of ifaces and windows are under the transport's lock; `sending` may be taken under it, never the other
 * way.
 *
 * Order of the data: the NIC has written the payload before the completion of its immediate (the writes of a queue
 * pair are placed in order, and a completion comes after the data); the poller stores the signal (release) or pushes
 * the event (release), then rings the bell. */
#ifndef HPC_VERBS_PARTS_H
#define HPC_VERBS_PARTS_H

#include <pthread.h>
#include <sched.h>

#include "transport/objects.h"
#include "transport/reactor.h"
#include "transport/ring.h"
#include "transport/verbs/device.h"

#if defined(HPC_HAVE_VERBS)

enum {
    VERBS_DEPTH = 128,     /* pending sends of a link, at most */
    VERBS_KEPT = 24,       /* puts that a corked lane keeps for one post, at most */
    VERBS_CREDITS = 512,   /* receives of a link that are kept, at most */
    VERBS_RECEIVES = 8192, /* of all links of an iface together, unless there are very many */
    VERBS_WINDOWS = 4096,
    VERBS_BATCH = 16,     /* completions taken at once */
    VERBS_REPOST = 16,    /* receives that are posted again together; a link has as many at least */
    VERBS_COUNT_BITS = 44 /* of a send's wr_id: how many were posted up to it; above, the link's slot */
};

/* ---- the immediate of a signal: 111, 6 bits of window, 13 of signal, 10 of value ---- */

enum { VERBS_SIGNAL_BITS = 13, VERBS_VALUE_BITS = 10, VERBS_IMM_WINDOWS = 64 };

static inline int verbs_imm_is_signal(uint32_t imm) {
    return imm >> 29 == 7;
}

static inline uint32_t verbs_imm_signal(uint32_t window, int signal, uint64_t value) {
    return 7u << 29 | window << (VERBS_SIGNAL_BITS + VERBS_VALUE_BITS) | (uint32_t)signal << VERBS_VALUE_BITS |
           (uint32_t)(value & ((1u << VERBS_VALUE_BITS) - 1));
}

static inline uint32_t verbs_imm_window(uint32_t imm) {
    return imm >> (VERBS_SIGNAL_BITS + VERBS_VALUE_BITS) & (VERBS_IMM_WINDOWS - 1);
}

static inline uint32_t verbs_imm_signal_of(uint32_t imm) {
    return imm >> VERBS_VALUE_BITS & ((1u << VERBS_SIGNAL_BITS) - 1);
}

/* The first value from now on that ends in these bits: the sender is less than their range ahead of the last one. */
static inline uint64_t verbs_imm_value(uint32_t imm, uint64_t now) {
    return now + (((uint64_t)imm - now) & ((1u << VERBS_VALUE_BITS) - 1));
}

/* ---- messages: contents that fit no immediate ---- */

typedef enum verbs_kind {
    VERBS_NONE = 0,
    VERBS_SIGNAL, /* number: the window, word: the signal, value */
    VERBS_EVENT,  /* word: the immediate, value: bytes */
    VERBS_WANT,   /* value: events that the sender knows to be taken; it waits for more */
    VERBS_CREDIT, /* the credit words were written */
    VERBS_DETACH, /* number: a window into which nothing comes from the sender any more */
    VERBS_CLOSE   /* the sender's lane was freed */
} verbs_kind;

typedef struct verbs_message {
    uint32_t kind, number, word, reserved;
    uint64_t value;
} verbs_message;

/* Written by the peer. */
typedef struct verbs_credit {
    _Alignas(64) _Atomic uint64_t granted; /* receives, ever */
    _Atomic uint64_t taken;                /* events that its lane has polled */
} verbs_credit;

typedef struct verbs_message_room { /* of a receive */
    _Alignas(32) verbs_message message;
} verbs_message_room;

/* ---- registered memory ---- */

/* This rank's part of a window. */
typedef struct verbs_window {
    uint32_t number;
    hpc_memory *memory;
    size_t nbytes, signals_offset;
    int signals;
    struct ibv_mr *regions[HPC_RAILS]; /* by NIC */
    int holders;                       /* for each peer that knows of it: that peer, and this rank's handle */
    struct verbs_window *next;         /* in the list of windows about to go */
    pthread_mutex_t storing;
    uint32_t *writers;     /* by signal: the link that brought its value; 0: none yet. Under storing, as stores are */
    unsigned char known[]; /* by rank: 1: this rank's handle reaches it, 2: it may still write */
} verbs_window;

/* A peer's part. */
typedef struct verbs_remote {
    uint64_t address;
    uint32_t number;
    uint32_t keys[HPC_RAILS]; /* by the peer's NIC */
    struct verbs_sent {
        uint64_t value;
        uint64_t lane;
    } * sent; /* by signal: the last one, and by which lane */
} verbs_remote;

/* The resources that one put holds. */
typedef struct verbs_loan {
    struct verbs_loan *next;
    struct ibv_mr *region; /* of a registered source; NULL: staged */
    size_t staged;         /* bytes of the stage, then */
    uint64_t until;        /* free to go when so many sends are done */
} verbs_loan;

/* A link's ring for small sources; head and tail count bytes, ever. */
typedef struct verbs_stage {
    char *memory;
    struct ibv_mr *region;
    int tried;
    size_t head, tail;
    size_t unasked; /* staged since a completion was asked for */
} verbs_stage;

/* ---- links ---- */

/* A put or a message that is not fully posted yet. */
typedef struct verbs_order {
    struct verbs_order *next;
    const char *src;
    uint64_t to;
    uint32_t local_key, remote_key;
    size_t nbytes, sent;
    int written;  /* the write is posted in full, or not needed */
    int with_imm; /* the last write has one */
    uint32_t imm;
    verbs_message message; /* kind VERBS_NONE: none */
    int finished;          /* the message was posted */
    int corked;            /* it may be kept until uncork */
    verbs_loan *loan;      /* until the last write is posted */
} verbs_order;

typedef struct verbs_link {
    struct verbs_iface *iface;
    int peer, slot;  /* slot: in the iface's links */
    uint64_t lane;   /* number of the lane */
    uint32_t number; /* of the link, in this context */
    struct ibv_qp *qp;
    int depth;       /* pending sends at most */
    int inline_most; /* bytes that a send can carry itself */
    int far;         /* the peer's NIC: index of remote keys */
    hpc_ring *ring;
    verbs_credit *credit; /* in the iface's block; of the peer's receives */
    uint64_t credit_to;   /* where the peer has its own */
    uint32_t credit_key;

    pthread_mutex_t sending;
    uint64_t posted;
    int connected;
    int failed;               /* a post was refused */
    int lost;                 /* something that was put was not posted */
    int starved;              /* orders wait for credit */
    int unsignalled;          /* of the last ones posted */
    size_t unsignalled_bytes; /* in them */
    uint64_t used;            /* receives of the peer */
    uint64_t events;          /* put_notify */
    int wanting;
    verbs_order *first, **last; /* orders that wait for room or credit */
    int n_orders;
    int n_kept, most_kept; /* puts of a corked lane, while none wait */
    size_t kept_bytes;
    int uncork_due; /* something may be kept; of the thread that puts, alone */
    uint64_t posts; /* calls of ibv_post_send, each of which rings the NIC's doorbell once */
    unsigned puts;
    verbs_loan *loans, **last_loan;
    verbs_stage stage;
    _Atomic uint64_t told_granted, told_taken;
    int owes, owes_message; /* the credit words could not be written yet */
    _Atomic int busy;       /* go_on has work */
    _Atomic uint64_t done;  /* completed sends; written by the holder of the iface's reading */

    uint64_t reaped; /* sends that completed or failed; likewise, as is received */
    uint64_t received;
    _Atomic uint64_t consumed; /* receives, posted again */
    _Atomic int wanted;        /* the peer waits for credit */
    _Atomic int closed_here, closed_there;
    _Atomic int silent; /* broken: nothing goes out any more */
    int local;          /* by this rank's own doing; before silent, like why */
    double broken_at;
    char why[HPC_REASON_BYTES];
    verbs_order kept[VERBS_KEPT]; /* under sending, like n_kept */
} verbs_link;

/* ---- ifaces ---- */

typedef struct verbs_iface {
    struct hpc_verbs *verbs;
    int nic;
    _Atomic int references; /* the lane's, each link's, each visitor's */
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    int credits, receives, depth; /* of a link; in all; sends of a link */
    void *block;                  /* credit words of all links, then the receives */
    size_t block_bytes;
    struct ibv_mr *region;
    verbs_credit *credit;      /* by slot */
    verbs_message_room *rooms; /* by receive */
    verbs_link **links;        /* by slot; NULL: free */
    int n_links, n_slots;      /* slots that there can be */
    struct verbs_number {
        uint32_t qp;
        int slot; /* -1: free */
    } * numbers;  /* by queue pair, open addressing */
    uint32_t mask;
    hpc_memory *ring_memory;
    _Atomic int reading;
    _Atomic int armed;                                  /* the next completion is an event of the channel */
    _Atomic int closing;                                /* some link may be able to go */
    _Atomic int starved;                                /* links */
    int rooms_free[VERBS_REPOST + VERBS_BATCH], n_free; /* receives taken, to be posted again */
} verbs_iface;

/* ---- the transport ---- */

typedef struct verbs_peer {
    int n_rails; /* 0: not one of verbs' */
    hpc_rail rails[HPC_RAILS];
    char path[128]; /* "10.0.0.3 by mlx5_0, ..." */
} verbs_peer;

typedef struct hpc_verbs {
    hpc_context *context;
    hpc_nics *nics;
    const verbs_library *library;
    hpc_reactor *reactor;
    int source; /* in the reactor */
    int n_peers, first_peer;
    verbs_peer *peers; /* by rank */
    struct ibv_comp_channel *channels[HPC_RAILS];
    pthread_mutex_t lock;
    verbs_iface **ifaces;
    int n_ifaces, room;
    uint64_t lanes;
    uint32_t links;
    _Atomic(verbs_iface *) hot;                     /* where something came last; only compared */
    _Atomic int hot_in_a_row;                       /* looks that ended there */
    _Atomic int departures;                         /* seen, of the group */
    _Atomic(verbs_window *) windows[VERBS_WINDOWS]; /* by number; 0 is unused */
    uint32_t last_number;
    int many_windows;    /* there have been more than an immediate can say */
    verbs_window *going; /* without a holder; freed when no completion can name them any more */
    _Atomic int n_going;
    _Atomic int starved; /* links, of all ifaces */
} hpc_verbs;

/* A lane's ifaces. */
typedef struct verbs_lane {
    uint64_t number;
    int links;
    verbs_iface *ifaces[HPC_RAILS]; /* by NIC; NULL where it has no link */
} verbs_lane;

static inline size_t verbs_link_most(const verbs_link *link) { /* bytes of one message */
    size_t most = link->iface->verbs->nics->nics[link->iface->nic].most_message;
    return most == 0 || most > (size_t)1 << 30 ? (size_t)1 << 30 : most;
}

/* ---- iface.c ---- */

verbs_iface *verbs_iface_open(hpc_verbs *verbs, int nic, hpc_memory *ring_memory, const char *op);
void verbs_iface_release(verbs_iface *iface);
void verbs_iface_destroy(verbs_iface *iface);                      /* even with references; its links have gone */
void verbs_iface_arm(verbs_iface *iface);                          /* the next completion is an event */
int verbs_iface_post(verbs_iface *iface, const int *rooms, int n); /* receives, VERBS_BATCH at most; 0 or errno */
int verbs_iface_slot(verbs_iface *iface);                          /* a free one; -1 */
void verbs_iface_add(verbs_iface *iface, verbs_link *link);        /* into its slot; takes a reference */
void verbs_iface_remove(verbs_iface *iface, int slot);             /* out of it; its reference is the caller's */

/* Unless it is on its way out already. */
static inline int verbs_iface_retain(verbs_iface *f) {
    int n = atomic_load_explicit(&f->references, memory_order_relaxed);
    while (n > 0)
        if (atomic_compare_exchange_weak_explicit(&f->references, &n, n + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return 1;
    return 0;
}

static inline void verbs_take_reading(verbs_iface *f) {
    while (atomic_exchange_explicit(&f->reading, 1, memory_order_acquire)) sched_yield();
}

static inline void verbs_leave_reading(verbs_iface *f) {
    atomic_store_explicit(&f->reading, 0, memory_order_release);
}

/* The place of a queue pair in the table of numbers, or where it would be. */
static inline uint32_t verbs_place_of(const verbs_iface *f, uint32_t qp) {
    uint32_t i = qp * 2654435761u >> 7 & f->mask;
    while (f->numbers[i].slot != -1 && f->numbers[i].qp != qp) i = (i + 1) & f->mask;
    return i;
}

/* wr_id of a receive: its room, and the top bit, which no send has. */
static inline uint64_t verbs_receive_id(int room) {
    return (uint64_t)1 << 63 | (uint64_t)room;
}

static inline int verbs_is_receive(uint64_t wr_id) {
    return wr_id >> 63 != 0;
}

static inline int verbs_room_of(uint64_t wr_id) {
    return (int)(wr_id & ~((uint64_t)1 << 63));
}

/* ---- window.c ---- */

int verbs_window_export(hpc_verbs *verbs, hpc_window *window, int peer, hpc_blob *blob); /* registers it once */
int verbs_window_attach(hpc_window *window, int peer, const hpc_blob *blob);
void verbs_window_detach(hpc_verbs *verbs, hpc_window *window, int peer);
void verbs_window_leave(hpc_verbs *verbs, uint32_t number, int peer); /* the peer writes into it no more */
void verbs_window_forget(hpc_verbs *verbs);                           /* the peers that have gone */
void verbs_window_free(hpc_verbs *verbs, verbs_window *window);
/* The region of this NIC that src lies in. NULL: none, of any window. */
struct ibv_mr *verbs_region_of(hpc_verbs *verbs, const hpc_window *window, int nic, const void *src, size_t nbytes);

/* ---- link.c ---- */

int verbs_link_open(hpc_verbs *verbs, verbs_iface *iface, hpc_lane *lane, int peer, const hpc_rail *rail,
                    verbs_link **link);
/* Facts about one end of a link, for the other end. */
typedef struct verbs_greeting {
    uint64_t credit_to;
    uint32_t qp, sequence, credit_key, credits;
} verbs_greeting;
void verbs_link_greet(const verbs_link *link, verbs_greeting *greeting);
int verbs_link_connect(verbs_link *link, const verbs_greeting *greeting);
void verbs_link_free(verbs_link *link); /* with its queue pair, orders and stage */

/* Posts it now or later, or keeps it if it is corked; is_event: HPC_IN_PROGRESS, with nothing done, while the peer's
 * ring is full. op is the caller's. *look_due: whether the caller is to look for sends that are done. */
int verbs_link_put(verbs_link *link, const hpc_window *window, verbs_order *order, int is_event, const char *op,
                   int *look_due);
void verbs_link_uncork(verbs_link *link); /* posts the kept puts; by the thread that puts */
int verbs_link_flush(verbs_link *link, const char *op);
int verbs_link_say(verbs_link *link, const verbs_message *message);
void verbs_link_go_on(verbs_link *link);             /* some sends are done, or credit has come */
void verbs_link_tell(verbs_link *link, int message); /* the peer, of its credit */
void verbs_link_break(verbs_link *link, const char *what, const char *hint, int local);
void verbs_link_fail(verbs_link *link, enum ibv_wc_status status); /* the same, of a completion */
void verbs_link_close(verbs_link *link);                           /* this end */
int verbs_link_can_go(verbs_link *link); /* closed at both ends, or broken; by the holder of reading */

/* ---- source.c ---- */

int verbs_source_is_small(size_t nbytes); /* it may be staged */
/* Registers the order's source. */
int verbs_source_lend(verbs_link *link, verbs_order *order, const char *op);
int verbs_source_stage(verbs_link *link, verbs_order *order);      /* copies it; 0: there is no room */
int verbs_source_asks(verbs_link *link, const verbs_loan *loan);   /* whether its write needs a completion */
void verbs_source_is_posted(verbs_link *link, verbs_order *order); /* in full: gives back when it is done */
void verbs_source_give_back(verbs_link *link, verbs_loan *loan);   /* of an order that will not be posted */
void verbs_source_reclaim(verbs_link *link, uint64_t done);        /* of sends that are done */
void verbs_source_close(verbs_link *link);

/* ---- completion.c ---- */

enum { VERBS_LEFT = 1, VERBS_CAME = 2 };   /* more is left, or another thread is at it; something was there */
int verbs_iface_visit(verbs_iface *iface); /* takes arrivals and completions; a mask of these */

/* ---- reactor.c ---- */

hpc_verbs *verbs_of(hpc_context *context); /* opens it at the first call; NULL with the error recorded */
void verbs_close(hpc_verbs *verbs);
int verbs_progress(hpc_context *context);
/* Flushes this rank's puts to peer, or (-1) to all that are here; returns how many links are not done. */
int verbs_settle(hpc_verbs *verbs, int peer);

#endif
#endif
