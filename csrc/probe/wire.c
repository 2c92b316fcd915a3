#include "probe/wire.h"

#include <string.h>

enum { PACKET_MAGIC = 0x68707062, MESSAGE_MAGIC = 0x68707063, ONE_PORT = 65535 };

/* ---- packets ---- */

static void sign(const hpc_probe_packet *packet, const unsigned char *key, unsigned char mac[HPC_PROBE_MAC]) {
    unsigned char digest[HPC_DIGEST_BYTES];
    const hpc_bytes head = {packet, offsetof(hpc_probe_packet, mac)};
    hpc_hmac(key, HPC_DIGEST_BYTES, &head, 1, digest);
    memcpy(mac, digest, HPC_PROBE_MAC);
}

void hpc_probe_seal(hpc_probe_packet *packet, const unsigned char key[HPC_DIGEST_BYTES], uint32_t stream, int index,
                    int nbytes) {
    *packet = (hpc_probe_packet){
        .magic = PACKET_MAGIC, .stream = stream, .index = (uint16_t)index, .nbytes = (uint16_t)nbytes};
    sign(packet, key, packet->mac);
}

int hpc_probe_open(const void *data, size_t nbytes, const unsigned char key[HPC_DIGEST_BYTES],
                   hpc_probe_packet *packet) {
    unsigned char mac[HPC_PROBE_MAC];
    if (nbytes < HPC_PROBE_LEAST_BYTES || nbytes > HPC_PROBE_MOST_BYTES) return 0;
    memcpy(packet, data, sizeof *packet);
    if (packet->magic != PACKET_MAGIC || packet->nbytes != nbytes || packet->index >= HPC_PROBE_MOST_PACKETS) return 0;
    sign(packet, key, mac);
    return hpc_same_bytes(mac, packet->mac, sizeof mac);
}

/* ---- messages ---- */

hpc_probe_message hpc_probe_say(hpc_probe_kind kind, uint32_t stream, int count, uint64_t a, uint64_t b) {
    return (hpc_probe_message){
        .magic = MESSAGE_MAGIC, .kind = (uint32_t)kind, .stream = stream, .count = (uint32_t)count, .a = a, .b = b};
}

int hpc_probe_is(const hpc_probe_message *m, hpc_probe_kind kind) {
    uint32_t most = kind == HPC_PROBE_WELCOME ? ONE_PORT : HPC_PROBE_MOST_PACKETS;
    return m->magic == MESSAGE_MAGIC && m->kind == (uint32_t)kind && m->count <= most;
}

int hpc_probe_is_sound(const hpc_probe_message *m) {
    return hpc_probe_is(m, HPC_PROBE_HELLO) || hpc_probe_is(m, HPC_PROBE_ASK) || hpc_probe_is(m, HPC_PROBE_END);
}
