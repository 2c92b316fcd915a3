/* ASYNC and SSP(s) on servers: an owner applies each update by itself as it comes, with its weight in the plan and with
 * the rule's arguments that its worker has set. Under SSP(s) (Ho et al., NIPS 2013; Parameter Flow, section 2.3.2) no
 * worker runs more than s steps ahead of the slowest one. s = 0 is BSP: servers_bsp.c does that. On a graph ASYNC is in
 * graph_unflushed.c and SSP in graph_ssp.c.
 *
 * A sender is a worker; or, with several stages, a group of ranks (a host or a rack: servers_groups.h), which fold
 * their updates first, all together as under BSP. So the ranks of one group are in step; different groups are not. A
 * rank that pushes directly to an owner is a group of one.
 *
 * A sender's clock is the number of its updates; the smallest clock of the open senders of a share (all rows of one key
 * on one core) is its *minimum*. An answer with parameters to a sender at clock c waits until the minimum is at least c
 * - s: it is *parked*. When an update raises the minimum, the core sends the parked answers. Under ASYNC no answer
 * waits. A worker asks for parameters by a separate pull (servers_worker.c says when it need not). A group gets
 * parameters with the reply to its update, by relays if the plan has them; each share answers the ranks at its own
 * ends, as under BSP.
 *
 * Writers, readers and order:
 * - A worker's parameters: written by the owners that answer a pull, between the pull's event and its signal; and by
 *   the worker itself, in a pull that does not ask the owners. While an earlier pull is pending every pull asks, so the
 *   two never meet, and no rank writes while the worker computes.
 * - The minimum in a worker's part: written by one owner before the signal (release); read by the worker after it
 *   (acquire), and never after the worker's next request. The owner answers a worker's next pull only after that worker
 *   has asked.
 * - The row's copy and the minimum, as sources of puts: the core writes them when it answers a pull; the worker's next
 *   pull waits until those puts have ended, or the worker has seen the answer. A group has a copy for each receiver
 *   (rows.c), which the next reply to the group overwrites.
 * - A gradient's slot: free when the push is answered. A pull may end before that, so a push waits for its slot, and a
 *   trainer asks for `gradient` again before it writes. The core applies an update as soon as it has come, so a depth
 *   of 1 or 2 is enough for every s.
 * - Slots, forwarding accumulators and relays of a group: as under BSP (stages.c). Each rank of the group feeds them
 *   and waits for the reply before it pushes again.
 *
 * The minimum leaves out a worker that has closed: its close waits until all its pushes are applied. Its closing signal
 * rings the bell, and `work` looks at the parked answers again. A group with a rank that has closed sends no more
 * complete updates, so the minimum leaves the group out too.
 *
 * Waits form no circle: a sender that waits for another sender has done at least s steps more than that sender, and s
 * is 1 or more. This holds even if the two take the keys in different orders. Inside a group all wait for the same
 * folds. */
#include "discipline/servers.h"

#include <stdio.h>

#include "discipline/graph.h"
#include "discipline/servers_groups.h"
#include "discipline/servers_bsp.h"
#include "engine/owner/signals.h"
#include "engine/args.h"
#include "engine/owner/core.h"
#include "engine/layout/rows.h"
#include "engine/worker/send.h"
#include "engine/owner/write.h"

/* ---- check ---- */

int hpc_each_check(const hpc_exchange_config *f) {
    static const char op[] = "exchange";
    const char *name = hpc_consistency_name(f->consistency);
    if (f->staleness < 0 || f->staleness > HPC_MOST_STALENESS)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: staleness is %d; 0 to %d are possible with servers", op, f->staleness,
                        HPC_MOST_STALENESS);
    if (f->shared_params)
        return hpc_fail(HPC_ERR_CONFIG, op,
                        "%s: shared_params needs BSP: under %s each worker has parameters of its own step, so leave it "
                        "out",
                        op, name);
    for (int k = 0; k < f->plan->n_keys; k++)
        if (hpc_rule_averages(hpc_config_rule(f, k)))
            return hpc_fail(
                HPC_ERR_CONFIG, op,
                "%s: key %s has rule average, which needs the updates of all workers at once; under %s with "
                "servers each is applied by itself: give another rule, or BSP",
                op, f->plan->keys[k].name, name);
    return HPC_OK;
}

int hpc_slots_check(const hpc_exchange_config *f, const char *where) {
    const int depth = f->plan->rows[0].depth, asynchronous = f->consistency == HPC_ASYNC;
    const int least = asynchronous ? 3 : f->staleness + 2;
    char ssp[32];
    if (depth >= least) return HPC_OK;
    snprintf(ssp, sizeof ssp, "SSP(%d)", f->staleness);
    return hpc_fail(HPC_ERR_CONFIG, "exchange", "exchange: the plan has depth %d; %s %s needs %d or more", depth,
                    asynchronous ? "ASYNC" : ssp, where, least);
}

/* Returns HPC_OK if the function fits accepts all rows of the plan; otherwise an error that names the first row that
 * does not fit, and the rows that the discipline needs. */
static int check_rows(const hpc_exchange_config *f, int (*fits)(const hpc_row *row), const char *needs) {
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (fits(row)) continue;
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: row %d has action %d and a quorum of %d of %d inputs; %s %s", i, row->action,
                        row->quorum, row->n_in, hpc_consistency_name(f->consistency), needs);
    }
    return HPC_OK;
}

static int applies_each(const hpc_row *row) {
    return row->action == HPC_APPLY && (row->quorum == 1 || row->quorum == row->n_in);
}

static int applies_pushes(const hpc_row *row) {
    int plain = row->action == HPC_APPLY && row->quorum == row->n_in;
    for (int e = 0; e < row->n_in; e++) plain &= row->in[e].row < 0;
    return plain;
}

static int goes_with_stages(const hpc_row *row) {
    return row->action != HPC_EMIT && (row->quorum == row->n_in || applies_each(row));
}

static int check_async(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    if (f->shared_params)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: shared_params needs BSP: under ASYNC a worker would see the pushes of others");
    return check_rows(f, applies_each, "applies each one by itself: 1, or all of them");
}

static int check_ssp(const hpc_context *c, const hpc_exchange_config *f) {
    const int status = hpc_each_check(f);
    (void)c;
    return status != HPC_OK ? status
                            : check_rows(f, applies_pushes,
                                         "with servers needs rows of one stage that apply the updates of all "
                                         "workers, as in a plan for BSP");
}

static int check_groups(const hpc_context *c, const hpc_exchange_config *f) {
    const int status = hpc_each_check(f);
    (void)c;
    return status != HPC_OK ? status
                            : check_rows(f, goes_with_stages,
                                         "with several stages needs rows that apply, forward or relay what all their "
                                         "inputs bring, as in a plan for BSP");
}

/* ---- open ---- */

static int open_groups(hpc_scheme *sc, const char *op) {
    hpc_rows_name_groups(sc);
    return hpc_clocks_open(sc, op);
}

/* ---- the core: answers ---- */

/* Returns whether staleness is bounded. SSP(0) is BSP, which is another discipline. */
static int is_bounded(const hpc_scheme *sc) {
    return sc->asked.staleness > 0;
}

static int workers_ask(const hpc_scheme *sc) {
    return (sc->discipline->traits & HPC_PULLS) != 0;
}

/* Parks the answer to a sender. If a pull comes while another one is parked, one answer serves both. */
static void park(hpc_core *core, hpc_share *share, hpc_clock *sender) {
    sender->at = hpc_clock_applied(sender);
    share->n_parked += !sender->parked;
    core->clocked->n_parked += !sender->parked;
    sender->parked = 1;
}

static void answer_pull(hpc_core *core, const hpc_share *share, int rank, uint64_t least) {
    const hpc_scheme *sc = core->scheme;
    const int s = (int)(share - sc->layout.shares);
    hpc_clock *to = &share->clocks[rank];
    to->told = least;
    for (int i = 0; i < share->n_rows; i++) hpc_row_send(core, hpc_work_of(sc, share->rows[i]), rank);
    hpc_share_answer_with(core, rank, &to->told, is_bounded(sc) ? sizeof to->told : 0,
                          is_bounded(sc) ? hpc_fresh_told_at(sc, rank, s) : 0, hpc_signal_second(sc, s), to->asked);
}

static void reply_to_group(hpc_core *core, const hpc_share *share, int group) {
    const hpc_scheme *sc = core->scheme;
    const hpc_clock *to = &share->clocks[group];
    const uint64_t n = atomic_load_explicit(&to->applied, memory_order_relaxed);
    for (int i = 0; i < share->n_rows; i++) hpc_row_reply(core, hpc_work_of(sc, share->rows[i]), group, to->slot);
    for (int i = 0; i < share->n_members; i++)
        if (hpc_sender_of(sc, share->key, share->members[i]) == group)
            hpc_share_answer(core, share->members[i], hpc_signal_applied(sc, (int)(share - sc->layout.shares)), n);
}

/* Sends the answers that need not wait any longer; returns how many. */
static int wake(hpc_core *core, hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    const uint64_t least = is_bounded(sc) ? hpc_clocks_least(sc, share) : UINT64_MAX;
    const uint64_t enough = least == UINT64_MAX ? least : least + (uint64_t)sc->asked.staleness;
    int n = 0;
    for (int r = 0; r < sc->context->group.size && share->n_parked > 0; r++) {
        if (!share->clocks[r].parked || share->clocks[r].at > enough) continue;
        share->clocks[r].parked = 0;
        share->n_parked--;
        core->clocked->n_parked--;
        if (workers_ask(sc))
            answer_pull(core, share, r, least);
        else
            reply_to_group(core, share, r);
        n++;
    }
    return n;
}

/* ---- the core: events ---- */

/* Runs the rule for one input. Returns nonzero if the exchange has failed. */
static int apply(hpc_core *core, hpc_work *w, int slot, int input) {
    hpc_inputs inputs = hpc_row_inputs(core, w, slot, input);
    inputs.to.whom = HPC_TO_NOBODY;
    return hpc_row_work(core, w, &inputs);
}

/* Counts an update that has come to a row that applies the rule, and applies it unless it is empty (how). After a
 * failure no update is answered any more. */
static void update_came(hpc_core *core, hpc_work *w, int slot, int input, int how) {
    const hpc_scheme *sc = core->scheme;
    hpc_share *share = w->share;
    const int sender = w->inputs[input].lowest;
    hpc_clock *from = &share->clocks[sender];
    const uint64_t n = atomic_load_explicit(&from->applied, memory_order_relaxed) + 1;
    if (!workers_ask(sc) && share->args_came && !hpc_args_agree(core, w, slot, input, n)) return;
    if (hpc_scheme_has_failed(sc) || (how == HPC_CAME && apply(core, w, slot, input) != 0)) return;
    if (how == HPC_CAME) hpc_row_count_received(core, w, input);
    if (!hpc_clock_row(from, share)) return;
    atomic_store_explicit(&from->applied, n, memory_order_relaxed);
    from->slot = slot;
    if (workers_ask(sc))
        hpc_share_answer(core, sender, hpc_signal_applied(sc, (int)(share - sc->layout.shares)), n);
    else
        park(core, share, from);
    if (share->n_parked > 0) wake(core, share);
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    if (w->row->action != HPC_APPLY) return hpc_whole_row_came(core, w, input, slot);
    update_came(core, w, slot, input, HPC_CAME);
    return 1;
}

/* Handles an event without an update. The event names no slot; the update's slot is the one after the sender's last. */
static void nothing_came(hpc_core *core, hpc_work *w, int slot, int input) {
    (void)slot;
    if (w->row->action != HPC_APPLY) {
        hpc_whole_empty_came(core, w, input);
        return;
    }
    const hpc_clock *from = &w->share->clocks[w->inputs[input].lowest];
    const uint64_t applied = atomic_load_explicit(&from->applied, memory_order_relaxed);
    update_came(core, w, (int)(applied % (uint64_t)core->scheme->layout.depth), input, HPC_CAME_EMPTY);
}

static int empty_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    return hpc_core_empty_came(core, share, event, nothing_came);
}

/* Handles a worker's request for parameters. Events are in order, so every push that it made before has been applied.
 * The request has to wait while the parameters of the worker's last pull may still be travelling, because the answer
 * writes the copy from which they are sent. */
static int other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    const int rank = event->peer;
    if (hpc_imm_operation(event->imm) != HPC_OP_PULL) return empty_came(core, share, event);
    if (hpc_row_input_of(hpc_first_work(core->scheme, share), rank, 0) < 0) return 0;
    if (hpc_imm_slot(event->imm) != HPC_ANSWERED) {
        const int status = hpc_lane_try_flush(core->out, rank);
        if (status == HPC_IN_PROGRESS) return HPC_HAS_TO_WAIT;
        hpc_core_check_put(core, status);
    }
    share->clocks[rank].asked++;
    park(core, share, &share->clocks[rank]);
    wake(core, share);
    return 1;
}

/* Looks at the parked answers again when a sender has closed, since they may have waited for that sender. */
static int work(hpc_core *core) {
    int n = 0;
    if (core->clocked->n_parked == 0 || !hpc_core_sees_closed(core)) return 0;
    for (int i = 0; i < core->clocked->n; i++) n += wake(core, core->clocked->shares[i]);
    return n;
}

/* ---- the worker ---- */

static int may_push(hpc_scheme *sc, int key, const char *op) {
    return hpc_push_after(sc, key, hpc_slot_ticket(sc, key), op);
}

/* Returns whether the reply to this rank's own group waits for the group of an input. Under ASYNC no reply waits. */
static int waits_for(const hpc_scheme *sc, const hpc_share *share, const hpc_input *in) {
    const uint64_t own = hpc_clock_applied(&share->clocks[hpc_sender_of(sc, share->key, sc->context->group.rank)]);
    return is_bounded(sc) && hpc_clock_applied(&share->clocks[in->lowest]) < hpc_clock_behind(sc, own) &&
           hpc_sender_is_open(sc, share->key, in->lowest);
}

static int has_brought(const hpc_share *share, int group, uint64_t pushes) {
    return atomic_load_explicit(&share->clocks[group].applied, memory_order_relaxed) >= pushes;
}

static int missing_in_groups(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    return hpc_groups_missing(sc, s, ticket, &(const hpc_groups_lack){waits_for, has_brought}, ranks, found);
}

/* ---- publish ---- */

static int note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    (void)key, (void)moment, (void)l, (void)op;
    hpc_clocks_level(sc);
    return HPC_OK;
}

/* ---- the values ---- */

const hpc_discipline hpc_discipline_async = {
    .name = "ASYNC",
    .check = check_async,
    .traits = HPC_GOES_ON | HPC_PULLS | HPC_EACH,
    .open = hpc_clocks_open,
    .gate = &(const hpc_gate){.row_came = row_came, .other_came = other_came},
    .pace = &(const hpc_pace){.may_push = may_push},
};

const hpc_discipline hpc_discipline_server_ssp = {
    .name = "SSP",
    .check = check_ssp,
    .traits = HPC_GOES_ON | HPC_PULLS | HPC_EACH,
    .plan = hpc_fresh_plan,
    .open = hpc_fresh_open,
    .gate = &(const hpc_gate){.row_came = row_came, .other_came = other_came, .work = work},
    .pace = &(const hpc_pace){.wait_slot = hpc_fresh_wait_slot,
                              .moments = HPC_ON_SEND | HPC_ON_HEAR | HPC_ON_PUBLISH,
                              .note = hpc_fresh_note,
                              .is_late = hpc_fresh_is_late,
                              .ends = hpc_fresh_ends_pull},
};

const hpc_discipline hpc_discipline_groups = {
    .name = "ASYNC or SSP of groups",
    .check = check_groups,
    .traits = HPC_GOES_ON | HPC_EACH,
    .plan = hpc_groups_find,
    .open = open_groups,
    .gate =
        &(const hpc_gate){.row_came = row_came, .other_came = empty_came, .work = work, .missing = missing_in_groups},
    .pace =
        &(const hpc_pace){
            .may_push = hpc_push_after_last, .moments = HPC_ON_PUBLISH, .note = note, .is_late = hpc_groups_is_late},
};
