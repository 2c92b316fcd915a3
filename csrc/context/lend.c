/* Lent bytes: a rank reads a peer's array where it lies, so bytes are copied once, and without the peer's help.
 *
 * The kernel copies them (process_vm_readv), if it allows that; a place that is no longer there then is an error and no
 * crash. A rank tries it at the name in a peer's address, and tells the peer that it may lend.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "context/context.h"

/* Copies from another process; returns 0 or an errno. */
static int read_process(pid_t pid, uint64_t from, void *to, size_t nbytes) {
    for (size_t done = 0; done < nbytes;) {
        struct iovec here = {(char *)to + done, nbytes - done}, there = {(char *)(uintptr_t)from + done, nbytes - done};
        const ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EFAULT;
        done += (size_t)n;
    }
    return 0;
}

static pid_t pid_of(const hpc_context *c, int peer) {
    return (pid_t)c->addresses[peer].control.pid;
}

int hpc_can_read(const hpc_context *c, int peer) {
    const hpc_address *a = &c->addresses[peer];
    unsigned char found[HPC_COOKIE_BYTES];
    if (!hpc_same_host(&c->self, a) || !(c->transports[peer]->caps & HPC_CAP_PEER_VIEW)) return 0;
    if (a->control.pid_namespace != c->self.control.pid_namespace) return 0;
    return read_process(pid_of(c, peer), a->name_at, found, sizeof found) == 0 &&
           memcmp(found, a->control.name, sizeof found) == 0;
}

/* Some memory cannot be read so, such as that of devices. */
int hpc_is_readable(const char *at, uint64_t nbytes) {
    char byte;
    const pid_t self = getpid();
    return nbytes > 0 && read_process(self, (uintptr_t)at, &byte, 1) == 0 &&
           read_process(self, (uintptr_t)at + nbytes - 1, &byte, 1) == 0;
}

int hpc_read_peer(const hpc_context *c, int peer, uint64_t from, void *to, size_t nbytes) {
    const int error = read_process(pid_of(c, peer), from, to, nbytes);
    if (error == 0) return HPC_OK;
    if (error == ESRCH || error == EFAULT) return HPC_GONE;
    return hpc_fail_transport("collective", "shm", peer, "rank %d cannot read memory of rank %d: %s", c->group.rank,
                              peer, strerror(error));
}
