/* One lane's connections to one peer.
 *
 * Sending: a frame goes to the socket at once. Bytes that do not fit become an order (orders.c), which the thread
 * that finds room in the socket sends later. No call waits. With several streams a large put is cut into a stripe
 * for each. Frames whose order matters (signals, events, FLUSH) go by stream 0, with fences if stripes went before
 * them.
 *
 * A link that breaks becomes silent: it sends nothing more and reports no error to callers. The control channel
 * reports the peer's failure; if it does not, the service thread reports the break after GRACE. Bytes that the peer
 * had sent are still read. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/calls.h"
#include "transport/tcp/parts.h"

enum { SMALL = 512, PARTS = 128, STRIPE_MIN = 256 << 10, LINE = 64 };
enum {
    BATCH = 64 << 10,
    LARGE_BATCH = 256 << 10,
    MOST_UNSENT = 256 << 10,
    MOST_CORKED = 64 << 10,
    BRIEF = 4096
}; /* bytes */

/* ---- life ---- */

/* Sets all options before it publishes the descriptor: another thread may read the link at once, even before an
 * event. */
int tcp_link_install(tcp_link *l, int stream, int fd) {
    int none = -1, off = 0, unsent = TCP_MOST_UNSENT, window = l->tcp->context->tcp_window;
    if (stream < 0 || stream >= l->n_streams || tcp_stream_fd(&l->streams[stream]) >= 0) return HPC_ERR_INVALID;
    /* Stream 0 is not read while a fence holds it, perhaps longer than the silence limit, until slower streams are
     * read. */
    if (stream == 0 && l->n_streams > 1) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof off);
    /* The kernel sends bytes that it has taken before all later ones. If it holds few unsent bytes, the connections
     * of a rank share its network link evenly to the end. */
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    if (window > 0 && !hpc_same_host(&l->tcp->context->self, &l->tcp->context->addresses[l->peer]))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window);
    hpc_net_set_congestion(fd, l->tcp->context->tcp_congestion);
    if (!atomic_compare_exchange_strong(&l->streams[stream].fd, &none, fd)) return HPC_ERR_INVALID;
    if (tcp_watch(l->tcp, l, stream, fd, 0) != 0) {
        atomic_store(&l->streams[stream].fd, -1);
        return HPC_ERR_TRANSPORT;
    }
    hpc_bell_ring(l->tcp->context->group.bell); /* a thread may wait for the link */
    return HPC_OK;
}

int tcp_link_is_whole(const tcp_link *l) {
    for (int k = 0; k < l->n_streams; k++)
        if (tcp_stream_fd(&l->streams[k]) < 0) return 0;
    return 1;
}

/* Makes the link silent: it sends nothing more, but still reads bytes that the peer sent before. l->why keeps its first
 * reason. Called under l->sending. */
static void fall_silent(tcp_link *l, const char *what) {
    for (int k = 0; k < l->n_streams; k++) tcp_drop_orders(&l->streams[k]);
    if (atomic_load_explicit(&l->silent, memory_order_relaxed)) return;
    snprintf(l->why, sizeof l->why, "its data connection broke: %s", what);
    l->broken_at = hpc_now();
    atomic_store_explicit(&l->silent, 1, memory_order_release);
    if (!atomic_load(&l->closed_there)) hpc_reactor_report(l->tcp->reactor);
}

/* Also stops reading. */
static void end_link(tcp_link *l, const char *what) {
    pthread_mutex_lock(&l->sending);
    fall_silent(l, what);
    for (int k = 0; k < l->n_streams; k++) {
        int fd = tcp_stream_fd(&l->streams[k]);
        if (fd >= 0) shutdown(fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&l->sending);
    atomic_store(&l->ended, 1);
    hpc_bell_ring(l->tcp->context->group.bell);
}

static int is_silent(tcp_link *l) {
    return atomic_load_explicit(&l->silent, memory_order_acquire);
}

/* ---- sending: under l->sending ---- */

/* Sends a frame by stream 0 that the peer handles after all stripes sent so far. */
static int send_ordered(tcp_link *l, hpc_frame frame, const void *src, int corked, uint32_t turn) {
    uint64_t fences[HPC_TCP_STREAMS - 1];
    frame.magic = HPC_FRAME_MAGIC;
    if (!l->fenced) {
        frame.fences = (uint16_t)(l->n_streams - 1);
        for (int k = 1; k < l->n_streams; k++) fences[k - 1] = l->streams[k].pieces;
        l->fenced = 1;
    }
    return tcp_send_frame(&l->streams[0], &frame, fences, src, corked, turn);
}

static int is_striped(const tcp_link *l, uint64_t nbytes) {
    return l->n_streams > 1 && nbytes >= STRIPE_MIN;
}

/* Returns the bytes of a large put's stripe, which is the same on every stream but the last: that one takes the
 * rest. */
static size_t stripe_of(const tcp_link *l, uint64_t nbytes) {
    return (size_t)((nbytes / (uint64_t)l->n_streams + LINE - 1) / LINE * LINE);
}

/* Sends all stripes of a large put but the first, and cuts *frame down to the first. */
static int send_pieces(tcp_link *l, hpc_frame *frame, const char *src) {
    size_t nbytes = (size_t)frame->nbytes, n = (size_t)l->n_streams, stripe = stripe_of(l, nbytes);
    frame->nbytes = stripe;
    l->fenced = 0;
    for (size_t k = 1; k < n; k++) {
        size_t from = k * stripe, to = k + 1 == n ? nbytes : from + stripe;
        const hpc_frame rest = {.magic = HPC_FRAME_MAGIC,
                                .type = HPC_FRAME_PUT,
                                .window = frame->window,
                                .offset = frame->offset + from,
                                .nbytes = to - from};
        l->streams[k].pieces++;
        int error = tcp_send_frame(&l->streams[k], &rest, NULL, src + from, 0, 0);
        if (error != 0) return error;
    }
    return 0;
}

/* ---- calls of a lane ---- */

static void unlock_sent(tcp_link *l, int error) {
    if (error != 0) fall_silent(l, strerror(error));
    pthread_mutex_unlock(&l->sending);
}

int tcp_link_put(tcp_link *l, const hpc_frame *given, const void *src, const hpc_lane *lane) {
    const int corked = lane->corked;
    const uint32_t turn = l->n_streams == 1 ? lane->turn : 0; /* with several streams no frame may pass a fence */
    hpc_frame frame = *given;
    int error = 0;
    pthread_mutex_lock(&l->sending);
    l->issued++; /* counts lost puts too, so that flush does not report them as delivered */
    if (is_silent(l)) {
        pthread_mutex_unlock(&l->sending);
        return HPC_OK;
    }
    if (frame.flags & HPC_FRAME_EVENT) l->events++;
    if (is_striped(l, frame.nbytes)) error = send_pieces(l, &frame, src);
    if (error == 0) {
        if (frame.flags != 0)
            error = send_ordered(l, frame, src, corked, turn);
        else {
            frame.magic = HPC_FRAME_MAGIC;
            error = tcp_send_frame(&l->streams[0], &frame, NULL, src, corked, turn);
        }
    }
    l->corked = corked;
    unlock_sent(l, error);
    return HPC_OK;
}

void tcp_link_uncork(tcp_link *l) {
    int error = 0;
    if (!l->corked) return;
    pthread_mutex_lock(&l->sending);
    l->corked = l->streams[0].keeps = 0;
    if (!is_silent(l)) error = tcp_send_orders(&l->streams[0]);
    unlock_sent(l, error);
}

int tcp_link_may_notify(tcp_link *l) {
    int error = 0, may;
    pthread_mutex_lock(&l->sending);
    may = l->events - atomic_load_explicit(&l->credit, memory_order_acquire) < HPC_NOTIFY_DEPTH;
    if (is_silent(l)) {
        may = 0; /* until the control channel reports the peer's state */
    } else if (may) {
        l->wanting = 0;
    } else if (!l->wanting) {
        l->wanting = 1;
        error = send_ordered(l, (hpc_frame){.type = HPC_FRAME_WANT}, NULL, 0, 0);
    }
    unlock_sent(l, error);
    return may;
}

int tcp_link_flush(tcp_link *l) {
    int error = 0, done;
    pthread_mutex_lock(&l->sending);
    done = atomic_load_explicit(&l->flushed, memory_order_acquire) >= l->issued;
    if (!done && !is_silent(l) && l->asked < l->issued) {
        l->asked = l->issued;
        error = send_ordered(l, (hpc_frame){.type = HPC_FRAME_FLUSH, .value = l->issued}, NULL, 0, 0);
    }
    unlock_sent(l, error);
    return done ? HPC_OK : HPC_IN_PROGRESS;
}

void tcp_link_give_credit(tcp_link *l) {
    int error = 0;
    pthread_mutex_lock(&l->sending);
    uint64_t taken = atomic_load_explicit(&l->ring.head, memory_order_acquire);
    if (taken != atomic_load_explicit(&l->credited, memory_order_relaxed) && !is_silent(l)) {
        atomic_store(&l->wanted, 0);
        atomic_store_explicit(&l->credited, taken, memory_order_relaxed);
        error = send_ordered(l, (hpc_frame){.type = HPC_FRAME_CREDIT, .value = taken}, NULL, 0, 0);
    }
    unlock_sent(l, error);
}

void tcp_link_close(tcp_link *l) {
    int error = 0;
    pthread_mutex_lock(&l->sending);
    atomic_store(&l->closed_here, 1);
    if (tcp_stream_fd(&l->streams[0]) < 0)
        atomic_store(&l->closed_there, 1); /* the peer's end does not know of it */
    else if (!is_silent(l))
        error = send_ordered(l, (hpc_frame){.type = HPC_FRAME_CLOSE}, NULL, 0, 0);
    unlock_sent(l, error);
}

/* ---- reading: by the thread that holds l->reading ---- */

/* Returns whether an event's frame has all the bytes that the event reports, or one stripe of them and fences for
 * the rest. */
static int is_whole_event(const tcp_link *l, const hpc_frame *f) {
    if (is_striped(l, f->value)) return f->nbytes == stripe_of(l, f->value) && f->fences > 0;
    return f->nbytes == f->value;
}

/* Returns the window of a number; NULL if there is none. The transport's lock is held. */
static const tcp_window *find_window(tcp_link *l, uint32_t number) {
    const hpc_tcp *t = l->tcp;
    if (l->window < t->n_windows && t->windows[l->window].number == number) return &t->windows[l->window];
    for (l->window = 0; l->window < t->n_windows; l->window++)
        if (t->windows[l->window].number == number) return &t->windows[l->window];
    return NULL;
}

static int place(void *arg, const hpc_frame *f, char **at, hpc_memory **memory, const char **why) {
    tcp_link *l = arg;
    hpc_tcp *t = l->tcp;
    int status = HPC_OK;
    *at = NULL;
    *memory = NULL;
    pthread_mutex_lock(&t->lock);
    const tcp_window *w = find_window(l, f->window);
    if (w == NULL) {
        *why = "a put into a window that does not exist";
        status = HPC_ERR_TRANSPORT;
    } else if (f->offset > w->nbytes || f->nbytes > w->nbytes - f->offset) {
        *why = "a put past the end of a window";
        status = HPC_ERR_TRANSPORT;
    } else if (f->flags & HPC_FRAME_SIGNAL && f->word >= (uint32_t)w->signals) {
        *why = "a signal that the window does not have";
        status = HPC_ERR_TRANSPORT;
    } else if (f->flags & HPC_FRAME_EVENT && !is_whole_event(l, f)) {
        *why = "an event that announces another number of bytes than came";
        status = HPC_ERR_TRANSPORT;
    } else if (w->memory != NULL) {
        *memory = hpc_memory_retain(w->memory);
        *at = (char *)hpc_memory_data(w->memory) + f->offset;
        /* Only frames of stream 0 have signals. */
        if (f->flags & HPC_FRAME_SIGNAL) l->signals_offset = w->signals_offset;
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

static int put_is_done(tcp_link *l, int stream, const hpc_frame *f, hpc_memory *memory, const char **why) {
    if (stream > 0) {
        l->landed[stream]++;
    } else if (f->flags & HPC_FRAME_SIGNAL && memory != NULL) {
        char *word = (char *)hpc_memory_data(memory) + l->signals_offset;
        hpc_raise_signal((_Atomic uint64_t *)(void *)(word + (size_t)f->word * HPC_SIGNAL_STRIDE), f->value);
        l->rings = 1;
    } else if (f->flags & HPC_FRAME_EVENT) {
        uint64_t tail = atomic_load_explicit(&l->ring.tail, memory_order_relaxed);
        if (hpc_ring_is_full(&l->ring, tail)) {
            *why = "more events than this rank has granted";
            return HPC_ERR_TRANSPORT;
        }
        hpc_ring_push(&l->ring, tail, f->word, f->value);
        l->rings = 1;
    }
    return HPC_OK;
}

static int done(void *arg, int stream, const hpc_frame *f, hpc_memory *memory, const char **why) {
    tcp_link *l = arg;
    uint64_t before;
    switch (f->type) {
    case HPC_FRAME_PUT:
        return put_is_done(l, stream, f, memory, why);
    case HPC_FRAME_FLUSH:
        l->flush_asked = f->value;
        l->answer_flush = 1;
        return HPC_OK;
    case HPC_FRAME_FLUSHED:
        before = atomic_load_explicit(&l->flushed, memory_order_relaxed);
        if (f->value > before) atomic_store_explicit(&l->flushed, f->value, memory_order_release);
        l->rings = 1;
        return HPC_OK;
    case HPC_FRAME_CREDIT:
        before = atomic_load_explicit(&l->credit, memory_order_relaxed);
        if (f->value > before) atomic_store_explicit(&l->credit, f->value, memory_order_release);
        l->rings = 1;
        return HPC_OK;
    case HPC_FRAME_WANT:
        /* Order: either the thread that takes the next event sees wanted, or this thread sees the head that it
         * stored. */
        atomic_exchange(&l->wanted, 1);
        tcp_link_give_credit(l);
        return HPC_OK;
    default:
        atomic_store(&l->closed_there, 1);
        return HPC_OK;
    }
}

/* Answers a FLUSH. If an unsent answer waits, updates it: a peer that asks often and reads nothing costs one order. */
static int answer_flush(tcp_link *l) {
    tcp_order *waiting = l->streams[0].answer;
    const hpc_frame answer = {.type = HPC_FRAME_FLUSHED, .value = l->flush_asked};
    if (waiting == NULL || waiting->sent > 0) return send_ordered(l, answer, NULL, 0, 0);
    memcpy(waiting->header + offsetof(hpc_frame, value), &answer.value, sizeof answer.value);
    return 0;
}

/* Wakes the waiting threads and answers the peer's FLUSH, once for all arrivals. If few bytes came, marks the link
 * as hot: it will probably bring the next ones. */
static void tell(tcp_link *l, size_t got) {
    if (l->rings) {
        l->rings = 0;
        atomic_store_explicit(&l->tcp->hot, got <= BRIEF ? l->slot + 1 : 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&l->tcp->told, 1, memory_order_relaxed);
        hpc_bell_ring(l->tcp->context->group.bell);
    }
    if (l->answer_flush) {
        int error = 0;
        l->answer_flush = 0;
        pthread_mutex_lock(&l->sending);
        if (!is_silent(l)) error = answer_flush(l);
        unlock_sent(l, error);
    }
}

/* Sets the number of bytes that must come before the next event. While many bytes are sure to come, it is a batch,
 * since each event costs a wake-up. Returns nonzero if reading must go on: bytes that came before the number was
 * lowered made no event. */
static int mark_low_water(tcp_stream *s, int fd) {
    const uint64_t left = hpc_reader_left(&s->reader), sure = left + hpc_reader_behind(&s->reader);
    const int mark = left >= LARGE_BATCH ? LARGE_BATCH : sure >= BATCH ? BATCH : 1, before = s->low_water;
    if (mark == before) return 0;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0) s->low_water = mark;
    return mark < before;
}

/* Ends one stream. The other streams may still hold bytes that the peer sent before it closed. */
static void end_stream(tcp_link *l, int k, const char *what) {
    l->ended_streams |= 1 << k;
    pthread_mutex_lock(&l->sending);
    fall_silent(l, what);
    pthread_mutex_unlock(&l->sending);
}

/* Returns 1 if the budget is used up, so more may be there; 0 if all is read; -1 if the link is broken. A short read
 * shows that all is read, unless the peer has hung up: only another read shows that. */
static int read_stream(tcp_link *l, int k, size_t budget) {
    const hpc_sink sink = {place, done, l};
    tcp_stream *s = &l->streams[k];
    int fd = tcp_stream_fd(s);
    size_t taken = 0;
    while (fd >= 0 && !(l->ended_streams >> k & 1)) {
        struct iovec parts[2];
        const char *why = "a bad frame";
        int n = hpc_reader_want(&s->reader, parts);
        if (n == 0) return 0;
        size_t asked = parts[0].iov_len + (n > 1 ? parts[1].iov_len : 0);
        ssize_t got = n == 1 ? recv(fd, parts[0].iov_base, parts[0].iov_len, MSG_DONTWAIT) : readv(fd, parts, n);
        hpc_calls_count_moved(HPC_CALL_RECEIVE, got);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (got <= 0) {
            end_stream(l, k, got < 0 ? strerror(errno) : "it closed the connection");
            return 0;
        }
        hpc_watch_move(&l->tcp->context->group.watch);
        if (hpc_reader_got(&s->reader, (size_t)got, l->landed, &sink, &why) < 0) {
            tell(l, (size_t)got);
            end_link(l, why);
            return -1;
        }
        tell(l, (size_t)got);
        taken += (size_t)got;
        int goes_on = mark_low_water(s, fd);
        if (!goes_on && (size_t)got < asked && !(atomic_load(&l->hung_up) >> k & 1)) return 0;
        if (taken >= budget) return 1;
    }
    return 0;
}

static int read_link(tcp_link *l, int stream, size_t budget) {
    const hpc_sink sink = {place, done, l};
    int left = read_stream(l, stream, budget);
    if (stream > 0 && left >= 0) { /* these bytes may have met a fence of stream 0 */
        const char *why = "a bad frame";
        if (hpc_reader_got(&l->streams[0].reader, 0, l->landed, &sink, &why) < 0) {
            end_link(l, why);
            return -1;
        }
        tell(l, budget);
        if (read_stream(l, 0, budget) == 1) tcp_watch(l->tcp, l, 0, tcp_stream_fd(&l->streams[0]), 1);
    }
    int all = (1 << l->n_streams) - 1;
    if (l->ended_streams == all || ((l->ended_streams | 1) == all && hpc_reader_is_held(&l->streams[0].reader)))
        end_link(l, "it closed the connection");
    return left;
}

static void send_more(tcp_link *l, int stream) {
    tcp_stream *s = &l->streams[stream];
    int error = 0;
    pthread_mutex_lock(&l->sending);
    const int keeps = s->keeps && !s->full;
    s->full = 0;
    if (s->first != NULL && !keeps && !is_silent(l)) error = tcp_send_orders(s);
    unlock_sent(l, error);
}

int tcp_link_visit(tcp_link *l, int stream, uint32_t events, size_t budget) {
    int left = 0;
    if (stream < 0 || stream >= l->n_streams) return 0;
    if (events & (EPOLLOUT | EPOLLERR)) send_more(l, stream);
    if (!(events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))) return 0;
    if (events & (EPOLLRDHUP | EPOLLHUP)) atomic_fetch_or(&l->hung_up, 1 << stream); /* tells the thread that reads */
    atomic_fetch_or(&l->again, 1 << stream);
    while (!atomic_exchange(&l->reading, 1)) {
        int streams = atomic_exchange(&l->again, 0), closed;
        for (int k = 0; k < l->n_streams && !atomic_load(&l->ended); k++) {
            if (!(streams >> k & 1)) continue;
            int more = read_link(l, k, budget);
            if (more > 0) { /* to the end of the set's queue */
                tcp_watch(l->tcp, l, k, tcp_stream_fd(&l->streams[k]), 1);
                left = 1;
            }
        }
        closed = atomic_load(&l->closed_there) || atomic_load(&l->ended);
        atomic_store(&l->reading, 0);
        if (closed && atomic_load(&l->closed_here)) tcp_drop_link(l->tcp, l);
        if (atomic_load(&l->again) == 0 || atomic_load(&l->ended)) return left;
    }
    return 1; /* another thread reads, and will see `again` */
}
