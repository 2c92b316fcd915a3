/* A discipline says when: when a fold is made and of which inputs, when a push may go, when a pull is done. It is three
 * choices: a gate, a pace and a use. Who takes part comes from the plan's edges.
 *
 * It is one const struct, in one file of discipline/ and in the table there. The engine and the exchange call these
 * slots and know no discipline by name. Its own state hangs on the scheme, its cores and its shares as `own`. Every
 * slot but name and row_came may be NULL or 0; its comment gives the meaning.
 *
 * Threads: slots of the core are called by the thread that works for the core, and never wait; slots of the worker by
 * the thread that uses the exchange. A slot that returns a status has recorded the error. */
#ifndef HPC_ENGINE_DISCIPLINE_H
#define HPC_ENGINE_DISCIPLINE_H

#include "engine/scheme.h"

/* The rule of a key in a configuration; and the first rule with its own fold function, or NULL. */
static inline const hpc_rule *hpc_config_rule(const hpc_exchange_config *config, int key) {
    return config->rules != NULL ? config->rules[key] : config->rule;
}

static inline const hpc_rule *hpc_config_own_fold(const hpc_exchange_config *config) {
    for (int k = 0; k < config->plan->n_keys; k++)
        if (hpc_config_rule(config, k)->fold != NULL) return hpc_config_rule(config, k);
    return NULL;
}

/* Whether models are trained in the slots that pushes send, in turn. */
static inline int hpc_models_rotate(const hpc_exchange_config *f) {
    return f->in_place && hpc_plan_takes_float32(f->plan);
}

/* Fold and apply in two calls: the requests of a worker's pull. */
typedef enum hpc_use { HPC_USE_APPLY, HPC_USE_SKIP, HPC_USE_GATHER, HPC_USE_SQUARES } hpc_use;

/* Moments in the life of a push, a pull and an exchange, on the worker's thread, with no core paused. A moment of a key
 * has the key's number, one of the exchange has key -1. A moment that may wait has a limit, whose deadline is set; for
 * all others the limit is NULL. */
typedef enum hpc_moment {
    /* A push of a key, in this order. */
    HPC_ON_ENCODE = 1, /* the update will not be refused any more, and is about to be encoded */
    HPC_ON_SEND = 2,   /* the update is in its slot, and about to be sent */
    HPC_ON_SENT = 4,   /* all shares were sent, and the push is counted */
    HPC_ON_END = 8,    /* the last push is done; a second wait for it notes that again */
    /* Other moments of a key. */
    HPC_ON_ASKED = 16, /* a pull has asked all owners, and is counted */
    /* A call looks next at encoders, counts (hpc_scheme.begun, hpc_peers.dropped), hpc_scheme.heard or .outcomes: all
     * that owners have told by their answers is to be in them. */
    HPC_ON_HEAR = 32,
    HPC_ON_SETTLE = 64,  /* waits until all pushes are applied here; they are done */
    HPC_ON_FINISH = 128, /* close: the last push is done, and hpc_pace.has_read is waited for next. May wait */
    /* Moments of the exchange. */
    HPC_ON_LOOK = 256,       /* every look of a wait, and hpc_exchange_progress */
    HPC_ON_PUBLISH = 512,    /* collective, before owners send parameters; no rank has a call pending. May wait */
    HPC_ON_PUBLISHED = 1024, /* owners have sent parameters, and flush them next */
    HPC_ON_CLOSE = 2048      /* no call is pending; this rank tells the others next that it closes */
} hpc_moment;

/* Facts of a discipline for the layout and the engine; the same on all ranks. */
typedef enum hpc_trait {
    /* Owners fold without some of the workers. So a master lies apart from its owner's own parameters, each put of a
     * row reads a separate copy, all rows of a key have the same workers, and an owner serves until all have closed. */
    HPC_GOES_ON = 1,
    HPC_BY_QUORUM = 2, /* folds are made by the configuration's quorum, where that is not all inputs */
    /* Folds take all inputs with the plan's weights: a row can go in one pass, unless weights take turns. */
    HPC_WHOLE = 4,
    HPC_ONE_SLOT = 8, /* a sender has one slot for an input, whatever the plan's depth */
    /* Forwards add their inputs up as they come. The discipline has their sums and their outputs, by slot
     * (hpc_work.leaving). They take the rule's arguments, and rows that apply take none. */
    HPC_SUMS = 16,
    /* With several stages: each worker tells owners of its calls itself, and they answer it. Without this trait each
     * share answers the ranks at its own ends. */
    HPC_ANSWERS_ALL = 32,
    HPC_INVOLVES_ALL = 64, /* every rank takes part in every share; else the ranks at either end of its rows do */
    HPC_OWN_PARAMS = 128,  /* pulls wait for the shares alone that send this rank parameters; else for all answers */
    HPC_PUTS = 256,        /* updates are put, even where the owner could read them in the worker's memory */
    /* Pushes may come by way of other ranks (hpc_edge.row): then they are put, and cores put them on. */
    HPC_PASSES_ON = 512,
    /* The event of a share brings 8 bytes, and the worker tells of all its puts to the share by that event. Without
     * this trait it brings no bytes and tells of updates that are read in place; each put has an event of its row. */
    HPC_BRINGS_NUMBER = 1024,
    HPC_PULLS = 2048, /* pulls ask owners, and have a second signal; else the answer to a push is theirs */
    /* Fold and apply are two calls: rows keep a mean, as with servers, and each is for its own rank's worker. It is
     * made when the fold is, and its inputs are free then. */
    HPC_KEEPS_MEANS = 4096,
    /* The same, but rows keep their inputs, in as many slots as the plan has, and no mean. Each mean is
     * gathered by its worker's own core, into hpc_scheme.gathered. */
    HPC_KEEPS_INPUTS = 8192,
    HPC_MARGINS = 16384, /* slots have HPC_MARGIN_BYTES for the discipline, before and behind the update */
    HPC_TEARS = 32768,   /* a fold may find an update half written, and does without: it cannot take pieces */
    HPC_UNREAD = 65536,  /* owners may never read a push: close only waits until it has left this rank */
    /* Each update is applied by itself, or the updates of a fold are known only when it is applied. So the mean that a
     * fold keeps is its worker's own update, which stays with the worker until it is applied (hpc_held), and a skip is
     * a push without an update (HPC_OP_EMPTY). */
    HPC_EACH = 131072,
    /* Shares of the same elements follow the verdicts of one of their owners, by a second signal of its share. */
    HPC_DECIDES = 262144
} hpc_trait;

/* The event waits, with all later ones of its rank; it is handed over again later. */
enum { HPC_HAS_TO_WAIT = 2 };

enum { HPC_MARGIN_BYTES = 128 }; /* whole cache lines */

/* Gate: which inputs a fold takes, and when it is made. The owner's side. */
typedef struct hpc_gate {
    /* An input of a row has come: one by one, or by one event for all rows of a share, which are called in their order.
     * 0: the event is wrong, and the exchange fails. */
    int (*row_came)(hpc_core *core, hpc_work *w, int input, int slot);
    /* An event that is no input has come: HPC_OP_PULL, HPC_OP_EMPTY or HPC_OP_USE. share: the one of its number; NULL:
     * this core has none, and it is no pull. 0: the event is wrong; or HPC_HAS_TO_WAIT. NULL: none comes. */
    int (*other_came)(hpc_core *core, hpc_share *share, const hpc_event *event);
    /* Does work that no event asks for; returns how much was done. NULL: nothing. */
    int (*work)(hpc_core *core);
    /* Adds the ranks that a share waits for, which has not answered a ticket (or not read its push); returns their
     * number. Of shares of this rank; where senders are groups of all: the groups of a key are the same everywhere, so
     * this rank's shares tell of others'. NULL: its owner alone. */
    int (*missing)(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found);
    /* When all workers have closed: writes the ranks from which something has still to come, or that have still to take
     * something, into ranks (NULL: counts only, perhaps twice); returns their number. A rank that owns rows serves
     * until it is 0. NULL: nothing has. */
    int (*outstanding)(const hpc_scheme *sc, int *ranks);
} hpc_gate;

/* Pace: how far a worker may run ahead, and its notes on the way. The worker's side. */
typedef struct hpc_pace {
    /* HPC_OK if key may be pushed, else HPC_IN_PROGRESS, or an error if op is not NULL. NULL: always; start waits. */
    int (*may_push)(hpc_scheme *sc, int key, const char *op);
    /* Waits until the slot of the next push may be written. NULL: hpc_push_wait_slot. */
    int (*wait_slot)(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
    /* Sends the part of the push that belongs to a share; on a graph to where it goes. NULL: hpc_push_share. */
    int (*send_share)(hpc_scheme *sc, int s, int slot, hpc_limit *l);
    unsigned moments; /* hpc_moment: note is called at these */
    int (*note)(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op);
    /* Whether a share no longer reads push number ticket / 2 of this rank; close waits for that too, unless HPC_UNREAD.
     * NULL: on a graph hpc_graph_has_read, unless senders have one slot; else a push that is done is not read. */
    int (*has_read)(const hpc_scheme *sc, int s, uint64_t ticket);
    /* Whether a ticket of this rank waits for rank, which has pushed key so often. UINT64_MAX: that cannot be seen from
     * here. NULL: no, rank does not matter. */
    int (*is_late)(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);
    /* A state is loaded: a row of this rank was set, whose core is paused. NULL: nothing. */
    void (*restored)(hpc_scheme *sc, const hpc_work *w, uint64_t step);
    /* HPC_PULLS: whether the next pull of key ends at once: this rank's copy has all that it needs. NULL: no. */
    int (*ends)(hpc_scheme *sc, int key);
    /* HPC_PULLS: asks the owner of a share. NULL: by an event that says nothing more. */
    int (*ask)(hpc_scheme *sc, int s, hpc_limit *l);
} hpc_pace;

/* Use: the fate of the mean of a fold. Fold and apply are two calls: a push folds, and the owners keep the mean until a
 * pull applies or skips it. Then the rule's arguments come with pulls, and not with pushes. */
typedef struct hpc_mean_use {
    /* Sets the use that the next pull of key asks for; an error if it cannot. After that pull it is to apply, with
     * scale 1. */
    int (*set_use)(hpc_scheme *sc, int key, hpc_use use, double scale, const char *op);
    double (*squares)(const hpc_scheme *sc, int key);
} hpc_mean_use;

struct hpc_discipline {
    const char *name; /* for errors */
    /* HPC_OK, or an error if the rest of a configuration that asks for this one does not go with it. NULL: HPC_OK. */
    int (*check)(const hpc_context *context, const hpc_exchange_config *config);
    unsigned traits; /* hpc_trait */

    /* Open its own state. NULL: it has none. */
    int (*plan)(hpc_scheme *sc, const char *op); /* the layout is known, and still grows: takes its room in parts */
    int (*open)(hpc_scheme *sc, const char *op); /* rows and cores are there */

    const hpc_gate *gate;
    const hpc_pace *pace;
    const hpc_mean_use *use; /* NULL: a push applies */
};

/* Memory that is freed with the scheme: n times size bytes of zeroes. NULL: out of memory; the error is recorded. */
static inline void *hpc_scheme_take(hpc_scheme *sc, size_t n, size_t size, const char *op) {
    void *taken = hpc_arena_take(&sc->taken, n, size);
    if (taken == NULL) hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the state of %s", op, sc->discipline->name);
    return taken;
}

static inline int hpc_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op) {
    return sc->pace->moments & moment ? sc->pace->note(sc, key, moment, l, op) : HPC_OK;
}

#endif
