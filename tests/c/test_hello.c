/* How a TCP connection begins: both ends prove themselves, over socket pairs and loopback; wrong keys, every flipped
 * bit, every cut, replays, reflections, strangers and silence are refused. The wire format is written down here once
 * more. */
#define _GNU_SOURCE
#include "check.h"
#include "hello.h"
#include "wait.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

enum { RANK = 0, CALLER = 3, SIZE = 4, PROOF = HPC_DIGEST_BYTES, ANSWER = HPC_NONCE_BYTES + PROOF, WELCOME = 0x77 };
enum { WHOLE = sizeof(hpc_hello) + PROOF };

static const unsigned char key[PROOF] = "the key of this job, 32 bytes..", other_key[PROOF] = "the key of another job";
static const unsigned char name[HPC_NAME_BYTES] = "a listener name";
static const double SOON = 20; /* a deadline that no test should meet */

static uint32_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* ---- connections ---- */

static void loopback_pair(int fds[2]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(fds[0], (struct sockaddr *)&a, sizeof a), 0);
    fds[1] = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
    CHECK(fds[1] >= 0 && fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
    for (int i = 0; i < 2; i++) CHECK_EQ(setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), 0);
    close(fd);
}

static void connection(int fds[2], int tcp) {
    if (tcp)
        loopback_pair(fds);
    else
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
}

static void wait_readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, (int)SOON * 1000), 1);
}

static void send_bytes(int fd, const void *data, size_t nbytes) {
    CHECK_EQ(send(fd, data, nbytes, MSG_NOSIGNAL), nbytes);
}

static void receive_bytes(int fd, void *data, size_t nbytes) {
    for (size_t got = 0; got < nbytes;) {
        wait_readable(fd);
        ssize_t n = recv(fd, (char *)data + got, nbytes - got, 0);
        CHECK(n > 0);
        got += (size_t)n;
    }
}

/* ---- both sides by the library ---- */

typedef struct caller {
    int fd, status;
    const unsigned char *key;
    double deadline;
    const char *why;
    hpc_hello hello;
    pthread_t thread;
} caller;

static hpc_hello a_hello(void) {
    hpc_hello h;
    memset(&h, 0xa5, sizeof h); /* what the library fills in, and what it must not send as it is */
    h.purpose = HPC_FOR_LANE;
    h.stream = 2;
    h.from = CALLER;
    h.to = RANK;
    h.size = SIZE;
    h.lane = 7;
    memcpy(h.name, name, sizeof name);
    return h;
}

static void *run_caller(void *arg) {
    caller *c = arg;
    c->status = hpc_hello_call(c->fd, &c->hello, c->key, c->deadline, &c->why);
    if (c->status != HPC_OK) shutdown(c->fd, SHUT_RDWR);
    return NULL;
}

static void start_caller(caller *c, int fd, const unsigned char *with_key, double seconds) {
    *c = (caller){.fd = fd, .key = with_key, .deadline = hpc_now() + seconds, .why = "", .hello = a_hello()};
    CHECK_EQ(pthread_create(&c->thread, NULL, run_caller, c), 0);
}

static void end_caller(caller *c, int status, const char *why) {
    CHECK_EQ(pthread_join(c->thread, NULL), 0);
    if (c->status != status || strstr(c->why, why) == NULL)
        fprintf(stderr, "status %d, why \"%s\", not %d, \"%s\"\n", c->status, c->why, status, why);
    CHECK(c->status == status && strstr(c->why, why) != NULL);
}

static int step(hpc_greeting *g, int fd, const unsigned char *with_key, const char **why) {
    return hpc_greeting_step(g, fd, with_key, name, RANK, SIZE, why);
}

/* Steps until there is more to say than "in progress". */
static int serve(hpc_greeting *g, int fd, const unsigned char *with_key, const char **why) {
    int status;
    hpc_greeting_start(g);
    while ((status = step(g, fd, with_key, why)) == HPC_IN_PROGRESS) wait_readable(fd);
    return status;
}

static void test_meeting(int tcp) {
    int fds[2];
    caller c;
    hpc_greeting g;
    const char *why = "";
    connection(fds, tcp);
    start_caller(&c, fds[0], key, SOON);
    CHECK_OK(serve(&g, fds[1], key, &why));
    CHECK_EQ(g.hello.from, CALLER);
    CHECK_EQ(g.hello.lane, 7);
    CHECK_EQ(g.hello.stream, 2);
    CHECK_EQ(g.hello.unused, 0);
    CHECK_OK(hpc_greeting_end(fds[1]));
    end_caller(&c, HPC_OK, "");
    CHECK(memcmp(&c.hello, &g.hello, sizeof g.hello) == 0);
    char byte; /* nothing is left over on either side */
    CHECK(recv(fds[0], &byte, 1, 0) < 0 && errno == EAGAIN);
    CHECK(recv(fds[1], &byte, 1, 0) < 0 && errno == EAGAIN);
    CHECK_OK(step(&g, fds[1], key, &why));
    close(fds[0]);
    CHECK_OK(step(&g, fds[1], key, &why)); /* it is proven, whatever comes later */
    close(fds[1]);
}

static void test_wrong_keys(int tcp) {
    for (int i = 0; i < 2; i++) {
        int fds[2];
        caller c;
        hpc_greeting g;
        const char *why = "";
        connection(fds, tcp);
        start_caller(&c, fds[0], i ? other_key : key, SOON);
        CHECK_STATUS(serve(&g, fds[1], i ? key : other_key, &why), HPC_ERR_TRANSPORT);
        CHECK(strstr(why, "hung up before its proof") != NULL);
        end_caller(&c, HPC_ERR_AUTH, "does not know the job's key");
        close(fds[0]);
        close(fds[1]);
    }
}

/* Somebody between the two who turns one bit of one message: neither end may take the other for proven. The last
 * message is the welcome, by then the called side has proven the caller. */
static void test_flipped_bit(int message, size_t bit) {
    enum { HELLO_AT = 0, ANSWER_AT, PROOF_AT, WELCOME_AT };
    unsigned char bytes[sizeof(hpc_hello)];
    int left[2], right[2], status;
    caller c;
    hpc_greeting g;
    const char *why = "";
    const size_t sizes[] = {sizeof(hpc_hello), ANSWER, PROOF, 1};
    connection(left, 0);
    connection(right, 0);
    hpc_greeting_start(&g);
    start_caller(&c, left[0], key, SOON);
    for (int m = HELLO_AT;; m++) {
        int from = m % 2 == 0 ? left[1] : right[0], to = m % 2 == 0 ? right[0] : left[1];
        receive_bytes(from, bytes, sizes[m]);
        if (m == message) bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        send_bytes(to, bytes, sizes[m]);
        if (m == ANSWER_AT && message <= ANSWER_AT) { /* the caller must see that it is not whole */
            end_caller(&c, HPC_ERR_AUTH, "does not know");
            break;
        }
        if (m == WELCOME_AT) {
            end_caller(&c, HPC_ERR_TRANSPORT, "something else than a welcome");
            break;
        }
        if (m == ANSWER_AT) continue;
        status = step(&g, right[1], key, &why);
        if (m == PROOF_AT && message == WELCOME_AT) {
            CHECK_OK(status);
            CHECK_OK(hpc_greeting_end(right[1]));
        } else if (m == message && (m == PROOF_AT || status != HPC_IN_PROGRESS)) {
            CHECK_STATUS(status, HPC_ERR_AUTH);
            close(left[1]);
            end_caller(&c, HPC_ERR_TRANSPORT, m == HELLO_AT ? "before its proof" : "after its proof");
            left[1] = -1;
            break;
        } else {
            CHECK_STATUS(status, HPC_IN_PROGRESS);
        }
    }
    if (left[1] >= 0) close(left[1]);
    close(left[0]);
    close(right[0]);
    close(right[1]);
}

static void test_flipped_bits(void) {
    const size_t sizes[] = {sizeof(hpc_hello), ANSWER, PROOF, 1};
    for (int message = 0; message < 4; message++)
        for (size_t bit = 0; bit < 8 * sizes[message]; bit++) test_flipped_bit(message, bit);
}

/* ---- a caller of one's own ---- */

static void prove(const char *label, const unsigned char *with_key, const void *hello, const void *nonce, void *proof) {
    const hpc_bytes parts[] = {{label, strlen(label)}, {hello, sizeof(hpc_hello)}, {nonce, HPC_NONCE_BYTES}};
    hpc_hmac(with_key, PROOF, parts, 3, proof);
}

static hpc_hello good_hello(void) {
    hpc_hello h = a_hello();
    h.magic = 0x6870636d;
    h.version = 1;
    h.order = 0x0102;
    h.unused = 0;
    for (int i = 0; i < HPC_NONCE_BYTES; i++) h.nonce[i] = (unsigned char)random_bits();
    return h;
}

/* Gives n bytes to a greeting as a step would; how many it took. */
static int take(hpc_greeting *g, const void *data, size_t n, size_t *used, hpc_answer *answer, const char **why) {
    void *exact = malloc(n); /* so that a sanitizer sees every byte read too many */
    CHECK(exact != NULL || n == 0);
    if (n > 0) memcpy(exact, data, n);
    int status = hpc_greeting_take(g, exact, n, used, key, name, RANK, SIZE, answer, why);
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
            prove("hpcomm caller", key, hello, answer.bytes, stream + sizeof *hello);
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
        CHECK_STATUS(step(&g, fds[1], key, &why), HPC_IN_PROGRESS);
        for (size_t at = 0; at < sizeof stream;) {
            size_t message_end = at < sizeof hello ? sizeof hello : sizeof stream;
            size_t end = at < cut && cut < message_end ? cut : message_end;
            send_bytes(fds[0], stream + at, end - at);
            at = end;
            wait_readable(fds[1]);
            CHECK_STATUS(status, HPC_IN_PROGRESS);
            status = step(&g, fds[1], key, &why);
            if (at != sizeof hello) continue;
            receive_bytes(fds[0], answer, sizeof answer);
            prove("hpcomm caller", key, &hello, answer, stream + sizeof hello);
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
        int status = hpc_greeting_take(&g, &h, sizeof h, &used, key, name, -1, 0, &answer, &why);
        CHECK_STATUS(status, from >= 0 && from < 9 && from != 5 ? HPC_IN_PROGRESS : HPC_ERR_AUTH);
        CHECK_EQ(answer.ready, status == HPC_IN_PROGRESS);
    }
}

/* ---- what only the key's owner may do ---- */

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
    prove("hpcomm called", key, &hello, answer.bytes, proof);
    CHECK(memcmp(proof, answer.bytes + HPC_NONCE_BYTES, PROOF) == 0);
    CHECK_STATUS(give_proof(&g, answer.bytes + HPC_NONCE_BYTES), HPC_ERR_AUTH); /* its own, reflected */

    give_hello(&g, &hello, &answer);
    prove("hpcomm caller", other_key, &hello, answer.bytes, proof);
    CHECK_STATUS(give_proof(&g, proof), HPC_ERR_AUTH);

    for (size_t i = 0; i < sizeof hello; i++) {
        other = hello;
        ((unsigned char *)&other)[i] ^= 1;
        give_hello(&g, &hello, &answer);
        prove("hpcomm caller", key, &other, answer.bytes, proof);
        CHECK_STATUS(give_proof(&g, proof), HPC_ERR_AUTH);
    }
    for (int i = 0; i < HPC_NONCE_BYTES; i++) {
        give_hello(&g, &hello, &answer);
        memcpy(nonce, answer.bytes, sizeof nonce);
        nonce[i] ^= 1;
        prove("hpcomm caller", key, &hello, nonce, proof);
        CHECK_STATUS(give_proof(&g, proof), HPC_ERR_AUTH);
    }

    /* The same hello once more: another nonce, so that the proof that was good is worth nothing. */
    give_hello(&g, &hello, &answer);
    prove("hpcomm caller", key, &hello, answer.bytes, proof);
    CHECK_OK(give_proof(&g, proof));
    give_hello(&g, &hello, &again);
    CHECK(memcmp(answer.bytes, again.bytes, HPC_NONCE_BYTES) != 0);
    CHECK_STATUS(give_proof(&g, proof), HPC_ERR_AUTH);
}

/* What a false called side may try on a caller: an answer of an earlier connection, the caller's kind of proof, its own
 * hello back; and a caller never proves itself to it. */
static void test_false_called(int tcp) {
    unsigned char answer[ANSWER] = {0}, earlier[ANSWER], byte;
    hpc_hello hello, earlier_hello;
    memset(&earlier_hello, 0, sizeof earlier_hello);
    for (int trick = 0; trick < 4; trick++) {
        int fds[2];
        caller c;
        connection(fds, tcp);
        start_caller(&c, fds[0], key, SOON);
        receive_bytes(fds[1], &hello, sizeof hello);
        CHECK(memcmp(hello.nonce, earlier_hello.nonce, sizeof hello.nonce) != 0);
        earlier_hello = hello;
        if (trick == 0) {
            prove("hpcomm called", key, &hello, answer, answer + HPC_NONCE_BYTES);
            memcpy(earlier, answer, sizeof earlier);
            send_bytes(fds[1], answer, sizeof answer);
            receive_bytes(fds[1], answer, PROOF);
            send_bytes(fds[1], &(char){WELCOME}, 1);
            end_caller(&c, HPC_OK, "");
        } else {
            if (trick == 1) memcpy(answer, earlier, sizeof answer);
            if (trick == 2) prove("hpcomm caller", key, &hello, answer, answer + HPC_NONCE_BYTES);
            if (trick == 3) memcpy(answer, &hello, sizeof answer);
            send_bytes(fds[1], answer, sizeof answer);
            end_caller(&c, HPC_ERR_AUTH, "does not know the job's key");
            CHECK_EQ(recv(fds[1], &byte, 1, 0), 0);
        }
        close(fds[0]);
        close(fds[1]);
    }
}

/* ---- strangers, silence, ends ---- */

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
        CHECK_STATUS(step(&g, fds[1], key, &why), HPC_IN_PROGRESS);
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

static void test_late_key(int tcp) {
    int fds[2];
    caller c;
    hpc_greeting g;
    const char *why = "";
    connection(fds, tcp);
    hpc_greeting_start(&g);
    start_caller(&c, fds[0], key, SOON);
    while (g.got < sizeof(hpc_hello)) {
        wait_readable(fds[1]);
        CHECK_STATUS(step(&g, fds[1], NULL, &why), HPC_IN_PROGRESS);
    }
    CHECK_STATUS(step(&g, fds[1], NULL, &why), HPC_IN_PROGRESS);
    int status = step(&g, fds[1], key, &why);
    for (; status == HPC_IN_PROGRESS; status = step(&g, fds[1], key, &why)) wait_readable(fds[1]);
    CHECK_OK(status);
    CHECK_OK(hpc_greeting_end(fds[1]));
    end_caller(&c, HPC_OK, "");
    close(fds[0]);
    close(fds[1]);

    /* While it waits for the key: a caller that goes, and one that sends more. */
    for (int more = 0; more < 2; more++) {
        unsigned char bytes[sizeof(hpc_hello) + 1] = {0};
        hpc_hello hello = good_hello();
        connection(fds, tcp);
        hpc_greeting_start(&g);
        send_bytes(fds[0], &hello, 10);
        wait_readable(fds[1]);
        CHECK_STATUS(step(&g, fds[1], NULL, &why), HPC_IN_PROGRESS);
        memcpy(bytes, &hello, sizeof hello);
        send_bytes(fds[0], bytes + 10, sizeof hello - 10 + (size_t)more);
        if (!more) {
            wait_readable(fds[1]);
            CHECK_STATUS(step(&g, fds[1], NULL, &why), HPC_IN_PROGRESS);
            close(fds[0]);
        }
        wait_readable(fds[1]);
        CHECK_STATUS(step(&g, fds[1], NULL, &why), more ? HPC_ERR_AUTH : HPC_ERR_TRANSPORT);
        CHECK(strstr(why, more ? "more than its hello" : "hung up before its proof") != NULL);
        if (more) close(fds[0]);
        close(fds[1]);
    }
}

/* A called side that falls silent, or hangs up, after so many of its bytes. */
static void test_broken_called(int tcp) {
    for (int silent = 0; silent < 2; silent++) {
        for (int sent = 0; sent <= ANSWER; sent += sent < ANSWER - 1 ? ANSWER - 1 : 1) {
            unsigned char answer[ANSWER] = {0}, proof[PROOF];
            int fds[2];
            caller c;
            hpc_hello hello;
            double start = hpc_now();
            connection(fds, tcp);
            start_caller(&c, fds[0], key, silent ? 0.05 : SOON);
            receive_bytes(fds[1], &hello, sizeof hello);
            prove("hpcomm called", key, &hello, answer, answer + HPC_NONCE_BYTES);
            send_bytes(fds[1], answer, (size_t)sent);
            if (sent == ANSWER) receive_bytes(fds[1], proof, sizeof proof);
            if (!silent) shutdown(fds[1], SHUT_RDWR);
            if (silent)
                end_caller(&c, HPC_ERR_TIMEOUT, sent < ANSWER ? "did not answer in time" : "did not welcome us");
            else
                end_caller(&c, HPC_ERR_TRANSPORT, sent < ANSWER ? "before its proof" : "after its proof");
            CHECK(!silent || hpc_now() - start >= 0.05);
            CHECK(hpc_now() - start < SOON / 2);
            close(fds[0]);
            close(fds[1]);
        }
    }
}

/* Nobody reads: the caller's hello has no room until somebody does. */
static void test_full_connection(void) {
    static char junk[1 << 16];
    for (int drained = 0; drained < 2; drained++) {
        int fds[2];
        size_t filled = 0;
        ssize_t n;
        caller c;
        hpc_greeting g;
        const char *why = "";
        connection(fds, 0);
        while ((n = send(fds[0], junk, sizeof junk, 0)) > 0) filled += (size_t)n;
        start_caller(&c, fds[0], key, drained ? SOON : 0.05);
        if (drained) {
            for (; filled > 0; filled -= (size_t)n) {
                wait_readable(fds[1]);
                n = recv(fds[1], junk, filled < sizeof junk ? filled : sizeof junk, 0);
                CHECK(n > 0);
            }
            CHECK_OK(serve(&g, fds[1], key, &why));
            CHECK_OK(hpc_greeting_end(fds[1]));
            end_caller(&c, HPC_OK, "");
        } else {
            end_caller(&c, HPC_ERR_TIMEOUT, "in time");
        }
        close(fds[0]);
        close(fds[1]);
    }
}

static void on_signal(int number) {
    (void)number;
}

static void test_signals(int tcp) {
    struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART */
    int fds[2];
    caller c;
    hpc_hello hello;
    unsigned char answer[ANSWER] = {0};
    CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    connection(fds, tcp);
    start_caller(&c, fds[0], key, SOON);
    receive_bytes(fds[1], &hello, sizeof hello);
    prove("hpcomm called", key, &hello, answer, answer + HPC_NONCE_BYTES);
    for (int i = 0; i < ANSWER; i++) {
        CHECK_EQ(pthread_kill(c.thread, SIGUSR1), 0);
        sched_yield();
        send_bytes(fds[1], answer + i, 1);
    }
    receive_bytes(fds[1], answer, PROOF);
    send_bytes(fds[1], &(char){WELCOME}, 1);
    end_caller(&c, HPC_OK, "");
    close(fds[0]);
    close(fds[1]);
}

/* An end that is gone is a status, not SIGPIPE. */
static void test_gone(void) {
    int fds[2];
    const char *why = "";
    hpc_hello hello = a_hello();
    connection(fds, 0);
    close(fds[1]);
    CHECK_STATUS(hpc_hello_call(fds[0], &hello, key, hpc_now() + SOON, &why), HPC_ERR_TRANSPORT);
    CHECK(strstr(why, "before its proof") != NULL);
    CHECK_STATUS(hpc_greeting_end(fds[0]), HPC_ERR_TRANSPORT);
    close(fds[0]);

    hpc_greeting g;
    hello = good_hello();
    connection(fds, 0);
    send_bytes(fds[0], &hello, sizeof hello);
    close(fds[0]);
    CHECK_STATUS(serve(&g, fds[1], key, &why), HPC_ERR_TRANSPORT);
    CHECK(why[0] != '\0');
    close(fds[1]);
}

int main(void) {
    for (int tcp = 0; tcp < 2; tcp++) {
        test_meeting(tcp);
        test_wrong_keys(tcp);
        test_cuts_of_step(tcp);
        test_false_called(tcp);
        test_strangers(tcp);
        test_late_key(tcp);
        test_broken_called(tcp);
        test_signals(tcp);
    }
    test_flipped_bits();
    test_cuts();
    test_refused_hellos();
    test_any_rank();
    test_bound_proofs();
    test_random_bytes();
    test_full_connection();
    test_gone();
    CHECK_EQ(hpc_last_error()->status, HPC_OK);
    return 0;
}
