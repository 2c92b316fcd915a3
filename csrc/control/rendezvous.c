#define _GNU_SOURCE
#include "control/letters.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "control/hello.h"
#include "base/host.h"
#include "base/wait.h"

enum { STRANGERS = 64, OWN_FILES = 256, LEAST_SECRET = 16, REFUSED_TEXT = 200, WHOM_TEXT = 256 };

static const double DEFAULT_TIMEOUT = 30, SILENCE = 10;
/* Seconds in which rank 0 reports the missing ranks, and a rank takes the report. */
static const double ANSWER = 1;
static const double PATIENCE = 1; /* seconds that a stranger keeps its place although others want it */
/* Seconds until an unanswered connect is tried again, sooner than by the kernel. */
static const double LONGEST_KNOCK = 3;

static const unsigned char NO_NAME[HPC_NAME_BYTES];

typedef struct stranger {
    int fd; /* -1: the place is free */
    double since;
    hpc_greeting greeting;
} stranger;

typedef struct member {
    int fd;      /* -1: it has not come, or is gone */
    int gone;    /* it hung up after rank 0 had its part */
    size_t sent; /* bytes sent of the letter with all parts */
    hpc_letters in;
} member;

struct hpc_rendezvous {
    int rank, size;
    pid_t owner;
    uint32_t round; /* the current round; between rounds, the next one */
    double since;   /* when this call began */
    hpc_meeting_place place;
    unsigned char key[HPC_DIGEST_BYTES];
    int over; /* notice says why */
    hpc_notice notice;
    unsigned char wire[HPC_NOTICE_BYTES]; /* the notice as bytes, to send or as received */

    /* used by rank 0 only */
    member *members; /* by rank */
    stranger strangers[STRANGERS];
    int listeners[HPC_PLACES], n_listeners;
    struct pollfd *polled;      /* open descriptors of listeners, strangers and members */
    int *polled_of;             /* by index in polled: the number of the listener, stranger or member */
    size_t whole;               /* bytes of the letter with all parts, which every rank gets in a round */
    int odd;                    /* descriptor of a proven rank without a place, which is told why; -1: none */
    int expired;                /* a rank whose deadline has passed; -1: none */
    char refused[REFUSED_TEXT]; /* text about the last refused stranger that claimed to be a rank */

    /* used by the other ranks only */
    int fd;
    hpc_letters in;
};

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static int ms_until(double deadline) {
    double left = hpc_left(deadline);
    return left > 60 ? 60000 : (int)(left * 1e3) + (left > 0);
}

/* Writes "rank 1", or "ranks 1, 4 and 7". */
static const char *name_ranks(const int *ranks, int n, char text[WHOM_TEXT]) {
    enum { SHOWN = 16 };
    size_t used = (size_t)snprintf(text, WHOM_TEXT, "rank%s ", n == 1 ? "" : "s");
    for (int i = 0; i < n && used < WHOM_TEXT - 1; i++) {
        const char *before = i == 0 ? "" : i == n - 1 ? " and " : ", ";
        int rest = n > SHOWN && i == SHOWN - 1;
        int wrote = rest ? snprintf(text + used, WHOM_TEXT - used, " and %d more", n - i)
                         : snprintf(text + used, WHOM_TEXT - used, "%s%d", before, ranks[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
        if (rest) break;
    }
    return text;
}

/* ---- the end ---- */

/* Reads all that is unread: closing with unread bytes causes a reset, which could overtake the last letter. */
static void drain(int fd) {
    enum { MOST = 4096 };
    char bytes[4096];
    for (int i = 0; i < MOST && recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0; i++) {
    }
}

/* Sends the parts from byte *sent on. Returns HPC_OK when all are sent, HPC_ERR_PEER if the peer is gone, or
 * HPC_ERR_TIMEOUT at the deadline. */
static int send_by(int fd, const struct iovec *parts, int n_parts, size_t *sent, double deadline) {
    for (;;) {
        struct iovec left[2];
        size_t skip = *sent;
        int n = 0;
        for (int i = 0; i < n_parts; i++) {
            size_t done = skip < parts[i].iov_len ? skip : parts[i].iov_len;
            skip -= done;
            if (done < parts[i].iov_len)
                left[n++] = (struct iovec){(char *)parts[i].iov_base + done, parts[i].iov_len - done};
        }
        if (n == 0) return HPC_OK;
        struct msghdr m = {.msg_iov = left, .msg_iovlen = (size_t)n};
        ssize_t out = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (out >= 0) {
            *sent += (size_t)out;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return HPC_ERR_PEER;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int ms = ms_until(deadline);
        if (ms == 0) return HPC_ERR_TIMEOUT;
        poll(&p, 1, ms);
    }
}

static void tell(hpc_rendezvous *rv, int fd, size_t nbytes, double deadline) {
    hpc_letter letter = hpc_letter_make(HPC_LETTER_FAILED, rv->round, nbytes);
    const struct iovec parts[] = {{&letter, sizeof letter}, {rv->wire, nbytes}};
    size_t sent = 0;
    if (fd >= 0) send_by(fd, parts, 2, &sent, deadline);
}

static void close_all(hpc_rendezvous *rv) {
    close_fd(&rv->fd);
    close_fd(&rv->odd);
    while (rv->n_listeners > 0) close(rv->listeners[--rv->n_listeners]);
    for (int i = 0; i < STRANGERS; i++) close_fd(&rv->strangers[i].fd);
    for (int r = 0; rv->members != NULL && r < rv->size; r++) {
        if (rv->members[r].fd >= 0 && rv->owner == getpid()) drain(rv->members[r].fd);
        close_fd(&rv->members[r].fd);
    }
}

/* Records why the rendezvous is over, as this call's error. */
static int fail_again(const hpc_rendezvous *rv) {
    const hpc_notice *n = &rv->notice;
    char waited[48] = "";
    hpc_culprit silent[HPC_NOTICE_RANKS];
    hpc_fault f = {n->ranks, NULL, n->waiting_for, silent, n->n_ranks, 0, n->n_waiting, 0};
    double seconds = hpc_now() - rv->since;
    if (n->status == HPC_ERR_TIMEOUT) {
        snprintf(waited, sizeof waited, "; waited %.3g s", seconds);
        /* Every rank waits for just these, and no rank can be asked, so they are the culprits. */
        for (; f.n_culprits < n->n_waiting; f.n_culprits++)
            silent[f.n_culprits] =
                (hpc_culprit){.rank = n->waiting_for[f.n_culprits], .state = HPC_CULPRIT_SILENT, .seconds = seconds};
    }
    return hpc_fail_fault(n->status, "init", &f, "rank %d: init: %s%s", rv->rank, n->text, waited);
}

static int keep_ranks(int *to, const int *from, int n) {
    if (n > HPC_NOTICE_RANKS) n = HPC_NOTICE_RANKS;
    if (n > 0) memcpy(to, from, (size_t)n * sizeof *to);
    return n;
}

/* Ends the rendezvous with this error. Rank 0 tells every connected rank that is not in the middle of a letter. */
static int end(hpc_rendezvous *rv, int status, const int *ranks, int n_ranks, const int *waiting_for, int n_waiting,
               const char *format, ...) __attribute__((format(printf, 7, 8)));
static int end(hpc_rendezvous *rv, int status, const int *ranks, int n_ranks, const int *waiting_for, int n_waiting,
               const char *format, ...) {
    hpc_notice *n = &rv->notice;
    va_list values;
    va_start(values, format);
    vsnprintf(n->text, sizeof n->text, format, values);
    va_end(values);
    n->status = status;
    n->n_ranks = keep_ranks(n->ranks, ranks, n_ranks);
    n->n_waiting = keep_ranks(n->waiting_for, waiting_for, n_waiting);
    rv->over = 1;
    if (rv->members != NULL) {
        double deadline = hpc_now() + ANSWER;
        size_t nbytes = hpc_notice_write(n, rv->wire);
        for (int r = 1; r < rv->size; r++)
            if (rv->members[r].sent == 0 || rv->members[r].sent == rv->whole)
                tell(rv, rv->members[r].fd, nbytes, deadline);
        tell(rv, rv->odd, nbytes, deadline);
    }
    close_all(rv);
    return fail_again(rv);
}

/* ---- rank 0 ---- */

/* Lists the ranks whose parts have not come; returns how many. */
static int missing(const hpc_rendezvous *rv, int *ranks) {
    int n = 0;
    for (int r = 1; r < rv->size; r++)
        if (rv->members[r].fd < 0 || (rv->round > 0 && rv->members[r].in.awaited)) ranks[n++] = r;
    return n;
}

static int end_without(hpc_rendezvous *rv, int expired, const int *ranks, int n) {
    char whom[WHOM_TEXT];
    /* Debian maps a host's own name to 127.0.1.1. */
    const char *only_here =
        rv->place.is_loopback ? " (a loopback address of rank 0's host, which other hosts cannot reach)" : "";
    name_ranks(ranks, n, whom);
    if (rv->round > 0)
        return end(rv, HPC_ERR_TIMEOUT, NULL, 0, ranks, n,
                   "nothing came from %s before the deadline of rank %d, though all ranks have met", whom, expired);
    return end(
        rv, HPC_ERR_TIMEOUT, NULL, 0, ranks, n,
        "%s never came to %s%s before the deadline of rank %d%s%s: start all %d ranks with the same MASTER_ADDR, "
        "MASTER_PORT and WORLD_SIZE, and let the others reach that port",
        whom, rv->place.text, only_here, expired, rv->refused[0] != '\0' ? "; " : "", rv->refused, rv->size);
}

static int end_by_peer(hpc_rendezvous *rv, int rank, const char *how) {
    int *waiting = malloc((size_t)rv->size * sizeof *waiting);
    int n = waiting == NULL ? 0 : missing(rv, waiting), status;
    status = end(rv, HPC_ERR_PEER, &rank, 1, waiting, n, "rank %d is gone (%s)", rank, how);
    free(waiting);
    return status;
}

static void on_refused(hpc_rendezvous *rv, stranger *s, const char *why) {
    static const unsigned char none[HPC_NONCE_BYTES];
    const hpc_hello *hello = &s->greeting.hello;
    char from[HPC_ENDPOINT_TEXT];
    hpc_net_peer_text(s->fd, from);
    if (memcmp(s->greeting.nonce, none, sizeof none) != 0) /* it got this rank's proof, so its hello is complete */
        snprintf(rv->refused, sizeof rv->refused, "%s said it was rank %d, but does not know the job's secret (%s)",
                 from, hello->from, why);
    else if (hello->magic != 0 && rv->refused[0] == '\0')
        snprintf(rv->refused, sizeof rv->refused, "%s was refused: %s", from, why);
    close_fd(&s->fd);
}

/* Gives a proven rank its place, or ends the rendezvous if it has none. */
static int on_proven(hpc_rendezvous *rv, stranger *s) {
    const hpc_hello hello = s->greeting.hello;
    char first[HPC_ENDPOINT_TEXT], second[HPC_ENDPOINT_TEXT];
    member *m;
    if (hello.purpose != HPC_FOR_RENDEZVOUS || hello.to != 0) {
        on_refused(rv, s, "it called for something other than a rendezvous with rank 0");
        return HPC_OK;
    }
    if (hpc_greeting_end(s->fd) != HPC_OK) {
        close_fd(&s->fd);
        return HPC_OK;
    }
    rv->odd = s->fd;
    s->fd = -1;
    if (hello.size != rv->size)
        return end(rv, HPC_ERR_CONFIG, NULL, 0, NULL, 0,
                   "rank %d was started with WORLD_SIZE=%d, rank 0 with WORLD_SIZE=%d: it must be the same on all",
                   hello.from, hello.size, rv->size);
    m = &rv->members[hello.from];
    if (m->fd >= 0) {
        hpc_net_peer_text(m->fd, first);
        hpc_net_peer_text(rv->odd, second);
        return end(
            rv, HPC_ERR_CONFIG, NULL, 0, NULL, 0,
            "two processes came with RANK=%d, from %s and from %s: give every process of the job a different RANK",
            hello.from, first, second);
    }
    m->fd = rv->odd;
    rv->odd = -1;
    hpc_letters_init(&m->in, 0, NULL);
    return HPC_OK;
}

static int on_stranger(hpc_rendezvous *rv, stranger *s) {
    const char *why = "";
    int status = hpc_greeting_step(&s->greeting, s->fd, rv->key, NO_NAME, -1, 0, &why);
    if (status == HPC_IN_PROGRESS) return HPC_OK;
    if (status == HPC_OK) return on_proven(rv, s);
    on_refused(rv, s, why);
    return HPC_OK;
}

/* Returns a place for one more stranger: a free one, or the place of the oldest stranger if its PATIENCE is over;
 * NULL otherwise. */
static stranger *free_place(hpc_rendezvous *rv) {
    stranger *oldest = &rv->strangers[0];
    for (int i = 0; i < STRANGERS; i++) {
        if (rv->strangers[i].fd < 0) return &rv->strangers[i];
        if (rv->strangers[i].since < oldest->since) oldest = &rv->strangers[i];
    }
    return hpc_now() - oldest->since >= PATIENCE ? oldest : NULL;
}

static void on_knock(hpc_rendezvous *rv, int listener) {
    stranger *place;
    while ((place = free_place(rv)) != NULL) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            /* Out of descriptors: the caller stays in the backlog, so poll would report it again and again. */
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                char hint[HPC_FILES_HINT];
                snprintf(rv->refused, sizeof rv->refused, "rank 0 cannot take more connections: %s%s", strerror(errno),
                         hpc_files_hint(errno, hint));
                poll(NULL, 0, 10);
            }
            return;
        }
        if (place->fd >= 0) on_refused(rv, place, "it was silent");
        hpc_net_tune(fd, SILENCE);
        place->fd = fd;
        place->since = hpc_now();
        hpc_greeting_start(&place->greeting);
    }
}

static int on_member(hpc_rendezvous *rv, int rank) {
    member *m = &rv->members[rank];
    for (;;) {
        const char *why = "";
        void *at;
        size_t room = hpc_letters_want(&m->in, &at);
        ssize_t n = recv(m->fd, at, room, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return HPC_OK;
        if (n <= 0) return end_by_peer(rv, rank, "it hung up: its process died or gave up");
        int status = hpc_letters_got(&m->in, (size_t)n, &why);
        if (status == HPC_ERR_CONFIG)
            return end(rv, HPC_ERR_CONFIG, NULL, 0, NULL, 0,
                       "rank %d gives %u bytes, rank 0 gives %zu: every rank must give as many", rank,
                       m->in.letter.nbytes, m->in.nbytes);
        if (status < 0) {
            char how[128];
            snprintf(how, sizeof how, "it sent a message that cannot be read: %s", why);
            return end_by_peer(rv, rank, how);
        }
        if (status == HPC_OK && m->in.letter.type == HPC_LETTER_EXPIRED && m->in.letter.round == rv->round)
            rv->expired = rank;
    }
}

/* Adds an open descriptor to the poll set: poll refuses more entries than the process may have files. */
static int watch(hpc_rendezvous *rv, int n, int fd, int of) {
    if (fd < 0) return n;
    rv->polled[n] = (struct pollfd){.fd = fd, .events = POLLIN};
    rv->polled_of[n] = of;
    return n + 1;
}

/* Waits for a message of a rank or a stranger, at most until the deadline, and reads it. */
static int turn(hpc_rendezvous *rv, double deadline) {
    int n = 0, wait = ms_until(deadline), status = HPC_OK;
    int full = rv->n_listeners > 0 && free_place(rv) == NULL;
    for (int i = 0; i < rv->n_listeners && !full; i++) n = watch(rv, n, rv->listeners[i], i);
    for (int i = 0; i < STRANGERS; i++) n = watch(rv, n, rv->strangers[i].fd, HPC_PLACES + i);
    for (int r = 0; r < rv->size; r++) n = watch(rv, n, rv->members[r].fd, HPC_PLACES + STRANGERS + r);
    if (full && wait > 50) wait = 50;
    int found = poll(rv->polled, (nfds_t)n, wait);
    if (found < 0 && errno != EINTR) {
        char hint[HPC_FILES_HINT];
        return end(rv, HPC_ERR_CONFIG, NULL, 0, NULL, 0, "rank 0 cannot wait for %d ranks: %s%s", rv->size,
                   strerror(errno), hpc_files_hint(errno == EINVAL ? EMFILE : errno, hint));
    }
    if (found <= 0) return HPC_OK;
    /* Members first: a member that hung up must be gone before another process comes in its place. */
    while (n-- > 0 && status == HPC_OK) {
        int of = rv->polled_of[n];
        if (rv->polled[n].revents == 0) continue;
        if (of >= HPC_PLACES + STRANGERS)
            status = on_member(rv, of - HPC_PLACES - STRANGERS);
        else if (of >= HPC_PLACES)
            status = on_stranger(rv, &rv->strangers[of - HPC_PLACES]);
        else
            on_knock(rv, rv->listeners[of]);
    }
    return status;
}

/* Receives the data of every rank. */
static int receive_all(hpc_rendezvous *rv, double deadline) {
    int *ranks = malloc((size_t)rv->size * sizeof *ranks), n, status = HPC_OK;
    if (ranks == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "rank 0: init: no memory for %d ranks", rv->size);
    rv->expired = -1;
    while ((n = missing(rv, ranks)) > 0) {
        int passed = hpc_left(deadline) <= 0;
        status = turn(rv, deadline);
        if (status != HPC_OK) break;
        if ((rv->expired < 0 && !passed) || (n = missing(rv, ranks)) == 0) continue;
        status = end_without(rv, rv->expired < 0 ? 0 : rv->expired, ranks, n);
        break;
    }
    free(ranks);
    return status;
}

/* Sends the data of all ranks to every rank. A rank that is gone by then has given its data, so it is missed only in
 * the next round. */
static int spread(hpc_rendezvous *rv, const void *all, size_t nbytes, double deadline) {
    hpc_letter letter = hpc_letter_make(HPC_LETTER_GATHERED, rv->round, (size_t)rv->size * nbytes);
    const struct iovec parts[] = {{&letter, sizeof letter}, {(void *)(uintptr_t)all, (size_t)rv->size * nbytes}};
    rv->whole = sizeof letter + parts[1].iov_len;
    for (;;) {
        int *waiting = NULL, n = 0, status;
        for (int r = 1; r < rv->size; r++) {
            member *m = &rv->members[r];
            if (m->fd >= 0 && send_by(m->fd, parts, 2, &m->sent, 0) == HPC_ERR_PEER) {
                m->gone = 1;
                close_fd(&m->fd);
            }
            if (m->fd >= 0 && m->sent < rv->whole) rv->polled[n++] = (struct pollfd){.fd = m->fd, .events = POLLOUT};
        }
        if (n == 0) break;
        if (hpc_left(deadline) > 0) {
            poll(rv->polled, (nfds_t)n, ms_until(deadline));
            continue;
        }
        waiting = malloc((size_t)rv->size * sizeof *waiting);
        n = 0;
        for (int r = 1; r < rv->size && waiting != NULL; r++)
            if (rv->members[r].fd >= 0 && rv->members[r].sent < rv->whole) waiting[n++] = r;
        status =
            end(rv, HPC_ERR_TIMEOUT, NULL, 0, waiting, n, "some ranks did not read the data of the others in time");
        free(waiting);
        return status;
    }
    for (int r = 1; r < rv->size; r++) rv->members[r].sent = 0;
    rv->round++;
    return HPC_OK;
}

static int open_doors(hpc_rendezvous *rv) {
    size_t size = (size_t)rv->size;
    rv->polled = calloc(HPC_PLACES + STRANGERS + size, sizeof *rv->polled);
    rv->polled_of = calloc(HPC_PLACES + STRANGERS + size, sizeof *rv->polled_of);
    rv->members = calloc(size, sizeof *rv->members);
    if (rv->polled == NULL || rv->polled_of == NULL || rv->members == NULL)
        return hpc_fail(HPC_ERR_MEMORY, "init", "rank 0: init: no memory for %d ranks", rv->size);
    for (int r = 0; r < rv->size; r++) rv->members[r].fd = -1;
    hpc_host_files(OWN_FILES + size);
    int n = hpc_meeting_place_listen(&rv->place, rv->rank, rv->listeners);
    if (n < 0) return n;
    rv->n_listeners = n;
    return HPC_OK;
}

static int host(hpc_rendezvous *rv, double deadline) {
    int status = open_doors(rv);
    if (status == HPC_OK) status = receive_all(rv, deadline);
    if (status != HPC_OK) return status;
    /* Stops listening before any rank knows that all have come: it may call again at once, for another context. */
    while (rv->n_listeners > 0) close(rv->listeners[--rv->n_listeners]);
    for (int i = 0; i < STRANGERS; i++) close_fd(&rv->strangers[i].fd);
    return spread(rv, NULL, 0, deadline);
}

static int receive_and_spread(hpc_rendezvous *rv, const void *send, void *recv, size_t nbytes, double deadline) {
    char *parts = recv;
    for (int r = 1; r < rv->size; r++) {
        if (rv->members[r].gone) return end_by_peer(rv, r, "it hung up: its process died or left");
        hpc_letters_expect(&rv->members[r].in, rv->round, parts + (size_t)r * nbytes, nbytes);
    }
    if (nbytes > 0) memmove(parts, send, nbytes);
    int status = receive_all(rv, deadline);
    return status == HPC_OK ? spread(rv, recv, nbytes, deadline) : status;
}

/* ---- the others ---- */

static int on_notice(hpc_rendezvous *rv, size_t nbytes) {
    static const int zero = 0;
    if (!hpc_notice_read(rv->wire, nbytes, rv->size, &rv->notice))
        return end(rv, HPC_ERR_PEER, &zero, 1, NULL, 0, "rank 0 has failed, and its reason cannot be read");
    rv->over = 1;
    close_all(rv);
    return fail_again(rv);
}

/* Waits until rank 0 has sent the data of all ranks. */
static int await_all(hpc_rendezvous *rv, int may_ask, double deadline) {
    static const int zero = 0;
    int asked = 0;
    for (;;) {
        const char *why = "";
        void *at;
        size_t room = hpc_letters_want(&rv->in, &at);
        ssize_t n = recv(rv->fd, at, room, MSG_DONTWAIT);
        if (n > 0) {
            int status = hpc_letters_got(&rv->in, (size_t)n, &why);
            if (status < 0)
                return end(rv, HPC_ERR_PEER, &zero, 1, NULL, 0, "rank 0 sent a message that cannot be read: %s", why);
            if (status == HPC_IN_PROGRESS) continue;
            if (rv->in.letter.type == HPC_LETTER_FAILED) return on_notice(rv, rv->in.letter.nbytes);
            rv->round++;
            return HPC_OK;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n == 0 || errno != EAGAIN)
            return end(rv, HPC_ERR_PEER, &zero, 1, &zero, 1,
                       "rank 0 is gone (it hung up: its process died, or its host cannot be reached any more)");
        struct pollfd p = {.fd = rv->fd, .events = POLLIN};
        int ms = ms_until(deadline);
        if (ms > 0) {
            poll(&p, 1, ms);
        } else if (may_ask && !asked) {
            hpc_letter letter = hpc_letter_make(HPC_LETTER_EXPIRED, rv->round, 0);
            const struct iovec parts[] = {{&letter, sizeof letter}};
            size_t sent = 0;
            asked = 1;
            deadline = hpc_now() + ANSWER;
            send_by(rv->fd, parts, 1, &sent, deadline);
        } else {
            return end(rv, HPC_ERR_TIMEOUT, NULL, 0, &zero, 1, "rank 0 at %s does not answer", rv->place.text);
        }
    }
}

static int give_and_await(hpc_rendezvous *rv, const void *send, void *recv, size_t nbytes, double deadline) {
    hpc_letter letter = hpc_letter_make(HPC_LETTER_GIVE, rv->round, nbytes);
    const struct iovec parts[] = {{&letter, sizeof letter}, {(void *)(uintptr_t)send, nbytes}};
    size_t sent = 0;
    hpc_letters_expect(&rv->in, rv->round, recv, (size_t)rv->size * nbytes);
    /* If rank 0 reads nothing more, its last letter has the reason. */
    int status = send_by(rv->fd, parts, 2, &sent, deadline);
    return await_all(rv, status != HPC_ERR_TIMEOUT, deadline);
}

/* Calls one address once. Returns HPC_OK with an authenticated connection, HPC_ERR_AUTH, or another status with a
 * reason in *why; the call may then be repeated. */
static int knock(hpc_rendezvous *rv, const hpc_endpoint *at, double deadline, const char **why) {
    hpc_hello hello = {.purpose = HPC_FOR_RENDEZVOUS, .from = rv->rank, .to = 0, .size = rv->size};
    double soon = hpc_now() + LONGEST_KNOCK;
    int error, status = hpc_net_connect(at, soon < deadline ? soon : deadline, &rv->fd, &error);
    if (status != HPC_OK) {
        *why = strerror(error);
        return status;
    }
    hpc_net_tune(rv->fd, SILENCE);
    status = hpc_hello_call(rv->fd, &hello, rv->key, deadline, why);
    if (status != HPC_OK) close_fd(&rv->fd);
    return status;
}

static int join(hpc_rendezvous *rv, double deadline) {
    static const int zero = 0;
    const char *why = "no try was made";
    for (int pause = 1;; pause = pause < 200 ? pause + pause / 2 + 1 : 250) {
        for (int i = 0; i < rv->place.n; i++) {
            int status = knock(rv, &rv->place.at[i], deadline, &why);
            if (status == HPC_OK) {
                hpc_letters_init(&rv->in, 1, rv->wire);
                hpc_letters_expect(&rv->in, 0, NULL, 0);
                return await_all(rv, 1, deadline);
            }
            if (status == HPC_ERR_AUTH)
                return end(rv, HPC_ERR_AUTH, NULL, 0, NULL, 0,
                           "rank %d does not know the job's secret, or %s is not rank 0's (%s): HPCOMM_SECRET_FILE "
                           "must hold the same bytes on every host, and each job needs its own port (MASTER_PORT)",
                           rv->rank, rv->place.text, why);
        }
        if (hpc_left(deadline) <= 0)
            return end(rv, HPC_ERR_TIMEOUT, NULL, 0, &zero, 1,
                       "cannot reach rank 0 at %s: %s; start rank 0 on the host that MASTER_ADDR names, with this "
                       "MASTER_PORT, and let no firewall stop TCP to it",
                       rv->place.text, why);
        int ms = ms_until(deadline);
        poll(NULL, 0, ms < pause ? ms : pause);
    }
}

/* ---- the public calls ---- */

static double deadline_of(hpc_rendezvous *rv, double timeout) {
    rv->since = hpc_now();
    if (!(timeout >= 0)) timeout = DEFAULT_TIMEOUT;
    return rv->since + (timeout < 1e9 ? timeout : 1e9);
}

int hpc_rendezvous_create(int rank, int size, const char *host_name, int port, const void *secret, size_t secret_bytes,
                          double timeout, hpc_rendezvous **rendezvous) {
    static const hpc_bytes label = {"hpcomm rendezvous", 17};
    double deadline;
    int status = HPC_OK;
    if (rendezvous == NULL) return hpc_fail(HPC_ERR_INVALID, "init", "init: rendezvous is NULL");
    *rendezvous = NULL;
    if (size < 1 || rank < 0 || rank >= size)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: rank %d of %d ranks; rank must be in 0..size-1", rank, size);
    if (secret != NULL && secret_bytes < LEAST_SECRET)
        return hpc_fail(HPC_ERR_INVALID, "init",
                        "rank %d: init: the job's secret has %zu bytes: it must have %d or more", rank, secret_bytes,
                        LEAST_SECRET);
    hpc_rendezvous *rv = calloc(1, sizeof *rv);
    if (rv == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "rank %d: init: no memory", rank);
    deadline = deadline_of(rv, timeout);
    rv->rank = rank;
    rv->size = size;
    rv->owner = getpid();
    rv->fd = rv->odd = -1;
    for (int i = 0; i < STRANGERS; i++) rv->strangers[i].fd = -1;
    hpc_hmac(secret, secret != NULL ? secret_bytes : 0, &label, 1, rv->key);
    if (size > 1) {
        status = hpc_meeting_place_find(&rv->place, rank, host_name, port, secret != NULL, deadline);
        if (status == HPC_OK) status = rank == 0 ? host(rv, deadline) : join(rv, deadline);
    }
    if (status != HPC_OK)
        hpc_rendezvous_free(rv);
    else
        *rendezvous = rv;
    return status;
}

int hpc_rendezvous_allgather(hpc_rendezvous *rv, const void *send, void *recv, size_t nbytes, double timeout) {
    if (rv == NULL || (nbytes > 0 && (send == NULL || recv == NULL)))
        return hpc_fail(HPC_ERR_INVALID, "init", "init: rendezvous, send or recv is NULL");
    if (rv->owner != getpid())
        return hpc_fail(HPC_ERR_INVALID, "init", "init: this rendezvous belongs to the process that forked this one");
    double deadline = deadline_of(rv, timeout);
    if (rv->over) return fail_again(rv);
    if (nbytes > HPC_GATHER_BYTES / (size_t)rv->size)
        return hpc_fail(HPC_ERR_INVALID, "init",
                        "rank %d: init: %zu bytes from each of %d ranks are too many: a rendezvous carries %d in all",
                        rv->rank, nbytes, rv->size, HPC_GATHER_BYTES);
    if (rv->rank == 0) return receive_and_spread(rv, send, recv, nbytes, deadline);
    return give_and_await(rv, send, recv, nbytes, deadline);
}

void hpc_rendezvous_free(hpc_rendezvous *rv) {
    if (rv == NULL) return;
    close_all(rv);
    free(rv->members);
    free(rv->polled);
    free(rv->polled_of);
    free(rv);
}
