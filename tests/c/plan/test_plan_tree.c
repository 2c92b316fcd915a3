/* Plans of broadcasts: who relays to whom, and every refusal. */
#include "check.h"
#include "plan/plan.h"

static const hpc_key keys[2] = {{"a", 1000, 0}, {"b", 5, 0}};

static hpc_tree tree_of(const int *parents, int ranks) {
    hpc_tree t;
    hpc_plan_args_init("tree", &t, sizeof t);
    t.keys = keys, t.n_keys = 2, t.parents = parents, t.ranks = ranks, t.chunk = 1024, t.cores = 2;
    return t;
}

/* Every rank gets the parameters of each chunk from its parent, or is the root; and the root alone takes bytes. */
static void check_plan(const int *parents, int ranks) {
    const hpc_tree t = tree_of(parents, ranks);
    hpc_plan *plan = NULL;
    CHECK_OK(hpc_plan_make("tree", &t, &plan));
    CHECK_OK(hpc_plan_check(plan, ranks));
    for (int r = 0; r < plan->n_rows; r++) {
        const hpc_row *row = &plan->rows[r];
        CHECK_EQ(row->action, parents[row->owner] < 0 ? HPC_APPLY : HPC_RELAY);
        for (int e = 0; e < row->n_out; e++)
            CHECK(row->out[e].rank == row->owner ? row->out[e].row < 0 : parents[row->out[e].rank] == row->owner);
        for (int e = 0; e < row->n_in; e++)
            CHECK(row->in[e].row >= 0 ? row->in[e].rank == parents[row->owner]
                                      : row->in[e].weight == (parents[row->in[e].rank] < 0));
    }
    hpc_plan_free(plan);
}

static void refused(const char *text, hpc_tree t) {
    hpc_plan *plan = NULL;
    CHECK_STATUS(hpc_plan_make("tree", &t, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE(text);
}

int main(void) {
    static const int alone[] = {-1}, chain[] = {1, 2, 3, -1}, star[] = {-1, 0, 0, 0, 0}, some[] = {3, 0, 0, -1, 3, 2};
    check_plan(alone, 1);
    check_plan(chain, 4);
    check_plan(star, 5);
    check_plan(some, 6);
    static const int circle[] = {-1, 2, 3, 1}, self[] = {-1, 1}, two[] = {-1, 0, -1}, none[] = {1, 0}, far[] = {-1, 2};
    hpc_plan *plan = NULL;
    CHECK_STATUS(hpc_plan_make("tree", NULL, &plan), HPC_ERR_INVALID);
    refused("rank 1 does not come from the root 0: its parents go in a circle", tree_of(circle, 4));
    refused("rank 1 does not come from the root 0", tree_of(self, 2));
    refused("ranks 0 and 2 have no parent; a tree has one root", tree_of(two, 3));
    refused("every rank has a parent; a tree has a root (-1)", tree_of(none, 2));
    refused("the parent of rank 1 is 2; must be a rank, 0 to 1, or -1", tree_of(far, 2));
    refused("parents is empty (ranks is 0)", tree_of(far, 0));
    refused("parents is empty", tree_of(NULL, 2));
    hpc_tree t = tree_of(alone, 1);
    t.size = 1;
    refused("tree->size is 1", t);
    t = tree_of(alone, 1);
    t.chunk = 100;
    refused("chunk is 100 bytes", t);
    return 0;
}
