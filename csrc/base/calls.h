/* Counts of this process's system calls and wake-ups; the code that makes a call also counts it.
 *
 * All threads count in the same words, with relaxed adds; a system call takes a hundred times as long as an add. */
#ifndef HPC_CALLS_H
#define HPC_CALLS_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

typedef enum hpc_call {
    HPC_CALL_SEND,    /* send, sendmsg */
    HPC_CALL_RECEIVE, /* recv, readv */
    HPC_CALL_EMPTY,   /* sends and receives that moved no byte */
    HPC_CALL_POLL,    /* epoll_wait, poll */
    HPC_CALL_FUTEX,   /* waits and wakes */
    HPC_CALL_ALARM,   /* reads and writes of eventfds */
    HPC_CALL_YIELD,   /* sched_yield calls of waits */
    HPC_CALL_WAKEUP,  /* not a call: a sleep that ended, in epoll_wait, poll, a futex or nanosleep */
    HPC_CALLS
} hpc_call;

extern _Atomic uint64_t hpc_calls[HPC_CALLS];

static inline void hpc_calls_count(hpc_call call) {
    atomic_fetch_add_explicit(&hpc_calls[call], 1, memory_order_relaxed);
}

/* Counts a send or a receive by its return value. */
static inline void hpc_calls_count_moved(hpc_call call, ssize_t moved) {
    hpc_calls_count(call);
    if (moved <= 0) hpc_calls_count(HPC_CALL_EMPTY);
}

/* Copies all counts so far. */
void hpc_calls_read(uint64_t counts[HPC_CALLS]);

#endif
