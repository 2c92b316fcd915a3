/* The objects that transports work on: a rank's context, its windows and its lanes. context/ makes and frees them. */
#ifndef HPC_OBJECTS_H
#define HPC_OBJECTS_H

#include <pthread.h>

#include "control/control.h"
#include "transport/device.h"
#include "transport/reactor.h"
#include "transport/transport.h"

/* ---- context ---- */

enum { HPC_HOST_BYTES = 64, HPC_TRANSPORTS_BYTES = 64, HPC_CPU_WORDS = 16, HPC_USED = 5 };
enum { HPC_ADDRESS_MAGIC = 0x68706d61 };

/* The address of a rank; opaque to the code that carries it. Its first three members never change between versions. */
typedef struct hpc_address {
    uint32_t magic;
    uint32_t version; /* major << 16 | minor << 8 | patch */
    uint32_t nbytes;
    int32_t rank, size;
    int32_t tcp_streams, quota; /* quota: of its cgroups, in cores; 0: none */
    int32_t threads;            /* compute threads, as given to init */
    uint64_t quota_of;          /* the cgroup with that quota: ranks with the same share it */
    double silence;
    uint64_t cpus[HPC_CPU_WORDS]; /* which ones it may use: a bit each, by number modulo how many bits there are */
    uint64_t host[2]; /* the same for processes that can share abstract sockets: boot and network namespace */
    hpc_control_address control;
    hpc_device_address devices;
    char hostname[HPC_HOST_BYTES];
    char transports[HPC_TRANSPORTS_BYTES];
} hpc_address;

/* Work of a scheme without threads: every wait of the context does it between looks at its condition. run returns
 * NULL, or why this rank has failed, and then the context is aborted. left: hpc_left_over of the last run. */
typedef struct hpc_task {
    const char *(*run)(void *arg);
    void *arg;
    int left;
    struct hpc_task *next;
} hpc_task;

struct hpc_context {
    hpc_group group;
    _Atomic int references; /* the handle, and every window, lane and queue */
    hpc_memory *bell_memory;
    hpc_control *control;
    hpc_address self;
    hpc_address *addresses;              /* of all ranks, once connected */
    const hpc_transport **transports;    /* by rank; NULL before connect */
    const hpc_transport *used[HPC_USED]; /* each once; NULL after the last */
    hpc_lane *lane;                      /* the first one */
    int user_lanes;                      /* created so far, on every rank alike */
    hpc_lane *acks;                      /* of queues: no data delays them (Parameter Flow's paper, section 5) */
    uint64_t loop_seed;
    void *held;          /* loop's inbox */
    struct hpc_tcp *tcp; /* tcp's */
    struct hpc_verbs *verbs;
    hpc_nics *nics; /* verbs'; NULL if it can use none */
    int tcp_streams;
    char tcp_congestion[HPC_CONGESTION_BYTES]; /* "": not chosen */
    hpc_reactor *reactor;                      /* NULL: no transport has asked for it */
    int all_remote;                            /* no peer shares memory with this rank */
    struct hpc_probes *probes;                 /* of bandwidth: probe/probe.h */
    uint32_t followers;                        /* exchanges whose thresholds follow the network, so far; on all ranks */
    hpc_task *tasks;
    _Atomic int n_tasks; /* 0 spares the look at them */
    _Atomic int working; /* a thread is at the tasks, holds them, or changes their list */
    int connecting, connected;
    struct hpc_context *root;              /* the first of its family (close.c): itself, or one that it holds */
    pthread_mutex_t family;                /* the root's: of open and heirs */
    int open;                              /* the root's: contexts of the family that have not left it */
    struct hpc_context *heirs, *next_heir; /* the root's, that are not closed */
    int *first;                            /* an heir's: by rank, the root's number of it; else NULL */
    _Atomic int leaving;                   /* waits no longer run the tasks */
};

/* Whether two ranks can share memory and abstract sockets, by their addresses. */
static inline int hpc_same_host(const hpc_address *a, const hpc_address *b) {
    return a->host[0] == b->host[0] && a->host[1] == b->host[1];
}

/* Whether a TCP connection can join them: each listens on some interface. */
static inline int hpc_both_listen(const hpc_address *a, const hpc_address *b) {
    return a->control.endpoints[0].family != 0 && b->control.endpoints[0].family != 0;
}

/* The transports that its rank allows, as hpc_transport_choose takes them. */
static inline const char *hpc_transport_names(const hpc_address *address) {
    return address->transports[0] == 0 ? NULL : address->transports;
}

static inline int hpc_same_process(const hpc_context *context, int rank) {
    const hpc_control_address *a = &context->self.control, *b = &context->addresses[rank].control;
    return a->pid == b->pid && a->pid_namespace == b->pid_namespace;
}

/* The rails of two ranks, as hpc_match_rails says. Ports of different subnets match only where the ranks allow nothing
 * else that connects hosts. */
int hpc_transport_rails(const hpc_address *self, const hpc_address *peer, hpc_rail rails[HPC_RAILS], const char **why);

/* The context's reactor, opened at the first call, when lanes are opened: transports have been chosen by then. NULL
 * with the error recorded. */
hpc_reactor *hpc_transport_reactor(hpc_context *context);

/* ---- window ---- */

enum {
    HPC_SIGNAL_STRIDE = 64,
    HPC_MOST_SIGNALS = 1 << 24
}; /* a signal fills a cache line, which only its writer and its reader touch */

/* How one rank's part is laid out. */
typedef struct hpc_part {
    size_t nbytes;         /* of data */
    size_t signals_offset; /* of signal 0, from the data's start */
    int signals;
    hpc_memory *memory; /* mapped here, or NULL */
    uint32_t number;    /* tcp: the number that its rank gave it */
    void *remote;       /* verbs: where it is */
} hpc_part;

struct hpc_window {
    hpc_context *context;
    hpc_memory *memory; /* this rank's part */
    hpc_part *parts;    /* by rank, this rank's included */
    uint32_t number;    /* tcp: this rank's number for its part; 0: none yet */
    void *registered;   /* verbs: this rank's part */
};

static inline _Atomic uint64_t *hpc_signal_at(const hpc_part *part, int signal) {
    return (_Atomic uint64_t *)(void *)((char *)hpc_memory_data(part->memory) + part->signals_offset +
                                        (size_t)signal * HPC_SIGNAL_STRIDE);
}

/* Stores a received value unless a greater one is there: a later value may have overtaken it by another lane. release:
 * a reader that sees the value sees the data put before it. */
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
    void *in;           /* the transport's: events from this peer */
    void *out;          /* and to it */
    hpc_memory *memory; /* behind out, if mapped */
} hpc_lane_peer;

/* A pair of ranks uses one rail for all its lanes, chosen by worker (PHub, section 4.5). */
enum { HPC_RAIL_BY_WORKER = -1 };

struct hpc_lane {
    hpc_context *context;
    int open;             /* every peer can be reached by it */
    int own;              /* the context's first lane: holds no reference to it */
    hpc_memory *memory;   /* the rings that peers write events into */
    hpc_lane_peer *peers; /* by rank */
    int next;             /* where poll looks first */
    int keeps;            /* some transport keeps puts back while it is corked */
    int corked;           /* its thread makes several puts in a row, and uncorks soon */
    uint32_t turn;        /* of the puts that it makes now, see hpc_lane_take_turn; 0: none */
    int rail;             /* verbs: by which rail to a peer (mod their number), or HPC_RAIL_BY_WORKER */
    uint64_t number;      /* tcp: this rank's number for it; 0: none yet */
    void *verbs;          /* verbs: its queues */
};

#endif
