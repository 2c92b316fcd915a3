/* BARRIER and ASYNC on a graph (ASAP, sections 4 and 6.2): a share (all rows of one key on one core) is folded as a
 * whole when this rank has pushed it, and, under BARRIER, when every rank has signalled that it has sent. The signal
 * may overtake the data, as a barrier does not wait for data either.
 *
 * A neighbour may overwrite its last update before or while this rank reads it. So each update is between two marks,
 * which hold its version. The sender writes the first mark, the data, then the last mark. The reader reads the last
 * mark, copies the data, then reads the first mark. If the marks are equal, all data of that version had come before
 * the copy began, and no data of the next version came before it ended. An update that is not whole, or was folded
 * before, is left out, and the weights of the others are scaled up instead. This needs puts that keep their order
 * (hpc_transport.keeps_order). A push without an update writes only its marks, which say that there is no data. */
#include <string.h>

#include "discipline/discipline.h"
#include "discipline/graph.h"
#include "discipline/split_state.h"
#include "engine/owner/signals.h"
#include "engine/bytes.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"

/* A mark before or behind an update that may be overwritten while it is read: equal versions in both mean a whole
 * update. */
typedef struct stamp {
    _Alignas(64) _Atomic uint64_t version;
} stamp;

static const uint64_t NOTHING = (uint64_t)1 << 63; /* a bit of a version: there is no update */

_Static_assert(2 * sizeof(stamp) == HPC_MARGIN_BYTES, "a slot has room for two stamps");

/* The state of a core. */
typedef struct scratch {
    char *input;            /* a copy of one input of a share */
    float *sum;             /* the fold of all inputs */
    const char **rows_from; /* where each row of an input begins */
} scratch;

/* The state of the scheme. */
typedef struct unflushed {
    hpc_split split; /* must stand first: split.c reads hpc_scheme.own as this type */
    stamp *marks;    /* by key: the mark of the update that is sent now; a put may still read it */
} unflushed;

static stamp *mark_of(const hpc_scheme *sc, int key) {
    return &((const unflushed *)sc->own)->marks[key];
}

static int has_barrier(const hpc_scheme *sc) {
    return sc->asked.consistency == HPC_BARRIER;
}

/* Returns HPC_OK if all transports in use keep the order of puts, which the marks need. */
static int check_order(const hpc_context *c, const char *name) {
    for (int i = 0; i < HPC_USED && c->used[i] != NULL; i++) {
        char why[HPC_ORDER_BYTES] = "choose another transport";
        if (c->used[i]->keeps_order != NULL && c->used[i]->keeps_order(c, why)) continue;
        return hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                        "exchange: %s on a graph needs puts that keep their order, and those of rank %d over %s do "
                        "not: %s",
                        name, c->group.rank, c->used[i]->name, why);
    }
    return HPC_OK;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    const char *name = f->consistency == HPC_BARRIER ? "BARRIER" : "ASYNC";
    int status = hpc_graph_is_given(f, "exchange");
    if (status == HPC_OK) status = hpc_graph_check_split(f, "exchange");
    if (status == HPC_OK) status = hpc_graph_check_partial(f, name, "exchange");
    return status == HPC_OK ? check_order(c, name) : status;
}

/* ---- open ---- */

static int open_core(hpc_scheme *sc, hpc_core *core, const char *op) {
    size_t most_bytes = 0, most_values = 0, most_rows = 0;
    scratch *its = core->own = hpc_scheme_take(sc, 1, sizeof *its, op);
    if (its == NULL) return HPC_ERR_MEMORY;
    for (int s = 0; s < core->clocked->n; s++) {
        const hpc_share *share = core->clocked->shares[s];
        size_t nbytes = 0, values = 0;
        for (int i = 0; i < share->n_rows; i++) {
            nbytes += hpc_row_bytes(sc, &sc->plan->rows[share->rows[i]]);
            values += sc->plan->rows[share->rows[i]].count;
        }
        if (nbytes > most_bytes) most_bytes = nbytes;
        if (values > most_values) most_values = values;
        if ((size_t)share->n_rows > most_rows) most_rows = (size_t)share->n_rows;
    }
    its->input = hpc_scheme_take(sc, most_bytes, 1, op);
    its->sum = hpc_scheme_take(sc, most_values, sizeof *its->sum, op);
    its->rows_from = hpc_scheme_take(sc, most_rows, sizeof *its->rows_from, op);
    return its->input != NULL && its->sum != NULL && its->rows_from != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

static int plan(hpc_scheme *sc, const char *op) {
    return hpc_split_plan_own(sc, sizeof(unflushed), op);
}

static int open_all(hpc_scheme *sc, const char *op) {
    int status = hpc_graph_open_clocks(sc, op);
    unflushed *its = sc->own;
    its->marks = hpc_scheme_take(sc, (size_t)sc->plan->n_keys, sizeof *its->marks, op);
    if (its->marks == NULL) return HPC_ERR_MEMORY;
    for (int c = 0; c < sc->n_own_cores && status == HPC_OK; c++) status = open_core(sc, &sc->cores[c], op);
    return status;
}

/* ---- the core: when ---- */

/* Returns how many pushes rank has signalled as sent, of the key and core of a share. */
static uint64_t said_by(const hpc_scheme *sc, const hpc_share *share, int rank) {
    const size_t at = (size_t)(share - sc->layout.shares) * (size_t)sc->context->group.size + (size_t)rank;
    const int signal = hpc_signal_applied(sc, sc->graph->siblings[at]);
    return atomic_load_explicit(hpc_own_signal(sc->window, signal), memory_order_acquire);
}

static int is_time(const hpc_scheme *sc, const hpc_share *share) {
    uint64_t n = share->version + 1;
    if (hpc_clock_came(&share->clocks[share->owner]) < n) return 0;
    for (int r = 0; r < sc->context->group.size && has_barrier(sc); r++)
        if (r != share->owner && said_by(sc, share, r) < n) return 0;
    return 1;
}

/* ---- the core: folds ---- */

typedef enum found { WHOLE, EMPTY, TORN, STALE, MISSING } found;

/* Copies memory that another rank may write at the same time; the caller finds that out by the marks. nbytes must be a
 * multiple of 64. */
__attribute__((no_sanitize("thread"))) static void copy_racy(char *to, const char *from, size_t nbytes) {
    for (size_t at = 0; at < nbytes; at += sizeof(uint64_t)) {
        uint64_t word = __atomic_load_n((const uint64_t *)(const void *)(from + at), __ATOMIC_RELAXED);
        memcpy(to + at, &word, sizeof word);
    }
}

__attribute__((no_sanitize("thread"))) static uint64_t version_at(const char *mark) {
    return __atomic_load_n((const uint64_t *)(const void *)mark, __ATOMIC_ACQUIRE);
}

/* Copies one neighbour's input, of all rows of a share, into the core's scratch memory. Returns WHOLE or EMPTY if the
 * input is whole and new; otherwise the reason why it cannot be folded. */
static found read_input(hpc_core *core, hpc_share *share, int input) {
    const hpc_scheme *sc = core->scheme;
    scratch *its = core->own;
    int rank = hpc_first_work(sc, share)->inputs[input].rank;
    uint64_t version = 0;
    char *to = its->input;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = hpc_work_of(sc, share->rows[i]);
        const char *slot = hpc_input_at(&w->inputs[input], 0);
        size_t nbytes = hpc_row_bytes(sc, w->row);
        uint64_t last = version_at(slot + sizeof(stamp) + nbytes);
        copy_racy(to, slot + sizeof(stamp), nbytes);
        atomic_thread_fence(memory_order_acquire);
        uint64_t first = version_at(slot);
        if (first != last || (i > 0 && first != version)) return TORN;
        version = first;
        to += nbytes;
    }
    if (version == 0) return MISSING;
    const uint64_t n = version & ~NOTHING;
    if (n == hpc_clock_applied(&share->clocks[rank])) return STALE;
    atomic_store_explicit(&share->clocks[rank].applied, n, memory_order_relaxed);
    return n == version ? WHOLE : EMPTY;
}

/* Adds weight times the update at rows_from to the sum; if begins is set, overwrites the sum by it. */
static void add_update(hpc_core *core, const hpc_share *share, double weight, int begins) {
    static const double ones[2] = {1, 1};
    const hpc_scheme *sc = core->scheme;
    const scratch *its = core->own;
    float *sum = its->sum, block[HPC_BLOCK];
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[share->rows[i]];
        const hpc_codec *codec = sc->keys[row->key].codec;
        for (size_t at = 0; at < row->count; at += HPC_BLOCK) {
            size_t n = row->count - at < HPC_BLOCK ? row->count - at : HPC_BLOCK;
            const void *in = its->rows_from[i] + hpc_codec_span(codec, at), *both[2] = {sum + at, block};
            codec->fold(sc->kernels)(begins ? sum + at : block, &in, &weight, 1, n, 0);
            if (!begins) sc->kernels->f32(sum + at, both, ones, 2, n, 0);
        }
        sum += row->count;
    }
}

/* Finds where the rows of an input are: this rank's own input in its slot, another rank's in the copy of read_input. */
static void find_rows(hpc_core *core, const hpc_share *share, int input, int is_own, uint64_t n) {
    const hpc_scheme *sc = core->scheme;
    const scratch *its = core->own;
    const char *at = its->input;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = hpc_work_of(sc, share->rows[i]);
        const hpc_input *in = &w->inputs[input];
        its->rows_from[i] = is_own ? hpc_input_at(in, (n - 1) % (uint64_t)sc->layout.depth) : at;
        at += hpc_row_bytes(sc, w->row);
    }
}

/* Adds the whole inputs of step n to the sum. Sets *scale to the weight of all inputs divided by the weight of the
 * whole ones. Returns 0 if all whole inputs are empty. */
static int add_all(hpc_core *core, hpc_share *share, uint64_t n, double *scale) {
    hpc_scheme *sc = core->scheme;
    const hpc_work *first = hpc_first_work(sc, share);
    double all = 0, present = 0;
    int whole = 0, own = 0, added = 0;
    while (first->inputs[own].rank != share->owner) own++;
    const int slot = (int)((n - 1) % (uint64_t)sc->layout.depth);
    for (int step = 0; step <= first->row->n_in; step++) { /* this rank's own first */
        int e = step == 0 ? own : step - 1;
        if (step > 0 && e == own) continue;
        double weight = hpc_edge_weight(sc, share->key, n, share->owner, first->inputs[e].rank);
        if (weight == 0) continue;
        all += weight;
        found what = step > 0 ? read_input(core, share, e) : hpc_row_brings(first, slot, own) ? WHOLE : EMPTY;
        hpc_count_absent(core, what == TORN, what == STALE, what == MISSING);
        if (what > EMPTY) continue;
        present += weight;
        if (step > 0) whole++;
        if (what == EMPTY) continue;
        find_rows(core, share, e, step == 0, n);
        add_update(core, share, weight, added++ == 0);
        if (step > 0) hpc_share_count_received(sc, share, first->inputs[e].rank);
    }
    hpc_share_count_fold(core, whole);
    *scale = all == present ? 1 : all / present;
    return added > 0;
}

static int fold(hpc_core *core, hpc_share *share) {
    hpc_scheme *sc = core->scheme;
    const scratch *its = core->own;
    double scale;
    const int any = add_all(core, share, share->version + 1, &scale);
    const char *sum = (const char *)its->sum;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = hpc_work_of(sc, share->rows[i]);
        const hpc_inputs inputs = {.bases = &sum,
                                   .weights = &scale,
                                   .n = any,
                                   .codec = hpc_codec_of(HPC_F32),
                                   .args = w->args[share->version % (uint64_t)sc->layout.depth],
                                   .slot = share->version};
        int failed = hpc_graph_work_row(core, w, &inputs);
        if (failed) return failed;
        sum += w->row->count * sizeof(float);
    }
    share->version++;
    hpc_share_answer(core, share->owner, hpc_signal_applied(sc, (int)(share - sc->layout.shares)), share->version);
    hpc_graph_end_fold(core, share);
    return 0;
}

static int work(hpc_core *core) {
    return hpc_graph_work(core, &(const hpc_graph_fold){is_time, fold});
}

/* ---- the worker ---- */

/* Waits until the slot may be written. Owners do not answer these updates, so the wait ends when the transport says
 * that the last update has left this rank's memory. */
static int wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    int status = (sc->use == NULL ? hpc_push_wait_slot : hpc_split_wait_slot)(sc, key, l, op);
    return status == HPC_OK ? hpc_flush_key(sc, key, l) : status;
}

/* Puts mark, data and mark, in this order, into the neighbour's slots, even if the neighbour has not read the last
 * update. */
static int overwrite_share(hpc_scheme *sc, const hpc_share *share) {
    int me = sc->context->group.rank, status = HPC_OK, owner = share->owner;
    hpc_lane *lane = hpc_push_lane(sc, share);
    stamp *its = mark_of(sc, share->key);
    const char *slot = hpc_push_slot(sc, share->key);
    const uint64_t nothing = hpc_push_is_empty(sc, share->key) ? NOTHING : 0;
    atomic_store_explicit(&its->version, (sc->keys[share->key].pushes + 1) | nothing, memory_order_relaxed);
    if (hpc_has_left(sc, owner)) return HPC_OK;
    for (int i = 0; i < share->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &sc->plan->rows[share->rows[i]];
        if (!hpc_row_has_input(row, me)) return HPC_OK;
        size_t at = hpc_push_slot_of(sc, share->rows[i]);
        size_t data = at + sizeof *its, last = data + hpc_row_bytes(sc, row);
        status = hpc_put(lane, sc->window, owner, &its->version, sizeof its->version, at);
        hpc_end_gradient(); /* otherwise the data could overtake the first mark */
        if (status == HPC_OK && !nothing)
            status = hpc_put(lane, sc->window, owner, slot + hpc_row_from(sc, row), hpc_input_bytes(sc, row), data);
        hpc_end_gradient(); /* and the last mark the data */
        if (status == HPC_OK) status = hpc_put(lane, sc->window, owner, &its->version, sizeof its->version, last);
    }
    if (status == HPC_OK && !nothing) hpc_count_sent(sc, share, slot);
    return hpc_unless_left(sc, owner, status);
}

static int send_share(hpc_scheme *sc, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    return share->owner == sc->context->group.rank ? hpc_push_share(sc, s, slot, l) : overwrite_share(sc, share);
}

/* Under BARRIER, tells every rank that this rank has sent, by the signals of this rank's own shares, on a lane without
 * bulk data. Under BARRIER and ASYNC, asks the transport for the reports for which wait_slot of the next push waits, so
 * that they come while the trainer computes. */
static int pushed(hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    int me = sc->context->group.rank, size = sc->context->group.size, status = HPC_OK;
    for (int i = 0; i < k->n_shares * size && status == HPC_OK && has_barrier(sc); i++) {
        int s = k->shares[i / size], r = i % size;
        if (sc->layout.shares[s].owner != me || r == me) continue;
        status = hpc_unless_left(
            sc, r, hpc_put_signal(sc->context->acks, sc->window, r, NULL, 0, 0, hpc_signal_applied(sc, s), k->pushes));
    }
    if (status == HPC_OK) hpc_ask_flushed(sc, key);
    return status;
}

static int note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    const int status = sc->use == NULL ? HPC_OK : hpc_split_note(sc, key, moment, l, op);
    return status == HPC_OK && moment == HPC_ON_SENT ? pushed(sc, key) : status;
}

static int is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes) {
    (void)rank;
    return has_barrier(sc) && pushes < hpc_push_of(sc, key, ticket);
}

static int missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    for (int r = 0; r < sc->context->group.size && has_barrier(sc); r++)
        if (r != share->owner && said_by(sc, share, r) < hpc_push_of(sc, share->key, ticket))
            found = hpc_add_rank(ranks, found, r);
    return found;
}

enum { TRAITS = HPC_ONE_SLOT | HPC_OWN_PARAMS | HPC_PUTS | HPC_MARGINS | HPC_TEARS | HPC_UNREAD };

static const hpc_gate gate = {
    .row_came = hpc_graph_row_came, .other_came = hpc_graph_other_came, .work = work, .missing = missing};

const hpc_discipline hpc_discipline_unflushed = {
    .name = "BARRIER or ASYNC on a graph",
    .check = check,
    .traits = TRAITS,
    .plan = plan,
    .open = open_all,
    .gate = &gate,
    .pace =
        &(const hpc_pace){
            .wait_slot = wait_slot, .send_share = send_share, .moments = HPC_ON_SENT, .note = note, .is_late = is_late},
};

const hpc_discipline hpc_discipline_split_unflushed = {
    .name = "BARRIER or ASYNC on a graph",
    .check = check,
    .traits = TRAITS | HPC_PULLS | HPC_KEEPS_MEANS,
    .plan = plan,
    .open = open_all,
    .gate = &gate,
    .pace = &(const hpc_pace){.may_push = hpc_split_may_push,
                              .wait_slot = wait_slot,
                              .send_share = send_share,
                              .moments = HPC_SPLIT_MOMENTS,
                              .note = note,
                              .is_late = is_late,
                              .ends = hpc_split_ends_pull,
                              .ask = hpc_split_ask_share},
    .use = &hpc_split_use,
};
