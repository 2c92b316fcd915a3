/* The array of row kinds. */
#include "engine/owner/kind.h"

static const hpc_row_kind *const kinds[] = {
    // clang-format off
    &hpc_kind_relay,
    &hpc_kind_passthrough,
    &hpc_kind_sum_pieces,
    &hpc_kind_sum_opened,
    &hpc_kind_sum,
    &hpc_kind_forward_pieces,
    &hpc_kind_forward_filtered,
    &hpc_kind_forward_opened,
    &hpc_kind_forward,
    &hpc_kind_pieces_in_place,
    &hpc_kind_pieces_all,
    &hpc_kind_pieces_parts,
    &hpc_kind_pieces,
    &hpc_kind_pass,
    &hpc_kind_average,
    &hpc_kind_blocks,
    // clang-format on
};

const hpc_row_kind *hpc_row_kind_of(const hpc_scheme *sc, const hpc_row *row) {
    size_t i = 0;
    while (!kinds[i]->suits(sc, row)) i++; /* the last kind suits every row */
    return kinds[i];
}
