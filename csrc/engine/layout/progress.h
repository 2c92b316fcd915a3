/* The choice whether threads or the waits of callers work for the cores of this rank. */
#ifndef HPC_PROGRESS_H
#define HPC_PROGRESS_H

#include "engine/scheme.h"

/* Makes the cores and chooses their CPUs. Called before the window exists. asked: an hpc_progress, the user's
 * choice. */
int hpc_progress_choose(hpc_scheme *sc, int asked, const char *op);

/* Returns how many CPUs were dealt together. */
static inline int hpc_progress_dealt(const hpc_progress_choice *choice) {
    return choice->deal.threads + choice->deal.cores;
}

/* Appends the choice and its reason to text, a C string with room for cap bytes. Appends nothing if another scheme's
 * threads work for all cores. */
void hpc_progress_tell(const hpc_scheme *sc, char *text, size_t cap);

#endif
