/* SSP(s) on servers (Ho et al., NIPS 2013; Parameter Flow, section 2.3.2): no worker runs more than s steps ahead of
 * the slowest one. With s = 0 that is BSP, and bsp.c's.
 *
 * A worker's *clock* of a key is the number of its pushes since the last publish. A step at clock c begins when the
 * parameters have all updates of clocks up to c - s - 1, so when every open worker has pushed c - s times.
 *
 * The owner applies each update by itself as it comes, with its weight in the plan (1 / n). It counts what it has
 * applied of each worker. The smallest of these counts is the share's *minimum*. A pull at clock c is answered when the
 * minimum is c - s or more; until then it is parked, and the push that raises the minimum answers it. The answer is
 * the share's parameters, behind them the minimum (8 bytes), behind that the number of the pull (a signal).
 *
 * The worker keeps the smallest minimum of its last pull of a key. While that is enough for its clock its copy is fresh
 * enough: the pull ends at once, and nothing travels. So of s + 1 pulls one asks, if all workers are equally fast. The
 * rule sgd has no state and treats all updates alike, so there the worker adds its own update to its copy; under other
 * rules it sees that with the next pull that asks. A pull without a push before it asks always: this is how a trainer
 * gets the newest parameters.
 *
 * Writers, readers and order:
 *   the worker's parameters  written by the owners that answer a pull, between its event and its signal; and by the
 *                            worker itself, in a pull that does not ask. While an earlier pull is under way every pull
 *                            asks, so the two never meet, and nobody writes while the worker computes.
 *   the minimum in a worker's part   written by one owner before the signal (release); read by the worker after it
 *                            (acquire), and not again once it has asked anew. The owner answers a worker's next pull
 *                            only after that worker has asked.
 *   the row's copy and the minimum, as sources of puts   written by the core when it answers a pull; holds_up keeps the
 *                            worker's next pull back until those puts are over, or the worker has seen the answer.
 *   a gradient's slot        as under ASYNC: free when the push is answered. A pull may end before, so a push waits for
 *                            its slot, and a trainer asks for `gradient` again before it writes. The core applies an
 *                            update as soon as it has come, so a depth of 1 or 2 is enough for every s: s updates wait
 *                            for nobody, and memory does not grow with s.
 *   applied                  written by the core; the thread that waits reads it (relaxed) to name the slowest workers.
 *   base                     written at publish, when nothing is under way on any rank, and with the core paused.
 *
 * A worker that has closed counts in no minimum: close waits until its pushes are applied, so nothing of it is missing.
 * Its closing signal rings the bell, and `work` looks at the parked pulls again.
 *
 * Nobody waits in a circle: a worker that waits for another one has ended at least s steps more, also where the two
 * take the keys in different orders, and s is 1 or more.
 *
 * Parameter Flow's own form (UCC-SSP, section 3.2.1) is updates_ssp.c. There every worker gets every version, and all
 * get the same parameters for it, those of the moment when it was closed. Here an answer has what is there when it is
 * sent, and a worker asks only when it must. The bound is the same: the minimum is the number of closed versions. */
#include <stdlib.h>
#include <string.h>

#include "discipline/each.h"
#include "engine/answer.h"
#include "engine/core.h"
#include "engine/row.h"
#include "engine/send.h"
#include "engine/write.h"

/* A share's own, at its owner; arrays are by rank. */
typedef struct clocks {
    _Atomic uint64_t *applied; /* pushes that all rows have applied */
    uint64_t *base;            /* how many of them came before the last publish */
    uint64_t *asked;           /* pulls that have come */
    uint64_t *at;              /* the worker's clock at the last of them */
    uint64_t *told;            /* the minimum of its last answer, which a put may still read */
    int *rows_done;            /* rows of the current push that are applied */
    char *parked;              /* whether a pull waits */
    int n_parked;
} clocks;

/* A worker's view of a key. */
typedef struct view {
    uint64_t at;                /* pushes when it pulled last */
    int begins;                 /* that pull begins a step: a push came before it */
    uint64_t looked;            /* the pull that minimum is of */
    uint64_t minimum;           /* so many updates of each worker are in its copy, since the last publish */
    uint64_t handed;            /* depth 1: pushes when the slot was last handed out */
    double args[HPC_RULE_ARGS]; /* of its last push */
} view;

/* The exchange's own. */
typedef struct worker {
    view *keys;
    uint64_t *base; /* [key * size + rank]: pushes before the last publish; other ranks' where they can be seen */
    float *block;   /* an own update, weighted */
    uint64_t begun[HPC_MOST_STALENESS + 1]; /* steps, by how far the slowest worker was behind */
} worker;

/* ---- what is asked for ---- */

static int suits(const hpc_exchange_config *f) {
    return f->consistency == HPC_SSP && f->graph == NULL && !hpc_config_is_bsp(f);
}

static int check_rows(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        int plain = row->action == HPC_APPLY && row->quorum == row->n_in;
        for (int e = 0; e < row->n_in; e++) plain &= row->in[e].row < 0;
        if (plain) continue;
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: row %d has action %d and a quorum of %d of %d inputs; SSP with servers needs rows "
                        "of one stage that apply the updates of all workers, as in a plan for BSP",
                        i, row->action, row->quorum, row->n_in);
    }
    return HPC_OK;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    const int status = hpc_each_check(f);
    return status == HPC_OK ? check_rows(f) : status;
}

/* ---- open ---- */

static worker *worker_of(const hpc_engine *en) {
    return en->own;
}

static size_t part(const hpc_engine *en, int rank) {
    return en->layout.places[rank].worker ? (size_t)en->layout.n_shares * sizeof(uint64_t) : 0;
}

static size_t told_at(const hpc_engine *en, int rank, int share) {
    return en->layout.places[rank].own + (size_t)share * sizeof(uint64_t);
}

static int open_share(hpc_share *share, size_t size, const char *op) {
    clocks *c = share->own = calloc(1, sizeof *c);
    if (c == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    c->applied = calloc(size, sizeof *c->applied);
    c->base = calloc(size, sizeof *c->base);
    c->asked = calloc(size, sizeof *c->asked);
    c->at = calloc(size, sizeof *c->at);
    c->told = calloc(size, sizeof *c->told);
    c->rows_done = calloc(size, sizeof *c->rows_done);
    c->parked = calloc(size, 1);
    if (c->applied != NULL && c->base != NULL && c->asked != NULL && c->at != NULL && c->told != NULL &&
        c->rows_done != NULL && c->parked != NULL)
        return HPC_OK;
    return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
}

static int open_all(hpc_engine *en, const char *op) {
    size_t size = (size_t)en->context->group.size, keys = (size_t)en->plan->n_keys;
    int status = HPC_OK;
    worker *its = en->own = calloc(1, sizeof *its);
    if (its != NULL) {
        its->keys = calloc(keys, sizeof *its->keys);
        its->base = calloc(keys * size, sizeof *its->base);
        its->block = malloc(HPC_BLOCK * sizeof *its->block);
    }
    if (its == NULL || its->keys == NULL || its->base == NULL || its->block == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for keys", op);
    for (int c = 0; c < en->n_own_cores; c++) {
        en->cores[c].own = calloc(1, sizeof(hpc_parking));
        if (en->cores[c].own == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a core", op);
    }
    for (int s = 0; s < en->layout.n_shares && status == HPC_OK; s++)
        if (en->layout.shares[s].owner == en->context->group.rank) status = open_share(&en->layout.shares[s], size, op);
    return status;
}

static void free_all(hpc_engine *en) {
    worker *its = en->own;
    for (int s = 0; s < en->layout.n_shares; s++) {
        clocks *c = en->layout.shares[s].own;
        if (c == NULL) continue;
        free(c->applied);
        free(c->base);
        free(c->asked);
        free(c->at);
        free(c->told);
        free(c->rows_done);
        free(c->parked);
        free(c);
        en->layout.shares[s].own = NULL;
    }
    for (int c = 0; en->cores != NULL && c < en->n_own_cores; c++) {
        free(en->cores[c].own);
        en->cores[c].own = NULL;
    }
    if (its != NULL) {
        free(its->keys);
        free(its->base);
        free(its->block);
    }
    free(its);
    en->own = NULL;
}

/* The minimum that the owner has told with its last answer: all workers' updates up to it are in the copy. */
static uint64_t heard(const hpc_engine *en, int s) {
    uint64_t told;
    memcpy(&told, hpc_own_part(en) + told_at(en, en->context->group.rank, s), sizeof told);
    return told;
}

/* ---- the core ---- */

static uint64_t clock_of(const clocks *c, int rank) {
    return atomic_load_explicit(&c->applied[rank], memory_order_relaxed) - c->base[rank];
}

static int is_open(const hpc_engine *en, int rank) {
    return hpc_closed_signal(en, rank) == 0;
}

/* The smallest clock of the open workers. All rows of a share have the same workers: a plan for SSP has no others. */
static uint64_t minimum_of(const hpc_engine *en, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(en, share);
    uint64_t least = UINT64_MAX;
    for (int e = 0; e < w->row->n_in; e++) {
        int rank = w->inputs[e].rank;
        uint64_t clock = clock_of(share->own, rank);
        if (clock < least && is_open(en, rank)) least = clock;
    }
    return least;
}

static void answer(hpc_core *core, hpc_share *share, int rank, uint64_t minimum) {
    const hpc_engine *en = core->engine;
    clocks *c = share->own;
    int s = (int)(share - en->layout.shares);
    c->parked[rank] = 0;
    c->n_parked--;
    ((hpc_parking *)core->own)->n_parked--;
    for (int i = 0; i < share->n_rows; i++) hpc_row_send(core, &en->work[en->work_of[share->rows[i]]], rank);
    c->told[rank] = minimum;
    hpc_share_answer_with(core, rank, &c->told[rank], sizeof c->told[rank], told_at(en, rank, s),
                          hpc_signal_second(en, s), c->asked[rank]);
}

/* Answers the pulls that need wait no longer; returns their number. */
static int wake(hpc_core *core, hpc_share *share) {
    const hpc_engine *en = core->engine;
    const clocks *c = share->own;
    uint64_t minimum = minimum_of(en, share), enough = minimum + (uint64_t)en->asked.staleness;
    int n = 0;
    for (int rank = 0; rank < en->context->group.size && c->n_parked > 0; rank++) {
        if (!c->parked[rank] || (minimum != UINT64_MAX && c->at[rank] > enough)) continue;
        answer(core, share, rank, minimum);
        n++;
    }
    return n;
}

static void input_came(hpc_core *core, hpc_work *w, int slot, int input) {
    const hpc_engine *en = core->engine;
    hpc_share *share = w->share;
    const int from = w->inputs[input].rank;
    clocks *c = share->own;
    if (!hpc_each_apply(core, w, slot, input, c->rows_done)) return;
    hpc_tally_add(&c->applied[from], 1);
    hpc_share_answer(core, from, hpc_signal_applied(en, (int)(share - en->layout.shares)),
                     atomic_load_explicit(&c->applied[from], memory_order_relaxed));
    if (c->n_parked > 0) wake(core, share);
}

static int share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    return hpc_each_share_came(core, share, rank, slot, input_came);
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    input_came(core, w, slot, input);
    return 1;
}

/* Every push that the worker made before has been applied, events being in order. A pull that comes while another one
 * is parked takes its place: its answer is one to both. */
static int pull_came(hpc_core *core, hpc_share *share, int rank) {
    clocks *c = share->own;
    if (hpc_row_input_of(hpc_first_work(core->engine, share), rank, 0) < 0) return 0;
    c->asked[rank]++;
    c->at[rank] = clock_of(c, rank);
    if (!c->parked[rank]) {
        c->parked[rank] = 1;
        c->n_parked++;
        ((hpc_parking *)core->own)->n_parked++;
    }
    wake(core, share);
    return 1;
}

/* A worker that has closed may have been the one that pulls waited for. */
static int work(hpc_core *core) {
    return hpc_each_work(core, wake);
}

static uint64_t folded_of(const hpc_share *share, int rank) {
    const clocks *c = share->own;
    return atomic_load_explicit(&c->applied[rank], memory_order_relaxed) + (c->rows_done[rank] > 0);
}

/* ---- the worker ---- */

static uint64_t *base_of(const hpc_engine *en, int key, int rank) {
    return &worker_of(en)->base[(size_t)key * (size_t)en->context->group.size + (size_t)rank];
}

/* How many pushes of this rank have been made since the last publish, when it had made n in all. */
static uint64_t own_clock(const hpc_engine *en, int key, uint64_t n) {
    return n - *base_of(en, key, en->context->group.rank);
}

static void count_begun(const hpc_engine *en, uint64_t clock, uint64_t minimum) {
    uint64_t behind = clock > minimum ? clock - minimum : 0;
    if (behind <= (uint64_t)en->asked.staleness) worker_of(en)->begun[behind]++;
}

/* Takes what the last pull has brought, once it has ended. */
static void look(const hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    view *v = &worker_of(en)->keys[key];
    if (v->looked == k->pulls || !hpc_ticket_is_done(en, key, 2 * k->pulls + HPC_PULL_TICKET)) return;
    v->looked = k->pulls;
    v->minimum = UINT64_MAX;
    for (int i = 0; i < k->n_awaited; i++) {
        uint64_t told;
        memcpy(&told, hpc_own_part(en) + told_at(en, en->context->group.rank, k->awaited[i]), sizeof told);
        if (told < v->minimum) v->minimum = told;
    }
    if (v->begins) count_begun(en, own_clock(en, key, v->at), v->minimum);
}

/* Waits for a free slot. With one slot the next update overwrites the last one, which a pull that does not ask would
 * still add. */
static int wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    int status = hpc_push_wait_slot(en, key, l, op);
    if (status == HPC_OK && en->layout.depth == 1) worker_of(en)->keys[key].handed = en->keys[key].pushes;
    return status;
}

static void begin_push(hpc_engine *en, int key) {
    memcpy(worker_of(en)->keys[key].args, en->rules[key].rule.args, HPC_ARGS_BYTES);
}

static double own_weight(const hpc_engine *en, const hpc_row *row) {
    double weight = 0;
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].rank == en->context->group.rank) weight = row->in[e].weight;
    return weight;
}

/* Adds the update of the last push, which is still in its slot, to this rank's copy of a row. */
static void add_row(hpc_engine *en, const hpc_row *row) {
    const hpc_pushed *k = &en->keys[row->key];
    const worker *its = worker_of(en);
    const char *from = hpc_slot_of_push(en, row->key, k->pushes) + hpc_row_from(en, row);
    float *params = (float *)(void *)(hpc_own_part(en) + hpc_params_at(en, en->context->group.rank, row->key, 0));
    double weight = own_weight(en, row);
    for (uint64_t at = 0; at < row->count; at += HPC_BLOCK) {
        size_t n = row->count - at < HPC_BLOCK ? (size_t)(row->count - at) : HPC_BLOCK;
        const void *piece = from + hpc_codec_span(k->codec, at);
        k->codec->fold(en->kernels)(its->block, &piece, &weight, 1, n, 0);
        en->rules[row->key].rule.apply(params + row->offset + at, its->block, 1, NULL, its->keys[row->key].args,
                                       (int64_t)n);
    }
}

/* sgd alone of the built-in rules has a pass and no state; a user's own may look at the step, which is the owner's. */
static void add_own(hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    const hpc_key_rule *its = &en->rules[key];
    if (its->rule.slots > 0 || its->pass == NULL) return;
    for (int i = 0; i < k->n_awaited; i++) {
        const hpc_share *share = &en->layout.shares[k->awaited[i]];
        for (int r = 0; r < share->n_rows; r++) add_row(en, &en->plan->rows[share->rows[r]]);
    }
}

/* Whether its copy has all that a pull needs: of its own updates all but the last, which is added here. */
static int ends_pull(hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    view *v = &worker_of(en)->keys[key];
    uint64_t clock = own_clock(en, key, k->pushes);
    look(en, key);
    int kept = en->layout.depth > 1 || v->handed < k->pushes; /* the last update is in its slot */
    int pushed_once = k->pushes == v->at + 1 && kept && !hpc_key_pushes_pieces(en, key), looked = v->looked == k->pulls;
    int decoded = k->encoded.n_rows == 0 || k->encoded.decoded == 2 * k->pulls + HPC_PULL_TICKET;
    v->begins = k->pushes > v->at || (v->begins && !looked); /* one that it takes the place of */
    v->at = k->pushes;
    if (!pushed_once || !looked || !decoded ||
        (clock > v->minimum && clock - v->minimum > (uint64_t)en->asked.staleness))
        return 0;
    add_own(en, key);
    count_begun(en, clock, v->minimum);
    return 1;
}

/* The workers that are too far behind, where this rank can see how often they have pushed. */
static int slowest(const hpc_engine *en, int key, uint64_t needed, int *ranks) {
    const hpc_pushed *k = &en->keys[key];
    int n = 0, me = en->context->group.rank;
    for (int r = 0; r < en->context->group.size; r++) {
        if (r == me || !hpc_pushes_key(en, r, key) || !is_open(en, r)) continue;
        uint64_t pushes = hpc_pushes_of(en, r, key);
        int behind = pushes != UINT64_MAX && pushes - *base_of(en, key, r) < needed;
        behind |= pushes == UINT64_MAX && /* without a word that it closes */
                  atomic_load_explicit(&en->context->group.states[r], memory_order_acquire) == HPC_PEER_LEFT;
        for (int i = 0; i < k->n_shares && !behind; i++) {
            const hpc_share *share = &en->layout.shares[k->shares[i]];
            behind = share->owner == me && clock_of(share->own, r) < needed;
        }
        if (behind) n = hpc_add_rank(ranks, n, r);
    }
    return n;
}

/* Owners, where no worker is known to be too far behind: its updates are on their way, or cannot be seen from here. */
static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    uint64_t clock = own_clock(en, key, worker_of(en)->keys[key].at), staleness = (uint64_t)en->asked.staleness;
    int n = 0;
    if (!for_slot && ticket & HPC_PULL_TICKET && clock > staleness) n = slowest(en, key, clock - staleness, ranks);
    if (n == 0) n = hpc_silent_owners(en, key, ticket, ranks, 0);
    return n > 0 ? n : hpc_add_rank(ranks, n, en->context->group.rank); /* its own core is at it */
}

/* ---- publish: all workers go on from one clock ---- */

/* Nothing is under way on any rank, and no rank pushes before the publish has ended. */
static int level(hpc_engine *en, const char *op, double deadline) {
    int size = en->context->group.size;
    (void)op, (void)deadline;
    for (int k = 0; k < en->plan->n_keys; k++) {
        view *v = &worker_of(en)->keys[k];
        look(en, k);
        for (int r = 0; r < size; r++) *base_of(en, k, r) = hpc_pushes_key(en, r, k) ? hpc_pushes_of(en, r, k) : 0;
        *base_of(en, k, en->context->group.rank) = v->at = en->keys[k].pushes;
        v->minimum = 0;
    }
    for (int s = 0; s < en->layout.n_shares; s++) {
        const hpc_share *share = &en->layout.shares[s];
        clocks *c = share->own;
        if (share->owner != en->context->group.rank) continue;
        hpc_core_pause(&en->cores[share->core]);
        for (int r = 0; r < size; r++) c->base[r] = atomic_load_explicit(&c->applied[r], memory_order_relaxed);
        hpc_core_resume(&en->cores[share->core]);
    }
    return HPC_OK;
}

/* ---- facts ---- */

static int staleness(const hpc_engine *en, uint64_t *counts, int cap) {
    for (int k = 0; k < en->plan->n_keys && en->layout.places[en->context->group.rank].worker; k++)
        if (en->keys[k].n_shares > 0) look(en, k);
    for (int i = 0; i < cap; i++) counts[i] = i <= en->asked.staleness ? worker_of(en)->begun[i] : 0;
    return en->asked.staleness;
}

static const hpc_pulling pulling = {.ends = ends_pull};

const hpc_discipline hpc_discipline_server_ssp = {
    .name = "SSP",
    .suits = suits,
    .check = check,
    .goes_on = 1,
    .pulling = &pulling,
    .opening = &(const hpc_opening){.part = part, .open = open_all, .free = free_all},
    .share_came = share_came,
    .row_came = row_came,
    .pull_came = pull_came,
    .holds_up = hpc_each_holds_up,
    .work = work,
    .wait_slot = wait_slot,
    .begin_push = begin_push,
    .awaited = awaited,
    .facts =
        &(const hpc_facts){.before_publish = level, .folded_of = folded_of, .heard = heard, .staleness = staleness},
};
