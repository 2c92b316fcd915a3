/* The one way in which ranks wait: spin briefly, yield, then sleep on the rank's bell.
 *
 * The bell is the only word on which threads sleep. Each context has one, in a page that peers of the host map. A
 * thread that changes something for which the rank may be waiting (a signal, a notification, an ACK) rings the bell
 * afterwards; if no thread sleeps, a ring is one load. */
#ifndef HPC_WAIT_H
#define HPC_WAIT_H

#include "base/group.h"

/* Waits until wait->ready() returns nonzero. Returns HPC_OK then, even if a failure is known too. Otherwise it returns
 * HPC_ERR_PEER if any rank is lost, if a rank that waiting_for() lists has left, or if ranks have left and
 * waiting_for() lists no rank any more; HPC_ERR_TIMEOUT at the deadline, or if ranks have left because of a deadlock;
 * HPC_ERR_INVALID if the context is closed meanwhile. */
int hpc_wait_for(hpc_group *group, const hpc_wait *wait, double timeout);

/* Returns HPC_ERR_INVALID unless 0 <= rank < size. */
int hpc_group_check_rank(const hpc_group *group, int rank, const char *what, const char *op);

/* Returns HPC_ERR_INVALID in a forked child and after close. */
int hpc_group_usable(const hpc_group *group, const char *op);

/* Returns whether rank ends every wait of this group: it failed, or it left and the group is revoked. */
int hpc_group_has_lost(const hpc_group *group, int rank);

/* Makes ranks that have left, or will leave, count as failed from now on. */
void hpc_group_revoke(hpc_group *group);

/* Returns HPC_ERR_PEER if rank has left or failed. */
int hpc_group_peer_present(hpc_group *group, int rank, const char *op);

/* Lists the ranks from which data may still come when the sender is not known: all others that are present. Returns how
 * many. */
int hpc_group_others(const hpc_group *group, int *ranks);

/* Marks rank as departed by itself, and wakes every local wait. If rank has already departed, its first reason
 * stays. */
void hpc_group_depart(hpc_group *group, int rank, int state, const char *reason);
/* Does the same for a rank that has sent its last word. */
void hpc_group_depart_saying(hpc_group *group, int rank, int state, const hpc_last_word *word);

/* Writes the blamed ranks into blamed[HPC_BLAMED], in ascending order: ranks that failed by themselves, culprits that
 * other ranks told and, if by_wait, culprits that a wait here has found. Returns how many. */
int hpc_group_blamed(hpc_group *group, int by_wait, hpc_blamed *blamed);

/* Fills in the last word that this rank would send if it left now. why: the reason of an abort; NULL: no abort. */
void hpc_group_last_word(hpc_group *group, const char *why, hpc_last_word *word);

/* Returns HPC_ERR_PEER because the ranks in closed have closed an object that this rank still needs, as the sentence
 * says. If other ranks are known to be to blame, or the closed ranks name some within 250 ms, the failure names these
 * as failed and the closed ranks as left. For a deadlock it returns HPC_ERR_TIMEOUT. */
int hpc_group_fail_closed(hpc_group *group, const char *op, const int *closed, int n, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Returns a copy of the group for a wait that departures must not end; the caller frees it. NULL without memory. */
hpc_group *hpc_group_calm(const hpc_group *group);

double hpc_deadline(const hpc_group *group, double timeout);
double hpc_left(double deadline); /* seconds until deadline, 0 if it has passed */

void hpc_bell_wake(hpc_bell *bell);

static inline void hpc_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Wakes the threads that sleep on a bell. Call it after the store for which the owner of the bell may be waiting.
 *
 * Order: this thread does  store word; fence; load sleepers.  A waiter does  sleepers += 1; fence; load word; sleep.
 * The two fences are totally ordered. If ours comes first, the waiter's load sees the word, and it does not sleep. If
 * the waiter's comes first, we see its sleepers and wake it. The waiter reads the futex word before its last look at
 * the condition, so FUTEX_WAIT returns at once if a ring has changed that word since. */
static inline void hpc_bell_ring(hpc_bell *bell) {
#if defined(__SANITIZE_THREAD__)
    /* TSan does not model fences, so a read-modify-write replaces fence and load. */
    if (atomic_fetch_add(&bell->sleepers, 0) != 0) hpc_bell_wake(bell);
#else
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&bell->sleepers, memory_order_relaxed) != 0) hpc_bell_wake(bell);
#endif
}

#endif
