/* Calls other ranks: by a Unix socket if the pair may use one, otherwise by TCP.
 * Over TCP it tries each address that may lead to the peer until one proves to be the peer. */
#define _GNU_SOURCE
#include "control/channel.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/host.h"
#include "base/overdue.h"

void hpc_mesh_deafen(hpc_control *c) {
    pthread_mutex_lock(&c->lock);
    if (c->tcp_fd >= 0) epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, c->tcp_fd, NULL);
    hpc_close(&c->tcp_fd);
    c->deaf = 1;
    while (c->n_given > 0) hpc_close(&c->given[--c->n_given]);
    pthread_mutex_unlock(&c->lock);
}

unsigned hpc_mesh_name(const unsigned char *name, struct sockaddr_un *address) {
    char *path = address->sun_path; /* a leading NUL makes it abstract */
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int n = snprintf(path + 1, sizeof address->sun_path - 1, "hpcomm-");
    for (int i = 0; i < HPC_COOKIE_BYTES; i++)
        n += snprintf(path + 1 + n, sizeof address->sun_path - 1 - (size_t)n, "%02x", name[i]);
    return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

void hpc_control_name_job(const hpc_control_address *rank0, char job[HPC_JOB_BYTES]) {
    for (int i = 0; i < HPC_COOKIE_BYTES; i++) snprintf(job + 2 * i, 3, "%02x", rank0->name[i]);
}

int hpc_mesh_watch(const hpc_control *c, int fd, int kind, int index) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)kind << 32 | (uint32_t)index};
    return epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

void hpc_mesh_poke(hpc_control *c) {
    uint64_t one = 1;
    pthread_mutex_lock(&c->poking);
    const ssize_t written = c->poke_fd < 0 ? 0 : write(c->poke_fd, &one, sizeof one);
    pthread_mutex_unlock(&c->poking);
    (void)written; /* without room for a poke the thread is awake already */
}

void hpc_mesh_seek(hpc_control *c, int rank, int why) {
    hpc_link *l = &c->links[rank];
    if (hpc_link_is_up(l) || rank == c->group->rank) return;
    if ((atomic_fetch_or(&l->sought, why) & why) == why) return;
    atomic_store(&c->seeking, 1);
    hpc_mesh_poke(c);
}

/* ---- Unix ---- */

int hpc_mesh_call_unix(const hpc_control *c, int rank) {
    struct sockaddr_un name;
    socklen_t length = hpc_mesh_name(c->links[rank].address.name, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0, refused;
    if (fd < 0) return -1;
    do refused = connect(fd, (struct sockaddr *)&name, length) != 0;
    while (refused && errno == EINTR);
    if (refused) error = errno;
    /* Another process may have taken the name after its owner died. */
    else if (!hpc_user_is_there(fd, &c->links[rank].address.users.own, 1))
        error = EPERM;
    if (error == 0) return fd;
    close(fd);
    errno = error;
    return -1;
}

/* Connects by the Unix socket. Returns HPC_IN_PROGRESS if no process listens there. */
static int call_unix(hpc_control *c, int rank, double deadline) {
    const double start = hpc_now();
    char hint[HPC_FILES_HINT];
    int fd;
    while ((fd = hpc_mesh_call_unix(c, rank)) < 0) {
        if (errno == EAGAIN && hpc_now() < deadline) { /* its backlog is full */
            poll(NULL, 0, 1);
            continue;
        }
        if (errno == ECONNREFUSED || errno == ENOENT) return HPC_IN_PROGRESS;
        if (errno == EMFILE || errno == ENFILE)
            return hpc_fail(HPC_ERR_TRANSPORT, "init", "init: socket: %s%s", strerror(errno),
                            hpc_files_hint(errno, hint));
        if (errno == EPERM)
            return hpc_fail(HPC_ERR_AUTH, "init", "init: rank %d's socket belongs to another user than the job", rank);
        return hpc_group_fail_timeout(c->group, "init", &rank, 1, hpc_now() - start, "cannot connect to rank %d: %s",
                                      rank, strerror(errno));
    }
    hpc_link_greet(c, fd, c->links[rank].address.secret); /* the service thread will find a hang-up */
    hpc_link_publish(c, rank, fd, HPC_LINK_UNIX);
    if (hpc_mesh_watch(c, fd, HPC_WATCH_LINK, rank) != 0)
        return hpc_fail(HPC_ERR_TRANSPORT, "init", "init: epoll_ctl: %s", strerror(errno));
    return HPC_OK;
}

/* ---- TCP ---- */

enum { MOST_ATTEMPTS = HPC_ENDPOINTS + 3, HANG_UPS = 3, DOOR_MS = 20, DETAIL_BYTES = 512 };

#define REFUSED "the connection to %s was refused: it died, or a firewall rejects the call"
static const double PROBE_SECONDS = 0.1; /* for one address */
static const double WORD_SECONDS = 1;    /* for the last word of a rank where no process listens */

/* One address of the peer, and the results of calls to it. */
typedef struct attempt {
    hpc_endpoint at;
    int status, open; /* open: it may still lead to the peer */
    int hang_ups;     /* times that it closed the connection: it had no place for the caller, or died */
    int refused;      /* the kernel there refused: no process listens; or a door did: it has ended */
    char why[80];
} attempt;

typedef struct calls {
    attempt all[MOST_ATTEMPTS];
    int n;
} calls;

static int same_endpoint(const hpc_endpoint *a, const hpc_endpoint *b) {
    return a->family == b->family && a->port == b->port && memcmp(a->ip, b->ip, a->family == 4 ? 4 : 16) == 0;
}

static int same_network(const hpc_endpoint *a, const hpc_endpoint *b) {
    size_t most = a->family == 4 ? 32 : 128, bits = a->prefix < most ? a->prefix : most;
    if (a->family != b->family || memcmp(a->ip, b->ip, bits / 8) != 0) return 0;
    return bits % 8 == 0 || (a->ip[bits / 8] ^ b->ip[bits / 8]) >> (8 - bits % 8) == 0;
}

void hpc_mesh_remember(hpc_control *c, hpc_link *l, const hpc_endpoint *endpoint) {
    pthread_mutex_lock(&c->lock);
    l->endpoint = *endpoint;
    if (!l->same_host) c->good = *endpoint;
    pthread_mutex_unlock(&c->lock);
}

/* Lists the addresses of a peer to try: first the one that led to it before, then addresses in a network that led to
 * another peer. So if one of two networks is dead, only the first call pays for it. */
static void list_attempts(hpc_control *c, int rank, calls *calls) {
    const hpc_link *l = &c->links[rank];
    hpc_endpoint found[HPC_ENDPOINTS + 2], known, good;
    int n = hpc_net_candidates(c->self.endpoints, l->address.endpoints, l->same_host && !l->address.door, found);
    pthread_mutex_lock(&c->lock);
    known = l->endpoint;
    good = c->good;
    pthread_mutex_unlock(&c->lock);
    memset(calls, 0, sizeof *calls);
    if (known.family != 0) calls->all[calls->n++].at = known;
    for (int other = 0; other <= 1; other++)
        for (int i = 0; i < n; i++)
            if ((good.family == 0 || l->same_host || !same_network(&good, &found[i])) == other &&
                (known.family == 0 || !same_endpoint(&known, &found[i])))
                calls->all[calls->n++].at = found[i];
    for (int i = 0; i < calls->n; i++) calls->all[i].open = 1;
}

/* Asks at a door. Returns HPC_OK if the peer has the connection. */
static int ask_door(attempt *a, const hpc_hello *hello, double until, int *fd) {
    const char *why = "";
    a->status = hpc_door_call(*fd, hello->name, until, &why);
    if (a->status == HPC_OK) return HPC_OK;
    snprintf(a->why, sizeof a->why, "%s", why);
    hpc_close(fd);
    a->refused = a->status == HPC_ERR_PEER;
    /* Where no process listens any more, the next call is refused. */
    const int is_busy = a->status == HPC_ERR_TRANSPORT;
    a->open = a->status == HPC_ERR_TIMEOUT || is_busy;
    if (is_busy) poll(NULL, 0, DOOR_MS); /* many ranks call there at the same time */
    if (a->refused) a->status = HPC_ERR_TRANSPORT;
    return a->status;
}

static void try_address(hpc_control *c, attempt *a, hpc_hello *hello, double until, int *fd) {
    int error = 0;
    const char *why = "";
    a->status = hpc_net_connect(&a->at, until, fd, &error);
    a->refused = error == ECONNREFUSED;
    /* A peer that leaves resets connections in its backlog; that counts as a hang-up, and it refuses the next call. */
    a->open = a->status == HPC_ERR_TIMEOUT || (error == ECONNRESET && ++a->hang_ups < HANG_UPS);
    if (a->status != HPC_OK) {
        snprintf(a->why, sizeof a->why, "%s", a->status == HPC_ERR_TIMEOUT ? "no answer" : strerror(error));
        return;
    }
    if (c->links[hello->to].address.door && ask_door(a, hello, until, fd) != HPC_OK) return;
    a->status = hpc_hello_call(*fd, hello, c->key, until, &why);
    if (a->status == HPC_OK) {
        hpc_net_tune(*fd, c->silence);
        return;
    }
    a->open = a->status == HPC_ERR_TIMEOUT || (a->status == HPC_ERR_TRANSPORT && ++a->hang_ups < HANG_UPS);
    snprintf(a->why, sizeof a->why, "%s", why);
    hpc_close(fd);
}

/* Returns the deadline for one address: while other addresses are left, a third of the remaining time but at least a
 * second, so that an address that swallows every packet leaves time for the others. */
static double share_of(double deadline, int others) {
    double now = hpc_now(), left = deadline - now, share = left / 3 > 1 ? left / 3 : 1;
    return others > 0 && share < left ? now + share : deadline;
}

/* Tries the addresses in turn until one proves to be the peer, all are ruled out, or time is up. A peer that starts
 * slowly keeps callers in its backlog, so an address that did not answer is tried again. */
static int try_all(hpc_control *c, calls *calls, hpc_hello *hello, double deadline, int *fd, hpc_endpoint *reached) {
    int open;
    do {
        for (int i = 0; i < calls->n; i++) {
            attempt *a = &calls->all[i];
            int others = 0;
            if (!a->open) continue;
            for (int k = 0; k < calls->n; k++) others += k != i && calls->all[k].open;
            try_address(c, a, hello, share_of(deadline, others), fd);
            if (a->status != HPC_OK) continue;
            *reached = a->at;
            return HPC_OK;
        }
        open = 0;
        for (int i = 0; i < calls->n; i++) open += calls->all[i].open;
    } while (open > 0 && hpc_now() < deadline && !atomic_load(&c->group->closed) && !atomic_load(&c->stopping));
    return HPC_ERR_TRANSPORT;
}

/* Returns whether every address of the peer has refused. */
static int is_dead(const calls *calls) {
    for (int i = 0; i < calls->n; i++)
        if (!calls->all[i].refused) return 0;
    return calls->n > 0;
}

static int fail_calls(hpc_control *c, int rank, const char *op, const calls *calls, double waited) {
    char detail[DETAIL_BYTES] = "", text[HPC_ENDPOINT_TEXT];
    size_t used = 0;
    int unanswered = 0, wrong = 0;
    for (int i = 0; i < calls->n; i++) {
        const attempt *a = &calls->all[i];
        unanswered |= a->status == HPC_ERR_TIMEOUT;
        wrong |= a->status == HPC_ERR_AUTH;
        hpc_net_text(&a->at, text);
        if (used < sizeof detail)
            used += (size_t)snprintf(detail + used, sizeof detail - used, "%s%s: %s", i > 0 ? "; " : "", text, a->why);
    }
    if (calls->n == 0)
        return hpc_fail_transport(op, hpc_link_name(HPC_LINK_TCP), rank,
                                  "rank %d: %s: rank %d has no address that TCP can reach", c->group->rank, op, rank);
    if (unanswered)
        return hpc_group_fail_timeout(
            c->group, op, &rank, 1, waited,
            "cannot reach rank %d by TCP in time (%s): start all ranks at once, let firewalls pass TCP between them, "
            "or name an interface that reaches it in HPCOMM_SOCKET_IFNAME (hpcomm doctor, started as the job is, says "
            "which)",
            rank, detail);
    if (is_dead(calls))
        return hpc_fail_transport(
            op, hpc_link_name(HPC_LINK_TCP), rank,
            "rank %d: %s: the connection to rank %d was refused (%s): it died, or a firewall rejects the call",
            c->group->rank, op, rank, detail);
    if (wrong)
        return hpc_fail(HPC_ERR_AUTH, op,
                        "rank %d: %s: none of rank %d's addresses leads to it (%s); all ranks must have the same "
                        "secret",
                        c->group->rank, op, rank, detail);
    return hpc_fail_transport(op, hpc_link_name(HPC_LINK_TCP), rank,
                              "rank %d: %s: cannot reach rank %d by TCP (%s): name an interface that reaches it in "
                              "HPCOMM_SOCKET_IFNAME (hpcomm doctor, started as the job is, says which)",
                              c->group->rank, op, rank, detail);
}

static hpc_hello hello_to(const hpc_control *c, int rank, hpc_purpose purpose) {
    hpc_hello hello = {.purpose = (uint8_t)purpose, .from = c->group->rank, .to = rank, .size = c->group->size};
    memcpy(hello.name, c->links[rank].address.name, HPC_NAME_BYTES);
    return hello;
}

static int call_tcp(hpc_control *c, int rank, double deadline) {
    hpc_link *l = &c->links[rank];
    hpc_hello hello = hello_to(c, rank, HPC_FOR_CONTROL);
    hpc_endpoint reached;
    char first[HPC_ENDPOINT_TEXT], why[HPC_REASON_BYTES];
    calls calls;
    double start = hpc_now();
    int fd = -1;
    list_attempts(c, rank, &calls);
    if (try_all(c, &calls, &hello, deadline, &fd, &reached) != HPC_OK) {
        if (!is_dead(&calls)) return fail_calls(c, rank, "init", &calls, hpc_now() - start);
        hpc_net_text(&calls.all[0].at, first);
        snprintf(why, sizeof why, REFUSED, first);
        hpc_group_depart(c->group, rank, HPC_PEER_FAILED, why);
        return HPC_OK; /* the wait that follows names all ranks that are gone */
    }
    hpc_mesh_remember(c, l, &reached);
    hpc_net_text(&reached, l->path);
    hpc_link_publish(c, rank, fd, HPC_LINK_TCP);
    if (hpc_mesh_watch(c, fd, HPC_WATCH_LINK, rank) != 0)
        return hpc_fail(HPC_ERR_TRANSPORT, "init", "init: epoll_ctl: %s", strerror(errno));
    hpc_mesh_poke(c); /* the service thread must start its clock */
    hpc_link_alive(c, rank);
    return HPC_OK;
}

void hpc_mesh_guess_path(hpc_control *c, int rank) {
    calls calls;
    list_attempts(c, rank, &calls);
    if (calls.n > 0) hpc_net_text(&calls.all[0].at, c->links[rank].likely);
}

int hpc_mesh_refuses(hpc_control *c, int rank, char why[HPC_REASON_BYTES]) {
    const int allowed = atomic_load(&c->links[rank].allowed);
    char first[HPC_ENDPOINT_TEXT];
    calls calls = {.n = 0};
    int fd = allowed & HPC_LINK_UNIX ? hpc_mesh_call_unix(c, rank) : -1;
    const int refused = !(allowed & HPC_LINK_UNIX) || (fd < 0 && (errno == ECONNREFUSED || errno == ENOENT));
    hpc_close(&fd);
    if (allowed & HPC_LINK_TCP && (c->self.door || !hpc_link_may_call(c, rank))) return 0; /* ports outlive contexts */
    if (allowed & HPC_LINK_TCP) list_attempts(c, rank, &calls);
    for (int i = 0; i < calls.n && refused; i++) {
        int error;
        hpc_net_connect(&calls.all[i].at, hpc_now() + PROBE_SECONDS, &fd, &error);
        hpc_close(&fd);
        if (error != ECONNREFUSED) return 0;
    }
    if (calls.n > 0) hpc_net_text(&calls.all[0].at, first);
    snprintf(why, HPC_REASON_BYTES, calls.n > 0 ? REFUSED : "its process died", first);
    return refused && (calls.n > 0 || allowed == HPC_LINK_UNIX);
}

int hpc_mesh_call_tcp(hpc_control *c, int rank, const char *op, double deadline, int *fd, hpc_endpoint *reached,
                      int *refused) {
    hpc_hello hello = hello_to(c, rank, HPC_FOR_CONTROL);
    calls calls;
    const double start = hpc_now();
    *fd = -1;
    *refused = 0;
    list_attempts(c, rank, &calls);
    if (try_all(c, &calls, &hello, deadline, fd, reached) == HPC_OK) return HPC_OK;
    for (int i = 0; i < calls.n; i++) *refused |= calls.all[i].status == HPC_ERR_TRANSPORT ? HPC_TURNED_DOWN : 0;
    if (is_dead(&calls)) *refused = HPC_NO_LISTENER;
    return fail_calls(c, rank, op, &calls, hpc_now() - start);
}

int hpc_mesh_call(hpc_control *c, int rank, double deadline) {
    const hpc_link *l = &c->links[rank];
    int status = HPC_IN_PROGRESS;
    if (l->allowed == 0)
        return hpc_fail_transport(
            "init", hpc_link_name(HPC_LINK_TCP), rank,
            "rank %d: init: rank %d is on another host, and HPCOMM_TRANSPORT allows no transport between hosts",
            c->group->rank, rank);
    if (l->allowed & HPC_LINK_UNIX) status = call_unix(c, rank, deadline);
    if (status != HPC_IN_PROGRESS) return status;
    if (l->allowed & HPC_LINK_TCP) return call_tcp(c, rank, deadline);
    hpc_group_depart(c->group, rank, HPC_PEER_FAILED,
                     "it does not answer: it died, or runs in another network namespace");
    return HPC_OK;
}

/* No process listens at the rank's addresses: it died, or leaves. Its word, or the kernel's, may come a moment later.
 */
static void await_word(const hpc_control *c, int rank) {
    const double deadline = hpc_now() + WORD_SECONDS;
    while (!hpc_group_has_departed(c->group, rank) && hpc_now() < deadline && !atomic_load(&c->group->closed))
        poll(NULL, 0, 1);
}

int hpc_control_call_lane(hpc_control *c, int rank, uint64_t lane, int stream, const char *op, double deadline,
                          int *fd) {
    hpc_link *l = &c->links[rank];
    hpc_hello hello = hello_to(c, rank, HPC_FOR_LANE);
    hpc_endpoint reached;
    calls calls;
    double start = hpc_now();
    int status = hpc_group_peer_present(c->group, rank, op);
    *fd = -1;
    if (status != HPC_OK) return status;
    if (!hpc_link_may_call(c, rank))
        return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                        "rank %d: %s: this rank is called at a door, and calls no rank without one, as rank %d is",
                        c->group->rank, op, rank);
    hello.lane = lane;
    hello.stream = (uint8_t)stream;
    list_attempts(c, rank, &calls);
    /* A peer's service thread answers even while its trainer computes, so init_timeout is enough. */
    if (deadline > start + c->group->init_timeout) deadline = start + c->group->init_timeout;
    /* Shows this call as a wait to other ranks, because their chains of waits may lead here. */
    double since = start;
    int shown = hpc_watch_wait(&c->group->watch, -1, hpc_doing_of(op, 0), &rank, 1, &since);
    int called = try_all(c, &calls, &hello, deadline, fd, &reached);
    hpc_watch_end(&c->group->watch, shown, 0, hpc_now());
    if (called != HPC_OK) {
        if (is_dead(&calls)) await_word(c, rank);
        status = hpc_group_peer_present(c->group, rank, op);
        return status != HPC_OK ? status : fail_calls(c, rank, op, &calls, hpc_now() - start);
    }
    hpc_mesh_remember(c, l, &reached);
    return HPC_OK;
}

int hpc_mesh_watch_process(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    const hpc_control_address *peer = &l->address;
    if (l->pidfd >= 0 || !l->same_host || !(atomic_load(&l->allowed) & HPC_LINK_UNIX)) return 0;
    if (peer->pid == c->self.pid || peer->pid_namespace != c->self.pid_namespace) return 0;
    const int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)peer->pid, 0);
    if (pidfd < 0)
        return errno == ESRCH; /* or the kernel has no pidfd (before 5.3), and only the socket shows a death */
    l->pidfd = pidfd;
    hpc_mesh_watch(c, pidfd, HPC_WATCH_PROCESS, rank);
    return 0;
}
