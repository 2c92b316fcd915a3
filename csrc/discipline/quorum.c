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
#include "discipline/discipline.h"
#include "discipline/grouping.h"
#include "discipline/quorum_outlet.h"
#include "discipline/server_intake.h"
#include "engine/stages.h"

/* ---- what is asked for ---- */

/* A quorum of all inputs is the same as no quorum. */
static int suits(const hpc_exchange_config *f) {
    if (f->quorum == 0 || f->graph != NULL || hpc_plan_has_stages(f->plan)) return 0;
    for (int i = 0; i < f->plan->n_rows; i++)
        if (f->quorum < f->plan->rows[i].n_in) return 1;
    return 0;
}

static int has_workers_of(const hpc_row *row, const hpc_row *other) {
    int same = row->n_in == other->n_in;
    for (int e = 0; e < row->n_in && same; e++) {
        same = 0;
        for (int f = 0; f < other->n_in; f++) same |= row->in[e].rank == other->in[f].rank;
    }
    return same;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    static const char op[] = "exchange";
    const int status = hpc_quorum_check_servers(f);
    (void)c;
    if (status != HPC_OK) return status;
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        int plain = row->action == HPC_APPLY;
        for (int e = 0; e < row->n_in; e++) plain &= row->in[e].weight > 0;
        if (!plain)
            return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                            "%s: row %d emits, or has a weight of 0 or less; a quorum needs rows that apply what "
                            "workers push",
                            op, i);
        if (!has_workers_of(row, &f->plan->rows[0])) /* else two could wait for each other, each for a key of its own */
            return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                            "%s: row %d is pushed by other workers than row 0; with a quorum all push every key", op,
                            i);
    }
    return HPC_OK;
}

/* ---- open ---- */

static int open_shares(hpc_engine *en, const char *op) {
    int status = HPC_OK;
    for (int s = 0; s < en->layout.n_shares && status == HPC_OK; s++) {
        hpc_share *share = &en->layout.shares[s];
        int owns = share->owner == hpc_me(en), sends = hpc_feeds_share(en, share, hpc_me(en));
        if (owns || sends) status = hpc_quorum_open_share(en, share, owns, sends, op);
    }
    return status;
}

static int open_all(hpc_engine *en, const char *op) {
    return hpc_quorum_open_cores(en, 0, op);
}

/* ---- the worker ---- */

/* Hears of the last update, which may go back into the residual, before the next one is encoded over it. */
static int wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    int status = hpc_outlet_send_all(en);
    if (status == HPC_OK) status = hpc_push_wait_slot(en, key, l, op);
    return status == HPC_OK ? hpc_outlet_hear(en, key) : status;
}

static void begin_push(hpc_engine *en, int key) {
    hpc_quorum_choose_version(en, key, hpc_outlet_next_version);
}

/* An update is sent when its slot is free (hpc_outlet_send_key). */
static int send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    (void)en, (void)s, (void)slot, (void)l;
    return HPC_OK;
}

/* Adds the ranks whose updates do not wait in this rank's own share. */
static int missing(const hpc_engine *en, int s, uint64_t n, int *ranks, int found) {
    const hpc_share *share = &en->layout.shares[s];
    (void)n;
    for (int r = 0; r < en->context->group.size; r++)
        if (hpc_feeds_share(en, share, r) && hpc_closed_signal(en, r) == 0 && hpc_version_from(share, r) == 0)
            found = hpc_add_rank(ranks, found, r);
    return found;
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(en, key, ticket, for_slot, ranks, hpc_share_has_answered, missing);
}

const hpc_discipline hpc_discipline_quorum = {
    .name = "a quorum",
    .suits = suits,
    .check = check,
    .quorum = 1,
    .goes_on = 1,
    .whole = 1,
    .one_slot = 1,
    .opening = &(const hpc_opening){.prepare = hpc_quorum_prepare,
                                    .part = hpc_quorum_part,
                                    .open_shares = open_shares,
                                    .open = open_all,
                                    .free = hpc_quorum_free},
    .share_bytes = sizeof(uint64_t),
    .share_came = hpc_server_intake_share_came,
    .work = hpc_server_intake_work,
    .may_push = hpc_quorum_may_push,
    .wait_slot = wait_slot,
    .hear = hpc_outlet_hear,
    .begin_push = begin_push,
    .send_share = send_share,
    .pushed = hpc_outlet_send_key,
    .awaited = awaited,
    .progress = hpc_outlet_send_all,
    .ended = hpc_quorum_ended,
    .leaving = &(const hpc_leaving){.closing = hpc_quorum_closing},
    .facts = &(const hpc_facts){.after_publish = hpc_server_intake_tell,
                                .late = hpc_outlet_late,
                                .version = hpc_outlet_told,
                                .heard = hpc_outlet_heard,
                                .count = hpc_outlet_count,
                                .count_peer = hpc_outlet_count_peer},
};
