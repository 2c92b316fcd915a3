/* A quorum among peers: every worker has a copy of the parameters, to which it applies the same folds as all others.
 * For all shares with the same elements one rank decides; each rank decides for some elements. The deciding rank finds
 * by the rules of an owner (quorum.c) which updates count, and sends *verdicts*. A verdict is either a fold, with the
 * list of ranks whose updates it takes, or says that the update of one rank is left out. All shares follow the verdicts
 * in the same order, so the copies stay equal, bit for bit.
 *
 * A worker sends its update to its peers as under BSP. It also sends the deciding rank a vote: the version that the
 * update is for. The updates of a rank come in order, so a verdict is about the next update of each rank that it names.
 * A share follows a verdict when all these updates have come; then it answers their ranks, and their slots are free. A
 * worker learns the outcome from its own share, when its parameters have all folds decided before. So an update is
 * folded on every rank or on none, and is added back to the residual at most once.
 *
 * Writers and order. A worker puts its vote into the part of the deciding rank, before the vote's event. It votes again
 * only when its last vote was decided, so each rank has one vote there. The deciding rank puts its verdicts into a ring
 * in the part of each rank, itself included. A signal after each verdict counts them, and the follower's core acquires
 * it. The ring cannot overflow: a verdict is about at least one update, and a rank has at most as many pending updates
 * as slots, because it waits for the answers of all its peers.
 *
 * If peers form a graph, all ranks vote and updates are decided in the same way. A fold waits until each rank has a
 * quorum of the updates that come to it. A share answers all ranks, even ranks whose updates do not come to it, so the
 * ring cannot overflow either.
 *
 * Waits form no circle, as in quorum.c: a share that follows a verdict waits only for updates that were sent before
 * their votes. A core that stands still makes its peers wait when their slots are used up; a server's core that stands
 * still makes its workers wait at once. */
#include <string.h>

#include "discipline/discipline.h"
#include "discipline/peers.h"
#include "discipline/quorum_state.h"
#include "engine/owner/signals.h"
#include "engine/owner/core.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    const int status = hpc_peers_check(c, f);
    return status == HPC_OK ? hpc_quorum_check(c, f) : status;
}

/* ---- the core: verdicts ---- */

static uint64_t *verdict_here(const hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    return (uint64_t *)(void *)(hpc_own_part(sc) + hpc_verdict_at(sc, share, n));
}

static void give(hpc_core *core, const hpc_share *share, int left_out) {
    const hpc_scheme *sc = core->scheme;
    const hpc_pushed *k = &sc->keys[share->key];
    hpc_intake *in = hpc_intake_of(share);
    const size_t nbytes = hpc_verdict_words(sc) * sizeof(uint64_t);
    uint64_t *verdict = memset(verdict_here(sc, share, in->given), 0, nbytes);
    verdict[0] = (uint64_t)(left_out + 1);
    for (int i = 0; i < in->n_from && left_out < 0; i++)
        verdict[1 + in->from[i] / 64] |= (uint64_t)(in->takes[in->from[i]] != 0) << in->from[i] % 64;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *to = &sc->layout.shares[k->shares[i]];
        if (to == share || to->core != share->core) continue;
        hpc_share_answer_with(core, to->owner, verdict, nbytes, hpc_verdict_at(sc, to, in->given),
                              hpc_signal_second(sc, (int)(share - sc->layout.shares)), in->given + 1);
    }
    in->given++;
}

static uint64_t verdicts_of(const hpc_scheme *sc, const hpc_share *share) {
    const hpc_share *by = hpc_decider_of(sc, share);
    const int signal = hpc_signal_second(sc, (int)(by - sc->layout.shares));
    if (by == share) return hpc_intake_of(share)->given;
    return atomic_load_explicit(hpc_own_signal(sc->window, signal), memory_order_acquire);
}

static int is_about(const uint64_t *verdict, int rank) {
    return verdict[0] > 0 ? verdict[0] == (uint64_t)rank + 1 : verdict[1 + rank / 64] >> rank % 64 & 1;
}

/* Returns whether an update of rank waits in a share. */
static int has_come(const hpc_share *share, int rank) {
    return hpc_clock_came(&share->clocks[rank]) > hpc_clock_applied(&share->clocks[rank]);
}

/* Returns whether all inputs that a verdict names have come. If so, notes them and their slots for the fold. */
static int is_there(const hpc_scheme *sc, const hpc_share *share, const uint64_t *verdict) {
    const hpc_work *w = hpc_first_work(sc, share);
    memset(hpc_intake_of(share)->takes, 0, (size_t)sc->context->group.size);
    for (int e = 0; e < w->row->n_in; e++) {
        const int rank = w->inputs[e].rank, about = is_about(verdict, rank);
        if (about && !has_come(share, rank)) return 0;
        hpc_intake_of(share)->takes[rank] = (char)about;
        share->clocks[rank].slot = (int)(hpc_clock_applied(&share->clocks[rank]) % (uint64_t)sc->layout.depth);
    }
    return 1;
}

/* Answers the ranks that do not send their updates to this rank: they wait for this answer too. */
static void answer_others(hpc_core *core, const hpc_share *share, const uint64_t *verdict) {
    const hpc_intake *in = hpc_intake_of(share);
    for (int i = 0; i < in->n_from; i++)
        if (is_about(verdict, in->from[i]) && !in->takes[in->from[i]])
            hpc_intake_answer(core, share, in->from[i], (hpc_told){0});
}

static void end(const hpc_scheme *sc, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(sc, share);
    hpc_intake *in = hpc_intake_of(share);
    for (int e = 0; e < w->row->n_in; e++) {
        const int rank = w->inputs[e].rank;
        if (!in->takes[rank]) continue;
        hpc_peers_note_used(sc, share, e, hpc_clock_applied(&share->clocks[rank]) + 1);
        hpc_tally_add(&share->clocks[rank].applied, 1);
        in->held--;
    }
    in->followed++;
}

static int follow(hpc_core *core, hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    hpc_intake *in = hpc_intake_of(share);
    int n = 0;
    for (; in->followed < verdicts_of(sc, share); n++) {
        const uint64_t *verdict = verdict_here(sc, share, in->followed);
        const int left_out = (int)verdict[0] - 1;
        if (!is_there(sc, share, verdict)) break;
        if (left_out >= 0) {
            hpc_count_late(core->scheme, left_out);
            hpc_intake_answer(core, share, left_out, (hpc_told){share->version, 0});
        } else {
            answer_others(core, share, verdict);
            if (hpc_intake_fold(core, share, share->version + 1) != 0) return -1;
        }
        end(sc, share);
    }
    return n;
}

/* ---- the core: events ---- */

static int came(hpc_core *core, hpc_share *share, int input, int slot, int how) {
    const hpc_clock *from = &share->clocks[hpc_first_work(core->scheme, share)->inputs[input].rank];
    const uint64_t before = hpc_clock_came(from);
    if (!hpc_peers_note_came(core->scheme, share, input, slot, how)) return 0;
    hpc_intake_of(share)->held += (int)(hpc_clock_came(from) - before);
    hpc_intake_look_after(core, share);
    return 1;
}

/* Marks an input of a row. In the first row an input is marked only when all rows have it; for that row returns 1 and
 * marks nothing. */
static int mark(const hpc_core *core, hpc_work *w, int input, int slot, int how) {
    const int first = w == hpc_first_work(core->scheme, w->share);
    if (!first) hpc_row_mark(w, slot, input, how);
    return first;
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    mark(core, w, input, slot, HPC_CAME);
    hpc_clock *from = &w->share->clocks[w->inputs[input].rank];
    return !hpc_clock_row(from, w->share) || came(core, w->share, input, slot, HPC_CAME);
}

static void nothing_came(hpc_core *core, hpc_work *w, int slot, int input) {
    if (mark(core, w, input, slot, HPC_CAME_EMPTY)) came(core, w->share, input, slot, HPC_CAME_EMPTY);
}

static int other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    const hpc_scheme *sc = core->scheme;
    const int rank = event->peer, slot = hpc_imm_slot(event->imm);
    if (hpc_imm_operation(event->imm) != HPC_OP_USE) return hpc_core_empty_came(core, share, event, nothing_came);
    if (share == NULL || hpc_decider_of(sc, share) != share || slot >= sc->layout.depth) return 0;
    if (!hpc_core_brings(core, event, "a vote for share", share->key, sizeof(uint64_t))) return 1;
    return hpc_pushes_key(sc, rank, share->key) && hpc_intake_vote_came(core, share, rank, slot);
}

/* ---- the worker ---- */

/* Adds the peers whose next update has not come; if all have come, the rank that decides. */
static int missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_work *w = hpc_first_work(sc, share);
    const int before = found;
    (void)ticket;
    for (int e = 0; e < w->row->n_in; e++)
        if (!has_come(share, w->inputs[e].rank) && hpc_closed_signal(sc, w->inputs[e].rank) == 0)
            found = hpc_add_rank(ranks, found, hpc_edge_sender(&w->row->in[e]));
    return found > before ? found : hpc_add_rank(ranks, found, hpc_decider_of(sc, share)->owner);
}

/* Called in a publish. All ranks go on from the same folds: a share that has answered all pushes has followed all
 * verdicts. */
static int level(hpc_scheme *sc, hpc_limit *l, const char *op) {
    int status = HPC_OK;
    for (int key = 0; key < sc->plan->n_keys && status == HPC_OK; key++)
        if (sc->keys[key].n_shares > 0)
            status = hpc_ticket_wait_slot(sc, key, 2 * sc->keys[key].pushes, hpc_limit_left(sc, l), op);
    return hpc_context_agree(sc->context, op, status, l->deadline);
}

static int note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    return moment == HPC_ON_PUBLISH ? level(sc, l, op) : hpc_outlet_note(sc, key, moment, l, op);
}

static int plan(hpc_scheme *sc, const char *op) {
    static const hpc_verdicts verdicts = {give, follow};
    const int status = hpc_quorum_plan(sc, op);
    if (status == HPC_OK) hpc_quorum_of(sc)->verdicts = &verdicts;
    return status;
}

const hpc_discipline hpc_discipline_peers_quorum = {
    .name = "a quorum among peers",
    .check = check,
    .traits = HPC_GOES_ON | HPC_BY_QUORUM | HPC_WHOLE | HPC_OWN_PARAMS | HPC_INVOLVES_ALL | HPC_PASSES_ON | HPC_EACH |
              HPC_DECIDES,
    .plan = plan,
    .open = hpc_quorum_open,
    .gate =
        &(const hpc_gate){.row_came = row_came, .other_came = other_came, .work = hpc_intake_work, .missing = missing},
    .pace = &(const hpc_pace){.may_push = hpc_outlet_may_push,
                              .wait_slot = hpc_outlet_wait_slot,
                              .send_share = hpc_push_in_turn,
                              .moments = HPC_ON_SEND | HPC_ON_SENT | HPC_ON_END | HPC_ON_HEAR | HPC_ON_LOOK |
                                         HPC_ON_PUBLISH | HPC_ON_PUBLISHED | HPC_ON_CLOSE,
                              .note = note,
                              .has_read = hpc_share_has_answered},
};
