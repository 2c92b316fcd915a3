/* The load that others put on the CPUs of a thread: how long the thread could have run, but did not, as the kernel
 * counts it. */
#ifndef HPC_CROWD_H
#define HPC_CROWD_H

#include <stdint.h>

/* The state of one thread, which alone reads and writes it. */
typedef struct hpc_crowd {
    double looked;        /* seconds, when the counts were read; 0: never */
    uint64_t ran, waited; /* the counts then, in nanoseconds */
    int crowded;          /* looks in a row that found the thread crowded */
    double until;         /* the thread counts as crowded until then */
} hpc_crowd;

/* Takes the counts of a further look. A thread is crowded when two looks in a row find that it waited for a CPU for
 * more than a tenth of the time in which it wanted one, and for more than a fiftieth of all time. It counts as crowded
 * for two seconds then: its waits no longer yield, and so the load is less to be seen. */
void hpc_crowd_look(hpc_crowd *crowd, double now, uint64_t ran, uint64_t waited);

/* Whether the calling thread is crowded. By itself hpc_crowd_is asks nothing of the kernel; hpc_crowd_find looks first,
 * if the last look was a tenth of a second ago. A thread whose kernel does not count is never crowded. */
int hpc_crowd_is(double now);
int hpc_crowd_find(double now);

/* Lets hpc_crowd_find make this call whenever a look finds the calling thread crowded, as long as the thread runs. */
void hpc_crowd_tell(void (*call)(void *arg), void *arg);

#endif
