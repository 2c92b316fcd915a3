/* verbs as a source of the context's reactor: when the ifaces of a context are polled, and how the transport opens
 * and closes.
 *
 * A wait arms the queues before it sleeps: the next completion is then an event on the NIC's channel, which is in
 * the reactor's set. Then it polls once more. So a completion either came before that poll, or is an event. */
#define _GNU_SOURCE
#include "transport/verbs/parts.h"

#if defined(HPC_HAVE_VERBS)

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum {
    HOT_MOST = 16, /* most polls in a row of a wait that look at one iface only */
    ASYNC = 256    /* tag of a NIC's asynchronous events */
};

static const double GRACE = 1; /* seconds in which the peer of a broken queue pair may still say that it leaves */

/* ---- all ifaces ---- */

enum { MOST_AT_ONCE = 32 };

/* Takes some ifaces below index *at, each with a reference, and lowers *at, which must start at INT_MAX. It goes
 * down because a removed iface's place is filled by the last one, which has been taken by then. */
static int take_some(hpc_verbs *v, int *at, verbs_iface *some[MOST_AT_ONCE]) {
    int n = 0;
    pthread_mutex_lock(&v->lock);
    if (*at > v->n_ifaces) *at = v->n_ifaces;
    while (*at > 0 && n < MOST_AT_ONCE)
        if (verbs_iface_retain(v->ifaces[--*at])) some[n++] = v->ifaces[*at];
    pthread_mutex_unlock(&v->lock);
    return n;
}

/* Visits every iface; returns VERBS_LEFT and VERBS_CAME bits. */
static int visit_all(hpc_verbs *v) {
    verbs_iface *some[MOST_AT_ONCE];
    int at = INT_MAX, n, result = 0;
    while ((n = take_some(v, &at, some)) > 0)
        for (int i = 0; i < n; i++) {
            result |= verbs_iface_visit(some[i]);
            verbs_iface_release(some[i]);
        }
    return result;
}

/* Frees windows without a holder, if every queue was found empty since they lost it: then no completion names them. */
static int visit_and_free(hpc_verbs *v) {
    verbs_window *going;
    pthread_mutex_lock(&v->lock);
    going = v->going;
    v->going = NULL;
    pthread_mutex_unlock(&v->lock);
    int result = visit_all(v);
    for (verbs_window *w = going, *next; w != NULL; w = next) {
        next = w->next;
        if (!(result & VERBS_LEFT)) {
            atomic_store_explicit(&v->windows[w->number], NULL, memory_order_release);
            verbs_window_free(v, w);
            atomic_fetch_sub(&v->n_going, 1);
            continue;
        }
        pthread_mutex_lock(&v->lock);
        w->next = v->going;
        v->going = w;
        pthread_mutex_unlock(&v->lock);
    }
    return result;
}

static int look_at_all(hpc_verbs *v) {
    if (atomic_load_explicit(&v->n_going, memory_order_relaxed) != 0) return visit_and_free(v);
    return visit_all(v);
}

/* Credit arrives without an event. */
static int left_over(hpc_verbs *v, int visited) {
    return (visited & VERBS_LEFT ? HPC_LEFT : 0) | (atomic_load(&v->starved) > 0 ? HPC_AWAITED : 0);
}

/* Returns the iface that had an arrival last, with a reference, or NULL. *alone: it is the only iface. */
static verbs_iface *take_hot(hpc_verbs *v, int *alone) {
    pthread_mutex_lock(&v->lock);
    verbs_iface *hot = atomic_load_explicit(&v->hot, memory_order_relaxed);
    int i = 0;
    while (i < v->n_ifaces && v->ifaces[i] != hot) i++;
    if (i == v->n_ifaces || !verbs_iface_retain(hot)) hot = NULL;
    *alone = v->n_ifaces == 1;
    pthread_mutex_unlock(&v->lock);
    return hot;
}

/* Polls the iface that had an arrival last, because it usually has the next one. If it has one, the other ifaces
 * wait for a later poll, at most HOT_MOST times in a row. */
int verbs_progress(hpc_context *c) {
    hpc_verbs *v = c->verbs;
    int alone, result = 0;
    if (v == NULL) return 0;
    hpc_reactor_looked(v->reactor);
    verbs_iface *hot = take_hot(v, &alone);
    if (hot != NULL) {
        result = verbs_iface_visit(hot);
        verbs_iface_release(hot);
        if ((result & VERBS_CAME) && atomic_fetch_add_explicit(&v->hot_in_a_row, 1, memory_order_relaxed) < HOT_MOST)
            return HPC_LEFT;
        atomic_store_explicit(&v->hot_in_a_row, 0, memory_order_relaxed);
    }
    if (atomic_load_explicit(&c->group.departures, memory_order_relaxed) != atomic_load(&v->departures))
        verbs_window_forget(v);
    if (hot == NULL || !alone || atomic_load_explicit(&v->n_going, memory_order_relaxed) != 0) result = look_at_all(v);
    return left_over(v, result);
}

/* Polls all ifaces. Work that this poll makes possible is left to the next one. */
static int look(void *arg) {
    hpc_verbs *v = arg;
    return left_over(v, look_at_all(v)) != 0 || atomic_load(&v->n_going) > 0;
}

static void arm(void *arg) {
    verbs_iface *some[MOST_AT_ONCE];
    int at = INT_MAX, n;
    while ((n = take_some(arg, &at, some)) > 0)
        for (int i = 0; i < n; i++) {
            verbs_iface_arm(some[i]);
            verbs_iface_release(some[i]);
        }
}

int verbs_settle(hpc_verbs *v, int peer) {
    const hpc_group *g = &v->context->group;
    int left = 0;
    pthread_mutex_lock(&v->lock);
    for (int i = 0; i < v->n_ifaces; i++)
        for (int k = 0; k < v->ifaces[i]->n_links; k++) {
            verbs_link *l = v->ifaces[i]->links[k];
            if (l == NULL || atomic_load(&l->closed_here) || atomic_load(&l->silent) ||
                (peer >= 0 && l->peer != peer) ||
                atomic_load_explicit(&g->states[l->peer], memory_order_acquire) != HPC_PEER_ALIVE)
                continue;
            left += verbs_link_flush(l, "close") == HPC_IN_PROGRESS;
        }
    pthread_mutex_unlock(&v->lock);
    return left;
}

/* ---- the reactor's ---- */

/* Handles completion events of a NIC. An iface being freed keeps its completion queue only until its events are
 * acknowledged. */
static int take_channel(hpc_verbs *v, int nic) {
    struct ibv_cq *cq;
    void *arg;
    int left = 0;
    while (v->library->get_cq_event(v->channels[nic], &cq, &arg) == 0) {
        verbs_iface *f = arg;
        /* Acquires the stores of the thread that opened it, which C cannot see ordered through the kernel. */
        pthread_mutex_lock(&v->lock);
        int here = verbs_iface_retain(f);
        pthread_mutex_unlock(&v->lock);
        if (here) atomic_store(&f->armed, 0);
        v->library->ack_cq_events(cq, 1);
        if (!here) continue;
        left |= verbs_iface_visit(f) & VERBS_LEFT;
        verbs_iface_release(f);
    }
    return left;
}

static int concerns(const verbs_link *l, const struct ibv_async_event *event) {
    switch (event->event_type) {
    case IBV_EVENT_DEVICE_FATAL:
        return 1;
    case IBV_EVENT_CQ_ERR:
        return l->iface->cq == event->element.cq;
    default:
        return l->qp == event->element.qp;
    }
}

/* Breaks the links of a failed device or queue pair: a queue pair that only receives gets no completion that shows
 * it. */
static void take_fatal(hpc_verbs *v, int nic, const struct ibv_async_event *event) {
    pthread_mutex_lock(&v->lock);
    for (int i = 0; i < v->n_ifaces; i++)
        for (int k = 0; k < v->ifaces[i]->n_links; k++) {
            verbs_link *l = v->ifaces[i]->links[k];
            if (l == NULL || v->nics->nics[v->ifaces[i]->nic].context != v->nics->nics[nic].context) continue;
            if (concerns(l, event)) verbs_link_break(l, v->library->event_type_str(event->event_type), "see dmesg", 0);
        }
    pthread_mutex_unlock(&v->lock);
}

static void take_async(hpc_verbs *v, int nic) {
    const verbs_nic *n = &v->nics->nics[nic];
    struct ibv_async_event event;
    while (v->library->get_async_event(n->context, &event) == 0) {
        switch (event.event_type) {
        case IBV_EVENT_DEVICE_FATAL:
        case IBV_EVENT_CQ_ERR:
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
            take_fatal(v, nic, &event);
            break;
        case IBV_EVENT_PORT_ERR:
        case IBV_EVENT_PORT_ACTIVE:
            hpc_group_note(&v->context->group, HPC_NOTE_DEGRADED, "%s: %s", n->name,
                           v->library->event_type_str(event.event_type));
            break;
        default:
            break;
        }
        v->library->ack_async_event(&event);
    }
}

static int handle(void *arg, uint64_t tag, uint32_t events, size_t budget) {
    (void)events, (void)budget;
    if (tag < ASYNC) return take_channel(arg, (int)tag);
    take_async(arg, (int)tag - ASYNC);
    return 0;
}

static int report(void *arg) {
    hpc_verbs *v = arg;
    hpc_group *g = &v->context->group;
    double now = hpc_now();
    int left = 0;
    pthread_mutex_lock(&v->lock);
    for (int i = 0; i < v->n_ifaces; i++)
        for (int k = 0; k < v->ifaces[i]->n_links; k++) {
            verbs_link *l = v->ifaces[i]->links[k];
            if (l == NULL || !atomic_load_explicit(&l->silent, memory_order_acquire)) continue;
            if (atomic_load(&l->closed_here) || atomic_load(&l->closed_there) ||
                atomic_load_explicit(&g->states[l->peer], memory_order_acquire) != HPC_PEER_ALIVE)
                continue;
            if (now - l->broken_at < GRACE)
                left = 1;
            else if (!atomic_load(&g->closed))
                hpc_control_lose(v->context->control, l->peer, l->why);
        }
    pthread_mutex_unlock(&v->lock);
    return left;
}

/* ---- life of the transport ---- */

static int listen_to(hpc_verbs *v, int nic) {
    struct ibv_context *device = v->nics->nics[nic].context;
    int channel, first = 1;
    for (int i = 0; i < nic; i++) first &= v->nics->nics[i].context != device;
    v->channels[nic] = v->library->create_comp_channel(device);
    if (v->channels[nic] == NULL) return errno;
    channel = v->channels[nic]->fd;
    if (fcntl(channel, F_SETFL, fcntl(channel, F_GETFL) | O_NONBLOCK) != 0 ||
        hpc_reactor_watch(v->reactor, v->source, channel, EPOLLIN | EPOLLET, (uint64_t)nic, 0) != 0)
        return errno;
    if (!first) return 0; /* two ports of one device share it */
    if (fcntl(device->async_fd, F_SETFL, fcntl(device->async_fd, F_GETFL) | O_NONBLOCK) != 0 ||
        hpc_reactor_watch(v->reactor, v->source, device->async_fd, EPOLLIN | EPOLLET, (uint64_t)nic + ASYNC, 0) != 0)
        return errno;
    return 0;
}

/* Writes the path to peer: the peer's address and this rank's port of each rail. */
static void write_path(hpc_verbs *v, int peer) {
    verbs_peer *p = &v->peers[peer];
    size_t used = 0, cap = sizeof p->path;
    for (int i = 0; i < p->n_rails && used < cap; i++) {
        const hpc_port_address *to = &v->context->addresses[peer].devices.ports[p->rails[i].there];
        char address[INET6_ADDRSTRLEN] = "";
        if (to->fabric == HPC_FABRIC_INFINIBAND)
            snprintf(address, sizeof address, "LID %d", to->lid);
        else
            inet_ntop(AF_INET6, to->gid, address, sizeof address);
        used += (size_t)snprintf(p->path + used, cap - used, "%s%s by %s", i > 0 ? ", " : "",
                                 strncmp(address, "::ffff:", 7) == 0 ? address + 7 : address,
                                 v->nics->nics[p->rails[i].here].name);
    }
}

static int find_peers(hpc_verbs *v) {
    hpc_context *c = v->context;
    const char *why;
    v->peers = calloc((size_t)c->group.size, sizeof *v->peers);
    if (v->peers == NULL) return HPC_ERR_MEMORY;
    v->first_peer = -1;
    for (int r = 0; r < c->group.size; r++) {
        if (!(c->transports[r]->caps & HPC_CAP_NICS)) continue;
        if (v->first_peer < 0) v->first_peer = r;
        v->peers[r].n_rails = hpc_transport_rails(&c->self, &c->addresses[r], v->peers[r].rails, &why);
        write_path(v, r);
        v->n_peers++;
    }
    return HPC_OK;
}

hpc_verbs *verbs_of(hpc_context *c) {
    hpc_verbs *v = c->verbs;
    int error = 0;
    if (v != NULL) return v;
    v = calloc(1, sizeof *v);
    if (v == NULL) {
        hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for the verbs transport");
        return NULL;
    }
    v->context = c;
    v->nics = c->nics;
    v->library = c->nics->library;
    v->source = -1;
    pthread_mutex_init(&v->lock, NULL);
    v->reactor = hpc_transport_reactor(c);
    if (v->reactor == NULL) {
        verbs_close(v);
        return NULL;
    }
    v->source = hpc_reactor_add(v->reactor, &(hpc_source){v, handle, arm, look, report, .patient = 1});
    error = find_peers(v) == HPC_OK ? 0 : ENOMEM;
    for (int i = 0; i < v->nics->n && error == 0; i++) error = listen_to(v, i);
    if (error != 0) {
        verbs_close(v);
        hpc_fail_transport("init", "verbs", -1, "rank %d: init: cannot open the verbs transport: %s", c->group.rank,
                           strerror(error));
        return NULL;
    }
    return c->verbs = v;
}

/* Frees an iface that no thread uses any more. */
static void close_iface(verbs_iface *f) {
    for (int i = 0; i < f->n_links; i++)
        if (f->links[i] != NULL) verbs_link_free(f->links[i]);
    verbs_iface_destroy(f);
}

void verbs_close(hpc_verbs *v) {
    if (v->source >= 0) hpc_reactor_remove(v->reactor, v->source);
    for (int i = 0; i < v->n_ifaces; i++) close_iface(v->ifaces[i]);
    for (uint32_t i = 0; i < VERBS_WINDOWS; i++) {
        verbs_window *w = atomic_load(&v->windows[i]);
        if (w != NULL) verbs_window_free(v, w);
    }
    for (int i = 0; v->nics != NULL && i < v->nics->n; i++)
        if (v->channels[i] != NULL) v->library->destroy_comp_channel(v->channels[i]);
    pthread_mutex_destroy(&v->lock);
    free(v->ifaces);
    free(v->peers);
    free(v);
}

#endif
