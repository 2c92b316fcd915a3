/* A quorum: the state of its owner's and of its worker's side, and the steps of quorum_common.c (quorum.c,
 * graph_quorum.c and groups_quorum.c say how it works). A sender is a rank; with several stages it is a group of ranks,
 * which is known by its lowest one. */
#ifndef HPC_QUORUM_H
#define HPC_QUORUM_H

#include "discipline/graph.h"
#include "engine/clocks.h"

/* The words that the owner of a share writes behind its answer to the sender of an update, at told_at. */
typedef struct hpc_told {
    uint64_t folded, used; /* the version that was folded last; how many of the sender's updates were */
} hpc_told;

/* An owner's notes of one sender to a share. The owner's core writes them; others read the atomic member alone. */
typedef struct hpc_sender {
    _Atomic uint64_t waits; /* the version of the update in its slot; 0: the slot is free */
    int slot;               /* of that update */
    int rows_came;          /* of an update that comes row by row */
    uint64_t coming;        /* the version of that update */
    uint64_t newest;        /* the newest version that came */
    uint64_t answered;      /* updates that were folded, or left out */
    hpc_told told;          /* the last answer, which a put may still read */
    hpc_told passed;        /* the same for relays: used is 1 or 0, of this update alone */
} hpc_sender;

/* The inputs of a share that this rank owns. The core's own, but for the atomic members. */
typedef struct hpc_intake {
    hpc_sender *senders;      /* by rank, of a group the lowest */
    char *takes;              /* the same: whether its update is in the present fold */
    int *from, n_from;        /* all senders, this rank or its group last */
    int held;                 /* how many updates wait */
    uint64_t pushes;          /* pushes of this rank itself that came, where they lead folds; else 0 */
    int watched, place;       /* whether it is among the core's watched shares, and where */
    double since;             /* when the next fold had its quorum; 0: it has not */
    hpc_usual lag;            /* from the quorum until the others are there */
    _Atomic uint64_t folded;  /* the version that was folded last */
    _Atomic double grace;     /* seconds that a fold waits for the others */
    _Atomic uint64_t reached; /* on a graph: the newest version that a quorum has brought */
} hpc_intake;

/* Counts of what this rank has sent to the owner of a share, or with several stages to the rows whose parameters the
 * share sends it. The worker's own. */
typedef struct hpc_outlet {
    uint64_t decided;             /* pushes up to this one were sent, or dropped */
    uint64_t sent, answered;      /* how many of these pushes; at most one is on its way */
    uint64_t used, dropped, told; /* folded there; left out; the version that was folded there last */
    uint64_t under_way, lost;     /* the push that was sent last; the one that was left out last */
    uint64_t dropped_at;          /* the version that had been folded when that one was left out */
    uint64_t carried;             /* the push whose data was put last; its event may not be sent yet */
    uint64_t version;             /* of the update that was sent last; a put may still read it */
    size_t staged;                /* the offset of the copy that is sent, in this rank's part; HPC_NOWHERE: no copy */
    int pending;                  /* decided is behind */
} hpc_outlet;

/* The outcome of an update as it arrives at the relays of a share of this rank, which passes it on to the ranks that it
 * answers. Its core alone uses it. */
typedef struct hpc_passing {
    hpc_told told; /* a put may still read it */
    int left_out;  /* some rows of the reply that is coming say that the update was left out */
} hpc_passing;

/* The state that hangs on a share. A worker that serves has both. */
typedef struct hpc_quorum_share {
    int owns, sends;
    hpc_intake intake;
    hpc_outlet outlet;
    hpc_passing passing;
} hpc_quorum_share;

/* A worker's view of a key. */
typedef struct hpc_key_versions {
    uint64_t number;                  /* the version that its last push is for */
    uint64_t numbers[HPC_PLAN_DEPTH]; /* the versions of the pushes in the slots */
    double waits_since;               /* since when a push waits for neighbours to take an earlier one; 0: none does */
} hpc_key_versions;

/* The exchange's own. */
typedef struct hpc_quorum {
    hpc_key_versions *keys;
    uint64_t number; /* the version that keys are pushed for */
    char *given_up;  /* by rank: it let a push wait in vain, and has answered none since */
    int n_pending;   /* how many outlets are pending */
    uint64_t told;   /* with several stages: the newest version when a state was loaded last */
    int *passed_at;  /* by row that relays: its number among those of its owner */
} hpc_quorum;

/* A core's own; arrays are by rank, of a group the lowest. */
typedef struct hpc_quorum_watch {
    hpc_share **shares; /* those with an update, or an own push, that is not folded */
    int n;
    char *absent;        /* it let a fold wait in vain, and has sent nothing since */
    char *closes, *gone; /* it has closed; and everything that it sent before has been taken */
} hpc_quorum_watch;

static inline int hpc_me(const hpc_engine *en) {
    return en->context->group.rank;
}

static inline hpc_quorum *hpc_quorum_of(const hpc_engine *en) {
    return en->own;
}

static inline hpc_key_versions *hpc_versions_of(const hpc_engine *en, int key) {
    return &hpc_quorum_of(en)->keys[key];
}

/* The sender that a rank's pushes are in, of all keys. */
static inline int hpc_quorum_sender(const hpc_engine *en, int rank) {
    return hpc_sender_of(en, 0, rank);
}

/* NULL for a share of another rank. */
static inline hpc_intake *hpc_intake_of(const hpc_share *share) {
    hpc_quorum_share *its = share->own;
    return its != NULL && its->owns ? &its->intake : NULL;
}

/* NULL for a share to whose owner this rank sends nothing, on a graph that is itself too; with several stages NULL for
 * a share that does not answer this rank. */
static inline hpc_outlet *hpc_outlet_of(const hpc_share *share) {
    hpc_quorum_share *its = share->own;
    return its != NULL && its->sends ? &its->outlet : NULL;
}

/* The version of a sender's update that waits in a share of this rank's own; 0: none does. */
static inline uint64_t hpc_version_from(const hpc_share *share, int rank) {
    return atomic_load_explicit(&hpc_intake_of(share)->senders[rank].waits, memory_order_relaxed);
}

/* Offsets in a rank's part of the window: of the answer for a share, and at the owner of a share of the version of the
 * update that rank from has in a slot. */
static inline size_t hpc_told_at(const hpc_engine *en, int rank, int share) {
    return en->layout.places[rank].own + (size_t)share * sizeof(hpc_told);
}

static inline size_t hpc_number_at(const hpc_engine *en, const hpc_share *share, int from, int slot) {
    size_t at = (size_t)share->at * (size_t)en->context->group.size + (size_t)from;
    return hpc_told_at(en, share->owner, en->layout.n_shares) +
           (at * (size_t)en->layout.depth + (size_t)slot) * sizeof(uint64_t);
}

/* The offset of a relaying row's outcome (hpc_passing), which comes beside the parameters, in the part of the row's
 * owner. Only plans of several stages have it. */
static inline size_t hpc_passed_at(const hpc_engine *en, int row) {
    const int owner = en->plan->rows[row].owner;
    return hpc_told_at(en, owner, en->layout.n_shares) +
           (size_t)en->layout.places[owner].shares * (size_t)en->context->group.size * (size_t)en->layout.depth *
               sizeof(uint64_t) +
           (size_t)hpc_quorum_of(en)->passed_at[row] * sizeof(hpc_told);
}

/* Whether a row forwards what its group has pushed: to a row that applies. */
static inline int hpc_forwards_to_rule(const hpc_plan *plan, const hpc_row *row) {
    for (int e = 0; e < row->n_out && row->action == HPC_FORWARD; e++)
        if (plan->rows[row->out[e].row].action == HPC_APPLY) return 1;
    return 0;
}

/* hpc_discipline.check, of what does not depend on rows: servers and their quorum. */
int hpc_quorum_check_servers(const hpc_exchange_config *config);
/* hpc_discipline's slots. */
size_t hpc_quorum_part(const hpc_engine *en, int rank);
int hpc_quorum_prepare(hpc_engine *en, const hpc_exchange_config *config, const char *op);
void hpc_quorum_free(hpc_engine *en);
/* The same of a worker of servers, and of any worker. */
int hpc_quorum_may_push(hpc_engine *en, int key, const char *op);
int hpc_quorum_ended(hpc_engine *en, int key, const char *op);
void hpc_quorum_closing(hpc_engine *en);
/* Opens the cores. Each fold is counted by its inputs, less those that do not count. */
int hpc_quorum_open_cores(hpc_engine *en, int less, const char *op);
/* Makes a share's own, of a share that this rank owns with an intake. */
int hpc_quorum_open_share(const hpc_engine *en, hpc_share *share, int owns, int sends, const char *op);
/* Chooses the version of the next push of key. A key that is pushed again begins a step, whose version next tells. */
void hpc_quorum_choose_version(hpc_engine *en, int key, uint64_t (*next)(const hpc_engine *en));

#endif
