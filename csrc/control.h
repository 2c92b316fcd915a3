/* The control channel: a mesh of sockets that carries collectives, descriptors and the news of who is alive.
 *
 * A service thread reads every socket, so a rank that computes for an hour still answers. A peer's death is told by the
 * kernel: its socket hangs up, or (when a forked child of it keeps the socket open) its pidfd becomes readable. */
#ifndef HPC_CONTROL_H
#define HPC_CONTROL_H

#include "memory.h"
#include "wait.h"

enum { HPC_COOKIE_BYTES = 16, HPC_OP_BYTES = 24 };

typedef struct hpc_control hpc_control;

/* What a rank must know to reach another one's control channel; part of its address. */
typedef struct hpc_control_address {
    unsigned char name[HPC_COOKIE_BYTES];   /* of the socket: anybody on the host can see it */
    unsigned char secret[HPC_COOKIE_BYTES]; /* known to the job alone: whoever connects must show it */
    int64_t pid;
    uint64_t pid_namespace;
} hpc_control_address;

/* Listens and starts the service thread. bell is what peers may ring. */
int hpc_control_open(hpc_group *group, hpc_memory *bell, hpc_control **control);
void hpc_control_address_of(const hpc_control *control, hpc_control_address *address);

/* Connects to every rank; returns when all are connected. */
int hpc_control_connect(hpc_control *control, const hpc_control_address *addresses, double deadline);

/* The bell of a connected peer. */
hpc_bell *hpc_control_bell(const hpc_control *control, int rank);

typedef struct hpc_reply {
    void *data;
    size_t nbytes;
    int fd; /* -1 if none was sent; whoever takes it over sets it to -1 */
} hpc_reply;

/* Whether all ranks must give as many bytes: if they do not, all get HPC_ERR_CONFIG. */
typedef enum hpc_sizes { HPC_EQUAL_SIZES, HPC_OWN_SIZES } hpc_sizes;

/* Collective: gives nbytes (and fd, if not -1) to every rank; replies[r] is what rank r gave, one's own included (but
 * for the fd). op names the collective: ranks that call different ones all get HPC_ERR_CONFIG. When one of them does
 * not come, the ranks no longer agree on what comes next, and every later collective of this rank fails. */
int hpc_control_exchange(hpc_control *control, const char *op, const void *data, size_t nbytes, int fd, hpc_sizes sizes,
                         hpc_reply *replies, double deadline);
void hpc_control_free_replies(hpc_control *control, hpc_reply *replies);

/* Tells the peers (why: NULL for leaving, else the failure) and stops the thread; then free. In a forked child both do
 * nothing but forget. */
void hpc_control_stop(hpc_control *control, const char *why);
void hpc_control_free(hpc_control *control);

#endif
