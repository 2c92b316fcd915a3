/* BSP among peers in two calls: fold and apply (hpc_exchange_config.split), as split.c has them with servers.
 *
 * A fold is a push to the peers. It is answered when the updates of all that send to this rank are there. They stay in
 * their slots, and nothing is summed. A pull goes to this rank's own core alone and says what becomes of them: each row
 * applies the rule to scale times their fold, drops them, or makes their fold once more for gather and squares. So each
 * rank decides for its own parameters. Copies stay equal only while all ranks make the same calls, with the same scale
 * and the same arguments of the rule; nothing compares them.
 *
 * An apply or a skip ends a fold, and so does the next fold, which replaces it. Then the core answers the peers: their
 * slots are free. With two slots, and all sending to all, no push waits for that: when a worker begins push n + 2, all
 * peers have made push n + 1, and so have ended fold n. A plan of depth 1 is refused: the push that replaces a fold
 * would wait for peers that wait for it.
 *
 * Order: the worker writes a pull (its use, scale and arguments) before the event and leaves it alone until the answer.
 * What the core writes for it, squares and gathered means, is released by the answer. */
#include <stdlib.h>
#include <string.h>

#include "discipline/discipline.h"
#include "discipline/graph.h"
#include "discipline/peers.h"
#include "discipline/split.h"
#include "discipline/whole.h"
#include "engine/answer.h"
#include "engine/core.h"
#include "engine/kept.h"
#include "engine/pieces.h"
#include "engine/send.h"
#include "engine/stages.h"

/* In an event of HPC_OP_USE: what the rank of the share asks for. */
enum { PULL, DROP };

/* A share's own, of its owner. */
typedef struct kept {
    hpc_use use; /* of the pull at hand */
    double scale;
    uint64_t fold;           /* the number of the pull's fold */
    int asked;               /* its event has come, and it is not answered */
    uint64_t pushes;         /* of this rank that have come */
    uint64_t answered;       /* pulls */
    int n_ready, n_used;     /* rows whose inputs are all there; rows that the pull has used */
    char *ready;             /* by place */
    double *squares;         /* likewise */
    _Atomic uint64_t n_over; /* folds that are over; the version of the share too */
} kept;

static int suits(const hpc_exchange_config *f) {
    return hpc_config_is_bsp(f) && f->split && hpc_peers_are_planned(f) && !hpc_plan_has_ways(f->plan);
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    const int status = hpc_peers_check(c, f);
    if (status != HPC_OK || f->plan->rows[0].depth > 1) return status;
    return hpc_fail(HPC_ERR_CONFIG, "exchange",
                    "exchange: the plan has depth 1; split among peers needs 2 or more, as peers may push again before "
                    "this rank has applied their last updates");
}

/* ---- open and free ---- */

static int prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    en->own_args = 1;
    return hpc_split_prepare(en, f, op);
}

static int open_share(hpc_share *share) {
    kept *m = share->own = calloc(1, sizeof *m);
    if (m == NULL) return 0;
    m->ready = calloc((size_t)share->n_rows, 1);
    m->squares = calloc((size_t)share->n_rows, sizeof *m->squares);
    return m->ready != NULL && m->squares != NULL;
}

static int open_all(hpc_engine *en, const char *op) {
    int enough = 1;
    for (int s = 0; s < en->layout.n_shares && enough; s++)
        if (en->layout.shares[s].owner == en->context->group.rank) enough = open_share(&en->layout.shares[s]);
    return enough ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for shares", op);
}

static void free_all(hpc_engine *en) {
    const hpc_split *its = en->own;
    for (int s = 0; s < en->layout.n_shares; s++) {
        kept *m = en->layout.shares[s].own;
        if (m == NULL) continue;
        free(m->ready);
        free(m->squares);
        free(m);
    }
    for (int k = 0; its != NULL && its->asks != NULL && k < en->plan->n_keys; k++) free(its->asks[k].gathered);
    hpc_split_free_worker(en);
}

/* ---- the core ---- */

static int slot_at_hand(const hpc_engine *en, const hpc_share *share) {
    return (int)(share->version % (uint64_t)en->layout.depth);
}

/* The inputs of the fold at hand that came with bytes. A part that is left out is zero: the other weights stay. */
static hpc_inputs present_inputs(hpc_core *core, const hpc_work *w, int slot) {
    const hpc_engine *en = core->engine;
    const _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
    hpc_inputs inputs = hpc_row_inputs(core, w, slot, -1);
    int n = 0;
    inputs.n_updates = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        if (atomic_load_explicit(&came[e], memory_order_relaxed) != HPC_CAME) continue;
        core->bases[n] = core->bases[e];
        core->base_inputs[n] = core->base_inputs[e];
        core->base_weights[n++] = core->base_weights[e];
        inputs.n_updates += w->inputs[e].updates;
    }
    inputs.n = n;
    inputs.args = hpc_args_of(en, w->share, w->share->owner, 0);
    return inputs;
}

/* Does for a row what the pull says. Nonzero when the exchange has failed. */
static int use_row(hpc_core *core, hpc_share *share, int place) {
    const hpc_engine *en = core->engine;
    const hpc_split *its = en->own;
    kept *m = share->own;
    hpc_work *w = &en->work[en->work_of[share->rows[place]]];
    float *gathered = its->asks[share->key].gathered;
    const hpc_inputs inputs = present_inputs(core, w, slot_at_hand(en, share));
    m->n_used++;
    switch (m->use) {
    case HPC_USE_APPLY:
        return inputs.n == 0 ? 0 : hpc_row_apply_kept(core, w, &inputs, m->scale);
    case HPC_USE_SKIP:
        return 0;
    case HPC_USE_SQUARES:
        m->squares[place] = 0;
        return inputs.n == 0 ? 0 : hpc_row_read_kept(core, w, &inputs, NULL, &m->squares[place]);
    case HPC_USE_GATHER:
        if (inputs.n > 0) return hpc_row_read_kept(core, w, &inputs, gathered + w->row->offset, NULL);
        memset(gathered + w->row->offset, 0, (size_t)w->row->count * sizeof *gathered);
    }
    return 0;
}

/* The fold at hand is over: its slots are free. */
static void end_fold(hpc_core *core, hpc_share *share) {
    const hpc_engine *en = core->engine;
    kept *m = share->own;
    const int slot = slot_at_hand(en, share), signal = hpc_signal_applied(en, (int)(share - en->layout.shares));
    for (int i = 0; i < share->n_rows; i++) hpc_row_took(&en->work[en->work_of[share->rows[i]]], slot);
    memset(m->ready, 0, (size_t)share->n_rows);
    m->n_ready = 0;
    share->version++;
    atomic_store_explicit(&m->n_over, share->version, memory_order_release);
    for (int i = 0; i < share->n_members; i++)
        if (share->members[i] != share->owner) hpc_share_answer(core, share->members[i], signal, share->version);
    hpc_bell_ring(en->context->group.bell); /* this rank's own wait for a slot */
}

/* The pull at hand means the fold at hand. It may have come before some updates. */
static int is_wanted(const hpc_share *share) {
    const kept *m = share->own;
    return m->asked && m->fold == share->version + 1;
}

static void end_pull(hpc_core *core, hpc_share *share) {
    const hpc_engine *en = core->engine;
    kept *m = share->own;
    m->asked = m->n_used = 0;
    if (m->use == HPC_USE_APPLY || m->use == HPC_USE_SKIP) end_fold(core, share);
    m->answered++;
    hpc_share_answer(core, share->owner, hpc_signal_second(en, (int)(share - en->layout.shares)), m->answered);
}

/* All inputs of a row are there. */
static void ready(hpc_core *core, hpc_work *w) {
    const hpc_engine *en = core->engine;
    hpc_share *share = w->share;
    kept *m = share->own;
    const int place = hpc_split_place(share, w->index);
    const _Atomic char *came = &w->came[(size_t)slot_at_hand(en, share) * (size_t)w->row->n_in];
    for (int e = 0; e < w->row->n_in; e++)
        if (atomic_load_explicit(&came[e], memory_order_relaxed) == HPC_CAME) hpc_row_count_received(core, w, e);
    m->ready[place] = 1;
    m->n_ready++;
    if (is_wanted(share) && use_row(core, share, place) != 0) return;
    if (m->n_ready < share->n_rows) return;
    hpc_share_answer(core, share->owner, hpc_signal_applied(en, (int)(share - en->layout.shares)), share->version + 1);
    if (is_wanted(share)) end_pull(core, share);
}

static void input_came(hpc_core *core, hpc_work *w, int slot, int input, int how) {
    _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in + (size_t)input];
    if (hpc_engine_has_failed(core->engine)) return;
    if (hpc_row_has_too_many(core, w, came, 1, w->inputs[input].rank)) return;
    atomic_store_explicit(came, (char)how, memory_order_relaxed);
    if (++w->arrived[slot] < w->row->n_in) return;
    w->arrived[slot] = 0;
    ready(core, w);
}

static void full_came(hpc_core *core, hpc_work *w, int slot, int input) {
    input_came(core, w, slot, input, HPC_CAME);
}

static void empty_came(hpc_core *core, hpc_work *w, int slot, int input) {
    input_came(core, w, slot, input, HPC_CAME_EMPTY);
}

/* A row has all its inputs no sooner than this rank's own, which come when its last fold is complete. A fold that is
 * still kept then is replaced. */
static void push_came(hpc_core *core, hpc_share *share, int rank, int slot, hpc_whole_came *came) {
    kept *m = share->own;
    if (rank == share->owner && ++m->pushes > share->version + 1) end_fold(core, share);
    hpc_whole_each_row(core, share, rank, slot, came);
}

static int share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    push_came(core, share, rank, slot, full_came);
    return 1;
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    full_came(core, w, slot, input);
    return 1;
}

static int pull_came(hpc_core *core, hpc_share *share) {
    kept *m = share->own;
    if (m->asked) return 0;
    m->asked = 1;
    for (int i = 0; i < share->n_rows && is_wanted(share) && !hpc_engine_has_failed(core->engine); i++)
        if (m->ready[i] && use_row(core, share, i) != 0) return 1;
    if (is_wanted(share) && m->n_ready == share->n_rows) end_pull(core, share);
    return 1;
}

static int drop_came(hpc_core *core, hpc_share *share) {
    const kept *m = share->own;
    if (m->n_ready == share->n_rows) end_fold(core, share);
    return !m->asked;
}

static int other_came(hpc_core *core, const hpc_event *event) {
    const hpc_engine *en = core->engine;
    const int slot = hpc_imm_slot(event->imm), operation = (int)hpc_imm_operation(event->imm);
    hpc_share *share = hpc_core_share(core, hpc_imm_index(event->imm));
    if (share == NULL || !hpc_feeds_share(en, share, event->peer)) return 0;
    if (operation == HPC_OP_EMPTY && slot < en->layout.depth) {
        if (hpc_core_brings(core, event, "no gradient of share", share->key, 0))
            push_came(core, share, event->peer, slot, empty_came);
        return 1;
    }
    if (operation != HPC_OP_USE || event->peer != share->owner || slot > DROP) return 0;
    if (hpc_engine_has_failed(en)) return 1;
    return slot == PULL ? pull_came(core, share) : drop_came(core, share);
}

/* ---- the worker ---- */

/* A slot of this rank's own share is free when its fold is over. */
static int is_free(const hpc_engine *en, int key, uint64_t ticket) {
    const hpc_pushed *k = &en->keys[key];
    for (int i = 0; i < k->n_awaited && ticket != 0; i++) {
        const kept *m = en->layout.shares[k->awaited[i]].own;
        if (atomic_load_explicit(&m->n_over, memory_order_acquire) < ticket / 2) return 0;
    }
    return hpc_peers_is_free(en, key, ticket);
}

static int wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    const int status = hpc_split_wait_slot(en, key, l, op);
    return status == HPC_OK ? hpc_push_wait_slot(en, key, l, op) : status;
}

static int send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    if (!(en->keys[share->key].started & HPC_PUSH_EMPTY)) return hpc_push_in_turn(en, s, slot, l);
    if (share->pushed == 0) return HPC_OK;
    hpc_lane_take_turn(en->in_lanes[share->core], hpc_turn_of(share->key));
    const int status = hpc_send_event(en, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_EMPTY, slot, s), l);
    hpc_lane_take_turn(en->in_lanes[share->core], 0);
    return status;
}

static int tell_core(hpc_engine *en, int s, int what, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    return hpc_send_ahead(en, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_USE, what, s), l);
}

static int ask(hpc_engine *en, int s, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    const hpc_split_ask *a = &((const hpc_split *)en->own)->asks[share->key];
    kept *m = share->own;
    if (share->owner != en->context->group.rank) return HPC_OK;
    memcpy(hpc_own_part(en) + hpc_args_at(en, share, share->owner, 0), en->rules[share->key].rule.args, HPC_ARGS_BYTES);
    m->use = a->use;
    m->scale = a->scale;
    m->fold = en->keys[share->key].pushes;
    return tell_core(en, s, PULL, l);
}

static int set_use(hpc_engine *en, int key, hpc_use use, double scale, const char *op) {
    hpc_split_ask *a = &((hpc_split *)en->own)->asks[key];
    if (use == HPC_USE_GATHER && a->gathered == NULL) {
        const uint64_t count = en->plan->keys[key].count;
        a->gathered = malloc((size_t)count * sizeof *a->gathered);
        if (a->gathered == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the mean of key %s, %llu values", op,
                            en->plan->keys[key].name, (unsigned long long)count);
    }
    return hpc_split_set_use(en, key, use, scale, op);
}

static float *gathered_of(const hpc_engine *en, int key) {
    return ((const hpc_split *)en->own)->asks[key].gathered;
}

static double squares_of(const hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    double sum = 0;
    for (int i = 0; i < k->n_awaited; i++) {
        const hpc_share *share = &en->layout.shares[k->awaited[i]];
        const kept *m = share->own;
        for (int r = 0; r < share->n_rows; r++) sum += m->squares[r];
    }
    return sum;
}

/* A fold that was neither applied nor skipped is dropped, so that its slots do not keep peers from closing. */
static int finish(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    hpc_split_ask *a = &((hpc_split *)en->own)->asks[key];
    const hpc_pushed *k = &en->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_awaited && a->keeps && status == HPC_OK; i++)
        status = tell_core(en, k->awaited[i], DROP, l);
    if (status != HPC_OK) return status;
    if (a->keeps) hpc_pieces_end_fold(en, key, HPC_SKIPPED);
    a->keeps = 0;
    return hpc_peers_finish(en, key, l, op);
}

/* ---- the ranks that a wait waits for ---- */

static int missing(const hpc_engine *en, int s, uint64_t n, int *ranks, int found) {
    const hpc_share *share = &en->layout.shares[s];
    return hpc_whole_missing(en, share, hpc_whole_slot(en, 2 * n), UINT64_MAX, ranks, found);
}

/* A pull waits for what its fold waits for. */
static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    const uint64_t push = ticket & HPC_PULL_TICKET ? 2 * en->keys[key].pushes : ticket;
    return hpc_graph_awaited(en, key, push, for_slot, ranks, hpc_share_has_answered, missing);
}

static const hpc_splitting splitting = {
    .set_use = set_use,
    .squares = squares_of,
    .set_unit = hpc_split_set_unit,
    .unit = hpc_split_unit,
    .keeps_inputs = 1,
    .gathered = gathered_of,
};

static const hpc_pulling pulling = {
    .ends = hpc_split_ends_pull,
    .ask = ask,
    .asked = hpc_split_asked,
    .brings_args = 1,
};

const hpc_discipline hpc_discipline_split_peers = {
    .name = "BSP among peers in two calls",
    .suits = suits,
    .check = check,
    .whole = 1,
    .pulling = &pulling,
    .split = &splitting,
    .opening = &(const hpc_opening){.prepare = prepare, .open = open_all, .free = free_all},
    .makes_params = hpc_peers_make_params,
    .share_came = share_came,
    .row_came = row_came,
    .other_came = other_came,
    .may_push = hpc_split_may_push,
    .wait_slot = wait_slot,
    .before_encode = hpc_split_begin_fold,
    .send_share = send_share,
    .pushed = hpc_split_pushed,
    .is_free = is_free,
    .needs = hpc_peers_need,
    .awaited = awaited,
    .leaving = &(const hpc_leaving){.finish = finish},
};
