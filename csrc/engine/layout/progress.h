/* The choice of threads, or of the waits of its callers, to work for the cores of this rank. */
#ifndef HPC_PROGRESS_H
#define HPC_PROGRESS_H

#include "engine/scheme.h"

/* Makes the cores and chooses their CPUs, before the window is there. asked: hpc_progress. */
int hpc_progress_choose(hpc_scheme *sc, int asked, const char *op);

/* Lets the calling thread, a core's, run where its process may: others keep it from the CPU to which it was pinned.
 * core: an hpc_core. */
void hpc_progress_unpin(void *core);

/* Appends the choice and its reason to text, which is ended by 0 and has room for cap bytes; nothing if the threads of
 * another scheme work for all cores. */
void hpc_progress_tell(const hpc_scheme *sc, char *text, size_t cap);

#endif
