/* stats.h - counts of an exchange's work, folds, peers and traffic. hpcomm.h includes it. */
#ifndef HPCOMM_STATS_H
#define HPCOMM_STATS_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes stats.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

typedef struct hpc_exchange_stats {
    uint64_t pushes, pulls;               /* of keys, by this rank */
    uint64_t applied;                     /* rows folded and applied here */
    uint64_t bytes_folded, bytes_written; /* read from inputs, and written to workers, by this rank's cores */
    double wait;                          /* seconds that this rank waited for pulls, gradients and rings */
    double busy;                          /* seconds that its cores folded, applied and wrote */
    int threads;                          /* of its scheme; 0: inline */
    double usual;        /* a high estimate of push latency, in seconds: mean plus four mean deviations (RFC 6298); 0
                            before eight pushes */
    double timeout;      /* seconds: of a call on a key with a negative timeout (hpc_exchange_config.patience) */
    uint64_t bytes_sent; /* to rows of other ranks: pushed (read in place or not), forwarded and relayed */
    /* On a graph: reduces counts folds of a share (one core's rows of a key); the others count neighbours' inputs to
     * them. With a quorum on servers: folds of a share, the updates in them, and the updates missing from them. */
    uint64_t reduces, whole, torn, stale, missing;
    /* With a quorum: shares of this rank's updates that were late and left out, and the version of the parameters when
     * the last of them came. */
    uint64_t dropped, dropped_at;
    uint64_t events; /* taken by this rank's cores: updates, forwards, and requests on folds */
    /* System calls of this process since the exchange was made, except on the control channel: calls of the tcp
     * transport, of the set of connections, and of waits. Other exchanges and contexts of the process count too. */
    uint64_t sends, receives; /* of sockets */
    uint64_t empty;           /* sends and receives that moved nothing */
    uint64_t polls;           /* epoll_wait and poll, whether they sleep or look */
    uint64_t futexes;         /* waits and wakes */
    uint64_t alarms;          /* reads and writes of eventfds */
    uint64_t yields;          /* sched_yield of waits */
    uint64_t wakeups;         /* no calls: sleeps that ended */
} hpc_exchange_stats;

HPC_API int hpc_exchange_get_stats(const hpc_exchange *exchange, hpc_exchange_stats *stats);

/* Writes which threads work for this rank's cores, and why, such as "thread: core 0 on CPU 3", as text: at most nbytes,
 * the 0 at the end included. */
HPC_API int hpc_exchange_get_progress(const hpc_exchange *exchange, char *text, size_t nbytes);

/* With a quorum. late: how many shares (one core's rows of a key; where rows relay, the rows that send this rank its
 * parameters) of this rank's last push of key were late and left out, once the push has ended; key -1: of all keys.
 * version: the newest version of the parameters (the number of their folds) that any owner has answered this rank, on a
 * graph the newest that was folded here; the next push is for the version after it. Without a quorum late is 0, and
 * version is the number of pushes. key -1: the newest version of all keys; with a quorum all keys of a configuration
 * share one. */
HPC_API int hpc_exchange_late(const hpc_exchange *exchange, int key);
HPC_API uint64_t hpc_exchange_version(const hpc_exchange *exchange, int key);

typedef enum hpc_histogram {
    HPC_FOLDS_BY_INPUTS = 0,   /* counts[k]: the folds so far with k whole inputs of neighbours, or, with servers and a
                                  quorum, of workers. Returns the largest number of inputs that a fold can have; 0 with
                                  servers without a quorum */
    HPC_STEPS_BY_STALENESS = 1 /* counts[d]: the steps (of a key, by this rank) that began with the slowest worker d
                                  behind, as far as this rank's parameters have its updates. Returns the staleness of
                                  SSP with servers of one stage, or where receivers apply the rule; of ASYNC among
                                  peers, and where receivers apply, the staleness that the plan's slots allow; else 0 */
} hpc_histogram;

/* Writes the first cap counts; those that mean nothing are 0. */
HPC_API int hpc_exchange_get_histogram(const hpc_exchange *exchange, int histogram, uint64_t *counts, int cap);

typedef struct hpc_exchange_peer {
    uint64_t bytes_sent, bytes_received; /* to its rows; from it, to rows of this rank. See hpc_traffic */
    double wait;                         /* seconds in which that rank was among those waited for */
    uint64_t late;                       /* shares of its updates that were late here and left out */
    uint64_t dropped;                    /* on a graph: shares of this rank's updates that it left out, or never got */
} hpc_exchange_peer;

HPC_API int hpc_exchange_get_peer(const hpc_exchange *exchange, int rank, hpc_exchange_peer *peer);

/* Counts of the bytes that this rank has sent, by rank, stage and transport. */
typedef enum hpc_traffic_stage {
    HPC_TRAFFIC_PUSH,      /* this worker's updates, to the rows that take them */
    HPC_TRAFFIC_FORWARD,   /* folds, from rows of this rank to rows of the other one */
    HPC_TRAFFIC_RELAY,     /* parameters, to relays of the other one */
    HPC_TRAFFIC_PARAMETERS /* parameters, to the worker itself; and the means that hpc_exchange_gather asks for */
} hpc_traffic_stage;
enum { HPC_TRAFFIC_STAGES = HPC_TRAFFIC_PARAMETERS + 1 };

typedef struct hpc_traffic {
    int rank;                /* the receiver, always another rank */
    hpc_traffic_stage stage; /* of the bytes */
    const char *wire;        /* the transport that connects the two: "shm", "tcp", "verbs" or "loop"; static */
    uint64_t bytes;
} hpc_traffic;

/* Writes the first cap entries that are not 0, in the order of ranks and then of stages, and returns the number of all
 * such entries; cap 0: writes nothing. Bytes count as they travel (2 an element in 16 bits), when they have left or, on
 * a peer whose memory is mapped, are written in place or may be read in place: there parameters count 4 an element, as
 * they are decoded into place. With shared_params a copy on an owner's host is its master, which is not sent; a relay
 * counts one copy, to the rank that holds it. Publish counts; the exchange's creation, events, answers, versions and
 * arguments do not. The bytes_sent of a peer are the sum of its entries but for the parameters'. Cores may count
 * meanwhile; after close nothing changes any more. */
HPC_API int hpc_exchange_get_traffic(const hpc_exchange *exchange, hpc_traffic *traffic, int cap);

/* Facts of one key on this rank. Its pieces: counts of elements that this rank has encoded, as worker and as owner, and
 * that its rows have decoded; 0 where the key goes as an array. */
typedef struct hpc_key_stats {
    uint64_t sent; /* bytes of the key that this rank has sent to all others, in all stages, counted as
                      hpc_exchange_get_traffic counts: the sum over keys is the sum of its entries */
    uint64_t pieces, elements, kept;        /* encoded; kept: elements that were sent */
    uint64_t bytes_before, bytes;           /* of these as float32, and as pieces */
    uint64_t returned;                      /* bytes of pieces that were left out, and went back into the residual */
    uint64_t decoded;                       /* bytes of pieces */
    double encode, decode;                  /* seconds */
    double delta_of_pushes, delta_of_folds; /* in force now; negative where this rank encodes none there by
                                               HPC_THRESHOLD */
} hpc_key_stats;

HPC_API int hpc_exchange_get_key_stats(const hpc_exchange *exchange, int key, hpc_key_stats *stats);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
