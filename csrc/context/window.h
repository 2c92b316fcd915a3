/* A registered block that every peer may write into, with its signal words behind the data. */
#ifndef HPC_WINDOW_H
#define HPC_WINDOW_H

#include "context/context.h"

/* hpc_window_create with parts that may differ between ranks, and ranges of one's own part on given NUMA nodes (offsets
 * from the data's start): window->memory->unplaced says if the kernel refused. */
int hpc_window_create_parts(hpc_context *context, const char *op, size_t nbytes, int signals,
                            const hpc_placement *places, int n_places, double deadline, hpc_window **window);

/* The NUMA node where a window lies of which nothing else is said: that of the context's NICs where they carry what
 * peers write into it, so that it goes no further than it must (PHub, section 3.2.1); -1: anywhere. */
int hpc_window_node(const hpc_context *context);

#endif
