/* The cores of this rank: their threads, or the waits that work for them. */
#ifndef HPC_CORE_H
#define HPC_CORE_H

#include "engine/scheme.h"

void hpc_cores_start(hpc_scheme *sc);
/* Stops the cores of all schemes of the exchange, for good. */
void hpc_cores_stop(hpc_scheme *sc);
/* Waits until no forward of this rank waits for room in a ring: all forwards have left, and are counted. */
int hpc_cores_send_kept(hpc_scheme *sc, const char *op, double timeout);
/* Every row's parameters to its outputs, relays included: of rows whose parameters have passed so many relays. */
void hpc_cores_write(hpc_scheme *sc, int hops);
/* The row or share of this core that an event names; NULL: it has none of that number. */
hpc_work *hpc_core_row(const hpc_core *core, int index);
hpc_share *hpc_core_share(const hpc_core *core, int index);
/* Whether an event brings the bytes that are due; otherwise the exchange fails. A short event would leave old bytes in
 * the slot, which would be folded. what: the kind of thing with number hpc_imm_index, for the error. */
int hpc_core_brings(const hpc_core *core, const hpc_event *event, const char *what, int key, size_t due);
/* Handles HPC_OP_EMPTY: calls came for each input that brings nothing. share: the one of the event's number, or NULL.
 * slot is as the event has it (imm.h). Returns 0 if it is another event, or names no input of this core. */
typedef void hpc_nothing_came(hpc_core *core, hpc_work *w, int slot, int input);
int hpc_core_empty_came(hpc_core *core, const hpc_share *share, const hpc_event *event, hpc_nothing_came *came);
/* Between pause and resume no thread works for the core: its thread, or the wait that works inline, is between two
 * events. The caller pauses one core at a time, is not at work for a core itself, and does not wait meanwhile. */
void hpc_core_pause(hpc_core *core);
void hpc_core_resume(hpc_core *core);

#endif
