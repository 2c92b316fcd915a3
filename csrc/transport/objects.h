/* The objects that transports work on: a rank's context, its windows and its lanes. context/ makes and frees them. */
#ifndef HPC_OBJECTS_H
#define HPC_OBJECTS_H

#include <pthread.h>

#include "base/engine.h"
#include "control/control.h"
#include "transport/device.h"
#include "transport/reactor.h"
#include "transport/transport.h"

/* ---- objects: windows and lanes ----
 *
 * A collective call makes an object on all ranks, which number it alike. A rank reaches a peer's part of it at its
 * first use (context/reach.c). */

typedef enum hpc_distance {
    HPC_FAR,    /* this rank has not asked the peer for its handle */
    HPC_ASKED,  /* it has, and no answer has come */
    HPC_HANDED, /* answer is there, and no thread works on it */
    HPC_TAKEN,  /* a thread attaches the handle */
    HPC_NEAR,
    HPC_FREED_THERE /* the peer has freed its part: what is put there is dropped */
} hpc_distance;

typedef struct hpc_approach {
    _Atomic int distance;                  /* hpc_distance */
    hpc_blob *answer;                      /* the peer's handle; NULL: it has not come */
    struct hpc_dead_end *_Atomic dead_end; /* why the peer's part cannot be reached; NULL: no failure is known */
} hpc_approach;

/* The numbers of the two objects that a rank makes by itself (context/mail.h); all others are smaller. */
#define HPC_MAIL_WINDOW ((uint64_t)UINT32_MAX - 1)
#define HPC_MAIL_LANE ((uint64_t)UINT32_MAX)

typedef struct hpc_object {
    const struct hpc_joint *joint; /* how ranks reach each other's parts; NULL: the object has no number yet */
    uint64_t number;
    hpc_approach *ways; /* by rank */
} hpc_object;

/* ---- context ---- */

enum { HPC_HOST_BYTES = 64, HPC_TRANSPORTS_BYTES = 64, HPC_CPU_WORDS = 16, HPC_USED = 5 };
enum { HPC_ADDRESS_MAGIC = 0x68706d61 };

/* The address of a rank, opaque to the code that carries it. The first three members stay the same in all versions. */
typedef struct hpc_address {
    uint32_t magic;
    uint32_t version; /* major << 16 | minor << 8 | patch */
    uint32_t nbytes;
    int32_t rank, size;
    int32_t tcp_streams, quota; /* quota: CPU limit of the rank's cgroups, in cores; 0: none */
    int32_t threads;            /* compute threads, as given to init */
    uint64_t quota_of;          /* the cgroup that has this limit: ranks with the same value share it */
    double silence;
    uint64_t cpus[HPC_CPU_WORDS]; /* the CPUs that the rank may use: bit number % (bits in the array) */
    uint64_t name_at;             /* where control.name lies in the rank's process: peers try to read it there */
    uint64_t host[2]; /* boot id and network namespace, equal for processes that can share abstract sockets */
    hpc_control_address control;
    hpc_device_address devices;
    char hostname[HPC_HOST_BYTES];
    char transports[HPC_TRANSPORTS_BYTES];
} hpc_address;

/* An address of a rank's door (hpc_context_lead). */
typedef struct hpc_lead {
    int rank;
    hpc_endpoint at;
} hpc_lead;

struct hpc_context {
    hpc_group group;
    _Atomic int references; /* held by the handle and by every window, lane and queue */
    hpc_memory *bell_memory;
    hpc_control *control;
    hpc_address self;
    hpc_address *addresses;              /* of all ranks, once connected */
    const hpc_transport **transports;    /* by rank; NULL before connect */
    const hpc_transport *used[HPC_USED]; /* each once; NULL after the last */
    hpc_lane *lane;                      /* the first one */
    int user_lanes;                      /* number of lanes created by the user, the same on every rank */
    pthread_mutex_t reach;               /* guards objects and the lists of lanes' senders; held briefly */
    hpc_object **objects;                /* that are not freed, by number */
    int n_objects;
    uint64_t last_object; /* number of the last one that was made */
    hpc_lane *acks;       /* for ACKs of queues: no data delays them (Parameter Flow, section 5) */
    uint64_t loop_seed;
    void *held;          /* loop's inbox */
    struct hpc_tcp *tcp; /* tcp's */
    struct hpc_verbs *verbs;
    hpc_nics *nics; /* verbs's open ports; NULL if it has no usable one */
    int tcp_streams, tcp_window;
    char tcp_congestion[HPC_CONGESTION_BYTES]; /* "": not chosen */
    hpc_reactor *reactor;                      /* NULL: no transport has asked for it */
    int all_remote;                            /* no peer shares memory with this rank */
    int has_eager;             /* some ranks of the job may use an eager transport; the same on every rank */
    struct hpc_probes *probes; /* of bandwidth: probe/probe.h */
    uint32_t followers; /* number of exchanges so far whose thresholds follow the network, the same on every rank */
    hpc_engine *engine; /* that the user asked for; NULL: none */
    hpc_member *member; /* of an engine, from connect on */
    int connecting, connected;
    int door_first; /* hpc_config's */
    hpc_lead *leads;
    int n_leads;
    /* While connect runs, another thread does not end this context, but asks the connecting thread to do so
     * (context/close.c). family of the root guards these three. */
    int connect_runs, ends_late;
    char late_why[HPC_REASON_BYTES]; /* of an abort; "": of a close */
    struct hpc_context *root; /* the first context of its family (context/close.c): itself, or one that it holds */
    pthread_mutex_t family;   /* root only: guards open and heirs */
    int open;                 /* root only: number of contexts of the family that have not left it */
    struct hpc_context *heirs, *next_heir; /* root only: its heirs that are not closed */
    int *first;                            /* heirs only: the root's rank number of each rank; NULL in a root */
    _Atomic int leaving;                   /* waits no longer run the tasks */
    pthread_mutex_t mailing;               /* guards the making of mail */
    struct hpc_mail *mail;                 /* of collectives of arrays and messages; NULL: there were none */
    int mail_closed;                       /* the context is being freed */
    int (*asked)(struct hpc_context *context, uint64_t number); /* hpc_mail_asked, from connect on */
    struct hpc_calls *calls; /* collectives and messages that go on; NULL: there were none */
    void (*calls_free)(struct hpc_calls *calls);
};

/* Returns whether two ranks see the same abstract sockets, judged by their addresses. */
static inline int hpc_same_host(const hpc_address *a, const hpc_address *b) {
    return a->host[0] == b->host[0] && a->host[1] == b->host[1];
}

/* Returns whether two ranks can also share memory, and be linked by an abstract socket: their users allow it. */
static inline int hpc_can_share(const hpc_address *a, const hpc_address *b) {
    return hpc_same_host(a, b) && hpc_users_share(&a->control.users, &b->control.users);
}

/* Returns whether TCP can connect two ranks: each listens on at least one interface. */
static inline int hpc_both_listen(const hpc_address *a, const hpc_address *b) {
    return a->control.endpoints[0].family != 0 && b->control.endpoints[0].family != 0;
}

/* Returns the transports that the rank allows, in the form that hpc_transport_choose takes. */
static inline const char *hpc_transport_names(const hpc_address *address) {
    return address->transports[0] == 0 ? NULL : address->transports;
}

static inline int hpc_same_process(const hpc_context *context, int rank) {
    const hpc_control_address *a = &context->self.control, *b = &context->addresses[rank].control;
    return a->pid == b->pid && a->pid_namespace == b->pid_namespace;
}

/* Finds the rails of two ranks (hpc_match_rails). Ports of different subnets match only if this rank allows no other
 * transport that connects hosts. */
int hpc_transport_rails(const hpc_address *self, const hpc_address *peer, hpc_rail rails[HPC_RAILS], const char **why);

/* Returns the context's reactor. The first call opens it; it comes when lanes are opened, so all transports are
 * chosen. NULL with the error recorded. */
hpc_reactor *hpc_transport_reactor(hpc_context *context);

/* ---- window ---- */

enum {
    HPC_SIGNAL_STRIDE = 64,
    HPC_MOST_SIGNALS = 1 << 24
}; /* each signal has a cache line, touched only by its writer and its reader */

/* The layout of one rank's part of a window. */
typedef struct hpc_part {
    size_t nbytes;         /* of data */
    size_t signals_offset; /* distance of signal 0 from the start of the data */
    int signals;
    _Atomic int open_signals;   /* signals that this rank reaches: 0 at first, then all */
    _Atomic size_t open_bytes;  /* the same for bytes of data */
    hpc_memory *_Atomic memory; /* mapped here, or NULL */
    void *remote;               /* verbs: where it is */
} hpc_part;

struct hpc_window {
    hpc_object object; /* first */
    hpc_context *context;
    hpc_memory *memory; /* this rank's part */
    hpc_part *parts;    /* by rank, this rank's included */
    void *registered;   /* verbs: this rank's part */
    /* A message of rank to all ranks (hpc_window_say) goes to this offset plus rank times the stride, and raises the
     * signal of the rank's number. */
    size_t said_at, said_stride;
};

/* relaxed: who may use the part has seen its open_bytes, open_signals, or its way. */
static inline hpc_memory *hpc_part_memory(const hpc_part *part) {
    return atomic_load_explicit(&part->memory, memory_order_relaxed);
}

static inline _Atomic uint64_t *hpc_signal_at(const hpc_part *part, int signal) {
    return (_Atomic uint64_t *)(void *)((char *)hpc_memory_data(hpc_part_memory(part)) + part->signals_offset +
                                        (size_t)signal * HPC_SIGNAL_STRIDE);
}

/* Stores a received value unless the word has a greater one: a later value may have come first on another lane.
 * release: a reader that sees the value also sees the data put before it. */
static inline void hpc_raise_signal(_Atomic uint64_t *word, uint64_t value) {
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed);
    while (value > now &&
           !atomic_compare_exchange_weak_explicit(word, &now, value, memory_order_release, memory_order_relaxed)) {
    }
}

static inline _Atomic uint64_t *hpc_own_signal(const hpc_window *window, int signal) {
    return hpc_signal_at(&window->parts[window->context->group.rank], signal);
}

/* ---- lane: one thread's ordered channel to every peer ---- */

typedef struct hpc_lane_peer {
    void *_Atomic in;      /* the transport's: events from this peer; NULL: the peer has not reached this rank */
    void *_Atomic out;     /* the transport's: events to this peer; NULL: not reached */
    hpc_memory *in_memory; /* the memory that contains in, or NULL */
    hpc_memory *memory;    /* the memory that contains out, if mapped */
    int heard;             /* the peer is in the lane's senders */
} hpc_lane_peer;

/* The rail of lanes that all use one rail to a peer, chosen by worker (PHub, section 4.5). */
enum { HPC_RAIL_BY_WORKER = -1 };

struct hpc_lane {
    hpc_object object; /* first */
    hpc_context *context;
    int open;             /* the lane can reach every peer */
    int own;              /* the context's first lane, which holds no reference to the context */
    hpc_memory *memory;   /* the rings into which the peers of an eager transport write events; NULL: none uses one */
    hpc_lane_peer *peers; /* by rank */
    int *senders;         /* the ranks that have a ring here, in the order in which they came */
    _Atomic int n_senders;
    int next;      /* the sender at which poll begins */
    int keeps;     /* some transport keeps puts back while this lane is corked */
    int corked;    /* its thread makes several puts in a row, and will uncork the lane soon */
    uint32_t turn; /* place in the sending order of the puts that it makes now (hpc_lane_take_turn); 0: none */
    int rail;      /* verbs: the rail to a peer, mod the number of rails, or HPC_RAIL_BY_WORKER */
    void *verbs;   /* verbs: its queues */
};

#endif
