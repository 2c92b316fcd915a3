/* Numbers and texts in a message: the lowest byte first, doubles by their bits. */
#ifndef HPC_SERVICE_BYTES_H
#define HPC_SERVICE_BYTES_H

#include <stdint.h>
#include <string.h>

/* Writes into cap bytes. Bytes that do not fit are only counted. */
typedef struct hpc_packer {
    unsigned char *into;
    size_t cap, used;
} hpc_packer;

static inline void hpc_pack(hpc_packer *p, const void *data, size_t nbytes) {
    if (nbytes > 0 && p->used <= p->cap && nbytes <= p->cap - p->used) memcpy(p->into + p->used, data, nbytes);
    p->used += nbytes;
}

static inline void hpc_pack_number(hpc_packer *p, uint64_t value, size_t nbytes) {
    unsigned char bytes[8];
    for (size_t i = 0; i < nbytes; i++) bytes[i] = (unsigned char)(value >> 8 * i);
    hpc_pack(p, bytes, nbytes);
}

static inline void hpc_pack_int(hpc_packer *p, int value) {
    hpc_pack_number(p, (uint32_t)value, 4);
}

static inline void hpc_pack_double(hpc_packer *p, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    hpc_pack_number(p, bits, sizeof bits);
}

/* A text, with its length in n_length bytes before it. */
static inline void hpc_pack_text(hpc_packer *p, const char *text, size_t nbytes, size_t n_length) {
    hpc_pack_number(p, nbytes, n_length);
    hpc_pack(p, text, nbytes);
}

/* Reads a stranger's message. Past its end everything is 0, and `bad` is set. */
typedef struct hpc_unpacker {
    const unsigned char *at, *end;
    int bad;
} hpc_unpacker;

/* Returns the next nbytes; NULL if there are fewer. */
static inline const unsigned char *hpc_unpack(hpc_unpacker *u, size_t nbytes) {
    if (u->bad || nbytes > (size_t)(u->end - u->at)) {
        u->bad = 1;
        return NULL;
    }
    u->at += nbytes;
    return u->at - nbytes;
}

static inline uint64_t hpc_unpack_number(hpc_unpacker *u, size_t nbytes) {
    const unsigned char *bytes = hpc_unpack(u, nbytes);
    uint64_t value = 0;
    for (size_t i = 0; bytes != NULL && i < nbytes; i++) value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static inline int hpc_unpack_int(hpc_unpacker *u) {
    return (int)(uint32_t)hpc_unpack_number(u, 4);
}

static inline double hpc_unpack_double(hpc_unpacker *u) {
    const uint64_t bits = hpc_unpack_number(u, sizeof bits);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
