/* The called side of the handshake. The input: what the listener knows, how the bytes are cut, then what the caller
 * sends: its hello, and a proof as it is or the right one with a byte changed. */
#include "fuzz.h"

#include "control/hello.h"

enum {
    CONTROL = 5, /* bytes before the hello */
    RANK = 1,
    SIZE = 4,
    MAGIC = 0x6870636d,
    VERSION = 1,
    ORDER = 0x0102,
    PURPOSES = 3
};

/* Of the first byte. */
enum { ANY_RANK = 1, LATE_KEY = 2, TRUE_PROOF = 4 };

static const unsigned char key[HPC_DIGEST_BYTES] = "thirty-two bytes of a job's key", name[] = "a listener's one";

typedef struct caller {
    unsigned char bytes[sizeof(hpc_hello) + HPC_DIGEST_BYTES + 64];
    size_t nbytes, taken;
    int answers;
} caller;

static int is_good(const hpc_hello *h, int any_rank) {
    if (h->magic != MAGIC || h->version != VERSION || h->order != ORDER) return 0;
    if (h->purpose < 1 || h->purpose > PURPOSES || memcmp(h->name, name, HPC_NAME_BYTES) != 0) return 0;
    if (!any_rank && (h->to != RANK || h->size != SIZE)) return 0;
    return h->from >= 0 && h->from < h->size && h->from != h->to;
}

static void prove(const char *label, const hpc_hello *hello, const unsigned char *nonce, unsigned char *proof) {
    const hpc_bytes parts[] = {{label, strlen(label)}, {hello, sizeof *hello}, {nonce, HPC_NONCE_BYTES}};
    hpc_hmac(key, sizeof key, parts, 3, proof);
}

/* The called side's proof must be right; the caller's becomes so where the input says it. */
static void check_answer(caller *c, const hpc_answer *answer, int flags, unsigned change) {
    const hpc_hello *hello = (const void *)c->bytes;
    unsigned char proof[HPC_DIGEST_BYTES];
    c->answers++;
    REQUIRE(c->answers == 1 && c->taken == sizeof *hello);
    REQUIRE(is_good(hello, flags & ANY_RANK));
    prove("hpcomm called", hello, answer->bytes, proof);
    REQUIRE(memcmp(proof, answer->bytes + HPC_NONCE_BYTES, sizeof proof) == 0);
    prove("hpcomm caller", hello, answer->bytes, proof);
    if (!(flags & TRUE_PROOF)) return;
    memcpy(c->bytes + sizeof *hello, proof, sizeof proof);
    c->bytes[sizeof *hello + change % sizeof proof] ^= (unsigned char)(change >> 8);
}

static void check_end(const caller *c, const hpc_greeting *greeting, int status, int flags, int is_known,
                      const hpc_answer *answer) {
    const hpc_hello *hello = (const void *)c->bytes;
    unsigned char proof[HPC_DIGEST_BYTES];
    int is_whole = c->taken >= sizeof *hello;
    if (is_whole && !is_good(hello, flags & ANY_RANK)) REQUIRE(status == HPC_ERR_AUTH && c->answers == 0);
    if (is_whole && is_good(hello, flags & ANY_RANK)) REQUIRE(c->answers == is_known);
    if (c->taken < sizeof *hello + sizeof proof) {
        REQUIRE(status != HPC_OK);
        return;
    }
    prove("hpcomm caller", hello, answer->bytes, proof);
    REQUIRE(status == (memcmp(proof, c->bytes + sizeof *hello, sizeof proof) == 0 ? HPC_OK : HPC_ERR_AUTH));
    if (status == HPC_OK) REQUIRE(memcmp(&greeting->hello, hello, sizeof *hello) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hpc_greeting greeting;
    hpc_answer answer, last = {.ready = 0};
    caller c = {.nbytes = size - CONTROL};
    const char *why = NULL;
    int status = HPC_IN_PROGRESS, is_known = 0;
    size_t used;
    if (size < CONTROL || c.nbytes > sizeof c.bytes) return 0;
    int flags = data[0], rank = flags & ANY_RANK ? -1 : RANK;
    memcpy(c.bytes, data + CONTROL, c.nbytes);
    hpc_greeting_start(&greeting);

    for (size_t turn = 0; status == HPC_IN_PROGRESS && (c.taken < c.nbytes || turn < 9); turn++) {
        size_t cut = fuzz_cut(data + 1, 2, turn), left = c.nbytes - c.taken;
        is_known = !(flags & LATE_KEY) || turn >= 8;
        status = hpc_greeting_take(&greeting, c.bytes + c.taken, cut < left ? cut : left, &used, is_known ? key : NULL,
                                   name, rank, SIZE, &answer, &why);
        REQUIRE(used <= left && used <= cut);
        c.taken += used;
        if (answer.ready) check_answer(&c, &answer, flags, data[3] | (unsigned)data[4] << 8);
        if (answer.ready) last = answer;
        REQUIRE(used > 0 || left == 0 || !is_known || answer.ready || status != HPC_IN_PROGRESS);
    }
    REQUIRE(c.taken <= sizeof(hpc_hello) + HPC_DIGEST_BYTES);
    check_end(&c, &greeting, status, flags, is_known, &last);
    if (status == HPC_IN_PROGRESS) return 0;
    /* A verdict stands, whatever comes. */
    REQUIRE(status == HPC_OK || (status == HPC_ERR_AUTH && why != NULL));
    REQUIRE(hpc_greeting_take(&greeting, data, size, &used, key, name, rank, SIZE, &answer, &why) == status);
    REQUIRE(used == 0 && !answer.ready);
    return 0;
}
