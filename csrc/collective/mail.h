/* Letters between ranks, for collectives of arrays.
 *
 * Each rank has a window with two slots for each peer. A letter is a head and up to `room` bytes. Its head has the
 * number and the description of the sender's call, so a receiver finds a rank that makes another call.
 *
 * Who writes what. A slot and the word CAME of a peer are written by that peer alone, and read by the owner. The peer
 * writes the letter, then raises CAME (release); the owner reads CAME (acquire), then the letter. The owner takes
 * letters in their order, and tells the peer how many it has taken: in the head of its next letter, or by the word
 * TAKEN in the peer's window. The peer writes a slot again only when its last letter was taken.
 *
 * A rank that has waited for a while leaves a note with its peers: the description of its call. So two ranks that wait
 * for each other in different calls find out. A rank that has found a mismatch tells all others by a complaint. */
#ifndef HPC_MAIL_H
#define HPC_MAIL_H

#include "context/context.h"

enum { HPC_MAIL_SLOTS = 2, HPC_COMPLAINT_BYTES = 440 };

/* The description of a rank's call. */
typedef struct hpc_described {
    uint64_t number; /* of the call in this context, from 1 on */
    uint64_t count;  /* elements of a block; HPC_UNEVEN: the blocks differ */
    int32_t root;    /* -1: the call has none */
    uint8_t what, type, op, unused;
} hpc_described;

#define HPC_UNEVEN UINT64_MAX

/* The head of a letter, as long as a cache line. */
typedef struct hpc_letter_head {
    hpc_described call;
    uint64_t taken;  /* how many letters of the receiver the sender has taken */
    uint64_t stream; /* bytes of the whole stream */
    uint32_t nbytes; /* of this letter */
    uint32_t part;   /* hpc_stream_part */
    uint64_t unused[2];
} hpc_letter_head;

typedef enum hpc_stream_part { HPC_FIRST, HPC_SECOND, HPC_PARTS } hpc_stream_part;

typedef struct hpc_mail_peer {
    uint64_t sent, got;  /* letters to and from the peer */
    uint64_t told;       /* how many of got the peer knows */
    uint64_t taken;      /* how many of sent the peer has taken, as far as this rank knows */
    hpc_described noted; /* the last call of which this rank has left a note */
    size_t staged_bytes; /* of a slot in staged */
    char *staged;        /* by slot: a letter that a put may still read */
} hpc_mail_peer;

typedef struct hpc_mail {
    hpc_context *context;
    hpc_window *window;
    hpc_lane *lane;
    size_t room;                           /* bytes of a letter, without its head */
    hpc_mail_peer *peers;                  /* by rank */
    uint64_t calls;                        /* number of calls so far */
    char broken[HPC_COMPLAINT_BYTES];      /* why no further calls are possible; "": they are */
    struct hpc_request *first, **last;     /* started calls that are not over, in their order */
    void (*forget)(struct hpc_mail *mail); /* ends them, before the mail is freed */
} hpc_mail;

/* Collective: makes the context's mail. */
int hpc_mail_open(hpc_context *context, const char *op, double deadline, hpc_mail **mail);
void hpc_mail_free(void *mail);

/* Returns whether a letter may be sent to the peer now. */
int hpc_mail_has_room(hpc_mail *mail, int peer);
/* Sends a letter. Its bytes have been read when this
 * returns. If the peer has departed, it sends nothing, and the wait for the letters of the call finds that. */
int hpc_mail_send(hpc_mail *mail, int peer, hpc_letter_head *head, const void *bytes);
/* Returns the head of the next letter of the peer, with its bytes behind it; NULL if none has come. It stays until it
 * is taken. */
const hpc_letter_head *hpc_mail_next(const hpc_mail *mail, int peer);
static inline const void *hpc_letter_bytes(const hpc_letter_head *head) {
    return head + 1;
}
int hpc_mail_take(hpc_mail *mail, int peer);

/* Leaves a note of the call with the peer. */
int hpc_mail_note(hpc_mail *mail, int peer, const hpc_described *call);
/* Returns the note of the peer if it is of a call with this number and differs from this call, else NULL. */
const hpc_described *hpc_mail_noted(const hpc_mail *mail, int peer, const hpc_described *call);

/* Tells all other ranks why this rank makes no further calls from the one with this number on. */
void hpc_mail_complain(hpc_mail *mail, uint64_t number);
/* Returns a complaint of another rank about the call with this number or an earlier one, or NULL. */
const char *hpc_mail_complaint(const hpc_mail *mail, uint64_t number);

#endif
