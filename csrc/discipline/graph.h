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
/* Returns HPC_OK if a fold may be made without some inputs. Refuses rules with their own fold function, and negative
 * weights. by: the name of the discipline, for the error. */
int hpc_graph_check_partial(const hpc_exchange_config *config, const char *by, const char *op);
/* Returns HPC_ERR_CONFIG if the configuration asks for fold and apply in two calls and does not support that; otherwise
 * HPC_OK. */
int hpc_graph_check_split(const hpc_exchange_config *config, const char *op);

/* ---- the owner ---- */

/* Counts the neighbours' inputs to the step that has just been folded. */
void hpc_graph_count_neighbours(hpc_core *core, const hpc_share *share);

/* hpc_graph_work_row does the work of a row whose inputs have come. If fold and apply are two calls, it only folds the
 * row and keeps the mean. hpc_graph_end_fold must be called when all rows of a share are folded. */
int hpc_graph_work_row(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);
void hpc_graph_end_fold(hpc_core *core, hpc_share *share);

/* Makes the clocks (hpc_clock) of shares whose folds take the updates that have come by then. The values are numbers of
 * pushes: the field came is the last push that has come, applied the newest that was folded, answered the last whose
 * slot is free. Also makes the counts of folds and, if fold and apply are two calls, the means. Used as
 * hpc_discipline.open. */
int hpc_graph_open_clocks(hpc_scheme *sc, const char *op);
/* Used as hpc_gate.row_came and other_came: count an input, and return 0 if its rank had no free slot from which to
 * send it. If fold and apply are two calls an input may be empty, and pulls come. */
int hpc_graph_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_graph_other_came(hpc_core *core, hpc_share *share, const hpc_event *event);
/* Does the same as hpc_graph_other_came, but counts an input without an update by the function came. */
int hpc_graph_came_besides(hpc_core *core, hpc_share *share, const hpc_event *event, hpc_nothing_came *came);
/* hpc_graph_work makes the folds that are due, of all shares of a core, and returns how many it made; for
 * hpc_gate.work. The functions of hpc_graph_fold say when a fold is due, and make it. */
typedef struct hpc_graph_fold {
    int (*is_time)(const hpc_scheme *sc, const hpc_share *share);
    int (*fold)(hpc_core *core, hpc_share *share); /* returns nonzero if the exchange has failed */
} hpc_graph_fold;
int hpc_graph_work(hpc_core *core, const hpc_graph_fold *its);

/* hpc_pace.is_late. Let n be the number of the ticket's push minus the staleness. rank is late if it has not made its
 * last push, of its pushes 1 to n, that goes to this rank. */
int hpc_graph_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);

#endif
