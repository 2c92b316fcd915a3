/* The layout of an exchange's window, and the meaning of its signals. All ranks derive the same layout from the plan
 * and the discipline. */
#ifndef HPC_LAYOUT_H
#define HPC_LAYOUT_H

#include "engine/discipline.h"

/* Shares, places and offsets from sc->plan. */
int hpc_layout_make(hpc_scheme *sc, const char *op);
int hpc_layout_slots(hpc_scheme *sc); /* places this rank's receive slots and fills in its part of slot_base */
void hpc_layout_free(hpc_scheme *sc);
/* Takes nbytes at the end of a part, on separate pages: a core's memory can be placed on its node. */
size_t hpc_layout_take(hpc_place *place, size_t nbytes);
/* Takes hpc_place.own in the part of each rank: so many bytes as part says. */
void hpc_layout_take_own(hpc_scheme *sc, size_t (*part)(const hpc_scheme *sc, int rank));

/* Bytes from the start of rank's part to the place where a mean of key is gathered (hpc_mean_use): the slot of its
 * pushes where that is float32. */
size_t hpc_gathered_at(const hpc_scheme *sc, int rank, int key);
/* Bytes from the start of rank's part to its parameters of a key, after so many of its pushes. */
size_t hpc_params_at(const hpc_scheme *sc, int rank, int key, uint64_t pushes);

/* Calls visit for every in-edge whose input comes by receive slots: for the rows of owner, or for inputs of sender (the
 * other one is -1). offset is the distance of the edge's slot 0 from the pair's slot_base. */
typedef void hpc_visit(void *arg, int row, int edge, size_t offset);
int hpc_layout_walk(const hpc_scheme *sc, int owner, int sender, hpc_visit *visit, void *arg);

/* ---- signals: closed by each rank, args seen by each core, then one or two a share ---- */

/* Values of a closed signal: the rank pushes nothing more; it answers nothing more either. */
enum { HPC_CLOSED = 1, HPC_FREED = 2 };

static inline int hpc_signal_closed(int rank) {
    return rank;
}
static inline int hpc_signal_args(const hpc_scheme *sc, int owner, int core) {
    return sc->context->group.size + sc->layout.places[owner].first_core + core;
}
static inline int hpc_signal_applied(const hpc_scheme *sc, int share) {
    return sc->context->group.size + sc->layout.n_cores + share;
}
static inline int hpc_signal_second(const hpc_scheme *sc, int share) { /* of a pull, or HPC_DECIDES */
    return hpc_signal_applied(sc, share) + sc->layout.n_shares;
}
static inline int hpc_signals(const hpc_scheme *sc) {
    return hpc_signal_applied(sc, 0) +
           sc->layout.n_shares * (sc->discipline->traits & (HPC_PULLS | HPC_DECIDES) ? 2 : 1);
}

/* The closed signal of rank: HPC_CLOSED, HPC_FREED or 0. acquire: everything that it put before is there. */
static inline uint64_t hpc_closed_signal(const hpc_scheme *sc, int rank) {
    return atomic_load_explicit(hpc_own_signal(sc->window, hpc_signal_closed(rank)), memory_order_acquire);
}

/* ---- bytes ---- */

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

/* The stage, for counts of traffic, in which other rows send to a row. */
static inline hpc_traffic_stage hpc_row_stage(const hpc_row *row) {
    return row->action == HPC_RELAY ? HPC_TRAFFIC_RELAY : HPC_TRAFFIC_FORWARD;
}

/* Whether a row sends parameters that are not plain float32. */
static inline int hpc_row_encodes(const hpc_row *row) {
    return row->action != HPC_FORWARD && !hpc_codec_of(row->codec_out)->plain;
}

/* How many relays the parameters that a row sends have passed, itself included. */
static inline int hpc_row_hops(const hpc_scheme *sc, int row) {
    return sc->layout.stages.many ? sc->layout.stages.hops[row] : 0;
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

static inline int hpc_slot_depth(const hpc_scheme *sc) {
    return (sc->discipline->traits & HPC_ONE_SLOT) ? 1 : sc->layout.depth;
}

/* The offset in its owner's part of the arguments of rank for its push in a slot. */
static inline size_t hpc_args_at(const hpc_scheme *sc, const hpc_share *share, int rank, int slot) {
    size_t at = sc->own_args ? (size_t)share->at : (size_t)share->at * (size_t)sc->context->group.size + (size_t)rank;
    return sc->layout.places[share->owner].args + (at * (size_t)sc->layout.depth + (size_t)slot) * HPC_ARGS_BYTES;
}

static inline char *hpc_own_part(const hpc_scheme *sc) {
    return hpc_window_data(sc->window);
}

static inline int hpc_owns_row(const hpc_scheme *sc, int row) {
    return sc->plan->rows[row].owner == sc->context->group.rank;
}

/* Whether this rank is a worker. */
static inline int hpc_scheme_works(const hpc_scheme *sc) {
    return sc->layout.places[sc->context->group.rank].worker;
}

/* Whether this rank can read and write the other one's memory by plain instructions. */
static inline int hpc_is_mapped(const hpc_scheme *sc, int rank) {
    return rank == sc->context->group.rank || (sc->context->transports[rank]->caps & HPC_CAP_PEER_VIEW);
}

/* Whether owner reads rank's pushes in rank's memory; else they come by put. This rank is one of the two. */
static inline int hpc_reads_in_place(const hpc_scheme *sc, int owner, int rank) {
    if (sc->puts) return owner == rank;
    return hpc_is_mapped(sc, owner == sc->context->group.rank ? rank : owner);
}

/* The sender that a rank's updates of a key are in; -1: it pushes none. */
static inline int hpc_sender_of(const hpc_scheme *sc, int key, int rank) {
    return sc->group_of == NULL ? rank : sc->group_of[(size_t)key * (size_t)sc->context->group.size + (size_t)rank];
}

/* On a graph an owner that has closed folds nothing more, and takes no event. */
static inline int hpc_owners_leave(const hpc_scheme *sc) {
    return sc->graph != NULL;
}

/* Whether folds take all inputs of a row, with the plan's weights. */
static inline int hpc_folds_whole(const hpc_scheme *sc) {
    return (sc->discipline->traits & HPC_WHOLE) && !sc->turns;
}

#endif
