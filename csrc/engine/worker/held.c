/* Fold and apply as two calls where each update is applied by itself (HPC_EACH): under ASYNC and SSP(s), with servers,
 * with hosts, among peers and where receivers apply. A quorum of peers has HPC_EACH too, since no owner could keep a
 * mean until a late worker applies or skips it. The mean of a fold is then this rank's own update, which the worker
 * holds. The call fold stores the update where the next push reads it, squares and gather read it there, and apply
 * scales, encodes and pushes it. They read the update without its weight in the plan, so a worker clips its own
 * gradient. A fold sends nothing to other ranks, and ranks need not make the same calls.
 *
 * A skip is a push without an update (HPC_OP_EMPTY): it advances the clocks, so no rank waits for this rank, and no
 * rule runs. The apply of a worker without a gradient is such a push too. Pieces are encoded when they are pushed, so a
 * skip does not change the residual, and residuals are in the units of applied updates.
 *
 * An update is held as the trainer gave it. If it has the wire's format it is held in the slot; if it becomes pieces,
 * in the codec's input format; if it is float32 that is sent in 16 bits, in the slot and also as float32. The slot
 * stays reserved from fold to apply, so no call between them waits. */
#include "engine/worker/held.h"

#include <math.h>
#include <string.h>

#include "engine/owner/block.h"
#include "engine/bytes.h"
#include "engine/pieces.h"
#include "engine/worker/send.h"
#include "engine/worker/worker.h"
#include "engine/worker/waits.h"

/* A key's update that the worker holds. */
typedef struct hpc_held {
    enum { HELD_NONE, HELD_NOTHING, HELD_UPDATE } what; /* HELD_NOTHING: the worker has no gradient */
    hpc_use use;                                        /* of the last apply or skip, as scale is */
    double scale;
    double squares;
    float *values; /* the update as float32 if it is sent in 16 bits; NULL: not needed yet */
    int is_copied; /* values holds the update */
    float *gathered;
    uint64_t empty; /* the number of the last push without an update */
} hpc_held;

int hpc_held_open(hpc_scheme *sc, const char *op) {
    if (!sc->asked.split || !(sc->discipline->traits & HPC_EACH)) return HPC_OK;
    sc->held = hpc_scheme_take(sc, (size_t)sc->plan->n_keys, sizeof *sc->held, op);
    return sc->held != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

int hpc_held_sent_nothing(const hpc_scheme *sc, int key, uint64_t push) {
    return sc->held != NULL && push > 0 && sc->held[key].empty == push;
}

const float *hpc_held_gathered(const hpc_scheme *sc, int key) {
    return sc->held[key].gathered;
}

double hpc_held_squares(const hpc_scheme *sc, int key) {
    return sc->held[key].squares;
}

/* ---- fold ---- */

static float *take_values(hpc_scheme *sc, int key, float **values, const char *op) {
    if (*values == NULL) *values = hpc_scheme_take(sc, (size_t)sc->plan->keys[key].count, sizeof **values, op);
    return *values;
}

/* Stores the update from which the push will make pieces. */
static int hold_source(hpc_scheme *sc, int key, const void *src, const char *op) {
    void *own = NULL;
    const int status = hpc_pieces_source(sc, key, op, &own);
    if (status != HPC_OK) return status;
    if (src != NULL && src != own) memcpy(own, src, hpc_pieces_source_bytes(sc, key));
    return sc->asked.check_finite && !hpc_pieces_are_finite(sc, key, own) ? hpc_worker_refuse_infinite(sc, key, "", op)
                                                                          : HPC_OK;
}

static int hold_array(hpc_scheme *sc, int key, const void *src, const char *op) {
    hpc_held *h = &sc->held[key];
    const int status = hpc_worker_fill_slot(sc, key, src, sc->asked.check_finite, op);
    h->is_copied = src != NULL && !sc->keys[key].codec->plain;
    if (status != HPC_OK || !h->is_copied) return status;
    if (take_values(sc, key, &h->values, op) == NULL) return HPC_ERR_MEMORY;
    memcpy(h->values, src, (size_t)sc->plan->keys[key].count * sizeof *h->values);
    return HPC_OK;
}

int hpc_held_fold(hpc_scheme *sc, int key, int empty, const void *src, hpc_limit *l, uint64_t *ticket, const char *op) {
    hpc_held *h = &sc->held[key];
    int status = hpc_worker_check_call(sc, key, op);
    if (status == HPC_OK && sc->keys[key].sending != 0) status = hpc_fail_cut_short(sc, key, op);
    if (status == HPC_OK) status = hpc_worker_take_slot(sc, key, ticket, l, op);
    if (status != HPC_OK) return status;
    h->what = HELD_NONE; /* a held update that was neither applied nor skipped is replaced */
    if (!empty) status = (hpc_key_pushes_pieces(sc, key) ? hold_source : hold_array)(sc, key, src, op);
    if (status != HPC_OK) return status;
    h->what = empty ? HELD_NOTHING : HELD_UPDATE;
    *ticket = 0; /* a ticket that is done */
    return HPC_OK;
}

/* ---- the held update, in float32 ---- */

/* A part of the update: the elements of one array or one piece. */
typedef struct reading {
    hpc_scheme *sc;
    uint64_t offset, count;
    const char *array; /* the elements, as float32 or in the wire's format; NULL: the update is products of vectors,
                          read from the field piece */
    const hpc_codec *codec; /* of array */
    hpc_codec_input piece;  /* the part's products */
    const hpc_key_pieces *its;
} reading;

typedef void each_part(const reading *r, void *arg);

/* Writes an update that is products of vectors as pieces into the slot of the next push, which overwrites them later,
 * and calls the function each for every piece. */
static int each_piece(reading *r, int key, const void *source, each_part *each, void *arg) {
    for (int p = 0; p < r->its->n_ranges; p++) {
        const hpc_pushed_range *range = &r->its->ranges[p];
        const hpc_codec_source from = {source, range->offset};
        const int64_t n = (int64_t)range->count, most = (int64_t)r->codec->max_bytes(&r->its->config, range->count);
        char *at = hpc_push_slot(r->sc, key) + range->at;
        int64_t kept = 0;
        r->offset = range->offset, r->count = range->count;
        r->piece =
            (hpc_codec_input){at, r->codec->encode(&r->its->encoder.encoding, &from, n, NULL, at, most, &kept), 1};
        if (r->piece.nbytes < 0)
            return hpc_fail(HPC_ERR_INVALID, "fold", "fold: key %s cannot be read: %s", r->sc->plan->keys[key].name,
                            r->codec->text((int)r->piece.nbytes));
        each(r, arg);
    }
    return HPC_OK;
}

/* Calls each for all parts of the update. */
static int read_update(hpc_scheme *sc, int key, each_part *each, void *arg, const char *op) {
    const int pieces = hpc_key_pushes_pieces(sc, key);
    reading r = {.sc = sc, .count = sc->plan->keys[key].count, .codec = sc->keys[key].codec};
    void *source = NULL;
    if (sc->held[key].what == HELD_NOTHING) return HPC_OK;
    const int status = pieces ? hpc_pieces_source(sc, key, op, &source) : HPC_OK;
    if (status != HPC_OK) return status;
    if (pieces) r.its = &sc->pieces[key];
    if (pieces && r.codec->source_bytes != NULL) return each_piece(&r, key, source, each, arg);
    if (pieces) r.codec = hpc_codec_of(HPC_F32);
    r.array = pieces ? source : hpc_push_slot(sc, key);
    each(&r, arg);
    return HPC_OK;
}

/* Writes n values of the part, beginning at element from, to the array to. */
static void read_values(const reading *r, uint64_t from, size_t n, float *to) {
    if (r->array != NULL) {
        hpc_codec_decode(r->codec, r->sc->kernels, r->array + hpc_codec_span(r->codec, from), to, n, 0);
        return;
    }
    memset(to, 0, n * sizeof *to);
    r->codec->add_range(&r->its->config, (int64_t)r->count, &r->piece, 1, from, n, to);
}

static size_t block_at(const reading *r, uint64_t from) {
    return r->count - from < HPC_BLOCK ? (size_t)(r->count - from) : HPC_BLOCK;
}

static void add_squares(const reading *r, void *arg) {
    float block[HPC_BLOCK];
    double *sum = arg, squares = 0;
    const int known = r->array == NULL && r->codec->squares != NULL &&
                      r->codec->squares(&r->its->config, (int64_t)r->count, &r->piece, 1, &squares);
    for (uint64_t from = 0; from < r->count && !known; from += HPC_BLOCK) {
        read_values(r, from, block_at(r, from), block);
        squares += r->sc->kernels->squares(block, block_at(r, from));
    }
    *sum += squares;
}

static void gather_part(const reading *r, void *arg) {
    float *mean = arg;
    for (uint64_t from = 0; from < r->count; from += HPC_BLOCK)
        read_values(r, from, block_at(r, from), mean + r->offset + from);
}

static int find_squares(hpc_scheme *sc, int key, const char *op) {
    sc->held[key].squares = 0;
    return read_update(sc, key, add_squares, &sc->held[key].squares, op);
}

static int gather(hpc_scheme *sc, int key, const char *op) {
    float *mean = take_values(sc, key, &sc->held[key].gathered, op);
    if (mean == NULL) return HPC_ERR_MEMORY;
    memset(mean, 0, (size_t)sc->plan->keys[key].count * sizeof *mean);
    return read_update(sc, key, gather_part, mean, op);
}

/* ---- apply ---- */

static void scale_values(const hpc_scheme *sc, float *values, uint64_t n, double scale) {
    const void *from = values;
    sc->kernels->f32(values, &from, &scale, 1, (size_t)n, 0);
}

/* Scales the update in the wire's format, block by block. */
static void scale_slot(const hpc_scheme *sc, int key, double scale) {
    const hpc_codec *codec = sc->keys[key].codec;
    const uint64_t count = sc->plan->keys[key].count;
    float block[HPC_BLOCK];
    for (uint64_t from = 0; from < count; from += HPC_BLOCK) {
        const size_t n = count - from < HPC_BLOCK ? (size_t)(count - from) : HPC_BLOCK;
        char *at = hpc_push_slot(sc, key) + hpc_codec_span(codec, from);
        const void *piece = at;
        codec->fold(sc->kernels)(block, &piece, &scale, 1, n, 0);
        codec->encode(NULL, &(hpc_codec_source){block, 0}, (int64_t)n, NULL, at, (int64_t)codec->max_bytes(NULL, n),
                      NULL);
    }
}

static int scale_pieces(hpc_scheme *sc, int key, double scale, const char *op) {
    const hpc_codec *codec = sc->keys[key].codec;
    void *source = NULL;
    const int status = hpc_pieces_source(sc, key, op, &source);
    if (status != HPC_OK) return status;
    if (codec->scale != NULL)
        codec->scale(sc->configs[key], source, (float)scale);
    else
        scale_values(sc, source, sc->plan->keys[key].count, scale);
    return HPC_OK;
}

/* Scales the held update. The result may exceed the wire's range although fold has checked the unscaled update. A scale
 * of NaN is allowed. */
static int scale_update(hpc_scheme *sc, int key, double scale, const char *op) {
    const hpc_held *h = &sc->held[key];
    if (scale == 1) return HPC_OK;
    if (hpc_key_pushes_pieces(sc, key)) return scale_pieces(sc, key, scale, op);
    if (!h->is_copied) {
        scale_slot(sc, key, scale);
        return HPC_OK;
    }
    scale_values(sc, h->values, sc->plan->keys[key].count, scale);
    return hpc_worker_fill_slot(sc, key, h->values, 0, op);
}

static int send_push(hpc_scheme *sc, int key, int what, hpc_limit *l, uint64_t *ticket, const char *op) {
    hpc_held *h = &sc->held[key];
    const hpc_pushed *k = &sc->keys[key];
    if (what == HPC_PUSH_EMPTY && k->sending == 0) h->empty = k->pushes + 1;
    const int status = hpc_worker_start(sc, key, HPC_PUSH | HPC_PULL, what, NULL, l, ticket, op);
    if (status == HPC_OK || k->sending != 0) h->what = HELD_NONE;
    return status;
}

/* Continues the same call after a timeout. */
static int send_rest(hpc_scheme *sc, int key, hpc_use use, double scale, hpc_limit *l, uint64_t *ticket,
                     const char *op) {
    const hpc_held *h = &sc->held[key];
    const int what = sc->keys[key].started & (HPC_PUSH_EMPTY | HPC_PUSH_HELD);
    const int is_same = h->use == use && (use != HPC_USE_APPLY || h->scale == scale);
    return what != 0 && is_same ? send_push(sc, key, what, l, ticket, op) : hpc_fail_cut_short(sc, key, op);
}

int hpc_held_use(hpc_scheme *sc, int key, hpc_use use, double scale, hpc_limit *l, uint64_t *ticket, const char *op) {
    hpc_held *h = &sc->held[key];
    if (sc->keys[key].sending != 0) return send_rest(sc, key, use, scale, l, ticket, op);
    if (isinf(scale)) return hpc_fail_scale(sc, key, scale, op);
    if (h->what == HELD_NONE) return hpc_fail_no_fold(sc, key, op);
    *ticket = 0;
    if (use == HPC_USE_SQUARES) return find_squares(sc, key, op);
    if (use == HPC_USE_GATHER) return gather(sc, key, op);
    h->use = use, h->scale = scale;
    if (use == HPC_USE_SKIP || h->what == HELD_NOTHING) return send_push(sc, key, HPC_PUSH_EMPTY, l, ticket, op);
    const int status = scale_update(sc, key, scale, op);
    return status == HPC_OK ? send_push(sc, key, HPC_PUSH_HELD, l, ticket, op) : status;
}

/* A pull after a fold applies the held update. A push, even with a pull, replaces the held update. */
int hpc_held_start(hpc_scheme *sc, int key, int flags, const void *src, hpc_limit *l, uint64_t *ticket,
                   const char *op) {
    hpc_held *h = &sc->held[key];
    const hpc_pushed *k = &sc->keys[key];
    if (flags == HPC_PUSH) return hpc_held_fold(sc, key, 0, src, l, ticket, op);
    const int is_cut = k->sending != 0 && k->started & (HPC_PUSH_EMPTY | HPC_PUSH_HELD);
    if (flags == HPC_PULL && (is_cut || (k->sending == 0 && h->what != HELD_NONE)))
        return hpc_held_use(sc, key, HPC_USE_APPLY, 1, l, ticket, op);
    const int status = hpc_worker_start(sc, key, flags, 0, src, l, ticket, op);
    if (flags & HPC_PUSH && (status == HPC_OK || k->sending != 0)) h->what = HELD_NONE;
    return status;
}
