/* Facts that follow from edges between rows: which ranks feed a row, which ranks it reaches, and which answers a push
 * waits for. */
#ifndef HPC_STAGES_H
#define HPC_STAGES_H

#include "engine/scheme.h"

int hpc_stages_find(hpc_scheme *sc, const char *op);
void hpc_stages_free(hpc_scheme *sc);
const hpc_edge *hpc_row_input(const hpc_row *row, int rank); /* rank's push to the row itself, or NULL */
int hpc_row_has_input(const hpc_row *row, int rank);
int hpc_row_has_output(const hpc_row *row, int rank); /* the row itself sends parameters to rank */
int hpc_row_sends_to_rows(const hpc_row *row);
double hpc_edge_mass(const hpc_scheme *sc, const hpc_edge *edge); /* the total weight of all pushes in an input */
/* Returns whether an input is a push of weight 0, which has no bytes. */
int hpc_input_is_empty(const hpc_scheme *sc, const hpc_edge *edge);
int hpc_row_is_fed_by(const hpc_scheme *sc, int row, int rank); /* pushes of rank reach the row, through any stages */
/* Returns whether another row applies the same elements, earlier in the plan (step is -1) or later (step is 1). */
int hpc_row_is_copy(const hpc_scheme *sc, int row, int step);
int hpc_row_reaches(const hpc_scheme *sc, int row, int rank); /* the row's parameters reach rank, through any stages */
/* hpc_row_has_mean_of returns whether the row keeps the mean for rank; if several rows apply the same elements, that is
 * only the row whose parameters rank gets. hpc_row_gives_mean also requires that rank's pushes reach the row, so that
 * the mean can be gathered for rank. */
int hpc_row_has_mean_of(const hpc_scheme *sc, int row, int rank);
int hpc_row_gives_mean(const hpc_scheme *sc, int row, int rank);
/* Rank's pushes reach some row of the share. */
int hpc_feeds_share(const hpc_scheme *sc, const hpc_share *share, int rank);
/* The same, but through other rows or ranks. */
int hpc_feeds_share_by_stages(const hpc_scheme *sc, const hpc_share *share, int rank);
/* Returns whether rank's pushes reach the share, or the share itself sends parameters to rank. */
int hpc_share_involves(const hpc_scheme *sc, const hpc_share *share, int rank);
/* Returns whether the owner of a row may have its own parameters before the row has sent all outputs to other rows. */
int hpc_row_outlasts_pulls(const hpc_scheme *sc, int row);
/* Returns whether rank's pushes are done only when the share has answered them. */
int hpc_share_is_awaited_by(const hpc_scheme *sc, const hpc_share *share, int rank);
/* Returns whether the share answers rank: it does if rank waits for it, or if its rows forward and rank is its owner
 * (hpc_share_next_fold). */
int hpc_share_answers(const hpc_scheme *sc, const hpc_share *share, int rank);

#endif
