/* The tree of a job's ranks: its shape against its definition, for random hosts. */
#include "check.h"
#include "control/tree.h"
#include "ranks.h"

enum { MOST = 300 };

static void make_hosts(int *hosts, int size, int n_hosts, uint64_t *random) {
    int lowest[MOST];
    for (int h = 0; h < n_hosts; h++) lowest[h] = -1;
    for (int r = 0; r < size; r++) {
        const int h = (int)(ranks_random(random) % (uint64_t)n_hosts);
        if (lowest[h] < 0) lowest[h] = r;
        hosts[r] = lowest[h];
    }
}

/* The parent as the definition says it, by counting. */
static int parent_of(const int *hosts, int size, int rank) {
    int list[MOST], n = 0, at = -1;
    const int leads = hosts[rank] == rank;
    for (int r = 0; r < size; r++) {
        if (leads ? hosts[r] != r : hosts[r] != hosts[rank]) continue;
        if (r == rank) at = n;
        list[n++] = r;
    }
    return at == 0 ? -1 : list[(at - 1) / HPC_TREE_FANOUT];
}

static int is_above(const hpc_rank_tree *t, int rank, int top) {
    while (rank >= 0 && rank != top) rank = t->parent[rank];
    return rank == top;
}

static void check_shape(const hpc_rank_tree *t, const int *hosts) {
    int children[HPC_TREE_CHILDREN], seen = 0;
    for (int r = 0; r < t->size; r++) {
        CHECK_EQ(t->parent[r], parent_of(hosts, t->size, r));
        CHECK_EQ(t->order[t->place[r]], r);
        const int n = hpc_rank_tree_children(t, r, children);
        for (int i = 0; i < n; i++) {
            CHECK_EQ(t->parent[children[i]], r);
            CHECK(children[i] > (i > 0 ? children[i - 1] : r));
        }
        seen += n;
        CHECK(n + (r > 0) <= 15);
    }
    CHECK_EQ(seen, t->size - 1);
}

static void check_ways(const hpc_rank_tree *t) {
    for (int a = 0; a < t->size; a++) {
        int under = 0;
        for (int b = 0; b < t->size; b++) {
            CHECK_EQ(hpc_rank_tree_is_under(t, b, a), is_above(t, b, a));
            under += is_above(t, b, a);
            int at = a, steps = 0;
            while (at != b && steps++ < 40) at = hpc_rank_tree_next(t, at, b);
            CHECK_EQ(at, b);
        }
        CHECK_EQ(t->count[a], under);
    }
}

static void random_hosts(void) {
    uint64_t random = 3, before = 0;
    int hosts[MOST];
    hpc_rank_tree t;
    for (int i = 0; i < 150; i++) {
        const int size = i < 70 ? i + 1 : 1 + (int)(ranks_random(&random) % MOST);
        make_hosts(hosts, size, 1 + (int)(ranks_random(&random) % (uint64_t)size), &random);
        CHECK_OK(hpc_rank_tree_make(&t, size, hosts));
        check_shape(&t, hosts);
        if (size < 100) check_ways(&t);
        CHECK(t.digest != before);
        before = t.digest;
        hpc_rank_tree_free(&t);
    }
}

/* So large that a quadratic step would not end in the test's time. */
static void many_ranks(void) {
    enum { SIZE = 1 << 20 };
    int *hosts = calloc(SIZE, sizeof *hosts), children[HPC_TREE_CHILDREN], depth = 0;
    hpc_rank_tree t;
    CHECK(hosts);
    for (int r = 0; r < SIZE; r++) hosts[r] = r / 64 * 64;
    CHECK_OK(hpc_rank_tree_make(&t, SIZE, hosts));
    for (int r = SIZE - 1; r > 0; r = t.parent[r]) depth++;
    CHECK(depth <= 9); /* 16,384 leaders are 5 levels below rank 0, and 64 ranks 3 */
    CHECK_EQ(hpc_rank_tree_children(&t, 0, children), 14);
    hpc_rank_tree_free(&t);
    free(hosts);
}

static void impossible_hosts(void) {
    static const int wrong[][4] = {{1, 1, 1, 1}, {0, 2, 2, 3}, {0, 0, 1, 1}, {0, -1, 0, 0}, {0, 1, 9, 0}};
    hpc_rank_tree t;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_EQ(hpc_rank_tree_make(&t, 4, wrong[i]), HPC_ERR_INVALID);
        CHECK(t.parent == NULL);
    }
}

int main(void) {
    random_hosts();
    many_ranks();
    impossible_hosts();
    return 0;
}
