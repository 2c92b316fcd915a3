/* The owner's side of a graph whose folds take what is there (ASAP, sections 4 and 6.2).
 *
 * Under NOTIFY-ACK and BSP a row is folded when all its inputs are there, in engine.c like any other. Here a share is
 * folded as a whole when this rank has pushed it and
 *   SSP       every in-neighbour is at most staleness steps behind: its newest update counts, or under another rule
 *             than average every update that has not counted yet. An update is answered once it is not needed any more,
 *             so no slot that may be read is written.
 *   BARRIER   every rank has said that it has sent: a signal that overtakes the data, as a barrier does
 *   ASYNC     at once
 * Under the last two nothing keeps a neighbour from writing its next update over the last one, while it is read or
 * before it was. An update lies between two marks of its version: the sender writes the first, the data, the last; the
 * reader reads the last, copies the data, reads the first. Both equal: when the copy began everything of that version
 * was there, and when it had ended nothing of the next. What is not whole, or has been folded before, is left out, and
 * the weights of the rest are scaled up in its place. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/* One writer; whoever reads needs no order. */
static void add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Cores of one rank count together here. */
static void add_shared(_Atomic uint64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void count_reduce(hpc_core *core, int whole) {
    add(&core->reduces, 1);
    add(&core->whole, (uint64_t)whole);
    add_shared(&core->exchange->inputs_whole[whole], 1);
}

void hpc_graph_count(hpc_core *core, int n) {
    count_reduce(core, n);
}

void hpc_graph_count_received(hpc_exchange *ex, const hpc_share *share, int rank) {
    hpc_count_bytes(ex, ex->peer_received, rank, share->nbytes);
}

/* ---- arrival ---- */

int hpc_graph_share_came(const hpc_exchange *ex, hpc_share *share, int rank) {
    if (hpc_leaves_out(ex) && rank != share->owner) return 0; /* neighbours' come by signals there */
    uint64_t came = atomic_load_explicit(&share->clock[rank], memory_order_relaxed);
    uint64_t gone = rank == share->owner ? share->version : share->consumed[rank];
    if (came - gone >= (uint64_t)ex->depth) return 0; /* more than there are slots */
    atomic_store_explicit(&share->clock[rank], came + 1, memory_order_relaxed);
    return 1;
}

int hpc_graph_row_came(const hpc_exchange *ex, hpc_share *share, int rank) {
    if (hpc_leaves_out(ex) && rank != share->owner) return 0;
    if (++share->rows_done[rank] < share->n_rows) return 1;
    share->rows_done[rank] = 0;
    return hpc_graph_share_came(ex, share, rank);
}

static uint64_t clock_of(const hpc_share *share, int rank) {
    return atomic_load_explicit(&share->clock[rank], memory_order_relaxed);
}

/* ---- whether it is time ---- */

static int all_have_sent(const hpc_exchange *ex, const hpc_share *share, uint64_t n) {
    for (int r = 0; r < ex->context->group.size; r++) {
        int signal = hpc_signal_applied(ex, share->siblings[r]);
        if (r != share->owner && atomic_load_explicit(hpc_own_signal(ex->window, signal), memory_order_acquire) < n)
            return 0;
    }
    return 1;
}

static int is_time(const hpc_exchange *ex, const hpc_share *share) {
    uint64_t n = share->version + 1;
    if (clock_of(share, share->owner) < n) return 0;
    if (ex->consistency == HPC_BARRIER) return all_have_sent(ex, share, n);
    if (ex->consistency == HPC_ASYNC) return 1;
    const hpc_work *w = hpc_first_work(ex, share);
    for (int e = 0; e < w->row->n_in; e++)
        if (clock_of(share, w->inputs[e].rank) + (uint64_t)ex->staleness < n) return 0;
    return 1;
}

/* ---- SSP ---- */

static const char *slot_of(const hpc_exchange *ex, const hpc_input *in, uint64_t n) {
    return in->slots + (size_t)((n - 1) % (uint64_t)ex->depth) * in->stride;
}

/* The inputs of a row: of each neighbour the newest update, or every one that has not counted. */
static hpc_inputs newest_inputs(hpc_core *core, const hpc_share *share, const hpc_work *w) {
    const hpc_exchange *ex = core->exchange;
    double all = 0, present = 0;
    int n = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        uint64_t newest = clock_of(share, in->rank), first = share->used[in->rank] + 1;
        if (in->rank == share->owner) newest = share->version + 1;
        if (in->rank == share->owner || ex->averages) first = newest;
        all += w->weights[e];
        if (newest == 0) continue;
        present += w->weights[e];
        for (uint64_t v = first; v <= newest; v++) {
            core->bases[n] = slot_of(ex, in, v);
            core->base_weights[n++] = w->weights[e];
        }
    }
    for (int i = 0; i < n && ex->averages && present != all; i++) core->base_weights[i] *= all / present;
    return (hpc_inputs){core->bases, core->base_weights, n, w->row->codec_in};
}

/* Counts what became of each neighbour's input, and answers what is not needed any more. */
static void end_newest(hpc_core *core, hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    const hpc_work *w = hpc_first_work(ex, share);
    int whole = 0, signal = hpc_signal_applied(ex, (int)(share - ex->shares));
    for (int e = 0; e < w->row->n_in; e++) {
        int rank = w->inputs[e].rank;
        uint64_t newest = clock_of(share, rank), consumed = newest - (newest > 0 && ex->averages);
        if (rank == share->owner) continue;
        if (newest > share->used[rank])
            hpc_graph_count_received(ex, share, rank), whole++;
        else
            add(newest == 0 ? &core->missing : &core->stale, 1);
        share->used[rank] = newest;
        if (consumed == share->consumed[rank]) continue;
        share->consumed[rank] = consumed;
        hpc_engine_answer(core, rank, signal, consumed);
    }
    count_reduce(core, whole);
}

static int fold_newest(hpc_core *core, hpc_share *share) {
    const hpc_exchange *ex = core->exchange;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        const hpc_inputs inputs = newest_inputs(core, share, w);
        int failed = hpc_engine_fold(core, w, &inputs);
        if (failed) return failed;
    }
    end_newest(core, share);
    return 0;
}

/* ---- BARRIER, ASYNC ---- */

typedef enum found { WHOLE, TORN, STALE, MISSING } found;

/* Its source is written meanwhile by another rank, which is what the marks are for. nbytes is a multiple of 64. */
__attribute__((no_sanitize("thread"))) static void copy_racy(char *to, const char *from, size_t nbytes) {
    for (size_t at = 0; at < nbytes; at += sizeof(uint64_t)) {
        uint64_t word = __atomic_load_n((const uint64_t *)(const void *)(from + at), __ATOMIC_RELAXED);
        memcpy(to + at, &word, sizeof word);
    }
}

__attribute__((no_sanitize("thread"))) static uint64_t version_at(const char *mark) {
    return __atomic_load_n((const uint64_t *)(const void *)mark, __ATOMIC_ACQUIRE);
}

/* One neighbour's input to all rows of a share, into core->scratch: all of one version, or not whole. */
static found read_input(hpc_core *core, hpc_share *share, int input) {
    const hpc_exchange *ex = core->exchange;
    int rank = hpc_first_work(ex, share)->inputs[input].rank;
    uint64_t version = 0;
    char *to = core->scratch;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        const char *slot = w->inputs[input].slots;
        size_t nbytes = hpc_row_bytes(w->row);
        uint64_t last = version_at(slot + sizeof(hpc_mark) + nbytes);
        copy_racy(to, slot + sizeof(hpc_mark), nbytes);
        atomic_thread_fence(memory_order_acquire);
        uint64_t first = version_at(slot);
        if (first != last || (i > 0 && first != version)) return TORN;
        version = first;
        to += nbytes;
    }
    if (version == 0) return MISSING;
    if (version == share->used[rank]) return STALE;
    share->used[rank] = version;
    return WHOLE;
}

/* Adds weight times the update at from, which lies row by row, to core->sum; or begins it. */
static void add_update(hpc_core *core, const hpc_share *share, const char *const *from, double weight, int begins) {
    static const double ones[2] = {1, 1};
    const hpc_exchange *ex = core->exchange;
    float *sum = core->sum;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_row *row = &ex->plan->rows[share->rows[i]];
        size_t item = hpc_codec_bytes(row->codec_in);
        for (size_t at = 0; at < row->count; at += HPC_BLOCK) {
            size_t n = row->count - at < HPC_BLOCK ? row->count - at : HPC_BLOCK;
            const void *in = from[i] + at * item, *both[2] = {sum + at, core->acc};
            ex->fold[row->codec_in](begins ? sum + at : core->acc, &in, &weight, 1, n, 0);
            if (!begins) ex->fold[HPC_F32](sum + at, both, ones, 2, n, 0);
        }
        sum += row->count;
    }
}

static int fold_what_is_there(hpc_core *core, hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    const hpc_work *first = hpc_first_work(ex, share);
    uint64_t n = share->version + 1;
    double all = 0, present = 0;
    int whole = 0;
    for (int step = 0; step <= first->row->n_in; step++) { /* this rank's own first */
        int e = step - 1;
        if (step == 0)
            while (first->inputs[++e].rank != share->owner) {
            }
        else if (first->inputs[e].rank == share->owner)
            continue;
        double weight = hpc_edge_weight(ex, share->key, n, share->owner, first->inputs[e].rank);
        if (weight == 0) continue;
        all += weight;
        found what = step == 0 ? WHOLE : read_input(core, share, e);
        if (what == TORN) add(&core->torn, 1);
        if (what == STALE) add(&core->stale, 1);
        if (what == MISSING) add(&core->missing, 1);
        if (what != WHOLE) continue;
        present += weight;
        const char *at = core->scratch;
        for (int i = 0; i < share->n_rows; i++) {
            const hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
            core->rows_from[i] = step == 0 ? slot_of(ex, &w->inputs[e], n) : at;
            at += hpc_row_bytes(w->row);
        }
        add_update(core, share, core->rows_from, weight, step == 0);
        if (step == 0) continue;
        whole++;
        hpc_graph_count_received(ex, share, first->inputs[e].rank);
    }
    count_reduce(core, whole);
    const double scale = all == present ? 1 : all / present;
    const char *sum = (const char *)core->sum;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        int failed = hpc_engine_fold(core, w, &(hpc_inputs){&sum, &scale, 1, HPC_F32});
        if (failed) return failed;
        sum += w->row->count * sizeof(float);
    }
    return 0;
}

/* ---- work ---- */

int hpc_graph_work(hpc_core *core) {
    hpc_exchange *ex = core->exchange;
    int n = 0;
    core->due = INFINITY;
    for (int i = 0; i < core->n_graph_shares; i++) {
        hpc_share *share = core->graph_shares[i];
        if (hpc_leaves_out(ex)) {
            n += hpc_graph_quorum_work(core, share);
            continue;
        }
        while (is_time(ex, share)) {
            int failed = hpc_is_stamped(ex) ? fold_what_is_there(core, share) : fold_newest(core, share);
            if (failed) return n;
            share->version++;
            hpc_engine_answer(core, share->owner, hpc_signal_applied(ex, (int)(share - ex->shares)), share->version);
            n++;
        }
    }
    return n;
}

/* ---- open ---- */

int hpc_graph_open(hpc_exchange *ex, const hpc_graph *graph, const char *op) {
    size_t size = (size_t)ex->context->group.size, n = (size_t)graph->n_phases * size * size;
    ex->n_phases = graph->n_phases;
    ex->most_inputs = (int)size - 1;
    ex->phase_weights = malloc(n * sizeof *ex->phase_weights);
    ex->inputs_whole = calloc(size, sizeof *ex->inputs_whole);
    ex->marks = aligned_alloc(sizeof(hpc_mark), (size_t)ex->plan->n_keys * sizeof *ex->marks);
    if (ex->phase_weights == NULL || ex->inputs_whole == NULL || ex->marks == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a graph of %zu ranks and %d phases", op, size,
                        graph->n_phases);
    memcpy(ex->phase_weights, graph->weights, n * sizeof *ex->phase_weights);
    memset(ex->marks, 0, (size_t)ex->plan->n_keys * sizeof *ex->marks);
    return HPC_OK;
}

void hpc_graph_free(hpc_exchange *ex) {
    free(ex->phase_weights);
    free(ex->inputs_whole);
    free(ex->marks);
}

static int open_share(hpc_exchange *ex, hpc_share *share, const char *op) {
    size_t size = (size_t)ex->context->group.size;
    share->clock = calloc(size, sizeof *share->clock);
    share->used = calloc(size, sizeof *share->used);
    share->consumed = calloc(size, sizeof *share->consumed);
    share->siblings = malloc(size * sizeof *share->siblings);
    if (share->clock == NULL || share->used == NULL || share->consumed == NULL || share->siblings == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    for (size_t r = 0; r < size; r++) share->siblings[r] = -1;
    for (int s = 0; s < ex->n_shares; s++)
        if (ex->shares[s].key == share->key && ex->shares[s].core == share->core)
            share->siblings[ex->shares[s].owner] = s;
    for (size_t r = 0; r < size; r++)
        if (share->siblings[r] < 0)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: rank %zu owns key %s by other cores: make the plan by hpc_plan_graph", op, r,
                            ex->plan->keys[share->key].name);
    return HPC_OK;
}

int hpc_graph_open_core(hpc_exchange *ex, hpc_core *core, const char *op) {
    size_t most_bytes = 0, most_values = 0, most_rows = 0;
    int n = 0, status = HPC_OK;
    if (!hpc_takes_what_is_there(ex)) return HPC_OK;
    core->graph_shares = malloc((size_t)ex->n_shares * sizeof(hpc_share *));
    if (core->graph_shares == NULL) goto no_memory;
    for (int s = 0; s < ex->n_shares && status == HPC_OK; s++) {
        hpc_share *share = &ex->shares[s];
        size_t nbytes = 0, values = 0;
        if (share->owner != ex->context->group.rank || share->core != core->index) continue;
        core->graph_shares[n++] = share;
        status = open_share(ex, share, op);
        for (int i = 0; i < share->n_rows; i++) {
            nbytes += hpc_row_bytes(&ex->plan->rows[share->rows[i]]);
            values += ex->plan->rows[share->rows[i]].count;
        }
        if (nbytes > most_bytes) most_bytes = nbytes;
        if (values > most_values) most_values = values;
        if ((size_t)share->n_rows > most_rows) most_rows = (size_t)share->n_rows;
    }
    if (status != HPC_OK || !hpc_is_stamped(ex)) goto out;
    core->scratch = malloc(most_bytes + 1);
    core->sum = malloc(most_values * sizeof *core->sum + 1);
    core->rows_from = malloc(most_rows * sizeof *core->rows_from + 1);
    if (core->scratch == NULL || core->sum == NULL || core->rows_from == NULL) goto no_memory;
out:
    core->n_graph_shares = status == HPC_OK ? n : 0;
    return status;
no_memory:
    return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the shares of a core", op);
}
