/* The state of a worker that has joined a job at hubs. */
#ifndef HPC_MEMBER_H
#define HPC_MEMBER_H

#include <sys/types.h>

#include "service/meeting.h"

struct hpc_service {
    pid_t owner; /* a forked child may only free it */
    int cores;   /* of each hub */
    hpc_job_place place;
    hpc_meeting meeting;
    hpc_hub_link links[HPC_MOST_HUBS];
    hpc_context *workers; /* of the workers */
    hpc_context *served;  /* of the workers and the hubs */
    int closed;
};

/* Returns HPC_ERR_INVALID in a forked child and after close. */
int hpc_service_usable(const hpc_service *service, const char *op);

#endif
