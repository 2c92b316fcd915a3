/* A batch: the data that the ranks of a subtree give to a collective, in one message.
 *
 *   header
 *   the number of bytes of each rank   if they differ
 *   the names of each rank             if they differ
 *   the data of each rank              each begins at a multiple of 16 bytes of the batch, and so does the end
 *
 * Ranks follow each other as in hpc_rank_tree.order. The header has the digest of the sender's tree, so both sides mean
 * the same ranks. A batch of equal data has a short header, however many its ranks are.
 *
 * A batch comes from another process. hpc_batch_read trusts no byte of it. */
#ifndef HPC_BATCH_H
#define HPC_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "hpcomm/hpcomm.h"

enum { HPC_OP_BYTES = 24 };

/* The names of a rank's collective and of the call in which its thread is (hpc_calling_enter); call "": none. */
typedef struct hpc_said {
    char op[HPC_OP_BYTES];
    char call[HPC_CALLING_BYTES + 4];
} hpc_said;

/* The part of one rank. */
typedef struct hpc_record {
    const hpc_said *said;
    void *data; /* not NULL in a batch, even without bytes */
    size_t nbytes;
} hpc_record;

/* Writes a batch of n records, at least one, into new memory, which the caller frees. *nbytes gets its size. NULL
 * without memory. */
char *hpc_batch_write(uint64_t tree, const hpc_record *records, int n, size_t *nbytes);

/* Finds the n records of a batch; they point into bytes, which must be aligned to 16. Returns 0 if the bytes are no
 * batch of n ranks of this tree. */
int hpc_batch_read(char *bytes, size_t nbytes, uint64_t tree, hpc_record *records, int n);

/* Returns an upper bound of the bytes of a batch of n records, each of at most `each` bytes. */
static inline uint64_t hpc_batch_most(int n, uint64_t each) {
    return ((uint64_t)n + 1) * (each + sizeof(hpc_said) + 64);
}

#endif
