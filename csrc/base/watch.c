#include "base/watch.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hpcomm/hpcomm.h"

/* ---- calls ---- */

enum { MOST_CALLS = 1000 };

/* A call. It never changes after it was listed, and is never freed, because other threads read a wait's name at any
 * time. */
struct hpc_calling {
    const hpc_calling *next;
    int every, number; /* number of calls listed before it */
    char name[HPC_CALLING_BYTES];
};

static _Atomic(const hpc_calling *) calls;
static _Thread_local const hpc_calling *entered;

static const hpc_calling *find_call(const hpc_calling *at, const hpc_calling *like) {
    while (at != NULL && (strcmp(at->name, like->name) != 0 || at->every != like->every)) at = at->next;
    return at;
}

const hpc_calling *hpc_calling_named(const char *name, int every) {
    hpc_calling *own = malloc(sizeof *own);
    if (own == NULL || name == NULL) {
        free(own);
        return NULL;
    }
    own->every = every != 0;
    snprintf(own->name, sizeof own->name, "%s", name);
    const hpc_calling *first = atomic_load_explicit(&calls, memory_order_acquire), *found;
    for (;;) {
        found = find_call(first, own);
        own->number = first == NULL ? 0 : first->number + 1;
        if (found != NULL || own->number >= MOST_CALLS) break;
        own->next = first;
        /* release: the name is written before another thread can find the call */
        if (atomic_compare_exchange_strong_explicit(&calls, &first, own, memory_order_release, memory_order_acquire))
            return own;
    }
    free(own);
    return found;
}

const hpc_calling *hpc_calling_enter(const hpc_calling *call) {
    const hpc_calling *before = entered;
    entered = call;
    return before;
}

hpc_doing hpc_doing_of(const char *op, int every) {
    return entered == NULL ? (hpc_doing){op, every} : (hpc_doing){entered->name, entered->every};
}

/* ---- waits ---- */

static void lock(hpc_watch *w) {
    while (atomic_exchange_explicit(&w->busy, 1, memory_order_acquire)) sched_yield();
}

static void unlock(hpc_watch *w) {
    atomic_store_explicit(&w->busy, 0, memory_order_release);
}

static const void *this_thread(void) {
    static _Thread_local char mine;
    return &mine;
}

/* Returns a place for a new wait: the one that this thread has just left, if this wait continues that one; otherwise
 * the one that has been free for longest; -1 if all are taken. */
static int find_place(hpc_watch *w, hpc_doing doing, double start) {
    int best = -1;
    for (int i = 0; i < HPC_WATCHED; i++) {
        hpc_watched *at = &w->waits[i];
        if (at->thread == this_thread() && at->until > 0 && start - at->until < at->grace) {
            if (strcmp(at->doing.op, doing.op) == 0) return i;
            at->grace = 0;
        }
        if (at->thread != NULL && at->until == 0) continue;
        if (best < 0 || at->until < w->waits[best].until) best = i;
    }
    if (best >= 0) w->waits[best] = (hpc_watched){.thread = this_thread(), .doing = doing, .since = start};
    return best;
}

int hpc_watch_wait(hpc_watch *w, int place, hpc_doing doing, const int *ranks, int n, double *since) {
    lock(w);
    if (place < 0) place = find_place(w, doing, *since);
    if (place >= 0) {
        hpc_watched *at = &w->waits[place];
        *since = at->since;
        at->until = 0;
        at->n_ranks = n;
        memcpy(at->ranks, ranks, (size_t)(n < HPC_WATCHED_RANKS ? n : HPC_WATCHED_RANKS) * sizeof *ranks);
    }
    unlock(w);
    return place;
}

void hpc_watch_end(hpc_watch *w, int place, double grace, double now) {
    if (place < 0) return;
    lock(w);
    w->waits[place].until = now;
    w->waits[place].grace = grace;
    unlock(w);
}

int hpc_watch_read(hpc_watch *w, double now, hpc_watched *waits, double *ended) {
    int n = 0;
    *ended = 0;
    lock(w);
    for (int i = 0; i < HPC_WATCHED; i++) {
        const hpc_watched *at = &w->waits[i];
        if (at->until > *ended) *ended = at->until;
        if (at->thread == NULL || (at->until > 0 && now - at->until >= at->grace)) continue;
        int k = n++;
        for (; k > 0 && waits[k - 1].since > at->since; k--) waits[k] = waits[k - 1];
        waits[k] = *at;
    }
    unlock(w);
    return n;
}

/* ---- moved data ---- */

void hpc_watch_add(hpc_watch *w, hpc_mover *mover) {
    lock(w);
    mover->next = w->movers;
    w->movers = mover;
    unlock(w);
}

void hpc_watch_remove(hpc_watch *w, hpc_mover *mover) {
    lock(w);
    for (hpc_mover **at = &w->movers; *at != NULL; at = &(*at)->next)
        if (*at == mover) {
            *at = mover->next;
            break;
        }
    unlock(w);
}

uint64_t hpc_watch_moved(hpc_watch *w) {
    uint64_t moved = atomic_load_explicit(&w->moved, memory_order_relaxed);
    lock(w);
    for (const hpc_mover *at = w->movers; at != NULL; at = at->next) moved += at->count(at->arg);
    unlock(w);
    return moved;
}
