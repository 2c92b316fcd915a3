/* SSP(s) where receivers apply the rule: UCC-SSP (Parameter Flow, section 3.2.1). Workers push updates, and updates
 * come back. Every receiver applies the same ones in the same order, so all workers have the same parameters for each
 * version, bit for bit.
 *
 * A worker's *clock* of a key is the number of its pushes since the last publish. A *version* is a sum of updates, and
 * version t holds all updates of clocks up to t that earlier versions do not hold. A row that forwards adds each update
 * to the sum of the open version as it comes, whatever its clock. It closes version t when every open worker has pushed
 * t times: it sends the sum to all receivers, once, and begins the next sum. So the updates of fast workers may be in
 * earlier versions than t, never in later ones.
 *
 * A step at clock c begins when the worker's receiver has applied version c - s. After each push the worker tells its
 * receiver, which is a row of its own rank. The receiver then applies the versions that are there, and answers when it
 * has c - s. It applies nothing while the worker computes. All rows of a share have the same version when it answers,
 * except after a closing that has let several versions close at once.
 *
 * A *note* travels with each version, by a put before it: the version's number, the count of its updates (which the
 * rule gets), and the rule's arguments. Those are the arguments of push t of the workers, which must be equal. So they
 * go to the rows that forward, by the same lane as the push, and no receiver needs a place for them.
 *
 * A row that forwards may pass on what another one has forwarded, note and all: the versions of a sum then go down a
 * tree (section 3.4.2). Passing on waits for nothing.
 *
 * A worker that has closed, and whose pushes have all come, counts in no version. Then several versions may close at
 * once: the sum has the number of the last of them. A sum without updates is sent all the same, as a worker may wait
 * for its number, and the receivers apply nothing. When all workers have closed, a last version has the number of the
 * largest clock. All ranks know that number from the closing counts, and ranks that own rows serve until all receivers
 * below these have applied it.
 *
 * Slots. d is the plan's depth, s + 2 at least. A worker that has pushed t times has had the answer to push t - 1, so
 * its receiver has applied version t - 1 - s. Versions are sent in order, one number or more apart. So when version t
 * is closed, at most s + 1 versions have been sent that some open worker's receiver has not applied, t included. Hence
 *   a receive slot, and its note    written for the version d after the one that it had, which is applied
 *   a sum, and the source of puts   written for the version after t, so it had version t + 1 - d or an earlier one,
 *                                   which is applied and so has left
 *   a slot of a row that passes on, and its note   written as the receive slots below it are, which have their copies
 *   a gradient's slot, its arguments   written for push p + d after the answer to push p + d - 1, so after the close of
 *                                   version p + 1, which read them
 *
 * Receivers of workers that have closed, and those that only keep a master, push nothing. They signal the version that
 * they have applied to the ranks of all rows by which it came. A version stays open until the slots that it needs are
 * free, at whatever receiver of its sum.
 *
 * Writers, readers and order:
 *   a worker's parameters     written by its own core between the event of its question and the answer (a signal); in
 *                             settle, publish and close between two pauses of the core
 *   notes, receive slots      written by the sender, before the event of the forward; read by the core after it
 *   base, levels              written by the worker with all its cores paused; last is written before levels is set
 *   counts of pushes, versions   written by the core; a wait reads them, to name ranks and in settle and publish
 *
 * Nobody waits in a circle: the slowest worker waits for no one, as all others have pushed as often. */
#include <string.h>

#include "discipline/each.h"
#include "discipline/grouping.h"
#include "discipline/updates.h"
#include "engine/core.h"
#include "engine/row.h"
#include "engine/send.h"
#include "engine/stages.h"

/* ---- what is asked for ---- */

static int suits(const hpc_exchange_config *f) {
    int other;
    return f->consistency == HPC_SSP && f->graph == NULL && !hpc_config_is_bsp(f) && f->plan != NULL &&
           hpc_plan_find_copy(f->plan, &other) >= 0;
}

static int refuse_row(int i, const char *why) {
    return hpc_fail(
        HPC_ERR_CONFIG, "exchange",
        "exchange: row %d %s; SSP where receivers apply needs a plan of parameter servers, whose rows forward "
        "the sum of all workers' updates to one row at each worker, be it over a tree (a hierarchy needs BSP)",
        i, why);
}

/* Whether row forwards to one that applies for rank, be it by way of others. */
static int serves(const hpc_plan *plan, const hpc_row *row, int rank) {
    for (int e = 0; e < row->n_out; e++) {
        if (row->out[e].row < 0) continue;
        const hpc_row *to = &plan->rows[row->out[e].row];
        if (to->action == HPC_FORWARD ? serves(plan, to, rank) : to->owner == rank && to->n_out > 0) return 1;
    }
    return 0;
}

/* Whether all rows that a row forwards to apply what comes, or pass it on. */
static int check_outputs(const hpc_plan *plan, int i) {
    const hpc_row *row = &plan->rows[i];
    for (int e = 0; e < row->n_out; e++)
        if (row->out[e].row < 0 ||
            (plan->rows[row->out[e].row].action != HPC_APPLY && !hpc_row_passes_on(&plan->rows[row->out[e].row])))
            return refuse_row(i, "forwards to a row that neither applies nor passes on");
    return HPC_OK;
}

/* Checks a row that passes on what another one forwards. */
static int check_passing(const hpc_plan *plan, int i) {
    const hpc_row *row = &plan->rows[i];
    if (row->n_in != 1 || row->in[0].weight != 1 || plan->rows[row->in[0].row].action != HPC_FORWARD)
        return refuse_row(i, "sums what other rows forward");
    if (plan->rows[row->in[0].row].codec_out != row->codec_out)
        return refuse_row(i, "passes updates on in another form than they come in");
    return check_outputs(plan, i);
}

/* Checks a row that forwards. first: the key's first row that does. */
static int check_sum(const hpc_plan *plan, int i, const hpc_row *first) {
    const hpc_row *row = &plan->rows[i];
    if (row->quorum != row->n_in) return refuse_row(i, "has a quorum");
    if (row->n_in != first->n_in) return refuse_row(i, "takes updates of other ranks than another row of its key");
    for (int e = 0; e < row->n_in; e++) {
        const hpc_edge *in = &row->in[e];
        if (in->row >= 0) return refuse_row(i, "sums what other rows forward");
        if (in->weight == 0) return refuse_row(i, "has an input of weight 0");
        if (!hpc_row_has_input(first, in->rank))
            return refuse_row(i, "takes updates of other ranks than another row of its key");
        if (!serves(plan, row, in->rank)) return refuse_row(i, "forwards nothing to a rank that pushes to it");
    }
    return check_outputs(plan, i);
}

static int check_receiver(const hpc_plan *plan, int i) {
    const hpc_row *row = &plan->rows[i];
    if (row->action != HPC_APPLY) return refuse_row(i, "neither forwards nor applies");
    if (row->n_in != 1 || row->in[0].row < 0) return refuse_row(i, "applies what workers push to it");
    if (row->n_out > 1 || (row->n_out == 1 && row->out[0].rank != row->owner))
        return refuse_row(i, "sends parameters to other ranks");
    return HPC_OK;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    enum { MOST = HPC_PLAN_DEPTH - 2 };
    const hpc_rule *own = hpc_config_own_fold(f);
    const hpc_row *first = NULL;
    (void)c;
    if (f->staleness > MOST)
        return hpc_fail(HPC_ERR_INVALID, "exchange",
                        "exchange: staleness is %d; 0 to %d are possible where receivers apply the rule", f->staleness,
                        MOST);
    int status = hpc_each_check(f);
    if (status == HPC_OK && own != NULL)
        status =
            hpc_fail(HPC_ERR_CONFIG, "exchange",
                     "exchange: rule %s has a fold of its own, by which receivers would fold a sum again; SSP where "
                     "receivers apply needs the weighted sum",
                     own->name);
    if (status == HPC_OK && f->plan->rows[0].depth < f->staleness + 2)
        status = hpc_fail(HPC_ERR_CONFIG, "exchange",
                          "exchange: the plan has depth %d; SSP(%d) where receivers apply the rule needs %d or more",
                          f->plan->rows[0].depth, f->staleness, f->staleness + 2);
    for (int i = 0; i < f->plan->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (first != NULL && first->key != row->key) first = NULL;
        if (!hpc_row_sums(row)) {
            status = hpc_row_passes_on(row) ? check_passing(f->plan, i) : check_receiver(f->plan, i);
            continue;
        }
        if (first == NULL) first = row;
        status = check_sum(f->plan, i, first);
    }
    return status;
}

/* ---- open ---- */

static size_t part(const hpc_engine *en, int rank) {
    size_t n = 0;
    for (int i = 0; i < en->plan->n_rows; i++)
        n += en->plan->rows[i].owner == rank && !hpc_row_sums(&en->plan->rows[i]);
    return n * (size_t)en->layout.depth * sizeof(hpc_version_note);
}

static int no_memory(const char *op) {
    return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for sums and clocks", op);
}

static int prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    const size_t size = (size_t)en->context->group.size, keys = (size_t)en->plan->n_keys;
    size_t *used = calloc(size, sizeof *used);
    hpc_updates *its = en->own = calloc(1, sizeof *its);
    (void)f;
    if (its != NULL) {
        its->note_at = calloc((size_t)en->plan->n_rows, sizeof *its->note_at);
        its->base = calloc(keys * size, sizeof *its->base);
        its->last = calloc(keys * size, sizeof *its->last);
        its->goal = calloc(keys, sizeof *its->goal);
        its->counted = calloc(keys, sizeof *its->counted);
    }
    const int found = its != NULL && used != NULL && its->note_at != NULL && its->base != NULL && its->last != NULL &&
                      its->goal != NULL && its->counted != NULL;
    for (int i = 0; i < en->plan->n_rows && found; i++) {
        const hpc_row *row = &en->plan->rows[i];
        if (hpc_row_sums(row)) continue;
        its->note_at[i] = used[row->owner];
        used[row->owner] += (size_t)row->depth * sizeof(hpc_version_note);
    }
    free(used);
    return found ? HPC_OK : no_memory(op);
}

static int open_sum(hpc_engine *en, hpc_work *w) {
    hpc_summing *its = hpc_sum_of(en, w);
    const size_t depth = (size_t)en->layout.depth;
    w->leaving_stride = (hpc_output_bytes(en, w->row) + 63) / 64 * 64;
    its->pushes = calloc((size_t)w->row->n_in, sizeof *its->pushes);
    its->notes = calloc(depth, sizeof *its->notes);
    its->leaving = malloc(depth * w->leaving_stride);
    if (its->pushes == NULL || its->notes == NULL || its->leaving == NULL) return -1;
    w->leaving = its->leaving;
    if (w->out_codec->plain) {
        w->acc = (float *)(void *)its->leaving;
        return 0;
    }
    w->acc = its->sum = malloc((size_t)w->row->count * sizeof *its->sum);
    w->encoded = its->leaving;
    return its->sum != NULL ? 0 : -1;
}

/* The rows that apply what a row sends. rows: gets their numbers; NULL: they are counted. */
static int find_below(const hpc_plan *plan, int row, int *rows, int n) {
    for (int e = 0; e < plan->rows[row].n_out; e++) {
        const int to = plan->rows[row].out[e].row;
        if (plan->rows[to].action == HPC_FORWARD) {
            n = find_below(plan, to, rows, n);
        } else {
            if (rows != NULL) rows[n] = to;
            n++;
        }
    }
    return n;
}

static int open_below(hpc_engine *en, const hpc_work *w) {
    hpc_summing *its = hpc_sum_of(en, w);
    its->n_below = find_below(en->plan, w->index, NULL, 0);
    its->below = malloc((size_t)its->n_below * sizeof *its->below + 1);
    if (its->below == NULL) return -1;
    find_below(en->plan, w->index, its->below, 0);
    return hpc_row_sums(w->row) ? open_sum(en, &en->work[w - en->work]) : 0;
}

/* Adds the ranks by whose rows a version comes to a row, up to the one that sums. */
static void add_sources(const hpc_plan *plan, int row, hpc_receiver *its) {
    for (int at = plan->rows[row].in[0].row; at >= 0; at = plan->rows[at].in[0].row)
        its->n_sources = hpc_add_rank(its->sources, its->n_sources, plan->rows[at].owner);
}

static int open_share(hpc_engine *en, hpc_share *share) {
    hpc_receiver *its = share->own = calloc(1, sizeof *its);
    if (its == NULL) return -1;
    its->sources = malloc((size_t)en->context->group.size * sizeof *its->sources);
    if (its->sources == NULL) return -1;
    its->engine = en;
    if (hpc_share_forwards(en, share)) return 0;
    for (int i = 0; i < share->n_rows; i++) add_sources(en->plan, share->rows[i], its);
    its->runs = hpc_share_keeps(en, share);
    its->need = 1;
    its->below = share->n_rows;
    return 0;
}

static int open_all(hpc_engine *en, const char *op) {
    hpc_updates *its = hpc_updates_of(en);
    its->sums = calloc((size_t)en->n_work + 1, sizeof *its->sums);
    its->receives = calloc((size_t)en->n_work + 1, sizeof *its->receives);
    if (its->sums == NULL || its->receives == NULL) return no_memory(op);
    for (int c = 0; c < en->n_own_cores; c++)
        if ((en->cores[c].own = calloc(1, sizeof(hpc_closings))) == NULL) return no_memory(op);
    for (int i = 0; i < en->n_work; i++)
        if (en->work[i].row->action == HPC_FORWARD && open_below(en, &en->work[i]) != 0) return no_memory(op);
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_share *share = &en->layout.shares[s];
        if (share->owner == en->context->group.rank && open_share(en, share) != 0) return no_memory(op);
    }
    return HPC_OK;
}

static void free_sums(hpc_engine *en, hpc_summing *sums) {
    for (int i = 0; sums != NULL && i < en->n_work; i++) {
        free(sums[i].below);
        free(sums[i].pushes);
        free(sums[i].notes);
        free(sums[i].leaving);
        free(sums[i].sum);
    }
    free(sums);
}

static void free_all(hpc_engine *en) {
    hpc_updates *its = hpc_updates_of(en);
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_receiver *r = en->layout.shares[s].own;
        if (r != NULL) free(r->sources);
        free(r);
        en->layout.shares[s].own = NULL;
    }
    for (int c = 0; en->cores != NULL && c < en->n_own_cores; c++) {
        free(en->cores[c].own);
        en->cores[c].own = NULL;
    }
    if (its == NULL) return;
    free_sums(en, its->sums);
    free(its->receives);
    free(its->note_at);
    free(its->base);
    free(its->last);
    free(its->goal);
    free(its->counted);
    free(its);
    en->own = NULL;
}

/* ---- the worker ---- */

static int makes_params(const hpc_engine *en, const hpc_share *share) {
    return share->owner == en->context->group.rank && !hpc_share_forwards(en, share) && !hpc_share_keeps(en, share);
}

static int may_push(hpc_engine *en, int key, const char *op) {
    return hpc_push_after(en, key, 2 * en->keys[key].pushes, op);
}

/* Sends the update to rows that forward, and tells the receiver of this rank that there was one. */
static int send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    if (hpc_share_forwards(en, share)) return hpc_push_share(en, s, slot, l);
    if (!makes_params(en, share)) return HPC_OK;
    return hpc_send_event(en, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_PULL, 0, s), l);
}

/* The version of this rank's parameters of a key. */
static uint64_t version_of_key(const hpc_engine *en, int key) {
    const hpc_pushed *k = &en->keys[key];
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < k->n_awaited; i++) {
        const uint64_t version = hpc_version_at(&((const hpc_receiver *)en->layout.shares[k->awaited[i]].own)->version);
        if (version < least) least = version;
    }
    return least == UINT64_MAX ? 0 : least;
}

static uint64_t own_clock(const hpc_engine *en, int key) {
    return hpc_clock_at(en, key, en->context->group.rank, en->keys[key].pushes);
}

static int ended(hpc_engine *en, int key, const char *op) {
    hpc_updates *its = hpc_updates_of(en);
    const uint64_t clock = own_clock(en, key), version = version_of_key(en, key);
    (void)op;
    if (its->counted[key] == en->keys[key].pushes) return HPC_OK;
    its->counted[key] = en->keys[key].pushes;
    const uint64_t n = clock > version ? clock - version : 0;
    if (n <= (uint64_t)en->asked.staleness) its->begun[n]++;
    return HPC_OK;
}

/* ---- the ranks that a wait waits for ---- */

/* Whether updates of rank are missing here: in a row of this rank, for a version up to need. */
static int is_missing_here(const hpc_engine *en, int key, int rank, uint64_t need) {
    for (int i = 0; i < en->n_work; i++) {
        const hpc_work *w = &en->work[i];
        if (w->row->key != key || !hpc_row_sums(w->row)) continue;
        const int e = hpc_row_input_of(w, rank, 0);
        if (e >= 0 && hpc_clock_at(en, key, rank, hpc_pushes_from(hpc_sum_of(en, w), e)) < need) return 1;
    }
    return 0;
}

/* Adds the open workers that have pushed fewer than need times. A worker whose count cannot be read is added if its
 * updates are missing here, or if it left without a word. */
static int slow_workers(const hpc_engine *en, int key, uint64_t need, int *ranks, int n) {
    for (int r = 0; r < en->context->group.size; r++) {
        if (r == en->context->group.rank || !hpc_pushes_key(en, r, key) || hpc_closed_signal(en, r) != 0) continue;
        const uint64_t pushes = hpc_pushes_of(en, r, key);
        const int slow = pushes != UINT64_MAX ? hpc_clock_at(en, key, r, pushes) < need
                                              : is_missing_here(en, key, r, need) || hpc_has_left(en, r);
        if (slow) n = hpc_add_rank(ranks, n, r);
    }
    return n;
}

/* The rank from which versions come to a row that applies: this one, where it has the sum. */
static int source_of(const hpc_engine *en, const hpc_work *w) {
    const hpc_row *from = &en->plan->rows[w->row->in[0].row];
    return from->owner == w->row->owner && hpc_row_passes_on(from) ? en->plan->rows[from->in[0].row].owner
                                                                   : from->owner;
}

/* The ranks that have not forwarded version need to rows of this rank. */
static int silent_sources(const hpc_engine *en, int key, uint64_t need, int *ranks, int n) {
    for (int i = 0; i < en->n_work; i++) {
        const hpc_work *w = &en->work[i];
        if (w->row->key != key || w->row->action == HPC_FORWARD || source_of(en, w) == w->row->owner) continue;
        if (atomic_load_explicit(&hpc_received_by(en, w)->version, memory_order_relaxed) < need)
            n = hpc_add_rank(ranks, n, source_of(en, w));
    }
    return n;
}

/* The ranks whose receivers have closed or keep masters, and hold up a version of this rank's. */
static int full_receivers(const hpc_engine *en, int key, int *ranks, int n) {
    for (int i = 0; i < en->n_work; i++) {
        const hpc_work *w = &en->work[i];
        const hpc_summing *its = hpc_sum_of(en, w);
        if (w->row->key != key || !hpc_row_sums(w->row)) continue;
        const uint64_t version = atomic_load_explicit(&its->waits, memory_order_relaxed);
        for (int b = 0; b < its->n_below && version > 0; b++) {
            const int rank = en->plan->rows[its->below[b]].owner;
            if (rank != w->row->owner && hpc_has_not_told(en, its->below[b], version)) n = hpc_add_rank(ranks, n, rank);
        }
    }
    return n;
}

static int missing_for(const hpc_engine *en, int key, uint64_t need, int *ranks) {
    int n = slow_workers(en, key, need, ranks, 0);
    if (n == 0) n = full_receivers(en, key, ranks, n);
    if (n == 0) n = silent_sources(en, key, need, ranks, n);
    return n > 0 ? n : hpc_add_rank(ranks, n, en->context->group.rank); /* its own core is at it */
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    (void)for_slot;
    return missing_for(en, key, hpc_clock_behind(en, hpc_clock_at(en, key, en->context->group.rank, ticket / 2)),
                       ranks);
}

/* ---- settle, publish, close ---- */

/* The core of a share applies what comes from here on; or, with on 0, only what the worker asks for. */
static void let_run(hpc_engine *en, hpc_share *share, int on) {
    hpc_core *core = &en->cores[share->core];
    hpc_core_pause(core);
    hpc_updates_run(core, share, on);
    hpc_core_resume(core);
}

static void let_key_run(hpc_engine *en, int key, int on) {
    for (int i = 0; i < en->keys[key].n_awaited; i++) let_run(en, &en->layout.shares[en->keys[key].awaited[i]], on);
}

/* A wait for versions: of a key, or (key -1) of all rows of this rank in a publish. */
typedef struct versions {
    hpc_engine *en;
    int key;
    uint64_t need;
} versions;

static int are_level(const hpc_engine *en) {
    for (int i = 0; i < en->n_work; i++) {
        const hpc_work *w = &en->work[i];
        if (hpc_row_passes_on(w->row)) continue; /* all ranks wait for the rows below it */
        const uint64_t version = w->row->action == HPC_FORWARD
                                     ? hpc_version_at(&hpc_sum_of(en, w)->version)
                                     : hpc_version_at(&((hpc_receiver *)w->share->own)->version);
        if (version < hpc_updates_of(en)->goal[w->row->key]) return 0;
    }
    return 1;
}

static int versions_came(void *arg) {
    const versions *v = arg;
    hpc_worker_progress(v->en);
    if (v->en->inline_progress) hpc_context_work(v->en->context);
    if (hpc_engine_has_failed(v->en)) return 1;
    return v->key < 0 ? are_level(v->en) : version_of_key(v->en, v->key) >= v->need;
}

static int version_makers(void *arg, int *ranks) {
    const versions *v = arg;
    const hpc_engine *en = v->en;
    int n = 0;
    if (v->key >= 0) return missing_for(en, v->key, v->need, ranks);
    for (int i = 0; i < en->n_work; i++) {
        const hpc_work *w = &en->work[i];
        for (int e = 0; e < w->row->n_in && hpc_row_sums(w->row); e++)
            if (hpc_pushes_from(hpc_sum_of(en, w), e) <
                hpc_updates_of(en)->last[hpc_by_rank(en, w->row->key, w->inputs[e].rank)])
                n = hpc_add_rank(ranks, n, w->inputs[e].rank);
        n = silent_sources(en, w->row->key, hpc_updates_of(en)->goal[w->row->key], ranks, n);
    }
    return n > 0 ? n : hpc_add_rank(ranks, n, en->context->group.rank);
}

static int await_versions(versions v, double timeout, const char *op) {
    const hpc_wait wait = {op, versions_came, version_makers, &v, 0};
    const int status = versions_came(&v) ? HPC_OK : hpc_wait_for(&v.en->context->group, &wait, timeout);
    return status == HPC_OK ? hpc_engine_check(v.en, op) : status;
}

/* Waits until this rank has applied a version with its last push. No later version can come meanwhile. */
static int settle(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    let_key_run(en, key, 1);
    const int status =
        await_versions((versions){.en = en, .key = key, .need = own_clock(en, key)}, hpc_limit_left(en, l), op);
    let_key_run(en, key, 0);
    return status;
}

/* Pauses all cores of this rank, or resumes them; inline, one pause holds all. */
static void pause_all(hpc_engine *en, int on) {
    for (int c = 0; c < (en->inline_progress && en->n_own_cores > 0 ? 1 : en->n_own_cores); c++) {
        if (on)
            hpc_core_pause(&en->cores[c]);
        else
            hpc_core_resume(&en->cores[c]);
    }
}

/* Tells all ranks the pushes of each, from which the version follows that has them all. */
static int agree_on_goal(hpc_engine *en, const char *op, double deadline) {
    hpc_updates *its = hpc_updates_of(en);
    const int status = hpc_clocks_learn_pushes(en, its->last, op, deadline);
    for (int k = 0; k < en->plan->n_keys && status == HPC_OK; k++) {
        its->goal[k] = 0;
        for (int r = 0; r < en->context->group.size; r++) {
            const uint64_t clock = hpc_clock_at(en, k, r, its->last[hpc_by_rank(en, k, r)]);
            if (hpc_pushes_key(en, r, k) && clock > its->goal[k]) its->goal[k] = clock;
        }
    }
    return status;
}

/* Publish: the open version of each row is closed, all receivers apply it, and all workers go on from one clock.
 * Nothing is under way on any rank, and no rank pushes before the publish has ended. */
static int level(hpc_engine *en, const char *op, double deadline) {
    const int me = en->context->group.rank, size = en->context->group.size;
    hpc_updates *its = hpc_updates_of(en);
    int status = agree_on_goal(en, op, deadline); /* cores look at it only while levels is set */
    if (status != HPC_OK) return status;
    pause_all(en, 1);
    its->levels = 1;
    pause_all(en, 0);
    for (int s = 0; s < en->layout.n_shares; s++)
        if (en->layout.shares[s].owner == me && !hpc_share_forwards(en, &en->layout.shares[s]))
            let_run(en, &en->layout.shares[s], 1);
    status = await_versions((versions){.en = en, .key = -1}, hpc_left(deadline), op);
    status = hpc_context_agree(en->context, op, status, deadline);
    for (int s = 0; s < en->layout.n_shares; s++)
        if (en->layout.shares[s].owner == me && !hpc_share_forwards(en, &en->layout.shares[s]))
            let_run(en, &en->layout.shares[s], 0);
    pause_all(en, 1);
    its->levels = 0;
    for (int i = 0; i < en->n_work; i++) its->receives[i].was_set = 0;
    for (int k = 0; k < en->plan->n_keys && status == HPC_OK; k++)
        for (int r = 0; r < size; r++)
            its->base[hpc_by_rank(en, k, r)] = its->last[hpc_by_rank(en, k, r)] - its->goal[k];
    pause_all(en, 0);
    return status;
}

static void restored(hpc_engine *en, const hpc_work *w, uint64_t step) {
    (void)step;
    hpc_received_by(en, w)->was_set = 1;
}

static void closing(hpc_engine *en) {
    for (int k = 0; k < en->plan->n_keys; k++) let_key_run(en, k, 1);
}

/* The version that has all pushes of workers that have all closed. */
static uint64_t last_version(const hpc_engine *en, int key) {
    uint64_t most = 0;
    for (int r = 0; r < en->context->group.size; r++) {
        if (!hpc_pushes_key(en, r, key)) continue;
        const uint64_t clock = hpc_clock_at(en, key, r, hpc_closing_count(en, r, key));
        if (clock > most) most = clock;
    }
    return most;
}

/* A receiver counts until it has told the last version: its sources wait for the news, and after close this rank may be
 * gone before its core has told them. */
static int outstanding(const hpc_engine *en, int *ranks) {
    int n = 0;
    for (int i = 0; i < en->n_work; i++) {
        const hpc_work *w = &en->work[i];
        const uint64_t last = last_version(en, w->row->key);
        const hpc_summing *its = hpc_sum_of(en, w);
        for (int b = 0; b < its->n_below; b++) /* of rows that forward */
            if (hpc_version_told(en, its->below[b]) < last)
                n = ranks == NULL ? 1 : hpc_add_rank(ranks, n, en->plan->rows[its->below[b]].owner);
        if (w->row->action != HPC_FORWARD && hpc_version_at(&((hpc_receiver *)w->share->own)->told) < last)
            n = ranks == NULL ? 1 : hpc_add_rank(ranks, n, source_of(en, w));
        if (ranks == NULL && n > 0) return n;
    }
    return n;
}

/* ---- facts ---- */

/* The most pushes of rank that any row of a share has taken: others of its rows may have taken fewer. */
static uint64_t folded_of(const hpc_share *share, int rank) {
    const hpc_engine *en = ((const hpc_receiver *)share->own)->engine;
    uint64_t most = 0;
    for (int i = 0; i < share->n_rows && hpc_share_forwards(en, share); i++) {
        const hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        const int input = hpc_row_input_of(w, rank, 0);
        if (input >= 0 && hpc_pushes_from(hpc_sum_of(en, w), input) > most)
            most = hpc_pushes_from(hpc_sum_of(en, w), input);
    }
    return most;
}

static int staleness(const hpc_engine *en, uint64_t *counts, int cap) {
    for (int i = 0; i < cap && i <= en->asked.staleness; i++) counts[i] = hpc_updates_of(en)->begun[i];
    return en->asked.staleness;
}

const hpc_discipline hpc_discipline_updates_ssp = {
    .name = "SSP where receivers apply",
    .suits = suits,
    .check = check,
    .whole = 1,
    .sums = 1,
    .opening = &(const hpc_opening){.prepare = prepare, .part = part, .open = open_all, .free = free_all},
    .makes_params = makes_params,
    .share_came = hpc_updates_share_came,
    .row_came = hpc_updates_row_came,
    .pull_came = hpc_updates_pull_came,
    .work = hpc_updates_work,
    .may_push = may_push,
    .send_share = send_share,
    .awaited = awaited,
    .ended = ended,
    .leaving = &(const hpc_leaving){.closing = closing, .outstanding = outstanding},
    .facts = &(const hpc_facts){.settle = settle,
                                .restored = restored,
                                .before_publish = level,
                                .folded_of = folded_of,
                                .staleness = staleness},
};
