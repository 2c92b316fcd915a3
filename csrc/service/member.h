/* The state of a worker that has joined a job at hubs. */
#ifndef HPC_MEMBER_H
#define HPC_MEMBER_H

#include <sys/types.h>

#include "service/meeting.h"

/* An exchange at the hubs. */
typedef struct hpc_made_at_hubs {
    hpc_exchange *exchange;
    int receives, counts, settles; /* whether workers apply; whether rows count updates; whether a save settles */
    uint64_t steps;                /* with which it began */
} hpc_made_at_hubs;

struct hpc_service {
    pid_t owner; /* a forked child may only free it */
    int cores;   /* of each hub */
    int resumes; /* whether exchanges begin with their saved state */
    int n_users;
    uint32_t users[HPC_MOST_USERS]; /* of the hubs that are known */
    int n_made;
    hpc_made_at_hubs *made; /* the exchanges, by number */
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
