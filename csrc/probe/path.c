/* The caller's end of one path of a bandwidth probe: sends packets at their times, and gets the listener's stamps. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "probe/probe.h"

enum { UDP_BYTES = 8, IPV4_BYTES = 20, IPV6_BYTES = 40, LEAST_MTU = 576, MOST_MTU = 9000, ROOM = 4 << 20 };
enum { NS = 1000000000, SLICE = 100000 /* ns; the shortest slice that the kernel has */ };

static const char op[] = "bandwidth";
static const double LONG = 0.05;  /* seconds between packets above which the stop flag is checked in between */
static const double PIECE = 0.05; /* seconds of a wait between two checks of the peer and of the stop flag */
/* Seconds between two sends; if a rate needs more packets, several are sent at once. A thread that sleeps most of the
 * time keeps its claim to a CPU; a thread that spins through a stream loses it if ranks share CPUs. */
static const double LEAST_PERIOD = 150e-6;
static const double SPIN = 10e-6;    /* the last seconds of a sleep, which are spun */
static const double MOST_LATE = 0.2; /* the most by which a packet may be late, as a fraction of its stream's length */
static const double LEAST_LATE = 0.8e-3;

/* ---- waiting ---- */

int hpc_probe_goes_on(const hpc_probe_path *p) {
    hpc_group *g = &p->context->group;
    int status = hpc_group_usable(g, op);
    if (status == HPC_OK) status = hpc_group_peer_present(g, p->rank, op);
    if (status == HPC_OK && p->stop != NULL && __atomic_load_n(p->stop, __ATOMIC_ACQUIRE))
        status = hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: the caller has stopped it", g->rank, op);
    return status;
}

int hpc_probe_sleep(const hpc_probe_path *p, double seconds, double deadline) {
    double until = hpc_now() + seconds;
    if (until > deadline) until = deadline;
    for (;;) {
        int status = hpc_probe_goes_on(p);
        double left = until - hpc_now();
        if (status != HPC_OK || left <= 0) return status;
        if (left > PIECE) left = PIECE;
        const struct timespec t = {.tv_nsec = (long)(left * NS)};
        nanosleep(&t, NULL);
    }
}

static int fail_timeout(const hpc_probe_path *p, const char *what) {
    return hpc_fail_ranks(HPC_ERR_TIMEOUT, op, NULL, 0, &p->rank, 1,
                          "rank %d: %s: rank %d did not %s in time; another rank may be probing it, or its host may be "
                          "overloaded: give a longer timeout",
                          p->context->group.rank, op, p->rank, what);
}

/* Fails because the connection has ended. If the peer is gone, the reason arrives within a second. */
static int fail_ended(const hpc_probe_path *p) {
    double until = hpc_now() + 1;
    int status = HPC_OK;
    while (status == HPC_OK && hpc_now() < until) {
        status = hpc_probe_goes_on(p);
        const struct timespec t = {.tv_nsec = 5000000};
        if (status == HPC_OK) nanosleep(&t, NULL);
    }
    if (status != HPC_OK) return status;
    return hpc_fail_transport(op, hpc_link_name(HPC_LINK_TCP), p->rank,
                              "rank %d: %s: rank %d has closed the probe's connection; it closes its context, or has "
                              "too many probes at once",
                              p->context->group.rank, op, p->rank);
}

static int receive_all(const hpc_probe_path *p, void *data, size_t nbytes, double deadline, const char *what) {
    char *bytes = data;
    while (nbytes > 0) {
        ssize_t n = recv(p->tcp, bytes, nbytes, MSG_DONTWAIT);
        if (n > 0) {
            bytes += n;
            nbytes -= (size_t)n;
            continue;
        }
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) return fail_ended(p);
        int status = hpc_probe_goes_on(p);
        if (status != HPC_OK) return status;
        double left = hpc_left(deadline);
        if (left <= 0) return fail_timeout(p, what);
        struct pollfd in = {.fd = p->tcp, .events = POLLIN};
        poll(&in, 1, (int)(1e3 * (left < PIECE ? left : PIECE)) + 1);
    }
    return HPC_OK;
}

static int say(const hpc_probe_path *p, const hpc_probe_message *m) {
    return send(p->tcp, m, sizeof *m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *m ? HPC_OK : fail_ended(p);
}

static int hear(const hpc_probe_path *p, hpc_probe_kind kind, hpc_probe_message *m, double deadline, const char *what) {
    int status = receive_all(p, m, sizeof *m, deadline, what);
    if (status == HPC_OK && !hpc_probe_is(m, kind))
        status = hpc_fail_transport(op, hpc_link_name(HPC_LINK_TCP), p->rank,
                                    "rank %d: %s: rank %d sent something else than a probe's answer",
                                    p->context->group.rank, op, p->rank);
    return status;
}

/* ---- opening ---- */

static int open_udp(hpc_probe_path *p, int port) {
    const int room = ROOM, never_cut = IP_PMTUDISC_DO, never_cut6 = IPV6_PMTUDISC_DO;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } own, peer;
    socklen_t nbytes = sizeof own, peer_bytes = sizeof peer, mtu_bytes = sizeof(int);
    int mtu = 0;
    if (getsockname(p->tcp, &own.any, &nbytes) != 0 || getpeername(p->tcp, &peer.any, &peer_bytes) != 0) return errno;
    int v4 = own.any.sa_family == AF_INET;
    *(v4 ? &own.v4.sin_port : &own.v6.sin6_port) = 0;
    *(v4 ? &peer.v4.sin_port : &peer.v6.sin6_port) = htons((uint16_t)port);
    p->udp = socket(own.any.sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->udp < 0) return errno;
    if (setsockopt(p->udp, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) != 0)
        setsockopt(p->udp, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    setsockopt(p->udp, IPPROTO_IP, IP_MTU_DISCOVER, &never_cut, sizeof never_cut);
    if (!v4) setsockopt(p->udp, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &never_cut6, sizeof never_cut6);
    if (bind(p->udp, &own.any, nbytes) != 0 || connect(p->udp, &peer.any, peer_bytes) != 0) return errno;
    if (getsockopt(p->udp, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU : IPV6_MTU, &mtu, &mtu_bytes) != 0) return errno;
    mtu = mtu < LEAST_MTU ? LEAST_MTU : mtu > MOST_MTU ? MOST_MTU : mtu;
    int heads = UDP_BYTES + (v4 ? IPV4_BYTES : IPV6_BYTES);
    p->each = mtu;
    p->payload = mtu - heads;
    return 0;
}

int hpc_probe_connect(hpc_context *context, int rank, const int *stop, double deadline, hpc_probe_path *p) {
    uint64_t nonce[2];
    hpc_probe_message welcome;
    p->context = context;
    p->rank = rank;
    p->stop = stop;
    p->tcp = p->udp = -1;
    p->streams = 0;
    p->nbytes = 0;
    int status = hpc_control_call_lane(context->control, rank, HPC_PROBE_LANE, 0, op, deadline, &p->tcp);
    if (status != HPC_OK) return status;
    if (getrandom(nonce, sizeof nonce, 0) != sizeof nonce) {
        status = hpc_fail(HPC_ERR_TRANSPORT, op, "%s: the kernel gives no random numbers", op);
        goto err;
    }
    const hpc_probe_message hello = hpc_probe_say(HPC_PROBE_HELLO, 0, 0, nonce[0], nonce[1]);
    double start = hpc_now();
    status = say(p, &hello);
    if (status == HPC_OK) status = hear(p, HPC_PROBE_WELCOME, &welcome, deadline, "answer");
    if (status != HPC_OK) goto err;
    p->round_trip = hpc_now() - start;
    hpc_probes_key(context, context->group.rank, rank, &hello, &welcome, p->key);
    int error = open_udp(p, (int)welcome.count);
    if (error != 0) {
        status = hpc_fail_transport(op, "udp", rank, "rank %d: %s: cannot open a UDP socket towards rank %d: %s",
                                    context->group.rank, op, rank, strerror(error));
        goto err;
    }
    return HPC_OK;
err:
    hpc_probe_close(p);
    return status;
}

void hpc_probe_close(hpc_probe_path *p) {
    if (p->tcp >= 0) close(p->tcp);
    if (p->udp >= 0) close(p->udp);
    p->tcp = p->udp = -1;
}

/* ---- one stream ---- */

static void sleep_until(double at) {
    double now = hpc_now();
    if (at - now > 2 * SPIN) {
        double wake = at - SPIN;
        const struct timespec t = {.tv_sec = (time_t)wake, .tv_nsec = (long)((wake - (double)(time_t)wake) * NS)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    }
    while (hpc_now() < at) hpc_cpu_relax();
}

/* The kernel's struct sched_attr, which some versions of glibc do not define. */
typedef struct sched_of {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} sched_of;

typedef struct hasty {
    int slack, is_known;
    sched_of sched;
} hasty;

/* Makes this thread's sleeps end in time. In case other threads share its CPU, it asks the scheduler for short slices,
 * which begin sooner (EEVDF, since Linux 6.12; older kernels ignore this). */
static void make_haste(hasty *before) {
    before->slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1UL);
    before->is_known = syscall(SYS_sched_getattr, 0, &before->sched, sizeof before->sched, 0) == 0;
    if (!before->is_known) return;
    sched_of now = before->sched;
    now.runtime = SLICE;
    before->is_known = now.policy == SCHED_OTHER && syscall(SYS_sched_setattr, 0, &now, 0) == 0;
}

static void calm_down(const hasty *before) {
    prctl(PR_SET_TIMERSLACK, before->slack > 0 ? (unsigned long)before->slack : 0UL);
    if (before->is_known) syscall(SYS_sched_setattr, 0, &before->sched, 0);
}

/* Sends a packet without waiting; returns whether the socket took it. An error from ICMP is about an earlier packet, so
 * it is ignored. */
static int send_one(const hpc_probe_path *p, const hpc_probe_packet *packet, int payload) {
    static const char zeros[HPC_PROBE_MOST_BYTES];
    struct iovec parts[2] = {{(void *)(uintptr_t)packet, sizeof *packet},
                             {(void *)(uintptr_t)zeros, (size_t)payload - sizeof *packet}};
    const struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
    for (int tries = 0; tries < 3; tries++) {
        if (sendmsg(p->udp, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 1;
        if (errno == EAGAIN || errno == ENOBUFS) return 0;
    }
    return 1;
}

static int wait_for_room(const hpc_probe_path *p) {
    struct pollfd out = {.fd = p->udp, .events = POLLOUT};
    return poll(&out, 1, 100) == 1;
}

/* Sends packets and records them in s, up to one that could not be sent when it was due. */
static void send_packets(hpc_probe_path *p, int first, int n, int payload, double period, double deadline,
                         hpc_probe_stream *s) {
    int burst = period > 0 && period < LEAST_PERIOD ? (int)ceil(LEAST_PERIOD / period) : 1;
    double start = hpc_now(), due = start;
    double late = MOST_LATE * period * (n - first);
    if (late < LEAST_LATE) late = LEAST_LATE;
    for (int i = 0; i < n; i++) {
        if (period > 0 && i == first) due = hpc_now() + (i > 0 ? period : 0);
        if (period > 0 && i >= first) {
            double at = due + (i - first) / burst * burst * period;
            if (at - hpc_now() > LONG && hpc_probe_sleep(p, at - hpc_now() - LONG, deadline) != HPC_OK) break;
            sleep_until(at);
            if (hpc_now() - at > late) {
                s->is_late = 1;
                break;
            }
        }
        double now = hpc_now();
        if (!send_one(p, &p->packets[i], payload)) {
            if (period > 0 && i >= first) {
                s->is_blocked = 1;
                break;
            }
            if (!wait_for_room(p) || !send_one(p, &p->packets[i], payload)) break;
        }
        s->sent[s->n++] = now - start;
    }
    s->seconds = hpc_now() - start;
}

static int get_report(const hpc_probe_path *p, hpc_probe_stream *s, double deadline) {
    uint32_t offsets[HPC_PROBE_MOST_PACKETS];
    hpc_probe_message m;
    int status = hear(p, HPC_PROBE_REPORT, &m, deadline, "report its stamps");
    if (status == HPC_OK && ((int)m.count != s->n || m.stream != p->streams))
        status = hpc_fail_transport(op, hpc_link_name(HPC_LINK_TCP), p->rank,
                                    "rank %d: %s: rank %d reports another stream than was sent", p->context->group.rank,
                                    op, p->rank);
    if (status == HPC_OK) status = receive_all(p, offsets, m.count * sizeof *offsets, deadline, "report its stamps");
    if (status != HPC_OK) return status;
    s->overflowed = m.flags & HPC_PROBE_OVERFLOWED;
    /* The larger count is used, because the path's narrowest link is at one of the two ends. */
    s->own = fmax(s->own, (double)m.b);
    s->own_rate = fmax(s->own_rate, (double)m.b * 1e6 / m.micros);
    for (int i = 0; i < s->n; i++) {
        s->came[i] = offsets[i] == HPC_PROBE_LOST ? -1 : offsets[i] * 1e-9;
        s->lost += offsets[i] == HPC_PROBE_LOST;
    }
    return HPC_OK;
}

int hpc_probe_send(hpc_probe_path *p, int first, int rest, int nbytes, double rate, double deadline,
                   hpc_probe_stream *s) {
    int n = first + rest, payload = nbytes - (p->each - p->payload);
    double period = rate > 0 ? nbytes / rate : 0;
    s->n = s->lost = s->overflowed = s->is_late = s->is_blocked = 0;
    s->own = s->own_rate = s->seconds = 0;
    for (int i = 0; i < n; i++) hpc_probe_seal(&p->packets[i], p->key, p->streams + 1, i, payload);
    p->streams++;
    const hpc_probe_message ask =
        hpc_probe_say(HPC_PROBE_ASK, p->streams, n, (uint64_t)(n * period * NS), (uint64_t)p->goes_amid);
    hpc_probe_message grant;
    hpc_carried earlier = hpc_probes_carried(p->context, -1);
    int status = say(p, &ask);
    if (status == HPC_OK) status = hear(p, HPC_PROBE_GRANT, &grant, deadline, "let it send");
    if (status != HPC_OK) return status;
    hpc_carried before = hpc_probes_carried(p->context, -1);
    double begin = hpc_now();
    if (before.sent == earlier.sent || p->goes_amid) { /* if not, the pause is over, and nothing is sent */
        hasty before_that;
        make_haste(&before_that);
        send_packets(p, first, n, payload, period, deadline, s);
        calm_down(&before_that);
    }
    p->nbytes += (uint64_t)s->n * (uint64_t)nbytes;
    hpc_carried after = hpc_probes_carried(p->context, -1);
    if (after.sent > before.sent) {
        s->own = (double)(after.sent - before.sent);
        s->own_rate = s->own / fmax(hpc_now() - begin, 1e-6);
    }
    const hpc_probe_message end = hpc_probe_say(HPC_PROBE_END, p->streams, s->n, 0, 0);
    status = say(p, &end);
    return status == HPC_OK ? get_report(p, s, deadline) : status;
}
