#include "context/context.h"

#include <stdlib.h>

#include "transport/ring.h"

static int export_to(const hpc_transport *transport, void *object, int peer, hpc_blob *blob) {
    return transport->lane_export(object, peer, blob);
}

static int attach(const hpc_transport *transport, void *object, int peer, const hpc_blob *blob, double deadline) {
    return transport->lane_attach(object, peer, blob, deadline);
}

int hpc_lane_open(hpc_context *c, int own, int rail, double deadline, hpc_lane **lane) {
    const char *op = own ? "init" : "lane";
    hpc_lane *l = calloc(1, sizeof *l);
    hpc_lane_peer *peers = calloc((size_t)c->group.size, sizeof *peers);
    int status;
    if (l == NULL || peers == NULL) {
        free(l);
        free(peers);
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a handle", op);
    }
    l->context = own ? c : hpc_context_retain(c);
    l->own = own;
    l->rail = rail;
    l->peers = peers;
    for (int i = 0; c->used[i] != NULL; i++) l->keeps |= c->used[i]->uncork != NULL;
    status = hpc_memory_create((size_t)c->group.size * sizeof(hpc_ring), op, &l->memory);
    status = hpc_context_agree(c, op, status, deadline);
    if (status == HPC_OK) {
        for (int r = 0; r < c->group.size; r++) peers[r].in = (hpc_ring *)hpc_memory_data(l->memory) + r;
        status = hpc_context_join(c, op, &(hpc_joint){l, export_to, attach}, deadline);
    }
    if (status == HPC_OK) { /* attach this rank to itself, as to any rank of this process */
        hpc_blob blob = {.fd = -1};
        const hpc_transport *t = c->transports[c->group.rank];
        status = t->lane_export(l, c->group.rank, &blob);
        blob.fd = -1; /* the descriptor belongs to the memory, so attach must not close it */
        if (status == HPC_OK) status = t->lane_attach(l, c->group.rank, &blob, deadline);
    }
    if (status == HPC_OK) hpc_memory_close_descriptor(l->memory);
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

/* Checks a put. Every put must pass this check, so a put that does not fit writes nothing. */
static inline int check_put(const hpc_lane *lane, const hpc_window *w, int peer, const void *src, size_t nbytes,
                            size_t offset, const char *op) {
    if (w == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: window is NULL", op);
    hpc_context *c = w->context;
    int status = hpc_group_usable(&c->group, op);
    if (status != HPC_OK) return status;
    if (lane != NULL && lane->context != c)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: the lane is of another context than the window", op);
    if (peer < 0 || peer >= c->group.size) return hpc_group_check_rank(&c->group, peer, "peer", op);
    const hpc_part *part = &w->parts[peer];
    if (offset > part->nbytes || nbytes > part->nbytes - offset)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %zu bytes at offset %zu do not fit rank %d's window of %zu bytes", op,
                        nbytes, offset, peer, part->nbytes);
    if (src == NULL && nbytes > 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: src is NULL while nbytes is %zu", op, nbytes);
    if (atomic_load_explicit(&c->group.departures, memory_order_relaxed) != 0)
        return hpc_group_peer_present(&c->group, peer, op);
    return HPC_OK;
}

int hpc_put(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset) {
    int status = check_put(lane, w, peer, src, nbytes, offset, "put");
    if (status != HPC_OK) return status;
    return w->context->transports[peer]->put(hpc_context_lane(w->context, lane), w, peer, src, nbytes, offset);
}

int hpc_put_signal(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset, int signal,
                   uint64_t value) {
    static const char op[] = "put_signal";
    int status = check_put(lane, w, peer, src, nbytes, offset, op);
    if (status != HPC_OK) return status;
    if (signal < 0 || signal >= w->parts[peer].signals)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: signal %d is out of range; rank %d's window has %d", op, signal, peer,
                        w->parts[peer].signals);
    return w->context->transports[peer]->put_signal(hpc_context_lane(w->context, lane), w, peer, src, nbytes, offset,
                                                    signal, value);
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
    n->status = n->window->context->transports[n->peer]->put_notify(n->lane, n->window, n->peer, n->src, n->nbytes,
                                                                    n->offset, n->imm);
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
    if (status != HPC_OK) return status;
    struct notifying n = {hpc_context_lane(w->context, lane), w, peer, src, nbytes, offset, imm, HPC_IN_PROGRESS};
    const hpc_wait wait = {op, try_notify, notified_peer, &n, .every = 0};
    status = hpc_wait_for(&w->context->group, &wait, timeout);
    return status != HPC_OK ? status : n.status;
}

int hpc_lane_try_notify(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                        uint32_t imm) {
    int status = check_put(lane, w, peer, src, nbytes, offset, "put_notify");
    if (status != HPC_OK) return status;
    return w->context->transports[peer]->put_notify(lane, w, peer, src, nbytes, offset, imm);
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

/* Polls the peers from where it last stopped, so that a busy peer cannot hide the others. */
static inline int poll_from(hpc_lane *lane, const char *but, hpc_event *event) {
    const hpc_context *c = lane->context;
    int size = c->group.size, rank = lane->next;
    for (int i = 0; i < size; i++) {
        int skipped = but != NULL && but[rank];
        int status = skipped ? HPC_IN_PROGRESS : c->transports[rank]->poll(lane, rank, event);
        if (status == HPC_OK) event->peer = rank;
        rank = rank + 1 == size ? 0 : rank + 1;
        if (status != HPC_IN_PROGRESS) {
            lane->next = rank;
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
