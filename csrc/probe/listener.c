/* The listener of bandwidth probes: it stamps the packets of peers, and reports the stamps. One service thread listens
 * for all contexts of the process (base/service.h). */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/service.h"
#include "probe/probe.h"

enum { MOST_CALLS = 256, EVENTS = 64, BATCH = 32, MOST_BATCHES = 64, ROOM = 4 << 20, NS = 1000000000 };

static const double STRAGGLERS = 0.06; /* seconds after END for late packets; a link may hold them for 50 ms */
static const double PATIENCE = 0.25;   /* seconds for which a grant waits for a pause in the job's incoming traffic */
static const double AMID = 0.03;       /* the same for a stream that may be sent without a pause */
static const double LOOK = 1e-3;       /* seconds between two looks for a pause */
static const double TURN = 0.1;        /* seconds between two looks at the stop flag of a waiting caller */
static const double GRANT_SLACK = 0.5; /* seconds that a caller may need beyond the time for which it asked */

typedef enum call_state { CALL_NEW, CALL_IDLE, CALL_ASKS, CALL_STREAMS, CALL_ENDS } call_state;

typedef struct probe_call {
    int rank, tcp, udp, place; /* place: index in calls */
    call_state state;
    unsigned char key[HPC_DIGEST_BYTES];
    hpc_probe_message in;
    size_t got;
    uint32_t stream;
    int count, arrived; /* count: packets that ASK announced, after END packets sent; arrived: packets that arrived */
    uint64_t turn;      /* turn of its ASK among all callers */
    double asked, granted;                   /* times */
    double until;                            /* time at which its grant, or its wait for late packets, ends */
    double length, patience;                 /* seconds that its stream takes, and seconds that it waits for a pause */
    uint64_t received, drops;                /* counts at its grant */
    uint64_t own;                            /* bytes of the job's own traffic that arrived from its grant to its END */
    uint32_t micros;                         /* time from its grant to its END */
    uint64_t stamps[HPC_PROBE_MOST_PACKETS]; /* nanoseconds; 0: did not arrive */
} probe_call;

struct hpc_probes {
    pthread_mutex_t lock;
    hpc_client client;
    int running, stopped, poke, epoll; /* epoll: the set of poke and of all calls' sockets */
    int n_waiting;                     /* calls that were accepted, but not yet taken by the thread */
    struct {
        int rank, fd;
    } waiting[MOST_CALLS];
    /* The following members belong to the service thread. */
    probe_call *calls[MOST_CALLS]; /* NULL: a free place */
    uint64_t turns;
    probe_call *holder; /* the caller that has the grant */
    uint64_t received;  /* received: bytes at the last look; looked: time of that look */
    double looked;
    /* The following members belong to callers of hpc_context_bandwidth. */
    pthread_mutex_t calling;
    char *noted;
};

/* ---- packets ---- */

static int send_all(int fd, const void *data, size_t nbytes) {
    return send(fd, data, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)nbytes;
}

static uint64_t drops_of(int fd) {
    uint32_t info[SK_MEMINFO_VARS] = {0};
    socklen_t nbytes = sizeof info;
    return getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &nbytes) == 0 ? info[SK_MEMINFO_DROPS] : 0;
}

static uint64_t stamp_of(struct msghdr *m) {
    struct timespec t;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h != NULL; h = CMSG_NXTHDR(m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_TIMESTAMPNS) {
            memcpy(&t, CMSG_DATA(h), sizeof t);
            return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
        }
    return 0;
}

static void take_packet(probe_call *c, const void *data, size_t nbytes, uint64_t stamp) {
    hpc_probe_packet packet;
    if ((c->state != CALL_STREAMS && c->state != CALL_ENDS) || stamp == 0) return;
    if (!hpc_probe_open(data, nbytes, c->key, &packet)) return;
    if (packet.stream != c->stream || packet.index >= c->count || c->stamps[packet.index] != 0) return;
    c->stamps[packet.index] = stamp;
    c->arrived++;
}

static void read_packets(probe_call *c) {
    char room[BATCH][sizeof(hpc_probe_packet)]; /* only heads, since the rest of a packet is zeros */
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr align;
    } controls[BATCH];
    struct mmsghdr messages[BATCH];
    struct iovec parts[BATCH];
    for (int n = BATCH, left = MOST_BATCHES; n == BATCH && left > 0; left--) { /* a flood leaves time for others */
        memset(messages, 0, sizeof messages);
        for (int i = 0; i < BATCH; i++) {
            parts[i] = (struct iovec){room[i], sizeof room[i]};
            messages[i].msg_hdr.msg_iov = &parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
            messages[i].msg_hdr.msg_control = controls[i].bytes;
            messages[i].msg_hdr.msg_controllen = sizeof controls[i].bytes;
        }
        n = recvmmsg(c->udp, messages, BATCH, MSG_DONTWAIT | MSG_TRUNC, NULL);
        for (int i = 0; i < n; i++) take_packet(c, room[i], messages[i].msg_len, stamp_of(&messages[i].msg_hdr));
    }
}

/* ---- a call ---- */

static void hang_up(hpc_probes *p, probe_call *c) {
    if (p->holder == c) p->holder = NULL;
    p->calls[c->place] = NULL;
    close(c->tcp); /* which also takes it out of the set */
    if (c->udp >= 0) close(c->udp);
    free(c);
}

enum { WATCH_POKE, WATCH_TCP, WATCH_UDP };

static int watch(const hpc_probes *p, int fd, int kind, int place) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)kind << 32 | (uint32_t)place};
    return epoll_ctl(p->epoll, EPOLL_CTL_ADD, fd, &event);
}

/* Opens a UDP socket at the address at which the call arrived; returns its port, or 0. */
static int open_udp(probe_call *c) {
    const int on = 1, room = ROOM;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at;
    socklen_t nbytes = sizeof at;
    if (getsockname(c->tcp, &at.any, &nbytes) != 0) return 0;
    in_port_t *port = at.any.sa_family == AF_INET ? &at.v4.sin_port : &at.v6.sin6_port;
    *port = 0;
    c->udp = socket(at.any.sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->udp < 0 || setsockopt(c->udp, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) != 0) return 0;
    if (setsockopt(c->udp, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) != 0)
        setsockopt(c->udp, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    nbytes = at.any.sa_family == AF_INET ? sizeof at.v4 : sizeof at.v6;
    if (bind(c->udp, &at.any, nbytes) != 0 || getsockname(c->udp, &at.any, &nbytes) != 0) return 0;
    return ntohs(*port);
}

static int welcome(hpc_context *context, probe_call *c) {
    uint64_t nonce[2];
    int port = open_udp(c);
    if (port == 0 || watch(context->probes, c->udp, WATCH_UDP, c->place) != 0 ||
        getrandom(nonce, sizeof nonce, 0) != sizeof nonce)
        return 0;
    const hpc_probe_message answer = hpc_probe_say(HPC_PROBE_WELCOME, 0, port, nonce[0], nonce[1]);
    hpc_probes_key(context, c->rank, context->group.rank, &c->in, &answer, c->key);
    c->state = CALL_IDLE;
    return send_all(c->tcp, &answer, sizeof answer);
}

static int report(probe_call *c) {
    struct {
        hpc_probe_message head;
        uint32_t offsets[HPC_PROBE_MOST_PACKETS];
    } answer;
    uint64_t first = UINT64_MAX;
    for (int i = 0; i < c->count; i++)
        if (c->stamps[i] != 0 && c->stamps[i] < first) first = c->stamps[i];
    for (int i = 0; i < c->count; i++) {
        uint64_t offset = c->stamps[i] == 0 ? HPC_PROBE_LOST : c->stamps[i] - first;
        answer.offsets[i] = offset < HPC_PROBE_LOST ? (uint32_t)offset : HPC_PROBE_LOST;
    }
    answer.head = hpc_probe_say(HPC_PROBE_REPORT, c->stream, c->count, first, c->own);
    answer.head.micros = c->micros;
    if (drops_of(c->udp) != c->drops) answer.head.flags = HPC_PROBE_OVERFLOWED;
    c->state = CALL_IDLE;
    return send_all(c->tcp, &answer, sizeof answer.head + (size_t)c->count * sizeof *answer.offsets);
}

/* Takes a message; returns 0 if it is not valid. */
static int take_message(hpc_context *context, probe_call *c) {
    hpc_probes *p = context->probes;
    const hpc_probe_message *m = &c->in;
    if (!hpc_probe_is_sound(m)) return 0;
    if (m->kind == HPC_PROBE_HELLO) return c->state == CALL_NEW && welcome(context, c);
    if (m->kind == HPC_PROBE_ASK) {
        if (c->state != CALL_IDLE || m->count == 0) return 0;
        c->stream = m->stream;
        c->count = (int)m->count;
        c->patience = m->b ? AMID : PATIENCE;
        c->length = (double)m->a / NS < 10 ? (double)m->a / NS : 10;
        c->turn = ++p->turns;
        c->asked = hpc_now();
        c->state = CALL_ASKS;
        return 1;
    }
    /* END may come after the grant has passed to another caller. The report then has the packets that arrived. */
    if (c->state != CALL_STREAMS || m->stream != c->stream || (int)m->count > c->count) return 0;
    const uint64_t received = hpc_probes_carried(context, -1).received;
    c->own = received > c->received ? received - c->received : 0;
    c->micros = (uint32_t)(1e6 * fmin(hpc_now() - c->granted, 1e3)) + 1;
    c->count = (int)m->count;
    c->until = hpc_now() + STRAGGLERS;
    c->state = CALL_ENDS;
    return 1;
}

static int read_messages(hpc_context *context, probe_call *c) {
    for (;;) {
        ssize_t n = recv(c->tcp, (char *)&c->in + c->got, sizeof c->in - c->got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        if (n == 0) return 0;
        c->got += (size_t)n;
        if (c->got < sizeof c->in) continue;
        c->got = 0;
        if (!take_message(context, c)) return 0;
    }
}

static int grant(hpc_context *context, probe_call *c) {
    hpc_probes *p = context->probes;
    const hpc_probe_message answer = hpc_probe_say(HPC_PROBE_GRANT, c->stream, c->count, 0, 0);
    read_packets(c); /* drop late packets of an earlier stream */
    p->holder = c;
    c->state = CALL_STREAMS;
    c->granted = hpc_now();
    c->until = c->granted + c->length + GRANT_SLACK;
    c->arrived = 0;
    memset(c->stamps, 0, (size_t)c->count * sizeof *c->stamps);
    c->drops = drops_of(c->udp);
    c->received = hpc_probes_carried(context, -1).received;
    return send_all(c->tcp, &answer, sizeof answer);
}

/* ---- all calls ---- */

static void take_call(hpc_probes *p, int rank, int fd) {
    int place = 0;
    while (place < MOST_CALLS && p->calls[place] != NULL) place++;
    probe_call *c = place < MOST_CALLS ? calloc(1, sizeof *c) : NULL;
    if (c == NULL || watch(p, fd, WATCH_TCP, place) != 0) {
        close(fd);
        free(c);
        return;
    }
    c->rank = rank;
    c->tcp = fd;
    c->udp = -1;
    c->place = place;
    p->calls[place] = c;
}

static void take_calls(hpc_probes *p) {
    uint64_t rings;
    ssize_t n = read(p->poke, &rings, sizeof rings);
    (void)n;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->n_waiting; i++) take_call(p, p->waiting[i].rank, p->waiting[i].fd);
    p->n_waiting = 0;
    pthread_mutex_unlock(&p->lock);
}

/* Passes the grant on, and reports to callers whose packets have all arrived or whose time is over. Returns the seconds
 * until the next deadline. */
static double look_at_calls(hpc_context *context) {
    hpc_probes *p = context->probes;
    double now = hpc_now(), next = 3600;
    for (int i = 0; i < MOST_CALLS; i++) {
        probe_call *c = p->calls[i];
        int good = 1;
        if (c == NULL) continue;
        if (c->state == CALL_ENDS && (c->arrived >= c->count || now >= c->until)) {
            good = report(c);
            if (p->holder == c) p->holder = NULL;
        }
        if (p->holder == c && now >= c->until) p->holder = NULL;
        if (!good)
            hang_up(p, c);
        else if (c->state == CALL_ENDS || p->holder == c)
            next = c->until - now < next ? c->until - now : next;
    }
    if (p->holder != NULL) return next;
    probe_call *first = NULL;
    for (int i = 0; i < MOST_CALLS; i++) {
        probe_call *c = p->calls[i];
        if (c != NULL && c->state == CALL_ASKS && (first == NULL || c->turn < first->turn)) first = c;
    }
    if (first == NULL) return next;
    uint64_t received = hpc_probes_carried(context, -1).received;
    int is_pause = received == p->received && now - p->looked < 10 * LOOK;
    p->received = received;
    p->looked = now;
    if (!is_pause && now < first->asked + first->patience) return LOOK;
    if (!grant(context, first)) hang_up(p, first);
    return 0;
}

static double prepare(void *arg) {
    return look_at_calls(arg);
}

/* A call may end while its other event waits, but no new call takes its place before the last event. */
static int serve(void *arg, int ms) {
    hpc_context *context = arg;
    hpc_probes *p = context->probes;
    struct epoll_event events[EVENTS];
    int n = epoll_wait(p->epoll, events, EVENTS, ms), poked = 0;
    if (n < 0 && errno != EINTR) return -1;
    for (int i = 0; i < n; i++) {
        const int kind = (int)(events[i].data.u64 >> 32);
        probe_call *c = p->calls[(uint32_t)events[i].data.u64];
        if (kind == WATCH_POKE) poked = 1;
        if (kind == WATCH_UDP && c != NULL) read_packets(c);
        if (kind == WATCH_TCP && c != NULL && !read_messages(context, c)) hang_up(p, c);
    }
    if (poked) take_calls(p);
    return 0;
}

static void poke(const hpc_probes *p) {
    const uint64_t one = 1;
    ssize_t n = write(p->poke, &one, sizeof one);
    (void)n;
}

static void wake(void *arg) {
    poke(((const hpc_context *)arg)->probes);
}

static hpc_service_thread service = HPC_SERVICE_THREAD("hpcomm-prober", 0);

/* ---- life ---- */

int hpc_probes_open(hpc_context *context) {
    hpc_probes *p = calloc(1, sizeof *p);
    char *noted = calloc((size_t)context->group.size, 1);
    if (p == NULL || noted == NULL) {
        free(p);
        free(noted);
        return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %d ranks", context->group.size);
    }
    p->poke = p->epoll = -1;
    p->noted = noted;
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->calling, NULL);
    context->probes = p;
    return HPC_OK;
}

static int start(hpc_context *context) {
    hpc_probes *p = context->probes;
    if (p->running) return 1;
    if (p->poke < 0) p->poke = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->epoll < 0) {
        p->epoll = epoll_create1(EPOLL_CLOEXEC);
        if (p->epoll >= 0 && watch(p, p->poke, WATCH_POKE, 0) != 0) {
            close(p->epoll);
            p->epoll = -1;
        }
    }
    if (p->epoll < 0) return 0;
    p->client =
        (hpc_client){.arg = context, .fd = p->epoll, .call_fd = -1, .prepare = prepare, .serve = serve, .wake = wake};
    p->running = hpc_service_thread_add(&service, &p->client) == 0;
    return p->running;
}

int hpc_probes_accept(hpc_context *context, int rank, int fd) {
    hpc_probes *p = context->probes;
    int status = HPC_ERR_TRANSPORT;
    pthread_mutex_lock(&p->lock);
    if (!p->stopped && p->n_waiting < MOST_CALLS && start(context)) {
        p->waiting[p->n_waiting].rank = rank;
        p->waiting[p->n_waiting++].fd = fd;
        poke(p);
        status = HPC_OK;
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

void hpc_probes_stop(hpc_context *context) {
    hpc_probes *p = context->probes;
    if (p == NULL || !hpc_group_is_mine(&context->group)) return;
    pthread_mutex_lock(&p->lock);
    int running = p->running && !p->stopped;
    p->stopped = 1;
    pthread_mutex_unlock(&p->lock);
    if (!running) return;
    hpc_service_thread_remove(&p->client);
    for (int i = 0; i < MOST_CALLS; i++)
        if (p->calls[i] != NULL) hang_up(p, p->calls[i]);
}

void hpc_probes_free(hpc_context *context) {
    hpc_probes *p = context->probes;
    if (p == NULL) return;
    hpc_probes_stop(context);
    for (int i = 0; i < p->n_waiting; i++) close(p->waiting[i].fd);
    if (p->poke >= 0) close(p->poke);
    if (p->epoll >= 0) close(p->epoll);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->calling);
    free(p->noted);
    free(p);
    context->probes = NULL;
}

/* ---- for both ends ---- */

hpc_carried hpc_probes_carried(hpc_context *context, int to) {
    hpc_carried sum = {0};
    for (int i = 0; context->used[i] != NULL; i++)
        if (context->used[i]->carried != NULL) context->used[i]->carried(context, to, &sum);
    return sum;
}

void hpc_probes_key(hpc_context *context, int from, int to, const hpc_probe_message *hello,
                    const hpc_probe_message *answer, unsigned char key[HPC_DIGEST_BYTES]) {
    const struct {
        char label[16];
        int32_t from, to;
        uint64_t nonces[4];
    } facts = {"hpcomm probe", from, to, {hello->a, hello->b, answer->a, answer->b}};
    hpc_control_derive(context->control, &facts, sizeof facts, key);
}

int hpc_probes_begin(hpc_context *context, const int *stop, double deadline, const char *op) {
    do {
        struct timespec at;
        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_nsec += (long)(TURN * NS);
        if (at.tv_nsec >= NS) at.tv_sec++, at.tv_nsec -= NS;
        if (pthread_mutex_timedlock(&context->probes->calling, &at) == 0) return HPC_OK;
        if (stop != NULL && __atomic_load_n(stop, __ATOMIC_ACQUIRE))
            return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: the caller has stopped it", context->group.rank, op);
    } while (hpc_left(deadline) > 0);
    return hpc_fail(HPC_ERR_TIMEOUT, op,
                    "rank %d: %s: another thread of this rank was probing all the time; probe several peers in one "
                    "call, or give it a longer timeout",
                    context->group.rank, op);
}

void hpc_probes_end(hpc_context *context) {
    pthread_mutex_unlock(&context->probes->calling);
}

int hpc_probes_first_note(hpc_context *context, int rank) {
    int first = !context->probes->noted[rank];
    context->probes->noted[rank] = 1;
    return first;
}
