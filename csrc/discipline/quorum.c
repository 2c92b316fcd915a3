/* A quorum: folds that are made without stragglers. A fold is made when a quorum of the updates has come and the grace,
 * the time for the other updates, is over. A *sender* of updates is a worker that pushes to servers; with several
 * stages (servers_groups.h) a group of ranks, a host or a rack, whose updates are folded first, all together as under
 * BSP; on a graph an in-neighbour.
 *
 * A sender has at most one unanswered update at a share (all rows of one key on one core of an owner). The sender puts
 * the update's version, then the update itself (unless the owner can read it in the sender's memory), then an event. It
 * writes neither again until the owner has answered. So no update is overwritten while it is read. A rank that stands
 * still delays only its own update.
 *
 * Pushes have *versions*. An update for an older version than the next fold's is late: the owner answers it at once and
 * leaves it out, and owner and sender count it. The answer says whether the update was used, and which version was
 * folded last. So the sender learns the outcome of each of its pushes.
 *
 * The grace. A fold that has its quorum still waits for the other senders that it expects. A sender is expected if it
 * is at most two versions behind (so it may soon send this version), and if no fold has waited for it in vain since its
 * last update. The fold waits for as long as these senders usually take (RFC 6298: the mean plus four mean deviations),
 * or for the time that the user set. A fold that goes on without an expected sender is measured as if that update had
 * come just then. If that happens rarely, the learned time hardly changes; if it happens in more than a third of all
 * folds, the time grows.
 *
 * Servers. A worker pushes for the version that follows the newest version that any owner has told it; a fold takes
 * only updates for one version. If a worker's update
 * - is in the fold, the worker gets the parameters and an answer, as under BSP;
 * - has not come yet, the worker gets nothing: it computes, and its parameters do not change until it pushes;
 * - comes after the fold, it is late: the worker gets the newest parameters, and an answer that says so.
 *
 * Every push has one answer from each share. A worker that has all answers goes on from the newest version that it
 * knows. Shares may differ by some versions: an update for a later version waits at a share until that version is next.
 * A version belongs to all keys: a worker pushes each key once for a version, and has all answers before it pushes for
 * the next one. So if one share has found its quorum for a version, all others will too, because the same ranks push
 * that version to all of them. If each key had its own versions, two workers could wait for each other, each for a key
 * in which it is ahead. Keys that workers push at different times must be in different schemes (EngineOptions.groups in
 * Python).
 *
 * Groups. All ranks of a group push for the same version. Each rank waits for the answers of all rows that apply the
 * rule, directly or by relays, before it goes on. An owner gives all ranks of a group the same answers. So all of them
 * choose the same next version: the one that follows the newest version they were told for any key. If a group is late,
 * its update is left out; all its ranks get the newest parameters, and are told. Writers, readers and order of the
 * words:
 *
 * - The version. The rank whose input it is puts it into the owner's part (its memory in the window). A worker that
 *   pushes directly to the row puts it before its push, by the same lane. A forwarding rank's core puts it by the lane
 *   of its forwards when that rank's own push comes; that push is an input of the forward, so the forward comes later.
 *   The owner reads the version with the event of each row, and the next version is put with the group's next push. The
 *   put reads from a place that the worker has for the slot; the worker writes that place before its push, and again
 *   when the slot is free.
 * - The outcome. The owner puts it into the part of each relay, one place for each row, before the parameters, which
 *   bring the event. Each relay puts it to the next relay in the same way. A relay's share joins the outcomes of its
 *   rows: the newest version; left out if some row says so. When its last row has come it puts the joined outcome to
 *   the ranks that it answers, and then answers. The owner has one source for each group, and a relay's share has one:
 *   both are written for the next reply to the group, which comes after all its ranks had this one. A relay passes on
 *   from the place in which it got the outcome; that reply overwrites this place too.
 *
 * Parameters are sent from a copy for each receiver (rows.c), as in servers_owner.c. Slots, forwarding accumulators and
 * relays are as under BSP (stages.c). Waits form no circle if all ranks of a group push all keys in the same order, or
 * push all before they wait. Inside a group all wait for the same folds, as under BSP, so a group pushes all keys for a
 * version as one worker does. Between groups it is as between workers of servers: when a share has made fold v, its
 * groups have pushed v to all other shares too, so all of these find a quorum for v. Once a rank has closed, its group
 * sends no more updates. That rank has waited for the answers to all its pushes, so no push of the group is unanswered.
 * The other ranks of the group get an error when they push.
 *
 * Graphs: NOTIFY-ACK whose folds go on without stragglers. The fold of a rank's push of version n takes from each
 * in-neighbour an update of version n or newer. The rank does not wait for its out-neighbours. A push is
 * - sent if that neighbour has answered the last one; the update is used, or late;
 * - dropped if that answer did not come before a later push needed this push's memory, or if the answer said that this
 *   version has been folded. Nothing is sent for it.
 *
 * A push that needs the memory of an earlier push waits for the neighbours that have not taken the earlier one. It
 * waits twice as long as a fold would, because these neighbours may be waiting for others. It does not wait for a
 * neighbour for which a push has waited in vain, until that neighbour answers again.
 *
 * A straggler catches up: its next version is the newest that a quorum of its in-neighbours has pushed, in any key. If
 * its out-neighbours have folded that version already, its update is late once more. But the straggler never waits for
 * an update that its in-neighbours may not push. A rank without in-neighbours takes the version after the newest that
 * its out-neighbours have folded. A version belongs to all keys and cores; a new one is chosen when a key is pushed
 * again.
 *
 * When a state is loaded all ranks go on from the largest version of any rank; no rank has pushed beyond it. So every
 * update that was sent before the load is late, even if it has not arrived yet. Its sender waits for the answer at
 * once; otherwise its next push could only be sent in a later call.
 *
 * A fold of version n is allowed when a quorum of the in-neighbours has sent version n or newer, even if an earlier
 * fold took it. Ranks that have closed do not count. If fewer ranks than a quorum are open, the open ones suffice, so a
 * straggler may do its last steps alone after all others.
 *
 * SSP(s) on a graph: a fold takes updates that are up to s versions older than the fold; an older update is late. A
 * straggler catches up to s versions behind the quorum. A rank that has made its last push makes no more folds, so
 * waiting updates for versions up to its last one are then late.
 *
 * Graphs of several phases: the version of a fold determines its phase, and the quorum is one of the in-neighbours of
 * that phase. If a rank skipped a version, the neighbours of the skipped phase would wait for it in vain. So each push
 * goes to the neighbours of all phases. Neighbours of phases other than the push's own get only the version
 * (HPC_OP_EMPTY), without an update. An update has the weight of the version that it was pushed for. An update newer
 * than the fold stays for its own version, unless its sender is a neighbour now: then the sender has skipped the fold's
 * version, and the fold takes the update.
 *
 * Fold and apply in two calls, on a graph: the folds are the same; split.c describes how their means are used.
 *
 * Waits form no circle if all ranks push all keys in the same order, or push all before they wait. Proof: of all ranks
 * that wait take the rank that has progressed least: its version n is the lowest and, for that version, its key comes
 * first. A quorum of its in-neighbours has pushed this key, or the key from which this rank chose n, for version n or
 * newer. These neighbours push all keys of a version before they begin another version. They have progressed at least
 * as far, so they have pushed this key already. */
#include "discipline/quorum_state.h"

#include "discipline/config.h"
#include "discipline/discipline.h"
#include "discipline/servers_groups.h"
#include "discipline/peers.h"
#include "discipline/servers_bsp.h"
#include "engine/owner/signals.h"
#include "engine/bytes.h"
#include "engine/owner/forward.h"
#include "engine/layout/layout.h"
#include "engine/pieces.h"
#include "engine/layout/rows.h"
#include "engine/layout/stages.h"
#include "engine/owner/write.h"

/* ---- check ---- */

static int check_config(const hpc_exchange_config *f) {
    const hpc_rule *own = hpc_config_own_fold(f);
    if (!hpc_config_is_bsp(f) || f->shared_params)
        return hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                        "exchange: a quorum with servers or peers does not go with %s%s",
                        hpc_config_is_bsp(f) ? "shared_params: leave one of the two out" : "consistency ",
                        hpc_config_is_bsp(f) ? "" : hpc_consistency_name(f->consistency));
    if (own == NULL) return HPC_OK;
    return hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                    "exchange: rule %s has a fold of its own; with a quorum some inputs may be missing from it",
                    own->name);
}

/* A test of row i of a plan, and the text row, the end of the error message "row i ..." for a row that fails the
 * test. */
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

/* If rows had different workers, two workers could wait for each other, each for another key. */
static int has_other_workers(const hpc_plan *plan, int i) {
    const hpc_row *row = &plan->rows[i], *first = &plan->rows[0];
    for (int e = 0; e < row->n_in; e++)
        if (hpc_row_input(first, row->in[e].rank) == NULL) return 1;
    return row->n_in != first->n_in;
}

static int is_of_row(const hpc_plan *plan, int i, int row) {
    return plan->rows[i].key == plan->rows[row].key && plan->rows[i].offset == plan->rows[row].offset;
}

/* The same test for peers, whose rows may have different inputs. It is made once for all rows of the same elements. */
static int has_other_peers(const hpc_plan *plan, int i) {
    const int me = plan->rows[i].owner;
    const int is_first = i == 0 || !is_of_row(plan, i - 1, i);
    for (int r = 0; is_first && r < plan->n_rows && is_of_row(plan, r, 0); r++)
        if (hpc_peers_find_push(plan, i, plan->rows[r].owner, plan->rows[r].owner) == NULL) return 1;
    return hpc_peers_find_push(plan, 0, me, me) == NULL;
}

static int takes_part(const hpc_plan *plan, int i) {
    const hpc_row *row = &plan->rows[i];
    return row->action == HPC_EMIT || (row->quorum != row->n_in && row->action != HPC_APPLY) || has_no_weight(row);
}

/* A row that forwards to a row that applies the rule takes the version of the forward from its owner's push, so its
 * owner must push to it. */
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

static const refusal of_peers[] = {
    {applies_not, "has a weight of 0 or less; a quorum makes no mean of such weights"},
    {has_other_peers, "has other peers than row 0; with a quorum all push every key"},
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

/* Returns, for a row that applies the rule, whether every rank that sends to it gets its parameters: from the row
 * itself, or from a relay that the sending rank owns. */
static int answers_inputs(const hpc_row *row) {
    for (int i = 0; i < row->n_in; i++) {
        int answers = 0;
        for (int e = 0; e < row->n_out; e++) answers |= row->out[e].rank == row->in[i].rank;
        if (!answers) return 0;
    }
    return 1;
}

/* Refuses plans in which the rank that encodes a group's update is not told whether the update was used or left out. */
static int check_pieces(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows; i++)
        if (f->plan->rows[i].action == HPC_APPLY && !answers_inputs(&f->plan->rows[i]))
            return hpc_pieces_refuse(f, hpc_discipline_groups_quorum.name,
                                     "by the plan a rank that sends a group's update does not get the group's "
                                     "parameters, and would not hear that the update was left out");
    return HPC_OK;
}

static int check_pieces_on_graph(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_codec *codec = hpc_codec_of(f->plan->rows[i].codec_in);
        const hpc_codec_config *config = codec->addressable ? NULL : f->codecs[f->plan->rows[i].key];
        if (config != NULL && hpc_codec_keeps(codec, config) && !config->no_feedback)
            return hpc_pieces_refuse(f, hpc_discipline_graph_quorum.name,
                                     "an update that one neighbour leaves out and another takes cannot go back into "
                                     "the residual");
    }
    return HPC_OK;
}

/* hpc_discipline.check of a quorum. If the quorum is all inputs no update is left out, so codecs of pieces need no
 * check. */
int hpc_quorum_check(const hpc_context *c, const hpc_exchange_config *f) {
    const int many = hpc_plan_has_stages(f->plan);
    const refusal *refusals = many ? of_groups : hpc_edges_of(f) == HPC_PEERS ? of_peers : of_ranks;
    int other, copy = many ? hpc_plan_find_copy(f->plan, &other) : -1;
    int status = many && (copy >= 0 || hpc_config_misses_some(f)) ? check_pieces(f) : HPC_OK;
    (void)c;
    if (status == HPC_OK) status = check_config(f);
    if (status == HPC_OK && copy >= 0)
        status = hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                          "exchange: rows %d and %d apply the same elements; with a quorum they have one owner", other,
                          copy);
    for (int i = 0; i < f->plan->n_rows && status == HPC_OK; i++)
        for (const refusal *its = refusals; its->refuses != NULL && status == HPC_OK; its++)
            if (its->refuses(f->plan, i))
                status = hpc_fail(HPC_ERR_UNSUPPORTED, "exchange", "exchange: row %d %s", i, its->row);
    return status;
}

static int check_graph(const hpc_context *c, const hpc_exchange_config *f) {
    int status = hpc_config_misses_some(f) ? check_pieces_on_graph(f) : HPC_OK;
    (void)c;
    if (status == HPC_OK && f->consistency != HPC_NOTIFY_ACK && f->consistency != HPC_SSP)
        status = hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                          "exchange: quorum is %d under %s; on a graph a quorum needs NOTIFY_ACK or SSP(s): BSP and "
                          "BARRIER wait for all ranks, and ASYNC for none",
                          f->quorum, hpc_consistency_name(f->consistency));
    if (status == HPC_OK && f->consistency == HPC_SSP && (f->staleness < 0 || f->staleness > HPC_MOST_STALENESS))
        status = hpc_fail(HPC_ERR_INVALID, "exchange", "exchange: staleness is %d; 0 to %d are possible", f->staleness,
                          HPC_MOST_STALENESS);
    if (status == HPC_OK) status = hpc_graph_check_split(f, "exchange");
    return status == HPC_OK ? hpc_graph_check_partial(f, "a quorum", "exchange") : status;
}

/* ---- open ---- */

static int action_of(const hpc_scheme *sc, const hpc_share *share) {
    return sc->plan->rows[share->rows[0]].action;
}

static int open_keys(hpc_scheme *sc, const char *op) {
    hpc_quorum *q = sc->own = hpc_scheme_take(sc, 1, sizeof *q, op);
    const int splits = sc->use != NULL;
    if (q == NULL) return HPC_ERR_MEMORY;
    if (hpc_has_decider(sc)) q->room = sc->context->group.size * sc->layout.depth;           /* see peers_quorum.c */
    if (splits) q->from = (size_t)(sc->plan->n_rows + sc->layout.n_shares) * sizeof(double); /* squares, versions */
    q->keys = hpc_scheme_take(sc, (size_t)sc->plan->n_keys, sizeof *q->keys, op);
    q->given_up = hpc_scheme_take(sc, (size_t)sc->context->group.size, 1, op);
    q->of_ranks = hpc_scheme_take(sc, (size_t)sc->context->group.size, sizeof *q->of_ranks, op);
    return q->keys != NULL && q->given_up != NULL && q->of_ranks != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

static size_t part(const hpc_scheme *sc, int rank) {
    const size_t numbers = (size_t)sc->layout.places[rank].shares * (size_t)sc->context->group.size;
    const int told = sc->layout.n_shares + (hpc_plan_has_stages(sc->plan) ? sc->plan->n_rows : 0);
    const size_t verdicts = (size_t)(sc->layout.places[rank].shares * hpc_quorum_of(sc)->room);
    return hpc_quorum_of(sc)->from + (size_t)told * sizeof(hpc_told) +
           (numbers * (size_t)sc->layout.depth + verdicts * hpc_verdict_words(sc)) * sizeof(uint64_t);
}

/* A version belongs to all keys, so the groups must be the same for all keys; otherwise fails with HPC_ERR_CONFIG. */
static int check_groups(const hpc_scheme *sc, const char *op) {
    for (int key = 1; key < sc->plan->n_keys; key++)
        for (int r = 0; r < sc->context->group.size; r++)
            if (hpc_sender_of(sc, key, r) != hpc_sender_of(sc, 0, r))
                return hpc_fail(
                    HPC_ERR_CONFIG, op,
                    "%s: the update of rank %d of key %s comes with the updates of other ranks than its update of "
                    "key %s: with a quorum the groups of all keys are the same",
                    op, r, sc->plan->keys[key].name, sc->plan->keys[0].name);
    return HPC_OK;
}

/* Allots space in this rank's part for a copy of the update, for all rows of a share. Returns its offset, or
 * HPC_NOWHERE. On a graph an update that is sent by a put is copied first, so the push's memory is free at once, even
 * if the neighbour is slow. */
static size_t take_copy(hpc_scheme *sc, const hpc_share *share) {
    size_t nbytes = 0;
    if (sc->graph == NULL || hpc_is_mapped(sc, share->owner)) return HPC_NOWHERE;
    for (int i = 0; i < share->n_rows; i++) nbytes += hpc_row_bytes(sc, &sc->plan->rows[share->rows[i]]);
    return hpc_layout_take(&sc->layout.places[hpc_me(sc)], nbytes);
}

/* Among peers, returns the share whose owner decides for this share and for all others with the same elements. The
 * deciding ranks are spread, so that each rank decides for some elements. */
static int find_decider(const hpc_scheme *sc, const hpc_share *share) {
    const hpc_pushed *k = &sc->keys[share->key];
    const int size = sc->context->group.size;
    int best = -1, distance = size;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *other = &sc->layout.shares[k->shares[i]];
        const int its = (other->owner + size - share->at % size) % size;
        if (other->core == share->core && its < distance) best = k->shares[i], distance = its;
    }
    return best;
}

/* A rank sends to each share from which it gets parameters, and that share answers each push once. On a graph a rank
 * sends to its out-neighbours. */
int hpc_quorum_plan(hpc_scheme *sc, const char *op) {
    int status = open_keys(sc, op);
    if (status != HPC_OK) return status;
    hpc_layout_take_own(sc, part);
    if (status == HPC_OK && hpc_plan_has_stages(sc->plan)) status = hpc_groups_find(sc, op);
    if (status == HPC_OK && hpc_in_groups(sc)) status = check_groups(sc, op);
    for (int s = 0; s < sc->layout.n_shares && status == HPC_OK; s++) {
        hpc_share *share = &sc->layout.shares[s];
        const int owns = share->owner == hpc_me(sc) && action_of(sc, share) != HPC_FORWARD;
        const int relays = action_of(sc, share) == HPC_RELAY && (sc->discipline->traits & HPC_ANSWERS_ALL);
        const int gets = hpc_share_is_awaited_by(sc, share, hpc_me(sc)) && !relays && !(owns && sc->graph != NULL);
        const int sends = hpc_has_decider(sc) ? owns && hpc_pushes_key(sc, hpc_me(sc), share->key) : gets;
        if (!owns && !sends) continue;
        hpc_quorum_share *its = share->own = hpc_scheme_take(sc, 1, sizeof *its, op);
        if (its == NULL) return HPC_ERR_MEMORY;
        its->sends = sends;
        its->decider = hpc_has_decider(sc) ? find_decider(sc, share) : s;
        its->outlet.staged = sends ? take_copy(sc, share) : HPC_NOWHERE;
    }
    return status;
}

int hpc_quorum_open(hpc_scheme *sc, const char *op) {
    sc->outcomes = hpc_scheme_take(sc, (size_t)sc->plan->n_keys, sizeof *sc->outcomes, op);
    if (sc->graph == NULL) sc->heard = hpc_scheme_take(sc, (size_t)sc->layout.n_shares, sizeof *sc->heard, op);
    if (sc->outcomes == NULL || (sc->graph == NULL && sc->heard == NULL)) return HPC_ERR_MEMORY;
    if (hpc_in_groups(sc)) hpc_rows_name_groups(sc);
    const int status = sc->discipline->traits & HPC_KEEPS_MEANS ? hpc_split_open_means(sc, op) : HPC_OK;
    return status == HPC_OK ? hpc_intake_open(sc, op) : status;
}

/* ---- the core: rows that forward ---- */

/* Tells the owners of the rows to which a share forwards the version of this rank's push in a slot. */
static void say_version(hpc_core *core, const hpc_share *share, int slot) {
    hpc_scheme *sc = core->scheme;
    const uint64_t *number = &hpc_versions_of(sc, share->key)->numbers[slot];
    int before = -1;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[share->rows[i]];
        for (int e = 0; e < row->n_out; e++) {
            const int to = sc->layout.share_of[row->out[e].row];
            if (to == before || sc->plan->rows[row->out[e].row].action != HPC_APPLY) continue;
            before = to;
            hpc_core_put(core, row->out[e].rank, number, sizeof *number,
                         hpc_number_at(sc, &sc->layout.shares[to], hpc_me(sc), slot));
        }
    }
}

/* ---- the core: rows that relay ---- */

/* Passes the outcome of an update on to the next relays, before the parameters go on. */
static void pass_on(hpc_core *core, const hpc_work *w) {
    const hpc_scheme *sc = core->scheme;
    const hpc_share *share = w->share;
    hpc_quorum_share *its = share->own;
    const hpc_told *told = hpc_told_here(sc, hpc_passed_at(sc, w->index));
    hpc_forward_word(core, w, HPC_EVERYBODY, told, sizeof *told, hpc_passed_at);
    if (told->folded > its->passed.folded) its->passed.folded = told->folded;
    its->left_out |= !told->used;
    if (share->left > 1) return;
    its->passed.used = !its->left_out;
    its->left_out = 0;
    for (int i = 0; i < share->n_members; i++)
        hpc_core_put(core, share->members[i], &its->passed, sizeof its->passed,
                     hpc_told_at(sc, share->members[i], (int)(share - sc->layout.shares)));
}

/* ---- the core: events with several stages ---- */

/* Returns the first row of a share to which this rank pushes. */
static int first_own(const hpc_scheme *sc, const hpc_share *share) {
    int i = 0;
    while (!hpc_row_has_input(&sc->plan->rows[share->rows[i]], hpc_me(sc))) i++;
    return share->rows[i];
}

/* A rank's own push comes in all rows of a share at once, so its version is sent before any row forwards. */
void hpc_quorum_say_version(hpc_core *core, const hpc_work *w, int input, int slot) {
    const hpc_input *in = &w->inputs[input];
    if (in->rank == hpc_me(core->scheme) && in->forwarded < 0 && w->index == first_own(core->scheme, w->share))
        say_version(core, w->share, slot);
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    if (w->row->action == HPC_APPLY) return hpc_intake_row_came(core, w, input, slot);
    if (w->row->action == HPC_RELAY)
        pass_on(core, w);
    else
        hpc_quorum_say_version(core, w, input, slot);
    return hpc_whole_row_came(core, w, input, slot);
}

/* ---- fold and apply in two calls, on a graph ---- */

static int plan_split(hpc_scheme *sc, const char *op) {
    const int status = hpc_quorum_plan(sc, op);
    return status == HPC_OK ? hpc_split_plan(sc, sc->own, op) : status;
}

static int wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    const int status = hpc_split_wait_over(sc, key, l, op);
    return status == HPC_OK ? hpc_outlet_wait_slot(sc, key, l, op) : status;
}

static int note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    const int status = moment & HPC_SPLIT_MOMENTS ? hpc_split_note(sc, key, moment, l, op) : HPC_OK;
    return status == HPC_OK ? hpc_outlet_note(sc, key, moment, l, op) : status;
}

static int other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    const hpc_operation operation = hpc_imm_operation(event->imm);
    if (share == NULL || hpc_scheme_has_failed(core->scheme)) return share != NULL;
    if (operation == HPC_OP_EMPTY) return hpc_intake_empty_came(core, share, event);
    return core->scheme->use != NULL && operation == HPC_OP_USE && hpc_split_other_came(core, share, event);
}

/* ---- the values ---- */

enum { MOMENTS = HPC_ON_SEND | HPC_ON_END | HPC_ON_HEAR | HPC_ON_CLOSE }; /* hooks of all quorums */

static const hpc_gate gate = {.row_came = hpc_intake_row_came, .work = hpc_intake_work, .missing = hpc_outlet_missing};

const hpc_discipline hpc_discipline_quorum = {
    .name = "a quorum",
    .check = hpc_quorum_check,
    .traits = HPC_GOES_ON | HPC_BY_QUORUM | HPC_WHOLE | HPC_ONE_SLOT | HPC_BRINGS_NUMBER,
    .plan = hpc_quorum_plan,
    .open = hpc_quorum_open,
    .gate = &gate,
    .pace = &(const hpc_pace){.may_push = hpc_outlet_may_push,
                              .wait_slot = hpc_outlet_wait_slot,
                              .send_share = hpc_outlet_send_share,
                              .moments = MOMENTS | HPC_ON_SENT | HPC_ON_LOOK | HPC_ON_PUBLISHED,
                              .note = hpc_outlet_note},
};

const hpc_discipline hpc_discipline_groups_quorum = {
    .name = "a quorum of groups",
    .check = hpc_quorum_check,
    .traits = HPC_GOES_ON | HPC_BY_QUORUM,
    .plan = hpc_quorum_plan,
    .open = hpc_quorum_open,
    .gate = &(const hpc_gate){.row_came = row_came, .work = hpc_intake_work, .missing = hpc_outlet_missing_in_groups},
    .pace = &(const hpc_pace){.may_push = hpc_outlet_may_push,
                              .wait_slot = hpc_outlet_wait_slot,
                              .send_share = hpc_outlet_send_share,
                              .moments = MOMENTS | HPC_ON_PUBLISH,
                              .note = hpc_outlet_note,
                              .is_late = hpc_groups_is_late},
};

static const hpc_gate graph_gate = {
    .row_came = hpc_intake_row_came, .other_came = other_came, .work = hpc_intake_work, .missing = hpc_outlet_missing};
enum {
    GRAPH_TRAITS = HPC_BY_QUORUM | HPC_WHOLE | HPC_ONE_SLOT | HPC_OWN_PARAMS | HPC_PUTS | HPC_BRINGS_NUMBER,
    GRAPH_MOMENTS = MOMENTS | HPC_ON_SENT | HPC_ON_LOOK | HPC_ON_PUBLISH | HPC_ON_FINISH
};

const hpc_discipline hpc_discipline_graph_quorum = {
    .name = "a quorum",
    .check = check_graph,
    .traits = GRAPH_TRAITS,
    .plan = hpc_quorum_plan,
    .open = hpc_quorum_open,
    .gate = &graph_gate,
    .pace = &(const hpc_pace){.wait_slot = hpc_outlet_wait_slot,
                              .send_share = hpc_outlet_send_share,
                              .moments = GRAPH_MOMENTS,
                              .note = hpc_outlet_note,
                              .has_read = hpc_outlet_has_read,
                              .restored = hpc_outlet_restored},
};

const hpc_discipline hpc_discipline_split_graph_quorum = {
    .name = "a quorum in two calls",
    .check = check_graph,
    .traits = GRAPH_TRAITS | HPC_PULLS | HPC_KEEPS_MEANS,
    .plan = plan_split,
    .open = hpc_quorum_open,
    .gate = &graph_gate,
    .pace = &(const hpc_pace){.may_push = hpc_split_may_push,
                              .wait_slot = wait_slot,
                              .send_share = hpc_outlet_send_share,
                              .moments = GRAPH_MOMENTS | HPC_SPLIT_MOMENTS,
                              .note = note,
                              .has_read = hpc_outlet_has_read,
                              .restored = hpc_outlet_restored,
                              .ends = hpc_split_ends_pull,
                              .ask = hpc_split_ask_share},
    .use = &hpc_split_use,
};
