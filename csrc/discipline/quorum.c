/* A fold that goes on without stragglers: it is made when a quorum of the updates is there and the grace for the others
 * is over. This file counts the workers of servers. graph_quorum.c counts in-neighbours, and groups_quorum.c the groups
 * of ranks that fold first in plans of several stages.
 *
 * A sender has one update on its way to a share. It puts the update's version, and the update itself where the owner
 * cannot read it in the sender's memory, and then an event. It touches neither again until the owner has answered. So
 * nothing is overwritten while it is read and nothing is torn. A rank that stands still keeps one update of its own
 * waiting and nothing else.
 *
 * Pushes have *versions*. An update that is older than the next fold is late: it is answered at once, left out, and
 * counted at both ends. The answer says how many updates of this sender were used, and which version was folded last.
 * So the sender knows the end of each of its pushes.
 *
 * The grace. A fold that has its quorum still waits for the other senders that it expects. It expects a sender that is
 * at most two versions behind, so that it may bring this version soon, and that has not let a fold wait in vain since
 * its last update. The fold waits for as long as these senders usually take (RFC 6298: the mean plus four mean
 * deviations), or as the user says. When a fold goes on without one, that counts as if the update had come just then.
 * From time to time this costs nothing, but if more than a third of all folds are cut short the time grows until fewer
 * are.
 *
 * A push is for the version after the newest that any owner has told this worker, and a fold takes the updates of just
 * its version. A worker whose update
 *   is in the fold       gets the parameters and an answer, as under BSP
 *   is not there yet     gets nothing: it computes, and its parameters are its own until it pushes
 *   comes after it       is late: it gets the newest parameters and an answer that says so
 * Every push of a share has one answer. A worker that has all of them goes on from the newest version that it knows.
 * Shares may be some versions apart: an update for a later version of a share waits there.
 *
 * A version belongs to all keys: a worker pushes each of them once for it, and has all answers before it pushes the
 * next. So where one share has found its quorum all others will, for the same ranks have pushed that version there.
 * Were keys counted by themselves, two workers could wait for each other, each for a key in which it is ahead. Keys
 * that workers push at different times are in different engines (EngineOptions.groups in Python). */
#include "discipline/quorum.h"

#include <stdio.h>
#include <stdlib.h>

#include "discipline/discipline.h"
#include "discipline/grouping.h"
#include "discipline/whole.h"
#include "engine/answer.h"
#include "engine/send.h"
#include "engine/stages.h"

/* ---- what is asked for ---- */

/* A quorum of all inputs is the same as no quorum. */
static int misses_some(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows; i++)
        if (f->plan->rows[i].action != HPC_FORWARD && f->quorum < f->plan->rows[i].n_in) return 1;
    return 0;
}

static int is_of_ranks(const hpc_exchange_config *f) {
    return f->quorum != 0 && f->graph == NULL && !hpc_plan_has_stages(f->plan) && misses_some(f);
}

/* Where several rows apply the same elements each has one input, a fold of all: such plans come here to be refused. */
static int is_of_groups(const hpc_exchange_config *f) {
    int other;
    return f->quorum != 0 && f->graph == NULL && hpc_plan_has_stages(f->plan) &&
           (hpc_plan_find_copy(f->plan, &other) >= 0 || misses_some(f));
}

static int check_config(const hpc_exchange_config *f) {
    static const char op[] = "exchange";
    if (!hpc_config_is_bsp(f))
        return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: a quorum of servers does not go with consistency %s", op,
                        hpc_consistency_name(f->consistency));
    if (f->shared_params || f->eager)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: a quorum of servers does not go with %s", op,
                        f->shared_params ? "shared_params" : "eager folds (deterministic=False)");
    if (hpc_config_own_fold(f) != NULL)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                        "%s: rule %s has a fold of its own; with a quorum some inputs may be missing from it", op,
                        hpc_config_own_fold(f)->name);
    return HPC_OK;
}

/* Tests of row i of a plan, and what a row is that fails one. */
typedef struct refusal {
    int (*refuses)(const hpc_plan *plan, int i);
    const char *row;
} refusal;

static int has_no_weight(const hpc_row *row) {
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].weight <= 0) return 1;
    return 0;
}

static int applies_not(const hpc_plan *plan, int i) {
    return plan->rows[i].action != HPC_APPLY || has_no_weight(&plan->rows[i]);
}

/* Two workers could wait for each other, each for a key of its own. */
static int has_other_workers(const hpc_plan *plan, int i) {
    const hpc_row *row = &plan->rows[i], *first = &plan->rows[0];
    for (int e = 0; e < row->n_in; e++) {
        int found = 0;
        for (int f = 0; f < first->n_in; f++) found |= row->in[e].rank == first->in[f].rank;
        if (!found) return 1;
    }
    return row->n_in != first->n_in;
}

static int takes_part(const hpc_plan *plan, int i) {
    const hpc_row *row = &plan->rows[i];
    return row->action == HPC_EMIT || (row->quorum != row->n_in && row->action != HPC_APPLY) || has_no_weight(row);
}

/* A row that forwards to one that applies has the version of its owner's own push, and the updates of others. */
static int forwards_for_others(const hpc_plan *plan, int i) {
    const hpc_row *row = &plan->rows[i];
    return hpc_forwards_to_rule(plan, row) && !hpc_row_has_input(row, row->owner);
}

static int forwards_one(const hpc_plan *plan, int i) {
    return plan->rows[i].n_in <= 1 && forwards_for_others(plan, i);
}

static const refusal of_ranks[] = {
    {applies_not, "emits, or has a weight of 0 or less; a quorum needs rows that apply what workers push"},
    {has_other_workers, "is pushed by other workers than row 0; with a quorum all push every key"},
    {NULL, NULL},
};

static const refusal of_groups[] = {
    {takes_part, "emits, or has a weight of 0 or less, or a quorum of its own; a quorum with several stages needs rows "
                 "that apply, forward or relay what all their inputs bring"},
    {forwards_one, "forwards to a row that applies, and has one input, not its owner's push; with a quorum one of the "
                   "ranks that push forwards it"},
    {forwards_for_others, "forwards to a row that applies, and its owner does not push to it; with a quorum one of the "
                          "ranks that push forwards it"},
    {NULL, NULL},
};

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    const int many = hpc_plan_has_stages(f->plan);
    int status = check_config(f), other, copy = many ? hpc_plan_find_copy(f->plan, &other) : -1;
    (void)c;
    if (status == HPC_OK && copy >= 0)
        status = hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                          "exchange: rows %d and %d apply the same elements; with a quorum they have one owner", other,
                          copy);
    for (int i = 0; i < f->plan->n_rows && status == HPC_OK; i++)
        for (const refusal *its = many ? of_groups : of_ranks; its->refuses != NULL && status == HPC_OK; its++)
            if (its->refuses(f->plan, i))
                status = hpc_fail(HPC_ERR_UNSUPPORTED, "exchange", "exchange: row %d %s", i, its->row);
    return status;
}

/* row applies the rule. Whether every rank that sends to the row gets the row's parameters: from the row itself, or
 * from a relay which that rank owns. */
static int answers_inputs(const hpc_row *row) {
    for (int i = 0; i < row->n_in; i++) {
        int answers = 0;
        for (int e = 0; e < row->n_out; e++) answers |= row->out[e].rank == row->in[i].rank;
        if (!answers) return 0;
    }
    return 1;
}

/* The rank that encodes a group's update must hear what becomes of it. */
static const char *refuses_pieces(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows; i++)
        if (f->plan->rows[i].action == HPC_APPLY && !answers_inputs(&f->plan->rows[i]))
            return "by the plan a rank that sends a group's update does not get the group's parameters, and would not "
                   "hear that the update was left out";
    return NULL;
}

/* ---- open ---- */

static int action_of(const hpc_engine *en, const hpc_share *share) {
    return en->plan->rows[share->rows[0]].action;
}

/* Without a bound staleness says nothing. */
static int prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    const size_t ranks = (size_t)en->context->group.size, keys = (size_t)en->plan->n_keys;
    const int many = hpc_plan_has_stages(en->plan), status = hpc_graph_prepare(en, f, op);
    hpc_quorum *q = en->own = status == HPC_OK ? hpc_engine_take(en, 1, sizeof *q, op) : NULL;
    if (q == NULL) return HPC_ERR_MEMORY;
    en->asked.quorum = f->quorum;
    en->asked.staleness = 0;
    q->keys = hpc_engine_take(en, keys, sizeof *q->keys, op);
    q->given_up = hpc_engine_take(en, ranks, 1, op);
    int *n = hpc_engine_take(en, ranks, sizeof *n, op);
    if (many) q->passed_at = hpc_engine_take(en, (size_t)en->plan->n_rows, sizeof *q->passed_at, op);
    if (q->keys == NULL || q->given_up == NULL || n == NULL || (many && q->passed_at == NULL)) return HPC_ERR_MEMORY;
    for (int i = 0; i < en->plan->n_rows && many; i++)
        if (en->plan->rows[i].action == HPC_RELAY) q->passed_at[i] = n[en->plan->rows[i].owner]++;
    return HPC_OK;
}

static size_t part(const hpc_engine *en, int rank) {
    const size_t numbers = (size_t)en->layout.places[rank].shares * (size_t)en->context->group.size;
    size_t told = (size_t)en->layout.n_shares;
    for (int i = 0; i < en->plan->n_rows && hpc_quorum_of(en)->passed_at != NULL; i++)
        told += en->plan->rows[i].action == HPC_RELAY && en->plan->rows[i].owner == rank;
    return told * sizeof(hpc_told) + numbers * (size_t)en->layout.depth * sizeof(uint64_t);
}

/* A version belongs to all keys, so a group does too. */
static int check_groups(const hpc_engine *en, const char *op) {
    for (int key = 1; key < en->plan->n_keys; key++)
        for (int r = 0; r < en->context->group.size; r++)
            if (hpc_sender_of(en, key, r) != hpc_sender_of(en, 0, r))
                return hpc_fail(
                    HPC_ERR_CONFIG, op,
                    "%s: the update of rank %d of key %s comes with those of other ranks than its update of "
                    "key %s: with a quorum the groups of all keys are the same",
                    op, r, en->plan->keys[key].name, en->plan->keys[0].name);
    return HPC_OK;
}

/* On a graph an update that travels is copied first, so the push's memory is free at once, however slowly the neighbour
 * takes the update. Takes room in this rank's part for that copy, of all rows. */
static size_t take_copy(hpc_engine *en, const hpc_share *share) {
    size_t nbytes = 0;
    if (en->graph == NULL || hpc_is_mapped(en, share->owner)) return HPC_NOWHERE;
    for (int i = 0; i < share->n_rows; i++) nbytes += hpc_row_bytes(en, &en->plan->rows[share->rows[i]]);
    return hpc_layout_take(&en->layout.places[hpc_me(en)], nbytes);
}

/* A rank sends to the shares that it gets parameters from, each of which has one answer for each of its pushes; on a
 * graph to its out-neighbours. */
static int open_shares(hpc_engine *en, const char *op) {
    int status = en->layout.stages.many ? hpc_groups_find(en, op) : HPC_OK;
    if (status == HPC_OK && en->layout.stages.many) status = check_groups(en, op);
    for (int s = 0; s < en->layout.n_shares && status == HPC_OK; s++) {
        hpc_share *share = &en->layout.shares[s];
        const int owns = share->owner == hpc_me(en) && action_of(en, share) != HPC_FORWARD;
        const int sends = hpc_share_is_awaited_by(en, share, hpc_me(en)) && !(owns && en->graph != NULL);
        if (!owns && !sends) continue;
        hpc_quorum_share *its = share->own = hpc_engine_take(en, 1, sizeof *its, op);
        if (its == NULL) return HPC_ERR_MEMORY;
        its->sends = sends;
        its->outlet.staged = sends ? take_copy(en, share) : HPC_NOWHERE;
    }
    return status;
}

static int open_all(hpc_engine *en, const char *op) {
    if (en->layout.stages.many) hpc_groups_name_outputs(en);
    return hpc_intake_open(en, op);
}

const hpc_opening hpc_quorum_opening = {.prepare = prepare, .part = part, .open_shares = open_shares, .open = open_all};

/* ---- the core: rows that forward ---- */

/* Tells the owners of the rows to which a share forwards the version of this rank's push in a slot. */
static void say_version(hpc_core *core, const hpc_share *share, int slot) {
    hpc_engine *en = core->engine;
    const uint64_t *number = &hpc_versions_of(en, share->key)->numbers[slot];
    int before = -1;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_row *row = &en->plan->rows[share->rows[i]];
        for (int e = 0; e < row->n_out; e++) {
            const int to = en->layout.share_of[row->out[e].row];
            if (to == before || en->plan->rows[row->out[e].row].action != HPC_APPLY) continue;
            before = to;
            hpc_core_check_put(core, hpc_put(core->out, en->window, row->out[e].rank, number, sizeof *number,
                                             hpc_number_at(en, &en->layout.shares[to], hpc_me(en), slot)));
        }
    }
}

/* ---- the core: rows that relay ---- */

/* Passes the outcome of an update on to the next relays, before the parameters go on. */
static void pass_on(hpc_core *core, const hpc_work *w) {
    const hpc_engine *en = core->engine;
    const hpc_share *share = w->share;
    hpc_passing *its = &((hpc_quorum_share *)share->own)->passing;
    const hpc_told *told = hpc_told_here(en, hpc_passed_at(en, w->index));
    for (int o = 0; o < w->n_outputs; o++)
        if (w->outputs[o].row >= 0)
            hpc_core_check_put(core, hpc_put(core->out, en->window, w->outputs[o].rank, told, sizeof *told,
                                             hpc_passed_at(en, w->outputs[o].row)));
    if (told->folded > its->told.folded) its->told.folded = told->folded;
    its->left_out |= !told->used;
    if (share->left > 1) return;
    its->told.used = !its->left_out;
    its->left_out = 0;
    for (int i = 0; i < share->n_members; i++)
        hpc_core_check_put(core, hpc_put(core->out, en->window, share->members[i], &its->told, sizeof its->told,
                                         hpc_told_at(en, share->members[i], (int)(share - en->layout.shares))));
}

/* ---- the core: events with several stages ---- */

static int share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    const hpc_engine *en = core->engine;
    if (action_of(en, share) == HPC_FORWARD) {
        if (rank == hpc_me(en)) say_version(core, share, slot);
        return hpc_whole_share_came(core, share, rank, slot);
    }
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        const int input = hpc_row_input_of(w, rank, 0);
        if (input < 0 || !hpc_intake_row_came(core, w, input, slot)) return 0;
    }
    return 1;
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    if (w->row->action == HPC_APPLY) return hpc_intake_row_came(core, w, input, slot);
    if (w->row->action == HPC_RELAY) pass_on(core, w);
    return hpc_whole_row_came(core, w, input, slot);
}

/* ---- the worker's pushes ---- */

/* The first key, if any, that is not pushed for the present version, or not answered; else -1. */
static int unfinished(const hpc_engine *en) {
    const hpc_quorum *q = hpc_quorum_of(en);
    for (int i = 0; i < en->plan->n_keys; i++) {
        const hpc_pushed *k = &en->keys[i];
        if (k->n_shares == 0) continue;
        if (k->sending != 0 || q->keys[i].number != q->number || !hpc_ticket_is_done(en, i, 2 * k->pushes)) return i;
    }
    return -1;
}

/* Refuses a second push of a key before all keys have been pushed and answered. */
static int may_push(hpc_engine *en, int key, const char *op) {
    const hpc_quorum *q = hpc_quorum_of(en);
    const int status = hpc_push_after(en, key, 2 * en->keys[key].pushes, op);
    if (status != HPC_OK) return status;
    const int other = q->keys[key].number < q->number ? -1 : unfinished(en);
    if (other < 0) return HPC_OK;
    if (op == NULL) return HPC_IN_PROGRESS;
    return hpc_fail(HPC_ERR_INVALID, op,
                    "%s: rank %d has pushed key %s for version %llu already, and key %s not, or not to its end: with a "
                    "quorum each key is pushed once for a version, and pulled before the next",
                    op, hpc_me(en), en->plan->keys[key].name, (unsigned long long)q->number,
                    en->plan->keys[other].name);
}

/* Hears of the last update, which may go back into the residual, before the next one is encoded over it. With several
 * stages a core hears of it, where this push has come there. */
static int wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    int status = hpc_outlet_send_all(en);
    if (status == HPC_OK) status = hpc_push_wait_slot(en, key, l, op);
    return status == HPC_OK ? hpc_outlet_hear(en, key) : status;
}

void hpc_quorum_choose_version(hpc_engine *en, int key, uint64_t (*next)(const hpc_engine *en)) {
    hpc_quorum *q = hpc_quorum_of(en);
    hpc_key_versions *of = hpc_versions_of(en, key);
    if (of->number == q->number) q->number = next(en);
    of->number = q->number;
    of->numbers[en->keys[key].pushes % (uint64_t)en->layout.depth] = of->number;
}

static uint64_t next_version(const hpc_engine *en) {
    uint64_t told = 0;
    for (int key = 0; key < en->plan->n_keys; key++) {
        const uint64_t its = hpc_outlet_told(en, key);
        if (its > told) told = its;
    }
    return told + 1;
}

static void begin_push(hpc_engine *en, int key) {
    hpc_quorum_choose_version(en, key, next_version);
    if (en->layout.stages.many) hpc_outlet_begin(en, key);
}

/* With one stage an update is sent when its slot is free (hpc_outlet_send_key). Else the version goes first: once a row
 * was sent the owner may read it. */
static int send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    const uint64_t *number = &hpc_versions_of(en, share->key)->numbers[slot];
    if (!en->layout.stages.many) return HPC_OK;
    if (action_of(en, share) == HPC_APPLY && share->pushed > 0 && en->keys[share->key].at_row == 0) {
        const int status = hpc_put(en->in_lanes[share->core], en->window, share->owner, number, sizeof *number,
                                   hpc_number_at(en, share, hpc_me(en), slot));
        if (status != HPC_OK) return status;
    }
    return hpc_push_share(en, s, slot, l);
}

/* ---- the ranks that a wait waits for ---- */

int hpc_quorum_missing(const hpc_engine *en, int s, uint64_t n, int *ranks, int found) {
    const hpc_share *share = &en->layout.shares[s];
    (void)n;
    for (int r = 0; r < en->context->group.size; r++)
        if ((en->graph == NULL || r != share->owner) && hpc_feeds_share(en, share, r) &&
            hpc_closed_signal(en, r) == 0 && hpc_version_from(share, r) == 0)
            found = hpc_add_rank(ranks, found, r);
    return found;
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(en, key, ticket, for_slot, ranks, hpc_share_has_answered, hpc_quorum_missing);
}

/* Adds the ranks by which updates of groups come that do not wait in a share in which one of this rank's group does. */
static int others(const hpc_engine *en, const hpc_share *share, int *ranks, int n) {
    const hpc_work *w = hpc_first_work(en, share);
    if (hpc_version_from(share, hpc_sender_of(en, 0, hpc_me(en))) == 0) return n;
    for (int e = 0; e < w->row->n_in; e++)
        if (hpc_version_from(share, w->inputs[e].lowest) == 0 && hpc_closed_signal(en, w->inputs[e].rank) == 0)
            n = hpc_add_rank(ranks, n, w->inputs[e].rank);
    return n;
}

static int has_brought(const hpc_share *share, int group, uint64_t push) {
    (void)push;
    return hpc_version_from(share, group) != 0;
}

static int awaited_by_group(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    (void)for_slot;
    return hpc_groups_awaited(en, key, ticket, &(const hpc_groups_lack){others, has_brought}, ranks);
}

/* ---- pushes that end ---- */

static int is_short(const hpc_engine *en, int key) {
    return hpc_versions_of(en, key)->number > en->discipline->facts->version(en, key);
}

/* Returns HPC_ERR_PEER when so many workers have closed that the last push of key has found no quorum. */
int hpc_quorum_ended(hpc_engine *en, int key, const char *op) {
    if (!is_short(en, key)) return HPC_OK;
    int *closed = malloc((size_t)en->context->group.size * sizeof *closed), n = 0;
    for (int r = 0; r < en->context->group.size && closed != NULL; r++)
        if (en->layout.places[r].worker && hpc_closed_signal(en, r) != 0) closed[n++] = r;
    char who[96] = "too many workers have closed the exchange, as its owner says"; /* if none has told this rank yet */
    if (n > 0) snprintf(who, sizeof who, "%d workers have closed the exchange, rank %d among them", n, closed[0]);
    int status = hpc_group_fail_closed(
        &en->context->group, op, closed, n, "version %llu of key %s finds no quorum of %d any more: %s",
        (unsigned long long)hpc_versions_of(en, key)->number, en->plan->keys[key].name, en->asked.quorum, who);
    free(closed);
    return status;
}

/* Makes a note of how many last pushes have found no quorum. Pushes that a pull has waited for do not count: the pull
 * has reported them. */
void hpc_quorum_closing(hpc_engine *en) {
    int n = 0, first = -1;
    for (int i = en->plan->n_keys - 1; i >= 0; i--) {
        if (en->keys[i].since == 0 || !is_short(en, i)) continue;
        first = i;
        n++;
    }
    if (n > 0)
        hpc_group_note(&en->context->group, HPC_NOTE_LOST,
                       "lost the last push of %d key%s of rank %d, %.64s first: version %llu found no quorum of %d", n,
                       n == 1 ? "" : "s", hpc_me(en), en->plan->keys[first].name,
                       (unsigned long long)hpc_versions_of(en, first)->number, en->asked.quorum);
}

/* ---- a state is loaded ---- */

/* All ranks of groups go on from the newest version. Nothing is under way anywhere, so all shares have folded it. */
static int level(hpc_engine *en, const char *op, double deadline) {
    uint64_t folded = 0;
    for (int s = 0; s < en->layout.n_shares; s++) {
        const hpc_share *share = &en->layout.shares[s];
        if (hpc_intake_of(share) != NULL && hpc_folded_of(share) > folded) folded = hpc_folded_of(share);
    }
    return hpc_outlet_newest(en, op, deadline, folded, &hpc_quorum_of(en)->told);
}

/* ---- the values ---- */

const hpc_discipline hpc_discipline_quorum = {
    .name = "a quorum",
    .suits = is_of_ranks,
    .check = check,
    .quorum = 1,
    .goes_on = 1,
    .whole = 1,
    .one_slot = 1,
    .opening = &hpc_quorum_opening,
    .share_bytes = sizeof(uint64_t),
    .share_came = hpc_intake_share_came,
    .work = hpc_intake_work,
    .may_push = may_push,
    .wait_slot = wait_slot,
    .hear = hpc_outlet_hear,
    .begin_push = begin_push,
    .send_share = send_share,
    .pushed = hpc_outlet_send_key,
    .awaited = awaited,
    .progress = hpc_outlet_send_all,
    .ended = hpc_quorum_ended,
    .leaving = &(const hpc_leaving){.closing = hpc_quorum_closing},
    .facts = &(const hpc_facts){.after_publish = hpc_intake_tell,
                                .late = hpc_outlet_late,
                                .version = hpc_outlet_told,
                                .heard = hpc_outlet_heard,
                                .count = hpc_outlet_count,
                                .count_peer = hpc_outlet_count_peer},
};

const hpc_discipline hpc_discipline_groups_quorum = {
    .name = "a quorum of groups",
    .suits = is_of_groups,
    .check = check,
    .refuses_pieces = refuses_pieces,
    .quorum = 1,
    .goes_on = 1,
    .opening = &hpc_quorum_opening,
    .share_came = share_came,
    .row_came = row_came,
    .work = hpc_intake_work,
    .may_push = may_push,
    .wait_slot = wait_slot,
    .hear = hpc_outlet_hear,
    .begin_push = begin_push,
    .send_share = send_share,
    .needs = hpc_groups_need,
    .awaited = awaited_by_group,
    .ended = hpc_quorum_ended,
    .leaving = &(const hpc_leaving){.closing = hpc_quorum_closing},
    .facts = &(const hpc_facts){.before_publish = level,
                                .late = hpc_outlet_late,
                                .version = hpc_outlet_told,
                                .heard = hpc_outlet_heard,
                                .count = hpc_outlet_count,
                                .count_peer = hpc_outlet_count_peer},
};
