#include "engine/pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/owner/signals.h"
#include "engine/bytes.h"
#include "engine/layout/stages.h"

enum { LINE = 64 };

static size_t aligned(size_t nbytes) {
    return (nbytes + LINE - 1) / LINE * LINE;
}

/* ---- the ranges of a key's update that are encoded separately; they follow from the plan alone ---- */

static int by_place(const void *a, const void *b) {
    const hpc_pushed_range *p = a, *q = b;
    if (p->offset != q->offset) return p->offset < q->offset ? -1 : 1;
    return p->count < q->count ? -1 : p->count > q->count;
}

static int is_pushed(const hpc_row *row) {
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].row < 0) return 1;
    return 0;
}

/* The rows of a key are in the order of their offsets. Rows of the same elements share one range. */
int hpc_pieces_find(hpc_scheme *sc, int key, int first, const char *op) {
    const hpc_plan *plan = sc->plan;
    hpc_key_pieces *its = &sc->pieces[key];
    int end;
    for (end = first; end < plan->n_rows && plan->rows[end].key == key;) end++;
    its->ranges = malloc((size_t)(end - first) * sizeof *its->ranges);
    if (its->ranges == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a key", op);
    for (int i = first; i < end; i++)
        if (is_pushed(&plan->rows[i]))
            its->ranges[its->n_ranges++] = (hpc_pushed_range){plan->rows[i].offset, plan->rows[i].count, 0};
    qsort(its->ranges, (size_t)its->n_ranges, sizeof *its->ranges, by_place);
    int n = 0;
    for (int p = 0; p < its->n_ranges; p++) {
        const hpc_pushed_range *last = n > 0 ? &its->ranges[n - 1] : NULL, range = its->ranges[p];
        if (last != NULL && last->offset == range.offset && last->count == range.count) continue;
        if (last != NULL && last->offset + last->count > range.offset)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: rows of key %s take elements %llu to %llu and %llu to %llu, which overlap; an update "
                            "that goes as pieces is encoded once, so rows take the same elements or others",
                            op, plan->keys[key].name, (unsigned long long)last->offset,
                            (unsigned long long)(last->offset + last->count - 1), (unsigned long long)range.offset,
                            (unsigned long long)(range.offset + range.count - 1));
        its->ranges[n] = range;
        its->ranges[n].at = its->slot_bytes;
        its->slot_bytes += aligned(its->codec->max_bytes(&its->config, range.count));
        n++;
    }
    its->n_ranges = n;
    for (int i = first, p = 0; i < end; i++) {
        if (!is_pushed(&plan->rows[i])) continue;
        const hpc_edge *push = hpc_row_input(&plan->rows[i], sc->context->group.rank);
        its->gives |= push != NULL && !hpc_input_is_empty(sc, push);
        while (its->ranges[p].offset != plan->rows[i].offset) p++;
        sc->layout.row_from[i] = its->ranges[p].at;
    }
    return HPC_OK;
}

/* ---- open ---- */

/* Finds how many bytes a slot reserves for an input of each row: as many as the codec with the largest output needs, of
 * all codecs of the row's inputs. */
static void find_rooms(const hpc_scheme *sc) {
    for (int i = 0; i < sc->plan->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[i];
        size_t most = hpc_input_bytes(sc, row);
        for (int e = 0; e < row->n_in; e++) {
            const size_t nbytes =
                hpc_edge_codec(sc->plan, row, &row->in[e])->max_bytes(sc->configs[row->key], row->count);
            if (nbytes > most) most = nbytes;
        }
        sc->layout.row_room[i] = aligned(most);
    }
}

int hpc_pieces_open(hpc_scheme *sc, const hpc_exchange_config *f, const char *op) {
    const hpc_plan *plan = sc->plan;
    int some = 0;
    sc->configs = calloc((size_t)plan->n_keys, sizeof *sc->configs);
    if (sc->configs == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d keys", op, plan->n_keys);
    for (int i = 0; i < plan->n_rows; i++)
        some |=
            !hpc_codec_of(plan->rows[i].codec_in)->addressable || !hpc_codec_of(plan->rows[i].codec_out)->addressable;
    if (!some) return HPC_OK;
    sc->pieces = calloc((size_t)plan->n_keys, sizeof *sc->pieces);
    sc->layout.row_from = calloc((size_t)plan->n_rows, sizeof *sc->layout.row_from);
    sc->layout.row_room = calloc((size_t)plan->n_rows, sizeof *sc->layout.row_room);
    if (sc->pieces == NULL || sc->layout.row_from == NULL || sc->layout.row_room == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the codecs of %d keys", op, plan->n_keys);
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        const hpc_codec *in = hpc_codec_of(row->codec_in), *out = hpc_codec_of(row->codec_out);
        hpc_key_pieces *its = &sc->pieces[row->key];
        if (in->addressable && out->addressable) continue;
        its->codec = in->addressable ? out : in;
        its->config = *f->codecs[row->key];
    }
    for (int k = 0; k < plan->n_keys; k++) {
        hpc_key_pieces *its = &sc->pieces[k];
        if (its->codec == NULL) continue;
        snprintf(its->name, sizeof its->name, "%s", its->config.name != NULL ? its->config.name : its->codec->name);
        its->config.name = its->name;
        sc->configs[k] = &its->config;
        const size_t most = its->codec->max_bytes(&its->config, plan->keys[k].count);
        its->unit = its->kept_unit = 1;
        its->packs = its->codec->pack != NULL && its->codec->scratch(&its->config, most) > 0;
    }
    find_rooms(sc);
    return HPC_OK;
}

/* Allocates room for the largest piece of any row. */
static int open_packing(const hpc_scheme *sc, hpc_packing *packing, const char *op) {
    for (int i = 0; sc->pieces != NULL && i < sc->plan->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[i];
        const hpc_codec *codec = sc->pieces[row->key].codec;
        const hpc_codec_config *config = sc->configs[row->key];
        if (codec == NULL || codec->pack == NULL) continue;
        const size_t most = codec->max_bytes(config, row->count), room = codec->scratch(config, most);
        if (room == 0) continue;
        if (most > packing->most) packing->most = most;
        if (room > packing->room) packing->room = room;
    }
    if (packing->room == 0) return HPC_OK;
    packing->raw = malloc(packing->most);
    packing->scratch = malloc(packing->room);
    if (packing->raw != NULL && packing->scratch != NULL) return HPC_OK;
    return hpc_fail(HPC_ERR_MEMORY, op, "%s: no %zu bytes to compress pieces", op, packing->most + packing->room);
}

static void free_packing(hpc_packing *packing) {
    free(packing->raw);
    free(packing->scratch);
}

void hpc_pieces_free(hpc_scheme *sc) {
    for (int i = 0; sc->work != NULL && i < sc->n_work; i++) free(sc->work[i].encoder);
    for (int k = 0; sc->pieces != NULL && k < sc->plan->n_keys; k++) {
        free(sc->pieces[k].ranges);
        hpc_memory_release(sc->pieces[k].source);
    }
    hpc_private_free(sc->encoders, sc->encoders_bytes);
    for (int c = 0; sc->cores != NULL && c < sc->n_own_cores; c++) free_packing(&sc->cores[c].packing);
    free_packing(&sc->packing);
    free(sc->pieces);
    free(sc->configs);
    free(sc->layout.row_from);
    free(sc->layout.row_room);
}

int hpc_row_variable_codec(const hpc_row *row) {
    if (!hpc_codec_of(row->codec_in)->addressable) return row->codec_in;
    return hpc_codec_of(row->codec_out)->addressable ? -1 : row->codec_out;
}

int hpc_pieces_refuse(const hpc_exchange_config *config, const char *name, const char *why) {
    int number = -1;
    for (int i = 0; i < config->plan->n_rows && number < 0; i++)
        number = hpc_row_variable_codec(&config->plan->rows[i]);
    if (number < 0) return HPC_OK;
    return hpc_fail(HPC_ERR_UNSUPPORTED, "exchange", "exchange: codec %s does not go with %s: %s",
                    hpc_codec_of(number)->name, name, why);
}

const hpc_codec *hpc_row_pieces(const hpc_scheme *sc, const hpc_row *row) {
    const hpc_codec *codec = sc->pieces == NULL ? NULL : sc->pieces[row->key].codec;
    if (codec == NULL || sc->pieces[row->key].packs) return NULL;
    for (int e = 0; e < row->n_in; e++)
        if (hpc_edge_codec(sc->plan, row, &row->in[e]) != codec) return NULL;
    return codec;
}

/* ---- encoders ---- */

static size_t state_bytes(const hpc_key_pieces *its, uint64_t count) {
    return aligned((size_t)count * sizeof(float) * (size_t)hpc_codec_state_slots(its->codec, &its->config));
}

/* If a fold may be skipped, the encoder also keeps the state from before that fold. */
static size_t all_bytes(const hpc_scheme *sc, const hpc_key_pieces *its, uint64_t count) {
    return state_bytes(its, count) * (sc->use != NULL ? 2 : 1);
}

/* memory: all_bytes of zeroes. */
static void init(const hpc_scheme *sc, hpc_encoder *encoder, const hpc_key_pieces *its, uint64_t count, void *memory) {
    encoder->codec = its->codec;
    encoder->encoding.config = &its->config;
    atomic_store_explicit(&encoder->delta, its->config.delta, memory_order_relaxed);
    encoder->packs = its->packs;
    encoder->keeps = hpc_codec_keeps(its->codec, &its->config);
    encoder->slots = (size_t)hpc_codec_state_slots(its->codec, &its->config);
    encoder->count = count;
    encoder->state = memory;
    if (sc->use != NULL) encoder->before = (float *)(void *)((char *)memory + state_bytes(its, count));
}

int hpc_pieces_open_worker(hpc_scheme *sc, const char *op) {
    int status = open_packing(sc, &sc->packing, op);
    for (int c = 0; c < sc->n_own_cores && status == HPC_OK; c++) status = open_packing(sc, &sc->cores[c].packing, op);
    size_t nbytes = 0, at = 0;
    int gives = 0;
    const int n = sc->pieces != NULL ? sc->plan->n_keys : 0;
    for (int k = 0; k < n; k++) {
        gives |= sc->pieces[k].gives;
        if (sc->pieces[k].gives) nbytes += all_bytes(sc, &sc->pieces[k], sc->plan->keys[k].count);
    }
    if (status != HPC_OK || !gives) return status;
    if (nbytes > 0) sc->encoders = hpc_private_alloc(nbytes, -1);
    sc->encoders_bytes = nbytes;
    if (nbytes > 0 && sc->encoders == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no %zu bytes for the residuals of keys", op, nbytes);
    for (int k = 0; k < n; k++) {
        hpc_key_pieces *its = &sc->pieces[k];
        if (!its->gives) continue;
        init(sc, &its->encoder, its, sc->plan->keys[k].count, nbytes > 0 ? (char *)sc->encoders + at : NULL);
        at += all_bytes(sc, its, sc->plan->keys[k].count);
    }
    return HPC_OK;
}

size_t hpc_pieces_state_bytes(const hpc_scheme *sc, const hpc_row *row) {
    return all_bytes(sc, &sc->pieces[row->key], row->count);
}

int hpc_pieces_open_row(hpc_scheme *sc, hpc_work *w, void *memory, const char *op) {
    w->encoder = calloc(1, sizeof *w->encoder);
    if (w->encoder == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for an encoder", op);
    init(sc, w->encoder, &sc->pieces[w->row->key], w->row->count, memory);
    return HPC_OK;
}

static void begin(hpc_encoder *encoder, const hpc_codec_source *source, uint64_t n) {
    encoder->was = encoder->encoding;
    encoder->fresh = 1;
    encoder->encoding.made++;
    encoder->encoding.asked = atomic_load_explicit(&encoder->delta, memory_order_relaxed);
    if (encoder->codec->begin != NULL) encoder->codec->begin(&encoder->encoding, source, encoder->state, (int64_t)n);
}

static void end(hpc_encoder *encoder, uint64_t n, int64_t kept, uint64_t pieces, uint64_t nbytes, double since) {
    if (encoder->codec->end != NULL) encoder->codec->end(&encoder->encoding, (int64_t)n, kept);
    hpc_tally_add(&encoder->pieces, pieces);
    hpc_tally_add(&encoder->elements, n);
    hpc_tally_add(&encoder->kept, (uint64_t)kept);
    hpc_tally_add(&encoder->bytes, nbytes);
    hpc_tally_add_seconds(&encoder->seconds, hpc_now() - since);
}

/* The encoder's state is stored range after range: all state slots of one range, then all of the next. */
static int64_t encode_range(hpc_encoder *encoder, const hpc_codec_source *source, uint64_t offset, uint64_t n,
                            void *out, int64_t *kept, const hpc_packing *packing) {
    const hpc_codec_config *config = encoder->encoding.config;
    const size_t most = encoder->codec->max_bytes(config, n), slots = encoder->slots;
    float *state = slots > 0 ? encoder->state + offset * slots : NULL;
    if (encoder->before != NULL && slots > 0)
        memcpy(encoder->before + offset * slots, state, n * slots * sizeof(float));
    int64_t nbytes = encoder->codec->encode(&encoder->encoding, source, (int64_t)n, state, out, (int64_t)most, kept);
    if (nbytes < 0 || !encoder->packs) return nbytes;
    return encoder->codec->pack(config, out, most, packing->scratch, packing->room);
}

int hpc_pieces_decode(const hpc_key_pieces *its, float *acc, uint64_t n, const char *piece, size_t nbytes,
                      double weight, const hpc_packing *packing) {
    const int64_t raw = !its->packs || nbytes == 0
                            ? 0
                            : its->codec->unpack(&its->config, piece, (int64_t)nbytes, packing->raw, packing->most,
                                                 packing->scratch, packing->room);
    if (raw < 0) return (int)raw;
    if (raw > 0) return its->codec->decode_add(&its->config, acc, (int64_t)n, packing->raw, raw, weight);
    return its->codec->decode_add(&its->config, acc, (int64_t)n, piece, (int64_t)nbytes, weight);
}

static void cannot_encode(hpc_scheme *sc, int key, uint64_t offset, int64_t status) {
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: codec %s cannot encode key %s from element %llu on: %s",
             sc->context->group.rank, sc->pieces[key].name, sc->plan->keys[key].name, (unsigned long long)offset,
             sc->pieces[key].codec->text((int)status));
    hpc_scheme_fail(sc, HPC_ERR_INVALID, why);
}

/* ---- the worker ---- */

size_t hpc_pieces_source_bytes(const hpc_scheme *sc, int key) {
    const hpc_key_pieces *its = &sc->pieces[key];
    const uint64_t count = sc->plan->keys[key].count;
    return its->codec->source_bytes != NULL ? its->codec->source_bytes(&its->config, count) : count * sizeof(float);
}

int hpc_pieces_source(hpc_scheme *sc, int key, const char *op, void **at) {
    const hpc_place *place = &sc->layout.places[sc->context->group.rank];
    hpc_key_pieces *its = &sc->pieces[key];
    int status = HPC_OK;
    if (sc->layout.dense_bytes > 0) {
        *at = hpc_own_part(sc) + place->dense + sc->layout.dense_at[key];
        return HPC_OK;
    }
    if (its->source == NULL) status = hpc_memory_create(hpc_pieces_source_bytes(sc, key), op, &its->source);
    if (status == HPC_OK) {
        hpc_memory_close_descriptor(its->source); /* only this process maps it */
        *at = hpc_memory_data(its->source);
    }
    return status;
}

int hpc_pieces_are_finite(const hpc_scheme *sc, int key, const void *update) {
    const hpc_key_pieces *its = &sc->pieces[key];
    const hpc_codec_source source = {update, 0};
    const uint64_t count = sc->plan->keys[key].count;
    if (its->codec->is_finite != NULL) return its->codec->is_finite(&its->config, &source, count);
    return sc->kernels->all_finite(update, (size_t)count, HPC_F32);
}

int hpc_pieces_encode(hpc_scheme *sc, int key, const void *update, char *slot) {
    hpc_key_pieces *its = &sc->pieces[key];
    hpc_encoder *encoder = &its->encoder;
    const double since = hpc_now();
    int64_t kept_in_all = 0, nbytes_in_all = 0;
    HPC_SPAN(sc->context->group.timeline, "encode", sc->plan->keys[key].name);
    begin(encoder, &(hpc_codec_source){update, 0}, encoder->count);
    for (int p = 0; p < its->n_ranges; p++) {
        const hpc_pushed_range *range = &its->ranges[p];
        const hpc_codec_source source = {update, range->offset};
        int64_t kept = 0, nbytes = encode_range(encoder, &source, range->offset, range->count, slot + range->at, &kept,
                                                &sc->packing);
        if (nbytes < 0) {
            cannot_encode(sc, key, range->offset, nbytes);
            return -1;
        }
        kept_in_all += kept;
        nbytes_in_all += nbytes;
    }
    end(encoder, encoder->count, kept_in_all, (uint64_t)its->n_ranges, (uint64_t)nbytes_in_all, since);
    return HPC_OK;
}

/* ---- folds that are over ---- */

#define SKIPPED (-1.0) /* marks a skipped fold, in the place of a factor */

static void forget_fold(hpc_encoder *encoder) {
    if (!encoder->fresh) return;
    float *state = encoder->state;
    encoder->state = encoder->before;
    encoder->before = state;
    encoder->encoding = encoder->was;
    encoder->fresh = 0;
}

/* Multiplies the part of a residual that is older than the last fold by factor, which converts that part to the units
 * of the last fold. */
static void scale_range(const hpc_encoder *encoder, uint64_t offset, uint64_t n, double factor) {
    const size_t at = offset * encoder->slots;
    const float *before = encoder->fresh ? encoder->before + at : encoder->state + at;
    float *residual = encoder->state + at;
    for (uint64_t i = 0; i < n; i++) residual[i] += (float)(factor - 1) * before[i];
}

static void end_fold(hpc_encoder *encoder, const hpc_pushed_range *ranges, int n, double factor) {
    if (factor == SKIPPED) forget_fold(encoder);
    for (int p = 0; p < n && encoder->keeps && factor != SKIPPED && factor != 1; p++)
        scale_range(encoder, ranges[p].offset, ranges[p].count, factor);
    encoder->fresh = 0;
}

void hpc_pieces_end_fold(hpc_scheme *sc, int key, int applied) {
    if (!hpc_key_has_pieces(sc, key)) return;
    hpc_key_pieces *its = &sc->pieces[key];
    const hpc_pushed *k = &sc->keys[key];
    const double factor = applied ? its->unit / its->kept_unit : SKIPPED;
    if (applied) its->kept_unit = its->unit;
    if (its->encoder.codec != NULL) end_fold(&its->encoder, its->ranges, its->n_ranges, factor);
    for (int i = 0; i < k->n_shares && factor != 1; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        for (int r = 0; r < share->n_rows && share->owner == sc->context->group.rank; r++) {
            hpc_encoder *encoder = hpc_work_of(sc, share->rows[r])->encoder;
            if (encoder != NULL)
                atomic_store_explicit(&encoder->outcomes[(k->pushes - 1) % 2], factor, memory_order_relaxed);
        }
    }
}

/* Reads the outcome of the row's last fold, which the worker stored before this rank's next push; the core runs after
 * that push's event. If the worker stored no outcome, the fold was applied, in the same units as the fold before it. */
static void settle_fold(const hpc_work *w) {
    const hpc_pushed_range whole = {0, w->encoder->count, 0};
    _Atomic double *outcome = &w->encoder->outcomes[(w->share->version - 1) % 2];
    const double told = atomic_load_explicit(outcome, memory_order_relaxed);
    atomic_store_explicit(outcome, 0, memory_order_relaxed);
    end_fold(w->encoder, &whole, 1, told == 0 ? 1 : told);
}

/* Adds a piece of this rank back to the residual from which it was taken. NaN and Inf in the residual become 0. */
static void put_back(hpc_scheme *sc, const hpc_row *row, hpc_encoder *encoder, float *residual, const char *piece,
                     const hpc_packing *packing) {
    const hpc_key_pieces *its = &sc->pieces[row->key];
    const size_t nbytes = its->codec->length(&its->config, piece, row->count);
    if (!encoder->keeps || its->config.no_feedback) return;
    const int status = hpc_pieces_decode(its, residual, row->count, piece, nbytes, 1, packing);
    if (status != 0) {
        char why[HPC_FAILURE_BYTES];
        snprintf(why, sizeof why, "rank %d: its own piece of key %s cannot go back into the residual: %s",
                 sc->context->group.rank, sc->plan->keys[row->key].name, its->codec->text(status));
        hpc_scheme_fail(sc, HPC_ERR_TRANSPORT, why);
        return;
    }
    hpc_codec_drop_wild(residual, (int64_t)row->count);
    hpc_tally_add(&encoder->returned, nbytes);
}

void hpc_pieces_return(hpc_scheme *sc, const hpc_row *row, const char *slot) {
    hpc_key_pieces *its = &sc->pieces[row->key];
    float *residual = its->encoder.keeps ? its->encoder.state + row->offset * its->encoder.slots : NULL;
    put_back(sc, row, &its->encoder, residual, slot + hpc_row_from(sc, row), &sc->packing);
}

/* Order: this store comes before this rank's next push; the core's relaxed load of left_out comes after that push's
 * event. */
void hpc_pieces_leave_out(hpc_work *w) {
    if (w->encoder != NULL) atomic_store_explicit(&w->encoder->left_out, 1, memory_order_relaxed);
}

void hpc_pieces_settle(hpc_scheme *sc, hpc_work *w, const hpc_packing *packing) {
    hpc_encoder *encoder = w->encoder;
    const int left_out = atomic_load_explicit(&encoder->left_out, memory_order_relaxed);
    atomic_store_explicit(&encoder->left_out, 0, memory_order_relaxed);
    if (left_out && (encoder->before == NULL || encoder->fresh))
        put_back(sc, w->row, encoder, encoder->state, w->encoded, packing);
    if (encoder->before != NULL) settle_fold(w);
}

size_t hpc_pieces_pushed(const hpc_scheme *sc, const hpc_share *share, const char *slot) {
    size_t nbytes = 0;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[share->rows[i]];
        const hpc_edge *push = hpc_row_input(row, sc->context->group.rank);
        if (push == NULL || hpc_input_is_empty(sc, push)) continue;
        nbytes += hpc_push_bytes(sc, row, slot + hpc_row_from(sc, row));
    }
    return nbytes;
}

/* ---- the core ---- */

static void cannot_decode(hpc_core *core, const hpc_work *w, int rank, int status) {
    const hpc_scheme *sc = core->scheme;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: the piece of rank %d for key %.64s, elements %llu to %llu, step %llu: %s",
             sc->context->group.rank, rank, sc->plan->keys[w->row->key].name, (unsigned long long)w->row->offset,
             (unsigned long long)(w->row->offset + w->row->count - 1), (unsigned long long)(w->step + 1),
             sc->pieces[w->row->key].codec->text(status));
    hpc_scheme_fail(core->scheme, HPC_ERR_TRANSPORT, why);
}

int hpc_pieces_add_again(hpc_core *core, hpc_work *w, const hpc_input *in, const char *piece, double weight,
                         float *to) {
    const double since = hpc_now();
    const size_t nbytes = in->codec->length(w->config, piece, w->row->count);
    int status =
        hpc_pieces_decode(&core->scheme->pieces[w->row->key], to, w->row->count, piece, nbytes, weight, &core->packing);
    if (status != 0) {
        cannot_decode(core, w, in->rank, status);
        return -1;
    }
    hpc_tally_add(&w->decoded, nbytes);
    hpc_tally_add_seconds(&w->decode_seconds, hpc_now() - since);
    return 0;
}

int hpc_pieces_add(hpc_core *core, hpc_work *w, const hpc_input *in, const char *piece, double weight, float *to) {
    hpc_scheme *sc = core->scheme;
    if (!in->codec->addressable) {
        const size_t nbytes = in->codec->length(w->config, piece, w->row->count);
        if (hpc_pieces_add_again(core, w, in, piece, weight, to) != 0) return -1;
        hpc_tally_add(&core->tally.bytes_folded, nbytes);
        hpc_count_received(sc, in->rank, nbytes);
        return 0;
    }
    const size_t nbytes = in->codec->max_bytes(NULL, w->row->count);
    in->codec->decode_add(NULL, to, (int64_t)w->row->count, piece, (int64_t)nbytes, weight);
    hpc_tally_add(&core->tally.bytes_folded, nbytes);
    return 0;
}

/* Lists the pieces of all inputs in core->pieces, and returns their bytes. If counts is set, counts these bytes as
 * received. */
static uint64_t gather(hpc_core *core, const hpc_work *w, const hpc_inputs *inputs, int counts) {
    const hpc_codec *codec = core->scheme->pieces[w->row->key].codec;
    uint64_t nbytes = 0;
    for (int i = 0; i < inputs->n; i++) {
        const size_t its = codec->length(w->config, inputs->bases[i], w->row->count);
        core->pieces[i] = (hpc_codec_input){inputs->bases[i], (int64_t)its, inputs->weights[i]};
        if (counts) hpc_count_received(core->scheme, inputs->from[i]->rank, its);
        nbytes += its;
    }
    return nbytes;
}

static void count_decoded(hpc_core *core, hpc_work *w, uint64_t nbytes, double since) {
    hpc_tally_add(&core->tally.bytes_folded, nbytes);
    hpc_tally_add(&w->decoded, nbytes);
    hpc_tally_add_seconds(&w->decode_seconds, hpc_now() - since);
}

int hpc_pieces_add_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double rate, float *param) {
    const hpc_codec *codec = core->scheme->pieces[w->row->key].codec;
    const double since = hpc_now();
    const uint64_t nbytes = gather(core, w, inputs, 1);
    int wrong = 0;
    int status = codec->add_all(w->config, param, (int64_t)w->row->count, core->pieces, inputs->n, rate, &wrong);
    if (status != 0) {
        cannot_decode(core, w, inputs->from[wrong]->rank, status);
        return -1;
    }
    count_decoded(core, w, nbytes, since);
    return 0;
}

int hpc_pieces_check_all(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, int counts) {
    const hpc_codec *codec = core->scheme->pieces[w->row->key].codec;
    const double since = hpc_now();
    const uint64_t nbytes = gather(core, w, inputs, counts);
    int wrong = 0;
    int status = codec->check_all(w->config, (int64_t)w->row->count, core->pieces, inputs->n, &wrong);
    if (status != 0) {
        cannot_decode(core, w, inputs->from[wrong]->rank, status);
        return -1;
    }
    if (counts) count_decoded(core, w, nbytes, since);
    return 0;
}

void hpc_pieces_sum_range(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, size_t from, size_t n, float *sum) {
    const hpc_codec *codec = core->scheme->pieces[w->row->key].codec;
    const double since = hpc_now();
    memset(sum, 0, n * sizeof *sum);
    codec->add_range(w->config, (int64_t)w->row->count, core->pieces, inputs->n, from, n, sum);
    hpc_tally_add_seconds(&w->decode_seconds, hpc_now() - since);
}

int hpc_pieces_squares(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares) {
    const hpc_codec *codec = core->scheme->pieces[w->row->key].codec;
    double sum = 0;
    if (codec->squares == NULL || !codec->squares(w->config, (int64_t)w->row->count, core->pieces, inputs->n, &sum))
        return 0;
    *squares += sum;
    return 1;
}

int hpc_pieces_encode_row(hpc_core *core, hpc_work *w) {
    hpc_scheme *sc = core->scheme;
    const double since = hpc_now();
    const hpc_codec_source source = {w->acc, 0};
    int64_t kept = 0;
    hpc_pieces_settle(sc, w, &core->packing);
    begin(w->encoder, &source, w->row->count);
    int64_t nbytes = encode_range(w->encoder, &source, 0, w->row->count, w->encoded, &kept, &core->packing);
    if (nbytes < 0) {
        cannot_encode(sc, w->row->key, w->row->offset, nbytes);
        return -1;
    }
    end(w->encoder, w->row->count, kept, 1, (uint64_t)nbytes, since);
    return 0;
}

int hpc_pieces_encode_nothing(const hpc_work *w) {
    w->out_codec->encode_nothing(w->config, (int64_t)w->row->count, w->encoded);
    return 0;
}
