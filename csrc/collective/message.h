#ifndef HPC_MESSAGE_H
#define HPC_MESSAGE_H

#include "collective/calls.h"

extern const char hpc_send_op[], hpc_recv_op[];
/* op: one of these two. */
int hpc_message_check(const hpc_context *context, const char *op, int peer, int tag, const void *data, uint64_t count,
                      int type);
int hpc_message_make(hpc_calls *calls, const char *op, int peer, int tag, const void *data, uint64_t count, int type,
                     hpc_request **request);

void hpc_messages_go_on(hpc_calls *calls);
void hpc_messages_forget(hpc_calls *calls);

#endif
