/* stats.h - counters of an exchange: its work, folds, peers and traffic. hpcomm.h includes it. */
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
    uint64_t pushes, pulls;               /* how many keys this rank has pushed and pulled */
    uint64_t applied;                     /* rows that this rank has folded and applied */
    uint64_t bytes_folded, bytes_written; /* bytes that this rank's cores read from inputs, and wrote to workers */
    double wait;    /* seconds that this rank has waited for pulls, for gradient slots and for space in event rings */
    double busy;    /* seconds that this rank's cores have folded, applied and written */
    int threads;    /* the engine's threads that work for the scheme; 0: the rank works while it waits */
    double usual;   /* a high estimate of push latency, in seconds: mean plus four mean deviations (RFC 6298); 0
                       before eight pushes */
    double timeout; /* seconds; a negative timeout of a call on a key means this (hpc_exchange_config.patience) */
    uint64_t bytes_sent; /* bytes sent to rows of other ranks: pushed (also if the owner reads them in this rank's
                            memory), forwarded and relayed */
    /* On a graph: reduces counts folds of shares (a share is one core's rows of a key); whole, torn, stale and missing
     * count the neighbours' inputs to these folds. With a quorum on servers: reduces counts folds of shares, whole the
     * updates in them, and missing the updates that missed them. */
    uint64_t reduces, whole, torn, stale, missing;
    /* With a quorum: how many shares of this rank's updates were late and left out, and the version of the parameters
     * when the last of them came. */
    uint64_t dropped, dropped_at;
    uint64_t events; /* events that this rank's cores took: updates, forwards, and requests about folds */
    /* System calls of this process since the exchange was made: of the tcp transport, of the connection set, and of
     * waits; not of the control channel. They include calls of the process's other exchanges and contexts. */
    uint64_t sends, receives; /* calls on sockets */
    uint64_t empty;           /* sends and receives that moved nothing */
    uint64_t polls;           /* epoll_wait and poll, both with and without sleep */
    uint64_t futexes;         /* futex calls, to wait and to wake */
    uint64_t alarms;          /* reads and writes of eventfds */
    uint64_t yields;          /* sched_yield calls of waits */
    uint64_t wakeups;         /* sleeps that ended; these are no calls */
} hpc_exchange_stats;

HPC_API int hpc_exchange_get_stats(const hpc_exchange *exchange, hpc_exchange_stats *stats);

/* Writes a text that says which threads work for this rank's cores, and why, such as "thread: core 0 on CPU 3"; at most
 * nbytes, with the 0 at its end. */
HPC_API int hpc_exchange_get_progress(const hpc_exchange *exchange, char *text, size_t nbytes);

/* With a quorum hpc_exchange_late returns how many shares of this rank's last push of key were late and left out. A
 * share is one core's rows of a key or, where rows relay, the rows that send this rank its parameters. The push must
 * have ended. hpc_exchange_version returns the newest version of the parameters (the number of their folds) that any
 * owner has answered this rank, or on a graph the newest that was folded here; the next push is for the version after
 * it. With key -1 they return the late shares of all keys, and the newest version of any key; with a quorum all keys of
 * a configuration have the same version. Without a quorum late is 0, and version is the number of pushes. */
HPC_API int hpc_exchange_late(const hpc_exchange *exchange, int key);
HPC_API uint64_t hpc_exchange_version(const hpc_exchange *exchange, int key);

typedef enum hpc_histogram {
    /* counts[k]: how many folds so far had k whole inputs, of neighbours or, with servers and a quorum, of workers.
     * Returns the largest number of inputs that a fold can have; 0 with servers without a quorum. */
    HPC_FOLDS_BY_INPUTS = 0,
    /* counts[d]: how many steps (of a key, by this rank) began with the slowest worker d steps behind. A worker's step
       counts when its update is in this rank's parameters. Returns the staleness of SSP (servers of one stage, or if
       receivers apply); of ASYNC among peers, or if receivers apply, the staleness that the plan's slots allow; else 0.
     */
    HPC_STEPS_BY_STALENESS = 1
} hpc_histogram;

/* Writes the first cap counts of a histogram into counts, 0 for values that cannot occur. See hpc_histogram for the
 * result. */
HPC_API int hpc_exchange_get_histogram(const hpc_exchange *exchange, int histogram, uint64_t *counts, int cap);

typedef struct hpc_exchange_peer {
    uint64_t bytes_sent, bytes_received; /* bytes sent to rows of that rank, and received from it by rows of this rank
                                            (see hpc_traffic) */
    double wait;                         /* seconds in which this rank waited for that rank, perhaps among others */
    uint64_t late;                       /* shares of that rank's updates that this rank left out as late */
    uint64_t dropped; /* on a graph: shares of this rank's updates that the other rank left out or never got */
} hpc_exchange_peer;

HPC_API int hpc_exchange_get_peer(const hpc_exchange *exchange, int rank, hpc_exchange_peer *peer);

/* Counts of the bytes that this rank has sent, by rank, stage and transport. */
typedef enum hpc_traffic_stage {
    HPC_TRAFFIC_PUSH,      /* this worker's updates, to the rows that fold them */
    HPC_TRAFFIC_FORWARD,   /* folds, from rows of this rank to rows of the receiver */
    HPC_TRAFFIC_RELAY,     /* parameters, to relay rows of the receiver */
    HPC_TRAFFIC_PARAMETERS /* parameters, to the worker itself; also means that hpc_exchange_gather asked for */
} hpc_traffic_stage;
enum { HPC_TRAFFIC_STAGES = HPC_TRAFFIC_PARAMETERS + 1 };

typedef struct hpc_traffic {
    int rank;                /* the receiver, always another rank */
    hpc_traffic_stage stage; /* the reason why the bytes were sent */
    const char *wire;        /* the transport between the two ranks: "shm", "tcp", "verbs" or "loop"; a static string */
    uint64_t bytes;
} hpc_traffic;

/* Writes the first cap nonzero entries, ordered by rank and then by stage, and returns how many nonzero entries there
 * are; with cap 0 it writes nothing. Bytes count as encoded (2 per element in 16 bits), when they have left this rank.
 * For a peer whose memory is mapped they count when they are written there, or may be read by the peer; parameters that
 * this rank decodes into the peer's memory count 4 per element. With shared_params an owner's host reads the master,
 * which is not sent; a relay counts one copy, to the rank that holds it. Publish counts; the exchange's creation,
 * events, answers, versions and arguments do not. hpc_exchange_peer.bytes_sent is the sum of a rank's entries without
 * HPC_TRAFFIC_PARAMETERS. Cores may count during the call; after close nothing changes. */
HPC_API int hpc_exchange_get_traffic(const hpc_exchange *exchange, hpc_traffic *traffic, int cap);

/* Counters of one key on this rank. The counters of pieces are for updates that this rank has encoded, as worker and as
 * owner, and for pieces that its rows have decoded; 0 if the key is sent as an array. */
typedef struct hpc_key_stats {
    uint64_t sent; /* bytes of the key that this rank has sent to all others, in all stages; the sum over the keys is
                      the sum of hpc_exchange_get_traffic's entries */
    uint64_t pieces, elements, kept; /* number of encoded pieces, of elements in them, and of elements that were sent */
    uint64_t bytes_before, bytes;    /* bytes_before: bytes of these elements as float32; bytes: bytes of the pieces */
    uint64_t returned;               /* bytes of pieces that were late, so their values went back into the residual */
    uint64_t decoded;                /* bytes of decoded pieces */
    double encode, decode;           /* seconds spent encoding and decoding */
    double delta_of_pushes, delta_of_folds; /* the deltas in use now; negative if this rank encodes no pushes, or no
                                               folds, by HPC_THRESHOLD */
} hpc_key_stats;

HPC_API int hpc_exchange_get_key_stats(const hpc_exchange *exchange, int key, hpc_key_stats *stats);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
