/* tcp: a transport for ranks of different hosts. A put is a frame on the lane's connection to the peer, which reads
 * it straight into its window. A signal or an event is in the frame of its data, so it cannot overtake the data.
 *
 * Each rank numbers its windows and lanes and sends the numbers to its peers in blobs. A frame names its window's
 * number, the hello of a connection its lane's. A freed window keeps its number, so frames that arrive late
 * are dropped. A number that was never given ends the link. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

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

/* Returns the transport's data, made at the first call; NULL with the error recorded. */
static hpc_tcp *tcp_of(hpc_context *c) {
    hpc_tcp *t = c->tcp;
    if (t != NULL) return t;
    hpc_reactor *reactor = hpc_transport_reactor(c);
    if (reactor == NULL) return NULL;
    t = calloc(1, sizeof *t);
    if (t == NULL) {
        hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for the tcp transport");
        return NULL;
    }
    t->context = c;
    t->reactor = reactor;
    pthread_mutex_init(&t->lock, NULL);
    t->source = hpc_reactor_add(reactor, &(hpc_source){.arg = t, .handle = handle, .report = report});
    return c->tcp = t;
}

/* Frees the transport's data. Links close their descriptors with their last reference; no visit holds one any more. */
static void free_tcp(hpc_tcp *t) {
    hpc_reactor_remove(t->reactor, t->source);
    for (int i = 0; i < t->n_links; i++)
        if (t->links[i] != NULL) tcp_link_release(t->links[i]);
    for (uint32_t i = 0; i < t->n_windows; i++) hpc_memory_release(t->windows[i].memory);
    free(t->links);
    free(t->windows);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- addresses and numbers ---- */

static int reaches(const hpc_address *self, const hpc_address *peer, const char **why) {
    *why = "one of them listens on no interface";
    return hpc_both_listen(self, peer);
}

static int export_number(uint64_t number, hpc_blob *blob) {
    memcpy(blob->bytes, &number, sizeof number);
    return HPC_OK;
}

static uint64_t read_number(const hpc_blob *blob) {
    uint64_t number;
    if (blob->fd >= 0) close(blob->fd); /* the descriptor is for ranks that share memory */
    memcpy(&number, blob->bytes, sizeof number);
    return number;
}

/* ---- windows ---- */

static int register_window(hpc_tcp *t, hpc_window *w) {
    const hpc_part *part = &w->parts[t->context->group.rank];
    int status = HPC_OK;
    pthread_mutex_lock(&t->lock);
    tcp_window *windows = realloc(t->windows, (t->n_windows + 1) * sizeof *windows);
    if (windows == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, "window", "window: no memory to register it");
    } else {
        t->windows = windows;
        windows[t->n_windows++] =
            (tcp_window){part->nbytes, part->signals_offset, part->signals, hpc_memory_retain(w->memory)};
        w->number = t->n_windows;
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

static int window_export(hpc_window *w, int peer, hpc_blob *blob) {
    hpc_tcp *t = tcp_of(w->context);
    int status = t == NULL ? hpc_last_error()->status : w->number != 0 ? HPC_OK : register_window(t, w);
    (void)peer;
    return status == HPC_OK ? export_number(w->number, blob) : status;
}

static int window_attach(hpc_window *w, int peer, const hpc_blob *blob) {
    w->parts[peer].number = (uint32_t)read_number(blob);
    return HPC_OK;
}

/* Frees the window's number at the first call, which is for the first peer that tcp serves. */
static void window_detach(hpc_window *w, int peer) {
    hpc_tcp *t = w->context->tcp;
    hpc_memory *memory = NULL;
    (void)peer;
    if (t == NULL || w->number == 0) return;
    pthread_mutex_lock(&t->lock);
    memory = t->windows[w->number - 1].memory;
    t->windows[w->number - 1].memory = NULL;
    pthread_mutex_unlock(&t->lock);
    w->number = 0;
    hpc_memory_release(memory); /* a payload that is still being read has its own reference */
}

/* ---- lanes ---- */

static int lane_export(hpc_lane *lane, int peer, hpc_blob *blob) {
    hpc_tcp *t = tcp_of(lane->context);
    if (t == NULL) return hpc_last_error()->status;
    if (lane->number == 0) lane->number = ++t->lanes;
    tcp_link *link = tcp_link_create(t, peer, lane->number, lane);
    if (link == NULL) return hpc_fail(HPC_ERR_MEMORY, "lane", "lane: no memory for a connection to rank %d", peer);
    lane->peers[peer].out = link;
    return export_number(lane->number, blob);
}

/* As in the control channel, the higher rank connects to the lower one. */
static int lane_attach(hpc_lane *lane, int peer, const hpc_blob *blob, double deadline) {
    hpc_context *c = lane->context;
    tcp_link *link = lane->peers[peer].out;
    uint64_t number = read_number(blob);
    if (link == NULL) return HPC_OK; /* this rank's own failure is known */
    for (int k = 0; c->group.rank > peer && k < link->n_streams; k++) {
        int fd, status = hpc_control_call_lane(c->control, peer, number, k, "lane", deadline, &fd);
        if (status != HPC_OK) return status;
        if (tcp_link_install(link, k, fd) == HPC_OK) continue;
        close(fd);
        return hpc_fail_transport("lane", "tcp", peer, "lane: cannot watch the connection to rank %d", peer);
    }
    return HPC_OK;
}

static int accept_lane(hpc_context *c, int rank, uint64_t lane, int stream, int fd) {
    hpc_tcp *t = c->tcp;
    tcp_link *link = NULL;
    if (t == NULL) return HPC_ERR_INVALID;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->n_links && link == NULL; i++)
        if (t->links[i] != NULL && t->links[i]->peer == rank && t->links[i]->lane == lane)
            link = tcp_link_retain(t->links[i]);
    pthread_mutex_unlock(&t->lock);
    if (link == NULL) return HPC_ERR_INVALID;
    int status = tcp_link_install(link, stream, fd);
    tcp_link_release(link);
    return status;
}

/* Closes this end. The connections stay until the peer frees its lane too, because the peer may still put on it. */
static void lane_detach(hpc_lane *lane, int peer) {
    tcp_link *link = lane->peers[peer].out;
    if (link == NULL) return;
    lane->peers[peer].out = NULL;
    tcp_link_close(link);
    if (atomic_load(&link->closed_there) || atomic_load(&link->ended)) tcp_drop_link(link->tcp, link);
    tcp_link_release(link);
}

/* ---- data ---- */

static int put(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset) {
    const hpc_frame frame = {
        .type = HPC_FRAME_PUT, .window = w->parts[peer].number, .offset = offset, .nbytes = nbytes};
    return nbytes == 0 ? HPC_OK : tcp_link_put(lane->peers[peer].out, &frame, src, lane);
}

static int put_signal(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      int signal, uint64_t value) {
    const hpc_frame frame = {.type = HPC_FRAME_PUT,
                             .flags = HPC_FRAME_SIGNAL,
                             .window = w->parts[peer].number,
                             .offset = offset,
                             .nbytes = nbytes,
                             .word = (uint32_t)signal,
                             .value = value};
    return tcp_link_put(lane->peers[peer].out, &frame, src, lane);
}

static int put_notify(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      uint32_t imm) {
    const hpc_frame frame = {.type = HPC_FRAME_PUT,
                             .flags = HPC_FRAME_EVENT,
                             .window = w->parts[peer].number,
                             .offset = offset,
                             .nbytes = nbytes,
                             .word = imm,
                             .value = nbytes};
    if (!tcp_link_may_notify(lane->peers[peer].out)) return HPC_IN_PROGRESS;
    return tcp_link_put(lane->peers[peer].out, &frame, src, lane);
}

/* Sends credit when half of the ring was taken, or if the peer waits for it. This load of wanted and the peer's WANT
 * are in one order with the ring's head, so one of the two threads sees the other's store. */
static int poll_ring(hpc_lane *lane, int peer, hpc_event *event) {
    hpc_ring *ring = lane->peers[peer].in;
    tcp_link *link = lane->peers[peer].out;
    int status = hpc_ring_pop(ring, event);
    if (status != HPC_OK) return status;
    int wanted = atomic_fetch_add(&link->wanted, 0); /* an atomic add: it is also a full barrier */
    uint64_t owed = atomic_load_explicit(&ring->head, memory_order_relaxed) -
                    atomic_load_explicit(&link->credited, memory_order_relaxed);
    if (owed >= HPC_NOTIFY_DEPTH / 2 || wanted) tcp_link_give_credit(link);
    return HPC_OK;
}

static void uncork(hpc_lane *lane, int peer) {
    tcp_link_uncork(lane->peers[peer].out);
}

static int flush(hpc_lane *lane, int peer) {
    return tcp_link_flush(lane->peers[peer].out);
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
    .window_export = window_export,
    .window_attach = window_attach,
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
