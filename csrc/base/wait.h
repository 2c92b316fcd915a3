/* How a rank waits, everywhere the same: spin briefly, yield, then sleep on its bell.
 *
 * The bell is the only word threads sleep on: one a context, in a page that same-host peers map. A thread that changes
 * something that the rank may be waiting for (a signal, a notification, an ACK) rings it afterwards; with no sleeper
 * that is one load. */
#ifndef HPC_WAIT_H
#define HPC_WAIT_H

#include "base/group.h"

/* HPC_OK when ready; HPC_ERR_PEER when any rank is lost or one of waiting_for has left (or none is left of them);
 * HPC_ERR_TIMEOUT, also when ranks have left because of a deadlock; HPC_ERR_INVALID when the context is closed
 * meanwhile. A condition that holds wins over all of these. */
int hpc_wait_for(hpc_group *group, const hpc_wait *wait, double timeout);

/* HPC_ERR_INVALID unless 0 <= rank < size. */
int hpc_group_check_rank(const hpc_group *group, int rank, const char *what, const char *op);

/* HPC_ERR_INVALID in a forked child and after close. */
int hpc_group_usable(const hpc_group *group, const char *op);

/* Whether rank ends every wait of this group: it failed, or left and the group is revoked. */
int hpc_group_has_lost(const hpc_group *group, int rank);

/* Ranks that have left, or leave, count as failed from now on. */
void hpc_group_revoke(hpc_group *group);

/* HPC_ERR_PEER if rank has left or failed. */
int hpc_group_peer_present(hpc_group *group, int rank, const char *op);

/* Lists the ranks from which data may still come, if the sender is not known: all others that are here. How many. */
int hpc_group_others(const hpc_group *group, int *ranks);

/* Marks rank as departed by itself (the first reason stays) and wakes every local wait. */
void hpc_group_depart(hpc_group *group, int rank, int state, const char *reason);
/* The same for a rank that has sent its last word. */
void hpc_group_depart_saying(hpc_group *group, int rank, int state, const hpc_last_word *word);

/* Writes into blamed[HPC_BLAMED], in rising order, the ranks that failed by themselves and the culprits that other
 * ranks told (by_wait: also culprits that a wait here has found); returns how many. */
int hpc_group_blamed(hpc_group *group, int by_wait, hpc_blamed *blamed);

/* The last words of this rank, if it goes now. why: of an abort; NULL for none. */
void hpc_group_last_word(hpc_group *group, const char *why, hpc_last_word *word);

/* HPC_ERR_PEER because ranks have closed an object that this one still needs, as the sentence says. If others are to
 * blame, as is known here or as those ranks answer within 250 ms, the failure names them, and those ranks as left. A
 * deadlock is HPC_ERR_TIMEOUT. */
int hpc_group_fail_closed(hpc_group *group, const char *op, const int *closed, int n, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* A group like this one for a wait that departures do not end; to be freed. NULL without memory. */
hpc_group *hpc_group_calm(const hpc_group *group);

double hpc_deadline(const hpc_group *group, double timeout);
double hpc_left(double deadline); /* seconds, 0 when it has passed */

void hpc_bell_wake(hpc_bell *bell);

static inline void hpc_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Call after the store that the owner of the bell may be waiting for.
 *
 * Order: this thread does  store word; fence; load sleepers.  A waiter does  sleepers += 1; fence; load word; sleep.
 * The two fences are totally ordered: if ours comes first the waiter's load sees the word and it does not sleep; if the
 * waiter's comes first we see its sleepers and wake it. The futex word settles the rest: it is read before the waiter's
 * last look, and FUTEX_WAIT returns at once if a ring has changed it since. */
static inline void hpc_bell_ring(hpc_bell *bell) {
#if defined(__SANITIZE_THREAD__)
    /* TSan knows no fences: a read-modify-write stands in for fence and load. */
    if (atomic_fetch_add(&bell->sleepers, 0) != 0) hpc_bell_wake(bell);
#else
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&bell->sleepers, memory_order_relaxed) != 0) hpc_bell_wake(bell);
#endif
}

#endif
