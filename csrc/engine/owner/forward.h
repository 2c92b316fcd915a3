/* Forwards: the output of a row goes on to rows of other ranks. None of these functions waits. */
#ifndef HPC_FORWARD_H
#define HPC_FORWARD_H

#include "engine/scheme.h"

/* Sends the output of a row's work on a slot on to other rows: to all, or to the rows for one group (hpc_row_reply).
 * retry sends the forwards that found no room before. */
void hpc_forward_row(hpc_core *core, hpc_work *w, int slot, int group);
void hpc_forward_empty(hpc_core *core, hpc_work *w); /* tells them that nothing comes this time */
/* Puts bytes to the rows of one group, or of all (HPC_EVERYBODY), before the forward that follows: where at says; or in
 * the margin behind the update in a slot (HPC_MARGINS). */
void hpc_forward_word(hpc_core *core, const hpc_work *w, int group, const void *word, size_t nbytes,
                      size_t (*at)(const hpc_scheme *sc, int row));
void hpc_forward_note(hpc_core *core, const hpc_work *w, uint64_t slot, const void *note, size_t nbytes);
void hpc_forward_retry(hpc_core *core);

/* An input of a row has come: sends it on to the ranks of its hops. */
void hpc_forward_input(hpc_core *core, hpc_work *w, const hpc_input *in, int slot);

/* The stage, for counts of traffic, in which other rows send to a row. */
static inline hpc_traffic_stage hpc_row_stage(const hpc_row *row) {
    return row->action == HPC_RELAY ? HPC_TRAFFIC_RELAY : HPC_TRAFFIC_FORWARD;
}

#endif
