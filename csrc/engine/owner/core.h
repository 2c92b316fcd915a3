/* The cores of this rank: their threads, or the waits that work for them. */
#ifndef HPC_CORE_H
#define HPC_CORE_H

#include "engine/scheme.h"

void hpc_cores_start(hpc_scheme *sc);
/* Stops the cores of all schemes of the exchange for good. */
void hpc_cores_stop(hpc_scheme *sc);
/* Waits until no forward of this rank is kept for lack of room in a ring. All forwards are then sent and counted. */
int hpc_cores_send_kept(hpc_scheme *sc, const char *op, double timeout);
/* Sends the parameters of every row to its outputs, relays included. Only rows whose parameters have passed hops
 * relays. */
void hpc_cores_write(hpc_scheme *sc, int hops);
/* Return the row, or share, of this core with the number that an event names; NULL if it has none. */
hpc_work *hpc_core_row(const hpc_core *core, int index);
hpc_share *hpc_core_share(const hpc_core *core, int index);
/* Returns whether an event brings the bytes that are due; if not, ends the exchange, because a short event would leave
 * old bytes in the slot, to be folded. what names the kind of thing with number hpc_imm_index, for the error. */
int hpc_core_brings(const hpc_core *core, const hpc_event *event, const char *what, int key, size_t due);
/* Handles HPC_OP_EMPTY: calls came for each input that brings nothing. share is the share that the event names, or
 * NULL. slot is that of the event (imm.h). Returns 0 if it is another event, or names no input of this core. */
typedef void hpc_nothing_came(hpc_core *core, hpc_work *w, int slot, int input);
int hpc_core_empty_came(hpc_core *core, const hpc_share *share, const hpc_event *event, hpc_nothing_came *came);
/* Between pause and resume no thread works for the core: its thread, or the wait that works inline, is between two
 * events. The caller must pause only one core at a time, must not work for a core itself, and must not wait
 * meanwhile. */
void hpc_core_pause(hpc_core *core);
void hpc_core_resume(hpc_core *core);

#endif
