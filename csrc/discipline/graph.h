/* Steps that disciplines on a graph share (engine/layout/graph.h). */
#ifndef HPC_DISCIPLINE_GRAPH_H
#define HPC_DISCIPLINE_GRAPH_H

#include "discipline/clocks.h"
#include "engine/owner/core.h"
#include "engine/layout/graph.h"
#include "engine/owner/row.h"
#include "engine/worker/send.h"

/* ---- open ---- */

const char *hpc_consistency_name(int consistency);
/* HPC_ERR_INVALID if the configuration has no graph. */
int hpc_graph_is_given(const hpc_exchange_config *config, const char *op);
/* HPC_OK if folds may miss some inputs. Refuses rules with their own fold function, and negative weights. by: the
 * discipline, for the error. */
int hpc_graph_check_partial(const hpc_exchange_config *config, const char *by, const char *op);
/* HPC_ERR_CONFIG if fold and apply are two calls, and cannot be. */
int hpc_graph_check_split(const hpc_exchange_config *config, const char *op);

/* ---- the owner ---- */

/* Counts the inputs of the neighbours to the step that has just been folded. */
void hpc_graph_count_neighbours(hpc_core *core, const hpc_share *share);

/* A row has its inputs: works it off, or with split folds it, and keeps the mean. All rows of a share are folded. */
int hpc_graph_work_row(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);
void hpc_graph_end_fold(hpc_core *core, hpc_share *share);

/* Opens the clocks of shares whose folds take the updates that are there, by the numbers of pushes: came is the last
 * that is there, applied the newest that was folded, answered the last whose slot is free. Opens the counts of folds,
 * and with split the means. As hpc_discipline.open. */
int hpc_graph_open_clocks(hpc_scheme *sc, const char *op);
/* hpc_discipline's slots: count an input; 0 when its rank has no slot left to have sent it from. With split an input
 * may be empty, and pulls come. */
int hpc_graph_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_graph_other_came(hpc_core *core, hpc_share *share, const hpc_event *event);
/* The same, where came counts an input without an update. */
int hpc_graph_came_besides(hpc_core *core, hpc_share *share, const hpc_event *event, hpc_nothing_came *came);
/* Makes all folds for which it is time, of all shares of a core; returns their number. As hpc_gate.work. */
typedef struct hpc_graph_fold {
    int (*is_time)(const hpc_scheme *sc, const hpc_share *share);
    int (*fold)(hpc_core *core, hpc_share *share); /* nonzero when the exchange has failed */
} hpc_graph_fold;
int hpc_graph_work(hpc_core *core, const hpc_graph_fold *its);

/* hpc_pace.is_late: the last push of rank that is sent to this rank has to be there, of those up to the ticket's less
 * the staleness. */
int hpc_graph_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);

#endif
