/* BSP in two calls, fold and apply, with servers and among peers (hpc_exchange_config.split).
 *
 * A worker has five calls. "fold" is a push; it is answered when every worker's update has come. "apply" is a pull that
 * sends the rule's arguments and a factor for the mean; when every worker has called it, the rule runs and the
 * parameters are sent. "skip" drops the updates. "squares" returns the sum of squares of the mean of each row (a chunk
 * as its owner folds it). "gather" sends the mean to the workers in float32, into the memory of their gradients or, if
 * updates are not float32, into separate memory. A worker without a gradient sends no bytes; if no worker has one, an
 * apply changes nothing.
 *
 * A core with a thread computes the mean of a row as soon as its inputs have come, and keeps the mean. Without threads
 * that would cost the worker's CPU time and one more pass over memory. So the updates stay in their slots, and an apply
 * with factor 1 folds and applies them together, as BSP does. The results have the same bits. Rows whose codec needs no
 * sum of a whole row always keep their updates (engine/owner/mean.h).
 *
 * A core works on a few rows at a time (hpc_split_work), always for the lowest key that has work: keys are given in the
 * order in which a forward pass needs them (P3, Jayarajan et al., SysML 2019). In between it handles events, so a lower
 * key that has just come goes first.
 *
 * A fold waits for the last apply, so a key has at most one pending update, even if the plan's depth is larger.
 *
 * With several stages each worker sends its pulls directly to the owner, and the owner answers directly. Updates come
 * by forwards. Parameters go by relays, and the relays also answer each pull, even one that gets no parameters.
 *
 * Memory order, in addition to scheme.h's: updates are read, and a mean is written and read, between the last event of
 * a fold and the answer to the apply or skip that follows; every worker waits for that answer before it folds again.
 * Until then its gradient belongs to the exchange. gather writes its results, perhaps into the slots of the gradients,
 * between the last event of its calls and its answer. After the answer the updates are not read any more. The exception
 * is a row with a single float32 input, since that input itself is the mean.
 *
 * Among peers updates stay in their slots, and no sum is kept: each call folds them again. A fold is answered when all
 * updates that are sent to this rank are there. A pull goes only to this rank's own core, so each rank decides for its
 * own parameters. Copies stay equal only while all ranks make the same calls, with the same scale and the same
 * arguments of the rule; nothing checks that. After the answer the worker may read the squares and gathered means that
 * the core has written for it.
 *
 * An apply or a skip ends a fold, and so does the next fold, which replaces it. Then the core answers the peers: their
 * slots are free. With two slots, and every rank sending to all, no push waits for this answer: when a worker begins
 * push n + 2, all peers have made push n + 1, and so have ended fold n. A plan of depth 1 is refused: the push that
 * replaces a fold would wait for peers that wait for it.
 *
 * A graph of one phase works in the same way, with the graph's edges and weights. A fold waits only for the updates of
 * the in-neighbours, under BSP too, since that gives the same bits.
 *
 * On other graphs (HPC_KEEPS_MEANS: phases, SSP, ASYNC, BARRIER, a quorum) a fold is made from the same updates with
 * the same weights as without split, and the rows keep its mean in their own memory. So a neighbour's update is
 * answered, and its slot free, when the fold is made: no neighbour waits for an apply. The calls squares and gather
 * read the mean that an apply at that time would apply. The core writes the mean between the push that leads its fold
 * and the answer to that push, and reads and frees it between a pull and the answer to that pull; the worker has at
 * most one of the two pending. A pull that comes before its fold is made waits for it (hpc_split_keep). */
#include "discipline/split_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "discipline/discipline.h"
#include "discipline/graph.h"
#include "discipline/peers.h"
#include "discipline/servers_bsp.h"
#include "discipline/clocks.h"
#include "engine/layout/layout.h"
#include "engine/pieces.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"

static const char op_create[] = "exchange";

static int check_depth(const hpc_exchange_config *f, const char *where) {
    if (f->plan->rows[0].depth > 1) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, op_create,
                    "exchange: the plan has depth 1; split %s needs 2 or more, as %s may push again before "
                    "this rank has applied their last updates",
                    where, f->graph != NULL ? "neighbours" : "peers");
}

static int check_peers(const hpc_context *c, const hpc_exchange_config *f) {
    const int status = hpc_peers_check(c, f);
    return status == HPC_OK ? check_depth(f, "among peers") : status;
}

static int check_graph(const hpc_context *c, const hpc_exchange_config *f) {
    const int status = hpc_graph_check_split(f, op_create);
    (void)c;
    return status == HPC_OK ? check_depth(f, "on a graph") : status;
}

static int pushes(const hpc_plan *plan, int key, int rank) {
    for (int i = 0; i < plan->n_rows; i++)
        for (int e = 0; e < plan->rows[i].n_in && plan->rows[i].key == key; e++)
            if (plan->rows[i].in[e].row < 0 && plan->rows[i].in[e].rank == rank) return 1;
    return 0;
}

/* Refuses plans in which the owner of an encoding forward is no worker: the encoder is told by its rank's own worker
 * that a fold was skipped. */
static int check_encoders(const hpc_plan *plan) {
    int key = -1, rank = -1, pushed = 0;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->action != HPC_FORWARD || hpc_codec_of(row->codec_out)->addressable) continue;
        if (row->key != key || row->owner != rank) pushed = pushes(plan, row->key, row->owner);
        key = row->key, rank = row->owner;
        if (!pushed)
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: row %d forwards key %s as %s, and its owner, rank %d, is no worker: with split "
                            "the owner has to hear there of folds that are skipped; let servers be workers (placement "
                            "CC or CS)",
                            i, plan->keys[row->key].name, hpc_codec_of(row->codec_out)->name, row->owner);
    }
    return HPC_OK;
}

int hpc_split_check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    int status = check_encoders(f->plan);
    if (status != HPC_OK) return status;
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (row->action == HPC_EMIT || row->quorum != row->n_in)
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: row %d has action %d and a quorum of %d of %d inputs; split needs rows that "
                            "apply, forward or relay, and wait for all of them",
                            i, row->action, row->quorum, row->n_in);
    }
    return HPC_OK;
}

/* ---- open ---- */

static size_t part(const hpc_scheme *sc, int rank) {
    return sc->layout.places[rank].worker ? (size_t)sc->plan->n_rows * sizeof(double) : 0;
}

/* With a quorum, the version of a share's parameters stands behind the squares of the share's rows. */
int hpc_split_plan(hpc_scheme *sc, hpc_split *its, const char *op) {
    const int versions = (sc->discipline->traits & HPC_BY_QUORUM) != 0;
    size_t at = 0;
    its->asks = hpc_scheme_take(sc, (size_t)sc->plan->n_keys, sizeof *its->asks, op);
    its->squares_at = hpc_scheme_take(sc, (size_t)sc->layout.n_shares, sizeof *its->squares_at, op);
    its->counts = hpc_scheme_take(sc, (size_t)sc->plan->n_rows, 1, op);
    if (its->asks == NULL || its->squares_at == NULL || its->counts == NULL) return HPC_ERR_MEMORY;
    for (int k = 0; k < sc->plan->n_keys; k++)
        its->asks[k] = (hpc_split_ask){.use = HPC_USE_APPLY, .scale = 1, .last = -1};
    if (hpc_split_among_peers(sc)) {
        sc->gathered = hpc_scheme_take(sc, (size_t)sc->plan->n_keys, sizeof *sc->gathered, op);
        if (sc->gathered == NULL) return HPC_ERR_MEMORY;
    }
    for (int i = 0; i < sc->plan->n_rows; i++)
        its->counts[i] = hpc_split_among_peers(sc) ? sc->plan->rows[i].owner == sc->context->group.rank
                                                   : hpc_row_has_mean_of(sc, i, sc->context->group.rank);
    for (int s = 0; s < sc->layout.n_shares; s++) {
        hpc_split_ask *a = &its->asks[sc->layout.shares[s].key];
        if (a->last < 0) a->first = s;
        a->last = s;
        its->squares_at[s] = at;
        at += (size_t)(sc->layout.shares[s].n_rows + versions) * sizeof(double);
    }
    return HPC_OK;
}

int hpc_split_plan_own(hpc_scheme *sc, size_t nbytes, const char *op) {
    sc->own = hpc_scheme_take(sc, 1, nbytes, op);
    if (sc->own == NULL) return HPC_ERR_MEMORY;
    if (sc->use == NULL) return HPC_OK;
    hpc_layout_take_own(sc, part);
    return hpc_split_plan(sc, sc->own, op);
}

int hpc_split_plan_alone(hpc_scheme *sc, const char *op) {
    return hpc_split_plan_own(sc, sizeof(hpc_split), op);
}

/* ---- folds ---- */

int hpc_split_may_push(hpc_scheme *sc, int key, const char *op) {
    const int status = hpc_push_after_last(sc, key, op);
    return status == HPC_OK ? hpc_push_after(sc, key, hpc_split_last_pull(sc, key), op) : status;
}

int hpc_split_wait_over(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    const int status = hpc_push_wait_done(sc, key, l, op);
    if (status != HPC_OK || hpc_ticket_is_done(sc, key, hpc_split_last_pull(sc, key))) return status;
    return hpc_ticket_wait(sc, key, hpc_split_last_pull(sc, key), hpc_limit_left(sc, l), op);
}

/* Waits until the last fold is over, since a gather writes the slot, and the slot may hold the mean until then. */
int hpc_split_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    const int status = hpc_split_wait_over(sc, key, l, op);
    return status == HPC_OK && hpc_split_among_peers(sc) ? hpc_push_wait_slot(sc, key, l, op) : status;
}

/* Among peers a slot of this rank's own share is free when its fold is over. */
static int has_read(const hpc_scheme *sc, int s, uint64_t ticket) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_split_means *m = share->own;
    if (share->owner == sc->context->group.rank && ticket != 0 &&
        atomic_load_explicit(&m->n_over, memory_order_acquire) < ticket / 2)
        return 0;
    return (sc->graph != NULL ? hpc_graph_has_read : hpc_share_has_answered)(sc, s, ticket);
}

/* If the last fold was neither applied nor skipped, tells the encoders that it is over. */
static void drop_fold(hpc_scheme *sc, int key) {
    if (hpc_split_ask_of(sc, key)->keeps) hpc_pieces_end_fold(sc, key, 0);
}

/* ---- pulls ---- */

/* Returns whether the next pull of a key has no fold to ask for; then it ends with the last pull that asked. */
int hpc_split_ends_pull(hpc_scheme *sc, int key) {
    return !hpc_split_ask_of(sc, key)->keeps;
}

/* Takes memory into which this rank's core gathers the mean, among peers. */
static int take_gathered(hpc_scheme *sc, int key, const char *op) {
    float **to = &sc->gathered[key];
    if (*to == NULL) *to = hpc_scheme_take(sc, (size_t)sc->plan->keys[key].count, sizeof **to, op);
    return *to != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

int hpc_split_set_use(hpc_scheme *sc, int key, hpc_use use, double scale, const char *op) {
    hpc_split_ask *a = hpc_split_ask_of(sc, key);
    if (use == HPC_USE_GATHER && hpc_split_among_peers(sc) && take_gathered(sc, key, op) != HPC_OK)
        return HPC_ERR_MEMORY;
    if (sc->keys[key].sending != 0) {
        if (a->use == use && (a->scale == scale || use != HPC_USE_APPLY)) return HPC_OK;
        return hpc_fail_cut_short(sc, key, op);
    }
    if (isinf(scale)) return hpc_fail_scale(sc, key, scale, op);
    if (!a->keeps) return hpc_fail_no_fold(sc, key, op);
    int status = hpc_push_after(sc, key, hpc_split_last_pull(sc, key), op);
    if (status != HPC_OK) return status;
    a->use = use;
    a->scale = scale;
    return HPC_OK;
}

const double *hpc_split_args(const hpc_scheme *sc, int key) {
    const hpc_split_ask *a = hpc_split_ask_of(sc, key);
    const double scale = a->use == HPC_USE_APPLY ? a->scale : 0;
    return sc->keys[key].at_share == 0 ? hpc_args_fill_pull(sc, key, scale) : hpc_args_of_pull(sc, key);
}

int hpc_split_ask_share(hpc_scheme *sc, int s, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_split_ask *a = hpc_split_ask_of(sc, share->key);
    const double *args = hpc_split_args(sc, share->key);
    if (hpc_split_action(sc, share) != HPC_APPLY) return HPC_OK;
    if (hpc_split_among_peers(sc) && share->owner != sc->context->group.rank) return HPC_OK;
    return hpc_send_ahead(
        sc, share->core, share->owner, args, HPC_ARGS_BYTES, hpc_args_at(sc, share, sc->context->group.rank, 0),
        hpc_imm(HPC_OP_USE, (int)a->use | (int)(sc->keys[share->key].pushes % HPC_SPLIT_FOLDS) << HPC_SPLIT_USE_BITS,
                s),
        l);
}

/* With a quorum the encoders are told later, because an update that was left out must go back into the residual first.
 */
void hpc_split_asked(hpc_scheme *sc, int key) {
    hpc_split_ask *a = hpc_split_ask_of(sc, key);
    const int applies = a->use == HPC_USE_APPLY;
    if (applies || a->use == HPC_USE_SKIP) {
        a->keeps = 0;
        if (sc->discipline->traits & HPC_BY_QUORUM && !hpc_split_among_peers(sc))
            a->ended = 1 + applies;
        else
            hpc_pieces_end_fold(sc, key, applies);
    }
    a->use = HPC_USE_APPLY;
    a->scale = 1;
}

/* Adds in the plan's order, so that all ranks get the same bits. */
double hpc_split_squares(const hpc_scheme *sc, int key) {
    const hpc_split *its = sc->own;
    double sum = 0;
    for (int s = its->asks[key].first; s <= its->asks[key].last; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        const double *at = hpc_split_squares_of(sc, s);
        for (int i = 0; i < share->n_rows && share->key == key; i++)
            if (its->counts[share->rows[i]] && at[i] != HPC_SPLIT_UNKNOWN) sum += at[i];
    }
    return sum;
}

/* Drops the last fold when this rank closes, among peers: its inputs occupy peers' slots, for which their close would
 * wait. */
static void finish(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < k->n_awaited; i++) hpc_split_drop(sc, &sc->layout.shares[k->awaited[i]]);
    drop_fold(sc, key);
    hpc_split_ask_of(sc, key)->keeps = 0;
}

int hpc_split_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    (void)l, (void)op;
    if (moment == HPC_ON_ENCODE) drop_fold(sc, key); /* the next fold replaces it */
    if (moment == HPC_ON_SENT) hpc_split_ask_of(sc, key)->keeps = 1;
    if (moment == HPC_ON_ASKED) hpc_split_asked(sc, key);
    if (moment == HPC_ON_FINISH) finish(sc, key);
    return HPC_OK;
}

/* ---- the ranks that a wait waits for ---- */

/* For a pull: adds the workers whose pulls have not come to this rank. Rows that forward get no pulls. */
static int missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_split_means *m = share->own;
    const int action = hpc_split_action(sc, share);
    if (!(ticket & HPC_PULL_TICKET)) return hpc_whole_missing_in(sc, s, ticket, ranks, found);
    if (action == HPC_FORWARD) return found;
    if (action == HPC_RELAY || !hpc_share_has_answered(sc, s, 2 * sc->keys[share->key].pushes))
        found = hpc_whole_missing(sc, share, 0, UINT64_MAX, ranks, found); /* inputs of the relay, or of the fold */
    for (int p = 0; action == HPC_APPLY && p < m->n_askers; p++)
        if (!atomic_load_explicit(&m->used[m->askers[p]], memory_order_relaxed))
            found = hpc_add_rank(ranks, found, m->askers[p]);
    return found;
}

/* A pull waits for the inputs of its fold. */
static int missing_among_peers(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    const uint64_t push = 2 * hpc_push_of(sc, share->key, ticket);
    if (push != ticket && hpc_share_has_answered(sc, s, push)) return found;
    return hpc_whole_missing(sc, share, hpc_whole_slot(sc, push), UINT64_MAX, ranks, found);
}

/* ---- the values ---- */

const hpc_mean_use hpc_split_use = {.set_use = hpc_split_set_use, .squares = hpc_split_squares};

const hpc_discipline hpc_discipline_split = {
    .name = "BSP in two calls",
    .check = hpc_split_check,
    .traits = HPC_WHOLE | HPC_PULLS | HPC_ANSWERS_ALL,
    .plan = hpc_split_plan_alone,
    .open = hpc_split_open_owner,
    .gate = &(const hpc_gate){.row_came = hpc_split_row_came,
                              .other_came = hpc_split_other_came,
                              .work = hpc_split_work,
                              .missing = missing},
    .pace = &(const hpc_pace){.may_push = hpc_split_may_push,
                              .wait_slot = hpc_split_wait_slot,
                              .send_share = hpc_push_in_turn,
                              .moments = HPC_ON_ENCODE | HPC_ON_SENT | HPC_ON_ASKED,
                              .note = hpc_split_note,
                              .is_late = hpc_whole_is_late,
                              .ends = hpc_split_ends_pull,
                              .ask = hpc_split_ask_share},
    .use = &hpc_split_use,
};

/* gate and pace of peers and neighbours, whose rows keep their inputs */
static const hpc_gate peers_gate = {.row_came = hpc_split_row_came,
                                    .other_came = hpc_split_other_came,
                                    .work = hpc_split_work,
                                    .missing = missing_among_peers};

static const hpc_pace peers_pace = {HPC_SPLIT_PACE, .send_share = hpc_push_in_turn, .has_read = has_read,
                                    .is_late = hpc_peers_is_late};

const hpc_discipline hpc_discipline_split_peers = {
    .name = "BSP among peers in two calls",
    .check = check_peers,
    .traits = HPC_WHOLE | HPC_PULLS | HPC_KEEPS_INPUTS | HPC_OWN_PARAMS | HPC_PASSES_ON,
    .plan = hpc_split_plan_alone,
    .open = hpc_split_open_owner,
    .gate = &peers_gate,
    .pace = &peers_pace,
    .use = &hpc_split_use,
};

const hpc_discipline hpc_discipline_split_graph = {
    .name = "BSP in two calls",
    .check = check_graph,
    .traits = HPC_WHOLE | HPC_PULLS | HPC_KEEPS_INPUTS | HPC_OWN_PARAMS,
    .plan = hpc_split_plan_alone,
    .open = hpc_split_open_owner,
    .gate = &peers_gate,
    .pace = &peers_pace,
    .use = &hpc_split_use,
};
