/* Finds the ranks that hold up waits that last long, or that have timed out.
 *
 * A wait that has lasted for a tenth of hpc_config.look_after asks the ranks along its chain of waits (a look). It
 * looks again after a fifth, a third, and every further third of look_after. The slices of a wait count as one wait. A
 * look may find:
 *
 * A stopped rank. If the wait has lasted for a third of look_after, and two looks shortly after each other find the
 * rank stopped, the wait ends. One look is not enough: a scheduler that suspends a job does not stop and continue all
 * of its ranks at once.
 *
 * A circle of waits. The next look, a third of look_after later, ends the wait if the circle is still there, all of its
 * waits have lasted since, and the ranks that were asked have moved nothing. Without this delay two ranks might only
 * seem stuck while a large update is sent or folded. The delay is also longer than a connection needs to send lost
 * packets again, after a network failure shorter than hpc_config.silence.
 *
 * Ranks that compute, or do not answer. The wait continues. The lowest rank that waits warns after look_after seconds,
 * and then each time the wait's length has doubled.
 *
 * The death of a rank, and the silence of a host, end waits without a look. */
#ifndef HPC_OVERDUE_H
#define HPC_OVERDUE_H

#include "base/group.h"

static const double HPC_FOLLOW_SECONDS = 0.25; /* the longest time for answers */

/* Returns when the next look of this thread's wait, which began at since, is due. */
double hpc_overdue_due(const hpc_group *group, double since);

/* Makes a look for a wait, or slice, of `timeout` seconds. Returns HPC_IN_PROGRESS if the wait goes on,
 * HPC_ERR_TIMEOUT, with the culprits, if the look ends it, or HPC_OK if the wait's condition holds by then. */
int hpc_overdue_look(hpc_group *group, const hpc_wait *wait, double since, double timeout);

/* Marks the failure that was just recorded as earlier than the deadline, because other ranks have found that nothing
 * can come. Then no further slice begins. */
void hpc_overdue_told(void);

/* Fails a wait at its deadline: returns HPC_ERR_TIMEOUT. The failure names the culprits, unless the wait is a slice. */
int hpc_overdue_fail(hpc_group *group, const hpc_wait *wait, double timeout);

/* Returns HPC_ERR_TIMEOUT, with culprits, for a wait other than hpc_wait_for that has lasted `waited` seconds. */
int hpc_group_fail_timeout(hpc_group *group, const char *op, const int *ranks, int n, double waited, const char *format,
                           ...) __attribute__((format(printf, 6, 7)));

/* Between enter and leave hpc_follow_timeout may use the group. */
void hpc_group_enter(hpc_group *group);
void hpc_group_leave(hpc_group *group);

/* Marks later waits of this thread as slices of longer waits (sliced 1), whose timeouts are not followed to culprits.
 * Returns the previous value. */
int hpc_slice_waits(int sliced);
int hpc_waits_in_slices(const hpc_group *group, double timeout);

/* Returns 1 if status means that a slice of a wait is over and the next may begin; 0 if not, also if a look ended the
 * wait. */
int hpc_slice_is_over(int status);
void hpc_overdue_begin(void); /* called when a wait or slice begins */

#endif
