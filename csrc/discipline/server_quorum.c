/* BSP on servers that goes on without stragglers: a fold needs only a quorum of the workers' updates.
 *
 * A worker says of each update for which version of the parameters it is: the version after the newest that any owner
 * has answered this worker. A share folds the updates for its next version when all are there that can come, or when a
 * quorum is there and the grace for the others is over. A worker whose update
 *   is in the fold       gets the parameters and an answer, as under BSP
 *   is not there yet     gets nothing: it computes, and its parameters are its own until it pushes
 *   comes after it       is late: the update is left out; the worker gets the newest parameters and an answer that says
 *                        so
 * So every push of a share has one answer, and a worker that has all of them goes on from the newest version that it
 * knows. Shares may be some versions apart: an update for a later version of a share waits there.
 *
 * A version belongs to all keys: a worker pushes each of them once for it, and has all answers before it pushes the
 * next. So where one share has found its quorum all others will, for the same ranks have pushed that version there.
 * Were keys counted by themselves, two workers could wait for each other, each for a key in which it is ahead.
 *
 * A worker that has had no answer of the last fold is behind, and no fold waits for it: its next push was computed
 * before. A rank that stands still costs the others their grace once. The grace can be learned from the folds that had
 * all updates; the others do not tell how long the missing ones would have taken (Karn's rule, RFC 6298, section 3).
 *
 * Order: a worker puts the number of its version before its event, and reads the verdict behind an answer after the
 * share has answered. Each is written again only after the other side has taken it. The lists of waiting updates belong
 * to the core alone. */
#include <math.h>
#include <stdlib.h>

#include "discipline/discipline.h"
#include "engine/core.h"
#include "engine/send.h"

/* Lies behind an answer: the version of the parameters that the worker has got, how many of its pushes of the share
 * were left out, and the version at which the last of them was. */
typedef struct verdict {
    uint64_t version, dropped, dropped_at;
} verdict;

/* The updates that have come for a share that this rank owns; arrays are by rank. */
typedef struct arrivals {
    _Atomic uint64_t *number; /* the version of its update that waits here, 0: none; the core alone writes it */
    int *slots;               /* the slot of that update */
    verdict *verdicts;        /* the last ones, which puts may still read */
    uint64_t *answered;       /* pushes that were folded, or left out */
    char *takes;              /* whether it is in the present fold, and gets its parameters */
    int held, here;           /* updates that wait; how many of these are for the next version */
    int place;                /* among the core's waiting shares */
    double since;             /* when the quorum was there; 0: it is not */
    hpc_usual lag;            /* from the quorum until the last update is there */
} arrivals;

/* A worker's view of a key. number: the version that its last push is for. version: the newest one answered. late:
 * shares of the last push that were left out. dropped: the same of all pushes, dropped_at: at which version the last.
 */
typedef struct version_of_key {
    uint64_t number, version, late, dropped, dropped_at;
} version_of_key;

/* The exchange's own. */
typedef struct server_quorum {
    version_of_key *keys;
    uint64_t number; /* the version that keys are pushed for */
} server_quorum;

static server_quorum *quorum_of(const hpc_exchange *ex) {
    return ex->own;
}

static arrivals *arrivals_of(const hpc_share *share) {
    return share->own;
}

/* Offsets in a rank's part of the window: of the versions that updates are for (by share and rank), of the verdicts (by
 * share). */
static size_t number_at(const hpc_exchange *ex, const hpc_share *share, int from) {
    size_t at = (size_t)share->at * (size_t)ex->context->group.size + (size_t)from;
    return ex->layout.places[share->owner].own + at * sizeof(uint64_t);
}

static size_t verdict_at(const hpc_exchange *ex, int rank, int s) {
    const hpc_place *place = &ex->layout.places[rank];
    size_t numbers = (size_t)place->shares * (size_t)ex->context->group.size * sizeof(uint64_t);
    return place->own + (numbers + 63) / 64 * 64 + (size_t)s * sizeof(verdict);
}

static size_t part(const hpc_exchange *ex, int rank) {
    size_t numbers = (size_t)ex->layout.places[rank].shares * (size_t)ex->context->group.size * sizeof(uint64_t);
    return (numbers + 63) / 64 * 64 + (size_t)ex->layout.n_shares * sizeof(verdict);
}

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

/* A quorum of all workers is the same as no quorum. */
static int suits(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows && f->quorum > 0 && f->graph == NULL; i++)
        if (f->quorum < f->plan->rows[i].n_in) return 1;
    return 0;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    static const char op[] = "exchange";
    const char *what = f->consistency != HPC_BSP ? "consistency ASYNC"
                       : f->shared_params        ? "shared_params"
                                                 : "eager folds (deterministic=False)";
    (void)c;
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
    }
    return HPC_OK;
}

/* ---- owner ---- */

static int is_open(const hpc_exchange *ex, int rank) {
    return hpc_closed_signal(ex, rank) == 0;
}

static uint64_t number_of(const hpc_share *share, int rank) {
    return atomic_load_explicit(&arrivals_of(share)->number[rank], memory_order_relaxed);
}

/* A core's own: its shares in which updates wait. */
typedef struct waiting {
    hpc_share **shares;
    int n;
} waiting;

static void hold(hpc_core *core, hpc_share *share, int rank, uint64_t number, int slot) {
    arrivals *a = arrivals_of(share);
    atomic_store_explicit(&a->number[rank], number, memory_order_relaxed);
    a->slots[rank] = slot;
    a->here += number == share->version + 1;
    if (a->held++ > 0) return;
    waiting *its = core->own;
    a->place = its->n;
    its->shares[its->n++] = share;
}

static void release(hpc_core *core, hpc_share *share, int rank) {
    arrivals *a = arrivals_of(share);
    atomic_store_explicit(&a->number[rank], 0, memory_order_relaxed);
    if (--a->held > 0) return;
    waiting *its = core->own;
    its->shares[a->place] = its->shares[--its->n];
    arrivals_of(its->shares[a->place])->place = a->place;
    if (its->n == 0) core->due = INFINITY;
}

static void answer(hpc_core *core, hpc_share *share, int rank) {
    const hpc_exchange *ex = core->exchange;
    int s = (int)(share - ex->layout.shares);
    verdict *said = &arrivals_of(share)->verdicts[rank];
    said->version = share->version;
    hpc_share_answer_with(core, rank, said, sizeof *said, verdict_at(ex, rank, s), hpc_signal_applied(ex, s),
                          ++arrivals_of(share)->answered[rank]);
}

static void drop(hpc_core *core, hpc_share *share, int rank) {
    hpc_exchange *ex = core->exchange;
    verdict *said = &arrivals_of(share)->verdicts[rank];
    said->dropped++;
    said->dropped_at = share->version;
    atomic_fetch_add_explicit(&ex->peers.late[rank], 1, memory_order_relaxed);
    for (int i = 0; i < share->n_rows; i++) hpc_row_send(core, &ex->work[ex->work_of[share->rows[i]]], rank);
    answer(core, share, rank);
}

/* Whether an update for the next version may still come in time. */
static int more_may_come(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(ex, share);
    for (int e = 0; e < w->row->n_in; e++) {
        int rank = w->inputs[e].rank;
        if (number_of(share, rank) == 0 && arrivals_of(share)->verdicts[rank].version == share->version &&
            is_open(ex, rank))
            return 1;
    }
    return 0;
}

/* Whether the next version cannot find its quorum: too many workers have closed, or wait for a later version. */
static int is_lost(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(ex, share);
    int n = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        uint64_t number = number_of(share, w->inputs[e].rank);
        n += number == share->version + 1 || (number == 0 && is_open(ex, w->inputs[e].rank));
    }
    return n < ex->asked.quorum;
}

static double grace_of(const hpc_exchange *ex, const arrivals *a) {
    if (ex->asked.grace >= 0) return ex->asked.grace;
    double usual = hpc_usual_limit(&a->lag);
    return usual == 0 ? FIRST_GRACE : usual < LEAST_GRACE ? LEAST_GRACE : usual;
}

/* The updates of a row that are for the next version. Weights that add up to 1 (a mean) are scaled to do so again;
 * others (a sum) stay as they are. */
static hpc_inputs inputs_here(hpc_core *core, const hpc_share *share, const hpc_work *w) {
    double all = 0, present = 0;
    int n = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        all += w->weights[e];
        if (number_of(share, in->rank) != share->version + 1) continue;
        present += w->weights[e];
        core->bases[n] = in->slots + (size_t)arrivals_of(share)->slots[in->rank] * in->stride;
        core->base_weights[n++] = w->weights[e];
    }
    for (int i = 0; i < n && n < w->row->n_in && fabs(all - 1) < 1e-9; i++) core->base_weights[i] /= present;
    return (hpc_inputs){.bases = core->bases,
                        .weights = core->base_weights,
                        .n = n,
                        .codec = w->codec,
                        .args_of = core->exchange->args_of,
                        .takes = arrivals_of(share)->takes,
                        .slot = share->version};
}

static void count_fold(hpc_core *core, const hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    const hpc_work *w = hpc_first_work(ex, share);
    for (int e = 0; e < w->row->n_in; e++) {
        int rank = w->inputs[e].rank;
        if (arrivals_of(share)->takes[rank] && rank != share->owner) hpc_share_count_received(ex, share, rank);
    }
    hpc_share_count_fold(core, arrivals_of(share)->here);
    hpc_tally_add(&core->tally.missing, (uint64_t)(w->row->n_in - arrivals_of(share)->here));
}

/* Nonzero when a user's kernel has failed. */
static int fold(hpc_core *core, hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    arrivals *a = arrivals_of(share);
    uint64_t number = share->version + 1;
    if (a->here == hpc_first_work(ex, share)->row->n_in) hpc_usual_learn(&a->lag, hpc_now() - a->since);
    for (int r = 0; r < ex->context->group.size; r++) a->takes[r] = number_of(share, r) == number;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        const hpc_inputs inputs = inputs_here(core, share, w);
        if (hpc_row_work(core, w, &inputs) != 0) return -1;
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
    for (int i = 0; i < share->n_parts; i++) /* all is noted before a worker may go on */
        if (a->takes[share->parts[i]]) answer(core, share, share->parts[i]);
    return 0;
}

static void let_go(hpc_core *core, hpc_share *share) {
    for (int i = 0; i < share->n_parts; i++) {
        if (number_of(share, share->parts[i]) == 0) continue;
        release(core, share, share->parts[i]);
        drop(core, share, share->parts[i]);
    }
    arrivals_of(share)->here = 0;
}

/* Makes the folds of a share whose time has come. */
static void consider(hpc_core *core, hpc_share *share, int closed) {
    const hpc_exchange *ex = core->exchange;
    arrivals *a = arrivals_of(share);
    while (a->here >= ex->asked.quorum) {
        double now = hpc_now();
        int begins = a->since == 0;
        if (begins) a->since = now;
        double due = a->since + grace_of(ex, a);
        if (now < due && more_may_come(ex, share)) {
            if (due < core->due) core->due = due;
            if (begins)
                hpc_bell_ring(ex->context->group.bell); /* a thread that is about to sleep must not sleep for longer */
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

static int share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    const hpc_exchange *ex = core->exchange;
    const uint64_t *number = (const uint64_t *)(const void *)(hpc_own_part(ex) + number_at(ex, share, rank));
    if (!hpc_feeds_share(ex, share, rank) || number_of(share, rank) != 0 || *number == 0) return 0;
    if (*number <= share->version) {
        drop(core, share, rank);
        return 1;
    }
    hold(core, share, rank, *number, slot);
    consider(core, share, 0);
    return 1;
}

static int work(hpc_core *core) {
    waiting *its = core->own;
    int n = 0;
    if (its->n == 0) return 0;
    int closed = some_closed(core->exchange);
    core->due = INFINITY;
    for (int i = 0; i < its->n;) {
        hpc_share *share = its->shares[i];
        int held = arrivals_of(share)->held;
        consider(core, share, closed);
        n += arrivals_of(share)->held < held;
        i += i < its->n && its->shares[i] == share;
    }
    return n;
}

/* Tells every worker the versions of this rank's shares, when nothing is under way anywhere. */
static int tell(hpc_exchange *ex) {
    int status = HPC_OK;
    for (int s = 0; s < ex->layout.n_shares; s++) {
        hpc_share *share = &ex->layout.shares[s];
        if (share->n_parts == 0) continue;
        hpc_core_pause(&ex->cores[share->core]);
        for (int i = 0; i < share->n_parts && status == HPC_OK; i++) {
            int rank = share->parts[i];
            verdict *said = &arrivals_of(share)->verdicts[rank];
            said->version = share->version;
            status = hpc_put(ex->cores[share->core].out, ex->window, rank, said, sizeof *said, verdict_at(ex, rank, s));
        }
        hpc_core_resume(&ex->cores[share->core]);
    }
    return status;
}

/* ---- open ---- */

static int open_share(const hpc_exchange *ex, hpc_share *share) {
    size_t size = (size_t)ex->context->group.size;
    arrivals *a = share->own = calloc(1, sizeof *a);
    if (a == NULL) return 0;
    a->number = calloc(size, sizeof *a->number);
    a->slots = calloc(size, sizeof *a->slots);
    a->verdicts = calloc(size, sizeof *a->verdicts);
    a->answered = calloc(size, sizeof *a->answered);
    a->takes = calloc(size, 1);
    return a->number != NULL && a->slots != NULL && a->verdicts != NULL && a->answered != NULL && a->takes != NULL;
}

static int prepare(hpc_exchange *ex, const hpc_exchange_config *f, const char *op) {
    server_quorum *q = ex->own = calloc(1, sizeof *q);
    ex->asked.quorum = f->quorum;
    if (q != NULL) q->keys = calloc((size_t)ex->plan->n_keys, sizeof *q->keys);
    return q != NULL && q->keys != NULL
               ? HPC_OK
               : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a quorum of %d", op, f->quorum);
}

static int open_all(hpc_exchange *ex, const char *op) {
    int has = 1;
    for (int s = 0; s < ex->layout.n_shares && has; s++)
        if (ex->layout.shares[s].owner == ex->context->group.rank) has = open_share(ex, &ex->layout.shares[s]);
    for (int c = 0; c < ex->n_own_cores && has; c++) {
        waiting *its = ex->cores[c].own = calloc(1, sizeof *its);
        if (its != NULL) its->shares = malloc((size_t)ex->layout.n_shares * sizeof(hpc_share *));
        has = its != NULL && its->shares != NULL;
    }
    if (!has) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a quorum of %d", op, ex->asked.quorum);
    return hpc_share_open_counts(ex, 0, op);
}

static void free_all(hpc_exchange *ex) {
    server_quorum *q = ex->own;
    for (int s = 0; s < ex->layout.n_shares; s++) {
        arrivals *a = ex->layout.shares[s].own;
        if (a == NULL) continue;
        free(a->number);
        free(a->slots);
        free(a->verdicts);
        free(a->answered);
        free(a->takes);
        free(a);
        ex->layout.shares[s].own = NULL;
    }
    for (int c = 0; ex->cores != NULL && c < ex->n_own_cores; c++) {
        waiting *its = ex->cores[c].own;
        if (its != NULL) free(its->shares);
        free(its);
        ex->cores[c].own = NULL;
    }
    if (q != NULL) free(q->keys);
    free(q);
    ex->own = NULL;
}

/* ---- worker ---- */

/* Takes the owners' verdicts on the last push of key, if all of them have answered. */
static void look(const hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    version_of_key *of = &quorum_of(ex)->keys[key];
    if (k->n_shares == 0 || k->sending & HPC_PUSH || !hpc_ticket_is_done(ex, key, 2 * k->pushes)) return;
    const char *part = hpc_own_part(ex);
    of->late = of->dropped = 0;
    for (int i = 0; i < k->n_shares; i++) {
        const verdict *said = (const void *)(part + verdict_at(ex, ex->context->group.rank, k->shares[i]));
        if (said->version > of->version) of->version = said->version;
        if (said->dropped_at > of->dropped_at) of->dropped_at = said->dropped_at;
        of->late += said->dropped > 0 && said->dropped_at == said->version;
        of->dropped += said->dropped;
    }
}

/* HPC_ERR_PEER when so many workers have closed that the last push of key has found no quorum. */
static int ended(hpc_exchange *ex, int key, const char *op) {
    const version_of_key *of = &quorum_of(ex)->keys[key];
    look(ex, key);
    if (of->number <= of->version) return HPC_OK;
    int *closed = malloc((size_t)ex->context->group.size * sizeof *closed), n = 0;
    for (int r = 0; r < ex->context->group.size && closed != NULL; r++)
        if (ex->layout.places[r].worker && !is_open(ex, r)) closed[n++] = r;
    int status = hpc_group_fail_closed(&ex->context->group, op, closed, n,
                                       "version %llu of key %s finds no quorum of %d any more: %d workers have closed "
                                       "the exchange, rank %d among them",
                                       (unsigned long long)of->number, ex->plan->keys[key].name, ex->asked.quorum, n,
                                       n > 0 ? closed[0] : -1);
    free(closed);
    return status;
}

/* Makes a note of how many last pushes have found no quorum. Pushes that a pull has waited for do not count: the pull
 * has reported them. */
static void closing(hpc_exchange *ex) {
    const server_quorum *q = quorum_of(ex);
    int n = 0, first = -1;
    for (int i = ex->plan->n_keys - 1; i >= 0; i--) {
        look(ex, i);
        if (ex->keys[i].since == 0 || q->keys[i].number <= q->keys[i].version) continue;
        first = i;
        n++;
    }
    if (n > 0)
        hpc_group_note(&ex->context->group, HPC_NOTE_LOST,
                       "lost the last push of %d key%s of rank %d, %.64s first: version %llu found no quorum of %d", n,
                       n == 1 ? "" : "s", ex->context->group.rank, ex->plan->keys[first].name,
                       (unsigned long long)q->keys[first].number, ex->asked.quorum);
}

/* The first key, if any, that is not pushed for the present version, or not answered; else -1. */
static int unfinished(const hpc_exchange *ex) {
    const server_quorum *q = quorum_of(ex);
    for (int i = 0; i < ex->plan->n_keys; i++) {
        const hpc_pushed *k = &ex->keys[i];
        if (k->n_shares == 0) continue;
        if (k->sending != 0 || q->keys[i].number != q->number || !hpc_ticket_is_done(ex, i, 2 * k->pushes)) return i;
    }
    return -1;
}

/* Refuses a second push of a key before all keys have been pushed and answered. */
static int may_push(hpc_exchange *ex, int key, const char *op) {
    const server_quorum *q = quorum_of(ex);
    int status = hpc_push_after(ex, key, 2 * ex->keys[key].pushes, op);
    if (status != HPC_OK) return status;
    int other = q->keys[key].number < q->number ? -1 : unfinished(ex);
    if (other < 0) return HPC_OK;
    if (op == NULL) return HPC_IN_PROGRESS;
    return hpc_fail(HPC_ERR_INVALID, op,
                    "%s: rank %d has pushed key %s for version %llu already, and key %s not, or not to its end: with a "
                    "quorum each key is pushed once for a version, and pulled before the next",
                    op, ex->context->group.rank, ex->plan->keys[key].name, (unsigned long long)q->number,
                    ex->plan->keys[other].name);
}

static uint64_t version(const hpc_exchange *ex, int key) {
    look(ex, key);
    return quorum_of(ex)->keys[key].version;
}

static void begin_push(hpc_exchange *ex, int key) {
    server_quorum *q = quorum_of(ex);
    uint64_t newest = 0;
    for (int i = 0; i < ex->plan->n_keys; i++)
        if (version(ex, i) > newest) newest = q->keys[i].version;
    if (q->keys[key].number == q->number) q->number = newest + 1;
    q->keys[key].number = q->number;
}

/* Sends a share as a whole, with the version that it is for. Its data comes before its event. */
static int send_share(hpc_exchange *ex, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &ex->layout.shares[s];
    const uint64_t *number = &quorum_of(ex)->keys[share->key].number;
    hpc_pushed *k = &ex->keys[share->key];
    int me = ex->context->group.rank, status = HPC_OK;
    for (; k->at_row < share->n_rows && !hpc_reads_in_place(ex, share->owner, me); k->at_row++) {
        int index = share->rows[k->at_row];
        const hpc_row *row = &ex->plan->rows[index];
        status = hpc_put(ex->in_lanes[share->core], ex->window, share->owner,
                         hpc_push_slot(ex, share->key) + hpc_row_from(ex, row), hpc_input_bytes(row),
                         ex->push_slot[index] + (size_t)slot * hpc_slot_stride(ex, row));
        if (status != HPC_OK) return status;
    }
    status = hpc_send_event(ex, share->core, share->owner, number, sizeof *number, number_at(ex, share, me),
                            hpc_imm(HPC_OP_SHARE, slot, s), l);
    if (status == HPC_OK) hpc_count_sent(ex, share);
    return status;
}

/* For this rank's own shares: the workers that have no update waiting there. For other shares: their owners. */
static int awaited(const hpc_exchange *ex, int key, uint64_t ticket, int for_slot, int *ranks) {
    const hpc_pushed *k = &ex->keys[key];
    int n = 0, me = ex->context->group.rank;
    (void)for_slot;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &ex->layout.shares[k->shares[i]];
        if (hpc_share_has_answered(ex, k->shares[i], ticket)) continue;
        if (share->owner != me) n = hpc_add_rank(ranks, n, share->owner);
        for (int p = 0; p < share->n_parts && share->owner == me; p++)
            if (number_of(share, share->parts[p]) == 0 && is_open(ex, share->parts[p]))
                n = hpc_add_rank(ranks, n, share->parts[p]);
    }
    return n > 0 ? n : hpc_add_rank(ranks, n, me);
}

static int late(const hpc_exchange *ex, int key) {
    look(ex, key);
    return (int)quorum_of(ex)->keys[key].late;
}

static void count(const hpc_exchange *ex, hpc_exchange_stats *stats) {
    const server_quorum *q = quorum_of(ex);
    for (int k = 0; k < ex->plan->n_keys; k++) {
        look(ex, k);
        stats->dropped += q->keys[k].dropped;
        if (q->keys[k].dropped_at > stats->dropped_at) stats->dropped_at = q->keys[k].dropped_at;
    }
}

const hpc_discipline hpc_discipline_server_quorum = {
    .name = "a quorum",
    .suits = suits,
    .check = check,
    .quorum = 1,
    .goes_on = 1,
    .whole = 1,
    .part = part,
    .prepare = prepare,
    .open = open_all,
    .free = free_all,
    .share_bytes = sizeof(uint64_t),
    .puts_shares = 1,
    .share_came = share_came,
    .work = work,
    .may_push = may_push,
    .begin_push = begin_push,
    .send_share = send_share,
    .awaited = awaited,
    .ended = ended,
    .closing = closing,
    .after_publish = tell,
    .late = late,
    .version = version,
    .count = count,
};
