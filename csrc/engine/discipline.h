/* A discipline implements a consistency, such as BSP: it decides when a fold (the weighted sum of a row's inputs) is
 * made and of which inputs, when a push may go, and when a pull is done. A discipline consists of a gate (for owners),
 * a pace (for workers) and a use (for fold and apply as two calls). It does not choose which ranks take part; the
 * plan's edges do.
 *
 * A discipline is one const struct, defined in one file of discipline/ and listed in the table of
 * discipline/discipline.c. The engine and the exchange call the struct's function pointers (slots) and know no
 * discipline by name. A discipline stores its state in the fields `own` of the scheme, its cores and its shares. Every
 * slot but name and row_came may be NULL or 0; the slot's comment gives the default.
 *
 * Threads: slots of the core are called by the thread that works for the core, and they never wait. Slots of the worker
 * are called by the thread that uses the exchange. If a slot returns an error status, it has recorded the error
 * text. */
#ifndef HPC_ENGINE_DISCIPLINE_H
#define HPC_ENGINE_DISCIPLINE_H

#include "engine/scheme.h"

/* hpc_config_rule returns the rule of a key. hpc_config_own_fold returns the first key's rule that has its own fold
 * function; NULL if no rule has one. */
static inline const hpc_rule *hpc_config_rule(const hpc_exchange_config *config, int key) {
    return config->rules != NULL ? config->rules[key] : config->rule;
}

static inline const hpc_rule *hpc_config_own_fold(const hpc_exchange_config *config) {
    for (int k = 0; k < config->plan->n_keys; k++)
        if (hpc_config_rule(config, k)->fold != NULL) return hpc_config_rule(config, k);
    return NULL;
}

/* Returns whether models rotate through slots: the worker trains its model in the slot that its push sends, and the
 * fold writes the next model into the next slot. */
static inline int hpc_models_rotate(const hpc_exchange_config *f) {
    return f->in_place && hpc_plan_takes_float32(f->plan);
}

/* The use of a fold that a worker's pull asks for, if fold and apply are two calls. */
typedef enum hpc_use { HPC_USE_APPLY, HPC_USE_SKIP, HPC_USE_GATHER, HPC_USE_SQUARES } hpc_use;

/* The points at which the engine calls hpc_pace.note, on the worker's thread and with no core paused. If the point
 * concerns a key, note gets that key's number, otherwise -1. Where the comment says "note may wait", note gets a limit
 * with a deadline; otherwise it gets NULL and must not wait. */
typedef enum hpc_moment {
    /* Points in a push of a key, in this order. */
    HPC_ON_ENCODE = 1, /* the checks have accepted the update; next it is encoded */
    HPC_ON_SEND = 2,   /* the update is in its slot; next it is sent */
    HPC_ON_SENT = 4,   /* all shares are sent, and the push is counted */
    HPC_ON_END = 8, /* the worker has seen that its last push is done; noted again at each later wait for that push */
    /* Other points that concern a key. */
    HPC_ON_ASKED = 16, /* a pull has asked all owners, and is counted */
    /* A call is about to read encoders, counts (hpc_scheme.begun, hpc_peers.dropped), hpc_scheme.heard or .outcomes.
     * note must first bring these up to date with all answers of the owners. */
    HPC_ON_HEAR = 32,
    /* This rank's pushes are done; note waits until this rank has applied equally many updates of all ranks. */
    HPC_ON_SETTLE = 64,
    /* In close: the last push is done, and next the worker waits for hpc_pace.has_read. note may wait. */
    HPC_ON_FINISH = 128,
    /* Points that concern the whole exchange. */
    HPC_ON_LOOK = 256,    /* at every look of a wait, and in hpc_exchange_progress */
    HPC_ON_PUBLISH = 512, /* collective; no rank has a call pending, and next owners send parameters. note may wait */
    HPC_ON_PUBLISHED = 1024, /* owners have sent the parameters, and flush them next */
    HPC_ON_CLOSE = 2048      /* no call is pending; next this rank tells the others that it closes */
} hpc_moment;

/* Facts of a discipline that the layout and the engine need. They are the same on all ranks. */
typedef enum hpc_trait {
    /* Owners may fold without some of the workers. This has four effects. A master is separate from its owner's own
     * parameters. Each put of a row's parameters reads a separate copy. All rows of a key must have the same workers.
     * An owner serves until all workers have closed. */
    HPC_GOES_ON = 1,
    HPC_BY_QUORUM = 2, /* a fold needs only the configuration's quorum of inputs, not all */
    /* Every fold takes all inputs, with the plan's weights. So fold, rule and write of a row can be one pass, unless
     * the weights change by step. */
    HPC_WHOLE = 4,
    HPC_ONE_SLOT = 8, /* a sender has one slot for an input, whatever the plan's depth is */
    /* Forwards add each input to a sum as soon as it comes. The discipline keeps the sums and the outputs, by slot
     * (hpc_work.leaving). Workers send the rule's arguments to these forwards, not to the rows that apply. */
    HPC_SUMS = 16,
    /* In a plan with several stages each worker announces its calls to the owners directly, and the owners answer that
     * worker directly. Without this trait each share answers only the ranks on the edges of its rows. */
    HPC_ANSWERS_ALL = 32,
    /* Every rank takes part in every share; without this trait, only the ranks on the edges of the share's rows. */
    HPC_INVOLVES_ALL = 64,
    /* A pull waits only for the shares that send this rank parameters; without this trait, for all shares that answer
     * this rank. */
    HPC_OWN_PARAMS = 128,
    HPC_PUTS = 256, /* updates are put even where the owner could read them in the worker's memory */
    /* Pushes may reach a row through other ranks (hpc_edge.row). Workers then always put them, and the cores of those
     * ranks put them to the next rank. */
    HPC_PASSES_ON = 512,
    /* The event of a share carries 8 bytes, and one event announces all puts to the share. Without this trait the event
     * of a share carries no bytes and announces only updates that are read in place; each put is announced by an event
     * of its row. */
    HPC_BRINGS_NUMBER = 1024,
    /* Pulls ask the owners for parameters, and owners answer pulls by a second signal. Without this trait the answer to
     * a push also ends its pull. */
    HPC_PULLS = 2048,
    /* Fold and apply are two calls, and each row keeps the mean of a fold for its own rank's worker. The mean is
     * computed together with the fold; then the inputs' slots are free. */
    HPC_KEEPS_MEANS = 4096,
    /* Fold and apply are two calls, and rows keep their inputs (in their slots) instead of a mean. When a worker asks
     * for the mean, its own core computes it into hpc_scheme.gathered. */
    HPC_KEEPS_INPUTS = 8192,
    HPC_MARGINS =
        16384, /* each slot has HPC_MARGIN_BYTES more, before and behind the update, for the discipline's marks */
    HPC_TEARS = 32768, /* a fold may find an update half written and then leaves it out; updates must not be pieces */
    HPC_UNREAD =
        65536, /* an owner may never read a push, so close waits only until the puts have left this rank's memory */
    /* Each update is applied by itself, or only the apply decides which updates a fold takes. So the mean of a fold is
     * the worker's own update. The worker holds this update until it is applied (hpc_held). To skip, the worker pushes
     * without an update (HPC_OP_EMPTY). */
    HPC_EACH = 131072,
    /* One owner decides which updates count for all shares with the same elements. The others get its verdicts by a
     * second signal of its share. */
    HPC_DECIDES = 262144
} hpc_trait;

/* A value that hpc_gate.other_came returns: the event must wait. All later events of its rank wait behind it, and the
 * core hands the event over again later. */
enum { HPC_HAS_TO_WAIT = 2 };

enum { HPC_MARGIN_BYTES = 128 }; /* whole cache lines */

/* The gate is the owner's side of a discipline: it decides which inputs a fold takes, and when the fold is made. */
typedef struct hpc_gate {
    /* Handles an input of a row that has come in slot. If one event announces all rows of a share, the core calls
     * row_came for each row, in order. Returns 0 if the event is wrong (the exchange then fails), otherwise 1. */
    int (*row_came)(hpc_core *core, hpc_work *w, int input, int slot);
    /* Handles HPC_OP_PULL, HPC_OP_EMPTY or HPC_OP_USE. share is the share that the event names; it may be NULL, except
     * for a pull, if this core has no such share. Returns 0 if the event is wrong, HPC_HAS_TO_WAIT, or 1. NULL: the
     * discipline never gets such events. */
    int (*other_came)(hpc_core *core, hpc_share *share, const hpc_event *event);
    /* Does work that no event asks for. Returns how many folds or other steps it did. NULL: there is no such work. */
    int (*work)(hpc_core *core);
    /* Adds to the array ranks the ranks that share s waits for; called if s has not answered ticket, or has not read
     * its push. Returns how many ranks the array then has. s is a share of this rank; if senders are groups it may be
     * any rank's share, since a key has the same groups on all ranks. NULL: the engine adds only the owner of s. */
    int (*missing)(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found);
    /* Called when all workers have closed. Writes into ranks the ranks that still have something to send or to take,
     * and returns how many there are. If ranks is NULL it only counts, and may count a rank twice. A rank that owns
     * rows serves until this returns 0. NULL: nothing is outstanding. */
    int (*outstanding)(const hpc_scheme *sc, int *ranks);
} hpc_gate;

/* The pace is the worker's side of a discipline: how far a worker may run ahead, and further steps of its calls. */
typedef struct hpc_pace {
    /* Returns HPC_OK if key may be pushed now; if not, HPC_IN_PROGRESS if op is NULL, otherwise an error. NULL: any
     * push is accepted, and start waits for its slot. */
    int (*may_push)(hpc_scheme *sc, int key, const char *op);
    /* Waits until the slot of the next push may be written. NULL: hpc_push_wait_slot. */
    int (*wait_slot)(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
    /* Sends one share's part of the push; on a graph only if this rank sends to the share's owner in this step. NULL:
     * hpc_push_share. */
    int (*send_share)(hpc_scheme *sc, int s, int slot, hpc_limit *l);
    unsigned moments; /* bits of hpc_moment: the points at which note is called */
    int (*note)(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op);
    /* Returns whether share s has stopped reading this rank's push number ticket / 2. close waits for this, unless the
     * discipline has HPC_UNREAD. NULL: on a graph whose senders have several slots, hpc_graph_has_read; otherwise a
     * push that is done is no longer read. */
    int (*has_read)(const hpc_scheme *sc, int s, uint64_t ticket);
    /* Returns whether this rank's wait for ticket still waits for rank. pushes is how often rank has pushed key;
     * UINT64_MAX if this rank cannot see that. NULL: no wait is for a particular rank. */
    int (*is_late)(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);
    /* Called when a checkpoint is loaded: the step of row w of this rank was set, and the row's core is paused. NULL:
     * nothing to do. */
    void (*restored)(hpc_scheme *sc, const hpc_work *w, uint64_t step);
    /* With HPC_PULLS: returns whether the next pull of key ends at once, because this rank's copy is new enough. NULL:
     * it never does. */
    int (*ends)(hpc_scheme *sc, int key);
    /* With HPC_PULLS: asks the owner of a share for parameters. NULL: the engine asks by an event without data. */
    int (*ask)(hpc_scheme *sc, int s, hpc_limit *l);
} hpc_pace;

/* The use is the third part of a discipline: what happens to the mean of a fold if fold and apply are two calls. A push
 * folds, and the owners keep the mean until a pull applies or skips it. The rule's arguments then come with pulls, not
 * with pushes. */
typedef struct hpc_mean_use {
    /* set_use chooses the use that the next pull of key asks for, or returns an error. After that pull the use is again
     * HPC_USE_APPLY, with scale 1. squares returns the sum of squares of the mean, after a pull that asked for it. */
    int (*set_use)(hpc_scheme *sc, int key, hpc_use use, double scale, const char *op);
    double (*squares)(const hpc_scheme *sc, int key);
} hpc_mean_use;

struct hpc_discipline {
    const char *name; /* for errors */
    /* Returns HPC_OK, or an error if this discipline does not support the rest of the configuration. NULL: HPC_OK. */
    int (*check)(const hpc_context *context, const hpc_exchange_config *config);
    unsigned traits; /* hpc_trait */

    /* Both open its own state. NULL: it has none. */
    int (*plan)(hpc_scheme *sc, const char *op); /* the layout is known: takes room in the parts */
    int (*open)(hpc_scheme *sc, const char *op); /* rows and cores exist */

    const hpc_gate *gate;
    const hpc_pace *pace;
    const hpc_mean_use *use; /* NULL: fold and apply are one call */
};

/* Returns n * size bytes of zeroed memory, which is freed with the scheme. If memory is short, records the error and
 * returns NULL. */
static inline void *hpc_scheme_take(hpc_scheme *sc, size_t n, size_t size, const char *op) {
    void *taken = hpc_arena_take(&sc->taken, n, size);
    if (taken == NULL) hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the state of %s", op, sc->discipline->name);
    return taken;
}

static inline int hpc_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    return sc->pace->moments & moment ? sc->pace->note(sc, key, moment, l, op) : HPC_OK;
}

#endif
