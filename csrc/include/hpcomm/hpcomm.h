/* clang-format off */
/* hpcomm.h - the whole public C API of hpcomm, with the headers that it includes.
 *
 * hpcomm exchanges the updates of data-parallel training jobs by one-sided writes.
 *
 *   context   one rank's membership in a job
 *   window    memory of each rank that all peers may write
 *   lane      one thread's ordered channel to all peers
 *   signal    a 64-bit word in a window; a peer sees it only after the data that was put before it
 *   queue     NOTIFY-ACK (ASAP, sections 4 and 5), for trainers that fold updates themselves
 *   exchange  push and pull of a model's tensors; a plan names the ranks that fold and apply each part
 *
 * Conventions
 *   status    A function that can fail returns HPC_OK (0) or a negative hpc_status; hpc_last_error() has a sentence
 *             about it. The library prints nothing and never ends the process.
 *   units     Sizes and offsets are bytes, times are seconds. A value at the end of a setting's comment is its default.
 *   timeout   A negative one means the context's default, 0 means "look once". When the deadline passes, the call
 *             returns HPC_ERR_TIMEOUT, or HPC_ERR_PEER if a peer died meanwhile. Both errors name the ranks that the
 *             call still waited for. Every wait has a timeout.
 *   threads   A lane or a queue may be used by only one thread at a time; different threads may use different ones at
 *             once. Waiting on a signal is safe from any thread. All ranks of a context call its collectives in the
 *             same order.
 *   fork      A forked child can neither use nor tear down its parent's context: calls return HPC_ERR_INVALID, and
 *             freeing is a no-op there. */
/* clang-format on */
#ifndef HPCOMM_H
#define HPCOMM_H

#include <stddef.h>
#include <stdint.h>

#define HPC_VERSION_MAJOR 0
#define HPC_VERSION_MINOR 1
#define HPC_VERSION_PATCH 0
#define HPC_VERSION_PRE "a1" /* the suffix of a pre-release, as Python spells it: a1, b2, rc1; "" in a release */

#if defined(__GNUC__)
#define HPC_API __attribute__((visibility("default")))
#else
#define HPC_API
#endif

#include "engine.h"
#include "error.h"
#include "rule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Everything between the two cffi lines, here and in the headers that this one includes, is also parsed by the Python
 * binding, so it must be plain C without preprocessor lines. */
/* cffi: begin */
/* ---- build and host ----------------------------------------------------------------------------------------- */

HPC_API const char *hpc_version(void);    /* "MAJOR.MINOR.PATCHPRE" of the loaded library */
HPC_API const char *hpc_build_info(void); /* "compiler=...; build=...; isa=...; verbs=yes|no" */
typedef enum hpc_names {
    HPC_TRANSPORTS = 0,         /* the transports of this build, best first */
    HPC_RULES = 1,              /* the built-in rules, which hpc_rule_find finds */
    HPC_PROXES = 2,             /* the built-in proxes, which hpc_prox_find finds */
    HPC_DEFAULT_TRANSPORTS = 3, /* the transports that are used when hpc_config names none */
    HPC_MAPPED_TRANSPORTS = 4,  /* the transports that map memory between ranks of a host */
    HPC_SOCKET_TRANSPORTS = 5   /* the transports that reach other hosts without an RDMA device */
} hpc_names;
HPC_API const char *hpc_name(int names, int i); /* returns name i (from 0) of an hpc_names list; NULL past its end */
HPC_API int hpc_core_count(void); /* CPUs that this process may use (affinity mask, cgroup quota); 1 or more */
HPC_API uint64_t hpc_memory_available(void); /* bytes of the host and cgroup that are free for windows */

/* One port of an RDMA device of this host. */
typedef struct hpc_device {
    char name[64];   /* "mlx5_0" */
    char netdev[16]; /* the network interface of a RoCE port, else "" */
    char gid[48];    /* the port address (GID) that hpcomm uses, or "" */
    char link_layer[16];
    char state[16]; /* "active" */
    char why[96];   /* "" if hpcomm can use the port, else a sentence that says why it cannot */
    int port, lid;  /* lid: the port's local identifier on InfiniBand, else 0 */
    int gid_index;  /* the index of gid; -1 if gid is "" */
    int mtu;        /* bytes; 0 if unknown */
    int numa_node;  /* -1 if unknown */
    double gbits;
} hpc_device;

/* Lists the ports of all RDMA devices of this host, whatever hpc_config says, and writes the first cap of them. Returns
 * how many ports the host has, which may exceed cap; HPC_ERR_UNSUPPORTED if the build or the host has no verbs. */
HPC_API int hpc_devices(hpc_device *devices, int cap);

/* ---- context ------------------------------------------------------------------------------------------------ */

typedef struct hpc_context hpc_context;

typedef struct hpc_config {
    size_t size;         /* sizeof(hpc_config), set by hpc_config_init */
    double timeout;      /* seconds; the default timeout of every blocking call; 30 minutes */
    double init_timeout; /* seconds; for hpc_init and for connections made later; negative: the value of timeout, or 30
                            s if timeout has its default */
    double look_after; /* seconds; 30. A wait looks for the ranks that hold it up after 1/10, 1/5 and 1/3 of look_after,
                          then every 1/3 of it. If two looks find a stopped rank or a deadlock, the wait ends with
                          HPC_ERR_TIMEOUT and HPC_DETAIL_HELD_UP. If the ranks compute, it goes on, and after look_after
                          one rank of the job warns */
    void (*warn)(void *arg, const char *sentence); /* called with each such warning, by the waiting thread; it must not
                                                      call hpcomm. NULL: warnings become notes (HPC_NOTE_HELD_UP) */
    void *warn_arg;
    const char *transports; /* comma list, best first, e.g. "shm"; NULL: all but loop */
    double spin;  /* seconds that a wait spins before it yields; negative: chosen from the host's cores and ranks */
    double yield; /* seconds that a wait yields before it sleeps; negative: chosen likewise. If both are negative, a
                     thread that other threads keep from its CPU sleeps at once */
    uint64_t loop_seed;     /* transport loop only: 0 delivers at once; another value seeds random delays, splits and
                               reorderings */
    double silence;         /* a rank on another host that is silent for this long counts as failed; 10 s */
    const char *interfaces; /* for TCP, in NCCL_SOCKET_IFNAME's grammar: "eth,ib", "=eth0", "^docker"; NULL: all */
    int tcp_streams;        /* connections over which a large put is striped, 1 to HPC_TCP_STREAMS; 1 */
    const void *secret;     /* bytes that only the job's ranks know, used in addition to their addresses; NULL: none */
    size_t secret_bytes;
    const char *devices;  /* for verbs, in NCCL_IB_HCA's grammar: "mlx5_0,mlx5_1:1", "^mlx5_2", "=mlx5_1"; NULL: all */
    const char *timeline; /* path of this rank's timeline file, in Chrome's trace event format; the rank's number
                             replaces %r, or goes before the suffix ("trace.rank0.json"); NULL: no timeline */
    double slice; /* seconds; a call whose timeout is at most slice does not look for culprits (see hpc_follow_timeout).
                     For callers that wait in slices, to handle Unix signals in between; 0 */
    const char *tcp_congestion; /* TCP's congestion control, by its name in the kernel ("dctcp"); NULL: the system's,
                                   but cubic or reno if that is bbr */
    int tcp_window;     /* bytes that a data connection may hold unread, so that a peer has no more of them on the way;
                           0: the kernel chooses. Connections that share a link get it in proportion to their windows */
    int threads;        /* compute threads of this rank, which need CPUs too, up to HPC_MOST_THREADS; 0 means 1 */
    hpc_engine *engine; /* NULL: the process's (engine.h), or that of the context which hpc_context_shrink shrinks */
    const uint32_t *users; /* other users whose ranks may share memory with this rank, if they name this rank's user
                              too; n_users of them, at most HPC_MOST_USERS; 0: none */
    int n_users;
    const char *door; /* NULL: this rank listens for TCP itself. Otherwise the IP address of a port at which the caller
                         listens, for several contexts (hpc_context_take); "0.0.0.0" or "::" means the addresses of
                         interfaces. Ranks without a door then call this one there, and it calls none of them */
    int door_port;
    int door_first; /* with a door: the ranks below this one may have none, and are never called */
} hpc_config;

enum { HPC_TCP_STREAMS = 8, HPC_MOST_THREADS = 1 << 16, HPC_MOST_USERS = 32 };

HPC_API void hpc_config_init(hpc_config *config); /* fills in the defaults */

/* An out-of-band allgather, in UCC's shape, that the caller provides: every rank gives nbytes and gets size * nbytes,
 * in rank order. allgather starts it and must not block; test returns HPC_OK, HPC_IN_PROGRESS or a negative status;
 * free is called once for each request that ended. A request that outlives the deadline is not freed, and neither are
 * its buffers. arg is passed to allgather. hpc_init alone uses these functions. */
typedef struct hpc_oob {
    int rank;
    int size;
    void *arg;
    int (*allgather)(const void *send, void *recv, size_t nbytes, void *arg, void **request);
    int (*test)(void *request);
    int (*free)(void *request);
} hpc_oob;

/* Creates this rank's context and waits until all others have done so (hpc_config.init_timeout). config NULL: the
 * defaults. */
HPC_API int hpc_init(const hpc_oob *oob, const hpc_config *config, hpc_context **context);

/* hpc_init in three steps, for a caller that distributes the addresses itself: create a context, give the result of
 * hpc_context_address (hpc_address_size bytes) to every rank, then connect with all addresses in rank order. */
HPC_API size_t hpc_address_size(void);
HPC_API int hpc_context_create(int rank, int size, const hpc_config *config, hpc_context **context);
HPC_API int hpc_context_address(const hpc_context *context, void *address);
HPC_API int hpc_context_connect(hpc_context *context, const void *addresses, double timeout);

/* For a context with a door (hpc_config). The caller reads HPC_DOOR_CALL bytes from each connection: "hpcdoor1", and
 * the name of a context. It answers with one byte, 1, and gives the connection to the context of that name, or answers
 * with 0 and hangs up. Before, it sends a greeting of HPC_DOOR_GREETING bytes, which begins with "hpchub". take takes
 * fd over if it returns HPC_OK. HPC_ERR_PEER: the context has ended, or has too many callers. take does not wait. Any
 * thread may call both functions, until the context is freed. */
enum { HPC_DOOR_GREETING = 24, HPC_DOOR_NAME = 16, HPC_DOOR_CALL = 8 + HPC_DOOR_NAME };
typedef struct hpc_door {
    unsigned char name[HPC_DOOR_NAME];
    int refused; /* TCP callers so far that did not prove that they are ranks of the job */
} hpc_door;
HPC_API int hpc_context_door(const hpc_context *context, hpc_door *door);
HPC_API int hpc_context_take(hpc_context *context, int fd);

/* Adds an address of the door of rank, as this host knows it. The rank is then called at these addresses alone; without
 * them, at those which it announces. Before connect. */
HPC_API int hpc_context_lead(hpc_context *context, int rank, const char *ip, int port);

/* An out-of-band allgather for jobs whose launcher has none: rank 0 listens at host:port, and the others connect to it.
 * With a secret (16 bytes or more) both ends of a connection prove that they know it; without a secret, host must be a
 * loopback address (else HPC_ERR_AUTH). create returns when all ranks have come; its HPC_ERR_TIMEOUT names, on every
 * rank, the ranks that did not come. allgather takes the same number of bytes from every rank, at most 16 MiB in all; a
 * failed allgather ends the rendezvous on every rank. A negative timeout means 30 s; to learn which ranks are missing a
 * rank may wait one second more. Rank 0 serves the others only during its calls. One thread at a time may use it. */
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
    const char *transport; /* the transport to this peer; "self" for this rank, "" before connect */
    const char *host;
    int64_t pid;
    const char *path; /* the network path to the peer: "10.0.0.2:40001 by eth0" over TCP, else "" */
    int maps;         /* 1 if this rank maps the memory of the peer's windows, so that a put has read its source when it
                         returns; else 0, also before connect */
    int lowest; /* the lowest rank on the peer's host, the same on all ranks: ranks with equal values share a host. -1
                   before connect. A container with a private network counts as a host */
    int first_rank; /* the peer's rank in the first context, from which shrinks made this one; without a shrink it is
                       the present rank */
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
    HPC_NOTE_LOST = 2,     /* a part of the training was lost, such as updates */
    HPC_NOTE_HELD_UP = 3   /* a wait was long, because other ranks computed */
} hpc_note_kind;
/* Returns note i, a sentence about something that works less well than it could, or an unusual event; NULL past the
 * last note. *kind gets its hpc_note_kind, unless kind is NULL. */
HPC_API const char *hpc_context_note(const hpc_context *context, int i, int *kind);

/* Collectives on the control channel. */
HPC_API int hpc_barrier(hpc_context *context, double timeout);
HPC_API int hpc_allgather(hpc_context *context, const void *send, void *recv, size_t nbytes, double timeout);

/* Leaves the job; peers that still wait for this rank get HPC_ERR_PEER. Not collective; a second call does nothing.
 * Waits in other threads of this rank end with HPC_ERR_INVALID; a hpc_context_connect in another thread ends so, and
 * then leaves the job itself. hpc_context_abort does the same, and also tells the peers why this rank failed. */
HPC_API int hpc_context_close(hpc_context *context);
HPC_API int hpc_context_abort(hpc_context *context, const char *why);
/* Makes every rank that left before the others were done count as failed, on all ranks. All waits of this context then
 * end with HPC_ERR_PEER, also waits for ranks that have not left, and exchanges stop as after a rank's death. A rank
 * that learns that others left calls it before a shrink; a second call is no error. While no rank is gone, no wait
 * ends, but exchanges may stop. (It is ULFM's MPI_Comm_revoke.) */
HPC_API int hpc_context_revoke(hpc_context *context);
/* Makes a new context of the ranks that remain after others died or left, in the same order. Collective over the
 * remaining ranks: they agree on the members whatever failed before, and start again if more ranks go meanwhile. If no
 * rank is gone, the new context is a duplicate. config NULL: the defaults, as for hpc_init. Errors give the rank
 * numbers of old. During the call, exchanges without progress threads make no progress.
 *   HPC_ERR_TIMEOUT    names the ranks that did not come (a stopped rank is not gone). Shrink again when they have
 *                      woken up or died.
 *   HPC_ERR_TRANSPORT  the others count this rank as failed and go on without it.
 * old may be closed and freed afterwards, in any order; the connections of the first context stay open until all
 * contexts made by shrinks are closed. Aborting one of them ends all of them on this rank, and tells peers. */
HPC_API int hpc_context_shrink(hpc_context *old, const hpc_config *config, double timeout, hpc_context **fresh);

/* ---- available bandwidth ---- */

/* How to probe. Rates are bytes a second, with the headers of IP and UDP. Probes are streams of packets; a fleet is a
 * group of streams of one rate, and a train is a burst of packets. */
typedef struct hpc_bandwidth_options {
    size_t size;     /* sizeof(hpc_bandwidth_options), set by hpc_bandwidth_options_init */
    double at_least; /* above 0: the call only finds out whether a path has this rate left; 0: it finds the range of the
                        rate that is left */
    double timeout;  /* seconds for the whole call; 60. At the deadline a range that is still wider than resolution is
                        returned as it is */
    double resolution; /* width of the range at which the search ends, as a fraction of its middle; 0.2 */
    double share;      /* fraction of a fleet's rate that its streams may take on average, pauses included; 0.1 */
    double patience;   /* seconds to wait for a pause in this rank's own traffic, before a train or a stream; 1. If
                          at_least is above 0, a stream waits only 0.1 s, and is then sent without a pause */
    int streams;       /* streams of a fleet; 12 */
    int packets;       /* packets of a stream; 100 */
    int again; /* 1: results contains an earlier call's answers for these peers, whose capacity and bucket are used
                  again. A bucket with capacity 0 is a guess, which one train checks. 0: results is only written */
    const int *stop; /* NULL, or a flag: when another thread makes it nonzero, the call ends with HPC_ERR_INVALID */
} hpc_bandwidth_options;

/* The bandwidth that is left on the path from this rank to one peer. */
typedef struct hpc_bandwidth {
    int peer;
    int answered;   /* 0: no packet of a probe reached the peer (a firewall may drop UDP), so no other field is known */
    int sufficient; /* if at_least is above 0: 1 the path has that rate left, 0 it has not, -1 unknown; otherwise -1 */
    int by_own; /* 1: the result comes from this rank's own traffic, because it left no pause, or because it reached the
                   peer at the rate at_least */
    double low; /* lower bound of the rate that is left; 0: unknown */
    double high;     /* upper bound of the rate that is left; infinite: no rate was too fast */
    double capacity; /* the rate at which a train of packets arrived, which is the capacity of the path's narrowest
                        link; 0: unknown */
    double own; /* the rate of this rank's own traffic during the streams, sent to other hosts or received by the peer.
                   The fields low and high include it */
    double bucket;   /* bytes of one burst that can pass faster than capacity, as through a token bucket */
    double seconds;  /* seconds from the call to this result */
    uint64_t nbytes; /* bytes that the probe sent */
    int fleets, streams, discarded; /* discarded: streams that this host held up, or that met the job's own traffic */
} hpc_bandwidth;

HPC_API void hpc_bandwidth_options_init(hpc_bandwidth_options *options);

/* Measures the bandwidth that is left on the paths to n peers on other hosts, by self-loading periodic streams (SLoPS,
 * as pathload has it: Jain and Dovrolis, SIGCOMM 2002). The streams to one peer are sent in the pauses of the streams
 * to others. results[i] is for peers[i]. Any thread may call it while exchanges run; the calls of a context take turns.
 * It is not collective: the peers' contexts answer by themselves. NULL options: the defaults. HPC_ERR_INVALID: a peer
 * is this rank, on its host, or named twice; HPC_ERR_PEER: a peer is gone; HPC_ERR_TIMEOUT: it does not answer. */
HPC_API int hpc_context_bandwidth(hpc_context *context, const int *peers, int n, const hpc_bandwidth_options *options,
                                  hpc_bandwidth *results);

/* Closes the context if it is open, and drops the handle. The memory is freed with its last window, lane and queue. */
HPC_API void hpc_context_free(hpc_context *context);

/* Adds a span to the calling thread's timeline, from start (CLOCK_MONOTONIC, in seconds) until now. Two spans of a
 * thread must be disjoint or nested. name is copied, up to 47 bytes. Without a timeline it does nothing. */
HPC_API int hpc_context_span(hpc_context *context, const char *name, double start);

/* Gives the context a title, such as "pipeline stage 2", which hpcomm status shows on this rank. title is copied, up to
 * HPC_TITLE_BYTES - 1 bytes, and other than printable ASCII is shown as '?'. Any thread may call it, at any time. */
HPC_API int hpc_context_set_title(hpc_context *context, const char *title);

/* ---- lane --------------------------------------------------------------------------------------------------- */

/* One thread's ordered channel to every peer. In every call below NULL stands for the context's first lane. */
typedef struct hpc_lane hpc_lane;

HPC_API int hpc_lane_create(hpc_context *context, double timeout, hpc_lane **lane); /* collective */
HPC_API void hpc_lane_free(hpc_lane *lane);

/* ---- window ------------------------------------------------------------------------------------------------- */

typedef struct hpc_window hpc_window;

/* Creates a window (collective). Every rank gets nbytes (zeroed, page-aligned, allocated at once) and the given number
 * of signals (zero). type is a text that all ranks must agree on, such as "float32 (1024,)", or NULL. */
HPC_API int hpc_window_create(hpc_context *context, size_t nbytes, int signals, const char *type, double timeout,
                              hpc_window **window);
HPC_API void hpc_window_free(hpc_window *window);
HPC_API void *hpc_window_data(const hpc_window *window);

/* Returns the address of the peer's part in this process, valid as long as the window; NULL if it cannot be mapped. */
HPC_API void *hpc_window_peer_view(const hpc_window *window, int peer);

/* A reference to the memory of rank's part of the window. It keeps the memory mapped after hpc_window_free, until
 * hpc_memory_release. NULL if the memory cannot be mapped. */
typedef struct hpc_memory hpc_memory;
HPC_API hpc_memory *hpc_window_memory(const hpc_window *window, int rank);
HPC_API void *hpc_memory_data(const hpc_memory *memory);
HPC_API void hpc_memory_release(hpc_memory *memory);

/* Memory for arrays whose values must survive the next write. hpc_memory_view maps the pages of nbytes at `at` a second
 * time; `at` must lie in the memory of a window, a queue or an exchange, and the view's data begins with the page of
 * `at`. hpc_memory_part then gives the view private pages at the same addresses, which keep the bytes that they have
 * now. No thread or peer may write these pages during the call. */
HPC_API int hpc_memory_view(const void *at, size_t nbytes, hpc_memory **view);
HPC_API int hpc_memory_part(hpc_memory *view);

/* Writes nbytes of src at offset in peer's part of the window; the first put waits, up to init_timeout, for the peer's
 * process to answer. It may return before src is read: hold src until flush. */
HPC_API int hpc_put(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset);

/* Does hpc_put, then stores value in peer's signal word. The peer sees the word only after this put and every earlier
 * put of this lane to it. A word must have one writer, and its values must never decrease. With nbytes 0 src is not
 * read. */
HPC_API int hpc_put_signal(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                           int signal, uint64_t value);

/* Returns HPC_OK if this rank's own signal word is at_least or more, else HPC_IN_PROGRESS. *value gets the word, unless
 * value is NULL. */
HPC_API int hpc_test_signal(hpc_window *window, int signal, uint64_t at_least, uint64_t *value);

/* Waits until this rank's own signal word is at_least or more. peer is the rank that should write it, for errors; -1:
 * unknown. *value gets the word, unless value is NULL. */
HPC_API int hpc_wait_signal(hpc_window *window, int signal, uint64_t at_least, int peer, double timeout,
                            uint64_t *value);

/* Waits until this lane's earlier puts to peer (-1: to all peers) are written there; their src may be reused then. */
HPC_API int hpc_flush(hpc_lane *lane, hpc_window *window, int peer, double timeout);

enum { HPC_NOTIFY_DEPTH = 256 };

/* Does hpc_put, then sends an event with imm, which the peer's hpc_poll of the lane with the same number returns. It
 * waits, up to timeout, while the peer has HPC_NOTIFY_DEPTH unpolled events from this lane. */
HPC_API int hpc_put_notify(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                           uint32_t imm, double timeout);

typedef struct hpc_event {
    int peer;
    uint32_t imm;
    size_t nbytes;
} hpc_event;

/* Takes the next event of a lane. Events of one peer come in the order of its puts. hpc_poll returns HPC_IN_PROGRESS if
 * there is no event; hpc_wait_event waits for one. */
HPC_API int hpc_poll(hpc_context *context, hpc_lane *lane, hpc_event *event);
HPC_API int hpc_wait_event(hpc_context *context, hpc_lane *lane, hpc_event *event, double timeout);

/* ---- fold --------------------------------------------------------------------------------------------------- */

/* f16 (IEEE binary16) and bf16 are wire formats: inputs in them are summed into float32. */
typedef enum hpc_dtype { HPC_F32 = 0, HPC_F64 = 1, HPC_F16 = 2, HPC_BF16 = 3 } hpc_dtype;
typedef enum hpc_isa { HPC_ISA_BEST = 0, HPC_ISA_GENERIC = 1, HPC_ISA_AVX2 = 2, HPC_ISA_AVX512 = 3 } hpc_isa;

/* Computes out[j] = weights[0]*in[0][j] + weights[1]*in[1][j] + ..., in that order and without FMA, so that every
 * instruction set gives the same bits. f32 and f64 inputs are summed in their type, into an out of that type; f16 and
 * bf16 inputs are summed in float32 into a float32 out. out may be one of the inputs, if it has their type; otherwise
 * it must not overlap any. */
HPC_API int hpc_fold(void *out, const void *const *in, const double *weights, int n_in, size_t count, int dtype,
                     int isa);

/* Converts float32 to f16 or bf16, to nearest even; NaN stays NaN, too large a value becomes Inf. No overlap. */
HPC_API int hpc_encode(void *out, const float *in, size_t count, int dtype, int isa);

/* ---- queue -------------------------------------------------------------------------------------------------- */

/* A queue: NOTIFY-ACK between ranks that fold updates themselves. Each rank has slots for each in-peer. send waits
 * until the peer's slot is free, writes the update into it and notifies; recv waits for the notification and returns
 * the update's address; ack frees the slot. With buffers > 0 the sender writes updates into the queue's own registered
 * buffers; a peer that maps them reads the update there, without a copy, and the slot holds only its address. Every
 * update carries its version in a header and a footer. */
typedef struct hpc_queue hpc_queue;

typedef struct hpc_queue_config {
    size_t size; /* sizeof(hpc_queue_config), set by hpc_queue_config_init */
    const int *in_peers;
    int n_in;
    const int *out_peers;
    int n_out;
    size_t nbytes;    /* bytes of one update; the same on all ranks */
    int depth;        /* updates that a sender may send before they are acknowledged, 1 or more */
    int buffers;      /* registered buffers of this rank, 0 to 64; the same on all ranks */
    const char *type; /* a text that all ranks must agree on, e.g. "float32 (1024,)", or NULL */
} hpc_queue_config;

typedef struct hpc_queue_stats {
    uint64_t sent, received;             /* number of updates */
    uint64_t bytes_sent, bytes_received; /* bytes of these updates, also when they were read in place */
    double wait_send, wait_recv;         /* seconds spent waiting for free slots, and for updates */
} hpc_queue_stats;

HPC_API void hpc_queue_config_init(hpc_queue_config *config);
HPC_API int hpc_queue_create(hpc_context *context, const hpc_queue_config *config, double timeout,
                             hpc_queue **queue); /* collective */
HPC_API void hpc_queue_free(hpc_queue *queue);

/* Registered buffer i of this rank. acquire waits until every peer to which it was sent has acknowledged it. Write into
 * the buffer only between acquire and send. */
HPC_API void *hpc_queue_buffer(const hpc_queue *queue, int i);
HPC_API int hpc_queue_acquire(hpc_queue *queue, int i, double timeout);

/* Sends an update of nbytes, which must equal the queue's nbytes. src may be reused on return, unless it is a
 * registered buffer (see hpc_queue_acquire). With buffers > 0 src must be a registered buffer. After HPC_ERR_TIMEOUT
 * call it again with the same src, unchanged: an update that was already sent is waited for, not sent again. */
HPC_API int hpc_queue_send(hpc_queue *queue, int peer, const void *src, size_t nbytes, double timeout);

/* Waits for the next update of peer; *update gets its address, read-only and valid until its ack. This rank may hold up
 * to depth updates; ack frees the oldest. */
HPC_API int hpc_queue_recv(hpc_queue *queue, int peer, const void **update, double timeout);
HPC_API int hpc_queue_ack(hpc_queue *queue, int peer);

/* Receives an update from every in-peer, computes out = weight_own*own + sum of weights[i]*(update of in_peers[i]), in
 * that order, then acknowledges each. own may be out. */
HPC_API int hpc_queue_reduce(hpc_queue *queue, void *out, const void *own, double weight_own, const double *weights,
                             int dtype, double timeout);

/* Gives the versions in header and footer of the update that recv gave last; they are equal if the update is whole. */
HPC_API int hpc_queue_versions(const hpc_queue *queue, int peer, uint64_t *header, uint64_t *footer);
HPC_API int hpc_queue_get_stats(const hpc_queue *queue, hpc_queue_stats *stats);

/* A reference that keeps the memory of rank's part of the queue mapped (see hpc_window_memory). */
HPC_API hpc_memory *hpc_queue_memory(const hpc_queue *queue, int rank);

/* ---- plan --------------------------------------------------------------------------------------------------- */

/* A plan says which rank does which work on which chunk of an update. A chunk is a range of one key's elements; a row
 * is one stage of a chunk's path. One core of one rank owns a row from beginning to end. The row's inputs come over its
 * in-edges; when quorum of them have come, the core folds them, and the row's action says what goes out over its
 * out-edges. With a parameter server a chunk has one row, in a hierarchy of racks two or more. */
typedef struct hpc_key {
    const char *name;
    uint64_t count; /* float32 elements, 1 or more */
    uint64_t unit;  /* number of elements that no chunk may cut apart; 0 means 1; above count: one chunk */
} hpc_key;

typedef struct hpc_edge {
    int rank;
    int row; /* 0 or more: the row at the other end, which rank owns. -1: no row, but rank's pushes of the key (in-edge)
                or rank's parameters (out-edge). -2 - r, on in-edges of peers only: rank's pushes, which rank r passes
                on and also takes into its own row */
    double weight; /* the factor of an input in the fold */
} hpc_edge;

typedef enum hpc_action {
    HPC_APPLY = 0,   /* the rule changes the parameters, which go to the out-edges */
    HPC_FORWARD = 1, /* the fold goes to the rows of the out-edges */
    HPC_EMIT = 2,    /* the fold itself goes to the out-edges, as parameters */
    HPC_RELAY = 3    /* the parameters of another row go to the out-edges, unchanged */
} hpc_action;

enum { HPC_PLAN_DEPTH = 32 }; /* the largest depth of a row */

typedef struct hpc_row {
    int key, owner, core;
    int action;              /* hpc_action */
    uint64_t offset, count;  /* first element of the key, and number of elements */
    int depth;               /* inputs that each in-edge may hold at the same time, 1 to HPC_PLAN_DEPTH */
    int quorum;              /* number of inputs that make a fold: all of them, or 1 (each input by itself) */
    int codec_in, codec_out; /* hpc_dtype or hpc_codec_number of the inputs, and of the outputs */
    int n_in, n_out;
    const hpc_edge *in, *out; /* several rows may share one array */
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

/* An exchange sends the updates of a job by a plan. A worker writes the gradient of a key into the exchange's memory
 * and pushes it; the owners that the plan names fold it, apply it and write the new parameters into every worker's
 * memory; pull waits for them. From a push until its pull has returned the caller must not touch the key's gradient and
 * parameters. On each rank only one thread may use an exchange at a time. */
typedef struct hpc_exchange hpc_exchange;

typedef enum hpc_consistency {
    HPC_BSP = 0,   /* a chunk is applied when every worker has pushed it; then all workers get it */
    HPC_ASYNC = 1, /* each update is applied as it comes; a worker gets the parameters that it pulls. On a graph no rank
                      waits for another, and a fold takes the updates that have come completely. Among peers, and where
                      receivers apply (plan.h), a worker may be at most depth - 2 steps ahead of the slowest, and the
                      plan's depth must be 3 or more */
    HPC_NOTIFY_ACK = 2, /* only on graphs (ASAP, section 4): a fold waits for the in-neighbours' updates; a push waits
                           until the out-neighbours have folded the last update in its slot */
    HPC_SSP = 3, /* no worker begins a step while it is more than staleness steps ahead of the slowest. Each update is
                    applied as it comes, with its weight in the plan (hub.each 0); pulls wait for slow workers;
                    staleness 0 is BSP. On a graph a fold takes the newest updates, none more than staleness steps old.
                    With several stages, under SSP and ASYNC, each input of a row that applies counts as one update, and
                    parameters come with the answer to the push */
    HPC_BARRIER = 4 /* on graphs: all ranks meet, without a flush; then each folds the updates that are complete */
} hpc_consistency;

typedef enum hpc_progress {
    HPC_PROGRESS_AUTO = 0,   /* threads if enough CPUs are free for them beside all compute threads, else inline */
    HPC_PROGRESS_INLINE = 1, /* no threads: every wait of this rank, in any context of its engine, works on the rows */
    HPC_PROGRESS_THREAD = 2  /* a pinned thread of the engine for each core of the plan; exchanges share the threads */
} hpc_progress;

enum { HPC_MOST_STALENESS = 64 }; /* the largest staleness of HPC_SSP with servers */

typedef struct hpc_exchange_config {
    size_t size;          /* sizeof(hpc_exchange_config), set by hpc_exchange_config_init */
    const hpc_plan *plan; /* the plan, the same on all ranks */
    const hpc_rule *rule; /* the rule for all keys; its name, slots, fold_wires and args must be the same on all ranks.
                             Not used if rules is given */
    const float *const *values; /* values[key]: initial parameters; rank 0's are used, others' may be NULL */
    int consistency;            /* hpc_consistency */
    int progress;               /* hpc_progress; may differ by rank */
    int threads;                /* compute threads of this rank while it is a worker; 0: hpc_config.threads */
    int shared_params;          /* 1: all workers of a host read one copy of the parameters, in memory of the lowest
                                   worker. Needs BSP, and ranks of a host that map each other's memory
                                   (hpc_window_peer_view). Only ranks of the host may write the copy: with several hosts
                                   use a plan of hosts */
    int check_finite;           /* 1: a push of NaN or Inf is refused */
    int isa;                    /* hpc_isa of the kernels */
    const hpc_graph *graph;     /* the graph from which the plan was made; NULL if the plan has servers or peers */
    int staleness;              /* s of HPC_SSP, in steps: 0 to HPC_MOST_STALENESS; on a graph 0 to depth - 2 */
    int quorum;      /* inputs that suffice for a fold; 0: all. An input that comes after its fold is left out, and
                        its worker is told. On a graph quorum counts in-neighbours' inputs; a rank with fewer needs
                        all of theirs. With servers each worker must push every key once, and pull all, before it
                        pushes one again. If rows forward to others, quorum counts inputs of the rows that apply,
                        each from one group of ranks (hpc_hosts.apart); all keys have the same groups */
    double grace;    /* seconds that a fold with its quorum waits for more inputs; negative: learned */
    double patience; /* 1 or more: a negative timeout of a call on a key means patience times the usual time of a push
                        (hpc_exchange_stats.usual), at least 1 s and at most the context's timeout (ASAP, section 5);
                        may differ by rank. 0: it means the context's timeout */
    double weight;   /* its share of a core thread beside other exchanges, by bytes; may differ by rank. 0: 1 */
    int in_place; /* 1: models are trained in place: a push sends the key's parameters. in_place needs a graph, the rule
                     average and no quorum. If all keys are float32 on the wire, one slot of the plan is the model, so
                     depth must be 2 or more */
    const hpc_rule *const *rules; /* rules[key]: the key's rule, the same on all ranks; NULL: rule is for all keys */
    const char *refusal; /* a sentence that says why this rank cannot take part; hpc_exchange_create then fails with it
                            on all ranks. NULL: it takes part */
    int split; /* 1: fold and apply are two calls (hpc_exchange_apply). Allowed with BSP (servers: also a quorum), on a
                  graph (any consistency and quorum), and with ASYNC or SSP over servers or peers, where each worker
                  keeps its own updates. One update of a key can be pending, whatever the plan's depth */
    const struct hpc_codec_config *const *codecs; /* codecs[key]: settings (codec.h); NULL: no codec of pieces */
    const struct hpc_exchange_config *next; /* another configuration; NULL: none. Keys and rows are numbered through all
                                               of them, in this order; calls that name no key are for all */
} hpc_exchange_config;

HPC_API void hpc_exchange_config_init(hpc_exchange_config *config);
/* Creates the exchange (collective). With config and exchange NULL it does only the first step, in which the ranks tell
 * each other whether they take part; ranks that must do something together after that call it a second time. It fails
 * on all ranks if one of them gives a refusal. */
HPC_API int hpc_exchange_create(hpc_context *context, const hpc_exchange_config *config, double timeout,
                                hpc_exchange **exchange);

/* hpc_exchange_close waits for pending pushes, then tells every rank that this one pushes no more. The rank then serves
 * until all others have closed too, if it owns rows of an ASYNC exchange, of an exchange with servers and a quorum or
 * SSP, or of keys that it does not push. Pushes that missed a quorum, and that no call has waited for, become a note
 * (hpc_context_note). A second close does nothing. hpc_exchange_free drops the handle without waiting: ranks that wait
 * for this rank's answer get HPC_ERR_PEER; ranks that wait for it through a relay time out. */
HPC_API int hpc_exchange_close(hpc_exchange *exchange, double timeout);
HPC_API void hpc_exchange_free(hpc_exchange *exchange);

/* *gradient gets the address for the next gradient of key, in the key's wire format; the call waits until that slot is
 * free. With in_place *gradient gets the address of the parameters, in float32; the call waits until the last push is
 * folded. */
HPC_API int hpc_exchange_gradient(hpc_exchange *exchange, int key, double timeout, void **gradient);
/* Returns the parameters of key; NULL on a rank that is no worker. The address never changes, except with in_place if
 * all keys are float32 on the wire: then call this again after each pull, since the average is in another slot while
 * neighbours still read the model that was sent. */
HPC_API float *hpc_exchange_params(const hpc_exchange *exchange, int key);

/* Facts of a key that follow from the plan, the consistency and the codec, and never change. All but scheme are 0 or 1.
 * takes_writes and keeps_back may differ by rank. */
typedef struct hpc_key_facts {
    int scheme;         /* the number of the key's configuration, from 0 */
    int graph;          /* models are averaged on a graph */
    int peers;          /* each rank applies all updates that it gets to its own copy of the parameters */
    int own;            /* ranks have different parameters: on graphs, and among peers if not all send to all */
    int copied;         /* every rank has a copy, and copies after equally many steps have equal bits */
    int may_differ;     /* several ranks apply the same updates, and nothing says which of their copies is newer */
    int counts_folds;   /* rows and workers count steps alike: one push of each worker makes one fold, or one version */
    int counts_updates; /* rows count updates, not steps: under ASYNC and SSP, except on graphs */
    int counts_versions; /* there is a quorum, so all keys of the configuration get each version together */
    int jumps;           /* the steps of a worker may skip numbers, because folds go on without late workers */
    int in_step;         /* between two steps all workers have made the same number of steps */
    int settles;         /* a pull may end before its push is applied, see hpc_exchange_settle */
    int one_slot;        /* all gradients use one slot, one after the other */
    int keeps_back;      /* the encoder of this rank's pushes keeps parts of them for later updates */
    int takes_writes; /* 1: if all workers write the same values into the parameters, the next update is added to these.
                         0: owners keep separate masters, because parameters travel rounded, or folds go on without late
                         workers */
} hpc_key_facts;

HPC_API int hpc_exchange_get_key_facts(const hpc_exchange *exchange, int key, hpc_key_facts *facts);

typedef enum hpc_push_flags {
    HPC_PUSH = 1, /* send the gradient */
    HPC_PULL = 2  /* get the parameters */
} hpc_push_flags;

/* Starts a push, a pull, or both; *ticket is for test and wait. src: float32 values (or other input of the key's codec)
 * that are copied and encoded into the gradient's slot; NULL: the caller has written the gradient there. The call waits
 * only while the owner has too many unpolled events of this rank. After HPC_ERR_TIMEOUT the same call continues where
 * this one stopped. While pulls of a key are pending, do not touch its parameters until the newest has ended.
 *   BSP    refuses a push of a key while its last push is not applied
 *   ASYNC  refuses a push of a key while all its slots are used. With several stages ASYNC and SSP act as BSP: a
 *          pull waits for the answer to the last push, and sends no request
 *   SSP    with servers of one stage: a pull ends at once while this rank's copy is fresh enough; a pull without a
 *          push before it always asks the owners. As on a graph, a push may still be read when its pull has ended, so
 *          call hpc_exchange_gradient before each gradient is written: it waits for a free slot, as start does */
HPC_API int hpc_exchange_start(hpc_exchange *exchange, int key, int flags, const void *src, double timeout,
                               uint64_t *ticket);
/* Returns HPC_OK if a push of key would be accepted now, HPC_IN_PROGRESS if start would refuse it. */
HPC_API int hpc_exchange_ready(hpc_exchange *exchange, int key);
HPC_API int hpc_exchange_test(hpc_exchange *exchange, int key, uint64_t ticket); /* returns HPC_OK or HPC_IN_PROGRESS */
HPC_API int hpc_exchange_wait(hpc_exchange *exchange, int key, uint64_t ticket, double timeout);
/* Does start with both flags, then wait. */
HPC_API int hpc_exchange_push_pull(hpc_exchange *exchange, int key, const void *src, double timeout);

/* Calls for config.split = 1. HPC_PUSH is then a fold: the owners keep the mean of all workers' updates of the key (the
 * plan's weighted sum), and its ticket ends when all updates are in it. Then all workers must make the same one of the
 * calls below, else the exchange ends with HPC_ERR_CONFIG. After squares or gather they make another of these calls, or
 * a fold that replaces the mean. Do not touch the gradient until apply or skip has ended; after a gather it may be
 * written. HPC_PUSH | HPC_PULL is a fold and an apply with scale 1. Cores work on the lowest key first.
 *
 * Among peers each rank keeps the updates that it gets, and its calls change only its own parameters: they wait for no
 * other rank's call, and are not compared with it. Copies stay equal while all ranks make the same calls with the same
 * scale and args. The plan's depth must be 2 or more. The same holds on a graph of one phase under BSP and NOTIFY_ACK.
 * On other graphs each rank keeps the mean of its fold, and no neighbour waits for its calls.
 *
 * With a quorum the first apply or skip by a worker whose update is in the mean counts for all, with its args. Other
 * workers whose updates are in the mean must give the same scale. The apply or skip of a late worker changes nothing:
 * it ends when the mean is applied or skipped, and the worker then has the newest parameters. squares and gather read
 * the kept mean; if no mean is kept any more, squares gives the last known sum, or 0, and gather writes nothing. A fold
 * cannot replace a kept mean.
 *
 * Under ASYNC and SSP each update is applied by itself. A fold keeps this worker's own update and sends nothing.
 * squares and gather read that update, without its weight in the plan, and have ended when they return. apply scales
 * and encodes it, and is a push with a pull. skip is such a push without a gradient: this worker's clock goes on, no
 * rule runs, and codecs keep their residuals. No call waits for another worker, and the calls are not compared. */
/* Applies the rule to scale * mean, with the args that set_args gave before. All workers must give the same scale; NaN
 * makes all parameters NaN. */
HPC_API int hpc_exchange_apply(hpc_exchange *exchange, int key, double scale, double timeout, uint64_t *ticket);
/* Drops the mean: parameters, state, step and residuals stay as if nothing had been folded. */
HPC_API int hpc_exchange_skip(hpc_exchange *exchange, int key, double timeout, uint64_t *ticket);
/* Sets the factor by which updates of key are scaled, from its present fold on; 1 at first. A trainer that scales its
 * loss calls it before apply: residuals of older updates, with another factor, are scaled to match. Does not wait. */
HPC_API int hpc_exchange_set_unit(hpc_exchange *exchange, int key, double unit);
/* Writes the mean on every worker, in float32, to the address that hpc_exchange_gathered returns: the gradient's slot
 * if updates are float32 or pieces, else separate memory. The worker may use that memory until its next fold. Among
 * peers and on a graph the first gather of a key allocates the memory; hpc_exchange_gathered returns NULL before. */
HPC_API int hpc_exchange_gather(hpc_exchange *exchange, int key, double timeout, uint64_t *ticket);
HPC_API const float *hpc_exchange_gathered(const hpc_exchange *exchange, int key); /* NULL if this rank folds nothing */
/* Asks for the sum of the squares of the mean's elements, in float64. When the ticket has ended get_squares returns it;
 * it is the same on all workers. */
HPC_API int hpc_exchange_squares(hpc_exchange *exchange, int key, double timeout, uint64_t *ticket);
HPC_API int hpc_exchange_get_squares(hpc_exchange *exchange, int key, double *sum);
/* Makes this worker's fold without a gradient, as an update of zeros that is not sent. If all do so, apply skips. */
HPC_API int hpc_exchange_fold_nothing(hpc_exchange *exchange, int key, double timeout, uint64_t *ticket);

/* Waits until the owners have applied all pushes of this rank. Under SSP with servers a pull may end earlier; get_row,
 * set_row and publish are refused until its push is applied. If receivers apply the rule, it waits until this rank's
 * receiver has applied all pushes of this rank and as many of every other worker (all, if it has made fewer). If all
 * workers have pushed equally often, all then have the same parameters. */
HPC_API int hpc_exchange_settle(hpc_exchange *exchange, double timeout);
/* together 1: from now on starts of this rank may be kept back, in order, and sent with later ones, so that many small
 * keys need few messages. When 64 KiB are kept for one peer, start sends them. together 0 sends all kept bytes, and so
 * does each wait, test or progress. Nothing is kept back over shared memory. */
HPC_API int hpc_exchange_together(hpc_exchange *exchange, int together);
/* Works on this rank's rows without waiting (HPC_PROGRESS_INLINE). */
HPC_API int hpc_exchange_progress(hpc_exchange *exchange);
/* Works on this rank's rows until every worker has closed. For ranks that are no workers. */
HPC_API int hpc_exchange_serve(hpc_exchange *exchange, double timeout);

/* Sets the args of a key's rule, from args[1] on; key -1: of all keys. They are sent with this rank's next push of the
 * key (with split: its next apply), and hold from then on; the call does not wait. If each receiver applies the rule to
 * the updates, the plan's depth must be 2 or more. A rank that only serves uses its args until the next push, whose
 * args replace them.
 *   BSP     all workers of a key must set the same args before the same push; else the exchange ends with
 *           HPC_ERR_CONFIG, which names two ranks
 *   others  a rank's args are used for its own updates or parameters; with several stages for its group's, so all
 *           ranks of the group must set the same. With a quorum of servers the args of the lowest rank in a fold are
 *           used */
HPC_API int hpc_exchange_set_args(hpc_exchange *exchange, int key, const double *args);

/* Writes the HPC_RULE_ARGS args of this rank's next push of key into args; on a rank that only serves, the args of the
 * last push. args[0] is 0. */
HPC_API int hpc_exchange_get_args(hpc_exchange *exchange, int key, double *args);

/* Reads or writes a row that this rank owns: its step, parameters (count values) and state (slots * count values, slot
 * by slot). Refused while a push or pull of this rank is pending. Under ASYNC and SSP other ranks may push meanwhile;
 * the row is then read between two updates. publish (collective) sends the parameters to all workers after set_row. It
 * is refused on all ranks while a push or pull is pending on one. On a graph with a quorum all ranks continue from one
 * version, and earlier pushes are late. After a rank has died or the context was revoked nothing counts as pending: the
 * first of these calls stops this rank's part of the exchange for good, and its rows no longer change. */
HPC_API int hpc_exchange_get_row(hpc_exchange *exchange, int row, uint64_t *step, float *params, float *state);
HPC_API int hpc_exchange_set_row(hpc_exchange *exchange, int row, uint64_t step, const float *params,
                                 const float *state);
HPC_API int hpc_exchange_publish(hpc_exchange *exchange, double timeout);
/* *pushes gets how many pushes of rank this rank's rows have folded, at least in part: the largest number over all
 * keys. For ASYNC and SSP with servers; otherwise 0. Others may push meanwhile. After a death or a revoke it stops this
 * rank's part, as get_row does. */
HPC_API int hpc_exchange_get_folded(hpc_exchange *exchange, int rank, uint64_t *pushes);
/* For the remaining ranks after others are lost; get_row must have stopped this rank's part first. heard[row] gets, for
 * each of the plan's n rows, how many folds this worker's copy of the row's elements contains, by the owner's last
 * answer. Under SSP with servers it gets how many updates of the slowest worker; if pulls have separate answers, how
 * many pulls; UINT64_MAX if this worker gets no parameters of the row. The call decodes parameters that came encoded.
 * hpc_exchange_get_sent with row -1: *count gets how often this worker has begun to push key, and values the sum of the
 * pieces of its last push, or zeros if its codec keeps no residual (values NULL: only the count, at any time). With a
 * row of this rank *count gets how often the row was folded, and values the piece that the row forwarded last; key is
 * not used. */
HPC_API int hpc_exchange_get_heard(hpc_exchange *exchange, uint64_t *heard, int n);
HPC_API int hpc_exchange_get_sent(hpc_exchange *exchange, int key, int row, uint64_t *count, float *values);
/* Returns a key whose push or pull by this rank is pending, so that get_row and set_row are refused; -1 if no key has
 * one. Ranks that own no rows may call it too. */
HPC_API int hpc_exchange_under_way(hpc_exchange *exchange);

/* A reference that keeps the memory at `at` mapped (see hpc_window_memory). `at` must be an address that
 * hpc_exchange_params, hpc_exchange_gradient or hpc_exchange_gathered has returned for key; NULL means the memory of
 * this rank's part. */
HPC_API hpc_memory *hpc_exchange_memory(const hpc_exchange *exchange, int key, const void *at);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#include "codec.h"
#include "collective.h"
#include "jobs.h"
#include "plan.h"
#include "service.h"
#include "way.h"
#include "stats.h"

#endif
