/* numa.h - what this machine has of nodes, and where the kernel says that a page lies. */
#ifndef HPC_TEST_NUMA_H
#define HPC_TEST_NUMA_H

#include "ranks.h"

enum { NUMA_NODES = 1024, NUMA_CPUS = 1024, NUMA_WHEREVER = -1 };

extern int numa_nodes[NUMA_NODES], numa_n_nodes; /* that this process may take memory from; none: it may not ask */
extern int numa_cpus[NUMA_CPUS], numa_n_cpus;

/* Fills them in and prints how many there are. */
void numa_look(void);

/* Skips the case where nobody tells where memory lies. */
void numa_needed(void);

/* The node of the page at this address, which must be present; -errno. */
int numa_node_of(const void *page);

/* Pages that this thread touches first come from another node, if there is one, unless they are told otherwise. */
void numa_avoid(int node);

#endif
