/* The inside of the control channel: its links, and the calls between its files. Each file calls only files before
 * it in this list:
 *
 *   tree.c        arranges the ranks in a tree (tree.h)
 *   batch.c       reads and writes the messages of collectives (batch.h)
 *   ends.c        decides whether a rank has failed or left
 *   link.c        moves frames
 *   roll.c        learns which ranks have come to a collective
 *   door.c        decides which of two ranks calls, and calls at a port that several contexts share (door.h)
 *   mesh.c        calls other ranks
 *   spread.c      tells the neighbours what every rank must learn
 *   callers.c     makes a link at its first use
 *   edges.c       keeps the ranks that are left connected
 *   handles.c     gives peers the handles of windows and lanes
 *   relay.c       joins the batches of the children, and passes batches on
 *   collective.c  runs collectives
 *   join.c        connects at the start
 *   jobs.c        shows this rank's state, and asks other ranks for theirs
 *   inquiry.c     follows a chain of waits to the ranks at its end
 *   survivors.c   lets the ranks that are left agree after others departed
 *   service.c     answers and listens, on the service thread
 *   open.c        opens and closes
 *
 * Threads: the service thread, which all channels of this process share; the connecting thread; threads that run
 * collectives or connect lanes; threads that call peers by TCP and then end (callers.c); the stopping thread.
 *
 * link->fd is -1 until the link is made: at the start by the connecting thread if this rank calls, otherwise by the
 * service thread. That thread first fills in path, endpoint, bell and heard; its store of fd publishes them. At the
 * start, a peer's state becomes HPC_PEER_ALIVE after that. Only stop closes fd, under send_lock, after the service
 * thread has let the channel go.
 *
 * Locks. A link's send_lock is held to send one message, and guards cut, told and told_left. lock guards inboxes,
 * ballots, answers, remembered endpoints, the TCP listener's descriptor, the heir, and the parts of the roll that
 * roll.c names. collective_lock is held for one collective, and guards sequence and broken. round_lock is held for one
 * round, and guards round, ballot and cast. Only the service thread reads sockets and answers, so it alone uses
 * incoming, arriving, here, head, got, word, heard, quiet, ended, asks, looked, unsent, next_told, the strangers, and
 * the members below `calling` and `queue`. It writes news and news_at under lock; threads with an inquiry read them
 * under lock. connect writes key, address and allowed before the TCP listener is watched and before the first call;
 * epoll_ctl comes before the epoll_wait that reports a caller. Until then TCP callers wait in the backlog. It also
 * makes the tree, which no thread changes any more; the store of roll.open publishes it to the service thread. A thread
 * whose collective has passed its deadline makes a relay, and its store of relay hands it to the service thread.
 *
 * collective_lock and round_lock are taken before the others; the others are never held together. The service thread
 * never waits for a lock that another thread holds during a wait: it tries a send_lock, and goes on without it. */
#ifndef HPC_CHANNEL_H
#define HPC_CHANNEL_H

#include <pthread.h>
#include <unistd.h>

#include "base/service.h"
#include "control/batch.h"
#include "control/control.h"
#include "control/tree.h"
#include "base/wait.h"

enum {
    HPC_FRAME_BYTES = 32 << 10, /* most payload bytes of a frame; a longer message is several frames */
    HPC_DIRECT = 3,             /* up to so many ranks are all neighbours, and send each other their data directly */
    HPC_STRANGERS = 64
};

typedef enum hpc_mesh_type {
    HPC_MESH_HELLO = 1, /* Unix links only: carries the secret, and the bell's descriptor */
    HPC_MESH_GATHER,
    HPC_MESH_BYE,    /* an hpc_last_word; sequence: up to this collective the sender owes nothing */
    HPC_MESH_ABORT,  /* an hpc_last_word */
    HPC_MESH_BEAT,   /* TCP links only */
    HPC_MESH_BALLOT, /* survivors.c; always one frame */
    HPC_MESH_DROP,   /* TCP links only: the sender counts the receiver as failed */
    HPC_MESH_STATUS, /* a question of a stranger on a Unix socket, which may ask at any time (jobs.c) */
    HPC_MESH_ABOUT,  /* the same question about another rank than the one that gets it */
    HPC_MESH_LOOK,   /* asks a peer for its NEWS */
    HPC_MESH_NEWS,   /* an hpc_shown_rank; one frame */
    HPC_MESH_REVOKE, /* a rank that has left, or leaves, counts as failed */
    HPC_MESH_WORD,   /* sequence has a word for hpc_control_told: its place, and 32 bits of value */
    HPC_MESH_WANT,   /* asks for the receiver's handle of the object whose number is in sequence (handles.c) */
    HPC_MESH_GIVE,   /* an hpc_given; one frame, with the handle's descriptor */
    HPC_MESH_PUT,    /* a put into the window whose number is in sequence: an hpc_put_head, and the data (handles.c) */
    HPC_MESH_BATCH,  /* batch.h; between neighbours in the tree */
    HPC_MESH_HERE,   /* roll.c; between neighbours in the tree; one frame */
    HPC_MESH_OVER,   /* the sender has failed in this collective, and passes nothing on in it */
    HPC_MESH_GONE,   /* an hpc_gone (spread.c) */
    HPC_MESH_SAY,    /* an hpc_said_head, a set of ranks, and data (spread.c) */
    HPC_MESH_CALL,   /* sequence names two ranks: the second cannot call the first, which shall call it (spread.c) */
    HPC_MESH_EDGE,   /* the receiver is a neighbour of the sender from now on (edges.c) */
    HPC_MESH_DROPPED /* the rank in sequence, lower than the sender or its source, counts it as failed (edges.c) */
} hpc_mesh_type;

typedef struct hpc_mesh_frame {
    uint32_t magic, type;
    int32_t rank;
    uint32_t nbytes; /* of this frame's payload */
    uint64_t sequence, total, offset;
    char op[HPC_OP_BYTES];
    char call[HPC_CALLING_BYTES + 4]; /* call in which the sending thread is (hpc_calling_enter); "": none */
} hpc_mesh_frame;
_Static_assert(sizeof(hpc_mesh_frame) == 104, "a frame has no holes");

typedef struct hpc_message {
    struct hpc_message *next;
    uint64_t sequence;
    uint32_t type;
    size_t total, got, room; /* room: bytes of data's memory, which grows as bytes arrive */
    int fd;
    char op[HPC_OP_BYTES], call[HPC_CALLING_BYTES + 4];
    char *data;
} hpc_message;

/* Bytes of the longest frame that the service thread sends. */
enum { HPC_TOLD_BYTES = sizeof(hpc_mesh_frame) + sizeof(hpc_shown_rank) };

/* The payload of a GIVE: an object's handle, or a failure and its reason. */
typedef struct hpc_given {
    int32_t status;
    unsigned char bytes[HPC_BLOB_BYTES];
    char why[188];
} hpc_given;

typedef struct hpc_put_head {
    uint64_t offset, value;
    int64_t signal;
} hpc_put_head;

/* The payload of a GONE: a rank that has departed, and its last word. */
typedef struct hpc_gone {
    int32_t rank, state; /* state: an hpc_peer_state */
    uint64_t served;     /* as in a BYE */
    hpc_last_word word;  /* its reason, at least */
} hpc_gone;

_Static_assert(sizeof(hpc_gone) <= sizeof(hpc_shown_rank), "a GONE is a frame that never waits");

/* The head of a SAY, the message of a rank to all ranks about its object of a number. A bit for each rank follows, 1:
 * it has been told in another way. Then comes the data. */
typedef struct hpc_said_head {
    int32_t rank, unused;
    uint64_t serial; /* counts the SAYs of this rank; from 1 */
    uint64_t number, offset, value;
} hpc_said_head;

/* A frame for several neighbours. */
typedef struct hpc_saying {
    int refs;
    hpc_mesh_type type;
    uint64_t sequence;
    size_t nbytes;
    char data[];
} hpc_saying;

/* A list of frames that wait for room in a socket, or for the service thread. */
typedef struct hpc_queued {
    struct hpc_queued *next;
    hpc_saying *saying;
} hpc_queued;

typedef struct hpc_outbox {
    hpc_queued *first, **last; /* last: NULL in an outbox that was never used */
} hpc_outbox;

/* Doubts about a rank that counts as failed here: the others are not told so on this rank's word. */
typedef enum hpc_doubt {
    HPC_NO_DOUBT = 0,
    HPC_DOUBT_SILENT, /* a lower rank is silent to this rank, or turned it down: others know better (edges.c) */
    HPC_DOUBT_LOCAL,  /* only a connection of the two failed: it remains a neighbour, and others may reach it */
    HPC_CERTAIN       /* for good */
} hpc_doubt;

/* Why a link is sought (bits). */
enum { HPC_SEEKS = 1, HPC_MUST_REACH = 2 /* a peer that cannot be reached has failed */ };

/* Another try may help at once. NO_LISTENER: no process listens at any address. TURNED_DOWN: it hung up. */
typedef enum hpc_refused { HPC_NOT_REFUSED = 0, HPC_TURNED_DOWN, HPC_NO_LISTENER } hpc_refused;

/* A call of a peer by TCP, on a thread that ends. */
typedef struct hpc_outcall {
    struct hpc_outcall *next;
    struct hpc_control *control;
    int rank, fd, status;
    int refused; /* hpc_refused */
    double deadline;
    hpc_endpoint reached;
    char why[320];
} hpc_outcall;

/* An answer to a peer's WANT, or a WANT of this rank, that was not sent yet. */
typedef struct hpc_want {
    struct hpc_want *next;
    uint64_t number;
    int asks; /* it is a WANT */
    int made; /* given and fd are there */
    int fd;   /* of the handle, or -1; the answer owns it */
    hpc_given given;
} hpc_want;

typedef struct hpc_link {
    _Atomic int fd;
    _Atomic int kind; /* hpc_link_kind; before the link is made, the kind that it would have */
    int pidfd;
    hpc_memory *bell;
    hpc_message *inbox;          /* whole messages, in order of sequence */
    hpc_message *ballots;        /* the same for ballots, in order of rounds */
    hpc_control_address address; /* of the peer */
    _Atomic unsigned char allowed;
    unsigned char same_host;
    hpc_endpoint endpoint; /* at which the peer answers; family 0: unknown */
    char path[HPC_ENDPOINT_TEXT];
    char likely[HPC_ENDPOINT_TEXT]; /* the path that a link would have; written by connect */

    pthread_mutex_t send_lock;
    int cut;             /* a send stopped inside a frame: nothing more may be sent */
    size_t told_left;    /* unsent bytes at the end of told */
    char *told;          /* HPC_TOLD_BYTES, once something was told */
    _Atomic int spoke;   /* this rank sent something since the last tick */
    _Atomic int failure; /* errno of a send; the kernel reports it once, so it is kept for the reading thread */

    _Atomic uint64_t served; /* the peer's BYE: up to this collective it owes nothing */
    _Atomic uint64_t over;   /* the peer's last OVER */

    _Atomic int dropped;               /* the peer counts this rank as failed: it has sent a DROP, or cannot be asked */
    _Atomic int missed;                /* the peer has left, and some of its SAYs had not come then */
    _Atomic int proven;                /* the peer's failure was seen here, or is its own word */
    _Atomic uint32_t words[HPC_WORDS]; /* the peer's words (hpc_control_told) */

    hpc_message *incoming; /* the message that has arrived in part */
    hpc_message *arriving; /* the ballot or news that has arrived in part */
    hpc_mesh_frame head;   /* TCP: the frame that has arrived in part */
    size_t got;            /* bytes of it, header and payload */
    hpc_last_word word;    /* the peer's last word (BYE or ABORT), as far as it has arrived */
    char text[HPC_REASON_BYTES];
    double heard;
    int quiet; /* ticks since this rank last sent something */
    int ended; /* nothing more will be read */

    char host[64];
    int asks;              /* the peer has asked for this rank's news, which are not fully sent */
    hpc_want *wanted_here; /* not sent yet */
    int wants;             /* the peer has asked for a handle since the service thread answered */
    int blocked;           /* the socket had no room for an answer */
    double looked;         /* when this rank last asked for the peer's news */
    double unanswered;     /* when the oldest LOOK without an answer was sent */
    _Atomic int wanted;    /* an inquiry wants the peer's news: the service thread must ask */
    hpc_message *news;     /* the peer's last news; NULL: none */
    double news_at;
    hpc_message *here; /* the peer's last HERE, until the service thread has read it */

    _Atomic int sought;  /* bits: why a link shall be made */
    int calling;         /* a thread calls the peer by TCP */
    int call_fd;         /* a call by a Unix socket that is not answered yet; or -1 */
    double called_since; /* the first try; 0: none */
    double call_again;   /* when to try again */
    int failures;        /* calls that failed */
    int asked_back;      /* the peer was asked to call this rank */

    _Atomic int edge;           /* a neighbour: it is watched, and told the news. connect sets the first ones */
    _Atomic int doubted;        /* hpc_doubt */
    int needed;                 /* it becomes an edge once there is a link */
    int edge_asked;             /* the peer has sent an EDGE */
    int unsure;                 /* the link failed, but its process may live */
    const char *lost_why;       /* the link has ended, and no word of the peer has come yet (hpc_link_lost); NULL: no */
    double lost_at, refused_at; /* refused_at: when the peer, which must be reached, refused calls; 0: it has not */
    int parted;                 /* it was told that this rank leaves */
    int is_told;                /* it was told the news from before it became a neighbour */
    hpc_outbox queue;           /* frames for this neighbour */
    int unfinished;             /* the last one has gone in part */
    uint64_t serial;            /* of the last SAY of this rank */
    hpc_outbox said;            /* its last SAYs, for new neighbours */
    int n_said;
    int spread, gone_by;   /* the departure was passed on; the neighbour that told it, or -1 */
    int is_fresh;          /* made at its first use, and no frame has come: a peer that ends it may just be leaving */
    int has_left;          /* others have told that it left, with the word in last; its own word shall come */
    int drops, drops_told; /* it has dropped this rank, or one that is linked with this one; the neighbours know */
    int end_state;         /* the state to pass on, if the rank was doubted before it departed; 0: the group's */
    hpc_last_word *last;   /* the last word of a departed rank; NULL: only the reason in the group is known */
    double left_at;        /* when it was found that the rank has left; 0: it has not */
} hpc_link;

/* A neighbour of this rank in the tree. */
typedef struct hpc_roll_peer {
    int rank;
    uint64_t *knows; /* the sets that it has sent or was sent */
    double due;      /* when it may be told again */
} hpc_roll_peer;

/* Which ranks have come to the newest collective that this rank knows (roll.c). A set has a bit for each rank, at its
 * place in the tree's order. The two sets of a HERE follow each other. */
typedef struct hpc_roll {
    _Atomic int open;
    _Atomic int asked;    /* some rank has waited for long in it: the ranks tell each other */
    int n_words, n_peers; /* n_words: of one set */
    uint64_t sequence;    /* of the collective */
    uint64_t entered;     /* the newest collective that this rank has entered */
    uint64_t joined;      /* the newest one in which this rank's whole subtree has come here */
    uint64_t left;        /* the newest one that this rank has completed */
    uint64_t *here;       /* ranks that have come, as far as known */
    uint64_t *awake;      /* ranks that have told or asked */
    uint64_t *copy;       /* of both */
    uint64_t told;        /* the collective that the peers' members are about */
    hpc_roll_peer peers[HPC_TREE_CHILDREN + 1];
} hpc_roll;

/* A rank's part in one collective: it joins the batches of its children and its own data, sends the batch up, and
 * passes the batch of all ranks down. */
typedef enum hpc_relay_stage { HPC_RELAY_JOIN, HPC_RELAY_UP, HPC_RELAY_AWAIT, HPC_RELAY_DOWN } hpc_relay_stage;

typedef struct hpc_relay {
    uint64_t sequence;
    hpc_relay_stage stage;
    int parent; /* -1: none */
    int n_children, children[HPC_TREE_CHILDREN];
    hpc_said said;
    hpc_record own;
    char *bytes; /* UP, DOWN: the batch to send */
    size_t nbytes;
    int next;    /* DOWN: the index of the child to send it to */
    size_t sent; /* the bytes that this child, or the parent, was sent by the service thread */
} hpc_relay;

typedef struct hpc_stranger {
    int fd, kind; /* an accepted caller that is not greeted yet; fd -1: a free place */
    double since;
    hpc_greeting greeting;
} hpc_stranger;

struct hpc_control {
    hpc_group *group;
    hpc_memory *bell;
    hpc_control_address self;
    double silence;
    void *secret;
    size_t secret_bytes;
    unsigned char key[HPC_DIGEST_BYTES];
    int listen_fd, tcp_fd, epoll_fd, poke_fd;
    int *
        given; /* connections that have come to this rank's door, the oldest first; lock guards this and the next two */
    int n_given, room_given;
    int deaf;         /* no more are taken */
    _Atomic int open; /* the service thread may greet them */
    _Atomic int stopping, tcp_links;
    hpc_stranger strangers[HPC_STRANGERS];
    int greeting;                   /* number of strangers' places in use */
    int full;                       /* all places are in use: callers are not accepted */
    int told;                       /* the first refused stranger was reported */
    _Atomic int refused;            /* strangers so far */
    char refusal[HPC_REASON_BYTES]; /* the last refused caller, and the reason; "": none */
    double joins_since;             /* when this rank began to connect to its neighbours */
    hpc_endpoint good;              /* an endpoint that led to a peer on another host, so its network works */
    double next_tick;               /* 0: none is due */
    _Atomic int inquiries;          /* some link is wanted */
    int unasked;                    /* some rank's socket had no room for a question */
    int unsent;                     /* or for a batch */
    double next_told;               /* when hpc_roll_tell is due */
    hpc_accept_lane *accept_lane;
    void *accept_arg;
    const hpc_giver *giver;
    void *giver_arg;
    /* hpc_handles_take and hpc_spread_take: link.c calls them, and comes before their files */
    const char *(*on_handle)(struct hpc_control *c, int rank, hpc_message *m);
    const char *(*on_spread)(struct hpc_control *c, int rank, hpc_message *m);
    void (*on_unreachable)(struct hpc_control *c, int rank, int status, const char *why); /* hpc_handles_fail */
    int *edges;           /* the neighbours, in the order in which they became neighbours; room for all ranks */
    _Atomic int n_edges;  /* connect adds the first ones, and later the service thread */
    _Atomic int joined;   /* connect has ended: all ranks are there */
    _Atomic int seeking;  /* some link is sought that was not before */
    double next_call;     /* when a call is due again */
    int n_callers;        /* threads that call; lock guards it, and called */
    hpc_outcall *called;  /* calls that have ended */
    pthread_cond_t ended; /* a thread that calls has ended */
    hpc_outbox to_say;    /* frames for all neighbours; lock guards it, and said */
    uint64_t said;        /* the serial of the last SAY of this rank */
    hpc_message *gone;    /* GONEs that were read and not handled yet, newest first */
    int revoke_spread, revoked_by; /* the revoke was passed on; by whom it came, or -1 */
    int departed;                  /* group->departures when they were last passed on */
    int edges_asked, arranged;     /* some edge_asked; group->departures when edges.c last looked */
    double next_edges;             /* when edges.c is due */
    double next_lost;              /* when hpc_link_lost is due */
    int dropped_by;                /* ranks that have sent a DROP */
    _Atomic int answering;         /* some link may have answers that can be sent now */
    hpc_client client;             /* of the service thread */
    _Atomic int running;
    pthread_mutex_t lock;
    hpc_rank_tree tree;
    hpc_roll roll;
    pthread_mutex_t poking; /* guards poke_fd, which any thread may write to and stop closes */
    pthread_mutex_t collective_lock;
    uint64_t sequence;
    int broken;               /* status of the collective that failed; HPC_OK: none */
    _Atomic uint64_t served;  /* up to this collective this rank owes nothing to others */
    hpc_relay *_Atomic relay; /* of the collective that this rank gave up at its deadline; NULL: none */
    pthread_mutex_t round_lock;
    uint64_t round;
    hpc_message *ballot; /* this rank's ballot, until its round is over */
    char *cast;          /* by rank: the ballot was sent to it */
    _Atomic char *gave;  /* by rank: hpc_control_gave's */
    hpc_group *heir;     /* the group of survivors that is connecting; NULL: none */
    const int *heir_ranks;
    uint64_t heir_round;
    hpc_link *links;
    _Atomic uint64_t title[HPC_TITLE_BYTES / sizeof(uint64_t)]; /* shown in answers; a change may be seen in parts */
    char transports[64]; /* shown in answers, like the links' host, once the group's watch is connected */
};

static inline void hpc_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* ---- link.c ---- */

/* Sends a whole message; waits for room until the deadline. Returns HPC_ERR_PEER if the peer is gone, which its
 * state will show soon. Records no error. pass_fd is a descriptor to send along, or -1; over TCP it is not sent. */
int hpc_link_send(hpc_control *c, int rank, uint32_t type, uint64_t sequence, const char *op, const void *data,
                  size_t nbytes, int pass_fd, double deadline);

/* Sends one frame with nbytes of payload, if the socket takes it at once. Head and payload must not exceed
 * HPC_TOLD_BYTES. A frame that goes out only in part is finished before the next one. Returns HPC_ERR_TIMEOUT if the
 * socket has no room or another thread is sending, HPC_ERR_PEER if the peer is gone. */
int hpc_link_tell(hpc_control *c, int rank, hpc_mesh_type type, const void *data, size_t nbytes);
/* Does the same for a frame without payload: a WORD, or a WANT. */
int hpc_link_tell_number(hpc_control *c, int rank, hpc_mesh_type type, uint64_t number);
/* Does the same for a GIVE; over TCP the descriptor is not sent. */
int hpc_link_give(hpc_control *c, int rank, uint64_t number, const hpc_given *given, int fd);
/* Does the same for a frame of a collective: nbytes at offset, of a message of total bytes. HPC_IN_PROGRESS: the frame
 * will go out before the next one, but not all of it has. */
int hpc_link_tell_part(hpc_control *c, int rank, hpc_mesh_type type, uint64_t sequence, const void *data, size_t nbytes,
                       size_t offset, size_t total);
/* Sends what is left of the last frame. Returns HPC_OK if nothing is. */
int hpc_link_finish(hpc_control *c, int rank);

/* Returns whether this host's kernel reports the rank's process as stopped. */
int hpc_link_is_stopped(const hpc_control *c, int rank);

/* Sends the peer a DROP (it counts as failed), if the socket takes it at once. */
void hpc_link_drop(hpc_control *c, int rank);

/* Reads about most bytes of the link. Returns NULL, or why the link has ended (valid until the next call). */
const char *hpc_link_read(hpc_control *c, int rank, size_t most);

/* Reads the first packet of a caller on the Unix socket. Returns HPC_OK for a HELLO, with its rank, its secret, and
 * the bell's descriptor, which the calling code must close. Returns HPC_ERR_INVALID for a question: HPC_MESH_STATUS
 * gives rank -1 and the name asked about in secret, HPC_MESH_ABOUT gives the rank asked about. Returns
 * HPC_IN_PROGRESS if nothing came yet, HPC_ERR_AUTH for anything else. */
int hpc_link_read_hello(int fd, int size, int *rank, unsigned char secret[HPC_COOKIE_BYTES], int *bell);

/* Answers a stranger's question with one frame, if the socket takes it at once. */
void hpc_link_answer(int fd, int rank, const void *answer, size_t nbytes);
/* The stranger's side: the first two ask the called rank about itself, or about another rank. read_answer reads the
 * answer: 0, HPC_IN_PROGRESS if none has come yet, or HPC_ERR_AUTH for anything else. */
int hpc_link_ask(int fd, const unsigned char name[HPC_COOKIE_BYTES]);
int hpc_link_ask_about(int fd, int rank);
int hpc_link_read_answer(int fd, void *answer, size_t nbytes);

/* Makes rank a neighbour. */
static inline void hpc_link_add_edge(hpc_control *c, int rank) {
    const int n = atomic_load_explicit(&c->n_edges, memory_order_relaxed);
    atomic_store(&c->links[rank].edge, 1);
    c->edges[n] = rank;
    atomic_store_explicit(&c->n_edges, n + 1, memory_order_release);
}

/* Returns whether rank has departed, and not only to this rank. */
static inline int hpc_link_is_gone(const hpc_control *c, int rank) {
    return hpc_group_has_departed(c->group, rank) && atomic_load(&c->links[rank].doubted) != HPC_DOUBT_LOCAL;
}

/* The rank has left, with the word in last. Called by the service thread. */
void hpc_link_leaves(hpc_control *c, int rank);

/* The rank has departed to this state for sure, which ends doubts: the others are told. Called by the service thread.
 */
void hpc_link_settle(hpc_control *c, int rank, int state);

/* Ends the link: the peer has failed, unless its last word gave another reason. If the two are no neighbours, the word
 * may still come by others: the peer counts as failed after a while only. why must stay. Called by the service
 * thread. */
void hpc_link_end(hpc_control *c, int rank, const char *why);
/* The peer, which must be reached, does not exist at its address. It died, or it left and its word has not come yet, so
 * the verdict waits. Called by the service thread. */
void hpc_link_suspect(hpc_control *c, int rank, const char *why, double now);
/* Handles links that ended a while ago. Returns when to call it again; INFINITY: after the next end. Called by the
 * service thread. */
double hpc_link_lost(hpc_control *c, double now);

/* The peer counts this rank as failed, so it counts as failed here too. Called by the service thread. */
void hpc_link_dropped(hpc_control *c, int rank);

/* Sends the first packet of a Unix link: this rank, a secret, and its bell. HPC_ERR_PEER: the peer is gone. */
int hpc_link_greet(const hpc_control *c, int fd, const unsigned char secret[HPC_COOKIE_BYTES]);
/* Turns a caller down with a DROP, because it counts as failed here. */
void hpc_link_turn_down(const hpc_control *c, int fd);
/* Reads the answer to a HELLO. HPC_OK: a HELLO, whose bell the calling code must close; HPC_ERR_AUTH: a DROP, or
 * another process; HPC_ERR_PEER: the peer has hung up; HPC_IN_PROGRESS. */
int hpc_link_read_welcome(const hpc_control *c, int fd, int rank, int *bell);

static inline int hpc_link_is_up(const hpc_link *l) {
    return atomic_load_explicit(&l->fd, memory_order_acquire) >= 0;
}

/* Returns whether this rank, or the other one, may call the other by TCP: a rank with a door calls none without. */
static inline int hpc_link_may_call(const hpc_control *c, int rank) {
    return !c->self.door || c->links[rank].address.door;
}
static inline int hpc_link_may_be_called(const hpc_control *c, int rank) {
    return c->self.door || !c->links[rank].address.door;
}

/* Publishes the link to rank, and takes fd over. */
void hpc_link_publish(hpc_control *c, int rank, int fd, int kind);
void hpc_link_alive(hpc_control *c, int rank);

void hpc_message_free(hpc_message *m);
/* Returns the message of this collective; NULL: none has come. Call it with the lock. */
const hpc_message *hpc_message_find(const hpc_message *inbox, uint64_t sequence);
/* Takes rank's message of this collective out of its inbox, and drops older ones, which an abandoned collective left
 * there. NULL: none has come. */
hpc_message *hpc_message_take(hpc_control *c, int rank, uint64_t sequence);

/* Returns whether a rank that has left still owes others a part of this collective. */
int hpc_link_owes(const hpc_control *c, int rank, uint64_t sequence);

/* The reason of a rank's failure that sends impossible bytes. */
extern const char hpc_link_garbled[];

/* ---- roll.c ---- */

/* Makes the roll once the tree is made; without memory it returns HPC_ERR_MEMORY, and records no error. */
int hpc_roll_open(hpc_control *c);
void hpc_roll_free(hpc_control *c);

/* This rank enters a collective; has the batches of all its children; has completed it. enter returns whether some
 * rank has asked in it: then poke the service thread. */
int hpc_roll_enter(hpc_control *c, uint64_t sequence);
void hpc_roll_join(hpc_control *c, uint64_t sequence);
void hpc_roll_leave(hpc_control *c, uint64_t sequence);
/* This rank has waited for long in the collective, and asks the others which ranks have come. Poke the service thread
 * afterwards. */
void hpc_roll_ask(hpc_control *c, uint64_t sequence);
/* Lists the ranks that have not come, and ranks that left and can no longer do their part in it. settled: the answers
 * have had the time to come; otherwise it lists every rank that is not known to have come. Returns how many. */
int hpc_roll_missing(hpc_control *c, uint64_t sequence, int settled, int *ranks);
/* Returns whether it is known that some rank has not come: a rank that is awake, or a child of one that is. */
int hpc_roll_lacks(hpc_control *c, uint64_t sequence);

/* Reads the last HERE of each neighbour. Returns -1, or the rank that sent garbled bytes. Called by the service
 * thread. */
int hpc_roll_hear(hpc_control *c);
/* Tells the neighbours the news that they may be told now. Returns when to call it again; INFINITY: after the next
 * event. Called by the service thread. */
double hpc_roll_tell(hpc_control *c, double now);

/* ---- relay.c ---- */

void hpc_relay_begin(hpc_control *c, hpc_relay *relay, uint64_t sequence, const char *op, const void *data,
                     size_t nbytes);
/* Lists the neighbours whose batches this rank awaits; returns how many. */
int hpc_relay_awaits(const hpc_relay *relay, int *ranks);
/* JOIN: once all children's batches have come, makes the batch of this rank's subtree. AWAIT: once the parent's batch
 * has come, takes it. Returns HPC_OK and goes on to the next stage, HPC_ERR_MEMORY, or HPC_ERR_PEER if *culprit sent
 * garbled bytes, and now counts as failed. With records, AWAIT and the JOIN of rank 0 fill in all ranks'. Records no
 * error. */
int hpc_relay_take(hpc_control *c, hpc_relay *relay, hpc_record *records, int *culprit);
/* Gives a relay to the service thread, which goes on with it as batches come. Copies the relay and its own data, and
 * takes bytes over. */
void hpc_relay_hand_over(hpc_control *c, hpc_relay *relay);
/* Goes on with a relay that was handed over. Returns 1 if a socket had no room. Called by the service thread. */
int hpc_relay_go_on(hpc_control *c);
void hpc_relay_free(hpc_relay *relay);

/* ---- service.c ---- */

int hpc_control_serve(hpc_control *c); /* 0, or an errno */

/* ---- survivors.c ---- */

/* Tells the heir which of its ranks have departed here or vote again. A thread that records either must call it. */
void hpc_survivors_look(hpc_control *c);

/* ---- callers.c ---- */

/* A link to rank has been made, by a call of either end: what waited for it goes on. */
void hpc_callers_made(hpc_control *c, int rank);
/* Makes the links that are sought, as far as it can without waiting. Returns when to call it again. Called by the
 * service thread. */
double hpc_callers_go_on(hpc_control *c, double now);
/* Reads the answer to a Unix call. Called by the service thread. */
void hpc_callers_read(hpc_control *c, int rank);
/* Returns whether a call of this peer must be turned down, because this rank's own call goes on and has precedence.
 * Otherwise this rank's own call is given up. Called by the service thread. */
int hpc_callers_yield(hpc_control *c, int rank);
/* Waits until no thread calls. Called by stop, after stopping is set. */
void hpc_callers_stop(hpc_control *c);

/* ---- spread.c: called by the service thread, except say ---- */

/* Takes a GONE, SAY or CALL of a neighbour, as hpc_control.on_spread. */
const char *hpc_spread_take(hpc_control *c, int rank, hpc_message *m);
/* Handles the messages that came, learns of departures, and sends to the neighbours what fits. Returns 1 if some socket
 * had no room. */
int hpc_spread_go_on(hpc_control *c);
/* Sends one neighbour a frame without payload, after the frames that wait for it. */
void hpc_spread_to(hpc_control *c, int rank, hpc_mesh_type type);
/* Sends a frame to all neighbours. Any thread may call it. HPC_ERR_MEMORY without memory. */
int hpc_spread_say(hpc_control *c, hpc_mesh_type type, uint64_t sequence, const void *data, size_t nbytes);
/* Sends what waits, until the deadline. Called by stop, when the service thread has let the channel go. */
void hpc_spread_end(hpc_control *c, double deadline);
void hpc_spread_free(hpc_control *c);

/* ---- edges.c: called by the service thread ---- */

/* Makes neighbours of ranks that lost theirs. Returns when to call it again. */
double hpc_edges_look(hpc_control *c, double now);

/* Links this rank, which leaves, with a rank above it if it has lost that one, and returns the rank above; -1: there is
 * none. If it has none above, with the ranks below. Called by stop, when the service thread has let the channel go,
 * before the last words. */
int hpc_edges_farewell(hpc_control *c);

/* ---- handles.c: called by the service thread ---- */

/* Takes a WANT, GIVE or PUT of a peer, as hpc_control.on_handle. Returns NULL, or the message's fault. */
const char *hpc_handles_take(hpc_control *c, int rank, hpc_message *m);
/* Sends the link's answers that are ready. Returns HPC_ERR_TIMEOUT if the socket has no room. */
int hpc_handles_answer(hpc_control *c, int rank);
/* No link to rank can be made: answers this rank's questions in its place, as hpc_control.on_unreachable. */
void hpc_handles_fail(hpc_control *c, int rank, int status, const char *why);
void hpc_handles_free(hpc_control *c, int rank); /* any thread, at the end */

/* ---- jobs.c ---- */

typedef struct hpc_job_answer {
    uint32_t version;  /* hpcomm's version, which fixes the layout of the rest */
    int32_t asked;     /* the rank whose listener has the name asked about; -1: no rank of this job */
    hpc_shown_rank of; /* the answering rank, or the rank that the question was about */
} hpc_job_answer;

/* Answers a stranger's question about rank, or with rank -1 about this rank; only then is name looked up. Called by
 * the service thread. */
void hpc_jobs_answer(hpc_control *c, int fd, int rank, const unsigned char name[HPC_COOKIE_BYTES]);

/* Sends rank the NEWS that it asked for; returns like hpc_link_tell. Called by the service thread. */
int hpc_jobs_tell(hpc_control *c, int rank);

/* This rank has sent a LOOK. Called by the service thread. */
void hpc_jobs_looked(hpc_control *c, int rank, double now);

/* Makes an answer from another process safe to use: ends texts and bounds numbers. HPC_ERR_AUTH for another version. */
int hpc_jobs_check(hpc_job_answer *answer);

/* Does the same for a peer's NEWS. */
int hpc_jobs_check_rank(hpc_shown_rank *shown);

/* Write this rank's own state into shown, and the state that this rank keeps of a departed rank. Any thread may call
 * them. */
void hpc_jobs_show_self(const hpc_control *c, hpc_shown_rank *shown);
void hpc_jobs_show_gone(const hpc_control *c, int rank, hpc_shown_rank *shown);

/* ---- inquiry.c ---- */

/* Sends a LOOK on each link that is marked as wanted; returns whether some had no room for it. Called by the service
 * thread. */
int hpc_inquiry_look(hpc_control *c);

/* Implements hpc_group's follow; arg is the control. */
hpc_follow hpc_inquiry_follow;

/* ---- mesh.c ---- */

/* Adds a descriptor to the service thread's epoll set; returns 0, or -1 with errno. The service thread gets kind and
 * index with each event: the kind of descriptor, and its link, stranger or rank. */
enum {
    HPC_WATCH_POKE,
    HPC_WATCH_UNIX,
    HPC_WATCH_TCP,
    HPC_WATCH_STRANGER,
    HPC_WATCH_LINK,
    HPC_WATCH_PROCESS,
    HPC_WATCH_CALL /* a Unix call that is not answered yet */
};
int hpc_mesh_watch(const hpc_control *c, int fd, int kind, int index);

/* Wakes the service thread, so that it sees a change. */
void hpc_mesh_poke(hpc_control *c);

/* Asks for a link to rank, if there is none (callers.c). Any thread may call it. why: HPC_SEEKS, or also
 * HPC_MUST_REACH. */
void hpc_mesh_seek(hpc_control *c, int rank, int why);

/* Watches the process of a peer of this host. A death is then seen even if a forked child keeps the socket open.
 * Returns 1 if it is dead already, and not watched. */
int hpc_mesh_watch_process(hpc_control *c, int rank);

/* Connects to the Unix socket of rank without waiting. Returns the descriptor, or -1 with errno: EAGAIN if the peer has
 * many callers, ECONNREFUSED or ENOENT if no process listens, EPERM if it belongs to another user. */
int hpc_mesh_call_unix(const hpc_control *c, int rank);
/* Calls rank by TCP until the deadline. HPC_OK: *fd and *reached. Otherwise it records an error of op, and *refused is
 * an hpc_refused. Any thread may call it. */
int hpc_mesh_call_tcp(hpc_control *c, int rank, const char *op, double deadline, int *fd, hpc_endpoint *reached,
                      int *refused);
/* Writes the endpoint at which rank would be called first into its likely. */
void hpc_mesh_guess_path(hpc_control *c, int rank);
/* Returns whether no process listens at any address of rank, and writes that into why. It waits for an address that
 * does not answer only briefly. */
int hpc_mesh_refuses(hpc_control *c, int rank, char why[HPC_REASON_BYTES]);
/* Makes a link to rank at the start: hpc_control_calls says which of two ranks calls. */
int hpc_mesh_call(hpc_control *c, int rank, double deadline);

/* Closes the TCP listener, even while the service thread uses it, and takes no more connections from a door. */
void hpc_mesh_deafen(hpc_control *c);

/* Remembers the endpoint at which a peer answers. */
void hpc_mesh_remember(hpc_control *c, hpc_link *l, const hpc_endpoint *endpoint);

/* Writes the abstract socket address of a Unix listener and returns its length. It is no file, and vanishes when its
 * last descriptor is closed. */
struct sockaddr_un;
unsigned hpc_mesh_name(const unsigned char *name, struct sockaddr_un *address);

#endif
