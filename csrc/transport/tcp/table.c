/* The table of links, by slot, and the byte counts of their connections. A link is freed when its slot, its lane and
 * every thread that visits it have dropped their references. */
#define _GNU_SOURCE
#include <linux/tcp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp/parts.h"

/* ---- life ---- */

tcp_link *tcp_link_retain(tcp_link *l) {
    atomic_fetch_add_explicit(&l->references, 1, memory_order_relaxed);
    return l;
}

void tcp_link_release(tcp_link *l) {
    if (atomic_fetch_sub_explicit(&l->references, 1, memory_order_acq_rel) != 1) return;
    for (int k = 0; k < l->n_streams; k++) {
        int fd = tcp_stream_fd(&l->streams[k]);
        if (fd >= 0) close(fd);
        hpc_reader_free(&l->streams[k].reader);
        tcp_drop_orders(&l->streams[k]);
    }
    pthread_mutex_destroy(&l->sending);
    free(l);
}

/* ---- the table ---- */

/* Puts the link into a free slot. */
static int add(hpc_tcp *t, tcp_link *link) {
    int slot = 0;
    pthread_mutex_lock(&t->lock);
    while (slot < t->n_links && t->links[slot] != NULL) slot++;
    if (slot == t->n_links) {
        int room = t->n_links == 0 ? 64 : 2 * t->n_links;
        tcp_link **links = realloc(t->links, (size_t)room * sizeof *links);
        if (links == NULL) {
            pthread_mutex_unlock(&t->lock);
            return HPC_ERR_MEMORY;
        }
        memset(links + t->n_links, 0, (size_t)(room - t->n_links) * sizeof *links);
        t->links = links;
        t->n_links = room;
    }
    t->links[slot] = link;
    link->slot = slot;
    pthread_mutex_unlock(&t->lock);
    return HPC_OK;
}

tcp_link *tcp_link_create(hpc_tcp *t, int peer, uint64_t lane) {
    int streams = t->context->tcp_streams;
    void *place = NULL;
    if (posix_memalign(&place, _Alignof(tcp_link), sizeof(tcp_link)) != 0) return NULL;
    tcp_link *l = memset(place, 0, sizeof *l);
    l->tcp = t;
    l->peer = peer;
    l->lane = lane;
    l->n_streams = streams;
    l->fenced = 1;
    pthread_mutex_init(&l->sending, NULL);
    atomic_init(&l->references, 2);
    for (int k = 0; k < streams; k++) {
        atomic_init(&l->streams[k].fd, -1);
        l->streams[k].last = &l->streams[k].first;
        l->streams[k].low_water = 1;
    }
    for (int k = 0; k < streams; k++)
        if (hpc_reader_init(&l->streams[k].reader, k, streams) != HPC_OK) goto no_memory;
    if (add(t, l) == HPC_OK) return l;
no_memory:
    atomic_store(&l->references, 1);
    tcp_link_release(l);
    return NULL;
}

tcp_link *tcp_link_at(hpc_tcp *t, int slot) {
    tcp_link *link = NULL;
    pthread_mutex_lock(&t->lock);
    if (slot < t->n_links && t->links[slot] != NULL) link = tcp_link_retain(t->links[slot]);
    pthread_mutex_unlock(&t->lock);
    return link;
}

void tcp_drop_link(hpc_tcp *t, tcp_link *link) {
    pthread_mutex_lock(&t->lock);
    int held = t->links[link->slot] == link;
    if (held) t->links[link->slot] = NULL;
    pthread_mutex_unlock(&t->lock);
    if (held) tcp_link_release(link);
}

int tcp_watch(hpc_tcp *t, const tcp_link *link, int stream, int fd, int again) {
    return hpc_reactor_watch(t->reactor, t->source, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                             (uint64_t)link->slot << 8 | (uint64_t)stream, again);
}

/* ---- bytes on the connections ----
 *
 * The counts are the kernel's: after a put has returned, its bytes may stay in the socket's buffer for long. */

enum { LEVEL_TCP = 6 }; /* = IPPROTO_TCP, whose header has an older struct tcp_info */

static void add_stream(int fd, int is_to, hpc_carried *sum) {
    struct tcp_info info = {0};
    socklen_t nbytes = sizeof info;
    if (fd < 0 || getsockopt(fd, LEVEL_TCP, TCP_INFO, &info, &nbytes) != 0) return;
    if (nbytes < offsetof(struct tcp_info, tcpi_bytes_retrans)) return; /* before Linux 4.19 */
    const uint64_t waiting = info.tcpi_notsent_bytes + (uint64_t)info.tcpi_unacked * info.tcpi_snd_mss;
    sum->sent += info.tcpi_bytes_sent;
    sum->received += info.tcpi_bytes_received;
    sum->waiting += waiting;
    if (!is_to) return;
    sum->sent_to += info.tcpi_bytes_sent;
    sum->waiting_to += waiting;
}

void tcp_carried(hpc_context *c, int to, hpc_carried *sum) {
    hpc_tcp *t = c->tcp;
    if (t == NULL) return;
    pthread_mutex_lock(&t->lock);
    const int n = t->n_links;
    pthread_mutex_unlock(&t->lock);
    for (int slot = 0; slot < n; slot++) {
        tcp_link *link = tcp_link_at(t, slot);
        if (link == NULL) continue;
        if (!hpc_same_host(&c->self, &c->addresses[link->peer]))
            for (int k = 0; k < link->n_streams; k++)
                add_stream(tcp_stream_fd(&link->streams[k]), link->peer == to, sum);
        tcp_link_release(link);
    }
}
