/* plan.h - planners, which make plans: parameter servers, node communication graphs, hierarchies of hosts, and trees.
 * hpcomm.h includes it.
 */
#ifndef HPCOMM_PLAN_H
#define HPCOMM_PLAN_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes plan.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* The choice of the NIC, of several, that carries a chunk between a worker and its owner, there and back (PHub,
 * sections 3.2.4 and 4.5). The values make no difference on shm and tcp, which choose no NIC. */
typedef enum hpc_affinity {
    HPC_KEY_BY_CORE = 0,        /* the NIC of the chunk's core, for every worker: core c uses NIC c mod their number */
    HPC_WORKER_BY_INTERFACE = 1 /* the NIC of the pair of ranks, for every chunk */
} hpc_affinity;

/* How many cores each of these servers can have for its threads while every rank of its kernel still has a CPU, and
 * workers one for each thread that they compute with (hpc_config.threads): the same number on all ranks, 0 when none
 * are to spare. A good value for hub.cores, raised to 1, with HPC_PROGRESS_AUTO. */
HPC_API int hpc_spare_cores(const hpc_context *context, const int *workers, int n_workers, const int *servers,
                            int n_servers);

/* How many NICs each of these servers has towards other ranks, at least 1: the same number on all ranks. A good value
 * for hub.interfaces, if hub.cores is a multiple of it. */
HPC_API int hpc_interfaces(const hpc_context *context, const int *servers, int n_servers);

/* 1 if two of these ranks neither map each other's memory nor reach each other by RDMA, as the addresses of all ranks
 * tell, else 0: the same on all ranks. If 1, hub.least is of use. */
HPC_API int hpc_over_sockets(const hpc_context *context, const int *ranks, int n_ranks);

/* HPC_OK if every rank that is sent a key's parameters gets each element once and every edge has its other end; else
 * HPC_ERR_INVALID, and the error names the row that is wrong. */
HPC_API int hpc_plan_check(const hpc_plan *plan, int size);

/* The ranks that apply the rule, in plans with servers (Parameter Flow, section 3.2). Receivers are the workers, or
 * with planner "hosts" one rank of each host, which writes the parameters into the memory of the host's workers. If
 * they apply, owners send the folded update on, in the format of the workers' updates, and each receiver applies the
 * rule to its own parameters and state: all receivers have the same bits, and with float32 the bits that owners would
 * have. Each receiver has an HPC_APPLY row of each chunk; hpc_exchange_set_row is for all of them. This needs BSP,
 * SSP(s) or ASYNC, and a rule without a fold function, which would fold the sum again. */
typedef enum hpc_apply_at {
    HPC_AT_OWNERS = 0,    /* parameters go back to the workers */
    HPC_AT_RECEIVERS = 1, /* the update does */
    HPC_AT_BOTH = 2       /* and an owner that is no receiver applies it too, and keeps parameters */
} hpc_apply_at;

/* A parameter server (PHub, sections 3.2.3 and 3.2.4): keys are cut into chunks, and each chunk goes to the server's
 * core that has the least so far, largest chunks first (within 4/3 of the best partition). With several interfaces a
 * chunk goes to the interface that has the least, and there to the core that has the least; each of the two partitions
 * is within 4/3 of its best. Cores c and d belong to one interface when c mod interfaces == d mod interfaces. */
typedef struct hpc_hub {
    size_t size; /* sizeof(hpc_hub), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    const int *workers, *servers; /* ranks; a rank may be both */
    int n_workers, n_servers;
    int cores;      /* of each server, 1 or more */
    uint64_t chunk; /* bytes of float32, a multiple of 64; 32 KiB */
    int depth;      /* pending updates of one key that a worker may have; 1 */
    int wire;       /* hpc_dtype of the updates: HPC_F32, HPC_F16 or HPC_BF16 */
    int sum;        /* 0: the mean of the workers' updates, 1: their sum */
    int each;       /* 0: updates are applied when all workers' are there, 1: each as it comes, in full; where receivers
                       apply, sums of them */
    int affinity;   /* hpc_affinity; changes no chunk's core */
    int interfaces; /* NICs of each server that the chunks are balanced over, at most its cores; 0: one */
    int codec_out;  /* hpc_dtype of the parameters on their way to workers: HPC_F32, HPC_F16 or HPC_BF16. In 16 bits all
                       workers have rounded values, in float32 arrays; the servers keep masters in full float32 */
    const int *wires;          /* wire of each key by itself, n_keys of them; NULL: wire for all */
    const int *codecs_out;     /* codec_out of each key by itself; NULL: codec_out for all */
    int n_wires, n_codecs_out; /* n_keys where the array is given, else 0 */
    int apply_at;              /* hpc_apply_at; all but HPC_AT_OWNERS need depth 2 or more, under SSP(s) s + 2 */
    uint64_t least;            /* bytes, at most chunk. 0: each chunk of a key but the last has chunk bytes. Above 0: a
                                  key has equal chunks of at most chunk bytes, as many for every core of the servers; if
                                  these would be smaller than least, fewer chunks of at least so many bytes. For ranks
                                  joined by sockets, with chunk 256 KiB and least 16 KiB */
    const int *parents; /* [server][worker], by their numbers: the number of the worker that sends the folds of the
                           server's chunks on to the worker, or -1 for the server itself: a tree for each server
                           (Parameter Flow, section 3.4.2). Not with HPC_AT_OWNERS. NULL: servers send to all */
    int n_parents;      /* n_servers * n_workers where parents is given, else 0 */
} hpc_hub;

/* A node communication graph (ASAP, section 3): every rank averages its own update with its in-neighbours' updates. The
 * phases are the graphs of the steps, in turn; a graph that never changes has one phase. Each rank owns a row of every
 * chunk, fed by itself and its in-neighbours of all phases. */
struct hpc_graph {
    size_t size; /* sizeof(hpc_graph), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    int ranks;             /* all of the job */
    int n_phases;          /* 1 or more */
    const double *weights; /* [phase][rank][from]: the weight at rank of the update of from; 0: no edge; never 0 for
                              rank's own */
    int cores;             /* of each rank, 1 or more */
    uint64_t chunk;        /* bytes of float32, a multiple of 64; 256 KiB */
    int depth;             /* updates of one key that may be on their way to a neighbour; 1 */
    int wire;              /* hpc_dtype of the updates: HPC_F32, HPC_F16 or HPC_BF16 */
    const int *wires;      /* wire of each key by itself, n_keys of them; NULL: wire for all */
    int n_wires;           /* n_keys where wires is given, else 0 */
};

/* Peers (SFB, section 3): each worker has a row of every chunk, which applies the pushes of all workers that send to it
 * to its own parameters. If all send to all (and consistency is BSP), all copies of the parameters are equal. */
typedef struct hpc_peer_to_peer {
    size_t size; /* sizeof(hpc_peer_to_peer), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    const int *workers; /* ranks */
    int n_workers;
    const unsigned char *sends; /* [from][to], by number of worker: whether from sends to to; every worker takes its own
                                   updates. NULL: all send to all */
    const int *parents; /* [from][to], by number of worker: the worker that sends from's pushes to to, which is from or
                           one that passes them on, unopened: a tree for each from. NULL: each sends its own */
    int cores;          /* of each worker, 1 or more */
    uint64_t chunk;     /* bytes of float32, a multiple of 64; 256 KiB */
    int depth;          /* updates of one key that may be on their way to a peer; 2. Under SSP(s) s + 2 at least */
    int wire;           /* hpc_dtype of the updates, or a codec of pieces */
    int sum;            /* 0: each update weighs 1 / n_workers, 1: each weighs 1 */
    const int *wires;   /* wire of each key by itself, n_keys of them; NULL: wire for all */
    int n_wires;        /* n_keys where wires is given, else 0 */
    const int *hosts;   /* by number of worker: a number of its host. One worker of each host has a row of a chunk, and
                           sends the parameters to all workers of the host. Needs BSP, and neither sends nor parents.
                           NULL: each worker has its own row */
    const unsigned char *leads; /* with hosts, by number of worker: whether it may have rows; NULL: all */
} hpc_peer_to_peer;

/* The join of the groups of the outermost level (PHub, section 3.4). */
typedef enum hpc_top {
    HPC_TOP_SHARDED = 0, /* each group sends its fold to the chunk's owner, which sends one answer to each group */
    HPC_TOP_RING = 1     /* the fold goes around the groups until it is at the owner's, and the answer likewise */
} hpc_top;

/* A hierarchy of hosts (PHub, section 3.4). The workers of a host are a group of level 0; hosts may make groups of
 * level 1, such as racks, and so on; the outermost groups make the job. Each chunk has one owner, dealt as a hub's
 * servers are. In every other group one rank folds the group's updates and sends one on; the answer comes to it and
 * goes on to the group. So each chunk crosses the border of a group once in each direction. Each leading rank of a host
 * does this for its part of the chunks. A group of one worker has nothing to fold. A fold takes updates in the order of
 * workers, then the groups' folds, in the order of their first workers. The plan is that of a hub whose servers are the
 * leading ranks if no group has more than one worker, or one group has all. */
typedef struct hpc_hosts {
    size_t size; /* sizeof(hpc_hosts), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    const int *workers; /* ranks */
    int n_workers;
    int n_levels;      /* of groups, 1 to 8 */
    const int *groups; /* [level][worker]: the number of the worker's group, 0 or more; level 0 are the hosts */
    const int *leads; /* by worker: whether it may fold for others, 1 or 0; each host has one at least. NULL: all may */
    int top;          /* hpc_top */
    int cores;        /* of each leading rank, 1 or more; a chunk has the same core at all of its ranks */
    uint64_t chunk;   /* bytes of float32, a multiple of 64; 64 KiB */
    int depth;        /* pending updates of one key that a worker may have; 1 */
    int wire;         /* hpc_dtype of the updates: HPC_F32, HPC_F16 or HPC_BF16 */
    int sum;          /* 0: the mean of the workers' updates, 1: their sum */
    int codec_out;    /* hpc_dtype of the parameters on their way to workers: HPC_F32, HPC_F16 or HPC_BF16 */
    const int *wires; /* wire of each key by itself, n_keys of them; NULL: wire for all */
    const int *codecs_out;     /* codec_out of each key by itself; NULL: codec_out for all */
    int n_wires, n_codecs_out; /* n_keys where the array is given, else 0 */
    int apart;                 /* 1: an owner gets each outermost group's updates by one input, its own group's too, as
                                  SSP and quorums need; not with a ring. 0: it folds its own group's itself */
    int each;                  /* 1: and each of these is the mean or the sum of its group's workers alone, for ASYNC */
    int apply_at; /* hpc_apply_at; owners are receivers here, so BOTH is RECEIVERS. Then depth is 2 at least. Each host
                     has one receiver, for its workers; with apart each worker is one, as SSP needs */
    uint64_t least; /* as hpc_hub has it, for the cores of all leading ranks */
} hpc_hosts;

/* A broadcast over a tree (Parameter Flow, section 3.4): the root's pushes become every rank's parameters, by rule
 * average, and each rank relays a chunk to its children as it comes. All ranks push and pull; the others' pushes bring
 * no bytes, and only tell that the parameters of the last step may be written over. A chain has the least to send from
 * any rank, a star the fewest hops. */
typedef struct hpc_tree {
    size_t size; /* sizeof(hpc_tree), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    const int *parents;        /* by rank: the rank that sends to it, or -1 for the root */
    int ranks;                 /* all of the job */
    int cores;                 /* of each rank that has children, 1 or more */
    uint64_t chunk;            /* bytes of float32, a multiple of 64; 128 KiB */
    int depth;                 /* pending updates of one key; 1 */
    int wire;                  /* hpc_dtype of the root's own pushes: HPC_F32, HPC_F16 or HPC_BF16 */
    int codec_out;             /* hpc_dtype of the parameters on their way: HPC_F32, HPC_F16 or HPC_BF16 */
    const int *wires;          /* wire of each key by itself, n_keys of them; NULL: wire for all */
    const int *codecs_out;     /* codec_out of each key by itself; NULL: codec_out for all */
    int n_wires, n_codecs_out; /* n_keys where the array is given, else 0 */
} hpc_tree;

/* Makes a plan by a planner's name, "hub", "graph", "peer_to_peer", "hosts" or "tree". args is its struct of arguments
 * (hpc_hub for "hub"), in which args_init has written the defaults first; size is the struct's.
 *
 *     hpc_hub hub;
 *     hpc_plan_args_init("hub", &hub, sizeof hub);
 *     hub.keys = keys, hub.n_keys = n;
 *     status = hpc_plan_make("hub", &hub, &plan);
 */
HPC_API int hpc_plan_args_init(const char *planner, void *args, size_t size);
HPC_API int hpc_plan_make(const char *planner, const void *args, hpc_plan **plan);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
