/* Bandwidth probes between two ranks on different hosts.
 *
 * The *caller* is the rank that sends: on a thread that calls hpc_context_bandwidth it finds out how much bandwidth is
 * left on the path to a peer. The *listener* is the peer's end, which begins with the first call that arrives. It
 * stamps packets and knows no rates. The caller judges the stamps (trend.h), because it knows when each packet left. A
 * stream is a number of packets at one rate; other terms are in trend.h.
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
 * The key of the MACs is made from the job's key and both nonces, so packets of other jobs and other connections do not
 * count. A packet that is not sealed with that key, or is of another stream, is dropped. The UDP socket is bound to the
 * address at which the TCP call arrived, so it is on an interface that HPCOMM_SOCKET_IFNAME allows.
 *
 * Files: trend.c and wire.c (pure functions), listener.c, path.c (the caller's end of one path), bandwidth.c (the
 * fleets of all paths of a call). Each calls only files before it. context/ opens and closes the listener, and has the
 * public call.
 *
 * Threads: the control channel's service thread accepts calls. The listeners' service thread, one for all contexts of
 * the process, owns all connections. A mutex guards the objects that the first hands to the second, and the end. */
#ifndef HPC_PROBE_H
#define HPC_PROBE_H

#include "probe/wire.h"
#include "transport/objects.h"

#define HPC_PROBE_LANE UINT64_MAX /* the lane number of a probe's call; no lane has it */

/* ---- listener.c ---- */

typedef struct hpc_probes hpc_probes;

int hpc_probes_open(hpc_context *context);
/* Accepts a call, on the control channel's service thread. The listener owns fd if this returns HPC_OK. */
int hpc_probes_accept(hpc_context *context, int rank, int fd);
/* Ends the listener; no call is accepted any more. A second call does nothing. */
void hpc_probes_stop(hpc_context *context);
void hpc_probes_free(hpc_context *context); /* after stop; does nothing if there are no probes */

/* Returns the bytes that this rank has sent to other hosts, over all transports, and received from them by TCP, and the
 * bytes that wait to be sent. The result also has the parts sent to rank `to` (-1: no rank). */
hpc_carried hpc_probes_carried(hpc_context *context, int to);

/* Makes the key of a probe's packets. from: the rank that sends them. */
void hpc_probes_key(hpc_context *context, int from, int to, const hpc_probe_message *hello,
                    const hpc_probe_message *welcome, unsigned char key[HPC_DIGEST_BYTES]);

/* Begin and end a call. begin waits until no other call of this context runs. deadline: a time of hpc_now. */
int hpc_probes_begin(hpc_context *context, const int *stop, double deadline, const char *op);
void hpc_probes_end(hpc_context *context);
int hpc_probes_first_note(hpc_context *context, int rank); /* returns 1 at the first call for this peer, else 0 */

/* ---- path.c: the caller's end of one path ---- */

/* The times of a stream's packets at both ends. */
typedef struct hpc_probe_stream {
    int n;                               /* number of packets sent */
    double sent[HPC_PROBE_MOST_PACKETS]; /* seconds since the first packet was sent */
    double came[HPC_PROBE_MOST_PACKETS]; /* seconds since the first arrival; < 0: lost */
    int lost, overflowed;
    int is_late;    /* 1: other threads kept this thread from its CPU, so the stream has no result */
    int is_blocked; /* 1: the socket took no more, because a queue on this host is full */
    double own; /* bytes of the job's own traffic that left this rank, or arrived at the peer until END; the larger of
                   both */
    double own_rate; /* own per second */
    double seconds;  /* from the first packet to the last one */
} hpc_probe_stream;

typedef struct hpc_probe_path {
    hpc_context *context;
    int rank, tcp, udp;
    int goes_amid;     /* 1: send a stream amid the job's own traffic if no pause comes soon */
    int payload, each; /* most bytes of a packet: UDP payload alone, and with the headers of IP and UDP */
    uint32_t streams;
    uint64_t nbytes; /* bytes sent, with headers */
    unsigned char key[HPC_DIGEST_BYTES];
    double round_trip; /* seconds between HELLO and WELCOME */
    const int *stop;
    hpc_probe_packet packets[HPC_PROBE_MOST_PACKETS];
} hpc_probe_path;

/* Opens a path; on failure the path is closed. stop: as in hpc_bandwidth_options. */
int hpc_probe_connect(hpc_context *context, int rank, const int *stop, double deadline, hpc_probe_path *path);
void hpc_probe_close(hpc_probe_path *path);

/* Sends `first` packets as fast as possible, then `rest` packets at rate (bytes a second, with headers; 0: as fast as
 * possible), and gets the report. nbytes: bytes of a packet, with headers. If this rank sent other data while it waited
 * for the grant, the call sends no packet, unless path->goes_amid is 1. */
int hpc_probe_send(hpc_probe_path *path, int first, int rest, int nbytes, double rate, double deadline,
                   hpc_probe_stream *stream);

/* Returns HPC_OK to continue; HPC_ERR_INVALID if the caller was told to stop; a failure if the peer or the context is
 * gone. */
int hpc_probe_goes_on(const hpc_probe_path *path);

/* Sleeps for `seconds`, but not beyond deadline. Returns what hpc_probe_goes_on returns. */
int hpc_probe_sleep(const hpc_probe_path *path, double seconds, double deadline);

/* ---- bandwidth.c ---- */

/* Does hpc_context_bandwidth for a connected context, to which the caller holds a reference meanwhile. */
int hpc_probes_bandwidth(hpc_context *context, const int *peers, int n, const hpc_bandwidth_options *options,
                         hpc_bandwidth *results);

#endif
