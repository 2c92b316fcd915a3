#include "engine/params.h"

#include <stdlib.h>

#include "engine/bytes.h"
#include "engine/layout/layout.h"
#include "engine/layout/stages.h"

/* ---- layout ---- */

/* Finds the codec of each key's parameters, and each key's offset in hpc_place.encoded. */
static void find_codecs(hpc_scheme *sc) {
    const hpc_plan *plan = sc->plan;
    for (int k = 0; k < plan->n_keys; k++) sc->keys[k].encoded.codec = hpc_codec_of(HPC_F32);
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (!hpc_row_encodes(row)) continue;
        sc->keys[row->key].encoded.codec = hpc_codec_of(row->codec_out);
        sc->layout.encodes = 1;
    }
    for (int k = 0; k < plan->n_keys; k++) {
        hpc_encoded *encoded = &sc->keys[k].encoded;
        if (encoded->codec->plain) continue;
        encoded->offset = sc->layout.encoded_bytes;
        sc->layout.encoded_bytes += (encoded->codec->max_bytes(NULL, plan->keys[k].count) + 63) / 64 * 64;
    }
}

static int comes_encoded(const hpc_scheme *sc, const hpc_row *row) {
    int me = sc->context->group.rank;
    if (!hpc_row_encodes(row) || hpc_is_mapped(sc, row->owner)) return 0;
    return hpc_row_has_output(row, me);
}

/* Mapping is mutual, because both ends of a pair use the same transport. */
int hpc_params_take_place(hpc_scheme *sc, const char *op) {
    hpc_place *place = &sc->layout.places[sc->context->group.rank];
    find_codecs(sc);
    if (!sc->layout.encodes) return HPC_OK;
    int found = 0;
    for (int i = 0; i < sc->plan->n_rows; i++) {
        hpc_encoded *encoded = &sc->keys[sc->plan->rows[i].key].encoded;
        encoded->n_rows += comes_encoded(sc, &sc->plan->rows[i]);
    }
    for (int k = 0; k < sc->plan->n_keys; k++) {
        hpc_encoded *encoded = &sc->keys[k].encoded;
        if (encoded->n_rows == 0) continue;
        encoded->rows = malloc((size_t)encoded->n_rows * sizeof *encoded->rows);
        if (encoded->rows == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a key", op);
        encoded->n_rows = 0;
        found = 1;
    }
    for (int i = 0; i < sc->plan->n_rows; i++) {
        hpc_encoded *encoded = &sc->keys[sc->plan->rows[i].key].encoded;
        if (comes_encoded(sc, &sc->plan->rows[i])) encoded->rows[encoded->n_rows++] = i;
    }
    if (found) place->encoded = hpc_layout_take(place, sc->layout.encoded_bytes);
    return HPC_OK;
}

int hpc_params_learn(hpc_scheme *sc, double deadline) {
    hpc_context *c = sc->context;
    if (!sc->layout.encodes) return HPC_OK;
    size_t *at = malloc((size_t)c->group.size * sizeof *at);
    int status = at == NULL ? hpc_fail(HPC_ERR_MEMORY, "exchange", "exchange: no memory for places") : HPC_OK;
    status = hpc_context_agree(c, "exchange", status, deadline);
    if (status == HPC_OK)
        status = hpc_allgather(c, &sc->layout.places[c->group.rank].encoded, at, sizeof *at, hpc_left(deadline));
    for (int r = 0; r < c->group.size && status == HPC_OK; r++) sc->layout.places[r].encoded = at[r];
    free(at);
    return status;
}

size_t hpc_params_encoded_at(const hpc_scheme *sc, int rank, const hpc_row *row) {
    const hpc_encoded *encoded = &sc->keys[row->key].encoded;
    return sc->layout.places[rank].encoded + encoded->offset + hpc_codec_span(encoded->codec, row->offset);
}

/* ---- worker ---- */

uint64_t hpc_params_newest(const hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    return sc->discipline->traits & HPC_PULLS ? 2 * k->pulls + HPC_PULL_TICKET : 2 * k->pushes;
}

static void decode(hpc_scheme *sc, int key) {
    hpc_encoded *encoded = &sc->keys[key].encoded;
    int me = sc->context->group.rank;
    char *part = hpc_own_part(sc);
    float *params = (float *)(void *)(part + hpc_params_at(sc, me, key, 0));
    for (int i = 0; i < encoded->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[encoded->rows[i]];
        hpc_codec_decode(encoded->codec, sc->kernels, part + hpc_params_encoded_at(sc, me, row), params + row->offset,
                         (size_t)row->count, sc->stream);
    }
    encoded->decoded = hpc_params_newest(sc, key);
}

void hpc_params_came(hpc_scheme *sc, int key, uint64_t ticket) {
    const hpc_pushed *k = &sc->keys[key];
    if (k->sending == 0 && ticket == hpc_params_newest(sc, key) && k->encoded.decoded != ticket) decode(sc, key);
}

void hpc_params_were_sent(hpc_scheme *sc) {
    for (int k = 0; k < sc->plan->n_keys; k++)
        if (sc->keys[k].encoded.n_rows > 0) decode(sc, k);
}
