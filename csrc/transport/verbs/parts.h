/* The parts of the verbs transport. Each file calls only files below it:
 *
 *   verbs.c       the vtable: lanes, windows, puts
 *   reactor.c     when queues are polled; opening and closing the transport
 *   completion.c  arrivals, and completed sends
 *   link.c        one lane's queue pair to one peer: sending
 *   source.c      sources that are in no window
 *   window.c      registered memory: windows
 *   iface.c       a lane's completion queue and shared receive queue at one NIC
 *   device.c      libibverbs, ports
 *
 * A *link* is a reliable-connected queue pair between a lane of this rank and the peer's lane that was created by
 * the same collective call, on the lane's rail. All links of a lane at one NIC share an *iface*: a completion queue
 * and a shared receive queue.
 *
 * Messages. A put is an RDMA write. An event is a write with immediate; the immediate is the caller's. A signal is
 * also a write with immediate: 111, then the window, the signal and the low bits of the value. The thread that polls
 * the receiver's completion queue stores the word. A verbs_message, sent behind the write, replaces an immediate
 * that would not fit: an event's that begins with 111, a signal value far from the last one, or one for a put of
 * several writes.
 *
 * Doorbells. Puts of a corked lane are kept in order and posted together, so that the NIC's doorbell rings once.
 * They are posted at uncork or flush; when VERBS_KEPT, a quarter of the queue or many bytes are kept; or with the
 * link's next message or uncorked put. Credit words are written at once.
 *
 * Credits. Each send that uses a receive at the peer needs a credit from it. The peer writes the number of receives
 * it has granted, and the number of events its lane has taken, into the link's credit words. These writes use no
 * receive and need only the NIC, so they always get through: no queue ever waits for the queue that it feeds.
 *
 * Locks. The mutex `sending` guards the posts of a link, the kept puts, and the orders that wait for room or credit.
 * `reading` is a flag; the thread that sets it polls the completion queue, other threads leave the queue to it. A
 * thread may take `sending` while it holds `reading`, never the other way. The transport's lock guards the tables of
 * ifaces and windows; `sending` may be taken under it, never the other way.
 *
 * Order of the data: the NIC has written the payload before the immediate's completion, because a queue pair places
 * its writes in order. The polling thread then stores the signal or pushes the event (both release), and rings the
 * bell. */
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
    VERBS_DEPTH = 128,     /* most pending sends of a link */
    VERBS_KEPT = 24,       /* most puts that a corked lane keeps for one post */
    VERBS_CREDITS = 512,   /* most receives that are kept posted for a link */
    VERBS_RECEIVES = 8192, /* most for all links of an iface, unless there are very many */
    VERBS_WINDOWS = 4096,
    VERBS_BATCH = 16,     /* completions taken at once */
    VERBS_REPOST = 16,    /* used receives that are posted again together; each link has at least so many */
    VERBS_COUNT_BITS = 44 /* low bits of a send's wr_id: the count of posts up to it; the others: the link's slot */
};

/* ---- a signal's immediate: 111, 6 bits of window, 13 of signal, 10 of value ---- */

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

/* Returns the first value from now on that ends in the immediate's bits: the sender sends them only if the value is
 * less than 1024 above the last one. */
static inline uint64_t verbs_imm_value(uint32_t imm, uint64_t now) {
    return now + (((uint64_t)imm - now) & ((1u << VERBS_VALUE_BITS) - 1));
}

/* ---- messages: contents that do not fit into an immediate ---- */

typedef enum verbs_kind {
    VERBS_NONE = 0,
    VERBS_SIGNAL, /* number: the window, word: the signal, value */
    VERBS_EVENT,  /* word: the immediate, value: bytes */
    VERBS_WANT,   /* value: events that the sender knows were taken; it waits for more */
    VERBS_CREDIT, /* the credit words were written */
    VERBS_DETACH, /* number: a window into which the sender will write nothing more */
    VERBS_CLOSE   /* the sender's lane was freed */
} verbs_kind;

typedef struct verbs_message {
    uint32_t kind, number, word, reserved;
    uint64_t value;
} verbs_message;

/* Credit words, which the peer writes. */
typedef struct verbs_credit {
    _Alignas(64) _Atomic uint64_t granted; /* receives granted since the beginning */
    _Atomic uint64_t taken;                /* events that its lane has polled */
} verbs_credit;

typedef struct verbs_message_room { /* where a receive puts its message */
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
    int holders;                       /* two for each peer that has the window: the peer, and this rank's handle */
    struct verbs_window *next;         /* in the list `going` */
    pthread_mutex_t storing;
    uint32_t *writers;     /* by signal: the link that brought its value, 0: none yet; under storing */
    unsigned char known[]; /* by rank, bits: 1: this rank's handle can write there; 2: that rank may still write here */
} verbs_window;

/* A peer's part. */
typedef struct verbs_remote {
    uint64_t address;
    uint32_t number;
    uint32_t keys[HPC_RAILS]; /* by the peer's NIC */
    struct verbs_sent {
        uint64_t value;
        uint64_t lane;
    } * sent; /* by signal: the last value sent, and its lane */
} verbs_remote;

/* A loan: memory that one put borrows until its write completes. */
typedef struct verbs_loan {
    struct verbs_loan *next;
    struct ibv_mr *region; /* a registration of the source; NULL: it was copied to the stage */
    size_t staged;         /* otherwise: its bytes in the stage */
    uint64_t until;        /* returned when this many sends have completed */
} verbs_loan;

/* A link's ring for copies of small sources; head and tail count bytes since the beginning. */
typedef struct verbs_stage {
    char *memory;
    struct ibv_mr *region;
    int tried;
    size_t head, tail;
    size_t unasked; /* bytes staged since a write last asked for a completion */
} verbs_stage;

/* ---- links ---- */

/* An order: a put or a message that is not fully posted yet. */
typedef struct verbs_order {
    struct verbs_order *next;
    const char *src;
    uint64_t to;
    uint32_t local_key, remote_key;
    size_t nbytes, sent;
    int written;  /* the write is fully posted, or none is needed */
    int with_imm; /* the last write has an immediate */
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
    uint32_t number; /* a number of the link, unique in this context */
    struct ibv_qp *qp;
    int depth;       /* pending sends at most */
    int inline_most; /* most bytes that a send can carry itself */
    int far;         /* index of the peer's NIC, for remote keys */
    hpc_ring *ring;
    verbs_credit *credit; /* in the iface's block: the peer's grants */
    uint64_t credit_to;   /* address of the peer's own credit words */
    uint32_t credit_key;

    pthread_mutex_t sending;
    uint64_t posted;
    int connected;
    int failed;               /* the library refused a post */
    int lost;                 /* a put was accepted but not posted */
    int starved;              /* orders wait for credit */
    int unsignalled;          /* writes since the last that asked for a completion */
    size_t unsignalled_bytes; /* bytes of these writes */
    uint64_t used;            /* receives of the peer used so far */
    uint64_t events;          /* events put so far */
    int wanting;
    verbs_order *first, **last; /* orders that wait for room or credit */
    int n_orders;
    int n_kept, most_kept; /* kept puts of a corked lane; 0 while orders wait */
    size_t kept_bytes;
    int uncork_due; /* puts may be kept; only the lane's thread uses it */
    uint64_t posts; /* calls of ibv_post_send; each rings the NIC's doorbell once */
    unsigned puts;
    verbs_loan *loans, **last_loan;
    verbs_stage stage;
    _Atomic uint64_t told_granted, told_taken;
    int owes, owes_message; /* credit words, or a message, that could not be posted yet */
    _Atomic int busy;       /* verbs_link_go_on has work */
    _Atomic uint64_t done;  /* completed sends; the thread with the iface's reading writes it */

    uint64_t reaped; /* sends that completed or failed; under reading, like received */
    uint64_t received;
    _Atomic uint64_t consumed; /* receives posted again */
    _Atomic int wanted;        /* the peer has sent WANT: it waits for credit */
    _Atomic int closed_here, closed_there;
    _Atomic int silent; /* broken: nothing goes out any more */
    int local;          /* the fault is this rank's; set before silent, like why */
    double broken_at;
    char why[HPC_REASON_BYTES];
    verbs_order kept[VERBS_KEPT]; /* under sending, like n_kept */
} verbs_link;

/* ---- ifaces ---- */

typedef struct verbs_iface {
    struct hpc_verbs *verbs;
    int nic;
    _Atomic int references; /* held by the lane, each link and each visitor */
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    int credits, receives, depth; /* receives of a link; receives of all links; sends of a link */
    void *block;                  /* memory of all links' credit words, then of the receives */
    size_t block_bytes;
    struct ibv_mr *region;
    verbs_credit *credit;      /* by slot */
    verbs_message_room *rooms; /* by receive */
    verbs_link **links;        /* by slot; NULL: free */
    int n_links, n_slots;      /* n_slots: the most slots */
    struct verbs_number {
        uint32_t qp;
        int slot; /* -1: free */
    } * numbers;  /* by queue pair, open addressing */
    uint32_t mask;
    hpc_memory *ring_memory;
    _Atomic int reading;
    _Atomic int armed;                                  /* the next completion makes an event on the channel */
    _Atomic int closing;                                /* some link may be ready to be removed */
    _Atomic int starved;                                /* number of links whose orders wait for credit */
    int rooms_free[VERBS_REPOST + VERBS_BATCH], n_free; /* receives taken, to be posted again */
} verbs_iface;

/* ---- the transport ---- */

typedef struct verbs_peer {
    int n_rails; /* 0: verbs does not serve this peer */
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
    _Atomic(verbs_iface *) hot;                     /* the iface that had an arrival last; compared, never followed */
    _Atomic int hot_in_a_row;                       /* polls in a row that ended at hot */
    _Atomic int departures;                         /* the group's count when last looked at */
    _Atomic(verbs_window *) windows[VERBS_WINDOWS]; /* by number; 0 is unused */
    uint32_t last_number;
    int many_windows;    /* at some time there were more than an immediate can number */
    verbs_window *going; /* have no holder; freed once no completion can name them */
    _Atomic int n_going;
    _Atomic int starved; /* number of links that wait for credit, in all ifaces */
} hpc_verbs;

/* A lane's ifaces. */
typedef struct verbs_lane {
    uint64_t number;
    int links;
    verbs_iface *ifaces[HPC_RAILS]; /* by NIC; NULL if the lane has no link there */
} verbs_lane;

static inline size_t verbs_link_most(const verbs_link *link) { /* bytes of one message */
    size_t most = link->iface->verbs->nics->nics[link->iface->nic].most_message;
    return most == 0 || most > (size_t)1 << 30 ? (size_t)1 << 30 : most;
}

/* ---- iface.c ---- */

verbs_iface *verbs_iface_open(hpc_verbs *verbs, int nic, hpc_memory *ring_memory, const char *op);
void verbs_iface_release(verbs_iface *iface);
/* Despite references; its links must be freed already. */
void verbs_iface_destroy(verbs_iface *iface);
void verbs_iface_arm(verbs_iface *iface);                          /* the next completion is an event */
int verbs_iface_post(verbs_iface *iface, const int *rooms, int n); /* posts receives, at most VERBS_BATCH; 0 or errno */
int verbs_iface_slot(verbs_iface *iface);                          /* a free slot, or -1 */
void verbs_iface_add(verbs_iface *iface, verbs_link *link);        /* into its slot; takes a reference to the iface */
/* The caller must release the link's reference to the iface. */
void verbs_iface_remove(verbs_iface *iface, int slot);

/* Adds a reference and returns 1, or returns 0 if the last reference is already gone. */
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

/* Returns the index of a queue pair in the table of numbers, or the index where to insert it. */
static inline uint32_t verbs_place_of(const verbs_iface *f, uint32_t qp) {
    uint32_t i = qp * 2654435761u >> 7 & f->mask;
    while (f->numbers[i].slot != -1 && f->numbers[i].qp != qp) i = (i + 1) & f->mask;
    return i;
}

/* Returns the wr_id of a receive: its room, and the top bit, which is 0 for sends. */
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
void verbs_window_leave(hpc_verbs *verbs, uint32_t number, int peer); /* the peer will write nothing more into it */
void verbs_window_forget(hpc_verbs *verbs);                           /* drops what departed peers hold */
void verbs_window_free(hpc_verbs *verbs, verbs_window *window);
/* Returns the region, registered with this NIC, that contains src; NULL if src is in no window. */
struct ibv_mr *verbs_region_of(hpc_verbs *verbs, const hpc_window *window, int nic, const void *src, size_t nbytes);

/* ---- link.c ---- */

int verbs_link_open(hpc_verbs *verbs, verbs_iface *iface, hpc_lane *lane, int peer, const hpc_rail *rail,
                    verbs_link **link);
/* The facts that one end of a link tells the other. */
typedef struct verbs_greeting {
    uint64_t credit_to;
    uint32_t qp, sequence, credit_key, credits;
} verbs_greeting;
void verbs_link_greet(const verbs_link *link, verbs_greeting *greeting);
int verbs_link_connect(verbs_link *link, const verbs_greeting *greeting);
void verbs_link_free(verbs_link *link); /* also frees its queue pair, orders and stage */

/* Posts a put now or queues it; on a corked lane may keep it. With is_event, returns HPC_IN_PROGRESS, and does
 * nothing, while the peer's ring is full. op names the caller's call in errors. *look_due: the caller must now poll
 * for completed sends. */
int verbs_link_put(verbs_link *link, const hpc_window *window, verbs_order *order, int is_event, const char *op,
                   int *look_due);
void verbs_link_uncork(verbs_link *link); /* posts the kept puts; called by the lane's thread */
int verbs_link_flush(verbs_link *link, const char *op);
int verbs_link_say(verbs_link *link, const verbs_message *message);
void verbs_link_go_on(verbs_link *link);             /* call it when sends have completed or credit has come */
void verbs_link_tell(verbs_link *link, int message); /* writes the peer its credit */
void verbs_link_break(verbs_link *link, const char *what, const char *hint, int local);
void verbs_link_fail(verbs_link *link, enum ibv_wc_status status); /* breaks it because of a failed completion */
void verbs_link_close(verbs_link *link);                           /* closes this end */
int verbs_link_can_go(verbs_link *link); /* both ends are closed, or it is broken; under reading */

/* ---- source.c ---- */

int verbs_source_is_small(size_t nbytes); /* it may be staged */
/* Registers the order's source for this put. */
int verbs_source_lend(verbs_link *link, verbs_order *order, const char *op);
int verbs_source_stage(verbs_link *link, verbs_order *order);    /* copies the source; 0: the stage has no room */
int verbs_source_asks(verbs_link *link, const verbs_loan *loan); /* whether its write needs a completion */
/* The order is fully posted: its loan ends when it completes. */
void verbs_source_is_posted(verbs_link *link, verbs_order *order);
/* Returns the loan of an order that will not be posted. */
void verbs_source_give_back(verbs_link *link, verbs_loan *loan);
void verbs_source_reclaim(verbs_link *link, uint64_t done); /* returns the loans of completed sends */
void verbs_source_close(verbs_link *link);

/* ---- completion.c ---- */

enum { VERBS_LEFT = 1, VERBS_CAME = 2 };   /* LEFT: more is left, or another thread polls; CAME: something was there */
int verbs_iface_visit(verbs_iface *iface); /* handles arrivals and completions; returns these bits */

/* ---- reactor.c ---- */

hpc_verbs *verbs_of(hpc_context *context); /* makes it at the first call; NULL with the error recorded */
void verbs_close(hpc_verbs *verbs);
int verbs_progress(hpc_context *context);
/* Flushes this rank's puts to peer, or with peer -1 to all connected peers; returns how many links are not done. */
int verbs_settle(hpc_verbs *verbs, int peer);

#endif
#endif
