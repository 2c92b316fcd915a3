/* Sends on one stream of a link. Bytes that fit go into the socket at once. The rest become orders, which wait in a
 * queue for room in the socket or for uncork. All functions run under the link's `sending`. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/calls.h"
#include "transport/tcp/parts.h"

enum { SMALL = 512, MOST_CORKED = 64 << 10 }; /* bytes */
enum { PARTS = 128 };

void tcp_drop_orders(tcp_stream *s) {
    for (tcp_order *o = s->first, *next; o != NULL; o = next) {
        next = o->next;
        free(o);
    }
    s->first = NULL;
    s->last = &s->first;
    s->queued = 0;
    s->answer = NULL;
}

#if defined(__SANITIZE_THREAD__)
/* Reports the reads of a send to TSan before the send. TSan's wrapper reports them after it; by then the peer may
 * have answered, and the caller may be writing its next update to the same memory. */
void __tsan_read_range(void *from, unsigned long nbytes);

static void note_reads(const struct iovec *parts, int n) {
    for (int i = 0; i < n; i++) __tsan_read_range(parts[i].iov_base, parts[i].iov_len);
}
#else
static void note_reads(const struct iovec *parts, int n) {
    (void)parts, (void)n;
}
#endif

static ssize_t send_parts(int fd, struct iovec *parts, int n) {
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = (size_t)n};
    ssize_t sent;
    note_reads(parts, n);
    do sent = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    hpc_calls_count_moved(HPC_CALL_SEND, sent);
    return sent;
}

/* Writes the unsent bytes of an order into one or two parts; returns how many. */
static int add_parts(const tcp_order *o, struct iovec *parts) {
    int n = 0;
    size_t sent = o->sent;
    if (sent < o->head) parts[n++] = (struct iovec){(void *)(uintptr_t)(o->header + sent), o->head - sent};
    sent = sent < o->head ? 0 : sent - o->head;
    if (o->total - o->head > sent)
        parts[n++] = (struct iovec){(void *)(uintptr_t)(o->src + sent), o->total - o->head - sent};
    return n;
}

/* Collects the parts for one sendmsg. Writes into each unsent header how many bytes are queued behind its frame. */
static int gather_parts(const tcp_stream *s, struct iovec *parts, size_t *asked) {
    int n = 0;
    *asked = 0;
    for (tcp_order *o = s->first; o != NULL && n + 2 <= PARTS && *asked < TCP_MOST_UNSENT; o = o->next) {
        *asked += o->total - o->sent;
        size_t behind = (s->queued - *asked) / HPC_BEHIND;
        uint16_t units = behind < UINT16_MAX ? (uint16_t)behind : UINT16_MAX;
        if (o->sent == 0) memcpy(o->header + offsetof(hpc_frame, behind), &units, sizeof units);
        n += add_parts(o, parts + n);
    }
    return n;
}

static void drop_sent(tcp_stream *s, size_t sent) {
    s->queued -= sent;
    while (sent > 0) {
        tcp_order *o = s->first;
        size_t part = o->total - o->sent < sent ? o->total - o->sent : sent;
        o->sent += part;
        sent -= part;
        if (o->sent < o->total) break;
        s->first = o->next;
        if (s->first == NULL) s->last = &s->first;
        if (s->answer == o) s->answer = NULL;
        free(o);
    }
}

int tcp_send_orders(tcp_stream *s) {
    int fd = tcp_stream_fd(s);
    while (s->first != NULL && fd >= 0 && !s->full) {
        struct iovec parts[PARTS];
        size_t asked;
        int n = gather_parts(s, parts, &asked);
        ssize_t sent = send_parts(fd, parts, n);
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return errno;
        s->full = sent < (ssize_t)asked;
        if (sent > 0) drop_sent(s, (size_t)sent);
    }
    return 0;
}

/* Moves the last order before the unsent orders of greater turn just ahead of it. */
static void take_turn(tcp_stream *s) {
    tcp_order **to = &s->first, **at = &s->first, *order = (tcp_order *)((char *)s->last - offsetof(tcp_order, next));
    for (; *at != order; at = &(*at)->next)
        if ((*at)->turn <= order->turn || (*at)->sent > 0) to = &(*at)->next;
    if (to == at) return;
    s->last = at;
    *at = NULL;
    order->next = *to;
    *to = order;
}

static int hold_back(tcp_stream *s, const void *header, size_t head, const void *src, size_t nbytes, size_t sent,
                     uint32_t turn) {
    tcp_order *o = malloc(sizeof *o);
    if (o == NULL) return ENOMEM;
    o->turn = turn;
    o->src = src;
    o->head = head;
    o->total = head + nbytes;
    o->sent = sent;
    memcpy(o->header, header, head);
    o->next = NULL;
    *s->last = o;
    s->last = &o->next;
    s->queued += o->total - sent;
    if (o->header[offsetof(hpc_frame, type)] == HPC_FRAME_FLUSHED) s->answer = o;
    if (turn != 0) take_turn(s);
    return 0;
}

int tcp_send_frame(tcp_stream *s, const hpc_frame *frame, const uint64_t *fences, const void *src, int corked,
                   uint32_t turn) {
    unsigned char small[sizeof(tcp_order) + SMALL];
    size_t head = sizeof *frame + frame->fences * sizeof(uint64_t), nbytes = (size_t)frame->nbytes;
    int fd = tcp_stream_fd(s);
    ssize_t sent = 0;
    memcpy(small, frame, sizeof *frame);
    if (frame->fences > 0) memcpy(small + sizeof *frame, fences, frame->fences * sizeof(uint64_t));
    if (s->first == NULL && fd >= 0 && !corked && !s->full) {
        if (nbytes <= SMALL) {
            if (nbytes > 0) memcpy(small + head, src, nbytes);
            do sent = send(fd, small, head + nbytes, MSG_DONTWAIT | MSG_NOSIGNAL);
            while (sent < 0 && errno == EINTR);
            hpc_calls_count_moved(HPC_CALL_SEND, sent);
        } else {
            struct iovec parts[2] = {{small, head}, {(void *)(uintptr_t)src, nbytes}};
            sent = send_parts(fd, parts, 2);
        }
        if (sent == (ssize_t)(head + nbytes)) return 0;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return errno;
        if (sent < 0) sent = 0;
        s->full = 1;
    }
    s->keeps = corked && (s->first == NULL || s->keeps);
    int error = hold_back(s, small, head, src, nbytes, (size_t)sent, turn);
    return error != 0 || (corked && s->queued < MOST_CORKED) ? error : tcp_send_orders(s);
}
