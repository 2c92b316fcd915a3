#ifndef HPC_REQUEST_H
#define HPC_REQUEST_H

#include "collective/calls.h"

/* Returns the context's calls, which it makes at first. */
int hpc_calls_of(hpc_context *context, const char *op, hpc_calls **calls);
/* Lets all waits of this rank go on with calls, and take letters of messages. */
int hpc_calls_add_task(hpc_calls *calls, const char *op);
/* Does so, and goes on with the request. The caller has not entered. */
int hpc_request_go_on(hpc_request *request);

#endif
