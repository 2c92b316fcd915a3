/* tcp: a transport for ranks of different hosts. A put is a frame on the lane's connection to the peer, which reads
 * it straight into its window. A signal or an event is in the frame of its data, so it cannot overtake the data.
 *
 * All ranks number their windows and lanes alike. A frame names its window's number, the hello of a connection its
 * lane's. A freed window keeps its number, so frames that arrive late are dropped. A number of no window ends the link.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "transport/tcp/parts.h"

/* ---- arrivals, and broken links ----
 *
 * tcp is a source of the context's reactor. Its streams are in the set for reading and writing, edge-triggered.
 * Every arrival is an event, so nothing must be armed. The reactor's service thread reports broken links to the
 * group. */

enum { WAIT_BUDGET = 512 << 10 };

static const double GRACE = 1; /* seconds in which the peer of a broken connection may still say that it leaves */

/* The slot may have got a new link since the event; one extra look at it is harmless. */
static int handle(void *arg, uint64_t tag, uint32_t events, size_t budget) {
    hpc_tcp *t = arg;
    tcp_link *link = tcp_link_at(t, (int)(tag >> 8));
    int left = 0;
    if (link == NULL) return 0;
    left = tcp_link_visit(link, (int)(tag & 255), events, budget);
    tcp_link_release(link);
    return left;
}

/* First reads the link that brought data last, without epoll: it usually brings the next data too. */
static int progress(hpc_context *c) {
    hpc_tcp *t = c->tcp;
    int left = 0;
    if (t == NULL) return 0;
    hpc_reactor_looked(t->reactor);
    int hot = atomic_load_explicit(&t->hot, memory_order_relaxed);
    uint32_t told = atomic_load_explicit(&t->told, memory_order_relaxed);
    if (hot != 0) {
        left = handle(t, (uint64_t)(hot - 1) << 8, EPOLLIN, WAIT_BUDGET);
        if (atomic_load_explicit(&t->told, memory_order_relaxed) != told) return HPC_LEFT;
    }
    return hpc_reactor_poll(t->reactor, WAIT_BUDGET) != 0 || left ? HPC_LEFT : 0;
}

static int report(void *arg) {
    hpc_tcp *t = arg;
    hpc_group *g = &t->context->group;
    double now = hpc_now();
    int left = 0;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->n_links; i++) {
        tcp_link *link = t->links[i];
        if (link == NULL || !atomic_load_explicit(&link->silent, memory_order_acquire)) continue;
        if (atomic_load(&link->closed_there) ||
            atomic_load_explicit(&g->states[link->peer], memory_order_acquire) != HPC_PEER_ALIVE)
            continue;
        if (now - link->broken_at < GRACE)
            left = 1;
        else if (!atomic_load(&g->closed))
            hpc_control_lose(t->context->control, link->peer, link->why);
    }
    pthread_mutex_unlock(&t->lock);
    return left;
}

/* ---- life ---- */

static int open_tcp(hpc_context *c) {
    hpc_reactor *reactor = hpc_transport_reactor(c);
    if (reactor == NULL) return hpc_last_error()->status;
    hpc_tcp *t = calloc(1, sizeof *t);
    if (t == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for the tcp transport");
    t->context = c;
    t->reactor = reactor;
    t->last_to_call = &t->to_call;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->called, NULL);
    t->source = hpc_reactor_add(reactor, &(hpc_source){.arg = t, .handle = handle, .report = report});
    c->tcp = t;
    return HPC_OK;
}

/* Frees the transport's data. Links close their descriptors with their last reference; no visit holds one any more. */
static void free_tcp(hpc_tcp *t) {
    tcp_end_calls(t);
    hpc_reactor_remove(t->reactor, t->source);
    for (int i = 0; i < t->n_links; i++)
        if (t->links[i] != NULL) tcp_link_release(t->links[i]);
    for (int i = 0; i < t->n_windows; i++) hpc_memory_release(t->windows[i].memory);
    free(t->links);
    free(t->windows);
    pthread_cond_destroy(&t->called);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static int reaches(const hpc_address *self, const hpc_address *peer, const char **why) {
    *why = "one of them listens on no interface";
    return hpc_both_listen(self, peer);
}

/* ---- windows ---- */

static int window_open(hpc_window *w) {
    hpc_tcp *t = w->context->tcp;
    const hpc_part *part = &w->parts[w->context->group.rank];
    int status = HPC_OK;
    pthread_mutex_lock(&t->lock);
    tcp_window *windows = realloc(t->windows, ((size_t)t->n_windows + 1) * sizeof *windows);
    if (windows == NULL || w->object.number > UINT32_MAX) {
        status = hpc_fail(HPC_ERR_MEMORY, "window", "window: no memory to register it");
    } else {
        windows[t->n_windows++] = (tcp_window){part->nbytes, part->signals_offset, part->signals,
                                               (uint32_t)w->object.number, hpc_memory_retain(w->memory)};
    }
    if (windows != NULL) t->windows = windows;
    pthread_mutex_unlock(&t->lock);
    return status;
}

/* Frees the window's memory at the first call, which is for the first peer that tcp serves. */
static void window_detach(hpc_window *w, int peer) {
    hpc_tcp *t = w->context->tcp;
    hpc_memory *memory = NULL;
    (void)peer;
    if (t == NULL) return;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->n_windows; i++)
        if (t->windows[i].memory == w->memory && w->memory != NULL) {
            memory = t->windows[i].memory;
            t->windows[i].memory = NULL;
        }
    pthread_mutex_unlock(&t->lock);
    hpc_memory_release(memory); /* a payload that is still being read has its own reference */
}

/* ---- lanes ---- */

/* Returns the link of a lane to peer; NULL: there is none yet. */
static tcp_link *link_of(const hpc_lane *lane, int peer) {
    char *ring = atomic_load_explicit(&lane->peers[peer].in, memory_order_acquire);
    return ring == NULL ? NULL : (tcp_link *)(void *)(ring - offsetof(tcp_link, ring));
}

/* Returns the link of a lane to peer, which is made at the first call; NULL without memory. */
static tcp_link *meet(hpc_lane *lane, int peer) {
    hpc_tcp *t = lane->context->tcp;
    tcp_link *link = link_of(lane, peer);
    void *none = NULL;
    if (link != NULL) return link;
    link = tcp_link_create(t, peer, lane->object.number);
    if (link == NULL) {
        hpc_fail(HPC_ERR_MEMORY, "lane", "lane: no memory for a connection to rank %d", peer);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&lane->peers[peer].in, &none, (void *)&link->ring)) return link;
    tcp_drop_link(t, link); /* another thread has made one */
    tcp_link_release(link);
    return link_of(lane, peer);
}

static int call(hpc_lane *lane, tcp_link *link) {
    return hpc_control_calls(lane->context->control, link->peer) ? tcp_call(link) : HPC_OK;
}

static int lane_export(hpc_lane *lane, int peer, hpc_blob *blob) {
    tcp_link *link = meet(lane, peer);
    (void)blob; /* the lane's number is enough */
    return link == NULL ? hpc_last_error()->status : call(lane, link);
}

static int lane_attach(hpc_lane *lane, int peer, const hpc_blob *blob) {
    tcp_link *link = meet(lane, peer);
    (void)blob;
    int status = link == NULL ? hpc_last_error()->status : call(lane, link);
    if (status != HPC_OK) return status;
    status = atomic_load(&link->refused);
    if (status != HPC_OK) return hpc_fail_transport("lane", "tcp", peer, "%s", link->refusal);
    if (!tcp_link_is_whole(link)) return HPC_IN_PROGRESS;
    atomic_store_explicit(&lane->peers[peer].out, link, memory_order_release);
    return HPC_OK;
}

static int accept_lane(hpc_lane *lane, int peer, int stream, int fd) {
    tcp_link *link = meet(lane, peer);
    if (link == NULL) return HPC_ERR_MEMORY;
    if (stream < 0 || stream >= link->n_streams || tcp_stream_fd(&link->streams[stream]) >= 0) return HPC_ERR_INVALID;
    hpc_greeting_end(fd); /* a caller that is gone has hung up, which the reader of fd will see */
    return tcp_link_install(link, stream, fd);
}

/* Closes this end. The connections stay until the peer frees its lane too, because the peer may still put on it. */
static void lane_detach(hpc_lane *lane, int peer) {
    tcp_link *link = link_of(lane, peer);
    if (link == NULL) return;
    atomic_store(&lane->peers[peer].out, NULL);
    atomic_store(&lane->peers[peer].in, NULL);
    tcp_link_close(link);
    if (atomic_load(&link->closed_there) || atomic_load(&link->ended)) tcp_drop_link(link->tcp, link);
    tcp_link_release(link);
}

/* ---- data ---- */

static tcp_link *out_of(const hpc_lane *lane, int peer) {
    return atomic_load_explicit(&lane->peers[peer].out, memory_order_acquire);
}

static int put(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset) {
    tcp_link *link = out_of(lane, peer);
    const hpc_frame frame = {
        .type = HPC_FRAME_PUT, .window = (uint32_t)w->object.number, .offset = offset, .nbytes = nbytes};
    if (nbytes == 0) return HPC_OK;
    return link == NULL ? HPC_IN_PROGRESS : tcp_link_put(link, &frame, src, lane);
}

static int put_signal(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      int signal, uint64_t value) {
    const hpc_frame frame = {.type = HPC_FRAME_PUT,
                             .flags = HPC_FRAME_SIGNAL,
                             .window = (uint32_t)w->object.number,
                             .offset = offset,
                             .nbytes = nbytes,
                             .word = (uint32_t)signal,
                             .value = value};
    tcp_link *link = out_of(lane, peer);
    return link == NULL ? HPC_IN_PROGRESS : tcp_link_put(link, &frame, src, lane);
}

static int put_notify(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      uint32_t imm) {
    const hpc_frame frame = {.type = HPC_FRAME_PUT,
                             .flags = HPC_FRAME_EVENT,
                             .window = (uint32_t)w->object.number,
                             .offset = offset,
                             .nbytes = nbytes,
                             .word = imm,
                             .value = nbytes};
    tcp_link *link = out_of(lane, peer);
    if (link == NULL || !tcp_link_may_notify(link)) return HPC_IN_PROGRESS;
    return tcp_link_put(link, &frame, src, lane);
}

/* Sends credit when half of the ring was taken, or if the peer waits for it. This load of wanted and the peer's WANT
 * are in one order with the ring's head, so one of the two threads sees the other's store. */
static int poll_ring(hpc_lane *lane, int peer, hpc_event *event) {
    tcp_link *link = link_of(lane, peer);
    hpc_ring *ring = &link->ring;
    int status = hpc_ring_pop(ring, event);
    if (status != HPC_OK) return status;
    int wanted = atomic_fetch_add(&link->wanted, 0); /* an atomic add: it is also a full barrier */
    uint64_t owed = atomic_load_explicit(&ring->head, memory_order_relaxed) -
                    atomic_load_explicit(&link->credited, memory_order_relaxed);
    if (owed >= HPC_NOTIFY_DEPTH / 2 || wanted) tcp_link_give_credit(link);
    return HPC_OK;
}

static void uncork(hpc_lane *lane, int peer) {
    tcp_link *link = out_of(lane, peer);
    if (link != NULL) tcp_link_uncork(link);
}

static int flush(hpc_lane *lane, int peer) {
    tcp_link *link = out_of(lane, peer);
    return link == NULL ? HPC_OK : tcp_link_flush(link);
}

static int settle(hpc_context *c) {
    hpc_tcp *t = c->tcp;
    int left = 0;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->n_links; i++)
        if (t->links[i] != NULL &&
            atomic_load_explicit(&c->group.states[t->links[i]->peer], memory_order_acquire) == HPC_PEER_ALIVE &&
            !atomic_load(&t->links[i]->silent) && tcp_link_flush(t->links[i]) != HPC_OK)
            left++;
    pthread_mutex_unlock(&t->lock);
    return left;
}

/* False with several streams: stripes of a large put arrive independently. */
static int keeps_order(const hpc_context *c, char why[HPC_ORDER_BYTES]) {
    snprintf(why, HPC_ORDER_BYTES, "tcp_streams is %d, make it 1", c->tcp_streams);
    return c->tcp_streams == 1;
}

static void release(hpc_context *c) {
    if (c->tcp != NULL) free_tcp(c->tcp);
    c->tcp = NULL;
}

const hpc_transport hpc_transport_tcp = {
    .name = "tcp",
    .caps = 0,
    .reaches = reaches,
    .open = open_tcp,
    .window_open = window_open,
    .window_detach = window_detach,
    .lane_export = lane_export,
    .lane_attach = lane_attach,
    .lane_detach = lane_detach,
    .accept_lane = accept_lane,
    .put = put,
    .put_signal = put_signal,
    .put_notify = put_notify,
    .poll = poll_ring,
    .uncork = uncork,
    .flush = flush,
    .keeps_order = keeps_order,
    .settle = settle,
    .progress = progress,
    .wakes_beds = 1,
    .carried = tcp_carried,
    .release = release,
};
