#include "base/sha256.h"

#include <stdint.h>
#include <string.h>

enum { BLOCK_BYTES = 64, ROUNDS = 64, LENGTH_BYTES = 8 };

typedef struct hash {
    uint32_t h[8];
    uint64_t nbytes; /* hashed so far */
    unsigned char block[BLOCK_BYTES];
} hash;

static const uint32_t K[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

/* FIPS 180-4, section 6.2.2, with the names used there. */
static void compress(uint32_t h[8], const unsigned char *block) {
    uint32_t w[ROUNDS], v[8];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
               block[4 * t + 3];
    for (int t = 16; t < ROUNDS; t++) {
        uint32_t s0 = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
    memcpy(v, h, sizeof v);
    for (int t = 0; t < ROUNDS; t++) {
        uint32_t a = v[0], b = v[1], c = v[2], e = v[4], f = v[5], g = v[6];
        uint32_t t1 = v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + K[t] + w[t];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

static void begin(hash *s) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, first, sizeof first);
    s->nbytes = 0;
}

static void add(hash *s, const void *data, size_t nbytes) {
    const unsigned char *bytes = data;
    while (nbytes > 0) {
        size_t used = s->nbytes % BLOCK_BYTES, n = BLOCK_BYTES - used < nbytes ? BLOCK_BYTES - used : nbytes;
        memcpy(s->block + used, bytes, n);
        s->nbytes += n;
        bytes += n;
        nbytes -= n;
        if (used + n == BLOCK_BYTES) compress(s->h, s->block);
    }
}

static void add_parts(hash *s, const hpc_bytes *parts, int n) {
    for (int i = 0; i < n; i++) add(s, parts[i].data, parts[i].nbytes);
}

static void end(hash *s, unsigned char digest[HPC_DIGEST_BYTES]) {
    static const unsigned char padding[BLOCK_BYTES] = {0x80};
    unsigned char length[LENGTH_BYTES];
    uint64_t bits = s->nbytes * 8;
    size_t used = s->nbytes % BLOCK_BYTES, room = BLOCK_BYTES - LENGTH_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    add(s, padding, used < room ? room - used : BLOCK_BYTES + room - used);
    add(s, length, sizeof length);
    for (int i = 0; i < HPC_DIGEST_BYTES; i++) digest[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void hpc_sha256(const hpc_bytes *parts, int n, unsigned char digest[HPC_DIGEST_BYTES]) {
    hash s;
    begin(&s);
    add_parts(&s, parts, n);
    end(&s, digest);
}

void hpc_hmac(const void *key, size_t key_bytes, const hpc_bytes *parts, int n, unsigned char mac[HPC_DIGEST_BYTES]) {
    unsigned char block[BLOCK_BYTES] = {0}, inner[HPC_DIGEST_BYTES];
    hash s;
    if (key_bytes > BLOCK_BYTES)
        hpc_sha256(&(hpc_bytes){key, key_bytes}, 1, block);
    else if (key_bytes > 0)
        memcpy(block, key, key_bytes);

    for (int i = 0; i < BLOCK_BYTES; i++) block[i] ^= 0x36;
    begin(&s);
    add(&s, block, sizeof block);
    add_parts(&s, parts, n);
    end(&s, inner);

    for (int i = 0; i < BLOCK_BYTES; i++) block[i] ^= 0x36 ^ 0x5c;
    begin(&s);
    add(&s, block, sizeof block);
    add(&s, inner, sizeof inner);
    end(&s, mac);
}

int hpc_same_bytes(const void *a, const void *b, size_t nbytes) {
    const volatile unsigned char *x = a, *y = b;
    unsigned char differ = 0;
    for (size_t i = 0; i < nbytes; i++) differ |= x[i] ^ y[i];
    return differ == 0;
}
