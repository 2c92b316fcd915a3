/* SHA-256 and HMAC: the vectors of FIPS 180-4 and RFC 4231, every length around a block, any cut into parts. */
#include "check.h"
#include "base/sha256.h"

#include <stdint.h>

enum { MILLION = 1000000, LENGTHS = 300 };

static uint32_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static void check_hex(const unsigned char *digest, const char *expected) {
    char hex[2 * HPC_DIGEST_BYTES + 1];
    for (int i = 0; i < HPC_DIGEST_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    if (strncmp(hex, expected, strlen(expected)) == 0) return;
    fprintf(stderr, "%s is not %s\n", hex, expected);
    exit(1);
}

static void check_hash(const void *data, size_t nbytes, const char *expected) {
    unsigned char digest[HPC_DIGEST_BYTES];
    hpc_sha256(&(hpc_bytes){data, nbytes}, 1, digest);
    check_hex(digest, expected);
}

static void check_hmac(const void *key, size_t key_bytes, const void *data, size_t nbytes, const char *expected) {
    unsigned char mac[HPC_DIGEST_BYTES];
    hpc_hmac(key, key_bytes, &(hpc_bytes){data, nbytes}, 1, mac);
    check_hex(mac, expected);
}

static void test_fips_180(void) {
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static const char longer[] = "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                                 "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
    char *a = malloc(MILLION);
    CHECK(a != NULL);
    memset(a, 'a', MILLION);
    check_hash(NULL, 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_hash("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_hash(two_blocks, 56, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_hash(longer, 112, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    check_hash(a, MILLION, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(a);
}

static void test_rfc_4231(void) {
    static const char large_key[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    static const char large_both[] = "This is a test using a larger than block-size key and a larger than block-size "
                                     "data. The key needs to be hashed before being used by the HMAC algorithm.";
    unsigned char key[131], data[50];
    memset(key, 0x0b, 20);
    check_hmac(key, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_hmac("Jefe", 4, "what do ya want for nothing?", 28,
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(data, 0xdd, sizeof data);
    check_hmac(key, 20, data, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check_hmac(key, 131, large_key, 54, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    check_hmac(key, 131, large_both, 152, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
    for (int i = 0; i < 25; i++) key[i] = (unsigned char)(i + 1);
    memset(data, 0xcd, sizeof data);
    check_hmac(key, 25, data, 50, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    memset(key, 0x0c, 20); /* the vector has the first 16 bytes */
    check_hmac(key, 20, "Test With Truncation", 20, "a3b6167473100ee06e0c796c2955552b");
}

static void message_of(size_t nbytes, unsigned char *message) {
    for (size_t i = 0; i < nbytes; i++) message[i] = (unsigned char)(7 * i + nbytes);
}

/* The digests of all lengths, hashed again. What they must be was computed with Python's hashlib and hmac. */
static void test_every_length(void) {
    static unsigned char digests[LENGTHS][HPC_DIGEST_BYTES], key[LENGTHS], message[LENGTHS];
    for (size_t n = 0; n < LENGTHS; n++) {
        message_of(n, message);
        hpc_sha256(&(hpc_bytes){message, n}, 1, digests[n]);
    }
    check_hash(digests, sizeof digests, "d5238871a46ac4a1a75ac3fb19d645b0b3b9e5f35f5f720e2b240d605c6b694e");
    for (size_t n = 0; n < LENGTHS; n++) {
        message_of(n, key);
        message_of(LENGTHS - n, message);
        hpc_hmac(key, n, &(hpc_bytes){message, LENGTHS - n}, 1, digests[n]);
    }
    check_hash(digests, sizeof digests, "3f21574ba8ca2b732c0b48cdf8b5f906e5839d5b10eacd47f11a05267139d035");
}

static void test_parts(void) {
    enum { MOST_PARTS = 12, ROUNDS = 2000, MOST_BYTES = 700 };
    unsigned char message[MOST_BYTES], whole[HPC_DIGEST_BYTES], cut[HPC_DIGEST_BYTES];
    for (int round = 0; round < ROUNDS; round++) {
        size_t nbytes = random_bits() % MOST_BYTES, at = 0, key_bytes = random_bits() % 11;
        hpc_bytes parts[MOST_PARTS];
        int n = 1 + (int)(random_bits() % MOST_PARTS);
        for (size_t i = 0; i < nbytes; i++) message[i] = (unsigned char)random_bits();
        for (int i = 0; i < n; i++) {
            size_t left = nbytes - at, size = i == n - 1 ? left : random_bits() % (left + 1);
            parts[i] = (hpc_bytes){size == 0 ? NULL : message + at, size};
            at += size;
        }
        hpc_sha256(&(hpc_bytes){message, nbytes}, 1, whole);
        hpc_sha256(parts, n, cut);
        CHECK(memcmp(whole, cut, sizeof whole) == 0);
        hpc_hmac("0123456789", key_bytes, &(hpc_bytes){message, nbytes}, 1, whole);
        hpc_hmac("0123456789", key_bytes, parts, n, cut);
        CHECK(memcmp(whole, cut, sizeof whole) == 0);
    }
    hpc_sha256(NULL, 0, cut);
    check_hex(cut, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hpc_hmac(NULL, 0, NULL, 0, cut);
    check_hex(cut, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

static void test_same_bytes(void) {
    unsigned char a[40], b[40];
    for (size_t i = 0; i < sizeof a; i++) a[i] = b[i] = (unsigned char)random_bits();
    CHECK(hpc_same_bytes(a, b, 0));
    CHECK(hpc_same_bytes(a, b, sizeof a));
    for (size_t bit = 0; bit < 8 * sizeof a; bit++) {
        b[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(!hpc_same_bytes(a, b, sizeof a));
        CHECK(hpc_same_bytes(a, b, bit / 8));
        b[bit / 8] = a[bit / 8];
    }
}

int main(void) {
    test_fips_180();
    test_rfc_4231();
    test_every_length();
    test_parts();
    test_same_bytes();
    return 0;
}
