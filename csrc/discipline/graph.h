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
/* Returns HPC_OK, or HPC_ERR_INVALID if the configuration has no graph. */
int hpc_graph_is_given(const hpc_exchange_config *config, const char *op);
/* Returns HPC_OK if folds may lack some inputs. Refuses rules with their own fold function, and negative weights. by:
 * the name of the discipline, for the error. */
int hpc_graph_check_partial(const hpc_exchange_config *config, const char *by, const char *op);
/* Returns HPC_OK, or HPC_ERR_CONFIG if the configuration has fold and apply in two calls and cannot have them. */
int hpc_graph_check_split(const hpc_exchange_config *config, const char *op);

/* ---- the owner ---- */

/* Counts the neighbours' inputs to the step that has just been folded. */
void hpc_graph_count_neighbours(hpc_core *core, const hpc_share *share);

/* hpc_graph_work_row does the work of a row whose inputs are there; with split (fold and apply are two calls) it folds
 * the row and keeps the mean. Call hpc_graph_end_fold when all rows of a share are folded. */
int hpc_graph_work_row(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);
void hpc_graph_end_fold(hpc_core *core, hpc_share *share);

/* Makes the clocks of shares whose folds take the updates that are there. Their values are numbers of pushes: came is
 * the last push that is there, applied the newest that was folded, answered the last whose slot is free. Also makes the
 * counts of folds, and with split the means. Used as hpc_discipline.open. */
int hpc_graph_open_clocks(hpc_scheme *sc, const char *op);
/* Slots of hpc_discipline: they count an input, and return 0 if its rank had no free slot from which to send it. With
 * split an input may be empty, and pulls come. */
int hpc_graph_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_graph_other_came(hpc_core *core, hpc_share *share, const hpc_event *event);
/* The same, with came as the function that counts an input without an update. */
int hpc_graph_came_besides(hpc_core *core, hpc_share *share, const hpc_event *event, hpc_nothing_came *came);
/* hpc_graph_work, used as hpc_gate.work: makes the folds that are due, of all shares of a core; returns how many.
 * hpc_graph_fold says when a fold is due and makes it. */
typedef struct hpc_graph_fold {
    int (*is_time)(const hpc_scheme *sc, const hpc_share *share);
    int (*fold)(hpc_core *core, hpc_share *share); /* returns nonzero if the exchange has failed */
} hpc_graph_fold;
int hpc_graph_work(hpc_core *core, const hpc_graph_fold *its);

/* hpc_pace.is_late: rank is late if it has not made the last push that it sends to this rank, of those up to the
 * ticket's push less the staleness. */
int hpc_graph_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);

#endif
