#include "discipline/grouping.h"

#include <stdlib.h>

#include "engine/stages.h"

int hpc_plan_has_stages(const hpc_plan *plan) {
    for (int i = 0; i < plan->n_rows; i++)
        for (int e = 0; e < plan->rows[i].n_out; e++)
            if (plan->rows[i].out[e].row >= 0) return 1;
    return 0;
}

int hpc_plan_find_copy(const hpc_plan *plan, int *other) {
    *other = -1;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->action != HPC_APPLY) continue;
        if (*other >= 0 && plan->rows[*other].key == row->key && plan->rows[*other].offset == row->offset) return i;
        *other = i;
    }
    return -1;
}

static int is_in(const hpc_engine *en, const hpc_edge *edge, int rank) {
    return edge->row < 0 ? edge->rank == rank : hpc_row_is_fed_by(en, edge->row, rank);
}

static int gets(const hpc_engine *en, const hpc_edge *edge, int rank) {
    return edge->row < 0 ? edge->rank == rank : hpc_row_reaches(en, edge->row, rank);
}

static int lowest(const hpc_engine *en, const hpc_edge *edge,
                  int (*holds)(const hpc_engine *en, const hpc_edge *edge, int rank)) {
    for (int r = 0; r < en->context->group.size; r++)
        if (holds(en, edge, r)) return r;
    return -1;
}

/* All ranks of an output are of one group. */
static int check_output(const hpc_engine *en, const int *group_of, int row, const hpc_edge *out, const char *op) {
    const int key = en->plan->rows[row].key, first = lowest(en, out, gets);
    for (int r = 0; r < en->context->group.size; r++)
        if (gets(en, out, r) && hpc_group_of(en, group_of, key, r) != hpc_group_of(en, group_of, key, first))
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: row %d sends parameters to ranks %d and %d by one output, and their updates come by "
                            "two inputs: under %s each update is answered by itself",
                            op, row, first, r, en->discipline->name);
    return HPC_OK;
}

/* The ranks of a row's inputs are groups, which are the same in all rows of the key. */
static int find_in_row(const hpc_engine *en, int *group_of, int row, const char *op) {
    const hpc_row *its = &en->plan->rows[row];
    for (int e = 0; e < its->n_in; e++) {
        const int first = lowest(en, &its->in[e], is_in);
        for (int r = 0; r < en->context->group.size; r++) {
            int *group = &group_of[(size_t)its->key * (size_t)en->context->group.size + (size_t)r], taken = 0;
            if (!is_in(en, &its->in[e], r)) continue;
            for (int before = 0; before < e; before++) taken |= is_in(en, &its->in[before], r);
            if (taken || (*group >= 0 && *group != first))
                return hpc_fail(HPC_ERR_CONFIG, op,
                                "%s: the update of rank %d comes to row %d %s: under %s each rank is in one group, "
                                "which folds before all rows of a key",
                                op, r, row, taken ? "by two inputs" : "with other ranks than to a row before it",
                                en->discipline->name);
            *group = first;
        }
    }
    return HPC_OK;
}

int hpc_group_of_row(const hpc_engine *en, const int *group_of, int row) {
    const hpc_edge there = {.row = row};
    const int relays = en->plan->rows[row].action == HPC_RELAY;
    return hpc_group_of(en, group_of, en->plan->rows[row].key, lowest(en, &there, relays ? gets : is_in));
}

/* All rows of a share that relays belong to one group, because the share answers once, when all of them are there. All
 * rows of a share that forwards belong to one group too, because the share counts its folds together. */
static int check_share(const hpc_engine *en, const int *group_of, const hpc_share *share, const char *op) {
    for (int i = 1; i < share->n_rows && en->plan->rows[share->rows[0]].action != HPC_APPLY; i++)
        if (hpc_group_of_row(en, group_of, share->rows[i]) != hpc_group_of_row(en, group_of, share->rows[0]))
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: rows %d and %d, of core %d of rank %d, fold or relay for two groups: under %s a core "
                            "does so for one group of a key",
                            op, share->rows[0], share->rows[i], share->core, share->owner, en->discipline->name);
    return HPC_OK;
}

int *hpc_groups_new(const hpc_engine *en, const char *op) {
    const size_t n = (size_t)en->plan->n_keys * (size_t)en->context->group.size;
    int *group_of = malloc(n * sizeof *group_of);
    for (size_t i = 0; i < n && group_of != NULL; i++) group_of[i] = -1;
    if (group_of == NULL) hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for groups", op);
    return group_of;
}

int hpc_groups_find(const hpc_engine *en, int *group_of, const char *op) {
    int status = HPC_OK;
    for (int i = 0; i < en->plan->n_rows && status == HPC_OK; i++)
        if (en->plan->rows[i].action == HPC_APPLY) status = find_in_row(en, group_of, i, op);
    for (int i = 0; i < en->plan->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &en->plan->rows[i];
        for (int e = 0; e < row->n_out && row->action == HPC_APPLY && status == HPC_OK; e++)
            status = check_output(en, group_of, i, &row->out[e], op);
    }
    for (int s = 0; s < en->layout.n_shares && status == HPC_OK; s++)
        status = check_share(en, group_of, &en->layout.shares[s], op);
    return status;
}

void hpc_groups_name_outputs(hpc_engine *en, const int *group_of) {
    for (int i = 0; i < en->n_work; i++) {
        hpc_work *w = &en->work[i];
        for (int o = 0; o < w->n_outputs && w->row->action == HPC_APPLY; o++)
            w->outputs[o].lowest = hpc_group_of(en, group_of, w->row->key, w->outputs[o].lowest);
    }
}
