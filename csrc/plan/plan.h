/* Plans inside the library: their limits, private copies, and the digest by which ranks check that they have the same
 * plan. A plan is a list of rows. A row says which rank folds a chunk (a range of a key's elements), from which inputs,
 * and to which ranks and rows the result goes. */
#ifndef HPC_PLAN_H
#define HPC_PLAN_H

#include "hpcomm/hpcomm.h"

enum {
    HPC_PLAN_NUMBERS = 1 << 24, /* limit of keys, and of rows, whose numbers must fit into the immediate of an event */
    HPC_PLAN_CORES = 1 << 10,   /* most cores of one rank */
    HPC_PLAN_ALIGN = 16         /* elements: every row but the last of its key ends on a cache line */
};

/* Limit of the elements of all keys together, so that no sum of their sizes in bytes overflows. */
#define HPC_PLAN_ELEMENTS ((uint64_t)1 << 48)

/* Makes a copy, with names and edges, which the caller frees by hpc_plan_free. The plan must have passed
 * hpc_plan_check. */
int hpc_plan_copy(const hpc_plan *plan, const char *op, hpc_plan **copy);

/* Returns a digest of all fields of a plan. Addresses do not count, so equal plans have equal digests on all ranks. The
 * plan must have passed hpc_plan_check. */
uint64_t hpc_plan_digest(const hpc_plan *plan);

/* A plan as one block of memory: the struct, rows, edges, keys and their names. */
typedef struct hpc_plan_block {
    hpc_plan *plan;
    hpc_row *rows;
    hpc_edge *edges;
} hpc_plan_block;

/* Allocates a block and fills in the keys and their names; rows and edges are zero. */
int hpc_plan_block_make(const hpc_key *keys, int n_keys, int n_rows, size_t n_edges, const char *op,
                        hpc_plan_block *block);

/* Returns the key's unit: how many consecutive elements no chunk may cut apart, from 1 to the key's count. */
uint64_t hpc_plan_unit(const hpc_key *key);

/* The sizes by which keys are cut into chunks (see hpc_hub.least). A chunk has whole units of its key and ends on a
 * cache line, so it exceeds chunk bytes if its smallest possible size does. */
typedef struct hpc_cutting {
    uint64_t chunk, least; /* bytes */
    int cores;             /* cores of all servers together; used only if least is not 0 */
} hpc_cutting;

/* Sets *n to the number of chunks of all keys. Returns HPC_ERR_INVALID if *n would exceed the argument most. */
int hpc_plan_chunks(const hpc_key *keys, int n_keys, const hpc_cutting *how, int most, const char *op, int *n);

/* Writes key, offset and count of every chunk into rows; each chunk gets as many adjacent rows as copies says. */
void hpc_plan_cut(const hpc_key *keys, int n_keys, const hpc_cutting *how, int copies, hpc_row *rows);

/* Deals n sizes to bins, longest processing time first: chooses bin_of[i] so that the fullest bin holds at most 4/3 of
 * the optimum. Among equally full bins it takes one in the group with the least total load. Bins b and c are in one
 * group if b / per_group == c / per_group. */
int hpc_partition(const uint64_t *sizes, int n, int bins, int per_group, int *bin_of);

/* Chooses a bin, that is a core of a server, for each of n chunks; there are servers * cores bins. The largest chunk
 * comes first, and each chunk goes to the core with the least load so far. Equal chunks of a key on one core are
 * adjacent. Then small keys fill the cores, neighbouring keys together. interfaces: the number of NICs of each server;
 * chunks are dealt to NICs first, then each NIC's chunks to its cores. */
int hpc_plan_deal(const hpc_row *chunks, int n, int servers, int cores, int interfaces, int *bin_of);

enum {
    HPC_PLAN_RUN = 32 << 10
}; /* bytes of neighbouring small keys that go to one rank before the next rank gets some */

/* Returns whether chunk i of n is a whole key that is much smaller than mean, the mean load of a bin in bytes. Such a
 * key is dealt together with its neighbours, not by its size. */
int hpc_plan_is_small(const hpc_row *chunks, int n, int i, uint64_t mean);

/* The parts of hpc_plan_check that concern only the keys, or only the affinity. */
int hpc_plan_check_keys(const hpc_key *keys, int n_keys);
int hpc_plan_check_affinity(int affinity);
/* Checks that hubs, graphs and hierarchies share. */
int hpc_plan_check_cut(int cores, uint64_t chunk, int depth);
int hpc_plan_check_least(uint64_t least, uint64_t chunk);
/* Checks a list of ranks. For errors, name is the word for one rank, such as "worker", and whose the word for the plan,
 * such as "hub". */
int hpc_plan_check_ranks(const int *ranks, int n, const char *name, const char *whose);
/* Checks codecs. all: the codec of all keys, used if by_key is NULL. by_key: n codecs, one for each key. name, names:
 * the names of these two fields, for errors. */
int hpc_plan_check_codecs(const hpc_key *keys, int n_keys, const char *name, int all, const char *names,
                          const int *by_key, int n);
/* Checks the codecs of updates and of parameters, which are arguments of all planners with servers. */
int hpc_plan_check_both(const hpc_key *keys, int n_keys, int wire, const int *wires, int n_wires, int codec_out,
                        const int *codecs_out, int n_codecs_out);
/* Plans whose receivers apply (receivers.c). hpc_plan_check_apply_at checks an hpc_apply_at. hpc_plan_apply_at replaces
 * *plan, whose owners apply, by the plan that apply_at asks for. edges: the n_edges edges of the plan's block.
 * hosts[r]: the number of rank r's host; the ranks of one host share a receiver. If hosts is NULL each rank has its own
 * receiver. */
int hpc_plan_check_apply_at(int apply_at);
int hpc_plan_apply_at(hpc_plan **plan, const hpc_edge *edges, size_t n_edges, int apply_at, const int *hosts);
/* The arguments for a plan in which each owner has a row of every chunk, and each row applies its inputs to its owner's
 * own parameters (copies.c). */
typedef struct hpc_copies {
    const hpc_key *keys;
    int n_keys;
    const int *owners; /* ranks; NULL: ranks 0 to n_owners - 1 */
    int n_owners, cores, depth;
    uint64_t chunk;
    int wire;
    const int *wires; /* by key; NULL: wire for all */
    /* Writes the in-edges of owner number owner into in, unless in is NULL, and returns how many there are. */
    int (*feed)(const void *args, int owner, hpc_edge *in);
    const void *args;
} hpc_copies;

int hpc_plan_copies(const hpc_copies *copies, hpc_plan **plan);

/* phases.c: checks every field, and every weight. */
int hpc_graph_check(const hpc_graph *graph);

/* Returns the weight that rank to gives the update of rank from; 0 if the graph has no such edge. */
static inline double hpc_graph_weight(const hpc_graph *graph, int phase, int to, int from) {
    const size_t ranks = (size_t)graph->ranks;
    return graph->weights[((size_t)phase * ranks + (size_t)to) * ranks + (size_t)from];
}

/* Returns the rank that passes on the pushes of an in-edge among peers; -1 if the pushing rank sends them itself. */
static inline int hpc_edge_via(const hpc_edge *edge) {
    return edge->row < -1 ? -2 - edge->row : -1;
}

/* Returns whether other ranks pass some pushes on. */
int hpc_plan_has_ways(const hpc_plan *plan);

/* Returns the rank that sends an input to the owner of its row. */
static inline int hpc_edge_sender(const hpc_edge *edge) {
    const int via = hpc_edge_via(edge);
    return via >= 0 ? via : edge->rank;
}

/* Returns whether every input of every row is plain float32. */
int hpc_plan_takes_float32(const hpc_plan *plan);

#endif
