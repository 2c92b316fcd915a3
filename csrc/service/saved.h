/* Exchanges at hubs that are saved and restored. */
#ifndef HPC_SAVED_H
#define HPC_SAVED_H

#include "service/member.h"

/* Numbers an exchange that was made just now, and restores it if the job resumes (collective). n_keys: the number of
 * its keys. receives: whether the workers apply. If the hubs do not restore it, closes and frees it, and sets *exchange
 * to NULL. */
int hpc_service_made(hpc_service *service, int n_keys, int receives, hpc_exchange **exchange);

#endif
