/* Steps that disciplines on a graph share (engine/graph.h). */
#ifndef HPC_DISCIPLINE_GRAPH_H
#define HPC_DISCIPLINE_GRAPH_H

#include "engine/clocks.h"
#include "engine/graph.h"
#include "engine/row.h"
#include "engine/send.h"

/* ---- open ---- */

const char *hpc_consistency_name(int consistency);
/* HPC_ERR_INVALID if the configuration has no graph. */
int hpc_graph_is_given(const hpc_exchange_config *config, const char *op);
/* HPC_OK if folds may miss some inputs. Refuses a fold of one's own, and negative weights. by: the discipline, for the
 * error. */
int hpc_graph_check_partial(const hpc_exchange_config *config, const char *by, const char *op);
/* HPC_ERR_UNSUPPORTED if the graph has several phases. */
int hpc_graph_check_constant(const hpc_exchange_config *config, const char *by, const char *op);

/* ---- the owner ---- */

/* Counts the inputs of the neighbours to the step that has just been folded. */
void hpc_graph_count_neighbours(hpc_core *core, const hpc_share *share);

/* Opens the clocks of shares whose folds take the updates that are there: came counts those that are there, applied is
 * the newest that was folded, answered those whose slots are free. own: the shares of the same key and core of all
 * ranks, by rank. As hpc_discipline.open. */
int hpc_graph_open_clocks(hpc_engine *en, const char *op);
/* hpc_discipline's slot: counts an input; 0 when its rank has no slot left to have sent it from. */
int hpc_graph_row_came(hpc_core *core, hpc_work *w, int input, int slot);
/* Makes all folds for which it is time, of all shares of a core; returns their number. As hpc_gate.work. */
typedef struct hpc_graph_fold {
    int (*is_time)(const hpc_engine *en, const hpc_share *share);
    int (*fold)(hpc_core *core, hpc_share *share); /* nonzero when the exchange has failed */
} hpc_graph_fold;
int hpc_graph_work(hpc_core *core, const hpc_graph_fold *its);

#endif
