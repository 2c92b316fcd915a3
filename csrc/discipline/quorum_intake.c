/* The owner's side of a quorum: what came, whether it is time, the fold and the answers (see quorum.c; and
 * groups_quorum.c, where a sender is a group). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "discipline/quorum.h"
#include "engine/args.h"
#include "engine/core.h"

static const double LEAST = 0.01; /* seconds of grace, when it is learned: a scheduler's slice */
enum { NEAR = 2 };                /* versions behind: a rank that comes back has an old update in its slot */

/* ---- what came ---- */

static int is_pushed(const hpc_share *share) {
    return hpc_intake_of(share)->pushes > share->version;
}

static int own_slot(const hpc_engine *en, const hpc_share *share) {
    return (int)(share->version % (uint64_t)en->layout.depth);
}

static uint64_t number_of(const hpc_engine *en, const hpc_share *share, int rank, int slot) {
    return *(const uint64_t *)(const void *)(hpc_own_part(en) + hpc_number_at(en, share, rank, slot));
}

/* The version of the next fold. Updates of an older one are late. */
static uint64_t next_version(const hpc_engine *en, const hpc_share *share) {
    if (hpc_own_leads(en) && is_pushed(share)) return number_of(en, share, share->owner, own_slot(en, share));
    return atomic_load_explicit(&hpc_intake_of(share)->folded, memory_order_acquire) + 1;
}

/* Whether an update that waits, of this version or a newer one, counts for a fold of that version. */
static int counts_for(const hpc_engine *en, uint64_t version, uint64_t fold) {
    return hpc_own_leads(en) ? version >= fold : version == fold;
}

/* Whether rank's pushes lead the folds of the share. They need no answer behind which a verdict lies. */
static int leads(const hpc_engine *en, const hpc_share *share, int rank) {
    return hpc_own_leads(en) && rank == share->owner;
}

/* Adds a share to those at which the core looks, or takes it away when nothing waits in it. */
static void watch(hpc_core *core, hpc_share *share) {
    hpc_quorum_watch *its = core->own;
    hpc_intake *in = hpc_intake_of(share);
    int watched = in->held > 0 || (hpc_own_leads(core->engine) && is_pushed(share));
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

/* Stores how far a quorum of the in-neighbours is, for the worker's choice of its next version. */
static void publish_progress(const hpc_engine *en, const hpc_share *share) {
    const hpc_row *row = hpc_first_work(en, share)->row;
    hpc_intake *in = hpc_intake_of(share);
    int needs = en->asked.quorum < row->n_in - 1 ? en->asked.quorum : row->n_in - 1;
    uint64_t reached = 0;
    for (int e = 0; e < row->n_in; e++) {
        uint64_t version = in->senders[row->in[e].rank].newest;
        int as_far = 0;
        if (row->in[e].rank == share->owner || version <= reached) continue;
        for (int i = 0; i < row->n_in; i++)
            as_far += row->in[i].rank != share->owner && in->senders[row->in[i].rank].newest >= version;
        if (as_far >= needs) reached = version;
    }
    atomic_store_explicit(&in->reached, reached, memory_order_relaxed);
}

/* There is room for one update of a sender. */
static int fail_second(hpc_engine *en, const hpc_share *share, int rank) {
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d has sent an update of key %.64s before its last one was answered",
             hpc_me(en), rank, en->plan->keys[share->key].name);
    hpc_engine_fail(en, HPC_ERR_TRANSPORT, why);
    return 1;
}

static void hold(hpc_core *core, hpc_share *share, int sender, int slot, uint64_t number) {
    hpc_intake *in = hpc_intake_of(share);
    hpc_sender *from = &in->senders[sender];
    atomic_store_explicit(&from->waits, number, memory_order_relaxed);
    from->slot = slot;
    in->held++;
    ((hpc_quorum_watch *)core->own)->absent[sender] = 0;
    if (number <= from->newest) return;
    from->newest = number;
    if (hpc_own_leads(core->engine)) publish_progress(core->engine, share);
}

static void release(hpc_share *share, int sender) {
    hpc_intake *in = hpc_intake_of(share);
    atomic_store_explicit(&in->senders[sender].waits, 0, memory_order_relaxed);
    in->held--;
}

int hpc_intake_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    hpc_engine *en = core->engine;
    hpc_intake *in = hpc_intake_of(share);
    uint64_t number = number_of(en, share, rank, slot);
    if (!hpc_feeds_share(en, share, rank) || number == 0) return 0;
    if (leads(en, share, rank)) {
        if (in->pushes - share->version >= (uint64_t)en->layout.depth) return 0;
        in->pushes++;
    } else {
        if (hpc_version_from(share, rank) != 0) return fail_second(en, share, rank);
        hold(core, share, rank, slot, number);
    }
    watch(core, share);
    return 1;
}

/* The rows of an update come one by one, each with the version beside it. */
int hpc_intake_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    hpc_engine *en = core->engine;
    hpc_share *share = w->share;
    const int rank = w->inputs[input].rank, sender = w->inputs[input].lowest;
    hpc_sender *from = &hpc_intake_of(share)->senders[sender];
    const uint64_t number = number_of(en, share, rank, slot);
    if (number == 0 || (from->rows_came > 0 && number != from->coming)) return 0;
    if (hpc_version_from(share, sender) != 0) return fail_second(en, share, rank);
    if (share->args_came && !hpc_args_agree(core, w, slot, input, from->answered + 1)) return 1;
    from->coming = number;
    if (++from->rows_came < share->n_rows) return 1;
    from->rows_came = 0;
    hold(core, share, sender, slot, number);
    watch(core, share);
    return 1;
}

/* ---- answers ---- */

/* Says what has become of a sender's update: to this rank's own memory, from which it is put. The last word has been
 * read, for the update came after it. */
static void decide(const hpc_share *share, int sender, uint64_t folded, int used) {
    hpc_sender *from = &hpc_intake_of(share)->senders[sender];
    from->told.folded = folded;
    from->told.used += (uint64_t)used;
    from->passed = (hpc_told){folded, (uint64_t)used};
}

/* Sends a sender the newest parameters. By relays what became of its update goes before them. */
static void send_params(hpc_core *core, const hpc_share *share, int sender) {
    const hpc_engine *en = core->engine;
    const hpc_sender *to = &hpc_intake_of(share)->senders[sender];
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        for (int o = 0; o < w->n_outputs && w->sends_to_rows; o++) {
            const hpc_output *out = &w->outputs[o];
            if (out->row < 0 || out->lowest != sender) continue;
            hpc_core_check_put(core, hpc_put(core->out, en->window, out->rank, &to->passed, sizeof to->passed,
                                             hpc_passed_at(en, out->row)));
        }
        hpc_row_reply(core, w, sender, to->slot);
    }
}

static void answer_rank(hpc_core *core, const hpc_share *share, int rank, const hpc_sender *from) {
    const hpc_engine *en = core->engine;
    int s = (int)(share - en->layout.shares);
    hpc_share_answer_with(core, rank, &from->told, sizeof from->told, hpc_told_at(en, rank, s),
                          hpc_signal_applied(en, s), from->answered);
}

/* Answers a sender's update: after this its next one may be written. With several stages relays answer the ranks that
 * get parameters from them. */
static void answer(hpc_core *core, const hpc_share *share, int sender) {
    const hpc_engine *en = core->engine;
    hpc_sender *from = &hpc_intake_of(share)->senders[sender];
    from->answered++;
    if (!en->layout.stages.many) answer_rank(core, share, sender, from);
    for (int i = 0; i < share->n_parts && en->layout.stages.many; i++)
        if (hpc_sender_of(en, share->parts[i]) == sender) answer_rank(core, share, share->parts[i], from);
}

/* Leaves a sender's update out. A worker of servers gets the newest parameters. */
static void drop(hpc_core *core, hpc_share *share, int sender, uint64_t folded) {
    hpc_engine *en = core->engine;
    atomic_fetch_add_explicit(&en->peers.late[sender], 1, memory_order_relaxed);
    decide(share, sender, folded, 0);
    if (!hpc_own_leads(en)) send_params(core, share, sender);
    release(share, sender);
    answer(core, share, sender);
}

/* Drops the updates that are older than a version. Returns how many. */
static int drop_before(hpc_core *core, hpc_share *share, uint64_t least, uint64_t folded) {
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

/* How many senders have brought an update for a version, may still bring it, are expected to bring it soon. */
typedef struct survey {
    int brought, open, expected;
} survey;

static survey look(const hpc_core *core, const hpc_share *share, uint64_t version) {
    const hpc_engine *en = core->engine;
    const hpc_quorum_watch *its = core->own;
    const hpc_intake *in = hpc_intake_of(share);
    survey found = {0, 0, 0};
    for (int i = 0; i < in->n_from; i++) {
        int r = in->from[i];
        if (leads(en, share, r)) continue;
        const hpc_sender *from = &in->senders[r];
        uint64_t waits = hpc_version_from(share, r);
        int brought = counts_for(en, hpc_own_leads(en) ? from->newest : waits, version);
        int open = !brought && waits == 0 && !its->gone[r];
        found.brought += brought;
        found.open += open;
        found.expected += open && !its->absent[r] && from->newest + NEAR >= version;
    }
    return found;
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

/* Whether a fold that has its quorum is to be made now. */
static int is_over(hpc_core *core, const hpc_share *share, const survey *found, uint64_t version) {
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

static hpc_taken taking(const hpc_core *core, const hpc_work *w, const hpc_input *in) {
    const hpc_engine *en = core->engine;
    const hpc_intake *its = hpc_intake_of(w->share);
    int one = en->discipline->one_slot && !hpc_reads_in_place(en, w->share->owner, in->rank);
    int slot = leads(en, w->share, in->rank) ? own_slot(en, w->share) : one ? 0 : its->senders[in->lowest].slot;
    return (hpc_taken){its->takes[in->lowest], (uint64_t)slot};
}

/* Answer this rank last: once answered it may close, and then it sends nothing more. Note the updates as gone after
 * that: a thread that sees neither the answer nor an update then knows that none has come. */
static void end_fold(hpc_core *core, hpc_share *share, uint64_t version) {
    hpc_engine *en = core->engine;
    hpc_intake *in = hpc_intake_of(share);
    int n = 0, others = 0;
    in->since = 0;
    atomic_store_explicit(&in->folded, version, memory_order_release);
    share->version++;
    for (int i = 0; i < in->n_from; i++) {
        if (leads(en, share, in->from[i])) continue;
        others++;
        n += in->takes[in->from[i]];
    }
    hpc_share_count_fold(core, n);
    hpc_tally_add(&core->tally.missing, (uint64_t)(others - n));
    for (int i = 0; i < in->n_from; i++) {
        int r = in->from[i];
        if (leads(en, share, r)) {
            hpc_share_answer(core, r, hpc_signal_applied(en, (int)(share - en->layout.shares)), share->version);
        } else if (in->takes[r]) {
            decide(share, r, version, 1);
            if (en->layout.stages.many) send_params(core, share, r);
            answer(core, share, r);
        }
    }
    for (int i = 0; i < in->n_from; i++)
        if (in->takes[in->from[i]] && !leads(en, share, in->from[i])) release(share, in->from[i]);
}

/* The arguments of the rule are those of the lowest rank in the fold. */
static void find_args(const hpc_engine *en, const hpc_share *share, const hpc_work *w, hpc_inputs *inputs) {
    const hpc_intake *in = hpc_intake_of(share);
    int lowest = -1;
    for (int e = 0; e < w->row->n_in; e++) {
        int r = w->inputs[e].lowest;
        if (in->takes[r] && (lowest < 0 || r < lowest)) lowest = r;
    }
    inputs->args = hpc_args_of(en, share, lowest, in->senders[lowest].slot);
}

/* Weights that add up to 1 (a mean) do so again, on graphs all do; those of a sum stay as they are. On a graph a row's
 * step is its version: a straggler that has caught up is where the others are. With several stages parameters are sent
 * when all rows are folded: to one group after the other. */
static int fold(hpc_core *core, hpc_share *share, uint64_t version) {
    const hpc_engine *en = core->engine;
    hpc_intake *in = hpc_intake_of(share);
    for (int i = 0; i < in->n_from; i++) {
        int r = in->from[i];
        uint64_t waits = hpc_version_from(share, r);
        in->takes[r] = leads(en, share, r) || (waits != 0 && counts_for(en, waits, version));
    }
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        hpc_inputs inputs = hpc_row_take(core, w, taking, hpc_own_leads(en) ? HPC_SCALE_ALL : HPC_SCALE_MEANS);
        inputs.to = (hpc_receivers){.whom = en->layout.stages.many ? HPC_TO_NOBODY : HPC_TO_TAKERS, .takes = in->takes};
        if (!hpc_own_leads(en)) find_args(en, share, w, &inputs);
        if (hpc_own_leads(en)) w->step = (uint64_t)((int64_t)version - 1 + hpc_phases_of(en)->keys[share->key].ahead);
        int failed = hpc_row_work(core, w, &inputs);
        if (failed) return failed;
        for (int e = 0; e < w->row->n_in; e++)
            if (in->takes[w->inputs[e].lowest]) hpc_row_count_received(core, w, e);
    }
    end_fold(core, share, version);
    return 0;
}

/* Does what it is time for: drops, then a fold. On servers, where too few workers are left for a quorum, all that waits
 * is dropped; on a graph the quorum is one of those who are left. Returns how much was done; -1 after a failure. */
static int step(hpc_core *core, hpc_share *share) {
    const hpc_engine *en = core->engine;
    uint64_t version = next_version(en, share);
    int n = drop_before(core, share, version, version - 1), quorum = en->asked.quorum;
    if (hpc_own_leads(en) && !is_pushed(share)) return n;
    survey found = look(core, share, version);
    int can = found.brought + found.open;
    if (can < quorum) {
        if (!hpc_own_leads(en)) return n + drop_before(core, share, UINT64_MAX, version - 1);
        quorum = can;
    }
    if (found.brought < quorum || !is_over(core, share, &found, version)) return n;
    return fold(core, share, version) == 0 ? n + 1 : -1;
}

static int work_for(hpc_core *core, hpc_share *share) {
    const hpc_intake *in = hpc_intake_of(share);
    int n = 0, waited = in->since > 0, done;
    do {
        done = step(core, share);
        n += done > 0 ? done : 0;
        watch(core, share);
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
        const int sender = hpc_sender_of(en, r);
        if (sender < 0 || hpc_closed_signal(en, r) == 0) continue;
        its->closes[sender] = 1;
        if (!its->gone[sender]) core->due = 0;
    }
}

int hpc_intake_work(hpc_core *core) {
    hpc_quorum_watch *its = core->own;
    int n = 0;
    core->due = INFINITY;
    if (its->n == 0) return 0;
    note_closed(core);
    for (int i = 0; i < its->n;) {
        hpc_share *share = its->shares[i];
        n += work_for(core, share);
        i += i < its->n && its->shares[i] == share;
    }
    if (its->n == 0) core->due = INFINITY;
    return n;
}

/* ---- open ---- */

static int is_sender(const hpc_engine *en, const hpc_share *share, int rank) {
    if (hpc_sender_of(en, rank) != rank) return 0;
    return en->layout.stages.many ? hpc_feeds_share(en, share, rank) : hpc_share_answers(en, share, rank);
}

void hpc_intake_open(hpc_engine *en) {
    const int size = en->context->group.size, own = hpc_sender_of(en, hpc_me(en));
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

/* ---- a state is loaded ---- */

int hpc_intake_tell(hpc_engine *en) {
    int status = HPC_OK;
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_share *share = &en->layout.shares[s];
        if (share->n_parts == 0) continue;
        hpc_core_pause(&en->cores[share->core]);
        for (int i = 0; i < share->n_parts && status == HPC_OK; i++) {
            int rank = share->parts[i];
            hpc_told *said = &hpc_intake_of(share)->senders[rank].told;
            said->folded = share->version;
            status =
                hpc_put(en->cores[share->core].out, en->window, rank, said, sizeof *said, hpc_told_at(en, rank, s));
        }
        hpc_core_resume(&en->cores[share->core]);
    }
    return status;
}
