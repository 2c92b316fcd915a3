/* The worker's side of a quorum: the updates that it has sent to the owners of shares, and their outcome (quorum.c says
 * how a quorum works, and quorum.h what an outlet counts). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discipline/quorum.h"
#include "engine/answer.h"
#include "engine/pieces.h"
#include "engine/stages.h"

/* ---- the outcome of pushes ---- */

static const hpc_told *answer_at(const hpc_engine *en, int s) {
    return hpc_told_here(en, hpc_told_at(en, hpc_me(en), s));
}

static uint64_t answers_of(const hpc_engine *en, int s) {
    return atomic_load_explicit(hpc_own_signal(en->window, hpc_signal_applied(en, s)), memory_order_acquire);
}

/* The last answer of the owner of a share; NULL if it is not new. */
static const hpc_told *news_of(const hpc_engine *en, int s, uint64_t *answered) {
    *answered = answers_of(en, s);
    return *answered == hpc_outlet_of(&en->layout.shares[s])->answered ? NULL : answer_at(en, s);
}

/* The version that the owner of a share has told last, in an answer or in a publish. While an update is on its way the
 * owner may be writing that word, so the last one that was heard counts. */
static uint64_t told_by(const hpc_engine *en, int s) {
    const hpc_outlet *out = hpc_outlet_of(&en->layout.shares[s]);
    return answers_of(en, s) == out->sent ? answer_at(en, s)->folded : out->told;
}

/* The newest push to a share that was left out, given that its owner left out the one on its way. */
static uint64_t lost_with(const hpc_outlet *out) {
    return out->under_way > out->lost ? out->under_way : out->lost; /* a later push may have been given up already */
}

/* Fails the exchange by an impossible answer: as at most one update is on its way, at most one is answered, and at most
 * one used. */
static int refuse_answer(hpc_engine *en, int s, uint64_t answered, uint64_t used) {
    const hpc_share *share = &en->layout.shares[s];
    const hpc_outlet *out = hpc_outlet_of(share);
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why,
             "rank %d: rank %d says that it has answered %llu updates of key %.64s and used %llu; %llu were sent, and "
             "%llu used before",
             hpc_me(en), share->owner, (unsigned long long)answered, en->plan->keys[share->key].name,
             (unsigned long long)(out->used + used), (unsigned long long)out->sent, (unsigned long long)out->used);
    hpc_engine_fail(en, HPC_ERR_TRANSPORT, why);
    return hpc_engine_check(en, "push");
}

/* Whether the parameters of a row answer an update that was left out, given that some row of its share was left out. A
 * row that relays has a word of its own for this, which the next reply writes. */
static int was_left_out(const hpc_engine *en, int index) {
    const hpc_row *row = &en->plan->rows[index];
    if (row->action != HPC_RELAY) return 1;
    return row->owner == hpc_me(en) && !hpc_told_here(en, hpc_passed_at(en, index))->used;
}

/* Puts the piece of push number n back into the residual, for the elements of row index, which answers this rank. The
 * piece is of this rank's own push, or of the fold of its group. Rows of the same elements lie side by side in the
 * plan.
 */
static void take_row_back(hpc_engine *en, int index, uint64_t n) {
    const hpc_plan *plan = en->plan;
    const hpc_row *answers = &plan->rows[index];
    int i = index;
    while (i > 0 && plan->rows[i - 1].key == answers->key && plan->rows[i - 1].offset == answers->offset) i--;
    for (; i < plan->n_rows && plan->rows[i].key == answers->key && plan->rows[i].offset == answers->offset; i++) {
        const hpc_row *row = &plan->rows[i];
        if (hpc_forwards_to_rule(plan, row) && row->owner == hpc_me(en) && en->work[en->work_of[i]].encoder != NULL)
            hpc_pieces_leave_out(&en->work[en->work_of[i]]);
        if (row->action == HPC_APPLY && hpc_key_pushes_pieces(en, row->key) && hpc_row_input(row, hpc_me(en)) != NULL)
            hpc_pieces_return(en, row, hpc_slot_of_push(en, row->key, n));
    }
}

/* Puts all pieces of push number n back, which was left out or is not sent at all. Their bytes are still as they were
 * sent: the next push waits until this one was heard of (hpc_outlet_hear). */
static void take_back(hpc_engine *en, const hpc_share *share, uint64_t n) {
    for (int i = 0; i < share->n_rows && hpc_key_has_pieces(en, share->key); i++)
        if (was_left_out(en, share->rows[i])) take_row_back(en, share->rows[i], n);
}

static int hear(hpc_engine *en, int s) {
    hpc_outlet *out = hpc_outlet_of(&en->layout.shares[s]);
    uint64_t answered;
    const hpc_told *news = news_of(en, s, &answered);
    if (news == NULL) return HPC_OK;
    if (answered != out->sent || news->used > 1) return refuse_answer(en, s, answered, news->used);
    if (!news->used) {
        out->dropped++;
        out->lost = lost_with(out);
        out->dropped_at = news->folded;
        take_back(en, &en->layout.shares[s], out->under_way);
    }
    out->used += news->used;
    out->told = news->folded;
    out->answered = answered;
    hpc_quorum_of(en)->given_up[en->layout.shares[s].owner] = 0;
    return HPC_OK;
}

int hpc_outlet_hear(hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++)
        if (hpc_outlet_of(&en->layout.shares[k->shares[i]]) != NULL) status = hear(en, k->shares[i]);
    return status;
}

/* How many shares of this rank's updates rank has left out (-1: all ranks), and the newest version that had been folded
 * when one was left out. */
static uint64_t dropped_by(const hpc_engine *en, int rank, uint64_t *at) {
    uint64_t dropped = 0, answered;
    *at = 0;
    for (int s = 0; s < en->layout.n_shares; s++) {
        const hpc_outlet *out = hpc_outlet_of(&en->layout.shares[s]);
        if (out == NULL || (rank >= 0 && en->layout.shares[s].owner != rank)) continue;
        const hpc_told *news = news_of(en, s, &answered);
        const int is_new = news != NULL && !news->used;
        uint64_t last = is_new ? news->folded : out->dropped_at;
        dropped += out->dropped + (uint64_t)is_new;
        if (last > *at) *at = last;
    }
    return dropped;
}

int hpc_outlet_is_unanswered(const hpc_engine *en, int s) {
    uint64_t answered;
    const hpc_outlet *out = hpc_outlet_of(&en->layout.shares[s]);
    return out != NULL && out->sent != out->answered && news_of(en, s, &answered) == NULL;
}

void hpc_outlet_count(const hpc_engine *en, hpc_exchange_stats *stats) {
    stats->dropped = dropped_by(en, -1, &stats->dropped_at);
}

void hpc_outlet_count_peer(const hpc_engine *en, int rank, hpc_exchange_peer *peer) {
    uint64_t at;
    peer->dropped = dropped_by(en, rank, &at);
}

int hpc_outlet_late(const hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    uint64_t answered;
    int n = 0;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_outlet *out = hpc_outlet_of(&en->layout.shares[k->shares[i]]);
        if (out == NULL) continue;
        const hpc_told *news = news_of(en, k->shares[i], &answered);
        uint64_t lost = news != NULL && !news->used ? lost_with(out) : out->lost;
        n += k->pushes > 0 && lost == k->pushes;
    }
    return n;
}

/* ---- sends ---- */

/* A malformed answer fails the exchange; the next check reports it. */
void hpc_outlet_begin(hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_shares; i++) {
        hpc_outlet *out = hpc_outlet_of(&en->layout.shares[k->shares[i]]);
        if (out == NULL || hear(en, k->shares[i]) != HPC_OK) continue;
        out->sent++;
        out->decided = out->under_way = k->pushes + 1;
    }
}

/* Ignores HPC_ERR_PEER where owners may leave: every wait reports a dead neighbour, and a neighbour that has left folds
 * nothing more. */
static int unless_gone(hpc_engine *en, int status) {
    if (status != HPC_ERR_PEER || !en->owners_leave) return status;
    hpc_blame_settle(&en->context->group.blame, NULL, 0);
    return HPC_OK;
}

/* Puts push number n into the slot at the share's owner: from a copy, if the share has room for one. */
static int carry(hpc_engine *en, const hpc_share *share, uint64_t n) {
    const hpc_outlet *out = hpc_outlet_of(share);
    const char *slot = hpc_slot_of_push(en, share->key, n);
    size_t staged = out->staged;
    int status = HPC_OK;
    for (int i = 0; i < share->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &en->plan->rows[share->rows[i]];
        const char *src = slot + hpc_row_from(en, row);
        size_t nbytes = hpc_push_bytes(en, row, src);
        if (staged != HPC_NOWHERE) {
            src = memcpy(hpc_own_part(en) + staged, src, nbytes);
            staged += hpc_row_bytes(en, row);
        }
        status =
            hpc_put(en->in_lanes[share->core], en->window, share->owner, src, nbytes, en->push_slot[share->rows[i]]);
    }
    return status;
}

/* Sends push number n: its data, unless the owner reads that in place, then an event with its version. Returns
 * HPC_IN_PROGRESS while the owner's ring is full. */
static int send_update(hpc_engine *en, int s, uint64_t n) {
    const hpc_share *share = &en->layout.shares[s];
    hpc_outlet *out = hpc_outlet_of(share);
    int me = hpc_me(en), owner = share->owner, status = HPC_OK, slot = (int)((n - 1) % (uint64_t)en->layout.depth);
    if (!hpc_reads_in_place(en, owner, me) && out->carried != n) status = carry(en, share, n);
    out->carried = n;
    out->version = hpc_versions_of(en, share->key)->numbers[slot];
    if (status == HPC_OK)
        status = hpc_lane_try_notify(en->in_lanes[share->core], en->window, owner, &out->version, sizeof out->version,
                                     hpc_number_at(en, share, me, slot), hpc_imm(HPC_OP_SHARE, slot, s));
    if (status != HPC_OK) return unless_gone(en, status);
    out->sent++;
    out->under_way = n;
    hpc_count_sent(en, share, hpc_slot_of_push(en, share->key, n));
    return HPC_OK;
}

static void note_pending(hpc_engine *en, const hpc_share *share) {
    hpc_outlet *out = hpc_outlet_of(share);
    int pending = out->decided < en->keys[share->key].pushes;
    hpc_quorum_of(en)->n_pending += pending - out->pending;
    out->pending = pending;
}

/* Sends the pushes that may still be in time, oldest first, and drops the others. */
static int send_pending(hpc_engine *en, int s) {
    hpc_share *share = &en->layout.shares[s];
    hpc_outlet *out = hpc_outlet_of(share);
    const hpc_pushed *k = &en->keys[share->key];
    int status = hear(en, s);
    if (en->owners_leave && hpc_closed_signal(en, share->owner) != 0) {
        out->dropped += k->pushes - out->decided;
        out->decided = k->pushes;
    }
    while (out->decided < k->pushes && out->sent == out->answered && status == HPC_OK) {
        uint64_t n = out->decided + 1;
        if (hpc_versions_of(en, share->key)->numbers[(n - 1) % (uint64_t)en->layout.depth] <= out->told) {
            out->dropped++;
            out->lost = n;
            out->dropped_at = out->told;
            take_back(en, share, n);
        } else {
            status = send_update(en, s, n);
            if (status == HPC_IN_PROGRESS) break;
        }
        out->decided = n;
    }
    note_pending(en, share);
    return status == HPC_IN_PROGRESS ? HPC_OK : status;
}

int hpc_outlet_send_key(hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++)
        if (hpc_outlet_of(&en->layout.shares[k->shares[i]]) != NULL) status = send_pending(en, k->shares[i]);
    return status;
}

int hpc_outlet_send_all(hpc_engine *en) {
    int status = HPC_OK;
    for (int key = 0; key < en->plan->n_keys && hpc_quorum_of(en)->n_pending > 0 && status == HPC_OK; key++)
        status = hpc_outlet_send_key(en, key);
    return status;
}

void hpc_outlet_drop(hpc_engine *en, const hpc_share *share, uint64_t n) {
    hpc_outlet *out = hpc_outlet_of(share);
    if (out->decided >= n) return;
    for (uint64_t i = out->decided + 1; i <= n; i++) take_back(en, share, i);
    out->dropped += n - out->decided;
    out->dropped_at = out->told;
    out->decided = out->lost = n;
    note_pending(en, share);
}

/* ---- versions ---- */

uint64_t hpc_outlet_told(const hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    uint64_t most = hpc_quorum_of(en)->told;
    for (int i = 0; i < k->n_shares; i++) {
        if (hpc_outlet_of(&en->layout.shares[k->shares[i]]) == NULL) continue;
        uint64_t told = told_by(en, k->shares[i]);
        if (told > most) most = told;
    }
    return most;
}

uint64_t hpc_outlet_heard(const hpc_engine *en, int s) {
    return hpc_outlet_of(&en->layout.shares[s]) == NULL ? 0 : told_by(en, s);
}

uint64_t hpc_outlet_next_version(const hpc_engine *en) {
    uint64_t version = 1;
    for (int key = 0; key < en->plan->n_keys; key++) {
        uint64_t next = hpc_outlet_told(en, key) + 1;
        if (next > version) version = next;
    }
    return version;
}

int hpc_outlet_newest(hpc_engine *en, const char *op, double deadline, uint64_t own, uint64_t *newest) {
    int size = en->context->group.size;
    uint64_t *numbers = malloc((size_t)size * sizeof *numbers);
    int status = numbers == NULL ? hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size) : HPC_OK;
    status = hpc_context_agree(en->context, op, status, deadline);
    if (status == HPC_OK) status = hpc_allgather(en->context, &own, numbers, sizeof own, hpc_left(deadline));
    *newest = 0;
    for (int r = 0; r < size && status == HPC_OK; r++)
        if (numbers[r] > *newest) *newest = numbers[r];
    free(numbers);
    return status;
}
