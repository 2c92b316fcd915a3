/* The worker's half of BSP in two calls (see split.c): folds, and pulls that say what becomes of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "discipline/split.h"
#include "discipline/whole.h"
#include "engine/layout.h"
#include "engine/pieces.h"
#include "engine/send.h"
#include "engine/stages.h"

/* ---- open and free ---- */

int hpc_split_prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    (void)f;
    hpc_split *its = en->own = calloc(1, sizeof *its);
    if (its != NULL) its->asks = calloc((size_t)en->plan->n_keys, sizeof *its->asks);
    if (its == NULL || its->asks == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for keys", op);
    for (int k = 0; k < en->plan->n_keys; k++)
        its->asks[k] = (hpc_split_ask){.use = HPC_USE_APPLY, .scale = 1, .unit = 1, .kept_unit = 1, .last = -1};
    return HPC_OK;
}

size_t hpc_split_part(const hpc_engine *en, int rank) {
    return en->layout.places[rank].worker ? (size_t)en->plan->n_rows * sizeof(double) : 0;
}

int hpc_split_open_shares(hpc_engine *en, const char *op) {
    hpc_split *its = en->own;
    size_t at = 0;
    its->squares_at = malloc((size_t)en->layout.n_shares * sizeof *its->squares_at);
    its->counts = malloc((size_t)en->plan->n_rows);
    if (its->squares_at == NULL || its->counts == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for shares", op);
    for (int i = 0; i < en->plan->n_rows; i++) its->counts[i] = !hpc_row_is_copy(en, i, -1);
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_split_ask *a = &its->asks[en->layout.shares[s].key];
        if (a->last < 0) a->first = s;
        a->last = s;
        its->squares_at[s] = at;
        at += (size_t)en->layout.shares[s].n_rows * sizeof(double);
    }
    return HPC_OK;
}

void hpc_split_free_worker(hpc_engine *en) {
    hpc_split *its = en->own;
    if (its == NULL) return;
    free(its->asks);
    free(its->squares_at);
    free(its->counts);
    free(its);
}

/* ---- folds ---- */

static uint64_t last_pull(const hpc_engine *en, int key) {
    return 2 * en->keys[key].pulls + HPC_PULL_TICKET;
}

int hpc_split_may_push(hpc_engine *en, int key, const char *op) {
    int status = hpc_push_after(en, key, 2 * en->keys[key].pushes, op);
    return status == HPC_OK ? hpc_push_after(en, key, last_pull(en, key), op) : status;
}

/* A gather writes the slot; and a mean may lie there until it is used. */
int hpc_split_wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    int status = hpc_push_wait_done(en, key, l, op);
    if (status != HPC_OK || hpc_ticket_is_done(en, key, last_pull(en, key))) return status;
    return hpc_ticket_wait(en, key, last_pull(en, key), hpc_limit_left(en, l), op);
}

/* A fold replaces one that was neither applied nor skipped. */
void hpc_split_begin_fold(hpc_engine *en, int key) {
    if (((const hpc_split *)en->own)->asks[key].keeps) hpc_pieces_end_fold(en, key, HPC_SKIPPED);
}

int hpc_split_send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    if (!(en->keys[share->key].started & HPC_PUSH_EMPTY)) return hpc_push_in_turn(en, s, slot, l);
    if (share->pushed == 0) return HPC_OK;
    return hpc_send_event(en, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_EMPTY, 0, s), l);
}

int hpc_split_pushed(hpc_engine *en, int key) {
    hpc_split *its = en->own;
    its->asks[key].keeps = 1;
    return HPC_OK;
}

/* Without a fold there is nothing to ask for: such a pull ends what is under way. */
int hpc_split_ends_pull(hpc_engine *en, int key) {
    return !((const hpc_split *)en->own)->asks[key].keeps;
}

int hpc_split_set_use(hpc_engine *en, int key, hpc_use use, double scale, const char *op) {
    hpc_split_ask *a = &((hpc_split *)en->own)->asks[key];
    const char *name = en->plan->keys[key].name;
    if (en->keys[key].sending != 0) {
        if (a->use == use && (a->scale == scale || use != HPC_USE_APPLY)) return HPC_OK;
        return hpc_fail_detail(op, HPC_DETAIL_UNFINISHED,
                               "%s: the last call on key %s of rank %d was cut short; make it again first", op, name,
                               en->context->group.rank);
    }
    if (isinf(scale))
        return hpc_fail(
            HPC_ERR_INVALID, op,
            "%s: scale of key %s is %g; it must be finite, or NaN for a mean of NaNs: skip leaves a step out", op, name,
            scale);
    if (!a->keeps)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s has no fold on rank %d: fold it first", op, name,
                        en->context->group.rank);
    int status = hpc_push_after(en, key, last_pull(en, key), op);
    if (status != HPC_OK) return status;
    a->use = use;
    a->scale = scale;
    return HPC_OK;
}

/* The factor goes with the arguments: it lies in the place of the step's number, which is the core's. */
int hpc_split_ask_share(hpc_engine *en, int s, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    const hpc_split_ask *a = &((const hpc_split *)en->own)->asks[share->key];
    hpc_key_rule *rule = &en->rules[share->key];
    if (en->keys[share->key].at_share == 0) { /* then puts read it, until the pull is answered */
        memcpy(rule->out[0], rule->rule.args, HPC_ARGS_BYTES);
        rule->out[0][0] = a->use == HPC_USE_APPLY ? a->scale : 0;
    }
    if (hpc_split_action(en, share) != HPC_APPLY) return HPC_OK;
    return hpc_send_ahead(
        en, share->core, share->owner, rule->out[0], HPC_ARGS_BYTES, hpc_args_at(en, share, en->context->group.rank, 0),
        hpc_imm(HPC_OP_USE, (int)a->use | (int)(en->keys[share->key].pushes % HPC_SPLIT_FOLDS) << HPC_SPLIT_USE_BITS,
                s),
        l);
}

void hpc_split_asked(hpc_engine *en, int key) {
    hpc_split_ask *a = &((hpc_split *)en->own)->asks[key];
    if (a->use == HPC_USE_APPLY || a->use == HPC_USE_SKIP) a->keeps = 0;
    if (a->use == HPC_USE_SKIP) hpc_pieces_end_fold(en, key, HPC_SKIPPED);
    if (a->use == HPC_USE_APPLY) {
        hpc_pieces_end_fold(en, key, a->unit / a->kept_unit);
        a->kept_unit = a->unit;
    }
    a->use = HPC_USE_APPLY;
    a->scale = 1;
}

void hpc_split_set_unit(hpc_engine *en, int key, double unit) {
    ((hpc_split *)en->own)->asks[key].unit = unit;
}

double hpc_split_unit(const hpc_engine *en, int key) {
    return ((const hpc_split *)en->own)->asks[key].kept_unit;
}

/* In the plan's order, so that all ranks get the same bits. */
double hpc_split_squares(const hpc_engine *en, int key) {
    const hpc_split *its = en->own;
    const char *own = hpc_own_part(en) + en->layout.places[en->context->group.rank].own;
    double sum = 0;
    for (int s = its->asks[key].first; s <= its->asks[key].last; s++) {
        const hpc_share *share = &en->layout.shares[s];
        const double *at = (const double *)(const void *)(own + its->squares_at[s]);
        for (int i = 0; i < share->n_rows && share->key == key; i++)
            if (its->counts[share->rows[i]]) sum += at[i];
    }
    return sum;
}

/* For a pull: the workers whose pulls are missing here, and other owners that have not answered. */
int hpc_split_awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    (void)for_slot;
    if (!(ticket & HPC_PULL_TICKET)) return hpc_whole_awaited(en, key, ticket, ranks);
    const hpc_pushed *k = &en->keys[key];
    int n = 0, me = en->context->group.rank;
    for (int i = 0; i < k->n_awaited; i++) {
        const hpc_share *share = &en->layout.shares[k->awaited[i]];
        if (hpc_share_has_answered(en, k->awaited[i], ticket)) continue;
        const hpc_split_means *m = share->own;
        const int relays = hpc_split_action(en, share) == HPC_RELAY;
        if (share->owner == me && (relays || !hpc_share_has_answered(en, k->awaited[i], 2 * k->pushes)))
            n = hpc_whole_missing(en, share, 0, UINT64_MAX, ranks, n); /* of the parameters, or of the fold */
        for (int p = 0; share->owner == me && !relays && p < share->n_members; p++)
            if (!atomic_load_explicit(&m->used[share->members[p]], memory_order_relaxed))
                n = hpc_add_rank(ranks, n, share->members[p]);
        if (share->owner != me) n = hpc_add_rank(ranks, n, share->owner);
    }
    return n > 0 ? n : hpc_add_rank(ranks, n, me); /* its own core is at it */
}
