/* Sends an update from this rank's memory to the owners of its rows: finds the push's slot, waits until the slot is
 * free, and sends the messages by the lane. */
#include "engine/worker/send.h"

#include "base/overdue.h"
#include "engine/owner/signals.h"
#include "engine/bytes.h"
#include "engine/pieces.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"

/* ---- slots ---- */

uint64_t hpc_slot_ticket(const hpc_scheme *sc, int key) {
    uint64_t pushes = sc->keys[key].pushes, depth = (uint64_t)(sc->layout.depth - sc->rotates);
    return pushes < depth ? 0 : 2 * (pushes - depth + 1);
}

char *hpc_slot_of_push(const hpc_scheme *sc, int key, uint64_t n) {
    return hpc_own_part(sc) + sc->layout.places[sc->context->group.rank].gradients + sc->keys[key].gradient +
           (n - 1) % (uint64_t)sc->layout.depth * sc->layout.gradient_bytes;
}

char *hpc_push_slot(const hpc_scheme *sc, int key) {
    return hpc_slot_of_push(sc, key, sc->keys[key].pushes + 1);
}

int hpc_push_wait_done(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    uint64_t last = 2 * sc->keys[key].pushes;
    return hpc_ticket_is_done(sc, key, last) ? HPC_OK : hpc_ticket_wait(sc, key, last, hpc_limit_left(sc, l), op);
}

/* If models are trained in place, the result of the last push is the model that is trained next, so that push must be
 * done. */
int hpc_push_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    uint64_t ticket = hpc_slot_ticket(sc, key);
    int status = sc->asked.in_place ? hpc_push_wait_done(sc, key, l, op) : HPC_OK;
    if (status == HPC_OK && !hpc_ticket_is_free(sc, key, ticket))
        status = hpc_ticket_wait_slot(sc, key, ticket, hpc_limit_left(sc, l), op);
    return status;
}

int hpc_push_after(hpc_scheme *sc, int key, uint64_t last, const char *op) {
    if (hpc_ticket_is_done(sc, key, last)) return HPC_OK;
    hpc_group_progress(&sc->context->group);
    if (hpc_ticket_is_done(sc, key, last)) return HPC_OK;
    if (op == NULL) return HPC_IN_PROGRESS;
    return hpc_fail(HPC_ERR_INVALID, op,
                    "%s: key %s is under way since push %llu of rank %d; wait for it before the next one", op,
                    sc->plan->keys[key].name, (unsigned long long)(last / 2), sc->context->group.rank);
}

int hpc_push_after_last(hpc_scheme *sc, int key, const char *op) {
    return hpc_push_after(sc, key, 2 * sc->keys[key].pushes, op);
}

/* ---- events and puts ---- */

void hpc_count_sent(hpc_scheme *sc, const hpc_share *share, const char *slot) {
    const size_t nbytes = hpc_key_pushes_pieces(sc, share->key) ? hpc_pieces_pushed(sc, share, slot) : share->pushed;
    hpc_tally_add(&sc->peers.pushed[share->owner], nbytes);
    if (share->owner != sc->context->group.rank) hpc_tally_add(&sc->peers.pushed_of_key[share->key], nbytes);
}

int hpc_send_event(hpc_scheme *sc, int core, int owner, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                   hpc_limit *l) {
    static const double often = 0.05; /* seconds between looks at whether the owner has closed */
    hpc_lane *lane = sc->in_lanes[core];
    int status = hpc_lane_try_notify(lane, sc->window, owner, src, nbytes, offset, imm);
    if (status != HPC_IN_PROGRESS) return status;
    hpc_worker_uncork(sc);
    while (!hpc_owners_leave(sc) || hpc_closed_signal(sc, owner) == 0) {
        double left = hpc_limit_left(sc, l), slice = hpc_owners_leave(sc) && left > often ? often : left;
        int before = hpc_slice_waits(slice < left);
        status = hpc_put_notify(lane, sc->window, owner, src, nbytes, offset, imm, slice);
        hpc_slice_waits(before);
        if (!hpc_slice_is_over(status) || slice == left) return status;
    }
    return HPC_OK;
}

int hpc_send_ahead(hpc_scheme *sc, int core, int owner, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                   hpc_limit *l) {
    hpc_lane_take_turn(sc->in_lanes[core], 1);
    int status = hpc_send_event(sc, core, owner, src, nbytes, offset, imm, l);
    hpc_lane_take_turn(sc->in_lanes[core], 0);
    return status;
}

/* Tells the owner of a share that a push has no update. A peer is told directly, even if updates pass other ranks. */
static int push_empty(hpc_scheme *sc, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    const uint32_t imm = hpc_imm(HPC_OP_EMPTY, sc->layout.stages.many ? 0 : slot, s);
    if (share->pushed == 0 && share->tells == 0 && !sc->passes_on) return HPC_OK;
    const int status = hpc_send_event(sc, share->core, share->owner, NULL, 0, 0, imm, l);
    return hpc_owners_leave(sc) ? hpc_unless_left(sc, share->owner, status) : status;
}

int hpc_push_share(hpc_scheme *sc, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    hpc_pushed *k = &sc->keys[share->key];
    int me = sc->context->group.rank, status = HPC_OK;
    if (k->started & HPC_PUSH_EMPTY) return push_empty(sc, s, slot, l);
    /* The update reaches it through other rows or ranks. */
    if (share->pushed == 0 && share->tells == 0) return HPC_OK;
    const int in_place = hpc_reads_in_place(sc, share->owner, me);
    for (; !in_place && k->at_row < share->n_rows && status == HPC_OK; k->at_row++) {
        int index = share->rows[k->at_row];
        const hpc_row *row = &sc->plan->rows[index];
        const hpc_edge *push = hpc_row_input(row, me);
        if (push == NULL || hpc_input_is_empty(sc, push) || hpc_edge_via(push) >= 0) continue;
        const char *src = hpc_push_slot(sc, share->key) + hpc_row_from(sc, row);
        status = hpc_send_event(sc, share->core, share->owner, src, hpc_push_bytes(sc, row, src),
                                sc->push_slot[index] + (size_t)slot * hpc_slot_stride(sc, row),
                                hpc_imm(HPC_OP_ROW, slot, index), l);
        if (status != HPC_OK) break;
    }
    if (status == HPC_OK && (in_place || share->tells > 0))
        status = hpc_send_event(sc, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_SHARE, slot, s), l);
    if (hpc_owners_leave(sc)) status = hpc_unless_left(sc, share->owner, status);
    if (status == HPC_OK) hpc_count_sent(sc, share, hpc_push_slot(sc, share->key));
    return status;
}

int hpc_push_in_turn(hpc_scheme *sc, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    hpc_lane_take_turn(hpc_push_lane(sc, share), hpc_turn_of(share->key));
    int status = hpc_push_share(sc, s, slot, l);
    hpc_lane_take_turn(hpc_push_lane(sc, share), 0);
    return status;
}

/* ---- neighbours that leave ---- */

int hpc_unless_left(const hpc_scheme *sc, int rank, int status) {
    if (status != HPC_ERR_PEER) return status;
    if (!hpc_has_left(sc, rank)) return status;
    hpc_blame_settle(&sc->context->group.blame, NULL, 0);
    return HPC_OK;
}

void hpc_ask_flushed(const hpc_scheme *sc, int key) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        if (share->owner != sc->context->group.rank) hpc_lane_try_flush(hpc_push_lane(sc, share), share->owner);
    }
}

int hpc_flush_key(hpc_scheme *sc, int key, hpc_limit *l) {
    const hpc_pushed *k = &sc->keys[key];
    int status = HPC_OK;
    if (k->pushes > 0) hpc_ask_flushed(sc, key); /* asks all owners before it waits for any */
    for (int i = 0; i < k->n_shares && k->pushes > 0 && status == HPC_OK; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        if (share->owner == sc->context->group.rank) continue;
        status = hpc_unless_left(sc, share->owner,
                                 hpc_flush(hpc_push_lane(sc, share), sc->window, share->owner, hpc_limit_left(sc, l)));
    }
    return status;
}
