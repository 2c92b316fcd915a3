/* The state of one rank's end of a scheme: the keys of an exchange, all or some, that have one configuration.
 *
 *   layout.c    where everything lies in every rank's part of the window, from the plan alone
 *   holders.c   whose part has the parameters that a worker reads, and who may write them
 *   graph.c     the graph that rows were made of: its phases, and who sends to whom
 *   stages.c    which ranks feed a row, whom it reaches, and which answers a push waits for
 *   params.c    parameters that travel encoded: where they land at a worker, and how they get into its params
 *   rows.c      the rows that this rank owns, the cores that work for them, and among peers the ranks to which a row
 *               sends its inputs on
 *   progress.c  threads or waits for the cores, and the CPUs of threads
 *   core.c      a core: polls and hands events to the discipline; by a thread, or inline
 *   row.c       a row: its inputs are counted and chosen, and its kind works them off
 *   kind.c      the array of row kinds (kind.h), which the kind_*.c define
 *   block.c     the steps of one block of a row: fold, rule, encoding
 *   prox.c      the prox of a rule, on rows of a matrix
 *   mean.c      sums in a row's accumulator; fold and apply in two calls: the mean that a row keeps
 *   kept.c      fold and apply in two calls: rows that keep their inputs, and no mean
 *   write.c     parameters go to workers
 *   forward.c   a row of several stages sends its fold on, or an input
 *   answer.c    a share is answered, or the exchange fails
 *   args.c      the arguments of rules, which travel with pushes
 *   send.c      the trainer's side: how an update gets to the owners
 *   pieces.c    updates that go as pieces of variable length: their ranges, encoders, and decoding
 *   ticket.c    the waits of the trainer, and the ranks that it waits for
 *   worker.c    a push and a pull of the trainer
 *   held.c      fold and apply in two calls, where each update is applied by itself
 *   open.c      a scheme is opened, and left
 *   counts.c    counts, and the thresholds of encoders
 *   state.c     rows, encoders and arguments, read and set between calls
 * Each has its own header. The decisions of a discipline are slots of discipline.h; discipline/ and exchange/ stand
 * above this folder.
 *
 * A *share* is the part of one key that one core owns: its rows are pushed and answered together. Who writes what:
 *   gradients, pushed counts   their worker; read by the owners of the rows between its push and their answer
 *   params                     the owners of their rows, between the worker's push (or pull) and the answer, of one
 *                              copy of a host between the pushes and the answers of all its workers; where
 *                              models rotate the worker writes them after that, until it pushes them; where they come
 *                              encoded the worker alone, at the end of that push (or pull)
 *   encoded params             the owners of their rows, between the worker's push (or pull) and the answer
 *   masters, receive slots     one core, where a master is not a worker's params; the slots by the sender they belong
 *                              to, between an answer and the next push
 *   args slots                 their worker, before the event of the push in that slot; read by the core between the
 *                              event and the answer
 * A push is an event (a release of the ring's tail, acquired by poll), an answer is a signal (a release, acquired by
 * the worker's look), so every access above is ordered by one of the two. No lock, no word with two writers. */
#ifndef HPC_SCHEME_H
#define HPC_SCHEME_H

#include "base/memory.h"
#include "context/context.h"
#include "engine/work.h"

/* The layout of one rank's part of the window; the offset of a piece that the rank lacks is HPC_NOWHERE. */
typedef struct hpc_place {
    /* discipline/ reads own, shares, worker; exchange/ reads gradients. */
    size_t params, gradients, pushed, masters, args, closed;
    size_t own; /* the discipline's */
    size_t
        dense; /* split: float32 gradients of keys that are pushed as pieces, and means of all that are not float32 */
    size_t encoded; /* parameters as owners send them that cannot write into params; each rank tells the others */
    size_t nbytes;
    int cores, shares; /* how many the rank has */
    int first_core;
    int worker, gives; /* gives: its updates count; else it only tells that it is ready, and gets parameters */
} hpc_place;

/* ---- worker ---- */

/* A key's parameters as they arrive from owners that do not map this rank's memory: encoded. */
typedef struct hpc_encoded {
    const hpc_codec *codec; /* by which all owners of the key send, float32 included */
    size_t offset;          /* bytes from the start of hpc_place.encoded */
    int n_rows;
    int apart;        /* the master of some row of the key is not its owner's own parameters, encoded or not */
    int *rows;        /* of the plan */
    uint64_t decoded; /* the ticket whose parameters were decoded last */
} hpc_encoded;

/* Flags beside hpc_push_flags: the push has no gradient; the push has the update that is held. */
enum { HPC_PUSH_EMPTY = 4, HPC_PUSH_HELD = 8 };

/* A worker's view of a key. Its 128 bytes spare a multiplication wherever a key is looked up. */
typedef struct hpc_pushed {
    /* discipline/ reads pushes, pulls, since, sending, at_share, n_shares, n_awaited, shares, awaited, codec; exchange/
     * reads pushes, sending, codec. */
    uint64_t pushes, pulls;
    double since;                   /* when its last push began; 0: its end has been seen */
    unsigned char sending, started; /* hpc_push_flags of the last start: those not sent in full yet; all of them, and
                                       HPC_PUSH_EMPTY or HPC_PUSH_HELD */
    unsigned char brings;           /* its push brings arguments of the rule */
    unsigned char news;             /* so many of the next pushes bring arguments to their slots */
    int at_args, at_share, at_row;  /* where sending stopped: arguments first, then updates */
    int n_shares, n_awaited;
    int *shares;            /* in which this rank is at either end */
    int *awaited;           /* the shares whose answers make a push done */
    size_t params;          /* bytes from the start of the params */
    size_t gradient;        /* bytes from the start of a slot of the gradients */
    const hpc_codec *codec; /* of the gradient */
    hpc_encoded encoded;
} hpc_pushed;
_Static_assert(sizeof(void *) != 8 || sizeof(hpc_pushed) == 128, "a key is looked up by a shift");

/* The end of this rank's pushes of a key, where owners leave some out. */
typedef struct hpc_outcome {
    /* discipline/ reads version, late; exchange/ reads version, late. */
    uint64_t version; /* of the newest parameters that this rank knows of */
    int late;         /* shares of its last push that were left out */
} hpc_outcome;

/* A range of a key's update that is encoded by itself: at bytes from the start of the update in a slot. */
typedef struct hpc_pushed_range {
    uint64_t offset, count;
    size_t at;
} hpc_pushed_range;

/* A key whose updates go as pieces, on some of their ways (pieces.c). */
typedef struct hpc_key_pieces {
    /* exchange/ reads codec, config, name, source, unit. */
    const hpc_codec *codec; /* NULL: they do not */
    hpc_codec_config config;
    char name[64];
    hpc_pushed_range *ranges; /* of pushes, in the order of their offsets */
    int n_ranges;             /* 0: pushes are arrays */
    int gives;                /* this rank pushes pieces; a push of weight 0 brings none */
    int packs;                /* pieces may be packed */
    size_t slot_bytes;        /* of an update in a slot */
    hpc_memory *source;       /* where the worker writes updates, if it has ever asked for it; with split in dense */
    hpc_encoder encoder;      /* of this rank's pushes */
    double unit, kept_unit;   /* split: of the updates; of the residuals that encoders keep */
} hpc_key_pieces;

/* ---- both ---- */

/* Facts that follow from edges between rows (stages.c). */
typedef struct hpc_stages {
    int many;            /* there are some; the rest is for them */
    uint64_t *feeders;   /* by row: a bit for each rank whose pushes reach it */
    uint64_t *receivers; /* by row: a bit for each rank that gets parameters that were made of it */
    size_t words;        /* of a row's bits */
    double *masses;      /* by row: the weight of all pushes that it folds */
    int *hops;           /* by row: relays that its parameters have passed, itself included */
    int most_hops;
} hpc_stages;

/* Facts that follow from the plan and the discipline alone. */
typedef struct hpc_layout {
    /* discipline/ reads depth, n_shares, shares, share_of, places; exchange/ reads places, holder. */
    int depth, n_shares, n_cores; /* n_cores: of all ranks */
    int encodes;                  /* some rows send parameters that are not plain float32 */
    hpc_share *shares;
    int *share_of; /* by row */
    hpc_stages stages;
    hpc_place *places;                   /* by rank */
    char *pushers;                       /* [key * size + rank] */
    size_t params_bytes, gradient_bytes; /* of all keys; of one slot */
    size_t encoded_bytes;                /* of all keys whose parameters come encoded */
    size_t dense_bytes;                  /* split: of all keys with a place in hpc_place.dense */
    size_t *dense_at;                    /* by key: bytes from the start of that */
    size_t *row_from;                    /* by row: where the piece of a push begins in its key's update; or NULL */
    size_t *row_room;                    /* by row: of a key with pieces, hpc_row_bytes; or NULL */
    size_t *master_of;                   /* by row: bytes from its owner's masters */
    size_t *slot_base;                   /* [owner * size + sender]: bytes in the owner's part, or HPC_NOWHERE */
    int *holders;                        /* by rank: the rank whose part has its, or its host's, parameters; -1: none */
    int holder;                          /* of this rank, if it is a worker; -1 */
} hpc_layout;

/* Counters of updates to and from other ranks. */
typedef struct hpc_peers {
    _Atomic uint64_t *pushed;        /* bytes by rank, by the thread that pushes */
    _Atomic uint64_t *pushed_of_key; /* the same to others, by key */
    _Atomic uint64_t *received;      /* bytes by rank */
    _Atomic uint64_t *late;          /* by rank: shares of its updates that were late here, and left out */
    uint64_t *dropped;               /* by rank: shares of this rank's updates that it left out, or never got */
    double *wait;                    /* seconds by rank */
    int *awaited, n_awaited;         /* the ranks that the present wait waited for at its last look */
    _Atomic uint64_t *inputs_whole;  /* [n]: folds that had n whole inputs; NULL: not counted */
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

/* The choice of threads or waits to work for the cores of this rank, and its reason. */
typedef struct hpc_progress_choice {
    int asked;         /* hpc_progress */
    int threads;       /* each core has one, its own or that of another scheme's core; 0: every wait works for them */
    int lacked;        /* there were to be threads, but not all could be started */
    hpc_cpu_deal deal; /* among the ranks that share CPUs with this one */
} hpc_progress_choice;

/* Why the exchange has ended; the first failure counts. */
typedef struct hpc_ending {
    _Atomic int failed; /* hpc_status of the first failure of a core */
    _Atomic int failing;
    char failure[HPC_FAILURE_BYTES];
} hpc_ending;

typedef struct hpc_life {
    /* exchange/ reads closed, served, serves. */
    int open, closed, served;
    int serves; /* rows of this rank outlast its own pushes */
} hpc_life;

/* Some keys of an exchange, with all that they need. The schemes of an exchange are a ring. */
struct hpc_scheme {
    /* discipline/ reads context, plan, discipline, use, own, group_of, graph, kernels, asked, layout, window, keys,
     * outcomes, heard, gathered, cores, n_own_cores, work, n_work, inline_progress; exchange/ reads context, next,
     * first_key, plan, use, rules, pieces, configs, asked, layout, window, in_lanes, n_lanes, keys, held, corked, life,
     * outcomes, facts, gathered, threads. */
    hpc_context *context;
    hpc_scheme *next; /* itself, where it is the only one */
    int first_key;    /* in the exchange */
    hpc_plan *plan;
    const hpc_discipline *discipline;
    const struct hpc_gate *gate; /* the discipline's, at hand; likewise pace and use */
    const struct hpc_pace *pace;
    const struct hpc_mean_use *use;
    /* hpc_pace.has_read, or its default. */
    int (*has_read)(const hpc_scheme *sc, int s, uint64_t ticket);
    void *own;              /* the discipline's */
    hpc_arena taken;        /* memory of the discipline (hpc_scheme_take) */
    int *group_of;          /* [key * size + rank]: the sender that a rank's updates are in; NULL: a rank is one */
    hpc_phases *graph;      /* the graph that rows were made of; NULL: there are servers, or peers */
    hpc_key_rule *rules;    /* by key */
    hpc_key_pieces *pieces; /* by key; NULL: no key has pieces */
    const hpc_codec_config **configs; /* by key: of its pieces; NULL: it has none */
    hpc_packing packing;              /* the worker's */
    void *encoders;                   /* the state of the worker's encoders, key after key */
    size_t encoders_bytes;
    const struct hpc_fold_kernels *kernels;
    hpc_exchange_config asked; /* the settings that a user gave; what is not for this scheme is 0 */
    int puts;                  /* updates are put, even where the owner could read them in the worker's memory */
    int passes_on;             /* pushes come by way of other ranks, and cores put them on */
    hpc_key_facts facts;       /* of all keys; the facts that need a look at one are 0 here */
    int *own_rows; /* where updates pass on: by row, this rank's row of the same elements, or -1; else NULL */
    int stream;    /* parameters are written past the caches */
    int rotates;   /* a model is trained in the slot that the next push sends, and its fold writes the slot after */
    int turns;     /* a graph of several phases: inputs and weights change with the steps */
    int own_args;  /* a rank's arguments of the rules are for its own parameters, and stay there */
    hpc_peers peers;
    hpc_layout layout;
    hpc_window *window;
    hpc_lane **in_lanes, **out_lanes;
    int n_lanes;

    /* worker */
    hpc_pushed *keys;
    struct hpc_held *held; /* by key: held.c; NULL: updates are sent when they are folded */
    size_t *push_slot;     /* by row: offset in its owner's part of slot 0 for this rank's pushes, or HPC_NOWHERE */
    uint64_t *args_asked;  /* by core of all ranks: args for which this rank has asked for an answer */
    int corked;            /* starts may be kept back on the in_lanes */
    hpc_life life;
    hpc_exchange_stats stats;
    uint64_t *begun;       /* steps, by how far their parameters were behind (hpc_count_begun); NULL: not counted */
    hpc_outcome *outcomes; /* by key; NULL: owners leave out none, and a version is the number of pushes */
    uint64_t *heard;       /* by share: how new this rank's copy of its parameters is; NULL: as many folds as its owner
                              has answered */
    float **gathered; /* by key: the mean that this rank's own core gathered last; NULL: it lies at hpc_gathered_at */
    hpc_usual usual;  /* how long pushes take */

    /* owner */
    hpc_core *cores;
    int n_own_cores;
    hpc_mover mover; /* the works of its cores, in the context's watch */
    int *threads;    /* by rank: with which it computes */
    hpc_progress_choice choice;
    hpc_work *work;
    int n_work;
    int *work_of; /* by row: its place in work; -1: another rank's row */
    hpc_row_memory memory;
    hpc_task task;
    int inline_progress;
    _Atomic int stopping;
    hpc_ending fault;
};

static inline int hpc_owns_row(const hpc_scheme *sc, int row) {
    return sc->plan->rows[row].owner == sc->context->group.rank;
}

/* Whether this rank is a worker. */
static inline int hpc_scheme_works(const hpc_scheme *sc) {
    return sc->layout.places[sc->context->group.rank].worker;
}

/* The sender that a rank's updates of a key are in; -1: it pushes none. */
static inline int hpc_sender_of(const hpc_scheme *sc, int key, int rank) {
    return sc->group_of == NULL ? rank : sc->group_of[(size_t)key * (size_t)sc->context->group.size + (size_t)rank];
}

/* A row of this rank. All rows of a share have the same inputs. */
static inline hpc_work *hpc_work_of(const hpc_scheme *sc, int row) {
    return &sc->work[sc->work_of[row]];
}
static inline const hpc_work *hpc_first_work(const hpc_scheme *sc, const hpc_share *share) {
    return hpc_work_of(sc, share->rows[0]);
}

/* Bytes from another rank. The cores of this rank count together. */
static inline void hpc_count_received(const hpc_scheme *sc, int rank, size_t nbytes) {
    if (rank != sc->context->group.rank)
        atomic_fetch_add_explicit(&sc->peers.received[rank], nbytes, memory_order_relaxed);
}

/* A counter with one writer; its readers need no order. */
static inline void hpc_tally_add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

static inline void hpc_tally_add_seconds(_Atomic double *counter, double seconds) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + seconds, memory_order_relaxed);
}

/* Updates that were left out: of a rank, here; this rank's own by an owner, after version at; and inputs that a fold
 * did without. */
static inline void hpc_count_late(const hpc_scheme *sc, int rank) {
    atomic_fetch_add_explicit(&sc->peers.late[rank], 1, memory_order_relaxed);
}
static inline void hpc_count_dropped(hpc_scheme *sc, int owner, uint64_t n, uint64_t at) {
    sc->peers.dropped[owner] += n;
    if (at > sc->stats.dropped_at) sc->stats.dropped_at = at;
}
static inline void hpc_count_absent(hpc_core *core, int torn, int stale, int missing) {
    hpc_tally_add(&core->tally.torn, (uint64_t)torn);
    hpc_tally_add(&core->tally.stale, (uint64_t)stale);
    hpc_tally_add(&core->tally.missing, (uint64_t)missing);
}

/* The count of bytes that a core has sent to a rank in a stage. */
static inline _Atomic uint64_t *hpc_core_sent(const hpc_core *core, int rank, hpc_traffic_stage stage) {
    return &core->sent[(size_t)rank * HPC_TRAFFIC_STAGES + (size_t)stage];
}

/* Counts bytes of a key that a core has sent to a rank in a stage. */
static inline void hpc_core_count_sent(const hpc_core *core, int key, int rank, hpc_traffic_stage stage,
                                       size_t nbytes) {
    hpc_tally_add(hpc_core_sent(core, rank, stage), nbytes);
    if (rank != core->scheme->context->group.rank) hpc_tally_add(&core->sent_of_key[key], nbytes);
}

/* Whether a failure has ended the exchange. */
static inline int hpc_scheme_has_failed(const hpc_scheme *sc) {
    return atomic_load_explicit(&sc->fault.failed, memory_order_relaxed) != HPC_OK;
}

/* The number of a wait, its ticket, is 2 * the number of the push or pull, plus this for a pull that owners answer by
 * itself. */
enum { HPC_PULL_TICKET = 1 };

/* A deadline that costs a look at the clock only when something has to wait. */
typedef struct hpc_limit {
    double timeout, deadline; /* deadline 0: not needed yet */
} hpc_limit;

static inline char *hpc_own_part(const hpc_scheme *sc) {
    return hpc_window_data(sc->window);
}

/* Whether this rank can read and write the other one's memory by plain instructions. */
static inline int hpc_is_mapped(const hpc_scheme *sc, int rank) {
    return rank == sc->context->group.rank || (sc->context->transports[rank]->caps & HPC_CAP_PEER_VIEW);
}

/* Whether owner reads rank's pushes in rank's memory; else they come by put. This rank is one of the two. */
static inline int hpc_reads_in_place(const hpc_scheme *sc, int owner, int rank) {
    if (sc->puts) return owner == rank;
    return hpc_is_mapped(sc, owner == sc->context->group.rank ? rank : owner);
}

/* On a graph an owner that has closed folds nothing more, and takes no event. */
static inline int hpc_owners_leave(const hpc_scheme *sc) {
    return sc->graph != NULL;
}

#endif
