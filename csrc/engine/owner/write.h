/* Sends parameters from a row to its workers: writes each block into mapped memory as it is made, and puts the whole
 * row to workers that are not mapped. */
#ifndef HPC_WRITE_H
#define HPC_WRITE_H

#include "engine/owner/row.h"

/* Sends a row's parameters to one rank, or to all workers. */
enum { HPC_EVERYBODY = -1 };
void hpc_row_send(hpc_core *core, hpc_work *w, int rank);
/* Sends the row's parameters to all outputs, relays included. The relays get no event, and find the parameters in slot
 * 0. A forward sends nothing. */
void hpc_row_publish(hpc_core *core, hpc_work *w);
/* Sends the parameters only to the ranks of one group, directly or through relays, in reply to the group's update in
 * slot. group is the lowest rank of the group. */
void hpc_row_reply(hpc_core *core, hpc_work *w, int group, int slot);

static inline int hpc_goes_to(hpc_receivers to, const hpc_output *out) {
    switch (to.whom) {
    case HPC_TO_ALL:
        return 1;
    case HPC_TO_RANK:
        return out->rank == to.rank;
    case HPC_TO_GROUP:
        return out->lowest == to.rank;
    case HPC_TO_TAKERS:
        return to.takes[out->rank];
    case HPC_TO_NOBODY:
        break;
    }
    return 0;
}
/* Writes a block of parameters to workers whose memory is mapped here. If the row sends encoded parameters, writes the
 * values as decoded, so that all workers have the same bits. */
void hpc_block_write(hpc_core *core, const hpc_work *w, hpc_receivers to, size_t from, size_t n);
/* hpc_row_kind.write of rows that have parameters. */
void hpc_blocks_write(hpc_core *core, const hpc_work *w, hpc_receivers to, int slot);
/* hpc_row_kind.leaving: hpc_params_leaving for rows that have parameters, hpc_input_leaving for rows that send their
 * only input on. */
const void *hpc_params_leaving(const hpc_work *w, int slot);
const void *hpc_input_leaving(const hpc_work *w, int slot);
/* Sends a row's output in a slot: first to other rows, because further ranks wait for these, then to the workers whose
 * memory is not mapped. */
void hpc_row_leave(hpc_core *core, hpc_work *w, hpc_receivers to, int slot);
/* Does the same if the memory of all workers is mapped. */
void hpc_row_leave_mapped(hpc_core *core, hpc_work *w, hpc_receivers to, int slot);

#endif
