/* The worker's side of a quorum: it chooses versions, sends updates to the owners of shares, and learns their outcome.
 * quorum.c explains quorums; quorum_state.h has the counts of an outlet, the worker's state for a share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/overdue.h"
#include "discipline/servers_groups.h"
#include "discipline/quorum_state.h"
#include "engine/owner/signals.h"
#include "engine/bytes.h"
#include "engine/pieces.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"

/* ---- the outcome of pushes ---- */

static const hpc_told *answer_at(const hpc_scheme *sc, int s) {
    return hpc_told_here(sc, hpc_told_at(sc, hpc_me(sc), s));
}

static uint64_t answers_of(const hpc_scheme *sc, int s) {
    return atomic_load_explicit(hpc_own_signal(sc->window, hpc_signal_applied(sc, s)), memory_order_acquire);
}

/* Fails the exchange because of an impossible answer: at most one update is unanswered, so at most one can be answered,
 * and at most one used. */
static int refuse_answer(hpc_scheme *sc, const hpc_share *share, uint64_t answered, uint64_t used) {
    const hpc_outlet *out = hpc_outlet_of(share);
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why,
             "rank %d: rank %d says that it has answered %llu updates of key %.64s and used %llu; %llu were sent, and "
             "%llu used before",
             hpc_me(sc), share->owner, (unsigned long long)answered, sc->plan->keys[share->key].name,
             (unsigned long long)(out->used + used), (unsigned long long)out->sent, (unsigned long long)out->used);
    hpc_scheme_fail(sc, HPC_ERR_TRANSPORT, why);
    return hpc_scheme_check(sc, "push");
}

static int slot_of(const hpc_scheme *sc, uint64_t n) {
    return (int)((n - 1) % (uint64_t)sc->layout.depth);
}

/* Adds a piece of push number n back to the residual, for the elements of row index, which answers this rank. The piece
 * is from this rank's own push, or from its group's fold, which this rank has encoded. Rows with the same elements are
 * adjacent in the plan. */
static void take_row_back(hpc_scheme *sc, int index, uint64_t n) {
    const hpc_plan *plan = sc->plan;
    const int empty = hpc_versions_of(sc, plan->rows[index].key)->empty[slot_of(sc, n)];
    const hpc_row *answers = &plan->rows[index];
    int i = index;
    while (i > 0 && plan->rows[i - 1].key == answers->key && plan->rows[i - 1].offset == answers->offset) i--;
    for (; i < plan->n_rows && plan->rows[i].key == answers->key && plan->rows[i].offset == answers->offset; i++) {
        const hpc_row *row = &plan->rows[i];
        if (hpc_forwards_to_rule(plan, row) && row->owner == hpc_me(sc)) hpc_pieces_leave_out(hpc_work_of(sc, i));
        if (hpc_has_decider(sc) && i != index) continue;
        if (row->action == HPC_APPLY && !empty && hpc_key_pushes_pieces(sc, row->key) &&
            hpc_row_input(row, hpc_me(sc)) != NULL)
            hpc_pieces_return(sc, row, hpc_slot_of_push(sc, row->key, n));
    }
}

/* Returns whether push number n sends a share's owner only its version, because the graph of that step has no edge to
 * the owner. */
static int passes_by(const hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    const uint64_t version = hpc_versions_of(sc, share->key)->numbers[slot_of(sc, n)];
    return !hpc_sends(sc, share->key, version, share->owner, hpc_me(sc));
}

/* Returns whether push number n sends a share no update. */
static int is_empty(const hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    return hpc_versions_of(sc, share->key)->empty[slot_of(sc, n)] || passes_by(sc, share, n);
}

/* Adds all pieces of push number n back to the residual, because the push was left out or dropped. Their bytes are
 * still in the slot: the next push waits until this outcome is known. Each relay row has a word that says whether the
 * update was used; the next reply overwrites that word. */
static void take_back(hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    if (passes_by(sc, share, n)) return;
    for (int i = 0; i < share->n_rows && hpc_key_has_pieces(sc, share->key); i++) {
        const int row = share->rows[i], relays = sc->plan->rows[row].action == HPC_RELAY;
        const int here = sc->plan->rows[row].owner == hpc_me(sc);
        if (!relays || (here && !hpc_told_here(sc, hpc_passed_at(sc, row))->used)) take_row_back(sc, row, n);
    }
}

/* Notes that a share has left out push number n. A later push may have been dropped already. */
static void leave_out(hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    hpc_outlet *out = hpc_outlet_of(share);
    if (passes_by(sc, share, n)) return;
    if (n > out->lost) out->lost = n;
    hpc_quorum_of(sc)->lost = hpc_versions_of(sc, share->key)->number;
    hpc_count_dropped(sc, hpc_decider_of(sc, share)->owner, 1, out->told);
    take_back(sc, share, n);
}

static int hear(hpc_scheme *sc, int s) {
    const hpc_share *share = &sc->layout.shares[s];
    hpc_outlet *out = hpc_outlet_of(share);
    const uint64_t answered = answers_of(sc, s);
    if (out == NULL || answered == out->answered) return HPC_OK;
    const hpc_told *told = answer_at(sc, s);
    if (answered != out->sent || told->used > 1) return refuse_answer(sc, share, answered, told->used);
    out->answered = answered;
    out->told = told->folded;
    out->used += told->used;
    if (!told->used) leave_out(sc, share, out->under_way);
    hpc_quorum_of(sc)->given_up[share->owner] = 0;
    return HPC_OK;
}

static int hear_key(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++) status = hear(sc, k->shares[i]);
    return status;
}

/* ---- sends ---- */

/* Ignores HPC_ERR_PEER where owners may leave: every wait reports a dead neighbour, and a neighbour that has left folds
 * nothing more. */
static int unless_gone(hpc_scheme *sc, int status) {
    if (status != HPC_ERR_PEER || !hpc_owners_leave(sc)) return status;
    hpc_blame_settle(&sc->context->group.blame, NULL, 0);
    return HPC_OK;
}

/* Puts push number n into the slot at the share's owner: from a copy, if the share has room for one. */
static int carry(hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    const hpc_outlet *out = hpc_outlet_of(share);
    const char *slot = hpc_slot_of_push(sc, share->key, n);
    size_t staged = out->staged;
    int status = HPC_OK;
    for (int i = 0; i < share->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &sc->plan->rows[share->rows[i]];
        const char *src = slot + hpc_row_from(sc, row);
        size_t nbytes = hpc_push_bytes(sc, row, src);
        if (staged != HPC_NOWHERE) {
            src = memcpy(hpc_own_part(sc) + staged, src, nbytes);
            staged += hpc_row_bytes(sc, row);
        }
        status = hpc_put(hpc_push_lane(sc, share), sc->window, share->owner, src, nbytes,
                         hpc_push_slot_of(sc, share->rows[i]));
    }
    return status;
}

/* Sends push number n: its data, unless the owner reads the data in place, then an event with its version. Returns
 * HPC_IN_PROGRESS while the owner's ring is full. */
static int send_update(hpc_scheme *sc, int s, uint64_t n) {
    const hpc_share *share = &sc->layout.shares[s], *to = hpc_decider_of(sc, share);
    hpc_outlet *out = hpc_outlet_of(share);
    int me = hpc_me(sc), owner = to->owner, status = HPC_OK, slot = slot_of(sc, n);
    const int empty = is_empty(sc, share, n), votes = hpc_has_decider(sc);
    if (!empty && !votes && !hpc_reads_in_place(sc, owner, me) && out->carried != n) status = carry(sc, share, n);
    out->carried = n;
    out->version = hpc_versions_of(sc, share->key)->numbers[slot];
    if (status == HPC_OK)
        status = hpc_lane_try_notify(hpc_push_lane(sc, share), sc->window, owner, &out->version, sizeof out->version,
                                     hpc_number_at(sc, to, me, slot),
                                     hpc_imm(votes   ? HPC_OP_USE
                                             : empty ? HPC_OP_EMPTY
                                                     : HPC_OP_SHARE,
                                             slot, (int)(to - sc->layout.shares)));
    if (status != HPC_OK) return unless_gone(sc, status);
    out->sent++;
    out->under_way = n;
    if (!empty && !votes) hpc_count_sent(sc, share, hpc_slot_of_push(sc, share->key, n));
    return HPC_OK;
}

static void note_pending(hpc_scheme *sc, const hpc_share *share) {
    hpc_outlet *out = hpc_outlet_of(share);
    int pending = out->decided < sc->keys[share->key].pushes;
    hpc_quorum_of(sc)->n_pending += pending - out->pending;
    out->pending = pending;
}

/* Drops the next push to a share: sends nothing for it, and its slot is free. */
static void skip(hpc_scheme *sc, const hpc_share *share) {
    leave_out(sc, share, ++hpc_outlet_of(share)->decided);
}

/* Sends the pushes that may still be in time, oldest first, and drops the others. */
static int send_pending(hpc_scheme *sc, int s) {
    const hpc_share *share = &sc->layout.shares[s];
    hpc_outlet *out = hpc_outlet_of(share);
    const hpc_pushed *k = &sc->keys[share->key];
    if (out == NULL) return HPC_OK;
    int status = hear(sc, s);
    if (hpc_owners_leave(sc) && hpc_closed_signal(sc, share->owner) != 0) {
        hpc_count_dropped(sc, share->owner, k->pushes - out->decided, 0);
        out->decided = k->pushes;
    }
    while (out->decided < k->pushes && out->sent == out->answered && status == HPC_OK) {
        if (hpc_versions_of(sc, share->key)->numbers[slot_of(sc, out->decided + 1)] <=
            hpc_clock_behind(sc, out->told)) {
            skip(sc, share);
            continue;
        }
        status = send_update(sc, s, out->decided + 1);
        out->decided += status != HPC_IN_PROGRESS;
    }
    note_pending(sc, share);
    return status == HPC_IN_PROGRESS ? HPC_OK : status;
}

static int send_key(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++) status = send_pending(sc, k->shares[i]);
    return status;
}

/* Sends the waiting pushes of all keys, as far as owners have answered the earlier ones. */
static int send_all(hpc_scheme *sc) {
    int status = HPC_OK;
    for (int key = 0; key < sc->plan->n_keys && hpc_quorum_of(sc)->n_pending > 0 && status == HPC_OK; key++)
        status = send_key(sc, key);
    return status;
}

/* Drops the pushes to a share up to number n that were not sent. */
static void drop(hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    while (hpc_outlet_of(share)->decided < n) skip(sc, share);
    note_pending(sc, share);
}

/* ---- versions ---- */

/* Calls the function `of` for this rank's shares of a key, and returns the largest value. */
static uint64_t most_of(const hpc_scheme *sc, int key, uint64_t (*of)(const hpc_scheme *sc, int s)) {
    const hpc_pushed *k = &sc->keys[key];
    uint64_t most = 0;
    for (int i = 0; i < k->n_shares; i++) {
        const uint64_t its = of(sc, k->shares[i]);
        if (its > most) most = its;
    }
    return most;
}

/* Returns the version that the owner of a share has told last, in an answer or in a publish. While an update is
 * unanswered the owner may write that word, so the version of the answer before is returned. */
static uint64_t heard_by(const hpc_scheme *sc, int s) {
    const hpc_outlet *out = hpc_outlet_of(&sc->layout.shares[s]);
    if (out == NULL) return 0;
    return answers_of(sc, s) == out->sent ? answer_at(sc, s)->folded : out->told;
}

/* Returns the newest version that this rank was told for a key. Answers to pulls tell versions too. */
static uint64_t told(const hpc_scheme *sc, int key) {
    const uint64_t most = most_of(sc, key, heard_by);
    const uint64_t pulled = sc->discipline->traits & HPC_PULLS ? most_of(sc, key, hpc_asker_heard) : 0;
    if (pulled > most) return pulled;
    return most > hpc_quorum_of(sc)->told ? most : hpc_quorum_of(sc)->told;
}

static uint64_t folded_by(const hpc_scheme *sc, int s) {
    const hpc_share *share = &sc->layout.shares[s];
    return hpc_intake_of(share) == NULL ? 0 : hpc_folded_of(share);
}

static uint64_t version_of(const hpc_scheme *sc, int key) {
    return sc->graph != NULL ? most_of(sc, key, folded_by) : told(sc, key);
}

/* Reads the outcome of the pushes of a key, and adds pieces that were left out back to the residual. The outcome's
 * version is, on servers, the newest that the owners of the key have told this rank, or all ranks when a state was
 * loaded; on a graph, the newest that this rank's own shares of the key have folded. On servers the version of this
 * rank's copy of each share is stored in hpc_scheme.heard; 0 for shares that answer only other ranks. */
static int hear_outcome(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    const int status = hear_key(sc, key);
    hpc_outcome *its = &sc->outcomes[key];
    *its = (hpc_outcome){.version = version_of(sc, key)};
    for (int i = 0; i < k->n_shares; i++) {
        const int s = k->shares[i];
        const hpc_outlet *out = hpc_outlet_of(&sc->layout.shares[s]);
        its->late += out != NULL && k->pushes > 0 && out->lost == k->pushes;
        if (sc->heard != NULL) sc->heard[s] = (sc->discipline->traits & HPC_PULLS ? hpc_asker_heard : heard_by)(sc, s);
    }
    return status;
}

/* On a graph: returns the newest version to which this rank may go on, by one of its own shares. */
static uint64_t reached_by(const hpc_scheme *sc, int s) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_intake *in = hpc_intake_of(share);
    if (in == NULL) return 0;
    return in->n_from > 0 ? atomic_load_explicit(&in->reached, memory_order_relaxed) : told(sc, share->key) + 1;
}

static uint64_t next_version(const hpc_scheme *sc) {
    uint64_t next = sc->graph != NULL ? hpc_quorum_of(sc)->number + 1 : 1;
    for (int key = 0; key < sc->plan->n_keys; key++) {
        const uint64_t its = sc->graph != NULL ? hpc_clock_behind(sc, most_of(sc, key, reached_by)) : told(sc, key) + 1;
        if (its > next) next = its;
    }
    return next;
}

/* ---- the next push ---- */

/* Returns HPC_OK if key may be pushed. Until all keys have been pushed and answered a second push of a key is refused
 * with HPC_ERR_INVALID, or HPC_IN_PROGRESS if op is NULL. */
int hpc_outlet_may_push(hpc_scheme *sc, int key, const char *op) {
    const hpc_quorum *q = hpc_quorum_of(sc);
    const int status = hpc_push_after_last(sc, key, op);
    if (status != HPC_OK || q->keys[key].number < q->number) return status;
    for (int i = 0; i < sc->plan->n_keys; i++) {
        const hpc_pushed *k = &sc->keys[i];
        const int pushed = k->sending == 0 && q->keys[i].number == q->number;
        const int over = sc->use == NULL || hpc_asker_is_over(sc, i);
        if (k->n_shares == 0 || (pushed && over && hpc_ticket_is_done(sc, i, 2 * k->pushes))) continue;
        if (op == NULL) return HPC_IN_PROGRESS;
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: rank %d has pushed key %s for version %llu already, and key %s not, or not to its end: "
                        "with a quorum each key is pushed once for a version, and pulled before the next",
                        op, hpc_me(sc), sc->plan->keys[key].name, (unsigned long long)q->number,
                        sc->plan->keys[i].name);
    }
    return HPC_OK;
}

/* With several stages: counts a push of key that is about to be sent, for each share that will answer it. If an answer
 * before was malformed, that fails the exchange, and the next check reports it. */
static void count_push(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < k->n_shares; i++) {
        hpc_outlet *out = hpc_outlet_of(&sc->layout.shares[k->shares[i]]);
        if (out == NULL || hear(sc, k->shares[i]) != HPC_OK) continue;
        out->sent++;
        out->decided = out->under_way = k->pushes + 1;
    }
}

/* Begins a push. If this key was already pushed for the present version, chooses the next version; on a graph it first
 * looks for updates that have come. */
static void begin_push(hpc_scheme *sc, int key) {
    hpc_quorum *q = hpc_quorum_of(sc);
    hpc_key_versions *of = &q->keys[key];
    if (sc->graph != NULL) hpc_group_progress(&sc->context->group);
    if (of->number == q->number) q->number = next_version(sc);
    of->number = of->numbers[sc->keys[key].pushes % (uint64_t)sc->layout.depth] = q->number;
    if (hpc_in_groups(sc)) count_push(sc, key);
}

/* hpc_pace.send_share. With several stages the version is put first, because the owner may read it as soon as a row was
 * sent. With one stage the update is sent when the one before is answered (send_key). On a graph this rank's own push,
 * which leads its fold, is sent at once. */
int hpc_outlet_send_share(hpc_scheme *sc, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    const uint64_t *number = &hpc_versions_of(sc, share->key)->numbers[slot];
    const int core = share->core, owner = share->owner, applies = sc->plan->rows[share->rows[0]].action == HPC_APPLY;
    const hpc_operation operation = hpc_push_is_empty(sc, share->key) ? HPC_OP_EMPTY : HPC_OP_SHARE;
    const size_t at = hpc_number_at(sc, share, hpc_me(sc), slot);
    int status = HPC_OK;
    if (sc->graph != NULL && owner == hpc_me(sc))
        return hpc_send_event(sc, core, owner, number, sizeof *number, at, hpc_imm(operation, slot, s), l);
    if (!hpc_in_groups(sc)) return HPC_OK;
    if (applies && hpc_push_begins(sc, share))
        status = hpc_put(hpc_push_lane(sc, share), sc->window, owner, number, sizeof *number, at);
    return status == HPC_OK ? hpc_push_share(sc, s, slot, l) : status;
}

/* ---- waits on a graph ---- */

/* Returns how many seconds neighbours may take to accept an update: twice the longest grace of this rank's own folds.
 */
static double patience(const hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    double most = 0;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_intake *in = hpc_intake_of(&sc->layout.shares[k->shares[i]]);
        const double grace = in == NULL ? 0 : atomic_load_explicit(&in->grace, memory_order_relaxed);
        if (grace > most) most = grace;
    }
    return 2 * most;
}

/* Drops pushes up to number n that were not sent, so that their slots are free: to all neighbours if all is set,
 * otherwise to neighbours for which a push has waited in vain before. */
static void give_up(hpc_scheme *sc, int key, uint64_t n, int all) {
    const hpc_pushed *k = &sc->keys[key];
    char *given_up = hpc_quorum_of(sc)->given_up;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        const hpc_outlet *out = hpc_outlet_of(share);
        if (out == NULL || out->decided >= n || !(all || given_up[share->owner])) continue;
        drop(sc, share, n);
        given_up[share->owner] = 1;
    }
}

/* Waits until a push was folded here, and then until all neighbours have taken it or their time (patience) is over. If
 * the call's deadline comes first, the next call goes on waiting. */
static int wait_taken(hpc_scheme *sc, int key, uint64_t ticket, hpc_limit *l, const char *op) {
    hpc_key_versions *of = hpc_versions_of(sc, key);
    int status = send_all(sc);
    give_up(sc, key, ticket / 2, 0);
    if (status == HPC_OK && !hpc_ticket_is_done(sc, key, ticket))
        status = hpc_ticket_wait(sc, key, ticket, hpc_limit_left(sc, l), op);
    if (status == HPC_OK && !hpc_ticket_is_free(sc, key, ticket)) {
        const double now = hpc_now(), left = hpc_limit_left(sc, l);
        if (of->waits_since == 0) of->waits_since = now;
        const double given = of->waits_since + patience(sc, key) - now;
        const int before = hpc_slice_waits(given < left);
        status = hpc_ticket_wait_slot(sc, key, ticket, given < left ? given > 0 ? given : 0 : left, op);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && given <= left) {
            give_up(sc, key, ticket / 2, 1);
            status = HPC_OK;
        }
    }
    if (status == HPC_OK) of->waits_since = 0;
    return status;
}

/* Reads the outcome of the last update before the next one is encoded, since the last one may be added back to the
 * residual. With several stages a forwarding core reads the outcome too, when this push has come to it. */
int hpc_outlet_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    if (sc->graph != NULL) return wait_taken(sc, key, hpc_slot_ticket(sc, key), l, op);
    int status = send_all(sc);
    if (status == HPC_OK) status = hpc_push_wait_slot(sc, key, l, op);
    return status == HPC_OK ? hear_key(sc, key) : status;
}

/* From now on updates to this rank for versions up to this one are late; this rank's cores answer them. */
static void leave_out_until(hpc_scheme *sc, int key, uint64_t version) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < k->n_shares; i++) {
        hpc_intake *in = hpc_intake_of(&sc->layout.shares[k->shares[i]]);
        if (in != NULL) atomic_store_explicit(&in->ended, version, memory_order_relaxed);
    }
    hpc_bell_ring(sc->context->group.bell);
}

/* Waits until the neighbours have taken the last push and it has arrived, or until their time (patience) is over. This
 * rank folds no more, so waiting updates of neighbours are late; they are answered for all keys at once, because
 * neighbours may wait for these answers. */
static int finish(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < sc->plan->n_keys; i++) leave_out_until(sc, i, hpc_versions_of(sc, i)->number);
    int status = wait_taken(sc, key, 2 * k->pushes, l, op);
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        const hpc_outlet *out = hpc_outlet_of(share);
        if (out == NULL || hpc_share_has_answered(sc, k->shares[i], 2 * out->sent)) continue;
        const double left = hpc_limit_left(sc, l), given = patience(sc, key);
        const int before = hpc_slice_waits(given < left);
        status = hpc_flush(hpc_push_lane(sc, share), sc->window, share->owner, given < left ? given : left);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && given < left) status = HPC_OK;
        status = hpc_unless_left(sc, share->owner, status);
    }
    return status;
}

/* Returns whether the memory of a push is free: the push was sent, which copies it, or dropped. */
int hpc_outlet_has_read(const hpc_scheme *sc, int s, uint64_t ticket) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_outlet *out = hpc_outlet_of(share);
    if (share->owner == hpc_me(sc)) return hpc_share_has_answered(sc, s, ticket);
    return out == NULL || out->decided >= ticket / 2 || hpc_closed_signal(sc, share->owner) != 0;
}

/* ---- the ranks that a wait waits for ---- */

/* Adds the open ranks from which no update waits in this rank's own share. */
int hpc_outlet_missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    (void)ticket;
    for (int r = 0; r < sc->context->group.size; r++)
        if ((sc->graph == NULL || r != share->owner) && hpc_feeds_share(sc, share, r) &&
            hpc_sends(sc, share->key, hpc_versions_of(sc, share->key)->number, share->owner, r) &&
            hpc_closed_signal(sc, r) == 0 && hpc_version_from(share, r) == 0)
            found = hpc_add_rank(ranks, found, r);
    return found;
}

/* Returns whether an update of this rank's group waits in a share, and no update of the group of an input does. */
static int waits_for(const hpc_scheme *sc, const hpc_share *share, const hpc_input *in) {
    return hpc_version_from(share, hpc_sender_of(sc, 0, hpc_me(sc))) != 0 && hpc_version_from(share, in->lowest) == 0 &&
           hpc_closed_signal(sc, in->rank) == 0;
}

static int has_brought(const hpc_share *share, int group, uint64_t push) {
    (void)push;
    return hpc_version_from(share, group) != 0;
}

int hpc_outlet_missing_in_groups(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    return hpc_groups_missing(sc, s, ticket, &(const hpc_groups_lack){waits_for, has_brought}, ranks, found);
}

/* ---- pushes that end ---- */

/* Returns whether the last push of a key is for a version that is not folded. */
static int is_short(const hpc_scheme *sc, int key) {
    return hpc_versions_of(sc, key)->number > version_of(sc, key);
}

/* Returns HPC_ERR_PEER if so many workers have closed that the last push of key found no quorum. */
static int ended(hpc_scheme *sc, int key, const char *op) {
    if (!is_short(sc, key)) return HPC_OK;
    int *closed = malloc((size_t)sc->context->group.size * sizeof *closed), n = 0;
    for (int r = 0; r < sc->context->group.size && closed != NULL; r++)
        if (sc->layout.places[r].worker && hpc_closed_signal(sc, r) != 0) closed[n++] = r;
    char who[96] = "too many workers have closed the exchange, as its owner says"; /* if no worker told this rank yet */
    if (n > 0) snprintf(who, sizeof who, "%d workers have closed the exchange, rank %d among them", n, closed[0]);
    const int status = hpc_group_fail_closed(
        &sc->context->group, op, closed, n, "version %llu of key %s finds no quorum of %d any more: %s",
        (unsigned long long)hpc_versions_of(sc, key)->number, sc->plan->keys[key].name, sc->asked.quorum, who);
    free(closed);
    return status;
}

/* Records how many last pushes found no quorum. Pushes that a pull waited for do not count: the pull has reported them.
 */
static void note_lost(hpc_scheme *sc) {
    int n = 0, first = -1;
    for (int i = sc->plan->n_keys - 1; i >= 0; i--) {
        if (sc->keys[i].since == 0 || !is_short(sc, i)) continue;
        first = i;
        n++;
    }
    if (n > 0)
        hpc_group_note(&sc->context->group, HPC_NOTE_LOST,
                       "lost the last push of %d key%s of rank %d, %.64s first: version %llu found no quorum of %d", n,
                       n == 1 ? "" : "s", hpc_me(sc), sc->plan->keys[first].name,
                       (unsigned long long)hpc_versions_of(sc, first)->number, sc->asked.quorum);
}

/* ---- a state is loaded: all go on from one version ---- */

void hpc_outlet_restored(hpc_scheme *sc, const hpc_work *w, uint64_t step) {
    hpc_graph_set_step(sc, w->row->key, hpc_quorum_of(sc)->number, step);
}

static void go_on_from(hpc_scheme *sc, uint64_t newest) {
    for (int key = 0; key < sc->plan->n_keys; key++) {
        const hpc_pushed *k = &sc->keys[key];
        hpc_graph_set_step(sc, key, newest, hpc_step_of(sc, key, hpc_quorum_of(sc)->number + 1));
        hpc_versions_of(sc, key)->number = newest;
        for (int i = 0; i < k->n_shares; i++) {
            const hpc_share *share = &sc->layout.shares[k->shares[i]];
            hpc_intake *in = hpc_intake_of(share);
            if (in != NULL) atomic_store_explicit(&in->folded, newest, memory_order_release);
            if (hpc_outlet_of(share) != NULL) drop(sc, share, k->pushes);
        }
        leave_out_until(sc, key, newest);
    }
    hpc_quorum_of(sc)->number = newest;
}

/* Returns whether an update to share s has no answer yet. */
static int is_unanswered(const hpc_scheme *sc, int s) {
    const hpc_outlet *out = hpc_outlet_of(&sc->layout.shares[s]);
    return out != NULL && out->sent != out->answered && answers_of(sc, s) == out->answered;
}

static int all_answered(void *arg) {
    hpc_scheme *sc = arg;
    hpc_scheme_work(sc);
    for (int s = 0; s < sc->layout.n_shares; s++)
        if (is_unanswered(sc, s)) return hpc_scheme_has_failed(sc);
    return 1;
}

static int who_answers(void *arg, int *ranks) {
    const hpc_scheme *sc = arg;
    int n = 0;
    for (int r = 0; r < sc->context->group.size; r++)
        for (int s = 0; s < sc->layout.n_shares; s++)
            if (sc->layout.shares[s].owner == r && is_unanswered(sc, s)) n = hpc_add_rank(ranks, n, r);
    return n;
}

/* Collective: all ranks go on from the newest version of any rank. With several stages all shares have folded it
 * already, because no rank has a call pending. On a graph no rank has a push pending, and updates that were sent before
 * are left out. */
static int level(hpc_scheme *sc, hpc_limit *l, const char *op) {
    const hpc_wait wait = {op, all_answered, who_answers, sc, 0, .attend = hpc_scheme_attend, .attended = sc};
    hpc_quorum *q = hpc_quorum_of(sc);
    uint64_t own = sc->graph != NULL ? q->number : 0, newest = 0;
    for (int s = 0; s < sc->layout.n_shares && sc->graph == NULL; s++)
        if (folded_by(sc, s) > own) own = folded_by(sc, s);
    const int status = hpc_allgather(sc->context, &own, q->of_ranks, sizeof own, hpc_limit_left(sc, l));
    for (int r = 0; r < sc->context->group.size && status == HPC_OK; r++)
        if (q->of_ranks[r] > newest) newest = q->of_ranks[r];
    if (status == HPC_OK && sc->graph == NULL) q->told = newest;
    if (status != HPC_OK || sc->graph == NULL) return status;
    go_on_from(sc, newest);
    return hpc_wait_for(&sc->context->group, &wait, hpc_limit_left(sc, l));
}

/* ---- the hooks ---- */

static int sent(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    hpc_versions_of(sc, key)->empty[slot_of(sc, k->pushes)] = hpc_push_is_empty(sc, key);
    return send_key(sc, key);
}

int hpc_outlet_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    if (moment == HPC_ON_SEND) begin_push(sc, key);
    if (moment == HPC_ON_SENT) return sent(sc, key);
    if (moment == HPC_ON_END) return ended(sc, key, op);
    if (moment == HPC_ON_LOOK) return send_all(sc);
    if (moment == HPC_ON_HEAR) return hear_outcome(sc, key);
    if (moment == HPC_ON_PUBLISH) return level(sc, l, op);
    if (moment == HPC_ON_PUBLISHED) return hpc_intake_tell(sc);
    if (moment == HPC_ON_FINISH) return finish(sc, key, l, op);
    if (moment == HPC_ON_CLOSE) note_lost(sc);
    return HPC_OK;
}
