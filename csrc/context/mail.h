/* Letters between ranks, for collectives of arrays and for messages.
 *
 * Each rank has a window with two boxes, one for collectives and one for messages, and a box has two slots for each
 * peer. A letter is a head and up to `room` bytes. Its head has the number and the description of the sender's call, so
 * a receiver finds a rank that makes another call.
 *
 * Who writes what. A slot and the word CAME of a peer are written by that peer alone, and read by the owner. The peer
 * writes the letter, then raises CAME (release); the owner reads CAME (acquire), then the letter. The owner takes
 * letters in their order, and tells the peer how many it has taken: in the head of its next letter, or by the word
 * TAKEN in the peer's window. The peer writes a slot again only when its last letter was taken.
 *
 * A letter may lend bytes instead of carrying them (lend.c): it has their address, and the receiver reads them there by
 * the kernel, before it takes the letter.
 *
 * A rank that has waited for a while leaves a note with its peers: the description of its call. So two ranks that wait
 * for each other in different calls find out. A rank that has found a mismatch tells all others by a complaint.
 *
 * A rank makes its window and lane at its first letter, or when a peer asks for them, so no rank waits for another one.
 * Over transports that reach all peers at once all ranks make them at connect. One thread at a time may use the mail.
 */
#ifndef HPC_MAIL_H
#define HPC_MAIL_H

#include "context/context.h"

enum { HPC_MAIL_SLOTS = 2, HPC_COMPLAINT_BYTES = 440, HPC_MAIL_LEASES = 64 };

typedef enum hpc_box_kind { HPC_BOX_CALLS, HPC_BOX_MESSAGES, HPC_BOXES } hpc_box_kind;

/* The description of a rank's call. */
typedef struct hpc_described {
    uint64_t number; /* of the call in this context, from 1 on; of a message among those of its sender */
    uint64_t count;  /* elements of a block; HPC_UNEVEN: the blocks differ */
    int32_t root;    /* -1: the call has none; of a message: its tag */
    uint8_t what, type, op, unused;
} hpc_described;

#define HPC_UNEVEN UINT64_MAX

/* The head of a letter, as long as a cache line. */
typedef struct hpc_letter_head {
    hpc_described call;
    uint64_t taken;       /* how many letters of the receiver the sender has taken */
    uint64_t stream;      /* bytes of the whole stream */
    uint32_t nbytes;      /* of this letter */
    uint32_t part;        /* hpc_stream_part; of a message: hpc_message_part */
    uint64_t lent, lease; /* addresses in the sender: of bytes that it lends, and of their lease; 0: the letter carries
                             its bytes */
} hpc_letter_head;

typedef struct hpc_box_peer {
    uint64_t sent, got;  /* letters to and from the peer */
    uint64_t told;       /* how many of got the peer knows */
    uint64_t taken;      /* how many of sent the peer has taken, as far as this rank knows */
    size_t staged_bytes; /* of a slot in staged */
    char *staged;        /* by slot: a letter that a put may still read */
} hpc_box_peer;

typedef struct hpc_box {
    struct hpc_mail *mail;
    size_t room;         /* bytes of a letter, without its head */
    size_t at;           /* where its slots begin in the window */
    int came, taken;     /* its words */
    hpc_box_peer *peers; /* by rank */
    _Atomic uint64_t leases[HPC_MAIL_LEASES];
} hpc_box;

typedef struct hpc_mail {
    hpc_context *context;
    hpc_window *window;
    hpc_lane *lane;
    hpc_box boxes[HPC_BOXES];
    hpc_described *noted;                /* by rank: the last call of which this rank has left a note */
    char *near;                          /* by rank: whether a letter to the peer waits for nothing */
    char *reads;                         /* by rank: whether this rank can read the peer's memory */
    char complaint[HPC_COMPLAINT_BYTES]; /* that puts may still read */
} hpc_mail;

/* Returns the context's mail, which it makes at first. */
int hpc_mail_of(hpc_context *context, const char *op, hpc_mail **mail);
/* Does so for a peer's question about the object of this number. Returns HPC_GONE if it is no part of a mail, or the
 * context is being freed. */
int hpc_mail_asked(hpc_context *context, uint64_t number);
/* Collective, at connect: makes the mail if a transport reaches all its peers at once. */
int hpc_mail_open_eager(hpc_context *context, double deadline);
void hpc_mail_free(hpc_context *context);

/* Goes one step towards the peer, whose control thread answers. Returns HPC_OK if a letter to it waits for nothing, or
 * if it has departed; HPC_IN_PROGRESS to be called again, after a bell; or a failure. */
int hpc_mail_reach(hpc_mail *mail, int peer, const char *op);
static inline int hpc_mail_is_near(const hpc_mail *mail, int peer) {
    return mail->near[peer] || hpc_group_has_departed(&mail->context->group, peer);
}

/* Returns whether a letter may be sent to the peer now. */
int hpc_box_has_room(hpc_box *box, int peer);
/* Sends a letter. Its bytes have been read when this returns, unless they are lent. If the peer has departed, it sends
 * nothing, and the wait for the letters of the call finds that. */
int hpc_box_send(hpc_box *box, int peer, hpc_letter_head *head, const void *bytes);
/* Returns whether the peer has taken this many letters. */
int hpc_box_has_taken(hpc_box *box, int peer, uint64_t letters);
/* Returns the head of the next letter of the peer, with its bytes behind it; NULL if none has come. It stays until it
 * is taken. */
const hpc_letter_head *hpc_box_next(const hpc_box *box, int peer);
static inline const void *hpc_letter_bytes(const hpc_letter_head *head) {
    return head + 1;
}
int hpc_box_take(hpc_box *box, int peer);
/* Returns whether the peer is to be told of taken letters once it is near. */
int hpc_box_owes(const hpc_box *box, int peer);

/* Leaves a note of the call with the peer. */
int hpc_mail_note(hpc_mail *mail, int peer, const hpc_described *call);
/* Returns the note of the peer if it is of a call with this number and differs from this call, else NULL. */
const hpc_described *hpc_mail_noted(const hpc_mail *mail, int peer, const hpc_described *call);

/* Tells all ranks that are near why this rank makes no further calls from the one with this number on. */
void hpc_mail_complain(hpc_mail *mail, const char *why, uint64_t number);
/* Returns a complaint of another rank about the call with this number or an earlier one, or NULL. */
const char *hpc_mail_complaint(const hpc_mail *mail, uint64_t number);

/* ---- lent bytes ---- */

/* Returns whether this rank lends the peer so many bytes. The kernel copies slower than two cores that work together,
 * but once, and without waiting for each other. So ranks lend that share cores with each other. Ranks with a core each
 * lend arrays too long for caches, and shorter ones while other threads keep them from their cores; if the peer sends
 * as much (both_ways), these up to 4 MiB alone: for longer ones the processor time counts. */
int hpc_mail_lends(const hpc_mail *mail, int peer, const char *at, uint64_t nbytes, int both_ways);
/* Begins the lease of a call or message: while it lasts, the bytes that its letters lend stay as they are. Returns NULL
 * if there are too many leases. */
_Atomic uint64_t *hpc_box_lease(hpc_box *box, uint64_t number);
/* Ends it; NULL is allowed. A reader finds that at its next read. */
void hpc_lease_end(_Atomic uint64_t *lease);
/* Copies lent bytes of the peer's letter, from this offset on. Returns HPC_GONE if the peer has ended the lease or has
 * gone. */
int hpc_mail_read(hpc_mail *mail, int peer, const hpc_letter_head *head, uint64_t offset, void *to, size_t nbytes);

#endif
