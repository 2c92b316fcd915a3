/* Rows that send the bytes in a slot on as they came: folds, and parameters (relays). They need no memory. */
#include "engine/owner/block.h"
#include "engine/owner/kind.h"
#include "engine/owner/write.h"

static hpc_row_room room(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc, (void)row;
    return (hpc_row_room){0};
}

/* ---- forwards ---- */

/* Rows that pass another row's forward on without decoding it: in a rack, to its receivers; in a tree, at an inner rank
 * (Parameter Flow, section 3.4.2). If a piece were decoded and encoded again, it would be filtered twice. Puts read the
 * slot in which the forward came, so the slot must not be written until they are done. That holds if folds take all
 * inputs, because the slot's writer waits for the receivers. */
static int suits(const hpc_scheme *sc, const hpc_row *row) {
    if (row->action != HPC_FORWARD || row->n_in != 1 || row->in[0].row < 0 || row->in[0].weight != 1) return 0;
    if (sc->plan->rows[row->in[0].row].codec_out != row->codec_out) return 0;
    return hpc_folds_whole(sc) || !hpc_codec_of(row->codec_out)->addressable;
}

static int work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    const hpc_input *in = inputs->from[0];
    (void)args;
    hpc_row_begin_step(core->scheme, w, inputs->slot);
    if (in->nbytes == 0) /* arrays are counted when they come */
        hpc_count_received(core->scheme, in->rank, in->codec->length(w->config, inputs->bases[0], w->row->count));
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    hpc_row_count_fold(core, w, 0);
    return 0;
}

const hpc_row_kind hpc_kind_passthrough = {
    .name = "passthrough",
    .suits = suits,
    .room = room,
    .work = work,
    .leaving = hpc_input_leaving,
};

/* ---- relays, which also write into mapped memory of workers ---- */

static int relays(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc;
    return row->action == HPC_RELAY;
}

static void write_relayed(hpc_core *core, const hpc_work *w, hpc_receivers to, int slot) {
    const hpc_scheme *sc = core->scheme;
    const void *from = hpc_input_leaving(w, slot);
    size_t count = (size_t)w->row->count;
    for (int o = 0; o < w->n_outputs; o++) {
        float *params = w->outputs[o].params;
        if (params == NULL || !hpc_goes_to(to, &w->outputs[o])) continue;
        if (w->out_codec->plain)
            sc->kernels->copy(params, from, count * sizeof(float), sc->stream);
        else
            hpc_codec_decode(w->out_codec, sc->kernels, from, params, count, sc->stream);
    }
}

static int relay(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    (void)args;
    hpc_tally_add(&w->folded, 1);
    write_relayed(core, w, inputs->to, (int)inputs->slot);
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    return 0;
}

const hpc_row_kind hpc_kind_relay = {
    .name = "relay",
    .suits = relays,
    .room = room,
    .work = relay,
    .relays = 1,
    .write = write_relayed,
    .leaving = hpc_input_leaving,
};
