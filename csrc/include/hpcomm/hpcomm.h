/* hpcomm.h - the whole public C API of hpcomm.
 *
 * hpcomm exchanges the updates of data-parallel training jobs by one-sided writes. A *context* is one rank's place in a
 * group; a *window* is a block of memory that every peer may write into; a *lane* orders one thread's writes; a
 * *signal* is a 64-bit word that follows data; a *queue* is NOTIFY-ACK (ASAP, sections 4 and 5) over windows and
 * signals.
 *
 * Conventions
 *   status    every function that can fail returns HPC_OK (0) or a negative hpc_status; hpc_last_error() has the
 * sentence. The library prints nothing and never ends the process. units     sizes and offsets are bytes, times are
 * seconds. timeout   a negative one means the context's default, 0 means "look once". When it passes, HPC_ERR_TIMEOUT;
 * when a peer died meanwhile, HPC_ERR_PEER; both name the ranks still waited for. Nothing waits without a timeout.
 *   threads   a lane, a queue and what is sent on them belong to one thread at a time; different ones may be used by
 *             different threads at once. Waiting on a signal is safe from any thread. Collectives of one context are
 *             made by all of its ranks in the same order.
 *   fork      a forked child can neither use nor tear down its parent's context: it gets HPC_ERR_INVALID, and freeing
 * is a no-op there.
 */
#ifndef HPCOMM_H
#define HPCOMM_H

#include <stddef.h>
#include <stdint.h>

#define HPC_VERSION_MAJOR 0
#define HPC_VERSION_MINOR 1
#define HPC_VERSION_PATCH 0

#if defined(__GNUC__)
#define HPC_API __attribute__((visibility("default")))
#else
#define HPC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Everything between the two cffi lines is also the Python binding's declaration: plain C, no preprocessor. */
/* cffi: begin */

/* ---- status ------------------------------------------------------------------------------------------------- */

typedef enum hpc_status {
    HPC_OK = 0,
    HPC_IN_PROGRESS = 1,      /* not an error: ask again */
    HPC_ERR_INVALID = -1,     /* a bad argument, named with its value */
    HPC_ERR_CONFIG = -2,      /* ranks disagree, or a setting has no meaning */
    HPC_ERR_UNSUPPORTED = -3, /* this transport, host or build cannot do it */
    HPC_ERR_TRANSPORT = -4,   /* the path to a peer failed; see transport and peer */
    HPC_ERR_PEER = -5,        /* ranks died or left; see ranks */
    HPC_ERR_TIMEOUT = -6,     /* the deadline passed; see waiting_for */
    HPC_ERR_AUTH = -7,        /* a stranger, or a peer of another job */
    HPC_ERR_MEMORY = -8       /* too little memory, at creation only */
} hpc_status;

/* The last failure of the calling thread; its pointers stay valid until that thread's next failing call. */
typedef struct hpc_error {
    int status;            /* hpc_status, HPC_OK if nothing has failed yet */
    const char *message;   /* one sentence: what happened, with the values, and what to do */
    const char *op;        /* the operation, e.g. "recv" */
    const char *transport; /* for HPC_ERR_TRANSPORT, else "" */
    int peer;              /* for HPC_ERR_TRANSPORT, else -1 */
    int n_ranks;           /* for HPC_ERR_PEER: the ranks that died or left */
    const int *ranks;
    int n_waiting; /* for HPC_ERR_PEER and HPC_ERR_TIMEOUT: the ranks still waited for */
    const int *waiting_for;
} hpc_error;

HPC_API const hpc_error *hpc_last_error(void);
HPC_API const char *hpc_status_text(int status); /* never NULL */

/* ---- build and host ----------------------------------------------------------------------------------------- */

HPC_API const char *hpc_version(void);         /* "MAJOR.MINOR.PATCH" of the loaded library */
HPC_API const char *hpc_build_info(void);      /* "compiler=...; build=...; isa=..." */
HPC_API const char *hpc_transport_name(int i); /* the transports of this build, best first; NULL past the end */
HPC_API int hpc_core_count(void);              /* the affinity mask cut by the cgroup's quota, at least 1 */
HPC_API uint64_t hpc_memory_available(void);   /* bytes a new window may take: the host's, cut by the cgroup's limit */

/* ---- context ------------------------------------------------------------------------------------------------ */

typedef struct hpc_context hpc_context;

typedef struct hpc_config {
    size_t size;            /* sizeof(hpc_config), set by hpc_config_init */
    double timeout;         /* default of every blocking call; 30 s */
    const char *transports; /* comma list, best first, e.g. "shm"; NULL: every one that reaches the peer, but loop */
    double spin;            /* seconds to spin before yielding; negative: chosen by cores and ranks of the host */
    double yield;           /* seconds to yield before sleeping; negative: chosen likewise */
    uint64_t loop_seed;     /* loop only: 0 delivers at once; else delays, splits and reorders by this seed */
} hpc_config;

HPC_API void hpc_config_init(hpc_config *config); /* fills in the defaults */

/* Out-of-band allgather, in UCC's shape: every rank gives nbytes, every rank gets size * nbytes in rank order.
 * allgather starts it and may not block; test returns HPC_OK, HPC_IN_PROGRESS or a negative status; free is called
 * once for each request that ended (one that outlives the deadline is left alone, and so are its buffers). arg is
 * passed through. Used only inside hpc_init. */
typedef struct hpc_oob {
    int rank;
    int size;
    void *arg;
    int (*allgather)(const void *send, void *recv, size_t nbytes, void *arg, void **request);
    int (*test)(void *request);
    int (*free)(void *request);
} hpc_oob;

/* Brings this rank up and waits for all others (config->timeout). NULL config: the defaults. */
HPC_API int hpc_init(const hpc_oob *oob, const hpc_config *config, hpc_context **context);

/* The same in three steps, for a caller that carries the addresses itself: create; give hpc_context_address to every
 * rank; connect with all of them in rank order. */
HPC_API size_t hpc_address_size(void);
HPC_API int hpc_context_create(int rank, int size, const hpc_config *config, hpc_context **context);
HPC_API int hpc_context_address(const hpc_context *context, void *address);
HPC_API int hpc_context_connect(hpc_context *context, const void *addresses, double timeout);

HPC_API int hpc_context_rank(const hpc_context *context);
HPC_API int hpc_context_size(const hpc_context *context);

typedef struct hpc_peer {
    int state;             /* hpc_peer_state */
    const char *transport; /* "self" for oneself; "" before connect */
    const char *host;
    int64_t pid;
} hpc_peer;

typedef enum hpc_peer_state {
    HPC_PEER_JOINING = 0,
    HPC_PEER_ALIVE = 1,
    HPC_PEER_LEFT = 2,
    HPC_PEER_FAILED = 3
} hpc_peer_state;

HPC_API int hpc_context_peer(const hpc_context *context, int rank, hpc_peer *peer);
HPC_API const char *hpc_context_note(const hpc_context *context,
                                     int i); /* what was degraded at start; NULL past the end */

/* Collectives on the control channel. */
HPC_API int hpc_barrier(hpc_context *context, double timeout);
HPC_API int hpc_allgather(hpc_context *context, const void *send, void *recv, size_t nbytes, double timeout);

/* Leaves the group: peers that still wait for this rank are told. Not collective; idempotent. Waits in other threads
 * of this rank end with HPC_ERR_INVALID. abort does the same but lets the peers know that this rank failed, and why. */
HPC_API int hpc_context_close(hpc_context *context);
HPC_API int hpc_context_abort(hpc_context *context, const char *why);
/* Closes if need be and drops the handle; memory goes when the last window, lane, queue and memory of it are freed. */
HPC_API void hpc_context_free(hpc_context *context);

/* ---- lane --------------------------------------------------------------------------------------------------- */

/* One thread's ordered channel to every peer. NULL stands for the context's own first lane in every call below. */
typedef struct hpc_lane hpc_lane;

HPC_API int hpc_lane_create(hpc_context *context, double timeout, hpc_lane **lane); /* collective */
HPC_API void hpc_lane_free(hpc_lane *lane);

/* ---- window ------------------------------------------------------------------------------------------------- */

typedef struct hpc_window hpc_window;

/* Collective. nbytes (zeroed, page-aligned, allocated in full) and as many signals (zero) on every rank. type is a text
 * that all ranks must agree on, e.g. "float32 (1024,)", or NULL. */
HPC_API int hpc_window_create(hpc_context *context, size_t nbytes, int signals, const char *type, double timeout,
                              hpc_window **window);
HPC_API void hpc_window_free(hpc_window *window);
HPC_API void *hpc_window_data(const hpc_window *window);
HPC_API size_t hpc_window_nbytes(const hpc_window *window);
HPC_API int hpc_window_signals(const hpc_window *window);

/* A direct view of the peer's memory where the transport can map it, else NULL. Valid while the window is. */
HPC_API void *hpc_window_peer_view(const hpc_window *window, int peer);

/* A reference to the memory of rank's part of the window, which keeps it mapped past hpc_window_free; NULL where it
 * cannot be mapped. */
typedef struct hpc_memory hpc_memory;
HPC_API hpc_memory *hpc_window_memory(const hpc_window *window, int rank);
HPC_API void *hpc_memory_data(const hpc_memory *memory);
HPC_API void hpc_memory_release(hpc_memory *memory);

/* Writes nbytes of src at offset in peer's window. May return before src has been read: leave src alone until flush. */
HPC_API int hpc_put(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset);

/* The same, then stores value in peer's signal word. The word is seen only after this put and every earlier one of this
 * lane to this peer. A word has one writer and its values never decrease. nbytes may be 0 (src is not read then). */
HPC_API int hpc_put_signal(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                           int signal, uint64_t value);

/* HPC_OK when one's own signal word is at least at_least, else HPC_IN_PROGRESS. *value (if not NULL) gets the word. */
HPC_API int hpc_test_signal(hpc_window *window, int signal, uint64_t at_least, uint64_t *value);

/* Waits for that. peer is the rank expected to write it, named in errors; -1 when unknown. */
HPC_API int hpc_wait_signal(hpc_window *window, int signal, uint64_t at_least, int peer, double timeout,
                            uint64_t *value);

/* Remote completion: every earlier put of this lane to peer (-1: to all) is in place, and its src may be reused. */
HPC_API int hpc_flush(hpc_lane *lane, hpc_window *window, int peer, double timeout);

/* put, then an event in the peer's poll of the lane of the same number. Waits (timeout) while the peer has
 * hpc_notify_depth() unpolled events from this lane. */
HPC_API int hpc_put_notify(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                           uint32_t imm, double timeout);
HPC_API int hpc_notify_depth(void);

typedef struct hpc_event {
    int peer;
    uint32_t imm;
    size_t nbytes;
} hpc_event;

/* Takes the next event of a lane: events of one peer come in the order of its puts. HPC_IN_PROGRESS when none came. */
HPC_API int hpc_poll(hpc_context *context, hpc_lane *lane, hpc_event *event);
HPC_API int hpc_wait_event(hpc_context *context, hpc_lane *lane, hpc_event *event, double timeout);

/* ---- fold --------------------------------------------------------------------------------------------------- */

typedef enum hpc_dtype { HPC_F32 = 0, HPC_F64 = 1 } hpc_dtype;
typedef enum hpc_isa { HPC_ISA_BEST = 0, HPC_ISA_GENERIC = 1, HPC_ISA_AVX2 = 2, HPC_ISA_AVX512 = 3 } hpc_isa;

/* out[j] = weights[0]*in[0][j] + weights[1]*in[1][j] + ..., summed in that order in the arrays' own type, without FMA,
 * so that every instruction set gives the same bits. out may be one of the inputs, but may not overlap one otherwise.
 */
HPC_API int hpc_fold(void *out, const void *const *in, const double *weights, int n_in, size_t count, int dtype,
                     int isa);
HPC_API int hpc_isa_available(int isa); /* 1 or 0 */

/* ---- queue -------------------------------------------------------------------------------------------------- */

/* NOTIFY-ACK. Each rank has slots for each in-peer. send waits until the peer's slot is free, writes the update into it
 * and notifies; recv waits for the notification and gives the update in place; ack frees the slot. With buffers > 0
 * updates are written into the queue's own registered buffers and, where the peer can map them, are read there: no byte
 * is copied, and the slot is a note of where they are. Every update carries its version in a header and a footer. */
typedef struct hpc_queue hpc_queue;

typedef struct hpc_queue_config {
    size_t size; /* sizeof(hpc_queue_config), set by hpc_queue_config_init */
    const int *in_peers;
    int n_in;
    const int *out_peers;
    int n_out;
    size_t nbytes;    /* of one update, the same on all ranks */
    int depth;        /* updates under way per sender, 1 or more */
    int buffers;      /* registered buffers of this rank, 0 to 64, the same on all ranks */
    const char *type; /* a text all ranks must agree on, e.g. "float32 (1024,)", or NULL */
} hpc_queue_config;

typedef struct hpc_queue_stats {
    uint64_t sent, received;             /* updates */
    uint64_t bytes_sent, bytes_received; /* of updates, read in place or not */
    double wait_send, wait_recv;         /* seconds spent waiting for free slots, for updates */
} hpc_queue_stats;

HPC_API void hpc_queue_config_init(hpc_queue_config *config);
HPC_API int hpc_queue_create(hpc_context *context, const hpc_queue_config *config, double timeout,
                             hpc_queue **queue); /* collective */
HPC_API void hpc_queue_free(hpc_queue *queue);

/* Registered buffer i; acquire first waits until every peer that it was sent to has acknowledged it. Write between
 * acquire and send only. */
HPC_API void *hpc_queue_buffer(const hpc_queue *queue, int i);
HPC_API int hpc_queue_acquire(hpc_queue *queue, int i, double timeout);

/* nbytes must be the queue's own. src is free to reuse on return, unless it is a registered buffer (see acquire). With
 * buffers > 0 src must be one. */
HPC_API int hpc_queue_send(hpc_queue *queue, int peer, const void *src, size_t nbytes, double timeout);

/* The next update of peer, in place and read-only, until its ack. Up to depth may be held; ack frees the oldest. */
HPC_API int hpc_queue_recv(hpc_queue *queue, int peer, const void **update, double timeout);
HPC_API int hpc_queue_ack(hpc_queue *queue, int peer);

/* Like recv for every in-peer, a weighted fold of own and theirs into out, then ack for each:
 * out = weight_own*own + sum of weights[i]*update of in_peers[i], in that order. own may be out. */
HPC_API int hpc_queue_reduce(hpc_queue *queue, void *out, const void *own, double weight_own, const double *weights,
                             int dtype, double timeout);

/* The versions in header and footer of the update that recv gave last: equal when it is whole. */
HPC_API int hpc_queue_versions(const hpc_queue *queue, int peer, uint64_t *header, uint64_t *footer);
HPC_API int hpc_queue_get_stats(const hpc_queue *queue, hpc_queue_stats *stats);

/* A reference that keeps the memory of rank's part of the queue mapped (see hpc_window_memory). */
HPC_API hpc_memory *hpc_queue_memory(const hpc_queue *queue, int rank);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
