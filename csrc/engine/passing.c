/* Updates that pass from peer to peer: the updates of each rank go unopened down a tree (hpc_edge.row), and each rank
 * applies them once. A core sends an input that has come on to the children that this rank has in the tree of the
 * input's rank (forward.c). The event names the row of that rank (HPC_OP_PASSED), so one parent may send updates of
 * several ranks. */
#include "engine/passing.h"

#include "engine/clocks.h"
#include "engine/row.h"

/* Rows of the same elements lie together. */
static int row_of(const hpc_plan *plan, int row, int owner) {
    const hpc_row *own = &plan->rows[row];
    for (int way = -1; way <= 1; way += 2)
        for (int i = row; i >= 0 && i < plan->n_rows; i += way) {
            if (plan->rows[i].key != own->key || plan->rows[i].offset != own->offset) break;
            if (plan->rows[i].owner == owner) return i;
        }
    return -1;
}

/* A walk over the receive slots of a child. */
typedef struct finding {
    hpc_scheme *sc;
    const char *op;
    int child, failed;
} finding;

static void find_hop(void *arg, int row, int edge, size_t offset) {
    finding *f = arg;
    hpc_scheme *sc = f->sc;
    const hpc_edge *in = &sc->plan->rows[row].in[edge];
    if (hpc_edge_via(in) != sc->context->group.rank || f->failed) return;
    const hpc_work *w = &sc->work[sc->work_of[sc->own_rows[row]]];
    hpc_input *passed = &w->inputs[hpc_row_input_of(w, in->rank, 0)];
    hpc_hop **last = &passed->hops, *hop = hpc_scheme_take(sc, 1, sizeof *hop, f->op);
    f->failed = hop == NULL;
    if (f->failed) return;
    while (*last != NULL) last = &(*last)->next;
    *hop = (hpc_hop){.in = passed,
                     .rank = f->child,
                     .named = row_of(sc->plan, row, in->rank),
                     .at = sc->layout.slot_base[f->child * sc->context->group.size + in->rank] + offset};
    *last = hop;
}

int hpc_passing_open(hpc_scheme *sc, const char *op) {
    const int me = sc->context->group.rank;
    int status = HPC_OK;
    if (!sc->passes_on) return HPC_OK;
    sc->own_rows = hpc_scheme_take(sc, (size_t)sc->plan->n_rows, sizeof *sc->own_rows, op);
    for (int i = 0; i < sc->plan->n_rows && sc->own_rows != NULL; i++) sc->own_rows[i] = row_of(sc->plan, i, me);
    for (int r = 0; r < sc->context->group.size && sc->own_rows != NULL && status == HPC_OK; r++) {
        finding f = {sc, op, r, 0};
        if (r != me) status = hpc_layout_walk(sc, r, -1, find_hop, &f);
        if (f.failed) status = HPC_ERR_MEMORY;
    }
    return sc->own_rows != NULL ? status : HPC_ERR_MEMORY;
}

size_t hpc_passing_room(const hpc_scheme *sc, const hpc_core *core) {
    size_t n = 0;
    for (int i = 0; i < sc->plan->n_rows && sc->passes_on; i++)
        for (int e = 0; e < sc->plan->rows[i].n_in && sc->plan->rows[i].core == core->index; e++)
            n += hpc_edge_via(&sc->plan->rows[i].in[e]) == sc->context->group.rank;
    return n * (size_t)sc->layout.depth;
}
