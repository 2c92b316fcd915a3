/* How a worker and a hub prove to each other that they know a namespace's token, and the tags of the frames that
 * follow. hpcomm/service/proof.py has the hub's end, and explains why.
 *
 *   hub     HELLO   the protocol's name and version, and a nonce
 *   worker  CLAIM   the namespace, another nonce, and an HMAC over both nonces
 *   hub     ANSWER  a byte that is 1 and an HMAC over both nonces, or zeros for a refusal
 *
 * A frame is its length (4 bytes, the highest first), its kind (a byte), its body, and a tag. Nothing here reads or
 * writes a socket. */
#ifndef HPC_PROOF_H
#define HPC_PROOF_H

#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

enum {
    HPC_PROTOCOL_BYTES = 8,
    HPC_PROOF_NONCE = 16,
    HPC_PROOF_NAME = 64,
    HPC_PROOF_HELLO = HPC_PROTOCOL_BYTES + HPC_PROOF_NONCE,
    HPC_PROOF_CLAIM = HPC_PROTOCOL_BYTES + HPC_PROOF_NAME + HPC_PROOF_NONCE + HPC_DIGEST_BYTES,
    HPC_PROOF_ANSWER = 1 + HPC_DIGEST_BYTES,
    HPC_SEAL_HEAD = 4,
    HPC_SEAL_TAG = 16
};

typedef struct hpc_token {
    const void *data;
    size_t nbytes;
} hpc_token;

/* Returns whether a HELLO is of this version of the protocol. */
int hpc_proof_is_hello(const unsigned char hello[HPC_PROOF_HELLO]);

/* Writes the CLAIM that answers a HELLO. name has at most 63 bytes. */
void hpc_proof_claim(const unsigned char hello[HPC_PROOF_HELLO], const char *name,
                     const unsigned char nonce[HPC_PROOF_NONCE], hpc_token token, unsigned char claim[HPC_PROOF_CLAIM]);

/* Returns whether the hub has proven in its ANSWER that it knows the token. */
int hpc_proof_is_answer(const unsigned char hello[HPC_PROOF_HELLO], const unsigned char claim[HPC_PROOF_CLAIM],
                        const unsigned char answer[HPC_PROOF_ANSWER], hpc_token token);

/* Derives the secret of a job's contexts from the token and the job's nonce, a text. */
void hpc_proof_secret(hpc_token token, const char *nonce, unsigned char secret[HPC_DIGEST_BYTES]);

/* One end of a connection whose ends have proven themselves. */
typedef struct hpc_seal {
    unsigned char key[HPC_DIGEST_BYTES];
    const char *own, *theirs; /* the roles */
    uint64_t sent, taken;     /* frames */
} hpc_seal;

/* is_hub: for the hub's end, which tests play. */
void hpc_seal_make(const unsigned char hello[HPC_PROOF_HELLO], const unsigned char claim[HPC_PROOF_CLAIM],
                   hpc_token token, int is_hub, hpc_seal *seal);

/* Seals a frame: fills in the bytes before the body (length and kind) and the tag after it. */
typedef struct hpc_envelope {
    unsigned char before[HPC_SEAL_HEAD + 1], after[HPC_SEAL_TAG];
} hpc_envelope;
void hpc_seal_close(hpc_seal *seal, char kind, const void *body, size_t nbytes, hpc_envelope *envelope);

/* Returns how many bytes of a frame follow its head; 0 if a frame whose body has at most `most` bytes cannot be so
 * long. */
size_t hpc_seal_length(const unsigned char head[HPC_SEAL_HEAD], size_t most);

/* Returns whether a frame of nbytes, without its head, has the right tag. nbytes is the result of hpc_seal_length. Its
 * first byte is the kind; the body follows, of nbytes - 1 - HPC_SEAL_TAG bytes. */
int hpc_seal_open(hpc_seal *seal, const unsigned char *frame, size_t nbytes);

#endif
