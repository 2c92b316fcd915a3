#include "discipline/clocks.h"

#include <stdlib.h>

#include "engine/owner/signals.h"
#include "engine/owner/core.h"
#include "engine/discipline.h"
#include "engine/owner/mean.h"
#include "engine/owner/row.h"
#include "engine/layout/stages.h"

static int is_own(const hpc_scheme *sc, const hpc_share *share) {
    return share->owner == sc->context->group.rank && sc->plan->rows[share->rows[0]].action == HPC_APPLY;
}

static int open_share(hpc_scheme *sc, hpc_share *share, const char *op) {
    hpc_clocked *its = sc->cores[share->core].clocked;
    share->clocks = hpc_scheme_take(sc, (size_t)sc->context->group.size, sizeof *share->clocks, op);
    its->shares[its->n++] = share;
    return share->clocks != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

int hpc_clocked_open(hpc_scheme *sc, const char *op) {
    for (int c = 0; c < sc->n_own_cores; c++) {
        hpc_clocked *its = sc->cores[c].clocked = hpc_scheme_take(sc, 1, sizeof *its, op);
        if (its == NULL) return HPC_ERR_MEMORY;
        its->shares = hpc_scheme_take(sc, (size_t)sc->layout.n_shares, sizeof *its->shares, op);
        if (its->shares == NULL) return HPC_ERR_MEMORY;
    }
    return HPC_OK;
}

int hpc_clocks_open(hpc_scheme *sc, const char *op) {
    int status = hpc_clocked_open(sc, op);
    for (int s = 0; s < sc->layout.n_shares; s++) {
        hpc_share *share = &sc->layout.shares[s];
        if (status == HPC_OK && is_own(sc, share)) status = open_share(sc, share, op);
    }
    return status;
}

int hpc_sender_is_open(const hpc_scheme *sc, int key, int sender) {
    if (sc->group_of == NULL) return hpc_closed_signal(sc, sender) == 0;
    for (int r = sender; r < sc->context->group.size; r++)
        if (hpc_sender_of(sc, key, r) == sender && hpc_closed_signal(sc, r) != 0) return 0;
    return 1;
}

uint64_t hpc_clocks_least(const hpc_scheme *sc, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(sc, share);
    uint64_t least = UINT64_MAX;
    for (int e = 0; e < w->row->n_in; e++) {
        const int sender = w->inputs[e].lowest;
        const uint64_t clock = hpc_clock_applied(&share->clocks[sender]);
        if (clock < least && hpc_sender_is_open(sc, share->key, sender)) least = clock;
    }
    return least;
}

int hpc_core_sees_closed(hpc_core *core) {
    const hpc_scheme *sc = core->scheme;
    int n = 0;
    for (int r = 0; r < sc->context->group.size; r++) n += hpc_closed_signal(sc, r) != 0;
    const int news = n != core->clocked->n_closed;
    core->clocked->n_closed = n;
    return news;
}

/* Returns how many updates of rank a share has taken, in the row that has taken most. */
static uint64_t most_taken(const hpc_scheme *sc, const hpc_share *share, int rank) {
    uint64_t most = 0;
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_work *w = hpc_work_of(sc, share->rows[i]);
        const int input = hpc_row_input_of(w, rank, 0);
        const uint64_t n = input < 0 ? 0 : hpc_sum_taken(w, input);
        if (n > most) most = n;
    }
    return most;
}

static uint64_t begun(const hpc_scheme *sc, const hpc_share *share, int rank) {
    const int sender = hpc_sender_of(sc, share->key, rank);
    if (share->clocks == NULL) return most_taken(sc, share, rank);
    if (sender < 0) return 0;
    const hpc_clock *clock = &share->clocks[sender];
    return atomic_load_explicit(&clock->applied, memory_order_relaxed) + (uint64_t)(clock->rows > 0);
}

void hpc_clocks_raise_begun(const hpc_scheme *sc, int rank, uint64_t *pushes) {
    for (int s = 0; s < sc->layout.n_shares; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner != sc->context->group.rank) continue;
        hpc_core_pause(&sc->cores[share->core]);
        const uint64_t n = begun(sc, share, rank);
        hpc_core_resume(&sc->cores[share->core]);
        if (n > *pushes) *pushes = n;
    }
}

void hpc_clocks_level(hpc_scheme *sc) {
    for (int s = 0; s < sc->layout.n_shares; s++) {
        hpc_share *share = &sc->layout.shares[s];
        if (share->clocks == NULL) continue;
        hpc_core_pause(&sc->cores[share->core]);
        for (int r = 0; r < sc->context->group.size; r++)
            share->clocks[r].base = atomic_load_explicit(&share->clocks[r].applied, memory_order_relaxed);
        hpc_core_resume(&sc->cores[share->core]);
    }
}

int hpc_clocks_learn_pushes(hpc_scheme *sc, uint64_t *last, const char *op, double deadline) {
    const size_t size = (size_t)sc->context->group.size, keys = (size_t)sc->plan->n_keys;
    uint64_t *mine = malloc(keys * sizeof *mine), *all = malloc(keys * size * sizeof *all);
    int status = mine != NULL && all != NULL ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for pushes", op);
    status = hpc_context_agree(sc->context, op, status, deadline);
    for (size_t k = 0; k < keys && status == HPC_OK; k++) mine[k] = sc->keys[k].pushes;
    if (status == HPC_OK) status = hpc_allgather(sc->context, mine, all, keys * sizeof *mine, hpc_left(deadline));
    for (size_t k = 0; k < keys && status == HPC_OK; k++)
        for (size_t r = 0; r < size; r++) last[k * size + r] = all[r * keys + k];
    free(mine);
    free(all);
    return status;
}
