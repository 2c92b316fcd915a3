/* Questions about the ranks that run here and the ranks that each waits for. Any process of the same user may put one
 * to the Unix listener of a control channel, which it finds by its name in /proc/net/unix.
 *
 * The service thread answers with one packet of a fixed size and hangs up. It takes only a name or a rank from the
 * asker, waits only for the watch's spin lock, and keeps nothing. The asker trusts nothing in the answer but its
 * process, which the kernel tells: texts are ended and made printable, numbers are bounded.
 *
 * Ranks that the asker does not find itself are on other hosts, or gone. It asks one rank of their job about each. That
 * rank answers with the news that it has. If they are a second old, it sends the rank in question a LOOK over their
 * link, and that rank's service thread sends its NEWS back. So only the asker waits, and asks again until the news are
 * new; other ranks send nothing; and a look costs two frames a rank, whatever the number of ranks. News are passed on
 * as they came: the asker checks them with the rest of the answer. */
#ifndef HPC_JOBS_H
#define HPC_JOBS_H

#include "control/channel.h"

typedef struct hpc_job_answer {
    uint32_t version;  /* of hpcomm, which fixes the rest */
    int32_t asked;     /* the rank whose listener has the name in question; -1: none of this job */
    hpc_shown_rank of; /* the rank that answers, or that it was asked about */
} hpc_job_answer;

/* The service thread asks about rank, or (-1) this one; name is looked up then. */
void hpc_jobs_answer(hpc_control *c, int fd, int rank, const unsigned char name[HPC_COOKIE_BYTES]);

/* The service thread sends rank the NEWS that it has asked for. As hpc_link_tell. */
int hpc_jobs_tell(hpc_control *c, int rank);

/* Makes an answer harmless; HPC_ERR_AUTH if it is of another version. */
int hpc_jobs_check(hpc_job_answer *answer);

/* The same for a peer's NEWS. */
int hpc_jobs_check_rank(hpc_shown_rank *shown);

/* Write into shown this rank's own state, and its knowledge of a rank that is gone. Any thread may call them.
 */
void hpc_jobs_show_self(const hpc_control *c, hpc_shown_rank *shown);
void hpc_jobs_show_gone(const hpc_control *c, int rank, hpc_shown_rank *shown);

#endif
