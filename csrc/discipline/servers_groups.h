/* Groups of ranks whose updates are folded before they come to a row that applies the rule: with several stages each
 * input of such a row comes from a group, a host or a rack. A rank that pushes directly to the row is a group of one. A
 * group's lowest rank stands for it. Plans are refused unless the groups are the same in all rows of a key, the group
 * that sends an update gets the parameters, and a core folds or relays for one group of a key. */
#ifndef HPC_GROUPING_H
#define HPC_GROUPING_H

#include "discipline/clocks.h"

/* Returns whether rows of a plan send to other rows. */
int hpc_plan_has_stages(const hpc_plan *plan);
/* Looks for two rows that apply the same elements, as in plans whose receivers apply. Returns the second row and sets
 * *other to the first; returns -1 if there are no such rows. */
int hpc_plan_find_copy(const hpc_plan *plan, int *other);

/* Finds the groups of an exchange whose shares are known; from then on they are its senders (hpc_sender_of). Called as
 * hpc_discipline.plan. */
int hpc_groups_find(hpc_scheme *sc, const char *op);
/* Does the same, but uses the inputs of the rows for which the function folds returns 1, not of the rows that apply.
 * Does not check outputs and shares. */
int hpc_groups_find_in(hpc_scheme *sc, int (*folds)(const hpc_scheme *sc, int row), const char *op);

/* Returns the group for which a row folds, or to which it relays. */
int hpc_group_of_row(const hpc_scheme *sc, int row);

/* hpc_pace.is_late: a rank of the same group is late if it has made fewer pushes than this rank. */
int hpc_groups_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);

/* hpc_gate.missing for a group's ranks. The discipline answers two questions about this rank's shares that apply the
 * rule. */
typedef struct hpc_groups_lack {
    /* Returns whether a share's answer to this rank's group waits for an update of the group of the input in. */
    int (*waits_for)(const hpc_scheme *sc, const hpc_share *share, const hpc_input *in);
    /* Returns whether a group's push has come to a share. */
    int (*has_brought)(const hpc_share *share, int group, uint64_t push);
} hpc_groups_lack;
int hpc_groups_missing(const hpc_scheme *sc, int s, uint64_t ticket, const hpc_groups_lack *lack, int *ranks, int n);

#endif
