/* Parameters go from a row to its workers: each block is written into mapped memory as it is made; workers that are not
 * mapped get a put when the whole row is there. */
#ifndef HPC_WRITE_H
#define HPC_WRITE_H

#include "engine/owner/row.h"

/* Sends a row's parameters to one rank, or to all workers. */
enum { HPC_EVERYBODY = -1 };
void hpc_row_send(hpc_core *core, hpc_work *w, int rank);
/* Sends the row's parameters to all outputs, relays included, which take them without an event, in slot 0. A forward
 * has none to send. */
void hpc_row_publish(hpc_core *core, hpc_work *w);
/* Sends them to the ranks of one group alone, by relays too, in reply to its update in a slot. group: its lowest rank.
 */
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
/* Writes a block of parameters to workers whose memory is mapped here. A row that sends encoded parameters writes the
 * decoded values, so that all workers have the same bits. */
void hpc_block_write(hpc_core *core, const hpc_work *w, hpc_receivers to, size_t from, size_t n);
/* hpc_row_kind.write of rows that have parameters. */
void hpc_blocks_write(hpc_core *core, const hpc_work *w, hpc_receivers to, int slot);
/* hpc_row_kind.leaving of rows that have parameters, and of rows whose only input goes on. */
const void *hpc_params_leaving(const hpc_work *w, int slot);
const void *hpc_input_leaving(const hpc_work *w, int slot);
/* Sends a row's output in a slot: to other rows first, as others wait behind them, and then to the workers whose memory
 * is not mapped. */
void hpc_row_leave(hpc_core *core, hpc_work *w, hpc_receivers to, int slot);
/* The same where the memory of all workers is mapped. */
void hpc_row_leave_mapped(hpc_core *core, hpc_work *w, hpc_receivers to, int slot);

#endif
