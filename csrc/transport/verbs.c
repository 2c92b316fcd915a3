/* verbs: ranks with RDMA NICs, on InfiniBand or RoCE. */
#include "lane.h"

static int reaches(const hpc_address *self, const hpc_address *peer, const char **why) {
    const char *names = self->transports[0] == 0 ? NULL : self->transports;
    hpc_rail rails[HPC_RAILS];
    hpc_match_rails(&self->devices, &peer->devices, !hpc_transport_allowed(names, &hpc_transport_tcp), rails, why);
    return 0;
}

const hpc_transport hpc_transport_verbs = {.name = "verbs", .reaches = reaches};
