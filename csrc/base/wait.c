#define _GNU_SOURCE
#include "base/wait.h"

#include "base/calls.h"
#include "base/crowd.h"
#include "base/overdue.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Returns the timeout to use, at most 1e9 s, which time_t can hold; the default if timeout is negative or NaN. */
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
    /* Not FUTEX_PRIVATE, because the sleeper is in another process. */
    syscall(SYS_futex, &bell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    hpc_calls_count(HPC_CALL_FUTEX);
    int alarm = atomic_load_explicit(&bell->alarm, memory_order_acquire); /* the descriptor exists since then */
    if (alarm != 0) hpc_calls_count(HPC_CALL_ALARM);
    if (alarm != 0 && write(alarm - 1, &(uint64_t){1}, sizeof(uint64_t)) < 0) return; /* full: it wakes without this */
}

int hpc_group_check_rank(const hpc_group *group, int rank, const char *what, const char *op) {
    if (rank >= 0 && rank < group->size) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: %s %d is out of range; ranks are 0 to %d", op, what, rank,
                    group->size - 1);
}

int hpc_group_usable(const hpc_group *group, const char *op) {
    if (!hpc_group_is_mine(group))
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: this context belongs to the process that forked this one; call init here", op);
    if (atomic_load_explicit(&group->closed, memory_order_relaxed))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: the context is closed", op);
    return HPC_OK;
}

int hpc_group_others(const hpc_group *group, int *ranks) {
    int n = 0;
    for (int r = 0; r < group->size; r++) /* lists this rank too if it is alone: another thread of it may send */
        if ((r != group->rank || group->size == 1) &&
            atomic_load_explicit(&group->states[r], memory_order_acquire) == HPC_PEER_ALIVE)
            ranks[n++] = r;
    return n;
}

hpc_group *hpc_group_calm(const hpc_group *group) {
    hpc_group *calm = calloc(1, sizeof *calm);
    if (calm == NULL) return NULL;
    calm->rank = group->rank;
    calm->size = group->size;
    calm->timeout = group->timeout;
    calm->look_after = group->look_after;
    calm->warn = group->warn;
    calm->warn_arg = group->warn_arg;
    calm->spin = group->spin;
    calm->yield = group->yield;
    calm->eases = group->eases;
    calm->bell = group->bell;
    calm->owner = group->owner;
    return calm;
}

/* ---- who is to blame ---- */

static int state_of(const hpc_group *group, int rank) {
    return atomic_load_explicit(&group->states[rank], memory_order_acquire);
}

/* Returns whether rank departed to this state, and not because of others. */
static int went_by_itself(const hpc_group *group, int rank, int state) {
    return state_of(group, rank) == state && !hpc_group_left_because(group, rank);
}

static int add_blamed(hpc_blamed *list, int n, const hpc_blamed *blamed) {
    int at = 0;
    while (at < n && list[at].culprit.rank < blamed->culprit.rank) at++;
    if (at == HPC_BLAMED || (at < n && list[at].culprit.rank == blamed->culprit.rank)) return n;
    if (n == HPC_BLAMED) n--;
    memmove(list + at + 1, list + at, (size_t)(n - at) * sizeof *list);
    list[at] = *blamed;
    return n + 1;
}

int hpc_group_blamed(hpc_group *group, int by_wait, hpc_blamed *blamed) {
    hpc_blamed told[HPC_BLAMED];
    int n = 0, n_told = hpc_blame_read(&group->blame, by_wait, told), gone = atomic_load(&group->departures);
    for (int r = 0; r < group->size && gone != 0; r++) {
        if (!went_by_itself(group, r, HPC_PEER_FAILED)) continue;
        hpc_blamed died = {.culprit = {.rank = r, .state = HPC_CULPRIT_DIED}};
        snprintf(died.why, sizeof died.why, "%s", group->reasons[r]);
        n = add_blamed(blamed, n, &died);
    }
    for (int i = 0; i < n_told; i++) n = add_blamed(blamed, n, &told[i]);
    return n;
}

void hpc_group_last_word(hpc_group *group, const char *why, hpc_last_word *word) {
    hpc_blamed blamed[HPC_BLAMED];
    int n = hpc_group_blamed(group, 1, blamed);
    memset(word, 0, sizeof *word);
    for (int i = 0; i < n && i < HPC_SHOWN_CULPRITS; i++) word->culprits[word->n_culprits++] = blamed[i].culprit;
    snprintf(word->why, sizeof word->why, "%s", n > 0 ? blamed[0].why : why == NULL ? "" : why);
}

static void depart(hpc_group *group, int rank, int state, const char *reason, hpc_departing how) {
    char nobody = 0; /* only the first thread writes the reason */
    if (!atomic_compare_exchange_strong(&group->departing[rank], &nobody, (char)how)) return;
    snprintf(group->reasons[rank], HPC_REASON_BYTES, "%s", reason);
    atomic_store_explicit(&group->states[rank], state, memory_order_release); /* release: the reason before the state */
    atomic_fetch_add_explicit(&group->departures, 1, memory_order_release);   /* release: the state before the count */
    hpc_bell_ring(group->bell);
}

void hpc_group_depart(hpc_group *group, int rank, int state, const char *reason) {
    depart(group, rank, state, reason, HPC_GOES_BY_ITSELF);
}

static const char just_left[] = "it left"; /* the reason of a rank that gave none */

void hpc_group_depart_saying(hpc_group *group, int rank, int state, const hpc_last_word *word) {
    char reason[HPC_REASON_BYTES], who[HPC_REASON_BYTES / 2];
    hpc_last_word w = *word;
    int ranks[HPC_SHOWN_CULPRITS];
    w.why[sizeof w.why - 1] = 0;
    int n = hpc_culprits_check(w.culprits, w.n_culprits > HPC_SHOWN_CULPRITS ? HPC_SHOWN_CULPRITS : (int)w.n_culprits,
                               HPC_SHOWN_CULPRITS, group->size);
    for (int i = 0; i < n; i++) ranks[i] = w.culprits[i].rank;
    if (n > 0)
        snprintf(reason, sizeof reason, "it left because of rank%s %s", n == 1 ? "" : "s",
                 hpc_ranks_text(ranks, n, who, sizeof who));
    else
        snprintf(reason, sizeof reason, "%s", w.why[0] != 0 ? w.why : just_left);
    hpc_blame_tell(&group->blame, word, group->size); /* first the culprits, then the state */
    depart(group, rank, state, reason, n > 0 ? HPC_GOES_BECAUSE : HPC_GOES_BY_ITSELF);
}

/* A sentence made of parts, which "; " separates. */
typedef struct sentence {
    char *text;
    size_t used, cap;
} sentence;

static void add_part(sentence *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_part(sentence *s, const char *format, ...) {
    va_list args;
    if (s->used > 0 && s->used + 2 < s->cap) s->used += (size_t)snprintf(s->text + s->used, s->cap - s->used, "; ");
    va_start(args, format);
    int wrote = vsnprintf(s->text + s->used, s->cap - s->used, format, args);
    va_end(args);
    s->used += wrote < 0 ? 0 : (size_t)wrote;
    if (s->used >= s->cap) s->used = s->cap - 1;
}

static const hpc_blamed *find_told(const hpc_blamed *told, int n_told, int rank) {
    for (int i = 0; i < n_told; i++)
        if (told[i].culprit.rank == rank) return &told[i];
    return NULL;
}

/* Returns why a rank is gone, or "" if it left without a reason; NULL if it is alive as far as this rank knows. */
static const char *why_gone(const hpc_group *group, int rank, const hpc_blamed *told) {
    if (hpc_group_has_departed(group, rank) && (told == NULL || !hpc_group_left_because(group, rank)))
        return strcmp(group->reasons[rank], just_left) == 0 ? "" : group->reasons[rank];
    if (told != NULL && told->culprit.state == HPC_CULPRIT_DIED) return told->why[0] != 0 ? told->why : "it died";
    return NULL;
}

/* Lists the ranks whose mark is by. */
static int list_marked(const char *marks, int size, char by, int *ranks) {
    int n = 0;
    for (int r = 0; r < size; r++)
        if (marks[r] == by) ranks[n++] = r;
    return n;
}

static int same_ranks(const int *a, int n_a, const int *b, int n_b) {
    return n_a == n_b && (n_a == 0 || memcmp(a, b, (size_t)n_a * sizeof *a) == 0);
}

/* Writes a sentence such as "ranks 1 and 3 have ended; rank 2 failed (its process died); ranks 4 and 5 left because of
 * them; rank 0 still waits for rank 2". */
static void tell_peers(const hpc_group *group, const hpc_fault *f, const hpc_blamed *told, int n_told, char *text,
                       size_t cap) {
    enum { MOST = 6 };
    sentence s = {text, 0, cap};
    char who[256];
    hpc_culprit there[HPC_BLAMED];
    int n_there = 0, n_failed = 0, n_ended = 0, *ended = malloc(((size_t)f->n_ranks + 1) * sizeof *ended);
    text[0] = 0;
    for (int i = 0; i < f->n_ranks; i++) {
        const hpc_blamed *b = find_told(told, n_told, f->ranks[i]);
        const char *why = why_gone(group, f->ranks[i], b);
        if (why == NULL && n_there < HPC_BLAMED) there[n_there++] = b->culprit;
        if (why != NULL && why[0] == 0 && ended != NULL) ended[n_ended++] = f->ranks[i];
        if (why == NULL || why[0] == 0) continue;
        if (n_failed++ < MOST) add_part(&s, "rank %d failed (%s)", f->ranks[i], why);
    }
    if (n_failed > MOST) add_part(&s, "%d more failed", n_failed - MOST);
    if (n_ended > 0)
        add_part(&s, "rank%s %s %s ended", n_ended == 1 ? "" : "s", hpc_ranks_text(ended, n_ended, who, sizeof who),
                 n_ended == 1 ? "has" : "have");
    if (n_there > 0) {
        char state[400];
        add_part(&s, "%s", hpc_culprits_text(there, n_there, state, sizeof state));
    }
    if (f->n_left > 0)
        add_part(&s, "rank%s %s left because of %s", f->n_left == 1 ? "" : "s",
                 hpc_ranks_text(f->left, f->n_left, who, sizeof who),
                 hpc_culprits_are_circle(there, n_there) ? "this"
                 : f->n_ranks == 1                       ? "it"
                                                         : "them");
    if (f->n_waiting > 0 && f->n_left == 0 && same_ranks(f->ranks, f->n_ranks, f->waiting_for, f->n_waiting))
        add_part(&s, "rank %d still waits for %s", group->rank, f->n_ranks == 1 ? "it" : "them");
    else if (f->n_waiting > 0)
        add_part(&s, "rank %d still waits for rank%s %s", group->rank, f->n_waiting == 1 ? "" : "s",
                 hpc_ranks_text(f->waiting_for, f->n_waiting, who, sizeof who));
    free(ended);
}

/* Records the culprits that this rank will blame if it leaves because of this failure. */
static void remember(hpc_group *group, const char *op, const hpc_culprit *culprits, int n) {
    hpc_blame_wait(&group->blame, op, atomic_load_explicit(&group->watch.step, memory_order_relaxed), culprits, n);
}

/* Records ranks that left by themselves while this rank still waited for them; if this rank leaves because of this
 * failure, it names them as culprits. Failed ranks need no record, since their state is known. */
static void remember_left(hpc_group *group, const char *op, const int *ranks, int n) {
    hpc_culprit left[HPC_BLAMED];
    int n_left = 0;
    for (int i = 0; i < n && n_left < HPC_BLAMED; i++)
        if (state_of(group, ranks[i]) != HPC_PEER_FAILED)
            left[n_left++] = (hpc_culprit){.rank = ranks[i], .state = HPC_CULPRIT_LEFT};
    if (n_left > 0) remember(group, op, left, n_left);
}

/* Fails because other ranks have found a deadlock and left because of it; no rank has failed. */
static int fail_circle(hpc_group *group, const char *op, const hpc_fault *f, const hpc_culprit *culprits, int n,
                       const char *text) {
    const hpc_fault timeout = {
        .waiting_for = f->waiting_for, .n_waiting = f->n_waiting, .culprits = culprits, .n_culprits = n};
    int status = hpc_fail_fault(HPC_ERR_TIMEOUT, op, &timeout, "rank %d: %s: %s", group->rank, op, text);
    hpc_overdue_told();
    return status;
}

/* Finds the ranks that failed by themselves, and the ranks that left because of these. A rank that left by itself
 * counts as failed if it is in the list asked, or if no other rank is to blame. In a wait (n_waiting is not 0) a
 * deadlock that others have found is HPC_ERR_TIMEOUT. */
static int fail_peers(hpc_group *group, const char *op, const int *asked, int n_asked, const int *waiting,
                      int n_waiting) {
    enum { NONE, CULPRIT, LEFT };
    size_t size = (size_t)group->size;
    hpc_blamed told[HPC_BLAMED];
    hpc_culprit culprits[HPC_BLAMED];
    const char *name = hpc_doing_of(op, 0).op;
    char text[1000];
    int n_told = hpc_blame_read(&group->blame, 0, told), any = 0, status;
    int *ranks = malloc(2 * size * sizeof *ranks);
    char *marks = calloc(size, 1);
    if (ranks == NULL || marks == NULL) {
        free(ranks);
        free(marks);
        return hpc_fail(HPC_ERR_PEER, name, "%s: a rank is gone (no memory to say which)", name);
    }
    for (int r = 0; r < group->size; r++) {
        if (went_by_itself(group, r, HPC_PEER_FAILED)) marks[r] = CULPRIT;
        if (hpc_group_has_departed(group, r) && hpc_group_left_because(group, r)) marks[r] = LEFT;
    }
    for (int i = 0; i < n_told; i++) marks[told[i].culprit.rank] = CULPRIT;
    for (int i = 0; i < n_asked; i++)
        if (went_by_itself(group, asked[i], HPC_PEER_LEFT)) marks[asked[i]] = CULPRIT;
    for (int r = 0; r < group->size; r++) any |= marks[r] == CULPRIT;
    for (int r = 0; r < group->size && !any; r++)
        if (hpc_group_has_departed(group, r)) marks[r] = CULPRIT;
    hpc_fault f = {.ranks = ranks, .left = ranks + size, .waiting_for = waiting, .n_waiting = n_waiting};
    f.n_ranks = list_marked(marks, group->size, CULPRIT, ranks);
    f.n_left = list_marked(marks, group->size, LEFT, ranks + size);
    tell_peers(group, &f, told, n_told, text, sizeof text);
    for (int i = 0; i < n_told; i++) culprits[i] = told[i].culprit;
    if (n_waiting > 0 && f.n_ranks == n_told && hpc_culprits_are_circle(culprits, n_told)) {
        status = fail_circle(group, name, &f, culprits, n_told, text);
    } else {
        remember_left(group, op, ranks, f.n_ranks);
        status = hpc_fail_fault(HPC_ERR_PEER, name, &f, "rank %d: %s: %s", group->rank, name, text);
    }
    free(ranks);
    free(marks);
    return status;
}

int hpc_group_fail_closed(hpc_group *group, const char *op, const int *closed, int n, const char *format, ...) {
    char sentence[512], text[400];
    hpc_blamed blamed[HPC_BLAMED];
    const char *name = hpc_doing_of(op, 0).op;
    hpc_inquiry q = {.doing = hpc_doing_of(op, 0),
                     .waiting_for = closed,
                     .n = n,
                     .asks = HPC_ASK_CAUSES,
                     .most = HPC_FOLLOW_SECONDS};
    int ranks[HPC_BLAMED], n_ranks, n_left = 0, *left = malloc(((size_t)n + 1) * sizeof *left);
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    q.n_culprits = hpc_group_blamed(group, 0, blamed);
    for (int i = 0; i < q.n_culprits; i++) q.culprits[i] = blamed[i].culprit;
    if (q.n_culprits == 0 && group->follow != NULL) {
        group->follow(group->follow_arg, &q);
        if (q.n_culprits > 0) remember(group, op, q.culprits, q.n_culprits); /* to answer ranks that ask */
    }
    for (n_ranks = 0; n_ranks < q.n_culprits; n_ranks++) ranks[n_ranks] = q.culprits[n_ranks].rank;
    for (int i = 0; i < n && left != NULL; i++) {
        int to_blame = 0;
        for (int k = 0; k < n_ranks; k++) to_blame |= ranks[k] == closed[i];
        if (!to_blame) left[n_left++] = closed[i];
    }
    hpc_fault f = {ranks, left, closed, NULL, n_ranks, n_left, n, 0};
    if (n_ranks == 0) f = (hpc_fault){.ranks = closed, .n_ranks = n, .waiting_for = closed, .n_waiting = n};
    if (n_ranks == 0) remember_left(group, op, closed, n);
    hpc_culprits_text(q.culprits, q.n_culprits, text, sizeof text);
    int status;
    if (hpc_culprits_are_circle(q.culprits, q.n_culprits))
        status = fail_circle(group, name, &f, q.culprits, q.n_culprits, text);
    else
        status = hpc_fail_fault(HPC_ERR_PEER, name, &f, "rank %d: %s: %s%s%s", group->rank, name, sentence,
                                n_ranks == 0 ? "" : ", because ", text);
    free(left);
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

int hpc_group_peer_present(hpc_group *group, int rank, const char *op) {
    return hpc_group_has_departed(group, rank) ? fail_peers(group, op, &rank, 1, NULL, 0) : HPC_OK;
}

/* Takes all data that has come, and returns whether the wait's condition then holds. It stops after a second, because
 * others may send without end. After the condition has held, it must not be evaluated again, because it may have taken
 * an event. */
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

/* Checks whether departures end this wait: a lost rank ends it; a rank that left ends it only if the wait waits for
 * that rank. Returns HPC_IN_PROGRESS to continue, HPC_OK if the condition holds. The states are loaded first: then data
 * that a rank sent before it left has arrived, perhaps still in a completion queue, and is taken before the wait counts
 * as ended. */
static int check_departures(hpc_group *group, const hpc_wait *wait, double deadline) {
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
    if (holds_now(group, wait, deadline)) {
        free(waiting);
        return HPC_OK;
    }
    n_waiting = wait->waiting_for(wait->arg, waiting);
    if (n_waiting == 0 && any) ended = 1;
    for (int i = 0; i < n_waiting; i++)
        if (left[waiting[i]]) ended = 1;
    status = ended ? fail_peers(group, wait->op, waiting, n_waiting, waiting, n_waiting) : HPC_IN_PROGRESS;
    free(waiting);
    return status;
}

/* Makes the slow checks of a wait, in the order in which they may end it. Returns HPC_IN_PROGRESS to continue. */
static int look_around(hpc_group *group, const hpc_wait *wait, double deadline) {
    int status;
    if (!atomic_load_explicit(&group->closed, memory_order_acquire) &&
        atomic_load_explicit(&group->departures, memory_order_acquire) == 0)
        return HPC_IN_PROGRESS;
    status = hpc_group_usable(group, wait->op);
    if (status == HPC_OK) status = check_departures(group, wait, deadline);
    if (status == HPC_OK || status == HPC_IN_PROGRESS) return status;
    /* Once a rank's departure is visible, so are its earlier stores. Both may have come after the last look at the
     * condition, so look again, after the departure. */
    return holds_now(group, wait, deadline) ? HPC_OK : status;
}

static uint32_t beside_of(const hpc_group *group) {
    return atomic_load_explicit(&group->beside, memory_order_acquire);
}

/* Works for the other groups of this rank. */
static int help_others(const hpc_group *group, hpc_looker looker) {
    return hpc_beside_count(beside_of(group)) != 0 ? group->company->help(group->company_arg, looker) : 0;
}

/* ---- sleeping ---- */

enum { MOST_BELLS = 128 };                     /* that the kernel lets a thread sleep on at once */
static const double SHORT_SLEEP = 1e-3;        /* if a thread cannot sleep on all bells */
static _Atomic int kernel_lacks_waits_on_many; /* it is older than Linux 5.16, or a filter refuses the call */

static void sleep_on_one(hpc_bell *bell, uint32_t rings, double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    syscall(SYS_futex, &bell->rings, FUTEX_WAIT, rings, &t, NULL, 0);
}

/* The kernel's struct futex_waitv, which older headers lack. */
typedef struct many_waits {
    uint64_t value, address;
    uint32_t flags, reserved;
} many_waits;

/* Sleeps on the bells of several groups; on the first one only, and briefly, if the kernel cannot do that. */
static void sleep_on_all(const hpc_companion *asleep, int n, double seconds) {
    enum { WAITV = 449, IS_32_BITS = 2 };
    many_waits waits[MOST_BELLS];
    if (n == MOST_BELLS || atomic_load_explicit(&kernel_lacks_waits_on_many, memory_order_relaxed)) {
        sleep_on_one(asleep->group->bell, asleep->rings, seconds < SHORT_SLEEP ? seconds : SHORT_SLEEP);
        return;
    }
    for (int i = 0; i < n; i++)
        waits[i] = (many_waits){asleep[i].rings, (uintptr_t)&asleep[i].group->bell->rings, IS_32_BITS, 0};
    const double until = hpc_now() + seconds;
    struct timespec t = {.tv_sec = (time_t)until};
    t.tv_nsec = (long)((until - (double)t.tv_sec) * 1e9);
    if (syscall(WAITV, waits, (unsigned)n, 0, &t, CLOCK_MONOTONIC) < 0 && errno != EAGAIN && errno != ETIMEDOUT &&
        errno != EINTR)
        atomic_store(&kernel_lacks_waits_on_many, 1);
}

/* Counts this thread as a sleeper of a group, or of another one beside which it sleeps. */
static void begin_sleep(hpc_companion *c, int beside) {
    atomic_fetch_add(&c->group->bell->sleepers, 1);
    if (beside && c->group->bed != NULL) c->group->bed->refuse(c->group->bed_arg);
}

static void end_sleep(const hpc_companion *c) {
    atomic_fetch_sub(&c->group->bell->sleepers, 1);
}

/* Sleeps, unless the wait has ended meanwhile. Returns HPC_IN_PROGRESS to continue. *next gets the kind of the next
 * look. */
static int sleep_on_bell(hpc_group *group, const hpc_wait *wait, double seconds, double deadline, hpc_looker *next) {
    hpc_companion asleep[MOST_BELLS];
    int status = HPC_IN_PROGRESS, in_bed = 0, n = 1;
    asleep[0].group = group;
    const uint32_t beside = beside_of(group);
    if (hpc_beside_count(beside) != 0) n += group->company->join(group->company_arg, asleep + 1, MOST_BELLS - 1);
    for (int i = 0; i < n; i++) begin_sleep(&asleep[i], n > 1);
    if (n == 1) in_bed = group->bed != NULL && group->bed->claim(group->bed_arg);
#if !defined(__SANITIZE_THREAD__)
    atomic_thread_fence(memory_order_seq_cst); /* see hpc_bell_ring */
#endif
    for (int i = 0; i < n; i++)
        asleep[i].rings = atomic_load_explicit(&asleep[i].group->bell->rings, memory_order_acquire);
    /* The condition may depend on bytes that a transport still holds. Their sender rang either before this thread
     * counted as a sleeper, so this look takes them, or rings it awake afterwards. */
    int held = hpc_group_look(group, in_bed ? HPC_LOOKS_BESIDE_BED : HPC_LOOKS_ALL);
    /* A task may have been added after the others were listed, and have rung before this thread counted as a
     * sleeper. */
    if (beside_of(group) != beside) held |= HPC_LEFT;
    if (n > 1) held |= help_others(group, HPC_LOOKS_ALL);
    if (held == 0) status = wait->ready(wait->arg) ? HPC_OK : look_around(group, wait, deadline);
    if (held == 0 && status == HPC_IN_PROGRESS && in_bed) {
        if (group->bed->sleep(group->bed_arg, seconds) == 0) *next = HPC_LOOKS_BESIDE_BED;
        group->bed->leave(group->bed_arg);
        return status;
    }
    if (held == 0 && status == HPC_IN_PROGRESS) {
        if (n == 1)
            sleep_on_one(group->bell, asleep->rings, seconds);
        else
            sleep_on_all(asleep, n, seconds);
        hpc_calls_count(HPC_CALL_FUTEX);
        hpc_calls_count(HPC_CALL_WAKEUP);
    }
    for (int i = 0; i < n; i++) end_sleep(&asleep[i]);
    if (in_bed) group->bed->leave(group->bed_arg);
    if (n > 1) group->company->part(asleep + 1, n - 1);
    return status;
}

/* Sleeps briefly, for conditions that ring no bell. */
static void doze(void) {
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    hpc_calls_count(HPC_CALL_WAKEUP);
}

/* ---- waits that other ranks see ---- */

enum { SEEN_RANKS = HPC_WATCHED_RANKS };
_Static_assert((int)SEEN_RANKS >= (int)HPC_SPAN_RANKS, "a span tells of ranks that were kept");

static const double LONG_SECONDS =
    1e-3; /* a wait is shown after this time, and its ranks are listed again each time that this time has passed */
static const double TRACED_SECONDS = 10e-6; /* with a timeline a wait is shown after this time */
static const double RETRACED_SECONDS = 100e-6;

/* A long wait, with the ranks for which it waited at its last look. */
typedef struct seen {
    double start, due;
    double since, look; /* start and next look of the whole wait, if this wait is a slice of it */
    int place, n;       /* place in the group's watch; number of ranks */
    int ranks[SEEN_RANKS];
} seen;

static seen begin_to_show(const hpc_group *group, double start) {
    const double due = start + (group->timeline ? TRACED_SECONDS : LONG_SECONDS);
    return (seen){.start = start, .due = due, .since = start, .look = INFINITY, .place = -1};
}

/* Shows the wait to others. A rank that waits only for its own cores is not shown: it works, or is an idle core. */
static void show(hpc_group *group, const hpc_wait *wait, seen *s, double now) {
    int few[64], *ranks = group->size <= 64 ? few : malloc((size_t)group->size * sizeof *ranks);
    s->due = now + (group->timeline ? RETRACED_SECONDS : LONG_SECONDS);
    if (ranks == NULL) return;
    int n = wait->waiting_for(wait->arg, ranks);
    if (n > 1 || (n == 1 && ranks[0] != group->rank)) {
        s->n = n;
        memcpy(s->ranks, ranks, (size_t)(n < SEEN_RANKS ? n : SEEN_RANKS) * sizeof *ranks);
        s->place = hpc_watch_wait(&group->watch, s->place, hpc_doing_of(wait->op, wait->every), s->ranks, n, &s->since);
    }
    s->look = n == 0 || s->n == 0 ? INFINITY : hpc_overdue_due(group, s->since);
    if (ranks != few) free(ranks);
    if (group->timeline != NULL) hpc_timeline_rest(group->timeline, now);
}

/* Returns for how many seconds after its end a wait may continue as the same wait: after a slice its caller handles
 * Unix signals, and the next slice spins and yields before it is shown. */
static double grace_of(const hpc_group *group, int status, double timeout) {
    static const double CONFIGURED = 1, USUAL = 0.02;
    if (status != HPC_ERR_TIMEOUT) return 0;
    return hpc_waits_in_slices(group, timeout) ? CONFIGURED : USUAL;
}

static void end_show(hpc_group *group, const hpc_wait *wait, const seen *s, int status, double timeout) {
    if (s->n == 0) return;
    double now = hpc_now();
    hpc_watch_end(&group->watch, s->place, grace_of(group, status, timeout), now);
    if (group->timeline == NULL) return;
    const hpc_span span = {group->timeline, s->start, wait->op, NULL, HPC_SPAN_WAIT, s->n, s->ranks, 0, 0};
    hpc_timeline_record(&span, now);
}

/* ---- the wait ---- */

enum { PROMPT = 8 };
static const double SOON = 200e-6; /* seconds that a message and its answer take, including a sleep and a wake-up */

/* The number of this thread's last waits that ended within SOON, at most PROMPT. Over a network each look is a system
 * call, so if waits last longer than their spinning, it only takes time from other threads. */
static _Thread_local int prompt_waits = PROMPT;

static void learn_waits(const hpc_group *group, double start) {
    if (group->bed == NULL) return;
    if (hpc_now() - start > SOON)
        prompt_waits = 0;
    else if (prompt_waits < PROMPT)
        prompt_waits++;
}

static int wait_on(hpc_group *group, const hpc_wait *wait, double timeout, seen *seen) {
    enum { SPINS_PER_CLOCK = 64 };
    const int spins = group->bed == NULL || prompt_waits == PROMPT;
    double start = seen->start, now = start, deadline = start + timeout;
    double spin_until = start + (spins ? group->spin : 0), yield_until = spin_until + (spins ? group->yield : 0);
    double later = wait->later != NULL ? start + wait->after : INFINITY;
    hpc_looker looker = HPC_LOOKS_BRIEFLY;
    int held = 0, status;

    for (;;) {
        held = hpc_group_look(group, looker);
        looker = HPC_LOOKS_BRIEFLY;
        if (now < spin_until) {
            for (int i = 0; i < SPINS_PER_CLOCK; i++) {
                if (wait->ready(wait->arg)) return HPC_OK;
                if (group->bed != NULL)
                    held = hpc_group_look(group, looker); /* receives the awaited data */
                else
                    hpc_cpu_relax();
            }
        }
        if (wait->ready(wait->arg)) return HPC_OK;
        status = look_around(group, wait, deadline);
        if (status != HPC_IN_PROGRESS) return status;
        now = hpc_now();
        if (now >= deadline) return wait->ready(wait->arg) ? HPC_OK : hpc_overdue_fail(group, wait, timeout);
        if (now >= later) {
            later = now + wait->later(wait->arg);
            seen->due = now;
        }
        if (now >= seen->due) show(group, wait, seen, now);
        if (now >= seen->look) {
            status = hpc_overdue_look(group, wait, seen->since, timeout);
            if (status != HPC_IN_PROGRESS) return status;
            show(group, wait, seen, now);
        }
        if (group->eases && now < spin_until && hpc_crowd_is(now)) spin_until = start; /* one round of spins is over */
        if (now >= spin_until) held |= help_others(group, HPC_LOOKS_BRIEFLY);
        if (now < spin_until || held & HPC_MORE) continue;
        if ((held & HPC_LEFT) || (now < yield_until && !(group->eases && hpc_crowd_find(now)))) {
            sched_yield();
            hpc_calls_count(HPC_CALL_YIELD);
        } else if (held != 0)
            doze();
        else {
            show(group, wait, seen, now); /* it may sleep for long, so show it */
            double until = seen->look < deadline ? seen->look : deadline;
            if (later < until) until = later;
            if (until <= now) continue;
            status = sleep_on_bell(group, wait, until - now, deadline, &looker);
            if (status != HPC_IN_PROGRESS) return status;
        }
    }
}

/* Forgets the findings of an earlier try of this wait if it has succeeded. */
static inline int has_waited(hpc_group *group, const hpc_wait *wait, int status) {
    if (status == HPC_OK) hpc_group_settle(group, wait->op);
    return status;
}

int hpc_wait_for(hpc_group *group, const hpc_wait *wait, double timeout) {
    enum { GLANCES = 16 };
    for (int i = 0; i < GLANCES; i++)
        if (wait->ready(wait->arg)) return has_waited(group, wait, HPC_OK);
    seen seen = begin_to_show(group, group->timeline != NULL ? hpc_timeline_enter(group->timeline) : hpc_now());
    timeout = limit_of(group, timeout);
    hpc_overdue_begin();
    if (wait->attend != NULL) wait->attend(wait->attended, 1);
    int status = wait_on(group, wait, timeout, &seen);
    if (wait->attend != NULL) wait->attend(wait->attended, 0);
    learn_waits(group, seen.start);
    end_show(group, wait, &seen, status, timeout);
    return has_waited(group, wait, status);
}
