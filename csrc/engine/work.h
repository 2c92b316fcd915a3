/* The work of an owner: its cores, the shares that each has of a key, and their rows. */
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
    HPC_BLOCK = 4096, /* elements that are folded, applied and written while they are in the first caches */
    HPC_FAILURE_BYTES = 256
};

#define HPC_NOWHERE SIZE_MAX
#define HPC_ARGS_BYTES (HPC_RULE_ARGS * sizeof(double))

typedef struct hpc_scheme hpc_scheme;
typedef struct hpc_discipline hpc_discipline;
typedef struct hpc_phases hpc_phases;
typedef struct hpc_row_kind hpc_row_kind;

/* Writes pieces (pieces.c). One thread at a time uses it; the counts are read meanwhile. */
typedef struct hpc_encoder {
    const hpc_codec *codec; /* NULL: nothing is encoded */
    hpc_encoding encoding;
    _Atomic double delta; /* that the next encoding asks for; any thread may set it */
    int packs;            /* pieces are packed when they are encoded */
    int keeps;            /* its state begins with a residual */
    size_t slots;         /* values of state an element */
    uint64_t count;       /* elements */
    float *state;     /* of each piece the residual, if it keeps one, then the codec's own slots; piece after piece */
    float *before;    /* split: the state as it was before the last encoding; elsewhere NULL */
    hpc_encoding was; /* likewise */
    int fresh;        /* before and was are of the last fold, even if it is over */
    _Atomic int left_out;       /* of a row: its last piece was left out, and is not back yet */
    _Atomic double outcomes[2]; /* of a row, of its even and odd folds: set by hpc_pieces_end_fold */
    _Atomic uint64_t pieces, elements, kept, bytes, returned;
    _Atomic double seconds;
} hpc_encoder;

/* Room in which pieces are packed and unpacked, one at a time; room 0: none are packed. */
typedef struct hpc_packing {
    char *raw, *scratch;
    size_t most, room; /* bytes of the two */
} hpc_packing;

typedef struct hpc_share {
    /* discipline/ reads key, owner, core, at, n_rows, rows, n_members, members, version, left, args_came, clocks,
     * n_parked, own. */
    int key, owner, core;
    int at; /* its number among the shares of its owner */
    int n_rows;
    int *rows;      /* of the plan */
    size_t nbytes;  /* of an update of all of them, as it is sent */
    size_t pushed;  /* the part of nbytes that this rank pushes; rows that others forward to take none */
    int some_empty; /* some of its inputs bring no bytes: their weight is 0 */
    int tells;      /* rows to which this rank tells that it has pushed, without bytes */
    int n_members;
    int *members;             /* owner: the ranks at either end of its rows, itself last */
    uint64_t version;         /* owner: how often all rows have been folded */
    int left;                 /* owner: rows that are not folded yet for the next version */
    int args_came;            /* owner: a rank has brought new args for the next fold */
    int args_from, args_slot; /* owner: the rank and the slot of the last new args */
    struct hpc_clock *clocks; /* owner: by sender, where the discipline counts by senders; else NULL */
    int n_parked;             /* owner: answers that wait for updates of others */
    void *own;                /* the discipline's */
} hpc_share;

/* A rank to which an input of a row is sent on, unopened (hpc_edge.row). */
typedef struct hpc_hop {
    const struct hpc_input *in;
    int rank, named; /* named: the row that the event names, of the rank whose update it is */
    size_t at;       /* bytes from the start of the receiver's part to slot 0 */
    struct hpc_hop *next;
} hpc_hop;

/* The places of a row's inputs and outputs. */
typedef struct hpc_input {
    /* discipline/ reads rank, forwarded, lowest, updates, empty, args. */
    int rank, forwarded; /* forwarded: the row at rank that it comes from, or -1 */
    int lowest, updates; /* the lowest rank whose pushes are in it, and how many ranks there are */
    double mass;         /* the sum of the weights that these pushes have in the row by the plan */
    int empty;           /* its weight is 0: it brings no bytes */
    size_t nbytes;       /* of an array, which is counted when it is folded; 0: of a piece, counted as it is added */
    const hpc_codec *codec;
    const char *slots;                   /* of slot 0 */
    size_t stride;                       /* between slots */
    const double (*args)[HPC_RULE_ARGS]; /* by slot: the rule's, of the lowest rank that it comes from */
    hpc_hop *hops;                       /* NULL: it is not sent on */
} hpc_input;

typedef struct hpc_output {
    int rank, row; /* row: that it goes to; -1: rank's parameters */
    int lowest;    /* the lowest rank that gets parameters by it */
    float *params; /* mapped here, else NULL */
    size_t offset; /* in rank's part of the window */
    void *copy;    /* the source of puts, while the master changes; NULL: the master itself, or encoded */
} hpc_output;

/* The rule of a key. */
typedef struct hpc_key_rule {
    /* exchange/ reads rule, name, arg_names. */
    hpc_rule rule; /* its args are for this rank's next push */
    char name[64], arg_names[128];
    hpc_pass_fn *pass; /* fold, rule and write of float32 at once; NULL: one after the other */
    int is_sgd;        /* apply is sgd's, also with a prox or on Z */
    int averages;      /* the rule is average, over the weighted sum: folds go straight into the parameters */
    double (*out)[HPC_RULE_ARGS]; /* by slot: the arguments of its push, which a put may still read */
} hpc_key_rule;

/* A row that this rank owns. */
typedef struct hpc_work {
    /* discipline/ reads index, row, args, share, mean, step, folded, inputs. */
    int index;
    const hpc_row *row;
    const hpc_row_kind *kind;
    const hpc_codec *in_codec;      /* of pushes */
    const hpc_codec_config *config; /* of pieces; NULL: the key has none */
    const hpc_key_rule *rule;
    hpc_apply_fn apply;                  /* the rule's; where the fold itself is the parameters it copies */
    int args_of;                         /* the lowest rank whose pushes reach it */
    const double (*args)[HPC_RULE_ARGS]; /* by slot: the rule's, of that rank */
    const hpc_codec *out_codec;
    hpc_share *share;
    float *param;      /* the master; where models rotate, in the slot of the last fold */
    float *state;      /* block by block: slots times the values of the block */
    float *acc;        /* hpc_row_room.acc, or core->acc where that is sum */
    const float *mean; /* fold and apply: the mean that is kept, in acc or in the slot of its only input */
    float *gathered;   /* memory for the mean of a row that keeps its inputs; NULL: no gather yet */
    int n_updates;     /* in mean */
    char *encoded;     /* the outputs as they are sent, one encoding for all receivers; NULL: they are plain float32 */
    hpc_encoder *encoder;     /* of a forward that sends pieces */
    _Atomic uint64_t decoded; /* bytes of pieces */
    _Atomic double decode_seconds;
    char *leaving; /* HPC_SUMS: its outputs, by slot */
    size_t leaving_stride;
    _Atomic uint64_t *taken; /* likewise, by input: updates that were added, or folded; NULL: it sums none */
    uint64_t step;
    _Atomic uint64_t folded; /* by this exchange: how often; written by the core alone */
    int *arrived;            /* by slot: inputs that are there */
    _Atomic char *came;      /* the same by slot and input; written by the core alone */
    const double *weights;
    hpc_input *inputs;
    hpc_output *outputs; /* all but the master itself */
    int n_outputs, sends_to_rows;
} hpc_work;

enum { HPC_KEPT_EMPTY = -1 };

/* A forward that found the ring of its receiver full: an output of a row, or (hop) an input that is sent on. */
typedef struct hpc_kept {
    hpc_work *work;
    const hpc_hop *hop;
    int edge, slot;        /* slot: or HPC_KEPT_EMPTY */
    struct hpc_kept *next; /* to the same receiver; or the next free one */
} hpc_kept;

typedef enum hpc_started {
    HPC_STARTED = 1,
    HPC_UNPINNED = 2, /* where it should have been pinned */
    HPC_CROWDED = 3   /* it was pinned, and gave up its CPU to others */
} hpc_started;

/* Counters of a core; the core alone writes them, and hpc_exchange_get_stats reads them meanwhile. */
typedef struct hpc_tally {
    _Atomic uint64_t applied, bytes_folded, bytes_written, events;
    _Atomic uint64_t works; /* calls of a row's kind: it grows while the core folds or applies */
    _Atomic uint64_t reduces, whole, torn, stale, missing;
    _Atomic double busy;
} hpc_tally;

typedef struct hpc_core {
    /* discipline/ reads scheme, out, own, clocked, due. */
    _Alignas(64) hpc_scheme *scheme;
    int index, cpu, node; /* cpu -1: not pinned */
    hpc_lane *in, *out;   /* pushes come by in, answers go by out */
    int two_ways;         /* cores of other ranks send updates: they come by out */
    float *acc;           /* one block, or a row whose inputs or outputs are pieces */
    size_t acc_bytes;
    float *sum; /* a row's, of rows that need one in few steps; NULL: none has needed it yet */
    size_t sum_bytes;
    const void **folding; /* addresses of a fold's inputs */
    const char **bases;   /* of a whole row's, their weights, and which inputs they are */
    double *base_weights;
    const hpc_input **base_inputs;
    hpc_codec_input *pieces;            /* the same inputs, as a codec takes them all at once */
    float **writing;                    /* the places where a pass writes */
    uint64_t *args_came;                /* by rank: events of args that it waited for an answer to */
    hpc_kept *kept, *free_kept;         /* room for all that can be kept at once */
    hpc_kept **kept_first, **kept_last; /* by rank: its list, the oldest first */
    _Atomic int n_kept;                 /* close reads it too */
    int at_out;                         /* forwards are looked at before pushes */
    hpc_event *held;                    /* by rank: an event that has to wait (see hpc_gate.other_came) */
    char *holds;                        /* by rank: whether held has one; later events of the rank wait in the ring */
    int n_held;
    void *own;                   /* the discipline's */
    struct hpc_clocked *clocked; /* the discipline's, where it counts by senders */
    double due;                  /* when the core has to work even if no event comes; INFINITY: never */
    pthread_t thread;
    int running, owns_thread; /* a thread works for it; it is this core's own, and works for those beside it too */
    struct hpc_core
        *_Atomic beside;         /* the next core of the same number, of another scheme, that the thread works for */
    _Atomic int working, paused; /* whether its thread works; how many threads have paused it to look at its rows */
    _Atomic int started;         /* hpc_started */
    hpc_packing packing;
    void *memory; /* states and accumulators of its rows */
    size_t memory_bytes;
    hpc_tally tally;
    _Atomic uint64_t *sent;        /* bytes by rank and stage, this rank included; see hpc_tally and hpc_core_sent */
    _Atomic uint64_t *sent_of_key; /* bytes to other ranks, by key */
} hpc_core;

#endif
