/* ASYNC and SSP(s) with several stages: the ranks of a group (a host, or a rack) fold their updates first, all together
 * as under BSP, and their fold is one update to the owner. So the ranks of a group are in step, and groups are not:
 * under ASYNC none waits for another, under SSP(s) none begins a step more than s steps ahead of the slowest one (ssp
 * on servers says more, server_ssp.c). A rank that pushes straight to an owner is a group of its own.
 *
 * The owner applies each update as it comes: one run of the rule, with the weights of the plan. It then replies to the
 * group: the parameters go to just its ranks, by relays where the plan has them, and each share that is at an end
 * answers, as under BSP. Under SSP(s) the reply to the update of clock c waits until all open groups have brought
 * c - s of them; until then it is *parked*, and the update that raises the minimum sends it. So parameters come with
 * the answer to a push, never to a pull of their own.
 *
 * Writers, readers and order: a group's next update comes after all its ranks had the reply to the last one, as each of
 * them waits for that reply before it pushes. So
 *   its slots, forwarding accumulators and relays   are as under BSP (stages.c): each rank of the group feeds them, and
 *                      gets what comes of them
 *   the source of a reply         is a copy for each receiver (rows.c), which the next reply to that group writes
 *   masters            are written and read by the core alone
 *   applied            is written by the core; a wait reads it (relaxed) to name the slowest groups
 *   base               is written at publish, when nothing is under way, and with the core paused
 *
 * grouping.h defines a group. A group with a rank that has closed brings no more whole updates, and counts in no
 * minimum.
 *
 * Nobody waits in a circle: inside a group all wait for the same folds, as under BSP, and a group that is parked has
 * ended more than s steps more than the one that it waits for. */
#include <stdlib.h>

#include "discipline/each.h"
#include "discipline/graph.h"
#include "discipline/grouping.h"
#include "discipline/whole.h"
#include "engine/answer.h"
#include "engine/args.h"
#include "engine/core.h"
#include "engine/send.h"
#include "engine/write.h"

/* A share's own, at its owner, where it applies; arrays are by the lowest ranks of groups. */
typedef struct group_clocks {
    const int *group_of;       /* by rank */
    _Atomic uint64_t *applied; /* updates that all rows have applied */
    uint64_t *base;            /* how many of them came before the last publish */
    int *rows_done;            /* rows of the current update that are applied */
    int *slot;                 /* of the last one */
    char *parked;              /* whether its reply waits */
    int n_parked;
} group_clocks;

/* The exchange's own. */
typedef struct grouping {
    int *group_of; /* hpc_groups_find */
} grouping;

/* ---- what is asked for ---- */

static int suits(const hpc_exchange_config *f) {
    const int each = f->consistency == HPC_ASYNC || (f->consistency == HPC_SSP && !hpc_config_is_bsp(f));
    return each && f->graph == NULL && f->plan != NULL && hpc_plan_has_stages(f->plan);
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    const int status = hpc_each_check(f);
    (void)c;
    for (int i = 0; i < f->plan->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (row->action != HPC_EMIT && (row->quorum == row->n_in || (row->action == HPC_APPLY && row->quorum == 1)))
            continue;
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: row %d has action %d and a quorum of %d of %d inputs; %s with several stages needs "
                        "rows that apply, forward or relay what all their inputs bring, as in a plan for BSP",
                        i, row->action, row->quorum, row->n_in, hpc_consistency_name(f->consistency));
    }
    return status;
}

/* ---- groups ---- */

static int group_at(const hpc_engine *en, int key, int rank) {
    return hpc_group_of(en, ((const grouping *)en->own)->group_of, key, rank);
}

static int prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    grouping *its = en->own = calloc(1, sizeof *its);
    if (f->consistency == HPC_ASYNC) en->asked.staleness = 0; /* no bound */
    if (its == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for groups", op);
    its->group_of = hpc_groups_new(en, op);
    return its->group_of != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

static int open_shares(hpc_engine *en, const char *op) {
    return hpc_groups_find(en, ((grouping *)en->own)->group_of, op);
}

/* ---- open ---- */

static int applies(const hpc_engine *en, const hpc_share *share) {
    return en->plan->rows[share->rows[0]].action == HPC_APPLY;
}

static int open_all(hpc_engine *en, const char *op) {
    const size_t size = (size_t)en->context->group.size;
    for (int c = 0; c < en->n_own_cores; c++)
        if ((en->cores[c].own = calloc(1, sizeof(hpc_parking))) == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a core", op);
    hpc_groups_name_outputs(en, ((grouping *)en->own)->group_of);
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_share *share = &en->layout.shares[s];
        if (share->owner != en->context->group.rank || !applies(en, share)) continue;
        group_clocks *c = share->own = calloc(1, sizeof *c);
        if (c != NULL) {
            c->group_of = ((grouping *)en->own)->group_of + (size_t)share->key * size;
            c->applied = calloc(size, sizeof *c->applied);
            c->base = calloc(size, sizeof *c->base);
            c->rows_done = calloc(size, sizeof *c->rows_done);
            c->slot = calloc(size, sizeof *c->slot);
            c->parked = calloc(size, 1);
        }
        if (c == NULL || c->applied == NULL || c->base == NULL || c->rows_done == NULL || c->slot == NULL ||
            c->parked == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    }
    return HPC_OK;
}

static void free_all(hpc_engine *en) {
    for (int s = 0; s < en->layout.n_shares; s++) {
        group_clocks *c = en->layout.shares[s].own;
        if (c == NULL) continue;
        free(c->applied);
        free(c->base);
        free(c->rows_done);
        free(c->slot);
        free(c->parked);
        free(c);
        en->layout.shares[s].own = NULL;
    }
    for (int c = 0; en->cores != NULL && c < en->n_own_cores; c++) {
        free(en->cores[c].own);
        en->cores[c].own = NULL;
    }
    if (en->own != NULL) free(((grouping *)en->own)->group_of);
    free(en->own);
    en->own = NULL;
}

/* ---- the core ---- */

static uint64_t clock_of(const group_clocks *c, int group) {
    return atomic_load_explicit(&c->applied[group], memory_order_relaxed) - c->base[group];
}

static int is_open(const hpc_engine *en, int key, int group) {
    for (int r = group; r < en->context->group.size; r++)
        if (group_at(en, key, r) == group && hpc_closed_signal(en, r) != 0) return 0;
    return 1;
}

/* The smallest clock of the open groups; UINT64_MAX under ASYNC, where nobody waits for one. */
static uint64_t minimum_of(const hpc_engine *en, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(en, share);
    uint64_t least = UINT64_MAX;
    for (int e = 0; e < w->row->n_in && en->asked.staleness > 0; e++) {
        const int group = w->inputs[e].lowest;
        const uint64_t clock = clock_of(share->own, group);
        if (clock < least && is_open(en, share->key, group)) least = clock;
    }
    return least;
}

static void reply(hpc_core *core, hpc_share *share, int group) {
    const hpc_engine *en = core->engine;
    group_clocks *c = share->own;
    const uint64_t n = atomic_load_explicit(&c->applied[group], memory_order_relaxed);
    c->parked[group] = 0;
    c->n_parked--;
    ((hpc_parking *)core->own)->n_parked--;
    for (int i = 0; i < share->n_rows; i++)
        hpc_row_reply(core, &en->work[en->work_of[share->rows[i]]], group, c->slot[group]);
    for (int i = 0; i < share->n_members; i++)
        if (group_at(en, share->key, share->members[i]) == group)
            hpc_share_answer(core, share->members[i], hpc_signal_applied(en, (int)(share - en->layout.shares)), n);
}

/* Sends the replies that need wait no longer; returns their number. */
static int wake(hpc_core *core, hpc_share *share) {
    const hpc_engine *en = core->engine;
    const group_clocks *c = share->own;
    const uint64_t minimum = minimum_of(en, share), enough = minimum + (uint64_t)en->asked.staleness;
    int n = 0;
    for (int group = 0; group < en->context->group.size && c->n_parked > 0; group++) {
        if (!c->parked[group] || (minimum != UINT64_MAX && clock_of(c, group) > enough)) continue;
        reply(core, share, group);
        n++;
    }
    return n;
}

/* An update of a group has come to a row that applies. After a failure nothing is answered any more. */
static void update_came(hpc_core *core, hpc_work *w, int slot, int input) {
    hpc_share *share = w->share;
    const int group = w->inputs[input].lowest;
    group_clocks *c = share->own;
    const uint64_t n = atomic_load_explicit(&c->applied[group], memory_order_relaxed) + 1;
    if (share->args_came && !hpc_args_agree(core, w, slot, input, n)) return;
    if (!hpc_each_apply(core, w, slot, input, c->rows_done)) return;
    atomic_store_explicit(&c->applied[group], n, memory_order_relaxed);
    c->slot[group] = slot;
    c->parked[group] = 1;
    c->n_parked++;
    ((hpc_parking *)core->own)->n_parked++;
    wake(core, share);
}

static int share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    if (!applies(core->engine, share)) return hpc_whole_share_came(core, share, rank, slot);
    return hpc_each_share_came(core, share, rank, slot, update_came);
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    if (w->row->action != HPC_APPLY) return hpc_whole_row_came(core, w, input, slot);
    update_came(core, w, slot, input);
    return 1;
}

/* A group that has closed may have been the one that replies waited for. */
static int work(hpc_core *core) {
    return hpc_each_work(core, wake);
}

/* ---- the worker ---- */

static int may_push(hpc_engine *en, int key, const char *op) {
    return hpc_push_after(en, key, 2 * en->keys[key].pushes, op);
}

static int is_mate(const hpc_engine *en, int key, int rank) {
    return group_at(en, key, rank) == group_at(en, key, en->context->group.rank);
}

static uint64_t needs(const hpc_engine *en, int rank, int key, uint64_t n) {
    return is_mate(en, key, rank) ? n : 0;
}

/* Adds the ranks that bring the updates of the slowest groups, for a share of this rank in which its own reply is
 * parked. Under ASYNC no reply is parked. */
static int slowest(const hpc_engine *en, const hpc_share *share, int *ranks, int n) {
    const hpc_work *w = hpc_first_work(en, share);
    const int own = group_at(en, share->key, en->context->group.rank);
    for (int e = 0; e < w->row->n_in && en->asked.staleness > 0; e++) {
        const int group = w->inputs[e].lowest;
        if (clock_of(share->own, group) + (uint64_t)en->asked.staleness < clock_of(share->own, own) &&
            is_open(en, share->key, group))
            n = hpc_add_rank(ranks, n, w->inputs[e].rank);
    }
    return n;
}

static int is_of_mates(const hpc_engine *en, const hpc_share *share) {
    return hpc_group_of_row(en, ((const grouping *)en->own)->group_of, share->rows[0]) ==
           group_at(en, share->key, en->context->group.rank);
}

/* Adds the ranks that bring push number pushes of this rank's group to a share of this rank that has not applied it. */
static int bringers(const hpc_engine *en, const hpc_share *share, uint64_t pushes, int *ranks, int n) {
    const group_clocks *c = share->own;
    const int own = group_at(en, share->key, en->context->group.rank);
    if (atomic_load_explicit(&c->applied[own], memory_order_relaxed) >= pushes) return n;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        for (int e = 0; e < w->row->n_in; e++)
            if (w->inputs[e].lowest == own) n = hpc_add_rank(ranks, n, w->inputs[e].rank);
    }
    return n;
}

/* A relay of this rank's own may wait for a row of this rank's own, which waits for one of the others. */
static int without(int *ranks, int n, int me) {
    int left = 0;
    for (int i = 0; i < n && n > 1; i++)
        if (ranks[i] != me) ranks[left++] = ranks[i];
    return n > 1 ? left : n;
}

/* The ranks of its group that have not pushed. Where that cannot be seen: those whose inputs are missing here; then
 * slower groups, for which other owners have parked their replies too; then those who fold for this rank's own rows,
 * other owners, and ranks of the group that left without a word. */
static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    const hpc_pushed *k = &en->keys[key];
    const int me = en->context->group.rank;
    int n = 0;
    (void)for_slot;
    for (int r = 0; r < en->context->group.size; r++)
        if (hpc_pushes_key(en, r, key) && is_mate(en, key, r) && hpc_pushes_of(en, r, key) < ticket / 2)
            n = hpc_add_rank(ranks, n, r);
    if (n == 0) n = hpc_whole_missing_in_stages(en, key, ticket, is_of_mates, ranks);
    if (n > 0) return n;
    for (int s = 0; s < en->layout.n_shares; s++)
        if (en->layout.shares[s].key == key && en->layout.shares[s].owner == me && en->layout.shares[s].own != NULL)
            n = slowest(en, &en->layout.shares[s], ranks, n);
    if (n > 0) return n;
    for (int s = 0; s < en->layout.n_shares; s++)
        if (en->layout.shares[s].key == key && en->layout.shares[s].owner == me && en->layout.shares[s].own != NULL)
            n = bringers(en, &en->layout.shares[s], ticket / 2, ranks, n);
    for (int i = 0; i < k->n_awaited; i++) {
        const hpc_share *share = &en->layout.shares[k->awaited[i]];
        if (hpc_share_has_answered(en, k->awaited[i], ticket)) continue;
        if (share->owner != me)
            n = hpc_add_rank(ranks, n, share->owner);
        else if (!applies(en, share))
            n = hpc_whole_missing(en, share, hpc_whole_slot(en, ticket), hpc_share_next_fold(en, k->awaited[i]), ranks,
                                  n);
    }
    for (int r = 0; r < en->context->group.size; r++)
        if (hpc_pushes_key(en, r, key) && is_mate(en, key, r) && hpc_pushes_of(en, r, key) == UINT64_MAX &&
            hpc_closed_signal(en, r) == 0 &&
            atomic_load_explicit(&en->context->group.states[r], memory_order_acquire) == HPC_PEER_LEFT)
            n = hpc_add_rank(ranks, n, r);
    if (n == 0) return hpc_add_rank(ranks, n, me); /* its own core is at it */
    return without(ranks, n, me);
}

/* ---- state and facts ---- */

/* Publish: all groups go on from one clock. Nothing is under way on any rank. */
static int level(hpc_engine *en, const char *op, double deadline) {
    (void)op, (void)deadline;
    for (int s = 0; s < en->layout.n_shares; s++) {
        const hpc_share *share = &en->layout.shares[s];
        group_clocks *c = share->own;
        if (c == NULL) continue;
        hpc_core_pause(&en->cores[share->core]);
        for (int r = 0; r < en->context->group.size; r++)
            c->base[r] = atomic_load_explicit(&c->applied[r], memory_order_relaxed);
        hpc_core_resume(&en->cores[share->core]);
    }
    return HPC_OK;
}

static uint64_t folded_of(const hpc_share *share, int rank) {
    const group_clocks *c = share->own;
    const int group = c == NULL ? -1 : c->group_of[rank];
    if (group < 0) return 0;
    return atomic_load_explicit(&c->applied[group], memory_order_relaxed) + (c->rows_done[group] > 0);
}

const hpc_discipline hpc_discipline_groups = {
    .name = "ASYNC or SSP of groups",
    .suits = suits,
    .check = check,
    .goes_on = 1,
    .opening = &(const hpc_opening){.prepare = prepare, .open_shares = open_shares, .open = open_all, .free = free_all},
    .share_came = share_came,
    .row_came = row_came,
    .work = work,
    .may_push = may_push,
    .needs = needs,
    .awaited = awaited,
    .facts = &(const hpc_facts){.before_publish = level, .folded_of = folded_of},
};
