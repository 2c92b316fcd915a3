#include "control/tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* Sets the parents. members[l] counts the ranks of leader l that came so far, and by_number lists the leaders. Returns
 * 0 if hosts is impossible. */
static int find_parents(hpc_rank_tree *t, const int *hosts, int *members, int *by_number, int *first) {
    int leaders = 0;
    for (int r = 0; r < t->size; r++) {
        const int leader = hosts[r];
        if (leader < 0 || leader > r || hosts[leader] != leader) return 0;
        if (leader == r) {
            t->parent[r] = leaders == 0 ? -1 : by_number[(leaders - 1) / HPC_TREE_FANOUT];
            by_number[leaders++] = r;
        }
        members[leader]++;
    }
    /* first[l]: where the list of a host's ranks begins in by_number, which is used again for these lists */
    for (int r = 0, at = 0; r < t->size; r++) {
        if (hosts[r] != r) continue;
        first[r] = at;
        at += members[r];
        members[r] = 0;
    }
    for (int r = 0; r < t->size; r++) {
        const int leader = hosts[r], i = members[leader]++;
        by_number[first[leader] + i] = r;
        if (i > 0) t->parent[r] = by_number[first[leader] + (i - 1) / HPC_TREE_FANOUT];
    }
    return 1;
}

/* Fills in the other members. next[r] is the place of the next subtree below r. */
static void number(hpc_rank_tree *t, int *next) {
    for (int r = 0; r < t->size; r++) t->count[r] = 1;
    for (int r = t->size - 1; r > 0; r--) t->count[t->parent[r]] += t->count[r];
    t->digest = 14695981039346656037u;
    for (int r = 0; r < t->size; r++) {
        t->place[r] = r == 0 ? 0 : next[t->parent[r]];
        if (r > 0) next[t->parent[r]] += t->count[r];
        next[r] = t->place[r] + 1;
        t->order[t->place[r]] = r;
        t->digest = (t->digest ^ (uint64_t)(uint32_t)t->parent[r]) * 1099511628211u; /* FNV-1a, by words */
    }
}

int hpc_rank_tree_make(hpc_rank_tree *t, int size, const int *hosts) {
    const size_t n = (size_t)size;
    int *scratch = calloc(3 * n, sizeof *scratch), status = HPC_ERR_MEMORY;
    *t = (hpc_rank_tree){.size = size};
    t->parent = malloc(4 * n * sizeof *t->parent);
    if (scratch == NULL || t->parent == NULL) goto err;
    t->count = t->parent + n;
    t->order = t->count + n;
    t->place = t->order + n;
    status = HPC_ERR_INVALID;
    if (!find_parents(t, hosts, scratch, scratch + n, scratch + 2 * n)) goto err;
    number(t, scratch);
    free(scratch);
    return HPC_OK;
err:
    free(scratch);
    hpc_rank_tree_free(t);
    return status;
}

void hpc_rank_tree_free(hpc_rank_tree *t) {
    free(t->parent);
    *t = (hpc_rank_tree){.size = 0};
}

int hpc_rank_tree_children(const hpc_rank_tree *t, int rank, int children[HPC_TREE_CHILDREN]) {
    const int end = t->place[rank] + t->count[rank];
    int n = 0;
    for (int at = t->place[rank] + 1; at < end; at += t->count[t->order[at]]) children[n++] = t->order[at];
    return n;
}

int hpc_rank_tree_next(const hpc_rank_tree *t, int from, int to) {
    int children[HPC_TREE_CHILDREN];
    if (from == to) return to;
    if (!hpc_rank_tree_is_under(t, to, from)) return t->parent[from];
    const int n = hpc_rank_tree_children(t, from, children);
    for (int i = 0; i < n; i++)
        if (hpc_rank_tree_is_under(t, to, children[i])) return children[i];
    return -1; /* cannot happen: some child's subtree holds `to` */
}
