/* SSP(s) where receivers apply the rule: UCC-SSP (Parameter Flow, section 3.2.1). Workers push updates, and sums of
 * updates come back. Every *receiver* (a row that applies) applies the same sums in the same order, so all workers have
 * the same parameters for each version, bit for bit.
 *
 * A worker's *clock* of a key is the number of its pushes since the last publish. A *version* is a sum of updates:
 * version t holds all updates of clocks up to t that earlier versions do not hold. A row (one stage of a chunk's path)
 * that forwards adds each update to the sum of the open version as it comes, whatever its clock. It closes version t
 * when every open worker has pushed t times: it sends the sum to all receivers, once, and begins the next sum. So
 * updates of fast workers may be in versions earlier than their clock, never in later ones.
 *
 * A step at clock c begins when the worker's receiver has applied version c - s. After each push the worker tells its
 * receiver, a row of the same rank. The receiver then applies the versions that have come, and answers when it has
 * version c - s. It applies nothing while the worker computes. All rows of a share have the same version when the share
 * answers, except after a close that has let several versions close at once.
 *
 * A *note* is put to the end of the slot of each version t, before the version itself: the version's number, the count
 * of its updates (which the rule gets), and the rule's arguments, which must be equal in push t of all workers. So
 * arguments go only to the rows that forward, by the lane of the push, and no receiver needs a place for them.
 *
 * A row may pass another row's forward on, with its note, so the versions of a sum can go down a tree (section 3.4.2).
 * Passing on never waits.
 *
 * With several ranks a host (hpc_hosts.apart) a row of the host *gathers*: it folds push t of all ranks of the host, in
 * the order of its inputs, and forwards this to the row that sums; a rack's row gathers once more. Then a sender is a
 * host, and its clock is the number of its folds that have come. A rank may be s steps ahead of the slowest rank of its
 * host, as of any other. Each rank has its own receiver, to which a row of the host passes versions on. The ranks of a
 * host push equally often: when one has closed, later pushes of the others are not folded.
 *
 * Versions do not wait for a worker that has closed and whose pushes have all come. Then several versions may close at
 * once; their common sum gets the number of the last one. A sum without updates is sent too, because a worker may wait
 * for that version; the receivers then apply nothing. When all workers have closed, a last version has the number of
 * the largest clock. All ranks know this number from the closing counts, and ranks that own rows serve until all
 * receivers of these rows have applied it.
 *
 * Slots. d is the plan's depth, at least s + 2. A worker that has pushed t times has had the answer to push t - 1, so
 * its receiver has applied version t - 1 - s. Versions are sent in order, with rising numbers. So when version t is
 * closed, at most s + 1 versions, t included, have been sent that the receiver of some open worker has not applied.
 * Therefore each of these memories is free when it is written:
 * - a receive slot, and its note: written for the version d after the one that it had, which is applied;
 * - a sum, the source of puts: written for the version after t, so it had version t + 1 - d or an earlier one, which is
 *   applied and so has left;
 * - a slot of a row that passes on, and its note: written under the same condition as the receive slots below it, which
 *   have copies of both;
 * - a gradient's slot, its arguments: written for push p + d after the answer to push p + d - 1, so after the close of
 *   version p + 1, which has read them;
 * - the slots of a row that gathers, and of its forwards: also written for push p + d; version p + 1 has the host's
 *   push p, so that push was folded and added.
 *
 * Receivers whose workers have closed, and receivers that keep only a master, have no pushes by which to tell their
 * version. They signal the version that they have applied to the ranks of all rows over which it came. A version stays
 * open until the slots that it needs are free at all receivers of its sum.
 *
 * ASYNC is SSP(d - 2): only the slots limit how far a worker may be ahead of the slowest one.
 *
 * Writers, readers and order:
 * - a worker's parameters: written by its rank's core between the event by which the worker asks and the answer (a
 *   signal); in settle, publish and close between two pauses of the core;
 * - notes, receive slots: written by the sender before the event of the forward; read by the core after it;
 * - base, levels: written by the worker with all its cores paused; last is written before levels is set;
 * - counts of pushes, versions: written by the core; read by waits, to name ranks, and in settle and publish.
 *
 * Waits form no circle: the slowest worker does not wait, because all others have pushed at least as often. */
#include "discipline/servers.h"
#include "discipline/graph.h"
#include "discipline/servers_groups.h"
#include "discipline/receivers.h"
#include "engine/bytes.h"
#include "engine/owner/core.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"

/* ---- check ---- */

/* Returns whether a row forwards to a row that applies for rank, directly or by other rows. */
static int serves(const hpc_plan *plan, const hpc_row *row, int rank) {
    for (int e = 0; e < row->n_out; e++) {
        if (row->out[e].row < 0) continue;
        const hpc_row *to = &plan->rows[row->out[e].row];
        if (to->action == HPC_FORWARD ? serves(plan, to, rank) : to->owner == rank && to->n_out > 0) return 1;
    }
    return 0;
}

/* Returns whether rank pushes to a row, directly or by rows that gather. */
static int has_pusher(const hpc_plan *plan, const hpc_row *row, int rank) {
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].row < 0 ? row->in[e].rank == rank : has_pusher(plan, &plan->rows[row->in[e].row], rank))
            return 1;
    return 0;
}

static int count_pushers(const hpc_plan *plan, const hpc_row *row) {
    int n = 0;
    for (int e = 0; e < row->n_in; e++) n += row->in[e].row < 0 ? 1 : count_pushers(plan, &plan->rows[row->in[e].row]);
    return n;
}

static const char other_ranks[] = "takes updates of other ranks than another row of its key";

/* Returns the reason why the discipline refuses the inputs of row, or NULL if it accepts them. row is the row sum
 * itself, or a row that gathers for it. first: the key's first row that sums. */
static const char *refuses_inputs(const hpc_plan *plan, const hpc_row *row, const hpc_row *sum, const hpc_row *first) {
    const char *why = row->quorum != row->n_in ? "has a quorum" : NULL;
    for (int e = 0; e < row->n_in && why == NULL; e++) {
        const hpc_edge *in = &row->in[e];
        const hpc_row *from = in->row >= 0 ? &plan->rows[in->row] : NULL;
        if (in->weight == 0) return "has an input of weight 0";
        if (from != NULL && hpc_row_part_of(plan, from) != HPC_ROW_GATHERS) return "sums what other rows forward";
        if (from != NULL)
            why = refuses_inputs(plan, from, sum, first);
        else if (!has_pusher(plan, first, in->rank))
            why = other_ranks;
        else if (!serves(plan, sum, in->rank))
            why = "forwards nothing to a rank that pushes to it";
    }
    return why;
}

static const char *refuses_outputs(const hpc_plan *plan, const hpc_row *row) {
    for (int e = 0; e < row->n_out; e++) {
        const hpc_row_part to =
            row->out[e].row < 0 ? HPC_ROW_SUMS : hpc_row_part_of(plan, &plan->rows[row->out[e].row]);
        if (to != HPC_ROW_APPLIES && to != HPC_ROW_PASSES_ON)
            return "forwards to a row that neither applies nor passes on";
    }
    return NULL;
}

static const char *refuses_row(const hpc_plan *plan, const hpc_row *row, const hpc_row *first) {
    const hpc_row *from = row->in[0].row < 0 ? NULL : &plan->rows[row->in[0].row];
    const char *why = NULL;
    switch (hpc_row_part_of(plan, row)) {
    case HPC_ROW_GATHERS: /* checked with the row that sums */
        return NULL;
    case HPC_ROW_SUMS:
        why = refuses_inputs(plan, row, row, first);
        if (why == NULL && count_pushers(plan, row) != count_pushers(plan, first)) why = other_ranks;
        return why != NULL ? why : refuses_outputs(plan, row);
    case HPC_ROW_PASSES_ON:
        if (row->in[0].weight != 1 || from->action != HPC_FORWARD) return "sums what other rows forward";
        if (from->codec_out != row->codec_out) return "passes updates on in another form than they come in";
        return refuses_outputs(plan, row);
    case HPC_ROW_APPLIES:
        if (row->action != HPC_APPLY) return "neither forwards nor applies";
        if (row->n_in != 1 || from == NULL) return "applies what workers push to it";
        if (row->n_out > 1 || (row->n_out == 1 && row->out[0].rank != row->owner))
            why = "sends parameters to other ranks";
    }
    return why;
}

static int check_rows(const hpc_exchange_config *f) {
    const hpc_plan *plan = f->plan;
    const hpc_row *first = NULL;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (hpc_row_part_of(plan, row) == HPC_ROW_SUMS && (first == NULL || first->key != row->key)) first = row;
        const char *why = refuses_row(plan, row, first);
        if (why != NULL)
            return hpc_fail(
                HPC_ERR_CONFIG, "exchange",
                "exchange: row %d %s; %s where receivers apply needs a plan of parameter servers or of hosts, whose "
                "rows forward the sum of all workers' updates to one row at each worker, be it over a tree (hpc_hosts: "
                "with apart)",
                i, why, hpc_consistency_name(f->consistency));
    }
    return HPC_OK;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    enum { MOST = HPC_PLAN_DEPTH - 2 };
    const hpc_rule *own = hpc_config_own_fold(f);
    (void)c;
    if (f->staleness > MOST)
        return hpc_fail(HPC_ERR_INVALID, "exchange",
                        "exchange: staleness is %d; 0 to %d are possible where receivers apply the rule", f->staleness,
                        MOST);
    int status = hpc_each_check(f);
    if (status != HPC_OK) return status;
    if (own != NULL)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: rule %s has a fold of its own, by which receivers would fold a sum again; %s where "
                        "receivers apply needs the weighted sum",
                        own->name, hpc_consistency_name(f->consistency));
    status = hpc_slots_check(f, "where receivers apply the rule");
    return status == HPC_OK ? check_rows(f) : status;
}

/* ---- open ---- */

static int row_sums(const hpc_scheme *sc, int row) {
    return hpc_row_part_of(sc->plan, &sc->plan->rows[row]) == HPC_ROW_SUMS;
}

static int find_hosts(hpc_scheme *sc, const char *op) {
    int some = 0;
    for (int i = 0; i < sc->plan->n_rows; i++) some |= hpc_row_part_of(sc->plan, &sc->plan->rows[i]) == HPC_ROW_GATHERS;
    return some ? hpc_groups_find_in(sc, row_sums, op) : HPC_OK;
}

static int open_sum(hpc_scheme *sc, hpc_work *w, const char *op) {
    hpc_versions *its = hpc_versions_of(sc, w);
    const size_t depth = (size_t)sc->layout.depth;
    its->notes = hpc_scheme_take(sc, depth, sizeof *its->notes, op);
    return its->notes != NULL ? hpc_sum_open(sc, w, op) : HPC_ERR_MEMORY;
}

/* Finds the rows that apply a row's forwards; returns n plus their number. rows gets their indices; NULL: they are only
 * counted. */
static int find_below(const hpc_plan *plan, int row, int *rows, int n) {
    for (int e = 0; e < plan->rows[row].n_out; e++) {
        const int to = plan->rows[row].out[e].row;
        if (plan->rows[to].action == HPC_FORWARD)
            n = find_below(plan, to, rows, n);
        else if (rows != NULL)
            rows[n++] = to;
        else
            n++;
    }
    return n;
}

static int open_row(hpc_scheme *sc, hpc_work *w, const char *op) {
    hpc_versions *its = hpc_versions_of(sc, w);
    its->part = hpc_row_part_of(sc->plan, w->row);
    if (its->part == HPC_ROW_APPLIES) return HPC_OK;
    if (its->part == HPC_ROW_GATHERS) return open_sum(sc, w, op);
    its->n_below = find_below(sc->plan, w->index, NULL, 0);
    its->below = hpc_scheme_take(sc, (size_t)its->n_below, sizeof *its->below, op);
    if (its->below == NULL) return HPC_ERR_MEMORY;
    find_below(sc->plan, w->index, its->below, 0);
    return its->part == HPC_ROW_SUMS ? open_sum(sc, w, op) : HPC_OK;
}

/* Adds the other ranks over whose rows a version comes to a row, up to the rank whose row sums. */
static void add_sources(const hpc_plan *plan, int row, hpc_share *share) {
    for (int at = row; hpc_row_part_of(plan, &plan->rows[at]) >= HPC_ROW_PASSES_ON;) {
        at = plan->rows[at].in[0].row;
        if (plan->rows[at].owner != plan->rows[row].owner)
            share->n_members = hpc_add_rank(share->members, share->n_members, plan->rows[at].owner);
    }
}

static int open_share(hpc_scheme *sc, hpc_share *share, const char *op) {
    if (share->owner != sc->context->group.rank || hpc_share_forwards(sc, share)) return HPC_OK;
    hpc_receiver *its = share->own = hpc_scheme_take(sc, 1, sizeof *its, op);
    if (its == NULL) return HPC_ERR_MEMORY;
    share->n_members = 0; /* it answers the ranks that forward to it, directly or through others */
    for (int i = 0; i < share->n_rows; i++) add_sources(sc->plan, share->rows[i], share);
    its->runs = hpc_share_keeps(sc, share);
    its->need = 1;
    its->behind = share->n_rows;
    return HPC_OK;
}

static int open_all(hpc_scheme *sc, const char *op) {
    const size_t keys = (size_t)sc->plan->n_keys;
    hpc_updates *its = sc->own = hpc_scheme_take(sc, 1, sizeof *its, op);
    if (its == NULL) return HPC_ERR_MEMORY;
    its->rows = hpc_scheme_take(sc, (size_t)sc->n_work, sizeof *its->rows, op);
    its->base = hpc_scheme_take(sc, 2 * keys * (size_t)sc->context->group.size, sizeof *its->base, op);
    its->goal = hpc_scheme_take(sc, keys, sizeof *its->goal, op);
    its->counted = hpc_scheme_take(sc, keys, sizeof *its->counted, op);
    if (its->rows == NULL || its->base == NULL || its->goal == NULL || its->counted == NULL) return HPC_ERR_MEMORY;
    int status = hpc_slots_open(sc, op);
    if (status == HPC_OK) status = hpc_clocked_open(sc, op);
    its->last = its->base + keys * (size_t)sc->context->group.size;
    for (int i = 0; i < sc->n_work && status == HPC_OK; i++) status = open_row(sc, &sc->work[i], op);
    for (int s = 0; s < sc->layout.n_shares && status == HPC_OK; s++)
        status = open_share(sc, &sc->layout.shares[s], op);
    return status;
}

/* ---- the worker ---- */

/* Sends the update to rows that forward, and tells the receiver of this rank that there was a push. */
static int send_share(hpc_scheme *sc, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    if (hpc_share_forwards(sc, share)) return hpc_push_share(sc, s, slot, l);
    if (hpc_share_keeps(sc, share) || share->owner != sc->context->group.rank) return HPC_OK;
    return hpc_send_event(sc, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_PULL, 0, s), l);
}

/* Returns the version of this rank's copy of a key's parameters. */
static uint64_t version_of_key(const hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    uint64_t least = k->n_awaited > 0 ? UINT64_MAX : 0;
    for (int i = 0; i < k->n_awaited; i++) {
        const hpc_receiver *its = sc->layout.shares[k->awaited[i]].own;
        const uint64_t version = hpc_version_at(&its->version);
        if (version < least) least = version;
    }
    return least;
}

static uint64_t own_clock(const hpc_scheme *sc, int key, uint64_t pushes) {
    return hpc_clock_at(sc, key, sc->context->group.rank, pushes);
}

static void ended(hpc_scheme *sc, int key) {
    const uint64_t pushes = sc->keys[key].pushes, clock = own_clock(sc, key, pushes), version = version_of_key(sc, key);
    uint64_t *counted = &hpc_updates_of(sc)->counted[key];
    if (*counted != pushes) hpc_count_begun(sc, clock > version ? clock - version : 0);
    *counted = pushes;
}

/* ---- the ranks that a wait waits for ---- */

/* A function that adds the ranks for which a row of this rank waits. goal: a version. If ranks is NULL it only counts.
 */
typedef int lack(const hpc_scheme *sc, const hpc_work *w, uint64_t goal, int *ranks, int n);

static int lacking(const hpc_scheme *sc, int key, lack *of, uint64_t goal, int *ranks, int n) {
    for (int i = 0; i < sc->n_work; i++)
        if (sc->work[i].row->key == key) n = of(sc, &sc->work[i], goal, ranks, n);
    return n;
}

static int note_rank(int *ranks, int n, int rank) {
    return ranks == NULL ? n + 1 : hpc_add_rank(ranks, n, rank);
}

/* Returns the rank from which versions come to a row that applies: this rank, if its own row makes the sum. */
static int source_of(const hpc_scheme *sc, const hpc_work *w) {
    const hpc_row *from = &sc->plan->rows[w->row->in[0].row];
    const int own = from->owner == w->row->owner && hpc_row_part_of(sc->plan, from) == HPC_ROW_PASSES_ON;
    return own ? sc->plan->rows[from->in[0].row].owner : from->owner;
}

/* Adds the ranks whose forwards a row lacks for a version: at a row that sums, ranks that forward the updates of hosts;
 * at a row that applies, the rank that sends the version. */
static int silent_sources(const hpc_scheme *sc, const hpc_work *w, uint64_t goal, int *ranks, int n) {
    const hpc_versions *its = hpc_versions_of(sc, w);
    for (int e = 0; e < w->row->n_in && its->part == HPC_ROW_SUMS; e++)
        if (w->inputs[e].forwarded >= 0 && w->inputs[e].rank != w->row->owner && hpc_input_clock(sc, w, e) < goal)
            n = note_rank(ranks, n, w->inputs[e].rank);
    if (its->part != HPC_ROW_APPLIES || source_of(sc, w) == w->row->owner) return n;
    return atomic_load_explicit(&its->version, memory_order_relaxed) < goal ? note_rank(ranks, n, source_of(sc, w)) : n;
}

/* Adds the ranks for whose slots a version of a row that sums waits: ranks that have closed, or whose receivers keep
 * only masters. */
static int full_receivers(const hpc_scheme *sc, const hpc_work *w, uint64_t goal, int *ranks, int n) {
    const hpc_versions *its = hpc_versions_of(sc, w);
    const uint64_t version = atomic_load_explicit(&its->waits, memory_order_relaxed);
    (void)goal;
    for (int b = 0; b < its->n_below && version > 0; b++) {
        const int rank = sc->plan->rows[its->below[b]].owner;
        if (rank != w->row->owner && hpc_has_not_told(sc, its->below[b], version)) n = note_rank(ranks, n, rank);
    }
    return n;
}

/* In a publish: adds the workers whose last pushes have not come, and the ranks whose forwards have not. */
static int not_level(const hpc_scheme *sc, const hpc_work *w, uint64_t goal, int *ranks, int n) {
    for (int e = 0; e < w->row->n_in && hpc_versions_of(sc, w)->part <= HPC_ROW_SUMS; e++)
        if (hpc_sum_taken(w, e) < hpc_last_push(sc, w->row->key, w->inputs[e].lowest))
            n = note_rank(ranks, n, w->inputs[e].rank);
    return silent_sources(sc, w, goal, ranks, n);
}

/* In close: adds the ranks whose receivers have not told that they have a version; if that is a receiver of this rank,
 * adds the rank that sends it versions. */
static int untold(const hpc_scheme *sc, const hpc_work *w, uint64_t goal, int *ranks, int n) {
    const hpc_versions *its = hpc_versions_of(sc, w);
    const hpc_receiver *receiver = w->share->own;
    for (int b = 0; b < its->n_below; b++)
        if (hpc_version_told(sc, its->below[b]) < goal) n = note_rank(ranks, n, sc->plan->rows[its->below[b]].owner);
    if (receiver != NULL && hpc_version_at(&receiver->told) < goal) n = note_rank(ranks, n, source_of(sc, w));
    return n;
}

/* Returns whether a row of this rank lacks updates of rank for a version up to need. */
static int is_missing_here(const hpc_scheme *sc, int key, int rank, uint64_t need) {
    for (int i = 0; i < sc->n_work; i++) {
        const hpc_work *w = &sc->work[i];
        const int e = w->row->key == key ? hpc_row_input_of(w, rank, 0) : -1;
        if (e >= 0 && hpc_input_clock(sc, w, e) < need) return 1;
    }
    return 0;
}

/* Returns whether an open worker has pushed fewer than need times. If its count cannot be read (UINT64_MAX), returns
 * whether its updates are missing here, or it left without closing. */
static int is_slow(const hpc_scheme *sc, int key, int rank, uint64_t need, uint64_t pushes) {
    if (pushes != UINT64_MAX) return hpc_clock_at(sc, key, rank, pushes) < need;
    return is_missing_here(sc, key, rank, need) || hpc_has_left(sc, rank);
}

static int slow_workers(const hpc_scheme *sc, int key, uint64_t need, int *ranks) {
    int n = 0;
    for (int r = 0; r < sc->context->group.size; r++)
        if (r != sc->context->group.rank && hpc_pushes_key(sc, r, key) && hpc_closed_signal(sc, r) == 0 &&
            is_slow(sc, key, r, need, hpc_pushes_of(sc, r, key)))
            n = hpc_add_rank(ranks, n, r);
    return n;
}

static int or_own_core(const hpc_scheme *sc, int *ranks, int n) {
    return n > 0 ? n : hpc_add_rank(ranks, n, sc->context->group.rank);
}

static int missing_for(const hpc_scheme *sc, int key, uint64_t need, int *ranks) {
    int n = slow_workers(sc, key, need, ranks);
    if (n == 0) n = lacking(sc, key, full_receivers, need, ranks, n);
    if (n == 0) n = lacking(sc, key, silent_sources, need, ranks, n);
    return or_own_core(sc, ranks, n);
}

static uint64_t need_of(const hpc_scheme *sc, int key, uint64_t ticket) {
    return hpc_clock_behind(sc, own_clock(sc, key, ticket / 2));
}

/* hpc_pace.is_late. No version waits for a worker that has closed, but the ranks of its host do, since the host folds
 * no later push. */
static int is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes) {
    if (hpc_closed_signal(sc, rank) != 0) return hpc_groups_is_late(sc, rank, key, ticket, pushes);
    return is_slow(sc, key, rank, need_of(sc, key, ticket), pushes);
}

/* Adds the ranks that a share waits for. A share that forwards waits only for receivers whose slots are full. Any other
 * share waits for the ranks whose forwards a row of the key lacks; these are added only if no ranks were found
 * before. */
static int missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    const uint64_t need = need_of(sc, share->key, ticket);
    for (int i = 0; i < share->n_rows && hpc_share_forwards(sc, share); i++)
        found = full_receivers(sc, hpc_share_row(sc, share, i), need, ranks, found);
    return found > 0 || hpc_share_forwards(sc, share) ? found
                                                      : lacking(sc, share->key, silent_sources, need, ranks, found);
}

/* ---- settle, publish, close ---- */

/* From now on the receivers of this rank, of one key or of all (key -1), apply versions as they come (on is 1), or only
 * when the worker asks (0). */
static void let_run(hpc_scheme *sc, int key, int on) {
    for (int s = 0; s < sc->layout.n_shares; s++) {
        hpc_share *share = &sc->layout.shares[s];
        if (share->own == NULL || (key >= 0 && share->key != key)) continue;
        hpc_core_pause(&sc->cores[share->core]);
        hpc_updates_run(&sc->cores[share->core], share, on);
        hpc_core_resume(&sc->cores[share->core]);
    }
}

/* Returns whether the rows of this rank have reached the goal of a key; if key is -1, whether each row has reached the
 * goal of its key. */
static int have_goals(const hpc_scheme *sc, int key) {
    const hpc_updates *its = hpc_updates_of(sc);
    for (int i = 0; i < sc->n_work; i++) {
        const hpc_work *w = &sc->work[i];
        const hpc_receiver *receiver = w->share->own;
        const _Atomic uint64_t *version = receiver != NULL ? &receiver->version : &its->rows[i].version;
        if (its->rows[i].part == HPC_ROW_PASSES_ON) continue; /* all ranks wait for the rows below it */
        if (its->rows[i].part == HPC_ROW_GATHERS) continue;   /* and for the row that it gathers for */
        if ((key < 0 || w->row->key == key) && hpc_version_at(version) < its->goal[w->row->key]) return 0;
    }
    return 1;
}

/* Used as hpc_lacking: for the goal of a key in settle, and of all keys in a publish. */
static int lacks_goals(const hpc_scheme *sc, int key, int *ranks) {
    const hpc_updates *its = hpc_updates_of(sc);
    int n = 0;
    if (ranks == NULL) return !have_goals(sc, key);
    if (key >= 0) return missing_for(sc, key, its->goal[key], ranks);
    for (int k = 0; k < sc->plan->n_keys; k++) n = lacking(sc, k, not_level, its->goal[k], ranks, n);
    return n;
}

/* Waits until this rank has applied the version that has its last push. No later version can come before that. */
static int settle(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    hpc_updates_of(sc)->goal[key] = own_clock(sc, key, sc->keys[key].pushes);
    let_run(sc, key, 1);
    const int status = hpc_wait_lacking(sc, key, lacks_goals, l, op);
    let_run(sc, key, 0);
    return status;
}

/* Returns the largest clock of the workers of a key. Called in a publish or close, after all workers have announced
 * their last push before it. */
static uint64_t last_version(const hpc_scheme *sc, int key) {
    uint64_t most = 0;
    for (int r = 0; r < sc->context->group.size; r++) {
        if (!hpc_pushes_key(sc, r, key) || hpc_sender_of(sc, key, r) != r) continue;
        const uint64_t clock = hpc_clock_at(sc, key, r, hpc_last_push(sc, key, r));
        if (clock > most) most = clock;
    }
    return most;
}

/* Begins or ends a publish, with all cores of this rank paused (without threads one pause stops all). At the beginning
 * each key gets a goal; if goes_on is set, at the end all workers go on from that clock. */
static void set_levels(hpc_scheme *sc, int levels, int goes_on) {
    hpc_updates *its = hpc_updates_of(sc);
    const int n = sc->inline_progress && sc->n_own_cores > 0 ? 1 : sc->n_own_cores;
    for (int c = 0; c < n; c++) hpc_core_pause(&sc->cores[c]);
    its->levels = levels;
    for (int i = 0; i < sc->n_work && !levels; i++) its->rows[i].was_set = 0;
    for (int k = 0; k < sc->plan->n_keys; k++) {
        if (levels) its->goal[k] = last_version(sc, k);
        for (int r = 0; r < sc->context->group.size && goes_on; r++)
            its->base[hpc_by_rank(sc, k, r)] = its->last[hpc_by_rank(sc, k, r)] - its->goal[k];
    }
    for (int c = 0; c < n; c++) hpc_core_resume(&sc->cores[c]);
}

/* Checks that ranks whose updates are gathered have pushed equally often. The result is the same on all ranks. */
static int check_hosts(const hpc_scheme *sc, const char *op) {
    const uint64_t *last = hpc_updates_of(sc)->last;
    for (int k = 0; k < sc->plan->n_keys; k++)
        for (int r = 0; r < sc->context->group.size && sc->group_of != NULL; r++) {
            const int lowest = hpc_sender_of(sc, k, r);
            if (lowest < 0 || last[hpc_by_rank(sc, k, r)] == last[hpc_by_rank(sc, k, lowest)]) continue;
            return hpc_fail(HPC_ERR_INVALID, op,
                            "%s: rank %d has pushed key %s %llu times and rank %d %llu times: ranks of a host push "
                            "equally often under %s",
                            op, lowest, sc->plan->keys[k].name, (unsigned long long)last[hpc_by_rank(sc, k, lowest)], r,
                            (unsigned long long)last[hpc_by_rank(sc, k, r)], sc->discipline->name);
        }
    return HPC_OK;
}

/* Publish: the open version of each row is closed, all receivers apply it, and all workers go on from one clock. No
 * rank has a push pending, and none pushes before the publish has ended. */
static int level(hpc_scheme *sc, hpc_limit *l, const char *op) {
    int status = hpc_clocks_learn_pushes(sc, hpc_updates_of(sc)->last, op, l->deadline);
    if (status == HPC_OK) status = check_hosts(sc, op);
    if (status != HPC_OK) return status;
    set_levels(sc, 1, 0);
    let_run(sc, -1, 1);
    status = hpc_context_agree(sc->context, op, hpc_wait_lacking(sc, -1, lacks_goals, l, op), l->deadline);
    let_run(sc, -1, 0);
    set_levels(sc, 0, status == HPC_OK);
    return status;
}

static void restored(hpc_scheme *sc, const hpc_work *w, uint64_t step) {
    (void)step;
    hpc_versions_of(sc, w)->was_set = 1;
}

static int note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    if (moment == HPC_ON_END) ended(sc, key);
    if (moment == HPC_ON_CLOSE) let_run(sc, -1, 1);
    if (moment == HPC_ON_SETTLE) return settle(sc, key, l, op);
    return moment == HPC_ON_PUBLISH ? level(sc, l, op) : HPC_OK;
}

/* hpc_gate.outstanding: finds the ranks whose receivers have not told the last version, and the ranks from which a
 * receiver of this rank still has to get it. A receiver of this rank counts until it has told its version, since other
 * ranks wait for that and this rank may leave after its close. */
static int outstanding(const hpc_scheme *sc, int *ranks) {
    int n = 0;
    for (int k = 0; k < sc->plan->n_keys && (ranks != NULL || n == 0); k++)
        n = lacking(sc, k, untold, last_version(sc, k), ranks, n);
    return n;
}

const hpc_discipline hpc_discipline_updates_ssp = {
    .name = "ASYNC or SSP where receivers apply",
    .check = check,
    .traits = HPC_WHOLE | HPC_SUMS | HPC_OWN_PARAMS | HPC_MARGINS | HPC_EACH,
    .plan = find_hosts,
    .open = open_all,
    .gate = &(const hpc_gate){.row_came = hpc_updates_row_came,
                              .other_came = hpc_updates_other_came,
                              .work = hpc_updates_work,
                              .outstanding = outstanding,
                              .missing = missing},
    .pace = &(const hpc_pace){.may_push = hpc_push_after_last,
                              .send_share = send_share,
                              .moments = HPC_ON_END | HPC_ON_SETTLE | HPC_ON_PUBLISH | HPC_ON_CLOSE,
                              .note = note,
                              .restored = restored,
                              .is_late = is_late},
};
