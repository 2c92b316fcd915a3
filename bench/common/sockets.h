/* sockets.h - plain TCP connections between two processes of a benchmark, and calls that move whole blocks. */
#ifndef BENCH_SOCKETS_H
#define BENCH_SOCKETS_H

#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* Prepares a socket: small messages go at once, and no call blocks for more than timeout seconds. */
static inline int bench_prepare_socket(int fd, double timeout) {
    struct timeval most = {(time_t)timeout, 0};
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) != 0) return -1;
    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

/* Sends all nbytes; blocks in the kernel, or with spin tries again and again. Returns 0, or -1 with errno. */
static inline int bench_send_all(int fd, const void *from, size_t nbytes, int spin) {
    const char *at = from;
    while (nbytes > 0) {
        ssize_t n = send(fd, at, nbytes, MSG_NOSIGNAL | (spin ? MSG_DONTWAIT : 0));
        if (n < 0 && !(errno == EINTR || (spin && errno == EAGAIN))) return -1;
        if (n <= 0) continue;
        at += n;
        nbytes -= (size_t)n;
    }
    return 0;
}

static inline int bench_recv_all(int fd, void *to, size_t nbytes, int spin) {
    char *at = to;
    while (nbytes > 0) {
        ssize_t n = recv(fd, at, nbytes, spin ? MSG_DONTWAIT : 0);
        if (n == 0) errno = ECONNRESET;
        if (n == 0 || (n < 0 && !(errno == EINTR || (spin && errno == EAGAIN)))) return -1;
        if (n < 0) continue;
        at += n;
        nbytes -= (size_t)n;
    }
    return 0;
}

#ifndef BENCH_LIBRARY
/* Connects two ranks over loopback. port is a word that both see, 0 at first. Returns -1 on failure. */
static inline int bench_connect_pair(int listens, _Atomic uint64_t *port, double timeout) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), connected = -1;
    double deadline = bench_now() + timeout;
    if (fd < 0 || bench_prepare_socket(fd, timeout) != 0) goto out;
    if (listens) {
        if (bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, 1) != 0) goto out;
        if (getsockname(fd, (struct sockaddr *)&address, &length) != 0) goto out;
        atomic_store(port, ntohs(address.sin_port));
        connected = accept(fd, NULL, NULL);
        if (connected >= 0 && bench_prepare_socket(connected, timeout) != 0) {
            close(connected);
            connected = -1;
        }
    } else {
        while (atomic_load(port) == 0 && bench_now() < deadline) usleep(100);
        address.sin_port = htons((uint16_t)atomic_load(port));
        if (connect(fd, (struct sockaddr *)&address, length) != 0) goto out;
        connected = fd;
    }
out:
    if (fd >= 0 && fd != connected) close(fd);
    return connected;
}
#endif
#endif
