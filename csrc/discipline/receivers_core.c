/* The core of SSP where receivers apply the rule: rows that forward sum updates and close versions; rows that apply
 * take these versions. receivers_ssp.c explains the guarantees, and why slots are free. */
#include <stdio.h>
#include <string.h>

#include "discipline/receivers.h"
#include "engine/owner/signals.h"
#include "engine/args.h"
#include "engine/bytes.h"
#include "engine/owner/core.h"
#include "engine/owner/forward.h"
#include "engine/worker/waits.h"

static uint64_t depth_of(const hpc_scheme *sc) {
    return (uint64_t)sc->layout.depth;
}

static int has_failed(const hpc_core *core) {
    return hpc_scheme_has_failed(core->scheme);
}

/* Returns the note of the n-th version that comes to a row, counted from 0. It stands behind the version's update
 * (HPC_MARGINS). */
static const hpc_version_note *note_of(const hpc_scheme *sc, const hpc_work *w, uint64_t n) {
    return (const hpc_version_note *)(const void *)(hpc_input_at(w->inputs, n % depth_of(sc)) +
                                                    hpc_row_bytes(sc, w->row));
}

/* ---- sums ---- */

static uint64_t last_of_rank(const hpc_scheme *sc, int key, int rank) {
    if (hpc_updates_of(sc)->levels) return hpc_updates_of(sc)->last[hpc_by_rank(sc, key, rank)];
    return hpc_closed_signal(sc, rank) != 0 ? hpc_closing_count(sc, rank, key) : UINT64_MAX;
}

/* The ranks of a host push equally often, so once a rank of the host has closed, its number of pushes is the host's. */
uint64_t hpc_last_push(const hpc_scheme *sc, int key, int sender) {
    uint64_t least = last_of_rank(sc, key, sender);
    for (int r = sender + 1; r < sc->context->group.size && sc->group_of != NULL; r++) {
        const uint64_t last = hpc_sender_of(sc, key, r) == sender ? last_of_rank(sc, key, r) : UINT64_MAX;
        if (last < least) least = last;
    }
    return least;
}

/* Returns the newest version that may be closed: the smallest clock of the inputs over which more updates may come; if
 * no more can come, the largest clock. */
static uint64_t closes_at(const hpc_scheme *sc, const hpc_work *w) {
    uint64_t least = UINT64_MAX, most = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const uint64_t n = hpc_sum_taken(w, e), clock = hpc_input_clock(sc, w, e);
        if (clock > most) most = clock;
        if (clock < least && n < hpc_last_push(sc, w->row->key, w->inputs[e].lowest)) least = clock;
    }
    return least < UINT64_MAX ? least : most;
}

int hpc_has_not_told(const hpc_scheme *sc, int row, uint64_t version) {
    const hpc_row *below = &sc->plan->rows[row];
    const int tells = below->n_out == 0 || hpc_closed_signal(sc, below->owner) != 0;
    return tells && hpc_version_told(sc, row) < version;
}

/* Returns the version that all receivers must have applied before the next version is sent and a new sum begun; 0:
 * none. */
static uint64_t waits_for(const hpc_scheme *sc, const hpc_versions *its) {
    if (its->came + 2 <= depth_of(sc)) return 0;
    const uint64_t freed = its->notes[(its->came + 1) % depth_of(sc)].version;
    for (int i = 0; i < its->n_below; i++)
        if (hpc_has_not_told(sc, its->below[i], freed)) return freed;
    return 0;
}

static int has_to_wait(hpc_core *core, hpc_versions *its) {
    const uint64_t before = atomic_load_explicit(&its->waits, memory_order_relaxed), now = waits_for(core->scheme, its);
    atomic_store_explicit(&its->waits, now, memory_order_relaxed);
    core->clocked->n_parked += (now > 0) - (before > 0);
    return now > 0;
}

/* Checks whether the arguments of rank's push for a version differ from those before; if so, the exchange fails. If
 * rank is the first, copies its arguments to args. */
static int args_differ(hpc_core *core, const hpc_work *w, uint64_t version, int rank, double *args, int *first) {
    hpc_scheme *sc = core->scheme;
    const uint64_t before = version - 1 + hpc_updates_of(sc)->base[hpc_by_rank(sc, w->row->key, rank)];
    const double *theirs = hpc_args_of(sc, w->share, rank, (int)(before % depth_of(sc)));
    for (int a = 1; a < HPC_RULE_ARGS && *first >= 0; a++) {
        if (theirs[a] == args[a]) continue;
        hpc_args_differ(sc, w, a, version, (const int[]){rank, *first}, (const double[]){theirs[a], args[a]});
        return 1;
    }
    if (*first < 0) memcpy(args, theirs, HPC_ARGS_BYTES);
    if (*first < 0) *first = rank;
    return 0;
}

/* Writes the rule's arguments for a version to args, from the workers that have made the push of that number. Returns 0
 * if two of these workers give different arguments: then the exchange fails. */
static int take_args(hpc_core *core, const hpc_work *w, uint64_t version, double *args) {
    const hpc_scheme *sc = core->scheme;
    for (int e = 0, first = -1; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        const int end = in->forwarded < 0 ? in->lowest + 1 : sc->context->group.size;
        if (hpc_input_clock(sc, w, e) < version) continue;
        for (int r = in->lowest; r < end; r++)
            if (hpc_sender_of(sc, w->row->key, r) == in->lowest && args_differ(core, w, version, r, args, &first))
                return 0;
    }
    return 1;
}

/* Returns whether all receivers leave the open version out, because the state that was loaded in the present publish
 * does not have it. */
static int is_left_out(const hpc_scheme *sc, const hpc_work *w) {
    const hpc_versions *its = hpc_versions_of(sc, w);
    for (int i = 0; i < its->n_below && hpc_updates_of(sc)->levels; i++)
        if (hpc_owns_row(sc, its->below[i])) return hpc_versions_of(sc, hpc_work_of(sc, its->below[i]))->was_set;
    return 0;
}

static void begin_next(const hpc_scheme *sc, hpc_work *w) {
    hpc_versions *its = hpc_versions_of(sc, w);
    its->came++;
    hpc_sum_begin(w, its->came % depth_of(sc));
}

/* Sends the sum of n_updates updates, and begins the next sum. Returns nonzero if the exchange has failed. */
static int send_sum(hpc_core *core, hpc_work *w, int n_updates, const double *args) {
    hpc_versions *its = hpc_versions_of(core->scheme, w);
    if (hpc_sum_send(core, w, its->came % depth_of(core->scheme), n_updates, args) != 0) return -1;
    begin_next(core->scheme, w);
    return 0;
}

/* Sends the sum of the open version if the version can be closed. Returns 1 if it was sent, otherwise 0. */
static int close_version(hpc_core *core, hpc_work *w) {
    const hpc_scheme *sc = core->scheme;
    hpc_versions *its = hpc_versions_of(sc, w);
    const uint64_t version = closes_at(sc, w), slot = its->came % depth_of(sc);
    hpc_version_note *note = &its->notes[slot];
    if (version <= atomic_load_explicit(&its->version, memory_order_relaxed) || has_to_wait(core, its)) return 0;
    if (is_left_out(sc, w)) its->n_open = 0;
    note->version = version;
    note->n_updates = (uint64_t)its->n_open;
    if (!take_args(core, w, version, note->args)) return 0;
    hpc_forward_note(core, w, slot, note, sizeof *note);
    if (send_sum(core, w, its->n_open, note->args) != 0) return 0;
    its->n_open = 0;
    atomic_store_explicit(&its->version, version, memory_order_release);
    if (hpc_updates_of(sc)->levels) hpc_bell_ring(sc->context->group.bell);
    return 1;
}

/* Sends an empty event instead of a host's sum. */
static void send_nothing(hpc_core *core, hpc_work *w) {
    hpc_forward_empty(core, w);
    begin_next(core->scheme, w);
}

/* When one update of each rank of a host has come, empty or not, folds these updates in the order of inputs. */
static void gather(hpc_core *core, hpc_work *w, int slot, int input, int how) {
    int status = 0, n = 0, n_updates = 0;
    if (!hpc_row_count_as(core, w, slot, input, how)) return;
    for (int e = 0; e < w->row->n_in && status == 0; e++) {
        if (!hpc_row_brings(w, slot, e)) continue;
        status = hpc_row_add(core, w, slot, e, n++ == 0);
        n_updates += w->inputs[e].updates;
    }
    hpc_row_took(w, slot);
    if (status == 0 && n == 0) send_nothing(core, w);
    if (status == 0 && n > 0) send_sum(core, w, n_updates, w->args[slot]);
}

/* Counts the next update of a sender, and adds it unless it is empty (how). */
static void update_came(hpc_core *core, hpc_work *w, int input, int how) {
    hpc_versions *its = hpc_versions_of(core->scheme, w);
    const int slot = (int)(hpc_sum_taken(w, input) % depth_of(core->scheme));
    const int adds = its->part == HPC_ROW_SUMS && how == HPC_CAME;
    if (has_failed(core) || (adds && hpc_row_add(core, w, slot, input, its->n_open == 0) != 0)) return;
    its->n_open += adds ? w->inputs[input].updates : 0;
    hpc_sum_count(core, w, input, how);
    if (its->part == HPC_ROW_SUMS)
        close_version(core, w);
    else
        gather(core, w, slot, input, how);
}

/* ---- receivers ---- */

static void tell_sources(hpc_core *core, const hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    hpc_receiver *its = share->own;
    const uint64_t version = hpc_version_at(&its->version);
    for (int i = 0; i < share->n_members; i++)
        hpc_share_answer(core, share->members[i], hpc_signal_applied(sc, (int)(share - sc->layout.shares)), version);
    atomic_store_explicit(&its->told, version, memory_order_release); /* the worker may leave now */
    hpc_bell_ring(sc->context->group.bell); /* this rank's own rows, and its settle or publish, may wait for this */
}

static int work_version(hpc_core *core, hpc_work *w, const hpc_version_note *note, uint64_t n) {
    hpc_inputs inputs = hpc_row_inputs(core, w, (int)(n % depth_of(core->scheme)), -1);
    inputs.args = note->args;
    inputs.n_updates = (int)note->n_updates;
    return hpc_row_work(core, w, &inputs);
}

/* Passes a version on. The slot from which it is sent is free again when the slots of all rows that get it are. */
static void pass_on(hpc_core *core, hpc_work *w) {
    hpc_versions *row = hpc_versions_of(core->scheme, w);
    const hpc_version_note *note = note_of(core->scheme, w, row->applied);
    hpc_forward_note(core, w, row->applied % depth_of(core->scheme), note, sizeof(hpc_version_note));
    work_version(core, w, note, row->applied++);
}

/* Returns whether a row leaves out versions because its state was loaded: the versions up to the publish do not belong
 * to that state. A row that keeps only a master takes versions as they come, also before that publish. */
static int leaves_out(const hpc_scheme *sc, const hpc_work *w) {
    return hpc_versions_of(sc, w)->was_set && (hpc_updates_of(sc)->levels || hpc_share_keeps(sc, w->share));
}

/* Applies versions that have come to the row: all up to version most, and beyond that until the row has the version
 * that its worker needs. If several versions close at once only the last one is sent, so a version may be larger than
 * most. A row whose state was set skips versions that are older than its parameters. */
static void catch_up(hpc_core *core, hpc_work *w, uint64_t most) {
    const hpc_scheme *sc = core->scheme;
    hpc_versions *row = hpc_versions_of(sc, w);
    hpc_receiver *its = w->share->own;
    while (row->applied < row->came && !has_failed(core)) {
        const hpc_version_note *note = note_of(sc, w, row->applied);
        const uint64_t before = atomic_load_explicit(&row->version, memory_order_relaxed);
        if (note->version > most && before >= its->need) return;
        if (note->n_updates > 0 && !leaves_out(sc, w) && work_version(core, w, note, row->applied) != 0) return;
        row->applied++;
        atomic_store_explicit(&row->version, note->version, memory_order_relaxed);
        its->behind -= before < its->need && note->version >= its->need;
    }
}

static void catch_up_all(hpc_core *core, const hpc_share *share, uint64_t most) {
    for (int i = 0; i < share->n_rows; i++) catch_up(core, hpc_share_row(core->scheme, share, i), most);
}

/* Returns the smallest version that a row of a share has applied; or if came is set, the smallest that has come to a
 * row. */
static uint64_t least_version(const hpc_scheme *sc, const hpc_share *share, int came) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = hpc_share_row(sc, share, i);
        const hpc_versions *row = hpc_versions_of(sc, w);
        const uint64_t version = came && row->came > row->applied
                                     ? note_of(sc, w, row->came - 1)->version
                                     : atomic_load_explicit(&row->version, memory_order_relaxed);
        if (version < least) least = version;
    }
    return least;
}

static void set_need(const hpc_scheme *sc, const hpc_share *share, uint64_t need) {
    hpc_receiver *its = share->own;
    its->need = need;
    its->behind = 0;
    for (int i = 0; i < share->n_rows; i++)
        its->behind += atomic_load_explicit(&hpc_versions_of(sc, hpc_share_row(sc, share, i))->version,
                                            memory_order_relaxed) < need;
}

/* Called when all rows have the needed version: applies all versions that have come to all rows, then answers. */
static void reached(hpc_core *core, hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    hpc_receiver *its = share->own;
    if (!its->runs) catch_up_all(core, share, least_version(sc, share, 1));
    if (has_failed(core)) return;
    atomic_store_explicit(&its->version, least_version(sc, share, 0), memory_order_release);
    if (its->runs) {
        set_need(sc, share, hpc_version_at(&its->version) + 1);
        tell_sources(core, share);
        return;
    }
    its->answered = its->asked;
    hpc_share_answer(core, share->owner, hpc_signal_applied(sc, (int)(share - sc->layout.shares)), its->asked);
}

static uint64_t applies_to(const hpc_receiver *its) {
    return its->runs ? UINT64_MAX : its->need;
}

static void go_on(hpc_core *core, hpc_share *share) {
    const hpc_receiver *its = share->own;
    catch_up_all(core, share, applies_to(its));
    if (its->behind == 0) reached(core, share);
}

static void take(hpc_core *core, hpc_work *w) {
    const hpc_receiver *its = w->share->own;
    if (!its->runs && its->asked == its->answered) return; /* the worker computes */
    catch_up(core, w, applies_to(its));
    if (its->behind == 0) reached(core, w->share);
}

/* Takes a version. Returns 0 if it is not the next one, or if its slot is not free. */
static int version_came(hpc_core *core, hpc_work *w, int slot) {
    hpc_versions *row = hpc_versions_of(core->scheme, w);
    const uint64_t depth = depth_of(core->scheme);
    if (has_failed(core)) return 1;
    if ((uint64_t)slot != row->came % depth || row->came - row->applied >= depth) return 0;
    row->came++;
    hpc_row_count_received(core, w, -1);
    if (row->part == HPC_ROW_PASSES_ON)
        pass_on(core, w);
    else
        take(core, w);
    return 1;
}

/* ---- slots of the discipline ---- */

int hpc_updates_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    const hpc_versions *its = hpc_versions_of(core->scheme, w);
    if (its->part != HPC_ROW_SUMS && its->part != HPC_ROW_GATHERS) return version_came(core, w, slot);
    if ((uint64_t)slot != hpc_sum_taken(w, input) % depth_of(core->scheme)) return 0; /* not its sender's next slot */
    update_came(core, w, input, HPC_CAME);
    return 1;
}

static void nothing_came(hpc_core *core, hpc_work *w, int slot, int input) {
    const hpc_row_part part = hpc_versions_of(core->scheme, w)->part;
    (void)slot;
    if (part == HPC_ROW_SUMS || part == HPC_ROW_GATHERS) update_came(core, w, input, HPC_CAME_EMPTY);
}

/* Handles the event by which this rank tells that it has pushed once more. */
static int pull_came(hpc_core *core, hpc_share *share, int rank) {
    const hpc_scheme *sc = core->scheme;
    hpc_receiver *its = share->own;
    if (rank != share->owner || its == NULL || its->runs) return 0;
    its->asked++;
    set_need(sc, share, hpc_clock_behind(sc, hpc_clock_at(sc, share->key, rank, its->asked)));
    go_on(core, share);
    return 1;
}

int hpc_updates_other_came(hpc_core *core, hpc_share *share, const hpc_event *event) {
    return hpc_imm_operation(event->imm) == HPC_OP_PULL ? pull_came(core, share, event->peer)
                                                        : hpc_core_empty_came(core, share, event, nothing_came);
}

/* Closes versions that may close now: because a worker has closed, a receiver has told, or a publish has begun. */
int hpc_updates_work(hpc_core *core) {
    hpc_scheme *sc = core->scheme;
    int n = 0;
    if (!hpc_core_sees_closed(core) && core->clocked->n_parked == 0 && !hpc_updates_of(sc)->levels) return 0;
    for (int i = 0; i < sc->n_work; i++)
        if (&sc->cores[sc->work[i].row->core] == core && hpc_updates_of(sc)->rows[i].part == HPC_ROW_SUMS)
            n += close_version(core, &sc->work[i]);
    return n;
}

void hpc_updates_run(hpc_core *core, hpc_share *share, int on) {
    hpc_receiver *its = share->own;
    its->runs = on || hpc_share_keeps(core->scheme, share);
    if (!on) return;
    set_need(core->scheme, share, hpc_version_at(&its->version) + 1);
    go_on(core, share);
    tell_sources(core, share);
}
