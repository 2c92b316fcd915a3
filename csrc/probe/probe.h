/* Bandwidth probes between two ranks on different hosts.
 *
 * The *caller* is the rank that sends: it asks how much the path to a peer has left, by hpc_context_bandwidth, on the
 * calling thread. The *listener* is a thread of the peer's context, which starts with the first call that comes. It
 * takes stamps and knows nothing of rates; the caller judges (trend.h), because it knows when each packet left.
 *
 *   caller                                listener
 *   TCP call, as of a lane  ----------->  proven by the control channel's handshake (control/hello.h)
 *   HELLO, nonce            ----------->
 *                           <-----------  WELCOME, nonce, UDP port at the address that was called
 *   ASK, packets            ----------->
 *                           <-----------  GRANT: one stream at a time, of any caller, in a pause of the job's traffic
 *                                         to this rank, if one comes soon
 *   packets by UDP          ===========>  stamped by the kernel (SO_TIMESTAMPNS); each has a MAC
 *   END, packets sent       ----------->
 *                           <-----------  REPORT, stamps
 *
 * The key of the MACs comes from the job's key and both nonces, so no packet of another job or of another connection
 * counts. A packet that is not sealed by that key, or is of another stream, is dropped. The UDP socket is bound to the
 * address at which the TCP call came, so it is on an interface that HPCOMM_SOCKET_IFNAME allows.
 *
 * Files: trend.c and wire.c are pure; listener.c; path.c is the caller's end of one path; bandwidth.c makes the fleets
 * of all paths of a call. Each calls only those before it. context/ calls them: it opens and closes the listener, and
 * has the public call.
 *
 * Threads: the control channel's service thread brings calls in. The listener's thread owns all connections. The mutex
 * guards objects handed over between the two, and the end. */
#ifndef HPC_PROBE_H
#define HPC_PROBE_H

#include "probe/wire.h"
#include "transport/objects.h"

#define HPC_PROBE_LANE UINT64_MAX /* the lane number of a probe's call; no lane has it */

/* ---- listener.c ---- */

typedef struct hpc_probes hpc_probes;

int hpc_probes_open(hpc_context *context);
/* The control channel's service thread: takes fd over if HPC_OK. */
int hpc_probes_accept(hpc_context *context, int rank, int fd);
/* Ends the listener's thread; idempotent. No call is accepted any more. */
void hpc_probes_stop(hpc_context *context);
void hpc_probes_free(hpc_context *context); /* after stop; NULL probes are fine */

/* Bytes that all transports of this rank have sent to and got from other hosts by TCP, the bytes that wait to be sent,
 * and the parts of these for one rank (-1: none). */
hpc_carried hpc_probes_carried(hpc_context *context, int to);

/* The key of a probe's packets. from: the rank that sends them. */
void hpc_probes_key(hpc_context *context, int from, int to, const hpc_probe_message *hello,
                    const hpc_probe_message *welcome, unsigned char key[HPC_DIGEST_BYTES]);

/* The begin and the end of a call: calls of a context take turns. deadline: hpc_now's. */
int hpc_probes_begin(hpc_context *context, const int *stop, double deadline, const char *op);
void hpc_probes_end(hpc_context *context);
int hpc_probes_first_note(hpc_context *context, int rank); /* 1 at the first call for this peer */

/* ---- path.c: the caller's end of one path ---- */

/* A stream as it was sent and came. */
typedef struct hpc_probe_stream {
    int n;                               /* packets sent */
    double sent[HPC_PROBE_MOST_PACKETS]; /* seconds, from the first one */
    double came[HPC_PROBE_MOST_PACKETS]; /* seconds, from the first that came; < 0: lost */
    int lost, overflowed;
    int is_late;     /* this thread was kept from its CPU, so the stream has no result */
    int is_blocked;  /* the socket took no more: a queue on this host is full */
    double own;      /* bytes of the job's own that left here, or that arrived there until END */
    double own_rate; /* the same, a second */
    double seconds;  /* from the first packet to the last */
} hpc_probe_stream;

typedef struct hpc_probe_path {
    hpc_context *context;
    int rank, tcp, udp;
    int goes_amid;     /* a stream is sent amid the job's traffic if no pause comes soon */
    int payload, each; /* bytes of a packet at most: UDP payload, and with the headers of IP and UDP */
    uint32_t streams;
    uint64_t nbytes; /* sent, with headers */
    unsigned char key[HPC_DIGEST_BYTES];
    double round_trip; /* of HELLO and WELCOME */
    const int *stop;
    hpc_probe_packet packets[HPC_PROBE_MOST_PACKETS];
} hpc_probe_path;

/* stop: hpc_bandwidth_options'. On failure the path is closed. */
int hpc_probe_connect(hpc_context *context, int rank, const int *stop, double deadline, hpc_probe_path *path);
void hpc_probe_close(hpc_probe_path *path);

/* Sends first packets as fast as they go, then the rest at the rate (bytes a second, headers included; 0: as fast as
 * they go), and gets the report. nbytes: of a packet, headers included. Nothing is sent if this rank sent something
 * else while it waited for the grant, unless the path goes amid that. */
int hpc_probe_send(hpc_probe_path *path, int first, int rest, int nbytes, double rate, double deadline,
                   hpc_probe_stream *stream);

/* HPC_OK to go on; HPC_ERR_INVALID if the caller was told to stop, or the failure if the peer or the context is
 * gone. */
int hpc_probe_goes_on(const hpc_probe_path *path);

/* Sleeps, at most until the deadline; returns as hpc_probe_goes_on. */
int hpc_probe_sleep(const hpc_probe_path *path, double seconds, double deadline);

/* ---- bandwidth.c ---- */

/* hpc_context_bandwidth of a context that is connected, and that the caller holds meanwhile. */
int hpc_probes_bandwidth(hpc_context *context, const int *peers, int n, const hpc_bandwidth_options *options,
                         hpc_bandwidth *results);

#endif
