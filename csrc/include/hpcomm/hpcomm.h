/* clang-format off */
/* hpcomm.h - the whole public C API of hpcomm, with the headers that it includes.
 *
 * hpcomm exchanges the updates of data-parallel training jobs by one-sided writes.
 *
 *   context   one rank's place in a group
 *   window    a block of memory that every peer may write into
 *   lane      orders one thread's writes
 *   signal    a 64-bit word that is seen after the data before it
 *   queue     NOTIFY-ACK (ASAP, sections 4 and 5) over windows and signals
 *   exchange  push and pull of a model's tensors, by a plan
 *
 * Conventions
 *   status    A function that can fail returns HPC_OK (0) or a negative hpc_status; hpc_last_error() has the sentence.
 *             The library prints nothing and never ends the process.
 *   units     Sizes and offsets are bytes, times are seconds.
 *   timeout   A negative one means the context's default, 0 means "look once". When the deadline passes, the call
 *             returns HPC_ERR_TIMEOUT, or HPC_ERR_PEER if a peer died meanwhile. Both errors name the ranks that it
 *             still waited for. Nothing waits without a timeout.
 *   threads   A lane, a queue and everything that is sent on them belong to one thread at a time; different threads may
 *             use different ones at once. Waiting on a signal is safe from any thread. All ranks of a context call its
 *             collectives in the same order.
 *   fork      A forked child can neither use nor tear down its parent's context: calls return HPC_ERR_INVALID, and
 *             freeing is a no-op there.
 */
/* clang-format on */
#ifndef HPCOMM_H
#define HPCOMM_H

#include <stddef.h>
#include <stdint.h>

#define HPC_VERSION_MAJOR 0
#define HPC_VERSION_MINOR 1
#define HPC_VERSION_PATCH 0
#define HPC_VERSION_PRE "a1" /* of a pre-release, as Python spells it: a1, b2, rc1; "" in a release */

#if defined(__GNUC__)
#define HPC_API __attribute__((visibility("default")))
#else
#define HPC_API
#endif

#include "error.h"
#include "rule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Everything between the two cffi lines, here and in the headers that this one includes, is also the Python binding's
 * declaration: plain C, no preprocessor. */
/* cffi: begin */

/* ---- build and host ----------------------------------------------------------------------------------------- */

HPC_API const char *hpc_version(void);    /* "MAJOR.MINOR.PATCHPRE" of the loaded library */
HPC_API const char *hpc_build_info(void); /* "compiler=...; build=...; isa=...; verbs=yes|no" */
typedef enum hpc_names {
    HPC_TRANSPORTS = 0,         /* of this build, best first */
    HPC_RULES = 1,              /* built in; hpc_rule_find */
    HPC_PROXES = 2,             /* the same; hpc_prox_find */
    HPC_DEFAULT_TRANSPORTS = 3, /* taken where none is named */
    HPC_MAPPED_TRANSPORTS = 4,  /* share memory between ranks of a host */
    HPC_SOCKET_TRANSPORTS = 5   /* reach ranks of other hosts without devices */
} hpc_names;
HPC_API const char *hpc_name(int names, int i); /* name i, from 0, of hpc_names; NULL past the end */
HPC_API int hpc_core_count(void);               /* the affinity mask cut by the cgroup's quota, at least 1 */
HPC_API uint64_t hpc_memory_available(void);    /* bytes a new window may take: the host's, cut by the cgroup's limit */

/* One port of an RDMA device of this host. */
typedef struct hpc_device {
    char name[64];   /* "mlx5_0" */
    char netdev[16]; /* the interface of a RoCE port, else "" */
    char gid[48];    /* the address that hpcomm uses, or "" */
    char link_layer[16];
    char state[16]; /* "active" */
    char why[96];   /* "" if hpcomm can use the port, else a sentence */
    int port;
    int lid;       /* InfiniBand's, else 0 */
    int gid_index; /* of gid; -1 */
    int mtu;       /* bytes; 0 if unknown, like gbits */
    int numa_node; /* -1 if unknown */
    double gbits;
} hpc_device;

/* Writes the ports of all RDMA devices of this host, whatever hpc_config says, into devices, at most cap of them.
 * Returns the number of ports. HPC_ERR_UNSUPPORTED if this build has no verbs, or this host no libibverbs. */
HPC_API int hpc_devices(hpc_device *devices, int cap);

/* ---- context ------------------------------------------------------------------------------------------------ */

typedef struct hpc_context hpc_context;

typedef struct hpc_config {
    size_t size;         /* sizeof(hpc_config), set by hpc_config_init */
    double timeout;      /* default of every blocking call; 30 minutes */
    double init_timeout; /* for init and for connections made later; negative: as timeout, or 30 s if timeout has its
                            default */
    double look_after;   /* a wait looks for the ranks that hold it up after a tenth, a fifth and a third of look_after,
                            and after each further third; 30 s. A stopped rank or a deadlock, seen by two looks, ends
                            the wait (HPC_ERR_TIMEOUT, with HPC_DETAIL_HELD_UP). While ranks compute the wait goes on,
                            and one rank of the job warns, after all of look_after */
    void (*warn)(void *arg, const char *sentence); /* called with each such warning, in the waiting thread; it may not
                                                      call hpcomm. NULL: warnings become notes (HPC_NOTE_HELD_UP) */
    void *warn_arg;
    const char *transports; /* comma list, best first, e.g. "shm"; NULL: all but loop */
    double spin;            /* seconds to spin before yielding; negative: chosen by cores and ranks of the host */
    double yield;           /* seconds to yield before sleeping; negative: chosen likewise. If both are, a thread that
                               others keep from its CPU sleeps at once */
    uint64_t loop_seed;     /* loop only: 0 delivers at once; else delays, splits and reorders by this seed */
    double silence;         /* a rank on another host that is silent for this long counts as failed; 10 s */
    const char *interfaces; /* for TCP, in NCCL_SOCKET_IFNAME's grammar: "eth,ib", "=eth0", "^docker"; NULL: all */
    int tcp_streams;        /* connections that a large put is striped over, 1 to HPC_TCP_STREAMS; 1 */
    const void *secret;     /* bytes known to the job's ranks alone, in addition to the addresses; NULL: none */
    size_t secret_bytes;
    const char *devices;  /* for verbs, in NCCL_IB_HCA's grammar: "mlx5_0,mlx5_1:1", "^mlx5_2", "=mlx5_1"; NULL: all */
    const char *timeline; /* a file for a timeline of this rank, in Chrome's trace event format; the rank's number is
                             put where %r is, or before the suffix ("trace.rank0.json"); NULL: none */
    double slice; /* seconds of a slice, for a caller that waits in slices to handle Unix signals in between: a timeout
                     of at most this does not look for culprits, see hpc_follow_timeout; 0 */
    const char *tcp_congestion; /* TCP's congestion control, as the kernel names it ("dctcp"); NULL: the system's, but
                                   cubic or reno in the place of bbr */
    int threads;                /* this rank's compute threads, up to HPC_MOST_THREADS: they need CPUs too; 0: 1 */
} hpc_config;

enum { HPC_TCP_STREAMS = 8, HPC_MOST_THREADS = 1 << 16 };

HPC_API void hpc_config_init(hpc_config *config); /* fills in the defaults */

/* Out-of-band allgather, in UCC's shape: every rank gives nbytes, every rank gets size * nbytes in rank order.
 * allgather starts it and may not block; test returns HPC_OK, HPC_IN_PROGRESS or a negative status; free is called
 * once for each request that ended (a request that outlives the deadline is left alone, with its buffers). arg is
 * passed through. Used only inside hpc_init. */
typedef struct hpc_oob {
    int rank;
    int size;
    void *arg;
    int (*allgather)(const void *send, void *recv, size_t nbytes, void *arg, void **request);
    int (*test)(void *request);
    int (*free)(void *request);
} hpc_oob;

/* Brings this rank up and waits for all others (hpc_config.init_timeout). NULL config: the defaults. */
HPC_API int hpc_init(const hpc_oob *oob, const hpc_config *config, hpc_context **context);

/* The same in three steps, for a caller that carries the addresses itself: create; give hpc_context_address to every
 * rank; connect with all of them in rank order. */
HPC_API size_t hpc_address_size(void);
HPC_API int hpc_context_create(int rank, int size, const hpc_config *config, hpc_context **context);
HPC_API int hpc_context_address(const hpc_context *context, void *address);
HPC_API int hpc_context_connect(hpc_context *context, const void *addresses, double timeout);

/* An out-of-band allgather for jobs whose launcher has none: rank 0 listens at host:port, and the others connect to it.
 * With a secret (16 bytes or more) both ends of a connection prove that they know it; without one, hosts other than
 * loopback are refused (HPC_ERR_AUTH). create returns when all ranks have come; HPC_ERR_TIMEOUT names, on every rank,
 * the ranks that did not come. allgather takes the same number of bytes from every rank, at most 16 MiB in all; an
 * allgather that fails ends the rendezvous on every rank. A negative timeout means 30 s; a rank whose time is over may
 * take a second more to hear which ranks are missing. Rank 0 serves the others during its calls. A rendezvous belongs
 * to one thread at a time. */
typedef struct hpc_rendezvous hpc_rendezvous;
HPC_API int hpc_rendezvous_create(int rank, int size, const char *host, int port, const void *secret,
                                  size_t secret_bytes, double timeout, hpc_rendezvous **rendezvous);
HPC_API int hpc_rendezvous_allgather(hpc_rendezvous *rendezvous, const void *send, void *recv, size_t nbytes,
                                     double timeout);
HPC_API void hpc_rendezvous_free(hpc_rendezvous *rendezvous);

HPC_API int hpc_context_rank(const hpc_context *context);
HPC_API int hpc_context_size(const hpc_context *context);

typedef struct hpc_peer {
    int state;             /* hpc_peer_state */
    const char *transport; /* "self" for this rank; "" before connect */
    const char *host;
    int64_t pid;
    const char *path; /* the path to it: "10.0.0.2:40001 by eth0" over TCP, else "" */
    int maps;         /* whether this rank maps the memory of its windows, so that a put has read its source when it
                         returns; 0 before connect */
    int lowest;       /* the lowest rank on its host, the same on all ranks: ranks with the same lowest share a host. -1
                         before connect. A container with a private network counts as a host */
    int first_rank;   /* its number in the first context, from which shrinks made this one; without a shrink the same */
} hpc_peer;

typedef enum hpc_peer_state {
    HPC_PEER_JOINING = 0,
    HPC_PEER_ALIVE = 1,
    HPC_PEER_LEFT = 2,
    HPC_PEER_FAILED = 3
} hpc_peer_state;

HPC_API int hpc_context_peer(const hpc_context *context, int rank, hpc_peer *peer);
typedef enum hpc_note_kind {
    HPC_NOTE_DEGRADED = 0, /* something works, but less well than it could */
    HPC_NOTE_REFUSED = 1,  /* a stranger was refused */
    HPC_NOTE_LOST = 2,     /* something of the training was lost */
    HPC_NOTE_HELD_UP = 3   /* a wait was long, because other ranks computed */
} hpc_note_kind;
/* Note i, a sentence about something degraded at start, or unusual since; NULL past the end. *kind (if not NULL) gets
 * its hpc_note_kind. */
HPC_API const char *hpc_context_note(const hpc_context *context, int i, int *kind);

/* Collectives on the control channel. */
HPC_API int hpc_barrier(hpc_context *context, double timeout);
HPC_API int hpc_allgather(hpc_context *context, const void *send, void *recv, size_t nbytes, double timeout);

/* Leaves the group: peers that still wait for this rank are told. Not collective; idempotent. Waits in other threads
 * of this rank end with HPC_ERR_INVALID. abort does the same but lets the peers know that this rank failed, and why. */
HPC_API int hpc_context_close(hpc_context *context);
HPC_API int hpc_context_abort(hpc_context *context, const char *why);
/* Makes ranks that left before the others were done count as failed from now on, on every rank. All waits of this
 * context then end with HPC_ERR_PEER, even waits for ranks that are still there, and exchanges stop as when a rank has
 * died. A rank that finds out that others left calls it before a shrink; a second call is no error. (ULFM's
 * MPI_Comm_revoke. While no rank is gone no wait ends, but exchanges may stop.) */
HPC_API int hpc_context_revoke(hpc_context *context);
/* Makes a new context over the ranks that remain after others died or left, in the same order. Collective over them.
 * They agree on their membership, whatever failed before, and try again when more of them go. If no rank is gone, the
 * new context is a duplicate. config is as for hpc_init; NULL: the defaults. Errors number the ranks as old does.
 * Exchanges with inline progress make no progress during the call.
 *   HPC_ERR_TIMEOUT names the ranks that did not come (a stopped rank is not gone); shrink again when they have woken
 *   up or died.
 *   HPC_ERR_TRANSPORT: the others count this rank as failed and go on without it.
 * old may be closed and freed afterwards, in any order; the first context's connections stay open until the last
 * context made from it is closed. Aborting one of these contexts ends all of them on this rank, and tells their
 * peers. */
HPC_API int hpc_context_shrink(hpc_context *old, const hpc_config *config, double timeout, hpc_context **fresh);

/* ---- available bandwidth ---- */

/* How to probe; hpc_bandwidth_options_init fills in the defaults. Rates are bytes a second, headers of IP and UDP
 * included. */
typedef struct hpc_bandwidth_options {
    size_t size;       /* sizeof(hpc_bandwidth_options), set by hpc_bandwidth_options_init */
    double at_least;   /* asks only whether a path has this rate left, by fleets of that rate; 0: asks for a range */
    double timeout;    /* seconds for the whole call; a range that is still too wide then is returned as it is. 60 */
    double resolution; /* of a range: its width as a share of its middle. 0.2 */
    double share;      /* share of a fleet's rate that its streams may take on average, pauses included. 0.1 */
    double patience; /* seconds to wait for a pause in this rank's own traffic, before a train or a stream; a stream of
                        at_least waits for 0.1 and then goes without one. 1 */
    int streams;     /* of a fleet: 12 */
    int packets;     /* of a stream: 100 */
    int again;       /* 1: results has the answers to an earlier call for these peers, whose capacity and bucket still
                        hold; a bucket without a capacity is a guess, which one train confirms. 0 */
    const int *stop; /* NULL, or a flag: another thread that sets it ends the call with HPC_ERR_INVALID */
} hpc_bandwidth_options;

/* The bandwidth that the path from this rank to one peer has left. */
typedef struct hpc_bandwidth {
    int peer;
    int answered;    /* 0: no packet of a probe has come there, a firewall may drop UDP; nothing else is known then */
    int sufficient;  /* with at_least: 1 yes, 0 no, -1 not found out; else -1 */
    int by_own;      /* this rank's own traffic is the answer: it left no pause, or reached the peer at at_least */
    double low;      /* the path has more left than this; 0: not known to have any */
    double high;     /* and less than this; infinite: no rate was too fast */
    double capacity; /* rate at which a train of packets arrived: that of the path's narrowest link; 0: not found out */
    double own;      /* rate that this rank sent to other hosts, or the peer got, during the streams; low and high
                        include it */
    double bucket;   /* bytes that pass at once, faster than capacity, as through a token bucket */
    double seconds;  /* from the call to the answer */
    uint64_t nbytes; /* sent by the probe */
    int fleets, streams, discarded; /* discarded: streams that were held up here, or met the job's own traffic */
} hpc_bandwidth;

HPC_API void hpc_bandwidth_options_init(hpc_bandwidth_options *options);

/* Measures the bandwidth that the paths to n peers on other hosts have left, by self-loading periodic streams (SLoPS,
 * as pathload has it: Jain and Dovrolis, SIGCOMM 2002). The streams to one peer go in the pauses of the others'.
 * results[i] is for peers[i]. Any thread may call it while exchanges run; the calls of a context take turns. It is not
 * collective: the peers' contexts answer by themselves. NULL options: the defaults. HPC_ERR_INVALID: a peer is this
 * rank itself, on its host, or named twice; HPC_ERR_PEER: one is gone; HPC_ERR_TIMEOUT: one does not answer. */
HPC_API int hpc_context_bandwidth(hpc_context *context, const int *peers, int n, const hpc_bandwidth_options *options,
                                  hpc_bandwidth *results);

/* Closes an open context and drops the handle; its memory is freed with its last window, lane, queue and memory. */
HPC_API void hpc_context_free(hpc_context *context);

/* Adds a span to the timeline of the calling thread: from start (CLOCK_MONOTONIC, in seconds) until now. Spans of a
 * thread lie beside or within each other. name is copied, up to 47 bytes. Nothing without a timeline. */
HPC_API int hpc_context_span(hpc_context *context, const char *name, double start);

/* ---- jobs --------------------------------------------------------------------------------------------------- */

enum { HPC_JOB_BYTES = 33, HPC_SHOWN_WAITS = 4, HPC_SHOWN_RANKS = 16, HPC_SHOWN_CULPRITS = 8 };

/* A wait of one thread of a rank. */
typedef struct hpc_shown_wait {
    char op[HPC_CALLING_BYTES];
    int every;      /* every rank must make the call op */
    double seconds; /* so far */
    int n_ranks;    /* all that are waited for; the first HPC_SHOWN_RANKS are in ranks */
    int ranks[HPC_SHOWN_RANKS];
    uint32_t stopped; /* a bit for each of ranks: its process is stopped, as the kernel of this rank's host says */
} hpc_shown_wait;

/* A context of a process, as another process sees it. */
typedef struct hpc_shown_rank {
    char job[HPC_JOB_BYTES]; /* the same for all ranks of a context; "" while unknown */
    int answers;             /* 1: it answered; 0: not in time (it may be stopped), and only pid is certain; -1: it hung
                                up, because it has another version of hpcomm or is ending */
    int connected;           /* its init is over */
    int rank, size;          /* -1: unknown */
    int64_t pid;             /* on its host; 0: in a process namespace that the caller cannot see */
    char host[64];
    char transports[64]; /* in use, e.g. "shm,tcp"; "" in a world of one */
    uint64_t step;       /* the most pushes of one key, or sends to one peer, that it has made */
    uint64_t moved;      /* a count of its sends and receives; constant in a deadlock */
    int n_waits;         /* longest first */
    hpc_shown_wait waits[HPC_SHOWN_WAITS];
    int told_by;    /* -1: it answered itself; else the rank of this host that answered for it, as it is gone or on
                       another host */
    double age;     /* age of step and waits in seconds; -1: nothing is known of them */
    double unheard; /* if told_by >= 0: seconds since anything came from it */
    char gone[160]; /* if told_by >= 0: why it has left or failed; "" while it is there */
    int state;      /* if told_by >= 0: hpc_peer_state */
    int stopped;    /* its process is stopped, as the kernel of this host says */
    double idle;    /* seconds since the end of its last wait that was long enough to be seen; -1: unknown */
    int n_culprits; /* culprits that it would name if it left now; the first HPC_SHOWN_CULPRITS are in culprits */
    hpc_culprit culprits[HPC_SHOWN_CULPRITS];
} hpc_shown_rank;

/* Lists the contexts of all processes in this network namespace that belong to the caller's user (for root, to any
 * user), and the other ranks of their jobs, about which one process of each job is asked. Writes them into ranks, in
 * order of jobs and ranks, at most cap of them, and returns their number. Processes of this namespace have timeout
 * seconds to answer, all at the same time (negative: 1 s); then the others have as long. A rank that does not answer is
 * listed with answers = 0. Changes nothing. HPC_ERR_UNSUPPORTED if /proc/net/unix cannot be read. */
HPC_API int hpc_jobs(hpc_shown_rank *ranks, int cap, double timeout);

/* Writes the culprits at the ends of the chains of waits of one job's n ranks into culprits, in rising order, at most
 * cap of them, and into text, unless it is NULL, the sentence of an error about them ("rank 3 is stopped"), of at most
 * nbytes with its 0. Returns their number; 0: no rank waits. */
HPC_API int hpc_job_culprits(const hpc_shown_rank *ranks, int n, hpc_culprit *culprits, int cap, char *text,
                             size_t nbytes);

/* ---- lane --------------------------------------------------------------------------------------------------- */

/* One thread's ordered channel to every peer. NULL stands for the context's own first lane in every call below. */
typedef struct hpc_lane hpc_lane;

HPC_API int hpc_lane_create(hpc_context *context, double timeout, hpc_lane **lane); /* collective */
HPC_API void hpc_lane_free(hpc_lane *lane);

/* ---- window ------------------------------------------------------------------------------------------------- */

typedef struct hpc_window hpc_window;

/* Collective. Every rank gets nbytes (zeroed, page-aligned, allocated in full) and the given number of signals (zero).
 * type is a text that all ranks must agree on, e.g. "float32 (1024,)", or NULL. */
HPC_API int hpc_window_create(hpc_context *context, size_t nbytes, int signals, const char *type, double timeout,
                              hpc_window **window);
HPC_API void hpc_window_free(hpc_window *window);
HPC_API void *hpc_window_data(const hpc_window *window);

/* A direct view of the peer's memory where the transport can map it, else NULL. Valid while the window is. */
HPC_API void *hpc_window_peer_view(const hpc_window *window, int peer);

/* A reference to the memory of rank's part of the window, which keeps the memory mapped past hpc_window_free; NULL if
 * it cannot be mapped. */
typedef struct hpc_memory hpc_memory;
HPC_API hpc_memory *hpc_window_memory(const hpc_window *window, int rank);
HPC_API void *hpc_memory_data(const hpc_memory *memory);
HPC_API void hpc_memory_release(hpc_memory *memory);

/* Memory for arrays that outlive the next write. hpc_memory_view maps the pages of nbytes at `at` a second time; `at`
 * lies in the memory of a window, a queue or an exchange. Its data begins with the page of `at`. hpc_memory_part gives
 * a view private pages at the same addresses: from then on it keeps its present bytes. No thread or peer may write
 * these pages during the call. */
HPC_API int hpc_memory_view(const void *at, size_t nbytes, hpc_memory **view);
HPC_API int hpc_memory_part(hpc_memory *view);

/* Writes nbytes of src at offset in peer's window. May return before src has been read: leave src alone until flush. */
HPC_API int hpc_put(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset);

/* The same, then stores value in peer's signal word. The word is seen only after this put and every earlier one of this
 * lane to this peer. A word has one writer and its values never decrease. nbytes may be 0 (src is not read then). */
HPC_API int hpc_put_signal(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                           int signal, uint64_t value);

/* HPC_OK if this rank's own signal word is at_least or more, else HPC_IN_PROGRESS. *value (if not NULL) gets the word.
 */
HPC_API int hpc_test_signal(hpc_window *window, int signal, uint64_t at_least, uint64_t *value);

/* Waits until this rank's own signal word is at_least or more. peer is the rank expected to write it, named in errors;
 * -1 when unknown. */
HPC_API int hpc_wait_signal(hpc_window *window, int signal, uint64_t at_least, int peer, double timeout,
                            uint64_t *value);

/* Remote completion: every earlier put of this lane to peer (-1: to all) is in place, and its src may be reused. */
HPC_API int hpc_flush(hpc_lane *lane, hpc_window *window, int peer, double timeout);

enum { HPC_NOTIFY_DEPTH = 256 };

/* A put, then an event that the peer's poll of the lane of the same number returns. Waits (timeout) while the peer has
 * HPC_NOTIFY_DEPTH unpolled events from this lane. */
HPC_API int hpc_put_notify(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                           uint32_t imm, double timeout);

typedef struct hpc_event {
    int peer;
    uint32_t imm;
    size_t nbytes;
} hpc_event;

/* Takes the next event of a lane: events of one peer come in the order of its puts. HPC_IN_PROGRESS when none came. */
HPC_API int hpc_poll(hpc_context *context, hpc_lane *lane, hpc_event *event);
HPC_API int hpc_wait_event(hpc_context *context, hpc_lane *lane, hpc_event *event, double timeout);

/* ---- fold --------------------------------------------------------------------------------------------------- */

/* f16 (IEEE binary16) and bf16 are wire formats: inputs in them are summed into float32. */
typedef enum hpc_dtype { HPC_F32 = 0, HPC_F64 = 1, HPC_F16 = 2, HPC_BF16 = 3 } hpc_dtype;
typedef enum hpc_isa { HPC_ISA_BEST = 0, HPC_ISA_GENERIC = 1, HPC_ISA_AVX2 = 2, HPC_ISA_AVX512 = 3 } hpc_isa;

/* out[j] = weights[0]*in[0][j] + weights[1]*in[1][j] + ..., summed in that order without FMA, so that every instruction
 * set gives the same bits. f32 and f64 are summed in their own type into an out of that type; f16 and bf16 inputs are
 * summed in float32 into a float32 out. out may be an input of the same type, but may not overlap one otherwise. */
HPC_API int hpc_fold(void *out, const void *const *in, const double *weights, int n_in, size_t count, int dtype,
                     int isa);

/* float32 to f16 or bf16, rounded to nearest even; NaN stays NaN, too large a value becomes Inf. No overlap. */
HPC_API int hpc_encode(void *out, const float *in, size_t count, int dtype, int isa);

/* ---- queue -------------------------------------------------------------------------------------------------- */

/* NOTIFY-ACK. Each rank has slots for each in-peer. send waits until the peer's slot is free, writes the update into it
 * and notifies; recv waits for the notification and gives the update in place; ack frees the slot. With buffers > 0
 * updates are written into the queue's own registered buffers and, where the peer can map them, are read there: no byte
 * is copied, and the slot holds only their address. Every update carries its version in a header and a footer. */
typedef struct hpc_queue hpc_queue;

typedef struct hpc_queue_config {
    size_t size; /* sizeof(hpc_queue_config), set by hpc_queue_config_init */
    const int *in_peers;
    int n_in;
    const int *out_peers;
    int n_out;
    size_t nbytes;    /* of one update, the same on all ranks */
    int depth;        /* updates that a sender may have on their way, 1 or more */
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

/* Registered buffer i. acquire waits until every peer that it was sent to has acknowledged it. Write into it between
 * acquire and send only. */
HPC_API void *hpc_queue_buffer(const hpc_queue *queue, int i);
HPC_API int hpc_queue_acquire(hpc_queue *queue, int i, double timeout);

/* nbytes must be that of the queue. src may be reused on return, unless it is a registered buffer (see acquire). With
 * buffers > 0 src must be one. After HPC_ERR_TIMEOUT call it again with the same src, unchanged: an update that is
 * already on its way is awaited, not sent again. */
HPC_API int hpc_queue_send(hpc_queue *queue, int peer, const void *src, size_t nbytes, double timeout);

/* The next update of peer, in place and read-only, until its ack. Up to depth may be held; ack frees the oldest. */
HPC_API int hpc_queue_recv(hpc_queue *queue, int peer, const void **update, double timeout);
HPC_API int hpc_queue_ack(hpc_queue *queue, int peer);

/* Like recv for every in-peer, a weighted fold of own and theirs into out, then ack for each:
 * out = weight_own*own + sum of weights[i]*update of in_peers[i], in that order. own may be out. */
HPC_API int hpc_queue_reduce(hpc_queue *queue, void *out, const void *own, double weight_own, const double *weights,
                             int dtype, double timeout);

/* The versions in header and footer of the update that recv returned last: equal if the update is whole. */
HPC_API int hpc_queue_versions(const hpc_queue *queue, int peer, uint64_t *header, uint64_t *footer);
HPC_API int hpc_queue_get_stats(const hpc_queue *queue, hpc_queue_stats *stats);

/* A reference that keeps the memory of rank's part of the queue mapped (see hpc_window_memory). */
HPC_API hpc_memory *hpc_queue_memory(const hpc_queue *queue, int rank);

/* ---- plan --------------------------------------------------------------------------------------------------- */

/* A plan says which rank does what with which chunk of an update. A row is one stage of a chunk. A chunk lies in one
 * key, and one core of one rank owns a row for life. Inputs come over its in-edges; once quorum of them are there they
 * are folded; the action says what then goes over its out-edges. A parameter server has one row a chunk, a rack
 * hierarchy two or more. */
typedef struct hpc_key {
    const char *name;
    uint64_t count; /* float32 elements, 1 or more */
    uint64_t unit;  /* elements that a chunk may not cut apart; 0: 1. More than count: the whole key is one chunk */
} hpc_key;

typedef struct hpc_edge {
    int rank;
    int row; /* -1: rank's pushes of the key (in), or rank's parameters (out); else the row, which rank owns. Among
                peers -2 - r, of an input: rank's pushes, passed on by rank r, whose own row takes them too */
    double weight; /* of an input */
} hpc_edge;

typedef enum hpc_action {
    HPC_APPLY = 0,   /* the rule changes the parameters, which go to the out-edges */
    HPC_FORWARD = 1, /* the folded update goes to the rows of the out-edges */
    HPC_EMIT = 2,    /* the folded update itself goes to the out-edges as parameters */
    HPC_RELAY = 3    /* the parameters of one row go on, unopened, to the out-edges */
} hpc_action;

enum { HPC_PLAN_DEPTH = 32 }; /* of a row, at most */

typedef struct hpc_row {
    int key, owner, core;
    int action;              /* hpc_action */
    uint64_t offset, count;  /* elements of the key */
    int depth;               /* inputs that each in-edge may hold at once, 1 to HPC_PLAN_DEPTH */
    int quorum;              /* inputs that make a fold: all, or 1 (each by itself) */
    int codec_in, codec_out; /* hpc_dtype of the inputs, and of the outputs */
    int n_in, n_out;
    const hpc_edge *in, *out; /* rows may share them */
} hpc_row;

typedef struct hpc_plan {
    int n_keys, n_rows;
    const hpc_key *keys;
    const hpc_row *rows;
    int affinity; /* hpc_affinity, in plan.h */
} hpc_plan;

typedef struct hpc_graph hpc_graph; /* plan.h has the planners: hubs, graphs, hierarchies of hosts and trees */

HPC_API void hpc_plan_free(hpc_plan *plan); /* a plan that a function of plan.h made; exchanges keep copies */

/* ---- exchange ----------------------------------------------------------------------------------------------- */

/* The exchange of a job's updates by a plan. A worker writes the gradient of a key into the exchange's memory and
 * pushes it; the plan's owners fold, apply and write the new parameters into every worker's memory; pull waits for
 * them. From push until pull has returned the key's gradient and parameters belong to the exchange. An exchange belongs
 * to one thread of each rank at a time. */
typedef struct hpc_exchange hpc_exchange;

typedef enum hpc_consistency {
    HPC_BSP = 0,        /* a chunk is applied when every worker has pushed it, and goes to all */
    HPC_ASYNC = 1,      /* each update is applied as it comes; parameters go to the worker that pulls them. On a graph:
                           no rank waits for another, and a fold takes the whole updates that are there. Among peers,
                           and where receivers apply, a worker may be depth - 2 steps ahead of the slowest, for which
                           they have slots; the plan's depth is 3 or more */
    HPC_NOTIFY_ACK = 2, /* graphs only (ASAP, section 4): a fold waits for the in-neighbours' updates; a push waits
                           until the out-neighbours have folded the update that used its slot before */
    HPC_SSP = 3,        /* no worker begins a step more than staleness steps ahead of the slowest: each update is
                           applied as it comes, with its weight in the plan (hub.each 0), and pulls wait for slow
                           workers; with staleness 0 it is BSP. On a graph: a fold takes the newest updates, none of
                           them more than staleness steps old. SSP and ASYNC with several stages: each input of a row
                           that applies is an update, and parameters come with the answer to the push */
    HPC_BARRIER = 4     /* graphs only: all ranks meet, with no flush; then a fold takes the whole updates that are
                           there */
} hpc_consistency;

typedef enum hpc_progress {
    HPC_PROGRESS_AUTO = 0,   /* threads where CPUs suffice for them beside all threads that compute */
    HPC_PROGRESS_INLINE = 1, /* every wait of the context also works for this rank's rows */
    HPC_PROGRESS_THREAD = 2  /* a pinned thread for each core of the plan */
} hpc_progress;

enum { HPC_MOST_STALENESS = 64 }; /* of HPC_SSP with servers */

typedef struct hpc_exchange_config {
    size_t size;          /* sizeof(hpc_exchange_config), set by hpc_exchange_config_init */
    const hpc_plan *plan; /* the same on all ranks */
    const hpc_rule *rule; /* the same name, slots, fold_wires and args on all ranks; not used where rules is given */
    const float *const *values;   /* by key: the initial parameters; rank 0's are used, the others' may be NULL */
    int consistency;              /* hpc_consistency */
    int progress;                 /* hpc_progress; each rank its own */
    int threads;                  /* this rank's compute threads while it is a worker; 0: as hpc_config has it */
    int shared_params;            /* 1: the workers of a host read one copy, which lies in the lowest one's part. Only
                                     BSP. Ranks of a host must map each other's memory (peer_view), and ranks of a host
                                     write the copy of several workers: with several hosts that takes a plan of hosts */
    int check_finite;             /* 1: a push with NaN or Inf is refused */
    int isa;                      /* hpc_isa of its kernels */
    const hpc_graph *graph;       /* the graph from which the plan was made; NULL: the plan has servers */
    int staleness;                /* HPC_SSP: steps, 0 to HPC_MOST_STALENESS; on a graph 0 to depth - 2 */
    int quorum;                   /* inputs that are enough for a fold; 0: all are needed. An input after its fold is
                                     left out, and its worker is told. On a graph it counts in-neighbours' inputs, and a
                                     rank with fewer in-neighbours needs all of them. With servers each worker pushes
                                     every key once, and pulls all keys, before it pushes one again. Where rows forward
                                     to others it counts inputs of rows that apply, each of a group of ranks (hosts:
                                     hpc_hosts.apart), which are the same for all keys */
    double grace;                 /* seconds that a fold with its quorum waits for the others; negative: learned */
    double patience;              /* 1 or more: a negative timeout of a call on a key is patience times the time that
                                     pushes usually take (hpc_exchange_stats.usual), but at least 1 s, and at most the
                                     context's (ASAP, section 5: a dynamic timeout); each rank its own. 0: it is the
                                     context's */
    int in_place;                 /* 1: models are trained where they lie: a push sends the key's parameters. Only for
                                     graphs with the rule average, without a quorum. Where all keys are float32 on the
                                     wire one of the plan's slots is the model, so its depth is 2 or more */
    const hpc_rule *const *rules; /* by key: its rule, the same on all ranks; NULL: rule, for all keys */
    const char *refusal;          /* not NULL: this rank cannot take part; all ranks fail with this sentence */
    int split; /* 1: fold and apply are two calls. BSP, with servers also by a quorum; or any consistency and quorum on
                  a graph; one update of a key is pending, whatever the depth of the plan. Or ASYNC or SSP with servers
                  or peers: each worker keeps its own updates */
    const struct hpc_codec_config *const *codecs; /* by key: how its pieces are written (codec.h); NULL where the plan
                                                     has no codec of variable length */
    const struct hpc_exchange_config *next; /* another configuration, with its own keys, plan and settings; NULL: none.
                                               Keys and rows are numbered one configuration after the other, and calls
                                               that name no key are for all */
} hpc_exchange_config;

HPC_API void hpc_exchange_config_init(hpc_exchange_config *config);
/* Collective. With config and exchange NULL it is its first step by itself, for ranks that accept their arguments and
 * do something together before they call it again. That fails on all ranks if one of them calls it with a refusal. */
HPC_API int hpc_exchange_create(hpc_context *context, const hpc_exchange_config *config, double timeout,
                                hpc_exchange **exchange);

/* close waits for pending pushes, then tells every rank that no more pushes come from this one. Three kinds of ranks
 * then serve the others until these have closed too: owners in an ASYNC exchange, owners in an exchange with servers
 * and a quorum or SSP, and owners of keys that they do not push. Pushes that found no quorum any more, and for which no
 * call has waited, become a note (hpc_context_note). Idempotent. free drops the handle without waiting: ranks that
 * still wait for an answer from this one get HPC_ERR_PEER; ranks that wait for it through a relay time out. */
HPC_API int hpc_exchange_close(hpc_exchange *exchange, double timeout);
HPC_API void hpc_exchange_free(hpc_exchange *exchange);

/* *gradient gets the slot for the next gradient of key, in the key's wire format; waits until the slot is free again.
 * With in_place *gradient gets the parameters, in float32; waits until the last push is folded. */
HPC_API int hpc_exchange_gradient(hpc_exchange *exchange, int key, double timeout, void **gradient);
/* The parameters of key; NULL on a rank that is no worker. Their address never changes, except with in_place where all
 * keys are float32 on the wire: each average then lies in another slot, as neighbours may still read the model that was
 * sent. So call this again after a pull. */
HPC_API float *hpc_exchange_params(const hpc_exchange *exchange, int key);

/* Facts of a key that follow from the plan, the consistency and the codec, and never change. All but scheme are 0 or 1;
 * takes_writes and keeps_back may differ by rank. */
typedef struct hpc_key_facts {
    int scheme;          /* the number of its configuration */
    int graph;           /* models are averaged on a graph */
    int peers;           /* each rank applies all updates that come to it, to its own copy of the parameters */
    int own;             /* ranks' parameters differ: on graphs, and among peers where not all send to all */
    int copied;          /* every rank has a copy, and copies of equal steps have equal bits */
    int may_differ;      /* several ranks apply the same updates, and nothing tells which of their copies is newer */
    int counts_folds;    /* rows and workers count steps alike: one push of each worker makes one fold, or a version */
    int counts_updates;  /* rows count updates, and not the steps of a worker: ASYNC and SSP, but on graphs */
    int counts_versions; /* all keys of the configuration have their versions together: with a quorum */
    int jumps;           /* folds go on without some workers, so the steps of a worker may jump */
    int in_step;         /* all workers have made the same number of steps when each stands between two */
    int settles;         /* a pull may end before its push is applied */
    int one_slot;        /* all gradients lie in one place, one after the other */
    int keeps_back;      /* the encoder of this rank's pushes leaves parts of them for later */
    int takes_writes;    /* the next update is added to values that all workers, alike, write into the parameters. 0:
                            owners keep separate masters, as parameters come rounded, or folds go on without some */
} hpc_key_facts;

HPC_API int hpc_exchange_get_key_facts(const hpc_exchange *exchange, int key, hpc_key_facts *facts);

typedef enum hpc_push_flags {
    HPC_PUSH = 1, /* the gradient goes out */
    HPC_PULL = 2  /* the parameters are asked for */
} hpc_push_flags;

/* Starts a push, a pull, or both. src: float32 values to copy (and encode) into the gradient, or other input of the
 * key's codec; NULL: it is in place already. *ticket is for test and wait. Waits only while the owner has too many
 * events of this rank unpolled. BSP refuses a push of a key whose last push is not applied yet; ASYNC refuses one when
 * all slots of the key are in use. ASYNC and SSP with several stages do as BSP: a pull waits for the answer to the last
 * push, and asks for nothing. Under SSP with servers of one stage a pull ends at once while this rank's copy is fresh
 * enough; a pull without a push before it always asks the owners. There, and on a graph, a push may still be read when
 * its pull has ended: start waits for a free slot, and so does hpc_exchange_gradient, which is to be called before each
 * gradient is written. While pulls of a key are pending its parameters belong to the exchange, until the newest pull
 * has ended. After HPC_ERR_TIMEOUT the same call goes on where this one stopped; so does close. */
HPC_API int hpc_exchange_start(hpc_exchange *exchange, int key, int flags, const void *src, double timeout,
                               uint64_t *ticket);
/* Whether a push of key would be taken now: HPC_OK, or HPC_IN_PROGRESS while start would refuse it. */
HPC_API int hpc_exchange_ready(hpc_exchange *exchange, int key);
HPC_API int hpc_exchange_test(hpc_exchange *exchange, int key, uint64_t ticket); /* HPC_OK or HPC_IN_PROGRESS */
HPC_API int hpc_exchange_wait(hpc_exchange *exchange, int key, uint64_t ticket, double timeout);
/* start with both flags, then wait. */
HPC_API int hpc_exchange_push_pull(hpc_exchange *exchange, int key, const void *src, double timeout);

/* With config.split HPC_PUSH is a fold: the owners keep the mean of all workers' updates of the key (the plan's
 * weighted sum), and its ticket ends when all updates are there. Then all workers make the same one of these calls,
 * with tickets for test and wait; else the exchange ends in HPC_ERR_CONFIG. After squares and gather another call
 * follows, or a fold that replaces the mean. The gradient is the exchange's until apply or skip has ended; after a
 * gather it may be written. HPC_PUSH | HPC_PULL is a fold and an apply with scale 1. Cores work for the lowest key
 * first.
 *
 * Among peers each rank keeps the updates that come to it, and its calls are for its own parameters: they wait for no
 * call of another rank, and nothing compares them. Copies stay equal while all ranks make the same calls with the same
 * scale and args. The plan's depth is 2 or more. On a graph of one phase it is the same under BSP and NOTIFY_ACK. On
 * other graphs each rank keeps the mean of its fold, and no neighbour waits for its calls.
 *
 * With a quorum the first apply or skip of a worker whose update is in the mean counts for all, and its args. Other
 * workers whose updates are in it give the same scale. The apply or skip of a late worker changes nothing; it ends when
 * the mean is applied or skipped, and brings the newest parameters. squares and gather are of the mean that is kept.
 * Where no mean is kept any more, squares are the last known ones, else 0, and gather writes nothing. No fold replaces
 * another.
 *
 * Under ASYNC and SSP each update is applied by itself. A fold then keeps this worker's own update, and sends nothing;
 * squares and gather are of that, as it was folded and without its weight in the plan, and have ended when they return.
 * apply scales it, encodes it and is a push with a pull. skip is such a push without a gradient: this worker's clock
 * goes on, no rule runs, and codecs keep their residuals. No call waits for a call of another worker, and nothing
 * compares them.
 */
/* The rule runs on scale * mean, with the args that set_args gave before this call. All workers give the same. A NaN
 * makes all parameters NaN. */
HPC_API int hpc_exchange_apply(hpc_exchange *exchange, int key, double scale, double timeout, uint64_t *ticket);
/* Drops the mean: parameters, state, step, and what codecs keep for later stay as if nothing had been folded. */
HPC_API int hpc_exchange_skip(hpc_exchange *exchange, int key, double timeout, uint64_t *ticket);
/* Sets the factor by which updates of key are scaled, from its present fold on; 1 at first. A trainer that scales its
 * loss calls it before it applies, so that residuals of older updates, which had another factor, count as much as they
 * should. Does not wait. */
HPC_API int hpc_exchange_set_unit(hpc_exchange *exchange, int key, double unit);
/* Writes the mean, in float32 whatever the codec, to the address that hpc_exchange_gathered returns, on every worker.
 * That is the gradient's place if updates are float32 or pieces, else separate memory; it belongs to the worker until
 * its next fold. Among peers and on a graph the first gather of a key allocates it: NULL before. */
HPC_API int hpc_exchange_gather(hpc_exchange *exchange, int key, double timeout, uint64_t *ticket);
HPC_API const float *hpc_exchange_gathered(const hpc_exchange *exchange, int key); /* NULL: this rank folds nothing */
/* Asks for the mean's sum of squares, in float64; get_squares has it when the ticket has ended, the same on all
 * workers. */
HPC_API int hpc_exchange_squares(hpc_exchange *exchange, int key, double timeout, uint64_t *ticket);
HPC_API int hpc_exchange_get_squares(hpc_exchange *exchange, int key, double *sum);
/* A fold by a worker without a gradient: its part is zero, no bytes are sent. Where all say so, apply is a skip. */
HPC_API int hpc_exchange_fold_nothing(hpc_exchange *exchange, int key, double timeout, uint64_t *ticket);

/* Waits until the owners have applied all pushes of this rank: under SSP with servers a pull may end before that, and
 * get_row, set_row and publish are refused meanwhile. Where receivers apply the rule it waits until this rank's
 * receiver has applied them, and so for all workers that have pushed less: where all have made as many pushes, all then
 * have the same parameters. */
HPC_API int hpc_exchange_settle(hpc_exchange *exchange, double timeout);
/* together 1: this rank's starts may be kept back from here on, in their order, to travel with later ones, so that many
 * small keys take few messages. A start that brings the kept bytes for one peer to 64 KiB sends them. together 0 sends
 * all that is kept, and so does each wait, test or progress. Shared memory keeps nothing. */
HPC_API int hpc_exchange_together(hpc_exchange *exchange, int together);
/* Works for this rank's rows without waiting (inline progress). */
HPC_API int hpc_exchange_progress(hpc_exchange *exchange);
/* Serves until every worker has closed. For ranks that are no workers. */
HPC_API int hpc_exchange_serve(hpc_exchange *exchange, double timeout);

/* New args of a key's rule, from args[1] on; key -1: of all keys. They travel with this rank's next push of the key
 * (with split: with its next apply), and hold from then on; the call does not wait. Under BSP all workers of a key set
 * the same args before the same push: else the exchange ends in HPC_ERR_CONFIG, which names two ranks. Under ASYNC and
 * SSP, and on a graph, a rank's args are for its own updates or its own parameters (with several stages, for its
 * group's, whose ranks set the same); with a quorum of servers the lowest rank in a fold decides. On a rank that only
 * serves they hold until the next push brings others. Where rows that send a worker nothing apply its updates (each
 * receiver for itself), the plan's depth must be 2 or more. */
HPC_API int hpc_exchange_set_args(hpc_exchange *exchange, int key, const double *args);

/* Writes the HPC_RULE_ARGS args of the next push of key into args; on a rank that only serves, the args of the last
 * push. args[0] is 0. */
HPC_API int hpc_exchange_get_args(hpc_exchange *exchange, int key, double *args);

/* Reads or writes a row that this rank owns: its step, parameters (count values) and state (slots * count values, slot
 * by slot). Refused while a push or pull of this rank is pending. Other ranks may push meanwhile under ASYNC and SSP;
 * the row is read between two updates. After set, publish (collective) sends the parameters to all workers. It is
 * refused on all ranks while a push or pull is pending on one. On a graph with a quorum all ranks then go on from one
 * version, and earlier pushes are late. After a rank has died or the context was revoked nothing counts as pending:
 * this rank's part of the exchange stops for good at the first of these calls, and its rows stay as they are. */
HPC_API int hpc_exchange_get_row(hpc_exchange *exchange, int row, uint64_t *step, float *params, float *state);
HPC_API int hpc_exchange_set_row(hpc_exchange *exchange, int row, uint64_t step, const float *params,
                                 const float *state);
HPC_API int hpc_exchange_publish(hpc_exchange *exchange, double timeout);
/* ASYNC and SSP with servers: how many pushes of rank this rank's rows have folded, in full or in part; the largest
 * number over all keys. Otherwise 0. Others may push meanwhile. After a death or a revoke it does what get_row does. */
HPC_API int hpc_exchange_get_folded(hpc_exchange *exchange, int rank, uint64_t *pushes);
/* For the ranks that are left when others are lost, after get_row has stopped this rank's part. heard[row], for each of
 * the plan's n rows: the number of folds that this worker's copy of its elements has had since the exchange was made,
 * as its owner has answered (under SSP with servers, of the slowest worker's updates in it; where pulls are answered by
 * themselves, of pulls); UINT64_MAX: this worker gets no parameters of the row. Parameters that came encoded are
 * decoded first. get_sent with row -1: *count is how often this worker has begun to push key, and values the sum of the
 * pieces of its last push (NULL: only the number, at any time), zeros where its codec keeps no residual. With a row of
 * this rank: how often it was folded, and the piece that it forwarded last; key is not used. */
HPC_API int hpc_exchange_get_heard(hpc_exchange *exchange, uint64_t *heard, int n);
HPC_API int hpc_exchange_get_sent(hpc_exchange *exchange, int key, int row, uint64_t *count, float *values);
/* A key whose push or pull by this rank is pending, so that get_row and set_row are refused; -1: none. Works also on a
 * rank that owns no rows. */
HPC_API int hpc_exchange_under_way(hpc_exchange *exchange);

/* A reference that keeps mapped the memory in which `at` lies, an address that hpc_exchange_params,
 * hpc_exchange_gradient or hpc_exchange_gathered has given for key (see hpc_window_memory). NULL: this rank's part. */
HPC_API hpc_memory *hpc_exchange_memory(const hpc_exchange *exchange, int key, const void *at);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#include "codec.h"
#include "plan.h"
#include "way.h"
#include "stats.h"

#endif
