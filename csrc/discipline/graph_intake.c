/* The owner's side of a quorum on a graph: what came, whether it is time, and the fold (see graph_quorum.c). */
#include <math.h>
#include <stdio.h>

#include "discipline/graph_quorum.h"

static const double LEAST = 0.01; /* seconds of grace, when it is learned: a scheduler's slice */
enum { NEAR = 2 };                /* versions behind: a rank that comes back finds an old update in its slot */

/* ---- the owner: answers ---- */

static uint64_t taken_of(const hpc_intake *in, int rank) {
    return atomic_load_explicit(&in->taken[rank], memory_order_relaxed);
}

/* Answers rank's update in the slot: after this rank may write the next one. */
static void answer(hpc_core *core, const hpc_share *share, int rank, uint64_t folded) {
    hpc_exchange *ex = core->exchange;
    hpc_intake *in = share->own;
    hpc_told *said = &in->told[rank];
    int s = (int)(share - ex->layout.shares);
    *said = (hpc_told){folded, in->clocks.used[rank]};
    hpc_share_answer_with(core, rank, said, sizeof *said, hpc_told_at(ex, rank, s), hpc_signal_applied(ex, s),
                          taken_of(in, rank) + 1);
}

static void count_taken(hpc_intake *in, int rank) {
    atomic_store_explicit(&in->taken[rank], taken_of(in, rank) + 1, memory_order_release);
}

/* ---- the owner: what is there ---- */

static int is_pushed(const hpc_share *share) {
    const hpc_intake *in = share->own;
    return hpc_clock_of(&in->clocks, share->owner) > share->version;
}

/* The version of the next fold, once its push is there: the worker wrote it before the event. */
static uint64_t next_version(const hpc_exchange *ex, const hpc_share *share) {
    return hpc_versions_of(ex, share->key)->numbers[share->version % (uint64_t)ex->layout.depth];
}

static uint64_t newest_of(const hpc_share *share, int rank) {
    const hpc_intake *in = share->own;
    return hpc_clock_of(&in->clocks, rank);
}

/* Stores how far a quorum of the in-neighbours is, for the worker's choice of its next version. */
static void publish_progress(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(ex, share);
    hpc_intake *in = share->own;
    int needs = ex->asked.quorum < w->row->n_in - 1 ? ex->asked.quorum : w->row->n_in - 1;
    uint64_t reached = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        uint64_t version = newest_of(share, w->inputs[e].rank);
        int as_far = 0;
        if (w->inputs[e].rank == share->owner || version <= reached) continue;
        for (int i = 0; i < w->row->n_in; i++)
            as_far += w->inputs[i].rank != share->owner && newest_of(share, w->inputs[i].rank) >= version;
        if (as_far >= needs) reached = version;
    }
    atomic_store_explicit(&in->reached, reached, memory_order_relaxed);
}

/* How many in-neighbours have brought a version or a newer one, may still bring it, are expected to bring it soon. */
typedef struct survey {
    int brought, open, expected;
} survey;

/* The quorum; or as many updates as can come at all, if fewer. */
static int needed_of(const hpc_exchange *ex, const survey *found) {
    int most = found->brought + found->open;
    return ex->asked.quorum < most ? ex->asked.quorum : most;
}

/* Whether rank's update is in its slot. There is room for one. */
static int is_present(hpc_exchange *ex, const hpc_share *share, int rank) {
    uint64_t sent = hpc_sent_by(ex, share, rank), taken = taken_of(share->own, rank);
    if (sent - taken <= 1) return sent != taken;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d says that it has sent %llu updates of key %.64s; %llu were answered",
             hpc_me(ex), rank, (unsigned long long)sent, ex->plan->keys[share->key].name, (unsigned long long)taken);
    hpc_exchange_fail(ex, HPC_ERR_TRANSPORT, why);
    return 0;
}

/* Looks at every in-neighbour's slot, and answers updates that are late for a fold of version least. */
static survey look(hpc_core *core, hpc_share *share, uint64_t least) {
    hpc_exchange *ex = core->exchange;
    hpc_intake *in = share->own;
    const hpc_work *w = hpc_first_work(ex, share);
    survey found = {0, 0, 0};
    char *absent = ((hpc_quorum_watch *)core->own)->absent;
    int news = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        int r = w->inputs[e].rank;
        if (r == share->owner) continue;
        int closed = hpc_closed_signal(ex, r) != 0; /* first: then everything that it sent before has come */
        in->present[r] = (char)is_present(ex, share, r);
        if (in->present[r]) {
            const hpc_slot_head *its = (const void *)w->inputs[e].slots;
            uint64_t version = atomic_load_explicit(&its->version, memory_order_relaxed);
            news |= version > newest_of(share, r);
            atomic_store_explicit(&in->clocks.clock[r], version, memory_order_relaxed);
            absent[r] = 0;
            if (version < least) {
                atomic_fetch_add_explicit(&ex->peers.late[r], 1, memory_order_relaxed);
                answer(core, share, r, least - 1);
                count_taken(in, r);
                in->present[r] = 0;
            }
        }
        int brought = newest_of(share, r) >= least;
        found.brought += brought;
        found.open += !brought && !closed;
        found.expected += !brought && !closed && !absent[r] && newest_of(share, r) + NEAR >= least;
    }
    if (news) publish_progress(ex, share);
    return found;
}

/* ---- the owner: when ---- */

/* Learns how long after the quorum the others came, or were given. */
static void learn(hpc_intake *in, double took) {
    hpc_usual_learn(&in->lag, took);
    double usual = hpc_usual_limit(&in->lag);
    if (in->lag.measured >= HPC_USUAL_ENOUGH)
        atomic_store_explicit(&in->grace, usual > LEAST ? usual : LEAST, memory_order_relaxed);
}

static int is_time(hpc_core *core, hpc_share *share) {
    const hpc_exchange *ex = core->exchange;
    hpc_intake *in = share->own;
    if (!is_pushed(share)) {
        look(core, share, in->folded + 1);
        return 0;
    }
    uint64_t version = next_version(ex, share);
    survey found = look(core, share, version);
    if (found.brought < needed_of(ex, &found)) return 0;
    int complete = found.open == 0;
    if (!complete && found.expected == 0) return 1; /* which does not tell how long it takes */
    if (complete && in->since == 0) {
        if (ex->asked.grace < 0) learn(in, 0);
        return 1;
    }
    double now = hpc_now();
    if (in->since == 0) {
        in->since = now;
        hpc_bell_ring(ex->context->group.bell); /* a thread that is about to sleep must not sleep for longer */
    }
    double took = now - in->since, due = in->since + atomic_load_explicit(&in->grace, memory_order_relaxed);
    if (!complete && now < due) {
        if (due < core->due) core->due = due;
        return 0;
    }
    if (ex->asked.grace < 0) learn(in, took);
    char *absent = ((hpc_quorum_watch *)core->own)->absent;
    for (int r = 0; r < ex->context->group.size && !complete; r++) absent[r] |= newest_of(share, r) < version;
    return 1;
}

/* ---- the owner: folds ---- */

static hpc_inputs inputs_of(hpc_core *core, const hpc_share *share, const hpc_work *w) {
    const hpc_exchange *ex = core->exchange;
    const hpc_intake *its = share->own;
    double all = 0, present = 0;
    int n = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        all += w->weights[e];
        if (in->rank == share->owner)
            core->bases[n] = in->slots + (size_t)(share->version % (uint64_t)ex->layout.depth) * in->stride;
        else if (its->present[in->rank])
            core->bases[n] = in->slots + sizeof(hpc_slot_head);
        else
            continue;
        present += w->weights[e];
        core->base_weights[n++] = w->weights[e];
    }
    for (int i = 0; i < n && present != all; i++) core->base_weights[i] *= all / present;
    return (hpc_inputs){.bases = core->bases,
                        .weights = core->base_weights,
                        .n = n,
                        .codec = w->codec,
                        .args_of = ex->args_of,
                        .slot = share->version};
}

/* Answer this rank last: once answered it may close, and then it sends nothing more. Count the taken updates after
 * that: a thread that sees neither the answer nor an input then knows that none comes. */
static void end_fold(hpc_core *core, hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    hpc_intake *in = share->own;
    const hpc_work *w = hpc_first_work(ex, share);
    int whole = 0, missing = 0;
    in->since = 0;
    in->folded = next_version(ex, share);
    for (int e = 0; e < w->row->n_in; e++) {
        int r = w->inputs[e].rank;
        if (r == share->owner) continue;
        missing += !in->present[r];
        if (!in->present[r]) continue;
        whole++;
        in->clocks.used[r]++;
        hpc_share_count_received(ex, share, r);
        answer(core, share, r, in->folded);
    }
    hpc_share_count_fold(core, whole);
    hpc_tally_add(&core->tally.missing, (uint64_t)missing);
    share->version++;
    hpc_share_answer(core, share->owner, hpc_signal_applied(ex, (int)(share - ex->layout.shares)), share->version);
    for (int e = 0; e < w->row->n_in; e++)
        if (w->inputs[e].rank != share->owner && in->present[w->inputs[e].rank]) count_taken(in, w->inputs[e].rank);
}

/* A row's step is its version: a straggler that has caught up is where the others are. */
static int fold(hpc_core *core, hpc_share *share) {
    const hpc_exchange *ex = core->exchange;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        const hpc_inputs inputs = inputs_of(core, share, w);
        w->step = (uint64_t)((int64_t)next_version(ex, share) - 1 + hpc_phases_of(ex)->keys[share->key].ahead);
        int failed = hpc_row_work(core, w, &inputs);
        if (failed) return failed;
    }
    end_fold(core, share);
    return 0;
}

static int work_for(hpc_core *core, hpc_share *share) {
    const hpc_intake *in = share->own;
    int n = 0, waited = in->since > 0;
    while (is_time(core, share) && fold(core, share) == 0) n++;
    return n + (!waited && in->since > 0); /* a grace has begun: the thread must not sleep past it */
}

int hpc_intake_work(hpc_core *core) {
    const hpc_quorum_watch *its = core->own;
    int n = 0;
    core->due = INFINITY;
    for (int i = 0; i < its->own.n; i++) n += work_for(core, its->own.shares[i]);
    return n;
}

/* This rank's own push; neighbours' come by signals. */
int hpc_intake_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    hpc_intake *in = share->own;
    (void)slot;
    return rank == share->owner && hpc_clocks_share_came(core->exchange, share, &in->clocks, rank);
}

int hpc_intake_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    hpc_intake *in = w->share->own;
    int rank = w->inputs[input].rank;
    (void)slot;
    return rank == w->share->owner && hpc_clocks_row_came(core->exchange, w->share, &in->clocks, rank);
}
