/* A group: the data about a context's ranks that waits use, and the parts of a wait. */
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
    _Alignas(64) _Atomic uint32_t sleepers; /* number of threads that sleep, or look a last time before it */
    _Alignas(64) _Atomic uint32_t rings;    /* the futex word; a ring adds 1 */
    _Atomic int alarm; /* 1 + an eventfd that a ring also writes to, if only the owner maps the bell; else 0 */
} hpc_bell;

enum { HPC_NOTE_BYTES = 200, HPC_NOTES = 16 };

/* A bed: a set of sockets on which a wait may sleep instead of on the futex, so that a message wakes it directly. Only
 * one thread at a time can use it. A wait calls claim() before its last look at the condition. It calls leave() after
 * the sleep, or when it does not sleep. sleep() takes its thread out of the bell's sleepers before it handles the
 * message that woke the thread: handling may ring the bell, which would otherwise wake the thread again. A wait that
 * will sleep elsewhere calls refuse() instead of claim(); another thread then handles the messages. */
typedef struct hpc_bed {
    int (*claim)(void *arg);
    void (*refuse)(void *arg);
    int (*sleep)(void *arg, double seconds); /* returns nonzero if it left some of the messages unhandled */
    void (*leave)(void *arg);
} hpc_bed;

/* The kind of a wait's look for progress. A look just before or after a sleep in the bed (HPC_LOOKS_BESIDE_BED) skips
 * the transports whose messages end such a sleep (hpc_transport.wakes_beds). A look after which the wait does not sleep
 * (HPC_LOOKS_BRIEFLY) skips most runs of other exchanges' tasks that have been idle. */
typedef enum hpc_looker { HPC_LOOKS_ALL = 0, HPC_LOOKS_BESIDE_BED, HPC_LOOKS_BRIEFLY } hpc_looker;

/* Bits of the result of progress(), which tell the wait whether to look again at once or after a while. With 0 the wait
 * may sleep on its bell. */
typedef enum hpc_left_over {
    HPC_LEFT = 1,    /* more has come, or another thread works on it */
    HPC_AWAITED = 2, /* something will come that rings no bell, perhaps only after a long time */
    HPC_MORE = 4     /* with HPC_LEFT: the caller itself has more to do, so it must not yield */
} hpc_left_over;

/* Other groups of this rank, for which the waits of a group work too (base/engine.h). */
typedef struct hpc_companion {
    struct hpc_group *group;
    void *of;       /* the company's */
    uint32_t rings; /* of the group's bell, before the wait's last look */
} hpc_companion;

typedef struct hpc_company {
    int (*help)(void *arg, hpc_looker looker); /* works for the others; returns hpc_left_over */
    /* Before a sleep: writes the others, at most so many, and keeps their bells mapped until part(). Returns how
     * many. */
    int (*join)(void *arg, hpc_companion *others, int most);
    void (*part)(hpc_companion *others, int n);
} hpc_company;

/* A question to other ranks: which ranks hold this wait up? */
typedef enum hpc_asks {
    HPC_ASK_ENDS = 0, /* find the ends of the chains that begin with a wait for waiting_for */
    HPC_ASK_CAUSES,   /* ask only the ranks in waiting_for, which have closed an exchange, for their culprits */
    HPC_ASK_WHO_WAITS /* ask the ranks of waiting_for in turn, and find the first that has waited for `waited` seconds
                         itself */
} hpc_asks;

typedef struct hpc_inquiry {
    hpc_asks asks;
    hpc_doing doing; /* the call of the wait, by the name that others see */
    const int *waiting_for;
    int n;
    double waited, most; /* seconds. waited: how long the wait has lasted; most: how long the answers may take */
    uint64_t moved;      /* result: sum of hpc_watch_moved of all ranks that were asked */
    int n_culprits;
    hpc_culprit culprits[HPC_BLAMED];
    char way[256]; /* result: the chain from a rank of waiting_for to the first culprit; "" if that culprit is in
                      waiting_for, or in a circle */
} hpc_inquiry;

/* Asks the question; sets n_culprits 0 if no culprit is found. It may block for inquiry->most seconds. */
typedef void hpc_follow(void *arg, hpc_inquiry *inquiry);

/* Whether a rank departs because of other ranks. The first thread that learns of a departure writes this value, then
 * the reason, then the rank's state. */
typedef enum hpc_departing { HPC_GOES_BY_ITSELF = 1, HPC_GOES_BECAUSE = 2 /* of other ranks */ } hpc_departing;

/* The facts about a group that its waits use. */
typedef struct hpc_group {
    int rank, size;
    double timeout, spin, yield;
    int eases;    /* 1: a thread that other threads keep from its CPU neither spins nor yields, but sleeps at once */
    double slice; /* slice and the next four fields are copied from hpc_config */
    double look_after; /* seconds; 0: never look */
    double init_timeout;
    void (*warn)(void *arg, const char *sentence);
    void *warn_arg;
    uint64_t serial;                   /* number that hpc_group_enter gave; 0: not entered */
    struct hpc_group *next;            /* the group that was entered before this one */
    _Atomic int *states;               /* by rank: hpc_peer_state */
    _Atomic char *departing;           /* by rank: hpc_departing; written before its state */
    char (*reasons)[HPC_REASON_BYTES]; /* by rank: why the rank failed; written before its state */
    hpc_blame blame;
    hpc_follow *follow; /* NULL: no rank can be asked */
    void *follow_arg;
    _Atomic int departures; /* number of ranks that left or failed; while it is 0, waits need not look at states */
    _Atomic int revoked;    /* 1: ranks that left count as failed (hpc_context_revoke) */
    _Atomic int closed;
    hpc_bell *bell;
    const char *owner; /* a page whose first byte is 1; the kernel zeroes it in a forked child */
    /* Works for transports and schemes; returns hpc_left_over bits. NULL: there is no such work. */
    int (*_Atomic progress)(void *arg, hpc_looker looker);
    void *progress_arg;
    const hpc_bed *bed; /* NULL: waits sleep on the futex alone */
    void *bed_arg;
    /* hpc_beside_count of it is how many tasks waits run in the other groups of this rank; the bits above change each
     * time that such a task comes or goes. */
    _Atomic uint32_t beside;
    const hpc_company *company; /* NULL only while there are none */
    void *company_arg;
    char notes[HPC_NOTES][HPC_NOTE_BYTES]; /* the notes of hpc_context_note; each is written once, before the field
                                              noted counts it */
    int note_kinds[HPC_NOTES];             /* by note: hpc_note_kind, also written before noted */
    _Atomic int noting, noted;
    hpc_watch watch;
    hpc_timeline *timeline; /* NULL: no timeline was asked for */
} hpc_group;

typedef struct hpc_wait {
    const char *op;
    int (*ready)(void *arg); /* returns nonzero when the wait is over; called often, also after that */
    int (*waiting_for)(void *arg, int *ranks); /* lists the ranks for which it waits; returns how many */
    void *arg;
    int every; /* 1: every rank must make the call op */
    /* Called when a wait that is not over at once begins and ends: meanwhile its ready works for the object attended,
     * so other waits need not. NULL: it works for none. */
    void (*attend)(void *attended, int begins);
    void *attended;
    /* Called with arg when the wait has lasted `after` seconds; then the wait is shown again. Returns the seconds until
     * its next call. NULL: never called. */
    double (*later)(void *arg);
    double after;
} hpc_wait;

enum { HPC_BESIDE_BITS = 16 };

static inline int hpc_beside_count(uint32_t beside) {
    return (int)(beside & ((1u << HPC_BESIDE_BITS) - 1));
}

static inline int hpc_group_is_mine(const hpc_group *group) {
    return *(volatile const char *)group->owner == 1;
}

/* Adds a note (hpc_note_kind) from any thread; only the first HPC_NOTES are kept. */
void hpc_group_note(hpc_group *group, int kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *hpc_group_note_at(const hpc_group *group, int i); /* returns note i; NULL past the end */

/* Forgets the culprits that earlier tries of the wait in op found, because the wait has succeeded. */
static inline void hpc_group_settle(hpc_group *group, const char *op) {
    hpc_blame_settle(&group->blame, op, atomic_load_explicit(&group->watch.step, memory_order_relaxed));
}

static inline int hpc_group_has_departed(const hpc_group *group, int rank) {
    int state = atomic_load_explicit(&group->states[rank], memory_order_acquire);
    return state == HPC_PEER_LEFT || state == HPC_PEER_FAILED;
}

/* Returns whether a departed rank left because of other ranks. */
static inline int hpc_group_left_because(const hpc_group *group, int rank) {
    return atomic_load_explicit(&group->departing[rank], memory_order_relaxed) == HPC_GOES_BECAUSE;
}

/* Works for the group, besides the caller's own work; returns hpc_left_over. */
static inline int hpc_group_look(hpc_group *group, hpc_looker looker) {
    int (*progress)(void *, hpc_looker) = atomic_load_explicit(&group->progress, memory_order_acquire);
    return progress == NULL ? 0 : progress(group->progress_arg, looker);
}

static inline int hpc_group_progress(hpc_group *group) {
    return hpc_group_look(group, HPC_LOOKS_ALL);
}

#endif
