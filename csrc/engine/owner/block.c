/* The steps of one block of a row: fold the inputs, apply the rule, encode the output, all while the block is in the L1
 * or L2 cache. */
#include "engine/owner/block.h"

#include <stdio.h>
#include <string.h>

#include "engine/owner/signals.h"
#include "engine/bytes.h"
#include "engine/pieces.h"
#include "engine/layout/layout.h"

void hpc_row_fail_kernel(hpc_core *core, const hpc_work *w, const char *what, int returned) {
    char why[HPC_FAILURE_BYTES];
    const hpc_scheme *sc = core->scheme;
    snprintf(why, sizeof why, "rank %d: the %s of rule \"%s\" returned %d on key %s, elements %llu to %llu, step %llu",
             sc->context->group.rank, what, w->rule->name, returned, sc->plan->keys[w->row->key].name,
             (unsigned long long)w->row->offset, (unsigned long long)(w->row->offset + w->row->count - 1),
             (unsigned long long)w->step);
    hpc_scheme_fail(core->scheme, HPC_ERR_INVALID, why);
}

/* The average of the updates in a slot is written into the next slot. No rank reads the next slot any more: this push
 * began only when the last update in the next slot was answered. */
void hpc_row_turn(const hpc_scheme *sc, hpc_work *w, uint64_t slot) {
    char *at = hpc_own_part(sc) + hpc_params_at(sc, w->row->owner, w->row->key, slot + 1);
    w->param = (float *)(void *)at + w->row->offset;
}

int hpc_row_keeps_fold(const hpc_scheme *sc, const hpc_row *row) {
    const hpc_codec *codec = row->action == HPC_APPLY ? hpc_row_pieces(sc, row) : NULL;
    if (sc->use == NULL) return 0;
    if (sc->discipline->traits & HPC_KEEPS_MEANS) return 1;
    return !(sc->discipline->traits & HPC_KEEPS_INPUTS) && (codec == NULL || codec->add_range == NULL);
}

hpc_row_room hpc_blocks_room(const hpc_scheme *sc, const hpc_row *row) {
    hpc_row_room room = {0};
    if (row->action == HPC_APPLY) room.state = hpc_row_floats(row, (size_t)sc->rules[row->key].rule.slots);
    if (hpc_row_keeps_fold(sc, row)) room.acc = hpc_row_floats(row, 1);
    if (hpc_row_encodes(row)) room.encoded = (hpc_output_bytes(sc, row) + 63) / 64 * 64;
    return room;
}

/* ---- one block ---- */

const float *hpc_block_fold(hpc_core *core, const hpc_work *w, const hpc_inputs *inputs, float *out, int stream,
                            const double *args, size_t from, size_t n) {
    const hpc_scheme *sc = core->scheme;
    size_t at = hpc_codec_span(inputs->codec, from);
    for (int i = 0; i < inputs->n; i++) core->folding[i] = inputs->bases[i] + at;
    if (w->rule->rule.fold != NULL) {
        memset(out, 0, n * sizeof(float));
        for (int i = 0; i < inputs->n; i++) {
            int returned = w->rule->rule.fold(out, (int64_t)n, core->folding[i],
                                              (int64_t)hpc_codec_span(inputs->codec, n), inputs->weights[i], args);
            if (returned != 0) {
                hpc_row_fail_kernel(core, w, "fold", returned);
                return NULL;
            }
        }
        return out;
    }
    if (inputs->n == 1 && inputs->weights[0] == 1 && inputs->codec->plain) return core->folding[0];
    inputs->codec->fold(sc->kernels)(out, core->folding, inputs->weights, inputs->n, n, stream);
    return out;
}

int hpc_block_apply(hpc_core *core, const hpc_work *w, const float *block, int n_updates, const double *args,
                    size_t from, size_t n) {
    const int dual = w->rule->rule.dual;
    float *param = dual ? w->state + from : w->param + from;
    float *state = dual ? NULL : w->state + from * (size_t)w->rule->rule.slots;
    int returned = w->apply(param, block, n_updates, state, args, (int64_t)n);
    if (returned != 0) hpc_row_fail_kernel(core, w, "apply", returned);
    return returned;
}

void hpc_block_encode(const hpc_work *w, const float *block, size_t from, size_t n) {
    const hpc_codec_source source = {block, 0};
    w->out_codec->encode(NULL, &source, (int64_t)n, NULL, w->encoded + hpc_codec_span(w->out_codec, from),
                         (int64_t)w->out_codec->max_bytes(NULL, n), NULL);
}
