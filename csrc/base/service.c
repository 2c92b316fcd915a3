#define _GNU_SOURCE
#include "base/service.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/calls.h"
#include "base/host.h"

enum { EVENTS = 32 };

static const double PAUSE = 1e-3; /* seconds between two looks if the kernel refuses to watch */

static void raise_wake(const hpc_service_thread *s) {
    ssize_t n = write(s->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
    (void)n; /* already full, so readable anyway */
}

static void close_descriptors(hpc_service_thread *s) {
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    if (s->wake_fd >= 0) close(s->wake_fd);
    s->epoll_fd = s->wake_fd = -1;
}

/* ---- fork ---- */

static pthread_mutex_t knowing = PTHREAD_MUTEX_INITIALIZER; /* guards known, and is taken before services' locks */
static hpc_service_thread *known;                           /* all that had a client */

static void before_fork(void) {
    pthread_mutex_lock(&knowing);
    for (hpc_service_thread *s = known; s != NULL; s = s->after) pthread_mutex_lock(&s->lock);
}

static void after_fork(void) {
    for (hpc_service_thread *s = known; s != NULL; s = s->after) pthread_mutex_unlock(&s->lock);
    pthread_mutex_unlock(&knowing);
}

/* Empties the services of the child, and closes the child's copies of their descriptors. */
static void in_child(void) {
    for (hpc_service_thread *s = known; s != NULL; s = s->after) {
        s->changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
        s->first = s->at = s->running = NULL;
        s->n = s->is_alone = s->waiting = s->is_started = s->is_ending = 0;
        close_descriptors(s);
    }
    after_fork();
}

/* Makes the service known to forks; returns 0, or an errno. */
static int know(hpc_service_thread *s) {
    int error = 0;
    pthread_mutex_lock(&knowing);
    if (!s->is_known && known == NULL) error = pthread_atfork(before_fork, after_fork, in_child);
    if (!s->is_known && error == 0) {
        s->is_known = 1;
        s->after = known;
        known = s;
    }
    pthread_mutex_unlock(&knowing);
    return error;
}

/* ---- the set; all with the lock ---- */

static int control(const hpc_service_thread *s, int operation, int fd, uint32_t events, hpc_client *c) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    return epoll_ctl(s->epoll_fd, operation, fd, &event);
}

static void unregister(hpc_client *c) {
    if (!atomic_load(&c->is_registered)) return;
    control(c->of, EPOLL_CTL_DEL, c->fd, 0, c);
    if (c->call_fd >= 0) control(c->of, EPOLL_CTL_DEL, c->call_fd, 0, c);
    atomic_store(&c->is_registered, 0);
}

/* Watches fd, or stops to watch it, as the client wants. */
static void watch(hpc_client *c) {
    const int wanted = c->watches == NULL || c->watches(c->arg);
    if (wanted != c->is_watched && control(c->of, EPOLL_CTL_MOD, c->fd, wanted ? EPOLLIN : 0, c) == 0)
        c->is_watched = wanted;
}

/* Puts the client's descriptors into the set. Returns 0 if the kernel refuses. */
static int enroll(hpc_client *c) {
    if (atomic_load(&c->is_registered)) return 1;
    if (control(c->of, EPOLL_CTL_ADD, c->fd, 0, c) != 0) return 0;
    c->is_watched = 0;
    if (c->call_fd >= 0 && control(c->of, EPOLL_CTL_ADD, c->call_fd, EPOLLIN | EPOLLET, c) != 0) {
        control(c->of, EPOLL_CTL_DEL, c->fd, 0, c);
        return 0;
    }
    atomic_store(&c->is_registered, 1);
    return 1;
}

void hpc_service_thread_look(hpc_client *c) {
    if (!atomic_load(&c->is_registered)) return;
    pthread_mutex_lock(&c->of->lock);
    if (atomic_load(&c->is_registered)) watch(c);
    pthread_mutex_unlock(&c->of->lock);
}

/* ---- the thread ---- */

/* Returns the time for poll. A time is rounded up, because a client that wakes too early would wake twice. */
static int milliseconds(double seconds) {
    return seconds <= 0 ? 0 : seconds > 1000 ? -1 : (int)ceil(seconds * 1e3);
}

static void prepare(hpc_client *c) {
    const double seconds = c->prepare(c->arg);
    c->due = seconds > 0 ? hpc_now() + seconds : 0;
    c->is_prepared = 1;
    c->is_ready = 0;
}

/* Calls the functions of a client, which other threads may remove meanwhile. The lock is held at both ends. */
static void take_turn(hpc_service_thread *s, hpc_client *c, int is_alone) {
    s->running = c;
    s->is_alone = is_alone;
    pthread_mutex_unlock(&s->lock);
    if (is_alone) {
        if (!c->is_prepared) prepare(c);
        c->is_over = c->serve(c->arg, milliseconds(c->due - hpc_now()));
        c->is_prepared = 0;
    } else {
        if (c->is_prepared) c->is_over = c->serve(c->arg, 0);
        if (!c->is_over) prepare(c);
    }
    pthread_mutex_lock(&s->lock);
    s->running = NULL;
    s->is_alone = 0;
    if (s->waiting > 0) pthread_cond_broadcast(&s->changed);
}

/* Prepares the set for a sleep, and returns when it must end: soon, if the kernel refuses to watch a client. */
static double fill_set(hpc_service_thread *s) {
    double due = INFINITY;
    for (hpc_client *c = s->first; c != NULL; c = c->next) {
        if (c->is_over) {
            unregister(c);
        } else if (enroll(c)) {
            watch(c);
        } else {
            const double soon = hpc_now() + PAUSE;
            if (c->due > soon) c->due = soon;
        }
        if (!c->is_over && c->due < due) due = c->due;
    }
    return due;
}

static void take_event(hpc_service_thread *s, const hpc_client *of) {
    uint64_t wakes;
    if (of == NULL && read(s->wake_fd, &wakes, sizeof wakes) < 0) return; /* it is read to become quiet */
    for (hpc_client *c = s->first; c != NULL; c = c->next)
        if (c == of) c->is_ready = 1;
}

/* Sleeps until a client is ready or due, or clients have changed. */
static void sleep_for_all(hpc_service_thread *s) {
    struct epoll_event events[EVENTS];
    const double due = fill_set(s);
    pthread_mutex_unlock(&s->lock);
    const int n = epoll_wait(s->epoll_fd, events, EVENTS, milliseconds(due - hpc_now()));
    const int is_refused = n < 0 && errno != EINTR;
    if (s->is_counted) hpc_calls_count(HPC_CALL_POLL);
    if (is_refused) nanosleep(&(struct timespec){.tv_nsec = (long)(PAUSE * 1e9)}, NULL);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) take_event(s, events[i].data.ptr);
    for (hpc_client *c = s->first; c != NULL && is_refused; c = c->next) c->is_ready = 1; /* they look for themselves */
}

/* Gives a turn to each client that is new, ready or due. A client may be gone after its turn. */
static void take_turns(hpc_service_thread *s) {
    const double now = hpc_now();
    for (s->at = s->first; s->at != NULL;) {
        hpc_client *c = s->at;
        s->at = c->next;
        if (!c->is_over && (!c->is_prepared || c->is_ready || c->due <= now)) take_turn(s, c, 0);
    }
}

static int has_one(const hpc_service_thread *s) {
    return s->n == 1 && !s->first->is_over;
}

static void *run(void *arg) {
    hpc_service_thread *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->is_ending) {
        if (has_one(s)) {
            unregister(s->first);
            take_turn(s, s->first, 1);
            continue;
        }
        take_turns(s);
        if (!has_one(s)) sleep_for_all(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- clients come and go ---- */

static int start(hpc_service_thread *s) {
    sigset_t all, before;
    int error = 0;
    if (s->is_started) return 0;
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->wake_fd < 0 || control(s, EPOLL_CTL_ADD, s->wake_fd, EPOLLIN, NULL) != 0) error = errno;
    sigfillset(&all); /* leaves signals to the caller's threads: Python's handlers, mpirun's SIGTERM */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error == 0) error = pthread_create(&s->thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        close_descriptors(s);
        return error;
    }
    s->is_started = 1;
    pthread_setname_np(s->thread, s->name);
    return 0;
}

/* Waits for a change, with the lock. */
static void await_change(hpc_service_thread *s) {
    s->waiting++;
    pthread_cond_wait(&s->changed, &s->lock);
    s->waiting--;
}

/* Wakes the thread, with the lock. */
static void wake(const hpc_service_thread *s) {
    raise_wake(s);
    if (s->is_alone) s->running->wake(s->running->arg);
}

int hpc_service_thread_add(hpc_service_thread *s, hpc_client *c) {
    hpc_client **end = &s->first;
    int error = know(s);
    if (error != 0) return error;
    pthread_mutex_lock(&s->lock);
    while (s->is_ending) await_change(s);
    error = start(s);
    if (error == 0) {
        c->of = s;
        while (*end != NULL) end = &(*end)->next;
        *end = c;
        s->n++;
        wake(s);
    }
    pthread_mutex_unlock(&s->lock);
    return error;
}

/* Returns whether the client was in the list. */
static int unlink_client(hpc_service_thread *s, const hpc_client *c) {
    hpc_client **at = &s->first;
    while (*at != NULL && *at != c) at = &(*at)->next;
    if (*at == NULL) return 0;
    *at = c->next;
    if (s->at == c) s->at = c->next;
    s->n--;
    return 1;
}

/* Ends the thread, which has no client any more. The lock is held at both ends, but not while the thread ends; clients
 * that are added meanwhile wait. */
static void end(hpc_service_thread *s) {
    s->is_ending = 1;
    raise_wake(s);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&s->lock);
    close_descriptors(s);
    s->is_started = s->is_ending = 0;
    pthread_cond_broadcast(&s->changed);
}

/* Of several threads that remove the last clients, only one ends the thread: no function runs by then, since a client
 * whose function runs is removed by a thread that still waits. */
void hpc_service_thread_remove(hpc_client *c) {
    hpc_service_thread *s = c->of;
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    if (unlink_client(s, c)) {
        unregister(c);
        wake(s);
        while (s->running == c) await_change(s);
        if (s->n == 0 && s->running == NULL && s->is_started && !s->is_ending) end(s);
    }
    c->of = NULL;
    pthread_mutex_unlock(&s->lock);
}
