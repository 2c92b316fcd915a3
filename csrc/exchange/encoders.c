/* The residuals of encoders of pieces, and the counts of their work. */
#include <float.h>
#include <string.h>

#include "engine/bytes.h"
#include "engine/pieces.h"
#include "exchange/exchange.h"

/* ---- the state ---- */

/* The encoder of a row, or (-1) of the pushes of a key; NULL: it has no encoder. */
static hpc_encoder *find(const hpc_scheme *sc, int key, int row) {
    if (sc->pieces == NULL) return NULL;
    if (row >= 0) return sc->work[sc->work_of[row]].encoder;
    return sc->pieces[key].encoder.codec != NULL ? &sc->pieces[key].encoder : NULL;
}

/* The scheme of a key and of a row of it (-1: of none); NULL, and an error: it has no such row here. */
static hpc_scheme *scheme_of(const hpc_exchange *ex, int *key, int *row, const char *op) {
    const int asked = *row;
    hpc_scheme *sc = hpc_scheme_of(ex, key, op);
    if (sc == NULL || asked == -1) return sc;
    if (hpc_scheme_of_row(ex, row, op) == sc && sc->work_of[*row] >= 0 && sc->plan->rows[*row].key == *key) return sc;
    hpc_fail(HPC_ERR_INVALID, op, "%s: row %d is no row of key %s that rank %d owns", op, asked,
             sc->plan->keys[*key].name, sc->context->group.rank);
    return NULL;
}

static int64_t count_values(const hpc_encoder *encoder) {
    if (encoder == NULL) return 0;
    const size_t slots = encoder->slots == 0 ? 0 : encoder->slots + !encoder->keeps;
    return (int64_t)(encoder->count * slots) + HPC_ENCODER_VALUES;
}

int64_t hpc_exchange_encoder_values(const hpc_exchange *ex, int key, int row) {
    const hpc_scheme *sc = scheme_of(ex, &key, &row, "encoder_values");
    return sc == NULL ? HPC_ERR_INVALID : count_values(find(sc, key, row));
}

/* Copies a part's state between the encoder's order (slots of each part) and the caller's (slot by slot), whose
 * residual is in units of 1. */
static void copy_part(const hpc_encoder *encoder, uint64_t offset, uint64_t count, float *values, int out,
                      double unit) {
    const size_t slots = encoder->slots, first = !encoder->keeps;
    if (slots == 0) return;
    if (out && !encoder->keeps) memset(values + offset, 0, (size_t)count * sizeof(float));
    for (size_t s = 0; s < slots; s++) {
        float *inside = encoder->state + offset * slots + s * count;
        float *outside = values + (first + s) * encoder->count + offset;
        memcpy(out ? outside : inside, out ? inside : outside, (size_t)count * sizeof(float));
    }
    float *residual = out ? values + offset : encoder->state + offset * slots;
    for (uint64_t i = 0; i < count && encoder->keeps && unit != 1; i++) residual[i] *= (float)(out ? 1 / unit : unit);
}

static void copy_state(const hpc_scheme *sc, int key, int row, hpc_encoder *encoder, float *values, int out) {
    const hpc_key_pieces *its = &sc->pieces[key];
    float *own = values + count_values(encoder) - HPC_ENCODER_VALUES;
    for (int p = 0; row < 0 && p < its->n_ranges; p++)
        copy_part(encoder, its->ranges[p].offset, its->ranges[p].count, values, out, its->kept_unit);
    if (row >= 0) copy_part(encoder, 0, encoder->count, values, out, its->kept_unit);
    memcpy(out ? own : encoder->encoding.own, out ? encoder->encoding.own : own, sizeof encoder->encoding.own);
}

/* HPC_OK if the encoder may be looked at now, and then its core is paused. */
static int begin(hpc_scheme *sc, int key, int row, hpc_encoder **encoder, const char *op) {
    int status = HPC_OK;
    if (hpc_scheme_under_way(sc) >= 0) status = hpc_worker_check_idle(sc, op); /* which may have ended by now */
    if (status == HPC_OK) status = hpc_scheme_hear(sc, key);
    if (status != HPC_OK) return status;
    *encoder = find(sc, key, row);
    if (*encoder == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d encodes nothing there of key %s", op, sc->context->group.rank,
                        sc->plan->keys[key].name);
    if (row < 0) return HPC_OK;
    hpc_core_pause(&sc->cores[sc->plan->rows[row].core]);
    hpc_pieces_settle(sc, &sc->work[sc->work_of[row]], &sc->packing);
    return HPC_OK;
}

static int end(hpc_scheme *sc, int row) {
    if (row >= 0) hpc_core_resume(&sc->cores[sc->plan->rows[row].core]);
    return HPC_OK;
}

int hpc_exchange_get_encoder(hpc_exchange *ex, int key, int row, uint64_t *made, float *values) {
    static const char op[] = "get_encoder";
    hpc_encoder *encoder;
    hpc_scheme *sc = scheme_of(ex, &key, &row, op);
    int status = sc == NULL ? HPC_ERR_INVALID : begin(sc, key, row, &encoder, op);
    if (status != HPC_OK) return status;
    if (made != NULL) *made = encoder->encoding.made;
    if (values != NULL) copy_state(sc, key, row, encoder, values, 1);
    return end(sc, row);
}

int hpc_exchange_set_encoder(hpc_exchange *ex, int key, int row, uint64_t made, const float *values) {
    static const char op[] = "set_encoder";
    hpc_encoder *encoder;
    hpc_scheme *sc = scheme_of(ex, &key, &row, op);
    int status = sc == NULL ? HPC_ERR_INVALID : begin(sc, key, row, &encoder, op);
    if (status != HPC_OK) return status;
    encoder->encoding.made = made;
    encoder->fresh = 0;
    if (values != NULL) copy_state(sc, key, row, encoder, (float *)(uintptr_t)values, 0);
    return end(sc, row);
}

/* ---- thresholds ---- */

static int has_delta(const hpc_scheme *sc, int key) {
    return hpc_key_has_pieces(sc, key) && sc->pieces[key].codec->number == HPC_THRESHOLD;
}

void hpc_scheme_set_delta(hpc_scheme *sc, int key, int of, double delta) {
    if (of & HPC_DELTA_OF_PUSHES) atomic_store_explicit(&sc->pieces[key].encoder.delta, delta, memory_order_relaxed);
    for (int i = 0; i < sc->n_work && of & HPC_DELTA_OF_FOLDS; i++)
        if (sc->work[i].row->key == key && sc->work[i].encoder != NULL)
            atomic_store_explicit(&sc->work[i].encoder->delta, delta, memory_order_relaxed);
}

static int check_delta(const hpc_scheme *sc, int key, const char *op) {
    const char *name = sc->plan->keys[key].name;
    if (!has_delta(sc, key))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s of rank %d goes as %s, which has no delta", op, name,
                        sc->context->group.rank,
                        hpc_key_has_pieces(sc, key) ? sc->pieces[key].name : sc->keys[key].codec->name);
    if (sc->pieces[key].config.follow == HPC_FOLLOW_NOTHING) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: the delta of key %s follows the network, between %.9g and %.9g", op, name,
                    sc->pieces[key].config.delta, sc->pieces[key].config.up);
}

int hpc_exchange_set_delta(hpc_exchange *ex, int key, int of, double delta) {
    static const char op[] = "set_delta";
    enum { BOTH = HPC_DELTA_OF_PUSHES | HPC_DELTA_OF_FOLDS };
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    if (!(delta >= 0 && delta <= DBL_MAX))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: delta is %.9g; must be a finite number, 0 or more", op, delta);
    if ((of & ~BOTH) != 0 || of == 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: of is %d; must be %d (pushes), %d (folds) or %d (both)", op, of,
                        HPC_DELTA_OF_PUSHES, HPC_DELTA_OF_FOLDS, BOTH);
    if (key >= 0) {
        hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
        int status = sc == NULL ? HPC_ERR_INVALID : check_delta(sc, key, op);
        if (status == HPC_OK) hpc_scheme_set_delta(sc, key, of, delta);
        return status;
    }
    int n = 0;
    for (int set = 0; set < 2; set++) /* nothing is set if a key follows */
        for (int i = 0; i < ex->n_schemes; i++)
            for (int k = 0; k < ex->schemes[i]->plan->n_keys; k++) {
                if (!has_delta(ex->schemes[i], k)) continue;
                int status = check_delta(ex->schemes[i], k, op);
                if (status != HPC_OK) return status;
                if (set) hpc_scheme_set_delta(ex->schemes[i], k, of, delta);
                n++;
            }
    if (n > 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: no key goes by a threshold", op);
}

static double delta_of(const hpc_scheme *sc, int key, int of) {
    if (!has_delta(sc, key)) return -1;
    if (of == HPC_DELTA_OF_PUSHES)
        return sc->pieces[key].encoder.codec == NULL
                   ? -1
                   : atomic_load_explicit(&sc->pieces[key].encoder.delta, memory_order_relaxed);
    for (int i = 0; i < sc->n_work; i++)
        if (sc->work[i].row->key == key && sc->work[i].encoder != NULL)
            return atomic_load_explicit(&sc->work[i].encoder->delta, memory_order_relaxed);
    return -1;
}

/* ---- counts ---- */

static void add(hpc_key_stats *stats, const hpc_encoder *encoder) {
    stats->pieces += atomic_load_explicit(&encoder->pieces, memory_order_relaxed);
    stats->elements += atomic_load_explicit(&encoder->elements, memory_order_relaxed);
    stats->kept += atomic_load_explicit(&encoder->kept, memory_order_relaxed);
    stats->bytes += atomic_load_explicit(&encoder->bytes, memory_order_relaxed);
    stats->returned += atomic_load_explicit(&encoder->returned, memory_order_relaxed);
    stats->encode += atomic_load_explicit(&encoder->seconds, memory_order_relaxed);
}

int hpc_exchange_get_key_stats(const hpc_exchange *ex, int key, hpc_key_stats *stats) {
    const hpc_scheme *sc = hpc_scheme_of(ex, &key, "stats");
    if (sc == NULL) return HPC_ERR_INVALID;
    if (stats == NULL) return hpc_fail(HPC_ERR_INVALID, "stats", "stats: stats is NULL");
    *stats = (hpc_key_stats){.sent = hpc_sent_of_key(sc, key),
                             .delta_of_pushes = delta_of(sc, key, HPC_DELTA_OF_PUSHES),
                             .delta_of_folds = delta_of(sc, key, HPC_DELTA_OF_FOLDS)};
    if (!hpc_key_has_pieces(sc, key)) return HPC_OK;
    add(stats, &sc->pieces[key].encoder);
    for (int i = 0; i < sc->n_work; i++) {
        const hpc_work *w = &sc->work[i];
        if (w->row->key != key) continue;
        if (w->encoder != NULL) add(stats, w->encoder);
        stats->decoded += atomic_load_explicit(&w->decoded, memory_order_relaxed);
        stats->decode += atomic_load_explicit(&w->decode_seconds, memory_order_relaxed);
    }
    stats->bytes_before = stats->elements * sizeof(float);
    return HPC_OK;
}
