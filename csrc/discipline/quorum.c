/* A fold that goes on without stragglers: it is made when a quorum of the updates is there and the grace for the others
 * is over. On servers this is BSP with a quorum of the workers; on a graph NOTIFY-ACK with one of the in-neighbours.
 * With several stages it is one of the groups that fold first (groups_quorum.c).
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
 * On servers
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
 * Were keys counted by themselves, two workers could wait for each other, each for a key in which it is ahead.
 *
 * On a graph
 * The fold of a rank's push of version n takes from each in-neighbour an update of version n or newer. The rank does
 * not wait for its out-neighbours. A push is
 *   sent       if the last one to that neighbour is answered; the update is used, or late
 *   not sent   if it was not until the next push needed this one's memory, or the answer said that this version has
 *              been folded: it is dropped and nothing travels for it
 * A push that needs the memory of an earlier one waits for neighbours that have not taken that one. It waits twice as
 * long as a fold, as they may be waiting for others themselves, but not for a neighbour that let a push wait in vain
 * and has answered none since.
 *
 * A straggler catches up: its next version is the newest that a quorum of its in-neighbours has pushed, in any key.
 * They may have folded that version already, and then its update is late once more; but it never waits for an update
 * that they may not push. A rank without in-neighbours goes one past the newest version that its out-neighbours have
 * folded. A version belongs to all keys and cores, and is chosen when a key is pushed again.
 *
 * When a state is loaded all ranks go on from the largest version of any rank, beyond which nobody has pushed. So every
 * update that was sent before is late, be it in a slot or on its way. Its sender waits for the answer: else its next
 * push would have to wait for its next call.
 *
 * A fold of version n may be made when a quorum of the in-neighbours has brought n or newer, be it to an earlier fold.
 * A rank that has closed is left out, and the quorum is one of the rest: a straggler may end its steps alone, after all
 * others.
 *
 * Nobody waits in a circle, if all ranks push all keys in the same order, or before they wait. Of all ranks that wait
 * look at one that is the least far: in version n, and there in the first key. A quorum of its in-neighbours has pushed
 * the key before, or a key from which it has chosen n, for n or newer. They push all keys of a version before they go
 * to another, so they push this key too; they are not less far, so they have pushed it. */
#include "base/overdue.h"
#include "discipline/discipline.h"
#include "discipline/grouping.h"
#include "discipline/quorum.h"

/* ---- what is asked for ---- */

/* A quorum of all inputs is the same as no quorum. On a graph a rank's own update is not counted among the inputs. */
static int suits(const hpc_exchange_config *f) {
    if (f->quorum == 0 || hpc_plan_has_stages(f->plan)) return 0;
    for (int i = 0; i < f->plan->n_rows; i++)
        if (f->quorum < f->plan->rows[i].n_in - (f->graph != NULL)) return 1;
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

static int check_servers(const hpc_exchange_config *f) {
    static const char op[] = "exchange";
    const int status = hpc_quorum_check_servers(f);
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

static int check_graph(const hpc_exchange_config *f) {
    if (f->consistency != HPC_NOTIFY_ACK || f->graph->n_phases > 1)
        return hpc_fail(
            HPC_ERR_UNSUPPORTED, "exchange",
            "exchange: quorum is %d under %s, on a graph of %d phases; on a graph a quorum needs NOTIFY_ACK "
            "and one phase",
            f->quorum, hpc_consistency_name(f->consistency), f->graph->n_phases);
    return hpc_graph_check_partial(f, "NOTIFY_ACK with a quorum", "exchange");
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    return f->graph != NULL ? check_graph(f) : check_servers(f);
}

static int is_on_servers(const hpc_engine *en) {
    return !hpc_own_leads(en);
}

/* ---- open ---- */

/* On a graph an update that travels is copied first. Takes room in this rank's part for that copy, of all rows. */
static void open_outlet(hpc_engine *en, const hpc_share *share, hpc_outlet *out) {
    size_t nbytes = 0;
    if (is_on_servers(en) || hpc_is_mapped(en, share->owner)) return;
    for (int i = 0; i < share->n_rows; i++) nbytes += hpc_row_bytes(en, &en->plan->rows[share->rows[i]]);
    out->staged = hpc_layout_take(&en->layout.places[hpc_me(en)], nbytes);
}

static int open_shares(hpc_engine *en, const char *op) {
    int status = HPC_OK;
    for (int s = 0; s < en->layout.n_shares && status == HPC_OK; s++) {
        hpc_share *share = &en->layout.shares[s];
        int owns = share->owner == hpc_me(en),
            sends = hpc_feeds_share(en, share, hpc_me(en)) && (!owns || is_on_servers(en));
        if (!owns && !sends) continue;
        status = hpc_quorum_open_share(en, share, owns, sends, op);
        if (status == HPC_OK && sends) open_outlet(en, share, hpc_outlet_of(share));
    }
    return status;
}

/* A pull waits for the shares that make this rank's parameters: on a graph its own. */
static int makes_params(const hpc_engine *en, const hpc_share *share) {
    return is_on_servers(en) || hpc_graph_makes_params(en, share);
}

/* ---- the worker's waits ---- */

/* Waits until a push has been folded here, and then for neighbours that have not taken it, as long as they are given.
 * That may be longer than this call has. */
static int wait_taken(hpc_engine *en, int key, uint64_t ticket, hpc_limit *l, const char *op) {
    hpc_key_versions *of = hpc_versions_of(en, key);
    int status = hpc_outlet_send_all(en);
    hpc_outlet_give_up(en, key, ticket / 2, 0);
    if (status == HPC_OK && !hpc_ticket_is_done(en, key, ticket))
        status = hpc_ticket_wait(en, key, ticket, hpc_limit_left(en, l), op);
    if (status == HPC_OK && !hpc_ticket_is_free(en, key, ticket)) {
        double now = hpc_now(), left = hpc_limit_left(en, l);
        if (of->waits_since == 0) of->waits_since = now;
        double given = of->waits_since + hpc_outlet_patience(en, key) - now;
        int before = hpc_slice_waits(given < left);
        status = hpc_ticket_wait_slot(en, key, ticket, given < left ? given > 0 ? given : 0 : left, op);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && given <= left) {
            hpc_outlet_give_up(en, key, ticket / 2, 1);
            status = HPC_OK;
        }
    }
    if (status == HPC_OK) of->waits_since = 0;
    return status;
}

/* On servers all pushes are answered by now. What came back is heard before the next update is encoded over it. */
static int wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    const int status = wait_taken(en, key, hpc_slot_ticket(en, key), l, op);
    return status == HPC_OK && is_on_servers(en) ? hpc_outlet_hear(en, key) : status;
}

/* Waits until the neighbours have taken the last push and it has arrived, or until their time is over. */
static int finish(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    const hpc_pushed *k = &en->keys[key];
    int status = wait_taken(en, key, 2 * k->pushes, l, op);
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++) {
        const hpc_share *share = &en->layout.shares[k->shares[i]];
        if (hpc_outlet_of(share) == NULL || hpc_share_has_answered(en, k->shares[i], 2 * hpc_outlet_of(share)->sent))
            continue;
        double left = hpc_limit_left(en, l), patience = hpc_outlet_patience(en, key);
        int before = hpc_slice_waits(patience < left);
        status = hpc_flush(en->in_lanes[share->core], en->window, share->owner, patience < left ? patience : left);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && patience < left) status = HPC_OK;
        status = hpc_unless_left(en, share->owner, status);
    }
    return status;
}

/* ---- the worker's pushes ---- */

static int may_push(hpc_engine *en, int key, const char *op) {
    return is_on_servers(en) ? hpc_quorum_may_push(en, key, op) : HPC_OK;
}

/* On a graph looks first for updates that have come meanwhile. */
static void begin_push(hpc_engine *en, int key) {
    if (!is_on_servers(en)) {
        hpc_graph_begin_push(en, key);
        hpc_group_progress(&en->context->group);
    }
    hpc_quorum_choose_version(en, key);
}

/* Sends what leads this rank's own fold; an update is sent when its slot is free (hpc_outlet_send_key). */
static int send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    if (hpc_outlet_of(share) != NULL || hpc_intake_of(share) == NULL) return HPC_OK;
    const uint64_t *number = &hpc_versions_of(en, share->key)->numbers[slot];
    return hpc_send_event(en, share->core, share->owner, number, sizeof *number,
                          hpc_number_at(en, share, share->owner, slot), hpc_imm(HPC_OP_SHARE, slot, s), l);
}

/* On servers owners may read a push in this rank's memory until they answer. On a graph that memory is free once the
 * push was sent, which copies it, or dropped. */
static int has_read(const hpc_engine *en, int s, uint64_t ticket) {
    const hpc_share *share = &en->layout.shares[s];
    const hpc_outlet *out = hpc_outlet_of(share);
    if (is_on_servers(en) || share->owner == hpc_me(en)) return hpc_share_has_answered(en, s, ticket);
    return out == NULL || out->decided >= ticket / 2 || hpc_closed_signal(en, share->owner) != 0;
}

static int is_free(const hpc_engine *en, int key, uint64_t ticket) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (!has_read(en, k->shares[i], ticket)) return 0;
    return 1;
}

/* Those whose updates do not wait in this rank's own share. */
static int missing(const hpc_engine *en, int s, uint64_t n, int *ranks, int found) {
    const hpc_share *share = &en->layout.shares[s];
    (void)n;
    for (int r = 0; r < en->context->group.size; r++)
        if (hpc_feeds_share(en, share, r) && (is_on_servers(en) || r != share->owner) &&
            hpc_closed_signal(en, r) == 0 && hpc_version_from(share, r) == 0)
            found = hpc_add_rank(ranks, found, r);
    return found;
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(en, key, ticket, for_slot, ranks, has_read, missing);
}

/* ---- state and facts ---- */

static void restored(hpc_engine *en, const hpc_work *w, uint64_t step) {
    hpc_phases *g = en->graph;
    if (g != NULL) g->keys[w->row->key].ahead = (int64_t)(step - hpc_quorum_of(en)->number);
}

static int before_publish(hpc_engine *en, const char *op, double deadline) {
    return is_on_servers(en) ? HPC_OK : hpc_outlet_level(en, op, deadline);
}

static int after_publish(hpc_engine *en) {
    return is_on_servers(en) ? hpc_intake_tell(en) : HPC_OK;
}

static const char *refuses_pieces(const hpc_exchange_config *f) {
    return f->graph == NULL
               ? NULL
               : "an update that one neighbour leaves out and another takes cannot go back into the residual";
}

const hpc_discipline hpc_discipline_quorum = {
    .name = "a quorum",
    .suits = suits,
    .check = check,
    .refuses_pieces = refuses_pieces,
    .quorum = 1,
    .goes_on = is_on_servers,
    .whole = 1,
    .puts = hpc_own_leads,
    .one_slot = 1,
    .opening = &(const hpc_opening){.prepare = hpc_quorum_prepare,
                                    .part = hpc_quorum_part,
                                    .open_shares = open_shares,
                                    .open = hpc_quorum_open,
                                    .free = hpc_quorum_free},
    .makes_params = makes_params,
    .share_bytes = sizeof(uint64_t),
    .puts_shares = 1,
    .share_came = hpc_intake_share_came,
    .work = hpc_intake_work,
    .may_push = may_push,
    .wait_slot = wait_slot,
    .hear = hpc_outlet_hear,
    .begin_push = begin_push,
    .send_share = send_share,
    .pushed = hpc_outlet_send_key,
    .is_free = is_free,
    .awaited = awaited,
    .progress = hpc_outlet_send_all,
    .ended = hpc_quorum_ended,
    .leaving = &(const hpc_leaving){.finish = finish, .closing = hpc_quorum_closing},
    .facts = &(const hpc_facts){.restored = restored,
                                .before_publish = before_publish,
                                .after_publish = after_publish,
                                .late = hpc_outlet_late,
                                .version = hpc_outlet_version,
                                .count = hpc_quorum_count,
                                .count_peer = hpc_quorum_count_peer},
};
