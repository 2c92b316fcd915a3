#include "discipline/graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- open ---- */

const char *hpc_consistency_name(int consistency) {
    static const char *const names[] = {"BSP", "ASYNC", "NOTIFY_ACK", "SSP", "BARRIER"};
    return consistency >= HPC_BSP && consistency <= HPC_BARRIER ? names[consistency] : "unknown";
}

int hpc_graph_is_given(const hpc_exchange_config *f, const char *op) {
    if (f->graph != NULL) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: consistency %s needs a graph; servers know BSP, ASYNC and SSP", op,
                    hpc_consistency_name(f->consistency));
}

int hpc_graph_check_partial(const hpc_exchange_config *f, const char *by, const char *op) {
    const hpc_graph *g = f->graph;
    size_t n = (size_t)g->n_phases * (size_t)g->ranks * (size_t)g->ranks;
    if (hpc_config_own_fold(f) != NULL)
        return hpc_fail(
            HPC_ERR_UNSUPPORTED, op,
            "%s: rule %s has a fold of its own; under %s some inputs may be missing from it: use NOTIFY_ACK "
            "or BSP without a quorum",
            op, hpc_config_own_fold(f)->name, by);
    for (size_t i = 0; i < n; i++)
        if (g->weights[i] < 0)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: the graph has a weight of %g; %s scales the weights of what is there, so none may be "
                            "negative",
                            op, g->weights[i], by);
    return HPC_OK;
}

int hpc_graph_check_constant(const hpc_exchange_config *f, const char *by, const char *op) {
    if (f->graph->n_phases <= 1) return HPC_OK;
    return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: %s needs a graph of one phase; this one has %d", op, by,
                    f->graph->n_phases);
}

int hpc_graph_prepare(hpc_exchange *ex, const hpc_exchange_config *f, const char *op) {
    if (f->graph == NULL) return HPC_OK;
    size_t size = (size_t)ex->context->group.size, n = (size_t)f->graph->n_phases * size * size;
    hpc_phases *g = ex->graph = calloc(1, sizeof *g);
    if (g != NULL) {
        g->n = f->graph->n_phases;
        g->weights = malloc(n * sizeof *g->weights);
        g->keys = calloc((size_t)ex->plan->n_keys, sizeof *g->keys);
    }
    if (g == NULL || g->weights == NULL || g->keys == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a graph of %zu ranks and %d phases", op, size,
                        f->graph->n_phases);
    memcpy(g->weights, f->graph->weights, n * sizeof *g->weights);
    ex->own_args = 1;
    ex->owners_leave = 1;
    return HPC_OK;
}

void hpc_graph_free(hpc_exchange *ex) {
    hpc_phases *g = ex->graph;
    if (g == NULL) return;
    free(g->weights);
    free(g->keys);
    free(g);
    ex->graph = NULL;
}

/* ---- the owner ---- */

void hpc_graph_count_neighbours(hpc_core *core, const hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    const hpc_row *row = &ex->plan->rows[share->rows[0]];
    int n = 0;
    for (int e = 0; e < row->n_in; e++) {
        int rank = row->in[e].rank;
        if (rank == row->owner || !hpc_sends(ex, share->key, share->version, row->owner, rank)) continue;
        hpc_share_count_received(ex, share, rank);
        n++;
    }
    hpc_share_count_fold(core, n);
}

int hpc_clocks_open(const hpc_exchange *ex, const hpc_share *share, const char *op, hpc_clocks *c) {
    size_t size = (size_t)ex->context->group.size;
    c->clock = calloc(size, sizeof *c->clock);
    c->used = calloc(size, sizeof *c->used);
    c->consumed = calloc(size, sizeof *c->consumed);
    c->rows_came = calloc(size, sizeof *c->rows_came);
    c->siblings = malloc(size * sizeof *c->siblings);
    if (c->clock == NULL || c->used == NULL || c->consumed == NULL || c->rows_came == NULL || c->siblings == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    for (size_t r = 0; r < size; r++) c->siblings[r] = -1;
    for (int s = 0; s < ex->layout.n_shares; s++)
        if (ex->layout.shares[s].key == share->key && ex->layout.shares[s].core == share->core)
            c->siblings[ex->layout.shares[s].owner] = s;
    for (size_t r = 0; r < size; r++)
        if (c->siblings[r] < 0)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: rank %zu owns key %s by other cores: make the plan by hpc_plan_graph", op, r,
                            ex->plan->keys[share->key].name);
    return HPC_OK;
}

void hpc_clocks_free(hpc_clocks *c) {
    free(c->clock);
    free(c->used);
    free(c->consumed);
    free(c->rows_came);
    free(c->siblings);
}

int hpc_clocks_share_came(const hpc_exchange *ex, const hpc_share *share, hpc_clocks *c, int rank) {
    uint64_t came = hpc_clock_of(c, rank), gone = rank == share->owner ? share->version : c->consumed[rank];
    if (came - gone >= (uint64_t)ex->layout.depth) return 0; /* more than there are slots */
    atomic_store_explicit(&c->clock[rank], came + 1, memory_order_relaxed);
    return 1;
}

int hpc_clocks_row_came(const hpc_exchange *ex, const hpc_share *share, hpc_clocks *c, int rank) {
    if (++c->rows_came[rank] < share->n_rows) return 1;
    c->rows_came[rank] = 0;
    return hpc_clocks_share_came(ex, share, c, rank);
}

hpc_share **hpc_own_shares_of(const hpc_exchange *ex, const hpc_core *core, int *n) {
    hpc_share **own = malloc((size_t)ex->layout.n_shares * sizeof(hpc_share *) + 1);
    *n = 0;
    for (int s = 0; s < ex->layout.n_shares && own != NULL; s++) {
        hpc_share *share = &ex->layout.shares[s];
        if (share->owner == ex->context->group.rank && share->core == core->index) own[(*n)++] = share;
    }
    return own;
}

int hpc_own_shares_open(hpc_exchange *ex, hpc_core *core, const char *op, hpc_own_shares *own) {
    int status = HPC_OK;
    own->shares = hpc_own_shares_of(ex, core, &own->n);
    if (own->shares == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a core", op);
    for (int i = 0; i < own->n && status == HPC_OK; i++) {
        hpc_clocks *c = own->shares[i]->own = calloc(1, sizeof *c);
        status = c == NULL ? hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op)
                           : hpc_clocks_open(ex, own->shares[i], op, c);
    }
    return status;
}

void hpc_own_clocks_free(hpc_exchange *ex) {
    for (int s = 0; s < ex->layout.n_shares; s++) {
        hpc_clocks *c = ex->layout.shares[s].own;
        if (c != NULL) hpc_clocks_free(c);
        free(c);
        ex->layout.shares[s].own = NULL;
    }
}

int hpc_own_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    (void)slot;
    return hpc_clocks_share_came(core->exchange, share, share->own, rank);
}

int hpc_own_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    (void)slot;
    return hpc_clocks_row_came(core->exchange, w->share, w->share->own, w->inputs[input].rank);
}

/* ---- the worker ---- */

int hpc_graph_makes_params(const hpc_exchange *ex, const hpc_share *share) {
    return share->owner == ex->context->group.rank;
}

void hpc_graph_begin_push(hpc_exchange *ex, int key) {
    uint64_t pushes = ex->keys[key].pushes;
    hpc_phases *g = ex->graph;
    g->keys[key].phases[pushes % (uint64_t)ex->layout.depth] = hpc_phase(ex, key, pushes + 1);
}

int hpc_graph_goes_to(const hpc_exchange *ex, const hpc_share *share) {
    return hpc_sends(ex, share->key, ex->keys[share->key].pushes + 1, share->owner, ex->context->group.rank) &&
           hpc_closed_signal(ex, share->owner) == 0;
}

int hpc_graph_send_share(hpc_exchange *ex, int s, int slot, hpc_limit *l) {
    return hpc_graph_goes_to(ex, &ex->layout.shares[s]) ? hpc_push_share(ex, s, slot, l) : HPC_OK;
}

/* Whether push n, one of the last depth ones, was sent to rank to. Its phase does not follow from its number if a
 * checkpoint has been restored since. */
static int was_sent(const hpc_exchange *ex, int key, uint64_t n, int to) {
    int phase = hpc_phases_of(ex)->keys[key].phases[(n - 1) % (uint64_t)ex->layout.depth];
    return hpc_phase_weight(ex, phase, to, ex->context->group.rank) != 0;
}

/* Whether the owner has closed, and everything on its way there has left this rank's memory. */
static int has_let_go(const hpc_exchange *ex, const hpc_share *share) {
    if (hpc_closed_signal(ex, share->owner) == 0) return 0;
    return hpc_is_mapped(ex, share->owner) ||
           hpc_lane_try_flush(ex->in_lanes[share->core], share->owner) != HPC_IN_PROGRESS;
}

int hpc_graph_has_read(const hpc_exchange *ex, int s, uint64_t ticket) {
    const hpc_share *share = &ex->layout.shares[s];
    int me = ex->context->group.rank;
    if (share->owner == me) return hpc_share_has_answered(ex, s, ticket);
    if (ticket == 0 || !hpc_feeds_share(ex, share, me)) return 1;
    return !was_sent(ex, share->key, ticket / 2, share->owner) || hpc_share_has_answered(ex, s, ticket) ||
           has_let_go(ex, share);
}

int hpc_graph_is_free(const hpc_exchange *ex, int key, uint64_t ticket) {
    const hpc_pushed *k = &ex->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (!hpc_graph_has_read(ex, k->shares[i], ticket)) return 0;
    return 1;
}

/* Waits for each push by itself: on a graph that changes, the last push and the one before may have other readers. */
int hpc_graph_finish(hpc_exchange *ex, int key, hpc_limit *l, const char *op) {
    uint64_t pushes = ex->keys[key].pushes, depth = (uint64_t)ex->layout.depth;
    int status = HPC_OK;
    for (uint64_t n = pushes < depth ? 1 : pushes - depth + 1; n <= pushes && status == HPC_OK; n++)
        status = hpc_ticket_wait_slot(ex, key, 2 * n, hpc_limit_left(ex, l), op);
    return status;
}

int hpc_graph_finish_unread(hpc_exchange *ex, int key, hpc_limit *l, const char *op) {
    (void)op;
    return hpc_flush_key(ex, key, l);
}

/* A graph that changes goes on with the phase at which the checkpoint was made. */
void hpc_graph_restored(hpc_exchange *ex, const hpc_work *w, uint64_t step) {
    hpc_phases *g = ex->graph;
    g->keys[w->row->key].ahead = (int64_t)(step - w->share->version);
}

int hpc_graph_awaited(const hpc_exchange *ex, int key, uint64_t ticket, int for_slot, int *ranks,
                      hpc_has_read *has_read, hpc_missing *missing) {
    const hpc_discipline *d = ex->discipline;
    const hpc_pushed *k = &ex->keys[key];
    int n = 0, me = ex->context->group.rank;
    uint64_t number = ticket / 2;
    for (int r = 0; r < ex->context->group.size && !for_slot && d->needs != NULL; r++)
        if (r != me && hpc_pushes_of(ex, r, key) < d->needs(ex, r, key, number)) n = hpc_add_rank(ranks, n, r);
    if (n > 0) return n;
    for (int i = 0; i < k->n_shares; i++) {
        const int s = k->shares[i];
        const hpc_share *share = &ex->layout.shares[s];
        int counts = d->makes_params == NULL || d->makes_params(ex, share);
        if (for_slot ? has_read(ex, s, ticket) : !counts || hpc_share_has_answered(ex, s, ticket)) continue;
        if (share->owner != me)
            n = hpc_add_rank(ranks, n, share->owner);
        else
            n = missing(ex, s, number, ranks, n);
    }
    return n > 0 ? n : hpc_add_rank(ranks, n, me);
}
