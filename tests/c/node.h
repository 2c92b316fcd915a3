/* node.h - the control channel of one rank by itself, and the group that it needs. */
#ifndef HPC_NODE_H
#define HPC_NODE_H

#include "control/channel.h"
#include "ranks.h"

/* The links of a job. MIXED: ranks of equal parity share a "host". */
typedef enum kinds { ALL_TCP, ALL_UNIX, MIXED } kinds;

typedef struct node {
    rank *r;
    hpc_group group;
    hpc_memory *bell;
    hpc_control *control;
    hpc_control_address all[RANKS_MOST];
    unsigned char links[RANKS_MOST], same_host[RANKS_MOST];
    int hosts[RANKS_MOST];
    hpc_reply replies[RANKS_MOST];
} node;

/* All ranks of the test give nbytes of their own. */
void node_share(rank *r, const void *mine, void *all, size_t nbytes);

/* The first size ranks are the job. */
node *node_open(rank *r, int size, double silence, const char *secret);
/* Does the same; with a port, which is not 0, the node is called at this door of 127.0.0.1. */
node *node_open_at(rank *r, int size, double silence, const char *secret, int door_port);
int node_connect(node *n, kinds kinds, double seconds);
int node_call(node *n, double seconds);                /* with links, same_host and hosts as they are */
node *node_join(rank *r, kinds kinds, double silence); /* both, and must succeed */
void node_leave(node *n, const char *why);             /* why: NULL, or it aborts */

int node_gather(node *n, const char *op, const void *data, size_t nbytes, hpc_sizes sizes, double seconds);
int node_meet(node *n, double seconds);

/* The next collective fails in time because of this rank, and says so with this text. */
void node_expect_gone(node *n, int who, const char *text, double seconds);

/* Time passes; nothing of this rank's own is called. */
void node_idle(double seconds);

/* A bare TCP connection to 127.0.0.last. */
int node_call_port(int last, uint16_t port, int flags);

#endif
