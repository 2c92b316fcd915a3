/* The state of one rank's end of an exchange.
 *
 *   layout.c    where everything lies in every rank's part of the window, from the plan alone
 *   exchange.c  the collectives: create, publish, close
 *   worker.c    the trainer's side: gradient, start, set_args
 *   ticket.c    what it waits for, and whom: test, wait
 *   engine.c    the owner's side: cores that poll, fold, apply and write
 *   quorum.c    the same where a fold is made without those who are late
 *   graph.c     the same where every rank owns what it has folded of its neighbours' updates
 *   graph_quorum.c  the same, and the trainer's side of it, where a fold is made without those who are late
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

#include "engine/imm.h"
#include "context/lane.h"
#include "context/window.h"
#include "plan/plan.h"
#include "kernel/fold.h"
#include "kernel/rule.h"
#include "base/usual.h"

enum {
    HPC_BLOCK = 4096, /* elements that are folded, applied and written while they are in the first caches */
    HPC_FAILURE_BYTES = 256
};

#define HPC_NOWHERE SIZE_MAX

/* Before and behind an update that may be overwritten while it is read: equal versions mean a whole one. */
typedef struct hpc_mark {
    _Alignas(64) _Atomic uint64_t version;
} hpc_mark;

/* A row's inputs: where each begins, its weight, and the format of all. */
typedef struct hpc_inputs {
    const char *const *bases;
    const double *weights;
    int n, codec;
} hpc_inputs;

/* With a quorum, behind an answer: the version of the parameters that the worker has got, how many of its pushes of the
 * share were left out, and at which version the last of them. */
typedef struct hpc_verdict {
    uint64_t version, dropped, dropped_at;
} hpc_verdict;

/* With a quorum, what has come of a share; arrays are by rank. */
typedef struct hpc_arrivals {
    _Atomic uint64_t *number; /* the version for which its update waits here, 0: none does; written by the core alone */
    int *slots;               /* where that update is */
    hpc_verdict *verdicts;    /* the last ones, which puts may still read */
    char *takes;              /* whether it is in the fold that is being made, whose parameters go there */
    int held, here;           /* updates that wait, and those of them that are for the next version */
    int place;                /* among the core's waiting shares */
    double since;             /* when the quorum was there; 0: it is not */
    hpc_usual lag;            /* from then until the last update is there */
} hpc_arrivals;

/* What the owner of a share answers to who has sent it an update; where it has gone to is the signal's. See
 * graph_quorum.c.
 */
typedef struct hpc_told {
    uint64_t folded, used; /* the version that was folded last; how many of the sender's updates were */
} hpc_told;

/* Of this rank's own shares: what folds of a quorum wait for. The core's, but for what is atomic. */
typedef struct hpc_intake {
    _Atomic uint64_t folded;  /* the version that was folded last */
    _Atomic uint64_t *taken;  /* by rank: updates that were folded, or dropped, and answered */
    char *present;            /* by rank: its update is there and in time */
    hpc_told *told;           /* by rank: the last answer, which a put may still read */
    double since;             /* when the next fold had its quorum; 0: it has not */
    hpc_usual lag;            /* from then until the others are there */
    _Atomic double grace;     /* how long they are waited for */
    _Atomic uint64_t reached; /* the newest that a quorum has brought */
} hpc_intake;

/* Of an out-neighbour's share: what this rank has sent there. The worker's. */
typedef struct hpc_outlet {
    int mine;                     /* this rank's own share of the same key and core */
    uint64_t decided;             /* pushes up to this one were sent, or dropped */
    uint64_t sent, answered;      /* how many of them; one at most is on its way */
    uint64_t used, dropped, told; /* folded there; left out; the version that was folded there last */
    uint64_t under_way, lost;     /* the push that was sent last; the one that was left out last */
    uint64_t version;             /* of what was sent last; a put may still read it */
    size_t staged;                /* where that lies in this rank's part, if it travels; else HPC_NOWHERE */
    int pending;                  /* decided is behind */
} hpc_outlet;

typedef struct hpc_share {
    int key, owner, core;
    int at; /* among those of its owner */
    int n_rows;
    int *rows;     /* of the plan */
    size_t nbytes; /* of an update of all of them, as it is sent */
    size_t pushed; /* of it, what this rank pushes; rows that others forward to take none */
    int n_parts;
    int *parts;             /* owner: the ranks at either end of its rows, itself last */
    uint64_t version;       /* owner, BSP: how often all rows have been applied */
    int left;               /* owner, BSP: rows of the next version that are not applied yet */
    uint64_t *applied;      /* owner, ASYNC or with a quorum, by rank: pushes that all rows have applied, or left out */
    uint64_t *pulled;       /* owner, ASYNC, by rank: pulls answered */
    int *rows_done;         /* owner, ASYNC, by rank: rows of its current push that are applied */
    hpc_arrivals *arrivals; /* owner, with a quorum */

    /* On a graph, of shares that fold what is there (SSP, BARRIER, ASYNC), by rank: */
    _Atomic uint64_t *clock; /* pushes that are there; written by the core alone */
    uint64_t *used;          /* the newest of them that was folded */
    uint64_t *consumed;      /* answered: their slots are free */
    int *siblings;           /* the share of the same key and core that rank owns */
    hpc_intake *intake;      /* with a quorum: its own */
    hpc_outlet *outlet;      /* and an out-neighbour's */
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
    hpc_share *share;
    float *param; /* the master; where models rotate, in the slot of the last fold */
    float *state; /* block by block: slots times the values of the block */
    float *acc;   /* eager and FORWARD only */
    uint64_t step;
    uint64_t folded;    /* pushes of this exchange; on a graph of several phases */
    int *arrived;       /* by slot: inputs that are there */
    _Atomic char *came; /* the same by slot and input; written by the core alone */
    const double *weights;
    hpc_input *inputs;
    int passes;          /* inputs and outputs are such that ex->pass can do it */
    hpc_output *outputs; /* all but the master's own place; the receive slots of a FORWARD */
    int n_outputs;
} hpc_work;

/* A forward that found the ring of its receiver full. */
typedef struct hpc_late {
    hpc_work *work;
    int edge, slot;
    struct hpc_late *next; /* to the same receiver; or the next free one */
} hpc_late;

typedef enum hpc_started { HPC_STARTED = 1, HPC_UNPINNED = 2 /* where it should have been pinned */ } hpc_started;

typedef struct hpc_core {
    _Alignas(64) hpc_exchange *exchange;
    int index, cpu, node; /* cpu -1: not pinned */
    hpc_lane *in, *out;   /* pushes come by in, answers go by out */
    float *acc;           /* one block */
    const void **folding; /* addresses of a fold's inputs */
    const char **bases;   /* of a whole row's, and their weights */
    double *base_weights;
    char *scratch; /* graphs whose inputs may be torn: a copy of one input of a share, and the fold of all */
    float *sum;
    const char **rows_from;
    hpc_share **graph_shares; /* that fold what is there */
    int n_graph_shares;
    hpc_share **waiting; /* with a quorum: those in which updates wait */
    int n_waiting;
    double due;                    /* when the first of them need not wait any longer; INFINITY: for nothing known */
    float **writing;               /* and of the places where a pass writes */
    double (*args)[HPC_RULE_ARGS]; /* by rank */
    _Atomic uint64_t *args_set;    /* by rank: how often */
    hpc_late *late, *free_late;    /* as many as can be late at once */
    hpc_late **late_first, **late_last; /* by rank: those to it, the oldest first */
    int n_late, at_out;                 /* at_out: forwards are looked at before pushes */
    char *absent;    /* by rank: with a quorum, it let a fold wait in vain, and has sent nothing since */
    hpc_event *held; /* by rank: a pull that waits until an earlier one has been delivered; */
    char *holds;     /* whether there is one. What the rank sends after it waits in the ring */
    int n_held;
    pthread_t thread;
    int running;
    _Atomic int working, paused; /* by its thread; by how many threads that look at its rows */
    _Atomic int started;         /* hpc_started */
    void *memory;                /* states and accumulators of its rows */
    size_t memory_bytes;
    _Atomic uint64_t applied, bytes_folded, bytes_written; /* read by hpc_exchange_get_stats meanwhile */
    _Atomic uint64_t reduces, whole, torn, stale, missing;
    _Atomic double busy;
} hpc_core;

/* How one rank's part of the window is laid out; offsets are HPC_NOWHERE for what it has not. */
typedef struct hpc_place {
    size_t params, gradients, pushed, masters, args, closed;
    size_t numbers, verdicts; /* with a quorum: hpc_share's at by rank, of pushes; hpc_verdict by share */
    size_t told;              /* on a graph: hpc_told by share */
    size_t nbytes;
    int cores, shares; /* that own rows there */
    int first_core;
    int worker;
} hpc_place;

/* A worker's view of a key. */
typedef struct hpc_pushed {
    uint64_t pushes, pulls;
    double since;         /* when its last push began; 0: its end has been seen */
    double waits_since;   /* with a quorum on a graph: when neighbours began to be waited for to take a push; 0: not */
    int sending, started; /* hpc_push_flags: what is left to send of what was started */
    int at_share, at_row; /* where it stopped */
    int n_shares;
    int *shares;     /* in which this rank is at either end */
    size_t params;   /* bytes from the start of the params */
    size_t gradient; /* bytes from the start of a slot of the gradients */
    int codec;       /* of the gradient */
    /* With a quorum: the version that the last push is for, the newest one answered, shares of the last push that came
     * too late, of all pushes, and at which version the last. */
    uint64_t number, version, late, dropped, dropped_at;
    /* On a graph: steps that a checkpoint was ahead of this exchange's pushes, and the phases of those in the slots. */
    int64_t ahead;
    int phases[HPC_PLAN_DEPTH];
    uint64_t numbers[HPC_PLAN_DEPTH]; /* with a quorum: those of the pushes in the slots */
} hpc_pushed;

struct hpc_exchange {
    hpc_context *context;
    hpc_plan *plan;
    hpc_rule rule;
    char rule_name[64];
    const struct hpc_fold_kernels *kernels;
    hpc_fold_fn *fold[HPC_BF16 + 1];
    hpc_pass_fn *pass; /* fold, rule and write of float32 at once; NULL: one after the other */
    int consistency, shared_params, eager, check_finite, stream;
    int quorum, late; /* inputs of which a fold is made without the others, 0: all; hpc_late_update */
    double grace;     /* seconds that it waits for them; -1: learned */
    int averages;     /* the rule is average, over the weighted sum: a fold is all, and goes into the parameters */
    int in_place;     /* models are trained where they lie: a push sends the parameters */
    int rotates; /* as they are: they lie in the slot that the next push sends, and a fold writes the one after it */
    /* On a graph, see graph.c; n_phases is 0 on a plan with servers. */
    int n_phases, staleness;
    double *phase_weights;          /* as hpc_graph has them */
    _Atomic uint64_t *inputs_whole; /* reduces by how many whole inputs they had; written by the cores */
    int most_inputs;
    _Atomic uint64_t *peer_sent, *peer_received; /* bytes by rank */
    _Atomic uint64_t *peer_late;                 /* by rank: shares of its updates that came too late here */
    double *peer_wait;                           /* seconds by rank */
    int *awaited, n_awaited;                     /* whom the wait that is under way was for at its last look */
    hpc_mark *marks;                             /* of what is being sent, by key */
    char *given_up;               /* by rank: with a quorum, it let a push wait in vain, and has answered none since */
    int n_pending;                /* outlets that are */
    int forwards;                 /* some rows do */
    int depth, n_shares, n_cores; /* n_cores: of all ranks */
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
    hpc_window *window;
    hpc_lane **in_lanes, **out_lanes;
    int n_lanes;

    /* worker */
    hpc_pushed *keys;
    size_t *push_slot; /* by row: offset in its owner's part of slot 0 for this rank's pushes, or HPC_NOWHERE */
    uint64_t number;   /* with a quorum: the version that keys are pushed for */
    uint64_t args_sent;
    int setting, args_at; /* a set_args is under way, up to which core */
    int open, closed, served;
    int serves; /* rows of this rank outlast its own pushes */
    hpc_exchange_stats stats;
    hpc_usual usual; /* how long pushes take */

    /* owner */
    hpc_core *cores;
    int n_own_cores;
    hpc_work *work;
    int n_work;
    int *work_of;      /* by row: -1 for those of others */
    hpc_input *inputs; /* of all rows; each row points to its own */
    hpc_output *outputs;
    double *weights;
    int *arrived;
    _Atomic char *came;
    hpc_task task;
    int inline_progress;
    _Atomic int stopping;
    _Atomic int failed; /* hpc_status of the first failure of a core */
    _Atomic int failing;
    char failure[HPC_FAILURE_BYTES];
};

/* layout.c: shares, places and offsets from ex->plan; then the part of each input and output, once the window is
 * there. */
int hpc_layout(hpc_exchange *ex, const char *op);
int hpc_layout_slots(hpc_exchange *ex); /* places this rank's receive slots and fills in its part of slot_base */
void hpc_layout_free(hpc_exchange *ex);
int hpc_row_is_fed_by(const hpc_exchange *ex, int row, int rank); /* by its pushes, through any stages */
int hpc_share_involves(const hpc_exchange *ex, const hpc_share *share, int rank); /* at either end of its rows */

/* Bytes from the start of rank's part to its parameters of a key, after so many of its pushes. */
size_t hpc_params_at(const hpc_exchange *ex, int rank, int key, uint64_t pushes);

/* Calls visit for every in-edge whose input comes by receive slots: of the rows of owner, or from sender (the other one
 * is -1). offset is that of its slot 0 from the pair's slot_base. */
typedef void hpc_visit(void *arg, int row, int edge, size_t offset);
int hpc_layout_walk(const hpc_exchange *ex, int owner, int sender, hpc_visit *visit, void *arg);

/* What a closed signal says: no push comes any more; and neither does an answer. */
enum { HPC_CLOSED = 1, HPC_FREED = 2 };

/* Signals of every rank: closed by each rank, args answered by each core, then one or two a share. */
static inline int hpc_signal_closed(int rank) {
    return rank;
}
static inline int hpc_signal_args(const hpc_exchange *ex, int owner, int core) {
    return ex->context->group.size + ex->places[owner].first_core + core;
}
static inline int hpc_signal_applied(const hpc_exchange *ex, int share) {
    return ex->context->group.size + ex->n_cores + share;
}
static inline int hpc_signal_pulled(const hpc_exchange *ex, int share) { /* ASYNC only */
    return hpc_signal_applied(ex, share) + ex->n_shares;
}
static inline int hpc_signal_sent(const hpc_exchange *ex, int share) { /* a quorum on a graph only */
    return hpc_signal_applied(ex, share) + ex->n_shares;
}

/* Whether folds of a graph go on without stragglers: see graph_quorum.c. */
static inline int hpc_leaves_out(const hpc_exchange *ex) {
    return ex->n_phases > 0 && ex->quorum > 0;
}

static inline int hpc_signals(const hpc_exchange *ex) {
    return hpc_signal_applied(ex, 0) + ex->n_shares * (ex->consistency == HPC_ASYNC || hpc_leaves_out(ex) ? 2 : 1);
}

/* All rows of a share have the same inputs. */
static inline const hpc_work *hpc_first_work(const hpc_exchange *ex, const hpc_share *share) {
    return &ex->work[ex->work_of[share->rows[0]]];
}

/* Whether servers fold without those who are late: see quorum.c. */
static inline int hpc_has_quorum(const hpc_exchange *ex) {
    return ex->quorum > 0 && ex->n_phases == 0;
}

static inline size_t hpc_codec_bytes(int codec) {
    return codec == HPC_F32 ? 4 : 2;
}

static inline size_t hpc_row_bytes(const hpc_row *row) {
    return ((size_t)row->count * hpc_codec_bytes(row->codec_in) + 63) / 64 * 64;
}

/* Whether neighbours overwrite their last update, read or not: it lies at its owner between two stamps, in one slot. */
static inline int hpc_is_stamped(const hpc_exchange *ex) {
    return ex->n_phases > 0 && (ex->consistency == HPC_BARRIER || ex->consistency == HPC_ASYNC);
}

static inline size_t hpc_slot_stride(const hpc_exchange *ex, const hpc_row *row) {
    return hpc_row_bytes(row) + (hpc_is_stamped(ex) ? 2 : hpc_leaves_out(ex) ? 1 : 0) * sizeof(hpc_mark);
}

static inline int hpc_slot_depth(const hpc_exchange *ex) {
    return hpc_is_stamped(ex) || hpc_leaves_out(ex) ? 1 : ex->depth;
}

/* Whether a fold takes what is there: it waits for no input, or not for the newest. */
static inline int hpc_takes_what_is_there(const hpc_exchange *ex) {
    return ex->n_phases > 0 && ex->consistency != HPC_BSP && (ex->consistency != HPC_NOTIFY_ACK || ex->quorum > 0);
}

/* Of push number n (from 1 on) of a key. */
static inline int hpc_phase(const hpc_exchange *ex, int key, uint64_t n) {
    return (int)((n - 1 + (uint64_t)ex->keys[key].ahead) % (uint64_t)ex->n_phases);
}

static inline double hpc_phase_weight(const hpc_exchange *ex, int phase, int to, int from) {
    size_t size = (size_t)ex->context->group.size;
    return ex->phase_weights[((size_t)phase * size + (size_t)to) * size + (size_t)from];
}

/* The weight of from's push number n of a key at rank to; 0 where the graph of that step has no such edge. */
static inline double hpc_edge_weight(const hpc_exchange *ex, int key, uint64_t n, int to, int from) {
    return hpc_phase_weight(ex, hpc_phase(ex, key, n), to, from);
}

/* Whether from sends its push number n of a key to rank to. */
static inline int hpc_sends(const hpc_exchange *ex, int key, uint64_t n, int to, int from) {
    return ex->n_phases <= 1 || hpc_edge_weight(ex, key, n, to, from) != 0;
}

/* Bytes to or from another rank. Its threads and cores count together. */
static inline void hpc_count_bytes(const hpc_exchange *ex, _Atomic uint64_t *by_rank, int rank, size_t nbytes) {
    if (rank != ex->context->group.rank) atomic_fetch_add_explicit(&by_rank[rank], nbytes, memory_order_relaxed);
}

static inline char *hpc_own_part(const hpc_exchange *ex) {
    return hpc_window_data(ex->window);
}

/* Whether this rank can read and write the other one's memory by plain instructions. */
static inline int hpc_is_mapped(const hpc_exchange *ex, int rank) {
    return rank == ex->context->group.rank || (ex->context->transports[rank]->caps & HPC_CAP_PEER_VIEW);
}

/* Whether owner reads what rank pushes where rank has it, else it comes by put. This rank is one of the two. */
static inline int hpc_reads_in_place(const hpc_exchange *ex, int owner, int rank) {
    if (hpc_is_stamped(ex) || hpc_leaves_out(ex)) return owner == rank;
    return hpc_is_mapped(ex, owner == ex->context->group.rank ? rank : owner);
}

/* rows.c: this rank's cores and the rows they own. choose comes before the window is there, open after. */
/* chosen[i] for each of the n cores: a CPU of the node that it wants (-1: none) while there is one, else the next; no
 * CPU twice. n_cpus is n or more; nodes are the CPUs'. The same on all ranks that ask the same. */
void hpc_deal_cpus(const int *cpus, const int *nodes, int n_cpus, const int *wanted, int n, int *chosen);
int hpc_rows_choose_cores(hpc_exchange *ex, int progress, int *threads, const char *op);
int hpc_rows_open(hpc_exchange *ex, const char *op);
void hpc_rows_free(hpc_exchange *ex);

/* graph.c: shares of a graph that fold what is there. open comes before the layout is known; came: rank's input to all
 * rows of the share, or to one of them; 0 when rank has no slot left to have sent it from; work: folds those whose time
 * has come, and says how many. */
int hpc_graph_open(hpc_exchange *ex, const hpc_graph *graph, const char *op);
void hpc_graph_free(hpc_exchange *ex);
int hpc_graph_open_core(hpc_exchange *ex, hpc_core *core, const char *op);
int hpc_graph_share_came(const hpc_exchange *ex, hpc_share *share, int rank);
int hpc_graph_row_came(const hpc_exchange *ex, hpc_share *share, int rank);
int hpc_graph_work(hpc_core *core);
/* Counts a fold whose n inputs of neighbours were all whole. */
void hpc_graph_count(hpc_core *core, int n);
void hpc_graph_count_received(hpc_exchange *ex, const hpc_share *share, int rank);

/* quorum.c: whether servers can fold by the quorum of a configuration; and what it is, 0 where it is that of all. */
int hpc_quorum_check_config(const hpc_exchange_config *config, const char *op);
int hpc_quorum_of(const hpc_exchange_config *config);
/* The owner's side: open comes when the rows are there; came: rank's push of a share, 0 when it has no slot
 * left to have sent it from; work: makes the folds whose time has come, and says how many. */
int hpc_quorum_open(hpc_exchange *ex, const char *op);
void hpc_quorum_free(hpc_share *share);
int hpc_quorum_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_quorum_work(hpc_core *core);
/* Tells every worker the versions of this rank's shares, when nothing is under way anywhere. */
int hpc_quorum_tell(hpc_exchange *ex);
/* The worker's: takes what owners have said of the last push of key, if they all have. */
void hpc_quorum_look(const hpc_exchange *ex, int key);
/* Whether key may be pushed: not again before all keys have been, and are answered. other: one that is not. */
int hpc_quorum_ready(const hpc_exchange *ex, int key, int *other);
void hpc_quorum_begin(hpc_exchange *ex, int key); /* a push of key: it is numbered */
/* HPC_ERR_PEER when so many workers have closed that the last push of key has found no quorum. */
int hpc_quorum_check(const hpc_exchange *ex, int key, const char *op);
/* When nothing is under way: notes how many last pushes have found none, of those that nobody has waited for. */
void hpc_quorum_note_lost(hpc_exchange *ex);

/* graph_quorum.c: NOTIFY-ACK that goes on without stragglers. */
int hpc_graph_quorum_open(hpc_exchange *ex, const char *op);
void hpc_graph_quorum_free(hpc_share *share);
/* The core: folds those of its shares whose time has come, and says how many. */
int hpc_graph_quorum_work(hpc_core *core, hpc_share *share);
/* The quorum of a configuration, 0 where it is that of all. */
int hpc_graph_quorum_of(const hpc_exchange_config *config);
/* The worker: the version of its next step; what can be sent by now of what has not been yet; what may not be
 * sent any more, so that the slots of pushes up to n are free (first of those alone who are not waited for). */
uint64_t hpc_graph_next_version(const hpc_exchange *ex);
int hpc_graph_send(hpc_exchange *ex);
int hpc_graph_send_key(hpc_exchange *ex, int key);
void hpc_graph_drop(hpc_exchange *ex, int key, uint64_t n, int all);
/* Collective, while no rank has a push under way: all go on from one version, and what was sent before is left out. */
int hpc_graph_level(hpc_exchange *ex, const char *op, double deadline);
/* How long neighbours are given to take an update, in seconds. */
double hpc_graph_patience(const hpc_exchange *ex, int key);
/* Whether an update of rank for a share of this rank's own is there. */
int hpc_graph_has(const hpc_exchange *ex, const hpc_share *share, int rank);
/* How many shares of this rank's updates rank has left out, and the newest version that any of them met; rank -1: all
 * ranks. */
uint64_t hpc_graph_dropped(const hpc_exchange *ex, int rank, uint64_t *at);
/* How many shares of the last push of key were left out; the newest version that is folded of it. */
int hpc_graph_late(const hpc_exchange *ex, int key);
uint64_t hpc_graph_folded(const hpc_exchange *ex, int key);

/* engine.c */
/* Folds n inputs of a row and applies the rule, as step w->step + 1. Nonzero when a user's kernel has failed. */
int hpc_engine_fold(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);
/* A row's parameters to one rank, or to all (HPC_EVERYBODY), also those who are in no fold. */
enum { HPC_OF_FOLD = -1, HPC_EVERYBODY = -2 };
void hpc_engine_send(hpc_core *core, const hpc_work *w, int to);

/* Ends the exchange where a put has failed. A worker that is gone needs no answer: whoever waits for it finds out by
 * itself. */
void hpc_engine_check_put(hpc_core *core, int status);

/* What a row has folded in a slot goes on by its edges (forward.c); and what found no room before. */
void hpc_forward_row(hpc_core *core, hpc_work *w, int slot);
void hpc_forward_retry(hpc_core *core);
/* A signal to rank: what it waits for has come so far. */
void hpc_engine_answer(hpc_core *core, int rank, int signal, uint64_t value);
/* The same behind bytes that are written into rank's part. */
void hpc_engine_answer_with(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset, int signal,
                            uint64_t value);

void hpc_engine_start(hpc_exchange *ex, int threads);
void hpc_engine_stop(hpc_exchange *ex);
void hpc_engine_write(hpc_exchange *ex); /* every row's parameters to its outputs */
/* Between the two nobody works for the core: its thread, or whichever wait works inline, is between two events. The
 * caller pauses one core at a time, is not at work for one itself, and does not wait meanwhile. */
void hpc_engine_pause(hpc_core *core);
void hpc_engine_resume(hpc_core *core);

/* ticket.c */
enum { HPC_PULL_TICKET = 1 }; /* a ticket is 2 * number, plus this for a pull that owners answer by itself */

/* HPC_OK when the trainer may push or pull key. */
int hpc_worker_check_call(hpc_exchange *ex, int key, const char *op);
/* Whether the parameters of that push are there; whether its slot may be written again, which is the same with servers.
 */
int hpc_ticket_is_done(const hpc_exchange *ex, int key, uint64_t ticket);
int hpc_ticket_is_free(const hpc_exchange *ex, int key, uint64_t ticket);
int hpc_ticket_wait(hpc_exchange *ex, int key, uint64_t ticket, double timeout, const char *op);
int hpc_ticket_wait_slot(hpc_exchange *ex, int key, uint64_t ticket, double timeout, const char *op);
/* The push has ended: how long it took counts in what is usual. HPC_ERR_PEER when nobody will ever fold it. */
int hpc_ticket_end(hpc_exchange *ex, int key, uint64_t ticket, const char *op);
/* An owner that was freed before it answered, else -1; and the failure that says so. */
int hpc_ticket_freed(const hpc_exchange *ex, int key, uint64_t ticket);
int hpc_fail_freed(const hpc_exchange *ex, int rank, int key, const char *op);
/* HPC_CLOSED, HPC_FREED or 0: what rank has said. */
uint64_t hpc_closed_signal(const hpc_exchange *ex, int rank);
/* Whether rank's pushes go into the share. */
int hpc_feeds_share(const hpc_exchange *ex, const hpc_share *share, int rank);
const char *hpc_key_name(const hpc_exchange *ex, int key); /* NULL for none */

/* From here on the caller is in op, of a key: for the timeline. */
#define HPC_IN_CALL(ex, key, op)                                                                                       \
    HPC_SPAN((ex) == NULL ? NULL : (ex)->context->group.timeline, op, hpc_key_name(ex, key))

/* worker.c: a key of which a push or a pull of this rank is under way; -1: none. HPC_ERR_INVALID if there is one. */
int hpc_worker_under_way(const hpc_exchange *ex);
int hpc_worker_check_idle(const hpc_exchange *ex, const char *op);

/* Sends the rest of what is sent in part, and waits for all that is under way. */
int hpc_worker_finish(hpc_exchange *ex, const char *op, double deadline);

/* exchange_check.c. What this rank refuses of a configuration, what of it follows, and that all ranks gave the same. */
int hpc_exchange_check_config(const hpc_context *context, const hpc_exchange_config *config);
int hpc_rule_averages(const hpc_rule *rule);
int hpc_models_rotate(const hpc_exchange_config *config);
int hpc_exchange_agree(hpc_exchange *ex, double deadline);

/* Records what ends the exchange; first word wins. hpc_exchange_check tells the other ranks. */
void hpc_exchange_fail(hpc_exchange *ex, int status, const char *why);

/* HPC_OK, or that failure, after which the context is aborted. */
int hpc_exchange_check(hpc_exchange *ex, const char *op);

#endif
