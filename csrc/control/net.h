/* TCP sockets: a rank's interfaces and addresses, listening, and connecting by a deadline. IPv4 and IPv6. */
#ifndef HPC_NET_H
#define HPC_NET_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/status.h"

enum { HPC_ENDPOINTS = 4, HPC_ENDPOINT_TEXT = 80, HPC_IFNAME = 16, HPC_CONGESTION_BYTES = 16 };

/* An endpoint at which a rank listens; a part of its address. */
typedef struct hpc_endpoint {
    uint8_t family; /* 4, 6, or 0 for none */
    uint8_t prefix; /* leading bits that name its network */
    uint16_t port;  /* in host order */
    uint8_t ip[16]; /* in network order; IPv4 uses the first four bytes */
    char interface[HPC_IFNAME];
} hpc_endpoint;

/* A comma list of interface names. "^" before the list: all but these. "=" before it: whole names; otherwise
 * beginnings. */
typedef struct hpc_choice {
    int excludes, exact;
    const char *list; /* the names; NULL: none are given */
} hpc_choice;

hpc_choice hpc_choice_of(const char *text);

/* Listens on an ephemeral port of this host; *fd is non-blocking and close-on-exec. Fills endpoints with the
 * addresses that interfaces allows, best first; unused ones get family 0. NULL or "" allows all interfaces but
 * loopback and docker's bridges, and these too if there are no others. interfaces is a comma list: "eth" matches a
 * prefix, "=eth0" a whole name, "^" before it excludes. Returns HPC_ERR_CONFIG if it allows none; the error names
 * the host's interfaces. */
int hpc_net_listen(const char *interfaces, hpc_endpoint endpoints[HPC_ENDPOINTS], int *fd, const char *op);

/* Makes an endpoint of an IP address and a port; returns 0 if they are none. */
int hpc_net_endpoint(const char *ip, int port, hpc_endpoint *endpoint);

/* Fills endpoints for a port at which another part of this process listens: ip alone, or with "0.0.0.0" or "::" the
 * addresses that interfaces allows, as hpc_net_listen does. */
int hpc_net_announce(const char *ip, int port, const char *interfaces, hpc_endpoint endpoints[HPC_ENDPOINTS],
                     const char *op);

/* Listens at one address; an IPv6 one takes no IPv4 callers. Returns such a descriptor, or -1 with errno. */
int hpc_net_listen_at(const hpc_endpoint *endpoint);

int hpc_net_is_loopback(const hpc_endpoint *endpoint);

/* Returns whether the local end of a connected socket is loopback or one of the endpoints. */
int hpc_net_is_local(int fd, const hpc_endpoint endpoints[HPC_ENDPOINTS]);

/* Lists the endpoints of a peer in the order in which to try them; returns how many. First, with same_host, loopback
 * at the port of the peer's first endpoint; then endpoints in a network of one of own; then endpoints with the same
 * interface name as one of own; then the others. */
int hpc_net_candidates(const hpc_endpoint own[HPC_ENDPOINTS], const hpc_endpoint peer[HPC_ENDPOINTS], int same_host,
                       hpc_endpoint candidates[HPC_ENDPOINTS + 2]);

/* Connects by the deadline, a time of hpc_now. Returns HPC_OK with a non-blocking descriptor, HPC_ERR_TIMEOUT or
 * HPC_ERR_TRANSPORT. Records no error; *error is an errno. */
int hpc_net_connect(const hpc_endpoint *to, double deadline, int *fd, int *error);

/* Makes a socket non-blocking and without Nagle's delay. The kernel then gives up a peer that is silent, or takes no
 * bytes, for `silence` seconds; this includes a live peer that does not read for so long. */
void hpc_net_tune(int fd, double silence);

/* Chooses the congestion control, by the kernel's name, of a socket that carries bulk data. With "" the socket keeps
 * the system's, but replaces bbr by cubic, or by reno. Reason: bbr needs many round trips to find a flow's rate
 * again whenever other flows of the link start or stop, and the flows of an exchange do so together. */
void hpc_net_set_congestion(int fd, const char *name);

/* Returns HPC_ERR_CONFIG if this process may not choose name; the error lists the names that it may choose. */
int hpc_net_check_congestion(const char *name, const char *op);

/* Writes an endpoint as text: "10.0.0.2:40001 by eth0", "[fd00::2]:40001 by eth0". */
void hpc_net_text(const hpc_endpoint *endpoint, char text[HPC_ENDPOINT_TEXT]);
/* Writes the other end of a connected socket the same way, without the interface. */
void hpc_net_peer_text(int fd, char text[HPC_ENDPOINT_TEXT]);

/* Waits until fd is ready for these events of poll, or has failed: HPC_OK. HPC_ERR_TIMEOUT at the deadline. */
int hpc_net_await(int fd, short events, double deadline);

/* Send or receive nbytes by the deadline: HPC_OK, HPC_ERR_TIMEOUT, or HPC_ERR_TRANSPORT if the connection broke. */
int hpc_net_send_all(int fd, const void *data, size_t nbytes, double deadline);
int hpc_net_receive_all(int fd, void *data, size_t nbytes, double deadline);

/* From now on such waits of this thread, also in hpc_net_connect and hpc_hello_call, end at once when *end is set;
 * NULL: only at their deadlines. */
void hpc_net_heed(const _Atomic int *end);

#endif
