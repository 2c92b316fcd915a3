#define _GNU_SOURCE
#include "control/hello.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "control/net.h"

enum { MAGIC = 0x6870636d, VERSION = 1, ORDER = 0x0102, WELCOME = 0x77, LABEL_BYTES = 13 };

/* The states of a greeting. */
enum { WAIT_HELLO, WAIT_KEY, WAIT_PROOF, PROVEN, REFUSED };

_Static_assert(sizeof(hpc_hello) == 64, "a hello has no holes: every byte that is sent is set");

/* Called and caller sign different labels, so a proof of one is never valid as the other's. */
static void prove(const char label[LABEL_BYTES + 1], const unsigned char *key, const hpc_hello *hello,
                  const unsigned char *nonce, unsigned char proof[HPC_DIGEST_BYTES]) {
    const hpc_bytes parts[] = {{label, LABEL_BYTES}, {hello, sizeof *hello}, {nonce, HPC_NONCE_BYTES}};
    hpc_hmac(key, HPC_DIGEST_BYTES, parts, 3, proof);
}
static const char called_label[] = "hpcomm called", caller_label[] = "hpcomm caller";

static int draw(unsigned char nonce[HPC_NONCE_BYTES]) {
    return getrandom(nonce, HPC_NONCE_BYTES, 0) == HPC_NONCE_BYTES;
}

static int refuse(int status, const char *words, const char **why) {
    *why = words;
    return status;
}

/* ---- the caller ---- */

int hpc_hello_call(int fd, hpc_hello *hello, const unsigned char key[HPC_DIGEST_BYTES], double deadline,
                   const char **why) {
    struct {
        unsigned char nonce[HPC_NONCE_BYTES], proof[HPC_DIGEST_BYTES];
    } answer;
    unsigned char proof[HPC_DIGEST_BYTES], welcome;

    hello->magic = MAGIC;
    hello->version = VERSION;
    hello->order = ORDER;
    hello->unused = 0;
    if (!draw(hello->nonce)) return refuse(HPC_ERR_TRANSPORT, "the kernel gives no random numbers", why);

    int status = hpc_net_send_all(fd, hello, sizeof *hello, deadline);
    if (status == HPC_OK) status = hpc_net_receive_all(fd, &answer, sizeof answer, deadline);
    if (status == HPC_ERR_TIMEOUT) return refuse(status, "it did not answer in time", why);
    if (status != HPC_OK) return refuse(status, "it hung up before its proof", why);
    prove(called_label, key, hello, answer.nonce, proof);
    if (!hpc_same_bytes(proof, answer.proof, sizeof proof))
        return refuse(HPC_ERR_AUTH, "it does not know the job's key", why);

    prove(caller_label, key, hello, answer.nonce, proof);
    status = hpc_net_send_all(fd, proof, sizeof proof, deadline);
    if (status == HPC_OK) status = hpc_net_receive_all(fd, &welcome, 1, deadline);
    if (status == HPC_ERR_TIMEOUT) return refuse(status, "it did not welcome us in time", why);
    if (status != HPC_OK) return refuse(status, "it hung up after its proof", why);
    if (welcome != WELCOME) return refuse(HPC_ERR_TRANSPORT, "it sent something else than a welcome", why);
    return HPC_OK;
}

/* ---- the called side ---- */

void hpc_greeting_start(hpc_greeting *greeting) {
    memset(greeting, 0, sizeof *greeting);
    greeting->state = WAIT_HELLO;
}

/* Returns the fault in the first got bytes of a hello; NULL if they are valid so far. */
static const char *fault_of_beginning(const hpc_hello *hello, size_t got) {
    if (got >= offsetof(hpc_hello, version) && hello->magic != MAGIC)
        return hello->magic == __builtin_bswap32(MAGIC) ? "another byte order" : "not hpcomm";
    if (got >= offsetof(hpc_hello, purpose) && hello->order != ORDER) return "another byte order";
    if (got >= offsetof(hpc_hello, purpose) && hello->version != VERSION) return "another version of hpcomm";
    return NULL;
}

static const char *fault_of_hello(const hpc_hello *hello, const unsigned char *name, int rank, int size) {
    if (hello->purpose < HPC_FOR_CONTROL || hello->purpose > HPC_FOR_RENDEZVOUS) return "an unknown purpose";
    if (!hpc_same_bytes(hello->name, name, HPC_NAME_BYTES)) return "it called another listener";
    if (rank >= 0 && hello->to != rank) return "it called another rank";
    if (rank >= 0 && hello->size != size) return "its job has another size";
    if (hello->from < 0 || hello->from >= hello->size) return "its rank is not in the job";
    if (hello->from == hello->to) return "it says that it is the rank that it calls";
    return NULL;
}

static int refuse_greeting(hpc_greeting *greeting, const char *words, const char **why) {
    greeting->state = REFUSED;
    return refuse(HPC_ERR_AUTH, words, why);
}

/* Adds bytes to a message that must have nbytes; returns whether it is complete. */
static int collect(hpc_greeting *greeting, void *into, size_t nbytes, const void *data, size_t n, size_t *used) {
    size_t missing = nbytes - greeting->got;
    *used = n < missing ? n : missing;
    if (*used > 0) memcpy((char *)into + greeting->got, data, *used);
    greeting->got += (uint32_t)*used;
    return greeting->got == nbytes;
}

static int take_hello(hpc_greeting *greeting, const void *data, size_t nbytes, size_t *used, const unsigned char *name,
                      int rank, int size, const char **why) {
    int whole = collect(greeting, &greeting->hello, sizeof greeting->hello, data, nbytes, used);
    const char *fault = fault_of_beginning(&greeting->hello, greeting->got);
    if (fault == NULL && whole) fault = fault_of_hello(&greeting->hello, name, rank, size);
    if (fault != NULL) return refuse_greeting(greeting, fault, why);
    if (whole) greeting->state = WAIT_KEY;
    return HPC_IN_PROGRESS;
}

static int answer_hello(hpc_greeting *greeting, const unsigned char *key, hpc_answer *answer, const char **why) {
    if (!draw(greeting->nonce)) return refuse_greeting(greeting, "the kernel gives no random numbers", why);
    memcpy(answer->bytes, greeting->nonce, HPC_NONCE_BYTES);
    prove(called_label, key, &greeting->hello, greeting->nonce, answer->bytes + HPC_NONCE_BYTES);
    answer->ready = 1;
    greeting->got = 0;
    greeting->state = WAIT_PROOF;
    return HPC_IN_PROGRESS;
}

static int take_proof(hpc_greeting *greeting, const void *data, size_t nbytes, size_t *used, const unsigned char *key,
                      const char **why) {
    unsigned char proof[HPC_DIGEST_BYTES];
    if (!collect(greeting, greeting->proof, sizeof greeting->proof, data, nbytes, used)) return HPC_IN_PROGRESS;
    prove(caller_label, key, &greeting->hello, greeting->nonce, proof);
    if (!hpc_same_bytes(proof, greeting->proof, sizeof proof))
        return refuse_greeting(greeting, "it does not know the job's key", why);
    greeting->state = PROVEN;
    return HPC_OK;
}

int hpc_greeting_take(hpc_greeting *greeting, const void *data, size_t nbytes, size_t *used, const unsigned char *key,
                      const unsigned char name[HPC_NAME_BYTES], int rank, int size, hpc_answer *answer,
                      const char **why) {
    int status = HPC_IN_PROGRESS;
    *used = 0;
    answer->ready = 0;
    switch (greeting->state) {
    case WAIT_HELLO:
        status = take_hello(greeting, data, nbytes, used, name, rank, size, why);
        if (greeting->state != WAIT_KEY) return status;
        /* fall through */
    case WAIT_KEY:
        return key == NULL ? HPC_IN_PROGRESS : answer_hello(greeting, key, answer, why);
    case WAIT_PROOF:
        return key == NULL ? HPC_IN_PROGRESS : take_proof(greeting, data, nbytes, used, key, why);
    case PROVEN:
        return HPC_OK;
    default:
        return refuse(HPC_ERR_AUTH, "it was refused", why);
    }
}

/* Returns how many bytes may be read without reading past the greeting. */
static size_t wanted(const hpc_greeting *greeting) {
    if (greeting->state == WAIT_HELLO) return sizeof greeting->hello - greeting->got;
    if (greeting->state == WAIT_PROOF) return sizeof greeting->proof - greeting->got;
    return 0;
}

/* Checks a caller whose hello waits for the key: it may hang up, but must send nothing more. */
static int look_at_waiting(hpc_greeting *greeting, int fd, const char **why) {
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
    if (n > 0) return refuse_greeting(greeting, "it sent more than its hello", why);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return HPC_IN_PROGRESS;
    greeting->state = REFUSED;
    return refuse(HPC_ERR_TRANSPORT, "it hung up before its proof", why);
}

int hpc_greeting_step(hpc_greeting *greeting, int fd, const unsigned char *key,
                      const unsigned char name[HPC_NAME_BYTES], int rank, int size, const char **why) {
    unsigned char bytes[sizeof(hpc_hello)];
    size_t n = 0, used;
    hpc_answer answer;
    for (;;) {
        int status = hpc_greeting_take(greeting, bytes, n, &used, key, name, rank, size, &answer, why);
        if (status != HPC_IN_PROGRESS) return status;
        /* A new connection always has room for the answer; one without room is broken. */
        if (answer.ready &&
            send(fd, answer.bytes, sizeof answer.bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof answer.bytes) {
            greeting->state = REFUSED;
            return refuse(HPC_ERR_TRANSPORT, "it does not take our proof", why);
        }
        if (greeting->state == WAIT_KEY) return look_at_waiting(greeting, fd, why);
        if (key == NULL && greeting->state == WAIT_PROOF) return HPC_IN_PROGRESS;
        ssize_t came = recv(fd, bytes, wanted(greeting), MSG_DONTWAIT);
        if (came < 0 && errno == EAGAIN) return HPC_IN_PROGRESS;
        if (came < 0 && errno == EINTR) {
            n = 0;
            continue;
        }
        if (came <= 0) {
            greeting->state = REFUSED;
            return refuse(HPC_ERR_TRANSPORT, "it hung up before its proof", why);
        }
        n = (size_t)came;
    }
}

int hpc_greeting_end(int fd) {
    const unsigned char welcome = WELCOME;
    ssize_t n;
    do {
        n = send(fd, &welcome, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n == 1 ? HPC_OK : HPC_ERR_TRANSPORT;
}
