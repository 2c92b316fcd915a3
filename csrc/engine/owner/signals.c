#include "engine/owner/signals.h"
#include "engine/bytes.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- failure ---- */

/* The thread that works for the core, its own or a waiting thread, later tells the other ranks (hpc_scheme_check). */
static void fail(hpc_scheme *sc, int status, const char *why, int waited_for) {
    if (atomic_exchange_explicit(&sc->fault.failing, 1, memory_order_relaxed)) return;
    sc->fault.waited_for = waited_for;
    snprintf(sc->fault.failure, sizeof sc->fault.failure, "%s", why);
    atomic_store_explicit(&sc->fault.failed, status, memory_order_release);
    hpc_bell_ring(sc->context->group.bell);
}

void hpc_scheme_fail(hpc_scheme *sc, int status, const char *why) {
    fail(sc, status, why, -1);
}

void hpc_scheme_fail_as_told(hpc_scheme *sc, int status) {
    const hpc_error *told = hpc_last_error();
    fail(sc, status, told->message, told->n_waiting > 0 ? told->waiting_for[0] : -1);
}

void hpc_core_check_put(hpc_core *core, int status) {
    if (status == HPC_ERR_PEER) hpc_blame_settle(&core->scheme->context->group.blame, NULL, 0);
    if (status == HPC_OK || status == HPC_ERR_PEER) return;
    if (hpc_group_usable(&core->scheme->context->group, "exchange") != HPC_OK) return; /* closed meanwhile */
    hpc_scheme_fail_as_told(core->scheme, status);
}

/* ---- answers ---- */

void hpc_share_answer_with(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset, int signal,
                           uint64_t value) {
    if (atomic_load_explicit(&core->scheme->fault.failing, memory_order_relaxed)) return;
    hpc_core_check_put(core, hpc_put_signal(core->out, core->scheme->window, rank, src, nbytes, offset, signal, value));
}

void hpc_core_put(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset) {
    hpc_core_check_put(core, hpc_put(core->out, core->scheme->window, rank, src, nbytes, offset));
}

void hpc_share_answer(hpc_core *core, int rank, int signal, uint64_t value) {
    hpc_share_answer_with(core, rank, NULL, 0, 0, signal, value);
}

/* ---- counts ---- */

void hpc_share_count_received(const hpc_scheme *sc, const hpc_share *share, int rank) {
    hpc_count_received(sc, rank, share->nbytes);
}

/* All cores of a rank add to these counts. */
void hpc_share_count_fold(hpc_core *core, int n) {
    hpc_tally_add(&core->tally.reduces, 1);
    hpc_tally_add(&core->tally.whole, (uint64_t)n);
    atomic_fetch_add_explicit(&core->scheme->peers.inputs_whole[n], 1, memory_order_relaxed);
}

int hpc_share_open_counts(hpc_scheme *sc, int less, const char *op) {
    int most = 0;
    for (int i = 0; i < sc->n_work; i++)
        if (hpc_row_keeps_params(sc->work[i].row) && sc->work[i].row->n_in - less > most)
            most = sc->work[i].row->n_in - less;
    sc->peers.most_inputs = most;
    sc->peers.inputs_whole = calloc((size_t)most + 1, sizeof *sc->peers.inputs_whole);
    return sc->peers.inputs_whole != NULL ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for counts", op);
}
