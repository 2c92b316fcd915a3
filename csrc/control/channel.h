/* Inside the control channel: its links, and what its parts do for each other. Each of these files calls only files
 * that come before it in this list:
 *
 *   link.c        moves frames
 *   mesh.c        connects to the other ranks
 *   collective.c  makes collectives
 *   jobs.c        shows this rank's state, and asks others for theirs
 *   inquiry.c     follows waits to the ranks at their end
 *   survivors.c   goes on without the ranks that departed
 *   service.c     is the thread that answers and listens
 *   open.c        opens and closes
 *
 * Threads: the service thread; the connecting thread; threads that make collectives or call lanes; the stopping thread.
 *
 * link->fd is -1 until the link is made, by the connecting thread for lower ranks and by the service thread for higher
 * ones. That thread fills in kind, path, endpoint and heard first; its store of fd publishes them, and the peer's state
 * (HPC_PEER_ALIVE) comes after that. Only stop closes fd, under send_lock, after it has ended the service thread.
 *
 * Locks: a link's send_lock lets one message at a time go out, and guards cut, told and told_left. lock guards inboxes,
 * ballots, remembered endpoints, the TCP listener's descriptor, and the heir. collective_lock lets one collective at a
 * time run, and guards sequence and broken. round_lock lets one round at a time run, and guards round, ballot and cast.
 * The service thread alone reads sockets and answers: incoming, arriving, head, got, word, heard, quiet, ended, asks,
 * looked, and the strangers. It writes news and news_at under lock; threads that put an inquiry read them under lock.
 * key, address and allowed are written by connect before the TCP listener is watched and before the first call;
 * epoll_ctl comes before the epoll_wait that tells of a caller. Until then TCP callers wait in the backlog.
 *
 * collective_lock and round_lock come before the others, which are never held together. The service thread never waits
 * for a lock that is held during a wait: to tell something, it tries a send_lock and goes on without it. */
#ifndef HPC_CHANNEL_H
#define HPC_CHANNEL_H

#include <pthread.h>
#include <unistd.h>

#include "control/control.h"

enum {
    HPC_PIECE_BYTES = 32 << 10, /* of payload; a longer message comes in several frames */
    HPC_STRANGERS = 64
};

typedef enum hpc_mesh_type {
    HPC_MESH_HELLO = 1, /* Unix links only: the secret, and the bell's descriptor */
    HPC_MESH_GATHER,
    HPC_MESH_BYE,    /* an hpc_last_word */
    HPC_MESH_ABORT,  /* an hpc_last_word */
    HPC_MESH_BEAT,   /* TCP links only */
    HPC_MESH_BALLOT, /* of survivors.c; one frame */
    HPC_MESH_DROP,   /* TCP links only: the sender counts the receiver as failed */
    HPC_MESH_STATUS, /* of strangers on Unix sockets, who may ask at any time: see jobs.c */
    HPC_MESH_ABOUT,  /* the same, of another rank than the one that is asked */
    HPC_MESH_LOOK,   /* asks a peer for its NEWS */
    HPC_MESH_NEWS,   /* an hpc_shown_rank; one frame */
    HPC_MESH_REVOKE, /* a rank that has left or leaves counts as failed */
    HPC_MESH_WORD    /* sequence is a word for hpc_control_told: its place, then 32 bits of value */
} hpc_mesh_type;

typedef struct hpc_mesh_frame {
    uint32_t magic, type;
    int32_t rank;
    uint32_t nbytes; /* of this frame's payload */
    uint64_t sequence, total, offset;
    char op[HPC_OP_BYTES];
    char call[HPC_CALLING_BYTES + 4]; /* of the thread that sends it (hpc_calling_enter); "": none */
} hpc_mesh_frame;
_Static_assert(sizeof(hpc_mesh_frame) == 104, "a frame has no holes");

typedef struct hpc_message {
    struct hpc_message *next;
    uint64_t sequence;
    size_t total, got, room; /* room grows with the bytes that have come */
    int fd;
    char op[HPC_OP_BYTES], call[HPC_CALLING_BYTES + 4];
    char *data;
} hpc_message;

/* A frame that the service thread sends. */
enum { HPC_TOLD_BYTES = sizeof(hpc_mesh_frame) + sizeof(hpc_shown_rank) };

typedef struct hpc_link {
    _Atomic int fd;
    int kind; /* hpc_link_kind */
    int pidfd;
    hpc_memory *bell;
    hpc_message *inbox;          /* whole messages, in order of sequence */
    hpc_message *ballots;        /* the same of rounds */
    hpc_control_address address; /* of the peer */
    unsigned char allowed, same_host;
    hpc_endpoint endpoint; /* that the peer answers at; family 0: not known */
    char path[HPC_ENDPOINT_TEXT];

    pthread_mutex_t send_lock;
    int cut;          /* the stream stopped inside a frame: nothing more may be sent */
    size_t told_left; /* bytes of told that are still to be sent */
    char told[HPC_TOLD_BYTES];
    _Atomic int spoke;   /* something was sent since the last tick */
    _Atomic int failure; /* errno of a send: reported once by the kernel, so kept for the reader */

    _Atomic int dropped;               /* the peer counts this rank as failed */
    _Atomic uint32_t words[HPC_WORDS]; /* hpc_control_told's */

    hpc_message *incoming; /* the message that is not whole yet */
    hpc_message *arriving; /* the ballot, or the news, that is not */
    hpc_mesh_frame head;   /* the frame that is not whole yet, of a stream */
    size_t got;            /* bytes of it, header and payload */
    hpc_last_word word;    /* its last one, as far as it has come */
    char text[HPC_REASON_BYTES];
    double heard;
    int quiet; /* ticks without a word of ours */
    int ended; /* nothing more will be read */

    char host[64];
    int asks;           /* it wants this rank's news, and has not got them all */
    double looked;      /* when it was asked for its own */
    _Atomic int wanted; /* an inquiry waits for its news: it is to be asked */
    hpc_message *news;  /* the last that came; NULL: none */
    double news_at;
} hpc_link;

typedef struct hpc_stranger {
    int fd, kind; /* accepted, but not greeted yet; -1 for a free place */
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
    _Atomic int stopping, tcp_links;
    hpc_stranger strangers[HPC_STRANGERS];
    int greeting;                   /* places that are taken */
    int full;                       /* no caller is accepted until a place is free */
    int told;                       /* of the first stranger that was refused */
    char refusal[HPC_REASON_BYTES]; /* the last refused caller, and why; "": none */
    hpc_endpoint good;              /* that led to a peer on another host: its network works */
    double next_tick;               /* 0: none is due */
    _Atomic int inquiries;          /* some link is wanted */
    int unasked;                    /* some rank could not be asked yet */
    hpc_accept_lane *accept_lane;
    void *accept_arg;
    pthread_t thread;
    _Atomic int running;
    pthread_mutex_t lock;
    pthread_mutex_t collective_lock;
    uint64_t sequence;
    int broken; /* the status of the collective that failed */
    pthread_mutex_t round_lock;
    uint64_t round;
    hpc_message *ballot; /* this rank's own, until the round is over */
    char *cast;          /* by rank: it was sent there */
    _Atomic char *gave;  /* by rank: hpc_control_gave's */
    hpc_group *heir;     /* a group of survivors that connects; NULL: none does */
    const int *heir_ranks;
    uint64_t heir_round;
    hpc_link *links;
    char transports[64]; /* shown to askers, as the links' host, once the group's watch says connected */
};

static inline void hpc_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* ---- link.c ---- */

/* Sends the whole message, waiting for room until the deadline; HPC_ERR_PEER if the peer is gone (its state says so
 * soon). No error is recorded. pass_fd: -1 for none; left out over TCP. */
int hpc_link_send(hpc_control *c, int rank, uint32_t type, uint64_t sequence, const char *op, const void *data,
                  size_t nbytes, int pass_fd, double deadline);

/* Sends one frame with nbytes, at most HPC_TOLD_BYTES with its head, if it can go at once; a begun frame is finished
 * before the next one. HPC_ERR_TIMEOUT if the socket has no room, or another thread is sending; HPC_ERR_PEER. */
int hpc_link_tell(hpc_control *c, int rank, hpc_mesh_type type, const void *data, size_t nbytes);
/* The same for a WORD. */
int hpc_link_tell_word(hpc_control *c, int rank, uint64_t word);

/* Whether the kernel here says that the process of a rank is stopped. */
int hpc_link_is_stopped(const hpc_control *c, int rank);

/* Tells the peer, if it can be told at once, that it counts as failed. */
void hpc_link_drop(hpc_control *c, int rank);

/* Reads about most bytes of the link. NULL to go on, or why the link has ended (valid until the next call).
 */
const char *hpc_link_read(hpc_control *c, int rank, size_t most);

/* The first packet of a Unix caller. HPC_OK for a HELLO, with the rank, the secret and the bell's descriptor (the
 * caller's); HPC_ERR_INVALID for a question, with the name it asks about in secret and rank -1 (HPC_MESH_STATUS), or
 * the rank it asks about (HPC_MESH_ABOUT); HPC_IN_PROGRESS when nothing came yet; HPC_ERR_AUTH for anything else. */
int hpc_link_read_hello(int fd, int size, int *rank, unsigned char secret[HPC_COOKIE_BYTES], int *bell);

/* Sends one frame, the answer to a stranger that asked for the status, if it can go at once. */
void hpc_link_answer(int fd, int rank, const void *answer, size_t nbytes);
/* And the stranger's side: one question, of the rank that is asked itself or of another one, and its answer. 0, or
 * HPC_IN_PROGRESS if none has come yet, or HPC_ERR_AUTH for anything else. */
int hpc_link_ask(int fd, const unsigned char name[HPC_COOKIE_BYTES]);
int hpc_link_ask_about(int fd, int rank);
int hpc_link_read_answer(int fd, void *answer, size_t nbytes);

/* Makes the link to rank known; fd is its own now. */
void hpc_link_publish(hpc_control *c, int rank, int fd, int kind);
void hpc_link_alive(hpc_control *c, int rank);

void hpc_message_free(hpc_message *m);

/* ---- service.c ---- */

int hpc_service_start(hpc_control *c); /* 0, or an errno */

/* ---- survivors.c ---- */

/* Tells the heir which ranks have departed or vote again; called by the thread that recorded it. */
void hpc_survivors_look(hpc_control *c);

/* ---- jobs.c ---- */

typedef struct hpc_job_answer {
    uint32_t version;  /* of hpcomm, which fixes the rest */
    int32_t asked;     /* the rank whose listener has the name in question; -1: none of this job */
    hpc_shown_rank of; /* the rank that answers, or that it was asked about */
} hpc_job_answer;

/* The service thread asks about rank, or (-1) this one; name is looked up then. */
void hpc_jobs_answer(hpc_control *c, int fd, int rank, const unsigned char name[HPC_COOKIE_BYTES]);

/* The service thread sends rank the NEWS that it has asked for. As hpc_link_tell. */
int hpc_jobs_tell(hpc_control *c, int rank);

/* Makes an answer harmless; HPC_ERR_AUTH if it is of another version. */
int hpc_jobs_check(hpc_job_answer *answer);

/* The same for a peer's NEWS. */
int hpc_jobs_check_rank(hpc_shown_rank *shown);

/* Write into shown this rank's own state, and its knowledge of a rank that is gone. Any thread may call them. */
void hpc_jobs_show_self(const hpc_control *c, hpc_shown_rank *shown);
void hpc_jobs_show_gone(const hpc_control *c, int rank, hpc_shown_rank *shown);

/* ---- inquiry.c ---- */

/* Asks the ranks whose links are wanted; whether some could not be asked yet. By the service thread. */
int hpc_inquiry_look(hpc_control *c);

/* hpc_group's follow; arg is the control. */
hpc_follow hpc_inquiry_follow;

/* ---- mesh.c ---- */

/* Adds a descriptor to the set that the service thread waits in; 0, or -1 with errno. kind and index tell it what kind
 * of descriptor has an event, and which one. */
enum { HPC_WATCH_POKE, HPC_WATCH_UNIX, HPC_WATCH_TCP, HPC_WATCH_STRANGER, HPC_WATCH_LINK, HPC_WATCH_PROCESS };
int hpc_mesh_watch(const hpc_control *c, int fd, int kind, int index);

/* Wakes the service thread to look at changes. */
void hpc_mesh_poke(hpc_control *c);

/* The peer answers at this endpoint. */
void hpc_mesh_remember(hpc_control *c, hpc_link *l, const hpc_endpoint *endpoint);

/* The abstract name of a Unix listener: no file, gone with its last descriptor. */
struct sockaddr_un;
unsigned hpc_mesh_name(const unsigned char *name, struct sockaddr_un *address);

#endif
