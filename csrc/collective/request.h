#ifndef HPC_REQUEST_H
#define HPC_REQUEST_H

#include "collective/calls.h"

/* Returns the context's calls, which it makes at first. */
int hpc_calls_of(hpc_context *context, const char *op, hpc_calls **calls);
/* Lets all waits of this rank go on with the call. The caller has not entered. */
int hpc_request_go_on(hpc_request *request);

#endif
