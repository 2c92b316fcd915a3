/* SHA-256 (FIPS 180-4) and HMAC with it (RFC 2104), by which ranks prove that they know their job's secret. */
#ifndef HPC_SHA256_H
#define HPC_SHA256_H

#include <stddef.h>

enum { HPC_DIGEST_BYTES = 32 };

typedef struct hpc_bytes {
    const void *data;
    size_t nbytes;
} hpc_bytes;

/* Computes the digest of all parts, one after the other. */
void hpc_sha256(const hpc_bytes *parts, int n, unsigned char digest[HPC_DIGEST_BYTES]);
void hpc_hmac(const void *key, size_t key_bytes, const hpc_bytes *parts, int n, unsigned char mac[HPC_DIGEST_BYTES]);

/* Returns whether the bytes are equal. It reads all of them, so that its run time does not depend on their values. */
int hpc_same_bytes(const void *a, const void *b, size_t nbytes);

#endif
