/* The owner's side of a quorum (see quorum.c): keeps updates until they are folded, decides when a fold is due, folds,
 * and answers. */
#include <math.h>
#include <stdio.h>

#include "discipline/quorum_state.h"
#include "engine/owner/signals.h"
#include "engine/args.h"
#include "engine/owner/core.h"
#include "engine/owner/forward.h"
#include "engine/layout/stages.h"
#include "engine/owner/write.h"

static const double FIRST = 1;    /* seconds of grace until enough folds were measured (RFC 6298, section 2.1) */
static const double LEAST = 0.01; /* the least grace in seconds when it is learned: a scheduler's slice */
/* A sender is expected if it is at most so many versions behind: a rank that comes back has an old update in its slot.
 */
enum { NEAR = 2 };

/* A core's view of a sender. */
typedef struct watched {
    char absent;       /* set if a fold has waited for the sender in vain, and it has sent nothing since */
    char closes, gone; /* closes: set if the sender has closed; gone: set if also everything it had sent was taken */
} watched;

/* The state of a core. */
typedef struct watch {
    int n; /* the first n of core->clocked->shares have an update or a push of this rank that is not folded yet */
    watched *seen; /* by sender */
} watch;

/* Returns whether this rank's own push leads a fold. On a graph it does: the fold takes the neighbours' updates for the
 * version of this rank's push, or newer ones. On servers no push leads, and a fold takes only updates for one
 * version. */
static int is_led(const hpc_scheme *sc) {
    return sc->graph != NULL;
}

static const hpc_keeping *keeping_of(const hpc_scheme *sc) {
    return hpc_quorum_of(sc)->keeping;
}

/* Returns the oldest version that a fold of version takes: under SSP on a graph it may be some steps older. */
static uint64_t least_of(const hpc_scheme *sc, const hpc_share *share, uint64_t version) {
    const uint64_t before = hpc_clock_behind(sc, version - 1);
    const uint64_t ended = atomic_load_explicit(&hpc_intake_of(share)->ended, memory_order_relaxed);
    return !is_led(sc) ? version : 1 + (before > ended ? before : ended);
}

/* Returns whether a sender's push of a version has values for this owner. On a graph of several phases a push has
 * values only for the neighbours of its phase; other neighbours get only its version. */
static int sends(const hpc_scheme *sc, const hpc_share *share, uint64_t version, int sender) {
    return hpc_sends(sc, share->key, version, share->owner, sender);
}

/* Returns whether a push that leads a fold has come and is not folded yet. */
static int has_lead(const hpc_share *share) {
    return hpc_intake_of(share)->pushes > share->version;
}

/* ---- updates that came ---- */

/* Returns the version that rank has put beside its update in a slot. */
static uint64_t number_of(const hpc_scheme *sc, const hpc_share *share, int rank, int slot) {
    return *(const uint64_t *)(const void *)(hpc_own_part(sc) + hpc_number_at(sc, share, rank, slot));
}

void hpc_intake_look_after(hpc_core *core, hpc_share *share) {
    watch *its = core->own;
    hpc_intake *in = hpc_intake_of(share);
    const int waits =
        in->held > 0 || in->partial || has_lead(share) || ((const hpc_split_means *)share->own)->n_used > 0;
    if (waits == (in->place < its->n)) return;
    const int to = waits ? its->n++ : --its->n;
    hpc_share *other = core->clocked->shares[to];
    core->clocked->shares[in->place] = other;
    hpc_intake_of(other)->place = in->place;
    core->clocked->shares[to] = share;
    in->place = to;
}

/* Stores the newest version that a quorum of the in-neighbours has reached, from which the worker chooses its next
 * version. */
static void publish_progress(const hpc_scheme *sc, hpc_intake *in) {
    const int needs = sc->asked.quorum < in->n_from ? sc->asked.quorum : in->n_from;
    uint64_t reached = 0;
    for (int i = 0; i < in->n_from; i++) {
        const uint64_t version = in->senders[in->from[i]].newest;
        int as_far = 0;
        if (version <= reached) continue;
        for (int j = 0; j < in->n_from; j++) as_far += in->senders[in->from[j]].newest >= version;
        if (as_far >= needs) reached = version;
    }
    atomic_store_explicit(&in->reached, reached, memory_order_relaxed);
}

/* Keeps a sender's update until it is folded or left out. */
static void hold(hpc_core *core, hpc_share *share, int sender, int slot, uint64_t number) {
    hpc_intake *in = hpc_intake_of(share);
    hpc_sender *from = &in->senders[sender];
    atomic_store_explicit(&from->waits, number, memory_order_relaxed);
    share->clocks[sender].slot = slot;
    in->held++;
    ((watch *)core->own)->seen[sender].absent = 0;
    if (number > from->newest) {
        from->newest = number;
        if (is_led(core->scheme)) publish_progress(core->scheme, in);
    }
    hpc_intake_look_after(core, share);
}

int hpc_intake_refuse_second(hpc_scheme *sc, const hpc_share *share, int rank) {
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d has sent an update of key %.64s before its last one was answered",
             hpc_me(sc), rank, sc->plan->keys[share->key].name);
    hpc_scheme_fail(sc, HPC_ERR_TRANSPORT, why);
    return 1;
}

int hpc_intake_vote_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    const uint64_t number = number_of(core->scheme, share, rank, slot);
    if (number == 0 || hpc_version_from(share, rank) != 0) return 0;
    hold(core, share, rank, slot, number);
    return 1;
}

/* Counts a push that leads a fold. Returns 0 (a wrong event) if all slots of this rank are taken already. */
static int lead_came(hpc_core *core, hpc_share *share) {
    if (hpc_intake_of(share)->pushes - share->version >= (uint64_t)core->scheme->layout.depth) return 0;
    hpc_intake_of(share)->pushes++;
    hpc_intake_look_after(core, share);
    return 1;
}

/* Returns the slot from which rows read an update that its sender has in slot: the same, or 0 if there is one slot. */
static int slot_at(const hpc_scheme *sc, const hpc_share *share, int rank, int slot) {
    const int in_place = !(sc->discipline->traits & HPC_ONE_SLOT) || hpc_reads_in_place(sc, share->owner, rank);
    return in_place ? slot : 0;
}

/* Each row's update has its version beside it. Ranks of a group must push the same arguments of the rule. */
int hpc_intake_came(hpc_core *core, hpc_work *w, int input, int slot, int how) {
    hpc_scheme *sc = core->scheme;
    hpc_share *share = w->share;
    const int rank = w->inputs[input].rank, sender = w->inputs[input].lowest;
    hpc_clock *from = &share->clocks[sender];
    const uint64_t number = number_of(sc, share, rank, slot);
    if (number == 0 || (from->rows > 0 && number != from->at)) return 0;
    from->at = number;
    hpc_row_mark(w, slot_at(sc, share, rank, slot), input, how);
    if (is_led(sc) && rank == share->owner) return !hpc_clock_row(from, share) || lead_came(core, share);
    if (hpc_version_from(share, sender) != 0) return hpc_intake_refuse_second(sc, share, rank);
    if (hpc_in_groups(sc) && share->args_came && !hpc_args_agree(core, w, slot, input, from->answered + 1)) return 1;
    if (hpc_clock_row(from, share)) hold(core, share, sender, slot, number);
    return 1;
}

int hpc_intake_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    return hpc_intake_came(core, w, input, slot, HPC_CAME);
}

int hpc_intake_empty_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    const hpc_scheme *sc = core->scheme;
    const int slot = hpc_imm_slot(event->imm);
    if (!hpc_core_brings(core, event, "no gradient of share", share->key, sizeof(uint64_t))) return 1;
    int known = slot < sc->layout.depth;
    for (int i = 0; i < share->n_rows && known; i++) {
        hpc_work *w = hpc_work_of(sc, share->rows[i]);
        const int input = hpc_row_input_of(w, event->peer, 0);
        known = input >= 0 && hpc_intake_came(core, w, input, slot, HPC_CAME_EMPTY);
    }
    return known;
}

/* ---- answers ---- */

/* If relays pass the outcome of the sender's update on, it goes before the parameters. */
void hpc_intake_send_params(hpc_core *core, const hpc_share *share, int sender) {
    const hpc_scheme *sc = core->scheme;
    const hpc_told *told = &hpc_intake_of(share)->senders[sender].told;
    const int by_relays = !(sc->discipline->traits & HPC_ANSWERS_ALL);
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = hpc_work_of(sc, share->rows[i]);
        if (by_relays) hpc_forward_word(core, w, sender, told, sizeof *told, hpc_passed_at);
        hpc_row_reply(core, w, sender, share->clocks[sender].slot);
    }
}

/* Answers a sender's update: writes the outcome into this rank's own memory, and puts it from that memory. The put of
 * the last outcome has ended, because the sender sent this update after it got that outcome. Parameters are sent before
 * the answer:
 * - on servers only for a late update, because the fold has sent them to the other senders;
 * - with several stages always, and relays answer the ranks that get parameters from them;
 * - never if owners send parameters only when pulls ask.
 *
 * After this call the sender may overwrite its slot. */
void hpc_intake_answer(hpc_core *core, const hpc_share *share, int sender, hpc_told outcome) {
    const hpc_scheme *sc = core->scheme;
    const int s = (int)(share - sc->layout.shares), many = hpc_in_groups(sc);
    const size_t nbytes = hpc_has_decider(sc) && sender != share->owner ? 0 : sizeof outcome;
    hpc_told *told = &hpc_intake_of(share)->senders[sender].told;
    *told = outcome;
    if (keeping_of(sc) == NULL && (many || !(outcome.used || is_led(sc)))) hpc_intake_send_params(core, share, sender);
    const uint64_t answered = ++share->clocks[sender].answered;
    for (int i = 0; i < (many ? share->n_members : 1); i++) {
        const int rank = many ? share->members[i] : sender;
        if (hpc_sender_of(sc, 0, rank) == sender)
            hpc_share_answer_with(core, rank, told, nbytes, hpc_told_at(sc, rank, s), hpc_signal_applied(sc, s),
                                  answered);
    }
}

static void release(const hpc_share *share, int sender) {
    atomic_store_explicit(&hpc_intake_of(share)->senders[sender].waits, 0, memory_order_relaxed);
    hpc_intake_of(share)->held--;
}

static void leave_out(hpc_core *core, const hpc_share *share, int sender, uint64_t folded) {
    if (hpc_has_decider(core->scheme)) {
        hpc_quorum_of(core->scheme)->verdicts->give(core, share, sender);
        return;
    }
    if (sends(core->scheme, share, hpc_version_from(share, sender), sender)) hpc_count_late(core->scheme, sender);
    hpc_intake_answer(core, share, sender, (hpc_told){folded, 0});
}

/* Leaves out the updates that are older than version least. Returns how many there were. */
static int drop_before(hpc_core *core, const hpc_share *share, uint64_t least, uint64_t folded) {
    const hpc_intake *in = hpc_intake_of(share);
    int n = 0;
    for (int i = 0; i < in->n_from && in->held > 0; i++) {
        const int sender = in->from[i];
        if (hpc_version_from(share, sender) == 0 || hpc_version_from(share, sender) >= least) continue;
        leave_out(core, share, sender, folded);
        release(share, sender);
        n++;
    }
    return n;
}

/* ---- when a fold is due ---- */

/* Counts of senders: how many have sent an update for a version, how many others may still send it, and how many of
 * these others are expected soon. */
typedef struct survey {
    int brought, open, expected;
} survey;

static void look_at(const hpc_core *core, const hpc_share *share, int sender, uint64_t version, survey *found) {
    const uint64_t newest = hpc_intake_of(share)->senders[sender].newest, waits = hpc_version_from(share, sender);
    const int brought = is_led(core->scheme) ? newest >= least_of(core->scheme, share, version) : waits == version;
    const watched *its = &((const watch *)core->own)->seen[sender];
    const int open = !brought && waits == 0 && !its->gone;
    if (!sends(core->scheme, share, version, sender)) return;
    found->brought += brought;
    found->open += open;
    found->expected += open && !its->absent && newest + NEAR >= version;
}

static survey look(const hpc_core *core, const hpc_share *share, uint64_t version) {
    const hpc_intake *in = hpc_intake_of(share);
    survey found = {0, 0, 0};
    for (int i = 0; i < in->n_from; i++) look_at(core, share, in->from[i], version, &found);
    return found;
}

/* Returns the counts at the peer where the fewest updates for a fold have come, since each peer must have a quorum of
 * the updates that come to it. */
static survey look_where_fewest(const hpc_core *core, const hpc_share *share, uint64_t version, survey all) {
    const hpc_scheme *sc = core->scheme;
    const hpc_pushed *k = &sc->keys[share->key];
    int most = all.brought + all.open;
    for (int i = 0; i < k->n_shares && hpc_has_decider(sc); i++) {
        const hpc_share *its = &sc->layout.shares[k->shares[i]];
        const hpc_row *row = &sc->plan->rows[its->rows[0]];
        survey found = {0, 0, 0};
        if (its->core != share->core || row->n_in == hpc_intake_of(share)->n_from) continue;
        if (hpc_intake_is_gone(core, its->owner)) continue;
        for (int e = 0; e < row->n_in; e++) look_at(core, share, row->in[e].rank, version, &found);
        if (found.brought < all.brought) all.brought = found.brought;
        if (found.brought + found.open < most) most = found.brought + found.open;
    }
    all.open = most - all.brought;
    return all;
}

/* Updates the learned grace: took is how many seconds after the quorum the other updates came, or the fold was made
 * without them. */
static void learn(const hpc_scheme *sc, hpc_intake *in, double took) {
    if (sc->asked.grace >= 0) return;
    hpc_usual_learn(&in->lag, took);
    const double usual = hpc_usual_limit(&in->lag);
    if (in->lag.measured >= HPC_USUAL_ENOUGH)
        atomic_store_explicit(&in->grace, usual > LEAST ? usual : LEAST, memory_order_relaxed);
}

/* Returns whether a fold that has its quorum is to be made now. */
static int is_due(hpc_core *core, const hpc_share *share, const survey *found, uint64_t version) {
    const hpc_scheme *sc = core->scheme;
    hpc_intake *in = hpc_intake_of(share);
    const int complete = found->open == 0;
    if (!complete && found->expected == 0) return 1; /* no sender is expected, so there is no time to learn */
    if (complete && in->since == 0) {
        learn(sc, in, 0);
        return 1;
    }
    const double now = hpc_now();
    if (in->since == 0) {
        in->since = now;
        hpc_bell_ring(sc->context->group.bell); /* a thread that begins to sleep must wake when the grace ends */
    }
    const double due = in->since + atomic_load_explicit(&in->grace, memory_order_relaxed);
    if (!complete && now < due) {
        if (due < core->due) core->due = due;
        return 0;
    }
    learn(sc, in, now - in->since);
    for (int i = 0; i < in->n_from && !complete; i++)
        ((watch *)core->own)->seen[in->from[i]].absent |= in->senders[in->from[i]].newest < version;
    return 1;
}

/* ---- folds ---- */

/* Returns the version of the next fold. Updates of older versions are late. */
static uint64_t next_version(const hpc_scheme *sc, const hpc_share *share) {
    const int slot = (int)(share->version % (uint64_t)sc->layout.depth);
    if (hpc_has_decider(sc)) return hpc_intake_of(share)->decided + 1;
    return has_lead(share) ? number_of(sc, share, share->owner, slot) : hpc_folded_of(share) + 1;
}

/* Returns, for hpc_row_take, whether the fold takes an input, the slot from which rows read it, and its version. For
 * this rank's own push that leads the fold, these are the fold's slot and version. */
static hpc_taken taking(const hpc_core *core, const hpc_work *w, const hpc_input *in) {
    const hpc_scheme *sc = core->scheme;
    const hpc_share *share = w->share;
    uint64_t slot = (uint64_t)slot_at(sc, share, in->rank, share->clocks[in->lowest].slot);
    uint64_t version = hpc_version_from(share, in->lowest);
    if (is_led(sc) && in->rank == share->owner) slot = share->version, version = next_version(sc, share);
    return (hpc_taken){hpc_intake_of(share)->takes[in->lowest], slot, version};
}

hpc_inputs hpc_intake_inputs(hpc_core *core, const hpc_work *w) {
    const hpc_scheme *sc = core->scheme;
    hpc_inputs inputs =
        hpc_row_take(core, w, taking, next_version(sc, w->share), is_led(sc) ? HPC_SCALE_ALL : HPC_SCALE_MEANS);
    if (keeping_of(sc) != NULL) inputs.slot = 0; /* there is only one accumulator */
    return inputs;
}

/* Answers this rank last: once this rank is answered it may close, and then it sends nothing more. The updates are
 * marked as released after the answers, so a thread that sees neither an answer nor a waiting update knows that no
 * update has come. With several stages parameters are sent when all rows are folded, to one group after the other. */
static void end_fold(hpc_core *core, hpc_share *share, uint64_t version) {
    const hpc_scheme *sc = core->scheme;
    hpc_intake *in = hpc_intake_of(share);
    int n = 0, missing = 0;
    atomic_store_explicit(&in->folded, version, memory_order_release);
    share->version++;
    if (keeping_of(sc) != NULL) keeping_of(sc)->keep(share);
    for (int i = 0; i < in->n_from; i++) {
        const int sender = in->from[i];
        const int brings = in->takes[sender] && sends(sc, share, hpc_version_from(share, sender), sender);
        n += brings;
        missing += !brings && sends(sc, share, version, sender);
    }
    hpc_share_count_fold(core, n);
    if (hpc_has_decider(sc)) missing = hpc_first_work(sc, share)->row->n_in - n;
    hpc_count_absent(core, 0, 0, missing);
    for (int i = 0; i < in->n_from; i++)
        if (in->takes[in->from[i]]) hpc_intake_answer(core, share, in->from[i], (hpc_told){version, 1});
    if (is_led(sc))
        hpc_share_answer(core, share->owner, hpc_signal_applied(sc, (int)(share - sc->layout.shares)), share->version);
    for (int i = 0; i < in->n_from && !hpc_has_decider(sc); i++)
        if (in->takes[in->from[i]]) release(share, in->from[i]);
    if (is_led(sc)) hpc_graph_end_fold(core, share);
}

/* Returns the rule's arguments on servers: the arguments of the lowest rank in the fold. */
static const double *find_args(const hpc_scheme *sc, const hpc_share *share, const hpc_work *w) {
    int lowest = -1;
    for (int e = 0; e < w->row->n_in; e++) {
        const int r = w->inputs[e].lowest;
        if (hpc_intake_of(share)->takes[r] && (lowest < 0 || r < lowest)) lowest = r;
    }
    return hpc_args_of(sc, share, lowest, share->clocks[lowest].slot);
}

/* Folds a row. On servers, if the weights of all inputs add up to 1 (a mean), the weights of the folded inputs are
 * scaled to add up to 1; the weights of a sum are not changed. On a graph the weights are scaled to the total weight of
 * all inputs, and a row's step is the fold's version, so a straggler that has caught up is at the same step as the
 * others. */
static int fold_row(hpc_core *core, const hpc_share *share, hpc_work *w, uint64_t version) {
    const hpc_scheme *sc = core->scheme;
    const char *takes = hpc_intake_of(share)->takes;
    hpc_inputs inputs = hpc_intake_inputs(core, w);
    if (inputs.n == 0 && hpc_has_decider(sc)) {
        if (takes[share->owner]) hpc_row_reply(core, w, share->owner, 0);
        return 0;
    }
    inputs.to = (hpc_receivers){.whom = hpc_in_groups(sc) ? HPC_TO_NOBODY : HPC_TO_TAKERS, .takes = takes};
    if (is_led(sc))
        w->step = hpc_step_of(sc, share->key, version);
    else
        inputs.args = find_args(sc, share, w);
    return is_led(sc) ? hpc_graph_work_row(core, w, &inputs) : hpc_row_work(core, w, &inputs);
}

static void count_received(const hpc_core *core, const hpc_work *w) {
    const char *takes = hpc_intake_of(w->share)->takes;
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        const int slot = slot_at(core->scheme, w->share, in->rank, w->share->clocks[in->lowest].slot);
        if (takes[in->lowest] && hpc_row_brings(w, slot, e)) hpc_row_count_received(core, w, e);
    }
}

int hpc_intake_fold(hpc_core *core, hpc_share *share, uint64_t version) {
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = hpc_work_of(core->scheme, share->rows[i]);
        const hpc_keeping *keeping = keeping_of(core->scheme);
        const int failed = keeping != NULL ? keeping->fold(core, w, i) : fold_row(core, share, w, version);
        if (failed) return failed;
        count_received(core, w);
    }
    end_fold(core, share, version);
    return 0;
}

static void decide(hpc_core *core, const hpc_share *share, uint64_t version) {
    hpc_intake *in = hpc_intake_of(share);
    hpc_quorum_of(core->scheme)->verdicts->give(core, share, -1);
    in->decided = version;
    for (int i = 0; i < in->n_from; i++)
        if (in->takes[in->from[i]]) release(share, in->from[i]);
}

/* Marks the updates that the fold takes. Then folds them or, among peers, sends the verdict. The caller has left out
 * updates that are too old. */
static int fold(hpc_core *core, hpc_share *share, uint64_t version) {
    hpc_intake *in = hpc_intake_of(share);
    const uint64_t least = least_of(core->scheme, share, version);
    for (int i = 0; i < in->n_from; i++) {
        const int sender = in->from[i];
        const uint64_t waits = hpc_version_from(share, sender);
        in->takes[sender] = waits == version || (is_led(core->scheme) && waits >= least &&
                                                 (waits < version || sends(core->scheme, share, version, sender)));
    }
    in->since = 0;
    if (!hpc_has_decider(core->scheme)) return hpc_intake_fold(core, share, version);
    decide(core, share, version);
    return 0;
}

/* ---- the core's work ---- */

/* Advances a share by a step: leaves out late updates, then makes a fold if one is due. Returns how many updates and
 * folds it handled, or -1 after a failure. If fewer senders than a quorum are open, servers leave out all waiting
 * updates; on a graph all open neighbours are then the quorum. */
static int step(hpc_core *core, hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    const int followed = hpc_has_decider(sc) ? hpc_quorum_of(sc)->verdicts->follow(core, share) : 0;
    if (followed < 0 || hpc_decider_of(sc, share) != share) return followed;
    const uint64_t version = next_version(sc, share);
    int n = followed + drop_before(core, share, least_of(sc, share, version), version - 1);
    if (is_led(sc) && !has_lead(share)) return n;
    if (keeping_of(sc) != NULL) {
        int waits = 0;
        const int done = keeping_of(sc)->work(core, share, &waits);
        if (done < 0 || waits) return done < 0 ? -1 : n + done;
        n += done;
    }
    const survey found = look(core, share, version), fewest = look_where_fewest(core, share, version, found);
    int quorum = sc->asked.quorum;
    if (fewest.brought + fewest.open < quorum) {
        if (!is_led(sc)) return n + drop_before(core, share, UINT64_MAX, version - 1);
        quorum = fewest.brought + fewest.open;
    }
    if (fewest.brought < quorum || !is_due(core, share, &found, version)) return n;
    return fold(core, share, version) == 0 ? n + 1 : -1;
}

static int work_for(hpc_core *core, hpc_share *share) {
    const hpc_intake *in = hpc_intake_of(share);
    const int waited = in->since > 0;
    int n = 0, done;
    do {
        done = step(core, share);
        n += done > 0 ? done : 0;
        hpc_intake_look_after(core, share);
    } while (done > 0 && in->place < ((watch *)core->own)->n);
    return n + (!waited && in->since > 0); /* a grace has begun, so the thread must not sleep until it is over */
}

/* Notes which senders have closed and have nothing more to bring. The core has handled all events that came before this
 * call. So everything has come from a rank that had closed at the last call; a rank that has closed since is noted at
 * the next call. A group with a rank that has closed sends no more updates. A sender is the lowest rank of its group,
 * so the loop reaches it before the other ranks. */
static void note_closed(hpc_core *core) {
    const hpc_scheme *sc = core->scheme;
    watched *seen = ((watch *)core->own)->seen;
    for (int r = 0; r < sc->context->group.size; r++) {
        const int sender = hpc_sender_of(sc, 0, r);
        seen[r].gone = seen[r].closes;
        if (sender < 0 || hpc_closed_signal(sc, r) == 0) continue;
        seen[sender].closes = 1;
        if (!seen[sender].gone) core->due = 0;
    }
}

int hpc_intake_is_gone(const hpc_core *core, int sender) {
    return ((const watch *)core->own)->seen[sender].gone;
}

int hpc_intake_work(hpc_core *core) {
    watch *its = core->own;
    int n = 0;
    core->due = INFINITY;
    if (its->n == 0) return 0;
    note_closed(core);
    for (int i = 0; i < its->n;) {
        hpc_share *share = core->clocked->shares[i];
        n += work_for(core, share);
        i += i < its->n && core->clocked->shares[i] == share;
    }
    if (its->n == 0) core->due = INFINITY;
    return n;
}

/* ---- a state is loaded ---- */

int hpc_intake_tell(hpc_scheme *sc) {
    int status = HPC_OK;
    for (int s = 0; s < sc->layout.n_shares; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        const hpc_intake *in = hpc_intake_of(share);
        if (in == NULL) continue;
        hpc_core *core = &sc->cores[share->core];
        hpc_core_pause(core);
        for (int i = 0; i < in->n_from && status == HPC_OK; i++) {
            hpc_told *told = &in->senders[in->from[i]].told;
            told->folded = share->version;
            if (hpc_has_decider(sc) && in->from[i] != share->owner) continue;
            status = hpc_put(core->out, sc->window, in->from[i], told, sizeof *told, hpc_told_at(sc, in->from[i], s));
        }
        hpc_core_resume(core);
    }
    return status;
}

/* ---- open ---- */

static int is_sender(const hpc_scheme *sc, const hpc_share *share, int rank) {
    if (hpc_has_decider(sc)) return hpc_pushes_key(sc, rank, share->key);
    if (hpc_sender_of(sc, 0, rank) != rank || (is_led(sc) && rank == hpc_me(sc))) return 0;
    return hpc_in_groups(sc) ? hpc_feeds_share(sc, share, rank) : hpc_share_answers(sc, share, rank);
}

static int open_intake(hpc_scheme *sc, hpc_core *core, int place, const char *op) {
    const hpc_share *share = core->clocked->shares[place];
    const int size = sc->context->group.size, own = hpc_sender_of(sc, 0, hpc_me(sc));
    hpc_intake *in = hpc_intake_of(share);
    in->senders = hpc_scheme_take(sc, (size_t)size, sizeof *in->senders, op);
    in->takes = hpc_scheme_take(sc, (size_t)size, 1, op);
    in->from = hpc_scheme_take(sc, (size_t)size, sizeof *in->from, op);
    if (in->senders == NULL || in->takes == NULL || in->from == NULL) return HPC_ERR_MEMORY;
    in->place = place;
    atomic_init(&in->grace, sc->asked.grace < 0 ? FIRST : sc->asked.grace);
    in->takes[hpc_me(sc)] = (char)is_led(sc); /* this rank's lead is in all folds */
    for (int i = 1; i <= size; i++) {
        const int r = (hpc_me(sc) + i) % size;
        if (r != own && is_sender(sc, share, r)) in->from[in->n_from++] = r;
    }
    if (own >= 0 && is_sender(sc, share, own)) in->from[in->n_from++] = own;
    in->partial = hpc_has_decider(sc) && hpc_first_work(sc, share)->row->n_in < in->n_from;
    return HPC_OK;
}

int hpc_intake_open(hpc_scheme *sc, const char *op) {
    int status = hpc_clocks_open(sc, op);
    for (int c = 0; c < sc->n_own_cores && status == HPC_OK; c++) {
        hpc_core *core = &sc->cores[c];
        watch *its = core->own = hpc_scheme_take(sc, 1, sizeof *its, op);
        if (its != NULL) its->seen = hpc_scheme_take(sc, (size_t)sc->context->group.size, sizeof *its->seen, op);
        if (its == NULL || its->seen == NULL) return HPC_ERR_MEMORY;
        for (int i = 0; i < core->clocked->n && status == HPC_OK; i++) status = open_intake(sc, core, i, op);
        for (int i = 0; i < core->clocked->n && status == HPC_OK; i++)
            hpc_intake_look_after(core, core->clocked->shares[i]);
    }
    return status == HPC_OK ? hpc_share_open_counts(sc, is_led(sc), op) : status;
}
