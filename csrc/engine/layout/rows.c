/* Finds, for the rows that a rank owns, the cores that work for them and the addresses of their inputs, masters, states
 * and outputs. */
#include "engine/layout/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/args.h"
#include "engine/bytes.h"
#include "engine/layout/holders.h"
#include "engine/owner/kind.h"
#include "engine/layout/layout.h"
#include "engine/params.h"
#include "engine/owner/row.h"
#include "engine/pieces.h"
#include "engine/layout/stages.h"

/* ---- hops ---- */

/* Among peers each rank's updates may go down a tree without being decoded (hpc_edge.row); each rank of the tree
 * applies them once. When an update of rank r has come, the core sends it on to this rank's children in r's tree
 * (forward.c). The event names r's row (HPC_OP_PASSED), so one parent may send updates of several ranks. */

/* Returns owner's row with the same elements as row, or -1. Rows with the same elements are adjacent in the plan. */
static int row_of(const hpc_plan *plan, int row, int owner) {
    const hpc_row *own = &plan->rows[row];
    for (int way = -1; way <= 1; way += 2)
        for (int i = row; i >= 0 && i < plan->n_rows; i += way) {
            if (plan->rows[i].key != own->key || plan->rows[i].offset != own->offset) break;
            if (plan->rows[i].owner == owner) return i;
        }
    return -1;
}

/* The state of a walk over a child's receive slots. */
typedef struct finding {
    hpc_scheme *sc;
    const char *op;
    int child, failed;
} finding;

static void find_hop(void *arg, int row, int edge, size_t offset) {
    finding *f = arg;
    hpc_scheme *sc = f->sc;
    const hpc_edge *in = &sc->plan->rows[row].in[edge];
    if (hpc_edge_via(in) != sc->context->group.rank || f->failed) return;
    const hpc_work *w = hpc_work_of(sc, sc->own_rows[row]);
    hpc_input *passed = &w->inputs[hpc_row_input_of(w, in->rank, 0)];
    hpc_hop **last = &passed->hops, *hop = hpc_scheme_take(sc, 1, sizeof *hop, f->op);
    f->failed = hop == NULL;
    if (f->failed) return;
    while (*last != NULL) last = &(*last)->next;
    *hop = (hpc_hop){.in = passed,
                     .rank = f->child,
                     .named = row_of(sc->plan, row, in->rank),
                     .at = sc->layout.slot_base[f->child * sc->context->group.size + in->rank] + offset};
    *last = hop;
}

static int open_hops(hpc_scheme *sc, const char *op) {
    const int me = sc->context->group.rank;
    int status = HPC_OK;
    if (!sc->passes_on) return HPC_OK;
    sc->own_rows = hpc_scheme_take(sc, (size_t)sc->plan->n_rows, sizeof *sc->own_rows, op);
    for (int i = 0; i < sc->plan->n_rows && sc->own_rows != NULL; i++) sc->own_rows[i] = row_of(sc->plan, i, me);
    for (int r = 0; r < sc->context->group.size && sc->own_rows != NULL && status == HPC_OK; r++) {
        finding f = {sc, op, r, 0};
        if (r != me) status = hpc_layout_walk(sc, r, -1, find_hop, &f);
        if (f.failed) status = HPC_ERR_MEMORY;
    }
    return sc->own_rows != NULL ? status : HPC_ERR_MEMORY;
}

static size_t count_hops(const hpc_scheme *sc, const hpc_core *core) {
    size_t n = 0;
    for (int i = 0; i < sc->plan->n_rows && sc->passes_on; i++)
        for (int e = 0; e < sc->plan->rows[i].n_in && sc->plan->rows[i].core == core->index; e++)
            n += hpc_edge_via(&sc->plan->rows[i].in[e]) == sc->context->group.rank;
    return n * (size_t)sc->layout.depth;
}

/* ---- cores ---- */

/* A row's private memory has, in this order: the rule's state, the accumulator, the outputs as they are sent, and the
 * residual. */
static size_t private_bytes(const hpc_row_room *room) {
    return room->state + room->acc + room->encoded + room->residual;
}

static int open_core(hpc_scheme *sc, hpc_core *core, const char *op) {
    size_t size = (size_t)sc->context->group.size, most_inputs = 1, forwards = count_hops(sc, core);
    size_t sums = HPC_BLOCK * sizeof(float); /* of a block, or of the largest row */
    for (int i = 0; i < sc->plan->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[i];
        if (row->owner != sc->context->group.rank || row->core != core->index) continue;
        if ((size_t)row->n_in * (size_t)sc->layout.depth > most_inputs)
            most_inputs = (size_t)row->n_in * (size_t)sc->layout.depth;
        const hpc_row_room room = hpc_row_kind_of(sc, row)->room(sc, row);
        if (room.sum > sums) sums = room.sum;
        for (int e = 0; e < row->n_out; e++) forwards += row->out[e].row >= 0 ? (size_t)sc->layout.depth : 0;
        core->memory_bytes += private_bytes(&room);
    }
    core->acc_bytes = sums; /* the sums come first in memory */
    core->memory_bytes += sums;
    core->memory = hpc_private_alloc(core->memory_bytes, core->node);
    core->folding = malloc(most_inputs * sizeof *core->folding);
    core->bases = malloc(most_inputs * sizeof *core->bases);
    core->base_weights = malloc(most_inputs * sizeof *core->base_weights);
    core->base_inputs = malloc(most_inputs * sizeof *core->base_inputs);
    core->pieces = malloc(most_inputs * sizeof *core->pieces);
    core->writing = malloc((size + 1) * sizeof *core->writing);
    core->args_came = calloc(size, sizeof *core->args_came);
    core->kept = malloc((forwards + 1) * sizeof *core->kept);
    core->kept_first = calloc(size, sizeof *core->kept_first);
    core->kept_last = calloc(size, sizeof *core->kept_last);
    core->held = calloc(size, sizeof *core->held);
    core->holds = calloc(size, 1);
    core->rows_done = calloc(size, sizeof *core->rows_done);
    core->sent = calloc(size * HPC_TRAFFIC_STAGES, sizeof *core->sent);
    core->sent_of_key = calloc((size_t)sc->plan->n_keys, sizeof *core->sent_of_key);
    if (core->memory == NULL || core->folding == NULL || core->bases == NULL || core->base_weights == NULL ||
        core->base_inputs == NULL || core->pieces == NULL || core->writing == NULL || core->args_came == NULL ||
        core->kept == NULL || core->kept_first == NULL || core->kept_last == NULL || core->held == NULL ||
        core->holds == NULL || core->rows_done == NULL || core->sent == NULL || core->sent_of_key == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no %zu bytes for the rule's state", op, core->memory_bytes);
    core->acc = core->memory;
    for (size_t i = 0; i < forwards; i++) {
        core->kept[i].next = core->free_kept;
        core->free_kept = &core->kept[i];
    }
    core->due = INFINITY;
    core->in = sc->in_lanes[core->index];
    core->out = sc->out_lanes[core->index];
    core->two_ways = sc->layout.stages.many || sc->passes_on;
    return HPC_OK;
}

/* ---- rows ---- */

/* Returns the worker's gradient memory from the row's first element on. */
static char *gradient_at(const hpc_scheme *sc, int rank, const hpc_row *row) {
    const hpc_pushed *key = &sc->keys[row->key];
    return (char *)hpc_window_peer_view(sc->window, rank) + sc->layout.places[rank].gradients + key->gradient +
           hpc_row_from(sc, row);
}

static size_t params_offset(const hpc_scheme *sc, int rank, const hpc_row *row) {
    return hpc_params_at(sc, rank, row->key, 0) + row->offset * sizeof(float);
}

/* Returns how many ranks' updates an input carries. */
static int count_updates(const hpc_scheme *sc, const hpc_edge *edge) {
    int n = 0;
    for (int r = 0; r < sc->context->group.size && edge->row >= 0; r++) n += hpc_row_is_fed_by(sc, edge->row, r);
    return edge->row >= 0 ? n : !hpc_input_is_empty(sc, edge);
}

static int lowest_feeder(const hpc_scheme *sc, int row) {
    int r = 0;
    while (!hpc_row_is_fed_by(sc, row, r)) r++;
    return r;
}

/* Returns the lowest rank that a row's result reaches; -1 if it reaches only the owner's own parameters. */
static int lowest_receiver(const hpc_scheme *sc, int row) {
    for (int r = 0; r < sc->context->group.size; r++)
        if (hpc_row_reaches(sc, row, r)) return r;
    return -1;
}

static const double (*args_of(const hpc_scheme *sc, const hpc_work *w, int rank))[HPC_RULE_ARGS] {
    return (const double(*)[HPC_RULE_ARGS])(const void *)hpc_args_of(sc, w->share, rank, 0);
}

static void find_inputs(hpc_scheme *sc, hpc_work *w) {
    w->args_of = sc->own_args ? sc->context->group.rank : lowest_feeder(sc, w->index);
    w->args = args_of(sc, w, w->args_of);
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_edge *edge = &w->row->in[e];
        const int lowest = edge->row < 0 ? edge->rank : lowest_feeder(sc, edge->row);
        w->inputs[e] = (hpc_input){.rank = edge->rank,
                                   .forwarded = edge->row,
                                   .lowest = lowest,
                                   .updates = count_updates(sc, edge),
                                   .mass = hpc_edge_mass(sc, edge),
                                   .empty = hpc_input_is_empty(sc, edge),
                                   .codec = hpc_edge_codec(sc->plan, w->row, edge),
                                   .args = args_of(sc, w, lowest),
                                   .stride = sc->layout.gradient_bytes};
        if (!w->inputs[e].empty && w->inputs[e].codec->addressable)
            w->inputs[e].nbytes = w->inputs[e].codec->max_bytes(w->config, w->row->count);
        if (edge->row < 0 && !w->inputs[e].empty && hpc_reads_in_place(sc, w->row->owner, edge->rank))
            w->inputs[e].slots = gradient_at(sc, edge->rank, w->row);
    }
}

static void add_output(hpc_scheme *sc, hpc_work *w, const hpc_edge *edge) {
    const int r = edge->rank, to_row = edge->row >= 0;
    hpc_output *out = &w->outputs[w->n_outputs++];
    w->sends_to_rows |= to_row;
    *out = (hpc_output){.rank = r, .row = edge->row};
    out->lowest = to_row ? lowest_receiver(sc, out->row) : r;
    if (to_row) return; /* found_target */
    out->offset = params_offset(sc, r, w->row);
    if (hpc_is_mapped(sc, r))
        out->params = (float *)(void *)((char *)hpc_window_peer_view(sc->window, r) + out->offset);
    else if (!w->out_codec->plain)
        out->offset = hpc_params_encoded_at(sc, r, w->row);
}

static void find_outputs(hpc_scheme *sc, hpc_work *w) {
    int me = sc->context->group.rank;
    const hpc_row *row = w->row;
    size_t master = sc->layout.master_of[w->index];
    int keeps = hpc_row_keeps_params(row), home = keeps && master == HPC_NOWHERE ? hpc_row_home(sc, row) : -1;
    if (home >= 0)
        w->param = (float *)(void *)((char *)hpc_window_peer_view(sc->window, home) + params_offset(sc, home, row));
    else if (keeps)
        w->param = (float *)(void *)(hpc_own_part(sc) + sc->layout.places[me].masters + master);
    /* The outputs begin with the rank that follows the owner's own, so that the owners begin with different ranks. */
    for (int wraps = 0; wraps < 2; wraps++)
        for (int e = 0; e < row->n_out; e++) {
            const int r = row->out[e].rank, to_row = row->out[e].row >= 0;
            if ((r <= me) != wraps) continue;
            /* A shared copy is written once. */
            if (to_row || (sc->layout.holders[r] == r && r != home)) add_output(sc, w, &row->out[e]);
        }
}

/* hpc_apply_fn of a row that emits: the fold becomes the parameters. */
static int take_fold(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count, (void)state, (void)args;
    memcpy(param, acc, (size_t)n * sizeof *param);
    return 0;
}

/* Notes the receive slots of an input of this rank. */
static void found_slots(void *arg, int row, int edge, size_t offset) {
    hpc_scheme *sc = arg;
    hpc_work *w = hpc_work_of(sc, row);
    size_t size = (size_t)sc->context->group.size;
    size_t base = sc->layout.slot_base[(size_t)sc->context->group.rank * size + (size_t)w->inputs[edge].rank];
    w->inputs[edge].slots = hpc_own_part(sc) + base + offset;
    w->inputs[edge].stride = hpc_slot_stride(sc, w->row);
}

/* Notes the slot to which this rank sends a push, or a row's forward. */
static void found_target(void *arg, int row, int edge, size_t offset) {
    hpc_scheme *sc = arg;
    const hpc_row *to = &sc->plan->rows[row];
    size_t size = (size_t)sc->context->group.size;
    size_t at = sc->layout.slot_base[(size_t)to->owner * size + (size_t)sc->context->group.rank] + offset;
    int source = to->in[edge].row;
    if (source < 0) {
        sc->push_slot[row] = at;
        return;
    }
    hpc_work *w = hpc_work_of(sc, source);
    for (int e = 0; e < w->n_outputs; e++)
        if (w->outputs[e].row == row) w->outputs[e].offset = at;
}

static int open_memory(hpc_scheme *sc, hpc_work *w, char *memory, const char *op) {
    const hpc_row_room room = w->kind->room(sc, w->row);
    w->state = (float *)(void *)memory;
    if (room.acc > 0) w->acc = (float *)(void *)(memory + room.state);
    if (room.sum > 0) w->acc = sc->cores[w->row->core].acc;
    if (room.encoded > 0) w->encoded = memory + room.state + room.acc;
    if (!room.sends_pieces) return HPC_OK;
    return hpc_pieces_open_row(sc, w, memory + room.state + room.acc + room.encoded, op);
}

static int open_rows(hpc_scheme *sc, const char *op) {
    const hpc_plan *plan = sc->plan;
    int me = sc->context->group.rank;
    size_t n_in = 0, n_out = 0, *used = calloc((size_t)sc->n_own_cores + 1, sizeof *used);
    sc->work_of = malloc((size_t)plan->n_rows * sizeof *sc->work_of);
    sc->push_slot = malloc((size_t)plan->n_rows * sizeof *sc->push_slot);
    for (int i = 0; i < plan->n_rows; i++) {
        if (plan->rows[i].owner != me) continue;
        sc->n_work++;
        n_in += (size_t)plan->rows[i].n_in;
        n_out += (size_t)plan->rows[i].n_out;
    }
    sc->work = calloc((size_t)sc->n_work + 1, sizeof *sc->work);
    sc->memory.inputs = calloc(n_in + 1, sizeof *sc->memory.inputs);
    sc->memory.outputs = calloc(n_out + 1, sizeof *sc->memory.outputs);
    sc->memory.weights = calloc(n_in + 1, sizeof *sc->memory.weights);
    sc->memory.arrived = calloc((size_t)sc->n_work * (size_t)sc->layout.depth + 1, sizeof *sc->memory.arrived);
    sc->memory.came = calloc(n_in * (size_t)sc->layout.depth + 1, sizeof *sc->memory.came);
    if (used == NULL || sc->work_of == NULL || sc->push_slot == NULL || sc->work == NULL || sc->memory.inputs == NULL ||
        sc->memory.outputs == NULL || sc->memory.weights == NULL || sc->memory.arrived == NULL ||
        sc->memory.came == NULL) {
        free(used);
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d rows", op, sc->n_work);
    }
    hpc_input *inputs = sc->memory.inputs;
    hpc_output *outputs = sc->memory.outputs;
    double *weights = sc->memory.weights;
    _Atomic char *came = sc->memory.came;
    hpc_work *w = sc->work;
    for (int c = 0; c < sc->n_own_cores; c++) used[c] = sc->cores[c].acc_bytes;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        sc->work_of[i] = -1;
        sc->push_slot[i] = HPC_NOWHERE;
        if (row->owner != me) continue;
        sc->work_of[i] = (int)(w - sc->work);
        *w = (hpc_work){.index = i,
                        .row = row,
                        .kind = hpc_row_kind_of(sc, row),
                        .in_codec = hpc_codec_of(row->codec_in),
                        .out_codec = hpc_codec_of(row->codec_out),
                        .config = sc->configs[row->key],
                        .rule = &sc->rules[row->key],
                        .apply = row->action == HPC_EMIT ? take_fold : sc->rules[row->key].rule.apply,
                        .share = &sc->layout.shares[sc->layout.share_of[i]]};
        w->inputs = inputs;
        w->outputs = outputs;
        w->weights = weights;
        w->arrived = sc->memory.arrived + (size_t)(w - sc->work) * (size_t)sc->layout.depth;
        w->came = came;
        came += (size_t)row->n_in * (size_t)sc->layout.depth;
        for (int e = 0; e < row->n_in; e++) weights[e] = row->in[e].weight;
        inputs += row->n_in;
        outputs += row->n_out;
        weights += row->n_in;
        char *memory = (char *)sc->cores[row->core].memory + used[row->core];
        if (open_memory(sc, w, memory, op) != HPC_OK) {
            free(used);
            return HPC_ERR_MEMORY;
        }
        const hpc_row_room room = w->kind->room(sc, row);
        used[row->core] += private_bytes(&room);
        find_inputs(sc, w);
        find_outputs(sc, w);
        w++;
    }
    free(used);
    return HPC_OK;
}

/* Gives each receiver a separate copy as the source of its puts, if other ranks go on without waiting for that
 * receiver: a put reads its source until the receiver takes it, and the master may change before. Forwards and relays
 * need no copies: they get new inputs only after their receivers have the result (stages.c). */
static int open_copies(hpc_scheme *sc, const char *op) {
    if (!(sc->discipline->traits & HPC_GOES_ON)) return HPC_OK;
    for (int i = 0; i < sc->n_work; i++)
        for (int o = 0; o < sc->work[i].n_outputs && hpc_row_keeps_params(sc->work[i].row); o++) {
            hpc_output *out = &sc->work[i].outputs[o];
            size_t nbytes = hpc_output_bytes(sc, sc->work[i].row);
            const size_t mean = (size_t)sc->work[i].row->count * sizeof(float);
            if ((sc->use != NULL) && mean > nbytes) nbytes = mean; /* copies also serve means that are gathered */
            if (out->params == NULL && (out->copy = malloc(nbytes)) == NULL)
                return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a copy of the outputs to rank %d", op,
                                out->rank);
        }
    return HPC_OK;
}

static int open_shares(hpc_scheme *sc, const char *op) {
    size_t size = (size_t)sc->context->group.size;
    for (int s = 0; s < sc->layout.n_shares; s++) {
        hpc_share *share = &sc->layout.shares[s];
        if (share->owner != sc->context->group.rank) continue;
        share->left = share->n_rows;
        share->members = malloc(size * sizeof *share->members);
        if (share->members == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
        /* This rank comes last: once answered it may close, and then it sends nothing more. */
        for (int i = 1; i <= sc->context->group.size; i++) {
            int r = (sc->context->group.rank + i) % sc->context->group.size;
            if (hpc_share_answers(sc, share, r)) share->members[share->n_members++] = r;
        }
    }
    return HPC_OK;
}

/* Returns how often this rank's cores have worked on rows. Over shared memory only this count distinguishes a long fold
 * from a deadlock. */
static uint64_t count_works(const void *arg) {
    const hpc_scheme *sc = arg;
    uint64_t n = 0;
    for (int c = 0; c < sc->n_own_cores; c++) {
        const hpc_tally *tally = &sc->cores[c].tally;
        n += atomic_load_explicit(&tally->works, memory_order_relaxed) +
             atomic_load_explicit(&tally->bytes_written, memory_order_relaxed);
    }
    return n;
}

int hpc_rows_open(hpc_scheme *sc, const char *op) {
    int me = sc->context->group.rank, status = HPC_OK;
    for (int c = 0; c < sc->n_own_cores && status == HPC_OK; c++) status = open_core(sc, &sc->cores[c], op);
    if (status == HPC_OK) status = open_shares(sc, op);
    if (status == HPC_OK) status = hpc_args_open(sc, op);
    if (status == HPC_OK) status = open_rows(sc, op);
    if (status == HPC_OK) status = open_hops(sc, op);
    if (status == HPC_OK) status = open_copies(sc, op);
    if (status == HPC_OK) status = hpc_pieces_open_worker(sc, op);
    if (status == HPC_OK) status = hpc_layout_walk(sc, me, -1, found_slots, sc);
    if (status == HPC_OK) status = hpc_layout_walk(sc, -1, me, found_target, sc);
    if (status == HPC_OK) {
        sc->mover = (hpc_mover){.count = count_works, .arg = sc};
        hpc_watch_add(&sc->context->group.watch, &sc->mover);
    }
    return status;
}

void hpc_rows_free(hpc_scheme *sc) {
    hpc_watch_remove(&sc->context->group.watch, &sc->mover);
    for (int c = 0; sc->cores != NULL && c < sc->n_own_cores; c++) {
        hpc_core *core = &sc->cores[c];
        if (core->memory != NULL) hpc_private_free(core->memory, core->memory_bytes);
        hpc_private_free(core->sum, core->sum_bytes);
        free(core->folding);
        free(core->bases);
        free(core->base_weights);
        free(core->base_inputs);
        free(core->pieces);
        free(core->writing);
        free(core->args_came);
        free(core->kept);
        free(core->kept_first);
        free(core->kept_last);
        free(core->held);
        free(core->holds);
        free(core->rows_done);
        free(core->sent);
        free(core->sent_of_key);
    }
    for (int i = 0; sc->work != NULL && i < sc->n_work; i++) free(sc->work[i].gathered);
    for (int i = 0; sc->work != NULL && i < sc->n_work; i++)
        for (int o = 0; o < sc->work[i].n_outputs; o++) free(sc->work[i].outputs[o].copy);
    free(sc->cores);
    free(sc->work);
    free(sc->work_of);
    free(sc->push_slot);
    free(sc->memory.inputs);
    free(sc->memory.outputs);
    free(sc->memory.weights);
    free(sc->memory.arrived);
    free(sc->memory.came);
}

void hpc_rows_name_groups(hpc_scheme *sc) {
    for (int i = 0; i < sc->n_work; i++) {
        hpc_work *w = &sc->work[i];
        for (int o = 0; o < w->n_outputs && w->row->action == HPC_APPLY; o++)
            w->outputs[o].lowest = hpc_sender_of(sc, w->row->key, w->outputs[o].lowest);
    }
}
