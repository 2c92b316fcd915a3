#include "service/proof.h"

#include <string.h>

#include "hpcomm/hpcomm.h"

_Static_assert((int)HPC_PROOF_HELLO == (int)HPC_DOOR_GREETING, "a hub greets all callers alike");

static const char protocol[HPC_PROTOCOL_BYTES + 1] = "hpchub03", worker[] = "tenant", hub[] = "hub";

/* The parts of a CLAIM before its proof. */
typedef struct said {
    const unsigned char *name, *nonce;
} said;

static said said_in(const unsigned char claim[HPC_PROOF_CLAIM]) {
    return (said){claim + HPC_PROTOCOL_BYTES, claim + HPC_PROTOCOL_BYTES + HPC_PROOF_NAME};
}

static void prove(const char *label, const unsigned char *hello, const unsigned char *claim, hpc_token token,
                  unsigned char mac[HPC_DIGEST_BYTES]) {
    const said its = said_in(claim);
    const hpc_bytes parts[] = {
        {label, strlen(label)}, {hello, HPC_PROOF_HELLO}, {its.name, HPC_PROOF_NAME}, {its.nonce, HPC_PROOF_NONCE}};
    hpc_hmac(token.data, token.nbytes, parts, 4, mac);
}

int hpc_proof_is_hello(const unsigned char hello[HPC_PROOF_HELLO]) {
    return memcmp(hello, protocol, HPC_PROTOCOL_BYTES) == 0;
}

void hpc_proof_claim(const unsigned char hello[HPC_PROOF_HELLO], const char *name,
                     const unsigned char nonce[HPC_PROOF_NONCE], hpc_token token,
                     unsigned char claim[HPC_PROOF_CLAIM]) {
    memset(claim, 0, HPC_PROOF_CLAIM);
    memcpy(claim, protocol, HPC_PROTOCOL_BYTES);
    const size_t length = strlen(name);
    memcpy(claim + HPC_PROTOCOL_BYTES, name, length < HPC_PROOF_NAME ? length : HPC_PROOF_NAME);
    memcpy(claim + HPC_PROTOCOL_BYTES + HPC_PROOF_NAME, nonce, HPC_PROOF_NONCE);
    prove(worker, hello, claim, token, claim + HPC_PROOF_CLAIM - HPC_DIGEST_BYTES);
}

int hpc_proof_is_answer(const unsigned char hello[HPC_PROOF_HELLO], const unsigned char claim[HPC_PROOF_CLAIM],
                        const unsigned char answer[HPC_PROOF_ANSWER], hpc_token token) {
    unsigned char mac[HPC_DIGEST_BYTES];
    prove(hub, hello, claim, token, mac);
    return answer[0] == 1 && hpc_same_bytes(answer + 1, mac, sizeof mac);
}

void hpc_proof_secret(hpc_token token, const char *nonce, unsigned char secret[HPC_DIGEST_BYTES]) {
    const hpc_bytes parts[] = {{"job", 3}, {nonce, strlen(nonce)}};
    hpc_hmac(token.data, token.nbytes, parts, 2, secret);
}

/* ---- frames ---- */

void hpc_seal_make(const unsigned char hello[HPC_PROOF_HELLO], const unsigned char claim[HPC_PROOF_CLAIM],
                   hpc_token token, int is_hub, hpc_seal *seal) {
    *seal = (hpc_seal){.own = is_hub ? hub : worker, .theirs = is_hub ? worker : hub};
    prove("session", hello, claim, token, seal->key);
}

static void tag(const hpc_seal *seal, const char *role, uint64_t number, const void *kind, const void *body,
                size_t nbytes, unsigned char mac[HPC_DIGEST_BYTES]) {
    unsigned char bytes[sizeof number];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(number >> (56 - 8 * i));
    const hpc_bytes parts[] = {{role, strlen(role)}, {bytes, sizeof bytes}, {kind, 1}, {body, nbytes}};
    hpc_hmac(seal->key, sizeof seal->key, parts, 4, mac);
}

void hpc_seal_close(hpc_seal *seal, char kind, const void *body, size_t nbytes, hpc_envelope *envelope) {
    unsigned char mac[HPC_DIGEST_BYTES];
    const size_t length = 1 + nbytes + HPC_SEAL_TAG;
    for (int i = 0; i < HPC_SEAL_HEAD; i++) envelope->before[i] = (unsigned char)(length >> (24 - 8 * i));
    envelope->before[HPC_SEAL_HEAD] = (unsigned char)kind;
    tag(seal, seal->own, seal->sent++, &kind, body, nbytes, mac);
    memcpy(envelope->after, mac, HPC_SEAL_TAG);
}

size_t hpc_seal_length(const unsigned char head[HPC_SEAL_HEAD], size_t most) {
    size_t n = 0;
    for (int i = 0; i < HPC_SEAL_HEAD; i++) n = n << 8 | head[i];
    return n >= 1 + HPC_SEAL_TAG && n <= most + 1 + HPC_SEAL_TAG ? n : 0;
}

int hpc_seal_open(hpc_seal *seal, const unsigned char *frame, size_t nbytes) {
    unsigned char mac[HPC_DIGEST_BYTES];
    const size_t body = nbytes - 1 - HPC_SEAL_TAG;
    tag(seal, seal->theirs, seal->taken, frame, frame + 1, body, mac);
    if (!hpc_same_bytes(mac, frame + 1 + body, HPC_SEAL_TAG)) return 0;
    seal->taken++;
    return 1;
}
