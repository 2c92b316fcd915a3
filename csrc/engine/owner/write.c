#include "engine/owner/write.h"

#include <string.h>

#include "engine/owner/signals.h"
#include "engine/owner/block.h"
#include "engine/owner/forward.h"
#include "engine/owner/kind.h"

void hpc_block_write(hpc_core *core, const hpc_work *w, hpc_receivers to, size_t from, size_t n) {
    const hpc_scheme *sc = core->scheme;
    if (to.whom == HPC_TO_NOBODY) return;
    if (w->encoded != NULL) hpc_block_encode(w, w->param + from, from, n);
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->params == NULL || !hpc_goes_to(to, out)) continue;
        if (w->encoded != NULL)
            hpc_codec_decode(w->out_codec, sc->kernels, w->encoded + hpc_codec_span(w->out_codec, from),
                             out->params + from, n, sc->stream);
        else
            sc->kernels->copy(out->params + from, w->param + from, n * sizeof(float), sc->stream);
    }
}

void hpc_blocks_write(hpc_core *core, const hpc_work *w, hpc_receivers to, int slot) {
    (void)slot;
    for (size_t from = 0; from < w->row->count; from += HPC_BLOCK)
        hpc_block_write(core, w, to, from, hpc_block_count(w, from));
}

const void *hpc_params_leaving(const hpc_work *w, int slot) {
    (void)slot;
    return w->encoded != NULL ? (const void *)w->encoded : w->param;
}

const void *hpc_input_leaving(const hpc_work *w, int slot) {
    return w->inputs[0].slots + (size_t)slot * w->inputs[0].stride;
}

static void put_row(hpc_core *core, const hpc_work *w, hpc_receivers to, int slot) {
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->params != NULL || out->row >= 0 || !hpc_goes_to(to, out)) continue;
        size_t nbytes = w->out_codec->max_bytes(w->config, w->row->count);
        const void *from = w->kind->leaving(w, slot);
        if (out->copy != NULL) from = memcpy(out->copy, from, nbytes);
        hpc_core_put(core, out->rank, from, nbytes, out->offset);
    }
}

/* Counts the bytes written into workers' memory or put there, once for each row. */
static void count_written(hpc_core *core, const hpc_work *w, hpc_receivers to) {
    size_t written = 0;
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->row >= 0 || !hpc_goes_to(to, out)) continue;
        size_t nbytes =
            out->params != NULL ? w->row->count * sizeof(float) : w->out_codec->max_bytes(w->config, w->row->count);
        hpc_core_count_sent(core, w->row->key, out->rank, HPC_TRAFFIC_PARAMETERS, nbytes);
        written += nbytes;
    }
    hpc_tally_add(&core->tally.bytes_written, written);
}

void hpc_row_leave(hpc_core *core, hpc_work *w, hpc_receivers to, int slot) {
    if (to.whom == HPC_TO_NOBODY) return;
    if (w->sends_to_rows) hpc_forward_row(core, w, slot, to.whom == HPC_TO_GROUP ? to.rank : HPC_EVERYBODY);
    put_row(core, w, to, slot);
    count_written(core, w, to);
}

void hpc_row_leave_mapped(hpc_core *core, hpc_work *w, hpc_receivers to, int slot) {
    if (to.whom == HPC_TO_NOBODY) return;
    if (w->sends_to_rows) hpc_forward_row(core, w, slot, HPC_EVERYBODY);
    count_written(core, w, to);
}

/* Sends to relays before it puts to workers, since further ranks wait for the relays. hpc_blocks_write also encodes the
 * bytes for relays. */
void hpc_row_reply(hpc_core *core, hpc_work *w, int group, int slot) {
    const hpc_receivers to = {.whom = HPC_TO_GROUP, .rank = group};
    w->kind->write(core, w, to, slot);
    hpc_row_leave(core, w, to, slot);
}

void hpc_row_send(hpc_core *core, hpc_work *w, int rank) {
    const hpc_receivers to = {.whom = rank == HPC_EVERYBODY ? HPC_TO_ALL : HPC_TO_RANK, .rank = rank};
    w->kind->write(core, w, to, 0);
    put_row(core, w, to, 0);
    count_written(core, w, to);
}

void hpc_row_publish(hpc_core *core, hpc_work *w) {
    hpc_scheme *sc = core->scheme;
    if (w->kind->write == NULL) return;
    hpc_row_send(core, w, HPC_EVERYBODY);
    if (w->kind->relays) hpc_row_count_received(core, w, -1);
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->row < 0) continue;
        size_t nbytes = w->out_codec->max_bytes(w->config, w->row->count);
        hpc_core_put(core, out->rank, w->kind->leaving(w, 0), nbytes, out->offset);
        hpc_core_count_sent(core, w->row->key, out->rank, hpc_row_stage(&sc->plan->rows[out->row]), nbytes);
    }
}
