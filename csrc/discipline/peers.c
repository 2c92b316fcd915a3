/* BSP among peers (SFB, section 3): every worker owns a share of each key (all rows of the key on one core), which
 * applies updates to this worker's own copy of the parameters. When the updates of the worker and of all its peers have
 * come, the share applies them in the order of ranks. So if all workers send to all, all have the same parameters, bit
 * for bit. Pushes may come through other ranks (engine/layout/rows.c); a discipline need not know this.
 *
 * A pull waits only for this rank's own share. A push waits until the peers have answered the earlier update in the
 * same slot. A worker that has ended step n has applied the updates of step n of all peers that send to it; it may be
 * one step ahead of a peer to which it sends. With two slots, and every rank sending to all, no push waits: when a
 * worker begins push n + 2, all peers have made push n + 1, and so have applied push n. */
#include "discipline/peers.h"

#include "discipline/discipline.h"
#include "discipline/graph.h"
#include "discipline/servers_bsp.h"
#include "engine/owner/row.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"

/* ---- the plan ---- */

static int refuse_row(int i, const char *why) {
    return hpc_fail(HPC_ERR_CONFIG, "exchange",
                    "exchange: row %d %s; among peers each row applies pushes, its owner's own among them, to the "
                    "parameters of its owner: make the plan by planner \"peer_to_peer\"",
                    i, why);
}

static int check_row(const hpc_row *row, int i) {
    if (row->action != HPC_APPLY) return refuse_row(i, "does not apply");
    if (row->quorum != row->n_in) return refuse_row(i, "has a quorum");
    if (row->n_out != 1 || row->out[0].row >= 0 || row->out[0].rank != row->owner)
        return refuse_row(i, "sends parameters to other ranks than its owner");
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].row >= 0 || row->in[e].weight == 0) return refuse_row(i, "has an input that is no push");
    return hpc_row_has_input(row, row->owner) ? HPC_OK : refuse_row(i, "takes no pushes of its owner");
}

const hpc_edge *hpc_peers_find_push(const hpc_plan *plan, int row, int owner, int rank) {
    const hpc_row *own = &plan->rows[row];
    while (row > 0 && plan->rows[row - 1].key == own->key && plan->rows[row - 1].offset == own->offset) row--;
    for (; row < plan->n_rows && plan->rows[row].key == own->key && plan->rows[row].offset == own->offset; row++)
        if (plan->rows[row].owner == owner) return hpc_row_input(&plan->rows[row], rank);
    return NULL;
}

/* Checks the path of an input: from rank to rank, the edges by which it is passed on must lead back to the rank that
 * pushes it. */
static int check_way(const hpc_plan *plan, int i, const hpc_edge *in) {
    const hpc_edge *at = in;
    for (int steps = 0; at != NULL && hpc_edge_via(at) >= 0 && steps < plan->n_rows; steps++)
        at = hpc_peers_find_push(plan, i, hpc_edge_via(at), in->rank);
    if (at != NULL && hpc_edge_via(at) < 0) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, "exchange",
                    "exchange: row %d takes pushes of rank %d by way of rank %d, to which they do not come", i,
                    in->rank, hpc_edge_via(in));
}

/* Checks an update that other ranks pass on. The rank that pushes it must own a row of the same elements, because the
 * event names that row. All rows of these elements must have the same core number, because a core passes pushes on to
 * the core with its own number. */
static int check_passed(const hpc_plan *plan, int i, const hpc_edge *in) {
    const hpc_row *row = &plan->rows[i], *before = i > 0 ? row - 1 : row;
    if (hpc_peers_find_push(plan, i, in->rank, in->rank) == NULL)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: row %d takes pushes of rank %d by way of rank %d, and rank %d has no row of these "
                        "elements; among peers each rank has one",
                        i, in->rank, hpc_edge_via(in), in->rank);
    if (before->key != row->key || before->offset != row->offset || before->core == row->core) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, "exchange",
                    "exchange: rows %d and %d of the same elements have cores %d and %d; a core passes pushes on to "
                    "the core of the same number",
                    i - 1, i, before->core, row->core);
}

static int check_ways(const hpc_plan *plan, int i) {
    int status = HPC_OK;
    for (int e = 0; e < plan->rows[i].n_in && status == HPC_OK; e++) {
        if (hpc_edge_via(&plan->rows[i].in[e]) < 0) continue;
        status = check_way(plan, i, &plan->rows[i].in[e]);
        if (status == HPC_OK) status = check_passed(plan, i, &plan->rows[i].in[e]);
    }
    return status;
}

int hpc_peers_check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    int status = HPC_OK;
    if (f->shared_params)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: shared_params needs servers: each peer has parameters of its own, so leave it out");
    for (int i = 0; i < f->plan->n_rows && status == HPC_OK; i++) {
        status = check_row(&f->plan->rows[i], i);
        if (status == HPC_OK) status = check_ways(f->plan, i);
    }
    return status;
}

/* ---- the core ---- */

/* Returns the slot of a push. The marks of a share's inputs are kept in its first row, for all rows; a mark is 0 before
 * the input comes and after its fold. */
static int slot_of(const hpc_scheme *sc, uint64_t push) {
    return (int)((push - 1) % (uint64_t)sc->layout.depth);
}

void hpc_peers_note_used(const hpc_scheme *sc, const hpc_share *share, int input, uint64_t push) {
    hpc_row_mark(hpc_first_work(sc, share), slot_of(sc, push), input, 0);
}

int hpc_peers_note_came(const hpc_scheme *sc, const hpc_share *share, int input, int slot, int how) {
    const hpc_work *w = hpc_first_work(sc, share);
    hpc_clock *from = &share->clocks[w->inputs[input].rank];
    if (hpc_row_mark_of(w, slot, input)) return 0; /* its sender has no more slots */
    hpc_row_mark(w, slot, input, how);
    uint64_t n = atomic_load_explicit(&from->came, memory_order_relaxed);
    const uint64_t most = atomic_load_explicit(&from->applied, memory_order_relaxed) + (uint64_t)sc->layout.depth;
    while (n < most && hpc_row_mark_of(w, slot_of(sc, n + 1), input)) n++;
    atomic_store_explicit(&from->came, n, memory_order_relaxed);
    return 1;
}

/* ---- the worker ---- */

/* Returns whether rank sends its pushes of a key to this rank. */
static int hears(const hpc_scheme *sc, int rank, int key) {
    const hpc_pushed *k = &sc->keys[key];
    for (int i = 0; i < k->n_awaited; i++)
        if (hpc_feeds_share(sc, &sc->layout.shares[k->awaited[i]], rank)) return 1;
    return 0;
}

int hpc_peers_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes) {
    return pushes < hpc_push_of(sc, key, ticket) && hears(sc, rank, key);
}

/* Adds the ranks whose inputs to the next fold of share s are missing. */
static int missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const uint64_t fold = hpc_share_next_fold(sc, s);
    (void)ticket;
    return hpc_whole_missing(sc, &sc->layout.shares[s], hpc_whole_slot(sc, 2 * fold), fold, ranks, found);
}

const hpc_discipline hpc_discipline_peers = {
    .name = "BSP among peers",
    .check = hpc_peers_check,
    .traits = HPC_WHOLE | HPC_OWN_PARAMS | HPC_PASSES_ON,
    .gate = &(const hpc_gate){.row_came = hpc_whole_row_came, .missing = missing},
    .pace = &(const hpc_pace){.may_push = hpc_push_after_last,
                              .send_share = hpc_push_in_turn,
                              .has_read = hpc_share_has_answered,
                              .is_late = hpc_peers_is_late},
};
