/* The work of an owner: its cores, each core's shares (the rows of one key), and their rows (one chunk of a key each).
 * A field described as by slot, rank or input is an array with that index. */
#ifndef HPC_WORK_H
#define HPC_WORK_H

#include <pthread.h>

#include "base/usual.h"
#include "codec/codec.h"
#include "context/context.h"
#include "engine/imm.h"
#include "kernel/fold.h"
#include "kernel/rule.h"
#include "plan/plan.h"

enum {
    HPC_BLOCK = 4096, /* elements of a block: folded, applied and written while they are in the L1 or L2 cache */
    HPC_FAILURE_BYTES = 256
};

#define HPC_NOWHERE SIZE_MAX
#define HPC_ARGS_BYTES (HPC_RULE_ARGS * sizeof(double))

typedef struct hpc_scheme hpc_scheme;
typedef struct hpc_discipline hpc_discipline;
typedef struct hpc_phases hpc_phases;
typedef struct hpc_row_kind hpc_row_kind;

/* Encodes pieces (pieces.c). One thread at a time uses it; other threads may read its counts meanwhile. */
typedef struct hpc_encoder {
    const hpc_codec *codec; /* NULL: nothing is encoded */
    hpc_encoding encoding;
    _Atomic double delta;       /* the threshold for the next encoding; any thread may set it */
    int packs;                  /* pieces are packed (compressed) after they are encoded */
    int keeps;                  /* its state begins with a residual */
    size_t slots;               /* values of state for each element */
    uint64_t count;             /* elements */
    float *state;               /* piece after piece: the residual, if it keeps one, then the codec's own slots */
    float *before;              /* split: the state before the last encoding; otherwise NULL */
    hpc_encoding was;           /* likewise */
    int fresh;                  /* before and was belong to the last fold, even if it is over */
    _Atomic int left_out;       /* of a row: its last piece was left out, and is not yet added back to the residual */
    _Atomic double outcomes[2]; /* of a row, for even and odd folds: set by hpc_pieces_end_fold */
    _Atomic uint64_t pieces, elements, kept, bytes, returned;
    _Atomic double seconds;
} hpc_encoder;

/* Buffers to pack and unpack one piece at a time; if room is 0 no piece is packed. */
typedef struct hpc_packing {
    char *raw, *scratch;
    size_t most, room; /* bytes of raw and of scratch */
} hpc_packing;

typedef struct hpc_share {
    /* discipline/ reads key, owner, core, at, n_rows, rows, n_members, members, version, left, args_came, clocks,
     * n_parked, own. */
    int key, owner, core;
    int at; /* its number among the shares of its owner */
    int n_rows;
    int *rows;      /* numbers of rows of the plan */
    size_t nbytes;  /* bytes of an update of all its rows, as it is sent */
    size_t pushed;  /* the part of nbytes that this rank pushes; rows that only take forwards add nothing */
    int some_empty; /* some of its inputs have weight 0 and bring no bytes */
    int tells;      /* rows to which this rank's push brings no bytes, and only tells that it has pushed */
    int n_members;
    int *members;             /* owner: the ranks on the edges of its rows, this rank last */
    uint64_t version;         /* owner: how often all rows have been folded */
    int left;                 /* owner: rows that are not yet folded for the next version */
    int args_came;            /* owner: a rank has brought new arguments for the next fold */
    int args_from, args_slot; /* owner: the rank and the slot of the newest arguments */
    struct hpc_clock *clocks; /* owner: by sender, if the discipline counts by senders; otherwise NULL */
    int n_parked;             /* owner: answers that wait for other ranks' updates */
    void *own;                /* the discipline's */
} hpc_share;

/* A rank to which a row sends an input on, without decoding it (hpc_edge.row). */
typedef struct hpc_hop {
    const struct hpc_input *in;
    int rank, named; /* named: the row that the event names, which belongs to the rank that made the update */
    size_t at;       /* offset of slot 0 in the receiver's part */
    struct hpc_hop *next;
} hpc_hop;

/* The places of a row's inputs and outputs. */
typedef struct hpc_input {
    /* discipline/ reads rank, forwarded, lowest, updates, empty, args. */
    int rank, forwarded; /* forwarded: the row at rank whose forward it is, or -1 */
    int lowest, updates; /* the lowest rank whose pushes are in it, and the number of such ranks */
    double mass;         /* the total weight of these pushes in the row, by the plan */
    int empty;           /* its weight is 0: it brings no bytes */
    size_t nbytes;       /* bytes of an array, counted when it is folded; 0 for a piece, counted when it is added */
    const hpc_codec *codec;
    const char *slots;                   /* address of slot 0 */
    size_t stride;                       /* between slots */
    const double (*args)[HPC_RULE_ARGS]; /* by slot: the rule's arguments, from its lowest rank */
    hpc_hop *hops;                       /* NULL: the input is not sent on */
} hpc_input;

typedef struct hpc_output {
    int rank, row; /* row: the row that it goes to; -1: it goes to rank's parameters */
    int lowest;    /* the lowest rank that gets parameters by it */
    float *params; /* rank's parameters if they are mapped here, otherwise NULL */
    size_t offset; /* in rank's part of the window */
    void *copy;    /* the source of puts where the master may change meanwhile; NULL: puts read the master or encoded */
} hpc_output;

/* The rule of a key. */
typedef struct hpc_key_rule {
    /* exchange/ reads rule, name, arg_names. */
    hpc_rule rule; /* its args belong to this rank's next push */
    char name[64], arg_names[128];
    hpc_pass_fn *pass;            /* fold, rule and write of float32 in one pass; NULL: one step after the other */
    int is_sgd;                   /* apply is that of sgd, perhaps with a prox or on Z */
    int averages;                 /* the rule is the average of the weighted sum: folds write the parameters directly */
    double (*out)[HPC_RULE_ARGS]; /* by slot: the arguments of the slot's push, which a put may still be reading */
} hpc_key_rule;

/* A row that this rank owns. */
typedef struct hpc_work {
    /* discipline/ reads index, row, args, share, mean, step, folded, inputs. */
    int index;
    const hpc_row *row;
    const hpc_row_kind *kind;
    const hpc_codec *in_codec;      /* of pushes */
    const hpc_codec_config *config; /* settings of pieces; NULL: the key has none */
    const hpc_key_rule *rule;
    hpc_apply_fn apply;                  /* the rule's; if the row emits, a copy of the fold */
    int args_of;                         /* the lowest rank whose pushes reach it */
    const double (*args)[HPC_RULE_ARGS]; /* by slot: the rule's arguments, from that rank */
    const hpc_codec *out_codec;
    hpc_share *share;
    float *param; /* the master; where models rotate, it is in the slot of the last fold */
    float *state; /* block by block: the block's values of slot 0, then of slot 1, ... */
    float *acc;   /* memory of hpc_row_room.acc; or core->acc if the room is sum */
    /* Fold and apply as two calls: the mean that is kept, in acc or in the slot of its only input. */
    const float *mean;
    float *gathered; /* the mean of a row that keeps its inputs; NULL before the first gather */
    int n_updates;   /* in mean */
    char *encoded;   /* the outputs as they are sent, encoded once for all receivers; NULL: they are plain float32 */
    hpc_encoder *encoder;     /* of a forward that sends pieces */
    _Atomic uint64_t decoded; /* bytes of pieces */
    _Atomic double decode_seconds;
    char *leaving; /* HPC_SUMS: its outputs as they are sent, by slot */
    size_t leaving_stride;
    _Atomic uint64_t *taken; /* HPC_SUMS: by input, how many updates were added, or folded; NULL: the row sums none */
    uint64_t step;
    _Atomic uint64_t folded; /* how many folds this exchange has made; the core alone writes it */
    int *arrived;            /* by slot: how many inputs have come */
    _Atomic char *came;      /* by slot and input: whether and how it came; the core alone writes it */
    const double *weights;
    hpc_input *inputs;
    hpc_output *outputs; /* all but the master itself */
    int n_outputs, sends_to_rows;
} hpc_work;

enum { HPC_KEPT_EMPTY = -1 };

/* A forward that found its receiver's ring full and is sent later: an output of a row or, if hop is set, an input that
 * is sent on. */
typedef struct hpc_kept {
    hpc_work *work;
    const hpc_hop *hop;
    int edge, slot;        /* slot may be HPC_KEPT_EMPTY */
    struct hpc_kept *next; /* the next one for the same receiver; or the next free one */
} hpc_kept;

typedef enum hpc_started {
    HPC_STARTED = 1,
    HPC_UNPINNED = 2, /* it could not be pinned to its CPU */
    HPC_CROWDED = 3   /* it was pinned, but other threads kept its CPU busy */
} hpc_started;

/* Counters of a core; the core alone writes them, and hpc_exchange_get_stats reads them meanwhile. */
typedef struct hpc_tally {
    _Atomic uint64_t applied, bytes_folded, bytes_written, events;
    _Atomic uint64_t works; /* calls that work on a row: it grows while the core folds or applies */
    _Atomic uint64_t reduces, whole, torn, stale, missing;
    _Atomic double busy;
} hpc_tally;

typedef struct hpc_core {
    /* discipline/ reads scheme, out, own, clocked, due. */
    _Alignas(64) hpc_scheme *scheme;
    int index, cpu, node; /* cpu -1: not pinned */
    hpc_lane *in, *out;   /* pushes come by in, answers go by out */
    int two_ways;         /* other ranks' cores send updates, which come by out */
    float *acc;           /* for one block, or for a row whose inputs or outputs are pieces */
    size_t acc_bytes;
    float *sum; /* for a whole row, if the row rarely needs a sum; NULL: no row has needed it yet */
    size_t sum_bytes;
    const void **folding; /* addresses of a fold's inputs */
    const char **bases;   /* of whole rows: the inputs' addresses, weights, and the inputs themselves */
    double *base_weights;
    const hpc_input **base_inputs;
    hpc_codec_input *pieces;    /* the same inputs in the form in which a codec takes them all at once */
    float **writing;            /* the places where a pass writes */
    uint64_t *args_came;        /* by rank: how many events of arguments that need an answer have come */
    hpc_kept *kept, *free_kept; /* memory for all forwards that can be kept at once, and the list of free ones */
    hpc_kept **kept_first, **kept_last; /* by rank: the list of its kept forwards, oldest first */
    _Atomic int n_kept;                 /* close reads it too */
    int at_out;                         /* lane out is polled before lane in */
    hpc_event *held;                    /* by rank: an event that must wait (hpc_gate.other_came) */
    char *holds; /* by rank: whether held has an event; the rank's later events stay in the ring */
    int n_held;
    void *own;                   /* the discipline's */
    struct hpc_clocked *clocked; /* the discipline's, where it counts by senders */
    double due;                  /* when the core must work even if no event comes, in seconds; INFINITY: never */
    pthread_t thread;
    /* running: a thread works for the core. owns_thread: the thread is this core's own, and also works for the cores
     * beside it. */
    int running, owns_thread;
    struct hpc_core
        *_Atomic beside; /* the next core of the same number, in another scheme, that the same thread works for */
    /* working: its thread is at work. paused: how many threads have paused it to access its rows. */
    _Atomic int working, paused;
    _Atomic int started; /* hpc_started */
    hpc_packing packing;
    void *memory; /* rule states and accumulators of its rows */
    size_t memory_bytes;
    hpc_tally tally;
    /* Bytes by rank and stage, also to this rank; like hpc_tally, read meanwhile (hpc_core_sent). */
    _Atomic uint64_t *sent;
    _Atomic uint64_t *sent_of_key; /* bytes to other ranks, by key */
} hpc_core;

#endif
