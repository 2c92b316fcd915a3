/* The called side of a connection's beginning, told what came: any cut of it, what it refuses, and that a proof is good
 * for one role, one key, one hello and one nonce. */
#define _GNU_SOURCE
#include "handshake.h"

#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

/* Gives n bytes to a greeting as a step would; how many it took. */
static int take(hpc_greeting *g, const void *data, size_t n, size_t *used, hpc_answer *answer, const char **why) {
    void *exact = malloc(n); /* so that a sanitizer sees every byte read too many */
    CHECK(exact != NULL || n == 0);
    if (n > 0) memcpy(exact, data, n);
    int status = hpc_greeting_take(g, exact, n, used, job_key, listener, RANK, SIZE, answer, why);
    CHECK(*used <= n);
    free(exact);
    return status;
}

/* The whole stream of a caller in pieces that end at the cuts; *answered counts the answers. */
static int feed(hpc_greeting *g, const hpc_hello *hello, const size_t *cuts, int n_cuts, const char **why) {
    unsigned char stream[WHOLE];
    size_t at = 0, used;
    int status = HPC_IN_PROGRESS, answers = 0;
    hpc_answer answer;
    memcpy(stream, hello, sizeof *hello);
    hpc_greeting_start(g);
    for (int i = 0; i <= n_cuts && status == HPC_IN_PROGRESS; i++) {
        size_t end = i < n_cuts ? cuts[i] : WHOLE;
        while (at < end && status == HPC_IN_PROGRESS) {
            status = take(g, stream + at, end - at, &used, &answer, why);
            at += used;
            CHECK(used > 0);
            CHECK_EQ(answer.ready, at == sizeof *hello);
            if (!answer.ready) continue;
            answers++;
            prove("hpcomm caller", job_key, hello, answer.bytes, stream + sizeof *hello);
        }
    }
    CHECK_EQ(at, WHOLE);
    CHECK_EQ(answers, 1);
    return status;
}

static void test_cuts(void) {
    hpc_greeting g;
    const char *why = "";
    hpc_hello hello = good_hello();
    size_t cuts[WHOLE];
    CHECK_OK(feed(&g, &hello, NULL, 0, &why));
    for (cuts[0] = 0; cuts[0] <= WHOLE; cuts[0]++)
        for (cuts[1] = cuts[0]; cuts[1] <= WHOLE; cuts[1]++) CHECK_OK(feed(&g, &hello, cuts, 2, &why));
    for (size_t i = 0; i < WHOLE; i++) cuts[i] = i;
    CHECK_OK(feed(&g, &hello, cuts, WHOLE, &why));
}

/* The same through a socket, and what follows the proof at once stays there. */
static void test_cuts_of_step(int tcp) {
    for (size_t cut = 1; cut < WHOLE; cut++) {
        unsigned char stream[WHOLE + 3], answer[ANSWER], rest[8];
        int fds[2], status = HPC_IN_PROGRESS;
        hpc_greeting g;
        const char *why = "";
        hpc_hello hello = good_hello();
        connection(fds, tcp);
        memcpy(stream, &hello, sizeof hello);
        memcpy(stream + WHOLE, "xyz", 3);
        hpc_greeting_start(&g);
        CHECK_STATUS(step(&g, fds[1], job_key, &why), HPC_IN_PROGRESS);
        for (size_t at = 0; at < sizeof stream;) {
            size_t message_end = at < sizeof hello ? sizeof hello : sizeof stream;
            size_t end = at < cut && cut < message_end ? cut : message_end;
            send_bytes(fds[0], stream + at, end - at);
            at = end;
            wait_readable(fds[1]);
            CHECK_STATUS(status, HPC_IN_PROGRESS);
            status = step(&g, fds[1], job_key, &why);
            if (at != sizeof hello) continue;
            receive_bytes(fds[0], answer, sizeof answer);
            prove("hpcomm caller", job_key, &hello, answer, stream + sizeof hello);
        }
        CHECK_OK(status);
        CHECK_EQ(recv(fds[1], rest, sizeof rest, 0), 3);
        CHECK(memcmp(rest, "xyz", 3) == 0);
        close(fds[0]);
        close(fds[1]);
    }
}

static void check_refused(const hpc_hello *hello, const char *expected) {
    hpc_greeting g;
    hpc_answer answer;
    size_t used;
    const char *why = "";
    hpc_hello good = good_hello();
    hpc_greeting_start(&g);
    CHECK_STATUS(take(&g, hello, sizeof *hello, &used, &answer, &why), HPC_ERR_AUTH);
    if (strstr(why, expected) == NULL) fprintf(stderr, "\"%s\" is not \"%s\"\n", why, expected);
    CHECK(strstr(why, expected) != NULL);
    CHECK(!answer.ready);
    CHECK_STATUS(take(&g, &good, sizeof good, &used, &answer, &why), HPC_ERR_AUTH); /* for good */
    CHECK(used == 0 && !answer.ready && strcmp(why, "it was refused") == 0);
}

static void test_refused_hellos(void) {
    const struct {
        size_t at, nbytes;
        int64_t value;
        const char *why;
    } cases[] = {
        {offsetof(hpc_hello, magic), 4, 0x20544547, "not hpcomm"},
        {offsetof(hpc_hello, magic), 4, 0x6d637068, "another byte order"},
        {offsetof(hpc_hello, version), 2, 2, "another version of hpcomm"},
        {offsetof(hpc_hello, version), 2, 0, "another version of hpcomm"},
        {offsetof(hpc_hello, order), 2, 0x0201, "another byte order"},
        {offsetof(hpc_hello, purpose), 1, 0, "unknown purpose"},
        {offsetof(hpc_hello, purpose), 1, HPC_FOR_RENDEZVOUS + 1, "unknown purpose"},
        {offsetof(hpc_hello, purpose), 1, 255, "unknown purpose"},
        {offsetof(hpc_hello, from), 4, -1, "not in the job"},
        {offsetof(hpc_hello, from), 4, SIZE, "not in the job"},
        {offsetof(hpc_hello, from), 4, INT32_MIN, "not in the job"},
        {offsetof(hpc_hello, from), 4, RANK, "the rank that it calls"},
        {offsetof(hpc_hello, to), 4, RANK + 1, "another rank"},
        {offsetof(hpc_hello, to), 4, -1, "another rank"},
        {offsetof(hpc_hello, size), 4, SIZE + 1, "another size"},
        {offsetof(hpc_hello, size), 4, 0, "another size"},
        {offsetof(hpc_hello, name), 1, 'b', "another listener"},
        {offsetof(hpc_hello, name) + HPC_NAME_BYTES - 1, 1, 'b', "another listener"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hpc_hello h = good_hello();
        memcpy((char *)&h + cases[i].at, &cases[i].value, cases[i].nbytes);
        check_refused(&h, cases[i].why);
    }
}

/* Whoever cannot know its rank takes a hello to any, of any size; but not one that contradicts itself. */
static void test_any_rank(void) {
    for (int from = -1; from <= 9; from++) {
        hpc_greeting g;
        hpc_answer answer;
        size_t used;
        const char *why = "";
        hpc_hello h = good_hello();
        h.size = 9;
        h.to = 5;
        h.from = from;
        hpc_greeting_start(&g);
        int status = hpc_greeting_take(&g, &h, sizeof h, &used, job_key, listener, -1, 0, &answer, &why);
        CHECK_STATUS(status, from >= 0 && from < 9 && from != 5 ? HPC_IN_PROGRESS : HPC_ERR_AUTH);
        CHECK_EQ(answer.ready, status == HPC_IN_PROGRESS);
    }
}

static void give_hello(hpc_greeting *g, const hpc_hello *hello, hpc_answer *answer) {
    const char *why = "";
    size_t used;
    hpc_greeting_start(g);
    CHECK_STATUS(take(g, hello, sizeof *hello, &used, answer, &why), HPC_IN_PROGRESS);
    CHECK(answer->ready && used == sizeof *hello);
}

static int give_proof(hpc_greeting *g, const void *proof) {
    const char *why = "";
    size_t used;
    hpc_answer answer;
    int status = take(g, proof, PROOF, &used, &answer, &why);
    CHECK(!answer.ready);
    if (status != HPC_OK) CHECK(strstr(why, "does not know the job's key") != NULL);
    return status;
}

/* A proof binds its role, the key, every byte of the hello and the nonce of the called side. */
static void test_bound_proofs(void) {
    unsigned char proof[PROOF], nonce[HPC_NONCE_BYTES];
    hpc_greeting g;
    hpc_answer answer, again;
    hpc_hello hello = good_hello(), other;

    give_hello(&g, &hello, &answer);
    prove("hpcomm called", job_key, &hello, answer.bytes, proof);
    CHECK(memcmp(proof, answer.bytes + HPC_NONCE_BYTES, PROOF) == 0);
    CHECK_STATUS(give_proof(&g, answer.bytes + HPC_NONCE_BYTES), HPC_ERR_AUTH); /* its own, reflected */

    give_hello(&g, &hello, &answer);
    prove("hpcomm caller", other_key, &hello, answer.bytes, proof);
    CHECK_STATUS(give_proof(&g, proof), HPC_ERR_AUTH);

    for (size_t i = 0; i < sizeof hello; i++) {
        other = hello;
        ((unsigned char *)&other)[i] ^= 1;
        give_hello(&g, &hello, &answer);
        prove("hpcomm caller", job_key, &other, answer.bytes, proof);
        CHECK_STATUS(give_proof(&g, proof), HPC_ERR_AUTH);
    }
    for (int i = 0; i < HPC_NONCE_BYTES; i++) {
        give_hello(&g, &hello, &answer);
        memcpy(nonce, answer.bytes, sizeof nonce);
        nonce[i] ^= 1;
        prove("hpcomm caller", job_key, &hello, nonce, proof);
        CHECK_STATUS(give_proof(&g, proof), HPC_ERR_AUTH);
    }

    /* The same hello once more: another nonce, so that the proof that was good is worth nothing. */
    give_hello(&g, &hello, &answer);
    prove("hpcomm caller", job_key, &hello, answer.bytes, proof);
    CHECK_OK(give_proof(&g, proof));
    give_hello(&g, &hello, &again);
    CHECK(memcmp(answer.bytes, again.bytes, HPC_NONCE_BYTES) != 0);
    CHECK_STATUS(give_proof(&g, proof), HPC_ERR_AUTH);
}

static void test_strangers(int tcp) {
    static const char *const texts[] = {"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "\x16\x03\x01\x02"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int fds[2];
        hpc_greeting g;
        const char *why = "";
        connection(fds, tcp);
        hpc_greeting_start(&g);
        send_bytes(fds[0], texts[i], 3);
        wait_readable(fds[1]);
        CHECK_STATUS(step(&g, fds[1], job_key, &why), HPC_IN_PROGRESS);
        send_bytes(fds[0], texts[i] + 3, strlen(texts[i]) - 3);
        wait_readable(fds[1]);
        CHECK_STATUS(step(&g, fds[1], NULL, &why), HPC_ERR_AUTH); /* known at its fourth byte, also without the key */
        CHECK(strcmp(why, "not hpcomm") == 0);
        CHECK(recv(fds[0], &g, 1, 0) < 0); /* and has been told nothing */
        close(fds[0]);
        close(fds[1]);
    }
}

static void test_random_bytes(void) {
    for (int round = 0; round < 20000; round++) {
        unsigned char bytes[2 * WHOLE];
        hpc_hello hello = good_hello();
        hpc_greeting g;
        hpc_answer answer;
        const char *why = "";
        size_t at = 0, used, good = random_bits() % (sizeof hello + 1);
        int status = HPC_IN_PROGRESS;
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)random_bits();
        memcpy(bytes, &hello, good);
        hpc_greeting_start(&g);
        while (status == HPC_IN_PROGRESS && at < sizeof bytes) {
            size_t n = random_bits() % (sizeof bytes - at + 1);
            status = take(&g, bytes + at, n, &used, &answer, &why);
            at += used;
            CHECK(at <= WHOLE);
        }
        CHECK_STATUS(status, HPC_ERR_AUTH);
        CHECK(why[0] != '\0');
    }
}

int main(void) {
    test_cuts();
    test_refused_hellos();
    test_any_rank();
    test_bound_proofs();
    test_random_bytes();
    for (int tcp = 0; tcp < 2; tcp++) {
        test_cuts_of_step(tcp);
        test_strangers(tcp);
    }
    CHECK_EQ(hpc_last_error()->status, HPC_OK);
    return 0;
}
