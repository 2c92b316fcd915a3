/* A quorum with several stages: the ranks of a group (a host, or a rack) fold their updates first, all together as
 * under BSP, and their fold is one update to the owner. The owner goes on without groups that come late, as quorum.c
 * says of ranks on servers: versions, the grace, and what becomes of a late update are the same, with a group in the
 * place of a worker. A late group's update is left out; all its ranks get the newest parameters, and are told.
 *
 * All ranks of a group push for the same version. Each of them waits for the answer to each row that applies, by relays
 * or straight, before it goes on; and what an owner answers to a group it says to all ranks of it. So when they choose
 * the version after the newest that was told, of all keys, they choose the same.
 *
 * An update tells the owner its version. The owner tells the group which version was folded last, and whether the
 * update was used. Writers, readers and order:
 *
 * The version is put into the owner's part by the rank whose input it is: by a worker that pushes straight to the row,
 * before its push, by the same lane; by a forwarding rank's core, by the lane of its forwards, when that rank's own
 * push comes. That push is an input of the forward, so the forward comes later. The owner reads it with the event of
 * each row, and the next one is put with the group's next push. The put reads the version from the place that the
 * worker has for the slot. The worker writes that place before its push, and again when the slot is free.
 *
 * The outcome of an update is put into the part of each relay, one place a row, before the parameters, which bring the
 * event; and from one relay to the next in the same way. A relay's share adds up what its rows have brought (the newest
 * version; left out if some row says so). When its last row has come it puts the sum to the ranks that it answers, and
 * then answers. The owner puts from one place for each group, and a relay's share from one place: both are written for
 * the next reply to the group, which comes after all its ranks had this one. A relay passes on from the place into
 * which it was told, which is written with that reply too.
 *
 * Parameters are sent from a copy for each receiver (rows.c), as in groups.c. Slots, forwarding accumulators and relays
 * are as under BSP (stages.c).
 *
 * Nobody waits in a circle, if all ranks of a group push all keys in the same order, or before they wait. Inside a
 * group all wait for the same folds, as under BSP: so a group pushes all keys for a version as one worker does. Between
 * groups it is as between the workers of servers: where a share has made fold v the groups in it have pushed v, there
 * and to all other shares, so all of them find a quorum for v.
 *
 * A group of which a rank has closed brings no more updates. That rank has waited for the answers to all its pushes, so
 * none of the group's is on its way. Its mates cannot push any more, and are told. */
#include <stdlib.h>

#include "discipline/discipline.h"
#include "discipline/grouping.h"
#include "discipline/quorum_outlet.h"
#include "discipline/server_intake.h"
#include "discipline/whole.h"
#include "engine/answer.h"
#include "engine/stages.h"

/* ---- what is asked for ---- */

/* A quorum of all groups is the same as no quorum. Where several rows apply the same elements each has one input, a
 * fold of all: such plans come here to be refused. */
static int suits(const hpc_exchange_config *f) {
    int other;
    if (f->quorum == 0 || f->graph != NULL || !hpc_plan_has_stages(f->plan)) return 0;
    if (hpc_plan_find_copy(f->plan, &other) >= 0) return 1;
    for (int i = 0; i < f->plan->n_rows; i++)
        if (f->plan->rows[i].action != HPC_FORWARD && f->quorum < f->plan->rows[i].n_in) return 1;
    return 0;
}

/* A row that forwards to one that applies has the version of its owner's own push, and the updates of others. */
static int check_forward(const hpc_plan *plan, int i) {
    const hpc_row *row = &plan->rows[i];
    if (!hpc_forwards_to_rule(plan, row) || hpc_row_has_input(row, row->owner)) return HPC_OK;
    return hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                    "exchange: row %d forwards to a row that applies, and %s; with a quorum one of the ranks that push "
                    "forwards it",
                    i, row->n_in > 1 ? "its owner does not push to it" : "has one input, not its owner's push");
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    int status = hpc_quorum_check_servers(f), other, copy = hpc_plan_find_copy(f->plan, &other);
    (void)c;
    if (status == HPC_OK && copy >= 0)
        status = hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                          "exchange: rows %d and %d apply the same elements; with a quorum they have one owner", other,
                          copy);
    for (int i = 0; i < f->plan->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &f->plan->rows[i];
        int plain = row->action != HPC_EMIT && (row->quorum == row->n_in || row->action == HPC_APPLY);
        for (int e = 0; e < row->n_in; e++) plain &= row->in[e].weight > 0;
        if (!plain)
            return hpc_fail(
                HPC_ERR_UNSUPPORTED, "exchange",
                "exchange: row %d emits, or has a weight of 0 or less, or a quorum of its own; a quorum with "
                "several stages needs rows that apply, forward or relay what all their inputs bring",
                i);
        if (row->action == HPC_FORWARD) status = check_forward(f->plan, i);
    }
    return status;
}

/* ---- open ---- */

static int action_of(const hpc_engine *en, const hpc_share *share) {
    return en->plan->rows[share->rows[0]].action;
}

static int prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    const size_t ranks = (size_t)en->context->group.size, rows = (size_t)en->plan->n_rows;
    int status = hpc_quorum_prepare(en, f, op);
    if (status != HPC_OK) return status;
    hpc_quorum *q = hpc_quorum_of(en);
    int *n = calloc(ranks, sizeof *n);
    q->passed_at = malloc(rows * sizeof *q->passed_at);
    if (n == NULL || q->passed_at == NULL) status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for groups", op);
    for (int i = 0; i < en->plan->n_rows && status == HPC_OK; i++)
        q->passed_at[i] = en->plan->rows[i].action == HPC_RELAY ? n[en->plan->rows[i].owner]++ : 0;
    free(n);
    return status;
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

/* A rank sends to the shares that it gets parameters from: each of them has one answer for each of its pushes. */
static int open_shares(hpc_engine *en, const char *op) {
    int status = hpc_groups_find(en, op);
    if (status == HPC_OK) status = check_groups(en, op);
    for (int s = 0; s < en->layout.n_shares && status == HPC_OK; s++) {
        hpc_share *share = &en->layout.shares[s];
        const int applies = share->owner == hpc_me(en) && action_of(en, share) == HPC_APPLY;
        const int relays = share->owner == hpc_me(en) && action_of(en, share) == HPC_RELAY;
        const int awaits = hpc_share_is_awaited_by(en, share, hpc_me(en));
        if (applies || relays || awaits) status = hpc_quorum_open_share(en, share, applies, awaits, op);
    }
    return status;
}

static int open_all(hpc_engine *en, const char *op) {
    hpc_groups_name_outputs(en);
    return hpc_quorum_open_cores(en, 0, op);
}

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

static hpc_told *passed(const hpc_engine *en, int row) {
    return (hpc_told *)(void *)(hpc_own_part(en) + hpc_passed_at(en, row));
}

/* Passes the outcome of an update on to the next relays, before the parameters go on. */
static void pass_on(hpc_core *core, const hpc_work *w) {
    hpc_engine *en = core->engine;
    hpc_share *share = w->share;
    hpc_passing *its = &((hpc_quorum_share *)share->own)->passing;
    const hpc_told *told = passed(en, w->index);
    for (int o = 0; o < w->n_outputs; o++)
        if (w->outputs[o].row >= 0)
            hpc_core_check_put(core, hpc_put(core->out, en->window, w->outputs[o].rank, told, sizeof *told,
                                             hpc_passed_at(en, w->outputs[o].row)));
    if (told->folded > its->told.folded) its->told.folded = told->folded;
    its->left_out |= !told->used;
    if (share->left > 1) return;
    its->told.used += !its->left_out;
    its->left_out = 0;
    for (int i = 0; i < share->n_members; i++)
        hpc_core_check_put(core, hpc_put(core->out, en->window, share->members[i], &its->told, sizeof its->told,
                                         hpc_told_at(en, share->members[i], (int)(share - en->layout.shares))));
}

/* ---- the core: events ---- */

static int share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    const hpc_engine *en = core->engine;
    if (action_of(en, share) == HPC_FORWARD) {
        if (rank == hpc_me(en)) say_version(core, share, slot);
        return hpc_whole_share_came(core, share, rank, slot);
    }
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        const int input = hpc_row_input_of(w, rank, 0);
        if (input < 0 || !hpc_server_intake_row_came(core, w, input, slot)) return 0;
    }
    return 1;
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    if (w->row->action == HPC_APPLY) return hpc_server_intake_row_came(core, w, input, slot);
    if (w->row->action == HPC_RELAY) pass_on(core, w);
    return hpc_whole_row_came(core, w, input, slot);
}

/* ---- the worker ---- */

static void begin_push(hpc_engine *en, int key) {
    hpc_quorum_choose_version(en, key, hpc_outlet_next_version);
    hpc_outlet_begin(en, key);
}

/* Once a row was sent the owner may read the version. */
static int send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    const uint64_t *number = &hpc_versions_of(en, share->key)->numbers[slot];
    if (action_of(en, share) == HPC_APPLY && share->pushed > 0 && en->keys[share->key].at_row == 0) {
        const int status = hpc_put(en->in_lanes[share->core], en->window, share->owner, number, sizeof *number,
                                   hpc_number_at(en, share, hpc_me(en), slot));
        if (status != HPC_OK) return status;
    }
    return hpc_push_share(en, s, slot, l);
}

/* Adds the ranks by which updates of groups come that do not wait in a share in which one of this rank's group does. */
static int others(const hpc_engine *en, const hpc_share *share, int *ranks, int n) {
    const hpc_work *w = hpc_first_work(en, share);
    if (hpc_version_from(share, hpc_quorum_sender(en, hpc_me(en))) == 0) return n;
    for (int e = 0; e < w->row->n_in; e++)
        if (hpc_version_from(share, w->inputs[e].lowest) == 0 && hpc_closed_signal(en, w->inputs[e].rank) == 0)
            n = hpc_add_rank(ranks, n, w->inputs[e].rank);
    return n;
}

static int has_brought(const hpc_share *share, int group, uint64_t push) {
    (void)push;
    return hpc_version_from(share, group) != 0;
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    (void)for_slot;
    return hpc_groups_awaited(en, key, ticket, &(const hpc_groups_lack){others, has_brought}, ranks);
}

/* ---- a state is loaded ---- */

/* All ranks go on from the newest version. Nothing is under way anywhere, so all shares have folded it. */
static int level(hpc_engine *en, const char *op, double deadline) {
    uint64_t folded = 0;
    for (int s = 0; s < en->layout.n_shares; s++) {
        const hpc_intake *in = en->layout.shares[s].own == NULL ? NULL : hpc_intake_of(&en->layout.shares[s]);
        const uint64_t own = in == NULL ? 0 : atomic_load_explicit(&in->folded, memory_order_acquire);
        if (own > folded) folded = own;
    }
    return hpc_outlet_newest(en, op, deadline, folded, &hpc_quorum_of(en)->told);
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

/* Answers are heard before the next update is encoded: here, or by a core when this push has come there. */
static int wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    const int status = hpc_push_wait_slot(en, key, l, op);
    return status == HPC_OK ? hpc_outlet_hear(en, key) : status;
}

const hpc_discipline hpc_discipline_groups_quorum = {
    .name = "a quorum of groups",
    .suits = suits,
    .check = check,
    .refuses_pieces = refuses_pieces,
    .quorum = 1,
    .goes_on = 1,
    .opening = &(const hpc_opening){.prepare = prepare,
                                    .part = hpc_quorum_part,
                                    .open_shares = open_shares,
                                    .open = open_all,
                                    .free = hpc_quorum_free},
    .share_came = share_came,
    .row_came = row_came,
    .work = hpc_server_intake_work,
    .may_push = hpc_quorum_may_push,
    .wait_slot = wait_slot,
    .hear = hpc_outlet_hear,
    .begin_push = begin_push,
    .send_share = send_share,
    .needs = hpc_groups_need,
    .awaited = awaited,
    .ended = hpc_quorum_ended,
    .leaving = &(const hpc_leaving){.closing = hpc_quorum_closing},
    .facts = &(const hpc_facts){.before_publish = level,
                                .late = hpc_outlet_late,
                                .version = hpc_outlet_told,
                                .heard = hpc_outlet_heard,
                                .count = hpc_outlet_count,
                                .count_peer = hpc_outlet_count_peer},
};
