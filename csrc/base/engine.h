/* An engine serves all contexts of one rank in a process, its members. It owns the threads that work for cores, and
 * deals with the work that waits do.
 *
 * A scheme gives its work to the engine as a task, which stands at a station of its context's member. A thread of the
 * engine runs the task, or the waits of this rank do, whichever was asked for. Any number of tasks stand at the
 * stations of one thread, so the threads of an engine are as many as the cores of its largest scheme.
 *
 * A wait in one context works for the other members too, and sleeps on their bells: a peer in another context may wait
 * for this rank's rows there, and this rank may wait for that peer here.
 *
 * Who writes what. A station is taken by `busy`: only the thread that set it from 0 to 1 reads or writes the task, and
 * all that the task works on; the next one that takes it sees all writes of the last. Stations and members are reused,
 * and freed with the engine, so lists of them are read without a lock; `lock` guards their changes. A member whose
 * `users` is not 0 is being served, or slept on: its context's memory stays mapped. */
#ifndef HPC_BASE_ENGINE_H
#define HPC_BASE_ENGINE_H

#include <pthread.h>

#include "base/group.h"

typedef struct hpc_engine hpc_engine;
typedef struct hpc_member hpc_member;
typedef struct hpc_station hpc_station;
typedef struct hpc_thread hpc_thread;

/* Work that is done in pieces of time, by one thread at a time. */
typedef struct hpc_task {
    /* Works until nothing is left to do at once, or until hpc_task_stops. Returns NULL, or the reason why this rank
     * has failed; the context is then aborted, and the task does not run again. */
    const char *(*run)(struct hpc_task *task);
    void *arg;
    int worked;        /* written by run: how many things it has done */
    double due;        /* written by run: the time, in seconds, at which it must run again even if no bell rings; 0: at
                          once; INFINITY: never */
    double weight;     /* its share of a thread's work, beside the weights of the thread's other tasks */
    _Atomic int stops; /* how many threads hold the task, or wait to hold it; with HPC_TURN_IS_OVER if another task is
                          behind */
    size_t spent;      /* bytes that were worked on in its present slice */
    hpc_station *station;
} hpc_task;

enum { HPC_BY_NOBODY = -2, HPC_BY_WAITS = -1, HPC_TURN_IS_OVER = 1 << 30 };
/* In bytes: after a slice a thread looks at its other tasks; a task is that much ahead of others that have more to do
 * before these get their turns. */
enum { HPC_SLICE = 128 << 10, HPC_LEAD = 1 << 20 };

struct hpc_station {
    _Atomic int busy;
    _Atomic int by; /* who runs the task: HPC_BY_WAITS, or the number of a thread; HPC_BY_NOBODY: the station is free */
    hpc_task *task; /* NULL: the task has failed, or its context has lost a rank */
    double due;     /* of the task, after its last run */
    /* Only for a thread: bytes for which the task was served, over its weight; negative: a new task. */
    _Atomic double served;
    _Atomic int has_more; /* only for a thread: the task's last turn ended before its work did */
    /* Only for waits: the thread whose wait attends to the task, so that other waits need not run it; 0: none does. */
    _Atomic uintptr_t attended_by;
    _Atomic int idle; /* how many brief looks have passed since the task did something */
    hpc_member *member;
    hpc_station *next;   /* of the member */
    hpc_station *beside; /* the next one that the same thread serves; only this thread uses it */
};

struct hpc_member {
    hpc_engine *engine;
    hpc_group *_Atomic group;                        /* NULL: the member is free */
    void (*fail)(hpc_group *group, const char *why); /* aborts the context */
    _Atomic int users;                               /* threads that serve the group, or sleep on its bell */
    _Atomic int n_by_waits;                          /* tasks that waits run */
    _Atomic int idle;                                /* as hpc_station.idle, of all its tasks */
    hpc_station *_Atomic stations;
    hpc_member *next;
};

struct hpc_engine {
    const char *owner; /* as hpc_group.owner */
    int references;    /* its handle, and its members */
    pthread_mutex_t lock;
    hpc_member *_Atomic members;
    int n_by_waits;   /* of all members */
    uint32_t changes; /* of n_by_waits */
    hpc_thread *threads;
};

/* Makes an engine with one reference; NULL without memory. */
hpc_engine *hpc_engine_new(void);
/* Adds a reference to an engine; engine NULL: to the process's own, which is made if it is not there. */
hpc_engine *hpc_engine_retain(hpc_engine *engine);
void hpc_engine_release(hpc_engine *engine);
int hpc_engine_is_mine(const hpc_engine *engine); /* 0 in a forked child */

/* Makes a group a member of an engine; engine NULL: of the process's own. Returns NULL without memory. The group's
 * waits then work for the other members. */
hpc_member *hpc_engine_join(hpc_engine *engine, hpc_group *group, void (*fail)(hpc_group *group, const char *why));
/* Waits until nobody uses the group any more. All its tasks have been removed. NULL is allowed. */
void hpc_engine_leave(hpc_member *member);

/* Lets the waits of this rank run a task. Returns 0 without memory. */
int hpc_task_add(hpc_member *member, hpc_task *task);
/* Adds a task that nobody runs until its station's `by` is set. Returns 0 without memory. */
hpc_station *hpc_task_place(hpc_member *member, hpc_task *task);
/* Removes a task; after that no thread runs it. */
void hpc_task_remove(hpc_task *task);
/* The two steps of hpc_task_remove: hpc_task_end ends the task's runs for good, and hpc_task_leave frees its station.
 * The engine's lock is held in the second one. */
void hpc_task_end(hpc_task *task);
void hpc_task_leave(hpc_task *task);

/* Returns whether the run of a task must stop. */
static inline int hpc_task_stops(const hpc_task *task) {
    return atomic_load_explicit(&task->stops, memory_order_relaxed) != 0;
}

/* Returns whether the run must stop after a slice, even inside an event, so that another task runs or the wait looks at
 * its condition. */
static inline int hpc_turn_is_over(const hpc_task *task) {
    return atomic_load_explicit(&task->stops, memory_order_relaxed) >= HPC_TURN_IS_OVER;
}

/* Marks that this thread's wait attends to a task that waits run, or that it does so no more. */
void hpc_task_attend(hpc_task *task, int begins);

/* Between hold and let no thread runs the task; its run stops soon. A thread that holds a task must not wait. */
void hpc_task_hold(hpc_task *task);
void hpc_task_let(hpc_task *task);

/* Runs one task, or the member's tasks that waits run, but for tasks to which other threads' waits attend. Both return
 * hpc_left_over bits for work that remains; HPC_LEFT if another thread runs one of them, since this thread must look
 * again before it sleeps. */
int hpc_task_run(hpc_task *task);
int hpc_member_work(hpc_member *member, hpc_looker looker);

/* Returns the group of a member, which stays until hpc_member_let_go; NULL if the member is free. */
hpc_group *hpc_member_use(hpc_member *member);
void hpc_member_let_go(hpc_member *member);

/* Wakes all waits of this rank. */
void hpc_engine_ring(hpc_engine *engine);

/* Makes no thread run the task of a station any more, unless the task was stopped: it may have left work. */
void hpc_station_retire(hpc_station *station);

/* Runs a station's task, and sets the station's due. If another thread has taken the task, *left gets HPC_LEFT. Returns
 * how many things were done. */
int hpc_station_run(hpc_station *station, int *left);

#endif
