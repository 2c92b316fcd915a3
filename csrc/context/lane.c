#include "context/context.h"

#include <stdlib.h>

#include "transport/ring.h"

void hpc_lane_hear(hpc_lane *lane, int rank) {
    hpc_lane_peer *p = &lane->peers[rank];
    if (p->heard || atomic_load(&p->in) == NULL) return;
    p->heard = 1;
    const int n = atomic_load(&lane->n_senders);
    lane->senders[n] = rank;
    atomic_store_explicit(&lane->n_senders, n + 1, memory_order_release);
}

static int export_to(const hpc_transport *transport, hpc_object *object, int peer, hpc_blob *blob) {
    hpc_lane *lane = (hpc_lane *)object;
    int status = transport->lane_export(lane, peer, blob);
    if (status == HPC_OK) hpc_lane_hear(lane, peer);
    return status;
}

static int attach(const hpc_transport *transport, hpc_object *object, int peer, const hpc_blob *blob) {
    hpc_lane *lane = (hpc_lane *)object;
    int status = transport->lane_attach(lane, peer, blob);
    if (!(transport->caps & HPC_CAP_EAGER) && transport->accept_lane == NULL) return status;
    pthread_mutex_lock(&lane->context->reach);
    hpc_lane_hear(lane, peer); /* one connection serves both ways */
    pthread_mutex_unlock(&lane->context->reach);
    return status;
}

static void come_near(hpc_object *object, int peer) {
    (void)object, (void)peer; /* hpc_lane_peer.out says it */
}

static int is_met(const hpc_transport *transport, hpc_object *object, int peer) {
    hpc_lane *lane = (hpc_lane *)object;
    return transport->accept_lane != NULL && atomic_load(&lane->peers[peer].in) != NULL &&
           transport->lane_attach(lane, peer, NULL) == HPC_OK;
}

static const hpc_joint joint = {"lane", is_met, export_to, attach, come_near, NULL, NULL};

int hpc_lane_accept(hpc_context *c, int rank, uint64_t number, int stream, int fd) {
    const hpc_transport *t = c->transports[rank];
    int status = HPC_ERR_INVALID;
    if (t == NULL || t->accept_lane == NULL || c->asked(c, number) < 0) return status;
    pthread_mutex_lock(&c->reach);
    hpc_object *object = hpc_object_find(c, number);
    if (object != NULL && object->joint == &joint) {
        status = t->accept_lane((hpc_lane *)object, rank, stream, fd);
        if (status == HPC_OK) hpc_lane_hear((hpc_lane *)object, rank);
    }
    pthread_mutex_unlock(&c->reach);
    return status;
}

static int make_lane(hpc_context *c, int own, int rail, const char *op, hpc_lane **lane) {
    const size_t size = (size_t)c->group.size;
    hpc_lane *l = calloc(1, sizeof *l);
    if (l == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a handle", op);
    *lane = l;
    l->context = own ? c : hpc_context_retain(c);
    l->own = own;
    l->rail = rail;
    l->peers = calloc(size, sizeof *l->peers);
    l->senders = calloc(size, sizeof *l->senders);
    if (l->peers == NULL || l->senders == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a handle", op);
    for (int i = 0; c->used[i] != NULL; i++) l->keeps |= c->used[i]->uncork != NULL;
    if (!c->has_eager) return HPC_OK;
    int status = hpc_memory_create(size * sizeof(hpc_ring), op, &l->memory);
    for (size_t r = 0; r < size && status == HPC_OK; r++)
        if (c->transports[r]->caps & HPC_CAP_EAGER)
            atomic_init(&l->peers[r].in, (hpc_ring *)hpc_memory_data(l->memory) + r);
    if (status == HPC_OK) hpc_memory_close_descriptor(l->memory);
    return status;
}

int hpc_lane_open(hpc_context *c, int own, int rail, double deadline, hpc_lane **lane) {
    const char *op = own ? "init" : "lane";
    hpc_lane *l = NULL;
    int status = make_lane(c, own, rail, op, &l);
    if (status == HPC_OK) status = hpc_object_open(c, &l->object, &joint, op);
    status = hpc_object_join(c, op, l == NULL ? NULL : &l->object, status, deadline);
    if (status != HPC_OK) {
        hpc_lane_free(l);
        return status;
    }
    l->open = 1;
    *lane = l;
    return HPC_OK;
}

int hpc_lane_open_alike(hpc_context *c, const char *op, uint64_t number, double deadline, hpc_lane **lane) {
    hpc_lane *l = NULL;
    int status = make_lane(c, 0, HPC_RAIL_BY_WORKER, op, &l);
    if (status == HPC_OK) status = hpc_object_open_as(c, &l->object, &joint, number, op);
    status = hpc_object_join_alone(c, op, l == NULL ? NULL : &l->object, status, deadline);
    if (status != HPC_OK) {
        hpc_lane_free(l);
        return status;
    }
    l->open = 1;
    *lane = l;
    return HPC_OK;
}

int hpc_lane_create(hpc_context *c, double timeout, hpc_lane **lane) {
    int status = hpc_context_ready(c, "lane");
    if (status != HPC_OK) return status;
    double deadline = hpc_deadline(&c->group, timeout);
    if (lane == NULL) /* the other ranks would otherwise wait for this one */
        return hpc_context_agree(c, "lane", hpc_fail(HPC_ERR_INVALID, "lane", "lane: lane is NULL"), deadline);
    *lane = NULL;
    return hpc_lane_open(c, 0, c->user_lanes++, deadline, lane);
}

void hpc_lane_free(hpc_lane *l) {
    if (l == NULL || !hpc_group_is_mine(&l->context->group)) return;
    hpc_context *c = l->context;
    int own = l->own;
    if (l->open && !own && !atomic_load(&c->group.closed)) { /* deliver its last puts, except to peers that are gone */
        int muted = hpc_mute_errors(1);
        hpc_lane_flush(l, c->group.timeout);
        hpc_mute_errors(muted);
    }
    hpc_context_drop_lane(l);
    if (!own) hpc_context_release(c);
}

/* ---- put ---- */

/* Called if a put does not fit the part that is open: the part was not reached yet, or the put is wrong. */
static __attribute__((noinline)) int check_part(hpc_window *w, int peer, size_t nbytes, size_t offset, const char *op) {
    const hpc_part *part = &w->parts[peer];
    if (offset <= part->nbytes && nbytes <= part->nbytes - offset)
        return hpc_reach_try(w->context, &w->object, peer, op);
    return hpc_fail(HPC_ERR_INVALID, op, "%s: %zu bytes at offset %zu do not fit rank %d's window of %zu bytes", op,
                    nbytes, offset, peer, part->nbytes);
}

/* Checks a put. Every put must pass this check, so a put that does not fit writes nothing. Returns HPC_IN_PROGRESS
 * while the peer's part is not reached. */
static inline __attribute__((always_inline)) int check_put(const hpc_lane *lane, hpc_window *w, int peer,
                                                           const void *src, size_t nbytes, size_t offset,
                                                           const char *op) {
    if (w == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: window is NULL", op);
    hpc_context *c = w->context;
    int status = hpc_group_usable(&c->group, op);
    if (status != HPC_OK) return status;
    if (lane != NULL && lane->context != c)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: the lane is of another context than the window", op);
    if (peer < 0 || peer >= c->group.size) return hpc_group_check_rank(&c->group, peer, "peer", op);
    if (src == NULL && nbytes > 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: src is NULL while nbytes is %zu", op, nbytes);
    const size_t open = atomic_load_explicit(&w->parts[peer].open_bytes, memory_order_acquire);
    if (offset > open || nbytes > open - offset) {
        status = check_part(w, peer, nbytes, offset, op);
        if (status != HPC_OK) return status;
    }
    if (atomic_load_explicit(&c->group.departures, memory_order_relaxed) != 0)
        return hpc_group_peer_present(&c->group, peer, op);
    return HPC_OK;
}

/* Waits until the window's and the lane's parts of peer are reached. If peer has freed its lane, the put goes by the
 * context's first lane, since it needs only the window; end_put then flushes it. */
static int reach_both(hpc_lane **lane, hpc_window *w, int peer, const char *op) {
    int status = hpc_reach(w->context, &w->object, peer, op);
    if (status != HPC_OK) return status;
    status = hpc_reach(w->context, &(*lane)->object, peer, op);
    if (status != HPC_GONE || (*lane)->own) return status;
    *lane = w->context->lane;
    return hpc_reach(w->context, &(*lane)->object, peer, op);
}

enum { NO_SIGNAL = -1 };

/* Called if the signal is none of those that are open. */
static __attribute__((noinline)) int check_signal(hpc_window *w, int peer, int signal, const char *op) {
    if (signal >= 0 && signal < w->parts[peer].signals) return hpc_reach_try(w->context, &w->object, peer, op);
    return hpc_fail(HPC_ERR_INVALID, op, "%s: signal %d is out of range; rank %d's window has %d", op, signal, peer,
                    w->parts[peer].signals);
}

static inline int has_open(const hpc_window *w, int peer, int signal) {
    return (unsigned)signal < (unsigned)atomic_load_explicit(&w->parts[peer].open_signals, memory_order_acquire);
}

/* Does a put whose peer is not reached yet, or has freed its part. signal NO_SIGNAL: it has none. */
static __attribute__((noinline)) int put_later(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes,
                                               size_t offset, int signal, uint64_t value) {
    hpc_context *c = w->context;
    const char *op = signal == NO_SIGNAL ? "put" : "put_signal";
    const hpc_transport *t = c->transports[peer];
    hpc_lane *used = hpc_context_lane(c, lane);
    int status = HPC_IN_PROGRESS;
    while (status == HPC_IN_PROGRESS) {
        status = reach_both(&used, w, peer, op);
        if (status == HPC_OK) status = check_put(used, w, peer, src, nbytes, offset, op);
        if (status == HPC_OK)
            status = signal == NO_SIGNAL ? t->put(used, w, peer, src, nbytes, offset)
                                         : t->put_signal(used, w, peer, src, nbytes, offset, signal, value);
    }
    if (status == HPC_GONE) return HPC_OK;
    /* A flush of the caller's lane must cover the put. */
    return status == HPC_OK && lane != NULL && used != lane ? hpc_flush(NULL, w, peer, -1) : status;
}

int hpc_put(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset) {
    int status = check_put(lane, w, peer, src, nbytes, offset, "put");
    if (status == HPC_OK)
        status = w->context->transports[peer]->put(hpc_context_lane(w->context, lane), w, peer, src, nbytes, offset);
    return status <= HPC_OK ? status : put_later(lane, w, peer, src, nbytes, offset, NO_SIGNAL, 0);
}

int hpc_put_signal(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset, int signal,
                   uint64_t value) {
    static const char op[] = "put_signal";
    int status = check_put(lane, w, peer, src, nbytes, offset, op);
    if (status >= HPC_OK && !has_open(w, peer, signal)) status = check_signal(w, peer, signal, op);
    if (status == HPC_OK)
        status = w->context->transports[peer]->put_signal(hpc_context_lane(w->context, lane), w, peer, src, nbytes,
                                                          offset, signal, value);
    return status <= HPC_OK ? status : put_later(lane, w, peer, src, nbytes, offset, signal, value);
}

int hpc_lane_try_notify(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                        uint32_t imm) {
    static const char op[] = "put_notify";
    int status = check_put(lane, w, peer, src, nbytes, offset, op);
    if (status != HPC_OK) return status == HPC_GONE ? HPC_OK : status;
    status = w->context->transports[peer]->put_notify(lane, w, peer, src, nbytes, offset, imm);
    if (status == HPC_IN_PROGRESS && atomic_load(&lane->object.ways[peer].distance) != HPC_NEAR) {
        status = hpc_reach_try(w->context, &lane->object, peer, op);
        if (status == HPC_OK) status = HPC_IN_PROGRESS; /* the caller tries again */
    }
    return status == HPC_GONE ? HPC_OK : status;
}

struct notifying {
    hpc_lane *lane;
    hpc_window *window;
    int peer;
    const void *src;
    size_t nbytes, offset;
    uint32_t imm;
    int status;
};

static int try_notify(void *arg) {
    struct notifying *n = arg;
    if (n->status != HPC_IN_PROGRESS)
        return 1; /* the put is done only once, although a wait calls this function again */
    n->status = hpc_lane_try_notify(n->lane, n->window, n->peer, n->src, n->nbytes, n->offset, n->imm);
    return n->status != HPC_IN_PROGRESS;
}

static int notified_peer(void *arg, int *ranks) {
    ranks[0] = ((struct notifying *)arg)->peer;
    return 1;
}

int hpc_put_notify(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                   double timeout) {
    static const char op[] = "put_notify";
    int status = check_put(lane, w, peer, src, nbytes, offset, op);
    if (status < 0) return status;
    struct notifying n = {hpc_context_lane(w->context, lane), w, peer, src, nbytes, offset, imm, HPC_IN_PROGRESS};
    const hpc_wait wait = {op, try_notify, notified_peer, &n, .every = 0};
    status = hpc_wait_for(&w->context->group, &wait, timeout);
    return status != HPC_OK ? status : n.status;
}

void hpc_lane_send_kept(hpc_lane *lane) {
    const hpc_context *c = lane->context;
    lane->corked = 0;
    for (int r = 0; r < c->group.size; r++)
        if (c->transports[r]->uncork != NULL) c->transports[r]->uncork(lane, r);
}

/* ---- flush and poll ---- */

struct flushing {
    hpc_lane *lane;
    int first, last; /* ranks that are not flushed yet */
    int status;
};

static int try_flush(void *arg) {
    struct flushing *f = arg;
    while (f->first <= f->last) {
        f->status = f->lane->context->transports[f->first]->flush(f->lane, f->first);
        if (f->status == HPC_IN_PROGRESS) return 0;
        if (f->status != HPC_OK) return 1;
        f->first++;
    }
    return 1;
}

static int flushed_peer(void *arg, int *ranks) {
    ranks[0] = ((struct flushing *)arg)->first;
    return 1;
}

int hpc_flush(hpc_lane *lane, hpc_window *w, int peer, double timeout) {
    static const char op[] = "flush";
    HPC_SPAN(w == NULL ? NULL : w->context->group.timeline, op, NULL);
    if (w == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: window is NULL", op);
    hpc_context *c = w->context;
    int status = hpc_group_usable(&c->group, op);
    if (status == HPC_OK && lane != NULL && lane->context != c)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: the lane is of another context than the window", op);
    if (status == HPC_OK && peer != -1) status = hpc_group_check_rank(&c->group, peer, "peer", op);
    if (status != HPC_OK) return status;
    struct flushing f = {hpc_context_lane(c, lane), peer < 0 ? 0 : peer, peer < 0 ? c->group.size - 1 : peer, HPC_OK};
    const hpc_wait wait = {op, try_flush, flushed_peer, &f, .every = 0};
    status = hpc_wait_for(&c->group, &wait, timeout);
    return status != HPC_OK ? status : f.status;
}

int hpc_lane_flush(hpc_lane *lane, double timeout) {
    hpc_group *g = &lane->context->group;
    double deadline = hpc_deadline(g, timeout);
    int first_failure = HPC_OK;
    for (int r = 0; r < g->size; r++) hpc_lane_try_flush(lane, r); /* start all flushes before the first wait */
    for (int r = 0; r < g->size; r++) {
        struct flushing f = {lane, r, r, HPC_OK};
        const hpc_wait wait = {"flush", try_flush, flushed_peer, &f, .every = 0};
        if (try_flush(&f) && f.status == HPC_OK) continue;
        int status = hpc_wait_for(g, &wait, hpc_left(deadline));
        if (first_failure == HPC_OK) first_failure = status != HPC_OK ? status : f.status;
    }
    return first_failure;
}

int hpc_lane_try_flush(hpc_lane *lane, int peer) {
    return lane->context->transports[peer]->flush(lane, peer);
}

/* Polls the senders from where it last stopped, so that a busy peer cannot hide the others. */
static inline int poll_from(hpc_lane *lane, const char *but, hpc_event *event) {
    const hpc_context *c = lane->context;
    const int n = atomic_load_explicit(&lane->n_senders, memory_order_acquire);
    int at = lane->next < n ? lane->next : 0;
    for (int i = 0; i < n; i++) {
        const int rank = lane->senders[at], skipped = but != NULL && but[rank];
        int status = skipped ? HPC_IN_PROGRESS : c->transports[rank]->poll(lane, rank, event);
        if (status == HPC_OK) event->peer = rank;
        at = at + 1 == n ? 0 : at + 1;
        if (status != HPC_IN_PROGRESS) {
            lane->next = at;
            return status;
        }
    }
    return HPC_IN_PROGRESS;
}

int hpc_lane_poll(hpc_lane *lane, hpc_event *event) {
    return poll_from(lane, NULL, event);
}

int hpc_lane_poll_but(hpc_lane *lane, const char *but, hpc_event *event) {
    return poll_from(lane, but, event);
}

struct polling {
    hpc_context *context;
    hpc_lane *lane;
    hpc_event *event;
    int status;
};

static int try_poll(void *arg) {
    struct polling *p = arg;
    if (p->status == HPC_IN_PROGRESS) p->status = hpc_lane_poll(p->lane, p->event); /* at most one event a call */
    return p->status != HPC_IN_PROGRESS;
}

static int anybody_present(void *arg, int *ranks) {
    return hpc_group_others(&((struct polling *)arg)->context->group, ranks);
}

static int check_poll(hpc_context *c, const hpc_lane *lane, const hpc_event *event, const char *op) {
    int status = hpc_context_ready(c, op);
    if (status != HPC_OK) return status;
    if (event == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: event is NULL", op);
    if (lane != NULL && lane->context != c)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: the lane is of another context", op);
    return HPC_OK;
}

int hpc_poll(hpc_context *c, hpc_lane *lane, hpc_event *event) {
    int status = check_poll(c, lane, event, "poll");
    if (status != HPC_OK) return status;
    struct polling p = {c, hpc_context_lane(c, lane), event, HPC_IN_PROGRESS};
    hpc_group_progress(&c->group);
    try_poll(&p);
    return p.status;
}

int hpc_wait_event(hpc_context *c, hpc_lane *lane, hpc_event *event, double timeout) {
    static const char op[] = "wait_event";
    HPC_SPAN(c == NULL ? NULL : c->group.timeline, op, NULL);
    int status = check_poll(c, lane, event, op);
    if (status != HPC_OK) return status;
    struct polling p = {c, hpc_context_lane(c, lane), event, HPC_IN_PROGRESS};
    const hpc_wait wait = {op, try_poll, anybody_present, &p, .every = 0};
    status = hpc_wait_for(&c->group, &wait, timeout);
    return status != HPC_OK ? status : p.status;
}
