/* The control channel. It carries collectives, descriptors, and the state of each rank.
 *
 * A rank has links to its neighbours in a tree of all ranks (control/tree.h). Collectives, and news of ranks that die
 * or leave, travel along these. Other links are made at their first use.
 *
 * Two ranks that can share memory (users.h) are linked by an abstract Unix socket, others by TCP. A service thread, one
 * for all contexts of a process, reads every link, so a rank that computes for an hour still answers. On a Unix link
 * the kernel reports a peer's death: its socket hangs up, or, if a forked child keeps the socket open, its pidfd
 * becomes readable. Over TCP a host may vanish silently. So neighbours send each other a beat several times within
 * config.silence, and a rank from which nothing came for config.silence has failed. */
#ifndef HPC_CONTROL_H
#define HPC_CONTROL_H

#include "control/door.h"
#include "base/memory.h"
#include "control/net.h"
#include "control/users.h"
#include "base/wait.h"

enum { HPC_COOKIE_BYTES = 16, HPC_WORDS = 64 };

typedef struct hpc_control hpc_control;

/* The facts by which other ranks reach a rank's control channel; a part of its address. */
typedef struct hpc_control_address {
    unsigned char name[HPC_COOKIE_BYTES]; /* of the listeners; any process of the host can see it */
    /* Known to the job only: Unix callers show it, and rank 0's makes the TCP key. */
    unsigned char secret[HPC_COOKIE_BYTES];
    int64_t pid;
    uint64_t pid_namespace;
    hpc_users users;
    uint64_t door; /* 1: the endpoints are a door's (door.h), and it calls no rank without one */
    hpc_endpoint endpoints[HPC_ENDPOINTS]; /* at which it is called by TCP */
} hpc_control_address;

/* Writes the name of the job whose rank 0 has this address. */
void hpc_control_name_job(const hpc_control_address *rank0, char job[HPC_JOB_BYTES]);

typedef struct hpc_control_config {
    int tcp;                /* whether it is called by TCP; if not, no link can be TCP */
    const char *interfaces; /* hpc_net_listen's */
    double silence;
    const void *secret; /* hpc_config's; copied */
    size_t secret_bytes;
    const uint32_t *users; /* hpc_config's; copied */
    int n_users;
    const char *door; /* NULL, or the address of the door (door.h) that takes the place of a listener */
    int door_port;
} hpc_control_config;

/* Opens a control channel: listens, on the service thread. Peers with a Unix link may ring bell. */
int hpc_control_open(hpc_group *group, hpc_memory *bell, const hpc_control_config *config, hpc_control **control);
void hpc_control_address_of(const hpc_control *control, hpc_control_address *address);

/* Takes over a connection that has come to this rank's door. HPC_ERR_PEER: the channel takes none now, and the calling
 * code still owns fd. Any thread may call it; it does not wait. */
int hpc_control_take(hpc_control *control, int fd);
/* Returns how many TCP callers have not proven themselves. Any thread may call it. */
int hpc_control_refused(const hpc_control *control);

/* Returns whether this rank calls rank where either may, at the start and for lanes. Of a rank with a door and one
 * without, the latter calls; of others the higher one. */
int hpc_control_calls(const hpc_control *control, int rank);

/* Kinds of links, best first. If a pair allows both and the Unix socket is refused, TCP is used. */
typedef enum hpc_link_kind { HPC_LINK_UNIX = 1, HPC_LINK_TCP = 2 } hpc_link_kind;

/* Returns the name of this kind of link in errors; "" for Unix sockets. */
const char *hpc_link_name(hpc_link_kind kind);

/* Connects to the neighbours, and awaits all ranks. links[rank] has the allowed hpc_link_kind bits, the same on both
 * ranks of a pair. same_host[rank]: try loopback first. hosts[rank]: the lowest rank on rank's host, which arranges the
 * tree; the same on all ranks. The TCP listener then stays open only if some link is, or would be, TCP. Call it once.
 */
int hpc_control_connect(hpc_control *control, const hpc_control_address *addresses, const unsigned char *links,
                        const unsigned char *same_host, const int *hosts, double deadline);

/* Returns the kind of the link to a peer, also of one that is not made yet; HPC_LINK_UNIX for this rank itself. Call it
 * after connect. */
int hpc_control_link(const hpc_control *control, int rank);
/* Returns the endpoint at which a TCP peer is reached ("10.0.0.2:40001 by eth0"), or just the address from which it
 * called; "" for other peers. While there is no link it is the endpoint that would be called first. Valid as long as
 * control. */
const char *hpc_control_path(const hpc_control *control, int rank);

/* Opens one more authenticated TCP connection to rank, for a lane; *fd is non-blocking and tuned (hpc_net_tune).
 * Call it after a collective, so that rank has this rank's addresses. */
int hpc_control_call_lane(hpc_control *control, int rank, uint64_t lane, int stream, const char *op, double deadline,
                          int *fd);
/* Registers accept, which the service thread calls for each such connection on the called side. accept must not block.
 * It takes fd over if it returns HPC_OK; otherwise the caller is refused. It welcomes the caller by hpc_greeting_end
 * before any thread may write to fd: the caller waits for the welcome. Call it once, before connect. */
typedef int hpc_accept_lane(void *arg, int rank, uint64_t lane, int stream, int fd);
void hpc_control_on_lane(hpc_control *control, hpc_accept_lane *accept, void *arg);

/* Derives a key for one purpose from the job's key and facts that both ends know. Call it only after connect. */
void hpc_control_derive(const hpc_control *control, const void *facts, size_t nbytes,
                        unsigned char key[HPC_DIGEST_BYTES]);

/* The handle by which a peer reaches an object (a window or a lane) of this rank. fd: a descriptor that goes with it,
 * or -1; over TCP it does not arrive. */
enum { HPC_BLOB_BYTES = 64 };
typedef struct hpc_blob {
    unsigned char bytes[HPC_BLOB_BYTES];
    int fd;
} hpc_blob;

/* How handles pass between two ranks. The ranks number their objects alike. The service thread calls all functions, and
 * none may block; arg is on_want's.
 *
 *   asker                              owner
 *   hpc_control_want  ------------->   give: makes the handle, whose descriptor the channel closes once it is sent
 *   take: takes the   <-------------   the handle, or a failure with its reason
 *   blob and its descriptor over
 *
 *   drop: frees a handle that give made and that was not sent.
 *
 * put writes data and then a signal into an object of this rank, for hpc_control_put. A status below 0 ends the link.
 */
enum { HPC_GONE = 2 }; /* the status of an object that its rank has freed: puts into it are dropped */
typedef struct hpc_giver {
    int (*give)(void *arg, int rank, uint64_t number, hpc_blob *blob);
    void (*take)(void *arg, int rank, uint64_t number, int status, const char *why, hpc_blob *blob);
    void (*drop)(void *arg, int rank, hpc_blob *blob);
    int (*put)(void *arg, uint64_t number, const void *data, size_t nbytes, uint64_t offset, int signal,
               uint64_t value);
    /* Takes a part of a message of rank about its object of this number (hpc_control_say). value is 0 in all parts but
     * the last. */
    void (*hear)(void *arg, int rank, uint64_t number, const void *data, size_t nbytes, uint64_t offset,
                 uint64_t value);
} hpc_giver;

/* Registers the functions. Once, before connect. */
void hpc_control_on_want(hpc_control *control, const hpc_giver *giver, void *arg);
/* Asks rank for its handle of an object. HPC_ERR_PEER if the peer is gone, HPC_ERR_MEMORY without memory. */
int hpc_control_want(hpc_control *control, int rank, uint64_t number);
/* Puts nbytes into rank's window with this number, and then raises a signal there, without a lane: for a few bytes to a
 * rank with which this rank shares no data. Puts of one rank keep their order. HPC_ERR_PEER if the peer is gone. */
int hpc_control_put(hpc_control *control, int rank, uint64_t number, const void *data, size_t nbytes, uint64_t offset,
                    int signal, uint64_t value, double deadline);
/* Says data and a value, which is not 0, about an object of this rank to all ranks r whose told[r] is 0. It travels
 * along the neighbours; it never waits. What one rank says keeps its order. HPC_ERR_MEMORY without memory. */
int hpc_control_say(hpc_control *control, uint64_t number, const char *told, const void *data, size_t nbytes,
                    uint64_t value);
/* Returns whether rank has left before all its messages by hpc_control_say had come, because neighbours left or died
 * too. Call it after the rank's state was seen to be HPC_PEER_LEFT. */
int hpc_control_missed(const hpc_control *control, int rank);
/* Returns whether there is a link to rank. */
int hpc_control_is_linked(const hpc_control *control, int rank);
/* Asks for a link to rank, and await waits until it is made, the rank is gone, or the deadline. */
void hpc_control_seek(hpc_control *control, int rank);
void hpc_control_await_link(hpc_control *control, int rank, double deadline);
/* Gives rank a failure in place of a handle, also after the handle. Any thread may call it. */
void hpc_control_refuse(hpc_control *control, int rank, uint64_t number, int status, const char *why);

/* Returns the bell of a peer on a Unix link; NULL over TCP, and while there is no link. */
hpc_bell *hpc_control_bell(const hpc_control *control, int rank);

typedef struct hpc_reply {
    void *data; /* aligned to 16 bytes */
    size_t nbytes;
    void *memory; /* NULL, or memory of this or of all replies, which hpc_control_free_replies frees */
} hpc_reply;

/* EQUAL: all ranks must give the same number of bytes; otherwise all get HPC_ERR_CONFIG. */
typedef enum hpc_sizes { HPC_EQUAL_SIZES, HPC_OWN_SIZES } hpc_sizes;

/* Collective. Gives nbytes to every rank. replies[r] gets the data of rank r. op names the collective: if ranks call
 * different ones, all get HPC_ERR_CONFIG. If a rank does not come by the deadline, ranks no longer agree on which
 * collective is next, so every later one of this rank fails. */
int hpc_control_exchange(hpc_control *control, const char *op, const void *data, size_t nbytes, hpc_sizes sizes,
                         hpc_reply *replies, double deadline);
void hpc_control_free_replies(hpc_control *control, hpc_reply *replies);

/* Returns how many collectives this rank has begun. */
uint64_t hpc_control_collectives(const hpc_control *control);

/* A vote by which the surviving ranks agree on who is left (survivors.c). */
typedef struct hpc_survivors {
    /* Group of the context that shrinks: has this rank's number, and when it closes the waits end. */
    const hpc_group *caller;
    const int *names; /* by rank, the numbers to use in errors; NULL: the ranks themselves */
    char *gone;       /* by rank, 1: left out; a 1 never becomes 0 */
    double deadline;
} hpc_survivors;

/* Votes until all ranks that are not gone have voted for the same set. HPC_ERR_TIMEOUT names the ranks that did not
 * vote; the call may be repeated. HPC_ERR_TRANSPORT: other ranks count this one as gone. Only one thread may vote or
 * give. */
int hpc_control_vote(hpc_control *control, hpc_survivors *survivors);

/* Call it after a vote. Gives nbytes to every rank that is not gone and gets their bytes. HPC_OK: the caller frees
 * replies, whose data is NULL for a gone rank. HPC_IN_PROGRESS: a rank has departed meanwhile, or has not decided;
 * vote again. */
int hpc_control_give(hpc_control *control, hpc_survivors *survivors, const void *data, size_t nbytes,
                     hpc_reply *replies);

/* gave returns whether rank gave in the last completed give, unless this rank has made a new context from it (that
 * rank may have made one). settle notes that this rank has made its new context. */
int hpc_control_gave(const hpc_control *control, int rank);
void hpc_control_settle(hpc_control *control);

/* While the heir connects, a rank that departs here or votes again also departs in heir, so that waits in heir end.
 * ranks has the ranks' numbers here, in heir's order. NULL for heir stops this; heir and ranks must live until then. */
void hpc_control_watch(hpc_control *control, hpc_group *heir, const int *ranks);
/* Sets the host name of a rank for answers to questions. Once for each rank, before hpc_control_show. */
void hpc_control_show_host(hpc_control *control, int rank, const char *host);
/* Shows in answers, from now on, this title of the context. */
void hpc_control_entitle(hpc_control *control, const char *title);

/* Shows in answers, from now on, the transports that this rank uses. Once, after connect. */
void hpc_control_show(hpc_control *control, const char *transports);

/* Words: each rank shows every other rank HPC_WORDS numbers, which begin at 0. tell replaces one and never waits:
 * HPC_ERR_TIMEOUT if nothing can be sent now (the first time there may be no link yet), HPC_ERR_PEER if the peer is
 * gone. told returns rank's latest number. Any thread may call both. */
int hpc_control_tell(hpc_control *control, int rank, int place, uint32_t value);
uint32_t hpc_control_told(const hpc_control *control, int rank, int place);

/* Marks a peer as failed because a transport found it so. Other ranks are not told. Any thread may call it. */
void hpc_control_lose(hpc_control *control, int rank, const char *why);

/* After hpc_group_revoke: tells the peers to count a rank that has left, or leaves, as failed. */
void hpc_control_revoke(hpc_control *control);

/* Ends the service of this channel, and tells the peers why: NULL for leaving, otherwise the failure. It waits for the
 * channel's own service alone, and must not be called on the service thread. free comes after stop. In a forked child
 * stop does nothing, and free only frees. */
void hpc_control_stop(hpc_control *control, const char *why);
void hpc_control_free(hpc_control *control);

#endif
