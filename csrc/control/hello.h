/* How a TCP connection begins: the caller says what it is for, and both prove that they know the job's key.
 *
 *   caller -> called   hello: what for, from, to, a nonce
 *   called -> caller   a nonce of its own, HMAC(key, "called" | hello | nonces)
 *   caller -> called   HMAC(key, "caller" | hello | nonces)
 *   called -> caller   one byte: welcome
 *
 * All sizes are fixed, so a stranger can make the called side read and keep no more than a greeting's few bytes. A
 * hello names the listener it means (name, random for each context), so that a wrong host at a right address is found
 * out. Nothing is encrypted, and what follows is not signed: this keeps strangers out, not whoever can rewrite the
 * packets of a connection on their way. A key that can be guessed can be found from one answer. */
#ifndef HPC_HELLO_H
#define HPC_HELLO_H

#include <stdint.h>

#include "base/sha256.h"
#include "base/status.h"

enum { HPC_NONCE_BYTES = 16, HPC_NAME_BYTES = 16 };

typedef enum hpc_purpose { HPC_FOR_CONTROL = 1, HPC_FOR_LANE = 2, HPC_FOR_RENDEZVOUS = 3 } hpc_purpose;

typedef struct hpc_hello {
    uint32_t magic;   /* filled in by hpc_hello_call, and looked at first */
    uint16_t version; /* of the handshake */
    uint16_t order;   /* 0x0102 as the caller's memory has it: both must agree */
    uint8_t purpose;
    uint8_t stream; /* of a lane: which of its connections */
    uint16_t unused;
    int32_t from, to;                   /* ranks */
    int32_t size;                       /* of the job */
    uint64_t lane;                      /* the called rank's number of it */
    unsigned char name[HPC_NAME_BYTES]; /* of the listener */
    unsigned char nonce[HPC_NONCE_BYTES];
} hpc_hello;

/* The caller's side, on a connected descriptor: the whole handshake. Fills in magic, version, order, unused and nonce.
 * HPC_OK, HPC_ERR_TIMEOUT, HPC_ERR_AUTH (it does not know the key, or is no hpcomm) or HPC_ERR_TRANSPORT: it hung up,
 * before its proof if it refuses what the hello says, after it if it has no place for us. No error is recorded: why
 * gets a few words (static). The descriptor stays the caller's. */
int hpc_hello_call(int fd, hpc_hello *hello, const unsigned char key[HPC_DIGEST_BYTES], double deadline,
                   const char **why);

/* The called side never waits. */
typedef struct hpc_greeting {
    int state; /* of hello.c */
    uint32_t got;
    hpc_hello hello;
    unsigned char nonce[HPC_NONCE_BYTES];
    unsigned char proof[HPC_DIGEST_BYTES]; /* the caller's, as it comes */
} hpc_greeting;

void hpc_greeting_start(hpc_greeting *greeting);

/* Reads and answers what it can, and never a byte from behind the greeting. HPC_IN_PROGRESS: call again when fd is
 * readable. HPC_OK: greeting->hello is proven; call hpc_greeting_end once the connection has its place. HPC_ERR_AUTH: a
 * stranger, or it means somebody else; HPC_ERR_TRANSPORT: it hung up; both: why gets a few words (static), close it.
 * key NULL: not known yet; call again when it is, readable or not. name, rank, size: what the hello must say; rank -1:
 * any to and size. from is always a rank of the hello's own size, and not to; purpose is one that there is, lane and
 * stream are as they came. How long a caller may take is for whoever calls this to say. */
int hpc_greeting_step(hpc_greeting *greeting, int fd, const unsigned char *key,
                      const unsigned char name[HPC_NAME_BYTES], int rank, int size, const char **why);

/* Welcomes the caller: HPC_OK, or HPC_ERR_TRANSPORT if it is gone. */
int hpc_greeting_end(int fd);

/* The part of a step that needs no socket (for tests and the fuzzer too): takes some of nbytes, *used of them, at most
 * to the end of a message. HPC_IN_PROGRESS: if answer->ready, all of answer is to be sent before more is taken; call
 * again with what is left or comes. HPC_OK: proven. HPC_ERR_AUTH: refused, for good. */
typedef struct hpc_answer {
    unsigned char bytes[HPC_NONCE_BYTES + HPC_DIGEST_BYTES];
    int ready;
} hpc_answer;
int hpc_greeting_take(hpc_greeting *greeting, const void *data, size_t nbytes, size_t *used, const unsigned char *key,
                      const unsigned char name[HPC_NAME_BYTES], int rank, int size, hpc_answer *answer,
                      const char **why);

#endif
