/* NOTIFY-ACK that goes on without stragglers: a fold on a graph is made when a quorum of the in-neighbours' updates is
 * there and the grace for the others is over.
 *
 * Under NOTIFY-ACK neighbours read an update in its rank's memory, so one rank that never reads stops all. Here each
 * in-neighbour has one slot at the owner: a version, then the update. The sender alone writes the slot, between an
 * answer and the next signal that the slot is full. The owner's core alone reads it, between that signal and its
 * answer. So nothing is overwritten while it is read and nothing is torn. A rank that stands still keeps one slot of
 * its own memory busy and nothing else.
 *
 * Pushes have *versions*, which grow by one as long as no update is late. The fold of a rank's push of version n takes
 * from each in-neighbour an update of version n or newer. An older update is late: it is answered at once, left out,
 * and counted at both ends. The answer says how many updates of this sender were used, and which version was folded
 * last. So the sender knows the end of each of its pushes:
 *   sent       the slot there was free; the update was used, or late
 *   not sent   the push was dropped and nothing travels for it: the slot was not free until the next push needed the
 *              push's own memory, or the answer said that its version has been folded
 *
 * The grace. A fold that has its quorum waits for those of the other in-neighbours that it expects. It expects one that
 * is at most two versions behind, so that it may bring this version soon, and that has not let a fold wait in vain
 * since its last update. The fold waits for as long as they usually take (RFC 6298: the mean plus four mean
 * deviations), or as the user says. When a fold goes on without one, that counts as if the update had come just then.
 * From time to time this costs nothing, but if more than a third of all folds are cut short the time grows until fewer
 * are. In the same way a push that needs the memory of an earlier one waits for neighbours that have not taken that
 * one. It waits twice as long, as they may be waiting for others themselves, but not for a neighbour that let a push
 * wait in vain and has answered none since.
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
#include <stdlib.h>

#include "discipline/discipline.h"
#include "discipline/graph_quorum.h"

static const double FIRST = 1; /* second of grace, before enough has been measured (RFC 6298, section 2.1) */

/* ---- open ---- */

static int open_intake(const hpc_exchange *ex, hpc_share *share, const char *op) {
    size_t size = (size_t)ex->context->group.size;
    hpc_intake *in = share->own;
    in->taken = calloc(size, sizeof *in->taken);
    in->present = calloc(size, 1);
    in->told = calloc(size, sizeof *in->told);
    atomic_init(&in->grace, ex->asked.grace < 0 ? FIRST : ex->asked.grace);
    if (in->taken == NULL || in->present == NULL || in->told == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    return hpc_clocks_open(ex, share, op, &in->clocks);
}

/* The share of the same key and core that this rank owns. */
static int own_sibling(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_pushed *k = &ex->keys[share->key];
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *other = &ex->layout.shares[k->shares[i]];
        if (other->owner == hpc_me(ex) && other->core == share->core) return k->shares[i];
    }
    return -1;
}

/* Takes room in this rank's part for the copy of an update that travels: that of all rows of the share. */
static void open_outlet(hpc_exchange *ex, const hpc_share *share, hpc_outlet *out) {
    size_t nbytes = 0;
    *out = (hpc_outlet){.mine = own_sibling(ex, share), .staged = HPC_NOWHERE};
    for (int i = 0; i < share->n_rows; i++) nbytes += hpc_row_bytes(&ex->plan->rows[share->rows[i]]);
    if (!hpc_is_mapped(ex, share->owner)) out->staged = hpc_layout_take(&ex->layout.places[hpc_me(ex)], nbytes);
}

static int open_shares(hpc_exchange *ex, const char *op) {
    for (int s = 0; s < ex->layout.n_shares; s++) {
        hpc_share *share = &ex->layout.shares[s];
        int owns = share->owner == hpc_me(ex), status = HPC_OK;
        if (!owns && !hpc_feeds_share(ex, share, hpc_me(ex))) continue;
        share->own = calloc(1, owns ? sizeof(hpc_intake) : sizeof(hpc_outlet));
        if (share->own == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
        if (owns)
            status = open_intake(ex, share, op);
        else
            open_outlet(ex, share, share->own);
        if (status != HPC_OK) return status;
    }
    return HPC_OK;
}

static int open_all(hpc_exchange *ex, const char *op) {
    for (int c = 0; c < ex->n_own_cores; c++) {
        hpc_quorum_watch *its = ex->cores[c].own = calloc(1, sizeof *its);
        if (its != NULL) {
            its->own.shares = hpc_own_shares_of(ex, &ex->cores[c], &its->own.n);
            its->absent = calloc((size_t)ex->context->group.size, 1);
        }
        if (its == NULL || its->own.shares == NULL || its->absent == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a core", op);
    }
    return hpc_share_open_counts(ex, 1, op);
}

static int prepare(hpc_exchange *ex, const hpc_exchange_config *f, const char *op) {
    int status = hpc_graph_prepare(ex, f, op);
    if (status != HPC_OK) return status;
    hpc_graph_quorum *q = ex->own = calloc(1, sizeof *q);
    if (q != NULL) {
        q->keys = calloc((size_t)ex->plan->n_keys, sizeof *q->keys);
        q->given_up = calloc((size_t)ex->context->group.size, 1);
    }
    ex->asked.quorum = f->quorum;
    return q != NULL && q->keys != NULL && q->given_up != NULL
               ? HPC_OK
               : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a quorum of %d", op, f->quorum);
}

static void free_share(const hpc_exchange *ex, hpc_share *share) {
    hpc_intake *in = hpc_intake_of(ex, share);
    if (in != NULL) {
        hpc_clocks_free(&in->clocks);
        free(in->taken);
        free(in->present);
        free(in->told);
    }
    free(share->own);
    share->own = NULL;
}

static void free_all(hpc_exchange *ex) {
    hpc_graph_quorum *q = ex->own;
    for (int s = 0; s < ex->layout.n_shares; s++) free_share(ex, &ex->layout.shares[s]);
    for (int c = 0; ex->cores != NULL && c < ex->n_own_cores; c++) {
        hpc_quorum_watch *its = ex->cores[c].own;
        if (its == NULL) continue;
        free(its->own.shares);
        free(its->absent);
        free(its);
        ex->cores[c].own = NULL;
    }
    if (q != NULL) {
        free(q->keys);
        free(q->given_up);
    }
    free(q);
    ex->own = NULL;
    hpc_graph_free(ex);
}

static size_t part(const hpc_exchange *ex, int rank) {
    (void)rank;
    return (size_t)ex->layout.n_shares * sizeof(hpc_told);
}

/* ---- what is asked for ---- */

/* A quorum of all in-neighbours is the same as no quorum. */
static int suits(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows && f->quorum > 0 && f->graph != NULL; i++)
        if (f->quorum < f->plan->rows[i].n_in - 1) return 1;
    return 0;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    if (f->consistency != HPC_NOTIFY_ACK || f->late != HPC_LATE_DROP || f->graph->n_phases > 1)
        return hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                        "exchange: quorum is %d under %s with late %d, on a graph of %d phases; on a graph a "
                        "quorum needs NOTIFY_ACK, late 1 (drop) and one phase",
                        f->quorum, hpc_consistency_name(f->consistency), f->late, f->graph->n_phases);
    return hpc_graph_check_partial(f, "NOTIFY_ACK with a quorum", "exchange");
}

/* ---- the worker's waits ---- */

/* Waits until a push has been folded here, and then for neighbours that have not taken it, as long as they are given.
 * That may be longer than this call has. */
static int wait_taken(hpc_exchange *ex, int key, uint64_t ticket, hpc_limit *l, const char *op) {
    hpc_key_versions *of = hpc_versions_of(ex, key);
    int status = hpc_outlet_send_all(ex);
    hpc_outlet_give_up(ex, key, ticket / 2, 0);
    if (status == HPC_OK && !hpc_ticket_is_done(ex, key, ticket))
        status = hpc_ticket_wait(ex, key, ticket, hpc_limit_left(ex, l), op);
    if (status == HPC_OK && !hpc_ticket_is_free(ex, key, ticket)) {
        double now = hpc_now(), left = hpc_limit_left(ex, l);
        if (of->waits_since == 0) of->waits_since = now;
        double given = of->waits_since + hpc_outlet_patience(ex, key) - now;
        int before = hpc_slice_waits(given < left);
        status = hpc_ticket_wait_slot(ex, key, ticket, given < left ? given > 0 ? given : 0 : left, op);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && given <= left) {
            hpc_outlet_give_up(ex, key, ticket / 2, 1);
            status = HPC_OK;
        }
    }
    if (status == HPC_OK) of->waits_since = 0;
    return status;
}

static int wait_slot(hpc_exchange *ex, int key, hpc_limit *l, const char *op) {
    return wait_taken(ex, key, hpc_slot_ticket(ex, key), l, op);
}

/* Waits until the neighbours have taken the last push and it has arrived, or until their time is over. */
static int finish(hpc_exchange *ex, int key, hpc_limit *l, const char *op) {
    const hpc_pushed *k = &ex->keys[key];
    int status = wait_taken(ex, key, 2 * k->pushes, l, op);
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++) {
        const hpc_share *share = &ex->layout.shares[k->shares[i]];
        if (hpc_outlet_of(ex, share) == NULL) continue;
        double left = hpc_limit_left(ex, l), patience = hpc_outlet_patience(ex, key);
        int before = hpc_slice_waits(patience < left);
        status = hpc_flush(ex->in_lanes[share->core], ex->window, share->owner, patience < left ? patience : left);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && patience < left) status = HPC_OK;
        status = hpc_unless_left(ex, share->owner, status);
    }
    return status;
}

/* A key that is pushed again begins a step. Looks first for updates that have come meanwhile. */
static void begin_push(hpc_exchange *ex, int key) {
    hpc_graph_quorum *q = hpc_quorum_of(ex);
    hpc_key_versions *of = hpc_versions_of(ex, key);
    hpc_graph_begin_push(ex, key);
    hpc_group_progress(&ex->context->group);
    if (of->number == q->number) q->number = hpc_outlet_next_version(ex);
    of->number = q->number;
    of->numbers[ex->keys[key].pushes % (uint64_t)ex->layout.depth] = of->number;
}

/* Sends this rank's own share; a neighbour's share is sent when its slot is free. */
static int send_share(hpc_exchange *ex, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &ex->layout.shares[s];
    return hpc_outlet_of(ex, share) != NULL ? HPC_OK : hpc_graph_send_share(ex, s, slot, l);
}

static int has_read(const hpc_exchange *ex, int s, uint64_t ticket) {
    const hpc_share *share = &ex->layout.shares[s];
    const hpc_outlet *out = hpc_outlet_of(ex, share);
    if (share->owner == hpc_me(ex)) return hpc_share_has_answered(ex, s, ticket);
    return out == NULL || out->decided >= ticket / 2 || hpc_closed_signal(ex, share->owner) != 0;
}

static int is_free(const hpc_exchange *ex, int key, uint64_t ticket) {
    const hpc_pushed *k = &ex->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (!has_read(ex, k->shares[i], ticket)) return 0;
    return 1;
}

static int missing(const hpc_exchange *ex, int s, uint64_t n, int *ranks, int found) {
    const hpc_share *share = &ex->layout.shares[s];
    (void)n;
    for (int r = 0; r < ex->context->group.size; r++)
        if (r != share->owner && hpc_feeds_share(ex, share, r) && hpc_closed_signal(ex, r) == 0 &&
            !hpc_has_sent(ex, share, r))
            found = hpc_add_rank(ranks, found, r);
    return found;
}

static int awaited(const hpc_exchange *ex, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(ex, key, ticket, for_slot, ranks, has_read, missing);
}

static void restored(hpc_exchange *ex, const hpc_work *w, uint64_t step) {
    hpc_phases *g = ex->graph;
    g->keys[w->row->key].ahead = (int64_t)(step - hpc_quorum_of(ex)->number);
}

static void count(const hpc_exchange *ex, hpc_exchange_stats *stats) {
    stats->dropped = hpc_outlet_dropped(ex, -1, &stats->dropped_at);
}

static void count_peer(const hpc_exchange *ex, int rank, hpc_exchange_peer *peer) {
    uint64_t at;
    peer->dropped = hpc_outlet_dropped(ex, rank, &at);
}

const hpc_discipline hpc_discipline_graph_quorum = {
    .name = "a quorum on a graph",
    .suits = suits,
    .check = check,
    .quorum = 1,
    .puts = 1,
    .one_slot = 1,
    .head = sizeof(hpc_slot_head),
    .signals = 2,
    .part = part,
    .makes_params = hpc_graph_makes_params,
    .prepare = prepare,
    .open_shares = open_shares,
    .open = open_all,
    .free = free_all,
    .share_came = hpc_intake_share_came,
    .row_came = hpc_intake_row_came,
    .work = hpc_intake_work,
    .wait_slot = wait_slot,
    .begin_push = begin_push,
    .send_share = send_share,
    .pushed = hpc_outlet_send_key,
    .is_free = is_free,
    .awaited = awaited,
    .progress = hpc_outlet_send_all,
    .finish = finish,
    .restored = restored,
    .before_publish = hpc_outlet_level,
    .late = hpc_outlet_late,
    .version = hpc_outlet_version,
    .count = count,
    .count_peer = count_peer,
};
