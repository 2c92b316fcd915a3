#include "discipline/servers_groups.h"

#include "discipline/servers_bsp.h"
#include "engine/discipline.h"
#include "engine/layout/stages.h"

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

static int is_in(const hpc_scheme *sc, const hpc_edge *edge, int rank) {
    return edge->row < 0 ? edge->rank == rank : hpc_row_is_fed_by(sc, edge->row, rank);
}

static int gets(const hpc_scheme *sc, const hpc_edge *edge, int rank) {
    return edge->row < 0 ? edge->rank == rank : hpc_row_reaches(sc, edge->row, rank);
}

static int lowest(const hpc_scheme *sc, const hpc_edge *edge,
                  int (*holds)(const hpc_scheme *sc, const hpc_edge *edge, int rank)) {
    for (int r = 0; r < sc->context->group.size; r++)
        if (holds(sc, edge, r)) return r;
    return -1;
}

/* Checks that all ranks that get one output of a row belong to one group. */
static int check_output(const hpc_scheme *sc, int row, const hpc_edge *out, const char *op) {
    const int key = sc->plan->rows[row].key, first = lowest(sc, out, gets);
    for (int r = 0; r < sc->context->group.size; r++)
        if (gets(sc, out, r) && hpc_sender_of(sc, key, r) != hpc_sender_of(sc, key, first))
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: row %d sends parameters to ranks %d and %d by one output, and their updates come by "
                            "two inputs: under %s each update is answered by itself",
                            op, row, first, r, sc->discipline->name);
    return HPC_OK;
}

/* Makes a group of the ranks of each input of a row; fails with HPC_ERR_CONFIG if another row of the key has other
 * groups. */
static int find_in_row(const hpc_scheme *sc, int row, const char *op) {
    const hpc_row *its = &sc->plan->rows[row];
    for (int e = 0; e < its->n_in; e++) {
        const int first = lowest(sc, &its->in[e], is_in);
        for (int r = 0; r < sc->context->group.size; r++) {
            int *group = &sc->group_of[(size_t)its->key * (size_t)sc->context->group.size + (size_t)r], taken = 0;
            if (!is_in(sc, &its->in[e], r)) continue;
            for (int before = 0; before < e; before++) taken |= is_in(sc, &its->in[before], r);
            if (taken || (*group >= 0 && *group != first))
                return hpc_fail(HPC_ERR_CONFIG, op,
                                "%s: the update of rank %d comes to row %d %s: under %s each rank is in one group, "
                                "which folds before all rows of a key",
                                op, r, row, taken ? "by two inputs" : "with other ranks than to a row before it",
                                sc->discipline->name);
            *group = first;
        }
    }
    return HPC_OK;
}

int hpc_group_of_row(const hpc_scheme *sc, int row) {
    const hpc_edge there = {.row = row};
    const int relays = sc->plan->rows[row].action == HPC_RELAY;
    return hpc_sender_of(sc, sc->plan->rows[row].key, lowest(sc, &there, relays ? gets : is_in));
}

/* All rows of a share that relays must belong to one group, because the share answers once, when all of them are there.
 * All rows of a share that forwards must belong to one group too, because the share counts its folds together. */
static int check_share(const hpc_scheme *sc, const hpc_share *share, const char *op) {
    for (int i = 1; i < share->n_rows && sc->plan->rows[share->rows[0]].action != HPC_APPLY; i++)
        if (hpc_group_of_row(sc, share->rows[i]) != hpc_group_of_row(sc, share->rows[0]))
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: rows %d and %d, of core %d of rank %d, fold or relay for two groups: under %s a core "
                            "does so for one group of a key",
                            op, share->rows[0], share->rows[i], share->core, share->owner, sc->discipline->name);
    return HPC_OK;
}

int hpc_groups_find_in(hpc_scheme *sc, int (*folds)(const hpc_scheme *sc, int row), const char *op) {
    const size_t n = (size_t)sc->plan->n_keys * (size_t)sc->context->group.size;
    int status = HPC_OK;
    sc->group_of = hpc_scheme_take(sc, n, sizeof *sc->group_of, op);
    if (sc->group_of == NULL) return HPC_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) sc->group_of[i] = -1;
    for (int i = 0; i < sc->plan->n_rows && status == HPC_OK; i++)
        if (folds(sc, i)) status = find_in_row(sc, i, op);
    return status;
}

static int row_applies(const hpc_scheme *sc, int row) {
    return sc->plan->rows[row].action == HPC_APPLY;
}

int hpc_groups_find(hpc_scheme *sc, const char *op) {
    int status = hpc_groups_find_in(sc, row_applies, op);
    for (int i = 0; i < sc->plan->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &sc->plan->rows[i];
        for (int e = 0; e < row->n_out && row->action == HPC_APPLY && status == HPC_OK; e++)
            status = check_output(sc, i, &row->out[e], op);
    }
    for (int s = 0; s < sc->layout.n_shares && status == HPC_OK; s++)
        status = check_share(sc, &sc->layout.shares[s], op);
    return status;
}

/* ---- the ranks that a wait waits for ---- */

static int own_group(const hpc_scheme *sc, int key) {
    return hpc_sender_of(sc, key, sc->context->group.rank);
}

static int is_mate(const hpc_scheme *sc, int key, int rank) {
    return hpc_sender_of(sc, key, rank) == own_group(sc, key);
}

int hpc_groups_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes) {
    return pushes < ticket / 2 && is_mate(sc, key, rank);
}

/* Returns whether a share of this rank applies updates. */
static int applies(const hpc_scheme *sc, const hpc_share *share) {
    return share->owner == sc->context->group.rank && sc->plan->rows[share->rows[0]].action == HPC_APPLY;
}

/* Adds the ranks that send the updates of this rank's group to a share of this rank. */
static int bringers(const hpc_scheme *sc, const hpc_share *share, int *ranks, int n) {
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = hpc_work_of(sc, share->rows[i]);
        for (int e = 0; e < w->row->n_in; e++)
            if (w->inputs[e].lowest == own_group(sc, share->key)) n = hpc_add_rank(ranks, n, w->inputs[e].rank);
    }
    return n;
}

/* Adds the ranks that bring the updates of other groups for which replies to this rank's group wait; returns whether
 * there are any. */
static int add_others(const hpc_scheme *sc, const hpc_pushed *k, const hpc_groups_lack *lack, int *ranks, int *n) {
    int some = 0;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        for (int e = 0; applies(sc, share) && e < hpc_first_work(sc, share)->row->n_in; e++) {
            const hpc_input *in = &hpc_first_work(sc, share)->inputs[e];
            if (!lack->waits_for(sc, share, in)) continue;
            *n = hpc_add_rank(ranks, *n, in->rank);
            some = 1;
        }
    }
    return some;
}

/* Removes this rank from a list that names other ranks too: a relay of this rank may wait for a row of this rank, which
 * waits for one of the others. */
static int without(int *ranks, int n, int me) {
    int left = 0;
    for (int i = 0; i < n && n > 1; i++)
        if (ranks[i] != me) ranks[left++] = ranks[i];
    return n > 1 ? left : n;
}

/* Adds the ranks that a share waits for:
 * - a share of this rank that forwards for its own group: the ranks whose inputs are missing;
 * - any other share, while it waits for other groups: only these groups, because all owners wait for them;
 * - otherwise: the ranks of this rank's group whose updates have not come to this rank's rows, or that left without
 *   closing; and the owner. */
int hpc_groups_missing(const hpc_scheme *sc, int s, uint64_t ticket, const hpc_groups_lack *lack, int *ranks, int n) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_pushed *k = &sc->keys[share->key];
    const int me = sc->context->group.rank, key = share->key, own = own_group(sc, key), row = share->rows[0];
    if (share->owner == me && sc->plan->rows[row].action == HPC_FORWARD)
        return hpc_group_of_row(sc, row) == own ? hpc_whole_missing_in(sc, s, ticket, ranks, n) : n;
    if (add_others(sc, k, lack, ranks, &n)) return n;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *other = &sc->layout.shares[k->shares[i]];
        if (applies(sc, other) && !lack->has_brought(other, own, ticket / 2)) n = bringers(sc, other, ranks, n);
    }
    if (share->owner != me)
        n = hpc_add_rank(ranks, n, share->owner);
    else if (!applies(sc, share))
        n = hpc_whole_missing_in(sc, s, ticket, ranks, n);
    return without(ranks, hpc_add_left(sc, key, ticket, ranks, n), me);
}
