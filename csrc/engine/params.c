#include "engine/params.h"

#include <stdlib.h>

#include "engine/layout.h"

/* ---- layout ---- */

/* The codecs of the parameters of all keys, and their offsets in hpc_place.encoded. */
static void find_codecs(hpc_exchange *ex) {
    const hpc_plan *plan = ex->plan;
    for (int k = 0; k < plan->n_keys; k++) ex->keys[k].encoded.codec = hpc_codec_of(HPC_F32);
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (!hpc_row_encodes(row)) continue;
        ex->keys[row->key].encoded.codec = hpc_codec_of(row->codec_out);
        ex->layout.encodes = 1;
    }
    for (int k = 0; k < plan->n_keys; k++) {
        hpc_encoded *encoded = &ex->keys[k].encoded;
        if (encoded->codec->plain) continue;
        encoded->offset = ex->layout.encoded_bytes;
        ex->layout.encoded_bytes += (encoded->codec->max_bytes(NULL, plan->keys[k].count) + 63) / 64 * 64;
    }
}

static int comes_encoded(const hpc_exchange *ex, const hpc_row *row) {
    int me = ex->context->group.rank;
    if (!hpc_row_encodes(row) || hpc_is_mapped(ex, row->owner)) return 0;
    return hpc_row_has_output(row, me);
}

/* Mapping is mutual: both ends of a pair have the same transport. */
int hpc_params_take_place(hpc_exchange *ex, const char *op) {
    hpc_place *place = &ex->layout.places[ex->context->group.rank];
    find_codecs(ex);
    if (!ex->layout.encodes) return HPC_OK;
    int found = 0;
    for (int i = 0; i < ex->plan->n_rows; i++) {
        hpc_encoded *encoded = &ex->keys[ex->plan->rows[i].key].encoded;
        encoded->n_rows += comes_encoded(ex, &ex->plan->rows[i]);
    }
    for (int k = 0; k < ex->plan->n_keys; k++) {
        hpc_encoded *encoded = &ex->keys[k].encoded;
        if (encoded->n_rows == 0) continue;
        encoded->rows = malloc((size_t)encoded->n_rows * sizeof *encoded->rows);
        if (encoded->rows == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a key", op);
        encoded->n_rows = 0;
        found = 1;
    }
    for (int i = 0; i < ex->plan->n_rows; i++) {
        hpc_encoded *encoded = &ex->keys[ex->plan->rows[i].key].encoded;
        if (comes_encoded(ex, &ex->plan->rows[i])) encoded->rows[encoded->n_rows++] = i;
    }
    if (found) place->encoded = hpc_layout_take(place, ex->layout.encoded_bytes);
    return HPC_OK;
}

int hpc_params_learn(hpc_exchange *ex, double deadline) {
    hpc_context *c = ex->context;
    if (!ex->layout.encodes) return HPC_OK;
    size_t *at = malloc((size_t)c->group.size * sizeof *at);
    int status = at == NULL ? hpc_fail(HPC_ERR_MEMORY, "exchange", "exchange: no memory for places") : HPC_OK;
    status = hpc_context_agree(c, "exchange", status, deadline);
    if (status == HPC_OK)
        status = hpc_allgather(c, &ex->layout.places[c->group.rank].encoded, at, sizeof *at, hpc_left(deadline));
    for (int r = 0; r < c->group.size && status == HPC_OK; r++) ex->layout.places[r].encoded = at[r];
    free(at);
    return status;
}

size_t hpc_params_encoded_at(const hpc_exchange *ex, int rank, const hpc_row *row) {
    const hpc_encoded *encoded = &ex->keys[row->key].encoded;
    return ex->layout.places[rank].encoded + encoded->offset + hpc_codec_span(encoded->codec, row->offset);
}

/* ---- worker ---- */

uint64_t hpc_params_newest(const hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    return ex->discipline->pulls ? 2 * k->pulls + HPC_PULL_TICKET : 2 * k->pushes;
}

static void decode(hpc_exchange *ex, int key) {
    hpc_encoded *encoded = &ex->keys[key].encoded;
    int me = ex->context->group.rank;
    char *part = hpc_own_part(ex);
    float *params = (float *)(void *)(part + hpc_params_at(ex, me, key, 0));
    for (int i = 0; i < encoded->n_rows; i++) {
        const hpc_row *row = &ex->plan->rows[encoded->rows[i]];
        hpc_codec_decode(encoded->codec, ex->kernels, part + hpc_params_encoded_at(ex, me, row), params + row->offset,
                         (size_t)row->count, ex->stream);
    }
    encoded->decoded = hpc_params_newest(ex, key);
}

void hpc_params_came(hpc_exchange *ex, int key, uint64_t ticket) {
    const hpc_pushed *k = &ex->keys[key];
    if (k->sending == 0 && ticket == hpc_params_newest(ex, key) && k->encoded.decoded != ticket) decode(ex, key);
}

void hpc_params_were_sent(hpc_exchange *ex) {
    for (int k = 0; k < ex->plan->n_keys; k++)
        if (ex->keys[k].encoded.n_rows > 0) decode(ex, k);
}
