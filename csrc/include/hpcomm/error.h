/* error.h - status codes, the record of a thread's last failure, and the names of calls above the library. hpcomm.h
 * includes it. */
#ifndef HPCOMM_ERROR_H
#define HPCOMM_ERROR_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes error.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* ---- status ------------------------------------------------------------------------------------------------- */

typedef enum hpc_status {
    HPC_OK = 0,
    HPC_IN_PROGRESS = 1,      /* not an error: ask again */
    HPC_ERR_INVALID = -1,     /* a bad argument, named with its value */
    HPC_ERR_CONFIG = -2,      /* ranks disagree, or a setting has no meaning */
    HPC_ERR_UNSUPPORTED = -3, /* this transport, host or build cannot do it */
    HPC_ERR_TRANSPORT = -4,   /* the path to a peer failed; see transport and peer */
    HPC_ERR_PEER = -5,        /* ranks failed; see ranks and left */
    HPC_ERR_TIMEOUT = -6,     /* the deadline passed; see waiting_for and culprits */
    HPC_ERR_AUTH = -7,        /* a stranger, or a peer of another job */
    HPC_ERR_MEMORY = -8       /* too little memory, at creation only */
} hpc_status;

/* The state of a culprit, now or at its end. */
typedef enum hpc_culprit_state {
    HPC_CULPRIT_DIED = 1,  /* its process or its host died, or it gave up by itself */
    HPC_CULPRIT_LEFT,      /* it closed, while others still waited for it */
    HPC_CULPRIT_STOPPED,   /* its process is stopped, as the kernel of its host says */
    HPC_CULPRIT_SILENT,    /* it did not answer */
    HPC_CULPRIT_COMPUTING, /* it answers, and does not wait */
    HPC_CULPRIT_CIRCLE     /* it and the other culprits wait for each other, which is a bug of the program */
} hpc_culprit_state;

enum { HPC_CALLING_BYTES = 36 };

/* A rank that failed by itself, or one at the end of a chain of waits. */
typedef struct hpc_culprit {
    int rank;
    int state;      /* hpc_culprit_state */
    double seconds; /* silent: how long others have waited for it; computing: how long it has; circle: how long its
                       latest wait has lasted; else 0 */
    uint64_t step;  /* computing: the most pushes of one key, or sends to one peer, that it has made */
    int every;      /* circle: every rank must make the call op; else 0 */
    char op[HPC_CALLING_BYTES]; /* circle: the call that it waits in; else "" */
} hpc_culprit;

/* More about a failure, where its status does not say enough. */
typedef enum hpc_error_detail {
    HPC_DETAIL_NONE = 0,
    HPC_DETAIL_UNFINISHED = 1, /* the last call on the key was cut short; repeat it first */
    HPC_DETAIL_HELD_UP = 2     /* a timeout before its time: nothing can come any more (hpc_config's look_after) */
} hpc_error_detail;

/* The last failure of the calling thread; its pointers stay valid until that thread's next failing call. */
typedef struct hpc_error {
    int status;            /* hpc_status, HPC_OK if nothing has failed yet */
    const char *message;   /* one sentence: what happened, with the values, and what to do */
    const char *op;        /* the operation, e.g. "recv" */
    const char *transport; /* for HPC_ERR_TRANSPORT, else "" */
    int peer;              /* for HPC_ERR_TRANSPORT, else -1 */
    int n_ranks;           /* for HPC_ERR_PEER: the ranks that failed by themselves, in rising order */
    const int *ranks;
    int n_waiting; /* for HPC_ERR_PEER and HPC_ERR_TIMEOUT: the ranks still waited for */
    const int *waiting_for;
    int n_left; /* for HPC_ERR_PEER: the ranks that ended or left because of those in ranks, in rising order */
    const int *left;
    int n_culprits; /* for HPC_ERR_TIMEOUT: the ends of the chain of waits, in rising order */
    const hpc_culprit *culprits;
    int detail; /* hpc_error_detail */
} hpc_error;

HPC_API const hpc_error *hpc_last_error(void);
HPC_API const char *hpc_status_text(int status); /* never NULL */

/* After HPC_ERR_TIMEOUT of a call that was made in slices (hpc_config.slice): follows the chain of waits, which takes
 * up to 250 ms, and records the failure again, with its culprits. waited: seconds that all slices together have waited.
 * The thread that failed calls it, while the context exists. Returns HPC_ERR_TIMEOUT; if the last failure was another
 * one, returns its status. */
HPC_API int hpc_follow_timeout(double waited);

/* Sets the seconds that all slices of this thread from now on may last together, for warnings about them; 0: unknown.
 * Returns the seconds that were set before. */
HPC_API double hpc_slices_limit(double seconds);

/* ---- calls -------------------------------------------------------------------------------------------------- */

/* The name of a call of a layer above this library, such as "optimizer.step()". While a thread is in the call, its
 * waits and their failures have this name: in errors, in warnings, and for ranks that ask (hpc_jobs). */
typedef struct hpc_calling hpc_calling;

/* A call of this name, up to 35 bytes of it. every: every rank of the job must make the call, so an error about ranks
 * that wait for each other says so. Names are kept for the life of the process, the same name once; NULL: no memory, or
 * more than 1000 names. Any thread. */
HPC_API const hpc_calling *hpc_calling_named(const char *name, int every);

/* The calling thread is in the call from now on; NULL: in none. Returns the call that it was in before. */
HPC_API const hpc_calling *hpc_calling_enter(const hpc_calling *call);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
