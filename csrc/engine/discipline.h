/* A discipline says when: when a fold is made and of which inputs, when a push may go, when a pull is done.
 *
 * It is one const struct, in one file of discipline/ and in the table there. The engine and the exchange call these
 * slots and know no discipline by name. Its own state hangs on the engine, its cores and its shares as `own`. Every
 * slot but name, share_came and awaited may be NULL or 0: the comment says what that means.
 *
 * Threads: slots of the core are called by whoever works for the core and never wait; slots of the worker by the thread
 * that uses the exchange. A slot that returns a status has recorded the error. */
#ifndef HPC_ENGINE_DISCIPLINE_H
#define HPC_ENGINE_DISCIPLINE_H

#include "engine/engine.h"
#include "engine/ticket.h"

/* The rule of a key in a configuration; and the first one with a fold of its own, or NULL. */
static inline const hpc_rule *hpc_config_rule(const hpc_exchange_config *config, int key) {
    return config->rules != NULL ? config->rules[key] : config->rule;
}

static inline const hpc_rule *hpc_config_own_fold(const hpc_exchange_config *config) {
    for (int k = 0; k < config->plan->n_keys; k++)
        if (hpc_config_rule(config, k)->fold != NULL) return hpc_config_rule(config, k);
    return NULL;
}

/* Fold and apply in two calls: what a worker's pull asks for, and how owners hear of it. */
typedef enum hpc_use { HPC_USE_APPLY, HPC_USE_SKIP, HPC_USE_GATHER, HPC_USE_SQUARES } hpc_use;

/* Close. */
typedef struct hpc_leaving {
    /* Waits until the last push of key has left this rank's memory. NULL: a push that is done has. */
    int (*finish)(hpc_engine *en, int key, hpc_limit *l, const char *op);
    /* Nothing is under way. NULL: nothing. */
    void (*closing)(hpc_engine *en);
    /* When all workers have closed: writes the ranks from which something has still to come, or that have still to take
     * something, into ranks (NULL: counts only, perhaps twice); returns their number. A rank that owns rows serves
     * until it is 0. NULL: nothing has. */
    int (*outstanding)(const hpc_engine *en, int *ranks);
} hpc_leaving;

/* States that are saved and loaded: calls that exchange/ makes outside of steps. A NULL slot does nothing. */
typedef struct hpc_facts {
    /* Settle: waits until all pushes of key are applied. NULL: a push that is done is. */
    int (*settle)(hpc_engine *en, int key, hpc_limit *l, const char *op);
    void (*restored)(hpc_engine *en, const hpc_work *w, uint64_t step); /* a row was set */
    int (*before_publish)(hpc_engine *en, const char *op, double deadline);
    int (*after_publish)(hpc_engine *en);
} hpc_facts;

/* Facts of a discipline for the layout and the engine; the same on all ranks. */
typedef enum hpc_trait {
    /* Owners fold without some of the workers. So a master lies apart from its owner's own parameters, each put of a
     * row reads a copy of its own, all rows of a key have the same workers, and an owner serves until all have closed.
     */
    HPC_GOES_ON = 1,
    HPC_BY_QUORUM = 2, /* folds are made by the configuration's quorum, where that is not all inputs */
    /* Folds take all inputs with the plan's weights: a row can go in one pass, unless weights take turns. */
    HPC_WHOLE = 4,
    HPC_ONE_SLOT = 8, /* a sender has one slot for an input, whatever the plan's depth */
    /* Forwards add their inputs up as they come. The discipline has their sums and what they send, by slot
     * (hpc_work.leaving). They take the rule's arguments, and rows that apply take none. */
    HPC_SUMS = 16,
    /* With several stages: owners hear of each worker's calls from itself, and answer it. Else each share answers the
     * ranks at its own ends. */
    HPC_ANSWERS_ALL = 32,
    HPC_INVOLVES_ALL = 64, /* every rank takes part in every share; else the ranks at either end of its rows do */
    HPC_OWN_PARAMS = 128,  /* pulls wait for the shares alone that send this rank parameters; else for all answers */
    HPC_PUTS = 256,        /* updates are put, even where the owner could read them in the worker's memory */
    /* Pushes may come by way of other ranks (hpc_edge.row): then they are put, and cores put them on. */
    HPC_PASSES_ON = 512,
    /* The event of a share brings 8 bytes, and the worker tells of all its puts to it by that event. Else that event
     * brings no bytes, of updates that are read in place, and each put is told by an event of its row. */
    HPC_BRINGS_NUMBER = 1024,
    HPC_PULLS = 2048, /* pulls ask owners, and have a signal of their own; else the answer to a push is theirs */
    /* Fold and apply are two calls: a push folds, and the owners keep the mean until a pull says what becomes of it.
     * Then the rule's arguments come with pulls, and not with pushes. Else a push applies. */
    HPC_SPLITS = 4096,
    /* With HPC_SPLITS: rows keep their inputs, in as many slots as the plan has, and no mean. Each mean is gathered by
     * its worker's own core, into hpc_engine.gathered. */
    HPC_KEEPS_INPUTS = 8192,
    HPC_MARGINS = 16384, /* slots have HPC_MARGIN_BYTES for the discipline, before and behind the update */
    HPC_TEARS = 32768    /* a fold may find an update half written, and does without: it cannot take pieces */
} hpc_trait;

enum { HPC_MARGIN_BYTES = 128 }; /* whole cache lines */

struct hpc_discipline {
    const char *name; /* for errors */

    /* HPC_OK, or an error if the rest of a configuration that asks for this one does not go with it. NULL: HPC_OK. */
    int (*check)(const hpc_context *context, const hpc_exchange_config *config);

    /* ---- for the layout: the same on all ranks ---- */

    unsigned traits; /* hpc_trait */

    /* ---- open: its own state. NULL: it has none ---- */

    int (*plan)(hpc_engine *en, const char *op); /* the layout is known, and still grows: takes its room in parts */
    int (*open)(hpc_engine *en, const char *op); /* rows and cores are there */

    /* ---- the core ---- */

    /* Inputs of rank have come, to all rows of a share or to one row. 0: the event is wrong, and the exchange fails.
     * row_came NULL: no rows come. */
    int (*share_came)(hpc_core *core, hpc_share *share, int rank, int slot);
    int (*row_came)(hpc_core *core, hpc_work *w, int input, int slot);
    /* rank asks for the parameters of a share. NULL: no pulls come. */
    int (*pull_came)(hpc_core *core, hpc_share *share, int rank);
    /* An event of another operation has come: HPC_OP_EMPTY, HPC_OP_USE. NULL: none comes. */
    int (*other_came)(hpc_core *core, const hpc_event *event);
    /* Whether an event has to wait, with all later ones of its rank; it is asked again later. NULL: no. */
    int (*holds_up)(hpc_core *core, const hpc_event *event);
    /* Does work that no event asks for; returns how much was done. NULL: nothing. */
    int (*work)(hpc_core *core);

    /* ---- the worker ---- */

    /* HPC_OK if key may be pushed, else HPC_IN_PROGRESS, or an error if op is not NULL. NULL: always; start waits. */
    int (*may_push)(hpc_engine *en, int key, const char *op);
    /* Waits until the slot of the next push may be written. NULL: hpc_push_wait_slot. */
    int (*wait_slot)(hpc_engine *en, int key, hpc_limit *l, const char *op);
    /* Takes note of all that owners have told by their answers: before encoders of key, counts (hpc_engine.begun,
     * hpc_peers.dropped), hpc_engine.heard or .outcomes are looked at. NULL: an answer tells no more than its number.
     */
    int (*hear)(hpc_engine *en, int key);
    /* An update will not be refused any more, and is about to be encoded. NULL: nothing. */
    void (*before_encode)(hpc_engine *en, int key);
    /* The update is in its slot and about to be sent. NULL: nothing. */
    void (*begin_push)(hpc_engine *en, int key);
    /* Sends the part of the push that belongs to a share; on a graph to where it goes. NULL: hpc_push_share. */
    int (*send_share)(hpc_engine *en, int s, int slot, hpc_limit *l);
    /* All shares were sent, and the push is counted. NULL: nothing. */
    int (*pushed)(hpc_engine *en, int key);
    /* Whether a share no longer reads push number ticket / 2 of this rank. NULL: on a graph hpc_graph_has_read, unless
     * senders have one slot; else nobody reads a push that is done. */
    int (*has_read)(const hpc_engine *en, int s, uint64_t ticket);
    /* How often rank must have pushed key for this rank's push n to be folded here. NULL: 0, rank does not matter. */
    uint64_t (*needs)(const hpc_engine *en, int rank, int key, uint64_t n);
    /* Adds the ranks that a share of this rank waits for, which has not answered push n; returns their number. NULL:
     * this rank alone. */
    int (*missing)(const hpc_engine *en, int s, uint64_t n, int *ranks, int found);
    /* Writes the ranks that a ticket waits for (for_slot: that the slot of its push waits for) into ranks; returns
     * their number, 1 or more. NULL: those that have not pushed as often as needs says; else the owners of shares that
     * have not answered, and what is missing in this rank's own. */
    int (*awaited)(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks);
    /* At every look of a wait, and in hpc_exchange_progress. NULL: nothing. */
    int (*progress)(hpc_engine *en);
    /* The last push of key is done. NULL: nothing. */
    int (*ended)(hpc_engine *en, int key, const char *op);
    /* HPC_PULLS: whether the next pull of key ends at once: this rank's copy has all that it needs. NULL: no. */
    int (*ends)(hpc_engine *en, int key);
    /* HPC_PULLS: asks the owner of a share. NULL: by an event that says nothing more. */
    int (*ask)(hpc_engine *en, int s, hpc_limit *l);
    /* HPC_PULLS: all owners of key were asked, and the pull is counted. NULL: nothing. */
    void (*asked)(hpc_engine *en, int key);

    /* ---- fold and apply in two calls (HPC_SPLITS) ---- */

    /* Sets what the next pull of key asks for; an error if it cannot. After pulled it is to apply, with scale 1. */
    int (*set_use)(hpc_engine *en, int key, hpc_use use, double scale, const char *op);
    double (*squares)(const hpc_engine *en, int key);

    const hpc_leaving *leaving; /* NULL: all its slots are NULL */
    const hpc_facts *facts;     /* NULL: all its slots are NULL */
};

#endif
