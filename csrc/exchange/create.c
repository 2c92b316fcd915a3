/* A scheme is opened: its layout, its memory, its lanes, the first parameters. */
#include "exchange/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "discipline/config.h"
#include "discipline/discipline.h"
#include "engine/args.h"
#include "engine/bytes.h"
#include "engine/graph.h"
#include "engine/holders.h"
#include "engine/layout.h"
#include "engine/params.h"
#include "engine/pieces.h"
#include "engine/progress.h"
#include "engine/rows.h"
#include "engine/send.h"
#include "engine/stages.h"

static const char op_create[] = "exchange";

/* Refuses a row that sends parameters to a worker that does not push to it, as a worker's parameters may change between
 * its push and its pull only. Where owners go on without some workers, all rows of a key must have the same workers. */
static int check_outputs(const hpc_scheme *sc) {
    for (int i = 0; i < sc->plan->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[i], *before = i > 0 ? row - 1 : NULL;
        if (row->action == HPC_FORWARD) continue;
        if (before != NULL && before->key == row->key && before->in == row->in && before->out == row->out) continue;
        for (int r = 0; r < sc->context->group.size; r++) {
            int gets = hpc_row_has_output(row, r), gives = hpc_row_is_fed_by(sc, i, r),
                reached = hpc_row_reaches(sc, i, r);
            int pushes = sc->layout.pushers[(size_t)row->key * (size_t)sc->context->group.size + (size_t)r];
            if (gets && !gives)
                return hpc_fail(HPC_ERR_CONFIG, op_create,
                                "exchange: row %d sends parameters to rank %d, which sends it no update", i, r);
            if ((sc->discipline->traits & HPC_GOES_ON) && !(sc->discipline->traits & HPC_OWN_PARAMS) &&
                row->action != HPC_RELAY && (reached != gives || gives != pushes))
                return hpc_fail(HPC_ERR_CONFIG, op_create,
                                "exchange: under %s all rows of a key must take updates from the same ranks, and send "
                                "parameters to those ranks; row %d does not do so with rank %d",
                                sc->discipline->name, i, r);
        }
    }
    return HPC_OK;
}

/* Parameters go past the caches when all that the ranks touch in a step would not fit the last one. */
static int writes_past_caches(const hpc_scheme *sc) {
    size_t workers = 0, copies = 0;
    for (int r = 0; r < sc->context->group.size; r++) {
        workers += (size_t)sc->layout.places[r].worker;
        copies += (size_t)(sc->layout.holders[r] == r);
    }
    size_t touched = workers * sc->layout.gradient_bytes + copies * sc->layout.params_bytes;
    for (int k = 0; k < sc->plan->n_keys; k++)
        touched += (size_t)sc->plan->keys[k].count * sizeof(float) * (size_t)sc->rules[k].rule.slots;
    return touched > hpc_host_cache("");
}

/* Memory that one core works on is placed on its NUMA node. Pieces come in rising order; adjacent ones are merged. */
struct pieces {
    const hpc_scheme *sc;
    hpc_placement *places;
    int n;
};

static void add_piece(struct pieces *p, int core, size_t offset, size_t nbytes) {
    hpc_placement *last = p->n > 0 ? &p->places[p->n - 1] : NULL;
    int node = p->sc->cores[core].node;
    if (last != NULL && last->node == node && last->offset <= offset)
        last->nbytes = offset + nbytes - last->offset;
    else
        p->places[p->n++] = (hpc_placement){offset, nbytes, node};
}

static void add_masters(struct pieces *p) {
    const hpc_scheme *sc = p->sc;
    int me = sc->context->group.rank;
    for (int core = 0; core < sc->n_own_cores; core++)
        for (int i = 0; i < sc->plan->n_rows; i++) {
            const hpc_row *row = &sc->plan->rows[i];
            if (row->owner == me && row->core == core && sc->layout.master_of[i] != HPC_NOWHERE)
                add_piece(p, core, sc->layout.places[me].masters + sc->layout.master_of[i],
                          (size_t)row->count * sizeof(float));
        }
}

/* The receive slots of one sender: hpc_layout_walk goes from core to core, and is called once for each sender. */
struct slots {
    struct pieces *pieces;
    int sender;
};

static void add_slots(void *arg, int row, int edge, size_t offset) {
    const struct slots *s = arg;
    const hpc_scheme *sc = s->pieces->sc;
    const hpc_row *r = &sc->plan->rows[row];
    size_t base = sc->layout.slot_base[(size_t)r->owner * (size_t)sc->context->group.size + (size_t)s->sender];
    if (r->in[edge].rank == s->sender)
        add_piece(s->pieces, r->core, base + offset, hpc_slot_stride(sc, r) * (size_t)hpc_slot_depth(sc));
}

/* Whether the windows of all ranks of each host fit there together; all ranks find the same. all: room for as many
 * pairs as there are ranks. */
static int check_memory(const hpc_scheme *sc, uint64_t (*all)[2], double deadline) {
    const hpc_context *c = sc->context;
    const int size = c->group.size;
    const uint64_t mine[2] = {sc->layout.places[c->group.rank].nbytes, hpc_memory_available()};
    int status = hpc_allgather(sc->context, mine, all, sizeof mine, hpc_left(deadline));
    for (int r = 0; r < size && status == HPC_OK; r++) {
        uint64_t needed = 0;
        for (int s = 0; s < size; s++)
            if (hpc_same_host(&c->addresses[r], &c->addresses[s])) needed += all[s][0];
        if (needed <= all[r][1]) continue;
        status = hpc_fail(
            HPC_ERR_MEMORY, op_create,
            "exchange: the ranks of host %s need %llu bytes of memory to exchange, with %d slots for each "
            "update, and %llu are available there: give smaller parameters, fewer ranks to the host, or a "
            "smaller depth or staleness, which take fewer slots",
            c->addresses[r].hostname, (unsigned long long)needed, sc->layout.depth, (unsigned long long)all[r][1]);
    }
    return status;
}

static int open_memory(hpc_scheme *sc, double deadline) {
    hpc_context *c = sc->context;
    int me = c->group.rank, placed = 0;
    for (int i = 0; i < sc->n_own_cores; i++) placed |= sc->cores[i].node >= 0;
    struct pieces pieces = {sc, NULL, 0};
    if (placed) /* at most one for each core: of the masters, and of the slots of each sender */
        pieces.places = calloc((size_t)sc->n_own_cores * ((size_t)c->group.size + 1) + 1, sizeof *pieces.places);
    if (pieces.places != NULL) { /* without this memory only the hint is lost */
        add_masters(&pieces);
        for (int s = 0; s < c->group.size; s++) hpc_layout_walk(sc, me, -1, add_slots, &(struct slots){&pieces, s});
    }
    int status = hpc_window_create_parts(c, op_create, sc->layout.places[me].nbytes, hpc_signals(sc), pieces.places,
                                         pieces.n, deadline, &sc->window);
    if (status == HPC_OK && sc->window->memory->unplaced != 0)
        hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "exchange: the kernel refused to place memory on NUMA nodes");
    free(pieces.places);
    return status;
}

/* Both lanes of a core use one rail: a chunk goes back by the path on which its updates came (PHub, section 3.2.4). */
static int open_lanes(hpc_scheme *sc, double deadline) {
    int status = HPC_OK;
    sc->in_lanes = calloc((size_t)sc->n_lanes, sizeof(hpc_lane *));
    sc->out_lanes = calloc((size_t)sc->n_lanes, sizeof(hpc_lane *));
    if (sc->in_lanes == NULL || sc->out_lanes == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %d lanes", sc->n_lanes);
    status = hpc_context_agree(sc->context, op_create, status, deadline);
    for (int i = 0; i < sc->n_lanes && status == HPC_OK; i++) {
        int rail = sc->plan->affinity == HPC_WORKER_BY_INTERFACE ? HPC_RAIL_BY_WORKER : i;
        status = hpc_lane_open(sc->context, 0, rail, deadline, &sc->in_lanes[i]);
        if (status == HPC_OK) status = hpc_lane_open(sc->context, 0, rail, deadline, &sc->out_lanes[i]);
    }
    return status;
}

/* Tells every rank where each owner's receive slots begin. */
static int learn_slots(hpc_scheme *sc, double deadline) {
    size_t nbytes = (size_t)sc->context->group.size * sizeof *sc->layout.slot_base;
    size_t *mine = malloc(nbytes);
    int status = mine == NULL ? hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for receive slots") : HPC_OK;
    status = hpc_context_agree(sc->context, op_create, status, deadline);
    if (status == HPC_OK) {
        memcpy(mine, sc->layout.slot_base + (size_t)sc->context->group.rank * (size_t)sc->context->group.size, nbytes);
        status = hpc_allgather(sc->context, mine, sc->layout.slot_base, nbytes, hpc_left(deadline));
    }
    free(mine);
    return status;
}

/* Puts rank 0's values into the parameters of every worker and into every master. */
static int send_values(hpc_scheme *sc, const float *const *values, double deadline) {
    hpc_context *c = sc->context;
    int status = HPC_OK;
    for (int r = 0; r < c->group.size && status == HPC_OK; r++)
        for (int k = 0; k < sc->plan->n_keys && status == HPC_OK && sc->layout.places[r].params != HPC_NOWHERE; k++)
            status = hpc_put(NULL, sc->window, r, values[k], (size_t)sc->plan->keys[k].count * sizeof(float),
                             hpc_params_at(sc, r, k, 0));
    for (int i = 0; i < sc->plan->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &sc->plan->rows[i];
        if (sc->layout.master_of[i] != HPC_NOWHERE)
            status = hpc_put(NULL, sc->window, row->owner, values[row->key] + row->offset,
                             (size_t)row->count * sizeof(float),
                             sc->layout.places[row->owner].masters + sc->layout.master_of[i]);
    }
    return status == HPC_OK ? hpc_flush(NULL, sc->window, -1, hpc_left(deadline)) : status;
}

/* Every row's parameters go to its workers, from every owner. Collective, while no rank has a call pending. */
int hpc_scheme_send_params(hpc_scheme *sc, const char *op, double deadline) {
    int status = hpc_note(sc, -1, HPC_ON_PUBLISH, &(hpc_limit){0, deadline}, op);
    for (int hops = 0; hops <= sc->layout.stages.most_hops; hops++) { /* each relay after those before it */
        if (status == HPC_OK) {
            hpc_cores_write(sc, hops);
            status = hpc_scheme_check(sc, op);
        }
        if (status == HPC_OK && hops == 0) status = hpc_note(sc, -1, HPC_ON_PUBLISHED, NULL, op);
        for (int i = 0; i < sc->n_own_cores && status == HPC_OK; i++)
            status = hpc_flush(sc->cores[i].out, sc->window, -1, hpc_left(deadline));
        status = hpc_context_agree(sc->context, op, status, deadline);
        if (status != HPC_OK) return status;
    }
    if (status == HPC_OK) hpc_params_were_sent(sc);
    return status;
}

/* Rank 0's values are in all masters and params. Where parameters travel encoded, params get the bits that they would
 * get from the owners. This traffic is not counted, like rank 0's puts. */
static int round_values(hpc_scheme *sc, double deadline) {
    int status = hpc_scheme_send_params(sc, op_create, deadline);
    for (int i = 0; i < sc->n_own_cores; i++)
        atomic_store_explicit(&sc->cores[i].tally.bytes_written, 0, memory_order_relaxed);
    hpc_forget_traffic(sc);
    return status;
}

static int open_all(hpc_scheme *sc, const hpc_exchange_config *f, double deadline) {
    const hpc_discipline *d = sc->discipline;
    hpc_context *c = sc->context;
    int status = hpc_layout_make(sc, op_create);
    if (status == HPC_OK) status = hpc_holders_check(sc, op_create);
    if (status == HPC_OK) status = check_outputs(sc);
    if (status == HPC_OK && d->plan != NULL) status = d->plan(sc, op_create);
    if (status == HPC_OK) status = hpc_layout_slots(sc);
    if (status == HPC_OK) status = hpc_params_take_place(sc, op_create);
    if (status == HPC_OK) status = hpc_progress_choose(sc, f->progress, op_create);
    uint64_t(*needs)[2] = malloc((size_t)c->group.size * sizeof *needs);
    if (status == HPC_OK && needs == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %d ranks", c->group.size);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status == HPC_OK) status = check_memory(sc, needs, deadline);
    free(needs);
    if (status == HPC_OK) status = open_memory(sc, deadline);
    if (status == HPC_OK) status = open_lanes(sc, deadline);
    if (status == HPC_OK) status = learn_slots(sc, deadline);
    if (status == HPC_OK) status = hpc_params_learn(sc, deadline);
    if (status != HPC_OK) return status;
    sc->stream = writes_past_caches(sc);
    status = hpc_rows_open(sc, op_create);
    if (status == HPC_OK && d->open != NULL) status = d->open(sc, op_create);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status != HPC_OK) return status;
    if (c->group.rank == 0) status = send_values(sc, f->values, deadline);
    status = hpc_context_agree(c, op_create, status, deadline); /* also the barrier before the first push */
    if (status == HPC_OK && sc->layout.encodes) status = round_values(sc, deadline);
    if (status != HPC_OK) return status;
    sc->life.open = 1;
    sc->life.serves = (sc->discipline->traits & HPC_GOES_ON) || sc->passes_on ||
                      sc->gate->outstanding != NULL; /* puts of others' updates read this memory */
    sc->life.serves &= sc->n_work > 0;
    for (int s = 0; s < sc->layout.n_shares; s++) { /* others may push to its rows after its own last push */
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner == c->group.rank &&
            (!hpc_share_involves(sc, share, c->group.rank) || (share->clocks != NULL && !hpc_owners_leave(sc))))
            sc->life.serves = 1;
    }
    for (int i = 0; i < sc->n_work; i++) sc->life.serves |= hpc_row_outlasts_pulls(sc, sc->work[i].index);
    hpc_cores_start(sc);
    return HPC_OK;
}

static int open_counts(hpc_scheme *sc) {
    size_t size = (size_t)sc->context->group.size;
    sc->peers.pushed = calloc(size, sizeof *sc->peers.pushed);
    sc->peers.pushed_of_key = calloc((size_t)sc->plan->n_keys, sizeof *sc->peers.pushed_of_key);
    sc->peers.received = calloc(size, sizeof *sc->peers.received);
    sc->peers.late = calloc(size, sizeof *sc->peers.late);
    sc->peers.dropped = calloc(size, sizeof *sc->peers.dropped);
    sc->peers.wait = calloc(size, sizeof *sc->peers.wait);
    sc->peers.awaited = calloc(size, sizeof *sc->peers.awaited);
    sc->threads = calloc(size, sizeof *sc->threads);
    if (sc->peers.pushed == NULL || sc->peers.pushed_of_key == NULL || sc->peers.received == NULL ||
        sc->peers.late == NULL || sc->peers.dropped == NULL || sc->peers.wait == NULL || sc->peers.awaited == NULL ||
        sc->threads == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %zu ranks", size);
    return HPC_OK;
}

static int open_rules(hpc_scheme *sc, const hpc_exchange_config *f) {
    sc->rules = calloc((size_t)sc->plan->n_keys, sizeof *sc->rules);
    if (sc->rules == NULL) return hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for rules");
    for (int k = 0; k < sc->plan->n_keys; k++) {
        hpc_key_rule *its = &sc->rules[k];
        its->rule = *hpc_config_rule(f, k);
        snprintf(its->name, sizeof its->name, "%s", its->rule.name);
        its->rule.name = its->name;
        snprintf(its->arg_names, sizeof its->arg_names, "%s", its->rule.arg_names == NULL ? "" : its->rule.arg_names);
        its->rule.arg_names = its->arg_names;
        its->pass = hpc_rule_pass(&its->rule);
        its->is_sgd = hpc_rule_is_sgd(&its->rule);
        its->averages = hpc_rule_averages(&its->rule);
    }
    return HPC_OK;
}

hpc_scheme *hpc_scheme_new(hpc_context *c, const hpc_exchange_config *f, const char *op) {
    hpc_scheme *sc = calloc(1, sizeof *sc);
    if (sc == NULL || hpc_plan_copy(f->plan, op, &sc->plan) != HPC_OK) {
        free(sc);
        return NULL;
    }
    sc->context = hpc_context_retain(c);
    sc->next = sc;
    sc->kernels = hpc_fold_kernels_of(f->isa);
    const hpc_discipline *d = sc->discipline = hpc_discipline_of(f);
    sc->asked = (hpc_asked){.consistency = f->consistency,
                            .shared_params = f->shared_params != 0,
                            .check_finite = f->check_finite != 0,
                            .in_place = f->in_place != 0,
                            .split = f->split != 0,
                            .staleness = f->consistency == HPC_SSP ? f->staleness : 0,
                            .quorum = d->traits & HPC_BY_QUORUM ? f->quorum : 0,
                            .grace = f->grace < 0 ? -1 : f->grace,
                            .patience = f->patience};
    sc->facts = hpc_config_facts(f);
    sc->rotates = hpc_models_rotate(f);
    sc->own_args = f->graph != NULL || d->traits & HPC_KEEPS_INPUTS;
    sc->gate = d->gate, sc->pace = d->pace, sc->use = d->use;
    sc->has_read = d->pace->has_read;
    sc->passes_on = (d->traits & HPC_PASSES_ON) && hpc_plan_has_ways(f->plan);
    sc->puts = (d->traits & HPC_PUTS) || sc->passes_on;
    return sc;
}

int hpc_scheme_open(hpc_scheme *sc, const hpc_exchange_config *f, const hpc_exchange *of, double deadline) {
    int status = open_counts(sc);
    if (status == HPC_OK) status = open_rules(sc, f);
    if (status == HPC_OK) status = hpc_pieces_open(sc, f, op_create);
    if (status == HPC_OK && f->graph != NULL) status = hpc_graph_open(sc, f->graph, op_create);
    if (status == HPC_OK) status = hpc_held_open(sc, op_create);
    status = hpc_context_agree(sc->context, op_create, status, deadline);
    if (status == HPC_OK) status = hpc_scheme_agree(sc, f, of, deadline);
    return status == HPC_OK ? open_all(sc, f, deadline) : status;
}
