#include "base/engine.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/wait.h"

static pthread_mutex_t owning = PTHREAD_MUTEX_INITIALIZER; /* guards own, and the references of all engines */
static hpc_engine *own;                                    /* the process's */

/* ---- engines ---- */

hpc_engine *hpc_engine_new(void) {
    hpc_engine *e = calloc(1, sizeof *e);
    if (e == NULL) return NULL;
    e->owner = hpc_owner_page();
    if (e->owner == NULL) {
        free(e);
        return NULL;
    }
    e->references = 1;
    pthread_mutex_init(&e->lock, NULL);
    return e;
}

int hpc_engine_is_mine(const hpc_engine *e) {
    return *(volatile const char *)e->owner == 1;
}

hpc_engine *hpc_engine_retain(hpc_engine *e) {
    pthread_mutex_lock(&owning);
    if (e != NULL) {
        e->references++;
    } else if (own != NULL && hpc_engine_is_mine(own)) { /* not that of a process that forked this one */
        e = own;
        e->references++;
    } else {
        e = own = hpc_engine_new();
    }
    pthread_mutex_unlock(&owning);
    return e;
}

static void free_engine(hpc_engine *e) {
    for (hpc_member *m = atomic_load(&e->members), *next; m != NULL; m = next) {
        for (hpc_station *s = atomic_load(&m->stations), *after; s != NULL; s = after) {
            after = s->next;
            free(s);
        }
        next = m->next;
        free(m);
    }
    hpc_owner_page_free(e->owner);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

void hpc_engine_release(hpc_engine *e) {
    if (e == NULL || !hpc_engine_is_mine(e)) return;
    pthread_mutex_lock(&owning);
    const int last = --e->references == 0;
    if (last && own == e) own = NULL;
    pthread_mutex_unlock(&owning);
    if (last) free_engine(e);
}

/* ---- tasks ---- */

/* Acquire here, release in leave: a thread that runs the task sees all that the last one did. */
static int take(hpc_station *s) {
    return atomic_load_explicit(&s->busy, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&s->busy, 1, memory_order_acquire) == 0;
}

static void leave(hpc_station *s) {
    atomic_store_explicit(&s->busy, 0, memory_order_release);
}

/* The context is aborted while the station is taken: the task's scheme, which waits for the station before it is freed,
 * holds the context. */
static inline int run(hpc_station *s, int *left, double *due) {
    int worked = 0, over = 0;
    if (!take(s)) {
        *left |= HPC_LEFT;
        return 0;
    }
    hpc_task *t = s->task;
    if (t != NULL) {
        const char *failure = t->run(t);
        worked = t->worked;
        if (t->due < *due) *due = t->due;
        if (hpc_turn_is_over(t)) {
            atomic_fetch_sub_explicit(&t->stops, HPC_TURN_IS_OVER, memory_order_relaxed);
            *left |= HPC_LEFT | HPC_MORE;
            over = 1;
        }
        if (failure != NULL) {
            s->task = NULL;
            s->member->fail(s->member->group, failure);
        }
    }
    /* Read while the station is taken: its member may leave afterwards. */
    const hpc_group *group = atomic_load_explicit(&s->member->group, memory_order_relaxed);
    leave(s);
    /* This wait may be over before the rest is done: then another one must go on. */
    if (over && atomic_load_explicit(&s->by, memory_order_relaxed) == HPC_BY_WAITS) hpc_bell_ring(group->bell);
    return worked;
}

int hpc_station_run(hpc_station *s, int *left) {
    s->due = INFINITY;
    return run(s, left, &s->due);
}

void hpc_station_retire(hpc_station *s) {
    while (!take(s)) sched_yield();
    if (s->task != NULL && !hpc_task_stops(s->task)) s->task = NULL;
    leave(s);
}

static int left_until(double due) {
    if (due >= INFINITY) return 0;
    return due <= 0 ? HPC_AWAITED | HPC_LEFT | HPC_MORE : HPC_AWAITED; /* no bell rings then */
}

int hpc_task_run(hpc_task *t) {
    int left = 0;
    double due = INFINITY;
    run(t->station, &left, &due);
    return left | left_until(due);
}

/* ---- attendance ---- */

/* When the attendance ends, something may have come that no wait has seen, and a wait that skipped the task may have
 * begun to sleep, also on this bell: the ring wakes it. */
void hpc_task_attend(hpc_task *t, int begins) {
    hpc_station *s = t->station;
    const hpc_group *group = atomic_load_explicit(&s->member->group, memory_order_relaxed);
    atomic_store_explicit(&s->attended_by, begins ? (uintptr_t)pthread_self() : 0, memory_order_relaxed);
    const int others = atomic_load_explicit(&s->member->n_by_waits, memory_order_relaxed) - 1 +
                       hpc_beside_count(atomic_load_explicit(&group->beside, memory_order_relaxed));
    if (!begins && others > 0) hpc_bell_ring(group->bell);
}

/* Returns whether a brief look passes over something that has been idle: once many looks found nothing to do, most
 * do. */
static int is_passed_over(_Atomic int *idle) {
    enum { PATIENT = 64, ONE_OF = 16 };
    const int n = atomic_load_explicit(idle, memory_order_relaxed);
    atomic_store_explicit(idle, n < PATIENT + ONE_OF - 1 ? n + 1 : PATIENT, memory_order_relaxed);
    return n > PATIENT;
}

static void help_station(hpc_station *s, int *left, double *due) {
    if (run(s, left, due) == 0) return;
    atomic_store_explicit(&s->idle, 0, memory_order_relaxed);
    atomic_store_explicit(&s->member->idle, 0, memory_order_relaxed);
}

int hpc_member_work(hpc_member *m, hpc_looker looker) {
    int left = 0;
    double due = INFINITY;
    const int n = atomic_load_explicit(&m->n_by_waits, memory_order_relaxed);
    if (n == 0) return 0;
    for (hpc_station *s = atomic_load_explicit(&m->stations, memory_order_acquire); s != NULL; s = s->next) {
        if (atomic_load_explicit(&s->by, memory_order_relaxed) != HPC_BY_WAITS) continue;
        const uintptr_t attendant = atomic_load_explicit(&s->attended_by, memory_order_relaxed);
        if (attendant == 0) {
            if (n == 1 || looker != HPC_LOOKS_BRIEFLY || !is_passed_over(&s->idle)) help_station(s, &left, &due);
        } else if (attendant == (uintptr_t)pthread_self()) {
            run(s, &left, &due);
        }
    }
    return left | left_until(due);
}

void hpc_task_hold(hpc_task *t) {
    atomic_fetch_add(&t->stops, 1);
    while (!take(t->station)) sched_yield();
}

void hpc_task_let(hpc_task *t) {
    hpc_bell *bell = t->station->member->group->bell;
    atomic_fetch_sub(&t->stops, 1);
    leave(t->station);
    hpc_bell_ring(bell); /* the thread may have slept although something came */
}

static hpc_station *free_station(hpc_member *m) {
    hpc_station *s = atomic_load(&m->stations);
    while (s != NULL && atomic_load(&s->by) != HPC_BY_NOBODY) s = s->next;
    if (s != NULL || (s = calloc(1, sizeof *s)) == NULL) return s;
    atomic_init(&s->by, HPC_BY_NOBODY);
    s->member = m;
    s->next = atomic_load(&m->stations);
    atomic_store(&m->stations, s);
    return s;
}

hpc_station *hpc_task_place(hpc_member *m, hpc_task *t) {
    hpc_station *s = free_station(m);
    if (s == NULL) return NULL;
    while (!take(s)) sched_yield();
    s->task = t;
    atomic_store_explicit(&s->served, -1, memory_order_relaxed);
    atomic_store_explicit(&s->has_more, 0, memory_order_relaxed);
    atomic_store_explicit(&s->attended_by, 0, memory_order_relaxed);
    t->station = s;
    leave(s);
    return s;
}

/* ---- using a member ---- */

/* Returns the group of a member that it now uses; NULL if the member is free. A member that leaves clears its group
 * before it looks at users, and this thread counts as a user before it looks at the group, so one of the two sees the
 * other. */
hpc_group *hpc_member_use(hpc_member *m) {
    atomic_fetch_add(&m->users, 1);
    hpc_group *group = atomic_load(&m->group);
    if (group == NULL) atomic_fetch_sub(&m->users, 1);
    return group;
}

void hpc_member_let_go(hpc_member *m) {
    atomic_fetch_sub(&m->users, 1);
}

void hpc_engine_ring(hpc_engine *e) {
    for (hpc_member *m = atomic_load(&e->members); m != NULL; m = m->next) {
        hpc_group *group = hpc_member_use(m);
        if (group == NULL) continue;
        hpc_bell_ring(group->bell);
        hpc_member_let_go(m);
    }
}

/* hpc_group.beside of a member's group */
static uint32_t beside(const hpc_member *m) {
    return m->engine->changes << HPC_BESIDE_BITS | (uint32_t)(m->engine->n_by_waits - atomic_load(&m->n_by_waits));
}

/* Counts a task of m that waits run. The engine's lock is held. */
static void count_by_waits(hpc_member *m, int n) {
    atomic_fetch_add(&m->n_by_waits, n);
    m->engine->n_by_waits += n;
    m->engine->changes++;
    for (hpc_member *other = atomic_load(&m->engine->members); other != NULL; other = other->next) {
        hpc_group *group = hpc_member_use(other);
        if (group == NULL) continue;
        atomic_store(&group->beside, beside(other));
        hpc_member_let_go(other);
    }
}

int hpc_task_add(hpc_member *m, hpc_task *t) {
    pthread_mutex_lock(&m->engine->lock);
    hpc_station *s = hpc_task_place(m, t);
    if (s != NULL) {
        atomic_store(&s->by, HPC_BY_WAITS);
        count_by_waits(m, 1);
    }
    pthread_mutex_unlock(&m->engine->lock);
    if (s != NULL) hpc_engine_ring(m->engine); /* waits in other contexts work for this task too from now on */
    return s != NULL;
}

void hpc_task_end(hpc_task *t) {
    hpc_station *s = t->station;
    hpc_task_hold(t);
    s->task = NULL;
    leave(s);
}

void hpc_task_leave(hpc_task *t) {
    hpc_station *s = t->station;
    if (atomic_exchange(&s->by, HPC_BY_NOBODY) == HPC_BY_WAITS) count_by_waits(s->member, -1);
    t->station = NULL;
}

void hpc_task_remove(hpc_task *t) {
    hpc_engine *e = t->station->member->engine;
    hpc_task_end(t);
    pthread_mutex_lock(&e->lock);
    hpc_task_leave(t);
    pthread_mutex_unlock(&e->lock);
}

/* ---- members ---- */

/* Returns the first of m and the members after it, but not of itself, for which waits work. */
static hpc_member *served(hpc_member *m, const hpc_member *itself) {
    while (m != NULL && (m == itself || atomic_load_explicit(&m->n_by_waits, memory_order_relaxed) == 0)) m = m->next;
    return m;
}

static hpc_member *first_served(const hpc_member *itself) {
    return served(atomic_load_explicit(&itself->engine->members, memory_order_acquire), itself);
}

/* hpc_company.help */
static int help(void *arg, hpc_looker looker) {
    hpc_member *itself = arg;
    int left = 0;
    for (hpc_member *m = first_served(itself); m != NULL; m = served(m->next, itself)) {
        if (looker == HPC_LOOKS_BRIEFLY && is_passed_over(&m->idle)) continue;
        hpc_group *group = hpc_member_use(m);
        if (group == NULL) continue;
        if (!atomic_load_explicit(&group->closed, memory_order_acquire)) left |= hpc_group_progress(group);
        hpc_member_let_go(m);
    }
    return left;
}

/* hpc_company.join */
static int join(void *arg, hpc_companion *others, int most) {
    hpc_member *itself = arg;
    int n = 0;
    for (hpc_member *m = first_served(itself); m != NULL && n < most; m = served(m->next, itself)) {
        hpc_group *group = hpc_member_use(m);
        if (group != NULL) others[n++] = (hpc_companion){.group = group, .of = m};
    }
    return n;
}

/* hpc_company.part */
static void part(hpc_companion *others, int n) {
    for (int i = 0; i < n; i++) hpc_member_let_go(others[i].of);
}

static const hpc_company company = {help, join, part};

static hpc_member *free_member(hpc_engine *e) {
    hpc_member *m = atomic_load(&e->members);
    while (m != NULL && atomic_load(&m->group) != NULL) m = m->next;
    if (m != NULL || (m = calloc(1, sizeof *m)) == NULL) return m;
    m->engine = e;
    m->next = atomic_load(&e->members);
    atomic_store(&e->members, m);
    return m;
}

hpc_member *hpc_engine_join(hpc_engine *engine, hpc_group *group, void (*fail)(hpc_group *group, const char *why)) {
    hpc_engine *e = hpc_engine_retain(engine);
    if (e == NULL) return NULL;
    pthread_mutex_lock(&e->lock);
    hpc_member *m = free_member(e);
    if (m != NULL) {
        m->fail = fail;
        group->company_arg = m;
        group->company = &company;
        atomic_store(&group->beside, beside(m));
        atomic_store(&m->group, group);
    }
    pthread_mutex_unlock(&e->lock);
    if (m == NULL) {
        hpc_engine_release(e);
        return NULL;
    }
    return m;
}

void hpc_engine_leave(hpc_member *m) {
    if (m == NULL) return;
    hpc_bell *bell = atomic_load(&m->group)->bell;
    atomic_store(&m->group, NULL);
    for (; atomic_load(&m->users) != 0; sched_yield()) hpc_bell_ring(bell);
    hpc_engine_release(m->engine);
}
