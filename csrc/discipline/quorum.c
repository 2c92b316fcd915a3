/* Folds of a quorum, on servers: BSP that waits for the quick.
 *
 * A worker says of each update for which version of the parameters it is: for the one after the newest that any owner
 * has answered it. A share folds the updates for its next version when all are there that can come, or when a quorum is
 * and the others have had their time. Then
 *   who is in the fold       gets the parameters and an answer, as under BSP
 *   who is not there yet     gets nothing: it computes, and its parameters are its own until it pushes
 *   who comes after it       is left out: it gets the newest parameters, and an answer that says so
 * So every push of a share has one answer, and a worker that has them all goes on from the newest version that it has
 * heard of. Shares may be some versions apart: what is for a later version of one waits there.
 *
 * A version is of all keys: a worker pushes each of them once for it, and has all answers before it pushes the next. So
 * where one share has found its quorum, all others will, for the same ranks have pushed that version there. Were keys
 * counted by themselves, two workers could wait for each other, each for a key in which it is ahead.
 *
 * Who has had no answer of the last fold is behind, and is not waited for: what it pushes next was computed before. A
 * rank that stands still costs the others their grace once. How long that is can be learned from the folds that had
 * all updates; the others do not tell how long the missing ones would have taken (Karn's rule, RFC 6298, section 3).
 *
 * Order: a worker puts the number of its version before its event, and reads what lies behind an answer when the share
 * has answered: each is written again only after the other one has been taken. What waits for whom is the core's own.
 */
#include <math.h>
#include <stdlib.h>

#include "engine/engine.h"

static const double FIRST_GRACE = 1; /* seconds, before enough has been measured (RFC 6298, section 2.1) */
static const double LEAST_GRACE = 0.01;

/* ---- what is asked for ---- */

static int has_workers_of(const hpc_row *row, const hpc_row *other) {
    int same = row->n_in == other->n_in;
    for (int e = 0; e < row->n_in && same; e++) {
        same = 0;
        for (int f = 0; f < other->n_in; f++) same |= row->in[e].rank == other->in[f].rank;
    }
    return same;
}

int hpc_quorum_check_config(const hpc_exchange_config *f, const char *op) {
    const char *what = f->consistency != HPC_BSP ? "consistency ASYNC"
                       : f->shared_params        ? "shared_params"
                                                 : "eager folds (deterministic=False)";
    if (f->consistency != HPC_BSP || f->shared_params || f->eager)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: a quorum of servers does not go with %s", op, what);
    if (f->late != HPC_LATE_DROP)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                        "%s: late is 0 (fold): servers leave late updates out, make it 1 (drop)", op);
    if (f->rule->fold != NULL)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                        "%s: rule %s has a fold of its own; with a quorum some inputs may be missing from it", op,
                        f->rule->name);
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        int plain = row->action == HPC_APPLY;
        for (int e = 0; e < row->n_in; e++) plain &= row->in[e].row < 0 && row->in[e].weight > 0;
        if (!plain)
            return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                            "%s: row %d is of several stages, or emits, or has a weight of 0 or less; a quorum needs "
                            "rows that apply what workers push",
                            op, i);
        if (!has_workers_of(row, &f->plan->rows[0])) /* else two could wait for each other, each for a key of its own */
            return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                            "%s: row %d is pushed by other workers than row 0; with a quorum all push every key", op,
                            i);
        if (f->quorum > row->n_in)
            return hpc_fail(HPC_ERR_INVALID, op, "%s: quorum is %d; row %d has %d inputs", op, f->quorum, i, row->n_in);
    }
    return HPC_OK;
}

int hpc_quorum_of(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows; i++)
        if (f->quorum < f->plan->rows[i].n_in) return f->quorum;
    return 0;
}

/* ---- owner ---- */

static int is_open(const hpc_exchange *ex, int rank) {
    return hpc_closed_signal(ex, rank) == 0;
}

static uint64_t number_of(const hpc_share *share, int rank) {
    return atomic_load_explicit(&share->arrivals->number[rank], memory_order_relaxed);
}

static void hold(hpc_core *core, hpc_share *share, int rank, uint64_t number, int slot) {
    hpc_arrivals *a = share->arrivals;
    atomic_store_explicit(&a->number[rank], number, memory_order_relaxed);
    a->slots[rank] = slot;
    a->here += number == share->version + 1;
    if (a->held++ > 0) return;
    a->place = core->n_waiting;
    core->waiting[core->n_waiting++] = share;
}

static void release(hpc_core *core, hpc_share *share, int rank) {
    hpc_arrivals *a = share->arrivals;
    atomic_store_explicit(&a->number[rank], 0, memory_order_relaxed);
    if (--a->held > 0) return;
    core->waiting[a->place] = core->waiting[--core->n_waiting];
    core->waiting[a->place]->arrivals->place = a->place;
    if (core->n_waiting == 0) core->due = INFINITY;
}

static void answer(hpc_core *core, hpc_share *share, int rank) {
    const hpc_exchange *ex = core->exchange;
    int s = (int)(share - ex->shares);
    hpc_verdict *said = &share->arrivals->verdicts[rank];
    said->version = share->version;
    hpc_engine_answer_with(core, rank, said, sizeof *said, ex->places[rank].verdicts + (size_t)s * sizeof *said,
                           hpc_signal_applied(ex, s), ++share->applied[rank]);
}

static void drop(hpc_core *core, hpc_share *share, int rank) {
    hpc_exchange *ex = core->exchange;
    hpc_verdict *said = &share->arrivals->verdicts[rank];
    said->dropped++;
    said->dropped_at = share->version;
    atomic_fetch_add_explicit(&ex->peer_late[rank], 1, memory_order_relaxed);
    for (int i = 0; i < share->n_rows; i++) hpc_engine_send(core, &ex->work[ex->work_of[share->rows[i]]], rank);
    answer(core, share, rank);
}

/* Whether an update for the next version may still come in time. */
static int more_may_come(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(ex, share);
    for (int e = 0; e < w->row->n_in; e++) {
        int rank = w->inputs[e].rank;
        if (number_of(share, rank) == 0 && share->arrivals->verdicts[rank].version == share->version &&
            is_open(ex, rank))
            return 1;
    }
    return 0;
}

/* Whether too many have closed, or wait for a later one, for the next version to find its quorum. */
static int is_lost(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(ex, share);
    int n = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        uint64_t number = number_of(share, w->inputs[e].rank);
        n += number == share->version + 1 || (number == 0 && is_open(ex, w->inputs[e].rank));
    }
    return n < ex->quorum;
}

static double grace_of(const hpc_exchange *ex, const hpc_arrivals *a) {
    if (ex->grace >= 0) return ex->grace;
    double usual = hpc_usual_limit(&a->lag);
    return usual == 0 ? FIRST_GRACE : usual < LEAST_GRACE ? LEAST_GRACE : usual;
}

/* The updates of a row that are for the next version. Weights that add up to 1, a mean, do so again; others, a sum,
 * stay as they are. */
static hpc_inputs inputs_here(hpc_core *core, const hpc_share *share, const hpc_work *w) {
    double all = 0, present = 0;
    int n = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        all += w->weights[e];
        if (number_of(share, in->rank) != share->version + 1) continue;
        present += w->weights[e];
        core->bases[n] = in->slots + (size_t)share->arrivals->slots[in->rank] * in->stride;
        core->base_weights[n++] = w->weights[e];
    }
    for (int i = 0; i < n && n < w->row->n_in && fabs(all - 1) < 1e-9; i++) core->base_weights[i] /= present;
    return (hpc_inputs){core->bases, core->base_weights, n, w->row->codec_in};
}

static void count_fold(hpc_core *core, const hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    const hpc_work *w = hpc_first_work(ex, share);
    for (int e = 0; e < w->row->n_in; e++) {
        int rank = w->inputs[e].rank;
        if (share->arrivals->takes[rank] && rank != share->owner) hpc_graph_count_received(ex, share, rank);
    }
    hpc_graph_count(core, share->arrivals->here);
    uint64_t missing = atomic_load_explicit(&core->missing, memory_order_relaxed);
    missing += (uint64_t)(w->row->n_in - share->arrivals->here);
    atomic_store_explicit(&core->missing, missing, memory_order_relaxed);
}

/* Nonzero when a user's kernel has failed. */
static int fold(hpc_core *core, hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    hpc_arrivals *a = share->arrivals;
    uint64_t number = share->version + 1;
    if (a->here == hpc_first_work(ex, share)->row->n_in) hpc_usual_learn(&a->lag, hpc_now() - a->since);
    for (int r = 0; r < ex->context->group.size; r++) a->takes[r] = number_of(share, r) == number;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        const hpc_inputs inputs = inputs_here(core, share, w);
        if (hpc_engine_fold(core, w, &inputs) != 0) return -1;
    }
    count_fold(core, share);
    share->version = number;
    a->since = 0;
    a->here = 0;
    for (int i = 0; i < share->n_parts; i++) {
        int rank = share->parts[i];
        if (number_of(share, rank) == number)
            release(core, share, rank);
        else
            a->here += number_of(share, rank) == number + 1;
    }
    for (int i = 0; i < share->n_parts; i++) /* all is put down before a worker may go on */
        if (a->takes[share->parts[i]]) answer(core, share, share->parts[i]);
    return 0;
}

static void let_go(hpc_core *core, hpc_share *share) {
    for (int i = 0; i < share->n_parts; i++) {
        if (number_of(share, share->parts[i]) == 0) continue;
        release(core, share, share->parts[i]);
        drop(core, share, share->parts[i]);
    }
    share->arrivals->here = 0;
}

/* Makes the folds of a share whose time has come. */
static void consider(hpc_core *core, hpc_share *share, int closed) {
    const hpc_exchange *ex = core->exchange;
    hpc_arrivals *a = share->arrivals;
    while (a->here >= ex->quorum) {
        double now = hpc_now();
        int begins = a->since == 0;
        if (begins) a->since = now;
        double due = a->since + grace_of(ex, a);
        if (now < due && more_may_come(ex, share)) {
            if (due < core->due) core->due = due;
            if (begins)
                hpc_bell_ring(ex->context->group.bell); /* whoever is about to sleep must not sleep for longer */
            return;
        }
        if (fold(core, share) != 0) return;
    }
    if (closed && a->held > 0 && is_lost(ex, share)) let_go(core, share);
}

static int some_closed(const hpc_exchange *ex) {
    for (int r = 0; r < ex->context->group.size; r++)
        if (!is_open(ex, r)) return 1;
    return 0;
}

int hpc_quorum_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    const hpc_exchange *ex = core->exchange;
    const hpc_place *place = &ex->places[ex->context->group.rank];
    size_t at = (size_t)share->at * (size_t)ex->context->group.size + (size_t)rank;
    const uint64_t *numbers = (const uint64_t *)(const void *)(hpc_own_part(ex) + place->numbers);
    if (!hpc_feeds_share(ex, share, rank) || number_of(share, rank) != 0 || numbers[at] == 0) return 0;
    if (numbers[at] <= share->version) {
        drop(core, share, rank);
        return 1;
    }
    hold(core, share, rank, numbers[at], slot);
    consider(core, share, 0);
    return 1;
}

int hpc_quorum_work(hpc_core *core) {
    int closed = some_closed(core->exchange), n = 0;
    core->due = INFINITY;
    for (int i = 0; i < core->n_waiting;) {
        hpc_share *share = core->waiting[i];
        int held = share->arrivals->held;
        consider(core, share, closed);
        n += share->arrivals->held < held;
        i += i < core->n_waiting && core->waiting[i] == share;
    }
    return n;
}

int hpc_quorum_tell(hpc_exchange *ex) {
    int status = HPC_OK;
    for (int s = 0; s < ex->n_shares; s++) {
        hpc_share *share = &ex->shares[s];
        if (share->n_parts == 0) continue;
        hpc_engine_pause(&ex->cores[share->core]);
        for (int i = 0; i < share->n_parts && status == HPC_OK; i++) {
            int rank = share->parts[i];
            hpc_verdict *said = &share->arrivals->verdicts[rank];
            said->version = share->version;
            status = hpc_put(ex->cores[share->core].out, ex->window, rank, said, sizeof *said,
                             ex->places[rank].verdicts + (size_t)s * sizeof *said);
        }
        hpc_engine_resume(&ex->cores[share->core]);
    }
    return status;
}

/* ---- open ---- */

static int open_share(const hpc_exchange *ex, hpc_share *share) {
    size_t size = (size_t)ex->context->group.size;
    hpc_arrivals *a = share->arrivals = calloc(1, sizeof *a);
    if (a == NULL) return 0;
    a->number = calloc(size, sizeof *a->number);
    a->slots = calloc(size, sizeof *a->slots);
    a->verdicts = calloc(size, sizeof *a->verdicts);
    a->takes = calloc(size, 1);
    return a->number != NULL && a->slots != NULL && a->verdicts != NULL && a->takes != NULL;
}

int hpc_quorum_open(hpc_exchange *ex, const char *op) {
    int has = 1;
    ex->most_inputs = ex->context->group.size;
    ex->inputs_whole = calloc((size_t)ex->context->group.size + 1, sizeof *ex->inputs_whole);
    has &= ex->inputs_whole != NULL;
    for (int s = 0; s < ex->n_shares && has; s++)
        if (ex->shares[s].owner == ex->context->group.rank) has = open_share(ex, &ex->shares[s]);
    for (int c = 0; c < ex->n_own_cores && has; c++) {
        ex->cores[c].waiting = malloc((size_t)ex->n_shares * sizeof(hpc_share *));
        has = ex->cores[c].waiting != NULL;
    }
    return has ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a quorum of %d", op, ex->quorum);
}

void hpc_quorum_free(hpc_share *share) {
    if (share->arrivals == NULL) return;
    free(share->arrivals->number);
    free(share->arrivals->slots);
    free(share->arrivals->verdicts);
    free(share->arrivals->takes);
    free(share->arrivals);
}

/* ---- worker ---- */

void hpc_quorum_look(const hpc_exchange *ex, int key) {
    hpc_pushed *k = &ex->keys[key];
    const hpc_place *place = &ex->places[ex->context->group.rank];
    if (k->n_shares == 0 || k->sending & HPC_PUSH || !hpc_ticket_is_done(ex, key, 2 * k->pushes)) return;
    const hpc_verdict *verdicts = (const hpc_verdict *)(const void *)(hpc_own_part(ex) + place->verdicts);
    k->late = k->dropped = 0;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_verdict *said = &verdicts[k->shares[i]];
        if (said->version > k->version) k->version = said->version;
        if (said->dropped_at > k->dropped_at) k->dropped_at = said->dropped_at;
        k->late += said->dropped > 0 && said->dropped_at == said->version;
        k->dropped += said->dropped;
    }
}

int hpc_quorum_check(const hpc_exchange *ex, int key, const char *op) {
    const hpc_pushed *k = &ex->keys[key];
    hpc_quorum_look(ex, key);
    if (k->number <= k->version) return HPC_OK;
    int *closed = malloc((size_t)ex->context->group.size * sizeof *closed), n = 0;
    for (int r = 0; r < ex->context->group.size && closed != NULL; r++)
        if (ex->places[r].worker && !is_open(ex, r)) closed[n++] = r;
    int status = hpc_group_fail_closed(&ex->context->group, op, closed, n,
                                       "version %llu of key %s finds no quorum of %d any more: %d workers have closed "
                                       "the exchange, rank %d among them",
                                       (unsigned long long)k->number, ex->plan->keys[key].name, ex->quorum, n,
                                       n > 0 ? closed[0] : -1);
    free(closed);
    return status;
}

/* A pull has told of its own. */
void hpc_quorum_note_lost(hpc_exchange *ex) {
    int n = 0, first = -1;
    for (int i = ex->plan->n_keys - 1; i >= 0; i--) {
        const hpc_pushed *k = &ex->keys[i];
        hpc_quorum_look(ex, i);
        if (k->since == 0 || k->number <= k->version) continue;
        first = i;
        n++;
    }
    if (n > 0)
        hpc_group_note(&ex->context->group, HPC_NOTE_LOST,
                       "lost the last push of %d key%s of rank %d, %.64s first: version %llu found no quorum of %d", n,
                       n == 1 ? "" : "s", ex->context->group.rank, ex->plan->keys[first].name,
                       (unsigned long long)ex->keys[first].number, ex->quorum);
}

/* The first key, if any, that is not pushed for the present version, or not answered; else -1. */
static int unfinished(const hpc_exchange *ex) {
    for (int i = 0; i < ex->plan->n_keys; i++) {
        const hpc_pushed *k = &ex->keys[i];
        if (k->n_shares == 0) continue;
        if (k->sending != 0 || k->number != ex->number || !hpc_ticket_is_done(ex, i, 2 * k->pushes)) return i;
    }
    return -1;
}

int hpc_quorum_ready(const hpc_exchange *ex, int key, int *other) {
    *other = ex->keys[key].number < ex->number ? -1 : unfinished(ex);
    return *other < 0;
}

void hpc_quorum_begin(hpc_exchange *ex, int key) {
    hpc_pushed *k = &ex->keys[key];
    if (k->number == ex->number) ex->number = hpc_exchange_version(ex) + 1;
    k->number = ex->number;
}

static int works(const hpc_exchange *ex) {
    return ex != NULL && ex->places[ex->context->group.rank].worker;
}

int hpc_exchange_late(const hpc_exchange *ex, int key) {
    int n = 0;
    for (int k = 0; works(ex) && k < ex->plan->n_keys; k++) {
        if (key >= 0 && k != key) continue;
        if (hpc_has_quorum(ex)) hpc_quorum_look(ex, k);
        n += hpc_leaves_out(ex) ? hpc_graph_late(ex, k) : (int)ex->keys[k].late;
    }
    return n;
}

uint64_t hpc_exchange_version(const hpc_exchange *ex) {
    uint64_t newest = 0;
    for (int k = 0; works(ex) && k < ex->plan->n_keys; k++) {
        if (hpc_has_quorum(ex)) hpc_quorum_look(ex, k);
        uint64_t version = hpc_has_quorum(ex) ? ex->keys[k].version : ex->keys[k].pushes;
        if (hpc_leaves_out(ex)) version = hpc_graph_folded(ex, k);
        if (version > newest) newest = version;
    }
    return newest;
}
