/* Returns the names of this build's transports, rules and proxes, by number. */
#include "kernel/rule.h"
#include "transport/transport.h"

const char *hpc_name(int names, int i) {
    switch (names) {
    case HPC_TRANSPORTS:
        return hpc_transport_name(i, 0, 0);
    case HPC_DEFAULT_TRANSPORTS:
        return hpc_transport_name(i, 0, HPC_CAP_ONE_PROCESS);
    case HPC_MAPPED_TRANSPORTS:
        return hpc_transport_name(i, HPC_CAP_PEER_VIEW, 0);
    case HPC_SOCKET_TRANSPORTS:
        return hpc_transport_name(i, 0, HPC_CAP_ONE_HOST | HPC_CAP_NICS);
    case HPC_RULES:
        return hpc_rule_name(i);
    case HPC_PROXES:
        return hpc_prox_name(i);
    default:
        return NULL;
    }
}
