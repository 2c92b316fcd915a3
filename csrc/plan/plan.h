/* Plans inside the library: their limits, private copies, and the digest by which ranks check that they have the same
 * plan. A plan is a list of rows; a row says who folds a chunk (a range of a key's elements), from which inputs, and
 * where the result goes. */
#ifndef HPC_PLAN_H
#define HPC_PLAN_H

#include "hpcomm/hpcomm.h"

enum {
    HPC_PLAN_NUMBERS = 1 << 24, /* most keys, and most rows: numbers that fit into an immediate */
    HPC_PLAN_CORES = 1 << 10,   /* most cores of one rank */
    HPC_PLAN_ALIGN = 16         /* elements: every row but the last of its key ends on a cache line */
};

/* Most elements of all keys together: no sum of sizes made from them overflows. */
#define HPC_PLAN_ELEMENTS ((uint64_t)1 << 48)

/* Makes a copy, with names and edges, for hpc_plan_free. The plan must have passed hpc_plan_check. */
int hpc_plan_copy(const hpc_plan *plan, const char *op, hpc_plan **copy);

/* Returns equal digests for equal plans, wherever they stand in memory: every field counts, no pointer does. The plan
 * must have passed hpc_plan_check. */
uint64_t hpc_plan_digest(const hpc_plan *plan);

/* A plan as one block of memory: the struct, rows, edges, keys and their names. */
typedef struct hpc_plan_block {
    hpc_plan *plan;
    hpc_row *rows;
    hpc_edge *edges;
} hpc_plan_block;

/* Makes a block with the keys and their names; rows and edges are zero. */
int hpc_plan_block_make(const hpc_key *keys, int n_keys, int n_rows, size_t n_edges, const char *op,
                        hpc_plan_block *block);

/* Returns how many elements of the key no chunk may cut apart: 1 to the key's count. Digests and checks use this as the
 * key's unit. */
uint64_t hpc_plan_unit(const hpc_key *key);

/* The sizes by which keys are cut into chunks: see hpc_hub.least. A chunk has whole units of its key and ends on a
 * cache line, so it has more than chunk bytes if one such unit has. */
typedef struct hpc_cutting {
    uint64_t chunk, least; /* bytes */
    int cores;             /* cores of all servers together; used only if least is not 0 */
} hpc_cutting;

/* Sets *n to the number of chunks of all keys; returns HPC_ERR_INVALID if that is more than most. */
int hpc_plan_chunks(const hpc_key *keys, int n_keys, const hpc_cutting *how, int most, const char *op, int *n);

/* Writes key, offset and count of every chunk into rows, copies times each. */
void hpc_plan_cut(const hpc_key *keys, int n_keys, const hpc_cutting *how, int copies, hpc_row *rows);

/* Longest processing time first: chooses bin_of[i] so that the fullest bin holds at most 4/3 of the least possible.
 * Among equally full bins it takes one of the group that holds least in all. Bins b and c belong to one group if b /
 * per_group == c / per_group. */
int hpc_partition(const uint64_t *sizes, int n, int bins, int per_group, int *bin_of);

/* Chooses a bin for each of n chunks; there are servers * cores bins. Each chunk goes to the core that has least so
 * far, the largest chunk first; equal chunks of a key on one core are neighbours. Then small keys fill the cores up,
 * neighbouring keys together. interfaces: the number of NICs of each server; chunks are dealt to NICs before they are
 * dealt to cores. */
int hpc_plan_deal(const hpc_row *chunks, int n, int servers, int cores, int interfaces, int *bin_of);

enum { HPC_PLAN_RUN = 32 << 10 }; /* bytes of neighbouring small keys that go to one rank before the next */

/* Returns whether chunk i of n is a whole key that is small beside mean, the mean load in bytes: such a key is dealt by
 * its neighbours, not by its size. */
int hpc_plan_is_small(const hpc_row *chunks, int n, int i, uint64_t mean);

/* The parts of hpc_plan_check that concern only the keys, or only the affinity. */
int hpc_plan_check_keys(const hpc_key *keys, int n_keys);
int hpc_plan_check_affinity(int affinity);
/* Checks that hubs, graphs and hierarchies share. */
int hpc_plan_check_cut(int cores, uint64_t chunk, int depth);
int hpc_plan_check_least(uint64_t least, uint64_t chunk);
/* For errors, name is the name of one rank, such as "worker", and whose the name of the plan, such as "hub". */
int hpc_plan_check_ranks(const int *ranks, int n, const char *name, const char *whose);
/* all: the codec of all keys. by_key: n codecs, one for each key; if NULL, all is used. name, names: names of the two
 * fields, for errors. */
int hpc_plan_check_codecs(const hpc_key *keys, int n_keys, const char *name, int all, const char *names,
                          const int *by_key, int n);
/* Checks the codecs of updates and of parameters, which all planners with servers have. */
int hpc_plan_check_both(const hpc_key *keys, int n_keys, int wire, const int *wires, int n_wires, int codec_out,
                        const int *codecs_out, int n_codecs_out);
/* receivers.c: hpc_plan_check_apply_at checks an hpc_apply_at; hpc_plan_apply_at turns *plan, by which owners apply,
 * into a plan for it. edges: the n_edges edges of the plan's block. hosts, by rank: the number of its host; the ranks
 * of one host share a receiver. NULL: each rank has its own receiver. */
int hpc_plan_check_apply_at(int apply_at);
int hpc_plan_apply_at(hpc_plan **plan, const hpc_edge *edges, size_t n_edges, int apply_at, const int *hosts);
/* copies.c: the arguments for a plan in which each owner has a row of every chunk, which applies its inputs to its own
 * parameters. */
typedef struct hpc_copies {
    const hpc_key *keys;
    int n_keys;
    const int *owners; /* ranks; NULL: ranks 0 to n_owners - 1 */
    int n_owners, cores, depth;
    uint64_t chunk;
    int wire;
    const int *wires; /* by key; NULL: wire for all */
    /* Writes the in-edges of owner number owner to in, and returns how many there are. in NULL: only counts. */
    int (*feed)(const void *args, int owner, hpc_edge *in);
    const void *args;
} hpc_copies;

int hpc_plan_copies(const hpc_copies *copies, hpc_plan **plan);

/* phases.c: checks every field, and every weight. */
int hpc_graph_check(const hpc_graph *graph);

/* Returns the weight at rank to of the update of rank from; 0: there is no such edge. */
static inline double hpc_graph_weight(const hpc_graph *graph, int phase, int to, int from) {
    const size_t ranks = (size_t)graph->ranks;
    return graph->weights[((size_t)phase * ranks + (size_t)to) * ranks + (size_t)from];
}

/* Returns the rank that passes on the pushes of an in-edge, among peers; -1: no rank does. */
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
