/* The RDMA ports of this rank, and their addresses for its peers. This header uses no type of libibverbs, so builds
 * without rdma-core's headers include it too; transport/verbs/device.h has the rest. */
#ifndef HPC_DEVICE_H
#define HPC_DEVICE_H

#include <stdint.h>

#include "base/status.h"

enum { HPC_RAILS = 8 }; /* most ports of a rank that are used */

typedef enum hpc_fabric { HPC_FABRIC_NONE = 0, HPC_FABRIC_INFINIBAND = 1, HPC_FABRIC_ROCE = 2 } hpc_fabric;

/* Why a rank has no port. The rank sends it in its address, so that every other rank can report it. */
typedef enum hpc_no_verbs {
    HPC_VERBS_READY = 0,
    HPC_VERBS_NOT_ALLOWED, /* the rank's HPCOMM_TRANSPORT leaves verbs out */
    HPC_VERBS_NOT_BUILT,   /* the build had no rdma-core headers */
    HPC_VERBS_NO_LIBRARY,  /* no libibverbs.so.1 */
    HPC_VERBS_NO_DEVICE,   /* no device, or none that HPCOMM_DEVICES allows */
    HPC_VERBS_NO_ACCESS,   /* no device can be opened */
    HPC_VERBS_NO_PORT      /* no port is active and has an address */
} hpc_no_verbs;

typedef struct hpc_port_address {
    unsigned char gid[16];
    uint16_t lid;
    uint8_t fabric; /* hpc_fabric */
    uint8_t prefix; /* the number of leading gid bits that name the subnet: 120 for ::ffff:10.77.0.1/24 */
    uint8_t mtu;    /* enum ibv_mtu: 5 is 4096 */
    uint8_t global; /* InfiniBand: the port needs a global route even inside its subnet */
    int16_t node;   /* NUMA node on the rank's host; -1 if unknown */
} hpc_port_address;

typedef struct hpc_device_address {
    int32_t state; /* hpc_no_verbs */
    int32_t n;
    hpc_port_address ports[HPC_RAILS];
} hpc_device_address;

/* Returns a predicate about the rank, such as "has no libibverbs.so.1; apt-get ..."; the caller puts the subject
 * before it. */
const char *hpc_no_verbs_text(int state);

/* The opened ports of a rank. The pointer is NULL if the rank has no usable port. */
typedef struct hpc_nics hpc_nics;

/* Returns HPC_OK if names is NULL, empty or a valid list ("mlx5_0,mlx5_1:1", "^mlx5_2", "=mlx5_1:1"), otherwise
 * HPC_ERR_CONFIG. */
int hpc_nics_check(const char *names);

/* Returns whether names (NULL: all ports) allow this port. */
int hpc_nics_allow(const char *names, const char *device, int port);

/* Opens the usable ports that names allow. Finding none is no error: *nics is then NULL, and address->state says
 * why. */
void hpc_nics_open(const char *names, hpc_nics **nics, hpc_device_address *address);
void hpc_nics_close(hpc_nics *nics); /* NULL is fine */

/* Returns the NUMA node that all ports share; -1 if they share none. */
int hpc_nics_node(const hpc_nics *nics);

/* Returns a NUMA node from a rank's address. core >= 0: the node of the port that carries this core's chunks when
 * each core uses one NIC. core -1: the node that all ports share. Returns -1 without such a node. */
int hpc_node_of_core(const hpc_device_address *address, int core);

/* Rates a RoCE v2 address: 3 for IPv4, 2 for IPv6, 1 for an address that routers do not forward. */
int hpc_gid_grade(const unsigned char gid[16]);

/* A rail: a pair of ports that reach each other, one of each rank. */
typedef struct hpc_rail {
    int here, there;
} hpc_rail;

/* Finds the rails of two ranks and returns their number. A port is in at most one rail. Both ranks find the same
 * rails; `here` is always the calling rank's port. With routed, RoCE v2 ports of different subnets match too, after
 * the pairs within a subnet. If it returns 0, *why is a sentence, or hpc_no_verbs_text of a rank that has no port. */
int hpc_match_rails(const hpc_device_address *self, const hpc_device_address *peer, int routed,
                    hpc_rail rails[HPC_RAILS], const char **why);

#endif
