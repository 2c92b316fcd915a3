/* The bytes that bandwidth probes (probe.h) send: packets over UDP, and messages over a probe's TCP connection. Pure
 * functions, whose input may be anything. Both ranks have the same byte order, which the connection's hello has
 * checked. */
#ifndef HPC_PROBE_WIRE_H
#define HPC_PROBE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

enum { HPC_PROBE_MOST_PACKETS = 1024, HPC_PROBE_LEAST_BYTES = 64, HPC_PROBE_MOST_BYTES = 9000, HPC_PROBE_MAC = 16 };

/* The head of a packet; the rest of the packet is zeros. */
typedef struct hpc_probe_packet {
    uint32_t magic, stream; /* number of the stream in its connection, from 1 */
    uint16_t index, nbytes; /* index: number of this packet in its stream; nbytes: of its UDP payload */
    uint32_t unused;
    unsigned char mac[HPC_PROBE_MAC]; /* MAC of the members above, with the connection's key */
} hpc_probe_packet;
_Static_assert(sizeof(hpc_probe_packet) == 32, "a packet has no holes");

void hpc_probe_seal(hpc_probe_packet *packet, const unsigned char key[HPC_DIGEST_BYTES], uint32_t stream, int index,
                    int nbytes);

/* Returns whether a datagram of nbytes is a whole packet that was sealed with key. data needs only its head. */
int hpc_probe_open(const void *data, size_t nbytes, const unsigned char key[HPC_DIGEST_BYTES],
                   hpc_probe_packet *packet);

/* The caller sends HELLO, ASK and END; the listener answers with WELCOME, GRANT and REPORT. */
typedef enum hpc_probe_kind {
    HPC_PROBE_HELLO = 1, /* a, b: a nonce */
    HPC_PROBE_WELCOME,   /* a, b: a nonce; count: the UDP port */
    HPC_PROBE_ASK, /* asks to send a stream of count packets; a: nanoseconds that the stream will take; b: 1: it may be
                      sent amid the job's own traffic if no pause comes soon */
    HPC_PROBE_GRANT, /* the stream may be sent; no other caller sends one to this listener now */
    HPC_PROBE_END,   /* count packets of the stream were sent */
    HPC_PROBE_REPORT /* a: the kernel's stamp of the first packet; b: bytes of the job's own traffic that arrived in
                        `micros` microseconds since the grant; flags; then count offsets of 32 bits, in nanoseconds
                        after a (HPC_PROBE_LOST: lost) */
} hpc_probe_kind;

enum { HPC_PROBE_OVERFLOWED = 1 /* the socket had no room for some packets */ };
#define HPC_PROBE_LOST UINT32_MAX

typedef struct hpc_probe_message {
    uint32_t magic, kind, stream, count, flags, micros;
    uint64_t a, b;
} hpc_probe_message;
_Static_assert(sizeof(hpc_probe_message) == 40, "a message has no holes");

hpc_probe_message hpc_probe_say(hpc_probe_kind kind, uint32_t stream, int count, uint64_t a, uint64_t b);

/* Returns whether a message is of this kind, with a valid count. */
int hpc_probe_is(const hpc_probe_message *message, hpc_probe_kind kind);

/* Returns whether a message is a valid one from a caller. */
int hpc_probe_is_sound(const hpc_probe_message *message);

#endif
