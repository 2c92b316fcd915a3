/* BSP in two calls: fold and apply (hpc_exchange_config.split).
 *
 * fold is a push, which is answered when every worker's update is there. apply is a pull that brings the arguments of
 * the rule and a factor of the mean; when every worker has called it, the rule runs and the parameters go out. skip
 * drops the updates; squares answers with the sum of squares of each row's mean; gather sends the mean to the workers,
 * in float32: over their gradients, or beside them where updates go in another format. A worker may say that it has no
 * gradient: then no bytes come, and where no worker has one an apply changes nothing.
 *
 * A core with a thread of its own makes the mean of a row as soon as its inputs are there, and keeps it. Inline that
 * would take the time of the same CPU, and memory is passed over once more: so the updates stay where they are, and an
 * apply with factor 1 folds them as it applies them, as BSP does. The bits are the same.
 *
 * A core works in slices, and always for the lowest key that has work: keys are given in the order in which a forward
 * pass needs them (P3, Jayarajan et al., SysML 2019). Between slices it takes events, so a key that has just come can
 * overtake. Slices are this file's `work`.
 *
 * A fold waits for the last apply, so one update of a key is under way, whatever the depth of the plan.
 *
 * With several stages an owner hears from all workers and answers them itself. Folds come to it by forwards, and
 * parameters go by relays, which answer each pull too, be it that it brings none.
 *
 * Order, beside engine.h's: updates are read, and a mean is written and read, between the last event of a fold and the
 * answer to the apply or skip that follows; every worker waits for that before it folds again. So until then a gradient
 * is the exchange's. gather writes its places, which may be the slots of the gradients, between the last event of its
 * calls and its answer; after it the updates are not read any more, unless the mean is one of them: a single float32
 * input. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discipline/discipline.h"
#include "discipline/grouping.h"
#include "discipline/whole.h"
#include "engine/answer.h"
#include "engine/args.h"
#include "engine/forward.h"
#include "engine/mean.h"
#include "engine/pieces.h"
#include "engine/send.h"
#include "engine/stages.h"

static const char op_create[] = "exchange";

enum { SLICE_ROWS = 8 }; /* of one look at the events: some 256 KiB */

/* A pull's event says what it asks for, and, in the bits above, which fold it comes after: at most one is missing. */
enum { USE_BITS = 2, FOLDS = 8 };

/* How an input came: hpc_work.came has one of these. */
enum { CAME = 1, CAME_EMPTY = 2 };

static const double UNKNOWN = -1; /* a sum of squares */

/* A worker's next pull of a key. */
typedef struct ask {
    hpc_use use;
    double scale;
    double unit, kept_unit; /* of the updates; of what encoders have kept of them */
    int keeps;              /* the owners have a mean that was neither applied nor skipped */
    int first, last;        /* of the shares of the key */
} ask;

typedef struct split {
    ask *asks;          /* by key */
    size_t *squares_at; /* by share: bytes in hpc_place.own of a worker */
    char *counts;       /* by row: its squares count; where several apply the same elements, the first one's do */
} split;

/* A share's own. */
typedef struct means {
    double *squares;  /* by row, of the present mean; what puts of the answer read */
    int squared;      /* means are asked for their squares, so these are made with each fold */
    char *how;        /* by row and input: how it came to the present fold */
    int most_inputs;  /* of a row */
    hpc_work **ready; /* the rows whose inputs are all there, of the present fold */
    int n_ready, n_folded;
    _Atomic char *used;     /* by rank: its pull has come */
    int n_used, n_finished; /* pulls that have come; rows that are done with them */
    hpc_use use;            /* of the pulls */
    int folds;              /* that the pulls come after, by their low bits */
    uint64_t answered;      /* pulls */
} means;

/* A core's own: shares that have work, by their number among all shares. */
typedef struct worklist {
    uint64_t *words;
    size_t n_words;
    int n;
} worklist;

/* ---- check ---- */

static int suits(const hpc_exchange_config *f) {
    return f->split && hpc_config_is_bsp(f);
}

static int pushes(const hpc_plan *plan, int key, int rank) {
    for (int i = 0; i < plan->n_rows; i++)
        for (int e = 0; e < plan->rows[i].n_in && plan->rows[i].key == key; e++)
            if (plan->rows[i].in[e].row < 0 && plan->rows[i].in[e].rank == rank) return 1;
    return 0;
}

/* An encoder of forwards learns from its rank's own worker that a fold was skipped. */
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

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    if (f->graph != NULL) return hpc_fail(HPC_ERR_CONFIG, op_create, "exchange: split is for servers; here is a graph");
    if (f->eager)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: split keeps the fold of all updates; eager adds each to the one before: leave one "
                        "of the two out");
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

/* ---- open and free ---- */

static int prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    (void)f;
    split *its = en->own = calloc(1, sizeof *its);
    if (its != NULL) its->asks = calloc((size_t)en->plan->n_keys, sizeof *its->asks);
    if (its == NULL || its->asks == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for keys", op);
    for (int k = 0; k < en->plan->n_keys; k++)
        its->asks[k] = (ask){.use = HPC_USE_APPLY, .scale = 1, .unit = 1, .kept_unit = 1, .last = -1};
    return HPC_OK;
}

static size_t part(const hpc_engine *en, int rank) {
    return en->layout.places[rank].worker ? (size_t)en->plan->n_rows * sizeof(double) : 0;
}

static int open_shares(hpc_engine *en, const char *op) {
    split *its = en->own;
    size_t at = 0;
    its->squares_at = malloc((size_t)en->layout.n_shares * sizeof *its->squares_at);
    its->counts = malloc((size_t)en->plan->n_rows);
    if (its->squares_at == NULL || its->counts == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for shares", op);
    for (int i = 0; i < en->plan->n_rows; i++) its->counts[i] = !hpc_row_is_copy(en, i, -1);
    for (int s = 0; s < en->layout.n_shares; s++) {
        ask *a = &its->asks[en->layout.shares[s].key];
        if (a->last < 0) a->first = s;
        a->last = s;
        its->squares_at[s] = at;
        at += (size_t)en->layout.shares[s].n_rows * sizeof(double);
    }
    return HPC_OK;
}

static int action_of(const hpc_engine *en, const hpc_share *share) {
    return en->plan->rows[share->rows[0]].action;
}

static int open_share(hpc_engine *en, hpc_share *share) {
    means *m = share->own = calloc(1, sizeof *m);
    if (m == NULL) return 0;
    m->squares = calloc((size_t)share->n_rows, sizeof *m->squares);
    for (int i = 0; i < share->n_rows; i++)
        if (en->plan->rows[share->rows[i]].n_in > m->most_inputs) m->most_inputs = en->plan->rows[share->rows[i]].n_in;
    m->how = calloc((size_t)share->n_rows * (size_t)m->most_inputs, 1);
    m->ready = malloc((size_t)share->n_rows * sizeof *m->ready);
    m->used = calloc((size_t)en->context->group.size, sizeof *m->used);
    return m->squares != NULL && m->how != NULL && m->ready != NULL && m->used != NULL;
}

static int open_core(hpc_engine *en, hpc_core *core) {
    worklist *list = core->own = calloc(1, sizeof *list);
    if (list == NULL) return 0;
    list->n_words = (size_t)en->layout.n_shares / 64 + 1;
    list->words = calloc(list->n_words, sizeof *list->words);
    return list->words != NULL;
}

static int open_all(hpc_engine *en, const char *op) {
    int enough = 1;
    for (int c = 0; c < en->n_own_cores; c++) enough &= open_core(en, &en->cores[c]);
    for (int s = 0; s < en->layout.n_shares && enough; s++)
        if (en->layout.shares[s].owner == en->context->group.rank) enough = open_share(en, &en->layout.shares[s]);
    for (int s = 0; s < en->layout.n_shares; s++) /* a fold waits for no relay */
        if (action_of(en, &en->layout.shares[s]) == HPC_RELAY)
            atomic_store_explicit(hpc_own_signal(en->window, hpc_signal_applied(en, s)), UINT64_MAX,
                                  memory_order_relaxed);
    return enough ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for shares", op);
}

static void free_all(hpc_engine *en) {
    split *its = en->own;
    for (int s = 0; s < en->layout.n_shares; s++) {
        means *m = en->layout.shares[s].own;
        if (m == NULL) continue;
        free(m->squares);
        free(m->how);
        free(m->ready);
        free((void *)m->used);
        free(m);
    }
    for (int c = 0; en->cores != NULL && c < en->n_own_cores; c++) {
        worklist *list = en->cores[c].own;
        if (list != NULL) free(list->words);
        free(list);
    }
    if (its == NULL) return;
    free(its->asks);
    free(its->squares_at);
    free(its->counts);
    free(its);
}

/* ---- the core: work ---- */

static void add_work(const hpc_core *core, const hpc_share *share) {
    worklist *list = core->own;
    size_t s = (size_t)(share - core->engine->layout.shares);
    uint64_t bit = (uint64_t)1 << s % 64;
    list->n += !(list->words[s / 64] & bit);
    list->words[s / 64] |= bit;
}

static void end_work(const hpc_core *core, const hpc_share *share) {
    worklist *list = core->own;
    size_t s = (size_t)(share - core->engine->layout.shares);
    list->words[s / 64] &= ~((uint64_t)1 << s % 64);
    list->n--;
}

static hpc_share *lowest_work(const hpc_core *core) {
    const worklist *list = core->own;
    size_t w = 0;
    while (list->words[w] == 0) w++;
    return &core->engine->layout.shares[w * 64 + (size_t)__builtin_ctzll(list->words[w])];
}

/* The rows of a share are in rising order. */
static int place_in_share(const hpc_share *share, int row) {
    int low = 0, high = share->n_rows - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (share->rows[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static char *how_of(const hpc_work *w) {
    const means *m = w->share->own;
    return m->how + (size_t)place_in_share(w->share, w->index) * (size_t)m->most_inputs;
}

/* No worker has a gradient. */
static int is_empty(const hpc_work *w) {
    return memchr(how_of(w), CAME, (size_t)w->row->n_in) == NULL;
}

/* The inputs that came with bytes. A part that is left out is zero: the other weights stay. */
static hpc_inputs present_inputs(hpc_core *core, const hpc_work *w) {
    const char *how = how_of(w);
    hpc_inputs inputs = hpc_row_inputs(core, w, 0, -1);
    int n = 0;
    inputs.n_updates = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        if (how[e] != CAME) continue;
        core->bases[n] = core->bases[e];
        core->base_inputs[n] = core->base_inputs[e];
        core->base_weights[n++] = core->base_weights[e];
        inputs.n_updates += w->inputs[e].updates;
    }
    inputs.n = n;
    return inputs;
}

/* Makes the mean of a row. Nonzero when a user's kernel has failed. */
static int fold(hpc_core *core, hpc_work *w) {
    const means *m = w->share->own;
    const hpc_inputs inputs = present_inputs(core, w);
    double *squares = &m->squares[place_in_share(w->share, w->index)];
    *squares = m->squared || inputs.n == 0 ? 0 : UNKNOWN;
    return inputs.n == 0 ? 0 : hpc_row_fold(core, w, &inputs, m->squared ? squares : NULL);
}

static void look_at_inputs(const hpc_core *core, hpc_work *w) {
    char *how = how_of(w);
    for (int e = 0; e < w->row->n_in; e++) {
        how[e] = atomic_load_explicit(&w->came[e], memory_order_relaxed);
        if (how[e] == CAME) hpc_row_count_received(core, w, e);
    }
    hpc_row_took(w, 0);
    w->mean = NULL;
}

static void answer_folds(hpc_core *core, hpc_share *share) {
    const hpc_engine *en = core->engine;
    means *m = share->own;
    share->version++;
    m->n_ready = m->n_folded = 0;
    for (int i = 0; i < share->n_parts; i++)
        hpc_share_answer(core, share->parts[i], hpc_signal_applied(en, (int)(share - en->layout.shares)),
                         share->version);
}

/* Sends the fold of a row on to the next stage; where no worker has a gradient, an event says that there is none. */
static int forward(hpc_core *core, hpc_work *w) {
    const hpc_inputs inputs = present_inputs(core, w);
    if (inputs.n > 0) return hpc_row_work(core, w, &inputs);
    if (w->encoder != NULL) hpc_pieces_settle(core->engine, w, &core->packing);
    hpc_forward_empty(core, w);
    return 0;
}

static int fold_next(hpc_core *core, hpc_share *share) {
    means *m = share->own;
    hpc_work *w = m->ready[m->n_folded++];
    int failed = 0;
    look_at_inputs(core, w);
    if (w->row->action == HPC_FORWARD)
        failed = forward(core, w);
    else if (!core->engine->inline_progress)
        failed = fold(core, w);
    if (failed) return failed;
    if (m->n_folded == share->n_rows) answer_folds(core, share);
    return 0;
}

/* Whether the pulls of all workers bring the same; else the exchange fails. */
static int pulls_agree(hpc_core *core, const hpc_share *share) {
    hpc_engine *en = core->engine;
    const means *m = share->own;
    int first = share->parts[0];
    double scale = *hpc_args_of(en, share, first, 0);
    for (int i = 1; i < share->n_parts; i++) {
        double theirs = *hpc_args_of(en, share, share->parts[i], 0);
        if (theirs == scale || (isnan(theirs) && isnan(scale))) continue;
        char why[2 * HPC_FAILURE_BYTES];
        snprintf(why, sizeof why,
                 "apply: rank %d gives scale %.9g for key %.64s and rank %d %.9g: give the same on all workers", first,
                 scale, en->plan->keys[share->key].name, share->parts[i], theirs);
        hpc_engine_fail(en, HPC_ERR_CONFIG, why);
        return 0;
    }
    return hpc_args_agree(core, hpc_first_work(en, share), 0, -1,
                          share->version + ((int)(share->version % FOLDS) != m->folds));
}

static void answer_pulls(hpc_core *core, hpc_share *share) {
    hpc_engine *en = core->engine;
    const split *its = en->own;
    means *m = share->own;
    int s = (int)(share - en->layout.shares), signal = hpc_signal_second(en, s);
    size_t nbytes = m->use == HPC_USE_SQUARES ? (size_t)share->n_rows * sizeof *m->squares : 0;
    m->n_used = m->n_finished = 0;
    for (int r = 0; r < en->context->group.size; r++) atomic_store_explicit(&m->used[r], 0, memory_order_relaxed);
    m->answered++;
    for (int i = 0; i < share->n_parts; i++) {
        int r = share->parts[i];
        size_t at = nbytes > 0 ? en->layout.places[r].own + its->squares_at[s] : 0;
        hpc_share_answer_with(core, r, nbytes > 0 ? m->squares : NULL, nbytes, at, signal, m->answered);
    }
}

static int apply(hpc_core *core, hpc_work *w, const double *args) {
    if (w->mean == NULL && args[0] == 1) {
        hpc_inputs inputs = present_inputs(core, w);
        inputs.args = args;
        return hpc_row_work(core, w, &inputs);
    }
    int failed = w->mean == NULL ? fold(core, w) : 0;
    return failed ? failed : hpc_row_apply(core, w, args);
}

static int use_next(hpc_core *core, hpc_share *share) {
    means *m = share->own;
    const hpc_engine *en = core->engine;
    int place = m->n_finished++, failed = 0;
    hpc_work *w = &en->work[en->work_of[share->rows[place]]];
    int empty = is_empty(w), applies = m->use == HPC_USE_APPLY && !empty;
    if (w->sends_to_rows && !applies) hpc_forward_empty(core, w); /* relays answer this pull as well */
    switch (m->use) {
    case HPC_USE_APPLY:
        if (applies) failed = apply(core, w, hpc_args_of(en, share, share->parts[0], 0));
        break;
    case HPC_USE_SKIP:
        break;
    case HPC_USE_SQUARES:
        m->squared = 1;
        if (w->mean == NULL)
            failed = fold(core, w);
        else if (m->squares[place] == UNKNOWN)
            m->squares[place] = hpc_row_squares(core, w);
        break;
    case HPC_USE_GATHER:
        if (w->mean == NULL) failed = fold(core, w);
        if (!failed) hpc_row_gather(core, w, empty);
        break;
    }
    if (failed) return failed;
    if (m->n_finished == share->n_rows) answer_pulls(core, share);
    return 0;
}

static int is_folding(const means *m) {
    return m->n_folded < m->n_ready;
}

/* All workers have pulled, and the fold that they mean is there. A pull may overtake updates that pass other rows. */
static int is_finishing(const hpc_share *share) {
    const means *m = share->own;
    return m->n_used == share->n_parts && m->n_ready == 0 && (int)(share->version % FOLDS) == m->folds;
}

static int work(hpc_core *core) {
    const worklist *list = core->own;
    if (list->n == 0) return 0;
    hpc_share *share = lowest_work(core);
    const means *m = share->own;
    for (int i = 0; i < SLICE_ROWS; i++) {
        int failed = 0;
        if (is_folding(m))
            failed = fold_next(core, share);
        else if (is_finishing(share))
            failed = use_next(core, share);
        else
            break;
        if (failed) return 1;
    }
    if (!is_folding(m) && !is_finishing(share)) end_work(core, share);
    core->due = list->n > 0 ? 0 : INFINITY;
    return 1;
}

/* ---- the core: events ---- */

static void input_came(hpc_core *core, hpc_work *w, int input, int how) {
    means *m = w->share->own;
    _Atomic char *came = &w->came[input];
    if (atomic_load_explicit(&core->engine->fault.failed, memory_order_relaxed) != HPC_OK) return;
    if (hpc_row_has_too_many(core, w, came, 1, w->inputs[input].rank)) return;
    atomic_store_explicit(came, (char)how, memory_order_relaxed);
    if (++w->arrived[0] < w->row->n_in) return;
    w->arrived[0] = 0;
    m->ready[m->n_ready++] = w;
    add_work(core, w->share);
}

static void inputs_came(hpc_core *core, hpc_share *share, int rank, int how) {
    const hpc_engine *en = core->engine;
    const hpc_edge *edges = NULL;
    int input = -1;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        if (w->row->in != edges) input = hpc_row_input_of(w, rank, 0); /* rows of a hub share their edges */
        edges = w->row->in;
        if (input >= 0) input_came(core, w, input, how);
    }
}

static int share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    (void)slot;
    inputs_came(core, share, rank, CAME);
    return 1;
}

/* A relay has its input: the parameters that an owner sends when all have pulled, or the word that there are none. */
static void relayed_came(hpc_core *core, hpc_work *w, int how) {
    hpc_engine *en = core->engine;
    hpc_share *share = w->share;
    means *m = share->own;
    if (atomic_load_explicit(&en->fault.failed, memory_order_relaxed) != HPC_OK) return;
    if (hpc_row_has_too_many(core, w, w->came, 1, w->inputs[0].rank)) return;
    atomic_store_explicit(w->came, (char)how, memory_order_relaxed);
    if (how == CAME) {
        hpc_row_count_received(core, w, 0);
        hpc_row_pass_on(core, w, 0);
    } else if (w->sends_to_rows) {
        hpc_forward_empty(core, w);
    }
    if (++m->n_finished < share->n_rows) return;
    m->n_finished = 0;
    m->answered++;
    for (int i = 0; i < share->n_rows; i++) hpc_row_took(&en->work[en->work_of[share->rows[i]]], 0);
    for (int i = 0; i < share->n_parts; i++)
        hpc_share_answer(core, share->parts[i], hpc_signal_second(en, (int)(share - en->layout.shares)), m->answered);
}

static void came(hpc_core *core, hpc_work *w, int input, int how) {
    if (w->row->action == HPC_RELAY)
        relayed_came(core, w, how);
    else
        input_came(core, w, input, how);
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    (void)slot;
    came(core, w, input, CAME);
    return 1;
}

static int empty_row_came(hpc_core *core, hpc_work *w, int input) {
    came(core, w, input, CAME_EMPTY);
    return 1;
}

static int empty_came(hpc_core *core, hpc_share *share, int rank) {
    if (!hpc_feeds_share(core->engine, share, rank)) return 0;
    inputs_came(core, share, rank, CAME_EMPTY);
    return 1;
}

static void fail_use(const hpc_core *core, const hpc_share *share, int first, int rank, hpc_use use) {
    static const char *const names[] = {"apply", "skip", "gather", "squares"};
    const means *m = share->own;
    char why[2 * HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "%s: rank %d calls %s for key %.64s and rank %d %s: make the same call on all workers",
             names[m->use], first, names[m->use], core->engine->plan->keys[share->key].name, rank, names[use]);
    hpc_engine_fail(core->engine, HPC_ERR_CONFIG, why);
}

static int use_came(hpc_core *core, hpc_share *share, int rank, int asked) {
    means *m = share->own;
    const int use = asked & ((1 << USE_BITS) - 1), folds = asked >> USE_BITS;
    if (atomic_load_explicit(&core->engine->fault.failed, memory_order_relaxed) != HPC_OK) return 1;
    if (use < HPC_USE_APPLY || use > HPC_USE_SQUARES || !hpc_share_involves(core->engine, share, rank)) return 0;
    if (action_of(core->engine, share) != HPC_APPLY) return 0;
    if (atomic_load_explicit(&m->used[rank], memory_order_relaxed)) return 0;
    if (m->n_used == 0) m->use = (hpc_use)use, m->folds = folds;
    if (m->folds != folds) return 0;
    if (m->use != (hpc_use)use) {
        int other = 0;
        while (!atomic_load_explicit(&m->used[other], memory_order_relaxed)) other++;
        fail_use(core, share, other, rank, (hpc_use)use);
        return 1;
    }
    atomic_store_explicit(&m->used[rank], 1, memory_order_relaxed);
    if (++m->n_used < share->n_parts || !pulls_agree(core, share)) return 1;
    share->args_from = share->parts[0];
    share->args_slot = 0;
    add_work(core, share);
    return 1;
}

/* ---- the worker ---- */

static uint64_t last_pull(const hpc_engine *en, int key) {
    return 2 * en->keys[key].pulls + HPC_PULL_TICKET;
}

static int may_push(hpc_engine *en, int key, const char *op) {
    int status = hpc_push_after(en, key, 2 * en->keys[key].pushes, op);
    return status == HPC_OK ? hpc_push_after(en, key, last_pull(en, key), op) : status;
}

/* A gather writes the slot; and a mean may lie there until it is used. */
static int wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    int status = hpc_push_wait_done(en, key, l, op);
    if (status != HPC_OK || hpc_ticket_is_done(en, key, last_pull(en, key))) return status;
    return hpc_ticket_wait(en, key, last_pull(en, key), hpc_limit_left(en, l), op);
}

/* A fold replaces one that was neither applied nor skipped. */
static void begin_fold(hpc_engine *en, int key) {
    if (((const split *)en->own)->asks[key].keeps) hpc_pieces_end_fold(en, key, HPC_SKIPPED);
}

static int send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    if (!(en->keys[share->key].started & HPC_PUSH_EMPTY)) return hpc_push_share(en, s, slot, l);
    if (share->pushed == 0) return HPC_OK;
    return hpc_send_event(en, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_EMPTY, 0, s), l);
}

static int pushed(hpc_engine *en, int key) {
    split *its = en->own;
    its->asks[key].keeps = 1;
    return HPC_OK;
}

static int keeps(const hpc_engine *en, int key) {
    return ((const split *)en->own)->asks[key].keeps;
}

static int set_use(hpc_engine *en, int key, hpc_use use, double scale, const char *op) {
    ask *a = &((split *)en->own)->asks[key];
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
static int send_pull(hpc_engine *en, int s, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    const ask *a = &((const split *)en->own)->asks[share->key];
    hpc_key_rule *rule = &en->rules[share->key];
    if (en->keys[share->key].at_share == 0) { /* then puts read it, until the pull is answered */
        memcpy(rule->out[0], rule->rule.args, HPC_ARGS_BYTES);
        rule->out[0][0] = a->use == HPC_USE_APPLY ? a->scale : 0;
    }
    if (action_of(en, share) != HPC_APPLY) return HPC_OK;
    return hpc_send_event(
        en, share->core, share->owner, rule->out[0], HPC_ARGS_BYTES, hpc_args_at(en, share, en->context->group.rank, 0),
        hpc_imm(HPC_OP_USE, (int)a->use | (int)(en->keys[share->key].pushes % FOLDS) << USE_BITS, s), l);
}

static void pulled(hpc_engine *en, int key) {
    ask *a = &((split *)en->own)->asks[key];
    if (a->use == HPC_USE_APPLY || a->use == HPC_USE_SKIP) a->keeps = 0;
    if (a->use == HPC_USE_SKIP) hpc_pieces_end_fold(en, key, HPC_SKIPPED);
    if (a->use == HPC_USE_APPLY) {
        hpc_pieces_end_fold(en, key, a->unit / a->kept_unit);
        a->kept_unit = a->unit;
    }
    a->use = HPC_USE_APPLY;
    a->scale = 1;
}

static void set_unit(hpc_engine *en, int key, double unit) {
    ((split *)en->own)->asks[key].unit = unit;
}

static double unit_of(const hpc_engine *en, int key) {
    return ((const split *)en->own)->asks[key].kept_unit;
}

/* In the plan's order, so that all ranks get the same bits. */
static double squares(const hpc_engine *en, int key) {
    const split *its = en->own;
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
static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    (void)for_slot;
    if (!(ticket & HPC_PULL_TICKET)) return hpc_whole_awaited(en, key, ticket, ranks);
    const hpc_pushed *k = &en->keys[key];
    int n = 0, me = en->context->group.rank;
    for (int i = 0; i < k->n_awaited; i++) {
        const hpc_share *share = &en->layout.shares[k->awaited[i]];
        if (hpc_share_has_answered(en, k->awaited[i], ticket)) continue;
        const means *m = share->own;
        const int relays = action_of(en, share) == HPC_RELAY;
        if (share->owner == me && (relays || !hpc_share_has_answered(en, k->awaited[i], 2 * k->pushes)))
            n = hpc_whole_missing(en, share, 0, UINT64_MAX, ranks, n); /* of the parameters, or of the fold */
        for (int p = 0; share->owner == me && !relays && p < share->n_parts; p++)
            if (!atomic_load_explicit(&m->used[share->parts[p]], memory_order_relaxed))
                n = hpc_add_rank(ranks, n, share->parts[p]);
        if (share->owner != me) n = hpc_add_rank(ranks, n, share->owner);
    }
    return n > 0 ? n : hpc_add_rank(ranks, n, me); /* its own core is at it */
}

static const hpc_splitting splitting = {
    .keeps = keeps,
    .begin_fold = begin_fold,
    .set_use = set_use,
    .send_pull = send_pull,
    .pulled = pulled,
    .squares = squares,
    .set_unit = set_unit,
    .unit = unit_of,
    .empty_came = empty_came,
    .empty_row_came = empty_row_came,
    .use_came = use_came,
};

const hpc_discipline hpc_discipline_split = {
    .name = "BSP in two calls",
    .suits = suits,
    .check = check,
    .whole = 1,
    .pulls = 1,
    .split = &splitting,
    .answers_all = 1,
    .opening =
        &(const hpc_opening){
            .prepare = prepare, .part = part, .open_shares = open_shares, .open = open_all, .free = free_all},
    .share_came = share_came,
    .row_came = row_came,
    .work = work,
    .may_push = may_push,
    .wait_slot = wait_slot,
    .send_share = send_share,
    .pushed = pushed,
    .needs = hpc_whole_needs,
    .awaited = awaited,
};
