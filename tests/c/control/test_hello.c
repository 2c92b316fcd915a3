/* How a TCP connection begins, both ends by the library, over socket pairs and loopback: wrong keys, every flipped bit,
 * false called ones, silence and ends are told apart, and nobody is taken for proven who is not. */
#define _GNU_SOURCE
#include "handshake.h"
#include "base/wait.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct caller {
    int fd, status;
    const unsigned char *key;
    double deadline;
    const char *why;
    hpc_hello hello;
    pthread_t thread;
} caller;

static _Atomic int caller_waits; /* how often a caller has */
static _Thread_local int is_caller;
int poll(struct pollfd *fds, nfds_t n, int ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    if (is_caller) atomic_fetch_add(&caller_waits, 1);
    return ppoll(fds, n, ms < 0 ? NULL : &t, NULL);
}

static void *run_caller(void *arg) {
    caller *c = arg;
    is_caller = 1;
    c->status = hpc_hello_call(c->fd, &c->hello, c->key, c->deadline, &c->why);
    if (c->status != HPC_OK) shutdown(c->fd, SHUT_RDWR);
    return NULL;
}

static void start_caller(caller *c, int fd, const unsigned char *key, double seconds) {
    *c = (caller){.fd = fd, .key = key, .deadline = hpc_now() + seconds, .why = "", .hello = a_hello()};
    CHECK_EQ(pthread_create(&c->thread, NULL, run_caller, c), 0);
}

static void end_caller(caller *c, int status, const char *why) {
    CHECK_EQ(pthread_join(c->thread, NULL), 0);
    if (c->status != status || strstr(c->why, why) == NULL)
        fprintf(stderr, "status %d, why \"%s\", not %d, \"%s\"\n", c->status, c->why, status, why);
    CHECK(c->status == status && strstr(c->why, why) != NULL);
}

/* Steps until there is more to say than "in progress". */
static int serve(hpc_greeting *g, int fd, const unsigned char *key, const char **why) {
    int status;
    hpc_greeting_start(g);
    while ((status = step(g, fd, key, why)) == HPC_IN_PROGRESS) wait_readable(fd);
    return status;
}

static void test_meeting(int tcp) {
    int fds[2];
    caller c;
    hpc_greeting g;
    const char *why = "";
    connection(fds, tcp);
    start_caller(&c, fds[0], job_key, SOON);
    CHECK_OK(serve(&g, fds[1], job_key, &why));
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
    CHECK_OK(step(&g, fds[1], job_key, &why));
    close(fds[0]);
    CHECK_OK(step(&g, fds[1], job_key, &why)); /* it is proven, whatever comes later */
    close(fds[1]);
}

static void test_wrong_keys(int tcp) {
    for (int i = 0; i < 2; i++) {
        int fds[2];
        caller c;
        hpc_greeting g;
        const char *why = "";
        connection(fds, tcp);
        start_caller(&c, fds[0], i ? other_key : job_key, SOON);
        CHECK_STATUS(serve(&g, fds[1], i ? job_key : other_key, &why), HPC_ERR_TRANSPORT);
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
    start_caller(&c, left[0], job_key, SOON);
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
        status = step(&g, right[1], job_key, &why);
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

/* Attempts of a false called side on a caller: an answer of an earlier connection, the caller's kind of proof, its own
 * hello back; and a caller never proves itself to it. */
static void test_false_called(int tcp) {
    unsigned char answer[ANSWER] = {0}, earlier[ANSWER], byte;
    hpc_hello hello, earlier_hello;
    memset(&earlier_hello, 0, sizeof earlier_hello);
    for (int trick = 0; trick < 4; trick++) {
        int fds[2];
        caller c;
        connection(fds, tcp);
        start_caller(&c, fds[0], job_key, SOON);
        receive_bytes(fds[1], &hello, sizeof hello);
        CHECK(memcmp(hello.nonce, earlier_hello.nonce, sizeof hello.nonce) != 0);
        earlier_hello = hello;
        if (trick == 0) {
            prove("hpcomm called", job_key, &hello, answer, answer + HPC_NONCE_BYTES);
            memcpy(earlier, answer, sizeof earlier);
            send_bytes(fds[1], answer, sizeof answer);
            receive_bytes(fds[1], answer, PROOF);
            send_bytes(fds[1], &(char){WELCOME}, 1);
            end_caller(&c, HPC_OK, "");
        } else {
            if (trick == 1) memcpy(answer, earlier, sizeof answer);
            if (trick == 2) prove("hpcomm caller", job_key, &hello, answer, answer + HPC_NONCE_BYTES);
            if (trick == 3) memcpy(answer, &hello, sizeof answer);
            send_bytes(fds[1], answer, sizeof answer);
            end_caller(&c, HPC_ERR_AUTH, "does not know the job's key");
            CHECK_EQ(recv(fds[1], &byte, 1, 0), 0);
        }
        close(fds[0]);
        close(fds[1]);
    }
}

static void test_late_key(int tcp) {
    int fds[2];
    caller c;
    hpc_greeting g;
    const char *why = "";
    connection(fds, tcp);
    hpc_greeting_start(&g);
    start_caller(&c, fds[0], job_key, SOON);
    while (g.got < sizeof(hpc_hello)) {
        wait_readable(fds[1]);
        CHECK_STATUS(step(&g, fds[1], NULL, &why), HPC_IN_PROGRESS);
    }
    CHECK_STATUS(step(&g, fds[1], NULL, &why), HPC_IN_PROGRESS);
    int status = step(&g, fds[1], job_key, &why);
    for (; status == HPC_IN_PROGRESS; status = step(&g, fds[1], job_key, &why)) wait_readable(fds[1]);
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
            /* Whoever answers needs some time of it, on a busy machine too. */
            double start = hpc_now(), seconds = !silent ? SOON : sent == 0 ? 0.05 : 1;
            if (seconds == 1 && !tcp) continue;
            connection(fds, tcp);
            start_caller(&c, fds[0], job_key, seconds);
            receive_bytes(fds[1], &hello, sizeof hello);
            prove("hpcomm called", job_key, &hello, answer, answer + HPC_NONCE_BYTES);
            send_bytes(fds[1], answer, (size_t)sent);
            if (sent == ANSWER) receive_bytes(fds[1], proof, sizeof proof);
            if (!silent) shutdown(fds[1], SHUT_RDWR);
            if (silent)
                end_caller(&c, HPC_ERR_TIMEOUT, sent < ANSWER ? "did not answer in time" : "did not welcome us");
            else
                end_caller(&c, HPC_ERR_TRANSPORT, sent < ANSWER ? "before its proof" : "after its proof");
            CHECK(!silent || hpc_now() - start >= seconds);
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
        atomic_store(&caller_waits, 0);
        start_caller(&c, fds[0], job_key, drained ? SOON : 0.05);
        if (drained) {
            while (atomic_load(&caller_waits) == 0 && hpc_left(c.deadline) > 0) sched_yield();
            for (; filled > 0; filled -= (size_t)n) {
                wait_readable(fds[1]);
                n = recv(fds[1], junk, filled < sizeof junk ? filled : sizeof junk, 0);
                CHECK(n > 0);
            }
            CHECK_OK(serve(&g, fds[1], job_key, &why));
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
    start_caller(&c, fds[0], job_key, SOON);
    receive_bytes(fds[1], &hello, sizeof hello);
    prove("hpcomm called", job_key, &hello, answer, answer + HPC_NONCE_BYTES);
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
    CHECK_STATUS(hpc_hello_call(fds[0], &hello, job_key, hpc_now() + SOON, &why), HPC_ERR_TRANSPORT);
    CHECK(strstr(why, "before its proof") != NULL);
    CHECK_STATUS(hpc_greeting_end(fds[0]), HPC_ERR_TRANSPORT);
    close(fds[0]);

    hpc_greeting g;
    hello = good_hello();
    connection(fds, 0);
    send_bytes(fds[0], &hello, sizeof hello);
    close(fds[0]);
    CHECK_STATUS(serve(&g, fds[1], job_key, &why), HPC_ERR_TRANSPORT);
    CHECK(why[0] != '\0');
    close(fds[1]);
}

int main(void) {
    for (int tcp = 0; tcp < 2; tcp++) {
        test_meeting(tcp);
        test_wrong_keys(tcp);
        test_false_called(tcp);
        test_late_key(tcp);
        test_broken_called(tcp);
        test_signals(tcp);
    }
    test_flipped_bits();
    test_full_connection();
    test_gone();
    CHECK_EQ(hpc_last_error()->status, HPC_OK);
    return 0;
}
