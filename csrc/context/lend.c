/* Lent bytes: a rank reads a peer's array where it lies, so bytes are copied once, and without the peer's help.
 *
 * The kernel copies them (process_vm_readv), if it allows that; a place that is no longer there then is an error and no
 * crash. A rank tries it at the name in a peer's address, and tells the peer that it may lend.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "context/context.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

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

/* Ubuntu's kernels (Yama, ptrace_scope 1) let only a process's tracer read it. So this process names its parent, which
 * stands for all that the parent has started, such as the other ranks of one mpirun. */
void hpc_allow_reads(void) {
    char scope = '0';
    const int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (read(fd, &scope, 1) == 1 && scope == '1') prctl(PR_SET_PTRACER, (unsigned long)getppid(), 0, 0, 0);
    close(fd);
}

int hpc_read_peer(const hpc_context *c, int peer, uint64_t from, void *to, size_t nbytes) {
    const int error = read_process(pid_of(c, peer), from, to, nbytes);
    if (error == 0) return HPC_OK;
    if (error == ESRCH) return HPC_IN_PROGRESS;
    if (error == EFAULT) return HPC_GONE;
    return hpc_fail_transport("collective", "shm", peer, "rank %d cannot read memory of rank %d: %s", c->group.rank,
                              peer, strerror(error));
}
