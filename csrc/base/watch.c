#include "base/watch.h"

#include <sched.h>
#include <stddef.h>
#include <string.h>

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

/* A place for a new wait: the one that this thread has just left, where this goes on; else the one that has been free
 * for longest; -1 if there is none. */
static int find_place(hpc_watch *w, const char *op, double start) {
    int best = -1;
    for (int i = 0; i < HPC_WATCHED; i++) {
        hpc_watched *at = &w->waits[i];
        if (at->thread == this_thread() && at->until > 0 && start - at->until < at->grace) {
            if (strcmp(at->op, op) == 0) return i;
            at->grace = 0;
        }
        if (at->thread != NULL && at->until == 0) continue;
        if (best < 0 || at->until < w->waits[best].until) best = i;
    }
    if (best >= 0) w->waits[best] = (hpc_watched){.thread = this_thread(), .op = op, .since = start};
    return best;
}

int hpc_watch_wait(hpc_watch *w, int place, const char *op, const int *ranks, int n, double *since) {
    lock(w);
    if (place < 0) place = find_place(w, op, *since);
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
