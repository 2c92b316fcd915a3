#define _GNU_SOURCE
#include "base/crew.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/crowd.h"
#include "base/host.h"
#include "base/wait.h"

static const char op_thread[] = "exchange";

/* ---- the groups that a thread serves ---- */

/* Returns whether an earlier station of the thread's has the same member. */
static int is_repeated(const hpc_thread *t, const hpc_station *s) {
    const hpc_station *at = t->first;
    while (at != s && at->member != s->member) at = at->beside;
    return at != s;
}

/* hpc_group.progress of a thread */
static int look(void *arg, hpc_looker looker) {
    const hpc_thread *t = arg;
    int left = 0;
    for (const hpc_station *s = t->first; s != NULL; s = s->beside)
        if (!is_repeated(t, s))
            left |= hpc_group_look(atomic_load_explicit(&s->member->group, memory_order_relaxed), looker);
    return left;
}

static int help(void *arg, hpc_looker looker) {
    (void)arg, (void)looker;
    return 0;
}

static int join(void *arg, hpc_companion *others, int most) {
    const hpc_thread *t = arg;
    int n = 0;
    for (const hpc_station *s = t->first->beside; s != NULL && n < most; s = s->beside)
        if (!is_repeated(t, s)) others[n++].group = atomic_load_explicit(&s->member->group, memory_order_relaxed);
    return n;
}

static void part(hpc_companion *others, int n) {
    (void)others, (void)n;
}

static const hpc_company company = {help, join, part};

/* A thread waits as the member does whose waits spin least. */
static void wait_as(hpc_thread *t, const hpc_group *with) {
    if (t->group.bell != NULL && t->group.spin <= with->spin) return;
    t->group.spin = with->spin;
    t->group.yield = with->yield;
    t->group.eases = with->eases;
}

/* Lists the stations that the thread serves. */
static void collect(hpc_thread *t) {
    int distinct = 0;
    for (hpc_station *s = t->first; s != NULL; s = s->beside) hpc_member_let_go(s->member);
    t->first = NULL;
    t->group.bell = NULL;
    for (hpc_member *m = atomic_load(&t->engine->members); m != NULL; m = m->next)
        for (hpc_station *s = atomic_load(&m->stations); s != NULL; s = s->next) {
            if (atomic_load(&s->by) != t->number) continue;
            hpc_group *group = hpc_member_use(m);
            wait_as(t, group);
            s->beside = t->first;
            t->first = s;
            t->group.bell = group->bell;
            t->group.bed = group->bed;
            t->group.bed_arg = group->bed_arg;
        }
    for (const hpc_station *s = t->first; s != NULL; s = s->beside) distinct += !is_repeated(t, s);
    atomic_store(&t->group.beside, (uint32_t)(distinct > 1 ? distinct - 1 : 0));
    if (distinct > 1) t->group.bed = NULL;
}

/* ---- the thread ---- */

/* Called when the thread is crowded. */
static void unpin(void *arg) {
    hpc_thread *t = arg;
    if (t->n_allowed == 0 || atomic_load_explicit(&t->started, memory_order_relaxed) != HPC_STARTED) return;
    if (atomic_load(&t->cpu) >= 0 && hpc_host_allow(t->allowed, t->n_allowed) == 0)
        atomic_store_explicit(&t->started, HPC_CROWDED, memory_order_relaxed);
}

static void pin(hpc_thread *t, int *pinned_to) {
    const int cpu = atomic_load(&t->cpu);
    if (cpu == *pinned_to) return;
    *pinned_to = cpu;
    const int refused = cpu >= 0 && hpc_host_pin(cpu) != 0;
    atomic_store_explicit(&t->started, refused ? HPC_UNPINNED : HPC_STARTED, memory_order_release);
}

static int has_lost(const hpc_group *group) {
    int lost = atomic_load_explicit(&group->closed, memory_order_acquire);
    if (lost || atomic_load_explicit(&group->departures, memory_order_acquire) == 0) return lost;
    for (int r = 0; r < group->size; r++) lost |= hpc_group_has_lost(group, r);
    return lost;
}

/* ---- turns ---- */

static _Thread_local hpc_thread *serving; /* this thread, if it is of a crew */

/* Runs a station's task. Once its context has lost a rank, the task takes what has come, and then does not run again:
 * the trainer's waits report the loss. */
static int serve(hpc_station *s) {
    int left = 0, lost = has_lost(atomic_load_explicit(&s->member->group, memory_order_relaxed));
    const int worked = hpc_station_run(s, &left);
    atomic_store_explicit(&s->has_more, (left & HPC_MORE) != 0, memory_order_relaxed);
    if (lost && worked == 0 && !(left & HPC_LEFT)) hpc_station_retire(s);
    return worked;
}

static int has_changed(const hpc_thread *t) {
    return atomic_load(&t->changes) != atomic_load_explicit(&t->seen, memory_order_relaxed);
}

static void end_turn(hpc_task *task) {
    if (!hpc_turn_is_over(task)) atomic_fetch_add_explicit(&task->stops, HPC_TURN_IS_OVER, memory_order_relaxed);
}

/* Returns whether a station's task has more to do. */
static int is_busy(const hpc_station *s) {
    return atomic_load_explicit(&s->has_more, memory_order_relaxed) != 0 ||
           atomic_load_explicit(&s->busy, memory_order_relaxed) != 0;
}

static double served_of(const hpc_station *s) {
    return atomic_load_explicit(&s->served, memory_order_relaxed);
}

/* A new task begins level with the one that was served most: it claims nothing of the time before it came. */
static double most_served(const hpc_thread *t) {
    double most = 0;
    for (const hpc_station *o = t->first; o != NULL; o = o->beside)
        if (served_of(o) > most) most = served_of(o);
    return most;
}

/* The tasks of a thread get bytes in proportion to their weights: at the end of a slice the thread serves the tasks
 * that are behind, inside the work of the present one. A task that finds nothing to do is behind no more. A task that
 * is behind, but whose own work has not ended, ends the turn of the present one.
 *
 * Each change between tasks that have more to do costs some microseconds. So these take long turns: such a task is
 * behind once the present one is HPC_LEAD ahead. Other tasks may have little to do, and are looked at after each slice,
 * unless they are a slice ahead of all busy ones. */
static void serve_others(const hpc_thread *t, hpc_task *task, double bytes) {
    hpc_station *s = task->station;
    int over = 0;
    const double before = served_of(s), mine = (before < 0 ? most_served(t) : before) + bytes / task->weight;
    const double behind = mine - HPC_LEAD / task->weight;
    double front = mine;
    atomic_store_explicit(&s->served, mine, memory_order_relaxed);
    for (const hpc_station *o = t->first; o != NULL; o = o->beside)
        if (served_of(o) > front && is_busy(o)) front = served_of(o);
    for (hpc_station *o = t->first; o != NULL; o = o->beside) {
        if (o == s || served_of(o) > (is_busy(o) ? behind : front + HPC_SLICE / task->weight)) continue;
        if (atomic_load_explicit(&o->busy, memory_order_relaxed) != 0)
            over = 1;
        else if ((serve(o) == 0 && served_of(o) < mine) || served_of(o) < 0)
            atomic_store_explicit(&o->served, mine, memory_order_relaxed);
    }
    if (over) end_turn(task);
}

void hpc_slice_end(hpc_task *task) {
    const hpc_thread *t = serving;
    hpc_station *s = task->station;
    const double bytes = (double)task->spent;
    task->spent = 0;
    if (s == NULL) return; /* the trainer works before the tasks are there */
    const int by = atomic_load_explicit(&s->by, memory_order_relaxed);
    if (by == HPC_BY_WAITS) {
        if (atomic_load_explicit(&s->attended_by, memory_order_relaxed) != (uintptr_t)pthread_self()) end_turn(task);
    } else if (t != NULL && by == t->number) {
        if (has_changed(t))
            end_turn(task); /* a busy task keeps no new one waiting, and no old one from leaving */
        else if (t->first->beside != NULL)
            serve_others(t, task, bytes);
    }
}

static int has_work(void *arg) {
    hpc_thread *t = arg;
    int n = 0;
    for (hpc_station *s = t->first; s != NULL; s = s->beside) n += serve(s);
    return n > 0 || has_changed(t);
}

/* A thread waits for no particular rank: ranks may leave, and the others' events still come. */
static int nobody_else(void *arg, int *ranks) {
    ranks[0] = ((hpc_thread *)arg)->group.rank;
    return 1;
}

static double earliest_due(const hpc_thread *t) {
    double due = INFINITY;
    for (const hpc_station *s = t->first; s != NULL; s = s->beside) due = s->due < due ? s->due : due;
    return due;
}

/* Learns of changes. Returns whether the thread goes on. */
static int goes_on(hpc_thread *t, int *pinned_to) {
    if (!has_changed(t)) return 1;
    pthread_mutex_lock(&t->engine->lock);
    const unsigned changes = atomic_load(&t->changes);
    collect(t);
    pthread_mutex_unlock(&t->engine->lock);
    pin(t, pinned_to);
    atomic_store(&t->seen, changes);
    return t->first != NULL;
}

/* Each round of work begins a new wait, so a busy thread spins and an idle one sleeps. */
static void *run(void *arg) {
    hpc_thread *t = serving = arg;
    const hpc_wait wait = {op_thread, has_work, nobody_else, t, .every = 0};
    int pinned_to = -2;
    hpc_crowd_tell(unpin, t);
    while (goes_on(t, &pinned_to)) hpc_wait_for(&t->group, &wait, hpc_left(earliest_due(t)));
    return NULL;
}

/* ---- adding and removing tasks ---- */

static hpc_thread *find(const hpc_engine *e, int number) {
    hpc_thread *t = e->threads;
    while (t != NULL && t->number != number) t = t->next;
    return t;
}

static void free_thread(hpc_thread *t) {
    free(t->allowed);
    free(t);
}

static hpc_thread *make(hpc_engine *e, int number, int cpu, int dealt) {
    hpc_thread *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    t->engine = e;
    t->number = number;
    t->dealt = dealt;
    atomic_init(&t->cpu, cpu);
    atomic_init(&t->changes, 1);
    t->group.size = 1;
    t->group.timeout = 1e9;
    t->group.owner = e->owner;
    atomic_init(&t->group.progress, look);
    t->group.progress_arg = t->group.company_arg = t;
    t->group.company = &company;
    const int n = hpc_host_cpus(NULL, 0);
    if (n > 0) t->allowed = malloc((size_t)n * sizeof *t->allowed);
    if (t->allowed != NULL) {
        t->n_allowed = hpc_host_cpus(t->allowed, n);
        if (t->n_allowed > n) t->n_allowed = n;
    }
    return t;
}

static int start(hpc_thread *t) {
    char name[16];
    sigset_t all, before;
    sigfillset(&all); /* signals are left to the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int started = pthread_create(&t->handle, NULL, run, t) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) return 0;
    snprintf(name, sizeof name, "hpcomm-core-%u", (unsigned)t->number % 100);
    pthread_setname_np(t->handle, name);
    return 1;
}

/* The engine's lock is held. */
static hpc_thread *add(hpc_member *m, hpc_task *task, int number, int cpu, int dealt) {
    hpc_engine *e = m->engine;
    hpc_thread *t = find(e, number), *fresh = t == NULL ? make(e, number, cpu, dealt) : NULL;
    hpc_station *s = t == NULL && fresh == NULL ? NULL : hpc_task_place(m, task);
    if (s == NULL) {
        if (fresh != NULL) free_thread(fresh);
        return NULL;
    }
    atomic_store(&s->by, number);
    if (fresh != NULL && !start(fresh)) {
        atomic_store(&s->by, HPC_BY_NOBODY);
        hpc_station_retire(s);
        free_thread(fresh);
        return NULL;
    }
    if (fresh != NULL) {
        fresh->next = e->threads;
        e->threads = t = fresh;
    }
    t->n_tasks++;
    if (dealt > t->dealt) {
        t->dealt = dealt;
        atomic_store(&t->cpu, cpu);
    }
    if (fresh == NULL) atomic_fetch_add(&t->changes, 1);
    return t;
}

hpc_thread *hpc_crew_add(hpc_member *m, hpc_task *task, int number, int cpu, int dealt) {
    hpc_engine *e = m->engine;
    pthread_mutex_lock(&e->lock);
    for (const hpc_thread *old = find(e, number); old != NULL && atomic_load(&old->stopping); old = find(e, number)) {
        pthread_mutex_unlock(&e->lock); /* a thread of this number ends in hpc_crew_remove */
        sched_yield();
        pthread_mutex_lock(&e->lock);
    }
    hpc_thread *t = add(m, task, number, cpu, dealt);
    pthread_mutex_unlock(&e->lock);
    hpc_engine_ring(e);
    while (t != NULL && atomic_load_explicit(&t->started, memory_order_acquire) == 0) sched_yield();
    return t;
}

/* Ends a thread that has no tasks, and takes it out of the engine. Threads that have removed other tasks still look at
 * seen. */
static void end(hpc_thread *t) {
    hpc_engine *e = t->engine;
    pthread_join(t->handle, NULL);
    while (atomic_load(&t->onlookers) != 0) sched_yield();
    pthread_mutex_lock(&e->lock);
    hpc_thread **at = &e->threads;
    while (*at != t) at = &(*at)->next;
    *at = t->next;
    pthread_mutex_unlock(&e->lock);
    free_thread(t);
}

/* The thread forgets the station before this returns, so the member may then leave. A station is freed and no longer
 * counted in one step: the thread ends when it serves none, and a task that came in between would have a thread that
 * has ended. */
void hpc_crew_remove(hpc_thread *t, hpc_task *task) {
    hpc_engine *e = t->engine;
    hpc_task_end(task);
    pthread_mutex_lock(&e->lock);
    hpc_task_leave(task);
    const int last = --t->n_tasks == 0;
    if (last)
        atomic_store(&t->stopping, 1);
    else
        atomic_fetch_add(&t->onlookers, 1);
    const unsigned change = atomic_fetch_add(&t->changes, 1) + 1;
    pthread_mutex_unlock(&e->lock);
    hpc_engine_ring(e);
    if (last) {
        end(t);
    } else {
        while ((int)(atomic_load(&t->seen) - change) < 0) sched_yield();
        atomic_fetch_sub(&t->onlookers, 1);
    }
}

int hpc_crew_cpu(const hpc_member *m, int number, int cpu, int dealt) {
    pthread_mutex_lock(&m->engine->lock);
    const hpc_thread *t = find(m->engine, number);
    if (t != NULL && !atomic_load(&t->stopping) && dealt <= t->dealt) cpu = atomic_load(&t->cpu);
    pthread_mutex_unlock(&m->engine->lock);
    return cpu;
}
