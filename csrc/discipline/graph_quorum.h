/* A quorum on a graph (graph_quorum.c says how it works): the state of its owner's and of its worker's side. */
#ifndef HPC_GRAPH_QUORUM_H
#define HPC_GRAPH_QUORUM_H

#include "discipline/graph.h"

static inline int hpc_me(const hpc_exchange *ex) {
    return ex->context->group.rank;
}

/* The version of an update, in front of it in its slot. */
typedef struct hpc_slot_head {
    _Alignas(64) _Atomic uint64_t version;
} hpc_slot_head;

/* What the owner of a share writes behind its answer to the sender of an update, at told_at. */
typedef struct hpc_told {
    uint64_t folded, used; /* the version that was folded last; how many of the sender's updates were */
} hpc_told;

/* The inputs of a share that this rank owns. The core's own, but for the atomic members. */
typedef struct hpc_intake {
    hpc_clocks clocks;        /* clock: the newest version that came; for this rank itself the number of its pushes */
    _Atomic uint64_t folded;  /* the version that was folded last */
    _Atomic uint64_t *taken;  /* by rank: updates that were folded, or dropped, and answered */
    char *present;            /* by rank: its update is there and in time */
    hpc_told *told;           /* by rank: the last answer, which a put may still read */
    double since;             /* when the next fold had its quorum; 0: it has not */
    hpc_usual lag;            /* from the quorum until the others are there */
    _Atomic double grace;     /* seconds that a fold waits for the others */
    _Atomic uint64_t reached; /* the newest version that a quorum has brought */
} hpc_intake;

/* What this rank has sent to a share of an out-neighbour. The worker's own. */
typedef struct hpc_outlet {
    int mine;                     /* this rank's own share of the same key and core */
    uint64_t decided;             /* pushes up to this one were sent, or dropped */
    uint64_t sent, answered;      /* how many of these pushes; at most one is on its way */
    uint64_t used, dropped, told; /* folded there; left out; the version that was folded there last */
    uint64_t under_way, lost;     /* the push that was sent last; the one that was left out last */
    uint64_t version;             /* of the update that was sent last; a put may still read it */
    size_t staged;                /* where the copy to send lies in this rank's part; HPC_NOWHERE if nothing travels */
    int pending;                  /* decided is behind */
} hpc_outlet;

/* A worker's view of a key. */
typedef struct hpc_key_versions {
    uint64_t number;                  /* the version that its last push is for */
    uint64_t numbers[HPC_PLAN_DEPTH]; /* the versions of the pushes in the slots */
    double waits_since;               /* since when a push waits for neighbours to take an earlier one; 0: none does */
} hpc_key_versions;

/* The exchange's own. */
typedef struct hpc_graph_quorum {
    hpc_key_versions *keys;
    uint64_t number; /* the version that keys are pushed for */
    char *given_up;  /* by rank: it let a push wait in vain, and has answered none since */
    int n_pending;   /* how many outlets are pending */
} hpc_graph_quorum;

/* A core's own. */
typedef struct hpc_quorum_watch {
    hpc_own_shares own;
    char *absent; /* by rank: it let a fold wait in vain, and has sent nothing since */
} hpc_quorum_watch;

static inline hpc_graph_quorum *hpc_quorum_of(const hpc_exchange *ex) {
    return ex->own;
}

static inline hpc_key_versions *hpc_versions_of(const hpc_exchange *ex, int key) {
    return &hpc_quorum_of(ex)->keys[key];
}

/* NULL for a share of another rank. */
static inline hpc_intake *hpc_intake_of(const hpc_exchange *ex, const hpc_share *share) {
    return share->owner == hpc_me(ex) ? share->own : NULL;
}

/* NULL for a share of this rank's own, and for one that it does not push. */
static inline hpc_outlet *hpc_outlet_of(const hpc_exchange *ex, const hpc_share *share) {
    return share->owner == hpc_me(ex) ? NULL : share->own;
}

/* How many updates rank has sent to this rank's share. acquire: their data was written before the signal. */
static inline uint64_t hpc_sent_by(const hpc_exchange *ex, const hpc_share *share, int rank) {
    const hpc_intake *in = share->own;
    int signal = hpc_signal_second(ex, in->clocks.siblings[rank]);
    return atomic_load_explicit(hpc_own_signal(ex->window, signal), memory_order_acquire);
}

static inline int hpc_has_sent(const hpc_exchange *ex, const hpc_share *share, int rank) {
    const hpc_intake *in = share->own;
    return hpc_sent_by(ex, share, rank) > atomic_load_explicit(&in->taken[rank], memory_order_acquire);
}

/* The offset of the answer for a share, in rank's part of the window. */
static inline size_t hpc_told_at(const hpc_exchange *ex, int rank, int share) {
    return ex->layout.places[rank].own + (size_t)share * sizeof(hpc_told);
}

/* ---- the owner (graph_intake.c): hpc_discipline's slots ---- */

int hpc_intake_work(hpc_core *core);
int hpc_intake_share_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_intake_row_came(hpc_core *core, hpc_work *w, int input, int slot);

/* ---- the worker (graph_outlet.c) ---- */

/* Sends the pending pushes whose slots are free by now. */
int hpc_outlet_send_all(hpc_exchange *ex);
int hpc_outlet_send_key(hpc_exchange *ex, int key);
/* Drops pushes up to n that are not sent, so that their slots are free: only for the neighbours that let a push wait in
 * vain before; with all, for every neighbour. */
void hpc_outlet_give_up(hpc_exchange *ex, int key, uint64_t n, int all);
/* Collective, while no rank has a push under way: all go on from one version, and earlier updates are left out. */
int hpc_outlet_level(hpc_exchange *ex, const char *op, double deadline);
/* The version of this rank's next step. */
uint64_t hpc_outlet_next_version(const hpc_exchange *ex);
/* How many seconds neighbours are given to take an update. */
double hpc_outlet_patience(const hpc_exchange *ex, int key);
/* How many shares of this rank's updates rank has left out, and the newest version that any of them met; -1: all. */
uint64_t hpc_outlet_dropped(const hpc_exchange *ex, int rank, uint64_t *at);
/* How many shares of the last push of key were left out; the newest version that is folded of it. */
int hpc_outlet_late(const hpc_exchange *ex, int key);
uint64_t hpc_outlet_version(const hpc_exchange *ex, int key);

#endif
