/* An engine is opened: its layout, its memory, its lanes, the first parameters. */
#include "exchange/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "discipline/discipline.h"
#include "engine/args.h"
#include "engine/graph.h"
#include "engine/holders.h"
#include "engine/params.h"
#include "engine/pieces.h"
#include "engine/progress.h"
#include "engine/rows.h"
#include "engine/send.h"
#include "engine/stages.h"

static const char op_create[] = "exchange";

/* Refuses a row that sends parameters to a worker that does not push to it, as a worker's parameters may change between
 * its push and its pull only. Where owners go on without some workers, all rows of a key must have the same workers. */
static int check_outputs(const hpc_engine *en) {
    for (int i = 0; i < en->plan->n_rows; i++) {
        const hpc_row *row = &en->plan->rows[i], *before = i > 0 ? row - 1 : NULL;
        if (row->action == HPC_FORWARD) continue;
        if (before != NULL && before->key == row->key && before->in == row->in && before->out == row->out) continue;
        for (int r = 0; r < en->context->group.size; r++) {
            int gets = hpc_row_has_output(row, r), gives = hpc_row_is_fed_by(en, i, r),
                reached = hpc_row_reaches(en, i, r);
            int pushes = en->layout.pushers[(size_t)row->key * (size_t)en->context->group.size + (size_t)r];
            if (gets && !gives)
                return hpc_fail(HPC_ERR_CONFIG, op_create,
                                "exchange: row %d sends parameters to rank %d, which sends it no update", i, r);
            if ((en->discipline->traits & HPC_GOES_ON) && !(en->discipline->traits & HPC_OWN_PARAMS) &&
                row->action != HPC_RELAY && (reached != gives || gives != pushes))
                return hpc_fail(HPC_ERR_CONFIG, op_create,
                                "exchange: under %s all rows of a key must take updates from the same ranks, and send "
                                "parameters to those ranks; row %d does not do so with rank %d",
                                en->discipline->name, i, r);
        }
    }
    return HPC_OK;
}

/* Parameters go past the caches when all that the ranks touch in a step would not fit the last one. */
static int writes_past_caches(const hpc_engine *en) {
    size_t workers = 0, copies = 0;
    for (int r = 0; r < en->context->group.size; r++) {
        workers += (size_t)en->layout.places[r].worker;
        copies += (size_t)(en->layout.holders[r] == r);
    }
    size_t touched = workers * en->layout.gradient_bytes + copies * en->layout.params_bytes;
    for (int k = 0; k < en->plan->n_keys; k++)
        touched += (size_t)en->plan->keys[k].count * sizeof(float) * (size_t)en->rules[k].rule.slots;
    return touched > hpc_host_cache("");
}

/* Memory that one core works on is placed on its NUMA node. Pieces come in rising order; adjacent ones are merged. */
struct pieces {
    const hpc_engine *en;
    hpc_placement *places;
    int n;
};

static void add_piece(struct pieces *p, int core, size_t offset, size_t nbytes) {
    hpc_placement *last = p->n > 0 ? &p->places[p->n - 1] : NULL;
    int node = p->en->cores[core].node;
    if (last != NULL && last->node == node && last->offset <= offset)
        last->nbytes = offset + nbytes - last->offset;
    else
        p->places[p->n++] = (hpc_placement){offset, nbytes, node};
}

static void add_masters(struct pieces *p) {
    const hpc_engine *en = p->en;
    int me = en->context->group.rank;
    for (int core = 0; core < en->n_own_cores; core++)
        for (int i = 0; i < en->plan->n_rows; i++) {
            const hpc_row *row = &en->plan->rows[i];
            if (row->owner == me && row->core == core && en->layout.master_of[i] != HPC_NOWHERE)
                add_piece(p, core, en->layout.places[me].masters + en->layout.master_of[i],
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
    const hpc_engine *en = s->pieces->en;
    const hpc_row *r = &en->plan->rows[row];
    size_t base = en->layout.slot_base[(size_t)r->owner * (size_t)en->context->group.size + (size_t)s->sender];
    if (r->in[edge].rank == s->sender)
        add_piece(s->pieces, r->core, base + offset, hpc_slot_stride(en, r) * (size_t)hpc_slot_depth(en));
}

/* Whether the windows of all ranks of each host fit there together; all ranks find the same. all: room for as many
 * pairs as there are ranks. */
static int check_memory(const hpc_engine *en, uint64_t (*all)[2], double deadline) {
    const hpc_context *c = en->context;
    const int size = c->group.size;
    const uint64_t mine[2] = {en->layout.places[c->group.rank].nbytes, hpc_memory_available()};
    int status = hpc_allgather(en->context, mine, all, sizeof mine, hpc_left(deadline));
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
            c->addresses[r].hostname, (unsigned long long)needed, en->layout.depth, (unsigned long long)all[r][1]);
    }
    return status;
}

static int open_memory(hpc_engine *en, double deadline) {
    hpc_context *c = en->context;
    int me = c->group.rank, placed = 0;
    for (int i = 0; i < en->n_own_cores; i++) placed |= en->cores[i].node >= 0;
    struct pieces pieces = {en, NULL, 0};
    if (placed) /* at most one for each core: of the masters, and of the slots of each sender */
        pieces.places = calloc((size_t)en->n_own_cores * ((size_t)c->group.size + 1) + 1, sizeof *pieces.places);
    if (pieces.places != NULL) { /* without this memory only the hint is lost */
        add_masters(&pieces);
        for (int s = 0; s < c->group.size; s++) hpc_layout_walk(en, me, -1, add_slots, &(struct slots){&pieces, s});
    }
    int status = hpc_window_create_parts(c, op_create, en->layout.places[me].nbytes, hpc_signals(en), pieces.places,
                                         pieces.n, deadline, &en->window);
    if (status == HPC_OK && en->window->memory->unplaced != 0)
        hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "exchange: the kernel refused to place memory on NUMA nodes");
    free(pieces.places);
    return status;
}

/* Both lanes of a core use one rail: a chunk goes back by the path on which its updates came (PHub, section 3.2.4). */
static int open_lanes(hpc_engine *en, double deadline) {
    int status = HPC_OK;
    en->in_lanes = calloc((size_t)en->n_lanes, sizeof(hpc_lane *));
    en->out_lanes = calloc((size_t)en->n_lanes, sizeof(hpc_lane *));
    if (en->in_lanes == NULL || en->out_lanes == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %d lanes", en->n_lanes);
    status = hpc_context_agree(en->context, op_create, status, deadline);
    for (int i = 0; i < en->n_lanes && status == HPC_OK; i++) {
        int rail = en->plan->affinity == HPC_WORKER_BY_INTERFACE ? HPC_RAIL_BY_WORKER : i;
        status = hpc_lane_open(en->context, 0, rail, deadline, &en->in_lanes[i]);
        if (status == HPC_OK) status = hpc_lane_open(en->context, 0, rail, deadline, &en->out_lanes[i]);
    }
    return status;
}

/* Tells every rank where each owner's receive slots begin. */
static int learn_slots(hpc_engine *en, double deadline) {
    size_t nbytes = (size_t)en->context->group.size * sizeof *en->layout.slot_base;
    size_t *mine = malloc(nbytes);
    int status = mine == NULL ? hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for receive slots") : HPC_OK;
    status = hpc_context_agree(en->context, op_create, status, deadline);
    if (status == HPC_OK) {
        memcpy(mine, en->layout.slot_base + (size_t)en->context->group.rank * (size_t)en->context->group.size, nbytes);
        status = hpc_allgather(en->context, mine, en->layout.slot_base, nbytes, hpc_left(deadline));
    }
    free(mine);
    return status;
}

/* Puts rank 0's values into the parameters of every worker and into every master. */
static int send_values(hpc_engine *en, const float *const *values, double deadline) {
    hpc_context *c = en->context;
    int status = HPC_OK;
    for (int r = 0; r < c->group.size && status == HPC_OK; r++)
        for (int k = 0; k < en->plan->n_keys && status == HPC_OK && en->layout.places[r].params != HPC_NOWHERE; k++)
            status = hpc_put(NULL, en->window, r, values[k], (size_t)en->plan->keys[k].count * sizeof(float),
                             hpc_params_at(en, r, k, 0));
    for (int i = 0; i < en->plan->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &en->plan->rows[i];
        if (en->layout.master_of[i] != HPC_NOWHERE)
            status = hpc_put(NULL, en->window, row->owner, values[row->key] + row->offset,
                             (size_t)row->count * sizeof(float),
                             en->layout.places[row->owner].masters + en->layout.master_of[i]);
    }
    return status == HPC_OK ? hpc_flush(NULL, en->window, -1, hpc_left(deadline)) : status;
}

/* Every row's parameters go to its workers, from every owner. Collective, while nothing is under way. */
int hpc_engine_send_params(hpc_engine *en, const char *op, double deadline) {
    int status = hpc_note(en, -1, HPC_ON_PUBLISH, &(hpc_limit){0, deadline}, op);
    for (int hops = 0; hops <= en->layout.stages.most_hops; hops++) { /* each relay after those before it */
        if (status == HPC_OK) {
            hpc_cores_write(en, hops);
            status = hpc_engine_check(en, op);
        }
        if (status == HPC_OK && hops == 0) status = hpc_note(en, -1, HPC_ON_PUBLISHED, NULL, op);
        for (int i = 0; i < en->n_own_cores && status == HPC_OK; i++)
            status = hpc_flush(en->cores[i].out, en->window, -1, hpc_left(deadline));
        status = hpc_context_agree(en->context, op, status, deadline);
        if (status != HPC_OK) return status;
    }
    if (status == HPC_OK) hpc_params_were_sent(en);
    return status;
}

/* Rank 0's values are in all masters and params. Where parameters travel encoded, params get the bits that they would
 * get from the owners. Like what rank 0 has put, this counts for nothing. */
static int round_values(hpc_engine *en, double deadline) {
    int status = hpc_engine_send_params(en, op_create, deadline);
    for (int i = 0; i < en->n_own_cores; i++)
        atomic_store_explicit(&en->cores[i].tally.bytes_written, 0, memory_order_relaxed);
    hpc_forget_traffic(en);
    return status;
}

static int open_all(hpc_engine *en, const hpc_exchange_config *f, double deadline) {
    const hpc_discipline *d = en->discipline;
    hpc_context *c = en->context;
    int status = hpc_layout_make(en, op_create);
    if (status == HPC_OK) status = hpc_holders_check(en, op_create);
    if (status == HPC_OK) status = check_outputs(en);
    if (status == HPC_OK && d->plan != NULL) status = d->plan(en, op_create);
    if (status == HPC_OK) status = hpc_layout_slots(en);
    if (status == HPC_OK) status = hpc_params_take_place(en, op_create);
    if (status == HPC_OK) status = hpc_progress_choose(en, f->progress, op_create);
    uint64_t(*needs)[2] = malloc((size_t)c->group.size * sizeof *needs);
    if (status == HPC_OK && needs == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %d ranks", c->group.size);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status == HPC_OK) status = check_memory(en, needs, deadline);
    free(needs);
    if (status == HPC_OK) status = open_memory(en, deadline);
    if (status == HPC_OK) status = open_lanes(en, deadline);
    if (status == HPC_OK) status = learn_slots(en, deadline);
    if (status == HPC_OK) status = hpc_params_learn(en, deadline);
    if (status != HPC_OK) return status;
    en->stream = writes_past_caches(en);
    status = hpc_rows_open(en, op_create);
    if (status == HPC_OK && d->open != NULL) status = d->open(en, op_create);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status != HPC_OK) return status;
    if (c->group.rank == 0) status = send_values(en, f->values, deadline);
    status = hpc_context_agree(c, op_create, status, deadline); /* also the barrier before the first push */
    if (status == HPC_OK && en->layout.encodes) status = round_values(en, deadline);
    if (status != HPC_OK) return status;
    en->life.open = 1;
    en->life.serves = (en->discipline->traits & HPC_GOES_ON) || en->passes_on ||
                      en->gate->outstanding != NULL; /* puts of others' updates read this memory */
    en->life.serves &= en->n_work > 0;
    for (int s = 0; s < en->layout.n_shares; s++) { /* others may push to its rows after its own last push */
        const hpc_share *share = &en->layout.shares[s];
        if (share->owner == c->group.rank &&
            (!hpc_share_involves(en, share, c->group.rank) || (share->clocks != NULL && !hpc_owners_leave(en))))
            en->life.serves = 1;
    }
    for (int i = 0; i < en->n_work; i++) en->life.serves |= hpc_row_outlasts_pulls(en, en->work[i].index);
    hpc_cores_start(en);
    return HPC_OK;
}

static int open_counts(hpc_engine *en) {
    size_t size = (size_t)en->context->group.size;
    en->peers.pushed = calloc(size, sizeof *en->peers.pushed);
    en->peers.pushed_of_key = calloc((size_t)en->plan->n_keys, sizeof *en->peers.pushed_of_key);
    en->peers.received = calloc(size, sizeof *en->peers.received);
    en->peers.late = calloc(size, sizeof *en->peers.late);
    en->peers.dropped = calloc(size, sizeof *en->peers.dropped);
    en->peers.wait = calloc(size, sizeof *en->peers.wait);
    en->peers.awaited = calloc(size, sizeof *en->peers.awaited);
    en->threads = calloc(size, sizeof *en->threads);
    if (en->peers.pushed == NULL || en->peers.pushed_of_key == NULL || en->peers.received == NULL ||
        en->peers.late == NULL || en->peers.dropped == NULL || en->peers.wait == NULL || en->peers.awaited == NULL ||
        en->threads == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %zu ranks", size);
    return HPC_OK;
}

static int open_rules(hpc_engine *en, const hpc_exchange_config *f) {
    en->rules = calloc((size_t)en->plan->n_keys, sizeof *en->rules);
    if (en->rules == NULL) return hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for rules");
    for (int k = 0; k < en->plan->n_keys; k++) {
        hpc_key_rule *its = &en->rules[k];
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

hpc_engine *hpc_engine_new(hpc_context *c, const hpc_exchange_config *f, const char *op) {
    hpc_engine *en = calloc(1, sizeof *en);
    if (en == NULL || hpc_plan_copy(f->plan, op, &en->plan) != HPC_OK) {
        free(en);
        return NULL;
    }
    en->context = hpc_context_retain(c);
    en->next = en;
    en->kernels = hpc_fold_kernels_of(f->isa);
    const hpc_discipline *d = en->discipline = hpc_discipline_of(f);
    en->asked = (hpc_asked){.consistency = f->consistency,
                            .shared_params = f->shared_params != 0,
                            .check_finite = f->check_finite != 0,
                            .in_place = f->in_place != 0,
                            .split = f->split != 0,
                            .staleness = f->consistency == HPC_SSP ? f->staleness : 0,
                            .quorum = d->traits & HPC_BY_QUORUM ? f->quorum : 0,
                            .grace = f->grace < 0 ? -1 : f->grace};
    en->rotates = hpc_models_rotate(f);
    en->own_args = f->graph != NULL || d->traits & HPC_KEEPS_INPUTS;
    en->gate = d->gate, en->pace = d->pace, en->use = d->use;
    en->has_read = d->pace->has_read;
    en->passes_on = (d->traits & HPC_PASSES_ON) && hpc_plan_has_ways(f->plan);
    en->puts = (d->traits & HPC_PUTS) || en->passes_on;
    return en;
}

int hpc_engine_open(hpc_engine *en, const hpc_exchange_config *f, const hpc_exchange *of, double deadline) {
    int status = open_counts(en);
    if (status == HPC_OK) status = open_rules(en, f);
    if (status == HPC_OK) status = hpc_pieces_open(en, f, op_create);
    if (status == HPC_OK && f->graph != NULL) status = hpc_graph_open(en, f->graph, op_create);
    if (status == HPC_OK) status = hpc_held_open(en, op_create);
    status = hpc_context_agree(en->context, op_create, status, deadline);
    if (status == HPC_OK) status = hpc_engine_agree(en, f, of, deadline);
    return status == HPC_OK ? open_all(en, f, deadline) : status;
}
