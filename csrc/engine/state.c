#include "engine/state.h"

#include <string.h>

#include "engine/args.h"
#include "engine/owner/core.h"
#include "engine/layout/graph.h"
#include "engine/worker/held.h"
#include "engine/pieces.h"
#include "engine/worker/send.h"
#include "engine/worker/waits.h"
#include "engine/bytes.h"

hpc_key_facts hpc_facts_of_key(const hpc_scheme *sc, int key) {
    const hpc_encoder *encoder = hpc_key_has_pieces(sc, key) ? &sc->pieces[key].encoder : NULL;
    hpc_key_facts facts = sc->facts;
    /* Also under ASYNC, if slots bound the staleness. */
    facts.settles |= sc->begun != NULL && sc->asked.staleness > 0;
    facts.one_slot = sc->layout.depth == 1;
    facts.keeps_back = encoder != NULL && encoder->codec != NULL && encoder->slots > 0;
    facts.takes_writes = !sc->keys[key].encoded.apart;
    return facts;
}

/* ---- rows ---- */

/* Copies the rule's state between the core's order (block by block) and the caller's (slot by slot). If out is set,
 * copies to the caller, otherwise from the caller. */
static void copy_row(const hpc_work *w, float *to, const float *from, int out) {
    size_t count = (size_t)w->row->count, slots = (size_t)w->rule->rule.slots;
    for (size_t b = 0; b < count; b += HPC_BLOCK) {
        size_t n = count - b < HPC_BLOCK ? count - b : HPC_BLOCK;
        for (size_t s = 0; s < slots; s++) {
            size_t inside = b * slots + s * n, outside = s * count + b;
            memcpy(to + (out ? outside : inside), from + (out ? inside : outside), n * sizeof(float));
        }
    }
}

void hpc_row_save(hpc_scheme *sc, int row, uint64_t *step, float *params, float *state) {
    const hpc_work *w = hpc_work_of(sc, row);
    hpc_core_pause(&sc->cores[w->row->core]);
    if (step != NULL) *step = w->step;
    if (params != NULL && w->param != NULL) memcpy(params, w->param, (size_t)w->row->count * sizeof(float));
    if (state != NULL && w->state != NULL) copy_row(w, state, w->state, 1);
    hpc_core_resume(&sc->cores[w->row->core]);
}

void hpc_row_restore(hpc_scheme *sc, int row, uint64_t step, const float *params, const float *state) {
    hpc_work *w = hpc_work_of(sc, row);
    hpc_core_pause(&sc->cores[w->row->core]);
    w->step = step;
    if (sc->graph != NULL) hpc_graph_restored(sc, w, step);
    if (sc->pace->restored != NULL) sc->pace->restored(sc, w, step);
    if (params != NULL && w->param != NULL) memcpy(w->param, params, (size_t)w->row->count * sizeof(float));
    if (state != NULL && w->state != NULL) copy_row(w, w->state, state, 0);
    hpc_core_resume(&sc->cores[w->row->core]);
}

/* ---- encoders ---- */

/* Returns the encoder of a row or, if row is -1, of the pushes of a key; NULL if it has no encoder. */
static hpc_encoder *find_encoder(const hpc_scheme *sc, int key, int row) {
    if (sc->pieces == NULL) return NULL;
    if (row >= 0) return hpc_work_of(sc, row)->encoder;
    return sc->pieces[key].encoder.codec != NULL ? &sc->pieces[key].encoder : NULL;
}

static int64_t count_values(const hpc_encoder *encoder) {
    if (encoder == NULL) return 0;
    const size_t slots = encoder->slots == 0 ? 0 : encoder->slots + !encoder->keeps;
    return (int64_t)(encoder->count * slots) + HPC_ENCODER_VALUES;
}

int64_t hpc_encoder_values(const hpc_scheme *sc, int key, int row) {
    return count_values(find_encoder(sc, key, row));
}

/* Copies a range's state between the encoder's order (all slots of the range) and the caller's (slot by slot). The
 * caller's residual is in units of 1. */
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

static void copy_encoder(const hpc_scheme *sc, int key, int row, hpc_encoder *encoder, float *values, int out) {
    const hpc_key_pieces *its = &sc->pieces[key];
    float *own = values + count_values(encoder) - HPC_ENCODER_VALUES;
    for (int p = 0; row < 0 && p < its->n_ranges; p++)
        copy_part(encoder, its->ranges[p].offset, its->ranges[p].count, values, out, its->kept_unit);
    if (row >= 0) copy_part(encoder, 0, encoder->count, values, out, its->kept_unit);
    memcpy(out ? own : encoder->encoding.own, out ? encoder->encoding.own : own, sizeof encoder->encoding.own);
}

int hpc_encoder_copy(hpc_scheme *sc, int key, int row, uint64_t *made, float *values, int out, const char *op) {
    hpc_encoder *encoder = find_encoder(sc, key, row);
    hpc_core *core = row >= 0 ? &sc->cores[sc->plan->rows[row].core] : NULL;
    if (encoder == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d encodes nothing there of key %s", op, sc->context->group.rank,
                        sc->plan->keys[key].name);
    if (core != NULL) hpc_core_pause(core);
    if (core != NULL) hpc_pieces_settle(sc, hpc_work_of(sc, row), &sc->packing);
    if (out && made != NULL) *made = encoder->encoding.made;
    if (!out) encoder->encoding.made = *made, encoder->fresh = 0;
    if (values != NULL) copy_encoder(sc, key, row, encoder, values, out);
    if (core != NULL) hpc_core_resume(core);
    return HPC_OK;
}

/* ---- arguments ---- */

/* Writes the arguments into their places in the window at a rank that only serves, where its folds read them. */
static void write_places(hpc_scheme *sc, int key, const double *args) {
    for (int s = 0; s < sc->layout.n_shares; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner != sc->context->group.rank || share->key != key) continue;
        hpc_core_pause(&sc->cores[share->core]);
        for (int r = 0; r < sc->context->group.size && !sc->own_args; r++)
            for (int slot = 0; slot < sc->layout.depth; slot++)
                memcpy(hpc_own_part(sc) + hpc_args_at(sc, share, r, slot), args, HPC_ARGS_BYTES);
        hpc_core_resume(&sc->cores[share->core]);
    }
}

int hpc_args_check_new(hpc_scheme *sc, int key, const double *args, const char *op) {
    int status = sc->life.closed ? hpc_fail(HPC_ERR_INVALID, op, "%s: the exchange is closed", op) : HPC_OK;
    if (status == HPC_OK) status = hpc_scheme_check(sc, op);
    if (status == HPC_OK) status = hpc_rule_check_args(sc->rules[key].name, args, op);
    return status == HPC_OK ? hpc_args_check_change(sc, key, op) : status;
}

void hpc_args_take_new(hpc_scheme *sc, int key, const double *args) {
    int cut_short = sc->keys[key].brings != 0; /* a push that is sent in part keeps its old arguments */
    memcpy(sc->rules[key].rule.args + 1, args + 1, HPC_ARGS_BYTES - sizeof *args);
    if (sc->use == NULL) sc->keys[key].news = (unsigned char)(sc->layout.depth + cut_short);
    if (!hpc_scheme_works(sc)) write_places(sc, key, sc->rules[key].rule.args);
}

void hpc_args_get(const hpc_scheme *sc, int key, double *args) {
    memcpy(args, sc->rules[key].rule.args, HPC_ARGS_BYTES);
    for (int s = 0; s < sc->layout.n_shares && !hpc_scheme_works(sc); s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner != sc->context->group.rank || share->key != key) continue;
        hpc_core_pause(&sc->cores[share->core]);
        memcpy(args, hpc_args_of(sc, share, share->args_from, share->args_slot), HPC_ARGS_BYTES);
        hpc_core_resume(&sc->cores[share->core]);
        break;
    }
    args[0] = 0;
}

/* ---- copies, and pieces that were sent ---- */

/* Returns whether the answers of a share's owner carry the version of this rank's copy. */
static int tells(const hpc_scheme *sc, int s) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_pushed *k = &sc->keys[share->key];
    if (sc->plan->rows[share->rows[0]].action == HPC_FORWARD) return 0;
    for (int i = 0; i < k->n_awaited; i++)
        if (k->awaited[i] == s) return 1;
    return 0;
}

static uint64_t heard_of(const hpc_scheme *sc, int s) {
    if (sc->heard != NULL) return sc->heard[s];
    const int signal = sc->discipline->traits & HPC_PULLS ? hpc_signal_second(sc, s) : hpc_signal_applied(sc, s);
    return atomic_load_explicit(hpc_own_signal(sc->window, signal), memory_order_acquire);
}

static int same_elements(const hpc_row *a, const hpc_row *b) {
    return a->key == b->key && a->offset == b->offset;
}

/* Rows of the same elements are adjacent in the plan; the version that one of them has answered holds for all of
 * them. */
void hpc_copies_heard(const hpc_scheme *sc, uint64_t *heard) {
    const hpc_plan *plan = sc->plan;
    for (int i = 0; i < plan->n_rows; i++) heard[i] = UINT64_MAX;
    for (int i = 0; i < plan->n_rows && hpc_scheme_works(sc); i++)
        if (tells(sc, sc->layout.share_of[i])) heard[i] = heard_of(sc, sc->layout.share_of[i]);
    for (int i = 1; i < plan->n_rows; i++)
        if (heard[i] == UINT64_MAX && same_elements(&plan->rows[i], &plan->rows[i - 1])) heard[i] = heard[i - 1];
    for (int i = plan->n_rows - 1; i-- > 0;)
        if (heard[i] == UINT64_MAX && same_elements(&plan->rows[i], &plan->rows[i + 1])) heard[i] = heard[i + 1];
}

/* Returns whether values of this encoder's pieces may go back into its residual. After a rank is lost, a trainer
 * decodes this rank's last pieces and adds the values that no row has applied to the residuals. The decoding itself
 * changes no state. */
static int may_go_back(const hpc_scheme *sc, int key, const hpc_encoder *encoder) {
    return encoder != NULL && encoder->codec != NULL && encoder->keeps && !sc->pieces[key].config.no_feedback;
}

/* Writes the values of the pieces of push number n of a key; zeroes if the encoder keeps no residual. Returns 0, or the
 * codec's error. */
static int read_push(hpc_scheme *sc, int key, uint64_t n, float *to) {
    memset(to, 0, (size_t)sc->plan->keys[key].count * sizeof *to);
    if (n == 0 || !hpc_key_has_pieces(sc, key) || !may_go_back(sc, key, &sc->pieces[key].encoder)) return 0;
    const hpc_key_pieces *its = &sc->pieces[key];
    const char *slot = hpc_slot_of_push(sc, key, n);
    int status = 0;
    for (int p = 0; p < its->n_ranges && status == 0; p++) {
        const hpc_pushed_range *range = &its->ranges[p];
        const size_t nbytes = its->codec->length(&its->config, slot + range->at, range->count);
        status = hpc_pieces_decode(its, to + range->offset, range->count, slot + range->at, nbytes, 1, &sc->packing);
    }
    return status;
}

/* Writes the values of the last piece that a row has forwarded, as read_push does. */
static int read_fold(hpc_scheme *sc, const hpc_work *w, float *to) {
    const int key = w->row->key;
    memset(to, 0, (size_t)w->row->count * sizeof *to);
    if (!hpc_key_has_pieces(sc, key) || !may_go_back(sc, key, w->encoder)) return 0;
    if (atomic_load_explicit(&w->folded, memory_order_relaxed) == 0) return 0;
    const hpc_key_pieces *its = &sc->pieces[key];
    const size_t nbytes = its->codec->length(&its->config, w->encoded, w->row->count);
    return hpc_pieces_decode(its, to, w->row->count, w->encoded, nbytes, 1, &sc->packing);
}

static int check_decoded(const hpc_scheme *sc, int key, int status, const char *op) {
    if (status == 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d cannot read its own piece of key %s: %s", op,
                    sc->context->group.rank, sc->plan->keys[key].name, sc->pieces[key].codec->text(status));
}

int hpc_sent_pieces(hpc_scheme *sc, int key, uint64_t *pushes, float *values, const char *op) {
    const hpc_pushed *k = &sc->keys[key];
    /* Counts a push that is in its slot, even if only a part of it was sent. */
    *pushes = k->pushes + ((k->sending & HPC_PUSH) != 0);
    if (values != NULL && hpc_held_sent_nothing(sc, key, *pushes)) {
        memset(values, 0, (size_t)sc->plan->keys[key].count * sizeof *values);
        return HPC_OK;
    }
    return values == NULL ? HPC_OK : check_decoded(sc, key, read_push(sc, key, *pushes, values), op);
}

int hpc_forwarded_pieces(hpc_scheme *sc, int row, uint64_t *folds, float *values, const char *op) {
    const hpc_work *w = hpc_work_of(sc, row);
    *folds = atomic_load_explicit(&w->folded, memory_order_relaxed);
    return values == NULL ? HPC_OK : check_decoded(sc, w->row->key, read_fold(sc, w, values), op);
}
