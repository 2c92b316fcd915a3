/* The owner's side of a quorum on servers (see quorum.c; and groups_quorum.c, where a sender is a group). */
#include "discipline/server_intake.h"

#include "engine/answer.h"
#include "engine/args.h"
#include "engine/core.h"
#include "engine/stages.h"
#include "engine/write.h"

/* ---- updates that came ---- */

int hpc_server_intake_share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    hpc_engine *en = core->engine;
    uint64_t number = hpc_number_of(en, share, rank, slot);
    if (!hpc_feeds_share(en, share, rank) || number == 0) return 0;
    if (hpc_version_from(share, rank) != 0) return hpc_intake_refuse_second(en, share, rank);
    hpc_intake_hold(core, share, rank, slot, number);
    hpc_intake_watch(core, share);
    return 1;
}

/* The rows of an update come one by one, each with the version beside it. */
int hpc_server_intake_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    hpc_engine *en = core->engine;
    hpc_share *share = w->share;
    const int rank = w->inputs[input].rank, sender = w->inputs[input].lowest;
    hpc_sender *from = &hpc_intake_of(share)->senders[sender];
    const uint64_t number = hpc_number_of(en, share, rank, slot);
    if (number == 0 || (from->rows_came > 0 && number != from->coming)) return 0;
    if (hpc_version_from(share, sender) != 0) return hpc_intake_refuse_second(en, share, rank);
    if (share->args_came && !hpc_args_agree(core, w, slot, input, from->answered + 1)) return 1;
    from->coming = number;
    if (++from->rows_came < share->n_rows) return 1;
    from->rows_came = 0;
    hpc_intake_hold(core, share, sender, slot, number);
    hpc_intake_watch(core, share);
    return 1;
}

/* ---- answers ---- */

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

/* Leaves a sender's update out. Its worker gets the newest parameters. */
static void drop(hpc_core *core, hpc_share *share, int sender, uint64_t folded) {
    atomic_fetch_add_explicit(&core->engine->peers.late[sender], 1, memory_order_relaxed);
    hpc_intake_decide(share, sender, folded, 0);
    send_params(core, share, sender);
    hpc_intake_release(share, sender);
    hpc_intake_answer(core, share, sender);
}

/* ---- folds ---- */

static hpc_survey look(const hpc_core *core, const hpc_share *share, uint64_t version) {
    const hpc_intake *in = hpc_intake_of(share);
    hpc_survey found = {0, 0, 0};
    for (int i = 0; i < in->n_from; i++)
        hpc_survey_add(&found, core, share, in->from[i], version, hpc_version_from(share, in->from[i]) == version);
    return found;
}

static hpc_taken taking(const hpc_core *core, const hpc_work *w, const hpc_input *in) {
    return (hpc_taken){hpc_intake_of(w->share)->takes[in->lowest],
                       (uint64_t)hpc_intake_slot(core->engine, w->share, in)};
}

/* Answer this rank last: once answered it may close, and then it sends nothing more. Note the updates as gone after
 * that: a thread that sees neither the answer nor an update then knows that none has come. */
static void end_fold(hpc_core *core, hpc_share *share, uint64_t version) {
    const hpc_intake *in = hpc_intake_of(share);
    int n = 0;
    hpc_intake_end_fold(share, version);
    for (int i = 0; i < in->n_from; i++) n += in->takes[in->from[i]];
    hpc_intake_count_fold(core, in->n_from, n);
    for (int i = 0; i < in->n_from; i++) {
        int r = in->from[i];
        if (!in->takes[r]) continue;
        hpc_intake_decide(share, r, version, 1);
        if (core->engine->layout.stages.many) send_params(core, share, r);
        hpc_intake_answer(core, share, r);
    }
    for (int i = 0; i < in->n_from; i++)
        if (in->takes[in->from[i]]) hpc_intake_release(share, in->from[i]);
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

/* Weights that add up to 1 (a mean) do so again; those of a sum stay as they are. With several stages parameters are
 * sent when all rows are folded: to one group after the other. */
static int fold(hpc_core *core, hpc_share *share, uint64_t version) {
    const hpc_engine *en = core->engine;
    hpc_intake *in = hpc_intake_of(share);
    for (int i = 0; i < in->n_from; i++) in->takes[in->from[i]] = hpc_version_from(share, in->from[i]) == version;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &en->work[en->work_of[share->rows[i]]];
        hpc_inputs inputs = hpc_row_take(core, w, taking, HPC_SCALE_MEANS);
        inputs.to = (hpc_receivers){.whom = en->layout.stages.many ? HPC_TO_NOBODY : HPC_TO_TAKERS, .takes = in->takes};
        find_args(en, share, w, &inputs);
        int failed = hpc_row_work(core, w, &inputs);
        if (failed) return failed;
        for (int e = 0; e < w->row->n_in; e++)
            if (in->takes[w->inputs[e].lowest]) hpc_row_count_received(core, w, e);
    }
    end_fold(core, share, version);
    return 0;
}

/* Advances a share by a step. All waiting updates are dropped where too few workers are left for a quorum. */
static int step(hpc_core *core, hpc_share *share) {
    uint64_t version = atomic_load_explicit(&hpc_intake_of(share)->folded, memory_order_acquire) + 1;
    int n = hpc_intake_drop_before(core, share, version, version - 1, drop), quorum = core->engine->asked.quorum;
    hpc_survey found = look(core, share, version);
    if (found.brought + found.open < quorum)
        return n + hpc_intake_drop_before(core, share, UINT64_MAX, version - 1, drop);
    if (found.brought < quorum || !hpc_intake_is_due(core, share, &found, version)) return n;
    return fold(core, share, version) == 0 ? n + 1 : -1;
}

int hpc_server_intake_work(hpc_core *core) {
    return hpc_intake_work(core, step);
}

/* ---- a state is loaded ---- */

int hpc_server_intake_tell(hpc_engine *en) {
    int status = HPC_OK;
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_share *share = &en->layout.shares[s];
        if (share->n_members == 0) continue;
        hpc_core_pause(&en->cores[share->core]);
        for (int i = 0; i < share->n_members && status == HPC_OK; i++) {
            int rank = share->members[i];
            hpc_told *said = &hpc_intake_of(share)->senders[rank].told;
            said->folded = share->version;
            status =
                hpc_put(en->cores[share->core].out, en->window, rank, said, sizeof *said, hpc_told_at(en, rank, s));
        }
        hpc_core_resume(&en->cores[share->core]);
    }
    return status;
}
