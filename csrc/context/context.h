/* One rank's place in a group: its control channel, its peers and the transport chosen for each. */
#ifndef HPC_CONTEXT_H
#define HPC_CONTEXT_H

#include <pthread.h>

#include "control.h"
#include "device.h"
#include "reactor.h"
#include "transport.h"

enum { HPC_HOST_BYTES = 64, HPC_TRANSPORTS_BYTES = 64, HPC_CPU_WORDS = 16, HPC_USED = 5 };
enum { HPC_ADDRESS_MAGIC = 0x68706d61 };

/* What a rank says of itself; opaque to whoever carries it. Its first three members never change between versions. */
typedef struct hpc_address {
    uint32_t magic;
    uint32_t version; /* major << 16 | minor << 8 | patch */
    uint32_t nbytes;
    int32_t rank, size;
    int32_t cores, tcp_streams, quota; /* quota: of its cgroups, in cores; 0: none */
    double silence;
    uint64_t cpus[HPC_CPU_WORDS]; /* which ones it may use: a bit each, by number modulo how many bits there are */
    uint64_t host[2]; /* the same for processes that can share abstract sockets: boot and network namespace */
    hpc_control_address control;
    hpc_device_address devices;
    char hostname[HPC_HOST_BYTES];
    char transports[HPC_TRANSPORTS_BYTES];
} hpc_address;

/* Work that every wait of a context does besides looking at its condition: that of an engine without threads. run
 * returns NULL, or why this rank has failed: the context is then aborted. left: what it leaves, as of hpc_left_over. */
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
    void *held;          /* loop's: what it holds back */
    struct hpc_tcp *tcp; /* tcp's */
    struct hpc_verbs *verbs;
    hpc_nics *nics; /* verbs'; NULL if it can use none */
    int tcp_streams;
    size_t tcp_zerocopy;
    hpc_reactor *reactor; /* NULL: no transport has asked for it */
    int all_remote;       /* no peer shares memory with this rank */
    hpc_task *tasks;
    _Atomic int n_tasks; /* 0 spares the look at them */
    _Atomic int working; /* a thread is at the tasks, holds them, or changes their list */
    int connecting, connected;
    struct hpc_context *root;              /* the first of its family (shrink.c): itself, or one that it holds */
    pthread_mutex_t family;                /* the root's: of open and heirs */
    int open;                              /* the root's: contexts of the family that have not left it */
    struct hpc_context *heirs, *next_heir; /* the root's, that are not closed */
    int *first;                            /* an heir's: the root's ranks, by its own; else NULL */
    _Atomic int leaving;                   /* nothing is worked for any more */
};

/* hpc_context_create with another number than the rank in the name of its timeline's file. */
int hpc_context_create_named(int rank, int size, int name, const hpc_config *config, hpc_context **context);
hpc_context *hpc_context_retain(hpc_context *context);
void hpc_context_release(hpc_context *context);

/* Stops the control channel of a context that has been closed, or has failed (why), and of those of its family that end
 * with it (shrink.c). Once. */
void hpc_family_leave(hpc_context *context, const char *why);

/* HPC_OK if calls may be made on it: connected, open, and this process's own. */
int hpc_context_ready(const hpc_context *context, const char *op);

/* The task belongs to the context until it is removed; no thread is at it then. */
void hpc_context_add_task(hpc_context *context, hpc_task *task);
void hpc_context_remove_task(hpc_context *context, hpc_task *task);

/* Between the two no thread is at the tasks, this one's own waits included, which then only look. Not from within a
 * task, and not twice. */
void hpc_context_hold_tasks(hpc_context *context);
void hpc_context_let_tasks(hpc_context *context);

/* Runs the tasks once, and says what they leave, as of hpc_left_over. HPC_LEFT when another thread is at them: what it
 * leaves has to be looked at again before a sleep. */
int hpc_context_work(hpc_context *context);

/* What waits of the context do, as hpc_group's progress: its transports' part and hpc_context_work. */
int hpc_context_progress(void *context);

/* The one of its transports, opened at the first call, while lanes are: by then they have been chosen. NULL with the
 * error recorded. */
hpc_reactor *hpc_context_reactor(hpc_context *context);

/* The lane, or the context's first one for NULL. */
hpc_lane *hpc_context_lane(hpc_context *context, hpc_lane *lane);

/* Collective: every rank gives its status; HPC_OK if all do, else the failure of the lowest rank that has one. */
int hpc_context_agree(hpc_context *context, const char *op, int status, double deadline);

/* Collective: makes every rank's object reachable for every other one, by the transport chosen for each pair. export
 * and attach are called once a peer. When it fails on one rank it fails on all. */
typedef struct hpc_joint {
    void *object;
    int (*export_to)(const hpc_transport *transport, void *object, int peer, hpc_blob *blob);
    int (*attach)(const hpc_transport *transport, void *object, int peer, const hpc_blob *blob, double deadline);
} hpc_joint;
int hpc_context_join(hpc_context *context, const char *op, const hpc_joint *joint, double deadline);

/* Collective: HPC_ERR_MEMORY on every rank unless each host can hold what its ranks together ask for. total is what
 * nbytes come to with all that belongs to them. */
int hpc_context_check_memory(hpc_context *context, const char *op, size_t nbytes, size_t total, double deadline);

/* HPC_ERR_INVALID unless 0 <= rank < size. */
int hpc_context_check_rank(const hpc_context *context, int rank, const char *what, const char *op);

/* Whether they can share memory and abstract sockets, by what they say. */
static inline int hpc_same_host(const hpc_address *a, const hpc_address *b) {
    return a->host[0] == b->host[0] && a->host[1] == b->host[1];
}

static inline int hpc_same_process(const hpc_context *context, int rank) {
    const hpc_control_address *a = &context->self.control, *b = &context->addresses[rank].control;
    return a->pid == b->pid && a->pid_namespace == b->pid_namespace;
}

#endif
