/* Bytes of updates and parameters on their way to and from a row, and their places in an update or a slot. */
#ifndef HPC_BYTES_H
#define HPC_BYTES_H

#include "engine/discipline.h"

/* Bytes of a push to a row, as it comes; at most, where pushes are pieces. */
static inline size_t hpc_input_bytes(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_codec_of(row->codec_in)->max_bytes(sc->configs[row->key], row->count);
}

/* Bytes of the push to a row that lies at src. */
static inline size_t hpc_push_bytes(const hpc_scheme *sc, const hpc_row *row, const void *src) {
    return hpc_codec_of(row->codec_in)->length(sc->configs[row->key], src, row->count);
}

/* Bytes of an output of a row, as it is sent. */
static inline size_t hpc_output_bytes(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_codec_of(row->codec_out)->max_bytes(sc->configs[row->key], row->count);
}

/* Whether a row keeps the parameters of its elements: a forward only has a fold, and a relay its input. */
static inline int hpc_row_keeps_params(const hpc_row *row) {
    return row->action == HPC_APPLY || row->action == HPC_EMIT;
}

/* Whether a row sends parameters that are not plain float32. */
static inline int hpc_row_encodes(const hpc_row *row) {
    return row->action != HPC_FORWARD && !hpc_codec_of(row->codec_out)->plain;
}

/* Whether the key's updates travel as pieces, if only from row to row. */
static inline int hpc_key_has_pieces(const hpc_scheme *sc, int key) {
    return sc->pieces != NULL && sc->pieces[key].codec != NULL;
}

/* Whether pushes of the key are pieces. */
static inline int hpc_key_pushes_pieces(const hpc_scheme *sc, int key) {
    return sc->pieces != NULL && sc->pieces[key].n_ranges > 0;
}

/* The room that an input of a row takes in a slot. */
static inline size_t hpc_row_bytes(const hpc_scheme *sc, const hpc_row *row) {
    if (hpc_key_has_pieces(sc, row->key)) return sc->layout.row_room[row - sc->plan->rows];
    return (hpc_input_bytes(sc, row) + 63) / 64 * 64;
}

/* The codec of an input of a row. */
static inline const hpc_codec *hpc_edge_codec(const hpc_plan *plan, const hpc_row *row, const hpc_edge *edge) {
    return hpc_codec_of(edge->row < 0 ? row->codec_in : plan->rows[edge->row].codec_out);
}

/* Bytes from the start of a key's update to the first element of a row. */
static inline size_t hpc_row_from(const hpc_scheme *sc, const hpc_row *row) {
    if (hpc_key_pushes_pieces(sc, row->key)) return sc->layout.row_from[row - sc->plan->rows];
    return hpc_codec_span(sc->keys[row->key].codec, row->offset);
}

static inline size_t hpc_slot_stride(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_row_bytes(sc, row) + (sc->discipline->traits & HPC_MARGINS ? HPC_MARGIN_BYTES : 0);
}

#endif
