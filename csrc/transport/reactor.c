/* The epoll set of a context, its service, and the bed: the way in which a wait sleeps in the set.
 *
 * One service thread works for the reactors of all contexts of the process (base/service.h). For each reactor it
 * *naps*, until poke_fd is raised or a short time has passed, or it *listens*, until the set has an event. If there is
 * one reactor, the thread sleeps in that reactor's set itself. Otherwise it sleeps in the service's set, which contains
 * the sets of the reactors for which it listens. Below, both are a sleep of the thread in the reactor's set.
 *
 * Streams are edge-triggered, so one thread gets each event. While other threads wait, the service thread naps; if
 * it woke at every message, it would only take a core from them. The kernel wakes the thread that began to sleep
 * last, which is the wait. A thread that sleeps in the service's set would always wake too, so the service does not
 * watch the reactor's set while a wait sleeps there (watches). If the service thread gets an event nevertheless, it
 * handles it, and the source rings the bell.
 *
 * If all peers of a rank are remote, its bell has an alarm: an eventfd in the set. The alarm is level-triggered. If
 * it wakes the service thread, that thread leaves it raised, so it also wakes the wait. Only one wait sleeps in the
 * set; other waits sleep on the bell's futex.
 *
 * Some sources must be armed before they make an event. An event disarms its source, no matter which thread takes
 * it, while a thread that sleeps in the set relies on an armed source. A sleeper does: set flag (drowsy for a wait,
 * listening for the service thread); arm; look; sleep. A thread that takes an event does: take it; handle it; load
 * the flags; if one is set, arm and look. So no arrival is missed. The sleeper's look finds arrivals that came
 * before its arm. A later arrival is an event; it wakes the sleeper or goes to another thread. That thread loads the
 * flags after it took the event, so it sees the sleeper's flag and arms for it, unless the sleeper is already awake.
 * If its look leaves work, it sets owed for the service thread and wakes all threads in the set, as its own wait may
 * be over. While no flag is set no thread arms, so waits that poll cause no events. A wait that cannot sleep in the
 * set ends the service thread's nap; the service thread then arms and sleeps in its place.
 *
 * The service thread sets listening (or napping) in prepare and clears it in serve. Between the two it may work for
 * other reactors before it sleeps, and after it woke. A flag that is set for longer only makes other threads arm or
 * raise an eventfd where the thread did not need it. An event, the alarm or poke_fd that comes in this time ends the
 * sleep at once: the set and the eventfds keep them, and the kernel looks at them when the sleep begins. It also looks
 * at the set when the service watches it again, after a wait has left it.
 *
 * A thread that adds or removes another reactor wakes the service thread by the alarm too (wake). A thread that polls
 * the set could clear this alarm before the service thread sees it, so wake first sets woken. The alarm stays raised
 * while woken is set, and the service thread clears woken only after its sleep. A wake that comes later finds the
 * service thread about to read the list of reactors. */
#define _GNU_SOURCE
#include "transport/reactor.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/calls.h"
#include "base/host.h"
#include "base/service.h"

enum { EVENTS = 16, WAIT_BUDGET = 512 << 10, SERVICE_BUDGET = 1 << 20, NAP_MS = 1, LONGEST_NAP_MS = 16, TAG_BITS = 56 };

/* The values of broken. KNOWN: the service thread knows, and watches the time. NEWS: it must still be told. */
enum { KNOWN = 1, NEWS = 2 };

static const uint64_t ALARM = UINT64_MAX;

typedef struct slot {
    hpc_source source; /* written before the store of there */
    _Atomic int there;
    _Atomic int calls; /* number of calls in progress */
} slot;

/* How the service thread sleeps for a reactor. */
typedef enum rest {
    LISTENS,
    NAPS,
    NAPS_AND_POLLS, /* looks at all sources after the nap, because calls look at one connection each */
} rest;

/* The state of a reactor's service; only the service thread uses it. */
typedef struct duty {
    rest rest;
    int nap_ms;               /* length of the next nap */
    int called, left, looked; /* called: the nap was ended; left: a source has more that may make no event; looked: the
                                 thread napped since it found that */
    uint32_t polls, loops;    /* the reactor's counts at the last turn */
} duty;

struct hpc_reactor {
    hpc_group *group;
    int all_remote;
    int epoll_fd;
    int alarm_fd; /* in the set: wakes the thread that sleeps in it */
    int poke_fd;  /* ends a nap of the service thread */
    hpc_client client;
    duty duty;
    slot slots[HPC_REACTOR_SOURCES];
    _Atomic int n_slots;
    _Atomic unsigned to_arm; /* bit i: the source in slot i must be armed */
    _Atomic uint32_t polls;  /* number of polls by waits: while it grows, waits do the reading */
    _Atomic uint32_t loops;  /* polls by calls, each of one connection only */
    _Atomic int hurried;     /* some source is not patient */
    _Atomic int drowsy;      /* a wait sleeps in the set */
    _Atomic int listening;   /* the service thread sleeps in the set */
    _Atomic int napping;     /* the service thread naps */
    _Atomic int broken;      /* KNOWN, NEWS or 0 */
    _Atomic int owed;        /* the service thread must look */
    _Atomic int woken;       /* the service thread's sleep must end */
};

static void clear(int eventfd) {
    uint64_t count;
    ssize_t n = read(eventfd, &count, sizeof count);
    hpc_calls_count(HPC_CALL_ALARM);
    (void)n; /* it was not raised: no matter */
}

static void raise_event(int eventfd) {
    uint64_t one = 1;
    ssize_t n = write(eventfd, &one, sizeof one);
    hpc_calls_count(HPC_CALL_ALARM);
    (void)n; /* already full, so readable anyway */
}

/* Returns whether the service thread must wake; the alarm stays raised until it has. */
static int is_called(hpc_reactor *r) {
    return atomic_load(&r->broken) == NEWS || atomic_load(&r->owed) || atomic_load(&r->woken);
}

/* Clears the alarm. The caller must be the thread that sleeps in the set, unless no thread sleeps there. Raises the
 * alarm again if another thread's alarm may have been cleared too. */
static void take_alarm(hpc_reactor *r, int is_sleeper) {
    if (is_called(r)) return;
    clear(r->alarm_fd);
    if ((!is_sleeper && atomic_load(&r->drowsy)) || is_called(r)) raise_event(r->alarm_fd);
}

/* Wakes the service thread, also if it does not look at the set because a wait sleeps there. Call it after the store of
 * broken or owed, which is_called loads. */
static void call_thread(hpc_reactor *r) {
    raise_event(r->alarm_fd);
    if (atomic_load(&r->napping) || atomic_load(&r->drowsy)) raise_event(r->poke_fd);
}

void hpc_reactor_report(hpc_reactor *r) {
    if (atomic_exchange(&r->broken, NEWS) != NEWS) call_thread(r); /* the service thread must begin to watch the time */
}

/* ---- sources ---- */

int hpc_reactor_add(hpc_reactor *r, const hpc_source *source) {
    int i = atomic_fetch_add(&r->n_slots, 1);
    if (i >= HPC_REACTOR_SOURCES) {
        atomic_fetch_sub(&r->n_slots, 1);
        return -1;
    }
    r->slots[i].source = *source;
    atomic_store(&r->slots[i].there, 1);
    if (source->arm != NULL) atomic_fetch_or(&r->to_arm, 1u << i);
    if (!source->patient) atomic_store(&r->hurried, 1);
    return i;
}

/* Order: enter does  calls += 1; load there.  remove does  there = 0; load calls.  So either remove sees the call
 * and waits for its end, or enter sees that the source is removed. */
static const hpc_source *enter(slot *s) {
    if (!atomic_load_explicit(&s->there, memory_order_acquire)) return NULL;
    atomic_fetch_add(&s->calls, 1);
    if (atomic_load(&s->there)) return &s->source;
    atomic_fetch_sub(&s->calls, 1);
    return NULL;
}

static void leave(slot *s) {
    atomic_fetch_sub(&s->calls, 1);
}

void hpc_reactor_remove(hpc_reactor *r, int source) {
    slot *s = &r->slots[source];
    atomic_store(&s->there, 0);
    while (atomic_load(&s->calls) != 0) sched_yield();
}

int hpc_reactor_watch(hpc_reactor *r, int source, int fd, uint32_t events, uint64_t tag, int again) {
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)source << TAG_BITS | tag};
    return epoll_ctl(r->epoll_fd, again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
}

static void arm(hpc_reactor *r, unsigned mask) {
    for (int i = 0; i < HPC_REACTOR_SOURCES; i++) {
        const hpc_source *s = mask >> i & 1 ? enter(&r->slots[i]) : NULL;
        if (s == NULL) continue;
        s->arm(s->arg);
        leave(&r->slots[i]);
    }
}

/* Calls look of each source in the mask; returns nonzero if more is left. */
static int look(hpc_reactor *r, unsigned mask) {
    int left = 0;
    for (int i = 0; i < HPC_REACTOR_SOURCES; i++) {
        const hpc_source *s = mask >> i & 1 ? enter(&r->slots[i]) : NULL;
        if (s == NULL) continue;
        left |= s->look(s->arg) != 0;
        leave(&r->slots[i]);
    }
    return left;
}

/* ---- events ---- */

/* Handles all events but the alarm; returns nonzero if more is left. *spent gets the sources that the events
 * disarmed. */
static int handle(hpc_reactor *r, const struct epoll_event *events, int n, size_t budget, unsigned *spent) {
    int left = 0;
    *spent = 0;
    for (int i = 0; i < n; i++) {
        uint64_t source = events[i].data.u64 >> TAG_BITS;
        const hpc_source *s = source < HPC_REACTOR_SOURCES ? enter(&r->slots[source]) : NULL;
        if (s == NULL) continue;
        left |= s->handle(s->arg, events[i].data.u64 & ((1ull << TAG_BITS) - 1), events[i].events, budget) != 0;
        if (s->arm != NULL) *spent |= 1u << source;
        leave(&r->slots[source]);
    }
    return left;
}

static int has_alarm(const struct epoll_event *events, int n) {
    for (int i = 0; i < n; i++)
        if (events[i].data.u64 == ALARM) return 1;
    return 0;
}

/* Arms for another thread that sleeps in the set. */
static void arm_again(hpc_reactor *r, unsigned mask) {
    arm(r, mask);
    if (look(r, mask) && !atomic_exchange(&r->owed, 1)) call_thread(r);
}

/* No alarm is needed if no thread sleeps in the set: the service thread then looks anyway, and a wait looks before
 * it sleeps. */
void hpc_reactor_call(hpc_reactor *r) {
    if ((atomic_load(&r->listening) || atomic_load(&r->drowsy)) && !atomic_exchange(&r->owed, 1)) call_thread(r);
}

/* ---- waits ---- */

void hpc_reactor_looked(hpc_reactor *r) {
    atomic_fetch_add_explicit(&r->polls, 1, memory_order_relaxed);
}

void hpc_reactor_loops(hpc_reactor *r) {
    atomic_fetch_add_explicit(&r->loops, 1, memory_order_relaxed);
}

int hpc_reactor_poll(hpc_reactor *r, size_t budget) {
    struct epoll_event events[EVENTS];
    unsigned spent;
    int n = epoll_wait(r->epoll_fd, events, EVENTS, 0), left;
    hpc_calls_count(HPC_CALL_POLL);
    /* If drowsy is set, the alarm is for the sleeper, which set it before its last look. */
    if (has_alarm(events, n) && !atomic_load(&r->drowsy)) take_alarm(r, 0);
    left = handle(r, events, n, budget, &spent);
    if (spent != 0 && (atomic_load(&r->drowsy) || atomic_load(&r->listening))) arm_again(r, spent);
    return left;
}

/* The wait will not read, so the service thread must. */
static void refuse(void *arg) {
    hpc_reactor *r = arg;
    if (atomic_load(&r->napping)) raise_event(r->poke_fd);
}

static int claim(void *arg) {
    hpc_reactor *r = arg;
    if (r->all_remote && !atomic_exchange(&r->drowsy, 1)) {
        if (atomic_load(&r->listening)) {
            hpc_service_thread_look(&r->client);
            if (is_called(r)) raise_event(r->poke_fd); /* the caller may have looked for this wait too early */
        }
        arm(r, atomic_load(&r->to_arm));
        return 1;
    }
    refuse(arg);
    return 0;
}

static int sleep_in_set(void *arg, double seconds) {
    struct epoll_event events[EVENTS];
    hpc_reactor *r = arg;
    unsigned spent;
    int n = epoll_wait(r->epoll_fd, events, EVENTS, seconds > 60 ? 60000 : (int)(seconds * 1e3) + 1);
    hpc_calls_count(HPC_CALL_POLL);
    hpc_calls_count(HPC_CALL_WAKEUP);
    atomic_fetch_sub(&r->group->bell->sleepers, 1);
    if (has_alarm(events, n)) take_alarm(r, 1);
    int left = handle(r, events, n, WAIT_BUDGET, &spent);
    if (spent != 0 && atomic_load(&r->listening)) arm_again(r, spent);
    hpc_reactor_looked(r);
    return left || n == EVENTS;
}

/* Leaves the set. The service thread must read for the other sleepers while this thread is busy. */
static void leave_bed(void *arg) {
    hpc_reactor *r = arg;
    atomic_store(&r->drowsy, 0);
    if (atomic_load(&r->listening)) hpc_service_thread_look(&r->client);
    if (atomic_load(&r->group->bell->sleepers) != 0 && atomic_load(&r->napping)) raise_event(r->poke_fd);
}

int hpc_reactor_has_sleeper(const hpc_reactor *r) {
    return atomic_load(&r->drowsy);
}

const hpc_bed hpc_reactor_bed = {claim, refuse, sleep_in_set, leave_bed};

/* ---- the thread ---- */

static void report_broken(hpc_reactor *r) {
    int left = 0, known = KNOWN;
    atomic_exchange(&r->broken, KNOWN); /* before the reports: a break after this is NEWS again */
    for (int i = 0; i < HPC_REACTOR_SOURCES; i++) {
        const hpc_source *s = enter(&r->slots[i]);
        if (s == NULL) continue;
        if (s->report != NULL) left |= s->report(s->arg) != 0;
        leave(&r->slots[i]);
    }
    if (!left) atomic_compare_exchange_strong(&r->broken, &known, 0);
}

/* Begins a nap; returns its seconds. */
static double begin_nap(hpc_reactor *r, int milliseconds) {
    atomic_store(&r->napping, 1);
    return atomic_load(&r->owed) ? 0 : milliseconds * 1e-3;
}

/* Ends a nap, perhaps after a sleep. Returns whether it was ended by a call. */
static int end_nap(hpc_reactor *r, int ms) {
    struct pollfd poked = {.fd = r->poke_fd, .events = POLLIN};
    int called = atomic_load(&r->owed);
    if (!called) {
        called = poll(&poked, 1, ms) > 0;
        hpc_calls_count(HPC_CALL_POLL);
        hpc_calls_count(HPC_CALL_WAKEUP);
    }
    atomic_store(&r->napping, 0);
    if (called) clear(r->poke_fd);
    atomic_store(&r->woken, 0); /* after the clear: a later wake raises poke_fd again */
    return called;
}

/* Begins to sleep in the set; returns the seconds. */
static double begin_to_listen(hpc_reactor *r) {
    unsigned mask = atomic_load(&r->to_arm);
    atomic_exchange(&r->listening, 1);
    atomic_exchange(&r->owed, 0);
    arm(r, mask);
    r->duty.left = look(r, mask);
    if (r->duty.left) atomic_store(&r->listening, 0); /* this thread looks again by itself */
    return r->duty.left ? 0 : atomic_load(&r->broken) ? 0.1 : INFINITY;
}

/* Takes the events of the set, perhaps after a sleep in it. Returns 0, or -1 if there is no set any more. */
static int end_listening(hpc_reactor *r, int ms) {
    struct epoll_event events[EVENTS];
    unsigned spent;
    int n = epoll_wait(r->epoll_fd, events, EVENTS, ms);
    hpc_calls_count(HPC_CALL_POLL);
    if (!r->duty.left) hpc_calls_count(HPC_CALL_WAKEUP);
    atomic_store(&r->listening, 0);
    atomic_store(&r->woken, 0);
    if (n < 0 && errno != EINTR) return -1;
    if (has_alarm(events, n) && !atomic_load(&r->drowsy)) take_alarm(r, 0);
    handle(r, events, n, SERVICE_BUDGET, &spent);
    if (spent != 0 && atomic_load(&r->drowsy)) arm_again(r, spent);
    return 0;
}

static int longer(const hpc_reactor *r, int milliseconds, int drowsy) {
    if (!drowsy && atomic_load(&r->hurried)) return NAP_MS;
    return milliseconds < LONGEST_NAP_MS ? 2 * milliseconds : LONGEST_NAP_MS;
}

/* hpc_client.prepare: chooses how the service thread sleeps, and begins the sleep. */
static double prepare(void *arg) {
    hpc_reactor *r = arg;
    duty *d = &r->duty;
    const uint32_t polls = atomic_load_explicit(&r->polls, memory_order_relaxed);
    const uint32_t loops = atomic_load_explicit(&r->loops, memory_order_relaxed);
    const int drowsy = atomic_load(&r->drowsy);
    int ms = d->nap_ms;
    if (atomic_load(&r->broken)) report_broken(r);
    if (!d->called && (polls != d->polls || drowsy)) { /* waits poll, and handle the rest too */
        d->rest = NAPS;
        d->nap_ms = longer(r, ms, drowsy);
    } else if (!d->called && loops != d->loops && atomic_load(&r->group->bell->sleepers) == 0) {
        d->rest = NAPS_AND_POLLS;
        d->nap_ms = longer(r, ms, 0);
    } else if (!d->called && !d->looked && d->left) { /* no event will report it */
        d->rest = NAPS;
        d->looked = 1;
        ms = NAP_MS;
    } else {
        d->rest = LISTENS;
        d->nap_ms = NAP_MS;
        d->looked = 0;
    }
    d->polls = polls;
    d->loops = loops;
    return d->rest == LISTENS ? begin_to_listen(r) : begin_nap(r, ms);
}

/* hpc_client.serve: ends the sleep, and handles what has come. */
static int serve(void *arg, int ms) {
    hpc_reactor *r = arg;
    duty *d = &r->duty;
    if (d->rest == LISTENS) {
        d->called = 0;
        return end_listening(r, ms);
    }
    d->called = end_nap(r, ms);
    if (d->rest == NAPS_AND_POLLS) {
        d->left = hpc_reactor_poll(r, SERVICE_BUDGET);
        d->left |= look(r, atomic_load(&r->to_arm));
    }
    return 0;
}

/* hpc_client.watches. A wait that sleeps in the set gets its events. */
static int watches(void *arg) {
    hpc_reactor *r = arg;
    return atomic_load(&r->listening) && !atomic_load(&r->drowsy);
}

/* hpc_client.wake: ends a sleep of either kind. */
static void wake(void *arg) {
    hpc_reactor *r = arg;
    atomic_store(&r->woken, 1); /* before the alarm, which another thread may clear */
    raise_event(r->poke_fd);
    raise_event(r->alarm_fd);
}

static hpc_service_thread service = HPC_SERVICE_THREAD("hpcomm-reactor", 1);

hpc_reactor *hpc_reactor_open(hpc_group *group, int all_remote) {
    struct epoll_event alarm = {.events = EPOLLIN, .data.u64 = ALARM};
    hpc_reactor *r = calloc(1, sizeof *r);
    int error;
    if (r == NULL) {
        hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for the set of connections");
        return NULL;
    }
    r->group = group;
    r->all_remote = all_remote;
    r->duty.nap_ms = NAP_MS;
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    r->alarm_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->client = (hpc_client){.arg = r,
                             .fd = r->epoll_fd,
                             .call_fd = r->poke_fd,
                             .prepare = prepare,
                             .serve = serve,
                             .wake = wake,
                             .watches = watches};
    error = r->epoll_fd < 0 || r->alarm_fd < 0 || r->poke_fd < 0 ||
                    epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->alarm_fd, &alarm) != 0
                ? errno
                : hpc_service_thread_add(&service, &r->client);
    if (error != 0) {
        char hint[HPC_FILES_HINT];
        hpc_reactor_close(r);
        hpc_fail(HPC_ERR_TRANSPORT, "init", "rank %d: init: cannot open the set of connections: %s%s", group->rank,
                 strerror(error), hpc_files_hint(error, hint));
        return NULL;
    }
    if (all_remote) atomic_store(&group->bell->alarm, r->alarm_fd + 1);
    return r;
}

void hpc_reactor_close(hpc_reactor *r) {
    if (r == NULL) return;
    atomic_store(&r->group->bell->alarm, 0);
    hpc_service_thread_remove(&r->client);
    if (r->epoll_fd >= 0) close(r->epoll_fd);
    if (r->alarm_fd >= 0) close(r->alarm_fd);
    if (r->poke_fd >= 0) close(r->poke_fd);
    free(r);
}
