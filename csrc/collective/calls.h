/* Calls that go on, of either kind: collectives of arrays, and messages.
 *
 * Started calls go on in every wait of this rank. `busy` guards all members: only the thread that holds it works on
 * calls, and on the mail. */
#ifndef HPC_CALLS_H
#define HPC_CALLS_H

#include "context/mail.h"

/* Some ranks, in ascending order. */
typedef struct hpc_team {
    int *ranks;
    int n, me; /* me: this rank's place among them */
} hpc_team;

typedef struct hpc_calls {
    hpc_mail *mail;
    /* All ranks; those of this host; those that have this rank's place on each host. Unless all hosts have equally many
     * ranks, all count as one host. */
    hpc_team all, host, across;
    int *place_of;                    /* by rank: its place on its host */
    int *grid;                        /* the ranks by place, and those of one place by host */
    _Atomic int busy;                 /* 0: free; 1: a thread has it; 2: another thread has asked for it, too */
    hpc_task task;                    /* lets all waits of this rank go on with started calls */
    int added;                        /* the task is in the engine */
    _Atomic int going;                /* number of calls that are not over */
    uint64_t made;                    /* number of collectives so far */
    char broken[HPC_COMPLAINT_BYTES]; /* why this rank makes no further collectives; "": it makes them */
    struct hpc_moving *first, **last; /* collectives that are not over, in their order */
    struct hpc_request *requests;     /* requests that are not freed */
    struct hpc_parcel *sends, *recvs; /* messages that are not over, in their order */
    struct hpc_arrival *arrived, **last_arrived; /* messages that no recv has asked for, in their order */
    struct hpc_withdrawal *withdrawals;          /* letters to peers about messages that were given up */
    uint64_t messages;                           /* number of sends so far */
    uint64_t looks;                              /* number of looks at letters of messages */
    uint64_t *stuck;                             /* by rank: the last look at which no message could be sent to it */
} hpc_calls;

/* Memory that a call uses. */
typedef struct hpc_extent {
    const char *begin, *end;
    int written;
} hpc_extent;

/* How kinds of calls differ. */
typedef struct hpc_request_kind {
    int (*waits_for)(struct hpc_request *request, int *ranks);
    void (*give_up)(struct hpc_request *request); /* its caller frees it before its end */
    void (*unlist)(struct hpc_request *request);  /* takes it out of the list of calls that are not over */
    void (*drop)(struct hpc_request *request);    /* frees it */
    int every;                                    /* 1: every rank must make the call */
} hpc_request_kind;

struct hpc_request {
    const hpc_request_kind *kind;
    hpc_calls *calls; /* NULL: the context was freed before its end */
    hpc_request *next;
    const char *op;
    hpc_described call;
    size_t element; /* bytes */
    hpc_extent uses[2];
    _Atomic uint64_t *lease; /* NULL: the request lends nothing */
    int deserter;            /* the rank that has ended its lease, at this time; -1: none has */
    double deserted;
    _Atomic int status; /* HPC_IN_PROGRESS, or how it ended */
    char *why;          /* the sentence of a failure; NULL: there is no failure, or no memory for its sentence */
};

/* Finds the teams. Returns 0 without memory. */
int hpc_teams_find(hpc_calls *calls, const hpc_context *context);
void hpc_teams_free(hpc_calls *calls);

/* Returns 1 if this thread has the calls now. If not, the thread that has them rings the bell when it leaves. */
int hpc_calls_try(hpc_calls *calls);
void hpc_calls_enter(hpc_calls *calls);
void hpc_calls_leave(hpc_calls *calls);
/* Adds a request, which counts as one that goes on. Fails if the request and a started one use the same memory, and one
 * of them writes it. The caller has entered. */
int hpc_request_add(hpc_calls *calls, hpc_request *request);
/* Returns whether the request lends the peer these bytes, and begins its lease if they are its first ones. both_ways:
 * the peer, too, sends as much. */
int hpc_request_lends(hpc_request *request, hpc_box *box, int peer, const char *at, uint64_t nbytes, int both_ways);
/* Lets a letter of the request lend bytes instead of carrying them. */
void hpc_request_lend(const hpc_request *request, hpc_letter_head *head, const char *at);
/* Notes that the peer has ended its lease. Returns whether the request must fail because of that. At first it need not:
 * the reason, such as the peer's death, may reach this rank a little later. */
int hpc_request_is_deserted(hpc_request *request, int peer);
/* Ends a request: takes it out of the list of calls that are not over, ends its lease, and counts it as over. The
 * sentence is kept, because other calls may fail before it is asked for. */
void hpc_request_end(hpc_request *request, int status, const char *why);
/* Takes a request out of the calls, before it is freed. A request that is not over ends. */
void hpc_request_remove(hpc_request *request);

#endif
