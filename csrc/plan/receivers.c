/* Makes plans in which receivers apply the rule (Parameter Flow, section 3.2) from plans in which owners apply it. In
 * the new plan the row that applied forwards its fold, relays forward it too, and each receiver has a row that applies
 * it. A receiver is a rank to which the old plan sends parameters; the ranks of a host share one receiver, which writes
 * the parameters into their memory.
 *
 * A worker waits only for its own receiver, so it may be a step ahead of others. It may then write the rule's arguments
 * of the next step at a receiver that still uses the arguments of this step. Arguments are stored by slot, so the plan
 * must have at least two slots. */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "base/status.h"
#include "codec/codec.h"

static const char op_plan[] = "plan";

int hpc_plan_check_apply_at(int apply_at) {
    if (apply_at >= HPC_AT_OWNERS && apply_at <= HPC_AT_BOTH) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: apply_at is %d; must be %d (owners), %d (receivers) or %d (both)",
                    apply_at, HPC_AT_OWNERS, HPC_AT_RECEIVERS, HPC_AT_BOTH);
}

struct receiving {
    const hpc_plan *old;
    int apply_at;
    const int *hosts; /* by rank: the number of its host; NULL: each rank is its own host */
    int *new_of;      /* by old row: the number of its new row */
    hpc_row *rows;    /* NULL: only counts */
    hpc_edge *edges;  /* the old plan's edges come first, in their old places */
    const hpc_edge *old_edges;
    size_t n_rows, n_edges;
};

/* Returns whether an out-edge of a row sends parameters to a rank on the host of the row's owner. */
static int is_own(const struct receiving *m, const hpc_row *row, const hpc_edge *out) {
    if (out->row >= 0) return 0;
    return m->hosts == NULL ? out->rank == row->owner : m->hosts[out->rank] == m->hosts[row->owner];
}

/* How many other rows, ranks of other hosts, and ranks of its owner's host a row sends to. keeps: set if the owner
 * needs a row only to keep a master. */
struct ends {
    int rows, others, own, keeps;
};

static struct ends ends_of(const struct receiving *m, const hpc_row *row) {
    struct ends n = {0, 0, 0, 0};
    for (int e = 0; e < row->n_out; e++) {
        const int own = is_own(m, row, &row->out[e]);
        n.own += own;
        n.rows += row->out[e].row >= 0;
        n.others += row->out[e].row < 0 && !own;
    }
    n.keeps = m->apply_at == HPC_AT_BOTH && row->action == HPC_APPLY && n.own == 0;
    return n;
}

static hpc_edge *take_edges(struct receiving *m, int n) {
    hpc_edge *edges = m->rows != NULL ? m->edges + m->n_edges : NULL;
    m->n_edges += (size_t)n;
    return edges;
}

/* Adds a row that applies the forwards which the new version of `row` sends over the edge in. codec: the codec of the
 * forwards. */
static void add_apply(struct receiving *m, const hpc_row *row, int codec, int owner, const hpc_edge *in,
                      const hpc_edge *out, int n_out) {
    const size_t r = m->n_rows++;
    if (m->rows == NULL) return;
    m->rows[r] = *row;
    m->rows[r].depth = m->rows[m->new_of[row - m->old->rows]].depth;
    m->rows[r].owner = owner;
    m->rows[r].action = HPC_APPLY;
    m->rows[r].codec_in = codec;
    m->rows[r].in = in;
    m->rows[r].n_in = m->rows[r].quorum = 1;
    m->rows[r].out = out;
    m->rows[r].n_out = n_out;
}

/* Turns an old row that sends parameters into a row that forwards, and adds rows that apply behind the chunk's rows. If
 * the owner is the only receiver, the row itself still applies. */
static void send_on(struct receiving *m, int old, int codec) {
    const hpc_row *row = &m->old->rows[old];
    const struct ends n = ends_of(m, row);
    const int splits = n.rows + n.others + n.keeps > 0, from = m->new_of[old], host = n.own + n.keeps > 0;
    hpc_row *now = m->rows != NULL ? &m->rows[from] : NULL;
    if (now != NULL) {
        now->action = splits ? HPC_FORWARD : HPC_APPLY;
        if (row->action != HPC_APPLY) now->codec_in = codec;
        now->codec_out = splits ? codec : row->codec_out;
    }
    if (!splits) return;
    hpc_edge *in = take_edges(m, 1), *out = take_edges(m, n.rows + n.others + host), *own = take_edges(m, n.own);
    if (now != NULL) {
        *in = (hpc_edge){row->owner, from, 1.0};
        now->out = out;
        now->n_out = n.rows + n.others + host;
    }
    for (int e = 0, rows = 0; e < row->n_out && now != NULL; e++)
        if (row->out[e].row >= 0)
            out[rows++] = (hpc_edge){row->out[e].rank, m->new_of[row->out[e].row], 1.0};
        else if (is_own(m, row, &row->out[e]))
            *own++ = row->out[e];
    if (now != NULL) out += n.rows;
    for (int e = 0; e < row->n_out; e++) {
        if (row->out[e].row >= 0 || is_own(m, row, &row->out[e])) continue;
        if (now != NULL) *out++ = (hpc_edge){row->out[e].rank, (int)m->n_rows, 1.0};
        add_apply(m, row, codec, row->out[e].rank, in, now != NULL ? m->edges + (&row->out[e] - m->old_edges) : NULL,
                  1);
    }
    if (!host) return;
    if (now != NULL) *out = (hpc_edge){row->owner, (int)m->n_rows, 1.0};
    add_apply(m, row, codec, row->owner, in, now != NULL ? own - n.own : NULL, n.own);
}

/* Makes the new rows of a chunk from its old rows, whose numbers are first to end - 1. One of the old rows applies. */
static void make_chunk(struct receiving *m, int first, int end) {
    /* The codec of forwards: if other groups send pieces to the applying row, their codec; otherwise the row's
     * codec_in. */
    int codec = HPC_F32, pieces = 0;
    for (int r = first; r < end; r++) {
        const hpc_row *row = &m->old->rows[r];
        if (row->action == HPC_APPLY && !pieces) codec = row->codec_in;
        if (row->action == HPC_FORWARD && !hpc_codec_of(row->codec_out)->addressable)
            codec = row->codec_out, pieces = 1;
        m->new_of[r] = (int)m->n_rows++;
        if (m->rows == NULL) continue;
        hpc_row *now = &m->rows[m->new_of[r]];
        *now = *row;
        now->depth = row->depth > 1 ? row->depth : 2;
        now->in = m->edges + (row->in - m->old_edges);
        now->out = m->edges + (row->out - m->old_edges);
    }
    for (int r = first; r < end; r++)
        if (m->old->rows[r].action != HPC_FORWARD) send_on(m, r, codec);
}

static void make_rows(struct receiving *m, size_t n_old_edges) {
    const hpc_row *rows = m->old->rows;
    m->n_rows = 0;
    m->n_edges = n_old_edges;
    for (int first = 0, end; first < m->old->n_rows && m->n_rows <= HPC_PLAN_NUMBERS; first = end) {
        for (end = first + 1; end < m->old->n_rows && rows[end].key == rows[first].key; end++)
            if (rows[end].offset != rows[first].offset) break;
        make_chunk(m, first, end);
    }
}

int hpc_plan_apply_at(hpc_plan **plan, const hpc_edge *edges, size_t n_edges, int apply_at, const int *hosts) {
    hpc_plan *old = *plan;
    if (apply_at == HPC_AT_OWNERS) return HPC_OK;
    struct receiving m = {.old = old, .apply_at = apply_at, .hosts = hosts, .old_edges = edges};
    hpc_plan_block b;
    m.new_of = malloc((size_t)old->n_rows * sizeof *m.new_of);
    if (m.new_of == NULL) return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", old->n_rows);
    make_rows(&m, n_edges);
    int status = HPC_OK;
    if (m.n_rows > HPC_PLAN_NUMBERS)
        status = hpc_fail(HPC_ERR_INVALID, op_plan,
                          "plan: with apply_at %d each chunk has a row at each receiver, which makes more than the %d "
                          "rows that a plan may have; make chunk larger",
                          apply_at, HPC_PLAN_NUMBERS);
    if (status == HPC_OK) status = hpc_plan_block_make(old->keys, old->n_keys, (int)m.n_rows, m.n_edges, op_plan, &b);
    if (status == HPC_OK) {
        m.rows = b.rows;
        m.edges = b.edges;
        memcpy(b.edges, edges, n_edges * sizeof *edges);
        make_rows(&m, n_edges);
        for (size_t e = 0; e < n_edges; e++)
            if (b.edges[e].row >= 0) b.edges[e].row = m.new_of[b.edges[e].row];
        b.plan->affinity = old->affinity;
        hpc_plan_free(old);
        *plan = b.plan;
    }
    free(m.new_of);
    return status;
}
