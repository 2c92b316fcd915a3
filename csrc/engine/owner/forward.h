/* Forwards: sends the output of a row to rows of other ranks. None of these functions waits. */
#ifndef HPC_FORWARD_H
#define HPC_FORWARD_H

#include "engine/scheme.h"

/* hpc_forward_row sends the output of a row's work on a slot to other rows: to all, or only to the rows for one group
 * (hpc_row_reply). hpc_forward_retry sends the forwards that were kept because a ring was full. */
void hpc_forward_row(hpc_core *core, hpc_work *w, int slot, int group);
void hpc_forward_empty(hpc_core *core, hpc_work *w); /* tells the receivers that nothing comes in this fold */
/* Both put bytes that arrive before the next forward. hpc_forward_word puts a word to the rows of one group or of all
 * (HPC_EVERYBODY), at the offset that the function at returns. hpc_forward_note puts into the margin behind the update
 * in a slot (HPC_MARGINS). */
void hpc_forward_word(hpc_core *core, const hpc_work *w, int group, const void *word, size_t nbytes,
                      size_t (*at)(const hpc_scheme *sc, int row));
void hpc_forward_note(hpc_core *core, const hpc_work *w, uint64_t slot, const void *note, size_t nbytes);
void hpc_forward_retry(hpc_core *core);

/* Sends an input that has come to a row on to the ranks of its hops. */
void hpc_forward_input(hpc_core *core, hpc_work *w, const hpc_input *in, int slot);

/* Returns the stage, for counts of traffic, in which other rows send to this row. */
static inline hpc_traffic_stage hpc_row_stage(const hpc_row *row) {
    return row->action == HPC_RELAY ? HPC_TRAFFIC_RELAY : HPC_TRAFFIC_FORWARD;
}

#endif
