#include "engine/open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "engine/args.h"
#include "engine/bytes.h"
#include "engine/owner/core.h"
#include "engine/counts.h"
#include "engine/layout/graph.h"
#include "engine/layout/holders.h"
#include "engine/layout/layout.h"
#include "engine/params.h"
#include "engine/pieces.h"
#include "engine/layout/progress.h"
#include "engine/layout/rows.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"
#include "engine/worker/worker.h"
#include "engine/worker/waits.h"

static const char op_create[] = "exchange";

/* Refuses a row that sends parameters to a worker that does not push to the row: a worker's parameters may change only
 * between its push and its pull. If owners go on without some workers, all rows of a key must have the same workers. */
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

/* Returns whether parameters are written by stores that bypass the caches: yes if a step touches more memory than the
 * last-level cache has. */
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

/* Ranges of memory, to be placed on the NUMA node of the core that works on them. Ranges come in rising order; adjacent
 * ones are merged. */
struct ranges {
    const hpc_scheme *sc;
    hpc_placement *places;
    int n;
};

static void add_range(struct ranges *p, int core, size_t offset, size_t nbytes) {
    hpc_placement *last = p->n > 0 ? &p->places[p->n - 1] : NULL;
    int node = p->sc->cores[core].node;
    if (last != NULL && last->node == node && last->offset <= offset)
        last->nbytes = offset + nbytes - last->offset;
    else
        p->places[p->n++] = (hpc_placement){offset, nbytes, node};
}

static void add_masters(struct ranges *p) {
    const hpc_scheme *sc = p->sc;
    int me = sc->context->group.rank;
    for (int core = 0; core < sc->n_own_cores; core++)
        for (int i = 0; i < sc->plan->n_rows; i++) {
            const hpc_row *row = &sc->plan->rows[i];
            if (row->owner == me && row->core == core && sc->layout.master_of[i] != HPC_NOWHERE)
                add_range(p, core, sc->layout.places[me].masters + sc->layout.master_of[i],
                          (size_t)row->count * sizeof(float));
        }
}

/* The receive slots of one sender. hpc_layout_walk visits them core by core, so it is called once for each sender. */
struct slots {
    struct ranges *ranges;
    int sender;
};

static void add_slots(void *arg, int row, int edge, size_t offset) {
    const struct slots *s = arg;
    const hpc_scheme *sc = s->ranges->sc;
    const hpc_row *r = &sc->plan->rows[row];
    size_t base = sc->layout.slot_base[(size_t)r->owner * (size_t)sc->context->group.size + (size_t)s->sender];
    if (r->in[edge].rank == s->sender)
        add_range(s->ranges, r->core, base + offset, hpc_slot_stride(sc, r) * (size_t)hpc_slot_depth(sc));
}

/* Checks that the windows of all ranks of a host together fit into its memory; all ranks get the same result. all is
 * scratch memory, with one pair for each rank. */
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
    struct ranges ranges = {sc, NULL, 0};
    if (placed) /* at most one range for each core: of its masters, and of each sender's slots */
        ranges.places = calloc((size_t)sc->n_own_cores * ((size_t)c->group.size + 1) + 1, sizeof *ranges.places);
    if (ranges.places != NULL) { /* if this allocation failed, memory is just not placed */
        add_masters(&ranges);
        for (int s = 0; s < c->group.size; s++) hpc_layout_walk(sc, me, -1, add_slots, &(struct slots){&ranges, s});
    }
    int status = hpc_window_create_parts(c, op_create, sc->layout.places[me].nbytes, hpc_signals(sc), ranges.places,
                                         ranges.n, deadline, &sc->window);
    if (status == HPC_OK)
        hpc_window_hear(sc->window, sc->layout.places[me].closed, (size_t)sc->plan->n_keys * sizeof(uint64_t));
    if (status == HPC_OK && sc->window->memory->unplaced != 0)
        hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "exchange: the kernel refused to place memory on NUMA nodes");
    free(ranges.places);
    return status;
}

/* Both lanes of a core use one rail (NIC): a chunk returns by the path on which its updates came (PHub, section
 * 3.2.4). */
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

int hpc_scheme_send_params(hpc_scheme *sc, const char *op, double deadline) {
    int status = hpc_note(sc, -1, HPC_ON_PUBLISH, &(hpc_limit){0, deadline}, op);
    for (int hops = 0; hops <= sc->layout.stages.most_hops; hops++) { /* a relay comes after the relays before it */
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

/* After send_values all masters and params hold rank 0's values. If parameters travel encoded, this rounds params to
 * the bits that encoded parameters from the owners would have. Neither this nor rank 0's puts count as traffic. */
static int round_values(hpc_scheme *sc, double deadline) {
    int status = hpc_scheme_send_params(sc, op_create, deadline);
    for (int i = 0; i < sc->n_own_cores; i++)
        atomic_store_explicit(&sc->cores[i].tally.bytes_written, 0, memory_order_relaxed);
    hpc_counts_forget(sc);
    return status;
}

/* Notes that a put of this rank goes to rank, by a lane of the core. */
static void note_put(hpc_scheme *sc, int rank, int core, int way) {
    if (rank != sc->context->group.rank) sc->linked[(size_t)rank * (size_t)sc->n_lanes + (size_t)core] |= (char)way;
}

enum { IN_LANE = 1, OUT_LANE = 2, BY_OTHERS = 4 };

static void link_edge(hpc_scheme *sc, const hpc_row *row, const hpc_edge *edge) {
    const int me = sc->context->group.rank;
    const int over = edge->row <= -2 ? -2 - edge->row : edge->rank; /* the rank that passes the edge's pushes on */
    if (row->owner == me) note_put(sc, edge->rank, row->core, OUT_LANE);
    if (row->owner == me) note_put(sc, over, row->core, OUT_LANE);
    if (edge->rank == me || over == me) note_put(sc, row->owner, row->core, IN_LANE);
    if (edge->rank == me) note_put(sc, over, row->core, BY_OTHERS);
    if (over == me) note_put(sc, edge->rank, row->core, BY_OTHERS);
}

/* Notes with which ranks this rank may share data, or whose counts it reads. */
static int note_links(hpc_scheme *sc) {
    const hpc_context *c = sc->context;
    const hpc_plan *plan = sc->plan;
    sc->linked = hpc_arena_take(&sc->taken, (size_t)c->group.size * (size_t)sc->n_lanes, sizeof *sc->linked);
    if (sc->linked == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %d ranks", c->group.size);
    for (int i = 0; i < plan->n_rows; i++) {
        for (int e = 0; e < plan->rows[i].n_in; e++) link_edge(sc, &plan->rows[i], &plan->rows[i].in[e]);
        for (int e = 0; e < plan->rows[i].n_out; e++) link_edge(sc, &plan->rows[i], &plan->rows[i].out[e]);
    }
    for (int r = 0; r < c->group.size; r++)
        if (sc->passes_on || r == sc->layout.holder || (c->group.size <= HPC_SEEN_RANKS && hpc_is_mapped(sc, r)))
            note_put(sc, r, 0, BY_OTHERS);
    return HPC_OK;
}

/* Returns the lane of this rank's pushes to rank, or another one by which no core puts; NULL if no push of this rank
 * goes to rank or by it. */
static hpc_lane *push_lane_to(const hpc_scheme *sc, int rank) {
    const char *ways = sc->linked + (size_t)rank * (size_t)sc->n_lanes;
    hpc_lane *any = rank == sc->context->group.rank ? sc->in_lanes[0] : NULL;
    for (int i = 0; i < sc->n_lanes; i++) {
        if (ways[i] & IN_LANE) return sc->in_lanes[i];
        if (ways[i] & BY_OTHERS) any = sc->in_lanes[0];
    }
    return any;
}

/* Adds the ranks that a share of this rank answers. */
static int add_answered(hpc_scheme *sc, const hpc_share *share, hpc_goal *goals, int n) {
    for (int i = 0; i < share->n_members; i++) {
        if (share->members[i] == sc->context->group.rank) continue;
        goals[n++] = (hpc_goal){&sc->out_lanes[share->core]->object, share->members[i]};
        goals[n++] = (hpc_goal){&sc->window->object, share->members[i]};
    }
    return n;
}

/* Reaches the ranks to which this rank will put, so that neither a push nor an answer waits for that. A goal may come
 * several times. */
static int reach_links(hpc_scheme *sc, double deadline) {
    const int size = sc->context->group.size;
    size_t most = (size_t)size * (1 + 2 * (size_t)sc->n_lanes);
    for (int s = 0; s < sc->layout.n_shares; s++) most += 2 * (size_t)sc->layout.shares[s].n_members;
    hpc_goal *goals = malloc(most * sizeof *goals);
    int n = 0;
    if (goals == NULL) return hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %d ranks", size);
    for (int r = 0; r < size; r++) {
        const char *ways = sc->linked + (size_t)r * (size_t)sc->n_lanes;
        int puts = 0;
        for (int i = 0; i < sc->n_lanes; i++) {
            if (ways[i] & IN_LANE) goals[n++] = (hpc_goal){&sc->in_lanes[i]->object, r};
            if (ways[i] & OUT_LANE) goals[n++] = (hpc_goal){&sc->out_lanes[i]->object, r};
            puts |= ways[i] != 0;
        }
        if (puts) goals[n++] = (hpc_goal){&sc->window->object, r};
    }
    for (int s = 0; s < sc->layout.n_shares; s++) n = add_answered(sc, &sc->layout.shares[s], goals, n);
    int status = hpc_reach_all(sc->context, goals, n, op_create, deadline);
    free(goals);
    return status;
}

int hpc_scheme_open(hpc_scheme *sc, const hpc_exchange_config *f, double deadline) {
    const hpc_discipline *d = sc->discipline;
    hpc_context *c = sc->context;
    int status = hpc_layout_make(sc, op_create);
    if (status == HPC_OK) status = hpc_holders_check(sc, op_create);
    if (status == HPC_OK) status = check_outputs(sc);
    if (status == HPC_OK && d->plan != NULL) status = d->plan(sc, op_create);
    if (status == HPC_OK) status = hpc_layout_slots(sc);
    if (status == HPC_OK) status = note_links(sc);
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
    if (status == HPC_OK) status = reach_links(sc, deadline);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status != HPC_OK) return status;
    if (c->group.rank == 0) status = send_values(sc, f->values, deadline);
    status = hpc_context_agree(c, op_create, status, deadline); /* this is also the barrier before the first push */
    if (status == HPC_OK && sc->layout.encodes) status = round_values(sc, deadline);
    if (status != HPC_OK) return status;
    sc->life.open = 1;
    sc->life.serves = (sc->discipline->traits & HPC_GOES_ON) || sc->passes_on ||
                      /* Other ranks' updates that this rank puts on to a next rank are read from its memory, so it must
                       * stay. */
                      sc->gate->outstanding != NULL;
    sc->life.serves &= sc->n_work > 0;
    for (int s = 0; s < sc->layout.n_shares; s++) { /* other ranks may push to its rows after its own last push */
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner == c->group.rank &&
            (!hpc_share_involves(sc, share, c->group.rank) || (share->clocks != NULL && !hpc_owners_leave(sc))))
            sc->life.serves = 1;
    }
    for (int i = 0; i < sc->n_work; i++) sc->life.serves |= hpc_row_outlasts_pulls(sc, sc->work[i].index);
    return hpc_cores_start(sc, op_create);
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

hpc_scheme *hpc_scheme_new(hpc_context *c, const hpc_exchange_config *f, const hpc_discipline *d, const char *op) {
    hpc_scheme *sc = calloc(1, sizeof *sc);
    if (sc == NULL || hpc_plan_copy(f->plan, op, &sc->plan) != HPC_OK) {
        free(sc);
        return NULL;
    }
    sc->context = hpc_context_retain(c);
    sc->next = sc;
    sc->kernels = hpc_fold_kernels_of(f->isa);
    sc->discipline = d;
    sc->asked = (hpc_exchange_config){.consistency = f->consistency,
                                      .shared_params = f->shared_params != 0,
                                      .check_finite = f->check_finite != 0,
                                      .in_place = f->in_place != 0,
                                      .split = f->split != 0,
                                      .staleness = f->consistency == HPC_SSP ? f->staleness : 0,
                                      .quorum = d->traits & HPC_BY_QUORUM ? f->quorum : 0,
                                      .grace = f->grace < 0 ? -1 : f->grace,
                                      .patience = f->patience,
                                      .weight = f->weight > 0 ? f->weight : 1};
    sc->rotates = hpc_models_rotate(f);
    sc->own_args = f->graph != NULL || d->traits & HPC_KEEPS_INPUTS;
    sc->gate = d->gate, sc->pace = d->pace, sc->use = d->use;
    sc->has_read = d->pace->has_read;
    sc->passes_on = (d->traits & HPC_PASSES_ON) && hpc_plan_has_ways(f->plan);
    sc->puts = (d->traits & HPC_PUTS) || sc->passes_on;
    return sc;
}

int hpc_scheme_prepare(hpc_scheme *sc, const hpc_exchange_config *f) {
    int status = hpc_counts_open(sc, op_create);
    if (status == HPC_OK) status = open_rules(sc, f);
    if (status == HPC_OK) status = hpc_pieces_open(sc, f, op_create);
    return status == HPC_OK && f->graph != NULL ? hpc_graph_open(sc, f->graph, op_create) : status;
}

/* ---- close ---- */

static const double LINK_SECONDS = 2; /* for all links together */

/* Tells every rank that is not gone how many pushes this rank has made (a push sent in part does not count); or, in a
 * later call, that this rank answers nothing more. A message goes by the lane of the pushes, so that it comes after
 * them; the lane is flushed before the memory is freed. A rank that gets no pushes of this one is told by the control
 * channel: the answers to it are flushed before this rank says that no more come. */
static int announce(hpc_scheme *sc, uint64_t what) {
    hpc_context *c = sc->context;
    const int me = c->group.rank, size = c->group.size;
    int first_failure = HPC_OK, n_far = 0;
    size_t n = sc->layout.places[me].worker && !sc->life.closed ? (size_t)sc->plan->n_keys : 0;
    uint64_t *counts = n > 0 ? (uint64_t *)(void *)(hpc_own_part(sc) + sc->layout.places[me].pushed) : NULL;
    char *told = malloc((size_t)size);
    if (told == NULL) return hpc_fail(HPC_ERR_MEMORY, "close", "close: no memory for %d ranks", size);
    for (size_t k = 0; k < n; k++)
        atomic_store_explicit((_Atomic uint64_t *)&counts[k], sc->keys[k].pushes, memory_order_relaxed);
    /* After a departure the ranks may not be connected for a moment, and this rank may leave before they are. */
    const int directly = what == HPC_CLOSED && atomic_load(&c->group.departures) > 0;
    const double deadline = hpc_now() + LINK_SECONDS;
    for (int r = 0; r < size && directly; r++)
        if (push_lane_to(sc, r) == NULL && !hpc_group_has_departed(&c->group, r)) hpc_control_seek(c->control, r);
    for (int r = 0; r < size; r++) {
        hpc_lane *lane = push_lane_to(sc, r);
        int status = HPC_OK;
        told[r] = 1;
        if (lane == NULL && directly) hpc_control_await_link(c->control, r, deadline);
        if (hpc_group_has_departed(&c->group, r)) continue;
        size_t at = sc->layout.places[r].closed + (size_t)me * (size_t)sc->plan->n_keys * sizeof *counts;
        if (lane != NULL)
            status = hpc_put_signal(lane, sc->window, r, counts, n * sizeof *counts, at, hpc_signal_closed(me), what);
        else if (hpc_control_is_linked(c->control, r))
            status = hpc_window_tell(sc->window, r, counts, n * sizeof *counts, at, hpc_signal_closed(me), what);
        else
            told[r] = 0;
        n_far += !told[r];
        status = hpc_unless_left(sc, r, status);
        if (status != HPC_OK && status != HPC_ERR_PEER && first_failure == HPC_OK) first_failure = status;
    }
    const int said = n_far > 0 ? hpc_window_say(sc->window, told, counts, n * sizeof *counts, what) : HPC_OK;
    free(told);
    return first_failure == HPC_OK ? said : first_failure;
}

/* A rank that left has closed the exchange first, if its word about that was lost. */
static int is_open(const hpc_scheme *sc, int rank) {
    const hpc_group *g = &sc->context->group;
    if (!sc->layout.places[rank].worker || hpc_closed_signal(sc, rank) != 0) return 0;
    return atomic_load_explicit(&g->states[rank], memory_order_acquire) != HPC_PEER_LEFT ||
           !hpc_control_missed(sc->context->control, rank);
}

static int outstanding(const hpc_scheme *sc, int *ranks) {
    return sc->gate->outstanding == NULL ? 0 : sc->gate->outstanding(sc, ranks);
}

/* Writes into ranks the ranks that still have something to send or take. A rank that left has sent everything, so this
 * rank is named instead: its cores must still take that rank's data. */
static int outstanding_here(const hpc_scheme *sc, int *ranks) {
    const hpc_group *group = &sc->context->group;
    int found = outstanding(sc, ranks), n = 0;
    for (int i = 0; i < found; i++)
        if (atomic_load_explicit(&group->states[ranks[i]], memory_order_acquire) != HPC_PEER_LEFT)
            ranks[n++] = ranks[i];
    if (n == 0 && found > 0) ranks[n++] = group->rank;
    return n;
}

static int open_workers(void *arg, int *ranks) {
    const hpc_scheme *sc = arg;
    int n = 0;
    for (int r = 0; r < sc->context->group.size; r++)
        if (is_open(sc, r)) ranks[n++] = r;
    return n == 0 ? outstanding_here(sc, ranks) : n;
}

/* Returns whether no rank needs this rank any more. After a revoke the other ranks go on in a new context, without a
 * rank that closes the exchange and with a rank that only serves. */
static int all_closed(void *arg) {
    hpc_scheme *sc = arg;
    hpc_scheme_work(sc);
    if (hpc_scheme_has_failed(sc)) return 1;
    if (sc->life.closed && atomic_load(&sc->context->group.revoked)) return 1;
    for (int r = 0; r < sc->context->group.size; r++)
        if (is_open(sc, r)) return 0;
    return outstanding(sc, NULL) == 0;
}

int hpc_scheme_serve(hpc_scheme *sc, const char *op, double timeout) {
    const hpc_wait wait = {op, all_closed, open_workers, sc, 1, .attend = hpc_scheme_attend, .attended = sc};
    int status = hpc_wait_for(&sc->context->group, &wait, timeout);
    return status == HPC_OK || status == HPC_ERR_INVALID ? hpc_scheme_check(sc, op) : status;
}

/* Waits for pending pushes, because other ranks may wait for rows of this rank. After a timeout the next call
 * continues. */
int hpc_scheme_leave(hpc_scheme *sc, const char *op, double deadline) {
    int status = hpc_scheme_check(sc, op), rank = sc->context->group.rank;
    if (sc->life.closed) return status;
    hpc_worker_uncork(sc);
    if (status == HPC_OK && sc->layout.places[rank].worker) status = hpc_worker_finish(sc, op, deadline);
    if (status == HPC_OK) status = hpc_cores_send_kept(sc, op, hpc_left(deadline));
    if (status == HPC_ERR_TIMEOUT) return status;
    if (status == HPC_OK) status = hpc_note(sc, -1, HPC_ON_CLOSE, NULL, op);
    int muted = hpc_mute_errors(1); /* close reports an earlier failure instead */
    if (status == HPC_OK) hpc_mute_errors(muted);
    int announced = announce(sc, HPC_CLOSED);
    hpc_mute_errors(muted);
    sc->life.closed = 1;
    return status == HPC_OK ? announced : status;
}

/* All cores of the scheme have stopped. */
void hpc_scheme_free(hpc_scheme *sc) {
    double deadline =
        hpc_now() +
        1; /* the flush makes answers arrive before HPC_FREED; after 1 s a rank that hangs is not waited for */
    for (int i = 0; i < sc->n_lanes && sc->life.open; i++) hpc_lane_flush(sc->out_lanes[i], hpc_left(deadline));
    if (sc->life.open) announce(sc, HPC_FREED);
    for (int i = 0; i < sc->n_lanes; i++) { /* lanes first: pending puts read memory that is freed below */
        if (sc->in_lanes != NULL) hpc_lane_free(sc->in_lanes[i]);
        if (sc->out_lanes != NULL) hpc_lane_free(sc->out_lanes[i]);
    }
    hpc_arena_free(&sc->taken);
    hpc_pieces_free(sc);
    hpc_rows_free(sc);
    hpc_args_free(sc);
    free(sc->in_lanes);
    free(sc->out_lanes);
    hpc_window_free(sc->window);
    hpc_layout_free(sc);
    free(sc->peers.inputs_whole);
    hpc_plan_free(sc->plan);
    hpc_context_release(sc->context);
    free(sc);
}
