#define _GNU_SOURCE
#include "wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

double hpc_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A timeout as it counts: a negative one or a NaN is the default, and no wait is longer than what time_t surely holds.
 */
static double limit_of(const hpc_group *group, double timeout) {
    if (!(timeout >= 0)) timeout = group->timeout;
    return timeout < 1e9 ? timeout : 1e9;
}

double hpc_deadline(const hpc_group *group, double timeout) {
    return hpc_now() + limit_of(group, timeout);
}

double hpc_left(double deadline) {
    double left = deadline - hpc_now();
    return left > 0 ? left : 0;
}

void hpc_bell_wake(hpc_bell *bell) {
    atomic_fetch_add_explicit(&bell->rings, 1, memory_order_release);
    /* Not FUTEX_PRIVATE: the sleeper is in another process. */
    syscall(SYS_futex, &bell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    int alarm = atomic_load_explicit(&bell->alarm, memory_order_acquire);             /* the descriptor is there */
    if (alarm != 0 && write(alarm - 1, &(uint64_t){1}, sizeof(uint64_t)) < 0) return; /* full: it rings all the same */
}

int hpc_group_usable(const hpc_group *group, const char *op) {
    if (!hpc_group_is_mine(group))
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: this context belongs to the process that forked this one; call init here", op);
    if (atomic_load_explicit(&group->closed, memory_order_relaxed))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: the context is closed", op);
    return HPC_OK;
}

void hpc_group_note(hpc_group *group, const char *format, ...) {
    va_list values;
    while (atomic_exchange_explicit(&group->noting, 1, memory_order_acquire)) sched_yield();
    int n = atomic_load_explicit(&group->noted, memory_order_relaxed);
    if (n < HPC_NOTES) {
        va_start(values, format);
        vsnprintf(group->notes[n], HPC_NOTE_BYTES, format, values);
        va_end(values);
        atomic_store_explicit(&group->noted, n + 1, memory_order_release);
    }
    atomic_store_explicit(&group->noting, 0, memory_order_release);
}

const char *hpc_group_note_at(const hpc_group *group, int i) {
    return i >= 0 && i < atomic_load_explicit(&group->noted, memory_order_acquire) ? group->notes[i] : NULL;
}

int hpc_group_others(const hpc_group *group, int *ranks) {
    int n = 0;
    for (int r = 0; r < group->size; r++) /* in a world of one it is another thread of this rank */
        if ((r != group->rank || group->size == 1) &&
            atomic_load_explicit(&group->states[r], memory_order_acquire) == HPC_PEER_ALIVE)
            ranks[n++] = r;
    return n;
}

void hpc_group_depart(hpc_group *group, int rank, int state, const char *reason) {
    if (atomic_exchange_explicit(&group->departing[rank], 1, memory_order_relaxed))
        return; /* one writer of the reason */
    snprintf(group->reasons[rank], HPC_REASON_BYTES, "%s", reason);
    atomic_store_explicit(&group->states[rank], state, memory_order_release); /* the reason before the state */
    atomic_fetch_add_explicit(&group->departures, 1, memory_order_release);   /* the state before the count */
    hpc_bell_ring(group->bell);
}

const char *hpc_ranks_text(const int *ranks, int n, char *text, size_t cap) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < n && used < cap - 1; i++) {
        const char *before = i == 0 ? "" : i == n - 1 ? " and " : ", ";
        if (i >= 32 && n > 33) {
            snprintf(text + used, cap - used, " and %d more", n - i);
            break;
        }
        int wrote = snprintf(text + used, cap - used, "%s%d", before, ranks[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return text;
}

/* Names every rank that is gone by now, not only those that were missed: when one death brings down others, the first
 * one is among them. The reason is that of one that failed, if any did. */
static int fail_peers(const hpc_group *group, const char *op, const int *waiting, int n_waiting) {
    char who[256], whom[256];
    int *gone = calloc((size_t)group->size, sizeof *gone), n = 0, shown = -1, status;
    if (gone == NULL) return hpc_fail(HPC_ERR_PEER, op, "%s: a rank is gone (no memory to say which)", op);
    for (int r = 0; r < group->size; r++) {
        int state = atomic_load_explicit(&group->states[r], memory_order_acquire);
        if (state != HPC_PEER_LEFT && state != HPC_PEER_FAILED) continue;
        gone[n++] = r;
        if (shown < 0 || (state == HPC_PEER_FAILED && atomic_load(&group->states[shown]) == HPC_PEER_LEFT)) shown = r;
    }
    status = hpc_fail_ranks(HPC_ERR_PEER, op, gone, n, waiting, n_waiting, "rank %d: %s: rank%s %s gone (%s)%s%s",
                            group->rank, op, n == 1 ? "" : "s", hpc_ranks_text(gone, n, who, sizeof who),
                            group->reasons[shown], n_waiting == 0 ? "" : " while waiting for ",
                            hpc_ranks_text(waiting, n_waiting, whom, sizeof whom));
    free(gone);
    return status;
}

int hpc_group_has_lost(const hpc_group *group, int rank) {
    int state = atomic_load_explicit(&group->states[rank], memory_order_acquire);
    return state == HPC_PEER_FAILED || (state == HPC_PEER_LEFT && atomic_load(&group->revoked));
}

void hpc_group_revoke(hpc_group *group) {
    atomic_store(&group->revoked, 1);
    hpc_bell_ring(group->bell);
}

int hpc_group_peer_present(const hpc_group *group, int rank, const char *op) {
    int state = atomic_load_explicit(&group->states[rank], memory_order_acquire);
    if (state != HPC_PEER_LEFT && state != HPC_PEER_FAILED) return HPC_OK;
    return fail_peers(group, op, NULL, 0);
}

/* Whether departures end this wait: every rank that is lost does, one that left only if it is waited for. Who has left
 * is looked at first: what a rank sent before that is there then, and it is not waited for. */
static int check_departures(hpc_group *group, const hpc_wait *wait) {
    size_t size = (size_t)group->size;
    int *waiting = malloc(size * (sizeof *waiting + 1)), n_waiting, ended = 0, status;
    if (waiting == NULL)
        return hpc_fail(HPC_ERR_PEER, wait->op, "%s: a rank is gone (no memory to say which)", wait->op);
    char *left = (char *)(waiting + size), any = 0;
    for (int r = 0; r < group->size; r++) {
        left[r] = atomic_load_explicit(&group->states[r], memory_order_acquire) == HPC_PEER_LEFT;
        any |= left[r];
        if (hpc_group_has_lost(group, r)) ended = 1;
    }
    n_waiting = wait->waiting_for(wait->arg, waiting);
    if (n_waiting == 0 && any) ended = 1;
    for (int i = 0; i < n_waiting; i++)
        if (left[waiting[i]]) ended = 1;
    status = ended ? fail_peers(group, wait->op, waiting, n_waiting) : HPC_OK;
    free(waiting);
    return status;
}

static int fail_timeout(hpc_group *group, const hpc_wait *wait, double timeout) {
    int *waiting = malloc((size_t)group->size * sizeof *waiting);
    int n = waiting == NULL ? 0 : wait->waiting_for(wait->arg, waiting), status;
    char whom[256];
    status = hpc_fail_ranks(HPC_ERR_TIMEOUT, wait->op, NULL, 0, waiting, n,
                            "rank %d: %s: nothing came from rank%s %s in %.3g s", group->rank, wait->op,
                            n == 1 ? "" : "s", hpc_ranks_text(waiting, n, whom, sizeof whom), timeout);
    free(waiting);
    return status;
}

/* With all that has come taken, as far as a second is enough: others may send without end. A condition that held is not
 * asked again: it may have taken an event. */
static int holds_now(hpc_group *group, const hpc_wait *wait, double deadline) {
    double until = hpc_now() + 1;
    if (until > deadline) until = deadline;
    for (;;) {
        int left = hpc_group_progress(group) & HPC_LEFT;
        if (wait->ready(wait->arg)) return 1;
        if (!left || hpc_now() >= until) return 0;
        sched_yield();
    }
}

/* The slow checks of a wait, in the order in which they may end it; HPC_IN_PROGRESS to go on. */
static int look_around(hpc_group *group, const hpc_wait *wait, double deadline) {
    int status;
    if (!atomic_load_explicit(&group->closed, memory_order_acquire) &&
        atomic_load_explicit(&group->departures, memory_order_acquire) == 0)
        return HPC_IN_PROGRESS;
    if (holds_now(group, wait, deadline)) return HPC_OK;
    status = hpc_group_usable(group, wait->op);
    if (status == HPC_OK) status = check_departures(group, wait);
    if (status == HPC_OK) return HPC_IN_PROGRESS;
    /* What a rank did before it went is visible once its departure is, and both may have come since the look at the
     * condition: look again, after the departure. */
    return holds_now(group, wait, deadline) ? HPC_OK : status;
}

/* Sleeps unless the wait has ended meanwhile; HPC_IN_PROGRESS to go on. */
static int sleep_on_bell(hpc_group *group, const hpc_wait *wait, double seconds, double deadline) {
    hpc_bell *bell = group->bell;
    struct timespec t;
    uint32_t rings;
    int status = HPC_IN_PROGRESS;
    atomic_fetch_add(&bell->sleepers, 1);
    int in_bed = group->bed != NULL && group->bed->claim(group->bed_arg);
#if !defined(__SANITIZE_THREAD__)
    atomic_thread_fence(memory_order_seq_cst); /* see hpc_bell_ring */
#endif
    rings = atomic_load_explicit(&bell->rings, memory_order_acquire);
    /* What a transport holds back is part of the condition: its sender rang before we counted as a sleeper, or will
     * now. */
    int held = hpc_group_progress(group);
    if (held == 0) status = wait->ready(wait->arg) ? HPC_OK : look_around(group, wait, deadline);
    if (held == 0 && status == HPC_IN_PROGRESS && in_bed) {
        group->bed->sleep(group->bed_arg, seconds);
        group->bed->leave(group->bed_arg);
        return status;
    }
    if (held == 0 && status == HPC_IN_PROGRESS) {
        t.tv_sec = (time_t)seconds;
        t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
        syscall(SYS_futex, &bell->rings, FUTEX_WAIT, rings, &t, NULL, 0);
    }
    atomic_fetch_sub(&bell->sleepers, 1);
    if (in_bed) group->bed->leave(group->bed_arg);
    return status;
}

/* For what rings no bell. */
static void doze(void) {
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* ---- what others see of a wait ---- */

enum { SEEN_RANKS = HPC_WATCHED_RANKS };
_Static_assert((int)SEEN_RANKS >= (int)HPC_SPAN_RANKS, "a span tells of ranks that were kept");

static const double LONG_SECONDS = 1e-3;    /* a wait of so long is shown, and looked at again as often */
static const double TRACED_SECONDS = 10e-6; /* the same where there is a timeline: at first, */
static const double RETRACED_SECONDS = 100e-6;

/* A wait that lasts: for whom it waited when it looked last, which is the thread's own to find out. */
typedef struct seen {
    double start, due;
    int place, n; /* in the group's watch; how many ranks */
    int ranks[SEEN_RANKS];
} seen;

static seen begin_to_show(const hpc_group *group, double start) {
    return (seen){.start = start, .due = start + (group->timeline ? TRACED_SECONDS : LONG_SECONDS), .place = -1};
}

/* A rank that waits for its own cores alone works, or is a core that has nothing to do. */
static void show(hpc_group *group, const hpc_wait *wait, seen *s, double now) {
    int few[64], *ranks = group->size <= 64 ? few : malloc((size_t)group->size * sizeof *ranks);
    s->due = now + (group->timeline ? RETRACED_SECONDS : LONG_SECONDS);
    if (ranks == NULL) return;
    int n = wait->waiting_for(wait->arg, ranks);
    if (n > 1 || (n == 1 && ranks[0] != group->rank)) {
        s->n = n;
        memcpy(s->ranks, ranks, (size_t)(n < SEEN_RANKS ? n : SEEN_RANKS) * sizeof *ranks);
        s->place = hpc_watch_wait(&group->watch, s->place, wait->op, s->start, s->ranks, n);
    }
    if (ranks != few) free(ranks);
    if (group->timeline != NULL) hpc_timeline_rest(group->timeline, now);
}

static void end_show(hpc_group *group, const hpc_wait *wait, const seen *s, int status) {
    if (s->n == 0) return;
    double now = hpc_now();
    hpc_watch_end(&group->watch, s->place, status == HPC_ERR_TIMEOUT, now);
    if (group->timeline == NULL) return;
    const hpc_span span = {group->timeline, s->start, wait->op, NULL, HPC_SPAN_WAIT, s->n, s->ranks, 0, 0};
    hpc_timeline_record(&span, now);
}

/* ---- the wait ---- */

static int wait_on(hpc_group *group, const hpc_wait *wait, double timeout, seen *seen) {
    enum { SPINS_PER_CLOCK = 64 };
    double start = seen->start, now = start, deadline = start + timeout;
    int held = 0, status;

    for (;;) {
        held = hpc_group_progress(group);
        if (now - start < group->spin) {
            for (int i = 0; i < SPINS_PER_CLOCK; i++) {
                if (wait->ready(wait->arg)) return HPC_OK;
                if (group->bed != NULL)
                    held = hpc_group_progress(group); /* what is waited for comes by it */
                else
                    hpc_cpu_relax();
            }
        }
        if (wait->ready(wait->arg)) return HPC_OK;
        status = look_around(group, wait, deadline);
        if (status != HPC_IN_PROGRESS) return status;
        now = hpc_now();
        if (now >= deadline) return wait->ready(wait->arg) ? HPC_OK : fail_timeout(group, wait, timeout);
        if (now >= seen->due) show(group, wait, seen, now);
        if (now - start < group->spin) continue;
        if ((held & HPC_LEFT) || now - start < group->spin + group->yield)
            sched_yield();
        else if (held != 0)
            doze();
        else {
            show(group, wait, seen, now); /* it may sleep for long */
            if ((status = sleep_on_bell(group, wait, deadline - now, deadline)) != HPC_IN_PROGRESS) return status;
        }
    }
}

int hpc_wait_for(hpc_group *group, const hpc_wait *wait, double timeout) {
    enum { GLANCES = 16 };
    for (int i = 0; i < GLANCES; i++)
        if (wait->ready(wait->arg)) return HPC_OK;
    seen seen = begin_to_show(group, group->timeline != NULL ? hpc_timeline_enter(group->timeline) : hpc_now());
    int status = wait_on(group, wait, limit_of(group, timeout), &seen);
    end_show(group, wait, &seen, status);
    return status;
}
