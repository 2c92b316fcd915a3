/* Fold and apply in two calls, with a quorum: quorum_owner.c chooses the updates of a fold, split.c uses the fold's
 * mean, and this file connects the two. A worker is a rank, or with several stages a group of ranks.
 *
 * A fold of version v is made when its quorum is there and its grace is over, and each update is answered as in
 * quorum.c: it is in the mean, or late. The owner keeps the mean until it is *over*: applied, or skipped. Only one mean
 * is kept, so the fold of v + 1 waits until the mean of v is over: updates for v + 1 wait in their slots, and late
 * updates for v are answered. No worker waits for a late worker, and a late worker waits at most for the mean of the
 * version that it was told.
 *
 * A pull carries the low bits of how many updates this rank has sent to the share. So the owner knows to which update's
 * outcome the pull refers; the pull waits until that outcome is known.
 * - squares and gather are answered at once, from the mean of the version that the worker was told. When that mean is
 *   over, squares gets its known squares until a later mean is made; then they are unknown, and the sum that the worker
 *   gets leaves them out. A gather then writes nothing: the worker's values stay, and the answer says so by unknown
 *   squares.
 * - apply and skip of a worker whose update is in the mean decide for all workers. The first call counts; if another
 *   worker gives another scale or makes the other call, the exchange fails. The call of a worker whose update is
 *   not in the mean decides nothing. It is answered when the mean of the version that the worker was told is over.
 *
 * The answer to apply or skip comes after the newest parameters, and carries their version.
 *
 * A worker can be late in one share and in time in another, or ask for squares when they are unknown, or gather when
 * the mean is over. Then it has not seen all means of its version, and may have computed another scale. So its pulls
 * are marked: the worker *doubts*. A doubting worker decides only if all workers with updates in the mean doubt; then
 * the lowest rank decides. A worker that closes before it has applied or skipped its last mean sends a skip in doubt.
 * So for each update in a mean an apply or a skip comes, and a mean without open workers is skipped.
 *
 * Waits form no circle if all workers make the same calls in the same order, or make all before they wait. Proof: of
 * all workers that wait for one mean take the one that has progressed least. A mean of its version or an older one is
 * over when a worker whose update is in it reaches that apply or skip; that worker is not less far, so it has reached
 * it. Folds find their quorum as in quorum.c, because all workers go on from a version when its means are over.
 *
 * Writers and order. The owner's core writes the mean between the last event of its fold and the pull that ends it. The
 * updates in it may be read until then: their workers do not write the slots before the answer to their pull.
 * Parameters are written into a worker's memory between its apply or skip and the answer to that, as in split.c. Puts
 * to a worker read that worker's separate copy, because the other workers go on meanwhile.
 *
 * Groups. Ranks of a group are told the same, and make the same calls in the same order, with the same scale; otherwise
 * the exchange fails. Each rank sends its pulls to the owners itself. A group has pulled when all its ranks have
 * pulled; one of these ranks speaks for the group: its call counts. If one rank closes and another applies, the
 * applying rank speaks. Owners answer each rank directly: its updates (with the outcome) and its pulls. Versions,
 * forwards and their slots are as in quorum.c. A relay passes on parameters, or an event without parameters, and
 * answers its ranks' pulls too, as in split.c: it gets one of the two for each pull of its group. So when the group's
 * pull is answered, the owner's writes into the group's slots, copies and relays are over.
 *
 * Encoders. An update that was left out goes back into the residual. After that the encoders are told the worker's
 * call: if the worker has skipped a fold, even one that it was late for, they return to the state before it. So no
 * value is added to the residual twice. */
#include <string.h>

#include "discipline/discipline.h"
#include "discipline/servers_groups.h"
#include "discipline/quorum_state.h"
#include "discipline/servers_bsp.h"
#include "engine/owner/signals.h"
#include "engine/args.h"
#include "engine/owner/core.h"
#include "engine/owner/forward.h"
#include "engine/pieces.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"
#include "engine/owner/write.h"

/* The event of a pull holds its use, the low bits of the number of updates before it, and whether the worker doubts. */
enum { AFTER_UPDATES = 4, AFTER_SHIFT = HPC_SPLIT_USE_BITS, DOUBTS = AFTER_UPDATES << AFTER_SHIFT };
_Static_assert(2 * DOUBTS <= 1 << HPC_IMM_SLOT_BITS, "it fits");

enum { NOBODY = -1, NOT_YET = -2 }; /* instead of a rank that decides */

static int ends_mean(hpc_use use) {
    return use == HPC_USE_APPLY || use == HPC_USE_SKIP;
}

/* ---- open ---- */

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    const int status = hpc_quorum_check(c, f);
    return status == HPC_OK ? hpc_split_check(c, f) : status;
}

static int open_askers(hpc_scheme *sc, hpc_share *share, const char *op) {
    hpc_quorum_share *its = share->own;
    const int size = sc->context->group.size;
    its->decided.gets = NOBODY;
    its->askers = hpc_scheme_take(sc, (size_t)size, sizeof *its->askers, op);
    for (int r = 0; r < size && its->askers != NULL; r++) {
        its->askers[r].squares = hpc_scheme_take(sc, (size_t)share->n_rows, sizeof(double), op);
        if (its->askers[r].squares == NULL) return HPC_ERR_MEMORY;
    }
    return its->askers != NULL ? hpc_split_open_squares(sc, share, &its->means, op) : HPC_ERR_MEMORY;
}

static int open_all(hpc_scheme *sc, const char *op) {
    int status = hpc_quorum_open(sc, op);
    hpc_split_open_relays(sc);
    for (int s = 0; s < sc->layout.n_shares && status == HPC_OK; s++)
        if (hpc_intake_of(&sc->layout.shares[s]) != NULL) status = open_askers(sc, &sc->layout.shares[s], op);
    return status;
}

/* ---- the core: the decision about a mean ---- */

static hpc_work *work_at(const hpc_scheme *sc, const hpc_share *share, int place) {
    return hpc_work_of(sc, share->rows[place]);
}

/* Carries out a sender's pull for all rows of a share. rank is the rank that speaks for the sender. */
static int use_rows(hpc_core *core, hpc_share *share, int sender, int rank) {
    const double *args = hpc_args_of(core->scheme, share, rank, 0);
    const hpc_use use = hpc_asker_of(share, rank)->use;
    hpc_split_means *m = share->own;
    int failed = 0;
    for (int i = 0; i < share->n_rows && !failed; i++)
        failed = hpc_split_use_row(core, work_at(core->scheme, share, i), use, sender, args, &m->squares[i]);
    return failed;
}

static int fold(hpc_core *core, hpc_work *w, int place) {
    return hpc_split_begin_row(core, w, &((hpc_split_means *)w->share->own)->squares[place]);
}

static void keep(hpc_share *share) {
    const hpc_intake *in = hpc_intake_of(share);
    ((hpc_split_means *)share->own)->kept = 1;
    for (int i = 0; i < in->n_from; i++)
        atomic_store_explicit(&hpc_asker_of(share, in->from[i])->in_mean, in->takes[in->from[i]], memory_order_relaxed);
}

static int is_in_mean(const hpc_share *share, int sender) {
    return atomic_load_explicit(&hpc_asker_of(share, sender)->in_mean, memory_order_relaxed);
}

static int asks(const hpc_share *share, int rank) {
    return atomic_load_explicit(&hpc_asker_of(share, rank)->asks, memory_order_relaxed);
}

/* Returns whether a rank's pull may be the skip that its close sends, which leaves the decision to the others. */
static int leaves(const hpc_asker *a) {
    return a->use == HPC_USE_SKIP && a->doubts;
}

/* Returns the rank of a sender that speaks for it; NOBODY while some of its ranks have not pulled. */
static int speaker(const hpc_scheme *sc, const hpc_share *share, int sender) {
    int speaks = asks(share, sender) ? sender : NOBODY;
    for (int r = sender + 1; r < sc->context->group.size && sc->group_of != NULL && speaks != NOBODY; r++) {
        if (hpc_sender_of(sc, share->key, r) != sender) continue;
        if (!asks(share, r)) return NOBODY;
        if (leaves(hpc_asker_of(share, speaks)) && !leaves(hpc_asker_of(share, r))) speaks = r;
    }
    return speaks;
}

/* Returns the rank whose pull decides about the mean; NOT_YET while an open sender may still decide; NOBODY if no such
 * sender is open. */
static int decider(const hpc_core *core, const hpc_share *share) {
    const hpc_intake *in = hpc_intake_of(share);
    int open = 0, doubts = NOBODY;
    for (int i = 0; i < in->n_from; i++) {
        if (!is_in_mean(share, in->from[i])) continue;
        const int rank = speaker(core->scheme, share, in->from[i]);
        if (rank == NOBODY || !ends_mean(hpc_asker_of(share, rank)->use))
            open |= !hpc_intake_is_gone(core, in->from[i]);
        else if (!hpc_asker_of(share, rank)->doubts)
            return rank;
        else if (doubts == NOBODY || rank < doubts)
            doubts = rank;
    }
    return open ? NOT_YET : doubts;
}

static hpc_decided said_by(const hpc_scheme *sc, const hpc_share *share, int rank) {
    const hpc_asker *a = hpc_asker_of(share, rank);
    return (hpc_decided){.rank = rank,
                         .gets = hpc_sender_of(sc, share->key, rank),
                         .use = a->use,
                         .scale = *hpc_args_of(sc, share, rank, 0),
                         .doubts = a->doubts};
}

static int decide(hpc_core *core, hpc_share *share) {
    hpc_quorum_share *its = share->own;
    const int rank = decider(core, share);
    if (rank == NOT_YET) return 0;
    its->decided = (hpc_decided){.rank = NOBODY, .gets = NOBODY, .use = HPC_USE_SKIP};
    if (rank != NOBODY) its->decided = said_by(core->scheme, share, rank);
    if (rank != NOBODY && use_rows(core, share, its->decided.gets, rank) != 0) return -1;
    its->means.kept = 0;
    for (int i = 0; i < its->intake.n_from; i++)
        atomic_store_explicit(&hpc_asker_of(share, its->intake.from[i])->in_mean, 0, memory_order_relaxed);
    return 1;
}

/* ---- the core: answers ---- */

/* Returns whether the mean of the version that a sender was told last is over. */
static int is_over(const hpc_share *share, int sender) {
    return !((const hpc_split_means *)share->own)->kept ||
           hpc_intake_of(share)->senders[sender].told.folded < hpc_folded_of(share);
}

static int may_be_answered(const hpc_share *share, int sender, int rank) {
    if (rank == NOBODY) return 0;
    const hpc_asker *a = hpc_asker_of(share, rank);
    if (share->clocks[sender].answered % AFTER_UPDATES != (uint64_t)a->after) return 0;
    return !ends_mean(a->use) || is_over(share, sender);
}

/* Returns whether a rank's pull agrees with a decision; if not, the exchange fails. */
static int agrees(hpc_scheme *sc, const hpc_share *share, int rank, const hpc_decided *d) {
    const hpc_asker *a = hpc_asker_of(share, rank);
    const double scale = *hpc_args_of(sc, share, rank, 0);
    const int ranks[] = {d->rank, rank};
    if (a->use != d->use) {
        hpc_split_fail_use(sc, share, ranks, (const hpc_use[]){d->use, a->use});
        return 0;
    }
    if (a->use == HPC_USE_SKIP || hpc_split_scales_agree(scale, d->scale)) return 1;
    hpc_split_fail_scale(sc, share, ranks, (const double[]){d->scale, scale});
    return 0;
}

/* Returns the same for a sender whose update was in the last mean, and the decision about that mean. */
static int agrees_to_decided(hpc_scheme *sc, const hpc_share *share, int sender, int rank) {
    const hpc_quorum_share *its = share->own;
    const hpc_told *told = &its->intake.senders[sender].told;
    if (!told->used || told->folded < hpc_folded_of(share)) return 1;
    if (hpc_asker_of(share, rank)->doubts || its->decided.doubts || its->decided.rank == NOBODY) return 1;
    return agrees(sc, share, rank, &its->decided);
}

/* Returns the same for the ranks of a group. Doubting ranks are not compared, since they may have gathered different
 * values. */
static int mates_agree(hpc_scheme *sc, const hpc_share *share, int rank) {
    const hpc_asker *a = hpc_asker_of(share, rank);
    const int group = hpc_sender_of(sc, share->key, rank);
    for (int r = group; r < sc->context->group.size && sc->group_of != NULL; r++) {
        const hpc_asker *mate = hpc_asker_of(share, r);
        if (hpc_sender_of(sc, share->key, r) != group || !asks(share, r)) continue;
        if (ends_mean(a->use) && ends_mean(mate->use) && (leaves(a) || leaves(mate) || (a->doubts && mate->doubts)))
            continue;
        const hpc_decided said = said_by(sc, share, r);
        if (!agrees(sc, share, rank, &said)) return 0;
    }
    return 1;
}

static void send_answer(hpc_core *core, const hpc_share *share, int rank) {
    const hpc_scheme *sc = core->scheme;
    hpc_asker *a = hpc_asker_of(share, rank);
    const int s = (int)(share - sc->layout.shares);
    const void *src = NULL;
    size_t nbytes = 0, at = hpc_version_at(sc, rank, s);
    if (ends_mean(a->use)) src = &a->version, nbytes = sizeof a->version;
    if (!ends_mean(a->use)) src = a->squares, nbytes = (size_t)share->n_rows * sizeof *a->squares, at -= nbytes;
    hpc_share_answer_with(core, rank, src, nbytes, nbytes > 0 ? at : 0, hpc_signal_second(sc, s),
                          ++share->clocks[rank].asked);
}

/* Returns the squares with which a squares or gather is answered. here: set if the mean that the pull asks for is the
 * last one, or is kept. */
static double told_squares(const hpc_asker *a, double known, int here) {
    if (!here) return HPC_SPLIT_UNKNOWN;
    return a->use == HPC_USE_GATHER && known == HPC_SPLIT_UNKNOWN ? 0 : known;
}

static void answer_rank(hpc_core *core, const hpc_share *share, int rank, int here) {
    hpc_quorum_share *its = share->own;
    hpc_asker *a = &its->askers[rank];
    a->version = hpc_folded_of(share) - (uint64_t)its->means.kept;
    for (int i = 0; i < share->n_rows && !ends_mean(a->use); i++)
        a->squares[i] = told_squares(a, its->means.squares[i], here);
    atomic_store_explicit(&a->asks, 0, memory_order_relaxed);
    its->means.n_used--;
    send_answer(core, share, rank);
}

/* Sends relays an event without parameters, since they answer every pull. */
static int bring_nothing(hpc_core *core, const hpc_share *share, int sender) {
    for (int i = 0; i < share->n_rows; i++)
        hpc_forward_row(core, work_at(core->scheme, share, i), HPC_KEPT_EMPTY, sender);
    return 0;
}

/* Answers a sender's pull. rank is the rank that speaks for the sender. The sender that has decided has the newest
 * parameters already. */
static int answer(hpc_core *core, hpc_share *share, int sender, int rank) {
    const hpc_scheme *sc = core->scheme;
    hpc_quorum_share *its = share->own;
    const hpc_use asked = its->askers[rank].use;
    const int kept = its->means.kept, ends = ends_mean(asked);
    const uint64_t folded = atomic_load_explicit(&its->intake.folded, memory_order_relaxed);
    const int here = its->intake.senders[sender].told.folded == folded && (kept || asked == HPC_USE_SQUARES);
    if (ends && !kept && !agrees_to_decided(core->scheme, share, sender, rank)) return -1;
    if (ends && sender != its->decided.gets) hpc_intake_send_params(core, share, sender);
    if (ends && sender == its->decided.gets) its->decided.gets = NOBODY;
    const int makes = here && kept;
    if (!ends && (makes ? use_rows(core, share, sender, rank) : bring_nothing(core, share, sender)) != 0) return -1;
    for (int i = 0; i < share->n_members; i++)
        if (hpc_sender_of(sc, share->key, share->members[i]) == sender)
            answer_rank(core, share, share->members[i], here);
    return 0;
}

/* Decides about the mean, and answers the pulls that need not wait. */
static int work(hpc_core *core, hpc_share *share, int *waits) {
    const hpc_quorum_share *its = share->own;
    int n = its->means.kept ? decide(core, share) : 0;
    for (int i = 0; i < its->intake.n_from && its->means.n_used > 0 && n >= 0; i++) {
        const int sender = its->intake.from[i], rank = speaker(core->scheme, share, sender);
        if (may_be_answered(share, sender, rank)) n = answer(core, share, sender, rank) == 0 ? n + 1 : -1;
    }
    *waits = its->means.kept;
    return n;
}

/* ---- the core: events ---- */

static int came(hpc_core *core, hpc_work *w, int input, int slot, int how) {
    if (hpc_scheme_has_failed(core->scheme)) return 1;
    if (is_in_mean(w->share, w->inputs[input].lowest))
        return hpc_intake_refuse_second(core->scheme, w->share, w->inputs[input].rank);
    return hpc_intake_came(core, w, input, slot, how);
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    return came(core, w, input, slot, HPC_CAME);
}

static int pull_came(hpc_core *core, hpc_share *share, int rank, int said) {
    hpc_asker *a = hpc_asker_of(share, rank);
    if (hpc_scheme_has_failed(core->scheme)) return 1;
    if (!hpc_feeds_share(core->scheme, share, rank) || asks(share, rank)) return 0;
    a->use = (hpc_use)(said & ((1 << HPC_SPLIT_USE_BITS) - 1));
    a->after = said >> AFTER_SHIFT & (AFTER_UPDATES - 1);
    a->doubts = (said & DOUBTS) != 0;
    atomic_store_explicit(&a->asks, 1, memory_order_relaxed);
    ((hpc_split_means *)share->own)->n_used++;
    if (!mates_agree(core->scheme, share, rank)) return 1;
    hpc_intake_look_after(core, share);
    return 1;
}

static int use_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    return !hpc_core_brings(core, event, "the arguments of share", share->key, HPC_ARGS_BYTES) ||
           pull_came(core, share, event->peer, hpc_imm_slot(event->imm));
}

static int other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    switch (share == NULL ? HPC_OP_PULL : hpc_imm_operation(event->imm)) {
    case HPC_OP_USE:
        return use_came(core, share, event);
    case HPC_OP_EMPTY:
        if (hpc_scheme_has_failed(core->scheme)) return 1;
        if (is_in_mean(share, event->peer)) return hpc_intake_refuse_second(core->scheme, share, event->peer);
        return hpc_intake_empty_came(core, share, event);
    default:
        return 0;
    }
}

/* ---- the core: events with several stages ---- */

static int stage_came(hpc_core *core, hpc_work *w, int input, int slot, int how) {
    if (w->row->action == HPC_APPLY) return came(core, w, input, slot, how);
    if (w->row->action == HPC_RELAY) {
        hpc_split_relayed_came(core, w, how);
        return 1;
    }
    hpc_quorum_say_version(core, w, input, slot);
    if (how == HPC_CAME) return hpc_whole_row_came(core, w, input, slot);
    hpc_whole_empty_came(core, w, input);
    return 1;
}

static int stage_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    return stage_came(core, w, input, slot, HPC_CAME);
}

static void nothing_came(hpc_core *core, hpc_work *w, int slot, int input) {
    stage_came(core, w, input, slot, HPC_CAME_EMPTY);
}

static int stage_other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    if (hpc_imm_operation(event->imm) != HPC_OP_USE) return hpc_core_empty_came(core, share, event, nothing_came);
    return share != NULL && hpc_split_action(core->scheme, share) == HPC_APPLY && use_came(core, share, event);
}

/* ---- the worker ---- */

static int may_push(hpc_scheme *sc, int key, const char *op) {
    const int status = hpc_push_after(sc, key, hpc_split_last_pull(sc, key), op);
    return status == HPC_OK ? hpc_outlet_may_push(sc, key, op) : status;
}

/* Tells the encoders how the last fold ended. An update that was left out is back in the residual by now. */
static void end_fold(hpc_scheme *sc, int key) {
    hpc_split_ask *a = hpc_split_ask_of(sc, key);
    if (a->ended == 0 || !hpc_asker_is_over(sc, key)) return;
    hpc_pieces_end_fold(sc, key, a->ended - 1);
    a->ended = 0;
}

/* If the trainer waited only for the pull, its push may have found no quorum, so this is checked here. */
static int wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    int status = hpc_split_wait_over(sc, key, l, op);
    if (status == HPC_OK && sc->keys[key].since != 0) status = hpc_outlet_note(sc, key, HPC_ON_END, NULL, op);
    if (status == HPC_OK) status = hpc_outlet_wait_slot(sc, key, l, op);
    if (status == HPC_OK) end_fold(sc, key);
    return status;
}

/* Sends a pull. If the owner's ring was full when an update should have been sent, that update comes after this pull,
 * but counts as sent before it. */
static int send_pull(hpc_scheme *sc, int s, int doubts, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    hpc_outlet *out = hpc_outlet_of(share);
    const uint64_t updates = out == NULL ? 0 : out->sent + (out->decided < sc->keys[share->key].pushes);
    const int said = (int)hpc_split_ask_of(sc, share->key)->use | (int)(updates % AFTER_UPDATES) << AFTER_SHIFT |
                     (doubts ? DOUBTS : 0);
    const double *args = hpc_split_args(sc, share->key);
    if (out == NULL) return HPC_OK;
    out->pulled = hpc_asker_heard(sc, s);
    return hpc_send_event(sc, share->core, share->owner, args, HPC_ARGS_BYTES, hpc_args_at(sc, share, hpc_me(sc), 0),
                          hpc_imm(HPC_OP_USE, said, s), l);
}

/* Returns the sum of the known squares of a key. The squares of a share's rows are all known or all unknown. */
static double squares(const hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (*hpc_split_squares_of(sc, k->shares[i]) == HPC_SPLIT_UNKNOWN)
            hpc_quorum_of(sc)->lost = hpc_versions_of(sc, key)->number;
    return hpc_split_squares(sc, key);
}

/* Looks for gathers that have ended: they may have found no mean. */
static void hear_gathers(hpc_scheme *sc) {
    for (int key = 0; key < sc->plan->n_keys && hpc_quorum_of(sc)->n_gathers > 0; key++) {
        hpc_split_ask *a = hpc_split_ask_of(sc, key);
        if (!a->gathers || !hpc_ticket_is_done(sc, key, hpc_split_last_pull(sc, key))) continue;
        a->gathers = 0;
        hpc_quorum_of(sc)->n_gathers--;
        squares(sc, key);
    }
}

static int ask(hpc_scheme *sc, int s, hpc_limit *l) {
    const int key = sc->layout.shares[s].key, begins = sc->keys[key].at_share == 0;
    const int status = begins ? hpc_outlet_note(sc, key, HPC_ON_HEAR, NULL, "pull") : HPC_OK;
    if (status != HPC_OK) return status;
    if (begins) hear_gathers(sc);
    return send_pull(sc, s, hpc_quorum_of(sc)->lost == hpc_versions_of(sc, key)->number, l);
}

/* Leaves a mean that this rank has neither applied nor skipped to the other workers. */
static int finish(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    hpc_pushed *k = &sc->keys[key];
    hpc_split_ask *a = hpc_split_ask_of(sc, key);
    for (; a->keeps && k->at_share < k->n_shares; k->at_share++) {
        a->use = HPC_USE_SKIP;
        const int status = send_pull(sc, k->shares[k->at_share], 1, l);
        if (status != HPC_OK) return status;
    }
    if (a->keeps) {
        k->pulls++;
        k->at_share = 0;
        hpc_split_asked(sc, key);
    }
    return hpc_split_wait_over(sc, key, l, op);
}

static int note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    if (moment == HPC_ON_SENT) hpc_split_ask_of(sc, key)->keeps = 1;
    if (moment == HPC_ON_FINISH) return finish(sc, key, l, op);
    if (moment == HPC_ON_ASKED) {
        hpc_split_ask *a = hpc_split_ask_of(sc, key);
        hpc_quorum_of(sc)->n_gathers += a->gathers = a->use == HPC_USE_GATHER;
        hpc_split_asked(sc, key);
        return HPC_OK;
    }
    const int status = hpc_outlet_note(sc, key, moment, l, op);
    if (status == HPC_OK && moment == HPC_ON_HEAR) end_fold(sc, key);
    return status;
}

/* Adds the ranks that have not pulled: ranks of the senders in a share's mean, and of the argument sender unless it is
 * NOBODY. Returns whether the share keeps a mean. */
static int add_silent(const hpc_scheme *sc, const hpc_share *share, int sender, int *ranks, int *found) {
    int kept = 0;
    for (int r = 0; r < sc->context->group.size; r++) {
        const int its = hpc_sender_of(sc, share->key, r), in_mean = its >= 0 && is_in_mean(share, its);
        kept |= in_mean;
        if ((in_mean || (its >= 0 && its == sender)) && !asks(share, r)) *found = hpc_add_rank(ranks, *found, r);
    }
    return kept;
}

/* Adds the ranks that have not pulled if a mean is kept; otherwise the ranks whose updates are missing. */
static int missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    return add_silent(sc, share, NOBODY, ranks, &found) ? found : hpc_outlet_missing(sc, s, ticket, ranks, found);
}

/* Adds the missing ranks that this rank's own shares of the key show; otherwise the owner. A relay's owner is added
 * only when all owners have answered. A pull also waits for the other ranks of its group. */
static int missing_in_groups(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_pushed *k = &sc->keys[share->key];
    const int pulls = (ticket & HPC_PULL_TICKET) && hpc_share_has_answered(sc, s, 2 * k->pushes), before = found;
    const int group = pulls ? hpc_sender_of(sc, share->key, hpc_me(sc)) : NOBODY;
    int owners = 0; /* whether some owners have not answered */
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *other = &sc->layout.shares[k->shares[i]];
        if (hpc_intake_of(other) != NULL) add_silent(sc, other, group, ranks, &found);
        owners |= hpc_outlet_of(other) != NULL && !hpc_share_has_answered(sc, k->shares[i], ticket);
    }
    if (found > before) return found;
    if (!pulls) return hpc_outlet_missing_in_groups(sc, s, 2 * k->pushes, ranks, found);
    if (share->owner == hpc_me(sc) || (hpc_outlet_of(share) == NULL && owners)) return found;
    return hpc_add_rank(ranks, found, share->owner);
}

static int is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes) {
    return !(ticket & HPC_PULL_TICKET) && hpc_groups_is_late(sc, rank, key, ticket, pushes);
}

/* ---- the value ---- */

static int plan(hpc_scheme *sc, const char *op) {
    static const hpc_keeping keeping = {fold, keep, work};
    const int status = hpc_quorum_plan(sc, op);
    hpc_quorum *q = sc->own;
    if (status != HPC_OK) return status;
    q->keeping = &keeping;
    q->split.inputs = hpc_intake_inputs;
    return hpc_split_plan(sc, &q->split, op);
}

static const hpc_mean_use use = {.set_use = hpc_split_set_use, .squares = squares};

const hpc_discipline hpc_discipline_split_quorum = {
    .name = "a quorum in two calls",
    .check = check,
    .traits = HPC_GOES_ON | HPC_BY_QUORUM | HPC_WHOLE | HPC_ONE_SLOT | HPC_BRINGS_NUMBER | HPC_PULLS,
    .plan = plan,
    .open = open_all,
    .gate =
        &(const hpc_gate){.row_came = row_came, .other_came = other_came, .work = hpc_intake_work, .missing = missing},
    .pace = &(const hpc_pace){.may_push = may_push,
                              .wait_slot = wait_slot,
                              .send_share = hpc_outlet_send_share,
                              .moments = HPC_ON_SEND | HPC_ON_SENT | HPC_ON_END | HPC_ON_ASKED | HPC_ON_HEAR |
                                         HPC_ON_FINISH | HPC_ON_LOOK | HPC_ON_PUBLISHED | HPC_ON_CLOSE,
                              .note = note,
                              .ends = hpc_split_ends_pull,
                              .ask = ask},
    .use = &use,
};

const hpc_discipline hpc_discipline_split_groups_quorum = {
    .name = "a quorum of groups in two calls",
    .check = check,
    .traits = HPC_GOES_ON | HPC_BY_QUORUM | HPC_PULLS | HPC_ANSWERS_ALL,
    .plan = plan,
    .open = open_all,
    .gate = &(const hpc_gate){.row_came = stage_row_came,
                              .other_came = stage_other_came,
                              .work = hpc_intake_work,
                              .missing = missing_in_groups},
    .pace = &(const hpc_pace){.may_push = may_push,
                              .wait_slot = wait_slot,
                              .send_share = hpc_outlet_send_share,
                              .moments = HPC_ON_SEND | HPC_ON_SENT | HPC_ON_END | HPC_ON_ASKED | HPC_ON_HEAR |
                                         HPC_ON_FINISH | HPC_ON_PUBLISH | HPC_ON_CLOSE,
                              .note = note,
                              .is_late = is_late,
                              .ends = hpc_split_ends_pull,
                              .ask = ask},
    .use = &use,
};
