/* The owner's side of a quorum on a graph (see graph_quorum.c). */
#include "discipline/graph_intake.h"

#include "engine/answer.h"
#include "engine/stages.h"

/* ---- updates that came ---- */

static int own_slot(const hpc_engine *en, const hpc_share *share) {
    return (int)(share->version % (uint64_t)en->layout.depth);
}

/* The version of the next fold. Updates of an older one are late. */
static uint64_t next_version(const hpc_engine *en, const hpc_share *share) {
    if (hpc_intake_is_led(share)) return hpc_number_of(en, share, share->owner, own_slot(en, share));
    return atomic_load_explicit(&hpc_intake_of(share)->folded, memory_order_acquire) + 1;
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

/* The owner's own push leads a fold. It needs no answer behind which a verdict lies. */
int hpc_graph_intake_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    hpc_engine *en = core->engine;
    hpc_intake *in = hpc_intake_of(share);
    uint64_t number = hpc_number_of(en, share, rank, slot);
    if (!hpc_feeds_share(en, share, rank) || number == 0) return 0;
    if (rank == share->owner) {
        if (in->pushes - share->version >= (uint64_t)en->layout.depth) return 0;
        in->pushes++;
    } else {
        if (hpc_version_from(share, rank) != 0) return hpc_intake_refuse_second(en, share, rank);
        if (hpc_intake_hold(core, share, rank, slot, number)) publish_progress(en, share);
    }
    hpc_intake_watch(core, share);
    return 1;
}

/* Leaves a sender's update out. */
static void drop(hpc_core *core, hpc_share *share, int sender, uint64_t folded) {
    atomic_fetch_add_explicit(&core->engine->peers.late[sender], 1, memory_order_relaxed);
    hpc_intake_decide(share, sender, folded, 0);
    hpc_intake_release(share, sender);
    hpc_intake_answer(core, share, sender);
}

/* ---- folds ---- */

static hpc_survey look(const hpc_core *core, const hpc_share *share, uint64_t version) {
    const hpc_intake *in = hpc_intake_of(share);
    hpc_survey found = {0, 0, 0};
    for (int i = 0; i < in->n_from; i++)
        if (in->from[i] != share->owner)
            hpc_survey_add(&found, core, share, in->from[i], version, in->senders[in->from[i]].newest >= version);
    return found;
}

static hpc_taken taking(const hpc_core *core, const hpc_work *w, const hpc_input *in) {
    const hpc_engine *en = core->engine;
    int slot = in->rank == w->share->owner ? own_slot(en, w->share) : hpc_intake_slot(en, w->share, in);
    return (hpc_taken){hpc_intake_of(w->share)->takes[in->lowest], (uint64_t)slot};
}

/* Answer this rank last: once answered it may close, and then it sends nothing more. Note the updates as gone after
 * that: a thread that sees neither the answer nor an update then knows that none has come. */
static void end_fold(hpc_core *core, hpc_share *share, uint64_t version) {
    hpc_engine *en = core->engine;
    const hpc_intake *in = hpc_intake_of(share);
    int n = 0, others = 0;
    hpc_intake_end_fold(share, version);
    for (int i = 0; i < in->n_from; i++) {
        if (in->from[i] == share->owner) continue;
        others++;
        n += in->takes[in->from[i]];
    }
    hpc_intake_count_fold(core, others, n);
    for (int i = 0; i < in->n_from; i++) {
        int r = in->from[i];
        if (r == share->owner) {
            hpc_share_answer(core, r, hpc_signal_applied(en, (int)(share - en->layout.shares)), share->version);
        } else if (in->takes[r]) {
            hpc_intake_decide(share, r, version, 1);
            hpc_intake_answer(core, share, r);
        }
    }
    for (int i = 0; i < in->n_from; i++)
        if (in->takes[in->from[i]] && in->from[i] != share->owner) hpc_intake_release(share, in->from[i]);
}

/* The weights add up again to those of all inputs. A row's step is its version: a straggler that has caught up is where
 * the others are. */
static int fold(hpc_core *core, hpc_share *share, uint64_t version) {
    const hpc_engine *en = core->engine;
    hpc_intake *in = hpc_intake_of(share);
    for (int i = 0; i < in->n_from; i++) {
        int r = in->from[i];
        uint64_t waits = hpc_version_from(share, r);
        in->takes[r] = r == share->owner || (waits != 0 && waits >= version);
    }
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        hpc_inputs inputs = hpc_row_take(core, w, taking, HPC_SCALE_ALL);
        inputs.to = (hpc_receivers){.whom = HPC_TO_TAKERS, .takes = in->takes};
        w->step = (uint64_t)((int64_t)version - 1 + hpc_phases_of(en)->keys[share->key].ahead);
        int failed = hpc_row_work(core, w, &inputs);
        if (failed) return failed;
        for (int e = 0; e < w->row->n_in; e++)
            if (in->takes[w->inputs[e].lowest]) hpc_row_count_received(core, w, e);
    }
    end_fold(core, share, version);
    return 0;
}

/* Advances a share by a step. The quorum shrinks to the neighbours that are left where these are fewer. */
static int step(hpc_core *core, hpc_share *share) {
    const hpc_engine *en = core->engine;
    uint64_t version = next_version(en, share);
    int n = hpc_intake_drop_before(core, share, version, version - 1, drop);
    if (!hpc_intake_is_led(share)) return n;
    hpc_survey found = look(core, share, version);
    int can = found.brought + found.open, quorum = can < en->asked.quorum ? can : en->asked.quorum;
    if (found.brought < quorum || !hpc_intake_is_due(core, share, &found, version)) return n;
    return fold(core, share, version) == 0 ? n + 1 : -1;
}

int hpc_graph_intake_work(hpc_core *core) {
    return hpc_intake_work(core, step);
}
