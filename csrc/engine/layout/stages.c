/* Stages: a row may send its output to other rows. So an update may pass several rows before it reaches the row that
 * applies it, and parameters may pass several relays before a worker has them. This file finds, from the plan alone,
 * which ranks' pushes reach each row and which ranks the row's result reaches.
 *
 * A share answers only the ranks on the edges of its rows, and a worker waits for the shares that write its parameters.
 * If the rows that read the worker's update send, over any number of rows, to such a share, that share's answer proves
 * that the update was read. Otherwise the share that reads the update answers the worker too, and the worker waits for
 * it.
 *
 * A row that only keeps a master, and sends nothing on, answers all ranks whose updates reach it: they count as its
 * receivers.
 *
 * A row's forward is written into the receiver's slot, and the row's next fold overwrites it. This is safe if some rank
 * that feeds the row gets the result made from that slot, because the rank pushes again only after it has the result.
 * Other plans are refused. */
#include "engine/layout/stages.h"

#include <stdlib.h>
#include <string.h>

#include "engine/discipline.h"

static const hpc_edge *find_edge(const hpc_edge *edges, int n, int rank) {
    for (int e = 0; e < n; e++)
        if (edges[e].rank == rank && edges[e].row < 0) return &edges[e];
    return NULL;
}

const hpc_edge *hpc_row_input(const hpc_row *row, int rank) {
    return find_edge(row->in, row->n_in, rank);
}

int hpc_row_has_input(const hpc_row *row, int rank) {
    return find_edge(row->in, row->n_in, rank) != NULL;
}

int hpc_row_has_output(const hpc_row *row, int rank) {
    return find_edge(row->out, row->n_out, rank) != NULL;
}

int hpc_row_sends_to_rows(const hpc_row *row) {
    for (int e = 0; e < row->n_out; e++)
        if (row->out[e].row >= 0) return 1;
    return 0;
}

/* An edge from a row weighs as much as all pushes that the row folds. */
double hpc_edge_mass(const hpc_scheme *sc, const hpc_edge *edge) {
    return edge->weight * (edge->row < 0 ? 1 : sc->layout.stages.masses[edge->row]);
}

/* On a graph no input counts as empty, because the weights of a step may differ from the plan's. */
int hpc_input_is_empty(const hpc_scheme *sc, const hpc_edge *edge) {
    return edge->row < 0 && edge->weight == 0 && sc->graph == NULL;
}

/* ---- sets of ranks ---- */

static uint64_t *set_of(uint64_t *sets, const hpc_stages *st, int row) {
    return sets + (size_t)row * st->words;
}

static void add_ranks(uint64_t *set, const hpc_edge *edges, int n) {
    for (int e = 0; e < n; e++)
        if (edges[e].row < 0) set[edges[e].rank / 64] |= (uint64_t)1 << edges[e].rank % 64;
}

static void add_set(const hpc_stages *st, uint64_t *to, const uint64_t *from) {
    for (size_t k = 0; k < st->words; k++) to[k] |= from[k];
}

static int has_rank(const uint64_t *sets, const hpc_stages *st, int row, int rank) {
    return (int)(sets[(size_t)row * st->words + (size_t)rank / 64] >> rank % 64 & 1);
}

static int meet(const hpc_stages *st, int feeds, int gets) {
    for (size_t k = 0; k < st->words; k++)
        if (st->feeders[(size_t)feeds * st->words + k] & st->receivers[(size_t)gets * st->words + k]) return 1;
    return 0;
}

/* ---- find ---- */

/* Orders the rows so that each comes after the rows that send to it. A plan has no cycle. */
static void sort_rows(const hpc_plan *plan, int *missing, int *order) {
    int n = 0;
    for (int i = 0; i < plan->n_rows; i++) {
        missing[i] = 0;
        for (int e = 0; e < plan->rows[i].n_in; e++) missing[i] += plan->rows[i].in[e].row >= 0;
        if (missing[i] == 0) order[n++] = i;
    }
    for (int at = 0; at < n; at++) {
        const hpc_row *row = &plan->rows[order[at]];
        for (int e = 0; e < row->n_out; e++)
            if (row->out[e].row >= 0 && --missing[row->out[e].row] == 0) order[n++] = row->out[e].row;
    }
}

static void spread(const hpc_plan *plan, hpc_stages *st, const int *order) {
    for (int i = 0; i < plan->n_rows; i++) {
        add_ranks(set_of(st->feeders, st, i), plan->rows[i].in, plan->rows[i].n_in);
        add_ranks(set_of(st->receivers, st, i), plan->rows[i].out, plan->rows[i].n_out);
    }
    for (int at = 0; at < plan->n_rows; at++) {
        int i = order[at];
        const hpc_row *row = &plan->rows[i];
        for (int e = 0; e < row->n_in; e++) /* rows earlier in the order have theirs already */
            st->masses[i] += row->in[e].weight * (row->in[e].row < 0 ? 1 : st->masses[row->in[e].row]);
        for (int e = 0; e < row->n_out; e++) {
            int to = row->out[e].row;
            if (to < 0) continue;
            add_set(st, set_of(st->feeders, st, to), set_of(st->feeders, st, i));
            if (plan->rows[to].action == HPC_RELAY) st->hops[to] = st->hops[i] + 1;
            if (st->hops[to] > st->most_hops) st->most_hops = st->hops[to];
        }
        if (row->n_out == 0) add_set(st, set_of(st->receivers, st, i), set_of(st->feeders, st, i));
    }
    for (int at = plan->n_rows - 1; at >= 0; at--) {
        int i = order[at];
        for (int e = 0; e < plan->rows[i].n_out; e++)
            if (plan->rows[i].out[e].row >= 0)
                add_set(st, set_of(st->receivers, st, i), set_of(st->receivers, st, plan->rows[i].out[e].row));
    }
}

static int check_slots(const hpc_plan *plan, const hpc_stages *st, const char *op) {
    for (int i = 0; i < plan->n_rows; i++)
        for (int e = 0; e < plan->rows[i].n_out; e++) {
            int to = plan->rows[i].out[e].row;
            if (to < 0 || meet(st, i, to)) continue;
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: row %d sends to row %d, but no rank that gets the parameters of that row pushes to "
                            "row %d: nothing would tell when its slot is free",
                            op, i, to, i);
        }
    return HPC_OK;
}

/* Without edges between rows the edges to ranks suffice, and nothing is computed here. */
int hpc_stages_find(hpc_scheme *sc, const char *op) {
    const hpc_plan *plan = sc->plan;
    hpc_stages *st = &sc->layout.stages;
    size_t rows = (size_t)plan->n_rows;
    for (int i = 0; i < plan->n_rows; i++) st->many |= hpc_row_sends_to_rows(&plan->rows[i]);
    if (!st->many) return HPC_OK;
    st->words = ((size_t)sc->context->group.size + 63) / 64;
    st->feeders = calloc(rows * st->words, sizeof *st->feeders);
    st->receivers = calloc(rows * st->words, sizeof *st->receivers);
    st->masses = calloc(rows, sizeof *st->masses);
    st->hops = calloc(rows, sizeof *st->hops);
    int *missing = malloc(rows * sizeof *missing), *order = malloc(rows * sizeof *order), status = HPC_OK;
    if (st->feeders == NULL || st->receivers == NULL || st->masses == NULL || st->hops == NULL || missing == NULL ||
        order == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the stages of %zu rows", op, rows);
    } else {
        sort_rows(plan, missing, order);
        spread(plan, st, order);
        status = check_slots(plan, st, op);
    }
    free(missing);
    free(order);
    return status;
}

void hpc_stages_free(hpc_scheme *sc) {
    free(sc->layout.stages.feeders);
    free(sc->layout.stages.receivers);
    free(sc->layout.stages.masses);
    free(sc->layout.stages.hops);
}

/* ---- questions ---- */

int hpc_row_is_fed_by(const hpc_scheme *sc, int row, int rank) {
    const hpc_stages *st = &sc->layout.stages;
    return st->many ? has_rank(st->feeders, st, row, rank) : hpc_row_has_input(&sc->plan->rows[row], rank);
}

int hpc_row_reaches(const hpc_scheme *sc, int row, int rank) {
    const hpc_stages *st = &sc->layout.stages;
    return st->many ? has_rank(st->receivers, st, row, rank) : hpc_row_has_output(&sc->plan->rows[row], rank);
}

/* The rows of a chunk are adjacent in the plan. */
int hpc_row_is_copy(const hpc_scheme *sc, int row, int step) {
    const hpc_row *rows = sc->plan->rows, *own = &rows[row];
    for (int i = row + step; i >= 0 && i < sc->plan->n_rows; i += step) {
        if (rows[i].key != own->key || rows[i].offset != own->offset) return 0;
        if (rows[i].action == HPC_APPLY) return own->action == HPC_APPLY;
    }
    return 0;
}

int hpc_row_has_mean_of(const hpc_scheme *sc, int row, int rank) {
    if (!hpc_row_is_copy(sc, row, -1) && !hpc_row_is_copy(sc, row, 1)) return 1;
    return sc->plan->rows[row].n_out > 0 && hpc_row_reaches(sc, row, rank);
}

int hpc_row_gives_mean(const hpc_scheme *sc, int row, int rank) {
    return hpc_row_is_fed_by(sc, row, rank) && hpc_row_has_mean_of(sc, row, rank);
}

/* Calls the function holds for the rows of a share until it returns nonzero. Skips rows that have the same edges as the
 * row before, as most rows of a hub have. */
typedef int holding(const hpc_scheme *sc, int row, int rank);

static inline int some_row(const hpc_scheme *sc, const hpc_share *share, int rank, holding *holds) {
    const hpc_row *before = NULL;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[share->rows[i]];
        if (before != NULL && before->in == row->in && before->out == row->out) continue;
        if (holds(sc, share->rows[i], rank)) return 1;
        before = row;
    }
    return 0;
}

int hpc_feeds_share(const hpc_scheme *sc, const hpc_share *share, int rank) {
    return some_row(sc, share, rank, hpc_row_is_fed_by);
}

static int is_fed_by_stages(const hpc_scheme *sc, int row, int rank) {
    const hpc_edge *push = hpc_row_input(&sc->plan->rows[row], rank);
    return hpc_row_is_fed_by(sc, row, rank) && (push == NULL || hpc_edge_via(push) >= 0);
}

int hpc_feeds_share_by_stages(const hpc_scheme *sc, const hpc_share *share, int rank) {
    return some_row(sc, share, rank, is_fed_by_stages);
}

static int is_of_row(const hpc_scheme *sc, int row, int rank) {
    return hpc_row_is_fed_by(sc, row, rank) || hpc_row_has_output(&sc->plan->rows[row], rank);
}

int hpc_share_involves(const hpc_scheme *sc, const hpc_share *share, int rank) {
    return (sc->discipline->traits & HPC_INVOLVES_ALL) || some_row(sc, share, rank, is_of_row);
}

static int is_output(const hpc_scheme *sc, int row, int rank) {
    return hpc_row_has_output(&sc->plan->rows[row], rank);
}

static int is_answered(const hpc_scheme *sc, int row, int rank) {
    const hpc_row *r = &sc->plan->rows[row];
    const hpc_stages *st = &sc->layout.stages;
    if (r->n_out == 0) return has_rank(st->feeders, st, row, rank);
    return hpc_row_has_output(r, rank) || (hpc_row_has_input(r, rank) && !has_rank(st->receivers, st, row, rank));
}

/* If owners answer all workers, relays only pass parameters on. */
static int is_awaited_from_all(const hpc_scheme *sc, const hpc_share *share, int rank) {
    int action = sc->plan->rows[share->rows[0]].action;
    return action != HPC_FORWARD && (action != HPC_RELAY || some_row(sc, share, rank, is_output)) &&
           hpc_share_involves(sc, share, rank);
}

int hpc_share_is_awaited_by(const hpc_scheme *sc, const hpc_share *share, int rank) {
    if (sc->layout.stages.many && (sc->discipline->traits & HPC_ANSWERS_ALL))
        return is_awaited_from_all(sc, share, rank);
    return sc->layout.stages.many ? some_row(sc, share, rank, is_answered) : hpc_share_involves(sc, share, rank);
}

/* A forward has been sent once its owner has the parameters made from it, on each path. For other rows the owner knows
 * only that the row is done, and only if the row answers the owner. Even then a forward to a relay may have been kept
 * because a ring was full. */
int hpc_row_outlasts_pulls(const hpc_scheme *sc, int row) {
    const hpc_row *r = &sc->plan->rows[row];
    const hpc_stages *st = &sc->layout.stages;
    if (!st->many) return 0;
    if (r->action != HPC_FORWARD) return !is_answered(sc, row, r->owner);
    if ((sc->discipline->traits & HPC_ANSWERS_ALL) && hpc_row_is_fed_by(sc, row, r->owner))
        return 0; /* all shares have answered its pull */
    for (int e = 0; e < r->n_out; e++)
        if (!has_rank(st->receivers, st, r->out[e].row, r->owner)) return 1;
    return 0;
}

int hpc_share_answers(const hpc_scheme *sc, const hpc_share *share, int rank) {
    int tells_itself = sc->layout.stages.many && sc->plan->rows[share->rows[0]].action == HPC_FORWARD;
    return (tells_itself && rank == share->owner) || hpc_share_is_awaited_by(sc, share, rank);
}
