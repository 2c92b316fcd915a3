/* A quorum: a fold that goes on without stragglers (quorum.c says how). quorum_owner.c is the owner's side, and
 * quorum_worker.c the worker's. A sender is as in discipline/clocks.h: a rank, or with several stages a group of ranks.
 */
#ifndef HPC_QUORUM_STATE_H
#define HPC_QUORUM_STATE_H

#include "discipline/graph.h"
#include "discipline/clocks.h"
#include "discipline/split_state.h"
#include "engine/owner/row.h"
#include "engine/worker/ticket.h"

/* The words that the owner of a share writes behind its answer to the sender of an update, at told_at. */
typedef struct hpc_told {
    uint64_t folded, used; /* the version that was folded last; 1 or 0: the update was used, or left out */
} hpc_told;

/* An owner's notes of a sender to a share, beside its clock. The owner's core writes them; others read the atomic
 * member alone. */
typedef struct hpc_sender {
    _Atomic uint64_t waits; /* the version of the update in its slot; 0: the slot is free */
    uint64_t newest;        /* the newest version that came */
    hpc_told told;          /* the last answer, which a put may still read */
} hpc_sender;

/* The inputs of a share that this rank owns. The core's own, but for the atomic members. */
typedef struct hpc_intake {
    hpc_sender *senders;      /* by rank, of a group the lowest */
    char *takes;              /* the same: whether its update is in the present fold */
    int *from, n_from;        /* all senders, this rank or its group last; on a graph the in-neighbours alone */
    int held;                 /* how many updates wait */
    uint64_t pushes;          /* on a graph: pushes of this rank itself that came; they lead its folds */
    int place;                /* in core->clocked->shares */
    double since;             /* when the next fold had its quorum; 0: it has not */
    hpc_usual lag;            /* from the quorum until the others are there */
    _Atomic uint64_t folded;  /* the version that was folded last */
    _Atomic double grace;     /* seconds that a fold waits for the others */
    _Atomic uint64_t reached; /* on a graph: the newest version that a quorum has brought */
    _Atomic uint64_t ended;   /* likewise: updates up to this version count in no fold any more */
    /* Among peers: the version that was decided last; verdicts that this rank has given, and that the share has
     * followed. */
    uint64_t decided, given, followed;
    int partial; /* verdicts may be about ranks whose updates do not come here: the share is always looked at */
} hpc_intake;

/* Counts of the pushes of this rank to the owner of a share, or with several stages to the rows whose parameters the
 * share sends it. The worker's own. */
typedef struct hpc_outlet {
    uint64_t decided;         /* pushes up to this one were sent, or dropped */
    uint64_t sent, answered;  /* how many of these pushes; at most one is on its way */
    uint64_t used, told;      /* folded there; the version that was folded there last */
    uint64_t under_way, lost; /* the push that was sent last; the one that was left out last */
    uint64_t carried;         /* the push whose data was put last; its event may not be sent yet */
    uint64_t version;         /* of the update that was sent last; a put may still read it */
    uint64_t pulled;          /* the version of the parameters that the last pull brought, when the next one began */
    size_t staged;            /* the offset of the copy that is sent, in this rank's part; HPC_NOWHERE: no copy */
    int pending;              /* decided is behind */
} hpc_outlet;

/* Fold and apply in two calls: an owner's notes of a sender to a share, beside the others. The owner's core writes
 * them; others read the atomic members alone. */
typedef struct hpc_asker {
    _Atomic int in_mean; /* its update is in the mean that is kept */
    _Atomic int asks;    /* its last pull has no answer yet */
    hpc_use use;         /* of that pull */
    int after, doubts;   /* likewise: the low bits of how many updates came before it; see split_quorum.c */
    uint64_t version;    /* sent with answers to pulls: the version of the parameters, and */
    double *squares;     /* by place, the squares; a put may still read either */
} hpc_asker;

/* The fate of the last mean. */
typedef struct hpc_decided {
    int rank; /* that has said so; -1: all ranks with updates in it have closed */
    int gets; /* the sender to which it has brought parameters, until that is answered; -1: none */
    hpc_use use;
    double scale;
    int doubts;
} hpc_decided;

/* The state that hangs on a share. A worker that serves has both sides. A share that relays passes the outcome of an
 * update on to the ranks that it answers; its core alone uses that. */
typedef struct hpc_quorum_share {
    hpc_split_means means; /* the first: where fold and apply are two calls hpc_share.own is that too */
    hpc_asker *askers;     /* by rank; NULL: one call */
    hpc_decided decided;
    int sends;
    int decider; /* among peers the share of the rank that decides */
    hpc_intake intake;
    hpc_outlet outlet;
    hpc_told passed; /* a put may still read it */
    int left_out;    /* some rows of the reply that is coming say that the update was left out */
} hpc_quorum_share;

/* A worker's view of a key. */
typedef struct hpc_key_versions {
    uint64_t number;                  /* the version that its last push is for */
    uint64_t numbers[HPC_PLAN_DEPTH]; /* the versions of the pushes in the slots */
    char empty[HPC_PLAN_DEPTH];       /* by slot: the push says that its worker has no gradient */
    double waits_since;               /* since when a push waits for neighbours to take an earlier one; 0: none does */
} hpc_key_versions;

/* The use of a share's folds, where it is not to apply them at once. The core's. */
typedef struct hpc_keeping {
    /* A row has its inputs. Nonzero when the exchange has failed. */
    int (*fold)(hpc_core *core, hpc_work *w, int place);
    /* All rows are folded: their senders hear of it next. */
    void (*keep)(hpc_share *share);
    /* Before a fold is looked for: returns how much was done, or -1 after a failure. *waits: the next fold has to wait.
     */
    int (*work)(hpc_core *core, hpc_share *share, int *waits);
} hpc_keeping;

/* The way of verdicts among peers. The core's. */
typedef struct hpc_verdicts {
    /* Says that the update of rank left_out is left out; or -1: that a fold takes the updates marked in the intake. */
    void (*give)(hpc_core *core, const hpc_share *share, int left_out);
    /* Carries out a share's verdicts, as far as its inputs are there: returns how many, or -1 after a failure. */
    int (*follow)(hpc_core *core, hpc_share *share);
} hpc_verdicts;

/* The exchange's own. */
typedef struct hpc_quorum {
    hpc_split split;            /* the first: where fold and apply are two calls hpc_scheme.own is that too */
    const hpc_keeping *keeping; /* NULL: folds are applied */
    size_t from;                /* the bytes that split takes of a rank's part, before the rest */
    uint64_t lost; /* the last version whose means this rank misses in part, or whose means miss some of its updates */
    int n_gathers; /* keys whose last pull is a gather that may have found no mean: not looked at yet */
    hpc_key_versions *keys;
    uint64_t number;              /* the version that keys are pushed for */
    char *given_up;               /* by rank: it let a push wait in vain, and has answered none since */
    int n_pending;                /* how many outlets are pending */
    uint64_t *of_ranks;           /* a number of each */
    uint64_t told;                /* with several stages: the newest version when a state was loaded last */
    const hpc_verdicts *verdicts; /* NULL: owners decide for themselves */
    int room;                     /* verdicts that a share has room for */
} hpc_quorum;

static inline int hpc_me(const hpc_scheme *sc) {
    return sc->context->group.rank;
}

/* Whether updates come from groups of ranks. */
static inline int hpc_in_groups(const hpc_scheme *sc) {
    return sc->group_of != NULL;
}

static inline hpc_quorum *hpc_quorum_of(const hpc_scheme *sc) {
    return sc->own;
}

static inline hpc_key_versions *hpc_versions_of(const hpc_scheme *sc, int key) {
    return &hpc_quorum_of(sc)->keys[key];
}

/* NULL for a share whose updates this rank does not apply. */
static inline hpc_intake *hpc_intake_of(const hpc_share *share) {
    hpc_quorum_share *its = share->own;
    return share->clocks != NULL ? &its->intake : NULL;
}

/* NULL for a share to whose owner this rank sends nothing, on a graph that is itself too; with several stages NULL for
 * a share that does not answer this rank. */
static inline hpc_outlet *hpc_outlet_of(const hpc_share *share) {
    hpc_quorum_share *its = share->own;
    return its != NULL && its->sends ? &its->outlet : NULL;
}

/* The version that was folded last, and the version of a sender's update that waits (0: none does), in a share of this
 * rank's own. */
static inline uint64_t hpc_folded_of(const hpc_share *share) {
    return atomic_load_explicit(&hpc_intake_of(share)->folded, memory_order_acquire);
}
static inline uint64_t hpc_version_from(const hpc_share *share, int sender) {
    return atomic_load_explicit(&hpc_intake_of(share)->senders[sender].waits, memory_order_relaxed);
}

/* Offsets in a rank's part of the window: of the answer for a share; at the owner of a share of the version of the
 * update that rank from has in a slot; and, with several stages, at the owner of a row that relays of the outcome,
 * which comes beside the parameters. */
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
/* Among peers a verdict is words: 0 and then bits, of the ranks whose updates are in the next fold; or 1 more than the
 * rank whose update is left out. Its offset in the part of the owner of a share. */
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

/* Whether a row forwards its group's fold to a row that applies. */
static inline int hpc_forwards_to_rule(const hpc_plan *plan, const hpc_row *row) {
    for (int e = 0; e < row->n_out && row->action == HPC_FORWARD; e++)
        if (plan->rows[row->out[e].row].action == HPC_APPLY) return 1;
    return 0;
}

/* ---- fold and apply in two calls (split_quorum.c) ---- */

static inline hpc_asker *hpc_asker_of(const hpc_share *share, int rank) {
    return &((const hpc_quorum_share *)share->own)->askers[rank];
}
/* Whether the owners of a key have no mean that this rank's calls have not ended. */
static inline int hpc_asker_is_over(const hpc_scheme *sc, int key) {
    return !hpc_split_ask_of(sc, key)->keeps && hpc_ticket_is_done(sc, key, hpc_split_last_pull(sc, key));
}
/* The place in a worker's part for the version of a share's parameters. */
static inline size_t hpc_version_at(const hpc_scheme *sc, int rank, int s) {
    return hpc_split_squares_at(sc, rank, s) + (size_t)sc->layout.shares[s].n_rows * sizeof(double);
}
/* The version of this rank's parameters of a share, by the answer to its last pull. While a pull is pending the owner
 * may be writing that word. */
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
/* The share at which a rank's pushes to its own share are counted: that itself, or its decider's. */
static inline const hpc_share *hpc_decider_of(const hpc_scheme *sc, const hpc_share *share) {
    return hpc_has_decider(sc) ? &sc->layout.shares[((const hpc_quorum_share *)share->own)->decider] : share;
}

/* ---- common to disciplines with a quorum ---- */

int hpc_quorum_check(const hpc_context *c, const hpc_exchange_config *f);
int hpc_quorum_plan(hpc_scheme *sc, const char *op);
int hpc_quorum_open(hpc_scheme *sc, const char *op);
/* An input has come to a row that forwards: where it is this rank's push, says its version to the next rows. */
void hpc_quorum_say_version(hpc_core *core, const hpc_work *w, int input, int slot);

/* ---- the owner's side ---- */

int hpc_intake_open(hpc_scheme *sc, const char *op); /* as hpc_discipline.open */
/* Fails the exchange: there is room for one update of a sender. Returns 1. */
int hpc_intake_refuse_second(hpc_scheme *sc, const hpc_share *share, int rank);
/* hpc_discipline's slots. Rows come one by one in plans of several stages alone. */
int hpc_intake_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_intake_came(hpc_core *core, hpc_work *w, int input, int slot, int how); /* the same, as HPC_CAME or empty */
int hpc_intake_empty_came(hpc_core *core, hpc_share *share, const hpc_event *event); /* HPC_OP_EMPTY */
int hpc_intake_work(hpc_core *core);
/* Among peers: a rank has put the version of its push beside a share that decides. */
int hpc_intake_vote_came(hpc_core *core, hpc_share *share, int rank, int slot);
/* Folds the updates that the intake takes; nonzero when the exchange has failed. Answers a sender. */
int hpc_intake_fold(hpc_core *core, hpc_share *share, uint64_t version);
void hpc_intake_answer(hpc_core *core, const hpc_share *share, int sender, hpc_told outcome);
/* The updates of a row in the last fold that bring something. */
hpc_inputs hpc_intake_inputs(hpc_core *core, const hpc_work *w);
/* Adds a share to those at which the core looks, or takes it away when nothing waits in it. */
void hpc_intake_look_after(hpc_core *core, hpc_share *share);
/* Sends a sender the newest parameters. */
void hpc_intake_send_params(hpc_core *core, const hpc_share *share, int sender);
/* Whether a sender has closed, and all that it had sent has come. */
int hpc_intake_is_gone(const hpc_core *core, int sender);
/* HPC_ON_PUBLISHED: tells the workers of this rank's shares which version was folded last. */
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
