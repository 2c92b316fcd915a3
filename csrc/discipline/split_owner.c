/* The owner's side of BSP in two calls (see split.c): makes means, and applies, skips, squares or gathers them as pulls
 * ask. With servers a fold has slot 0. Among peers updates of the next fold may come into the next slot while one fold
 * is kept; but this rank's own update ends the kept fold, so the rows that are ready belong to one fold. */
#include <stdio.h>
#include <string.h>

#include "discipline/split_state.h"
#include "engine/owner/signals.h"
#include "engine/args.h"
#include "discipline/clocks.h"
#include "engine/owner/core.h"
#include "engine/owner/forward.h"
#include "engine/owner/mean.h"
#include "engine/pieces.h"
#include "engine/owner/row.h"
#include "engine/layout/stages.h"
#include "engine/owner/write.h"

enum { SLICE_ROWS = 8 }; /* rows between two looks at the events: some 256 KiB */

/* A core's state: the shares that have work, as bits by share number. */
typedef struct worklist {
    uint64_t *words;
    int n;
} worklist;

/* ---- open ---- */

int hpc_split_open_squares(hpc_scheme *sc, const hpc_share *share, hpc_split_means *m, const char *op) {
    m->squares = hpc_scheme_take(sc, (size_t)share->n_rows, sizeof *m->squares, op);
    return m->squares != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

/* With a quorum share->own exists already; the means are its first member. */
static int open_share(hpc_scheme *sc, hpc_share *share, const char *op) {
    const size_t n = (size_t)share->n_rows;
    hpc_split_means *m = share->own = share->own != NULL ? share->own : hpc_scheme_take(sc, 1, sizeof *m, op);
    if (m == NULL) return HPC_ERR_MEMORY;
    m->askers = hpc_split_among_peers(sc) ? &share->owner : share->members;
    m->n_askers = hpc_split_among_peers(sc) ? 1 : share->n_members;
    m->ready = hpc_scheme_take(sc, n, sizeof *m->ready, op);
    m->finished = hpc_scheme_take(sc, n, 1, op);
    m->used = hpc_scheme_take(sc, (size_t)sc->context->group.size, sizeof *m->used, op);
    if (m->ready == NULL || m->finished == NULL || m->used == NULL) return HPC_ERR_MEMORY;
    return hpc_split_open_squares(sc, share, m, op);
}

static int open_core(hpc_scheme *sc, hpc_core *core, const char *op) {
    worklist *list = core->own = hpc_scheme_take(sc, 1, sizeof *list, op);
    const size_t n_words = (size_t)sc->layout.n_shares / 64 + 1;
    if (list != NULL) list->words = hpc_scheme_take(sc, n_words, sizeof *list->words, op);
    return list != NULL && list->words != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

int hpc_split_open_means(hpc_scheme *sc, const char *op) {
    int status = HPC_OK;
    for (int s = 0; s < sc->layout.n_shares && status == HPC_OK; s++)
        if (sc->layout.shares[s].owner == sc->context->group.rank) status = open_share(sc, &sc->layout.shares[s], op);
    return status;
}

void hpc_split_open_relays(const hpc_scheme *sc) {
    for (int s = 0; s < sc->layout.n_shares; s++)
        if (hpc_split_action(sc, &sc->layout.shares[s]) == HPC_RELAY)
            atomic_store_explicit(hpc_own_signal(sc->window, hpc_signal_applied(sc, s)), UINT64_MAX,
                                  memory_order_relaxed);
}

int hpc_split_open_owner(hpc_scheme *sc, const char *op) {
    int status = hpc_split_open_means(sc, op);
    for (int c = 0; c < sc->n_own_cores && status == HPC_OK; c++) status = open_core(sc, &sc->cores[c], op);
    hpc_split_open_relays(sc);
    return status;
}

/* ---- the core: work ---- */

static void add_work(hpc_core *core, hpc_share *share) {
    worklist *list = core->own;
    size_t s = (size_t)(share - core->scheme->layout.shares);
    uint64_t bit = (uint64_t)1 << s % 64;
    list->n += !(list->words[s / 64] & bit);
    list->words[s / 64] |= bit;
}

static void end_work(const hpc_core *core, const hpc_share *share) {
    worklist *list = core->own;
    size_t s = (size_t)(share - core->scheme->layout.shares);
    list->words[s / 64] &= ~((uint64_t)1 << s % 64);
    list->n--;
}

static hpc_share *lowest_work(const hpc_core *core) {
    const worklist *list = core->own;
    size_t w = 0;
    while (list->words[w] == 0) w++;
    return &core->scheme->layout.shares[w * 64 + (size_t)__builtin_ctzll(list->words[w])];
}

static hpc_work *work_at(const hpc_scheme *sc, const hpc_share *share, int place) {
    return hpc_work_of(sc, share->rows[place]);
}

/* Returns the slot of the present fold. */
static int slot_of(const hpc_work *w) {
    return ((const hpc_split_means *)w->share->own)->slot;
}

/* Returns the inputs that came with bytes. An input without bytes counts as zeros: the other weights do not change. */
static hpc_inputs present_inputs(hpc_core *core, const hpc_work *w) {
    const hpc_split *its = core->scheme->own;
    if (its->inputs != NULL) return its->inputs(core, w);
    hpc_inputs inputs = hpc_row_present(core, w, slot_of(w));
    inputs.args = w->args[0];
    return inputs;
}

/* Returns whether no worker has a gradient for a row. */
static int is_empty(hpc_core *core, const hpc_work *w) {
    const hpc_split *its = core->scheme->own;
    if (hpc_split_keeps_means(core->scheme)) return w->mean == NULL;
    if (its->inputs != NULL) return its->inputs(core, w).n == 0;
    int e = 0;
    while (e < w->row->n_in && !hpc_row_brings(w, slot_of(w), e)) e++;
    return e == w->row->n_in;
}

/* Returns whether the mean of a row is computed only when a pull asks for it, from the inputs in their slots. */
static int keeps_inputs(const hpc_core *core, const hpc_work *w) {
    return core->scheme->discipline->traits & HPC_KEEPS_INPUTS || hpc_row_keeps_inputs(w);
}

/* Makes the mean of a row's inputs. Returns nonzero if a user's kernel has failed. */
static int fold_inputs(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares) {
    const hpc_split_means *m = w->share->own;
    *squares = m->squared || inputs->n == 0 ? 0 : HPC_SPLIT_UNKNOWN;
    if (inputs->n == 0 || (keeps_inputs(core, w) && !m->squared)) return 0;
    if (keeps_inputs(core, w)) return hpc_row_read_kept(core, w, inputs, NULL, squares);
    return hpc_row_fold(core, w, inputs, m->squared ? squares : NULL);
}

static int fold(hpc_core *core, hpc_work *w, double *squares) {
    const hpc_inputs inputs = present_inputs(core, w);
    return fold_inputs(core, w, &inputs, squares);
}

static void look_at_inputs(const hpc_core *core, hpc_work *w, double *squares) {
    hpc_row_count_present(core, w, slot_of(w));
    w->mean = NULL;
    *squares = HPC_SPLIT_UNKNOWN;
}

int hpc_split_begin_row(hpc_core *core, hpc_work *w, double *squares) {
    w->mean = NULL;
    *squares = HPC_SPLIT_UNKNOWN;
    return core->scheme->inline_progress ? 0 : fold(core, w, squares);
}

/* Ends the last fold: its inputs are not read any more. Among peers it answers the peers, so their slots are free. */
static void end_fold(hpc_core *core, hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    hpc_split_means *m = share->own;
    const uint64_t n = share->version;
    m->kept = 0;
    if (hpc_split_keeps_means(sc)) return;
    for (int i = 0; i < share->n_rows; i++) hpc_row_took(work_at(sc, share, i), m->slot);
    m->slot = m->slot + 1 == sc->layout.depth ? 0 : m->slot + 1;
    if (!hpc_split_among_peers(sc)) return;
    atomic_store_explicit(&m->n_over, n, memory_order_release);
    for (int i = 0; i < share->n_members; i++)
        if (share->members[i] != share->owner)
            hpc_share_answer(core, share->members[i], hpc_signal_applied(sc, (int)(share - sc->layout.shares)), n);
    hpc_bell_ring(sc->context->group.bell); /* this rank's own wait for a slot */
}

void hpc_split_drop(hpc_scheme *sc, hpc_share *share) {
    hpc_core *core = &sc->cores[share->core];
    hpc_core_pause(core);
    if (((const hpc_split_means *)share->own)->kept) end_fold(core, share);
    hpc_core_resume(core);
}

static void tell_folded(hpc_core *core, const hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    const hpc_split_means *m = share->own;
    for (int i = 0; i < m->n_askers; i++)
        hpc_share_answer(core, m->askers[i], hpc_signal_applied(sc, (int)(share - sc->layout.shares)), share->version);
}

static int is_folding(const hpc_split_means *m) {
    return m->n_folded < m->n_ready;
}

/* Returns whether all workers have pulled. Shares that forward get no pulls. */
static int is_pulled(const hpc_share *share) {
    const hpc_split_means *m = share->own;
    return m->n_used > 0 && m->n_used == m->n_askers;
}

/* Returns whether the fold to which the pulls refer is complete. A pull may overtake updates that come through other
 * rows. */
static int is_finishing(const hpc_share *share) {
    const hpc_split_means *m = share->own;
    return is_pulled(share) && m->n_ready == 0 && (int)(share->version % HPC_SPLIT_FOLDS) == m->folds;
}

/* Answers the workers' folds: at once or, if all workers have pulled already, together with their pulls. */
static void answer_folds(hpc_core *core, hpc_share *share) {
    hpc_split_means *m = share->own;
    share->version++;
    m->n_ready = m->n_folded = m->n_ahead = 0;
    m->kept = hpc_split_action(core->scheme, share) == HPC_APPLY;
    m->owes = is_finishing(share);
    if (!m->owes) tell_folded(core, share);
}

/* Sends the fold of a row on to the next stage, or an empty event if no worker has a gradient. */
static int forward(hpc_core *core, hpc_work *w) {
    const hpc_inputs inputs = present_inputs(core, w);
    if (inputs.n > 0) return hpc_row_work(core, w, &inputs);
    hpc_forward_empty(core, w);
    return 0;
}

void hpc_split_fail_scale(hpc_scheme *sc, const hpc_share *share, const int ranks[2], const double scales[2]) {
    char why[2 * HPC_FAILURE_BYTES];
    snprintf(why, sizeof why,
             "apply: rank %d gives scale %.9g for key %.64s and rank %d %.9g: give the same on all workers", ranks[0],
             scales[0], sc->plan->keys[share->key].name, ranks[1], scales[1]);
    hpc_scheme_fail(sc, HPC_ERR_CONFIG, why);
}

/* Returns whether all workers' pulls have the same scale and arguments; if not, the exchange fails. */
static int pulls_agree(hpc_core *core, const hpc_share *share) {
    hpc_scheme *sc = core->scheme;
    const hpc_split_means *m = share->own;
    const int first = m->askers[0];
    const double scale = *hpc_args_of(sc, share, first, 0);
    if (hpc_split_among_peers(sc)) return 1;
    for (int i = 1; i < m->n_askers; i++) {
        const double theirs = *hpc_args_of(sc, share, m->askers[i], 0);
        if (hpc_split_scales_agree(theirs, scale)) continue;
        hpc_split_fail_scale(sc, share, (const int[]){first, m->askers[i]}, (const double[]){scale, theirs});
        return 0;
    }
    return hpc_args_agree(core, hpc_first_work(sc, share), 0, -1,
                          share->version + ((int)(share->version % HPC_SPLIT_FOLDS) != m->folds));
}

static void answer_pulls(hpc_core *core, hpc_share *share) {
    hpc_scheme *sc = core->scheme;
    const hpc_split *its = sc->own;
    hpc_split_means *m = share->own;
    int s = (int)(share - sc->layout.shares), signal = hpc_signal_second(sc, s);
    size_t nbytes = m->use == HPC_USE_SQUARES ? (size_t)share->n_rows * sizeof *m->squares : 0;
    m->n_used = m->n_finished = m->next = 0;
    memset(m->finished, 0, (size_t)share->n_rows);
    if (m->use == HPC_USE_APPLY || m->use == HPC_USE_SKIP) end_fold(core, share);
    if (m->owes) tell_folded(core, share);
    m->owes = 0;
    for (int r = 0; r < sc->context->group.size; r++) atomic_store_explicit(&m->used[r], 0, memory_order_relaxed);
    m->answered++;
    for (int i = 0; i < m->n_askers; i++) {
        int r = m->askers[i];
        size_t at = nbytes > 0 ? sc->layout.places[r].own + its->squares_at[s] : 0;
        hpc_share_answer_with(core, r, nbytes > 0 ? m->squares : NULL, nbytes, at, signal, m->answered);
    }
}

static int apply(hpc_core *core, hpc_work *w, hpc_receivers to, const double *args, double *squares) {
    if (keeps_inputs(core, w) || (w->mean == NULL && args[0] == 1)) {
        hpc_inputs inputs = present_inputs(core, w);
        inputs.args = args;
        inputs.to = to;
        return hpc_row_apply_kept(core, w, &inputs, args[0]);
    }
    int failed = w->mean == NULL ? fold(core, w, squares) : 0;
    return failed ? failed : hpc_row_apply(core, w, to, args);
}

static int find_squares(hpc_core *core, hpc_work *w, double *squares) {
    ((hpc_split_means *)w->share->own)->squared = 1;
    if (hpc_split_keeps_means(core->scheme) && w->mean == NULL) return 0; /* no worker had a gradient */
    if (keeps_inputs(core, w) ? *squares == HPC_SPLIT_UNKNOWN : w->mean == NULL) return fold(core, w, squares);
    if (*squares == HPC_SPLIT_UNKNOWN) *squares = hpc_row_squares(core, w);
    return 0;
}

static int gather(hpc_core *core, hpc_work *w, int sender, double *squares, int empty) {
    int failed = 0;
    if (w->mean == NULL && keeps_inputs(core, w)) {
        const hpc_inputs inputs = present_inputs(core, w);
        failed = hpc_row_keep_mean(core, w, &inputs);
    } else if (w->mean == NULL) {
        failed = fold(core, w, squares);
    }
    if (!failed) hpc_row_gather(core, w, sender, empty && !keeps_inputs(core, w));
    return failed;
}

/* Among peers: copies the mean for this rank's worker, the only one that gets it. */
static int gather_here(hpc_core *core, hpc_work *w, int empty) {
    float *to = core->scheme->gathered[w->row->key] + w->row->offset;
    const size_t nbytes = (size_t)w->row->count * sizeof *to;
    if (!empty && !hpc_split_keeps_means(core->scheme)) {
        const hpc_inputs inputs = present_inputs(core, w);
        return hpc_row_read_kept(core, w, &inputs, to, NULL);
    }
    if (empty)
        memset(to, 0, nbytes);
    else
        memcpy(to, w->mean, nbytes);
    return 0;
}

int hpc_split_use_row(hpc_core *core, hpc_work *w, hpc_use use, int sender, const double *args, double *squares) {
    const int empty = is_empty(core, w);
    const hpc_receivers to = {.whom = sender == HPC_EVERYBODY ? HPC_TO_ALL : HPC_TO_GROUP, .rank = sender};
    if (use != HPC_USE_APPLY || empty) hpc_forward_row(core, w, HPC_KEPT_EMPTY, sender); /* relays answer as well */
    switch (use) {
    case HPC_USE_APPLY:
        return empty ? 0 : apply(core, w, to, args, squares);
    case HPC_USE_SKIP:
        return 0;
    case HPC_USE_SQUARES:
        return find_squares(core, w, squares);
    case HPC_USE_GATHER:
        return hpc_split_among_peers(core->scheme) ? gather_here(core, w, empty)
                                                   : gather(core, w, sender, squares, empty);
    }
    return 0;
}

/* Carries out the pulls for one row. */
static int use_row(hpc_core *core, hpc_share *share, int place) {
    hpc_split_means *m = share->own;
    m->finished[place] = 1;
    m->n_finished++;
    return hpc_split_use_row(core, work_at(core->scheme, share, place), m->use, HPC_EVERYBODY,
                             hpc_args_of(core->scheme, share, m->askers[0], 0), &m->squares[place]);
}

static int use_next(hpc_core *core, hpc_share *share) {
    hpc_split_means *m = share->own;
    while (m->finished[m->next]) m->next++;
    int failed = use_row(core, share, m->next);
    if (!failed && m->n_finished == share->n_rows) answer_pulls(core, share);
    return failed;
}

/* Returns whether all workers have asked to apply a fold of which inputs are still missing. Then each row is applied as
 * soon as its inputs have come; rows that are complete are applied now. */
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
    do place = m->ready[m->n_ahead++];
    while (m->finished[place]);
    return use_row(core, share, place);
}

static int fold_next(hpc_core *core, hpc_share *share) {
    hpc_split_means *m = share->own;
    const int place = m->ready[m->n_folded++];
    hpc_work *w = work_at(core->scheme, share, place);
    int failed = 0;
    look_at_inputs(core, w, &m->squares[place]);
    if (w->row->action == HPC_FORWARD) {
        failed = forward(core, w);
        hpc_row_took(w, 0);
    } else if (applies_ahead(share)) {
        failed = use_row(core, share, place);
    } else if (!core->scheme->inline_progress) {
        failed = fold(core, w, &m->squares[place]);
    }
    if (failed) return failed;
    if (m->n_folded == share->n_rows) {
        answer_folds(core, share);
        if (m->n_finished == share->n_rows) answer_pulls(core, share);
    }
    return 0;
}

static void use_kept(hpc_core *core, hpc_share *share) {
    int failed = 0;
    while (is_finishing(share) && !failed) failed = use_next(core, share);
}

void hpc_split_keep(hpc_core *core, hpc_share *share) {
    ((hpc_split_means *)share->own)->kept = 1;
    use_kept(core, share);
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

/* Returns the place of a row in its share, whose rows are in rising order. */
static int place_of(const hpc_share *share, int row) {
    int low = 0, high = share->n_rows - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (share->rows[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Counts an input. A push replaces the fold before it: with servers any worker's push, among peers this rank's own. */
static void input_came(hpc_core *core, hpc_work *w, int slot, int input, int how) {
    hpc_split_means *m = w->share->own;
    const int rank = w->inputs[input].rank;
    if (hpc_scheme_has_failed(core->scheme)) return;
    if (m->kept && (rank == w->share->owner || !hpc_split_among_peers(core->scheme))) end_fold(core, w->share);
    if (!hpc_row_count_as(core, w, slot, input, w->inputs[input].empty ? HPC_CAME_EMPTY : how)) return;
    m->ready[m->n_ready++] = place_of(w->share, w->index);
    add_work(core, w->share);
}

void hpc_split_relayed_came(hpc_core *core, hpc_work *w, int how) {
    hpc_scheme *sc = core->scheme;
    hpc_share *share = w->share;
    hpc_split_means *m = share->own;
    if (hpc_scheme_has_failed(sc)) return;
    if (hpc_row_has_too_many(core, w, 0, 0)) return;
    hpc_row_mark(w, 0, 0, how);
    if (how == HPC_CAME) {
        hpc_row_count_received(core, w, 0);
        hpc_row_pass_on(core, w, 0);
    } else {
        hpc_forward_empty(core, w);
    }
    if (++m->n_finished == share->n_rows) {
        m->n_finished = 0;
        m->answered++;
        for (int i = 0; i < share->n_rows; i++) hpc_row_took(hpc_work_of(sc, share->rows[i]), 0);
        for (int i = 0; i < share->n_members; i++)
            hpc_share_answer(core, share->members[i], hpc_signal_second(sc, (int)(share - sc->layout.shares)),
                             m->answered);
    }
}

static void came(hpc_core *core, hpc_work *w, int slot, int input, int how) {
    if (w->row->action == HPC_RELAY)
        hpc_split_relayed_came(core, w, how);
    else
        input_came(core, w, slot, input, how);
}

int hpc_split_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    came(core, w, slot, input, HPC_CAME);
    return 1;
}

static void nothing_came(hpc_core *core, hpc_work *w, int slot, int input) {
    came(core, w, slot, input, HPC_CAME_EMPTY);
}

int hpc_split_keep_row(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    hpc_inputs its = *inputs;
    its.args = w->args[0];
    w->mean = NULL;
    return fold_inputs(core, w, &its, &((hpc_split_means *)w->share->own)->squares[place_of(w->share, w->index)]);
}

void hpc_split_fail_use(hpc_scheme *sc, const hpc_share *share, const int ranks[2], const hpc_use uses[2]) {
    static const char *const names[] = {"apply", "skip", "gather", "squares"};
    const char *first = names[uses[0]];
    char why[2 * HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "%s: rank %d calls %s for key %.64s and rank %d %s: make the same call on all workers",
             first, ranks[0], first, sc->plan->keys[share->key].name, ranks[1], names[uses[1]]);
    hpc_scheme_fail(sc, HPC_ERR_CONFIG, why);
}

static int use_came(hpc_core *core, hpc_share *share, int rank, int asked) {
    hpc_split_means *m = share->own;
    const int use = asked & ((1 << HPC_SPLIT_USE_BITS) - 1), folds = asked >> HPC_SPLIT_USE_BITS;
    if (hpc_scheme_has_failed(core->scheme)) return 1;
    if (use < HPC_USE_APPLY || use > HPC_USE_SQUARES || !hpc_share_involves(core->scheme, share, rank)) return 0;
    if (hpc_split_among_peers(core->scheme) && rank != share->owner) return 0;
    if (hpc_split_action(core->scheme, share) != HPC_APPLY) return 0;
    if (atomic_load_explicit(&m->used[rank], memory_order_relaxed)) return 0;
    if (m->n_used == 0) m->use = (hpc_use)use, m->folds = folds;
    if (m->folds != folds) return 0;
    if (m->use != (hpc_use)use) {
        int other = 0;
        while (!atomic_load_explicit(&m->used[other], memory_order_relaxed)) other++;
        hpc_split_fail_use(core->scheme, share, (const int[]){other, rank}, (const hpc_use[]){m->use, (hpc_use)use});
        return 1;
    }
    atomic_store_explicit(&m->used[rank], 1, memory_order_relaxed);
    if (++m->n_used < m->n_askers || !pulls_agree(core, share)) return 1;
    hpc_args_note(share, m->askers[0], 0);
    (hpc_split_keeps_means(core->scheme) ? use_kept : add_work)(core, share);
    return 1;
}

int hpc_split_other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    if (hpc_imm_operation(event->imm) != HPC_OP_USE) return hpc_core_empty_came(core, share, event, nothing_came);
    if (share == NULL) return 0;
    if (!hpc_core_brings(core, event, "the arguments of share", share->key, HPC_ARGS_BYTES)) return 1;
    return use_came(core, share, event->peer, hpc_imm_slot(event->imm));
}
