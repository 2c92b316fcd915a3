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
    HPC_IN_PROGRESS = 1,      /* not an error: the work goes on, ask again */
    HPC_ERR_INVALID = -1,     /* a bad argument; the message has its name and value */
    HPC_ERR_CONFIG = -2,      /* ranks disagree about a setting, or a setting makes no sense */
    HPC_ERR_UNSUPPORTED = -3, /* this transport, host or build cannot do it */
    HPC_ERR_TRANSPORT = -4,   /* the connection to a peer failed; see hpc_error.transport and peer */
    HPC_ERR_PEER = -5,        /* ranks failed; see hpc_error.ranks and left */
    HPC_ERR_TIMEOUT = -6,     /* the deadline passed; see hpc_error.waiting_for and culprits */
    HPC_ERR_AUTH = -7,        /* a stranger or a peer of another job connected */
    HPC_ERR_MEMORY = -8       /* too little memory; only calls that create something return it */
} hpc_status;

/* The state of a culprit, a rank that an error blames: its state now, or when it ended. */
typedef enum hpc_culprit_state {
    HPC_CULPRIT_DIED = 1,  /* its process or its host died, or it gave up by itself */
    HPC_CULPRIT_LEFT,      /* it closed while others still waited for it */
    HPC_CULPRIT_STOPPED,   /* its process is stopped, as its host's kernel says */
    HPC_CULPRIT_SILENT,    /* it did not answer */
    HPC_CULPRIT_COMPUTING, /* it answers, and is in no wait */
    HPC_CULPRIT_CIRCLE     /* it and the other culprits wait for each other, which is a bug in the program */
} hpc_culprit_state;

enum { HPC_CALLING_BYTES = 36 };

/* A rank that failed by itself, or that is at the end of a chain of waits. */
typedef struct hpc_culprit {
    int rank;
    int state;      /* hpc_culprit_state */
    double seconds; /* SILENT: how long others have waited for it; COMPUTING: how long it has been in no wait; CIRCLE:
                       how long its present wait has lasted; else 0 */
    uint64_t step;  /* COMPUTING: the most pushes of one key, or sends to one peer, that it has made */
    int every;      /* CIRCLE: 1 if every rank must make the call op; else 0 */
    char op[HPC_CALLING_BYTES]; /* CIRCLE: the call in which it waits; else "" */
} hpc_culprit;

/* More about a failure, if its status does not say enough. */
typedef enum hpc_error_detail {
    HPC_DETAIL_NONE = 0,
    HPC_DETAIL_UNFINISHED = 1, /* the last call on the key was cut short; repeat that call first */
    HPC_DETAIL_HELD_UP = 2 /* the wait ended before its deadline: nothing could come any more (hpc_config.look_after) */
} hpc_error_detail;

/* The last failure of the calling thread. Its pointers stay valid until the thread's next failing call. */
typedef struct hpc_error {
    int status;            /* hpc_status, HPC_OK if nothing has failed yet */
    const char *message;   /* one sentence: what failed, with the values, and what to do */
    const char *op;        /* the operation, e.g. "recv" */
    const char *transport; /* for HPC_ERR_TRANSPORT, else "" */
    int peer;              /* for HPC_ERR_TRANSPORT, else -1 */
    int n_ranks; /* length of ranks[]: with HPC_ERR_PEER, those that failed by themselves, in ascending order */
    const int *ranks;
    int n_waiting; /* length of waiting_for[]: with HPC_ERR_PEER and HPC_ERR_TIMEOUT, the ranks that the call still
                      waited for */
    const int *waiting_for;
    int n_left; /* length of left[]: with HPC_ERR_PEER, the ranks that ended or left because ranks[] failed, in
                   ascending order */
    const int *left;
    int n_culprits; /* length of culprits[]: with HPC_ERR_TIMEOUT, the ranks at the ends of the chains of waits, in
                       ascending order */
    const hpc_culprit *culprits;
    int detail; /* hpc_error_detail */
} hpc_error;

HPC_API const hpc_error *hpc_last_error(void);
HPC_API const char *hpc_status_text(int status); /* never NULL */

/* Names the culprits after HPC_ERR_TIMEOUT of a call that was made in slices (hpc_config.slice): follows the chain of
 * waits, which takes up to 250 ms, and records the failure again, with its culprits. waited: seconds that all slices
 * together have waited. Must be called by the thread that failed, while the context exists. Returns HPC_ERR_TIMEOUT, or
 * the last failure's status if that was not a timeout. */
HPC_API int hpc_follow_timeout(double waited);

/* Sets how many seconds all slices of this thread from now on may last together; warnings about long waits use it. 0:
 * unknown. Returns the value that was set before. */
HPC_API double hpc_slices_limit(double seconds);

/* ---- calls -------------------------------------------------------------------------------------------------- */

/* The name of a call of a layer above this library, such as "optimizer.step()". While a thread is in that call, its
 * waits are shown under this name: in errors, in warnings, and by hpc_jobs. */
typedef struct hpc_calling hpc_calling;

/* Returns a call with this name, cut to 35 bytes. The same two arguments give the same call, which lives as long as the
 * process. The argument every is 1 if every rank of the job must make the call; errors about ranks that wait for each
 * other then say so. Returns NULL without memory, or after 1000 names. Any thread may call it. */
HPC_API const hpc_calling *hpc_calling_named(const char *name, int every);

/* Marks the calling thread as being in the call; NULL: in no call. Returns the call that it was in before, or NULL. */
HPC_API const hpc_calling *hpc_calling_enter(const hpc_calling *call);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
