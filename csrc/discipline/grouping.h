/* Groups of ranks whose updates are folded before they come to a row that applies: with several stages each input of
 * such a row is from a group, a host or a rack. A rank that pushes straight to the row is a group of its own. A group
 * is known by its lowest rank. Groups are the same in all rows of a key, the group that sends an update gets the
 * parameters, and a core folds or relays for one group of a key: else a plan is refused. */
#ifndef HPC_GROUPING_H
#define HPC_GROUPING_H

#include "engine/layout.h"

/* Whether rows of a plan send to other rows. */
int hpc_plan_has_stages(const hpc_plan *plan);
/* Two rows that apply the same elements: plans whose receivers apply what an owner forwards have such rows. Returns the
 * second row and sets *other to the first, or returns -1. */
int hpc_plan_find_copy(const hpc_plan *plan, int *other);

/* Finds the groups of an exchange, whose shares are known: group_of[key * size + rank] is the lowest rank of the rank's
 * group; a rank that does not push the key has -1. */
int *hpc_groups_new(const hpc_engine *en, const char *op);
int hpc_groups_find(const hpc_engine *en, int *group_of, const char *op);

/* Names the outputs of this rank's rows that apply by the groups that they are for: a group's lowest rank need not be
 * one that gets parameters by the output. */
void hpc_groups_name_outputs(hpc_engine *en, const int *group_of);

/* The group for which a row folds, or to which it relays. */
int hpc_group_of_row(const hpc_engine *en, const int *group_of, int row);

/* A rank that pushes key is in a group; returns the lowest rank of that group. */
static inline int hpc_group_of(const hpc_engine *en, const int *group_of, int key, int rank) {
    return group_of[(size_t)key * (size_t)en->context->group.size + (size_t)rank];
}

#endif
