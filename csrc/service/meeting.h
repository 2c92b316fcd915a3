/* How the ranks of a context meet at the hubs of their job. A worker has two contexts: one of the workers, and one of
 * the workers and the hubs, whose last ranks are the hubs. Rank 0 is connected to all hubs, and relays frames between
 * the first hub and the others. Other ranks are connected to the first hub. */
#ifndef HPC_MEETING_H
#define HPC_MEETING_H

#include "service/link.h"

typedef struct hpc_meeting {
    int rank, size;             /* of the workers */
    const hpc_job_place *place; /* of the hubs */
    int n_hubs;
    hpc_hub_link *links; /* to the first n_links hubs */
    int n_links;
} hpc_meeting;

typedef enum hpc_group_kind { HPC_OF_WORKERS = 'w', HPC_OF_WORKERS_AND_HUBS = 's' } hpc_group_kind;

/* Makes a context of a group: meets its ranks, and connects to them within `seconds`. While it connects, a refusal by
 * the first hub ends the wait, and becomes the error. */
int hpc_meeting_connect(hpc_meeting *meeting, hpc_group_kind kind, const hpc_config *config, double seconds,
                        hpc_context **context);

#endif
