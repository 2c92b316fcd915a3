/* engine.h - engines: the threads that work for the cores of a rank. hpcomm.h includes it. */
#ifndef HPCOMM_ENGINE_H
#define HPCOMM_ENGINE_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes engine.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* An engine serves the exchanges of all its contexts, which are those of one rank in this process. It has as many
 * threads as the largest of these exchanges has cores here; all exchanges use the same threads, on the same CPUs.
 * Without threads, a wait in one context works for the exchanges of the others too. Contexts use the process's own
 * engine, unless hpc_config.engine names another one. If ranks of a context are threads of one process, each context
 * gets an engine of its own. */
typedef struct hpc_engine hpc_engine;

HPC_API int hpc_engine_create(hpc_engine **engine);
/* Gives the handle back. The engine ends when its last context is freed too. NULL is allowed. */
HPC_API void hpc_engine_free(hpc_engine *engine);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
