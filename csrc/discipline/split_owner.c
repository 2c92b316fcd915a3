/* The owner's half of BSP in two calls (see split.c): means are made, and pulls say what becomes of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discipline/split.h"
#include "engine/answer.h"
#include "engine/core.h"
#include "engine/args.h"
#include "engine/forward.h"
#include "engine/layout.h"
#include "engine/mean.h"
#include "engine/pieces.h"
#include "engine/row.h"
#include "engine/stages.h"

enum { SLICE_ROWS = 8 }; /* of one look at the events: some 256 KiB */

static const double UNKNOWN = -1; /* a sum of squares */

/* A core's own: shares that have work, by their number among all shares. */
typedef struct worklist {
    uint64_t *words;
    size_t n_words;
    int n;
} worklist;

/* ---- open and free ---- */

static int open_share(hpc_engine *en, hpc_share *share) {
    hpc_split_means *m = share->own = calloc(1, sizeof *m);
    if (m == NULL) return 0;
    m->squares = calloc((size_t)share->n_rows, sizeof *m->squares);
    for (int i = 0; i < share->n_rows; i++)
        if (en->plan->rows[share->rows[i]].n_in > m->most_inputs) m->most_inputs = en->plan->rows[share->rows[i]].n_in;
    m->how = calloc((size_t)share->n_rows * (size_t)m->most_inputs, 1);
    m->ready = malloc((size_t)share->n_rows * sizeof *m->ready);
    m->used = calloc((size_t)en->context->group.size, sizeof *m->used);
    m->finished = calloc((size_t)share->n_rows, 1);
    return m->squares != NULL && m->how != NULL && m->ready != NULL && m->used != NULL && m->finished != NULL;
}

static int open_core(hpc_engine *en, hpc_core *core) {
    worklist *list = core->own = calloc(1, sizeof *list);
    if (list == NULL) return 0;
    list->n_words = (size_t)en->layout.n_shares / 64 + 1;
    list->words = calloc(list->n_words, sizeof *list->words);
    return list->words != NULL;
}

int hpc_split_open_owner(hpc_engine *en, const char *op) {
    int enough = 1;
    for (int c = 0; c < en->n_own_cores; c++) enough &= open_core(en, &en->cores[c]);
    for (int s = 0; s < en->layout.n_shares && enough; s++)
        if (en->layout.shares[s].owner == en->context->group.rank) enough = open_share(en, &en->layout.shares[s]);
    for (int s = 0; s < en->layout.n_shares; s++) /* a fold waits for no relay */
        if (hpc_split_action(en, &en->layout.shares[s]) == HPC_RELAY)
            atomic_store_explicit(hpc_own_signal(en->window, hpc_signal_applied(en, s)), UINT64_MAX,
                                  memory_order_relaxed);
    return enough ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for shares", op);
}

void hpc_split_free_owner(hpc_engine *en) {
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_split_means *m = en->layout.shares[s].own;
        if (m == NULL) continue;
        free(m->squares);
        free(m->how);
        free(m->ready);
        free((void *)m->used);
        free(m->finished);
        free(m);
    }
    for (int c = 0; en->cores != NULL && c < en->n_own_cores; c++) {
        worklist *list = en->cores[c].own;
        if (list != NULL) free(list->words);
        free(list);
    }
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

static char *how_of(const hpc_work *w) {
    const hpc_split_means *m = w->share->own;
    return m->how + (size_t)hpc_split_place(w->share, w->index) * (size_t)m->most_inputs;
}

/* No worker has a gradient. */
static int is_empty(const hpc_work *w) {
    return memchr(how_of(w), HPC_CAME, (size_t)w->row->n_in) == NULL;
}

/* The inputs that came with bytes. A part that is left out is zero: the other weights stay. */
static hpc_inputs present_inputs(hpc_core *core, const hpc_work *w) {
    const char *how = how_of(w);
    hpc_inputs inputs = hpc_row_inputs(core, w, 0, -1);
    int n = 0;
    inputs.n_updates = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        if (how[e] != HPC_CAME) continue;
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
    const hpc_split_means *m = w->share->own;
    const hpc_inputs inputs = present_inputs(core, w);
    double *squares = &m->squares[hpc_split_place(w->share, w->index)];
    *squares = m->squared || inputs.n == 0 ? 0 : UNKNOWN;
    return inputs.n == 0 ? 0 : hpc_row_fold(core, w, &inputs, m->squared ? squares : NULL);
}

static void look_at_inputs(const hpc_core *core, hpc_work *w) {
    char *how = how_of(w);
    for (int e = 0; e < w->row->n_in; e++) {
        how[e] = atomic_load_explicit(&w->came[e], memory_order_relaxed);
        if (how[e] == HPC_CAME) hpc_row_count_received(core, w, e);
    }
    hpc_row_took(w, 0);
    w->mean = NULL;
}

static void tell_folded(hpc_core *core, const hpc_share *share) {
    const hpc_engine *en = core->engine;
    for (int i = 0; i < share->n_members; i++)
        hpc_share_answer(core, share->members[i], hpc_signal_applied(en, (int)(share - en->layout.shares)),
                         share->version);
}

static int is_folding(const hpc_split_means *m) {
    return m->n_folded < m->n_ready;
}

/* All workers have pulled. Shares that forward hear of no pulls. */
static int is_pulled(const hpc_share *share) {
    const hpc_split_means *m = share->own;
    return m->n_used > 0 && m->n_used == share->n_members;
}

/* The fold that the pulls mean is there. A pull may overtake updates that pass other rows. */
static int is_finishing(const hpc_share *share) {
    const hpc_split_means *m = share->own;
    return is_pulled(share) && m->n_ready == 0 && (int)(share->version % HPC_SPLIT_FOLDS) == m->folds;
}

/* Workers hear of the fold at once, or, where all of them have pulled already, with the answer to their pulls. */
static void answer_folds(hpc_core *core, hpc_share *share) {
    hpc_split_means *m = share->own;
    share->version++;
    m->n_ready = m->n_folded = m->n_ahead = 0;
    m->owes = is_finishing(share);
    if (!m->owes) tell_folded(core, share);
}

/* Sends the fold of a row on to the next stage; where no worker has a gradient, an event says that there is none. */
static int forward(hpc_core *core, hpc_work *w) {
    const hpc_inputs inputs = present_inputs(core, w);
    if (inputs.n > 0) return hpc_row_work(core, w, &inputs);
    if (w->encoder != NULL) hpc_pieces_settle(core->engine, w, &core->packing);
    hpc_forward_empty(core, w);
    return 0;
}

/* Whether the pulls of all workers bring the same; else the exchange fails. */
static int pulls_agree(hpc_core *core, const hpc_share *share) {
    hpc_engine *en = core->engine;
    const hpc_split_means *m = share->own;
    int first = share->members[0];
    double scale = *hpc_args_of(en, share, first, 0);
    for (int i = 1; i < share->n_members; i++) {
        double theirs = *hpc_args_of(en, share, share->members[i], 0);
        if (theirs == scale || (isnan(theirs) && isnan(scale))) continue;
        char why[2 * HPC_FAILURE_BYTES];
        snprintf(why, sizeof why,
                 "apply: rank %d gives scale %.9g for key %.64s and rank %d %.9g: give the same on all workers", first,
                 scale, en->plan->keys[share->key].name, share->members[i], theirs);
        hpc_engine_fail(en, HPC_ERR_CONFIG, why);
        return 0;
    }
    return hpc_args_agree(core, hpc_first_work(en, share), 0, -1,
                          share->version + ((int)(share->version % HPC_SPLIT_FOLDS) != m->folds));
}

static void answer_pulls(hpc_core *core, hpc_share *share) {
    hpc_engine *en = core->engine;
    const hpc_split *its = en->own;
    hpc_split_means *m = share->own;
    int s = (int)(share - en->layout.shares), signal = hpc_signal_second(en, s);
    size_t nbytes = m->use == HPC_USE_SQUARES ? (size_t)share->n_rows * sizeof *m->squares : 0;
    m->n_used = m->n_finished = m->next = 0;
    memset(m->finished, 0, (size_t)share->n_rows);
    if (m->owes) tell_folded(core, share);
    m->owes = 0;
    for (int r = 0; r < en->context->group.size; r++) atomic_store_explicit(&m->used[r], 0, memory_order_relaxed);
    m->answered++;
    for (int i = 0; i < share->n_members; i++) {
        int r = share->members[i];
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

/* Does for a row what all workers have pulled for. */
static int use_row(hpc_core *core, hpc_share *share, int place) {
    hpc_split_means *m = share->own;
    const hpc_engine *en = core->engine;
    int failed = 0;
    hpc_work *w = &en->work[en->work_of[share->rows[place]]];
    int empty = is_empty(w), applies = m->use == HPC_USE_APPLY && !empty;
    m->finished[place] = 1;
    m->n_finished++;
    if (w->sends_to_rows && !applies) hpc_forward_empty(core, w); /* relays answer this pull as well */
    switch (m->use) {
    case HPC_USE_APPLY:
        if (applies) failed = apply(core, w, hpc_args_of(en, share, share->members[0], 0));
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
    return failed;
}

static int use_next(hpc_core *core, hpc_share *share) {
    hpc_split_means *m = share->own;
    while (m->finished[m->next]) m->next++;
    int failed = use_row(core, share, m->next);
    if (!failed && m->n_finished == share->n_rows) answer_pulls(core, share);
    return failed;
}

/* All workers want the fold applied that is still coming in: each row goes on as soon as it is there, and those that
 * were there before go on now. */
static int applies_ahead(const hpc_share *share) {
    const hpc_split_means *m = share->own;
    return is_pulled(share) && m->use == HPC_USE_APPLY && (int)((share->version + 1) % HPC_SPLIT_FOLDS) == m->folds;
}

static int is_ahead(const hpc_share *share) {
    const hpc_split_means *m = share->own;
    return m->n_finished < m->n_folded && applies_ahead(share);
}

static int use_ahead(hpc_core *core, hpc_share *share) {
    hpc_split_means *m = share->own;
    int place;
    do place = hpc_split_place(share, m->ready[m->n_ahead++]->index);
    while (m->finished[place]);
    return use_row(core, share, place);
}

static int fold_next(hpc_core *core, hpc_share *share) {
    hpc_split_means *m = share->own;
    hpc_work *w = m->ready[m->n_folded++];
    int failed = 0;
    look_at_inputs(core, w);
    if (w->row->action == HPC_FORWARD)
        failed = forward(core, w);
    else if (applies_ahead(share))
        failed = use_row(core, share, hpc_split_place(share, w->index));
    else if (!core->engine->inline_progress)
        failed = fold(core, w);
    if (failed) return failed;
    if (m->n_folded == share->n_rows) {
        answer_folds(core, share);
        if (m->n_finished == share->n_rows) answer_pulls(core, share);
    }
    return 0;
}

int hpc_split_work(hpc_core *core) {
    const worklist *list = core->own;
    if (list->n == 0) return 0;
    hpc_share *share = lowest_work(core);
    const hpc_split_means *m = share->own;
    int failed = 0;
    for (int i = 0; i < SLICE_ROWS && !failed; i++) {
        if (is_folding(m))
            failed = fold_next(core, share);
        else if (is_finishing(share))
            failed = use_next(core, share);
        else if (is_ahead(share))
            failed = use_ahead(core, share);
        else
            break;
    }
    if (failed) return 1;
    if (!is_folding(m) && !is_finishing(share) && !is_ahead(share)) end_work(core, share);
    core->due = list->n > 0 ? 0 : INFINITY;
    return 1;
}

/* ---- the core: events ---- */

static void input_came(hpc_core *core, hpc_work *w, int input, int how) {
    hpc_split_means *m = w->share->own;
    _Atomic char *came = &w->came[input];
    if (hpc_engine_has_failed(core->engine)) return;
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

int hpc_split_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    (void)slot;
    inputs_came(core, share, rank, HPC_CAME);
    return 1;
}

/* A relay has its input: the parameters that an owner sends when all have pulled, or the word that there are none. */
static void relayed_came(hpc_core *core, hpc_work *w, int how) {
    hpc_engine *en = core->engine;
    hpc_share *share = w->share;
    hpc_split_means *m = share->own;
    if (hpc_engine_has_failed(en)) return;
    if (hpc_row_has_too_many(core, w, w->came, 1, w->inputs[0].rank)) return;
    atomic_store_explicit(w->came, (char)how, memory_order_relaxed);
    if (how == HPC_CAME) {
        hpc_row_count_received(core, w, 0);
        hpc_row_pass_on(core, w, 0);
    } else if (w->sends_to_rows) {
        hpc_forward_empty(core, w);
    }
    if (++m->n_finished == share->n_rows) {
        m->n_finished = 0;
        m->answered++;
        for (int i = 0; i < share->n_rows; i++) hpc_row_took(&en->work[en->work_of[share->rows[i]]], 0);
        for (int i = 0; i < share->n_members; i++)
            hpc_share_answer(core, share->members[i], hpc_signal_second(en, (int)(share - en->layout.shares)),
                             m->answered);
    }
}

static void came(hpc_core *core, hpc_work *w, int input, int how) {
    if (w->row->action == HPC_RELAY)
        relayed_came(core, w, how);
    else
        input_came(core, w, input, how);
}

int hpc_split_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    (void)slot;
    came(core, w, input, HPC_CAME);
    return 1;
}

/* A row of another rank has nothing to send to this one. */
static int empty_row_came(hpc_core *core, hpc_work *w, const hpc_event *event) {
    const int input = w == NULL ? -1 : hpc_row_input_of(w, event->peer, 1);
    if (input < 0) return 0;
    if (hpc_core_brings(core, event, "nothing for row", w->row->key, 0)) came(core, w, input, HPC_CAME_EMPTY);
    return 1;
}

/* A worker has no gradient. */
static int empty_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    if (share == NULL || !hpc_feeds_share(core->engine, share, event->peer)) return 0;
    if (hpc_core_brings(core, event, "no gradient of share", share->key, 0))
        inputs_came(core, share, event->peer, HPC_CAME_EMPTY);
    return 1;
}

static void fail_use(const hpc_core *core, const hpc_share *share, int first, int rank, hpc_use use) {
    static const char *const names[] = {"apply", "skip", "gather", "squares"};
    const hpc_split_means *m = share->own;
    char why[2 * HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "%s: rank %d calls %s for key %.64s and rank %d %s: make the same call on all workers",
             names[m->use], first, names[m->use], core->engine->plan->keys[share->key].name, rank, names[use]);
    hpc_engine_fail(core->engine, HPC_ERR_CONFIG, why);
}

static int use_came(hpc_core *core, hpc_share *share, int rank, int asked) {
    hpc_split_means *m = share->own;
    const int use = asked & ((1 << HPC_SPLIT_USE_BITS) - 1), folds = asked >> HPC_SPLIT_USE_BITS;
    if (hpc_engine_has_failed(core->engine)) return 1;
    if (use < HPC_USE_APPLY || use > HPC_USE_SQUARES || !hpc_share_involves(core->engine, share, rank)) return 0;
    if (hpc_split_action(core->engine, share) != HPC_APPLY) return 0;
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
    if (++m->n_used < share->n_members || !pulls_agree(core, share)) return 1;
    share->args_from = share->members[0];
    share->args_slot = 0;
    add_work(core, share);
    return 1;
}

int hpc_split_other_came(hpc_core *core, const hpc_event *event) {
    const int index = hpc_imm_index(event->imm), slot = hpc_imm_slot(event->imm);
    hpc_share *share = hpc_core_share(core, index);
    switch (hpc_imm_operation(event->imm)) {
    case HPC_OP_EMPTY:
        if (slot == HPC_EMPTY_ROW) return empty_row_came(core, hpc_core_row(core, index), event);
        return slot == 0 && empty_came(core, share, event);
    case HPC_OP_USE:
        if (share == NULL) return 0;
        if (!hpc_core_brings(core, event, "the arguments of share", share->key, HPC_ARGS_BYTES)) return 1;
        return use_came(core, share, event->peer, slot);
    default:
        return 0;
    }
}
