/* The last pieces that this rank has made, decoded: when ranks are lost, what no row has applied goes back into the
 * residuals from which it was taken. Reading changes nothing. */
#include "engine/pieces_read.h"

#include <string.h>

#include "engine/send.h"

static int may_go_back(const hpc_scheme *sc, int key, const hpc_encoder *encoder) {
    return encoder != NULL && encoder->codec != NULL && encoder->keeps && !sc->pieces[key].config.no_feedback;
}

int hpc_pieces_read_push(hpc_scheme *sc, int key, uint64_t n, float *to) {
    memset(to, 0, (size_t)sc->plan->keys[key].count * sizeof *to);
    if (n == 0 || !hpc_key_has_pieces(sc, key) || !may_go_back(sc, key, &sc->pieces[key].encoder)) return 0;
    const hpc_key_pieces *its = &sc->pieces[key];
    const char *slot = hpc_slot_of_push(sc, key, n);
    int status = 0;
    for (int p = 0; p < its->n_ranges && status == 0; p++) {
        const hpc_pushed_range *range = &its->ranges[p];
        const size_t nbytes = its->codec->length(&its->config, slot + range->at, range->count);
        status = hpc_pieces_decode(its, to + range->offset, range->count, slot + range->at, nbytes, 1, &sc->packing);
    }
    return status;
}

int hpc_pieces_read_fold(hpc_scheme *sc, const hpc_work *w, float *to) {
    const int key = w->row->key;
    memset(to, 0, (size_t)w->row->count * sizeof *to);
    if (!hpc_key_has_pieces(sc, key) || !may_go_back(sc, key, w->encoder)) return 0;
    if (atomic_load_explicit(&w->folded, memory_order_relaxed) == 0) return 0;
    const hpc_key_pieces *its = &sc->pieces[key];
    const size_t nbytes = its->codec->length(&its->config, w->encoded, w->row->count);
    return hpc_pieces_decode(its, to, w->row->count, w->encoded, nbytes, 1, &sc->packing);
}
