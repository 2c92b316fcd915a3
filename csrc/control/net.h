/* TCP sockets: which interfaces and addresses a rank has, listening, and connecting by a deadline. IPv4 and IPv6. */
#ifndef HPC_NET_H
#define HPC_NET_H

#include <stdint.h>
#include <sys/socket.h>

#include "base/status.h"

enum { HPC_ENDPOINTS = 4, HPC_ENDPOINT_TEXT = 80, HPC_IFNAME = 16, HPC_CONGESTION_BYTES = 16 };

/* The endpoint at which a rank listens; travels in its address. */
typedef struct hpc_endpoint {
    uint8_t family; /* 4, 6, or 0 for none */
    uint8_t prefix; /* bits of its network */
    uint16_t port;  /* in host order */
    uint8_t ip[16]; /* in network order; an IPv4 one has the first four */
    char interface[HPC_IFNAME];
} hpc_endpoint;

/* A comma list of names. "^" before the list: all but these; "=" before it: whole names, not beginnings. */
typedef struct hpc_choice {
    int excludes, exact;
    const char *list; /* the names; NULL: none are given */
} hpc_choice;

hpc_choice hpc_choice_of(const char *text);

/* Listens on an ephemeral port of this host and fills in the endpoints that interfaces allows, best first, the rest
 * with family 0: all but loopback and docker's bridges for NULL or "", those too when there is no other. interfaces is
 * a comma list: "eth" by prefix, "=eth0" exactly, "^" before it excludes. HPC_ERR_CONFIG when it allows none; the
 * sentence names the host's interfaces. The descriptor is non-blocking and close-on-exec. */
int hpc_net_listen(const char *interfaces, hpc_endpoint endpoints[HPC_ENDPOINTS], int *fd, const char *op);

/* Listens at one address, which for IPv6 takes no IPv4 callers: a descriptor likewise, or -1 with errno. */
int hpc_net_listen_at(const hpc_endpoint *endpoint);

int hpc_net_is_loopback(const hpc_endpoint *endpoint);

/* Whether the local end of a connected socket is one of the endpoints, or loopback. */
int hpc_net_is_local(int fd, const hpc_endpoint endpoints[HPC_ENDPOINTS]);

/* Finds the endpoints of a peer to try from this host, in this order; returns how many: with same_host loopback at the
 * port of the peer's first endpoint; then endpoints in a network of one of own; then endpoints whose interface has the
 * name of one of own; then the rest. */
int hpc_net_candidates(const hpc_endpoint own[HPC_ENDPOINTS], const hpc_endpoint peer[HPC_ENDPOINTS], int same_host,
                       hpc_endpoint candidates[HPC_ENDPOINTS + 2]);

/* Connects by the deadline (hpc_now's clock). HPC_OK with a non-blocking descriptor, HPC_ERR_TIMEOUT, or
 * HPC_ERR_TRANSPORT; no error is recorded: *error is an errno that says why. */
int hpc_net_connect(const hpc_endpoint *to, double deadline, int *fd, int *error);

/* No delay, non-blocking; keepalive and user timeout such that the kernel gives a peer up that is silent, or takes no
 * bytes, for so many seconds: also a live one that does not read while its window stays shut so long. */
void hpc_net_tune(int fd, double silence);

/* Gives a socket that carries bulk the congestion control that the kernel calls name. For "" the socket keeps the
 * system's, unless that is bbr: then it gets cubic, or reno. The reason: bbr searches for a flow's rate again, over
 * many round trips, whenever other flows of the link have come or gone, and the flows of an exchange come and go
 * together.
 */
void hpc_net_set_congestion(int fd, const char *name);

/* HPC_ERR_CONFIG if this process may not choose name; the sentence lists the names that it may. */
int hpc_net_check_congestion(const char *name, const char *op);

/* "10.0.0.2:40001 by eth0", "[fd00::2]:40001 by eth0". */
void hpc_net_text(const hpc_endpoint *endpoint, char text[HPC_ENDPOINT_TEXT]);
/* The other end of a connected socket, likewise, without interface. */
void hpc_net_peer_text(int fd, char text[HPC_ENDPOINT_TEXT]);

#endif
