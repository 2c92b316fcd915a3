/* handshake.h - what the tests of a connection's beginning share: connections, a rank that is called, and the wire
 * format written down once more, for callers and called ones that are not the library's. */
#ifndef HANDSHAKE_H
#define HANDSHAKE_H

#include "check.h"
#include "control/hello.h"

enum { RANK = 0, CALLER = 3, SIZE = 4, PROOF = HPC_DIGEST_BYTES, ANSWER = HPC_NONCE_BYTES + PROOF, WELCOME = 0x77 };
enum { WHOLE = sizeof(hpc_hello) + PROOF, SOON = 20 }; /* SOON: a deadline that no test should meet */

extern const unsigned char job_key[PROOF], other_key[PROOF], listener[HPC_NAME_BYTES];

uint32_t random_bits(void);

/* Both ends non-blocking: a Unix socket pair, or TCP over loopback. */
void connection(int fds[2], int tcp);
void wait_readable(int fd);
void send_bytes(int fd, const void *data, size_t nbytes);
void receive_bytes(int fd, void *data, size_t nbytes);

hpc_hello a_hello(void);    /* as a caller gives it to the library: what that fills in is set to nonsense */
hpc_hello good_hello(void); /* as the library sends it, with a new nonce */
void prove(const char *label, const unsigned char *key, const void *hello, const void *nonce, void *proof);

/* A step of the rank that is called. */
int step(hpc_greeting *g, int fd, const unsigned char *key, const char **why);

#endif
