#include "discipline/graph.h"

#include <stdlib.h>
#include <string.h>

#include "engine/answer.h"
#include "engine/stages.h"

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

int hpc_graph_prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    if (f->graph == NULL) return HPC_OK;
    size_t size = (size_t)en->context->group.size, n = (size_t)f->graph->n_phases * size * size;
    hpc_phases *g = en->graph = calloc(1, sizeof *g);
    if (g != NULL) {
        g->n = f->graph->n_phases;
        g->weights = malloc(n * sizeof *g->weights);
        g->keys = calloc((size_t)en->plan->n_keys, sizeof *g->keys);
    }
    if (g == NULL || g->weights == NULL || g->keys == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a graph of %zu ranks and %d phases", op, size,
                        f->graph->n_phases);
    memcpy(g->weights, f->graph->weights, n * sizeof *g->weights);
    en->own_args = 1;
    en->owners_leave = 1;
    return HPC_OK;
}

void hpc_graph_free(hpc_engine *en) {
    hpc_phases *g = en->graph;
    if (g == NULL) return;
    free(g->weights);
    free(g->keys);
    free(g);
    en->graph = NULL;
}

/* ---- the owner ---- */

void hpc_graph_count_neighbours(hpc_core *core, const hpc_share *share) {
    hpc_engine *en = core->engine;
    const hpc_row *row = &en->plan->rows[share->rows[0]];
    int n = 0;
    for (int e = 0; e < row->n_in; e++) {
        int rank = row->in[e].rank;
        if (rank == row->owner || !hpc_sends(en, share->key, share->version, row->owner, rank)) continue;
        hpc_share_count_received(en, share, rank);
        n++;
    }
    hpc_share_count_fold(core, n);
}

int hpc_clocks_open(const hpc_engine *en, const hpc_share *share, const char *op, hpc_clocks *c) {
    size_t size = (size_t)en->context->group.size;
    c->clock = calloc(size, sizeof *c->clock);
    c->used = calloc(size, sizeof *c->used);
    c->consumed = calloc(size, sizeof *c->consumed);
    c->rows_came = calloc(size, sizeof *c->rows_came);
    c->siblings = malloc(size * sizeof *c->siblings);
    if (c->clock == NULL || c->used == NULL || c->consumed == NULL || c->rows_came == NULL || c->siblings == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    for (size_t r = 0; r < size; r++) c->siblings[r] = -1;
    for (int s = 0; s < en->layout.n_shares; s++)
        if (en->layout.shares[s].key == share->key && en->layout.shares[s].core == share->core)
            c->siblings[en->layout.shares[s].owner] = s;
    for (size_t r = 0; r < size; r++)
        if (c->siblings[r] < 0)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: rank %zu owns key %s by other cores: make the plan by hpc_plan_graph", op, r,
                            en->plan->keys[share->key].name);
    return HPC_OK;
}

void hpc_clocks_free(hpc_clocks *c) {
    free(c->clock);
    free(c->used);
    free(c->consumed);
    free(c->rows_came);
    free(c->siblings);
}

int hpc_clocks_share_came(const hpc_engine *en, const hpc_share *share, hpc_clocks *c, int rank) {
    uint64_t came = hpc_clock_of(c, rank), gone = rank == share->owner ? share->version : c->consumed[rank];
    if (came - gone >= (uint64_t)en->layout.depth) return 0; /* more than there are slots */
    atomic_store_explicit(&c->clock[rank], came + 1, memory_order_relaxed);
    return 1;
}

int hpc_clocks_row_came(const hpc_engine *en, const hpc_share *share, hpc_clocks *c, int rank) {
    if (++c->rows_came[rank] < share->n_rows) return 1;
    c->rows_came[rank] = 0;
    return hpc_clocks_share_came(en, share, c, rank);
}

hpc_share **hpc_own_shares_of(const hpc_engine *en, const hpc_core *core, int *n) {
    hpc_share **own = malloc((size_t)en->layout.n_shares * sizeof(hpc_share *) + 1);
    *n = 0;
    for (int s = 0; s < en->layout.n_shares && own != NULL; s++) {
        hpc_share *share = &en->layout.shares[s];
        if (share->owner == en->context->group.rank && share->core == core->index) own[(*n)++] = share;
    }
    return own;
}

int hpc_own_shares_open(hpc_engine *en, hpc_core *core, const char *op, hpc_own_shares *own) {
    int status = HPC_OK;
    own->shares = hpc_own_shares_of(en, core, &own->n);
    if (own->shares == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a core", op);
    for (int i = 0; i < own->n && status == HPC_OK; i++) {
        hpc_clocks *c = own->shares[i]->own = calloc(1, sizeof *c);
        status = c == NULL ? hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op)
                           : hpc_clocks_open(en, own->shares[i], op, c);
    }
    return status;
}

void hpc_own_clocks_free(hpc_engine *en) {
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_clocks *c = en->layout.shares[s].own;
        if (c != NULL) hpc_clocks_free(c);
        free(c);
        en->layout.shares[s].own = NULL;
    }
}

int hpc_own_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    (void)slot;
    return hpc_clocks_share_came(core->engine, share, share->own, rank);
}

int hpc_own_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    (void)slot;
    return hpc_clocks_row_came(core->engine, w->share, w->share->own, w->inputs[input].rank);
}

/* ---- the worker ---- */

int hpc_graph_makes_params(const hpc_engine *en, const hpc_share *share) {
    return share->owner == en->context->group.rank;
}

void hpc_graph_begin_push(hpc_engine *en, int key) {
    uint64_t pushes = en->keys[key].pushes;
    hpc_phases *g = en->graph;
    g->keys[key].phases[pushes % (uint64_t)en->layout.depth] = hpc_phase(en, key, pushes + 1);
}

int hpc_graph_goes_to(const hpc_engine *en, const hpc_share *share) {
    return hpc_sends(en, share->key, en->keys[share->key].pushes + 1, share->owner, en->context->group.rank) &&
           hpc_closed_signal(en, share->owner) == 0;
}

int hpc_graph_send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    return hpc_graph_goes_to(en, &en->layout.shares[s]) ? hpc_push_share(en, s, slot, l) : HPC_OK;
}

/* Whether push n, one of the last depth ones, was sent to rank to. Its phase does not follow from its number if a
 * checkpoint has been restored since. */
static int was_sent(const hpc_engine *en, int key, uint64_t n, int to) {
    int phase = hpc_phases_of(en)->keys[key].phases[(n - 1) % (uint64_t)en->layout.depth];
    return hpc_phase_weight(en, phase, to, en->context->group.rank) != 0;
}

/* Whether the owner has closed, and everything on its way there has left this rank's memory. */
static int has_let_go(const hpc_engine *en, const hpc_share *share) {
    if (hpc_closed_signal(en, share->owner) == 0) return 0;
    return hpc_is_mapped(en, share->owner) ||
           hpc_lane_try_flush(en->in_lanes[share->core], share->owner) != HPC_IN_PROGRESS;
}

int hpc_graph_has_read(const hpc_engine *en, int s, uint64_t ticket) {
    const hpc_share *share = &en->layout.shares[s];
    int me = en->context->group.rank;
    if (share->owner == me) return hpc_share_has_answered(en, s, ticket);
    if (ticket == 0 || !hpc_feeds_share(en, share, me)) return 1;
    return !was_sent(en, share->key, ticket / 2, share->owner) || hpc_share_has_answered(en, s, ticket) ||
           has_let_go(en, share);
}

int hpc_graph_is_free(const hpc_engine *en, int key, uint64_t ticket) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (!hpc_graph_has_read(en, k->shares[i], ticket)) return 0;
    return 1;
}

/* Waits for each push by itself: on a graph that changes, the last push and the one before may have other readers. */
int hpc_graph_finish(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    uint64_t pushes = en->keys[key].pushes, depth = (uint64_t)en->layout.depth;
    int status = HPC_OK;
    for (uint64_t n = pushes < depth ? 1 : pushes - depth + 1; n <= pushes && status == HPC_OK; n++)
        status = hpc_ticket_wait_slot(en, key, 2 * n, hpc_limit_left(en, l), op);
    return status;
}

int hpc_graph_finish_unread(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    (void)op;
    return hpc_flush_key(en, key, l);
}

/* A graph that changes goes on with the phase at which the checkpoint was made. */
void hpc_graph_restored(hpc_engine *en, const hpc_work *w, uint64_t step) {
    hpc_phases *g = en->graph;
    g->keys[w->row->key].ahead = (int64_t)(step - w->share->version);
}

int hpc_graph_awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks, hpc_has_read *has_read,
                      hpc_missing *missing) {
    const hpc_discipline *d = en->discipline;
    const hpc_pushed *k = &en->keys[key];
    int n = 0, me = en->context->group.rank;
    uint64_t number = ticket / 2;
    for (int r = 0; r < en->context->group.size && !for_slot && d->needs != NULL; r++)
        if (r != me && hpc_pushes_of(en, r, key) < d->needs(en, r, key, number)) n = hpc_add_rank(ranks, n, r);
    if (n > 0) return n;
    for (int i = 0; i < k->n_shares; i++) {
        const int s = k->shares[i];
        const hpc_share *share = &en->layout.shares[s];
        int counts = d->makes_params == NULL || d->makes_params(en, share);
        if (for_slot ? has_read(en, s, ticket) : !counts || hpc_share_has_answered(en, s, ticket)) continue;
        if (share->owner != me)
            n = hpc_add_rank(ranks, n, share->owner);
        else
            n = missing(en, s, number, ranks, n);
    }
    return n > 0 ? n : hpc_add_rank(ranks, n, me);
}
