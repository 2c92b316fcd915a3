/* The handshake of a TCP connection: the caller states its purpose, and both sides prove that they know the job's key.
 *
 *   caller -> called   hello: purpose, from, to, a nonce
 *   called -> caller   its own nonce, HMAC(key, "called" | hello | nonces)
 *   caller -> called   HMAC(key, "caller" | hello | nonces)
 *   called -> caller   one byte: welcome
 *
 * All sizes are fixed, so a stranger can make the called side read and keep no more than a greeting's few bytes. A
 * hello carries the name of the listener that it is meant for. The name is random for each context, so a wrong host at
 * the right address is detected. Nothing is encrypted, and the bytes after the handshake are not signed. The handshake
 * keeps strangers out, but not an attacker who can rewrite packets of a connection on their way. An attacker can find a
 * guessable key from one answer. */
#ifndef HPC_HELLO_H
#define HPC_HELLO_H

#include <stdint.h>

#include "base/sha256.h"
#include "base/status.h"

enum { HPC_NONCE_BYTES = 16, HPC_NAME_BYTES = 16 };

typedef enum hpc_purpose { HPC_FOR_CONTROL = 1, HPC_FOR_LANE = 2, HPC_FOR_RENDEZVOUS = 3 } hpc_purpose;

typedef struct hpc_hello {
    uint32_t magic;   /* hpc_hello_call fills it in; checked first */
    uint16_t version; /* of the handshake */
    uint16_t order;   /* 0x0102 in the caller's byte order; must equal the called side's */
    uint8_t purpose;
    uint8_t stream; /* the connection's number in its lane */
    uint16_t unused;
    int32_t from, to;                   /* ranks */
    int32_t size;                       /* of the job */
    uint64_t lane;                      /* the called rank's number for the lane */
    unsigned char name[HPC_NAME_BYTES]; /* of the listener */
    unsigned char nonce[HPC_NONCE_BYTES];
} hpc_hello;

/* The caller's side: the whole handshake on a connected descriptor. Fills in magic, version, order, unused and nonce.
 * Returns HPC_OK, HPC_ERR_TIMEOUT, HPC_ERR_AUTH (the called side does not know the key, or is not hpcomm) or
 * HPC_ERR_TRANSPORT (the called side hung up: before its proof if it refuses the hello, after its proof if it has no
 * place for this caller). Records no error, but puts a few words (static) into why. The calling code still owns fd. */
int hpc_hello_call(int fd, hpc_hello *hello, const unsigned char key[HPC_DIGEST_BYTES], double deadline,
                   const char **why);

/* The state of one handshake on the called side, which never waits. */
typedef struct hpc_greeting {
    int state; /* a state defined in hello.c */
    uint32_t got;
    hpc_hello hello;
    unsigned char nonce[HPC_NONCE_BYTES];
    unsigned char proof[HPC_DIGEST_BYTES]; /* the caller's proof, as its bytes arrive */
} hpc_greeting;

void hpc_greeting_start(hpc_greeting *greeting);

/* Reads and answers as much as it can, but reads no byte after the greeting. Returns:
 *   HPC_IN_PROGRESS     call again when fd is readable
 *   HPC_OK              greeting->hello is proven; call hpc_greeting_end once the connection has its place
 *   HPC_ERR_AUTH        the TCP caller is a stranger, or its hello is meant for another listener
 *   HPC_ERR_TRANSPORT   the TCP caller hung up
 * After either error *why has a few words (static); close fd. key may be NULL while it is unknown: call again when
 * it is known, even if fd is not readable. The hello must match name, rank and size; rank -1 accepts any to and
 * size. In a proven hello, from is a rank of the hello's own size and differs from to, and purpose is defined; lane
 * and stream are unchecked. The function sets no deadline: the calling code decides how long a caller may take. */
int hpc_greeting_step(hpc_greeting *greeting, int fd, const unsigned char *key,
                      const unsigned char name[HPC_NAME_BYTES], int rank, int size, const char **why);

/* Welcomes the caller: HPC_OK, or HPC_ERR_TRANSPORT if it is gone. */
int hpc_greeting_end(int fd);

/* Does the work of hpc_greeting_step without the socket; tests and the fuzzer call it too. Takes *used of the nbytes
 * bytes, never past the end of a message. HPC_IN_PROGRESS: if answer->ready, send all of answer first; then call
 * again with the other bytes. HPC_OK: the hello is proven. HPC_ERR_AUTH: the hello is refused for good. */
typedef struct hpc_answer {
    unsigned char bytes[HPC_NONCE_BYTES + HPC_DIGEST_BYTES];
    int ready;
} hpc_answer;
int hpc_greeting_take(hpc_greeting *greeting, const void *data, size_t nbytes, size_t *used, const unsigned char *key,
                      const unsigned char name[HPC_NAME_BYTES], int rank, int size, hpc_answer *answer,
                      const char **why);

#endif
