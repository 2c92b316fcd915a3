/* RDMA ports that this rank can use, and their addresses for its peers. No type of libibverbs occurs here, so a build
 * without its headers has this file, too (transport/verbs/device.h has the rest). */
#ifndef HPC_DEVICE_H
#define HPC_DEVICE_H

#include <stdint.h>

#include "base/status.h"

enum { HPC_RAILS = 8 }; /* ports of a rank that are used at most */

typedef enum hpc_fabric { HPC_FABRIC_NONE = 0, HPC_FABRIC_INFINIBAND = 1, HPC_FABRIC_ROCE = 2 } hpc_fabric;

/* Why a rank has no port; told to the others, so that each of them can say it. */
typedef enum hpc_no_verbs {
    HPC_VERBS_READY = 0,
    HPC_VERBS_NOT_ALLOWED, /* by the rank's own list of transports */
    HPC_VERBS_NOT_BUILT,   /* without rdma-core's headers */
    HPC_VERBS_NO_LIBRARY,  /* no libibverbs.so.1 */
    HPC_VERBS_NO_DEVICE,   /* or none that config's devices name */
    HPC_VERBS_NO_ACCESS,   /* none that can be opened */
    HPC_VERBS_NO_PORT      /* none active with an address */
} hpc_no_verbs;

typedef struct hpc_port_address {
    unsigned char gid[16];
    uint16_t lid;
    uint8_t fabric; /* hpc_fabric */
    uint8_t prefix; /* leading bits of the gid that are its subnet: for ::ffff:10.77.0.1/24 it is 120 */
    uint8_t mtu;    /* enum ibv_mtu: 5 is 4096 */
    uint8_t global; /* InfiniBand: wants a global route also inside of its subnet */
    int16_t node;   /* NUMA, of the rank's host; -1 if unknown */
} hpc_port_address;

typedef struct hpc_device_address {
    int32_t state; /* hpc_no_verbs */
    int32_t n;
    hpc_port_address ports[HPC_RAILS];
} hpc_device_address;

/* The state of a rank's devices in words, without its subject: "has no libibverbs.so.1; apt-get ...". */
const char *hpc_no_verbs_text(int state);

/* A rank's opened ports; NULL if it has no usable port. */
typedef struct hpc_nics hpc_nics;

/* HPC_ERR_CONFIG unless names is NULL or follows the grammar ("mlx5_0,mlx5_1:1", "^mlx5_2", "=mlx5_1:1"). */
int hpc_nics_check(const char *names);

/* Whether names (NULL: all) allow that port. */
int hpc_nics_allow(const char *names, const char *device, int port);

/* Opens the usable ports that names allow. With none, which is no error, *nics is NULL and address->state says why. */
void hpc_nics_open(const char *names, hpc_nics **nics, hpc_device_address *address);
void hpc_nics_close(hpc_nics *nics); /* NULL is fine */

/* The NUMA node that all ports have in common; -1. */
int hpc_nics_node(const hpc_nics *nics);

/* The same, by a rank's address. core: the node of the port of this core's chunks, if each core has one NIC; -1: the
 * node of all ports. */
int hpc_node_of_core(const hpc_device_address *address, int core);

/* How good a RoCE v2 address is: 3 for IPv4, 2 for IPv6, 1 for one that no router takes. */
int hpc_gid_grade(const unsigned char gid[16]);

/* A pair of ports that reach each other, one of each rank. */
typedef struct hpc_rail {
    int here, there;
} hpc_rail;

/* Finds the rails of two ranks; a port is in at most one rail. Both ranks find the same rails, each with its own end as
 * here. routed: RoCE v2 ports of different subnets match too, after pairs within one subnet. Returns how many; at 0,
 * *why is a sentence, or hpc_no_verbs_text of a rank without a port. */
int hpc_match_rails(const hpc_device_address *self, const hpc_device_address *peer, int routed,
                    hpc_rail rails[HPC_RAILS], const char **why);

#endif
