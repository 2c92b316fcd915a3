/* Who runs here, and whom each waits for: a question that any process of the same user may put to the Unix listener of
 * a control channel, by whose name it is found in /proc/net/unix.
 *
 * The service thread answers with one packet of a fixed size and hangs up. It takes nothing from the asker but a name,
 * waits for nothing but the watch's spin lock, and keeps nothing. The asker believes nothing of the answer but its
 * process, which the kernel says: texts are ended and made printable, numbers are bounded. */
#ifndef HPC_JOBS_H
#define HPC_JOBS_H

#include "mesh.h"

typedef struct hpc_job_answer {
    uint32_t version;  /* of hpcomm, which says what follows */
    int32_t asked;     /* the rank whose listener has the name in question; -1: none of this job */
    hpc_shown_rank of; /* the one that answers */
} hpc_job_answer;

void hpc_jobs_answer(const hpc_control *c, int fd, const unsigned char name[HPC_COOKIE_BYTES]);

/* What came as an answer, made harmless; HPC_ERR_AUTH if it is none of this version. */
int hpc_jobs_check(hpc_job_answer *answer);

#endif
