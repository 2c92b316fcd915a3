/* SSP on a graph (ASAP, section 6.2): a share is folded as a whole when this rank has pushed it and every in-neighbour
 * is at most staleness steps behind. An in-neighbour's newest update counts; under another rule than average, all its
 * updates that have not counted yet. An update is answered once it is no longer needed, so no slot that may be read is
 * written. */
#include <stdlib.h>

#include "discipline/discipline.h"
#include "discipline/graph.h"
#include "engine/answer.h"
#include "engine/stages.h"

static int suits(const hpc_exchange_config *f) {
    return f->consistency == HPC_SSP && f->graph != NULL;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    const int moves = f->in_place && hpc_plan_takes_float32(f->plan);
    const int more = 2 + moves; /* slots: one is folded, one comes, and with in_place one is the model */
    int status = hpc_graph_check_constant(f, "SSP", "exchange");
    if (status == HPC_OK) status = hpc_graph_check_partial(f, "SSP", "exchange");
    if (status != HPC_OK) return status;
    if (f->staleness < 0 || f->staleness > HPC_PLAN_DEPTH - more)
        return hpc_fail(HPC_ERR_INVALID, "exchange", "exchange: staleness is %d; 0 to %d are possible on a graph%s",
                        f->staleness, HPC_PLAN_DEPTH - more, moves ? " with in_place" : "");
    if (f->staleness > f->plan->rows[0].depth - more)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: the plan has depth %d; SSP(%d) on a graph%s needs %d or more",
                        f->plan->rows[0].depth, f->staleness, moves ? " with in_place" : "", f->staleness + more);
    return HPC_OK;
}

/* ---- open ---- */

static void free_all(hpc_engine *en) {
    hpc_own_clocks_free(en);
    for (int i = 0; en->cores != NULL && i < en->n_own_cores; i++) {
        hpc_own_shares *own = en->cores[i].own;
        if (own != NULL) free(own->shares);
        free(own);
        en->cores[i].own = NULL;
    }
    hpc_graph_free(en);
}

static int open_core(hpc_engine *en, hpc_core *core, const char *op) {
    hpc_own_shares *own = core->own = calloc(1, sizeof *own);
    return own != NULL ? hpc_own_shares_open(en, core, op, own)
                       : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a core", op);
}

static int open_all(hpc_engine *en, const char *op) {
    int status = HPC_OK;
    for (int c = 0; c < en->n_own_cores && status == HPC_OK; c++) status = open_core(en, &en->cores[c], op);
    return status == HPC_OK ? hpc_share_open_counts(en, 1, op) : status;
}

/* ---- the core ---- */

/* Whether the next fold of a share has all that it waits for. */
static int is_time(const hpc_engine *en, const hpc_share *share) {
    const hpc_clocks *c = share->own;
    const hpc_work *w = hpc_first_work(en, share);
    uint64_t n = share->version + 1;
    if (hpc_clock_of(c, share->owner) < n) return 0;
    for (int e = 0; e < w->row->n_in; e++)
        if (hpc_clock_of(c, w->inputs[e].rank) + (uint64_t)en->asked.staleness < n) return 0;
    return 1;
}

/* Chooses the updates of an input: the newest one, or every one that has not counted yet. */
static hpc_taken taking(const hpc_core *core, const hpc_work *w, const hpc_input *in) {
    const hpc_clocks *c = w->share->own;
    (void)core;
    uint64_t newest = hpc_clock_of(c, in->rank), first = c->used[in->rank] + 1;
    if (in->rank == w->share->owner) newest = w->share->version + 1;
    if (in->rank == w->share->owner || w->rule->averages) first = newest;
    return newest == 0 ? (hpc_taken){0, 0} : (hpc_taken){(int)(newest - first + 1), first - 1};
}

/* Counts each neighbour's input, and answers updates that are no longer needed. Under average the newest update is kept
 * for the next fold, so its answer waits. */
static void end_fold(hpc_core *core, hpc_share *share) {
    hpc_engine *en = core->engine;
    hpc_clocks *c = share->own;
    const hpc_work *w = hpc_first_work(en, share);
    int whole = 0, signal = hpc_signal_applied(en, (int)(share - en->layout.shares));
    for (int e = 0; e < w->row->n_in; e++) {
        int rank = w->inputs[e].rank;
        uint64_t newest = hpc_clock_of(c, rank), consumed = newest - (newest > 0 && w->rule->averages);
        if (rank == share->owner) continue;
        if (newest > c->used[rank])
            hpc_share_count_received(en, share, rank), whole++;
        else
            hpc_tally_add(newest == 0 ? &core->tally.missing : &core->tally.stale, 1);
        c->used[rank] = newest;
        if (consumed == c->consumed[rank]) continue;
        c->consumed[rank] = consumed;
        hpc_share_answer(core, rank, signal, consumed);
    }
    hpc_share_count_fold(core, whole);
    share->version++;
    hpc_share_answer(core, share->owner, signal, share->version);
}

static int fold(hpc_core *core, hpc_share *share) {
    const hpc_engine *en = core->engine;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        const hpc_inputs inputs = hpc_row_take(core, w, taking, w->rule->averages ? HPC_SCALE_ALL : HPC_SCALE_NONE);
        int failed = hpc_row_work(core, w, &inputs);
        if (failed) return failed;
    }
    end_fold(core, share);
    return 0;
}

static int work(hpc_core *core) {
    const hpc_own_shares *own = core->own;
    int n = 0;
    for (int i = 0; i < own->n; i++)
        while (is_time(core->engine, own->shares[i])) {
            if (fold(core, own->shares[i]) != 0) return n;
            n++;
        }
    return n;
}

/* ---- the worker ---- */

static uint64_t needs(const hpc_engine *en, int rank, int key, uint64_t n) {
    const hpc_pushed *k = &en->keys[key];
    uint64_t staleness = (uint64_t)en->asked.staleness;
    int me = en->context->group.rank;
    for (int i = 0; i < k->n_shares && rank != me; i++) {
        const hpc_share *share = &en->layout.shares[k->shares[i]];
        if (share->owner == me && hpc_feeds_share(en, share, rank)) return n > staleness ? n - staleness : 0;
    }
    return 0;
}

/* The in-neighbours that are too far behind. */
static int missing(const hpc_engine *en, int s, uint64_t n, int *ranks, int found) {
    const hpc_share *share = &en->layout.shares[s];
    for (int r = 0; r < en->context->group.size; r++)
        if (r != share->owner && hpc_clock_of(share->own, r) < needs(en, r, share->key, n))
            found = hpc_add_rank(ranks, found, r);
    return found;
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(en, key, ticket, for_slot, ranks, hpc_graph_has_read, missing);
}

const hpc_discipline hpc_discipline_ssp = {
    .name = "SSP",
    .suits = suits,
    .check = check,
    .makes_params = hpc_graph_makes_params,
    .opening = &(const hpc_opening){.prepare = hpc_graph_prepare, .open = open_all, .free = free_all},
    .share_came = hpc_own_share_came,
    .row_came = hpc_own_row_came,
    .work = work,
    .begin_push = hpc_graph_begin_push,
    .send_share = hpc_graph_send_share,
    .is_free = hpc_graph_is_free,
    .needs = needs,
    .awaited = awaited,
    .leaving = &(const hpc_leaving){.finish = hpc_graph_finish_unread},
    .facts = &(const hpc_facts){.restored = hpc_graph_restored},
};
