/* Connects links, on a few threads that end when no link is left: a call may take long, and whoever wants a link goes
 * on meanwhile. A call that fails refuses the way to both ends. */
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

#include "base/host.h"
#include "transport/tcp/parts.h"

enum { MOST_CALLERS = 4 };

static void refuse(tcp_link *l, int status) {
    hpc_context *c = l->tcp->context;
    if (atomic_load(&c->group.closed)) return; /* the channel ends, and no thread waits for the link */
    snprintf(l->refusal, sizeof l->refusal, "%s", hpc_last_error()->message);
    atomic_store(&l->refused, status);
    hpc_control_refuse(c->control, l->peer, l->lane, status, l->refusal);
    hpc_bell_ring(c->group.bell);
}

static void connect_all(tcp_link *l) {
    hpc_context *c = l->tcp->context;
    for (int k = 0; k < l->n_streams && !atomic_load(&l->closed_here); k++) {
        int fd,
            status = hpc_control_call_lane(c->control, l->peer, l->lane, k, "lane", hpc_deadline(&c->group, -1), &fd);
        if (status == HPC_OK && (status = tcp_link_install(l, k, fd)) != HPC_OK) {
            close(fd);
            status =
                hpc_fail_transport("lane", "tcp", l->peer, "lane: cannot watch the connection to rank %d", l->peer);
        }
        if (status != HPC_OK) {
            refuse(l, status);
            return;
        }
    }
    if (atomic_load(&l->closed_here)) tcp_link_close(l); /* the lane was freed before this connection was there */
}

static tcp_link *next(hpc_tcp *t) {
    tcp_link *l = t->closing ? NULL : t->to_call;
    if (l == NULL) return NULL;
    t->to_call = l->next;
    if (t->to_call == NULL) t->last_to_call = &t->to_call;
    return l;
}

static void *call(void *arg) {
    hpc_tcp *t = arg;
    tcp_link *l;
    hpc_net_heed(&t->context->group.closed);
    pthread_mutex_lock(&t->lock);
    while ((l = next(t)) != NULL) {
        pthread_mutex_unlock(&t->lock);
        connect_all(l);
        tcp_link_release(l);
        pthread_mutex_lock(&t->lock);
    }
    t->callers--;
    pthread_cond_signal(&t->called);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* The transport's lock is held. */
static int start(hpc_tcp *t) {
    const int error = hpc_host_start_thread(call, t);
    t->callers += error == 0;
    return error == 0;
}

int tcp_call(tcp_link *l) {
    hpc_tcp *t = l->tcp;
    int status = HPC_OK;
    pthread_mutex_lock(&t->lock);
    if (!l->called) {
        if (t->callers < MOST_CALLERS && !start(t) && t->callers == 0)
            status = hpc_fail(HPC_ERR_MEMORY, "lane", "lane: no thread to call rank %d", l->peer);
        if (status == HPC_OK) {
            l->called = 1;
            l->next = NULL;
            *t->last_to_call = tcp_link_retain(l);
            t->last_to_call = &l->next;
        }
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

void tcp_end_calls(hpc_tcp *t) {
    pthread_mutex_lock(&t->lock);
    t->closing = 1;
    while (t->callers > 0) pthread_cond_wait(&t->called, &t->lock);
    tcp_link *l = t->to_call;
    t->to_call = NULL;
    pthread_mutex_unlock(&t->lock);
    for (tcp_link *after; l != NULL; l = after) {
        after = l->next;
        tcp_link_release(l);
    }
}
