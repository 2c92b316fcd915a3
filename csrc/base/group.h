/* A group: the ranks of a context as its waits see them, and the parts of a wait. */
#ifndef HPC_GROUP_H
#define HPC_GROUP_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/blame.h"
#include "base/host.h"
#include "base/status.h"
#include "base/timeline.h"
#include "base/watch.h"

typedef struct hpc_bell {
    _Alignas(64) _Atomic uint32_t sleepers; /* threads between "about to look once more" and "awake" */
    _Alignas(64) _Atomic uint32_t rings;    /* the futex word */
    _Atomic int alarm; /* 1 + an eventfd to write to as well, where the bell is mapped by its owner alone; else 0 */
} hpc_bell;

enum { HPC_NOTE_BYTES = 200, HPC_NOTES = 16 };

/* A place where a wait may sleep instead of on the futex: a set of sockets, which wakes it without a detour. Only one
 * thread can at a time. claim comes before the last look at the condition; leave after the sleep, or without one. sleep
 * takes its thread out of the bell's sleepers before it handles what woke it, which would ring for itself otherwise. */
typedef struct hpc_bed {
    int (*claim)(void *arg);
    int (*sleep)(void *arg, double seconds); /* nonzero if more is left than it has handled */
    void (*leave)(void *arg);
} hpc_bed;

/* The place of a look for progress in a wait. A look just before or after a sleep in the bed asks no transport whose
 * news ends such a sleep (hpc_transport.wakes_beds). */
typedef enum hpc_looker { HPC_LOOKS_ALL = 0, HPC_LOOKS_BESIDE_BED } hpc_looker;

/* The answer of progress. A wait looks again at once, or in a while; with nothing left it may sleep on its bell. */
typedef enum hpc_left_over {
    HPC_LEFT = 1,    /* more has come, or another thread is at it */
    HPC_AWAITED = 2, /* something is to come that rings no bell, and it may be long */
    HPC_MORE = 4     /* beside HPC_LEFT: the caller itself has more to do, and does not yield */
} hpc_left_over;

/* A question to other ranks: because of whom does nothing come? */
typedef enum hpc_asks {
    HPC_ASK_ENDS = 0, /* the ends of the chains that begin with a wait for waiting_for */
    HPC_ASK_CAUSES,   /* the ranks in waiting_for have closed an exchange: only they are asked, for their culprits */
    HPC_ASK_WHO_WAITS /* the first rank of waiting_for that has waited itself for `waited` seconds: asked in turn */
} hpc_asks;

typedef struct hpc_inquiry {
    hpc_asks asks;
    hpc_doing doing; /* of the wait, by the names that others see */
    const int *waiting_for;
    int n;
    double waited, most; /* seconds: so far, and for the answers */
    uint64_t moved;      /* by all that were asked, see hpc_watch */
    int n_culprits;
    hpc_culprit culprits[HPC_BLAMED];
    char way[256]; /* from one of waiting_for to the first culprit; "": directly, or a circle */
} hpc_inquiry;

/* Puts the question; 0 culprits if none can be found. It may block for most seconds. */
typedef void hpc_follow(void *arg, hpc_inquiry *inquiry);

/* How a rank departs: the first thread that learns of it writes here, then why, then the rank's state. */
typedef enum hpc_departing { HPC_GOES_BY_ITSELF = 1, HPC_GOES_BECAUSE = 2 /* of others */ } hpc_departing;

/* The facts that a wait must know of the group. */
typedef struct hpc_group {
    int rank, size;
    double timeout, spin, yield;
    int eases;         /* a thread that others keep from its CPU neither spins nor yields: it sleeps at once */
    double slice;      /* hpc_config's, as are these: */
    double look_after; /* 0: never */
    double init_timeout;
    void (*warn)(void *arg, const char *sentence);
    void *warn_arg;
    uint64_t serial;                   /* of hpc_group_enter; 0: not entered */
    struct hpc_group *next;            /* entered before this one */
    _Atomic int *states;               /* hpc_peer_state by rank */
    _Atomic char *departing;           /* by rank: hpc_departing; written before its state */
    char (*reasons)[HPC_REASON_BYTES]; /* why a rank failed; written before its state */
    hpc_blame blame;
    hpc_follow *follow; /* NULL: no rank can be asked */
    void *follow_arg;
    _Atomic int departures; /* ranks that left or failed: 0 spares the look at states */
    _Atomic int revoked;    /* a rank that left counts as failed: hpc_context_revoke */
    _Atomic int closed;
    hpc_bell *bell;
    const char *owner; /* a page that the kernel wipes in a forked child: 1 in the process that made it */
    /* Does the work of transports and schemes; hpc_left_over. NULL if they have none. */
    int (*_Atomic progress)(void *arg, hpc_looker looker);
    void *progress_arg;
    const hpc_bed *bed; /* NULL: the futex alone */
    void *bed_arg;
    char notes[HPC_NOTES][HPC_NOTE_BYTES]; /* hpc_context_note's; each written once, before noted counts it */
    int note_kinds[HPC_NOTES];             /* likewise; hpc_note_kind */
    _Atomic int noting, noted;
    hpc_watch watch;
    hpc_timeline *timeline; /* NULL: none is asked for */
} hpc_group;

typedef struct hpc_wait {
    const char *op;
    int (*ready)(void *arg);                   /* nonzero when the wait is over; called often, and again after that */
    int (*waiting_for)(void *arg, int *ranks); /* fills in the awaited ranks, at most size; how many */
    void *arg;
    int every; /* every rank must make the call op */
} hpc_wait;

static inline int hpc_group_is_mine(const hpc_group *group) {
    return *(volatile const char *)group->owner == 1;
}

/* Tells of something degraded, refused or lost (hpc_note_kind), from any thread; only the first HPC_NOTES are kept. */
void hpc_group_note(hpc_group *group, int kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *hpc_group_note_at(const hpc_group *group, int i); /* NULL past the end */

/* Forgets the culprits that earlier tries of a wait in op have found: it has succeeded. */
static inline void hpc_group_settle(hpc_group *group, const char *op) {
    hpc_blame_settle(&group->blame, op, atomic_load_explicit(&group->watch.step, memory_order_relaxed));
}

static inline int hpc_group_has_departed(const hpc_group *group, int rank) {
    int state = atomic_load_explicit(&group->states[rank], memory_order_acquire);
    return state == HPC_PEER_LEFT || state == HPC_PEER_FAILED;
}

/* Whether a rank that has departed did so because of others. */
static inline int hpc_group_left_because(const hpc_group *group, int rank) {
    return atomic_load_explicit(&group->departing[rank], memory_order_relaxed) == HPC_GOES_BECAUSE;
}

/* Does the group's work besides the caller's own; hpc_left_over. */
static inline int hpc_group_look(hpc_group *group, hpc_looker looker) {
    int (*progress)(void *, hpc_looker) = atomic_load_explicit(&group->progress, memory_order_acquire);
    return progress == NULL ? 0 : progress(group->progress_arg, looker);
}

static inline int hpc_group_progress(hpc_group *group) {
    return hpc_group_look(group, HPC_LOOKS_ALL);
}

#endif
