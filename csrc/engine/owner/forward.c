/* Forwards: a row sends its fold, its parameters, or an input it did not decode, to rows of other ranks. Each receiver
 * gets its forwards in order. If a receiver's ring is full, the forward is kept in a list for that receiver and sent
 * later. So a receiver that takes no events delays only its own forwards. */
#include "engine/owner/forward.h"

#include <string.h>

#include "engine/owner/signals.h"
#include "engine/bytes.h"
#include "engine/owner/kind.h"
#include "engine/layout/layout.h"
#include "engine/pieces.h"
#include "engine/owner/write.h"

static int try_forward(hpc_core *core, const hpc_work *w, int edge, int slot) {
    hpc_scheme *sc = core->scheme;
    const hpc_output *out = &w->outputs[edge];
    const hpc_row *to = &sc->plan->rows[out->row];
    size_t nbytes = 0, at = 0;
    const void *src = NULL;
    uint32_t imm = hpc_imm(HPC_OP_EMPTY, HPC_EMPTY_ROW, out->row);
    if (slot != HPC_KEPT_EMPTY) {
        src = out->copy != NULL ? out->copy : w->kind->leaving(w, slot);
        nbytes = w->out_codec->length(w->config, src, w->row->count);
        at = out->offset + (size_t)slot * hpc_slot_stride(sc, to);
        imm = hpc_imm(HPC_OP_FORWARD, slot, out->row);
    }
    int status = hpc_lane_try_notify(core->out, sc->window, out->rank, src, nbytes, at, imm);
    if (status == HPC_OK) hpc_core_count_sent(core, w->row->key, out->rank, hpc_row_stage(to), nbytes);
    if (status != HPC_IN_PROGRESS) hpc_core_check_put(core, status);
    return status;
}

/* Sends an input on, before it is applied, from the slot into which it came. The slot is written again by the worker's
 * push that is depth pushes later. The worker makes that push only when all shares have answered this push, and by then
 * all ranks have received it. */
static int try_pass(hpc_core *core, const hpc_work *w, const hpc_hop *to, int slot) {
    const hpc_scheme *sc = core->scheme;
    const char *piece = to->in->slots + (size_t)slot * to->in->stride;
    const size_t nbytes = to->in->codec->length(w->config, piece, w->row->count);
    const int status = hpc_lane_try_notify(core->out, sc->window, to->rank, piece, nbytes,
                                           to->at + (size_t)slot * hpc_slot_stride(sc, w->row),
                                           hpc_imm(HPC_OP_PASSED, slot, to->named));
    if (status == HPC_OK) hpc_core_count_sent(core, w->row->key, to->rank, HPC_TRAFFIC_RELAY, nbytes);
    if (status != HPC_IN_PROGRESS) hpc_core_check_put(core, status);
    return status;
}

static int try_kept(hpc_core *core, const hpc_kept *k) {
    return k->hop != NULL ? try_pass(core, k->work, k->hop, k->slot) : try_forward(core, k->work, k->edge, k->slot);
}

static void keep_forward(hpc_core *core, int to, hpc_kept what) {
    hpc_kept *kept = core->free_kept;
    if (kept == NULL) { /* memory suffices for all forwards that can be pending, so some rank sent too much */
        hpc_scheme_fail(core->scheme, HPC_ERR_TRANSPORT, "a rank sent more of a row than its receivers have taken");
        return;
    }
    core->free_kept = kept->next;
    *kept = what;
    if (core->kept_first[to] == NULL)
        core->kept_first[to] = kept;
    else
        core->kept_last[to]->next = kept;
    core->kept_last[to] = kept;
    atomic_fetch_add_explicit(&core->n_kept, 1, memory_order_relaxed);
}

void hpc_forward_row(hpc_core *core, hpc_work *w, int slot, int group) {
    for (int e = 0; e < w->n_outputs; e++) {
        const hpc_output *out = &w->outputs[e];
        if (out->row < 0 || (group != HPC_EVERYBODY && out->lowest != group)) continue;
        if (out->copy != NULL && slot != HPC_KEPT_EMPTY)
            memcpy(out->copy, w->kind->leaving(w, slot), w->out_codec->max_bytes(w->config, w->row->count));
        if (core->kept_first[out->rank] != NULL || try_forward(core, w, e, slot) == HPC_IN_PROGRESS)
            keep_forward(core, out->rank, (hpc_kept){.work = w, .edge = e, .slot = slot});
    }
}

void hpc_forward_input(hpc_core *core, hpc_work *w, const hpc_input *in, int slot) {
    for (const hpc_hop *to = in->hops; to != NULL; to = to->next)
        if (core->kept_first[to->rank] != NULL || try_pass(core, w, to, slot) == HPC_IN_PROGRESS)
            keep_forward(core, to->rank, (hpc_kept){.work = w, .hop = to, .slot = slot});
}

void hpc_forward_empty(hpc_core *core, hpc_work *w) {
    if (w->encoder != NULL) hpc_pieces_settle(core->scheme, w, &core->packing);
    hpc_forward_row(core, w, HPC_KEPT_EMPTY, HPC_EVERYBODY);
}

void hpc_forward_word(hpc_core *core, const hpc_work *w, int group, const void *word, size_t nbytes,
                      size_t (*at)(const hpc_scheme *sc, int row)) {
    const hpc_scheme *sc = core->scheme;
    for (int o = 0; o < w->n_outputs && w->sends_to_rows; o++) {
        const hpc_output *out = &w->outputs[o];
        if (out->row >= 0 && (group == HPC_EVERYBODY || out->lowest == group))
            hpc_core_put(core, out->rank, word, nbytes, at(sc, out->row));
    }
}

void hpc_forward_note(hpc_core *core, const hpc_work *w, uint64_t slot, const void *note, size_t nbytes) {
    const hpc_scheme *sc = core->scheme;
    for (int o = 0; o < w->n_outputs; o++) {
        const hpc_row *to = &sc->plan->rows[w->outputs[o].row];
        const size_t at = w->outputs[o].offset + (size_t)slot * hpc_slot_stride(sc, to) + hpc_row_bytes(sc, to);
        hpc_core_put(core, w->outputs[o].rank, note, nbytes, at);
    }
}

void hpc_forward_retry(hpc_core *core) {
    for (int r = 0; r < core->scheme->context->group.size; r++) {
        hpc_kept *kept;
        while ((kept = core->kept_first[r]) != NULL && try_kept(core, kept) != HPC_IN_PROGRESS) {
            core->kept_first[r] = kept->next;
            kept->next = core->free_kept;
            core->free_kept = kept;
            atomic_fetch_sub_explicit(&core->n_kept, 1, memory_order_release);
        }
    }
}
