#define _GNU_SOURCE
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { PAYLOAD_BYTES = 32 << 10, STRANGERS = 64, HELLO = 1, GATHER, BYE, ABORT };

/* Every packet is one frame; a message longer than PAYLOAD_BYTES comes in several. */
typedef struct frame {
    uint32_t magic, type;
    int32_t rank;
    uint32_t nbytes; /* of this frame's payload */
    uint64_t sequence, total, offset;
    char op[HPC_OP_BYTES];
} frame;

static const uint32_t MAGIC = 0x68706331; /* "hpc1" */

typedef struct message {
    struct message *next;
    uint64_t sequence;
    size_t total, got;
    int fd;
    char op[HPC_OP_BYTES];
    char data[];
} message;

typedef struct link {
    _Atomic int fd; /* -1 until connected; set under lock */
    int pidfd;
    hpc_memory *bell;
    message *inbox; /* in order of sequence; under lock */
    pthread_mutex_t send_lock;
} link_t;

struct hpc_control {
    hpc_group *group;
    hpc_memory *bell;
    hpc_control_address self;
    int listen_fd, epoll_fd, stop_fd;
    int strangers[STRANGERS]; /* accepted, but no HELLO yet */
    pthread_t thread;
    int running;
    pthread_mutex_t lock;            /* links' inboxes and connection */
    pthread_mutex_t collective_lock; /* one collective at a time */
    uint64_t sequence;
    int broken; /* the status of the collective that failed */
    link_t *links;
};

/* epoll's user data: what kind of descriptor, and which */
enum { STOP = 0, LISTEN, STRANGER, LINK, PID };
static uint64_t tag(int kind, int index) {
    return (uint64_t)kind << 32 | (uint32_t)index;
}

static int watch(hpc_control *c, int fd, uint64_t data) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = data};
    return epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static socklen_t socket_name(const unsigned char *name, struct sockaddr_un *address) {
    char *path = address->sun_path; /* a leading NUL makes it abstract: no file, gone with its last descriptor */
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int n = snprintf(path + 1, sizeof address->sun_path - 1, "hpcomm-");
    for (int i = 0; i < HPC_COOKIE_BYTES; i++)
        n += snprintf(path + 1 + n, sizeof address->sun_path - 1 - (size_t)n, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* ---- frames ---- */

/* Whether nobody will read what is sent to rank, or nobody waits for the answer any more. */
static int is_pointless(const hpc_group *g, int rank, uint32_t type) {
    int state = atomic_load_explicit(&g->states[rank], memory_order_acquire);
    return state == HPC_PEER_LEFT || state == HPC_PEER_FAILED || (type == GATHER && atomic_load(&g->closed));
}

/* One packet to rank, waiting for room until the deadline. HPC_ERR_PEER if the peer is gone (its state says so soon).
 */
static int send_frame(const hpc_group *g, int rank, int fd, const frame *f, const void *payload, int pass_fd,
                      double deadline) {
    struct iovec parts[2] = {{(void *)(uintptr_t)f, sizeof *f}, {(void *)(uintptr_t)payload, f->nbytes}};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } room;
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = f->nbytes > 0 ? 2 : 1};
    if (pass_fd >= 0) {
        memset(&room, 0, sizeof room);
        m.msg_control = room.bytes;
        m.msg_controllen = sizeof room.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
    }
    for (;;) {
        if (sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return HPC_OK;
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != ENOBUFS && errno != ETOOMANYREFS) return HPC_ERR_PEER;
        double left = deadline - hpc_now();
        if (is_pointless(g, rank, f->type)) return HPC_ERR_PEER;
        if (left <= 0) return HPC_ERR_TIMEOUT;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        poll(&p, 1, left > 0.1 ? 100 : (int)(left * 1e3) + 1);
    }
}

static int send_message(hpc_control *c, int rank, uint32_t type, uint64_t sequence, const char *op, const void *data,
                        size_t nbytes, int pass_fd, double deadline) {
    link_t *link = &c->links[rank];
    int fd, status = HPC_OK;
    size_t offset = 0;
    pthread_mutex_lock(&link->send_lock); /* also keeps the descriptor from being closed under the send */
    fd = atomic_load(&link->fd);
    if (fd < 0) status = HPC_ERR_PEER;
    while (status == HPC_OK) {
        size_t n = nbytes - offset < PAYLOAD_BYTES ? nbytes - offset : PAYLOAD_BYTES;
        frame f = {.magic = MAGIC,
                   .type = type,
                   .rank = c->group->rank,
                   .nbytes = (uint32_t)n,
                   .sequence = sequence,
                   .total = nbytes,
                   .offset = offset};
        snprintf(f.op, sizeof f.op, "%s", op);
        status = send_frame(c->group, rank, fd, &f, (const char *)data + offset, offset == 0 ? pass_fd : -1, deadline);
        offset += n;
        if (offset >= nbytes) break;
    }
    pthread_mutex_unlock(&link->send_lock);
    return status;
}

/* One packet if there is one: its size, 0 at the end of the stream, -1 if none (errno). A descriptor that came along is
 * the caller's. */
static ssize_t receive_frame(int fd, frame *f, char *payload, int *passed) {
    struct iovec parts[2] = {{f, sizeof *f}, {payload, PAYLOAD_BYTES}};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } room;
    struct msghdr m = {
        .msg_iov = parts, .msg_iovlen = 2, .msg_control = room.bytes, .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t n;
    *passed = -1;
    do n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) return n;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h != NULL; h = CMSG_NXTHDR(&m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) memcpy(passed, CMSG_DATA(h), sizeof(int));
    return n;
}

static int frame_is_sound(const frame *f, ssize_t n, int size) {
    return n >= (ssize_t)sizeof *f && f->magic == MAGIC && (size_t)n == sizeof *f + f->nbytes && f->rank >= 0 &&
           f->rank < size && f->offset <= f->total && f->nbytes <= f->total - f->offset &&
           memchr(f->op, 0, sizeof f->op) != NULL;
}

/* ---- the service thread ---- */

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static int accept_hello(hpc_control *c, int fd, const frame *f, const char *payload, int *passed) {
    link_t *link = &c->links[f->rank];
    if (f->type != HELLO || f->nbytes != HPC_COOKIE_BYTES || *passed < 0 || f->rank == c->group->rank) return 0;
    unsigned char differs = 0; /* every byte is looked at: time tells nothing about the secret */
    for (int i = 0; i < HPC_COOKIE_BYTES; i++) differs |= (unsigned char)payload[i] ^ c->self.secret[i];
    if (differs || link->bell != NULL) return 0;
    if (hpc_memory_attach(*passed, sizeof(hpc_bell), "init", &link->bell) != HPC_OK) {
        *passed = -1;
        return 0;
    }
    *passed = -1;
    pthread_mutex_lock(&c->lock);
    atomic_store(&link->fd, fd);
    pthread_mutex_unlock(&c->lock);
    return 1;
}

static void mark_alive(hpc_control *c, int rank) {
    int joining = HPC_PEER_JOINING; /* release: the bell before the state */
    atomic_compare_exchange_strong(&c->group->states[rank], &joining, HPC_PEER_ALIVE);
    hpc_bell_ring(c->group->bell);
}

static void on_accept(hpc_control *c) {
    int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), i = 0;
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (fd < 0) {
        /* Out of descriptors: the caller stays in the backlog and epoll would report it without end. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) poll(NULL, 0, 1);
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || (peer.uid != geteuid() && peer.uid != 0)) {
        close(fd);
        return;
    }
    while (i < STRANGERS && c->strangers[i] >= 0) i++;
    if (i == STRANGERS) { /* full of silent ones: the oldest place is as good as any */
        i = 0;
        close_fd(&c->strangers[i]);
    }
    c->strangers[i] = fd;
    if (watch(c, fd, tag(STRANGER, i)) != 0) close_fd(&c->strangers[i]);
}

static void on_stranger(hpc_control *c, int i) {
    char payload[PAYLOAD_BYTES];
    frame f;
    int passed, fd = c->strangers[i];
    if (fd < 0) return;
    ssize_t n = receive_frame(fd, &f, payload, &passed);
    if (n < 0 && errno == EAGAIN) return;
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    if (!frame_is_sound(&f, n, c->group->size) || !accept_hello(c, fd, &f, payload, &passed)) {
        close_fd(&c->strangers[i]);
        close_fd(&passed);
        return;
    }
    c->strangers[i] = -1;
    /* Answer before anything else can be sent on this link, then the peer counts as here. */
    send_message(c, f.rank, HELLO, 0, "init", c->self.secret, HPC_COOKIE_BYTES, c->bell->fd, hpc_now() + 1);
    watch(c, fd, tag(LINK, f.rank));
    mark_alive(c, f.rank);
}

static int keep_message(hpc_control *c, int rank, const frame *f, const char *payload, int *passed) {
    link_t *link = &c->links[rank];
    message **at, *m;
    int whole = 0;
    pthread_mutex_lock(&c->lock);
    for (at = &link->inbox; (m = *at) != NULL && m->sequence < f->sequence; at = &m->next) {
    }
    if (m == NULL || m->sequence != f->sequence) {
        if (f->offset != 0 || f->total > (uint64_t)1 << 32 || (m = malloc(sizeof *m + f->total)) == NULL) goto out;
        *m = (message){.next = *at, .sequence = f->sequence, .total = f->total, .fd = *passed};
        memcpy(m->op, f->op, sizeof m->op);
        *passed = -1;
        *at = m;
    }
    if (f->total != m->total || f->offset != m->got) goto out;
    memcpy(m->data + m->got, payload, f->nbytes);
    m->got += f->nbytes;
    whole = 1;
out:
    pthread_mutex_unlock(&c->lock);
    return whole;
}

/* Reads all that is there. Returns 0 when the stream has ended or broken. */
static int drain_link(hpc_control *c, int rank) {
    char payload[PAYLOAD_BYTES + 1];
    hpc_group *g = c->group;
    int fd = atomic_load(&c->links[rank].fd), passed, sound;
    frame f;
    for (;;) {
        ssize_t n = receive_frame(fd, &f, payload, &passed);
        /* A peer that closed with packets of ours unread gives one reset before its own last packets. */
        if (n < 0 && errno == ECONNRESET) continue;
        if (n < 0) return errno == EAGAIN;
        sound = frame_is_sound(&f, n, g->size) && f.rank == rank;
        if (n == 0 || !sound) {
            close_fd(&passed);
            return 0;
        }
        payload[f.nbytes] = 0;
        switch (f.type) {
        case HELLO: /* the answer to ours */
            if (c->links[rank].bell != NULL || passed < 0) {
                sound = 0;
                break;
            }
            if (hpc_memory_attach(passed, sizeof(hpc_bell), "init", &c->links[rank].bell) == HPC_OK)
                mark_alive(c, rank);
            else
                sound = 0;
            passed = -1;
            break;
        case GATHER:
            sound = keep_message(c, rank, &f, payload, &passed);
            hpc_bell_ring(g->bell);
            break;
        case BYE:
            hpc_group_depart(g, rank, HPC_PEER_LEFT, "it left");
            break;
        case ABORT:
            hpc_group_depart(g, rank, HPC_PEER_FAILED, payload);
            break;
        default:
            sound = 0;
        }
        close_fd(&passed);
        if (!sound) return 0;
    }
}

static void on_link(hpc_control *c, int rank) {
    if (drain_link(c, rank)) return;
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, atomic_load(&c->links[rank].fd), NULL);
    hpc_group_depart(c->group, rank, HPC_PEER_FAILED, "its process died or closed the connection");
}

static void on_death(hpc_control *c, int rank) {
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, c->links[rank].pidfd, NULL);
    if (atomic_load(&c->links[rank].fd) >= 0) drain_link(c, rank); /* its last words may be a BYE */
    hpc_group_depart(c->group, rank, HPC_PEER_FAILED, "its process died");
}

static void *serve(void *arg) {
    hpc_control *c = arg;
    struct epoll_event events[32];
    for (;;) {
        int n = epoll_wait(c->epoll_fd, events, 32, -1);
        for (int i = 0; i < n; i++) {
            int index = (int)(uint32_t)events[i].data.u64;
            switch (events[i].data.u64 >> 32) {
            case STOP:
                return NULL;
            case LISTEN:
                on_accept(c);
                break;
            case STRANGER:
                on_stranger(c, index);
                break;
            case LINK:
                on_link(c, index);
                break;
            case PID:
                on_death(c, index);
                break;
            }
        }
    }
}

/* ---- opening and connecting ---- */

static uint64_t pid_namespace(void) {
    struct stat s;
    return stat("/proc/self/ns/pid", &s) == 0 ? (uint64_t)s.st_ino : 0;
}

static int start_thread(hpc_control *c) {
    sigset_t all, before;
    int error;
    sigfillset(&all); /* signals are for the caller's threads: Python's handlers, mpirun's SIGTERM */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&c->thread, NULL, serve, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) pthread_setname_np(c->thread, "hpcomm-control");
    return error;
}

int hpc_control_open(hpc_group *group, hpc_memory *bell, hpc_control **control) {
    struct sockaddr_un name;
    socklen_t length;
    hpc_control *c = calloc(1, sizeof *c);
    int error;
    if (c == NULL || (c->links = calloc((size_t)group->size, sizeof *c->links)) == NULL) {
        free(c);
        return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %d ranks", group->size);
    }
    c->group = group;
    c->bell = hpc_memory_retain(bell);
    c->listen_fd = c->epoll_fd = c->stop_fd = -1;
    for (int i = 0; i < STRANGERS; i++) c->strangers[i] = -1;
    for (int r = 0; r < group->size; r++) {
        atomic_init(&c->links[r].fd, -1);
        c->links[r].pidfd = -1;
        pthread_mutex_init(&c->links[r].send_lock, NULL);
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->collective_lock, NULL);

    c->self.pid = getpid();
    c->self.pid_namespace = pid_namespace();
    if (getrandom(c->self.name, HPC_COOKIE_BYTES, 0) != HPC_COOKIE_BYTES ||
        getrandom(c->self.secret, HPC_COOKIE_BYTES, 0) != HPC_COOKIE_BYTES)
        goto err_errno;
    length = socket_name(c->self.name, &name);
    c->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->listen_fd < 0 || bind(c->listen_fd, (struct sockaddr *)&name, length) != 0 ||
        listen(c->listen_fd, 4096) != 0)
        goto err_errno;
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    c->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (c->epoll_fd < 0 || c->stop_fd < 0 || watch(c, c->stop_fd, tag(STOP, 0)) != 0 ||
        watch(c, c->listen_fd, tag(LISTEN, 0)) != 0)
        goto err_errno;
    error = start_thread(c);
    if (error != 0) {
        errno = error;
        goto err_errno;
    }
    c->running = 1;
    *control = c;
    return HPC_OK;

err_errno:
    hpc_fail(HPC_ERR_TRANSPORT, "init", "init: cannot open the control channel: %s", strerror(errno));
    hpc_control_free(c);
    return HPC_ERR_TRANSPORT;
}

void hpc_control_address_of(const hpc_control *control, hpc_control_address *address) {
    *address = control->self;
}

hpc_bell *hpc_control_bell(const hpc_control *control, int rank) {
    return rank == control->group->rank ? control->group->bell : hpc_memory_data(control->links[rank].bell);
}

/* A lower rank is called, a higher one calls. */
static int call(hpc_control *c, int rank, const hpc_control_address *to, double deadline) {
    struct sockaddr_un name;
    socklen_t length = socket_name(to->name, &name);
    struct ucred owner = {.uid = (uid_t)-1};
    socklen_t owner_bytes = sizeof owner;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), status;
    if (fd < 0) return hpc_fail(HPC_ERR_TRANSPORT, "init", "init: socket: %s", strerror(errno));
    while (connect(fd, (struct sockaddr *)&name, length) != 0) {
        int error = errno;
        if (error == EINTR) continue;
        if (error == EAGAIN && hpc_now() < deadline) { /* its backlog is full */
            poll(NULL, 0, 1);
            continue;
        }
        close(fd);
        if (error == ECONNREFUSED || error == ENOENT) {
            hpc_group_depart(c->group, rank, HPC_PEER_FAILED,
                             "it does not answer: it died, or runs in another network namespace");
            return HPC_OK; /* the wait that follows says who is gone, this one and all others */
        }
        return hpc_fail_ranks(HPC_ERR_TIMEOUT, "init", NULL, 0, &rank, 1,
                              "rank %d: init: cannot connect to rank %d: %s", c->group->rank, rank, strerror(error));
    }
    /* The name may have been taken over by somebody else after its owner's death. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &owner_bytes) != 0 ||
        (owner.uid != geteuid() && owner.uid != 0)) {
        close(fd);
        return hpc_fail(HPC_ERR_AUTH, "init", "init: rank %d's socket belongs to user %d, who is not of this job", rank,
                        (int)owner.uid);
    }
    atomic_store(&c->links[rank].fd, fd);
    status = send_message(c, rank, HELLO, 0, "init", to->secret, HPC_COOKIE_BYTES, c->bell->fd, deadline);
    if (watch(c, fd, tag(LINK, rank)) != 0)
        return hpc_fail(HPC_ERR_TRANSPORT, "init", "init: epoll_ctl: %s", strerror(errno));
    if (status == HPC_ERR_TIMEOUT)
        return hpc_fail_ranks(HPC_ERR_TIMEOUT, "init", NULL, 0, &rank, 1,
                              "rank %d: init: rank %d does not read its socket", c->group->rank, rank);
    return HPC_OK; /* a hang-up is found by the service thread */
}

static void watch_process(hpc_control *c, int rank, const hpc_control_address *peer) {
    if (peer->pid == c->self.pid || peer->pid_namespace != c->self.pid_namespace) return;
    int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)peer->pid, 0);
    if (pidfd >= 0) {
        struct pollfd died = {.fd = pidfd, .events = POLLIN};
        c->links[rank].pidfd = pidfd;
        if (poll(&died, 1, 0) == 1)
            hpc_group_depart(c->group, rank, HPC_PEER_FAILED, "its process died"); /* before it could connect */
        else
            watch(c, pidfd, tag(PID, rank));
    } else if (errno == ESRCH) {
        hpc_group_depart(c->group, rank, HPC_PEER_FAILED, "its process died");
    } /* else the kernel has no pidfd (before 5.3): the socket alone tells */
}

static int all_connected(void *arg) {
    hpc_control *c = arg;
    for (int r = 0; r < c->group->size; r++)
        if (atomic_load_explicit(&c->group->states[r], memory_order_acquire) == HPC_PEER_JOINING) return 0;
    return 1;
}

static int who_is_joining(void *arg, int *ranks) {
    hpc_control *c = arg;
    int n = 0;
    for (int r = 0; r < c->group->size; r++)
        if (atomic_load_explicit(&c->group->states[r], memory_order_acquire) == HPC_PEER_JOINING) ranks[n++] = r;
    return n;
}

int hpc_control_connect(hpc_control *c, const hpc_control_address *addresses, double deadline) {
    hpc_group *g = c->group;
    const hpc_wait wait = {"init", all_connected, who_is_joining, c};
    int status = HPC_OK;
    atomic_store(&g->states[g->rank], HPC_PEER_ALIVE);
    for (int r = 0; r < g->size; r++)
        if (r != g->rank) watch_process(c, r, &addresses[r]);
    for (int r = 0; r < g->rank && status == HPC_OK; r++) status = call(c, r, &addresses[r], deadline);
    if (status == HPC_OK) {
        double left = deadline - hpc_now();
        status = hpc_wait_for(g, &wait, left > 0 ? left : 0);
    }
    return status;
}

/* ---- collectives ---- */

struct gathering {
    hpc_control *control;
    uint64_t sequence;
};

static int has_reply(struct gathering *g, int rank) {
    hpc_control *c = g->control;
    if (rank == c->group->rank) return 1;
    for (const message *m = c->links[rank].inbox; m != NULL && m->sequence <= g->sequence; m = m->next)
        if (m->sequence == g->sequence) return m->got == m->total;
    return 0;
}

static int who_is_missing(void *arg, int *ranks) {
    struct gathering *g = arg;
    int n = 0;
    pthread_mutex_lock(&g->control->lock);
    for (int r = 0; r < g->control->group->size; r++)
        if (!has_reply(g, r)) ranks[n++] = r;
    pthread_mutex_unlock(&g->control->lock);
    return n;
}

static int all_replied(void *arg) {
    struct gathering *g = arg;
    int all = 1;
    pthread_mutex_lock(&g->control->lock);
    for (int r = 0; r < g->control->group->size && all; r++) all = has_reply(g, r);
    pthread_mutex_unlock(&g->control->lock);
    return all;
}

/* Takes rank's reply out of the inbox, and drops what an abandoned collective left before it. */
static message *take_reply(hpc_control *c, int rank, uint64_t sequence) {
    message *m;
    pthread_mutex_lock(&c->lock);
    while ((m = c->links[rank].inbox) != NULL && m->sequence < sequence) {
        c->links[rank].inbox = m->next;
        close_fd(&m->fd);
        free(m);
    }
    if (m != NULL) c->links[rank].inbox = m->next;
    pthread_mutex_unlock(&c->lock);
    return m;
}

/* Returns the first rank that did not take its part in time, or -1. */
static int send_to_all(hpc_control *c, const char *op, const void *data, size_t nbytes, int fd, double deadline) {
    hpc_group *g = c->group;
    int late = -1;
    for (int i = 1; i < g->size; i++) { /* each rank begins with its successor, so that no rank is everybody's first */
        int r = (g->rank + i) % g->size;
        if (send_message(c, r, GATHER, c->sequence, op, data, nbytes, fd, deadline) == HPC_ERR_TIMEOUT && late < 0)
            late = r;
    }
    return late;
}

/* One collective at a time, and no longer than the deadline for its turn. */
static int take_turn(hpc_control *c, const char *op, double deadline) {
    double left = deadline - hpc_now();
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    double at = (double)until.tv_sec + 1e-9 * (double)until.tv_nsec + (left > 0 ? left : 0);
    until.tv_sec = (time_t)at;
    until.tv_nsec = (long)((at - (double)until.tv_sec) * 1e9);
    if (pthread_mutex_timedlock(&c->collective_lock, &until) == 0) return HPC_OK;
    return hpc_fail_ranks(HPC_ERR_TIMEOUT, op, NULL, 0, NULL, 0,
                          "rank %d: %s: a collective of another thread is under way", c->group->rank, op);
}

int hpc_control_exchange(hpc_control *c, const char *op, const void *data, size_t nbytes, int fd, hpc_sizes sizes,
                         hpc_reply *replies, double deadline) {
    hpc_group *g = c->group;
    struct gathering gathering = {c, 0};
    const hpc_wait wait = {op, all_replied, who_is_missing, &gathering};
    char(*ops)[HPC_OP_BYTES] = calloc((size_t)g->size, sizeof *ops);
    int status = ops == NULL ? hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op) : take_turn(c, op, deadline);
    for (int r = 0; r < g->size; r++) replies[r] = (hpc_reply){.fd = -1};
    if (status != HPC_OK) {
        free(ops);
        return status;
    }
    status = hpc_group_usable(g, op);
    if (status != HPC_OK) goto out;
    for (int r = 0; r < g->size && c->broken == HPC_ERR_PEER && status == HPC_OK; r++)
        status = hpc_group_peer_present(g, r, op);
    if (c->broken != HPC_OK) {
        if (status == HPC_OK)
            status = hpc_fail(HPC_ERR_CONFIG, op,
                              "rank %d: %s: an earlier collective failed (%s), so the ranks no longer agree on the "
                              "next; close the context",
                              g->rank, op, hpc_status_text(c->broken));
        goto out;
    }
    gathering.sequence = ++c->sequence;
    int late = send_to_all(c, op, data, nbytes, fd, deadline);
    double left = deadline - hpc_now();
    status = hpc_wait_for(g, &wait, left > 0 ? left : 0);
    if (status == HPC_OK && late >= 0) /* it has not all of this rank's part, so it will not go on */
        status = hpc_fail_ranks(HPC_ERR_TIMEOUT, op, NULL, 0, &late, 1,
                                "rank %d: %s: rank %d did not read its socket in time", g->rank, op, late);
    if (status != HPC_OK) {
        c->broken = status;
        goto out;
    }
    for (int r = 0; r < g->size; r++) {
        message *m = r == g->rank ? NULL : take_reply(c, r, c->sequence);
        snprintf(ops[r], HPC_OP_BYTES, "%s", m != NULL ? m->op : op);
        replies[r].nbytes = m != NULL ? m->total : nbytes;
        replies[r].data = malloc(replies[r].nbytes + 1);
        if (replies[r].data == NULL)
            c->broken = status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %zu bytes", op, replies[r].nbytes);
        else if (replies[r].nbytes > 0)
            memcpy(replies[r].data, m != NULL ? m->data : data, replies[r].nbytes);
        if (m != NULL) replies[r].fd = m->fd;
        free(m);
    }
    for (int r = 1; r < g->size && status == HPC_OK; r++)
        if (strcmp(ops[r], ops[0]) != 0)
            status = hpc_fail(HPC_ERR_CONFIG, op,
                              "rank 0 calls %s while rank %d calls %s; every rank must make the same collective calls "
                              "in the same order",
                              ops[0], r, ops[r]);
        else if (sizes == HPC_EQUAL_SIZES && replies[r].nbytes != replies[0].nbytes)
            status = hpc_fail(HPC_ERR_CONFIG, op, "%s: rank %d gives %zu bytes and rank 0 gives %zu", op, r,
                              replies[r].nbytes, replies[0].nbytes);
out:
    if (status != HPC_OK) hpc_control_free_replies(c, replies);
    pthread_mutex_unlock(&c->collective_lock);
    free(ops);
    return status;
}

void hpc_control_free_replies(hpc_control *c, hpc_reply *replies) {
    for (int r = 0; r < c->group->size; r++) {
        free(replies[r].data);
        close_fd(&replies[r].fd);
        replies[r] = (hpc_reply){.fd = -1};
    }
}

/* ---- leaving ---- */

void hpc_control_stop(hpc_control *c, const char *why) {
    uint64_t one = 1;
    double deadline = hpc_now() + 1; /* for all peers together: one who does not read sees the hang-up instead */
    if (!c->running || !hpc_group_is_mine(c->group)) return;
    c->running = 0;
    if (write(c->stop_fd, &one, sizeof one) == sizeof one) pthread_join(c->thread, NULL);
    for (int r = 0; r < c->group->size; r++) {
        int fd = atomic_load(&c->links[r].fd);
        if (fd < 0) continue;
        if (why != NULL)
            send_message(c, r, ABORT, 0, "abort", why, strlen(why), -1, deadline);
        else
            send_message(c, r, BYE, 0, "close", NULL, 0, -1, deadline);
    }
    for (int r = 0; r < c->group->size; r++) {
        pthread_mutex_lock(&c->links[r].send_lock);
        int fd = atomic_exchange(&c->links[r].fd, -1);
        close_fd(&fd);
        pthread_mutex_unlock(&c->links[r].send_lock);
        close_fd(&c->links[r].pidfd);
    }
    for (int i = 0; i < STRANGERS; i++) close_fd(&c->strangers[i]);
    close_fd(&c->listen_fd);
    close_fd(&c->epoll_fd);
    close_fd(&c->stop_fd);
}

void hpc_control_free(hpc_control *c) {
    if (c == NULL) return;
    hpc_control_stop(c, NULL);
    for (int r = 0; r < c->group->size; r++) {
        for (message *m = c->links[r].inbox, *next; m != NULL; m = next) {
            next = m->next;
            close_fd(&m->fd);
            free(m);
        }
        hpc_memory_release(c->links[r].bell);
        pthread_mutex_destroy(&c->links[r].send_lock);
    }
    close_fd(&c->listen_fd);
    close_fd(&c->epoll_fd);
    close_fd(&c->stop_fd);
    hpc_memory_release(c->bell);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->collective_lock);
    free(c->links);
    free(c);
}
