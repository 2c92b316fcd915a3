/* Frames on one link. On a Unix link each frame is a packet. On a TCP link frames form a stream, so both sides keep
 * their place in it: the reader has the partial frame (head, got), the sender the unsent rest of a frame
 * (told_left). If the deadline cuts a frame in two, the link's sending side ends, because the next frame would be
 * read as the rest of it. */
#define _GNU_SOURCE
#include "control/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/host.h"

static const uint32_t MAGIC = 0x68706331;       /* "hpc1" */
static const uint64_t MOST = (uint64_t)1 << 32; /* bytes of one rank */
enum { MOST_WAITING = 16 };                     /* messages of one peer */
static const double REST_SECONDS = 0.2;

const char *hpc_link_name(hpc_link_kind kind) {
    return kind == HPC_LINK_TCP ? "tcp" : "";
}

/* ---- sending ---- */

/* Returns whether frames of this type carry the data of collectives, in messages of any length. */
static int is_data(uint32_t type) {
    return type == HPC_MESH_GATHER || type == HPC_MESH_BATCH;
}

/* Returns whether to stop sending to rank: it is gone, or no thread here waits for its reply any more. */
static int is_pointless(const hpc_group *g, int rank, uint32_t type) {
    int state = atomic_load_explicit(&g->states[rank], memory_order_acquire);
    return state == HPC_PEER_LEFT || state == HPC_PEER_FAILED || (is_data(type) && atomic_load(&g->closed));
}

static int is_whole(struct msghdr *m, size_t sent) {
    while (m->msg_iovlen > 0 && sent >= m->msg_iov->iov_len) {
        sent -= m->msg_iov->iov_len;
        m->msg_iov++;
        m->msg_iovlen--;
    }
    if (m->msg_iovlen == 0) return 1;
    m->msg_iov->iov_base = (char *)m->msg_iov->iov_base + sent;
    m->msg_iov->iov_len -= sent;
    return 0;
}

int hpc_link_is_stopped(const hpc_control *c, int rank) {
    const hpc_link *l = &c->links[rank];
    return rank != c->group->rank && l->same_host && l->address.pid_namespace == c->self.pid_namespace &&
           hpc_host_is_stopped("", l->address.pid);
}

/* Sends all of m, and changes it; waits for room until the deadline. *sent gets the bytes sent, also on failure. */
static int send_all(hpc_control *c, int rank, uint32_t type, struct msghdr *m, double deadline, size_t *sent) {
    hpc_link *l = &c->links[rank];
    int fd = atomic_load(&l->fd);
    double blocked = 0;
    *sent = 0;
    for (;;) {
        ssize_t n = sendmsg(fd, m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            *sent += (size_t)n;
            atomic_store_explicit(&l->spoke, 1, memory_order_relaxed);
            if (is_data(type)) hpc_watch_move(&c->group->watch);
            if (is_whole(m, (size_t)n)) return HPC_OK;
            blocked = 0;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != ENOBUFS && errno != ETOOMANYREFS) {
            if (errno != EPIPE) atomic_store(&l->failure, errno);
            return HPC_ERR_PEER;
        }
        double now = hpc_now(), left = deadline - now;
        if (blocked == 0) blocked = now;
        if (is_pointless(c->group, rank, type)) return HPC_ERR_PEER;
        if (left <= 0) return HPC_ERR_TIMEOUT;
        const double look_after = c->group->look_after;
        if (look_after > 0 && now - blocked > look_after && hpc_link_is_stopped(c, rank)) return HPC_ERR_TIMEOUT;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        poll(&p, 1, left > 0.1 ? 100 : (int)(left * 1e3) + 1);
    }
}

/* Sends the unsent rest of a frame, which is at the end of told, before any other frame. */
static int finish_told(hpc_control *c, int rank, double deadline) {
    hpc_link *l = &c->links[rank];
    if (l->told_left == 0) return HPC_OK;
    struct iovec part = {l->told + HPC_TOLD_BYTES - l->told_left, l->told_left};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    size_t sent;
    int status = send_all(c, rank, HPC_MESH_BEAT, &m, deadline, &sent);
    l->told_left -= sent;
    return status;
}

/* Room for a descriptor that goes with a packet. */
typedef union passage {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
} passage;

static void pass(struct msghdr *m, passage *room, int fd) {
    memset(room, 0, sizeof *room);
    m->msg_control = room->bytes;
    m->msg_controllen = sizeof room->bytes;
    struct cmsghdr *h = CMSG_FIRSTHDR(m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &fd, sizeof(int));
}

int hpc_link_greet(const hpc_control *c, int fd, const unsigned char secret[HPC_COOKIE_BYTES]) {
    const hpc_mesh_frame f = {.magic = MAGIC,
                              .type = HPC_MESH_HELLO,
                              .rank = c->group->rank,
                              .nbytes = HPC_COOKIE_BYTES,
                              .total = HPC_COOKIE_BYTES};
    struct iovec parts[2] = {{(void *)(uintptr_t)&f, sizeof f}, {(void *)(uintptr_t)secret, HPC_COOKIE_BYTES}};
    passage room;
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
    pass(&m, &room, c->bell->fd);
    return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? HPC_ERR_PEER : HPC_OK;
}

static int send_frame(hpc_control *c, int rank, const hpc_mesh_frame *f, const void *payload, int pass_fd,
                      double deadline) {
    hpc_link *l = &c->links[rank];
    struct iovec parts[2] = {{(void *)(uintptr_t)f, sizeof *f}, {(void *)(uintptr_t)payload, f->nbytes}};
    passage room;
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = f->nbytes > 0 ? 2 : 1};
    size_t sent, rest;
    if (pass_fd >= 0 && l->kind == HPC_LINK_UNIX) pass(&m, &room, pass_fd);
    int status = send_all(c, rank, f->type, &m, deadline, &sent);
    /* A peer that reads takes the rest at once. The deadline passed because of other ranks, so this peer may keep
     * its link. */
    if (status == HPC_ERR_TIMEOUT && sent > 0) status = send_all(c, rank, f->type, &m, hpc_now() + REST_SECONDS, &rest);
    if (status != HPC_OK && sent > 0) {
        l->cut = 1;
        shutdown(atomic_load(&l->fd), SHUT_WR);
    }
    return status;
}

int hpc_link_send(hpc_control *c, int rank, uint32_t type, uint64_t sequence, const char *op, const void *data,
                  size_t nbytes, int pass_fd, double deadline) {
    hpc_link *l = &c->links[rank];
    int status;
    size_t offset = 0;
    pthread_mutex_lock(&l->send_lock); /* also prevents fd from being closed during the send */
    status = atomic_load(&l->fd) < 0 || l->cut ? HPC_ERR_PEER : finish_told(c, rank, deadline);
    while (status == HPC_OK) {
        size_t n = nbytes - offset < HPC_FRAME_BYTES ? nbytes - offset : HPC_FRAME_BYTES;
        hpc_mesh_frame f = {.magic = MAGIC,
                            .type = type,
                            .rank = c->group->rank,
                            .nbytes = (uint32_t)n,
                            .sequence = sequence,
                            .total = nbytes,
                            .offset = offset};
        snprintf(f.op, sizeof f.op, "%s", op);
        snprintf(f.call, sizeof f.call, "%s", hpc_doing_of("", 0).op);
        status = send_frame(c, rank, &f, data == NULL ? NULL : (const char *)data + offset, offset == 0 ? pass_fd : -1,
                            deadline);
        offset += n;
        if (offset >= nbytes) break;
    }
    pthread_mutex_unlock(&l->send_lock);
    return status;
}

/* Sends one frame if the socket takes it at once; data is NULL if the frame has no payload. Returns HPC_IN_PROGRESS if
 * some of it waits for room, and HPC_ERR_TIMEOUT if it could not begin. */
static int tell(hpc_control *c, int rank, const hpc_mesh_frame *f, const void *data) {
    hpc_link *l = &c->links[rank];
    const size_t nbytes = f->nbytes;
    if (pthread_mutex_trylock(&l->send_lock) != 0) return HPC_ERR_TIMEOUT;
    int status = atomic_load(&l->fd) < 0 || l->cut ? HPC_ERR_PEER : finish_told(c, rank, 0);
    if (status == HPC_OK && l->told == NULL && (l->told = malloc(HPC_TOLD_BYTES)) == NULL) status = HPC_ERR_TIMEOUT;
    if (status == HPC_OK) {
        l->told_left = sizeof *f + nbytes;
        memcpy(l->told + HPC_TOLD_BYTES - l->told_left, f, sizeof *f);
        if (data != NULL && nbytes > 0) memcpy(l->told + HPC_TOLD_BYTES - nbytes, data, nbytes);
        status = finish_told(c, rank, 0);
        if (status == HPC_ERR_TIMEOUT) status = HPC_IN_PROGRESS;
    }
    if (f->type == HPC_MESH_BEAT) atomic_store_explicit(&l->spoke, 0, memory_order_relaxed);
    pthread_mutex_unlock(&l->send_lock);
    return status;
}

int hpc_link_tell_part(hpc_control *c, int rank, hpc_mesh_type type, uint64_t sequence, const void *data, size_t nbytes,
                       size_t offset, size_t total) {
    const hpc_mesh_frame f = {.magic = MAGIC,
                              .type = type,
                              .rank = c->group->rank,
                              .nbytes = (uint32_t)nbytes,
                              .sequence = sequence,
                              .total = total,
                              .offset = offset};
    return tell(c, rank, &f, data);
}

int hpc_link_tell(hpc_control *c, int rank, hpc_mesh_type type, const void *data, size_t nbytes) {
    const int status = hpc_link_tell_part(c, rank, type, 0, data, nbytes, 0, nbytes);
    return status == HPC_IN_PROGRESS ? HPC_ERR_TIMEOUT : status;
}

int hpc_link_tell_number(hpc_control *c, int rank, hpc_mesh_type type, uint64_t number) {
    const int status = hpc_link_tell_part(c, rank, type, number, NULL, 0, 0, 0);
    return status == HPC_IN_PROGRESS ? HPC_ERR_TIMEOUT : status;
}

int hpc_link_finish(hpc_control *c, int rank) {
    if (pthread_mutex_trylock(&c->links[rank].send_lock) != 0) return HPC_ERR_TIMEOUT;
    const int status =
        atomic_load(&c->links[rank].fd) < 0 || c->links[rank].cut ? HPC_ERR_PEER : finish_told(c, rank, 0);
    pthread_mutex_unlock(&c->links[rank].send_lock);
    return status;
}

int hpc_link_give(hpc_control *c, int rank, uint64_t number, const hpc_given *given, int fd) {
    hpc_link *l = &c->links[rank];
    const hpc_mesh_frame f = {.magic = MAGIC,
                              .type = HPC_MESH_GIVE,
                              .rank = c->group->rank,
                              .nbytes = sizeof *given,
                              .sequence = number,
                              .total = sizeof *given};
    if (l->kind == HPC_LINK_TCP) {
        const int told = tell(c, rank, &f, given);
        return told == HPC_IN_PROGRESS ? HPC_ERR_TIMEOUT : told;
    }
    if (pthread_mutex_trylock(&l->send_lock) != 0) return HPC_ERR_TIMEOUT;
    int status = atomic_load(&l->fd) < 0 || l->cut ? HPC_ERR_PEER : finish_told(c, rank, 0);
    if (status == HPC_OK) status = send_frame(c, rank, &f, given, fd, 0); /* a packet goes whole, or not at all */
    pthread_mutex_unlock(&l->send_lock);
    return status;
}

void hpc_link_drop(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    const hpc_mesh_frame f = {.magic = MAGIC, .type = HPC_MESH_DROP, .rank = c->group->rank};
    if (pthread_mutex_trylock(&l->send_lock) != 0) return;
    if (!l->cut && finish_told(c, rank, 0) == HPC_OK) send_frame(c, rank, &f, NULL, -1, 0);
    pthread_mutex_unlock(&l->send_lock);
}

/* ---- receiving ---- */

void hpc_message_free(hpc_message *m) {
    if (m == NULL) return;
    hpc_close(&m->fd);
    free(m->data);
    free(m);
}

const hpc_message *hpc_message_find(const hpc_message *inbox, uint64_t sequence) {
    for (const hpc_message *m = inbox; m != NULL && m->sequence <= sequence; m = m->next)
        if (m->sequence == sequence) return m;
    return NULL;
}

hpc_message *hpc_message_take(hpc_control *c, int rank, uint64_t sequence) {
    hpc_link *l = &c->links[rank];
    hpc_message *m;
    pthread_mutex_lock(&c->lock);
    while ((m = l->inbox) != NULL && m->sequence < sequence) {
        l->inbox = m->next;
        hpc_message_free(m);
    }
    if (m != NULL && m->sequence == sequence)
        l->inbox = m->next;
    else
        m = NULL;
    pthread_mutex_unlock(&c->lock);
    return m;
}

static int is_sound(const hpc_mesh_frame *f, int size) {
    return f->magic == MAGIC && f->rank >= 0 && f->rank < size && f->nbytes <= HPC_FRAME_BYTES &&
           f->offset <= f->total && f->nbytes <= f->total - f->offset && memchr(f->op, 0, sizeof f->op) != NULL &&
           memchr(f->call, 0, sizeof f->call) != NULL;
}

const char hpc_link_garbled[] = "it sent bytes that are not a message of hpcomm";
static const char no_memory[] = "this rank has no memory for its message";
static const char ended[] = "its process died or closed the connection";

/* Makes room for the frame's payload, but at most for twice the bytes that have come. */
static int make_room(hpc_message *m, size_t more) {
    size_t need = m->got + more, room = need > 2 * m->room ? need : 2 * m->room;
    if (need <= m->room && m->data != NULL) return 1;
    if (room > m->total) room = m->total;
    char *data = realloc(m->data, room + 1);
    if (data == NULL) return 0;
    m->data = data;
    m->room = room;
    return 1;
}

/* Finds the message that the frame continues, or begins one. Returns NULL, or the frame's fault. */
static const char *find_message(hpc_link *l, const hpc_mesh_frame *f, uint64_t most) {
    hpc_message *m = l->incoming;
    if (m != NULL && f->offset == 0) { /* the sender gave up the old message at its deadline */
        hpc_message_free(m);
        m = l->incoming = NULL;
    }
    if (m == NULL) {
        if (f->offset != 0 || f->total > most) return hpc_link_garbled;
        m = malloc(sizeof *m);
        if (m == NULL) return no_memory;
        *m = (hpc_message){.sequence = f->sequence, .type = f->type, .total = f->total, .fd = -1};
        memcpy(m->op, f->op, sizeof m->op);
        memcpy(m->call, f->call, sizeof m->call);
        l->incoming = m;
    }
    if (f->sequence != m->sequence || f->type != m->type || f->total != m->total || f->offset != m->got)
        return hpc_link_garbled;
    return make_room(m, f->nbytes) ? NULL : no_memory;
}

/* Returns whether rank is too far ahead: a rank is at most one collective ahead of a rank that takes part in all. */
static int is_far_ahead(hpc_control *c, hpc_message *const *inbox) {
    int waiting = 0;
    pthread_mutex_lock(&c->lock);
    for (const hpc_message *m = *inbox; m != NULL; m = m->next) waiting++;
    pthread_mutex_unlock(&c->lock);
    return waiting > MOST_WAITING;
}

/* Begins a message of one frame, which may come between two frames of another message. Returns NULL, or the fault. */
static const char *begin_single(hpc_link *l, const hpc_mesh_frame *f) {
    if (f->offset != 0 || f->total != f->nbytes) return hpc_link_garbled;
    hpc_message *m = malloc(sizeof *m);
    if (m == NULL) return no_memory;
    *m = (hpc_message){.sequence = f->sequence, .type = f->type, .total = f->total, .fd = -1};
    memcpy(m->op, f->op, sizeof m->op);
    memcpy(m->call, f->call, sizeof m->call);
    l->arriving = m;
    return make_room(m, f->nbytes) ? NULL : no_memory;
}

static int is_of_handles(uint32_t type) {
    return type == HPC_MESH_WANT || type == HPC_MESH_GIVE || type == HPC_MESH_PUT;
}

static int is_spread(uint32_t type) {
    return type == HPC_MESH_GONE || type == HPC_MESH_SAY || type == HPC_MESH_CALL;
}

/* The place for the frame's payload. */
static char *place_of(const hpc_link *l, const hpc_mesh_frame *f) {
    if (is_data(f->type)) return l->incoming->data + l->incoming->got;
    if (f->type == HPC_MESH_BALLOT || f->type == HPC_MESH_NEWS || f->type == HPC_MESH_HERE || is_of_handles(f->type) ||
        is_spread(f->type))
        return l->arriving->data;
    return (char *)(uintptr_t)&l->word;
}

/* Prepares for the frame's payload. Returns NULL, or why the link cannot go on. */
static const char *begin_frame(hpc_control *c, int rank, const hpc_mesh_frame *f) {
    hpc_link *l = &c->links[rank];
    if (!is_sound(f, c->group->size) || f->rank != rank) return hpc_link_garbled;
    switch (f->type) {
    case HPC_MESH_GATHER:
        return is_far_ahead(c, &l->inbox) ? hpc_link_garbled : find_message(l, f, MOST);
    case HPC_MESH_BATCH:
        return is_far_ahead(c, &l->inbox) ? hpc_link_garbled : find_message(l, f, hpc_batch_most(c->group->size, MOST));
    case HPC_MESH_BALLOT:
        return begin_single(l, f);
    case HPC_MESH_HERE:
        return f->nbytes % sizeof(uint64_t) == 0 ? begin_single(l, f) : hpc_link_garbled;
    case HPC_MESH_NEWS:
        return f->nbytes == sizeof(hpc_shown_rank) ? begin_single(l, f) : hpc_link_garbled;
    case HPC_MESH_GIVE:
        return f->nbytes == sizeof(hpc_given) ? begin_single(l, f) : hpc_link_garbled;
    case HPC_MESH_PUT:
        return f->nbytes >= sizeof(hpc_put_head) ? begin_single(l, f) : hpc_link_garbled;
    case HPC_MESH_WANT:
    case HPC_MESH_CALL:
        return f->nbytes == 0 ? begin_single(l, f) : hpc_link_garbled;
    case HPC_MESH_GONE:
        return f->nbytes == sizeof(hpc_gone) ? begin_single(l, f) : hpc_link_garbled;
    case HPC_MESH_SAY:
        return f->nbytes >= sizeof(hpc_said_head) ? begin_single(l, f) : hpc_link_garbled;
    case HPC_MESH_ABORT:
    case HPC_MESH_BYE:
        return f->nbytes == sizeof l->word ? NULL : hpc_link_garbled;
    case HPC_MESH_DROPPED:
        return f->nbytes == 0 && f->sequence < (uint64_t)c->group->size ? NULL : hpc_link_garbled;
    case HPC_MESH_BEAT:
    case HPC_MESH_DROP:
    case HPC_MESH_REVOKE:
    case HPC_MESH_LOOK:
    case HPC_MESH_OVER:
    case HPC_MESH_EDGE:
        return f->nbytes == 0 ? NULL : hpc_link_garbled;
    case HPC_MESH_WORD:
        return f->nbytes == 0 && f->sequence >> 32 < HPC_WORDS ? NULL : hpc_link_garbled;
    default:
        return hpc_link_garbled;
    }
}

static void append(hpc_control *c, hpc_message **inbox, hpc_message *m) {
    pthread_mutex_lock(&c->lock);
    while (*inbox != NULL) inbox = &(*inbox)->next;
    *inbox = m;
    pthread_mutex_unlock(&c->lock);
    hpc_bell_ring(c->group->bell);
}

/* Keeps the last word for the neighbours (spread.c). */
static void keep_word(hpc_link *l) {
    if (l->last == NULL) l->last = malloc(sizeof *l->last);
    if (l->last != NULL) *l->last = l->word;
}

/* The payload is where place_of said. Returns NULL, or why the link cannot go on. */
static const char *end_frame(hpc_control *c, int rank, const hpc_mesh_frame *f) {
    hpc_link *l = &c->links[rank];
    l->is_fresh = 0;
    hpc_message *m;
    switch (f->type) {
    case HPC_MESH_GATHER:
    case HPC_MESH_BATCH:
        m = l->incoming;
        m->got += f->nbytes;
        if (m->got < m->total) return NULL;
        l->incoming = NULL;
        append(c, &l->inbox, m);
        return NULL;
    case HPC_MESH_BALLOT:
        m = l->arriving;
        m->got = f->nbytes;
        l->arriving = NULL;
        if (is_far_ahead(c, &l->ballots)) /* the peer goes on without this rank, and has said so in its first ballots */
            hpc_message_free(m);
        else
            append(c, &l->ballots, m);
        return NULL;
    case HPC_MESH_NEWS:
        m = l->news;
        pthread_mutex_lock(&c->lock);
        l->news = l->arriving;
        l->news->got = f->nbytes;
        l->news_at = hpc_now();
        pthread_mutex_unlock(&c->lock);
        l->arriving = NULL;
        hpc_message_free(m);
        hpc_bell_ring(c->group->bell);
        return NULL;
    case HPC_MESH_HERE: /* a later one says at least as much */
        hpc_message_free(l->here);
        l->here = l->arriving;
        l->here->got = f->nbytes;
        l->arriving = NULL;
        return NULL;
    case HPC_MESH_OVER:
        atomic_store(&l->over, f->sequence);
        hpc_bell_ring(c->group->bell);
        return NULL;
    case HPC_MESH_LOOK:
        l->asks = 1;
        return NULL;
    case HPC_MESH_WANT:
    case HPC_MESH_GIVE:
    case HPC_MESH_PUT:
        m = l->arriving;
        l->arriving = NULL;
        return c->on_handle(c, rank, m);
    case HPC_MESH_GONE:
    case HPC_MESH_SAY:
    case HPC_MESH_CALL:
        m = l->arriving;
        l->arriving = NULL;
        return c->on_spread(c, rank, m);
    case HPC_MESH_DROPPED:
        if (hpc_link_is_gone(c, rank)) return NULL;
        c->links[f->sequence].drops = 1;
        c->departed = c->arranged = -1;
        return NULL;
    case HPC_MESH_EDGE:
        l->edge_asked = c->edges_asked = 1;
        return NULL;
    case HPC_MESH_WORD:
        atomic_store_explicit(&l->words[f->sequence >> 32], (uint32_t)f->sequence, memory_order_relaxed);
        return NULL;
    case HPC_MESH_DROP:
        hpc_link_dropped(c, rank);
        return NULL;
    case HPC_MESH_BYE:
        atomic_store(&l->served, f->sequence); /* before the state */
        keep_word(l);
        hpc_link_leaves(c, rank);
        return NULL;
    case HPC_MESH_REVOKE:
        if (!atomic_load(&c->group->revoked)) c->revoked_by = rank;
        hpc_group_revoke(c->group);
        return NULL;
    case HPC_MESH_ABORT:
        keep_word(l);
        atomic_store(&l->proven, 1);
        hpc_link_settle(c, rank, HPC_PEER_FAILED);
        hpc_group_depart_saying(c->group, rank, HPC_PEER_FAILED, &l->word);
        return NULL;
    }
    return NULL;
}

/* Reads one packet. Returns its size, 0 at the end of the link, or -1 with errno. The caller must close *passed, a
 * descriptor that came along, if it is not -1. */
static ssize_t receive_packet(int fd, hpc_mesh_frame *f, char *payload, int *passed) {
    struct iovec parts[2] = {{f, sizeof *f}, {payload, HPC_FRAME_BYTES}};
    passage room;
    struct msghdr m = {
        .msg_iov = parts, .msg_iovlen = 2, .msg_control = room.bytes, .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t n = 0;
    *passed = -1;
    /* The kernel looks for a packet first, and for the end afterwards: if the peer sends its last packet and closes
     * between, the end is reported before that packet. The second look finds it. */
    for (int looks = 0; n == 0 && looks < 2; looks++) {
        do n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
    }
    if (n < 0) return n;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h != NULL; h = CMSG_NXTHDR(&m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) memcpy(passed, CMSG_DATA(h), sizeof(int));
    return n;
}

static int is_packet(const hpc_mesh_frame *f, ssize_t n, int size) {
    return n >= (ssize_t)sizeof *f && is_sound(f, size) && (size_t)n == sizeof *f + f->nbytes;
}

/* Takes the bell from a peer's answer to this rank's HELLO, and takes its descriptor over. */
static int take_bell(hpc_control *c, int rank, int *passed) {
    hpc_link *l = &c->links[rank];
    int fd = *passed;
    if (l->bell != NULL || fd < 0) return 0;
    *passed = -1;
    if (hpc_memory_attach(fd, sizeof(hpc_bell), "init", &l->bell) != HPC_OK) return 0;
    hpc_link_alive(c, rank);
    return 1;
}

static const char *read_packets(hpc_control *c, int rank, size_t most) {
    char payload[HPC_FRAME_BYTES];
    hpc_link *l = &c->links[rank];
    int fd = atomic_load(&l->fd), passed;
    hpc_mesh_frame f;
    const char *why = NULL;
    for (size_t read = 0; why == NULL && read < most;) {
        ssize_t n = receive_packet(fd, &f, payload, &passed);
        /* A peer that closed with unread packets of this rank gives one reset before its own last packets. */
        if (n < 0 && errno == ECONNRESET) continue;
        if (n < 0) return errno == EAGAIN ? NULL : ended;
        read += (size_t)n;
        if (n == 0) {
            why = ended;
        } else if (!is_packet(&f, n, c->group->size)) {
            why = hpc_link_garbled;
        } else if (f.type == HPC_MESH_HELLO) {
            if (!take_bell(c, rank, &passed)) why = hpc_link_garbled;
        } else if ((why = begin_frame(c, rank, &f)) == NULL) {
            if (f.nbytes > 0) memcpy(place_of(l, &f), payload, f.nbytes);
            if (f.type == HPC_MESH_GIVE) {
                l->arriving->fd = passed;
                passed = -1;
            }
            why = end_frame(c, rank, &f);
        }
        hpc_close(&passed);
    }
    return why;
}

static const char *name_failure(hpc_link *l, int error) {
    if (error == 0) return ended;
    l->unsure = error != ECONNRESET;
    snprintf(l->text, sizeof l->text, "%s: %s", error == ECONNRESET ? ended : "the connection to it failed",
             strerror(error));
    return l->text;
}

/* Reads frames of a stream: each header into head, then the payload to its place. */
static const char *read_stream(hpc_control *c, int rank, size_t most) {
    hpc_link *l = &c->links[rank];
    int fd = atomic_load(&l->fd);
    hpc_mesh_frame *f = &l->head;
    for (size_t read = 0; read < most;) {
        char *at = (char *)f;
        size_t done = l->got, want = sizeof *f;
        if (l->got >= sizeof *f) {
            done = l->got - sizeof *f;
            want = f->nbytes;
            at = place_of(l, f);
        }
        ssize_t n = recv(fd, at + done, want - done, MSG_DONTWAIT);
        if (n == 0) return name_failure(l, atomic_load(&l->failure));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN ? NULL : name_failure(l, errno);
        l->heard = hpc_now();
        l->got += (size_t)n;
        read += (size_t)n;
        if (l->got == sizeof *f) {
            const char *why = begin_frame(c, rank, f);
            if (why != NULL) return why;
        }
        if (l->got >= sizeof *f && l->got == sizeof *f + f->nbytes) {
            l->got = 0;
            const char *why = end_frame(c, rank, f);
            if (why != NULL) return why;
        }
    }
    return NULL;
}

const char *hpc_link_read(hpc_control *c, int rank, size_t most) {
    return c->links[rank].kind == HPC_LINK_TCP ? read_stream(c, rank, most) : read_packets(c, rank, most);
}

int hpc_link_read_hello(int fd, int size, int *rank, unsigned char secret[HPC_COOKIE_BYTES], int *bell) {
    char payload[HPC_FRAME_BYTES];
    hpc_mesh_frame f;
    ssize_t n = receive_packet(fd, &f, payload, bell);
    if (n < 0 && errno == EAGAIN) return HPC_IN_PROGRESS;
    if (is_packet(&f, n, size) && f.type == HPC_MESH_STATUS && f.nbytes == HPC_COOKIE_BYTES && *bell < 0) {
        memcpy(secret, payload, HPC_COOKIE_BYTES);
        *rank = -1;
        return HPC_ERR_INVALID;
    }
    if (is_packet(&f, n, size) && f.type == HPC_MESH_ABOUT && f.nbytes == 0 && *bell < 0) {
        *rank = f.rank;
        return HPC_ERR_INVALID;
    }
    if (!is_packet(&f, n, size) || f.type != HPC_MESH_HELLO || f.nbytes != HPC_COOKIE_BYTES || *bell < 0) {
        hpc_close(bell);
        return HPC_ERR_AUTH;
    }
    memcpy(secret, payload, HPC_COOKIE_BYTES);
    *rank = f.rank;
    return HPC_OK;
}

int hpc_link_read_welcome(const hpc_control *c, int fd, int rank, int *bell) {
    char payload[HPC_FRAME_BYTES];
    hpc_mesh_frame f;
    ssize_t n = receive_packet(fd, &f, payload, bell);
    if (n < 0 && errno == EAGAIN) return HPC_IN_PROGRESS;
    const int sound = is_packet(&f, n, c->group->size) && f.rank == rank;
    if (sound && f.type == HPC_MESH_HELLO && f.nbytes == HPC_COOKIE_BYTES && *bell >= 0 &&
        hpc_same_bytes((unsigned char *)payload, c->links[rank].address.secret, HPC_COOKIE_BYTES))
        return HPC_OK;
    hpc_close(bell); /* without a descriptor left for the bell the kernel drops it */
    return sound && f.type == HPC_MESH_DROP ? HPC_ERR_AUTH : HPC_ERR_PEER;
}

int hpc_link_owes(const hpc_control *c, int rank, uint64_t sequence) {
    return atomic_load(&c->links[rank].served) < sequence;
}

/* ---- questions of strangers ---- */

static int send_packet(int fd, hpc_mesh_type type, int rank, const void *data, size_t nbytes) {
    const hpc_mesh_frame f = {.magic = MAGIC, .type = type, .rank = rank, .nbytes = (uint32_t)nbytes, .total = nbytes};
    struct iovec parts[2] = {{(void *)(uintptr_t)&f, sizeof f}, {(void *)(uintptr_t)data, nbytes}};
    const struct msghdr m = {.msg_iov = parts, .msg_iovlen = nbytes > 0 ? 2 : 1};
    return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)(sizeof f + nbytes) ? HPC_OK : HPC_ERR_AUTH;
}

void hpc_link_turn_down(const hpc_control *c, int fd) {
    send_packet(fd, HPC_MESH_DROP, c->group->rank, NULL, 0);
}

void hpc_link_answer(int fd, int rank, const void *answer, size_t nbytes) {
    send_packet(fd, HPC_MESH_STATUS, rank, answer, nbytes);
}

int hpc_link_ask(int fd, const unsigned char name[HPC_COOKIE_BYTES]) {
    return send_packet(fd, HPC_MESH_STATUS, 0, name, HPC_COOKIE_BYTES);
}

int hpc_link_ask_about(int fd, int rank) {
    return send_packet(fd, HPC_MESH_ABOUT, rank, NULL, 0);
}

int hpc_link_read_answer(int fd, void *answer, size_t nbytes) {
    char payload[HPC_FRAME_BYTES];
    hpc_mesh_frame f;
    int passed;
    ssize_t n = receive_packet(fd, &f, payload, &passed);
    hpc_close(&passed);
    if (n < 0 && errno == EAGAIN) return HPC_IN_PROGRESS;
    if (!is_packet(&f, n, INT32_MAX) || f.type != HPC_MESH_STATUS || f.nbytes != nbytes) return HPC_ERR_AUTH;
    memcpy(answer, payload, nbytes);
    return HPC_OK;
}

/* ---- the link as such ---- */

void hpc_link_publish(hpc_control *c, int rank, int fd, int kind) {
    hpc_link *l = &c->links[rank];
    atomic_store_explicit(&l->kind, kind, memory_order_relaxed);
    l->heard = hpc_now();
    atomic_store(&l->fd, fd);
    if (kind == HPC_LINK_TCP) atomic_fetch_add(&c->tcp_links, 1);
}

void hpc_link_alive(hpc_control *c, int rank) {
    int joining = HPC_PEER_JOINING; /* release: the bell before the state */
    atomic_compare_exchange_strong(&c->group->states[rank], &joining, HPC_PEER_ALIVE);
    hpc_bell_ring(c->group->bell);
}
