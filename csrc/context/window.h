/* A registered block that every peer may write into, with its signal words behind the data. */
#ifndef HPC_WINDOW_H
#define HPC_WINDOW_H

#include "context/context.h"

/* hpc_window_create for parts that may differ between ranks. places puts ranges of this rank's own part on given NUMA
 * nodes; their offsets count from the start of the data. window->memory->unplaced says if the kernel refused. */
int hpc_window_create_parts(hpc_context *context, const char *op, size_t nbytes, int signals,
                            const hpc_placement *places, int n_places, double deadline, hpc_window **window);

/* Returns the NUMA node for a window without given places. If NICs carry the peers' writes into the window, it is the
 * node of the context's NICs, so that the data goes no further than it must (PHub, section 3.2.1). -1: any node. */
int hpc_window_node(const hpc_context *context);

#endif
