/* The control channel: a mesh of connections that carries collectives, descriptors and the news of who is alive.
 *
 * A pair of ranks that can share memory is linked by an abstract Unix socket, any other one by TCP. A service thread
 * reads every link, so a rank that computes for an hour still answers. On a Unix link a peer's death is told by the
 * kernel: its socket hangs up, or (when a forked child of it keeps the socket open) its pidfd becomes readable. Over
 * TCP a host may go without a word: every rank sends a beat a few times within config.silence, and one from which
 * nothing has come for so long has failed. */
#ifndef HPC_CONTROL_H
#define HPC_CONTROL_H

#include "control/hello.h"
#include "base/memory.h"
#include "control/net.h"
#include "base/wait.h"

enum { HPC_COOKIE_BYTES = 16, HPC_OP_BYTES = 24, HPC_WORDS = 64 };

typedef struct hpc_control hpc_control;

/* The facts by which a rank reaches another one's control channel; part of its address. */
typedef struct hpc_control_address {
    unsigned char name[HPC_COOKIE_BYTES];   /* of the listeners: anybody on the host can see it */
    unsigned char secret[HPC_COOKIE_BYTES]; /* known to the job alone: callers show it; rank 0's keys TCP */
    int64_t pid;
    uint64_t pid_namespace;
    hpc_endpoint endpoints[HPC_ENDPOINTS]; /* where it listens for TCP */
} hpc_control_address;

/* The name of a job, by that of its rank 0. */
void hpc_control_name_job(const hpc_control_address *rank0, char job[HPC_JOB_BYTES]);

typedef struct hpc_control_config {
    int tcp;                /* whether to listen for TCP; without, no link can be TCP */
    const char *interfaces; /* hpc_net_listen's */
    double silence;
    const void *secret; /* hpc_config's; copied */
    size_t secret_bytes;
} hpc_control_config;

/* Listens and starts the service thread. bell is what peers of Unix links may ring. */
int hpc_control_open(hpc_group *group, hpc_memory *bell, const hpc_control_config *config, hpc_control **control);
void hpc_control_address_of(const hpc_control *control, hpc_control_address *address);

/* How two ranks may be linked, best first: a refused Unix socket gives way to TCP where both bits are set. */
typedef enum hpc_link_kind { HPC_LINK_UNIX = 1, HPC_LINK_TCP = 2 } hpc_link_kind;

/* The name that failures give to a link of that kind; "" for Unix sockets. */
const char *hpc_link_name(hpc_link_kind kind);

/* Connects to every rank, by what links[rank] allows (hpc_link_kind bits; both ranks of a pair have the same);
 * same_host[rank]: try loopback first. Returns when all are connected; the TCP listener then stays open only if some
 * link is TCP. */
int hpc_control_connect(hpc_control *control, const hpc_control_address *addresses, const unsigned char *links,
                        const unsigned char *same_host, double deadline);

/* The kind of link to a connected peer; HPC_LINK_UNIX for this rank itself. */
int hpc_control_link(const hpc_control *control, int rank);
/* "10.0.0.2:40001 by eth0": the endpoint at which a TCP peer is reached, or only the address that it called from; ""
 * for other peers. Valid while control is. */
const char *hpc_control_path(const hpc_control *control, int rank);

/* One more TCP connection to rank, proven, for a lane; after a collective, when rank knows this one: *fd is
 * non-blocking and tuned (hpc_net_tune). */
int hpc_control_call_lane(hpc_control *control, int rank, uint64_t lane, int stream, const char *op, double deadline,
                          int *fd);
/* The called side: the service thread runs accept for each such connection, before it welcomes the caller. accept takes
 * fd over if it returns HPC_OK; otherwise the caller is refused. The welcome is sent right after accept: no thread may
 * write to fd or close it before the caller has been heard in another way (a collective, or its first bytes). accept
 * may not block. Set once, before connect. */
typedef int hpc_accept_lane(void *arg, int rank, uint64_t lane, int stream, int fd);
void hpc_control_on_lane(hpc_control *control, hpc_accept_lane *accept, void *arg);

/* A key for one purpose, by the job's key and facts that both ends know; once connect has been called. */
void hpc_control_derive(const hpc_control *control, const void *facts, size_t nbytes,
                        unsigned char key[HPC_DIGEST_BYTES]);

/* The bell of a connected peer on a Unix link; NULL over TCP. */
hpc_bell *hpc_control_bell(const hpc_control *control, int rank);

typedef struct hpc_reply {
    void *data;
    size_t nbytes;
    int fd; /* -1 if none was sent; the code that takes it over sets it to -1 */
} hpc_reply;

/* Whether all ranks must give as many bytes: if they do not, all get HPC_ERR_CONFIG. */
typedef enum hpc_sizes { HPC_EQUAL_SIZES, HPC_OWN_SIZES } hpc_sizes;

/* Collective: gives nbytes (and fd, if not -1) to every rank; replies[r]: the data of rank r, this rank's included (but
 * for the fd). op names the collective: ranks that call different ones all get HPC_ERR_CONFIG. If a rank does not come,
 * the ranks no longer agree on the next collective, and every later one of this rank fails. */
int hpc_control_exchange(hpc_control *control, const char *op, const void *data, size_t nbytes, int fd, hpc_sizes sizes,
                         hpc_reply *replies, double deadline);
void hpc_control_free_replies(hpc_control *control, hpc_reply *replies);

/* The vote by which the surviving ranks agree on who is left (survivors.c). */
typedef struct hpc_survivors {
    const hpc_group *caller; /* of the context that shrinks: gives this rank's number, and its end ends the waits */
    const int *names;        /* the ranks' numbers in errors, by rank; NULL: the same */
    char *gone;              /* by rank: 1: left out; only grows */
    double deadline;
} hpc_survivors;

/* Votes until every rank that is not gone has said the same. HPC_ERR_TIMEOUT names the ranks that did not vote, and may
 * be followed by another try; HPC_ERR_TRANSPORT: others count this rank as gone. One thread at a time. */
int hpc_control_vote(hpc_control *control, hpc_survivors *survivors);

/* After a vote: gives nbytes to every rank that is not gone and gets theirs (HPC_OK: replies, to be freed; data is NULL
 * for a rank that is gone). HPC_IN_PROGRESS if a rank has departed meanwhile, or has not decided: vote again. */
int hpc_control_give(hpc_control *control, hpc_survivors *survivors, const void *data, size_t nbytes,
                     hpc_reply *replies);

/* Whether rank gave in the last round of giving that ended here, and that round has made no new context here; it may
 * have made one there. settle: it has made one here. */
int hpc_control_gave(const hpc_control *control, int rank);
void hpc_control_settle(hpc_control *control);

/* While heir's ranks (ranks here, in heir's order) connect: one that departs here, or votes again, departs there too,
 * so that their waits end. NULL ends it; heir and ranks must live until then. */
void hpc_control_watch(hpc_control *control, hpc_group *heir, const int *ranks);
/* The answer to a question about a rank: the name of its host. Once for each, before the next. */
void hpc_control_show_host(hpc_control *control, int rank, const char *host);
/* And of this one, from now on: the transports that it uses. Once, after connect. */
void hpc_control_show(hpc_control *control, const char *transports);

/* Words: each rank shows each other one HPC_WORDS numbers, 0 at first; a later one takes the place of an earlier one.
 * tell never waits: HPC_ERR_TIMEOUT if nothing can be sent now, HPC_ERR_PEER if the peer is gone. told: rank's latest
 * number. Any thread. */
int hpc_control_tell(hpc_control *control, int rank, int place, uint32_t value);
uint32_t hpc_control_told(const hpc_control *control, int rank, int place);

/* A peer has failed, as a transport has found out: like a departure that came by the channel itself. Any thread. */
void hpc_control_lose(hpc_control *control, int rank, const char *why);

/* Tells the peers that a rank that has left or leaves counts as failed. */
void hpc_control_revoke(hpc_control *control);

/* Tells the peers (why: NULL for leaving, else the failure) and stops the thread; then free. In a forked child both do
 * nothing but forget. */
void hpc_control_stop(hpc_control *control, const char *why);
void hpc_control_free(hpc_control *control);

#endif
