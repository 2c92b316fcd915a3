/* A row: inputs are counted as they come. When the discipline says so the row is worked off at once, while other rows'
 * inputs still arrive (PHub's tall aggregation, section 3.2.2). The default is one pass (pass_row): fold, rule and
 * write together. Other rows go block by block (work_blocks): the inputs are folded, the rule is applied and the
 * parameters are written to every worker while the block is in the first caches. Both read and write memory once. */
#include "engine/row.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/args.h"
#include "engine/pieces.h"

/* ---- failure ---- */

static void fail_kernel(hpc_core *core, const hpc_work *w, const char *what, int returned) {
    char why[HPC_FAILURE_BYTES];
    const hpc_exchange *ex = core->exchange;
    snprintf(why, sizeof why, "rank %d: the %s of rule \"%s\" returned %d on key %s, elements %llu to %llu, step %llu",
             ex->context->group.rank, what, w->rule->name, returned, ex->plan->keys[w->row->key].name,
             (unsigned long long)w->row->offset, (unsigned long long)(w->row->offset + w->row->count - 1),
             (unsigned long long)w->step);
    hpc_exchange_fail(core->exchange, HPC_ERR_INVALID, why);
}

/* ---- inputs ---- */

int hpc_row_input_of(const hpc_work *w, int rank, int forwarded) {
    for (int i = 0; i < w->row->n_in; i++)
        if (w->inputs[i].rank == rank && (w->inputs[i].forwarded >= 0) == forwarded) return i;
    return -1;
}

int hpc_row_has_too_many(hpc_core *core, const hpc_work *w, const _Atomic char *came, int most, int from) {
    const hpc_exchange *ex = core->exchange;
    if (atomic_load_explicit(came, memory_order_relaxed) < most) return 0;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d pushed key %s over an update that is not folded yet",
             ex->context->group.rank, from, ex->plan->keys[w->row->key].name);
    hpc_exchange_fail(core->exchange, HPC_ERR_TRANSPORT, why);
    return 1;
}

hpc_inputs hpc_row_take(hpc_core *core, const hpc_work *w, hpc_taking *taking, hpc_scaling scaling) {
    const hpc_exchange *ex = core->exchange;
    double all = 0, present = 0;
    int n = 0, n_updates = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        const hpc_taken taken = taking(core, w, in);
        all += in->mass;
        if (taken.n > 0) present += in->mass;
        n_updates += taken.n * in->updates;
        for (int i = 0; i < taken.n; i++) {
            uint64_t slot = (taken.first + (uint64_t)i) % (uint64_t)ex->layout.depth;
            core->bases[n] = in->slots + (size_t)slot * in->stride;
            core->base_inputs[n] = in;
            core->base_weights[n++] = w->weights[e];
        }
    }
    int scales = scaling == HPC_SCALE_ALL || (scaling == HPC_SCALE_MEANS && fabs(all - 1) < 1e-9);
    for (int i = 0; i < n && scales && present != all; i++) core->base_weights[i] *= all / present;
    return (hpc_inputs){.bases = core->bases,
                        .weights = core->base_weights,
                        .from = core->base_inputs,
                        .n = n,
                        .codec = w->codec,
                        .args = w->args[w->share->version % (uint64_t)ex->layout.depth],
                        .n_updates = n_updates,
                        .slot = w->share->version};
}

hpc_inputs hpc_row_inputs(hpc_core *core, const hpc_work *w, int slot, int only) {
    int first = only < 0 ? 0 : only, last = only < 0 ? w->row->n_in : only + 1, n = 0, n_updates = 0;
    for (int i = first; i < last; i++) {
        if (w->inputs[i].empty) continue;
        core->bases[n] = w->inputs[i].slots + (size_t)slot * w->inputs[i].stride;
        core->base_inputs[n] = &w->inputs[i];
        core->base_weights[n++] = w->weights[i];
        n_updates += w->inputs[i].updates;
    }
    return (hpc_inputs){.bases = core->bases,
                        .weights = core->base_weights,
                        .from = core->base_inputs,
                        .n = n,
                        .codec = w->codec,
                        .args = only < 0 ? w->args[slot] : w->inputs[only].args[slot],
                        .summed = hpc_row_sums_early(core->exchange, w->row) && only < 0,
                        .n_updates = n_updates,
                        .slot = (uint64_t)slot};
}

/* ---- one block ---- */

/* The folded block: out, or its only input in place. NULL when a user's fold has failed. */
static const float *fold_block(hpc_core *core, const hpc_work *w, const hpc_inputs *inputs, float *out, int stream,
                               const double *args, size_t from, size_t n) {
    const hpc_exchange *ex = core->exchange;
    size_t at = hpc_codec_span(inputs->codec, from);
    for (int i = 0; i < inputs->n; i++) core->folding[i] = inputs->bases[i] + at;
    if (w->rule->rule.fold != NULL) {
        memset(out, 0, n * sizeof(float));
        for (int i = 0; i < inputs->n; i++) {
            int returned = w->rule->rule.fold(out, (int64_t)n, core->folding[i],
                                              (int64_t)hpc_codec_span(inputs->codec, n), inputs->weights[i], args);
            if (returned != 0) {
                fail_kernel(core, w, "fold", returned);
                return NULL;
            }
        }
        return out;
    }
    if (inputs->n == 1 && inputs->weights[0] == 1 && inputs->codec->plain) return core->folding[0];
    inputs->codec->fold(ex->kernels)(out, core->folding, inputs->weights, inputs->n, n, stream);
    return out;
}

/* Adds inputs, some of which are pieces, to the accumulator, one by one. */
static int add_inputs(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, int begins) {
    if (begins) memset(w->acc, 0, (size_t)w->row->count * sizeof(float));
    for (int i = 0; i < inputs->n; i++)
        if (hpc_pieces_add(core, w, inputs->from[i], inputs->bases[i], inputs->weights[i], w->acc) != 0) return -1;
    return 0;
}

static void next_args(const hpc_work *w, const hpc_inputs *inputs, double *args) {
    memcpy(args, inputs->args, HPC_ARGS_BYTES);
    args[0] = (double)(w->step + 1);
}

int hpc_row_add(hpc_core *core, hpc_work *w, int slot, int input, int first) {
    static const double ones[2] = {1, 1};
    const hpc_exchange *ex = core->exchange;
    double args[HPC_RULE_ARGS];
    const hpc_inputs alone = hpc_row_inputs(core, w, slot, input);
    if (w->takes_pieces) return add_inputs(core, w, &alone, first);
    next_args(w, &alone, args);
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK) {
        size_t n = w->row->count - from < HPC_BLOCK ? w->row->count - from : HPC_BLOCK;
        const float *block = fold_block(core, w, &alone, core->acc, 0, args, from, n);
        if (block == NULL) return -1;
        const void *sum[2] = {w->acc + from, block};
        if (first)
            memcpy(w->acc + from, block, n * sizeof(float));
        else
            ex->kernels->f32(w->acc + from, sum, ones, 2, n, 0);
    }
    return 0;
}

int hpc_row_count(hpc_core *core, hpc_work *w, int slot, int input) {
    const hpc_exchange *ex = core->exchange;
    _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
    if (hpc_row_has_too_many(core, w, &came[input], 1, w->inputs[input].rank)) return 0;
    if (hpc_row_sums_early(ex, w->row) && hpc_row_add(core, w, slot, input, w->arrived[slot] == 0) != 0) return 0;
    atomic_store_explicit(&came[input], 1, memory_order_relaxed);
    if (++w->arrived[slot] < w->row->n_in) return 0;
    w->arrived[slot] = 0;
    return 1;
}

void hpc_row_took(hpc_work *w, int slot) {
    _Atomic char *came = &w->came[(size_t)slot * (size_t)w->row->n_in];
    for (int i = 0; i < w->row->n_in; i++) atomic_store_explicit(&came[i], 0, memory_order_relaxed);
}

static int apply_block(hpc_core *core, const hpc_work *w, const float *block, int count, const double *args,
                       size_t from, size_t n) {
    if (w->row->action == HPC_EMIT) {
        memcpy(w->param + from, block, n * sizeof(float));
        return HPC_OK;
    }
    int returned = w->rule->rule.apply(w->param + from, block, count, w->state + from * (size_t)w->rule->rule.slots,
                                       args, (int64_t)n);
    if (returned != 0) fail_kernel(core, w, "apply", returned);
    return returned;
}

/* The receivers of a row's parameters: one rank, or those with takes[rank]; takes NULL: all. */
typedef struct receivers {
    int only; /* HPC_EVERYBODY: see takes */
    const char *takes;
    int of_group; /* only is the lowest rank of a group, and all that get parameters by way of it are meant */
} receivers;

static int goes_to(receivers to, const hpc_output *out) {
    if (to.only == HPC_EVERYBODY) return to.takes == NULL || to.takes[out->rank];
    return to.only == (to.of_group ? out->lowest : out->rank);
}

/* A block of a row's outputs, as it is sent: of parameters, or of a fold. */
static void encode_block(const hpc_work *w, const float *block, size_t from, size_t n) {
    w->sends->encode(NULL, block, (int64_t)n, NULL, w->encoded + hpc_codec_span(w->sends, from),
                     (int64_t)w->sends->max_bytes(n), NULL);
}

/* Writes a block to workers whose memory is mapped here; the others get the whole row by put. What is sent encoded is
 * decoded into mapped memory, so that all workers have the same bits. */
static void write_block(hpc_core *core, const hpc_work *w, receivers to, size_t from, size_t n) {
    const hpc_exchange *ex = core->exchange;
    if (w->encoded != NULL) encode_block(w, w->param + from, from, n);
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->params == NULL || !goes_to(to, out)) continue;
        if (w->encoded != NULL)
            hpc_codec_decode(w->sends, ex->kernels, w->encoded + hpc_codec_span(w->sends, from), out->params + from, n,
                             ex->stream);
        else
            ex->kernels->copy(out->params + from, w->param + from, n * sizeof(float), ex->stream);
    }
}

static void put_row(hpc_core *core, const hpc_work *w, receivers to, int slot) {
    hpc_exchange *ex = core->exchange;
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->params != NULL || out->row >= 0 || !goes_to(to, out)) continue;
        size_t nbytes = w->sends->max_bytes(w->row->count);
        const void *from = hpc_row_leaving(w, slot);
        if (out->copy != NULL) from = memcpy(out->copy, from, nbytes);
        hpc_core_check_put(core, hpc_put(core->out, ex->window, out->rank, from, nbytes, out->offset));
    }
}

/* Counts what was written into the memory of a row's workers or put there, once a row. */
static void count_written(hpc_core *core, const hpc_work *w, receivers to) {
    size_t written = 0;
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->row >= 0 || !goes_to(to, out)) continue;
        size_t nbytes = out->params != NULL ? w->row->count * sizeof(float) : w->sends->max_bytes(w->row->count);
        hpc_tally_add(hpc_core_sent(core, out->rank, HPC_TRAFFIC_PARAMETERS), nbytes);
        written += nbytes;
    }
    hpc_tally_add(&core->tally.bytes_written, written);
}

/* ---- one row ---- */

/* A relay writes the parameters that have come in a slot into the memory of its workers that is mapped here, decoded.
 */
static void write_relayed(hpc_core *core, const hpc_work *w, int slot) {
    const hpc_exchange *ex = core->exchange;
    const void *from = hpc_row_leaving(w, slot);
    size_t count = (size_t)w->row->count;
    for (int o = 0; o < w->n_outputs; o++) {
        float *to = w->outputs[o].params;
        if (to == NULL) continue;
        if (w->sends->plain)
            ex->kernels->copy(to, from, count * sizeof(float), ex->stream);
        else
            hpc_codec_decode(w->sends, ex->kernels, from, to, count, ex->stream);
    }
}

void hpc_row_send(hpc_core *core, const hpc_work *w, int to) {
    hpc_exchange *ex = core->exchange;
    const receivers who = {.only = to};
    if (w->row->action == HPC_RELAY)
        write_relayed(core, w, 0);
    else
        for (size_t from = 0; from < w->row->count; from += HPC_BLOCK)
            write_block(core, w, who, from, w->row->count - from < HPC_BLOCK ? w->row->count - from : HPC_BLOCK);
    put_row(core, w, who, 0);
    count_written(core, w, who);
    if (to != HPC_EVERYBODY) return;
    if (w->row->action == HPC_RELAY) hpc_row_count_received(core, w, -1);
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->row < 0) continue;
        size_t nbytes = w->sends->max_bytes(w->row->count);
        hpc_core_check_put(core, hpc_put(core->out, ex->window, out->rank, hpc_row_leaving(w, 0), nbytes, out->offset));
        hpc_tally_add(hpc_core_sent(core, out->rank, hpc_row_stage(&ex->plan->rows[out->row])), nbytes);
    }
}

/* Relays first, as others wait behind them; what goes to them is encoded with the blocks. */
void hpc_row_reply(hpc_core *core, hpc_work *w, int group, int slot) {
    const receivers who = {.only = group, .of_group = 1};
    const size_t count = (size_t)w->row->count;
    for (size_t from = 0; from < count; from += HPC_BLOCK)
        write_block(core, w, who, from, count - from < HPC_BLOCK ? count - from : HPC_BLOCK);
    if (w->sends_to_rows) hpc_forward_row(core, w, slot, group);
    put_row(core, w, who, slot);
    count_written(core, w, who);
}

/* Fold, rule and write of a whole row by its rule's pass. */
static int pass_row(hpc_core *core, const hpc_work *w, const hpc_inputs *inputs, receivers to, const double *args) {
    const hpc_exchange *ex = core->exchange;
    const hpc_row *row = w->row;
    for (size_t from = 0; from < row->count; from += HPC_BLOCK) { /* the state lies block by block */
        size_t n = row->count - from < HPC_BLOCK ? row->count - from : HPC_BLOCK;
        for (int i = 0; i < inputs->n; i++) core->folding[i] = inputs->bases[i] + from * sizeof(float);
        int n_out = 0;
        for (int o = 0; o < w->n_outputs; o++)
            if (w->outputs[o].row < 0 && goes_to(to, &w->outputs[o]))
                core->writing[n_out++] = w->outputs[o].params + from;
        const hpc_pass pass = {
            .param = w->param + from,
            .in = (const float *const *)core->folding,
            .weights = inputs->weights,
            .n_in = inputs->n,
            .out = core->writing,
            .n_out = n_out,
            .state = w->state + from * (size_t)w->rule->rule.slots,
            .args = args,
            .n = (int64_t)n,
            .stream = ex->stream,
        };
        int returned = w->rule->pass(&pass);
        if (returned == 0) continue;
        fail_kernel(core, w, "apply", returned);
        return returned;
    }
#if defined(__x86_64__)
    if (ex->stream) __builtin_ia32_sfence(); /* streamed stores come before the answer */
#endif
    return 0;
}

/* The same, one step after the other, block by block. An average is folded straight into the parameters, and what is
 * encoded as a whole into its sum, which may lie where the blocks of other rows do. */
static int work_blocks(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, receivers to, const double *args) {
    const hpc_exchange *ex = core->exchange;
    const hpc_row *row = w->row;
    int in_place = w->rule->averages && row->action == HPC_APPLY && !ex->asked.eager,
        stream = ex->stream && w->n_outputs == 0;
    for (size_t from = 0; from < row->count; from += HPC_BLOCK) {
        size_t n = row->count - from < HPC_BLOCK ? row->count - from : HPC_BLOCK;
        float *out = in_place ? w->param + from : w->encoder != NULL ? w->acc + from : core->acc;
        const float *block =
            inputs->summed ? w->acc + from : fold_block(core, w, inputs, out, in_place && stream, args, from, n);
        if (block == NULL) return -1;
        if (row->action == HPC_FORWARD) {
            if (w->encoded != NULL && w->encoder == NULL)
                encode_block(w, block, from, n);
            else if (block != w->acc + from)
                memcpy(w->acc + from, block, n * sizeof(float));
            continue;
        }
        if (block != w->param + from && apply_block(core, w, block, inputs->n_updates, args, from, n) != 0) return -1;
        if (!inputs->silent) write_block(core, w, to, from, n);
    }
    if (w->encoder == NULL) return 0;
    return inputs->n_updates > 0 ? hpc_pieces_encode_row(core, w) : hpc_pieces_encode_nothing(w);
}

/* sgd changes nothing but what a piece has: that is added to the parameters, times minus the rate. The bits are those
 * of a sum that begins with zeros. */
static int add_to_params(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, receivers to, double rate) {
    if (hpc_pieces_add(core, w, inputs->from[0], inputs->bases[0], -rate, w->param) != 0) return -1;
    for (int o = 0; o < w->n_outputs && !inputs->silent; o++)
        if (goes_to(to, &w->outputs[o]) &&
            hpc_pieces_add_again(core, w, inputs->from[0], inputs->bases[0], -rate, w->outputs[o].params) != 0)
            return -1;
    return 0;
}

/* Adds all inputs of a row that takes pieces, unless it passes on its only one. Nonzero when one of them is no piece of
 * the row: then nothing has been applied. */
static int add_pieces(hpc_core *core, hpc_work *w, hpc_inputs *inputs) {
    if (w->passes_on) {
        hpc_count_received(core->exchange, inputs->from[0]->rank, hpc_piece_bytes(inputs->bases[0]));
        return 0;
    }
    if (!inputs->summed && add_inputs(core, w, inputs, 1) != 0) return -1;
    inputs->summed = 1;
    return 0;
}

static void count_fold(hpc_core *core, const hpc_work *w, int n_inputs) {
    hpc_tally_add(&core->tally.applied, 1);
    if (!w->takes_pieces) hpc_tally_add(&core->tally.bytes_folded, hpc_input_bytes(w->row) * (size_t)n_inputs);
}

void hpc_row_count_received(const hpc_core *core, const hpc_work *w, int only) {
    hpc_exchange *ex = core->exchange;
    int first = only < 0 ? 0 : only, last = only < 0 ? w->row->n_in : only + 1;
    for (int i = first; i < last; i++)
        if (!w->inputs[i].empty && w->inputs[i].codec->addressable) /* pieces are counted as they are added */
            hpc_count_received(ex, w->inputs[i].rank, w->inputs[i].codec->max_bytes(w->row->count));
}

/* Where models rotate the average of the update in a slot goes into the next slot. No rank reads that slot any more:
 * the push of the update has waited for the answers to its last content. */
static void turn(const hpc_exchange *ex, hpc_work *w, uint64_t slot) {
    if (!ex->rotates) return;
    char *at = hpc_own_part(ex) + hpc_params_at(ex, w->row->owner, w->row->key, slot + 1);
    w->param = (float *)(void *)at + w->row->offset;
}

/* Sends what a row has made to other rows, and then to workers whose memory is not mapped: rows first, as others wait
 * behind them. */
static void leave(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, receivers to) {
    if (inputs->silent) return;
    if (w->sends_to_rows) hpc_forward_row(core, w, (int)inputs->slot, HPC_EVERYBODY);
    if (w->row->action == HPC_FORWARD) return;
    put_row(core, w, to, (int)inputs->slot);
    count_written(core, w, to);
}

int hpc_row_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    const hpc_exchange *ex = core->exchange;
    const receivers to = {.only = HPC_EVERYBODY, .takes = inputs->takes};
    const int pieces = w->takes_pieces && inputs->from != NULL;
    double args[HPC_RULE_ARGS];
    hpc_inputs sum;
    int done = pieces && w->passes_on;
    HPC_SPAN_OF_ROW(ex->context->group.timeline, ex->plan->keys[w->row->key].name, w->row->count * sizeof(float));
    next_args(w, inputs, args);
    if (pieces) { /* before the step counts */
        const int adds = w->adds && inputs->weights[0] == 1 && args[2] == 0;
        sum = *inputs;
        inputs = &sum;
        if ((adds ? add_to_params(core, w, inputs, to, args[1]) : add_pieces(core, w, &sum)) != 0) return -1;
        done |= adds;
    }
    turn(ex, w, inputs->slot);
    w->step++;
    hpc_tally_add(&w->folded, 1);
    int failed = w->passes ? pass_row(core, w, inputs, to, args) : done ? 0 : work_blocks(core, w, inputs, to, args);
    if (failed) return failed;
    leave(core, w, inputs, to);
    count_fold(core, w, w->mean != NULL ? 0 : inputs->n);
    return 0;
}

void hpc_row_relay(hpc_core *core, hpc_work *w, int slot) {
    const hpc_inputs came = {.slot = (uint64_t)slot};
    HPC_SPAN_OF_ROW(core->exchange->context->group.timeline, core->exchange->plan->keys[w->row->key].name,
                    w->row->count * sizeof(float));
    hpc_tally_add(&w->folded, 1);
    write_relayed(core, w, slot);
    leave(core, w, &came, (receivers){.only = HPC_EVERYBODY});
}

/* ---- fold and apply in two calls ---- */

int hpc_row_fold(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares) {
    const hpc_exchange *ex = core->exchange;
    const hpc_row *row = w->row;
    int in_place = inputs->n == 1 && inputs->weights[0] == 1 && inputs->codec->plain && w->rule->rule.fold == NULL;
    double args[HPC_RULE_ARGS];
    HPC_SPAN_OF_ROW(ex->context->group.timeline, ex->plan->keys[row->key].name, row->count * sizeof(float));
    next_args(w, inputs, args);
    w->mean = in_place ? (const float *)(const void *)inputs->bases[0] : w->acc;
    w->n_updates = inputs->n_updates;
    if (w->takes_pieces) {
        w->mean = w->acc;
        if (add_inputs(core, w, inputs, 1) != 0) return -1;
    }
    for (size_t from = 0; from < row->count; from += HPC_BLOCK) {
        size_t n = row->count - from < HPC_BLOCK ? row->count - from : HPC_BLOCK;
        const float *block = w->takes_pieces ? w->acc + from : fold_block(core, w, inputs, core->acc, 0, args, from, n);
        if (block == NULL) return -1;
        if (squares != NULL) *squares += ex->kernels->squares(block, n);
        if (!in_place && !w->takes_pieces) ex->kernels->copy(w->acc + from, block, n * sizeof(float), ex->stream);
    }
    if (!w->takes_pieces) hpc_tally_add(&core->tally.bytes_folded, hpc_input_bytes(row) * (size_t)inputs->n);
    return 0;
}

/* Block by block, as a fold has it: the same bits. */
double hpc_row_squares(const hpc_core *core, const hpc_work *w) {
    double sum = 0;
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK)
        sum += core->exchange->kernels->squares(w->mean + from,
                                                w->row->count - from < HPC_BLOCK ? w->row->count - from : HPC_BLOCK);
    return sum;
}

/* A pass, or a fold of the mean alone, multiplies it as it reads it. What a user's own fold has made is multiplied
 * here: it is no input of another fold. */
int hpc_row_apply(hpc_core *core, hpc_work *w, const double *args) {
    static const double one = 1;
    const hpc_exchange *ex = core->exchange;
    const char *base = (const char *)w->mean;
    const double scale = args[0];
    int summed = w->rule->rule.fold != NULL;
    const void *mean = w->mean;
    if (summed && scale != 1) ex->kernels->f32(w->acc, &mean, &scale, 1, (size_t)w->row->count, 0);
    const hpc_inputs inputs = {.bases = &base,
                               .weights = summed ? &one : &scale,
                               .n = 1,
                               .codec = hpc_codec_of(HPC_F32),
                               .args = args,
                               .summed = summed,
                               .n_updates = w->n_updates};
    return hpc_row_work(core, w, &inputs);
}

void hpc_row_gather(hpc_core *core, hpc_work *w, int zero) {
    hpc_exchange *ex = core->exchange;
    size_t nbytes = (size_t)w->row->count * sizeof(float);
    if (zero) w->mean = memset(w->acc, 0, nbytes);
    for (int r = 0; r < ex->context->group.size; r++) {
        if (!hpc_row_is_fed_by(ex, w->index, r)) continue;
        size_t at = ex->layout.places[r].gradients + ex->keys[w->row->key].gradient + hpc_row_from(ex, w->row);
        char *here = hpc_is_mapped(ex, r) ? (char *)hpc_window_peer_view(ex->window, r) + at : NULL;
        if (here == NULL)
            hpc_core_check_put(core, hpc_put(core->out, ex->window, r, w->mean, nbytes, at));
        else if (here != (const char *)w->mean)
            ex->kernels->copy(here, w->mean, nbytes, ex->stream);
        hpc_tally_add(&core->tally.bytes_written, nbytes);
        hpc_tally_add(hpc_core_sent(core, r, HPC_TRAFFIC_PARAMETERS), nbytes);
    }
}
