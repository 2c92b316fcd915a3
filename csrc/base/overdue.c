/* Looks of waits that last long, and failures of waits that have timed out. The header lists the possible findings of a
 * look, and how each changes the wait. */
#define _GNU_SOURCE
#include "base/overdue.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups that exist ---- */

static pthread_mutex_t entering = PTHREAD_MUTEX_INITIALIZER;
static hpc_group *entered; /* guarded by entering, as are serials and next */
static uint64_t serials;

void hpc_group_enter(hpc_group *group) {
    pthread_mutex_lock(&entering);
    group->serial = ++serials;
    group->next = entered;
    entered = group;
    pthread_mutex_unlock(&entering);
}

void hpc_group_leave(hpc_group *group) {
    pthread_mutex_lock(&entering);
    for (hpc_group **at = &entered; *at != NULL; at = &(*at)->next)
        if (*at == group) {
            *at = group->next;
            break;
        }
    pthread_mutex_unlock(&entering);
}

static int is_entered(const hpc_group *group, uint64_t serial) {
    int found = 0;
    pthread_mutex_lock(&entering);
    for (const hpc_group *at = entered; at != NULL && !found; at = at->next)
        found = at == group && at->serial == serial;
    pthread_mutex_unlock(&entering);
    return found;
}

/* ---- timeouts ---- */

static _Thread_local int sliced;
static _Thread_local double slices_limit; /* seconds; 0: unknown */
static _Thread_local struct {
    hpc_group *group; /* may be freed by now: is_entered(group, serial) tells */
    uint64_t serial;
    hpc_wait wait; /* only op and every are used */
    unsigned long
        failures; /* hpc_failures when this timeout was recorded; after another failure the timeout is not followed */
} last_timeout;

int hpc_slice_waits(int slices) {
    int before = sliced;
    sliced = slices;
    return before;
}

double hpc_slices_limit(double seconds) {
    double before = slices_limit;
    slices_limit = seconds;
    return before;
}

int hpc_waits_in_slices(const hpc_group *group, double timeout) {
    return sliced || timeout <= group->slice;
}

static int record_timeout(hpc_group *group, const hpc_wait *wait, const int *waiting, int n, double timeout,
                          const hpc_inquiry *q) {
    const char *op = q->doing.op;
    char whom[256], ends[400] = "";
    const hpc_fault f = {.waiting_for = waiting, .n_waiting = n, .culprits = q->culprits, .n_culprits = q->n_culprits};
    hpc_culprits_text(q->culprits, q->n_culprits, ends, sizeof ends);
    unsigned long before = hpc_failures();
    int status = hpc_fail_fault(HPC_ERR_TIMEOUT, op, &f, "rank %d: %s: nothing came from rank%s %s in %.3g s%s%s%s%s",
                                group->rank, op, n == 1 ? "" : "s", hpc_ranks_text(waiting, n, whom, sizeof whom),
                                timeout, ends[0] == 0 ? "" : ": ", q->way, q->way[0] == 0 ? "" : "; ", ends);
    if (hpc_failures() == before) return status; /* failures are muted, so none was recorded */
    last_timeout.group = group;
    last_timeout.serial = group->serial;
    last_timeout.failures = hpc_failures();
    last_timeout.wait = *wait;
    return status;
}

/* Asks the other ranks. The answers may take at most as long as the wait has lasted, so a wait that looks often is not
 * delayed for long. */
static int ask(hpc_group *group, hpc_inquiry *q) {
    q->most = q->waited < HPC_FOLLOW_SECONDS ? q->waited : HPC_FOLLOW_SECONDS;
    int others = 0;
    for (int i = 0; i < q->n; i++) others |= q->waiting_for[i] != group->rank;
    if (group->follow == NULL || !others) return 0;
    group->follow(group->follow_arg, q);
    return 1;
}

/* Records the culprits. op must be the wait's own, even if others see the call by another name, because a later success
 * of a wait in op removes the culprits. */
static void blame(hpc_group *group, const char *op, const hpc_inquiry *q) {
    hpc_blame_wait(&group->blame, op, atomic_load_explicit(&group->watch.step, memory_order_relaxed), q->culprits,
                   q->n_culprits);
}

static int is_to_follow(const hpc_group *group, double timeout) {
    int muted = hpc_mute_errors(1);
    hpc_mute_errors(muted);
    return !muted && !hpc_waits_in_slices(group, timeout);
}

int hpc_overdue_fail(hpc_group *group, const hpc_wait *wait, double timeout) {
    int *waiting = malloc((size_t)group->size * sizeof *waiting);
    int n = waiting == NULL ? 0 : wait->waiting_for(wait->arg, waiting);
    hpc_inquiry q = {.doing = hpc_doing_of(wait->op, wait->every), .waiting_for = waiting, .n = n, .waited = timeout};
    if (is_to_follow(group, timeout) && ask(group, &q)) blame(group, wait->op, &q);
    int status = record_timeout(group, wait, waiting, n, timeout, &q);
    free(waiting);
    return status;
}

int hpc_group_fail_timeout(hpc_group *group, const char *op, const int *ranks, int n, double waited, const char *format,
                           ...) {
    char sentence[800], ends[200];
    hpc_inquiry q = {.doing = hpc_doing_of(op, 0), .waiting_for = ranks, .n = n, .waited = waited};
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    if (is_to_follow(group, waited) && ask(group, &q)) blame(group, op, &q);
    hpc_fault f = {.waiting_for = ranks, .n_waiting = n, .culprits = q.culprits, .n_culprits = q.n_culprits};
    hpc_culprits_text(q.culprits, q.n_culprits, ends, sizeof ends);
    return hpc_fail_fault(HPC_ERR_TIMEOUT, q.doing.op, &f, "rank %d: %s: %s%s%s", group->rank, q.doing.op, sentence,
                          ends[0] == 0 ? "" : ": ", ends);
}

int hpc_follow_timeout(double waited) {
    const hpc_error *e = hpc_last_error();
    if (e->status != HPC_ERR_TIMEOUT || last_timeout.failures != hpc_failures() ||
        !is_entered(last_timeout.group, last_timeout.serial))
        return e->status;
    hpc_group *group = last_timeout.group;
    int n = e->n_waiting, *waiting = malloc(((size_t)n + 1) * sizeof *waiting);
    if (waiting == NULL) return HPC_ERR_TIMEOUT;
    memcpy(waiting, e->waiting_for, (size_t)n * sizeof *waiting);
    const hpc_wait wait = last_timeout.wait;
    hpc_inquiry q = {
        .doing = hpc_doing_of(wait.op, wait.every), .waiting_for = waiting, .n = n, .waited = waited > 0 ? waited : 0};
    if (ask(group, &q)) blame(group, wait.op, &q);
    int status = record_timeout(group, &wait, waiting, n, waited, &q);
    free(waiting);
    return status;
}

/* ---- looks ---- */

/* The findings of earlier looks of this thread's wait. Slices of one wait have the same start, which the group's watch
 * keeps. */
static _Thread_local struct {
    double since, due;
    double last;         /* when the last look was; 0: none yet */
    int stopped, circle; /* whether the last look found a stopped rank, or a circle */
    uint64_t moved;      /* hpc_inquiry.moved of that look */
    double held, warns;  /* seconds. held: how long a rank had held up the wait at that look; warns: length of the wait
                            at which the next warning is due */
} looks;

static _Thread_local int gave_up;

double hpc_overdue_due(const hpc_group *group, double since) {
    if (group->follow == NULL || group->look_after == 0) return INFINITY;
    if (looks.since != since) {
        memset(&looks, 0, sizeof looks);
        looks.since = since;
        looks.due = since + group->look_after / 10;
    }
    return looks.due;
}

void hpc_overdue_begin(void) {
    gave_up = 0;
}

void hpc_overdue_told(void) {
    gave_up = 1;
    hpc_error_set_detail(HPC_DETAIL_HELD_UP);
}

int hpc_slice_is_over(int status) {
    return status == HPC_ERR_TIMEOUT && !gave_up;
}

/* Keeps only culprits in this state; returns how many remain. */
static int keep_those(hpc_inquiry *q, hpc_culprit_state state) {
    int n = 0;
    for (int i = 0; i < q->n_culprits; i++)
        if (q->culprits[i].state == (int)state) q->culprits[n++] = q->culprits[i];
    return q->n_culprits = n;
}

/* Returns whether all culprits are in a circle, and each of their waits has lasted for `seconds`. */
static int is_closed(const hpc_inquiry *q, double seconds) {
    int n = 0;
    for (int i = 0; i < q->n_culprits; i++)
        n += q->culprits[i].state == HPC_CULPRIT_CIRCLE && q->culprits[i].seconds >= seconds;
    return n > 0 && n == q->n_culprits;
}

/* Keeps the culprits that have computed or been silent for `least` seconds; returns the longest of their times, or
 * 0. */
static double held_for(hpc_inquiry *q, double least) {
    double held = 0;
    int n = 0;
    for (int i = 0; i < q->n_culprits; i++) {
        const hpc_culprit *c = &q->culprits[i];
        if ((c->state != HPC_CULPRIT_COMPUTING && c->state != HPC_CULPRIT_SILENT) || c->seconds < least) continue;
        if (c->seconds > held) held = c->seconds;
        q->culprits[n++] = *c;
    }
    q->n_culprits = n;
    return held;
}

/* Returns whether a lower rank waits as well, and will warn instead of this one. */
static int leaves_it_to_others(hpc_group *group, const hpc_inquiry *of) {
    int *lower = malloc(((size_t)group->rank + 1) * sizeof *lower);
    hpc_inquiry q = {.asks = HPC_ASK_WHO_WAITS, .doing = of->doing, .waiting_for = lower, .waited = of->waited / 2};
    for (int r = 0; r < group->rank && lower != NULL; r++)
        if (!hpc_group_has_departed(group, r)) lower[q.n++] = r;
    if (q.n > 0) ask(group, &q);
    free(lower);
    return q.n_culprits > 0;
}

/* Warns about a wait. limit: seconds that the wait may last; 0: unknown. */
static void warn(hpc_group *group, const hpc_inquiry *q, double limit) {
    char whom[128], ends[300], until[48] = "", sentence[600];
    if (limit > 0) snprintf(until, sizeof until, " (until %.0f s)", limit);
    snprintf(sentence, sizeof sentence, "rank %d: %s has waited %.0f s for rank%s %s and keeps waiting%s: %s%s%s",
             group->rank, q->doing.op, q->waited, q->n == 1 ? "" : "s",
             hpc_ranks_text(q->waiting_for, q->n, whom, sizeof whom), until, q->way, q->way[0] == 0 ? "" : "; ",
             hpc_culprits_text(q->culprits, q->n_culprits, ends, sizeof ends));
    if (group->warn != NULL)
        group->warn(group->warn_arg, sentence);
    else
        hpc_group_note(group, HPC_NOTE_HELD_UP, "%s", sentence);
}

/* Warns after look_after seconds, and again each time that the wait's length has doubled. */
static void warn_if_due(hpc_group *group, hpc_inquiry *q, double period, double limit) {
    double held = held_for(q, group->look_after / 2);
    if (held < looks.held || looks.warns == 0) looks.warns = group->look_after; /* another computation has begun */
    looks.held = held;
    if (held + period / 2 < looks.warns) return;
    while (held + period / 2 >= looks.warns) looks.warns *= 2;
    if (!leaves_it_to_others(group, q)) warn(group, q, limit);
}

static int give_up(hpc_group *group, const hpc_wait *wait, const hpc_inquiry *q) {
    blame(group, wait->op, q);
    int status = record_timeout(group, wait, q->waiting_for, q->n, q->waited, q);
    last_timeout.group = NULL; /* its culprits are known, so hpc_follow_timeout need not ask */
    hpc_overdue_told();
    return status;
}

/* Returns the seconds until the next look of a wait that has lasted for `waited`. With a period of 10 s it looks after
 * 3, 6, 10, 20 and 30 s. */
static double rest_of(double waited, double period) {
    const double rest = waited < period / 2 ? waited : period - waited;
    return rest < period / 10 ? period : rest;
}

int hpc_overdue_look(hpc_group *group, const hpc_wait *wait, double since, double timeout) {
    const double period = group->look_after / 3, soon = period / 10, now = hpc_now();
    int *waiting = malloc((size_t)group->size * sizeof *waiting), status = HPC_IN_PROGRESS;
    hpc_inquiry q = {.doing = hpc_doing_of(wait->op, wait->every), .waiting_for = waiting, .waited = now - since};
    q.n = waiting == NULL ? 0 : wait->waiting_for(wait->arg, waiting);
    ask(group, &q);
    const int circle = is_closed(&q, 0);
    const int stands = looks.circle && is_closed(&q, now - looks.last) && q.moved == looks.moved;
    looks.last = hpc_now();
    looks.circle = circle;
    looks.moved = q.moved;
    hpc_inquiry stopped = q;
    const int n_stopped = keep_those(&stopped, HPC_CULPRIT_STOPPED),
              stays = n_stopped > 0 && looks.stopped && q.waited >= period;
    looks.stopped = n_stopped > 0;
    looks.due = looks.last + (circle ? period : rest_of(q.waited, period));
    if (n_stopped > 0) looks.due = fmax(looks.last + soon, since + period - soon);
    if (stays || stands)
        status = wait->ready(wait->arg) ? HPC_OK : give_up(group, wait, stays ? &stopped : &q);
    else
        warn_if_due(group, &q, period, hpc_waits_in_slices(group, timeout) ? slices_limit : timeout);
    free(waiting);
    return status;
}
