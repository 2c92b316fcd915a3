/* The owner's side of a quorum: the steps that servers (server_intake.c) and graphs (graph_intake.c) share. */
#ifndef HPC_QUORUM_INTAKE_H
#define HPC_QUORUM_INTAKE_H

#include "discipline/quorum.h"

/* ---- updates that came ---- */

/* The version that rank has put beside its update in a slot. */
static inline uint64_t hpc_number_of(const hpc_engine *en, const hpc_share *share, int rank, int slot) {
    return *(const uint64_t *)(const void *)(hpc_own_part(en) + hpc_number_at(en, share, rank, slot));
}

/* Whether a push that leads a fold has come and is not folded. */
static inline int hpc_intake_is_led(const hpc_share *share) {
    return hpc_intake_of(share)->pushes > share->version;
}

/* Fails the exchange: there is room for one update of a sender. */
int hpc_intake_refuse_second(hpc_engine *en, const hpc_share *share, int rank);
/* Keeps a sender's update until it is folded or left out. Returns whether it is the newest of that sender. */
int hpc_intake_hold(hpc_core *core, hpc_share *share, int sender, int slot, uint64_t number);
void hpc_intake_release(hpc_share *share, int sender);
/* Adds a share to those at which the core looks, or takes it away when nothing waits in it. */
void hpc_intake_watch(hpc_core *core, hpc_share *share);
/* The slot of a sender's update, as rows read it. */
int hpc_intake_slot(const hpc_engine *en, const hpc_share *share, const hpc_input *in);

/* ---- answers ---- */

/* Says what has become of a sender's update: to this rank's own memory, from which it is put. The last word has been
 * read, for the update came after it. */
void hpc_intake_decide(const hpc_share *share, int sender, uint64_t folded, int used);
/* Answers a sender's update: after this its next one may be written. With several stages relays answer the ranks that
 * get parameters from them. */
void hpc_intake_answer(hpc_core *core, const hpc_share *share, int sender);
/* Calls drop, which leaves a sender's update out, for the updates that are older than version least. folded: the
 * version that was folded last. Returns how many there were. */
typedef void hpc_intake_drop(hpc_core *core, hpc_share *share, int sender, uint64_t folded);
int hpc_intake_drop_before(hpc_core *core, hpc_share *share, uint64_t least, uint64_t folded, hpc_intake_drop *drop);

/* ---- when ---- */

/* How many senders have brought an update for a version, may still bring it, are expected to bring it soon. */
typedef struct hpc_survey {
    int brought, open, expected;
} hpc_survey;

/* Adds a sender, which has brought an update for a version or has not. */
void hpc_survey_add(hpc_survey *found, const hpc_core *core, const hpc_share *share, int sender, uint64_t version,
                    int brought);
/* Whether a fold that has its quorum is to be made now. */
int hpc_intake_is_due(hpc_core *core, const hpc_share *share, const hpc_survey *found, uint64_t version);

/* ---- folds ---- */

/* The fold of a version is made. */
void hpc_intake_end_fold(hpc_share *share, uint64_t version);
/* Counts it: of so many senders n were in it. */
void hpc_intake_count_fold(hpc_core *core, int senders, int n);

/* hpc_discipline.work. step does what it is time for in a share: drops, then a fold. It returns how much was done; -1
 * after a failure. */
typedef int hpc_intake_step(hpc_core *core, hpc_share *share);
int hpc_intake_work(hpc_core *core, hpc_intake_step *step);

/* Finds the senders of all shares, when their parts are known. */
void hpc_intake_open(hpc_engine *en);

#endif
