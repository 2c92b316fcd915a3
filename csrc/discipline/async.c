/* ASYNC on servers: each update is applied as it comes, by the arguments that its worker has set, and parameters go to
 * the worker that asks for them. On a graph ASYNC is in unflushed.c. */
#include <stdlib.h>

#include "discipline/each.h"
#include "discipline/peers.h"
#include "engine/answer.h"
#include "engine/send.h"
#include "engine/write.h"

/* A share's own; arrays are by rank. */
typedef struct counts {
    uint64_t *applied; /* pushes that all rows have applied */
    uint64_t *pulled;  /* pulls answered */
    int *rows_done;    /* rows of the current push that are applied */
} counts;

static int suits(const hpc_exchange_config *f) {
    return f->consistency == HPC_ASYNC && f->graph == NULL;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    if (f->shared_params)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: shared_params needs BSP: under ASYNC a worker would see the pushes of others");
    if (hpc_peers_are_planned(f))
        return hpc_fail(HPC_ERR_UNSUPPORTED, "exchange", "exchange: peers know BSP and SSP; here is ASYNC");
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if ((row->quorum != 1 && row->quorum != row->n_in) || row->action != HPC_APPLY)
            return hpc_fail(HPC_ERR_CONFIG, "exchange",
                            "exchange: row %d has action %d and a quorum of %d of %d inputs; ASYNC applies each one by "
                            "itself: 1, or all of them",
                            i, row->action, row->quorum, row->n_in);
    }
    return HPC_OK;
}

/* ---- open ---- */

static int open_all(hpc_engine *en, const char *op) {
    size_t size = (size_t)en->context->group.size;
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_share *share = &en->layout.shares[s];
        if (share->owner != en->context->group.rank) continue;
        counts *c = share->own = calloc(1, sizeof *c);
        if (c != NULL) {
            c->applied = calloc(size, sizeof *c->applied);
            c->pulled = calloc(size, sizeof *c->pulled);
            c->rows_done = calloc(size, sizeof *c->rows_done);
        }
        if (c == NULL || c->applied == NULL || c->pulled == NULL || c->rows_done == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    }
    return HPC_OK;
}

static void free_all(hpc_engine *en) {
    for (int s = 0; s < en->layout.n_shares; s++) {
        counts *c = en->layout.shares[s].own;
        if (c == NULL) continue;
        free(c->applied);
        free(c->pulled);
        free(c->rows_done);
        free(c);
        en->layout.shares[s].own = NULL;
    }
}

/* ---- the core ---- */

static void input_came(hpc_core *core, hpc_work *w, int slot, int input) {
    const hpc_engine *en = core->engine;
    hpc_share *share = w->share;
    const int from = w->inputs[input].rank;
    counts *c = share->own;
    if (!hpc_each_apply(core, w, slot, input, c->rows_done)) return;
    hpc_share_answer(core, from, hpc_signal_applied(en, (int)(share - en->layout.shares)), ++c->applied[from]);
}

static int share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    return hpc_each_share_came(core, share, rank, slot, input_came);
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    input_came(core, w, slot, input);
    return 1;
}

/* Every push that the worker made before has been applied, events being in order. */
static int pull_came(hpc_core *core, hpc_share *share, int rank) {
    const hpc_engine *en = core->engine;
    counts *c = share->own;
    for (int i = 0; i < share->n_rows; i++) hpc_row_send(core, &en->work[en->work_of[share->rows[i]]], rank);
    hpc_share_answer(core, rank, hpc_signal_second(en, (int)(share - en->layout.shares)), ++c->pulled[rank]);
    return 1;
}

static uint64_t folded_of(const hpc_share *share, int rank) {
    const counts *c = share->own;
    return c->applied[rank] + (c->rows_done[rank] > 0);
}

/* ---- the worker ---- */

static int may_push(hpc_engine *en, int key, const char *op) {
    return hpc_push_after(en, key, hpc_slot_ticket(en, key), op);
}

static int awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks) {
    (void)for_slot;
    int n = hpc_silent_owners(en, key, ticket, ranks, 0);
    return n > 0 ? n : hpc_add_rank(ranks, n, en->context->group.rank); /* its own core is at it */
}

static const hpc_pulling pulling = {0};

const hpc_discipline hpc_discipline_async = {
    .name = "ASYNC",
    .suits = suits,
    .check = check,
    .goes_on = 1,
    .pulling = &pulling,
    .opening = &(const hpc_opening){.open = open_all, .free = free_all},
    .share_came = share_came,
    .row_came = row_came,
    .pull_came = pull_came,
    .holds_up = hpc_each_holds_up,
    .may_push = may_push,
    .awaited = awaited,
    .facts = &(const hpc_facts){.folded_of = folded_of},
};
