/* Bytes on the connections, by the kernel's count: a put that has returned may be in a socket's buffer for long. */
#include <linux/tcp.h>
#include <stddef.h>
#include <sys/socket.h>

#include "transport/tcp/parts.h"

enum { LEVEL_TCP = 6 }; /* IPPROTO_TCP; netinet/tcp.h has an older struct tcp_info */

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
    for (int slot = 0; t != NULL; slot++) {
        pthread_mutex_lock(&t->lock);
        int n = t->n_links;
        tcp_link *link = slot < n && t->links[slot] != NULL ? tcp_link_retain(t->links[slot]) : NULL;
        pthread_mutex_unlock(&t->lock);
        if (slot >= n) return;
        if (link == NULL) continue;
        if (!hpc_same_host(&c->self, &c->addresses[link->peer]))
            for (int k = 0; k < link->n_streams; k++)
                add_stream(tcp_stream_fd(&link->streams[k]), link->peer == to, sum);
        tcp_link_release(link);
    }
}
