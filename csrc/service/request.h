/* The requests of a worker to its hub, and the hub's answers: flat objects of JSON, as hpcomm/service/hub.py takes and
 * gives them. */
#ifndef HPC_REQUEST_H
#define HPC_REQUEST_H

#include "service/link.h"

/* Reads a member of a flat object, whose values are whole numbers and texts without escapes. Each returns whether the
 * object is one and has the member: a number from 0 to most; or a text, which is copied with its 0. */
int hpc_answer_number(const void *answer, size_t nbytes, const char *name, int64_t most, int64_t *value);
int hpc_answer_text(const void *answer, size_t nbytes, const char *name, char *text, size_t cap);

/* Creates a job at hub number index of place's hubs. place's job and nonce are sent, unless they are empty, and the
 * answer's replace them. keep ends the creation, once all hubs have made the job. */
int hpc_request_create(hpc_hub_link *link, int index, hpc_job_place *place, double deadline);
int hpc_request_keep(hpc_hub_link *link, double deadline);

/* The words of a worker that joins a job. All ranks must say the same settings. */
typedef struct hpc_joining {
    int rank, size, tcp_streams;
    double seconds, timeout, silence; /* seconds: how long the hub waits for the other workers */
    const char *transports;
} hpc_joining;

/* The answer of a hub to a worker that joins. */
typedef struct hpc_granted {
    int cores, resumes; /* resumes: whether the job comes back to its saved state */
    uint32_t user;      /* of the hub's process */
} hpc_granted;

/* Joins a job. */
int hpc_request_join(hpc_hub_link *link, const hpc_job_place *place, const hpc_joining *says, hpc_granted *granted,
                     double deadline);
/* Says that this rank is done. */
int hpc_request_bye(hpc_hub_link *link, double deadline);

#endif
