/* The owner's side of a quorum: updates that wait, answers, and when it is time for a fold (see quorum.c). */
#include "discipline/quorum_intake.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/answer.h"
#include "engine/stages.h"

static const double LEAST = 0.01; /* seconds of grace, when it is learned: a scheduler's slice */
enum { NEAR = 2 };                /* versions behind: a rank that comes back has an old update in its slot */

/* ---- updates that came ---- */

void hpc_intake_watch(hpc_core *core, hpc_share *share) {
    hpc_quorum_watch *its = core->own;
    hpc_intake *in = hpc_intake_of(share);
    int watched = in->held > 0 || hpc_intake_is_led(share);
    if (watched == in->watched) return;
    in->watched = watched;
    if (watched) {
        in->place = its->n;
        its->shares[its->n++] = share;
        return;
    }
    its->shares[in->place] = its->shares[--its->n];
    hpc_intake_of(its->shares[in->place])->place = in->place;
}

int hpc_intake_refuse_second(hpc_engine *en, const hpc_share *share, int rank) {
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d has sent an update of key %.64s before its last one was answered",
             hpc_me(en), rank, en->plan->keys[share->key].name);
    hpc_engine_fail(en, HPC_ERR_TRANSPORT, why);
    return 1;
}

int hpc_intake_hold(hpc_core *core, hpc_share *share, int sender, int slot, uint64_t number) {
    hpc_intake *in = hpc_intake_of(share);
    hpc_sender *from = &in->senders[sender];
    atomic_store_explicit(&from->waits, number, memory_order_relaxed);
    from->slot = slot;
    in->held++;
    ((hpc_quorum_watch *)core->own)->absent[sender] = 0;
    if (number <= from->newest) return 0;
    from->newest = number;
    return 1;
}

void hpc_intake_release(hpc_share *share, int sender) {
    hpc_intake *in = hpc_intake_of(share);
    atomic_store_explicit(&in->senders[sender].waits, 0, memory_order_relaxed);
    in->held--;
}

int hpc_intake_slot(const hpc_engine *en, const hpc_share *share, const hpc_input *in) {
    int one = en->discipline->one_slot && !hpc_reads_in_place(en, share->owner, in->rank);
    return one ? 0 : hpc_intake_of(share)->senders[in->lowest].slot;
}

/* ---- answers ---- */

void hpc_intake_decide(const hpc_share *share, int sender, uint64_t folded, int used) {
    hpc_sender *from = &hpc_intake_of(share)->senders[sender];
    from->told.folded = folded;
    from->told.used += (uint64_t)used;
    from->passed = (hpc_told){folded, (uint64_t)used};
}

static void answer_rank(hpc_core *core, const hpc_share *share, int rank, const hpc_sender *from) {
    const hpc_engine *en = core->engine;
    int s = (int)(share - en->layout.shares);
    hpc_share_answer_with(core, rank, &from->told, sizeof from->told, hpc_told_at(en, rank, s),
                          hpc_signal_applied(en, s), from->answered);
}

void hpc_intake_answer(hpc_core *core, const hpc_share *share, int sender) {
    const hpc_engine *en = core->engine;
    hpc_sender *from = &hpc_intake_of(share)->senders[sender];
    from->answered++;
    if (!en->layout.stages.many) answer_rank(core, share, sender, from);
    for (int i = 0; i < share->n_members && en->layout.stages.many; i++)
        if (hpc_quorum_sender(en, share->members[i]) == sender) answer_rank(core, share, share->members[i], from);
}

int hpc_intake_drop_before(hpc_core *core, hpc_share *share, uint64_t least, uint64_t folded, hpc_intake_drop *drop) {
    const hpc_intake *in = hpc_intake_of(share);
    int n = 0;
    for (int i = 0; i < in->n_from && in->held > 0; i++) {
        uint64_t version = hpc_version_from(share, in->from[i]);
        if (version == 0 || version >= least) continue;
        drop(core, share, in->from[i], folded);
        n++;
    }
    return n;
}

/* ---- when ---- */

void hpc_survey_add(hpc_survey *found, const hpc_core *core, const hpc_share *share, int sender, uint64_t version,
                    int brought) {
    const hpc_quorum_watch *its = core->own;
    const hpc_sender *from = &hpc_intake_of(share)->senders[sender];
    int open = !brought && hpc_version_from(share, sender) == 0 && !its->gone[sender];
    found->brought += brought;
    found->open += open;
    found->expected += open && !its->absent[sender] && from->newest + NEAR >= version;
}

/* Learns how long after the quorum the others came, or were given. */
static void learn(const hpc_engine *en, hpc_intake *in, double took) {
    if (en->asked.grace >= 0) return;
    hpc_usual_learn(&in->lag, took);
    double usual = hpc_usual_limit(&in->lag);
    if (in->lag.measured >= HPC_USUAL_ENOUGH)
        atomic_store_explicit(&in->grace, usual > LEAST ? usual : LEAST, memory_order_relaxed);
}

static void note_absent(hpc_core *core, const hpc_share *share, uint64_t version) {
    const hpc_intake *in = hpc_intake_of(share);
    for (int i = 0; i < in->n_from; i++)
        ((hpc_quorum_watch *)core->own)->absent[in->from[i]] |= in->senders[in->from[i]].newest < version;
}

int hpc_intake_is_due(hpc_core *core, const hpc_share *share, const hpc_survey *found, uint64_t version) {
    const hpc_engine *en = core->engine;
    hpc_intake *in = hpc_intake_of(share);
    int complete = found->open == 0;
    if (!complete && found->expected == 0) return 1; /* which does not tell how long it takes */
    if (complete && in->since == 0) {
        learn(en, in, 0);
        return 1;
    }
    double now = hpc_now();
    if (in->since == 0) {
        in->since = now;
        hpc_bell_ring(en->context->group.bell); /* a thread that is about to sleep must not sleep for longer */
    }
    double due = in->since + atomic_load_explicit(&in->grace, memory_order_relaxed);
    if (!complete && now < due) {
        if (due < core->due) core->due = due;
        return 0;
    }
    learn(en, in, now - in->since);
    if (!complete) note_absent(core, share, version);
    return 1;
}

/* ---- folds ---- */

void hpc_intake_end_fold(hpc_share *share, uint64_t version) {
    hpc_intake *in = hpc_intake_of(share);
    in->since = 0;
    atomic_store_explicit(&in->folded, version, memory_order_release);
    share->version++;
}

void hpc_intake_count_fold(hpc_core *core, int senders, int n) {
    hpc_share_count_fold(core, n);
    hpc_tally_add(&core->tally.missing, (uint64_t)(senders - n));
}

static int work_for(hpc_core *core, hpc_share *share, hpc_intake_step *step) {
    const hpc_intake *in = hpc_intake_of(share);
    int n = 0, waited = in->since > 0, done;
    do {
        done = step(core, share);
        n += done > 0 ? done : 0;
        hpc_intake_watch(core, share);
    } while (done > 0 && in->watched);
    return n + (!waited && in->since > 0); /* a grace has begun: the thread must not sleep past it */
}

/* All events that have come were handled before. So a rank that was seen to have closed the last time has nothing more
 * on its way; for one that has closed since there has to be another time. A group of which a rank has closed brings no
 * more whole updates. */
static void note_closed(hpc_core *core) {
    const hpc_engine *en = core->engine;
    const hpc_quorum_watch *its = core->own;
    const int size = en->context->group.size;
    memcpy(its->gone, its->closes, (size_t)size);
    for (int r = 0; r < size; r++) {
        const int sender = hpc_quorum_sender(en, r);
        if (sender < 0 || hpc_closed_signal(en, r) == 0) continue;
        its->closes[sender] = 1;
        if (!its->gone[sender]) core->due = 0;
    }
}

int hpc_intake_work(hpc_core *core, hpc_intake_step *step) {
    hpc_quorum_watch *its = core->own;
    int n = 0;
    core->due = INFINITY;
    if (its->n == 0) return 0;
    note_closed(core);
    for (int i = 0; i < its->n;) {
        hpc_share *share = its->shares[i];
        n += work_for(core, share, step);
        i += i < its->n && its->shares[i] == share;
    }
    if (its->n == 0) core->due = INFINITY;
    return n;
}

/* ---- open ---- */

static int is_sender(const hpc_engine *en, const hpc_share *share, int rank) {
    if (hpc_quorum_sender(en, rank) != rank) return 0;
    return en->layout.stages.many ? hpc_feeds_share(en, share, rank) : hpc_share_answers(en, share, rank);
}

void hpc_intake_open(hpc_engine *en) {
    const int size = en->context->group.size, own = hpc_quorum_sender(en, hpc_me(en));
    for (int s = 0; s < en->layout.n_shares; s++) {
        const hpc_share *share = &en->layout.shares[s];
        hpc_intake *in = hpc_intake_of(share);
        for (int i = 1; i <= size && in != NULL; i++) {
            const int r = (hpc_me(en) + i) % size;
            if (r != own && is_sender(en, share, r)) in->from[in->n_from++] = r;
        }
        if (in != NULL && own >= 0 && is_sender(en, share, own)) in->from[in->n_from++] = own;
    }
}
