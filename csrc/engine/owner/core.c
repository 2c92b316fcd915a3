/* A core owns the same rows as long as the exchange lives, and shares no data with other cores. It takes events from
 * its lanes and checks that each event names one of its rows or shares and carries as many bytes as it must. Then it
 * hands the event to the discipline.
 *
 * A core never waits. If a ring is full, it keeps the forward for that receiver; if an event must wait, it holds the
 * event for that sender. The core tries both again at its next call. So a rank that hangs delays only its own data. */
#define _GNU_SOURCE
#include "engine/owner/core.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/crowd.h"
#include "base/host.h"
#include "engine/owner/signals.h"
#include "engine/args.h"
#include "engine/discipline.h"
#include "engine/owner/forward.h"
#include "engine/layout/progress.h"
#include "engine/owner/row.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"
#include "engine/owner/write.h"

static const char op_engine[] = "exchange";

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
 * handled, even if that failed. All functions below return the same. */
static int share_came(hpc_core *core, const hpc_share *share, const hpc_event *event, int slot) {
    const hpc_scheme *sc = core->scheme;
    const hpc_discipline *d = sc->discipline;
    const hpc_edge *edges = NULL;
    const int all = comes_by_share(sc, event->peer);
    int input = -1, known = 0;
    if (share == NULL || (!all && !tells(sc, share, event->peer))) return 0;
    if (!hpc_core_brings(core, event, "share", share->key, d->traits & HPC_BRINGS_NUMBER ? sizeof(uint64_t) : 0))
        return 1;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = hpc_work_of(sc, share->rows[i]);
        if (w->row->in != edges) input = hpc_row_input_of(w, event->peer, 0); /* rows of a hub share their edges */
        edges = w->row->in;
        if (input < 0 || !(all || w->inputs[input].empty)) continue;
        known = sc->gate->row_came(core, w, input, slot);
        if (!known) return 0;
    }
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
        known = valid && share_came(core, hpc_core_share(core, index), event, slot);
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

static void retry_held(hpc_core *core) {
    for (int r = 0; r < core->scheme->context->group.size; r++) {
        if (!core->holds[r] || !handle(core, &core->held[r])) continue;
        core->holds[r] = 0;
        core->n_held--;
    }
}

/* Gets the next event. Pushes come by the lane in. By the lane out come only forwards, from the cores of the same
 * number at other ranks. The two lanes take turns at being polled first; otherwise a core with many pushes would let
 * the rings of its forwards fill up. */
static int next_event(hpc_core *core, hpc_event *event) {
    int at_out = core->at_out, status;
    if (core->n_held > 0) retry_held(core);
    if (core->n_held > 0)
        status = hpc_lane_poll_but(core->in, core->holds, event);
    else
        status = hpc_lane_poll(at_out ? core->out : core->in, event);
    if (core->two_ways) {
        if (status == HPC_IN_PROGRESS) status = hpc_lane_poll(at_out ? core->in : core->out, event);
        core->at_out = !at_out;
    }
    if (status != HPC_OK && status != HPC_IN_PROGRESS) hpc_core_check_put(core, status);
    return status == HPC_OK;
}

/* Handles all events that have come; returns how many. */
static int work_core(hpc_core *core) {
    hpc_scheme *sc = core->scheme;
    hpc_event event;
    double start = 0;
    int n = 0;
    if (core->due <= 0) start = hpc_now(); /* work is left from the last call */
    hpc_lane_cork(core->out);
    if (atomic_load_explicit(&core->n_kept, memory_order_relaxed) > 0) hpc_forward_retry(core);
    while (!hpc_scheme_has_failed(sc) && !atomic_load_explicit(&core->paused, memory_order_relaxed) &&
           next_event(core, &event)) {
        if (n++ == 0 && start == 0) start = hpc_now();
        if (!handle(core, &event)) hold(core, &event);
        if (atomic_load_explicit(&core->n_kept, memory_order_relaxed) > 0)
            hpc_forward_retry(core); /* rings may get room meanwhile */
    }
    const int taken = n;
    if (sc->gate->work != NULL && !hpc_scheme_has_failed(sc) &&
        !atomic_load_explicit(&core->paused, memory_order_relaxed)) /* then all events were handled */
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

static const char *work_inline(void *arg) {
    hpc_scheme *sc = arg;
    sc->task.left = 0;
    for (int c = 0; c < sc->n_own_cores; c++) {
        work_core(&sc->cores[c]);
        if (sc->cores[c].due < INFINITY)
            sc->task.left |= HPC_AWAITED; /* the core has work at a certain time, and no bell rings then */
        if (sc->cores[c].due <= 0) sc->task.left |= HPC_LEFT | HPC_MORE;
    }
    return why_failed(sc);
}

/* Order: the thread does  store working; load paused.  A pause does  paused += 1; load working.  All four are
 * sequentially consistent, so at least one side sees the other's store. The store of 0 to working releases the thread's
 * writes to its rows; paused -= 1 releases the reads of the thread that paused. */
static int work_unless_paused(hpc_core *core) {
    int n = 0;
    atomic_store(&core->working, 1);
    if (!atomic_load(&core->paused)) n = work_core(core);
    atomic_store_explicit(&core->working, 0, memory_order_release);
    return n;
}

/* A core never waits, so after each event it accesses no row. If waits work for the core inline, any waiting thread may
 * do so: only the thread that holds the context's tasks accesses the rows, and the next holder sees all its writes. */
void hpc_core_pause(hpc_core *core) {
    if (!core->running && !core->scheme->inline_progress) return;
    atomic_fetch_add(&core->paused, 1);
    if (core->running)
        while (atomic_load(&core->working)) sched_yield();
    else
        hpc_context_hold_tasks(core->scheme->context);
}

void hpc_core_resume(hpc_core *core) {
    if (!core->running && !core->scheme->inline_progress) return;
    atomic_fetch_sub_explicit(&core->paused, 1, memory_order_release);
    if (!core->running) hpc_context_let_tasks(core->scheme->context);
    hpc_bell_ring(core->scheme->context->group.bell); /* the thread may have slept although events came */
}

/* Returns the next core that the same thread works for, or NULL. Cores whose scheme is not open yet are skipped. */
static hpc_core *beside(const hpc_core *core) {
    return atomic_load_explicit(&core->beside, memory_order_acquire);
}

static const char *why_any_failed(const hpc_core *core) {
    const char *why = NULL;
    for (; core != NULL && why == NULL; core = beside(core)) why = why_failed(core->scheme);
    return why;
}

static double earliest_due(const hpc_core *core) {
    double due = INFINITY;
    for (; core != NULL; core = beside(core)) due = core->due < due ? core->due : due;
    return due;
}

static int thread_has_work(void *arg) {
    hpc_core *first = arg;
    int n = 0;
    for (hpc_core *core = first; core != NULL; core = beside(core)) n += work_unless_paused(core);
    return n > 0 || atomic_load_explicit(&first->scheme->stopping, memory_order_acquire) ||
           why_any_failed(first) != NULL;
}

/* A core's thread waits for no particular rank: workers may leave, and the others' pushes still come. */
static int nobody_else(void *arg, int *ranks) {
    ranks[0] = ((hpc_core *)arg)->scheme->context->group.rank;
    return 1;
}

/* A core's thread. Each round of work begins a new wait, so a busy core spins and an idle one sleeps. A rank's death
 * ends the thread; the trainer's waits report the death. */
static void *run_core(void *arg) {
    hpc_core *core = arg;
    hpc_scheme *sc = core->scheme;
    const hpc_wait wait = {op_engine, thread_has_work, nobody_else, core, 0};
    int pin_refused = core->cpu >= 0 && hpc_host_pin(core->cpu) != 0;
    hpc_crowd_tell(hpc_progress_unpin, core);
    atomic_store_explicit(&core->started, pin_refused ? HPC_UNPINNED : HPC_STARTED, memory_order_release);
    while (!atomic_load_explicit(&sc->stopping, memory_order_acquire) && why_any_failed(core) == NULL) {
        int status = hpc_wait_for(&sc->context->group, &wait, hpc_left(earliest_due(core)));
        if (status != HPC_OK && status != HPC_ERR_TIMEOUT) return NULL;
    }
    if (why_any_failed(core) != NULL) hpc_context_abort(sc->context, why_any_failed(core));
    return NULL;
}

/* Returns the core with this number in another scheme of the exchange, if a thread works for it; otherwise NULL. */
static hpc_core *threaded(const hpc_scheme *sc, int index) {
    for (const hpc_scheme *with = sc->next; with != sc; with = with->next)
        if (index < with->n_own_cores && with->cores[index].owns_thread) return &with->cores[index];
    return NULL;
}

/* Lets the first n cores join the threads that work for cores of the same numbers in other schemes, since two threads
 * of one number would be pinned to one CPU. Wakes these threads, since an event that came before did not wake them. */
static void join_threads(hpc_scheme *sc, int n) {
    for (int c = 0; c < n; c++) {
        hpc_core *last = threaded(sc, c);
        while (beside(last) != NULL) last = beside(last);
        sc->cores[c].running = 1;
        atomic_store_explicit(&last->beside, &sc->cores[c], memory_order_release);
    }
    if (n > 0) hpc_bell_ring(sc->context->group.bell);
}

static int start_thread(hpc_core *core) {
    char name[16];
    sigset_t all, before;
    sigfillset(&all); /* signals are left to the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    core->running = core->owns_thread = pthread_create(&core->thread, NULL, run_core, core) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!core->running) return 0;
    snprintf(name, sizeof name, "hpcomm-core-%u", (unsigned)core->index % 100);
    pthread_setname_np(core->thread, name);
    while (atomic_load_explicit(&core->started, memory_order_acquire) == 0) sched_yield();
    return 1;
}

/* Stops the threads that cores of this scheme own. Cores of other schemes that joined these threads then have no
 * thread. */
static void stop_threads(hpc_scheme *sc) {
    atomic_store_explicit(&sc->stopping, 1, memory_order_release);
    for (int c = 0; sc->cores != NULL && c < sc->n_own_cores; c++) {
        hpc_core *core = &sc->cores[c], *next;
        if (!core->owns_thread) continue;
        hpc_bell_wake(sc->context->group.bell);
        pthread_join(core->thread, NULL);
        core->owns_thread = 0;
        for (; core != NULL; core = next) {
            next = beside(core);
            core->running = 0;
            atomic_store_explicit(&core->beside, NULL, memory_order_relaxed);
        }
    }
}

void hpc_cores_start(hpc_scheme *sc) {
    int threads = sc->choice.threads, joins = 0, n, unpinned = 0;
    while (threads && joins < sc->n_own_cores && threaded(sc, joins) != NULL) joins++;
    n = joins;
    while (threads && n < sc->n_own_cores && start_thread(&sc->cores[n]))
        unpinned += atomic_load_explicit(&sc->cores[n++].started, memory_order_relaxed) == HPC_UNPINNED;
    if (unpinned > 0)
        hpc_group_note(&sc->context->group, HPC_NOTE_DEGRADED,
                       "exchange: the kernel refused to pin the core threads to CPUs: they run unpinned");
    if (n < sc->n_own_cores) { /* all cores work inline */
        if (threads)
            hpc_group_note(
                &sc->context->group, HPC_NOTE_DEGRADED,
                "exchange: not all core threads could be started (ulimit -u): this rank's waits work for its cores");
        stop_threads(sc);
        atomic_store_explicit(&sc->stopping, 0, memory_order_release);
        sc->choice.lacked = threads;
        sc->choice.threads = 0;
        sc->inline_progress = 1;
        sc->task = (hpc_task){.run = work_inline, .arg = sc};
        hpc_context_add_task(sc->context, &sc->task);
        return;
    }
    join_threads(sc, joins);
    sc->stats.threads = n - joins;
}

void hpc_cores_stop(hpc_scheme *sc) {
    hpc_scheme *of = sc;
    do {
        if (of->inline_progress) { /* if not, threads may be reading it */
            hpc_context_remove_task(of->context, &of->task);
            of->inline_progress = 0;
        }
        stop_threads(of);
        of = of->next;
    } while (of != sc);
}

/* ---- kept forwards ---- */

static int nothing_is_kept(void *arg) {
    hpc_scheme *sc = arg;
    if (sc->inline_progress) hpc_context_work(sc->context);
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
    const hpc_wait wait = {op, nothing_is_kept, receivers_of_rows, sc, 0};
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
