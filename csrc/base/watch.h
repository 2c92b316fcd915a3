/* The state that a rank shows to others while it runs (hpcomm status): its step, and the ranks that its threads wait
 * for.
 *
 * Waits write here when they sleep or have lasted for long, never before; the service thread reads. The step has no
 * order with anything. All else is guarded by busy, a spin lock that is held for a copy of a few hundred bytes. */
#ifndef HPC_WATCH_H
#define HPC_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

enum { HPC_WATCHED = 8, HPC_WATCHED_RANKS = 16 };

/* The call in which a thread waits. op lives as long as the process. */
typedef struct hpc_doing {
    const char *op;
    int every; /* every rank must make the call */
} hpc_doing;

/* The call that this thread is in (hpc_calling_enter); if it is in none, op itself. */
hpc_doing hpc_doing_of(const char *op, int every);

typedef struct hpc_watched {
    const void *thread; /* an address that only it has; NULL: no wait was here yet */
    hpc_doing doing;
    double since;
    double until; /* 0 while it lasts */
    double grace; /* seconds after until for which it may go on: it was a slice of a longer wait */
    int n_ranks;  /* all of them */
    int ranks[HPC_WATCHED_RANKS];
} hpc_watched;

typedef struct hpc_watch {
    _Atomic uint64_t step;  /* the most pushes of one key, or sends to one peer, that a trainer here has made */
    _Atomic uint64_t moved; /* counts sends and arrivals over a wire */
    _Atomic int connected;  /* the peers' facts are there, and do not change any more */
    _Atomic int busy;
    hpc_watched waits[HPC_WATCHED];
    struct hpc_mover *movers; /* under busy */
} hpc_watch;

/* An object with its own count of moved data, which hpc_watch_moved adds. count is called under busy. */
typedef struct hpc_mover {
    uint64_t (*count)(const void *arg);
    const void *arg;
    struct hpc_mover *next;
} hpc_mover;

void hpc_watch_add(hpc_watch *w, hpc_mover *mover);
void hpc_watch_remove(hpc_watch *w, hpc_mover *mover); /* one that was never added is ignored */

/* All that has been sent, has come or was worked off here; in a deadlock it stands still. */
uint64_t hpc_watch_moved(hpc_watch *w);

static inline void hpc_watch_step(hpc_watch *w, uint64_t step) {
    if (step > atomic_load_explicit(&w->step, memory_order_relaxed))
        atomic_store_explicit(&w->step, step, memory_order_relaxed);
}

static inline void hpc_watch_move(hpc_watch *w) {
    atomic_fetch_add_explicit(&w->moved, 1, memory_order_relaxed);
}

/* Shows that the calling thread has waited in a call since *since, now for n ranks. place: -1 at first, then the value
 * returned; still -1 if all places are taken. A wait that begins within the grace of its predecessor in the same thread
 * and call continues it, and *since becomes the predecessor's: Python waits in slices. */
int hpc_watch_wait(hpc_watch *w, int place, hpc_doing doing, const int *ranks, int n, double *since);

/* The wait at place is over; for grace seconds it counts as one that lasts, unless its thread waits for something
 * else. */
void hpc_watch_end(hpc_watch *w, int place, double grace, double now);

/* Copies the waits that last, longest first, into waits[HPC_WATCHED]; how many. *ended: when the last one of the others
 * did; 0: none. */
int hpc_watch_read(hpc_watch *w, double now, hpc_watched *waits, double *ended);

#endif
