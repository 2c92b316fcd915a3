/* The crew of an engine: its threads. A thread has a number, and works for the tasks of the cores of that number, of
 * all exchanges of all members. It ends with its last task. */
#ifndef HPC_CREW_H
#define HPC_CREW_H

#include "base/engine.h"

typedef enum hpc_started {
    HPC_STARTED = 1,
    HPC_UNPINNED = 2, /* it could not be pinned to its CPU */
    HPC_CROWDED = 3   /* the thread was pinned, but other threads kept its CPU busy */
} hpc_started;

struct hpc_thread {
    hpc_engine *engine;
    int number, n_tasks;
    int dealt; /* how many CPUs were dealt with its own */
    pthread_t handle;
    _Atomic int cpu;                /* -1: not pinned */
    _Atomic int started;            /* hpc_started */
    _Atomic int stopping;           /* its last task has gone */
    _Atomic int onlookers;          /* threads that wait until it knows a change; it is freed after these waits */
    _Atomic unsigned changes, seen; /* how often its tasks or its CPU have changed, and which change it knows */
    hpc_group group;                /* of its waits: no departure ends them */
    hpc_station *first;             /* the stations that it serves */
    int *allowed, n_allowed;        /* the CPUs of this process */
    hpc_thread *next;               /* of the engine */
};

/* Gives a task to the thread of this number, which is started if it does not run. dealt: how many CPUs were dealt with
 * this one; cpu -1: the thread is not pinned. A thread moves to the CPU of a larger deal. All cores of a scheme come
 * with one deal, so no two threads get one CPU. Returns NULL if the thread cannot be started. */
hpc_thread *hpc_crew_add(hpc_member *member, hpc_task *task, int number, int cpu, int dealt);
/* Removes a task from its thread. */
void hpc_crew_remove(hpc_thread *thread, hpc_task *task);
/* Called by a task when it has worked on a slice. A thread of the engine may serve its other tasks; the run of a wait
 * that only helps ends soon. */
void hpc_slice_end(hpc_task *task);

/* Counts bytes on which a task has worked. */
static inline void hpc_slice_count(hpc_task *task, size_t nbytes) {
    if ((task->spent += nbytes) >= HPC_SLICE) hpc_slice_end(task);
}

/* Returns the CPU that hpc_crew_add would leave the thread on. */
int hpc_crew_cpu(const hpc_member *member, int number, int cpu, int dealt);

#endif
