/* The two steps of a hierarchy's plan: hosts.c chooses leaders, and hosts_rows.c makes the rows. */
#ifndef HPC_HOSTS_ROWS_H
#define HPC_HOSTS_ROWS_H

#include "plan/plan.h"

/* Workers are named by their places in hpc_hosts.workers. Children are in the order of their first workers. */
struct hpc_group_node {
    int parent; /* -1: none */
    int n_children, n_workers, n_leads;
    int *children;                    /* groups; a host has none */
    int *workers;                     /* all below it, in order */
    int *leads;                       /* the workers that lead */
    const hpc_edge *pushes, *answers; /* from and to all its workers, once a row has needed just these */
};

struct hpc_group_tree {
    struct hpc_group_node *groups; /* children come before their parent; the last is the root */
    int n;
    int *room;
};

/* leaders[g * n + c] leads group g for chunk c. */
struct hpc_leaders {
    const hpc_hosts *h;
    const struct hpc_group_tree *t;
    const hpc_row *chunks;
    int n;
    int *core;         /* by chunk */
    int *leaders;      /* by group and chunk */
    int *in_order;     /* chunks by core, then as they come */
    int *by_size;      /* chunks by core, then size, the largest first */
    int *run, *was;    /* chunks, and their leaders */
    int *filled;       /* by worker; 0 between calls */
    uint64_t *load;    /* by worker: the elements of the chunks that it leads */
    unsigned char *in; /* by worker: whether it is in the group */
};

/* The rows of all chunks, by their leaders. */
int hpc_plan_hosts_rows(const struct hpc_leaders *d, hpc_plan **plan);

#endif
