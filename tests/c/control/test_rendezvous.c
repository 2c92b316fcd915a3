/* Ranks that meet over TCP without a launcher, each a process of this host, with and without strangers about. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "control/hello.h"
#include "control/letters.h"
#include "base/wait.h"

enum { MOST = 16, ROUNDS = 3, SECONDS = 90 };

/* How a rank calls. */
typedef struct caller {
    int rank, size, port;
    const char *host, *secret;
    double timeout;
    bool dies;         /* once all have come */
    bool stays_away;   /* once all have come: makes no allgather, but stays until the others have ended */
    size_t extra;      /* more bytes than the others give */
    rlim_t soft, hard; /* files that it may open; 0: as many as this process */
} caller;

/* The end of a rank's calls; in memory that the test shares with all ranks. */
typedef struct outcome {
    _Atomic int calling, ended;
    int status, n_ranks, n_waiting;
    int ranks[MOST], waiting_for[MOST];
    char message[1024];
    double seconds;
} outcome;

static outcome *outcomes;
static pid_t pids[MOST];

static const char SECRET[] = "sixteen or more bytes";

/* ---- ranks ---- */

static int give_and_check(const caller *c, hpc_rendezvous *rv, int round) {
    size_t n = (size_t[]){0, 1, 40000}[round] + c->extra;
    unsigned char *mine = malloc(n + 1), *all = malloc(n * (size_t)c->size + 1);
    memset(mine, 16 * round + c->rank, n);
    int status = hpc_rendezvous_allgather(rv, mine, all, n, c->timeout);
    for (size_t i = 0; status == HPC_OK && i < n * (size_t)c->size; i++) CHECK_EQ(all[i], 16 * round + (int)(i / n));
    free(mine);
    free(all);
    return status;
}

static void await_word(_Atomic int *word, int value) {
    double deadline = hpc_now() + SECONDS;
    while (atomic_load(word) != value) {
        CHECK(hpc_now() < deadline);
        poll(NULL, 0, 1);
    }
}

static void run_rank(const caller *c, outcome *o) {
    hpc_rendezvous *rv;
    double start = hpc_now();
    if (c->soft > 0) CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){c->soft, c->hard}) == 0);
    atomic_store(&o->calling, 1);
    int status = hpc_rendezvous_create(c->rank, c->size, c->host, c->port, c->secret, c->secret ? strlen(c->secret) : 0,
                                       c->timeout, &rv);
    CHECK((rv != NULL) == (status == HPC_OK));
    if (status == HPC_OK && c->dies) _exit(0);
    if (status == HPC_OK && c->stays_away)
        for (int i = 0; i < c->size; i++)
            if (&outcomes[i] != o) await_word(&outcomes[i].ended, 1);
    for (int round = 0; round < ROUNDS && status == HPC_OK && !c->stays_away; round++) {
        status = give_and_check(c, rv, round);
        if (status != HPC_OK) CHECK_EQ(give_and_check(c, rv, round), status); /* it stays over */
    }
    const hpc_error *error = hpc_last_error();
    o->status = status;
    o->seconds = hpc_now() - start;
    if (status != HPC_OK) {
        snprintf(o->message, sizeof o->message, "%s", error->message);
        CHECK(error->n_ranks <= MOST && error->n_waiting <= MOST);
        o->n_ranks = error->n_ranks;
        o->n_waiting = error->n_waiting;
        memcpy(o->ranks, error->ranks, (size_t)error->n_ranks * sizeof *o->ranks);
        memcpy(o->waiting_for, error->waiting_for, (size_t)error->n_waiting * sizeof *o->waiting_for);
        CHECK(strcmp(error->op, "init") == 0);
    }
    hpc_rendezvous_free(rv);
}

/* ---- the test's side ---- */

/* A port where nobody listens, below those of outgoing connections: a free one of these may be taken at any time. */
static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint16_t drawn;
    for (;;) {
        CHECK_EQ(getrandom(&drawn, sizeof drawn, 0), sizeof drawn);
        a.sin_port = htons((uint16_t)(20000 + drawn % 12000));
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), taken = bind(fd, (struct sockaddr *)&a, sizeof a);
        close(fd);
        if (!taken) return ntohs(a.sin_port);
    }
}

static int listen_there(int port) {
    const int on = 1;
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 64) == 0);
    return fd;
}

static caller a_caller(int rank, int size, int port) {
    return (caller){.rank = rank, .size = size, .port = port, .host = "127.0.0.1", .timeout = 20};
}

/* Process i is this rank. */
static void start(int i, caller c) {
    outcomes[i] = (outcome){.status = 1};
    pids[i] = fork();
    CHECK(pids[i] >= 0);
    if (pids[i] != 0) return;
    alarm(SECONDS);
    for (int fd = STDERR_FILENO + 1; fd < 256; fd++) close(fd); /* a listener of the test's would outlive it here */
    run_rank(&c, &outcomes[i]);
    atomic_store(&outcomes[i].ended, 1);
    exit(0); /* with the look at leaks */
}

static void finish(int n) {
    for (int i = 0; i < n; i++) {
        int status;
        CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* A job of n ranks by the same settings, with one that differs. */
static void run_job(int n, caller base, int odd, caller other) {
    for (int r = 0; r < n; r++) {
        base.rank = r;
        start(r, r == odd ? other : base);
    }
    finish(n);
}

#define CHECK_TEXT(i, text) check_text(i, text, __LINE__)
static void check_text(int i, const char *text, int line) {
    if (strstr(outcomes[i].message, text) != NULL) return;
    fprintf(stderr, "line %d: \"%s\" is not in what process %d was told: %s\n", line, text, i, outcomes[i].message);
    exit(1);
}

#define CHECK_OUTCOME(i, wanted) check_outcome(i, wanted, __LINE__)
static void check_outcome(int i, int wanted, int line) {
    if (outcomes[i].status == wanted) return;
    fprintf(stderr, "line %d: process %d ended with %s (%s), not %s\n", line, i, hpc_status_text(outcomes[i].status),
            outcomes[i].message, hpc_status_text(wanted));
    exit(1);
}

static bool names(const int *ranks, int n, int only) {
    return n == 1 && ranks[0] == only;
}

/* A connection to rank 0 as soon as it listens; as a rank of its job, proven, if from is not negative. */
static int call_rank_0(int port, int from, int size, const char *secret) {
    hpc_endpoint to = {.family = 4, .port = (uint16_t)port, .ip = {127, 0, 0, 1}};
    double deadline = hpc_now() + SECONDS;
    const hpc_bytes label = {"hpcomm rendezvous", 17};
    unsigned char key[HPC_DIGEST_BYTES];
    const char *why;
    int fd, error;
    while (hpc_net_connect(&to, deadline, &fd, &error) != HPC_OK) {
        CHECK(hpc_now() < deadline);
        poll(NULL, 0, 1);
    }
    if (from < 0) return fd;
    hpc_hello hello = {.purpose = HPC_FOR_RENDEZVOUS, .from = from, .to = 0, .size = size};
    hpc_hmac(secret, secret ? strlen(secret) : 0, &label, 1, key);
    CHECK_EQ(hpc_hello_call(fd, &hello, key, deadline, &why), HPC_OK);
    return fd;
}

/* The notice that rank 0 gives to such a caller. */
static hpc_notice told_by_rank_0(int fd, int size) {
    static unsigned char bytes[HPC_NOTICE_BYTES];
    hpc_notice notice;
    hpc_letters l;
    const char *why;
    int status = HPC_IN_PROGRESS;
    hpc_letters_init(&l, 1, bytes);
    while (status == HPC_IN_PROGRESS) {
        void *at;
        size_t room = hpc_letters_want(&l, &at);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        CHECK_EQ(poll(&p, 1, 1000 * SECONDS), 1);
        ssize_t n = recv(fd, at, room, 0);
        CHECK(n > 0);
        status = hpc_letters_got(&l, (size_t)n, &why);
    }
    CHECK_EQ(status, HPC_OK);
    CHECK_EQ(l.letter.type, HPC_LETTER_FAILED);
    CHECK(hpc_notice_read(bytes, l.letter.nbytes, size, &notice));
    close(fd);
    return notice;
}

/* ---- jobs that come up ---- */

static void sizes(void) {
    for (int i = 0; i < 4; i++) {
        int n = (int[]){1, 2, 3, 8}[i];
        caller c = a_caller(0, n, free_port());
        c.secret = i % 2 == 0 ? SECRET : NULL;
        run_job(n, c, -1, c);
        for (int r = 0; r < n; r++) CHECK_OUTCOME(r, HPC_OK);
    }
}

/* The others find first another server, which hangs up on them, then nobody. */
static void rank_0_comes_last(void) {
    enum { N = 4 };
    int port = free_port(), listener = listen_there(port);
    for (int r = 1; r < N; r++) start(r, a_caller(r, N, port));
    for (int r = 1; r < N; r++) {
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        close(fd);
    }
    for (int r = 1; r < N; r++) await_word(&outcomes[r].calling, 1); /* nobody has inherited it any more */
    close(listener);
    start(0, a_caller(0, N, port));
    finish(N);
    for (int r = 0; r < N; r++) CHECK_OUTCOME(r, HPC_OK);
}

static void by_name_and_by_ipv6(void) {
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool has_ipv6 = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (fd >= 0) close(fd);
    for (int i = 0; i < (has_ipv6 ? 2 : 1); i++) {
        caller c = a_caller(0, 2, free_port());
        c.host = i == 0 ? "localhost" : "::1";
        run_job(2, c, -1, c);
        CHECK_OUTCOME(0, HPC_OK);
        CHECK_OUTCOME(1, HPC_OK);
    }
}

/* The same port serves one rendezvous after the other. */
static void one_after_the_other(void) {
    caller c = a_caller(0, 3, free_port());
    for (int i = 0; i < 5; i++) {
        run_job(3, c, -1, c);
        for (int r = 0; r < 3; r++) CHECK_OUTCOME(r, HPC_OK);
    }
}

static void strangers_disturb_nobody(void) {
    enum { SILENT = 100 };
    static const char web[] = "GET / HTTP/1.1\r\nHost: node1\r\n\r\n";
    int port = free_port(), fds[SILENT + 3], n = 0;
    start(0, a_caller(0, 3, port));
    for (int i = 0; i < SILENT; i++) fds[n++] = call_rank_0(port, -1, 0, NULL);
    fds[n++] = call_rank_0(port, -1, 0, NULL);
    CHECK_EQ(send(fds[n - 1], web, sizeof web, MSG_NOSIGNAL), sizeof web);
    hpc_hello hello = {.magic = 0x6870636d, .version = 1, .order = 0x0102, .purpose = HPC_FOR_RENDEZVOUS, .size = 3};
    fds[n++] = call_rank_0(port, -1, 0, NULL);
    CHECK_EQ(send(fds[n - 1], &hello, sizeof hello / 2, MSG_NOSIGNAL), sizeof hello / 2);
    fds[n++] = call_rank_0(port, -1, 0, NULL); /* says that it is rank 1, and proves nothing */
    hello.from = 1;
    CHECK_EQ(send(fds[n - 1], &hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    char none[HPC_DIGEST_BYTES] = {0};
    CHECK_EQ(send(fds[n - 1], none, sizeof none, MSG_NOSIGNAL), sizeof none);
    start(1, a_caller(1, 3, port));
    start(2, a_caller(2, 3, port));
    finish(3);
    while (n > 0) close(fds[--n]);
    for (int r = 0; r < 3; r++) CHECK_OUTCOME(r, HPC_OK);
}

/* Rank 0 has few files: it takes no more than it needs, raises a soft limit, and names one that is too low. */
static void few_files(void) {
    struct rlimit own;
    CHECK(getrlimit(RLIMIT_NOFILE, &own) == 0);
    for (int i = 0; i < 3; i++) {
        enum { N = 8 };
        int port = free_port();
        for (int r = 0; r < N; r++) {
            caller c = a_caller(r, N, port);
            if (r == 0) c.soft = (rlim_t[]){24, 5, 8}[i], c.hard = i == 1 ? own.rlim_max : c.soft;
            if (i == 2) c.timeout = r == 0 ? 1 : 2;
            start(r, c);
        }
        finish(N);
        for (int r = 0; r < N && i < 2; r++) CHECK_OUTCOME(r, HPC_OK);
        if (i < 2) continue;
        CHECK_OUTCOME(0, HPC_ERR_TIMEOUT);
        CHECK_TEXT(0, "rank 0 cannot take more connections");
        CHECK_TEXT(0, "this process may open 8 files: raise ulimit -n");
    }
}

/* ---- ranks that are missed ---- */

/* Whoever has the shortest deadline, all are told the same. */
static void missing_rank(void) {
    for (int hasty = 0; hasty < 2; hasty++) {
        int port = free_port();
        for (int r = 0; r < 3; r++) {
            caller c = a_caller(r < 2 ? r : 3, 4, port);
            if (c.rank == hasty) c.timeout = 2;
            start(r, c);
        }
        finish(3);
        for (int r = 0; r < 3; r++) {
            CHECK_OUTCOME(r, HPC_ERR_TIMEOUT);
            CHECK_TEXT(r, "rank 2 never came to 127.0.0.1:");
            CHECK_TEXT(r, "a loopback address of rank 0's host");
            CHECK_TEXT(r, hasty == 0 ? "deadline of rank 0" : "deadline of rank 1");
            CHECK(outcomes[r].n_ranks == 0 && names(outcomes[r].waiting_for, outcomes[r].n_waiting, 2));
            CHECK(outcomes[r].seconds < 10);
        }
        CHECK_TEXT(2, "rank 3: init: ");
    }
}

static void nobody_at_rank_0(void) {
    caller c = a_caller(1, 2, free_port());
    c.timeout = 0.3;
    start(0, c);
    finish(1);
    CHECK_OUTCOME(0, HPC_ERR_TIMEOUT);
    CHECK(names(outcomes[0].waiting_for, outcomes[0].n_waiting, 0));
    CHECK_TEXT(0, "cannot reach rank 0 at 127.0.0.1:");
    CHECK_TEXT(0, "Connection refused");
}

/* Something listens there that is no hpcomm: it takes the call and says nothing. */
static void a_silent_server(void) {
    caller c = a_caller(1, 2, free_port());
    int listener = listen_there(c.port);
    c.timeout = 0.3;
    start(0, c);
    finish(1);
    CHECK_OUTCOME(0, HPC_ERR_TIMEOUT);
    CHECK_TEXT(0, "it did not answer in time");
    close(listener);
}

static void rank_that_stays_away_from_an_allgather(void) {
    for (int away = 0; away < 3; away++) {
        caller c = a_caller(0, 3, free_port()), other;
        c.timeout = 2;
        other = c;
        other.rank = away;
        other.stays_away = true;
        run_job(3, c, away, other);
        for (int r = 0; r < 3; r++) {
            if (r == away) continue;
            CHECK_OUTCOME(r, HPC_ERR_TIMEOUT);
            CHECK(names(outcomes[r].waiting_for, outcomes[r].n_waiting, away));
            CHECK(outcomes[r].seconds < 8);
        }
    }
}

/* ---- ranks that go ---- */

static void rank_dies_after_meeting(void) {
    for (int dead = 0; dead < 3; dead++) {
        caller c = a_caller(0, 3, free_port()), other = c;
        other.rank = dead;
        other.dies = true;
        run_job(3, c, dead, other);
        for (int r = 0; r < 3; r++) {
            if (r == dead) continue;
            CHECK_OUTCOME(r, HPC_ERR_PEER);
            CHECK(names(outcomes[r].ranks, outcomes[r].n_ranks, dead));
            CHECK(outcomes[r].seconds < 10);
        }
    }
}

static void rank_dies_while_others_are_missing(void) {
    int port = free_port();
    start(0, a_caller(0, 4, port));
    int other = call_rank_0(port, 1, 4, NULL);
    close(call_rank_0(port, 2, 4, NULL));
    hpc_notice notice = told_by_rank_0(other, 4);
    finish(1);
    CHECK_OUTCOME(0, HPC_ERR_PEER);
    CHECK_EQ(notice.status, HPC_ERR_PEER);
    CHECK(names(outcomes[0].ranks, outcomes[0].n_ranks, 2) && names(notice.ranks, notice.n_ranks, 2));
    CHECK(names(outcomes[0].waiting_for, outcomes[0].n_waiting, 3));
    CHECK_TEXT(0, "hung up");
    CHECK(strstr(notice.text, "rank 2 is gone") != NULL);
}

/* A proven rank that sends garbage is gone for the others, and nothing else happens. */
static void rank_that_raves(void) {
    static const char rave[] = "in Xanadu did Kubla Khan a stately pleasure-dome decree";
    const hpc_letter early = hpc_letter_make(HPC_LETTER_GIVE, 0, 8),
                     big = hpc_letter_make(HPC_LETTER_EXPIRED, 0, 1u << 31);
    for (int i = 0; i < 3; i++) {
        int port = free_port();
        start(0, a_caller(0, 4, port));
        int other = call_rank_0(port, 1, 4, NULL), fd = call_rank_0(port, 2, 4, NULL);
        CHECK(send(fd, i == 0 ? (const void *)rave : i == 1 ? &early : &big, sizeof early, MSG_NOSIGNAL) > 0);
        hpc_notice notice = told_by_rank_0(other, 4);
        finish(1);
        close(fd);
        CHECK_OUTCOME(0, HPC_ERR_PEER);
        CHECK_TEXT(0, "sent a message that cannot be read");
        CHECK(notice.status == HPC_ERR_PEER && names(notice.ranks, notice.n_ranks, 2));
    }
}

/* ---- ranks that disagree ---- */

static void wrong_secret(void) {
    caller c = a_caller(0, 3, free_port()), other;
    c.secret = SECRET;
    c.timeout = 2;
    other = c;
    other.rank = 2;
    other.timeout = 20;
    other.secret = "another sixteen bytes";
    run_job(3, c, 2, other);
    CHECK_OUTCOME(2, HPC_ERR_AUTH);
    CHECK_TEXT(2, "rank 2 does not know the job's secret");
    CHECK_TEXT(2, "HPCOMM_SECRET_FILE");
    CHECK(outcomes[2].seconds < 10);
    for (int r = 0; r < 2; r++) {
        CHECK_OUTCOME(r, HPC_ERR_TIMEOUT);
        CHECK(names(outcomes[r].waiting_for, outcomes[r].n_waiting, 2));
        CHECK_TEXT(r, "said it was rank 2, but does not know the job's secret");
    }
}

static void no_secret_for_one(void) {
    caller c = a_caller(0, 2, free_port()), other;
    c.secret = SECRET;
    c.timeout = 2;
    other = c;
    other.rank = 1;
    other.timeout = 20;
    other.secret = NULL;
    run_job(2, c, 1, other);
    CHECK_OUTCOME(0, HPC_ERR_TIMEOUT);
    CHECK_OUTCOME(1, HPC_ERR_AUTH);
}

static void short_secret(void) {
    caller c = a_caller(0, 2, free_port());
    c.secret = "fifteen bytes..";
    start(0, c);
    finish(1);
    CHECK_OUTCOME(0, HPC_ERR_INVALID);
    CHECK_TEXT(0, "15 bytes");
}

static void another_world_size(void) {
    int port = free_port();
    start(0, a_caller(0, 3, port));
    int other = call_rank_0(port, 1, 3, NULL);
    start(1, a_caller(4, 5, port));
    hpc_notice notice = told_by_rank_0(other, 3);
    finish(2);
    CHECK_EQ(notice.status, HPC_ERR_CONFIG);
    CHECK(strstr(notice.text, "rank 4 was started with WORLD_SIZE=5, rank 0 with WORLD_SIZE=3") != NULL);
    for (int i = 0; i < 2; i++) {
        CHECK_OUTCOME(i, HPC_ERR_CONFIG);
        CHECK_TEXT(i, "rank 4 was started with WORLD_SIZE=5, rank 0 with WORLD_SIZE=3");
    }
}

static void two_with_one_rank(void) {
    int port = free_port();
    start(0, a_caller(0, 3, port));
    start(1, a_caller(1, 3, port));
    start(2, a_caller(1, 3, port));
    finish(3);
    for (int i = 0; i < 3; i++) {
        CHECK_OUTCOME(i, HPC_ERR_CONFIG);
        CHECK_TEXT(i, "two processes came with RANK=1, from 127.0.0.1:");
    }
}

static void parts_of_another_size(void) {
    for (int odd = 0; odd < 2; odd++) {
        caller c = a_caller(0, 3, free_port()), other = c;
        other.rank = odd;
        other.extra = 5;
        run_job(3, c, odd, other);
        for (int r = 0; r < 3; r++) {
            CHECK_OUTCOME(r, HPC_ERR_CONFIG);
            CHECK_TEXT(r, odd == 1 ? "rank 1 gives 5 bytes, rank 0 gives 0" : "gives 0 bytes, rank 0 gives 5");
        }
    }
}

static void bad_arguments(void) {
    hpc_rendezvous *rv, *none;
    char byte = 7, got = 0;
    CHECK_OK(hpc_rendezvous_create(0, 1, NULL, 0, NULL, 0, 1, &rv));
    CHECK_STATUS(hpc_rendezvous_allgather(rv, &byte, &got, HPC_GATHER_BYTES + 1, 1), HPC_ERR_INVALID);
    CHECK_MESSAGE("16777217 bytes");
    CHECK_STATUS(hpc_rendezvous_allgather(rv, NULL, &got, 1, 1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_rendezvous_allgather(NULL, &byte, &got, 1, 1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_rendezvous_create(0, 1, NULL, 0, NULL, 0, 1, NULL), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_rendezvous_create(1, 1, NULL, 0, NULL, 0, 1, &none), HPC_ERR_INVALID);
    CHECK_OK(hpc_rendezvous_allgather(rv, &byte, &got, 1, 1)); /* these calls have spoilt nothing */
    CHECK_EQ(got, 7);
    hpc_rendezvous_free(rv);
    hpc_rendezvous_free(NULL);
}

/* ---- places ---- */

static void port_in_use(void) {
    caller c = a_caller(0, 2, free_port());
    int listener = listen_there(c.port);
    start(0, c);
    finish(1);
    CHECK_OUTCOME(0, HPC_ERR_CONFIG);
    CHECK_TEXT(0, " of 127.0.0.1 is in use");
    CHECK_TEXT(0, "HPCOMM_MASTER_PORT");
    close(listener);
}

static void places_that_are_refused(void) {
    static const struct {
        const char *host, *secret;
        int port, ranks, status;
        const char *text;
    } places[] = {
        {"192.0.2.1", NULL, 9, 2, HPC_ERR_AUTH, "192.0.2.1) is not loopback and the job has no secret"},
        {"192.0.2.1", NULL, 9, 2, HPC_ERR_AUTH, "HPCOMM_SECRET_FILE"},
        {"192.0.2.1", SECRET, 9999, 1, HPC_ERR_CONFIG, "is no address of"},
        {"0.0.0.0", SECRET, 9999, 2, HPC_ERR_CONFIG, "means every address of a host"},
        {"::", SECRET, 9999, 2, HPC_ERR_CONFIG, "means every address of a host"},
        {"", SECRET, 9999, 2, HPC_ERR_INVALID, "MASTER_ADDR"},
        {"127.0.0.1", SECRET, 0, 2, HPC_ERR_INVALID, "(MASTER_PORT) is 0: it must be from 1 to 65535"},
        {"127.0.0.1", SECRET, 65536, 2, HPC_ERR_INVALID, "(MASTER_PORT) is 65536: it must be from 1 to 65535"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        for (int rank = 0; rank < places[i].ranks; rank++) {
            hpc_rendezvous *rv;
            const char *secret = places[i].secret;
            CHECK_STATUS(hpc_rendezvous_create(rank, 2, places[i].host, places[i].port, secret,
                                               secret ? strlen(secret) : 0, 5, &rv),
                         places[i].status);
            CHECK(rv == NULL);
            CHECK_MESSAGE(places[i].text);
        }
    }
}

/* A forked child has the descriptors, and takes nothing of what is on its way. */
static void a_forked_child_touches_nothing(void) {
    hpc_rendezvous *rv;
    char mine = 3, all[2];
    int port = free_port(), status;
    pids[1] = fork();
    if (pids[1] == 0) {
        alarm(SECONDS);
        CHECK_OK(hpc_rendezvous_create(1, 2, "127.0.0.1", port, NULL, 0, 20, &rv));
        CHECK_OK(hpc_rendezvous_allgather(rv, &mine, all, 1, 20));
        hpc_rendezvous_free(rv);
        exit(0);
    }
    CHECK_OK(hpc_rendezvous_create(0, 2, "127.0.0.1", port, NULL, 0, 20, &rv));
    pid_t child = fork();
    if (child == 0) {
        CHECK_STATUS(hpc_rendezvous_allgather(rv, &mine, all, 1, 1), HPC_ERR_INVALID);
        hpc_rendezvous_free(rv);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_OK(hpc_rendezvous_allgather(rv, &mine, all, 1, 20));
    CHECK(all[0] == 3 && all[1] == 3);
    hpc_rendezvous_free(rv);
    CHECK(waitpid(pids[1], &status, 0) == pids[1] && status == 0);
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
#define CASE(name) {#name, name}
        CASE(sizes),
        CASE(rank_0_comes_last),
        CASE(by_name_and_by_ipv6),
        CASE(one_after_the_other),
        CASE(strangers_disturb_nobody),
        CASE(few_files),
        CASE(missing_rank),
        CASE(nobody_at_rank_0),
        CASE(a_silent_server),
        CASE(rank_that_stays_away_from_an_allgather),
        CASE(rank_dies_after_meeting),
        CASE(rank_dies_while_others_are_missing),
        CASE(rank_that_raves),
        CASE(wrong_secret),
        CASE(no_secret_for_one),
        CASE(short_secret),
        CASE(another_world_size),
        CASE(two_with_one_rank),
        CASE(parts_of_another_size),
        CASE(bad_arguments),
        CASE(port_in_use),
        CASE(places_that_are_refused),
        CASE(a_forked_child_touches_nothing),
    };
    signal(SIGPIPE, SIG_IGN);
    alarm(300);
    outcomes = mmap(NULL, MOST * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(outcomes != MAP_FAILED);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double start = hpc_now();
        cases[i].run();
        printf("%-40s %.2f s\n", cases[i].name, hpc_now() - start);
        fflush(stdout);
    }
    munmap(outcomes, MOST * sizeof *outcomes);
    return 0;
}
