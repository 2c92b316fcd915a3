/* The state of one rank's end of an exchange.
 *
 *   layout.c    where everything lies in every rank's part of the window, from the plan alone
 *   rows.c      the rows that this rank owns, and the cores that work for them
 *   core.c      a core: polls, hands events to the discipline, and what progress it has
 *   row.c       a row: folded, applied, written, answered
 *   forward.c   what a row of several stages hands on
 *   send.c      the trainer's side: how an update gets to the owners
 *   ticket.c    what the trainer waits for, and whom
 * What a discipline decides it is asked by discipline.h; discipline/ and exchange/ stand above this folder.
 *
 * A *share* is what one core owns of one key: its rows are pushed and answered together. Who writes what:
 *   gradients, pushed counts   their worker; read by the owners of the rows between its push and their answer
 *   params                     the owners of their rows, between the worker's push (or pull) and the answer; where
 *                              models rotate then their worker, until they are what it pushes
 *   masters, receive slots     one core, where a master is not a worker's params; the slots by the sender they belong
 *                              to, between an answer and the next push
 *   args slots                 their worker; read by the core between the event and the answer
 * A push is an event (a release of the ring's tail, acquired by poll), an answer is a signal (a release, acquired by
 * the worker's look), so every access above is ordered by one of the two. No lock, no word with two writers. */
#ifndef HPC_ENGINE_H
#define HPC_ENGINE_H

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

/* ---- owner ---- */

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

/* How one rank's part of the window is laid out; offsets are HPC_NOWHERE for what it has not. */
typedef struct hpc_place {
    size_t params, gradients, pushed, masters, args, closed;
    size_t own; /* the discipline's */
    size_t nbytes;
    int cores, shares; /* that own rows there */
    int first_core;
    int worker;
} hpc_place;

/* ---- worker ---- */

/* Its view of a key. */
typedef struct hpc_pushed {
    uint64_t pushes, pulls;
    double since;         /* when its last push began; 0: its end has been seen */
    int sending, started; /* hpc_push_flags: what is left to send of what was started */
    int at_share, at_row; /* where it stopped */
    int n_shares;
    int *shares;   /* in which this rank is at either end */
    int n_awaited; /* of them, those whose answers make a push done */
    int *awaited;
    size_t params;          /* bytes from the start of the params */
    size_t gradient;        /* bytes from the start of a slot of the gradients */
    const hpc_codec *codec; /* of the gradient */
} hpc_pushed;

/* ---- both ---- */

/* How an exchange was asked for; as hpc_exchange_config has it. */
typedef struct hpc_asked {
    int shared_params, eager, check_finite, in_place, staleness, quorum;
    double grace; /* negative: learned */
} hpc_asked;

/* What follows from the plan and the discipline alone. */
typedef struct hpc_layout {
    int depth, n_shares, n_cores; /* n_cores: of all ranks */
    int forwards;                 /* some rows do */
    hpc_share *shares;
    int *share_of;     /* by row */
    uint64_t *feeders; /* by row: a bit for each rank that feeds it; NULL: no row forwards */
    size_t feeder_words;
    hpc_place *places;                   /* by rank */
    char *pushers;                       /* [key * size + rank] */
    size_t params_bytes, gradient_bytes; /* of all keys; of one slot */
    size_t *master_of;                   /* by row: bytes from its owner's masters */
    size_t *slot_base;                   /* [owner * size + sender]: bytes in the owner's part, or HPC_NOWHERE */
    int holder;                          /* whose part holds this rank's parameters; -1 */
    int lowest;                          /* worker */
} hpc_layout;

/* What goes to and comes from other ranks, and how whole it was. */
typedef struct hpc_peers {
    _Atomic uint64_t *sent, *received; /* bytes by rank */
    _Atomic uint64_t *late;            /* by rank: shares of its updates that were left out here */
    double *wait;                      /* seconds by rank */
    int *awaited, n_awaited;           /* whom the wait that is under way was for at its last look */
    _Atomic uint64_t *inputs_whole;    /* reduces by how many whole inputs they had; NULL: not counted */
    int most_inputs;
} hpc_peers;

/* The arrays that all rows of this rank have parts of. */
typedef struct hpc_row_memory {
    hpc_input *inputs;
    hpc_output *outputs;
    double *weights;
    int *arrived;
    _Atomic char *came;
} hpc_row_memory;

/* Why the exchange has ended; the first word wins. */
typedef struct hpc_ending {
    _Atomic int failed; /* hpc_status of the first failure of a core */
    _Atomic int failing;
    char failure[HPC_FAILURE_BYTES];
} hpc_ending;

typedef struct hpc_life {
    int open, closed, served;
    int serves; /* rows of this rank outlast its own pushes */
} hpc_life;

/* A set_args. */
typedef struct hpc_setting {
    uint64_t sent;
    int under_way, at; /* at: up to which core */
} hpc_setting;

struct hpc_exchange {
    hpc_context *context;
    hpc_plan *plan;
    const hpc_discipline *discipline;
    void *own;   /* the discipline's */
    void *graph; /* discipline/graph.c: the graph that rows were made of; NULL: there are servers */
    hpc_rule rule;
    char rule_name[64];
    const struct hpc_fold_kernels *kernels;
    hpc_pass_fn *pass; /* fold, rule and write of float32 at once; NULL: one after the other */
    hpc_asked asked;
    int stream;   /* parameters are written past the caches */
    int averages; /* the rule is average, over the weighted sum: a fold is all, and goes into the parameters */
    int rotates;  /* models are trained where they lie: in the slot that the next push sends; a fold writes the next */
    int args_of;  /* the rank by whose arguments rows are applied, -1: not known yet */
    int owners_leave; /* an owner that has closed folds nothing any more, and takes no event */
    hpc_peers peers;
    hpc_layout layout;
    hpc_window *window;
    hpc_lane **in_lanes, **out_lanes;
    int n_lanes;

    /* worker */
    hpc_pushed *keys;
    size_t *push_slot; /* by row: offset in its owner's part of slot 0 for this rank's pushes, or HPC_NOWHERE */
    hpc_setting setting;
    hpc_life life;
    hpc_exchange_stats stats;
    hpc_usual usual; /* how long pushes take */

    /* owner */
    hpc_core *cores;
    int n_own_cores;
    hpc_work *work;
    int n_work;
    int *work_of; /* by row: -1 for those of others */
    hpc_row_memory memory;
    hpc_task task;
    int inline_progress;
    _Atomic int stopping;
    hpc_ending fault;
};

/* All rows of a share have the same inputs. */
static inline const hpc_work *hpc_first_work(const hpc_exchange *ex, const hpc_share *share) {
    return &ex->work[ex->work_of[share->rows[0]]];
}

/* Bytes to or from another rank. Its threads and cores count together. */
static inline void hpc_count_bytes(const hpc_exchange *ex, _Atomic uint64_t *by_rank, int rank, size_t nbytes) {
    if (rank != ex->context->group.rank) atomic_fetch_add_explicit(&by_rank[rank], nbytes, memory_order_relaxed);
}

/* A counter with one writer; whoever reads it needs no order. */
static inline void hpc_tally_add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Records what ends the exchange; first word wins. hpc_exchange_check tells the other ranks. (row.c) */
void hpc_exchange_fail(hpc_exchange *ex, int status, const char *why);

#endif
