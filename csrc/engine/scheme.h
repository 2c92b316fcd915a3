/* The state of one rank's end of a scheme: some or all keys of an exchange, which share one configuration.
 *
 *   layout.c    where everything lies in every rank's part of the window, from the plan alone
 *   holders.c   the rank whose part has the parameters that a worker reads, and their writers
 *   graph.c     the graph that rows were made of: its phases, and which rank sends to which
 *   stages.c    which ranks feed a row, which ranks it reaches, and which answers a push waits for
 *   params.c    encoded parameters: where they land at a worker, and how they get into its params
 *   rows.c      the rows that this rank owns, the cores that work for them, and among peers the ranks to which a row
 *               sends its inputs on
 *   progress.c  whether threads or waits work for the cores, and the CPUs of threads
 *   core.c      a core: polls and hands events to the discipline; by a thread, or inline in a wait
 *   row.c       a row: counts and chooses its inputs, and has its kind do the work
 *   kind.c      the array of row kinds (kind.h), which the kind_*.c define
 *   block.c     the steps of one block of a row: fold, rule, encoding
 *   prox.c      the prox of a rule, on rows of a matrix
 *   mean.c      sums in a row's accumulator; with fold and apply as two calls, the mean or the inputs that a row keeps
 *   write.c     sends parameters to workers
 *   forward.c   sends a row's fold, or an input, on to another row
 *   signals.c   answers a share, or ends the exchange
 *   args.c      the arguments of rules, which travel with pushes
 *   send.c      the trainer's side: sends an update to the owners
 *   pieces.c    updates that travel as pieces of variable length: their ranges, encoders, and decoding
 *   waits.c    the waits of the trainer, and the ranks that they wait for
 *   worker.c    a push and a pull of the trainer
 *   held.c      fold and apply as two calls, where each update is applied by itself
 *   open.c      opens a scheme, and leaves it
 *   counts.c    counts, and the thresholds of encoders
 *   state.c     rows, encoders and arguments, read and set between calls
 *
 * Each has its own header. The decisions of a discipline are slots of discipline.h; discipline/ and exchange/ stand
 * above this folder.
 *
 * A *row* is the work on one chunk of a key: it folds its inputs (sums them with weights), and applies the fold or
 * sends it on. A *share* is all rows of one key on one core: they are pushed together and answered together. A *slot*
 * is memory for one update of one sender, reused in turn. An *answer* tells a sender that its update was folded or left
 * out. docs/glossary.md has all such words. Who writes what, and when:
 *
 *   gradients, pushed counts   their worker; the owners of the rows read them between the push and their answer
 *   params                     the owners of the rows, between the worker's push (or pull) and the answer. Exceptions:
 *                              one copy for a host is written between the pushes and the answers of all its workers;
 *                              where models rotate the worker also writes, from the answer until its push; encoded
 *                              parameters are decoded by the worker alone, at the end of its push (or pull)
 *   encoded params             the owners of the rows, between the worker's push (or pull) and the answer
 *   masters                    one core, if the master is not a worker's params
 *   receive slots              the sender that a slot belongs to, between an answer and its next push
 *   args slots                 their worker, before the event of the push in that slot; the core reads them between
 *                              the event and the answer
 *
 * A push is an event (a release of the ring's tail, acquired by poll). An answer is a signal (a release, acquired by
 * the worker's look). So one of the two orders every access above. There is no lock, and no word has two writers. */
#ifndef HPC_SCHEME_H
#define HPC_SCHEME_H

#include "base/memory.h"
#include "context/context.h"
#include "engine/work.h"

/* The layout of one rank's part of the window. If a rank has no such area, the area's offset is HPC_NOWHERE. */
typedef struct hpc_place {
    /* discipline/ reads own, shares, worker; exchange/ reads gradients. */
    size_t params, gradients, pushed, masters, args, closed;
    size_t own;   /* the discipline's */
    size_t dense; /* used if fold and apply are two calls: float32 gradients of keys pushed as pieces, and means of keys
                     not pushed as float32 */
    /* Encoded parameters from owners that cannot write into params; each rank tells the other ranks this offset. */
    size_t encoded;
    size_t nbytes;
    int cores, shares; /* their numbers at this rank */
    int first_core;
    int worker, gives; /* gives: its pushes carry updates; if not (weight 0), they only ask for parameters */
} hpc_place;

/* ---- worker ---- */

/* A key's parameters as they come encoded, from owners that do not map this rank's memory. */
typedef struct hpc_encoded {
    const hpc_codec *codec; /* the codec of all owners of the key, float32 included */
    size_t offset;          /* bytes from the start of hpc_place.encoded */
    int n_rows;
    /* Set if in some row of the key the master is separate from the owner's own parameters, even if nothing is
     * encoded. */
    int apart;
    int *rows;        /* numbers of rows of the plan */
    uint64_t decoded; /* the ticket whose parameters were decoded last */
} hpc_encoded;

/* Further flags of a start, beside hpc_push_flags: the push has no gradient (EMPTY); the push sends the update that the
 * worker holds (HELD, held.c). */
enum { HPC_PUSH_EMPTY = 4, HPC_PUSH_HELD = 8 };

/* A worker's view of a key. Its size is 128 bytes, so indexing an array of them needs no multiplication. */
typedef struct hpc_pushed {
    /* discipline/ reads pushes, pulls, since, sending, at_share, n_shares, n_awaited, shares, awaited, codec; exchange/
     * reads pushes, sending, codec. */
    uint64_t pushes, pulls;
    double since; /* when its last push began, in seconds; 0 once the end was seen */
    /* flags of the last start (hpc_push_flags, HPC_PUSH_EMPTY, HPC_PUSH_HELD). started has all flags; the field sending
     * has only flags whose events are not all sent yet */
    unsigned char sending, started;
    unsigned char brings;          /* its present push brings arguments of the rule */
    unsigned char news;            /* how many of the next pushes still have to send arguments for their slots */
    int at_args, at_share, at_row; /* where sending continues: first in the arguments, then in the updates */
    int n_shares, n_awaited;
    int *shares;            /* the shares in which this rank takes part */
    int *awaited;           /* the shares whose answers end a push */
    size_t params;          /* offset in the params */
    size_t gradient;        /* offset in a slot of the gradients */
    const hpc_codec *codec; /* of pushes */
    hpc_encoded encoded;
} hpc_pushed;
_Static_assert(sizeof(void *) != 8 || sizeof(hpc_pushed) == 128, "a key is looked up by a shift");

/* The outcome of this rank's pushes of a key, if owners may leave updates out. */
typedef struct hpc_outcome {
    /* discipline/ reads version, late; exchange/ reads version, late. */
    uint64_t version; /* version of the newest parameters that this rank knows of */
    int late;         /* how many shares of its last push were left out */
} hpc_outcome;

/* A range of a key's update that is encoded separately. The field at is the range's offset, in bytes, in the update's
 * slot. */
typedef struct hpc_pushed_range {
    uint64_t offset, count;
    size_t at;
} hpc_pushed_range;

/* The pieces of a key whose updates travel as pieces on some of their edges (pieces.c). */
typedef struct hpc_key_pieces {
    /* exchange/ reads codec, config, name, source, unit. */
    const hpc_codec *codec; /* NULL: the key has no pieces */
    hpc_codec_config config;
    char name[64];
    hpc_pushed_range *ranges; /* ranges of a push, by offset */
    int n_ranges;             /* 0: pushes are arrays */
    int gives;                /* set if this rank pushes pieces; a rank whose weight is 0 pushes none */
    int packs;                /* pieces may be packed (compressed) */
    size_t slot_bytes;        /* bytes of an update in a slot */
    /* Memory into which the trainer writes updates, NULL until the trainer asks for it. If fold and apply are two
     * calls, updates are in hpc_place.dense. */
    hpc_memory *source;
    hpc_encoder encoder;    /* of this rank's pushes */
    double unit, kept_unit; /* used if fold and apply are two calls: the unit of the updates, and the unit of the
                               residuals that encoders keep */
} hpc_key_pieces;

/* ---- both ---- */

/* Facts that follow from edges between rows (stages.c). "By row" means: an array indexed by the row's number in the
 * plan. */
typedef struct hpc_stages {
    int many;            /* set if the plan has edges between rows; only then the other fields are set */
    uint64_t *feeders;   /* by row: a bit for each rank whose pushes reach the row */
    uint64_t *receivers; /* by row: a bit for each rank that gets parameters made from the row */
    size_t words;        /* 64-bit words of a row's bits */
    double *masses;      /* by row: the total weight of all pushes that the row folds */
    int *hops;           /* by row: how many relays its parameters have passed, the row included */
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
    char *pushers;                       /* [key * size + rank]: 1 if the rank pushes the key */
    size_t params_bytes, gradient_bytes; /* of all keys; of one slot */
    size_t encoded_bytes;                /* of all keys whose parameters come encoded */
    size_t dense_bytes;                  /* split: of all keys with a place in hpc_place.dense */
    size_t *dense_at;                    /* by key: offset in hpc_place.dense */
    size_t *row_from;                    /* by row: offset of a push's piece in its key's update; or NULL */
    size_t *row_room;                    /* by row: hpc_row_bytes if the key has pieces; or NULL */
    size_t *master_of;                   /* by row: offset in its owner's masters */
    size_t *slot_base;                   /* [owner * size + sender]: offset in the owner's part, or HPC_NOWHERE */
    /* holders[r] is the rank whose part of the window has the parameters of rank r, or of r's host; -1 if no part has
     * them. */
    int *holders;
    int holder; /* holders[this rank] if this rank is a worker; otherwise -1 */
} hpc_layout;

/* Counters of updates to and from other ranks. */
typedef struct hpc_peers {
    _Atomic uint64_t *pushed;        /* bytes by rank, counted by the thread that pushes */
    _Atomic uint64_t *pushed_of_key; /* the same counts by key, without bytes to this rank itself */
    _Atomic uint64_t *received;      /* bytes by rank */
    _Atomic uint64_t *late; /* late[r]: how many shares of rank r's updates this rank left out because they came late */
    uint64_t *dropped;      /* dropped[r]: how many shares of this rank's updates rank r left out or never got */
    double *wait;           /* seconds by rank */
    int *awaited, n_awaited;        /* the ranks that the present wait waited for at its last look */
    _Atomic uint64_t *inputs_whole; /* inputs_whole[n]: how many folds had n whole inputs; NULL: not counted */
    int most_inputs;
} hpc_peers;

/* Arrays from which every row of this rank has a part. */
typedef struct hpc_row_memory {
    hpc_input *inputs;
    hpc_output *outputs;
    double *weights;
    int *arrived;
    _Atomic char *came;
} hpc_row_memory;

/* The choice whether threads or waits work for the cores of this rank, and the reason. */
typedef struct hpc_progress_choice {
    int asked;         /* hpc_progress */
    int threads;       /* 1: a thread of the engine works for each core; 0: every wait of this rank works for them */
    int lacked;        /* threads were chosen, but not all could be started */
    hpc_cpu_deal deal; /* how CPUs are dealt among the ranks that share them with this one */
} hpc_progress_choice;

/* Why the exchange has ended; the first failure counts. */
typedef struct hpc_ending {
    _Atomic int failed; /* hpc_status of the first failure of a core */
    _Atomic int failing;
    int waited_for; /* with HPC_ERR_TIMEOUT: the rank that a core waited for, or -1 */
    char failure[HPC_FAILURE_BYTES];
} hpc_ending;

typedef struct hpc_life {
    /* exchange/ reads closed, served, serves. */
    int open, closed, served;
    int serves; /* set if this rank must serve its rows after its own last push */
} hpc_life;

/* Keys of an exchange with one configuration, and all their state. The schemes of an exchange form a ring by next. */
struct hpc_scheme {
    /* discipline/ reads context, plan, discipline, use, own, group_of, graph, kernels, asked, layout, window, keys,
     * outcomes, heard, gathered, cores, n_own_cores, work, n_work, inline_progress; exchange/ reads context, next,
     * first_key, plan, use, rules, pieces, configs, asked, layout, window, in_lanes, n_lanes, keys, held, corked, life,
     * outcomes, facts, gathered, threads. */
    hpc_context *context;
    hpc_scheme *next; /* the scheme itself, if it is the only one */
    int first_key;    /* its first key's number in the exchange */
    hpc_plan *plan;
    const hpc_discipline *discipline;
    const struct hpc_gate *gate; /* the discipline's, copied for speed; likewise pace and use */
    const struct hpc_pace *pace;
    const struct hpc_mean_use *use;
    /* hpc_pace.has_read, or its default. */
    int (*has_read)(const hpc_scheme *sc, int s, uint64_t ticket);
    void *own;       /* the discipline's */
    hpc_arena taken; /* memory of the discipline (hpc_scheme_take) */
    int *group_of;   /* [key * size + rank]: the sender that carries the rank's updates; NULL: each rank is a sender */
    hpc_phases *graph;                /* the graph that rows were made of; NULL: servers or peers */
    hpc_key_rule *rules;              /* by key */
    hpc_key_pieces *pieces;           /* by key; NULL: no key has pieces */
    const hpc_codec_config **configs; /* by key: the settings of its pieces; NULL: it has none */
    hpc_packing packing;              /* the worker's */
    void *encoders;                   /* the state of the worker's encoders, key after key */
    size_t encoders_bytes;
    const struct hpc_fold_kernels *kernels;
    hpc_exchange_config asked; /* the settings that a user gave; settings that do not apply to this scheme are 0 */
    int puts;                  /* set if updates are put even where the owner could read them in the worker's memory */
    char *linked;              /* by rank and lane, how this rank may put to the rank by the plan (open.c) */
    int passes_on;       /* set if pushes may reach a row through other ranks, whose cores put them to the next rank */
    hpc_key_facts facts; /* facts that hold for all keys; facts that depend on the single key are 0 */
    int *own_rows;       /* if passes_on, by row: this rank's row of the same elements, or -1; otherwise NULL */
    int stream;          /* parameters are stored past the caches */
    int rotates;  /* set if models rotate: a model is trained in the slot that the next push sends, and its fold writes
                     the slot after that */
    int turns;    /* set if the graph has several phases, so inputs and weights change by step */
    int own_args; /* set if a rank's arguments are for its own parameters, so they are not sent */
    hpc_peers peers;
    hpc_layout layout;
    hpc_window *window;
    hpc_lane **in_lanes, **out_lanes;
    int n_lanes;

    /* worker */
    hpc_pushed *keys;
    /* The update of each key that the worker holds (held.c); NULL: the call that folds an update sends it, so none is
     * held. */
    struct hpc_held *held;
    size_t *push_slot; /* by row: offset, in its owner's part, of slot 0 of this rank's pushes; or HPC_NOWHERE */
    /* Indexed by core, over all ranks: how many events of arguments this rank has sent that the core must answer. */
    uint64_t *args_asked;
    int corked; /* set if events of starts may be kept back on the in_lanes, to be sent together */
    hpc_life life;
    hpc_exchange_stats stats;
    uint64_t *begun; /* begun[n]: how many steps had parameters n steps behind (hpc_count_begun); NULL: not counted */
    hpc_outcome *outcomes; /* by key; NULL: owners leave no update out, so a version is a number of pushes */
    /* The version of this rank's copy of each share's parameters; NULL: the version is the owner's last answer. */
    uint64_t *heard;
    float **gathered; /* by key: the mean that this rank's core gathered last; NULL: it is at hpc_gathered_at */
    hpc_usual usual;  /* how long pushes take */

    /* owner */
    hpc_core *cores;
    int n_own_cores;
    hpc_mover mover; /* in the context's watch: counts the calls that work on rows */
    int *threads;    /* by rank: with how many threads it computes */
    hpc_progress_choice choice;
    hpc_work *work;
    int n_work;
    int *work_of; /* by row: its index in work; -1 if another rank owns it */
    hpc_row_memory memory;
    hpc_task task;
    int inline_progress;
    hpc_ending fault;
};

/* Works for the scheme's cores, unless threads do. Returns hpc_left_over. */
static inline int hpc_scheme_work(hpc_scheme *sc) {
    return sc->inline_progress ? hpc_task_run(&sc->task) : 0;
}

/* hpc_wait.attend of waits for a scheme, which work for all schemes of its exchange. */
static inline void hpc_scheme_attend(void *scheme, int begins) {
    hpc_scheme *of = scheme;
    do {
        if (of->inline_progress) hpc_task_attend(&of->task, begins);
        of = of->next;
    } while (of != scheme);
}

static inline int hpc_owns_row(const hpc_scheme *sc, int row) {
    return sc->plan->rows[row].owner == sc->context->group.rank;
}

/* Returns whether this rank is a worker. */
static inline int hpc_scheme_works(const hpc_scheme *sc) {
    return sc->layout.places[sc->context->group.rank].worker;
}

/* Returns the sender that carries a rank's updates of a key: the rank itself, or its group's lowest rank; -1 if the
 * rank does not push the key. */
static inline int hpc_sender_of(const hpc_scheme *sc, int key, int rank) {
    return sc->group_of == NULL ? rank : sc->group_of[(size_t)key * (size_t)sc->context->group.size + (size_t)rank];
}

/* Returns the work of a row of this rank. All rows of a share have the same inputs. */
static inline hpc_work *hpc_work_of(const hpc_scheme *sc, int row) {
    return &sc->work[sc->work_of[row]];
}
static inline const hpc_work *hpc_first_work(const hpc_scheme *sc, const hpc_share *share) {
    return hpc_work_of(sc, share->rows[0]);
}

/* Counts bytes that came from another rank. All cores of this rank add to one counter. */
static inline void hpc_count_received(const hpc_scheme *sc, int rank, size_t nbytes) {
    if (rank != sc->context->group.rank)
        atomic_fetch_add_explicit(&sc->peers.received[rank], nbytes, memory_order_relaxed);
}

/* Adds to a counter that one thread writes. Its readers need no order. */
static inline void hpc_tally_add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

static inline void hpc_tally_add_seconds(_Atomic double *counter, double seconds) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + seconds, memory_order_relaxed);
}

/* Count updates that were left out. hpc_count_late: this rank left out an update of rank. hpc_count_dropped: an owner
 * left out this rank's updates, after version at. hpc_count_absent: a fold was made without these inputs. */
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

/* Returns the counter of bytes that a core has sent to a rank in a stage. */
static inline _Atomic uint64_t *hpc_core_sent(const hpc_core *core, int rank, hpc_traffic_stage stage) {
    return &core->sent[(size_t)rank * HPC_TRAFFIC_STAGES + (size_t)stage];
}

/* Counts bytes of a key that a core has sent to a rank in a stage. */
static inline void hpc_core_count_sent(const hpc_core *core, int key, int rank, hpc_traffic_stage stage,
                                       size_t nbytes) {
    hpc_tally_add(hpc_core_sent(core, rank, stage), nbytes);
    if (rank != core->scheme->context->group.rank) hpc_tally_add(&core->sent_of_key[key], nbytes);
}

/* Returns whether a failure has ended the exchange. */
static inline int hpc_scheme_has_failed(const hpc_scheme *sc) {
    return atomic_load_explicit(&sc->fault.failed, memory_order_relaxed) != HPC_OK;
}

/* A wait's number, its ticket, is 2 * the number of its push or pull. HPC_PULL_TICKET is added for a pull that owners
 * answer separately. */
enum { HPC_PULL_TICKET = 1 };

/* A deadline that is computed only when a call first has to wait, which saves reading the clock. */
typedef struct hpc_limit {
    double timeout, deadline; /* deadline 0: not needed yet */
} hpc_limit;

static inline char *hpc_own_part(const hpc_scheme *sc) {
    return hpc_window_data(sc->window);
}

/* Returns whether this rank can read and write the other rank's memory by plain loads and stores. */
static inline int hpc_is_mapped(const hpc_scheme *sc, int rank) {
    return rank == sc->context->group.rank || (sc->context->transports[rank]->caps & HPC_CAP_PEER_VIEW);
}

/* A rank of a larger job does not read the counts of ranks with which it shares no data, as that would map their
 * memory.
 */
enum { HPC_SEEN_RANKS = 16 };

/* Returns whether this rank reads the other rank's counts in its memory. The answer never changes. */
static inline int hpc_sees(const hpc_scheme *sc, int rank) {
    const int size = sc->context->group.size;
    if (!hpc_is_mapped(sc, rank)) return 0;
    if (size <= HPC_SEEN_RANKS || rank == sc->context->group.rank) return 1;
    const char *ways = sc->linked + (size_t)rank * (size_t)sc->n_lanes;
    for (int i = 0; i < sc->n_lanes; i++)
        if (ways[i] != 0) return 1;
    return 0;
}

/* Returns whether owner reads rank's pushes in rank's memory; if not, rank puts them. This rank must be owner or
 * rank. */
static inline int hpc_reads_in_place(const hpc_scheme *sc, int owner, int rank) {
    if (sc->puts) return owner == rank;
    return hpc_is_mapped(sc, owner == sc->context->group.rank ? rank : owner);
}

/* Returns whether an owner that has closed stops folding and takes no more events, as on a graph. */
static inline int hpc_owners_leave(const hpc_scheme *sc) {
    return sc->graph != NULL;
}

#endif
