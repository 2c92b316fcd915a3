/* Folds on a graph that wait for all their inputs: the steps that BSP and NOTIFY-ACK share there. */
#ifndef HPC_GRAPH_WHOLE_H
#define HPC_GRAPH_WHOLE_H

#include "discipline/graph.h"
#include "discipline/whole.h"

/* hpc_discipline's slots. turns: the graph has phases that take turns. */
int hpc_graph_turns(const hpc_engine *en);
int hpc_graph_whole_open(hpc_engine *en, const char *op);
int hpc_graph_whole_share_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_graph_whole_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_graph_whole_awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks);

#endif
