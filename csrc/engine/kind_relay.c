/* Relays: the parameters that have come in a slot go on as they came, and into the memory of workers that is mapped. */
#include "engine/kind.h"
#include "engine/write.h"

static int suits(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc;
    return row->action == HPC_RELAY;
}

static hpc_row_room room(const hpc_scheme *sc, const hpc_row *row) {
    (void)sc, (void)row;
    return (hpc_row_room){0};
}

static void write(hpc_core *core, const hpc_work *w, hpc_receivers to, int slot) {
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

static int work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args) {
    (void)args;
    hpc_tally_add(&w->folded, 1);
    write(core, w, inputs->to, (int)inputs->slot);
    hpc_row_leave(core, w, inputs->to, (int)inputs->slot);
    return 0;
}

const hpc_row_kind hpc_kind_relay = {
    .name = "relay",
    .suits = suits,
    .room = room,
    .work = work,
    .relays = 1,
    .write = write,
    .leaving = hpc_input_leaving,
};
