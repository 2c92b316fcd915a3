/* What an owner works on: its cores, the shares that each has of a key, and their rows. */
#ifndef HPC_WORK_H
#define HPC_WORK_H

#include <pthread.h>

#include "base/usual.h"
#include "codec/codec.h"
#include "context/lane.h"
#include "context/window.h"
#include "engine/imm.h"
#include "kernel/fold.h"
#include "kernel/rule.h"
#include "plan/plan.h"

enum {
    HPC_BLOCK = 4096, /* elements that are folded, applied and written while they are in the first caches */
    HPC_FAILURE_BYTES = 256
};

#define HPC_NOWHERE SIZE_MAX

typedef struct hpc_discipline hpc_discipline;

typedef struct hpc_share {
    int key, owner, core;
    int at; /* among those of its owner */
    int n_rows;
    int *rows;     /* of the plan */
    size_t nbytes; /* of an update of all of them, as it is sent */
    size_t pushed; /* of it, what this rank pushes; rows that others forward to take none */
    int n_parts;
    int *parts;       /* owner: the ranks at either end of its rows, itself last */
    uint64_t version; /* owner: how often all rows have been folded */
    int left;         /* owner: rows of the next version that are not folded yet */
    void *own;        /* the discipline's */
} hpc_share;

/* Where the inputs and outputs of a row are. */
typedef struct hpc_input {
    int rank, forwarded; /* forwarded: the row at rank that it comes from, or -1 */
    const char *slots;   /* of slot 0 */
    size_t stride;       /* between slots */
} hpc_input;

typedef struct hpc_output {
    int rank;
    float *params; /* mapped here, else NULL */
    size_t offset; /* in rank's part of the window */
    float *copy;   /* what a put reads while the master goes on; NULL: the master itself */
} hpc_output;

/* A row that this rank owns. */
typedef struct hpc_work {
    int index;
    const hpc_row *row;
    const hpc_codec *codec; /* of its inputs */
    hpc_share *share;
    float *param; /* the master; where models rotate, in the slot of the last fold */
    float *state; /* block by block: slots times the values of the block */
    float *acc;   /* eager and FORWARD only */
    uint64_t step;
    uint64_t folded;    /* by this exchange: how often */
    int *arrived;       /* by slot: inputs that are there */
    _Atomic char *came; /* the same by slot and input; written by the core alone */
    const double *weights;
    hpc_input *inputs;
    int passes;          /* inputs and outputs are such that ex->pass can do it */
    hpc_output *outputs; /* all but the master's own place; the receive slots of a FORWARD */
    int n_outputs;
} hpc_work;

/* A forward that found the ring of its receiver full. */
typedef struct hpc_kept {
    hpc_work *work;
    int edge, slot;
    struct hpc_kept *next; /* to the same receiver; or the next free one */
} hpc_kept;

typedef enum hpc_started { HPC_STARTED = 1, HPC_UNPINNED = 2 /* where it should have been pinned */ } hpc_started;

/* What a core has done; written by it alone, read by hpc_exchange_get_stats meanwhile. */
typedef struct hpc_tally {
    _Atomic uint64_t applied, bytes_folded, bytes_written;
    _Atomic uint64_t reduces, whole, torn, stale, missing;
    _Atomic double busy;
} hpc_tally;

typedef struct hpc_core {
    _Alignas(64) hpc_exchange *exchange;
    int index, cpu, node; /* cpu -1: not pinned */
    hpc_lane *in, *out;   /* pushes come by in, answers go by out */
    float *acc;           /* one block */
    const void **folding; /* addresses of a fold's inputs */
    const char **bases;   /* of a whole row's, and their weights */
    double *base_weights;
    float **writing;                    /* the places where a pass writes */
    double (*args)[HPC_RULE_ARGS];      /* by rank */
    _Atomic uint64_t *args_set;         /* by rank: how often */
    hpc_kept *kept, *free_kept;         /* as many as can be kept at once */
    hpc_kept **kept_first, **kept_last; /* by rank: those to it, the oldest first */
    int n_kept, at_out;                 /* at_out: forwards are looked at before pushes */
    hpc_event *held;                    /* by rank: an event that has to wait (see hpc_discipline.holds_up); */
    char *holds;                        /* whether there is one. What the rank sends after it waits in the ring */
    int n_held;
    void *own;  /* the discipline's */
    double due; /* when work has to be looked at though no event comes; INFINITY: not */
    pthread_t thread;
    int running;
    _Atomic int working, paused; /* by its thread; by how many threads that look at its rows */
    _Atomic int started;         /* hpc_started */
    void *memory;                /* states and accumulators of its rows */
    size_t memory_bytes;
    hpc_tally tally;
} hpc_core;

#endif
