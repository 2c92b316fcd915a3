/* Peers that pass updates on: each update goes unopened down a tree of its own (hpc_edge.row), from rank to rank, and
 * each rank applies it once. */
#ifndef HPC_DISCIPLINE_PASSING_H
#define HPC_DISCIPLINE_PASSING_H

#include "discipline/peers.h"

typedef struct hpc_ways hpc_ways;

/* The trees, and the updates that wait for room in the rings of children. NULL, and an error, where there is no memory.
 */
hpc_ways *hpc_passing_open(const hpc_engine *en, const char *op);
void hpc_passing_free(hpc_ways *its);

/* An input of a row has come: sends it to this rank's children in its tree. */
void hpc_pass_on(hpc_core *core, hpc_ways *its, hpc_work *w, int input, int slot);
/* Sends what found no room before; returns how much. */
int hpc_pass_waiting(hpc_core *core, hpc_ways *its);
/* The input that an event of HPC_OP_PASSED brings, and its row; -1, where the event is wrong. */
int hpc_passed_input(hpc_core *core, const hpc_ways *its, const hpc_event *event, hpc_work **w);
/* The children for which something waits: adds them to ranks (NULL: counts only). */
int hpc_passing_waits(const hpc_engine *en, const hpc_ways *its, int *ranks);

/* hpc_discipline.send_share: to the first ranks of this rank's tree alone. */
int hpc_passing_send_share(hpc_engine *en, int s, int slot, hpc_limit *l);

#endif
