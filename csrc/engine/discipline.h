/* A discipline implements a consistency, such as BSP: it decides when a fold (the weighted sum of a row's inputs) is
 * made and of which inputs, when a push may go, and when a pull is done. It consists of a gate, a pace and a use. Which
 * ranks take part follows from the plan's edges.
 *
 * It is one const struct, in one file of discipline/ and in the table there. The engine and the exchange call its
 * functions (slots) and know no discipline by name. Its own state hangs on the scheme, its cores and its shares as
 * `own`. Every slot but name and row_came may be NULL or 0; its comment explains that.
 *
 * Threads: slots of the core are called by the thread that works for the core, and they never wait. Slots of the worker
 * are called by the thread that uses the exchange. A slot that returns a status has recorded the error. */
#ifndef HPC_ENGINE_DISCIPLINE_H
#define HPC_ENGINE_DISCIPLINE_H

#include "engine/scheme.h"

/* The first function returns the rule of a key in a configuration. The second returns the first rule that has its own
 * fold function, or NULL. */
static inline const hpc_rule *hpc_config_rule(const hpc_exchange_config *config, int key) {
    return config->rules != NULL ? config->rules[key] : config->rule;
}

static inline const hpc_rule *hpc_config_own_fold(const hpc_exchange_config *config) {
    for (int k = 0; k < config->plan->n_keys; k++)
        if (hpc_config_rule(config, k)->fold != NULL) return hpc_config_rule(config, k);
    return NULL;
}

/* Returns whether models rotate: a model is trained in the slot that its push sends, and its fold writes the next model
 * into the next slot. */
static inline int hpc_models_rotate(const hpc_exchange_config *f) {
    return f->in_place && hpc_plan_takes_float32(f->plan);
}

/* With fold and apply as two calls: the use of the fold that a worker's pull asks for. */
typedef enum hpc_use { HPC_USE_APPLY, HPC_USE_SKIP, HPC_USE_GATHER, HPC_USE_SQUARES } hpc_use;

/* The points at which the engine calls hpc_pace.note, on the worker's thread and with no core paused. If the point
 * concerns a key, note gets that key's number, otherwise -1. A note that may wait gets a limit whose deadline is set;
 * every other note gets NULL. */
typedef enum hpc_moment {
    /* Points in a push of a key, in this order. */
    HPC_ON_ENCODE = 1, /* the update will be accepted, and is encoded next */
    HPC_ON_SEND = 2,   /* the update is in its slot, and is sent next */
    HPC_ON_SENT = 4,   /* all shares are sent, and the push is counted */
    HPC_ON_END = 8,    /* the worker has seen that its last push is done; each further wait for it notes this again */
    /* Other points that concern a key. */
    HPC_ON_ASKED = 16, /* a pull has asked all owners, and is counted */
    /* A call is about to read encoders, counts (hpc_scheme.begun, hpc_peers.dropped), hpc_scheme.heard or .outcomes.
     * The discipline first enters there all that the owners' answers have told. */
    HPC_ON_HEAR = 32,
    /* This rank's pushes are done; note waits until the others' updates, as many as its own, are applied here. */
    HPC_ON_SETTLE = 64,
    /* close: the last push is done; next the worker waits for hpc_pace.has_read. note may wait. */
    HPC_ON_FINISH = 128,
    /* Points that concern the whole exchange. */
    HPC_ON_LOOK = 256,    /* at every look of a wait, and in hpc_exchange_progress */
    HPC_ON_PUBLISH = 512, /* collective: owners send parameters next, and no rank has a call pending. note may wait */
    HPC_ON_PUBLISHED = 1024, /* owners have sent the parameters, and flush them next */
    HPC_ON_CLOSE = 2048      /* no call is pending; next this rank tells the others that it closes */
} hpc_moment;

/* Facts of a discipline that the layout and the engine need. They are the same on all ranks. */
typedef enum hpc_trait {
    /* Owners fold without some of the workers. This has four effects: a master lies apart from its owner's own
     * parameters; each put of a row reads a separate copy; all rows of a key must have the same workers; an owner
     * serves until all workers have closed. */
    HPC_GOES_ON = 1,
    HPC_BY_QUORUM = 2, /* folds need only the configuration's quorum, if that is less than all inputs */
    /* Every fold takes all inputs, with the plan's weights. So a row can go in one pass, unless the weights change by
     * step. */
    HPC_WHOLE = 4,
    HPC_ONE_SLOT = 8, /* a sender has one slot for an input, whatever the plan's depth is */
    /* Forwards add their inputs up as these come. The discipline keeps the sums and the outputs, by slot
     * (hpc_work.leaving). Such forwards take the rule's arguments, and rows that apply take none. */
    HPC_SUMS = 16,
    /* In a plan with several stages each worker announces its calls to the owners directly, and the owners answer it.
     * Without this trait each share answers only the ranks on its own edges. */
    HPC_ANSWERS_ALL = 32,
    /* Every rank takes part in every share; without it, only the ranks on the edges of its rows. */
    HPC_INVOLVES_ALL = 64,
    /* A pull waits only for the shares that send this rank parameters; without it, for all that answer it. */
    HPC_OWN_PARAMS = 128,
    HPC_PUTS = 256, /* updates are put even where the owner could read them in the worker's memory */
    /* Pushes may reach a row through other ranks (hpc_edge.row). Then they are put, and cores put them on to the next
     * rank. */
    HPC_PASSES_ON = 512,
    /* The event of a share brings 8 bytes, and one event announces all puts to the share. Without this trait the event
     * of a share brings no bytes and announces updates that are read in place; each put has an event of its row. */
    HPC_BRINGS_NUMBER = 1024,
    /* Pulls ask the owners and have a second signal; without it, the answer to a push also ends its pull. */
    HPC_PULLS = 2048,
    /* Fold and apply are two calls, and rows keep a mean, as with servers; each row serves its own rank's worker only.
     * The mean is made together with the fold, after which the inputs' slots are free. */
    HPC_KEEPS_MEANS = 4096,
    /* Fold and apply are two calls, and rows keep their inputs, in the plan's number of slots, instead of a mean. A
     * worker's own core gathers the mean for it, into hpc_scheme.gathered. */
    HPC_KEEPS_INPUTS = 8192,
    HPC_MARGINS = 16384, /* slots have HPC_MARGIN_BYTES for the discipline, before and behind the update */
    HPC_TEARS = 32768,   /* a fold may find an update half written, and leaves it out; so updates cannot be pieces */
    HPC_UNREAD = 65536,  /* owners may never read a push, so close only waits until it has left this rank's memory */
    /* Each update is applied by itself, or it is not known before the apply which updates a fold takes. So the mean of
     * a fold is the worker's own update. The worker holds it until it is applied (hpc_held), and a skip is a push
     * without an update (HPC_OP_EMPTY). */
    HPC_EACH = 131072,
    /* One owner decides for all shares of the same elements; the others hear its verdicts by a second signal of its
     * share. */
    HPC_DECIDES = 262144
} hpc_trait;

/* Return value: the event must wait, and all later events of its rank wait behind it. The core hands it over again
 * later. */
enum { HPC_HAS_TO_WAIT = 2 };

enum { HPC_MARGIN_BYTES = 128 }; /* whole cache lines */

/* Gate, on the owner's side: which inputs a fold takes, and when the fold is made. */
typedef struct hpc_gate {
    /* Handles an input of a row that has come in slot. If one event stands for all rows of a share, it is called for
     * each row, in their order. Returns 0 if the event is wrong; the exchange then fails. */
    int (*row_came)(hpc_core *core, hpc_work *w, int input, int slot);
    /* Handles an event that is no input: HPC_OP_PULL, HPC_OP_EMPTY or HPC_OP_USE. share is the share that the event
     * names; NULL if this core has no such share, which never happens for a pull. Returns 0 if the event is wrong,
     * HPC_HAS_TO_WAIT, or 1. A NULL slot means that no such event ever comes. */
    int (*other_came)(hpc_core *core, hpc_share *share, const hpc_event *event);
    /* Does work that no event asks for, and returns how much it did. NULL: there is no such work. */
    int (*work)(hpc_core *core);
    /* Adds the ranks that share s waits for to the found ones, and returns their number; s has not answered ticket, or
     * not read its push. s is a share of this rank; where senders are groups it may be any, as a key's groups are the
     * same everywhere. NULL: only the owner is added. */
    int (*missing)(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found);
    /* Called when all workers have closed. Writes into ranks which ranks still have something to send or to take, and
     * returns how many there are; with ranks NULL it only counts, perhaps some twice. A rank that owns rows serves
     * until this is 0. NULL: nothing is outstanding. */
    int (*outstanding)(const hpc_scheme *sc, int *ranks);
} hpc_gate;

/* Pace, on the worker's side: how far a worker may run ahead, and the discipline's own steps in a call. */
typedef struct hpc_pace {
    /* Returns HPC_OK if key may be pushed now. If not, returns HPC_IN_PROGRESS, or an error if op is not NULL. NULL: a
     * push is always taken, and start waits. */
    int (*may_push)(hpc_scheme *sc, int key, const char *op);
    /* Waits until the slot of the next push may be written. NULL: hpc_push_wait_slot. */
    int (*wait_slot)(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
    /* Sends a share's part of the push; on a graph only if this step sends to its owner. NULL: hpc_push_share. */
    int (*send_share)(hpc_scheme *sc, int s, int slot, hpc_limit *l);
    unsigned moments; /* bits of hpc_moment: the points at which note is called */
    int (*note)(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op);
    /* Returns whether share s no longer reads this rank's push number ticket / 2. close waits for this too, unless the
     * discipline has HPC_UNREAD. NULL: hpc_graph_has_read on a graph, unless senders have one slot; in all other cases
     * a push that is done is not read any more. */
    int (*has_read)(const hpc_scheme *sc, int s, uint64_t ticket);
    /* Returns whether ticket of this rank still waits for rank. pushes is how often rank has pushed key, or UINT64_MAX
     * if this rank cannot see that. NULL: no ticket waits for a particular rank. */
    int (*is_late)(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);
    /* Called when a state is loaded: row w of this rank was set to step, and its core is paused. NULL: nothing to
     * do. */
    void (*restored)(hpc_scheme *sc, const hpc_work *w, uint64_t step);
    /* HPC_PULLS: returns whether the next pull of key ends at once, because this rank's copy is new enough. NULL:
     * no. */
    int (*ends)(hpc_scheme *sc, int key);
    /* HPC_PULLS: asks the owner of a share for parameters. NULL: by an event without further data. */
    int (*ask)(hpc_scheme *sc, int s, hpc_limit *l);
} hpc_pace;

/* Use: what happens to the mean of a fold if fold and apply are two calls. A push folds, and the owners keep the mean
 * until a pull applies or skips it. The rule's arguments then come with pulls, not with pushes. */
typedef struct hpc_mean_use {
    /* set_use: chooses the use that the next pull of key asks for, or returns an error. After that pull the use is
     * again apply, with scale 1. squares: the sum of squares of the mean, after a pull that asked for it. */
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

/* Returns n times size bytes of zeroes, which are freed with the scheme. If memory is short it returns NULL and records
 * the error. */
static inline void *hpc_scheme_take(hpc_scheme *sc, size_t n, size_t size, const char *op) {
    void *taken = hpc_arena_take(&sc->taken, n, size);
    if (taken == NULL) hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the state of %s", op, sc->discipline->name);
    return taken;
}

static inline int hpc_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    return sc->pace->moments & moment ? sc->pace->note(sc, key, moment, l, op) : HPC_OK;
}

#endif
