/* The owner's side of an exchange: cores that own rows for life and share nothing with each other.
 *
 * A core takes events from its lane. An input that has come is counted; when a row has its quorum it is worked off at
 * once, while other rows' inputs still arrive (PHub's tall aggregation, section 3.2.2): block by block the inputs are
 * folded, the rule is applied and the new parameters are written to every worker, all while the block is in the first
 * caches, so memory sees each gradient, state and parameter once. When the last row of a share is done its workers get
 * their answer: a signal behind the data.
 *
 * A core never waits. What cannot go on (a forward to a full ring, a pull while an earlier one is on its way) is kept
 * for the rank that it is for, and tried again at the next call: a rank that stands still delays only itself. */
#define _GNU_SOURCE
#include "engine/engine.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"

static const char op_engine[] = "exchange";

/* ---- failure ---- */

/* Whoever works for the engine tells the other ranks: its thread, or the wait that ran the task. */
void hpc_exchange_fail(hpc_exchange *ex, int status, const char *why) {
    if (atomic_exchange_explicit(&ex->failing, 1, memory_order_relaxed)) return;
    snprintf(ex->failure, sizeof ex->failure, "%s", why);
    atomic_store_explicit(&ex->failed, status, memory_order_release);
    hpc_bell_ring(ex->context->group.bell);
}

static void fail_kernel(hpc_core *core, const hpc_work *w, const char *what, int returned) {
    char why[HPC_FAILURE_BYTES];
    const hpc_exchange *ex = core->exchange;
    snprintf(why, sizeof why, "rank %d: the %s of rule \"%s\" returned %d on key %s, elements %llu to %llu, step %llu",
             ex->context->group.rank, what, ex->rule_name, returned, ex->plan->keys[w->row->key].name,
             (unsigned long long)w->row->offset, (unsigned long long)(w->row->offset + w->row->count - 1),
             (unsigned long long)w->step);
    hpc_exchange_fail(core->exchange, HPC_ERR_INVALID, why);
}

void hpc_engine_check_put(hpc_core *core, int status) {
    if (status == HPC_OK || status == HPC_ERR_PEER) return;
    if (hpc_group_usable(&core->exchange->context->group, op_engine) != HPC_OK) return; /* closed meanwhile */
    hpc_exchange_fail(core->exchange, status, hpc_last_error()->message);
}

/* One writer; whoever reads needs no order. */
static void count(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* ---- one block ---- */

/* The inputs of a row in a slot. only: one of them alone, or -1 for all that the graph of the row's next step has. */
static hpc_inputs inputs_of(hpc_core *core, const hpc_work *w, int slot, int only) {
    const hpc_exchange *ex = core->exchange;
    int first = only < 0 ? 0 : only, last = only < 0 ? w->row->n_in : only + 1, n = 0;
    for (int i = first; i < last; i++) {
        const hpc_input *in = &w->inputs[i];
        double weight =
            ex->n_phases > 1 ? hpc_edge_weight(ex, w->row->key, w->folded + 1, w->row->owner, in->rank) : w->weights[i];
        if (ex->n_phases > 1 && weight == 0) continue;
        core->bases[n] = in->slots + (size_t)slot * in->stride;
        core->base_weights[n++] = weight;
    }
    return (hpc_inputs){core->bases, core->base_weights, n, w->row->codec_in};
}

/* The folded block: in out, or where its only input lies. NULL when a user's fold has failed. */
static const float *fold_block(hpc_core *core, const hpc_work *w, const hpc_inputs *inputs, float *out, int stream,
                               const double *args, size_t from, size_t n) {
    const hpc_exchange *ex = core->exchange;
    size_t item = hpc_codec_bytes(inputs->codec);
    for (int i = 0; i < inputs->n; i++) core->folding[i] = inputs->bases[i] + from * item;
    if (ex->rule.fold != NULL) {
        memset(out, 0, n * sizeof(float));
        for (int i = 0; i < inputs->n; i++) {
            int returned =
                ex->rule.fold(out, (int64_t)n, core->folding[i], (int64_t)(n * item), inputs->weights[i], args);
            if (returned != 0) {
                fail_kernel(core, w, "fold", returned);
                return NULL;
            }
        }
        return out;
    }
    if (inputs->n == 1 && inputs->weights[0] == 1 && inputs->codec == HPC_F32) return core->folding[0];
    ex->fold[inputs->codec](out, core->folding, inputs->weights, inputs->n, n, stream);
    return out;
}

/* The rule's arguments for the next step of a row: those of the lowest worker, or under ASYNC of whom the update is. */
static void next_args(const hpc_core *core, const hpc_work *w, int rank, double *args) {
    memcpy(args, core->args[rank], sizeof core->args[rank]);
    args[0] = (double)(w->step + 1);
}

/* Adds an input to the row's accumulator; nonzero when a user's fold has failed. */
static int fold_eagerly(hpc_core *core, hpc_work *w, int slot, int input) {
    static const double ones[2] = {1, 1};
    const hpc_exchange *ex = core->exchange;
    double args[HPC_RULE_ARGS];
    next_args(core, w, ex->lowest, args);
    const hpc_inputs alone = inputs_of(core, w, slot, input);
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        size_t n = w->row->count - from < HPC_BLOCK ? w->row->count - from : HPC_BLOCK;
        const float *block = fold_block(core, w, &alone, core->acc, 0, args, from, n);
        if (block == NULL) return -1;
        const void *sum[2] = {w->acc + from, block};
        if (w->arrived[slot] == 0)
            memcpy(w->acc + from, block, n * sizeof(float));
        else
            ex->fold[HPC_F32](w->acc + from, sum, ones, 2, n, 0);
    }
    return 0;
}

static int apply_block(hpc_core *core, const hpc_work *w, const float *block, int count, const double *args,
                       size_t from, size_t n) {
    const hpc_exchange *ex = core->exchange;
    if (w->row->action == HPC_EMIT) {
        memcpy(w->param + from, block, n * sizeof(float));
        return HPC_OK;
    }
    int returned =
        ex->rule.apply(w->param + from, block, count, w->state + from * (size_t)ex->rule.slots, args, (int64_t)n);
    if (returned != 0) fail_kernel(core, w, "apply", returned);
    return returned;
}

/* Whether a row's parameters go to an output. to: that rank alone, HPC_OF_FOLD or HPC_EVERYBODY. */
static int goes_to(const hpc_work *w, const hpc_output *out, int to) {
    const hpc_arrivals *arrivals = w->share->arrivals;
    if (to >= 0) return out->rank == to;
    return to == HPC_EVERYBODY || arrivals == NULL || arrivals->takes[out->rank];
}

/* To workers whose memory is mapped here; the others get the whole row by put. */
static void write_block(hpc_core *core, const hpc_work *w, int to, size_t from, size_t n) {
    const hpc_exchange *ex = core->exchange;
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->params == NULL || !goes_to(w, out, to)) continue;
        ex->kernels->copy(out->params + from, w->param + from, n * sizeof(float), ex->stream);
        count(&core->bytes_written, n * sizeof(float));
    }
}

static void put_row(hpc_core *core, const hpc_work *w, int to) {
    hpc_exchange *ex = core->exchange;
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->params != NULL || !goes_to(w, out, to)) continue;
        size_t nbytes = (size_t)w->row->count * sizeof(float);
        const float *from = out->copy == NULL ? w->param : memcpy(out->copy, w->param, nbytes);
        hpc_engine_check_put(core, hpc_put(core->out, ex->window, out->rank, from, nbytes, out->offset));
        count(&core->bytes_written, nbytes);
    }
}

/* ---- one row ---- */

void hpc_engine_send(hpc_core *core, const hpc_work *w, int to) {
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK)
        write_block(core, w, to, from, w->row->count - from < HPC_BLOCK ? w->row->count - from : HPC_BLOCK);
    put_row(core, w, to);
}

/* Fold, rule and write of a whole row by ex->pass. */
static int pass_row(hpc_core *core, const hpc_work *w, const hpc_inputs *inputs, const double *args) {
    const hpc_exchange *ex = core->exchange;
    const hpc_row *row = w->row;
    int n_out = 0;
    for (size_t from = 0; from < row->count; from += HPC_BLOCK) { /* the state lies block by block */
        size_t n = row->count - from < HPC_BLOCK ? row->count - from : HPC_BLOCK;
        for (int i = 0; i < inputs->n; i++) core->folding[i] = inputs->bases[i] + from * sizeof(float);
        n_out = 0;
        for (int o = 0; o < w->n_outputs; o++)
            if (goes_to(w, &w->outputs[o], HPC_OF_FOLD)) core->writing[n_out++] = w->outputs[o].params + from;
        const hpc_pass pass = {
            .param = w->param + from,
            .in = (const float *const *)core->folding,
            .weights = inputs->weights,
            .n_in = inputs->n,
            .out = core->writing,
            .n_out = n_out,
            .state = w->state + from * (size_t)ex->rule.slots,
            .args = args,
            .n = (int64_t)n,
            .stream = ex->stream,
        };
        int returned = ex->pass(&pass);
        if (returned == 0) continue;
        fail_kernel(core, w, "apply", returned);
        return returned;
    }
#if defined(__x86_64__)
    if (ex->stream) __builtin_ia32_sfence(); /* streamed stores come before the answer */
#endif
    count(&core->bytes_written, row->count * sizeof(float) * (size_t)n_out);
    return 0;
}

/* The same one after the other, block by block. An average is folded where it belongs. */
static int work_blocks(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    const hpc_exchange *ex = core->exchange;
    const hpc_row *row = w->row;
    int in_place = ex->averages && row->action == HPC_APPLY && !ex->eager, stream = ex->stream && w->n_outputs == 0;
    for (size_t from = 0; from < row->count; from += HPC_BLOCK) {
        size_t n = row->count - from < HPC_BLOCK ? row->count - from : HPC_BLOCK;
        float *out = in_place ? w->param + from : core->acc;
        const float *block = ex->eager && row->quorum == row->n_in
                                 ? w->acc + from
                                 : fold_block(core, w, inputs, out, in_place && stream, args, from, n);
        if (block == NULL) return -1;
        if (row->action == HPC_FORWARD) {
            if (block != w->acc + from) memcpy(w->acc + from, block, n * sizeof(float));
            continue;
        }
        if (block != w->param + from && apply_block(core, w, block, inputs->n, args, from, n) != 0) return -1;
        if (ex->consistency == HPC_BSP) write_block(core, w, HPC_OF_FOLD, from, n);
    }
    return 0;
}

static void count_fold(hpc_core *core, const hpc_work *w, int n_inputs) {
    count(&core->applied, 1);
    count(&core->bytes_folded, w->row->count * hpc_codec_bytes(w->row->codec_in) * (size_t)n_inputs);
}

/* Of servers' rows that wait for all their inputs, or take each as it comes (only): elsewhere shares are counted. */
static void count_inputs(const hpc_core *core, const hpc_work *w, int only) {
    hpc_exchange *ex = core->exchange;
    int first = only < 0 ? 0 : only, last = only < 0 ? w->row->n_in : only + 1;
    size_t nbytes = (size_t)w->row->count * hpc_codec_bytes(w->row->codec_in);
    for (int i = first; i < last; i++) hpc_count_bytes(ex, ex->peer_received, w->inputs[i].rank, nbytes);
}

/* Where models rotate: the average of the update in a slot goes into the next one. Nobody reads that any more, as the
 * push of the update has waited for the answers to what was in it. */
static void turn(const hpc_exchange *ex, hpc_work *w, uint64_t slot) {
    if (!ex->rotates) return;
    char *at = hpc_own_part(ex) + hpc_params_at(ex, w->row->owner, w->row->key, slot + 1);
    w->param = (float *)(void *)at + w->row->offset;
}

int hpc_engine_fold(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    const hpc_exchange *ex = core->exchange;
    double args[HPC_RULE_ARGS];
    HPC_SPAN_OF_ROW(ex->context->group.timeline, ex->plan->keys[w->row->key].name, w->row->count * sizeof(float));
    next_args(core, w, ex->n_phases > 0 ? ex->context->group.rank : ex->lowest, args);
    turn(ex, w, w->share->version);
    w->step++;
    int failed = w->passes ? pass_row(core, w, inputs, args) : work_blocks(core, w, inputs, args);
    if (failed) return failed;
    if (hpc_has_quorum(ex)) put_row(core, w, HPC_OF_FOLD);
    count_fold(core, w, inputs->n);
    return 0;
}

/* A row whose inputs are there. only: under ASYNC the input that has come, else -1. Nonzero when a user's kernel has
 * failed. */
static int work_off(hpc_core *core, hpc_work *w, int slot, int only) {
    const hpc_exchange *ex = core->exchange;
    const hpc_row *row = w->row;
    const hpc_inputs inputs = inputs_of(core, w, slot, only);
    double args[HPC_RULE_ARGS];
    HPC_SPAN_OF_ROW(ex->context->group.timeline, ex->plan->keys[row->key].name, row->count * sizeof(float));
    next_args(core, w, only >= 0 ? w->inputs[only].rank : ex->n_phases > 0 ? row->owner : ex->lowest, args);
    turn(ex, w, (uint64_t)slot);
    w->step++;
    w->folded++;
    int failed = w->passes ? pass_row(core, w, &inputs, args) : work_blocks(core, w, &inputs, args);
    if (failed) return failed;
    if (row->action == HPC_FORWARD)
        hpc_forward_row(core, w, slot);
    else if (ex->consistency == HPC_BSP)
        put_row(core, w, HPC_OF_FOLD);
    count_fold(core, w, inputs.n);
    if (ex->n_phases == 0) count_inputs(core, w, only);
    return 0;
}

/* ---- answers ---- */

void hpc_engine_answer_with(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset, int signal,
                            uint64_t value) {
    if (atomic_load_explicit(&core->exchange->failing, memory_order_relaxed)) return;
    hpc_engine_check_put(core,
                         hpc_put_signal(core->out, core->exchange->window, rank, src, nbytes, offset, signal, value));
}

void hpc_engine_answer(hpc_core *core, int rank, int signal, uint64_t value) {
    hpc_engine_answer_with(core, rank, NULL, 0, 0, signal, value);
}

/* On a graph: what came from the neighbours of the step that has just been folded. */
static void count_neighbours(hpc_core *core, const hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    const hpc_row *row = &ex->plan->rows[share->rows[0]];
    int n = 0;
    for (int e = 0; e < row->n_in; e++) {
        int rank = row->in[e].rank;
        if (rank == row->owner || !hpc_sends(ex, share->key, share->version, row->owner, rank)) continue;
        hpc_graph_count_received(ex, share, rank);
        n++;
    }
    hpc_graph_count(core, n);
}

/* Everybody who is at either end of the share: its inputs have been read, its outputs are written. On a graph under
 * NOTIFY-ACK: whoever has sent something this time. */
static void answer_all(hpc_core *core, hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    int signal = hpc_signal_applied(ex, (int)(share - ex->shares));
    share->version++;
    share->left = share->n_rows;
    if (ex->n_phases > 0) count_neighbours(core, share);
    for (int i = 0; i < share->n_parts; i++)
        if (ex->n_phases <= 1 || ex->consistency == HPC_BSP ||
            hpc_sends(ex, share->key, share->version, share->owner, share->parts[i]))
            hpc_engine_answer(core, share->parts[i], signal, share->version);
}

static void row_is_done(hpc_core *core, hpc_share *share, int from) {
    hpc_exchange *ex = core->exchange;
    if (ex->consistency != HPC_ASYNC) {
        if (--share->left == 0) answer_all(core, share);
        return;
    }
    if (++share->rows_done[from] < share->n_rows) return;
    share->rows_done[from] = 0;
    hpc_engine_answer(core, from, hpc_signal_applied(ex, (int)(share - ex->shares)), ++share->applied[from]);
}

/* ---- events ---- */

/* On a graph that changes, inputs of each rank are counted apart: one of a later step may come before those of this
 * one, of ranks that send nothing in between. Those of one rank come in turn, so each is of the next step that has it.
 */
static int has_inputs(const hpc_exchange *ex, const hpc_work *w, uint64_t n) {
    for (int e = 0; e < w->row->n_in; e++)
        if (hpc_sends(ex, w->row->key, n, w->row->owner, w->inputs[e].rank) &&
            atomic_load_explicit(&w->came[e], memory_order_relaxed) == 0)
            return 0;
    return 1;
}

static void take_inputs(const hpc_exchange *ex, const hpc_work *w, uint64_t n) {
    for (int e = 0; e < w->row->n_in; e++)
        if (hpc_sends(ex, w->row->key, n, w->row->owner, w->inputs[e].rank))
            atomic_store_explicit(&w->came[e], (char)(w->came[e] - 1), memory_order_relaxed);
}

/* The rows of a share whose inputs are there, of one step after the other. */
static void work_in_turn(hpc_core *core, hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        uint64_t n = share->version + 1;
        if (w->folded == n || !has_inputs(ex, w, n)) continue;
        take_inputs(ex, w, n);
        if (work_off(core, w, (int)((n - 1) % (uint64_t)ex->depth), -1) != 0) return;
        row_is_done(core, share, w->row->owner);
        if (share->version == n) i = -1; /* all rows again, for the step after it */
    }
}

/* Of inputs that are there and not folded yet, as many as a rank has slots for can be its own. */
static int is_too_many(hpc_core *core, const hpc_work *w, const _Atomic char *came, int most, int from) {
    const hpc_exchange *ex = core->exchange;
    if (atomic_load_explicit(came, memory_order_relaxed) < most) return 0;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d pushed key %s over an update that is not folded yet",
             ex->context->group.rank, from, ex->plan->keys[w->row->key].name);
    hpc_exchange_fail(core->exchange, HPC_ERR_TRANSPORT, why);
    return 1;
}

/* After a failure nothing is answered any more: no rank may take an update for applied that is not. */
static void input_came(hpc_core *core, hpc_work *w, int slot, int input) {
    hpc_exchange *ex = core->exchange;
    const hpc_row *row = w->row;
    int from = w->inputs[input].rank, failed;
    if (atomic_load_explicit(&ex->failed, memory_order_relaxed) != HPC_OK) return;
    if (ex->n_phases > 1) { /* see work_in_turn */
        if (is_too_many(core, w, &w->came[input], ex->depth, from)) return;
        atomic_store_explicit(&w->came[input], (char)(w->came[input] + 1), memory_order_relaxed);
        return;
    }
    if (ex->n_phases == 0 && row->quorum == 1 && row->n_in > 1) {
        failed = work_off(core, w, slot, input);
    } else {
        _Atomic char *came = &w->came[(size_t)slot * (size_t)row->n_in]; /* who is not missed, until all is done */
        if (is_too_many(core, w, &came[input], 1, from)) return;
        if (ex->eager && fold_eagerly(core, w, slot, input) != 0) return;
        atomic_store_explicit(&came[input], 1, memory_order_relaxed);
        if (++w->arrived[slot] < row->n_in) return;
        w->arrived[slot] = 0;
        failed = work_off(core, w, slot, ex->consistency == HPC_ASYNC ? input : -1);
        for (int i = 0; i < row->n_in; i++) atomic_store_explicit(&came[i], 0, memory_order_relaxed);
    }
    if (!failed) row_is_done(core, w->share, from);
}

/* The input that rank pushes, or that a row of rank forwards: there is one of each at most. */
static int input_of(const hpc_work *w, int rank, int forwarded) {
    for (int i = 0; i < w->row->n_in; i++)
        if (w->inputs[i].rank == rank && (w->inputs[i].forwarded >= 0) == forwarded) return i;
    return -1;
}

/* NULL unless the index names a row of this core. */
static hpc_work *own_row(const hpc_core *core, int index) {
    const hpc_exchange *ex = core->exchange;
    if (index < 0 || index >= ex->plan->n_rows || ex->work_of[index] < 0) return NULL;
    hpc_work *w = &ex->work[ex->work_of[index]];
    return w->row->core == core->index ? w : NULL;
}

static hpc_share *own_share(const hpc_core *core, int index) {
    const hpc_exchange *ex = core->exchange;
    if (index < 0 || index >= ex->n_shares) return NULL;
    hpc_share *share = &ex->shares[index];
    return share->owner == ex->context->group.rank && share->core == core->index ? share : NULL;
}

/* Whether an event brings the bytes that are due: what a short one left out would be folded as the slot held it before.
 * Else the exchange fails. */
static int brings(const hpc_core *core, const hpc_event *event, const char *what, int key, size_t due) {
    if (event->nbytes == due) return 1;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d sent %zu bytes for %s %d of key %.64s; %zu are due",
             core->exchange->context->group.rank, event->peer, event->nbytes, what, hpc_imm_index(event->imm),
             core->exchange->plan->keys[key].name, due);
    hpc_exchange_fail(core->exchange, HPC_ERR_TRANSPORT, why);
    return 0;
}

/* What rank pushes comes by the row, unless it is read where rank has it, or by plain puts before the share's event. */
static int comes_by_share(const hpc_exchange *ex, int rank) {
    return hpc_has_quorum(ex) || hpc_reads_in_place(ex, ex->context->group.rank, rank);
}

/* 0: the event names nothing; 1: it has been handled, by a failure if need be. So are those below. */
static int share_came(hpc_core *core, hpc_share *share, const hpc_event *event, int slot) {
    const hpc_exchange *ex = core->exchange;
    int rank = event->peer;
    if (share == NULL || !comes_by_share(ex, rank)) return 0;
    if (!brings(core, event, "share", share->key, hpc_has_quorum(ex) ? sizeof(uint64_t) : 0)) return 1;
    if (hpc_takes_what_is_there(ex)) return hpc_graph_share_came(ex, share, rank);
    if (hpc_has_quorum(ex)) return hpc_quorum_came(core, share, rank, slot);
    const hpc_edge *edges = NULL;
    int input = -1;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        if (w->row->in != edges) input = input_of(w, rank, 0); /* rows of a hub share their edges */
        edges = w->row->in;
        if (input >= 0) input_came(core, w, slot, input);
    }
    if (ex->n_phases > 1) work_in_turn(core, share);
    return 1;
}

static int row_came(hpc_core *core, hpc_work *w, const hpc_event *event, int forwarded, int slot) {
    int rank = event->peer, input = w == NULL ? -1 : input_of(w, rank, forwarded);
    if (input < 0 || hpc_has_quorum(core->exchange) || (!forwarded && comes_by_share(core->exchange, rank))) return 0;
    if (!brings(core, event, "row", w->row->key, (size_t)w->row->count * hpc_codec_bytes(w->row->codec_in))) return 1;
    if (hpc_takes_what_is_there(core->exchange)) return hpc_graph_row_came(core->exchange, w->share, rank);
    input_came(core, w, slot, input);
    if (core->exchange->n_phases > 1) work_in_turn(core, w->share);
    return 1;
}

/* ASYNC: every push that the worker made before has been applied, events being in order. */
static int pull_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    const hpc_exchange *ex = core->exchange;
    int rank = event->peer;
    if (share == NULL || ex->consistency != HPC_ASYNC || ex->n_phases > 0) return 0;
    if (!brings(core, event, "a pull of share", share->key, 0)) return 1;
    for (int i = 0; i < share->n_rows; i++) hpc_engine_send(core, &ex->work[ex->work_of[share->rows[i]]], rank);
    hpc_engine_answer(core, rank, hpc_signal_pulled(ex, (int)(share - ex->shares)), ++share->pulled[rank]);
    return 1;
}

static double *args_slot(const hpc_exchange *ex, int core, int rank) {
    size_t at = ((size_t)core * (size_t)ex->context->group.size + (size_t)rank) * HPC_RULE_ARGS * sizeof(double);
    return (double *)(void *)(hpc_own_part(ex) + ex->places[ex->context->group.rank].args + at);
}

static int args_came(hpc_core *core, const hpc_event *event) {
    hpc_exchange *ex = core->exchange;
    int rank = event->peer;
    if (!ex->places[rank].worker) return 0;
    if (event->nbytes != sizeof core->args[rank]) {
        char why[HPC_FAILURE_BYTES];
        snprintf(why, sizeof why, "set_args: rank %d: rank %d sent %zu bytes of arguments of rule \"%s\"; %zu are due",
                 ex->context->group.rank, rank, event->nbytes, ex->rule_name, sizeof core->args[rank]);
        hpc_exchange_fail(ex, HPC_ERR_TRANSPORT, why);
        return 1;
    }
    memcpy(core->args[rank], args_slot(ex, core->index, rank), sizeof core->args[rank]);
    uint64_t set = atomic_load_explicit(&core->args_set[rank], memory_order_relaxed) + 1;
    atomic_store_explicit(&core->args_set[rank], set, memory_order_release);
    for (int r = 0; r < ex->context->group.size; r++) {
        if (!ex->places[r].worker || r == rank || atomic_load_explicit(&core->args_set[r], memory_order_relaxed) != set)
            continue;
        for (int a = 1; a < HPC_RULE_ARGS; a++) {
            if (core->args[r][a] == core->args[rank][a]) continue;
            char why[HPC_FAILURE_BYTES];
            snprintf(why, sizeof why, "set_args: rank %d sets argument %d of rule \"%s\" to %.9g and rank %d to %.9g",
                     rank, a, ex->rule_name, core->args[rank][a], r, core->args[r][a]);
            hpc_exchange_fail(ex, HPC_ERR_CONFIG, why);
        }
    }
    hpc_engine_answer(core, rank, hpc_signal_args(ex, ex->context->group.rank, core->index), set);
    hpc_bell_ring(ex->context->group.bell); /* this rank's own set_args waits for those of all */
    return 1;
}

static void handle(hpc_core *core, const hpc_event *event) {
    const hpc_exchange *ex = core->exchange;
    int index = hpc_imm_index(event->imm), slot = hpc_imm_slot(event->imm), known = 0;
    hpc_operation operation = hpc_imm_operation(event->imm);
    if (slot < ex->depth || (operation == HPC_OP_PULL && slot == HPC_ANSWERED)) switch (operation) {
        case HPC_OP_SHARE:
            known = share_came(core, own_share(core, index), event, slot);
            break;
        case HPC_OP_ROW:
            known = row_came(core, own_row(core, index), event, 0, slot);
            break;
        case HPC_OP_FORWARD:
            known = row_came(core, own_row(core, index), event, 1, slot);
            break;
        case HPC_OP_PULL:
            known = pull_came(core, own_share(core, index), event);
            break;
        case HPC_OP_ARGS:
            known = args_came(core, event);
            break;
        }
    if (known) return;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: an event %#x of rank %d names nothing of core %d", ex->context->group.rank,
             event->imm, event->peer, core->index);
    hpc_exchange_fail(core->exchange, HPC_ERR_TRANSPORT, why);
}

/* Under ASYNC, a pull of a worker that may still be sent what it pulled before, from the copy that is written next. */
static int has_to_wait(hpc_core *core, const hpc_event *event) {
    if (core->exchange->consistency != HPC_ASYNC || hpc_imm_operation(event->imm) != HPC_OP_PULL ||
        hpc_imm_slot(event->imm) == HPC_ANSWERED)
        return 0;
    int status = hpc_lane_try_flush(core->out, event->peer);
    if (status == HPC_IN_PROGRESS) return 1;
    hpc_engine_check_put(core, status);
    return 0;
}

static void hold(hpc_core *core, const hpc_event *event) {
    core->held[event->peer] = *event;
    core->holds[event->peer] = 1;
    core->n_held++;
}

static int take_held(hpc_core *core, hpc_event *event) {
    for (int r = 0; r < core->exchange->context->group.size; r++) {
        if (!core->holds[r] || has_to_wait(core, &core->held[r])) continue;
        *event = core->held[r];
        core->holds[r] = 0;
        core->n_held--;
        return 1;
    }
    return 0;
}

/* Pushes come by in; what other cores of this number forward comes by out, where nothing else does. Each is looked at
 * first by turns: a receiver of many pushes would let the rings of its forwards run full. */
static int next_event(hpc_core *core, hpc_event *event) {
    int at_out = core->at_out, status;
    if (core->n_held > 0) {
        if (take_held(core, event)) return 1;
        status = hpc_lane_poll_but(core->in, core->holds, event);
    } else {
        status = hpc_lane_poll(at_out ? core->out : core->in, event);
    }
    if (core->exchange->forwards) {
        if (status == HPC_IN_PROGRESS) status = hpc_lane_poll(at_out ? core->in : core->out, event);
        core->at_out = !at_out;
    }
    if (status != HPC_OK && status != HPC_IN_PROGRESS) hpc_engine_check_put(core, status);
    return status == HPC_OK;
}

/* Everything that has come; how many events. */
static int work_core(hpc_core *core) {
    hpc_exchange *ex = core->exchange;
    hpc_event event;
    double start = 0;
    int n = 0;
    if (core->n_late > 0) hpc_forward_retry(core);
    while (atomic_load_explicit(&ex->failed, memory_order_relaxed) == HPC_OK &&
           !atomic_load_explicit(&core->paused, memory_order_relaxed) && next_event(core, &event)) {
        if (n++ == 0) start = hpc_now();
        if (has_to_wait(core, &event))
            hold(core, &event);
        else
            handle(core, &event);
        if (core->n_late > 0) hpc_forward_retry(core); /* rings empty while this goes on */
    }
    if (core->n_graph_shares > 0 && atomic_load_explicit(&ex->failed, memory_order_relaxed) == HPC_OK)
        n += hpc_graph_work(core);
    if (core->n_waiting > 0 && atomic_load_explicit(&ex->failed, memory_order_relaxed) == HPC_OK)
        n += hpc_quorum_work(core);
    if (n > 0 && start > 0)
        atomic_store_explicit(&core->busy, atomic_load_explicit(&core->busy, memory_order_relaxed) + hpc_now() - start,
                              memory_order_relaxed);
    return n;
}

/* ---- progress ---- */

static const char *why_failed(const hpc_exchange *ex) {
    return atomic_load_explicit(&ex->failed, memory_order_acquire) == HPC_OK ? NULL : ex->failure;
}

static const char *work_inline(void *arg) {
    hpc_exchange *ex = arg;
    ex->task.left = 0;
    for (int c = 0; c < ex->n_own_cores; c++) {
        work_core(&ex->cores[c]);
        if (ex->cores[c].due < INFINITY) ex->task.left = HPC_AWAITED; /* a time, which rings no bell */
    }
    return why_failed(ex);
}

/* Order: the thread does  store working; load paused.  Who pauses does  paused += 1; load working.  All four are
 * sequentially consistent, so that one of the two sees the other. What the thread wrote to its rows is released by the
 * store of 0 to working, and what was read of them by paused -= 1. */
static int work_unless_paused(hpc_core *core) {
    int n = 0;
    atomic_store(&core->working, 1);
    if (!atomic_load(&core->paused)) n = work_core(core);
    atomic_store_explicit(&core->working, 0, memory_order_release);
    return n;
}

/* A core never waits: it leaves its rows after one event. Inline, the wait of any thread may work for it: whoever has
 * the context's tasks has its rows, and what one holder wrote is seen by the next. */
void hpc_engine_pause(hpc_core *core) {
    if (!core->running && !core->exchange->inline_progress) return;
    atomic_fetch_add(&core->paused, 1);
    if (core->running)
        while (atomic_load(&core->working)) sched_yield();
    else
        hpc_context_hold_tasks(core->exchange->context);
}

void hpc_engine_resume(hpc_core *core) {
    if (!core->running && !core->exchange->inline_progress) return;
    atomic_fetch_sub_explicit(&core->paused, 1, memory_order_release);
    if (!core->running) hpc_context_let_tasks(core->exchange->context);
    hpc_bell_ring(core->exchange->context->group.bell); /* it may have gone to sleep over events */
}

static int thread_has_work(void *arg) {
    hpc_core *core = arg;
    return work_unless_paused(core) > 0 || atomic_load_explicit(&core->exchange->stopping, memory_order_acquire) ||
           why_failed(core->exchange) != NULL;
}

/* A core waits for nobody in particular: workers may leave, and the others' pushes still come. */
static int nobody_else(void *arg, int *ranks) {
    ranks[0] = ((hpc_core *)arg)->exchange->context->group.rank;
    return 1;
}

/* Each round of work begins a new wait, so that a busy core spins and an idle one sleeps. A dead rank ends the thread:
 * every rank that is left is told by its own waits. */
static void *run_core(void *arg) {
    hpc_core *core = arg;
    hpc_exchange *ex = core->exchange;
    const hpc_wait wait = {op_engine, thread_has_work, nobody_else, core};
    int pin_refused = core->cpu >= 0 && hpc_host_pin(core->cpu) != 0;
    atomic_store_explicit(&core->started, pin_refused ? HPC_UNPINNED : HPC_STARTED, memory_order_release);
    while (!atomic_load_explicit(&ex->stopping, memory_order_acquire) && why_failed(ex) == NULL) {
        int status = hpc_wait_for(&ex->context->group, &wait, hpc_left(core->due));
        if (status != HPC_OK && status != HPC_ERR_TIMEOUT) return NULL;
    }
    if (why_failed(ex) != NULL) hpc_context_abort(ex->context, why_failed(ex));
    return NULL;
}

static int start_thread(hpc_core *core) {
    char name[16];
    sigset_t all, before;
    sigfillset(&all); /* signals are for the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    core->running = pthread_create(&core->thread, NULL, run_core, core) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!core->running) return 0;
    snprintf(name, sizeof name, "hpcomm-core-%u", (unsigned)core->index % 100);
    pthread_setname_np(core->thread, name);
    while (atomic_load_explicit(&core->started, memory_order_acquire) == 0) sched_yield();
    return 1;
}

static void stop_threads(hpc_exchange *ex) {
    atomic_store_explicit(&ex->stopping, 1, memory_order_release);
    for (int c = 0; ex->cores != NULL && c < ex->n_own_cores; c++) {
        if (!ex->cores[c].running) continue;
        hpc_bell_wake(ex->context->group.bell);
        pthread_join(ex->cores[c].thread, NULL);
        ex->cores[c].running = 0;
    }
}

void hpc_engine_start(hpc_exchange *ex, int threads) {
    int n = 0, unpinned = 0;
    while (threads && n < ex->n_own_cores && start_thread(&ex->cores[n]))
        unpinned += atomic_load_explicit(&ex->cores[n++].started, memory_order_relaxed) == HPC_UNPINNED;
    if (unpinned > 0)
        hpc_group_note(&ex->context->group, HPC_NOTE_DEGRADED,
                       "exchange: the kernel refused to pin the threads of its cores");
    if (n < ex->n_own_cores) { /* inline, all of them */
        if (threads)
            hpc_group_note(&ex->context->group, HPC_NOTE_DEGRADED,
                           "exchange: too few threads can be had; waits work for its cores");
        stop_threads(ex);
        atomic_store_explicit(&ex->stopping, 0, memory_order_release);
        ex->inline_progress = 1;
        ex->task = (hpc_task){.run = work_inline, .arg = ex};
        hpc_context_add_task(ex->context, &ex->task);
        return;
    }
    ex->stats.threads = n;
}

void hpc_engine_stop(hpc_exchange *ex) {
    if (ex->inline_progress) hpc_context_remove_task(ex->context, &ex->task);
    ex->inline_progress = 0;
    stop_threads(ex);
}

/* ---- all rows ---- */

void hpc_engine_write(hpc_exchange *ex) {
    for (int c = 0; c < ex->n_own_cores; c++) {
        hpc_engine_pause(&ex->cores[c]);
        for (int i = 0; i < ex->n_work; i++)
            if (ex->work[i].row->core == c && ex->work[i].row->action != HPC_FORWARD)
                hpc_engine_send(&ex->cores[c], &ex->work[i], HPC_EVERYBODY);
        hpc_engine_resume(&ex->cores[c]);
    }
}
