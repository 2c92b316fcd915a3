/* Waits that last, and waits that have run out of time: which ranks hold them up?
 *
 * A wait that has lasted for a tenth of hpc_config's look_after looks along the chain of waits that it is in. It looks
 * again after a fifth, a third, and each third that follows. The slices of a wait count as one wait. A look may find:
 *
 * A stopped rank. A wait that has lasted for a third of look_after ends if two looks, shortly after each other, find
 * the rank stopped: a scheduler that suspends a job does not stop and continue all of its ranks at once.
 *
 * A circle of waits. The next look, a third of look_after later, ends the wait if the circle is still there, all of its
 * waits have lasted since, and the ranks that were asked have moved nothing: two ranks that wait for each other may
 * have a large update on its way, or fold one. That third is longer than a connection that lost packets takes to send
 * them again, in a network that was down for less than hpc_config's silence.
 *
 * Ranks that compute or do not answer. The wait goes on. The lowest rank that waits warns after look_after seconds, and
 * each time that these have doubled.
 *
 * A rank that dies ends waits by itself, and so does a host that falls silent. */
#ifndef HPC_OVERDUE_H
#define HPC_OVERDUE_H

#include "base/group.h"

static const double HPC_FOLLOW_SECONDS = 0.25; /* the most for answers */

/* When the next look of this thread's wait is due, which has begun at since. */
double hpc_overdue_due(const hpc_group *group, double since);

/* Such a look of a wait, or slice, of timeout seconds. HPC_IN_PROGRESS to go on; HPC_ERR_TIMEOUT, with the culprits;
 * HPC_OK if the condition holds by then. */
int hpc_overdue_look(hpc_group *group, const hpc_wait *wait, double since, double timeout);

/* Marks the failure of a wait, which was just recorded, as one before its time: other ranks have found out that nothing
 * can come, so no further slice begins. */
void hpc_overdue_told(void);

/* Fails a wait that has taken all its time: HPC_ERR_TIMEOUT. The failure names the culprits, unless the wait is a
 * slice. */
int hpc_overdue_fail(hpc_group *group, const hpc_wait *wait, double timeout);

/* HPC_ERR_TIMEOUT of something else than hpc_wait_for, which has taken waited seconds; with culprits likewise. */
int hpc_group_fail_timeout(hpc_group *group, const char *op, const int *ranks, int n, double waited, const char *format,
                           ...) __attribute__((format(printf, 6, 7)));

/* From enter until leave hpc_follow_timeout may use the group. */
void hpc_group_enter(hpc_group *group);
void hpc_group_leave(hpc_group *group);

/* While set, waits of this thread are slices of longer ones, whose timeouts are not followed to culprits. Returns the
 * value before. */
int hpc_slice_waits(int sliced);
int hpc_waits_in_slices(const hpc_group *group, double timeout);

/* Whether status says that a slice of a wait is over, and the next one may begin: not so when a look ended it. */
int hpc_slice_is_over(int status);
void hpc_overdue_begin(void); /* of a wait or slice */

#endif
