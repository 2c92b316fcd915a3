/* Facts that follow from the edges between rows: the ranks that feed a row, the ranks that it reaches, and the answers
 * that a push waits for. */
#ifndef HPC_STAGES_H
#define HPC_STAGES_H

#include "engine/scheme.h"

int hpc_stages_find(hpc_scheme *sc, const char *op);
void hpc_stages_free(hpc_scheme *sc);
const hpc_edge *hpc_row_input(const hpc_row *row, int rank); /* rank's push to the row itself, or NULL */
int hpc_row_has_input(const hpc_row *row, int rank);
int hpc_row_has_output(const hpc_row *row, int rank); /* the row itself sends rank parameters */
int hpc_row_sends_to_rows(const hpc_row *row);
double hpc_edge_mass(const hpc_scheme *sc, const hpc_edge *edge);   /* of an input: the weight of all pushes in it */
int hpc_input_is_empty(const hpc_scheme *sc, const hpc_edge *edge); /* a push of weight 0: it brings no bytes */
int hpc_row_is_fed_by(const hpc_scheme *sc, int row, int rank);     /* pushes of rank reach row, through any stages */
int hpc_row_is_copy(const hpc_scheme *sc, int row, int step); /* a row before (-1) or behind (1) applies the same */
int hpc_row_reaches(const hpc_scheme *sc, int row, int rank); /* its parameters reach rank, in the same way */
/* Whether a mean of the row is rank's: where several rows apply the same elements, only the row whose parameters rank
 * gets has it; and whether it is gathered for rank. */
int hpc_row_has_mean_of(const hpc_scheme *sc, int row, int rank);
int hpc_row_gives_mean(const hpc_scheme *sc, int row, int rank);
int hpc_feeds_share(const hpc_scheme *sc, const hpc_share *share, int rank); /* some of its rows */
int hpc_feeds_share_by_stages(const hpc_scheme *sc, const hpc_share *share,
                              int rank); /* some, through other rows or ranks */
/* Whether rank's pushes reach the share, or the share itself sends rank parameters. */
int hpc_share_involves(const hpc_scheme *sc, const hpc_share *share, int rank);
/* Whether the owner of a row may have its own parameters while the row has not sent all to other rows. */
int hpc_row_outlasts_pulls(const hpc_scheme *sc, int row);
/* Whether rank's pushes are done only when the share has answered them. */
int hpc_share_is_awaited_by(const hpc_scheme *sc, const hpc_share *share, int rank);
/* Whether the share answers rank: if rank awaits it; a forward also its owner (hpc_share_next_fold). */
int hpc_share_answers(const hpc_scheme *sc, const hpc_share *share, int rank);

#endif
