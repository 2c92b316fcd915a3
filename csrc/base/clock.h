/* The clock of deadlines and timelines: CLOCK_MONOTONIC, which is the same for all processes of a host. */
#ifndef HPC_CLOCK_H
#define HPC_CLOCK_H

double hpc_now(void); /* seconds */

#endif
