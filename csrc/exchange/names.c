/* Names of the transports, rules and proxes of this build, by number. */
#include "kernel/rule.h"
#include "transport/transport.h"

const char *hpc_name(int names, int i) {
    switch (names) {
    case HPC_TRANSPORTS:
        return hpc_transport_name(i);
    case HPC_RULES:
        return hpc_rule_name(i);
    case HPC_PROXES:
        return hpc_prox_name(i);
    default:
        return NULL;
    }
}
