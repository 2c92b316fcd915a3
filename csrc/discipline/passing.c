/* How updates pass from peer to peer. A core sends each input that it gets to the children that this rank has in the
 * tree of the input's rank, out of the receive slot into which it came, before the input is applied. The event names
 * the row of the rank whose update it is (HPC_OP_PASSED), so one parent may send updates of several ranks.
 *
 * A receive slot is written again by the push that comes depth pushes later. A worker makes that push when all shares
 * have answered the earlier one (hpc_peers_is_free): then all ranks have applied it, so each has got it, and no put
 * reads the slot any more.
 *
 * A child whose ring is full holds up what is for it alone: it waits in a queue of the core, in order. The core alone
 * uses the queue; a wait reads the number of what waits in it. */
#include "discipline/passing.h"

#include <stdlib.h>

#include "engine/answer.h"
#include "engine/core.h"
#include "engine/layout.h"
#include "engine/row.h"
#include "engine/send.h"
#include "engine/stages.h"

/* A child in the tree of an input. */
typedef struct hop {
    int rank;
    int named; /* the row that the event names */
    size_t at; /* bytes from the start of the child's part to slot 0 */
} hop;

typedef struct waiting {
    hpc_work *work;
    int input, hop, slot;
} waiting;

/* A ring of the updates of one core that wait for one rank. */
typedef struct queue {
    waiting *items;
    size_t first, room;
    _Atomic size_t n;
} queue;

struct hpc_ways {
    hop *hops;
    int *first; /* by input of this rank's rows, all in a row: hops[first[i]] up to hops[first[i + 1]] are its children
                 */
    int *own;   /* by row of the plan: this rank's row of the same elements; -1 */
    queue *queues; /* [core * size + rank] */
    int n_queues;
};

/* ---- open ---- */

/* The number of an input among those of all rows of this rank. */
static size_t number_of(const hpc_engine *en, const hpc_work *w, int input) {
    return (size_t)(w->inputs - en->memory.inputs) + (size_t)input;
}

/* Rows of the same elements lie together. */
static int row_of(const hpc_plan *plan, int row, int owner) {
    const hpc_row *own = &plan->rows[row];
    for (int way = -1; way <= 1; way += 2)
        for (int i = row; i >= 0 && i < plan->n_rows; i += way) {
            if (plan->rows[i].key != own->key || plan->rows[i].offset != own->offset) break;
            if (plan->rows[i].owner == owner) return i;
        }
    return -1;
}

static int find_own(const hpc_engine *en, hpc_ways *its) {
    its->own = malloc((size_t)en->plan->n_rows * sizeof *its->own);
    for (int i = 0; i < en->plan->n_rows && its->own != NULL; i++)
        its->own[i] = row_of(en->plan, i, en->context->group.rank);
    return its->own != NULL;
}

/* A walk over the receive slots of a child. */
typedef struct finding {
    const hpc_engine *en;
    hpc_ways *its;
    int child, counts; /* counts: only how many children each input has */
} finding;

static void find_hop(void *arg, int row, int edge, size_t offset) {
    const finding *f = arg;
    const hpc_engine *en = f->en;
    const hpc_edge *in = &en->plan->rows[row].in[edge];
    const size_t size = (size_t)en->context->group.size;
    if (hpc_edge_via(in) != en->context->group.rank) return;
    const hpc_work *w = &en->work[en->work_of[f->its->own[row]]];
    int *at = &f->its->first[number_of(en, w, hpc_row_input_of(w, in->rank, 0))];
    if (f->counts)
        at[1]++;
    else
        f->its->hops[(*at)++] = (hop){.rank = f->child,
                                      .named = row_of(en->plan, row, in->rank),
                                      .at = en->layout.slot_base[(size_t)f->child * size + (size_t)in->rank] + offset};
}

static int walk(const hpc_engine *en, hpc_ways *its, int counts) {
    int status = HPC_OK;
    for (int r = 0; r < en->context->group.size && status == HPC_OK; r++)
        if (r != en->context->group.rank) status = hpc_layout_walk(en, r, -1, find_hop, &(finding){en, its, r, counts});
    return status;
}

static int find_hops(const hpc_engine *en, hpc_ways *its) {
    size_t n = 0;
    for (int i = 0; i < en->n_work; i++) n += (size_t)en->work[i].row->n_in;
    its->first = calloc(n + 2, sizeof *its->first);
    if (its->first == NULL || walk(en, its, 1) != HPC_OK) return 0;
    for (size_t i = 1; i <= n; i++) its->first[i] += its->first[i - 1];
    its->hops = malloc(((size_t)its->first[n] + 1) * sizeof *its->hops);
    if (its->hops == NULL || walk(en, its, 0) != HPC_OK) return 0;
    for (size_t i = n + 1; i-- > 1;) its->first[i] = its->first[i - 1]; /* which were ends, and are starts again */
    its->first[0] = 0;
    return 1;
}

/* Room for all that can wait: each input, in each slot. */
static int open_queues(const hpc_engine *en, hpc_ways *its) {
    const int size = en->context->group.size;
    its->n_queues = en->n_own_cores * size;
    its->queues = calloc((size_t)its->n_queues + 1, sizeof *its->queues);
    if (its->queues == NULL) return 0;
    for (int i = 0; i < en->n_work; i++) {
        const hpc_work *w = &en->work[i];
        for (size_t e = number_of(en, w, 0); e < number_of(en, w, w->row->n_in); e++)
            for (int h = its->first[e]; h < its->first[e + 1]; h++)
                its->queues[w->row->core * size + its->hops[h].rank].room += (size_t)en->layout.depth;
    }
    for (int q = 0; q < its->n_queues; q++) {
        its->queues[q].items = malloc((its->queues[q].room + 1) * sizeof(waiting));
        if (its->queues[q].items == NULL) return 0;
    }
    return 1;
}

hpc_ways *hpc_passing_open(const hpc_engine *en, const char *op) {
    hpc_ways *its = calloc(1, sizeof *its);
    if (its != NULL && find_own(en, its) && find_hops(en, its) && open_queues(en, its)) return its;
    hpc_passing_free(its);
    hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the ways of updates", op);
    return NULL;
}

void hpc_passing_free(hpc_ways *its) {
    if (its == NULL) return;
    for (int q = 0; its->queues != NULL && q < its->n_queues; q++) free(its->queues[q].items);
    free(its->queues);
    free(its->hops);
    free(its->first);
    free(its->own);
    free(its);
}

/* ---- the core ---- */

/* HPC_IN_PROGRESS: the child's ring is full. */
static int send_hop(hpc_core *core, const hop *to, const hpc_work *w, int input, int slot) {
    const hpc_engine *en = core->engine;
    const hpc_input *in = &w->inputs[input];
    const char *piece = in->slots + (size_t)slot * in->stride;
    const size_t nbytes = in->codec->length(w->config, piece, w->row->count);
    const int status = hpc_lane_try_notify(core->out, en->window, to->rank, piece, nbytes,
                                           to->at + (size_t)slot * hpc_slot_stride(en, w->row),
                                           hpc_imm(HPC_OP_PASSED, slot, to->named));
    if (status == HPC_OK) hpc_core_count_sent(core, w->row->key, to->rank, HPC_TRAFFIC_RELAY, nbytes);
    if (status != HPC_IN_PROGRESS) hpc_core_check_put(core, status);
    return status;
}

static queue *queue_of(const hpc_core *core, const hpc_ways *its, int rank) {
    return &its->queues[core->index * core->engine->context->group.size + rank];
}

static size_t waiting_in(const queue *q) {
    return atomic_load_explicit(&q->n, memory_order_relaxed);
}

void hpc_pass_on(hpc_core *core, hpc_ways *its, hpc_work *w, int input, int slot) {
    const size_t number = number_of(core->engine, w, input);
    for (int h = its->first[number]; h < its->first[number + 1]; h++) {
        queue *q = queue_of(core, its, its->hops[h].rank);
        if (waiting_in(q) == 0 && send_hop(core, &its->hops[h], w, input, slot) != HPC_IN_PROGRESS) continue;
        if (waiting_in(q) == q->room) {
            hpc_engine_fail(core->engine, HPC_ERR_TRANSPORT, "a rank pushed over an update that was not passed on yet");
            return;
        }
        q->items[(q->first + waiting_in(q)) % q->room] = (waiting){w, input, h, slot};
        atomic_fetch_add_explicit(&q->n, 1, memory_order_relaxed);
    }
}

int hpc_pass_waiting(hpc_core *core, hpc_ways *its) {
    int n = 0;
    for (int r = 0; r < core->engine->context->group.size; r++) {
        queue *q = queue_of(core, its, r);
        for (; waiting_in(q) > 0; n++) {
            const waiting *item = &q->items[q->first];
            if (send_hop(core, &its->hops[item->hop], item->work, item->input, item->slot) == HPC_IN_PROGRESS) break;
            q->first = (q->first + 1) % q->room;
            atomic_fetch_sub_explicit(&q->n, 1, memory_order_release);
        }
    }
    return n;
}

int hpc_passed_input(hpc_core *core, const hpc_ways *its, const hpc_event *event, hpc_work **w) {
    const hpc_plan *plan = core->engine->plan;
    const int row = hpc_imm_index(event->imm), slot = hpc_imm_slot(event->imm);
    if (hpc_imm_operation(event->imm) != HPC_OP_PASSED || row >= plan->n_rows || slot >= core->engine->layout.depth)
        return -1;
    *w = its->own[row] < 0 ? NULL : hpc_core_row(core, its->own[row]);
    const int input = *w == NULL ? -1 : hpc_row_input_of(*w, plan->rows[row].owner, 0);
    if (input < 0 || hpc_edge_via(&(*w)->row->in[input]) != event->peer) return -1;
    const hpc_input *in = &(*w)->inputs[input];
    const size_t due = in->codec->length((*w)->config, in->slots + (size_t)slot * in->stride, (*w)->row->count);
    return event->nbytes == due && due > 0 ? input : -1;
}

int hpc_passing_waits(const hpc_engine *en, const hpc_ways *its, int *ranks) {
    const int size = en->context->group.size;
    int n = 0;
    for (int q = 0; q < its->n_queues; q++) {
        if (atomic_load_explicit(&its->queues[q].n, memory_order_acquire) == 0) continue;
        if (ranks == NULL) return 1;
        n = hpc_add_rank(ranks, n, q % size);
    }
    return n;
}

/* ---- the worker ---- */

int hpc_passing_send_share(hpc_engine *en, int s, int slot, hpc_limit *l) {
    const hpc_row *row = &en->plan->rows[en->layout.shares[s].rows[0]];
    const hpc_edge *push = hpc_row_input(row, en->context->group.rank);
    return push != NULL && hpc_edge_via(push) >= 0 ? HPC_OK : hpc_push_in_turn(en, s, slot, l);
}
