/* Groups of ranks whose updates are folded before they come to a row that applies: with several stages each input of
 * such a row is from a group, a host or a rack. A rank that pushes straight to the row forms a group alone. A group
 * is known by its lowest rank. Groups are the same in all rows of a key, the group that sends an update gets the
 * parameters, and a core folds or relays for one group of a key: other plans are refused. */
#ifndef HPC_GROUPING_H
#define HPC_GROUPING_H

#include "discipline/clocks.h"

/* Whether rows of a plan send to other rows. */
int hpc_plan_has_stages(const hpc_plan *plan);
/* Two rows that apply the same elements: plans whose receivers apply the folds that an owner forwards have such rows.
 * Returns the second row and sets *other to the first, or returns -1. */
int hpc_plan_find_copy(const hpc_plan *plan, int *other);

/* Finds the groups of an exchange, whose shares are known: from here on they are its senders (hpc_sender_of). As
 * hpc_discipline.plan. */
int hpc_groups_find(hpc_scheme *sc, const char *op);
/* The same, by the rows that folds accepts instead of rows that apply; their outputs and shares are not looked at. */
int hpc_groups_find_in(hpc_scheme *sc, int (*folds)(const hpc_scheme *sc, int row), const char *op);

/* The group for which a row folds, or to which it relays. */
int hpc_group_of_row(const hpc_scheme *sc, int row);

/* hpc_pace.is_late: each push needs as many of the ranks of the same group. */
int hpc_groups_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);

/* hpc_gate.missing of a group's ranks. A discipline answers two questions about the shares of this rank that apply. */
typedef struct hpc_groups_lack {
    /* Whether an answer of a share to this rank's group waits for an update of an input's group. */
    int (*waits_for)(const hpc_scheme *sc, const hpc_share *share, const hpc_input *in);
    /* Whether a group's push has come to a share. */
    int (*has_brought)(const hpc_share *share, int group, uint64_t push);
} hpc_groups_lack;
int hpc_groups_missing(const hpc_scheme *sc, int s, uint64_t ticket, const hpc_groups_lack *lack, int *ranks, int n);

#endif
