/* The cores of this rank: their threads, or the waits that work for them. */
#ifndef HPC_CORE_H
#define HPC_CORE_H

#include "engine/scheme.h"

int hpc_cores_start(hpc_scheme *sc, const char *op);
/* Stops the cores of all schemes of the exchange for good. */
void hpc_cores_stop(hpc_scheme *sc);
/* Waits until no forward of this rank is kept for lack of room in a ring. All forwards are then sent and counted. */
int hpc_cores_send_kept(hpc_scheme *sc, const char *op, double timeout);
/* Sends the parameters of all rows whose parameters have passed hops relays to the rows' outputs, relays included. */
void hpc_cores_write(hpc_scheme *sc, int hops);
/* Return the row, or the share, of this core whose number is index; NULL if the core has no such row or share. */
hpc_work *hpc_core_row(const hpc_core *core, int index);
hpc_share *hpc_core_share(const hpc_core *core, int index);
/* Returns whether an event carries due bytes. If not, ends the exchange, because a short event would leave old bytes in
 * the slot, which would be folded. The argument what names, for the error, the kind of thing that hpc_imm_index
 * numbers, such as "row". */
int hpc_core_brings(const hpc_core *core, const hpc_event *event, const char *what, int key, size_t due);
/* Handles HPC_OP_EMPTY: calls the function came for each input that has no update. share is the share that the event
 * names, or NULL. slot is the slot that the event names (imm.h). Returns 0 if event is another event or names no input
 * of this core, otherwise 1. */
typedef void hpc_nothing_came(hpc_core *core, hpc_work *w, int slot, int input);
int hpc_core_empty_came(hpc_core *core, const hpc_share *share, const hpc_event *event, hpc_nothing_came *came);
/* Between pause and resume no thread works for the core: the core's thread, or the wait that works inline, stops
 * between two events. The caller must pause only one core at a time. Until it resumes the core it must not work for a
 * core and must not wait. */
void hpc_core_pause(hpc_core *core);
void hpc_core_resume(hpc_core *core);

#endif
