/* A quorum on a graph: NOTIFY-ACK whose folds go on without stragglers. What quorum.c says of updates, versions and the
 * grace is so here too.
 *
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
#include "engine/stages.h"

/* ---- what is asked for ---- */

/* A quorum of all inputs is the same as no quorum. A rank's own update is not counted among the inputs. */
static int suits(const hpc_exchange_config *f) {
    if (f->quorum == 0 || f->graph == NULL || hpc_plan_has_stages(f->plan)) return 0;
    for (int i = 0; i < f->plan->n_rows; i++)
        if (f->quorum < f->plan->rows[i].n_in - 1) return 1;
    return 0;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    if (f->consistency != HPC_NOTIFY_ACK || f->graph->n_phases > 1)
        return hpc_fail(
            HPC_ERR_UNSUPPORTED, "exchange",
            "exchange: quorum is %d under %s, on a graph of %d phases; on a graph a quorum needs NOTIFY_ACK "
            "and one phase",
            f->quorum, hpc_consistency_name(f->consistency), f->graph->n_phases);
    return hpc_graph_check_partial(f, "NOTIFY_ACK with a quorum", "exchange");
}

static const char *refuses_pieces(const hpc_exchange_config *f) {
    (void)f;
    return "an update that one neighbour leaves out and another takes cannot go back into the residual";
}

/* ---- versions ---- */

/* The newest version that this rank's own shares of a key have folded, and their longest grace. */
typedef struct extremes {
    uint64_t folded;
    double grace;
} extremes;

static extremes extremes_of(const hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    extremes most = {0, 0};
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_intake *in = hpc_intake_of(&en->layout.shares[k->shares[i]]);
        if (in == NULL) continue;
        uint64_t folded = hpc_folded_of(&en->layout.shares[k->shares[i]]);
        double grace = atomic_load_explicit(&in->grace, memory_order_relaxed);
        if (folded > most.folded) most.folded = folded;
        if (grace > most.grace) most.grace = grace;
    }
    return most;
}

static uint64_t version(const hpc_engine *en, int key) {
    return extremes_of(en, key).folded;
}

/* How many seconds neighbours are given to take an update. */
static double patience(const hpc_engine *en, int key) {
    return 2 * extremes_of(en, key).grace;
}

/* How far this rank's own shares of a key let it go. */
static uint64_t reached_in(const hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    uint64_t most = 0;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &en->layout.shares[k->shares[i]];
        const hpc_intake *in = hpc_intake_of(share);
        if (in == NULL) continue;
        uint64_t reached = hpc_first_work(en, share)->row->n_in == 1
                               ? hpc_outlet_told(en, key) + 1
                               : atomic_load_explicit(&in->reached, memory_order_relaxed);
        if (reached > most) most = reached;
    }
    return most;
}

static uint64_t next_version(const hpc_engine *en) {
    uint64_t next = hpc_quorum_of(en)->number + 1;
    for (int key = 0; key < en->plan->n_keys; key++) {
        uint64_t reached = reached_in(en, key);
        if (reached > next) next = reached;
    }
    return next;
}

/* ---- the worker's waits ---- */

/* Drops pushes up to n that are not sent, so that their slots are free: only for the neighbours that let a push wait in
 * vain before; with all, for every neighbour. */
static void give_up(hpc_engine *en, int key, uint64_t n, int all) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &en->layout.shares[k->shares[i]];
        if (hpc_outlet_of(share) == NULL || hpc_outlet_of(share)->decided >= n ||
            !(all || hpc_quorum_of(en)->given_up[share->owner]))
            continue;
        hpc_outlet_drop(en, share, n);
        hpc_quorum_of(en)->given_up[share->owner] = 1;
    }
}

/* Waits until a push has been folded here, and then for neighbours that have not taken it, until their time is over,
 * which may come later than this call's deadline. */
static int wait_taken(hpc_engine *en, int key, uint64_t ticket, hpc_limit *l, const char *op) {
    hpc_key_versions *of = hpc_versions_of(en, key);
    int status = hpc_outlet_send_all(en);
    give_up(en, key, ticket / 2, 0);
    if (status == HPC_OK && !hpc_ticket_is_done(en, key, ticket))
        status = hpc_ticket_wait(en, key, ticket, hpc_limit_left(en, l), op);
    if (status == HPC_OK && !hpc_ticket_is_free(en, key, ticket)) {
        double now = hpc_now(), left = hpc_limit_left(en, l);
        if (of->waits_since == 0) of->waits_since = now;
        double given = of->waits_since + patience(en, key) - now;
        int before = hpc_slice_waits(given < left);
        status = hpc_ticket_wait_slot(en, key, ticket, given < left ? given > 0 ? given : 0 : left, op);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && given <= left) {
            give_up(en, key, ticket / 2, 1);
            status = HPC_OK;
        }
    }
    if (status == HPC_OK) of->waits_since = 0;
    return status;
}

static int wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    return wait_taken(en, key, hpc_slot_ticket(en, key), l, op);
}

/* Waits until the neighbours have taken the last push and it has arrived, or until their time is over. */
static int finish(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    const hpc_pushed *k = &en->keys[key];
    int status = wait_taken(en, key, 2 * k->pushes, l, op);
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++) {
        const hpc_share *share = &en->layout.shares[k->shares[i]];
        if (hpc_outlet_of(share) == NULL || hpc_share_has_answered(en, k->shares[i], 2 * hpc_outlet_of(share)->sent))
            continue;
        double left = hpc_limit_left(en, l), given = patience(en, key);
        int before = hpc_slice_waits(given < left);
        status = hpc_flush(en->in_lanes[share->core], en->window, share->owner, given < left ? given : left);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && given < left) status = HPC_OK;
        status = hpc_unless_left(en, share->owner, status);
    }
    return status;
}

/* ---- the worker's pushes ---- */

/* Looks first for updates that have come meanwhile. */
static void begin_push(hpc_engine *en, int key) {
    hpc_graph_begin_push(en, key);
    hpc_group_progress(&en->context->group);
    hpc_quorum_choose_version(en, key, next_version);
}

/* Sends what leads this rank's own fold; an update is sent when its slot is free (hpc_outlet_send_key). */
static int send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    if (hpc_outlet_of(share) != NULL || hpc_intake_of(share) == NULL) return HPC_OK;
    const uint64_t *number = &hpc_versions_of(en, share->key)->numbers[slot];
    return hpc_send_event(en, share->core, share->owner, number, sizeof *number,
                          hpc_number_at(en, share, share->owner, slot), hpc_imm(HPC_OP_SHARE, slot, s), l);
}

/* The push's memory is free once it was sent, which copies it, or dropped. */
static int has_read(const hpc_engine *en, int s, uint64_t ticket) {
    const hpc_share *share = &en->layout.shares[s];
    const hpc_outlet *out = hpc_outlet_of(share);
    if (share->owner == hpc_me(en)) return hpc_share_has_answered(en, s, ticket);
    return out == NULL || out->decided >= ticket / 2 || hpc_closed_signal(en, share->owner) != 0;
}

static int is_free(const hpc_engine *en, int key, uint64_t ticket) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (!has_read(en, k->shares[i], ticket)) return 0;
    return 1;
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(en, key, ticket, for_slot, ranks, has_read, hpc_quorum_missing);
}

/* ---- a state is loaded ---- */

static void restored(hpc_engine *en, const hpc_work *w, uint64_t step) {
    hpc_phases *g = en->graph;
    g->keys[w->row->key].ahead = (int64_t)(step - hpc_quorum_of(en)->number);
}

static void go_on_from(hpc_engine *en, uint64_t newest) {
    hpc_phases *g = en->graph;
    for (int key = 0; key < en->plan->n_keys; key++) {
        const hpc_pushed *k = &en->keys[key];
        g->keys[key].ahead -= (int64_t)(newest - hpc_quorum_of(en)->number);
        hpc_versions_of(en, key)->number = newest;
        for (int i = 0; i < k->n_shares; i++) {
            const hpc_share *share = &en->layout.shares[k->shares[i]];
            hpc_intake *in = hpc_intake_of(share);
            if (in != NULL) atomic_store_explicit(&in->folded, newest, memory_order_release);
            if (hpc_outlet_of(share) != NULL) hpc_outlet_drop(en, share, k->pushes);
        }
    }
    hpc_quorum_of(en)->number = newest;
    hpc_bell_ring(en->context->group.bell); /* its cores answer the updates that are late now */
}

static int all_answered(void *arg) {
    const hpc_engine *en = arg;
    if (en->inline_progress) hpc_context_work(en->context);
    for (int s = 0; s < en->layout.n_shares; s++)
        if (hpc_outlet_is_unanswered(en, s)) return hpc_engine_has_failed(en);
    return 1;
}

static int who_answers(void *arg, int *ranks) {
    const hpc_engine *en = arg;
    int n = 0;
    for (int r = 0; r < en->context->group.size; r++) {
        int awaited = 0;
        for (int s = 0; s < en->layout.n_shares; s++)
            awaited |= en->layout.shares[s].owner == r && hpc_outlet_is_unanswered(en, s);
        if (awaited) ranks[n++] = r;
    }
    return n;
}

/* Collective, while no rank has a push under way: all go on from one version, and earlier updates are left out. */
static int level(hpc_engine *en, const char *op, double deadline) {
    uint64_t newest;
    int status = hpc_outlet_newest(en, op, deadline, hpc_quorum_of(en)->number, &newest);
    if (status != HPC_OK) return status;
    go_on_from(en, newest);
    const hpc_wait wait = {op, all_answered, who_answers, en, 0};
    return hpc_wait_for(&en->context->group, &wait, hpc_left(deadline));
}

const hpc_discipline hpc_discipline_graph_quorum = {
    .name = "a quorum",
    .suits = suits,
    .check = check,
    .refuses_pieces = refuses_pieces,
    .quorum = 1,
    .whole = 1,
    .puts = HPC_PUTS,
    .one_slot = 1,
    .makes_params = hpc_graph_makes_params,
    .opening = &hpc_quorum_opening,
    .share_bytes = sizeof(uint64_t),
    .share_came = hpc_intake_share_came,
    .work = hpc_intake_work,
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
                                .before_publish = level,
                                .late = hpc_outlet_late,
                                .version = version,
                                .count = hpc_outlet_count,
                                .count_peer = hpc_outlet_count_peer},
};
