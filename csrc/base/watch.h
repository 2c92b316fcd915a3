/* The state that a rank shows to others while it runs (hpcomm status): its step, and the ranks for which its threads
 * wait.
 *
 * A wait writes to its watch only when it sleeps, or has lasted for long; the service thread reads. The field step is
 * not ordered with other data. All fields that are not atomic are guarded by the field busy, a spin lock that is held
 * while a few hundred bytes are copied. */
#ifndef HPC_WATCH_H
#define HPC_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

enum { HPC_WATCHED = 8, HPC_WATCHED_RANKS = 16 };

/* The call in which a thread waits. op must live as long as the process. */
typedef struct hpc_doing {
    const char *op;
    int every; /* 1: every rank must make the call */
} hpc_doing;

/* Returns the call that this thread is in (hpc_calling_enter); if it is in no call, the given op and every. */
hpc_doing hpc_doing_of(const char *op, int every);

typedef struct hpc_watched {
    const void *thread; /* an address that identifies the thread; NULL: this place was never used */
    hpc_doing doing;
    double since;
    double until; /* when the wait ended; 0 while it lasts */
    double grace; /* seconds after the time `until` within which the wait may continue, if it was a slice of a longer
                     wait */
    int n_ranks;  /* number of ranks waited for; the first HPC_WATCHED_RANKS are in ranks */
    int ranks[HPC_WATCHED_RANKS];
} hpc_watched;

typedef struct hpc_watch {
    _Atomic uint64_t step;  /* the most pushes of one key, or sends to one peer, that a trainer here has made */
    _Atomic uint64_t moved; /* counts sends, and arrivals over a network */
    _Atomic int connected;  /* 1: the facts about peers are complete, and do not change any more */
    _Atomic int busy;
    hpc_watched waits[HPC_WATCHED];
    struct hpc_mover *movers; /* under busy */
} hpc_watch;

/* An object with its own count of moved data, which hpc_watch_moved adds to its result. count is called while busy is
 * held. */
typedef struct hpc_mover {
    uint64_t (*count)(const void *arg);
    const void *arg;
    struct hpc_mover *next;
} hpc_mover;

void hpc_watch_add(hpc_watch *w, hpc_mover *mover);
void hpc_watch_remove(hpc_watch *w, hpc_mover *mover); /* ignores a mover that was never added */

/* Returns a count of all that this rank has sent, received or worked on; the count does not change in a deadlock. */
uint64_t hpc_watch_moved(hpc_watch *w);

static inline void hpc_watch_step(hpc_watch *w, uint64_t step) {
    if (step > atomic_load_explicit(&w->step, memory_order_relaxed))
        atomic_store_explicit(&w->step, step, memory_order_relaxed);
}

static inline void hpc_watch_move(hpc_watch *w) {
    atomic_fetch_add_explicit(&w->moved, 1, memory_order_relaxed);
}

/* Shows that the calling thread has waited in a call since *since, now for n ranks. place is -1 at first, then the
 * value that this function returned, which stays -1 if all places are taken. A wait that begins within the grace of the
 * last wait of the same thread and call continues that one, and *since becomes that one's start, because Python waits
 * in slices. */
int hpc_watch_wait(hpc_watch *w, int place, hpc_doing doing, const int *ranks, int n, double *since);

/* Ends the wait at place. For grace seconds it still counts as lasting, unless its thread waits for something else. */
void hpc_watch_end(hpc_watch *w, int place, double grace, double now);

/* Copies the waits that still last, longest first, into waits[HPC_WATCHED], and returns how many. *ended: when the last
 * of the other waits ended; 0 without other waits. */
int hpc_watch_read(hpc_watch *w, double now, hpc_watched *waits, double *ended);

#endif
