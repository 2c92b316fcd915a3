/* BSP among peers: a worker applies its own update and those of its peers when all of them are there, in the order of
 * ranks. So where all send to all, all workers have the same parameters, bit for bit.
 *
 * A pull waits for this rank's own share alone, and a push for the answers of the peers that have read what was in its
 * slot. A worker that has ended step n has the updates of step n of those that send to it; it may be one step ahead of
 * a peer that it sends to. With two slots, and all sending to all, no push waits: when a worker begins push n + 2, all
 * peers have made push n + 1, and so have applied push n. */
#include "discipline/peers.h"

#include "discipline/graph.h"
#include "discipline/grouping.h"
#include "discipline/passing.h"
#include "discipline/whole.h"
#include "engine/stages.h"

int hpc_peers_are_planned(const hpc_exchange_config *f) {
    int other;
    const int copy = f->plan == NULL || f->graph != NULL ? -1 : hpc_plan_find_copy(f->plan, &other);
    return copy >= 0 && f->plan->rows[copy].in[0].row < 0 && !hpc_plan_has_stages(f->plan);
}

static int refuse_row(int i, const char *why) {
    return hpc_fail(HPC_ERR_CONFIG, "exchange",
                    "exchange: row %d %s; among peers each row applies pushes, its owner's own among them, to the "
                    "parameters of its owner: make the plan by hpc_plan_peer_to_peer",
                    i, why);
}

static int check_row(const hpc_row *row, int i) {
    if (row->action != HPC_APPLY) return refuse_row(i, "does not apply");
    if (row->quorum != row->n_in) return refuse_row(i, "has a quorum");
    if (row->n_out != 1 || row->out[0].row >= 0 || row->out[0].rank != row->owner)
        return refuse_row(i, "sends parameters to other ranks than its owner");
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].row >= 0 || row->in[e].weight == 0) return refuse_row(i, "has an input that is no push");
    return hpc_row_has_input(row, row->owner) ? HPC_OK : refuse_row(i, "takes no pushes of its owner");
}

int hpc_peers_pass_on(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows; i++)
        for (int e = 0; e < f->plan->rows[i].n_in; e++)
            if (hpc_edge_via(&f->plan->rows[i].in[e]) >= 0) return 1;
    return 0;
}

/* The row of a rank that applies the same elements, and its push of another rank; NULL: there is none. */
static const hpc_edge *find_push(const hpc_plan *plan, int row, int owner, int rank) {
    const hpc_row *own = &plan->rows[row];
    while (row > 0 && plan->rows[row - 1].key == own->key && plan->rows[row - 1].offset == own->offset) row--;
    for (; row < plan->n_rows && plan->rows[row].key == own->key && plan->rows[row].offset == own->offset; row++)
        if (plan->rows[row].owner == owner) return hpc_row_input(&plan->rows[row], rank);
    return NULL;
}

/* The rank of an input is where the way up ends, from rank to rank that passes it on. */
static int check_way(const hpc_plan *plan, int i, const hpc_edge *in) {
    const hpc_edge *at = in;
    for (int steps = 0; at != NULL && hpc_edge_via(at) >= 0 && steps < plan->n_rows; steps++)
        at = find_push(plan, i, hpc_edge_via(at), in->rank);
    if (at != NULL && hpc_edge_via(at) < 0) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, "exchange",
                    "exchange: row %d takes pushes of rank %d by way of rank %d, to which they do not come", i,
                    in->rank, hpc_edge_via(in));
}

static int check_ways(const hpc_plan *plan, int i) {
    int status = HPC_OK;
    for (int e = 0; e < plan->rows[i].n_in && status == HPC_OK; e++)
        if (hpc_edge_via(&plan->rows[i].in[e]) >= 0) status = check_way(plan, i, &plan->rows[i].in[e]);
    return status;
}

int hpc_peers_check(const hpc_exchange_config *f) {
    int status = HPC_OK;
    if (f->shared_params)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: shared_params needs servers: each peer has parameters of its own, so leave it out");
    if (f->eager)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: eager needs servers: a peer may push for the next step before the others have, so "
                        "its update waits for theirs; leave it out");
    for (int i = 0; i < f->plan->n_rows && status == HPC_OK; i++) {
        status = check_row(&f->plan->rows[i], i);
        if (status == HPC_OK) status = check_ways(f->plan, i);
    }
    return status;
}

/* ---- the worker ---- */

int hpc_peers_make_params(const hpc_engine *en, const hpc_share *share) {
    return share->owner == en->context->group.rank;
}

int hpc_peers_have_read(const hpc_engine *en, int s, uint64_t ticket) {
    return ticket == 0 || !hpc_feeds_share(en, &en->layout.shares[s], en->context->group.rank) ||
           hpc_share_has_answered(en, s, ticket);
}

int hpc_peers_is_free(const hpc_engine *en, int key, uint64_t ticket) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (!hpc_peers_have_read(en, k->shares[i], ticket)) return 0;
    return 1;
}

int hpc_peers_finish(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    return hpc_ticket_wait_slot(en, key, 2 * en->keys[key].pushes, hpc_limit_left(en, l), op);
}

int hpc_peers_hear(const hpc_engine *en, int rank, int key) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_awaited; i++)
        if (hpc_feeds_share(en, &en->layout.shares[k->awaited[i]], rank)) return 1;
    return 0;
}

/* ---- BSP ---- */

static int suits(const hpc_exchange_config *f) {
    return hpc_config_is_bsp(f) && !f->split && hpc_peers_are_planned(f) && !hpc_peers_pass_on(f);
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    return hpc_peers_check(f);
}

static uint64_t needs(const hpc_engine *en, int rank, int key, uint64_t n) {
    return hpc_peers_hear(en, rank, key) ? n : 0;
}

static int may_push(hpc_engine *en, int key, const char *op) {
    return hpc_push_after(en, key, 2 * en->keys[key].pushes, op);
}

/* The ranks whose inputs to the next fold of share s are missing, as hpc_missing. */
static int missing(const hpc_engine *en, int s, uint64_t n, int *ranks, int found) {
    const uint64_t fold = hpc_share_next_fold(en, s);
    (void)n;
    return hpc_whole_missing(en, &en->layout.shares[s], hpc_whole_slot(en, 2 * fold), fold, ranks, found);
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(en, key, ticket, for_slot, ranks, hpc_peers_have_read, missing);
}

const hpc_discipline hpc_discipline_peers = {
    .name = "BSP among peers",
    .suits = suits,
    .check = check,
    .whole = 1,
    .makes_params = hpc_peers_make_params,
    .share_came = hpc_whole_share_came,
    .row_came = hpc_whole_row_came,
    .may_push = may_push,
    .send_share = hpc_push_in_turn,
    .is_free = hpc_peers_is_free,
    .needs = needs,
    .awaited = awaited,
    .leaving = &(const hpc_leaving){.finish = hpc_peers_finish},
};

/* ---- BSP, where updates pass from peer to peer ---- */

static int suits_passing(const hpc_exchange_config *f) {
    return hpc_config_is_bsp(f) && !f->split && hpc_peers_are_planned(f) && hpc_peers_pass_on(f);
}

static int open_passing(hpc_engine *en, const char *op) {
    en->own = hpc_passing_open(en, op);
    return en->own != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

static void free_passing(hpc_engine *en) {
    hpc_passing_free(en->own);
    en->own = NULL;
}

static int passing_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    if (hpc_edge_via(&w->row->in[input]) >= 0) return 0;
    hpc_pass_on(core, core->engine->own, w, input, slot);
    return hpc_whole_row_came(core, w, input, slot);
}

static int passed(hpc_core *core, const hpc_event *event) {
    hpc_work *w;
    const int input = hpc_passed_input(core, core->engine->own, event, &w), slot = hpc_imm_slot(event->imm);
    if (input < 0) return 0;
    hpc_pass_on(core, core->engine->own, w, input, slot);
    return hpc_whole_row_came(core, w, input, slot);
}

static int pass_waiting(hpc_core *core) {
    return hpc_pass_waiting(core, core->engine->own);
}

/* Whoever should send what is missing may itself wait for it, and is asked. */
static int missing_passed(const hpc_engine *en, int s, uint64_t n, int *ranks, int found) {
    const hpc_share *share = &en->layout.shares[s];
    const uint64_t fold = hpc_share_next_fold(en, s);
    const int slot = hpc_whole_slot(en, 2 * fold);
    (void)n;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        const _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
        if (atomic_load_explicit(&w->folded, memory_order_relaxed) >= fold) continue;
        for (int e = 0; e < w->row->n_in; e++)
            if (!atomic_load_explicit(&came[e], memory_order_relaxed))
                found = hpc_add_rank(ranks, found, hpc_sender_of(w->row, e));
    }
    return found;
}

static int awaited_passed(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(en, key, ticket, for_slot, ranks, hpc_peers_have_read, missing_passed);
}

static int passing_outstanding(const hpc_engine *en, int *ranks) {
    return hpc_passing_waits(en, en->own, ranks);
}

const hpc_discipline hpc_discipline_passing_peers = {
    .name = "BSP among peers that pass updates on",
    .suits = suits_passing,
    .check = check,
    .whole = 1,
    .puts = 1,
    .passes_on = 1,
    .opening = &(const hpc_opening){.open = open_passing, .free = free_passing},
    .makes_params = hpc_peers_make_params,
    .share_came = hpc_whole_share_came,
    .row_came = passing_row_came,
    .other_came = passed,
    .work = pass_waiting,
    .may_push = may_push,
    .send_share = hpc_passing_send_share,
    .is_free = hpc_peers_is_free,
    .needs = needs,
    .awaited = awaited_passed,
    .leaving = &(const hpc_leaving){.finish = hpc_peers_finish, .outstanding = passing_outstanding},
};
