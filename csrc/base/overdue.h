/* Waits that last, and waits that have run out of time: because of whom does nothing come?
 *
 * A wait that has lasted for hpc_config's look_after looks along the chain of waits that it is in, and again each time
 * that a third of that has passed. Waits in slices count as one. What a look finds:
 *
 *   a rank that is stopped     the look soon after ends the wait, unless the rank runs again by then: a scheduler that
 *                              suspends a job does not stop and continue all of its ranks at once.
 *   a circle                   the next look ends the wait, if the circle is still there and none of the ranks that
 * were asked has moved anything: a large update may be on its way between two that wait. ranks that compute, or     the
 * wait goes on. After look_after seconds, and each time that they have doubled, the do not answer              lowest
 * of the ranks that wait warns.
 *
 * Ranks that die end waits by themselves, and so do hosts that fall silent. */
#ifndef HPC_OVERDUE_H
#define HPC_OVERDUE_H

#include "base/wait.h"

static const double HPC_FOLLOW_SECONDS = 0.25; /* the most for answers */

/* When the next look of this thread's wait is due, which has begun at since. */
double hpc_overdue_due(const hpc_group *group, double since);

/* Such a look. HPC_IN_PROGRESS to go on; HPC_ERR_TIMEOUT, with the culprits; HPC_OK if the condition holds by then. */
int hpc_overdue_look(hpc_group *group, const hpc_wait *wait, double since);

/* HPC_ERR_TIMEOUT of a wait that has taken all its time, with the culprits unless it is a slice. */
int hpc_overdue_fail(hpc_group *group, const hpc_wait *wait, double timeout);

/* HPC_ERR_TIMEOUT of something else than hpc_wait_for, which has taken waited seconds; with culprits likewise. */
int hpc_group_fail_timeout(hpc_group *group, const char *op, const int *ranks, int n, double waited, const char *format,
                           ...) __attribute__((format(printf, 6, 7)));

/* From enter until leave hpc_follow_timeout may use the group. */
void hpc_group_enter(hpc_group *group);
void hpc_group_leave(hpc_group *group);

/* While set, waits of this thread are slices of longer ones, whose timeouts are not followed to culprits. Returns what
 * was set before. */
int hpc_slice_waits(int sliced);
int hpc_waits_in_slices(const hpc_group *group, double timeout);

/* Whether status says that a slice of a wait is over, and the next one may begin: not so when a look ended it. */
int hpc_slice_is_over(int status);
void hpc_overdue_begin(void); /* of a wait or slice */

#endif
