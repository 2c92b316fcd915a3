/* Peers whose hosts have several workers. */
#ifndef HPC_PEER_HOSTS_H
#define HPC_PEER_HOSTS_H

#include "plan/plan.h"

/* The plan of peers whose hosts are given; all else is checked. */
int hpc_plan_peer_hosts(const hpc_peer_to_peer *peers, hpc_plan **plan);

#endif
