/* Sizes in bytes of a row's updates and parameters as they are sent, and their offsets in an update or a slot. */
#ifndef HPC_BYTES_H
#define HPC_BYTES_H

#include "engine/discipline.h"

/* Returns how many bytes a push to a row has when it is sent; if it is a piece, the most bytes that it may have. */
static inline size_t hpc_input_bytes(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_codec_of(row->codec_in)->max_bytes(sc->configs[row->key], row->count);
}

/* Returns how many bytes the push to a row that is stored at src has. */
static inline size_t hpc_push_bytes(const hpc_scheme *sc, const hpc_row *row, const void *src) {
    return hpc_codec_of(row->codec_in)->length(sc->configs[row->key], src, row->count);
}

/* Returns the most bytes that an output of a row may have when it is sent. */
static inline size_t hpc_output_bytes(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_codec_of(row->codec_out)->max_bytes(sc->configs[row->key], row->count);
}

/* Returns whether a row keeps parameters. Forwards keep only a fold, and relays only their input. */
static inline int hpc_row_keeps_params(const hpc_row *row) {
    return row->action == HPC_APPLY || row->action == HPC_EMIT;
}

/* Returns whether a row sends parameters in another format than plain float32. */
static inline int hpc_row_encodes(const hpc_row *row) {
    return row->action != HPC_FORWARD && !hpc_codec_of(row->codec_out)->plain;
}

/* Returns whether the key's updates travel as pieces on at least one edge, from a worker or from a row. */
static inline int hpc_key_has_pieces(const hpc_scheme *sc, int key) {
    return sc->pieces != NULL && sc->pieces[key].codec != NULL;
}

/* Returns whether workers push the key as pieces. */
static inline int hpc_key_pushes_pieces(const hpc_scheme *sc, int key) {
    return sc->pieces != NULL && sc->pieces[key].n_ranges > 0;
}

/* Returns how many bytes a slot reserves for one input of a row. */
static inline size_t hpc_row_bytes(const hpc_scheme *sc, const hpc_row *row) {
    if (hpc_key_has_pieces(sc, row->key)) return sc->layout.row_room[row - sc->plan->rows];
    return (hpc_input_bytes(sc, row) + 63) / 64 * 64;
}

/* Returns the codec of an input of a row. */
static inline const hpc_codec *hpc_edge_codec(const hpc_plan *plan, const hpc_row *row, const hpc_edge *edge) {
    return hpc_codec_of(edge->row < 0 ? row->codec_in : plan->rows[edge->row].codec_out);
}

/* Returns the offset, in bytes, of the row's first element in a key's encoded update. */
static inline size_t hpc_row_from(const hpc_scheme *sc, const hpc_row *row) {
    if (hpc_key_pushes_pieces(sc, row->key)) return sc->layout.row_from[row - sc->plan->rows];
    return hpc_codec_span(sc->keys[row->key].codec, row->offset);
}

static inline size_t hpc_slot_stride(const hpc_scheme *sc, const hpc_row *row) {
    return hpc_row_bytes(sc, row) + (sc->discipline->traits & HPC_MARGINS ? HPC_MARGIN_BYTES : 0);
}

#endif
