/* tcp as a source of the context's reactor: arrivals, and links that broke.
 *
 * Streams are in the set for reading and writing, edge-triggered; every arrival is an event, so nothing has to be
 * armed. The reactor's service thread tells the group of links that broke. */
#include <stdlib.h>
#include <sys/epoll.h>

#include "transport/tcp/parts.h"

enum { WAIT_BUDGET = 512 << 10 };

static const double GRACE = 1; /* a broken connection's peer may be about to say that it leaves */

/* ---- arrivals ---- */

/* A slot may have a new link since the event: one look too many does no harm. */
static int handle(void *arg, uint64_t tag, uint32_t events, size_t budget) {
    hpc_tcp *t = arg;
    tcp_link *link = tcp_link_at(t, (int)(tag >> 8));
    int left = 0;
    if (link == NULL) return 0;
    left = tcp_link_visit(link, (int)(tag & 255), events, budget);
    tcp_link_release(link);
    return left;
}

/* Mostly the link that spoke last speaks next: it is read at once, without asking the set. */
int tcp_progress(hpc_context *c) {
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

hpc_tcp *tcp_of(hpc_context *c) {
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

/* The links close their descriptors with the last reference, which no visit holds any more. */
void tcp_free(hpc_tcp *t) {
    hpc_reactor_remove(t->reactor, t->source);
    for (int i = 0; i < t->n_links; i++)
        if (t->links[i] != NULL) tcp_link_release(t->links[i]);
    for (uint32_t i = 0; i < t->n_windows; i++) hpc_memory_release(t->windows[i].memory);
    free(t->links);
    free(t->windows);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
