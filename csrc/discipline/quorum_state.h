/* State of a quorum, whose folds are made without stragglers. quorum.c explains it; quorum_owner.c is the owner's side
 * and quorum_worker.c the worker's. A sender is a rank, or with several stages a group of ranks, as in
 * discipline/clocks.h. */
#ifndef HPC_QUORUM_STATE_H
#define HPC_QUORUM_STATE_H

#include "discipline/graph.h"
#include "discipline/clocks.h"
#include "discipline/split_state.h"
#include "engine/owner/row.h"
#include "engine/worker/waits.h"

/* The words that a share's owner writes before each answer to a sender, at hpc_told_at in the sender's memory. */
typedef struct hpc_told {
    uint64_t folded, used; /* folded: the version that was folded last; used: 1 if the sender's update was used, 0 if it
                              was left out */
} hpc_told;

/* An owner's notes about one sender to a share, beside the sender's clock. The owner's core writes them; other threads
 * read only the atomic member. */
typedef struct hpc_sender {
    _Atomic uint64_t waits; /* the version of the update that waits in the sender's slot; 0: the slot is free */
    uint64_t newest;        /* the newest version that came */
    hpc_told told;          /* the last answer; a put may still read it */
} hpc_sender;

/* The inputs of a share that this rank owns. Only the core uses it; other threads may read the atomic members. */
typedef struct hpc_intake {
    hpc_sender *senders;      /* by rank; a group has the place of its lowest rank */
    char *takes;              /* by rank: whether this sender's update is in the present fold */
    int *from, n_from;        /* all senders, with this rank or its group last; on a graph only the in-neighbours */
    int held;                 /* how many updates wait */
    uint64_t pushes;          /* on a graph: how many pushes of this rank itself came; each starts ("leads") a fold */
    int place;                /* the share's index in core->clocked->shares */
    double since;             /* when the next fold got its quorum; 0: it has no quorum yet */
    hpc_usual lag;            /* the usual time from the quorum until the other updates are there */
    _Atomic uint64_t folded;  /* the version that was folded last */
    _Atomic double grace;     /* how many seconds a fold with a quorum waits for the other updates */
    _Atomic uint64_t reached; /* on a graph: the newest version that a quorum of the neighbours has sent */
    _Atomic uint64_t ended;   /* on a graph: no fold takes updates up to this version any more */
    /* Among peers. decided: the version that was decided last. given: how many verdicts this rank has sent. followed:
     * how many verdicts the share has carried out. */
    uint64_t decided, given, followed;
    int partial; /* set if verdicts may name ranks that do not push to this share, so that the core must look at the
                    share even when it holds no update */
} hpc_intake;

/* A worker's counts of its pushes to a share's owner; with several stages, of its pushes to the rows whose parameters
 * this share sends to the worker. Only the worker uses it. */
typedef struct hpc_outlet {
    uint64_t decided;        /* pushes up to this one were sent or dropped */
    uint64_t sent, answered; /* how many pushes were sent, and how many were answered; at most one is unanswered */
    uint64_t used,
        told; /* used: how many pushes the share has folded; told: the version that the share has folded last */
    uint64_t under_way, lost; /* the push that was sent last; the push that was left out last */
    uint64_t carried;         /* the push whose data was put last; its event may not be sent yet */
    uint64_t version;         /* the version of the update that was sent last; a put may still read it */
    uint64_t pulled;          /* the version of the parameters of the pull before the present one */
    size_t staged; /* the offset in this rank's part of the copy that is sent; HPC_NOWHERE: there is no copy */
    int pending;   /* whether decided is less than the number of pushes */
} hpc_outlet;

/* An owner's further notes about a sender to a share, if fold and apply are two calls. The owner's core writes them;
 * other threads read only the atomic members. */
typedef struct hpc_asker {
    _Atomic int in_mean; /* set if the sender's update is in the mean that the owner keeps */
    _Atomic int asks;    /* its last pull has no answer yet */
    hpc_use use;         /* the use that this pull asks for */
    int after, doubts;   /* of the pull: low bits of how many updates came before it, and whether the worker doubts
                            (split_quorum.c) */
    uint64_t version;    /* sent with the answer to a pull: the version of the parameters, */
    double *squares;     /* and the sum of squares of each row; a put may still read either */
} hpc_asker;

/* The decision about the last mean: whether it is applied, and for whom. */
typedef struct hpc_decided {
    int rank; /* the rank that decided; -1: all ranks whose updates are in the mean have closed */
    int gets; /* the sender that has already got the parameters made from the mean, until its pull is answered; -1: none
               */
    hpc_use use;
    double scale;
    int doubts;
} hpc_decided;

/* The quorum's state of a share. A worker that also owns rows uses both sides. A share of relays passes the outcome of
 * an update on to the ranks that it answers; only its core uses that part. */
typedef struct hpc_quorum_share {
    hpc_split_means means; /* must stand first: split.c reads hpc_share.own as this type */
    hpc_asker *askers;     /* by rank; NULL unless fold and apply are two calls */
    hpc_decided decided;
    int sends;
    int decider; /* among peers: the number of the share whose owner decides for this share */
    hpc_intake intake;
    hpc_outlet outlet;
    hpc_told passed; /* the outcome that relays pass on; a put may still read it */
    int left_out;    /* set if a row of the reply that is now coming says that the update was left out */
} hpc_quorum_share;

/* A worker's view of a key. */
typedef struct hpc_key_versions {
    uint64_t number;                  /* the version of its last push */
    uint64_t numbers[HPC_PLAN_DEPTH]; /* the versions of the pushes in the slots */
    char empty[HPC_PLAN_DEPTH];       /* by slot: whether the worker pushed no gradient */
    double waits_since; /* the time since which a push waits for neighbours to take an earlier push; 0: no push waits */
} hpc_key_versions;

/* Functions, called by the core, for folds that are kept and not applied at once. */
typedef struct hpc_keeping {
    /* Called for each row of a fold, whose inputs are there. Returns nonzero if the exchange has failed. */
    int (*fold)(hpc_core *core, hpc_work *w, int place);
    /* Called when all rows are folded, before the senders are answered. */
    void (*keep)(hpc_share *share);
    /* Called before the core looks for a fold: returns how much was done, or -1 after a failure. Sets *waits if the
     * next fold has to wait. */
    int (*work)(hpc_core *core, hpc_share *share, int *waits);
} hpc_keeping;

/* Functions, called by the core, by which peers send and carry out verdicts. */
typedef struct hpc_verdicts {
    /* Sends the peers the verdict that the update of rank left_out is left out; if left_out is -1, that a fold takes
     * the updates marked in hpc_intake.takes. */
    void (*give)(hpc_core *core, const hpc_share *share, int left_out);
    /* Carries out a share's verdicts whose inputs have come. Returns how many, or -1 after a failure. */
    int (*follow)(hpc_core *core, hpc_share *share);
} hpc_verdicts;

/* The quorum's state of a scheme. */
typedef struct hpc_quorum {
    hpc_split split;            /* must stand first: split.c reads hpc_scheme.own as this type */
    const hpc_keeping *keeping; /* NULL: folds are applied at once */
    size_t from;                /* how many bytes of a rank's part split.c takes, before the quorum's own words */
    uint64_t lost; /* the last version of which this rank got only a part of the means, or whose means lack some of this
                      rank's updates */
    int n_gathers; /* how many keys have a gather as last pull, of which it was not checked yet whether it found a mean
                    */
    hpc_key_versions *keys;
    uint64_t number; /* the version for which this worker pushes its keys */
    char *given_up;  /* by rank: set if a push has waited for the rank in vain, and the rank has not answered since */
    int n_pending;   /* how many outlets are pending */
    uint64_t *of_ranks;           /* scratch memory: a number for each rank */
    uint64_t told;                /* with several stages: the newest version at the last load of a state */
    const hpc_verdicts *verdicts; /* NULL: each owner decides for itself */
    int room;                     /* how many verdicts a share has room for */
} hpc_quorum;

static inline int hpc_me(const hpc_scheme *sc) {
    return sc->context->group.rank;
}

/* Returns whether senders are groups of ranks. */
static inline int hpc_in_groups(const hpc_scheme *sc) {
    return sc->group_of != NULL;
}

static inline hpc_quorum *hpc_quorum_of(const hpc_scheme *sc) {
    return sc->own;
}

static inline hpc_key_versions *hpc_versions_of(const hpc_scheme *sc, int key) {
    return &hpc_quorum_of(sc)->keys[key];
}

/* Returns NULL for a share whose updates this rank does not apply. */
static inline hpc_intake *hpc_intake_of(const hpc_share *share) {
    hpc_quorum_share *its = share->own;
    return share->clocks != NULL ? &its->intake : NULL;
}

/* Returns NULL for a share to which this rank sends nothing; on a graph that includes its own shares. With several
 * stages: NULL for a share that does not answer this rank. */
static inline hpc_outlet *hpc_outlet_of(const hpc_share *share) {
    hpc_quorum_share *its = share->own;
    return its != NULL && its->sends ? &its->outlet : NULL;
}

/* For a share that this rank owns. hpc_folded_of returns the version that was folded last. hpc_version_from returns the
 * version of sender's waiting update, or 0 if no update of sender waits. */
static inline uint64_t hpc_folded_of(const hpc_share *share) {
    return atomic_load_explicit(&hpc_intake_of(share)->folded, memory_order_acquire);
}
static inline uint64_t hpc_version_from(const hpc_share *share, int sender) {
    return atomic_load_explicit(&hpc_intake_of(share)->senders[sender].waits, memory_order_relaxed);
}

/* Return offsets in a rank's part of the window. hpc_told_at: where a rank gets the answer of a share. hpc_number_at:
 * where the share's owner gets the version of the update that rank from has in a slot. hpc_passed_at, with several
 * stages: where the owner of a relay gets the outcome that comes with the parameters. */
static inline size_t hpc_told_at(const hpc_scheme *sc, int rank, int share) {
    return sc->layout.places[rank].own + hpc_quorum_of(sc)->from + (size_t)share * sizeof(hpc_told);
}
static inline size_t hpc_number_at(const hpc_scheme *sc, const hpc_share *share, int from, int slot) {
    size_t at = (size_t)share->at * (size_t)sc->context->group.size + (size_t)from;
    return hpc_told_at(sc, share->owner, sc->layout.n_shares) +
           (at * (size_t)sc->layout.depth + (size_t)slot) * sizeof(uint64_t);
}
static inline size_t hpc_passed_at(const hpc_scheme *sc, int row) {
    const int owner = sc->plan->rows[row].owner;
    const size_t numbers =
        (size_t)sc->layout.places[owner].shares * (size_t)sc->context->group.size * (size_t)sc->layout.depth;
    return hpc_told_at(sc, owner, sc->layout.n_shares + row) + numbers * sizeof(uint64_t);
}
/* Among peers a verdict consists of 64-bit words. If the first word is 0, the bits of the other words mark the ranks
 * whose updates are in the next fold. Otherwise the first word is 1 + the rank whose update is left out. hpc_verdict_at
 * returns a verdict's offset in the part of the share's owner. */
static inline size_t hpc_verdict_words(const hpc_scheme *sc) {
    return 1 + ((size_t)sc->context->group.size + 63) / 64;
}
static inline size_t hpc_verdict_at(const hpc_scheme *sc, const hpc_share *share, uint64_t n) {
    const size_t shares = (size_t)sc->layout.places[share->owner].shares, most = (size_t)hpc_quorum_of(sc)->room;
    const size_t numbers = shares * (size_t)sc->context->group.size * (size_t)sc->layout.depth;
    const size_t words = numbers + ((size_t)share->at * most + n % most) * hpc_verdict_words(sc);
    return hpc_told_at(sc, share->owner, sc->layout.n_shares) + words * sizeof(uint64_t);
}
static inline hpc_told *hpc_told_here(const hpc_scheme *sc, size_t at) {
    return (hpc_told *)(void *)(hpc_own_part(sc) + at);
}

/* Returns whether a row forwards its group's fold to a row that applies the rule. */
static inline int hpc_forwards_to_rule(const hpc_plan *plan, const hpc_row *row) {
    for (int e = 0; e < row->n_out && row->action == HPC_FORWARD; e++)
        if (plan->rows[row->out[e].row].action == HPC_APPLY) return 1;
    return 0;
}

/* ---- fold and apply in two calls (split_quorum.c) ---- */

static inline hpc_asker *hpc_asker_of(const hpc_share *share, int rank) {
    return &((const hpc_quorum_share *)share->own)->askers[rank];
}
/* Returns whether this rank has applied or skipped every mean that the owners of a key kept. */
static inline int hpc_asker_is_over(const hpc_scheme *sc, int key) {
    return !hpc_split_ask_of(sc, key)->keeps && hpc_ticket_is_done(sc, key, hpc_split_last_pull(sc, key));
}
/* Returns where in a worker's part the owner of share s writes the version of the parameters. */
static inline size_t hpc_version_at(const hpc_scheme *sc, int rank, int s) {
    return hpc_split_squares_at(sc, rank, s) + (size_t)sc->layout.shares[s].n_rows * sizeof(double);
}
/* Returns the version of this rank's parameters of a share, which the owner writes with the answer to a pull. While a
 * pull is pending the owner may write that word, so the version of the pull before is returned. */
static inline uint64_t hpc_asker_heard(const hpc_scheme *sc, int s) {
    const hpc_share *share = &sc->layout.shares[s];
    if (hpc_outlet_of(share) == NULL) return 0;
    if (!hpc_share_has_answered(sc, s, hpc_split_last_pull(sc, share->key))) return hpc_outlet_of(share)->pulled;
    return *(const uint64_t *)(const void *)(hpc_own_part(sc) + hpc_version_at(sc, hpc_me(sc), s));
}

/* ---- among peers (peers_quorum.c) ---- */

static inline int hpc_has_decider(const hpc_scheme *sc) {
    return (sc->discipline->traits & HPC_DECIDES) != 0;
}
/* Returns the share at which this rank's pushes to its own share are counted: that share itself, or its decider's. */
static inline const hpc_share *hpc_decider_of(const hpc_scheme *sc, const hpc_share *share) {
    return hpc_has_decider(sc) ? &sc->layout.shares[((const hpc_quorum_share *)share->own)->decider] : share;
}

/* ---- common to disciplines with a quorum ---- */

int hpc_quorum_check(const hpc_context *c, const hpc_exchange_config *f);
int hpc_quorum_plan(hpc_scheme *sc, const char *op);
int hpc_quorum_open(hpc_scheme *sc, const char *op);
/* Called when an input of a row that forwards has come. If the input is this rank's push, tells the next rows its
 * version. */
void hpc_quorum_say_version(hpc_core *core, const hpc_work *w, int input, int slot);

/* ---- the owner's side ---- */

int hpc_intake_open(hpc_scheme *sc, const char *op); /* as hpc_discipline.open */
/* Fails the exchange: a rank has sent a second update before its first was answered. Returns 1. */
int hpc_intake_refuse_second(hpc_scheme *sc, const hpc_share *share, int rank);
/* Slots of hpc_discipline. Rows are announced one by one only in plans of several stages. */
int hpc_intake_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_intake_came(hpc_core *core, hpc_work *w, int input, int slot, int how);      /* how: HPC_CAME, HPC_CAME_EMPTY */
int hpc_intake_empty_came(hpc_core *core, hpc_share *share, const hpc_event *event); /* HPC_OP_EMPTY has come */
int hpc_intake_work(hpc_core *core);
/* Among peers: handles a vote: rank has put the version of its push for a share whose owner is this deciding rank. */
int hpc_intake_vote_came(hpc_core *core, hpc_share *share, int rank, int slot);
/* hpc_intake_fold folds the updates that the intake takes; returns nonzero if the exchange has failed.
 * hpc_intake_answer answers one sender. */
int hpc_intake_fold(hpc_core *core, hpc_share *share, uint64_t version);
void hpc_intake_answer(hpc_core *core, const hpc_share *share, int sender, hpc_told outcome);
/* Returns the inputs of a row that the last fold took, except updates without values. */
hpc_inputs hpc_intake_inputs(hpc_core *core, const hpc_work *w);
/* Adds a share to the shares that the core looks at, or removes it when nothing waits in it. */
void hpc_intake_look_after(hpc_core *core, hpc_share *share);
/* Sends a sender the newest parameters. */
void hpc_intake_send_params(hpc_core *core, const hpc_share *share, int sender);
/* Returns whether a sender has closed, and all that it had sent has come. */
int hpc_intake_is_gone(const hpc_core *core, int sender);
/* Used as note at HPC_ON_PUBLISHED: tells the workers of this rank's shares which version was folded last. */
int hpc_intake_tell(hpc_scheme *sc);

/* ---- the worker's side: hpc_discipline's slots ---- */

int hpc_outlet_may_push(hpc_scheme *sc, int key, const char *op);
int hpc_outlet_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
int hpc_outlet_send_share(hpc_scheme *sc, int s, int slot, hpc_limit *l);
int hpc_outlet_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op);
int hpc_outlet_has_read(const hpc_scheme *sc, int s, uint64_t ticket);
int hpc_outlet_missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found);
int hpc_outlet_missing_in_groups(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found);
void hpc_outlet_restored(hpc_scheme *sc, const hpc_work *w, uint64_t step);

#endif
