/* The tree of a job's ranks, over which collectives travel. Each rank has at most 15 neighbours in it, and rank 0 is
 * its root.
 *
 * The lowest rank of each host is the host's leader. In a heap-ordered tree of fan-out F the parent of element i is
 * element (i - 1) / F. The leaders form one such tree, in rank order, so every edge between two hosts joins leaders.
 * The ranks of a host form another below their leader, in rank order. So a rank is always lower than its children.
 *
 * The functions depend on their arguments alone, and no cost grows faster than the number of ranks. */
#ifndef HPC_CONTROL_TREE_H
#define HPC_CONTROL_TREE_H

#include <stdint.h>

enum { HPC_TREE_FANOUT = 7, HPC_TREE_CHILDREN = 2 * HPC_TREE_FANOUT };

typedef struct hpc_rank_tree {
    int size;
    int *parent;     /* by rank; -1 for rank 0 */
    int *count;      /* by rank: the number of ranks in its subtree, which holds the rank itself */
    int *order;      /* all ranks; the ranks of a subtree follow each other, and begin with its top */
    int *place;      /* by rank: its index in order */
    uint64_t digest; /* of the shape: different trees have different digests, except by chance */
} hpc_rank_tree;

/* Makes the tree. hosts[r] is the lowest rank on the host of rank r. Returns HPC_ERR_INVALID if hosts is impossible,
 * HPC_ERR_MEMORY without memory; then the tree is empty. */
int hpc_rank_tree_make(hpc_rank_tree *tree, int size, const int *hosts);
void hpc_rank_tree_free(hpc_rank_tree *tree);

/* Lists the children of a rank, lowest first, and returns how many there are. */
int hpc_rank_tree_children(const hpc_rank_tree *tree, int rank, int children[HPC_TREE_CHILDREN]);

/* Returns whether rank is in the subtree of top. */
static inline int hpc_rank_tree_is_under(const hpc_rank_tree *tree, int rank, int top) {
    const int at = tree->place[rank] - tree->place[top];
    return at >= 0 && at < tree->count[top];
}

/* Returns the neighbour of `from` on the way to rank `to`; to itself if both are the same. */
int hpc_rank_tree_next(const hpc_rank_tree *tree, int from, int to);

#endif
