/* The collectives of an exchange: create, publish, close. */
#include "exchange/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "discipline/discipline.h"
#include "engine/args.h"
#include "engine/params.h"
#include "engine/pieces.h"
#include "engine/send.h"

static const char op_create[] = "exchange";

void hpc_exchange_config_init(hpc_exchange_config *config) {
    *config = (hpc_exchange_config){.size = sizeof *config, .grace = -1};
}

/* ---- create ---- */

/* A worker's parameters change between its push and its pull only, so whoever gets them must have pushed; where owners
 * go on without some workers, all that a key's rows have must be the same workers. */
static int check_outputs(const hpc_exchange *ex) {
    for (int i = 0; i < ex->plan->n_rows; i++) {
        const hpc_row *row = &ex->plan->rows[i], *before = i > 0 ? row - 1 : NULL;
        if (row->action == HPC_FORWARD) continue;
        if (before != NULL && before->key == row->key && before->in == row->in && before->out == row->out) continue;
        for (int r = 0; r < ex->context->group.size; r++) {
            int gets = hpc_row_has_output(row, r), gives = hpc_row_is_fed_by(ex, i, r),
                reached = hpc_row_reaches(ex, i, r);
            int pushes = ex->layout.pushers[(size_t)row->key * (size_t)ex->context->group.size + (size_t)r];
            if (gets && !gives)
                return hpc_fail(HPC_ERR_CONFIG, op_create,
                                "exchange: row %d sends parameters to rank %d, which sends it no update", i, r);
            if (hpc_goes_on(ex) && row->action != HPC_RELAY && (reached != gives || gives != pushes))
                return hpc_fail(HPC_ERR_CONFIG, op_create,
                                "exchange: under %s all rows of a key must take updates from the same ranks, and send "
                                "parameters to those ranks; row %d does not do so with rank %d",
                                ex->discipline->name, i, r);
        }
    }
    return HPC_OK;
}

/* Parameters go past the caches when all that the ranks touch in a step would not fit the last one. */
static int writes_past_caches(const hpc_exchange *ex) {
    size_t workers = 0, copies = 0;
    for (int r = 0; r < ex->context->group.size; r++) {
        workers += (size_t)ex->layout.places[r].worker;
        copies += (size_t)(ex->layout.holders[r] == r);
    }
    size_t touched = workers * ex->layout.gradient_bytes + copies * ex->layout.params_bytes;
    for (int k = 0; k < ex->plan->n_keys; k++)
        touched += (size_t)ex->plan->keys[k].count * sizeof(float) * (size_t)ex->rules[k].rule.slots;
    return touched > hpc_host_cache("");
}

/* Memory that one core works on is placed on its NUMA node. Pieces come in rising order; adjacent ones are merged. */
struct pieces {
    const hpc_exchange *ex;
    hpc_placement *places;
    int n;
};

static void add_piece(struct pieces *p, int core, size_t offset, size_t nbytes) {
    hpc_placement *last = p->n > 0 ? &p->places[p->n - 1] : NULL;
    int node = p->ex->cores[core].node;
    if (last != NULL && last->node == node && last->offset <= offset)
        last->nbytes = offset + nbytes - last->offset;
    else
        p->places[p->n++] = (hpc_placement){offset, nbytes, node};
}

static void add_masters(struct pieces *p) {
    const hpc_exchange *ex = p->ex;
    int me = ex->context->group.rank;
    for (int core = 0; core < ex->n_own_cores; core++)
        for (int i = 0; i < ex->plan->n_rows; i++) {
            const hpc_row *row = &ex->plan->rows[i];
            if (row->owner == me && row->core == core && ex->layout.master_of[i] != HPC_NOWHERE)
                add_piece(p, core, ex->layout.places[me].masters + ex->layout.master_of[i],
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
    const hpc_exchange *ex = s->pieces->ex;
    const hpc_row *r = &ex->plan->rows[row];
    size_t base = ex->layout.slot_base[(size_t)r->owner * (size_t)ex->context->group.size + (size_t)s->sender];
    if (r->in[edge].rank == s->sender)
        add_piece(s->pieces, r->core, base + offset, hpc_slot_stride(ex, r) * (size_t)hpc_slot_depth(ex));
}

static int open_memory(hpc_exchange *ex, double deadline) {
    hpc_context *c = ex->context;
    int me = c->group.rank, placed = 0;
    for (int i = 0; i < ex->n_own_cores; i++) placed |= ex->cores[i].node >= 0;
    struct pieces pieces = {ex, NULL, 0};
    if (placed) /* at most one for each core: of the masters, and of the slots of each sender */
        pieces.places = calloc((size_t)ex->n_own_cores * ((size_t)c->group.size + 1) + 1, sizeof *pieces.places);
    if (pieces.places != NULL) { /* without this memory only the hint is lost */
        add_masters(&pieces);
        for (int s = 0; s < c->group.size; s++) hpc_layout_walk(ex, me, -1, add_slots, &(struct slots){&pieces, s});
    }
    int status = hpc_window_create_parts(c, op_create, ex->layout.places[me].nbytes, hpc_signals(ex), pieces.places,
                                         pieces.n, deadline, &ex->window);
    if (status == HPC_OK && ex->window->memory->unplaced != 0)
        hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "exchange: the kernel refused to place memory on NUMA nodes");
    free(pieces.places);
    return status;
}

/* Both lanes of a core use one rail: a chunk goes back by the path on which its updates came (PHub, section 3.2.4). */
static int open_lanes(hpc_exchange *ex, double deadline) {
    int status = HPC_OK;
    ex->in_lanes = calloc((size_t)ex->n_lanes, sizeof(hpc_lane *));
    ex->out_lanes = calloc((size_t)ex->n_lanes, sizeof(hpc_lane *));
    if (ex->in_lanes == NULL || ex->out_lanes == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %d lanes", ex->n_lanes);
    status = hpc_context_agree(ex->context, op_create, status, deadline);
    for (int i = 0; i < ex->n_lanes && status == HPC_OK; i++) {
        int rail = ex->plan->affinity == HPC_WORKER_BY_INTERFACE ? HPC_RAIL_BY_WORKER : i;
        status = hpc_lane_open(ex->context, 0, rail, deadline, &ex->in_lanes[i]);
        if (status == HPC_OK) status = hpc_lane_open(ex->context, 0, rail, deadline, &ex->out_lanes[i]);
    }
    return status;
}

/* Tells every rank where each owner's receive slots begin. */
static int learn_slots(hpc_exchange *ex, double deadline) {
    size_t nbytes = (size_t)ex->context->group.size * sizeof *ex->layout.slot_base;
    size_t *mine = malloc(nbytes);
    int status = mine == NULL ? hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for receive slots") : HPC_OK;
    status = hpc_context_agree(ex->context, op_create, status, deadline);
    if (status == HPC_OK) {
        memcpy(mine, ex->layout.slot_base + (size_t)ex->context->group.rank * (size_t)ex->context->group.size, nbytes);
        status = hpc_allgather(ex->context, mine, ex->layout.slot_base, nbytes, hpc_left(deadline));
    }
    free(mine);
    return status;
}

/* Puts rank 0's values into the parameters of every worker and into every master. */
static int send_values(hpc_exchange *ex, const float *const *values, double deadline) {
    hpc_context *c = ex->context;
    int status = HPC_OK;
    for (int r = 0; r < c->group.size && status == HPC_OK; r++)
        for (int k = 0; k < ex->plan->n_keys && status == HPC_OK && ex->layout.places[r].params != HPC_NOWHERE; k++)
            status = hpc_put(NULL, ex->window, r, values[k], (size_t)ex->plan->keys[k].count * sizeof(float),
                             hpc_params_at(ex, r, k, 0));
    for (int i = 0; i < ex->plan->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &ex->plan->rows[i];
        if (ex->layout.master_of[i] != HPC_NOWHERE)
            status = hpc_put(NULL, ex->window, row->owner, values[row->key] + row->offset,
                             (size_t)row->count * sizeof(float),
                             ex->layout.places[row->owner].masters + ex->layout.master_of[i]);
    }
    return status == HPC_OK ? hpc_flush(NULL, ex->window, -1, hpc_left(deadline)) : status;
}

/* Every row's parameters go to its workers, from every owner. Collective, while nothing is under way. */
static int send_params(hpc_exchange *ex, const char *op, double deadline) {
    const hpc_discipline *d = ex->discipline;
    int status = HPC_OK;
    if (d->before_publish != NULL) status = d->before_publish(ex, op, deadline);
    for (int hops = 0; hops <= ex->layout.stages.most_hops; hops++) { /* each relay after those before it */
        if (status == HPC_OK) {
            hpc_cores_write(ex, hops);
            status = hpc_exchange_check(ex, op);
        }
        if (status == HPC_OK && hops == 0 && d->after_publish != NULL) status = d->after_publish(ex);
        for (int i = 0; i < ex->n_own_cores && status == HPC_OK; i++)
            status = hpc_flush(ex->cores[i].out, ex->window, -1, hpc_left(deadline));
        status = hpc_context_agree(ex->context, op, status, deadline);
        if (status != HPC_OK) return status;
    }
    if (status == HPC_OK) hpc_params_were_sent(ex);
    return status;
}

/* Rank 0's values are in all masters and params. Where parameters travel encoded, params get the bits that they would
 * get from the owners. Like what rank 0 has put, this counts for nothing. */
static int round_values(hpc_exchange *ex, double deadline) {
    int status = send_params(ex, op_create, deadline);
    for (int i = 0; i < ex->n_own_cores; i++)
        atomic_store_explicit(&ex->cores[i].tally.bytes_written, 0, memory_order_relaxed);
    hpc_forget_traffic(ex);
    return status;
}

static int open_all(hpc_exchange *ex, const hpc_exchange_config *f, double deadline) {
    hpc_context *c = ex->context;
    int threads = 0, status = hpc_layout_make(ex, op_create);
    if (status == HPC_OK) status = hpc_holders_check(ex, op_create);
    if (status == HPC_OK) status = check_outputs(ex);
    if (status == HPC_OK && ex->discipline->open_shares != NULL) status = ex->discipline->open_shares(ex, op_create);
    if (status == HPC_OK) status = hpc_layout_slots(ex);
    if (status == HPC_OK) status = hpc_params_take_place(ex, op_create);
    if (status == HPC_OK) status = hpc_rows_choose_cores(ex, f->progress, &threads, op_create);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status == HPC_OK) status = open_memory(ex, deadline);
    if (status == HPC_OK) status = open_lanes(ex, deadline);
    if (status == HPC_OK) status = learn_slots(ex, deadline);
    if (status == HPC_OK) status = hpc_params_learn(ex, deadline);
    if (status != HPC_OK) return status;
    ex->stream = writes_past_caches(ex);
    status = hpc_rows_open(ex, op_create);
    if (status == HPC_OK && ex->discipline->open != NULL) status = ex->discipline->open(ex, op_create);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status != HPC_OK) return status;
    if (c->group.rank == 0) status = send_values(ex, f->values, deadline);
    status = hpc_context_agree(c, op_create, status, deadline); /* also the barrier before the first push */
    if (status == HPC_OK && ex->layout.encodes) status = round_values(ex, deadline);
    if (status != HPC_OK) return status;
    ex->life.open = 1;
    ex->life.serves = (hpc_goes_on(ex) || ex->discipline->outstanding != NULL) && ex->n_work > 0;
    for (int s = 0; s < ex->layout.n_shares; s++) /* others may wait for rows that this rank does not push */
        if (ex->layout.shares[s].owner == c->group.rank &&
            !hpc_share_involves(ex, &ex->layout.shares[s], c->group.rank))
            ex->life.serves = 1;
    for (int i = 0; i < ex->n_work; i++) ex->life.serves |= hpc_row_outlasts_pulls(ex, ex->work[i].index);
    hpc_cores_start(ex, threads);
    return HPC_OK;
}

static int open_counts(hpc_exchange *ex) {
    size_t size = (size_t)ex->context->group.size;
    ex->peers.pushed = calloc(size, sizeof *ex->peers.pushed);
    ex->peers.received = calloc(size, sizeof *ex->peers.received);
    ex->peers.late = calloc(size, sizeof *ex->peers.late);
    ex->peers.wait = calloc(size, sizeof *ex->peers.wait);
    ex->peers.awaited = calloc(size, sizeof *ex->peers.awaited);
    if (ex->peers.pushed == NULL || ex->peers.received == NULL || ex->peers.late == NULL || ex->peers.wait == NULL ||
        ex->peers.awaited == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for %zu ranks", size);
    return HPC_OK;
}

static int open_rules(hpc_exchange *ex, const hpc_exchange_config *f) {
    ex->rules = calloc((size_t)ex->plan->n_keys, sizeof *ex->rules);
    if (ex->rules == NULL) return hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for rules");
    for (int k = 0; k < ex->plan->n_keys; k++) {
        hpc_key_rule *its = &ex->rules[k];
        its->rule = *hpc_config_rule(f, k);
        snprintf(its->name, sizeof its->name, "%s", its->rule.name);
        its->rule.name = its->name;
        its->pass = hpc_rule_pass(&its->rule);
        its->averages = hpc_rule_averages(&its->rule);
    }
    return HPC_OK;
}

int hpc_exchange_create(hpc_context *c, const hpc_exchange_config *f, double timeout, hpc_exchange **exchange) {
    int status = hpc_context_ready(c, op_create);
    if (status != HPC_OK) return status;
    double deadline = hpc_deadline(&c->group, timeout);
    status = exchange == NULL ? hpc_fail(HPC_ERR_INVALID, op_create, "exchange: exchange is NULL")
                              : hpc_exchange_check_config(c, f);
    hpc_exchange *ex = NULL;
    hpc_plan *plan = NULL;
    if (status == HPC_OK) {
        ex = calloc(1, sizeof *ex);
        if (ex == NULL) status = hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for a handle");
    }
    if (status == HPC_OK) status = hpc_plan_copy(f->plan, op_create, &plan);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (exchange != NULL) *exchange = NULL;
    if (status != HPC_OK) {
        hpc_plan_free(plan);
        free(ex);
        return status;
    }
    ex->context = hpc_context_retain(c);
    ex->plan = plan;
    ex->kernels = hpc_fold_kernels_of(f->isa);
    ex->discipline = hpc_discipline_of(f);
    ex->asked = (hpc_asked){.shared_params = f->shared_params != 0,
                            .eager = f->eager != 0,
                            .check_finite = f->check_finite != 0,
                            .in_place = f->in_place != 0,
                            .staleness = f->staleness,
                            .grace = f->grace < 0 ? -1 : f->grace};
    ex->rotates = hpc_models_rotate(f);
    status = open_counts(ex);
    if (status == HPC_OK) status = open_rules(ex, f);
    if (status == HPC_OK) status = hpc_pieces_open(ex, f, op_create);
    if (status == HPC_OK && ex->discipline->prepare != NULL) status = ex->discipline->prepare(ex, f, op_create);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status == HPC_OK) status = hpc_exchange_agree(ex, f, deadline);
    if (status == HPC_OK) status = open_all(ex, f, deadline);
    if (status != HPC_OK) {
        hpc_exchange_free(ex);
        return status;
    }
    *exchange = ex;
    return HPC_OK;
}

int hpc_exchange_accept(hpc_context *c, double timeout) {
    int status = hpc_context_ready(c, op_create);
    return status != HPC_OK ? status : hpc_context_agree(c, op_create, HPC_OK, hpc_deadline(&c->group, timeout));
}

/* ---- close ---- */

/* Tells every rank how far the pushes from here go (those sent in part do not count), or later that no answer comes
 * from here either. A rank that is gone needs not know. By a lane of the exchange, which is flushed before the memory
 * goes. */
static int announce(hpc_exchange *ex, uint64_t what) {
    hpc_context *c = ex->context;
    int me = c->group.rank, first_failure = HPC_OK;
    size_t n = ex->layout.places[me].worker && !ex->life.closed ? (size_t)ex->plan->n_keys : 0;
    uint64_t *counts = n > 0 ? (uint64_t *)(void *)(hpc_own_part(ex) + ex->layout.places[me].pushed) : NULL;
    for (size_t k = 0; k < n; k++)
        atomic_store_explicit((_Atomic uint64_t *)&counts[k], ex->keys[k].pushes, memory_order_relaxed);
    for (int r = 0; r < c->group.size; r++) {
        if (hpc_group_has_departed(&c->group, r)) continue;
        size_t at = ex->layout.places[r].closed + (size_t)me * (size_t)ex->plan->n_keys * sizeof *counts;
        int status =
            hpc_put_signal(ex->in_lanes[0], ex->window, r, counts, n * sizeof *counts, at, hpc_signal_closed(me), what);
        status = hpc_unless_left(ex, r, status);
        if (status != HPC_OK && status != HPC_ERR_PEER && first_failure == HPC_OK) first_failure = status;
    }
    return first_failure;
}

static int is_open(const hpc_exchange *ex, int rank) {
    return ex->layout.places[rank].worker &&
           atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_closed(rank)), memory_order_acquire) == 0;
}

static int open_workers(void *arg, int *ranks) {
    const hpc_exchange *ex = arg;
    int n = 0;
    for (int r = 0; r < ex->context->group.size; r++)
        if (is_open(ex, r)) ranks[n++] = r;
    return n == 0 && ex->discipline->outstanding != NULL ? ex->discipline->outstanding(ex, ranks) : n;
}

/* After a revoke the others go on without a rank that closes the exchange, and do not come back to it. One that serves
 * goes on with them. */
static int all_closed(void *arg) {
    hpc_exchange *ex = arg;
    if (ex->inline_progress) hpc_context_work(ex->context);
    if (atomic_load_explicit(&ex->fault.failed, memory_order_relaxed) != HPC_OK) return 1;
    if (ex->life.closed && atomic_load(&ex->context->group.revoked)) return 1;
    for (int r = 0; r < ex->context->group.size; r++)
        if (is_open(ex, r)) return 0;
    return ex->discipline->outstanding == NULL || ex->discipline->outstanding(ex, NULL) == 0;
}

int hpc_exchange_serve(hpc_exchange *ex, double timeout) {
    static const char op[] = "serve";
    HPC_SPAN(ex == NULL ? NULL : ex->context->group.timeline, op, NULL);
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    int status = hpc_exchange_check(ex, op), rank = ex->context->group.rank;
    if (status == HPC_OK && ex->layout.places[rank].worker && !ex->life.closed)
        status = hpc_fail(HPC_ERR_INVALID, op,
                          "%s: rank %d is a worker, which serves the others in its own calls and in close; serve is "
                          "for ranks that only serve",
                          op, rank);
    if (status != HPC_OK) return status;
    const hpc_wait wait = {op, all_closed, open_workers, ex};
    status = hpc_wait_for(&ex->context->group, &wait, timeout);
    return status == HPC_OK ? hpc_exchange_check(ex, op) : status;
}

/* Pushes that are under way are waited for: the rows of this rank may be among what others wait for. After a timeout a
 * second call goes on. */
int hpc_exchange_close(hpc_exchange *ex, double timeout) {
    static const char op[] = "close";
    HPC_SPAN(ex == NULL ? NULL : ex->context->group.timeline, op, NULL);
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    if (ex->life.closed && ex->life.served) return HPC_OK;
    int status = hpc_exchange_check(ex, op), rank = ex->context->group.rank;
    double deadline = hpc_deadline(&ex->context->group, timeout);
    if (status == HPC_OK && !ex->life.closed && ex->layout.places[rank].worker)
        status = hpc_worker_finish(ex, op, deadline);
    if (status == HPC_OK && !ex->life.closed) status = hpc_cores_send_kept(ex, op, hpc_left(deadline));
    if (status == HPC_ERR_TIMEOUT) return status;
    if (status == HPC_OK && !ex->life.closed && ex->discipline->closing != NULL) ex->discipline->closing(ex);
    if (!ex->life.closed) {
        int muted = hpc_mute_errors(1); /* if something has failed before, that is what close tells */
        if (status == HPC_OK) hpc_mute_errors(muted);
        int announced = announce(ex, HPC_CLOSED);
        hpc_mute_errors(muted);
        if (status == HPC_OK) status = announced;
        ex->life.closed = 1;
    }
    if (status == HPC_OK && ex->life.serves) status = hpc_exchange_serve(ex, hpc_left(deadline));
    ex->life.served = status != HPC_ERR_TIMEOUT;
    return status;
}

void hpc_exchange_free(hpc_exchange *ex) {
    if (ex == NULL || !hpc_group_is_mine(&ex->context->group)) return;
    int muted = hpc_mute_errors(1);
    hpc_cores_stop(ex);
    double deadline = hpc_now() + 1; /* answers come before the news that there are no more; a rank that stands still
                                        has seen neither */
    for (int i = 0; i < ex->n_lanes && ex->life.open; i++) hpc_lane_flush(ex->out_lanes[i], hpc_left(deadline));
    if (ex->life.open) announce(ex, HPC_FREED);
    for (int i = 0; i < ex->n_lanes; i++) { /* first: puts that are still under way read what is freed below */
        if (ex->in_lanes != NULL) hpc_lane_free(ex->in_lanes[i]);
        if (ex->out_lanes != NULL) hpc_lane_free(ex->out_lanes[i]);
    }
    if (ex->discipline->free != NULL) ex->discipline->free(ex);
    hpc_pieces_free(ex);
    hpc_rows_free(ex);
    hpc_args_free(ex);
    free(ex->in_lanes);
    free(ex->out_lanes);
    hpc_window_free(ex->window);
    hpc_layout_free(ex);
    free(ex->peers.pushed);
    free(ex->peers.received);
    free(ex->peers.late);
    free(ex->peers.inputs_whole);
    free(ex->peers.wait);
    free(ex->peers.awaited);
    hpc_plan_free(ex->plan);
    hpc_context_release(ex->context);
    hpc_mute_errors(muted);
    free(ex);
}

/* ---- rows ---- */

/* When a rank has died what is under way never ends, and its rows stay as they are: they can be saved for the exchange
 * of those who are left. The same after a revoke, also while who left has closed the exchange but not its context. */
static int is_over(hpc_exchange *ex) {
    const hpc_group *g = &ex->context->group;
    int lost = atomic_load(&g->revoked);
    for (int r = 0; r < g->size; r++) lost |= hpc_group_has_lost(g, r);
    if (!lost || hpc_group_usable(g, "rows") != HPC_OK) return 0;
    hpc_cores_stop(ex);
    return 1;
}

int hpc_exchange_under_way(hpc_exchange *ex) {
    return ex == NULL || is_over(ex) ? -1 : hpc_worker_under_way(ex);
}

/* Under ASYNC the pushes of others change a row at any time: its core is paused while it is copied. */
static hpc_work *find_work(hpc_exchange *ex, int row, const char *op) {
    if (ex == NULL)
        hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    else if (row < 0 || row >= ex->plan->n_rows)
        hpc_fail(HPC_ERR_INVALID, op, "%s: row %d is out of range; the plan has %d", op, row, ex->plan->n_rows);
    else if (ex->work_of[row] < 0)
        hpc_fail(HPC_ERR_INVALID, op, "%s: row %d is owned by rank %d, not by rank %d", op, row,
                 ex->plan->rows[row].owner, ex->context->group.rank);
    else if (is_over(ex) || (hpc_exchange_check(ex, op) == HPC_OK && hpc_worker_check_idle(ex, op) == HPC_OK))
        return &ex->work[ex->work_of[row]];
    return NULL;
}

/* Copies the rule's state between the core's order (block by block) and the caller's (slot by slot). */
static void copy_state(const hpc_work *w, float *to, const float *from, int out) {
    size_t count = (size_t)w->row->count, slots = (size_t)w->rule->rule.slots;
    for (size_t b = 0; b < count; b += HPC_BLOCK) {
        size_t n = count - b < HPC_BLOCK ? count - b : HPC_BLOCK;
        for (size_t s = 0; s < slots; s++) {
            size_t inside = b * slots + s * n, outside = s * count + b;
            memcpy(to + (out ? outside : inside), from + (out ? inside : outside), n * sizeof(float));
        }
    }
}

int hpc_exchange_get_row(hpc_exchange *ex, int row, uint64_t *step, float *params, float *state) {
    const hpc_work *w = find_work(ex, row, "get_row");
    if (w == NULL) return HPC_ERR_INVALID;
    hpc_core_pause(&ex->cores[w->row->core]);
    if (step != NULL) *step = w->step;
    if (params != NULL && w->param != NULL) memcpy(params, w->param, (size_t)w->row->count * sizeof(float));
    if (state != NULL && w->state != NULL) copy_state(w, state, w->state, 1);
    hpc_core_resume(&ex->cores[w->row->core]);
    return HPC_OK;
}

int hpc_exchange_set_row(hpc_exchange *ex, int row, uint64_t step, const float *params, const float *state) {
    hpc_work *w = find_work(ex, row, "set_row");
    if (w == NULL) return HPC_ERR_INVALID;
    hpc_core_pause(&ex->cores[w->row->core]);
    w->step = step;
    if (ex->discipline->restored != NULL) ex->discipline->restored(ex, w, step);
    if (params != NULL && w->param != NULL) memcpy(w->param, params, (size_t)w->row->count * sizeof(float));
    if (state != NULL && w->state != NULL) copy_state(w, w->state, state, 0);
    hpc_core_resume(&ex->cores[w->row->core]);
    return HPC_OK;
}

int hpc_exchange_get_folded(hpc_exchange *ex, int rank, uint64_t *pushes) {
    static const char op[] = "get_folded";
    if (ex == NULL || pushes == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange or pushes is NULL", op);
    if (rank < 0 || rank >= ex->context->group.size)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d is out of range; there are %d", op, rank,
                        ex->context->group.size);
    is_over(ex);
    *pushes = 0;
    for (int s = 0; s < ex->layout.n_shares && ex->discipline->folded_of != NULL; s++) {
        const hpc_share *share = &ex->layout.shares[s];
        if (share->owner != ex->context->group.rank) continue;
        hpc_core_pause(&ex->cores[share->core]);
        uint64_t n = ex->discipline->folded_of(share, rank);
        hpc_core_resume(&ex->cores[share->core]);
        if (n > *pushes) *pushes = n;
    }
    return HPC_OK;
}

int hpc_exchange_publish(hpc_exchange *ex, double timeout) {
    static const char op[] = "publish";
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    int status = hpc_exchange_check(ex, op);
    if (status != HPC_OK) return status;
    double deadline = hpc_deadline(&ex->context->group, timeout);
    status = hpc_context_agree(ex->context, op, hpc_worker_check_idle(ex, op), deadline);
    return status == HPC_OK ? send_params(ex, op, deadline) : status;
}

/* ---- facts ---- */

int hpc_exchange_get_stats(const hpc_exchange *ex, hpc_exchange_stats *stats) {
    if (ex == NULL || stats == NULL) return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or stats is NULL");
    *stats = ex->stats;
    for (int c = 0; c < ex->n_own_cores; c++) {
        const hpc_core *core = &ex->cores[c];
        stats->applied += atomic_load_explicit(&core->tally.applied, memory_order_relaxed);
        stats->bytes_folded += atomic_load_explicit(&core->tally.bytes_folded, memory_order_relaxed);
        stats->bytes_written += atomic_load_explicit(&core->tally.bytes_written, memory_order_relaxed);
        stats->reduces += atomic_load_explicit(&core->tally.reduces, memory_order_relaxed);
        stats->whole += atomic_load_explicit(&core->tally.whole, memory_order_relaxed);
        stats->torn += atomic_load_explicit(&core->tally.torn, memory_order_relaxed);
        stats->stale += atomic_load_explicit(&core->tally.stale, memory_order_relaxed);
        stats->missing += atomic_load_explicit(&core->tally.missing, memory_order_relaxed);
        stats->busy += atomic_load_explicit(&core->tally.busy, memory_order_relaxed);
    }
    stats->usual = hpc_usual_limit(&ex->usual);
    for (int r = 0; r < ex->context->group.size; r++) stats->bytes_sent += hpc_sent_to_rows(ex, r);
    if (ex->discipline->count != NULL) ex->discipline->count(ex, stats);
    return HPC_OK;
}

int hpc_exchange_get_inputs(const hpc_exchange *ex, uint64_t *counts, int cap) {
    if (ex == NULL || (counts == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or counts is NULL");
    for (int k = 0; k < cap; k++)
        counts[k] = k <= ex->peers.most_inputs && ex->peers.inputs_whole != NULL
                        ? atomic_load_explicit(&ex->peers.inputs_whole[k], memory_order_relaxed)
                        : 0;
    return ex->peers.inputs_whole != NULL ? ex->peers.most_inputs : 0;
}

int hpc_exchange_get_staleness(const hpc_exchange *ex, uint64_t *counts, int cap) {
    if (ex == NULL || cap < 0 || (counts == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or counts is NULL, or cap is negative");
    for (int k = 0; k < cap; k++) counts[k] = 0;
    return ex->discipline->staleness == NULL ? 0 : ex->discipline->staleness(ex, counts, cap);
}

int hpc_exchange_get_peer(const hpc_exchange *ex, int rank, hpc_exchange_peer *peer) {
    static const char op[] = "stats";
    if (ex == NULL || peer == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange or peer is NULL", op);
    if (rank < 0 || rank >= ex->context->group.size)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d is out of range; there are %d", op, rank,
                        ex->context->group.size);
    *peer = (hpc_exchange_peer){
        hpc_sent_to_rows(ex, rank), atomic_load_explicit(&ex->peers.received[rank], memory_order_relaxed),
        ex->peers.wait[rank], atomic_load_explicit(&ex->peers.late[rank], memory_order_relaxed), 0};
    if (ex->discipline->count_peer != NULL) ex->discipline->count_peer(ex, rank, peer);
    return HPC_OK;
}

hpc_memory *hpc_exchange_memory(const hpc_exchange *ex, int rank) {
    return ex == NULL ? NULL : hpc_window_memory(ex->window, rank);
}

hpc_memory *hpc_exchange_gradient_memory(const hpc_exchange *ex, int key) {
    if (ex == NULL || key < 0 || key >= ex->plan->n_keys) return NULL;
    if (ex->pieces != NULL && ex->pieces[key].source != NULL) return hpc_memory_retain(ex->pieces[key].source);
    return hpc_exchange_memory(ex, ex->context->group.rank);
}

int hpc_exchange_params_rank(const hpc_exchange *ex) {
    return ex == NULL ? -1 : ex->layout.holder;
}

int hpc_exchange_takes_writes(const hpc_exchange *ex, int key) {
    return ex != NULL && key >= 0 && key < ex->plan->n_keys && !ex->keys[key].encoded.apart;
}

static int works(const hpc_exchange *ex) {
    return ex != NULL && ex->layout.places[ex->context->group.rank].worker;
}

int hpc_exchange_late(const hpc_exchange *ex, int key) {
    int n = 0;
    for (int k = 0; works(ex) && k < ex->plan->n_keys && ex->discipline->late != NULL; k++)
        if (key < 0 || k == key) n += ex->discipline->late(ex, k);
    return n;
}

uint64_t hpc_exchange_version(const hpc_exchange *ex) {
    uint64_t newest = 0;
    for (int k = 0; works(ex) && k < ex->plan->n_keys; k++) {
        uint64_t version = ex->discipline->version == NULL ? ex->keys[k].pushes : ex->discipline->version(ex, k);
        if (version > newest) newest = version;
    }
    return newest;
}
