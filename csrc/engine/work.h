/* The work of an owner: its cores, each core's shares (the rows of one key), and their rows (one chunk of a key each).
 * "By slot", "by rank" and "by input" say that a field is an array with that index. */
#ifndef HPC_WORK_H
#define HPC_WORK_H

#include "base/crew.h"
#include "base/usual.h"
#include "codec/codec.h"
#include "context/context.h"
#include "engine/imm.h"
#include "kernel/fold.h"
#include "kernel/rule.h"
#include "plan/plan.h"

enum {
    HPC_BLOCK = 4096, /* elements of a block, which is folded, applied and written while it is in the L1 or L2 cache */
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
    _Atomic double delta; /* the threshold for the next encoding; any thread may set it */
    int packs;            /* pieces are packed (compressed) after they are encoded */
    int keeps;            /* its state begins with a residual */
    size_t slots;         /* values of state for each element */
    uint64_t count;       /* elements */
    float *state;  /* for one piece after the other: the residual, if the codec keeps one, then the codec's own slots */
    float *before; /* split: the state before the last encoding; otherwise NULL */
    hpc_encoding was;     /* likewise */
    int fresh;            /* set if the fields before and was are from the last fold, even if it is over */
    _Atomic int left_out; /* only for a row's encoder: set if its last piece was left out and is not yet added back to
                             the residual */
    _Atomic double outcomes[2]; /* a row's encoder: outcomes of even and of odd folds, set by hpc_pieces_end_fold */
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
    size_t nbytes;  /* bytes of an update of all rows of the share, as it is sent */
    size_t pushed;  /* how many of nbytes this rank pushes; rows that take only forwards are not counted */
    int some_empty; /* set if some inputs have weight 0 and carry no bytes */
    int tells;      /* how many rows get no bytes from this rank's push, only the news that it was made */
    int n_members;
    int *members;             /* set only at the owner: the ranks that it answers, this rank last */
    uint64_t version;         /* owner: how often all rows have been folded */
    int left;                 /* set only at the owner: how many rows are not yet folded for the next version */
    int args_came;            /* set only at the owner: 1 if a rank has put new arguments for the next fold */
    int args_from, args_slot; /* set only at the owner: the rank and the slot of the newest arguments */
    struct hpc_clock *clocks; /* owner only: by sender; NULL unless the discipline counts by senders */
    int n_parked;             /* owner: answers that wait for other ranks' updates */
    void *own;                /* the discipline's */
} hpc_share;

/* A rank to which a row sends an input on, without decoding it (hpc_edge.row). */
typedef struct hpc_hop {
    const struct hpc_input *in;
    int rank, named; /* named: the number of the row that the event names, a row of the rank that made the update */
    size_t at;       /* offset of slot 0 in the receiver's part */
    struct hpc_hop *next;
} hpc_hop;

/* The places of a row's inputs and outputs. */
typedef struct hpc_input {
    /* discipline/ reads rank, forwarded, lowest, updates, empty, args. */
    int rank, forwarded; /* forwarded: the row of rank that forwards this input; -1 if rank pushes it */
    int lowest, updates; /* the lowest rank whose pushes are in this input; the number of such ranks */
    double mass;         /* the total weight of these pushes in the row, by the plan */
    int empty;           /* its weight is 0: it brings no bytes */
    size_t nbytes; /* bytes of an array, which are counted when it is folded; 0 for a piece, whose bytes are counted
                      when it is added */
    const hpc_codec *codec;
    const char *slots;                   /* address of slot 0 */
    size_t stride;                       /* between slots */
    const double (*args)[HPC_RULE_ARGS]; /* by slot: the rule's arguments, from its lowest rank */
    hpc_hop *hops;                       /* NULL: the input is not sent on */
} hpc_input;

typedef struct hpc_output {
    int rank, row; /* row: the row of rank that gets this output; -1: rank's parameters get it */
    int lowest;    /* the lowest rank that gets parameters by it */
    float *params; /* rank's parameters if they are mapped here, otherwise NULL */
    size_t offset; /* in rank's part of the window */
    void *copy;    /* the source of puts if the master may change during them; NULL: puts read the master or the array
                      encoded */
} hpc_output;

/* The rule of a key. */
typedef struct hpc_key_rule {
    /* exchange/ reads rule, name, arg_names. */
    hpc_rule rule; /* its args belong to this rank's next push */
    char name[64], arg_names[128];
    hpc_pass_fn *pass; /* fold, rule and write of float32 in one pass; NULL: three separate steps */
    int is_sgd;        /* set if apply is sgd's, perhaps with a prox or on Z */
    int averages; /* set if the rule is average: the fold is the new parameters and is written into them directly */
    double (*out)[HPC_RULE_ARGS]; /* by slot: the arguments of that slot's push, which a put may still read */
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
    hpc_apply_fn apply; /* the rule's function; if the row emits (HPC_EMIT), a function that copies the fold */
    int args_of;        /* the lowest rank whose pushes reach it */
    const double (*args)[HPC_RULE_ARGS]; /* by slot: the rule's arguments, from that rank */
    const hpc_codec *out_codec;
    hpc_share *share;
    float *param; /* the master; if models rotate, it is in the slot that the last fold wrote */
    float *state; /* the rule's state, block by block: the block's values of state slot 0, then of state slot 1, ... */
    float *acc;   /* memory of hpc_row_room.acc; or core->acc if the room is sum */
    /* With fold and apply as two calls: the mean that is kept, in acc or, if the fold has one input, in that input's
     * slot. */
    const float *mean;
    float *gathered;          /* the mean of a row that keeps its inputs; NULL before the first gather */
    int n_updates;            /* in mean */
    char *encoded;            /* the encoded output, one copy for all receivers; NULL: outputs are plain float32 */
    hpc_encoder *encoder;     /* of a forward that sends pieces */
    _Atomic uint64_t decoded; /* bytes of pieces */
    _Atomic double decode_seconds;
    char *leaving; /* HPC_SUMS: its outputs as they are sent, by slot */
    size_t leaving_stride;
    _Atomic uint64_t *taken; /* HPC_SUMS: by input, how many updates were added; NULL: the row has no sum */
    uint64_t step;
    _Atomic uint64_t folded; /* how many folds of this row were made; only the core writes it */
    int *arrived;            /* by slot: how many inputs have come */
    _Atomic char *came;      /* by slot and input: whether and how it came (HPC_CAME) */
    const double *weights;
    hpc_input *inputs;
    hpc_output *outputs; /* all but the master itself */
    int n_outputs, sends_to_rows;
} hpc_work;

enum { HPC_KEPT_EMPTY = -1 };

/* A forward that is sent later because its receiver's ring was full: an output of a row or, if hop is set, an input
 * that is sent on. */
typedef struct hpc_kept {
    hpc_work *work;
    const hpc_hop *hop;
    int edge, slot;        /* slot may be HPC_KEPT_EMPTY */
    struct hpc_kept *next; /* the next one for the same receiver; or the next free one */
} hpc_kept;

/* Counters of a core; the core alone writes them, and hpc_exchange_get_stats reads them meanwhile. */
typedef struct hpc_tally {
    _Atomic uint64_t applied, bytes_folded, bytes_written, events;
    _Atomic uint64_t works; /* number of calls that have worked on a row; it grows while the core folds or applies */
    _Atomic uint64_t reduces, whole, torn, stale, missing;
    _Atomic double busy;
} hpc_tally;

typedef struct hpc_core {
    /* discipline/ reads scheme, out, own, clocked, due. */
    _Alignas(64) hpc_scheme *scheme;
    int index, cpu, node; /* cpu -1: not pinned */
    hpc_lane *in, *out;   /* pushes come by in, answers go by out */
    int two_ways;         /* other ranks' cores send updates, which come by out */
    float *acc;           /* a sum of one block, or of a whole row whose inputs or outputs are pieces */
    size_t acc_bytes;
    float *sum; /* a sum of a whole row, for rows that rarely need one; NULL until a row needs it */
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
    hpc_event *held; /* by rank: an event that must wait (hpc_gate.other_came), or inside which a turn ended */
    char *holds;     /* by rank: whether the array held has its event; the rank's later events stay in the ring */
    int n_held;
    int *rows_done; /* by rank: how many rows of the share that its held event announces have got their input */
    void *own;      /* the discipline's */
    struct hpc_clocked *clocked; /* the discipline's, where it counts by senders */
    double due;         /* the time, in seconds, at which the core must work even if no event comes; INFINITY: never */
    hpc_thread *thread; /* of the engine, which works for the core; NULL: waits do, or nobody does */
    int tells;          /* set if the text about progress names the thread; if not, another scheme's does */
    hpc_task own_task;  /* for the thread */
    hpc_task *task;     /* own_task, or the scheme's; without a station while nobody works for the core */
    hpc_packing packing;
    void *memory; /* rule states and accumulators of its rows */
    size_t memory_bytes;
    hpc_tally tally;
    /* Bytes sent, by rank and stage, this rank included; like hpc_tally, other threads read them meanwhile
     * (hpc_core_sent). */
    _Atomic uint64_t *sent;
    _Atomic uint64_t *sent_of_key; /* bytes to other ranks, by key */
} hpc_core;

#endif
