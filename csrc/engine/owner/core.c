/* A core owns the same rows as long as the exchange lives, and shares no data with other cores. It takes events from
 * its lanes and checks that each event names one of its rows or shares and carries as many bytes as it must. Then it
 * hands the event to the discipline.
 *
 * A core never waits. If a ring is full, it keeps the forward for that receiver; if an event must wait, it holds the
 * event for that sender. The core tries both again at its next call. So a rank that hangs delays only its own data. If
 * its turn is over inside an event that announces several rows, it holds that event too. */
#define _GNU_SOURCE
#include "engine/owner/core.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/owner/signals.h"
#include "engine/args.h"
#include "engine/discipline.h"
#include "engine/owner/forward.h"
#include "engine/layout/progress.h"
#include "engine/owner/row.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"
#include "engine/owner/write.h"

/* ---- events ---- */

hpc_work *hpc_core_row(const hpc_core *core, int index) {
    const hpc_scheme *sc = core->scheme;
    if (index < 0 || index >= sc->plan->n_rows || sc->work_of[index] < 0) return NULL;
    hpc_work *w = hpc_work_of(sc, index);
    return w->row->core == core->index ? w : NULL;
}

hpc_share *hpc_core_share(const hpc_core *core, int index) {
    const hpc_scheme *sc = core->scheme;
    if (index < 0 || index >= sc->layout.n_shares) return NULL;
    hpc_share *share = &sc->layout.shares[index];
    return share->owner == sc->context->group.rank && share->core == core->index ? share : NULL;
}

int hpc_core_brings(const hpc_core *core, const hpc_event *event, const char *what, int key, size_t due) {
    if (event->nbytes == due) return 1;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d sent %zu bytes for %s %d of key %.64s instead of %zu",
             core->scheme->context->group.rank, event->peer, event->nbytes, what, hpc_imm_index(event->imm),
             core->scheme->plan->keys[key].name, due);
    hpc_scheme_fail(core->scheme, HPC_ERR_TRANSPORT, why);
    return 0;
}

/* Handles an event by which a row of another rank tells row w that it has nothing to send to it. */
static int empty_row_came(hpc_core *core, hpc_work *w, const hpc_event *event, hpc_nothing_came *came) {
    const int input = w == NULL ? -1 : hpc_row_input_of(w, event->peer, 1);
    if (input < 0) return 0;
    if (hpc_core_brings(core, event, "nothing for row", w->row->key, 0)) came(core, w, 0, input);
    return 1;
}

int hpc_core_empty_came(hpc_core *core, const hpc_share *share, const hpc_event *event, hpc_nothing_came *came) {
    const hpc_scheme *sc = core->scheme;
    const int slot = hpc_imm_slot(event->imm);
    const hpc_edge *edges = NULL;
    int input = -1;
    if (hpc_imm_operation(event->imm) != HPC_OP_EMPTY) return 0;
    if (slot == HPC_EMPTY_ROW && sc->layout.stages.many)
        return empty_row_came(core, hpc_core_row(core, hpc_imm_index(event->imm)), event, came);
    if (slot >= sc->layout.depth || share == NULL || !hpc_feeds_share(sc, share, event->peer)) return 0;
    if (!hpc_core_brings(core, event, "no gradient of share", share->key, 0)) return 1;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = hpc_work_of(sc, share->rows[i]);
        if (w->row->in != edges) input = hpc_row_input_of(w, event->peer, 0); /* rows of a hub share their edges */
        edges = w->row->in;
        if (input >= 0) came(core, w, slot, input);
    }
    return 1;
}

/* Returns whether one event announces a push of rank to all rows of a share. That is so if the push is read in rank's
 * memory, or put before the share's event. If not, each row has an event. */
static int comes_by_share(const hpc_scheme *sc, int rank) {
    return sc->discipline->traits & HPC_BRINGS_NUMBER || hpc_reads_in_place(sc, sc->context->group.rank, rank);
}

/* Returns whether rank's push to some rows of a share has no bytes, so that only the event announces it. */
static int tells(const hpc_scheme *sc, const hpc_share *share, int rank) {
    for (int i = 0; i < share->n_rows && share->some_empty; i++) {
        const hpc_edge *push = hpc_row_input(&sc->plan->rows[share->rows[i]], rank);
        if (push != NULL && hpc_input_is_empty(sc, push)) return 1;
    }
    return 0;
}

_Static_assert(HPC_PLAN_DEPTH <= 1 << HPC_IMM_SLOT_BITS, "an event names any slot of a plan");

/* Handles the event of a share. The event announces the sender's inputs to all rows of the share; if rows have separate
 * events, only the inputs without bytes. Returns 0 if the event names no share of this core; 1 if the event was
 * handled, even if that failed; HPC_HAS_TO_WAIT if the turn ended before the last row. All functions below return the
 * same. */
static int share_came(hpc_core *core, const hpc_share *share, const hpc_event *event, int slot) {
    const hpc_scheme *sc = core->scheme;
    const hpc_discipline *d = sc->discipline;
    const hpc_edge *edges = NULL;
    const int all = comes_by_share(sc, event->peer);
    int *at = &core->rows_done[event->peer]; /* not 0 if the turn has ended inside this event */
    int input = -1, known = *at > 0;
    if (share == NULL || (!all && !tells(sc, share, event->peer))) return 0;
    if (!hpc_core_brings(core, event, "share", share->key, d->traits & HPC_BRINGS_NUMBER ? sizeof(uint64_t) : 0))
        return 1;
    for (int i = *at; i < share->n_rows; i++) {
        hpc_work *w = hpc_work_of(sc, share->rows[i]);
        if (w->row->in != edges) input = hpc_row_input_of(w, event->peer, 0); /* rows of a hub share their edges */
        edges = w->row->in;
        if (input < 0 || !(all || w->inputs[input].empty)) continue;
        known = sc->gate->row_came(core, w, input, slot);
        if (!known) return 0;
        if (i + 1 < share->n_rows && hpc_turn_is_over(core->task)) {
            *at = i + 1;
            return HPC_HAS_TO_WAIT;
        }
    }
    *at = 0;
    return known;
}

/* Handles an input that has come: sends it on to other ranks if the row has hops, then hands it to the discipline. */
static int input_came(hpc_core *core, hpc_work *w, int input, const hpc_event *event, int slot) {
    const hpc_scheme *sc = core->scheme;
    const hpc_input *in = &w->inputs[input];
    if (in->empty) return 0;
    const size_t due = in->codec->length(w->config, in->slots + (size_t)slot * in->stride, w->row->count);
    if (!hpc_core_brings(core, event, "row", w->row->key, due > 0 ? due : SIZE_MAX))
        return 1; /* hpc_core_brings has ended the exchange */
    if (in->hops != NULL) hpc_forward_input(core, w, in, slot);
    return sc->gate->row_came(core, w, input, slot);
}

static int row_came(hpc_core *core, hpc_work *w, const hpc_event *event, int forwarded, int slot) {
    const hpc_scheme *sc = core->scheme;
    const int rank = event->peer, input = w == NULL ? -1 : hpc_row_input_of(w, rank, forwarded);
    if (input < 0 || (!forwarded && comes_by_share(sc, rank))) return 0;
    if (sc->own_rows != NULL && hpc_edge_via(&w->row->in[input]) >= 0) return 0;
    return input_came(core, w, input, event, slot);
}

/* Handles an update that the sender passes on for another rank; the event names the row of that other rank. */
static int passed_came(hpc_core *core, const hpc_event *event, int slot) {
    const hpc_scheme *sc = core->scheme;
    const int row = hpc_imm_index(event->imm);
    if (sc->own_rows == NULL || row >= sc->plan->n_rows) return 0;
    hpc_work *w = hpc_core_row(core, sc->own_rows[row]);
    const int input = w == NULL ? -1 : hpc_row_input_of(w, sc->plan->rows[row].owner, 0);
    if (input < 0 || hpc_edge_via(&w->row->in[input]) != event->peer) return 0;
    return input_came(core, w, input, event, slot);
}

static int args_came(hpc_core *core, hpc_share *share, const hpc_event *event, int slot) {
    if (share == NULL) return 0;
    if (!hpc_core_brings(core, event, "the arguments of share", share->key, HPC_ARGS_BYTES)) return 1;
    return hpc_args_came(core, share, event->peer, slot);
}

/* Handles events that are no inputs. A pull names a share, and brings no bytes. */
static int other_came(hpc_core *core, const hpc_event *event) {
    const hpc_scheme *sc = core->scheme;
    hpc_share *share = hpc_core_share(core, hpc_imm_index(event->imm));
    const int pulls = hpc_imm_operation(event->imm) == HPC_OP_PULL;
    if (sc->gate->other_came == NULL || (pulls && (share == NULL || hpc_imm_slot(event->imm) > HPC_ANSWERED))) return 0;
    if (pulls && !hpc_core_brings(core, event, "a pull of share", share->key, 0)) return 1;
    return sc->gate->other_came(core, share, event);
}

/* Handles an event. Returns 0 if it must wait. */
static int handle(hpc_core *core, const hpc_event *event) {
    const hpc_scheme *sc = core->scheme;
    int index = hpc_imm_index(event->imm), slot = hpc_imm_slot(event->imm), known = 0;
    const int valid = slot < sc->layout.depth;
    switch (hpc_imm_operation(event->imm)) {
    case HPC_OP_SHARE:
        known = valid ? share_came(core, hpc_core_share(core, index), event, slot) : 0;
        break;
    case HPC_OP_ROW:
        known = valid && row_came(core, hpc_core_row(core, index), event, 0, slot);
        break;
    case HPC_OP_FORWARD:
        known = valid && row_came(core, hpc_core_row(core, index), event, 1, slot);
        break;
    case HPC_OP_ARGS:
        known = valid && args_came(core, hpc_core_share(core, index), event, slot);
        break;
    case HPC_OP_PASSED:
        known = valid && passed_came(core, event, slot);
        break;
    default:
        known = other_came(core, event);
    }
    if (known) return known != HPC_HAS_TO_WAIT;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: core %d got event %#x from rank %d for a row or share that it does not own",
             sc->context->group.rank, core->index, event->imm, event->peer);
    hpc_scheme_fail(core->scheme, HPC_ERR_TRANSPORT, why);
    return 1;
}

static void hold(hpc_core *core, const hpc_event *event) {
    core->held[event->peer] = *event;
    core->holds[event->peer] = 1;
    core->n_held++;
}

/* Handles the held events again. Returns how many it has handled, or has worked on until the turn was over. */
static int retry_held(hpc_core *core) {
    int n = 0;
    for (int r = 0; r < core->scheme->context->group.size; r++) {
        if (!core->holds[r]) continue;
        if (handle(core, &core->held[r])) {
            core->holds[r] = 0;
            core->n_held--;
            n++;
        }
        if (hpc_turn_is_over(core->task)) return n + core->holds[r];
    }
    return n;
}

static int poll_in(hpc_core *core, hpc_event *event) {
    return core->n_held > 0 ? hpc_lane_poll_but(core->in, core->holds, event) : hpc_lane_poll(core->in, event);
}

/* Gets the next event. Pushes come by the lane in. By the lane out come only forwards, from the cores of the same
 * number at other ranks. The two lanes take turns at being polled first; otherwise a core with many pushes would let
 * the rings of its forwards fill up. */
static int next_event(hpc_core *core, hpc_event *event) {
    const int at_out = core->at_out;
    int status = at_out ? hpc_lane_poll(core->out, event) : poll_in(core, event);
    if (core->two_ways) {
        if (status == HPC_IN_PROGRESS) status = at_out ? poll_in(core, event) : hpc_lane_poll(core->out, event);
        core->at_out = !at_out;
    }
    if (status != HPC_OK && status != HPC_IN_PROGRESS) hpc_core_check_put(core, status);
    return status == HPC_OK;
}

/* Handles all events that have come; returns how many. */
static int work_core(hpc_core *core) {
    hpc_scheme *sc = core->scheme;
    const hpc_task *task = core->task;
    hpc_event event;
    double start = 0;
    int n = 0, retried = 0;
    if (core->due <= 0 || core->n_held > 0) start = hpc_now(); /* work is left from the last call */
    hpc_lane_cork(core->out);
    if (atomic_load_explicit(&core->n_kept, memory_order_relaxed) > 0) hpc_forward_retry(core);
    if (core->n_held > 0 && !hpc_scheme_has_failed(sc) && !hpc_task_stops(task)) retried = retry_held(core);
    while (!hpc_scheme_has_failed(sc) && !hpc_task_stops(task) && next_event(core, &event)) {
        if (n++ == 0 && start == 0) start = hpc_now();
        if (!handle(core, &event)) hold(core, &event);
        if (atomic_load_explicit(&core->n_kept, memory_order_relaxed) > 0)
            hpc_forward_retry(core); /* rings may get room meanwhile */
    }
    const int taken = n;
    n += retried;
    if (sc->gate->work != NULL && !hpc_scheme_has_failed(sc) &&
        !hpc_task_stops(task)) /* then all events were handled */
        n += sc->gate->work(core);
    hpc_lane_uncork(core->out);
    if (n > 0 && start > 0) {
        hpc_tally_add(&core->tally.events, (uint64_t)taken);
        atomic_store_explicit(&core->tally.busy,
                              atomic_load_explicit(&core->tally.busy, memory_order_relaxed) + hpc_now() - start,
                              memory_order_relaxed);
    }
    return n;
}

/* ---- progress ---- */

static const char *why_failed(const hpc_scheme *sc) {
    return atomic_load_explicit(&sc->fault.failed, memory_order_acquire) == HPC_OK ? NULL : sc->fault.failure;
}

/* hpc_task.run of a thread's task, which is one core */
static const char *work_one(hpc_task *task) {
    hpc_core *core = task->arg;
    task->worked = work_core(core);
    task->due = core->due;
    return why_failed(core->scheme);
}

/* hpc_task.run of a task that waits run, which is all cores of a scheme */
static const char *work_all(hpc_task *task) {
    hpc_scheme *sc = task->arg;
    double due = INFINITY;
    int worked = 0;
    for (int c = 0; c < sc->n_own_cores; c++) {
        worked += work_core(&sc->cores[c]);
        if (sc->cores[c].due < due) due = sc->cores[c].due;
    }
    task->due = due;
    task->worked = worked;
    return why_failed(sc);
}

/* A core never waits, so after each event it accesses no row. */
void hpc_core_pause(hpc_core *core) {
    if (core->task->station != NULL) hpc_task_hold(core->task);
}

void hpc_core_resume(hpc_core *core) {
    if (core->task->station != NULL) hpc_task_let(core->task);
}

/* Returns whether a thread works for the core with this number in another scheme of the exchange. */
static int has_thread_beside(const hpc_scheme *sc, int index) {
    const hpc_scheme *with = sc->next;
    while (with != sc && (index >= with->n_own_cores || with->cores[index].thread == NULL)) with = with->next;
    return with != sc;
}

static int start_core(hpc_core *core) {
    const hpc_scheme *sc = core->scheme;
    core->own_task = (hpc_task){.run = work_one, .arg = core, .weight = sc->asked.weight};
    core->tells = !has_thread_beside(sc, core->index);
    core->thread =
        hpc_crew_add(sc->context->member, core->task, core->index, core->cpu, hpc_progress_dealt(&sc->choice));
    return core->thread != NULL;
}

static void stop_core(hpc_core *core) {
    if (core->thread != NULL) hpc_crew_remove(core->thread, core->task);
    core->thread = NULL;
}

static int start_threads(hpc_scheme *sc) {
    int n = 0, unpinned = 0;
    while (n < sc->n_own_cores && start_core(&sc->cores[n])) {
        const hpc_core *core = &sc->cores[n++];
        unpinned += atomic_load_explicit(&core->thread->started, memory_order_relaxed) == HPC_UNPINNED;
        sc->stats.threads += core->tells;
    }
    if (unpinned > 0)
        hpc_group_note(&sc->context->group, HPC_NOTE_DEGRADED,
                       "exchange: the kernel refused to pin the core threads to CPUs: they run unpinned");
    return n == sc->n_own_cores;
}

int hpc_cores_start(hpc_scheme *sc, const char *op) {
    if (sc->n_own_cores == 0 || (sc->choice.threads && start_threads(sc))) return HPC_OK;
    if (sc->choice.threads)
        hpc_group_note(&sc->context->group, HPC_NOTE_DEGRADED,
                       "exchange: not all core threads could be started (ulimit -u): this rank's waits work for its "
                       "cores");
    sc->choice.lacked = sc->choice.threads;
    sc->choice.threads = 0;
    sc->stats.threads = 0;
    sc->inline_progress = 1;
    sc->task = (hpc_task){.run = work_all, .arg = sc, .weight = sc->asked.weight};
    for (int c = 0; c < sc->n_own_cores; c++) {
        stop_core(&sc->cores[c]);
        sc->cores[c].task = &sc->task;
    }
    return hpc_context_add_task(sc->context, &sc->task) ? HPC_OK
                                                        : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a task", op);
}

void hpc_cores_stop(hpc_scheme *sc) {
    hpc_scheme *of = sc;
    do {
        if (of->task.station != NULL) hpc_task_remove(&of->task);
        if (of->inline_progress) of->inline_progress = 0; /* if it is 0, threads may be reading it */
        for (int c = 0; of->cores != NULL && c < of->n_own_cores; c++) stop_core(&of->cores[c]);
        of = of->next;
    } while (of != sc);
}

/* ---- kept forwards ---- */

static int nothing_is_kept(void *arg) {
    hpc_scheme *sc = arg;
    hpc_scheme_work(sc);
    if (why_failed(sc) != NULL) return 1;
    for (int c = 0; c < sc->n_own_cores; c++)
        if (atomic_load_explicit(&sc->cores[c].n_kept, memory_order_acquire) > 0) return 0;
    return 1;
}

/* Writes into ranks all ranks that rows send to, since kept forwards may be for any of them: only the cores' threads
 * may read the lists of kept forwards. */
static int receivers_of_rows(void *arg, int *ranks) {
    const hpc_scheme *sc = arg;
    int n = 0;
    for (int i = 0; i < sc->n_work; i++)
        for (int o = 0; o < sc->work[i].n_outputs; o++)
            if (sc->work[i].outputs[o].row >= 0) n = hpc_add_rank(ranks, n, sc->work[i].outputs[o].rank);
    for (int i = 0; i < sc->n_work; i++)
        for (int e = 0; e < sc->work[i].row->n_in; e++)
            for (const hpc_hop *to = sc->work[i].inputs[e].hops; to != NULL; to = to->next)
                n = hpc_add_rank(ranks, n, to->rank);
    return n;
}

/* A core counts bytes after it has sent them. While it is paused between two events, all its bytes are counted. */
int hpc_cores_send_kept(hpc_scheme *sc, const char *op, double timeout) {
    const hpc_wait wait = {op, nothing_is_kept, receivers_of_rows, sc, 0, .attend = hpc_scheme_attend, .attended = sc};
    int status = nothing_is_kept(sc) ? HPC_OK : hpc_wait_for(&sc->context->group, &wait, timeout);
    for (int c = 0; c < sc->n_own_cores && status == HPC_OK; c++) {
        hpc_core_pause(&sc->cores[c]);
        hpc_core_resume(&sc->cores[c]);
    }
    return status == HPC_OK ? hpc_scheme_check(sc, op) : status;
}

/* ---- all rows ---- */

/* Returns how many relays the parameters that a row sends have passed, the row included. */
static int hops_of(const hpc_scheme *sc, int row) {
    return sc->layout.stages.many ? sc->layout.stages.hops[row] : 0;
}

void hpc_cores_write(hpc_scheme *sc, int hops) {
    for (int c = 0; c < sc->n_own_cores; c++) {
        hpc_core_pause(&sc->cores[c]);
        for (int i = 0; i < sc->n_work; i++)
            if (sc->work[i].row->core == c && hops_of(sc, sc->work[i].index) == hops)
                hpc_row_publish(&sc->cores[c], &sc->work[i]);
        hpc_core_resume(&sc->cores[c]);
    }
}
