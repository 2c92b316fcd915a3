/* A call of a collective of arrays: its checks, and the streams that it needs.
 *
 * Every collective is made of at most three things on a rank. Streams of bytes go to peers and come from peers. A fold
 * combines this rank's elements with those that come in streams, chunk by chunk, in the order of ranks. And a second
 * stream may send the fold's result on, as it grows.
 *
 *   allreduce, few bytes   each rank sends all to all; each folds all
 *   allreduce              each rank sends block r to rank r, which folds it, and sends the result to all
 *   reduce                 the same, but results go to the root alone
 *   reduce_scatter         each rank sends block r to rank r, which folds it
 *   the others             streams alone
 *
 * The owner of a block folds it in the order of ranks, so the bits do not depend on who owns it. */
#ifndef HPC_CALL_H
#define HPC_CALL_H

#include "collective/mail.h"
#include "kernel/combine.h"

/* A stream to or from a peer. An open stream of no bytes has one empty letter, so that calls are compared. */
typedef struct hpc_stream {
    char *at;
    uint64_t nbytes, done; /* done: that were sent, or taken */
    int open;
    int folds; /* of a first stream to this rank: its bytes are folded */
} hpc_stream;

typedef struct hpc_fold {
    const char *mine; /* this rank's elements */
    char *out;
    uint64_t nbytes, done;
    int after_sends; /* the fold overwrites what this rank sends, so each part is sent first */
    hpc_combine_fn *combine;
    char *scratch; /* the memory of out on a rank that does not keep the result; NULL: no such memory */
} hpc_fold_part;

struct hpc_request {
    struct hpc_request *next; /* that was started after this one */
    hpc_mail *mail;
    const char *op;
    hpc_described call;
    size_t element;                             /* bytes */
    int status;                                 /* HPC_IN_PROGRESS, or how it ended */
    char why[HPC_COMPLAINT_BYTES];              /* the sentence of a failure */
    uint64_t *at[2];                            /* where blocks of send and recv begin, in bytes; size + 1 each */
    hpc_stream *out[HPC_PARTS], *in[HPC_PARTS]; /* by peer */
    hpc_fold_part fold;
};

/* Checks the call and makes its work, with all streams. The mail must be there. */
int hpc_request_make(hpc_mail *mail, const hpc_collective_call *call, struct hpc_request **work);
void hpc_request_drop(struct hpc_request *work);

/* Checks what needs no other rank. Returns HPC_OK, or HPC_ERR_INVALID with one sentence. */
int hpc_call_check(const hpc_context *context, const hpc_collective_call *call);
const char *hpc_call_name(int what); /* such as "allreduce"; NULL for another number */

/* Writes such as "allreduce of 1000 float32 (sum)". */
const char *hpc_call_text(const hpc_described *call, char *text, size_t nbytes);

#endif
