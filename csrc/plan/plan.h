/* Plans inside the library: their limits, private copies, and a digest by which ranks agree on one. */
#ifndef HPC_PLAN_H
#define HPC_PLAN_H

#include "hpcomm/hpcomm.h"

enum {
    HPC_PLAN_NUMBERS = 1 << 24, /* keys, and rows: the numbers that fit into an immediate */
    HPC_PLAN_CORES = 1 << 10,   /* of one rank */
    HPC_PLAN_ALIGN = 16         /* elements: every row but the last of its key ends on a cache line */
};

/* Elements of all keys together: no sum of sizes made from them overflows. */
#define HPC_PLAN_ELEMENTS ((uint64_t)1 << 48)

/* Makes a copy, names and edges included, that hpc_plan_free frees. The plan has passed hpc_plan_check. */
int hpc_plan_copy(const hpc_plan *plan, const char *op, hpc_plan **copy);

/* Equal for equal plans, wherever they lie: every field counts, no pointer does. The plan has passed hpc_plan_check. */
uint64_t hpc_plan_digest(const hpc_plan *plan);

/* A plan as one block: the struct, rows, edges, keys and their names. */
typedef struct hpc_plan_block {
    hpc_plan *plan;
    hpc_row *rows;
    hpc_edge *edges;
} hpc_plan_block;

/* The keys and their names are filled in; rows and edges are zero. */
int hpc_plan_block_make(const hpc_key *keys, int n_keys, int n_rows, size_t n_edges, const char *op,
                        hpc_plan_block *block);

/* Elements that no chunk of the key may cut apart, 1 to its count: digests and checks take this for its unit. */
uint64_t hpc_plan_unit(const hpc_key *key);

/* The way in which keys are cut: see hpc_hub.least. A chunk has whole units of its key and ends on a cache line, so it
 * may have more than chunk bytes, if the fewest such units are. */
typedef struct hpc_cutting {
    uint64_t chunk, least; /* bytes */
    int cores;             /* of all servers; counts only where least does */
} hpc_cutting;

/* How many chunks the keys make; HPC_ERR_INVALID when they are more than most. */
int hpc_plan_chunks(const hpc_key *keys, int n_keys, const hpc_cutting *how, int most, const char *op, int *n);

/* Key, offset and count of every chunk, each of them copies times. */
void hpc_plan_cut(const hpc_key *keys, int n_keys, const hpc_cutting *how, int copies, hpc_row *rows);

/* Longest processing time first: chooses bin_of[i] so that the fullest bin holds at most 4/3 of the least possible.
 * Among equally full bins it takes one of the group that holds the least in all. Bins b and c belong to one group when
 * b / per_group == c / per_group. */
int hpc_partition(const uint64_t *sizes, int n, int bins, int per_group, int *bin_of);

/* The bins, servers * cores, of n chunks: each goes to the core that has the least so far, the largest first, and equal
 * chunks of a key that share a core lie together. Small keys fill the cores up, neighbours by neighbours. interfaces:
 * NICs of each server, to which chunks are dealt before the cores. */
int hpc_plan_deal(const hpc_row *chunks, int n, int servers, int cores, int interfaces, int *bin_of);

enum { HPC_PLAN_RUN = 32 << 10 }; /* bytes of neighbouring small keys that one rank gets before another gets some */

/* Whether chunk i of n is the whole of a key that is so small beside the mean load, in bytes, that its place among its
 * neighbours counts for more than its size. */
int hpc_plan_is_small(const hpc_row *chunks, int n, int i, uint64_t mean);

/* The parts of hpc_plan_check that concern the keys, or the affinity, alone. */
int hpc_plan_check_keys(const hpc_key *keys, int n_keys);
int hpc_plan_check_affinity(int affinity);
/* Steps that hubs, graphs and hierarchies share. */
int hpc_plan_check_cut(int cores, uint64_t chunk, int depth);
int hpc_plan_check_least(uint64_t least, uint64_t chunk);
/* name: of one of them, "worker"; whose: "hub". */
int hpc_plan_check_ranks(const int *ranks, int n, const char *name, const char *whose);
/* all: the codec of all keys. by_key: n codecs, one for each key; NULL: all counts. name, names: of the two fields, for
 * the error. */
int hpc_plan_check_codecs(const hpc_key *keys, int n_keys, const char *name, int all, const char *names,
                          const int *by_key, int n);
/* The wires of updates and the codecs of parameters, which all planners with servers have. */
int hpc_plan_check_both(const hpc_key *keys, int n_keys, int wire, const int *wires, int n_wires, int codec_out,
                        const int *codecs_out, int n_codecs_out);
/* receivers.c: checks an hpc_apply_at, and makes *plan, by which owners apply, one for it. edges: the n_edges of the
 * plan's block. hosts: by rank: a number of its host, where the ranks of one have one receiver; NULL: each is one. */
int hpc_plan_check_apply_at(int apply_at);
int hpc_plan_apply_at(hpc_plan **plan, const hpc_edge *edges, size_t n_edges, int apply_at, const int *hosts);
/* copies.c: a plan in which each owner has a row of every chunk, which applies its inputs to its own parameters. */
typedef struct hpc_copies {
    const hpc_key *keys;
    int n_keys;
    const int *owners; /* ranks; NULL: 0 to n_owners - 1 */
    int n_owners, cores, depth;
    uint64_t chunk;
    int wire;
    const int *wires; /* by key; NULL: wire for all */
    /* Writes the in-edges of an owner, by its number, and returns how many there are. in NULL: only counts. */
    int (*feed)(const void *args, int owner, hpc_edge *in);
    const void *args;
} hpc_copies;

int hpc_plan_copies(const hpc_copies *copies, hpc_plan **plan);

/* phases.c: every field, and every weight. */
int hpc_graph_check(const hpc_graph *graph);

/* The weight at rank to of the update of rank from; 0: there is no edge. */
static inline double hpc_graph_weight(const hpc_graph *graph, int phase, int to, int from) {
    const size_t ranks = (size_t)graph->ranks;
    return graph->weights[((size_t)phase * ranks + (size_t)to) * ranks + (size_t)from];
}

/* The rank that passes the pushes of an in-edge on, among peers; -1: none does. */
static inline int hpc_edge_via(const hpc_edge *edge) {
    return edge->row < -1 ? -2 - edge->row : -1;
}

/* Whether other ranks pass some pushes on. */
int hpc_plan_has_ways(const hpc_plan *plan);

/* The rank that sends an input to the owner of its row. */
static inline int hpc_edge_sender(const hpc_edge *edge) {
    const int via = hpc_edge_via(edge);
    return via >= 0 ? via : edge->rank;
}

/* Whether every input of every row is plain float32. */
int hpc_plan_takes_float32(const hpc_plan *plan);

#endif
