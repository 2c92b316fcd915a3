/* Finds whether a thread is crowded, that is, whether other threads keep it from its CPU. The kernel counts how long a
 * thread waited for a CPU while it could run. */
#ifndef HPC_CROWD_H
#define HPC_CROWD_H

#include <stdint.h>

/* The state of one thread; only that thread reads and writes it. */
typedef struct hpc_crowd {
    double looked;        /* time in seconds at which the counts were last read; 0: never */
    uint64_t ran, waited; /* the counts at that time, in nanoseconds */
    int crowded;          /* how many looks in a row found the thread crowded */
    double until;         /* time in seconds until which the thread counts as crowded */
} hpc_crowd;

/* Evaluates new counts. A thread is crowded if two looks in a row find that it waited for a CPU for more than a tenth
 * of the time in which it wanted one, and for more than a fiftieth of all time. It then counts as crowded for two
 * seconds: meanwhile its waits do not yield, which makes the load harder to see. */
void hpc_crowd_look(hpc_crowd *crowd, double now, uint64_t ran, uint64_t waited);

/* Both return whether the calling thread is crowded. hpc_crowd_is only reads the state; hpc_crowd_find first looks at
 * the kernel's counts, if the last look was at least a tenth of a second ago. If the kernel does not count, no thread
 * is crowded. */
int hpc_crowd_is(double now);
int hpc_crowd_find(double now);

/* From now on hpc_crowd_find calls this function each time that a look finds the calling thread crowded. */
void hpc_crowd_tell(void (*call)(void *arg), void *arg);

#endif
