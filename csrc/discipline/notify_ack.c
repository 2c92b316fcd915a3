/* NOTIFY-ACK (ASAP, section 4): a fold waits for the updates of the in-neighbours alone, and a push for the
 * out-neighbours' answers that they have folded the update that used its slot before. */
#include "discipline/discipline.h"
#include "discipline/graph_whole.h"
#include "engine/stages.h"

static int suits(const hpc_exchange_config *f) {
    return f->consistency == HPC_NOTIFY_ACK;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    return hpc_graph_is_given(f, "exchange");
}

/* The last of rank's pushes, up to push n, that is sent to this rank. */
static uint64_t needs(const hpc_engine *en, int rank, int key, uint64_t n) {
    const hpc_pushed *k = &en->keys[key];
    int me = en->context->group.rank;
    for (int i = 0; i < k->n_shares && rank != me; i++) {
        const hpc_share *share = &en->layout.shares[k->shares[i]];
        if (share->owner != me || !hpc_feeds_share(en, share, rank)) continue;
        for (uint64_t v = n, first = hpc_share_next_fold(en, k->shares[i]); v >= first;
             v--) /* n waits for those before */
            if (hpc_sends(en, key, v, me, rank)) return v;
    }
    return 0;
}

const hpc_discipline hpc_discipline_notify_ack = {
    .name = "NOTIFY_ACK",
    .suits = suits,
    .check = check,
    .whole = 1,
    .turns = hpc_graph_turns,
    .makes_params = hpc_graph_makes_params,
    .opening = &(const hpc_opening){.prepare = hpc_graph_prepare, .open = hpc_graph_whole_open},
    .share_came = hpc_graph_whole_share_came,
    .row_came = hpc_graph_whole_row_came,
    .begin_push = hpc_graph_begin_push,
    .send_share = hpc_graph_send_share,
    .is_free = hpc_graph_is_free,
    .needs = needs,
    .awaited = hpc_graph_whole_awaited,
    .leaving = &(const hpc_leaving){.finish = hpc_graph_finish},
    .facts = &(const hpc_facts){.restored = hpc_graph_restored},
};
