/* BSP and NOTIFY-ACK on a graph (ASAP, section 4): a row (a chunk at one rank) is folded when the updates of all
 * in-neighbours have come. Under BSP a pull waits for the folds of every rank. Under NOTIFY-ACK a pull waits only for
 * this rank's own folds. A push waits until each out-neighbour has folded and answered the earlier update that was in
 * the push's slot. */
#include "discipline/discipline.h"
#include "discipline/graph.h"
#include "discipline/split_state.h"
#include "discipline/servers_bsp.h"

#include "engine/owner/signals.h"
#include "engine/layout/stages.h"
#include "engine/owner/block.h"

static int open_counts(hpc_scheme *sc, const char *op) {
    const int status = sc->use != NULL ? hpc_split_open_means(sc, op) : HPC_OK;
    return status == HPC_OK ? hpc_share_open_counts(sc, 1, op) : status;
}

/* ---- answers ---- */

/* Answers the ranks of a share whose rows are all folded. On a graph of several phases a rank that has sent nothing in
 * this step gets no answer, unless all ranks take part in all shares. */
static void answer_all(hpc_core *core, hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    int signal = hpc_signal_applied(sc, (int)(share - sc->layout.shares));
    const unsigned all = sc->discipline->traits & HPC_INVOLVES_ALL;
    hpc_whole_begin_next(share);
    hpc_graph_count_neighbours(core, share);
    for (int i = 0; i < share->n_members; i++)
        if (all || hpc_sends(sc, share->key, share->version, share->owner, share->members[i]))
            hpc_share_answer(core, share->members[i], signal, share->version);
    hpc_graph_end_fold(core, share);
}

/* Does a row's work. Returns nonzero if a user's rule or fold has failed; the share is then not answered. */
static int work_off(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    int failed = hpc_graph_work_row(core, w, inputs);
    if (failed) return failed;
    if (--w->share->left == 0) answer_all(core, w->share);
    return 0;
}

/* ---- turns ---- */

/* Returns whether a row has all inputs of step n. On a graph of several phases, an input may come to a slot before an
 * earlier step has taken its own inputs from that slot. That happens only if the earlier step has no input from the
 * sending rank, since a rank writes a slot again only after its last update in that slot was folded. So the update in a
 * slot belongs to the next step that uses the slot and in which the update's rank sends to this rank. */
static int has_inputs(const hpc_scheme *sc, const hpc_work *w, uint64_t n) {
    const int slot = (int)((n - 1) % (uint64_t)sc->layout.depth);
    for (int e = 0; e < w->row->n_in; e++)
        if (hpc_sends(sc, w->row->key, n, w->row->owner, w->inputs[e].rank) && hpc_row_mark_of(w, slot, e) == 0)
            return 0;
    return 1;
}

/* Does a row's work if its inputs have come. If that ends a step, does the same for all rows, since inputs of the next
 * step may have come. */
static void work_in_turn(hpc_core *core, hpc_work *w) {
    hpc_scheme *sc = core->scheme;
    const hpc_share *share = w->share;
    const uint64_t n = share->version + 1;
    if (!has_inputs(sc, w, n)) return;
    const hpc_inputs inputs = hpc_row_take_step(core, w, n);
    if (work_off(core, w, &inputs) != 0 || share->version < n) return;
    for (int i = 0; i < share->n_rows && !hpc_scheme_has_failed(sc); i++)
        work_in_turn(core, hpc_work_of(sc, share->rows[i]));
}

/* ---- events ---- */

static void came(hpc_core *core, hpc_work *w, int slot, int input, int how) {
    hpc_scheme *sc = core->scheme;
    if (hpc_scheme_has_failed(sc)) return;
    if (!hpc_folds_whole(sc)) { /* see has_inputs */
        if (hpc_row_has_too_many(core, w, slot, input)) return;
        hpc_row_mark(w, slot, input, how);
        work_in_turn(core, w);
    } else if (hpc_row_count(core, w, slot, input)) {
        const hpc_inputs inputs = hpc_row_inputs(core, w, slot, -1);
        work_off(core, w, &inputs);
        hpc_row_took(w, slot);
    }
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    came(core, w, slot, input, HPC_CAME);
    return 1;
}

static void empty_came(hpc_core *core, hpc_work *w, int slot, int input) {
    came(core, w, slot, input, HPC_CAME_EMPTY);
}

static int other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    return hpc_graph_came_besides(core, share, event, empty_came);
}

/* ---- the ranks that a wait waits for ---- */

/* Adds the ranks whose inputs to the next fold of share s are missing. */
static int missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    uint64_t n = hpc_share_next_fold(sc, s); /* folds are made in order */
    (void)ticket;
    int slot = (int)((n - 1) % (uint64_t)sc->layout.depth);
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = hpc_work_of(sc, share->rows[i]);
        for (int e = 0; e < w->row->n_in; e++)
            if (w->inputs[e].rank != share->owner && hpc_sends(sc, share->key, n, share->owner, w->inputs[e].rank) &&
                hpc_row_mark_of(w, slot, e) == 0)
                found = hpc_add_rank(ranks, found, w->inputs[e].rank);
    }
    return found;
}

/* ---- the values ---- */

static int check_notify_ack(const hpc_context *c, const hpc_exchange_config *f) {
    const int status = hpc_graph_is_given(f, "exchange");
    (void)c;
    return status == HPC_OK ? hpc_graph_check_split(f, "exchange") : status;
}

static const hpc_gate gate = {.row_came = row_came, .other_came = other_came, .missing = missing};

const hpc_discipline hpc_discipline_graph_bsp = {
    .name = "BSP",
    .traits = HPC_WHOLE | HPC_INVOLVES_ALL,
    .open = open_counts,
    .gate = &gate,
    .pace = &(const hpc_pace){.is_late = hpc_whole_is_late},
};

const hpc_discipline hpc_discipline_notify_ack = {
    .name = "NOTIFY_ACK",
    .check = check_notify_ack,
    .traits = HPC_WHOLE | HPC_OWN_PARAMS,
    .open = open_counts,
    .gate = &gate,
    .pace = &(const hpc_pace){.is_late = hpc_graph_is_late},
};

const hpc_discipline hpc_discipline_split_phases = {
    .name = "BSP in two calls",
    .check = check_notify_ack,
    .traits = HPC_WHOLE | HPC_OWN_PARAMS | HPC_PULLS | HPC_KEEPS_MEANS,
    .plan = hpc_split_plan_alone,
    .open = open_counts,
    .gate = &gate,
    .pace = &(const hpc_pace){HPC_SPLIT_PACE, .is_late = hpc_graph_is_late},
    .use = &hpc_split_use,
};
