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

/* The rule by which hosts with several NICs choose the NIC that carries a chunk between a worker and the chunk's owner,
 * in both directions (PHub, sections 3.2.4 and 4.5). It has no effect on shm and tcp, which choose no NIC. */
typedef enum hpc_affinity {
    HPC_KEY_BY_CORE = 0, /* the NIC of the chunk's core, for every worker: core c uses NIC c mod (number of NICs) */
    HPC_WORKER_BY_INTERFACE = 1 /* the NIC of the pair of ranks, for every chunk */
} hpc_affinity;

/* Returns how many cores (threads) each of these servers can have while every rank on its machine keeps a CPU, and
 * workers keep one for each compute thread (hpc_config.threads); 0 if no CPU is free. The result is the same on all
 * ranks. The larger of the result and 1 is a good hpc_hub.cores with HPC_PROGRESS_AUTO. */
HPC_API int hpc_spare_cores(const hpc_context *context, const int *workers, int n_workers, const int *servers,
                            int n_servers);

/* Returns how many NICs each of these servers has towards other ranks, at least 1; the same on all ranks. The result is
 * a good hpc_hub.interfaces if hpc_hub.cores is a multiple of it. */
HPC_API int hpc_interfaces(const hpc_context *context, const int *servers, int n_servers);

/* Returns 1 if two of these ranks neither map each other's memory nor reach each other by RDMA, judged by the addresses
 * of all ranks, else 0; the same on all ranks. If the result is 1, set hpc_hub.least. */
HPC_API int hpc_over_sockets(const hpc_context *context, const int *ranks, int n_ranks);

/* Checks a plan for size ranks. Returns HPC_OK if every rank that is sent a key's parameters gets each element once,
 * and every edge has its other end; else HPC_ERR_INVALID, and the message names the wrong row. */
HPC_API int hpc_plan_check(const hpc_plan *plan, int size);

/* The ranks that apply the rule, in plans with servers (Parameter Flow, section 3.2). Receivers are the workers, or
 * with planner "hosts" one rank of each host, which writes the parameters into the memory of the host's workers. If
 * receivers apply, owners send them the folded update, in the format of the workers' updates, and each receiver applies
 * the rule to its own parameters and state. All receivers then have the same bits; with float32 these are the bits that
 * owners would have. Each receiver has an HPC_APPLY row of each chunk; set all of them by hpc_exchange_set_row.
 * Receivers need BSP, SSP(s) or ASYNC, and a rule without a fold function, which would fold the sum again. */
typedef enum hpc_apply_at {
    HPC_AT_OWNERS = 0,    /* owners apply; parameters go to the workers */
    HPC_AT_RECEIVERS = 1, /* receivers apply; the folded update goes to them */
    HPC_AT_BOTH = 2       /* receivers apply, and an owner that is no receiver does too, to keep parameters */
} hpc_apply_at;

/* A parameter server (PHub, sections 3.2.3 and 3.2.4). Keys are cut into chunks. Beginning with the largest, each chunk
 * goes to the core, of any server, that has the fewest bytes so far; so the fullest core has at most 4/3 of the bytes
 * of the best partition. With several interfaces a chunk is given to the interface with the fewest bytes, and there to
 * the core with the fewest; each of the two partitions is within 4/3 of its best. Cores c and d belong to one interface
 * if c mod interfaces == d mod interfaces. */
typedef struct hpc_hub {
    size_t size; /* sizeof(hpc_hub), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    const int *workers, *servers; /* ranks; a rank may be in both */
    int n_workers, n_servers;
    int cores;      /* cores of each server, 1 or more; 1 */
    uint64_t chunk; /* bytes of a chunk as float32, a multiple of 64; 32 KiB */
    int depth;      /* how many pending updates of one key a worker may have; 1 */
    int wire;       /* hpc_dtype of the updates: HPC_F32, HPC_F16 or HPC_BF16 */
    int sum;        /* 0: the mean of the workers' updates, 1: their sum */
    int each;     /* 0: all workers' updates are applied together, as their mean or sum; 1: each update is applied as it
                     comes, with weight 1. If receivers apply, owners send sums of updates to them */
    int affinity; /* hpc_affinity; it does not change which core has a chunk */
    int interfaces; /* NICs of each server over which chunks are balanced, at most cores; 0: one */
    int codec_out;  /* hpc_dtype of parameters sent to workers: HPC_F32, HPC_F16 or HPC_BF16. In 16 bits all workers get
                       rounded values, in float32 arrays; the servers keep masters in full float32 */
    const int *wires;          /* the wire of each key, n_keys of them; NULL: wire for all keys */
    const int *codecs_out;     /* the codec_out of each key, n_keys of them; NULL: codec_out for all keys */
    int n_wires, n_codecs_out; /* n_keys where the array is given, else 0 */
    int apply_at;              /* hpc_apply_at; any but HPC_AT_OWNERS needs depth 2 or more, and under SSP(s) s + 2 */
    uint64_t least; /* bytes, at most chunk. 0: all chunks of a key but the last have chunk bytes. Above 0: all chunks
                       of a key are equal, at most chunk bytes, and equally many for every core; if these would have
                       fewer than `least` bytes, there are fewer chunks, with `least` bytes or more. For ranks joined by
                       sockets use a chunk of 256 KiB and a least of 16 KiB */
    const int *parents; /* parents[s][w], for places in servers and workers, a tree for each server s (Parameter Flow,
                           3.4.2): the place of the worker that sends the folds of s on to worker w, or -1 for s itself.
                           Refused with HPC_AT_OWNERS. NULL: each server sends to all workers */
    int n_parents;      /* n_servers * n_workers if parents is given, else 0 */
} hpc_hub;

/* A node communication graph (ASAP, section 3): every rank averages its own update with its in-neighbours' updates. The
 * steps use the graphs of the phases in turn; a graph that never changes has one phase. Each rank owns a row of every
 * chunk; its inputs come from the rank itself and its in-neighbours of all phases. */
struct hpc_graph {
    size_t size; /* sizeof(hpc_graph), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    int ranks;             /* number of ranks, all of the job's */
    int n_phases;          /* 1 or more */
    const double *weights; /* weights[phase][r][q]: the weight that rank r gives to the update of rank q; 0: no edge. A
                              rank's own weight must not be 0 */
    int cores;             /* cores of each rank, 1 or more */
    uint64_t chunk;        /* bytes of a chunk as float32, a multiple of 64; 256 KiB */
    int depth;             /* how many updates of one key may be on the way to a neighbour; 1 */
    int wire;              /* hpc_dtype of the updates: HPC_F32, HPC_F16 or HPC_BF16 */
    const int *wires;      /* the wire of each key, n_keys of them; NULL: wire for all keys */
    int n_wires;           /* n_keys if wires is given, else 0 */
};

/* Peers (SFB, section 3): each worker has a row of every chunk, which applies the pushes of all workers that send to
 * this worker to its own parameters. If all send to all, under BSP, all copies of the parameters are equal. */
typedef struct hpc_peer_to_peer {
    size_t size; /* sizeof(hpc_peer_to_peer), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    const int *workers; /* ranks */
    int n_workers;
    const unsigned char *sends; /* sends[p][q], for places in workers: 1 if worker p sends to worker q, else 0. Every
                                   worker also uses its own updates. NULL: all send to all */
    const int *parents; /* parents[p][q], for places in workers: the place of the worker that sends the pushes of worker
                           p to worker q. It is p, or a worker that passes them on unchanged, so each p has a tree.
                           NULL: each worker sends its own pushes */
    int cores;          /* cores of each worker, 1 or more */
    uint64_t chunk;     /* bytes of a chunk as float32, a multiple of 64; 256 KiB */
    int depth;          /* how many updates of one key may be on the way to a peer; 2. Under SSP(s) at least s + 2 */
    int wire;           /* hpc_dtype of the updates, or a codec of pieces */
    int sum;            /* 0: each update has weight 1 / n_workers; 1: weight 1 */
    const int *wires;   /* the wire of each key, n_keys of them; NULL: wire for all keys */
    int n_wires;        /* n_keys if wires is given, else 0 */
    const int *hosts;   /* hosts[i]: the number of the host of workers[i]. One worker of each host then has a row of a
                           chunk, and writes the parameters for all workers of the host. It needs BSP, with sends and
                           parents NULL. NULL: each worker has its own row */
    const unsigned char *leads; /* used with hosts. leads[i]: 1 if workers[i] may have rows, else 0; NULL: all may */
} hpc_peer_to_peer;

/* How the groups of the outermost level exchange their folds (PHub, section 3.4). */
typedef enum hpc_top {
    HPC_TOP_SHARDED = 0, /* each group sends its fold to the chunk's owner, which sends an answer to each group */
    HPC_TOP_RING = 1     /* fold and answer go around a ring of the groups, to and from the owner's group */
} hpc_top;

/* A hierarchy of hosts (PHub, section 3.4). The workers of a host are a group of level 0; hosts may form groups of
 * level 1, such as racks, and so on; the outermost groups form the job. Each chunk has one owner, chosen as for a hub.
 * In every other group one rank folds the group's updates and sends the fold on; the answer comes to this rank, which
 * passes it on to the group. So each chunk crosses the border of a group once in each direction. This work of a host is
 * split by chunks among its leading ranks. A group of one worker folds nothing. A fold takes updates in the order of
 * workers, then the groups' folds, in the order of their first workers. If no group has more than one worker, or one
 * group has all, the plan is that of a hub with the leading ranks as servers. A server of each rack, which does not
 * work, makes the servers the racks' hubs: hosts fold first, then the hubs, and hubs alone own chunks. */
typedef struct hpc_hosts {
    size_t size; /* sizeof(hpc_hosts), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    const int *workers; /* ranks */
    int n_workers;
    int n_levels;      /* number of levels of groups, 1 to 8 */
    const int *groups; /* groups[level][i]: the number, 0 or more, of the group of workers[i]; level 0 are hosts */
    const int *leads;  /* leads[i]: 1 if workers[i] may fold for others, else 0; each host needs a 1. NULL: all may */
    int top;           /* hpc_top */
    int cores;         /* cores of each leading rank, 1 or more; a chunk has the same core on each of its ranks */
    uint64_t chunk;    /* bytes of a chunk as float32, a multiple of 64; 64 KiB */
    int depth;         /* how many pending updates of one key a worker may have; 1 */
    int wire;          /* hpc_dtype of the updates: HPC_F32, HPC_F16 or HPC_BF16 */
    int sum;           /* 0: the mean of the workers' updates, 1: their sum */
    int codec_out;     /* hpc_dtype of parameters sent to workers: HPC_F32, HPC_F16 or HPC_BF16 */
    const int *wires;  /* the wire of each key, n_keys of them; NULL: wire for all keys */
    const int *codecs_out;     /* the codec_out of each key; NULL: codec_out for all keys */
    int n_wires, n_codecs_out; /* n_keys where the array is given, else 0 */
    int apart;    /* 1: an owner gets the updates of each outermost group, also of its own group, as one input. SSP and
                     quorums need this; HPC_TOP_RING refuses it. 0: the owner itself folds its own group's updates */
    int each;     /* 1: each of these inputs is the mean or the sum of its group's workers alone; ASYNC needs this */
    int apply_at; /* hpc_apply_at. In a hierarchy owners are receivers, so HPC_AT_BOTH means HPC_AT_RECEIVERS. Any but
                     HPC_AT_OWNERS needs depth 2 or more. Each host has one receiver, for its workers; with apart 1,
                     which SSP needs, each worker is a receiver */
    uint64_t least;    /* as in hpc_hub, for the cores of all leading ranks */
    const int *serves; /* serves[i]: 1 if workers[i] only serves: it neither pushes nor pulls, belongs to its
                                    groups from level 1 on, and it and such ranks alone lead these. NULL: all work */
} hpc_hosts;

/* A broadcast over a tree (Parameter Flow, section 3.4): the root's pushes become every rank's parameters, by the rule
 * average, and each rank relays a chunk to its children as it comes. All ranks push and pull; pushes of ranks other
 * than the root carry no bytes, and only say that the parameters of the last step may be overwritten. In a chain no
 * rank sends more than one copy; a star has the fewest hops. */
typedef struct hpc_tree {
    size_t size; /* sizeof(hpc_tree), set by hpc_plan_args_init */
    const hpc_key *keys;
    int n_keys;
    const int *parents;        /* parents[r]: the rank that sends to rank r; -1: rank r is the root */
    int ranks;                 /* number of ranks, all of the job's */
    int cores;                 /* cores of each rank with children, 1 or more */
    uint64_t chunk;            /* bytes of a chunk as float32, a multiple of 64; 128 KiB */
    int depth;                 /* how many updates of one key may be pending; 1 */
    int wire;                  /* hpc_dtype of the root's pushes: HPC_F32, HPC_F16 or HPC_BF16 */
    int codec_out;             /* hpc_dtype of parameters sent to other ranks: HPC_F32, HPC_F16 or HPC_BF16 */
    const int *wires;          /* the wire of each key, n_keys of them; NULL: wire for all keys */
    const int *codecs_out;     /* the codec_out of each key; NULL: codec_out for all keys */
    int n_wires, n_codecs_out; /* n_keys where the array is given, else 0 */
} hpc_tree;

/* Makes a plan with a planner: "hub", "graph", "peer_to_peer", "hosts" or "tree". args is the planner's struct of
 * arguments (hpc_hub for "hub"); hpc_plan_args_init must first write the defaults into it, and its size is the
 * struct's.
 *
 *     hpc_hub hub;
 *     hpc_plan_args_init("hub", &hub, sizeof hub);
 *     hub.keys = keys, hub.n_keys = n;
 *     status = hpc_plan_make("hub", &hub, &plan); */
HPC_API int hpc_plan_args_init(const char *planner, void *args, size_t size);
HPC_API int hpc_plan_make(const char *planner, const void *args, hpc_plan **plan);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
