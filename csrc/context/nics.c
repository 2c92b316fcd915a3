/* The NICs between pairs of ranks: whether they reach each other by NICs, and by how many. Addresses tell the NICs of
 * each rank, so all ranks find the same for every pair, also for pairs of other ranks. */
#include "context/context.h"

/* The number of rails between two ranks; 0 if no NIC carries their traffic. */
static int rails_between(const hpc_context *c, int a, int b) {
    const hpc_address *self = &c->addresses[a], *peer = &c->addresses[b];
    const char *no_rail;
    char why[64];
    hpc_rail rails[HPC_RAILS];
    const hpc_transport *t = hpc_transport_choose(hpc_transport_names(&c->self), self, peer, why, sizeof why);
    if (t == NULL || !(t->caps & HPC_CAP_NICS)) return 0;
    return hpc_transport_rails(self, peer, rails, &no_rail);
}

int hpc_context_uses_nics(const hpc_context *c, int rank) {
    for (int r = 0; r < c->group.size; r++)
        if (r != rank && rails_between(c, rank, r) > 0) return 1;
    return 0;
}

int hpc_interfaces(const hpc_context *c, const int *servers, int n_servers) {
    int least = n_servers > 0 ? HPC_RAILS : 1;
    if (c == NULL || !c->connected || servers == NULL) return 1;
    for (int s = 0; s < n_servers; s++) {
        int most = 1;
        if (servers[s] < 0 || servers[s] >= c->group.size) return 1;
        for (int r = 0; r < c->group.size; r++) {
            int rails = r != servers[s] ? rails_between(c, servers[s], r) : 0;
            if (rails > most) most = rails;
        }
        if (most < least) least = most;
    }
    return least;
}
