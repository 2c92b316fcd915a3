#define _GNU_SOURCE
#include "numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/host.h"

enum { WORD_BITS = 8 * sizeof(unsigned long) };

int numa_nodes[NUMA_NODES], numa_n_nodes, numa_cpus[NUMA_CPUS], numa_n_cpus;

void numa_look(void) {
    unsigned long allowed[NUMA_NODES / WORD_BITS] = {0};
    numa_n_cpus = hpc_host_cpus(numa_cpus, NUMA_CPUS);
    if (syscall(SYS_get_mempolicy, NULL, allowed, NUMA_NODES + 1, NULL, MPOL_F_MEMS_ALLOWED) == 0) {
        for (int node = 0; node < NUMA_NODES; node++)
            if (allowed[node / WORD_BITS] >> (node % WORD_BITS) & 1) numa_nodes[numa_n_nodes++] = node;
    }
    printf("NUMA nodes: %d, CPUs: %d%s\n", numa_n_nodes, numa_n_cpus,
           numa_n_nodes == 1 ? "; every page can only be on that node" : "");
}

void numa_needed(void) {
    if (numa_n_nodes == 0) ranks_skip("this container does not tell where memory lies (get_mempolicy)");
}

int numa_node_of(const void *page) {
    int node = NUMA_WHEREVER;
    void *address = (void *)(uintptr_t)page;
    if (syscall(SYS_move_pages, 0, 1ul, &address, NULL, &node, 0) == 0) return node;
    if (errno == EPERM || errno == ENOSYS) ranks_skip("this container does not tell where a page lies (move_pages)");
    return -errno;
}

void numa_avoid(int node) {
    for (int i = 0; i < numa_n_nodes; i++) {
        unsigned long other[NUMA_NODES / WORD_BITS] = {0};
        if (numa_nodes[i] == node) continue;
        other[numa_nodes[i] / WORD_BITS] = 1ul << (numa_nodes[i] % WORD_BITS);
        CHECK_EQ(syscall(SYS_set_mempolicy, MPOL_PREFERRED, other, NUMA_NODES + 1), 0);
        return;
    }
}
