/* jobs.h - what other processes see of jobs (hpcomm status, hpcomm stacks). hpcomm.h includes it. */
#ifndef HPCOMM_JOBS_H
#define HPCOMM_JOBS_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes jobs.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

enum { HPC_JOB_BYTES = 33, HPC_TITLE_BYTES = 64, HPC_SHOWN_WAITS = 4, HPC_SHOWN_RANKS = 16, HPC_SHOWN_CULPRITS = 8 };

/* A wait of one thread of a rank. */
typedef struct hpc_shown_wait {
    char op[HPC_CALLING_BYTES];
    int every;      /* 1: every rank must make the call op */
    double seconds; /* how long the wait has lasted so far */
    int n_ranks;    /* number of ranks that are waited for; ranks has the first HPC_SHOWN_RANKS of them */
    int ranks[HPC_SHOWN_RANKS];
    uint32_t stopped; /* bit i is 1 if the kernel of this rank's host says that the process of ranks[i] is stopped */
} hpc_shown_wait;

/* A rank of a context, as another process sees it. */
typedef struct hpc_shown_rank {
    char job[HPC_JOB_BYTES];     /* the same for all ranks of a context; "" while unknown */
    char title[HPC_TITLE_BYTES]; /* of hpc_context_set_title, on that rank */
    int answers; /* 1: the rank answered; 0: it did not answer in time (it may be stopped), and only pid is certain; -1:
                    it hung up, because it has another version of hpcomm or is ending */
    int connected;  /* 1: its hpc_init has ended */
    int rank, size; /* -1: unknown */
    int64_t pid;    /* on its host; 0: in a process namespace that the caller cannot see */
    char host[64];
    char transports[64]; /* the transports in use, such as "shm,tcp"; "" in a job of one rank */
    uint64_t step;       /* the most pushes of one key, or sends to one peer, that the rank has made */
    uint64_t moved;      /* count of the rank's sends and receives, which stays constant in a deadlock */
    int n_waits;         /* number of waits, which are sorted by length, longest first */
    hpc_shown_wait waits[HPC_SHOWN_WAITS];
    int told_by; /* -1: the rank answered itself; else the rank on this host that answered for it, because it is gone or
                    on another host */
    double age;  /* age of step and waits in seconds; -1: both are unknown */
    double unheard; /* if told_by >= 0: seconds since told_by received anything from the rank */
    char gone[160]; /* if told_by >= 0: the reason why the rank left or failed; "" while it is there */
    int state;      /* if told_by >= 0: hpc_peer_state */
    int stopped;    /* 1: the kernel of this host says that the rank's process is stopped */
    double idle;    /* seconds since the end of the rank's last wait that was long enough to be recorded; -1: unknown */
    int n_culprits; /* number of culprits that the rank would name if it left now; culprits has the first
                       HPC_SHOWN_CULPRITS of them */
    hpc_culprit culprits[HPC_SHOWN_CULPRITS];
} hpc_shown_rank;

/* Lists the contexts of all processes in this network namespace that belong to the caller's user (for root, to any
 * user), and the other ranks of their jobs; one process of each job is asked about these. Writes the first cap of them
 * into ranks, sorted by job and rank, and returns how many there are, which may exceed cap. Processes of this namespace
 * have timeout seconds to answer, all at the same time (negative: 1 s); the other ranks then get as long. A rank that
 * does not answer is listed with answers = 0. Changes no job. HPC_ERR_UNSUPPORTED if /proc/net/unix cannot be read. */
HPC_API int hpc_jobs(hpc_shown_rank *ranks, int cap, double timeout);

/* Finds the culprits at the ends of the chains of waits of one job's n ranks. Writes the first cap of them into
 * culprits, in ascending order, and a sentence about them ("rank 3 is stopped") into text, of at most nbytes with its 0
 * (text NULL: no sentence). Returns how many culprits it wrote; 0 if no rank waits. */
HPC_API int hpc_job_culprits(const hpc_shown_rank *ranks, int n, hpc_culprit *culprits, int cap, char *text,
                             size_t nbytes);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
