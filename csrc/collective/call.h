/* Collectives of arrays.
 *
 * Every collective is made of at most three things on a rank. Streams of bytes go to peers and come from peers. A fold
 * combines this rank's elements with those that come in streams, chunk by chunk, in the order of ranks. A second set of
 * streams may send the fold's result on, as it grows.
 *
 *   allreduce, few bytes   each rank sends all to all; each folds all
 *   allreduce              each rank sends block r to rank r, which folds it, and sends the result to all
 *   reduce                 the same, but results go to the root alone
 *   reduce_scatter         each rank sends block r to rank r, which folds it
 *   the others             streams alone
 *
 * The owner of a block folds it in the order of ranks, so the bits do not depend on its owner. streams.c has the
 * calls that go by hosts.
 *
 * A stream of many bytes lends them, if its receiver can read this rank's memory (ways.c, context/lend.c). Its sender
 * then waits until the receiver has taken them.
 */
#ifndef HPC_CALL_H
#define HPC_CALL_H

#include "collective/calls.h"
#include "kernel/combine.h"

typedef enum hpc_stream_part { HPC_FIRST, HPC_SECOND, HPC_PARTS } hpc_stream_part;

/* A stream to or from a peer. An open stream of no bytes has one empty letter, so that calls are compared. */
typedef struct hpc_stream {
    const struct hpc_stream_way *way; /* NULL before its first letter */
    char *at;
    uint64_t nbytes, done; /* done: bytes that were sent, or taken */
    uint64_t letters;      /* number of letters to the peer, up to the last one of this stream; 0: it lends none */
    uint32_t used;         /* bytes of the peer's letter that were taken */
    int open;
    int folds; /* of a first stream to this rank: its bytes are folded */
} hpc_stream;

typedef struct hpc_fold {
    const hpc_team *team; /* the ranks that fold */
    const char *mine;     /* this rank's elements */
    char *out;
    uint64_t nbytes, done;
    int after_sends; /* the fold overwrites what this rank sends, so each part is sent first */
    hpc_combine_fn *combine;
    hpc_combine_fn *combine_host; /* of the ranks of one host, before combine; NULL: all ranks are combined at once */
    char *scratch;                /* the memory of out on a rank that does not keep the result; NULL: no such memory */
    char *pieces;                 /* by rank: copies of lent bytes; NULL: none were lent */
    char *hosts;                  /* by host: its ranks' elements as one */
} hpc_fold_part;

typedef struct hpc_moving {
    struct hpc_request request; /* first */
    struct hpc_moving *next;    /* that was started after this one */
    hpc_collective_call call;
    int by_hosts, stage, last_stage;            /* streams.c */
    int reached;                                /* the peers of the present stage are near */
    uint64_t *at[2];                            /* where blocks begin, in bytes; size + 1 each */
    hpc_stream *out[HPC_PARTS], *in[HPC_PARTS]; /* by peer */
    hpc_fold_part fold;
} hpc_moving;

/* Checks what needs no other rank. Returns HPC_OK, or HPC_ERR_INVALID with one sentence. */
int hpc_call_check(const hpc_context *context, const hpc_collective_call *call);
const char *hpc_call_name(int what); /* such as "allreduce"; NULL for another number */
/* Writes such as "allreduce of 1000 float32 (sum)". */
const char *hpc_call_text(const hpc_described *call, char *text, size_t nbytes);
int hpc_call_reduces(int what);
int hpc_call_has_root(int what);
/* Return the lengths of the blocks of send and of recv by rank; NULL: all are count. Only an alltoall has two lists. */
const uint64_t *hpc_call_sent(const hpc_collective_call *call);
const uint64_t *hpc_call_received(const hpc_collective_call *call);
/* Writes which memory the call reads, and which it writes. */
void hpc_call_uses(const hpc_collective_call *call, int rank, int size, hpc_extent uses[2]);

/* ---- streams.c ---- */

/* Opens the streams of the present stage. */
int hpc_moving_open(hpc_moving *w);
/* Makes the work of a checked call, and opens its first stage. */
int hpc_moving_make(hpc_calls *calls, const hpc_collective_call *call, hpc_moving **work);

/* ---- ways.c ---- */

/* A way in which the bytes of a stream travel. */
typedef struct hpc_stream_way {
    uint64_t (*most)(const hpc_moving *w, int part); /* bytes of a letter */
    /* Sends the next letter of a stream. */
    int (*send)(hpc_moving *w, int peer, hpc_stream *s, hpc_letter_head *head);
    /* Copies bytes of the peer's letter. Returns HPC_GONE if the peer has ended its lease or has gone. */
    int (*copy)(const hpc_moving *w, int peer, const hpc_letter_head *head, uint64_t offset, void *to, uint64_t n);
    /* Returns where the bytes of a letter lie in this rank. NULL: they lie in the peer. */
    const void *(*see)(const hpc_letter_head *head, uint64_t offset);
} hpc_stream_way;

/* Chooses the way of a stream to the peer. */
const hpc_stream_way *hpc_stream_way_to(hpc_moving *w, int peer, const hpc_stream *s);
/* Returns the way that the peer has chosen for the stream of this letter. */
const hpc_stream_way *hpc_stream_way_of(const hpc_letter_head *head);

/* ---- work.c ---- */

/* Goes on with the first collectives that are not over. */
void hpc_works_go_on(hpc_calls *calls);
void hpc_work_note(hpc_calls *calls); /* leaves notes of the first one with all peers */

#endif
